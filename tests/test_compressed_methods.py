"""Gradient methods made for compressed uploads: limits, numbers by hand, where they converge."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import fednag
from fednag.algorithms import (
    ACGD,
    ADIANA,
    CSGD,
    DIANA,
    EF21,
    MARINA,
    FedAvg,
    FedNAG,
    FedNAGRebuilt,
    FedPAQ,
)
from fednag.core.algorithm import Algorithm, News, Slopes, local_round, server_round
from fednag.core.keys import generator
from fednag.core.loop import Scheme
from fednag.core.transform import Chain, Transform
from fednag.core.vectors import Vector, Vectors
from fednag.data.dataset import Dataset
from fednag.simulate.run import simulate
from fednag.transforms import Clip, ErrorFeedback, Quantise, RandK, TopK
from test_laws import last, plan_of, weights

D = 12
SIZES = (3, 1, 2)
rng = np.random.default_rng(0)
CURVE = torch.from_numpy(np.diag(rng.uniform(0.5, 1.5, D) * np.geomspace(1, 1e-3, D)))
MILD = torch.from_numpy(np.diag(rng.uniform(0.5, 1.5, D)))
POINTS = [torch.from_numpy(rng.normal(size=D)) for _ in SIZES]
LARGEST = float(CURVE.diagonal().max())
LEAST = float(CURVE.diagonal().min())
BEST = sum(n * b for n, b in zip(SIZES, POINTS, strict=True)) / sum(SIZES)


def descend(method: Algorithm, rounds: int, *parts: Transform, curve: Tensor = CURVE) -> Vectors:
    """Rounds on three quadratics (w - b_i)' A (w - b_i) / 2 of different weights, from 0."""
    algorithm = method
    whole = Chain((*algorithm.channel, *parts))
    start = torch.zeros(D, dtype=torch.float64)
    server = algorithm.init(start)
    memories = [algorithm.memory(start).map(lambda v: v.unsqueeze(0)) for _ in SIZES]
    for number in range(rounds):
        if drawn := algorithm.draw(0, number + 1):
            algorithm = replace(method, **drawn)  # type: ignore[type-var]
        chain = whole.of(algorithm)
        sent = server.pick(algorithm.down).map(lambda v: v.unsqueeze(0))
        ups = []
        for i in range(len(SIZES)):

            def slope(w: Vector, i: int = i) -> Vector:
                return (w - POINTS[i]) @ curve

            up, kept, _ = local_round(algorithm, sent, memories[i], [slope], Slopes(slope))
            flat = up.map(lambda rows: rows[0])
            _, arrived, _ = chain.carry(flat, chain.init(flat), generator(7, number, i))
            memories[i] = algorithm.settle(kept, arrived.map(lambda v: v.unsqueeze(0)))
            ups.append(arrived)
        mean = ups[0].map_named(
            lambda name, _: (
                sum(n * up[name] for n, up in zip(SIZES, ups, strict=True)) / sum(SIZES)  # noqa: B023
            )
        )
        server = server_round(algorithm, server, mean, News(round=number))
    return server


def excess(w: Tensor, curve: Tensor = CURVE) -> float:
    """How far the loss is above its least."""
    return float((w - BEST) @ curve @ (w - BEST) / 2)


@pytest.mark.parametrize("method", [DIANA(lr=0.3, alpha=0.4), EF21(lr=0.3), MARINA(lr=0.3, p=0.3)])
def test_without_compression_it_is_gradient_descent(method: Algorithm, blobs: Dataset) -> None:
    plain = weights(blobs, CSGD(lr=0.3), tau=1, batch=0)
    assert torch.allclose(weights(blobs, method, tau=1, batch=0), plain, rtol=0, atol=1e-12)
    # Further local iterations are more batches at the same point.
    assert torch.allclose(
        weights(blobs, method, tau=3, batch=0, iterations=36), plain, rtol=0, atol=1e-12
    )


