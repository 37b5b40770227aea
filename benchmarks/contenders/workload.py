"""The work every contender does, as a plain PyTorch user would write it down."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LR, MOMENTUM = 0.01, 0.9
CHARACTERS, LENGTH = 80, 32  # of a text, and of the pieces that are samples


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
    compiled: bool = False
    """Whether a plain loop's model goes through torch.compile."""

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
        labels = torch.from_numpy(y[held].astype(np.int64))
        if self.is_text:
            return torch.from_numpy(x[held]), labels
        return torch.from_numpy(x[held]).float().div_(255), labels

    @property
    def is_text(self) -> bool:
        return self.model in TEXTS

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        if self.model == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        if self.model in MADE:
            return MADE[self.model]()
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


class LSTM(nn.Module):
    """The next character of a text, from an LSTM of 64 units."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CHARACTERS, 16)
        self.recurrent = nn.LSTM(16, 64, batch_first=True)
        self.out = nn.Linear(64, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(self.table(x))[0][:, -1])


class Transformer(nn.Module):
    """The next character of a text, from two layers of attention, 64 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CHARACTERS, 64)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.table(x) + self.place).mean(1))


class Residual(nn.Module):
    """Two 3x3 convolutions and what came in; He et al.'s basic block, without projections."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - before

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.relu(self.first_norm(self.first(x)))
        h = self.second_norm(self.second(h))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        x = nn.functional.pad(x, (0, 0, 0, 0, 0, self.added)) if self.added else x
        return nn.functional.relu(h + x)


def resnet20() -> nn.Module:
    """As fednag has it, with batch normalisation."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
    layers.append(nn.ReLU())
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(Residual(before, width, 2 if stage and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def vgg16(normalise: bool = False) -> nn.Module:
    """Thirteen convolutions and a linear layer on top, as fednag has it; He's initialisation."""
    layers: list[nn.Module] = []
    before = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers.append(nn.Conv2d(before, width, 3, padding=1))
            nn.init.kaiming_normal_(layers[-1].weight, nonlinearity="relu")
            layers += [nn.GroupNorm(32, width)] if normalise else []
            layers.append(nn.ReLU())
            before = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


TEXTS = ("lstm", "transformer")
MADE: dict[str, Callable[[], nn.Module]] = {
    "vgg16": vgg16,
    "vgg16-gn": lambda: vgg16(normalise=True),
    "resnet20": resnet20,
    "lstm": LSTM,
    "transformer": Transformer,
}


def local_nag(
    model: nn.Module,
    weights: list[Tensor],
    momenta: list[Tensor] | None,
    batches: Iterator[tuple[Tensor, Tensor]],
    tau: int,
    called: Callable[[Tensor], Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """FedNAG on one worker: ``torch.optim.SGD(nesterov=True)`` from the server's state.

    ``called`` is the model, compiled.
    """
    parameters = list(model.parameters())
    called = model if called is None else called
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
        nn.functional.cross_entropy(called(x), y).backward()
        optimiser.step()
    found = [p.detach().clone() for p in parameters]
    return found, [optimiser.state[p]["momentum_buffer"] for p in parameters]
