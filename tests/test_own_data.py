"""What users bring: tensors, arrays and files, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag
from fednag.config import override, parse
from fednag.data.tables import Source, read_table
from fednag.errors import FednagError
from fednag.problems.problem import Standardise
from refusals import refused

SHORT: dict[str, Any] = {"workers": 2, "tau": 1, "iterations": 1, "batch": 4, "quiet": True}


def blobs(count: int = 24, width: int = 3) -> tuple[Tensor, Tensor]:
    """Samples of two classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 2
    return torch.randn(count, width, generator=generator) + y[:, None], y


def test_an_owner_that_no_one_asks_for_is_refused() -> None:
    table = {"name": "file", "path": "a.csv", "owner": "clinic"}
    for split in ({}, {"kind": "sizes"}):
        with refused("data.owner"):
            parse({"data": table, "split": split})
    assert parse({"data": table, "split": {"kind": "natural"}}).data.owner == "clinic"
    plain = override({"data": table}, {"data.name": "digits"})
    assert parse(plain).data.owner is None


@pytest.mark.parametrize("whole", [True, False])
def test_owners_that_no_one_asks_for_are_refused(whole: bool) -> None:
    x, y = blobs()
    owners = torch.arange(24) % 3
    given: dict[str, Any] = {"data": (x, y), "owners": owners}
    if whole:
        given = {"data": fednag.dataset(x, y, owners=owners)}
    with refused("owners", "that is 'iid'"):
        fednag.run(model="logistic", **given, **SHORT)
    axes = {"split.kind": ["natural", "sizes"]}
    with refused("owners", "that is 'sizes'"):
        fednag.sweep(axes, model="logistic", **given, **SHORT)
    done = fednag.run(model="logistic", split={"kind": "natural"}, **given, tau=1, iterations=1)
    assert done.experiment.split.workers == 3


def test_owners_of_a_named_data_set_may_be_passed_over() -> None:
    done = fednag.run(data="synthetic", model="logistic", **SHORT)
    assert done.experiment.split.kind == "iid"


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-20])
def test_a_constant_feature_is_only_centred(value: float) -> None:
    x = torch.stack([torch.full((1000,), value), torch.arange(1000.0)], 1)
    fitted = Standardise.fit(x)
    assert fitted.deviation[0] == 1.0
    # of 0 … n-1, with one degree of freedom taken off: n (n + 1) / 12
    assert float(fitted.deviation[1]) == pytest.approx((1000 * 1001 / 12) ** 0.5)
    shown = (torch.tensor([value + 1.0, 0.0]).double() - fitted.mean) / fitted.deviation
    assert float(shown[0]) == pytest.approx(1.0, abs=1e-6 * max(1.0, abs(value)))


def test_a_constant_channel_is_only_centred() -> None:
    x = torch.rand(20, 2, 4, 4)
    x[:, 1] = 0.3
    fitted = Standardise.fit(x)
    assert fitted.deviation.shape == (2, 1, 1)
    assert fitted.deviation[1] == 1.0
    assert float(fitted.deviation[0]) == pytest.approx(float(x[:, 0].double().std()))


def test_small_spreads_are_no_constants() -> None:
    x = 1e6 + 0.0625 * (torch.arange(64.0) % 2)  # the next number that single precision knows
    fitted = Standardise.fit(x[:, None])
    assert float(fitted.deviation) == pytest.approx(0.0625 * (16 / 63) ** 0.5)
    assert float(Standardise.fit(1e-9 * torch.arange(3.0)[:, None]).deviation) == pytest.approx(
        1e-9
    )


def test_one_sample_can_be_standardised() -> None:
    assert Standardise.fit(torch.tensor([[3.0, 4.0]])).deviation.tolist() == [1.0, 1.0]


def test_a_constant_feature_does_not_spoil_the_test_loss(tmp_path: Path) -> None:
    x, y = blobs()
    x[:, 1] = 0.1
    test_x = x.clone()
    test_x[:, 1] = 0.2
    path = tmp_path / "a.npz"
    np.savez(path, x=x.numpy(), y=y.numpy(), test_x=test_x.numpy(), test_y=y.numpy())
    table = {"name": "file", "path": str(path), "standardise": True}
    done = fednag.run(data=table, model="logistic", workers=2, tau=5, iterations=100)
    assert (done.records[-1].accuracy or 0) > 0.7


