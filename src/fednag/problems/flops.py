"""Floating-point operations of a training iteration, counted and not timed."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn

from fednag.problems import models

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
    from torch.utils.flop_counter import FlopCounterMode

    module = copy.deepcopy(module)
    try:
        with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
            module(x).sum().backward()
    except Exception:
        return None  # whatever a user's model raises; it may still train
    return float(counter.get_total_flops()) / len(x) or None


@cache
def named_flops(model: str, data: str, hidden: tuple[int, ...] | None = None) -> float | None:
    """The same for a model and data set known by name; nothing is loaded or computed."""
    if model not in models.NAMES or data not in SHAPES:
        return None
    shape, outputs = SHAPES[data]
    module = models.build(model, shape, outputs, 0, hidden).to("meta")
    return training_flops(module, torch.zeros(1, *shape, device="meta"))
