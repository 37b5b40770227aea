"""A figure's panels, from its records to charts like the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import altair as alt

from fednag.paper.checks import marks, place
from fednag.paper.figure import Figure, Series
from fednag.paper.records import FigureRecords, Kept
from fednag.runs.statistics import Spread, aligned, average
from fednag.show.charts import banded, finished, styled
from fednag.show.look import method_in, styles
from fednag.show.spec import MEASURES

TITLES = {**MEASURES, "train_accuracy": "training accuracy"}
FEW = 12  # points of a line; of fewer each is marked, so that straight stretches mislead nobody


def panels(figure: Figure, records: FigureRecords) -> list[Panel]:
    """The panels of a figure; empty when there is nothing to draw."""
    kind = figure.content.draw.kind
    make = {"curves": _curves, "reach": _reach, "against": _against}[kind]
    whose = _methods(figure)
    return [replace(panel, methods=whose) for panel in make(figure, records) if panel.rows]


def _methods(figure: Figure) -> dict[str, str]:
    """The method of each series whose label names one; the paper's Mime is our MimeLite."""
    found = {}
    for series in figure.content.series:
        name = series.set.get("algorithm.name")
        for label in (series.label, series.group):
            if label and isinstance(name, str) and method_in(label):
                found[label] = name
    return found


def _scale(records: FigureRecords) -> str:
    """A smoke run must not be taken for the figure it stands in for."""
    return ", smoke" if records.scale == "smoke" else ""


def _shown(figure: Figure, records: FigureRecords) -> list[Series]:
    """The series there are runs of; a tuned group stands for its members."""
    found: dict[str, Series] = {}
    for series in figure.content.series:
        label = series.group or series.label
        if label in records.series and label not in found:
            found[label] = series.model_copy(update={"label": label})
    return list(found.values())


def _curves(figure: Figure, records: FigureRecords) -> list[Panel]:
    draw = figure.content.draw
    series = _shown(figure, records)
    names = list(dict.fromkeys(one.panel for one in series))
    found = []
    for name in names:
        for measure in draw.measures:
            rows: list[dict[str, Any]] = []
            for one in series:
                if one.panel == name:
                    # In a panel of its own, a series is named by what is left of its label.
                    label = one.label.removesuffix(f", {name}") if name else one.label
                    runs = records.series[one.label]
                    rows += [{"series": label, **row} for row in curve(runs, measure, draw.across)]
            title = name or figure.content.title + _scale(records)
            log = measure == "loss" and all(row["low"] > 0 for row in rows)
            across = "seconds on the fleet" if draw.across == "seconds" else draw.across
            least = None if measure == "loss" else draw.least
            target = draw.to_loss if measure == "loss" else draw.to_accuracy
            goal = [] if target is None else [{"series": f"target {target:g}", "y": target}]
            panel = Panel(title, across, TITLES[measure], rows, log=log, lines=goal, least=least)
            found.append(panel)
    return found


def curve(runs: Sequence[Kept], measure: str, across: str) -> list[dict[str, float]]:
    """Mean over seeds and ± one deviation, iteration by iteration (see ``aligned``)."""
    column = {"iterations": "iteration"}.get(across, across)
    points = [
        {
            iteration: (x, y)
            # Without a fleet there are no seconds, and so no points.
            for iteration, x, y in zip(
                run.iteration, run.column(column), run.column(measure), strict=False
            )
            if x is not None and y is not None
        }
        for run in runs
    ]
    rows = []
    for _, here in aligned(points):
        values = [y for _, y in here]
        spread = Spread.of(values)
        assert spread is not None
        low, high = spread.band or (spread.mean, spread.mean)
        low = max(low, min(values))  # a log axis has no room below 0
        rows.append({"x": average(x for x, _ in here), "y": spread.mean, "low": low, "high": high})
    return rows


def _reach(figure: Figure, records: FigureRecords) -> list[Panel]:
    draw = figure.content.draw
    targets = [(draw.to_loss, None, "loss {:g}"), (None, draw.to_accuracy, "accuracy {:.0%}")]
    found = []
    for to_loss, to_accuracy, words in targets:
        target = to_loss if to_accuracy is None else to_accuracy
        if target is None:
            continue
        rows: list[dict[str, Any]] = []
        for one in _shown(figure, records):
            ends = [marks(run, to_loss, to_accuracy) for run in records.series[one.label]]
            ends = [three for three in ends if isfinite(three[0])]
            if ends:
                first, middle, last = (average(three[i] for three in ends) for i in range(3))
                place = f"{one.x:g}" if one.x is not None else one.label
                row = {"series": "mean", "x": place, "y": middle, "first": first, "last": last}
                rows.append(row)
        title = f"iterations to {words.format(target)}{_scale(records)}"
        found.append(Panel(title, draw.title, "iterations", rows, kind="bars"))
    return found


