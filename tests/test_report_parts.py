"""What a report takes from elsewhere: the theory's bounds and devices' time, on real runs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from fednag import cli, compare
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.view import RunView, read_all
from fednag.show.document import bounds, document, html, recorded_times
from fednag.theory import Setting, theorem3

EXPERIMENT = """
name = "small"
[data]
name = "digits"
[split]
kind = "dirichlet"
alpha = 1.0
workers = 2
[model]
name = "linear"
[algorithm]
name = "fednag"
lr = 0.1
momentum = 0.5
[training]
tau = 5
iterations = 40
batch = 0
[engine]
chunk = 1
threads = 1
"""

# Nothing varies, so that all times can be computed by hand.
FLEET = """
format = 1
name = "hand"
[[device]]
name = "slow"
gflops = 0.01
up = { mbit = 0.1, latency = 0.5 }
down = { mbit = 0.2, latency = 0.25 }
[[device]]
name = "fast"
gflops = 0.1
up = { mbit = 0.1, latency = 0.5 }
down = { mbit = 0.2, latency = 0.25 }
[aggregator]
seconds = 0.125
"""


def fednag(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fednag", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0, words


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedNAG and FedAvg beside each other, the first of them checked against its theory."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "small.toml").write_text(EXPERIMENT)
    (desk / "hand.toml").write_text(FLEET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        fednag("theory", "check", "small.toml")
        fednag("compare", "small.toml", "--algorithms", "fednag,fedavg", "-q")
        fednag("report", "runs/small", "-o", "plain.html")
        fednag("report", "runs/small", "--fleet", "hand.toml", "-o", "fleet.html")
    return desk


def data_of(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def views_of(desk: Path) -> list[RunView]:
    from fednag.runs.folder import find_runs

    views, failed = read_all(find_runs([desk / "runs" / "small"]), RunView.read)
    assert failed == []
    return views


def test_bounds_lie_above_the_loss_they_are_about(desk: Path) -> None:
    data = data_of(desk / "plain.html")
    labels = [track["label"] for track in data["overlays"]]
    assert "bound for fednag, alpha tight" in labels
    check = json.loads((desk / "runs" / "theory" / "small" / "check.json").read_text())
    known = {s: check["constants"][s]["value"] for s in ("beta", "rho", "delta", "p", "omega")}
    setting = Setting(eta=0.1, gamma=0.5, tau=5, **known)
    (run,) = [track for track in data["tracks"] if track["label"] == "fednag"]
    losses = dict(zip(run["columns"]["iteration"], run["columns"]["loss"], strict=True))
    for track in data["overlays"]:
        columns = track["columns"]
        assert columns["iteration"] == [5, 10, 15, 20, 25, 30, 35, 40]
        assert columns["round"] == [1, 2, 3, 4, 5, 6, 7, 8]
        for iteration, bound in zip(columns["iteration"], columns["loss"], strict=True):
            assert bound > min(loss for t, loss in losses.items() if 0 < t <= iteration)
        if track["label"].endswith("alpha tight"):
            promised = theorem3(setting, 40).value
            assert promised is not None
            assert columns["loss"][-1] == pytest.approx(check["minimum"]["loss"] + promised, 1e-5)


def test_a_bound_that_says_nothing_is_not_drawn(desk: Path) -> None:
    check = json.loads((desk / "runs" / "theory" / "small" / "check.json").read_text())
    known = {s: check["constants"][s]["value"] for s in ("beta", "rho", "delta", "p", "omega")}
    setting = Setting(eta=0.1, gamma=0.5, tau=5, **known)
    assert theorem3(setting, 40, "paper").vacuous
    labels = [track["label"] for track in data_of(desk / "plain.html")["overlays"]]
    assert "bound for fednag, alpha paper" not in labels


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("algorithm", {"lr": 0.05}),
        ("split", {"workers": 3}),
        ("training", {"tau": 4}),
        ("training", {"iterations": 45}),  # p and omega were measured over 40
        (None, {"seed": 1}),
    ],
)
def test_a_check_of_something_else_is_not_used(
    desk: Path, section: str | None, changes: dict[str, Any]
) -> None:
    (view,) = [s for s in views_of(desk) if s.label == "fednag"]
    assert bounds([view])
    config = dict(view.config)
    if section is None:
        config |= changes
    else:
        config[section] = {**config[section], **changes}
    assert bounds([replace(view, config=config)]) == []
    assert bounds([replace(view, folder=None)]) == []


def by_hand(desk: Path) -> dict[tuple[str, str], list[float]]:
    """(method, device) -> seconds (compute, down, up) of a round, from the formats' formulas."""
    found = {}
    for view in views_of(desk):
        work = view.info["work"]
        vectors = 2 if view.label == "fednag" else 1
        size = vectors * 4 * (64 * 10 + 10)  # float32, digits have 64 pixels and 10 classes
        flops = 2 * 2 * 64 * 10  # forward, and backward for the weights
        for worker, (device, speed) in enumerate((("0 slow", 1e7), ("1 fast", 1e8))):
            compute = 5 * work["sizes"][worker] * flops / speed
            down, up = 0.25 + 8 * size / 0.2e6, 0.5 + 8 * size / 0.1e6
            found[view.label, device] = [compute, down, up]
    return found


