"""Many workers at once: the numbers of generators made one by one, and of rounds played so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag.clock import (
    Aggregation,
    Availability,
    Clock,
    Compute,
    Device,
    Fleet,
    Lognormal,
    Point,
    Power,
    Recorded,
    Stage,
    Transfer,
    Workload,
    load_fleet,
    replay,
)
from fednag.core.keys import DELAYS
from fednag.devices import crowd as crowds
from fednag.devices.crowd import Crowd
from fednag.devices.draws import Generators, agrees, exponential
from refusals import refused


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**80),
    st.integers(1, 2**33),
    st.integers(0, 3),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
)
def test_draws_are_those_of_generators_of_the_same_key(
    seed: int, number: int, phase: int, workers: list[int]
) -> None:
    generators = Generators(seed, DELAYS, number, np.array(workers), phase)
    drawn, right = generators.normals(5)
    rng = np.random.default_rng()
    for place, worker in enumerate(workers):
        own = np.random.default_rng([seed, DELAYS, number, worker, phase]).standard_normal(5)
        if right[place]:
            assert drawn[place].tolist() == own.tolist()
        assert generators.one(place, rng).standard_normal(5).tolist() == own.tolist()


def test_most_draws_need_a_single_output() -> None:
    _, right = Generators(0, 7, 1, np.arange(20_000), 0).normals(1)
    assert right.mean() == pytest.approx(0.985, abs=0.004)
    assert agrees()


def test_exponentials_are_those_of_distributions() -> None:
    z = np.random.default_rng(1).standard_normal((50, 40))
    drawn = np.random.default_rng(1).lognormal(-2.0, 1.5, (50, 40))
    assert (exponential()(-2.0 + 1.5 * z) == drawn).all()


def one_by_one(monkeypatch: pytest.MonkeyPatch, *given: Any) -> Any:
    with monkeypatch.context() as alone:
        alone.setattr(crowds, "FEW", 10**9)
        return replay(*given)


def device(number: int, **changes: Any) -> Device:
    known: dict[str, Any] = {
        "compute": Compute(Lognormal(0.01 * (number + 1), 0.3), 1e6, ""),
        "up": Transfer(0.01, 1e-6, Lognormal(1, 0.8)),
        "down": Transfer(0.02, 1e-7, Lognormal(1, 0.5)),
        "power": Power(4, 1, 1.5, 0.25),
    }
    return Device(f"d{number}", f"d{number % 3}", **{**known, **changes})


POINT = Point("router", 1e5, 1e6)
STEADY = {"up": Transfer(0.01, 1e-6), "down": Transfer(0.0, 1e-7)}
KINDS: dict[str, list[dict[str, Any]]] = {
    "plain": [{}],
    "steady links": [STEADY],
    "steady computing": [{"compute": Compute(Lognormal(0.3), 1e6, "")}],
    "steady": [{**STEADY, "compute": Compute(Lognormal(0.3), 1e6, "")}],
    "some of each": [{}, STEADY, {"compute": Compute(Lognormal(0.3), 1e6, "")}],
    "coming and going": [{}, {"availability": Availability(((0.0, 1.0),), 3.0, 0.5)}],
    "shared": [{"point": POINT}, {}],
    "two at each of many": [{"point": Point(f"p{i // 2}", 1e5, 3e6)} for i in range(50)],
    "alone at each of many": [
        {"point": Point(f"p{i}", 1e5 * (i + 1), 1e7), **(STEADY if i % 2 else {})}
        for i in range(50)
    ],
    "shared, coming and going": [
        {"point": POINT, "availability": Availability(((0.0, 1.0),), 3.0, 0.5)},
        {"point": POINT},
    ],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_round", [None, 23])
def test_many_at_once_are_the_same_to_the_bit(
    kind: str, per_round: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """61 workers on 50 devices, in blocks of 10, the last round shorter."""
    monkeypatch.setattr(crowds, "BLOCK", 10)
    known = KINDS[kind]
    devices = tuple(device(i, **known[i % len(known)]) for i in range(50))
    fleet = Fleet("many", "many", True, "", devices, Aggregation(Lognormal(0.01, 0.2), True))
    work = Workload(
        tau=9,
        iterations=31,
        batch=32,
        seed=1,
        sizes=tuple(20 + i for i in range(61)),
        flops=1234.5,
        stages=(Stage(10_000, 5_000, 2), Stage(0, 700)),
        per_round=per_round,
    )
    assert Crowd.of(fleet, work, 5) is not None
    wide, narrow = replay(fleet, work, 4, 5), one_by_one(monkeypatch, fleet, work, 4, 5)
    assert wide.ends.tolist() == narrow.ends.tolist()
    assert wide.busy.tolist() == narrow.busy.tolist()
    assert wide.aggregation == narrow.aggregation
    assert wide.joules is not None
    assert narrow.joules is not None
    assert wide.joules == pytest.approx(narrow.joules, rel=1e-12)


def test_a_round_of_many_is_the_clocks_round() -> None:
    fleet = load_fleet("phones")
    work = Workload(
        tau=5,
        iterations=15,
        batch=10,
        seed=0,
        sizes=(40,) * 300,
        flops=1e7,
        stages=(Stage(1000, 1000),),
    )
    played = replay(fleet, work, 3, seed=2)
    alone = Clock(fleet, work, 2).round(3, range(300), float(played.ends[2]))
    assert alone.end == played.ends[3]


def test_what_is_not_so_simple_is_played_one_by_one() -> None:
    work = Workload(
        tau=1, iterations=1, batch=1, seed=0, sizes=(1,) * 20, flops=1.0, stages=(Stage(1, 1),)
    )
    simple = Fleet("many", "many", True, "", (device(0),), None)
    recorded = device(1, compute=Compute(Recorded((0.5,)), 1.0, ""))
    driving = device(1, availability=Availability(((0.0, 9.0),), 9.0, rates=(0.5,), units=(0,)))
    assert Crowd.of(simple, work, 0) is not None
    for other in (recorded, driving):
        assert Crowd.of(replace(simple, devices=(device(0), other)), work, 0) is None
    for changes in (
        {"pooled": True},
        {"stages": (Stage(1, 1, full=1),)},
        {"stages": (Stage(1, 1, 0, 1, asks=True), Stage(1, 1))},
        {"sizes": (1,) * 15},
    ):
        assert Crowd.of(simple, replace(work, **changes), 0) is None


def test_who_never_comes_back_is_named_among_many() -> None:
    gone = device(7, availability=Availability(((0.0, 1e-3),)))
    devices = tuple(gone if i == 7 else device(i) for i in range(20))
    work = Workload(
        tau=1, iterations=1, batch=1, seed=0, sizes=(1,) * 20, flops=1.0, stages=(Stage(1, 1),)
    )
    with refused(says="device d7 is never reachable again after round 1"):
        replay(Fleet("many", "many", True, "", devices, None), work, 1, 0)
