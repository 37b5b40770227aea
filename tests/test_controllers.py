"""Who takes part, and for how long: cohorts by size and by loss, steps by data and by speed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

import fednag
from fednag import FedAvg, News, Vectors
from fednag.aggregators import Mean, Median
from fednag.algorithms import ALGORITHMS
from fednag.config import parse
from fednag.config.parts import aggregator_of, counts_share, described, scheme_of
from fednag.controllers import BySize, BySpeed, Constant, Epochs, Inverse, PowerOfChoice, Trust
from fednag.controllers.cohorts import CohortMean
from fednag.core.controller import Controller, Setting
from fednag.core.keys import chances, sized_cohort
from fednag.core.loop import Scheme
from fednag.data.dataset import Dataset
from fednag.flower.settings import read_run_config
from fednag.simulate.run import simulate
from flower_kit import config_of, gap, grid_of, play, simulated
from refusals import refused
from test_parts import EVERY, FEDERATED, SMALL, near, plan_of, states

SIZES = np.array([36, 18, 12, 9])  # of plan_of's workers


def of(method: str, controller: Controller) -> Scheme:
    """A method with a controller, and the mean that this brings along."""
    algorithm = ALGORITHMS[method]()
    return Scheme(
        algorithm, controller, aggregator=controller.aggregator or Scheme(algorithm).aggregator
    )


# Cohorts by size


def test_chances_by_hand() -> None:
    """One worker has four fifths: it is always in, and the others share the place that is left."""
    found, least = chances(np.array([80, 10, 10]), 2)
    assert (found.tolist(), least) == ([1.0, 0.5, 0.5], 20.0)
    found, least = chances(np.array([30, 10]), 1)
    assert (found.tolist(), least) == ([0.75, 0.25], 40.0)
    assert chances(np.array([3, 1]), 2)[0].tolist() == [1.0, 1.0]


@settings(max_examples=40)
@given(some.lists(some.integers(1, 10**6), min_size=1, max_size=12), some.data())
def test_chances_are_those_of_an_unbiased_mean(sizes: list[int], data: some.DataObject) -> None:
    """They add up to the cohort, and the weight of who is drawn, times its chance, is its size."""
    held, count = np.array(sizes), data.draw(some.integers(1, len(sizes)))
    found, least = chances(held, count)
    assert found.sum() == pytest.approx(count)
    assert (found <= 1).all()
    assert np.maximum(held, least) * found == pytest.approx(held)
    drawn = sized_cohort(data.draw(some.integers(0, 99)), 1, np.arange(len(held)), held, count)
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert sorted(drawn) == drawn.tolist()
    weights = np.maximum(held, least)[drawn]
    assert weights.sum() == pytest.approx(held.sum())  # so the mean is no quotient of two chances


def test_cohorts_by_size_are_drawn_with_their_chances_and_give_an_unbiased_mean() -> None:
    held, x, seeds = np.array([50, 1, 20, 9, 20]), np.array([1.0, -40.0, 3.0, 7.0, 2.0]), 3000
    expected, least = chances(held, 3)
    weights, times, means = np.maximum(held, least), np.zeros(5), []
    for seed in range(seeds):
        drawn = sized_cohort(seed, 2, np.arange(5), held, 3)
        times[drawn] += 1
        means.append((weights[drawn] @ x[drawn]) / weights[drawn].sum())
    spread = np.sqrt(expected * (1 - expected) / seeds)
    assert (np.abs(times / seeds - expected) <= 4 * spread).all()
    truth = held @ x / held.sum()
    assert abs(np.mean(means) - truth) < 4 * np.std(means) / seeds**0.5
    assert abs(x[:].mean() - truth) > 4 * np.std(means) / seeds**0.5  # equal weights would be off


@pytest.mark.parametrize("method", ["fednag", "mime"])
def test_everyone_by_size_is_the_plain_run(blobs: Dataset, method: str) -> None:
    plain = states(blobs, Scheme(ALGORITHMS[method]()))
    ours = states(blobs, of(method, BySize()))
    for one, other in zip(ours, plain, strict=True):
        assert all(torch.equal(one.server[key], other.server[key]) for key in other.server)


def test_workers_drawn_by_size_count_alike(blobs: Dataset) -> None:
    """Two of 36, 18, 12, 9 samples: nobody is always in, for 2 * 36 / 75 < 1."""
    found = states(blobs, of("fedavg", BySize()), per_round=2)
    facts = [fact for state in found for fact in state.rounds]
    assert len({fact.cohort for fact in facts}) > 1
    setting = plan_of(blobs, Scheme(FedAvg()), per_round=2).setting
    mean = CohortMean().ready(Vectors(), setting)
    assert [mean.weight(int(size), 0) for size in SIZES] == [37.5] * 4
    equal = replace(of("fedavg", BySize()), aggregator=CohortMean(equal=True))
    assert near(found[-1].server.w, states(blobs, equal, per_round=2)[-1].server.w)


# Power of choice


def test_power_of_choice_by_hand(blobs: Dataset) -> None:
    """The two of three candidates whose loss is highest; asking costs a model and a number each."""
    rule = PowerOfChoice(candidates=3)
    plan = plan_of(blobs, of("fednag", rule), per_round=2)
    found = list(simulate(plan))
    d = len(plan.problem.initial)
    kinds = set()
    for before, state in pairwise(found):
        asked = rule.asked(before.round + 1, np.arange(4), plan.setting)
        losses = {}
        for worker in asked.tolist():
            mine = torch.from_numpy(plan.owned[worker])
            module = plan.problem.module_at(before.server.w).eval()
            outputs = module(plan.problem.features(plan.problem.x[mine]))
            loss = torch.nn.functional.cross_entropy(outputs, plan.problem.y[mine])
            losses[worker] = float(loss.detach())
        chosen = tuple(sorted(sorted(losses, key=lambda worker: -losses[worker])[:2]))
        assert state.control["chosen"] == list(chosen)
        kinds.add(chosen)
        # float64: w to three, then w and v to two; a number from three, then w and v from two.
        assert state.bytes_down - before.bytes_down == 8 * (3 * d + 2 * 2 * d)
        assert state.bytes_up - before.bytes_up == 8 * (3 + 2 * 2 * d)
    assert len(kinds) > 1


def test_candidates_are_drawn_by_size() -> None:
    rule, drawn = PowerOfChoice(candidates=1), np.zeros(4)
    for seed in range(3000):
        setting = Setting(seed, 3, 12, 1, SIZES)
        drawn[rule.asked(1, np.arange(4), setting)] += 1
    expected = 3000 * SIZES / SIZES.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 16.3  # chi squared, 3 degrees: p = 0.001


def test_who_does_not_tell_its_loss_is_not_chosen() -> None:
    rule, setting = PowerOfChoice(candidates=4), Setting(5, 3, 12, 2, SIZES)
    told = {0: {"loss": 1.0}, 1: {}, 2: {"loss": float("nan")}, 3: {"loss": 0.5}}
    order, _ = rule.next(rule.init(), News(told=told), np.arange(4), FedAvg(), setting)
    assert order.cohort.tolist() == [0, 3]


@EVERY
@pytest.mark.parametrize("controller", [PowerOfChoice(candidates=3), BySize()])
def test_every_method_goes_on_to_the_same_bits(
    blobs: Dataset, name: str, controller: Controller
) -> None:
    """Unless it adds up what workers keep, by the share of the data that is in a mean."""
    method = ALGORITHMS[name]()
    if method.aggregator is not None or counts_share(method):
        with refused("controller.kind", "a mean of its own"):
            aggregator_of(method, controller, Mean())
        return
    scheme = of(name, controller)
    whole = states(blobs, scheme, per_round=2)
    again = list(simulate(plan_of(blobs, scheme, per_round=2), whole[2]))
    for ours, theirs in zip(again, whole[2:], strict=True):
        assert ours.control == theirs.control
        assert torch.equal(ours.server.w, theirs.server.w)


def test_which_methods_add_up_what_workers_keep() -> None:
    found = {name for name in FEDERATED if counts_share(ALGORITHMS[name]())}
    assert found == {"scaffold", "scaffold-m", "feddyn", "diana", "ef21", "adiana"}


def scheme(algorithm: str = "fednag", **sections: Any) -> Scheme:
    """That of an experiment file with these sections."""
    experiment = parse({"algorithm": {"name": algorithm}, **sections})
    return scheme_of(experiment, ALGORITHMS[algorithm]())


def test_a_cohort_brings_its_mean_along() -> None:
    by_size = {"kind": "by-size"}
    assert scheme(controller=by_size).aggregator == CohortMean()
    assert scheme(controller={"kind": "power-of-choice"}).aggregator == CohortMean(equal=True)
    given = {"aggregator": {"kind": "median"}, "controller": by_size}
    assert scheme(**given).aggregator == Median()
    with refused("aggregator.kind", "by size already"):
        scheme(controller=by_size, aggregator={"kind": "norm-bound"})
    with refused("controller.kind", "FedDyn"):
        scheme("feddyn", controller=by_size)
    with refused("controller.candidates", "cannot be chosen"):
        PowerOfChoice(candidates=1).check(FedAvg(), Setting(5, 3, 12, 2, SIZES))


@pytest.mark.parametrize("kind", ["by-size", "power-of-choice"])
def test_silos_draw_the_same_cohorts(kind: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "flower", controller__kind=kind, training__participants=2)
    run = play(config, grid_of(config))
    here = simulated(read_run_config(config), tmp_path / "here")
    assert gap(run, here) < 1e-13
    ours, theirs = run.records[-1], here.records[-1]
    assert [r.rounds for r in run.records] == [r.rounds for r in here.records]
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


# Steps by worker


@pytest.mark.parametrize(
    ("epochs", "samples", "batch", "steps"),
    [
        (1, 100, 64, 2),
        (3, 100, 64, 5),
        (1, 10, 64, 1),
        (2, 10, 64, 2),
        (2, 10, 0, 2),
        (0.5, 9, 3, 2),
    ],
)
def test_epochs_by_hand(epochs: float, samples: int, batch: int, steps: int) -> None:
    assert Epochs(epochs=epochs).steps(samples, batch) == steps


def test_epochs_in_a_run(blobs: Dataset) -> None:
    """Batches of 8: workers of 36, 18, 12 and 9 samples need 5, 3, 2 and 2 for an epoch."""
    found = states(blobs, Scheme(FedAvg(lr=0.1), Epochs()))
    assert found[1].rounds[0].steps == (5, 3, 2, 2)
    assert [state.iteration for state in found] == [0, 5, 10, 12]
    assert found[1].starts.tolist() == [5, 3, 2, 2]


def test_epochs_where_nobody_knows_the_batch() -> None:
    with refused("controller", "how many samples are in a batch"):
        Epochs().next({}, News(), np.arange(4), FedAvg(), Setting(5, 3, 12, 2, SIZES))


FLEET = """
name = "two"
[[device]]
name = "fast"
gflops = 4.0
up = { mbit = 1 }
down = { mbit = 1 }
[[device]]
name = "slow"
gflops = 1.0
up = { mbit = 1 }
down = { mbit = 1 }
"""


def test_by_speed_by_hand(tmp_path: Path) -> None:
    """Two devices, one four times as fast, at equal batches: 8 iterations and 2."""
    (tmp_path / "two.toml").write_text(FLEET)
    known = SMALL | {"tau": 8, "iterations": 16, "workers": 2, "batch": 16}
    clock = {"fleet": str(tmp_path / "two.toml")}
    run = fednag.run("fednag", controller="by-speed", clock=clock, **known)
    assert [fact.steps for record in run.records for fact in record.rounds] == [(8, 2), (8, 2)]
    with refused("controller.kind", "no clock"):
        scheme(controller={"kind": "by-speed"})


# Schedules of one's own


MINE = """
def halved(first, done):
    return first / (1 + 3 * done)
