"""Runs the workers' halves of rounds: chunks of stacked workers, spread over threads.

Sums are taken in worker order whatever finishes first, so a run repeats bit for bit; only ``chunk``
may change it, and only by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednag.compute.randomness import private_randomness
from fednag.compute.threads import ThreadPool
from fednag.core.algorithm import BUFFERS, Algorithm, Grad, local_round
from fednag.core.vectors import Vector, Vectors
from fednag.problems.problem import Problem
from fednag.simulate.schedule import EAGER, Indexes, Schedule
from fednag.simulate.steps import Carried, MiniBatch, RecordedStep, stacked

Mask = NDArray[np.bool_]

EVALUATION_BLOCK = 500  # samples a task; fixed, so that results do not depend on threads
GRADIENT_BLOCK = 256  # samples of each worker a task takes at a time for a full gradient


@dataclass(frozen=True, eq=False)
class Gathered:
    """What came up from some workers: sums weighted by data size, later their mean.

    Updates that are not finite would spoil everyone's, so they are left out.
    """

    vectors: Vectors
    size: int  # samples of the workers that are in it
    refused: tuple[int, ...]  # the workers that are not
    missed: tuple[int, ...] = ()  # the workers that did not answer
    travelled: tuple[int, int] | None = None  # bytes (down, up), where they were counted

    def __add__(self, other: Gathered) -> Gathered:
        vectors = self.vectors.map_with(other.vectors, torch.add)
        return Gathered(vectors, self.size + other.size, self.refused + other.refused)

    def after(self, before: Gathered) -> Gathered:
        """The same, with what was noticed in the exchange before it."""
        refused, missed = before.refused + self.refused, before.missed + self.missed
        travelled = None
        if self.travelled and before.travelled:
            down, up = (a + b for a, b in zip(before.travelled, self.travelled, strict=True))
            travelled = down, up
        return replace(self, refused=refused, missed=missed, travelled=travelled)


def mean_of(parts: Iterator[Gathered], dtype: torch.dtype) -> Gathered:
    """The weighted mean of sums, taken in the order they come."""
    total = next(parts)
    for part in parts:
        total = total + part
    size = max(total.size, 1)
    mean = total.vectors.map(lambda vector: (vector / size).to(dtype))
    return Gathered(mean, total.size, total.refused)


def is_checked(number: int) -> bool:
    """Whether round ``number`` is one in which recordings are compared with the module again.

    Rounds 1, 4, 16, 64 and so on: early, where training moves the weights most, then seldom.
    """
    return number > 0 and number & (number - 1) == 0 and number % 3 == 1


class Engine:
    """Computes rounds of ``algorithm`` for workers who own the samples in ``owned``."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        owned: Sequence[Indexes],
        schedule: Schedule,
        *,
        chunk: int,
        threads: int,
    ) -> None:
        self.problem, self.algorithm, self.schedule = problem, algorithm, schedule
        self.owned = owned
        self.chunk = chunk
        self.memories = Memories.fresh(first_memory(algorithm, problem), len(owned))
        # The mean over many workers keeps more digits than the vectors themselves.
        self._wide = torch.float32 if problem.device.type == "mps" else torch.float64
        self._step = RecordedStep(algorithm, problem)
        # Random draws are keyed by worker, and there is one generator for all threads.
        self._pool = ThreadPool(1 if problem.gradients.plain else threads)
        self._sums = None if problem.shares is None else self._sums_of_shares(problem.shares)

    def __enter__(self) -> Engine:
        self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def probe(self, server: Vectors, workers: Indexes, number: int = 0) -> Gathered:
        """The mean full gradient ``g`` at the server's ``w`` over these workers."""

        def task(group: Indexes) -> Gathered:
            with self._draws(group, number, of_probe=1):
                carried = Carried(self._buffers(server, self.memories.read(group), len(group)))
                up = Vectors(g=self._full(group, carried)(stacked(server.w, len(group))))
            return self._weighted(up, group, self._finite(group, up))

        parts = self._pool.ordered(task, self._groups(workers))
        return mean_of(parts, self.problem.dtype)

    def round(
        self, server: Vectors, workers: Indexes, starts: Indexes, steps: int, number: int
    ) -> Gathered:
        """The mean of what ``workers`` return after ``steps`` iterations each.

        ``starts`` holds, for every worker of the run, the iterations it has done before. A worker
        whose update is refused keeps the memory it had.
        """
        if is_checked(number):
            self.problem.check_again()
        sent = server.pick(self.algorithm.down)

        def task(group: Indexes) -> Gathered:
            with self._draws(group, number):
                # A worker's rules always see a row for each worker, also of what was sent.
                rows = sent.map(lambda vector: stacked(vector, len(group)))
                mine = self.memories.read(group)
                carried = Carried(self._buffers(server, mine, len(group)))
                grads = self._grads(group, starts, steps, carried)
                full = self._full(group, carried)
                rules = mine.without(BUFFERS)
                up, kept = local_round(self.algorithm, rows, rules, grads, full, self._step)
            if BUFFERS in server:
                up = up.but(**{BUFFERS: carried.rows})
            if BUFFERS in mine:
                kept = kept.but(**{BUFFERS: carried.rows})
            finite = self._finite(group, up, kept)
            self.memories.write(group, kept, finite)
            return self._weighted(up, group, finite)

        parts = self._pool.ordered(task, self._groups(workers))
        return mean_of(parts, self.problem.dtype)

    def verify(self, server: Vectors, starts: Indexes) -> None:
        """Compare the recorded step with the module once more, at the weights of the end."""
        self.problem.check_again()
        group = self._groups(np.arange(len(self.owned)))[0]
        with self._draws(group, 0):
            mine = self.memories.read(group)
            carried = Carried(self._buffers(server, mine, len(group)))
            sent = server.pick(self.algorithm.down).map(lambda v: stacked(v, len(group)))
            rules = mine.without(BUFFERS)
            grad = next(iter(self._grads(group, starts, 1, carried)))
            self._step(self.algorithm.begin(sent, rules), grad, sent, rules)

    def evaluate(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and hit (1 or 0) of each sample in ``index``, at ``w`` and the buffers ``b``."""

        def task(block: Tensor) -> tuple[Tensor, Tensor]:
            return self.problem.evaluate(w, b, x, y, block)

        parts = list(self._pool.ordered(task, self.blocks(index)))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def outputs(self, w: Vector, b: Vector, x: Tensor, index: Tensor) -> Any:
        """What the model gives for each sample in ``index``, at ``w`` and the buffers ``b``."""

        def task(block: Tensor) -> Any:
            return self.problem.outputs(w, b, x, block)

        return _joined(list(self._pool.ordered(task, self.blocks(index))))

    def blocks(self, index: Tensor) -> tuple[Tensor, ...]:
        """Samples that are evaluated at a time: all, where they depend on each other."""
        width = len(index) if self.problem.facts.mixes_settled else EVALUATION_BLOCK
        return torch.split(index, max(width, 1))

    def _draws(
        self, group: Indexes, number: int, of_probe: int = 0
    ) -> AbstractContextManager[None]:
        """Random draws of the group's models, keyed by round and worker."""
        if self.problem.gradients.plain is None:
            return nullcontext()
        named = int(self.schedule.numbers[group[0]])
        stream = (of_probe,) if of_probe else ()
        return private_randomness(_key(self.schedule.seed, EAGER, number, named, *stream))

    def _buffers(self, server: Vectors, mine: Vectors, workers: int) -> Vector:
        """The buffers workers begin with: the server's, their own, or the model's first."""
        if BUFFERS in mine:
            return mine[BUFFERS]
        first = server.get(BUFFERS, self.problem.initial_buffers)
        return stacked(first, workers).contiguous()

    def _groups(self, workers: Indexes) -> list[Indexes]:
        chunk = 1 if self.problem.gradients.plain else self.chunk
        if not self.problem.batchwise:
            return [workers[i : i + chunk] for i in range(0, len(workers), chunk)]
        groups: list[list[int]] = []  # batches of other widths cannot be stacked without padding
        for worker in workers.tolist():
            last = groups[-1] if groups else []
            if last and len(last) < chunk and self._width(last[0]) == self._width(worker):
                last.append(worker)
            else:
                groups.append([worker])
        return [np.asarray(group, dtype=np.int64) for group in groups]

    def _width(self, worker: int) -> int:
        size = int(self.schedule.sizes[worker])
        return min(self.schedule.batch, size) if self.schedule.batch else size

    def _finite(self, group: Indexes, *bags: Vectors) -> Mask:
        """For each worker of a group, whether all its vectors are finite."""
        found = np.ones(len(group), dtype=bool)
        for vector in (vector for bag in bags for vector in bag.values()):
            # Most are: looking at all workers at once is the faster way to see it.
            if not bool(vector.isfinite().all()):
                found &= vector.isfinite().all(-1).cpu().numpy()
        return found

    def _weighted(self, up: Vectors, group: Indexes, finite: Mask) -> Gathered:
        """The sum of D_i times each worker's vectors, for those that are finite."""
        held = self.schedule.sizes[group][finite]
        sizes = self._tensor(held).to(self._wide)

        def total(vector: Vector) -> Vector:
            rows = vector.expand(len(group), vector.shape[-1])
            return sizes @ _rows(rows, finite).to(self._wide)

        sums = up.map(total)
        return Gathered(sums, int(held.sum()), tuple(int(i) for i in group[~finite]))

    def _grads(
        self, group: Indexes, starts: Indexes, steps: int, carried: Carried
    ) -> Iterator[Grad]:
        """Each iteration's mini-batch gradient; a batch is gathered when its turn comes."""
        if not self.schedule.batch:
            for _ in range(steps):
                yield self._full(group, carried, moves=True)
            return
        drawn = [self.schedule.batches(int(i), int(starts[i]), steps) for i in group]
        width = max(positions.shape[1] for positions in drawn)
        width = width if self.problem.batchwise else self.schedule.width
        index = np.zeros((steps, len(group), width), dtype=np.int64)
        weight = np.zeros((len(group), width))
        for row, (worker, positions) in enumerate(zip(group, drawn, strict=True)):
            used = positions.shape[1]
            index[:, row, :used] = self.owned[worker][positions]
            index[:, row, used:] = self.owned[worker][0]
            weight[row, :used] = 1 / used
        weights = self._tensor(weight).to(self.problem.dtype)
        padded = any(positions.shape[1] < width for positions in drawn)
        for rows in self._tensor(index):
            yield MiniBatch(self.problem, rows, self._shared(rows, weights), carried, padded)

    def _shared(self, index: Tensor, weight: Tensor) -> Tensor:
        """Weights of samples that have different shares in a mean: 1 over the batch's shares."""
        if self.problem.shares is None:
            return weight
        used = weight != 0
        total = (self.problem.shares[index] * used).sum(1, keepdim=True)
        # A batch of ignored samples moves nothing, as in torch.
        return torch.where(total > 0, used / total, torch.zeros_like(total)).to(weight)

    def _full(self, group: Indexes, carried: Carried, moves: bool = False) -> Grad:
        """The gradient over all the data of each worker, block by block where that is the same.

        With ``moves``, it is the gradient of an iteration, and the workers' buffers move on.
        """
        sizes = self.schedule.sizes[group]
        whole = self.problem.batchwise
        width = int(sizes.max()) if whole else min(GRADIENT_BLOCK, int(sizes.max()))
        moved = not moves

        def full(w: Vector) -> Vector:
            nonlocal moved
            w = stacked(w, len(group)).contiguous()
            if whole and len(set(sizes.tolist())) > 1:
                return self._one_by_one(group, carried, w)
            total = torch.zeros((), device=self.problem.device, dtype=self._wide)
            for first in range(0, int(sizes.max()), width):
                index = np.empty((len(group), width), dtype=np.int64)
                weight = np.zeros((len(group), width))
                for row, worker in enumerate(group):
                    block = self.owned[worker][first : first + width]
                    index[row, : len(block)], index[row, len(block) :] = (
                        block,
                        self.owned[worker][0],
                    )
                    total_share = self._total(int(worker))
                    weight[row, : len(block)] = 1 / total_share if total_share else 0.0
                weights = self._tensor(weight).to(self.problem.dtype)
                padded = int(sizes.min()) < first + width
                batch = MiniBatch(
                    self.problem, self._tensor(index), weights, Carried(carried.rows), padded
                )
                total = total + batch(w).to(self._wide)
                if not moved and first + width >= int(sizes.max()):
                    carried.rows, moved = batch.carried.rows, True
            return total.to(self.problem.dtype)

        return full

    def _one_by_one(self, group: Indexes, carried: Carried, w: Vector) -> Vector:
        """Full gradients of workers who cannot be stacked, for they hold different numbers."""
        found = []
        for row in range(len(group)):
            own = Carried(carried.rows[row : row + 1])
            found.append(self._full(group[row : row + 1], own)(w[row : row + 1]))
        return torch.cat(found)

    def _total(self, worker: int) -> float:
        """What a worker's sum of losses is divided by."""
        return float(self.schedule.sizes[worker] if self._sums is None else self._sums[worker])

    def _sums_of_shares(self, shares: Tensor) -> NDArray[np.float64]:
        held = shares.cpu().numpy()
        return np.array([held[mine].sum() for mine in self.owned])

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.problem.device)


