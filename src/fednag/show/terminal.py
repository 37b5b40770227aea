"""What a person sees while and after runs: live progress, tables, notes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from fednag.core.record import Record, expected_rounds
from fednag.errors import printable
from fednag.runs.statistics import Row
from fednag.runs.targets import Target
from fednag.runs.view import RunView
from fednag.show.tables import ENDED, fitting, paired_table, texts

if TYPE_CHECKING:
    from fednag.config import Experiment
    from fednag.core.state import State
    from fednag.runs.execute import Listener


class Screen(Console):
    """A console that shows the escapes in labels, settings and paths, and does not obey them."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


MOST_LINES = 20
LONGEST = 24  # letters of a word that a column keeps whole
QUIET_SECONDS = 10  # between two lines about a run when the output is not a terminal


class RunsProgress:
    """A line a run: rounds, loss, accuracy and time left; plain lines when piped."""

    def __init__(
        self,
        console: Console,
        labels: Sequence[str],
        quiet: bool = False,
        verbose: bool = False,
        transient: bool = False,  # nothing stays on the screen
    ) -> None:
        self.console, self.quiet, self.verbose = console, quiet, verbose
        self.live = console.is_terminal and not quiet
        self.seeds = len({*labels}) < len(labels)  # runs differ in seeds: these are named
        width = max(len(label) for label in labels) + (len(", seed 10") if self.seeds else 0)
        self.progress = Progress(
            TextColumn("{task.description:<" + str(width) + "}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:.0f}/{task.fields[rounds]}"),
            TextColumn("{task.fields[news]}", markup=False),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not self.live,
            transient=transient,
        )

        # All that will run is shown from the start, unless it would fill the screen.
        shown = labels if len(labels) <= MOST_LINES else []
        self.waiting = deque(self._line(label) for label in shown)

    def _line(self, label: str) -> TaskID:
        return self.progress.add_task(label, start=False, total=None, rounds="…", news="waiting")

    def __enter__(self) -> RunsProgress:
        self.progress.start()
        if self.waiting:
            self.progress.update(self.waiting[0], news="preparing")
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, label: str, experiment: Experiment, rounds: int) -> Listener:
        task = self.waiting.popleft() if self.waiting else self._line(label)
        name = f"{label}, seed {experiment.seed}" if self.seeds else label
        self.progress.update(task, description=name, total=rounds, rounds=rounds, news="")
        self.progress.start_task(task)
        spoke = time.monotonic()
        begun: int | None = None  # the round the run stood at when it began, or went on
        plain = not self.live and not self.quiet
        if plain:  # at once: the first evaluation may take long
            sizes = count(experiment.workers, "worker"), count(rounds, "round")
            with suppress(OSError, SystemExit):  # nobody reads it: that must not stop training
                self._print(f"{name}: {', '.join(sizes)}")

        def listen(state: State) -> None:
            nonlocal spoke, begun
            begun = state.round if begun is None else begun
            news = news_of(state.record) if state.record else None
            total = expected(state, experiment, rounds)
            early = state.ended is not None and state.ended.kind != "finished"
            shown = str(state.ended) if early else news
            fields: dict[str, Any] = {} if shown is None else {"news": shown}
            self.progress.update(task, total=total, rounds=total, completed=state.round, **fields)
            if state.ended:
                self.progress.stop_task(task)
            waited = time.monotonic() - spoke >= QUIET_SECONDS
            first = state.round == begun + 1
            lines = plain and (state.ended or first or (news and waited))
            if lines or (self.verbose and news):
                spoke = time.monotonic()
                tail = f" ({state.ended})" if early else ""
                reached = f", {news}" if news else ""
                words = f"round {state.round}/{total}{reached}, {state.seconds:.1f} s{tail}"
                self._print(f"{name}: {words}")

        return listen

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


