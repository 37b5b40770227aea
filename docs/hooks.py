"""Fills pages when they are built: the reference of commands, and live charts.

``<!-- commands -->`` becomes the reference, written from the commands themselves. ``<!-- chart NAME
-->`` becomes the chart of a figure in ``docs/paper/records/laptop``, drawn in the reader's browser
by a library that is part of the site: nothing is fetched from elsewhere.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer

MARK = "<!-- commands -->"
CHART = re.compile(r"<!-- chart ([\w-]+) -->")
RECORDS, SCALE = Path(__file__).parent / "paper", "laptop"
LIBRARY = "assets/vega.js"
DRAW = f"""
<script src="{LIBRARY}"></script>
<script>
for (const place of document.querySelectorAll(".live-chart")) {{
  const spec = JSON.parse(place.nextElementSibling.textContent);
  vegaEmbed(place, spec, {{ actions: false, renderer: "svg", tooltip: true }});
}}
</script>
"""


def on_page_markdown(markdown: str, **_: Any) -> str:
    if CHART.search(markdown):
        markdown = CHART.sub(lambda match: live(match[1]), markdown) + DRAW
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def on_post_build(config: Any, **_: Any) -> None:
    import vl_convert

    path = Path(config["site_dir"]) / LIBRARY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(vl_convert.javascript_bundle(), encoding="utf-8")


def live(figure: str) -> str:
    """A figure's picture, and the live chart that the page's script puts in its place."""
    text = json.dumps(spec(figure), separators=(",", ":")).replace("<", "\\u003c")
    picture = f'<img src="paper/charts/{SCALE}/{figure}.png" alt="{figure}">'
    return (
        f'<div class="live-chart" style="overflow-x: auto; background: white">{picture}</div>\n'
        f'<script type="application/json">{text}</script>\n'
    )


def spec(figure: str) -> dict[str, Any]:
    """Vega-Lite's specification of a figure's chart, with values under the mouse."""
    from fednag.paper.figure import pick, read_figures
    from fednag.paper.page import records_of
    from fednag.paper.panels import panels, paper_chart

    chosen = pick(read_figures(), figure)
    found: dict[str, Any] = paper_chart(
        panels(chosen, records_of(chosen, SCALE, RECORDS))
    ).to_dict()
    found["config"]["mark"] = {"tooltip": True}
    return found


def commands() -> str:
    from fednag.cli import app

    root = typer.main.get_command(app)
    return "\n".join(_described(root, "fednag"))


def _described(command: Any, name: str) -> list[str]:
    if hasattr(command, "commands"):
        lines = []
        for child in command.commands.values():
            if not child.hidden:
                lines += _described(child, f"{name} {child.name}")
        return lines
    text = (command.help or "").split("\f")[0].strip()
    lines = [f"## `{name}`", "", *map(_example, text.splitlines()), ""]
    rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        lines += ["| | | default |", "| --- | --- | --- |", *rows, ""]
    return lines


def _example(line: str) -> str:
    """What stands after "Example:" is a command."""
    head, colon, rest = line.partition("Example: ")
    return f"{head}Example: `{rest}`" if colon else line


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    name = ", ".join(parameter.opts) if is_option else parameter.name.upper()
    about = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    default = parameter.default
    shown = "" if default in (None, (), [], "", False) or callable(default) else f"`{default}`"
    return f"| `{name}` | {about} | {shown} |"
