"""Gradients of stacked workers, traced once and replayed.

Replaying the traced graph under ``no_grad`` skips autograd's and functorch's bookkeeping, and the
graph is a pure function, safe to share between threads; ``functional_call`` is not, it swaps a
module's attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fednag.problems.losses import Loss
from fednag.vectors import Layout, Vector

Stacked = Callable[[Vector, Tensor, Tensor, Tensor], Vector]
"""(w (n, d), x (n, b, ...), y (n, b), weight (n, b)) -> gradients (n, d)."""


def laid_out(module: nn.Module, x: Tensor) -> Tensor:
    """Images in the memory layout the module asks for; vmap knows only the usual one."""
    if getattr(module, "channels_last", False):
        return x.contiguous(memory_format=torch.channels_last)
    return x


class Gradients:
    """``gradients(w, x, y, weight)``: for each stacked worker, the gradient of its weighted loss.

    A model that cannot be traced, or that draws random numbers (dropout), is differentiated
    eagerly, one worker at a time; ``eager`` then says why. Eager calls are not thread-safe.
    """

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss) -> None:
        self._module, self._layout, self._loss = module, layout, loss
        self._traced: dict[tuple[torch.Size, torch.Size], Stacked] = {}
        self._lock = threading.Lock()
        self.eager: str | None = None

    def __call__(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
        if self.eager is not None:
            rows = [self._one(*row) for row in zip(w, x, y, weight, strict=True)]
            return torch.stack(rows)
        key = (w.shape, x.shape)
        traced = self._traced.get(key)
        if traced is None:
            with self._lock:
                traced = self._traced.get(key) or self._trace(w, x, y, weight)
                self._traced[key] = traced
        with torch.no_grad():
            return traced(w, x, y, weight)

    def prepare(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> bool:
        """Trace for these shapes. True when it worked; for one worker, False turns eager."""
        key = (w.shape, x.shape)
        if self.eager is None and key not in self._traced:
            try:
                self._traced[key] = self._trace(w, x, y, weight)
            except Exception as error:  # whatever a user's model raises under tracing
                if len(w) == 1:
                    self._one(w[0], x[0], y[0], weight[0])  # a model that is simply wrong says so
                    self.eager = str(error).strip().splitlines()[0] or type(error).__name__
        return self.eager is None and key in self._traced

    def _value(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        output = functional_call(self._module, self._layout.unravel(w), (x,))
        return (self._loss(output, y) * weight).sum()

    def _one(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._value(w, x, y, weight), w)
        return gradient

    def _trace(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Stacked:
        def value(w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return self._value(w, x, y, weight)  # fx counts a bound method's self as an input

        def one(w: Vector, x: Tensor, y: Tensor, weight: Tensor) -> Vector:
            # Unbatched kernels are faster than vmap's over a single worker.
            gradient: Vector = grad(value)(w[0], laid_out(self._module, x[0]), y[0], weight[0])
            return gradient.unsqueeze(0)

        function: Stacked = one if len(w) == 1 else vmap(grad(value))
        graph = make_fx(function)(w, x, y, weight)
        for node in graph.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise RuntimeError(f"it draws random numbers ({node.target})")
        return graph
