"""Models made for every seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag
from fednag.data.sets import load
from fednag.errors import FednagError
from refusals import refused

SHORT: dict[str, Any] = {"tau": 1, "iterations": 2, "workers": 2, "quiet": True}
REMEDY = "all seeds start from the weights of this one module"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out


class Sized(nn.Module):
    """A size, which a seed must not take the place of."""

    def __init__(self, hidden: int, depth: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, hidden), *[nn.ReLU()] * depth, nn.Linear(hidden, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def expected(seed: int) -> float:
    """The loss, on all digits, of the Net that torch makes after its seed."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        digits = load("digits")
        outputs = Net()(digits.x.float() * digits.scale)
        return float(nn.functional.cross_entropy(outputs, digits.y))


def start(run: fednag.api.Run) -> float:
    loss = run.records[0].loss
    assert loss is not None
    return loss


def seeded(seed: int) -> nn.Module:
    return Net()


class Maker:
    def __call__(self, seed: int) -> nn.Module:
        return Net()


@pytest.mark.parametrize(
    "factory",
    [
        seeded,
        lambda seed: Net(),
        lambda number: Net(),
        lambda *, seed: Net(),
        lambda seed=7: Net(),
        lambda width=64: Net(),
        lambda: Net(),
        Net,
        partial(seeded),
        Maker(),
    ],
)
def test_every_seed_has_weights_of_its_own(factory: Any) -> None:
    before = torch.random.get_rng_state()
    done = fednag.compare(["fedavg"], model=factory, seeds=[3, 5], **SHORT)
    assert torch.equal(torch.random.get_rng_state(), before)
    for run, seed in zip(done.runs, (3, 5), strict=True):
        assert start(run) == pytest.approx(expected(seed), rel=1e-5)
        assert not any(REMEDY in note for note in run.notes)


def test_the_seed_is_what_it_is_told() -> None:
    told: list[int] = []

    def make(seed: int) -> nn.Module:
        told.append(seed)
        return Net()

    fednag.run(model=make, seed=11, **SHORT)
    assert told == [11]


@pytest.mark.parametrize("sweeps", [False, True])
def test_it_is_asked_once_a_seed_even_if_it_draws_elsewhere(sweeps: bool) -> None:
    """Methods that are compared start from the same weights."""
    told: list[int] = []
    rng = np.random.default_rng(0)

    def make(seed: int) -> nn.Module:
        told.append(seed)
        net = Net()
        with torch.no_grad():
            net.layer.weight.copy_(torch.from_numpy(rng.normal(size=(10, 64)) / 8))
        return net

    if sweeps:
        axes = {"algorithm.lr": [0.01, 0.1]}
        done = fednag.sweep(axes, "fedavg", model=make, seeds=[0, 1], **SHORT)
    else:
        done = fednag.compare(["fednag", "fedavg"], model=make, seeds=[0, 1], **SHORT)
    assert told == [0, 1]
    firsts = [start(run) for run in done.runs]
    assert firsts[:2] == firsts[2:]
    assert firsts[0] != firsts[1]


def test_one_module_for_several_seeds_is_told() -> None:
    several = fednag.compare(["fedavg"], model=Net(), seeds=[0, 1], **SHORT)
    for run in several.runs:
        (note,) = [note for note in run.notes if REMEDY in note]
        assert "model=lambda seed" in note
    swept = fednag.sweep({"algorithm.lr": [0.1]}, "fedavg", model=Net(), seeds=[0, 1], **SHORT)
    assert all(any(REMEDY in note for note in run.notes) for run in swept.runs)
    for alone in (
        fednag.run("fedavg", model=Net(), **SHORT),
        *fednag.compare(["fedavg", "fednag"], model=Net(), seeds=[4], **SHORT).runs,
        *fednag.compare(["fedavg"], model="logistic", seeds=[0, 1], **SHORT).runs,
    ):
        assert not any(REMEDY in note for note in alone.notes)


def test_a_run_of_a_factory_is_known_again(tmp_path: Path) -> None:
    common: dict[str, Any] = {**SHORT, "out": tmp_path, "engine": {"chunk": 1}}
    first = fednag.compare(["fedavg"], model=seeded, seeds=[0, 1], **common)
    again = fednag.compare(["fedavg"], model=Net, seeds=[0, 1], resume=True, **common)
    assert [run.folder for run in again.runs] == [run.folder for run in first.runs]
    assert len(list((tmp_path / "python").iterdir())) == 2
    assert [run.records for run in again.runs] == [run.records for run in first.runs]
    with pytest.raises(FednagError, match="other first weights"):
        fednag.compare(["fedavg"], model=lambda: Sized(3), seeds=[0], resume=True, **common)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda seed: None, "your function gave NoneType for seed 0; let it return an nn.Module"),
        (lambda seed: Net, "your function gave type for seed 0"),
        (lambda seed: Sized(-seed - 1), "your function failed to make one for seed 0 "),
        (type, "type does not take the seed alone"),
        (Sized, r"Sized does not take the seed alone, or nothing; .*=lambda seed: Sized\("),
        (partial(Sized, depth=2), "Sized does not take the seed alone"),
        (nn.Linear, "Linear does not take the seed alone"),
        (lambda a, b: Net(), "your function does not take the seed alone"),
        (lambda seed, width: Net(), "your function does not take the seed alone"),
        (lambda *, width: Net(), "your function does not take the seed alone"),
    ],
)
def test_what_makes_no_model_is_said(factory: Any, said: str) -> None:
    with pytest.raises(FednagError, match=f"^model: {said}") as caught:
        fednag.run(model=factory, **SHORT)
    assert "\n" not in str(caught.value)


def test_what_is_no_model_is_said() -> None:
    with refused("model", "^; give a name"):
        fednag.run(model=3, **SHORT)  # type: ignore[arg-type]
