"""Silos on Flower's grid, in one process: equal to the simulator, and hard to upset."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

import fednag
import fednag.flower.fleet as fleet_module
import fednag.flower.membership as roster_module
from fednag import ALGORITHMS, FednagError
from fednag.config.keys import keys_of
from fednag.core.algorithm import payload
from fednag.core.executor import Answers, Exchange
from fednag.core.keys import Draws
from fednag.core.vectors import Vectors
from fednag.flower import protocol
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.protocol import ARRAYS
from fednag.flower.server import plan_of
from fednag.flower.settings import read_run_config
from fednag.flower.silo import Silo
from fednag.flower.silo_log import read
from fednag.runs.outcome import Outcome
from fednag.simulate.run import Local, simulate
from flower_kit import (
    altered,
    config_of,
    gap,
    grid_of,
    node_of,
    play,
    relabel,
    silent,
    silos_made_once,
    simulated,
    vector_of,
    weights,
)
from refusals import refused

# Silos' noise cannot be drawn again, so that of nbafl is not the simulator's.
FEDERATED = [n for n, cls in ALGORITHMS.items() if not cls.pooled and n != "nbafl"]
KEEPING = [
    "scaffold",
    "fednag-local",
    "diana",
    "ef21",
    "adiana",
    "local-ghbm",
    "fedhbm",
    "scaffold-m",
    "diloco",
    "feddyn",
]  # silos remember something between rounds


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PAUSE", 0.01)
    monkeypatch.setattr(roster_module, "PAUSE", 0.01)
    monkeypatch.setattr(fleet_module, "COMING", 0.05)
    silos_made_once(monkeypatch)


def silos_of(run: Outcome) -> list[dict[str, Any]]:
    assert run.folder
    return read(run.folder / "silos.jsonl")


@pytest.mark.parametrize("name", FEDERATED)
def test_every_method_equals_the_simulator(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, algorithm__name=name, training__participants=2, rounds=4)
    deployment = read_run_config(config)
    run = play(config, grid_of(config))
    twin = simulated(deployment, tmp_path / "simulated")
    assert gap(run, twin) < 1e-12
    assert [r.loss for r in run.records] == pytest.approx([r.loss for r in twin.records])
    # Bytes are counted on the way, and are those the method declares.
    plan = plan_of(deployment)[1]
    server = plan.algorithm.init(plan.problem.initial)
    down, up = payload(plan.algorithm, server)
    if plan.scheme.uplink.parts:  # the method's own
        up = plan.scheme.uplink.layouts(server.pick(plan.algorithm.up))[-1].nbytes
    rounds = range(5)
    assert [r.bytes_down for r in run.records] == [2 * down * n for n in rounds]
    assert [r.bytes_up for r in run.records] == [2 * up * n for n in rounds]
    assert [r.participants for r in run.records] == [0, 2, 2, 2, 2]


@pytest.mark.parametrize("batch_norm", ["averaged", "local", "frozen"])
def test_running_statistics_are_those_of_the_simulator(batch_norm: str, tmp_path: Path) -> None:
    config = config_of(
        tmp_path / "flower", model__name="resnet20", model__batch_norm=batch_norm, rounds=2,
        training__tau=2, training__batch=4, algorithm__name="fedmom", algorithm__lr=0.02,
        flower__evaluate="silos",
    )  # fmt: skip
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path)
    assert gap(run, twin) < 1e-9
    ours, theirs = dict(run.final.named_buffers()), dict(twin.final.named_buffers())
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-7, atol=1e-9)
    last, other = run.records[-1], twin.records[-1]
    assert last.loss == pytest.approx(other.loss, rel=1e-6)
    assert (last.bytes_up, last.bytes_down) == (other.bytes_up, other.bytes_down)


# Silos' counts and measures are believed, as a simulator's are.
AS_SAID = {"flower__most-share": 1.0, "flower__measure": "mean"}


def test_silos_that_bring_their_data_equal_the_simulator(tmp_path: Path) -> None:
    """From a folder, from a function; the server has no data, and measures through the silos."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=generator) + y[:, None]
    owners = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    for silo in range(3):
        folder = tmp_path / f"silo-{silo}"
        folder.mkdir()
        mine = owners == silo
        for what, values in {"x": x[mine], "y": y[mine], "test_x": x[:9], "test_y": y[:9]}.items():
            np.save(folder / f"{what}.npy", values.numpy())
    config = config_of(
        tmp_path,
        data__name="silos",
        split__kind="iid",
        split__skew="",
        flower__shape="4",
        flower__classes=3,
        evaluation__per_worker=True,
        **AS_SAID,
        algorithm__name="scaffold",
        model__name="mlp",
        model__hidden="[5]",
    )
    grid = InProcessGrid(fleet_app(), config, [])
    grid.join({"partition-id": 0, "data-folder": str(tmp_path / "silo-0")})
    grid.join({"partition-id": 1, "data-folder": str(tmp_path / "silo-1")})
    entry = {"data-function": "test_flower:third_silo", "where": str(tmp_path / "silo-2")}
    grid.join({"partition-id": 2, **entry})
    run = play(config, grid)
    twin = fednag.run(
        {"name": "scaffold", "lr": 0.05},
        data=(x, y),
        test=(x[:9], y[:9]),
        owners=owners,
        model={"name": "mlp", "hidden": [5]},
        tau=3,
        iterations=9,
        batch=16,
        seed=3,
        split={"kind": "natural"},
        engine={"dtype": "float64", "chunk": 1, "threads": 1},
        evaluation={"per_worker": True},
    )
    assert gap(run, twin) < 1e-12
    for mine, theirs in zip(run.records, twin.records, strict=True):
        assert mine.loss == pytest.approx(theirs.loss)
        assert mine.accuracy == pytest.approx(theirs.accuracy)
        assert mine.train_accuracy == pytest.approx(theirs.train_accuracy)
        assert mine.worker_losses == pytest.approx(theirs.worker_losses)
    assert {line["phase"] for line in silos_of(run)} == {"train", "evaluate"}


