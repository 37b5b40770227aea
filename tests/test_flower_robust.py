"""Silos that send finite nonsense, or claim samples they do not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

pytest.importorskip("flwr")

from flwr.app import Array, Message, RecordDict

from fednag import FednagError
from fednag.core.executor import Exchange
from fednag.core.vectors import Vector
from fednag.flower.membership import capped
from fednag.flower.protocol import ARRAYS, CONFIG
from fednag.flower.settings import read_run_config
from fednag.flower.silo import Silo
from fednag.runs.outcome import Outcome
from flower_kit import config_of, gap, grid_of, play, relabel, silent, simulated, weights
from test_flower import _quick, _set, silos_of

assert _quick  # the fixture

SIZE = 650
Lie = Callable[[Vector, Vector], Vector]


def lying(lie: Lie, name: str = "w", rounds: tuple[int, ...] = (2,)) -> Any:
    """A silo that sends another vector, made of what it was sent and what it would send."""

    def fault(asked: Message, answered: Message) -> Message:
        about = asked.content.config_records[CONFIG]
        if asked.metadata.message_type == "train" and about["round"] in rounds:
            sent, own = (read(message.content, name) for message in (asked, answered))
            _set(name, lie(sent, own).numpy())(answered.content)
        return answered

    return fault


def read(content: RecordDict, name: str) -> Vector:
    array: Array = content.array_records[ARRAYS][name]
    return torch.frombuffer(bytearray(array.data), dtype=getattr(torch, array.dtype))


def times(factor: float) -> Lie:
    return lambda sent, own: sent + factor * (own - sent)


def all_of(value: float) -> Lie:
    return lambda sent, own: torch.full_like(own, value)


def refusals(run: Outcome) -> list[tuple[int, int, str]]:
    return [
        (line["round"], line["silo"], line["why"])
        for line in silos_of(run)
        if line["status"] == "refused"
    ]


LIES: dict[str, tuple[str, Lie, str]] = {
    "10^30": ("w", all_of(1e30), "times as long as the median (flower.norm-bound is 10)"),
    "100 times its update": ("w", times(100.0), "times as long as the median"),
    "the other way round": ("w", times(-50.0), "times as long as the median"),
    "too long in v alone": ("v", times(1000.0), "times as long as the median"),
    "squares that overflow": ("w", all_of(1e200), "w has squares that are not finite"),
}
BASE = {"algorithm__name": "fednag", "training__batch": 0}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    config = config_of(tmp_path_factory.mktemp("without"), **BASE)
    return play(config, grid_of(config, faults={1: silent(rounds=[2])}))


@pytest.mark.parametrize("lie", LIES)
def test_finite_nonsense_is_refused_and_named(lie: str, tmp_path: Path, without: Outcome) -> None:
    name, change, why = LIES[lie]
    config = config_of(tmp_path, **BASE)
    run = play(config, grid_of(config, faults={1: lying(change, name)}))
    assert gap(run, without) == 0
    assert [(r.refusals, r.refused) for r in run.records] == [(0, ()), (0, ()), (1, (1,)), (1, ())]
    ((number, silo, said),) = refusals(run)
    assert (number, silo) == (2, 1)
    assert why in said


def test_single_precision_blames_nobody_else(tmp_path: Path) -> None:
    """From a model of 3e38 every honest update would not be finite."""
    config = config_of(tmp_path, **BASE, engine__dtype="float32")
    run = play(config, grid_of(config, faults={1: lying(all_of(3e38), rounds=(1, 2, 3))}))
    assert [(number, silo) for number, silo, _ in refusals(run)] == [(1, 1), (2, 1), (3, 1)]
    assert run.ended == "finished"
    assert float(weights(run).abs().max()) < 10


def test_the_bound_can_be_changed_and_switched_off(tmp_path: Path, without: Outcome) -> None:
    for bound in (0, 200):
        config = config_of(tmp_path / str(bound), **BASE, flower__norm_bound=bound)
        config["flower.norm-bound"] = config.pop("flower.norm_bound")
        run = play(config, grid_of(config, faults={1: lying(times(100.0))}))
        assert not refusals(run)
        assert gap(run, without) > 0.01
    with pytest.raises(FednagError, match=r"flower.norm-bound: 0.5 would refuse"):
        read_run_config(config | {"flower.norm-bound": 0.5})


def test_free_riders_have_nobody_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, **BASE, rounds=2)
    faults = {k: lying(lambda sent, own: sent, rounds=(1, 2)) for k in (0, 1)}
    assert not refusals(play(config, grid_of(config, faults=faults)))


def test_small_cohorts_learn_from_earlier_rounds_and_resuming_ones_too(tmp_path: Path) -> None:
    """One silo a round: what the others sent before says what is too long."""
    config = config_of(tmp_path, **BASE, training__participants=1, rounds=6)
    lies = dict.fromkeys(range(3), lying(times(1e6), rounds=(4,)))
    for attempt in ({}, {"flower.resume": True}):
        with pytest.raises(FednagError, match="round 4: 0 of 1 silos gave a usable answer"):
            play(config | attempt, grid_of(config, faults=lies))
    done = play(config | {"flower.resume": True}, grid_of(config))
    assert done.ended == "finished"
    assert done.records[-1].refusals == 0
    honest = play(config | {"flower.out": str(tmp_path / "honest")}, grid_of(config))
    assert gap(done, honest) == 0


def test_of_two_the_one_that_differs_from_before_is_refused(tmp_path: Path) -> None:
    for tiny, expected in ((1e-9, []), (1e5, [(3, 1)])):
        config = config_of(
            tmp_path / str(tiny), **BASE, training__participants=2, rounds=4, seed=7,
            flower__quorum=1,
        )  # fmt: skip
        run = play(config, grid_of(config, faults={1: lying(times(tiny), rounds=(3,))}))
        asked = {(line["round"], line["silo"]) for line in silos_of(run)}
        assert (3, 1) in asked
        assert [(number, silo) for number, silo, _ in refusals(run)] == expected


def test_who_was_to_do_more_steps_may_come_further(tmp_path: Path) -> None:
    steps = {"controller__kind": "steps-by-worker", "controller__steps": "[1, 40, 1]"}
    numbers = {"training__tau": 40, "algorithm__name": "fedavg", "algorithm__lr": 0.01}
    config = config_of(tmp_path, rounds=1, **steps, **numbers)
    assert not refusals(play(config, grid_of(config)))
    for silo, factor in ((0, 1000.0), (1, 20.0)):
        config["flower.out"] = str(tmp_path / str(silo))
        run = play(config, grid_of(config, faults={silo: lying(times(factor), rounds=(1,))}))
        assert [who for _, who, _ in refusals(run)] == [silo]


AGGREGATORS: dict[str, dict[str, Any]] = {
    "median": {},
    "trimmed-mean": {"share": 0.3},
    "krum": {},
    "multi-krum": {"share": 0.3},
    "norm-bound": {"factor": 1.0},
    "centred-clipping": {"radius": 0.1},
}


@pytest.mark.parametrize("kind", AGGREGATORS)
def test_silos_have_the_simulators_aggregators(kind: str, tmp_path: Path) -> None:
    numbers = {f"aggregator__{name}": number for name, number in AGGREGATORS[kind].items()}
    config = config_of(tmp_path / "flower", **BASE, aggregator__kind=kind, **numbers)
    run = play(config, grid_of(config))
    here = simulated(read_run_config(config), tmp_path / "here")
    assert gap(run, here) < 1e-13
    assert [record.refused for record in run.records] == [record.refused for record in here.records]
    named = {silo for record in here.records for silo in record.refused}
    assert bool(named) == (kind == "norm-bound")
    assert {silo for _, silo, why in refusals(run) if "(aggregator)" in why} == named


def test_attacks_are_for_the_simulator(tmp_path: Path) -> None:
    config = config_of(tmp_path, attack__0__kind="sign-flip")
    with pytest.raises(FednagError, match="attack: it is for the simulator"):
        read_run_config(config)


# Claims


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of three silos: 30, 20 and 10 samples."""
    place = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=generator) + y[:, None]
    for silo, mine in enumerate(torch.split(torch.randperm(60, generator=generator), [30, 20, 10])):
        (place / f"silo-{silo}").mkdir()
        for name, values in {"x": x[mine], "y": y[mine]}.items():
            np.save(place / f"silo-{silo}" / f"{name}.npy", values.numpy())
    return place


