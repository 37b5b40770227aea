"""Charts of bounds: panels of lines on log axes, from plain rows (x, y, series, part)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fednag.show.charts import COLOURS, DASHES


@dataclass(frozen=True)
class Panel:
    """One chart of a row; lines of a series are drawn apart where ``part`` differs."""

    title: str
    across: str
    up: str
    rows: Sequence[dict[str, Any]]
    log_across: bool = True
    dots: bool = False


def bounds_chart(panels: Sequence[Panel], columns: int = 3) -> Any:
    """Panels side by side, ``columns`` a row, values of 0 or less are left out."""
    names = list(dict.fromkeys(row["series"] for panel in panels for row in panel.rows))
    drawn = [_panel(panel, names) for panel in panels if _shown(panel)]
    chart = alt.concat(*drawn, columns=columns)
    chart = chart.resolve_scale(color="independent", strokeDash="independent")
    return chart.configure_axis(grid=True, gridOpacity=0.4).configure_view(stroke="#ccc")


def _shown(panel: Panel) -> list[dict[str, Any]]:
    return [row for row in panel.rows if row["y"] > 0]


def _panel(panel: Panel, names: list[str]) -> Any:
    rows = _shown(panel)
    here = [name for name in names if any(row["series"] == name for row in rows)]
    places = [names.index(name) for name in here]
    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolStrokeWidth=2,
        labelLimit=300,
        orient="bottom",
        columns=2,
    )
    colours = alt.Scale(domain=here, range=[COLOURS[i % len(COLOURS)] for i in places])
    dashes = alt.Scale(domain=here, range=[DASHES[i % len(DASHES)] for i in places])
    across = alt.Scale(type="log" if panel.log_across else "linear", nice=False)
    return (
        alt.Chart(alt.InlineData(values=rows), title=panel.title)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=8) if panel.dots else False)
        .encode(
            x=alt.X("x:Q", title=panel.across, scale=across),
            y=alt.Y("y:Q", title=panel.up, scale=alt.Scale(type="log", nice=False)),
            color=alt.Color("series:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=legend),
            detail="part:N",
            tooltip=["series:N", "x:Q", alt.Tooltip("y:Q", format=".4g")],
        )
        .properties(width=280, height=240)
    )
