"""Federated training as a plain PyTorch loop: what every model of the table is compared with.

One copy of the user's module a worker, ``loss(model(x), y).backward()``, updates written by hand,
means weighted by data size. Nothing of fednag is in it but who holds which samples and which of
them come when.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fednag.core.keys import Draws
from fednag.data import partition

Tensors = dict[str, Tensor]
Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """What a run is asked for."""

    algorithm: str  # fedavg, fednag or mime
    batch: int
    tau: int = 2
    iterations: int = 4
    workers: int = 3
    skew: float = 1.0
    seed: int = 0
    lr: float = 0.05
    momentum: float = 0.5
    dtype: torch.dtype = torch.float64


@dataclass(frozen=True)
class Outcome:
    """The last model, and its loss and accuracy before the first round and after each."""

    weights: Tensors
    buffers: Tensors
    losses: list[float]
    accuracies: list[float | None]


def mean_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y)


def mean_squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean()


def twin(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy to train, in ``dtype``; what the user has put in eval mode stays in it."""
    made = copy.deepcopy(module).to(dtype)
    # A copied parameter has lost its hooks; the user's own has them, so a plain loop would.
    for own, copied in zip(module.parameters(), made.parameters(), strict=True):
        for hook in (own._backward_hooks or {}).values():
            copied.register_hook(hook)
    return made if made.training else made.train()


def features(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in the run's type; 64-bit integers name things (tokens), so they stay."""
    if x.dtype == torch.uint8:  # bytes of pictures, which fednag scales to 0 to 1
        return x.to(dtype) / 255
    return x.clone() if x.dtype == torch.int64 else x.to(dtype, copy=True)


def targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    return y.to(dtype if y.is_floating_point() else torch.int64, copy=True)


def loss_of(loss: str | Loss | None, y: Tensor, dtype: torch.dtype) -> Loss:
    if loss is None:
        loss = "mse" if y.is_floating_point() else "cross-entropy"
    if isinstance(loss, str):
        return {"cross-entropy": mean_cross_entropy, "mse": mean_squared_error}[loss]
    return copy.deepcopy(loss).to(dtype) if isinstance(loss, nn.Module) else loss


def trained(module: nn.Module) -> Tensors:
    """The parameters that are trained, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def values(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def load(into: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(given[name])


def each(rule: Callable[..., Tensor], *bags: Tensors) -> Tensors:
    """The rule for every parameter."""
    return {name: rule(*(bag[name] for bag in bags)) for name in bags[0]}


class Worker:
    """One worker: its copy of the module, its samples."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, loss: Loss, dtype: torch.dtype):
        self.module, self.x, self.y, self.loss, self.dtype = module, x, y, loss, dtype

    def buffers(self) -> Tensors:
        return dict(self.module.named_buffers())

    def gradient(self, w: Tensors, index: Any, *, keeps_buffers: bool = False) -> Tensors:
        """At ``w``, on the samples at ``index``; only if asked, what it does to buffers stays."""
        before = values(self.buffers())
        load(trained(self.module), w)
        self.module.zero_grad(set_to_none=True)
        x, y = features(self.x[index], self.dtype), targets(self.y[index], self.dtype)
        value = self.loss(self.module(x), y)
        if value.dim():
            value = value.mean()
        value.backward()
        if not keeps_buffers:
            load(self.buffers(), before)
        return {name: _dense(p) for name, p in trained(self.module).items()}


def _dense(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    grad = parameter.grad
    return (grad.to_dense() if grad.is_sparse else grad).detach().clone()


def train(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: str | Loss | None,
    settings: Settings,
    test: tuple[Tensor, Tensor] | None = None,
) -> Outcome:
    """The whole run."""
    s = settings
    held = partition.by_size(len(x), s.workers, s.skew, s.seed).workers
    sizes = [len(mine) for mine in held]
    schedule = Draws(s.seed, sizes, s.batch)
    rule = loss_of(loss, y, s.dtype)
    server = twin(module, s.dtype)
    workers = [Worker(twin(module, s.dtype), x[mine], y[mine], rule, s.dtype) for mine in held]

    def mean(bags: list[Tensors]) -> Tensors:
        def weighted(*rows: Tensor) -> Tensor:
            return sum(n * row for n, row in zip(sizes, rows, strict=True)) / sum(sizes)

        return each(weighted, *bags)

    w, buffers = values(trained(server)), values(dict(server.named_buffers()))
    v = c = each(torch.zeros_like, w)
    losses, accuracies = [], []

    def measure() -> None:
        load(trained(server), w)
        load(dict(server.named_buffers()), buffers)
        judged = copy.deepcopy(server).eval()
        losses.append(_loss(judged, x, y, rule, s.dtype))
        accuracies.append(None if test is None else _accuracy(judged, *test, s.dtype))

    measure()
    for first in range(0, s.iterations, s.tau):
        for worker in workers:
            load(worker.buffers(), buffers)
        if s.algorithm == "mime":
            c = mean([worker.gradient(w, slice(None)) for worker in workers])
        ended, momenta = [], []
        for number, worker in enumerate(workers):
            local, momentum = w, v
            steps = min(s.tau, s.iterations - first)
            for index in schedule.batches(number, first, steps):
                index = torch.from_numpy(index.copy())
                g = worker.gradient(local, index, keeps_buffers=True)
                if s.algorithm == "fedavg":
                    local = each(lambda a, g: a - s.lr * g, local, g)
                elif s.algorithm == "fednag":
                    momentum = each(lambda v, g: s.momentum * v - s.lr * g, momentum, g)
                    local = each(lambda a, v, g: a + s.momentum * v - s.lr * g, local, momentum, g)
                else:
                    there = worker.gradient(w, index)
                    g = each(lambda g, there, c: g - there + c, g, there, c)
                    local = each(
                        lambda a, g, v: a - s.lr * ((1 - s.momentum) * g + s.momentum * v),
                        local,
                        g,
                        v,
                    )
            ended.append(local)
            momenta.append(momentum)
        buffers = _mean_buffers([values(worker.buffers()) for worker in workers], buffers, sizes)
        w = mean(ended)
        if s.algorithm == "fednag":
            v = mean(momenta)
        elif s.algorithm == "mime":
            v = each(lambda c, v: (1 - s.momentum) * c + s.momentum * v, c, v)
        measure()
    return Outcome(w, buffers, losses, accuracies)


def _mean_buffers(found: list[Tensors], before: Tensors, sizes: list[int]) -> Tensors:
    """Those that training has changed, averaged by data size; whole numbers are rounded."""
    after = dict(before)
    for name, old in before.items():
        if all(torch.equal(bag[name], old) for bag in found):
            continue
        total = sum(size * bag[name].double() for bag, size in zip(found, sizes, strict=True))
        mean = total / sum(sizes)
        after[name] = (mean if old.is_floating_point() else mean.round()).to(old.dtype)
    return after


def _loss(module: nn.Module, x: Tensor, y: Tensor, loss: Loss, dtype: torch.dtype) -> float:
    with torch.no_grad():
        return float(loss(module(features(x, dtype)), targets(y, dtype)).mean())


def _accuracy(module: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> float | None:
    """The share of right classes, where a sample has one label and the model one score a class."""
    if y.is_floating_point() or y.dim() != 1:
        return None
    with torch.no_grad():
        output = module(features(x, dtype))
    if not isinstance(output, Tensor) or output.dim() != 2:
        return None
    return float((output.argmax(-1) == y).double().mean())
