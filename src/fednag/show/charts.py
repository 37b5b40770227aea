"""Charts: each one specification, from which PNG, SVG and HTML are all made."""

from __future__ import annotations

import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt

from fednag.core.files import os_errors, write_atomically
from fednag.core.record import Record
from fednag.runs.frontier import Cell
from fednag.runs.labels import grouped
from fednag.runs.statistics import aligned, average
from fednag.runs.targets import Target
from fednag.runs.view import RunView
from fednag.show.spec import COLOURS, DASHES, MOST, Lines, Track, curve_specs, titled, tracks_of

PICTURES = ("png", "svg")
FORMATS = (*PICTURES, "html")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Waiting is pale: it is what is left.
PARTS = {"compute": "#0072B2", "down": "#009E73", "up": "#E69F00", "waiting": "#DDDDDD"}


def curves_chart(runs: Sequence[RunView], most: int = MOST) -> Any:
    """Loss and accuracy over iterations; a line a method, a band of ± one deviation over seeds."""
    panels = [lines_chart(lines) for lines in curve_specs(tracks_of(runs, most))]
    seeds = len({run.seed for run in runs})
    title = f"mean over {seeds} seeds; band: ± one standard deviation" if seeds > 1 else ""
    return finished(alt.hconcat(*panels), title)


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
    labels, styles = ([getattr(t, name) for t in lines.tracks] for name in ("label", "style"))
    colour, dash = styled("method:N", labels, styles)
    lowest, highest = (f(row["y"] for row in rows) for f in (min, max))
    scale = alt.Scale(zero=False)
    if lines.log:
        scale = alt.Scale(type="log", domain=[lowest * 0.95, highest * 1.05], nice=False)
        for row in rows:  # a log axis has no place for a band that reaches below 0
            row["low"] = None if row["low"] is None else max(row["low"], lowest * 0.95)
    x = alt.X("x:Q", title=lines.across[across], scale=alt.Scale(nice=False))
    y = alt.Y("y:Q", title=lines.title, scale=scale)
    tooltip = ["method:N", alt.Tooltip("x:Q", title=across), alt.Tooltip("y:Q", format=".4f")]
    layers = banded(rows, x, y, (colour, dash), tooltip=tooltip)
    single = all(row["low"] is None for row in rows)
    return alt.layer(*layers[single:]).properties(width=380, height=300)


def banded(
    rows: Sequence[dict[str, Any]],
    x: alt.X,
    y: alt.Y,
    style: tuple[alt.Color, alt.StrokeDash],
    width: float = 2,
    tooltip: Any = alt.Undefined,
    **line: Any,
) -> list[Any]:
    """A band from ``low`` to ``high``, and a line on top."""
    colour, dash = style
    low = y.copy()
    low.shorthand = "low:Q"
    base = alt.Chart(alt.InlineData(values=list(rows)))
    band = base.mark_area(opacity=0.15, clip=True).encode(x=x, y=low, y2="high:Q", color=colour)
    drawn = base.mark_line(strokeWidth=width, **line).encode(
        x=x, y=y, color=colour, strokeDash=dash, tooltip=tooltip
    )
    return [band, drawn]


