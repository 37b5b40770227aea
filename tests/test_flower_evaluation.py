"""Evaluation by silos travels with the training of the next round: the numbers stay, half of the
exchanges go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from fednag import FednagError
from fednag.core.record import Record
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.silo_log import read
from fednag.runs.outcome import Outcome
from flower_kit import altered, config_of, grid_of, play, silos_made_once, weights

ROUNDS = 3
APART = {"stop__patience": 1000}  # the run might end at any evaluation: they go alone


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    silos_made_once(monkeypatch)


class Counting(InProcessGrid):
    """Counts what it is asked, by kind."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        given = list(messages)
        for message in given:
            self.seen[message.metadata.message_type] += 1
        return super().push_messages(given)


def played(out: Path, faults: Any = None, **changes: Any) -> tuple[Outcome, Counter[str]]:
    config = config_of(out, **{"rounds": ROUNDS, "flower__evaluate": "silos", **changes})
    grid = grid_of(config, faults=faults)
    grid.__class__ = Counting
    grid.seen = Counter()
    return play(config, grid), grid.seen


def numbers(run: Outcome) -> list[Record]:
    return [replace(record, seconds=0.0) for record in run.records]


def lines(run: Outcome, *keys: str) -> list[tuple[Any, ...]]:
    assert run.folder
    return [tuple(line.get(key) for key in keys) for line in read(run.folder / "silos.jsonl")]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__name": "mime"},
        {"algorithm__name": "scaffold", "evaluation__every": 2},
        {"uplink__0__kind": "float16"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()) or "fednag",
)
def test_the_numbers_are_those_of_evaluations_that_go_alone(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    together, seen = played(tmp_path / "together", **changes)
    alone, before = played(tmp_path / "alone", **changes, **APART)
    assert numbers(together) == numbers(alone)
    assert (weights(together) == weights(alone)).all()
    keys = "round", "phase", "silo", "status", "samples"
    assert lines(together, *keys) == lines(alone, *keys)
    assert seen["train"] == before["train"]
    assert before["evaluate"] == 3 * len(alone.records)
    assert seen["evaluate"] == 3  # of the last model, after which nobody trains


@pytest.mark.parametrize(
    "changes",
    [
        {"stop__accuracy": 0.999},
        {"stop__seconds": 1e6},
        {"stop__metrics": "{f1 = 0.999}", "evaluation__metrics": "['f1']"},
        {"downlink__0__kind": "bfloat16"},
        {"training__participants": 2},
        {"privacy__delta": 1e-5, "uplink__0__kind": "clip", "uplink__0__norm": 1.0}
        | {"uplink__1__kind": "noise", "uplink__1__sigma": 0.1, "aggregator__kind": "equal"},
    ],
    ids=["accuracy", "seconds", "metrics", "downlink", "cohorts", "privacy"],
)
def test_nobody_trains_for_a_round_that_might_not_be(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Or on another model than the one that is measured."""
    run, seen = played(tmp_path, **changes)
    assert seen["evaluate"] == 3 * len(run.records) == 3 * (ROUNDS + 1)


def test_whose_update_is_refused_has_measured_the_model(tmp_path: Path) -> None:
    honest, _ = played(tmp_path / "honest", rounds=2)

    def spoil(content: RecordDict) -> None:
        content.config_records["about"]["refused"] = "the update is not finite"
        content.config_records["about"]["not-finite"] = True

    run, _ = played(tmp_path / "run", {1: altered(spoil, rounds=[2])}, rounds=2)
    assert numbers(run)[0] == numbers(honest)[0]
    assert run.records[1].loss == honest.records[1].loss
    assert run.records[2].refused == (1,)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c["measures"].update(loss=float("nan")), "its loss is not finite"),
        (lambda c: c["measures"].update(accuracy=7.0), "its accuracy is not between 0 and 1"),
        (lambda c: c.pop("measures"), "it has not measured the model"),
    ],
    ids=["nan", "accuracy", "none"],
)
def test_measures_that_lie_are_left_out_and_the_update_is_not(
    change: Any, why: str, tmp_path: Path
) -> None:
    honest, _ = played(tmp_path / "honest", rounds=2)
    run, _ = played(tmp_path / "run", {1: altered(change, rounds=[2])}, rounds=2)
    assert (weights(run) == weights(honest)).all()
    told = [t for t in lines(run, "round", "phase", "silo", "status", "why") if t[3] == "refused"]
    assert told == [(1, "evaluate", 1, "refused", why)]
    assert run.records[1].loss != honest.records[1].loss
    assert run.records[2].loss == honest.records[2].loss


def test_measures_under_another_label_count_for_nothing(tmp_path: Path) -> None:
    def change(content: RecordDict) -> None:
        content.config_records["about"]["round"] = 7

    run, _ = played(tmp_path, {1: altered(change, rounds=[2])}, rounds=2)
    told = [t for t in lines(run, "round", "phase", "silo", "status") if t[3] == "refused"]
    assert told == [(1, "evaluate", 1, "refused"), (2, "train", 1, "refused")]


def test_a_server_that_dies_in_such_an_exchange_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, _ = played(tmp_path / "whole", algorithm__name="scaffold")
    config = config_of(
        tmp_path / "run", rounds=ROUNDS, flower__evaluate="silos", algorithm__name="scaffold"
    )
    grid = grid_of(config)

    class Gone(BaseException):
        pass

    def die(asked: Message, answered: Message) -> Message:
        if dict(asked.content.config_records["about"]).get("round") == 3:
            raise Gone
        return answered

    grid.faults = dict.fromkeys(grid.contexts, die)
    with pytest.raises(Gone):
        play(config, grid)
    grid.faults = {}
    grid.run_config["flower.resume"] = True
    for context in grid.contexts.values():
        context.run_config = dict(grid.run_config)
    run = play(grid.run_config, grid)
    assert (weights(run) == weights(whole)).all()
    assert numbers(run) == numbers(whole)


def test_too_few_measures_stop_the_run(tmp_path: Path) -> None:
    def change(content: RecordDict) -> None:
        del content["measures"]

    with pytest.raises(FednagError, match="1 of 3 silos gave a usable answer"):
        played(tmp_path, {0: altered(change), 1: altered(change)})
