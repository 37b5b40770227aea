"""Gradients of stacked workers, in a form that can be recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fednag.core.vectors import Layout, Vector
from fednag.problems.losses import Objective
from fednag.problems.plain import Buffers


class Differentiable:
    """A module's gradient as a function of flat vectors, ``w`` (n, d) and ``b`` (n, k).

    Every call differentiates anew; it is meant to be recorded. Not thread-safe: it swaps the
    module's attributes.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, buffers: Buffers, objective: Objective
    ) -> None:
        self._layout, self._buffers = layout, buffers
        self._valued = _Valued(module, objective, buffers)

    def __call__(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Vector, Vector]:
        """For each worker: the gradient of its weighted loss, and its buffers after the batch.

        Takes x (n, b, ...), y (n, b, ...) and weight (n, b).
        """
        if len(w) == 1:
            # Unbatched kernels are faster than vmap's over a single worker.
            gradient, after = self._one(w[0], b[0], x[0], y[0], weight[0])
            return gradient.unsqueeze(0), after.unsqueeze(0)
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            values, after = vmap(self._value)(w, b, x, y, weight)
            # Workers do not meet: the slope of the sum is each worker's own.
            (gradients,) = torch.autograd.grad(values.sum(), w)
        return gradients, after.detach() if self._buffers.names else b

    def _one(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Vector, Vector]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            # What is recomputed on the way back (checkpointing) must find the same weights, so
            # the slope is taken before the module has its own again.
            gradient, after = functional_call(
                self._valued, self._named(w, b), (x, y, weight), {"of": w}
            )
        return gradient, after.detach() if self._buffers.names else b

    def _value(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Vector]:
        found: tuple[Tensor, Vector] = functional_call(
            self._valued, self._named(w, b), (x, y, weight)
        )
        return found

    def _named(self, w: Vector, b: Vector) -> dict[str, Tensor]:
        pieces = self._layout.unravel(w) | self._buffers.unravel(b)
        return {f"module.{name}": piece for name, piece in pieces.items()}


class _Valued(nn.Module):
    """A model with its loss on top: (x, y, weight) -> (the weighted loss, the buffers after it)."""

    def __init__(self, module: nn.Module, objective: Objective, buffers: Buffers) -> None:
        super().__init__()
        self.module, self.objective, self.buffers_of = module, objective, buffers

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, of: Tensor | None = None) -> Any:
        output = self.module(x)
        if self.objective.values is None:
            value = self.objective.batch(output, y)
        else:
            value = (self.objective.values(output, y) * weight).sum()
        after = self.buffers_of.ravel(self.module, weight.dtype)
        if of is None:
            return value, after
        (gradient,) = torch.autograd.grad(value, of)
        return gradient, after