def styled(
    field: str,
    names: Sequence[str],
    styles: Sequence[int] | None = None,
    palette: tuple[list[str], list[list[int]]] = (COLOURS, DASHES),
    **legend: Any,
) -> tuple[alt.Color, alt.StrokeDash]:
    """A colour and a dash for each name, in one legend; ``styles`` are their places in both."""
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
    places = range(len(names)) if styles is None else styles
    colours = [palette[0][i % len(palette[0])] for i in places]
    # Where a colour comes again, it comes with another dash.
    dashes = [palette[1][(i + i // len(palette[0])) % len(palette[1])] for i in places]
    return (
        alt.Color(field, scale=alt.Scale(domain=list(names), range=colours), legend=shown),
        alt.StrokeDash(field, scale=alt.Scale(domain=list(names), range=dashes), legend=shown),
    )


def finished(chart: Any, title: str = "", **place: Any) -> Any:
    """The grid and the frame that all charts have, and a title in small letters."""
    if title:
        text = alt.TitleParams(title, fontSize=11, fontWeight="normal", **place)
        chart = chart.properties(title=text)
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def _column(track: Track, name: str) -> Sequence[float | None]:
    return track.columns.get(name) or [None] * len(track.columns["runs"])


def split_chart(table: Sequence[Sequence[int]], title: str) -> Any:
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
    options_of: dict[str, dict[str, Any]] = {"html": {"inline": True}, "png": {"ppi": ppi}}
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with os_errors(path, "cannot write the chart", "choose another with --out"):
            try:
                chart.save(str(temporary), format=kind, **options_of.get(kind, {}))
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        written.append(path)
    return written


def squeeze(path: Path) -> None:
    """The same picture in fewer bytes; about a third for charts."""
    content = path.read_bytes()
    place, pixels, before, after = len(SIGNATURE), b"", b"", b""
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        chunk = content[place : place + size + 12]  # size, name, data, checksum
        place += size + 12
        if chunk[4:8] == b"IDAT":
            pixels += chunk[8:-4]
        elif pixels:
            after += chunk
        else:
            before += chunk
    packed = b"IDAT" + zlib.compress(zlib.decompress(pixels), 9)
    middle = struct.pack(">I", len(packed) - 4) + packed + struct.pack(">I", zlib.crc32(packed))
    if len(middle) < len(content) - len(before) - len(after):
        write_atomically(path, SIGNATURE + before + middle + after)


def time_chart(
    curves: Sequence[dict[str, Any]],
    shares: Sequence[dict[str, Any]],
    title: str,
    measure: str = "accuracy",
    target: float | None = None,
) -> Any:
    """Rows (method, seconds, measure, low, high) as lines; rows (method, device, part, seconds,
    order) as stacked bars below each other."""
    drawn = [_times(curves, measure, target)] if curves else []
    chart = alt.hconcat(*drawn, _shares(shares), spacing=40).resolve_scale(
        color="independent", strokeDash="independent"
    )
    return finished(chart, title, anchor="start")


def _times(rows: Sequence[dict[str, Any]], measure: str, target: float | None) -> Any:
    x = alt.X("seconds:Q", title="seconds on the fleet", scale=alt.Scale(nice=False))
    y = alt.Y(f"{measure}:Q", title=titled(measure), scale=alt.Scale(zero=False, nice=False))
    tooltip = ["method:N", alt.Tooltip("seconds:Q", format=".1f"), f"{measure}:Q"]
    layers = banded(rows, x, y, _by_method(rows), tooltip=tooltip)
    if target is not None:
        rule = alt.Chart(alt.InlineData(values=[{"target": target}]))
        layers.append(rule.mark_rule(strokeDash=[3, 3], color="#666").encode(y="target:Q"))
    return alt.layer(*layers).properties(width=420, height=320)


def _by_method(rows: Sequence[dict[str, Any]]) -> tuple[alt.Color, alt.StrokeDash]:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    return styled("method:N", methods, orient="bottom", columns=4)


def _shares(rows: Sequence[dict[str, Any]]) -> Any:
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    colour = alt.Color("part:N", scale=scale, legend=alt.Legend(title=None))
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        sums[row["method"], row["device"]] += row["seconds"]
    longest = max(sums.values()) or 1.0
    groups = grouped(rows, lambda row: str(row["method"]))
    panels = []
    for number, (method, own) in enumerate(groups.items(), 1):
        last = number == len(groups)
        title = alt.TitleParams(method, fontSize=11, anchor="start")
        panels.append(
            alt.Chart(alt.InlineData(values=own), title=title)
            .mark_bar()
            .encode(
                y=alt.Y("device:N", title=None, sort=None, axis=alt.Axis(labelLimit=200)),
                x=alt.X(
                    "seconds:Q",
                    title="seconds of an average round" if last else None,
                    axis=alt.Axis(labels=last, ticks=last),
                    scale=alt.Scale(domain=[0, longest], nice=False),
                ),
                color=colour,
                order="order:Q",
                tooltip=["device:N", "part:N", alt.Tooltip("seconds:Q", format=".4g")],
            )
            .properties(width=320, height=alt.Step(16))
        )
    return alt.vconcat(*panels, spacing=8)


def plan_chart(rows: Sequence[dict[str, Any]], title: str, target: str) -> Any:
    """Rows (method, tau, seconds, low, high, best) as time over tau; a ring around the best."""
    scale = alt.Scale(type="log", nice=False, padding=12)
    across = alt.X(
        "tau:Q",
        title="tau: local iterations between two aggregations",
        scale=scale,
        axis=alt.Axis(values=sorted({row["tau"] for row in rows}), format="d"),
    )
    tooltip = ["method:N", "tau:Q", alt.Tooltip("seconds:Q", format=".4g")]
    point = alt.OverlayMarkDef(size=30)
    y = alt.Y("seconds:Q", title=f"seconds to {target}", scale=scale)
    layers = banded(rows, across, y, _by_method(rows), tooltip=tooltip, point=point)
    ring = (
        alt.Chart(alt.InlineData(values=list(rows)))
        .transform_filter("datum.best")
        .mark_point(size=220, strokeWidth=2, color="#000000")
        .encode(x=across, y=y)
    )
    chart = alt.layer(*layers, ring).properties(width=520, height=340)
    return finished(chart, title, anchor="start")


@dataclass(frozen=True)
class Bounds:
    """A panel of bounds: rows (x, y, series, part), lines drawn apart where ``part`` differs."""

    title: str
    across: str
    up: str
    rows: Sequence[dict[str, Any]]
    log_across: bool = True
    dots: bool = False


def bounds_chart(panels: Sequence[Bounds], columns: int = 3) -> Any:
    """Panels of lines on log axes, ``columns`` a row; values of 0 or less are left out."""
    names = list(dict.fromkeys(row["series"] for panel in panels for row in panel.rows))
    shown = [replace(panel, rows=[row for row in panel.rows if row["y"] > 0]) for panel in panels]
    chart = alt.concat(*(_bounds(panel, names) for panel in shown if panel.rows), columns=columns)
    return finished(chart.resolve_scale(color="independent", strokeDash="independent"))


def _bounds(panel: Bounds, names: list[str]) -> Any:
    here = [name for name in names if any(row["series"] == name for row in panel.rows)]
    places = [names.index(name) for name in here]
    colour, dash = styled("series:N", here, places, orient="bottom", columns=2)
    across = alt.Scale(type="log" if panel.log_across else "linear", nice=False)
    return (
        alt.Chart(alt.InlineData(values=panel.rows), title=panel.title)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=8) if panel.dots else False)
        .encode(
            x=alt.X("x:Q", title=panel.across, scale=across),
            y=alt.Y("y:Q", title=panel.up, scale=alt.Scale(type="log", nice=False)),
            color=colour,
            strokeDash=dash,
            detail="part:N",
            tooltip=["series:N", "x:Q", alt.Tooltip("y:Q", format=".4g")],
        )
        .properties(width=280, height=240)
    )


# Enough to distinguish eight uplinks; the first is none, which is a plain line.
UPLINK_DASHES = [[1, 0], [7, 2], [2, 2], [9, 3, 2, 3], [4, 4], [1, 3], [12, 3], [6, 2, 1, 2, 1, 2]]


def frontier_chart(
    runs: Sequence[RunView],
    cells: Sequence[Cell],
    names: Mapping[str, tuple[str, str]],
    target: Target,
    ends: Sequence[tuple[RunView, Sequence[Any]]] = (),
    fleet: str = "",
) -> Any:
    """A measure over bytes and, with ``ends`` of rounds on a fleet, over seconds.

    A line a cell, ``names`` its method and uplink; a ring where one that is not dominated ends.
    """
    marked = {cell.label: cell for cell in cells}
    sent: list[tuple[str, dict[int, tuple[float, Record]]]] = [
        (run.label, {r.iteration: (r.bytes_up + r.bytes_down, r) for r in run.records if r.round})
        for run in runs
    ]
    panels = [("", "bytes sent, both ways", "least_bytes", sent)]
    if ends:
        spent = [
            (
                run.label,
                {
                    r.iteration: (average([float(played[r.round]) for played in replays]), r)
                    for r in run.records
                    if r.round
                },
            )
            for run, replays in ends
        ]
        panels.append((fleet, "seconds on the fleet", "least_seconds", spent))
    drawn = []
    for title, across, mark, points in panels:
        rows = []
        for label in names:
            own = [run for name, run in points if name == label]
            method, uplink = names[label]
            line = []
            for _, here in aligned(own):
                values = [r.measured(target.measure) for _, r in here]
                known = [value for value in values if value is not None]
                if len(known) == len(values):
                    x = average([cost for cost, _ in here])
                    line.append({"method": method, "uplink": uplink, "cell": label, "x": x})
                    line[-1] |= {"y": average(known), "end": False}
            if line:
                line[-1]["end"] = getattr(marked[label], mark)
            rows += line
        if rows:
            drawn.append(_frontier(rows, across, names, target, title))
    several = len({run.seed for run in runs})
    said = f"mean over {several} seeds; " if several > 1 else ""
    title = f"{said}ring: not dominated at its end; dotted across: {target.words}"
    return finished(alt.hconcat(*drawn, spacing=40), title, anchor="start")


def _frontier(
    rows: Sequence[dict[str, Any]],
    across: str,
    names: Mapping[str, tuple[str, str]],
    target: Target,
    title: str,
) -> Any:
    methods = list(dict.fromkeys(method for method, _ in names.values()))
    uplinks = list(dict.fromkeys(uplink for _, uplink in names.values()))
    shown: dict[str, Any] = {
        "symbolType": "stroke",
        "symbolStrokeWidth": 2,
        "labelLimit": 400,
        "symbolSize": 900,
    }
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(
            domain=methods, range=[COLOURS[i % len(COLOURS)] for i in range(len(methods))]
        ),
        legend=alt.Legend(title="method (colour)", **shown),
    )
    dashes = [UPLINK_DASHES[i % len(UPLINK_DASHES)] for i in range(len(uplinks))]
    dash = alt.StrokeDash(
        "uplink:N",
        scale=alt.Scale(domain=uplinks, range=dashes),
        legend=alt.Legend(title="uplink (dash)", **shown),
    )
    base = alt.Chart(alt.InlineData(values=list(rows)))
    x = alt.X(
        "x:Q",
        title=across,
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(format="~s" if across.startswith("bytes") else "~g", tickCount=6),
    )
    y = alt.Y("y:Q", title=titled(target.measure), scale=alt.Scale(zero=False))
    line = base.mark_line(strokeWidth=1.8).encode(
        x=x,
        y=y,
        color=colour,
        strokeDash=dash,
        detail="cell:N",
        tooltip=["method:N", "uplink:N", alt.Tooltip("x:Q", title=across), "y:Q"],
    )
    ring = (
        base.transform_filter("datum.end")
        .mark_point(size=110, strokeWidth=2.2, filled=False, opacity=1)
        .encode(x=x, y=y, color=colour)
    )
    rule = alt.Chart(alt.InlineData(values=[{"target": target.value}]))
    level = rule.mark_rule(strokeDash=[2, 3], color="#666").encode(y="target:Q")
    heading = alt.TitleParams(title, fontSize=11, anchor="start", fontWeight="normal")
    return alt.layer(level, line, ring).properties(width=460, height=380, title=heading)
