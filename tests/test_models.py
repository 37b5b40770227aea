"""The models that are known by name."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fednag.problems import models
from fednag.problems.flops import training_flops
from refusals import refused

COLOUR, GREY = (3, 32, 32), (1, 28, 28)

# Of ten classes in 32x32 colour images. The convolutions of VGG16 have 14,714,688 parameters, batch
# normalisation 2 for each of its 4,224 channels, the linear layer 5,130. ResNet-20 with shortcuts
# that have no parameters is published as 0.27 million; ResNet-18 with a 3x3 convolution first and
# 1x1 convolutions as shortcuts has 11,173,962 in the usual code for CIFAR.
PARAMETERS = {
    "vgg16": 14_719_818,
    "vgg16-gn": 14_728_266,
    "vgg16-bn": 14_728_266,
    "resnet20": 269_722,
    "resnet18-gn": 11_173_962,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_as_published(name: str) -> None:
    module = models.build(name, COLOUR, 10, seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS[name]


def test_parameters_of_resnet20_by_hand() -> None:
    """All weights of its 3x3 convolutions, two numbers a channel normalised, and the head."""
    first = 9 * 3 * 16 + 2 * 16
    stages = [
        9 * (before * width + 5 * width * width) + 6 * 2 * width
        for before, width in ((16, 16), (16, 32), (32, 64))
    ]
    assert first + sum(stages) + 64 * 10 + 10 == PARAMETERS["resnet20"]


@pytest.mark.parametrize("shape", [GREY, COLOUR, (2, 4, 5)])
@pytest.mark.parametrize("name", models.OF_IMAGES)
def test_scores_for_images_of_any_size(name: str, shape: tuple[int, ...]) -> None:
    module = models.build(name, shape, 7, seed=0)
    scores = module.eval()(torch.rand(2, *shape))
    assert scores.shape == (2, 7)
    assert bool(scores.isfinite().all())
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("name", models.OF_IMAGES)
def test_normalisation_is_what_the_name_says(name: str) -> None:
    kinds = {type(layer) for layer in models.build(name, COLOUR, 10, seed=0).modules()}
    assert (nn.BatchNorm2d in kinds) == (name in ("vgg16-bn", "resnet20"))
    assert (nn.GroupNorm in kinds) == name.endswith("-gn")


def test_vgg16_bn_normalises_after_each_convolution() -> None:
    layers = list(models.build("vgg16-bn", COLOUR, 10, seed=0).modules())
    after = [layers[i + 1] for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert len(after) == 13
    assert all(isinstance(layer, nn.BatchNorm2d) for layer in after)


def resnet20(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Written anew from the paper, option A: zeros for channels, every other pixel."""

    def normalised(x: Tensor, name: str) -> Tensor:
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return x * scale[:, None, None] + shift[:, None, None]

    x = functional.conv2d(x, weights["features.0.weight"], padding=1)
    x = normalised(x, "features.1").relu()
    for block in range(9):
        name = f"features.{3 + block}"
        halves = block in (3, 6)
        h = functional.conv2d(x, weights[f"{name}.first.weight"], stride=1 + halves, padding=1)
        h = normalised(h, f"{name}.first_norm").relu()
        h = normalised(
            functional.conv2d(h, weights[f"{name}.second.weight"], padding=1), f"{name}.second_norm"
        )
        if halves:
            x = x[..., ::2, ::2]
            x = torch.cat([x, torch.zeros_like(x)], 1)
        x = (h + x).relu()
    return x.mean((2, 3)) @ weights["head.weight"].T + weights["head.bias"]


def test_resnet20_is_the_papers() -> None:
    module = models.build("resnet20", COLOUR, 10, seed=0).double()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:  # scales and shifts begin as 1 and 0, which hides their place
                parameter.add_(0.1 * torch.linspace(-1, 1, len(parameter)))
        x = torch.rand(4, *COLOUR, dtype=torch.float64)
        expected = resnet20(x, dict(module.named_parameters()))
        torch.testing.assert_close(module(x), expected)


def test_resnet18_gn_halves_three_times_and_has_eight_blocks() -> None:
    module = models.build("resnet18-gn", COLOUR, 10, seed=0)
    seen: list[tuple[int, ...]] = []
    for layer in module.modules():
        if isinstance(layer, models.Residual):
            layer.register_forward_hook(lambda _module, _x, out: seen.append(tuple(out.shape[1:])))
    module(torch.rand(1, *COLOUR))
    sizes = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert seen == [size for size in sizes for _ in range(2)]
    projecting = [
        layer.shortcut is not None
        for layer in module.modules()
        if isinstance(layer, models.Residual)
    ]
    assert projecting == [False, False, True, False, True, False, True, False]


@pytest.mark.parametrize("name", models.MODELS)
def test_the_seed_decides_the_first_weights(name: str) -> None:
    before = torch.random.get_rng_state()

    def digest(seed: int) -> str:
        found = hashlib.sha256()
        for parameter in models.build(name, (1, 8, 8), 3, seed).parameters():
            found.update(parameter.detach().numpy().tobytes())
        return found.hexdigest()

    assert digest(1) == digest(1) != digest(2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", models.OF_IMAGES)
def test_rows_are_no_images(name: str) -> None:
    with refused("model.name", "images of at least 4x4"):
        models.build(name, (12,), 3, 0)


def test_batch_normalisation_is_counted_with_one_sample() -> None:
    """Normalising over one number fails, though the model trains on batches."""
    bn, gn = (models.build(f"vgg16-{kind}", (1, 8, 8), 10, 0) for kind in ("bn", "gn"))
    x = torch.zeros(1, 1, 8, 8)
    assert training_flops(bn, x) == training_flops(gn, x) is not None