def third_silo(node_config: dict[str, Any]) -> Any:
    """A silo's own function, as an operator would write it."""
    folder = Path(node_config["where"])
    pairs = [(f"{part}x.npy", f"{part}y.npy") for part in ("", "test_")]
    return tuple(tuple(np.load(folder / name) for name in pair) for pair in pairs)


def fleet_app() -> Any:
    from fednag.flower.handlers import app

    return app


def _vectors(change: Callable[[ArrayRecord], None]) -> Callable[[RecordDict], None]:
    return lambda content: change(content.array_records[ARRAYS])


def _set(name: str, values: np.ndarray, **changes: Any) -> Callable[[RecordDict], None]:
    """The vector replaced; ``changes`` are to what is said of it."""
    fields = {"dtype": str(values.dtype), "shape": tuple(values.shape), "stype": protocol.RAW}

    def change(content: RecordDict) -> None:
        data = values.tobytes()
        content.array_records[ARRAYS][name] = Array(**{**fields, **changes}, data=data)

    return change


SIZE = 650
LIES: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "NaN": (_set("w", np.full(SIZE, np.nan)), "w is not finite"),
    "infinity": (_set("w", np.r_[np.inf, np.zeros(SIZE - 1)]), "w is not finite"),
    "too long": (_set("w", np.zeros(SIZE + 1)), "shape (651,)"),
    "a matrix": (_set("w", np.zeros((65, 10))), "shape (65, 10)"),
    "a false shape": (_set("w", np.zeros(3), shape=(SIZE,)), "in 24 bytes"),
    "another type": (_set("w", np.zeros(SIZE, np.float32)), "float32"),
    "integers": (_set("w", np.zeros(SIZE, np.int64)), "int64"),
    "another format": (_set("w", np.zeros(SIZE), stype="numpy.ndarray"), "numpy.ndarray"),
    "one vector more": (_set("v", np.zeros(SIZE)), "the vectors v, w"),
    "no vector": (_vectors(lambda record: record.clear()), "the vectors none"),
    "no record": (lambda content: content.pop(ARRAYS), "0 records of vectors"),
    "two records": (
        lambda content: content.__setitem__("more", ArrayRecord()),
        "2 records of vectors",
    ),
    "no label": (lambda content: content.pop("about"), "says what it is about"),
    "another hash": (relabel(digest="0" * 64), "its digest is 000"),
    "another silo": (relabel(silo=0), "its silo is 0, not 1"),
    "a late round": (relabel(round=1), "its round is 1, not 2"),
    "10^12 samples": (relabel(samples=10**12), "1000000000000 samples"),
    "no samples": (relabel(samples=0), "0 samples"),
    "negative samples": (relabel(samples=-5), "-5 samples"),
    "half a sample": (relabel(samples=0.5), "0.5 samples"),
    "True samples": (relabel(samples=True), "True samples"),
    "one sample more": (relabel(samples=438), "and has 426"),
    "its own refusal": (relabel(refused="I will\nnot \x1b[2J"), "it says: I will not ?[2J"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in which silo 1 does round 2, and its answer is of no use."""
    out = tmp_path_factory.mktemp("without")
    config = config_of(out, algorithm__name="fedavg", training__batch=0)
    return play(config, grid_of(config, faults={1: silent(rounds=[2])}))


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_lies_is_refused_and_named(
    lie: str, tmp_path: Path, without: Outcome
) -> None:
    """The others' mean is used: the same model as if the silo had said nothing."""
    change, why = LIES[lie]
    config = config_of(tmp_path, algorithm__name="fedavg", training__batch=0)
    grid = grid_of(config, faults={1: altered(change, rounds=[2])})
    run = play(config, grid)
    assert gap(run, without) == 0
    assert run.ended == "finished"
    assert [(r.refusals, r.refused) for r in run.records] == [(0, ()), (0, ()), (1, (1,)), (1, ())]
    (line,) = [line for line in silos_of(run) if line["status"] != "ok"]
    assert (line["silo"], line["round"], line["status"]) == (1, 2, "refused")
    assert why in line["why"]


def test_the_mean_of_the_rest_by_hand(tmp_path: Path) -> None:
    """One round, silo 1 refused: (D_0 w_0 + D_2 w_2) / (D_0 + D_2), w_i from the silos alone."""
    config = config_of(tmp_path, algorithm__name="fedavg", rounds=1)
    deployment = read_run_config(config)
    ups, sizes = {}, {}
    for k in (0, 2):
        silo = Silo(deployment, {"partition-id": k})
        sent = silo.algorithm.init(silo.problem.initial)
        one = np.zeros(1, dtype=np.int64)
        asked = Exchange(silo.algorithm, 0, {}, 1, sent, one, one + 3, one)
        ups[k], sizes[k] = silo.exchange(asked, silo.fresh(), Vectors())[0].up.w[0], silo.samples
    wanted = (sizes[0] * ups[0] + sizes[2] * ups[2]) / (sizes[0] + sizes[2])
    run = play(config, grid_of(config, faults={1: altered(_set("w", np.full(SIZE, np.nan)))}))
    assert float((weights(run) - wanted).abs().max()) < 1e-14
    assert sizes[0] > sizes[2] + 100


def test_scaffold_weighs_a_round_by_the_data_that_came(tmp_path: Path) -> None:
    """c moves by the share of all data: half as far when half of it is missing."""
    runs = {}
    for silo in (None, 1):
        config = config_of(tmp_path / str(silo), algorithm__name="scaffold", rounds=2)
        faults = {} if silo is None else {silo: silent()}
        runs[silo] = play(config, grid_of(config, faults=faults))
    deployment = read_run_config(config)
    plan = plan_of(deployment)[1]

    class Absent(Local):
        """The simulator's threads, without worker 1."""

        def __init__(self) -> None:
            sizes = [len(owned) for owned in plan.owned]
            super().__init__(plan, Draws(plan.seed, sizes, plan.batch))
            everyone = self.engine.exchange

            def exchange(asked: Exchange, *rest: Any) -> Answers:
                return replace(everyone(asked.among(asked.workers != 1), *rest), missed=(1,))

            self.engine.exchange = exchange  # type: ignore[method-assign]

    *_, last = simulate(plan, None, Absent())
    assert float((weights(runs[1]) - last.server.w).abs().max()) < 1e-14
    assert gap(runs[1], runs[None]) > 1e-5
    # Nor does it matter whether a silo fails to answer, or never came.
    never = play(config | {"flower.out": str(tmp_path / "never")}, grid_of(config, [0, 2]))
    assert gap(runs[1], never) == 0


def test_missing_silos_are_named_and_a_quorum_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, flower__quorum=2)
    run = play(config, grid_of(config, faults={2: silent(rounds=[1, 3])}))
    assert [(r.misses, r.missed) for r in run.records] == [(0, ()), (1, (2,)), (1, ()), (2, (2,))]
    assert [r.participants for r in run.records] == [0, 2, 3, 2]
    assert any("worker 2 missed" in note for note in run.notes)
    # What did not come is not counted.
    ups = np.diff([r.bytes_up for r in run.records])
    assert list(ups) == [2 * 2 * SIZE * 8, 3 * 2 * SIZE * 8, 2 * 2 * SIZE * 8]
    assert run.folder
    assert "missed" in (run.folder / "records.jsonl").read_text()


