"""Differential privacy: laws of the noise, hand-computed costs, runs that stop, an attack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal
from torch import Tensor, nn

import fednag
from fednag import Aggregator, Controller, FedAvg, FedNAG, FednagError, Vectors
from fednag.aggregators import EqualMean, NoisyMean
from fednag.algorithms import ALGORITHMS
from fednag.controllers import Constant, Poisson
from fednag.core.algorithm import News
from fednag.core.controller import Order, Setting
from fednag.core.keys import BATCH, NOISE, gaussian, generator
from fednag.core.loop import GradientNoise, Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data.dataset import Dataset
from fednag.privacy.accounting import Mechanism, multiplier_for
from fednag.privacy.plan import plan_noise
from fednag.privacy.promise import accountant_of, secretly
from fednag.runs import checkpoint
from fednag.runs.folder import RunFolder
from fednag.simulate.run import simulate
from fednag.transforms import Clip, Noise, Quantise
from test_parts import EVERY, near, plan_of, states, weights

SMALL: dict[str, Any] = {"model": "logistic", "tau": 2, "iterations": 12, "workers": 8}
MEAN = {"kind": "noisy-mean", "norm": 0.5, "noise_multiplier": 4.0}
DELTA = 1e-5


def setting(workers: int = 100, cohort: int = 10, **changes: Any) -> Setting:
    numbers = {"seed": 0, "tau": 1, "iterations": 100, "sizes": np.full(workers, 20), **changes}
    return Setting(cohort=cohort, **numbers)


# What it costs


def test_cohorts_drawn_without_replacement_mean_replacing_one_whose_sensitivity_is_twice_c() -> (
    None
):
    """100 workers, 10 a round, 100 rounds, noise C: 83.9. Taken at C it would be 14.05."""
    drawn = Mechanism(1.0, "fixed", 10, 100)
    assert drawn.epsilon(100, DELTA) == pytest.approx(83.9, abs=0.05)
    assert Mechanism(2.0, "fixed", 10, 100).epsilon(100, DELTA) == pytest.approx(14.05, abs=0.01)
    assert drawn.relation == "replace one"
    coins = Mechanism(1.0, "poisson", 10, 100)
    assert coins.epsilon(100, DELTA) == pytest.approx(7.90, abs=0.01)
    assert coins.relation == "add or remove one"


def exact(mu: float, delta: float) -> float:
    """Epsilon of normal noise whose means are mu deviations apart, by its formula."""
    low, high = 0.0, 1e4
    for _ in range(200):
        e = (low + high) / 2
        tail = normal.logcdf(-e / mu - mu / 2)
        low, high = (e, high) if normal.cdf(-e / mu + mu / 2) - exp(e + tail) > delta else (low, e)
    return high


@pytest.mark.parametrize(("multiplier", "times"), [(10.0, 20), (4.0, 5), (30.0, 400)])
def test_without_sampling_it_is_the_gaussian_mechanism(multiplier: float, times: int) -> None:
    """Replacing one moves the sum by 2: mu = 2 sqrt(times) / multiplier."""
    mechanism, truth = Mechanism(multiplier), exact(2 * sqrt(times) / multiplier, DELTA)
    assert truth <= mechanism.epsilon(times, DELTA) <= 1.1 * truth
    assert mechanism.exactly(times, DELTA) == pytest.approx(truth, rel=2e-3)


def test_pld_is_below_rdp_and_not_far() -> None:
    mechanism = Mechanism(1.2, "poisson", 1, 20)
    exactly = mechanism.exactly(50, DELTA)
    assert exactly is not None
    assert 0.7 * mechanism.epsilon(50, DELTA) < exactly < mechanism.epsilon(50, DELTA)
    assert Mechanism(1.2, "fixed", 1, 20).exactly(50, DELTA) is None


def test_sampling_never_costs_more_than_no_sampling() -> None:
    plain = Mechanism(3.0).epsilon(20, DELTA)
    shares = [Mechanism(3.0, "fixed", m, 100).epsilon(20, DELTA) for m in (1, 20, 99, 100)]
    assert shares == sorted(shares)
    assert shares[-1] == plain
    assert Mechanism(3.0).epsilon(0, DELTA) == 0
    assert Mechanism(0.0).epsilon(1, DELTA) == inf


def test_a_plan_is_within_its_budget_and_hardly_below_it() -> None:
    for cohorts, local in (("poisson", False), ("fixed", True)):
        asked: dict[str, Any] = {"delta": DELTA, "workers": 50, "per_round": 5, "rounds": 30}
        found = plan_noise(epsilon=3.0, cohorts=cohorts, local=local, **asked)  # type: ignore[arg-type]
        assert 2.99 < found.epsilon <= 3.0
        back = plan_noise(
            noise_multiplier=found.noise_multiplier, cohorts=cohorts, local=local, **asked
        )  # type: ignore[arg-type]
        assert back.epsilon == found.epsilon
    sample = plan_noise(epsilon=3.0, delta=DELTA, workers=5, rounds=10, samples=99, batch=9, tau=4)
    assert sample.times == 40
    assert sample.mechanism.sampling == "poisson"
    with pytest.raises(FednagError, match="one of them"):
        plan_noise(delta=DELTA, workers=5, rounds=3)
    assert multiplier_for(3.0, DELTA, 30, "none", 1, 1) > multiplier_for(
        6.0, DELTA, 30, "none", 1, 1
    )


# Who is promised what


def account(scheme: Scheme, given: Setting | None = None, **changes: Any) -> Any:
    return accountant_of(scheme, given or setting(), delta=DELTA, **changes)


def noisy(**changes: Any) -> Scheme:
    return Scheme(FedAvg(), Constant(), aggregator=NoisyMean(**changes))


def test_the_accountant_reads_the_parts() -> None:
    central = account(noisy(noise_multiplier=1.0))
    assert central.mechanism == Mechanism(1.0, "fixed", 10, 100)
    assert central.epsilon(100) == pytest.approx(83.9, abs=0.05)
    assert "server is trusted" in central.promise
    coins = account(replace(noisy(), controller=Poisson()))
    assert coins.mechanism == Mechanism(1.0, "poisson", 10, 100)
    # Two stages have one cohort: two uploads with noise are one with a smaller multiplier.
    mime = account(replace(noisy(), algorithm=ALGORITHMS["mime"]()))
    assert mime.mechanism.multiplier == pytest.approx(1 / sqrt(2))


def test_memories_and_cohorts_of_a_fixed_size_are_counted_without_sampling() -> None:
    scheme = noisy(noise_multiplier=5.0)
    found = account(scheme, setting(10, 2), remembers=True)
    assert found.mechanism == Mechanism(5.0)
    drawn = [scheme.controller.cohort(r, np.arange(10), setting(10, 2)) for r in range(1, 8)]
    most = int(np.bincount(np.concatenate(drawn)).max())
    assert found.uses(7) == most
    assert 1 < most < 7
    coins = replace(scheme, controller=Poisson())
    assert account(coins, remembers=True).mechanism.sampling == "poisson"


def test_local_noise_is_counted_per_participation() -> None:
    """sigma 6, C 2: replacing one moves an upload by 4."""
    scheme = replace(noisy(), aggregator=EqualMean(), uplink=Chain((Clip(2.0), Noise(6.0))))
    found = account(scheme, setting(5, 5))
    assert found.mechanism == Mechanism(3.0)
    assert found.uses(12) == 12
    assert found.epsilon(12) == Mechanism(3.0).epsilon(12, DELTA)
    assert "nobody is trusted" in found.promise


@dataclass(frozen=True)
class Hiding(EqualMean):
    hides = True


@dataclass(frozen=True)
class HidingBySize(Aggregator):
    hides = True


def test_honest_workers_share_the_noise_of_a_sum_that_alone_is_seen() -> None:
    uplink = Chain((Clip(1.0), Noise(5.0, honest=4)))
    scheme = replace(noisy(), aggregator=Hiding(), uplink=uplink)
    assert account(scheme).mechanism == Mechanism(5.0)
    assert "4 workers" in account(scheme).promise
    # Seen one by one, or in a sum of other weights, each upload has its own noise alone.
    for other in (EqualMean(), HidingBySize()):
        assert account(replace(scheme, aggregator=other)).mechanism == Mechanism(2.5)
    with pytest.raises(FednagError, match="there may be fewer"):
        account(scheme, setting(100, 3))


@dataclass(frozen=True)
class Whims(Controller):
    def next(self, *given: Any) -> tuple[Order, dict[str, Any]]:
        return Order(np.array([0]), 1), {}


@dataclass(frozen=True)
class Telling(Poisson):
    def observe(self, local: Vectors, sent: Vectors, data: Any) -> dict[str, Tensor]:
        return {"loss": data.loss(local.w)}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"aggregator": EqualMean()}, "nothing is noised here"),
        ({"uplink": Chain((Clip(1.0), Noise(1.0)))}, "leave one of them out"),
        ({"aggregator": EqualMean(), "uplink": Chain((Noise(1.0),))}, "put clip right before it"),
        (
            {"aggregator": EqualMean(), "uplink": Chain((Clip(1.0), Quantise(), Noise(1.0)))},
            "put clip right before it",
        ),
        ({"controller": Whims()}, "without a look at the data"),
        ({"controller": Telling()}, "report numbers"),
        ({"algorithm": ALGORITHMS["csgd"]()}, "is centralised"),
    ],
)
def test_what_would_break_the_promise_is_refused(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FednagError, match=sentence):
        account(replace(noisy(), **parts))


# The noise


@pytest.mark.parametrize("secret", [False, True])
def test_the_variance_is_as_declared(secret: bool) -> None:
    d, like = 40_000, Vectors(w=torch.zeros(40_000), v=torch.zeros(40_000))
    up, _ = Noise(3.0, honest=4, secret=secret).apply(like, Vectors(), generator(0, 1))
    mean = NoisyMean(norm=0.5, noise_multiplier=6.0, cohort=3, secret=secret)
    total = mean.lift(like.map(lambda v: v.unsqueeze(0)), torch.ones(1, dtype=torch.float64))
    down = mean.finish(total, generator(0, 2))
    for found, sigma in ((up, 1.5), (down, 1.0)):
        for vector in found.values():
            assert float(vector.std()) == pytest.approx(sigma, rel=4 / sqrt(2 * d))
            assert abs(float(vector.mean())) < 4 * sigma / sqrt(d)
            # A normal distribution: its tails too.
            assert float((vector.abs() > 2 * sigma).double().mean()) == pytest.approx(
                0.0455, abs=0.005
            )
        assert abs(float(torch.corrcoef(torch.stack([found.w, found.v]))[0, 1])) < 4 / sqrt(d)


def test_secret_noise_cannot_be_drawn_again() -> None:
    assert (gaussian(9, generator(1, 2)) == gaussian(9, generator(1, 2))).all()
    assert (gaussian(9, None) != gaussian(9, None)).all()
    scheme = secretly(replace(noisy(), uplink=Chain((Clip(), Noise(1.0)))))
    assert scheme.uplink.parts[1] == Noise(1.0, secret=True)
    assert scheme.aggregator == NoisyMean(secret=True)


def test_noise_is_independent_across_workers_and_rounds(blobs: Dataset) -> None:
    drawn: list[Tensor] = []

    @dataclass(frozen=True)
    class Watched(Noise):
        def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
            gone, kept = super().apply(up, kept, rng)
            drawn.extend(gone[name] - up[name] for name in up)
            return gone, kept

    weights(blobs, Scheme(FedNAG(), uplink=Chain((Watched(1.0),))))
    rows = torch.stack(drawn)  # four rounds, four workers, two vectors
    assert len(rows) == 32
    assert rows.unique(dim=0).shape == rows.shape
    rest = torch.corrcoef(rows) - torch.eye(32, dtype=torch.float64)
    assert float(rest.abs().max()) < 6 / sqrt(rows.shape[1])
    means = states(blobs, Scheme(FedAvg(lr=1e-12), aggregator=NoisyMean()))
    steps = torch.stack([b.server.w - a.server.w for a, b in pairwise(means)])
    assert float((torch.corrcoef(steps) - torch.eye(4, dtype=torch.float64)).abs().max()) < 0.9
    assert steps.unique().numel() == steps.numel()


def ends(dataset: Dataset, scheme: Scheme, tmp_path: Path, **changes: Any) -> list[State]:
    """The states of a run by the plain loop, which records nothing; a file between makes no bit
    of difference."""
    plan, folder = plan_of(dataset, scheme, iterations=6, **changes), RunFolder(tmp_path)
    plan.problem.use_plain_loop("a test")
    whole = list(simulate(plan))
    folder.records_file.touch()
    checkpoint.write(folder, whole[1], 0, "me", {})
    saved, _ = checkpoint.newest(folder, plan, "me")
    assert saved is not None
    assert torch.equal(list(simulate(plan, saved.state))[-1].server.w, whole[-1].server.w)
    return whole


@EVERY
def test_no_noise_and_no_bound_is_the_equal_mean(blobs: Dataset, name: str, tmp_path: Path) -> None:
    """With every method; all four workers come, so that they are as many as expected."""
    method = ALGORITHMS[name]()
    silent = Chain((Clip(1e9), Noise(0.0)))
    mean = NoisyMean(norm=inf, noise_multiplier=0.0)
    found = ends(blobs, Scheme(method, aggregator=mean), tmp_path)[-1]
    for uplink in (Chain(), silent):
        other = ends(blobs, Scheme(method, aggregator=EqualMean(), uplink=uplink), tmp_path)[-1]
        for key, vector in other.server.items():
            assert near(found.server[key], vector), key


@EVERY
def test_private_rounds_go_on_to_the_same_bits(blobs: Dataset, name: str, tmp_path: Path) -> None:
    mean = NoisyMean(norm=0.1, noise_multiplier=0.5)
    last = ends(
        blobs, Scheme(ALGORITHMS[name](), Poisson(), aggregator=mean), tmp_path, per_round=2
    )
    assert bool(last[-1].server.w.isfinite().all())
    local = Chain((Clip(0.1), Noise(0.1)))
    ends(blobs, Scheme(ALGORITHMS[name](), uplink=local), tmp_path)


@pytest.mark.parametrize("name", ["fednag", "scaffold"])
def test_private_rounds_do_not_depend_on_chunks_and_threads(blobs: Dataset, name: str) -> None:
    parts = {"aggregator": NoisyMean(norm=0.1)}, {"uplink": Chain((Clip(0.1), Noise(0.1)))}
    for part in (*parts, {"gradient": GradientNoise(0.4, 0.7)}):
        scheme = Scheme(ALGORITHMS[name](), **part)  # type: ignore[arg-type]
        first, second = (
            weights(blobs, scheme, iterations=6, chunk=chunk, threads=chunk) for chunk in (1, 3)
        )
        assert near(first, second)


def test_a_noisy_mean_by_hand() -> None:
    """v counts with w: lengths 5 and 1; expected are four workers, and two came."""
    rows = Vectors(
        w=torch.tensor([[3.0, 0.0], [1.0, 0.0]]), v=torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    )
    mean = NoisyMean(norm=2.0, noise_multiplier=0.0).ready(Vectors(), setting(8, 4))
    found = mean.finish(mean.lift(rows, torch.ones(2, dtype=torch.float64)), None)
    assert found.w.tolist() == pytest.approx([(3 * 2 / 5 + 1) / 4, 0])
    assert found.v.tolist() == pytest.approx([0, 4 * 2 / 5 / 4])
    capped = NoisyMean(cap=20)
    assert [capped.weight(size, 0) for size in (5, 20, 400)] == [0.25, 1, 1]
    assert NoisyMean().weight(400, 0) == 1
    # What goes up beside the rules' vectors is averaged over who came.
    extra = rows.but(buffers=torch.tensor([[2.0], [4.0]]))
    assert mean.finish(mean.lift(extra, torch.ones(2)), None).buffers.tolist() == [3.0]


@pytest.mark.parametrize("name", ["fedavg", "fednag", "scaffold", "mime", "fednag-rebuilt"])
def test_an_empty_cohort_still_emits_its_noise(blobs: Dataset, name: str) -> None:
    @dataclass(frozen=True)
    class Nobody(Poisson):
        def cohort(self, number: int, free: Any, setting: Setting) -> Any:
            return free[:0] if number == 1 else free

    for aggregator in (NoisyMean(norm=1.0, noise_multiplier=1.0), EqualMean()):
        scheme = Scheme(ALGORITHMS[name](), Nobody(), aggregator=aggregator)
        first, second = states(blobs, scheme, iterations=3)
        assert not second.diverged
        assert torch.equal(first.server.w, second.server.w) == isinstance(aggregator, EqualMean)
    # As far as w is concerned: noise of deviation norm over four workers, and nothing else.
    scheme = Scheme(FedAvg(), Nobody(), aggregator=NoisyMean(norm=1.0, noise_multiplier=1.0))
    first, second = states(blobs, scheme, iterations=3)
    expected = gaussian(len(first.server.w), generator(5, 9, 1, 0)) / 4
    assert near(second.server.w - first.server.w, torch.from_numpy(expected))


def test_who_came_is_no_news(blobs: Dataset) -> None:
    """SCAFFOLD's share is that of the workers expected, not of the data that came."""
    shares: list[float] = []

    @dataclass(frozen=True)
    class Watching(FedAvg):
        def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
            shares.append(news.share)
            return super().update(server, mean, news)

    states(blobs, Scheme(Watching(), Poisson(), aggregator=NoisyMean()), per_round=2)
    assert set(shares) == {0.5}


