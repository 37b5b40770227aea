"""How many workers to stack per task, found by timing a few short rounds; and how many threads.

Stacking saves overhead, which is most of a small model's time; stacked convolutions become grouped
ones, which are slower. What is best depends on the model, the batch and the machine. Threads are
as many as there are cores: evaluation uses them all, whatever training gains.

First a task of each chunk is timed alone, in processor time: other processes take the processor
away, but that does not count, and most chunks are out of the running at once. Those that are left
then take turns at rounds of the run's own workers on all threads, by the clock on the wall: threads
share caches and memory and wait for each other, which a task alone does not show. The best of many
turns counts, since a neighbour only ever adds to a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np
import torch
from torch import Tensor

from fednag.algorithm import Algorithm
from fednag.problems.problem import Problem
from fednag.simulate.engine import GRADIENT_BLOCK, Engine
from fednag.simulate.schedule import Indexes, Schedule

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
MOST_WORKERS = 256  # in a timed round; more would only repeat it
MOST_STEPS = 20  # iterations of a timed round; fewer of those that take a worker longer than
MOMENT = 0.02  # seconds
BATCHES_HELD = 4  # a worker's data in a timed round: full gradients would take long over more
FEWEST_TURNS, MOST_TURNS = 2, 24  # of every chunk that is left, and as many of them as fit in
PATIENCE = 1.0  # seconds
NEARLY = 1.02  # times slower: as good, and the smaller chunk is taken
CLEARLY = 1.3  # times slower: out of the running, and no larger chunk is tried
FAR = 1.1  # times faster must fewer threads be to be preferred to all
STRIDE = 7919  # a prime: neighbours in a batch are far from each other

Clock = Callable[[], float]


@dataclass(frozen=True)
class Choice:
    """Workers stacked per task, threads, and what the user should know about it."""

    chunk: int
    threads: int
    notes: tuple[str, ...] = ()
    seconds: dict[int, float] = field(default_factory=dict)
    """For every chunk that came into question, the time a worker's iteration takes."""


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
    alone = _alone(trial, sizes(participants, most))
    # All threads have work as long as there are as many tasks.
    shared = {size for size in alone if size <= ceil(participants / most)}
    left = _nearly_best(alone, shared) | _nearly_best(alone, alone.keys() - shared)
    if len(left) == 1:
        return Choice(left.pop(), most, seconds=alone)
    walls = _in_turns(trial, sorted(left), min(participants, MOST_WORKERS), most)
    seconds = {size: walls[size] * (1 if size in shared else FAR) for size in walls}
    best = min(size for size in seconds if seconds[size] <= NEARLY * min(seconds.values()))
    return Choice(best, most, seconds=walls)


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


def _alone(trial: Trial, candidates: list[int]) -> dict[int, float]:
    """Processor time a worker's iteration takes in a task alone, for every chunk worth trying."""
    seconds: dict[int, float] = {}
    for size in candidates:
        seconds[size] = trial.processor(size)
        if seconds[size] > CLEARLY * min(seconds.values()):
            seconds[size] = min(seconds[size], trial.processor(size))  # once is not enough
            if seconds[size] > CLEARLY * min(seconds.values()):
                break
    return seconds


def _nearly_best(seconds: Mapping[int, float], among: Set[int]) -> set[int]:
    if not among:
        return set()
    least = min(seconds[size] for size in among)
    return {size for size in among if seconds[size] <= CLEARLY * least}


def _in_turns(trial: Trial, chunks: list[int], workers: int, threads: int) -> dict[int, float]:
    """Seconds a worker's iteration takes in whole rounds, the best of every chunk's turns."""
    walls: dict[int, float] = dict.fromkeys(chunks, inf)
    began = time.perf_counter()
    for turn in range(MOST_TURNS):
        if turn >= FEWEST_TURNS and time.perf_counter() - began > PATIENCE:
            break
        for size in chunks:
            found = trial.wall(size, workers, min(threads, ceil(workers / size)))
            walls[size] = min(walls[size], found)
    return walls


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
