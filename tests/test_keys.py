"""Keys: what they hash, and that runs recorded under earlier ones are found and go on.

``fixtures/run-0.1.0`` was made by version 0.1.0: ``fedavg`` is finished, ``fednag`` and
``scaffold`` were killed after round 3 of 8. With two of eight workers a round, some have no memory
yet.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import create_model
from safetensors.torch import load_file

import fednag
from commands import Caller
from fednag.algorithms import ALGORITHMS
from fednag.api import resume_all, run_all
from fednag.config import Experiment, Training, override, parse, read
from fednag.config.keys import FORMAT, Key, keys_of
from fednag.config.sections import Tier
from fednag.errors import FednagError
from fednag.paper import records as kept
from fednag.paper.figure import read_figures
from fednag.paper.jobs import found, gather, settled, waiting
from fednag.paper.page import records_of
from fednag.runs import execute
from fednag.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).parent / "fixtures" / "run-0.1.0"
FOLDERS = {path.name.split("-")[0]: path.name for path in (RECORDED / "old").iterdir()}
INTERRUPTED = ("fednag", "scaffold")

# Every field: its default in format 2, and another value. A default that is changed here is changed
# for every key ever written: raise FORMAT instead, and see fednag/config/keys.py.
FIELDS: dict[str, tuple[Any, Any]] = {
    "name": ("run", "other"),
    "seed": (0, 1),
    "data.name": ("digits", "mnist"),
    "data.path": (None, "a.csv"),
    "data.target": (None, "y"),
    "data.owner": (None, "who"),
    "data.test_path": (None, "b.csv"),
    "data.test_share": (None, 0.3),
    "data.task": (None, "regression"),
    "data.validation": (None, 0.2),
    "data.standardise": (False, True),
    "data.alpha": (None, 0.5),
    "data.beta": (None, 0.5),
    "data.workers": (None, 3),
    "split.kind": ("iid", "sizes"),
    "split.workers": (None, 3),
    "split.classes": (None, 2),
    "split.assign": (None, "random"),
    "split.alpha": (None, 0.5),
    "split.skew": (None, 0.5),
    "split.proportions": (None, (1.0, 2.0)),
    "split.samples": (None, 8),
    "model.name": ("cnn", "mlp"),
    "model.hidden": (None, (5,)),
    "model.batch_norm": ("averaged", "frozen"),
    "training.tau": (20, 21),
    "training.iterations": (1000, 999),
    "training.batch": (64, 0),
    "training.participants": (None, 2),
    "training.fraction": (None, 0.5),
    "training.without": (None, (3,)),
    "evaluation.every": (1, 2),
    "evaluation.samples": (0, 9),
    "evaluation.per_worker": (False, True),
    "evaluation.metrics": (None, ("f1",)),
    "evaluation.own": (None, {"mine": "lower"}),
    "stop.accuracy": (None, 0.9),
    "stop.loss": (None, 0.0),
    "stop.metrics": (None, {"f1": 0.9}),
    "stop.seconds": (None, 60.0),
    "stop.bytes": (None, 10**6),
    "stop.patience": (None, 3),
    "stop.plateau": (None, 0.01),
    "stop.window": (None, 3),
    "stop.watch": (None, "loss"),
    "stop.min_change": (None, 0.0),
    "engine.device": ("auto", "cpu"),
    "engine.dtype": ("float32", "float64"),
    "engine.chunk": (0, 2),
    "engine.threads": (0, 2),
    "engine.inner": (1, 2),
    "engine.recorded": (True, False),
    "engine.memory": (None, "disk"),
    "checkpoint.rounds": (0, 1),
    "checkpoint.seconds": (30.0, 1.0),
    "checkpoint.keep": (False, True),
    "clock.fleet": (None, "phones"),
    "clock.deadline": (None, 2.0),
    "clock.digest": (None, "abc"),
    "privacy.delta": (None, 1e-5),
    "privacy.epsilon": (None, 8.0),
    "privacy.unit": ("worker", "sample"),
    "privacy.norm": (None, 1.0),
    "privacy.noise_multiplier": (None, 1.0),
    "ledger.kind": ("auto", "chain"),
    "ledger.anchor": (None, "mine.py:publish"),
    "model.loss": (None, "mse"),
    "uplink": ((), ({"kind": "float16"},)),
    "downlink": ((), ({"kind": "float16"},)),
    "aggregator.kind": ("mean", "equal"),
    "controller.kind": ("constant", "steps-by-worker"),
    "schedule": ((), ({"kind": "cosine", "field": "algorithm.lr"},)),
    "attack": ((), ({"kind": "sign-flip"},)),
    "tier": ((), (Tier(),)),
    "own": (None, {"mine.py": "f" * 64}),
}
OPTIONS = {"weight_decay": 0.0, "clip": 0.0}  # of methods with local SGD
WITHOUT = ("mimelite", "mime", "diana", "ef21", "marina", "acgd", "adiana")
METHODS: dict[str, dict[str, float]] = {
    "fednag": {"lr": 0.01, "momentum": 0.9},
    "fedavg": {"lr": 0.01},
    "fedmom": {"lr": 0.01, "momentum": 0.9},
    "slowmo": {"lr": 0.01, "momentum": 0.9, "slow_lr": 1.0},
    "mimelite": {"lr": 0.01, "momentum": 0.9},
    "mime": {"lr": 0.01, "momentum": 0.9},
    "fedprox": {"lr": 0.01, "mu": 0.01},
    "scaffold": {"lr": 0.01, "server_lr": 1.0},
    "fedavgm": {"lr": 0.01, "momentum": 0.9, "server_lr": 1.0},
    "fedadam": {
        **{"lr": 0.01, "momentum": 0.9, "second": 0.99},
        **{"server_lr": 0.01, "adaptivity": 0.001},
    },
    "fednag-local": {"lr": 0.01, "momentum": 0.9},
    "fednag-rebuilt": {"lr": 0.01, "momentum": 0.9},
    "fedpaq": {"lr": 0.01, "levels": 7, "bucket": 0},
    "diana": {"lr": 0.01, "alpha": 0.5},
    "ef21": {"lr": 0.01},
    "marina": {"lr": 0.01, "p": 0.1},
    "acgd": {"lr": 0.01, "mu": 0.01, "omega": 0.0},
    "adiana": {"lr": 0.01, "mu": 0.01, "omega": 0.0, "p": 0.5, "coin_seed": 0},
    "nbafl": {
        **{"lr": 0.01, "mu": 0.01, "norm": 1.0, "epsilon": 50.0, "delta": 0.01},
        **{"exposures": 25, "rounds": 25, "workers": 50, "samples": 512},
    },
    "csgd": {"lr": 0.01},
    "cnag": {"lr": 0.01, "momentum": 0.9},
    "mfl": {"lr": 0.01, "momentum": 0.9},
    "hiermo": {"lr": 0.01, "momentum": 0.9, "edge_momentum": 0.5},
    "fedcm": {"lr": 0.01, "momentum": 0.9, "server_lr": 1.0},
    "fedadc": {"lr": 0.01, "momentum": 0.9, "local_momentum": 0.9, "server_lr": 1.0},
    "domo": {
        **{"lr": 0.01, "momentum": 0.9, "local_momentum": 0.9},
        **{"fusion": 0.5, "server_lr": 1.0},
    },
    "ghbm": {"lr": 0.01, "momentum": 0.9, "window": 5},
    "local-ghbm": {"lr": 0.01, "momentum": 0.9, "participation": 1.0},
    "fedhbm": {"lr": 0.01, "momentum": 1.0, "participation": 1.0},
    "scaffold-m": {"lr": 0.01, "server_lr": 1.0, "momentum": 0.9},
    "fedacg": {"lr": 0.01, "momentum": 0.85, "mu": 0.01},
    "stem": {"lr": 0.01, "momentum": 0.9},
    "fedglomo": {"lr": 0.01, "momentum": 0.9},
    "fedyogi": {
        **{"lr": 0.01, "momentum": 0.9, "second": 0.99},
        **{"server_lr": 0.01, "adaptivity": 0.001},
    },
    "fedadagrad": {"lr": 0.01, "momentum": 0.0, "server_lr": 0.01, "adaptivity": 0.001},
    "diloco": {
        **{"lr": 0.001, "momentum": 0.9, "server_lr": 0.7, "first": 0.9, "second": 0.999},
        **{"epsilon": 1e-8, "weight_decay": 0.1},
    },
    "fedlion": {"lr": 0.001, "momentum": 0.9, "decay": 0.99},
    "fednova": {"lr": 0.01, "momentum": 0.0},
    "fedexp": {"lr": 0.01, "epsilon": 0.001},
    "feddyn": {"lr": 0.01, "alpha": 0.1},
}
METHODS = {
    name: numbers if name in WITHOUT else {**OPTIONS, **numbers}
    for name, numbers in METHODS.items()
}
NO_NUMBERS = {
    *("name", "engine.threads", "engine.memory", "checkpoint.rounds", "checkpoint.seconds"),
    "checkpoint.keep",
    *("ledger.kind", "ledger.anchor"),
}
AFTER_FIRST = {
    *("data.task", "data.validation", "split.samples", "engine.inner"),
    *("model.batch_norm", "engine.recorded", "evaluation.metrics", "evaluation.own"),
    *("stop.metrics", "stop.patience", "stop.watch", "stop.min_change"),
    *("stop.bytes", "stop.plateau", "stop.window"),
    *("model.loss", "uplink", "downlink", "aggregator.kind", "controller.kind", "schedule"),
    *("attack", "own", "tier", "training.without"),
    *("privacy.delta", "privacy.epsilon", "privacy.unit", "privacy.norm"),
    "privacy.noise_multiplier",
}
# Keys that version 0.1.0 gave to its methods at their defaults.
FIRST = {
    "fednag": "18af5de6",
    "fedavg": "685429c7",
    "fedmom": "ae13787e",
    "slowmo": "761f2eb4",
    "mimelite": "862daa80",
    "mime": "16470b34",
    "fedprox": "aafdb310",
    "scaffold": "4063e60e",
    "fedavgm": "41b48165",
    "fedadam": "7c08cab0",
    "csgd": "5e8055dc",
    "cnag": "95118631",
}


def changed(experiment: Experiment, field: str, value: Any) -> Experiment:
    """With another value, whether or not the two make sense together."""
    section, dot, option = field.partition(".")
    if dot:
        table = getattr(experiment, section)
        own = isinstance(table, dict)
        value = {option: value} if own else table.model_copy(update={option: value})
    return experiment.model_copy(update={section: value})


def hashed(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def test_the_defaults_of_this_format_are_what_they_were() -> None:
    assert FORMAT == 2
    dumped = Experiment().model_dump()
    assert dumped.pop("algorithm") == {"name": "fednag"}
    flat = {
        f"{section}.{option}" if isinstance(table, dict) else section: value
        for section, table in dumped.items()
        for option, value in (table.items() if isinstance(table, dict) else [("", table)])
    }
    assert flat == {field: default for field, (default, _) in FIELDS.items()}
    numbers = {n: {f.name: f.default for f in fields(m)} for n, m in ALGORITHMS.items()}  # type: ignore[arg-type]
    assert numbers == METHODS


@pytest.mark.parametrize("field", FIELDS)
def test_what_decides_the_numbers_changes_the_key(field: str) -> None:
    # Without a fleet the clock decides nothing.
    base = changed(parse({}), "clock.fleet", "routers") if "clock" in field else parse({})
    before, *first = base.all_keys
    after, *_ = changed(base, field, FIELDS[field][1]).all_keys
    same = field in NO_NUMBERS | {"clock.fleet"}
    assert (after.exact == before.exact) == same
    assert (after.short == before.short) == (same or field in ("engine.chunk", "engine.inner"))
    assert len(first) == 1


def test_no_two_changes_have_one_key() -> None:
    fleet = changed(parse({}), "clock.fleet", "routers")
    all_of_them = [changed(fleet, field, other) for field, (_, other) in FIELDS.items()]
    exact = {one.exact_key for one in all_of_them}
    assert len(exact) == len(FIELDS) - len(NO_NUMBERS | {"clock.fleet"}) + 1


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_a_method_changes_the_key(name: str) -> None:
    base = parse({"algorithm": {"name": name}})
    other = {n: 3 if isinstance(usual, int) else 0.125 for n, usual in METHODS[name].items()}
    keys = {parse({"algorithm": {"name": name, n: value}}).key for n, value in other.items()}
    assert len(keys | {base.key, parse({"algorithm": {"name": "fedavg", "lr": 0.5}}).key}) == (
        len(METHODS[name]) + 2
    )
    written_out = {"algorithm": {"name": name, **METHODS[name]}}
    assert parse(written_out).all_keys == base.all_keys


def test_what_is_hashed() -> None:
    """Written out by hand: the method's name, and what is not as usual."""
    assert parse({}).exact_key == hashed('{"algorithm": {"name": "fednag"}, "format": 2}')
    own = {"seed": 3, "training": {"tau": 5, "batch": 64}, "algorithm": {"name": "mime", "lr": 1}}
    text = (
        '{"algorithm": {"lr": 1.0, "name": "mime"}, %s"format": 2, "seed": 3, '
        '"training": {"tau": 5}}'
    )
    alone, chunked = parse(own), parse({**own, "engine": {"chunk": 2, "threads": 7}})
    assert alone.all_keys[0] == Key(hashed(text % "")[:8], hashed(text % ""))
    exact = hashed(text % '"engine": {"chunk": 2}, ')
    assert chunked.all_keys[0] == Key(alone.key, exact)