def test_poisson_cohorts_have_the_rate_and_may_be_empty() -> None:
    given, everyone = setting(20, 5), np.arange(20)
    drawn = [Poisson().cohort(number, everyone, given) for number in range(400)]
    sizes = np.array([len(cohort) for cohort in drawn])
    assert sizes.mean() == pytest.approx(5, abs=4 * sqrt(20 * 0.25 * 0.75 / 400))
    assert sizes.var() == pytest.approx(20 * 0.25 * 0.75, rel=0.35)
    counts = np.bincount(np.concatenate(drawn), minlength=20) / 400
    assert counts == pytest.approx(0.25, abs=0.1)


# Runs


def test_epsilon_is_in_every_record_and_absent_from_plain_runs(tmp_path: Path) -> None:
    run = fednag.run("fedavg", aggregator=MEAN, privacy={"delta": DELTA}, out=tmp_path, **SMALL)
    spent = [record.epsilon for record in run.records]
    assert spent == [Mechanism(4.0).epsilon(r, DELTA) for r in range(7)]
    assert run.folder is not None
    kept = RunFolder(run.folder).records()
    assert [record.epsilon for record in kept] == spent
    assert any("epsilon" in note and "replace one" in note for note in run.notes)
    plain = fednag.run("fedavg", aggregator=MEAN, **SMALL)
    assert "epsilon" not in plain.records[-1].as_json()
    assert plain.records[-1].loss == run.records[-1].loss


