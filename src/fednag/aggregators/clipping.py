"""Centred clipping: no upload counts for more than a length."""

from __future__ import annotations

from dataclasses import dataclass

from fednag.core.aggregator import Aggregator, Total, single_numbers
from fednag.core.algorithm import BUFFERS, Positive
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class CentredClipping(Aggregator):
    """The weighted mean of uploads that are shortened to ``radius`` around what was sent.

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021::

        v + sum_i p_i (x_i - v) min(1, radius / ||x_i - v||),    p_i = D_i / sum_j D_j

    The paper's v is the aggregate of the round before; here it is what workers were sent, so the
    x_i - v are the updates that travel, and of what was not sent, a gradient say, v is 0. The
    length is that of all vectors of an upload together. Running statistics are shortened by
    themselves, to the same radius. Single numbers (a count) are averaged as they are, so
    methods whose workers send one of their own, such as FedNova, are refused.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import CentredClipping
    >>> rows = Vectors(w=torch.tensor([[0.6, 0.0], [0.0, 5000.0]]))
    >>> clipping = CentredClipping(radius=1.0)
    >>> clipping.finish(clipping.lift(rows, torch.ones(2)), None).w
    tensor([0.3000, 0.5000])
    """

    radius: Positive = 1.0

    exact = False

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        numbers = single_numbers(rows)
        points = [name for name in rows if name != BUFFERS and name not in numbers]
        clipped: dict[str, Vector] = dict(rows)
        for names in (points, [BUFFERS] if BUFFERS in rows else []):
            wide = {name: rows[name].to(weights.dtype) for name in names}
            squares = [vector.square().sum(1, keepdim=True) for vector in wide.values()]
            lengths = sum(squares[1:], squares[0]).sqrt() if squares else None
            for name, vector in wide.items():
                assert lengths is not None
                clipped[name] = vector * (self.radius / lengths).clamp(max=1.0).nan_to_num(1.0)
        return super().lift(Vectors(**clipped), weights)
