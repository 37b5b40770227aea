"""Adaptive tau: against the rule written a second time, limits, and budgets never overspent."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

import fednag
from fednag import Algorithm, FedAvg, FedNAG, Vectors, theory
from fednag.aggregators import Mean
from fednag.algorithms import ALGORITHMS
from fednag.config import parse
from fednag.config.parts import scheme_of
from fednag.controllers import AdaptiveTau, Constant, Cosine, PowerOfChoice
from fednag.core.controller import Controller
from fednag.core.ending import Ending
from fednag.core.executor import Exchange, Executor
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data.dataset import Dataset
from fednag.flower.settings import read_run_config
from fednag.simulate.run import Plan, simulate
from fednag.transforms import Clip, Quantise
from flower_kit import config_of, gap, grid_of, play, simulated
from refusals import refused
from test_parts import gradients_of, near, plan_of, states

SIZES = np.array([36, 18, 12, 9])  # of plan_of's workers


def taus(found: list[State]) -> list[int]:
    """What was ordered, round by round."""
    return [state.control["tau"] for state in found[1:]]


# The rule, written a second time


Known = dict[str, float]


def twin(
    rule: AdaptiveTau,
    known: Known,
    c: float,
    b: float,
    eta: float,
    gamma: float,
    most: int,
) -> int:
    """As Wang et al. print it, one tau after the other, with the printed forms of h."""
    rho, beta, delta = known["rho"], known["beta"], known["delta"]
    best, least = 1, float("inf")
    for tau in range(1, most + 1):
        if rule.h == "fednag" and gamma:
            apart = theory.h_closed(tau, eta, beta, gamma, delta)
        else:
            apart = theory.h_hat_closed(tau, eta, beta, delta)
        apart = max(apart, 0.0)  # where digits are lost
        T = (rule.budget - b - c) * tau / (c * tau + b)
        root = np.sqrt(1 + 4 * T**2 * eta * rule.phi * rho * apart / tau)
        value = (1 + root) / (2 * T * eta * rule.phi) + rho * apart
        if value < least * (1 - 1e-9):
            best, least = tau, value
    return best


@given(
    some.sampled_from(["fedavg", "fednag"]),
    some.tuples(*[some.floats(0.05, 5.0)] * 3),
    some.floats(0.5, 3.0),
    some.floats(0.1, 50.0),
    some.floats(0.005, 0.1),
    some.floats(0.1, 0.9),
    some.integers(1, 60),
)
@settings(max_examples=60)
def test_the_choice_is_that_of_the_printed_rule(
    h: Any, estimates: tuple[float, ...], c: float, b: float, eta: float, gamma: float, most: int
) -> None:
    rule = AdaptiveTau(budget=3000.0, unit="iterations", h=h, phi=0.1)
    known = dict(zip(("rho", "beta", "delta"), estimates, strict=True))
    ours, theirs = (f(known, c, b, eta, gamma, most) for f in (rule.choice, _bound_to(rule)))
    if ours != theirs:  # two of them are equal but for rounding
        few = {**known}
        a, z = (_value(rule, few, c, b, eta, gamma, tau) for tau in (ours, theirs))
        assert a == pytest.approx(z, rel=1e-6)


def _bound_to(rule: AdaptiveTau) -> Any:
    return lambda *numbers: twin(rule, *numbers)


def _value(
    rule: AdaptiveTau,
    known: Known,
    c: float,
    b: float,
    eta: float,
    gamma: float,
    tau: int,
) -> float:
    momentum = gamma if rule.h == "fednag" else 0.0
    apart = float(theory.h(tau, eta, known["beta"], momentum, known["delta"]))
    T = (rule.budget - b - c) * tau / (c * tau + b)
    u = 1 / (2 * T * eta * rule.phi)
    return u + np.sqrt(u**2 + known["rho"] * apart / (eta * rule.phi * tau)) + known["rho"] * apart


def losses_of(plan: Plan, w: Tensor) -> list[float]:
    """Each worker's loss at ``w``, by torch alone."""
    found = []
    for held in plan.partition.workers:
        module = plan.problem.module_at(w).eval()
        x, y = plan.problem.features(plan.problem.x[held]), plan.problem.y[held]
        found.append(float(nn.functional.cross_entropy(module(x), y).detach()))
    return found


