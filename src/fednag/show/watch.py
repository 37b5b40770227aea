"""Runs as they are now, and on a terminal: a line each, with sparklines and time left."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.view import RunView
from fednag.show.spec import titled

RECENT = 20  # records from which the pace of a run is taken

Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What there is at one moment."""

    views: list[RunView]  # running ones first, then the newest
    failed: list[FednagError]  # of those that cannot be read
    tag: str  # changes when anything does

    @property
    def running(self) -> int:
        return sum(view.running for view in self.views)


@dataclass
class Follower:
    """Looks at a folder of runs."""

    root: Path
    _known: dict[Path, tuple[Stamp, RunView | FednagError]] = field(default_factory=dict)

    def look(self) -> Look:
        known: dict[Path, tuple[Stamp, RunView | FednagError]] = {}
        for path in self._folders():
            stamp = RunFolder(path).stamp
            before = self._known.get(path)
            if before is None or before[0] != stamp:
                known[path] = stamp, _read(path)
            else:
                known[path] = stamp, _still(before[1])
        self._known = known
        found = [content for _, content in known.values()]
        views = [content for content in found if isinstance(content, RunView)]
        views.sort(key=lambda s: s.started, reverse=True)
        views.sort(key=lambda s: not s.running)
        state = [
            (str(path), stamp, (told.running, told.ended) if isinstance(told, RunView) else told)
            for path, (stamp, told) in known.items()
        ]
        tag = hashlib.sha256(repr(sorted(state)).encode()).hexdigest()[:16]
        return Look(views, [content for content in found if isinstance(content, FednagError)], tag)

    def _folders(self) -> list[Path]:
        try:
            root = self.root.resolve()
            below = {file.parent for file in self.root.rglob("run.json")}
            # A link may lead elsewhere; what is not under the folder is not shown.
            return sorted(path for path in below if path.resolve().is_relative_to(root))
        except OSError:
            return []


def _read(path: Path) -> RunView | FednagError:
    try:
        return RunView.read(RunFolder(path))
    except FednagError as error:
        return error
    except OSError as error:  # removed while it was being read
        why = error.strerror or error
        return FednagError(path, f"cannot be read ({why})", "check its permissions")


def _still(content: RunView | FednagError) -> RunView | FednagError:
    """A run that was running may have been killed: nothing in its files says so."""
    if isinstance(content, FednagError) or not content.running or content.folder is None:
        return content
    return replace(content, running=RunFolder(content.folder).is_being_written)


def pace(view: RunView) -> float | None:
    """Rounds a second, lately; None before there is something to tell it from."""
    recent = view.records[-RECENT:]
    if len(recent) < 2 or recent[-1].seconds <= recent[0].seconds:
        return None
    return (recent[-1].round - recent[0].round) / (recent[-1].seconds - recent[0].seconds)


def seconds_left(view: RunView) -> float | None:
    """Until a run's last round, at its present pace."""
    speed = pace(view)
    if not view.running or not speed or view.planned is None:
        return None
    return max(0, view.planned - view.rounds) / speed


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
    # What else there is a column for: the test loss if there is room, and the metrics.
    tested = width >= WIDE and any(view.values("test_loss") for view in look.views)
    metrics = (name for view in look.views for name in view.metrics)
    measures = list(dict.fromkeys([*["test_loss"] * tested, *metrics]))
    private = ["epsilon"] if any(_epsilon(view) is not None for view in look.views) else []
    named = *(titled(name) for name in measures), *private
    for heading in (*(HEADINGS[i] for i in shown), *named):
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
        spent = [_amount(_epsilon(view)) for _ in private]
        last = *(_last(view, name) for name in measures), *spent
        table.add_row(*(line[i] for i in shown), *last)
    parts: list[RenderableType] = [table]
    if len(look.views) > most:
        parts.append(Text(f"… and {len(look.views) - most} more", style="dim"))
    parts += [Text(str(error), style="red") for error in look.failed[:3]]
    return Group(*parts)


def _last(view: RunView, measure: str) -> str:
    return "".join(f"{value:.4f}" for value in view.values(measure)[-1:]) or "-"


def _epsilon(view: RunView) -> float | None:
    """The privacy spent so far."""
    return view.records[-1].epsilon if view.records else None


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _line(view: RunView) -> list[RenderableType]:
    state, rounds = state_of(view), view.planned
    losses = [r.loss for r in view.records if r.loss is not None]
    accuracies = [r.accuracy for r in view.records if r.accuracy is not None]
    speed = pace(view) if view.running else None
    return [
        Text(view.label),
        str(view.seed),
        Text(state, style=STYLES.get(state, "")),
        ProgressBar(total=rounds or max(1, view.rounds), completed=view.rounds, width=12),
        f"{view.rounds}/{rounds or '?'}",
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
    if _epsilon(view) is not None:
        accuracy += f", epsilon {_amount(_epsilon(view))}"
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
        "epsilon": _epsilon(view),
        "rounds_per_second": pace(view) if view.running else None,
        "seconds_left": seconds_left(view),
    }
