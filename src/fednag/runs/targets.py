"""A level of a measure, and when a run first reached it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, log10
from typing import Any

from fednag.config.messages import nearest
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.problems.metrics import ALWAYS, METRICS, Better, as_good, better_of
from fednag.runs.view import RunView


@dataclass(frozen=True)
class Target:
    """At least this accuracy, at most this loss, or a metric at least as good as this."""

    measure: str
    value: float
    better: Better | None = None  # which values are; None: what is known of the measure

    def __post_init__(self) -> None:
        if self.better is None:
            object.__setattr__(self, "better", better_of(self.measure))

    def first(self, records: Sequence[Record]) -> Record | None:
        """The first record after an aggregation that is as good as asked."""
        for record in records:
            if record.round and self.reached(record.measured(self.measure)):
                return record
        return None

    def reached(self, value: float | None) -> bool:
        return as_good(value, self.value, self.better or "higher")

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values of the measure."""
        return (max if self.better == "higher" else min)(values, default=None)

    def worst(self, values: Sequence[float]) -> float | None:
        return (min if self.better == "higher" else max)(values, default=None)

    @property
    def words(self) -> str:
        return (
            f"accuracy {self}" if self.measure == "accuracy" else f"{self.measure} {self.value:g}"
        )

    def shown(self, value: float) -> str:
        """A value of the measure as people read it: accuracies in per cent, as in every table."""
        return f"{value:.2%}" if self.measure == "accuracy" else f"{value:.4g}"

    def __str__(self) -> str:
        if self.measure == "accuracy":
            return f"{self.value * 100:.6g}%"
        return f"{self.measure.replace('test_loss', 'test loss')} {self.value:.4g}"


def given_target(target: float | str | None, loss: float | None) -> Target | None:
    """The target of the options --target (``0.9``, an accuracy, or ``f1=0.9``) and --loss."""
    if target is not None and loss is not None:
        raise FednagError("--target, --loss", remedy="give one of them, not both")
    if target is not None:
        return read_target(target)
    if loss is not None:
        return _checked(Target("loss", loss), "--loss", f"{loss:g}")
    return None


def read_target(given: float | str) -> Target:
    """A target as --target gives it."""
    measure, equals, text = str(given).rpartition("=")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    measure = measure.strip() if equals else "accuracy"
    if not isfinite(value) or not measure:
        raise FednagError(
            "--target",
            remedy="write an accuracy, e.g. 0.9, or a measure and its value, e.g. f1=0.9",
            given=given,
        )
    shown = given if isinstance(given, str) else f"{given:g}"
    return _checked(Target(measure, value), "--target", shown)


def _checked(target: Target, option: str, given: str) -> Target:
    if target.measure in ("accuracy", "train_accuracy") and not 0 < target.value <= 1:
        raise FednagError(option, remedy="an accuracy is above 0 and at most 1", given=given)
    if target.measure in ("loss", "test_loss") and not target.value > 0:
        raise FednagError(option, remedy="give a number above 0", given=given)
    return target


def with_measure(raw: Mapping[str, Any], measure: str, option: str, given: str) -> dict[str, Any]:
    """An experiment's tables in which a measure is taken: known before hours of training."""
    table = raw.get("evaluation", {})
    listed = table.get("metrics", []) if isinstance(table, Mapping) else []
    names = list(listed) if isinstance(listed, list | tuple) else []
    known = [*ALWAYS, *(str(name).rpartition(":")[2] for name in names)]
    if measure in known:
        return dict(raw)
    if measure not in METRICS:
        there = list(dict.fromkeys([*known, *METRICS]))
        remedy = f"there are {', '.join(there)}"
        raise FednagError(option, f"no such measure{nearest(measure, there)}", remedy, given=given)
    return {**raw, "evaluation": {**table, "metrics": [*names, measure]}}


def settled(target: Target | None, runs: Sequence[RunView]) -> Target | None:
    """A target that was asked for, once runs are known: they say what is better of their own.

    Raises a sentence if none of them has measured it.
    """
    if target is None or target.measure in ALWAYS:
        return target
    found = dict.fromkeys(name for run in runs for name in run.metrics)
    if target.measure not in found:
        there = ", ".join(["accuracy", "loss", "test_loss", *found])
        remedy = "add it to evaluation.metrics, or " if target.measure in METRICS else ""
        raise FednagError(
            "--target",
            f"these runs have not measured {target.measure}",
            f"{remedy}use one of {there}",
            given=f"{target.measure}={target.value:g}",
        )
    own = {name: better for run in runs for name, better in run.own_metrics.items()}
    return replace(target, better=better_of(target.measure, own))


def telling_target(runs: Sequence[RunView]) -> Target | None:
    """The common target, if it says something of all runs.

    If one method lags so far behind that all have reached less than half of the way from the first
    model to the best of all, there is none: it would say how bad that method is.
    """
    found = common_target(runs)
    asked = {_stop(run) for run in runs}
    return found if found is None or asked == {found} or _tells(found, runs) else None


def common_target(runs: Sequence[RunView]) -> Target | None:
    """A target to compare runs by.

    The accuracy, or else the one metric, at which they were all to stop; or else the highest whole
    percentage that every run that did not diverge has reached; where there is no accuracy, the
    lowest such loss.
    """
    stops = {_stop(run) for run in runs}
    if len(stops) == 1 and (stop := stops.pop()) is not None:
        return stop
    kept = [run for run in runs if not run.diverged]
    accuracies = [run.values("accuracy") for run in kept]
    if accuracies and all(accuracies):
        lowest = int(min(max(own) for own in accuracies) * 100 + 1e-9) / 100
        return Target("accuracy", lowest) if lowest > 0 else None
    losses = [run.values("loss") for run in kept]
    if losses and all(losses):
        highest = max(min(own) for own in losses)
        if highest <= 0:
            return None
        step = 10.0 ** (floor(log10(highest)) - 2)
        return Target("loss", float(f"{(floor(highest / step) + 1) * step:.6g}"))
    return None


def _tells(target: Target, runs: Sequence[RunView]) -> bool:
    """Whether a level lies in the better half of the way that the best run has gone."""
    runs = [run for run in runs if not run.diverged and run.records]
    firsts = [run.records[0].measured(target.measure) for run in runs if not run.records[0].round]
    first = target.worst([value for value in firsts if value is not None])
    best = target.best([value for run in runs for value in run.values(target.measure)])
    if first is None or best is None:
        return True
    gone, way = abs(target.value - first), abs(best - first)
    # Rounded to a whole percentage it may lie a little short of what was reached.
    return gone >= way / 2 - (0.01 if target.measure == "accuracy" else 0.0)


def _stop(run: RunView) -> Target | None:
    asked, levels = (run.settings.get(f"stop.{field}") for field in ("accuracy", "metrics"))
    if isinstance(asked, float) and asked > 0:
        return Target("accuracy", asked)
    if not isinstance(levels, dict) or len(levels) != 1:
        return None
    ((name, value),) = levels.items()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Target(name, value, better_of(name, run.own_metrics))