def count(number: int | None, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def expected(state: State, experiment: Experiment, rounds: int) -> int:
    """How many rounds a run will have, as far as it can be told; ``rounds`` were planned."""
    return expected_rounds(rounds, experiment.training.iterations, (state.round, state.iteration))


def news_of(record: Record) -> str:
    if record.loss is None:
        return "diverged"
    accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.1%}"
    if record.accuracy is None and record.test_loss is not None:
        accuracy = f", test loss {record.test_loss:.4f}"
    return f"loss {record.loss:.4f}{accuracy}{metrics_of(record)}"


def metrics_of(record: Record) -> str:
    known = {name: value for name, value in record.metrics.items() if value is not None}
    if record.epsilon is not None:
        known["epsilon"] = record.epsilon
    return "".join(f", {name} {value:.4g}" for name, value in known.items())


def ranking(
    rows: Sequence[Row],
    title: str,
    origins: Mapping[str, tuple[str, int]] | None = None,
    target: Target | None = None,
    width: int | None = None,
) -> Table:
    """The ranked table, best first; ``origins`` gives (method, seed) of rows labelled by folder.

    A screen of this ``width`` is shown fewer columns where all would not fit.
    """
    table = Table(title=title, title_justify="left")
    lines = fitting(texts(rows, target), None if origins else width)
    for heading in lines[0]:
        words = heading in ("method", ENDED)
        # Numbers are never cut; a narrow screen folds the words.
        whole = not words and " to " not in heading
        # The longest word stays whole, or a narrow screen would leave nothing of the column.
        longest = max(map(len, " ".join(line[heading] for line in lines).split()), default=0)
        table.add_column(
            heading,
            justify="left" if words else "right",
            no_wrap=whole,
            min_width=min(longest, LONGEST) if words else None,
        )
    if origins:
        table.add_column("seed", justify="right", no_wrap=True)
        table.add_column("folder", overflow="fold")
    for row, line in zip(rows, lines, strict=True):
        cells = list(line.values())
        if origins:
            method, seed = origins[row.label]
            cells = [method, *cells[1:], str(seed), row.label]
        table.add_row(*cells, style="red" if row.diverged else None)
    return table


def differences(runs: Sequence[RunView], rows: Sequence[Row]) -> list[Table | str]:
    """The best method's differences from the others, seed by seed, and how to read them."""
    found = paired_table(runs, rows)
    if found is None:
        return []
    table = Table(title="differences of the best, seed by seed", title_justify="left")
    for place, heading in enumerate(found["headings"]):
        words = place in (0, len(found["headings"]) - 1)
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for cells in found["rows"]:
        table.add_row(*cells)
    return [table, found["note"]]


def split_table(counts: Sequence[Sequence[int]], most: int = 30) -> Table:
    """Worker x class; of many workers the first ``most``; one column where there are no classes."""
    classes = len(counts[0]) if len(counts[0]) > 1 else 0
    told = "samples of each class (columns) at each worker (rows)"
    table = Table(title=told if classes else "samples at each worker")
    table.add_column("worker", justify="right")
    shown_classes = range(min(classes, 20))
    for label in shown_classes:
        table.add_column(str(label), justify="right")
    if classes > len(shown_classes):
        table.add_column("…")
    table.add_column("all", justify="right")
    for worker, row in enumerate(counts[:most]):
        cut = ["…"] if classes > len(shown_classes) else []
        numbers = [str(row[c]) if row[c] else "·" for c in shown_classes]
        table.add_row(str(worker), *numbers, *cut, str(sum(row)))
    return table


def paths(
    console: Console, written: Sequence[Path], whose: Mapping[Path, str] | None = None
) -> None:
    """What was written; ``whose`` says of folders that look alike which run each holds."""
    console.print("wrote", style="bold")
    for path in written:
        run = f" ({whose[path]})" if whose and whose.get(path) else ""
        console.print(f"  {path}{run}", soft_wrap=True, highlight=False)


def notes(console: Console, texts: Sequence[str]) -> None:
    for text in dict.fromkeys(texts):
        console.print(f"note: {text}", style="yellow", soft_wrap=True, highlight=False)
