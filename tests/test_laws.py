"""Laws that tie the methods to each other and to torch, on real gradients and unequal workers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag.simulate.engine as engine_module
from fednag.algorithms import (
    ALGORITHMS,
    CNAG,
    CSGD,
    FedAvg,
    FedAvgM,
    FedMom,
    FedNAG,
    FedNAGLocal,
    FedProx,
    Mime,
    MimeLite,
    Scaffold,
    SlowMo,
)
from fednag.core.algorithm import Algorithm, local_round, payload
from fednag.core.keys import Draws
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.vectors import Vectors
from fednag.data import partition
from fednag.data.dataset import Dataset
from fednag.problems import models
from fednag.problems.problem import Problem
from fednag.simulate.run import Plan, simulate

EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))


@cache
def problem_of(dataset: Dataset, model: str) -> Problem:
    """One for all tests: it knows its recordings, but nothing of any run."""
    module = models.build(model, dataset.shape, dataset.classes or 1, seed=3)
    return Problem(dataset, module, models.loss_of(model), dtype=torch.float64)


def plan_of(dataset: Dataset, algorithm: Algorithm, **changes: Any) -> Plan:
    """Four workers of sizes 36, 18, 12, 9, mini-batches of 8; float64."""
    problem = problem_of(dataset, changes.pop("model", "logistic"))
    settings = {"tau": 3, "iterations": 12, "batch": 8, "seed": 5, **changes}
    deal = partition.by_size(len(dataset.x), 4, 1.0, seed=2)
    return Plan(problem=problem, partition=deal, scheme=Scheme(algorithm), **settings)


def last(plan: Plan) -> State:
    *_, state = simulate(plan)
    return state


def weights(dataset: Dataset, algorithm: Algorithm, **changes: Any) -> Tensor:
    return last(plan_of(dataset, algorithm, **changes)).server.w


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def assert_different(a: Tensor, b: Tensor) -> None:
    assert (a - b).abs().max() > 1e-6


@pytest.mark.parametrize("cls", [FedNAG, FedMom, SlowMo, FedAvgM])
def test_without_momentum_it_is_fedavg(blobs: Dataset, cls: type) -> None:
    assert_same(weights(blobs, cls(lr=0.1, momentum=0.0)), weights(blobs, FedAvg(lr=0.1)))
    assert_different(weights(blobs, cls(lr=0.1, momentum=0.5)), weights(blobs, FedAvg(lr=0.1)))


def test_fedprox_without_pull_is_fedavg(blobs: Dataset) -> None:
    assert_same(weights(blobs, FedProx(lr=0.1, mu=0.0)), weights(blobs, FedAvg(lr=0.1)))
    assert_different(weights(blobs, FedProx(lr=0.1, mu=1.0)), weights(blobs, FedAvg(lr=0.1)))


def test_slowmo_is_fedavgm_in_other_units(blobs: Dataset) -> None:
    assert_same(weights(blobs, SlowMo(0.1, 0.7)), weights(blobs, FedAvgM(0.1, 0.7)))


def centralised_nag(plan: Plan, lr: float, momentum: float) -> Tensor:
    """NAG on the pooled data with torch's own optimiser: an independent reference."""
    module = plan.problem.module_at(plan.problem.initial)
    held = np.concatenate(plan.partition.workers)
    x, y = plan.problem.features(plan.problem.x[held]), plan.problem.y[held]
    optimiser = torch.optim.SGD(module.parameters(), lr, momentum=momentum, nesterov=True)
    for _ in range(plan.iterations):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("cls", [FedNAG, CNAG, FedMom])
def test_tau_1_full_batches_is_centralised_nag(blobs: Dataset, cls: type) -> None:
    """Proposition 1; FedMom too, whose extrapolation is NAG in its other form."""
    plan = plan_of(blobs, cls(lr=0.1, momentum=0.8), tau=1, batch=0)
    assert len(set(plan.partition.sizes.tolist())) == 4  # unequal D_i
    assert_same(last(plan).server.w, centralised_nag(plan, 0.1, 0.8))


