"""A bound on the length of uploads, learnt from the uploads themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fednag.core.aggregator import Aggregator, RowAggregator, Rows, Total, single_numbers
from fednag.core.vectors import Vector, Vectors

LEAST = 0.1  # unit of a vector, in that of w; v counts for 1 / (1 - momentum) steps


@dataclass(frozen=True)
class NormBound(RowAggregator):
    """The weighted mean of the uploads that are not far longer than the others'.

    The others are refused: they are named in the record, and such a worker keeps the memory it
    had::

        upload i is in the mean if length_i <= factor median(length_1, ..., length_n)

    The median is the lower one, of lengths above 0. The length is over all that travels: of every
    vector x, as the difference from what was sent, the unit m_x is the median of its ||x_i||, and
    length_i^2 = sum_x (||x_i|| / m_x)^2. So nothing hides in FedNAG's v behind a longer w. But m_x
    is at least a tenth of w's: of momenta that have nearly died away, some are many times as long
    as others, and move nothing. Of a single number beside longer vectors the square root is
    measured: counts of steps, or squares of lengths, differ between honest workers by the square of
    what vectors do. Raise the factor where a controller orders some workers many times the steps of
    others.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import NormBound
    >>> rows = Vectors(w=torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 600.0]]))
    >>> bound = NormBound(factor=10.0)
    >>> total, refused = bound.screen(bound.gather(rows, torch.tensor([1.0, 3.0, 5.0]), [4, 7, 9]))
    >>> bound.finish(total, None).w, refused
    (tensor([0.7500, 4.7500]), {9: 'its update is 120 times as long as the median'})
    """

    factor: Annotated[float, Ge(1)] = 10.0

    exact = False

    def screen(self, total: Total) -> tuple[Total, Mapping[int, str]]:
        if not isinstance(total, Rows):
            return total, {}
        workers, rows, weights = total.together()
        times = lengths(norms(rows))
        long = times > self.factor
        whose = {w: too_long(t) for w, t in zip(workers, times.tolist(), strict=True)}
        refused = {
            w: whose[w] for w, is_long in zip(workers, long.tolist(), strict=True) if is_long
        }
        if refused:
            rows, weights = rows.map(lambda vector: vector[~long]), weights[~long]
        return self.lift(rows, weights), refused

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        return Aggregator.finish(self, self.screen(total)[0], rng)


def too_long(times: float) -> str:
    """Why an update is refused."""
    return f"its update is {times:.3g} times as long as the median"


def norms(rows: Vectors) -> Vectors:
    """The length of each vector of n uploads, (n,) by name."""
    numbers = single_numbers(rows)

    def norm(name: str, vector: Vector) -> Vector:
        found: Tensor = torch.linalg.vector_norm(vector.cpu(), dim=1, dtype=torch.float64)
        return found.sqrt() if name in numbers else found

    return rows.map_named(norm)


def lengths(norms: Vectors) -> Tensor:
    """How many times as long as the median n uploads are, from the lengths of their vectors."""
    units = norms.map(_median)
    least = LEAST * float(units["w"]) if "w" in units else 0.0
    own = [norm / units[name].clamp(min=least) for name, norm in norms.items()]
    found: Tensor = torch.linalg.vector_norm(torch.stack(own), dim=0)
    return found / _median(found)


def _median(found: Tensor) -> Tensor:
    """The lower median of what is above 0: who sends nothing says nothing of lengths."""
    above = found[found > 0]
    return above.median() if len(above) else torch.ones((), dtype=found.dtype)
