"""Differences between methods, seed by seed, and how far they can be trusted.

Runs of one seed share data, split, first weights and batches, so what is left of the difference of
two methods varies much less over seeds than either of them. Here seeds were fixed beforehand, and
the interval is Student's. Whoever adds seeds until something is decided needs ``fednag decide``,
whose intervals hold all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import stdev

from fednag.problems.metrics import Better, better_of
from fednag.runs.labels import by_label
from fednag.runs.sequential import Claim
from fednag.runs.statistics import FEW, LEVEL, average
from fednag.runs.view import RunView

SHARES = ("accuracy", "train_accuracy")  # shown in per cent, their differences in points


@dataclass(frozen=True)
class Difference:
    """The first method's final value minus the second's, above 0 where the first is better.

    Of accuracies, in percentage points. ``low`` and ``high`` hold for all pairs of a comparison
    together; None for too few seeds.
    """

    first: str
    second: str
    measure: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def claim(self) -> Claim | None:
        """Which is ahead; None where that is not decided."""
        if self.low is None or self.high is None:
            return None
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else None

    @property
    def same(self) -> bool:
        """Whether no seed tells them apart."""
        return not any(self.differences)


def paired(
    runs: Sequence[RunView], measure: str | None = None, level: float = LEVEL
) -> list[Difference]:
    """Every two methods that share seeds, by the final value of a measure.

    Without a ``measure``, by accuracy, or where there is none by loss. Methods with a run that
    diverged are left out, and so are runs that are not over, and pairs that share fewer than two
    seeds.
    """
    groups = {
        label: {run.seed: run for run in own if run.ending is not None}
        for label, own in by_label(runs).items()
        if not any(run.diverged for run in own)
    }
    if measure is None:
        known = all(run.values("accuracy") for own in groups.values() for run in own.values())
        measure = "accuracy" if known else "loss"
    better = better_of(measure, {k: v for run in runs for k, v in run.own_metrics.items()})
    ends = {
        label: {seed: own[-1] for seed, run in group.items() if (own := run.values(measure))}
        for label, group in groups.items()
    }
    steps = [step for run in runs if (step := _step(run)) is not None]
    return compared(ends, measure, better, level, max(steps, default=0.0))


def compared(
    ends: Mapping[str, Mapping[int, float]],
    measure: str,
    better: Better,
    level: float = LEVEL,
    step: float = 0.0,
    reference: str | None = None,
) -> list[Difference]:
    """The same of final values by label and seed; with a ``reference``, of its pairs alone.

    ``step`` is the least step between two values of a share.

    >>> from fednag.runs.paired import compared
    >>> ends = {"a": {0: 0.80, 1: 0.84, 2: 0.82}, "b": {0: 0.71, 1: 0.74, 2: 0.73}}
    >>> (found,) = compared(ends, "accuracy", "higher")
    >>> round(found.mean, 2), found.low > 7, found.high < 12, found.claim
    (9.33, True, True, 'ahead')
    """
    unit = 100 if measure in SHARES else 1
    scale = unit if better == "higher" else -unit
    found = []
    for first, second in combinations(ends, 2):
        if reference is not None and reference != first:
            continue
        seeds = sorted(ends[first].keys() & ends[second].keys())
        each = tuple(scale * (ends[first][seed] - ends[second][seed]) for seed in seeds)
        if len(seeds) > 1:
            found.append(Difference(first, second, measure, tuple(seeds), each, average(each)))
    return _judged(found, 1 - level, unit * step if measure in SHARES else 0.0)


def _step(run: RunView) -> float | None:
    """The least step between two accuracies: one test sample."""
    count = run.info.get("test_samples")
    return 1 / count if isinstance(count, int) and count > 0 else None


def _judged(found: Sequence[Difference], alpha: float, resolution: float) -> list[Difference]:
    """With intervals that are together wrong with probability alpha: Holm's correction."""
    from scipy.special import stdtr, stdtrit

    def width(one: Difference) -> float:
        """The standard error; equal differences by chance prove nothing."""
        return max(stdev(one.differences), resolution) / sqrt(len(one.differences))

    def chance(one: Difference) -> float:
        if not width(one):
            return 1.0
        return float(2 * stdtr(len(one.differences) - 1, -abs(one.mean) / width(one)))

    told: dict[int, Difference] = {}
    able = [i for i, one in enumerate(found) if len(one.differences) >= FEW and width(one)]
    left, undecided = len(able), False
    for i in sorted(able, key=lambda i: chance(found[i])):
        one = found[i]
        quantile = float(stdtrit(len(one.differences) - 1, 1 - alpha / left / 2))
        half = quantile * width(one)
        told[i] = replace(one, low=one.mean - half, high=one.mean + half)
        undecided = undecided or told[i].claim is None
        left -= not undecided
    return [told.get(i, one) for i, one in enumerate(found)]


def from_best(found: Sequence[Difference], order: Sequence[str]) -> list[Difference]:
    """Those of the first of a ranking and each of the others, as best minus other."""
    if not order:
        return []
    best = order[0]
    turned = {
        one.second if one.first == best else one.first: one if one.first == best else _turned(one)
        for one in found
        if best in (one.first, one.second)
    }
    return [turned[label] for label in order[1:] if label in turned]


def _turned(one: Difference) -> Difference:
    return Difference(
        one.second,
        one.first,
        one.measure,
        one.seeds,
        tuple(-value for value in one.differences),
        -one.mean,
        None if one.high is None else -one.high,
        None if one.low is None else -one.low,
    )


def decided_best(found: Sequence[Difference], methods: int) -> str | None:
    """The method of so many that is ahead of every other, if that is decided."""
    won: dict[str, int] = {}
    for one in found:
        if one.claim is not None:
            ahead = one.first if one.claim == "ahead" else one.second
            won[ahead] = won.get(ahead, 0) + 1
    return next((label for label, beaten in won.items() if beaten == methods - 1 > 0), None)


def unit_of(measure: str) -> str:
    """What differences of a measure are in."""
    return "points" if measure in SHARES else measure


def note(found: Sequence[Difference], level: float = LEVEL) -> str:
    """How to read a table of differences."""
    counts = sorted({len(one.differences) for one in found})
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    if counts[-1] < FEW:
        return (
            f"Differences of {seeds}, paired: a seed gives all methods the same data, split, first "
            f"weights and batches. Intervals need {FEW} seeds."
        )
    several = f", Holm's correction over all {len(found)} pairs" if len(found) > 1 else ""
    return (
        f"Differences of {seeds}, paired: a seed gives all methods the same data, split, first "
        f"weights and batches. Intervals are Student's, {level * 100:g}%{several}, for seeds fixed "
        "beforehand; `fednag decide` adds seeds until it is decided."
    )
