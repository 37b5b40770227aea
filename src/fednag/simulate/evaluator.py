"""Evaluates a model: the losses, accuracies and metrics of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fednag.compute.randomness import private_randomness
from fednag.core.keys import SAMPLE, Indexes
from fednag.core.vectors import Vector
from fednag.data.partition import held_by, sizes_of
from fednag.problems.metrics import Metric, measured

if TYPE_CHECKING:
    from fednag.problems.problem import Problem
    from fednag.simulate.engine import Engine


@dataclass(frozen=True)
class Measures:
    """The global training loss and what else a record says of a model."""

    loss: float
    accuracy: float | None  # on the test samples; None without any, or for regression
    train_accuracy: float | None
    worker_losses: tuple[float, ...] | None = None
    test_loss: float | None = None  # None without test samples, or where it is not finite
    metrics: Mapping[str, float | None] = field(default_factory=dict)


class Evaluator:
    """Measures models on data that are all here."""

    def __init__(
        self,
        engine: Engine,
        owned: Sequence[Indexes],
        seed: int,
        samples: int = 0,
        per_worker: bool = False,
        metrics: Mapping[str, Metric] | None = None,
        problem: Problem | None = None,
    ) -> None:
        self.engine, self.owned, self.per_worker = engine, owned, per_worker
        self.problem = problem or engine.problem  # attackers may train on another
        self.seed, self.samples = seed, samples
        self.metrics = metrics or {}
        self.train_index = self._evaluated(held_by(owned), seed, samples)
        problem = self.problem
        self.test_index = torch.arange(len(problem.test_x), device=problem.device)

    def __call__(self, w: Vector, b: Vector) -> Measures:
        """Of the model ``w`` with the buffers ``b``, (k,); or (n, k), each worker's own."""
        if b.dim() == 2:
            return self._by_worker(w, b)
        problem = self.problem
        losses, hits = self.engine.evaluate(w, b, problem.x, problem.y, self.train_index)
        worker_losses = None
        if self.per_worker:
            worker_losses = self._worker_losses(w, b)
        accuracy, test_loss, metrics = self._tested(w, b)
        return Measures(
            loss=problem.mean_loss(losses, problem.y[self.train_index]),
            accuracy=accuracy,
            train_accuracy=float(hits.mean()) if self._has_classes else None,
            worker_losses=worker_losses,
            test_loss=test_loss if test_loss is not None and isfinite(test_loss) else None,
            metrics=metrics,
        )

    def verify(self, w: Vector, b: Vector) -> None:
        """Compare the recorded evaluation with the module once more, on one block of samples."""
        problem, engine = self.problem, self.engine
        first = engine.blocks(self.train_index)[0]
        engine.problem.evaluate(w, b if b.dim() == 1 else b[0], problem.x, problem.y, first)

    @property
    def _has_classes(self) -> bool:
        return self.problem.dataset.classes is not None

    def _by_worker(self, w: Vector, b: Vector) -> Measures:
        """Every worker with its own buffers, on its own samples; the mean over workers, by size."""
        found = [
            Evaluator(
                self.engine, [mine], self.seed, self.samples, False, self.metrics, self.problem
            )(w, own)
            for mine, own in zip(self.owned, b, strict=True)
        ]
        sizes = sizes_of(self.owned).tolist()

        def mean(values: list[float | None]) -> float | None:
            known = [
                (value, size)
                for value, size in zip(values, sizes, strict=True)
                if value is not None
            ]
            total = sum(size for _, size in known)
            return sum(value * size for value, size in known) / total if total else None

        loss = mean([each.loss for each in found])
        return Measures(
            loss=float("nan") if loss is None else loss,
            accuracy=mean([each.accuracy for each in found]),
            train_accuracy=mean([each.train_accuracy for each in found]),
            worker_losses=tuple(each.loss for each in found) if self.per_worker else None,
            test_loss=mean([each.test_loss for each in found]),
            metrics={name: mean([each.metrics[name] for each in found]) for name in self.metrics},
        )

    def _tested(
        self, w: Vector, b: Vector
    ) -> tuple[float | None, float | None, dict[str, float | None]]:
        """Accuracy, loss and metrics on the test samples; metrics only where they are asked for."""
        engine, problem = self.engine, self.problem
        if not len(self.test_index):
            return None, None, {}
        losses, right = engine.evaluate(w, b, problem.test_x, problem.test_y, self.test_index)
        metrics: dict[str, float | None] = {}
        if self.metrics:
            output = _on_cpu(engine.outputs(w, b, problem.test_x, self.test_index))
            target = problem.test_y.cpu()
            with private_randomness(self.seed):
                metrics = {n: measured(n, m, output, target) for n, m in self.metrics.items()}
        accuracy = float(right.mean()) if self._has_classes else None
        return accuracy, problem.mean_loss(losses, problem.test_y), metrics

    def _worker_losses(self, w: Vector, b: Vector) -> tuple[float, ...]:
        problem, owned = self.problem, self.owned
        index = torch.from_numpy(np.concatenate(owned)).to(problem.device)
        parts = torch.split(index, [len(mine) for mine in owned])
        if problem.facts.mixes_settled:  # each worker's samples among themselves
            found = [self.engine.evaluate(w, b, problem.x, problem.y, part)[0] for part in parts]
        else:
            losses, _ = self.engine.evaluate(w, b, problem.x, problem.y, index)
            found = list(torch.split(losses, [len(mine) for mine in owned]))
        means = zip(found, parts, strict=True)
        return tuple(problem.mean_loss(part, problem.y[index]) for part, index in means)

    def _evaluated(self, held: Indexes, seed: int, samples: int) -> Tensor:
        """The training samples the loss is taken over: all that workers hold, or a fixed sample."""
        if 0 < samples < len(held):
            rng = np.random.default_rng([seed, SAMPLE])
            held = np.sort(rng.choice(held, samples, replace=False))
        return torch.from_numpy(held).to(self.problem.device)


def _on_cpu(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.cpu()
    if isinstance(output, Mapping):
        return {name: _on_cpu(part) for name, part in output.items()}
    return tuple(_on_cpu(part) for part in output) if isinstance(output, tuple) else output
