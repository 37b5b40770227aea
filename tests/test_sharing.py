"""Shared access points, energy and days: by hand, and against a simulation of its own."""

from __future__ import annotations

import io
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import fednag
from fednag.cli.time import parts_table, times_table
from fednag.clock import (
    Availability,
    Clock,
    Compute,
    Device,
    Fleet,
    Lognormal,
    Part,
    Point,
    Power,
    Row,
    Stage,
    Transfer,
    Workload,
    load_fleet,
    replay,
    replay_runs,
    timed_run,
    timeline,
    times_to_target,
    where_time_goes,
)
from fednag.devices.executor import notes_on
from fednag.devices.replay import PARTS
from fednag.devices.times import of_day
from fednag.runs.targets import Target
from refusals import refused

ROUTER = Point("router", up=10.0, down=20.0)  # bytes a second


def device(
    name: str,
    mbyte: float = 20.0,
    *,
    compute: float = 1.0,
    latency: float = 0.0,
    point: Point | None = ROUTER,
    on: Availability | None = None,
    power: Power | None = None,
) -> Device:
    """``mbyte`` bytes a second of its own link, both ways; ``compute`` seconds an iteration."""
    link = Transfer(latency, 1 / mbyte)
    speed = Compute(Lognormal(compute), 1.0, "by hand")
    return Device(name, "d", speed, link, link, on or Availability(), power, point)


def fleet(*devices: Device) -> Fleet:
    return Fleet("hand", "hand", True, "", devices, None)


def load(workers: int, **changes: Any) -> Workload:
    known = {"tau": 1, "iterations": 3, "batch": 1, "seed": 0, "sizes": (1,) * workers}
    stages = (Stage(changes.pop("down", 100), changes.pop("up", 100)),)
    return Workload(**{**known, "flops": 1.0, "stages": stages, **changes})


def test_one_device_has_the_line_to_itself() -> None:
    """Down 100/20, up 100/10 for the line is slower there: 5 + 1 + 10."""
    assert replay(fleet(device("a")), load(1), 1, seed=0).ends[-1] == pytest.approx(16.0)


def test_two_devices_split_the_line_by_hand() -> None:
    """Down at 10 each: 10 s. One computes 1 s, the other 5 s. Up: alone at 10 from 11 s, 40 bytes
    by 15 s; then 5 each, so the first has 60 left and is done at 27; the other sends 60 of its 100
    by then, and the other 40 alone by 31."""
    both = fleet(device("a"), device("b", compute=5.0))
    clock = Clock(both, load(2), 0)
    work = {i: load(2).exchanges(1, i)[0] for i in (0, 1)}
    ways = clock.journeys(1, 0, work, 0.0)
    assert [(w.received, w.computed, w.arrival) for w in ways.values()] == [
        (pytest.approx(10.0), pytest.approx(11.0), pytest.approx(27.0)),
        (pytest.approx(10.0), pytest.approx(15.0), pytest.approx(31.0)),
    ]
    assert ways[0].busy().tolist() == pytest.approx([1.0, 10.0, 16.0])
    assert ways[0].busy(20.0).tolist() == pytest.approx([1.0, 10.0, 9.0])
    assert ways[1].busy(12.0).tolist() == pytest.approx([2.0, 10.0, 0.0])
    played = replay(both, load(2), 1, seed=0)
    assert played.ends[-1] == pytest.approx(31.0)


def test_a_slow_link_leaves_the_rest_to_the_others() -> None:
    """Down, 20 for three of which one takes 2: the others have 9 each."""
    three = fleet(device("slow", 2.0), device("b"), device("c"))
    work = {i: load(3).exchanges(1, i)[0] for i in range(3)}
    ways = Clock(three, load(3), 0).journeys(1, 0, work, 0.0)
    assert [w.received for w in ways.values()] == pytest.approx([50.0, 100 / 9, 100 / 9])


def test_who_is_away_takes_nothing_of_the_line() -> None:
    """b can be reached from 4 s on: by then a has 80 of its 100 bytes, and 10 a second after it."""
    pair = fleet(device("a"), device("b", on=Availability(((4.0, 100.0),))))
    work = {i: load(2).exchanges(1, i)[0] for i in (0, 1)}
    ways = Clock(pair, load(2), 0).journeys(1, 0, work, 0.0)
    assert [w.received for w in ways.values()] == pytest.approx([6.0, 10.0])
    assert ways[1].busy().tolist()[1] == pytest.approx(6.0)
    gone = fleet(device("a", on=Availability(((0.0, 7.0),))))
    with refused(says="device a is never reachable again after round 1"):
        replay(gone, load(1), 1, seed=0)


