"""The report's page in a real browser: it draws, listens, and asks no one for anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.targets import Target
from fednag.runs.view import RunView
from fednag.show.document import document, time_table, write_page

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def records_of(seed: int, rate: float, iterations: int = 100) -> list[Record]:
    """A made-up run that learns at some rate."""
    records = []
    for i in range(0, iterations + 1, 10):
        loss = 2.0 * (1 - rate) ** (i / 10) + 0.01 * seed + 0.1
        accuracy = min(1.0, 1 - loss / 2.5)
        losses = tuple(loss + 0.1 * w for w in range(3))
        records.append(
            Record(i, i // 10, loss, accuracy, accuracy, 50 * i, 50 * i, i / 50, 3, losses)
        )
    return records


def view(label: str, seed: int, rate: float, **tables: Any) -> RunView:
    config = {
        "name": "made",
        "seed": seed,
        "data": {"name": "digits"},
        "split": {"kind": "classes", "workers": 3},
        "model": {"name": "logistic"},
        "algorithm": {"name": label, "lr": rate},
        "training": {"tau": 10, "iterations": 100},
        **tables,
    }
    info = {"held": [[5, 0], [0, 7], [2, 2]], "versions": {"torch": "2.0"}, "notes": ["a note"]}
    folder, over = Path("runs/made") / f"{label}-{seed}", Ending("finished")
    records = records_of(seed, rate)
    return RunView(label, seed, records, over, config=config, info=info, folder=folder)


VIEWS = [
    view(label, seed, rate)
    for label, rate in (("fednag", 0.5), ("fedavg", 0.2), (NASTY, 0.1))
    for seed in (0, 1)
]

SECONDS = {"compute": 1.0, "down": 2.0, "up": 3.0, "waiting": 4.0}
TIMES = time_table(NASTY, [{"label": NASTY, "device": NASTY, **SECONDS, "joules": 12.5}])

# Two vehicles: one drives 100 m east past a unit in 10 s, the other stands beside it.
MOMENT: dict[str, Any] = {
    "label": NASTY,
    "seed": 0,
    "first": 1,
    "ends": [0, 6, 10],
    "rows": ["aggregator", NASTY, "1 still"],
    "workers": [-1, 0, 1],
    "left_out": 0,
    "idle": 0,
    "kinds": ["compute", "down", "up", "waiting", "away", "aggregation"],
    "scores": [[0, 0.1], [6, 0.5]],
    "spans": [
        [1, 1, 0, 2, 1, 0],
        [1, 0, 2, 6, 1, 1],
        [2, 2, 1, 5, 1, 0],
        [0, 5, 5, 6, 1, 0],
        [1, 4, 6, 10, 2, 0],
        [2, 0, 6, 10, 2, 0],
    ],
    "map": {
        "box": [0, 100, 0, 20],
        "units": [{"name": NASTY, "x": 20, "y": 10, "range": 30, "half": 10}],
        "roads": [[[0, 10], [100, 10]]],
        "vehicles": [
            {
                "worker": 0,
                "name": NASTY,
                "pieces": [[[0, 0, 10], [10, 100, 10]]],
                "contacts": [[0, 5, 0]],
            },
            {
                "worker": 1,
                "name": "1 still",
                "pieces": [[[0, 20, 0], [10, 20, 0]]],
                "contacts": [[0, 10, 0]],
            },
        ],
        "until": 10,
        "period": None,
        "left_out": 0,
    },
}


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The report, open; whatever a test does with it, nothing may go wrong or leave the page."""
    path = write_page(document(VIEWS, times=[TIMES], moments=[MOMENT]), tmp_path / "report.html")
    browser.size(1200)
    browser.media()
    browser.open(path.as_uri())
    yield browser
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


LINES = "[...document.querySelectorAll('[data-chart={}] .line')].map(g => g.dataset.label)"


def lines(page: Browser, chart: str) -> list[str]:
    found: list[str] = page.run(LINES.format(chart))
    return found


def press(page: Browser, key: str) -> None:
    page.run(f"document.querySelector('[data-key=\"{key}\"]').click()")


def text(page: Browser, selector: str) -> str:
    found: str = page.run(f"document.querySelector({selector!r}).innerText")
    return found