BYTES = "data: bytes 0 to 255 are scaled to 0 to 1"


def test_bytes_are_scaled_wherever_they_come_from(tmp_path: Path) -> None:
    x = torch.arange(24 * 12, dtype=torch.int64).remainder(256).to(torch.uint8).view(24, 12)
    y = torch.arange(24) % 2
    path = tmp_path / "bytes.npz"
    np.savez(path, x=x, y=y, test_x=x[:4], test_y=y[:4])
    test = (x[:4], y[:4])
    common: dict[str, Any] = {**SHORT, "model": "logistic", "engine": {"chunk": 1}, "tau": 4}
    floats = fednag.run(data=(x.float() / 255, y), test=(x[:4].float() / 255, y[:4]), **common)
    assert BYTES not in floats.notes
    for given in (
        {"data": (x, y), "test": test},
        {"data": fednag.dataset(x, y, test=test)},
        {"data": (x.numpy(), y.numpy()), "test": test},
        {"data": str(path)},
    ):
        done = fednag.run(**given, **common)
        assert done.notes.count(BYTES) == 1
        assert done.records[-1].loss == pytest.approx(floats.records[-1].loss, rel=1e-5)
    assert BYTES not in fednag.run(data="digits", **common).notes


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.float64])
@pytest.mark.parametrize("other", [torch.uint8, torch.int64, torch.float32])
def test_train_and_test_samples_are_of_one_kind(kind: torch.dtype, other: torch.dtype) -> None:
    x, y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
    alike = (kind, other) in (
        (torch.uint8, torch.uint8),
        (torch.int32, torch.int64),
        (torch.float64, torch.float32),
    )
    if alike:
        assert len(fednag.dataset(x.to(kind), y, test=(x.to(other), y)).test_x) == 4
    else:
        with refused("data", "and test x"):
            fednag.dataset(x.to(kind), y, test=(x.to(other), y))
    # without test samples there is nothing to compare
    assert len(fednag.dataset(x.to(kind), y, test=(x[:0].to(other), y[:0])).test_x) == 0


def test_bytes_beside_numbers_in_a_file_are_refused(tmp_path: Path) -> None:
    x, y = np.ones((8, 2), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, test_x=x / 255, test_y=y)
    with refused("data", "x holds bytes and test x floating numbers"):
        fednag.run(data=str(tmp_path / "a.npz"), model="logistic", **SHORT)


def counts(rows: int = 40) -> tuple[Tensor, Tensor]:
    """Samples whose targets are whole numbers that are meant as numbers: 20 times the sample."""
    x = torch.arange(rows).float()[:, None] / rows
    return x, 20 * torch.arange(rows)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        nn.init.zeros_(self.line.weight)
        nn.init.zeros_(self.line.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x).squeeze(-1)
        return out


@pytest.mark.parametrize(
    "told",
    [
        {"task": "regression"},
        {"loss": "mse"},
        {"loss": nn.MSELoss()},
        {"loss": nn.MSELoss(), "task": "regression"},
    ],
)
@pytest.mark.parametrize("where", ["tensors", "data set", "npz", "csv"])
def test_whole_numbers_are_predicted_as_numbers(
    tmp_path: Path, told: dict[str, Any], where: str
) -> None:
    """The first loss is that of predicting 0 everywhere: the mean of the squares."""
    x, y = counts()
    data: Any = (x, y)
    if where == "data set":
        data = fednag.dataset(x, y)
    elif where == "npz":
        np.savez(tmp_path / "a.npz", x=x, y=y)
        data = {"name": "file", "path": str(tmp_path / "a.npz"), "test_share": 0.0}
    elif where == "csv":
        rows = [f"{float(a)},{int(b)}" for a, b in zip(x[:, 0], y, strict=True)]
        (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]) + "\n")
        data = {"name": "file", "path": str(tmp_path / "a.csv"), "test_share": 0.0}
    done = fednag.run(data=data, model=Line(), **told, **SHORT)
    assert done.records[0].loss == pytest.approx(float(y.double().square().mean()), rel=1e-6)
    assert done.records[0].accuracy is None
    if where in ("npz", "csv"):
        assert done.experiment.data.task == told.get("task")