def test_all_numbers_of_an_own_method_are_hashed() -> None:
    mine = changed(parse({}), "algorithm", {"name": "Mine", "lr": 0.01, "depth": 2})
    content = '{"algorithm": {"depth": 2, "lr": 0.01, "name": "Mine"}, "format": 2}'
    assert mine.exact_key == hashed(content)
    assert len(mine.all_keys) == 2
    # One derived from a method with local SGD has got weight decay and clipping since then.
    derived = changed(mine, "algorithm", {**mine.algorithm, **OPTIONS})
    assert derived.all_keys == mine.all_keys
    assert changed(derived, "algorithm", {**derived.algorithm, "clip": 1.0}).key != mine.key


@pytest.mark.parametrize("raw", [{}, {"seed": 2, "training": {"tau": 5}, "engine": {"chunk": 2}}])
def test_a_new_field_with_a_default_changes_no_key(raw: dict[str, Any]) -> None:
    longer = create_model("Training", __base__=Training, warmup=(int, 0))
    section = create_model("Section", __base__=Training)
    wider = create_model(
        "Experiment",
        __base__=Experiment,
        training=(longer, longer()),
        later=(section, section()),
        note=(str, ""),
    )
    old = parse(raw)
    new = wider.model_validate(old.model_dump())
    assert keys_of(new) == keys_of(old)
    table = {**raw.get("training", {}), "warmup": 1}
    for set_there in ({"training": table}, {"later": {"tau": 1}}, {"note": "x"}):
        set_now = wider.model_validate(raw | set_there)
        assert set_now.key != old.key
        assert len(set_now.all_keys) == 1, "version 0.1.0 had no such field"


