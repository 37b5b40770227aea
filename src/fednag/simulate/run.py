"""The training loop: rounds, evaluations, the best model so far, when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Protocol

import numpy as np

from fednag.core.algorithm import BUFFERS, Algorithm, payload, server_round
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.core.vectors import Vector, Vectors
from fednag.data.partition import Partition
from fednag.problems.metrics import Better, Metric, as_good, improves
from fednag.problems.problem import Problem
from fednag.simulate.engine import Engine, Gathered, Memories, first_state
from fednag.simulate.evaluator import Evaluator, Measures
from fednag.simulate.schedule import Indexes, Schedule

MOST_NAMED = 100  # workers refused or missed in a record; all are counted
BLOWN_UP = 100  # a loss this many times the first one does not come back to anything useful


@dataclass(frozen=True, eq=False)
class Attendance:
    """Who of a round's workers takes part in it after all, and when it is over."""

    arrived: Indexes
    reached: int  # how many were sent the model
    end: float  # seconds on the run's clock


Attend = Callable[[int, Indexes, float], Attendance]
"""(round, its workers, when it starts) -> who arrives. Time enters training here and nowhere else.
"""


@dataclass(frozen=True)
class Level:
    """A value that a measure has to reach for the run to stop."""

    measure: str
    value: float
    better: Better


@dataclass(frozen=True)
class Patience:
    """How many evaluations may go by without a better value of a measure."""

    evaluations: int
    measure: str
    better: Better
    change: float = 0.0  # by how much a value must be better to count


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides a run's numbers, resolved: nothing is left to be guessed."""

    problem: Problem
    partition: Partition
    algorithm: Algorithm
    tau: int
    iterations: int
    batch: int
    seed: int
    per_round: int | None = None
    evaluate_every: int = 1
    samples: int = 0
    per_worker: bool = False
    stop_accuracy: float | None = None
    stop_loss: float | None = None
    stop_seconds: float | None = None
    stop_metrics: tuple[Level, ...] = ()
    patience: Patience | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    chunk: int = 1
    threads: int = 1
    attend: Attend | None = None  # None: everyone arrives, and no clock runs

    @property
    def rounds(self) -> int:
        return ceil(self.iterations / self.tau)

    @property
    def owned(self) -> tuple[Indexes, ...]:
        """Each worker's samples; a centralised method has one worker with all of them."""
        partition = self.partition.pooled() if self.algorithm.pooled else self.partition
        return partition.workers


@dataclass(frozen=True, eq=False)
class Best:
    """w^f: the aggregated model of least global loss among those evaluated."""

    w: Vector
    loss: float
    iteration: int
    buffers: Vector | None = None  # where the model has some that training changes


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands after a round: all that it remembers."""

    server: Vectors
    memories: Vectors  # a row a worker; the next round writes in them
    starts: Indexes  # iterations each worker has done
    round: int = 0
    iteration: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    first_loss: float = float("inf")
    refusals: int = 0
    refused: tuple[int, ...] = ()  # since the last record
    clock: float = 0.0  # simulated seconds; they pass only where a plan says who attends
    misses: int = 0
    missed: tuple[int, ...] = ()  # since the last record
    watched: float | None = None  # the best value of what patience watches
    waited: int = 0  # evaluations since then
    best: Best | None = None
    record: Record | None = None  # of this round, if it was evaluated
    ended: Ending | None = None  # why the run is over
    diverged: bool = False


class Crew(Protocol):
    """Those who do the workers' halves of rounds: threads here, or machines elsewhere."""

    memories: Memories

    def __enter__(self) -> Crew: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def held(self) -> int:
        """Samples of all workers."""

    def probe(self, server: Vectors, workers: Indexes, number: int) -> Gathered:
        """The mean full gradient ``g`` at the server's ``w``."""

    def round(
        self, server: Vectors, workers: Indexes, starts: Indexes, steps: int, number: int
    ) -> Gathered:
        """The mean of what workers return after ``steps`` iterations each."""

    def measure(self, server: Vectors, number: int) -> Measures:
        """What the server's model after round ``number`` is worth."""

    def verify(self, server: Vectors, starts: Indexes) -> None:
        """See for a last time that what trained the model agrees with it."""


