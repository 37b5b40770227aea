"""Edges on a clock: when each round of the server is over, where workers answer to edges.

What an edge was sent, it gives to those below it; its rounds are theirs, one after the other, and
then it sends what it has::

    end = start + max over edges (download + pi rounds + upload) + aggregation
    a round of an edge = max over those below (...) + the edge's aggregation
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednag.core.keys import EDGE, Indexes
from fednag.devices.fleet import Edge, Fleet
from fednag.devices.workload import Tier, Workload
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.devices.replay import Clock


def check_edges(fleet: Fleet, workload: Workload) -> None:
    """Raise FednagError unless the fleet says what the links of every tier are."""
    if workload.tiers and fleet.shares:
        raise FednagError(
            "access",
            "devices share lines, and who is at one edge need not be at one line",
            "leave access out, or time a run without edges",
            source=fleet.source,
        )
    for tier in range(len(workload.tiers)):
        if not fleet.edges_of(tier):
            raise FednagError(
                "edge",
                f"the run has edges, and the fleet says nothing of those of tier {tier}",
                f"copy it and add an [[edge]] table with tier = {tier}, up and down",
                source=fleet.source,
            )


@dataclass(frozen=True, eq=False)
class Answers:
    """A round of the server that is over."""

    end: float
    arrivals: Mapping[int, float]  # worker -> when what it is in has arrived at the server
    aggregation: float


@dataclass(frozen=True, eq=False)
class TierClock:
    """A fleet doing a workload with edges, with the delays of one seed.

    Delays of workers are those of the rounds of their edges, numbered through from the first: with
    edges that take no time they are the delays of the run without edges.
    """

    clock: Clock
    busy: NDArray[np.float64]  # seconds (compute, down, up): a row a worker, then a row an edge

    @classmethod
    def of(cls, clock: Clock) -> TierClock:
        check_edges(clock.fleet, clock.workload)
        return cls(clock, np.zeros((clock.workload.rows, 3)))

    @property
    def tiers(self) -> tuple[Tier, ...]:
        return self.clock.workload.tiers

    def round(self, number: int, workers: Indexes, start: float) -> Answers:
        """Play a round of the server; a worker whose edge never answers arrives at infinity."""
        top = len(self.tiers) - 1
        arrivals: dict[int, float] = {}
        sent = 0
        for edge in range(len(self.tiers[top].groups)):
            members = self._members(top, edge, workers)
            if len(members):
                end = self._answered(top, edge, members, number, start)
                sent += self.tiers[top].up if isfinite(end) else 0
                arrivals |= dict.fromkeys(members.tolist(), end)
        end = max((moment for moment in arrivals.values() if isfinite(moment)), default=start)
        spent = self.clock.aggregation(number, 0, sent) if sent else 0.0
        return Answers(end + spent, arrivals, spent)

    def _answered(self, tier: int, edge: int, workers: Indexes, number: int, start: float) -> float:
        """When what an edge sends has arrived above it, in round ``number`` of that."""
        load, own = self.clock.workload, self.tiers[tier]
        device = self.device(tier, edge)
        rng = np.random.default_rng([self.clock.seed, EDGE, tier, edge, number])
        down = device.down.draw(rng, own.down, number - 1)
        up = device.up.draw(rng, own.up, number - 1)
        row = self._row(tier, edge)
        self.busy[row] += [0.0, down, up]
        now = start + down
        lasting = load.tau * int(np.prod([below.pi for below in self.tiers[:tier]]))
        for place in range((number - 1) * own.pi, number * own.pi):
            if place * lasting >= load.iterations or not isfinite(now):
                break
            now, size = self._below(tier, workers, place + 1, now)
            if device.aggregation is not None and isfinite(now):
                rng = np.random.default_rng([self.clock.seed, EDGE, tier, edge, place + 1, 1])
                spent = device.aggregation.draw(rng, size, place)
                self.busy[row, 0] += spent
                now += spent
        return now + up

    def _below(self, tier: int, workers: Indexes, number: int, start: float) -> tuple[float, int]:
        """When those below an edge have answered in one of its rounds, and their bytes."""
        if tier:
            below = self.tiers[tier - 1]
            ends = []
            for edge in range(len(below.groups)):
                members = self._members(tier - 1, edge, workers)
                if len(members):
                    ends.append(self._answered(tier - 1, edge, members, number, start))
            return max(ends), below.up * len(ends)
        load, (stage,) = self.clock.workload, self.clock.workload.stages
        steps = max(0, min(load.tau, load.iterations - (number - 1) * load.tau))
        end, size = start, 0
        for worker in workers.tolist():
            exchange = load.exchange(stage, worker, steps, stage.down, stage.up)
            delays = self.clock.delays(number, worker, 0, exchange)
            device = self.clock.fleet.device(worker)
            end = max(end, delays.arrival(device, start, again=True))
            self.busy[worker] += delays.busy(device, start)
            size += exchange.up
        return end, size

    def device(self, tier: int, edge: int) -> Edge:
        """What an edge is: the fleet's of its tier, again from the first when they run out."""
        known = self.clock.fleet.edges_of(tier)
        return known[edge % len(known)]

    def _row(self, tier: int, edge: int) -> int:
        before = sum(len(below.groups) for below in self.tiers[:tier])
        return self.clock.workload.workers + before + edge

    def _members(self, tier: int, edge: int, workers: Indexes) -> Indexes:
        return workers[np.isin(workers, self.tiers[tier].groups[edge])]
