from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fednag.data.partition import Partition, by_class, by_size, dirichlet, iid, natural
from fednag.errors import FednagError
from refusals import refused

# A busy machine must not fail a property for its time.
unhurried = settings(deadline=None)
seeds = st.integers(0, 2**32 - 1)
alphas = st.sampled_from([5e-324, 1e-300, 1e-6, 0.01, 0.3, 1.0, 50.0, 1e12, 1e308])
label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(np.array)

TEN = np.tile(np.arange(10), 600)
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def same(one: Partition, other: Partition) -> bool:
    return one.notes == other.notes and all(
        np.array_equal(a, b) for a, b in zip(one.workers, other.workers, strict=True)
    )


def check(partition: Partition, samples: int, workers: int, everything: bool = True) -> None:
    assert len(partition.workers) == workers
    dealt = np.concatenate(partition.workers)
    for held in partition.workers:
        assert held.dtype == np.int64
        assert len(held) >= 1
        assert (np.diff(held) > 0).all()
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < samples
    if everything:
        assert len(dealt) == samples
    assert partition.sizes.tolist() == [len(held) for held in partition.workers]


@st.composite
def class_cases(draw: st.DrawFn) -> tuple[NDArray[Any], int, int]:
    """Labels in which every class is large enough for every worker to hold it."""
    workers = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(workers, 60), min_size=1, max_size=9))
    names = draw(st.permutations(range(len(sizes) + 3)))[: len(sizes)]
    labels = np.repeat(names, sizes)
    order = np.random.default_rng(draw(seeds)).permutation(len(labels))
    return labels[order], workers, draw(st.integers(1, len(sizes)))


def assert_even_where_possible(partition: Partition, labels: NDArray[Any]) -> None:
    """No one who can spare a sample of a class is two ahead of another holder of that class."""
    table, sizes = partition.table(labels, int(labels.max()) + 1), partition.sizes
    for column in table.T:
        spare, holding = sizes[column > 1], sizes[column > 0]
        if len(spare):
            assert spare.max() <= holding.min() + 1


@unhurried
@given(st.integers(1, 300), st.data(), seeds)
def test_iid_deals_everything_evenly(samples: int, data: st.DataObject, seed: int) -> None:
    workers = data.draw(st.integers(1, samples))
    partition = iid(samples, workers, seed)
    check(partition, samples, workers)
    assert np.ptp(partition.sizes) <= 1
    assert same(partition, iid(samples, workers, seed))


def test_iid_is_random_and_not_a_slice() -> None:
    first = iid(1000, 4, 3).workers[0]
    assert np.diff(first).max() > 1
    assert len(set(first % 4)) == 4
    assert 400 < first.mean() < 600


@unhurried
@given(class_cases(), seeds)
def test_cover_gives_exact_classes_and_leaves_none_out(
    case: tuple[NDArray[Any], int, int], seed: int
) -> None:
    labels, workers, per_worker = case
    classes = len(np.unique(labels))
    if workers * per_worker < classes:
        with pytest.raises(FednagError, match=r"split\.classes.*split\.assign"):
            by_class(labels, workers, per_worker, seed)
        return
    partition = by_class(labels, workers, per_worker, seed)
    check(partition, len(labels), workers)
    table = partition.table(labels, int(labels.max()) + 1)
    assert ((table > 0).sum(axis=1) == per_worker).all()
    holders = (table > 0).sum(axis=0)[np.unique(labels)]
    assert holders.min() >= 1
    assert np.ptp(holders) <= 1
    assert partition.notes == ()
    assert_even_where_possible(partition, labels)
    assert same(partition, by_class(labels, workers, per_worker, seed))


@unhurried
@given(class_cases(), seeds)
def test_random_classes_leave_out_only_what_the_note_names(
    case: tuple[NDArray[Any], int, int], seed: int
) -> None:
    labels, workers, per_worker = case
    partition = by_class(labels, workers, per_worker, seed, cover=False)
    check(partition, len(labels), workers, everything=False)
    table = partition.table(labels, int(labels.max()) + 1)
    assert ((table > 0).sum(axis=1) == per_worker).all()
    counts = np.bincount(labels)
    assert all(held in (0, count) for held, count in zip(table.sum(axis=0), counts, strict=True))
    missing = np.flatnonzero((table.sum(axis=0) == 0) & (counts > 0))
    assert len(partition.notes) == (1 if len(missing) else 0)
    if len(missing):
        named = partition.notes[0].split(" held by")[0]
        lost = f"{int(counts[missing].sum()):,} samples are left out"
        assert ", ".join(map(str, missing)) in named
        assert lost in partition.notes[0]
    assert_even_where_possible(partition, labels)
    assert same(partition, by_class(labels, workers, per_worker, seed, cover=False))


