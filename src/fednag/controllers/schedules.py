"""Numbers that change over rounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from fednag.core.algorithm import NonNegative
from fednag.core.controller import Schedule


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the number in the file down to ``last``, along half a cosine::

        value = last + (first - last) (1 + cos(pi t / T)) / 2

    >>> from fednag.controllers import Cosine
    >>> [round(Cosine("algorithm.lr").at(0.1, done), 3) for done in (0.0, 0.5, 1.0)]
    [0.1, 0.05, 0.0]
    """

    field: str
    last: NonNegative = 0.0

    def at(self, first: float, done: float) -> float:
        return self.last + (first - self.last) * (1 + cos(pi * min(done, 1.0))) / 2