def test_a_run_stops_before_it_overspends() -> None:
    def run(budget: float, **changes: Any) -> Any:
        privacy = {"delta": DELTA, "epsilon": budget}
        return fednag.run("fednag", aggregator=MEAN, privacy=privacy, **{**SMALL, **changes})

    cost = Mechanism(4.0)
    third = cost.epsilon(3, DELTA)
    ended = run(third + 1e-9)
    assert (ended.ending.kind, ended.ending.iteration, ended.records[-1].round) == ("privacy", 6, 3)
    assert str(ended.ending) == f"the epsilon of {third:g} is spent at iteration 6"
    assert ended.records[-1].epsilon == third
    assert any("after round 3" in note for note in ended.notes)
    assert run(third - 1e-9).records[-1].round == 2
    # It is evaluated when it stops, whatever evaluation.every says; and a run that fits finishes.
    seldom = run(third + 1e-9, evaluation={"every": 5})
    assert [record.round for record in seldom.records] == [0, 3]
    assert run(1e6).ending.kind == "finished"
    with pytest.raises(FednagError, match="one round costs"):
        run(0.01)


# Samples


class PlainDPSGD:
    """DP-SGD with autograd and a loop over samples: nothing of the engine."""

    def __init__(self, plan: Any, noise: GradientNoise) -> None:
        self.plan, self.noise = plan, noise

    def gradient(self, w: Tensor, worker: int, iteration: int) -> Tensor:
        plan, noise = self.plan, self.noise
        held = plan.partition.workers[worker]
        batch = min(plan.batch or len(held), len(held))
        total = torch.zeros_like(w)
        chosen = generator(plan.seed, BATCH, worker, iteration).random(len(held))
        for sample in held[chosen < batch / len(held)]:
            module = plan.problem.module_at(w).train()
            x = plan.problem.features(plan.problem.x[sample : sample + 1])
            loss = nn.functional.cross_entropy(module(x), plan.problem.y[sample : sample + 1])
            slopes = torch.autograd.grad(loss, list(module.parameters()))
            slope = torch.cat([each.reshape(-1) for each in slopes])
            total = total + slope * min(1.0, noise.norm / float(slope.norm()))
        drawn = generator(plan.seed, NOISE, worker, iteration).standard_normal(len(w))
        sigma = noise.noise_multiplier * noise.norm
        return (total + sigma * torch.from_numpy(drawn)) / batch


