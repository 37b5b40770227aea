"""A run's records and its folder: all that tables and figures are made from.

A run folder holds ``config.toml`` (everything needed to run it again), ``records.jsonl`` (one line
per evaluation, written as it happens), ``run.json`` (status, versions), and the models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from fednag.errors import FednagError

WHOLE = ("iteration", "round", "bytes_up", "bytes_down", "participants")
MAY_BE_NONE = ("loss", "accuracy", "train_accuracy")


@dataclass(frozen=True)
class Record:
    """One evaluation. Bytes and seconds count from the start of the run."""

    iteration: int
    round: int
    loss: float | None  # global training loss; None once the run has diverged
    accuracy: float | None  # on the test set; None without one, or for regression
    train_accuracy: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    participants: int  # workers who took part in this round
    worker_losses: tuple[float, ...] | None = None

    def as_json(self) -> str:
        fields = {key: value for key, value in asdict(self).items() if key != "worker_losses"}
        if self.worker_losses is not None:
            fields["worker_losses"] = list(self.worker_losses)
        return json.dumps(fields, allow_nan=False)


def write_atomically(path: Path, text: str) -> None:
    """The whole text or nothing: written beside ``path``, then renamed onto it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def records_file(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def info_file(self) -> Path:
        return self.path / "run.json"

    @classmethod
    def create(cls, root: Path, name: str, label: str) -> RunFolder:
        """A new folder ``root/name/label``, or ``label-2`` and so on when that is taken."""
        parent = root / name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, 100_000):
                path = parent / (label if number == 1 else f"{label}-{number}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise FednagError(
                f"{parent}: cannot make a run folder there ({error.strerror}); "
                "choose another with --out"
            ) from error
        raise FednagError(f"{parent}: too many runs named {label}; remove some")

    def append(self, record: Record) -> None:
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(record.as_json() + "\n")

    def write_info(self, info: Mapping[str, Any]) -> None:
        write_atomically(self.info_file, json.dumps(info, indent=2) + "\n")

    def records(self) -> list[Record]:
        """All records; a last line cut short by a crash is left out."""
        if not self.records_file.is_file():
            raise FednagError(f"{self.path}: no records.jsonl there; give the folder of a run")
        try:
            text = self.records_file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise FednagError(
                f"{self.records_file}: cannot be read ({error.strerror}); check its permissions"
            ) from error
        lines = text.split("\n")[:-1]  # what follows the last line break was cut short
        return [self._parse(line, number) for number, line in enumerate(lines, 1)]

    def info(self) -> dict[str, Any]:
        try:
            info = json.loads(self.info_file.read_text(encoding="utf-8"))
            if not isinstance(info, dict):
                raise ValueError("not a table")
            if type(info.get("seed")) is not int or not isinstance(info.get("label"), str):
                raise ValueError("no label or seed")
        except (OSError, ValueError, RecursionError) as error:
            raise FednagError(
                f"{self.info_file}: cannot be read ({error}); give the folder of a run"
            ) from error
        return info

    def _parse(self, line: str, number: int) -> Record:
        try:
            fields = json.loads(line)
            losses = fields.pop("worker_losses", None)
            for key, given in fields.items():
                absent = given is None and key in MAY_BE_NONE
                if not absent and not _is_number(given, key in WHOLE):
                    raise ValueError(f"{key} is {given!r}")
            return Record(**fields, worker_losses=None if losses is None else tuple(losses))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise FednagError(
                f"{self.records_file}: line {number} is not a record ({error}); restore the file"
            ) from error


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (not whole and isinstance(value, float) and isfinite(value))


def find_runs(paths: list[Path]) -> list[RunFolder]:
    """The run folders among ``paths`` and below them."""
    found: list[RunFolder] = []
    for path in paths:
        if not path.exists():
            raise FednagError(f"{path}: no such folder; give run folders, or a folder of runs")
        below = sorted(file.parent for file in path.rglob("records.jsonl"))
        if not below:
            raise FednagError(f"{path}: no runs there; `fednag run` or `fednag compare` makes some")
        found += [RunFolder(folder) for folder in below if RunFolder(folder) not in found]
    return found
