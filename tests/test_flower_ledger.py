"""The ledger and trust on Flower, in one process: signatures, keys, audits by the simulator."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Array, Message, RecordDict

import fednag.flower.fleet as fleet_module
import fednag.flower.handlers as client_module
import fednag.flower.membership as membership_module
from commands import Caller
from fednag import FednagError
from fednag.config import parse
from fednag.flower.certificates import make_node_key
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.project import run_config, write_app
from fednag.flower.protocol import ARRAYS
from fednag.flower.settings import read_run_config
from fednag.flower.signing import Signer, is_signed, make_key
from fednag.flower.silo import Silo
from fednag.runs.audit import audit
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import canonical, file_of, hash_of, rounds_of, verify
from flower_kit import altered, config_of, grid_of, node_of, play, silent, simulated


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PAUSE", 0.01)
    monkeypatch.setattr(membership_module, "PAUSE", 0.01)
    monkeypatch.setattr(fleet_module, "COMING", 0.05)
    # A silo is made anew for every message, which takes most of the time: here, once.
    made: dict[str, Silo] = {}

    def once(deployment: Any, node_config: Any) -> Silo:
        key = repr((deployment.digest, node_config["partition-id"]))
        return made.setdefault(key, made.get(key) or Silo(deployment, node_config))

    monkeypatch.setattr(client_module, "Silo", once)


def with_keys(grid: InProcessGrid, folder: Path, silos: tuple[int, ...] = (0, 1, 2)) -> None:
    for silo in silos:
        path = folder / f"{silo}.key"
        if not path.exists():
            make_key(path)
        grid.contexts[node_of(grid, silo)].node_config["ledger-key"] = str(path)


def spoilt(content: RecordDict) -> None:
    """Changes a bit of an upload, after the silo has signed it."""
    array = content.array_records[ARRAYS]["w"]
    data = bytes([array.data[0] ^ 1]) + array.data[1:]
    content.array_records[ARRAYS]["w"] = Array(array.dtype, array.shape, array.stype, data)


def statuses(folder: RunFolder) -> list[list[str]]:
    found = rounds_of(verify(folder, is_signed).entries)
    return [[e["status"] for e in own[:-1]] for own in found.values()]


def test_a_deployment_is_signed_and_the_simulator_gives_every_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mime, with two exchanges a round and what is left out; a silo misses round 2."""
    config = config_of(tmp_path, algorithm__name="mime", uplink__0__kind="quantise")
    grid = grid_of(config, faults={1: silent(rounds=[2])})
    with_keys(grid, tmp_path)
    run = play(config, grid)
    assert run.folder
    folder = RunFolder(run.folder)
    found = verify(folder, is_signed)
    assert found.fault is None
    assert [e["kind"] for e in found.entries[:4]] == ["run", "key", "key", "key"]
    assert statuses(folder)[1] == ["used", "missed", "used"] * 2
    used = [e for e in found.entries if e.get("status") == "used"]
    assert found.signed == len(used) == 16
    for entry in used:  # by the library alone
        names = ("round", "stage", "worker", "sent", "up", "samples", "steps")
        content = {**{name: entry[name] for name in names}, "run": found.entries[0]["run"]}
        public = (tmp_path / f"{entry['worker']}.key.pub").read_text().strip()
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(entry["signature"]), text)
    said = Caller(monkeypatch, capsys)("ledger", "verify", str(folder.path))
    assert "each as it was written, 16 of them signed" in said.out
    found_again = audit(folder)
    assert found_again.difference is None
    assert found_again.rounds == 3
    twin = config_of(tmp_path / "twin", algorithm__name="mime", uplink__0__kind="quantise")
    other = simulated(read_run_config(twin), tmp_path / "here")
    assert other.folder
    first, second = (rounds_of(verify(RunFolder(f)).entries)[1] for f in (run.folder, other.folder))
    assert [e.get("up") for e in first] == [e.get("up") for e in second]


def test_what_is_altered_on_its_way_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    grid = grid_of(config, faults={1: altered(spoilt, rounds=[2])})
    with_keys(grid, tmp_path)
    said: list[str] = []
    run = play(config, grid, said)
    assert run.folder
    assert any("silo 1 is refused (train): it is not signed with the key" in one for one in said)
    folder = RunFolder(run.folder)
    assert statuses(folder) == [["used"] * 3, ["used", "refused", "used"], ["used"] * 3]
    assert verify(folder, is_signed).fault is None
    assert audit(folder).difference is None


