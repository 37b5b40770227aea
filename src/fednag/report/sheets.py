"""Runs as a report sees them: records, settings, where they came from; told apart and grouped."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fednag.errors import FednagError
from fednag.records import RunFolder
from fednag.report.tables import Curve

# What may differ between runs that are averaged: it decides no number but by the seed.
IDLE = ("name", "seed", "checkpoint.", "engine.threads", "engine.chunk")
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


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section, table in config.items():
        if isinstance(table, dict):
            found |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            found[section] = table
    return found


def told_apart(sheets: Sequence[Sheet]) -> tuple[list[Sheet], list[str]]:
    """Labels such that runs of one label differ in their seeds alone; and notes.

    Where two of one label have other settings, the label says which; of the same run made twice,
    the newest counts.
    """
    named = []
    for sheet in sheets:
        alike = [s for s in sheets if s.curve.label == sheet.curve.label]
        fields = differing(alike)
        parts = [f"{_short(key, fields)}={sheet.settings.get(key, '-')}" for key in fields]
        label = f"{sheet.curve.label} ({', '.join(parts)})" if parts else sheet.curve.label
        named.append(replace(sheet, curve=replace(sheet.curve, label=label)))
    newest: dict[tuple[str, int], Sheet] = {}
    notes = []
    for sheet in sorted(named, key=_age):
        key = (sheet.curve.label, sheet.curve.seed)
        if key in newest:
            notes.append(f"{key[0]} with seed {key[1]} was run more than once: the newest counts")
        newest[key] = sheet
    return [sheet for sheet in named if sheet in newest.values()], list(dict.fromkeys(notes))


def differing(sheets: Sequence[Sheet]) -> list[str]:
    """The settings in which runs differ, but for those that decide nothing."""
    tables = [sheet.settings for sheet in sheets]
    keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(IDLE))
    return [key for key in keys if any(t.get(key) != tables[0].get(key) for t in tables)]


def by_label(sheets: Sequence[Sheet]) -> dict[str, list[Sheet]]:
    found: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        found.setdefault(sheet.curve.label, []).append(sheet)
    return found


def caveats(sheets: Sequence[Sheet]) -> list[str]:
    """What keeps a ranking of these runs from meaning much."""
    notes = []
    if problem := [key for key in differing(sheets) if key.startswith(PROBLEM)]:
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
    return notes


def _short(key: str, fields: Sequence[str]) -> str:
    last = key.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else key


def _age(sheet: Sheet) -> tuple[str, str]:
    return str(sheet.info.get("started", "")), str(sheet.folder or "")
