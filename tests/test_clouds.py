"""Clouds of vehicles: who is elected, who reaches it, and the fleets that they make."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednag
from fednag.clock import load_fleet, replay_runs, scene, timed_run, timelines
from fednag.devices.clouds import Elect, cloud_contacts, tenures
from fednag.devices.mobility import Trace, grid_city, highway, trace_of
from fednag.devices.radio import Unit, contacts

RINGS = ((60.0, 12.0), (150.0, 3.0))
FLEET = """
name = "cloud"
synthetic = true
[mobility]
kind = "highway"
vehicles = 8
speed = {speed}
spread = 0.2
length = 600
seconds = 300
{mobility}
[cloud]
rates = [[60, 12], [150, 3]]
{cloud}
[[device]]
name = "car"
moves = true
gflops = 0.0001
"""


def written(folder: Path, speed: float = 60, mobility: str = "", cloud: str = "") -> Path:
    path = folder / "fleet.toml"
    path.write_text(FLEET.format(speed=speed, mobility=mobility, cloud=cloud))
    return path


def moving(**speeds: tuple[float, float, float]) -> Trace:
    """Vehicles from a place with a speed (metres a second), until a moment."""
    rows = [
        (moment, name, start + speed * moment, 0.0, "1")
        for name, (start, speed, until) in speeds.items()
        for moment in np.linspace(0, until, 2).tolist()
    ]
    return trace_of(rows)


def elected(trace: Trace, reach: float = 100.0, elect: Elect = "stay") -> list[tuple[str, float]]:
    return [(one.head, one.start) for one in tenures(trace, trace.vehicles, reach, elect)]


def test_who_stays_longest_or_is_most_central_by_hand() -> None:
    # a and b drive side by side; c passes both, and is in the middle when it begins.
    trace = moving(a=(0, 10, 100), b=(90, 10, 100), c=(45, 30, 100))
    # With a, b stays for the 60 s that are looked ahead; c stays 2.75 s with a, 7.25 with b.
    assert elected(trace)[0] == ("b", 0.0)
    # Each has two neighbours; the nearest to them is c.
    assert elected(trace, elect="central")[0] == ("c", 0.0)
    # c has nobody in reach of 100 m once it is 100 m ahead of b, who was the last in its cloud.
    assert elected(trace, elect="central")[1] == ("b", 8.0)


def test_when_the_elected_one_leaves_another_of_its_cloud_is() -> None:
    # a leaves the road after 20 s. b was near it; c and d are a larger cloud, far away.
    trace = moving(a=(50, 0, 20), b=(0, 0, 100), x=(-50, 0, 100), c=(900, 0, 100), d=(950, 0, 100))
    assert elected(trace) == [("a", 0.0), ("b", 20.0)]
    trace = moving(
        b=(50, 0, 20), a=(0, 0, 100), x=(-40, 0, 100), c=(900, 0, 100), d=(910, 0, 100),
        e=(920, 0, 100), y=(90, 0, 20), z=(60, 0, 20), w=(70, 0, 20),
    )  # fmt: skip
    assert elected(trace) == [("b", 0.0), ("a", 20.0)]
    # Nobody of its cloud has a neighbour: the others go on.
    trace = moving(b=(50, 0, 20), a=(0, 0, 100), y=(90, 0, 20), c=(900, 0, 100), d=(910, 0, 100))
    assert elected(trace) == [("b", 0.0), ("c", 20.0)]


def test_nobody_is_elected_where_all_are_alone() -> None:
    assert elected(moving(a=(0, 0, 50), b=(500, 0, 50))) == []
    # They meet from 20 s on: 500 m at 20 m/s until they are 100 m apart.
    assert elected(moving(a=(0, 0, 50), b=(500, -20, 50)))[0] == ("a", 20.0)


@pytest.mark.parametrize("elect", ["stay", "central"])
@pytest.mark.parametrize("make", [highway, grid_city])
def test_tenures_are_apart_and_repeat(make: Any, elect: Elect) -> None:
    trace = make(9, 50.0, seconds=200.0, spread=0.3, seed=2)
    found = tenures(trace, trace.vehicles, 250.0, elect)
    assert found == tenures(trace, trace.vehicles, 250.0, elect)
    assert len(found) > 1
    for before, after in pairwise(found):
        assert before.start < before.end <= after.start
    for one in found:  # whoever aggregates is on the road, and not alone when elected
        here = trace.at(one.head, one.start)
        others = [trace.at(v, one.start) for v in trace.vehicles if v != one.head]
        assert here is not None
        assert min(np.hypot(*np.subtract(here, o)) for o in others if o is not None) <= 250


@pytest.mark.parametrize("make", [highway, grid_city])
def test_contacts_follow_the_distance(make: Any) -> None:
    trace = make(6, 60.0, seconds=120.0, seed=1)
    found = tenures(trace, trace.vehicles, RINGS[-1][0])
    for vehicle in trace.vehicles:
        served = cloud_contacts(trace, vehicle, found, RINGS)
        for moment in np.linspace(0.013, 119.9, 200).tolist():
            head = next((n for n, t in enumerate(found) if t.start <= moment < t.end), None)
            rate, unit = 0.0, None
            if head is not None:
                a, b = (trace.at(v, moment) for v in (vehicle, found[head].head))
                if a is not None and b is not None:
                    away = np.hypot(*np.subtract(a, b))
                    rate = next((mbit for metres, mbit in RINGS if away <= metres), 0.0)
                    if vehicle == found[head].head:
                        rate = 12.0 * 1000
                    unit = head if rate else None
            told = [(c.mbit, c.unit) for c in served if c.start <= moment < c.end]
            assert told == ([(rate, unit)] if rate else []), (vehicle, moment)


def test_without_speed_it_is_a_fleet_with_a_unit(tmp_path: Path) -> None:
    """Who stands elects once; the others have the contacts of a unit where that one stands."""
    fleet = load_fleet(written(tmp_path, speed=0))
    assert fleet.roads is not None
    [(head, start, end)] = fleet.roads.heads
    assert (start, end) == (0.0, 300.0)
    place = fleet.roads.trace.at(head, 0.0)
    assert place is not None
    unit = Unit("there", *place, RINGS)
    for device in fleet.devices:
        vehicle = fleet.roads.vehicles[device.name]
        on = device.availability
        if vehicle == head:
            assert on.rates == (1000.0,)
            continue
        own = contacts(fleet.roads.trace.ways[vehicle], [unit])
        assert on.is_on(1.0) == bool(own)
        assert [rate * 12 for rate in on.rates if own] == [one.mbit for one in own]


def test_a_cloud_trains_and_is_drawn(tmp_path: Path) -> None:
    where = written(tmp_path, mobility='hand_over = "lost"')
    run = fednag.run(
        "fednag", model="logistic", tau=2, iterations=16, batch=8, workers=8, quiet=True,
        clock={"fleet": str(where), "deadline": 10.0},
    )  # fmt: skip
    assert run.records[-1].misses > 0
    assert (run.records[-1].loss or 9) < (run.records[0].loss or 0)
    fleet = load_fleet(where)
    found = scene(timelines(replay_runs([timed_run(run.view)], fleet, replays=1), fleet)[0])
    assert found is not None
    assert fleet.roads is not None
    for unit, (head, start, end) in zip(found["units"], fleet.roads.heads, strict=True):
        assert fleet.roads.vehicles[fleet.device(unit["vehicle"]).name] == head
        assert (unit["start"], unit["end"]) == (round(start, 3), round(end, 3))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rates = [[60, 12], [150, 3]]", "", "cloud: give radio (dsrc or mmwave) or rates"),
        ("rates = [[60, 12], [150, 3]]", 'radio = "dsrc"\nelect = "oldest"', "cloud: elect"),
        ("rates = [[60, 12], [150, 3]]", 'radio = "dsrc"\nevery = 0', "cloud: every"),
        ("[[device]]", '[[unit]]\nname="u"\nx=0\ny=0\nradio="dsrc"\n[[device]]', "cloud: has no"),
        ("rates = [[60, 12], [150, 3]]", 'radio = "dsrc"\nelct = "stay"', "cloud: elct: no such"),
    ],
)
def test_bad_clouds_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(fednag.FednagError) as raised:
        load_fleet(path)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_elected_is_part_of_the_fleet(tmp_path: Path) -> None:
    one = load_fleet(written(tmp_path)).digest
    assert load_fleet(written(tmp_path, cloud='elect = "central"')).digest != one