def test_everything_is_drawn(page: Browser) -> None:
    assert "fednag does best" in text(page, "#lead")
    for chart in ("loss", "accuracy"):
        assert sorted(lines(page, chart)) == sorted(["fednag", "fedavg", NASTY])
        paths = f"[...document.querySelectorAll('[data-chart={chart}] .line path')]"
        assert page.run(f"{paths}.every(p => p.getBBox().width > 0)")
        assert page.run(f"document.querySelectorAll('[data-chart={chart}] .band').length") == 3
    assert lines(page, "workers") == ["worker 0", "worker 1", "worker 2"]
    cells = "[...document.querySelectorAll('[data-chart=split] rect')]"
    assert page.run(f"{cells}.map(c => c.textContent)") == [
        f"worker {w}, class {c}: {n} samples"
        for w, c, n in ((0, 0, 5), (0, 1, 0), (1, 0, 0), (1, 1, 7), (2, 0, 2), (2, 1, 2))
    ]
    # Workers go down, classes across, and the fullest cell is the darkest.
    assert page.run(f"{cells}.map(c => c.y.baseVal.value)") == [0, 0, 24, 24, 48, 48]
    across = page.run(f"{cells}.map(c => c.x.baseVal.value)")
    assert across == [across[0], across[1]] * 3
    assert across[0] < across[1]
    assert page.run(f"{cells}[3].getAttribute('fill')") == "rgba(var(--heat), 1.000)"
    assert page.run("document.querySelectorAll('#ranking tbody tr').length") == 3
    assert "fednag run runs/made/fednag-0/config.toml" in text(page, "#runs")
    assert "note: a note" in text(page, "#runs")
    assert "torch 2.0" in text(page, "#runs")


def test_bands_reach_one_deviation_to_either_side(page: Browser) -> None:
    """In pixels: the band's height over that between two lines, at the right end."""
    press(page, "linear-loss")
    ends = {
        label: [s.records[-1].loss or 0.0 for s in VIEWS if s.label == label]
        for label in ("fednag", "fedavg")
    }
    means = {label: sum(values) / 2 for label, values in ends.items()}
    deviation = abs(ends["fednag"][0] - ends["fednag"][1]) / 2**0.5
    part = 2 * deviation / (means["fedavg"] - means["fednag"])
    # The band runs along its upper edge and back along its lower one.
    edges = page.run(
        "document.querySelector('[data-chart=loss] .band').getAttribute('d')"
        ".slice(1, -1).split('L').map(p => Number(p.split(',')[1]))"
    )
    last = len(edges) // 2
    high, low = edges[last - 1], edges[last]
    lines = (
        "[...document.querySelectorAll('[data-chart=loss] .line')].map(g => [g.dataset.label, "
        "Number(g.querySelector('path').getAttribute('d').split(',').pop())])"
    )
    at = dict(page.run(lines))
    assert (low - high) / (at["fednag"] - at["fedavg"]) == pytest.approx(part, abs=0.02)
    assert (low + high) / 2 == pytest.approx(at["fednag"], abs=0.2)


def test_labels_are_text_whatever_they_hold(page: Browser) -> None:
    assert NASTY in text(page, "#ranking")
    drawn = "document.querySelector('[data-chart=times] .axis-title').textContent"
    assert page.run(drawn) == NASTY
    assert page.run("document.querySelectorAll('main script, main img').length") == 0


def test_joules_are_told_where_they_are_known(page: Browser) -> None:
    assert (
        text(page, "#joules") == f"Joules of an average round, all that are listed: {NASTY} 12.5."
    )
    assert "12.5 J" in page.run("document.querySelector('#times .values').textContent")


def test_a_timeline_shows_spans_where_they_are(page: Browser) -> None:
    bars = "[...document.querySelectorAll('[data-chart=moments] rect')]"
    titles = page.run(f"{bars}.map(b => b.textContent)")
    assert titles[:2] == [
        f"{NASTY}, round 1: receives 2 s",
        f"{NASTY}, round 1: computes 4 s, in vain",
    ]
    wide = page.run(f"{bars}.map(b => b.width.baseVal.value)")
    assert wide[1] / wide[0] == pytest.approx(2, rel=0.01)
    assert page.run(f"{bars}.map(b => b.getAttribute('opacity'))")[:3] == ["1", "0.35", "1"]
    # The second round alone.
    page.run(
        "(() => { const s = document.getElementById('span-choice'); s.value = '1';"
        "s.dispatchEvent(new Event('change'));"
        "const r = document.getElementById('from-round'); r.value = 2;"
        "r.dispatchEvent(new Event('input')); })()"
    )
    assert page.run(f"{bars}.map(b => b.textContent)") == ["1 still, round 2: computes 4 s"]
    assert "1 more are away all the time" in text(page, "#moments")