@pytest.mark.parametrize(
    "loss", [nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.PoissonNLLLoss(), nn.MSELoss()]
)
def test_losses_of_regression_are_known(loss: nn.Module) -> None:
    x, y = counts()
    done = fednag.run(data=(x, y), model=Line(), loss=loss, **SHORT)
    expected = float(loss(torch.zeros(len(y)), y.float()))
    assert done.records[0].loss == pytest.approx(expected, rel=1e-5)
    assert done.records[0].train_accuracy is None


def test_without_a_word_whole_numbers_are_classes() -> None:
    x, y = blobs()
    for model in ("linear", "logistic"):
        done = fednag.run(data=(x, y), model=model, **SHORT)
        assert done.records[-1].train_accuracy is not None
    # one-hot squared error on classes, if that is asked for
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    asked = fednag.run(data=(x, y), model=zero, loss="mse", task="classification", **SHORT)
    assert asked.records[0].loss == pytest.approx(0.5)  # (1 + 0) / 2
    assert asked.records[0].train_accuracy is not None
    digits = fednag.run(data="digits", model="linear", loss="mse", **SHORT)
    assert digits.records[-1].accuracy is not None


def test_classes_may_be_written_as_floating_numbers(tmp_path: Path) -> None:
    x, y = blobs()
    assert fednag.dataset(x, y.float(), task="classification").classes == 2
    assert fednag.dataset(x, y.float()).classes is None
    with refused("data", "not whole"):
        fednag.dataset(x, y + 0.5, task="classification")
    with refused("test", "not whole"):
        fednag.dataset(x, y, test=(x, y + 0.5))
    with refused("task", "classify"):
        fednag.dataset(x, y, task="classify")
    np.savez(tmp_path / "a.npz", x=x, y=y.double())
    found = read_table(Source(tmp_path / "a.npz", task="classification"))
    assert (found.classes, found.y.dtype) == (2, torch.int64)
    assert read_table(Source(tmp_path / "a.npz")).classes is None
    np.savez(tmp_path / "a.npz", x=x, y=y + 0.5)
    with refused("data.task", "classification"):
        read_table(Source(tmp_path / "a.npz", task="classification"))
    (tmp_path / "a.csv").write_text("a,b\n1,red\n2,blue\n")
    with refused("data.task", "are words"):
        read_table(Source(tmp_path / "a.csv", task="regression"))
    assert read_table(Source(tmp_path / "a.csv", task="classification")).classes == 2


def test_regression_takes_any_row_for_testing(tmp_path: Path) -> None:
    """A test file may happen to hold whole numbers alone."""
    (tmp_path / "a.csv").write_text("a,b\n1,0.5\n2,1\n3,2\n")
    (tmp_path / "t.csv").write_text("a,b\n1,3\n2,1\n")
    source = Source(tmp_path / "a.csv", test_path=tmp_path / "t.csv")
    with refused(says="other targets"):
        read_table(source)
    found = read_table(replace(source, task="regression"))
    assert (found.classes, found.test_y.tolist()) == (None, [3.0, 1.0])


def test_a_task_belongs_to_own_data_and_is_given_once(tmp_path: Path) -> None:
    x, y = blobs()
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=y)
    table = {"name": "file", "path": str(path), "task": "classification"}
    with refused("task", "twice"):
        fednag.run(data=table, task="regression", model="logistic", **SHORT)
    with refused("task", "your own data"):
        fednag.run(data="digits", task="regression", **SHORT)
    with refused("data.task", "only with"):
        parse({"data": {"task": "regression"}})
    with refused("data.task", "numbers"):
        fednag.run(data=str(path), task="numbers", **SHORT)
    made = fednag.dataset(x, y, task="classification")
    with refused("task", "for classification"):
        fednag.run(data=made, task="regression", model="logistic", **SHORT)
    numbers = fednag.dataset(x, y.float())
    with refused("task", "for regression"):
        fednag.run(data=numbers, task="classification", model="logistic", **SHORT)
    done = fednag.run(data=str(path), task="regression", model="linear", **SHORT)
    assert done.experiment.data.task == "regression"
    assert done.records[-1].train_accuracy is None


