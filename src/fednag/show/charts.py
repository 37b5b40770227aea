"""Charts: each one specification, from which PNG, SVG and HTML are all made."""

from __future__ import annotations

import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

import altair as alt

from fednag.core.files import os_errors, write_atomically
from fednag.core.record import Record
from fednag.runs.frontier import Cell
from fednag.runs.labels import grouped, problem_of
from fednag.runs.statistics import aligned, average
from fednag.runs.targets import Target
from fednag.runs.view import RunView
from fednag.show.look import COLOURS, look, styles
from fednag.show.spec import (
    ACROSS,
    MEASURES,
    MOST,
    Lines,
    Track,
    curve_specs,
    titled,
    tracks_of,
)

PICTURES = ("png", "svg")
FORMATS = (*PICTURES, "html")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Waiting is pale: it is what is left.
PARTS = {"compute": COLOURS[1], "down": COLOURS[2], "up": COLOURS[4], "waiting": "#DDDDDD"}


WIDTH, HEIGHT = 380, 300  # of a chart of lines
DIRECT = 14  # lines that are labelled where they end; of more there is a legend
APART = 15  # pixels between two such labels
MARKED = 6  # markers along a line
ITERATIONS = {"iteration": ACROSS["iteration"]}


def curves_chart(runs: Sequence[RunView], most: int = MOST) -> Any:
    """Loss and accuracy over iterations; a line a method, a band of ± one deviation over seeds."""
    panels = [lines_chart(lines) for lines in curve_specs(tracks_of(runs, most))]
    return finished(alt.hconcat(*panels, spacing=30), heading(runs), _seeds(runs), anchor="start")


def what_if_chart(run: RunView, changed: RunView) -> Any:
    """A run and the same with something changed, and below how far the second is from the first.

    What it scores, sends and takes, over iterations.
    """
    tracks = tracks_of([run, changed])
    scored = all("accuracy" in track.measures and track.columns["accuracy"] for track in tracks)
    judged = scored and all(None not in track.columns["accuracy"] for track in tracks)
    columns = ["accuracy" if judged else "loss", "bytes"]
    clocks = {"clock" in track.columns for track in tracks}
    if len(clocks) == 1:  # of different clocks there is no difference
        columns.append("clock" if clocks == {True} else "seconds")
    panels = []
    for name in columns:
        titles = MEASURES | ACROSS
        drawn = Lines(name, titles[name], name, ITERATIONS, tracks, percent=name == "accuracy")
        unit = " (points)" if name == "accuracy" else ""
        gap = _gap(tracks, name, 100 if unit else 1)
        below = Lines(name, f"difference{unit}", name, ITERATIONS, [gap])
        panels.append(alt.vconcat(lines_chart(drawn), lines_chart(below), spacing=10))
    return finished(alt.hconcat(*panels, spacing=30), heading([run, changed]), anchor="start")


def _gap(tracks: Sequence[Track], name: str, scale: float) -> Track:
    """The second track minus the first, at the iterations that both have."""
    tables = [
        dict(zip(track.columns["iteration"], track.columns[name], strict=True)) for track in tracks
    ]
    pairs = [(i, tables[0][i], tables[1][i]) for i in tables[0] if i in tables[1]]
    known = [(i, scale * (b - a)) for i, a, b in pairs if a is not None and b is not None]
    columns: dict[str, list[float | None]] = {
        "iteration": [i for i, _ in known],
        name: [gap for _, gap in known],
        "runs": [1.0] * len(known),
    }
    return Track("changed - run", tracks[1].style, 1, columns, (name,))


def heading(runs: Sequence[RunView]) -> str:
    """What was trained, for the title of a chart: the experiment's name, model, data and split."""
    names = dict.fromkeys(str(run.config["name"]) for run in runs if run.config.get("name"))

    def shared(values: Iterable[object]) -> object:
        (value, *more) = dict.fromkeys(values) or [None]
        return None if more or value == "custom" else value

    data, model = (shared(problem_of(run.settings)[place] for run in runs) for place in (0, 1))
    kind, workers = (
        shared(run.settings.get(f"split.{field}") for run in runs) for field in ("kind", "workers")
    )
    told = " on ".join(str(one) for one in (model, data) if one)
    parts = [told, f"{kind} split" if kind else "", f"{workers} workers" if workers else ""]
    about = ", ".join(part for part in parts if part)
    return ": ".join(part for part in (", ".join(names), about) if part)


def _seeds(runs: Sequence[RunView]) -> str:
    """What bands are; of one seed nothing is said, for there is no spread."""
    most = max((len(group) for group in grouped(runs, lambda run: run.label).values()), default=0)
    return f"mean over {most} seeds; band: ± one standard deviation" if most > 1 else ""


