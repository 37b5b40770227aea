"""A run's records and its folder: all that tables and figures are made from.

A run folder holds ``config.toml`` (everything needed to run it again), ``records.jsonl`` (one line
per evaluation, written as it happens), ``run.json`` (status, versions), the models, and until the
run is over its checkpoints. Whoever writes in it holds its lock.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from fednag.config.messages import first_of
from fednag.core.files import os_errors, sync, write_atomically
from fednag.core.record import Record
from fednag.errors import BusyError, FednagError

OVER = ("finished", "diverged")  # what run.json says of a run with nothing left to do

_RECORD = TypeAdapter(Record)


@dataclass(frozen=True)
class Mark:
    """How far a run's records had come: enough to find that place again, and to know it."""

    records: int
    size: int
    digest: str


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

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def releases_file(self) -> Path:
        """How many rounds were begun with noise that cannot be drawn again."""
        return self.path / "releases.json"

    def released(self, rounds: int) -> int:
        """That number; ``rounds`` are over, so that there must have been as many."""
        file = self.releases_file
        try:
            found = json.loads(file.read_text(encoding="utf-8"))["rounds"] if file.exists() else 0
            if type(found) is not int or found < rounds:
                raise ValueError(f"{rounds} rounds are over, and it says {found!r}")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FednagError(
                file,
                f"it says how often noise was released, and cannot be used ({error})",
                "restore it, or start a new run",
            ) from error
        return int(found)

    def count_release(self, rounds: int) -> None:
        write_atomically(self.releases_file, json.dumps({"rounds": rounds}))

    @classmethod
    def create(cls, root: Path, name: str, label: str) -> RunFolder:
        """A new folder ``root/name/label``, or ``label-2`` and so on when that is taken."""
        parent = root / name
        with os_errors(parent, "cannot make a run folder there", "choose another with --out"):
            parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, 100_000):
                path = parent / (label if number == 1 else f"{label}-{number}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        raise FednagError(parent, f"too many runs named {label}", "remove some")

    @classmethod
    def find(cls, root: Path, name: str, label: str) -> RunFolder | None:
        """The newest folder that ``create`` made with the same words, if there is one."""
        numbered = {1: root / name / label}
        for path in (root / name).glob(f"{glob.escape(label)}-*"):
            number = path.name.removeprefix(f"{label}-")
            if number.isascii() and number.isdecimal():
                numbered[int(number)] = path
        runs = [numbered[n] for n in sorted(numbered) if (numbered[n] / "run.json").is_file()]
        return cls(runs[-1]) if runs else None

    @contextmanager
    def locked(self, patience: float = 0.5) -> Iterator[None]:
        """For as long as this process writes there; ends with the process, however that ends.

        A little patience, for whoever asks whether it is being written holds it for a moment.
        """
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=patience, poll_interval=0.02)
        except Timeout:
            raise BusyError(
                self.path, "another process is writing this run", "wait for it, or stop it"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def append(self, record: Record) -> None:
        with self.records_file.open("a", encoding="utf-8") as file:
            file.write(record.as_json() + "\n")

    def mark(self, records: int) -> Mark:
        """The place after the last of this many records, safely on the disk."""
        sync(self.records_file)
        content = self.records_file.read_bytes()
        return Mark(records, len(content), hashlib.sha256(content).hexdigest())

    def agrees(self, mark: Mark) -> bool:
        """Whether the records up to the mark are those that were marked."""
        try:
            with self.records_file.open("rb") as file:
                content = file.read(mark.size)
        except (OSError, ValueError, TypeError):  # a size that is none
            return False
        return hashlib.sha256(content).hexdigest() == mark.digest

    def verify(self, info: Mapping[str, Any]) -> None:
        """Raise a sentence if a run that is over has other records than it ended with."""
        if info.get("status") not in OVER:
            return
        try:
            mark = Mark(**info["records"])
            same = self.records_file.stat().st_size == mark.size and self.agrees(mark)
        except (KeyError, TypeError, OSError):
            same = False
        if not same:
            raise FednagError(
                self.records_file,
                f"it is not as the run left it, says {self.info_file.name}",
                "restore both, or run again",
            )

    @property
    def is_being_written(self) -> bool:
        if not (self.path / ".lock").exists():
            return False
        try:
            with self.locked(patience=0):
                return False
        except FednagError:
            return True
        except OSError:  # a folder that cannot be written to
            return False

    def back_to(self, mark: Mark | None) -> list[Record]:
        """Drop what was recorded after the mark; it will be recorded again. Returns the rest."""
        with self.records_file.open("ab") as file:
            file.truncate(mark.size if mark else 0)
        return self.records()

    def tidy(self) -> None:
        """Remove what a process that was killed had half-written; for whoever holds the lock."""
        for file in self.path.rglob("*.tmp"):
            file.unlink()

    def write_info(self, info: Mapping[str, Any]) -> None:
        write_atomically(self.info_file, json.dumps(info, indent=2) + "\n")

    def records(self) -> list[Record]:
        """All records; a last line cut short by a crash is left out."""
        if not self.records_file.is_file():
            raise FednagError(self.path, "no records.jsonl there", "give the folder of a run")
        with os_errors(self.records_file, "cannot be read", "check its permissions"):
            text = self.records_file.read_text(encoding="utf-8", errors="replace")
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
                self.info_file, f"cannot be read ({error})", "restore it, or remove that folder"
            ) from error
        return info

    def _parse(self, line: str, number: int) -> Record:
        try:
            record = _RECORD.validate_json(line, strict=True, extra="forbid")
            record.as_json()  # raises ValueError for a number that is not finite
            for facts in record.rounds:
                if len(facts.cohort or ()) != len(facts.steps or ()):
                    raise ValueError("rounds: as many steps as workers belong there")
            return record
        except ValueError as error:
            raise FednagError(
                self.records_file,
                f"line {number} is not a record ({first_of(error)})",
                "restore the file",
            ) from error


def find_runs(paths: list[Path]) -> list[RunFolder]:
    """The run folders among ``paths`` and below them."""
    found: list[RunFolder] = []
    for path in paths:
        if not path.exists():
            raise FednagError(path, "no such folder", "give run folders, or a folder of runs")
        files = [file for name in ("records.jsonl", "run.json") for file in path.rglob(name)]
        below = sorted({file.parent for file in files})
        if not below:
            raise FednagError(path, "no runs there", "`fednag run` or `fednag compare` makes some")
        found += [RunFolder(folder) for folder in below if RunFolder(folder) not in found]
    return found
