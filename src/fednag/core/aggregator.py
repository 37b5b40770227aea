"""How the server aggregates uploads: groups of workers are reduced, then merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    def to(self, device: torch.device) -> Total:
        """The same on another device."""
        return replace(self, sums=self.sums.map(lambda vector: vector.to(device)))


@dataclass(frozen=True, eq=False)
class Rows(Total):
    """Uploads that are not summed yet: whose they are, a row for each, and their weights."""

    parts: tuple[tuple[tuple[int, ...], Vectors, Vector], ...] = ()

    def to(self, device: torch.device) -> Rows:
        moved = [(w, rows.map(lambda v: v.to(device)), p.to(device)) for w, rows, p in self.parts]
        return replace(self, parts=tuple(moved))

    def together(self) -> tuple[tuple[int, ...], Vectors, Vector]:
        """Workers, uploads (n, d) and weights (n,), by worker: no merging changes a bit."""
        workers = [worker for part, _, _ in self.parts for worker in part]
        order = sorted(range(len(workers)), key=workers.__getitem__)
        weights = torch.cat([weights for _, _, weights in self.parts])[order]
        bags = [rows for _, rows, _ in self.parts]
        rows = {name: torch.cat([bag[name] for bag in bags])[order] for name in bags[0]}
        return tuple(workers[place] for place in order), Vectors(**rows), weights


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
    mixes: ClassVar[bool] = False
    """A late point counts as its difference from the server's now, not from what was sent."""
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

    def discount(self, staleness: int) -> float:
        """What an upload is multiplied by that is so many rounds late; its weight stays."""
        return 1.0

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        """Aggregate n workers' uploads, (n, d) each; sums are as precise as ``weights``, (n,)."""
        sums = rows.map(lambda rows: weights @ rows.to(weights.dtype))
        return Total(sums, float(weights.sum()))

    def gather(self, rows: Vectors, weights: Vector, workers: Sequence[int]) -> Total:
        """The same, and told whose the rows are."""
        return self.lift(rows, weights)

    def merge(self, a: Total, b: Total) -> Total:
        return Total(a.sums.map_with(b.sums, torch.add), a.weight + b.weight)

    def screen(self, total: Total) -> tuple[Total, Mapping[int, str]]:
        """All uploads of an exchange without those it refuses; and whose these are, and why.

        A worker that is refused keeps the memory it had, and is named in the record. Nothing is
        refused a second time: the total that is given back is screened.
        """
        return total, {}

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        """The aggregated upload; random numbers come from ``rng``, which is keyed by round."""
        return total.sums.map(lambda vector: vector / (total.weight or 1.0))


class RowAggregator(Aggregator):
    """An aggregator that must have all uploads before it, n rows of d numbers in memory.

    Only ``combine`` must be written.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.core.aggregator import RowAggregator
    >>> class Largest(RowAggregator):
    ...     def combine(self, rows, weights):
    ...         return rows.map(lambda vector: vector.amax(0))
    >>> rows, weights = Vectors(w=torch.tensor([[1.0], [4.0]])), torch.ones(2)
    >>> Largest().finish(Largest().gather(rows, weights, [0, 1]), None).w
    tensor([4.])
    """

    def gather(self, rows: Vectors, weights: Vector, workers: Sequence[int]) -> Total:
        own = rows.map(torch.clone)  # what is given may be memory that is used again
        return Rows(Vectors(), float(weights.sum()), ((tuple(workers), own, weights),))

    def merge(self, a: Total, b: Total) -> Total:
        assert isinstance(a, Rows)
        assert isinstance(b, Rows)
        return Rows(Vectors(), a.weight + b.weight, a.parts + b.parts)

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        assert isinstance(total, Rows)
        _, rows, weights = total.together()
        return self.combine(rows, weights)

    def combine(self, rows: Vectors, weights: Vector) -> Vectors:
        """The aggregate of n uploads, (n, d) each in the workers' order; as precise as weights."""
        raise NotImplementedError


def single_numbers(rows: Vectors) -> list[str]:
    """Names of those that are one number a worker, beside longer vectors: counts and the like."""
    widths = {name: vector.shape[-1] for name, vector in rows.items()}
    return [name for name, width in widths.items() if width == 1 < max(widths.values())]


def including(
    aggregator: Aggregator, total: Total | None, up: Vectors, size: int, worker: int
) -> Total:
    """The total with the upload of one more worker, who has ``size`` samples."""
    weight = torch.tensor([aggregator.weight(size, 0)], dtype=torch.float64)
    part = aggregator.gather(up.map(lambda vector: vector.unsqueeze(0)), weight, [worker])
    return part if total is None else aggregator.merge(total, part)
