"""Losses, one value per sample, so that means over any batch, worker or data set are exact."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from fednag.errors import FednagError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) -> one loss per sample."""


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    # torch's own, under vmap, becomes many more operations.
    return -scores.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Mean over the outputs of the squared error; classes are compared as one-hot vectors."""
    if not y.is_floating_point():
        y = (y.unsqueeze(-1) == torch.arange(output.shape[-1], device=y.device)).to(output.dtype)
    output, y = output.reshape(len(y), -1), y.reshape(len(y), -1)
    if output.shape != y.shape:
        raise ValueError(
            f"it gives {output.shape[1]} numbers a sample, and the targets have {y.shape[1]}; "
            "for classes, make the targets integers"
        )
    return (output - y).square().mean(1)


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "mse": squared_error}


def resolve(loss: str | Loss) -> Loss:
    """A loss by name; a torch loss module, made to return one value per sample; or any callable."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise FednagError(f"loss: no loss {loss!r}; there are {', '.join(LOSSES)}")
        return LOSSES[loss]
    if isinstance(getattr(loss, "reduction", None), str):
        loss = copy.copy(loss)
        loss.reduction = "none"  # type: ignore[attr-defined]
    return loss
