"""Recordings replayed without torch's interpreter: the same bits, and nothing overwritten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fednag
from fednag.compute import replay
from fednag.compute.planned import Planned
from fednag.compute.recording import record
from fednag.compute.replay import compiled, in_python


def step(w: Tensor, v: Tensor, x: Tensor) -> list[Tensor]:
    """Products, views, sums that are written in place, several results, and an input given back."""
    h = torch.relu(x @ w.view(4, 3))
    scores = torch.cat([h, h * 2], 1).log_softmax(1)
    values, _ = scores.max(1)
    slope = x.t() @ (h - h.mean(0))
    v = 0.9 * v - 0.1 * slope.flatten()
    return [w + 0.9 * v - 0.1 * slope.flatten(), v, values, scores.sum(1), x]


def given(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=draw) for size in ((12,), (12,), (5, 4))]


def test_replays_are_the_operations_and_stay_as_they_are() -> None:
    recorded = record(step, *given(0))
    planned, plain = Planned(recorded), in_python(recorded)
    found = [planned(*given(seed)) for seed in range(5)]
    assert any(call.buffer is not None for call in planned._calls)
    for seed, parts in enumerate(found):  # later replays wrote over none of these
        assert all(map(torch.equal, parts, plain(*given(seed))))


def test_threads_have_memory_of_their_own() -> None:
    recorded = record(step, *given(0))
    planned, plain = Planned(recorded), in_python(recorded)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: planned(*given(seed)), range(200)))
    for seed, parts in enumerate(found):
        assert all(map(torch.equal, parts, plain(*given(seed))))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.recurrent, self.out = nn.LSTM(24, 5, batch_first=True), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2).reshape(len(x), 6, 24)
        return self.out(self.recurrent(h)[0][:, -1])


@pytest.mark.parametrize("method", ["fednag", "scaffold"])
@pytest.mark.parametrize("model", ["mlp", "own"])
def test_a_run_without_the_interpreter_has_its_bits(
    method: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> tuple[list[Any], list[str]]:
        run = fednag.run(
            method,
            model=Small() if model == "own" else model,
            **{"workers": 3, "tau": 3, "iterations": 9, "batch": 8},
            engine={"chunk": 1 if model == "own" else 3, "threads": 2},
        )
        losses = [record.loss for record in run.records]
        return [losses, *(p.detach() for p in run.final.parameters())], run.notes

    (losses, *weights), notes = trained()

    def gone(*_: Any) -> Any:
        raise AttributeError("torch has no such interpreter")

    monkeypatch.setattr(replay, "_Translation", gone)
    assert isinstance(compiled(record(step, *given(0))), Planned)
    (again, *other), said = trained()
    assert again == losses
    assert all(map(torch.equal, other, weights))
    assert said == notes  # that is, it is not the plain loop
