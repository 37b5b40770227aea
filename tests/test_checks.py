"""Recordings against the user's own module: what disagrees is not used, and the user is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import fednag
import fednag.compute.recording as tracing
from fednag import Algorithm, FedAvg, FedNAG, News, Vectors
from fednag.compute.kernels import FASTER
from fednag.core.algorithm import Grad, WorkerData, payload
from fednag.data.dataset import Dataset
from fednag.errors import FednagError
from fednag.problems.problem import Problem
from fednag.simulate.engine import is_checked

aten = torch.ops.aten


def samples() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=draw)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


SHORT: dict[str, Any] = {"workers": 3, "tau": 2, "iterations": 12, "batch": 5, "quiet": True}


def trained(model: nn.Module, **changes: Any) -> fednag.Run:
    algorithm = changes.pop("algorithm", FedNAG(lr=0.1))
    return fednag.run(algorithm, model=model, data=samples(), **{**SHORT, **changes})


def weights(run: fednag.Run) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.final.parameters()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_the_plain_loop_gives_the_same(dtype: str, chunk: int) -> None:
    fast = trained(net(), engine={"dtype": dtype, "chunk": chunk})
    plain = trained(net(), engine={"dtype": dtype, "chunk": chunk, "recorded": False})
    assert fast.notes == [] or all("recorded" not in note for note in fast.notes)
    assert any("engine.recorded is false" in note for note in plain.notes)
    close = 1e-5 if dtype == "float32" else 1e-12
    torch.testing.assert_close(weights(fast), weights(plain), rtol=close, atol=close)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_kernel_that_is_slightly_off_is_noticed(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a millionth, far below what single precision shows."""

    def off(x: Tensor) -> Tensor:
        return torch.ops.aten.exp.default(x).tanh_() * 0 + _tanh(x) * (1 + 1e-6)

    def _tanh(x: Tensor) -> Tensor:
        return 1 - 2 / (torch.ops.aten.exp.default(2 * x) + 1)

    monkeypatch.setitem(FASTER, aten.tanh.default, off)
    run = trained(net(), engine={"dtype": dtype, "chunk": 1})
    assert any("differs from the module's" in note for note in run.notes)
    monkeypatch.undo()
    expected = trained(net(), engine={"dtype": dtype, "chunk": 1, "recorded": False})
    assert torch.equal(weights(run), weights(expected))


def test_an_interpreter_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tracing.compiled

    def off(module: Any) -> Any:
        replay = real(module)

        def wrong(*tensors: Tensor) -> Any:
            found = replay(*tensors)
            return [part * (1 + 1e-4) if part.is_floating_point() else part for part in found]

        return wrong

    monkeypatch.setattr(tracing, "compiled", off)
    run = trained(net(), engine={"chunk": 1})
    assert any("differs from the module's" in note for note in run.notes)


def test_rounds_that_are_checked() -> None:
    assert [n for n in range(1, 300) if is_checked(n)] == [1, 4, 16, 64, 256]
    assert not is_checked(0)


class Switching(nn.Module):
    """Behaves as recorded until a test says otherwise: what a recording cannot know."""

    switched: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return 2 * out if Switching.switched else out


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_whose_recording_goes_wrong_is_begun_again(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fednag.simulate.engine as engine_module

    monkeypatch.setattr(Switching, "switched", False)
    original = engine_module.Engine.exchange

    def later(self: Any, asked: Any, *rest: Any) -> Any:
        if asked.round == 2:
            Switching.switched = True
        return original(self, asked, *rest)

    monkeypatch.setattr(engine_module.Engine, "exchange", later)
    out = {"out": tmp_path} if saved else {}
    run = trained(Switching(), engine={"chunk": 1, "threads": 1}, **out)
    assert any("begun again, with the plain loop" in note for note in run.notes)
    assert [record.iteration for record in run.records] == [0, 2, 4, 6, 8, 10, 12]
    # The second time it is the switched model from the first iteration on.
    monkeypatch.setattr(engine_module.Engine, "exchange", original)
    plain = trained(Switching(), engine={"chunk": 1, "threads": 1, "recorded": False})
    assert [r.loss for r in run.records] == [r.loss for r in plain.records]
    if saved:
        assert run.folder is not None
        lines = (run.folder / "records.jsonl").read_text().splitlines()
        assert len(lines) == len(run.records)


def test_a_resumed_run_stays_on_the_plain_loop(tmp_path: Path) -> None:
    """Else its last rounds would differ from those of a run that was not stopped."""
    from fednag.runs import checkpoint

    x, y = samples()
    written: list[Any] = []
    original = checkpoint.write

    def spy(*given: Any) -> None:
        written.append(given[5])
        original(*given)

    checkpoint.write = spy  # type: ignore[assignment]
    try:
        fednag.run(
            FedNAG(),
            model=nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)),
            data=(x, y),
            out=tmp_path,
            checkpoint={"rounds": 1},
            **SHORT,
        )
    finally:
        checkpoint.write = original  # type: ignore[assignment]
    assert written
    assert all("draws random numbers" in why for why, _, _ in written)
    assert all(why is None for _, why, _ in written)  # in evaluation mode it draws none


