"""Digests inside the files they cover, so that damage is noticed before anything is shown.

A table is sealed: it holds a digest of all else in it. Lines that are appended are chained: each
ends with a digest of itself and of the digest before it, so that a line that was changed, left out,
added or moved is noticed, while a file that a crash cut short is as good as it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

KEY = "digest"
LENGTH = 16  # hexadecimal digits that end a line
_MOST_DIGITS = 19  # of a whole number: what 64 bits hold
_END = re.compile(rb', "digest": "([0-9a-f]{16})"\}')
_TAIL = len(', "digest": ""}\n') + LENGTH


class DamagedError(ValueError):
    """A line that is not as it was written."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


def parsed(text: str | bytes) -> Any:
    """What a JSON text says; raises ValueError for all that nothing here writes.

    Those are infinities, numbers beyond 64 bits, halves of characters, and nesting without end.
    """
    try:
        found = json.loads(text, parse_constant=_refused, parse_int=_whole, parse_float=_finite)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def canonical(table: Mapping[str, Any]) -> str:
    """JSON in the one way it is hashed and signed: sorted, without spaces, plain ASCII."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its digest."""
    return {**table, KEY: _of(canonical(table))}


def unsealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table that was sealed, without its digest; raises ValueError if it was changed."""
    rest = {name: own for name, own in table.items() if name != KEY}
    if table.get(KEY) != _of(canonical(rest)):
        raise ValueError("its digest is not that of its content")
    return rest


def append(path: Path, texts: Iterable[str]) -> None:
    """Add tables, each as JSON, to a file of chained lines."""
    with path.open("a+b") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        end = _END.match(file.read())
        if end:
            before = end[1].decode()
        else:  # the first line that is chained covers all there was before it
            file.seek(0)
            before = _of(file.read())[:LENGTH]
        file.write(chained(texts, before))


def chained(texts: Iterable[str], before: str | None = None) -> bytes:
    """Lines that follow one with this digest; those of a new file, without one."""
    before = _of(b"")[:LENGTH] if before is None else before
    lines = []
    for text in texts:
        before = _of(before + text)[:LENGTH]
        lines.append(f'{text[:-1]}, "{KEY}": "{before}"}}\n')
    return "".join(lines).encode()


def lines(content: bytes) -> list[str]:
    """The tables in a file of chained lines; raises DamagedError for the first that was changed.

    A last line that a crash cut short is left out. Lines that were written before there were
    digests have none; the first that has one covers them.
    """
    found: list[str] = []
    before: str | None = None
    place = 0
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        end = _END.fullmatch(line[1 - _TAIL :])
        text = line[: 1 - _TAIL] + b"}" if end else line
        if end:
            before = before or _of(content[:place])[:LENGTH]
            before = _of(before.encode() + text)[:LENGTH]
            if before.encode() != end[1]:
                raise DamagedError(number, "its digest is not that of its content")
        elif before is not None:
            raise DamagedError(number, "it has no digest")
        found.append(text.decode("utf-8", "replace"))
        place += len(line) + 1
    return found


def _of(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS or not -(2**63) <= int(text) < 2**63:
        raise ValueError("a whole number is beyond 64 bits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number
