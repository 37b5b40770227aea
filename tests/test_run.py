"""Runs from Python: records, the best model, stopping, divergence, odd models, many workers."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fednag
from fednag import Algorithm, FedAvg, FedNAG, FednagError, News, Vectors
from fednag.data.dataset import Dataset
from fednag.runs.folder import RunFolder
from refusals import refused

SMALL: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 20}


def numbers(run: fednag.Run) -> list[tuple[Any, ...]]:
    """What must repeat: everything but the clock."""
    return [
        (r.iteration, r.round, r.loss, r.accuracy, r.train_accuracy, r.bytes_up, r.bytes_down)
        for r in run.records
    ]


def test_records_tell_the_run() -> None:
    run = fednag.run(FedNAG(), **SMALL)
    assert [r.iteration for r in run.records] == [0, 5, 10, 15, 20]
    assert [r.round for r in run.records] == [0, 1, 2, 3, 4]
    vector = 650 * 4  # 64 pixels to 10 classes, float32
    assert [r.bytes_up for r in run.records] == [4 * 2 * vector * k for k in range(5)]
    assert run.records[0].participants == 0
    assert run.records[1].participants == 4
    assert run.records[-1].loss < run.records[0].loss
    assert all(a.seconds <= b.seconds for a, b in zip(run.records, run.records[1:], strict=False))


def test_iterations_need_not_be_a_multiple_of_tau() -> None:
    run = fednag.run(FedNAG(), model="logistic", tau=8, iterations=20)
    assert [r.iteration for r in run.records] == [0, 8, 16, 20]


def test_loss_and_accuracy_are_those_of_the_final_model() -> None:
    from fednag.data.sets import load

    data = load("digits")
    run = fednag.run(FedNAG(), **SMALL)
    with torch.no_grad():
        scores = run.final(data.x.float() / 16)
        hits = run.final(data.test_x.float() / 16).argmax(1) == data.test_y
    loss = nn.functional.cross_entropy(scores, data.y).item()
    assert run.records[-1].loss == pytest.approx(loss, rel=1e-5)
    assert run.records[-1].accuracy == pytest.approx(hits.float().mean().item())


def test_best_is_the_aggregated_model_of_least_loss(blobs: Dataset) -> None:
    """A momentum above 1 overshoots: the last model is not the best one."""
    run = fednag.run(fednag.FedMom(lr=0.3, momentum=1.3), data=blobs, **SMALL, workers=3)
    after = [r for r in run.records if r.round > 0]
    least = min(after, key=lambda r: r.loss)
    assert least.iteration < 20
    with torch.no_grad():
        loss = nn.functional.cross_entropy(run.best(blobs.x.float()), blobs.y).item()
    assert loss == pytest.approx(least.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"accuracy": 0.5}, "accuracy 0.5"),
        ({"loss": 2.0}, "loss 2"),
        ({"seconds": 1e-9}, "1e-09 seconds"),
    ],
)
def test_stops_early(stop: dict[str, float], reason: str) -> None:
    run = fednag.run(FedNAG(lr=0.05), model="logistic", tau=5, iterations=5000, stop=stop)
    assert run.records[-1].iteration < 5000
    assert run.ended.startswith(reason)
    assert not run.diverged


def test_divergence_is_marked_and_the_others_go_on() -> None:
    methods = [FedNAG(lr=1e6, momentum=0.99), FedAvg(lr=0.05)]
    result = fednag.compare(methods, model="mlp", tau=5, iterations=100)
    sick, well = result["fednag"], result["fedavg"]
    assert sick.diverged
    assert sick.ended == f"diverged at iteration {sick.records[-1].iteration}"
    assert sick.records[-1].loss is None
    assert sick.records[-1].iteration < 100
    assert not well.diverged
    assert well.records[-1].iteration == 100
    assert "nan" not in str(result).lower()
    assert result.best is well


def test_momentum_one_can_diverge() -> None:
    run = fednag.run(FedNAG(lr=1.0, momentum=1.0), model="linear", tau=4, iterations=200)
    assert run.diverged
    assert any("momentum 1" in note for note in run.notes)


def test_same_seed_same_bits_other_seed_other_run() -> None:
    a, b = fednag.run(FedNAG(), **SMALL), fednag.run(FedNAG(), **SMALL)
    assert numbers(a) == numbers(b)
    assert numbers(a) != numbers(fednag.run(FedNAG(), **SMALL, seed=1))


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-4), ("float64", 1e-9)])
def test_digits_agree_across_chunks_and_threads(dtype: str, apart: float) -> None:
    """The trained CNN on digits: its loss to 1e-6 whatever the chunk, its weights to rounding.

    In float32 a rounding difference can flip a maximum in the pooling, which moves single weights
    by more than it is itself.
    """
    runs = [
        fednag.run(
            FedNAG(),
            model="cnn",
            tau=5,
            iterations=10,
            engine={"chunk": chunk, "threads": threads, "dtype": dtype},
        )
        for chunk, threads in [(1, 1), (1, 2), (3, 2)]
    ]
    vectors = [torch.cat([p.reshape(-1) for p in run.final.parameters()]) for run in runs]
    assert torch.equal(vectors[0], vectors[1])
    for vector, run in zip(vectors, runs, strict=True):
        assert (vector - vectors[0]).abs().max() < apart
        assert run.records[-1].loss == pytest.approx(runs[0].records[-1].loss, rel=1e-6)
    assert vectors[0].dtype == getattr(torch, dtype)


def test_partial_participation_counts_only_participants() -> None:
    whole = fednag.run(FedAvg(), **SMALL, workers=10)
    tenth = fednag.run(FedAvg(), **SMALL, workers=10, training={"fraction": 0.3})
    three = fednag.run(FedAvg(), **SMALL, workers=10, training={"participants": 3})
    assert numbers(tenth) == numbers(three)
    assert three.records[-1].participants == 3
    assert three.records[-1].bytes_up * 10 == whole.records[-1].bytes_up * 3


def test_worker_losses_average_to_the_global_loss() -> None:
    split = {"kind": "sizes", "skew": 1.0, "workers": 5}
    run = fednag.run(FedAvg(), **SMALL, split=split, evaluation={"per_worker": True})
    from fednag.data import partition

    sizes = partition.by_size(1437, 5, 1.0, seed=0).sizes
    losses = np.array(run.records[-1].worker_losses)
    assert (losses * sizes).sum() / sizes.sum() == pytest.approx(run.records[-1].loss)
    assert losses.std() > 0


def test_evaluation_every_and_on_a_sample() -> None:
    run = fednag.run(FedAvg(), **SMALL, evaluation={"every": 3, "samples": 100})
    assert [r.round for r in run.records] == [0, 3, 4]
    full = fednag.run(FedAvg(), **SMALL)
    assert run.records[-1].loss != full.records[-1].loss
    assert run.records[-1].accuracy == full.records[-1].accuracy


def test_standardised_features_change_the_run() -> None:
    plain = fednag.run(FedAvg(), **SMALL)
    scaled = fednag.run(FedAvg(), **SMALL | {"data": {"name": "digits", "standardise": True}})
    assert scaled.records[-1].accuracy > plain.records[-1].accuracy + 0.05


def test_regression_on_own_tensors() -> None:
    x = torch.randn(200, 5)
    y = x @ torch.arange(5.0)
    net = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    run = fednag.run(
        FedNAG(lr=0.05), model=net, data=(x, y), loss=nn.MSELoss(), tau=5, iterations=50
    )
    assert run.records[-1].loss < 0.01 * run.records[0].loss
    assert run.records[-1].accuracy is None
    assert "accuracy" not in str(
        fednag.compare([FedAvg()], model=net, data=(x, y), loss="mse", tau=5, iterations=5)
    )


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Branching(nn.Module):
    """Control flow on values cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out if out.sum() > 0 else 0.5 * out


