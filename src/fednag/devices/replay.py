"""The clock: when each aggregation of a run is over, and where every device's time goes.

A round starts at one moment for all. A participant downloads, computes and uploads; the round is
over when the slowest has, and the aggregator too::

    end = start + max over participants (download + tau iterations + upload) + aggregation

Every delay is keyed by (seed, round, worker), never by the order of draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from fednag.core.keys import AGGREGATOR, DELAYS, Indexes
from fednag.devices.crowd import Crowd
from fednag.devices.delays import Delays, Journey
from fednag.devices.fleet import Fleet
from fednag.devices.sharing import share
from fednag.devices.tiers import TierClock
from fednag.devices.workload import Exchange, Workload
from fednag.errors import FednagError

PARTS = ("compute", "down", "up")  # of a worker's busy time, in the order of the tables here

Table = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Played:
    """A round that is over."""

    end: float
    arrived: tuple[int, ...]
    absent: tuple[int, ...]  # could not be reached when it began, and got nothing
    late: tuple[int, ...]  # were sent the model and did not make it in time
    busy: Mapping[int, Table]  # worker -> seconds (compute, down, up)
    aggregation: float


@dataclass(frozen=True, eq=False)
class Clock:
    """A fleet doing a workload, with the delays of one seed.

    >>> from fednag.clock import Clock, Stage, Workload, load_fleet
    >>> work = Workload(
    ...     tau=5, iterations=12, batch=10, seed=0, sizes=(100, 40), flops=1e6,
    ...     stages=(Stage(down=80, up=80),),
    ... )
    >>> played = Clock(load_fleet("lan"), work, seed=0).round(1, [0, 1], start=0.0)
    >>> played.arrived, played.end > 0
    ((0, 1), True)
    """

    fleet: Fleet
    workload: Workload
    seed: int

    def delays(self, number: int, worker: int, phase: int, exchange: Exchange) -> Delays:
        """A worker's delays in one exchange of a round."""
        device = self.fleet.device(worker)
        rng = np.random.default_rng([self.seed, DELAYS, number, worker, phase])
        first = self.workload.before(number)
        # Transfers are drawn first: how long computing takes does not change them.
        down = device.down.draw(rng, exchange.down, number - 1)
        up = device.up.draw(rng, exchange.up, number - 1)
        compute = 0.0
        for count, flops in exchange.compute:
            compute += device.compute.draw(rng, count, flops, first)
            first += count
        return Delays(down, compute, up)

    def round(
        self,
        number: int,
        workers: Sequence[int] | Indexes,
        start: float,
        deadline: float | None = None,
        *,
        leave_out: bool = False,
    ) -> Played:
        """Play one round from ``start``.

        With ``leave_out``, workers that cannot be reached at the start, do not arrive within
        ``deadline`` seconds of an exchange's start, or never would, are left out; otherwise the
        round waits for everyone, however long.
        """
        workload, fleet = self.workload, self.fleet
        there = [int(worker) for worker in workers]
        devices = {worker: fleet.device(worker) for worker in there}
        absent: list[int] = []
        if leave_out and not workload.pooled:
            absent = [i for i in there if not self.reachable(i, start)]
            there = [i for i in there if i not in absent]
        late: list[int] = []
        busy = {worker: np.zeros(3) for worker in devices}
        now, spent = start, 0.0
        plans = {worker: workload.exchanges(number, worker) for worker in there}
        phases = len(plans[there[0]]) if there else 0
        for phase in range(phases):
            asked = {i: plans[i][phase] for i in there}
            journeys = self.journeys(number, phase, asked, now, again=not leave_out)
            arrivals = {i: journey.arrival for i, journey in journeys.items()}
            limit = inf if deadline is None or workload.pooled else now + deadline
            out = [i for i in there if leave_out and (arrivals[i] > limit or arrivals[i] == inf)]
            there = [i for i in there if i not in out]
            end = max((arrivals[i] for i in there), default=now)
            if out:
                end = limit if isfinite(limit) else end
            for worker in there:
                busy[worker] += journeys[worker].busy()
            for worker in out:
                busy[worker] += journeys[worker].busy(end)
            late += out
            if not isfinite(end):
                self._never(there, arrivals, number)
            now = end
            if not there:
                break
            work = self.aggregation(number, phase, sum(plans[i][phase].up for i in there))
            now, spent = now + work, spent + work
        if not there and now == start:
            now = self.idle(start, list(devices), deadline)
        return Played(now, tuple(there), tuple(absent), tuple(sorted(late)), busy, spent)

    def reachable(self, worker: int, moment: float) -> bool:
        """Whether a worker can be sent something, and where the fleet selects by contacts, whether
        a whole round is expected to fit into the one that it has."""
        on = self.fleet.device(worker).availability
        if self.workload.pooled or not on.is_on(moment):
            return self.workload.pooled
        if not self.fleet.lasting:
            return True
        return on.arrival(moment, *self._expected(worker)) <= on.leaves(moment)

    @property
    def pace(self) -> Table:
        """Mean seconds of each worker's local iteration."""
        load = self.workload
        computing = [self.fleet.device(worker).compute for worker in range(load.workers)]
        return np.array(
            [
                own.times.mean * load.iteration_flops(worker) / own.flops
                for worker, own in enumerate(computing)
            ]
        )

    def _expected(self, worker: int) -> tuple[float, float, float]:
        """Mean seconds of a worker's plain round: down, computing, up."""
        load, device = self.workload, self.fleet.device(worker)
        found = np.zeros(3)
        for stage in load.stages:
            one = load.exchange(stage, worker, load.tau, stage.down, stage.up)
            operations = sum(count * flops for count, flops in one.compute)
            computing = device.compute.times.mean * operations / device.compute.flops
            found += [device.down.mean(one.down), computing, device.up.mean(one.up)]
        down, computing, up = found.tolist()
        return down, computing, up

    def _arrival(self, worker: int, delays: Delays, start: float, again: bool = False) -> float:
        if self.workload.pooled:  # it needs no link
            return start + delays.compute
        return delays.arrival(self.fleet.device(worker), start, again)

    def journeys(
        self,
        number: int,
        phase: int,
        asked: Mapping[int, Exchange],
        start: float,
        *,
        again: bool = False,
    ) -> dict[int, Journey]:
        """Each worker's way through an exchange, if all that are asked are sent it at ``start``."""
        found = {}
        sharing = []
        for worker, exchange in asked.items():
            device = self.fleet.device(worker)
            delays = self.delays(number, worker, phase, exchange)
            if device.point is not None and not self.workload.pooled:
                sharing.append(worker)
                found[worker] = Journey(device, delays, start, inf)
            else:
                arrival = self._arrival(worker, delays, start, again)
                found[worker] = Journey(device, delays, start, arrival)
        if sharing:
            errands = [
                found[i].delays.errand(found[i].device, asked[i].down, asked[i].up) for i in sharing
            ]
            for worker, row in zip(sharing, share(errands, start).tolist(), strict=True):
                one = found[worker]
                found[worker] = Journey(one.device, one.delays, start, row[2], row[0], row[1])
        return found

    def aggregation(self, number: int, phase: int, size: int) -> float:
        """Seconds the aggregator takes for so many bytes."""
        if self.fleet.aggregation is None or self.workload.pooled:
            return 0.0
        rng = np.random.default_rng([self.seed, AGGREGATOR, number, phase])
        return self.fleet.aggregation.draw(rng, size, number - 1)

    def idle(self, start: float, workers: Sequence[int], deadline: float | None) -> float:
        """When the server gives up a round in which no worker can be reached."""
        if deadline is not None:
            return start + deadline
        # Until somebody comes; if some are here, and their contacts too short, until one is over.
        found = [self.fleet.device(i).availability for i in workers]
        turns = [on.next(start) if on.next(start) > start else on.leaves(start) for on in found]
        return min((turn for turn in turns if isfinite(turn)), default=start)

    def crowded(
        self, crowd: Crowd, number: int, workers: Indexes, delays: Sequence[Table], start: float
    ) -> tuple[float, float, Table]:
        """A plain round of many: its end, the aggregator's seconds, and a row each of busy ones."""
        busy = np.zeros((len(workers), 3))
        now, spent = start, 0.0
        for phase, stage in enumerate(self.workload.stages):
            arrivals, seconds = crowd.exchange(phase, workers, delays[phase], now)
            busy += seconds
            now = float(arrivals.max())
            if not isfinite(now):
                arrived = dict(zip(workers.tolist(), arrivals.tolist(), strict=True))
                self._never(workers.tolist(), arrived, number)
            work = self.aggregation(number, phase, stage.up * len(workers))
            now, spent = now + work, spent + work
        return now, spent, busy

    def _never(self, workers: Sequence[int], arrivals: Mapping[int, float], number: int) -> None:
        gone = next(i for i in workers if not isfinite(arrivals[i]))
        raise FednagError(
            "",
            f"device {self.fleet.device(gone).name} is never reachable again after round {number} "
            "has begun, or never for long enough, and this run waited for it",
            "give its intervals a period, or train with clock.fleet so that it is left out",
            source=self.fleet.source,
        )


