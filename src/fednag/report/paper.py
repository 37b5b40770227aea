"""Charts like the paper's panels: curves side by side, bars of iterations, a loss along a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fednag.report.charts import COLOURS, DASHES


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


def paper_chart(panels: Sequence[Panel], columns: int = 2) -> Any:
    """Panels side by side; a series has one colour in all of them."""
    named = [row["series"] for panel in panels for row in [*panel.rows, *panel.lines]]
    names = list(dict.fromkeys(named))
    drawn = [_panel(panel, names) for panel in panels if panel.rows]
    chart = alt.concat(*drawn, columns=columns)
    chart = chart.resolve_scale(color="shared", strokeDash="shared")
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def _colour(names: list[str]) -> tuple[Any, Any]:
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolOpacity=1,
        symbolFillColor="transparent",
        symbolStrokeWidth=2,
        labelLimit=300,
    )
    repeat = range(len(names))
    colours = [COLOURS[i % len(COLOURS)] for i in repeat]
    dashes = [DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in repeat]
    return (
        alt.Color("series:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=dashes), legend=legend),
    )


def _panel(panel: Panel, names: list[str]) -> Any:
    colour, dash = _colour(names)
    draw = {"curves": _curves, "bars": _bars, "points": _points}[panel.kind]
    layers = draw(panel, colour, dash)
    if panel.lines:
        rules = alt.Chart(alt.InlineData(values=list(panel.lines)))
        layers.append(
            rules.mark_rule(strokeWidth=1.5).encode(y="y:Q", color=colour, strokeDash=dash)
        )
    title = alt.TitleParams(panel.title, fontSize=12)
    return alt.layer(*layers).properties(width=300, height=240, title=title)


def _up(panel: Panel) -> Any:
    scale = alt.Scale(zero=False)
    if panel.log:
        values = [row["y"] for row in [*panel.rows, *panel.lines]]
        domain = [min(values) * 0.95, max(values) * 1.05]
        scale = alt.Scale(type="log", domain=domain, nice=False)
    return alt.Y("y:Q", title=panel.up, scale=scale)


def _curves(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    across = alt.X("x:Q", title=panel.across, scale=alt.Scale(nice=False))
    band = base.mark_area(opacity=0.15).encode(
        x=across, y=alt.Y("low:Q", title=panel.up), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=1.8).encode(
        x=across, y=_up(panel), color=colour, strokeDash=dash
    )
    return [band, line] if any(row["low"] != row["high"] for row in panel.rows) else [line]


def _points(panel: Panel, colour: Any, dash: Any) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=list(panel.rows)))
    across = alt.X("x:Q", title=panel.across)
    line = base.mark_line(strokeWidth=1.8, point=True).encode(
        x=across, y=_up(panel), color=colour, strokeDash=dash
    )
    bars = base.mark_rule().encode(x=across, y=alt.Y("low:Q"), y2="high:Q", color=colour)
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
