"""How the server aggregates uploads: groups of workers are reduced, then merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fednag.core.vectors import Vector, Vectors

if TYPE_CHECKING:
    from fednag.core.controller import Setting


@dataclass(frozen=True, eq=False)
class Total:
    """The aggregate of some workers' uploads: weighted sums, and the total weight."""

    sums: Vectors
    weight: float


class Aggregator:
    """How the server aggregates uploads. Subclasses are ``@dataclass(frozen=True)``.

    The defaults are the mean weighted by data size. An aggregator with a ``weight`` of its own
    need write nothing else::

        mean = sum_i weight_i up_i / sum_i weight_i

    >>> import torch
    >>> from fednag import Aggregator, Vectors
    >>> rows = Vectors(w=torch.tensor([[1.0], [4.0]]))
    >>> total = Aggregator().lift(rows, torch.tensor([1.0, 2.0]))
    >>> Aggregator().finish(total, None).w
    tensor([3.])
    """

    exact: ClassVar[bool] = True
    """Uploads may be whole vectors; otherwise they are differences from what was sent."""
    always: ClassVar[bool] = False
    """A round in which nobody answers has a result too, e.g. noise."""
    hides: ClassVar[bool] = False
    """The server learns the aggregate alone, and no single upload (secure aggregation)."""

    def init(self) -> Vectors:
        """What it keeps from one exchange to the next, before the first."""
        return Vectors()

    def ready(self, kept: Vectors, setting: Setting) -> Aggregator:
        """Itself for the next exchange, knowing what is kept and how many workers are expected."""
        return self

    def learn(self, kept: Vectors, total: Total, rng: np.random.Generator | None) -> Vectors:
        """What it keeps after an exchange; ``rng`` goes on where ``finish`` left it."""
        return kept

    def weight(self, size: int, staleness: int) -> float:
        """The weight of an upload, by the worker's samples and how many rounds late it is."""
        return float(size)

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        """Aggregate n workers' uploads, (n, d) each; sums are as precise as ``weights``, (n,)."""
        sums = rows.map(lambda rows: weights @ rows.to(weights.dtype))
        return Total(sums, float(weights.sum()))

    def merge(self, a: Total, b: Total) -> Total:
        return Total(a.sums.map_with(b.sums, torch.add), a.weight + b.weight)

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        """The aggregated upload; random numbers come from ``rng``, which is keyed by round."""
        return total.sums.map(lambda vector: vector / (total.weight or 1.0))


def including(aggregator: Aggregator, total: Total | None, up: Vectors, size: int) -> Total:
    """The total with the upload of one more worker, who has ``size`` samples."""
    weight = torch.tensor([aggregator.weight(size, 0)], dtype=torch.float64)
    part = aggregator.lift(up.map(lambda vector: vector.unsqueeze(0)), weight)
    return part if total is None else aggregator.merge(total, part)
