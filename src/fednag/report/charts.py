"""One chart specification, from which PNG, SVG and HTML are all made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from fednag.errors import FednagError
from fednag.report.tables import Curve

# Okabe and Ito's colours, distinguishable with any colour vision; dashes repeat what they say.
COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]

FORMATS = ("png", "svg", "html")


def curves_chart(curves: Sequence[Curve]) -> Any:
    """Loss and accuracy over iterations; a line a method, a band of ± one deviation over seeds."""
    measures = [("loss", "global training loss"), ("accuracy", "test accuracy")]
    panels = [
        panel
        for measure, title in measures
        if (panel := _panel(curves, measure, title)) is not None
    ]
    seeds = sorted({curve.seed for curve in curves})
    chart = alt.hconcat(*panels)
    if len(seeds) > 1:
        shown = f"mean over {len(seeds)} seeds; band: ± one standard deviation"
        chart = chart.properties(title=alt.TitleParams(shown, fontSize=11, fontWeight="normal"))
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def _panel(curves: Sequence[Curve], measure: str, title: str) -> Any:
    rows = [
        {"method": c.label, "seed": c.seed, "iteration": r.iteration, measure: getattr(r, measure)}
        for c in curves
        for r in c.records
        if getattr(r, measure) is not None
    ]
    if not rows:
        return None
    # Spelled out, because a band would otherwise lend the legend its pale fill.
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolOpacity=1,
        symbolFillColor="transparent",
        symbolStrokeWidth=2,
        labelLimit=300,
    )
    methods = list(dict.fromkeys(c.label for c in curves))
    repeat = range(len(methods))
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=methods, range=[COLOURS[i % len(COLOURS)] for i in repeat]),
        legend=legend,
    )
    dash = alt.StrokeDash(
        "method:N",
        scale=alt.Scale(
            domain=methods, range=[DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in repeat]
        ),
        legend=legend,
    )
    lowest, highest = (f(row[measure] for row in rows) for f in (min, max))
    scale = alt.Scale(zero=False)
    if measure == "loss" and lowest > 0:
        scale = alt.Scale(type="log", domain=[lowest * 0.95, highest * 1.05], nice=False)
    base = alt.Chart(alt.InlineData(values=rows)).properties(width=380, height=300)
    line = base.mark_line(strokeWidth=2).encode(
        x=alt.X("iteration:Q", title="iterations", scale=alt.Scale(nice=False)),
        y=alt.Y(f"mean({measure}):Q", title=title, scale=scale),
        color=colour,
        strokeDash=dash,
        tooltip=["method:N", "iteration:Q", alt.Tooltip(f"mean({measure}):Q", format=".4f")],
    )
    if len({c.seed for c in curves}) == 1:
        return line
    band = base.mark_errorband(extent="stdev", opacity=0.15).encode(
        x="iteration:Q",
        y=alt.Y(f"{measure}:Q", title=title, scale=scale),
        color=colour,
    )
    return band + line


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
        temporary = path.with_name(f".{path.name}.tmp")
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
