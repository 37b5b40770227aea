"""A level of accuracy or loss, and when a run first reached it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, Literal

from fednag.errors import FednagError
from fednag.records import Record


@dataclass(frozen=True)
class Target:
    """At least this accuracy, or at most this loss."""

    measure: Literal["accuracy", "loss"]
    value: float

    def first(self, records: Sequence[Record]) -> Record | None:
        """The first record after an aggregation that is as good as asked."""
        for record in records:
            found: float | None = getattr(record, self.measure)
            if found is None or record.round == 0:
                continue
            if found >= self.value if self.measure == "accuracy" else found <= self.value:
                return record
        return None

    def __str__(self) -> str:
        if self.measure == "accuracy":
            return f"{self.value * 100:.6g} %"
        return f"loss {self.value:.4g}"


def given_target(accuracy: float | None, loss: float | None) -> Target | None:
    """The target of the options --target and --loss."""
    if accuracy is not None and loss is not None:
        raise FednagError("--target, --loss: give one of them, not both")
    if accuracy is not None:
        if not 0 < accuracy <= 1:
            raise FednagError(f"--target {accuracy:g}: an accuracy is above 0 and at most 1")
        return Target("accuracy", accuracy)
    if loss is not None:
        if not loss > 0:
            raise FednagError(f"--loss {loss:g}: give a number above 0")
        return Target("loss", loss)
    return None


def common_target(
    runs: Sequence[tuple[Sequence[Record], bool]], configs: Sequence[Mapping[str, Any]] = ()
) -> Target | None:
    """A target to compare runs, given as (records, diverged), by.

    The accuracy at which they were all to stop; or else the highest whole percentage that every
    run that did not diverge has reached; where there is no accuracy, the lowest such loss.
    """
    stops = {_stop(config) for config in configs}
    if len(stops) == 1 and (stop := stops.pop()) is not None:
        return Target("accuracy", stop)
    kept = [records for records, diverged in runs if not diverged]
    accuracies = [_values(records, "accuracy") for records in kept]
    if accuracies and all(accuracies):
        lowest = int(min(max(own) for own in accuracies) * 100 + 1e-9) / 100
        return Target("accuracy", lowest) if lowest > 0 else None
    losses = [_values(records, "loss") for records in kept]
    if losses and all(losses):
        highest = max(min(own) for own in losses)
        if highest <= 0:
            return None
        step = 10.0 ** (floor(log10(highest)) - 2)
        return Target("loss", float(f"{(floor(highest / step) + 1) * step:.6g}"))
    return None


def _stop(config: Mapping[str, Any]) -> float | None:
    table = config.get("stop")
    asked = table.get("accuracy") if isinstance(table, dict) else None
    return asked if isinstance(asked, float) and asked > 0 else None


def _values(records: Sequence[Record], measure: str) -> list[float]:
    return [v for r in records if r.round > 0 and (v := getattr(r, measure)) is not None]
