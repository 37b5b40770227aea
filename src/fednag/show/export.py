"""Results for other programs: rows of records, of rankings and of differences; CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from fednag.config.messages import nearest
from fednag.core.files import os_errors, write_atomically
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.runs.labels import by_label, by_problem, distinguished
from fednag.runs.paired import SHARES, Difference, decided_best, paired
from fednag.runs.statistics import LEVEL, Row, Spread, ranked
from fednag.runs.view import RunView

Of = Literal["records", "summary", "differences"]
"""What is written: a row a record, a row a method, or a row for every two methods."""

Rows = list[dict[str, Any]]

# Of a record; lists, such as who was refused, stay in records.jsonl.
ALWAYS = ("iteration", "round", "loss", "accuracy", "train_accuracy", "test_loss")
SOME = ("clock", "refusals", "misses", "epsilon")  # columns only where a run has them
SPREADS = ("final_accuracy", "best_accuracy", "final_loss", "best_loss", "final_test_loss")
COSTS = ("bytes_up", "bytes_down", "seconds", "participants")


def rows_of(runs: Sequence[RunView], of: str = "records") -> Rows:
    """Rows of one kind, all with the same columns."""
    makers = {"records": _records, "summary": _summary, "differences": _differences}
    if of not in makers:
        there = ", ".join(map(repr, get_args(Of)))
        raise FednagError("of", f"no such rows{nearest(of, makers)}", f"use {there}", given=of)
    problems = by_problem(runs)
    found: Rows = []
    for name, own in problems.items():
        kept, _ = distinguished(own)
        kept = [run for group in by_label(kept).values() for run in sorted(group, key=_seed)]
        # Methods on other data are not ranked against each other.
        lead = {"data": name} if len(problems) > 1 else {}
        found += [{**lead, **row} for row in makers[of](kept)]
    return found


def _seed(run: RunView) -> int:
    return run.seed


def _records(runs: Sequence[RunView]) -> Rows:
    every = [record for run in runs for record in run.records]
    some = [name for name in SOME if any(getattr(record, name) for record in every)]
    metrics = dict.fromkeys(name for record in every for name in record.metrics)
    return [
        {
            "method": run.label,
            "seed": run.seed,
            **{name: getattr(record, name) for name in (*ALWAYS, *COSTS, *some)},
            **{name: record.metrics.get(name) for name in metrics},
        }
        for run in runs
        for record in run.records
    ]


def _summary(runs: Sequence[RunView]) -> Rows:
    rows = ranked(runs)
    metrics = dict.fromkeys(name for row in rows for name in row.final_metrics)
    found = []
    for row in rows:
        shown: dict[str, Any] = {"method": row.label, "runs": row.runs, "diverged": row.diverged}
        for name in SPREADS:
            shown |= _spread(name, getattr(row, name))
        for name in metrics:
            shown |= _spread(f"final_{name}", row.final_metrics.get(name))
        shown |= {name: getattr(row, name) for name in ("iterations", "megabytes", "seconds")}
        found.append({**shown, "epsilon": row.epsilon, "ended": row.ended})
    return found


def _spread(name: str, value: Spread | None) -> dict[str, float | None]:
    mean, deviation = (None, None) if value is None else (value.mean, value.deviation)
    return {name: mean, f"{name}_deviation": deviation}


def _differences(runs: Sequence[RunView]) -> Rows:
    return [difference_row(one, LEVEL) for one in paired(runs)]


def difference_row(one: Difference, level: float) -> dict[str, Any]:
    return {
        "first": one.first,
        "second": one.second,
        "measure": one.measure,
        "seeds": len(one.seeds),
        "difference": one.mean,
        "low": one.low,
        "high": one.high,
        "confidence": level,
        "decided": one.claim,
    }


def frame(rows: Rows) -> Any:
    """A pandas data frame of rows; a sentence where pandas is not installed."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError:
        raise FednagError(
            "frame", "pandas is not installed", "install it, or write a file with .csv(path)"
        ) from None
    return pandas.DataFrame(rows)


def csv_text(rows: Rows) -> str:
    """CSV with a line of names; numbers to their last digit, nothing where there is no value."""
    written = io.StringIO()
    if rows:
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(written, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)  # a float's text is the shortest that reads back as the same number
    return written.getvalue()


