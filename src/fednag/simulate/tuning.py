"""How many workers to stack per task, found by timing a few short rounds; and how many threads.

Stacking saves overhead, which is most of a small model's time; stacked convolutions become grouped
ones, which are slower. What is best depends on the model, the batch and the machine. Threads are
as many as there are cores: evaluation uses them all, whatever training gains.

Chunks are compared by the processor time a task takes on one thread, not by the clock on the wall:
other processes take the processor away, but that does not count. Only whether one thread for all
workers beats sharing them out over several is asked of the wall clock, since threads wait for each
other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fednag.algorithm import Algorithm
from fednag.problems.problem import Problem
from fednag.simulate.engine import GRADIENT_BLOCK, Engine
from fednag.simulate.schedule import Indexes, Schedule

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
MOST_STEPS = 20  # iterations of a timed round; fewer of those that take longer than
MOMENT = 0.01  # seconds
BATCHES_HELD = 4  # a worker's data in a timed round: full gradients would take long over more
PATIENCE = 0.8  # seconds for telling good chunks from better ones, once each was tried
NEARLY = 1.02  # times slower: as good, and the smaller chunk is taken
CLEARLY = 1.3  # times slower: out of the running, and no larger chunk is tried
FAR = 1.25  # times faster must one thread be to be preferred to several
STRIDE = 7919  # a prime: neighbours in a batch are far from each other

Clock = Callable[[], float]


@dataclass(frozen=True)
class Choice:
    """Workers stacked per task, threads, and what the user should know about it."""

    chunk: int
    threads: int
    notes: tuple[str, ...] = ()
    seconds: dict[int, float] = field(default_factory=dict)
    """For every chunk tried, the processor time a worker's iteration takes."""


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(
    problem: Problem,
    algorithm: Algorithm,
    owned: Sequence[Indexes],
    schedule: Schedule,
    tau: int,
    *,
    chunk: int = 0,
    threads: int = 0,
) -> Choice:
    """Chunk and threads for the rounds of ``schedule``, ``tau`` iterations each.

    0 means: choose. A model that cannot be stacked, or not even traced, runs one worker at a time,
    and a note says so; workers of a method that is not ``elementwise`` run alone too.
    """
    most = threads or (cores() if problem.device.type == "cpu" else 1)
    participants, width = schedule.per_round, _width(schedule)
    if not _prepare(problem, 1, width):
        reason = problem.gradients.eager
        note = f"the model cannot be traced ({reason}): workers run one at a time, which is slower"
        return Choice(1, 1, (note,))
    if participants == 1 or chunk == 1 or not algorithm.elementwise:
        return Choice(1, most)
    if not _prepare(problem, chunk or 2, width):
        return Choice(1, most, ("the model cannot be stacked: each worker is computed alone",))
    if chunk:
        return Choice(min(chunk, participants), most)
    trial = Trial(problem, algorithm, owned, schedule, tau)
    seconds = _compared(trial, sizes(participants, most))
    # All threads have work as long as there are as many tasks.
    shared = [size for size in seconds if size <= ceil(participants / most)]
    fastest = min(seconds[size] for size in shared)
    best = min(size for size in shared if seconds[size] <= NEARLY * fastest)
    alone = [size for size in seconds if size not in shared]
    if alone:
        rival = min(alone, key=seconds.__getitem__)
        if _faster_alone(trial, rival, best, participants, most):
            best = rival
    return Choice(best, most, seconds=seconds)


def sizes(participants: int, threads: int) -> list[int]:
    """Chunks that share a round's workers out evenly, smallest first.

    Also over one thread alone: very small workers may be best off all together.
    """
    even = {
        ceil(ceil(participants / used) / 2**halvings)
        for used in (1, threads)
        for halvings in range(participants.bit_length() + 1)
    }
    return sorted(size for size in even if size <= MOST_STACKED)


