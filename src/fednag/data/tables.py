"""A user's own data from a file: a CSV with a header, or arrays in an NPZ."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednag.data.arrays import Array, read_npz
from fednag.data.dataset import BYTES, Dataset, remark_on_classes, shared
from fednag.errors import FednagError

SHARE = 0.2  # of the rows are kept for testing, unless told otherwise
HELD_OUT = 5  # the stream of this draw
ENDINGS = (".csv", ".npz")

# What programs write where there is nothing, whatever its case.
MISSING = {"", "na", "n/a", "null", "none", "?", "-", "nan", "+nan", "-nan"}
MOST = 2**63 - 1  # of whole numbers
LARGEST = float(np.finfo(np.float32).max)  # features are kept in single precision


@dataclass(frozen=True)
class Source:
    """Which files, which columns, and how much of it is for testing."""

    path: Path
    target: str | None = None  # the last column, if not said
    owner: str | None = None
    test_path: Path | None = None
    test_share: float = SHARE
    seed: int = 0
    task: str | None = None  # classification or regression; else the targets decide
    others: tuple[str, ...] = ()  # columns beside them that are no features, for who asks for them
    loss_takes: str | None = None  # what a loss from Python works on: numbers or integers


@dataclass(frozen=True, eq=False)
class _Rows:
    names: tuple[str, ...]  # of the features' columns; none in an NPZ
    x: Array
    y: Array
    owners: Array | None
    others: Mapping[str, Array] = field(default_factory=dict)


def read_table(source: Source) -> Dataset:
    """The data set in a file. Whole numbers and words as targets are classes, others are numbers,
    unless the task says otherwise.

    Test rows come from ``test_path``, or from the file itself: a share of each class, drawn with
    the seed.
    """
    rows = _told(_raw(source, source.path), source, source.path)
    is_class = _is_class(rows)
    test = None
    if source.test_path:
        test = _told(_raw(source, source.test_path), source, source.test_path)
    elif source.path.suffix == ".npz" and "test_x" in read_npz(source.path):
        test = _told(_arrays(source.path, "test_"), source, source.path)
    if test is None:
        rows, test = _parted(rows, is_class, source)
    if test.names != rows.names or test.x.shape[1:] != rows.x.shape[1:]:
        raise FednagError(
            source.test_path or source.path,
            "the test rows have other features than the training rows",
            "give both the same columns",
        )
    if len(test.y) and (_is_class(test) != is_class or _is_word(test) != _is_word(rows)):
        raise FednagError(
            source.test_path or source.path,
            "the test rows have other targets than the training rows",
            "give both classes, or both numbers, or set data.task",
        )
    classes: int | None = None
    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = (BYTES,) if rows.x.dtype == np.uint8 else ()
    y, test_y = rows.y, test.y
    if is_class:
        known = np.unique(np.concatenate([y, test_y]))
        y, test_y = np.searchsorted(known, y), np.searchsorted(known, test_y)
        classes = max(len(known), 2)
        words = tuple(known.tolist()) if _is_word(rows) else ()
        if not words and source.task is None:
            remarks += remark_on_classes(len(known), len(y) + len(test_y))
    # Floating numbers on one side make floating numbers of the other.
    whole = all(part.x.dtype.kind in "iu" for part in (rows, test))
    owners = None
    if rows.owners is not None:
        owners = torch.from_numpy(np.unique(rows.owners, return_inverse=True)[1].astype(np.int64))
    return Dataset(
        name=source.path.stem,
        x=_features(rows.x, whole),
        y=_targets(y),
        test_x=_features(test.x, whole),
        test_y=_targets(test_y),
        classes=classes,
        scale=1 / 255 if rows.x.dtype == np.uint8 else 1.0,
        owners=owners,
        words=words,
        remarks=remarks,
        columns=rows.others,
    )


def _is_class(rows: _Rows) -> bool:
    return rows.y.dtype.kind in "iuU" and rows.y.ndim == 1


def _is_word(rows: _Rows) -> bool:
    return rows.y.dtype.kind == "U"


def _told(rows: _Rows, source: Source, path: Path) -> _Rows:
    """The rows with targets of the kind that the task asks for, or else the loss."""
    y = rows.y
    if source.task == "regression" and y.dtype.kind == "U":
        raise FednagError(
            "data.task",
            f"'regression' predicts numbers, and the targets in {path} are words",
            "leave it out",
        )
    if source.task == "classification":
        if y.ndim > 1:
            raise FednagError(
                "data.task",
                f"'classification' takes one class a row, and y in {path} has shape {y.shape}",
                "save y with one dimension",
            )
        if y.dtype.kind == "f" and not np.equal(np.mod(y.astype(np.float64), 1), 0).all():
            raise FednagError(
                "data.task",
                f"'classification' takes whole numbers or words, and {path} has other numbers as "
                "targets",
                "leave it out, or use 'regression'",
            )
        return rows if y.dtype.kind == "U" else replace(rows, y=y.astype(np.int64))
    if y.dtype.kind in "Uf":
        return rows
    if source.task is None and y.ndim == 2 and y.shape[1] == 1 and source.loss_takes != "numbers":
        raise FednagError(
            path,
            f"y has shape {y.shape}, and a class is one whole number a row",
            "save y[:, 0], or set data.task = 'regression' if y are numbers",
        )
    numbers = source.task == "regression" or source.loss_takes == "numbers"
    # More than one integer a row are numbers, unless a loss is given that may know better.
    numbers |= y.ndim > 1 and source.loss_takes is None
    return replace(rows, y=y.astype(np.float64 if numbers else np.int64))


def _raw(source: Source, path: Path) -> _Rows:
    if path.suffix == ".npz":
        for option, given in (("target", source.target), ("owner", source.owner)):
            if given is not None:
                raise FednagError(
                    f"data.{option}", f"names a column, and {path} has arrays", "leave it out"
                )
        return _with_others(_arrays(path, ""), path, source.others)
    if path.suffix != ".csv":
        raise FednagError(path, "is neither .csv nor .npz", "save it as one of them")
    return _columns(path, source.target, source.owner, source.others)


def _with_others(rows: _Rows, path: Path, names: tuple[str, ...]) -> _Rows:
    """The rows of an NPZ with other arrays of it, a value for each."""
    arrays = read_npz(path)
    for name in names:
        array = arrays.get(name)
        if array is None or array.shape != (len(rows.x),) or array.dtype.kind not in "biuU":
            raise FednagError(
                path, f"has no array {name!r} of a word or whole number for each sample", "save one"
            )
    return replace(rows, others={name: arrays[name] for name in names})


def _arrays(path: Path, prefix: str) -> _Rows:
    arrays = read_npz(path)
    for name in (f"{prefix}x", f"{prefix}y"):
        if name not in arrays:
            held = ", ".join(arrays) or "nothing"
            raise FednagError(path, f"has no array {name!r} (it holds {held})", "save one")
    x, y, owners = arrays[f"{prefix}x"], arrays[f"{prefix}y"], arrays.get(f"{prefix}owners")
    if x.ndim < 2 or x.dtype.kind not in "biuf" or not x.size:
        raise FednagError(
            path,
            f"{prefix}x is {x.dtype} of shape {x.shape}",
            "it must hold numbers, a row or image for each sample",
        )
    if y.ndim < 1 or y.dtype.kind not in "biufU" or not all(y.shape[1:]):
        raise FednagError(
            path,
            f"{prefix}y is {y.dtype} of shape {y.shape}",
            "it must hold numbers or words, one or more for each sample",
        )
    if owners is not None and (owners.ndim != 1 or owners.dtype.kind not in "biuU"):
        raise FednagError(
            path,
            f"{prefix}owners is {owners.dtype} of shape {owners.shape}",
            "it must hold a whole number or word for each sample",
        )
    for name, array in (("y", y), ("owners", owners)):
        if array is not None and len(array) != len(x):
            raise FednagError(
                path,
                f"{prefix}{name} has {len(array)} rows and {prefix}x has {len(x)}",
                "they must be as many",
            )
    for name, array in (("x", x), ("y", y)):
        if array.dtype == np.uint64 and array.size and int(array.max()) > MOST:
            raise FednagError(
                path, f"{prefix}{name} holds {array.max()}", f"whole numbers go up to {MOST}"
            )
    return _Rows((), x, y, owners)


def _columns(path: Path, target: str | None, owner: str | None, others: tuple[str, ...]) -> _Rows:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            read = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise _unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise FednagError(path, f"is not a CSV in UTF-8 ({error})", "save it as one") from error
    if len(header) < 2 or not read:
        raise FednagError(
            path,
            "needs a header and rows, with a column for the target and one at least for features",
        )
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise FednagError(path, f"column {twice!r} is there twice", "rename one")
    for line, row in read:
        if len(row) != len(header):
            raise FednagError(
                path, f"line {line} has {len(row)} values and the header {len(header)}", "mend it"
            )
    lines = [line for line, _ in read]
    table = {name: [row[i].strip() for _, row in read] for i, name in enumerate(header)}
    target = header[-1] if target is None else target
    named = [
        ("data.target", target),
        ("data.owner", owner),
        *(("tier.groups", name) for name in others),
    ]
    for where, name in named:
        if name is not None and name not in table:
            near = get_close_matches(name, header, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(header)}"
            raise FednagError(where, f"{path} has no column {name!r}{hint}")
    features = [name for name in header if name not in (target, owner, *others)]
    if not features:
        raise FednagError(path, "has no column left for features", "add one")
    check_cells(path, table, lines, features, target)
    columns = [[float(text) for text in table[name]] for name in features]
    x = np.array(columns, np.float64).T.astype(np.float32)
    owners = np.array(table[owner]) if owner is not None else None
    try:
        beside = {name: np.array(table[name]) for name in others}
        return _Rows(tuple(features), x, _labels(table[target]), owners, beside)
    except OverflowError as error:
        raise FednagError(
            path,
            f"column {target!r} holds a whole number beyond 64 bits",
            "use smaller ones, or words",
        ) from error


def _labels(texts: list[str]) -> Array:
    """Whole numbers if all are, else numbers if all are, else words."""
    if not all(is_number(text) for text in texts):
        return np.array(texts)
    numbers = np.array([float(text) for text in texts])
    whole = all(text.lstrip("+-").isdecimal() for text in texts)
    return np.array([int(text) for text in texts], np.int64) if whole else numbers


def _parted(rows: _Rows, is_class: bool, source: Source) -> tuple[_Rows, _Rows]:
    """Rows for training and rows for testing; of each class the same share, where there are."""
    count = len(rows.x)
    order = np.random.default_rng([source.seed, HELD_OUT]).permutation(count)
    if is_class:
        order = order[np.argsort(rows.y[order], kind="stable")]
    # Row k of the ordered ones is for testing where k times the share passes a whole number.
    marks = np.floor(np.arange(1, count + 1) * source.test_share)
    is_test = np.zeros(count, dtype=bool)
    is_test[order] = np.diff(marks, prepend=0) > 0
    if is_test.all():
        raise FednagError(source.path, "leaves no row for training", "lower data.test_share")
    return _taken(rows, ~is_test), _taken(rows, is_test)


def _taken(rows: _Rows, wanted: NDArray[np.bool_]) -> _Rows:
    owners = None if rows.owners is None else rows.owners[wanted]
    others = {name: column[wanted] for name, column in rows.others.items()}
    return _Rows(rows.names, rows.x[wanted], rows.y[wanted], owners, others)


def _features(x: Array, whole: bool) -> Tensor:
    """Bytes and integers stay what they are: a model of the user's own may look words up."""
    kept = x if x.dtype == np.uint8 else x.astype(np.int64 if whole else np.float32)
    return shared(kept)