def private(out: Path, **changes: Any) -> dict[str, Any]:
    return config_of(
        out, data__name="silos", split__kind="iid", split__skew="", flower__shape="4",
        flower__classes=3, **{"rounds": 1, "algorithm__name": "fedavg", **changes},
    )  # fmt: skip


def claiming(samples: int) -> Any:
    def fault(asked: Message, answered: Message) -> Message:
        relabel(samples=samples)(answered.content)
        return answered

    return fault


def joined(config: dict[str, Any], folders: Path, claims: dict[int, int]) -> Any:
    faults = {silo: claiming(samples) for silo, samples in claims.items()}
    grid = grid_of(config, silos=[], faults={})
    for silo in range(3):
        node = grid.join({"partition-id": silo, "data-folder": str(folders / f"silo-{silo}")})
        if silo in faults:
            grid.faults[node] = faults[silo]
    return grid


def test_a_claim_does_not_own_the_model(tmp_path: Path, folders: Path) -> None:
    """Silo 1 has 20 samples and claims 10^7: it weighs as much as the others together."""
    half = {"flower__most-share": 0.5}
    config = private(tmp_path, **half)
    said: list[str] = []
    run = play(config, joined(config, folders, {1: 10**7}), said)
    deployment, ups = read_run_config(config), []
    for silo in range(3):
        own = {"partition-id": silo, "data-folder": str(folders / f"silo-{silo}")}
        made = Silo(deployment, own)
        sent = made.algorithm.init(made.problem.initial)
        one = np.zeros(1, dtype=np.int64)
        asked = Exchange(made.algorithm, 0, {}, 1, sent, one, one + 3, one)
        ups.append(made.exchange(asked, made.fresh(), made.fresh_residue(0))[0].up.w[0])
    wanted = (30 * ups[0] + 40 * ups[1] + 10 * ups[2]) / 80
    assert float((weights(run) - wanted).abs().max()) < 1e-14
    assert any("silo 1 says it has 10000000 samples, and weighs as if it had 40" in s for s in said)
    lines = [line for line in silos_of(run) if line["phase"] == "train"]
    assert [(line["samples"], line.get("counted")) for line in lines] == [
        *[(30, None), (10**7, 40), (10, None)]
    ]
    # In every respect it is as if it had said 40, and that had been agreed.
    runs = []
    for claim, agreed in ((10**7, {}), (40, {"flower__samples": "[30, 40, 10]"})):
        config = private(
            tmp_path / str(claim), **half, **agreed, algorithm__name="scaffold", rounds=2
        )
        runs.append(play(config, joined(config, folders, {1: claim})))
    assert gap(*runs) == 0
    # It may be allowed.
    config = private(tmp_path / "all", **{"flower__most-share": 1.0})
    run = play(config, joined(config, folders, {1: 10**7}))
    assert float((weights(run) - ups[1]).abs().max()) < 1e-4


