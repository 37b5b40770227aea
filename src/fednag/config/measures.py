"""Metrics that an experiment names: that there are such, and that they are measured."""

from __future__ import annotations

import re

from fednag.config.messages import nearest, plain
from fednag.config.own import short
from fednag.config.sections import Evaluation, Stop, is_own
from fednag.errors import InconsistentError
from fednag.problems.metrics import ALWAYS, METRICS, TAKEN


def check_measures(evaluation: Evaluation, stop: Stop) -> None:
    """Raise a sentence on a metric that is unknown, or is waited for and not measured."""
    own = evaluation.own or {}
    for name in evaluation.metrics or ():
        if name not in METRICS and not is_own(name):
            raise InconsistentError(
                "evaluation.metrics",
                f"no metric {plain(name)}{nearest(name[:60], METRICS)}",
                f"there are {', '.join(METRICS)}, and your own as FILE.py:name",
            )
    in_files = [short(name) for name in evaluation.metrics or () if is_own(name)]
    for name in in_files:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name):
            raise InconsistentError(
                "evaluation.metrics",
                f"{plain(name)} is no name for a metric",
                "begin it with a letter, and use 32 letters at most",
            )
        if name in TAKEN:
            raise InconsistentError(
                "evaluation.metrics", f"the name {name} is taken", "give the function another"
            )
    for name in own:
        if name in TAKEN:
            raise InconsistentError(
                "evaluation.own", f"the name {name} is taken", "give the metric another"
            )
    shipped = [name for name in evaluation.metrics or () if not is_own(name)]
    named = [*shipped, *in_files, *(name for name in own if name not in in_files)]
    if len(set(named)) < len(named):
        raise InconsistentError("evaluation.metrics", "one is there twice", "leave it out")
    for name in stop.metrics or {}:
        if name in ("accuracy", "loss"):
            raise InconsistentError(
                "stop.metrics", f"{name} has a field of its own", f"set stop.{name}"
            )
        if name not in (*named, "test_loss"):
            raise _not_measured("stop.metrics", name, ["test_loss", *named])
    watches = {"patience": "10", "plateau": "0.01"}
    for field, needed in {
        "watch": ("patience", "plateau"), "min_change": ("patience",), "window": ("plateau",),
    }.items():  # fmt: skip
        there = [key for key in needed if getattr(stop, key) is not None]
        if getattr(stop, field) is not None and not there:
            raise InconsistentError(
                f"stop.{field}",
                f"goes only with {' or '.join(f'stop.{key}' for key in needed)}",
                f"set that, e.g. to {watches[needed[0]]}, or leave stop.{field} out",
            )
    if stop.watch is not None and stop.watch not in (*ALWAYS, *named):
        raise _not_measured("stop.watch", stop.watch, [*ALWAYS, *named])


def _not_measured(field: str, name: str, known: list[str]) -> InconsistentError:
    if name in METRICS:
        return InconsistentError(field, f"{name} is not measured", "add it to evaluation.metrics")
    return InconsistentError(
        field,
        f"no measure {plain(name)}{nearest(name[:60], known)}",
        f"there are {', '.join(known)}, and what evaluation.metrics names",
    )