@pytest.mark.parametrize("h", ["fedavg", "fednag"])
def test_a_run_by_hand(blobs: Dataset, h: Any) -> None:
    """FedNAG with full batches: workers, server, estimates and the choice, by torch and numpy."""
    eta, gamma, most = 0.05, 0.5, 40
    rule = AdaptiveTau(budget=float(most), unit="iterations", h=h, phi=0.5, aggregation=2.0)
    plan = plan_of(blobs, Scheme(FedNAG(lr=eta, momentum=gamma), rule), batch=0, iterations=most)
    found = list(simulate(plan))
    w, shares = plan.problem.initial, SIZES / SIZES.sum()
    v, chosen, spent = torch.zeros_like(w), 1, 0.0
    known: Known = {}
    series = []
    while spent + 3 <= most:
        if known:
            chosen = twin(rule, known, 1.0, 2.0, eta, gamma, min(10 * chosen, 100))
        tau = min(chosen, int(most - spent - 2))
        series.append(tau)
        before, ends = gradients_of(plan, w), []
        mean = sum(p * g for p, g in zip(shares, before, strict=True))
        estimates = []
        for i in range(4):
            own, speed = w, v
            for _ in range(tau):
                g = gradients_of(plan, own)[i]
                speed = gamma * speed - eta * g
                own = own + gamma * speed - eta * g
            far = float((own - w).norm())
            rho = abs(losses_of(plan, own)[i] - losses_of(plan, w)[i]) / far
            beta = float((gradients_of(plan, own)[i] - before[i]).norm()) / far
            estimates.append((rho, beta, float((before[i] - mean).norm())))
            ends.append((own, speed))
        w = sum(p * end[0] for p, end in zip(shares, ends, strict=True))
        v = sum(p * end[1] for p, end in zip(shares, ends, strict=True))
        means = shares @ np.array(estimates)
        known = dict(zip(("rho", "beta", "delta"), means.tolist(), strict=True))
        spent += tau + 2
    assert taus(found) == series
    assert len(set(series)) > 2
    assert near(found[-1].server.w, w, 1e-9)
    assert found[-1].ended == Ending("budget", int(spent - 2 * len(series)), "iterations", most)


def test_fednags_h_grows_faster_and_gives_a_smaller_tau() -> None:
    known, numbers = {"rho": 1.0, "beta": 2.0, "delta": 1.0}, (1.0, 20.0, 0.01, 0.9, 100)
    rule = AdaptiveTau(budget=5000.0, unit="iterations", phi=0.1)
    ours = replace(rule, h="fednag").choice(known, *numbers)
    assert 1 < ours < rule.choice(known, *numbers)
    still = (1.0, 20.0, 0.01, 0.0, 100)  # without momentum it is FedAvg's
    assert replace(rule, h="fednag").choice(known, *still) == rule.choice(known, *still)


# Limits


def test_limits_of_the_choice() -> None:
    rule = AdaptiveTau(budget=1e6, unit="iterations")
    known = {"rho": 1.0, "beta": 2.0, "delta": 1.0}
    found = [rule.choice(known, 1.0, b, 0.01, 0.0, 100) for b in (0.0, 1.0, 1e2, 1e4, 5e5)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 100)  # free rounds, and rounds that cost half the budget
    apart = [rule.choice({**known, "delta": d}, 1.0, 1e3, 0.01, 0.0, 100) for d in (0, 0.01, 1, 99)]
    assert apart == sorted(apart, reverse=True)
    assert (apart[0], apart[-1]) == (100, 1)
    assert rule.choice({**known, "delta": 0.0}, 1.0, 0.0, 0.01, 0.0, 100) == 1  # of many, the first


def test_in_runs_free_rounds_give_tau_1_and_dear_ones_longer_rounds(blobs: Dataset) -> None:
    known: dict[str, Any] = {"unit": "iterations", "phi": 0.5}
    free, dear = (
        states(blobs, Scheme(FedAvg(lr=0.1), rule), iterations=30, batch=0)
        for rule in (
            AdaptiveTau(budget=30.0, aggregation=0.0, **known),
            AdaptiveTau(budget=1530.0, aggregation=500.0, **known),
        )
    )
    assert set(taus(free)) == {1}
    assert taus(dear)[:2] == [1, 7]