def test_acgd_without_compression_is_nesterovs_method() -> None:
    lr = 1 / LARGEST
    q = np.sqrt(LEAST * lr)
    x = y = np.zeros(D)
    a, best = CURVE.numpy(), BEST.numpy()
    for _ in range(30):
        ahead = x - lr * (x - best) @ a
        x, y = ahead + (1 - q) / (1 + q) * (ahead - y), ahead
    found = descend(ACGD(lr=lr, mu=LEAST), 30)
    assert np.abs(found.w.numpy() - x).max() < 1e-12
    assert np.abs(found.y.numpy() - y).max() < 1e-12


def test_acceleration_shows_on_an_ill_conditioned_loss() -> None:
    lr = 1 / LARGEST
    rounds = 400
    slow = excess(descend(DIANA(lr=lr), rounds).w)
    assert excess(descend(ACGD(lr=lr, mu=LEAST), rounds).w) < 1e-3 * slow
    assert excess(descend(ADIANA(lr=lr / 2, mu=LEAST), rounds).w) < 0.1 * slow
    # Also with uploads of which a third travels.
    third = RandK(share=1 / 3)
    omega = 2.0
    compressed = ACGD(lr=lr, mu=LEAST, omega=omega)
    assert excess(descend(ADIANA(lr=lr / 4, mu=LEAST, omega=omega), 3 * rounds, third).w) < slow
    assert compressed.omega == omega


def test_memories_remove_the_noise_of_the_compressor() -> None:
    """With a fixed lr, compressed gradients stay away from the best; differences do not."""
    lr, least, half = 0.1, float(MILD.diagonal().min()), RandK(share=0.5)

    def left(method: Algorithm, part: Transform) -> float:
        return excess(descend(method, 1500, part, curve=MILD).w, MILD)

    away = left(ACGD(lr=lr, mu=1 / lr), half)  # q = 1: gradient descent
    assert away > 1e-4
    assert left(DIANA(lr=lr, alpha=0.5), half) < 1e-12
    assert left(EF21(lr=lr), TopK(share=0.25)) < 1e-12
    assert left(MARINA(lr=lr, p=0.2), half) < 1e-12
    assert left(ADIANA(lr=lr, mu=least, omega=1.0), half) < 1e-12


@pytest.mark.parametrize(
    ("method", "vector"),
    [(DIANA(lr=0.1, alpha=0.4), "h"), (EF21(lr=0.1), "g"), (ADIANA(lr=0.1, mu=0.1), "h")],
)
def test_what_the_server_keeps_is_the_mean_of_what_workers_keep(
    method: Algorithm, vector: str, blobs: Dataset
) -> None:
    plan = plan_of(blobs, method, per_round=2, tau=1)
    plan = replace(plan, scheme=Scheme(method, uplink=Chain((RandK(share=0.5),))))
    state = last(plan)
    sizes = [len(owned) for owned in plan.owned]
    assert len(state.memories) > 2
    total = sum(sizes[worker] * memory[vector] for worker, memory in state.memories.items())
    assert torch.allclose(state.server[vector], total / sum(sizes), rtol=0, atol=1e-12)
    assert state.server[vector].abs().max() > 1e-3


