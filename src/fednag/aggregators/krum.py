"""Krum: the uploads that lie closest to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt

from fednag.aggregators.ranked import part
from fednag.core.aggregator import RowAggregator
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class Krum(RowAggregator):
    """The one upload whose nearest others are the closest.

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent, NeurIPS 2017::

        score_i = sum of ||x_i - x_j||^2 over the n - f - 2 nearest j;  the x_i of least score

    ``share`` of the n workers may lie: f = share n, rounded up, but less than half. What the paper
    proves needs n >= 2 f + 3; where there are fewer, the nearest one is counted. Of equal scores
    the first worker's wins. Where several vectors travel, each is measured in its own unit, so that
    none hides behind a longer one: the median over workers of the squared distance to a worker's
    (n - 1) // 2-th nearest. With one vector that changes no choice.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import Krum
    >>> rows = Vectors(w=torch.tensor([[1.0], [2.0], [2.5], [4.0], [1e30]]))
    >>> Krum(share=0.2).combine(rows, torch.ones(5)).w
    tensor([2.])
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def combine(self, rows: Vectors, weights: Vector) -> Vectors:
        best = int(self.scores(rows, weights.dtype).argmin())
        return rows.map(lambda vector: vector[best].to(weights.dtype))

    def scores(self, rows: Vectors, dtype: torch.dtype) -> Vector:
        apart = sum(_apart(vector.to(dtype)) for vector in rows.values())
        assert isinstance(apart, torch.Tensor)
        nearest = max(1, len(apart) - part(self.share, len(apart)) - 2)
        return apart.sort(1).values[:, 1 : 1 + nearest].sum(1)  # the first is itself


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the n - f uploads whose nearest others are the closest.

    Scores, ``share`` and f are Krum's, by the same authors. All that are chosen count the same,
    whatever data they have; with share 0 these are all.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import MultiKrum
    >>> rows = Vectors(w=torch.tensor([[1.0], [2.0], [2.5], [4.0], [1e30]]))
    >>> MultiKrum(share=0.2).combine(rows, torch.ones(5)).w
    tensor([2.3750])
    """

    def combine(self, rows: Vectors, weights: Vector) -> Vectors:
        order = self.scores(rows, weights.dtype).argsort(stable=True)
        chosen = order[: len(order) - part(self.share, len(order))].sort().values
        return rows.map(lambda vector: vector[chosen].to(weights.dtype).mean(0))


def _apart(rows: Vector) -> Vector:
    """Squared distances between n uploads of one vector, (n, n), in their own unit."""
    apart = torch.stack([(rows - row).square().sum(1) for row in rows])
    unit = apart.sort(1).values[:, (len(rows) - 1) // 2].median()
    return torch.where(apart > 0, apart / unit, 0.0)
