"""Trust: scores by hand, the plain run without it, and who never answers is asked less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fednag import FedAvg, News
from fednag.algorithms import ALGORITHMS
from fednag.controllers import Trust
from fednag.core.controller import Setting
from fednag.core.executor import Answers, Exchange, Executor
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.simulate.run import simulate
from test_parts import plan_of, states

FEDERATED = [name for name, cls in ALGORITHMS.items() if not cls.pooled]
SETTING = Setting(5, 3, 12, 2, np.array([36, 18, 12, 9]))


def test_scores_by_hand() -> None:
    """Two rounds: worker 0 misses, 1 is refused, 2 halves its quality, 3 improves; then only 2."""
    rule = Trust(forget=0.5)
    state = {**rule.init(), "asked": [0, 1, 2, 3]}
    told = {1: {"before": 2.0, "after": 1.0}, 2: {"before": 1.0, "after": 2.0},
            3: {"before": 2.0, "after": 1.0}}  # fmt: skip
    state = rule.learnt(state, News(missed=(0,), refused=(1,), told=told), 4)
    assert (state["good"], state["bad"]) == ([0, 0, 0.5, 1], [1, 1, 0.5, 0])
    assert rule.scores(state).tolist() == [1 / 3, 1 / 3, 1.5 / 3, 2 / 3]
    told = {2: {"before": 1.0, "after": 4.0}}
    state = rule.learnt({**state, "asked": [2]}, News(told=told), 4)
    assert (state["good"], state["bad"]) == ([0, 0, 0.5, 0.5], [0.5, 0.5, 1, 0])
    assert rule.scores(state).tolist() == [1 / 2.5, 1 / 2.5, 1.5 / 3.5, 1.5 / 2.5]
    for _ in range(60):  # unasked, everyone goes back to 1/2
        state = rule.learnt({**state, "asked": []}, News(), 4)
    assert rule.scores(state) == pytest.approx([0.5] * 4)


@pytest.mark.parametrize(
    ("told", "evidence"),
    [
        ({"before": 1.0, "after": 4.0}, 0.25),
        ({"before": 1.0, "after": 0.0}, 1.0),
        ({"before": 0.0, "after": 1.0}, 0.0),
        ({"before": -2.0, "after": -1.0}, 0.0),
        ({"before": 1.0, "after": float("inf")}, 0.0),
        ({"before": float("nan"), "after": 1.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_evidence_of_quality(told: dict[str, float], evidence: float) -> None:
    assert Trust().evidence(0, News(told={0: told})) == evidence
    assert Trust(quality=False).evidence(0, News(told={0: told})) == 1.0
    assert Trust().evidence(0, News(told={0: told}, missed=(0,))) == 0.0


def test_cohorts_are_drawn_in_proportion_to_trust() -> None:
    """One of four, with trust 3/4, 1/2, 1/2, 1/4 and weight 2: odds 9, 4, 4, 1 of 18."""
    rule, drawn = Trust(weight=2.0, forget=1.0), np.zeros(4)
    learnt = {**rule.init(), "good": [2.0, 0.0, 0.0, 0.0], "bad": [0.0, 0.0, 0.0, 2.0]}
    for seed in range(3000):
        setting = replace(SETTING, seed=seed, cohort=1)
        order, _ = rule.next(learnt, News(), np.arange(4), FedAvg(), setting)
        drawn[order.cohort] += 1
    expected = 3000 * np.array([9, 4, 4, 1]) / 18
    assert ((drawn - expected) ** 2 / expected).sum() < 16.3  # chi squared, 3 degrees: p = 0.001


@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold", "adiana"])
def test_with_weight_0_it_is_the_plain_run(blobs: Dataset, name: str) -> None:
    method = ALGORITHMS[name]()
    plain = states(blobs, Scheme(method), per_round=3)
    off = states(blobs, Scheme(method, Trust(weight=0.0)), per_round=3)
    for ours, theirs in zip(off, plain, strict=True):
        assert all(torch.equal(ours.server[key], theirs.server[key]) for key in theirs.server)
        assert ours.news.told == {}


@pytest.mark.parametrize("name", FEDERATED)
def test_every_method_learns_trust_and_goes_on_to_the_same_bits(blobs: Dataset, name: str) -> None:
    scheme = Scheme(ALGORITHMS[name](), Trust(forget=1.0))
    whole = states(blobs, scheme, per_round=2)
    scores = Trust().scores(whole[-1].control)
    assert len(set(scores.tolist())) > 1
    control = whole[-1].control  # two workers a round, once each, however many exchanges it has
    assert sum(control["good"]) + sum(control["bad"]) == pytest.approx(2 * (len(whole) - 2))
    told = whole[-1].news.told
    assert all(set(numbers) == {"before", "after"} for numbers in told.values())
    again = list(simulate(plan_of(blobs, scheme, per_round=2), whole[2]))
    for ours, theirs in zip(again, whole[2:], strict=True):
        assert ours.control == theirs.control
        assert torch.equal(ours.server.w, theirs.server.w)


class Absent(Executor):
    """Worker 1 cannot be reached."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.held = inner, inner.held

    def exchange(self, asked: Exchange, *given: Any) -> Answers:
        return self.inner.exchange(asked, *given)

    def reachable(self, workers: Any, now: float) -> Any:
        return workers != 1


def asked(found: list[State]) -> list[int]:
    return [worker for state in found[1:] for worker in state.control["asked"]]


def test_who_never_answers_loses_trust_and_is_asked_less(blobs: Dataset) -> None:
    options = {"per_round": 2, "iterations": 120, "clock": Absent}
    scheme = Scheme(FedAvg(lr=0.1), Trust(weight=4.0, quality=False))
    found = states(blobs, scheme, **options)
    scores = Trust().scores(found[-1].control)
    assert scores[1] == min(scores) < 0.5 < 0.8 < sorted(scores)[1]
    times = [asked(found).count(worker) for worker in range(4)]
    assert times[1] < min(times[0], times[2], times[3]) / 2
    assert times[1] > 1  # evidence is forgotten, so it is tried again


def test_a_round_that_reaches_nobody_counts_against_those_asked(blobs: Dataset) -> None:
    """And not against those of the round before, whose news would otherwise be told again."""

    class Nobody(Absent):
        def reachable(self, workers: Any, now: float) -> Any:
            return np.zeros(len(workers), dtype=bool)

    found = states(blobs, Scheme(FedAvg(lr=0.1), Trust(forget=1.0)), per_round=2, clock=Nobody)
    control = found[-1].control
    assert control["good"] == [0.0] * 4
    assert sum(control["bad"]) == 2 * (len(found) - 2)
    assert found[-1].news.missed == tuple(control["asked"])


def test_who_is_refused_loses_trust(blobs: Dataset) -> None:
    class Refusing(Absent):
        def exchange(self, asked: Exchange, *given: Any) -> Answers:
            answers = self.inner.exchange(asked.among(asked.workers != 1), *given)
            return replace(answers, refused=(1,) if 1 in asked.workers else ())

        def reachable(self, workers: Any, now: float) -> Any:
            return np.ones(len(workers), dtype=bool)

    scheme = Scheme(FedAvg(lr=0.1), Trust(forget=1.0, quality=False))
    found = states(blobs, scheme, per_round=3, clock=Refusing)
    last = found[-1].control
    times = [[worker in state.control["asked"] for state in found[1:-1]] for worker in range(4)]
    assert last["bad"] == [0.0, float(sum(times[1])), 0.0, 0.0]
    assert last["good"] == [float(sum(times[i])) if i != 1 else 0.0 for i in range(4)]
    assert last["bad"][1] > 0
