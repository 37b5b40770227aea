"""Delays, the round in time, and replays: by hand, by properties, and against a simulation."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag import ALGORITHMS
from fednag.clock import (
    Aggregation,
    Availability,
    Bootstrap,
    Clock,
    Compute,
    Device,
    Fleet,
    Lognormal,
    Recorded,
    Transfer,
    Workload,
    load_fleet,
    replay,
    shipped,
)
from fednag.core.algorithm import payload
from fednag.devices.workload import Stage, gradients_of
from refusals import refused


def device(
    name: str, iteration: float, down: float, up: float, availability: Availability | None = None
) -> Device:
    """Seconds an iteration of 1 FLOP, seconds a byte each way; nothing varies."""
    return Device(
        name,
        name,
        Compute(Lognormal(iteration), 1.0, "by hand"),
        Transfer(0.0, up),
        Transfer(0.0, down),
        availability or Availability(),
    )


def fleet(*devices: Device, aggregation: float = 0.0) -> Fleet:
    own = Aggregation(Lognormal(aggregation)) if aggregation else None
    return Fleet("hand", "hand", True, "", devices, own)


def workload(workers: int, **changes: object) -> Workload:
    known: dict[str, object] = {
        "tau": 3,
        "iterations": 6,
        "batch": 1,
        "seed": 0,
        "sizes": (4,) * workers,
        "flops": 1.0,
    }
    of_stage = {"down": 10, "up": 10, "gradients": 1, "full": 0, "asks_first": False} | changes
    down, up, gradients, full, first = (
        of_stage.pop(name) for name in ("down", "up", "gradients", "full", "asks_first")
    )
    stages = [Stage(down, up, gradients, full)]  # type: ignore[arg-type]
    if first:  # as Mime does, in the same bytes
        stages = [Stage(10, 10, 0, 1, asks=True), Stage(down - 10, up - 10, gradients, full)]  # type: ignore[operator,arg-type]
    return Workload(**(known | of_stage | {"stages": tuple(stages)}))  # type: ignore[arg-type]


TWO = fleet(device("slow", 2.0, 0.1, 0.3), device("fast", 0.5, 0.2, 0.4), aggregation=1.5)


def test_two_devices_by_hand() -> None:
    """slow: 1 + 3 x 2 + 3 = 10; fast: 2 + 1.5 + 4 = 7.5; the round 10 + 1.5."""
    played = replay(TWO, workload(2), 2, seed=0)
    assert played.ends.tolist() == pytest.approx([0.0, 11.5, 23.0])
    assert played.busy.tolist() == [pytest.approx([12, 2, 6]), pytest.approx([3, 4, 8])]
    assert played.waiting.tolist() == pytest.approx([3.0, 8.0])
    assert played.aggregation == pytest.approx(3.0)


def test_twice_the_payload_by_hand() -> None:
    """slow: 2 + 6 + 6 = 14; fast: 4 + 1.5 + 8 = 13.5: computing does not double."""
    played = replay(TWO, workload(2, down=20, up=20), 1, seed=0)
    assert played.ends[-1] == pytest.approx(15.5)


def test_a_last_round_is_shorter() -> None:
    """Four iterations with tau 3: the second round has one; fast ends it, 2 + 0.5 + 4."""
    played = replay(TWO, workload(2, iterations=4), 2, seed=0)
    assert played.ends.tolist() == pytest.approx([0.0, 11.5, 11.5 + 6.5 + 1.5])


def test_a_probe_is_an_exchange_of_its_own() -> None:
    """Probe: slow 1 + 4 x 2 + 3 = 12, and 1.5; then 20 - 10 bytes down: 1 + 6 + 3, and 1.5."""
    probing = workload(2, down=20, up=20, asks_first=True)
    played = replay(TWO, probing, 1, seed=0)
    assert played.ends[-1] == pytest.approx(12 + 1.5 + 10 + 1.5)


def test_full_gradients_take_their_time() -> None:
    """MimeLite's: four samples one by one, 8 seconds more for the slow one."""
    assert replay(TWO, workload(2, full=1), 1, seed=0).ends[-1] == pytest.approx(19.5)
    assert replay(TWO, workload(2, gradients=2), 1, seed=0).ends[-1] == pytest.approx(17.5)