@pytest.mark.parametrize("module", [Dropping, Branching])
def test_models_that_cannot_be_traced_still_train(module: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = module()
    runs = [fednag.run(FedNAG(lr=0.05), model=net, tau=5, iterations=30) for _ in range(2)]
    assert numbers(runs[0]) == numbers(runs[1])
    assert runs[0].records[-1].loss < runs[0].records[0].loss
    assert any("is not recorded" in note for note in runs[0].notes)


def test_frozen_parameters_stay() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, 10))
    net[1].weight.requires_grad_(False)
    run = fednag.run(FedNAG(lr=0.05), model=net, tau=5, iterations=20)
    assert torch.equal(run.final[1].weight, net[1].weight)  # type: ignore[index]
    assert not torch.equal(run.final[2].weight, net[2].weight)  # type: ignore[index]


def test_own_algorithm_needs_no_registration() -> None:
    @dataclass(frozen=True)
    class Sign(Algorithm):
        lr: float = 0.001

        def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Vectors:
            return Vectors(w=local.w - self.lr * grad(local.w).sign())

    result = fednag.compare([Sign(), FedAvg()], **SMALL)
    assert set(result.records) == {"Sign", "fedavg"}
    assert result["Sign"].records[-1].loss < result["Sign"].records[0].loss


