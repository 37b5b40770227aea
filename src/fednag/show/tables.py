"""Rankings as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fednag.runs.statistics import Row, Spread, text
from fednag.runs.targets import Target

PERCENT, NUMBER = "{:.2%}", "{:.4f}"
HEADINGS = (
    *("method", "final accuracy", "best accuracy", "final loss", "best loss"),
    *("iterations", "MB sent", "seconds", "ended"),
)
MEASURED = HEADINGS.index("iterations")  # before it stand what was measured, if it was


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a ranking: the test loss and each metric where any row has it."""
    return (*HEADINGS[:MEASURED], *measured_headings(rows), *HEADINGS[MEASURED:])


def measured_headings(rows: Sequence[Row]) -> tuple[str, ...]:
    tested = ["test loss"] if any(row.final_test_loss for row in rows) else []
    return (*tested, *_metrics(rows), *(["epsilon"] if _private(rows) else []))


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """A row of ``rows`` as text, in the order of their ``headings``."""
    label = row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)"
    tested = [text(row.final_test_loss, NUMBER)] if any(r.final_test_loss for r in rows) else []
    return (
        label,
        text(row.final_accuracy, PERCENT),
        text(row.best_accuracy, PERCENT),
        text(row.final_loss, NUMBER),
        text(row.best_loss, NUMBER),
        *tested,
        *(text(row.final_metrics.get(name), NUMBER) for name in _metrics(rows)),
        *(["-" if row.epsilon is None else f"{row.epsilon:.3g}"] if _private(rows) else []),
        f"{row.iterations:,}",
        f"{row.megabytes:,.1f}",
        f"{row.seconds:,.1f}",
        row.ended,
    )


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.final_metrics))


def _private(rows: Sequence[Row]) -> bool:
    return any(row.epsilon is not None for row in rows)


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
    lines = [headings(rows), *(cells(row, rows) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    ends = (0, len(widths) - 1)
    padded = [
        "  ".join(c.ljust(w) if i in ends else c.rjust(w) for i, (c, w) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    return "\n".join(line.rstrip() for line in padded)


def _amount(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    digits = 0 if spread.mean >= 100 or spread.mean == int(spread.mean) else 1
    digits = 2 if spread.mean < 1 and spread.mean else digits
    return spread.text(f"{{:,.{digits}f}}")
