"""Edges on a clock: schedules by hand, an event-by-event simulation, limits, files."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fednag
from commands import Caller
from fednag import FednagError
from fednag.clock import (
    Aggregation,
    Clock,
    Compute,
    Device,
    Edge,
    Fleet,
    Lognormal,
    Stage,
    Tier,
    Transfer,
    Workload,
    load_fleet,
    replay,
    replay_runs,
    timed_run,
    where_time_goes,
)
from fednag.core.keys import EDGE
from test_clock import fleet

GROUPS = ((0, 2), (1,), (3, 4))
REGIONS = ((0, 1, 2), (3, 4))


def load(tiers: tuple[Tier, ...], **changes: Any) -> Workload:
    known: dict[str, Any] = {
        "tau": 2, "iterations": 4 * 2 * 3 - 3, "batch": 0, "seed": 0, "sizes": (30, 10, 20, 40, 5),
        "flops": 1e6, "stages": (Stage(down=4000, up=2000),),
    }  # fmt: skip
    return Workload(**known | changes, tiers=tiers)


def box(compute: float, down: float, up: float, spread: float = 0.0) -> Device:
    """A device that takes so long for a million operations, and to receive and send anything."""
    speed = Compute(Lognormal(compute, spread), 1e6, "by hand")
    factor = Lognormal(1.0, spread)
    return Device("box", "box", speed, Transfer(up, 0.0, factor), Transfer(down, 0.0, factor))


def edge(
    name: str, tier: int, down: float, up: float, spent: float = 0.0, spread: float = 0
) -> Edge:
    """Links that take so long whatever is sent, but for chance."""
    factor = Lognormal(1.0, spread)
    took = Aggregation(Lognormal(spent, spread)) if spent else None
    return Edge(name, name, tier, Transfer(up, 0.0, factor), Transfer(down, 0.0, factor), took)


def test_two_edges_by_hand() -> None:
    """Workers of 30, 10 and 20 samples, 1 ms an operation of a sample; two edges, pi 2."""
    where = replace(
        fleet(*(box(1.0, 0.5, 0.25) for _ in range(3)), aggregation=0.125),
        edges=(edge("a", 0, 2.0, 3.0, 0.5), edge("b", 0, 4.0, 1.0)),
    )
    tiers = (Tier(((0, 1), (2,)), 2, 100, 100),)
    work = load(tiers, sizes=(30, 10, 20), iterations=6, tau=2)
    flat = replay(fleet(*where.devices), replace(work, tiers=(), sizes=(30, 10)), 1, 0).ends[1]
    other = replay(fleet(where.devices[2]), replace(work, tiers=(), sizes=(20,)), 1, 0).ends[1]
    first = 2.0 + 2 * (flat + 0.5) + 3.0
    second = 4.0 + 2 * other + 1.0
    found = replay(where, work, 2, 0)
    assert found.ends[1] == pytest.approx(max(first, second) + 0.125)
    # The last round of the server has one round of an edge left.
    rest = max(2.0 + flat + 0.5 + 3.0, 4.0 + other + 1.0) + 0.125
    assert found.ends[2] == pytest.approx(found.ends[1] + rest)
    assert found.busy[3].tolist() == pytest.approx([3 * 0.5, 4.0, 6.0])


def test_edges_that_take_no_time_are_not_there() -> None:
    """One edge, nothing sent: three of its rounds are three of the server's."""
    where = load_fleet("paper-edge")
    flat = load((), iterations=36)
    work = load((Tier(((0, 1, 2, 3, 4),), 3, 0, 0),), iterations=36)
    free = replace(where, aggregation=None, edges=(edge("e", 0, 0.0, 0.0),))
    ends = replay(replace(where, aggregation=None), flat, 18, 5).ends
    assert replay(free, work, 6, 5).ends == pytest.approx(ends[::3])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Fleet, Workload]:
    seconds = st.floats(0.01, 5)
    devices = tuple(
        box(draw(seconds), draw(seconds), draw(seconds), draw(st.sampled_from([0.0, 0.4])))
        for _ in range(draw(st.integers(1, 4)))
    )
    tiers = [Tier(GROUPS, draw(st.integers(1, 3)), 500, 300)]
    edges = [edge(f"e{i}", 0, draw(seconds), draw(seconds), draw(seconds), 0.3) for i in range(2)]
    if draw(st.booleans()):
        tiers.append(Tier(REGIONS, draw(st.integers(1, 3)), 500, 300))
        edges.append(edge("r", 1, draw(seconds), draw(seconds), draw(seconds), 0.3))
    where = replace(fleet(*devices, aggregation=draw(seconds)), edges=tuple(edges))
    return where, load(tuple(tiers), per_round=draw(st.sampled_from([2, 5])))


