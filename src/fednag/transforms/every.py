"""Vectors that are sent less often than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from fednag.core.transform import Transform
from fednag.core.vectors import Vectors
from fednag.errors import FednagError


@dataclass(frozen=True)
class Every(Transform):
    """Sends ``vectors`` every ``rounds``-th time that a worker takes part, the first time too.

    In between they do not travel, and the server takes a difference of 0: its own stays. So it is
    for vectors that workers are sent; FedNAG's momentum, for example::

        [[uplink]]
        kind = "every"
        rounds = 4
        vectors = ["v"]

    What other transforms made of a vector (``v.scale``) goes with it. error-feedback before it
    would save up what is left out: give that the other vectors' names.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Every
    >>> seldom, x = Every(rounds=2, vectors=("v",)), Vectors(w=torch.ones(3), v=torch.ones(3))
    >>> first, kept = seldom.apply(x, seldom.init(x), None)
    >>> second, kept = seldom.apply(x, kept, None)
    >>> first.nbytes, second.nbytes, seldom.decode(second, x, None).v
    (24, 12, tensor([0., 0., 0.]))
    """

    rounds: Annotated[int, Ge(1)] = 2
    vectors: tuple[str, ...] = ()

    variable = compresses = True

    def init(self, like: Vectors) -> Vectors:
        return Vectors(times=torch.zeros(1, dtype=torch.int64))

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        if missing := [name for name in self.vectors if name not in up]:
            raise FednagError(
                "vectors",
                f"no {', '.join(missing)} travels here, only {', '.join(up) or 'nothing'}",
            )
        after = Vectors(times=kept.times + 1)
        if int(kept.times) % self.rounds == 0:
            return up, after
        return up.map_named(lambda n, v: v[:0] if self._names(n) else v), after

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        # Zeros are 0 in every code too: a scale of 0, or numbers that are.
        return wire.map_named(
            lambda name, v: v if len(v) else torch.zeros(len(like[name]), dtype=like[name].dtype)
        )

    def _names(self, name: str) -> bool:
        return not self.vectors or name.split(".")[0] in self.vectors
