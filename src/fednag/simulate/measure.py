"""What a model is worth on the data: the numbers of a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

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


class Yardstick:
    """Measures models on data that are all here."""

    def __init__(
        self,
        engine: Engine,
        owned: Sequence[Indexes],
        seed: int,
        samples: int = 0,
        per_worker: bool = False,
    ) -> None:
        self.engine, self.owned, self.per_worker = engine, owned, per_worker
        self.train_index = self._evaluated(np.sort(np.concatenate(owned)), seed, samples)
        problem = engine.problem
        self.test_index = torch.arange(len(problem.test_x), device=problem.device)

    def __call__(self, w: Vector) -> Measures:
        engine, problem = self.engine, self.engine.problem
        losses, hits = engine.evaluate(w, problem.x, problem.y, self.train_index)
        classes = problem.dataset.classes is not None
        accuracy = None
        if classes and len(self.test_index):
            _, right = engine.evaluate(w, problem.test_x, problem.test_y, self.test_index)
            accuracy = float(right.mean())
        return Measures(
            loss=float(losses.mean()),
            accuracy=accuracy,
            train_accuracy=float(hits.mean()) if classes else None,
            worker_losses=self._worker_losses(w) if self.per_worker else None,
        )

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
