"""The one mean over seeds: values with their spread, curves by iteration, methods ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import mean, stdev
from typing import TypeVar

from fednag.core.record import Record
from fednag.runs.labels import by_label
from fednag.runs.targets import Target
from fednag.runs.view import RunView

T = TypeVar("T")

FEW = 3  # seeds below which there is no spread to speak of
LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds.

    The deviation is None for one seed, and where a value is infinite.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of those values there are; None if there are none."""
        found = [value for value in values if value is not None]
        if not found:
            return None
        spread = len(found) > 1 and all(isfinite(value) for value in found)
        return cls(mean(found), stdev(found) if spread else None)

    @property
    def band(self) -> tuple[float, float] | None:
        """One deviation to either side."""
        if self.deviation is None:
            return None
        return self.mean - self.deviation, self.mean + self.deviation

    def text(self, form: str) -> str:
        """Mean ± deviation, each in a form such as ``{:.4f}``."""
        tail = "" if self.deviation is None else f" ± {form.format(self.deviation)}"
        return form.format(self.mean) + tail


def average(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    return mean(values)


def text(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else spread.text(form)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the mean of a quantity lies: Student's 95 % interval; None for too few seeds."""
    if len(values) < FEW:
        return None
    from scipy.special import stdtrit

    half = stdtrit(len(values) - 1, 0.5 + LEVEL / 2) * stdev(values) / sqrt(len(values))
    return mean(values) - float(half), mean(values) + float(half)


def aligned(runs: Sequence[Mapping[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """(iteration, what the runs have there), in order, of runs given by iteration.

    At each iteration stand all runs that go so far, or none: a run that stopped early leaves a mean
    over the others, and where only some were evaluated there is no mean, for a line would jump
    between them.
    """
    ends = [max(run, default=-1) for run in runs]
    for iteration in sorted({iteration for run in runs for iteration in run}):
        there = [run for run, end in zip(runs, ends, strict=True) if end >= iteration]
        if all(iteration in run for run in there):
            yield iteration, [run[iteration] for run in there]


@dataclass(frozen=True)
class Row:
    """One method in a ranking; values are None where every run diverged before having one."""

    label: str
    runs: int
    best_loss: Spread | None
    final_loss: Spread | None
    final_accuracy: Spread | None
    best_accuracy: Spread | None
    iterations: int
    megabytes: float
    seconds: float
    diverged: int
    ended: str
    reached: int = 0  # runs that reached the target; what follows is their mean
    iterations_to: Spread | None = None
    megabytes_to: Spread | None = None
    seconds_to: Spread | None = None
    final_test_loss: Spread | None = None
    final_metrics: Mapping[str, Spread | None] = field(default_factory=dict)
    epsilon: float | None = None  # of privacy, spent by the run that spent most


def ranked(runs: Sequence[RunView], target: Target | None = None) -> list[Row]:
    """A row a label, best first: by final accuracy, or final loss where there is none.

    Labels with a diverged run come last. With a target, rows say what it took to reach it.
    """

    def order(row: Row) -> tuple[bool, float, float]:
        accuracy = -row.final_accuracy.mean if row.final_accuracy else 0.0
        loss = row.final_loss.mean if row.final_loss else float("inf")
        return row.diverged > 0, accuracy, loss

    return sorted((_row(*group, target) for group in by_label(runs).items()), key=order)


def arrivals(runs: Sequence[RunView], target: Target) -> list[Record]:
    """The first record at the target, of each run that reached it."""
    return [r for run in runs if (r := target.first(run.records)) is not None]


def _row(label: str, runs: Sequence[RunView], target: Target | None) -> Row:
    kept = [run for run in runs if not run.diverged]
    last = [run.records[-1] for run in runs]
    there = arrivals(runs, target) if target else []
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)

    def final(measure: str) -> Spread | None:
        return Spread.of(value for run in kept for value in run.values(measure)[-1:])

    return Row(
        label=label,
        runs=len(runs),
        best_loss=Spread.of(min(run.values("loss"), default=None) for run in runs),
        final_loss=final("loss"),
        final_accuracy=final("accuracy"),
        best_accuracy=Spread.of(max(run.values("accuracy"), default=None) for run in runs),
        iterations=max(record.iteration for record in last),
        megabytes=average(_megabytes(last)),
        seconds=average(r.seconds for r in last),
        diverged=len(runs) - len(kept),
        ended="; ".join(dict.fromkeys(run.ended for run in runs)),
        reached=len(there),
        iterations_to=Spread.of(r.iteration for r in there),
        megabytes_to=Spread.of(_megabytes(there)),
        seconds_to=Spread.of(r.seconds for r in there),
        final_test_loss=final("test_loss"),
        final_metrics={name: final(name) for name in metrics},
        epsilon=max((r.epsilon for r in last if r.epsilon is not None), default=None),
    )


def _megabytes(records: Sequence[Record]) -> list[float]:
    return [(r.bytes_up + r.bytes_down) / 1e6 for r in records]