@pytest.mark.parametrize(
    ("silos", "quorum", "gone", "goes_on"),
    [
        (3, 2, 1, True),
        (3, 2, 2, False),
        (3, 3, 1, False),
        (3, 1, 2, True),
        # By itself, more than half.
        (4, 0, 1, True),
        (4, 0, 2, False),
        (3, 0, 1, True),
        (3, 0, 2, False),
    ],
)
def test_the_quorum_is_kept_to_the_silo(
    silos: int, quorum: int, gone: int, goes_on: bool, tmp_path: Path
) -> None:
    config = config_of(
        tmp_path, split__workers=silos, flower__quorum=quorum, rounds=2, algorithm__name="fedavg"
    )
    faults = {silo: silent(rounds=[2]) for silo in range(gone)}
    grid = grid_of(config, range(silos), faults)
    if goes_on:
        assert play(config, grid).records[-1].misses == gone
        return
    with pytest.raises(FednagError, match=f"round 2: {silos - gone} of {silos} silos"):
        play(config, grid)
    (info,) = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert info["status"] == "interrupted"
    grid.faults.clear()
    done = play(config | {"flower.resume": True}, grid)
    whole = play(config | {"flower.out": str(tmp_path / "w")}, grid_of(config, range(silos)))
    assert gap(done, whole) == 0
    assert len(done.records) == 3


def test_a_run_begun_under_the_key_of_version_0_1_0_goes_on(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, split__workers=3, flower__quorum=3, rounds=2, algorithm__name="scaffold"
    )
    grid = grid_of(config, range(3), {0: silent(rounds=[2])})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fednag.config.keys_of", lambda experiment: keys_of(experiment)[1:])
        with pytest.raises(FednagError, match="round 2: 2 of 3 silos"):
            play(config, grid)
    (begun,) = tmp_path.rglob("run.json")
    grid.faults.clear()
    done = play(config | {"flower.resume": True}, grid)
    assert done.folder == begun.parent
    assert done.experiment.key not in begun.parent.name
    whole = play(config | {"flower.out": str(tmp_path / "w")}, grid_of(config, range(3)))
    assert gap(done, whole) == 0


