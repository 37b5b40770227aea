"""The work every contender does, as a plain PyTorch user would write it down."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LR, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Work:
    """A model, trained by NAG for ``tau`` iterations a round on each of ``workers`` workers."""

    model: str
    workers: int
    tau: int
    batch: int
    data: str
    """Folder with x.npy (uint8 images) and y.npy (labels)."""
    threads: int = 0
    chunk: int = 0

    @classmethod
    def given(cls) -> Work:
        return cls(**json.loads(sys.argv[1]))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.load(Path(self.data, "x.npy")), np.load(Path(self.data, "y.npy"))

    def share(self, worker: int, samples: int) -> np.ndarray:
        """The samples of one worker."""
        return np.random.default_rng(0).permutation(samples)[worker :: self.workers]

    def tensors(self, worker: int) -> tuple[Tensor, Tensor]:
        """A worker's images, ready for the model, and labels."""
        x, y = self.arrays()
        held = self.share(worker, len(y))
        images = torch.from_numpy(x[held]).float().div_(255)
        return images, torch.from_numpy(y[held].astype(np.int64))

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        if self.model == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        if self.model == "vgg16":
            return vgg16()
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 10),
        )

    def batches(self, worker: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A worker's mini-batches, without end."""
        samples = TensorDataset(*self.tensors(worker))
        loader = DataLoader(samples, batch_size=self.batch, shuffle=True, drop_last=True)
        while True:
            yield from loader


def vgg16() -> nn.Module:
    """Thirteen convolutions and a linear layer on top, as fednag has it; He's initialisation."""
    layers: list[nn.Module] = []
    before = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
            before = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


def local_nag(
    model: nn.Module,
    weights: list[Tensor],
    momenta: list[Tensor] | None,
    batches: Iterator[tuple[Tensor, Tensor]],
    tau: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """FedNAG on one worker: ``torch.optim.SGD(nesterov=True)`` from the server's state."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, weights, strict=True):
            parameter.copy_(value)
    optimiser = torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, nesterov=True)
    if momenta is not None:
        for parameter, value in zip(parameters, momenta, strict=True):
            optimiser.state[parameter]["momentum_buffer"] = value.clone()
    for _ in range(tau):
        x, y = next(batches)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    found = [p.detach().clone() for p in parameters]
    return found, [optimiser.state[p]["momentum_buffer"] for p in parameters]
