"""What transforms leave out is sent later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fednag.core.transform import Transform, compressible
from fednag.core.vectors import Vectors
from fednag.errors import FednagError


@dataclass(frozen=True)
class ErrorFeedback(Transform):
    """Adds to an upload what the transforms after it have left out so far::

        send C(x + e),    e <- x + e - C(x + e)

    Stich et al., "Sparsified SGD with Memory" (2018). C is all that stands behind it in the list.
    The worker keeps e, which starts at 0; a worker whose update is refused keeps the old one.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.core.transform import Chain
    >>> from fednag.transforms import ErrorFeedback, TopK
    >>> chain, x = Chain((ErrorFeedback(), TopK(k=1))), Vectors(w=torch.tensor([3.0, 2.0]))
    >>> _, first, kept = chain.carry(x, chain.init(x), np.random.default_rng(0))
    >>> _, second, kept = chain.carry(x, kept, np.random.default_rng(0))
    >>> first.w, second.w
    (tensor([3., 0.]), tensor([0., 4.]))
    """

    vectors: tuple[str, ...] = ()

    compresses = True

    def init(self, like: Vectors) -> Vectors:
        return like.pick(compressible(like, self.vectors)).map(torch.zeros_like)

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names = compressible(up, self.vectors)
        if encoded := [n for n, left in kept.items() if n not in names or len(up[n]) != len(left)]:
            raise FednagError(
                "error-feedback",
                f"{', '.join(encoded)} is encoded already by a transform before it",
                "put error-feedback earlier",
            )
        return up.but(**kept.map_named(lambda name, left: up[name] + left)), kept

    def settle(self, kept: Vectors, gone: Vectors, arrived: Vectors) -> Vectors:
        return kept.map_named(lambda name, _: gone[name] - arrived[name])