@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.parametrize("place", ["state", "disk"])
def test_a_server_that_dies_goes_on_to_the_same_bits(name: str, place: str, tmp_path: Path) -> None:
    """Silos may be ahead of the server by then; their memory of the round it forgot is not used.

    Kept in ``state``, their memory outlives the server; on ``disk``, themselves too.
    """
    if place == "disk" and name not in KEEPING:
        return
    config = config_of(tmp_path / "a", algorithm__name=name, rounds=4)
    node = {"memory-folder": str(tmp_path / "memory")} if place == "disk" else {}
    grids = [
        InProcessGrid(fleet_app(), config, [_silo(k, node) for k in range(3)]) for _ in range(2)
    ]

    class PowerCut(BaseException):
        pass

    grid = grids[0]
    original = fleet_module.Fleet._sorted_out

    def cut(self: Any, wanted: Any, replies: Any, number: int, down: int) -> Any:
        """After the silos have done round 3, before the server has it."""
        if number == 3:
            raise PowerCut
        return original(self, wanted, replies, number, down)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module.Fleet, "_sorted_out", cut)
        with pytest.raises(PowerCut):
            play(config, grid)
    grid = grids[1] if place == "disk" else grid
    asked: list[int] = []

    def spy(message: Any, answered: Any) -> Any:
        about = dict(message.content.config_records["about"])
        if message.metadata.message_type == "train" and about["steps"]:
            asked.append(about["round"])
        return answered

    grid.faults[node_of(grid, 0)] = spy
    done = play(config | {"flower.resume": True}, grid)
    assert asked == [3, 4]  # what was saved is not done again
    whole = play(config | {"flower.out": str(tmp_path / "b")}, grid_of(config, range(3)))
    assert gap(done, whole) == 0
    assert len(done.records) == len(whole.records) == 5
    for mine, theirs in zip(done.records, whole.records, strict=True):
        assert replace(mine, seconds=0) == replace(theirs, seconds=0)
    assert not any(line.get("metrics", {}).get("memory_lost") for line in silos_of(done))
    # Each silo has one line a round, also of the round that was played twice.
    lines = [(line["round"], line["silo"]) for line in silos_of(done) if line["phase"] == "train"]
    assert lines == [(number, silo) for number in range(1, 5) for silo in range(3)]


def _silo(number: int, node: dict[str, Any]) -> dict[str, Any]:
    own = {key: f"{value}-{number}" for key, value in node.items()}
    return {"partition-id": number, **own}


@pytest.mark.parametrize("name", KEEPING)
def test_lost_memory_is_fresh_memory_and_said(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, algorithm__name=name, rounds=3)
    grid = grid_of(config)

    node = node_of(grid, 1)
    original, seen = grid._answered, []

    def forget(message: Any) -> Any:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == node:
            seen.append(sorted(grid.contexts[node].state))
            if len(seen) == 3:
                for key in list(grid.contexts[node].state):
                    del grid.contexts[node].state[key]
        return original(message)

    grid._answered = forget  # type: ignore[method-assign]
    run = play(config, grid)
    assert seen == [[], ["memory.1"], ["memory.1", "memory.2"]]
    lost = [(x["round"], x["silo"]) for x in silos_of(run) if x["metrics"]["memory_lost"]]
    assert lost == [(3, 1)]
    whole = play(config | {"flower.out": str(tmp_path / "w")}, grid_of(config))
    assert gap(run, whole) > 1e-7


def test_an_update_that_never_arrived_leaves_no_trace(tmp_path: Path) -> None:
    """The silo has done round 2, its memory moved on; it must go on from round 1's."""
    results = []
    for absent in (False, True):
        config = config_of(tmp_path / str(absent), algorithm__name="scaffold", rounds=4)
        grid = grid_of(config, faults={1: silent(rounds=[2])})
        if absent:  # not even asked
            node, original = node_of(grid, 1), grid._answered

            def skip(message: Any, node: int = node, original: Any = original) -> Any:
                about = dict(message.content.config_records["about"])
                here = about.get("round") == 2 and message.metadata.dst_node_id == node
                return None if here else original(message)

            grid._answered = skip  # type: ignore[method-assign]
        results.append(play(config, grid))
    assert gap(*results) == 0
    assert results[0].records[2].missed == (1,)


def test_a_refused_update_leaves_no_trace(tmp_path: Path) -> None:
    """The silo goes on from the memory of its last used round, as if it had been absent."""
    results = []
    for fault in (silent(rounds=[2]), altered(_set("dw", np.full(SIZE, np.nan)), rounds=[2])):
        out = tmp_path / str(len(results))
        config = config_of(out, algorithm__name="scaffold", rounds=4, training__batch=0)
        results.append(play(config, grid_of(config, faults={1: fault})))
    assert gap(*results) == 0
    assert [results[0].records[2].missed, results[1].records[2].refused] == [(1,), (1,)]


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    """To the bit: sums are taken in the order of the silos."""
    results = []
    for backwards in (False, True):
        config = config_of(tmp_path / str(backwards), split__workers=6)
        grid = grid_of(config, range(6))
        if backwards:
            pull = grid.pull_messages
            grid.pull_messages = lambda ids, pull=pull: list(pull(ids))[::-1]  # type: ignore[method-assign]
        results.append(play(config, grid))
    assert gap(*results) == 0


