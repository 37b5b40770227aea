"""Rankings of runs as rows, and rows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, stdev
from typing import Any

from fednag.core.record import Record
from fednag.runs.targets import Target


@dataclass(frozen=True)
class Curve:
    """A labelled run, as its records tell it."""

    label: str
    seed: int
    records: list[Record]
    ended: str
    diverged: bool

    @property
    def losses(self) -> list[float]:
        """Losses after the first aggregation: w(0) is not a result."""
        return [r.loss for r in self.records if r.loss is not None and r.round > 0]

    @property
    def accuracies(self) -> list[float]:
        return [r.accuracy for r in self.records if r.accuracy is not None and r.round > 0]

    @property
    def metrics(self) -> list[str]:
        """The metrics that were asked for."""
        return list(dict.fromkeys(name for record in self.records for name in record.metrics))

    def last(self, measure: str) -> list[float]:
        """The last value of a measure, if there is one."""
        values = [r.measured(measure) for r in self.records if r.round > 0]
        return [value for value in values if value is not None][-1:]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; the deviation is None for one seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        return cls(mean(values), stdev(values) if len(values) > 1 else None)


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


def ranked(curves: Sequence[Curve], target: Target | None = None) -> list[Row]:
    """A row a label, best first: by final accuracy, or final loss where there is none.

    Labels with a diverged run come last. With a target, rows say what it took to reach it.
    """
    labels = list(dict.fromkeys(curve.label for curve in curves))
    rows = [_row(label, [c for c in curves if c.label == label], target) for label in labels]

    def order(row: Row) -> tuple[bool, float, float]:
        accuracy = -row.final_accuracy.mean if row.final_accuracy else 0.0
        loss = row.final_loss.mean if row.final_loss else float("inf")
        return row.diverged > 0, accuracy, loss

    return sorted(rows, key=order)


def _row(label: str, curves: Sequence[Curve], target: Target | None) -> Row:
    kept = [curve for curve in curves if not curve.diverged]
    last = [curve.records[-1] for curve in curves]
    there = [r for c in curves if target and (r := target.first(c.records)) is not None]
    return Row(
        label=label,
        runs=len(curves),
        best_loss=Spread.of([min(c.losses) for c in curves if c.losses]),
        final_loss=Spread.of([c.losses[-1] for c in kept if c.losses]),
        final_accuracy=Spread.of([c.accuracies[-1] for c in kept if c.accuracies]),
        best_accuracy=Spread.of([max(c.accuracies) for c in curves if c.accuracies]),
        iterations=max(record.iteration for record in last),
        megabytes=mean([(r.bytes_up + r.bytes_down) / 1e6 for r in last]),
        seconds=mean([r.seconds for r in last]),
        diverged=sum(curve.diverged for curve in curves),
        ended="; ".join(dict.fromkeys(curve.ended for curve in curves)),
        reached=len(there),
        iterations_to=Spread.of([r.iteration for r in there]),
        megabytes_to=Spread.of([(r.bytes_up + r.bytes_down) / 1e6 for r in there]),
        seconds_to=Spread.of([r.seconds for r in there]),
        final_test_loss=_final(kept, "test_loss"),
        final_metrics={
            name: _final(kept, name)
            for name in dict.fromkeys(name for curve in curves for name in curve.metrics)
        },
    )


def _final(curves: Sequence[Curve], measure: str) -> Spread | None:
    return Spread.of([value for curve in curves for value in curve.last(measure)])


HEADINGS = (
    "method",
    "final accuracy",
    "best accuracy",
    "final loss",
    "best loss",
    "iterations",
    "MB sent",
    "seconds",
    "ended",
)
MEASURED = HEADINGS.index("iterations")  # before it stand what was measured, if it was


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a ranking: the test loss and each metric where any row has it."""
    return (*HEADINGS[:MEASURED], *measured_headings(rows), *HEADINGS[MEASURED:])


def measured_headings(rows: Sequence[Row]) -> tuple[str, ...]:
    tested = ["test loss"] if any(row.final_test_loss for row in rows) else []
    return (*tested, *_metrics(rows))


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """A row of ``rows`` as text, in the order of their ``headings``."""
    label = row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)"
    tested = [_number(row.final_test_loss)] if any(r.final_test_loss for r in rows) else []
    return (
        label,
        _percent(row.final_accuracy),
        _percent(row.best_accuracy),
        _number(row.final_loss),
        _number(row.best_loss),
        *tested,
        *(_number(row.final_metrics.get(name)) for name in _metrics(rows)),
        f"{row.iterations:,}",
        f"{row.megabytes:,.1f}",
        f"{row.seconds:,.1f}",
        row.ended,
    )


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.final_metrics))


def target_headings(target: Target) -> tuple[str, ...]:
    return tuple(f"{unit} to {target}" for unit in ("iterations", "MB", "seconds"))


def target_cells(row: Row) -> tuple[str, ...]:
    """What the target took, in the order of ``target_headings``."""
    spreads = (row.iterations_to, row.megabytes_to, row.seconds_to)
    if not row.reached:
        return ("not reached", "-", "-")
    some = "" if row.reached == row.runs else f" ({row.reached} of {row.runs} runs)"
    first, *rest = (_amount(spread) for spread in spreads)
    return (first + some, *rest)


def as_data(row: Row) -> dict[str, Any]:
    """A row for machines: plain numbers, None where there is none."""
    return asdict(row)


def render(rows: Sequence[Row]) -> str:
    """A plain-text table."""
    lines = [headings(rows), *(cells(row, rows) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    ends = (0, len(widths) - 1)
    padded = [
        "  ".join(c.ljust(w) if i in ends else c.rjust(w) for i, (c, w) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    return "\n".join(line.rstrip() for line in padded)


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    tail = "" if spread.deviation is None else f" ± {spread.deviation:.2%}"
    return f"{spread.mean:.2%}{tail}"


def _number(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    tail = "" if spread.deviation is None else f" ± {spread.deviation:.4f}"
    return f"{spread.mean:.4f}{tail}"


def _amount(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    digits = 0 if spread.mean >= 100 or spread.mean == int(spread.mean) else 1
    digits = 2 if spread.mean < 1 and spread.mean else digits
    tail = "" if spread.deviation is None else f" ± {spread.deviation:,.{digits}f}"
    return f"{spread.mean:,.{digits}f}{tail}"