def lines_chart(lines: Lines, across: str = "iteration") -> Any:
    """A chart of lines over one of the things it can be drawn over, each labelled at its end."""
    names = {"x": across, "y": lines.measure}
    names |= {"low": f"{lines.measure}.low", "high": f"{lines.measure}.high"}
    rows = [
        {"method": track.label, **dict(zip(names, point, strict=True))}
        for track in lines.tracks
        for point in zip(*(_column(track, name) for name in names.values()), strict=True)
        if point[1] is not None
    ]
    labels, looks = ([getattr(t, name) for t in lines.tracks] for name in ("label", "style"))
    direct = len(labels) <= DIRECT
    colour, dash = styled("method:N", labels, looks, shown=not direct)
    low, high = _room(rows, lines)
    for row in rows if lines.log else ():  # a log axis has no place for a band that reaches below 0
        row["low"] = None if row["low"] is None else max(row["low"], low)
    scale = alt.Scale(type="log" if lines.log else "linear", domain=[low, high], nice=False)
    title = f"{lines.title} (log scale)" if lines.log else lines.title
    axis = alt.Axis(format="~%") if lines.percent else alt.Undefined
    x = alt.X("x:Q", title=lines.across[across], scale=alt.Scale(nice=False))
    y = alt.Y("y:Q", title=title, scale=scale, axis=axis)
    form = ".2%" if lines.percent else ".4f"
    tooltip = ["method:N", alt.Tooltip("x:Q", title=across), alt.Tooltip("y:Q", format=form)]
    layers = banded(rows, x, y, (colour, dash), tooltip=tooltip)
    layers = layers[all(row["low"] is None for row in rows) :]
    layers.append(_markers(rows, x, y, colour, _shape(labels, looks)))
    if direct:
        layers += _ends(rows, y, (low, high), lines.log, colour, _shape(labels, looks))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _room(rows: Sequence[Mapping[str, Any]], lines: Lines) -> tuple[float, float]:
    """The upward axis, least and greatest, given here so that labels know where lines end."""
    values = [row["y"] for row in rows]
    if lines.log:
        return min(values) * 0.95, max(values) * 1.05
    values += [row[end] for row in rows for end in ("low", "high") if row[end] is not None]
    least, most = min(values), max(values)
    room = (most - least) * 0.04 or abs(most) * 0.1 or 0.5
    if lines.percent:
        return max(0.0, least - room), min(1.0, most + room) if most < 1 else 1 + room / 2
    return least - room, most + room


def _shape(labels: Sequence[str], looks: Sequence[int]) -> alt.Shape:
    scale = alt.Scale(domain=list(labels), range=[look(style).marker for style in looks])
    return alt.Shape("method:N", scale=scale, legend=None)


