"""Your own method: one frozen dataclass, both halves. Nothing to register.

FedPolyak: heavy-ball momentum on the workers, weights and momenta averaged. FedNAG without
Nesterov's look-ahead.
"""

from dataclasses import dataclass

import torch

import fednag
from fednag import Algorithm, Vectors


@dataclass(frozen=True)
class FedPolyak(Algorithm):
    lr: float = 0.01
    momentum: float = 0.9

    elementwise = True  # no norms, no branches on values: workers may be computed stacked
    down = up = ("w", "v")  # what the server sends, what workers return (averaged by data size)

    def init(self, w):
        return Vectors(w=w, v=torch.zeros_like(w))

    def step(self, local, grad, sent, mine):
        v = self.momentum * local.v - self.lr * grad(local.w)
        return Vectors(w=local.w + v, v=v)


# Not when a command imports it: fednag compare --algorithms own_algorithm.py:FedPolyak
if __name__ == "__main__":
    result = fednag.compare(
        [FedPolyak(), fednag.FedNAG(), fednag.FedAvg()],
        data="digits",
        model="logistic",
        workers=4,
        tau=10,
        iterations=200,
    )
    print(result)
