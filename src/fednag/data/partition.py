"""How the training samples are dealt to the workers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError

# Sets this stream apart from every other that is drawn from the same seed.
_STREAM = 0x5B117
# Evening out stops by itself; this bounds the time when many classes overlap in long chains.
_MAX_PASSES = 200

Indexes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each worker holds; no worker is empty, and no sample is held twice, unless
    the workers are ``Drawn``."""

    workers: Sequence[Indexes]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> Indexes:
        return sizes_of(self.workers)

    def table(self, labels: NDArray[Any], classes: int) -> Indexes:
        """Samples of each class (a column, 0 to classes - 1) at each worker (a row)."""
        count = len(self.workers)
        worker = np.repeat(np.arange(count), self.sizes)
        held = np.asarray(labels)[np.concatenate(self.workers)].astype(np.int64)
        cells = np.bincount(worker * classes + held, minlength=count * classes)
        return cells.astype(np.int64).reshape(count, classes)

    def pooled(self) -> Partition:
        """One worker that holds all that the workers hold."""
        return Partition((held_by(self.workers),), self.notes)


@dataclass(frozen=True, eq=False)
class Drawn(Sequence[Indexes]):
    """Samples that each worker draws with replacement, out of those that all draw from.

    A worker's are drawn when they are asked for, always the same, so that a million workers take no
    memory. With ``alpha``, a worker's classes are in proportions drawn from a Dirichlet
    distribution around those of the data; ``members`` are the samples of each class.

    >>> held = Drawn(samples=10, workers=3, each=4, seed=0)
    >>> [len(mine) for mine in held], np.array_equal(held[2], held[-1])
    ([4, 4, 4], True)
    """

    samples: int  # in all
    workers: int
    each: int
    seed: int
    alpha: float | None = None
    members: tuple[Indexes, ...] = ()

    def __len__(self) -> int:
        return self.workers

    @overload
    def __getitem__(self, place: int) -> Indexes: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Indexes]: ...

    def __getitem__(self, place: int | slice) -> Indexes | Sequence[Indexes]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(self.workers)[place])
        worker = range(self.workers)[place]
        rng = np.random.Generator(np.random.PCG64([self.seed, _STREAM, worker]))
        if self.alpha is None:
            return rng.integers(0, self.samples, self.each)
        sizes = np.array([len(held) for held in self.members], dtype=np.float64)
        weights = _dirichlet_weights(self.alpha * len(sizes) * sizes / sizes.sum(), None, rng)
        counts = rng.multinomial(self.each, weights / weights.sum())
        drawn = [
            held[rng.integers(0, len(held), count)]
            for held, count in zip(self.members, counts.tolist(), strict=True)
        ]
        return np.concatenate(drawn)

    @property
    def described(self) -> str:
        """All that decides what they hold, but for the labels."""
        return f"drawn {self.samples} {self.workers} {self.each} {self.seed} {self.alpha}"


def sizes_of(owned: Sequence[Indexes]) -> Indexes:
    """How many samples each worker holds."""
    if isinstance(owned, Drawn):
        return np.full(owned.workers, owned.each, dtype=np.int64)
    return np.array([len(held) for held in owned], dtype=np.int64)


def held_by(owned: Sequence[Indexes]) -> Indexes:
    """All samples that workers hold, in order; where they draw, all that they draw from, once."""
    if isinstance(owned, Drawn):
        return np.arange(owned.samples)
    return np.sort(np.concatenate(owned))


def drawn(
    labels: NDArray[Any], workers: int, each: int, seed: int, alpha: float | None = None
) -> Partition:
    """Let each worker draw so many samples, with replacement; workers may hold the same."""
    _generator(seed)
    if workers < 1:
        raise FednagError("split.workers", f"{workers} is below 1", "set it to 1 or more")
    members: tuple[Indexes, ...] = ()
    if alpha is not None:
        names, code = np.unique(labels, return_inverse=True)
        members = tuple(_groups(code, len(names)))
    return Partition(Drawn(len(labels), workers, each, seed, alpha, members))


def iid(samples: int, workers: int, seed: int) -> Partition:
    """Deal the samples at random, in sizes that differ by at most one."""
    return by_size(samples, workers, 0.0, seed)