def test_a_map_plays_and_is_scrubbed(page: Browser) -> None:
    def seek(moment: float) -> None:
        page.run(
            f"(() => {{ const s = document.getElementById('scrub'); s.value = {moment};"
            "s.dispatchEvent(new Event('input')); })()"
        )

    marks = "[...document.querySelectorAll('[data-chart=map] circle[data-vehicle]')]"
    said = "document.getElementById('map-says').textContent"
    links = "[...document.querySelectorAll('[data-chart=map] line')]"
    ring = "document.querySelector('[data-chart=map] g').getCTM()"
    reach = "document.querySelector('[data-chart=map] g circle').r.baseVal.value"
    assert page.run(said) == (
        "0.00 s · round 1 · accuracy 10.00% · 2 of 2 vehicles connected · 1 receive, 1 wait"
    )
    where = []
    for moment in (0, 2, 7):
        seek(moment)
        where.append(page.run(f"{marks}.map(m => m.cx.baseVal.value)"))
    metre = page.run(reach) / 30
    assert where[1][0] - where[0][0] == pytest.approx(20 * metre, abs=0.2)
    assert where[2][0] - where[0][0] == pytest.approx(70 * metre, abs=0.2)
    assert where[0][1] == where[2][1]
    # The vehicle is where the unit is after 2 s; it has left after 5.
    shift = page.run(f"{ring}.e") - page.run(
        "document.querySelector('[data-chart=map]').getCTM().e"
    )
    assert where[1][0] == pytest.approx(shift, abs=0.5)
    assert page.run(f"{links}.map(l => l.getAttribute('visibility'))") == ["hidden", "visible"]
    assert page.run(said) == (
        "7.00 s · round 2 · accuracy 50.00% · 1 of 2 vehicles connected · 1 compute, 1 away"
    )
    assert page.run(f"{marks}[0].textContent") == f"{NASTY}: is away"
    seek(0)
    play = "document.getElementById('play')"
    page.run(f"{play}.click()")
    assert page.run(f"{play}.textContent") == "Pause"
    page.until(lambda: page.run(f"{marks}[0].cx.baseVal.value") > where[0][0] + 1)
    page.run(f"{play}.click()")
    stopped = page.run(f"{marks}[0].cx.baseVal.value")
    assert page.run(f"{play}.textContent") == "Play"
    assert page.run(f"new Promise(r => setTimeout(() => r({marks}[0].cx.baseVal.value), 80))") == (
        stopped
    )


def test_the_axis_is_switched(page: Browser) -> None:
    titles = (
        "[...document.querySelectorAll('[data-chart=loss] .axis-title')].map(t => t.textContent)"
    )
    for key, title in (
        ("round", "rounds"),
        ("bytes", "bytes sent, both ways"),
        ("seconds", "seconds of training"),
        ("iteration", "iterations"),
    ):
        press(page, f"x-{key}")
        assert title in page.run(titles)
        pressed = f"document.querySelector('[data-key=x-{key}]').ariaPressed"
        assert page.run(pressed) == "true"
    assert "global training loss (log scale)" in page.run(titles)
    press(page, "linear-loss")
    assert "global training loss" in page.run(titles)


def test_methods_are_hidden_and_shown(page: Browser) -> None:
    press(page, "m-fednag")
    assert "fednag" not in lines(page, "loss") + lines(page, "accuracy")
    assert len(lines(page, "loss")) == 2
    press(page, "m-fednag")
    assert len(lines(page, "loss")) == 3
    press(page, "all")
    assert lines(page, "loss") == []
    press(page, "all")
    assert len(lines(page, "loss")) == 3


def test_values_are_read_by_mouse_and_keys(page: Browser) -> None:
    box = "document.querySelector('[data-chart=accuracy]').getBoundingClientRect()"
    page.run("document.querySelector('[data-chart=accuracy]').scrollIntoView()")
    page.move(page.run(f"{box}.right") - 16, page.run(f"{box}.top") + 60)
    tip = "document.querySelector('[data-chart=accuracy] + .tip')"
    page.until(lambda: not page.run(f"{tip}.hidden"))
    shown = page.run(f"{tip}.innerText")
    assert "iterations: 100" in shown
    assert shown.index("fednag") < shown.index("fedavg")  # the best first
    last = [c.records[-1].accuracy for c in VIEWS[:2]]
    assert f"{sum(last) / 2 * 100:.2f}%" in shown
    page.move(1, 1)
    page.until(lambda: page.run(f"{tip}.hidden"))
    page.run("document.querySelector('[data-chart=loss]').focus()")
    tip = "document.querySelector('[data-chart=loss] + .tip')"
    page.key("Home")
    assert "iterations: 0" in page.run(f"{tip}.innerText")
    page.key("ArrowRight")
    assert "iterations: 10" in page.run(f"{tip}.innerText")
    page.key("Escape")
    assert page.run(f"{tip}.hidden")


