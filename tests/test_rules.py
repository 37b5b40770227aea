"""Each rule against numbers computed by hand.

Two workers on the line, D = (1, 3), gradients w - 4 and 2 w + 4, from w = 1 with lr 1/10 and
momentum 1/2, two local iterations, two rounds. FedAvg's first round, for example: worker 1 goes
1, 1.3, 1.57; worker 2 goes 1, 0.4, -0.08; the mean is (1.57 - 3 * 0.08) / 4 = 0.3325. The numbers
below are exact fractions of such sums. Further numbers of a method differ from these and from
each other.
"""

from __future__ import annotations

import pytest

from fednag.algorithms import (
    ACGD,
    ADIANA,
    ALGORITHMS,
    CNAG,
    CSGD,
    DIANA,
    DOMO,
    EF21,
    GHBM,
    MARINA,
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
    FedNAGLocal,
    FedNAGRebuilt,
    FedNova,
    FedPAQ,
    FedProx,
    FedYogi,
    HierMo,
    LocalGHBM,
    Mime,
    MimeLite,
    NbAFL,
    Scaffold,
    ScaffoldM,
    SlowMo,
)
from fednag.core.algorithm import Algorithm
from rules import play

FULL = [lambda w: w - 4, lambda w: 2 * w + 4]
# Mime's correction shows only where a mini-batch bends differently from the whole.
BATCH = [lambda w: 1.5 * w - 4, lambda w: 3 * w + 4]