def test_single_precision_models_are_compared_in_single_precision() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers(x.float() * torch.ones(5, dtype=torch.float32))
            return out

    x, y = samples()
    problem = Problem(Dataset("own", x, y, x[:0], y[:0], 3), Single())
    assert problem.twin is None
    run = trained(Single(), engine={"chunk": 1})
    assert all("recorded" not in note for note in run.notes)
    expected = trained(net(), engine={"chunk": 1})
    torch.testing.assert_close(weights(run), weights(expected), rtol=1e-5, atol=1e-6)


def test_weighted_classes_are_divided_by_their_weights() -> None:
    x, y = samples()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5]), ignore_index=2)
    run = trained(net(), loss=loss, algorithm=FedAvg(lr=0.1), workers=1, tau=1, iterations=3)
    model = net()
    expected = float(loss(model(x), y).detach())
    assert run.records[0].loss == pytest.approx(expected, rel=1e-5)


def test_bytes_and_metrics_of_any_output() -> None:
    """A model that gives a table, a loss for it, and a metric of it."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            scores = self.layers(x)
            return {"scores": scores, "sure": scores.max(-1).values}

    def loss(output: dict[str, Tensor], y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output["scores"], y) + 0.01 * output["sure"].mean()

    def right(output: dict[str, Tensor], y: Tensor) -> float:
        return float((output["scores"].argmax(-1) == y).double().mean())

    x, y = samples()
    run = fednag.run(
        FedNAG(lr=0.1), model=Two(), data=(x, y), test=(x[:20], y[:20]), loss=loss,
        metrics={"right": right}, **SHORT,
    )  # fmt: skip
    output = run.final(x[:20])
    assert run.records[-1].metrics["right"] == pytest.approx(right(output, y[:20]))
    expected = float(loss(run.final(x), y).detach())
    assert run.records[-1].loss == pytest.approx(expected, rel=1e-5)


@dataclass(frozen=True)
class Normed(Algorithm):
    """Says that it is elementwise, and takes a norm over all workers."""

    lr: float = 0.1
    elementwise: ClassVar[bool] = True

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = grad(local.w)
        return Vectors(w=local.w - self.lr * g / g.norm())


@dataclass(frozen=True)
class NormedByRow(Normed):
    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = grad(local.w)
        return Vectors(w=local.w - self.lr * g / g.norm(dim=-1, keepdim=True))


@dataclass(frozen=True)
class Drawing(Algorithm):
    lr: float = 0.1

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * grad(local.w) * torch.rand(()))


@dataclass(frozen=True)
class Writing(Algorithm):
    lr: float = 0.1

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w.sub_(self.lr * grad(local.w)))


@dataclass(frozen=True)
class Chatty(Algorithm):
    """Returns a vector that it does not declare."""

    lr: float = 0.1

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * grad(local.w))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(w=local.w, more=local.w), mine


@dataclass(frozen=True)
class Telling(Algorithm):
    """Sends a number beside the weights: how far they have moved."""

    lr: float = 0.1
    up: ClassVar[tuple[str, ...]] = ("w", "distance")

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        assert local.w.dim() == sent.w.dim() == 2
        return Vectors(w=local.w - self.lr * grad(local.w))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        moved = (local.w - sent.w).norm(dim=-1, keepdim=True)
        return Vectors(w=local.w, distance=moved), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        assert mean.distance.shape == (1,)
        return server.but(w=mean.w)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Normed(), "elementwise = True"),
        (Drawing(), "random numbers"),
        (Writing(), "change the vectors"),
        (Chatty(), "more, which is not named in up"),
    ],
)
def test_rules_that_break_the_contract_are_refused(rule: Algorithm, message: str) -> None:
    with pytest.raises(FednagError, match=message) as caught:
        trained(net(), algorithm=rule)
    assert "\n" not in str(caught.value)


def test_norms_by_row_are_elementwise_enough() -> None:
    stacked = trained(net(), algorithm=NormedByRow(), engine={"chunk": 3})
    alone = trained(net(), algorithm=NormedByRow(), engine={"chunk": 1})
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=1e-5, atol=1e-6)


def test_a_number_is_charged_as_a_number() -> None:
    d = 5 * 8 + 8 + 8 * 3 + 3
    assert payload(Telling(), Telling().init(torch.zeros(d))) == (4 * d, 4 * (d + 1))
    run = trained(net(), algorithm=Telling())
    assert run.records[-1].bytes_up == 6 * 3 * 4 * (d + 1)
    assert run.records[-1].bytes_down == 6 * 3 * 4 * d


def test_random_numbers_of_the_program_are_left_alone() -> None:
    import random

    import numpy as np

    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    trained(model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (str(np.random.get_state()), random.getstate()) == before[1:]


def sgd(model: nn.Module, x: Tensor, y: Tensor, steps: int, loss: Any, lr: float = 0.5) -> float:
    """torch's own optimiser on all samples; the loss at the end, in the model's present mode."""
    optimiser = torch.optim.SGD(model.parameters(), lr)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return float(loss(model.eval()(x), y).detach())


def alone(model: nn.Module, x: Tensor, y: Tensor, **changes: Any) -> fednag.Run:
    settings = {"workers": 1, "tau": 1, "iterations": 10, "batch": 0, "quiet": True, **changes}
    algorithm = settings.pop("algorithm", FedAvg(lr=0.5))
    engine = {"dtype": "float64", **settings.pop("engine", {})}
    return fednag.run(algorithm, model=model, data=(x, y), engine=engine, **settings)


def many(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=draw)


class MixingLater(nn.Module):
    """Samples meet, but at the first weights it does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        out: Tensor = self.b(h - h.mean(0))
        return out