@unhurried
@given(label_lists, st.integers(-1, 80), st.integers(-1, 9), st.booleans(), seeds)
def test_by_class_ends_in_a_split_or_a_plain_error(
    labels: NDArray[Any], workers: int, per_worker: int, cover: bool, seed: int
) -> None:
    try:
        partition = by_class(labels, workers, per_worker, seed, cover)
    except FednagError:
        return
    check(partition, len(labels), workers, everything=cover)


@pytest.mark.parametrize("seed", range(5))
def test_four_workers_of_three_classes_out_of_ten(seed: int) -> None:
    labels = np.tile(np.arange(10), 6000)
    partition = by_class(labels, 4, 3, seed)
    assert np.abs(partition.sizes - 15000).max() <= 2
    table = partition.table(labels, 10)
    assert sorted((table > 0).sum(axis=0)) == [1] * 8 + [2] * 2
    assert table.sum(axis=0).tolist() == [6000] * 10


def test_uneven_classes_are_evened_out_by_the_shared_ones() -> None:
    labels = np.repeat(np.arange(10), MNIST_COUNTS)
    for seed in range(5):
        assert np.ptp(by_class(labels, 3, 5, seed).sizes) <= 3
    labels = np.repeat([0, 1, 2], [10, 50, 60])
    for seed in range(10):
        table = by_class(labels, 2, 2, seed).table(labels, 3)
        # Unless the class of 60 is the shared one, its holder still needs one of the other.
        shared = int(np.flatnonzero((table > 0).all(axis=0))[0])
        assert sorted(table.sum(axis=1)) == ([60, 60] if shared == 2 else [59, 61])


def test_later_passes_undo_what_the_first_could_not_foresee() -> None:
    labels = np.repeat(np.arange(10), 60)
    worst = max(int(np.ptp(by_class(labels, 7, 5, seed).sizes)) for seed in range(30))
    assert worst <= 1


def test_a_lone_worker_per_class_holds_the_class() -> None:
    labels = np.array([5, 5, 7, 7, 7, 9])
    partition = by_class(labels, 3, 1, 0)
    assert sorted(tuple(held) for held in partition.workers) == [(0, 1), (2, 3, 4), (5,)]


def test_which_classes_are_shared_and_who_holds_them_is_random() -> None:
    tables = [by_class(TEN, 4, 3, seed).table(TEN, 10) > 0 for seed in range(200)]
    shared = {tuple(np.flatnonzero(table.sum(axis=0) == 2)) for table in tables}
    assert len(shared) > 20
    partners = {tuple(np.flatnonzero(table[:, table.sum(axis=0) == 2][:, 0])) for table in tables}
    assert len(partners) == 6
    # A worker holds 3 of 10 classes: each of the 40 cells is taken in 3 of 10 seeds.
    assert np.abs(np.mean(tables, axis=0) - 0.3).max() < 0.15


def test_random_classes_are_uniform_and_noted() -> None:
    tables = [by_class(TEN, 4, 2, seed, cover=False).table(TEN, 10) > 0 for seed in range(300)]
    assert np.abs(np.mean(tables, axis=0) - 0.2).max() < 0.1
    partition = by_class(TEN, 1, 8, 0, cover=False)
    left = sorted(set(range(10)) - set(TEN[partition.workers[0]]))
    assert partition.notes == (
        f"classes {left[0]}, {left[1]} are held by no worker: 1,200 samples are left out "
        "and accuracy on all classes cannot exceed the rest",
    )
    (note,) = by_class(TEN, 1, 9, 0, cover=False).notes
    assert note.startswith("class ")
    assert " is held by no worker: 600 samples" in note


def test_samples_of_a_shared_class_are_dealt_at_random() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    first = by_class(labels, 2, 1, 0).workers[0]
    assert 400 < first.mean() < 600
    assert np.diff(first).max() > 1


@unhurried
@given(label_lists, st.data(), alphas, seeds)
def test_dirichlet_deals_everything_for_any_alpha(
    labels: NDArray[Any], data: st.DataObject, alpha: float, seed: int
) -> None:
    workers = data.draw(st.integers(1, len(labels)))
    partition = dirichlet(labels, workers, alpha, seed)
    check(partition, len(labels), workers)
    assert same(partition, dirichlet(labels, workers, alpha, seed))


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-5])
def test_small_alpha_gives_each_class_to_nearly_one_worker(alpha: float) -> None:
    table = dirichlet(TEN, 5, alpha, 1).table(TEN, 10)
    # Up to four workers may have been given a single sample.
    assert (table.max(axis=0) >= 596).all()
    assert (table.max(axis=0) == 600).sum() >= 6


