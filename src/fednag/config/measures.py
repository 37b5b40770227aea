"""Metrics that an experiment names: that there are such, and that they are measured."""

from __future__ import annotations

import re

from fednag.config.messages import nearest, plain
from fednag.config.own import short
from fednag.config.sections import Evaluation, Stop, is_own
from fednag.problems.metrics import ALWAYS, METRICS, TAKEN


def check_measures(evaluation: Evaluation, stop: Stop) -> None:
    """Raise a sentence on a metric that is unknown, or is waited for and not measured."""
    own = evaluation.own or {}
    for name in evaluation.metrics or ():
        if name not in METRICS and not is_own(name):
            raise ValueError(
                f"evaluation.metrics: no metric {plain(name)}{nearest(name[:60], METRICS)}; there "
                f"are {', '.join(METRICS)}, and your own as FILE.py:name"
            )
    in_files = [short(name) for name in evaluation.metrics or () if is_own(name)]
    for name in in_files:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name):
            raise ValueError(
                f"evaluation.metrics: {plain(name)} is no name for a metric; begin it with a "
                "letter, and use 32 letters at most"
            )
        if name in TAKEN:
            raise ValueError(
                f"evaluation.metrics: the name {name} is taken; give the function another"
            )
    for name in own:
        if name in TAKEN:
            raise ValueError(f"evaluation.own: the name {name} is taken; give the metric another")
    shipped = [name for name in evaluation.metrics or () if not is_own(name)]
    named = [*shipped, *in_files, *(name for name in own if name not in in_files)]
    if len(set(named)) < len(named):
        raise ValueError("evaluation.metrics: one is there twice; leave it out")
    for name in stop.metrics or {}:
        if name in ("accuracy", "loss"):
            raise ValueError(f"stop.metrics: {name} has a field of its own; set stop.{name}")
        if name not in (*named, "test_loss"):
            raise ValueError(_not_measured("stop.metrics", name, ["test_loss", *named]))
    if stop.patience is None:
        for field in ("watch", "min_change"):
            if getattr(stop, field) is not None:
                raise ValueError(
                    f"stop.{field}: goes only with stop.patience; set that, e.g. to 10, or leave "
                    f"stop.{field} out"
                )
    elif stop.watch is not None and stop.watch not in (*ALWAYS, *named):
        raise ValueError(_not_measured("stop.watch", stop.watch, [*ALWAYS, *named]))


def _not_measured(field: str, name: str, known: list[str]) -> str:
    if name in METRICS:
        return f"{field}: {name} is not measured; add it to evaluation.metrics"
    return (
        f"{field}: no measure {plain(name)}{nearest(name[:60], known)}; there are "
        f"{', '.join(known)}, and what evaluation.metrics names"
    )
