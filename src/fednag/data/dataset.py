"""A data set: named, or made of tensors, arrays and lists; what they cannot mean is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fednag.errors import FednagError

Values = Tensor | NDArray[Any] | Sequence[Any]
"""Numbers, a row for each sample."""
TASKS = ("classification", "regression")
BYTES = "data: bytes 0 to 255 are scaled to 0 to 1"
OF_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss)
MANY_CLASSES = 100  # more, and more than a fifth of the rows: they may be meant as numbers


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
    # The test samples, where a validation part has taken their place.
    held_back: tuple[Tensor, Tensor] | None = None
    # Columns that were asked for by name: (n,), what they say of each training sample.
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

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
        return tuple(self.x.shape[1:])

    def check(self) -> None:
        """Raise a sentence on what no training can mend: numbers that are none, wrong labels."""
        if len(self.test_x) and _kind(self.x) != _kind(self.test_x):
            raise FednagError(
                "data",
                f"x holds {_kind(self.x)} and test x {_kind(self.test_x)}, which would be scaled "
                "differently",
                "give both as the same kind of numbers",
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
                raise FednagError("data", f"{what} has {why} in row {row}", "mend it")


def _kind(x: Tensor) -> str:
    if x.is_floating_point():
        return "floating numbers"
    return "bytes" if x.dtype == torch.uint8 else "integers"


def dataset_of(
    name: str,
    x: Values,
    y: Values,
    test: tuple[Values, Values] | None,
    owners: Values | None,
    task: str | None,
) -> Dataset:
    """A checked data set of samples and targets; without a ``task``, integer targets are classes.

    Integers with more than one dimension a sample (a class for every pixel) are kept for a loss
    that knows what they are.
    """
    _check_task(task)
    x, y = tensor_of(x, "data", "x"), tensor_of(y, "data", "y")
    test_x, test_y = _pair(test) if test is not None else (x[:0], y[:0])
    for what, xs, ys in (("data", x, y), ("test", test_x, test_y)):
        if len(xs) != len(ys):
            raise FednagError(what, f"{len(xs)} samples but {len(ys)} targets", "give one each")
        if xs.shape[1:] != x.shape[1:]:
            shape = tuple(x.shape[1:])
            raise FednagError("test", remedy=f"samples must have the shape of the data's, {shape}")
        if ys.shape[1:] != y.shape[1:]:
            shape = tuple(y.shape[1:])
            raise FednagError("test", remedy=f"targets must have the shape of the data's, {shape}")
    if not len(x):
        raise FednagError("data", "it is empty", "give at least one sample")
    guessed = task is None and not y.is_floating_point()
    y, test_y = _targets(y, test_y, task)
    x, test_x = (part.float() if part.dtype == torch.bool else part for part in (x, test_x))
    classes = None
    if not y.is_floating_point() and y.dim() == 1:
        classes = 1 + int(torch.cat([y, test_y]).max())
    remarks: tuple[str, ...] = (BYTES,) if x.dtype == torch.uint8 else ()
    if guessed and classes is not None:
        remarks += remark_on_classes(len(np.unique(y.numpy())), len(y))
    found = Dataset(
        name,
        x,
        y,
        test_x,
        test_y,
        classes,
        scale=1 / 255 if x.dtype == torch.uint8 else 1.0,
        owners=None if owners is None else _owners(owners, len(x)),
        remarks=remarks,
        guessed=guessed,
    )
    found.check()
    return found


def with_task(dataset: Dataset, task: str | None, loss: object) -> Dataset:
    """A data set made before, as the task has it, or else the loss: integers of which nobody had
    said what they are become numbers for a loss of numbers.
    """
    _check_task(task)
    if task is None and dataset.guessed and is_for_numbers(loss):
        task = "regression"
    if task is None:
        return dataset
    if dataset.guessed:
        test = dataset.test_x, dataset.test_y
        return dataset_of(dataset.name, dataset.x, dataset.y, test, dataset.owners, task)
    made_for = "regression" if dataset.classes is None else "classification"
    if task != made_for:
        raise FednagError(
            "task", f"the data set was made for {made_for}", f"make it with task={task!r}"
        )
    return dataset


def is_for_numbers(loss: object) -> bool:
    """Whether it is a loss of regression; of a function of the user's own, nothing is known."""
    return loss == "mse" if isinstance(loss, str) else isinstance(loss, OF_NUMBERS)


def is_integer(x: Tensor) -> bool:
    """Whether samples are integers to be kept, such as the numbers of words; bytes are images."""
    return not x.is_floating_point() and x.dtype != torch.uint8