def test_small_alpha_favours_no_worker() -> None:
    winners = [dirichlet(TEN, 5, 1e-6, seed).table(TEN, 10).argmax(axis=0) for seed in range(100)]
    shares = np.bincount(np.concatenate(winners), minlength=5) / 1000
    assert np.abs(shares - 0.2).max() < 0.06


@pytest.mark.parametrize("alpha", [1e9, 1e308])
def test_large_alpha_is_nearly_even(alpha: float) -> None:
    table = dirichlet(TEN, 7, alpha, 1).table(TEN, 10)
    assert set(table.ravel()) <= {85, 86}
    # The odd samples must not go to the same workers in every class.
    assert len({tuple(column) for column in table.T}) > 3
    assert table.sum(axis=0).tolist() == [600] * 10


def test_dirichlet_spread_is_that_of_the_distribution() -> None:
    shares = np.concatenate(
        [dirichlet(TEN, 4, 0.5, seed).table(TEN, 10).ravel() / 600 for seed in range(200)]
    )
    # The variance of a share is (1/N)(1 - 1/N) / (N alpha + 1) = 0.1875 / 3.
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(0.0625, rel=0.05)


def test_empty_workers_are_fed_one_sample_from_the_largest() -> None:
    labels = np.repeat([0, 1], [100, 40])
    for seed in range(20):
        sizes = sorted(dirichlet(labels, 12, 1e-9, seed).sizes)
        assert sizes in ([1] * 10 + [40, 90], [1] * 11 + [129])


def test_dirichlet_samples_are_dealt_at_random() -> None:
    first = dirichlet(np.zeros(1000, dtype=np.int64), 2, 1e9, 0).workers[0]
    assert 400 < first.mean() < 600


@unhurried
@given(st.integers(1, 300), st.data(), st.floats(0, 1e6), seeds)
def test_by_size_skew(samples: int, data: st.DataObject, skew: float, seed: int) -> None:
    workers = data.draw(st.integers(1, samples))
    partition = by_size(samples, workers, skew, seed)
    check(partition, samples, workers)
    assert (np.diff(partition.sizes) <= 0).all()
    assert same(partition, by_size(samples, workers, skew, seed))


@unhurried
@given(
    st.lists(st.floats(0, 1e308, exclude_min=True), min_size=1, max_size=20),
    st.integers(0, 500),
    seeds,
)
def test_by_size_proportions(proportions: list[float], extra: int, seed: int) -> None:
    samples, workers = len(proportions) + extra, len(proportions)
    partition = by_size(samples, workers, 0.0, seed, proportions)
    check(partition, samples, workers)
    weights = np.array(proportions) / max(proportions)
    exact = samples * weights / weights.sum()
    if exact.min() >= 1:
        assert np.abs(partition.sizes - exact).max() < 1 + 1e-9


@pytest.mark.parametrize(
    ("samples", "skew", "proportions", "sizes"),
    [
        (8, 0.0, [1, 3], [2, 6]),
        (8, 5.0, [1, 3], [2, 6]),
        (10, 0.0, [1, 1, 1], [4, 3, 3]),
        (10, 0.0, [1.1, 1.1, 1.2], [3, 3, 4]),
        (10, 0.0, [1e308, 1e308], [5, 5]),
        (10, 0.0, [1e-9, 1, 1e-9], [1, 8, 1]),
        (110, 1.0, [1, 1, 1], [37, 37, 36]),
    ],
)
def test_by_size_exact_numbers(
    samples: int, skew: float, proportions: list[float], sizes: list[int]
) -> None:
    partition = by_size(samples, len(proportions), skew, 0, proportions)
    assert partition.sizes.tolist() == sizes


def test_by_size_skew_exact_numbers() -> None:
    assert by_size(110, 3, 1.0, 0).sizes.tolist() == [60, 30, 20]
    assert by_size(49, 3, 2.0, 0).sizes.tolist() == [36, 9, 4]
    assert by_size(9, 3, 0.0, 0).sizes.tolist() == [3, 3, 3]
    assert by_size(9, 3, 1e300, 0).sizes.tolist() == [7, 1, 1]


def test_by_size_is_iid_in_classes() -> None:
    labels = np.repeat([0, 1], 500)
    table = by_size(1000, 2, 0.0, 0, [1, 3]).table(labels, 2)
    assert np.abs(table / table.sum(axis=1, keepdims=True) - 0.5).max() < 0.1


