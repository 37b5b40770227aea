"""Timelines: what every device does when, against the replay and by hand."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednag
from fednag.clock import (
    Timed,
    Timeline,
    load_fleet,
    replay_runs,
    scene,
    timed_run,
    timeline,
    timelines,
)
from fednag.clock.timeline import KINDS, SERVER, _transfer
from fednag.devices.times import Availability

TINY = {"model": "logistic", "tau": 2, "iterations": 12, "batch": 8, "quiet": True}
ROAD = """
name = "road"
synthetic = true
[mobility]
kind = "highway"
vehicles = 6
speed = 200
length = 2500
seconds = 300
hand_over = "{hand_over}"
[[unit]]
name = "mast"
x = 300
y = 20
count = 2
apart = [1300, 0]
rates = [[100, 1], [250, 0.1]]
[[device]]
name = "car"
moves = true
gflops = 0.00005
[aggregator]
seconds = 0.1
"""


def road(folder: Path, hand_over: str = "continued") -> Path:
    path = folder / f"{hand_over}.toml"
    path.write_text(ROAD.format(hand_over=hand_over))
    return path


def played(fleet: str | Path, method: str = "fednag", **more: Any) -> Timed:
    run = fednag.run(method, **TINY, **more)  # type: ignore[arg-type]
    return replay_runs([timed_run(run.view)], load_fleet(fleet), replays=1)[0]


def drawn(timed: Timed, fleet: str | Path) -> Timeline:
    return timeline(timed, load_fleet(fleet), 1, timed.run.rounds)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("lan", {}),
    ("paper-edge", {"workers": 7}),
    ("lan", {"method": "mime"}),
    ("lan", {"method": "csgd"}),
    ("vehicles", {"workers": 8}),
    ("continued", {"workers": 6}),
    ("lost", {"workers": 6}),
    ("continued", {"workers": 6, "clock": {"deadline": 3.0}}),
    ("lost", {"workers": 6, "clock": {"deadline": 3.0}}),
    ("lost", {"workers": 6, "clock": {}}),
    ("vehicles", {"workers": 8, "clock": {"deadline": 0.05}, "method": "mime"}),
]


@pytest.mark.parametrize(("fleet", "more"), CASES)
def test_a_timeline_is_the_replay(fleet: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Rounds end when the last span does; nobody does two things; busy seconds are the replay's."""
    where = road(tmp_path, fleet) if fleet in ("continued", "lost") else fleet
    given = dict(more)
    if "clock" in given:
        given["clock"] = {"fleet": str(where), **given["clock"]}
    timed = played(where, **given)
    line = drawn(timed, where)
    replay = timed.replays[0]
    assert line.ends == tuple(replay.ends.tolist())
    assert all(span.kind in KINDS and span.seconds > 0 for span in line.spans)
    own: dict[int, list[Any]] = defaultdict(list)
    for span in line.spans:
        own[span.worker].append(span)
        assert replay.ends[span.round - 1] - 1e-9 <= span.start
        assert span.end <= replay.ends[span.round] + 1e-9
    for spans in own.values():
        spans.sort(key=lambda span: span.start)
        for before, after in pairwise(spans):
            assert before.end <= after.start + 1e-9
    # Every worker was asked in every round, so each moment of every worker is told.
    told = {i: sum(span.seconds for span in own[i]) for i in own if i != SERVER}
    assert told == pytest.approx(dict.fromkeys(told, replay.ends[-1]))
    if fleet != "lost":  # of what was in vain, another share counts there
        busy = np.zeros_like(replay.busy)
        for span in line.spans:
            if span.kind in ("compute", "down", "up"):
                busy[span.worker, ("compute", "down", "up").index(span.kind)] += span.seconds
        assert busy.ravel().tolist() == pytest.approx(replay.busy.ravel().tolist(), abs=1e-6)
    served = sum(span.seconds for span in own[SERVER])
    assert served == pytest.approx(replay.aggregation, abs=1e-9)
    for number in range(1, timed.run.rounds + 1):
        last = max(span.end for span in line.spans if span.round == number)
        assert last == pytest.approx(float(replay.ends[number]))


