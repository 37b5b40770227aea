"""How many workers to stack per task, found by timing a few short rounds; and how many threads.

Stacking saves overhead, which is most of a small model's time; stacked convolutions become grouped
ones, which are slower. What is best depends on the model, the batch and the machine. Threads are
as many as there are cores: evaluation uses them all, whatever training gains.

Chunks are compared in processor time, not by the clock on the wall: other processes take the
processor away, but that does not count. First a task of each chunk is timed alone, and most are out
of the running at once. Those that are left take turns at rounds of the run's own workers on all
threads, which share caches and memory as a task alone does not; the best of many turns counts. Only
whether fewer threads, with more workers stacked, beat all of them is asked of the wall clock, since
threads wait for each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np
import torch
from torch import Tensor

from fednag.compute.randomness import private_randomness
from fednag.compute.threads import one_thread
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Scheme
from fednag.data.partition import sizes_of
from fednag.problems.problem import Problem
from fednag.simulate.engine import GRADIENT_BLOCK, Engine, first_state

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
MOST_WORKERS = 256  # in a timed round; more would only repeat it
MOST_STEPS = 20  # iterations of a timed round; fewer where workers, one by one, took longer than
MOMENT = 0.5  # seconds; fewer still, and what a round costs besides would hide what a step costs
BATCHES_HELD = 4  # a worker's data in a timed round: full gradients would take long over more
FEWEST_TURNS, MOST_TURNS = 3, 200  # of every chunk that is left, and as many of them as fit in
PATIENCE, MOST_PATIENCE = 1.2, 8.0  # seconds: the more, the longer the run will take
SHARE = 0.02  # of a run's time may go into making it faster
FAIR_TURNS = 8  # after these, a chunk that is clearly slower takes no more
NEARLY = 1.05  # times slower: as good, and the smaller chunk is taken
CLEARLY = 1.15  # times slower
FAR_OFF = 1.5  # times slower alone: takes no turn, and no larger chunk is tried
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
    """For every chunk tried, the processor time a worker's iteration takes."""
    made: str = ""
    """The day it was timed, where that was in an earlier run."""


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@one_thread()
def choose(
    problem: Problem,
    scheme: Scheme,
    owned: Sequence[Indexes],
    draws: Draws,
    tau: int,
    *,
    participants: int,
    iterations: int = 0,
    chunk: int = 0,
    threads: int = 0,
) -> Choice:
    """Chunk and threads for ``iterations``, in rounds of ``participants`` who do ``tau`` each.

    0 means: choose. A model that cannot be stacked, or not even recorded, runs one worker at a
    time, and a note says so; workers of a method that is not ``elementwise`` run alone too.
    """
    most = threads or (cores() if problem.device.type == "cpu" else 1)
    width = _width(draws)
    if not _prepare(problem, 1, width):
        return Choice(1, 1, (plain_note(problem.gradients.plain),))
    if participants == 1 or chunk == 1 or not scheme.algorithm.elementwise:
        return Choice(1, most)
    if not _prepare(problem, chunk or 2, width):
        return Choice(1, most, (alone_note(problem.gradients.alone),))
    if chunk:
        return Choice(min(chunk, participants), most)
    with problem.trusted():  # a comparison would be timed too; the run makes its own
        trial = Trial(problem, scheme, owned, draws, tau)
        alone = _alone(trial, sizes(participants, most))
        # All threads have work as long as there are as many tasks.
        shared = {size for size in alone if size <= ceil(participants / most)}
        fewer = set(_near(alone, alone.keys(), FAR_OFF)) - shared
        kinds = [_near(alone, kind, FAR_OFF) for kind in (shared, fewer) if kind]
        if kinds == [[only := kinds[0][0]]]:
            return Choice(only, most, seconds=alone)
        run = iterations * participants * min(alone.values()) / most  # seconds, about
        patience = min(max(PATIENCE, SHARE * run), MOST_PATIENCE)
        turns = _in_turns(trial, kinds, participants, most, patience)
    seconds = {size: turn.processor for size, turn in turns.items()}
    best = [min(_near(seconds, set(kind), NEARLY)) for kind in kinds]
    fastest = min(best, key=lambda size: turns[size].wall * (1 if size in shared else FAR))
    return Choice(fastest, most, seconds=seconds)


def plain_note(reason: str | None) -> str:
    return (
        f"the model is not recorded ({reason}): the plain loop trains it, one worker at a time, "
        "which is slower"
    )


def alone_note(reason: str | None) -> str:
    return f"workers are not stacked ({reason}): each is computed alone"


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
        seconds[size] = min(trial.alone(size), trial.alone(size))
        if seconds[size] > FAR_OFF * min(seconds.values()):
            break
    return seconds


def _near(seconds: Mapping[int, float], among: Set[int], factor: float) -> list[int]:
    """Those that take no longer than ``factor`` times the least, smallest first."""
    least = min(seconds[size] for size in among)
    return sorted(size for size in among if seconds[size] <= factor * least)


