"""Epsilon of a Gaussian mechanism that is used again and again, by dp-accounting.

Renyi differential privacy (RDP) gives an upper bound for every way of sampling here. Privacy loss
distributions (PLD) are exact up to their grid where nobody or each one alone is sampled: a check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError, not_installed

Sampling = Literal["none", "fixed", "poisson"]

# Of Renyi divergences. Where many are composed the best one is small, where few, large.
ORDERS = (
    *(1.1, 1.25, 1.5, 1.75, *(2 + k / 8 for k in range(24)), *(5 + k / 2 for k in range(12))),
    *(*range(11, 65), 96, 160, 512),
)


@dataclass(frozen=True)
class Mechanism:
    """Normal noise on a sum of vectors, each of them no longer than a bound.

    ``multiplier`` is the noise's standard deviation over that bound. Those in the sum are drawn,
    "fixed": ``sample`` of ``population`` without replacement, "poisson": each with probability
    sample / population; "none": all are in it.

    Neighbours are, for "poisson", with and without one of the population: the sum moves by the
    bound at most. Otherwise, with one of them replaced: it moves by twice the bound.

    >>> from fednag.privacy.accounting import Mechanism
    >>> round(Mechanism(1.0, "fixed", 10, 100).epsilon(100, 1e-5), 1)
    83.9
    """

    multiplier: float
    sampling: Sampling = "none"
    sample: int = 1
    population: int = 1

    @property
    def relation(self) -> str:
        """The neighbour relation, in the field's words."""
        return "add or remove one" if self.sampling == "poisson" else "replace one"

    def epsilon(self, times: int, delta: float) -> float:
        """Epsilon at ``delta`` after so many uses."""
        if not times:
            return 0.0
        if not self.multiplier:
            return inf
        found: list[float] = []
        for divergences in self._divergences:
            accountant = _library().rdp.rdp_privacy_accountant
            with _quietly():
                bound, _ = accountant.compute_epsilon(ORDERS, times * divergences, delta)
            found.append(float(bound))
        return min(found)

    def most(self, epsilon: float, delta: float) -> int:
        """How many uses stay within ``epsilon``."""
        low, high = 0, 1
        while high < 2**40 and self.epsilon(high, delta) <= epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle, delta) <= epsilon else (low, middle)
        return low

    def exactly(self, times: int, delta: float) -> float | None:
        """The same by privacy loss distributions; None where they do not know the sampling."""
        if self._is_sampled("fixed") or not self.multiplier or not times:
            return None
        dp = _library()
        with _quietly():
            # Told of replacing one, it would double what the event has doubled already.
            accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
            accountant.compose(self._event(self.sampling), times)
            return float(accountant.get_epsilon(delta))

    @property
    def _divergences(self) -> list[NDArray[np.float64]]:
        """Renyi divergences of one use; not to sample at all is a bound too."""
        ways = {self.sampling, "none"} if self.sampling == "fixed" else {self.sampling}
        return [_divergences(self, way) for way in sorted(ways)]

    @property
    def _neighbours(self) -> str:
        return "ADD_OR_REMOVE_ONE" if self.sampling == "poisson" else "REPLACE_ONE"

    def _is_sampled(self, sampling: Sampling) -> bool:
        return self.sampling == sampling and self.sample < self.population

    def _event(self, sampling: str) -> Any:
        dp = _library()
        # dp-accounting's multiplier is in lengths by which neighbours move the sum.
        moves = 1 if self.sampling == "poisson" else 2
        noise = dp.GaussianDpEvent(self.multiplier / moves)
        if sampling == "poisson" and self._is_sampled("poisson"):
            return dp.PoissonSampledDpEvent(self.sample / self.population, noise)
        if sampling == "fixed" and self._is_sampled("fixed"):
            return dp.SampledWithoutReplacementDpEvent(self.population, self.sample, noise)
        return noise


@lru_cache(maxsize=256)
def _divergences(mechanism: Mechanism, sampling: str) -> NDArray[np.float64]:
    dp = _library()
    relation = getattr(dp.NeighboringRelation, mechanism._neighbours)
    with _quietly():
        accountant = dp.rdp.RdpAccountant(ORDERS, relation)
        accountant.compose(mechanism._event(sampling))
    # It has no public name; composing anew for every count would take half a second each.
    found: NDArray[np.float64] = accountant._rdp
    return found


def multiplier_for(
    epsilon: float, delta: float, times: int, sampling: Sampling, sample: int, population: int
) -> float:
    """The least noise multiplier with which so many uses cost ``epsilon`` at most."""

    def event(multiplier: float) -> Any:
        event = Mechanism(multiplier, sampling, sample, population)._event(sampling)
        return dp.SelfComposedDpEvent(event, times)

    def accountant() -> Any:
        relation = Mechanism(1.0, sampling)._neighbours
        return dp.rdp.RdpAccountant(ORDERS, getattr(dp.NeighboringRelation, relation))

    dp = _library()
    most = 1.0
    while Mechanism(most, sampling, sample, population).epsilon(times, delta) > epsilon:
        most *= 2
        if most > 2**40:
            raise FednagError(
                "epsilon",
                f"{epsilon:g} is out of reach at delta {delta:g}",
                "raise it",
            )
    least = most
    while Mechanism(least, sampling, sample, population).epsilon(times, delta) <= epsilon:
        least /= 2
    with _quietly():
        found = dp.calibrate_dp_mechanism(
            accountant,
            event,
            epsilon,
            delta,
            dp.ExplicitBracketInterval(least, most),
            tol=least * 1e-4,
        )
    return float(found)


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise not_installed("dp-accounting", "privacy") from None
    return dp_accounting


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what it logs of orders it leaves out: the others are a bound all the same."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
