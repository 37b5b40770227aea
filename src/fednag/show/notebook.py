"""Results in a notebook's cell: ranked table and chart. Nothing is fetched, little is stored."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from fednag.runs.statistics import Row, ranked
from fednag.runs.view import RunView
from fednag.show.tables import cells, headings

ROWS = 30  # of the table; ``print`` has them all
LINES = 12  # methods in the chart; more cannot be distinguished
POINTS = 150  # of a line
LEFT = ("method", "ended")


def cell(runs: Sequence[RunView]) -> str:
    """Runs as HTML: a row a method, best first, above loss and accuracy as a picture."""
    rows = ranked(runs)
    notes = []
    if len(rows) > ROWS:
        notes.append(f"the best {ROWS} of {len(rows)}; print the result to see all")
    best = {row.label for row in rows[:LINES]}
    if len(rows) > LINES:
        notes.append(f"the chart shows the best {LINES}")
    said = "".join(f"<p><small>{escape(note)}</small></p>" for note in notes)
    drawn = [run for run in runs if run.label in best]
    return f"<div>{_table(rows[:ROWS])}{said}{_picture(drawn)}</div>"


def _table(rows: Sequence[Row]) -> str:
    texts, names = [cells(row, rows) for row in rows], headings(rows)
    # A column of nothing is not shown: regression has no accuracy.
    kept = [i for i in range(len(names)) if any(text[i] != "-" for text in texts)]
    head = "".join(_cell("th", names[i], names[i]) for i in kept)
    body = []
    for row, text in zip(rows, texts, strict=True):
        style = ' style="color:#c62828"' if row.diverged else ""
        inner = "".join(_cell("td", names[i], text[i]) for i in kept)
        body.append(f"<tr{style}>{inner}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(tag: str, heading: str, text: str) -> str:
    side = "left" if heading in LEFT else "right"
    return f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>'


def _picture(runs: Sequence[RunView]) -> str:
    """An SVG: sharp, and small because lines keep few points; as an image it can run nothing."""
    if not any(run.values("loss") or run.values("accuracy") for run in runs):
        return ""
    from fednag.show.charts import curves_chart

    made = io.StringIO()
    curves_chart(runs, POINTS).save(made, format="svg")
    data = base64.b64encode(made.getvalue().encode()).decode()
    labels = ", ".join(dict.fromkeys(run.label for run in runs))
    return (
        f'<img alt="{escape(f"loss and accuracy of {labels}")}" '
        f'style="max-width:100%;height:auto" src="data:image/svg+xml;base64,{data}">'
    )
