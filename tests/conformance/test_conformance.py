"""Every model of the table is trained as a plain PyTorch loop trains it, or refused."""

from __future__ import annotations

import os
import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from models import CASES, TRAINED, Case
from plain import Outcome, Settings, train
from torch import Tensor, nn

import fednag
from fednag.errors import FednagError

ENGINES = [(1, 1), (3, 2), (3, 1), (1, 2)]  # workers stacked, threads
METHODS = {"fedavg": fednag.FedAvg, "fednag": fednag.FedNAG, "mime": fednag.Mime}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
SOMEWHERE = 9173

Combination = tuple[int, int, int, str]  # workers stacked, threads, batch, algorithm


def combinations(case: Case) -> list[Combination]:
    """Two engines that differ in both numbers; engines, batches and algorithms take turns.

    With FEDNAG_CONFORMANCE=all, whatever can be combined.
    """
    if os.environ.get("FEDNAG_CONFORMANCE") == "all":
        return [
            (*engine, *of) for engine in ENGINES for of in product(case.batches, case.algorithms)
        ]
    found = []
    pair = ENGINES[:2] if case.key % 2 else ENGINES[2:]
    for turn, engine in enumerate(pair, case.key):
        batch = case.batches[turn % len(case.batches)]
        algorithm = case.algorithms[(turn + case.key // 3) % len(case.algorithms)]
        found.append((*engine, batch, algorithm))
    return found


def table(*expected: str) -> list[Any]:
    return [
        pytest.param(case, combination, id="-".join([case.name, _word(combination)]))
        for case in CASES
        if case.expect in expected
        for combination in combinations(case)
    ]


def _word(combination: Combination) -> str:
    chunk, threads, batch, algorithm = combination
    return f"chunk{chunk}-threads{threads}-batch{batch}-{algorithm}"


def settings_of(case: Case, batch: int, algorithm: str) -> Settings:
    return Settings(algorithm=algorithm, batch=batch, dtype=case.dtype)


def run(
    case: Case, module: nn.Module, x: Tensor, y: Tensor, combination: Combination
) -> fednag.Run:
    """The case through the public interface."""
    chunk, threads, batch, algorithm = combination
    asked = settings_of(case, batch, algorithm)
    numbers = {} if algorithm == "fedavg" else {"momentum": asked.momentum}
    return fednag.run(
        METHODS[algorithm](lr=asked.lr, **numbers),
        data=(x[:TRAINED], y[:TRAINED]),
        test=(x[TRAINED:], y[TRAINED:]),
        model=module,
        loss=case.loss(),
        workers=asked.workers,
        tau=asked.tau,
        iterations=asked.iterations,
        batch=batch,
        seed=asked.seed,
        split={"kind": "sizes", "skew": asked.skew},
        engine={
            "dtype": str(asked.dtype).removeprefix("torch."),
            "chunk": chunk,
            "threads": threads,
            "device": "cpu",
        },
        quiet=True,
    )


def plainly(case: Case, batch: int, algorithm: str) -> Outcome:
    x, y = case.samples()
    return train(
        case.build(),
        x[:TRAINED],
        y[:TRAINED],
        case.loss(),
        settings_of(case, batch, algorithm),
        (x[TRAINED:], y[TRAINED:]),
    )


class Untouched:
    """The user's module, tensors and random numbers are after a run what they were before."""

    def __init__(self, module: nn.Module, *tensors: Tensor) -> None:
        self.module, self.tensors = module, tensors
        # Seeds that nobody else would set.
        torch.manual_seed(SOMEWHERE)
        np.random.seed(SOMEWHERE)
        random.seed(SOMEWHERE)
        self.before = self.seen()

    def seen(self) -> list[Any]:
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        # A lazy parameter has no numbers yet.
        held = [(n, t) for n, t in named if not nn.parameter.is_lazy(t)]
        return [
            [(name, tensor.detach().clone()) for name, tensor in held],
            [(name, p.requires_grad, p.grad) for name, p in self.module.named_parameters()],
            [(name, part.training) for name, part in self.module.named_modules()],
            [_plain_attributes(part) for part in self.module.modules()],
            [tensor.clone() for tensor in self.tensors],
            torch.get_rng_state(),
            list(np.random.get_state()),
            random.getstate(),
        ]

    def check(self) -> None:
        what = ("values", "gradients", "modes", "attributes", "data", "torch", "numpy", "random")
        for name, before, after in zip(what, self.before, self.seen(), strict=True):
            assert _same(before, after), f"the run changed the user's {name}"


def _plain_attributes(part: nn.Module) -> dict[str, Any]:
    if isinstance(part, torch.jit.ScriptModule):
        return {}
    simple = (int, float, bool, str, type(None))
    return {name: value for name, value in vars(part).items() if isinstance(value, simple)}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(p, q) for p, q in zip(a, b, strict=True))
    return bool(a == b)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    assert found.shape == wanted.shape, f"{what}: shape {found.shape}, not {wanted.shape}"
    gap = (found.double() - wanted.double()).abs().max() if found.numel() else torch.zeros(())
    size = wanted.double().abs().max() if found.numel() else torch.zeros(())
    assert float(gap) <= tolerance * max(float(size), 1e-3), f"{what}: off by {float(gap):.3g}"


def check_sentence(error: FednagError) -> None:
    sentence = str(error)
    assert sentence.strip(), "it says nothing"
    assert "\n" not in sentence, f"more than a sentence: {sentence}"
    assert "Traceback" not in sentence
    assert any(word in sentence for word in ("model", "loss", "data")), sentence


def trained_alike(case: Case, combination: Combination) -> None:
    """The numbers of the plain loop, or a sentence where that raises."""
    *_, batch, algorithm = combination
    x, y = case.samples()
    module = case.build()
    untouched = Untouched(module, x, y)
    if batch in case.raises_at:
        with pytest.raises(FednagError) as caught:
            run(case, module, x, y, combination)
        check_sentence(caught.value)
        untouched.check()
        return
    wanted = plainly(case, batch, algorithm)
    found = run(case, module, x, y, combination)
    assert found.ended == "finished"
    tolerance = TOLERANCE[case.dtype]
    weights, buffers = dict(found.final.named_parameters()), dict(found.final.named_buffers())
    for name, tensor in wanted.weights.items():
        assert_near(weights[name].detach(), tensor, tolerance, name)
    assert set(buffers) == set(wanted.buffers)
    for name, tensor in wanted.buffers.items():
        assert buffers[name].dtype == tensor.dtype
        assert_near(buffers[name], tensor, tolerance, name)
    for name, tensor in module.named_parameters():
        if not tensor.requires_grad:
            assert_near(weights[name].detach(), tensor.detach(), tolerance, name)
    assert len(found.records) == len(wanted.losses)
    for number, record in enumerate(found.records):
        loss, accuracy = wanted.losses[number], wanted.accuracies[number]
        near = record.loss == pytest.approx(loss, rel=tolerance, abs=1e-12)
        assert near, f"the loss of record {number} is {record.loss}, not {loss}"
        if accuracy is not None:
            near = record.accuracy == pytest.approx(accuracy, abs=1e-12)
            assert near, f"the accuracy of record {number} is {record.accuracy}, not {accuracy}"
    untouched.check()


@pytest.mark.parametrize(("case", "combination"), table("equal"))
def test_trained_as_a_plain_loop_does(case: Case, combination: Combination) -> None:
    trained_alike(case, combination)


@pytest.mark.parametrize(("case", "combination"), table("refused"))
def test_refused_in_one_sentence(case: Case, combination: Combination) -> None:
    x, y = case.samples()
    module = case.build()
    untouched = Untouched(module, x, y)
    with pytest.raises(FednagError) as caught:
        run(case, module, x, y, combination)
    check_sentence(caught.value)
    untouched.check()


@pytest.mark.parametrize(("case", "combination"), table("random"))
def test_random_models_repeat_themselves(case: Case, combination: Combination) -> None:
    """Whatever the random numbers of the program, and however many workers are stacked."""
    x, y = case.samples()
    module = case.build()
    untouched = Untouched(module, x, y)
    first = run(case, module, x, y, combination)
    untouched.check()
    torch.rand(3), np.random.rand(3), random.random()
    again = run(case, module, x, y, combination)
    pairs = zip(first.final.named_parameters(), again.final.named_parameters(), strict=True)
    for (name, a), (_, b) in pairs:
        assert torch.equal(a, b), f"{name} is another in the second run"
    assert [r.loss for r in first.records] == [r.loss for r in again.records]
    moved = dict(module.named_parameters())
    assert any(not torch.equal(p, moved[n].to(p)) for n, p in first.final.named_parameters())
    alone = run(case, module, x, y, (1, 1, *combination[2:]))
    for (name, a), b in zip(first.final.named_parameters(), alone.final.parameters(), strict=True):
        assert_near(a.detach(), b.detach(), 1e-9, name)