class Local:
    """A crew of threads, with all data at hand."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.engine = Engine(
            plan.problem,
            plan.algorithm,
            plan.owned,
            schedule,
            chunk=plan.chunk,
            threads=plan.threads,
        )
        self.evaluator = Evaluator(
            self.engine, plan.owned, plan.seed, plan.samples, plan.per_worker, plan.metrics
        )

    def __enter__(self) -> Local:
        self.engine.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.__exit__()

    @property
    def memories(self) -> Memories:
        return self.engine.memories

    @memories.setter
    def memories(self, memories: Memories) -> None:
        self.engine.memories = memories

    @property
    def held(self) -> int:
        return int(self.engine.schedule.sizes.sum())

    def probe(self, server: Vectors, workers: Indexes, number: int) -> Gathered:
        return self.engine.probe(server, workers, number)

    def round(
        self, server: Vectors, workers: Indexes, starts: Indexes, steps: int, number: int
    ) -> Gathered:
        return self.engine.round(server, workers, starts, steps, number)

    def verify(self, server: Vectors, starts: Indexes) -> None:
        self.engine.verify(server, starts)
        self.evaluator.verify(server.w, self._buffers(server))

    def measure(self, server: Vectors, number: int) -> Measures:
        return self.evaluator(server.w, self._buffers(server))

    def _buffers(self, server: Vectors) -> Vector:
        """Those the model is measured with: (k,), or every worker's own, (n, k)."""
        if BUFFERS in self.memories.rows:
            return self.memories.rows[BUFFERS]
        return server.get(BUFFERS, self.engine.problem.initial_buffers)


def simulate(plan: Plan, resumed: State | None = None, crew: Crew | None = None) -> Iterator[State]:
    """Run a plan; yields the state before training and after every round.

    From the state of an earlier run it goes on as that one would have, to the bit. ``crew`` does
    the workers' halves; without one, they are computed here.
    """
    schedule = Schedule(plan.seed, [len(o) for o in plan.owned], plan.batch, plan.per_round)
    with crew or Local(plan, schedule) as present:
        loop = _Loop(plan, present, schedule)
        state = loop.start() if resumed is None else loop.restart(resumed)
        yield state
        while state.ended is None:
            state = loop.advance(state)
            yield state