@pytest.mark.parametrize("recorded", [True, False])
def test_noised_gradients_equal_a_plain_loop_over_samples(blobs: Dataset, recorded: bool) -> None:
    noise = GradientNoise(norm=0.4, noise_multiplier=0.7)
    plan = plan_of(blobs, Scheme(FedNAG(lr=0.1, momentum=0.5), gradient=noise), iterations=6)
    if not recorded:
        plan.problem.use_plain_loop("a test")
    plain, w = PlainDPSGD(plan, noise), plan.problem.initial
    v, sizes = torch.zeros_like(w), plan.partition.sizes
    for start in (0, 3):
        ends = []
        for worker in range(4):
            own, momentum = w, v
            for step in range(start, start + 3):
                g = plain.gradient(own, worker, step)
                momentum = 0.5 * momentum - 0.1 * g
                own = own + 0.5 * momentum - 0.1 * g
            ends.append((own, momentum))
        w, v = (
            sum(int(n) * end[i] for n, end in zip(sizes, ends, strict=True)) / int(sizes.sum())
            for i in (0, 1)
        )  # type: ignore[assignment]
    found = list(simulate(plan))[-1].server
    assert near(found.w, w)
    assert near(found.v, v)


def test_with_no_bound_and_no_noise_gradients_are_those_of_all_samples(blobs: Dataset) -> None:
    neutral = GradientNoise(norm=1e9, noise_multiplier=0.0)
    for name in ("fednag", "csgd"):
        method = ALGORITHMS[name]()
        plain = weights(blobs, Scheme(method), batch=0)
        assert near(weights(blobs, Scheme(method, gradient=neutral), batch=0), plain)
        clipped = GradientNoise(norm=0.01, noise_multiplier=0.0)
        assert not near(weights(blobs, Scheme(method, gradient=clipped), batch=0), plain, 1e-6)