def test_a_round_by_hand() -> None:
    sent, steps = Vectors(w=torch.tensor([[1.0, 2.0]])), 2
    grads = [lambda w: 2 * w, lambda w: 4 * w]
    data = Slopes(torch.ones_like)
    up, kept, _ = local_round(DIANA(), sent, Vectors(h=torch.ones(1, 2)), grads, data)
    assert up.m.tolist() == [[2.0, 5.0]]  # (2 + 4) / 2 (1, 2) - 1
    assert DIANA(alpha=0.5).settle(kept, Vectors(m=torch.tensor([[2.0, 0.0]]))).h.tolist() == [
        [2.0, 1.0]
    ]
    server = DIANA(lr=0.1).init(torch.tensor([1.0, 2.0])).but(h=torch.tensor([1.0, 0.0]))
    new = DIANA(lr=0.1, alpha=0.5).update(
        server, Vectors(m=torch.tensor([2.0, 4.0])), News(share=0.5)
    )
    assert new.w.tolist() == pytest.approx([0.7, 1.6])
    assert new.h.tolist() == [1.5, 1.0]
    up, kept, _ = local_round(EF21(), sent, Vectors(g=torch.ones(1, 2)), grads, data)
    assert EF21().settle(kept, up).g.tolist() == [[3.0, 6.0]]
    new = EF21(lr=0.1).update(
        Vectors(w=torch.zeros(2), g=torch.ones(2)),
        Vectors(m=torch.tensor([2.0, 4.0])),
        News(share=0.5),
    )
    assert new.g.tolist() == [2.0, 3.0]
    assert new.w.tolist() == pytest.approx([-0.2, -0.3])
    # q = 1/2, p = 2, theta = 4/5: y' = 1 - 0.05 = 0.95,
    # z = 1.9 + (0.5 - 2) 2 + 0.5 (0.75 3 + 0.25 1) = 0.15, x = 0.76 + 0.03
    new = ACGD(lr=0.1, mu=2.5, omega=1.0).update(
        Vectors(w=torch.ones(1), y=2 * torch.ones(1), z=3 * torch.ones(1)),
        Vectors(m=torch.ones(1)),
        News(),
    )
    assert [float(new[name]) for name in "yzw"] == pytest.approx([0.95, 0.15, 0.79])
    assert steps == len(grads)


def test_marina_by_hand() -> None:
    sent, steps = Vectors(w=torch.tensor([[1.0, 2.0]]), before=torch.tensor([[3.0, 1.0]])), 2
    grads, data = [lambda w: 2 * w, lambda w: 4 * w], Slopes(torch.ones_like)
    whole, change = MARINA(lr=0.1, p=1.0), MARINA(lr=0.1, p=0.0)
    ups = [local_round(m, sent, Vectors(), grads, data)[0].m.tolist() for m in (whole, change)]
    assert ups == [[[3.0, 6.0]], [[-6.0, 3.0]]]  # 3 w, 3 (w - before)
    server = Vectors(w=torch.ones(2), before=torch.zeros(2), g=torch.tensor([1.0, 2.0]))
    found = [m.update(server, Vectors(m=torch.tensor([4.0, 0.0])), News()) for m in (whole, change)]
    assert [new.g.tolist() for new in found] == [[4.0, 0.0], [5.0, 2.0]]
    assert found[0].w.tolist() == pytest.approx([0.6, 1.0])
    assert found[1].w.tolist() == pytest.approx([0.5, 0.8])
    assert all(torch.equal(new.before, server.w) for new in found)
    assert steps == len(grads)


def test_marinas_coin_belongs_to_seed_and_round() -> None:
    coins = [[MARINA(p=0.25).draw(seed, n)["p"] for n in range(1, 401)] for seed in (0, 1)]
    assert coins[0][0] == coins[1][0] == 1.0
    assert coins[0] != coins[1]
    assert all(70 < sum(thrown) < 130 for thrown in coins)


def test_whole_gradients_go_past_what_compresses_and_are_counted(blobs: Dataset) -> None:
    method = MARINA(lr=0.1, p=0.4)
    thrown = [method.draw(5, number)["p"] for number in range(1, 13)]
    assert 3 < sum(thrown) < 12
    scheme = Scheme(method, uplink=Chain((ErrorFeedback(), TopK(k=2))))
    states = list(simulate(replace(plan_of(blobs, method, tau=1), scheme=scheme)))
    d = len(states[0].server.w)
    short = 2 * 8 + 1  # two numbers, two places of four bits each
    ups = [now.bytes_up - then.bytes_up for then, now in pairwise(states)]
    assert ups == [4 * (8 * d if coin else short) for coin in thrown]
    for (then, now), coin in zip(pairwise(states), thrown, strict=True):
        for key, left in now.residues.items():  # what was left out waits for the next short one
            before = then.residues.get(key, left.map(torch.zeros_like))
            assert torch.equal(left["0.m"], before["0.m"]) == bool(coin)
    # With p 1 nothing is compressed, and what does not save bytes stays where it is.
    plain = weights(blobs, CSGD(lr=0.3), tau=1, batch=0)
    heavy = Scheme(MARINA(lr=0.3, p=1.0), uplink=Chain((TopK(k=1),)))
    full = plan_of(blobs, heavy.algorithm, tau=1, batch=0)
    assert torch.allclose(last(replace(full, scheme=heavy)).server.w, plain, rtol=0, atol=1e-12)
    clipped = Chain((Clip(0.01), TopK(k=1)))
    after = last(replace(full, scheme=Scheme(MARINA(lr=0.3, p=1.0), uplink=clipped)))
    assert 0 < float(after.server.g.norm()) <= 0.01 + 1e-9