class _Loop:
    def __init__(self, plan: Plan, crew: Crew, schedule: Schedule) -> None:
        self.plan, self.crew, self.schedule = plan, crew, schedule
        self.down, self.up = payload(plan.algorithm, first_state(plan.algorithm, plan.problem))
        self.began = time.monotonic()

    def start(self) -> State:
        plan = self.plan
        server = first_state(plan.algorithm, plan.problem)
        starts = np.zeros(len(plan.owned), dtype=np.int64)
        state = self._measure(State(server, self.crew.memories.rows, starts), participants=0)
        if state.record is not None and state.record.loss is not None:
            state = replace(state, first_loss=state.record.loss)
        return self._ended(state)

    def restart(self, state: State) -> State:
        self.crew.memories = Memories(state.memories)
        self.began -= state.seconds
        return state

    def advance(self, state: State) -> State:
        """One round: the workers' halves, the server's half, an evaluation if it is due."""
        plan, number = self.plan, state.round + 1
        steps = min(plan.tau, plan.iterations - state.iteration)
        drawn = self.schedule.participants(number)
        attendance = Attendance(drawn, len(drawn), state.clock)
        if plan.attend:
            attendance = plan.attend(number, drawn, state.clock)
        workers = attendance.arrived
        server: Vectors | None = state.server
        came = Gathered(Vectors(), 0, ())
        idle: tuple[int, ...] = ()
        if len(workers):  # otherwise the round does nothing
            server, came, idle = self._round(state, workers, steps, number)
        missed = set(drawn.tolist()) - set(workers.tolist()) | set(came.missed)
        down, up = came.travelled or (self.down * attendance.reached, self.up * len(workers))
        told = state.record is not None  # of those named so far
        starts = state.starts.copy()
        starts[np.setdiff1d(workers, idle)] += steps
        state = replace(
            state,
            server=state.server if server is None else server,
            starts=starts,
            round=number,
            iteration=state.iteration + steps,
            bytes_up=state.bytes_up + up,
            bytes_down=state.bytes_down + down,
            seconds=time.monotonic() - self.began,
            refusals=state.refusals + len(set(came.refused)),
            refused=tuple(sorted({*(() if told else state.refused), *came.refused})),
            clock=attendance.end,
            misses=state.misses + len(missed),
            missed=tuple(sorted({*(() if told else state.missed), *missed})),
            record=None,
            diverged=server is None or not _finite(server),
        )
        last = state.iteration >= plan.iterations
        out_of_time = _reached(state.seconds, plan.stop_seconds)
        if last or out_of_time or state.diverged or number % plan.evaluate_every == 0:
            state = self._measure(state, len(workers) - len(idle))
        state = self._ended(state)
        if state.ended is not None and not state.diverged:
            self.crew.verify(state.server, state.starts)
        return state

    def _round(
        self, state: State, workers: Indexes, steps: int, number: int
    ) -> tuple[Vectors | None, Gathered, tuple[int, ...]]:
        """The server's new state, None if no update was usable; what came; who did not train."""
        algorithm, server, crew = self.plan.algorithm, state.server, self.crew
        probe = None
        if algorithm.probes:
            probe = crew.probe(server, workers, number)
            if not probe.size:
                return None, probe, probe.missed
            probed = algorithm.probed(server.without(BUFFERS), probe.vectors.g)
            server = _with_buffers(probed, server)
        found = crew.round(server, workers, state.starts, steps, number)
        came = found.after(probe) if probe else found
        if not found.size:
            return None, came, found.missed
        share = float(found.size / crew.held)
        rules, mean = server.without(BUFFERS), found.vectors.without(BUFFERS)
        # Buffers are averaged as they are, whatever the method does with the weights.
        updated = _with_buffers(server_round(algorithm, rules, mean, share), found.vectors)
        return updated, came, found.missed

    def _measure(self, state: State, participants: int) -> State:
        """Evaluate the server's model: a record, and w^f if it is the best so far."""
        found = self.crew.measure(state.server, state.round)
        loss = found.loss
        blown_up = state.diverged or loss > BLOWN_UP * max(state.first_loss, 1e-3)
        blown_up = blown_up or not np.isfinite(loss)
        best = state.best
        if not blown_up and state.round and (best is None or loss < best.loss):
            held = state.server
            buffers = held.get(BUFFERS, None)
            best = Best(held.w, loss, state.iteration, buffers)
        record = Record(
            iteration=state.iteration,
            round=state.round,
            loss=None if blown_up else loss,
            accuracy=None if blown_up else found.accuracy,
            train_accuracy=None if blown_up else found.train_accuracy,
            bytes_up=state.bytes_up,
            bytes_down=state.bytes_down,
            seconds=round(time.monotonic() - self.began, 4),
            participants=participants,
            worker_losses=None if blown_up else found.worker_losses,
            refusals=state.refusals,
            refused=state.refused[:MOST_NAMED],
            clock=state.clock if self.plan.attend else None,
            misses=state.misses,
            missed=state.missed[:MOST_NAMED],
            test_loss=None if blown_up else found.test_loss,
            metrics=dict.fromkeys(found.metrics) if blown_up else found.metrics,
        )
        state = replace(state, record=record, best=best, diverged=blown_up)
        return self._waited(state, record)

    def _waited(self, state: State, record: Record) -> State:
        """What patience remembers; an evaluation that could not measure it does not count."""
        patience = self.plan.patience
        value = record.measured(patience.measure) if patience else None
        if patience is None or value is None:
            return state
        best = state.watched
        if best is None or improves(value, best, patience.change, patience.better):
            return replace(state, watched=value, waited=0)
        return replace(state, waited=state.waited + 1)

    def _ended(self, state: State) -> State:
        plan, record, at = self.plan, state.record, state.iteration
        ended = None
        if state.diverged:
            ended = Ending("diverged", at)
        elif record and _reached(record.accuracy, plan.stop_accuracy):
            ended = Ending("target", at, "accuracy", plan.stop_accuracy)
        elif record and _reached(_negative(record.loss), _negative(plan.stop_loss)):
            ended = Ending("target", at, "loss", plan.stop_loss)
        elif level := self._level(record):
            ended = Ending("target", at, level.measure, level.value)
        elif at >= plan.iterations:
            ended = Ending("finished", at)
        elif plan.patience and state.waited >= plan.patience.evaluations:
            ended = Ending("patience", at, plan.patience.measure, plan.patience.evaluations)
        elif _reached(state.seconds, plan.stop_seconds):
            ended = Ending("seconds", at, value=plan.stop_seconds)
        return replace(state, ended=ended)

    def _level(self, record: Record | None) -> Level | None:
        """The first of the metrics' levels that a record reaches."""
        for level in self.plan.stop_metrics if record else ():
            if record and as_good(record.measured(level.measure), level.value, level.better):
                return level
        return None


def _with_buffers(server: Vectors, held: Vectors) -> Vectors:
    return server.but(**{BUFFERS: held[BUFFERS]}) if BUFFERS in held else server


def _reached(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value >= target


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _finite(vectors: Vectors) -> bool:
    return all(bool(vector.isfinite().all()) for vector in vectors.values())
