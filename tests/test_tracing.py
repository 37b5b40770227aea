"""The fast paths against the plain ones: same numbers, and a way back where they do not apply."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fednag
from fednag import Algorithm, FedNAG, Vectors
from fednag.compute import kernels
from fednag.compute.recording import Traced, draws, record
from fednag.compute.replay import compiled, in_python
from fednag.compute.threads import tidied
from fednag.core.algorithm import Grad
from fednag.data.dataset import Dataset
from fednag.problems.problem import Problem
from fednag.simulate.steps import RecordedStep

aten = torch.ops.aten
SMALL = {"model": "mlp", "tau": 3, "iterations": 6, "batch": 8}


def slopes(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The module's gradient, recorded and by plain autograd."""
    data = Dataset("own", x, y, x[:0], y[:0], classes=int(y.max()) + 1)
    problem = Problem(data, module, dtype=x.dtype)
    given = problem.initial[None], problem.initial_buffers[None], x[None], y[None]
    weight = torch.full((1, len(x)), 1 / len(x), dtype=x.dtype)
    assert problem.gradients.prepare(*given, weight)
    traced = problem.gradients(*given, weight)[0][0]
    module.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    return traced, torch.cat(
        [p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]
    )


@given(
    channels=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_convolutions_have_torchs_gradients(
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
    bias: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(channels, 3, kernel, stride, padding, dilation, bias=bias),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2, padding=1),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    ).double()
    x, y = torch.randn(5, channels, 7, 6).double(), torch.randint(0, 4, (5,))
    traced, plain = slopes(module, x, y)
    torch.testing.assert_close(traced, plain, rtol=1e-10, atol=1e-12)


def test_grey_images_take_the_matrix_product_and_colour_ones_do_not() -> None:
    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.conv2d(x, weight, padding=2).max()

    for channels, direct in ((1, 0), (3, 1)):
        x, weight = torch.randn(2, channels, 8, 8), torch.randn(4, channels, 5, 5)
        graph = record(convolve, x, weight).graph
        assert len(graph.find_nodes(op="call_function", target=aten.convolution.default)) == direct


@pytest.mark.parametrize("large", [100, 1 << 19])
def test_where_weights_outnumber_pixels_channels_stay_first(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(kernels, "LARGE", large)
    torch.manual_seed(0)
    convolutions = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 40, 3), nn.Conv2d(40, 8, 3)
    pooled = nn.Sequential(convolutions[0], nn.MaxPool2d(2), *convolutions[1:], nn.Flatten())
    module = pooled.double()
    x, y = torch.randn(2, 2, 10, 10).double(), torch.randint(0, 8, (2,))
    traced, plain = slopes(module, x, y)
    torch.testing.assert_close(traced, plain, rtol=1e-10, atol=1e-12)
    # 8 channels of 5 x 5 are few beside 40 x 8 x 9 weights.
    found = Traced(lambda x: convolutions[1](convolutions[0](x)))(x[..., :5, :5].contiguous())
    assert found.is_contiguous() == (large == 100)
    assert found.is_contiguous(memory_format=torch.channels_last) == (large != 100)


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("columns", [1, 10, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_any_width_have_torchs_gradients(rows: int, columns: int, bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, columns, bias=bias), nn.Linear(columns, 3)).double()
    traced, plain = slopes(module, torch.randn(rows, 7).double(), torch.randint(0, 3, (rows,)))
    torch.testing.assert_close(traced, plain, rtol=1e-10, atol=1e-12)


def test_sums_with_multiples_are_one_operation_and_equal() -> None:
    def rule(w: Tensor, v: Tensor, g: Tensor) -> Tensor:
        v = 0.9 * v - 0.25 * g
        return w + 0.5 * v - 2 * g

    given = [torch.randn(5, dtype=torch.float64) for _ in range(3)]
    recorded = record(rule, *given)
    scalings = recorded.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert len(scalings) == 1  # 0.9 v is the first term of its sum: nothing to add it to
    torch.testing.assert_close(compiled(recorded)(*given), rule(*given), rtol=1e-14, atol=0)


def test_nothing_that_is_still_needed_is_written_over() -> None:
    def rule(w: Tensor, v: Tensor, rows: Tensor) -> list[Tensor]:
        twice = 2 * w
        seen = twice.view(-1)
        kept = 3 * v
        alias = w.add_(1)  # what a model may do to what it is given
        return [twice - v, seen, kept - v, kept, alias - v, w, 2 * v + rows, 5 * v - v - v]

    def given() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4), torch.randn(4), torch.randn(3, 4)]

    replay = compiled(record(rule, *given()))
    ours, plain = given(), given()
    for found, expected in zip(replay(*ours), rule(*plain), strict=True):
        torch.testing.assert_close(found, expected)
    for found, expected in zip(ours, given(), strict=True):
        torch.testing.assert_close(found, expected)  # and the caller's tensors stay as they are


