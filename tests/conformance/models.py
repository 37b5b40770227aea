"""Models that a plain PyTorch loop can train, or that fednag must refuse: one case each."""

from __future__ import annotations

import functools
import random
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


def _schedule_of_noise(self: Any, x: Tensor) -> Tensor:
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

add("random-python", two(_schedule_of_noise), expect="random")
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


PARTS = {"q": Make(random_, 5, 5), "two": torch.tensor([1.0, 2.0])}

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