def test_adiana_by_hand() -> None:
    method = ADIANA(lr=0.1, mu=0.4, omega=1.0, p=1.0)
    up, _, _ = local_round(
        method,
        Vectors(w=torch.ones(1, 1), u=2 * torch.ones(1, 1)),
        Vectors(h=torch.ones(1, 1)),
        [lambda w: 3 * w],
        Slopes(torch.ones_like),
    )
    assert (float(up.m), float(up.n)) == (2.0, 5.0)
    server = Vectors(**dict(zip("wuyzh", torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]))))  # noqa: B905
    new = method.update(server, Vectors(m=torch.ones(1), n=2 * torch.ones(1)), News(share=0.5))
    theta = 0.2  # sqrt(0.1 0.4 / 1)
    gamma = 0.1 / (2 * (theta + 0.04))
    beta = 1 - 0.4 * gamma
    ahead = 1 - 0.1 * 6
    z = beta * 4 + (1 - beta) * 1 + gamma / 0.1 * (ahead - 1)
    assert float(new.z) == pytest.approx(z)
    assert float(new.u) == 3.0  # the old y
    assert float(new.w) == pytest.approx(theta * z + 3 / 2 + (0.5 - theta) * ahead)
    assert float(new.h) == 5 + 0.5 * 0.5 * 2
    # The coin belongs to the round, and falls as often as it should.
    often = ADIANA(p=0.25)
    moved = [
        float(often.update(server, Vectors(m=torch.ones(1), n=torch.ones(1)), News(round=n)).u) == 3
        for n in range(400)
    ]
    assert 70 < sum(moved) < 130


def test_fedpaq_is_fedavg_with_a_quantised_uplink() -> None:
    small = {"model": "logistic", "iterations": 12, "tau": 4, "workers": 4, "quiet": True}
    small["training"] = {"participants": 2}
    one = fednag.run(FedPAQ(lr=0.1, levels=3), **small)
    two = fednag.run(FedAvg(lr=0.1), uplink=[Quantise(levels=3)], **small)
    assert [r.loss for r in one.records] == [r.loss for r in two.records]
    assert one.records[-1].bytes_up == two.records[-1].bytes_up > 0
    plain = fednag.run(FedAvg(lr=0.1), **small)
    assert one.records[-1].loss != plain.records[-1].loss
    # Sign and two bits a number, and four bytes for the length.
    numbers = plain.records[-1].bytes_up // 4 // 6
    assert one.records[-1].bytes_up == 6 * (-(-3 * numbers // 8) + 4)


def test_rebuilt_momentum_is_fednags_where_it_does_not_change(blobs: Dataset) -> None:
    """With tau 1, no momentum: v is the step. In general it is the mean step of the round."""
    server = FedNAGRebuilt(lr=0.1, momentum=0.0).init(torch.ones(2))
    new = FedNAGRebuilt().update(server, Vectors(w=torch.zeros(2)), News(steps=1))
    assert new.v.tolist() == [-1.0, -1.0]
    both = [weights(blobs, kind(lr=0.1, momentum=0.0), batch=0) for kind in (FedNAG, FedNAGRebuilt)]
    assert torch.equal(*both)
    moving = [weights(blobs, kind(lr=0.1, momentum=0.9)) for kind in (FedNAG, FedNAGRebuilt)]
    assert not torch.allclose(*moving, atol=1e-3)
