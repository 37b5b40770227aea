"""Median and trimmed mean: every coordinate's numbers in order, and those in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

from annotated_types import Ge, Lt

from fednag.core.aggregator import RowAggregator
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class Median(RowAggregator):
    """The median of every coordinate.

    Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018::

        median_j = the middle one of x_1j, ..., x_nj in order;  of two middle ones, their mean

    All workers count the same, whatever data they have. A single number (a count) is a coordinate
    too: its median is taken.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import Median
    >>> rows = Vectors(w=torch.tensor([[1.0, 5.0], [2.0, -1e30], [1e30, 6.0]]))
    >>> Median().combine(rows, torch.ones(3)).w
    tensor([2., 5.])
    """

    def combine(self, rows: Vectors, weights: Vector) -> Vectors:
        count = len(weights)

        def middle(vector: Vector) -> Vector:
            ordered = vector.sort(0).values
            low, high = ordered[(count - 1) // 2], ordered[count // 2]
            return low.to(weights.dtype) / 2 + high.to(weights.dtype) / 2  # the sum may overflow

        return rows.map(middle)


@dataclass(frozen=True)
class TrimmedMean(RowAggregator):
    """The mean of every coordinate without its largest and its smallest numbers.

    Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018::

        mean_j = mean of x_1j, ..., x_nj without the k largest and the k smallest;
        k = share n, rounded up

    All workers count the same, whatever data they have. ``share`` is trimmed at either end, but
    never the one or two in the middle.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import TrimmedMean
    >>> rows = Vectors(w=torch.tensor([[1.0], [2.0], [4.0], [-1e30], [1e30]]))
    >>> round(float(TrimmedMean(share=0.2).combine(rows, torch.ones(5)).w), 4)
    2.3333
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def combine(self, rows: Vectors, weights: Vector) -> Vectors:
        count = len(weights)
        cut = part(self.share, count)

        def mean(vector: Vector) -> Vector:
            kept = vector.sort(0).values[cut : count - cut] if cut else vector
            return kept.to(weights.dtype).mean(0)

        return rows.map(mean)


def part(share: float, count: int) -> int:
    """A share of so many workers, rounded up, but less than half of them."""
    return min(ceil(share * count - 1e-9), (count - 1) // 2)  # 0.1 of 30 is 3, not 3.0000001