def _against(figure: Figure, records: FigureRecords) -> list[Panel]:
    draw = figure.content.draw
    found = []
    for measure in draw.measures:
        rows: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        for at in draw.at:
            for one in _shown(figure, records):
                runs = records.series[one.label]
                values = [value for run in runs if (value := _at(run, measure, at)) is not None]
                if not values:
                    continue
                part = one.panel or f"T = {at * runs[0].iterations:g}"
                centre = average(values)
                if one.line:
                    lines.append({"series": f"{one.label}, {part}", "y": centre})
                else:
                    ends = {"low": min(values), "high": max(values)}
                    rows.append({"series": part, "x": one.x, "y": centre, **ends})
        log = measure == "loss" and all(row["low"] > 0 for row in rows)
        panel = Panel(figure.content.title, draw.title, TITLES[measure], rows, "points", log, lines)
        found.append(panel)
    return found


def _at(run: Kept, measure: str, at: float) -> float | None:
    return None if run.diverged else run.column(measure)[place(run, at)]


@dataclass(frozen=True)
class Panel:
    """One chart of a row, from rows (series, x, y) and low, high, or first, last for bars."""

    title: str
    across: str
    up: str
    rows: Sequence[dict[str, Any]]
    kind: str = "curves"  # curves, bars, points
    log: bool = False
    lines: Sequence[dict[str, Any]] = ()  # (series, y): horizontal benchmarks
    least: float | None = None  # where the upward axis begins
    methods: Mapping[str, str] = field(default_factory=dict)  # whose a series is


def paper_chart(panels: Sequence[Panel], columns: int = 2) -> Any:
    """Panels side by side; a series has one colour in all of them."""
    named = [row["series"] for panel in panels for row in [*panel.rows, *panel.lines]]
    names = list(dict.fromkeys(named))
    whose = {label: method for panel in panels for label, method in panel.methods.items()}
    looks = styles(names, whose)
    shown = (_panel(panel, names, looks) for panel in panels if panel.rows)
    chart = alt.concat(*shown, columns=columns)
    return finished(chart.resolve_scale(color="shared", strokeDash="shared"))


def _panel(panel: Panel, names: list[str], looks: list[int]) -> Any:
    colour, dash = styled("series:N", names, looks)
    draw = {"curves": _draw_curves, "bars": _draw_bars, "points": _draw_points}[panel.kind]
    layers = draw(panel, colour, dash)
    if panel.lines:
        rules = alt.Chart(alt.InlineData(values=list(panel.lines)))
        layers.append(
            rules.mark_rule(strokeWidth=1.5).encode(y="y:Q", color=colour, strokeDash=dash)
        )
    title = alt.TitleParams(panel.title, fontSize=12)
    return alt.layer(*layers).properties(width=300, height=240, title=title)


def _up(panel: Panel, column: str = "y") -> Any:
    """The upward axis, the same for all layers: one that leaves it open would widen it."""
    rows = [*panel.rows, *panel.lines]
    lowest = min(row.get("low", row["y"]) for row in rows)
    highest = max(row.get("high", row["y"]) for row in rows)
    scale = alt.Scale(zero=False)
    if panel.log:
        room = max(highest / lowest, 1.001) ** 0.05
        scale = alt.Scale(type="log", domain=[lowest / room, highest * room], nice=False)
    elif panel.least is not None and panel.least < highest:
        top = highest + 0.05 * (highest - panel.least)
        scale = alt.Scale(domain=[panel.least, top], nice=False)
    return alt.Y(f"{column}:Q", title=panel.up, scale=scale)


def _draw_curves(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    across = alt.X("x:Q", title=panel.across, scale=alt.Scale(nice=False))
    layers = banded(panel.rows, across, _up(panel), (colour, dash), 1.8, clip=True)
    layers = layers if any(row["low"] != row["high"] for row in panel.rows) else layers[1:]
    points = Counter(row["series"] for row in panel.rows)
    if few := [row for row in panel.rows if points[row["series"]] <= FEW]:
        marked = alt.Chart(alt.InlineData(values=few)).mark_circle(size=22, opacity=1, clip=True)
        layers.append(marked.encode(x=across, y=_up(panel), color=colour))
    return layers


def _draw_points(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    across = alt.X("x:Q", title=panel.across)
    line = base.mark_line(strokeWidth=1.8, point=True).encode(
        x=across, y=_up(panel), color=colour, strokeDash=dash
    )
    bars = base.mark_rule().encode(x=across, y=_up(panel, "low"), y2="high:Q", color=colour)
    return [bars, line]


def _draw_bars(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    """Bars with red ticks at the first and the last time, as in the paper."""
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    order = [str(row["x"]) for row in panel.rows]
    across = alt.X("x:N", title=panel.across, sort=order, axis=alt.Axis(labelAngle=0))
    bar = base.mark_bar(color="#56B4E9").encode(x=across, y=alt.Y("y:Q", title=panel.up))
    ticks = [
        base.mark_tick(color="#D00000", thickness=2, size=18).encode(x=across, y=f"{end}:Q")
        for end in ("first", "last")
    ]
    return [bar, *ticks]