def test_a_task_left_out_leaves_the_key_of_a_run_alone() -> None:
    data = {"name": "file", "path": "a.csv"}
    plain, told = parse({"data": data}), parse({"data": {**data, "task": "regression"}})
    assert told.key != plain.key
    assert plain.key == parse({"data": {**data, "task": None}}).key


@pytest.mark.parametrize(
    ("rows", "distinct", "told"), [(404, 101, 1), (606, 101, 0), (300, 100, 0)]
)
def test_a_great_many_classes_are_told(tmp_path: Path, rows: int, distinct: int, told: int) -> None:
    x, y = torch.zeros(rows, 2), torch.arange(rows) % distinct
    np.savez(tmp_path / "a.npz", x=x, y=y)
    read = read_table(Source(tmp_path / "a.npz"))
    for dataset in (fednag.dataset(x, y), read):
        said = [note for note in dataset.notes if "different whole numbers" in note]
        assert len(said) == told
        assert all(f"are {distinct} different" in note and "task" in note for note in said)
    assert not fednag.dataset(x, y, task="classification").notes
    assert not read_table(Source(tmp_path / "a.npz", task="classification")).notes
    if told:
        done = fednag.run(data=(x, y), model="logistic", **SHORT)
        assert any("101 different" in note for note in done.notes)
        done = fednag.run(data=fednag.dataset(x, y), model="linear", task="regression", **SHORT)
        assert not any("different" in note for note in done.notes)