def test_only_what_was_sent_is_counted(tmp_path: Path) -> None:
    """Nothing goes to a silo that is not there."""
    config = config_of(tmp_path, algorithm__name="fedavg", rounds=2)
    run = play(config, grid_of(config, [0, 2]))
    each = SIZE * 8
    assert [r.bytes_down for r in run.records] == [0, 2 * each, 4 * each]
    assert [r.bytes_up for r in run.records] == [0, 2 * each, 4 * each]


def test_a_round_lasts_until_its_deadline_and_no_longer(tmp_path: Path) -> None:
    for deadline in (0.2, 0.8):
        config = config_of(tmp_path / str(deadline), rounds=1, flower__deadline=deadline)
        first, last = play(config, grid_of(config, faults={2: silent()})).records
        assert deadline <= last.seconds - first.seconds < deadline + 10
        assert last.missed == (2,)


def test_who_misses_only_the_first_stage_still_trains(tmp_path: Path) -> None:
    """And goes on with new samples, for its iterations were used."""
    starts: list[int] = []

    def shy(asked: Any, answered: Any) -> Any:
        about = dict(asked.content.config_records["about"])
        trains = asked.metadata.message_type == "train"
        if trains and about["steps"]:
            starts.append(about["start"])
        asks = trains and not about["steps"]
        return None if asks and about["round"] == 2 else answered

    config = config_of(tmp_path, algorithm__name="mime", rounds=4)
    run = play(config, grid_of(config, faults={1: shy}))
    assert starts == [0, 3, 6, 9]
    assert [r.missed for r in run.records] == [(), (), (1,), (), ()]
    assert [r.participants for r in run.records] == [0, 3, 3, 3, 3]


def test_a_node_that_never_says_who_it_is_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer is waited for once, not in every round."""
    monkeypatch.setattr(fleet_module, "COMING", 0.6)
    looks: list[int] = []
    original = roster_module.Membership.look
    monkeypatch.setattr(
        roster_module.Membership, "look", lambda self: (looks.append(1), original(self))[1]
    )
    config = config_of(tmp_path, rounds=4, flower__quorum=2)
    seen: list[int] = []

    def count(asked: Any, answered: Any) -> Any:
        if asked.metadata.message_type == "train":
            if not seen:
                time.sleep(0.7)  # whatever the first round left of the one wait is over then
            seen.append(len(looks))
        return answered

    mute = silent("query.hello")
    run = play(config, grid_of(config, faults={0: count, 1: mute}))
    assert [r.missed for r in run.records] == [(), (1,), (1,), (1,), (1,)]
    assert list(np.diff(seen)) == [1, 1, 1]


def test_a_question_that_died_with_a_node_is_asked_again(tmp_path: Path) -> None:
    hellos: list[int] = []

    def dies(asked: Any, answered: Any) -> Any:
        if asked.metadata.message_type != "query.hello":
            return answered
        hellos.append(1)
        return None if len(hellos) == 1 else answered

    config = config_of(tmp_path, rounds=4, flower__quorum=2)
    original = roster_module.Membership.look

    def slow(self: Any) -> None:
        original(self)
        fleet_module.time.sleep(0.05)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roster_module.Membership, "look", slow)
        run = play(config, grid_of(config, faults={1: dies}))
    assert len(hellos) == 2
    assert run.records[-1].missed == ()


def test_who_was_turned_away_may_put_it_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without going away; and the log says it once."""
    monkeypatch.setattr(roster_module, "AGAIN", 0.02)
    hellos: list[int] = []

    def upgraded(asked: Any, answered: Any) -> Any:
        if asked.metadata.message_type == "query.hello":
            hellos.append(1)
            if len(hellos) < 3:
                relabel(torch="1.0")(answered.content)
        return answered

    said: list[str] = []
    config = config_of(tmp_path, rounds=1, flower__join=10.0)
    run = play(config, grid_of(config, faults={1: upgraded}), said)
    assert run.records[-1].misses == 0
    assert len([line for line in said if "turned away" in line]) == 1
    assert len(hellos) == 3


def test_a_node_that_comes_back_says_anew_who_it_is(tmp_path: Path) -> None:
    """Keys outlive restarts, and so do node ids: what has changed meanwhile is noticed."""
    config = config_of(tmp_path, rounds=4, flower__quorum=2)
    grid = grid_of(config)
    node, original, said = node_of(grid, 1), grid._answered, []
    away = grid.contexts[node]

    def events(message: Any) -> Any:
        number = dict(message.content.config_records["about"]).get("round", 0)
        if number == 2:
            grid.contexts.pop(node, None)
            grid.faults[node] = altered(relabel(torch="1.0"), "query.hello")
        if number == 3:
            grid.contexts[node] = away
        return original(message)

    grid._answered = events  # type: ignore[method-assign]
    run = play(config, grid, said)
    assert [r.missed for r in run.records] == [(), (), (1,), (1,), (1,)]
    assert any("turned away: its torch is 1.0" in line for line in said), said


