"""Models that a plain PyTorch loop can train, or that fednag must refuse: one case each."""

from __future__ import annotations

import functools
import random
import warnings
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Expectation = Literal["equal", "refused", "random"]
Data = Callable[[torch.Generator], tuple[Tensor, Tensor]]

TRAINED, TESTED = 24, 6  # samples; three workers hold 13, 7 and 4 of the first
SAMPLES = TRAINED + TESTED


@dataclass(frozen=True)
class Case:
    """A model, its data and loss, and what fednag must make of them.

    ``equal``: the weights and buffers of the plain loop. ``random``: the same run each time, and
    nobody else's random numbers touched. ``refused``: one sentence. At the batches in
    ``raises_at`` the plain loop itself raises, and there fednag must refuse.
    """

    name: str
    model: Callable[[], nn.Module]
    data: Data
    loss: Callable[[], Any]
    expect: Expectation
    dtype: torch.dtype = torch.float64
    batches: tuple[int, ...] = (0, 5, 1)
    raises_at: tuple[int, ...] = ()
    algorithms: tuple[str, ...] = ("fedavg", "fednag", "mime")

    @property
    def key(self) -> int:
        return zlib.crc32(self.name.encode())

    def build(self) -> nn.Module:
        """The module, with the same first weights each time."""
        with torch.random.fork_rng():
            torch.manual_seed(self.key)
            return self.model()

    def samples(self) -> tuple[Tensor, Tensor]:
        return self.data(torch.Generator().manual_seed(self.key))


CASES: list[Case] = []


def add(
    name: str,
    model: Callable[[], nn.Module],
    data: Data | None = None,
    loss: Callable[[], Any] | None = None,
    expect: Expectation = "equal",
    **options: Any,
) -> None:
    CASES.append(Case(name, model, data or flat, loss or (lambda: None), expect, **options))


