"""How many workers to stack per task, found by timing a few gradients; and how many threads.

Stacking saves overhead, which is most of a small model's time; stacked convolutions become grouped
ones, which are slower. What is best depends on the model, the batch and the machine. Threads are
as many as there are cores: evaluation uses them all, whatever training gains.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from fednag.problems.problem import Problem
from fednag.simulate.steps import MiniBatch
from fednag.simulate.threads import Workforce

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
STEPS = 2  # gradients timed at once, twice; more often, up to MOST_TIMES, if they take but a moment
MOST_TIMES, MOMENT = 6, 0.05
PATIENCE = 0.6  # seconds for telling good chunks from better ones
NEARLY = 1.05  # times slower: as good, and the smaller chunk is taken
CLEARLY = 1.3  # times slower: out of the running, and no larger chunk is tried


@dataclass(frozen=True)
class Choice:
    """Workers stacked per task, threads, and what the user should know about it."""

    chunk: int
    threads: int
    notes: tuple[str, ...] = ()
    seconds: dict[int, float] = field(default_factory=dict)
    """For every chunk tried, the seconds a worker's gradient takes."""


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(
    problem: Problem,
    participants: int,
    width: int,
    *,
    elementwise: bool = True,
    chunk: int = 0,
    threads: int = 0,
) -> Choice:
    """Chunk and threads for rounds of so many participants, with batches of ``width`` samples.

    0 means: choose. A model that cannot be stacked, or not even traced, runs one worker at a time,
    and a note says so; workers of a method that is not ``elementwise`` run alone too.
    """
    most = threads or (cores() if problem.device.type == "cpu" else 1)
    if not _prepare(problem, 1, width):
        reason = problem.gradients.eager
        note = f"the model cannot be traced ({reason}): workers run one at a time, which is slower"
        return Choice(1, 1, (note,))
    if participants == 1 or chunk == 1 or not elementwise:
        return Choice(1, most)
    if not _prepare(problem, chunk or 2, width):
        return Choice(1, most, ("the model cannot be stacked: each worker is computed alone",))
    if chunk:
        return Choice(min(chunk, participants), most)
    began = time.perf_counter()
    seconds: dict[int, float] = {}

    def measure(size: int) -> None:
        found = time_per_worker(problem, size, width, min(most, ceil(participants / size)))
        seconds[size] = min(found, seconds.get(size, found))

    for size in sizes(participants, most):
        measure(size)
        if seconds[size] > CLEARLY * min(seconds.values()):
            break
    while time.perf_counter() - began < PATIENCE:
        close = [size for size in seconds if seconds[size] <= CLEARLY * min(seconds.values())]
        if len(close) == 1:
            break
        for size in close:
            measure(size)
    good = [size for size in seconds if seconds[size] <= NEARLY * min(seconds.values())]
    return Choice(min(good), most, seconds=seconds)


def sizes(participants: int, threads: int) -> list[int]:
    """Chunks that share a round's workers out evenly, smallest first."""
    largest = ceil(participants / threads)
    even = {ceil(largest / 2**halvings) for halvings in range(largest.bit_length() + 1)}
    return sorted(size for size in even if size <= MOST_STACKED)


def time_per_worker(problem: Problem, chunk: int, width: int, threads: int) -> float:
    """Seconds that a worker's gradient takes when so many are stacked, and threads run."""
    index, weight = _batches(problem, chunk, width)

    def task(_: int) -> None:
        for _ in range(STEPS):
            MiniBatch(problem, index, weight)(problem.initial)

    times: list[float] = []
    with Workforce(threads) as workforce:
        while len(times) < 2 or (len(times) < MOST_TIMES and sum(times) < MOMENT):
            began = time.perf_counter()
            for _ in workforce.ordered(task, range(threads)):
                pass
            times.append(time.perf_counter() - began)
    return min(times[1:]) / (STEPS * chunk * threads)  # the first warms up


def _prepare(problem: Problem, workers: int, width: int) -> bool:
    index, weight = _batches(problem, workers, width)
    x, y = problem.batch(problem.x, problem.y, index)
    return problem.gradients.prepare(problem.initial.expand(workers, -1), x, y, weight)


def _batches(problem: Problem, workers: int, width: int) -> tuple[Tensor, Tensor]:
    """Any batches of this shape will do."""
    index = torch.arange(workers * width, device=problem.device) % len(problem.x)
    weight = torch.full((workers, width), 1 / width, dtype=problem.dtype, device=problem.device)
    return index.view(workers, width), weight
