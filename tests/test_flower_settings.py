"""Run configurations, silos' data and the app that is written: checked, and told in a sentence."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.cli.config_utils import load_and_validate
from flwr.common.config import flatten_dict

from fednag import FednagError, cli
from fednag.config import Experiment, parse
from fednag.flower.project import flat, run_config, write_app
from fednag.flower.settings import Flower, read_run_config
from fednag.flower.silo_data import held_by
from fednag.flower.silo_log import SiloLog, entry, read
from flower_kit import config_of
from refusals import refused

PRIVATE = {
    "data.name": "silos",
    "split.kind": "iid",
    "split.skew": "",
    "flower.shape": "2",
    "flower.classes": 2,
}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training.tau": 0}, "training.tau"),
        ({"training.taw": 1}, "training.taw"),
        ({"algorithm.name": "fednagg"}, "algorithm.name"),
        ({"algorithm.name": "cnag"}, "algorithm.name"),
        ({"algorithm.name": "custom"}, "algorithm.name"),
        ({"algorithm.lr": "x"}, "algorithm.lr"),
        ({"algorithm.speed": 1.0}, "algorithm.speed"),
        ({"model.name": "custom"}, "model.name"),
        ({"model.name": "os.system"}, "model.name"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"flower.quorum": 4}, "flower.quorum"),
        ({"flower.quorum": -1}, "flower.quorum"),
        ({"flower.deadline": 0}, "flower.deadline"),
        ({"flower.dead-line": 1}, "flower.dead_line"),
        ({"flower.bind": "a b"}, "flower.bind"),
        ({"training": 3}, "training"),
        ({"engine": 3, "engine.dtype": ""}, "engine"),
        ({"flower": 3}, "flower"),
        ({"split.kind": "natural", "split.skew": "", "split.workers": ""}, "split.workers"),
        ({**PRIVATE, "flower.shape": ""}, "flower.shape"),
        ({**PRIVATE, "flower.shape": "3,-1"}, "flower.shape"),
        ({**PRIVATE, "flower.shape": "3,0"}, "flower.shape"),
        ({**PRIVATE, "flower.evaluate": "server"}, "flower.evaluate"),
        ({**PRIVATE, "data.standardise": True}, "data.standardise"),
        ({**PRIVATE, "split.kind": "sizes"}, "split.kind"),
    ],
)
def test_a_wrong_configuration_is_a_sentence(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(FednagError) as raised:
        read_run_config(config_of(Path("x")) | changes)
    assert (raised.value.source, raised.value.field) == ("run config", field)


def test_one_key_changes_the_method_and_numbers_of_others_may_stay() -> None:
    config = config_of(Path("x"), algorithm__momentum=0.5, algorithm__mu=0.3)
    off = {"weight_decay": 0.0, "clip": 0.0}
    first = read_run_config(config).experiment.algorithm
    assert first == {"name": "fednag", "lr": 0.05, "momentum": 0.5, **off}
    changed = read_run_config(config | {"algorithm.name": "fedprox"})
    assert changed.experiment.algorithm == {
        "name": "fedprox",
        "lr": 0.05,
        "mu": 0.3,
        **off,
    }


def test_both_sides_agree_on_what_matters_and_only_that() -> None:
    base = config_of(Path("x"))
    digest = read_run_config(base).digest
    for idle in ({"flower.out": "y"}, {"flower.deadline": 7}, {"flower.resume": True},
                 {"ledger.kind": "none"}):  # fmt: skip
        assert read_run_config(base | idle).digest == digest, idle
    for change in (
        {"training.tau": 4},
        {"seed": 4},
        {"rounds": 5},
        {"algorithm.lr": 0.051},
        {"split.skew": 0.6},
        {"model.name": "mlp"},
    ):
        assert read_run_config(base | change).digest != digest, change


def test_what_is_written_is_what_was_meant(tmp_path: Path) -> None:
    """As Flower reads it: valid, and the same experiment; every field there is to be overridden."""
    experiment = parse(
        {
            "name": "mine",
            "seed": 4,
            "model": {"name": "mlp", "hidden": [7, 5]},
            "split": {"kind": "sizes", "proportions": [1, 2.5], "workers": 2},
            "training": {"tau": 4, "iterations": 10},
            "stop": {"accuracy": 0.5},
            "ledger": {"kind": "none"},  # auto becomes chain
        }
    )
    write_app(tmp_path / "my app!", run_config(experiment, {"deadline": 30.0}))
    project = tmp_path / "my app!" / "pyproject.toml"
    config, warnings = load_and_validate(project)
    assert not warnings
    assert config["project"]["name"] == "my-app"
    found = flatten_dict(tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"])
    deployment = read_run_config(found)
    assert deployment.flower.deadline == 30
    same = deployment.experiment.model_dump(exclude={"engine", "checkpoint"})
    assert same == experiment.model_dump(exclude={"engine", "checkpoint"})
    for section, field in Experiment.model_fields.items():
        for key in getattr(field.annotation, "model_fields", {}):
            idle = section == "checkpoint" or key in ("chunk", "threads", "inner")
            assert idle or f"{section}.{key}" in found, f"{section}.{key}"
    assert {f"flower.{key.replace('_', '-')}" for key in Flower.model_fields} <= set(found)
    with refused(source=str(tmp_path / "my app!")):
        write_app(tmp_path / "my app!", run_config(experiment))
    assert read_run_config(flat(run_config(experiment))).digest == deployment.digest


@pytest.mark.parametrize(
    ("node", "files", "why"),
    [
        ({}, {}, "the run is about data of every silo's own"),
        ({"data-folder": "{}", "data-function": "a:b"}, {}, "not both"),
        ({"data-folder": "{}"}, {"x": np.zeros((3, 2))}, "y.npy: is missing"),
        ({"data-folder": "{}"}, {"x": np.zeros((3, 2)), "y": [0, 1]}, "3 samples but 2 targets"),
        ({"data-folder": "{}"}, {"x": np.zeros((3, 4)), "y": [0, 1, 0]}, "(4,), and the run decl"),
        ({"data-folder": "{}"}, {"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "no samples"),
        ({"data-folder": "{}"}, {"x": np.zeros((2, 2)), "y": [0.5, 1]}, "the targets are numbers"),
        ({"data-folder": "{}"}, {"x": np.zeros((2, 2)), "y": [0, 2]}, "not from 0 to 1 in row 1"),
        ({"data-folder": "{}"}, {"x": np.full((1, 2), np.nan), "y": [0]}, "not finite in row 0"),
        ({"data-folder": "{}"}, {"x": np.array([[{}, {}]]), "y": [0]}, "cannot be read"),
        ({"data-function": "os.system"}, {}, "is not written module:function"),
        ({"data-function": "no_such_module:f"}, {}, "cannot be imported"),
        ({"data-function": "json:no_such"}, {}, "cannot be imported"),
    ],
)
def test_wrong_data_is_a_sentence(
    node: dict[str, str], files: dict[str, Any], why: str, tmp_path: Path
) -> None:
    for name, values in files.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(values), allow_pickle=True)
    deployment = read_run_config(config_of(tmp_path) | PRIVATE)
    named = {key: given.format(tmp_path) for key, given in node.items()}
    with pytest.raises(FednagError) as raised:
        held_by(deployment, {"partition-id": 0, **named})
    assert why in str(raised.value)


def test_the_log_forgets_what_is_played_again(tmp_path: Path) -> None:
    log = SiloLog()
    log.open(tmp_path)
    for number in (1, 2, 3):
        log.write(number, [entry(0, "train", "ok", why=None)])
    with (tmp_path / "silos.jsonl").open("a") as file:
        file.write('{"round": 4, "si')  # a crash
    again = SiloLog()
    again.open(tmp_path)
    again.add(status="turned away")
    again.write(3, [entry(0, "train", "missed")])
    again.write(4, [entry(1, "train", "ok")])
    lines = [(line["round"], line["status"]) for line in read(tmp_path / "silos.jsonl")]
    assert lines == [(1, "ok"), (2, "ok"), (0, "turned away"), (3, "missed"), (4, "ok")]
    assert "why" not in json.loads((tmp_path / "silos.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("up --set algorithm.name=csgd", "csgd is centralised"),
        ("up --set flower.quorum=9", "flower.quorum: 9"),
        ("up --silos 0", "split.workers"),
        ("up --simulation --tls", "--simulation: it has no silos"),
        ("up --data x-{silo}", "flower.shape"),
        ("up missing.toml", "missing.toml: cannot be read"),
        ("init . nothing.toml", "nothing.toml: cannot be read"),
        ("keys k", "--host, --silo: say what to make"),
        ("keys k --silo ../x", "--silo ../x: use letters"),
    ],
)
def test_wrong_commands_are_a_sentence_and_start_nothing(
    command: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fednag", "flower", *command.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1


def test_without_flower_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fednag.cli.flower.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["fednag", "flower", "up"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "pip install 'fednag[flower]'" in capsys.readouterr().err


def test_keys_and_init_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        "keys secrets --host 10.0.0.1 --host fl.example.org --silo silo-0",
        "keys secrets --silo silo-1",
        "init app --silos 2 --set rounds=7 --set flower.quorum=2",
    ):
        monkeypatch.setattr(sys, "argv", ["fednag", "flower", *command.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 0, capsys.readouterr().err
    made = {path.name for path in (tmp_path / "secrets").iterdir()}
    assert made == {"ca.crt", "ca.key", "server.crt", "server.key"} | {
        f"silo-{k}{end}" for k in (0, 1) for end in ("", ".pub")
    }
    assert (tmp_path / "secrets").stat().st_mode & 0o77 == 0
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert config["tool"]["flwr"]["app"]["config"]["rounds"] == 7


def test_every_part_of_an_experiment_reaches_the_silos() -> None:
    """Whatever order Flower hands the keys on in."""
    experiment = parse(
        {
            "name": "parts",
            "data": {"name": "digits"},
            "split": {"workers": 3},
            "training": {"tau": 5, "iterations": 20, "participants": 2},
            "evaluation": {"metrics": ["f1"], "every": 2},
            "uplink": [
                {"kind": "clip", "norm": 0.5},
                {"kind": "error-feedback", "vectors": ["w"]},
                {"kind": "topk", "share": 0.1},
                *[{"kind": "quantise", "levels": 7, "together": True}, {"kind": "entropy"}],
            ],
            "downlink": [{"kind": "bfloat16"}],
            "aggregator": {"kind": "equal"},
            "controller": {"kind": "steps-by-worker", "steps": [5, 2]},
            "schedule": [{"kind": "cosine", "field": "algorithm.lr", "last": 0.001}],
        }
    )
    given = flat(run_config(experiment))
    assert all(isinstance(value, str | int | float | bool) for value in given.values())
    for keys in (sorted(given), sorted(given, reverse=True)):
        found = read_run_config({key: given[key] for key in keys}).experiment
        assert found.key == experiment.key
        for section in ("uplink", "downlink", "aggregator", "controller", "schedule"):
            assert getattr(found, section) == getattr(experiment, section), section
    assert parse({"name": "parts"}).key != experiment.key