def test_a_centralised_run_sends_nothing_and_aggregates_nothing() -> None:
    away = fleet(device("x", 2.0, 1.0, 1.0, Availability(((50.0, 60.0),))), aggregation=9.0)
    played = replay(away, workload(1, down=0, up=0, pooled=True), 2, seed=0)
    assert played.ends.tolist() == [0.0, 6.0, 12.0]


def test_small_workers_compute_less() -> None:
    """A worker with 2 samples and batch 4 has half the operations of one with 4."""
    sized = workload(2, batch=4, sizes=(4, 2))
    assert [sized.iteration_flops(i) for i in range(2)] == [4.0, 2.0]
    assert [sized.iteration_flops(i) for i in range(2)] == [
        replace(sized, batch=0).iteration_flops(i) for i in range(2)
    ]


def test_workers_beyond_the_devices_start_again_from_the_first() -> None:
    assert [TWO.device(i).name for i in range(4)] == ["slow", "fast", "slow", "fast"]


def test_only_the_workers_drawn_take_part() -> None:
    drawn = workload(6, per_round=2, iterations=30)
    fleet_of_six = fleet(*(device(f"d{i}", 1.0 + i, 0.1, 0.1) for i in range(6)))
    played = replay(fleet_of_six, drawn, 10, seed=0)
    for number in range(1, 11):
        slowest = max(drawn.participants(number))
        took = played.ends[number] - played.ends[number - 1]
        assert took == pytest.approx(1 + 3 * (1.0 + slowest) + 1)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if not ALGORITHMS[n].pooled])
def test_payloads_are_what_methods_declare(name: str) -> None:
    import torch

    algorithm = ALGORITHMS[name]()
    w = torch.zeros(5)
    expected = {"fednag": (2, 2), "mime": (4, 2), "mimelite": (2, 2), "scaffold": (2, 2)}
    expected |= {
        "adiana": (2, 2),
        "fednag-rebuilt": (2, 1),
        "mfl": (2, 2),
        "hiermo": (2, 2),
        "fedlion": (2, 2),
    }
    expected |= {"stem": (2, 2), "fedglomo": (2, 2), "scaffold-m": (3, 2)}
    expected |= dict.fromkeys(("fedcm", "fedadc", "domo", "ghbm", "marina"), (2, 1))
    numbers = {"stem": (1, 0), "fednova": (0, 1), "fedexp": (0, 1)}
    (down, up), (more_down, more_up) = expected.get(name, (1, 1)), numbers.get(name, (0, 0))
    sent = 20 * down + 4 * more_down, 20 * up + 4 * more_up
    assert payload(algorithm, algorithm.init(w)) == sent


def test_gradients_are_counted_on_the_rule_itself() -> None:
    counted = {name: gradients_of(cls()) for name, cls in ALGORITHMS.items()}
    assert counted.pop("mime") == counted.pop("adiana") == (2, 0)
    assert counted.pop("marina") == counted.pop("stem") == (2, 0)
    assert counted.pop("fedglomo") == (4, 0)
    assert counted.pop("mimelite") == (1, 1)
    assert set(counted.values()) == {(1, 0)}, counted


# Draws


def test_recorded_samples_come_in_their_order_and_go_round() -> None:
    rng = np.random.default_rng(0)
    assert Recorded((1.0, 2.0, 3.0)).draw(rng, 4, 2).tolist() == [3.0, 1.0, 2.0, 3.0]


def test_a_bootstrap_draws_only_what_was_sampled() -> None:
    drawn = Bootstrap((1.0, 2.0, 4.0)).draw(np.random.default_rng(0), 3000, 0)
    assert set(drawn) == {1.0, 2.0, 4.0}
    assert drawn.mean() == pytest.approx(7 / 3, rel=0.05)


def test_a_lognormal_is_found_again() -> None:
    drawn = Lognormal(0.3, 0.5).draw(np.random.default_rng(1), 20_000, 0)
    fitted = Lognormal.fit(drawn.tolist())
    assert (fitted.median, fitted.spread) == (
        pytest.approx(0.3, rel=0.02),
        pytest.approx(0.5, rel=0.02),
    )
    assert Lognormal.fit([2.0]) == Lognormal(pytest.approx(2.0), 0.0)
    assert fitted.mean == pytest.approx(drawn.mean(), rel=0.02)


