"""Where a quantity lies over seeds, and whether that is where a claim says it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import mean, stdev
from typing import Literal

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]

FEW = 3  # seeds below which margins stand in for spread
LEVEL = 0.95


@dataclass(frozen=True)
class Region:
    """Where the claim says a quantity lies."""

    low: float = -inf
    high: float = inf

    def holds(self, low: float, high: float) -> Verdict:
        if low > self.low and (high < self.high or self.high == inf):
            return "reproduced"
        if high < self.low or low > self.high:
            return "not reproduced"
        return "undecided"


def interval(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Where the mean of a quantity is taken to lie: Student's 95 %, or ± the margin."""
    centre = mean(values)
    if len(values) < FEW:
        return centre - margin, centre + margin
    from scipy.special import stdtrit

    half = stdtrit(len(values) - 1, 0.5 + LEVEL / 2) * stdev(values) / sqrt(len(values))
    return centre - float(half), centre + float(half)


def place(values: Sequence[float], region: Region, margin: float) -> Verdict:
    """Whether a quantity's values over seeds are in a region."""
    if all(isfinite(value) for value in values):
        return region.holds(*interval(values, margin))
    # Something never came, or diverged: there is no mean, and all seeds must agree.
    found = {region.holds(value, value) for value in values}
    return found.pop() if len(found) == 1 else "undecided"
