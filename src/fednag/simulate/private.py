"""Gradients with noise, sample by sample: DP-SGD as a worker's local iteration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fednag.core.keys import NOISE, Draws, Indexes, gaussian, generator, poisson_batch
from fednag.core.loop import GradientNoise
from fednag.core.vectors import Vector
from fednag.errors import FednagError
from fednag.problems.problem import Problem
from fednag.simulate.steps import stacked

BLOCK = 64  # samples whose gradients are taken together


class PrivateBatch:
    """The gradients of n stacked workers in one iteration, clipped sample by sample and noised.

    Abadi et al., "Deep Learning with Differential Privacy" (2016)::

        g = (sum_j g_j min(1, C / ||g_j||) + N(0, (z C)^2)) / b

    Every sample of a worker is in its batch with probability b / D_i, so a batch may be empty; the
    sum is divided by b all the same. A sample's gradient is that of a worker who holds it alone:
    the same recordings compute it, compared with the user's module.
    """

    def __init__(
        self,
        problem: Problem,
        noise: GradientNoise,
        draws: Draws,
        owned: Sequence[Indexes],
        buffers: Vector,
        group: Indexes,
        iterations: Indexes,
    ) -> None:
        self.problem, self.noise, self.draws, self.owned = problem, noise, draws, owned
        self.buffers, self.group, self.iterations = buffers, group, iterations
        self._taken = False

    def __call__(self, w: Vector) -> Vector:
        if self._taken:
            raise FednagError(
                "privacy.unit",
                "the method takes two gradients in a local iteration, and each would need noise "
                "of its own",
                "use another method, or unit = 'worker'",
            )
        self._taken = True
        rows = stacked(w, len(self.group))
        return torch.stack([self._noised(rows[row], row) for row in range(len(self.group))])

    def _noised(self, w: Vector, row: int) -> Vector:
        noise, draws = self.noise, self.draws
        worker, iteration = int(self.group[row]), int(self.iterations[row])
        size, key = int(draws.sizes[worker]), (draws.seed, int(draws.numbers[worker]), iteration)
        batch = min(draws.batch or size, size)
        chosen = self.owned[worker][poisson_batch(*key, size, batch / size, noise.secret)]
        total = self._clipped(w, torch.from_numpy(chosen).to(self.problem.device), row)
        if noise.noise_multiplier:
            rng = None if noise.secret else generator(key[0], NOISE, *key[1:])
            drawn = torch.from_numpy(gaussian(len(w), rng)).to(total)
            total = total + noise.noise_multiplier * noise.norm * drawn
        return (total / batch).to(w.dtype)

    def _clipped(self, w: Vector, index: Tensor, row: int) -> Vector:
        """The sum of the samples' gradients, none longer than the norm; in double precision."""
        problem, norm = self.problem, self.noise.norm
        width = min(self.draws.width, BLOCK)
        wide = torch.float32 if w.device.type == "mps" else torch.float64
        total = torch.zeros(len(w), dtype=wide, device=w.device)
        for block in torch.split(index, width) if len(index) else ():
            # Batches of other sizes would be recorded anew: what is missing weighs nothing.
            filled = torch.cat([block, block[:1].expand(width - len(block))]).unsqueeze(1)
            weight = (torch.arange(width, device=w.device) < len(block)).to(w.dtype).unsqueeze(1)
            samples = problem.batch(problem.x, problem.y, filled)
            copies = w.expand(width, -1).contiguous(), self.buffers[row].expand(width, -1)
            found, _ = problem.gradients(*copies, *samples, weight, padded=True)
            lengths = (
                found.to(wide).norm(dim=1).clamp_min(1e-300 if wide == torch.float64 else 1e-30)
            )
            total += (norm / lengths).clamp_max(1.0) @ found.to(wide)
        return total


def check_model(problem: Problem) -> None:
    """Raise FednagError for a model or loss that has no gradient of one sample."""
    if problem.facts.mixes or problem.facts.moving:
        raise FednagError(
            "privacy.unit",
            "the model mixes samples (batch normalisation?), so that no sample has a gradient of "
            "its own",
            "set model.batch_norm = 'frozen', use another, or unit = 'worker'",
        )
    if not problem.facts.by_sample or problem.shares is not None:
        raise FednagError(
            "privacy.unit",
            "the loss is no plain mean over samples, so that no sample has a gradient of its own",
            "use another loss, or unit = 'worker'",
        )


def no_data() -> FednagError:
    return FednagError(
        "privacy.unit",
        "the method asks for gradients or losses over all of a worker's data, which are not noised",
        "use another method, or unit = 'worker'",
    )
