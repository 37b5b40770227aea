"""What a data set is: training and test tensors, as they came, and how to scale them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fednag.errors import FednagError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and targets, in their compact form (images as uint8) until a batch needs them."""

    name: str
    x: Tensor  # (n, *shape): any numbers; images are (n, channels, height, width), perhaps uint8
    y: Tensor  # (n,) int64 classes; floating numbers; or int64 of more dimensions
    test_x: Tensor
    test_y: Tensor
    classes: int | None  # None unless a sample has one class
    scale: float = 1.0  # x times this is what the model sees: 1/255 for 8-bit images
    owners: Tensor | None = None  # (n,) int64: who each training sample belongs to, where known

    words: tuple[str, ...] = ()  # class 0, 1, … as the file calls them, where it has words
    remarks: tuple[str, ...] = ()  # how the data were taken, where they could be taken otherwise
    guessed: bool = False  # integer targets of which nobody said whether they are classes

    @property
    def notes(self) -> list[str]:
        """Which number is which class, where that is not plain, and how the data were taken."""
        if not self.words:
            return list(self.remarks)
        named = ", ".join(f"{number} {word[:40]}" for number, word in enumerate(self.words[:20]))
        more = f", … {len(self.words)} in all" if len(self.words) > 20 else ""
        return [f"classes: {named}{more}", *self.remarks]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def check(self) -> None:
        """Raise a sentence on what no training can mend: numbers that are none, wrong labels."""
        if len(self.test_x) and _kind(self.x) != _kind(self.test_x):
            raise FednagError(
                f"data: x holds {_kind(self.x)} and test x {_kind(self.test_x)}, which would be "
                "scaled differently; give both as the same kind of numbers"
            )
        parts = {"x": self.x, "y": self.y, "test x": self.test_x, "test y": self.test_y}
        for what, values in parts.items():
            wrong = None
            if values.is_floating_point():
                if len(values) and not bool(values.isfinite().all()):
                    wrong = ~values.isfinite().reshape(len(values), -1).all(1)
                    why = "a number that is not finite"
            elif what.endswith("y") and self.classes is not None:
                wrong = (values < 0) | (values >= self.classes)
                why = f"a label that is not from 0 to {self.classes - 1}"
            if wrong is not None and bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                raise FednagError(f"data: {what} has {why} in row {row}; mend it")


def _kind(x: Tensor) -> str:
    if x.is_floating_point():
        return "floating numbers"
    return "bytes" if x.dtype == torch.uint8 else "integers"
