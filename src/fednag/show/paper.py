"""Charts like the paper's panels: curves side by side, bars of iterations, a loss along a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fednag.show import charts

COLOURS = [*charts.COLOURS, "#882255", "#6A3D9A"]
# The first line alone is whole: where lines coincide, it shows through the gaps of the others.
DASHES = [
    *charts.DASHES,
    [12, 4],
    [4, 4],
    [1, 3],
    [10, 2, 2, 2, 2, 2],
    [3, 6],
    [14, 3, 4, 3],
]
FEW = 12  # points of a line; of fewer each is marked, so that straight stretches mislead nobody


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


def paper_chart(panels: Sequence[Panel], columns: int = 2) -> Any:
    """Panels side by side; a series has one colour in all of them."""
    named = [row["series"] for panel in panels for row in [*panel.rows, *panel.lines]]
    names = list(dict.fromkeys(named))
    drawn = [_panel(panel, names) for panel in panels if panel.rows]
    chart = alt.concat(*drawn, columns=columns)
    chart = chart.resolve_scale(color="shared", strokeDash="shared")
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def _panel(panel: Panel, names: list[str]) -> Any:
    places = range(len(names))
    colours = [COLOURS[i % len(COLOURS)] for i in places]
    dashes = [DASHES[i % len(DASHES)] for i in places]
    colour, dash = charts.styled("series:N", names, colours, dashes)
    draw = {"curves": _curves, "bars": _bars, "points": _points}[panel.kind]
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


def _curves(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    across = alt.X("x:Q", title=panel.across, scale=alt.Scale(nice=False))
    band = base.mark_area(opacity=0.15, clip=True).encode(
        x=across, y=_up(panel, "low"), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=1.8, clip=True).encode(
        x=across, y=_up(panel), color=colour, strokeDash=dash
    )
    layers = [band, line] if any(row["low"] != row["high"] for row in panel.rows) else [line]
    points = Counter(row["series"] for row in panel.rows)
    if few := [row for row in panel.rows if points[row["series"]] <= FEW]:
        marked = alt.Chart(alt.InlineData(values=few)).mark_circle(size=22, opacity=1, clip=True)
        layers.append(marked.encode(x=across, y=_up(panel), color=colour))
    return layers


def _points(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    across = alt.X("x:Q", title=panel.across)
    line = base.mark_line(strokeWidth=1.8, point=True).encode(
        x=across, y=_up(panel), color=colour, strokeDash=dash
    )
    bars = base.mark_rule().encode(x=across, y=_up(panel, "low"), y2="high:Q", color=colour)
    return [bars, line]


def _bars(panel: Panel, colour: Any, dash: Any) -> list[Any]:
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
