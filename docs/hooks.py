"""Writes the reference of commands from the commands themselves, when the pages are built."""

from __future__ import annotations

from typing import Any

import typer

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


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