def test_devices_time_by_hand(desk: Path) -> None:
    data = data_of(desk / "fleet.html")
    (table,) = data["times"]
    assert table["title"] == "hand, 1 replay of each run"
    expected = by_hand(desk)
    assert {(row["method"], row["device"]) for row in table["rows"]} == set(expected)
    whole: dict[str, float] = {}
    for (method, _), parts in expected.items():
        whole[method] = max(whole.get(method, 0.0), sum(parts) + 0.125)
    for row in table["rows"]:
        busy = expected[row["method"], row["device"]]
        assert [row["compute"], row["down"], row["up"]] == pytest.approx(busy)
        assert row["waiting"] == pytest.approx(whole[row["method"]] - sum(busy))
    for track in data["tracks"]:
        ends = [number * whole[track["label"]] for number in range(9)]
        assert track["columns"]["clock"] == pytest.approx(ends, rel=1e-5)
    assert data["charts"][0]["across"]["clock"] == "seconds on the devices"
    plain = data_of(desk / "plain.html")
    assert plain["times"] == []
    assert "clock" not in plain["charts"][0]["across"]


def test_what_fednag_time_left_is_shown_too(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    fednag("time", "runs/small", "--fleet", "hand.toml", "--loss", "10", "--out", "runs/small")
    (left,) = (desk / "runs" / "small").glob("time-*.json")
    try:
        (table,) = recorded_times(views_of(desk))
        assert table["title"].startswith("hand, 1 replays")
        (again,) = data_of(desk / "fleet.html")["times"]
        assert table["rows"] == again["rows"]
        left.write_text("[]")
        assert recorded_times(views_of(desk)) == []
    finally:
        left.unlink()


LINES = "[...document.querySelectorAll('[data-chart={}] .line')].map(g => g.dataset.label)"


def test_bounds_are_drawn_beside_the_loss_alone(browser: Browser, desk: Path) -> None:
    browser.size(1200)
    browser.open((desk / "plain.html").as_uri())
    bound = "bound for fednag, alpha tight"
    key = f"document.querySelector('[data-key=\"m-{bound}\"]')"
    # So far above the losses that they would be one line: it waits until it is asked for.
    assert sorted(browser.run(LINES.format("loss"))) == ["fedavg", "fednag"]
    assert browser.run(f"{key}.ariaPressed") == "false"
    browser.run(f"{key}.click()")
    assert {"fednag", "fedavg", bound} <= set(browser.run(LINES.format("loss")))
    assert browser.run(f"{key}.ariaPressed") == "true"
    assert sorted(browser.run(LINES.format("accuracy"))) == ["fedavg", "fednag"]
    notes = browser.run("document.querySelector('#curves').innerText")
    assert "FedNAG's Theorem 3" in notes
    # Its end is further up than that of its run.
    ends = (
        "[...document.querySelectorAll('[data-chart=loss] .line')].map(g => [g.dataset.label, "
        "Number(g.querySelector('path').getAttribute('d').split(',').pop())])"
    )
    height = dict(browser.run(ends))
    assert height[bound] < height["fednag"]
    browser.run(f"{key}.click()")
    assert bound not in browser.run(LINES.format("loss"))
    press_all = "document.querySelector('[data-key=all]').click()"
    browser.run(press_all)
    assert bound in browser.run(LINES.format("loss"))
    browser.run(press_all)
    assert browser.run(LINES.format("loss")) == []
    browser.run(press_all)
    # The theory counts iterations and rounds; it knows no bytes.
    browser.run("document.querySelector('[data-key=x-bytes]').click()")
    assert bound not in browser.run(LINES.format("loss"))
    assert browser.complaints == []


def test_devices_time_is_drawn(browser: Browser, desk: Path) -> None:
    browser.size(1200)
    browser.open((desk / "fleet.html").as_uri())
    bars = "[...document.querySelectorAll('[data-chart=times] rect')]"
    titles = browser.run(f"{bars}.map(b => b.textContent)")
    widths = browser.run(f"{bars}.map(b => b.width.baseVal.value)")
    rows = data_of(desk / "fleet.html")["times"][0]["rows"]
    parts = ("compute", "down", "up", "waiting")
    seconds = [row[part] for row in rows for part in parts]
    assert [title.rsplit(" ", 2)[0] for title in titles] == [
        f"{row['method']}, {row['device']}: {part}" for row in rows for part in parts
    ]
    unit = sum(widths) / sum(seconds)
    assert widths == pytest.approx([unit * second for second in seconds], abs=0.1)
    assert "hand, 1 replay of each run" in browser.run("document.querySelector('#times').innerText")
    browser.run("document.querySelector('[data-key=x-clock]').click()")
    axis = "[...document.querySelectorAll('[data-chart=loss] .axis-title')].map(t => t.textContent)"
    assert "seconds on the devices" in browser.run(axis)
    assert sorted(browser.run(LINES.format("loss"))) == ["fedavg", "fednag"]
    browser.open((desk / "plain.html").as_uri())
    assert browser.run("document.querySelector('#times')") is None
    assert browser.run("document.querySelector('[data-key=x-clock]')") is None
    assert browser.complaints == []


def made(label: str, seed: int, worker_losses: tuple[float, ...] | None = None) -> RunView:
    records = [Record(i, i, 1.0, 0.5, 0.5, i, i, i, 4, worker_losses) for i in range(3)]
    config = {"name": "x", "seed": seed, "algorithm": {"name": label}, "training": {"tau": 1}}
    info = {"held": [[5, 0], [0, 7], [2, 2]]}
    return RunView(label, seed, records, Ending("finished"), config=config, info=info)


def test_who_holds_what_is_workers_by_classes() -> None:
    (split,) = document([made("a", 0)])["splits"]
    assert split["cells"] == [[5, 0], [0, 7], [2, 2]]
    assert (split["rows"], split["columns"]) == ("worker", "class")


def test_settings_that_differ_are_marked() -> None:
    rows = {r["field"]: r for r in document([made("a", 0), made("b", 0)])["settings"]["rows"]}
    assert rows["algorithm.name"] == {
        "field": "algorithm.name",
        "differs": True,
        "values": ["a", "b"],
    }
    assert not rows["training.tau"]["differs"]
    assert not rows["seed"]["differs"]
    rows = {r["field"]: r for r in document([made("a", 0), made("b", 1)])["settings"]["rows"]}
    assert rows["seed"]["differs"]


def test_of_many_workers_quantiles_are_shown() -> None:
    losses = tuple(float(number) for number in range(1, 22))
    (shown,) = document([made("a", 0, losses)])["workers"]
    ends = {track["label"]: track["columns"]["loss"][-1] for track in shown["tracks"]}
    assert ends == {
        "worst worker": 21,
        "90% quantile": 19,
        "median": 11,
        "10% quantile": 3,
        "best worker": 1,
    }
    (few,) = document([made("a", 0, losses[:12])])["workers"]
    assert [track["columns"]["loss"][0] for track in few["tracks"]] == list(range(1, 13))


def test_a_title_is_text() -> None:
    page = html(document([made("a", 0)], title="<b>&</title><script>x"))
    assert "<title>&lt;b&gt;&amp;&lt;/title&gt;&lt;script&gt;x · fednag</title>" in page


def test_narrow_screens_keep_names_and_leave_out_what_matters_least(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    from fednag.runs.statistics import ranked
    from fednag.show.tables import best_first, fitting, texts
    from fednag.show.terminal import ranking

    known: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 10, "quiet": True}
    rows = ranked(compare(["fednag", "fedavg"], data="digits", **known).views)
    lines = texts(rows)
    assert fitting(lines, None) == lines
    assert "best loss" not in fitting(lines, 110)[0]
    assert "final accuracy" in fitting(lines, 10)[0]
    Console(width=40).print(ranking(rows, "t", width=40))
    assert "fednag" in capsys.readouterr().out
    assert best_first(rows) == "best first, by final accuracy"


def test_without_accuracies_there_are_no_columns_of_them() -> None:
    import torch

    from fednag.runs.statistics import ranked
    from fednag.show.tables import best_first, texts

    x = torch.randn(40, 3)
    known: dict[str, Any] = {"model": "linear", "tau": 5, "iterations": 10, "quiet": True}
    rows = ranked(compare(["fednag", "fedavg"], data=(x, x.sum(1)), **known).views)
    assert not [name for name in texts(rows)[0] if "accuracy" in name]
    assert best_first(rows) == "best first, by final loss"
