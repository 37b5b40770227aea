"""Means: weighted by data size, or every worker alike."""

from __future__ import annotations

from dataclasses import dataclass

from fednag.core.aggregator import Aggregator


@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean weighted by data size, as in FedAvg and FedNAG::

        mean = sum_i D_i up_i / sum_i D_i

    >>> from fednag.aggregators import Mean
    >>> Mean().weight(size=30, staleness=0)
    30.0
    """


@dataclass(frozen=True)
class EqualMean(Aggregator):
    """The mean in which every worker counts the same, however much data it has::

        mean = sum_i up_i / n

    >>> from fednag.aggregators import EqualMean
    >>> EqualMean().weight(size=30, staleness=0)
    1.0
    """

    def weight(self, size: int, staleness: int) -> float:
        return 1.0
