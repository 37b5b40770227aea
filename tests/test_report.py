"""Reports from records: targets, grouping, thinning, sentences, exports, by hand."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fednag import cli
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.folder import RunFolder
from fednag.runs.labels import distinguished
from fednag.runs.statistics import ranked
from fednag.runs.targets import Target, common_target, given_target
from fednag.runs.view import RunView
from fednag.show.document import caveats, document, html, sentence
from fednag.show.spec import thinned, tracks_of
from fednag.show.tables import to_target
from refusals import refused


def records(*accuracies: float | None) -> list[Record]:
    return [
        Record(10 * i, i, 2.0 - (a or 0), a, a, 500_000 * i, 500_000 * i, float(i), 4)
        for i, a in enumerate(accuracies)
    ]


def view(label: str, seed: int, *accuracies: float, **settings: Any) -> RunView:
    config = {"name": "x", "seed": seed, "algorithm": {"name": label, **settings}}
    folder, over = Path(f"runs/x/{label}-{seed}"), Ending("finished")
    return RunView(label, seed, records(*accuracies), over, config=config, folder=folder)


def test_a_target_is_first_reached_after_an_aggregation() -> None:
    found = Target("accuracy", 0.5).first(records(0.9, 0.4, 0.5, 0.9))
    assert found is not None
    assert found.round == 2
    assert Target("accuracy", 0.95).first(records(0.1, 0.9)) is None
    lower = Target("loss", 1.5).first(records(0.1, 0.4, 0.5))
    assert lower is not None
    assert lower.round == 2


def test_the_common_target_is_what_all_reached() -> None:
    runs = [view("a", 0, 0.1, 0.879), view("b", 0, 0.1, 0.93, 0.7)]
    runs.append(replace(view("c", 0, 0.1), ending=Ending("diverged", 0)))
    assert common_target(runs) == Target("accuracy", 0.87)
    stopping = [replace(run, config={"stop": {"accuracy": 0.8}}) for run in runs]
    assert common_target(stopping) == Target("accuracy", 0.8)
    no_accuracy = [[replace(r, accuracy=None) for r in records(0.1, a)] for a in (0.2, 0.7)]
    assert common_target([RunView("a", 0, r) for r in no_accuracy]) == Target("loss", 1.81)
    with refused("--target, --loss"):
        given_target(0.5, 0.5)


def test_the_row_says_what_the_target_took() -> None:
    runs = [
        RunView("a", 0, records(0.1, 0.2, 0.6), Ending("finished")),
        RunView("a", 1, records(0.1, 0.2, 0.3, 0.4, 0.6), Ending("finished")),
        RunView("b", 0, records(0.1, 0.2), Ending("finished")),
        RunView("b", 1, records(0.1, 0.7), Ending("finished")),
        RunView("c", 0, records(0.1, 0.2), Ending("finished")),
    ]
    target = Target("accuracy", 0.5)
    rows = {row.label: row for row in ranked(runs, target)}
    took = rows["a"].iterations_to
    assert took is not None
    assert (took.mean, took.deviation) == (30, pytest.approx(math.sqrt(200)))
    assert rows["a"].megabytes_to is not None
    assert rows["a"].megabytes_to.mean == 3.0
    found = [list(to_target(rows[label], target).values()) for label in ("b", "c")]
    assert found == [["10 (1 of 2 runs)", "1", "1"], ["not reached", "-", "-"]]


def test_only_seeds_are_averaged() -> None:
    found, notes = distinguished(
        [
            view("fednag", 0, 0.1, 0.5, lr=0.1),
            view("fednag", 1, 0.1, 0.6, lr=0.1),
            view("fednag", 0, 0.1, 0.7, lr=0.2),
            view("fedavg", 0, 0.1, 0.7, lr=0.3),
        ]
    )
    labels = [s.label for s in found]
    assert labels == ["fednag (lr=0.1)", "fednag (lr=0.1)", "fednag (lr=0.2)", "fedavg"]
    assert notes == []


def test_of_a_run_made_twice_the_newest_counts() -> None:
    old = replace(view("a", 0, 0.1, 0.5), info={"started": "2026-01-01"})
    new = replace(view("a", 0, 0.1, 0.6), info={"started": "2026-01-02"})
    found, notes = distinguished([new, old])
    assert [s.info for s in found] == [new.info]
    assert "more than once" in notes[0]


def test_other_problems_and_seeds_are_pointed_out() -> None:
    one, other = view("a", 0, 0.1, 0.5), view("b", 0, 0.1, 0.6)
    assert caveats([one, other]) == []
    elsewhere = replace(other, config={**other.config, "data": {"name": "mnist"}})
    assert "differ in data.name" in caveats([one, elsewhere])[0]
    assert "not all methods have the same seeds" in caveats([one, view("a", 1, 0.1), other])[0]


def test_thinning_keeps_ends_and_extremes() -> None:
    values: list[float | None] = [random.Random(3).random() for _ in range(50_000)]
    values[12_345], values[40_000], values[7] = 9.0, -9.0, None
    other: list[float | None] = [0.0] * 50_000
    other[777] = 5.0
    kept = thinned([values, other], 1000)
    assert {0, 49_999, 12_345, 40_000, 777} <= set(kept)
    assert len(kept) <= 1000
    assert kept == sorted(kept)
    assert thinned([[1.0, 2.0]], 1000) == [0, 1]


def test_tracks_are_means_with_a_deviation() -> None:
    runs = [RunView("a", s, records(0.1, a), Ending("finished")) for s, a in ((0, 0.4), (1, 0.6))]
    runs[1] = replace(runs[1], records=records(0.1, 0.6, 0.7))
    (track,) = tracks_of(runs)
    assert track.columns["accuracy"] == [0.1, pytest.approx(0.5), 0.7]
    assert track.columns["accuracy.high"][1] == pytest.approx(0.5 + math.sqrt(0.02))
    assert track.columns["accuracy.low"][1] == pytest.approx(0.5 - math.sqrt(0.02))
    assert track.columns["runs"] == [2, 2, 1]
    assert track.columns["bytes"] == [0, 1_000_000, 2_000_000]
    assert "clock" not in track.columns


def test_the_sentence_says_when_seeds_do_not_bear_it_out() -> None:
    close = [view("a", 0, 0.1, 0.5), view("a", 1, 0.1, 0.7)]
    close += [view("b", 0, 0.1, 0.55), view("b", 1, 0.1, 0.63)]
    words = sentence(close, ranked(close), None)
    assert "a does best" in words
    assert "within the spread over seeds" in words
    clear = [view("a", 0, 0.1, 0.9), view("b", 0, 0.1, 0.5)]
    words = sentence(clear, ranked(clear, Target("accuracy", 0.5)), None)
    assert "40 percentage points ahead of b (one seed: chance is not ruled out)" in words
    lost = replace(clear[1], ending=Ending("diverged", 10))
    assert sentence([clear[0], lost], ranked([clear[0], lost]), None).endswith("b diverged.")


def test_those_of_the_same_value_are_level() -> None:
    alike = [view("a", 0, 0.1, 0.5), view("b", 0, 0.1, 0.5), view("c", 0, 0.1, 0.4)]
    words = sentence(alike, ranked(alike), None)
    assert "a and b are level: both end at 50.00% test accuracy" in words
    assert "does best" not in words


def test_splits_are_in_the_order_of_seeds() -> None:
    dealt = [replace(view("a", n, 0.1, 0.5), info={"held": [[n, 1]]}) for n in (1, 0, 2)]
    titles = [split["title"] for split in document(dealt)["splits"]]
    assert [title[-1] for title in titles] == ["0", "1", "2"]


def test_runs_that_stopped_at_a_target_are_pointed_out() -> None:
    one, other = view("a", 0, 0.1, 0.5), view("b", 0, 0.1, 0.4, 0.5)
    early = replace(one, ending=Ending("target", 1, "accuracy", 0.5))
    assert caveats([one, other]) == []
    assert "1 of 2 runs stopped when they reached their target" in caveats([early, other])[0]
    late = replace(other, records=view("b", 0, 0.1, 0.6).records)
    assert caveats([early, replace(late, ending=early.ending)]) == []


def test_a_run_that_goes_on_has_not_ended() -> None:
    over = view("a", 0, 0.1, 0.5)
    rows = ranked([over])
    assert "a ends at 50.00%" in sentence([over], rows, None)
    assert "a stands at 50.00%" in sentence([replace(over, ending=None, running=True)], rows, None)
    cut = replace(over, ending=None)
    assert "a stands at 50.00%" in sentence([cut], rows, None)


def test_the_page_cannot_be_broken_out_of() -> None:
    page = html(document([view("</script\t><!--<script>&", 0, 0.1, 0.5)]))
    inside = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inside)["methods"][0]["label"] == "</script\t><!--<script>&"
    assert not set("<>&") & set(inside)
    page = html(document([view("</script><script>alert(1)", 0, 0.1, 0.5)]))
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert "connect-src 'none'" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, last in ((0, 0.5), (1, 0.7)):
        run = RunFolder.create(tmp_path / "runs", "hand", f"fednag-{seed}")
        for record in records(0.1, 0.3, last):
            run.append(record)
        run.config_file.write_text(f'name = "hand"\nseed = {seed}\n[algorithm]\nname = "fednag"\n')
        about = {"label": "fednag", "seed": seed, "started": "2026-01-01T00:00:00+00:00"}
        run.write_info({"status": "finished", "ended": "finished", **about})
    return tmp_path


def fednag(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fednag", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_show_and_report_agree(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fednag(capsys, "show", "runs", "--json")
    (row,) = json.loads(out)["rows"]
    assert (code, row["runs"], row["final_accuracy"]["mean"]) == (0, 2, pytest.approx(0.6))
    code, out, _ = fednag(capsys, "report", "runs", "-o", "pages/r.html", "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["final_accuracy"] == row["final_accuracy"]
    assert (written / "pages" / "r.html").read_text().startswith("<!doctype html>")
    code, out, _ = fednag(capsys, "show", "runs", "--each", "--json")
    assert {r["seed"] for r in json.loads(out)["rows"]} == {0, 1}
    assert fednag(capsys, "report", "runs", "-o", "runs")[0] == 2


def test_tensorboard_reads_what_was_written(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # written twice, a point is there once
        code, out, err = fednag(capsys, "export", "tensorboard", "runs", "--json")
        assert code == 0, err
    events = EventAccumulator(json.loads(out)["folders"][0])
    events.Reload()
    points = events.Scalars("accuracy")
    assert [(p.step, round(p.value, 6)) for p in points] == [(0, 0.1), (10, 0.3), (20, 0.5)]
    assert points[2].wall_time == 1767225600 + 2


def test_mlflow_reads_what_was_written(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow import MlflowClient

    for _ in range(2):
        code, out, err = fednag(capsys, "export", "mlflow", "runs", "--json")
        assert code == 0, err
    client = MlflowClient(tracking_uri="sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("hand")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2
    run = client.get_run(json.loads(out)["runs"][0])
    assert run.data.params["algorithm.name"] == "fednag"
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert sorted((m.step, m.value) for m in history) == [(0, 0.1), (10, 0.3), (20, 0.5)]
