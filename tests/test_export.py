"""Results that leave the house: CSV, LaTeX, data frames, JSON."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fednag
from commands import Caller
from fednag.core.ending import Ending
from fednag.decide import Decision, Pair, decide
from fednag.errors import FednagError
from fednag.results import Comparison
from fednag.runs.sequential import Evidence
from fednag.runs.view import RunView
from fednag.show.export import escaped, latex_text, rows_of
from test_paired import run, three

SHORT: dict[str, Any] = {"model": "linear", "tau": 2, "iterations": 6, "name": "d"}
SHORT["engine"] = {"chunk": 1, "threads": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    out = tmp_path_factory.mktemp("made")
    methods = ["fednag", "fedavg"]
    done = fednag.compare(methods, seeds=[0, 1], metrics=["f1"], out=out, **SHORT)
    return done, out


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_numbers_of_a_csv_are_those_of_the_records(
    made: tuple[Comparison, Path], tmp_path: Path
) -> None:
    done, _ = made
    lines = read(done.csv(tmp_path / "deep/er/r.csv"))
    records = [(one.label, one.experiment.seed, r) for one in done.runs for r in one.records]
    assert len(lines) == len(records) == 2 * 2 * 4
    for line, (label, seed, record) in zip(lines, records, strict=True):
        assert (line["method"], int(line["seed"])) == (label, seed)
        for name in ("loss", "accuracy", "test_loss", "seconds"):
            assert float(line[name]) == getattr(record, name)
        for name in ("iteration", "round", "bytes_up", "bytes_down", "participants"):
            assert int(line[name]) == getattr(record, name)
        assert float(line["f1"]) == record.metrics["f1"]


def test_runs_read_from_disk_give_the_same_file(
    made: tuple[Comparison, Path], fednag_: Caller, tmp_path: Path
) -> None:
    done, out = made
    file = tmp_path / "here.csv"
    assert fednag_("export", str(out), "--out", str(file)).code == 0
    columns = [{k: line[k] for k in ("method", "seed", "loss", "f1")} for line in read(file)]
    mine = [{k: str(row[k]) for k in ("method", "seed", "loss", "f1")} for row in done.rows()]
    assert sorted(map(str, columns)) == sorted(map(str, mine))
    printed = fednag_("export", str(out), "--format", "csv")
    assert printed.out == file.read_text()


@pytest.fixture
def fednag_(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    return Caller(monkeypatch, capsys)


def test_summary_and_differences(made: tuple[Comparison, Path]) -> None:
    done, _ = made
    best, other = done.rows("summary")
    ends = [one.records[-1].accuracy or 0.0 for one in done.runs if one.label == best["method"]]
    assert best["final_accuracy"] == pytest.approx(sum(ends) / 2)
    assert best["final_accuracy_deviation"] == pytest.approx(abs(ends[0] - ends[1]) / math.sqrt(2))
    assert best["final_f1"] is not None
    assert best["runs"] == other["runs"] == 2
    (row,) = done.rows("differences")
    assert (row["seeds"], row["low"], row["decided"]) == (2, None, None)
    with pytest.raises(FednagError, match="of record: no such rows"):
        done.rows("record")
    assert len(done.runs[0].rows()) == 4


def test_json_holds_all(made: tuple[Comparison, Path], fednag_: Caller) -> None:
    done, out = made
    result = fednag_("export", str(out), "--format", "json", "--out", "all.json", "--json")
    assert result.document["files"] == ["all.json"]
    told = json.loads(Path("all.json").read_text())
    assert {"runs", "summary", "differences"} == set(told)
    losses = {(r["method"], r["seed"]): [x["loss"] for x in r["records"]] for r in told["runs"]}
    for one in done.runs:
        want = [record.loss for record in one.records]
        assert losses[one.label, one.experiment.seed] == want


REFUSED = [
    (("export", "OUT", "--format", "xls"), "--format: xls: use csv, latex, json"),
    (("export", "OUT", "--of", "rows"), "--of: rows: use records, summary, differences"),
    (("export", "OUT", "--format", "latex", "--of", "records"), "--of: latex has one form"),
    (("export", "OUT", "--out", "."), "--out: .: is a folder"),
    (("export", "nowhere"), "nowhere: no such folder"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_wrong_words_are_refused(
    words: tuple[str, ...], said: str, made: tuple[Comparison, Path], fednag_: Caller
) -> None:
    result = fednag_(*(str(made[1]) if word == "OUT" else word for word in words))
    assert result.code == 2
    assert re.sub(r"[^\w.,]+", " ", said).strip() in re.sub(r"[^\w.,]+", " ", result.err)


def test_latex_escapes_what_it_would_take_for_something_else() -> None:
    assert escaped(r"a_b & 5% #1 {x} ~ ^ \ <$>" + "\n") == (
        r"a\_b \& 5\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}\$\textgreater{} "
    )


def balanced(text: str) -> None:
    """What a compiler would stumble over: braces, and columns that are not as many everywhere."""
    body = [line for line in text.splitlines() if not line.startswith("%")]
    plain = re.sub(r"\\[{}&%_#$]", "", "\n".join(body))
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert plain.count("%") == 0
    columns = re.search(r"\\begin{tabular}{(l r*|lr*)}", plain)
    assert columns
    lines = [line for line in plain.splitlines() if line.endswith(r" \\")]
    assert {line.count("&") for line in lines} == {len(columns[1]) - 1}
    assert plain.count(r"\toprule") == plain.count(r"\midrule") == plain.count(r"\bottomrule") == 1
    assert not re.search(r"(?<!\\)_", plain)


def test_the_best_is_bold_only_where_it_is_decided() -> None:
    clear = [one for one in three() if one.label != "c"]
    text = latex_text(clear)
    balanced(text)
    assert r"a & \textbf{91.50 $\pm$ 1.29} & \textbf{" in text
    assert "Student's t, Holm" in text
    open_ = latex_text(three())  # a and c are not decided
    balanced(open_)
    assert r"\textbf" not in open_
    one = latex_text([r for r in three() if r.seed == 0])
    assert r"\textbf" not in one
    assert r"\pm" not in one
    assert "of one seed" in one


def test_what_decide_found_is_bold_by_its_own_evidence() -> None:
    views = three()
    evidence = Evidence(4, 1.0, 0.1, 0.5, math.inf)

    class Made(Decision):
        @property
        def views(self) -> list[RunView]:
            return views

    def found(*claims: Any) -> Made:
        names = [("a", "b"), ("a", "c"), ("b", "c")]
        pairs = [
            Pair(*two, (1.0,) * 4, evidence, claim, None)
            for two, claim in zip(names, claims, strict=True)
        ]
        return Made("accuracy", 0.0, 0.99, pairs, [])

    text = found("ahead", "ahead", None).latex()
    balanced(text)
    assert r"a & \textbf{91.50" in text
    assert text.count("textbf") == 1  # of the accuracy alone, which was decided
    assert "99 per cent sure" in text
    assert "textbf" not in found("ahead", None, "behind").latex()
    row = found("ahead", None, None).rows("differences")[0]
    assert (row["low"], row["high"], row["decided"], row["confidence"]) == (
        0.5,
        None,
        "ahead",
        0.99,
    )


def test_a_decision_exports_its_pairs_and_its_records(tmp_path: Path) -> None:
    tables = {"model": {"name": "linear"}, "training": {"tau": 2, "iterations": 4}}
    tables["engine"] = {"chunk": 1, "threads": 1}
    done = decide(tables, algorithms=["fednag", "fedavg"], seeds=2)
    (line,) = read(done.csv(tmp_path / "pairs.csv", of="differences"))
    assert (line["first"], line["second"], line["seeds"]) == ("fednag", "fedavg", "2")
    assert float(line["difference"]) == pytest.approx(sum(done.pairs[0].differences) / 2)
    assert len(done.rows()) == sum(len(one.records) for one in done.runs)


def test_a_method_that_diverged_is_said_to() -> None:
    runs = [run("a_1", 0, 0.9), run("b", 0, 0.8)]
    lost = RunView("b", 0, runs[1].records, Ending("diverged", 1), config=runs[1].config)
    text = latex_text([runs[0], lost])
    balanced(text)
    assert "b & diverged" in text
    assert r"a\_1 &" in text


def test_other_data_are_not_ranked_together() -> None:
    runs = [run("a", 0, 0.9), run("b", 0, 0.8, data={"name": "mnist"})]
    assert [row["data"] for row in rows_of(runs, "summary")] == ["digits", "mnist"]
    with pytest.raises(FednagError, match="several data sets"):
        latex_text(runs)


def test_a_frame_needs_pandas(
    made: tuple[Comparison, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = made
    made_of: Callable[[Any], Any] = lambda rows: ("frame", len(rows))  # noqa: E731
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=made_of))
    assert done.frame() == ("frame", 16)
    assert done.frame("summary") == ("frame", 2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FednagError, match="pandas is not installed"):
        done.frame()
