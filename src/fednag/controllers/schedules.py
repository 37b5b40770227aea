"""Numbers that change over rounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

from fednag.core.algorithm import NonNegative
from fednag.core.controller import Schedule

Part = Annotated[float, Gt(0), Le(1)]
WarmUp = Annotated[float, Ge(0), Le(0.5)]


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the number in the file down to ``last``, along half a cosine::

        value = last + (first - last) (1 + cos(pi t / T)) / 2

    In the share ``warm_up`` of the run that goes before, it rises in a straight line.

    >>> from fednag.controllers import Cosine
    >>> [round(Cosine("algorithm.lr").at(0.1, done), 3) for done in (0.0, 0.5, 1.0)]
    [0.1, 0.05, 0.0]
    """

    field: str
    last: NonNegative = 0.0
    warm_up: WarmUp = 0.0

    def at(self, first: float, done: float) -> float:
        if done < self.warm_up:
            return _rising(first, done, self.warm_up)
        along = (min(done, 1.0) - self.warm_up) / (1 - self.warm_up)
        return self.last + (first - self.last) * (1 + cos(pi * along)) / 2


@dataclass(frozen=True)
class Steps(Schedule):
    """Multiplied by ``factor`` when each share of the run in ``at_shares`` is done::

        value = first factor^(how many of at_shares are done)

    >>> from fednag.controllers import Steps
    >>> rule = Steps("algorithm.lr", at_shares=(0.5, 0.75))
    >>> [round(rule.at(1.0, done), 3) for done in (0.0, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    """

    field: str
    at_shares: Annotated[tuple[Part, ...], MinLen(1)] = (0.5, 0.75)
    factor: Annotated[float, Gt(0)] = 0.1

    def at(self, first: float, done: float) -> float:
        return first * self.factor ** sum(done >= share for share in self.at_shares)


@dataclass(frozen=True)
class Inverse(Schedule):
    """One over the iterations done, as theorems on strongly convex losses have it::

        value = first / (1 + slope t / T)

    >>> from fednag.controllers import Inverse
    >>> [round(Inverse("algorithm.lr").at(1.0, done), 3) for done in (0.0, 0.5, 1.0)]
    [1.0, 0.182, 0.1]
    """

    field: str
    slope: NonNegative = 9.0

    def at(self, first: float, done: float) -> float:
        return first / (1 + self.slope * done)


@dataclass(frozen=True)
class Rising(Schedule):
    """Rises in a straight line in the first share ``warm_up`` of the run, then stays.

    It begins one hundredth of the way up, for many numbers must not be 0.

    >>> from fednag.controllers import Rising
    >>> [round(Rising("algorithm.lr").at(1.0, done), 3) for done in (0.0, 0.05, 0.5)]
    [0.01, 0.505, 1.0]
    """

    field: str
    warm_up: Annotated[float, Gt(0), Le(1)] = 0.1

    def at(self, first: float, done: float) -> float:
        return first if done >= self.warm_up else _rising(first, done, self.warm_up)


def _rising(first: float, done: float, until: float) -> float:
    return first * (0.01 + 0.99 * done / until)
