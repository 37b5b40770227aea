"""A worker's mini-batch, and a local iteration on it as one recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fednag.compute.recording import Recording
from fednag.core.algorithm import Algorithm, Grad, Step
from fednag.core.loop import Scheme
from fednag.core.vectors import Vector, Vectors
from fednag.problems.checks import (
    SEED,
    Checked,
    Function,
    Given,
    moved,
    noisy,
    other_index,
    plainly,
    selected,
    widened,
)
from fednag.problems.problem import Problem

NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


class Carried:
    """What n stacked workers carry from one iteration to the next: their buffers, (n, k).

    And the recording of their step: found once, as all iterations of a round are alike.
    """

    def __init__(self, rows: Vector) -> None:
        self.rows = rows
        self.alike: Any = None  # what must be the same for the recording to be the same
        self.recording: Recording | None = None
        self.results: list[str] = []
        self.scalars: list[Tensor] = []


class MiniBatch:
    """The gradient of n stacked workers on one batch each; samples are fetched at first use.

    The first gradient of an iteration moves the workers' buffers on; others leave them alone.
    """

    def __init__(
        self,
        problem: Problem,
        index: Tensor,
        weight: Tensor,
        carried: Carried,
        padded: bool = False,
    ) -> None:
        self.problem, self.index, self.weight, self.carried = problem, index, weight, carried
        self.padded = padded
        self._moved = False

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        return self.problem.batch(self.problem.x, self.problem.y, self.index)

    def __call__(self, w: Vector) -> Vector:
        gradient, after = self.problem.gradients(
            stacked(w, len(self.index)).contiguous(),
            self.carried.rows,
            *self.samples,
            self.weight,
            padded=self.padded,
        )
        self.move(after)
        return gradient

    def move(self, after: Vector) -> None:
        if not self._moved:
            self.carried.rows, self._moved = after, True


def stacked(vector: Vector, workers: int) -> Vector:
    """A row for each worker; what is the same for all is not copied."""
    return vector if vector.dim() == 2 else vector.unsqueeze(0).expand(workers, -1)


class RecordedStep:
    """``algorithm.step`` from fetching the samples to the new vectors, recorded and replayed.

    For elementwise algorithms alone: a recording knows no branches on values.
    """

    def __init__(self, algorithm: Algorithm, problem: Problem) -> None:
        self.algorithm, self.problem = algorithm, problem
        self._works = algorithm.elementwise
        self._recorded: dict[tuple[tuple[str, ...], ...], tuple[Checked, list[str]]] = {}

    def with_numbers(self, numbers: Mapping[str, float]) -> Step:
        """The step with these of the algorithm's numbers changed.

        They are inputs of the recording, so that other numbers need no other recording.
        """
        if not numbers:
            return self
        return partial(self.__call__, numbers=numbers)

    def __call__(
        self,
        local: Vectors,
        grad: Grad,
        sent: Vectors,
        mine: Vectors,
        numbers: Mapping[str, float] = NO_NUMBERS,
    ) -> Vectors:
        gradients = self.problem.gradients
        if self._works and gradients.plain is None and isinstance(grad, MiniBatch):
            workers = len(grad.index)
            if not (workers > 1 and gradients.alone):
                # A worker begins with what all were sent, and goes on with what is its own: with
                # one layout in memory there is one recording.
                begins = grad.carried.recording is None
                if begins or not all(vector.is_contiguous() for vector in local.values()):
                    local = local.map(lambda vector: stacked(vector, workers).contiguous())
                found = self._replayed(local, grad, sent, mine, numbers)
                if found is not None:
                    return found
        return replaced(self.algorithm, numbers).step(local, grad, sent, mine)

    def _replayed(
        self,
        local: Vectors,
        batch: MiniBatch,
        sent: Vectors,
        mine: Vectors,
        numbers: Mapping[str, float],
    ) -> Vectors | None:
        carried, problem = batch.carried, self.problem
        alike = [(name, vector.shape) for name, vector in local.items()]
        known = carried.recording is not None and carried.alike == alike
        if not known:
            carried.scalars = [
                torch.tensor(float(number), dtype=torch.float64) for number in numbers.values()
            ]
        given = (
            batch.index, batch.weight, carried.rows, problem.x, problem.y,
            *local.values(), *sent.values(), *mine.values(), *carried.scalars,
        )  # fmt: skip
        if not known:
            names = tuple(local), tuple(sent), tuple(mine), tuple(numbers)
            if names not in self._recorded:
                self._recorded[names] = self._checked(*names)
            recorded, carried.results = self._recorded[names]
            due = problem.gradients.due
            carried.recording = recorded.attempt(given, due, batch.padded, self._record_no_more)
            carried.alike = alike
        if carried.recording is None:
            return None
        *found, after = carried.recording(*given)
        batch.move(after)
        return Vectors(**dict(zip(carried.results, found, strict=True)))

    def _record_no_more(self, _: str) -> None:
        """Its gradients alone are recorded next, which tells what is wrong with the model.

        What is wrong with the algorithm, it raises when it is called as it is.
        """
        self._works = False

    def _checked(
        self,
        local: tuple[str, ...],
        sent: tuple[str, ...],
        mine: tuple[str, ...],
        numbers: tuple[str, ...],
    ) -> tuple[Checked, list[str]]:
        """The step for vectors of these names, and the names of what it gives."""
        results: list[str] = []
        bags = local, sent, mine

        def with_numbers(flat: Sequence[Vector]) -> tuple[Algorithm, Sequence[Vector]]:
            """The rules with the numbers that are among the inputs, and the other inputs."""
            if not numbers:
                return self.algorithm, flat
            values = dict(zip(numbers, flat[-len(numbers) :], strict=True))
            return replaced(self.algorithm, values), flat[: -len(numbers)]

        def of(problem: Problem) -> Callable[..., list[Tensor]]:
            def step(
                index: Tensor, weight: Tensor, b: Tensor, x: Tensor, y: Tensor, *flat: Vector
            ) -> list[Tensor]:
                features, targets = problem.batch(x, y, index)
                after = b

                def grad(w: Vector) -> Vector:
                    nonlocal after
                    rows = stacked(w, len(index))
                    found, gone_on = problem.differentiable(rows, after, features, targets, weight)
                    after = gone_on if after is b else after
                    return found

                rules, vectors = with_numbers(flat)
                found = rules.step(*_bags(bags, vectors, grad))
                results[:] = found
                return [*found.values(), after]

            return step

        def expected(problem: Problem, given: Given, rows: slice) -> list[Tensor]:
            """Worker by worker, the gradients those of the user's own module."""
            index, weight, b, x, y, *flat = given
            x, y = problem.batch(x, y, index)
            rules, vectors = with_numbers(flat)
            found: list[list[Tensor]] = []
            for row in range(*rows.indices(len(index))):
                one = slice(row, row + 1)
                after: list[Tensor] = []

                def grad(w: Vector, one: slice = one, after: list[Tensor] = after) -> Vector:
                    held = after[0] if after else b[one]
                    slope, gone_on = plainly(
                        problem, stacked(w, 1), held, x[one], y[one], weight[one]
                    )
                    after.append(gone_on)
                    return slope

                alone = [vector[one] if vector.dim() == 2 else vector for vector in vectors]
                made = rules.step(*_bags(bags, alone, grad))
                found.append([*made.values(), after[0] if after else b[one]])
            return [torch.cat([stacked(v, 1) for v in parts]) for parts in zip(*found, strict=True)]

        def before(given: Given) -> list[Tensor | None]:
            held = dict(zip(local, given[5:], strict=False))
            return [*(held.get(name) for name in results), None]

        def made_up(given: Given) -> Given:
            index, weight, b, x, y, *flat = given
            draw = torch.Generator().manual_seed(SEED)
            others = [noisy(vector, draw) for vector in flat]
            return (other_index(index, len(x)), weight, b.clone(), x, y, *others)

        def wide(given: Given) -> Given:
            index, weight, b, x, y, *flat = given
            index, x, y = selected(index, x, y)
            return (index, widened(weight), widened(b), x, y, *(widened(v) for v in flat))

        def elsewhere(given: Given) -> Given:
            return (*given[:5], *(moved(vector) for vector in given[5:]))

        function = Function(
            name="step",
            of=of,
            made_up=made_up,
            moved=elsewhere,
            expected=expected,
            widened=wide,
            before=before,
        )
        return Checked(self.problem, function), results


def recorded_steps(scheme: Scheme, problem: Problem) -> list[RecordedStep]:
    """Of each of a scheme's stages; what was recorded while it was timed serves the run too."""
    if problem.steps is None or problem.steps[0] is not scheme:
        problem.steps = scheme, [RecordedStep(stage, problem) for stage in scheme.stages]
    found: list[RecordedStep] = problem.steps[1]
    return found


def replaced(algorithm: Algorithm, numbers: Mapping[str, Any]) -> Algorithm:
    """The algorithm with some of its numbers changed."""
    return replace(algorithm, **numbers) if numbers else algorithm  # type: ignore[type-var]


def _bags(
    names: tuple[tuple[str, ...], ...], flat: Any, grad: Grad
) -> tuple[Vectors, Grad, Vectors, Vectors]:
    vectors = iter(flat)
    local, sent, mine = (Vectors(**{name: next(vectors) for name in each}) for each in names)
    return local, grad, sent, mine
