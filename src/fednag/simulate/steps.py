"""A worker's mini-batch, and a local iteration on it as one recording."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from fednag.algorithm import Algorithm, Grad
from fednag.problems.problem import Problem
from fednag.problems.tracing import Traced
from fednag.vectors import Vector, Vectors


class MiniBatch:
    """The gradient of n stacked workers on one batch each; samples are fetched at first use."""

    def __init__(self, problem: Problem, index: Tensor, weight: Tensor) -> None:
        self.problem, self.index, self.weight = problem, index, weight

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        return self.problem.batch(self.problem.x, self.problem.y, self.index)

    def __call__(self, w: Vector) -> Vector:
        return self.problem.gradients(self.stacked(w), *self.samples, self.weight)

    def stacked(self, vector: Vector) -> Vector:
        """A row for each worker; what is the same for all is not copied."""
        return vector if vector.dim() == 2 else vector.expand(len(self.index), -1)


class RecordedStep:
    """``algorithm.step`` from fetching the samples to the new vectors, recorded and replayed.

    For elementwise algorithms alone: a recording knows no branches on values.
    """

    def __init__(self, algorithm: Algorithm, problem: Problem) -> None:
        self.algorithm, self.problem = algorithm, problem
        self._works = algorithm.elementwise and problem.gradients.eager is None
        self._recorded: dict[tuple[tuple[str, ...], ...], tuple[Traced, list[str]]] = {}

    def __call__(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        if self._works and isinstance(grad, MiniBatch):
            try:
                return self._replayed(local.map(grad.stacked), grad, sent, mine)
            except Exception:
                # Whatever an algorithm raises under tracing; what is wrong with it in earnest, it
                # raises again below.
                self._works = False
        return self.algorithm.step(local, grad, sent, mine)

    def _replayed(self, local: Vectors, batch: MiniBatch, sent: Vectors, mine: Vectors) -> Vectors:
        names = tuple(local), tuple(sent), tuple(mine)
        if names not in self._recorded:
            self._recorded[names] = self._traced(*names)
        traced, results = self._recorded[names]
        x, y = self.problem.x, self.problem.y
        vectors = (*local.values(), *sent.values(), *mine.values())
        found = traced(x, y, batch.index, batch.weight, *vectors)
        return Vectors(**dict(zip(results, found, strict=True)))

    def _traced(
        self, local: tuple[str, ...], sent: tuple[str, ...], mine: tuple[str, ...]
    ) -> tuple[Traced, list[str]]:
        """The step for vectors of these names, and the names of what it gives."""
        results: list[str] = []

        def step(
            x: Tensor, y: Tensor, index: Tensor, weight: Tensor, *flat: Vector
        ) -> list[Tensor]:
            vectors = iter(flat)
            bags = [
                Vectors(**{name: next(vectors) for name in names}) for names in (local, sent, mine)
            ]
            features, targets = self.problem.batch(x, y, index)

            def grad(w: Vector) -> Vector:
                rows = w.expand(len(index), -1)
                return self.problem.gradients.stacked(rows, features, targets, weight)

            found = self.algorithm.step(bags[0], grad, bags[1], bags[2])
            results[:] = found
            return list(found.values())

        return Traced(step), results
