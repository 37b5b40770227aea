"""Workers with odd data, and updates that are not finite."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag
from fednag import FedAvg, FedNAG
from fednag.algorithms import ALGORITHMS
from fednag.algorithms.compressed import GradientMethod
from fednag.config import parse
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.runs.build import Builder, Parts
from fednag.simulate.run import simulate
from refusals import refused

SIZES = (30, 20, 10)


def healthy() -> tuple[Tensor, Tensor, Tensor]:
    """Samples, labels and owners: three workers."""
    generator = torch.Generator().manual_seed(3)
    owners = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    y = torch.arange(len(owners)) % 2
    return torch.randn(len(owners), 4, generator=generator) + y[:, None], y, owners


def final_state(
    algorithm: Any, x: Tensor, y: Tensor, owners: Tensor, standardise: bool = False, **engine: Any
) -> State:
    data = fednag.dataset(x, y, owners=owners)
    raw = {
        "data": {"name": "custom", "standardise": standardise},
        "model": {"name": "custom"},
        "split": {"kind": "natural"},
        "training": {"tau": 3, "iterations": 12, "batch": 8},
        "engine": {"chunk": 2, "threads": 2, **engine},
    }
    torch.manual_seed(0)
    builder = Builder(Parts(dataset=data, module=nn.Linear(4, 2)))
    _, plan, _ = builder.plan(parse(raw), algorithm)
    return list(simulate(plan))[-1]


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("algorithm", [FedNAG(), FedAvg(), fednag.FedMom(), fednag.SlowMo()])
def test_the_others_go_on_as_if_the_sick_one_were_not_there(algorithm: Any, chunk: int) -> None:
    x, y, owners = healthy()
    well = owners < 2
    alone = final_state(algorithm, x[well], y[well], owners[well], chunk=chunk)
    x[owners == 2] *= 1e25  # finite, but its updates are not
    beside = final_state(algorithm, x, y, owners, chunk=chunk)
    assert torch.allclose(beside.server.w, alone.server.w, rtol=1e-6)
    assert beside.refusals == 4
    assert beside.record is not None
    assert beside.record.refused == (2,)
    assert beside.record.refusals == 4
    assert beside.record.participants == 3
    assert not beside.diverged


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_any_method_no_number_is_spoilt(name: str) -> None:
    x, y, owners = healthy()
    x[owners == 2] *= 1e25
    state = final_state(ALGORITHMS[name](), x, y, owners)
    kept = [vector for held in state.memories.values() for vector in held.values()]
    for vector in (*state.server.values(), *kept):
        assert bool(vector.isfinite().all())
    assert state.record is not None
    # Alone with the sick data, or led by a gradient that is huge and yet finite.
    sends_gradients = issubclass(ALGORITHMS[name], GradientMethod)
    by_signs = name == "fedlion"  # its steps are of one size
    assert sends_gradients or by_signs or state.refusals > 0
    lost = ALGORITHMS[name].pooled or name == "mime" or sends_gradients
    assert state.diverged == lost
    assert (state.record.loss is None) == lost


def test_a_refused_worker_keeps_the_memory_it_had() -> None:
    x, y, owners = healthy()
    x[owners == 2] *= 1e25
    memories = final_state(fednag.Scaffold(), x, y, owners).memories
    assert set(memories) == {0, 1}  # worker 2 has what it began with
    assert all(held.c.abs().min() > 0 for held in memories.values())


def test_when_all_are_refused_the_run_has_diverged() -> None:
    run = fednag.run(FedNAG(lr=1e38), model="logistic", tau=5, iterations=50, workers=3)
    assert run.diverged
    assert run.ended == "diverged at iteration 5"
    last = run.records[-1]
    assert (last.loss, last.refused, last.refusals) == (None, (0, 1, 2), 3)
    assert all(bool(p.isfinite().all()) for p in run.final.parameters())
    assert "nan" not in str(fednag.compare([FedNAG(lr=1e38)], model="logistic", iterations=20))
    assert any("3 updates of 3 workers were refused" in note for note in run.notes)


def test_records_name_those_refused_since_the_last_one() -> None:
    x, y, owners = healthy()
    x[owners == 1] *= 1e25
    run = fednag.run(
        FedNAG(),
        data=(x, y),
        owners=owners,
        model=nn.Linear(4, 2),
        tau=2,
        iterations=12,
        batch=8,
        split={"kind": "natural"},
        evaluation={"every": 2},
    )
    assert [record.refusals for record in run.records] == [0, 2, 4, 6]
    assert [record.refused for record in run.records] == [(), (1,), (1,), (1,)]
    assert any("6 updates of worker 1 were refused" in note for note in run.notes)
    assert "refused" not in run.records[0].as_json()


def test_a_worker_is_named_only_for_rounds_it_was_refused_in() -> None:
    x, y, owners = healthy()
    x[owners == 1] *= 1e25
    run = fednag.run(
        FedAvg(),
        data=(x, y),
        owners=owners,
        model=nn.Linear(4, 2),
        tau=2,
        iterations=24,
        batch=8,
        split={"kind": "natural"},
        training={"participants": 2},
    )
    news = [b.refusals - a.refusals for a, b in pairwise(run.records)]
    assert set(news) == {0, 1}
    assert [r.refused for r in run.records[1:]] == [(1,) if new else () for new in news]


ODD = {
    "one sample": lambda x, y: (x[:1], y[:1]),
    "fewer than a batch": lambda x, y: (x[:5], y[:5]),
    "one class": lambda x, y: (x, torch.zeros_like(y)),
    "constant features": lambda x, y: (torch.ones_like(x), y),
    "zeros": lambda x, y: (torch.zeros_like(x), y),
}


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("odd", ODD)
def test_odd_workers_train(odd: str, standardise: bool) -> None:
    x, y, owners = healthy()
    mine = owners == 0
    odd_x, odd_y = ODD[odd](x[mine], y[mine])
    x, y = torch.cat([odd_x, x[~mine]]), torch.cat([odd_y, y[~mine]])
    owners = torch.cat([torch.zeros(len(odd_x), dtype=torch.int64), owners[~mine]])
    state = final_state(FedNAG(lr=0.1), x, y, owners, standardise)
    assert not state.diverged
    assert state.refusals == 0
    assert state.record is not None
    assert state.record.loss is not None
    assert state.record.loss < state.first_loss


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", ["x", "test_x"])
def test_numbers_that_are_none_are_refused_before_training(value: float, part: str) -> None:
    x, y, _ = healthy()
    parts = {"x": x, "test_x": x[:5].clone()}
    parts[part][3, 1] = value
    data = Dataset("own", parts["x"], y, parts["test_x"], y[:5], 2)
    with refused("data", "not finite in row 3"):
        fednag.run(FedNAG(), data=data, model=nn.Linear(4, 2), iterations=4)


@pytest.mark.parametrize("label", [-1, 2, 10**9])
def test_labels_out_of_range_are_refused_before_training(label: int) -> None:
    x, y, _ = healthy()
    y = y.clone()
    y[7] = label
    data = Dataset("own", x, y, x[:0], y[:0], 2)
    with refused("data", "0 to 1 in row 7"):
        fednag.run(FedNAG(), data=data, model=nn.Linear(4, 2), iterations=4)


def test_a_model_with_too_few_outputs_is_refused_before_training() -> None:
    x, y, _ = healthy()
    y[-1] = 4
    with refused("model", "labels up to 4; give it 5"):
        fednag.run(FedNAG(), data=(x, y), model=nn.Linear(4, 2), iterations=4)


@pytest.mark.parametrize("momentum", [1.0, 1.5, 10.0])
@pytest.mark.parametrize("lr", [0.01, 1e3, 1e300])
def test_wild_numbers_end_in_a_table_without_nan(lr: float, momentum: float) -> None:
    methods = [FedNAG(lr=lr, momentum=momentum), fednag.FedMom(lr=lr, momentum=momentum)]
    result = fednag.compare(methods, model="mlp", tau=500, iterations=40, workers=2)
    for run in result.runs:
        assert any("expect divergence" in note for note in run.notes)
        assert any("tau 500 is above" in note for note in run.notes)
        for record in run.records:
            assert record.loss is None or np.isfinite(record.loss)
    assert "nan" not in str(result).lower()
    assert "inf" not in str(result).lower()
