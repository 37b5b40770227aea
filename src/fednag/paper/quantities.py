"""Numbers read off a run: a measure at a part of T or at equal bytes, or when a target is met."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import mean

from fednag.paper.figure import Value
from fednag.paper.records import Kept


def crossings(run: Kept, to_loss: float | None, to_accuracy: float | None) -> list[int]:
    """Places of the evaluations at which a target is met and was not met by the one before.

    As loss and accuracy oscillate, a target may be met several times.
    """
    found, before = [], False
    for place, (loss, accuracy) in enumerate(zip(run.loss, run.accuracy, strict=True)):
        met = run.iteration[place] > 0
        if to_loss is not None:
            met = met and loss is not None and loss <= to_loss
        if to_accuracy is not None:
            met = met and accuracy is not None and accuracy >= to_accuracy
        if met and not before:
            found.append(place)
        before = met
    return found


def marks(run: Kept, to_loss: float | None, to_accuracy: float | None) -> tuple[float, ...]:
    """(first, mean, last) iteration at which the target is reached; infinite if it never is."""
    at = [run.iteration[place] for place in crossings(run, to_loss, to_accuracy)]
    return (at[0], mean(at), at[-1]) if at else (inf, inf, inf)


def measure(run: Kept, value: Value, at: float | None = None, budget: float | None = None) -> float:
    """The value of a run; what has diverged is as bad as can be."""
    if value.of in ("iterations", "seconds"):
        if value.of == "iterations":
            number = ("first", "mean", "last").index(value.mark)
            return marks(run, value.to_loss, value.to_accuracy)[number]
        places = crossings(run, value.to_loss, value.to_accuracy)
        return run.seconds[places[0]] if places and run.seconds else inf
    at_place = place(run, value.at if at is None else at, budget)
    found = run.column(value.of)[at_place]
    # A run that diverged has no more records: its last stands for all that would follow.
    gone = run.diverged and at_place == len(run.iteration) - 1
    if found is None or gone:
        return 0.0 if value.higher_is_better else inf
    return found


def place(run: Kept, at: float, budget: float | None = None) -> int:
    """The evaluation nearest to a part of T, or the last within a budget of megabytes."""
    if budget is not None:
        within = (i for i, sent in enumerate(run.megabytes) if sent <= budget * (1 + 1e-9))
        return max(within, default=0)
    target = at * run.iterations
    return min(range(len(run.iteration)), key=lambda i: abs(run.iteration[i] - target))


def common_budget(runs: Sequence[Kept]) -> float:
    """Megabytes that every run has sent: the total of the thriftiest."""
    return min(run.megabytes[-1] for run in runs)


def first_loss(run: Kept) -> float:
    return inf if run.loss[0] is None else run.loss[0]


def last_seen(run: Kept, value: Value) -> float:
    """How far a run went, in iterations or seconds: a target it did not reach lies beyond."""
    far = run.seconds if value.of == "seconds" else run.iteration
    return float(far[-1]) if far else inf
