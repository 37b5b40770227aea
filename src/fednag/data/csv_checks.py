"""The cells of a CSV: which hold nothing, or what is no number where one should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fednag.errors import FednagError

# What programs write where there is nothing, whatever its case.
MISSING = {"", "na", "n/a", "null", "none", "?", "-", "nan", "+nan", "-nan"}
LARGEST = float(np.finfo(np.float32).max)  # features are kept in single precision


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
            elif not (words and name == target) and not _is_finite(text):
                wrong.setdefault(row, name)
    if wrong:
        row = min(wrong)
        name = wrong[row]
        raise FednagError(
            f"{path}: column {name!r} holds {table[name][row][:40]!r} in line {lines[row]}, where "
            "a finite number should be; turn it into numbers or leave the column out"
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
            f"{path}: {lack}: {first} line {lines[row]}, where column {name!r} holds {said}; drop "
            f"or fill them{rename}"
        )


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_finite(text: str) -> bool:
    return is_number(text) and abs(float(text)) <= LARGEST
