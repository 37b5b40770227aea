"""How many workers to stack per task, and on how many threads and cores: found by timing.

Stacking saves overhead, which is most of a small model's time; stacked convolutions become grouped
ones, which are slower. What is best depends on the model, the batch and the machine. Threads are
as many as there are cores; a model so large that two tasks at a time get in each other's way is
computed one task at a time, by torch's own parallel kernels on all cores.

Timing takes a small part of what the run will take, and less than a second of all but long runs: a
step of the plain module says how long that is. What there is no time for is decided by a rule.

Chunks are compared in processor time, not by the clock on the wall: other processes take the
processor away, but that does not count. First a task of each chunk is timed alone, and most are out
of the running at once. Those that are left take turns at rounds of the run's own workers on all
threads, which share caches and memory as a task alone does not; the best of many turns counts. Only
whether fewer threads, with more workers stacked or more cores a task, beat all of them is asked of
the wall clock, since threads wait for each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np
import torch
from torch import Tensor, nn

from fednag.compute.randomness import private_randomness
from fednag.compute.threads import one_thread
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Scheme
from fednag.data.partition import sizes_of
from fednag.problems.checks import plainly
from fednag.problems.problem import Problem
from fednag.simulate.engine import GRADIENT_BLOCK, Engine, first_state

MOST_STACKED = 64  # larger stacks fall out of the processor's caches
STACKED_NUMBERS = 1 << 20  # weights in a stack that nobody timed
MOST_WORKERS = 256  # in a timed round; more would only repeat it
MOST_STEPS = 20  # iterations of a timed round; fewer where workers, one by one, took longer than
MOMENT = 0.5  # seconds; fewer still, and what a round costs besides would hide what a step costs
MOMENTS = 8  # such rounds at least fit into the time there is
BATCHES_HELD = 4  # a worker's data in a timed round: full gradients would take long over more
MOST_TURNS = 200  # of every chunk that is left, if as many fit into the time there is
SHARE = 0.03  # of what a plain loop takes for a run may go into making it faster,
MOST_SECONDS = 0.9  # but no more than this;
LONG_SHARE, MOST_OF_LONG = 0.02, 8.0  # of long runs somewhat more
LEAST_SECONDS = 0.15  # it is no use to begin with less
FAIR_TURNS = 8  # after these, a chunk that is clearly slower takes no more
NEARLY = 1.05  # times slower: as good, and the smaller chunk is taken
CLEARLY = 1.15  # times slower
FAR_OFF = 1.5  # times slower alone: takes no turn, and no larger chunk is tried
FAR = 1.1  # times faster must fewer threads be to be preferred to all
SLIGHTLY = 1.03  # times faster must one task on all cores be
LARGE = 0.02  # seconds of a plain step: several cores may share it
HEAVY = 8 << 20  # weights: copies for two tasks at a time fall out of the caches
STRIDE = 7919  # a prime: neighbours in a batch are far from each other

Clock = Callable[[], float]


@dataclass(frozen=True)
class Choice:
    """Workers stacked per task, threads, and what the user should know about it."""

    chunk: int
    threads: int
    inner: int = 1
    """Cores that each thread computes on."""
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
    inner: int = 1,
) -> Choice:
    """Chunk and threads for ``iterations``, in rounds of ``participants`` who do ``tau`` each.

    0 means: choose. A model that cannot be stacked, or not even recorded, runs one worker at a
    time, and a note says so; workers of a method that is not ``elementwise`` run alone too.
    """
    all_cores = cores() if problem.device.type == "cpu" else 1
    most = threads or max(1, all_cores // inner)
    width = _width(draws)
    # Models of this package can be recorded and stacked; both are compared when they are first
    # used.
    if not problem.known or problem.gradients.plain:
        if not _prepare(problem, 1, width):
            spread = all_cores if not threads and inner == 1 else 1
            return Choice(
                1,
                1,
                inner * _cores_of_plain(problem, width, spread),
                (plain_note(problem.gradients.plain),),
            )
        stacks = not (participants == 1 or chunk == 1) and scheme.algorithm.elementwise
        if stacks and not _prepare(problem, chunk or 2, width):
            chunk = -1
    alone = chunk < 0 or participants == 1 or not scheme.algorithm.elementwise
    if chunk > 0:
        return Choice(1 if alone else min(chunk, participants), most, inner)
    notes = () if chunk == 0 else (alone_note(problem.gradients.alone),)
    free = not threads and inner == 1 and most > 1  # whether a task may have several cores
    plain = _plain_seconds(problem, width)
    if alone and not (free and plain >= LARGE):
        return Choice(1, most, inner, notes)
    seconds = allowed(plain * iterations * participants / most) if iterations else MOST_SECONDS
    guess = _guess(problem, plain, participants, most)
    shares = free and plain >= LARGE
    if seconds < LEAST_SECONDS or max(plain * MOMENTS, plain * participants) > 4 * seconds:
        spread = all_cores if shares and (participants == 1 or _is_heavy(problem, width)) else 1
        return Choice(1 if alone else guess, max(1, most // spread), spread * inner, notes)
    until = time.perf_counter() + seconds
    with problem.trusted():  # a comparison would be timed too; the run makes its own
        trial = Trial(problem, scheme, owned, draws, tau, seconds / MOMENTS, inner)
        if alone:
            found = Choice(1, most, inner, notes)
        else:
            found = _chunk(trial, participants, most, guess, until)
        if shares:
            found = _shared_out(trial, found, participants, all_cores, until)
    return found


def allowed(run: float) -> float:
    """Seconds that timing may take, for a run that takes a plain loop so many on all cores."""
    return max(min(SHARE * run, MOST_SECONDS), min(LONG_SHARE * run, MOST_OF_LONG))


def _chunk(trial: Trial, participants: int, most: int, guess: int, until: float) -> Choice:
    """The fastest chunk, in processor time, of those there is time for."""
    alone = _alone(trial, sizes(participants, most), guess, until)
    # All threads have work as long as there are as many tasks.
    shared = {size for size in alone if size <= ceil(participants / most)}
    fewer = set(_near(alone, alone.keys(), FAR_OFF)) - shared
    kinds = [_near(alone, kind, FAR_OFF) for kind in (shared, fewer) if kind]
    if kinds == [[only := kinds[0][0]]]:
        return Choice(only, most, trial.inner, seconds=alone)
    turns = _in_turns(trial, kinds, participants, most, until)
    seconds = {size: turn.processor for size, turn in turns.items()}
    best = [min(_near(seconds, set(kind), NEARLY)) for kind in kinds]
    fastest = min(best, key=lambda size: turns[size].wall * (1 if size in shared else FAR))
    return Choice(fastest, most, trial.inner, seconds=seconds)


def _shared_out(
    trial: Trial, found: Choice, participants: int, all_cores: int, until: float
) -> Choice:
    """The choice, or one task at a time on all cores: by the wall clock, in turns."""
    workers = min(participants, 2 * all_cores * found.chunk)
    tasks = ceil(workers / found.chunk)
    settings = [(min(found.threads, tasks), 1), (1, all_cores)]
    best = dict.fromkeys(settings, inf)
    for turn in range(MOST_TURNS):
        if turn and time.perf_counter() > until:
            break
        for threads, inner in settings:
            took = trial.round(found.chunk, workers, threads, inner).wall
            best[threads, inner] = min(best[threads, inner], took)
    apart, together = (best[setting] for setting in settings)
    seconds = found.seconds or {found.chunk: apart}
    if together * SLIGHTLY < apart:
        return replace(found, threads=1, inner=all_cores, seconds=seconds)
    return replace(found, seconds=seconds)


def _plain_seconds(problem: Problem, width: int, clock: Clock | None = None) -> float:
    """What a step of the plain module takes at best, in processor time."""
    index, weight = _batches(problem, 1, width)
    x, y = problem.batch(problem.x, problem.y, index)
    clock, best = clock or _clock_of(problem), inf
    for _ in range(3):
        began = clock()
        with private_randomness():
            plainly(problem, problem.initial[None], problem.initial_buffers[None], x, y, weight)
        best = min(best, clock() - began)
        if best > LARGE:
            break
    return best


def _cores_of_plain(problem: Problem, width: int, most: int) -> int:
    """On how many cores the plain loop takes a step: on all, where that is clearly faster."""
    if most == 1 or _plain_seconds(problem, width) < LARGE:
        return 1
    seconds = {}
    for used in (1, most):
        torch.set_num_threads(used)
        took = [_plain_seconds(problem, width, time.perf_counter) for _ in range(2)]
        seconds[used] = min(took)
    torch.set_num_threads(1)
    return most if FAR * seconds[most] < seconds[1] else 1


def _guess(problem: Problem, plain: float, participants: int, most: int) -> int:
    """The chunk where nobody times one: all that a thread has, of small models."""
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in problem.module.modules())
    if convolves or plain >= LARGE:
        return 1
    size = share = ceil(participants / most)
    halvings = 0
    while size > 1 and (size > MOST_STACKED or size * len(problem.initial) > STACKED_NUMBERS):
        halvings += 1
        size = ceil(share / 2**halvings)
    return size


def _is_heavy(problem: Problem, width: int) -> bool:
    """Whether a step moves weights about more than it computes with samples."""
    return len(problem.initial) > HEAVY and width <= 32


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


def _alone(trial: Trial, candidates: list[int], guess: int, until: float) -> dict[int, float]:
    """Processor time a worker's iteration takes in a task alone, for every chunk worth trying.

    Where there is no time for all, the guess is among them.
    """
    seconds: dict[int, float] = {}
    for size in candidates:
        if seconds and time.perf_counter() > until:
            if guess in seconds:
                break
            if guess != size:
                continue
        seconds[size] = min(trial.alone(size), trial.alone(size))
        if seconds[size] > FAR_OFF * min(seconds.values()):
            break
    return seconds


def _near(seconds: Mapping[int, float], among: Set[int], factor: float) -> list[int]:
    """Those that take no longer than ``factor`` times the least, smallest first."""
    least = min(seconds[size] for size in among)
    return sorted(size for size in among if seconds[size] <= factor * least)


def _in_turns(
    trial: Trial, kinds: list[list[int]], participants: int, threads: int, until: float
) -> dict[int, Turn]:
    """The best of every chunk's turns at a round; those clearly behind in their kind drop out."""
    workers = min(participants, MOST_WORKERS)
    best = {size: Turn(inf, inf) for kind in kinds for size in kind}
    for turn in range(MOST_TURNS):
        if turn and time.perf_counter() > until:
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
        moment: float = MOMENT,
        inner: int = 1,
    ) -> None:
        self.problem, self.scheme, self.batch = problem, scheme, draws.batch
        self.moment, self.inner = min(moment, MOMENT), inner
        held = BATCHES_HELD * _width(draws)
        largest = np.argsort(-sizes_of(owned), kind="stable")[:MOST_WORKERS]
        self.owned = [owned[worker][:held] for worker in largest.tolist()]
        self.server = first_state(scheme.algorithm, problem)
        self._engines: dict[tuple[int, ...], Engine] = {}
        self.most = min(tau, MOST_STEPS)
        self.step = 0.0
        # One iteration alone may be mostly what a round costs besides; many tell.
        self.step = self._timed(1, 1, 1, 1).processor
        self.step = self._timed(1, 1, 1, self.steps(1)).processor

    def alone(self, chunk: int) -> float:
        """Processor seconds of a worker's iteration when so many are stacked, on one thread."""
        return self._timed(chunk, chunk, 1, self.steps(1)).processor

    def round(self, chunk: int, workers: int, threads: int, inner: int = 0) -> Turn:
        """What a worker's iteration takes in a round of so many workers on so many threads."""
        return self._timed(chunk, workers, threads, self.steps(workers), inner)

    def steps(self, workers: int) -> int:
        """Iterations of a timed round of so many workers."""
        return max(1, min(self.most, int(self.moment / max(self.step * workers, 1e-9))))

    def _timed(self, chunk: int, workers: int, threads: int, steps: int, inner: int = 0) -> Turn:
        key = chunk, workers, threads, inner or self.inner
        known = key in self._engines
        if not known:
            self._engines[key] = self._engine(*key)
        processor_clock = _clock_of(self.problem)
        with self._engines[key] as engine:
            if not known:  # the step is recorded, then run in
                self._round(engine, workers, 1)
                if self.step * workers < self.moment:
                    self._round(engine, workers, 1)
            spent, began = processor_clock(), time.perf_counter()
            self._round(engine, workers, steps)
            processor = processor_clock() - spent
            wall = time.perf_counter() - began
        return Turn(wall / (workers * steps), processor / (workers * steps))

    def _engine(self, chunk: int, workers: int, threads: int, inner: int) -> Engine:
        owned = self.owned[:workers]
        draws = Draws(0, [len(mine) for mine in owned], self.batch)
        return Engine(
            self.problem, self.scheme, owned, draws, chunk=chunk, threads=threads, inner=inner
        )

    def _round(self, engine: Engine, workers: int, steps: int) -> None:
        starts = np.zeros(workers, dtype=np.int64)
        engine.once(self.server, np.arange(workers), starts, steps)


def _clock_of(problem: Problem) -> Clock:
    """Time this process spent computing; the wall clock where that is too coarse to be of use.

    What a GPU computes is waited for, and takes no time of the processor's.
    """
    if problem.device.type != "cpu":
        return _after_the_gpu
    exact = time.get_clock_info("process_time").resolution <= 1e-4
    return time.process_time if exact else time.perf_counter


def _after_the_gpu() -> float:
    torch.accelerator.synchronize()
    return time.perf_counter()


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
