"""``silos.jsonl`` in the run's folder: what each silo did in each round, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from fednag.core import digests
from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError


class SiloLog:
    """Says of every silo that was asked: ok, missed or refused, why, and its own numbers; and which
    nodes were turned away before they were silos."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._begun = False

    def open(self, folder: Path) -> None:
        self.path, self._begun = folder / "silos.jsonl", False
        if self.path.exists():  # a damaged one is told before anything is trained
            read(self.path)

    def write(self, number: int, lines: list[dict[str, Any]]) -> None:
        if self.path is None:
            return
        if not self._begun:
            self._drop_from(number)
            self._begun = True
        digests.append(
            self.path,
            (json.dumps({"round": number, "at": _now(), **x}, allow_nan=False) for x in lines),
        )

    def add(self, **entry: Any) -> None:
        """Write down what belongs to no round: it is said to be of round 0, and stays."""
        if self.path is not None:
            if not self._begun:  # its last line may have been cut short
                self._drop_from(inf)
            digests.append(self.path, [json.dumps({"round": 0, "at": _now(), **entry})])

    def _drop_from(self, number: float) -> None:
        """A run that goes on plays some rounds again: their lines are written again."""
        if self.path is None or not self.path.exists():
            return
        kept = [
            line
            for line in read(self.path)
            if isinstance(line["round"], int) and line["round"] < number
        ]
        write_atomically(self.path, digests.chained(map(json.dumps, kept)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one cut short by a crash is left out."""
    with os_errors(path, "cannot be read", "check its permissions"):
        content = path.read_bytes()
    try:
        found = [digests.parsed(line) for line in digests.lines(content)]
        if not all(isinstance(entry, dict) and "round" in entry for entry in found):
            raise ValueError("a line is no entry")
    except ValueError as error:
        raise FednagError(path, f"it is damaged ({error})", "restore it, or remove it") from error
    return found


def entry(silo: int, phase: str, status: str, **more: Any) -> dict[str, Any]:
    """A line of the log; what is None is left out."""
    told: Mapping[str, Any] = {"phase": phase, "silo": silo, "status": status, **more}
    return {key: given for key, given in told.items() if given is not None}