def first_state(algorithm: Algorithm, problem: Problem) -> Vectors:
    """The server's state before the first round, with the model's buffers if they travel."""
    server = algorithm.init(problem.initial)
    if problem.batch_norm == "averaged" and len(problem.buffers):
        return server.but(**{BUFFERS: problem.initial_buffers})
    return server


def first_memory(algorithm: Algorithm, problem: Problem) -> Vectors:
    """What a worker keeps between rounds, before its first."""
    first = algorithm.memory(problem.initial)
    if problem.batch_norm == "local" and len(problem.buffers):
        return first.but(**{BUFFERS: problem.initial_buffers})
    return first


class Memories:
    """What workers keep between rounds, a row each; takes no room where they keep nothing."""

    def __init__(self, rows: Vectors) -> None:
        self.rows = rows

    @classmethod
    def fresh(cls, first: Vectors, workers: int) -> Memories:
        return cls(first.map(lambda vector: vector.repeat(workers, 1)))

    def read(self, group: Indexes) -> Vectors:
        return self.rows.map(lambda rows: rows[torch.from_numpy(group).to(rows.device)])

    def write(self, group: Indexes, kept: Vectors, finite: Mask) -> None:
        for name, rows in self.rows.items():
            where = torch.from_numpy(group[finite]).to(rows.device)
            rows[where] = _rows(kept[name].expand(len(group), rows.shape[-1]), finite)


def _rows(vector: Vector, wanted: Mask) -> Vector:
    return vector if wanted.all() else vector[torch.from_numpy(wanted).to(vector.device)]


def _joined(parts: list[Any]) -> Any:
    """Outputs of blocks as that of all samples: tensors, or tuples, lists and tables of them."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(_joined([part[i] for part in parts]) for i in range(len(first)))
    return first


def _key(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
