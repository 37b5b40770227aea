"""Momentum methods beside FedNAG against the papers' formulas in plain numpy, and their limits.

Every method plays rounds of least squares on the real engine: three workers of unequal sizes, two
of them in a round, each with its own number of local iterations, mini-batches, a model of two
tensors. Beside it stands the paper's formula, written anew, on the same mini-batches.
"""

# ruff: noqa: B023  (what loops define is called before their next turn)
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fednag.algorithms import (
    ALGORITHMS,
    DOMO,
    GHBM,
    MFL,
    STEM,
    DiLoCo,
    FedACG,
    FedAdagrad,
    FedAdam,
    FedADC,
    FedAvg,
    FedAvgM,
    FedCM,
    FedDyn,
    FedExP,
    FedGLOMO,
    FedHBM,
    FedLion,
    FedMom,
    FedNAG,
    FedNova,
    FedProx,
    FedYogi,
    LocalGHBM,
    Scaffold,
    ScaffoldM,
    SlowMo,
)
from fednag.algorithms.local import LocalSGD
from fednag.controllers import Cosine, StepsByWorker
from fednag.core.algorithm import Algorithm
from fednag.core.keys import Draws, cohort
from fednag.core.loop import Scheme
from fednag.data import partition
from fednag.data.dataset import Dataset
from fednag.problems import models
from fednag.problems.problem import Problem
from fednag.simulate.run import Plan, simulate
from rules import play
from test_laws import assert_different, assert_same, last

Array = NDArray[np.float64]
Slope = Callable[[Array], Array]

ITERATIONS, STEPS, BATCH, SEED = 17, (1, 3, 2), 4, 5


@dataclass(frozen=True)
class Game:
    """What happens in a run: the first model, and who descends along which slopes."""

    w: Array
    sizes: list[int]
    rounds: list[dict[int, list[Slope]]]

    def mean(self, values: Mapping[int, Any]) -> Any:
        """Of those who took part, by the size of their data."""
        return sum(self.sizes[i] * v for i, v in values.items()) / sum(
            map(self.sizes.__getitem__, values)
        )

    def share(self, workers: Mapping[int, Any]) -> float:
        return sum(self.sizes[i] for i in workers) / sum(self.sizes)

    def through(self, change: Callable[[Slope], Slope]) -> Game:
        rounds = [{i: [*map(change, g)] for i, g in one.items()} for one in self.rounds]
        return replace(self, rounds=rounds)


