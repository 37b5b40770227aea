"""Attacks of workers that see what the honest ones send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fednag.core.attack import Attack
from fednag.core.vectors import Vectors


@dataclass(frozen=True)
class Alie(Attack):
    """A little is enough: all send the honest mean, moved by z deviations in each coordinate.

    Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning,
    NeurIPS 2019::

        up_j <- mean_j - z std_j

    of the honest workers of the exchange. The paper estimates both from the attackers' own data,
    and takes from the numbers of workers and attackers the largest z that is not conspicuous: 1.5
    for 50 workers and 12 attackers. Where there is no honest worker, attackers send their own.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import Alie
    >>> honest = Vectors(w=torch.tensor([[1.0], [3.0]]))
    >>> Alie(z=2.0).forge(Vectors(w=torch.zeros(1)), honest, None).w
    tensor([0.])
    """

    z: float = 1.5

    sees = True

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        if not others:
            return update
        wide = others.map(lambda rows: rows.double())
        return update.map_named(
            lambda name, vector: (wide[name].mean(0) - self.z * wide[name].std(0, correction=0)).to(
                vector
            )
        )