def _targets(y: Array) -> Tensor:
    kind = np.int64 if y.dtype.kind in "iu" else np.float32
    return shared(y.astype(kind))


def _unreadable(path: Path, error: OSError) -> FednagError:
    return FednagError("data.path", f"{path} cannot be read ({error.strerror})", "check the path")


def check_cells(
    path: Path,
    table: Mapping[str, Sequence[str]],
    lines: Sequence[int],
    features: Sequence[str],
    target: str,
) -> None:
    """Raise a sentence on cells that cannot be trained on; ``lines`` are those of the file."""
    words = any(not is_missing(text) and not is_number(text) for text in table[target])
    empty: dict[int, str] = {}
    wrong: dict[int, str] = {}
    for name in (*features, target):
        for row, text in enumerate(table[name]):
            if is_missing(text):
                empty.setdefault(row, name)
            elif not (words and name == target) and not (
                is_number(text) and abs(float(text)) <= LARGEST
            ):
                wrong.setdefault(row, name)
    if wrong:
        row = min(wrong)
        name = wrong[row]
        raise FednagError(
            path,
            f"column {name!r} holds {table[name][row][:40]!r} in line {lines[row]}, where a "
            "finite number should be",
            "turn it into numbers or leave the column out",
        )
    if empty:
        row = min(empty)
        name = empty[row]
        said = f"{table[name][row]!r}" if table[name][row] else "nothing"
        lack = f"{len(empty)} rows lack a value" if len(empty) > 1 else "one row lacks a value"
        first = "the first is" if len(empty) > 1 else "it is"
        # A class may bear such a name in earnest, and only its owner can tell.
        rename = ", or rename the class if it is one" if words and name == target else ""
        raise FednagError(
            path,
            f"{lack}: {first} line {lines[row]}, where column {name!r} holds {said}",
            f"drop or fill them{rename}",
        )


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python would pass over