@pytest.fixture(scope="module")
def plan() -> Plan:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 3
    y = y + torch.randn(30, generator=generator, dtype=torch.float64)
    data = Dataset("plane", x, y, x[:0], y[:0], classes=None)
    problem = Problem(data, models.build("linear", (3,), 1, seed=3), "mse", dtype=torch.float64)
    deal = partition.by_size(30, 3, 0.8, seed=2)
    return Plan(
        problem, deal, Scheme(FedAvg(), StepsByWorker(STEPS)), tau=3, iterations=ITERATIONS,
        batch=BATCH, seed=SEED, per_round=2, chunk=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def game(plan: Plan) -> Game:
    """The same run's mini-batches: w is three weights and the intercept."""
    x = np.column_stack([plan.problem.x.numpy(), np.ones(30)])
    y = plan.problem.y.numpy()
    owned, sizes = plan.partition.workers, [len(held) for held in plan.partition.workers]
    draws, done = Draws(SEED, sizes, BATCH), [0, 0, 0]
    rounds: list[dict[int, list[Slope]]] = []
    iteration = 0
    while iteration < ITERATIONS:
        one = {}
        for i in cohort(SEED, len(rounds) + 1, np.arange(3), 2).tolist():
            slopes, steps = [], min(STEPS[i], ITERATIONS - iteration)
            for positions in draws.batches(i, done[i], steps):
                a, b = x[owned[i][positions]], y[owned[i][positions]]
                slopes.append(lambda w, a=a, b=b: 2 / len(b) * a.T @ (a @ w - b))
            one[i] = slopes
            done[i] += steps
        rounds.append(one)
        iteration += max(len(slopes) for slopes in one.values())
    assert {len(set(one)) for one in rounds} == {2}
    assert len(set(sizes)) == 3
    assert len({tuple(one) for one in rounds}) == 3  # all three cohorts come
    return Game(plan.problem.initial.numpy(), sizes, rounds)


def descended(w: Array, slopes: list[Slope], lr: float) -> Array:
    for g in slopes:
        w = w - lr * g(w)
    return w


def iterations(slopes: Mapping[int, list[Slope]]) -> float:
    """The mean number of local iterations of a round's workers."""
    return float(np.mean([len(g) for g in slopes.values()]))


# The papers' formulas


def mfl(game: Game, lr: float, momentum: float) -> Any:
    w, d = game.w, 0 * game.w
    for workers in game.rounds:
        ws, ds = {}, {}
        for i, slopes in workers.items():
            ws[i], ds[i] = w, d
            for g in slopes:
                ds[i] = momentum * ds[i] + g(ws[i])
                ws[i] = ws[i] - lr * ds[i]
        w, d = game.mean(ws), game.mean(ds)
        yield w


def fedcm(game: Game, lr: float, momentum: float, server_lr: float) -> Any:
    alpha, w, delta = 1 - momentum, game.w, 0 * game.w
    for workers in game.rounds:
        deltas = {}
        for i, slopes in workers.items():
            own = descended(
                w, [lambda v, g=g: alpha * g(v) + (1 - alpha) * delta for g in slopes], lr
            )
            deltas[i] = own - w
        delta = -game.mean(deltas) / (lr * iterations(workers))
        w = w - server_lr * lr * iterations(workers) * delta
        yield w


def fedadc(game: Game, lr: float, momentum: float, local_momentum: float, server_lr: float) -> Any:
    w, m = game.w, 0 * game.w  # m: a sum over a round's iterations
    tau = 1.0
    for workers in game.rounds:
        share = local_momentum * m / tau
        ws = {
            i: descended(w, [lambda v, g=g: g(v) + share for g in slopes], lr)
            for i, slopes in workers.items()
        }
        now = iterations(workers)
        m = (w - game.mean(ws)) / lr + (momentum - local_momentum) * m * now / tau
        w, tau = w - server_lr * lr * m, now
        yield w


def domo(
    game: Game, lr: float, momentum: float, local_momentum: float, fusion: float, server_lr: float
) -> Any:
    w, m = game.w, 0 * game.w
    for workers in game.rounds:
        ds = {}
        for i, slopes in workers.items():
            own, v, found = w, 0 * w, []
            for g in slopes:
                v = local_momentum * v + g(own)
                own = own - lr * v - lr * fusion * m
                found.append(v)
            ds[i] = sum(found) / len(found)
        m = momentum * m + game.mean(ds)
        w = w - server_lr * lr * iterations(workers) * m
        yield w


def ghbm(game: Game, lr: float, momentum: float, window: int) -> Any:
    models, tau = [game.w], 1.0
    for workers in game.rounds:
        w, m = models[-1], 0 * game.w
        if len(models) > window:
            m = (models[-1 - window] - w) / window
        slopes = {
            i: [lambda v, g=g: g(v) + momentum / (lr * tau) * m for g in own]
            for i, own in workers.items()
        }
        models.append(game.mean({i: descended(w, own, lr) for i, own in slopes.items()}))
        tau = iterations(workers)
        yield models[-1]


def localghbm(game: Game, lr: float, momentum: float, participation: float) -> Any:
    w, anchors = game.w, {}
    for workers in game.rounds:
        ws = {}
        for i, slopes in workers.items():
            anchor, tau = anchors.get(i, (w, 1))
            pull = momentum * participation * (anchor - w) / tau
            ws[i] = descended(w, [lambda v, g=g: g(v) + pull / lr for g in slopes], lr)
            anchors[i] = w, len(slopes)
        w = game.mean(ws)
        yield w


def fedhbm(game: Game, lr: float, momentum: float, participation: float) -> Any:
    w, anchors = game.w, {}
    for workers in game.rounds:
        ws = {}
        for i, slopes in workers.items():
            ws[i] = w
            for g in slopes:
                anchor, tau = anchors.get(i, (ws[i], 1))
                m = participation * (anchor - ws[i])
                ws[i] = ws[i] - lr * g(ws[i]) - momentum / tau * m
            anchors[i] = ws[i], len(slopes)
        w = game.mean(ws)
        yield w


def scaffold_m(game: Game, lr: float, momentum: float, server_lr: float) -> Any:
    beta, w, c, m = 1 - momentum, game.w, 0 * game.w, 0 * game.w
    cs = dict.fromkeys(range(3), 0 * game.w)
    for workers in game.rounds:
        ws, changes = {}, {}
        for i, slopes in workers.items():
            ws[i], gradients = w, []
            for g in slopes:
                gradients.append(g(ws[i]))
                ws[i] = ws[i] - lr * (beta * (gradients[-1] - cs[i] + c) + (1 - beta) * m)
            changes[i] = np.mean(gradients, axis=0) - cs[i]
        cs |= {i: cs[i] + change for i, change in changes.items()}
        c = c + game.share(workers) * game.mean(changes)
        m = (w - game.mean(ws)) / (lr * iterations(workers))
        w = w - server_lr * lr * iterations(workers) * m
        yield w


def fedacg(game: Game, lr: float, momentum: float, mu: float) -> Any:
    theta, m = game.w, 0 * game.w
    for workers in game.rounds:
        start, deltas = theta + momentum * m, {}
        for i, slopes in workers.items():
            own = descended(start, [lambda v, g=g: g(v) + mu * (v - start) for g in slopes], lr)
            deltas[i] = own - start
        m = momentum * m + game.mean(deltas)
        theta = theta + m
        yield theta + momentum * m


def stem(game: Game, lr: float, momentum: float) -> Any:
    a, w, x, d = 1 - momentum, game.w, None, None
    for workers in game.rounds:
        ws, xs, ds = {}, {}, {}
        for i, slopes in workers.items():
            own, before, own_d = w, x, d
            for g in slopes:
                own_d = g(own) if own_d is None else g(own) + (1 - a) * (own_d - g(before))
                own, before = own - lr * own_d, own
            ws[i], xs[i], ds[i] = own, before, own_d
        w, x, d = game.mean(ws), game.mean(xs), game.mean(ds)
        yield w


def fedglomo(game: Game, lr: float, momentum: float) -> Any:
    beta, w, before, u = 1 - momentum, game.w, game.w, None

    def found(start: Array, slopes: list[Slope]) -> Array:
        at, v = [start], slopes[0](start)
        for g in slopes:
            if len(at) > 1:
                v = g(at[-1]) + v - g(at[-2])
            at.append(at[-1] - lr * v)
        return start - at[-1]

    for workers in game.rounds:
        new = game.mean({i: found(w, slopes) for i, slopes in workers.items()})
        old = game.mean({i: found(before, slopes) for i, slopes in workers.items()})
        u = new if u is None else beta * new + (1 - beta) * u + (1 - beta) * (new - old)
        w, before = w - u, w
        yield w


def adaptive(game: Game, lr: float, step: Callable[[Array], Array]) -> Any:
    w = game.w
    for workers in game.rounds:
        u = game.mean({i: descended(w, slopes, lr) for i, slopes in workers.items()}) - w
        w = w + step(u)
        yield w


def fedyogi(
    game: Game, lr: float, momentum: float, second: float, server_lr: float, adaptivity: float
) -> Any:
    m, s = 0 * game.w, adaptivity**2 + 0 * game.w

    def step(u: Array) -> Array:
        nonlocal m, s
        m = momentum * m + (1 - momentum) * u
        s = s - (1 - second) * u * u * np.sign(s - u * u)
        return server_lr * m / (np.sqrt(s) + adaptivity)

    yield from adaptive(game, lr, step)


def fedadagrad(game: Game, lr: float, momentum: float, server_lr: float, adaptivity: float) -> Any:
    m, s = 0 * game.w, adaptivity**2 + 0 * game.w

    def step(u: Array) -> Array:
        nonlocal m, s
        m, s = momentum * m + (1 - momentum) * u, s + u * u
        return server_lr * m / (np.sqrt(s) + adaptivity)

    yield from adaptive(game, lr, step)


def diloco(game: Game, *, weight_decay: float, clip: float = 0.0, **numbers: float) -> Any:
    """AdamW is torch's own, a optimiser for every worker; the outer step is torch's SGD."""
    given = {"lr": numbers["lr"], "betas": (numbers["first"], numbers["second"])}
    given |= {"eps": numbers["epsilon"], "weight_decay": weight_decay}
    inner = {i: nn.Parameter(torch.from_numpy(game.w.copy())) for i in range(3)}
    outer = nn.Parameter(torch.from_numpy(game.w.copy()))
    adamw = {i: torch.optim.AdamW([own], **given) for i, own in inner.items()}  # type: ignore[arg-type]
    nesterov = {"momentum": numbers["momentum"], "nesterov": True}
    sgd = torch.optim.SGD([outer], numbers["server_lr"], **nesterov)  # type: ignore[arg-type]
    for workers in game.rounds:
        for i, slopes in workers.items():
            inner[i].data.copy_(outer.data)
            for g in slopes:
                inner[i].grad = torch.from_numpy(g(inner[i].detach().numpy()))
                adamw[i].step()
        moved = {i: outer.detach().numpy() - inner[i].detach().numpy() for i in workers}
        outer.grad = torch.from_numpy(game.mean(moved))
        sgd.step()
        yield outer.detach().numpy().copy()


def fedlion(game: Game, lr: float, momentum: float, decay: float, weight_decay: float = 0.0) -> Any:
    w, m = game.w, 0 * game.w
    for workers in game.rounds:
        ws, ms = {}, {}
        for i, slopes in workers.items():
            ws[i], ms[i] = w, m
            for g in slopes:
                h = g(ws[i])
                way = np.sign(momentum * ms[i] + (1 - momentum) * h)
                ws[i] = ws[i] - lr * (way + weight_decay * ws[i])
                ms[i] = decay * ms[i] + (1 - decay) * h
        w, m = game.mean(ws), game.mean(ms)
        yield w


def fednova(game: Game, lr: float, momentum: float) -> Any:
    w = game.w
    for workers in game.rounds:
        ds, amounts = {}, {}
        for i, slopes in workers.items():
            tau, own, v = len(slopes), w, 0 * w
            for g in slopes:
                v = momentum * v + g(own)
                own = own - lr * v
            weight = (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
            ds[i], amounts[i] = (w - own) / (lr * weight), weight
        w = w - game.mean(amounts) * lr * game.mean(ds)
        yield w


def fedexp(game: Game, lr: float, epsilon: float) -> Any:
    w = game.w
    for workers in game.rounds:
        deltas = {i: w - descended(w, slopes, lr) for i, slopes in workers.items()}
        delta = game.mean(deltas)
        square = game.mean({i: own @ own for i, own in deltas.items()})
        w = w - max(1.0, square / (2 * (delta @ delta + epsilon))) * delta
        yield w


def feddyn(game: Game, lr: float, alpha: float) -> Any:
    w, h, hs = game.w, 0 * game.w, dict.fromkeys(range(3), 0 * game.w)
    for workers in game.rounds:
        ws = {}
        for i, slopes in workers.items():
            bent = [lambda v, g=g, i=i: g(v) - hs[i] + alpha * (v - w) for g in slopes]
            ws[i] = descended(w, bent, lr)
        hs |= {i: hs[i] - alpha * (own - w) for i, own in ws.items()}
        h = h - alpha * sum(game.sizes[i] * (ws[i] - w) for i in ws) / sum(game.sizes)
        w = game.mean(ws) - h / alpha
        yield w


FORMULAS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "mfl": (mfl, {"lr": 0.07, "momentum": 0.6}),
    "fedcm": (fedcm, {"lr": 0.07, "momentum": 0.6, "server_lr": 0.8}),
    "fedadc": (fedadc, {"lr": 0.07, "momentum": 0.6, "local_momentum": 0.3, "server_lr": 0.8}),
    "domo": (
        domo,
        {"lr": 0.07, "momentum": 0.6, "local_momentum": 0.3, "fusion": 0.2, "server_lr": 0.8},
    ),
    "ghbm": (ghbm, {"lr": 0.07, "momentum": 0.6, "window": 2}),
    "local-ghbm": (localghbm, {"lr": 0.07, "momentum": 0.6, "participation": 0.4}),
    "fedhbm": (fedhbm, {"lr": 0.07, "momentum": 0.6, "participation": 0.4}),
    "scaffold-m": (scaffold_m, {"lr": 0.07, "momentum": 0.6, "server_lr": 0.8}),
    "fedacg": (fedacg, {"lr": 0.07, "momentum": 0.6, "mu": 0.5}),
    "stem": (stem, {"lr": 0.07, "momentum": 0.6}),
    "fedglomo": (fedglomo, {"lr": 0.07, "momentum": 0.6}),
    "fedyogi": (
        fedyogi,
        {"lr": 0.07, "momentum": 0.6, "second": 0.7, "server_lr": 0.3, "adaptivity": 0.5},
    ),
    "fedadagrad": (
        fedadagrad,
        {"lr": 0.07, "momentum": 0.6, "server_lr": 0.3, "adaptivity": 0.5},
    ),
    "diloco": (
        diloco,
        {
            **{"lr": 0.07, "momentum": 0.6, "server_lr": 0.8, "first": 0.3, "second": 0.7},
            **{"epsilon": 0.2, "weight_decay": 0.4},
        },
    ),
    "fedlion": (fedlion, {"lr": 0.07, "momentum": 0.6, "decay": 0.3}),
    "fednova": (fednova, {"lr": 0.07, "momentum": 0.6}),
    "fedexp": (fedexp, {"lr": 0.07, "epsilon": 0.02}),
    "feddyn": (feddyn, {"lr": 0.07, "alpha": 0.3}),
}  # fmt: skip
DECOUPLED = ("diloco", "fedlion")  # their weight decay is no part of the gradient


def trained(plan: Plan, algorithm: Algorithm, **changes: Any) -> Array:
    """The model after every round."""
    plan = replace(plan, scheme=replace(plan.scheme, algorithm=algorithm), **changes)
    return np.array([state.server.w.numpy() for state in simulate(plan)][1:])


def agree(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_papers_formula_in_numpy(plan: Plan, game: Game, name: str) -> None:
    formula, numbers = FORMULAS[name]
    expected = np.array(list(formula(game, **numbers)))
    assert np.abs(np.diff(expected, axis=0)).max(1).min() > 1e-3  # it moves, all the time
    agree(trained(plan, ALGORITHMS[name](**numbers)), expected)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", FORMULAS)
def test_with_clipping_and_weight_decay(plan: Plan, game: Game, name: str) -> None:
    formula, numbers = FORMULAS[name]
    clip, decay = 6.0, 0.4
    short: list[bool] = []

    def change(g: Slope) -> Slope:
        def changed(w: Array) -> Array:
            slope, length = g(w), float(np.linalg.norm(g(w)))
            short.append(length <= clip)
            slope = slope if length <= clip else slope * clip / length
            return slope if name in DECOUPLED else slope + decay * w

        return changed

    own = {"weight_decay": decay} if name in DECOUPLED else {}
    expected = list(formula(game.through(change), **{**numbers, **own}))
    assert {True, False} == set(short)
    both: Any = {**numbers, "weight_decay": decay, "clip": clip}
    agree(trained(plan, ALGORITHMS[name](**both)), np.array(expected))


# Limits: a method is a simpler one

EVEN: dict[str, Any] = {"iterations": 15}


def even(plan: Plan, algorithm: Algorithm, **changes: Any) -> Array:
    """The same with tau local iterations for everyone."""
    plan = replace(plan, scheme=Scheme(algorithm), **{**EVEN, **changes})
    return np.array([state.server.w.numpy() for state in simulate(plan)][1:])


def alone(plan: Plan) -> Plan:
    """One worker holds all."""
    return replace(plan, partition=partition.iid(30, 1, seed=0), per_round=None)


LR = 0.07


@pytest.mark.parametrize(
    "method",
    [
        MFL(LR, 0.0),
        FedCM(LR, 0.0),
        FedADC(LR, 0.0, 0.0),
        GHBM(LR, 0.0),
        LocalGHBM(LR, 0.0),
        FedHBM(LR, 0.0),
        STEM(LR, 0.0),
        FedACG(LR, 0.0, 0.0),
        FedExP(LR, epsilon=1e9),
    ],
    ids=lambda method: type(method).__name__,
)
def test_without_its_idea_it_is_fedavg(plan: Plan, method: Algorithm) -> None:
    agree(trained(plan, method), trained(plan, FedAvg(LR)))
    with pytest.raises(AssertionError):
        agree(trained(plan, type(method)(lr=LR)), trained(plan, FedAvg(LR)))  # type: ignore[call-arg]


@pytest.mark.parametrize("method", [FedNova(LR), DOMO(LR, 0.0, 0.0, 0.0)])
def test_where_all_do_the_same_number_of_iterations_it_is_fedavg(
    plan: Plan, method: Algorithm
) -> None:
    agree(even(plan, method), even(plan, FedAvg(LR)))
    with pytest.raises(AssertionError):
        agree(trained(plan, method), trained(plan, FedAvg(LR)))


def test_scaffold_m_without_momentum_is_scaffold(plan: Plan) -> None:
    agree(trained(plan, ScaffoldM(LR, 0.8, 0.0)), trained(plan, Scaffold(LR, 0.8)))


def test_fedacg_is_fedmom_with_fedprox_steps(plan: Plan) -> None:
    agree(trained(plan, FedACG(LR, 0.6, 0.0)), trained(plan, FedMom(LR, 0.6)))
    agree(trained(plan, FedACG(LR, 0.0, 0.5)), trained(plan, FedProx(LR, 0.5)))


def test_ghbm_over_one_round_is_fedcm(plan: Plan) -> None:
    """In other numbers: its gradient has no factor of its own."""
    agree(trained(plan, GHBM(0.4 * LR, 0.6, window=1)), trained(plan, FedCM(LR, 0.6)))


def test_localghbm_with_everyone_is_ghbm_over_one_round(plan: Plan) -> None:
    local = even(plan, LocalGHBM(LR, 0.6, participation=1.0), per_round=None)
    agree(local, even(plan, GHBM(LR, 0.6, window=1), per_round=None))


def test_fedhbm_begins_as_fedavg(plan: Plan) -> None:
    """No worker has been there before; then its own move since then drives it on."""
    found, plain = trained(plan, FedHBM(LR, 0.6)), trained(plan, FedAvg(LR))
    agree(found[:1], plain[:1])
    assert np.abs(found[-1] - plain[-1]).max() > 1e-3


@pytest.mark.parametrize("method", [FedADC(LR, 0.6, 0.0, 0.8), DOMO(LR, 0.6, 0.0, 0.0, 0.8)])
def test_with_momentum_at_the_server_alone_it_is_slowmo(plan: Plan, method: Algorithm) -> None:
    agree(even(plan, method), even(plan, SlowMo(LR, 0.6, 0.8)))


def test_fedadc_gives_back_what_workers_have_added(plan: Plan) -> None:
    """Where there is one local iteration, it does not matter who adds the momentum."""
    once = {"tau": 1, "iterations": 6}
    agree(even(plan, FedADC(LR, 0.6, 0.3), **once), even(plan, FedADC(LR, 0.6, 0.0), **once))


def test_stem_with_one_worker_and_full_batches_is_gradient_descent(plan: Plan) -> None:
    """The estimate is the gradient from the first iteration on, whatever its momentum."""
    one = alone(plan)
    agree(even(one, STEM(LR, 0.6), batch=0), even(one, FedAvg(LR), batch=0))
    with pytest.raises(AssertionError):
        agree(even(one, STEM(LR, 0.6)), even(one, FedAvg(LR)))


def test_fedglomo_with_everyone_and_full_batches_is_fedavg(plan: Plan) -> None:
    """Nothing varies, so there is nothing to correct."""
    every = replace(plan, per_round=None)
    agree(even(every, FedGLOMO(LR, 0.6), batch=0), even(every, FedAvg(LR), batch=0))
    for changes in ({"per_round": 2, "batch": 0}, {"batch": BATCH}):
        with pytest.raises(AssertionError):
            agree(even(every, FedGLOMO(LR, 0.6), **changes), even(every, FedAvg(LR), **changes))


def test_fedlion_without_momentum_goes_along_signs(plan: Plan, game: Game) -> None:
    w = game.w
    expected = []
    for workers in game.rounds:
        signs = {i: [lambda v, g=g: np.sign(g(v)) for g in own] for i, own in workers.items()}
        w = game.mean({i: descended(w, own, LR) for i, own in signs.items()})
        expected.append(w)
    agree(trained(plan, FedLion(LR, 0.0, 0.3)), np.array(expected))
    agree(trained(plan, FedLion(LR, 0.0, 0.8)), np.array(expected))


def test_fedexp_with_one_worker_is_fedavg(plan: Plan) -> None:
    one = alone(plan)
    agree(even(one, FedExP(LR, 1e-9)), even(one, FedAvg(LR)))


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
def test_where_squares_count_for_nothing_adaptive_servers_are_fedavg(
    plan: Plan, kind: type[Algorithm]
) -> None:
    numbers = {"lr": LR, "momentum": 0.0, "server_lr": 2e6, "adaptivity": 1e6}
    numbers |= {} if kind is FedAdagrad else {"second": 1 - 1e-12}
    found = trained(plan, kind(**numbers))  # type: ignore[call-arg]
    np.testing.assert_allclose(found, trained(plan, FedAvg(LR)), rtol=1e-7)


def test_how_the_squares_of_adaptive_servers_are_related() -> None:
    s, u = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([0.5, 2.0, -1.0])
    adam, yogi = FedAdam(second=0.9).squares(s, u), FedYogi(second=0.9).squares(s, u)
    assert torch.equal((adam - s).sign(), (yogi - s).sign())  # the same way
    torch.testing.assert_close((yogi - s).abs(), 0.1 * u**2)  # by the update's size alone
    torch.testing.assert_close((adam - s).abs(), 0.1 * (u**2 - s).abs())
    grown = torch.tensor([0.1, 0.2, 0.3])  # smaller than all of u squared
    assert torch.equal(FedYogi(second=0.0).squares(grown, u), FedAdagrad().squares(grown, u))


def test_diloco_with_sgd_inside_is_fedmom(plan: Plan) -> None:
    """A large epsilon makes AdamW steps of one size: lr / epsilon times the gradient."""
    sgd: dict[str, Any] = {"lr": LR * 1e9, "first": 0.0, "epsilon": 1e9, "weight_decay": 0.0}
    found = trained(plan, DiLoCo(**sgd, server_lr=1.0, momentum=0.6))
    np.testing.assert_allclose(found, trained(plan, FedMom(LR, 0.6)), rtol=1e-6)
    found = trained(plan, DiLoCo(**sgd, server_lr=0.5, momentum=0.0))
    plain = trained(plan, FedAvgM(LR, momentum=0.0, server_lr=0.5))
    np.testing.assert_allclose(found, plain, rtol=1e-6)


def test_feddyn_goes_to_the_best_of_all_where_fedavg_does_not(plan: Plan) -> None:
    """Workers whose data differ, several local iterations, two of three in a round."""
    x = np.column_stack([plan.problem.x.numpy(), np.ones(30)])
    best = np.linalg.lstsq(x, plan.problem.y.numpy(), rcond=None)[0]
    long: dict[str, Any] = {"iterations": 1200, "batch": 0}
    assert np.abs(even(plan, FedDyn(LR, 0.5), **long)[-1] - best).max() < 1e-6
    assert np.abs(even(plan, FedAvg(LR), **long)[-1] - best).max() > 1e-3


def test_feddyn_with_a_vanishing_alpha(plan: Plan, game: Game) -> None:
    """FedAvg's workers; the server adds all mean updates there have been."""
    w, moved, expected = game.w, 0 * game.w, []
    for workers in game.rounds:
        u = game.mean({i: descended(w, slopes, LR) for i, slopes in workers.items()}) - w
        moved = moved + game.share(workers) * u
        w = w + u + moved
        expected.append(w)
    np.testing.assert_allclose(trained(plan, FedDyn(LR, 1e-9)), np.array(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "vector"), [(ScaffoldM(LR, 0.8, 0.6), "c"), (FedDyn(LR, 0.3), "h")]
)
def test_what_the_server_keeps_is_the_mean_of_what_workers_keep(
    plan: Plan, method: Algorithm, vector: str
) -> None:
    sizes = [len(held) for held in plan.partition.workers]
    state = last(replace(plan, scheme=replace(plan.scheme, algorithm=method)))
    total = sum(sizes[worker] * held[vector] for worker, held in state.memories.items())
    assert_same(state.server[vector], total / sum(sizes))
    assert state.server[vector].abs().max() > 1e-2


# Weight decay and clipping

SGD = [
    name
    for name, cls in ALGORITHMS.items()
    if issubclass(cls, LocalSGD) and name not in DECOUPLED and name != "fedpaq"
]


@pytest.mark.parametrize("name", SGD)
def test_weight_decay_and_clipping_are_of_the_gradient(name: str) -> None:
    """The method with the options is the method without them on slopes that have them."""
    slopes = [lambda w: w - 4, lambda w: 2 * w + 4]

    def changed(slope: Any) -> Any:
        return lambda w: slope(w).clamp(-3.2, 3.2) + 0.3 * w

    def end(method: Algorithm, slopes: list[Any]) -> dict[str, float]:
        given: Any = {"rounds": 2, "tau": 2, "sizes": (1, 3), "batch": slopes, "full": slopes}
        return {n: v.tolist() for n, v in play(method, **given)[0].items()}

    plain = ALGORITHMS[name](lr=0.1)  # type: ignore[call-arg]
    both = replace(plain, weight_decay=0.3, clip=3.2)  # type: ignore[call-arg]
    found, expected = end(both, slopes), end(plain, [*map(changed, slopes)])
    for vector, values in expected.items():
        assert found[vector] == pytest.approx(values, rel=1e-12)
    assert found["w"] != pytest.approx(end(plain, slopes)["w"], rel=1e-6)


def test_clipping_is_torchs_for_each_worker() -> None:
    """Rows of a stack are clipped by their own lengths; a gradient of 0 stays 0."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    for row, found in zip(rows, FedAvg(clip=2.0).clipped(rows), strict=True):
        parameter = nn.Parameter(row.clone())
        parameter.grad = row.clone()
        nn.utils.clip_grad_norm_([parameter], 2.0)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-6, atol=0)


def test_one_worker_with_weight_decay_is_torchs_sgd(plan: Plan, game: Game) -> None:
    one = alone(plan)
    found = even(one, FedNAG(LR, 0.8, weight_decay=0.3), batch=0)
    w = nn.Parameter(torch.from_numpy(game.w.copy()))
    sgd = torch.optim.SGD([w], LR, momentum=0.8, nesterov=True, weight_decay=0.3)
    x = torch.cat([plan.problem.x, torch.ones(30, 1, dtype=torch.float64)], 1)
    for _ in range(15):
        sgd.zero_grad()
        (x @ w - plan.problem.y).square().mean().backward()
        sgd.step()
    agree(found[-1], w.detach().numpy())


@pytest.mark.parametrize("field", ["weight_decay", "clip"])
def test_weight_decay_and_clipping_may_have_schedules(plan: Plan, field: str) -> None:
    """They are inputs of the recorded step then, and give what the rule itself gives."""
    method = replace(FedNAG(LR, 0.6), **{field: 2.0})
    scheme = Scheme(method, schedules=(Cosine(f"algorithm.{field}", 0.5),))
    few = replace(plan, scheme=scheme, iterations=9)
    states = list(simulate(few))
    assert_different(states[-1].server.w, last(replace(few, scheme=Scheme(method))).server.w)
    for number, (before, after) in enumerate(pairwise(states)):
        now = 0.5 + 1.5 * (1 + np.cos(np.pi * number / 3)) / 2
        running = simulate(replace(few, scheme=Scheme(replace(method, **{field: now}))), before)
        next(running)
        assert_same(next(running).server.w, after.server.w)
