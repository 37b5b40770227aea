"""``--json``: one strict document on standard output, of every command, on real runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from commands import LEAVES, Caller, Result
from fednag.cli.common import json_text
from fednag.paper import folder

TINY = """
name = "tiny"
[model]
name = "linear"
[training]
tau = 2
iterations = 4
[engine]
chunk = 1
threads = 1
"""
GIVEN = ("--beta", "1", "--rho", "1", "--delta", "0.1", "--p", "0.5", "--omega", "1")
PLAN = ("tiny.toml", "--fleet", "lan", "--target", "0.1", "--taus", "2", "--replays", "2")
RANKED = {"rows", "differences", "runs", "files", "notes", "failed"}
JUDGED = {"scale", "counts", "answers", "notes", "verdicts"}
TIMED = {"fleet", "target", "replays", "notes", "files"}
BOUNDS = {"setting", "notes"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and two seeds on the digits, trained once."""
    import fednag

    out = tmp_path_factory.mktemp("made")
    known: dict[str, Any] = {"model": "linear", "tau": 2, "iterations": 4, "name": "d"}
    known["engine"] = {"chunk": 1, "threads": 1}
    fednag.compare(["fednag", "fedavg"], out=out, seeds=[0, 1], **known)
    chain = {"ledger": {"kind": "chain"}, "evaluation": {"every": 9}}
    fednag.run("fednag", out=out.with_name("kept"), **known, **chain)
    return out


