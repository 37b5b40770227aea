"""All randomness of training: epochs without replacement, keyed draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednag.core.keys import Draws, cohort

sizes = st.integers(1, 60)


@given(size=sizes, batch=st.integers(1, 70), steps=st.integers(1, 40), seed=st.integers(0, 9))
def test_every_epoch_visits_every_sample_once(size: int, batch: int, steps: int, seed: int) -> None:
    batches = Draws(seed, [size], batch).batches(0, 0, steps)
    assert batches.shape == (steps, min(batch, size))
    stream = batches.reshape(-1)
    for first in range(0, len(stream), size):
        epoch = stream[first : first + size]
        assert len(set(epoch.tolist())) == len(epoch)
        assert set(epoch.tolist()) <= set(range(size))


@given(size=sizes, batch=st.integers(1, 70), cut=st.integers(1, 19), seed=st.integers(0, 9))
def test_a_later_start_continues_the_same_stream(
    size: int, batch: int, cut: int, seed: int
) -> None:
    schedule = Draws(seed, [size, size], batch)
    whole = schedule.batches(1, 0, 20)
    parts = [schedule.batches(1, 0, cut), schedule.batches(1, cut, 20 - cut)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_workers_epochs_and_seeds_differ() -> None:
    schedule = Draws(0, [50, 50], 10)
    orders = [
        schedule.order(0, 0),
        schedule.order(1, 0),
        schedule.order(0, 1),
        Draws(1, [50], 10).order(0, 0),
    ]
    assert len({tuple(order) for order in orders}) == 4


@given(workers=st.integers(1, 30), per_round=st.integers(1, 40), number=st.integers(0, 5))
def test_participants_are_distinct_and_ordered(workers: int, per_round: int, number: int) -> None:
    chosen = cohort(3, number, np.arange(workers), per_round)
    assert len(chosen) == min(per_round, workers)
    assert (np.diff(chosen) > 0).all()
    assert chosen.min() >= 0
    assert chosen.max() < workers


def test_everyone_gets_a_turn() -> None:
    rounds = [tuple(cohort(0, number, np.arange(10), 2)) for number in range(60)]
    assert len(set(rounds)) > 10
    assert set(np.concatenate(rounds).tolist()) == set(range(10))


def test_batch_zero_is_all_data_and_width_is_bounded() -> None:
    schedule = Draws(0, [3, 7], 0)
    assert schedule.batches(1, 5, 2).tolist() == [list(range(7))] * 2
    assert schedule.width == 7
    assert Draws(0, [3, 7], 5).width == 5
    assert Draws(0, [3, 4], 5).width == 4


def test_an_order_does_not_depend_on_what_was_asked_before() -> None:
    forwards, backwards = Draws(3, [12, 7], 4), Draws(3, [12, 7], 4)
    asked = [(worker, epoch) for epoch in range(11) for worker in range(2)]
    there = {which: forwards.order(*which).tolist() for which in asked}
    back = {which: backwards.order(*which).tolist() for which in reversed(asked)}
    assert there == back
    assert len({tuple(there[0, epoch]) for epoch in range(11)}) == 11
    for which, order in there.items():
        assert sorted(order) == list(range(12 if which[0] == 0 else 7))