def _markers(
    rows: Sequence[dict[str, Any]], x: alt.X, y: alt.Y, colour: alt.Color, shape: alt.Shape
) -> Any:
    """Markers at a few places of each line, staggered, to tell lines without their colours."""
    chosen = []
    lines = grouped(rows, lambda row: str(row["method"]))
    for place, own in enumerate(lines.values()):
        step = max(1, len(own) // MARKED)
        chosen += own[place * step // max(1, len(lines)) :: step]
    base = alt.Chart(alt.InlineData(values=chosen))
    return base.mark_point(filled=True, size=42, opacity=1, aria=False).encode(
        x=x, y=y, color=colour, shape=shape
    )


def _ends(
    rows: Sequence[dict[str, Any]],
    y: alt.Y,
    room: tuple[float, float],
    logarithmic: bool,
    colour: alt.Color,
    shape: alt.Shape,
) -> list[Any]:
    """A label beside the end of each line, moved as far as need be not to touch another."""
    f, back = (log, exp) if logarithmic else (float, float)
    low, high = (f(end) for end in room)
    last = {row["method"]: row["y"] for row in rows}
    places = dodged([HEIGHT * (f(value) - low) / (high - low) for value in last.values()])
    ends = [
        {"method": label, "y": value, "at": back(low + place / HEIGHT * (high - low))}
        for (label, value), place in zip(last.items(), places, strict=True)
    ]
    base = alt.Chart(alt.InlineData(values=ends))
    at = y.copy()
    at.shorthand = "at:Q"
    leader = base.mark_rule(strokeWidth=1, aria=False).encode(
        x=alt.value(WIDTH), x2=alt.value(WIDTH + 10), y=y, y2="at:Q", color=colour
    )
    marker = base.mark_point(filled=True, size=42, opacity=1, aria=False).encode(
        x=alt.value(WIDTH + 14), y=at, color=colour, shape=shape
    )
    text = base.mark_text(
        align="left", baseline="middle", fontSize=11, limit=220, aria=False
    ).encode(x=alt.value(WIDTH + 22), y=at, text="method:N")
    return [leader, marker, text]


def dodged(places: Sequence[float], apart: float = APART) -> list[float]:
    """The places moved as little as need be to lie ``apart``; their order stays.

    >>> from fednag.show.charts import dodged
    >>> dodged([10, 11, 50], apart=4)
    [8.5, 12.5, 50.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[tuple[list[int], float]] = []  # whose, and their middle
    for i in order:
        blocks.append(([i], float(places[i])))
        while len(blocks) > 1:
            (one, first), (other, second) = blocks[-2:]
            if second - first >= apart * (len(one) + len(other)) / 2:
                break
            both = [*one, *other]
            # Each wants its own place: the middle is the mean of where each would have it.
            wanted = [places[j] - apart * (k - (len(both) - 1) / 2) for k, j in enumerate(both)]
            blocks[-2:] = [(both, sum(wanted) / len(both))]
    found = [0.0] * len(places)
    for members, middle in blocks:
        for k, i in enumerate(members):
            found[i] = middle + apart * (k - (len(members) - 1) / 2)
    return found


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
    looks: Sequence[int] | None = None,
    shown: bool = True,
    **legend: Any,
) -> tuple[alt.Color, alt.StrokeDash]:
    """A colour and a dash for each name, in one legend; ``looks`` are their numbers."""
    # Spelled out, because a band would otherwise lend the legend its pale fill.
    key = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolOpacity=1,
        symbolFillColor="transparent",
        symbolStrokeWidth=2,
        labelLimit=300,
        **legend,
    )
    drawn = [look(style) for style in (styles(names) if looks is None else looks)]
    ranges: dict[str, Any] = {
        "colour": [one.colour for one in drawn],
        "dash": [one.dash for one in drawn],
    }
    colours, dashes = (alt.Scale(domain=list(names), range=ranges[n]) for n in ("colour", "dash"))
    return (
        alt.Color(field, scale=colours, legend=key if shown else None),
        alt.StrokeDash(field, scale=dashes, legend=key if shown else None),
    )


def finished(chart: Any, title: str = "", small: str = "", **place: Any) -> Any:
    """The grid and the frame that all charts have, a title, and a line in small letters below."""
    if title or small:
        more: dict[str, Any] = {"subtitle": small, "subtitleFontSize": 11} if title else {}
        size = 13 if title else 11
        text = alt.TitleParams(title or small, fontSize=size, fontWeight="normal", **more, **place)
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


# Away is pale too: nothing can be done there.
DOING = {**PARTS, "waiting": "#D5D5D5", "away": "#F7E3C3", "aggregation": "#555555"}


def timeline_chart(panels: Sequence[Mapping[str, Any]], title: str) -> Any:
    """What devices do when, a panel a method: ``Timeline.as_data`` of each, below each other.

    What was in vain is paler; a line is the end of a round.
    """
    drawn = []
    used = {panel["kinds"][span[1]] for panel in panels for span in panel["spans"]}
    kinds = [kind for kind in DOING if kind in used]
    scale = alt.Scale(domain=kinds, range=[DOING[kind] for kind in kinds])
    colour = alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))
    most = max(panel["ends"][-1] - panel["ends"][0] for panel in panels)
    for panel in panels:
        start, last = panel["ends"][0], panel["first"] + len(panel["ends"]) - 2
        ends = [{"x": end} for end in panel["ends"]]
        # What goes on after the last of these rounds is cut off with them.
        edge = panel["ends"][-1]
        rows = [
            {
                "device": panel["rows"][row],
                "kind": panel["kinds"][kind],
                "from": begin,
                "to": min(end, edge),
                "round": number,
                "shade": 0.35 if lost else 1.0,
            }
            for row, kind, begin, end, number, lost in panel["spans"]
            if begin < edge
        ]
        across = alt.X(
            "from:Q",
            title="seconds on the fleet" if panel is panels[-1] else None,
            scale=alt.Scale(domain=[start, start + most], nice=False),
        )
        rounds = f"rounds {panel['first']} to {last}"
        more = f"; {panel['left_out']} more workers" if panel["left_out"] else ""
        more += f"; {panel['idle']} more are away all the time" if panel["idle"] else ""
        heading = alt.TitleParams(
            f"{panel['label']}, seed {panel['seed']}, {rounds}{more}", fontSize=11, anchor="start"
        )
        bars = (
            alt.Chart(alt.InlineData(values=rows), title=heading)
            .mark_bar(height=alt.RelativeBandSize(0.78))
            .encode(
                x=across,
                x2="to:Q",
                y=alt.Y(
                    "device:N",
                    title=None,
                    scale=alt.Scale(domain=list(panel["rows"])),
                    axis=alt.Axis(labelLimit=200, grid=False),
                ),
                color=colour,
                opacity=alt.Opacity("shade:Q", scale=None),
                tooltip=["device:N", "kind:N", "round:Q", "from:Q", "to:Q"],
            )
        )
        rules = (
            alt.Chart(alt.InlineData(values=ends))
            .mark_rule(color="#000", strokeWidth=0.8, opacity=0.65)
            .encode(x="x:Q")
        )
        drawn.append(alt.layer(bars, rules).properties(width=720, height=alt.Step(17)))
    return finished(alt.vconcat(*drawn, spacing=14), title, anchor="start")


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


MOST_CHOICES = 30


def choices_chart(rows: Sequence[dict[str, Any]], title: str, target: str) -> Any:
    """Rows (choice, method, seconds, deviation, reached), best first: points with a deviation, and
    arrows for those that were cut off before they reached it."""
    shown = [
        {
            **row,
            "low": max(row["seconds"] - row["deviation"], row["seconds"] / 10),
            "high": row["seconds"] + row["deviation"],
        }
        for row in rows[:MOST_CHOICES]
    ]
    scale = alt.Scale(type="log", nice=False, padding=16)
    x = alt.X("seconds:Q", title=f"seconds to {target}", scale=scale, axis=alt.Axis(format="~g"))
    y = alt.Y(
        "choice:N",
        title=None,
        sort=[row["choice"] for row in shown],
        axis=alt.Axis(labelLimit=420, grid=True),
    )
    methods = list(dict.fromkeys(row["method"] for row in shown))
    range_ = [look(style).colour for style in styles(methods)]
    colour = alt.Color(
        "method:N", scale=alt.Scale(domain=methods, range=range_), legend=alt.Legend(title=None)
    )
    base = alt.Chart(alt.InlineData(values=shown))
    spread = base.mark_rule(strokeWidth=2, opacity=0.6).encode(
        x=alt.X("low:Q", scale=scale, title=f"seconds to {target}"), x2="high:Q", y=y, color=colour
    )
    dots = base.transform_filter("datum.reached").mark_point(filled=True, size=70, opacity=1)
    cut = base.transform_filter("!datum.reached").mark_point(shape="triangle-right", size=60)
    tooltip = ["choice:N", alt.Tooltip("seconds:Q", format=".4g")]
    encoded = [mark.encode(x=x, y=y, color=colour, tooltip=tooltip) for mark in (dots, cut)]
    chart = alt.layer(spread, *encoded).properties(width=420, height=alt.Step(18))
    more = f"; the first {MOST_CHOICES} of {len(rows)}" if len(rows) > MOST_CHOICES else ""
    small = f"bar: ± one deviation; open triangle: cut off there, it takes longer{more}"
    return finished(chart, title, small, anchor="start")


def tuning_chart(rows: Sequence[dict[str, Any]], measure: str) -> Any:
    """Rows (method, step, value, iterations, momentum, best): trials, a panel a method."""
    groups = grouped(rows, lambda row: str(row["method"]))
    steps = [row["step"] for row in rows]
    scale = alt.Scale(type="log", nice=False, padding=6, domain=[min(steps), max(steps)])
    x = alt.X("step:Q", title="effective step", scale=scale, axis=alt.Axis(format="~g"))
    last = max(row["iterations"] for row in rows)
    title = f"validation {titled(measure).removeprefix('test ')}"
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    momenta = sorted({row["momentum"] for row in rows})
    colour = alt.Color(
        "momentum:O", scale=alt.Scale(domain=momenta, scheme="viridis"), title="momentum"
    )
    size = alt.Size(
        "iterations:O", scale=alt.Scale(range=[14, 60]), title=f"iterations, {last} at most"
    )
    panels = []
    for method, own in groups.items():
        base = alt.Chart(alt.InlineData(values=own))
        tooltip = ["step:Q", "momentum:O", "iterations:O", alt.Tooltip("value:Q", format=".4g")]
        points = base.mark_point(filled=True, opacity=0.85).encode(
            x=x, y=y, color=colour, size=size, tooltip=tooltip
        )
        ring = (
            base.transform_filter("datum.best")
            .mark_point(size=170, strokeWidth=2, color="#c00", opacity=1)
            .encode(x=x, y=y)
        )
        heading = alt.TitleParams(method, fontSize=11, anchor="start")
        panels.append(alt.layer(points, ring).properties(width=220, height=150, title=heading))
    chart = alt.concat(*panels, columns=4)
    return finished(chart, "trials; ring: the best of those that went furthest", anchor="start")


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
        scale=alt.Scale(domain=methods, range=[look(style).colour for style in styles(methods)]),
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