def test_a_new_number_or_method_with_defaults_changes_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = parse({"algorithm": {"name": "fedavg", "lr": 0.5}}).all_keys
    for name in ("fedavg", "newer"):
        wider = make_dataclass(
            name, [("decay", float, 0.0)], bases=(ALGORITHMS["fedavg"],), frozen=True
        )
        monkeypatch.setitem(ALGORITHMS, name, wider)
    assert parse({"algorithm": {"name": "fedavg", "lr": 0.5}}).algorithm["decay"] == 0
    assert parse({"algorithm": {"name": "fedavg", "lr": 0.5}}).all_keys == before
    assert len(parse({"algorithm": {"name": "fedavg", "decay": 0.5}}).all_keys) == 1
    assert len(parse({"algorithm": {"name": "newer"}}).all_keys) == 1


@pytest.mark.parametrize("name", FIRST)
def test_keys_of_version_0_1_0(name: str) -> None:
    assert parse({"algorithm": {"name": name}}).all_keys[1].short == FIRST[name]


def test_keys_of_version_0_1_0_where_much_is_set() -> None:
    full = {
        "seed": 3,
        "data": {"name": "file", "path": "/a.csv", "test_share": 0.2},
        "split": {"kind": "sizes", "proportions": [1, 2]},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"fraction": 0.5},
        "engine": {"chunk": 4, "threads": 3, "dtype": "float64"},
        "clock": {"fleet": "x", "deadline": 2.0},
    }
    exact = "f09b520b1285d8a00f19f59febefcac6e07f7c573f13c20a56c607e8caec583c"
    assert parse(full).all_keys[1] == Key("f9357ce8", exact)
    assert parse({"training": {"tau": 5}}).all_keys[1].short == "34e8096c"