def test_sums_of_their_own_terms_are_done_in_place() -> None:
    recorded = record(lambda w, v: 0.9 * w - 0.1 * v, torch.ones(2), torch.ones(2))
    assert recorded.graph.find_nodes(op="call_function", target=aten.sub_.Tensor)


def test_a_recording_follows_the_values_and_the_shapes() -> None:
    traced = Traced(lambda x: x.sum() + len(x))
    for length in (1, 2, 3):
        for value in (0.0, 1.5):
            assert traced(torch.full((length,), value)).item() == length * value + length


def test_what_the_interpreter_cannot_express_is_replayed_by_python() -> None:
    recorded = record(lambda x: x * 2, torch.ones(2))
    node = recorded.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]
    node.target = lambda x, number: x * number  # which has no schema
    recorded.recompile()
    assert compiled(recorded)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_the_interpreter_leaves_nothing_behind() -> None:
    """Recordings end with their last user; torch.jit.script would keep each for ever."""

    def resident() -> int:
        for _ in tidied((1, 2), pause=0.0):  # what is garbage goes back between the two
            pass
        return int(Path("/proc/self/statm").read_text().split()[1])

    def once() -> None:
        rows = [torch.randn(3, 4, requires_grad=False) for _ in range(2)]
        found = record(lambda a, b: [(a @ b.t() + k).tanh() for k in range(200)], *rows)
        compiled(found)(*rows)

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    for _ in range(5):
        once()
    before = resident()
    for _ in range(40):
        once()
    assert resident() - before < 40 * 150  # pages of 4 KiB; a script left 400 and more each


def test_a_write_between_is_never_passed_over() -> None:
    """Sums are not moved past writes, and what is changed later is not merged."""

    def scaled_then_changed(h: Tensor) -> Tensor:
        t = 0.004 * h
        h = torch.relu_(h + 0)
        return h + t

    def read_before_a_write(a: Tensor, h: Tensor) -> Tensor:
        h = h + 1
        t = 2 * h
        h.mul_(5)
        return a + t

    def clones(h: Tensor) -> Tensor:
        a, b = h.clone(), h.clone()
        a.mul_(2)
        return a + b

    def multiplied_by_itself(h: Tensor, q: Tensor) -> Tensor:
        h = h * 2
        return torch.addmm(h, h, q)

    torch.manual_seed(0)
    square = torch.randn(3, 3)
    for rule, tensors in (
        (scaled_then_changed, [torch.randn(5)]),
        (read_before_a_write, [torch.randn(5), torch.randn(5)]),
        (clones, [torch.randn(5)]),
        (multiplied_by_itself, [square, torch.randn(3, 3)]),
    ):
        expected = rule(*(tensor.clone() for tensor in tensors))
        recorded = record(rule, *(tensor.clone() for tensor in tensors))
        for replay in (compiled(recorded), in_python(recorded)):
            torch.testing.assert_close(replay(*tensors), expected, rtol=1e-6, atol=1e-7)


