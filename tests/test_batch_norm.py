"""Batch normalisation: running statistics travel, stay with workers, or stay as they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag
from fednag import FedAvg, FedNAG, Mime
from fednag.config import parse
from fednag.core.keys import Draws
from fednag.data import partition
from fednag.runs.build import Builder, Parts

SIZES = {"workers": 3, "tau": 3, "iterations": 12, "batch": 6, "quiet": True}


def samples() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = 2 + 3 * torch.randn(70, 4, generator=draw, dtype=torch.float64)
    return x, (x.sum(1) > 8).long() + (x[:, 0] > 2).long()


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    ).double()  # fmt: skip


def run(model: nn.Module, batch_norm: str | None = None, **changes: Any) -> fednag.Run:
    x, y = samples()
    algorithm = changes.pop("algorithm", FedAvg(lr=0.1))
    engine = {"dtype": "float64", **changes.pop("engine", {})}
    return fednag.run(
        algorithm, model=model, data=(x, y), test=(x[:20], y[:20]), engine=engine,
        batch_norm=batch_norm, split={"kind": "sizes", "skew": 1.0}, **{**SIZES, **changes},
    )  # fmt: skip


def plain_fedavg(rounds: int = 4) -> nn.Module:
    """FedAvg as everyone writes it: state dictionaries averaged by data size."""
    x, y = samples()
    held = partition.by_size(len(x), 3, 1.0, 0).workers
    schedule = Draws(0, [len(mine) for mine in held], 6)
    shared = net()
    for number in range(rounds):
        states = []
        for worker, mine in enumerate(held):
            model = copy.deepcopy(shared).train()
            optimiser = torch.optim.SGD(model.parameters(), 0.1)
            for positions in schedule.batches(worker, 3 * number, 3):
                index = mine[positions]
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[index]), y[index]).backward()
                optimiser.step()
            states.append(model.state_dict())
        sizes = np.array([len(mine) for mine in held]) / len(x)
        mean = {
            name: sum(s * state[name].double() for s, state in zip(sizes, states, strict=True))
            for name in states[0]
        }
        counted = {n: mean[n].round() for n in mean if n.endswith("tracked")}  # else cut off
        shared.load_state_dict(mean | counted)
    return shared


@pytest.mark.parametrize("chunk", [1, 3])
def test_averaged_is_what_a_plain_fedavg_loop_gives(chunk: int) -> None:
    ours = run(net(), engine={"chunk": chunk}).final.state_dict()
    plain = plain_fedavg().state_dict()
    assert set(ours) == set(plain)
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-12)
    assert ours["1.num_batches_tracked"] == 12
    assert not torch.equal(ours["1.running_mean"], net()[1].running_mean)  # type: ignore[arg-type]


def test_statistics_are_counted_in_bytes() -> None:
    found = run(net()).records[-1]
    weights, statistics = 4 * 6 + 6 + 6 + 6 + 6 * 3 + 3, 6 + 6 + 1
    assert found.bytes_up == found.bytes_down == 4 * 3 * 8 * (weights + statistics)


def test_frozen_statistics_stay_and_are_used() -> None:
    model = net()
    with torch.no_grad():
        model[1].running_mean.add_(1.5)  # type: ignore[operator,union-attr]
        model[1].running_var.mul_(4)  # type: ignore[operator,union-attr]
    found = run(model, "frozen")
    assert torch.equal(found.final[1].running_mean, model[1].running_mean)  # type: ignore[index,arg-type]
    assert found.records[-1].bytes_up == 4 * 3 * 8 * 63
    still = copy.deepcopy(model)
    still[1].eval()  # a part in evaluation mode stays there, which is the same
    same = run(still)
    assert [r.loss for r in found.records] == [r.loss for r in same.records]


def test_local_statistics_stay_with_the_workers() -> None:
    found = run(net(), "local")
    averaged = run(net())
    assert found.records[-1].bytes_up == 4 * 3 * 8 * 63
    # Batches are normalised by themselves in training: the weights are the same.
    for name, value in found.final.named_parameters():
        torch.testing.assert_close(value, dict(averaged.final.named_parameters())[name])
    # Each worker is measured with its own statistics, which fit its own data.
    assert found.records[-1].loss != averaged.records[-1].loss
    assert found.records[-1].accuracy is not None


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
@pytest.mark.parametrize("algorithm", [FedNAG(lr=0.1), Mime(lr=0.1)])
def test_resumed_is_not_to_be_told_from_uninterrupted(
    tmp_path: Path, batch_norm: str, algorithm: Any
) -> None:
    engine = {"chunk": 3}  # one that is chosen by timing may be another
    whole = run(net(), batch_norm, algorithm=algorithm, engine=engine)

    class StopError(Exception):
        pass

    from fednag.runs import execute

    original = execute.Execution._save
    count = 0

    def save(self: Any, *given: Any) -> None:
        nonlocal count
        original(self, *given)
        count += 1
        if count == 2:
            raise StopError

    execute.Execution._save = save  # type: ignore[method-assign]
    settings = {"checkpoint": {"rounds": 1}, "out": tmp_path, "resume": True, "engine": engine}
    try:
        with pytest.raises(StopError):
            run(net(), batch_norm, algorithm=algorithm, **settings)
    finally:
        execute.Execution._save = original  # type: ignore[method-assign]
    resumed = run(net(), batch_norm, algorithm=algorithm, **settings)
    assert any("went on from round" in note for note in resumed.notes)
    assert [r.loss for r in resumed.records] == [r.loss for r in whole.records]
    for state in ("final", "best"):
        ours, theirs = getattr(resumed, state).state_dict(), getattr(whole, state).state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_best_models_statistics_are_saved(tmp_path: Path) -> None:
    from fednag.core.state import Best, State
    from fednag.core.vectors import Vectors
    from fednag.runs import checkpoint
    from fednag.runs.folder import RunFolder

    x, y = samples()
    plan = Builder(Parts(fednag.dataset(x, y), net())).plan(
        parse({"data": {"name": "custom"}, "model": {"name": "custom"}})
    )[1]
    problem = plan.problem
    server = Vectors(w=problem.initial, buffers=problem.initial_buffers)
    best = Best(problem.initial + 1, 0.5, 3, problem.initial_buffers + 2)
    folder = RunFolder(tmp_path)
    folder.records_file.touch()
    starts = np.zeros(4, dtype=np.int64)
    checkpoint.write(folder, State(server, starts, round=1, best=best), 0, "me", {})
    found, _ = checkpoint.newest(folder, plan, "me")
    assert found is not None
    assert found.state.best is not None
    assert torch.equal(found.state.best.buffers, best.buffers)  # type: ignore[arg-type]
    assert torch.equal(found.state.server.buffers, server.buffers)


def test_a_model_with_batch_normalisation_trains_by_name() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, 8, 8, generator=draw)
    found = fednag.run(
        FedNAG(lr=0.01), model="resnet20", data=(x, torch.arange(24) % 3), workers=2, tau=1,
        iterations=2, batch=4, quiet=True, engine={"chunk": 1},
    )  # fmt: skip
    assert found.records[-1].loss is not None
    moved = [n for n, b in found.final.named_buffers() if n.endswith("running_mean") and b.any()]
    assert len(moved) == 19
    assert not any("recorded" in note for note in found.notes)


def test_a_given_module_takes_the_option_too() -> None:
    with pytest.raises(fednag.FednagError, match=r"batch_norm"):
        run(net(), "sometimes")