@pytest.mark.parametrize("field", FIELDS)
def test_what_version_0_1_0_did_not_have_gives_no_key_of_its(field: str) -> None:
    keys = changed(parse({}), field, FIELDS[field][1]).all_keys
    assert len(keys) == (1 if field in AFTER_FIRST else 2)


@pytest.mark.parametrize("method", FOLDERS)
def test_recorded_runs_have_the_keys_of_their_configuration(method: str) -> None:
    folder = RunFolder(RECORDED / "old" / FOLDERS[method])
    info = folder.info()
    now, first = parse(read(folder.config_file)).all_keys
    assert first == Key(info["key"], info["exact_key"])
    assert folder.path.name == f"{method}-{first.short}"
    assert now.short != first.short


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    return shutil.copytree(RECORDED, tmp_path / "runs")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capsys)


def run_folder(out: Path, method: str) -> RunFolder:
    return RunFolder(out / "old" / FOLDERS[method])


def untimed(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(record.as_json()) | {"seconds": 0} for record in folder.records()]


def agree(folder: RunFolder, recorded: RunFolder) -> None:
    """The run is what today's code makes of its configuration without a pause, up to rounding."""
    experiment = parse(read(recorded.config_file))
    (whole,) = run_all([(experiment.label, experiment, None)])
    for name, module in (("best", whole.best), ("final", whole.final)):
        weights = load_file(folder.path / f"{name}.safetensors")
        for part, value in module.state_dict().items():
            torch.testing.assert_close(weights[part], value, rtol=0, atol=1e-6)
    got = folder.records()
    assert [record.round for record in got] == list(range(9))
    assert [r.loss for r in got] == pytest.approx([r.loss for r in whole.records], abs=1e-6)
    assert [r.bytes_up for r in got] == [r.bytes_up for r in whole.records]