def test_a_restarted_silo_is_known_again(tmp_path: Path) -> None:
    """A new node says it is silo 2, whose node has gone; while that is there, it is turned away."""
    config = config_of(tmp_path, rounds=4, flower__quorum=2)
    grid = grid_of(config)
    said: list[str] = []
    old = node_of(grid, 2)
    original = grid._answered

    def events(message: Any) -> Any:
        number = dict(message.content.config_records["about"]).get("round", 0)
        if number == 2 and old in grid.contexts:
            grid.leave(old)
        if number == 3 and len(grid.contexts) == 2:
            grid.join({"partition-id": 2})
            grid.join({"partition-id": 0})
        return original(message)

    grid._answered = events  # type: ignore[method-assign]
    run = play(config, grid, said)
    assert [r.missed for r in run.records] == [(), (), (2,), (2,), ()]
    assert any("silo 2 is here again" in line for line in said)
    assert any("silo 0 is already here" in line for line in said)


STRANGERS: dict[str, tuple[dict[str, Any], str]] = {
    "another configuration": ({"config": {"training.tau": 4}}, "its digest is"),
    "another method": ({"config": {"algorithm.momentum": 0.5}}, "its digest is"),
    "no number": ({"node": {"partition-id": "x"}}, "partition-id: 'x'"),
    "a number too high": ({"node": {"partition-id": 3}}, "partition-id: 3"),
    "data of its own": ({"node": {"partition-id": 1, "data-folder": "/x"}}, "a data set by name"),
    "another fednag": ({"said": {"fednag": "9.9"}}, "its fednag is 9.9"),
    "another torch": ({"said": {"torch": "1.0"}}, "its torch is 1.0"),
    "another protocol": ({"said": {"protocol": 1}}, "its protocol is 1"),
    "another hash": ({"said": {"digest": "f" * 64}}, "its digest is fff"),
    "samples it has not": ({"said": {"samples": 500}}, "and has"),
    "absurd samples": ({"said": {"samples": 10**12}}, "10000000"),
    "another name": ({"name": "silo-2", "bind": "silo"}, "registered as 'silo-2'"),
    "no name": ({"name": "", "bind": "silo"}, "registered as ''"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_turned_away(stranger: str, tmp_path: Path) -> None:
    """And told why; the others go on without it."""
    trouble, why = STRANGERS[stranger]
    config = config_of(tmp_path, rounds=1, flower__bind=trouble.get("bind", ""))
    grid = InProcessGrid(fleet_app(), config, [])
    for silo in (0, 2):
        grid.join({"partition-id": silo}, f"silo-{silo}")
    node = grid.join(trouble.get("node", {"partition-id": 1}), trouble.get("name", "silo-1"))
    grid.contexts[node].run_config.update(trouble.get("config", {}))
    if "said" in trouble:
        grid.faults[node] = altered(relabel(**trouble["said"]), "query.hello")
    said: list[str] = []
    run = play(config, grid, said)
    assert run.records[-1].missed == (1,)
    assert any(f"node {node} is turned away" in line and why in line for line in said), said


def test_other_versions_may_be_allowed(tmp_path: Path) -> None:
    config = config_of(tmp_path, rounds=1, flower__other_versions=True)
    faults = {1: altered(relabel(torch="1.0"), "query.hello")}
    assert not play(config, grid_of(config, faults=faults)).records[-1].misses


def test_too_few_silos_is_a_sentence(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with refused("flower.join", "1 of 3 silos came"):
        play(config, grid_of(config, [0]))


def test_silos_may_claim_no_more_than_the_cap(tmp_path: Path) -> None:
    """Where the server cannot know, the cap decides; and the first word counts."""
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    for silo in range(3):
        folder = tmp_path / f"{silo}"
        folder.mkdir()
        np.save(folder / "x.npy", x + silo)
        np.save(folder / "y.npy", y)
    config = config_of(
        tmp_path / "runs",
        data__name="silos",
        split__kind="iid",
        split__skew="",
        flower__shape="2",
        flower__classes=2,
        flower__max_samples=20,
        flower__quorum=2,
        rounds=2,
    )
    for claim, kind, missed in [
        (21, "query.hello", True),
        (0, "query.hello", True),
        (19, "train", False),
    ]:
        grid = InProcessGrid(fleet_app(), config, [])
        for silo in range(3):
            grid.join({"partition-id": silo, "data-folder": str(tmp_path / f"{silo}")})
        grid.faults[node_of(grid, 1)] = altered(relabel(samples=claim), kind)
        run = play(config, grid)
        last = run.records[-1]
        assert (last.missed if missed else last.refused) == (1,)


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"loss": float("nan")}, "loss"),
        ({"loss": -1.0}, "loss"),
        ({"accuracy": 7.0}, "accuracy"),
        ({"test_loss": -1.0}, "test loss"),
    ],
)
def test_measures_that_lie_are_left_out(
    metrics: dict[str, float], why: str, tmp_path: Path
) -> None:
    def change(content: RecordDict) -> None:
        for key, value in metrics.items():
            content.metric_records["metrics"][key] = value

    config = config_of(tmp_path, rounds=1, flower__evaluate="silos")
    run = play(config, grid_of(config, faults={1: altered(change, "evaluate")}))
    assert run.records[-1].loss is not None
    assert 0 < run.records[-1].loss < 10
    assert {line["why"] for line in silos_of(run) if line["status"] == "refused"}.pop().count(why)