def test_a_link_is_fitted_to_its_samples() -> None:
    line = Transfer.fit([(1000, 0.3), (2000, 0.5), (4000, 0.9)], "bootstrap")
    assert line.latency == pytest.approx(0.1)
    assert line.seconds_per_byte == pytest.approx(0.0002)
    assert line.expected(10_000) == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("samples", "latency", "slope"),
    [
        ([(1000, 0.5)], 0.0, 0.0005),  # one size: in proportion
        ([(1000, 0.1), (2000, 0.3)], 0.0, None),  # a line through below 0
        ([(1000, 0.3), (2000, 0.3)], 0.3, 0.0),  # size does not matter
        ([(1000, 0.4), (2000, 0.3)], None, 0.0),  # less for more
    ],
)
def test_no_link_has_a_negative_latency_or_rate(
    samples: list[tuple[int, float]], latency: float | None, slope: float | None
) -> None:
    line = Transfer.fit(samples, "bootstrap")
    assert line.latency >= 0
    assert line.seconds_per_byte >= 0
    if latency is not None:
        assert line.latency == pytest.approx(latency, abs=1e-12)
    if slope is not None:
        assert line.seconds_per_byte == pytest.approx(slope, abs=1e-12)


def test_a_recorded_link_gives_its_samples_back() -> None:
    samples = [(1000, 0.3), (1000, 0.2), (2000, 0.7)]
    line = Transfer.fit(samples, "recorded")
    rng = np.random.default_rng(0)
    again = [line.draw(rng, size, i) for i, (size, _) in enumerate(samples)]
    assert again == pytest.approx([seconds for _, seconds in samples])
    assert line.draw(rng, 0, 0) == 0.0


# Coming and going


@pytest.mark.parametrize(
    ("moment", "seconds", "end"),
    [(0, 5, 5), (0, 10, 10), (0, 11, 31), (15, 1, 31), (5, 10, 35), (30, 25, 95), (9, 0, 9)],
)
def test_what_is_under_way_goes_on_later(moment: float, seconds: float, end: float) -> None:
    """Reachable from 0 to 10 of every 30."""
    assert Availability(((0.0, 10.0),), 30.0).after(moment, seconds) == pytest.approx(end)


def test_one_that_leaves_for_good_never_arrives() -> None:
    once = Availability(((0.0, 10.0), (20.0, 25.0)))
    assert once.after(5, 8) == 23
    assert once.after(5, 11) == inf
    assert once.next(12) == 20
    assert once.next(25) == inf
    assert [once.is_on(t) for t in (0, 10, 20, 24.9)] == [True, False, True, True]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 5), min_size=2, max_size=6),
    st.floats(0, 40),
    st.floats(0.1, 60),
    st.floats(0, 20),
)
def test_reachable_time_is_counted_rightly(
    cuts: list[float], moment: float, seconds: float, shift: float
) -> None:
    """Against a count of small steps."""
    edges = np.cumsum([0.0, *cuts])
    intervals = tuple((float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=False))
    period = float(edges[-1]) + 1
    found = Availability(intervals, period, shift).after(moment, seconds)
    steps = np.arange(moment, found, 0.001)
    phase = (steps - shift) % period
    on = np.any([(phase >= a) & (phase < b) for a, b in intervals], axis=0)
    assert on.sum() * 0.001 == pytest.approx(seconds, abs=0.02 + 0.002 * len(steps) / 1000)


def test_a_replay_waits_for_who_is_away_and_says_if_that_is_for_ever() -> None:
    comes = Availability(((5.0, 100.0),))
    late = fleet(device("a", 1.0, 0.1, 0.1, comes))
    assert replay(late, workload(1), 1, seed=0).ends[-1] == pytest.approx(5 + 1 + 3 + 1)
    gone = fleet(device("a", 1.0, 0.1, 0.1, Availability(((0.0, 2.0),))))
    with refused(says="device a is never reachable again after round 1"):
        replay(gone, workload(1), 1, seed=0)


# Deadlines