def _compared(trial: Trial, candidates: list[int]) -> dict[int, float]:
    """Processor time a worker's iteration takes, for every chunk worth trying."""
    seconds: dict[int, float] = {}

    def measure(size: int) -> None:
        found = trial.processor(size)
        seconds[size] = min(found, seconds.get(size, found))

    for size in candidates:
        measure(size)
        if seconds[size] > CLEARLY * min(seconds.values()):
            measure(size)  # once is not enough to give up
            if seconds[size] > CLEARLY * min(seconds.values()):
                break
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE:
        close = [size for size in seconds if seconds[size] <= CLEARLY * min(seconds.values())]
        if len(close) == 1:
            break
        for size in close:
            measure(size)
    return seconds


def _faster_alone(trial: Trial, alone: int, shared: int, participants: int, threads: int) -> bool:
    """Whether few threads, with more workers stacked, take far less time than all threads do."""
    walls: dict[int, float] = {}
    began = time.perf_counter()
    while len(walls) < 2 or time.perf_counter() - began < PATIENCE / 2:
        for size in (alone, shared):
            found = trial.wall(size, participants, min(threads, ceil(participants / size)))
            walls[size] = min(found, walls.get(size, found))
    return walls[alone] * FAR < walls[shared]


class Trial:
    """Short rounds of a run's largest workers, on the first few batches of their data."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        owned: Sequence[Indexes],
        schedule: Schedule,
        tau: int,
    ) -> None:
        self.problem, self.algorithm, self.batch = problem, algorithm, schedule.batch
        held = BATCHES_HELD * _width(schedule)
        self.owned = [mine[:held] for mine in sorted(owned, key=len, reverse=True)]
        self.server = algorithm.init(problem.initial)
        self._engines: dict[tuple[int, int, int], Engine] = {}
        self.steps = 1
        spent = self.wall(1, 1, 1)
        self.steps = max(1, min(tau, MOST_STEPS, int(MOMENT / max(spent, 1e-9))))

    def processor(self, chunk: int) -> float:
        """Processor seconds of a worker's iteration when so many are stacked."""
        return self._time(chunk, chunk, 1, _processor_clock())

    def wall(self, chunk: int, workers: int, threads: int) -> float:
        """Seconds of a worker's iteration in rounds of so many workers and threads."""
        return self._time(chunk, workers, threads, time.perf_counter)

    def _time(self, chunk: int, workers: int, threads: int, clock: Clock) -> float:
        key = chunk, workers, threads
        known = key in self._engines
        if not known:
            self._engines[key] = self._engine(*key)
        with self._engines[key] as engine:
            if not known:  # the step is recorded, then run in
                self._round(engine, workers, 1)
                self._round(engine, workers, 1)
            began = clock()
            self._round(engine, workers, self.steps)
            return (clock() - began) / (workers * self.steps)

    def _engine(self, chunk: int, workers: int, threads: int) -> Engine:
        owned = self.owned[:workers]
        schedule = Schedule(0, [len(mine) for mine in owned], self.batch)
        return Engine(self.problem, self.algorithm, owned, schedule, chunk=chunk, threads=threads)

    def _round(self, engine: Engine, workers: int, steps: int) -> None:
        starts = np.zeros(workers, dtype=np.int64)
        engine.round(self.server, np.arange(workers), starts, steps, 1)


def _processor_clock() -> Clock:
    """Time this thread spent computing; the wall clock where that is too coarse to be of use."""
    exact = time.get_clock_info("thread_time").resolution <= 1e-4
    return time.thread_time if exact else time.perf_counter


def _width(schedule: Schedule) -> int:
    """Samples a gradient takes at a time."""
    return schedule.width if schedule.batch else min(schedule.width, GRADIENT_BLOCK)


def _prepare(problem: Problem, workers: int, width: int) -> bool:
    index, weight = _batches(problem, workers, width)
    x, y = problem.batch(problem.x, problem.y, index)
    return problem.gradients.prepare(problem.initial.expand(workers, -1), x, y, weight)


def _batches(problem: Problem, workers: int, width: int) -> tuple[Tensor, Tensor]:
    """Batches of this shape, of samples that do not follow each other in memory."""
    index = torch.arange(workers * width, device=problem.device) * STRIDE % len(problem.x)
    weight = torch.full((workers, width), 1 / width, dtype=problem.dtype, device=problem.device)
    return index.view(workers, width), weight
