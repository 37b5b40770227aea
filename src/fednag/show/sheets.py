"""Runs as a report sees them: records, settings, where they came from; told apart and grouped."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.labels import Named, differing, distinct, flat
from fednag.show.tables import Curve

PROBLEM = ("data.", "split.", "model.")


@dataclass(frozen=True, eq=False)
class Sheet:
    """A run and what is known of how it came about."""

    curve: Curve
    config: Mapping[str, Any] = field(default_factory=dict)  # the tables of its config.toml
    info: Mapping[str, Any] = field(default_factory=dict)  # what its run.json says
    folder: Path | None = None
    running: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """``section.key`` -> value."""
        return flat(self.config)

    @property
    def rounds(self) -> int | None:
        """How many rounds it was to have."""
        training = self.config.get("training")
        try:
            assert isinstance(training, dict)
            return -(-int(training["iterations"]) // int(training["tau"]))
        except (AssertionError, KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


def read_sheet(folder: RunFolder) -> Sheet:
    """A run's folder, read; raises a sentence if it is damaged."""
    records, info = folder.records(), folder.info()
    if "records" in info:
        folder.verify(info)
    status = str(info.get("ended") or info.get("status"))
    running = status == "running" and folder.is_being_written
    if status == "running" and not running:
        status = "interrupted"
    diverged = info.get("status") == "diverged"
    curve = Curve(info["label"], info["seed"], records, status, diverged)
    return Sheet(curve, _config(folder.config_file), info, folder.path, running)


def read_sheets(folders: Iterable[RunFolder]) -> tuple[list[Sheet], list[str]]:
    """(those with records, a sentence for each that cannot be read)."""
    sheets, failed = [], []
    for folder in folders:
        try:
            sheet = read_sheet(folder)
        except FednagError as error:
            failed.append(str(error))
            continue
        if sheet.curve.records:
            sheets.append(sheet)
    return sheets, failed


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise FednagError(f"{path}: cannot be read ({why}); restore it") from error


def distinguished(sheets: Sequence[Sheet]) -> tuple[list[Sheet], list[str]]:
    """Labels such that runs of one label differ in their seeds alone; and notes.

    Where two of one label have other settings, the label says which; of the same run made twice,
    the newest counts.
    """
    labels, notes = distinct(
        [Named(s.curve.label, s.curve.seed, s.settings, _age(s)) for s in sheets]
    )
    named = [
        replace(sheet, curve=replace(sheet.curve, label=label))
        for sheet, label in zip(sheets, labels, strict=True)
        if label is not None
    ]
    return named, notes


def by_label(sheets: Sequence[Sheet]) -> dict[str, list[Sheet]]:
    found: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        found.setdefault(sheet.curve.label, []).append(sheet)
    return found


def caveats(sheets: Sequence[Sheet]) -> list[str]:
    """What keeps a ranking of these runs from meaning much."""
    notes = []
    if problem := [
        key for key in differing([s.settings for s in sheets]) if key.startswith(PROBLEM)
    ]:
        notes.append(
            f"these runs differ in {', '.join(problem)}: they do not solve the same problem, so "
            "their ranking says little"
        )
    groups = by_label(sheets)
    seeds = {label: sorted(s.curve.seed for s in group) for label, group in groups.items()}
    if len({tuple(own) for own in seeds.values()}) > 1:
        least = min(seeds, key=lambda label: len(seeds[label]))
        count = len(seeds[least])
        notes.append(
            f"not all methods have the same seeds: {least} has {count} run{'s' * (count > 1)}"
        )
    if unfinished := [s for s in sheets if s.running or s.curve.ended == "interrupted"]:
        notes.append(f"{len(unfinished)} of {len(sheets)} runs are not over yet")
    stopped = [s for s in sheets if " reached at iteration " in s.curve.ended]
    if stopped and len({s.curve.records[-1].iteration for s in sheets if s.curve.records}) > 1:
        notes.append(
            f"{len(stopped)} of {len(sheets)} runs stopped when they reached their target: final "
            "values are of different iterations; compare iterations to the target"
        )
    waited = [s for s in sheets if s.curve.ended.startswith("no better ")]
    if waited and len(sheets) > 1:
        notes.append(
            f"{len(waited)} of {len(sheets)} runs stopped when they got no better: final values "
            "are of different iterations"
        )
    return notes


def _age(sheet: Sheet) -> tuple[str, str]:
    return str(sheet.info.get("started", "")), str(sheet.folder or "")