def test_who_is_late_is_left_out_and_the_deadline_is_waited_for() -> None:
    clock = Clock(TWO, workload(2), 0)
    played = clock.round(1, [0, 1], 0.0, deadline=8.0, leave_out=True)
    assert (played.arrived, played.late, played.absent) == ((1,), (0,), ())
    assert played.end == pytest.approx(8.0 + 1.5)
    assert played.busy[0].tolist() == pytest.approx([6.0, 1.0, 1.0])  # cut off while uploading
    everyone = clock.round(1, [0, 1], 0.0, deadline=10.0, leave_out=True)
    assert everyone.arrived == (0, 1)
    assert everyone.end == pytest.approx(11.5)
    nobody = clock.round(1, [0, 1], 3.0, deadline=7.0, leave_out=True)
    assert (nobody.arrived, nobody.end, nobody.aggregation) == ((), 10.0, 0.0)


def test_who_cannot_be_reached_is_left_out_and_gets_nothing() -> None:
    away = device("away", 1.0, 0.1, 0.1, Availability(((20.0, 30.0),)))
    here = device("here", 1.0, 0.1, 0.1)
    clock = Clock(fleet(away, here), workload(2), 0)
    played = clock.round(1, [0, 1], 0.0, leave_out=True)
    assert (played.arrived, played.absent, played.end) == ((1,), (0,), 5.0)
    alone = clock.round(1, [0], 4.0, leave_out=True)
    assert (alone.arrived, alone.absent, alone.end) == ((), (0,), 20.0)
    assert clock.round(1, [0], 4.0, 6.0, leave_out=True).end == 10.0
    # Never back, and no deadline: there is nothing to wait for.
    assert clock.round(1, [0], 40.0, leave_out=True).end == 40.0


# Laws

rates = st.floats(0.01, 5)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, Workload]:
    spread = draw(st.sampled_from([0.0, 0.4]))
    devices = []
    for number in range(draw(st.integers(1, 4))):
        period = draw(st.sampled_from([None, None, 20.0]))
        availability = Availability()
        if period:
            availability = Availability(((1.0, 6.0), (8.0, 13.0)), period, draw(st.floats(0, 9)))
        samples = tuple(draw(st.lists(rates, min_size=1, max_size=4)))
        times = draw(
            st.sampled_from([Bootstrap(samples), Recorded(samples), Lognormal(samples[0], spread)])
        )
        up, down = (Transfer(draw(rates), draw(rates) / 10, Lognormal(1, spread)) for _ in "ud")
        devices.append(Device(f"d{number}", "d", Compute(times, 2.0, ""), up, down, availability))
    sizes = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    tau, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    probes = draw(st.booleans())
    load = workload(
        len(sizes),
        tau=tau,
        iterations=tau * rounds - draw(st.integers(0, tau - 1)),
        batch=draw(st.integers(0, 5)),
        sizes=sizes,
        per_round=draw(st.integers(1, len(sizes))),
        down=draw(st.integers(10, 30)),
        up=draw(st.integers(10, 30)),
        full=draw(st.integers(0, 1)),
        asks_first=probes,
        seed=draw(st.integers(0, 5)),
    )
    aggregation = draw(st.sampled_from([0.0, 0.7]))
    own = Aggregation(Lognormal(aggregation, spread), draw(st.booleans())) if aggregation else None
    return Fleet("drawn", "drawn", True, "", tuple(devices), own), load


def simulated(fleet: Fleet, load: Workload, rounds: int, seed: int) -> list[float]:
    """The same, event by event: a heap of what happens next, each device on its own.

    It shares the delays with the replay, and nothing of how they are put together.
    """
    clock, order = Clock(fleet, load, seed), count()
    now, ends = 0.0, [0.0]
    for number in range(1, rounds + 1):
        members = load.participants(number).tolist()
        plans = {i: load.exchanges(number, i) for i in members}
        for phase in range(len(load.stages)):
            heap: list[tuple[float, int, str, int, float]] = []
            delays = {i: clock.delays(number, i, phase, plans[i][phase]) for i in members}
            for i in members:
                heapq.heappush(heap, (now, next(order), "receive", i, delays[i].down))
            uploads = 0
            while heap:
                now, _, what, worker, left = heapq.heappop(heap)
                intervals = fleet.device(worker).availability
                if what in ("receive", "send"):
                    if left > 1e-12 and not on(intervals, now):
                        heapq.heappush(
                            heap, (turn(intervals, now), next(order), what, worker, left)
                        )
                        continue
                    stop = turn(intervals, now)
                    if left > 1e-12 and stop < now + left:
                        rest = left - (stop - now)
                        heapq.heappush(heap, (stop, next(order), what, worker, rest))
                        continue
                    done = "received" if what == "receive" else "arrived"
                    heapq.heappush(heap, (now + left, next(order), done, worker, 0.0))
                elif what == "received":
                    ready = now + delays[worker].compute
                    heapq.heappush(heap, (ready, next(order), "send", worker, delays[worker].up))
                else:
                    uploads += plans[worker][phase].up
            if fleet.aggregation:
                from fednag.devices.replay import AGGREGATOR

                rng = np.random.default_rng([seed, AGGREGATOR, number, phase])
                now += fleet.aggregation.draw(rng, uploads, number - 1)
        ends.append(now)
    return ends


