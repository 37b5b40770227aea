"""Runs on a terminal: a line each, with sparklines, progress and time left."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fednag.runs.view import RunView
from fednag.show.spec import titled
from fednag.show.watch.follow import Look, pace, seconds_left

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 16
HEADINGS = (
    *("experiment", "run", "seed", "state", "progress", "round"),
    *("loss", "", "accuracy", "", "rounds/s", "left"),
)
RIGHT = ("seed", "round", "loss", "accuracy", "rounds/s", "left")
BULKY = (4, 7, 9, 10)  # the bar, the curves and the pace
WIDE = 130  # columns that hold all of it
STYLES = {"running": "cyan", "finished": "green", "diverged": "red", "interrupted": "yellow"}


def sparkline(values: Sequence[float], width: int = WIDTH, logarithmic: bool = False) -> str:
    """A curve in one line of text; of more values than fit, those at even steps and the last."""
    if not values:
        return ""
    if logarithmic and min(values) > 0:
        values = [log(value) for value in values]
    count = min(width, len(values))
    shown = [values[round(i * (len(values) - 1) / max(1, count - 1))] for i in range(count)]
    low, high = min(shown), max(shown)
    if high == low:
        return BLOCKS[0] * count
    return "".join(BLOCKS[int((v - low) / (high - low) * (len(BLOCKS) - 1) + 0.5)] for v in shown)


def state_of(view: RunView) -> str:
    return "diverged" if view.diverged else view.ended


def experiment_of(view: RunView) -> str | None:
    """The name of the experiment that a run is of, where its file has one."""
    name = view.config.get("name")
    return str(name) if name else None


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def screen(look: Look, root: str, most: int = 30, width: int = 200) -> RenderableType:
    """The table of runs, and what cannot be read; on a narrow terminal without bars and curves."""
    if not look.views and not look.failed:
        return Text(f"no runs in {root} yet; waiting (Ctrl-C leaves)")
    over = len(look.views) - look.running
    table = Table(
        title=f"{root}: {look.running} running, {over} over", title_justify="left", expand=False
    )
    names = [experiment_of(view) or "-" for view in look.views]
    several = len(set(names)) > 1
    shown = [
        i for i in range(len(HEADINGS)) if (i or several) and (width >= WIDE or i not in BULKY)
    ]
    measures = _measures(look.views, width)
    for heading in (*(HEADINGS[i] for i in shown), *(titled(name) for name in measures)):
        right = heading in RIGHT or heading not in HEADINGS
        wraps = heading in ("experiment", "run")
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )
    for name, view in zip(names[:most], look.views[:most], strict=True):
        line = [Text(name), *_line(view)]
        table.add_row(*(line[i] for i in shown), *(_last(view, name) for name in measures))
    parts: list[RenderableType] = [table]
    if len(look.views) > most:
        parts.append(Text(f"… and {len(look.views) - most} more", style="dim"))
    parts += [Text(sentence, style="red") for sentence in look.failed[:3]]
    return Group(*parts)


def _measures(views: Sequence[RunView], width: int) -> list[str]:
    """What else there is a column for: the test loss if there is room, and the metrics."""
    found: dict[str, None] = {}
    if width >= WIDE and any(view.values("test_loss") for view in views):
        found["test_loss"] = None
    return list(found | dict.fromkeys(name for view in views for name in view.metrics))


def _last(view: RunView, measure: str) -> str:
    return "".join(f"{value:.4f}" for value in view.values(measure)[-1:]) or "-"


def _line(view: RunView) -> list[RenderableType]:
    records, state = view.records, state_of(view)
    round_now, rounds = view.rounds, view.planned
    losses = [r.loss for r in records if r.loss is not None]
    accuracies = [r.accuracy for r in records if r.accuracy is not None]
    speed = pace(view) if view.running else None
    return [
        Text(view.label),
        str(view.seed),
        Text(state, style=STYLES.get(state, "")),
        ProgressBar(total=rounds or max(1, round_now), completed=round_now, width=12),
        f"{round_now}/{rounds or '?'}",
        f"{losses[-1]:.4f}" if losses else "-",
        sparkline(losses, logarithmic=True),
        f"{accuracies[-1]:.1%}" if accuracies else "-",
        sparkline(accuracies),
        "-" if speed is None else f"{speed:.3g}",
        time_text(seconds_left(view)),
    ]


def plain_line(view: RunView) -> str:
    """The same for a pipe."""
    data = as_data(view)
    loss = "-" if data["loss"] is None else f"{data['loss']:.4f}"
    accuracy = "" if data["accuracy"] is None else f", accuracy {data['accuracy']:.1%}"
    measured = {"test loss": data["test_loss"], **data["metrics"]}
    for name, value in measured.items():
        accuracy += "" if value is None else f", {name} {value:.4f}"
    left = seconds_left(view)
    tail = "" if left is None else f", {time_text(left)} left"
    name = f"{data['experiment']}, " if data["experiment"] else ""
    return (
        f"{name}{data['label']}, seed {data['seed']}: {data['state']}, round {data['round']}/"
        f"{data['rounds'] or '?'}, loss {loss}{accuracy}{tail}"
    )


def as_data(view: RunView) -> dict[str, Any]:
    """A run for machines."""
    records = view.records
    last = records[-1] if records else None
    return {
        "folder": str(view.folder),
        "experiment": experiment_of(view),
        "label": view.label,
        "seed": view.seed,
        "state": state_of(view),
        "round": view.rounds,
        "rounds": view.planned,
        "iteration": last.iteration if last else 0,
        "loss": last.loss if last else None,
        "accuracy": last.accuracy if last else None,
        "test_loss": last.test_loss if last else None,
        "metrics": dict(last.metrics) if last else {},
        "rounds_per_second": pace(view) if view.running else None,
        "seconds_left": seconds_left(view),
    }