def test_a_schedule_of_lr_reaches_the_choice(blobs: Dataset) -> None:
    rule = AdaptiveTau(budget=80.0, unit="iterations", aggregation=5.0, phi=0.5)
    falls = Cosine("algorithm.lr", last=0.001)
    scheme = Scheme(FedAvg(lr=0.3), rule, schedules=(falls,))
    found = states(blobs, scheme, iterations=60, batch=0)
    unlike = 0
    for before, state in pairwise(found[1:]):
        known, most = state.control["known"], min(10 * before.control["choice"], 100)
        eta = falls.at(0.3, before.iteration / 60)
        assert state.control["choice"] == rule.choice(known, 1.0, 5.0, eta, 0.0, most)
        unlike += state.control["choice"] != rule.choice(known, 1.0, 5.0, 0.3, 0.0, most)
    assert unlike


# Budgets


class Random(Executor):
    """A clock of random times: arrivals, and what aggregating takes."""

    seed = 0

    def __init__(self, inner: Executor) -> None:
        self.inner, self.held = inner, inner.held

    def exchange(self, *given: Any) -> Any:
        return self.inner.exchange(*given)

    def _rng(self, asked: Exchange) -> np.random.Generator:
        return np.random.default_rng([self.seed, asked.round, asked.place])

    def arrivals(self, asked: Exchange, now: float) -> Any:
        each = self._rng(asked).lognormal(0.0, 1.0, len(asked.workers))
        return now + each * (1.0 + asked.steps)

    def aggregation(self, asked: Exchange) -> float:
        return float(self._rng(asked).exponential(2.0))


@pytest.mark.parametrize("seed", range(6))
def test_seconds_are_never_overspent(blobs: Dataset, seed: int) -> None:
    """Whatever rounds take: what would be over too late is lost."""

    class Clock(Random):
        pass

    Clock.seed = seed
    budget = float(np.random.default_rng(seed).uniform(0.5, 150))
    rule = AdaptiveTau(budget=budget, unit="seconds", phi=0.5)
    pace = np.full(4, 1.0)
    found = states(
        blobs, Scheme(FedAvg(lr=0.1), rule), clock=Clock, pace=pace, iterations=10_000, per_round=2
    )
    assert max(state.clock for state in found) <= budget
    assert found[-1].ended is not None
    assert found[-1].ended.kind == "budget"
    assert found[-1].record is not None
    late = [state for state in found if state.clock == budget]
    for state in late:  # nothing of it is in the model
        assert torch.equal(state.server.w, found[state.round - 1].server.w)


def test_who_is_there_before_the_budget_is_over_counts(blobs: Dataset) -> None:
    """Worker 3 is slow: the last round goes on without it, where aggregating takes no time."""

    class Slow(Random):
        def arrivals(self, asked: Exchange, now: float) -> Any:
            return now + np.where(asked.workers == 3, 30.0, 1.0)

        def aggregation(self, asked: Exchange) -> float:
            return 0.0

    rule = AdaptiveTau(budget=45.0, unit="seconds")  # to ask takes 30 seconds, to train 30 more
    found = states(blobs, Scheme(FedAvg(lr=0.1), rule), clock=Slow, pace=np.full(4, 0.1))
    assert [state.clock for state in found] == [0.0, 45.0]
    assert found[1].news.missed == (3,)
    assert not torch.equal(found[1].server.w, found[0].server.w)


@pytest.mark.parametrize("name", ["fedavg", "fednag", "mime", "marina"])
@pytest.mark.parametrize("rounds", [0.5, 1.0, 3.5])
def test_bytes_are_never_overspent_and_the_last_round_is_one_that_fits(
    blobs: Dataset, name: str, rounds: float
) -> None:
    method = ALGORITHMS[name]()
    more = (Clip(1.0), Quantise(levels=4)) if name == "fedavg" else ()
    uplink = Chain((*method.channel, *more))
    cost = plan_of(blobs, Scheme(method, AdaptiveTau(budget=1.0), uplink)).setting.bytes
    assert cost is not None
    budget = rounds * 2 * cost
    scheme = Scheme(method, AdaptiveTau(budget=budget), uplink)
    found = states(blobs, scheme, per_round=2, iterations=10_000)
    spent = found[-1].bytes_up + found[-1].bytes_down
    assert spent <= budget
    assert found[-1].ended == Ending("budget", found[-1].iteration, "bytes", budget)
    if name != "marina":  # whose rounds are whole only now and then
        assert spent == int(rounds) * 2 * cost
    else:
        assert budget - spent < 2 * cost