class MixingWhenLarge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        return h * (1 + h.mean()) if len(x) > 8 else h


class MixingSlopes(nn.Module):
    """Values do not meet, slopes do."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        return h - (h.mean(0) - h.mean(0).detach())


@pytest.mark.parametrize("kind", [MixingLater, MixingWhenLarge, MixingSlopes])
@pytest.mark.parametrize("recorded", [True, False])
def test_samples_that_meet_are_taken_together(kind: type[nn.Module], recorded: bool) -> None:
    """700 samples are more than a block of a full gradient, or of an evaluation."""
    x, y = many(700)
    torch.manual_seed(0)
    model = kind().double()
    run = alone(model, x, y, engine={"recorded": recorded})
    expected = sgd(model, x, y, 10, nn.CrossEntropyLoss())
    assert run.records[-1].loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", [MixingLater, MixingWhenLarge])
def test_samples_that_meet_are_not_padded(kind: type[nn.Module]) -> None:
    x, y = many(30)
    torch.manual_seed(0)
    model = kind().double()
    settings: dict[str, Any] = {
        "workers": 2, "batch": 16, "tau": 2, "iterations": 20,
        "split": {"kind": "sizes", "proportions": [0.7, 0.3]},
    }  # fmt: skip
    losses = [
        alone(model, x, y, engine={"recorded": recorded, "chunk": 1}, **settings).records[-1].loss
        for recorded in (True, False)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_a_padded_batch_is_compared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that passes on whole batches may be wrong on padded ones."""
    from fednag.problems import examine

    monkeypatch.setattr(examine, "_mixes", lambda *_: False)  # as if it had not been noticed
    x, y = many(30)
    torch.manual_seed(0)
    model = MixingLater().double()
    run = alone(
        model, x, y, workers=2, batch=16, tau=2, iterations=8, engine={"chunk": 1},
        split={"kind": "sizes", "proportions": [0.7, 0.3]},
    )  # fmt: skip
    assert any("differs from the module's" in note for note in run.notes)


def test_evaluations_are_compared_on_many_samples_every_time() -> None:
    """One alone may have a loss of almost nothing, of which rounding is most."""
    x, y = many(200)
    data = Dataset("own", x, y, x[:0], y[:0], classes=3)
    problem = Problem(data, nn.Linear(6, 3).double(), dtype=x.dtype)
    judgements = problem.judgements
    seen: list[range] = []
    function = judgements._recorded.function
    expected = function.expected

    def watched(each: Problem, given: Any, rows: slice) -> list[Tensor]:
        seen.append(range(200)[rows])
        return expected(each, given, rows)

    judgements._recorded.function = replace(function, expected=watched)
    for _ in range(3):
        judgements(problem.initial, problem.initial_buffers, x, y, torch.arange(200))
        judgements.due += 1
    assert [len(rows) for rows in seen] == [50, 50, 50]
    assert len({*seen[0], *seen[1], *seen[2]}) == 150


