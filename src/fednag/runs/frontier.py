"""Which runs give the most for the least: bytes and seconds to a target, and who is not dominated.

A frontier is Pareto's: what cannot be improved in one respect without losing in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fednag.problems.metrics import Better
from fednag.runs.labels import by_label
from fednag.runs.statistics import arrivals, average, interval
from fednag.runs.targets import Target
from fednag.runs.view import RunView

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
NOT_DOMINATED = (
    "not dominated: no other row ends at least as good with at most as much sent (or at most as "
    "many seconds), one of the two strictly; means over seeds, whole runs"
)


@dataclass(frozen=True)
class Cell:
    """One method with one uplink: means over its seeds.

    What it took to reach the target is a mean over the runs that did; None if none did.
    """

    label: str
    runs: int
    reached: int  # runs that reached the target
    diverged: int
    final: float | None  # of the target's measure, when the runs were over; None if one diverged
    interval: tuple[float, float] | None  # where that mean lies, 95 %; None for too few seeds
    up_to: float | None  # bytes
    down_to: float | None
    bytes_to: float | None  # both ways
    bytes: float  # both ways, of whole runs
    seconds_to: float | None = None  # on the fleet; None without one
    seconds: float | None = None
    least_bytes: bool = False  # not dominated
    least_seconds: bool = False

    @property
    def missed(self) -> str:
        """Who did not reach the target, in words; empty if all did."""
        left = self.runs - self.reached
        return f"not reached by {left} of {self.runs}" if left else ""


@dataclass(frozen=True)
class Times:
    """Seconds of a label's runs on a fleet, over all seeds and replays."""

    to: Sequence[float]  # to the target, of those that reached it
    whole: Sequence[float]


def cells(
    runs: Sequence[RunView], target: Target, times: Mapping[str, Times] | None = None
) -> list[Cell]:
    """A cell a label, fewest bytes to the target first; those that not all runs reached, last."""
    found = [
        _cell(label, group, target, (times or {}).get(label))
        for label, group in by_label(runs).items()
    ]
    better = target.better or "higher"
    by_bytes = undominated([(cell.bytes, cell.final) for cell in found], better)
    by_seconds = undominated([(cell.seconds, cell.final) for cell in found], better)
    marked = [
        Cell(**{**vars(cell), "least_bytes": first, "least_seconds": second})
        for cell, first, second in zip(found, by_bytes, by_seconds, strict=True)
    ]
    way = -1 if better == "higher" else 1

    def order(cell: Cell) -> tuple[int, float, float]:
        end = float("inf") if cell.final is None else way * cell.final
        return cell.runs - cell.reached, cell.bytes_to or 0.0, end

    return sorted(marked, key=order)


def undominated(
    points: Sequence[tuple[float | None, float | None]], better: Better = "higher"
) -> list[bool]:
    """Of points (cost, value), whether no other one dominates it.

    A point is dominated if another has at least its value and at most its cost, one strictly. So of
    two equal points neither dominates the other. A point that lacks a number is not compared.

    >>> from fednag.runs.frontier import undominated
    >>> undominated([(1.0, 0.8), (2.0, 0.9), (2.0, 0.7), (1.0, 0.8)])
    [True, True, False, True]
    """
    way = 1 if better == "higher" else -1
    known = [(c, way * v) for c, v in points if c is not None and v is not None]

    def dominated(cost: float, value: float) -> bool:
        return any(c <= cost and v >= value and (c < cost or v > value) for c, v in known)

    return [
        cost is not None and value is not None and not dominated(cost, way * value)
        for cost, value in points
    ]


def _cell(label: str, runs: Sequence[RunView], target: Target, times: Times | None) -> Cell:
    there = arrivals(runs, target)
    diverged = sum(run.diverged for run in runs)
    ends = [value for run in runs for value in run.values(target.measure)[-1:]]
    whole = ends if not diverged and len(ends) == len(runs) else []

    def to(amounts: Sequence[float]) -> float | None:
        return average(amounts) if amounts else None

    return Cell(
        label=label,
        runs=len(runs),
        reached=len(there),
        diverged=diverged,
        final=average(whole) if whole else None,
        interval=interval(whole),
        up_to=to([r.bytes_up for r in there]),
        down_to=to([r.bytes_down for r in there]),
        bytes_to=to([r.bytes_up + r.bytes_down for r in there]),
        bytes=average([run.records[-1].bytes_up + run.records[-1].bytes_down for run in runs]),
        seconds_to=to(times.to) if times else None,
        seconds=to(times.whole) if times else None,
    )


def amount(count: float | None) -> str:
    """Bytes in a unit that leaves three digits or so.

    >>> from fednag.runs.frontier import amount
    >>> amount(999), amount(20_800), amount(3.12e6), amount(None)
    ('999 B', '20.8 kB', '3.12 MB', '-')
    """
    if count is None:
        return "-"
    place = 0
    while count >= 999.5 and place < len(UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.3g} {UNITS[place]}"


def value_text(cell: Cell, target: Target) -> str:
    """The value at the end, with half the width of its interval."""
    if cell.final is None:
        return "diverged" if cell.diverged else "-"
    percent = target.measure in ("accuracy", "train_accuracy")
    form = "{:.2%}" if percent else "{:.4g}"
    half = None if cell.interval is None else (cell.interval[1] - cell.interval[0]) / 2
    tail = "" if half is None else f" ± {form.format(half)}"
    return form.format(cell.final) + tail


def table(found: Sequence[Cell], target: Target) -> dict[str, Any]:
    """Headings and rows of text, of bytes alone."""
    headings = ["method", f"final {target.measure}", f"up to {target}", "down", "both ways"]
    headings += ["sent in all", "not dominated"]
    rows = [
        [
            cell.label if cell.runs == 1 else f"{cell.label} ({cell.runs} runs)",
            value_text(cell, target),
            *sent_to(cell),
            amount(cell.bytes),
            "yes" if cell.least_bytes else "",
        ]
        for cell in found
    ]
    return {"headings": headings, "rows": rows, "note": f"{NOT_DOMINATED}."}


def sent_to(cell: Cell) -> list[str]:
    """Bytes up, down and both ways until the target; and who did not reach it."""
    if not cell.reached:
        return ["-", "-", cell.missed]
    tail = f" ({cell.missed})" if cell.missed else ""
    return [amount(cell.up_to), amount(cell.down_to), amount(cell.bytes_to) + tail]