def test_counts_that_were_agreed_are_held_to(tmp_path: Path, folders: Path) -> None:
    config = private(tmp_path, flower__samples="[30, 20, 10]")
    said: list[str] = []
    play(config, joined(config, folders, {1: 21}), said)
    assert any("turned away: it claims 21 samples, and has 20" in line for line in said)
    # Agreed counts are not capped: here one silo has 1000 of 1030.
    config = private(tmp_path / "large", flower__samples="[1000, 20, 10]")
    said.clear()
    run = play(config, joined(config, folders, {0: 1000}), said)
    assert not [line for line in said if "weighs" in line]
    assert not [line for line in silos_of(run) if "counted" in line]


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ("[30, 20]", "flower.samples: has 2 counts, and there are 3 silos"),
        ("[30, 20, 0]", "flower.samples"),
        ("30", "flower.samples"),
    ],
)
def test_counts_that_cannot_be_are_told(samples: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FednagError, match=sentence.replace("[", r"\[")):
        read_run_config(private(tmp_path, flower__samples=samples))
    known = config_of(tmp_path, flower__samples="[500, 426, 300]")
    with pytest.raises(FednagError, match="the data set is known by name"):
        read_run_config(known)


counts = some.dictionaries(some.integers(0, 20), some.integers(1, 10**7), min_size=1, max_size=8)