def test_numbers_are_there_as_tables_and_settings_unfold(page: Browser) -> None:
    page.run("document.querySelectorAll('#curves details').forEach(d => d.open = true)")
    page.until(lambda: page.run("document.querySelectorAll('#curves .values').length") == 2)
    assert "100" in text(page, "#curves .values")
    rows = "[...document.querySelectorAll('#settings tbody th')].map(t => t.textContent)"
    assert page.run(rows) == ["algorithm.name", "algorithm.lr"]
    press(page, "settings")
    assert "training.tau" in page.run(rows)
    marked = "[...document.querySelectorAll('#settings tr.differs th')].map(t => t.textContent)"
    assert page.run(marked) == ["algorithm.name", "algorithm.lr"]


def test_dark_and_light(page: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    page.media(scheme="dark")
    page.until(lambda: page.run(paper) != light)
    dark = page.run(paper)
    page.run("document.getElementById('theme').click()")
    assert page.run(paper) == light
    page.run("document.getElementById('theme').click()")
    assert page.run(paper) == dark
    page.media("print", "dark")
    assert page.run(paper) == "rgb(255, 255, 255)"


def test_a_phone_is_wide_enough(page: Browser) -> None:
    page.size(360, 700, mobile=True)
    page.until(lambda: page.run("document.querySelector('[data-chart=loss]').clientWidth") < 360)
    beyond = (
        "[...document.querySelectorAll('main *')].filter(n => !n.closest('.scroll, .values') && "
        "n.getBoundingClientRect().right > 361).map(n => n.outerHTML.slice(0, 80))"
    )
    assert page.run(beyond) == []
    assert page.run("document.documentElement.scrollWidth") <= 360


def test_the_ranking_needs_no_scrolling_on_a_desk(browser: Browser, tmp_path: Path) -> None:
    """Long runs, large models, targets met on some seeds and a long reason for ending."""
    views = [view("fednag with a longer name", seed, rate) for seed, rate in ((0, 0.5), (1, 0.3))]
    views += [view("fedavg", seed, 0.001) for seed in (0, 1)]
    for number, one in enumerate(views):
        records = [
            replace(record, iteration=100 * record.iteration, seconds=9000.5 * record.seconds)
            for record in one.records
        ]
        ending = Ending("target", 9000, "accuracy", 0.95)
        views[number] = replace(one, records=records, ending=ending)
    path = write_page(document(views, target=Target("accuracy", 0.5)), tmp_path / "report.html")
    browser.size(1200)
    browser.media()
    browser.open(path.as_uri())
    assert "reached at iteration" in text(browser, "#ranking")
    hidden = "document.querySelector('#ranking .scroll')"
    assert browser.run(f"{hidden}.scrollWidth - {hidden}.clientWidth") == 0


def test_every_control_has_a_name_and_every_chart_a_description(page: Browser) -> None:
    nameless = (
        "[...document.querySelectorAll('button, select, input, [role=region], [role=img]')]"
        ".filter(n => !(n.ariaLabel || n.innerText || n.labels?.length))"
    )
    assert page.run(f"{nameless}.length") == 0
    described = page.run("document.querySelector('[data-chart=loss]').getAttribute('aria-label')")
    assert "fednag from 2.1" in described


def test_a_large_report_stays_small_and_opens(browser: Browser, tmp_path: Path) -> None:
    big = [RunView(f"method {m}", 0, _many(5000, m), Ending("finished")) for m in range(20)]
    path = write_page(document(big), tmp_path / "big.html")
    assert path.stat().st_size < 4e6
    browser.open(path.as_uri())
    assert len(lines(browser, "loss")) == 20
    assert browser.complaints == []


def _many(count: int, method: int) -> list[Record]:
    return [
        Record(
            i,
            i,
            2.0 / (1 + i * (method + 1)) + 1e-3 * (i * 7919 % 13),
            i / count,
            None,
            i,
            i,
            i / 9,
            3,
        )
        for i in range(count)
    ]