def test_tau_above_1_is_not_centralised_nag(blobs: Dataset) -> None:
    plan = plan_of(blobs, FedNAG(lr=0.1, momentum=0.8), tau=3, batch=0)
    assert_different(last(plan).server.w, centralised_nag(plan, 0.1, 0.8))


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("cls", [FedNAG, CNAG])
def test_one_worker_is_torch_nesterov_step_by_step(blobs: Dataset, cls: type, tau: int) -> None:
    lr, momentum = 0.1, 0.8
    plan = plan_of(blobs, cls(lr=lr, momentum=momentum), tau=tau)
    plan = replace(plan, partition=plan.partition.pooled())
    batches = Draws(plan.seed, [75], plan.batch).batches(0, 0, plan.iterations)
    module = plan.problem.module_at(plan.problem.initial).train()
    optimiser = torch.optim.SGD(module.parameters(), lr, momentum=momentum, nesterov=True)
    states = {state.iteration: state for state in simulate(plan)}
    for iteration, index in enumerate(batches, 1):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(blobs.x[index]), blobs.y[index]).backward()
        optimiser.step()
        if iteration in states:
            parameters = list(module.parameters())
            w = torch.cat([p.detach().reshape(-1) for p in parameters])
            buffer = torch.cat(
                [optimiser.state[p]["momentum_buffer"].reshape(-1) for p in parameters]
            )
            assert_same(states[iteration].server.w, w)
            assert_same(states[iteration].server.v, -lr * buffer)
    assert len(states) == 1 + plan.iterations // tau