def by_class(
    labels: NDArray[Any], workers: int, per_worker: int, seed: int, cover: bool = True
) -> Partition:
    """Give each worker samples of exactly `per_worker` classes, in sizes as even as these allow.

    With `cover` every class is held by someone; without it each worker draws its classes at random
    and the samples of classes that no one drew are left out.
    """
    rng = _generator(seed)
    _check_workers(workers, len(labels))
    names, code = np.unique(labels, return_inverse=True)
    classes = len(names)
    if not 1 <= per_worker <= classes:
        raise FednagError(
            "split.classes", f"{per_worker} is not between 1 and {classes}", "set it so"
        )
    if cover:
        slot_class, slot_worker = _cover_slots(classes, workers, per_worker, rng)
    else:
        draws = [rng.choice(classes, per_worker, replace=False) for _ in range(workers)]
        slot_class, slot_worker = np.concatenate(draws), np.repeat(np.arange(workers), per_worker)
    holders = [slot_worker[slots] for slots in _groups(slot_class, classes)]
    members = _groups(code, classes)
    for name, who, held in zip(names, holders, members, strict=True):
        if len(held) < len(who):
            raise FednagError(
                "split.classes",
                f"{per_worker} gives class {name}, of {len(held)} samples, to {len(who)} workers",
                "lower it or split.workers",
            )
    owner = np.full(len(code), -1, dtype=np.int64)
    shares = _even_shares(holders, [len(held) for held in members], workers)
    for who, held, share in zip(holders, members, shares, strict=True):
        if len(who):
            owner[rng.permutation(held)] = np.repeat(who, share)
    missing = [str(name) for name, who in zip(names, holders, strict=True) if not len(who)]
    notes = (_missing_note(missing, int((owner < 0).sum())),) if missing else ()
    return Partition(tuple(_groups(owner, workers)), notes)


def dirichlet(labels: NDArray[Any], workers: int, alpha: float, seed: int) -> Partition:
    """Deal each class in proportions drawn from a symmetric Dirichlet distribution.

    A worker that is left with nothing gets a single sample of one of the largest workers.
    """
    rng = _generator(seed)
    _check_workers(workers, len(labels))
    if not (math.isfinite(alpha) and alpha > 0):
        raise FednagError("split.alpha", f"{alpha} is no finite number above 0", "set it to one")
    names, code = np.unique(labels, return_inverse=True)
    owner = np.empty(len(code), dtype=np.int64)
    for held in _groups(code, len(names)):
        counts = _apportion(_dirichlet_weights(alpha, workers, rng), len(held))
        owner[rng.permutation(held)] = np.repeat(np.arange(workers), counts)
    sizes = np.bincount(owner, minlength=workers)
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        given = sizes - _without_empty(sizes)
        current = _groups(owner, workers)
        donors = np.flatnonzero(given > 0)
        moved = [rng.choice(current[who], given[who], replace=False) for who in donors]
        owner[np.concatenate(moved)] = empty
    return Partition(tuple(_groups(owner, workers)))


def by_size(
    samples: int, workers: int, skew: float, seed: int, proportions: Sequence[float] | None = None
) -> Partition:
    """Deal the samples at random, in sizes proportional to (rank + 1)^-skew or to `proportions`."""
    rng = _generator(seed)
    _check_workers(workers, samples)
    if not (math.isfinite(skew) and skew >= 0):
        raise FednagError(
            "split.skew", f"{skew} is no finite number from 0 up", "set it to 0 or more"
        )
    if proportions is None:
        weights = np.arange(1, workers + 1, dtype=np.float64) ** -float(skew)
    else:
        weights = np.array([float(number) for number in proportions], dtype=np.float64)
        if len(weights) != workers or not ((weights > 0) & np.isfinite(weights)).all():
            raise FednagError(
                "split.proportions",
                f"{len(weights)} given, not {workers} finite numbers above 0",
                "give one such number for each worker",
            )
    sizes = _without_empty(_apportion(weights, samples))
    owner = rng.permutation(np.repeat(np.arange(workers), sizes))
    return Partition(tuple(_groups(owner, workers)))


def natural(owners: NDArray[Any], workers: int | None, seed: int) -> Partition:
    """Make each owner a worker, or deal whole owners to fewer workers in sizes as even as can be.

    Owners go largest first to the least loaded worker; the seed decides between equal ones.
    """
    rng = _generator(seed)
    names, code = np.unique(owners, return_inverse=True)
    count = len(names) if workers is None else workers
    if count > len(names):
        raise FednagError(
            "split.workers",
            f"{count} is more than the {len(names)} owners of this data",
            "lower it or leave it out",
        )
    _check_workers(count, len(code))
    if count == len(names):
        return Partition(tuple(_groups(code, count)))
    sizes = np.bincount(code)
    shuffled = rng.permutation(len(names))
    loads = [(0, worker) for worker in range(count)]
    worker_of = np.empty(len(names), dtype=np.int64)
    for owner in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        load, worker = loads[0]
        worker_of[owner] = worker
        heapq.heapreplace(loads, (load + int(sizes[owner]), worker))
    note = f"the {len(names)} owners are dealt, whole, to {count} workers"
    return Partition(tuple(_groups(worker_of[code], count)), (note,))


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise FednagError("seed", f"{seed} is below 0", "set it to 0 or more")
    return np.random.default_rng([seed, _STREAM])


