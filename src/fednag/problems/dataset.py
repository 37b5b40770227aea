"""What a data set is: training and test tensors, as they came, and how to scale them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and targets, in their compact form (images as uint8) until a batch needs them."""

    name: str
    x: Tensor  # (n, *shape): uint8 or floating; images are (n, channels, height, width)
    y: Tensor  # (n,) int64 classes, or floating targets for regression
    test_x: Tensor
    test_y: Tensor
    classes: int | None  # None for regression
    scale: float = 1.0  # x times this is what the model sees: 1/255 for 8-bit images
    owners: Tensor | None = None  # (n,) int64: who each training sample belongs to, where known

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])