@pytest.mark.parametrize("controller", [Constant(), PowerOfChoice(candidates=3)])
@pytest.mark.parametrize("rounds", [0.5, 1.0, 2.9, 7.0])
def test_any_run_ends_before_it_sends_too_much(
    blobs: Dataset, controller: Controller, rounds: float
) -> None:
    """stop.bytes, with whatever controller; a first round that asks more costs more."""
    scheme = Scheme(FedNAG(), controller)
    (_, first, *_) = states(blobs, scheme, per_round=2)
    most = int(rounds * (first.bytes_up + first.bytes_down))
    found = states(blobs, scheme, per_round=2, iterations=10_000, stop_bytes=most)
    assert found[-1].bytes_up + found[-1].bytes_down <= most
    assert found[-1].round == int(rounds)
    assert found[-1].ended == Ending("budget", 3 * int(rounds), "bytes", most)
    assert found[-1].record is not None


@pytest.mark.parametrize("budget", [1.0, 2.5, 41.0, 73.25])
def test_iterations_are_never_overspent_and_the_last_round_is_cut(
    blobs: Dataset, budget: float
) -> None:
    rule = AdaptiveTau(budget=budget, unit="iterations", aggregation=1.5, phi=0.5)
    found = states(blobs, Scheme(FedAvg(lr=0.1), rule), iterations=10_000)
    spent = found[-1].iteration + 1.5 * found[-1].round
    assert spent <= budget < spent + 2.5  # not one more iteration, with its aggregation
    assert found[-1].iteration == sum(taus(found))


@pytest.mark.parametrize("name", ["fednag", "mime"])
@pytest.mark.parametrize("unit", ["seconds", "bytes"])
def test_it_goes_on_to_the_same_bits(blobs: Dataset, name: str, unit: Any) -> None:
    rule = AdaptiveTau(budget=300.0 if unit == "seconds" else 2e4, unit=unit, phi=0.5)
    more = {"clock": Random, "pace": np.full(4, 1.0)} if unit == "seconds" else {}
    scheme = Scheme(ALGORITHMS[name](), rule)
    options: dict[str, Any] = {"per_round": 3, "iterations": 200, **more}
    whole = states(blobs, scheme, **options)
    middle = whole[len(whole) // 2]
    assert middle.control["known"]
    middle = replace(middle, control=json.loads(json.dumps(middle.control, allow_nan=False)))
    again = list(simulate(plan_of(blobs, scheme, **options), middle))
    for ours, theirs in zip(again[1:], whole[middle.round + 1 :], strict=True):
        assert ours.control == theirs.control
        assert torch.equal(ours.server.w, theirs.server.w)
        assert ours.ended == theirs.ended


def test_silos_do_the_same_taus(tmp_path: Path) -> None:
    config = config_of(
        tmp_path / "flower", algorithm__name="fednag", controller__kind="adaptive-tau",
        controller__budget=3e5, controller__h="fednag", controller__phi=0.5, rounds=40,
    )  # fmt: skip
    run = play(config, grid_of(config))
    here = simulated(read_run_config(config), tmp_path / "here")
    assert gap(run, here) < 1e-12
    facts = [[f for r in one.records for f in r.rounds] for one in (run, here)]
    assert [f.steps for f in facts[0]] == [f.steps for f in facts[1]]
    assert len({f.steps for f in facts[0]}) > 1
    assert str(run.ending) == str(here.ending)
    assert run.ending.kind == "budget"
    ours, theirs = run.records[-1], here.records[-1]
    assert ours.bytes_up + ours.bytes_down == theirs.bytes_up + theirs.bytes_down <= 3e5


@dataclass(frozen=True)
class Fixed(Algorithm):
    """A method without a learning rate."""

    def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - 0.1 * grad(local.w))


def test_what_it_cannot_decide(blobs: Dataset, tmp_path: Path) -> None:
    def scheme(algorithm: str = "fednag", **numbers: Any) -> Scheme:
        table = {"kind": "adaptive-tau", "budget": 1e6, **numbers}
        return scheme_of(parse({"algorithm": {"name": algorithm}, "controller": table}), FedNAG())

    assert scheme().aggregator == Mean()
    with refused("controller.kind", "no clock"):
        scheme(unit="seconds")
    with refused("controller.budget"):
        scheme(budget=0.0)
    with refused("controller.kind", "has no lr"):
        AdaptiveTau(budget=1e6).check(Fixed(), plan_of(blobs, Scheme(Fixed())).setting)
    with refused("controller.unit", "not known beforehand"):
        fednag.run(
            uplink=["quantise", "entropy"],
            model="logistic",
            controller={"kind": "adaptive-tau", "budget": 1e6},
            out=tmp_path,
        )
    assert not list(tmp_path.iterdir())  # no run was begun
