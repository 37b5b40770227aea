"""Floating-point operations of a training iteration, counted and not timed."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from fednag.compute.randomness import private_randomness
from fednag.compute.recording import Dispatch
from fednag.problems import models
from fednag.problems.plain import duplicate

# (shape of a sample, outputs) of the data sets that are named
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar-10": ((3, 32, 32), 10),
    "cifar-100": ((3, 32, 32), 100),
    "synthetic": ((60,), 10),
}


def training_flops(module: nn.Module, x: Tensor) -> float | None:
    """Operations of one gradient, forward and backward, a sample of ``x``; None if uncountable.

    Those of convolutions and matrix products: in any model worth timing the rest is small. A
    multiplication and an addition count as two.
    """
    counter = Counter()
    if len(x) == 1:
        x = x.expand(2, *x.shape[1:])  # one sample alone may leave nothing to normalise over
    try:
        module = duplicate(module)
        with private_randomness(), counter:
            for part in _tensors(module(x.clone())):
                part.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    except Exception:
        return None  # whatever a user's model raises; it may still train
    return counter.flops / len(x) or None


def _tensors(output: Any) -> list[Tensor]:
    """What can be differentiated of a model's output."""
    if isinstance(output, Tensor):
        return [output] if output.requires_grad else []
    parts = list(output.values()) if isinstance(output, dict) else list(output)
    return _tensors(parts[0]) if parts else []


class Counter(Dispatch):
    """Counts what torch's own counter counts, by torch's own formulas.

    That one loads torch's compiler first, which takes longer than a small run.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def saw(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = function(*args, **kwargs)
        if formula := flop_registry.get(function._overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


@cache
def named_flops(model: str, data: str, hidden: tuple[int, ...] | None = None) -> float | None:
    """The same for a model and data set known by name; nothing is loaded or computed."""
    if model not in models.MODELS or data not in SHAPES:
        return None
    shape, outputs = SHAPES[data]
    module = models.build(model, shape, outputs, 0, hidden).to("meta")
    return training_flops(module, torch.zeros(2, *shape, device="meta"))
