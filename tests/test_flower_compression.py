"""Compressed uploads and downloads on Flower: the numbers and the bytes of the simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import fednag.flower.fleet as fleet_module
import fednag.flower.membership as membership_module
from fednag.flower.protocol import ARRAYS, nbytes
from fednag.flower.settings import read_run_config
from fednag.flower.silo_log import read
from fednag.transforms import TRANSFORMS
from flower_kit import (
    altered,
    config_of,
    gap,
    grid_of,
    node_of,
    play,
    silent,
    silos_made_once,
    simulated,
)

pytestmark = pytest.mark.flower

FEEDBACK = {"kind": "error-feedback"}
NUMBERS: dict[str, dict[str, Any]] = {
    "quantise": {"levels": 3, "bucket": 64},
    "topk": {"share": 0.1},
    "randk": {"share": 0.1},
    "clip": {"norm": 0.05},
    "eden": {"bits": 2},
    "lowrank": {"rank": 1},
    "every": {"vectors": "['v']", "rounds": 2},
}
CHAINS: dict[str, list[dict[str, Any]]] = {
    name: [{"kind": name, **NUMBERS.get(name, {})}]
    for name in TRANSFORMS
    if name not in ("error-feedback", "entropy", "noise")  # noise is nobody's to draw again
} | {
    "feedback": [FEEDBACK, {"kind": "topk", "share": 0.05}, {"kind": "quantise", "levels": 15}],
    "feedback of signs": [{"kind": "clip", "norm": 0.5}, FEEDBACK, {"kind": "sign"}],
}
if "entropy" in TRANSFORMS:
    CHAINS["entropy"] = [{"kind": "quantise", "levels": 3}, {"kind": "entropy"}]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PAUSE", 0.01)
    monkeypatch.setattr(membership_module, "PAUSE", 0.01)
    monkeypatch.setattr(fleet_module, "COMING", 0.05)
    silos_made_once(monkeypatch)


def with_chain(chain: list[dict[str, Any]], link: str = "uplink") -> dict[str, Any]:
    return {
        f"{link}__{place}__{key}": value
        for place, part in enumerate(chain)
        for key, value in part.items()
    }


@pytest.mark.parametrize("name", CHAINS)
def test_a_deployment_has_the_simulators_numbers_and_bytes(name: str, tmp_path: Path) -> None:
    chain = CHAINS[name]
    config = config_of(tmp_path, training__participants=2, rounds=4, **with_chain(chain))
    sent: list[int] = []

    def spy(asked: Any, answered: Any) -> Any:
        if asked.metadata.message_type == "train":
            sent.append(nbytes(answered.content.array_records[ARRAYS]))
        return answered

    memory = {"memory-folder": str(tmp_path / "memory")}
    grid = grid_of(config, faults=dict.fromkeys(range(3), spy), **memory)
    run = play(config, grid)
    twin = simulated(read_run_config(config), tmp_path / "simulated")
    assert gap(run, twin) < 1e-12
    assert [r.bytes_up for r in run.records] == [r.bytes_up for r in twin.records]
    assert [r.bytes_down for r in run.records] == [r.bytes_down for r in twin.records]
    # What is counted is what the messages hold.
    assert sum(sent) == run.records[-1].bytes_up > 0
    plain = simulated(
        read_run_config(config_of(tmp_path / "p", training__participants=2, rounds=4)),
        tmp_path / "plain",
    )
    assert run.records[-1].bytes_up <= plain.records[-1].bytes_up
    assert gap(run, plain) > 1e-9


@pytest.mark.parametrize("name", ["float16", "bfloat16", "quantise", "sign", "topk", "randk"])
def test_downloads_are_decoded_by_the_silos(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, rounds=2, **with_chain(CHAINS[name], "downlink"))
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path / "simulated")
    assert gap(run, twin) < 1e-12
    assert [r.bytes_down for r in run.records] == [r.bytes_down for r in twin.records]
    assert run.records[-1].bytes_down < run.records[-1].bytes_up


@pytest.mark.parametrize("method", ["mime", "marina", "scaffold"])
def test_other_kinds_of_rounds_have_the_simulators_numbers_too(method: str, tmp_path: Path) -> None:
    """Rounds of two exchanges, each with a residue of its own; rounds in which all travels."""
    chain = with_chain(CHAINS["feedback"])
    numbers = {"algorithm__p": 0.5} if method == "marina" else {}
    config = config_of(
        tmp_path, algorithm__name=method, training__participants=2, rounds=6, **chain, **numbers
    )
    run = play(config, nodes_apart(config, tmp_path / "silos"))
    twin = simulated(read_run_config(config), tmp_path / "simulated")
    assert gap(run, twin) < 1e-12
    assert [r.bytes_up for r in run.records] == [r.bytes_up for r in twin.records]
    ups = {now.bytes_up - then.bytes_up for then, now in pairwise(run.records)}
    assert len(ups) == (2 if method == "marina" else 1)


@pytest.mark.parametrize(
    ("method", "at"), [("fednag", 1), ("scaffold", 1), ("mime", 1), ("mime", 2)]
)
def test_residues_survive_a_server_that_dies_and_silos_that_start_anew(
    method: str, at: int, tmp_path: Path
) -> None:
    """It dies after so many exchanges of round 3."""
    chain = with_chain(CHAINS["feedback"])
    config = config_of(tmp_path / "a", algorithm__name=method, rounds=4, **chain)

    class PowerCut(BaseException):
        pass

    original, asked = fleet_module.Fleet._sorted_out, []

    def cut(self: Any, wanted: Any, replies: Any, number: int, down: int) -> Any:
        asked.append(number)
        if asked.count(3) == at:
            raise PowerCut
        return original(self, wanted, replies, number, down)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module.Fleet, "_sorted_out", cut)
        with pytest.raises(PowerCut):
            play(config, nodes_apart(config, tmp_path / "one"))
    done = play(config | {"flower.resume": True}, nodes_apart(config, tmp_path / "one"))
    whole = play(
        config | {"flower.out": str(tmp_path / "b")}, nodes_apart(config, tmp_path / "two")
    )
    assert gap(done, whole) == 0
    for mine, theirs in zip(done.records, whole.records, strict=True):
        assert replace(mine, seconds=0) == replace(theirs, seconds=0)


def nodes_apart(config: dict[str, Any], folder: Path) -> Any:
    """Three silos, each with a memory folder of its own."""
    grid = grid_of(config, range(3))
    for silo in range(3):
        context = grid.contexts[node_of(grid, silo)]
        context.node_config["memory-folder"] = str(folder / str(silo))
    return grid


@pytest.mark.parametrize("how", ["absent", "refused"])
def test_a_residue_of_an_update_that_was_not_used_leaves_no_trace(how: str, tmp_path: Path) -> None:
    """The silo's next upload is the one it would make had it not taken part."""
    chain = with_chain(CHAINS["feedback of signs"])
    config = config_of(tmp_path / "a", rounds=3, flower__quorum=1, **chain)

    def spoilt(content: Any) -> None:
        record = content.array_records[ARRAYS]
        array = record["w.scale"]
        array.data = b"\x00\x00\xc0\x7f"  # NaN

    fault = silent("train", [1]) if how == "absent" else altered(spoilt, rounds=[1])
    grid = nodes_apart(config, tmp_path / "one")
    grid.faults[node_of(grid, 1)] = fault
    kept: list[bytes] = []

    def second(asked: Any, answered: Any) -> Any:
        answered = fault(asked, answered)
        about = dict(asked.content.config_records["about"])
        if asked.metadata.message_type == "train" and about["round"] == 2:
            kept.append(about["accepted"])
        return answered

    grid.faults[node_of(grid, 1)] = second
    run = play(config, grid)
    assert kept == [0]  # it is asked to go on from the memory before its first round
    assert run.records[-1].round == 3


