"""Reads the binary files of CIFAR-10 and CIFAR-100: fixed-size records of labels and an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError

IMAGE_BYTES = 3 * 32 * 32
COARSE_CLASSES = 20

Classes = Literal[10, 100]


def record_bytes(classes: Classes) -> int:
    """How long one record is: CIFAR-100 has a coarse label before the fine one."""
    return IMAGE_BYTES + (1 if classes == 10 else 2)


def read_cifar(
    path: Path, classes: Classes, count: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` images (count, 3, 32, 32) and their labels; the fine labels for CIFAR-100."""
    record = record_bytes(classes)
    try:
        size = path.stat().st_size
        if size % record:
            raise _broken(path, f"{size} bytes are not a whole number of {record}-byte records")
        if size != count * record:
            raise _broken(path, f"it holds {size // record} records where {count} belong")
        records = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise FednagError(
            f"{path} cannot be read ({error.strerror or error}); "
            "check that it is a file you may read, or delete it and download it again"
        ) from error
    if records.size != size:
        raise _broken(path, f"only {records.size} of its {size} bytes could be read")
    records = records.reshape(count, record)
    images = records[:, -IMAGE_BYTES:].reshape(count, 3, 32, 32)
    fine = _labels(path, "label", records[:, -IMAGE_BYTES - 1], classes)
    if classes == 100:
        _labels(path, "coarse label", records[:, 0], COARSE_CLASSES)
    return images, fine


def _labels(path: Path, what: str, labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        first = int(wrong[0])
        raise _broken(
            path, f"record {first} has {what} {labels[first]}, not one of 0 to {classes - 1}"
        )
    return labels.astype(np.int64)


def _broken(path: Path, why: str) -> FednagError:
    return FednagError(
        f"{path} is not a complete CIFAR-binary file ({why}); delete it and download it again"
    )