def test_silos_measure_what_the_server_would(tmp_path: Path) -> None:
    runs = []
    for where in ("server", "silos"):
        config = config_of(
            tmp_path / where, rounds=2, flower__evaluate=where, evaluation__metrics="['f1', 'top5']"
        )
        runs.append(play(config, grid_of(config)))
    for here, there in zip(runs[0].records, runs[1].records, strict=True):
        assert here.loss == pytest.approx(there.loss)
        assert here.accuracy == pytest.approx(there.accuracy)
        assert here.train_accuracy == pytest.approx(there.train_accuracy)
        assert here.test_loss == pytest.approx(there.test_loss)
        assert set(here.metrics) == {"f1", "top5"}
        assert here.metrics == pytest.approx(there.metrics)


def test_measures_on_test_samples_are_weighted_by_them(tmp_path: Path) -> None:
    """The mean of two silos' own, of 6 and 2 test samples; the third has none."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(48, 4, generator=generator), torch.arange(48) % 3
    tests = {0: slice(0, 6), 1: slice(6, 8)}
    for silo in range(3):
        folder = tmp_path / f"silo-{silo}"
        folder.mkdir()
        np.save(folder / "x.npy", x[silo::3].numpy())
        np.save(folder / "y.npy", y[silo::3].numpy())
        if silo in tests:
            np.save(folder / "test_x.npy", x[tests[silo]].numpy())
            np.save(folder / "test_y.npy", y[tests[silo]].numpy())
    config = config_of(
        tmp_path,
        data__name="silos",
        split__kind="iid",
        split__skew="",
        flower__shape="4",
        flower__classes=3,
        evaluation__metrics="['f1']",
        **AS_SAID,
    )
    grid = InProcessGrid(fleet_app(), config, [])
    for silo in range(3):
        grid.join({"partition-id": silo, "data-folder": str(tmp_path / f"silo-{silo}")})
    last = (run := play(config, grid)).records[-1]
    with torch.no_grad():
        scores = run.final(x.double())
    losses = torch.nn.functional.cross_entropy(scores, y, reduction="none")
    assert last.test_loss == pytest.approx(float(losses[:8].mean()))

    def f1(part: slice) -> float:
        said, true, found = scores[part].argmax(1), y[part], []
        for label in sorted({*said.tolist(), *true.tolist()}):
            right = int(((said == label) & (true == label)).sum())
            found.append(2 * right / int((said == label).sum() + (true == label).sum()))
        return sum(found) / len(found)

    assert last.metrics["f1"] == pytest.approx((6 * f1(tests[0]) + 2 * f1(tests[1])) / 8)


def test_metrics_that_lie_are_left_out(tmp_path: Path) -> None:
    """One that is not finite counts as not said; one that nobody asked for is passed over."""

    def change(content: RecordDict) -> None:
        found = content.metric_records["metrics"]
        found["metric.f1"], found["metric.luck"] = float("nan"), 7.0

    config = config_of(
        tmp_path, rounds=1, flower__evaluate="silos", evaluation__metrics="['f1', 'top5']"
    )
    honest = play(config, grid_of(config))
    run = play(config, grid_of(config, faults={1: altered(change, "evaluate")}))
    # All silos have the digits' test samples, so the others' mean is the same.
    assert run.records[-1].metrics == pytest.approx(honest.records[-1].metrics)
    assert set(run.records[-1].metrics) == {"f1", "top5"}


def test_patience_ends_a_deployment_as_it_ends_the_simulator(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        rounds=30,
        evaluation__metrics="['f1']",
        stop__patience=2,
        stop__watch="f1",
        stop__min_change=0.05,
        stop__metrics="{f1 = 0.999}",
        algorithm__lr=0.5,
    )
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path / "twin")
    assert run.ended.startswith("no better f1 in 2 evaluations, at iteration ")
    assert run.ended == twin.ended


@pytest.mark.parametrize("lr", [1e200, 1e308])  # found by the server, by the silos themselves
def test_when_no_update_is_finite_the_run_has_diverged(lr: float, tmp_path: Path) -> None:
    config = config_of(tmp_path, algorithm__name="fedavg", algorithm__lr=lr, rounds=3)
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path / "s")
    assert run.diverged
    assert twin.diverged
    assert run.ended == twin.ended


def test_words_do_not_make_a_run_diverge(tmp_path: Path) -> None:
    """A sentence about something that is not finite is not the silo's word for a lost update."""

    def change(content: RecordDict) -> None:
        content.config_records["about"]["refused"] = "the disk is not finite"

    config = config_of(tmp_path, rounds=1)
    faults = dict.fromkeys(range(3), altered(change))
    with pytest.raises(FednagError, match="0 of 3 silos gave a usable answer"):
        play(config, grid_of(config, faults=faults))