@pytest.mark.parametrize("method", ["fednag", "scaffold", "mime"])
def test_what_is_kept_survives_any_number_of_answers_that_are_lost(
    method: str, tmp_path: Path
) -> None:
    """As if the silo had never been asked in those rounds."""
    chain = with_chain(CHAINS["feedback"])
    few = {"flower__quorum": 1, "flower__deadline": 0.1}
    config = config_of(tmp_path, rounds=6, algorithm__name=method, **few, **chain)
    lost = range(2, 6)
    late = nodes_apart(config, tmp_path / "late")
    late.faults[node_of(late, 1)] = silent("train", lost)
    away = nodes_apart(config, tmp_path / "away")
    answered = away._answered

    def deaf(message: Any) -> Any:
        about = dict(message.content.config_records["about"])
        train = message.metadata.message_type == "train" and about["round"] in lost
        own = message.metadata.dst_node_id == node_of(away, 1)
        return None if own and train else answered(message)

    away._answered = deaf
    runs = [
        play(config | {"flower.out": str(tmp_path / name)}, grid)
        for name, grid in (("one", late), ("two", away))
    ]
    assert gap(*runs) == 0
    assert runs[0].records[-1].misses == len(lost)
    assert not any(
        line.get("metrics", {}).get("memory_lost") for line in read(runs[0].folder / "silos.jsonl")
    )


@pytest.mark.parametrize(
    ("array", "data", "why"),
    [
        ("w.index", b"\xff" * 4, "in 4 bytes"),
        ("w.index", None, "it cannot be decoded"),
    ],
)
def test_a_message_that_lies_is_refused_and_named(
    array: str, data: bytes | None, why: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, rounds=2, **with_chain([{"kind": "topk", "share": 0.1}]))

    def lie(content: Any) -> None:
        given = content.array_records[ARRAYS][array]
        given.data = b"\xff" * len(given.data) if data is None else data

    said: list[str] = []
    play(config, grid_of(config, faults={1: altered(lie)}), said)
    assert any("silo 1 is refused" in line and why in line for line in said)


def test_what_silos_cannot_keep_is_said(tmp_path: Path) -> None:
    chain = with_chain(CHAINS["feedback"])
    config, said = config_of(tmp_path, rounds=1, **chain), []
    with pytest.raises(Exception, match="memory-folder"):
        play(config, grid_of(config), said)
