"""The models of the paper, for inputs of any size.

None has batch normalisation: its running statistics are not part of the weights that are averaged,
and they mislead on workers whose data differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fednag.errors import FednagError

NAMES = ("linear", "logistic", "mlp", "cnn", "vgg16", "vgg16-gn")

VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class CNN(nn.Module):
    """Two 5x5 convolutions (32 and 64 channels), each with 2x2 max pooling and ReLU, then a
    softmax layer; ``hidden`` puts ReLU layers of those widths before it.

    Pooling comes before ReLU: they commute, and ReLU then has a quarter of the work.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        self.head = dense([64 * (height // 4) * (width // 4), *hidden, outputs])

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x).flatten(1))
        return scores


class VGG16(nn.Module):
    """VGG16's thirteen convolutions with one linear layer on top, as usual for 32x32 images.

    ``groups`` > 0 puts group normalisation after each convolution. Pooling rounds up, so that
    images smaller than 32x32 pass; weights start as He's initialisation, without which the plain
    network does not learn.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, groups: int = 0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[0]
        for width, convolutions in VGG16_STAGES:
            for _ in range(convolutions):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                if groups:
                    layers.append(nn.GroupNorm(groups, width))
                layers.append(nn.ReLU())
                channels = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(channels, outputs)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x).flatten(1))
        return scores


def dense(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build(
    name: str, shape: tuple[int, ...], outputs: int, seed: int, hidden: Sequence[int] | None = None
) -> nn.Module:
    """The model ``name`` for samples of ``shape``, its first weights drawn from ``seed``."""
    if name in ("cnn", "vgg16", "vgg16-gn") and (len(shape) != 3 or min(shape[1:]) < 4):
        raise FednagError(
            f"model.name: {name} needs images of at least 4x4 pixels, but a sample of this data "
            f"has shape {tuple(shape)}; use logistic, linear or mlp"
        )
    if hidden is not None and name not in ("mlp", "cnn"):
        raise FednagError(f"model.hidden: {name} has no hidden layers to size; leave it out")
    features = prod(shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in ("linear", "logistic"):
            return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs))
        if name == "mlp":
            widths = [200, 200] if hidden is None else list(hidden)
            return nn.Sequential(nn.Flatten(), *dense([features, *widths, outputs]))
        if name == "cnn":
            return CNN(shape, outputs, hidden or ())
        if name in ("vgg16", "vgg16-gn"):
            return VGG16(shape, outputs, groups=32 if name.endswith("gn") else 0)
    raise FednagError(f"model.name: no model {name!r}; there are {', '.join(NAMES)}")


def loss_of(name: str) -> str:
    """The loss the paper trains a model with: mean squared error for linear regression only."""
    return "mse" if name == "linear" else "cross-entropy"
