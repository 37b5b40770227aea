"""Which of two methods is ahead, decided seed by seed: intervals that hold however often one looks.

Student's interval holds if the number of seeds was fixed before. Who looks after every seed and
stops once it says something is wrong far more often. Here e is a likelihood ratio of the t
statistic, mixed over effect sizes; under mean m it is above 1 / alpha at *any* seed with
probability alpha at most (Ville's inequality)::

    e_n(m) = (1 + n g^2)^(-1/2) ((1 + t^2 / (n-1)) / (1 + t^2 / ((n-1) (1 + n g^2))))^(n/2)
    t = sqrt(n) (mean - m) / deviation

The interval after n seeds is the means m with e_n(m) < 1 / alpha. See Lai (1976), and Wang and
Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance"
(2024). It assumes that differences between paired runs are normal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt
from typing import Literal, TypeVar

import numpy as np

Claim = Literal["ahead", "behind", "level"]
Name = TypeVar("Name")

PRIOR = (
    3.0  # g: how wide effect sizes are mixed; it changes how wide intervals are, not their truth
)
FARTHEST = 100_000  # seeds, beyond which nobody asks how many would do


def half_width(count: int, alpha: float) -> float:
    """Half the interval after so many differences, in units of their standard deviation.

    >>> from fednag.runs.sequential import half_width
    >>> half_width(3, 0.01), round(half_width(10, 0.01), 2)
    (inf, 1.66)
    """
    if count < 2:
        return inf
    mixed = 1 + count * PRIOR**2
    limit = exp((log(mixed) + 2 * log(1 / alpha)) / count)
    if limit >= mixed:
        return inf
    return sqrt((limit - 1) / (1 - limit / mixed) * (count - 1) / count)


def log_evidence(count: int, t: float) -> float:
    """log e_n at this t statistic."""
    if count < 2:
        return 0.0
    mixed, square = 1 + count * PRIOR**2, t**2 / (count - 1)
    return -log(mixed) / 2 + count / 2 * (log1p(square) - log1p(square / mixed))


@dataclass(frozen=True)
class Evidence:
    """What the differences so far say of their mean.

    >>> from fednag.runs.sequential import Evidence
    >>> found = Evidence.of([0.8, 1.1, 0.9, 1.2, 1.0, 0.9, 1.1, 1.0], alpha=0.05)
    >>> round(found.mean, 2), found.low > 0.5, found.claim(margin=0.2)
    (1.0, True, 'ahead')
    """

    count: int
    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[float], alpha: float, resolution: float = 0.0) -> Evidence:
        """The intersection of the intervals after 1, 2, ... differences.

        ``resolution`` is the least step between two values, e.g. of an accuracy on 360 samples:
        the deviation counts as at least that, for equal differences by chance prove nothing.
        """
        low, high = -inf, inf
        mean = deviation = 0.0
        for count, mean, deviation in _moments(differences, resolution):
            half = half_width(count, alpha)
            if half < inf:
                low, high = max(low, mean - half * deviation), min(high, mean + half * deviation)
        return cls(len(differences), mean, deviation, low, high)

    def claim(self, margin: float) -> Claim | None:
        """What is decided: the mean is above the margin, below minus that, or between them."""
        if self.low > self.high:  # rarer than alpha: the intervals have lost the mean
            return None
        if self.low > margin:
            return "ahead"
        if self.high < -margin:
            return "behind"
        return "level" if -margin < self.low and self.high < margin else None

    def needed(self, margin: float, alpha: float) -> int | None:
        """About how many differences like these would decide it; None: more than anyone makes."""
        gap = abs(abs(self.mean) - margin)
        if not gap or not self.deviation:
            return None
        first, last = 2, FARTHEST
        if half_width(last, alpha) * self.deviation >= gap:
            return None
        while first < last:
            middle = (first + last) // 2
            if half_width(middle, alpha) * self.deviation < gap:
                last = middle
            else:
                first = middle + 1
        return max(first, self.count + 1)


def chance(differences: Sequence[float], margin: float, resolution: float = 0.0) -> float:
    """The least alpha at which the differences decide something: a p-value valid at any time."""
    least = 1.0
    for count, mean, deviation in _moments(differences, resolution):
        if not deviation:
            continue
        # The claim that the mean lies on this side of both margins rests on the nearer one.
        gap = abs(abs(mean) - margin)
        least = min(least, exp(-log_evidence(count, sqrt(count) * gap / deviation)))
    return least


def judged(
    differences: Mapping[Name, Sequence[float]],
    margin: float,
    alpha: float,
    resolution: float = 0.0,
) -> dict[Name, Evidence]:
    """The evidence of several pairs, together wrong with probability alpha: Holm's correction.

    The pair with the strongest evidence is held against alpha / k, the next against
    alpha / (k - 1), and so on up to the first that decides nothing; the others have its level.

    >>> from fednag.runs.sequential import judged
    >>> clear, vague = [1.0, 1.1] * 5, [1.0, -1.1] * 5
    >>> found = judged({"a": clear, "b": vague}, margin=0.5, alpha=0.05)
    >>> {name: evidence.claim(0.5) for name, evidence in found.items()}
    {'a': 'ahead', 'b': None}
    """
    found: dict[Name, Evidence] = {}
    left, undecided = len(differences), False
    order = sorted(differences, key=lambda name: chance(differences[name], margin, resolution))
    for name in order:
        found[name] = Evidence.of(differences[name], alpha / left, resolution)
        undecided = undecided or found[name].claim(margin) is None
        left -= not undecided
    return {name: found[name] for name in differences}


def _moments(differences: Sequence[float], resolution: float) -> list[tuple[int, float, float]]:
    """(count, mean, standard deviation) after 2, 3, ... differences."""
    values = np.asarray(differences, dtype=np.float64)
    found = []
    for count in range(1, len(values) + 1):
        so_far = values[:count]
        deviation = max(float(so_far.std(ddof=1)), resolution) if count > 1 else inf
        found.append((count, float(so_far.mean()), deviation))
    return found
