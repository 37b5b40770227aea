"""Differential privacy: laws of the noise, hand-computed costs, runs that stop, an attack."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta
from scipy.stats import norm as normal
from torch import Tensor, nn

import fednag
from commands import Caller
from fednag import Controller, FedAvg, FedNAG, FednagError, Vectors
from fednag.aggregators import AdaptiveNoisyMean, EqualMean, NoisyMean, Secure
from fednag.algorithms import ALGORITHMS, NbAFL
from fednag.config import parse
from fednag.controllers import Constant, Poisson
from fednag.core.aggregator import Total
from fednag.core.algorithm import News
from fednag.core.controller import Order, Setting
from fednag.core.executor import Executor
from fednag.core.keys import AGGREGATION, BATCH, NOISE, UPLINK, gaussian, generator
from fednag.core.loop import GradientNoise, Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data.dataset import Dataset
from fednag.privacy.accounting import Mechanism, multiplier_for
from fednag.privacy.plan import plan_noise
from fednag.privacy.promise import accountant_of, secretly
from fednag.runs import checkpoint
from fednag.runs.build import Builder
from fednag.runs.folder import RunFolder
from fednag.runs.view import RunView
from fednag.show.document import document
from fednag.show.watch import plain_line
from fednag.simulate.run import simulate
from fednag.transforms import Clip, Noise, Quantise
from test_parts import EVERY, gradients_of, near, plan_of, states, weights

SMALL: dict[str, Any] = {"model": "logistic", "tau": 2, "iterations": 12, "workers": 8}
MEAN = {"kind": "noisy-mean", "norm": 0.5, "noise_multiplier": 4.0}
DELTA = 1e-5


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capsys)


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
    for cohorts, local in (("fixed", True), ("fixed", False)):
        asked: dict[str, Any] = {"delta": DELTA, "workers": 5, "per_round": 5, "rounds": 30}
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


def test_honest_workers_share_the_noise_of_a_sum_that_alone_is_seen() -> None:
    uplink = Chain((Clip(1.0), Noise(5.0, honest=4)))
    scheme = replace(noisy(), aggregator=Secure(equal=True), uplink=uplink)
    assert account(scheme).mechanism == Mechanism(5.0)
    assert "4 workers" in account(scheme).promise
    # Seen one by one, or in a sum of other weights, each upload has its own noise alone.
    for other in (EqualMean(), Secure()):
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


def plainly(dataset: Dataset, scheme: Scheme, **changes: Any) -> list[State]:
    """The states of a run by the plain loop, which records nothing."""
    plan = plan_of(dataset, scheme, iterations=6, **changes)
    plan.problem.use_plain_loop("a test")
    return list(simulate(plan))


def ends(dataset: Dataset, scheme: Scheme, tmp_path: Path, **changes: Any) -> list[State]:
    """The same; a file between makes no bit of difference."""
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
def test_no_noise_and_no_bound_is_the_equal_mean(blobs: Dataset, name: str) -> None:
    """With every method; all four workers come, so that they are as many as expected."""
    method = ALGORITHMS[name]()
    silent = Chain((Clip(1e9), Noise(0.0)))
    mean = NoisyMean(norm=inf, noise_multiplier=0.0)
    found = plainly(blobs, Scheme(method, aggregator=mean))[-1]
    for uplink in (Chain(), silent) if name in ("fednag", "mime") else (Chain(),):
        other = plainly(blobs, Scheme(method, aggregator=EqualMean(), uplink=uplink))[-1]
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


@pytest.mark.parametrize(
    ("name", "controller", "by_round"),
    [("fednag", "constant", True), ("scaffold", "constant", False), ("fednag", "poisson", False)],
)
def test_where_sampling_is_counted_batches_go_by_the_round(
    name: str, controller: str, by_round: bool
) -> None:
    """How often a worker has taken part must not show: it would tie its rounds together."""
    tables = {"split": {"workers": 8}, "training": {"participants": 2, "tau": 2, "iterations": 8}}
    parts = {"aggregator": MEAN, "controller": {"kind": controller}, "privacy": {"delta": DELTA}}
    experiment = parse(
        {"algorithm": {"name": name}, "model": {"name": "logistic"}, **tables, **parts}
    )
    _, plan, _ = Builder().plan(experiment)
    assert plan.scheme.by_round == by_round
    assert plan.privacy is not None
    assert plan.privacy.mechanism.sampling == (
        "none" if name == "scaffold" else ("poisson" if controller == "poisson" else "fixed")
    )
    seen: list[bool] = []

    class Spy(Executor):
        def __init__(self, inner: Executor) -> None:
            self.inner, self.held = inner, inner.held

        def exchange(self, asked: Any, *given: Any) -> Any:
            seen.extend((asked.starts == 2 * (asked.round - 1)).tolist())
            return self.inner.exchange(asked, *given)

    list(simulate(replace(plan, clock=Spy)))
    assert all(seen) == by_round


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
    if name in ("mime", "mimelite", "marina", "adiana", "stem", "fedglomo"):
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


# NbAFL


def test_nbafl_claims_fifty_and_guarantees_a_million_and_a_half() -> None:
    """C 1, m 512, L 25, epsilon 50, delta 0.01: its noise over its sensitivity, and over 2 C."""
    method = NbAFL(norm=1.0, epsilon=50.0, delta=0.01, exposures=25, samples=512)
    assert method.sigma_up == pytest.approx(3.107 * 25 * 2 / (512 * 50), rel=1e-3)
    theirs = Mechanism(2 * method.sigma_up / (2 / 512)).epsilon(25, 0.01)
    assert theirs == pytest.approx(13.5, abs=0.1)
    scheme = Scheme(method, Constant(), uplink=Chain(method.channel), aggregator=method.aggregator)
    found = accountant_of(scheme, setting(50, 50), delta=0.01)
    assert found.epsilon(25) == pytest.approx(1.5e6, rel=0.02)
    assert found.claimed == 50.0
    assert any("no guarantee" in note and "50" in note for note in found.notes(25))


def test_nbafls_server_adds_noise_in_long_runs() -> None:
    assert NbAFL(rounds=25, exposures=25, workers=50).sigma_down == 0
    long = NbAFL(rounds=300, exposures=25, workers=50, samples=100, epsilon=10.0, norm=2.0)
    c = sqrt(2 * np.log(125))
    by_hand = 2 * c * 2 * sqrt(300**2 - 25**2 * 50) / (100 * 50 * 10)
    assert long.sigma_down == pytest.approx(by_hand)
    assert by_hand > 0.05


def test_nbafl_by_hand(blobs: Dataset) -> None:
    """A round: FedProx, clipped models with the keyed noise, their mean, the server's noise."""
    method = NbAFL(
        lr=0.5, mu=0.3, norm=0.4, epsilon=20.0, samples=20, rounds=90, exposures=2, workers=4
    )
    scheme = Scheme(method, uplink=Chain(method.channel), aggregator=method.aggregator)
    plan = plan_of(blobs, scheme, tau=2, batch=0, iterations=2)
    start, sizes, ends = plan.problem.initial, plan.partition.sizes, []
    for worker in range(4):
        w = start
        for _ in range(2):
            w = w - 0.5 * (gradients_of(plan, w)[worker] + 0.3 * (w - start))
        assert float(w.norm()) > 0.4
        seeds = generator(5, UPLINK, 1, worker, 0).bit_generator.seed_seq.spawn(1)  # type: ignore[attr-defined]
        drawn = np.random.default_rng(seeds[0]).standard_normal(len(w))
        ends.append(w * 0.4 / w.norm() + method.sigma_up * torch.from_numpy(drawn))
    mean = sum(int(n) * end for n, end in zip(sizes, ends, strict=True)) / int(sizes.sum())
    drawn = generator(5, AGGREGATION, 1, 0).standard_normal(len(start))
    expected = mean + method.sigma_down * torch.from_numpy(drawn)
    assert method.sigma_down > 0.01
    assert near(list(simulate(plan))[-1].server.w, expected)