@pytest.mark.parametrize("batch", [8, 20, 0])
def test_the_engine_is_a_plain_torch_loop(
    blobs: Dataset, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers one by one, with torch's own optimiser; at batch 20 some have fewer samples."""
    monkeypatch.setattr(engine_module, "GRADIENT_BLOCK", 7)  # full gradients take several blocks
    lr, momentum = 0.1, 0.8
    plan = plan_of(blobs, FedNAG(lr=lr, momentum=momentum), batch=batch, chunk=3, threads=2)
    sizes = plan.partition.sizes.tolist()
    assert min(sizes) < 20 < max(sizes)
    schedule = Draws(plan.seed, sizes, batch)
    w = plan.problem.initial
    v = torch.zeros_like(w)
    for first in range(0, plan.iterations, plan.tau):
        mean_w, mean_v = torch.zeros_like(w), torch.zeros_like(w)
        for worker, held in enumerate(plan.partition.workers):
            module = plan.problem.module_at(w).train()
            optimiser = torch.optim.SGD(module.parameters(), lr, momentum=momentum, nesterov=True)
            parts = plan.problem.layout.unravel(v)
            for name, parameter in module.named_parameters():
                optimiser.state[parameter]["momentum_buffer"] = -parts[name] / lr
            for positions in schedule.batches(worker, first, plan.tau):
                x, y = blobs.x[held[positions]], blobs.y[held[positions]]
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
            share = sizes[worker] / sum(sizes)
            for name, parameter in module.named_parameters():
                plan.problem.layout.unravel(mean_w)[name].add_(share * parameter.detach())
                buffer = optimiser.state[parameter]["momentum_buffer"]
                plan.problem.layout.unravel(mean_v)[name].sub_(share * lr * buffer)
        w, v = mean_w, mean_v
    state = last(plan)
    assert_same(state.server.w, w)
    assert_same(state.server.v, v)


def test_scaffold_with_one_worker_is_sgd(blobs: Dataset) -> None:
    pooled = {"partition": partition.iid(75, 1, seed=0)}
    scaffold = replace(plan_of(blobs, Scaffold(lr=0.1)), **pooled)
    sgd = replace(plan_of(blobs, FedAvg(lr=0.1)), **pooled)
    assert_same(last(scaffold).server.w, last(sgd).server.w)
    assert_same(last(sgd).server.w, weights(blobs, CSGD(lr=0.1)))


def test_mime_is_mimelite_where_there_is_nothing_to_correct(blobs: Dataset) -> None:
    """One worker, full batches: the variance-reduced gradient is the gradient."""
    pooled = {"partition": partition.iid(75, 1, seed=0)}
    mime = replace(plan_of(blobs, Mime(0.1, 0.6), batch=0), **pooled)
    lite = replace(plan_of(blobs, MimeLite(0.1, 0.6), batch=0), **pooled)
    assert_same(last(mime).server.w, last(lite).server.w)
    assert_different(weights(blobs, Mime(0.1, 0.6)), weights(blobs, MimeLite(0.1, 0.6)))


@pytest.mark.parametrize("participants", [2, 4])
def test_scaffold_variates_stay_the_mean_of_the_workers(blobs: Dataset, participants: int) -> None:
    plan = plan_of(blobs, Scaffold(lr=0.1), per_round=participants)
    sizes = torch.from_numpy(plan.partition.sizes).double()
    none = Vectors(c=torch.zeros_like(plan.problem.initial))
    for state in simulate(replace(plan, chunk=2, threads=1)):
        own = torch.stack([state.memories.get(i, none).c for i in range(len(sizes))])
        assert_same(state.server.c, sizes @ own / sizes.sum())
    assert state.server.c.abs().max() > 1e-3


@EVERY
def test_a_state_is_not_written_to_by_the_next_round(blobs: Dataset, name: str) -> None:
    def copied(state: State) -> dict[str, Tensor]:
        found = {f"server {key}": vector.clone() for key, vector in state.server.items()}
        for worker, held in state.memories.items():
            found |= {f"{worker} {key}": vector.clone() for key, vector in held.items()}
        return {**found, "starts": torch.from_numpy(state.starts.copy())}

    states = [(state, copied(state)) for state in simulate(plan_of(blobs, ALGORITHMS[name]()))]
    for state, before in states:
        after = copied(state)
        assert set(after) == set(before)
        assert all(torch.equal(after[key], before[key]) for key in before)


@cache
def looped(dataset: Dataset) -> Problem:
    """The same, and nothing of it is recorded."""
    problem = problem_of.__wrapped__(dataset, "logistic")
    problem.use_plain_loop("to be compared with")
    return problem


@EVERY
def test_steps_are_recorded_as_they_are_written(blobs: Dataset, name: str) -> None:
    """The replayed step against the rule itself, called as it is; some rules alias vectors."""
    plan = plan_of(blobs, ALGORITHMS[name](), per_round=3)
    plain = replace(plan, problem=looped(blobs))
    assert_same(last(plan).server.w, last(plain).server.w)


def test_fednag_local_is_fednag_as_long_as_there_is_one_round(blobs: Dataset) -> None:
    once = {"tau": 5, "iterations": 5}
    assert_same(
        weights(blobs, FedNAGLocal(0.1, 0.8), **once), weights(blobs, FedNAG(0.1, 0.8), **once)
    )
    assert_different(weights(blobs, FedNAGLocal(0.1, 0.8)), weights(blobs, FedNAG(0.1, 0.8)))


@EVERY
@pytest.mark.parametrize("model", ["linear", "logistic", "mlp"])
def test_chunked_is_looped(blobs: Dataset, name: str, model: str) -> None:
    algorithm = ALGORITHMS[name]()
    one_by_one = weights(blobs, algorithm, model=model, per_round=3)
    for chunk, threads in [(2, 1), (3, 2), (4, 2)] if model == "logistic" else [(2, 2)]:
        changes = {"model": model, "chunk": chunk, "threads": threads, "per_round": 3}
        assert_same(weights(blobs, algorithm, **changes), one_by_one)


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (24, 2, 9, 7), generator=generator, dtype=torch.uint8)
    y = torch.arange(24) % 3
    return Dataset("pictures", x[:18], y[:18], x[18:], y[18:], classes=3, scale=1 / 255)


@EVERY
def test_chunked_cnn_is_looped(pictures: Dataset, name: str) -> None:
    changes: dict[str, Any] = {"model": "cnn", "tau": 2, "iterations": 4, "batch": 3}
    algorithm = ALGORITHMS[name](lr=0.05)  # type: ignore[call-arg]
    one_by_one = weights(pictures, algorithm, **changes)
    stacked = weights(pictures, algorithm, **changes, chunk=4)
    torch.testing.assert_close(stacked, one_by_one, rtol=1e-8, atol=1e-10)


