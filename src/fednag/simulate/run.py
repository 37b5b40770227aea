"""The training loop: rounds, evaluations, the best model so far, when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fednag.algorithm import Algorithm, payload, server_round
from fednag.problems.partition import Partition
from fednag.problems.problem import Problem
from fednag.records import Record
from fednag.simulate.engine import Engine, Memories
from fednag.simulate.schedule import SAMPLE, Indexes, Schedule
from fednag.vectors import Vector, Vectors

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
    best: Best | None = None
    record: Record | None = None  # of this round, if it was evaluated
    ended: str | None = None  # why the run is over
    diverged: bool = False


def simulate(plan: Plan, resumed: State | None = None) -> Iterator[State]:
    """Run a plan; yields the state before training and after every round.

    From the state of an earlier run it goes on as that one would have, to the bit.
    """
    owned = plan.owned
    schedule = Schedule(plan.seed, [len(o) for o in owned], plan.batch, plan.per_round)
    engine = Engine(
        plan.problem, plan.algorithm, owned, schedule, chunk=plan.chunk, threads=plan.threads
    )
    with engine:
        loop = _Loop(plan, engine, schedule)
        state = loop.start() if resumed is None else loop.restart(resumed)
        yield state
        while state.ended is None:
            state = loop.advance(state)
            yield state


class _Loop:
    def __init__(self, plan: Plan, engine: Engine, schedule: Schedule) -> None:
        self.plan, self.engine, self.schedule = plan, engine, schedule
        self.down, self.up = payload(plan.algorithm, plan.algorithm.init(plan.problem.initial))
        self.train_index = self._evaluated(np.sort(np.concatenate(engine.owned)))
        self.test_index = torch.arange(len(plan.problem.test_x), device=plan.problem.device)
        self.began = time.monotonic()

    def start(self) -> State:
        plan = self.plan
        server = plan.algorithm.init(plan.problem.initial)
        starts = np.zeros(len(self.engine.owned), dtype=np.int64)
        state = self._measure(State(server, self.engine.memories.rows, starts), participants=0)
        if state.record is not None and state.record.loss is not None:
            state = replace(state, first_loss=state.record.loss)
        return self._ended(state)

    def restart(self, state: State) -> State:
        self.engine.memories = Memories(state.memories)
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
        missed = set(drawn.tolist()) - set(workers.tolist())
        server: Vectors | None = state.server
        refused: set[int] = set()
        if len(workers):  # otherwise the round does nothing
            server, refused = self._round(state, workers, steps, number)
        starts = state.starts.copy()
        starts[workers] += steps
        state = replace(
            state,
            server=state.server if server is None else server,
            starts=starts,
            round=number,
            iteration=state.iteration + steps,
            bytes_up=state.bytes_up + self.up * len(workers),
            bytes_down=state.bytes_down + self.down * attendance.reached,
            seconds=time.monotonic() - self.began,
            refusals=state.refusals + len(refused),
            refused=tuple(sorted({*(() if state.record else state.refused), *refused})),
            clock=attendance.end,
            misses=state.misses + len(missed),
            missed=tuple(sorted({*(() if state.record else state.missed), *missed})),
            record=None,
            diverged=server is None or not _finite(server),
        )
        last = state.iteration >= plan.iterations
        out_of_time = _reached(state.seconds, plan.stop_seconds)
        if last or out_of_time or state.diverged or number % plan.evaluate_every == 0:
            state = self._measure(state, len(workers))
        return self._ended(state)

    def _round(
        self, state: State, workers: Indexes, steps: int, number: int
    ) -> tuple[Vectors | None, set[int]]:
        """The server's new state, None if no update was finite; and whose updates were not."""
        algorithm, server, refused = self.plan.algorithm, state.server, set[int]()
        if algorithm.probes:
            probe = self.engine.probe(server.w, workers)
            refused.update(probe.refused)
            if not probe.size:
                return None, refused
            server = algorithm.probed(server, probe.vectors.g)
        found = self.engine.round(server, workers, state.starts, steps, number)
        refused.update(found.refused)
        if not found.size:
            return None, refused
        share = float(found.size / self.schedule.sizes.sum())
        return server_round(algorithm, server, found.vectors, share), refused

    def _measure(self, state: State, participants: int) -> State:
        """Evaluate the server's model: a record, and w^f if it is the best so far."""
        problem, w = self.plan.problem, state.server.w
        losses, hits = self.engine.evaluate(w, problem.x, problem.y, self.train_index)
        loss = float(losses.mean())
        classes = problem.dataset.classes is not None
        accuracy = None
        if classes and len(self.test_index):
            _, right = self.engine.evaluate(w, problem.test_x, problem.test_y, self.test_index)
            accuracy = float(right.mean())
        blown_up = state.diverged or loss > BLOWN_UP * max(state.first_loss, 1e-3)
        blown_up = blown_up or not np.isfinite(loss)
        best = state.best
        if not blown_up and state.round and (best is None or loss < best.loss):
            best = Best(w, loss, state.iteration)
        record = Record(
            iteration=state.iteration,
            round=state.round,
            loss=None if blown_up else loss,
            accuracy=None if blown_up else accuracy,
            train_accuracy=float(hits.mean()) if classes and not blown_up else None,
            bytes_up=state.bytes_up,
            bytes_down=state.bytes_down,
            seconds=round(time.monotonic() - self.began, 4),
            participants=participants,
            worker_losses=self._worker_losses(w) if self.plan.per_worker and not blown_up else None,
            refusals=state.refusals,
            refused=state.refused[:MOST_NAMED],
            clock=state.clock if self.plan.attend else None,
            misses=state.misses,
            missed=state.missed[:MOST_NAMED],
        )
        return replace(state, record=record, best=best, diverged=blown_up)

    def _worker_losses(self, w: Vector) -> tuple[float, ...]:
        problem, owned = self.plan.problem, self.engine.owned
        index = torch.from_numpy(np.concatenate(owned)).to(problem.device)
        losses, _ = self.engine.evaluate(w, problem.x, problem.y, index)
        return tuple(float(part.mean()) for part in torch.split(losses, [len(o) for o in owned]))

    def _ended(self, state: State) -> State:
        plan, record = self.plan, state.record
        ended = None
        if state.diverged:
            ended = f"diverged at iteration {state.iteration}"
        elif record and _reached(record.accuracy, plan.stop_accuracy):
            ended = f"accuracy {plan.stop_accuracy:g} reached at iteration {state.iteration}"
        elif record and _reached(_negative(record.loss), _negative(plan.stop_loss)):
            ended = f"loss {plan.stop_loss:g} reached at iteration {state.iteration}"
        elif state.iteration >= plan.iterations:
            ended = "finished"
        elif _reached(state.seconds, plan.stop_seconds):
            ended = f"{plan.stop_seconds:g} seconds are over at iteration {state.iteration}"
        return replace(state, ended=ended)

    def _evaluated(self, held: Indexes) -> Tensor:
        """The training samples the loss is taken over: all that workers hold, or a fixed sample."""
        if 0 < self.plan.samples < len(held):
            rng = np.random.default_rng([self.plan.seed, SAMPLE])
            held = np.sort(rng.choice(held, self.plan.samples, replace=False))
        return torch.from_numpy(held).to(self.plan.problem.device)


def _reached(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value >= target


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _finite(vectors: Vectors) -> bool:
    return all(bool(vector.isfinite().all()) for vector in vectors.values())