@EVERY
def test_samples_are_protected_with_every_method_or_it_is_refused(
    blobs: Dataset, name: str, tmp_path: Path
) -> None:
    """What asks for whole gradients, or for two in a local iteration, is refused."""
    scheme = Scheme(ALGORITHMS[name](), gradient=GradientNoise(norm=0.4, noise_multiplier=0.7))
    if name in ("mime", "mimelite", "adiana"):
        with pytest.raises(FednagError, match=r"privacy.unit: the method"):
            ends(blobs, scheme, tmp_path)
        return
    assert bool(ends(blobs, scheme, tmp_path)[-1].server.w.isfinite().all())


SAMPLE = {"delta": DELTA, "unit": "sample", "norm": 1.0, "noise_multiplier": 1.5}


def test_samples_cost_what_their_batches_cost() -> None:
    """The smallest worker's batches, one an iteration; a budget counts whole rounds."""
    split = {"kind": "sizes", "proportions": [1, 3]}
    small = {**SMALL, "workers": 2, "batch": 16}
    run = fednag.run("fednag", split=split, privacy=SAMPLE, **small)
    least = min(int(sum(row)) for row in run.about["held"])
    cost = Mechanism(1.5, "poisson", 16, least)
    assert [r.epsilon for r in run.records] == [cost.epsilon(2 * r, DELTA) for r in range(7)]
    assert any("one sample of a worker (add or remove one)" in note for note in run.notes)
    budget = {**SAMPLE, "epsilon": cost.epsilon(7, DELTA)}
    stopped = fednag.run("fednag", split=split, privacy=budget, **small)
    assert (stopped.ending.kind, stopped.records[-1].round) == ("privacy", 3)