class Simulated:
    """Event by event: a heap of what happens next, every edge and worker on its own.

    It shares the draws with the replay, and nothing of how they are put together.
    """

    def __init__(self, where: Fleet, work: Workload, seed: int) -> None:
        self.where, self.work, self.seed = where, work, seed
        self.clock = Clock(where, work, seed)
        self.heap: list[tuple[float, int, Any]] = []
        self.order = count()
        self.waiting: dict[Any, int] = {}  # of an edge: how many of those below have not answered
        self.done: dict[Any, int] = {}  # and its rounds that are over
        self.now = 0.0

    def after(self, seconds: float, *what: Any) -> None:
        heapq.heappush(self.heap, (self.now + seconds, next(self.order), what))

    def below(self, tier: int, group: int) -> list[tuple[int, int]]:
        """(tier, number) of those below an edge who take part; tier -1 are workers."""
        members = set(self.work.tiers[tier].groups[group]) & set(self.here)
        if tier == 0:
            return [(-1, worker) for worker in sorted(members)]
        lower = self.work.tiers[tier - 1].groups
        return [(tier - 1, i) for i, own in enumerate(lower) if members & set(own)]

    def run(self, rounds: int) -> list[float]:
        ends, top = [0.0], len(self.work.tiers)
        for number in range(1, rounds + 1):
            self.here = self.work.participants(number).tolist()
            tops = [
                i for i, own in enumerate(self.work.tiers[-1].groups) if set(own) & set(self.here)
            ]
            self.waiting[top, 0] = len(tops)
            for i in tops:
                self.begin(top - 1, i)
            while self.heap:
                self.now, _, (handler, *arguments) = heapq.heappop(self.heap)
                handler(*arguments)
            self.now += self.clock.aggregation(number, 0, 1)
            self.server = number
            ends.append(self.now)
        return ends

    server = 0

    def of(self, tier: int, i: int) -> Edge:
        there = [one for one in self.where.edges if one.tier == tier]
        return there[i % len(there)]

    def number_above(self, tier: int, i: int) -> int:
        """Which round of those above it is running, counted through from 1."""
        number = self.server + 1
        for level in reversed(range(tier + 1, len(self.work.tiers))):
            (above,) = [
                g
                for g, own in enumerate(self.work.tiers[level].groups)
                if set(self.work.tiers[tier].groups[i]) <= set(own)
            ]
            number = (number - 1) * self.work.tiers[level].pi + self.done[level, above] + 1
        return number

    def begin(self, tier: int, i: int) -> None:
        if tier < 0:
            return
        self.done[tier, i] = 0
        number = self.number_above(tier, i)
        rng = np.random.default_rng([self.seed, EDGE, tier, i, number])
        own = self.of(tier, i)
        down = own.down.draw(rng, 500, 0)
        self.up = {**getattr(self, "up", {}), (tier, i): own.up.draw(rng, 300, 0)}
        self.after(down, self.round, tier, i)

    def round(self, tier: int, i: int) -> None:
        own = self.work.tiers[tier]
        number = (self.number_above(tier, i) - 1) * own.pi + self.done[tier, i] + 1
        lasting = self.work.tau
        for lower in self.work.tiers[:tier]:
            lasting *= lower.pi
        if self.done[tier, i] == own.pi or (number - 1) * lasting >= self.work.iterations:
            self.after(self.up[tier, i], self.arrived, tier, i)
            return
        below = self.below(tier, i)
        self.waiting[tier, i] = len(below)
        for level, other in below:
            if level >= 0:
                self.begin(level, other)
                continue
            steps = min(self.work.tau, self.work.iterations - (number - 1) * self.work.tau)
            asked = self.work.exchange(self.work.stages[0], other, steps, 4000, 2000)
            took = self.clock.delays(number, other, 0, asked)
            self.after(took.down + took.compute + took.up, self.answered, tier, i, number)

    def arrived(self, tier: int, i: int) -> None:
        if tier == len(self.work.tiers) - 1:
            return
        level = tier + 1
        (above,) = [
            g
            for g, own in enumerate(self.work.tiers[level].groups)
            if set(self.work.tiers[tier].groups[i]) <= set(own)
        ]
        own = self.work.tiers[level]
        number = (self.number_above(level, above) - 1) * own.pi + self.done[level, above] + 1
        self.answered(level, above, number)

    def answered(self, tier: int, i: int, number: int) -> None:
        self.waiting[tier, i] -= 1
        if self.waiting[tier, i]:
            return
        rng = np.random.default_rng([self.seed, EDGE, tier, i, number, 1])
        spent = self.of(tier, i).aggregation
        self.after(spent.draw(rng, 1, 0) if spent else 0.0, self.over, tier, i)

    def over(self, tier: int, i: int) -> None:
        self.done[tier, i] += 1
        self.round(tier, i)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 3))
