"""Labels that distinguish runs: runs of one label differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fednag.runs.view import RunView

V = TypeVar("V", bound=RunView)
T = TypeVar("T")

# What may differ between runs that are averaged: it decides no number but by the seed.
IDLE = (
    *("name", "seed", "checkpoint.", "ledger.", "engine.threads", "engine.chunk", "engine.inner"),
    *("evaluation.metrics", "evaluation.own"),
)


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which runs differ, but for those that decide nothing."""
    keys = dict.fromkeys(key for table in tables for key in table if not key.startswith(IDLE))
    return [key for key in keys if any(t.get(key) != tables[0].get(key) for t in tables)]


def distinguished(runs: Sequence[V]) -> tuple[list[V], list[str]]:
    """Labels such that runs of one label differ in their seeds alone; and notes.

    Where two of one label have other settings, the label says which; of the same run made twice,
    the newest counts.

    >>> import fednag
    >>> short = {"model": "logistic", "tau": 5, "iterations": 10}
    >>> runs = [fednag.run(fednag.FedNAG(momentum=m), **short).view for m in (0.5, 0.9)]
    >>> named, notes = distinguished(runs)
    >>> [run.label for run in named]
    ['fednag (momentum=0.5)', 'fednag (momentum=0.9)']
    """
    alike = {label: [run.settings for run in group] for label, group in by_label(runs).items()}
    fields = {label: differing(tables) for label, tables in alike.items()}
    named = [replace(run, label=_label(run, fields[run.label])) for run in runs]
    newest: dict[tuple[str, int], V] = {}
    notes = []
    for run in sorted(named, key=lambda run: (run.started, str(run.folder or ""))):
        if (run.label, run.seed) in newest:
            notes.append(
                f"{run.label} with seed {run.seed} was run more than once: the newest counts"
            )
        newest[run.label, run.seed] = run
    counted = set(newest.values())
    return [run for run in named if run in counted], list(dict.fromkeys(notes))


# What runs must share to be ranked: a method that is better on other data is not better.
PROBLEM = (
    *("data.name", "data.path", "data.target", "data.task"),
    *("data.validation", "model.loss"),
)


def by_problem(runs: Sequence[V]) -> dict[str, list[V]]:
    """Runs on the same data with the same loss together, by a short name of the problem."""
    found: dict[tuple[Any, ...], list[V]] = {}
    for run in runs:
        found.setdefault(tuple(run.settings.get(key) for key in PROBLEM), []).append(run)
    named: dict[str, list[V]] = {}
    for (data, path, *_), own in found.items():
        name = str(data or "runs") if path is None else Path(str(path)).stem
        number = sum(key.rpartition("-")[0] == name or key == name for key in named)
        named[f"{name}-{number + 1}" if number else name] = own
    return named


def problem_of(settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Data and model as a heading names them: files of the user's own without their folders.

    >>> problem_of({"data.name": "file", "data.path": "/srv/a/mine.npz", "model.name": "mlp"})
    ('mine.npz', 'mlp')
    """
    data, path, model = (settings.get(key) for key in ("data.name", "data.path", "model.name"))
    data = Path(str(path)).name if path is not None else data
    model = Path(model).name if isinstance(model, str) and ".py:" in model else model
    return str(data) if data else None, str(model) if model else None


def by_label(runs: Sequence[V]) -> dict[str, list[V]]:
    return grouped(runs, lambda run: run.label)


def grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Those of one key together, in the order they come."""
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _label(run: RunView, fields: Sequence[str]) -> str:
    settings = run.settings
    parts = [f"{_short(key, fields)}={settings.get(key, '-')}" for key in fields]
    return f"{run.label} ({', '.join(parts)})" if parts else run.label


def _short(key: str, fields: Sequence[str]) -> str:
    last = key.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in fields) == 1 else key