def test_latency_takes_no_part_of_the_line() -> None:
    """b hears for 2 s while a has it alone: 40 bytes; then 10 each."""
    pair = fleet(device("a"), device("b", latency=2.0))
    work = {i: load(2).exchanges(1, i)[0] for i in (0, 1)}
    ways = Clock(pair, load(2), 0).journeys(1, 0, work, 0.0)
    assert [w.received for w in ways.values()] == pytest.approx([8.0, 10.0])


def test_a_line_that_is_wide_enough_changes_nothing() -> None:
    wide = Point("wide", up=1e9, down=1e9)
    shared = fleet(*(device(f"d{i}", 3.0 + i, point=wide, latency=0.1) for i in range(4)))
    alone = replace(shared, devices=tuple(replace(d, point=None) for d in shared.devices))
    with_line, without = (replay(f, load(4), 3, seed=0) for f in (shared, alone))
    assert with_line.ends.tolist() == pytest.approx(without.ends.tolist(), rel=1e-9)
    assert with_line.busy.ravel() == pytest.approx(without.busy.ravel(), rel=1e-9)


def simulated(where: Fleet, work: Workload, number: int, start: float) -> dict[int, float]:
    """Arrivals, event by event: each point with its devices alone, rates by sorting links.

    Delays are the clock's; how a line is split, and when who goes on, is thought out anew here.
    """
    clock, arrived = Clock(where, work, 0), {}
    for point in {d.point for d in where.devices}:
        todo: dict[int, list[list[Any]]] = {}
        for i in range(work.workers):
            if where.device(i).point != point:
                continue
            exchange = work.exchanges(number, i)[0]
            drawn, own = clock.delays(number, i, 0, exchange), where.device(i)
            steps: list[list[Any]] = []
            for way, seconds, size in (
                ("down", drawn.down, exchange.down),
                ("up", drawn.up, exchange.up),
            ):
                link: Transfer = getattr(own, way)
                factor = seconds / (link.latency + size * link.seconds_per_byte)
                steps.append(["latency", link.latency * factor, 1.0])
                steps.append([way, float(size), 1 / (link.seconds_per_byte * factor)])
            todo[i] = [*steps[:2], ["compute", drawn.compute, 1.0], *steps[2:]]
        now = start
        while todo:
            rates: dict[int, float] = {}
            for i, steps in todo.items():
                there = reachable(where.device(i).availability, now)
                rates[i] = steps[0][2] if there or steps[0][0] == "compute" else 0.0
            for way in ("down", "up"):
                free = getattr(point, way) if point else inf
                users = [i for i, steps in todo.items() if steps[0][0] == way and rates[i] > 0]
                for place, i in enumerate(sorted(users, key=lambda i: rates[i])):
                    rates[i] = min(rates[i], free / (len(users) - place))
                    free -= rates[i]
            coming = [steps[0][1] / rates[i] for i, steps in todo.items() if rates[i] > 0]
            coming += [change(where.device(i).availability, now) - now for i in todo]
            jump = min(coming)
            now += jump
            for i in list(todo):
                todo[i][0][1] -= rates[i] * jump
                while todo.get(i) and todo[i][0][1] <= 1e-9:
                    todo[i].pop(0)
                if not todo[i]:
                    arrived[i] = now
                    del todo[i]
    return arrived


def reachable(on: Availability, moment: float) -> bool:
    phase = (moment - on.shift + 1e-7) % (on.period or inf)
    return not on.intervals or any(a <= phase < b for a, b in on.intervals)


def change(on: Availability, moment: float) -> float:
    period = on.period or inf
    phase = (moment - on.shift) % period
    edges = [edge for pair in on.intervals for edge in pair]
    ahead = [edge - phase for edge in [*edges, *(e + period for e in edges)]]
    return moment + min((gap for gap in ahead if gap > 1e-7), default=inf)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(1, 40),
            st.floats(0.1, 9),
            st.sampled_from([0.0, 0.7]),
            st.sampled_from([0, 0, 1, 2]),
            st.sampled_from([None, None, 3.0, 7.5]),
        ),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 200),
    st.integers(1, 200),
    st.floats(0, 50),
)
def test_shared_lines_are_the_event_by_event_simulation(
    drawn: list[tuple[float, float, float, int, float | None]], down: int, up: int, start: float
) -> None:
    points = (ROUTER, Point("other", 3.0, 50.0), None)
    devices = []
    for number, (rate, compute, latency, at, shift) in enumerate(drawn):
        on = Availability(((0.0, 6.0), (8.0, 13.0)), 20.0, shift) if shift else None
        found = device(
            f"d{number}", rate, compute=compute, latency=latency, point=points[at], on=on
        )
        devices.append(replace(found, up=replace(found.up, factor=Lognormal(1.0, 0.5))))
    where, work = fleet(*devices), load(len(drawn), down=down, up=up)
    asked = {i: work.exchanges(1, i)[0] for i in range(len(drawn))}
    ways = Clock(where, work, 0).journeys(1, 0, asked, start)
    expected = simulated(where, work, 1, start)
    assert {i: w.arrival for i, w in ways.items()} == pytest.approx(expected, abs=1e-5)