class Of(nn.Module):
    """A module of named parts, whose forward is a function of itself and the input.

    Tensors among the parts are buffers; a function is taken as it is.
    """

    def __init__(self, rule: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.rule = rule
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.rule(self, x)


def linear(*sizes: int) -> nn.Linear:
    return nn.Linear(*sizes)


def two(rule: Callable[[Any, Any], Any], **parts: Any) -> Callable[[], nn.Module]:
    """A hidden layer ``a`` and a layer ``b`` of three classes, used as the rule says."""
    return lambda: Of(rule, a=nn.Linear(6, 5), b=nn.Linear(5, 3), **_made(parts))


def _made(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part() if isinstance(part, Make) else part for name, part in parts.items()}


class Make:
    """A part that is made anew for each model: parameters and modules must not be shared."""

    def __init__(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.make = functools.partial(make, *args, **kwargs)

    def __call__(self) -> Any:
        return self.make()


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def random_(*shape: int) -> Tensor:
    return torch.randn(*shape)


# Data


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _classes(generator: torch.Generator, *shape: int, classes: int = 3) -> Tensor:
    return torch.randint(0, classes, shape, generator=generator)


def labels(count: int = SAMPLES, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def flat(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _normal(generator, SAMPLES, 6), labels()


def shaped(*shape: int) -> Data:
    """Floating samples of this shape, in three classes."""
    return lambda generator: (_normal(generator, SAMPLES, *shape), labels())


def to_numbers(*shape: int, features: tuple[int, ...] = (6,)) -> Data:
    """Regression: floating targets of this shape."""
    return lambda g: (_normal(g, SAMPLES, *features), _normal(g, SAMPLES, *shape))


def to_bits(count: int) -> Data:
    """Several labels a sample, each 0 or 1."""
    return lambda g: (_normal(g, SAMPLES, 6), _classes(g, SAMPLES, count, classes=2).double())


def to_chances(count: int) -> Data:
    """Targets that are probabilities."""
    return lambda g: (_normal(g, SAMPLES, 6), _normal(g, SAMPLES, count).softmax(-1))


def tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of five tokens out of eight; 0 pads, and comes often."""
    x = torch.randint(0, 8, (SAMPLES, 5), generator=generator)
    x[:, 3:] *= torch.randint(0, 2, (SAMPLES, 2), generator=generator)
    return x, labels()


def next_tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 8, (SAMPLES, 5), generator=generator)
    return x, x.roll(-1, 1)


grey, colour = shaped(1, 6, 6), shaped(3, 6, 6)
sequences = shaped(4, 5)
volumes = shaped(1, 4, 4, 4)


def bytes_of_pictures(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 4, (SAMPLES, 1, 6, 6), generator=generator, dtype=torch.uint8)
    return x, labels()


def segments(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _normal(generator, SAMPLES, 1, 4, 4), _classes(generator, SAMPLES, 4, 4)


# Recomputing


def _recomputed(reentrant: bool) -> Callable[[Any, Tensor], Tensor]:
    def rule(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        # The reentrant kind warns when nothing asks for a gradient, so it is for training alone.
        if reentrant and not self.training:
            return self.b(h.tanh())
        return self.b(checkpoint(torch.tanh, h, use_reentrant=reentrant))

    return rule


add("checkpoint", two(_recomputed(False)))
add("checkpoint-reentrant", two(_recomputed(True)))
add(
    "checkpoint-of-a-layer",
    two(lambda self, x: checkpoint(self.b, self.a(x).relu(), use_reentrant=False)),
)
add(
    "checkpoint-reentrant-layer",
    two(
        lambda self, x: (
            checkpoint(self.b, self.a(x).relu(), use_reentrant=True)
            if self.training
            else self.b(self.a(x).relu())
        )
    ),
)
add(
    "checkpoint-sequential",
    lambda: Of(
        lambda self, x: checkpoint_sequential(self.all, 2, x, use_reentrant=False),
        all=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
    ),
)


# Embeddings


def _bag(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.EmbeddingBag(8, 4, **options), nn.Linear(4, 3))


def _embedded(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Of(
        lambda self, x: self.out(self.table(x).mean(1)),
        table=nn.Embedding(8, 4, **options),
        out=nn.Linear(4, 3),
    )


add("embedding", _embedded(), tokens)
add("embedding-padding", _embedded(padding_idx=0), tokens)
add("embedding-sparse", _embedded(sparse=True), tokens)
add("embedding-scale-by-frequency", _embedded(scale_grad_by_freq=True), tokens)
add("embedding-max-norm", _embedded(max_norm=0.5), tokens, expect="refused")
add("embedding-bag-mean", _bag(mode="mean"), tokens)
add("embedding-bag-sum-padding", _bag(mode="sum", padding_idx=0), tokens)
add("embedding-bag-max", _bag(mode="max"), tokens)
add("embedding-bag-sparse", _bag(mode="sum", sparse=True), tokens)
add("embedding-bag-max-norm", _bag(mode="sum", max_norm=0.5), tokens, expect="refused")


# The input changed in place


def _shifted(self: Any, x: Tensor) -> Tensor:
    x -= 0.5
    return self.b(self.a(x).tanh())


def _clamped(self: Any, x: Tensor) -> Tensor:
    x.clamp_(-0.5, 0.5)
    return self.b(self.a(x).tanh())


def _first_feature_erased(self: Any, x: Tensor) -> Tensor:
    x[:, 0] = 0
    return self.b(self.a(x).tanh())


def _first_token_replaced(self: Any, x: Tensor) -> Tensor:
    x[:, 0] = 1
    x.add_(1).remainder_(8)
    return self.out(self.table(x).mean(1))


def _doubled_view(self: Any, x: Tensor) -> Tensor:
    x.view(-1).mul_(2)
    return self.b(self.a(x).tanh())


add("input-shifted", two(_shifted))
add("input-clamped", two(_clamped))
add("input-erased", two(_first_feature_erased))
add("input-doubled-through-view", two(_doubled_view))
add("input-relu-first", lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)))
add(
    "input-tokens-replaced",
    lambda: Of(_first_token_replaced, table=nn.Embedding(8, 4), out=nn.Linear(4, 3)),
    tokens,
)
add(
    "input-dropped-nothing",
    lambda: nn.Sequential(nn.Dropout(0.0, inplace=True), nn.Linear(6, 3)),
)


# Samples that meet


def _standardised(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-3).sqrt()
    return self.b(h)


def contrastive(output: Tensor, y: Tensor) -> Tensor:
    """Near where the labels are the same, far where they are not: over all pairs."""
    gaps = (output[:, None] - output[None]).square().sum(-1)
    same = (y[:, None] == y[None]).to(gaps.dtype)
    pairs = same * gaps + (1 - same) * (1 - gaps).clamp_min(0)
    return pairs.mean() + 0.1 * output.square().mean()


def ranking(output: Tensor, y: Tensor) -> Tensor:
    """The order of every two samples, by their scores."""
    score = output.reshape(-1)
    wrong = (score[None] - score[:, None] + 0.3).clamp_min(0)
    return (wrong * (y[:, None] > y[None]).to(wrong.dtype)).sum() / len(
        y
    ) + 0.1 * score.abs().mean()


def decorrelation(output: Tensor, y: Tensor) -> Tensor:
    centred = output - output.mean(0)
    covariance = centred.T @ centred / len(y)
    gap = (covariance - torch.eye(len(covariance), dtype=output.dtype)).square().sum()
    return gap + 0.1 * output.square().mean()


add("batch-centred", two(lambda self, x: self.b(self.a(x) - self.a(x).mean(0))))
add("batch-standardised", two(_standardised))
add("batch-softmax", two(lambda self, x: self.b(self.a(x).softmax(0))))
add("batch-rolled", two(lambda self, x: self.b(self.a(x) + 0.5 * self.a(x).roll(1, 0))))
add("batch-flipped", two(lambda self, x: self.b(self.a(x) - 0.3 * self.a(x).flip(0))))
add("batch-counted", two(lambda self, x: self.b(self.a(x) / len(x))))
add("batch-cumulated", two(lambda self, x: self.b(self.a(x).cumsum(0))))
add("batch-attention", two(lambda self, x: self.b((x @ x.T).softmax(-1) @ self.a(x))))
add(
    "batchnorm-without-statistics",
    lambda: nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
    ),
    raises_at=(1,),
)
add("loss-contrastive", two(lambda self, x: self.b(self.a(x).tanh())), loss=lambda: contrastive)
add(
    "loss-ranking",
    lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)),
    to_numbers(),
    lambda: ranking,
)
add(
    "loss-decorrelation",
    two(lambda self, x: self.b(self.a(x).tanh())),
    loss=lambda: decorrelation,
)


# Forward changes a parameter


def _renormed(self: Any, x: Tensor) -> Tensor:
    self.a.weight.data = torch.renorm(self.a.weight.data, 2, 0, 0.5)
    return self.b(self.a(x))


def _data_clamped(self: Any, x: Tensor) -> Tensor:
    self.a.weight.data.clamp_(-0.1, 0.1)
    return self.b(self.a(x))


def _clamped_quietly(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.a.weight.clamp_(-0.1, 0.1)
    return self.b(self.a(x))


def _normalised_by_copy(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.a.weight.copy_(F.normalize(self.a.weight, dim=1))
    return self.b(self.a(x))


def _replaced(self: Any, x: Tensor) -> Tensor:
    self.a.weight = nn.Parameter(0.9 * self.a.weight.detach())
    return self.b(self.a(x))


def _teacher_follows(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.teacher.weight.lerp_(self.a.weight, 0.1)
    return self.b(self.a(x) + self.teacher(x))


def _set_through_numpy(self: Any, x: Tensor) -> Tensor:
    self.a.weight.detach().numpy()[0] = 0.25
    return self.b(self.a(x))


add("parameter-renormed", two(_renormed), expect="refused")
add("parameter-data-clamped", two(_data_clamped), expect="refused")
add("parameter-clamped", two(_clamped_quietly), expect="refused")
add("parameter-normalised", two(_normalised_by_copy), expect="refused")
add("parameter-replaced", two(_replaced), expect="refused")
add("parameter-set-through-numpy", two(_set_through_numpy), expect="refused")
add(
    "parameter-teacher-follows",
    two(_teacher_follows, teacher=Make(lambda: nn.Linear(6, 5).requires_grad_(False))),
    expect="refused",
)
