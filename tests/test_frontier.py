"""Bytes and seconds to a target: chains, dominance by hand, a real grid, interruption."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from commands import Caller
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.frontier import candidates, frontier, read_uplink
from fednag.runs.folder import RunFolder
from fednag.runs.frontier import amount, cells, undominated
from fednag.runs.targets import Target, read_target
from fednag.runs.view import RunView
from fednag.show.document import document
from fednag.transforms import ErrorFeedback, Quantise, TopK

TINY = """
name = "tiny"
[model]
name = "logistic"
[training]
tau = 2
iterations = 20
[engine]
chunk = 1
threads = 1
"""
TABLES: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "logistic"},
    "training": {"tau": 2, "iterations": 20},
    "engine": {"chunk": 1, "threads": 1},
}
GRID: dict[str, Any] = {
    "algorithms": ["fednag", "fedavg"],
    "uplinks": ["none", "quantise:levels=7", "error-feedback+topk:share=0.05"],
    "seeds": [0, 1],
}
WORDS = ["frontier", "tiny.toml", "--target", "0.3", "--algorithms", "fednag,fedavg"]
WORDS += ["--uplinks", "none,quantise:levels=7,error-feedback+topk:share=0.05", "--seeds", "0,1"]


@pytest.fixture
def fednag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    return Caller(monkeypatch, capsys)


def test_a_chain_is_read() -> None:
    tables, parts = read_uplink("error-feedback+topk:share=0.05+quantise:levels=7:bucket=512")
    assert parts == (ErrorFeedback(), TopK(share=0.05), Quantise(levels=7, bucket=512))
    assert tables[2] == {"kind": "quantise", "levels": 7, "bucket": 512}
    assert read_uplink("none") == ([], ())


WRONG = {
    "quantize": "no transform 'quantize' (did you mean quantise?); there are none, clip",
    "quantise:levels=0": "quantise.levels: 0 is not allowed",
    "quantise:levels=x": "quantise.levels: 'x' is not allowed",
    "quantise:level=7": "quantise.level: no such key (did you mean levels?)",
    "quantise:7": "'7' is no number of quantise; write each once, as NAME=VALUE",
    "quantise:levels=7:levels=8": "'levels=8' is no number of quantise; write each once",
    "topk:kind=sign": "'kind=sign' is no number of topk",
    "topk+": "a transform's name is missing; join names with +",
    "none+sign": "none stands alone; leave it out of the chain",
    "quantise+topk": "uplink.1: everything is encoded already by a transform before it; put",
    "topk:k=1000000": "uplink.0: k: 1000000 numbers of w should travel, and it has",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_chain_is_one_sentence(text: str, fednag: Caller) -> None:
    result = fednag("frontier", "tiny.toml", "--target", "0.9", "--uplinks", f"sign,{text}")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"fednag: --uplinks {text}: ")
    assert WRONG[text] in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--uplinks", "sign,sign"], "--uplinks sign: is the same as sign; leave one out"),
        (["--uplinks", "quantise,quantise:levels=127"], "is the same as quantise; leave"),
        (["--uplinks", ","], "--uplinks ,: write chains between commas"),
        (["--algorithms", "csgd"], "--algorithms csgd: is centralised, and sends nothing"),
        (["--algorithms", "fednga"], "(did you mean fednag?)"),
        (["--algorithms", "fednag", "--methods", "fedavg"], "give one of them, not both"),
        (["--set", "uplink.0.kind=sign"], "--set uplink.0.kind: --uplinks replaces it"),
        (["--set", "training.tau=0"], "--set training.tau: 0 is not allowed"),
        (["--fleet", "paper-egde"], "did you mean paper-edge?"),
        (["--target", "2"], "--target 2: an accuracy is above 0 and at most 1"),
        (["--target", "f2=0.5"], "--target f2=0.5: no such measure; there are loss"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_other_mistakes_are_one_sentence(words: list[str], sentence: str, fednag: Caller) -> None:
    given = [] if "--target" in words else ["--target", "0.9"]
    result = fednag("frontier", "tiny.toml", *given, *words)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs").exists()


def test_dominance_by_hand() -> None:
    points = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.7), (2.0, 0.6), (4.0, 0.9)]
    assert undominated(points) == [True, True, False, False, True]
    assert undominated([(1.0, 0.5), (1.0, 0.5)]) == [True, True]  # a tie dominates nobody
    assert undominated([(1.0, 0.5), (1.0, 0.6)]) == [False, True]  # fewer is not needed
    assert undominated([(1.0, 0.5), (2.0, 0.5)]) == [True, False]  # nor is better
    assert undominated([(1.0, None), (2.0, 0.5), (None, 0.9)]) == [False, True, False]
    assert undominated([(1.0, 0.5), (2.0, 0.4)], "lower") == [True, True]
    assert undominated([(1.0, 0.4), (2.0, 0.5)], "lower") == [True, False]


def test_amounts() -> None:
    assert [amount(n) for n in (0, 999.4, 999.6, 1e6, 2.345e9)] == [
        *("0 B", "999 B", "1 kB", "1 MB", "2.35 GB")
    ]


def test_a_grid_is_paired() -> None:
    """Runs of a seed have all alike but method and uplink."""
    found = candidates(TABLES, read_target(0.3), **GRID)
    assert len(found) == 2 * 3 * 2
    assert len({each.experiment.key for each in found}) == len(found)
    for each in found:
        same = {"algorithm", "uplink", "seed"}
        assert each.experiment.model_dump(exclude=same) == found[0].experiment.model_dump(
            exclude=same
        )
        assert len(each.experiment.uplink) == (
            0 if each.uplink == "none" else each.uplink.count("+") + 1
        )


def test_a_real_grid(tmp_path: Path) -> None:
    target = Target("accuracy", 0.3)
    found = frontier(target, TABLES, **GRID, fleet="lan", replays=2, out=tmp_path)
    assert len(found.cells) == 6
    first = {run.label: run.records[0].loss for run in found.runs if run.experiment.seed == 0}
    assert len(set(first.values())) == 1
    for cell in found.cells:
        runs = [run for run in found.runs if run.label == cell.label]
        there = [
            next((r for r in run.records if r.round and (r.accuracy or 0) >= 0.3), None)
            for run in runs
        ]
        came = [r for r in there if r is not None]
        assert (cell.runs, cell.reached) == (2, len(came))
        assert cell.final == pytest.approx(mean(run.records[-1].accuracy or 0 for run in runs))
        ends = [run.records[-1].bytes_up + run.records[-1].bytes_down for run in runs]
        assert cell.bytes == mean(ends)
        assert cell.interval is None  # two seeds have none
        times = [one for one in found.timed if one.run.label == cell.label]
        if came:
            assert cell.up_to == mean(r.bytes_up for r in came)
            assert cell.down_to == mean(r.bytes_down for r in came)
            assert cell.bytes_to == mean(r.bytes_up + r.bytes_down for r in came)
            to = [s for one in times for s in one.times_to(target)]
            assert cell.seconds_to == pytest.approx(mean(to))
        else:
            assert cell.bytes_to is cell.seconds_to is None
            assert cell.missed == "not reached by 2 of 2"
    reached = [cell.bytes_to for cell in found.cells if cell.reached == 2]
    assert len(reached) >= 2
    assert reached == sorted(reached)  # type: ignore[type-var]
    by_label = {cell.label: cell for cell in found.cells}
    assert by_label["fednag quantise:levels=7"].bytes < by_label["fednag none"].bytes / 1.5
    marks = undominated([(c.seconds, c.final) for c in found.cells])
    assert [c.least_seconds for c in found.cells] == marks
    assert [c.least_bytes for c in found.cells] == undominated(
        [(c.bytes, c.final) for c in found.cells]
    )


def test_three_seeds_have_an_interval_and_a_diverged_run_is_not_compared() -> None:
    grid = {"algorithms": ["fedavg"], "uplinks": ["none"], "seeds": [0, 1, 2]}
    (cell,) = frontier(0.9, TABLES, **grid).cells  # type: ignore[arg-type]
    assert cell.interval is not None
    assert cell.final is not None
    assert sum(cell.interval) / 2 == pytest.approx(cell.final)
    wild = {**TABLES, "algorithm": {"lr": 1e30}}
    (cell,) = frontier(0.9, wild, **grid).cells  # type: ignore[arg-type]
    assert (cell.diverged, cell.final, cell.least_bytes) == (3, None, False)


def test_cells_by_hand() -> None:
    """A run that diverged, though it was good before, takes its cell out of the comparison."""

    def run(label: str, accuracy: float, sent: int, ending: Ending) -> RunView:
        records = [
            Record(0, 0, 2.0, 0.1, None, 0, 0, 0.0, 0),
            Record(2, 1, 1.0, accuracy, None, sent, 2 * sent, 0.1, 4),
        ]
        return RunView(label, 0, records, ending)

    done, lost = Ending("finished"), Ending("diverged", 3)
    runs = [run("lost", 0.9, 10, lost), run("dear", 0.6, 50, done), run("cheap", 0.6, 20, done)]
    found = {cell.label: cell for cell in cells(runs, Target("accuracy", 0.5))}
    assert list(found) == ["lost", "cheap", "dear"]  # by bytes to the target
    assert [cell.least_bytes for cell in found.values()] == [False, True, False]
    assert (found["lost"].final, found["lost"].diverged, found["lost"].bytes_to) == (None, 1, 30)
    assert (found["dear"].up_to, found["dear"].down_to, found["dear"].bytes) == (50, 100, 150)


def test_the_command_says_and_writes_it(fednag: Caller) -> None:
    result = fednag(*WORDS, "-q", "--fleet", "lan", "--replays", "2")
    assert result.code == 0, result.err
    assert "not dominated: no other row ends at least as good" in result.out
    assert "fewest bytes to accuracy 30%: " in result.out
    assert "fewest seconds on " in result.out
    for kind in ("png", "svg", "html", "json"):
        assert (Path("runs/tiny") / f"frontier.{kind}").stat().st_size > 1000
    kept = json.loads(Path("runs/tiny/frontier.json").read_text())
    assert {row["uplink"] for row in kept["rows"]} == set(GRID["uplinks"])
    # The table of a report is the same.
    folders = [RunFolder(path.parent) for path in Path("runs").rglob("records.jsonl")]
    views = [RunView.read(folder) for folder in folders]
    told = document(views, Target("accuracy", 0.3))["bytes"]
    assert len(told["rows"]) == 6
    assert [row[0].removesuffix(" (2 runs)") for row in told["rows"]] == [
        cell.label for cell in cells(views, Target("accuracy", 0.3))
    ]
    alike = [view for view in views if view.label == "fednag none"]
    assert document(alike)["bytes"] is None  # one uplink: nothing to choose


def test_interrupted_it_goes_on_and_trains_nothing_twice(
    fednag: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednag.runs.execute import Execution

    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    trained: list[tuple[str, int]] = []
    train = Execution._train
    stop = True

    def counted(self: Execution, *given: Any) -> Any:
        if stop and len(trained) == 4:
            raise FednagError("cut off")
        trained.append((self.label, self.experiment.seed))
        return train(self, *given)

    monkeypatch.setattr(Execution, "_train", counted)
    assert fednag(*WORDS, "-q").code == 2
    assert len(trained) == 4
    stop = False
    assert fednag(*WORDS, "-q", "--resume").code == 0
    assert len(trained) == len(set(trained)) == 12
    again = fednag(*WORDS, "-q", "--resume", "--json")
    assert len(trained) == 12
    assert len(again.document["runs"]) == 12
    assert sys.argv[1] == "frontier"