def test_who_misses_is_shown_to_be_lost(tmp_path: Path) -> None:
    where = road(tmp_path, "lost")
    timed = played(where, workers=6, clock={"fleet": str(where), "deadline": 3.0})
    missed = timed.run.records[-1].misses
    line = drawn(timed, where)
    lost = {(span.worker, span.round) for span in line.spans if span.lost}
    away = {
        (span.worker, span.round)
        for span in line.spans
        if span.start == line.ends[span.round - 1] and span.kind == "away"
    }
    assert lost
    assert away
    assert len(lost | away) == missed


def test_work_that_is_not_waited_for_goes_on(tmp_path: Path) -> None:
    timed = played(
        "paper-edge",
        clock={"fleet": "paper-edge"},
        controller={"kind": "buffered", "need": 2},
    )
    line = drawn(timed, "paper-edge")
    over = [span for span in line.spans if span.end > line.ends[span.round] + 1e-9]
    assert over
    for worker in line.workers():
        own = sorted((s for s in line.spans if s.worker == worker), key=lambda s: s.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(own))


def test_away_and_back_by_hand() -> None:
    on = Availability(((2, 4), (4, 5), (8, 9)), units=(0, 1, 1))
    assert list(_transfer(on, "up", 1.0, 8.5)) == [
        ("away", 1.0, 2.0, False),
        ("up", 2.0, 5.0, False),
        ("away", 5.0, 8.0, False),
        ("up", 8.0, 8.5, False),
    ]


def test_who_does_something_is_shown(tmp_path: Path) -> None:
    where = road(tmp_path)
    timed = played(where, workers=6, clock={"fleet": str(where), "deadline": 3.0})
    line = timeline(timed, load_fleet(where), 1, 1)
    busy = {span.worker for span in line.spans if span.kind == "down"}
    assert set(line.workers()) == busy
    assert 0 < len(busy) < 6
    data = line.as_data(most=1)
    assert data["rows"] == ["aggregator", line.name(min(busy))]
    assert (data["left_out"], data["idle"]) == (len(busy) - 1, 6 - len(busy))
    assert {row for row, *_ in data["spans"]} == {0, 1}


def test_rounds_that_are_not_there_are_refused() -> None:
    timed = played("lan")
    with pytest.raises(fednag.FednagError, match="has rounds 1 to 6"):
        timeline(timed, load_fleet("lan"), 7, 8)


def test_a_scene_has_vehicles_where_the_trace_has_them(tmp_path: Path) -> None:
    where = road(tmp_path)
    fleet = load_fleet(where)
    timed = played(where, workers=6, clock={"fleet": str(where), "deadline": 3.0})
    [line] = timelines([timed], fleet)
    assert line.ends == tuple(timed.replays[0].ends.tolist())
    found = scene(line)
    assert found is not None
    assert fleet.roads is not None
    assert found["until"] == pytest.approx(line.ends[-1])
    assert [unit["range"] for unit in found["units"]] == [250.0, 250.0]
    for number, vehicle in enumerate(found["vehicles"]):
        on = fleet.device(number).availability
        assert vehicle["name"] == line.name(number)
        for moment in np.linspace(0, line.ends[-1], 23).tolist():
            there = fleet.roads.trace.at(f"v{number}", moment)
            assert there is not None
            near = []
            for piece in vehicle["pieces"]:
                if piece[0][0] <= moment <= piece[-1][0]:
                    t, x, y = np.array(piece).T
                    near.append((np.interp(moment, t, x), np.interp(moment, t, y)))
            assert any(np.hypot(*np.subtract(there, one)) < 0.3 for one in near)
            told = [unit for start, end, unit in vehicle["contacts"] if start <= moment < end]
            assert (told[0] if told else None) == on.unit(moment)
    assert scene(drawn(played("lan"), "lan")) is None


def test_a_page_holds_as_many_rounds_as_spans_may_be(tmp_path: Path) -> None:
    timed = played("lan")
    [short] = timelines([timed], load_fleet("lan"), most=20)
    assert 1 <= short.last < timed.run.rounds
    whole = timeline(timed, load_fleet("lan"), 1, short.last)
    assert short == whole
