"""Where a quantity lies over seeds, and whether that is where a claim says it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from fednag.runs.statistics import average, interval

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]


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


def place(values: Sequence[float], region: Region, margin: float) -> Verdict:
    """Whether a quantity lies in a region: its interval over seeds, of few its mean ± margin."""
    if all(isfinite(value) for value in values):
        centre = average(values)
        return region.holds(*(interval(values) or (centre - margin, centre + margin)))
    # Something never came, or diverged: there is no mean, and all seeds must agree.
    found = {region.holds(value, value) for value in values}
    return found.pop() if len(found) == 1 else "undecided"
