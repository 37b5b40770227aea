"""One chart specification, from which PNG, SVG and HTML are all made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from fednag.errors import FednagError
from fednag.runs.view import RunView
from fednag.show.spec import COLOURS, DASHES, MOST, Lines, Track, curve_specs, tracks_of

__all__ = ["COLOURS", "DASHES", "curves_chart", "lines_chart", "save", "split_chart"]

PICTURES = ("png", "svg")
FORMATS = (*PICTURES, "html")


def curves_chart(runs: Sequence[RunView], most: int = MOST) -> Any:
    """Loss and accuracy over iterations; a line a method, a band of ± one deviation over seeds."""
    panels = [lines_chart(lines) for lines in curve_specs(tracks_of(runs, most))]
    seeds = sorted({run.seed for run in runs})
    chart = alt.hconcat(*panels)
    if len(seeds) > 1:
        shown = f"mean over {len(seeds)} seeds; band: ± one standard deviation"
        chart = chart.properties(title=alt.TitleParams(shown, fontSize=11, fontWeight="normal"))
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def lines_chart(lines: Lines, across: str = "iteration") -> Any:
    """A chart of lines over one of the things it can be drawn over."""
    names = {"x": across, "y": lines.measure}
    names |= {"low": f"{lines.measure}.low", "high": f"{lines.measure}.high"}
    rows = [
        {"method": track.label, **dict(zip(names, point, strict=True))}
        for track in lines.tracks
        for point in zip(*(_column(track, name) for name in names.values()), strict=True)
        if point[1] is not None
    ]
    styles = [track.style for track in lines.tracks]
    colour, dash = styled(
        "method:N",
        [track.label for track in lines.tracks],
        [COLOURS[i % len(COLOURS)] for i in styles],
        [DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in styles],
    )
    lowest, highest = (f(row["y"] for row in rows) for f in (min, max))
    scale = alt.Scale(zero=False)
    if lines.log:
        scale = alt.Scale(type="log", domain=[lowest * 0.95, highest * 1.05], nice=False)
        for row in rows:  # a log axis has no place for a band that reaches below 0
            row["low"] = None if row["low"] is None else max(row["low"], lowest * 0.95)
    base = alt.Chart(alt.InlineData(values=rows)).properties(width=380, height=300)
    x = alt.X("x:Q", title=lines.across[across], scale=alt.Scale(nice=False))
    line = base.mark_line(strokeWidth=2).encode(
        x=x,
        y=alt.Y("y:Q", title=lines.title, scale=scale),
        color=colour,
        strokeDash=dash,
        tooltip=["method:N", alt.Tooltip("x:Q", title=across), alt.Tooltip("y:Q", format=".4f")],
    )
    if all(row["low"] is None for row in rows):
        return line
    band = base.mark_area(opacity=0.15, clip=True).encode(
        x=x, y=alt.Y("low:Q", title=lines.title, scale=scale), y2="high:Q", color=colour
    )
    return band + line


def styled(
    field: str,
    names: Sequence[str],
    colours: Sequence[str],
    dashes: Sequence[Sequence[int]],
    **legend: Any,
) -> tuple[alt.Color, alt.StrokeDash]:
    """A colour and a dash for each name, in one legend."""
    # Spelled out, because a band would otherwise lend the legend its pale fill.
    shown = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolOpacity=1,
        symbolFillColor="transparent",
        symbolStrokeWidth=2,
        labelLimit=300,
        **legend,
    )
    colour, dash = (alt.Scale(domain=list(names), range=list(r)) for r in (colours, dashes))
    return (
        alt.Color(field, scale=colour, legend=shown),
        alt.StrokeDash(field, scale=dash, legend=shown),
    )


def _column(track: Track, name: str) -> Sequence[float | None]:
    return track.columns.get(name) or [None] * len(track.columns["runs"])


def split_chart(table: Sequence[Sequence[int]], title: str) -> Any:
    """Worker x class as a heat map."""
    rows = [
        {"worker": worker, "class": label, "samples": int(count)}
        for worker, counts in enumerate(table)
        for label, count in enumerate(counts)
    ]
    cell = 22 if len(table) <= 40 else max(2, 880 // len(table))
    return (
        alt.Chart(alt.InlineData(values=rows), title=title)
        .mark_rect()
        .encode(
            x=alt.X("class:O", title="class", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("worker:O", title="worker"),
            color=alt.Color("samples:Q", scale=alt.Scale(range=["white", "#08519c"], domainMin=0)),
            tooltip=["worker:O", "class:O", "samples:Q"],
        )
        .properties(width=alt.Step(28 if len(table[0]) <= 20 else 8), height=alt.Step(cell))
    )


def save(chart: Any, stem: Path, formats: Sequence[str] = FORMATS, ppi: int = 144) -> list[Path]:
    """Write a chart as ``stem.png``, ``stem.svg``, ``stem.html``; the page needs no network."""
    written = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            if kind == "html":
                chart.save(str(temporary), format="html", inline=True)
            else:
                chart.save(str(temporary), format=kind, **({"ppi": ppi} if kind == "png" else {}))
            os.replace(temporary, path)
        except OSError as error:
            raise FednagError(
                f"{path}: cannot write the chart ({error.strerror}); choose another with --out"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        written.append(path)
    return written