@dataclass(frozen=True, eq=False)
class Replay:
    """A run on a fleet, once: ``ends[r]`` is when round r was over, ``ends[0]`` is 0."""

    ends: Table
    busy: Table  # a row a worker: seconds (compute, down, up) in all
    aggregation: float
    rounds: int
    joules: Table | None = None  # of all workers by the end of each round, where power is known

    @property
    def waiting(self) -> Table:
        """Seconds each worker did nothing: others were slower, or it took no part."""
        waited: Table = self.ends[-1] - self.busy.sum(axis=1)
        return np.maximum(waited, 0.0)


def replay(
    fleet: Fleet,
    workload: Workload,
    rounds: int,
    seed: int,
    deadline: float | None = None,
    *,
    leave_out: bool = False,
) -> Replay:
    """Play the first ``rounds`` rounds of a run.

    >>> from fednag.clock import Stage, Workload, load_fleet, replay
    >>> work = Workload(
    ...     tau=5, iterations=12, batch=10, seed=0, sizes=(100, 40), flops=1e6,
    ...     stages=(Stage(down=80, up=80),),
    ... )
    >>> played = replay(load_fleet("lan"), work, rounds=3, seed=0)
    >>> len(played.ends), bool((played.ends[1:] > played.ends[:-1]).all())
    (4, True)
    """
    clock = Clock(fleet, workload, seed)
    ends = np.zeros(rounds + 1)
    busy = np.zeros((workload.workers, 3))
    aggregation = 0.0
    meter = Meter.of(fleet, workload.workers)
    joules = np.zeros(rounds + 1)
    if workload.tiers:
        return _with_edges(clock, rounds, meter, leave_out)
    crowd = None if leave_out else Crowd.of(fleet, workload, seed)
    for number, workers, delays in _rounds(crowd, workload, rounds):
        start = float(ends[number - 1])
        if crowd is not None and delays is not None:
            ends[number], spent, table = clock.crowded(crowd, number, workers, delays, start)
        else:
            played = clock.round(number, workers, start, deadline, leave_out=leave_out)
            ends[number], spent = played.end, played.aggregation
            workers = np.array(list(played.busy), dtype=np.int64)
            table = np.array(list(played.busy.values())).reshape(-1, 3)
        aggregation += spent
        busy[workers] += table
        if meter is not None:
            took = meter.joules(float(ends[number]) - start, workers, table)
            joules[number] = joules[number - 1] + took
    return Replay(ends, busy, aggregation, rounds, None if meter is None else joules)


