"""A run's records and its folder: all that tables and figures are made from.

A run folder holds ``config.toml`` (everything needed to run it again), ``records.jsonl`` (one line
per evaluation, written as it happens), ``run.json`` (status, versions), the models, and until the
run is over its checkpoints. Whoever writes in it holds its lock.

All of it is covered by digests, so that damage is noticed before anything is shown. ``run.json`` is
sealed, and has the digests of ``config.toml``, of the models, and of the records once they are
complete; until then each record ends with a digest, and checkpoints say how many there were. Only
``run.json`` is replaced while a run lasts, so a kill never leaves two files that disagree. Folders
of before are read too: what has no digest is believed.
"""

from __future__ import annotations

import glob
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from fednag.config.messages import first_of
from fednag.core import digests
from fednag.core.files import check_name, os_errors, sync, write_atomically
from fednag.core.record import Record
from fednag.errors import BusyError, FednagError

OVER = ("finished", "diverged")  # what run.json says of a run with nothing left to do
FORMAT = 2  # of run.json; the first had no digest and no number
LARGE = 1 << 28  # bytes beyond which a model is checked by whoever loads it alone
HEADER = 1 << 26  # bytes that the header of a checkpoint takes at most

# What counts from the start of a run, and what can only grow.
ASCENDING = ("round", "iteration", "bytes_up", "bytes_down", "refusals", "misses")
COUNTED = (*ASCENDING, "participants", "seconds")

