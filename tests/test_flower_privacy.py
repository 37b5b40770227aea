"""Privacy on Flower: noise that nobody can draw again, and rounds that are counted twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import fednag.flower.fleet as fleet_module
import fednag.flower.membership as membership_module
from fednag import FednagError
from fednag.flower.settings import read_run_config
from fednag.privacy.accounting import Mechanism
from fednag.runs.audit import audit
from fednag.runs.folder import RunFolder
from flower_kit import config_of, gap, grid_of, play, simulated

pytestmark = pytest.mark.flower

PRIVATE = {"privacy__delta": 1e-5, "algorithm__name": "fednag", "rounds": 3}
CENTRAL = {
    **PRIVATE,
    "aggregator__kind": "noisy-mean",
    "aggregator__norm": 0.5,
    "aggregator__noise_multiplier": 4.0,
}
LOCAL = {
    **PRIVATE,
    "uplink__0__kind": "clip",
    "uplink__0__norm": 0.5,
    "uplink__1__kind": "noise",
    "uplink__1__sigma": 2.0,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PAUSE", 0.01)
    monkeypatch.setattr(membership_module, "PAUSE", 0.01)
    monkeypatch.setattr(fleet_module, "COMING", 0.05)


@pytest.mark.parametrize("parts", [CENTRAL, LOCAL], ids=["central", "local"])
def test_noise_on_real_machines_cannot_be_drawn_again(parts: Any, tmp_path: Path) -> None:
    config = config_of(tmp_path / "a", **parts)
    run = play(config, grid_of(config))
    twin = simulated(read_run_config(config), tmp_path / "s")
    assert gap(run, twin) > 1e-3
    assert [record.epsilon for record in run.records] == [
        Mechanism(4.0).epsilon(number, 1e-5) for number in range(4)
    ]
    assert [record.epsilon for record in twin.records] == [r.epsilon for r in run.records]
    assert run.folder is not None
    assert json.loads((run.folder / "releases.json").read_text())["rounds"] == 3
    assert twin.folder is not None
    assert not (twin.folder / "releases.json").exists()


def test_without_noise_a_deployment_is_the_simulator(tmp_path: Path) -> None:
    parts = {**CENTRAL, "aggregator__noise_multiplier": 0.0, "training__participants": 2}
    del parts["privacy__delta"]
    config = config_of(tmp_path / "a", **parts)
    twin = simulated(read_run_config(config), tmp_path / "s")
    assert gap(play(config, grid_of(config)), twin) < 1e-12


@pytest.mark.parametrize("parts", [CENTRAL, LOCAL], ids=["central", "local"])
def test_a_run_of_secret_noise_is_not_audited(parts: Any, tmp_path: Path) -> None:
    """Played again it would differ, and somebody would be accused."""
    config = config_of(tmp_path, **{**parts, "rounds": 1, "ledger__kind": "chain"})
    run = play(config, grid_of(config))
    assert run.folder is not None
    with pytest.raises(FednagError, match="its noise cannot be drawn again"):
        audit(RunFolder(run.folder))


class PowerCut(BaseException):
    pass


def test_a_round_that_is_replayed_is_counted_twice(tmp_path: Path) -> None:
    """Cut in round 2 and again in it; then 3 rounds have cost what 5 cost."""
    config = config_of(tmp_path, **CENTRAL)
    original = fleet_module.Fleet._sorted_out

    def cut(self: Any, wanted: Any, replies: Any, number: int, down: int) -> Any:
        if number == 2:
            raise PowerCut
        return original(self, wanted, replies, number, down)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module.Fleet, "_sorted_out", cut)
        for resume in (False, True):
            with pytest.raises(PowerCut):
                play(config | {"flower.resume": resume}, grid_of(config))
    again = config | {"flower.resume": True}
    done = play(again, grid_of(again))
    cost = Mechanism(4.0)
    expected = [cost.epsilon(number, 1e-5) for number in (0, 1, 4, 5)]
    assert [record.epsilon for record in done.records] == expected
    assert done.folder is not None
    assert json.loads((done.folder / "releases.json").read_text())["rounds"] == 5


def test_replayed_rounds_may_leave_nothing_to_spend(tmp_path: Path) -> None:
    budget = Mechanism(4.0).epsilon(3, 1e-5)
    config = config_of(tmp_path, **CENTRAL, privacy__epsilon=budget)
    original = fleet_module.Fleet._sorted_out

    def cut(self: Any, wanted: Any, replies: Any, number: int, down: int) -> Any:
        if number == 3:
            raise PowerCut
        return original(self, wanted, replies, number, down)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module.Fleet, "_sorted_out", cut)
        with pytest.raises(PowerCut):
            play(config, grid_of(config))
    (folder,) = (path.parent for path in tmp_path.rglob("run.json"))
    kept = (folder / "releases.json").read_text()
    again = config | {"flower.resume": True}
    for wrong in ("{", '{"rounds": 1}', '{"rounds": "3"}'):
        (folder / "releases.json").write_text(wrong)
        with pytest.raises(FednagError, match=r"releases.json: .* restore it"):
            play(again, grid_of(again))
    (folder / "releases.json").unlink()
    with pytest.raises(FednagError, match=r"releases.json: .* restore it"):
        play(again, grid_of(again))
    (folder / "releases.json").write_text(kept)
    done = play(again, grid_of(again))
    assert (done.ending.kind, done.ending.iteration) == ("privacy", 6)
    assert len(RunFolder(folder).records()) == 3
