"""What the page on the paper shows: its charts, and its tables of verdicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import altair as alt
import pytest

from fednag.paper.figure import Check, Figure, read_figures
from fednag.paper.page import checks_table, findings, records_of, summary
from fednag.paper.panels import Panel, panels, paper_chart

PLACE = Path(__file__).parents[1] / "docs" / "paper"
FIGURES = read_figures()


def drawn(*shown: Panel) -> list[dict[str, Any]]:
    """The layers of each panel, as vega-lite has them."""
    with alt.data_transformers.enable(consolidate_datasets=False):
        return [one["layer"] for one in paper_chart(shown).to_dict()["concat"]]


def rows_of(**series: int) -> list[dict[str, Any]]:
    return [
        {"series": name, "x": x, "y": 0.5 + x / 100, "low": 0.4, "high": 0.6 + x / 100}
        for name, points in series.items()
        for x in range(points)
    ]


def test_few_points_are_marked_many_are_not() -> None:
    """A line from the start to the first evaluation is no measurement."""
    layers = drawn(Panel("t", "x", "y", rows_of(dense=30, sparse=5)))[0]
    (marked,) = [one for one in layers if one["mark"]["type"] == "circle"]
    assert {row["series"] for row in marked["data"]["values"]} == {"sparse"}
    layers = drawn(Panel("t", "x", "y", rows_of(dense=30)))[0]
    assert all(one["mark"]["type"] != "circle" for one in layers)


@pytest.mark.parametrize("log", [True, False])
def test_no_layer_widens_the_axis_and_nothing_is_cut_off(log: bool) -> None:
    least = None if log else 0.3
    (layers,) = drawn(Panel("t", "x", "y", rows_of(a=5), log=log, least=least))
    domains = {tuple(one["encoding"]["y"]["scale"]["domain"]) for one in layers}
    ((low, high),) = domains
    assert low < 0.4
    assert high > 0.64
    assert log or low == 0.3


def test_ten_lines_are_told_apart_and_one_alone_is_whole() -> None:
    (layers,) = drawn(Panel("t", "x", "y", rows_of(**{f"gamma {i}": 2 for i in range(10)})))
    (line,) = [one for one in layers if one["mark"]["type"] == "line"]
    colours = line["encoding"]["color"]["scale"]["range"]
    dashes = [tuple(dash) for dash in line["encoding"]["strokeDash"]["scale"]["range"]]
    assert len(set(colours)) == len(set(dashes)) == 10
    assert dashes.count((1, 0)) == 1


def test_a_target_is_drawn_where_runs_are_to_reach_it() -> None:
    figure = FIGURES["time"]
    records = records_of(figure, "laptop", PLACE)
    for panel in panels(figure, records):
        assert panel.lines == [{"series": "target 0.95", "y": 0.95}]
        assert panel.least == 0.8


def test_a_sweep_of_two_lines_has_a_point_for_each_series() -> None:
    figure = FIGURES["workers-logistic"]
    records = records_of(figure, "laptop", PLACE)
    for panel in panels(figure, records):
        found: dict[str, list[float]] = {
            name: [] for name in ("batch 64 a worker", "256 samples in all")
        }
        for row in panel.rows:
            found[row["series"]].append(row["x"])
        assert list(found.values()) == [[2, 4, 8, 16, 32], [2, 8, 32]]


def test_ours_are_apart_from_the_papers_claims_and_late_ones_marked() -> None:
    content = FIGURES["gamma-one"].content
    first, second = content.check[0], content.check[1]
    checks = [first.model_copy(update={"late": True}), second.model_copy(update={"beyond": True})]
    figure = Figure("gamma-one", content.model_copy(update={"check": checks}))
    table = checks_table(findings(figure, records_of(figure, "laptop", PLACE)))
    assert f"| {first.name} *(late)*: " in table
    assert f"| {second.name} *(ours)*: " in table
    claims, questions = summary({"gamma-one": figure}, "laptop", PLACE).split("Questions")
    assert first.name in claims
    assert second.name in questions
    assert first.name not in questions
    assert second.name not in claims
    assert "| figure | yes | no | undecided | not run |" in questions
    for part in (claims, questions):
        total = part.strip().splitlines()[-1]
        assert sum(map(int, re.findall(r"\d+", total))) == 1


def test_the_pages_own_figure_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page tells a reader to write and to type."""
    text = (PLACE.parent / "paper.md").read_text()
    (written,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (command,) = re.findall(r"^fednag (paper run digits .*)$", text, re.M)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "digits.toml").write_text(written)
    done = subprocess.run(
        [sys.executable, "-m", "fednag", *command.split(), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["check"], verdict["verdict"]) == ("fednag-ahead", "reproduced")
    for test in get_args(Check.model_fields["test"].annotation):
        assert f"`{test}`" in text


def test_a_scale_too_short_to_judge_by_has_no_verdicts() -> None:
    content = FIGURES["gamma-one"].content
    short = content.scale["laptop"].model_copy(update={"judged": False})
    scales = {**content.scale, "laptop": short}
    figure = Figure("gamma-one", content.model_copy(update={"scale": scales}))
    for one in findings(FIGURES["gamma-one"], records_of(figure, "laptop", PLACE)):
        assert one.verdict in ("reproduced", "not reproduced")
    for one in findings(figure, records_of(figure, "laptop", PLACE)):
        assert (one.verdict, one.note) == ("undecided", "too short to judge by")
        assert one.ours