class Words(nn.Module):
    """Looks words up; the numbers of words must come as integers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(7, 4, _weight=torch.randn(7, 4, generator=generator))
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(2, 4, generator=generator))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x).mean(1))
        return out


def sentences(kind: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 7, (24, 5), generator=generator)
    return x.to(kind), (x[:, 0] > 3).long()


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("from_file", [False, True])
def test_integers_reach_a_model_of_ones_own(
    tmp_path: Path, kind: torch.dtype, chunk: int, from_file: bool
) -> None:
    """Against one step of gradient descent by hand on all samples: workers are of one size."""
    x, y = sentences(kind)
    data: Any = (x, y)
    if from_file:
        np.savez(tmp_path / "a.npz", x=x, y=y)
        data = {"name": "file", "path": str(tmp_path / "a.npz"), "test_share": 0.0}
    model = Words()
    done = fednag.run(
        fednag.FedAvg(lr=0.5),
        data=data,
        model=model,
        workers=2,
        tau=1,
        iterations=1,
        batch=0,
        engine={"chunk": chunk, "dtype": "float64"},
    )
    plain = Words().double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    nn.functional.cross_entropy(plain(x.long()), y).backward()
    optimizer.step()
    for name, parameter in done.final.named_parameters():
        torch.testing.assert_close(parameter, plain.get_parameter(name), rtol=1e-9, atol=1e-12)
    assert not [note for note in done.notes if "standard deviation" in note]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("from_file", [False, True])
def test_integers_are_numbers_to_shipped_models(
    tmp_path: Path, dtype: str, from_file: bool
) -> None:
    x, y = sentences()
    common: dict[str, Any] = {"model": "mlp", "tau": 2, "iterations": 6, "workers": 2}
    common |= {"engine": {"chunk": 1, "dtype": dtype}, "quiet": True}
    runs = []
    for samples in (x, x.float()):
        data: Any = (samples, y)
        if from_file:
            np.savez(tmp_path / "a.npz", x=samples, y=y)
            data = str(tmp_path / "a.npz")
        for standardise in (False, True):
            given = data
            if from_file:
                given = {"name": "file", "path": data, "standardise": standardise}
            runs.append(fednag.run(data=given, **common))
    half = len(runs) // 2
    for integers, floats in zip(runs[:half], runs[half:], strict=True):
        assert integers.experiment.key == floats.experiment.key
        assert [r.loss for r in integers.records] == [r.loss for r in floats.records]
        if from_file:  # runs on disk of before are still known as the same
            assert integers.about["identity"] == floats.about["identity"]


def test_a_model_that_takes_no_integers_is_told_the_remedy(tmp_path: Path) -> None:
    x, y = sentences()
    with pytest.raises(
        FednagError, match=r"^model: it fails on x, .* integers, .*; give x.float()"
    ):
        fednag.run(data=(x, y), model=nn.Linear(5, 2), **SHORT)
    assert fednag.run(data=(x.float(), y), model=nn.Linear(5, 2), **SHORT).records
    with refused("model", r"shape \(5,\)"):
        fednag.run(data=(x, y), model=nn.Linear(4, 2), **SHORT)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    table = {"name": "file", "path": str(tmp_path / "a.npz"), "standardise": True}
    with refused("data.standardise"):
        fednag.run(data=table, model=Words(), **SHORT)


def test_truth_values_are_numbers(tmp_path: Path) -> None:
    x, y = blobs()
    assert fednag.dataset(x > 0, y > 0).x.tolist() == (x > 0).float().tolist()
    assert fednag.run(data=(x > 0, y > 0), model=nn.Linear(3, 2), **SHORT).records
    np.savez(tmp_path / "a.npz", x=(x > 0), y=(y > 0))
    found = read_table(Source(tmp_path / "a.npz", test_share=0.0))
    assert found.x.dtype == torch.float32
    assert (found.classes, found.y.tolist()) == (2, y.tolist())


@pytest.mark.parametrize("test", [0.2, "a.csv", torch.zeros(3), (torch.zeros(3, 3),), {}])
def test_a_test_set_is_a_pair(test: Any) -> None:
    x, y = blobs()
    with refused("test", "a pair"):
        fednag.run(data=(x, y), test=test, model="logistic", **SHORT)


def test_arrays_and_lists_are_taken() -> None:
    x, y = blobs()
    expected = fednag.dataset(x, y, test=(x[:3], y[:3]))
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    for given_x, given_y in (
        (x.numpy(), y.numpy()),
        (x.tolist(), y.tolist()),
        (list(x), list(y)),
        (list(x.numpy()), tuple(y.tolist())),
        (x.numpy()[::-1][::-1], y.numpy().astype(np.uint16)),
        (x.numpy().astype(">f4"), y.numpy().astype(">i8")),
        (frozen, y.numpy().astype(np.uint8)),
        (x.T.contiguous().T, y.repeat_interleave(2)[::2]),
        (x.clone().requires_grad_(), y),
    ):
        found = fednag.dataset(given_x, given_y, test=(given_x[:3], given_y[:3]))
        assert torch.equal(found.x.float(), expected.x)
        assert torch.equal(found.test_y, expected.test_y)
        assert found.x.is_contiguous()
        assert found.y.is_contiguous()
        assert (found.y.dtype, found.classes) == (torch.int64, 2)
        done = fednag.run(data=found, model=nn.Linear(3, 2), **SHORT)
        assert done.records[-1].accuracy is not None


def test_data_are_a_pair() -> None:
    x, y = blobs()
    with refused("test, owners"):
        fednag.run(data=fednag.dataset(x, y), test=(x, y), model="logistic", **SHORT)


def test_owners_may_be_words() -> None:
    x, y = blobs(4)
    assert fednag.dataset(x, y, owners=["s", "n", "s", "n"]).owners.tolist() == [1, 0, 1, 0]
    with refused("owners", "not whole numbers"):
        fednag.dataset(x, y, owners=[1, 2.5, 3, 4])


class Pixels(nn.Module):
    """A class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 3, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def per_pixel(output: Tensor, y: Tensor) -> Tensor:
    assert not y.is_floating_point()
    return nn.functional.cross_entropy(output, y, reduction="none").mean((-2, -1))


