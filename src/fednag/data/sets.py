"""Loads a data set by name."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.data.cifar import Classes, read_cifar, record_bytes
from fednag.data.dataset import Dataset
from fednag.data.idx import read_idx
from fednag.data.sources import SOURCES, data_folder, unknown_name
from fednag.data.synthetic import synthetic
from fednag.errors import FednagError

NAMES = ("digits", "synthetic", "mnist", "fashion-mnist", "cifar-10", "cifar-100")
_OPTIONS = {"synthetic": ("alpha", "beta", "workers")}
_WRITER_COLUMN = 2  # QMNIST's columns: digit, NIST series, writer, ...


def load(name: str, folder: Path | None = None, seed: int = 0, **options: Any) -> Dataset:
    """The data set called `name`; downloaded ones are read from `folder` or `data_folder()`.

    `seed` and the options (alpha, beta, workers) are for the synthetic data: the others are fixed.
    """
    if name not in NAMES:
        raise unknown_name(name, NAMES)
    known = _OPTIONS.get(name, ())
    for option in options:
        if option not in known:
            offer = f"only {', '.join(known)}" if known else "none at all"
            raise FednagError(f"data set '{name}' has no option '{option}' ({offer}); leave it out")
    if name == "synthetic":
        return synthetic(seed=seed, **options)
    if name == "digits":
        return _digits()
    root = data_folder() if folder is None else folder
    if name == "cifar-10":
        return _cifar(name, root, 10)
    if name == "cifar-100":
        return _cifar(name, root, 100)
    return _mnist(name, root)


def _digits() -> Dataset:
    """scikit-learn's handwritten digits, a fifth of each class kept for testing."""
    table = _digits_table()
    images = torch.from_numpy(table[:, :-1].astype(np.uint8)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    by_class = order[labels[order].argsort(stable=True)]
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    is_test[by_class[::5]] = True
    train, test = ~is_test, is_test
    return Dataset(
        name="digits",
        x=images[train],
        y=labels[train],
        test_x=images[test],
        test_y=labels[test],
        classes=10,
        scale=1 / 16,
    )


def _digits_table() -> NDArray[np.int64]:
    """A row for each digit: 64 pixels from 0 to 16, and which digit it is."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.exists():  # importing sklearn to read it takes far longer
            with gzip.open(path, "rt") as file:
                return np.loadtxt(file, delimiter=",", dtype=np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.int64)


def _mnist(name: str, root: Path) -> Dataset:
    x, y = _idx_pair(name, root, "train")
    test_x, test_y = _idx_pair(name, root, "t10k")
    owners = _writers(root, y) if name == "mnist" else None
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        test_x=torch.from_numpy(test_x),
        test_y=torch.from_numpy(test_y),
        classes=10,
        scale=1 / 255,
        owners=None if owners is None else torch.from_numpy(owners),
    )


def _idx_pair(
    name: str, root: Path, part: Literal["train", "t10k"]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images_path = _present(name, root, f"{part}-images-idx3-ubyte.gz")
    labels_path = _present(name, root, f"{part}-labels-idx1-ubyte.gz")
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise _wrong(
            name, images_path, f"{images.dtype} of shape {images.shape}, not 28x28 8-bit images"
        )
    if labels.dtype != np.uint8 or labels.ndim != 1:
        raise _wrong(
            name, labels_path, f"{labels.dtype} of shape {labels.shape}, not a row of 8-bit labels"
        )
    if len(images) != len(labels):
        raise _wrong(
            name, labels_path, f"{len(labels)} labels for {len(images)} images in {images_path}"
        )
    if labels.max() > 9:
        raise _wrong(name, labels_path, f"label {labels.max()}, which is not one of 0 to 9")
    return images[:, None], labels.astype(np.int64)


def _writers(root: Path, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    source = SOURCES["mnist-writers"]
    path = root / source.folder / source.files[0].name
    if not path.exists():
        return None
    table = read_idx(path)
    if table.dtype.kind != "i" or table.ndim != 2 or table.shape[1] <= _WRITER_COLUMN:
        raise _wrong(
            source.name, path, f"{table.dtype} of shape {table.shape}, not a table of integers"
        )
    if not np.array_equal(table[:, 0], labels):
        raise _wrong(source.name, path, "digits other than the labels of the MNIST training set")
    return table[:, _WRITER_COLUMN].astype(np.int64)


def _cifar(name: str, root: Path, classes: Classes) -> Dataset:
    images, labels = [], []
    for file in SOURCES[name].files:
        assert file.size is not None, file
        path = _present(name, root, file.name)
        batch, targets = read_cifar(path, classes, file.size // record_bytes(classes))
        images.append(torch.from_numpy(batch))
        labels.append(torch.from_numpy(targets))
    # The registry lists the test file last.
    return Dataset(
        name=name,
        x=torch.cat(images[:-1]),
        y=torch.cat(labels[:-1]),
        test_x=images[-1],
        test_y=labels[-1],
        classes=classes,
        scale=1 / 255,
    )


def _present(name: str, root: Path, file: str) -> Path:
    folder = SOURCES[name].folder
    path = root / folder / file
    if not path.exists():
        raise FednagError(
            f"{path} is missing: run `fednag data get {name}`, "
            f"or set FEDNAG_DATA to the folder that holds {folder}/"
        )
    return path


def _wrong(name: str, path: Path, why: str) -> FednagError:
    return FednagError(f"{path} holds {why}; delete it and run `fednag data get {name}`")
