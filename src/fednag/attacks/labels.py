"""Attacks on the data that attackers train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fednag.core.attack import Attack


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains on false labels, and sends what comes of it::

        y <- C - 1 - y,    C classes

    Losses and accuracies in records are those on the true labels.

    >>> import torch
    >>> from fednag.attacks import LabelFlip
    >>> LabelFlip().labels(torch.tensor([0, 2, 9]), 10)
    tensor([9, 7, 0])
    """

    def labels(self, y: Tensor, classes: int) -> Tensor:
        # Labels out of range (-100, say) are no class, and stay.
        return torch.where((y >= 0) & (y < classes), classes - 1 - y, y)