def test_the_end_of_a_run_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the rounds that are checked a model may change its mind; then it is begun again."""
    import fednag.simulate.engine as engine_module

    monkeypatch.setattr(Switching, "switched", False)
    original = engine_module.Engine.exchange

    def later(self: Any, asked: Any, *rest: Any) -> Any:
        Switching.switched = Switching.switched or asked.round == 6
        return original(self, asked, *rest)

    monkeypatch.setattr(engine_module.Engine, "exchange", later)
    run = trained(Switching(), engine={"chunk": 1, "threads": 1})
    assert any("begun again" in note for note in run.notes)


def test_complex_buffers_stay_complex() -> None:
    class Rotating(nn.Module):
        freqs: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
            self.register_buffer("freqs", torch.polar(torch.ones(4), torch.arange(4.0)))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.view_as_complex(self.a(x).reshape(len(x), 4, 2)) * self.freqs
            out: Tensor = self.b(torch.view_as_real(h).flatten(1).tanh())
            return out

    x, y = many(30)
    torch.manual_seed(0)
    model = Rotating()
    run = alone(model, x.float(), y, engine={"dtype": "float32"})
    expected = sgd(model, x.float(), y, 10, nn.CrossEntropyLoss())
    assert run.records[-1].loss == pytest.approx(expected, rel=1e-5)
    assert run.final.freqs.is_complex()


class Remembering(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.how = nn.Linear(6, 3), how
        self.box: Any = {"list": [0], "tensor": torch.zeros(()), "table": {"n": 0}}.get(how)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "list":
            self.box[0] += 1
        elif self.how == "tensor":
            self.box += 1
        elif self.how == "table":
            self.box["n"] += 1
        else:  # a number of the weights, kept for ever
            self.box = self.box or {}
            self.box.setdefault(len(x), float(self.a.weight.detach().norm()))
            return self.a(x) * self.box[len(x)]  # type: ignore[no-any-return]
        out: Tensor = self.a(x)
        return out


class Counting:
    calls = 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output, y)


def shared_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].weight.data = model[0].weight.data  # type: ignore[union-attr]
    return model


class MovingBuffer(nn.Module):
    m: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        self.register_buffer("m", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.m.copy_(0.5 * self.m + 0.5 * x.detach().mean(0))
        out: Tensor = self.a(x - self.m)
        return out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": Remembering("list")}, "attribute 'box'"),
        ({"model": Remembering("tensor")}, "attribute 'box'"),
        ({"model": Remembering("table")}, "attribute 'box'"),
        ({"model": Remembering("norm")}, "gradients when it is called again"),
        ({"model": nn.Linear(6, 3), "loss": Counting()}, "loss: every call changes it"),
        ({"model": shared_memory()}, "share memory"),
        ({"model": MovingBuffer(), "batch_norm": "frozen"}, "'frozen' is for normalisation"),
    ],
)
def test_what_cannot_be_trained_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FednagError, match=message) as caught:
        fednag.run(FedAvg(), data=many(30), quiet=True, iterations=5, **arguments)
    assert "\n" not in str(caught.value)


def test_later_gradients_of_an_iteration_see_the_buffers_that_moved() -> None:
    x, y = many(30)
    losses = [
        alone(
            _seeded(MovingBuffer), x, y, batch=5, workers=3,
            algorithm=fednag.Mime(lr=0.05, momentum=0.5), tau=2, engine={"recorded": recorded},
        ).records[-1].loss
        for recorded in (True, False)
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def _seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


class LossInTraining(nn.Module):
    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, y)
        return loss + 0.5 * output.square().mean() if self.training else loss


def test_a_loss_stays_in_its_mode() -> None:
    x, y = many(30)
    model = _seeded(lambda: nn.Linear(6, 3))  # type: ignore[arg-type]
    run = alone(model, x, y, loss=LossInTraining())
    assert run.records[-1].loss == pytest.approx(sgd(model, x, y, 10, LossInTraining()), rel=1e-9)


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_ignored_samples_move_nothing(batch: int) -> None:
    """Also where a whole batch, or a whole worker, is ignored: torch's slope is 0 there."""
    x, y = many(30)
    y = torch.cat([torch.zeros(15, dtype=torch.long), y[15:].clamp(min=1)])
    model = _seeded(lambda: nn.Linear(6, 3))  # type: ignore[arg-type]
    run = alone(
        model, x, y, loss=nn.CrossEntropyLoss(ignore_index=0), owners=[0] * 15 + [1] * 15,
        workers=None, split={"kind": "natural"}, batch=batch, iterations=6,
    )  # fmt: skip
    assert not run.diverged
    assert run.records[-1].refusals == 0
    assert run.records[-1].loss < run.records[0].loss