@unhurried
@given(st.lists(st.integers(0, 15), min_size=1, max_size=80).map(np.array), st.data(), seeds)
def test_natural_keeps_owners_whole(owners: NDArray[Any], data: st.DataObject, seed: int) -> None:
    count = len(np.unique(owners))
    workers = data.draw(st.none() | st.integers(1, count))
    partition = natural(owners, workers, seed)
    check(partition, len(owners), count if workers is None else workers)
    held = [set(owners[held].tolist()) for held in partition.workers]
    assert sum(map(len, held)) == count
    # The last owner a worker got went to the least loaded: without it, no one is below that.
    counts = np.bincount(owners)
    for mine, size in zip(held, partition.sizes, strict=True):
        assert size - min(counts[owner] for owner in mine) <= partition.sizes.min()
    assert same(partition, natural(owners, workers, seed))


def test_natural_examples() -> None:
    owners = np.array([30, 10, 20, 10, 30, 30])
    everyone = natural(owners, None, 0)
    assert [held.tolist() for held in everyone.workers] == [[1, 3], [2], [0, 4, 5]]
    two = natural(owners, 2, 0)
    assert sorted(held.tolist() for held in two.workers) == [[0, 4, 5], [1, 2, 3]]
    names = np.array(["b", "a", "b"])
    assert [held.tolist() for held in natural(names, None, 0).workers] == [[1], [0, 2]]
    sizes = natural(np.repeat(np.arange(6), [7, 6, 5, 4, 3, 2]), 3, 0).sizes
    assert sizes.tolist() == [9, 9, 9]


def test_table_and_pooled() -> None:
    labels = np.array([0, 2, 2, 0, 1])
    partition = Partition((np.array([0, 1, 2]), np.array([4])), ("a note",))
    assert partition.table(labels, 4).tolist() == [[1, 0, 2, 0], [0, 1, 0, 0]]
    assert partition.table(labels, 4).dtype == np.int64
    assert partition.sizes.tolist() == [3, 1]
    mixed = Partition((np.array([1, 4]), np.array([0, 2])), ("a note",)).pooled()
    assert [held.tolist() for held in mixed.workers] == [[0, 1, 2, 4]]
    assert mixed.notes == ("a note",)


KINDS: dict[str, Callable[[int, int], Partition]] = {
    "iid": lambda workers, seed: iid(len(TEN), workers, seed),
    "cover": lambda workers, seed: by_class(TEN, workers, 3, seed),
    "random": lambda workers, seed: by_class(TEN, workers, 3, seed, cover=False),
    "dirichlet": lambda workers, seed: dirichlet(TEN, workers, 0.5, seed),
    "by_size": lambda workers, seed: by_size(len(TEN), workers, 1.0, seed),
    "natural": lambda workers, seed: natural(np.arange(len(TEN)) // 10, workers, seed),
}


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_differ_and_global_state_is_left_alone(kind: str) -> None:
    before = repr(np.random.get_state())
    splits = [KINDS[kind](5, seed) for seed in (0, 1, 2)]
    assert not same(splits[0], splits[1])
    assert not same(splits[1], splits[2])
    assert same(splits[1], KINDS[kind](5, 1))
    assert repr(np.random.get_state()) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, -3, len(TEN) + 1])
def test_impossible_workers(kind: str, workers: int) -> None:
    with refused("split.workers"):
        KINDS[kind](workers, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_negative_seed(kind: str) -> None:
    with refused("seed"):
        KINDS[kind](5, -1)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("kind", ["iid", "cover", "random", "dirichlet", "by_size", "natural"])
def test_ten_thousand_workers_are_fast(kind: str) -> None:
    labels = np.repeat(np.arange(10), MNIST_COUNTS)
    calls: dict[str, Callable[[], Partition]] = {
        "iid": lambda: iid(60000, 10000, 0),
        "cover": lambda: by_class(labels, 10000, 3, 0),
        "random": lambda: by_class(labels, 10000, 3, 0, cover=False),
        "dirichlet": lambda: dirichlet(labels, 10000, 1e-3, 0),
        "by_size": lambda: by_size(60000, 10000, 1.5, 0),
        "natural": lambda: natural(np.arange(60000) // 3, 10000, 0),
    }
    start = time.perf_counter()
    partition = calls[kind]()
    # Far above what it takes, far below what work in workers times samples would.
    assert time.perf_counter() - start < 4
    check(partition, 60000, 10000)