def test_nbafl_as_a_run(tmp_path: Path) -> None:
    run = fednag.run("nbafl", privacy={"delta": 0.01}, out=tmp_path, **SMALL)
    noise = NbAFL().sigma_up
    assert run.records[-1].epsilon == Mechanism(noise).epsilon(6, 0.01)
    assert any("claims epsilon 50" in note for note in run.notes)


# A norm that follows the uploads


def test_an_adaptive_norm_by_hand() -> None:
    """Lengths 1 to 10, no noise: the norm goes to the quantile and stays."""
    rows = Vectors(w=torch.arange(1.0, 11.0).unsqueeze(1))
    mean = AdaptiveNoisyMean(norm=0.1, noise_multiplier=0.0, quantile=0.7, rate=0.3)
    kept, one = mean.init(), torch.ones(10, dtype=torch.float64)
    now = mean.ready(kept, setting(20, 10))
    first = now.learn(kept, now.lift(rows, one), None)
    assert float(first.norm) == pytest.approx(0.1 * exp(0.3 * 0.7))
    for _ in range(300):
        now = mean.ready(kept, setting(20, 10))
        kept = now.learn(kept, now.lift(rows, one), None)
    assert 7 * exp(-0.3) < float(kept.norm) < 8 * exp(0.3)
    assert set(now.finish(now.lift(rows, one), None)) == {"w"}