T = TypeVar("T")

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
            table = digests.parsed(file.read_bytes()) if file.exists() else {"rounds": 0}
            if table.keys() != {"rounds"}:  # as it was before there were digests
                table = digests.unsealed(table)
            found = table["rounds"]
            if type(found) is not int or found < rounds:
                raise ValueError(f"{rounds} rounds are over, and it says {found!r}")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise FednagError(
                file,
                f"it says how often noise was released, and cannot be used ({error})",
                "restore it, or start a new run",
            ) from error
        return int(found)

    def count_release(self, rounds: int) -> None:
        write_atomically(self.releases_file, json.dumps(digests.sealed({"rounds": rounds})))

    @classmethod
    def create(cls, root: Path, name: str, label: str) -> RunFolder:
        """A new folder ``root/name/label``, or ``label-2`` and so on when that is taken."""
        parent = root / name
        check_name(parent, parent)
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
        digests.append(self.records_file, [record.as_json()])

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
        """Raise a sentence if a file is not as ``run.json`` and the checkpoints say."""
        self.verify_config(info)
        over, is_sealed = info.get("status") in OVER, "format" in info
        if "records" in info or (over and not is_sealed):
            self._verify_records(info)
            models = info.get("models")
            for name, digest in models.items() if isinstance(models, dict) else ():
                self._verify_model(self.path / name, digest)
        for table in self.saved()[:1] if not over else ():
            with suppress(KeyError, TypeError):
                if not self.agrees(Mark(**table["records"])):
                    raise FednagError(
                        self.records_file,
                        "it is not the one that the newest checkpoint was saved with",
                        f"restore it, or go on with `fednag resume {self.path}`",
                    )

    def verify_config(self, info: Mapping[str, Any]) -> None:
        """Raise a sentence if ``config.toml`` is not the one the run began with."""
        digest = info.get("config")
        if digest is not None and self.config_digest() != digest:
            raise FednagError(
                self.config_file,
                "it is not what the run began with",
                "restore it, or start a new run",
            )

    def own_config(self) -> Path:
        """``config.toml``, once it is known to be the one the run began with."""
        self.verify_config(self.info())
        return self.config_file

    def config_digest(self) -> str:
        with os_errors(self.config_file, "cannot be read", "restore it"):
            return hashlib.sha256(self.config_file.read_bytes()).hexdigest()

    def config(self) -> dict[str, Any]:
        """The tables of ``config.toml``, none where there is no such file."""
        if not self.config_file.is_file():
            return {}
        try:
            return tomllib.loads(self.config_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise FednagError(self.config_file, f"cannot be read ({why})", "restore it") from error

    def _verify_records(self, info: Mapping[str, Any]) -> None:
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

    def _verify_model(self, file: Path, digest: object) -> None:
        try:
            if file.stat().st_size > LARGE:
                return
            content = file.read_bytes()
        except OSError:  # whoever needs it will say that it is not there
            return
        if hashlib.sha256(content).hexdigest() != digest:
            raise FednagError(
                file,
                f"it is not as the run left it, says {self.info_file.name}",
                "restore it, or remove it: the records can do without",
            )

    def saved(self) -> list[dict[str, Any]]:
        """What the headers of checkpoints say, newest first; of those that can be read."""
        found = []
        for file in self.checkpoint_files():
            with suppress(OSError, ValueError, KeyError, TypeError):
                with file.open("rb") as opened:
                    size = int.from_bytes(opened.read(8), "little")
                    header = opened.read(min(size, HEADER))
                texts = digests.parsed(header)["__metadata__"]
                text = texts["fednag"]
                own = hashlib.sha256(text.encode()).hexdigest()
                if texts.get("told", own) == own:  # the first checkpoints had no digest of it
                    found.append(dict(digests.parsed(text)))
        return found

    def checkpoint_files(self) -> list[Path]:
        """Checkpoints, newest first."""
        found = self.checkpoints.glob("*.safetensors")
        return sorted((file for file in found if file.stem.isdecimal()), reverse=True)

    @property
    def stamp(self) -> tuple[int, ...]:
        """Changes when the run is written."""
        found: list[int] = []
        for file in (self.records_file, self.info_file, self.config_file):
            try:
                status = file.stat()
                found += [status.st_size, status.st_mtime_ns]
            except OSError:
                found += [-1, -1]
        return tuple(found)

    def steadily(self, read: Callable[[], T]) -> T:
        """What is read from several files, once more if the run was written in between."""
        for _ in range(20):
            before = self.stamp
            try:
                return read()
            except FednagError:
                if self.stamp == before:
                    raise
        return read()

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
        content = digests.sealed({"format": FORMAT, **info})
        write_atomically(self.info_file, json.dumps(content, indent=2) + "\n")

    def records(self) -> list[Record]:
        """All records; a last line cut short by a crash is left out."""
        if not self.records_file.is_file():
            raise FednagError(self.path, "no records.jsonl there", "give the folder of a run")
        with os_errors(self.records_file, "cannot be read", "check its permissions"):
            content = self.records_file.read_bytes()
        try:
            return _records(content)
        except digests.DamagedError as error:
            raise FednagError(
                self.records_file,
                f"line {error.number} is not a record ({error})",
                "restore the file",
            ) from error

    def info(self) -> dict[str, Any]:
        """What ``run.json`` says, if it is as it was written."""
        try:
            info: Any = digests.parsed(self.info_file.read_text(encoding="utf-8"))
            if not isinstance(info, dict):
                raise ValueError("not a table")
            if digests.KEY in info or "format" in info:
                info = digests.unsealed(info)
                if info.get("format") != FORMAT:
                    raise ValueError("a newer fednag wrote it")
            if type(info.get("seed")) is not int or not isinstance(info.get("label"), str):
                raise ValueError("no label or seed")
        except (OSError, ValueError) as error:
            raise FednagError(
                self.info_file, f"cannot be read ({error})", "restore it, or remove that folder"
            ) from error
        return dict(info)


def _records(content: bytes) -> list[Record]:
    found: list[Record] = []
    for number, line in enumerate(digests.lines(content), 1):
        try:
            record = _RECORD.validate_json(line, strict=True, extra="forbid")
            _check(record, found[-1] if found else None)
        except ValueError as error:
            raise digests.DamagedError(number, first_of(error)) from error
        found.append(record)
    return found


def _check(record: Record, before: Record | None) -> None:
    """Raise ValueError for what no run records."""
    digests.parsed(record.as_json())  # every number is finite, and one of 64 bits
    for name in COUNTED:
        count = getattr(record, name)
        if count < (getattr(before, name) if before and name in ASCENDING else 0):
            raise ValueError(f"{name}: {count} is too small")
    for facts in record.rounds:
        if len(facts.cohort or ()) != len(facts.steps or ()):
            raise ValueError("rounds: as many steps as workers belong there")
    workers = [len(each.worker_losses or ()) for each in (before, record) if each]
    if len({count for count in workers if count}) > 1:
        raise ValueError("worker_losses: one of each worker belongs there")


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