def test_without_a_key_an_audit_names_who_sent_something_else(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    run = play(config, grid_of(config, faults={1: altered(spoilt, rounds=[2])}))
    assert run.folder
    difference = audit(RunFolder(run.folder)).difference
    assert difference
    assert str(difference) == "round 2: the upload of worker 1 is another"


def test_a_silo_keeps_its_key(tmp_path: Path) -> None:
    """It is turned away with another one, or none; also by a server that was started again."""
    config = config_of(tmp_path, rounds=4, flower__quorum=2)
    grid = grid_of(config)
    with_keys(grid, tmp_path)

    def falls(asked: Message, answered: Message) -> Message | None:
        raise KeyboardInterrupt

    grid.faults[node_of(grid, 0)] = silent_then(falls, at=3)
    with pytest.raises(KeyboardInterrupt):
        play(config, grid)
    again = grid_of(config)
    with_keys(again, tmp_path, (0, 1))
    make_key(tmp_path / "other.key")
    again.contexts[node_of(again, 2)].node_config["ledger-key"] = str(tmp_path / "other.key")
    said: list[str] = []
    run = play({**config, "flower.resume": True}, again, said)
    assert any("its ledger key is not the one that silo 2 registered with" in one for one in said)
    assert run.folder
    folder = RunFolder(run.folder)
    found = verify(folder, is_signed)
    assert found.fault is None
    kinds = [e["kind"] for e in found.entries]
    assert (kinds.count("key"), kinds.count("resumed")) == (3, 1)
    assert statuses(folder)[2:] == [["used", "used", "missed"]] * 2
    assert audit(folder).difference is None


def silent_then(fault: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The fault in a round, and as it should be before."""

    def handle(asked: Message, answered: Message) -> Message | None:
        about = asked.content.config_records["about"]
        return fault(asked, answered) if about.get("round") == at else answered

    return handle


def test_a_signature_cannot_be_forged(tmp_path: Path) -> None:
    """The whole chain written anew, and run.json with it: the silo's signature does not fit."""
    config = config_of(tmp_path, rounds=1)
    grid = grid_of(config)
    with_keys(grid, tmp_path)
    run = play(config, grid)
    assert run.folder
    folder = RunFolder(run.folder)
    lines = file_of(folder).read_text().splitlines()
    for field, value in {"up": "0" * 64, "sent": "0" * 64, "samples": 1, "steps": 1,
                         "worker": 0, "signature": "00" * 64}.items():  # fmt: skip
        before, forged = "0" * 64, []
        for number, line in enumerate(lines, 1):
            entry = {**json.loads(line), "before": before}
            if number == 6:
                entry[field] = value
            forged.append(canonical(entry))
            before = hash_of(forged[-1])
        file_of(folder).write_text("".join(f"{line}\n" for line in forged))
        folder.write_info({**folder.info(), "ledger": {"entries": len(forged), "head": before}})
        fault = verify(folder, is_signed).fault
        assert fault, field
        assert (fault.entry, fault.kind) == (6, "signature")


def test_it_can_be_left_out_and_wrong_keys_are_a_sentence(tmp_path: Path) -> None:
    config = config_of(tmp_path, ledger__kind="none", rounds=1)
    grid = grid_of(config)
    with_keys(grid, tmp_path)
    run = play(config, grid)
    assert run.folder
    assert not file_of(RunFolder(run.folder)).exists()
    assert Signer.of({}) is None
    make_node_key(tmp_path / "ec")
    (tmp_path / "text").write_text("no key")
    for name, why in (
        ("none", "No such file"),
        ("text", "is no private key"),
        ("ec", "is no Ed25519 key"),
    ):
        with pytest.raises(FednagError, match=f"ledger-key: .*{name} .*{why}"):
            Signer.of({"ledger-key": str(tmp_path / name)})
    assert (tmp_path / "0.key").stat().st_mode & 0o077 == 0


def test_trust_is_learnt_on_flower_as_in_the_simulator(tmp_path: Path) -> None:
    """Cohorts and weights are the simulator's; a silo that never answers loses trust."""
    more: dict[str, Any] = {"controller__kind": "trust", "training__participants": 2, "rounds": 6}
    config = config_of(tmp_path, **more)
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path / "here")
    assert run.folder
    assert twin.folder
    ours, theirs = (rounds_of(verify(RunFolder(f)).entries) for f in (run.folder, twin.folder))
    assert [[e.get("worker") for e in own] for own in ours.values()] == [
        [e.get("worker") for e in own] for own in theirs.values()
    ]
    assert audit(RunFolder(run.folder)).difference is None
    config = config_of(
        tmp_path / "absent", **{**more, "rounds": 12, "controller__weight": 8.0}, flower__quorum=1
    )
    absent = play(config, grid_of(config, faults={1: silent()}))
    assert absent.folder
    asked = [e["worker"] for own in rounds_of(verify(RunFolder(absent.folder)).entries).values()
             for e in own[:-1]]  # fmt: skip
    assert asked.count(1) < min(asked.count(0), asked.count(2)) - 3


def test_an_app_brings_its_anchor_and_only_the_server_loads_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def publish(head):\n    return head['round']\n")
    given = {"kind": "chain", "anchor": f"{tmp_path / 'mine.py'}:publish"}
    experiment = parse({"model": {"name": "logistic"}, "ledger": given})
    files = write_app(tmp_path / "app", run_config(experiment))
    (path,) = [file for file in files if file.name == "mine.py"]
    named = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    anchor = named["tool"]["flwr"]["app"]["config"]["ledger"]["anchor"]
    assert path.as_posix().endswith(anchor.removesuffix(":publish"))
    (tmp_path / "mine.py").write_text("import a_package_that_silos_do_not_have\n")
    config = config_of(tmp_path, ledger__kind="chain", ledger__anchor=given["anchor"], rounds=1)
    assert read_run_config(config).digest == read_run_config(config_of(tmp_path, rounds=1)).digest
    with pytest.raises(FednagError, match="a_package_that_silos_do_not_have"):
        play(config, grid_of(config))
    (tmp_path / "mine.py").write_text("def publish(head):\n    return head['round']\n")
    run = play(config, grid_of(config))
    assert run.folder
    kinds = [e["kind"] for e in verify(RunFolder(run.folder)).entries]
    assert kinds == ["run", "upload", "upload", "upload", "round", "anchor"]