def test_recorded_runs_are_read(out: Path, call: Caller) -> None:
    assert len(run_folder(out, "fednag").records()) == 4
    assert len(run_folder(out, "fedavg").records()) == 9
    shown = call("show", str(out), "--json")
    assert shown.code == 0
    ended = {row["label"]: row["ended"] for row in shown.document["rows"]}
    assert ended == {"fedavg": "finished", "fednag": "interrupted", "scaffold": "interrupted"}
    page = out / "page.html"
    assert call("report", str(out), "--out", str(page)).code == 0
    assert all(method in page.read_text() for method in FOLDERS)


def test_a_finished_recorded_run_is_what_today_gives(out: Path) -> None:
    (done,) = resume_all([run_folder(out, "fedavg")])
    assert done.ended == "finished"
    agree(run_folder(out, "fedavg"), run_folder(RECORDED, "fedavg"))


@pytest.mark.parametrize("method", INTERRUPTED)
def test_a_recorded_run_is_resumed(method: str, out: Path, call: Caller) -> None:
    folder, recorded = run_folder(out, method), run_folder(RECORDED, method)
    done = call("resume", str(folder.path), "--quiet")
    assert done.code == 0, done.err
    assert "went on from round 3 of 8" in done.out + done.err
    info, before = folder.info(), recorded.info()
    assert info["status"] == "finished"
    # It is still called what it was, so that whoever wrote its name down finds it.
    for name in ("key", "exact_key", "identity", "started"):
        assert info[name] == before[name]
    assert untimed(folder)[:4] == untimed(recorded)
    agree(folder, recorded)


@pytest.mark.parametrize("method", INTERRUPTED)
def test_a_recorded_run_is_found_and_goes_on(method: str, out: Path, call: Caller) -> None:
    """By its experiment, without what a timer chooses, as one would write it."""
    file = Path("experiment.toml")
    raw = read(run_folder(RECORDED, method).config_file)
    del raw["engine"]
    file.write_text(parse(raw).toml())
    options = ("--out", str(out), "--resume", "--set", "engine.device=cpu", "--quiet")
    assert call("run", str(file), *options).code == 0
    assert {path.name for path in (out / "old").iterdir() if path.is_dir()} == set(FOLDERS.values())
    agree(run_folder(out, method), run_folder(RECORDED, method))