# What LaTeX would take for something else.
ESCAPES = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def escaped(text: str) -> str:
    """Text as LaTeX prints it.

    >>> from fednag.show.export import escaped
    >>> print(escaped("fednag_local (share=50%)"))
    fednag\\_local (share=50\\%)
    """
    printed = "".join(char if char.isprintable() else " " for char in text)
    return "".join(ESCAPES.get(char, char) for char in printed)


def latex_text(
    runs: Sequence[RunView], decided: Mapping[str, str | None] | None = None, level: float = LEVEL
) -> str:
    """The ranking as a table of the package booktabs.

    The best value of a column is bold only where it is decided that the method is ahead of all
    others: by ``decided``, measure -> method, or else by paired intervals over the seeds.
    """
    problems = by_problem(runs)
    if len(problems) > 1:
        raise FednagError(
            "latex",
            f"these runs are on several data sets ({', '.join(problems)})",
            "give those of one, for methods on other data cannot be ranked",
        )
    kept, _ = distinguished(runs)
    rows = ranked(kept)
    columns = _columns(rows)
    if decided is None:
        methods = sum(not row.diverged for row in rows)
        measures = [name for _, name, _ in columns if name]
        decided = {name: decided_best(paired(kept, name), methods) for name in measures}
        why = f"by {level * 100:.4g} per cent intervals of differences paired by seed"
        why += " (Student's t, Holm)"
    else:
        why = f"as fednag decide found, {level * 100:.4g} per cent sure of all pairs together"
    heads = ["method", *(head for head, _, _ in columns)]
    lines = [
        f"% final values{_seeds(rows)}; needs \\usepackage{{booktabs}}",
        f"% bold: ahead of all other methods, {why}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        " & ".join(map(escaped, heads)) + r" \\",
        "\\midrule",
    ]
    for row in rows:
        cells = [escaped(row.label)]
        for _, name, text in columns:
            cell = text(row)
            won = name and decided.get(name) == row.label
            cells.append(f"\\textbf{{{cell}}}" if won else cell)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _seeds(rows: Sequence[Row]) -> str:
    most = max((row.runs for row in rows), default=0)
    return f", mean $\\pm$ standard deviation over {most} seeds" if most > 1 else " of one seed"


def _columns(rows: Sequence[Row]) -> list[tuple[str, str, Any]]:
    """(heading, measure or nothing, the text of a row) of the columns there is anything in."""

    def of(name: str, percent: bool) -> Any:
        def text(row: Row) -> str:
            value = row.final_metrics.get(name[1:]) if name[0] == "." else getattr(row, name)
            if value is None:
                return "diverged" if row.diverged else "--"
            unit = 100 if percent else 1
            form = "{:.2f}" if percent else "{:.4f}"
            parts = [value.mean * unit]
            parts += [value.deviation * unit] if value.deviation is not None else []
            return r" $\pm$ ".join(form.format(part) for part in parts)

        return text

    found: list[tuple[str, str, Any]] = []
    for name, measure in (
        ("final_accuracy", "accuracy"),
        ("final_loss", "loss"),
        ("final_test_loss", "test_loss"),
    ):
        if any(getattr(row, name) for row in rows):
            share = measure in SHARES
            head = f"{measure.replace('_', ' ')}{' (%)' if share else ''}"
            found.append((head, measure, of(name, share)))
    metrics = dict.fromkeys(name for row in rows for name in row.final_metrics)
    found += [(name, name, of(f".{name}", False)) for name in metrics]
    if any(row.megabytes for row in rows):
        found.append(("MB sent", "", lambda row: f"{row.megabytes:,.1f}"))
    return found


def written(text: str, path: str | Path, field: str = "path") -> Path:
    """Write a text; whole, or not at all."""
    place = Path(path)
    if place.is_dir():
        raise FednagError(field, "is a folder", "name a file in it", given=place)
    with os_errors(place, "cannot be written", "choose another file"):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, text)
    return place


def record_documents(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Runs with their records and settings, for programs."""
    names = [field.name for field in fields(Record) if field.name != "rounds"]
    return [
        {
            "method": run.label,
            "seed": run.seed,
            "ended": run.ended,
            "folder": str(run.folder) if run.folder else None,
            "settings": run.settings,
            "records": [{name: getattr(record, name) for name in names} for record in run.records],
        }
        for run in runs
    ]
