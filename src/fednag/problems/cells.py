"""The cells of a CSV: which hold nothing, or what is no number where one should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fednag.errors import FednagError

LARGEST = float(np.finfo(np.float32).max)  # features are kept in single precision


def check_cells(
    path: Path,
    table: Mapping[str, Sequence[str]],
    lines: Sequence[int],
    features: Sequence[str],
    target: str,
) -> None:
    """Raise a sentence on cells that cannot be trained on; ``lines`` are those of the file."""
    # A target's words are classes, unless they stand among numbers: nan is then a missing one.
    words = any(text and not is_number(text) for text in table[target])
    empty: dict[int, str] = {}
    wrong: dict[int, str] = {}
    for name in (*features, target):
        for row, text in enumerate(table[name]):
            if not text or (text.lower().lstrip("+-") == "nan" and not (words and name == target)):
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
        raise FednagError(
            f"{path}: {lack}: {first} line {lines[row]}, where column {name!r} holds {said}; drop "
            "or fill them"
        )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_finite(text: str) -> bool:
    return is_number(text) and abs(float(text)) <= LARGEST
