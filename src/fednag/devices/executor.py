"""An executor on a fleet's clock: who can be reached, and when each answer arrives."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.core.algorithm import BUFFERS, lengths
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues
from fednag.core.keys import Indexes
from fednag.core.loop import Scheme
from fednag.core.transform import Chain
from fednag.core.vectors import Vectors
from fednag.devices.fleet import Fleet
from fednag.devices.replay import Clock
from fednag.devices.tiers import TierClock, check_edges
from fednag.devices.workload import Stage, uploaded, workload_of
from fednag.errors import FednagError
from fednag.problems.flops import training_flops
from fednag.simulate.run import Plan


def on_clock(
    plan: Plan, fleet: Fleet
) -> tuple[Callable[[Executor], Executor], NDArray[np.float64], list[str]]:
    """A function that puts an executor on the fleet's clock, each worker's pace, and notes.

    The delays are those that ``replay`` draws for the run's own seed.
    """
    problem = plan.problem
    flops = training_flops(problem.module, problem.features(problem.x[:2]))
    if flops is None:
        raise FednagError(
            "clock.fleet",
            "the operations of this model cannot be counted, so its iterations cannot be timed",
            "leave clock out, and use `fednag time` with --flops afterwards",
        )
    clock = Clock(fleet, workload_of(plan, flops), plan.seed)
    notes = notes_on(fleet, clock.workload.workers)
    check_edges(fleet, clock.workload)
    kind = EdgesOnClock if plan.edges else OnClock
    return lambda executor: kind(executor, clock, plan.scheme), clock.pace, notes


class OnClock(Executor):
    """Has another executor do the work, and a fleet say how long it takes."""

    def __init__(self, inner: Executor, clock: Clock, scheme: Scheme) -> None:
        self.inner, self.clock, self.scheme = inner, clock, scheme
        self.held = inner.held
        self._known: dict[tuple[int, Chain, tuple[tuple[str, int], ...]], int] = {}

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        return self.inner.exchange(asked, memories, residues)

    def reachable(self, workers: Indexes, now: float) -> NDArray[np.bool_]:
        return np.array([self.clock.reachable(int(i), now) for i in workers], dtype=bool)

    def arrivals(self, asked: Exchange, now: float) -> NDArray[np.float64]:
        clock, stage = self.clock, self._stage(asked)
        work = {}
        for worker, steps in zip(asked.workers.tolist(), asked.steps.tolist(), strict=True):
            down, up = self._downloaded(asked), self._uploaded(asked, stage.up)
            work[worker] = clock.workload.exchange(stage, worker, steps, down, up)
        journeys = clock.journeys(asked.round, asked.place, work, now)
        return np.array([journey.arrival for journey in journeys.values()])

    def aggregation(self, asked: Exchange) -> float:
        up = self._uploaded(asked, self._stage(asked).up)
        return self.clock.aggregation(asked.round, asked.place, up * len(asked.workers))

    def idle(self, workers: Indexes, now: float, deadline: float) -> float:
        return self.clock.idle(now, workers.tolist(), None if deadline == inf else deadline)

    def _stage(self, asked: Exchange) -> Stage:
        place = asked.place - len(self.scheme.controller.before)
        if place >= 0:
            return self.clock.workload.stages[place]
        stage = asked.stage
        sizes = lengths(self.scheme.algorithm, stage, asked.sent.w).values()
        # A loss over all data counts as a gradient would, which is more than it takes.
        up = sum(sizes) * asked.sent.w.element_size()
        return Stage(asked.sent.nbytes, up, 0, 1, asks=True)

    def _downloaded(self, asked: Exchange) -> int:
        return (asked.sent if asked.wire is None else asked.wire).nbytes

    def _uploaded(self, asked: Exchange, plain: int) -> int:
        """Bytes of an upload: those of the transforms, tried on vectors of the same lengths."""
        uplink = self.scheme.uplink.of(asked.rules)
        if not uplink.parts or not plain:
            return plain
        w = asked.sent.w
        sizes = lengths(self.scheme.algorithm, asked.stage, w)
        if BUFFERS in asked.sent and not asked.stage.asks:
            sizes[BUFFERS] = len(asked.sent[BUFFERS])
        key = asked.place, uplink, tuple(sizes.items())
        if key not in self._known:
            like = Vectors(**{n: torch.empty(d, dtype=w.dtype) for n, d in sizes.items()})
            self._known[key] = uploaded(self.scheme, like, asked.rules)
        return self._known[key]


class EdgesOnClock(OnClock):
    """Has edges do the work, and a fleet say how long it takes them and their workers."""

    counts_downloads = True

    def __init__(self, inner: Executor, clock: Clock, scheme: Scheme) -> None:
        super().__init__(inner, clock, scheme)
        self.between = inner.between

    def arrivals(self, asked: Exchange, now: float) -> NDArray[np.float64]:
        found = TierClock.of(self.clock).round(asked.round, asked.workers, now).arrivals
        return np.array([found[worker] for worker in asked.workers.tolist()])

    def aggregation(self, asked: Exchange) -> float:
        return TierClock.of(self.clock).round(asked.round, asked.workers, 0.0).aggregation


def notes_on(fleet: Fleet, workers: int) -> list[str]:
    """Notes that every output about a fleet has."""
    notes = [fleet.placing(workers)]
    if fleet.synthetic:
        rest = "the rest is chosen" if fleet.measured else "chosen"
        what = f"measured are {fleet.measured}; " if fleet.measured else ""
        words = f"{fleet.name} is synthetic: {what}{rest} from public facts, not measured"
        notes.insert(0, words)
    if fleet.shares:
        notes.append("transfers at one access point at once split its line")
    if fleet.powered:
        notes.append("energy is that of all workers: power times time, waiting at idle power")
    if fleet.roads is not None:
        seconds, units = fleet.roads.trace.seconds, len(fleet.roads.units)
        trace = Path(fleet.roads.trace.source).name
        again = "begins again after" if fleet.devices[-1].availability.period else "ends after"
        past = f"past {units} units"
        if fleet.roads.heads:
            past = f"in a cloud that elects its aggregator, {len(fleet.roads.heads)} times"
        notes.append(
            f"vehicles drive as in {trace}, which {again} {seconds:g} s, {past}; "
            "what is sent at a lower rate takes longer, latency too"
        )
    return notes