def on(availability: Availability, moment: float) -> bool:
    if not availability.intervals:
        return True
    phase = (moment - availability.shift) % (availability.period or inf)
    return any(a - 1e-9 <= phase < b - 1e-9 for a, b in availability.intervals)


def turn(availability: Availability, moment: float) -> float:
    """When the device next leaves or comes back."""
    if not availability.intervals:
        return inf
    period = availability.period or inf
    phase = (moment - availability.shift) % period
    edges = [edge for pair in availability.intervals for edge in pair]
    ahead = [edge - phase for edge in [*edges, *(e + period for e in edges)] if edge > phase + 1e-9]
    return moment + min(ahead)


@settings(max_examples=150, deadline=None)
@given(fleets(), st.integers(0, 3))
def test_a_replay_is_the_event_by_event_simulation(case: tuple[Fleet, Workload], seed: int) -> None:
    where, load = case
    rounds = -(-load.iterations // load.tau)
    played = replay(where, load, rounds, seed)
    assert played.ends.tolist() == pytest.approx(simulated(where, load, rounds, seed), abs=1e-6)
    assert np.all(np.diff(played.ends) > 0)
    total = played.busy.sum(axis=1) + played.waiting
    assert total == pytest.approx([played.ends[-1]] * load.workers)


@settings(max_examples=60, deadline=None)
@given(fleets(), st.integers(0, 3), st.sampled_from(["compute", "up", "down"]), st.floats(1, 9))
def test_slower_is_never_faster(
    case: tuple[Fleet, Workload], seed: int, what: str, factor: float
) -> None:
    """A slower device or link ends no round sooner, whoever it belongs to."""
    where, load = case
    first = where.devices[0]
    if what == "compute":
        slower = replace(first, compute=replace(first.compute, flops=first.compute.flops / factor))
    else:
        link: Transfer = getattr(first, what)
        slow = Transfer(link.latency * factor, link.seconds_per_byte * factor, link.factor)
        slower = replace(first, **{what: slow})
    rounds = -(-load.iterations // load.tau)
    before = replay(where, load, rounds, seed).ends
    after = replay(replace(where, devices=(slower, *where.devices[1:])), load, rounds, seed).ends
    assert np.all(after >= before - 1e-9)


@settings(max_examples=30, deadline=None)
@given(fleets(), st.integers(0, 3))
def test_delays_are_keyed_and_not_ordered(case: tuple[Fleet, Workload], seed: int) -> None:
    """A round alone is the round of the whole replay; another seed is another replay."""
    where, load = case
    rounds = -(-load.iterations // load.tau)
    played = replay(where, load, rounds, seed)
    clock = Clock(where, load, seed)
    last = clock.round(rounds, load.participants(rounds), float(played.ends[rounds - 1]))
    assert last.end == played.ends[rounds]
    again = replay(where, load, rounds, seed + 1).ends[-1]
    assert where.varies or again == played.ends[-1]


def test_other_seeds_give_other_delays() -> None:
    fleet, load = load_fleet("paper-edge"), workload(4, flops=1e9)
    ends = [replay(fleet, load, 2, seed).ends[-1] for seed in range(5)]
    assert len(set(ends)) == 5


@pytest.mark.parametrize("name", shipped())
def test_shipped_fleets_say_that_they_are_synthetic(name: str) -> None:
    found = load_fleet(name)
    assert found.synthetic
    assert "synthetic" in found.title
    assert found.varies
    assert found.comes_and_goes == (name in ("vehicles", "highway", "sumo-town"))


def test_the_public_names_are_there() -> None:
    import fednag.clock

    assert sorted(fednag.clock.__all__) == fednag.clock.__all__
    for name in fednag.clock.__all__:
        assert getattr(fednag.clock, name).__doc__, name