def test_folder_holds_all_and_can_be_run_again(tmp_path: Path) -> None:
    run = fednag.run("fednag", **SMALL, out=tmp_path, name="mine")
    assert run.folder is not None
    assert run.folder.parent == tmp_path / "mine"
    assert sorted(p.name for p in run.folder.iterdir()) == [
        ".lock",
        "best.safetensors",
        "config.toml",
        "final.safetensors",
        "records.jsonl",
        "run.json",
    ]
    assert RunFolder(run.folder).records() == run.records
    info = json.loads((run.folder / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["versions"]["torch"] == torch.__version__
    state = load_file(run.folder / "final.safetensors")
    assert all(torch.equal(state[k], v) for k, v in run.final.state_dict().items())
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert config["engine"]["chunk"] >= 1
    given = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "clip": 0.0}
    assert config["algorithm"] == {"name": "fednag", **given}
    from fednag.api import run_all
    from fednag.config import parse

    (again,) = run_all([("fednag", parse(config), None)], out=tmp_path)
    assert numbers(again) == numbers(run)
    assert again.folder != run.folder


def test_natural_split_of_synthetic_data() -> None:
    run = fednag.run(
        FedNAG(),
        model="logistic",
        data="synthetic",
        tau=5,
        iterations=10,
        split={"kind": "natural"},
    )
    assert run.records[-1].participants == 30


def test_random_class_split_says_what_is_missing() -> None:
    split = {"kind": "classes", "classes": 2, "workers": 3, "assign": "random"}
    run = fednag.run(FedAvg(), **SMALL, split=split)
    assert any("held by no worker" in note for note in run.notes)


MANY = """
import resource, sys, torch, fednag
x = torch.rand(20000, 784); y = torch.randint(0, 10, (20000,))
net = torch.nn.Linear(784, 10)
run = fednag.run("fednag", model=net, data=(x, y), workers=int(sys.argv[1]), tau=2, iterations=2,
                 evaluation={"samples": 100})
print(run.records[-1].participants, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_ten_thousand_workers_take_no_more_memory() -> None:
    """One vector a worker would be 300 MB."""
    peak = {}
    for workers in (100, 10_000):
        command = [sys.executable, "-c", MANY, str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        participants, peak[workers] = done.stdout.split()
        assert int(participants) == workers
    assert float(peak[10_000]) - float(peak[100]) < 100


def test_plots_and_public_names() -> None:
    result = fednag.compare(["fednag", "fedavg"], **SMALL, seeds=[0, 1])
    spec = result.plot().to_dict()
    text = json.dumps(spec)
    assert '"low"' in text  # the band over seeds
    assert "fedavg" in text
    assert result.runs[0].plot().to_dict()["hconcat"]
    assert set(result.records) == {"fednag#0", "fednag#1", "fedavg#0", "fedavg#1"}
    assert "(2 runs)" in str(result)
    for name in fednag.__all__:
        assert getattr(fednag, name).__doc__ or name in ("ALGORITHMS", "Vector", "Grad")
    assert set(fednag.__all__) == set(fednag._HOME_OF)


def test_rules_that_are_not_elementwise_are_computed_one_by_one() -> None:
    @dataclass(frozen=True)
    class Clipped(Algorithm):
        lr: float = 0.5

        def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Vectors:
            g = grad(local.w)
            return Vectors(w=local.w - self.lr * g / g.norm())

    runs = [
        fednag.run(Clipped(), **SMALL, workers=8, engine={"chunk": chunk}) for chunk in (0, 1, 8)
    ]
    assert numbers(runs[0]) == numbers(runs[1]) == numbers(runs[2])
    assert any("elementwise" in note for note in runs[2].notes)


@dataclass(frozen=True)
class Forgetful(Algorithm):
    lr: float = 0.1

    def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Any:
        return None


class ChangesWhatItNeeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.scale * x.flatten(1)
        scaled = h * self.scale
        h.mul_(2)
        return self.out(scaled + h)


def test_a_model_that_changes_what_its_gradient_needs_is_refused() -> None:
    with refused("model", "cannot differentiate it"):
        fednag.run("fednag", **{**SMALL, "model": ChangesWhatItNeeds()})


def test_a_split_goes_by_its_kind() -> None:
    named, table = (fednag.run("fednag", **SMALL, split=s) for s in ("iid", {"kind": "iid"}))
    assert numbers(named) == numbers(table)
    with refused("split.kind"):
        fednag.run("fednag", **SMALL, split="evenly")


@dataclass(frozen=True)
class Undeclared(FedAvg):
    up = ("w", "z")


@dataclass(frozen=True)
class ShortUpdate(FedAvg):
    def update(self, server: Vectors, mean: Vectors) -> Vectors:  # type: ignore[override]
        return mean


@dataclass(frozen=True)
class Losing(FedNAG):
    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(w=mean.w)


@dataclass(frozen=True)
class Stateless(FedNAG):
    def init(self, w: Any) -> Vectors:
        return Vectors(w=w)


@dataclass(frozen=True)
class OldUpdate(FedNAG):
    def update(self, server: Vectors, mean: Vectors, share: Any) -> Vectors:
        return mean


@dataclass(frozen=True)
class OldEnd(FedNAG):
    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, full: Any, steps: int
    ) -> tuple[Vectors, Vectors]:
        return local, mine


@dataclass(frozen=True)
class Probing(FedNAG):
    probes = True


@dataclass(frozen=True)
class Drawing(FedNAG):
    def draw(self, seed: int, number: int) -> dict[str, float]:
        return {"coin": 1.0}


class Undecorated(FedNAG):
    damping: float = 0.5


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Forgetful(), r"Forgetful.step: must return Vectors, not NoneType"),
        (Undeclared(), r"Undeclared.step: must return z too, named in up; it gave w"),
        (ShortUpdate(), r"ShortUpdate.update: must take \(server, mean, news\), but takes"),
        (Losing(), r"Losing.update: must return v too, named in down; it gave w"),
        (Stateless(), r"Stateless.init: must return v too, named in down; it gave w"),
        (OldUpdate(), r"OldUpdate.update: takes share, which is news.share now"),
        (OldEnd(), r"OldEnd.end: takes full, which is data.gradient now"),
        (Probing(), r"Probing: probes and probed are no more; .* has stages"),
        (Drawing(), r"Drawing.draw: gives coin, which is not one of its numbers"),
        (Undecorated(), r"Undecorated: damping is not .* put @dataclass\(frozen=True\) above"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_broken_algorithms_are_told_before_they_train(algorithm: Algorithm, message: str) -> None:
    with pytest.raises(FednagError, match=message):
        fednag.run(algorithm, **SMALL)


def test_a_method_that_needs_more_than_two_numbers_is_left_to_its_training() -> None:
    @dataclass(frozen=True)
    class Picky(FedAvg):
        def init(self, w: Any) -> Vectors:
            assert len(w) > 10
            return Vectors(w=w)

    assert fednag.run(Picky(), **SMALL).records


@pytest.mark.parametrize("where", ["x", "y", "test"])
def test_numbers_that_are_not_finite_are_found(where: str) -> None:
    x, y, test_x = torch.rand(20, 3), torch.rand(20), torch.rand(5, 3)
    {"x": x, "y": y, "test": test_x}[where][2] = float("nan")
    with pytest.raises(FednagError, match=f"{where}.* in row 2"):
        fednag.dataset(x, y, test=(test_x, torch.rand(5)))


def test_float_classes_are_not_taken_for_numbers() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(FednagError, match="for one class a sample give whole numbers"):
        fednag.run(FedAvg(), model=net, data=(torch.rand(20, 3), (torch.rand(20) > 0.5).float()))


def test_labels_name_what_differs_and_folders_are_plain(tmp_path: Path) -> None:
    result = fednag.compare([FedNAG(momentum=0.5), FedNAG()], **SMALL, out=tmp_path)
    assert [run.label for run in result.runs] == ["fednag(momentum=0.5)", "fednag(momentum=0.9)"]
    assert result.runs[0].folder is not None
    assert result.runs[0].folder.name.startswith("fednag-momentum-0.5-")
    with pytest.raises(KeyError, match=r"momentum=0\.9"):
        result["nope"]


def test_sweep_takes_what_run_takes() -> None:
    x, y = torch.rand(40, 3), torch.arange(40) % 2
    result = fednag.sweep(
        {"training.tau": [2, 4]}, FedAvg(lr=0.1), data=(x, y), model=nn.Linear(3, 2), iterations=8
    )
    assert [run.records[-1].round for run in result.runs] == [4, 2]


def test_several_classes_a_sample_are_compared_as_torch_does() -> None:
    """Classes of pixels or letters lie along dimension 1 or the last; both fitting is said."""
    from fednag.problems.losses import cross_entropy

    scores, y = torch.randn(4, 3, 5, 2), torch.randint(0, 3, (4, 5, 2))
    every = nn.functional.cross_entropy(scores, y, reduction="none").flatten(1).mean(1)
    assert torch.allclose(cross_entropy(scores, y), every)
    last = cross_entropy(scores.permute(0, 2, 3, 1), y)
    assert torch.allclose(last.flatten(1).mean(1), every)
    with pytest.raises(ValueError, match="which dimension"):
        cross_entropy(torch.randn(4, 5, 5), torch.randint(0, 5, (4, 5)))