def test_what_a_function_writes_to_is_copied_first() -> None:
    table = torch.zeros(2)

    def counting(x: Tensor) -> Tensor:
        table.add_(1)
        x.mul_(3)
        return x + table

    recorded = compiled(record(counting, torch.ones(2)))
    table.zero_()
    ones = torch.ones(2)
    for _ in range(3):
        assert recorded(ones).tolist() == [4.0, 4.0]
    assert ones.tolist() == [1.0, 1.0]
    assert table.tolist() == [0.0, 0.0]


def test_recordings_are_kept_by_strides_and_types() -> None:
    traced = Traced(lambda x: x.reshape(-1) * 2)
    rows = torch.arange(6.0).view(2, 3)
    for tensor in (rows, rows.t().contiguous().t(), rows.double(), rows[:1].expand(2, 3)):
        torch.testing.assert_close(traced(tensor), tensor.reshape(-1) * 2)
    assert len(traced) == 4


@dataclass(frozen=True)
class Peeking(Algorithm):
    """Looks at values, which a recording cannot."""

    lr: float = 0.1
    elementwise = True

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = grad(local.w)
        return Vectors(w=local.w - self.lr * g if float(g.abs().max()) > 0 else local.w)


def test_a_step_that_cannot_be_recorded_is_done_as_written() -> None:
    peeking = fednag.run(Peeking(), **SMALL)
    plain = fednag.run(fednag.FedAvg(lr=0.1), **SMALL)
    assert peeking.records[-1].loss == pytest.approx(plain.records[-1].loss, rel=1e-6)


@dataclass(frozen=True)
class Wrong(FedNAG):
    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.no_such_vector)


def test_a_step_that_is_wrong_says_what_is_wrong() -> None:
    with pytest.raises(AttributeError, match="no_such_vector"):
        fednag.run(Wrong(), **SMALL)


def test_training_goes_through_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, every fast path could be off and no other test would know."""
    calls = []
    replayed = RecordedStep._replayed

    def spy(self: RecordedStep, *given: object) -> Vectors:
        result = replayed(self, *given)  # type: ignore[arg-type]
        assert result is not None
        calls.append(result)
        return result

    monkeypatch.setattr(RecordedStep, "_replayed", spy)
    for algorithm in (FedNAG(), fednag.Mime(), fednag.Scaffold()):
        calls.clear()
        fednag.run(algorithm, **SMALL, engine={"chunk": 2, "threads": 1})
        assert len(calls) == 2 * 6 + 1  # and one that is only compared, at the end


def test_evaluation_of_an_untraceable_model_is_eager_and_right() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layer(x)
            return scores if bool((scores > 0).any()) else -scores

    x, y = torch.randn(40, 2), torch.randint(0, 2, (40,))
    model = Branching()
    run = fednag.run(FedNAG(), model=model, data=(x, y), batch=8, tau=2, iterations=4)
    expected = nn.functional.cross_entropy(run.final(x), y).item()
    assert run.records[-1].loss == pytest.approx(expected, rel=1e-5)


class ThroughNumpy(nn.Module):
    """Leaves torch on the way, so that a recording would repeat the first batch for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(torch.from_numpy(x.flatten(1).numpy() * 2.0))
        return scores


def test_a_model_whose_recording_is_wrong_is_not_recorded() -> None:
    model = ThroughNumpy()
    torch_only = nn.Sequential(nn.Flatten(), Doubled(), nn.Linear(64, 10))
    torch_only[2].load_state_dict(model.layer.state_dict())
    runs = [fednag.run(FedNAG(), **{**SMALL, "model": net}) for net in (model, torch_only)]
    assert any("is not recorded" in note for note in runs[0].notes)
    assert not any("recorded" in note for note in runs[1].notes)
    assert runs[0].records[-1].loss == pytest.approx(runs[1].records[-1].loss, rel=1e-5)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x


def test_recordings_never_run_at_the_same_time() -> None:
    """They may swap attributes of one module, and each thread would record the other's."""
    inside, most = 0, 0

    def watched(x: Tensor) -> Tensor:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return x + 1

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: Traced(watched)(torch.ones(n)), range(1, 9)))
    assert [len(x) for x in found] == list(range(1, 9))
    assert most == 1


