"""Where each downloadable data set comes from and what its files must be."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fednag.errors import FednagError

BUILT_IN = ("digits", "synthetic")


@dataclass(frozen=True)
class File:
    """One file and its checksum; members of an archive also have an exact size."""

    name: str
    md5: str
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """A data set's files, under `folder`, and the base addresses to try in order."""

    name: str
    folder: str
    files: tuple[File, ...]
    addresses: tuple[str, ...]
    archive: File | None = None  # the files come inside it, as folder/name, when there is one


_MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SUMS = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_SUMS = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_CIFAR_10_BATCH = 30_730_000
_CIFAR_ADDRESSES = ("https://www.cs.toronto.edu/~kriz/",)

_ALL = (
    Source(
        name="mnist",
        folder="mnist",
        files=tuple(map(File, _MNIST_NAMES, _MNIST_SUMS)),
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    Source(
        name="mnist-writers",
        folder="mnist-writers",
        files=(
            File("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"),
            File("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa"),
        ),
        addresses=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    ),
    Source(
        name="fashion-mnist",
        folder="fashion-mnist",
        files=tuple(map(File, _MNIST_NAMES, _FASHION_SUMS)),
        addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ),
    Source(
        name="cifar-10",
        folder="cifar-10-batches-bin",
        files=(
            File("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", _CIFAR_10_BATCH),
            File("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", _CIFAR_10_BATCH),
            File("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", _CIFAR_10_BATCH),
            File("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", _CIFAR_10_BATCH),
            File("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", _CIFAR_10_BATCH),
            File("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", _CIFAR_10_BATCH),
        ),
        addresses=_CIFAR_ADDRESSES,
        archive=File("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    Source(
        name="cifar-100",
        folder="cifar-100-binary",
        files=(
            File("train.bin", "6172c7755cfe09b2fe270c85cebc1b15", 153_700_000),
            File("test.bin", "4499cfba6c016c1be1438163640a0898", 30_740_000),
        ),
        addresses=_CIFAR_ADDRESSES,
        archive=File("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
)
SOURCES = MappingProxyType({source.name: source for source in _ALL})


def find_source(name: str) -> Source:
    """The source called `name`, or an error that says what there is."""
    if name in BUILT_IN:
        raise FednagError(
            f"data set '{name}' is built in and needs no download; "
            f"the downloadable ones are {', '.join(SOURCES)}"
        )
    if name not in SOURCES:
        raise unknown_name(name, SOURCES)
    return SOURCES[name]


def unknown_name(name: str, known: Iterable[str]) -> FednagError:
    """The error for a data set nobody has heard of, with the nearest spelling."""
    known = tuple(known)
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1)
    hint = f"use '{near[0]}', or another of" if near else "use one of"
    return FednagError(f"data set '{name}' is unknown: {hint} {', '.join(known)}")


def data_folder() -> Path:
    """`$FEDNAG_DATA` where set, else the user's cache folder."""
    chosen = os.environ.get("FEDNAG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # here, because only the default needs it

    return Path(pooch.os_cache("fednag"))