@given(counts, some.floats(0.05, 1.0))
def test_no_count_is_above_its_share(given: dict[int, int], most: float) -> None:
    found = capped(given, most)
    total, least = sum(found.values()), 1 / len(found)
    assert max(found.values()) <= max(most, least) * total + len(found)
    assert all(1 <= found[silo] <= given[silo] for silo in given)
    if max(given.values()) <= most * sum(given.values()):
        assert found == given
    # Only those above the cap are lowered, all to the same.
    assert len({found[silo] for silo in given if found[silo] < given[silo]}) <= 1


def test_a_cap_by_hand() -> None:
    assert capped({0: 1, 1: 1, 2: 98}, 0.5) == {0: 1, 1: 1, 2: 2}
    assert capped({0: 10, 1: 500, 2: 800, 3: 10}, 0.4) == {0: 10, 1: 40, 2: 40, 3: 10}
    assert capped({0: 5, 1: 7}, 0.1) == {0: 5, 1: 5}


def flattering(asked: Message, answered: Message) -> Message:
    """A silo whose every measure is perfect, and which says it has most of the test samples."""
    (found,) = answered.content.metric_records.values()
    for key in list(found):
        found[key] = 0.0 if "loss" in key else 10**7 if key == "tests" else 1.0
    return answered


@pytest.mark.parametrize("claimed", [{}, {1: 10**7}])
def test_no_silo_flatters_the_evaluation(
    claimed: dict[int, int], tmp_path: Path, folders: Path
) -> None:
    """What is recorded is between two honest silos' measures, whatever one says; the mean is not.

    And with honest silos the median of three is the one in the middle.
    """

    def last(**changes: Any) -> tuple[Any, list[float]]:
        config = private(tmp_path / str(len(list(tmp_path.iterdir()))), **changes)
        grid = joined(config, folders, claimed)
        if "lies" in changes.get("name", ""):
            node = next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == 1)
            claim = grid.faults.get(node)

            def both(asked: Message, answered: Message) -> Message | None:
                told = claim(asked, answered) if claim else answered
                kind = asked.metadata.message_type
                return flattering(asked, told) if told and kind == "evaluate" else told

            grid.faults[node] = both
        run = play(config, grid)
        lines = [line for line in silos_of(run) if line["phase"] == "evaluate"][-3:]
        own = [line["metrics"]["loss"] for line in lines]
        return run.records[-1], own

    honest, losses = last()
    assert honest.loss == (sorted(losses)[1] if not claimed else honest.loss)
    assert min(losses) <= honest.loss <= max(losses)
    flattered, told = last(name="lies")
    assert told[1] == 0
    others = [losses[0], losses[2]]
    assert min(others) <= flattered.loss <= max(others)
    assert flattered.train_accuracy < 1
    mean, _ = last(name="lies", flower__measure="mean")
    assert mean.loss < min(others)


@pytest.mark.parametrize(
    ("measure", "data", "silos", "medians"),
    [
        ("auto", "silos", 3, True),
        ("auto", "silos", 2, False),  # of two, a median is their mean
        ("auto", "digits", 3, False),  # the server measures by itself
        ("mean", "silos", 3, False),
        ("median", "digits", 3, True),
    ],
)
def test_when_measures_become_one_by_their_median(
    measure: str, data: str, silos: int, medians: bool, tmp_path: Path
) -> None:
    own = {"flower__shape": "4", "flower__classes": 3} if data == "silos" else {}
    config = config_of(tmp_path, data__name=data, split__kind="iid", split__skew="", **own)
    config |= {"split.workers": silos, "flower.measure": measure}
    assert read_run_config(config).takes_medians is medians
