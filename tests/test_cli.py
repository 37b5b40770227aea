"""The command line as a person meets it: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from fednag import cli
from fednag.core.record import Record
from fednag.runs.folder import RunFolder

TINY = """
name = "tiny"
[model]
name = "logistic"
[training]
tau = 2
iterations = 4
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Desk:
    """A folder to work in, with an experiment file, and a command line."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def fednag(self, *words: str) -> Result:
        self.monkeypatch.setattr(sys, "argv", ["fednag", *words])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self.capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, printed.out, printed.err)

    def refused(self, *words: str) -> str:
        """The sentence on stderr, once it is clear that there is nothing else."""
        before = self.files()
        result = self.fednag(*words)
        assert result.code == 2, result
        assert result.err.startswith("fednag: "), result.err
        assert result.err.count("\n") == 1, result.err
        assert self.files() == before, "something was written"
        return result.err.strip()

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def runs(self, under: str = "runs") -> list[RunFolder]:
        found = (self.folder / under).rglob("records.jsonl")
        return [RunFolder(path.parent) for path in sorted(found)]


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDNAG_DATA", str(tmp_path / "data"))
    # A chart takes a second and has nothing to do with what is asked here; one test keeps it.
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    return Desk(tmp_path, monkeypatch, capsys)


def timeless(records: list[Record]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records]


COMPARE = ("compare", "tiny.toml", "--algorithms")
GIVEN = ("--beta", "1", "--rho", "1", "--delta", "0.1", "--p", "0.5", "--omega", "1")
SWEEP = ("sweep", "tiny.toml", "--grid", "training.tau=1,2")
RECORD = ("time", "record", "tiny.toml", "--device", "mine")
PLAN = ("time", "plan", "tiny.toml", "--fleet", "lan", "--target", "0.9")
REFUSED = [
    (("run", "tiny.toml", "--set", "training.taau=3"), "training.taau: no such key (did you mean"),
    (("run", "tiny.toml", "--set", "training.tau=-1"), "fednag: --set training.tau: -1 is not"),
    (("run", "tiny.toml", "--set", "algorithm.lr=abc"), "fednag: --set algorithm.lr: 'abc' is"),
    (("run", "tiny.toml", "--set", "training.tau"), "--set training.tau: write section.key=value"),
    (("run", "tiny.toml", "--set", "algorithm.lr=nan"), "algorithm.lr: nan is not allowed"),
    (("run", "tiny.toml", "--set", "name=../x"), "name: '../x' is not allowed"),
    (("run", "tiny.toml", "--set", "seed=1", "--set", "seed=2"), "--set seed: is given twice"),
    (("run", "tiny.toml", "--set", "split.workers=5000"), "split.workers: 5000 is more than"),
    (("run", "tiny.toml", "--set", "training.participants=9"), "training.participants: 9 is more"),
    (("run", "tiny.toml", "--set", "training.iterations=" + "9" * 30), "at most 1000000000"),
    (("run", "tiny.toml", "--set", "data.name=digitss"), "(did you mean digits?)"),
    (("run", "tiny.toml", "--set", "data.name=mnist"), "run `fednag data get mnist`"),
    (("run", "tiny.toml", "--set", "data.name=custom"), "data.name: the data of this run were"),
    (("run", "tiny.toml", "--set", "algorithm.name=custom"), "algorithm.name: the method of"),
    (("run", "tiny.toml", "--set", "engine.device=gpu"), "engine.device: cannot use 'gpu'"),
    (("run", "tiny.toml", "--set", "engine.device=meta"), "engine.device: cannot use 'meta'"),
    (("run", "nope.toml"), "nope.toml: cannot be read (No such file or directory)"),
    (("run", "tiny.toml", "--out", "tiny.toml"), "--out tiny.toml: cannot be made"),
    (("run", "tiny.toml", "--out", "tiny.toml/x"), "--out tiny.toml/x: cannot be made"),
    (("run",), "(see `fednag run --help`)"),
    (("run", "tiny.toml", "--sett", "a=1"), "--sett"),
    (("comapre",), "Did you mean 'compare'?"),
    (("compare", "tiny.toml"), "tiny.toml: no methods to compare; give --algorithms"),
    ((*COMPARE, "damped:FedNAGDamped"), "there is no module damped to import; install it, or"),
    ((*COMPARE, "damped.FedNAG"), "; one of your own is FILE.py:Algorithm"),
    ((*COMPARE, "fednag,fedavgg"), "no algorithm 'fedavgg' (did you mean fedavg?)"),
    ((*COMPARE, "fednag,fednag"), "fednag is there twice"),
    ((*COMPARE, "fednag", "--seeds", "1,x"), "--seeds 1,x: write different whole numbers"),
    ((*COMPARE, "fednag", "--seeds", "1,1"), "--seeds 1,1: write different whole numbers"),
    ((*COMPARE, "fednag", "--seeds", "-1"), "--seeds -1: write different whole numbers"),
    (("sweep", "tiny.toml"), "Missing option '--grid'"),
    (("sweep", "tiny.toml", "--grid", "training.taau=1,2"), "(did you mean tau?)"),
    (("sweep", "tiny.toml", "--grid", "training.tau=,"), "--grid training.tau: write different"),
    (("sweep", "tiny.toml", "--grid", "training.tau=1,1"), "--grid training.tau: write different"),
    (("sweep", "tiny.toml", "--grid", "training.tau=1,x"), "fednag: --grid training.tau: 'x' is"),
    ((*SWEEP, "--set", "training.batch=-1"), "fednag: --set training.batch: -1 is not"),
    ((*RECORD, "--set", "training.batch=-1"), "fednag: --set training.batch: -1 is not"),
    ((*PLAN, "--set", "training.batch=-1"), "fednag: --set training.batch: -1 is not"),
    ((*PLAN, "--set", "model.nam=cnn"), "fednag: --set model.nam: no such key"),
    ((*PLAN, "--iterations", "9" * 30), "fednag: --iterations training.iterations: 9"),
    ((*PLAN, "--gammas", "1e400"), "fednag: --gammas"),
    (("sweep", "tiny.toml", "--grid", "seed=1,2"), "seed: seeds are averaged"),
    (("sweep", "tiny.toml", "--grid", "seed=1", "--set", "seed=2"), "--set seed: --grid seed"),
    (("show", "nope"), "nope: no such folder"),
    (("show", "tiny.toml"), "tiny.toml: no runs there"),
    (("show", "."), ".: no runs there"),
    (("data", "get", "mnis"), "data set 'mnis' is unknown: use 'mnist'"),
    (("data", "get", "digits"), "'digits' is built in"),
    (("data", "check", "nope"), "data set 'nope' is unknown"),
    (("data", "check", "mnist"), "run `fednag data get mnist`"),
    (("data", "split", "nope"), "fednag: data split: data.name: 'nope' is not allowed"),
    (("data", "split", "tiny.toml"), "tiny.toml: is an experiment file; name the data"),
    (("data", "split", "--workers", "x"), "Invalid value for '--workers'"),
    (("data", "split", "--workers", "0"), "split.workers: 0 is not allowed"),
    (("data", "split", "--alpha", "1"), "goes only with split.kind = 'dirichlet'"),
    (("data", "split", "--kind", "classes", "--classes", "11"), "split.classes: 11 is not between"),
    (("data", "split", "--out", "tiny.toml"), "--out tiny.toml: cannot be made"),
    (
        ("theory", "check", "tiny.toml", "--set", "model.name=cnn"),
        "model.name: 'cnn' is not convex",
    ),
    (("theory", "check", "tiny.toml", "--set", "algorithm.name=fedavg"), "about 'fednag'; use it"),
    (
        ("theory", "check", "tiny.toml", "--set", "algorithm.clip=1"),
        "algorithm.clip: the theory is about the data's own gradients; set it to 0",
    ),
    (("theory", "check", "tiny.toml", "--set", "training.fraction=0.5"), "every worker takes part"),
    (("theory", "check", "tiny.toml", "--set", "training.tau=9"), "less than one tau; raise it"),
    (("theory", "check", "tiny.toml", "--out", "tiny.toml"), "--out tiny.toml: cannot be made"),
    (("theory", "check", "nope.toml"), "nope.toml: cannot be read"),
    (("theory", "compare", "--beta", "1"), "--rho: is missing; give it, or an experiment file"),
    (("theory", "compare", *GIVEN, "--beta", "0"), "beta: 0.0 is not allowed; give it > 0"),
    (("theory", "compare", *GIVEN, "--iterations", "0"), "--iterations 0: give a whole number"),
    (("theory", "plan", *GIVEN, "--taus", "1,x"), "--taus 1,x: write whole numbers from 1 up"),
    (("theory", "plan", *GIVEN, "--gap", "0"), "--gap 0: a gap to reach is above 0"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_refused_in_one_sentence(desk: Desk, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in desk.refused(*words)


def test_a_file_for_one_method_runs_another(desk: Desk) -> None:
    (desk.folder / "tiny.toml").write_text(TINY + "[algorithm]\nmomentum = 0.9\n")
    assert desk.fednag("run", "tiny.toml", "--set", "algorithm.name=fedavg").code == 0
    both = ("--set", "algorithm.name=fedavg", "--set", "algorithm.momentum=0.5")
    sentence = desk.refused("run", "tiny.toml", *both)
    assert (
        sentence
        == "fednag: --set algorithm.momentum: no such key; allowed here: lr, weight_decay, clip"
    )


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 4 TB")])
def test_too_large_for_the_memory_is_a_sentence(desk: Desk, error: Exception) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    desk.monkeypatch.setattr("fednag.api.run_all", full)
    assert "does not fit in memory" in desk.refused("run", "tiny.toml")


def test_other_failures_keep_their_traceback(desk: Desk) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    desk.monkeypatch.setattr("fednag.api.run_all", broken)
    desk.monkeypatch.setattr(sys, "argv", ["fednag", "run", "tiny.toml"])
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def test_run_writes_its_folder_and_names_it(desk: Desk) -> None:
    result = desk.fednag("run", "tiny.toml", "--set", "seed=1")
    assert result.code == 0, result.err
    (folder,) = desk.runs()
    assert [record.iteration for record in folder.records()] == [0, 2, 4]
    assert (folder.info()["status"], folder.info()["seed"]) == ("finished", 1)
    assert str(folder.path.relative_to(desk.folder)) in result.out
    assert (folder.path / "final.safetensors").is_file()


def test_the_written_config_gives_the_same_numbers(desk: Desk) -> None:
    assert desk.fednag("run", "tiny.toml", "--set", "algorithm.lr=0.1").code == 0
    (first,) = desk.runs()
    assert desk.fednag("run", str(first.config_file), "--out", "again").code == 0
    (second,) = desk.runs("again")
    assert timeless(second.records()) == timeless(first.records())
    assert second.path.name == first.path.name
    assert second.config_file.read_text() == first.config_file.read_text()


def test_settings_seldom_meant_are_noted(desk: Desk) -> None:
    changes = ("--set", "training.tau=100", "--set", "algorithm.momentum=1")
    result = desk.fednag("run", "tiny.toml", *changes)
    assert result.code == 0
    assert "note: fednag: tau 100 is above the 4 iterations" in result.out
    assert "note: fednag: momentum 1 is not below 1" in result.out


def test_settings_without_effect_are_noted(desk: Desk) -> None:
    (desk.folder / "tiny.toml").write_text(f'algorithms = ["fedavg", "csgd"]\n{TINY}')
    result = desk.fednag("run", "tiny.toml")
    assert "note: ran fednag alone; for the file's `algorithms` use `fednag compare`" in result.out
    result = desk.fednag("compare", "tiny.toml", "--set", "algorithm.momentum=0.5")
    assert "note: algorithm.momentum is not used" in result.out
    result = desk.fednag("compare", "tiny.toml", "--set", "algorithm.lr=0.5")
    assert "is not used" not in result.out


def test_compare_runs_every_method_and_seed(desk: Desk) -> None:
    result = desk.fednag(*COMPARE, "fednag, fedavg", "--seeds", "0,1", "-q")
    assert result.code == 0, result.err
    found = {(run.info()["label"], run.info()["seed"]) for run in desk.runs()}
    assert found == {("fednag", 0), ("fednag", 1), ("fedavg", 0), ("fedavg", 1)}
    assert "fednag (2 runs)" in result.out
    assert "round 2/2" not in result.out  # quiet
    shown = desk.fednag("show", "runs")
    assert shown.code == 0
    assert "2 methods in 4 runs, best first" in shown.out


def test_piped_a_run_is_heard_of_at_once(desk: Desk) -> None:
    seldom = ("--set", "evaluation.every=2", "--set", "training.iterations=6")
    lines = desk.fednag("run", "tiny.toml", *seldom).out.splitlines()
    assert lines[0] == "fednag: 4 workers, 3 rounds"
    assert lines[1].startswith("fednag: round 1/3, ")  # not evaluated
    assert lines[2].startswith("fednag: round 3/3, loss ")
    lines = desk.fednag(*COMPARE, "csgd", "-q").out.splitlines()
    assert not any("round" in line for line in lines)
    lines = desk.fednag(*COMPARE, "csgd").out.splitlines()
    assert lines[0] == "csgd: 1 worker, 2 rounds"


def test_several_seeds_are_named(desk: Desk) -> None:
    out = desk.fednag(*COMPARE, "fednag", "--seeds", "0,1").out
    for run in desk.runs():
        name = f"fednag, seed {run.info()['seed']}"
        assert f"{name}: round 1/2, loss" in out
        assert f"  {run.path.relative_to(desk.folder)} ({name})" in out.splitlines()


def test_sweep_runs_every_combination(desk: Desk) -> None:
    grid = ("--grid", "training.tau=1,2", "--grid", "split.proportions=[1,2],[1,1]")
    fixed = ("--set", "split.kind=sizes", "--set", "split.workers=2")
    result = desk.fednag("sweep", "tiny.toml", *grid, *fixed)
    assert result.code == 0, result.err
    assert {run.info()["label"] for run in desk.runs()} == {
        f"tau={tau},proportions={parts}" for tau in (1, 2) for parts in ("[1, 2]", "[1, 1]")
    }
    # Square brackets are not markup.
    assert "tau=1,proportions=[1, 2]" in result.out


def written(folder: Path) -> RunFolder:
    """A run as the program leaves it."""
    run = RunFolder.create(folder / "runs", "hand", "fednag")
    run.append(Record(0, 0, 2.0, 0.1, 0.1, 0, 0, 0.0, 0))
    run.append(Record(2, 1, 1.0, 0.5, 0.5, 8, 8, 0.1, 4))
    run.write_info({"status": "finished", "ended": "finished", "label": "fednag", "seed": 0})
    return run


def test_show_leaves_out_a_line_cut_short(desk: Desk) -> None:
    run = written(desk.folder)
    with run.records_file.open("a") as file:
        file.write('{"iteration": 4, "rou')
    result = desk.fednag("show", "runs")
    assert result.code == 0, result.err
    assert "50.00%" in result.out


GOOD = json.loads(Record(4, 2, 1.0, 0.5, 0.5, 8, 8, 0.1, 4).as_json())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "3",
        "null",
        "\x00\x01",
        "[" * 100_000,
        json.dumps(GOOD | {"iteration": "4"}),
        json.dumps(GOOD | {"iteration": 4.5}),
        json.dumps(GOOD | {"round": True}),
        json.dumps(GOOD | {"loss": float("nan")}),
        json.dumps(GOOD | {"seconds": None}),
        json.dumps(GOOD | {"surplus": 1}),
    ],
    ids=lambda line: repr(line[:30]),
)
def test_show_refuses_corrupt_records(desk: Desk, line: str) -> None:
    run = written(desk.folder)
    with run.records_file.open("a") as file:
        file.write(line + "\n")
    assert "records.jsonl: line 3 is not a record" in desk.refused("show", "runs")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "\x00", "[" * 100_000, "{}", '{"label": "x"}', '{"label":"x","seed":"y"}'],
    ids=lambda text: repr(text[:30]),
)
def test_show_refuses_a_corrupt_run_json(desk: Desk, text: str) -> None:
    written(desk.folder).info_file.write_text(text)
    assert "run.json: cannot be read" in desk.refused("show", "runs")


def test_show_refuses_a_run_without_run_json_or_records(desk: Desk) -> None:
    run = written(desk.folder)
    run.records_file.write_text("")
    assert "its runs have no records yet" in desk.refused("show", "runs")
    run.info_file.unlink()
    assert "run.json: cannot be read" in desk.refused("show", "runs")


def test_lists(desk: Desk) -> None:
    methods = desk.fednag("algorithms")
    assert methods.code == 0
    assert "fednag-local" in methods.out
    parts = desk.fednag("parts")
    assert parts.code == 0
    assert re.search(r"\[\[downlink\]\].*float16", parts.out, re.S)
    assert re.search(r"\[controller\].*buffered.*need \(required\)", parts.out, re.S)
    assert re.search(r"\[\[schedule\]\].*cosine.*last=0.0", parts.out, re.S)
    data = desk.fednag("data", "list")
    assert "missing: fednag data get mnist" in data.out
    assert str(desk.folder / "data") in data.out
    assert desk.fednag("--version").out.startswith("fednag 0.")


def test_split_is_shown(desk: Desk) -> None:
    options = ("--kind", "classes", "--classes", "5", "--workers", "2")
    result = desk.fednag("data", "split", "digits", *options)
    assert result.code == 0, result.err
    assert "1437 in all" in result.out


def test_theory_check_reports_and_writes_its_verdicts(desk: Desk) -> None:
    options = ("--set", "model.name=linear", "--set", "training.iterations=5")
    result = desk.fednag("theory", "check", "tiny.toml", *options)
    assert result.code == 0, result.err
    assert "exact: largest eigenvalue of any worker's Hessian" in result.out
    assert "training.batch 64 is not used" in result.out
    assert "T is 4: whole rounds of tau 2" in result.out
    report = json.loads((desk.folder / "runs/theory/tiny/check.json").read_text())
    assert {verdict["verdict"] for verdict in report["verdicts"]} == {"holds", "vacuous"}
    assert report["constants"]["beta"]["value"] > 0


def test_theory_check_ends_with_1_when_a_claim_fails(desk: Desk) -> None:
    desk.monkeypatch.setattr("fednag.theory.trajectory.centralised_gap", lambda *_: 1.0)
    result = desk.fednag("theory", "check", "tiny.toml", "--set", "model.name=linear")
    assert result.code == 1
    assert "FAILS" in result.out


def test_theory_compare_and_plan_with_given_and_measured_constants(desk: Desk) -> None:
    result = desk.fednag("theory", "compare", *GIVEN, "--tau", "5")
    assert result.code == 0, result.err
    assert "alpha tight: f1(T) < f2(T) for every eta below eta-bar = 0.007595" in result.out
    assert "alpha paper: no eta-bar" in result.out
    result = desk.fednag("theory", "compare", *GIVEN, "--gamma", "0")
    assert "Theorem 4 claims: nothing: 0 < gamma < 1 does not hold" in result.out
    result = desk.fednag("theory", "plan", *GIVEN, "--gap", "0.2", "--taus", "1,2,5")
    assert result.code == 0, result.err
    assert "largest safe eta: 0.526316" in result.out
    assert [row.split("│")[6].strip() for row in result.out.splitlines() if "│" in row] == [
        "348",
        "360",
        "465",
    ]
    result = desk.fednag("theory", "compare", "tiny.toml", "--set", "model.name=linear")
    assert result.code == 0, result.err
    assert "note: beta" in result.out
    assert "T = 4" in result.out
    result = desk.fednag("theory", "plan", "tiny.toml", "--set", "model.name=linear", "--p", "0.5")
    assert result.code == 0, result.err
    assert "note: beta" in result.out
    assert "note: p " not in result.out


def process(words: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORCE_COLOR": ""}
    return subprocess.Popen(
        [sys.executable, "-c", "from fednag.cli import main; main()", *words],
        cwd=folder,
        env={key: text for key, text in environment.items() if key != "FORCE_COLOR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_real_process_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    running = process(["run", "tiny.toml", "--set", "training.tau=0"], tmp_path)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert out == ""
    assert err == ("fednag: --set training.tau: 0 is not allowed; it should be at least 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_a_real_process_piped_is_plain_and_draws_its_chart(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    running = process(["run", "tiny.toml"], tmp_path)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert "final accuracy" in out
    assert "\x1b" not in out + err
    charts = list(tmp_path.glob("runs/tiny/*/curves.*"))
    assert charts
    assert all(str(path.relative_to(tmp_path)) in out for path in charts)


def test_help_does_not_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fednag.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n"
        "    assert not end.code\nprint('LOADED', sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code, "compare", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--algorithms" in done.stdout
    assert done.stdout.strip().endswith("LOADED []")


def test_the_root_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fednag.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "print('LOADED', sorted({'torch', 'numpy', 'scipy', 'altair'} & set(sys.modules)))"
    )
    for words in (["--help"], ["theory", "check", "--help"]):
        arguments = [sys.executable, "-c", code, *words]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "theory" in done.stdout
        assert done.stdout.strip().endswith("LOADED []")


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)
