"""The one reader of runs: what tables, charts, reports, clocks and verdicts know of a run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from fednag.core.ending import Ending, Kind
from fednag.core.record import Record, expected_rounds
from fednag.errors import FednagError
from fednag.runs.folder import OVER, RunFolder

if TYPE_CHECKING:
    from fednag.runs.outcome import Outcome

R = TypeVar("R")

AT = r" at iteration (?P<iteration>\d{1,18})"
# What run.json said of endings before it had a table of them.
SENTENCES: dict[Kind, str] = {
    "diverged": rf"diverged{AT}",
    "patience": rf"no better (?P<measure>.+) in (?P<value>\d+) evaluations?,{AT}",
    "seconds": rf"(?P<value>\S+) seconds are over{AT}",
    "target": rf"(?P<measure>.+) (?P<value>\S+) reached{AT}",
}


@dataclass(frozen=True, eq=False)
class RunView:
    """A run: its records, how it came about, and how it ended."""

    label: str
    seed: int
    records: list[Record]
    ending: Ending | None = None  # None: it is not over
    running: bool = False  # it is being written; not over and not running: interrupted
    config: Mapping[str, Any] = field(default_factory=dict)  # the tables of its config.toml
    info: Mapping[str, Any] = field(default_factory=dict)  # sizes, work, versions: its run.json
    folder: Path | None = None

    @classmethod
    def read(cls, folder: RunFolder) -> RunView:
        """A run's folder, read; raises a sentence if it is damaged."""
        return folder.steadily(lambda: cls._read(folder))

    @classmethod
    def _read(cls, folder: RunFolder) -> RunView:
        info = folder.info()
        records = folder.records()
        folder.verify(info)
        return cls(
            label=info["label"],
            seed=info["seed"],
            records=records,
            ending=ending_of(folder, info),
            running=info.get("status") == "running" and folder.is_being_written,
            config=folder.config(),
            info=info,
            folder=folder.path,
        )

    @classmethod
    def of(cls, outcome: Outcome) -> RunView:
        """A run that was made in this process."""
        return cls(
            label=outcome.label,
            seed=outcome.experiment.seed,
            records=outcome.records,
            ending=outcome.ending,
            config=outcome.experiment.model_dump(mode="json", exclude_none=True),
            info={**outcome.about, "notes": outcome.notes},
            folder=outcome.folder,
        )

    @property
    def ended(self) -> str:
        """How it ended, in a few words; or that it has not."""
        if self.ending is None:
            return "running" if self.running else "interrupted"
        return str(self.ending)

    @property
    def diverged(self) -> bool:
        return self.ending is not None and self.ending.kind == "diverged"

    @property
    def settings(self) -> dict[str, Any]:
        """``section.key`` -> value; tables of a list are numbered, ``uplink.0.kind``."""
        found: dict[str, Any] = {}
        for section, given in self.config.items():
            tables = {section: given} if isinstance(given, dict) else {}
            if isinstance(given, list) and all(isinstance(each, dict) for each in given):
                tables = {f"{section}.{number}": each for number, each in enumerate(given)}
            if section == "own" and isinstance(given, dict):  # files and their digests
                digests = " ".join(sorted(map(str, given.values())))
                found["code"] = hashlib.sha256(digests.encode()).hexdigest()[:8]
            elif tables:
                for name, table in tables.items():
                    found |= {f"{name}.{key}": value for key, value in table.items()}
            else:
                found[section] = given
        return found

    @property
    def started(self) -> str:
        return str(self.info.get("started") or "")

    @property
    def notes(self) -> list[str]:
        found = self.info.get("notes")
        return [str(note) for note in found] if isinstance(found, list) else []

    @property
    def rounds(self) -> int:
        """How many rounds there are records of."""
        return self.records[-1].round if self.records else 0

    @property
    def planned(self) -> int | None:
        """How many rounds it was to have."""
        done = (self.records[-1].round, self.records[-1].iteration) if self.records else (0, 0)
        try:
            iterations, tau = (int(self.settings[f"training.{n}"]) for n in ("iterations", "tau"))
            return expected_rounds(-(-iterations // tau), iterations, done)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None

    @property
    def metrics(self) -> list[str]:
        """The metrics that were asked for."""
        return list(dict.fromkeys(name for record in self.records for name in record.metrics))

    @property
    def own_metrics(self) -> Mapping[str, Any]:
        """The metrics of the user's own, and which values of each are better."""
        found = self.settings.get("evaluation.own")
        return found if isinstance(found, dict) else {}

    def values(self, measure: str) -> list[float]:
        """The values of a measure after the first aggregation: w(0) is not a result."""
        found = [record.measured(measure) for record in self.records if record.round > 0]
        return [value for value in found if value is not None]


def read_all(
    folders: Iterable[RunFolder], read: Callable[[RunFolder], R]
) -> tuple[list[R], list[FednagError]]:
    """(what ``read`` makes of each, an error for each that cannot be read)."""
    found, failed = [], list[FednagError]()
    for folder in folders:
        try:
            found.append(read(folder))
        except FednagError as error:
            failed.append(error)
    return found, failed


def ending_of(folder: RunFolder, info: Mapping[str, Any]) -> Ending | None:
    """How a run ended, by its run.json; None if it is not over.

    An older one has a sentence in place of the table; one that says nothing ended as its status.
    """
    status, table, said = (info.get(key) for key in ("status", "ending", "ended"))
    if status not in OVER:
        return None
    if table is not None:
        try:
            ending = Ending(**table)
            str(ending)  # a target without its value cannot be told
            if ending.kind not in get_args(Kind):
                raise ValueError(f"no ending is {ending.kind!r}")
        except (TypeError, ValueError) as error:
            raise FednagError(
                folder.info_file, f"cannot be read ({error})", "restore it, or remove that folder"
            ) from error
        return ending
    for kind, sentence in SENTENCES.items():
        found = re.fullmatch(sentence, str(said))
        if found and (kind == "diverged") == (status == "diverged"):
            parts = found.groupdict()
            with suppress(ValueError):
                value = float(parts["value"]) if "value" in parts else None
                return Ending(kind, int(parts["iteration"]), parts.get("measure"), value)
    return Ending("diverged" if status == "diverged" else "finished")
