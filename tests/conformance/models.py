"""Models that a plain PyTorch loop can train, or that fednag must refuse: one case each."""

from __future__ import annotations

import functools
import random
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
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
    return nn.Parameter(torch.randn(shape))


def normal(*shape: int) -> Tensor:
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


# How a model reaches its parameters


def _over_a_closure() -> nn.Module:
    """The copy of this module would compute with the layer of the original."""
    layer = nn.Linear(6, 5)
    return Of(lambda self, x: self.b(layer(x)), layer=layer, b=nn.Linear(5, 3)).double()


def _by_default_argument() -> nn.Module:
    weight = parameter(5, 6)
    return Of(lambda self, x, w=weight: self.b(x @ w.T), w=weight, b=nn.Linear(5, 3)).double()


def _over_weak_reference() -> nn.Module:
    made = two(lambda self, x: self.b(self.reference()(x).tanh()))()
    made.reference = weakref.ref(made.a)
    return made.double()


KEPT: dict[str, nn.Module] = {}  # a model's parameters outside of it


def _over_a_global() -> nn.Module:
    made = two(lambda self, x: self.b(KEPT["layer"](x)))()
    KEPT["layer"] = made.a
    return made.double()


def _hook_over_a_closure() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x)), gain=Make(parameter, 5))()
    made.a.register_forward_hook(lambda part, given, found: found * made.gain)
    return made.double()


def _partial_of_a_closure() -> nn.Module:
    layer = nn.Linear(6, 5)

    def twice(x: Tensor, times: float) -> Tensor:
        return layer(x) * times

    made = Of(lambda self, x: self.b(self.twice(x)), layer=layer, b=nn.Linear(5, 3))
    made.twice = functools.partial(twice, times=2.0)
    return made.double()


def _partial_of_a_parameter() -> nn.Module:
    made = Of(lambda self, x: self.b(self.first(x)), w=parameter(5, 6), b=nn.Linear(5, 3))
    made.first = functools.partial(F.linear, weight=made.w)
    return made


def _bound_method() -> nn.Module:
    made = two(lambda self, x: self.b(self.first(x).tanh()))()
    made.first = made.a.forward
    return made


def _listed_parameters() -> nn.Module:
    made = Of(lambda self, x: x @ self.both[0] @ self.both[1], u=parameter(6, 4), v=parameter(4, 3))
    made.both = [made.u, made.v]
    return made


def _listed_layers() -> nn.Module:
    made = two(lambda self, x: self.layers[1](self.layers[0](x).tanh()))()
    made.layers = [made.a, made.b]
    return made


def _table_of_parameters() -> nn.Module:
    made = Of(lambda self, x: x @ self.table["w"] + self.table["c"], w=parameter(6, 3))
    made.c = parameter(3)
    made.table = {"w": made.w, "c": made.c}
    return made


def _forgotten_layers() -> nn.Module:
    """A plain list does not register its layers: there is nothing to train."""
    made = Of(lambda self, x: self.layers[0](x))
    made.layers = [nn.Linear(6, 3).double()]
    return made


def _hidden_twice() -> nn.Module:
    made = two(lambda self, x: self.b(self.hidden(x).tanh()))()
    made.__dict__["hidden"] = made.a
    return made


def _weight_hook() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x).tanh()))()
    made.a.weight.register_hook(lambda gradient: 0.25 * gradient)
    return made


def _clipping_hook() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x).tanh()))()
    for own in made.parameters():
        own.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return made


def _activation_hook(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    if h.requires_grad:
        h.register_hook(lambda gradient: 0.5 * gradient)
    return self.b(h.tanh())


def _forward_hooks() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x).tanh()))()
    made.a.register_forward_pre_hook(lambda part, given: (given[0] * 1.5,))
    made.a.register_forward_hook(lambda part, given, found: found + part.bias.square())
    return made


def _backward_hook() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x).tanh()))()
    made.b.register_full_backward_hook(lambda part, into, out: (0.5 * into[0],))
    return made


def _frozen_features() -> nn.Module:
    """A layer that is no part of the model, and is not trained: a constant."""
    outside = nn.Linear(6, 5).double().requires_grad_(False)
    return Of(lambda self, x: self.b(outside(x).tanh()), b=nn.Linear(5, 3))


class Scaled(nn.Module):
    """A weight that is computed each time it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.raw, self.log_scale = parameter(3, 6), nn.Parameter(torch.zeros(3, 1))

    @property
    def weight(self) -> Tensor:
        return self.raw * self.log_scale.exp()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class StaysFrozen(nn.Module):
    """A common way to keep the statistics of BatchNorm: its own ``train``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.train()

    def train(self, mode: bool = True) -> StaysFrozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


add("reach-closure", _over_a_closure, expect="refused")
add("reach-default-argument", _by_default_argument, expect="refused")
add("reach-weak-reference", _over_weak_reference, expect="refused")
add("reach-global", _over_a_global, expect="refused")
add("reach-hook-closure", _hook_over_a_closure, expect="refused")
add("reach-partial-closure", _partial_of_a_closure, expect="refused")
add("reach-partial-parameter", _partial_of_a_parameter)
add("reach-bound-method", _bound_method)
add("reach-list-of-parameters", _listed_parameters)
add("reach-list-of-layers", _listed_layers)
add("reach-dict-of-parameters", _table_of_parameters)
add("reach-forgotten-layers", _forgotten_layers, expect="refused")
add("reach-hidden-twice", _hidden_twice)
add("reach-property", Scaled)
add("reach-frozen-outside", _frozen_features)
add("hook-on-weight", _weight_hook)
add("hook-that-clips", _clipping_hook)
add("hook-on-activation", two(_activation_hook))
add("hook-forward", _forward_hooks)
add("hook-backward", _backward_hook)
add(
    "weight-as-strided",
    two(lambda self, x: self.b(x @ self.a.weight.as_strided((6, 5), (1, 6)) + self.a.bias)),
)
add(
    "weight-sliced-and-joined",
    two(lambda self, x: self.b(x @ torch.cat([self.a.weight[:2] * 2, self.a.weight[2:]]).T)),
)
add("train-overridden", StaysFrozen)


# Python, numpy and hidden state inside forward