@pytest.fixture
def fednag(
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Caller:
    """A folder with an experiment file, runs in ``made``, and one figure of the paper."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    Path("4G.csv").write_text("network_type,bandwidth_Mbps\n4G,138.3\n")
    Path("made").symlink_to(made)
    Path("kept").symlink_to(made.with_name("kept"))
    Path("figures").mkdir()
    shutil.copy(folder() / "gamma-one.toml", "figures")
    # A chart takes a second and has nothing to do with what is asked here.
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [Path(f"{stem}.png")])
    monkeypatch.setattr("fednag.show.charts.squeeze", lambda path: None)
    return Caller(monkeypatch, capsys)


# Every command: what it is called with, and the keys of what it prints (of each row, for a list).
Case = tuple[Sequence[str], set[str]]
CASES: dict[str, Case] = {
    "compare": (("tiny.toml", "--algorithms", "fednag,fedavg"), RANKED),
    "run": (("tiny.toml",), RANKED),
    "sweep": (("tiny.toml", "--grid", "training.tau=1,2"), RANKED),
    "frontier": (
        ("tiny.toml", "--target", "0.1", "--algorithms", "fednag", "--uplinks", "none,sign"),
        {"target", "fleet", "advice", "rows", "runs", "notes", "files"},
    ),
    "tune": (
        ("tiny.toml", "--methods", "fednag,fedavg", "--budget", "3"),
        {"measure", "space", "rungs", "sentences", "left_out", "methods", "runs", "notes", "files"},
    ),
    "resume": (("made",), RANKED),
    "watch": (("made",), {"runs", "failed"}),
    "show": (("made", "--target", "0.2"), {"rows", "differences", "target", "notes", "failed"}),
    "report": (("made",), {"rows", "sentence", "files", "notes", "failed"}),
    "algorithms": ((), {"name", "meaning", "down", "up", "stages", "numbers"}),
    "parts": ((), {"sections", "name", "meaning", "numbers", "required"}),
    "flower init": (("app", "--silos", "2"), {"folder", "files"}),
    "flower up": (("--silos", "2", "--set", "rounds=2"), RANKED - {"failed", "differences"}),
    "flower keys": (("secrets", "--host", "localhost", "--silo", "silo-0"), {"files"}),
    "flower digest": (("tiny.toml",), {"app", "digest"}),
    "flower silo": (("--agreed", "a" * 64), {"agreed", "any"}),
    "flower gateway": (("gate", "--host", "localhost"), {"files", "checked", "paths"}),
    "flower doctor": ((), {"findings", "wrong"}),
    "flower link": ((), {"options"}),
    "flower status": (("made",), {"runs", "failed"}),
    "flower units": (
        ("units", "--role", "server"),
        {"files", "checked", "exposure", "steps"},
    ),
    "data list": ((), {"folder", "data"}),
    "data get": (("mnist",), {"name", "folder"}),
    "data check": (("mnist",), {"mnist/train.gz"}),
    "data split": (("digits", "--workers", "3"), {"held", "classes", "notes", "files"}),
    "time replay": (
        ("made", "--fleet", "lan", "--replays", "2", "--loss", "5", "--out", "o"),
        {*TIMED, "methods", "saved", "parts", "timelines", "failed"},
    ),
    "time fleets": ((), {"name", "devices", "comes_and_goes", "synthetic", "about"}),
    "time record": (
        ("tiny.toml", "--iterations", "3", "--transfers", "2"),
        {"device", "reference", "rows", "notes", "files"},
    ),
    "time listen": (("--port", "0"), {"host", "port"}),
    "time get": ((), {"name", "kind", "licence", "files", "about", "page"}),
    "time convert": (
        ("mobile-bandwidth", "4G.csv", "--out", "c"),
        {"kind", "fleet", "notes", "files"},
    ),
    "time plan": (PLAN, {*TIMED, "advice", "best", "surety", "points"}),
    "theory check": (
        ("tiny.toml",),
        {"constants", "minimum", "verdicts", "experiment", "notes", "files"},
    ),
    "theory compare": (
        (*GIVEN, "--tau", "5"),
        {*BOUNDS, "fednag_below_fedavg", "theorem4", "eta_bar", "files"},
    ),
    "theory plan": ((*GIVEN, "--gap", "0.2"), {*BOUNDS, "largest_eta", "rows"}),
    "paper list": ((), {"figure", "title", "paper", "series", "seeds", "checks"}),
    "paper run": (
        ("gamma-one", "--experiments", "figures"),
        {*JUDGED, "runs", "made", "files"},
    ),
    "paper all": (("--experiments", "figures"), {*JUDGED, "runs", "made", "files"}),
    "paper verdict": (
        ("--out", str(Path(__file__).parents[1] / "docs/paper")),
        {"scales", "files"},
    ),
    "ledger verify": (("kept",), {"run", "entries", "head", "signed", "over", "fault", "at"}),
    "ledger audit": (("kept",), {"rounds", "digests", "difference", "notes"}),
    "ledger show": (("kept", "--round", "2"), {"run", "entries"}),
    "ledger key": (("silo.key",), {"files", "public"}),
    "decide": (
        ("tiny.toml", "--algorithms", "fednag,fedavg", "--most-seeds", "2", "--out", "decided"),
        {"measure", "margin", "confidence", "decided", "sentences", "pairs", "runs", "files"},
    ),
    "what-if": (
        ("kept", "--without", "worker:1", "--out", "changed"),
        {"run", "what_if", "key", "changes", "rows", "notes", "files"},
    ),
    "privacy plan": (
        ("--epsilon", "8", "--delta", "1e-5", "--workers", "9", "--rounds", "4"),
        {"noise_multiplier", "epsilon", "exactly", "delta", "unit", "local", "times"}
        | {"mechanism", "budget", "relation", "settings"},
    ),
    "privacy spent": (("made",), {"rows", "failed"}),
    "export file": (("made", "--out", "runs.csv"), {"format", "files", "failed"}),
    "export tensorboard": (("made",), {"folders", "failed"}),
    "export mlflow": (("made",), {"runs", "failed"}),
}
NEEDS = {
    "flower init": "flwr",
    "flower up": "flwr",
    "flower keys": "flwr",
    "flower digest": "flwr",
    "flower silo": "flwr",
    "flower gateway": "cryptography",
    "flower doctor": "flwr",
    "flower link": "flwr",
    "flower units": "flwr",
    "ledger key": "cryptography",
    "privacy plan": "dp_accounting",
    "export tensorboard": "tensorboard",
    "export mlflow": "mlflow",
}


def test_every_command_is_tried_here() -> None:
    assert set(CASES) == set(LEAVES) == set(WRONG)


def stand_in(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs a network, another machine or many processes."""
    monkeypatch.setattr("fednag.data.download.get", lambda name, progress: Path("d") / name)
    if path == "data check":
        monkeypatch.setattr(
            "fednag.data.download.check", lambda name: [(Path("mnist/train.gz"), "ok")]
        )
    if path == "time listen":  # others need it to answer
        monkeypatch.setattr("fednag.devices.transfers.Listener.serve", lambda self, once: None)
    if path == "flower up":
        monkeypatch.setattr("fednag.flower.local.federation", in_process)
    if path == "flower gateway":
        from fednag.flower.certificates import make_authority, make_server

        Path("secrets").mkdir()
        make_authority(Path("secrets"))
        make_server(Path("secrets"), ["localhost"])
    if path == "flower silo":  # it goes on until it is stopped
        monkeypatch.setattr("fednag.flower.agreed.run_supernode", lambda *given: None)
    if path == "flower link":
        monkeypatch.setattr("fednag.flower.superlink.run_superlink", lambda *given: None)


@contextmanager
def in_process(silos: int, *_: object) -> Iterator[Any]:
    """The real server and silos, without processes of their own."""
    from fednag.flower.project import flat
    from flower_kit import grid_of, play

    class Running:
        def submit(self, tables: Mapping[str, Any], tell: Callable[[str], None]) -> Path:
            config = flat(tables)
            said: list[str] = []
            run = play(config, grid_of(config, range(silos)), said)
            for line in said:
                tell(line)
            assert run.folder
            return run.folder

    yield Running()


def called(path: str, fednag: Caller, *more: str) -> Result:
    if path in NEEDS and find_spec(NEEDS[path]) is None:
        pytest.skip(f"{NEEDS[path]} is not installed")
    stand_in(path, fednag.monkeypatch)
    return fednag(*path.split(), *CASES[path][0], *more)


@pytest.mark.parametrize("path", CASES)
def test_standard_output_is_one_document(path: str, fednag: Caller) -> None:
    result = called(path, fednag, "--json")
    assert result.code == 0, result.err
    document = result.document
    rows = document if isinstance(document, list) else [document]
    assert rows
    for row in rows:
        assert set(row) == CASES[path][1]
    assert not list(texts_of_numbers(document))
    assert "\x1b" not in result.out + result.err


def test_parts_are_listed_as_they_can_be_given(fednag: Caller) -> None:
    from fednag.config.own import build_part
    from fednag.config.parts import REGISTRIES

    rows = fednag("parts", "--json").document
    listed = {(section, row["name"]) for row in rows for section in row["sections"]}
    assert listed == {(s, name) for s, (registry, _) in REGISTRIES.items() for name in registry}
    required = {row["name"]: row["required"] for row in rows}
    assert required["cosine"] == ["field"]
    for row in rows:
        registry, base = REGISTRIES[row["sections"][0]]
        if not row["required"]:
            table = {"kind": row["name"], **row["numbers"]}
            assert build_part(table, registry, base, "part") == registry[row["name"]]()


def texts_of_numbers(value: Any) -> Iterator[str]:
    """Numbers are numbers, not texts; but what the paper says is quoted as it stands there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "paper":
                yield from texts_of_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of_numbers(inner)
    elif isinstance(value, str):
        try:
            float(value.rstrip("%"))
        except ValueError:
            return
        yield value


@pytest.mark.parametrize("path", ["run", "time plan", "paper run", "flower up"])
def test_progress_goes_beside_the_document(path: str, fednag: Caller) -> None:
    result = called(path, fednag, "--json")
    assert result.document
    assert re.search(r"round \d", result.err)
    quiet = called(path, fednag, "--json", "--quiet", "--out", "elsewhere")
    assert quiet.document
    assert not re.search(r"round \d", quiet.err)
    spoken = called(path, fednag, "--out", "again")
    assert spoken.code == 0
    assert re.search(r"round \d", spoken.out)
    with pytest.raises(json.JSONDecodeError):
        assert spoken.document


# Every command: something that is wrong with its input, and a part of what is said.
WRONG: dict[str, tuple[Sequence[str], str]] = {
    "frontier": (("tiny.toml", "--target", "0.9", "--uplinks", "sing"), "did you mean sign?"),
    "tune": (("tiny.toml", "--methods", "fednag", "--budget", "1"), "--budget 1: give 3 trials"),
    "decide": (("tiny.toml", "--algorithms", "fednag"), "name two methods at least"),
    "what-if": (("kept", "--without", "worker:99"), "there is no worker 99"),
    "privacy plan": (("--epsilon", "0", "--delta", "1e-5", "--workers", "9"), "--epsilon"),
    "privacy spent": (("none",), "none: no such folder"),
    "compare": (("tiny.toml", "--algorithms", "fednog"), "did you mean fednag?"),
    "run": (("none.toml",), "none.toml: cannot be read"),
    "sweep": (("tiny.toml", "--grid", "training.tau=0,1"), "training.tau: 0 is not allowed"),
    "resume": (("none",), "none: no such folder"),
    "watch": (("none",), "none: no such folder"),
    "show": (("made", "--target", "2"), "--target 2: an accuracy is above 0"),
    "report": (("made", "--out", "figures"), "--out figures: is a folder"),
    "algorithms": (("--jsn",), "No such option"),
    "parts": (("--jsn",), "No such option"),
    "flower init": (("app", "--silos", "0"), "split.workers"),
    "flower up": (("--set", "algorithm.name=csgd"), "csgd is centralised"),
    "flower keys": (("secrets",), "say what to make"),
    "flower digest": (("none",), "none: cannot be read"),
    "flower silo": (("--agreed", "5f"), "--agreed 5f: is no SHA-256"),
    "flower gateway": (("gate", "--host", "localhost"), "--secrets secrets: has no server.crt"),
    "flower doctor": (("--jsn",), "No such option"),
    "flower link": (("--", "--host", "0.0.0.0"), "would let whoever reaches the port submit runs"),
    "flower status": (("none",), "none: no such folder"),
    "flower units": (("units", "--role", "boss"), "--role boss: use server or silo"),
    "data list": (("--jsn",), "No such option"),
    "data get": (("mnits",), "use 'mnist'"),
    "data check": (("mnits",), "use 'mnist'"),
    "data split": (("digits", "--workers", "0"), "split.workers: 0 is not allowed"),
    "time replay": (("made", "--fleet", "lan", "--target", "0.5", "--loss", "1"), "not both"),
    "time fleets": (("lann",), "did you mean lan?"),
    "time record": (("--host", "somewhere"), "write HOST:PORT"),
    "time listen": (("--host", "256.0.0.1"), "256.0.0.1"),
    "time get": (("flesh",), "did you mean flash?"),
    "time convert": (("raca", "none.csv"), "none.csv: cannot be read"),
    "time plan": ((*PLAN, "--seeds", "x"), "--seeds x: write different whole numbers"),
    "theory check": (("tiny.toml", "--set", "model.name=cnn"), "is not convex"),
    "theory compare": (("--beta", "1"), "--rho: is missing"),
    "theory plan": ((*GIVEN, "--taus", "x"), "--taus x: write whole numbers"),
    "paper list": (("--scale", "lap"), "--scale lap: no such scale"),
    "paper run": (("tua",), "did you mean tau?"),
    "paper all": (("--experiments", "none"), "none: no figure files there"),
    "paper verdict": (("--out", "none"), "none: nothing has been run there"),
    "ledger verify": (("made",), "made: has 4 runs; name the folder of one"),
    "ledger audit": (("kept", "--round", "3"), "--round 3: the ledger has rounds 1 to 2"),
    "ledger show": (("none",), "none: no such folder"),
    "ledger key": (("tiny.toml",), "tiny.toml: is there already"),
    "export file": (("none",), "none: no such folder"),
    "export tensorboard": (("none",), "none: no such folder"),
    "export mlflow": (("none",), "none: no such folder"),
}


@pytest.mark.parametrize("path", WRONG)
def test_what_is_wrong_leaves_standard_output_empty(path: str, fednag: Caller) -> None:
    if path in NEEDS and find_spec(NEEDS[path]) is None:
        pytest.skip(f"{NEEDS[path]} is not installed")
    words, sentence = WRONG[path]
    result = fednag(*path.split(), *words, "--json")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fednag: ")
    assert result.err.count("\n") == 1
    assert sentence in result.err


def test_one_run_that_cannot_be_read_is_named_beside_the_others(fednag: Caller) -> None:
    shutil.copytree("made", "damaged")
    file = next(Path("damaged").rglob("records.jsonl"))
    file.write_text("{}\n")
    for words in (("show",), ("report",), ("time", "--fleet", "lan", "--loss", "5", "--out", "o")):
        result = fednag(words[0], "damaged", *words[1:], "--json")
        assert result.code == 2, words
        (failed,) = result.document["failed"]
        assert failed["source"] == str(file)
        assert failed["remedy"] == "restore the file"
        assert failed["sentence"] in result.err
        assert "rows" in result.document or "methods" in result.document


def test_files_that_are_not_as_published_are_told_and_refused(fednag: Caller) -> None:
    result = fednag("data", "check", "mnist", "--json")
    assert result.code == 2
    assert set(result.document.values()) == {"missing"}


def test_numbers_are_those_of_the_files(fednag: Caller) -> None:
    """A replay and a plan print what they write, and what the table says besides."""
    replay = called("time replay", fednag, "--json").document
    kept = json.loads(Path("o/time-lan.json").read_text(), parse_constant=pytest.fail)
    assert {key: replay[key] for key in kept} == kept
    assert replay["target"] == {"measure": "loss", "value": 5.0, "better": "lower"}
    seconds = {row["label"]: row["seconds"] for row in replay["methods"]}
    assert set(seconds) == {"fednag", "fedavg"}
    saved = replay["saved"]["fedavg"]["fednag"]
    assert saved == pytest.approx(1 - seconds["fedavg"] / seconds["fednag"])
    assert {part["label"] for part in replay["parts"]} == set(seconds)
    assert any("compute is scaled by operations" in note for note in replay["notes"])
    plan = called("time plan", fednag, "--json").document
    kept = json.loads(Path("runs/tiny-plan/plan-lan.json").read_text(), parse_constant=pytest.fail)
    assert {key: plan[key] for key in kept} == kept
    assert {point["method"] for point in plan["points"]} == {"fednag", "fedmom", "fedavg"}
    assert plan["best"] in plan["points"]


def test_a_fleet_is_shown_and_copied_as_data(fednag: Caller) -> None:
    shown = fednag("time", "fleets", "paper-edge", "--json").document
    assert shown["synthetic"] is True
    assert shown["device"][0]["name"] == "i3-M380"
    copied = fednag("time", "fleets", "paper-edge", "--copy", "mine.toml", "--json")
    assert copied.document == {"files": ["mine.toml"]}
    listed = fednag("time", "fleets", "--json").document
    assert {"paper-edge", "lan"} <= {row["name"] for row in listed}
    assert all(row["devices"] > 1 for row in listed)


def test_samples_are_summed_up_as_numbers(fednag: Caller) -> None:
    found = called("time record", fednag, "--json").document
    (iteration,) = [row for row in found["rows"] if row["sampled"] == "iteration"]
    assert (iteration["samples"], iteration["bytes"], iteration["mbit"]) == (3, None, None)
    flops = found["reference"]["flops"]
    assert iteration["gflops"] == pytest.approx(flops / iteration["seconds"] / 1e9)
    for row in found["rows"]:
        if row["sampled"] in ("up", "down"):
            assert row["mbit"] == pytest.approx(row["bytes"] * 8 / row["seconds"] / 1e6)


def test_verdicts_are_those_of_the_table(fednag: Caller) -> None:
    found = called("paper run", fednag, "--json").document
    assert (found["scale"], found["runs"], found["made"]) == ("smoke", 2, 2)
    assert sum(found["counts"].values()) == len(found["verdicts"])
    assert not any(found["answers"].values())
    assert "say nothing of the paper" in found["notes"][0]
    again = called("paper run", fednag, "--json").document
    assert again["made"] == 0
    assert again["verdicts"] == found["verdicts"]
    for one in found["verdicts"]:
        assert one["verdict"] in found["counts"]
        assert all(part["seeds"] >= 1 for part in one["parts"])
    (judged,) = fednag("paper", "verdict", "--experiments", "figures", "--json").document["scales"]
    assert judged["verdicts"] == found["verdicts"]
    # Questions of our own are answered and counted apart from the paper's claims.
    for one in called("paper verdict", fednag, "--json").document["scales"]:
        ours = sum(verdict["beyond"] for verdict in one["verdicts"])
        assert ours > 0
        assert sum(one["answers"].values()) == ours
        assert sum(one["counts"].values()) == len(one["verdicts"]) - ours


def test_what_json_has_not_is_null(fednag: Caller) -> None:
    inf, nan = float("inf"), float("nan")
    assert json.loads(json_text({"a": (inf, [nan, -inf, 1.5])})) == {"a": [None, [None, None, 1.5]]}
    words = ("compare", "tiny.toml", "--algorithms", "fednag,fedavg", "--set", "algorithm.lr=1e30")
    result = fednag(*words, "--json")
    assert result.code == 0, result.err
    assert [row["final_loss"] for row in result.document["rows"]] == [None, None]
    timed = fednag("time", "runs/tiny", "--fleet", "lan", "--target", "0.9", "--json").document
    assert all(row["seconds"] is None for row in timed["methods"])
    assert set(timed["saved"]["fednag"].values()) == {None}
