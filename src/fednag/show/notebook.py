"""Results in a notebook's cell: ranked table and chart. Nothing is fetched, little is stored."""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from html import escape
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

from fednag.runs.statistics import Row, ranked
from fednag.runs.view import RunView
from fednag.show.tables import ENDED, texts

if TYPE_CHECKING:
    from fednag.config import Experiment
    from fednag.core.state import State
    from fednag.runs.execute import Listener


ROWS = 30  # of the table; ``print`` has them all
LINES = 12  # methods in the chart; more cannot be distinguished
POINTS = 150  # of a line
LEFT = ("method", ENDED)


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
    lines = texts(rows)
    # A column of nothing is not shown: regression has no accuracy.
    names = [name for name in lines[0] if any(line[name] != "-" for line in lines)]
    head = "".join(_cell("th", name, name) for name in names)
    body = []
    for row, line in zip(rows, lines, strict=True):
        style = ' style="color:#c62828"' if row.diverged else ""
        inner = "".join(_cell("td", name, line[name]) for name in names)
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


PAUSE = 0.2  # seconds between two updates of a cell: each is a message to the browser
TELLING = 2.0  # seconds of work before the time left can be guessed

Started = Callable[[str, "Experiment", int], "Listener"]
Show = Callable[[str, str], None]
"""Shows a line: (as HTML, as text)."""


@contextmanager
def progress(labels: Sequence[str], quiet: bool = False) -> Iterator[Started | None]:
    """Who listens to runs with these labels; nobody if quiet, or where nobody looks."""
    shell = notebook_shell()
    if quiet or not labels:
        yield None
    elif shell is not None:
        with CellProgress(labels, cell_of(shell)) as cell:
            yield cell.started
    elif sys.stderr is not None and sys.stderr.isatty():
        from fednag.show.terminal import RunsProgress, Screen

        console = Screen(stderr=True, markup=False, emoji=False)
        with RunsProgress(console, labels, transient=True) as bars:
            yield bars.started
    else:
        yield None


def notebook_shell() -> Any:
    """The notebook this runs in, or None; whoever has IPython has imported it already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


_shown: tuple[Any, Any] = (None, None)  # which execution of which cell, and its display


def cell_of(shell: Any) -> Show:
    """Shows lines in the running cell, all in one place, however often it is asked for."""

    def show(html: str, text: str) -> None:
        global _shown
        bundle = {"text/html": html, "text/plain": text}
        if _shown[0] == shell.execution_count:
            _shown[1].update(bundle, raw=True)
        else:
            display = import_module("IPython.display").display
            _shown = shell.execution_count, display(bundle, raw=True, display_id=True)

    return show


class CellProgress:
    """One line for all runs: how far they are, what the present one has reached, the time left."""

    def __init__(self, labels: Sequence[str], show: Show) -> None:
        self.count, self.show = len(labels), show
        self.number = 0  # of the present run, from 1
        self.part = 0.0  # of all runs
        self.begun, self.drawn = time.monotonic(), -inf

    def __enter__(self) -> CellProgress:
        self._draw("preparing")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            runs = "1 run" if self.count == 1 else f"{self.count} runs"
            words = f"{runs} in {time.monotonic() - self.begun:.1f} s"
            self.show(f"<small>{words}</small>", words)

    def started(self, label: str, experiment: Experiment, rounds: int) -> Listener:
        from fednag.show.terminal import expected, news_of

        before, self.number = self.number, self.number + 1
        name = label if self.count == 1 else f"{label} ({self.number} of {self.count})"
        news = ""

        def listen(state: State) -> None:
            nonlocal news
            if state.record:
                news = f", {news_of(state.record)}"
            total = expected(state, experiment, rounds)
            done = 1.0 if state.ended else state.round / max(1, total)
            self.part = (before + done) / self.count
            # Every round may be over in a millisecond; the ends of runs are always shown.
            if state.ended or time.monotonic() - self.drawn >= PAUSE:
                self._draw(f"{name}: round {state.round}/{total}{news}")

        return listen

    def _draw(self, words: str) -> None:
        self.drawn = time.monotonic()
        gone = self.drawn - self.begun
        if 0 < self.part < 1 and gone >= TELLING:
            left = timedelta(seconds=round(gone * (1 - self.part) / self.part))
            words += f", {left} left"
        bar = f'<progress max="1" value="{self.part:.3f}" style="width:12em"></progress>'
        self.show(f"<div>{bar} <small>{escape(words)}</small></div>", words)