"""


def test_a_function_is_a_schedule(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    table = {"kind": f"{tmp_path / 'mine.py'}:halved", "field": "algorithm.lr"}
    (ours,) = scheme(schedule=[table]).schedules
    twin = Inverse("algorithm.lr", slope=3.0)
    assert [ours.at(0.1, t) for t in (0.0, 0.3, 1.0)] == [twin.at(0.1, t) for t in (0.0, 0.3, 1.0)]
    given = {"kind": lambda first, done: first / (1 + 3 * done), "field": "algorithm.lr"}
    described_as, part = described(given, "schedule")  # from Python
    assert (described_as["kind"], described_as["field"]) == ("custom", "algorithm.lr")
    assert part.at(0.1, 0.3) == twin.at(0.1, 0.3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("return first - done", "would become"),
        ("return 1 / 0", "ZeroDivisionError"),
        ("return float('nan')", "would become nan"),
        ("return 'fast'", "ValueError"),
    ],
)
def test_functions_that_are_no_schedule(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(first, done):\n    {text}\n")
    table = {"kind": f"{tmp_path / 'mine.py'}:mine", "field": "algorithm.lr"}
    with refused("schedule.0.field", says):
        scheme(schedule=[table])


def test_controllers_that_decide_about_privacy() -> None:
    """Who is drawn by a look at the data is not what accounts of privacy rest on."""
    for rule in (BySize(), PowerOfChoice(), Epochs(), BySpeed(), Trust()):
        assert rule.sampling is None
    assert Constant().sampling == "fixed"