HAND: list[tuple[Algorithm, dict[str, float]]] = [
    (FedAvg(lr=0.1), {"w": -19691 / 160000}),
    (CSGD(lr=0.1), {"w": -19691 / 160000}),
    (FedNAG(lr=0.1, momentum=0.5), {"w": -1766261 / 2560000, "v": -394767 / 1280000}),
    (CNAG(lr=0.1, momentum=0.5), {"w": -1766261 / 2560000, "v": -394767 / 1280000}),
    (FedNAGLocal(lr=0.1, momentum=0.5), {"w": -1746011 / 2560000}),
    (FedMom(lr=0.1, momentum=0.5), {"w": -443219 / 640000}),
    (SlowMo(lr=0.1, momentum=0.5), {"w": -73091 / 160000, "v": 126291 / 16000}),
    (
        SlowMo(lr=0.1, momentum=0.5, slow_lr=0.5),
        {"w": 139909 / 640000, "v": 286491 / 32000},
    ),
    (
        FedAvgM(lr=0.1, momentum=0.5, server_lr=0.5),
        {"w": 139909 / 640000, "v": 286491 / 320000},
    ),
    (FedProx(lr=0.1, mu=1.0), {"w": -71 / 1000}),
    (MimeLite(lr=0.1, momentum=0.5), {"w": 437989 / 2560000, "v": 32031 / 12800}),
    (Mime(lr=0.1, momentum=0.5), {"w": 5941421 / 32768000, "v": 51321 / 20480}),
    (Scaffold(lr=0.1, server_lr=0.5), {"w": 241759 / 640000, "c": 184641 / 64000}),
    (
        FedAdam(lr=0.1, momentum=0.5, second=0.8, server_lr=0.3, adaptivity=0.25),
        {"w": 0.6305246156139336, "m": -0.475110632669119, "s": 0.1872963641975457},
    ),
    (FedNAGRebuilt(lr=0.1, momentum=0.5), {"w": -3655777 / 5120000, "v": -3486177 / 10240000}),
    (FedPAQ(lr=0.1), {"w": -19691 / 160000}),  # its transforms are not played here
    # Without compression these descend along (7 w + 8) / 4, once a round.
    (DIANA(lr=0.1, alpha=0.5), {"w": 0.315625, "h": 2.484375}),
    (EF21(lr=0.1), {"w": 0.315625, "g": 3.09375}),
    (MARINA(lr=0.1, p=1e-9), {"w": 0.315625, "g": 3.09375, "before": 0.625}),
    (ACGD(lr=0.1, mu=2.5, omega=1.0), {"w": 0.551125, "y": 0.6071875, "z": 0.326875}),
    (
        ADIANA(lr=0.1, mu=0.4, omega=1.0, p=1.0),
        {"w": 0.3491223958333333, "y": 0.40328125, "u": 0.625, "h": 2.8125},
    ),
    (
        HierMo(lr=0.1, momentum=0.5, edge_momentum=0.5),
        {"w": -14429879 / 10240000, "v": -506871 / 2560000, "p": -4866493 / 5120000},
    ),
    (MFL(lr=0.1, momentum=0.5), {"w": -27269 / 40000, "v": -0.36135}),
    (FedCM(lr=0.1, momentum=0.5, server_lr=0.8), {"w": 5364781 / 16000000}),
    (
        FedADC(lr=0.1, momentum=0.5, local_momentum=0.25, server_lr=0.8),
        {"w": -0.18768275},
    ),
    (
        DOMO(lr=0.1, momentum=0.5, local_momentum=0.25, fusion=0.125, server_lr=0.8),
        {"w": -5437409 / 16000000},
    ),
    (GHBM(lr=0.1, momentum=0.5, window=1), {"w": -0.427615625}),
    # Its momentum begins after the second round.
    (GHBM(lr=0.1, momentum=0.5, window=2), {"w": -19691 / 160000, "m": -179691 / 640000}),
    (LocalGHBM(lr=0.1, momentum=0.5, participation=0.25), {"w": -254983 / 1280000}),
    (FedHBM(lr=0.1, momentum=0.5, participation=0.25), {"w": -90329 / 640000}),
    (ScaffoldM(lr=0.1, momentum=0.25, server_lr=0.5), {"w": 0.45068859252929685}),
    (FedACG(lr=0.1, momentum=0.5, mu=0.25), {"w": -6914423 / 10240000}),
    (STEM(lr=0.1, momentum=0.5), {"w": -4799 / 40000}),
    (FedGLOMO(lr=0.1, momentum=0.5), {"w": -19691 / 160000}),  # full batches: FedAvg
    (
        FedYogi(lr=0.1, momentum=0.5, second=0.8, server_lr=0.3, adaptivity=0.25),
        {"w": 0.6471912673837059},
    ),
    (
        FedAdagrad(lr=0.1, momentum=0.5, server_lr=0.3, adaptivity=0.25),
        {"w": 0.775404122070633},
    ),
    (
        DiLoCo(
            lr=0.1,
            momentum=0.5,
            server_lr=0.8,
            first=0.25,
            second=0.75,
            epsilon=0.125,
            weight_decay=0.3,
        ),
        {"w": 0.6123588939240409},
    ),
    (FedLion(lr=0.1, momentum=0.5, decay=0.25, weight_decay=0.3), {"w": 0.64561416}),
    (FedNova(lr=0.1, momentum=0.5), {"w": -14549 / 40000}),
    (FedExP(lr=0.1, epsilon=0.01), {"w": -0.3821870441036771}),
    (NbAFL(lr=0.1, mu=1.0, norm=0.6), {"w": -0.293175}),  # its noise is not played here
    (FedDyn(lr=0.1, alpha=0.25), {"w": -1803031 / 1280000}),
]


@pytest.mark.parametrize(("algorithm", "expected"), HAND, ids=lambda x: str(x)[:40])
def test_two_workers_by_hand(algorithm: Algorithm, expected: dict[str, float]) -> None:
    batch = BATCH if isinstance(algorithm, Mime) else FULL
    server, _ = play(algorithm, rounds=2, tau=2, sizes=(1, 3), batch=batch, full=FULL)
    assert {name: server[name].item() for name in expected} == pytest.approx(expected, rel=1e-12)


def test_every_algorithm_is_computed_by_hand() -> None:
    assert {type(algorithm) for algorithm, _ in HAND} == set(ALGORITHMS.values())


def test_scaffold_workers_keep_their_variates() -> None:
    algorithm = Scaffold(lr=0.1, server_lr=0.5)
    _, memories = play(algorithm, rounds=2, tau=2, sizes=(1, 3), batch=FULL, full=FULL)
    kept = [memory.c.item() for memory in memories]
    assert kept == pytest.approx([-55623 / 16000, 10011 / 2000], rel=1e-12)


def test_adam_starts_from_its_adaptivity() -> None:
    import torch

    assert FedAdam(adaptivity=0.5).init(torch.ones(1)).s.item() == 0.25
