"""Gradients of stacked workers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fednag.problems.losses import Loss
from fednag.problems.tracing import Traced
from fednag.vectors import Layout, Vector


class Gradients:
    """``gradients(w, x, y, weight)``: for each stacked worker, the gradient of its weighted loss.

    Takes w (n, d), x (n, b, ...), y (n, b) and weight (n, b), gives (n, d). A model that cannot be
    traced, or that draws random numbers (dropout), is differentiated eagerly, one worker at a
    time; ``eager`` then says why. Eager calls are not thread-safe.
    """

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss) -> None:
        self._module, self._layout, self._loss = module, layout, loss
        self._traced = Traced(self.stacked)
        self.eager: str | None = None

    def __call__(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
        if self.eager is not None:
            rows = [self._one(*row) for row in zip(w, x, y, weight, strict=True)]
            return torch.stack(rows)
        gradient: Vector = self._traced(w, x, y, weight)
        return gradient

    def stacked(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
        """The same, to be traced: every call differentiates anew."""
        if len(w) == 1:
            # Unbatched kernels are faster than vmap's over a single worker.
            return self._one(w[0], x[0], y[0], weight[0]).unsqueeze(0)
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            # Workers do not meet: the slope of the sum is each worker's own.
            total = vmap(self._value)(w, x, y, weight).sum()
            (gradients,) = torch.autograd.grad(total, w)
        return gradients

    def prepare(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> bool:
        """Trace for these shapes. True when it worked; for one worker, False turns eager."""
        if self.eager is None:
            try:
                self._traced(w, x, y, weight)
                if len(w) == 1:
                    self._check(w, x, y, weight)
            except Exception as error:  # whatever a user's model raises under tracing
                if len(w) == 1:
                    self._one(w[0], x[0], y[0], weight[0])  # a model that is simply wrong says so
                    self.eager = str(error).strip().splitlines()[0] or type(error).__name__
                return False
        return self.eager is None

    def _check(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Refuse a recording that does something else with other numbers.

        That of a model that leaves torch on the way, for numpy say, has its results as constants.
        """
        w, x = 0.9 * w, x.flip(1)
        traced, plain = self._traced(w, x, y, weight), self.stacked(w, x, y, weight)
        near = 0.01 * float(plain.nan_to_num().abs().max())
        if not torch.allclose(traced, plain, rtol=0, atol=near, equal_nan=True):
            raise RuntimeError("its recording, with other samples, does not do as it does")

    def _value(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        output = functional_call(self._module, self._layout.unravel(w), (x,))
        return (self._loss(output, y) * weight).sum()

    def _one(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._value(w, x, y, weight), w)
        return gradient
