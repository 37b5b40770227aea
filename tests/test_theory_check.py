"""The theorems on trajectories: by hand, on quadratics, on data; and violations are caught."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fednag.algorithms import FedNAG
from fednag.core.algorithm import News
from fednag.core.gaps import h
from fednag.core.loop import Scheme
from fednag.core.vectors import Vectors
from fednag.data.dataset import Dataset
from fednag.data.partition import by_class
from fednag.errors import FednagError
from fednag.problems.problem import Problem
from fednag.simulate.run import Plan, simulate
from fednag.theory.bounds import theorem3
from fednag.theory.check import Verdict, verdicts
from fednag.theory.constants import Constants, Measured, largest_eigenvalue, measure, minimise
from fednag.theory.landscape import Landscape, OnData, Quadratics
from fednag.theory.trajectory import Trajectory, centralised_gap, watch
from refusals import refused

near = pytest.approx


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# F_1 = (w - 2)^2 / 2 and F_2 = 3 w^2 / 2: w* = 0.5, F(w*) = 0.75, beta = 3.
PAIR = Quadratics(
    [numbers(1).diag(), numbers(3).diag()], [numbers(2), numbers(0)], numbers(0), (7, 7)
)


def observed(
    landscape: Landscape, algorithm: FedNAG, tau: int, rounds: int
) -> tuple[Trajectory, Constants, dict[str, Verdict]]:
    trajectory = watch(landscape, algorithm, tau, rounds, minimise(landscape).w)
    constants = measure(landscape, trajectory)
    found = verdicts(trajectory, constants, centralised_gap(landscape, algorithm, 20))
    return trajectory, constants, {verdict.claim: verdict for verdict in found}


def failing(found: dict[str, Verdict]) -> list[str]:
    return [claim.split(":")[0] for claim, verdict in found.items() if verdict.verdict == "FAILS"]


def test_two_workers_by_hand() -> None:
    """eta 0.1, gamma 0.5, from w = 0: one worker goes 0, 0.3, 0.605, the other stays.

    The virtual update goes 0, 0.15, 0.28 with slopes -1, -0.7, -0.44; the mean 0, 0.15, 0.3025.
    """
    trajectory, constants, found = observed(PAIR, FedNAG(0.1, 0.5), tau=2, rounds=1)
    assert [m.gap for m in trajectory.moments] == near([0, 0, 0.0225], abs=1e-15)
    assert trajectory.moments[2].worker_gaps == near((0.325, 0.28))
    assert [m.steepness for m in trajectory.moments] == near([1, 0.7, 0.44])
    assert trajectory.moments[2].momentum_gap == near(0.135 - 0.12)
    assert trajectory.lowest == near(0.75)
    assert trajectory.moments[0].loss == near(1.0)
    assert constants.beta.value == near(3)
    assert constants.rho.value == near(1)
    assert constants.delta_i == near((1.28, 1.28))  # |1.72 - 0.44| at w = 0.28
    assert constants.p.value == near(0.5 * 0.12 / (0.1 * 0.44))
    assert constants.omega.value == near(4)
    claim = "Theorem 1: ||w(t) - w_[k](t)|| <= h"
    assert found[claim].measured == near(0.0225)
    assert found[claim].bound == near(1.5**2 * 0.1**2 * 3 * 1.28)
    assert not failing(found)


def test_known_divergence_of_one_hessian() -> None:
    """With one Hessian, delta_i is ||H (c_i - c)|| everywhere, and the mean never drifts."""
    hessian = numbers(2, 1).diag()
    centres = [numbers(1, 0), numbers(-2, 3)]
    landscape = Quadratics([hessian, hessian], centres, numbers(5, 5), (2, 1))
    trajectory, constants, found = observed(landscape, FedNAG(0.05, 0.6), tau=4, rounds=5)
    mean = numbers(0, 1)
    assert constants.delta_i == near([float((hessian @ (c - mean)).norm()) for c in centres])
    assert max(m.gap for m in trajectory.moments) < 1e-13
    assert h(4, 0.05, 2.0, 0.6, constants.delta.value) > 0.01
    assert not failing(found)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_everything_holds_on_quadratics(
    seed: int, part: float, gamma: float, tau: int, workers: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    roots = [normal(3, 3) for _ in range(workers)]
    landscape = Quadratics(
        [root @ root.T for root in roots],
        [normal(3) for _ in roots],
        3 * normal(3),
        tuple(int(n) for n in torch.randint(1, 9, (workers,), generator=draw)),
    )
    eta = part / (landscape.exact_beta() * (gamma + 1))
    _, _, found = observed(landscape, FedNAG(eta, gamma), tau, rounds=6)
    assert not failing(found)


@pytest.fixture(params=["mse", "cross-entropy"])
def on_data(request: pytest.FixtureRequest, blobs: Dataset) -> OnData:
    return made(blobs, request.param)


def made(blobs: Dataset, loss: str) -> OnData:
    torch.manual_seed(0)
    problem = Problem(blobs, nn.Sequential(nn.Linear(4, 3)), loss, dtype=torch.float64)
    return OnData(problem, by_class(blobs.y.numpy(), 3, 2, seed=0).workers)


def test_everything_holds_on_data(on_data: OnData) -> None:
    trajectory, constants, found = observed(on_data, FedNAG(0.05, 0.4), tau=4, rounds=8)
    assert not failing(found)
    assert constants.delta.value > 0.01
    assert found["Theorem 1: ||w(t) - w_[k](t)|| <= h"].tests == 8 * 5
    assert found["Theorem 3: F(w^f) - F(w*), alpha tight"].verdict == "holds"
    assert found["Theorem 3: F(w^f) - F(w*), alpha paper"].verdict == "vacuous"
    assert "alpha is -0." in found["Theorem 3: F(w^f) - F(w*), alpha paper"].note
    assert trajectory.ends[-1].loss > trajectory.lowest


def test_the_run_is_the_one_simulate_does(on_data: OnData, blobs: Dataset) -> None:
    algorithm, partition = FedNAG(0.05, 0.7), by_class(blobs.y.numpy(), 3, 2, seed=0)
    trajectory = watch(on_data, algorithm, 4, 3, on_data.start)
    plan = Plan(
        on_data.problem, partition, Scheme(algorithm), tau=4, iterations=12, batch=0, seed=0
    )
    states = list(simulate(plan))
    assert len(states) == len(trajectory.visited) == 4
    for state, w in zip(states, trajectory.visited, strict=True):
        assert torch.allclose(state.server.w, w, rtol=0, atol=1e-13)
        assert state.record is not None
        assert state.record.loss == near(on_data.loss(w), rel=1e-12)


def test_curvature_is_exact_or_found_by_power_iteration(blobs: Dataset) -> None:
    linear, logistic = made(blobs, "mse"), made(blobs, "cross-entropy")
    hessians = [dense_hessian(linear, worker) for worker in range(3)]
    largest = [float(torch.linalg.eigvalsh(hessian)[-1]) for hessian in hessians]
    assert linear.exact_beta() == near(max(largest))
    for worker in range(3):
        found = largest_eigenvalue(linear, worker, linear.start, tolerance=1e-12, most=2000)
        assert found == near(largest[worker], rel=1e-6)
    curved = [float(torch.linalg.eigvalsh(dense_hessian(logistic, i))[-1]) for i in range(3)]
    found = [largest_eigenvalue(logistic, i, logistic.start, 1e-12, 2000) for i in range(3)]
    assert found == near(curved, rel=1e-6)
    assert logistic.exact_beta() is None
    assert logistic.most_beta() >= max(curved)


def dense_hessian(landscape: OnData, worker: int) -> Tensor:
    """By differences of gradients: exact enough for eigenvalues."""
    steps = torch.eye(len(landscape.start), dtype=torch.float64) * 1e-5
    rows = [
        (
            landscape.slope(worker, landscape.start + s)
            - landscape.slope(worker, landscape.start - s)
        )
        for s in steps
    ]
    return torch.stack(rows) / 2e-5


def test_the_minimum_is_one(on_data: OnData) -> None:
    found = minimise(on_data)
    assert found.found
    assert found.flatness < 1e-6
    for seed in range(3):
        push = torch.randn(len(found.w), generator=torch.Generator().manual_seed(seed)).double()
        assert on_data.loss(found.w + 0.01 * push) > found.loss


def test_classes_that_can_be_separated_have_no_minimum() -> None:
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1])
    data = Dataset("apart", x, y, x, y, classes=2)
    problem = Problem(data, nn.Linear(1, 2), "cross-entropy", dtype=torch.float64)
    found = minimise(OnData(problem, [np.arange(4)]))
    assert not found.found
    assert "there is no minimum" in found.how


def test_only_convex_models_in_double_precision(blobs: Dataset) -> None:
    deep = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    for module, kind, sentence in (
        (deep, torch.float64, "convex"),
        (nn.Linear(4, 3), torch.float32, "float64"),
    ):
        problem = Problem(blobs, module, dtype=kind)
        with pytest.raises(FednagError, match=sentence):
            OnData(problem, [np.arange(75)])


def test_a_run_that_diverges_is_a_sentence() -> None:
    with refused("algorithm.lr"):
        watch(PAIR, FedNAG(1e200, 0.5), 2, 3, numbers(0.5))


@dataclass(frozen=True)
class Forgetful(FedNAG):
    """Half of the momentum is lost whenever the server averages."""

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return server.but(w=mean.w, v=mean.v / 2)


@dataclass(frozen=True)
class Hasty(FedNAG):
    """Workers start from more momentum than they were sent."""

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return sent.but(v=5 * sent.v)


def test_a_broken_server_rule_is_caught() -> None:
    _, _, found = observed(PAIR, Forgetful(0.1, 0.5), tau=2, rounds=4)
    assert failing(found) == ["Proposition 1"]


def test_a_broken_worker_rule_is_caught() -> None:
    _, _, found = observed(PAIR, Hasty(0.05, 0.5), tau=2, rounds=4)
    assert {"Theorem 1", "Lemma 2", "Lemma 3", "Proposition 1"} <= set(failing(found))


def test_constants_that_are_too_small_are_caught() -> None:
    trajectory, constants, found = observed(PAIR, FedNAG(0.1, 0.3), tau=5, rounds=4)
    assert not failing(found)

    def again(**changed: Measured) -> list[str]:
        other = replace(constants, **changed)
        return failing({v.claim: v for v in verdicts(trajectory, other, 0.0)})

    small = Measured(constants.delta.value / 6, "planted")
    assert again(delta=small) == ["Theorem 1", "Lemma 3"]
    assert "Theorem 1" in again(beta=Measured(0.5, "planted"))
    assert "F(w(k tau)) - F(w_[k](k tau)) <= rho h(tau)" in again(rho=Measured(1e-3, "planted"))
    far = Measured(1e3 * constants.omega.value, "planted")
    nothing = Measured(0.0, "planted")
    assert "Theorem 3" in again(omega=far, rho=nothing, p=nothing)


def test_a_gap_above_its_bound_is_caught() -> None:
    trajectory, constants, _ = observed(PAIR, FedNAG(0.1, 0.3), tau=3, rounds=2)
    moments = list(trajectory.moments)
    reach = float(h(3, 0.1, 3.0, 0.3, constants.delta.value))
    moments[3] = replace(moments[3], gap=reach * 1.001)
    doctored = replace(trajectory, moments=tuple(moments))
    (first, *_) = verdicts(doctored, constants, 0.0)
    assert (first.verdict, first.note) == ("FAILS", "1 of 8 fail")
    assert first.slack == near(1 / 1.001)


def test_the_measured_alpha_is_the_least_descent() -> None:
    trajectory, constants, _ = observed(PAIR, FedNAG(0.1, 0.3), tau=3, rounds=2)
    first, second = trajectory.moments[:2]
    fall = (first.virtual_loss - second.virtual_loss) / first.steepness**2
    assert constants.descent.value <= fall + 1e-15
    setting = constants.setting(0.1, 0.3, 3)
    assert constants.descent.value >= setting.alpha("tight") - 1e-12
    given_alpha = theorem3(setting, 6, descent=constants.descent.value).value
    other = theorem3(setting, 6, "tight").value
    assert given_alpha is not None
    assert other is not None
    assert given_alpha <= other
