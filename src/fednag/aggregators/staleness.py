"""Updates that come late count for less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import NonNegative, Positive


@dataclass(frozen=True)
class Staleness(Aggregator):
    """A mean in which an update counts for less the more rounds went by since its worker began::

        s(k) = rate (1 + max(0, k - grace))^-power
        mean of x = x + sum_i p_i s(k_i) (x_i - x_sent_i) / sum_i p_i

    k is 0 for an answer of the same round, and p_i its worker's samples, or 1 with ``equal``. The
    sum is divided by all weights, not by the discounted ones: an old update moves the model less
    even where it is alone. Xie et al., "Asynchronous Federated Optimization" (2019), have the
    polynomial s; Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022),
    FedBuff, use power 0.5, ``equal`` and their server's rate. With ``mix`` an old model is mixed
    into the present one, as in FedAsync: x_i - x in place of x_i - x_sent_i. With rate 1 and
    nobody late it is the mean.

    >>> from fednag.aggregators import Staleness
    >>> [round(Staleness(power=0.5).discount(late), 3) for late in (0, 1, 3)]
    [1.0, 0.707, 0.5]
    """

    power: NonNegative = 0.5
    grace: Annotated[int, Ge(0)] = 0
    rate: Positive = 1.0
    equal: bool = False
    mix: bool = False

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.rate == 1.0

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        return self.mix

    def weight(self, size: int, staleness: int) -> float:
        return 1.0 if self.equal else float(size)

    def discount(self, staleness: int) -> float:
        return float(self.rate * (1 + max(0, staleness - self.grace)) ** -self.power)
