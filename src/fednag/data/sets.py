"""Data sets by name: the synthetic one, and the files that MNIST and CIFAR come in, read."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from importlib.util import find_spec
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.data.dataset import Dataset
from fednag.data.download import SOURCES, data_folder, unknown_name
from fednag.errors import FednagError

NAMES = ("digits", "synthetic", "mnist", "fashion-mnist", "cifar-10", "cifar-100")
_OPTIONS = {"synthetic": ("alpha", "beta", "workers")}
_WRITER_COLUMN = 2  # QMNIST's columns: digit, NIST series, writer, ...
LIMIT = 2 << 30  # bytes of payload: MNIST's largest file has 47 MB
_CHUNK = 1 << 20  # bytes read at once
_MAX_RANK = 8  # dimensions of an IDX file
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IMAGE_BYTES = 3 * 32 * 32  # of CIFAR
COARSE_CLASSES = 20  # of CIFAR-100
Classes = Literal[10, 100]
FEATURES = 60  # of the synthetic data
CLASSES = 10  # of the synthetic data
MOST_SAMPLES = 2000  # the log-normal tail reaches millions: one worker must not fill the memory
MOST_WORKERS = 10_000
_STREAM = 0x5E7  # keeps these draws apart from others made with the same seed


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
            raise FednagError(
                "", f"data set '{name}' has no option '{option}' ({offer})", "leave it out"
            )
    if name == "synthetic":
        return synthetic(seed=seed, **options)
    if name == "digits":
        return _digits()
    root = data_folder() if folder is None else folder
    cifar: dict[str, Classes] = {"cifar-10": 10, "cifar-100": 100}
    return _cifar(name, root, cifar[name]) if name in cifar else _mnist(name, root)


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
            f"{path} is missing: run `fednag data get {name}`, or set FEDNAG_DATA to the folder "
            f"that holds {folder}/"
        )
    return path


def _wrong(name: str, path: Path, why: str) -> FednagError:
    return FednagError("", f"{path} holds {why}", f"delete it and run `fednag data get {name}`")


def read_idx(path: Path, limit: int = LIMIT) -> NDArray[Any]:
    """The array in an IDX file (gzip when the name ends in .gz), in native byte order.

    `limit` is the largest payload, in bytes, that is accepted.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            dtype, shape = _header(path, stream, limit)
            payload = _payload(path, stream, math.prod(shape) * dtype.itemsize)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken(path, f"gzip: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    array = np.frombuffer(payload, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header(
    path: Path, stream: BufferedIOBase, limit: int
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        raise _broken(path, f"it starts with {magic.hex() or 'nothing'}")
    rank = magic[3]
    if not 1 <= rank <= _MAX_RANK:
        raise _broken(path, f"its header announces {rank} dimensions")
    sizes = stream.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise _broken(path, "it ends inside its header")
    shape = struct.unpack(f">{rank}I", sizes)
    dtype = np.dtype(_TYPES[magic[2]])
    claimed = math.prod(shape) * dtype.itemsize
    if not 0 < claimed <= limit:
        raise _broken(path, f"its header announces {claimed} bytes, where 1 to {limit} can be read")
    return dtype, shape


def _payload(path: Path, stream: BufferedIOBase, claimed: int) -> bytearray:
    # Grows with what is really there: read(claimed) would set all of it aside at once.
    payload = bytearray()
    while len(payload) <= claimed:
        chunk = stream.read(min(_CHUNK, claimed + 1 - len(payload)))
        if not chunk:
            break
        payload += chunk
    if len(payload) < claimed:
        raise _broken(path, f"its header announces {claimed} bytes, {len(payload)} are there")
    if len(payload) > claimed:
        raise _broken(path, f"bytes follow the {claimed} its header announces")
    return payload


def _broken(path: Path, why: str, kind: str = "IDX") -> FednagError:
    return FednagError(
        "", f"{path} is not a complete {kind} file ({why})", "delete it and download it again"
    )


def _unreadable(path: Path, error: OSError) -> FednagError:
    return FednagError(
        "",
        f"{path} cannot be read ({error.strerror or error})",
        "check that it is a file you may read, or delete it and download it again",
    )


def record_bytes(classes: Classes) -> int:
    """How long one record is: CIFAR-100 has a coarse label before the fine one."""
    return IMAGE_BYTES + (1 if classes == 10 else 2)


def read_cifar(
    path: Path, classes: Classes, count: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` images (count, 3, 32, 32) and their labels; the fine labels for CIFAR-100."""
    record = record_bytes(classes)
    broken = partial(_broken, path, kind="CIFAR-binary")
    try:
        size = path.stat().st_size
        if size % record:
            raise broken(f"{size} bytes are not a whole number of {record}-byte records")
        if size != count * record:
            raise broken(f"it holds {size // record} records where {count} belong")
        records = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise _unreadable(path, error) from error
    if records.size != size:
        raise broken(f"only {records.size} of its {size} bytes could be read")
    records = records.reshape(count, record)
    fine = records[:, -IMAGE_BYTES - 1]
    coarse = [("coarse label", records[:, 0], COARSE_CLASSES)] if classes == 100 else []
    for what, labels, limit in (("label", fine, classes), *coarse):
        wrong = np.flatnonzero(labels >= limit)
        if wrong.size:
            row = int(wrong[0])
            raise broken(f"record {row} has {what} {labels[row]}, not one of 0 to {limit - 1}")
    return records[:, -IMAGE_BYTES:].reshape(count, 3, 32, 32), fine.astype(np.int64)


def synthetic(alpha: float = 1.0, beta: float = 1.0, workers: int = 30, seed: int = 0) -> Dataset:
    """Classification data where each worker has its own model (alpha) and its own inputs (beta).

    As the paper writes it, `alpha` and `beta` are variances. Worker k labels its samples
    argmax(W_k x + b_k) with W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha); its inputs are
    x ~ N(v_k, Sigma), Sigma_jj = j^-1.2, v_k ~ N(B_k, 1), B_k ~ N(0, beta). It has 50 samples plus
    a log-normal(4, 2) draw, at most `MOST_SAMPLES` in all; the last fifth is for testing.

    `alpha` hardly matters, here as in the paper: u_k raises the score of every class alike, which
    no softmax notices. The workers' models differ through the unit variance of W_k and b_k.
    """
    for field, value in (("alpha", alpha), ("beta", beta)):
        number = isinstance(value, float) or _is_integer(value)
        if not number or not math.isfinite(value) or value < 0:
            raise FednagError(f"{field} is {value!r}, a variance: give a finite number from 0 up")
    if not _is_integer(workers) or not 1 <= workers <= MOST_WORKERS:
        raise FednagError(
            f"workers is {workers!r}: give a whole number from 1 to {MOST_WORKERS} for the "
            "synthetic data"
        )
    if not _is_integer(seed) or seed < 0:
        raise FednagError(f"seed is {seed!r}: give a whole number from 0 up")

    spread = np.arange(1, FEATURES + 1) ** -0.6
    train_x, train_y, test_x, test_y, owners = [], [], [], [], []
    for k in range(workers):
        # A stream per worker: worker k stays the same whatever the number of workers.
        rng = np.random.default_rng([seed, _STREAM, k])
        count = min(50 + int(rng.lognormal(4.0, 2.0)), MOST_SAMPLES)
        u = math.sqrt(alpha) * rng.standard_normal()
        weights = u + rng.standard_normal((CLASSES, FEATURES))
        biases = u + rng.standard_normal(CLASSES)
        centre = math.sqrt(beta) * rng.standard_normal() + rng.standard_normal(FEATURES)
        x = centre + spread * rng.standard_normal((count, FEATURES))
        y = np.argmax(x @ weights.T + biases, axis=1)

        train = count - max(1, count // 5)
        train_x.append(x[:train].astype(np.float32))
        train_y.append(y[:train])
        test_x.append(x[train:].astype(np.float32))
        test_y.append(y[train:])
        owners.append(np.full(train, k))

    return Dataset(
        name="synthetic",
        x=torch.from_numpy(np.concatenate(train_x)),
        y=torch.from_numpy(np.concatenate(train_y).astype(np.int64)),
        test_x=torch.from_numpy(np.concatenate(test_x)),
        test_y=torch.from_numpy(np.concatenate(test_y).astype(np.int64)),
        classes=CLASSES,
        owners=torch.from_numpy(np.concatenate(owners).astype(np.int64)),
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
