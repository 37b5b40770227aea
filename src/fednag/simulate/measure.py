"""What a model is worth on the data: the numbers of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fednag.metrics import Metric, measured
from fednag.simulate.schedule import SAMPLE, Indexes
from fednag.vectors import Vector

if TYPE_CHECKING:
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


class Yardstick:
    """Measures models on data that are all here."""

    def __init__(
        self,
        engine: Engine,
        owned: Sequence[Indexes],
        seed: int,
        samples: int = 0,
        per_worker: bool = False,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.engine, self.owned, self.per_worker = engine, owned, per_worker
        self.metrics = metrics or {}
        self.train_index = self._evaluated(np.sort(np.concatenate(owned)), seed, samples)
        problem = engine.problem
        self.test_index = torch.arange(len(problem.test_x), device=problem.device)

    def __call__(self, w: Vector) -> Measures:
        engine, problem = self.engine, self.engine.problem
        losses, hits = engine.evaluate(w, problem.x, problem.y, self.train_index)
        classes = problem.dataset.classes is not None
        accuracy, test_loss = None, None
        if len(self.test_index):
            tested, right = engine.evaluate(w, problem.test_x, problem.test_y, self.test_index)
            accuracy = float(right.mean()) if classes else None
            test_loss = float(tested.mean())
        return Measures(
            loss=float(losses.mean()),
            accuracy=accuracy,
            train_accuracy=float(hits.mean()) if classes else None,
            worker_losses=self._worker_losses(w) if self.per_worker else None,
            test_loss=test_loss if test_loss is not None and isfinite(test_loss) else None,
            metrics=self._metrics(w),
        )

    def _metrics(self, w: Vector) -> dict[str, float | None]:
        """Those asked for; most runs ask for none, and then no outputs are kept."""
        if not self.metrics or not len(self.test_index):
            return {}
        problem = self.engine.problem
        output = self.engine.outputs(w, problem.test_x, self.test_index).cpu()
        target = problem.test_y.cpu()
        return {name: measured(name, m, output, target) for name, m in self.metrics.items()}

    def _worker_losses(self, w: Vector) -> tuple[float, ...]:
        problem, owned = self.engine.problem, self.owned
        index = torch.from_numpy(np.concatenate(owned)).to(problem.device)
        losses, _ = self.engine.evaluate(w, problem.x, problem.y, index)
        return tuple(float(part.mean()) for part in torch.split(losses, [len(o) for o in owned]))

    def _evaluated(self, held: Indexes, seed: int, samples: int) -> Tensor:
        """The training samples the loss is taken over: all that workers hold, or a fixed sample."""
        if 0 < samples < len(held):
            rng = np.random.default_rng([seed, SAMPLE])
            held = np.sort(rng.choice(held, samples, replace=False))
        return torch.from_numpy(held).to(self.engine.problem.device)
