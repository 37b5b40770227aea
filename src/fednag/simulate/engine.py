"""Runs the workers' halves of rounds: chunks of stacked workers, spread over threads.

Sums are taken in worker order whatever finishes first, so a run repeats bit for bit; only ``chunk``
may change it, and only by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednag.algorithm import Algorithm, Grad, local_round
from fednag.problems.problem import Problem
from fednag.simulate.schedule import EAGER, Indexes, Schedule
from fednag.simulate.steps import MiniBatch, RecordedStep
from fednag.simulate.threads import Workforce
from fednag.vectors import Vector, Vectors

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
        self.memories = Memories.fresh(algorithm.memory(problem.initial), len(owned))
        # The mean over many workers keeps more digits than the vectors themselves.
        self._wide = torch.float32 if problem.device.type == "mps" else torch.float64
        self._step = RecordedStep(algorithm, problem)
        self._workforce = Workforce(threads)

    def __enter__(self) -> Engine:
        self._workforce.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._workforce.__exit__()

    def probe(self, w: Vector, workers: Indexes) -> Gathered:
        """The mean full gradient ``g`` at ``w`` over these workers."""

        def task(group: Indexes) -> Gathered:
            up = Vectors(g=self._full(group)(w))
            return self._weighted(up, group, self._finite(group, up))

        parts = self._workforce.ordered(task, self._groups(workers))
        return mean_of(parts, self.problem.dtype)

    def round(
        self, server: Vectors, workers: Indexes, starts: Indexes, steps: int, number: int
    ) -> Gathered:
        """The mean of what ``workers`` return after ``steps`` iterations each.

        ``starts`` holds, for every worker of the run, the iterations it has done before. A worker
        whose update is refused keeps the memory it had.
        """
        sent = server.pick(self.algorithm.down)

        def task(group: Indexes) -> Gathered:
            if self.problem.gradients.eager is not None:
                named = int(self.schedule.numbers[group[0]])
                torch.manual_seed(_key(self.schedule.seed, EAGER, number, named))
            grads = self._grads(group, starts, steps)
            mine = self.memories.read(group)
            up, kept = local_round(self.algorithm, sent, mine, grads, self._full(group), self._step)
            finite = self._finite(group, up, kept)
            self.memories.write(group, kept, finite)
            return self._weighted(up, group, finite)

        parts = self._workforce.ordered(task, self._groups(workers))
        return mean_of(parts, self.problem.dtype)

    def evaluate(self, w: Vector, x: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and hit (1 or 0) of each sample in ``index``, at ``w``."""

        def task(block: Tensor) -> tuple[Tensor, Tensor]:
            return self.problem.evaluate(w, x, y, block)

        parts = list(self._workforce.ordered(task, torch.split(index, EVALUATION_BLOCK)))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def outputs(self, w: Vector, x: Tensor, index: Tensor) -> Tensor:
        """What the model gives for each sample in ``index``, at ``w``."""

        def task(block: Tensor) -> Tensor:
            return self.problem.outputs(w, x, block)

        parts = self._workforce.ordered(task, torch.split(index, EVALUATION_BLOCK))
        return torch.cat(list(parts))

    def _groups(self, workers: Indexes) -> list[Indexes]:
        return [workers[i : i + self.chunk] for i in range(0, len(workers), self.chunk)]

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
        rows = (len(group), len(self.problem.initial))
        sums = up.map(lambda vector: sizes @ _rows(vector.expand(rows), finite).to(self._wide))
        return Gathered(sums, int(held.sum()), tuple(int(i) for i in group[~finite]))

    def _grads(self, group: Indexes, starts: Indexes, steps: int) -> Iterator[Grad]:
        """Each iteration's mini-batch gradient; a batch is gathered when its turn comes."""
        if not self.schedule.batch:
            yield from [self._full(group)] * steps
            return
        drawn = [self.schedule.batches(int(i), int(starts[i]), steps) for i in group]
        index = np.zeros((steps, len(group), self.schedule.width), dtype=np.int64)
        weight = np.zeros((len(group), self.schedule.width))
        for row, (worker, positions) in enumerate(zip(group, drawn, strict=True)):
            used = positions.shape[1]
            index[:, row, :used] = self.owned[worker][positions]
            index[:, row, used:] = self.owned[worker][0]
            weight[row, :used] = 1 / used
        weights = self._tensor(weight).to(self.problem.dtype)
        for rows in self._tensor(index):
            yield MiniBatch(self.problem, rows, weights)

    def _full(self, group: Indexes) -> Grad:
        """The gradient over all the data of each worker, block by block."""
        sizes = self.schedule.sizes[group]
        width = min(GRADIENT_BLOCK, int(sizes.max()))

        def full(w: Vector) -> Vector:
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
                    weight[row, : len(block)] = 1 / sizes[row]
                weights = self._tensor(weight).to(self.problem.dtype)
                batch = MiniBatch(self.problem, self._tensor(index), weights)
                total = total + batch(w).to(self._wide)
            return total.to(self.problem.dtype)

        return full

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.problem.device)


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
            rows[where] = _rows(kept[name].expand(len(group), -1), finite)


def _rows(vector: Vector, wanted: Mask) -> Vector:
    return vector if wanted.all() else vector[torch.from_numpy(wanted).to(vector.device)]


def _key(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