def test_a_recorded_run_that_is_over_is_read_and_not_run_again(out: Path) -> None:
    folder = run_folder(out, "fedavg")
    experiment = parse(read(folder.config_file))
    before = folder.info_file.read_bytes(), folder.records_file.read_bytes()
    (done,) = run_all([("fedavg", experiment, None)], out=out, resume=True)
    assert done.folder == folder.path
    assert (folder.info_file.read_bytes(), folder.records_file.read_bytes()) == before


def test_a_run_begun_today_comes_before_a_recorded_one(out: Path) -> None:
    experiment = parse(read(run_folder(out, "fedavg").config_file))
    (fresh,) = run_all([("fedavg", experiment, None)], out=out)
    assert fresh.folder is not None
    assert fresh.folder.name == f"fedavg-{experiment.key}"
    (again,) = run_all([("fedavg", experiment, None)], out=out, resume=True)
    assert again.folder == fresh.folder


class Killed(BaseException):
    """What ends a process, for a process that has to go on."""


def until(rounds: int) -> Callable[..., Iterator[Any]]:
    simulate = execute.simulate

    def simulated(*given: Any) -> Iterator[Any]:
        for state in simulate(*given):
            yield state
            if state.round >= rounds:
                raise Killed

    return simulated


@pytest.mark.parametrize("method", INTERRUPTED)
def test_a_recorded_run_is_interrupted_again(
    method: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its checkpoints are of then and of now."""
    folder = run_folder(out, method)
    for rounds in (4, 6):
        with monkeypatch.context() as patched:
            patched.setattr(execute, "simulate", until(rounds))
            with pytest.raises(Killed):
                resume_all([folder])
    (done,) = resume_all([folder])
    assert any("went on from round 6 of 8" in note for note in done.notes)
    agree(folder, run_folder(RECORDED, method))


@pytest.mark.parametrize("other", [{"model.batch_norm": "frozen"}, {"training.tau": 4}])
def test_a_recorded_run_with_another_configuration_is_refused(
    other: dict[str, Any], out: Path
) -> None:
    folder = run_folder(out, "fednag")
    experiment = parse(override(read(folder.config_file), other))
    folder.config_file.write_text(experiment.toml())
    with pytest.raises(FednagError, match="it is not what the run began with"):
        resume_all([folder])


def test_a_whole_number_from_python_is_the_number_in_the_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "logistic", "workers": 2, "tau": 1, "iterations": 2}
    done = fednag.run(fednag.FedNAG(lr=1, momentum=0), out=tmp_path, **options)
    assert done.folder is not None
    (again,) = resume_all([RunFolder(done.folder)])
    assert again.about["key"] == done.about["key"]


def test_committed_records_are_those_of_their_figures() -> None:
    figures = read_figures()
    place = ROOT / "docs" / "paper"
    committed = sorted(path.stem for path in (place / "records" / "laptop").glob("*.json"))
    assert len(committed) > 20
    for name in committed:
        records = records_of(figures[name], "laptop", place)
        assert records.stale == 0, name
        assert records.done > 0, name


def test_committed_records_serve_in_place_of_runs(tmp_path: Path) -> None:
    """They are known by the keys of then, and from now on by those of today."""
    figure = read_figures()["gamma"]
    before = kept.known(ROOT / "docs" / "paper", "laptop")
    assert waiting([figure], "laptop", tmp_path, before) == []
    gathered = gather(figure, "laptop", tmp_path, before)
    committed = kept.load(ROOT / "docs" / "paper", "laptop", "gamma")
    assert committed is not None
    assert gathered.runs == committed.runs > 0
    kept.write(tmp_path, gathered)
    assert records_of(figure, "laptop", tmp_path).stale == 0
    today = {
        (j.series, j.experiment.seed): settled(j.experiment).key for j in figure.jobs("laptop")
    }
    for label, runs in gathered.series.items():
        for run, old in zip(runs, committed.series[label], strict=True):
            assert run.loss == old.loss
            assert run.key == today[label, run.seed] != old.key


def test_the_paper_finds_recorded_runs(out: Path) -> None:
    folder = run_folder(out, "fedavg")
    experiment = parse(read(folder.config_file))
    assert found(out, experiment) == folder
    assert found(out, parse(read(run_folder(out, "fednag").config_file))) is None  # not over
    assert found(out, changed(experiment, "model.batch_norm", "frozen")) is None
