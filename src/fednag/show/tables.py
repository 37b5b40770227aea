"""Rankings as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fednag.runs import paired
from fednag.runs.paired import Difference
from fednag.runs.statistics import LEVEL, Row, Spread, text
from fednag.runs.targets import Target
from fednag.runs.view import RunView

PERCENT, NUMBER = "{:.2%}", "{:.4f}"
ENDED = "ended"  # the last column, of words


def texts(rows: Sequence[Row], target: Target | None = None) -> list[dict[str, str]]:
    """Each row's texts by heading; of accuracies, test loss and metrics, those that any row has.

    With a target, what it took to reach it comes last.
    """
    judged = any(row.best_accuracy or row.final_accuracy for row in rows)
    tested = any(row.final_test_loss for row in rows)
    private = any(row.epsilon is not None for row in rows)
    metrics = dict.fromkeys(name for row in rows for name in row.final_metrics)
    found = []
    for row in rows:
        label = row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)"
        shown = {"method": label}
        if judged:
            shown["final accuracy"] = text(row.final_accuracy, PERCENT)
            shown["best accuracy"] = text(row.best_accuracy, PERCENT)
        shown["final loss"] = text(row.final_loss, NUMBER)
        shown["best loss"] = text(row.best_loss, NUMBER)
        if tested:
            shown["test loss"] = text(row.final_test_loss, NUMBER)
        shown |= {name: text(row.final_metrics.get(name), NUMBER) for name in metrics}
        if private:
            shown["epsilon"] = "-" if row.epsilon is None else f"{row.epsilon:.3g}"
        shown |= {
            "iterations": f"{row.iterations:,}",
            "MB sent": f"{row.megabytes:,.1f}",
            "seconds": f"{row.seconds:,.1f}",
            ENDED: row.ended,
        }
        found.append(shown | (to_target(row, target) if target else {}))
    return found


def best_first(rows: Sequence[Row]) -> str:
    """By what ``ranked`` has put the rows in order."""
    by = "accuracy" if any(row.final_accuracy for row in rows) else "loss"
    return f"best first, by final {by}"


# Columns that a narrow screen can do without, the least needed first.
SPARE = ("best loss", "best accuracy", "seconds", "test loss", "iterations", "MB sent")


def fitting(lines: Sequence[dict[str, str]], width: int | None) -> list[dict[str, str]]:
    """The lines without as many spare columns as need be to fit a screen; all of them if None."""
    shown = list(lines)
    for spare in SPARE:
        if width is None or _drawn(shown) <= width:
            break
        shown = [{name: cell for name, cell in line.items() if name != spare} for line in shown]
    return shown


def _drawn(lines: Sequence[dict[str, str]]) -> int:
    """How wide a table is: cells, a space at either side of each, and the lines between."""
    columns = {name: [name, *(line[name] for line in lines)] for line in lines for name in line}
    for words in ("method", ENDED):  # which fold
        columns[words] = " ".join(columns[words]).split()
    return 1 + sum(3 + max(map(len, column)) for column in columns.values())


def to_target(row: Row, target: Target) -> dict[str, str]:
    """What the target took."""
    spreads = (row.iterations_to, row.megabytes_to, row.seconds_to)
    amounts = [_amount(spread) for spread in spreads]
    if not row.reached:
        amounts[0] = "not reached"
    elif row.reached < row.runs:
        amounts[0] += f" ({row.reached} of {row.runs} runs)"
    units = ("iterations", "MB", "seconds")
    return {f"{unit} to {target}": amount for unit, amount in zip(units, amounts, strict=True)}


def paired_table(runs: Sequence[RunView], rows: Sequence[Row]) -> dict[str, Any] | None:
    """The best method's difference from each other, seed by seed; None where there is none.

    Headings, rows of text, and a note on how to read them; ``rows`` give the order.
    """
    every = paired.paired(runs)
    shown = paired.from_best(every, [row.label for row in rows])
    if not shown:
        return None
    measure = shown[0].measure
    unit = paired.unit_of(measure)
    headings = ["final " + measure, f"difference ({unit})", f"{LEVEL:.0%} interval", "seeds"]
    lines = [[f"{one.first} - {one.second}", *_told(one)] for one in shown]
    verdicts = [_verdict(one) for one in shown]
    return {
        "headings": [*headings, "decided"],
        "rows": [[*line, said] for line, said in zip(lines, verdicts, strict=True)],
        "note": paired.note(every),
    }


def differences(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """The differences of every two methods, for programs."""
    return [{**vars(one), "claim": one.claim} for one in paired.paired(runs)]


def _told(one: Difference) -> list[str]:
    between = "-" if one.low is None else f"{one.low:+.3g} to {one.high:+.3g}"
    return [f"{one.mean:+.3g}", between, str(len(one.seeds))]


def _verdict(one: Difference) -> str:
    if one.same:
        return "the same"
    return {"ahead": f"{one.first} ahead", "behind": f"{one.second} ahead"}.get(
        one.claim or "", "no"
    )


def render(rows: Sequence[Row]) -> str:
    shown = texts(rows)
    lines = [list(shown[0]), *(list(line.values()) for line in shown)]
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
