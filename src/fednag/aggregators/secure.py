"""A mean in fixed point, of which the server may see sums alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le, Lt, MultipleOf
from torch import Tensor

from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import Algorithm, Positive
from fednag.core.controller import Controller
from fednag.core.transform import Chain, Transform
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError
from fednag.secure.terms import FEWEST, threshold_of

GRID = 2**52  # shares are multiples of 1 / GRID: so their sums are exact, in any order


@dataclass(frozen=True)
class Secure(Aggregator):
    """The mean weighted by data size, added up under masks: the server sees sums alone::

        q_i = round(s p_i up_i),    p_i = D_i / D,    s = 2^(bits - 2) / range
        mean = sum_i q_i / (s sum_i p_i)

    Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017).
    The q_i are added up modulo 2^bits. D are the samples of all who are asked: the p_i are
    at most 1 together, so that sums cannot overflow. The mean is off by at most ``error(n)``. An
    update with a number beyond ``range`` (either sign) is refused by the worker itself; points are
    differences from what was sent. More than the share ``threshold`` of a round's workers must go
    on to its end. With ``equal`` every worker counts the same.

    In the simulator the sum is computed as it is, and the bytes of the protocol are counted; with
    ``masked`` the protocol itself is run, and the share ``dropouts`` of the workers vanish in the
    course of each exchange. On Flower the protocol is always run.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import Secure
    >>> fixed = Secure(bits=16, range=2.0)
    >>> rows = Vectors(w=torch.tensor([[1.0], [-0.5]]))
    >>> total = fixed.lift(rows, torch.tensor([0.75, 0.25]))
    >>> total.sums.w, fixed.finish(total, None).w
    (tensor([5120]), tensor([0.6250], dtype=torch.float64))
    """

    bits: Annotated[int, Ge(16), Le(64), MultipleOf(8)] = 32
    range: Positive = 16.0
    threshold: Annotated[float, Ge(0.5), Lt(1)] = 0.5
    masked: bool = False
    dropouts: Annotated[float, Ge(0), Lt(1)] = 0.0
    equal: bool = False

    exact = False
    hides = True

    def weight(self, size: int, staleness: int) -> float:
        return 1.0 if self.equal else float(size)

    @property
    def scale(self) -> float:
        """What a number is multiplied by before it is rounded."""
        return float(2 ** (self.bits - 2) / self.range)

    def error(self, workers: int, share: float = 1.0) -> float:
        """How far a mean may be off, if workers with this share of the data are in it."""
        return workers * self.range * (2.0 ** (1 - self.bits) + 2 / GRID) / share

    def share(self, weight: float, everyone: float) -> float:
        """A worker's part of the weight of all."""
        return round(weight / everyone * GRID) / GRID

    def takes(self, rows: Vectors) -> Tensor:
        """Which of n workers' uploads are finite and within the range."""
        within = [(vector.abs() <= self.range).all(-1) for vector in rows.values()]
        return torch.stack(within).all(0)

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        factors = (weights.double() * self.scale).unsqueeze(1).cpu()
        sums = rows.map(lambda r: (r.cpu().double() * factors).round().to(torch.int64).sum(0))
        return Total(sums, float(weights.sum()))

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        return total.sums.map(lambda v: self._signed(v) / (self.scale * (total.weight or 1.0)))

    def needed(self, workers: int) -> int:
        """How many of a round's workers must go on to its end."""
        if not FEWEST <= workers <= 2 ** (self.bits - 3):
            raise FednagError(
                "aggregator.kind",
                f"secure adds up the updates of {FEWEST} to {2 ** (self.bits - 3)} workers a "
                f"round, and here are {workers}",
                "raise aggregator.bits"
                if workers > FEWEST
                else "of a sum of two, each could tell the other's update",
            )
        return threshold_of(workers, self.threshold)

    def check_parts(self, algorithm: Algorithm, uplink: Chain, controller: Controller) -> None:
        """Raise FednagError for parts that send what cannot be added up, or sends it by itself."""
        if self.dropouts and not self.masked:
            raise FednagError(
                "aggregator.dropouts",
                "workers vanish only from the protocol",
                "set aggregator.masked=true too",
            )
        if controller.observes:
            raise FednagError(
                "controller.kind",
                f"{type(controller).__name__} has each worker report numbers of its own, and with "
                "the aggregator secure the server sees sums alone",
                "use another controller or aggregator",
            )
        like = Vectors(**{name: torch.zeros(16) for name in algorithm.stages[-1].up})
        own = len(algorithm.channel)
        for place, part in enumerate(uplink.parts):
            if not _encodes(uplink.parts[: place + 1], like):
                continue
            field = "algorithm.name" if place < own else f"uplink.{place - own}.kind"
            raise FednagError(
                field,
                f"{type(part).__name__} encodes what is sent, and with the aggregator secure only "
                "numbers can be added up under their masks",
                "leave it out (clip and noise may stay)",
            )

    def _signed(self, sums: Tensor) -> Tensor:
        """Numbers modulo 2^bits as those next to 0."""
        if self.bits < 64:
            half = 2 ** (self.bits - 1)
            sums = ((sums + half) & (2**self.bits - 1)) - half
        # A quarter more than the largest sum there can be: of roundings there are not so many.
        if bool((sums.double().abs() > 1.25 * 2 ** (self.bits - 2)).any()):
            raise FednagError(
                "aggregator",
                "the sum of the updates is out of range, so one of the silos has sent what is no "
                "masked update, or was sent something else than the others",
                "find out which, and leave it out",
            )
        return sums.double()


def _encodes(parts: tuple[Transform, ...], like: Vectors) -> bool:
    """Whether transforms make something else of vectors than as many numbers of the same kind."""
    layout = Chain(parts).layouts(like)[-1]
    kinds = [{n: (len(v), v.dtype) for n, v in bag.items()} for bag in (like, layout)]
    return kinds[0] != kinds[1] or any(part.variable for part in parts)
