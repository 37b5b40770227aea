"""All randomness of training: who takes part, which samples come when, what transforms draw.

Every draw is keyed by what it is for (seed, round, worker, epoch), never by the order of calls, so
any chunk size, thread count or executor gives the same run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indexes = NDArray[np.int64]

# Distinguish the streams that share a seed.
PARTICIPANTS, ORDER, MODEL, SAMPLE, UPLINK, DOWNLINK, DELAYS, AGGREGATOR, AGGREGATION = range(1, 10)
COIN, NOISE, BATCH, VANISHING = 10, 11, 12, 13
ATTACKERS, ATTACK = 16, 17
EDGE = 18

MOST_HELD = 1 << 21  # samples whose orders are held, 64 MB
EPOCHS_DRAWN = 4  # at once: making a generator takes longer than drawing a small worker's order


def generator(seed: int, stream: int, *parts: int) -> np.random.Generator:
    """The random generator of one purpose, e.g. of a worker's upload in a round."""
    return np.random.default_rng([seed, stream, *parts])


def cohort(seed: int, number: int, workers: Indexes, size: int) -> Indexes:
    """The workers of round ``number``, in order; drawn uniformly, without replacement."""
    if size >= len(workers):
        return workers
    rng = generator(seed, PARTICIPANTS, number)
    return np.sort(rng.choice(workers, size, replace=False))


def bernoulli_cohort(seed: int, number: int, workers: Indexes, rate: float) -> Indexes:
    """The workers of round ``number``, each of them in it with probability ``rate``."""
    rng = generator(seed, PARTICIPANTS, number)
    return workers[rng.random(len(workers)) < rate]


def chances(sizes: Indexes, size: int) -> tuple[NDArray[np.float64], float]:
    """Each worker's chance to be in a cohort drawn by size, and what its unbiased mean rests on.

    Chances are in proportion to ``sizes``, but at most 1: who has more is always in, and the others
    share the places that are left. Samples over chance, the weights of an unbiased mean, are then
    ``max(samples, least)``: those drawn count alike.
    """
    certain = np.zeros(len(sizes), dtype=bool)
    while True:
        places = max(size - int(certain.sum()), 0)
        rest = float(sizes[~certain].sum())
        found = np.where(certain, 1.0, places * sizes / (rest or 1.0))
        if not (over := (found >= 1) & ~certain).any():
            return found, rest / places if places else 0.0
        certain |= over


def sized_cohort(seed: int, number: int, workers: Indexes, sizes: Indexes, size: int) -> Indexes:
    """The workers of round ``number``, in order, drawn with the chances of ``chances``.

    Systematic sampling: in random order, the chances are laid end to end, and points at distance 1
    with a random start say who is drawn.
    """
    if size >= len(workers):
        return workers
    found, _ = chances(sizes, size)
    certain = found >= 1
    rng = generator(seed, PARTICIPANTS, number)
    order = rng.permutation(np.flatnonzero(~certain))
    points = 1 - rng.random() + np.arange(size - int(certain.sum()))
    places = np.searchsorted(np.cumsum(found[order]), points).clip(max=len(order) - 1)
    return np.sort(np.concatenate([workers[certain], workers[order[places]]]))


def gaussian(size: int, rng: np.random.Generator | None) -> NDArray[np.float64]:
    """Standard normal numbers, drawn from ``rng``; if it is None, nobody can draw them again.

    Those come from the operating system's cryptographic generator: 53 random bits each, and the
    normal distribution's quantile there.
    """
    if rng is not None:
        return rng.standard_normal(size)
    from scipy.special import ndtri  # takes a third of a second to load, and few runs need it

    found: NDArray[np.float64] = ndtri(_secret_uniform(size))
    return found


def poisson_batch(
    seed: int, worker: int, iteration: int, size: int, rate: float, secret: bool = False
) -> Indexes:
    """A worker's batch in one of its iterations, in which each of its samples is at ``rate``."""
    if secret:
        drawn = _secret_uniform(size)
    else:
        drawn = generator(seed, BATCH, worker, iteration).random(size)
    return np.flatnonzero(drawn < rate)


def _secret_uniform(size: int) -> NDArray[np.float64]:
    """Numbers between 0 and 1 that nobody can draw again."""
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    return np.asarray((bits + 0.5) / 2.0**53, dtype=np.float64)


class Draws:
    """The mini-batches of workers of these sizes, ``batch`` samples an iteration (0: all).

    Workers draw by their ``numbers``: 0, 1, 2 and so on, unless only some of them are here.
    """

    def __init__(
        self,
        seed: int,
        sizes: Sequence[int] | Indexes,
        batch: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.seed, self.batch = seed, batch
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.numbers = np.asarray(range(len(sizes)) if numbers is None else numbers, dtype=np.int64)
        self._orders: dict[int, tuple[int, list[Indexes]]] = {}
        self._held = 0  # samples of those whose orders are held

    @property
    def width(self) -> int:
        """The widest batch any worker draws; narrower ones are padded to it when stacked."""
        largest = int(self.sizes.max())
        return min(self.batch, largest) if self.batch else largest

    def order(self, worker: int, epoch: int) -> Indexes:
        """The order in which a worker visits its samples in one of its epochs."""
        block, number = divmod(epoch, EPOCHS_DRAWN)
        drawn, orders = self._orders.get(worker, (-1, []))
        if drawn != block:
            rng = np.random.Generator(
                np.random.PCG64([self.seed, ORDER, int(self.numbers[worker]), block])
            )
            size = int(self.sizes[worker])
            orders = [rng.permutation(size) for _ in range(EPOCHS_DRAWN)]
            if worker not in self._orders:
                self._held += size
            if self._held > MOST_HELD:  # they can be drawn again
                self._orders, self._held = {}, size
            self._orders[worker] = block, orders
        return orders[number]

    def batches(self, worker: int, start: int, steps: int) -> Indexes:
        """Positions (steps, b) of the worker's samples, from its ``start``-th iteration on.

        The epochs' orders follow each other without a gap: every sample is seen once an epoch,
        and a batch may end one epoch and begin the next. A worker with fewer samples than a batch
        uses all it has, each iteration.
        """
        size = int(self.sizes[worker])
        if not self.batch or self.batch >= size:
            return np.broadcast_to(np.arange(size), (steps, size))
        first, last = start * self.batch, (start + steps) * self.batch
        epochs = range(first // size, (last - 1) // size + 1)
        stream = np.concatenate([self.order(worker, epoch) for epoch in epochs])
        offset = first - epochs[0] * size
        return stream[offset : offset + last - first].reshape(steps, self.batch)