def _rounds(
    crowd: Crowd | None, workload: Workload, count: int
) -> Iterator[tuple[int, Indexes, list[Table] | None]]:
    """Rounds, their workers, and delays where those of many were drawn at once."""
    if crowd is not None:
        yield from crowd.rounds(count)
        return
    for number in range(1, count + 1):
        yield number, workload.participants(number), None


def _with_edges(clock: Clock, rounds: int, meter: Meter | None, leave_out: bool) -> Replay:
    """The same with edges between workers and server.

    With ``leave_out``, whoever cannot be reached when a round of the server begins takes no part.
    """
    played, workload = TierClock.of(clock), clock.workload
    ends, joules, aggregation = np.zeros(rounds + 1), np.zeros(rounds + 1), 0.0
    for number in range(1, rounds + 1):
        start, there = float(ends[number - 1]), workload.participants(number)
        before = played.busy[: workload.workers].copy()
        workers = there
        if leave_out:
            workers = there[[clock.reachable(int(worker), start) for worker in there]]
        one = played.round(number, workers, start)
        late = {i: moment for i, moment in one.arrivals.items() if not isfinite(moment)}
        if late and not leave_out:
            clock._never(list(late), late, number)
        ends[number] = one.end if len(workers) else clock.idle(start, there.tolist(), None)
        aggregation += one.aggregation
        if meter is not None:
            spent = played.busy[: workload.workers] - before
            seconds, everyone = float(ends[number] - start), np.arange(workload.workers)
            joules[number] = joules[number - 1] + meter.joules(seconds, everyone, spent)
    return Replay(ends, played.busy, aggregation, rounds, None if meter is None else joules)


@dataclass(frozen=True, eq=False)
class Meter:
    """Counts the joules of a fleet's workers: power times time, waiting at idle power."""

    watts: Table  # a row a worker: (compute, receive, send) above idle
    idle: float  # of all workers

    @classmethod
    def of(cls, fleet: Fleet, workers: int) -> Meter | None:
        """For so many workers; None where the power of devices is not known."""
        if not fleet.powered:
            return None
        powers = [fleet.device(worker).power for worker in range(workers)]
        table = np.array([[p.compute, p.receive, p.send, p.idle] for p in powers if p is not None])
        return cls(table[:, :3] - table[:, 3:], float(table[:, 3].sum()))

    def joules(self, seconds: float, workers: Indexes, busy: Table) -> float:
        """What all take in so many seconds, some of which these workers were busy."""
        return self.idle * seconds + float((self.watts[workers] * busy).sum())