def test_the_count_is_paid_for() -> None:
    """Sum and count together cost what a noisy mean of the same multiplier costs."""
    mean = AdaptiveNoisyMean(norm=2.0, noise_multiplier=1.0, count_noise=0.8)
    now = mean.ready(mean.init(), setting())
    assert isinstance(now, AdaptiveNoisyMean)
    assert (now.sigma / 2.0) ** -2 + (2 * 0.8) ** -2 == pytest.approx(1.0)
    empty = Total(Vectors(), 0.0)
    drawn = [float(now.learn(mean.init(), empty, generator(0, i)).norm) for i in range(4000)]
    shares = -np.log(np.array(drawn) / 2) / 0.2  # b - 1/2
    assert shares.mean() == pytest.approx(0, abs=4 * 0.08 / sqrt(4000))
    assert shares.std() == pytest.approx(0.08, rel=0.05)  # 0.8 over a cohort of ten
    with pytest.raises(FednagError, match=r"count_noise: 0\.5 must be above half"):
        AdaptiveNoisyMean(noise_multiplier=1.0).ready(mean.init(), setting())
    scheme = replace(noisy(), aggregator=mean)
    assert account(scheme).mechanism == account(noisy()).mechanism


def test_an_adaptive_norm_at_rest_is_a_noisy_mean(blobs: Dataset, tmp_path: Path) -> None:
    still = AdaptiveNoisyMean(norm=0.3, rate=0.0, count_noise=1e9)
    found, other = (
        ends(blobs, Scheme(FedNAG(), aggregator=mean), tmp_path)[-1].server.w
        for mean in (still, NoisyMean(norm=0.3))
    )
    assert near(found, other)
    moving = AdaptiveNoisyMean(norm=0.3, noise_multiplier=0.3)
    states = ends(blobs, Scheme(FedNAG(), aggregator=moving), tmp_path)
    norms = [float(state.residues[-2, 0]["norm"]) for state in states[1:]]
    assert len(set(norms)) == 2
    # It is remembered: without it a run would go on to other numbers.
    plan = plan_of(blobs, Scheme(FedNAG(), aggregator=moving), iterations=6)
    broken = list(simulate(plan, replace(states[1], residues={})))
    assert not near(broken[-1].server.w, states[-1].server.w)


# An attack