def test_a_model_that_gives_nan_is_still_recorded() -> None:
    module = nn.Linear(2, 2)
    x, y = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)
    problem = Problem(Dataset("own", x, y, x[:0], y[:0], classes=2), module)
    w = torch.full_like(problem.initial, float("nan"))[None]
    given = w, problem.initial_buffers[None], x[None], y[None], torch.ones(1, 3) / 3
    assert problem.gradients.prepare(*given)


def test_what_was_done_before_is_not_done_again() -> None:
    def twice(x: Tensor) -> Tensor:
        return x.exp() * x.exp() + x.mul(2) * x.mul(2.0)

    graph = record(twice, torch.ones(2)).graph
    assert len(graph.find_nodes(op="call_function", target=aten.exp.default)) == 1
    torch.testing.assert_close(Traced(twice)(torch.ones(2)), twice(torch.ones(2)))


def test_what_was_changed_since_is_done_again() -> None:
    def changing(x: Tensor) -> list[Tensor]:
        values = x + 1
        view = values.view(-1)
        before = view.exp()
        values.mul_(2)
        return [before, view.exp()]

    for found, expected in zip(
        Traced(changing)(torch.ones(2)), changing(torch.ones(2)), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (5, 40, 3), (3,)])
def test_softmax_over_few_scores_is_torchs(shape: tuple[int, ...]) -> None:
    def both(x: Tensor, gradient: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = x.log_softmax(-1)
            return [out.detach(), *torch.autograd.grad(out, x, gradient)]

    torch.manual_seed(0)
    given = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    for found, expected in zip(Traced(both)(*given), both(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


class OfSequences(nn.Module):
    """Scores from an LSTM, or from attention, over a sequence of numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        if kind == "lstm":
            self.inner: nn.Module = nn.LSTM(5, 8, num_layers=2, batch_first=True)
        elif kind == "bidirectional":
            self.inner = nn.LSTM(5, 4, bidirectional=True, batch_first=True)
        else:
            width = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}
            layer = nn.TransformerEncoderLayer(**width, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.before = nn.Linear(5, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(self.before(x) if hasattr(self, "before") else x)
        return self.out((found[0] if isinstance(found, tuple) else found)[:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["lstm", "bidirectional", "transformer"])
def test_models_of_sequences_are_recorded(kind: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(12, 6, 5, generator=draw, dtype=dtype)
    y = torch.randint(3, (12,), generator=draw)
    ours, torchs = slopes(OfSequences(kind).to(dtype), x, y)  # it is recorded, or this fails
    close = 1e-5 if dtype == torch.float32 else 1e-12
    assert (ours - torchs).abs().max() < close * torchs.abs().max()


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_run_over_sequences_is_a_plain_loops(kind: str) -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(48, 6, 5, generator=draw), torch.randint(3, (48,), generator=draw)
    given = {"data": (x, y), "test": (x, y), "workers": 3, "tau": 2, "iterations": 8, "batch": 4}
    runs = [
        fednag.run("fednag", model=OfSequences(kind), engine={"recorded": recorded}, **given)
        for recorded in (True, False)
    ]
    assert not any("not recorded" in note for note in runs[0].notes)
    losses = [[record.loss for record in run.records] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_operations_draw_where_they_leave_something_out() -> None:
    q = torch.randn(1, 1, 2, 4)
    for name in ("flash_attention_for_cpu", "attention_math", "cudnn_attention"):
        attend = getattr(aten, f"_scaled_dot_product_{name}").default
        assert not draws(attend, (q, q, q), {})
        assert not draws(attend, (q, q, q), {"dropout_p": 0.0})
        assert draws(attend, (q, q, q), {"dropout_p": 0.5})
    assert draws(aten._scaled_dot_product_flash_attention.default, (q, q, q, 0.1), {})
    assert draws(aten.bernoulli.default, (q,), {})
    assert not draws(aten.mul.Tensor, (q, q), {})