def _in_turns(
    trial: Trial, kinds: list[list[int]], participants: int, threads: int, patience: float
) -> dict[int, Turn]:
    """The best of every chunk's turns at a round; those clearly behind in their kind drop out."""
    workers = min(participants, MOST_WORKERS)
    best = {size: Turn(inf, inf) for kind in kinds for size in kind}
    began = time.perf_counter()
    for turn in range(MOST_TURNS):
        if turn >= FEWEST_TURNS and time.perf_counter() - began > patience:
            break
        if turn >= FAIR_TURNS:
            spent = {size: best[size].processor for size in best}
            kinds = [_near(spent, set(kind), CLEARLY) for kind in kinds]
            if sum(map(len, kinds)) == 1:
                break
        for size in (size for kind in kinds for size in kind):
            found = trial.round(size, workers, min(threads, ceil(workers / size)))
            best[size] = best[size].better(found)
    return best


@dataclass(frozen=True)
class Turn:
    """Seconds of a worker's iteration in a round."""

    wall: float
    processor: float  # of all threads together

    def better(self, other: Turn) -> Turn:
        return Turn(min(self.wall, other.wall), min(self.processor, other.processor))


class Trial:
    """Short rounds of a run's largest workers, on the first few batches of their data."""

    def __init__(
        self,
        problem: Problem,
        scheme: Scheme,
        owned: Sequence[Indexes],
        draws: Draws,
        tau: int,
    ) -> None:
        self.problem, self.scheme, self.batch = problem, scheme, draws.batch
        held = BATCHES_HELD * _width(draws)
        largest = np.argsort(-sizes_of(owned), kind="stable")[:MOST_WORKERS]
        self.owned = [owned[worker][:held] for worker in largest.tolist()]
        self.server = first_state(scheme.algorithm, problem)
        self._engines: dict[tuple[int, int, int], Engine] = {}
        self.most = min(tau, MOST_STEPS)
        # One iteration alone may be mostly what a round costs besides; many tell.
        self.step = self._timed(1, 1, 1, 1).processor
        self.step = self._timed(1, 1, 1, self.steps(1)).processor

    def alone(self, chunk: int) -> float:
        """Processor seconds of a worker's iteration when so many are stacked, on one thread."""
        return self._timed(chunk, chunk, 1, self.steps(1)).processor

    def round(self, chunk: int, workers: int, threads: int) -> Turn:
        """What a worker's iteration takes in a round of so many workers on so many threads."""
        return self._timed(chunk, workers, threads, self.steps(workers))

    def steps(self, workers: int) -> int:
        """Iterations of a timed round of so many workers."""
        return max(1, min(self.most, int(MOMENT / max(self.step * workers, 1e-9))))

    def _timed(self, chunk: int, workers: int, threads: int, steps: int) -> Turn:
        key = chunk, workers, threads
        known = key in self._engines
        if not known:
            self._engines[key] = self._engine(*key)
        processor_clock = _processor_clock()
        with self._engines[key] as engine:
            if not known:  # the step is recorded, then run in
                self._round(engine, workers, 1)
                self._round(engine, workers, 1)
            began, spent = time.perf_counter(), processor_clock()
            self._round(engine, workers, steps)
            wall, processor = time.perf_counter() - began, processor_clock() - spent
        return Turn(wall / (workers * steps), processor / (workers * steps))

    def _engine(self, chunk: int, workers: int, threads: int) -> Engine:
        owned = self.owned[:workers]
        draws = Draws(0, [len(mine) for mine in owned], self.batch)
        return Engine(self.problem, self.scheme, owned, draws, chunk=chunk, threads=threads)

    def _round(self, engine: Engine, workers: int, steps: int) -> None:
        starts = np.zeros(workers, dtype=np.int64)
        engine.once(self.server, np.arange(workers), starts, steps)


def _processor_clock() -> Clock:
    """Time this process spent computing; the wall clock where that is too coarse to be of use."""
    exact = time.get_clock_info("process_time").resolution <= 1e-4
    return time.process_time if exact else time.perf_counter


def _width(draws: Draws) -> int:
    """Samples a gradient takes at a time."""
    return draws.width if draws.batch else min(draws.width, GRADIENT_BLOCK)


def _prepare(problem: Problem, workers: int, width: int) -> bool:
    index, weight = _batches(problem, workers, width)
    x, y = problem.batch(problem.x, problem.y, index)
    w, b = problem.initial.expand(workers, -1), problem.initial_buffers.expand(workers, -1)
    # Models of this package can be recorded; their steps are compared when they are first used.
    checks = problem.trusted() if problem.known else nullcontext()
    with private_randomness(), checks:
        return problem.gradients.prepare(w.contiguous(), b.contiguous(), x, y, weight)


def _batches(problem: Problem, workers: int, width: int) -> tuple[Tensor, Tensor]:
    """Batches of this shape, of samples that do not follow each other in memory."""
    index = torch.arange(workers * width, device=problem.device) * STRIDE % len(problem.x)
    weight = torch.full((workers, width), 1 / width, dtype=problem.dtype, device=problem.device)
    return index.view(workers, width), weight
