"""Plans of method, tau, cohort, uplink and deadline: a race is sound, choices move rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands import Caller
from fednag.core.files import write_atomically
from fednag.planning import Advice, Choice, plan

TABLES: dict[str, Any] = {
    "name": "race",
    "model": {"name": "logistic"},
    "training": {"iterations": 400, "batch": 16},
    "algorithm": {"lr": 0.05},
    "split": {"workers": 4},
}
FLEET = """
name = "even"
synthetic = true
[[device]]
name = "box"
count = {count}
iteration = 0.01
reference = {{ model = "logistic", batch = 16, flops = 4.0e4 }}
up = {{ mbit = {mbit} }}
down = {{ mbit = {mbit} }}
{rest}
"""
AWAY = """
[[device]]
name = "guest"
iteration = 0.01
reference = { model = "logistic", batch = 16, flops = 4.0e4 }
up = { mbit = 10 }
down = { mbit = 10 }
available = [[0, 0.2]]
period = 20
"""


def even(folder: Path, mbit: float = 1.0, count: int = 4, rest: str = "") -> Path:
    path = folder / f"even-{mbit:g}-{count}.toml"
    write_atomically(path, FLEET.format(mbit=mbit, count=count, rest=rest))
    return path


GRID: dict[str, Any] = {
    "experiment": TABLES,
    "methods": ["fednag"],
    "taus": [1, 10, 40],
    "uplinks": ["none", "quantise:levels=127"],
    "replays": 3,
}


def test_a_race_finds_what_running_everything_finds(tmp_path: Path) -> None:
    fleet, more = even(tmp_path, 0.05), {**GRID, "taus": [2, 20], "uplinks": ["none"]}
    whole = plan(fleet, 0.8, **more, race=False, out=tmp_path / "whole")
    raced = plan(fleet, 0.8, **more, out=tmp_path / "raced")
    assert whole.best is not None
    assert raced.best == whole.best
    times = {point.choice: point.row.seconds for point in whole.points}
    cut = [point for point in raced.points if point.later_than is not None]
    assert cut
    assert len(cut) < len(raced.points)
    for point in raced.points:
        if point.later_than is None:
            assert point.row.seconds == times[point.choice]
        else:
            assert point.later_than >= 1.25 * (raced.best.row.seconds or 0.0)
            assert (times[point.choice] or 1e9) > point.later_than
    done = [sum(run.rounds for run in advice.runs) for advice in (raced, whole)]
    assert done[0] < done[1]
    assert any("not run to the end" in sentence for sentence in raced.sentences)
    sure = raced.surety
    assert sure is not None
    assert (sure.first, sure.pairs) == (1, 1)  # this fleet does not vary
    # Repeated, nothing is trained: the runs are there, those that were cut off too.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    again = plan(fleet, 0.8, **more, out=tmp_path / "raced")
    assert again.points == raced.points
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}


def sent(advice: Advice) -> float:
    """Transfer seconds until the target of the one to take, at a megabit a second."""
    best = advice.best
    assert best is not None
    [one] = advice.timed[best.choice]
    record = advice.target.first(one.run.records)
    assert record is not None
    return (record.bytes_up + record.bytes_down) * 8e-6 / 4


def test_when_links_get_dearer_less_is_sent(tmp_path: Path) -> None:
    """Time is computing plus transfers: the dearer these, the less of them the best choice has."""
    found = []
    for mbit in (100.0, 1.0, 0.01):
        advice = plan(even(tmp_path, mbit), 0.85, **GRID, race=False, out=tmp_path / "runs")
        assert advice.best is not None
        found.append((sent(advice), advice.best))
    bytes_ = [one for one, _ in found]
    assert bytes_ == sorted(bytes_, reverse=True)
    first, last = found[0][1], found[-1][1]
    assert last.tau > first.tau
    assert last.uplink == "quantise:levels=127"


def test_when_devices_leave_rounds_do_not_wait(tmp_path: Path) -> None:
    more: dict[str, Any] = {**GRID, "taus": [10], "uplinks": [], "deadlines": [0.0, 1.0]}
    here = plan(even(tmp_path), 0.85, **more, out=tmp_path / "runs")
    gone = plan(even(tmp_path, count=3, rest=AWAY), 0.85, **more, out=tmp_path / "runs")
    assert here.best is not None
    assert gone.best is not None
    # With everybody there a deadline changes nothing, and the first of equals is taken.
    assert len({point.row.seconds for point in here.points}) == 1
    assert gone.best.deadline == 1.0
    waiting = next(point for point in gone.points if point.deadline == 0.0)
    assert waiting.row.seconds is None or waiting.row.seconds > (gone.best.row.seconds or 0.0)


def test_fewer_take_part_where_the_slowest_decides(tmp_path: Path) -> None:
    """Of equal devices a larger cohort costs no time; one slow device makes it cost some."""
    slow = AWAY.replace("0.01", "0.5").replace("available = [[0, 0.2]]\nperiod = 20\n", "")
    more: dict[str, Any] = {**GRID, "taus": [10], "uplinks": [], "participants": [1, 4]}
    rounds = {}
    for name, fleet in (
        ("even", even(tmp_path)),
        ("slow", even(tmp_path, count=3, rest=slow)),
    ):
        advice = plan(fleet, 0.85, **more, race=False, out=tmp_path / "runs")
        rounds[name] = {p.participants: p.row.per_round for p in advice.points}
        assert advice.best is not None
        if name == "slow":
            assert advice.best.participants == 1
    assert rounds["even"][1] == pytest.approx(rounds["even"][4])
    assert rounds["slow"][1] < rounds["slow"][4]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fednag = Caller(monkeypatch, capsys)
    monkeypatch.chdir(tmp_path)
    common = ["time", "plan", "--fleet", "silos-wan", "--target", "0.6", "--algorithms", "fednag"]
    common += ["--set", "model.name=logistic", "--iterations", "40", "--taus", "20"]
    common += ["--participants", "4", "--deadlines", "none,3", "--seeds", "0,1", "--json"]
    result = fednag(*common, "--replays", "4")
    assert result.code == 0, result.err
    document = result.document
    assert len(document["points"]) == 2
    best = document["best"]
    assert (
        Choice("fednag", best["tau"], best["participants"], None, best["deadline"]).words
        in (document["advice"][0])
    )
    sure = document["surety"]
    assert sure["pairs"] == 8
    assert 0 <= sure["first"] <= 8
    assert sure["low"] - 1e-9 <= best["row"]["seconds"] <= sure["high"] + 1e-9
    assert sure["over"] == "replays"
    assert Path("runs/digits-plan/plan-silos-wan.png").exists()
    for options, says in (
        (["--participants", "0"], "--participants"),
        (["--participants", "9"], "--participants"),
        (["--deadlines", "soon"], "--deadlines"),
        (["--deadlines", "1,1"], "--deadlines"),
        (["--uplinks", "sign,sign"], "--uplinks"),
        (["--uplinks", "sing"], "--uplinks"),
    ):
        refused = fednag(*common[:11], *options)
        assert refused.code == 2
        assert says in refused.err
        assert refused.err.count("\n") <= 2