def test_chunked_deep_networks_are_looped(pictures: Dataset) -> None:
    changes: dict[str, Any] = {"model": "resnet20", "tau": 1, "iterations": 1, "batch": 2}
    one_by_one = weights(pictures, FedNAG(lr=0.01), **changes)
    stacked = weights(pictures, FedNAG(lr=0.01), **changes, chunk=2)
    torch.testing.assert_close(stacked, one_by_one, rtol=1e-8, atol=1e-10)


@EVERY
def test_threads_and_repetition_change_no_bit(blobs: Dataset, name: str) -> None:
    algorithm = ALGORITHMS[name]()
    first = weights(blobs, algorithm, chunk=2, threads=1)
    for threads in (1, 3):
        assert torch.equal(weights(blobs, algorithm, chunk=2, threads=threads), first)


@EVERY
def test_bytes_are_what_is_sent(blobs: Dataset, name: str, monkeypatch: Any) -> None:
    """Counts the vectors that really cross, at every call of the workers' half."""
    counted = {"down": 0, "up": 0}

    def spy(algorithm: Algorithm, sent: Vectors, *rest: Any) -> Any:
        found = local_round(algorithm, sent, *rest)
        counted["down"] += sent.nbytes
        counted["up"] += found[0].nbytes
        return found

    monkeypatch.setattr(engine_module, "local_round", spy)
    algorithm = ALGORITHMS[name]()
    state = last(plan_of(blobs, algorithm, per_round=3))
    if algorithm.pooled:
        assert (state.bytes_down, state.bytes_up) == (0, 0)
    else:
        assert (state.bytes_down, state.bytes_up) == (counted["down"], counted["up"])
        assert counted["down"] > 0


def test_payloads_in_vectors() -> None:
    """How many vectors each method sends a worker, and gets back, each round."""
    w = torch.zeros(10)
    counts = {}
    for name, cls in ALGORITHMS.items():
        down, up = payload(cls(), cls().init(w))
        counts[name] = (down // 40, up // 40)
    assert counts == {
        "fednag": (2, 2),
        "fedavg": (1, 1),
        "fedmom": (1, 1),
        "slowmo": (1, 1),
        "mimelite": (2, 2),
        "mime": (4, 2),
        "fedprox": (1, 1),
        "scaffold": (2, 2),
        "fedavgm": (1, 1),
        "fedadam": (1, 1),
        "mfl": (2, 2),
        "hiermo": (2, 2),
        "fedcm": (2, 1),
        "fedadc": (2, 1),
        "domo": (2, 1),
        "ghbm": (2, 1),
        "local-ghbm": (1, 1),
        "fedhbm": (1, 1),
        "scaffold-m": (3, 2),
        "fedacg": (1, 1),
        "stem": (2, 2),
        "fedglomo": (2, 2),
        "fedyogi": (1, 1),
        "fedadagrad": (1, 1),
        "diloco": (1, 1),
        "fedlion": (2, 2),
        "fednova": (1, 1),
        "fedexp": (1, 1),
        "feddyn": (1, 1),
        "nbafl": (1, 1),
        "fednag-local": (1, 1),
        "fednag-rebuilt": (2, 1),
        "fedpaq": (1, 1),
        "diana": (1, 1),
        "ef21": (1, 1),
        "marina": (2, 1),
        "acgd": (1, 1),
        "adiana": (2, 2),
        "csgd": (0, 0),
        "cnag": (0, 0),
    }


@EVERY
def test_algorithms_are_values(name: str) -> None:
    cls = ALGORITHMS[name]
    assert cls() == cls()
    assert hash(cls()) == hash(cls())
    assert replace(cls(), lr=0.5) != cls()
    with pytest.raises(AttributeError):
        cls().lr = 1.0  # type: ignore[attr-defined]


@EVERY
def test_momentum_matters(blobs: Dataset, name: str) -> None:
    algorithm = ALGORITHMS[name]()
    if hasattr(algorithm, "momentum"):
        other = replace(algorithm, momentum=0.3)  # type: ignore[call-arg]
        long = {"iterations": 21} if name == "ghbm" else {}  # until its window is full
        assert_different(weights(blobs, algorithm, **long), weights(blobs, other, **long))
