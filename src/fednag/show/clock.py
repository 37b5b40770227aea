"""Charts of time: accuracy over seconds, where devices' time goes, time over tau."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fednag.show.charts import COLOURS, DASHES, styled
from fednag.show.spec import titled

# Waiting is pale: it is what is left.
PARTS = {"compute": "#0072B2", "down": "#009E73", "up": "#E69F00", "waiting": "#DDDDDD"}


def time_chart(
    curves: Sequence[dict[str, Any]],
    shares: Sequence[dict[str, Any]],
    title: str,
    measure: str = "accuracy",
    target: float | None = None,
) -> Any:
    """Rows (method, seconds, measure, low, high) as lines; rows (method, device, part, seconds,
    order) as stacked bars below each other."""
    methods = list(dict.fromkeys(row["method"] for row in curves))
    drawn = [_lines(curves, methods, measure, target)] if curves else []
    chart = alt.hconcat(*drawn, _bars(shares), spacing=40).resolve_scale(
        color="independent", strokeDash="independent"
    )
    return _finished(chart, title)


def _lines(
    rows: Sequence[dict[str, Any]], methods: list[str], measure: str, target: float | None
) -> Any:
    colour, dash = _by_method(methods)
    title = titled(measure)
    base = alt.Chart(alt.InlineData(values=list(rows)))
    scale = alt.Scale(zero=False, nice=False)
    across = alt.X("seconds:Q", title="seconds on the fleet", scale=alt.Scale(nice=False))
    band = base.mark_area(opacity=0.15).encode(
        x=across,
        y=alt.Y("low:Q", title=title, scale=scale),
        y2="high:Q",
        color=colour,
    )
    line = base.mark_line(strokeWidth=2).encode(
        x=across,
        y=alt.Y(f"{measure}:Q", title=title, scale=scale),
        color=colour,
        strokeDash=dash,
        tooltip=["method:N", alt.Tooltip("seconds:Q", format=".1f"), f"{measure}:Q"],
    )
    layers = [band, line]
    if target is not None:
        rule = alt.Chart(alt.InlineData(values=[{"target": target}]))
        layers.append(rule.mark_rule(strokeDash=[3, 3], color="#666").encode(y="target:Q"))
    return alt.layer(*layers).properties(width=420, height=320)


def _bars(rows: Sequence[dict[str, Any]]) -> Any:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())),
        legend=alt.Legend(title=None),
    )
    panels = []
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["method"], row["device"])
        sums[key] = sums.get(key, 0.0) + row["seconds"]
    longest = max(sums.values()) or 1.0
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        last = method == methods[-1]
        panels.append(
            alt.Chart(
                alt.InlineData(values=own),
                title=alt.TitleParams(method, fontSize=11, anchor="start"),
            )
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
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colour, dash = _by_method(methods)
    across = alt.X(
        "tau:Q",
        title="tau: local iterations between two aggregations",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=sorted({row["tau"] for row in rows}), format="d"),
    )
    up = alt.Scale(type="log", nice=False, padding=12)
    base = alt.Chart(alt.InlineData(values=list(rows)))
    band = base.mark_area(opacity=0.15).encode(
        x=across, y=alt.Y("low:Q", scale=up), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30)).encode(
        x=across,
        y=alt.Y("seconds:Q", title=f"seconds to {target}", scale=up),
        color=colour,
        strokeDash=dash,
        tooltip=["method:N", "tau:Q", alt.Tooltip("seconds:Q", format=".4g")],
    )
    ring = (
        base.transform_filter("datum.best")
        .mark_point(size=220, strokeWidth=2, color="#000000")
        .encode(x=across, y=alt.Y("seconds:Q", scale=up))
    )
    return _finished(alt.layer(band, line, ring).properties(width=520, height=340), title)


def _by_method(methods: list[str]) -> tuple[alt.Color, alt.StrokeDash]:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(methods))]
    dashes = [DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in range(len(methods))]
    return styled("method:N", methods, colours, dashes, orient="bottom", columns=4)


def _finished(chart: Any, title: str) -> Any:
    text = alt.TitleParams(title, fontSize=11, fontWeight="normal", anchor="start")
    chart = chart.properties(title=text)
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")
