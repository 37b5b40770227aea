"""Losses: the one the user gives, and its value for each sample where it has one.

A batch's loss is what torch says it is. Most losses are a sum of one value a sample, divided by a
sum of one share a sample: the share is 1 in a plain mean, the class's weight where classes are
weighted, 0 for a sample that is ignored. Such losses can be taken over blocks, padded batches and
whole data sets. Any other loss is known for whole batches only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fednag.errors import FednagError

Loss = Callable[[Any, Tensor], Tensor]
"""(model output, targets) -> the batch's loss, or one loss per sample."""


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """One value a sample; where a sample has several classes (pixels, letters), their mean.

    With one class a sample, scores are along the last dimension. With several they are along
    dimension 1, as torch has them, or along the last one.
    """
    if y.dim() > 1 and scores.shape[:1] + scores.shape[2:] == y.shape:
        if scores.shape[:-1] == y.shape:
            raise ValueError(
                f"of outputs of shape {tuple(scores.shape)} it is not clear which "
                "dimension the classes are along; give loss=nn.CrossEntropyLoss(): it takes the "
                "second"
            )
        picked = -scores.log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        return picked.flatten(1).mean(1)
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
            "for one class a sample give whole numbers, for several (pixels, letters) "
            "loss='cross-entropy'"
        )
    return (output - y).square().mean(1)


def converted(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module on a device and in a precision; complex numbers stay complex."""
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def moved(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(device, wide)
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    found: nn.Module = module._apply(moved)  # type: ignore[no-untyped-call]
    return found


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "mse": squared_error}


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss, whole and by sample."""

    given: Loss  # as the user made it
    values: Loss | None  # (output, y) -> one value a sample; None: only whole batches have a loss
    shares: Callable[[Tensor], Tensor] | None = None  # (y) -> one share a sample; None: 1 each

    def batch(self, output: Any, y: Tensor) -> Tensor:
        """The loss of a batch, as torch computes it."""
        found = self.given(output, y)
        if not isinstance(found, Tensor):
            raise TypeError(f"the loss returned {type(found).__name__}, not a tensor")
        return found if found.dim() == 0 else found.mean()

    def to(self, device: torch.device, dtype: torch.dtype) -> Objective:
        """The same in another precision; tables of weights go along."""
        if not isinstance(self.given, nn.Module):
            return self
        given = converted(copy.deepcopy(self.given), device, dtype)
        return _of_module(given) if self.values is not None else Objective(given, None)


def resolve(loss: str | Loss) -> Objective:
    """A loss by name, a torch loss module, or any callable."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise FednagError("loss", f"no loss {loss!r}", f"there are {', '.join(LOSSES)}")
        return Objective(LOSSES[loss], LOSSES[loss])
    if not callable(loss):
        raise FednagError(
            "loss", f"{loss!r} is no loss", "give a name or a function (output, target)"
        )
    if isinstance(loss, type):
        raise FednagError("loss", remedy=f"give an instance, {loss.__name__}(), not the class")
    if isinstance(loss, nn.Module):
        trained = [name for name, p in loss.named_parameters() if p.requires_grad]
        if trained:
            raise FednagError(
                "loss",
                f"it has a parameter of its own, {trained[0]!r}, which would not be trained",
                "make it part of the model, or freeze it with requires_grad_(False)",
            )
    reduction = getattr(loss, "reduction", None)
    if reduction == "sum":
        raise FednagError(
            "loss", "reduction='sum' makes steps as large as the batch", "use reduction='mean'"
        )
    if isinstance(loss, nn.Module):
        return _of_module(copy.deepcopy(loss))
    return Objective(loss, loss)


def _of_module(loss: nn.Module) -> Objective:
    reduction = getattr(loss, "reduction", None)
    if reduction not in ("mean", "none", "batchmean"):
        return Objective(loss, loss)
    alone = copy.deepcopy(loss)
    alone.reduction = "none"  # type: ignore[assignment]

    def values(output: Any, y: Tensor) -> Tensor:
        found: Tensor = alone(output, y)
        flat = found.reshape(len(y), -1)
        return flat.sum(1) if reduction == "batchmean" else flat.mean(1)

    weighted = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and reduction == "mean"
    return Objective(loss, values, _shares(loss) if weighted else None)


def _shares(loss: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """What torch's mean divides by, for a loss over classes: their weights, 0 where ignored."""
    weight = getattr(loss, "weight", None)
    ignored = int(getattr(loss, "ignore_index", -100))

    def shares(y: Tensor) -> Tensor:
        if y.is_floating_point():  # probabilities of classes: torch divides by the samples
            return torch.ones(len(y), dtype=torch.float64, device=y.device)
        counted = (y != ignored).double()
        if weight is not None:
            counted = counted * weight.double()[y.clamp(0, len(weight) - 1)]
        return counted.reshape(len(y), -1).mean(1)

    return shares