def test_a_fleet_file_has_access_points(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    found = load_fleet(path)
    names = [d.point.name if d.point else None for d in found.devices]
    assert names == ["home of phone 1", "home of phone 1", "home of phone 2", None]
    assert found.devices[0].point == Point("home of phone 1", up=1.25e6, down=12.5e6)
    assert found.shares
    assert found.powered
    assert load_fleet("lan").shares is load_fleet("lan").powered is False


FILE = """
name = "homes"
begins = "20:00"

[[access]]
name = "home"
up = 10
down = 100
serves = 2

[[device]]
name = "phone"
count = 3
access = "home"
gflops = 10
up = { mbit = 50, latency = 0.01 }
down = { mbit = 50, latency = 0.01 }
daily = [["22:00", "06:30"]]
zone = 1
power = { compute = 4, send = 1.5, receive = 1, idle = 0.25 }

[[device]]
name = "server"
gflops = 100
up = { mbit = 50 }
down = { mbit = 50 }
power = { compute = 80, send = 20, receive = 20, idle = 20 }
"""

BAD = [
    ('access = "home"', 'access = "hom"', "no [[access]] table 'hom' (did you mean home?)"),
    ('access = "home"', "", "access home: no device is there"),
    ("serves = 2", "serve = 2", "access home: serve: no such key (did you mean serves?)"),
    ("up = 10\n", "up = 0\n", "access home: up: 0 is not allowed"),
    ("zone = 1", "zone = 15", "device phone: zone: 15 is not allowed"),
    ('daily = [["22:00", "06:30"]]', "", "device phone: zone: goes only with daily"),
    ('"22:00", "06:30"', '"22:00", "6:30"', "device phone: daily"),
    ('"22:00", "06:30"', '"22:00", "22:00"', "daily: 22:00 to 22:00 is no time"),
    ('daily = [["22:00", "06:30"]]', "daily = []", "daily: is empty"),
    ("zone = 1", "available = [[0, 1]]", "give available or daily, not both"),
    ("zone = 1", "period = 9", "period: goes only with available"),
    ('begins = "20:00"', 'begins = "8 pm"', "begins"),
    ("idle = 0.25", "idle = -1", "device phone: power: idle: -1 is not allowed"),
    ("receive = 1,", "", "device phone: power: receive: is missing"),
    ("power = { compute = 80, send = 20, receive = 20, idle = 20 }", "", "server: power: is miss"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), BAD)
def test_what_is_wrong_with_them_is_said(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = tmp_path / "fleet.toml"
    assert old in FILE
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(fednag.FednagError) as caught:
        load_fleet(path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


# Days


@pytest.mark.parametrize(
    ("daily", "zone", "begins", "expected"),
    [
        ([("00:00", "24:00")], 0, "00:00", [(0, 24)]),
        ([("22:00", "06:00")], 0, "00:00", [(0, 6), (22, 24)]),
        ([("22:00", "06:00")], -5, "00:00", [(3, 11)]),
        ([("22:00", "06:00")], 8, "12:00", [(2, 10)]),
        ([("01:00", "02:30"), ("02:00", "04:00")], 0, "00:00", [(1, 4)]),
        ([("12:00", "13:00"), ("23:00", "24:00")], 5.5, "00:00", [(6.5, 7.5), (17.5, 18.5)]),
    ],
)
def test_times_of_day_by_hand(
    daily: list[tuple[str, str]], zone: float, begins: str, expected: list[tuple[float, float]]
) -> None:
    hours = [(a / 3600, b / 3600) for a, b in of_day(daily, zone, begins)]
    assert hours == [pytest.approx(pair) for pair in expected]


def test_a_phone_is_there_at_night_by_its_own_clock(tmp_path: Path) -> None:
    """22:00 to 06:30 an hour east of UTC, in a run that begins at 20:00 UTC: from 1 h to 9.5 h."""
    (tmp_path / "fleet.toml").write_text(FILE)
    on = load_fleet(tmp_path).devices[0].availability
    assert on.next(0.0) == 3600.0
    assert on.leaves(3600.0) == 9.5 * 3600
    assert on.next(10 * 3600.0) == 86400 + 3600.0
    staggered = FILE.replace("zone = 1", "zone = 1\nstagger = 600")
    (tmp_path / "fleet.toml").write_text(staggered)
    assert [d.availability.next(0.0) for d in load_fleet(tmp_path).devices] == [
        3600,
        4200,
        4800,
        0,
    ]


# Energy


def test_energy_by_hand() -> None:
    """a: 1 s computing at 4 W, 5 s down at 1, 10 s up at 2, 6 s waiting at 0.5: 32 J.
    b: 2 s at 8 W, 10 s at 3, 10 s at 3, no waiting: 76 J."""
    a = device("a", power=Power(4, 1, 2, 0.5), point=None)
    a = replace(a, up=Transfer(0.0, 0.1))
    b = device("b", 10.0, compute=2.0, power=Power(8, 3, 3, 1), point=None)
    played = replay(fleet(a, b), load(2), 2, seed=0)
    assert played.ends.tolist() == pytest.approx([0, 22, 44])
    assert played.joules is not None
    assert played.joules.tolist() == pytest.approx([0, 108, 216])
    assert replay(fleet(replace(a, power=None), b), load(2), 1, seed=0).joules is None


def test_who_is_not_drawn_waits_at_idle_power() -> None:
    """Each round one of five works: 22 s at 3 W and 2 s at 8, the others idle at 1 W."""
    five = fleet(*(device(f"d{i}", 10.0, power=Power(8, 3, 3, 1), point=None) for i in range(5)))
    played = replay(five, load(5, per_round=1), 3, seed=0)
    assert played.ends.tolist() == pytest.approx([0, 21, 42, 63])
    assert played.joules is not None
    assert played.joules.tolist() == pytest.approx([(20 * 3 + 8 + 4 * 21) * r for r in range(4)])
    parts = played.busy @ [8, 3, 3] + played.waiting
    assert parts.sum() == pytest.approx(played.joules[-1])


def test_energy_stands_beside_seconds(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    runs, where = [timed_run(view) for view in done.views], load_fleet(path)
    timed = replay_runs(runs, where)
    rows = times_to_target(timed, accuracy=0.05)
    first = runs[0].records[1].round
    for row, one in zip(sorted(rows, key=lambda r: r.label), timed[::-1], strict=True):
        assert one.replays[0].joules is not None
        assert row.joules in [pytest.approx(j) for j in one.replays[0].joules[: first + 1]]
    parts = where_time_goes(timed, where)
    for one in timed:
        listed = [p.joules or 0.0 for p in parts if p.label == one.run.label]
        total = one.replays[0].joules
        assert total is not None
        assert sum(listed) * one.replays[0].rounds == pytest.approx(total[-1])
    assert times_to_target(replay_runs(runs, load_fleet("lan"), replays=1), 0.05)[0].joules is None


def test_energy_in_tables_and_notes(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FILE)
    where, lan = load_fleet(tmp_path), load_fleet("lan")
    row = Row("m", 1, 1, 2.0, None, 5, 1, 0.5, 1.0, 2000, 1000, 4321.0)
    assert "4.321 kJ" in drawn_as_text(times_table([row], Target("accuracy", 0.9), where, 1))
    assert "energy" not in drawn_as_text(times_table([row], Target("accuracy", 0.9), lan, 1))
    part = Part("m", "0 phone", 1.0, 0.1, 0.1, 3.0, 0.25)
    assert "250 mJ" in drawn_as_text(parts_table([part]))
    assert "energy" not in drawn_as_text(parts_table([replace(part, joules=None)]))
    notes = " ".join(notes_on(where, 4))
    assert "transfers at one access point at once split its line" in notes
    assert "energy is that of all workers" in notes


def drawn_as_text(table: Any) -> str:
    terminal = Console(width=160, file=io.StringIO())
    terminal.print(table)
    return terminal.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_rounds_that_do_not_wait_cannot_share(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    with refused("clock.fleet", "devices of homes share access points, and buffered has answers"):
        fednag.run(
            "fednag",
            model="logistic",
            tau=5,
            iterations=10,
            controller={"kind": "buffered", "need": 2},
            clock={"fleet": str(path)},
        )


def test_a_run_trains_on_a_shared_line(tmp_path: Path) -> None:
    """Its records have the seconds that the replay has."""
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    fixed = {"model": "logistic", "tau": 5, "iterations": 10, "clock": {"fleet": str(path)}}
    view = fednag.run("fednag", **fixed).view
    (timed,) = replay_runs([timed_run(view)], load_fleet(path))
    clocks = [r.clock for r in view.records if r.round]
    assert timed.replays[0].ends[1:].tolist() == pytest.approx(clocks)
    line = timeline(timed, load_fleet(path))
    for kind, seconds in zip(PARTS, timed.replays[0].busy.sum(axis=0), strict=True):
        shown = [span.end - span.start for span in line.spans if span.kind == kind]
        assert sum(shown) == pytest.approx(seconds)