@pytest.mark.parametrize("from_file", [False, True])
def test_integers_of_more_dimensions_are_for_a_loss_that_knows_them(
    tmp_path: Path, from_file: bool
) -> None:
    x, y = torch.rand(12, 1, 4, 4), torch.arange(12 * 16).view(12, 4, 4) % 3
    test: dict[str, Any] = {"test": (x[:2], y[:2])}
    data: Any = (x, y)
    if from_file:
        np.savez(tmp_path / "a.npz", x=x, y=y, test_x=x[:2], test_y=y[:2])
        data, test = str(tmp_path / "a.npz"), {}
    done = fednag.run(data=data, **test, model=Pixels(), loss=per_pixel, **SHORT)
    assert done.records[0].loss == pytest.approx(float(np.log(3)))
    assert done.records[0].accuracy is None
    if from_file:
        return
    made = fednag.dataset(x, y)
    assert (made.classes, made.y.dtype) == (None, torch.int64)
    with pytest.raises(
        FednagError, match=r"^data: y holds integers of shape \(12, 4, 4\), .* loss"
    ):
        fednag.run(data=made, model=Pixels(), **SHORT)
    with refused("task", "one class a sample"):
        fednag.run(data=made, task="classification", model=Pixels(), loss=per_pixel, **SHORT)
    with refused("split.kind"):
        fednag.run(
            data=made,
            model=Pixels(),
            loss=per_pixel,
            split={"kind": "dirichlet", "alpha": 1.0},
            **SHORT,
        )


@pytest.mark.parametrize("told", [{"loss": nn.MSELoss()}, {"task": "regression"}, {"loss": "mse"}])
def test_columns_of_integers_may_be_numbers(told: dict[str, Any]) -> None:
    x, y = counts()
    zero = nn.Linear(1, 1)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    if isinstance(told.get("loss"), nn.Module):
        told = {"loss": lambda out, y: (out - y).square().mean(1), "task": "regression"}
    done = fednag.run(data=(x, y[:, None]), model=zero, **told, **SHORT)
    assert done.records[0].loss == pytest.approx(float(y.double().square().mean()), rel=1e-6)


def test_a_column_of_classes_in_a_file_is_refused(tmp_path: Path) -> None:
    x, y = blobs()
    np.savez(tmp_path / "a.npz", x=x, y=y[:, None])
    with refused(says=r"save y\[:, 0\]"):
        read_table(Source(tmp_path / "a.npz"))
    numbers = read_table(Source(tmp_path / "a.npz", task="regression", test_share=0.0))
    assert (numbers.classes, numbers.y.dtype) == (None, torch.float32)
    with refused("data.task", "one class a row"):
        read_table(Source(tmp_path / "a.npz", task="classification"))
    np.savez(tmp_path / "a.npz", x=x, y=torch.stack([y, y], 1))
    both = read_table(Source(tmp_path / "a.npz", test_share=0.0))
    assert (both.classes, both.y.dtype, both.y.shape) == (None, torch.float32, (24, 2))


def test_several_labels_a_sample() -> None:
    x, y = blobs()
    several = torch.stack([y, 1 - y, torch.ones_like(y)], 1).float()
    zero = nn.Linear(3, 3)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)

    def each(output: Tensor, y: Tensor) -> Tensor:
        found = nn.functional.binary_cross_entropy_with_logits(output, y, reduction="none")
        return found.mean(1)

    done = fednag.run(data=(x, several), test=(x, several), model=zero, loss=each, **SHORT)
    assert done.records[0].loss == pytest.approx(float(np.log(2)))
    assert done.records[0].accuracy is None


def test_no_test_rows_at_all(tmp_path: Path) -> None:
    """An empty array has strides that torch does not expect."""
    x, y = blobs()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    table = {"name": "file", "path": str(tmp_path / "a.npz"), "test_share": 0.0}
    done = fednag.run(data=table, model="logistic", **SHORT)
    assert done.records[-1].accuracy is None
    empty = (x.numpy()[np.zeros(24, bool)], y.numpy()[np.zeros(24, bool)])
    assert fednag.run(data=(x, y), test=empty, model="logistic", **SHORT).records
