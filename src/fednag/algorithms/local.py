"""What workers' SGD has in common: a step size, weight decay, gradients clipped."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fednag.core.algorithm import Algorithm, Grad, NonNegative, Positive
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """Base of the methods whose workers descend along gradients of mini-batches.

    A method takes its gradients from ``slope``, which does what torch's optimisers do with theirs::

        g <- g min(1, clip / |g|)          if clip is not 0; |g| is over a worker's whole gradient
        g <- g + weight_decay w

    Unless a method says otherwise, its step is plain SGD.

    >>> import torch
    >>> from fednag import FedAvg
    >>> rule = FedAvg(clip=1.0, weight_decay=0.5)
    >>> rule.slope(lambda w: 3 * w, torch.tensor([[1.0, 0.0]]))
    tensor([[1.5000, 0.0000]])
    """

    lr: Positive = 0.01
    weight_decay: NonNegative = field(default=0.0, kw_only=True)
    clip: NonNegative = field(default=0.0, kw_only=True)

    elementwise = True  # clipping takes its norms row by row

    def clipped(self, g: Vector) -> Vector:
        """A gradient no longer than ``clip``, each worker's by itself."""
        if _is_off(self.clip):
            return g
        share: Vector = self.clip / g.norm(dim=-1, keepdim=True)
        return g * share.clamp(max=1)

    def slope(self, grad: Grad, w: Vector) -> Vector:
        """The gradient at ``w``, clipped, and weight decay."""
        g = self.clipped(grad(w))
        return g if _is_off(self.weight_decay) else g + self.weight_decay * w

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * self.slope(grad, local.w))


# What methods with local SGD have beside their own numbers, and those that users derive from them.
OPTIONS = {f.name: f.default for f in fields(LocalSGD) if f.kw_only}


def _is_off(number: float) -> bool:
    # A number with a schedule is an input of a recording, and no branch may look at it.
    return isinstance(number, int | float) and number == 0