def test_an_attack_finds_less_than_what_is_reported() -> None:
    """Two workers, one number each; one of them holds +1 or -1. Whoever sees the models of four
    rounds, and knows all else, tells which by the likelihood ratio. What the errors of 20,000 such
    guesses prove of epsilon must be below the accountant's, and not by much."""
    rounds, multiplier, delta, trials = 4, 6.0, 1e-2, 20_000
    mean = NoisyMean(norm=1.0, noise_multiplier=multiplier, cohort=2)
    # The aggregator itself, on many independent numbers at once: each is a trial of its own.
    seen = []
    for held in (1.0, -1.0):
        total = Total(Vectors(w=torch.full((rounds * trials,), held, dtype=torch.float64)), 2.0)
        released = mean.finish(total, generator(1, 2 if held > 0 else 3)).w
        seen.append(released.view(rounds, trials).sum(0).numpy())
    found = 0.0
    for threshold in np.quantile(np.concatenate(seen), np.linspace(0.02, 0.98, 49)):
        hits = int((seen[0] > threshold).sum())
        false = int((seen[1] > threshold).sum())
        # Clopper-Pearson, 99.9 % each: hits are at least, false alarms at most.
        least = beta.ppf(0.001, hits, trials - hits + 1) if hits else 0.0
        most = beta.ppf(0.999, false + 1, trials - false) if false < trials else 1.0
        if least > delta:
            found = max(found, float(np.log((least - delta) / most)))
    reported = Mechanism(multiplier).epsilon(rounds, delta)
    assert 0.35 * reported < found < reported
    # Taken at a sensitivity of C, the same noise would be reported as less than was found.
    assert Mechanism(2 * multiplier).epsilon(rounds, delta) < found


def test_an_upload_cannot_move_the_sum_further_than_the_norm() -> None:
    """What the attack takes for granted: whatever is sent, neighbours are 2 C apart at most."""
    mean = NoisyMean(norm=1.5, noise_multiplier=0.0, cohort=1)
    one = torch.ones(1, dtype=torch.float64)
    drawn = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e6, 1e200):
        sent = torch.from_numpy(scale * drawn.normal(size=(1, 50)))
        moved = mean.finish(mean.lift(Vectors(w=sent, v=-sent), one), None)
        length = float(torch.cat([moved.w, moved.v]).norm())
        assert length <= 1.5 * (1 + 1e-12)


# The command line


def test_the_plan_on_the_command_line(command: Caller) -> None:
    words = ("--delta", "1e-5", "--workers", "100", "--per-round", "10", "--rounds", "100")
    told = command("privacy", "plan", "--noise-multiplier", "1", *words, "--json").document
    assert told["epsilon"] == pytest.approx(83.9, abs=0.05)
    assert told["relation"] == "replace one"
    asked = ("privacy", "plan", "--epsilon", "8", "--poisson", *words)
    found = command(*asked, "--json").document
    assert found["noise_multiplier"] == pytest.approx(0.994, abs=0.01)
    assert found["exactly"] < found["epsilon"] <= 8
    shown = command(*asked).out
    assert "add or remove one" in shown
    settings = tomllib.loads(shown[shown.index("[privacy]") :])
    assert settings["privacy"]["epsilon"] == 8
    assert settings["controller"] == {"kind": "poisson"}
    assert settings["aggregator"]["noise_multiplier"] == found["noise_multiplier"]
    wrong = command("privacy", "plan", *words)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "give epsilon or noise_multiplier" in wrong.err


def test_what_was_spent_on_the_command_line(command: Caller, tmp_path: Path) -> None:
    privacy = {"delta": DELTA, "epsilon": 20.0}
    run = fednag.run("fednag", aggregator=MEAN, privacy=privacy, out=tmp_path, **SMALL)
    (row,) = command("privacy", "spent", str(tmp_path), "--json").document["rows"]
    assert row["epsilon"] == run.records[-1].epsilon
    assert (row["budget"], row["delta"]) == (20.0, DELTA)
    assert "replace one" in row["promise"]
    spent = f"{run.records[-1].epsilon:.4g}"
    assert spent in command("privacy", "spent", str(tmp_path)).out
    short = f"{run.records[-1].epsilon:.3g}"
    assert short in command("show", str(tmp_path)).out
    assert f"epsilon {short}" in plain_line(RunView.read(RunFolder(run.folder)))  # type: ignore[arg-type]
    looked = command("watch", str(tmp_path), "--once")
    assert short in looked.out
    page = document([RunView.of(run)])
    assert page["charts"][0]["across"]["epsilon"] == "epsilon spent"


def test_without_the_library_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FednagError, match=r"pip install 'fednag\[privacy\]'"):
        Mechanism(1.2345).epsilon(1, DELTA)