def _numpy_centre(self: Any, x: Tensor) -> Tensor:
    centre = torch.from_numpy(x.detach().numpy().mean(0))
    return self.b(self.a(x - centre).tanh())


def _numpy_of_hidden(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    spread = float(np.std(h.detach().numpy()))
    return self.b(h / (1 + spread))


def _python_loop(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(torch.stack([row * (1 if float(row.detach().sum()) > 0 else 0.5) for row in h]))


def _branch(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(h.tanh() if float(h.detach().mean()) > 0 else h.relu())


def _halting(self: Any, x: Tensor) -> Tensor:
    """Repeats until the numbers are small: how often depends on them."""
    h = self.a(x)
    while float(h.detach().abs().max()) > 0.5:
        h = 0.7 * h.tanh()
    return self.b(h)


def _chosen_rows(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    out = torch.zeros_like(h)
    positive = x[:, 0] > 0
    out[positive] = h[positive].tanh()
    return self.b(out)


def _counting(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.b(self.a(x) * (1 + 0.1 * self.calls))


def _counting_late(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.b(self.a(x) * (2.0 if self.calls > 5 else 1.0))


def _remembering(self: Any, x: Tensor) -> Tensor:
    """A running mean that is no buffer: neither copied to workers nor averaged."""
    h = self.a(x)
    self.seen[0] = 0.9 * self.seen[0] + 0.1 * float(h.detach().mean())
    return self.b(h - self.seen[0])


def _keeping_the_first(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    if not self.seen:
        self.seen.append(h.detach().mean(0))
    return self.b(h - self.seen[0])


def _storing_activations(self: Any, x: Tensor) -> Tensor:
    self.hidden = self.a(x).tanh()
    return self.b(self.hidden)


def _with(rule: Callable[[Any, Any], Any], name: str, make: Callable[[], Any]) -> Any:
    def made() -> nn.Module:
        module = two(rule)()
        setattr(module, name, make())
        return module

    return made


def _python_noise(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(h * (1 + random.random()))


def _numpy_noise(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(h + float(np.random.rand()))


add("numpy-centre", two(_numpy_centre))
add("numpy-of-hidden", two(_numpy_of_hidden))
add("python-float", two(lambda self, x: self.b(self.a(x) * (1 + 0.1 * float(x.sum())))))
add("python-item", two(lambda self, x: self.b(self.a(x) + x.abs().max().item())))
add("python-rows", two(_python_loop))
add("python-branch", two(_branch))
add("python-while", two(_halting))
add("chosen-rows", two(_chosen_rows))
add(
    "mask-by-magnitude",
    two(lambda self, x: self.b(self.a(x) * (self.a(x).abs() > self.a(x).abs().median()))),
)
add(
    "mask-of-weights",
    two(
        lambda self, x: self.b(
            F.linear(x, self.a.weight * (self.a.weight.abs() > self.a.weight.abs().mean()))
        )
    ),
)
add("state-counter", _with(_counting, "calls", int), expect="refused")
add("state-counter-late", _with(_counting_late, "calls", int), expect="refused")
add("state-running-mean", _with(_remembering, "seen", lambda: [0.0]), expect="refused")
add("state-first-batch", _with(_keeping_the_first, "seen", list), expect="refused")
add("state-last-activations", two(_storing_activations))


# Random numbers

add("random-python", two(_python_noise), expect="random")
add("random-numpy", two(_numpy_noise), expect="random")
add(
    "random-noise",
    two(lambda self, x: self.b(self.a(x) + 0.1 * torch.randn_like(self.a(x)))),
    expect="random",
)
add(
    "random-dropout",
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    expect="random",
)
add(
    "random-dropout-inplace",
    lambda: nn.Sequential(nn.Dropout(0.3, inplace=True), nn.Linear(6, 3)),
    expect="random",
)
add(
    "random-functional-dropout",
    two(lambda self, x: self.b(F.dropout(self.a(x), 0.4, self.training))),
    expect="random",
)
add(
    "random-checkpointed-dropout",
    two(
        lambda self, x: self.b(
            checkpoint(lambda h: F.dropout(h, 0.4, self.training), self.a(x), use_reentrant=False)
        )
    ),
    expect="random",
)
add(
    "random-gumbel",
    two(lambda self, x: self.b(F.gumbel_softmax(self.a(x)))),
    expect="random",
)
add(
    "random-rrelu",
    lambda: nn.Sequential(nn.Linear(6, 5), nn.RReLU(), nn.Linear(5, 3)),
    expect="random",
)
add(
    "random-permutation",
    two(lambda self, x: self.b(self.a(x) + 0.3 * self.a(x)[torch.randperm(len(x))])),
    expect="random",
)
add(
    "random-sample",
    two(lambda self, x: self.b(self.a(x) * torch.bernoulli(self.a(x).sigmoid().detach()))),
    expect="random",
)
add(
    "dropout-of-nothing",
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 3)),
)
add(
    "dropout-in-eval-mode",
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5).eval(), nn.Linear(8, 3)),
)


# Evaluation alone


def _only_in_eval(rule: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, x: self.b(self.a(x)) if self.training else rule(self, x)


def _addmm(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(torch.addmm(h, h, self.q))


def _baddbmm(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)[:, None, :].expand(-1, 2, -1) * self.two[:, None]
    q = self.q.expand(len(x), 5, 5)
    return self.b(torch.baddbmm(h, h, q).sum(1))


PARTS = {"q": Make(normal, 5, 5), "two": torch.tensor([1.0, 2.0])}

add("addmm", two(_addmm, **PARTS))
add("addmm-trained", two(_addmm, q=Make(parameter, 5, 5)))
add("addmm-in-eval", two(_only_in_eval(_addmm), **PARTS))
add("baddbmm", two(_baddbmm, **PARTS))
add("baddbmm-in-eval", two(_only_in_eval(_baddbmm), **PARTS))
add("numpy-in-eval", two(_only_in_eval(_numpy_centre)))
add("branch-in-eval", two(_only_in_eval(_branch)))
add("other-in-eval", two(_only_in_eval(lambda self, x: 0.5 * self.b(self.a(x).tanh()))))
add("batch-mean-in-eval", two(_only_in_eval(lambda self, x: self.b(self.a(x) - self.a(x).mean(0)))))
add(
    "softmax-in-eval",
    two(_only_in_eval(lambda self, x: self.b(self.a(x)).softmax(-1).clamp_min(1e-6).log())),
)
add("input-shifted-in-eval", two(_only_in_eval(_shifted)))


# Orders of operations that a recording could change


def _scaled_then_rectified(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    t = 0.004 * h
    h = F.relu_(h)
    return self.b(h + t)


def _clones(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    a, b = h.clone(), h.clone()
    a.mul_(2)
    return self.b(a + b)


def _into_a_constant(self: Any, x: Tensor) -> Tensor:
    total = torch.zeros(len(x), 5, dtype=x.dtype)
    for part in (self.a(x), self.a(x * 0.5)):
        total += part
    return self.b(total)


def _ones_used_twice(self: Any, x: Tensor) -> Tensor:
    one, other = torch.ones(5, dtype=x.dtype), torch.ones(5, dtype=x.dtype)
    one.mul_(3)
    return self.b(self.a(x) * one + other)


def _into_a_buffer(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    with torch.no_grad():
        if self.training:
            self.total += h.mean(0)
    return self.b(h - 0.1 * self.total.clone())


def _buffer_replaced(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    if self.training:
        self.total = 0.9 * self.total + 0.1 * h.mean(0).detach()
    return self.b(h - self.total)


def _buffer_counts(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.count += len(x)
    return self.b(self.a(x).tanh())


def _out_argument(self: Any, x: Tensor) -> Tensor:
    scale = torch.empty(len(x), 6, dtype=x.dtype)
    torch.mul(x, 2.0, out=scale)
    torch.add(scale, 1.0, out=scale)
    return self.b(self.a(scale))


def _index_put(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    out = torch.zeros_like(h)
    out.index_put_((torch.arange(len(x)), torch.arange(len(x)) % 5), h[:, 0])
    return self.b(out + h)


def _slice_assigned(self: Any, x: Tensor) -> Tensor:
    h = self.a(x).clone()
    h[:, 0] = 0
    h[:, 1:3] = h[:, 3:5] * 2
    return self.b(h)


def _view_then_base(self: Any, x: Tensor) -> Tensor:
    h = self.a(x).clone()
    view = h[:, :2]
    h.mul_(2)
    return self.b(h) + view.sum(1, keepdim=True)


def _base_through_view(self: Any, x: Tensor) -> Tensor:
    h = self.a(x).clone()
    h.t()[0].add_(1.0)
    h.view(-1)[::2].mul_(0.5)
    return self.b(h)


def _sum_used_again(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    s = h * 2
    t = s + h
    return self.b(t * s)


def _detached_then_changed(self: Any, x: Tensor) -> Tensor:
    h = self.a(x).clone()
    kept = h.detach().clone()
    h.add_(1.0)
    return self.b(h * kept)


def _copied_over(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    room = torch.empty_like(h)
    room.copy_(h)
    room[:, ::2].neg_()
    return self.b(room)


def _scattered(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    order = h.argsort(1)
    return self.b(torch.zeros_like(h).scatter(1, order, h) + h.gather(1, order))


def _filled(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(h.masked_fill(x[:, :5] > 0.3, -0.5))


add("scaled-then-rectified", two(_scaled_then_rectified))
add("clones-changed-later", two(_clones))
add("constant-accumulates", two(_into_a_constant))
add("constants-alike", two(_ones_used_twice))
add(
    "buffer-accumulates",
    two(_into_a_buffer, total=torch.zeros(5)),
    algorithms=("fedavg", "fednag"),  # its numbers hang on the buffer: which, for Mime's second?
)
add(
    "buffer-replaced",
    two(_buffer_replaced, total=torch.zeros(5)),
    algorithms=("fedavg", "fednag"),
)
add("buffer-counts", two(_buffer_counts, count=torch.zeros((), dtype=torch.int64)))
add("out-argument", two(_out_argument))
add("index-put", two(_index_put))
add("slices-assigned", two(_slice_assigned))
add("view-then-base", two(_view_then_base))
add("base-through-view", two(_base_through_view))
add("sum-used-again", two(_sum_used_again))
add("detached-then-changed", two(_detached_then_changed))
add("copied-over", two(_copied_over))
add("scatter-and-gather", two(_scattered))
add("masked-fill", two(_filled))
add("where", two(lambda self, x: self.b(torch.where(self.a(x) > 0, self.a(x), 0.1 * self.a(x)))))
add("cumsum", two(lambda self, x: self.b(self.a(x).cumsum(1))))
add("cumprod", two(lambda self, x: self.b(self.a(x).cumprod(1))))
add("sort", two(lambda self, x: self.b(self.a(x).sort(1).values)))
add("topk", two(lambda self, x: self.b(F.pad(self.a(x).topk(3, 1).values, (0, 2)))))
add("maximum", two(lambda self, x: self.b(self.a(x)) + self.a(x).max(1, keepdim=True).values))
add("median", two(lambda self, x: self.b(self.a(x)) + self.a(x).median(1, keepdim=True).values))
add("logsumexp", two(lambda self, x: self.b(self.a(x)) * self.a(x).logsumexp(1, keepdim=True)))
add("norm", two(lambda self, x: self.b(self.a(x) / self.a(x).norm(dim=1, keepdim=True))))
add("split-and-stack", two(lambda self, x: self.b(torch.stack(self.a(x).unbind(1)[::-1], 1))))


# Losses


def mlp(outputs: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))


def chances(last: nn.Module, outputs: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, outputs), last)


def weights() -> Tensor:
    return torch.tensor([1.0, 2.5, 0.3], dtype=torch.float64)


def focal(output: Tensor, y: Tensor) -> Tensor:
    """One value a sample."""
    chance = output.log_softmax(-1).gather(1, y[:, None])[:, 0]
    return -((1 - chance.exp()) ** 2) * chance


def balanced(output: Tensor, y: Tensor) -> Tensor:
    """The classes of the batch count the same: a sample's part depends on the others."""
    counts = torch.from_numpy(np.bincount(y.numpy(), minlength=3)).to(output.dtype)
    return F.cross_entropy(output, y, weight=1 / counts.clamp_min(1))


def overlap(output: Tensor, y: Tensor) -> Tensor:
    """Dice's coefficient over the batch."""
    chance, wanted = output.softmax(-1), F.one_hot(y, 3).to(output.dtype)
    return 1 - 2 * (chance * wanted).sum() / (chance + wanted).sum()


def shifting(output: Tensor, y: Tensor) -> Tensor:
    y.add_(1).remainder_(3)
    return F.cross_entropy(output, y)


def noisy(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output + 0.1 * torch.randn_like(output), y)


def penalised(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y) + 0.05 * output.square().sum(1).sqrt().max()


def matrix(output: Tensor, y: Tensor) -> Tensor:
    return (output - F.one_hot(y, 3)).square()


def number(output: Tensor, y: Tensor) -> float:
    return float(F.cross_entropy(output.detach(), y))


def constant(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output.detach(), y, reduction="none")


class Uncertain(nn.Module):
    """A loss that would be trained along with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(output, y, reduction="none")
        return each * (-self.log_scale).exp() + self.log_scale


class Balanced(nn.Module):
    """A loss with a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", weights())

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(output, y, reduction="none") * self.table[y]).mean()


class Curriculum:
    """A loss that changes with every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(output, y, reduction="none") * (1 + 0.1 * self.calls)


def cross_entropy(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.CrossEntropyLoss(**options)


add("loss-weights", mlp(), loss=cross_entropy(weight=weights()))
add("loss-ignored-class", mlp(), loss=cross_entropy(ignore_index=0), batches=(0, 5))
add(
    "loss-ignored-class-weights",
    mlp(),
    loss=cross_entropy(ignore_index=2, weight=weights()),
    batches=(0, 5),
)
add("loss-smoothing", mlp(), loss=cross_entropy(label_smoothing=0.1))
add("loss-smoothing-weights", mlp(), loss=cross_entropy(label_smoothing=0.1, weight=weights()))
add("loss-unreduced", mlp(), loss=cross_entropy(reduction="none"))
add("loss-unreduced-weights", mlp(), loss=cross_entropy(reduction="none", weight=weights()))
add("loss-sum", mlp(), loss=cross_entropy(reduction="sum"), expect="refused")
add("loss-sum-of-squares", mlp(), to_numbers(3), lambda: nn.MSELoss(reduction="sum"), "refused")
add("loss-nll", chances(nn.LogSoftmax(-1)), loss=nn.NLLLoss)
add("loss-nll-weights", chances(nn.LogSoftmax(-1)), loss=lambda: nn.NLLLoss(weight=weights()))
add("loss-multi-margin", mlp(), loss=nn.MultiMarginLoss)
add("loss-multi-margin-weights", mlp(), loss=lambda: nn.MultiMarginLoss(weight=weights(), p=2))
add("loss-function", mlp(), loss=lambda: F.cross_entropy)
add("loss-partial", mlp(), loss=lambda: functools.partial(F.cross_entropy, label_smoothing=0.2))
add("loss-named", mlp(), loss=lambda: "cross-entropy")
add("loss-chances", mlp(), to_chances(3), nn.CrossEntropyLoss)
add("loss-bits", mlp(), to_bits(3), nn.BCEWithLogitsLoss)
add(
    "loss-bits-positive-weight",
    mlp(),
    to_bits(3),
    lambda: nn.BCEWithLogitsLoss(pos_weight=weights()),
)
add("loss-bits-weight", mlp(), to_bits(3), lambda: nn.BCEWithLogitsLoss(weight=weights()))
add("loss-binary", chances(nn.Sigmoid()), to_bits(3), nn.BCELoss)
add("loss-soft-margin", mlp(), to_bits(3), nn.MultiLabelSoftMarginLoss)
add("loss-squares", mlp(), to_numbers(3), nn.MSELoss)
add("loss-absolute", mlp(), to_numbers(3), nn.L1Loss)
add("loss-huber", mlp(), to_numbers(3), lambda: nn.HuberLoss(delta=0.5))
add("loss-smooth-absolute", mlp(), to_numbers(3), lambda: nn.SmoothL1Loss(beta=0.5))
add("loss-poisson", mlp(), to_chances(3), nn.PoissonNLLLoss)
add(
    "loss-kl",
    chances(nn.LogSoftmax(-1)),
    to_chances(3),
    lambda: nn.KLDivLoss(reduction="batchmean"),
)
add("loss-numbers-named", mlp(1), to_numbers(), lambda: "mse")
add("loss-numbers-default", mlp(2), to_numbers(2))
add("loss-own-per-sample", mlp(), loss=lambda: focal)
add("loss-own-scalar", mlp(), loss=lambda: penalised)
add("loss-own-numpy", mlp(), loss=lambda: balanced)
add("loss-own-overlap", mlp(), loss=lambda: overlap)
add("loss-own-table", mlp(), loss=Balanced)
add("loss-changes-targets", mlp(), loss=lambda: shifting)
add("loss-random", mlp(), loss=lambda: noisy, expect="random")
add("loss-trained", mlp(), loss=Uncertain, expect="refused")
add("loss-counts", mlp(), loss=Curriculum, expect="refused")
add("loss-of-wrong-shape", mlp(), loss=lambda: matrix, expect="refused")
add("loss-of-no-tensor", mlp(), loss=lambda: number, expect="refused")
add("loss-without-gradient", mlp(), loss=lambda: constant, expect="refused")


# Sequences


def _last(make: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """A recurrent layer over embedded tokens; the last output is classified."""
    width = 4 * (2 if options.get("bidirectional") else 1)
    return lambda: Of(
        lambda self, x: self.out(self.recurrent(self.table(x))[0][:, -1]),
        table=nn.Embedding(8, 3),
        recurrent=make(3, 4, batch_first=True, **options),
        out=nn.Linear(width, 3),
    )


def _cells(self: Any, x: Tensor) -> Tensor:
    h = c = torch.zeros(len(x), 4, dtype=self.table.weight.dtype)
    for t in range(x.shape[1]):
        h, c = self.cell(self.table(x[:, t]), (h, c))
    return self.out(h)


def _packed(self: Any, x: Tensor) -> Tensor:
    lengths = (x != 0).sum(1).clamp_min(1)
    packed = nn.utils.rnn.pack_padded_sequence(
        self.table(x), lengths, batch_first=True, enforce_sorted=False
    )
    return self.out(self.recurrent(packed)[1][0])


def _encoded(self: Any, x: Tensor) -> Tensor:
    return self.out(self.encoder(self.table(x) + self.place).mean(1))


def _masked(self: Any, x: Tensor) -> Tensor:
    h = self.table(x) + self.place
    hidden = F.pad((x == 0)[:, 1:], (1, 0))  # the first token always counts
    found, _ = self.attention(h, h, h, key_padding_mask=hidden, need_weights=False)
    return self.out(found.mean(1))


def _causal(self: Any, x: Tensor) -> Tensor:
    h = self.table(x)
    found = F.scaled_dot_product_attention(self.q(h), self.k(h), h, is_causal=True)
    return self.out(found)


def _by_einsum(self: Any, x: Tensor) -> Tensor:
    h = self.table(x)
    scores = torch.einsum("nsd,ntd->nst", self.q(h), self.k(h)) / 2
    return self.out(torch.einsum("nst,ntd->nd", scores.softmax(-1), h))


def per_token(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), y.flatten())


def _layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)


ATTENTION = {
    "q": Make(nn.Linear, 4, 4),
    "k": Make(nn.Linear, 4, 4),
    "table": Make(nn.Embedding, 8, 4),
}


def attending(rule: Callable[[Any, Any], Any], outputs: int = 3, **parts: Any) -> Any:
    return lambda: Of(rule, **_made({**ATTENTION, **parts}), out=nn.Linear(4, outputs))


add("lstm", _last(nn.LSTM), tokens)
add("lstm-two-layers", _last(nn.LSTM, num_layers=2), tokens)
add("lstm-projected", lambda: _lstm_projected(), tokens)
add("lstm-dropout", _last(nn.LSTM, num_layers=2, dropout=0.5), tokens, expect="random")
add("gru", _last(nn.GRU), tokens)
add("gru-bidirectional", _last(nn.GRU, bidirectional=True), tokens)
add("rnn-relu", _last(nn.RNN, nonlinearity="relu"), tokens)
add(
    "rnn-of-numbers",
    lambda: Of(
        lambda self, x: self.out(self.recurrent(x)[0][:, -1]),
        recurrent=nn.RNN(5, 4, batch_first=True),
        out=nn.Linear(4, 3),
    ),
    sequences,
)
add(
    "lstm-cells",
    lambda: Of(_cells, table=nn.Embedding(8, 3), cell=nn.LSTMCell(3, 4), out=nn.Linear(4, 3)),
    tokens,
)
add(
    "lstm-packed",
    lambda: Of(
        _packed,
        table=nn.Embedding(8, 3, padding_idx=0),
        recurrent=nn.GRU(3, 4, batch_first=True),
        out=nn.Linear(4, 3),
    ),
    tokens,
)


def _lstm_projected() -> nn.Module:
    return Of(
        lambda self, x: self.out(self.recurrent(self.table(x))[0][:, -1]),
        table=nn.Embedding(8, 3),
        recurrent=nn.LSTM(3, 4, proj_size=2, batch_first=True),
        out=nn.Linear(2, 3),
    )


add(
    "transformer",
    lambda: Of(
        _encoded,
        table=nn.Embedding(8, 4),
        place=parameter(5, 4),
        encoder=nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False),
        out=nn.Linear(4, 3),
    ),
    tokens,
)
add(
    "transformer-norm-first",
    lambda: Of(
        _encoded,
        table=nn.Embedding(8, 4),
        place=parameter(5, 4),
        encoder=_layer(norm_first=True, activation="gelu"),
        out=nn.Linear(4, 3),
    ),
    tokens,
)
add(
    "transformer-dropout",
    lambda: Of(
        _encoded,
        table=nn.Embedding(8, 4),
        place=parameter(5, 4),
        encoder=nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True),
        out=nn.Linear(4, 3),
    ),
    tokens,
    expect="random",
)
add(
    "attention-default",
    lambda: Of(
        lambda self, x: self.out(self.attention(*[x.transpose(0, 1)] * 3)[0].mean(0)),
        attention=nn.MultiheadAttention(4, 2),
        out=nn.Linear(4, 3),
    ),
    shaped(5, 4),
)
add(
    "attention-masked",
    attending(
        _masked,
        place=Make(parameter, 5, 4),
        attention=Make(nn.MultiheadAttention, 4, 2, batch_first=True),
    ),
    tokens,
)
add("attention-einsum", attending(_by_einsum), tokens)
add("attention-causal-next-token", attending(_causal, 8), next_tokens, lambda: per_token)
add(
    "attention-causal-cross-entropy",
    attending(lambda self, x: _causal(self, x).transpose(1, 2), 8),
    next_tokens,
    nn.CrossEntropyLoss,
)


# Pictures


def pictured(
    shape: tuple[int, ...], *layers: Callable[[], nn.Module], outputs: int = 3
) -> Callable[[], nn.Module]:
    """Layers over pictures of this shape, then a linear one over all they give."""

    def made() -> nn.Module:
        body = nn.Sequential(*(layer() for layer in layers)).eval()
        with torch.no_grad():
            width = body(torch.zeros(2, *shape)).flatten(1).shape[1]
        return nn.Sequential(body.train(), nn.Flatten(), nn.Linear(width, outputs))

    return made


def P(make: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:  # noqa: N802
    return functools.partial(make, *args, **kwargs)


GREY, COLOUR, LINE, VOLUME = (1, 6, 6), (3, 6, 6), (4, 5), (1, 4, 4, 4)
convolved = P(nn.Conv2d, 1, 2, 3)

for name, shape, layers in [
    ("conv2d", GREY, [convolved, nn.ReLU]),
    ("conv2d-colour", COLOUR, [P(nn.Conv2d, 3, 2, 3), nn.ReLU]),
    ("conv2d-stride", COLOUR, [P(nn.Conv2d, 3, 2, 3, stride=2), nn.Tanh]),
    ("conv2d-padded", GREY, [P(nn.Conv2d, 1, 2, 3, padding=1), nn.Tanh]),
    ("conv2d-same", GREY, [P(nn.Conv2d, 1, 2, 3, padding="same"), nn.Tanh]),
    ("conv2d-reflected", GREY, [P(nn.Conv2d, 1, 2, 3, padding=1, padding_mode="reflect")]),
    ("conv2d-circular", GREY, [P(nn.Conv2d, 1, 2, 3, padding=1, padding_mode="circular")]),
    ("conv2d-dilated", COLOUR, [P(nn.Conv2d, 3, 2, 2, dilation=2), nn.Tanh]),
    ("conv2d-groups", COLOUR, [P(nn.Conv2d, 3, 6, 3, groups=3), nn.Tanh]),
    ("conv2d-unbiased", GREY, [P(nn.Conv2d, 1, 2, 3, bias=False), nn.ReLU]),
    ("conv2d-pointwise", COLOUR, [P(nn.Conv2d, 3, 2, 1), nn.Tanh]),
    ("conv2d-oblong", GREY, [P(nn.Conv2d, 1, 2, (2, 5), padding=(1, 0)), nn.Tanh]),
    ("conv2d-5x5", GREY, [P(nn.Conv2d, 1, 2, 5, padding=2), nn.ReLU]),
    ("conv2d-7x7", COLOUR, [P(nn.Conv2d, 3, 2, 7, padding=3), nn.ReLU]),
    ("conv2d-deep", GREY, [convolved, nn.ReLU, P(nn.Conv2d, 2, 3, 5, padding=2), nn.ReLU]),
    ("conv2d-transposed", GREY, [P(nn.ConvTranspose2d, 1, 2, 3, stride=2), nn.Tanh]),
    ("conv1d", LINE, [P(nn.Conv1d, 4, 3, 3), nn.ReLU]),
    ("conv1d-transposed", LINE, [P(nn.ConvTranspose1d, 4, 2, 3), nn.Tanh]),
    ("conv3d", VOLUME, [P(nn.Conv3d, 1, 2, 3), nn.ReLU]),
    ("pool-max", GREY, [convolved, P(nn.MaxPool2d, 2)]),
    ("pool-max-overlapping", GREY, [convolved, P(nn.MaxPool2d, 3, 1, padding=1)]),
    ("pool-max-ceiled", GREY, [convolved, P(nn.MaxPool2d, 3, ceil_mode=True)]),
    ("pool-average", GREY, [convolved, P(nn.AvgPool2d, 2)]),
    ("pool-average-padded", GREY, [convolved, P(nn.AvgPool2d, 3, 2, 1, count_include_pad=False)]),
    ("pool-adaptive-average", GREY, [convolved, P(nn.AdaptiveAvgPool2d, 3)]),
    ("pool-adaptive-max", GREY, [convolved, P(nn.AdaptiveMaxPool2d, 3)]),
    ("pool-power", GREY, [convolved, nn.Softplus, P(nn.LPPool2d, 2, 2)]),
    ("pool-1d", LINE, [P(nn.Conv1d, 4, 3, 2), P(nn.MaxPool1d, 2)]),
    ("pool-3d", VOLUME, [P(nn.Conv3d, 1, 2, 2), P(nn.AvgPool3d, 2)]),
    ("norm-group", COLOUR, [P(nn.Conv2d, 3, 4, 3), P(nn.GroupNorm, 2, 4), nn.ReLU]),
    ("norm-layer", GREY, [convolved, P(nn.LayerNorm, (2, 4, 4)), nn.ReLU]),
    ("norm-instance", COLOUR, [P(nn.InstanceNorm2d, 3, affine=True), P(nn.Conv2d, 3, 2, 3)]),
    (
        "norm-instance-statistics",
        COLOUR,
        [P(nn.InstanceNorm2d, 3, affine=True, track_running_stats=True), P(nn.Conv2d, 3, 2, 3)],
    ),
    ("norm-response", COLOUR, [P(nn.Conv2d, 3, 4, 3), P(nn.LocalResponseNorm, 2)]),
    ("batchnorm-2d", COLOUR, [P(nn.Conv2d, 3, 4, 3), P(nn.BatchNorm2d, 4), nn.ReLU]),
    ("batchnorm-2d-plain", GREY, [convolved, P(nn.BatchNorm2d, 2, affine=False), nn.ReLU]),
    ("batchnorm-2d-cumulative", GREY, [convolved, P(nn.BatchNorm2d, 2, momentum=None), nn.ReLU]),
    ("upsampled", GREY, [convolved, P(nn.Upsample, scale_factor=2, mode="bilinear")]),
    ("pixels-shuffled", GREY, [P(nn.Conv2d, 1, 4, 3), P(nn.PixelShuffle, 2)]),
    ("unfolded", GREY, [convolved, P(nn.Unfold, 2)]),
]:
    add(name, pictured(shape, *layers), shaped(*shape))

add("dropout2d", pictured(COLOUR, P(nn.Conv2d, 3, 4, 3), nn.Dropout2d), colour, expect="random")
add(
    "pool-fractional",
    pictured(GREY, convolved, P(nn.FractionalMaxPool2d, 2, output_size=2)),
    grey,
    expect="random",
)
add("pictures-of-bytes", pictured(GREY, convolved, nn.ReLU), bytes_of_pictures)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, 3)
        self.block = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.block(h)
        total = h + self.block(h)  # the same block again
        total += h
        return self.out(total.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        deep = self.deep(F.max_pool2d(wide, 2)).relu()
        return self.out(torch.cat([wide, self.up(deep)], 1))


def _unpooled(self: Any, x: Tensor) -> Tensor:
    h, index = F.max_pool2d(self.conv(x), 2, return_indices=True)
    return self.out(F.max_unpool2d(h, index, 2).flatten(1))


add("residual", Residual, grey)
add("segmentation", lambda: nn.Conv2d(1, 3, 3, padding=1), segments, nn.CrossEntropyLoss)
add("segmentation-unet", UNet, segments, nn.CrossEntropyLoss)
add("segmentation-weights", UNet, segments, cross_entropy(weight=weights()))
add("unpooled", lambda: Of(_unpooled, conv=nn.Conv2d(1, 2, 3), out=nn.Linear(32, 3)), grey)
add(
    "channels-last",
    lambda: Of(
        lambda self, x: self.out(self.conv(x.to(memory_format=torch.channels_last)).flatten(1)),
        conv=nn.Conv2d(3, 2, 3),
        out=nn.Linear(32, 3),
    ),
    colour,
)


# Norms and parametrizations over features


def normed(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 5), *(layer() for layer in layers), nn.Linear(5, 3))


def _spectral() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))


def _of_old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against it, and still has it
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 5)), nn.Linear(5, 3))


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def _symmetric() -> nn.Module:
    layer = nn.Linear(5, 5)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def _frozen_norm() -> nn.Module:
    made = normed(P(nn.BatchNorm1d, 5))()
    made[1].running_mean.fill_(0.3)
    made[1].eval()
    return made


add("batchnorm-1d", normed(P(nn.BatchNorm1d, 5), nn.ReLU), raises_at=(1,))
add("batchnorm-1d-cumulative", normed(P(nn.BatchNorm1d, 5, momentum=None)), raises_at=(1,))
add("batchnorm-1d-slow", normed(P(nn.BatchNorm1d, 5, momentum=0.01, eps=0.1)), raises_at=(1,))
add("batchnorm-1d-first", lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), raises_at=(1,))
add("batchnorm-in-eval-mode", _frozen_norm)
add(
    "batchnorm-sequences",
    lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(20, 3)),
    sequences,
)
add("norm-layer-features", normed(P(nn.LayerNorm, 5), nn.GELU))
add("norm-rms", normed(P(nn.RMSNorm, 5)))
add("spectral-norm", normed(_spectral), algorithms=("fedavg", "fednag"))
add(
    "spectral-norm-old",
    normed(lambda: nn.utils.spectral_norm(nn.Linear(5, 5))),
    algorithms=("fedavg", "fednag"),
)
add("weight-norm", normed(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))))
add("weight-norm-old", _of_old_weight_norm, expect="refused")  # torch itself cannot copy it
add("weight-orthogonal", normed(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(5, 5))))
add("weight-symmetric", normed(_symmetric))

for activation in [
    nn.PReLU,
    nn.GELU,
    nn.Softplus,
    nn.ELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.Softsign,
    nn.LogSigmoid,
]:
    add(f"activation-{activation.__name__.lower()}", normed(activation))
add("activation-relu-inplace", normed(P(nn.ReLU, inplace=True)))
add("activation-glu", lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU(), nn.Linear(4, 3)))
add("activation-maxout", two(lambda self, x: self.b(self.a(x).view(-1, 5, 1).amax(2))))


# Parameters


def _tied() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    made[2].weight = made[0].weight
    return made


def _half_frozen() -> nn.Module:
    made = mlp()()
    made[0].weight.requires_grad_(False)
    made[2].bias.requires_grad_(False)
    return made


def _all_frozen() -> nn.Module:
    return mlp()().requires_grad_(False)


def _names_alike() -> nn.Module:
    """Parameters of the same names in nested modules."""
    inner = Of(lambda self, x: self.a(x).tanh(), a=nn.Linear(6, 6), w=parameter(3))
    outer = Of(lambda self, x: self.inner(x) + x * self.w, inner=inner, w=parameter(6))
    return nn.ModuleDict({"a": outer, "b": nn.Linear(6, 3)})


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = _names_alike()

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["b"](self.parts["a"](x))


def _of_lists(self: Any, x: Tensor) -> Tensor:
    h = x
    for weight in self.many:
        h = (h @ weight).tanh()
    return h @ self.named["w"] + self.named["c"]


def _many() -> nn.Module:
    return Of(
        _of_lists,
        many=nn.ParameterList([parameter(6, 6), parameter(6, 4)]),
        named=nn.ParameterDict({"w": parameter(4, 3), "c": parameter(3)}),
    )


def _constant_of_64_bits() -> nn.Module:
    made = two(lambda self, x: self.b(self.a(x) * self.table))()
    made.table = torch.linspace(-1, 1, 5, dtype=torch.float64)
    return made


add("tied", _tied)
add(
    "tied-transposed",
    two(lambda self, x: self.b(F.linear(self.a(x).tanh(), self.a.weight.T) @ self.a.weight.T)),
)
add(
    "shared-module",
    two(lambda self, x: self.b(self.c(self.c(self.a(x)).tanh())), c=Make(nn.Linear, 5, 5)),
)
add("parameter-list-and-dict", _many)
add("parameter-frozen", _half_frozen)
add("parameter-all-frozen", _all_frozen, expect="refused")
add("parameter-unused", two(lambda self, x: self.b(self.a(x)), c=Make(nn.Linear, 4, 4)))
add(
    "parameter-unused-in-training",
    two(
        lambda self, x: self.b(self.a(x)) if self.training else self.b(self.a(x)) + self.c,
        c=Make(parameter, 3),
    ),
)
add(
    "parameter-used-at-times",
    two(
        lambda self, x: self.b(self.a(x)) + (self.c if float(x.sum()) > 0 else 0.0),
        c=Make(parameter, 3),
    ),
)
add(
    "parameter-0d-and-1",
    two(
        lambda self, x: self.b(self.a(x) * self.scale + self.shift),
        scale=Make(parameter),
        shift=Make(parameter, 1),
    ),
)
add("parameter-empty", two(lambda self, x: self.b(self.a(x)), none=Make(parameter, 0)))
add("parameter-names-alike", Nested)
add("parameter-half-detached", two(lambda self, x: self.b(self.a(x).detach()) + self.a(x)[:, :3]))
add("constant-64-bit", _constant_of_64_bits)
add(
    "needs-float32",
    two(lambda self, x: self.b(self.a(x.float()) * torch.ones(5, dtype=torch.float32))),
    dtype=torch.float32,
)
add("float32-in-a-float64-run", two(lambda self, x: self.b(self.a(x.float()))), expect="refused")
add(
    "parameter-complex",
    lambda: Of(
        lambda self, x: (x.to(torch.complex128) @ self.w.to(torch.complex128)).abs(),
        w=nn.Parameter(torch.randn(6, 3, dtype=torch.complex64)),
    ),
    expect="refused",
)
add("lazy", lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 3)), expect="refused")


# Other mathematics


class Rounded(torch.autograd.Function):
    """Straight through: its gradient is not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Clipped(torch.autograd.Function):
    """Keeps what it needs, also a number, for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < ctx.bound, gradient, 0.1 * gradient), None


def _by_row(self: Any, x: Tensor) -> Tensor:
    return self.b(torch.func.vmap(lambda row: self.a(row).tanh())(x))


def _slope(self: Any, x: Tensor) -> Tensor:
    """The slope of an energy, by torch.func, as a feature."""
    slope = torch.func.grad(lambda z: self.a(z).square().sum())(x)
    return self.b(self.a(slope))


def _slope_by_autograd(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.a(z).tanh().sum(), z, create_graph=True)
    return self.b(self.a(slope))


def _hyper(self: Any, x: Tensor) -> Tensor:
    """The weights of a layer come from another."""
    weight = self.maker(self.seed).view(5, 6)
    return self.b(torch.func.functional_call(self.a, {"weight": weight}, (x,)))


def _newton(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    matrix = torch.eye(5, dtype=h.dtype) * 3 + h[:, :, None] * h[:, None, :]
    return self.b(torch.linalg.solve(matrix, h))


def _spectrum(self: Any, x: Tensor) -> Tensor:
    found = torch.fft.rfft(self.a(x))
    return self.b(torch.fft.irfft(found * self.filter, n=5)) + found.abs().sum(1, keepdim=True)


def _complex_pairs(self: Any, x: Tensor) -> Tensor:
    weight = torch.view_as_complex(self.pairs)
    return (x[:, None, :].to(weight.dtype) @ weight)[:, 0].abs()


def pair_loss(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    scores, code = output
    return F.cross_entropy(scores, y) + 0.1 * code.square().mean()


def table_loss(output: dict[str, Tensor], y: Tensor) -> Tensor:
    return F.cross_entropy(output["scores"], y) + 0.1 * output["code"].abs().mean()


def _scripted() -> nn.Module:
    """A copy of it cannot be trained: its parameters are results, whose leaves the original has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against TorchScript, but keeps it
        return torch.jit.script(mlp()())


def _with_a_script() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.Linear(6, 5), torch.jit.script(nn.Sequential(nn.Linear(5, 3))))


def _traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(mlp()(), torch.zeros(4, 6))


def _locked() -> nn.Module:
    made = mlp()()
    made.lock = threading.Lock()
    return made


def _many_steps(self: Any, x: Tensor) -> Tensor:
    """As many steps as there are samples in the batch."""
    h = self.a(x)
    for _ in range(len(x)):
        h = 0.9 * h.tanh()
    return self.b(h)


def squares(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean()


def rebuilt(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().flatten(1).sum(1)


def _pictures_again(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = _normal(generator, SAMPLES, 1, 4, 4)
    return x, x.clone()


add("function-rounded", two(lambda self, x: self.b(Rounded.apply(3 * self.a(x)))))
add("function-clipped", two(lambda self, x: self.b(Clipped.apply(self.a(x), 0.4))))
add("func-vmap", two(_by_row))
add("func-grad", two(_slope))
add("func-functional-call", two(_hyper, maker=Make(nn.Linear, 2, 30), seed=Make(normal, 2)))
add("autograd-grad", two(_slope_by_autograd))
add("linear-solve", two(_newton))
add("fourier", two(_spectrum, filter=Make(parameter, 3)))
add("complex-pairs", lambda: Of(_complex_pairs, pairs=parameter(6, 3, 2)))
add(
    "bilinear",
    lambda: Of(lambda self, x: self.form(x[:, :3], x[:, 3:]), form=nn.Bilinear(3, 3, 3)),
)
add(
    "output-tuple",
    two(lambda self, x: (self.b(self.a(x)), self.a(x))),
    loss=lambda: pair_loss,
)
add(
    "output-dict",
    two(lambda self, x: {"scores": self.b(self.a(x)), "code": self.a(x)}),
    loss=lambda: table_loss,
)
add("scripted", _scripted, expect="refused")
add("scripted-part", _with_a_script, expect="refused")
add("scripted-trace", _traced, expect="refused")
add("not-to-be-copied", _locked, expect="refused")
add("loop-over-batch", two(_many_steps))
add(
    "loop-over-features",
    two(lambda self, x: self.b(sum(self.a(x) * x[:, i : i + 1] for i in range(x.shape[1])))),
)
add("quantile", two(lambda self, x: self.b(self.a(x)) + self.a(x).quantile(0.3, 1, keepdim=True)))
add(
    "distances",
    two(
        lambda self, x: self.b(self.a(x)) - torch.cdist(x, self.points),
        points=Make(parameter, 3, 6),
    ),
)
add(
    "cosine",
    two(
        lambda self, x: self.b(self.a(x)) * F.cosine_similarity(x, self.point)[:, None],
        point=Make(parameter, 6),
    ),
)
add(
    "one-hot",
    lambda: Of(
        lambda self, x: self.out(F.one_hot(x, 8).to(self.out.weight.dtype).flatten(1)),
        out=nn.Linear(40, 3),
    ),
    tokens,
)
add("regression-column", mlp(1), to_numbers(1), nn.MSELoss)
add(
    "regression-numbers",
    lambda: Of(lambda self, x: self.a(x).squeeze(-1), a=nn.Linear(6, 1)),
    to_numbers(),
    nn.MSELoss,
)
add("regression-pictures", lambda: nn.Conv2d(1, 1, 3, padding=1), _pictures_again, nn.MSELoss)
add(
    "autoencoder",
    lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 16), nn.Unflatten(1, (1, 4, 4))
    ),
    _pictures_again,
    lambda: rebuilt,
)
add(
    "squeeze-classes",
    lambda: Of(lambda self, x: self.a(x).squeeze(), a=nn.Linear(6, 3)),
    loss=nn.CrossEntropyLoss,
    raises_at=(1,),
)
add(
    "squeeze-numbers",
    lambda: Of(lambda self, x: self.a(x).squeeze(), a=nn.Linear(6, 1)),
    to_numbers(),
    lambda: squares,
)
add(
    "batch-of-four-at-most",
    two(lambda self, x: self.b(self.a(x[:4] if self.training else x))),
    raises_at=(0, 5),
    algorithms=("fedavg", "fednag"),  # Mime's full gradients would take more at any batch
)
