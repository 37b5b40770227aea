"""Means over seeds: by iteration, whatever the order of the seeds, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.paper.panels import curve
from fednag.paper.records import Kept
from fednag.runs.statistics import Spread, aligned, interval, ranked
from fednag.runs.targets import Target
from fednag.runs.view import RunView
from fednag.show.spec import tracks_of

NUMBERS = st.floats(-1e6, 1e6)
LOSSES = st.dictionaries(st.integers(0, 9), NUMBERS)


def run(seed: int, losses: dict[int, float], label: str = "a") -> RunView:
    """Loss and accuracy alike, at these iterations; a round is ten of them."""
    records = [
        Record(i, math.ceil(i / 10), loss, loss, None, i * 1000, 0, float(i), 4)
        for i, loss in losses.items()
    ]
    return RunView(label, seed, records, Ending("finished"))


def kept(seed: int, losses: dict[int, float]) -> Kept:
    at, values = tuple(losses), tuple(losses.values())
    return Kept(seed, "k", 40, at, values, values, values, tuple(float(i) for i in at))


# The second seed was evaluated half as often and stopped early.
SEEDS = [
    {0: 8.0, 10: 6.0, 20: 4.0, 30: 2.0, 40: 1.0},
    {0: 6.0, 20: 2.0},
]
# At 10 only one of two runs that go so far was evaluated: no mean. After 20 there is one run.
MEANS = {0: 7.0, 20: 3.0, 30: 2.0, 40: 1.0}


def test_a_mean_is_of_one_iteration() -> None:
    """By place in the list, the second point would be the mean of iterations 10 and 20."""
    found = dict(aligned(SEEDS))
    assert found == {0: [8.0, 6.0], 20: [4.0, 2.0], 30: [2.0], 40: [1.0]}
    rows = curve([kept(i, losses) for i, losses in enumerate(SEEDS)], "loss", "iterations")
    assert {row["x"]: row["y"] for row in rows} == MEANS
    assert rows[1]["high"] == pytest.approx(3.0 + math.sqrt(2))
    assert (rows[2]["low"], rows[2]["high"]) == (2.0, 2.0)
    (track,) = tracks_of([run(i, losses) for i, losses in enumerate(SEEDS)])
    columns = track.columns
    assert dict(zip(columns["iteration"], columns["loss"], strict=True)) == MEANS
    assert columns["runs"] == [2, 2, 1, 1]
    assert columns["loss.low"][:2] == pytest.approx([7 - math.sqrt(2), 3 - math.sqrt(2)])
    assert columns["loss.low"][2:] == [None, None]


def test_without_seconds_there_are_no_points_over_them() -> None:
    assert curve([kept(0, SEEDS[0])], "loss", "seconds") == []
    assert [row["x"] for row in curve([kept(0, SEEDS[1])], "loss", "megabytes")] == [0.0, 20.0]


@given(st.lists(LOSSES, min_size=1, max_size=4), st.randoms())
def test_the_order_of_seeds_does_not_matter(runs: list[dict[int, float]], random: object) -> None:
    mixed = list(runs)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    means = [[(t, Spread.of(here)) for t, here in aligned(listed)] for listed in (runs, mixed)]
    assert means[0] == means[1]
    views = [
        [run(i, losses) for i, losses in enumerate(given) if losses] for given in (runs, mixed)
    ]
    tables = [ranked(listed, Target("loss", 0.5)) for listed in views]
    assert tables[0] == tables[1]


@given(st.lists(LOSSES, min_size=1, max_size=4))
def test_a_run_counts_wherever_it_goes_so_far(runs: list[dict[int, float]]) -> None:
    for iteration, here in aligned(runs):
        going = [losses for losses in runs if losses and max(losses) >= iteration]
        assert here == [losses[iteration] for losses in going]
    everywhere = {t for t in range(10) if all(t in losses for losses in runs)}
    assert everywhere <= {t for t, _ in aligned(runs)}


@given(NUMBERS)
def test_one_seed_is_its_own_mean_and_has_no_spread(value: float) -> None:
    spread = Spread.of([value, None])
    assert spread == Spread(value, None)
    assert spread is not None
    assert spread.band is None
    assert interval([value]) is None
    assert "±" not in spread.text("{:.3f}")


@given(st.lists(NUMBERS, min_size=3, max_size=8))
def test_mean_and_interval_against_scipy(values: list[float]) -> None:
    spread, found = Spread.of(values), interval(values)
    assert spread is not None
    assert found is not None
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert spread.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    half = stats.t.ppf(0.975, len(values) - 1) * error
    assert found == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-5)


def test_what_never_came_has_a_mean_and_no_spread() -> None:
    assert Spread.of([1.0, math.inf]) == Spread(math.inf, None)
    assert Spread.of([None, None]) is None


def test_methods_are_ranked_by_what_they_end_at() -> None:
    views = [run(0, {0: 0.5, 10: 0.6}, "low"), run(0, {0: 0.9, 10: 0.7}, "high")]
    views += [run(1, {0: 0.5, 10: 0.8, 20: 0.9}, "high")]
    # One that diverged on a seed comes last, however well it does on another.
    lost = [run(1, {0: 0.5, 10: 0.99}, "lost")]
    lost += [RunView("lost", 0, views[0].records, Ending("diverged", 10))]
    rows = ranked([*lost, *views], Target("accuracy", 0.75))
    assert [row.label for row in rows] == ["high", "low", "lost"]
    assert rows[0].final_accuracy == Spread(pytest.approx(0.8), pytest.approx(math.sqrt(0.02)))  # type: ignore[arg-type]
    assert (rows[0].reached, rows[0].iterations_to) == (1, Spread(10, None))
    assert (rows[0].megabytes_to, rows[0].seconds_to) == (Spread(0.01, None), Spread(10.0, None))
    assert (rows[2].diverged, rows[2].final_accuracy) == (1, Spread(0.99, None))