def test_a_crash_in_a_silo_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Silo.exchange

    def crash(self: Silo, *rest: Any) -> Any:
        if self.number == 1:
            raise ZeroDivisionError("out of everything")
        return original(self, *rest)

    monkeypatch.setattr(Silo, "exchange", crash)
    config = config_of(tmp_path, rounds=1)
    run = play(config, grid_of(config))
    (line,) = [line for line in silos_of(run) if line["status"] == "refused"]
    assert "out of everything" in line["why"]


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ({"digest": "0"}, "its digest is 0"),
        ({"silo": 2}, "its silo is 2, not 0"),
        ({"steps": 4}, "at most 3 are agreed"),
        ({"stage": 1}, "its stage is 1, and a round has 1"),
        ({"steps": -1}, "its steps is -1"),
        ({"start": "x"}, "its start is x"),
        ({"token": "../../etc"}, "no proper token"),
        ({"protocol": 1}, "its protocol is 1"),
        ({"torch": "1.0"}, "its torch is 1.0"),
        ({"fednag": "9.9"}, "its fednag is 9.9"),
    ],
)
def test_a_silo_refuses_what_it_should_not_be_asked(
    label: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, algorithm__name="scaffold")
    deployment = read_run_config(config)
    grid = grid_of(config, [0], None, **{"memory-folder": str(tmp_path / "memory")})
    silo = Silo(deployment, {"partition-id": 0})
    about = {"digest": deployment.digest, "silo": 0, "round": 1, "start": 0}
    about |= {
        "protocol": protocol.PROTOCOL,
        "stage": 0,
        "steps": 3,
        "accepted": 0,
        "left": 0,
        "token": "a" * 32,
        **protocol.versions(),
    }
    sent = protocol.pack(silo.algorithm.init(silo.problem.initial))
    for changed in (label, {}):
        message = protocol.message("train", node_of(grid, 0), about | changed, sent)
        (reply,) = grid.send_and_receive([message])
        said = dict(reply.content.config_records["about"])
        if changed:
            assert why in said["refused"]
            assert not list(tmp_path.rglob("*.safetensors"))
        else:
            assert vector_of(reply.content, "dw").abs().max() > 0
            (kept,) = tmp_path.rglob("*.safetensors")
            assert kept.parent.stat().st_mode & 0o77 == 0


def test_a_run_on_flower_is_not_resumed_by_the_simulator(tmp_path: Path) -> None:
    config = config_of(tmp_path, rounds=2)
    with pytest.raises(FednagError, match="quorum"):
        play(config, grid_of(config, faults={s: silent(rounds=[2]) for s in range(3)}))
    from fednag.api import resume_all
    from fednag.runs.folder import find_runs

    with pytest.raises(FednagError, match="fednag flower up --resume"):
        resume_all(find_runs([tmp_path]))


def test_flower_saying_that_nobody_answered_is_a_miss(tmp_path: Path) -> None:
    """A message that grew too old, a node that has gone: nobody is to blame for an answer."""

    def gone(asked: Any, answered: Any) -> Any:
        train = asked.metadata.message_type == "train"
        error = Error(5, "Node Unavailable")
        return Message(error, reply_to=asked) if train else answered

    config = config_of(tmp_path, rounds=1)
    run = play(config, grid_of(config, faults={1: gone}))
    assert (run.records[-1].missed, run.records[-1].refused) == ((1,), ())
    hellos: list[int] = []

    def shy(asked: Any, answered: Any) -> Any:
        """Not there when it is first asked who it is."""
        if asked.metadata.message_type != "query.hello":
            return answered
        hellos.append(1)
        return Message(Error(3, "gone"), reply_to=asked) if len(hellos) == 1 else answered

    config = config_of(tmp_path / "b", rounds=1, flower__join=5.0)
    run = play(config, grid_of(config, faults={1: shy}))
    assert (run.records[-1].misses, len(hellos)) == (0, 2)


def test_a_round_that_was_missed_is_done_with_the_same_samples(tmp_path: Path) -> None:
    """What never arrived was never done: the silo goes on where its last used update ended."""
    asked_of: list[tuple[int, int, int]] = []

    def spy(asked: Any, answered: Any) -> Any:
        about = dict(asked.content.config_records["about"])
        if asked.metadata.message_type != "train":
            return answered
        asked_of.append((about["round"], about["start"], about["accepted"]))
        return None if about["round"] == 2 else answered

    config = config_of(tmp_path, rounds=4, algorithm__name="fedavg")
    play(config, grid_of(config, faults={1: spy}))
    assert asked_of == [(1, 0, 0), (2, 3, 1), (3, 3, 1), (4, 6, 3)]
