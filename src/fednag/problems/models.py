"""The models of the paper, and residual networks, for inputs of any size; the user's own, made.

Those of the paper have no batch normalisation: its running statistics mislead on workers whose data
differ. Where a name ends in ``-gn``, group normalisation takes its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fednag.errors import FednagError

OF_IMAGES = ("cnn", "vgg16", "vgg16-gn", "vgg16-bn", "resnet20", "resnet18-gn")
VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
GROUPS = 32  # of channels that group normalisation takes together

Normalise = Callable[[int], nn.Module]
"""How many channels there are -> the layer that normalises them."""
Factory = Callable[..., nn.Module]
"""A function of the seed that makes a model, or a class or function that takes nothing."""


def by_group(channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels)


class Scored(nn.Module):
    """Features of images, and scores on top of them."""

    features: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x).flatten(1))
        return scores


class CNN(Scored):
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


class VGG16(Scored):
    """VGG16's thirteen convolutions with one linear layer on top, as usual for 32x32 images.

    ``normalise`` makes the layer after each convolution, if there is to be one. Pooling rounds up,
    so that images smaller than 32x32 pass; weights start as He's initialisation, without which the
    plain network does not learn.
    """

    def __init__(
        self, shape: tuple[int, ...], outputs: int, normalise: Normalise | None = None
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[0]
        for width, convolutions in VGG16_STAGES:
            for _ in range(convolutions):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                if normalise is not None:
                    layers.append(normalise(width))
                layers.append(nn.ReLU())
                channels = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(channels, outputs)
        start_as_he(self)


class Residual(nn.Module):
    """Two 3x3 convolutions whose result is added to what came in, as a basic block of He et al.

    Where the width or the size changes, what came in is fitted to it: by a normalised 1x1
    convolution if ``projects``, else by leaving out pixels and adding channels of zeros.
    """

    def __init__(
        self, before: int, width: int, stride: int, normalise: Normalise, projects: bool
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = normalise(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = normalise(width)
        self.stride, self.added = stride, width - before
        self.shortcut: nn.Module | None = None
        if projects and (stride > 1 or self.added):
            narrow = nn.Conv2d(before, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, normalise(width))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.first_norm(self.first(x)))
        h = self.second_norm(self.second(h))
        return functional.relu(h + self._fitted(x))

    def _fitted(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            fitted: Tensor = self.shortcut(x)
            return fitted
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, 0, self.added)) if self.added else x


class ResNet(Scored):
    """The residual networks of He et al. (2015) for 32x32 images: a 3x3 convolution, stages of
    basic blocks, each later stage at half the size, the mean over pixels and a linear layer.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        widths: Sequence[int],
        blocks: int,
        normalise: Normalise,
        projects: bool,
    ) -> None:
        super().__init__()
        channels = widths[0]
        layers = [nn.Conv2d(shape[0], channels, 3, padding=1, bias=False), normalise(channels)]
        layers.append(nn.ReLU())
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Residual(channels, width, stride, normalise, projects))
                channels = width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(channels, outputs)
        start_as_he(self)


def start_as_he(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def dense(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


Make = Callable[[tuple[int, ...], int, Sequence[int] | None], nn.Module]
"""(shape of a sample, outputs, widths of hidden layers) -> a model."""


def _linear(shape: tuple[int, ...], outputs: int, hidden: Sequence[int] | None) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def _mlp(shape: tuple[int, ...], outputs: int, hidden: Sequence[int] | None) -> nn.Module:
    widths = (200, 200) if hidden is None else hidden
    return nn.Sequential(nn.Flatten(), *dense([prod(shape), *widths, outputs]))


# The only list of models' names.
MODELS: dict[str, Make] = {
    "linear": _linear,
    "logistic": _linear,
    "mlp": _mlp,
    "cnn": lambda shape, outputs, hidden: CNN(shape, outputs, hidden or ()),
    "vgg16": lambda shape, outputs, hidden: VGG16(shape, outputs),
    "vgg16-gn": lambda shape, outputs, hidden: VGG16(shape, outputs, by_group),
    "vgg16-bn": lambda shape, outputs, hidden: VGG16(shape, outputs, nn.BatchNorm2d),
    "resnet20": lambda shape, outputs, hidden: ResNet(
        shape, outputs, (16, 32, 64), 3, nn.BatchNorm2d, projects=False
    ),
    "resnet18-gn": lambda shape, outputs, hidden: ResNet(
        shape, outputs, (64, 128, 256, 512), 2, by_group, projects=True
    ),
}


def build(
    name: str, shape: tuple[int, ...], outputs: int, seed: int, hidden: Sequence[int] | None = None
) -> nn.Module:
    """The model ``name`` for samples of ``shape``, its first weights drawn from ``seed``."""
    if name in OF_IMAGES and (len(shape) != 3 or min(shape[1:]) < 4):
        raise FednagError(
            "model.name",
            f"{name} needs images of at least 4x4 pixels, but a sample of this data has shape "
            f"{tuple(shape)}",
            "use logistic, linear or mlp",
        )
    if hidden is not None and name not in ("mlp", "cnn"):
        raise FednagError("model.hidden", f"{name} has no hidden layers to size", "leave it out")
    if name not in MODELS:
        raise FednagError("model.name", f"no model {name!r}", f"there are {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, outputs, hidden)


def loss_of(name: str) -> str:
    """The loss the paper trains a model with: mean squared error for linear regression only."""
    return "mse" if name == "linear" else "cross-entropy"


def made(factory: Factory, seed: int) -> nn.Module:
    """The factory's model for ``seed``, which decides its random draws; no one else's change."""
    arguments = _arguments(factory, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module: Any = factory(*arguments[0], **arguments[1])
        except FednagError:
            raise
        except Exception as error:  # whatever a user's function raises
            first = (str(error).strip() or repr(error)).splitlines()[0]
            raise FednagError(
                "model", f"{_name(factory)} failed to make one for seed {seed} ({first})", "mend it"
            ) from error
    if not isinstance(module, nn.Module):
        raise FednagError(
            "model",
            f"{_name(factory)} gave {type(module).__name__} for seed {seed}",
            "let it return an nn.Module",
        )
    return module


def _arguments(factory: Factory, seed: int) -> tuple[tuple[int, ...], dict[str, int]]:
    try:
        takes = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:  # some that are written in C do not say
        raise _refusal(factory) from error
    needed = [
        each
        for each in takes
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    named = [each for each in takes if each.name == "seed" and each.kind != each.POSITIONAL_ONLY]
    if named and all(each.name == "seed" for each in needed):
        return (), {"seed": seed}
    if not needed:
        return (), {}
    # What a class of layers takes is a size, and a seed in its place would go unnoticed.
    inner = factory.func if isinstance(factory, partial) else factory
    if len(needed) > 1 or needed[0].kind == needed[0].KEYWORD_ONLY or isinstance(inner, type):
        raise _refusal(factory)
    return (seed,), {}


def _refusal(factory: Factory) -> FednagError:
    name = _name(factory)
    return FednagError(
        "model",
        f"{name} does not take the seed alone, or nothing",
        "give a function that does, e.g. model=lambda seed: "
        f"{name if name.isidentifier() else 'Net'}(…)",
    )


def _name(factory: Factory) -> str:
    inner = factory.func if isinstance(factory, partial) else factory
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "your function" if name == "<lambda>" else name
