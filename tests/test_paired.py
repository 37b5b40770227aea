"""Differences of methods seed by seed, with intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.labels import by_problem
from fednag.runs.paired import compared, decided_best, from_best, note, paired
from fednag.runs.statistics import ranked
from fednag.runs.targets import telling_target
from fednag.runs.view import RunView
from fednag.show.document import caveats, document, sentence, timelines
from fednag.show.tables import paired_table


def run(label: str, seed: int, *accuracies: float, lr: float = 0.1, **config: Any) -> RunView:
    values = (0.1, *accuracies)
    records = [
        Record(i, i, 2 - a, a, None, 5 * i, 7 * i, 0.0, 4, test_loss=2 - a)
        for i, a in enumerate(values)
    ]
    table = {"algorithm": {"name": label, "lr": lr}, "data": {"name": "digits"}, **config}
    return RunView(label, seed, records, Ending("finished", len(values) - 1), config=table)


A = [0.90, 0.93, 0.91, 0.92]
B = [0.85, 0.89, 0.86, 0.88]
C = [0.88, 0.93, 0.90, 0.89]


def three() -> list[RunView]:
    return [
        run(label, seed, value)
        for label, values in (("a", A), ("b", B), ("c", C))
        for seed, value in enumerate(values)
    ]


def test_one_pair_is_students_paired_test() -> None:
    ends = {"a": dict(enumerate(A)), "b": dict(enumerate(B))}
    (found,) = compared(ends, "accuracy", "higher")
    interval = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((100 * interval.low, 100 * interval.high))
    assert found.mean == pytest.approx(4.5)
    assert found.claim == "ahead"


def test_several_pairs_are_corrected_by_holm() -> None:
    """The strongest at alpha / 3, the next at alpha / 2; from the first undecided on, at its."""
    found = {(one.first, one.second): one for one in paired(three())}
    values = {"a": A, "b": B, "c": C}
    chances = {pair: stats.ttest_rel(values[pair[0]], values[pair[1]]).pvalue for pair in found}
    order = sorted(chances, key=lambda pair: chances[pair])
    left = 3
    for pair in order:
        level = 1 - 0.05 / left
        want = stats.ttest_rel(*(values[label] for label in pair)).confidence_interval(level)
        one = found[pair]
        assert (one.low, one.high) == pytest.approx((100 * want.low, 100 * want.high))
        decided = chances[pair] < 0.05 / left
        assert (one.claim is not None) == decided
        left -= decided
    assert left == 1  # two were decided, and the last was not
    assert found[order[-1]].claim is None


def test_of_a_loss_lower_is_better_and_there_is_no_per_cent() -> None:
    ends = {"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 1.5, 1: 1.7, 2: 1.8}}
    (found,) = compared(ends, "loss", "lower")
    assert found.differences == pytest.approx((0.5, 0.6, 0.6))
    assert found.claim == "ahead"


def test_too_few_seeds_have_no_interval_and_decide_nothing() -> None:
    two = [r for r in three() if r.seed < 2]
    assert all(one.low is None and one.claim is None for one in paired(two))
    assert "Intervals need 3 seeds" in note(paired(two))
    assert paired([r for r in three() if r.seed == 0]) == []


def test_equal_differences_by_chance_prove_nothing() -> None:
    ends = {"a": dict.fromkeys(range(3), 0.9), "b": dict.fromkeys(range(3), 0.8)}
    (unknown,) = compared(ends, "accuracy", "higher")
    assert unknown.claim is None
    (known,) = compared(ends, "accuracy", "higher", step=1 / 20)  # a test sample is 5 points
    width = 5 / np.sqrt(3) * stats.t.ppf(0.975, 2)
    assert known.high == pytest.approx(10 + width)
    assert known.claim is None


def test_only_shared_seeds_of_runs_that_are_over_count() -> None:
    runs = [*three(), run("b", 9, 0.2)]
    assert {one.seeds for one in paired(runs)} == {(0, 1, 2, 3)}
    cut = [replace(r, ending=None) if r.label == "c" else r for r in three()]
    assert [(one.first, one.second) for one in paired(cut)] == [("a", "b")]
    lost = [replace(r, ending=Ending("diverged", 1)) if r.label == "b" else r for r in three()]
    assert [(one.first, one.second) for one in paired(lost)] == [("a", "c")]


def test_the_best_is_bold_only_if_it_is_ahead_of_all() -> None:
    assert decided_best(paired(three()), 3) is None
    two = [r for r in three() if r.label != "c"]
    assert decided_best(paired(two), 2) == "a"


def test_the_table_is_about_the_best() -> None:
    runs = three()
    rows = ranked(runs)
    told = paired_table(runs, rows)
    assert told is not None
    assert [line[0] for line in told["rows"]] == ["a - c", "a - b"]
    assert told["rows"][1][-1] == "a ahead"
    assert told["rows"][0][-1] == "no"
    assert "Holm" in told["note"]
    assert "fednag decide" in told["note"]
    turned = from_best(paired(runs), ["b", "a"])
    assert turned[0].mean == pytest.approx(-4.5)
    assert turned[0].claim == "behind"
    assert "paired by seed: " in sentence(runs, rows, None)


def test_the_target_is_not_set_by_the_worst() -> None:
    near = [run("a", 0, 0.5, 0.9), run("b", 0, 0.5, 0.8)]
    assert str(telling_target(near)) == "80%"
    far = [run("a", 0, 0.5, 0.9), run("b", 0, 0.12, 0.15)]
    assert telling_target(far) is None
    assert document(far)["target"] is None
    stop = {"stop": {"accuracy": 0.12}}
    asked = [run("a", 0, 0.9, **stop), run("b", 0, 0.13, **stop)]
    assert str(telling_target(asked)) == "12%"


def test_rows_that_coincide_are_explained() -> None:
    runs = [run("fedavgm", 0, 0.5, 0.9), run("slowmo", 0, 0.5, 0.9), run("a", 0, 0.5, 0.8)]
    (said,) = [text for text in caveats(runs) if "same update" in text]
    assert said.startswith("fedavgm and slowmo have the same losses")
    assert not [text for text in caveats(runs[1:]) if "same update" in text]


def test_one_learning_rate_for_all_is_pointed_out() -> None:
    fast = run("fednag", 0, 0.9, algorithm={"name": "fednag", "lr": 0.01, "momentum": 0.9})
    slow = run("fedavg", 0, 0.8, algorithm={"name": "fedavg", "lr": 0.01})
    other = run("fedavg", 0, 0.8, algorithm={"name": "fedavg", "lr": 0.1})
    assert "all methods have lr 0.01, which was not tuned" in caveats([fast, slow])[0]
    assert caveats([fast, other]) == caveats([slow]) == []


def test_several_data_sets_are_several_problems() -> None:
    other = run("b", 0, 0.9, data={"name": "mnist"})
    files = [run("c", 0, 0.9, data={"name": "file", "path": f"/{d}/d.csv"}) for d in "xy"]
    found = by_problem([run("a", 0, 0.9), other, *files])
    assert {name: [r.label for r in own] for name, own in found.items()} == {
        "digits": ["a"],
        "mnist": ["b"],
        "d": ["c"],
        "d-2": ["c"],
    }


def test_who_took_part_is_drawn_where_not_everyone_did() -> None:
    every = replace(run("a", 0, 0.5, 0.6), info={"workers": 3}, config={"training": {"tau": 1}})
    assert timelines([every]) == []
    missed = [replace(r, missed=(1,)) if r.round == 2 else r for r in every.records]
    (heat,) = timelines([replace(every, records=missed)])
    assert heat["cells"] == [[1, 1], [1, 0], [1, 1]]
    part = replace(every, config={"training": {"tau": 1, "participants": 2}})
    (heat,) = timelines([part])
    assert [sum(column) for column in zip(*heat["cells"], strict=True)] == [2, 2]
