"""What the workers minimise, as the theory sees it: losses, full gradients, curvature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fednag.core.vectors import Vector
from fednag.errors import FednagError
from fednag.problems.losses import cross_entropy, squared_error
from fednag.problems.problem import Problem

BLOCK = 4096  # samples at a time


class Landscape(ABC):
    """The losses F_i of workers who hold D_i samples, and F, their mean weighted by D_i."""

    sizes: tuple[int, ...]
    start: Vector

    @property
    def unreached(self) -> float | None:
        """A loss that F may approach, but never has."""
        return None

    @abstractmethod
    def loss(self, w: Vector) -> float:
        """F(w)."""

    @abstractmethod
    def slope(self, worker: int, w: Vector) -> Vector:
        """The gradient of F_i at w."""

    @abstractmethod
    def bend(self, worker: int, w: Vector, u: Vector) -> Vector:
        """The Hessian of F_i at w, times u."""

    def exact_beta(self) -> float | None:
        """The largest eigenvalue of any worker's Hessian, where it is the same everywhere."""
        return None

    def most_beta(self) -> float | None:
        """A number no eigenvalue of any worker's Hessian passes anywhere, where one is known."""
        return self.exact_beta()

    def exact_minimiser(self) -> Vector | None:
        """The minimiser of F nearest to the start, where it can be written down."""
        return None

    def mean(self, rows: Sequence[Vector]) -> Vector:
        """Workers' vectors, averaged by data size."""
        total = torch.zeros_like(rows[0])
        for size, row in zip(self.sizes, rows, strict=True):
            total = total + size * row
        return total / sum(self.sizes)

    def slopes(self, w: Vector) -> list[Vector]:
        return [self.slope(worker, w) for worker in range(len(self.sizes))]


@dataclass(frozen=True, eq=False)
class Quadratics(Landscape):
    """F_i(w) = (w - c_i)' H_i (w - c_i) / 2: every constant of the theory is known exactly.

    With one H for all, the divergence is the same everywhere: ``delta_i = ||H (c_i - c)||``, where
    c is the mean of the c_i.
    """

    hessians: Sequence[Tensor]  # (d, d) each, symmetric, no eigenvalue below 0
    centres: Sequence[Tensor]  # (d,) each
    start: Vector
    sizes: tuple[int, ...]

    def loss(self, w: Vector) -> float:
        parts = zip(self.sizes, self.hessians, self.centres, strict=True)
        total = sum(size * float((w - c) @ H @ (w - c)) / 2 for size, H, c in parts)
        return total / sum(self.sizes)

    def slope(self, worker: int, w: Vector) -> Vector:
        return self.hessians[worker] @ (w - self.centres[worker])

    def bend(self, worker: int, w: Vector, u: Vector) -> Vector:
        return self.hessians[worker] @ u

    def exact_beta(self) -> float:
        return max(float(torch.linalg.eigvalsh(H)[-1]) for H in self.hessians)

    def exact_minimiser(self) -> Vector:
        down = self.mean(self.slopes(self.start))
        inverse: Tensor = torch.linalg.pinv(self.mean(self.hessians), hermitian=True)
        return self.start - inverse @ down


class OnData(Landscape):
    """A convex model's loss on data that workers hold, in float64, over all their samples."""

    def __init__(self, problem: Problem, owned: Sequence[NDArray[np.int64]]) -> None:
        self.problem = problem
        self.start = problem.initial
        self.sizes = tuple(len(mine) for mine in owned)
        self._index = [torch.from_numpy(mine).to(problem.device) for mine in owned]
        through = nn.Sequential | nn.Flatten
        layers = [part for part in problem.module.modules() if not isinstance(part, through)]
        if len(layers) != 1 or not isinstance(layers[0], nn.Linear):
            raise FednagError(
                "model", "the theory is about convex losses", "use linear or logistic"
            )
        if problem.objective.given not in (squared_error, cross_entropy):
            raise FednagError("loss", "the theory knows cross-entropy and mse", "use one of them")
        if problem.dtype != torch.float64:
            raise FednagError("engine.dtype", "the theory needs 'float64'", "set it")
        self._layer = layers[0]

    @property
    def unreached(self) -> float | None:
        return 0.0 if self.problem.objective.given is cross_entropy else None

    def loss(self, w: Vector) -> float:
        total = 0.0
        for index in self._index:
            for block in torch.split(index, BLOCK):
                problem = self.problem
                none = problem.initial_buffers
                losses, _ = problem.evaluate(w, none, problem.x, problem.y, block)
                total += float(losses.sum())
        return total / sum(self.sizes)

    def slope(self, worker: int, w: Vector) -> Vector:
        total = torch.zeros_like(w)
        for x, y, weight in self._blocks(worker):
            none = self.problem.initial_buffers[None]
            rows, _ = self.problem.differentiable(w[None], none, x[None], y[None], weight[None])
            total = total + rows[0]
        return total

    def bend(self, worker: int, w: Vector, u: Vector) -> Vector:
        total = torch.zeros_like(w)
        for x, y, weight in self._blocks(worker):
            at = w.detach().requires_grad_()
            output = functional_call(self.problem.module, self.problem.layout.unravel(at), (x,))
            value = (self.problem.objective.given(output, y) * weight).sum()
            (slope,) = torch.autograd.grad(value, at, create_graph=True)
            (along,) = torch.autograd.grad(slope @ u, at)
            total = total + along
        return total

    def exact_beta(self) -> float | None:
        """For linear regression: 2 / outputs times the largest eigenvalue of the mean of x x'."""
        if self.problem.objective.given is not squared_error:
            return None
        return 2 / self._layer.out_features * self._inputs_spread()

    def most_beta(self) -> float:
        """For logistic regression: half that eigenvalue, as no softmax bends more than that."""
        return self.exact_beta() or self._inputs_spread() / 2

    def exact_minimiser(self) -> Vector | None:
        """For linear regression: least squares, moved from the start as little as can be."""
        if self.problem.objective.given is not squared_error:
            return None
        size = self._layer.in_features + (self._layer.bias is not None)
        moment = torch.zeros(size, size, dtype=torch.float64)
        for worker, held in enumerate(self.sizes):
            moment += held / sum(self.sizes) * self._moment(worker)
        down = self.mean(self.slopes(self.start))
        parts = self.problem.layout.unravel(down)
        table = torch.cat(
            [part.reshape(self._layer.out_features, -1) for part in parts.values()], 1
        )
        inverse = torch.linalg.pinv(moment, hermitian=True, rtol=1e-12)
        move = table @ inverse * (self._layer.out_features / 2)
        features = self._layer.in_features
        pieces = [move[:, :features].reshape(-1), move[:, features:].reshape(-1)]
        return self.start - torch.cat(pieces)

    def _inputs_spread(self) -> float:
        """The largest eigenvalue, over workers, of the mean of x x', x with a 1 for the bias."""
        workers = range(len(self.sizes))
        return max(float(torch.linalg.eigvalsh(self._moment(worker))[-1]) for worker in workers)

    def _moment(self, worker: int) -> Tensor:
        size = self._layer.in_features + (self._layer.bias is not None)
        total = torch.zeros(size, size, dtype=torch.float64)
        for x, _, weight in self._blocks(worker):
            rows = x.flatten(1)
            if self._layer.bias is not None:
                rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
            total += rows.T @ (rows * weight[:, None])
        return total

    def _blocks(self, worker: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for index in torch.split(self._index[worker], BLOCK):
            x, y = self.problem.batch(self.problem.x, self.problem.y, index)
            weight = torch.full((len(index),), 1 / self.sizes[worker], dtype=torch.float64)
            yield x, y, weight