def test_a_replay_with_edges_is_the_event_by_event_simulation(
    case: tuple[Fleet, Workload], seed: int
) -> None:
    where, work = case
    rounds = -(-work.iterations // (work.tau * work.repeats))
    expected = Simulated(where, work, seed).run(rounds)
    found = replay(where, work, rounds, seed)
    assert found.ends.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.busy.shape == (work.rows, 3)


RUN: dict[str, Any] = {"model": "logistic", "workers": 8, "tau": 2, "iterations": 24}
TIERS = [{"groups": 4, "pi": 2}, {"groups": 2, "pi": 2}]


def test_a_run_on_the_clock_has_the_times_of_its_replay(tmp_path: Path) -> None:
    """Training does not change; records' seconds are those that the replay finds on its own."""
    plain = fednag.run("hiermo", **RUN, tier=TIERS)
    timed = fednag.run("hiermo", **RUN, tier=TIERS, clock={"fleet": "three-tier"}, out=tmp_path)
    assert [r.loss for r in timed.records] == [r.loss for r in plain.records]
    assert [r.tiers for r in timed.records] == [r.tiers for r in plain.records]
    where = load_fleet("three-tier")
    (again,) = replay_runs([timed_run(timed.view)], where)
    assert again.replays[0].ends.tolist() == pytest.approx([r.clock for r in timed.records])
    (other,) = replay_runs([timed_run(plain.view)], where, replays=1)  # the run's own seed is 0
    assert other.replays[0].ends == pytest.approx(again.replays[0].ends)
    names = [part.device for part in where_time_goes([again], where, most=20)]
    assert names[0] == "0 home-1"
    assert names[8:] == [
        *(f"edge 0.{i} cabinet-{i + 1}" for i in range(4)),
        *(f"edge 1.{i} exchange-{i + 1}" for i in range(2)),
    ]


def test_compressed_uploads_take_less_time() -> None:
    where = load_fleet("three-tier")
    runs = [
        timed_run(fednag.run("fedavg", **RUN, tier=TIERS, uplink=uplink).view)
        for uplink in ([], ["float16"])
    ]
    loads = [run.workload for run in runs]
    assert loads[1].stages[0].up * 2 == loads[0].stages[0].up
    assert [tier.up * 2 for tier in loads[1].tiers] == [tier.up for tier in loads[0].tiers]
    slow, fast = (one.replays[0].ends[-1] for one in replay_runs(runs, where, replays=1))
    assert fast < slow


def test_what_a_clock_with_edges_refuses(tmp_path: Path) -> None:
    clock = {"fleet": "three-tier", "deadline": 3.0}
    for more, sentence in (
        ({"clock": {"fleet": "lan"}}, "lan: edge: the run has edges, and the fleet says nothing"),
        ({"clock": clock}, "clock.deadline: it does not go with edges yet"),
    ):
        with pytest.raises(FednagError) as error:
            fednag.run("fedavg", **RUN, tier=TIERS, **more)
        assert sentence in str(error.value)
    with pytest.raises(FednagError, match="fleet says nothing of those of tier 0"):
        replay_runs([timed_run(fednag.run("fedavg", **RUN, tier=TIERS).view)], load_fleet("lan"))
    text = 'name = "x"\n[[device]]\nname = "d"\ngflops = 1\nup = {mbit = 1}\ndown = {mbit = 1}\n'
    for own, sentence in (
        ('name = "e"\nup = {mbit = 1}', "x.toml: edge e: down"),
        ('name = "e"\nup = {mbit = 0}\ndown = {mbit = 1}', "edge e: up: mbit: 0 is not allowed"),
    ):
        (tmp_path / "x.toml").write_text(f"{text}[[edge]]\n{own}\n")
        with pytest.raises(FednagError) as error:
            load_fleet(tmp_path / "x.toml")
        assert sentence in str(error.value)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capsys)


def test_the_command_times_runs_with_edges(cli: Caller, tmp_path: Path) -> None:
    """Bytes and seconds by tier; rounds of edges are not drawn, and nothing else is left out."""
    fednag.compare(["hiermo", "fedavg"], **RUN, tier=TIERS, out=tmp_path)
    done = cli("time", str(tmp_path), "--fleet", "three-tier", "--json", "--replays", "2")
    assert done.code == 0, done.err
    rows = done.document["tiers"]
    hiermo = [row for row in rows if row["label"] == "hiermo"]
    # 650 numbers of 4 bytes: w and v for workers, p too for edges.
    assert [(row["tier"], row["members"], row["rounds"], row["down"]) for row in hiermo] == [
        ("workers", 8, 4, 4 * 8 * 5200),
        ("0", 4, 2, 2 * 4 * 7800),
        ("1", 2, 1, 2 * 7800),
    ]
    assert all(row["seconds"] > 0 for row in rows)
    assert "tier by tier" in cli("time", str(tmp_path), "--fleet", "three-tier").out