def _check_workers(workers: int, samples: int) -> None:
    if workers < 1:
        raise FednagError("split.workers", f"{workers} is below 1", "set it to 1 or more")
    if workers > samples:
        raise FednagError(
            "split.workers", f"{workers} is more than the {samples} samples", "lower it"
        )


def _groups(code: NDArray[Any], groups: int) -> list[Indexes]:
    """The sorted positions of each code from 0 to groups - 1; negative codes belong to none."""
    order = np.argsort(code, kind="stable").astype(np.int64)
    dealt = code[code >= 0]
    counts = np.bincount(dealt, minlength=groups)
    return np.split(order[len(code) - len(dealt) :], np.cumsum(counts)[:-1])


def _apportion(weights: NDArray[np.float64], total: int) -> Indexes:
    """Whole numbers in proportion to the weights that add up to total, by largest remainder."""
    # Scaled by the largest first: the sum of very large weights would overflow.
    scaled = weights / weights.max()
    exact = scaled * (total / scaled.sum())
    counts: Indexes = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def _without_empty(sizes: Indexes) -> Indexes:
    """Raise each 0 to 1, one at a time from whoever is largest, the later one of equals."""
    filled = np.maximum(sizes, 1)
    heap = [(-int(size), -worker) for worker, size in enumerate(sizes)]
    heapq.heapify(heap)
    for _ in range(int((sizes == 0).sum())):
        size, worker = heap[0]
        heapq.heapreplace(heap, (size + 1, worker))
        filled[-worker] -= 1
    return filled


def _dirichlet_weights(
    alpha: float | NDArray[np.float64], count: int | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    # Gamma(a) = Gamma(a + 1) U^(1/a), taken in logarithms: the plain draw is all zeros for small a.
    # Past these bounds the arithmetic overflows or rounds all draws to the same number.
    bounded = np.clip(alpha, 1e-300, 1e18)
    draws = rng.standard_gamma(bounded + 1, count)
    logs = np.log(draws) + np.log1p(-rng.random(len(draws))) / bounded
    return np.asarray(np.exp(logs - logs.max()), dtype=np.float64)


def _cover_slots(
    classes: int, workers: int, per_worker: int, rng: np.random.Generator
) -> tuple[Indexes, Indexes]:
    """The class and the worker of each slot, such that every class has a slot."""
    slots = workers * per_worker
    if slots < classes:
        raise FednagError(
            "split.classes",
            f"{per_worker} for each of {workers} workers cannot cover {classes} classes",
            f"set it to at least {-(-classes // workers)}, use at least "
            f'{-(-classes // per_worker)} workers or set split.assign = "random"',
        )
    least, more = divmod(slots, classes)
    copies = np.where(np.arange(classes) < more, least + 1, least)
    # A class has at most as many copies as there are workers, so in turn none meets one twice.
    slot_worker = rng.permutation(workers)[np.arange(slots) % workers]
    return np.repeat(rng.permutation(classes), copies), slot_worker


def _even_shares(holders: list[Indexes], samples: list[int], workers: int) -> list[Indexes]:
    """How many samples of each class each of its holders gets, for totals as even as can be."""
    loads = np.zeros(workers, dtype=np.int64)
    shares = [np.zeros(len(who), dtype=np.int64) for who in holders]
    # A class with few holders leaves little choice; those with many then make up for it.
    order = np.argsort([len(who) for who in holders], kind="stable")
    for step in range(_MAX_PASSES):
        changed = False
        for index in order:
            who = holders[index]
            if not len(who):
                continue
            rest = loads[who] - shares[index]
            better = _pour(rest, samples[index])
            # Strictly better only, or equal sharings could take turns for ever.
            if step == 0 or ((rest + better) ** 2).sum() < (loads[who] ** 2).sum():
                shares[index] = better
                loads[who] = rest + better
                changed = True
        if not changed:
            break
    return shares


def _pour(loads: Indexes, samples: int) -> Indexes:
    """Whole samples to add to each load, at least one, that leave the totals most even."""
    order = np.argsort(loads, kind="stable")
    floor = loads[order] + 1
    below = np.concatenate(([0], np.cumsum(floor)))
    spare = samples - len(floor)
    # Pouring up to the load of rank k takes k times that load less what is below it already.
    wet = int(np.searchsorted(np.arange(len(floor)) * floor - below[:-1], spare, side="right"))
    level, over = divmod(spare + int(below[wet]), wet)
    floor[:wet] = level + (np.arange(wet) < over)
    added = np.empty_like(loads)
    added[order] = floor - loads[order]
    return added


def _missing_note(names: list[str], lost: int) -> str:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    subject = f"class {shown} is" if len(names) == 1 else f"classes {shown} are"
    return (
        f"{subject} held by no worker: {lost:,} samples are left out "
        "and accuracy on all classes cannot exceed the rest"
    )
