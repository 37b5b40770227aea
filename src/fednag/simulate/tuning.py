"""How many workers to stack per task, found by timing a few local iterations; and how many threads.

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

from fednag.algorithm import Algorithm
from fednag.problems.problem import Problem
from fednag.simulate.steps import MiniBatch, RecordedStep
from fednag.simulate.threads import Workforce

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
STEPS, MOST_STEPS = 2, 20  # iterations in a row, as in a round; more of those that take but a
MOMENT = 0.005  # moment (in seconds), so that handing out tasks does not count
MOST_TIMES, ENOUGH = 6, 0.05  # timed twice at least; more often until so many seconds are spent
PATIENCE = 0.8  # seconds for telling good chunks from better ones, once each was tried
NEARLY = 1.02  # times slower: as good, and the smaller chunk is taken
FAR = 1.5  # times faster must one thread be to be preferred to several
CLEARLY = 1.3  # times slower: out of the running, and no larger chunk is tried
STRIDE = 7919  # a prime: neighbours in a batch are far from each other


@dataclass(frozen=True)
class Choice:
    """Workers stacked per task, threads, and what the user should know about it."""

    chunk: int
    threads: int
    notes: tuple[str, ...] = ()
    seconds: dict[int, float] = field(default_factory=dict)
    """For every chunk tried, the seconds a worker's iteration takes."""


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(
    problem: Problem,
    algorithm: Algorithm,
    participants: int,
    width: int,
    *,
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
    if participants == 1 or chunk == 1 or not algorithm.elementwise:
        return Choice(1, most)
    if not _prepare(problem, chunk or 2, width):
        return Choice(1, most, ("the model cannot be stacked: each worker is computed alone",))
    if chunk:
        return Choice(min(chunk, participants), most)
    seconds: dict[int, float] = {}
    iteration = Iteration(problem, algorithm)

    def measure(size: int) -> None:
        found = time_per_worker(iteration, size, width, min(most, ceil(participants / size)))
        seconds[size] = min(found, seconds.get(size, found))

    for size in sizes(participants, most):
        measure(size)
        if seconds[size] > CLEARLY * min(seconds.values()):
            break
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE:
        close = [size for size in seconds if seconds[size] <= CLEARLY * min(seconds.values())]
        if len(close) == 1:
            break
        for size in close:
            measure(size)
    # Drawing batches and adding up are not timed, and go faster on several threads.
    shared = [size for size in seconds if size <= ceil(participants / most)]
    fastest = min(seconds[size] for size in shared)
    if min(seconds.values()) * FAR < fastest:
        fastest = min(seconds.values())
    good = [size for size in seconds if seconds[size] <= NEARLY * fastest]
    return Choice(min(good), most, seconds=seconds)


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


class Iteration:
    """Local iterations of stacked workers, as rounds do them."""

    def __init__(self, problem: Problem, algorithm: Algorithm) -> None:
        self.problem, self.algorithm = problem, algorithm
        self.sent = algorithm.init(problem.initial).pick(algorithm.down)
        self.step = RecordedStep(algorithm, problem)

    def __call__(self, index: Tensor, weight: Tensor, steps: int) -> None:
        rows = len(index), -1
        mine = self.algorithm.memory(self.problem.initial).map(lambda v: v.expand(rows))
        local = self.algorithm.begin(self.sent, mine)
        for _ in range(steps):
            local = self.step(local, MiniBatch(self.problem, index, weight), self.sent, mine)


def time_per_worker(iteration: Iteration, chunk: int, width: int, threads: int) -> float:
    """Seconds that a worker's iteration takes when so many are stacked, and threads run."""
    index, weight = _batches(iteration.problem, chunk, width)
    steps = STEPS

    def task(_: int) -> None:
        iteration(index, weight, steps)

    times: list[float] = []
    with Workforce(threads) as workforce:
        while len(times) < 3 or (len(times) < MOST_TIMES and sum(times) < ENOUGH):
            began = time.perf_counter()
            for _ in workforce.ordered(task, range(threads)):
                pass
            spent = time.perf_counter() - began
            if len(times) == 1:  # the first is for recording, the second for warming up
                steps = min(MOST_STEPS, max(STEPS, ceil(MOMENT * STEPS / spent)))
            times.append(spent)
    return min(times[2:]) / (steps * chunk * threads)


def _prepare(problem: Problem, workers: int, width: int) -> bool:
    index, weight = _batches(problem, workers, width)
    x, y = problem.batch(problem.x, problem.y, index)
    return problem.gradients.prepare(problem.initial.expand(workers, -1), x, y, weight)


def _batches(problem: Problem, workers: int, width: int) -> tuple[Tensor, Tensor]:
    """Batches of this shape, of samples that do not follow each other in memory."""
    index = torch.arange(workers * width, device=problem.device) * STRIDE % len(problem.x)
    weight = torch.full((workers, width), 1 / width, dtype=problem.dtype, device=problem.device)
    return index.view(workers, width), weight
