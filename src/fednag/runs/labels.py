"""Labels that tell runs apart: runs of one label differ in their seeds alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What may differ between runs that are averaged: it decides no number but by the seed.
IDLE = ("name", "seed", "checkpoint.", "engine.threads", "engine.chunk")


@dataclass(frozen=True, eq=False)
class Named:
    """A run by its label, seed and settings; ``started`` orders runs in time."""

    label: str
    seed: int
    settings: Mapping[str, Any]
    started: tuple[str, ...] = ()


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a configuration as ``section.key`` -> value."""
    found: dict[str, Any] = {}
    for section, table in config.items():
        if section == "own" and isinstance(table, dict):  # files and their digests
            digests = " ".join(sorted(map(str, table.values())))
            found["code"] = hashlib.sha256(digests.encode()).hexdigest()[:8]
        elif isinstance(table, dict):
            found |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            found[section] = table
    return found


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which runs differ, but for those that decide nothing."""
    keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(IDLE))
    return [key for key in keys if any(t.get(key) != tables[0].get(key) for t in tables)]


def distinct(runs: Sequence[Named]) -> tuple[list[str | None], list[str]]:
    """(a label for each run, notes); None for a run that a newer one of the same replaces.

    Where two of one label have other settings, the label says which.
    """
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        alike.setdefault(run.label, []).append(run.settings)
    fields = {label: differing(tables) for label, tables in alike.items()}
    labels = [_label(run, fields[run.label]) for run in runs]
    newest: dict[tuple[str, int], int] = {}
    notes = []
    for place in sorted(range(len(runs)), key=lambda place: runs[place].started):
        key = (labels[place], runs[place].seed)
        if key in newest:
            notes.append(f"{key[0]} with seed {key[1]} was run more than once: the newest counts")
        newest[key] = place
    kept = set(newest.values())
    chosen = [label if place in kept else None for place, label in enumerate(labels)]
    return chosen, list(dict.fromkeys(notes))


def _label(run: Named, fields: Sequence[str]) -> str:
    parts = [f"{_short(key, fields)}={run.settings.get(key, '-')}" for key in fields]
    return f"{run.label} ({', '.join(parts)})" if parts else run.label


def _short(key: str, fields: Sequence[str]) -> str:
    last = key.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else key