@dataclass(frozen=True)
class Twice(FedAvg):
    def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * (grad(local.w) + grad(sent.w)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))}, "mixes"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))}, "no plain mean"),
        ({"algorithm": Twice()}, "two gradients"),
        ({"aggregator": MEAN}, "gradients are noised already"),
        ({"controller": {"kind": "buffered", "need": 2}}, "without a look|clock"),
        ({"privacy": {"delta": DELTA, "unit": "sample"}}, "needs norm and noise_multiplier"),
        ({"privacy": {"delta": DELTA, "norm": 1.0}}, "privacy.norm: goes only with"),
        ({"privacy": {"epsilon": 1.0}}, "privacy.delta: is missing"),
        ({"privacy": {"delta": 1.0}}, "privacy.delta: 1.0 is not allowed"),
    ],
)
def test_what_samples_cannot_be_promised_is_told(changes: dict[str, Any], sentence: str) -> None:
    given = {"algorithm": "fedavg", "privacy": SAMPLE, **SMALL, **changes}
    with pytest.raises(FednagError, match=sentence):
        fednag.run(given.pop("algorithm"), **given)


def test_running_statistics_are_not_promised() -> None:
    """Averaged they travel without noise; kept by the workers they do not."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    given = {**SMALL, "aggregator": MEAN, "privacy": {"delta": DELTA}}
    with pytest.raises(FednagError, match="running statistics travel without noise"):
        fednag.run("fedavg", **{**given, "model": model})
    run = fednag.run("fedavg", batch_norm="local", **{**given, "model": model})
    assert run.records[-1].epsilon is not None