def remark_on_classes(distinct: int, rows: int) -> tuple[str, ...]:
    """A word on so many classes that they may well be numbers."""
    if distinct <= MANY_CLASSES or 5 * distinct <= rows:
        return ()
    return (
        f"data: the targets are {distinct} different whole numbers, taken as classes; if they are "
        "meant as numbers, set data.task = 'regression', or from Python task='regression'",
    )


def tensor_of(given: Any, field: str, what: str) -> Tensor:
    """Numbers on the CPU, in memory of their own order; ``what`` of ``field`` is said in errors."""
    found = given if isinstance(given, Tensor) else _from_python(given, field, what)
    if found.layout != torch.strided:
        raise FednagError(field, f"{what} is a sparse tensor", "give it dense, with .to_dense()")
    if found.is_complex():
        raise FednagError(field, f"{what} holds complex numbers", "give real ones")
    if not found.dim():
        raise FednagError(field, f"{what} is a single number", "give a row for each sample")
    if found.dtype in (torch.uint16, torch.uint32, torch.uint64):
        found = found.long()  # torch can do little with those
    return found.detach().cpu().contiguous()


def shared(array: NDArray[Any]) -> Tensor:
    """The same memory as a tensor, where torch can take it as it is."""
    # Torch takes no steps backwards, and warns of memory it must not write.
    array = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    found = torch.from_numpy(array)
    # An empty array's strides are numpy's own.
    return found if found.numel() else found.new_empty(found.shape)


def _from_python(given: Any, field: str, what: str) -> Tensor:
    if isinstance(given, list | tuple) and given and all(isinstance(g, Tensor) for g in given):
        if len({each.shape for each in given}) > 1:
            raise FednagError(field, f"{what} has rows of different shapes", "give all the same")
        return torch.stack(list(given))
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:  # what numpy says of a ragged list
        raise FednagError(
            field, f"{what} has rows of different shapes", "give all the same"
        ) from error
    if array.dtype.kind not in "biuf":
        kind = "words" if array.dtype.kind in "US" else f"{array.dtype} and not numbers"
        raise FednagError(
            field, f"{what} holds {kind}", "give numbers, as a tensor, an array or lists"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return shared(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def _check_task(task: str | None) -> None:
    if task is not None and task not in TASKS:
        raise FednagError(
            "task", f"{task!r} is not allowed", "use 'classification' or 'regression'"
        )


def _pair(test: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise FednagError(
            "test",
            "give a pair (x, y) of samples and targets",
            "a share of the data you part yourself",
        )
    return tensor_of(test[0], "test", "x"), tensor_of(test[1], "test", "y")


def _targets(y: Tensor, test_y: Tensor, task: str | None) -> tuple[Tensor, Tensor]:
    """Targets of one kind: floating numbers, or int64."""
    if task == "regression" or (task is None and y.is_floating_point()):
        return _numbers(y), _numbers(test_y)
    if y.dim() == 2 and y.shape[1] == 1:
        raise FednagError(
            "data",
            f"y has shape {tuple(y.shape)}, and a class is one whole number a sample",
            "give y.squeeze(1), or task='regression' if y are numbers",
        )
    if task == "classification" and y.dim() > 1:
        raise FednagError(
            "task",
            f"'classification' takes one class a sample, and y has shape {tuple(y.shape)}",
            "leave task out, and give a loss for such targets",
        )
    for what, values in (("data", y), ("test", test_y)):
        if values.is_floating_point() and not bool((values == values.round()).all()):
            raise FednagError(
                what,
                "y has numbers that are not whole, and classes are",
                "give whole numbers, or for regression task='regression'",
            )
    return y.long(), test_y.long()


def _numbers(y: Tensor) -> Tensor:
    # In double precision whole numbers stay what they are; a run takes its own precision.
    return y if y.is_floating_point() else y.double()


def _owners(given: Any, samples: int) -> Tensor:
    """A number for each owner; they may be given as words."""
    if not isinstance(given, Tensor):
        array = np.asarray(given)
        if array.dtype.kind == "U":
            given = np.unique(array, return_inverse=True)[1]
    owners = tensor_of(given, "owners", "the list")
    if owners.dim() != 1 or len(owners) != samples:
        count = len(owners) if owners.dim() == 1 else f"shape {tuple(owners.shape)}"
        raise FednagError("owners", f"{count} for {samples} samples", "give one each")
    if owners.is_floating_point() and not bool((owners == owners.round()).all()):
        raise FednagError("owners", "they are not whole numbers", "give whole numbers or words")
    return owners.long()
