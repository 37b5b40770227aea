"""``fednag time fleets``: what is shipped, shown and copied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednag.cli.common import console


def time_fleets(
    name: Annotated[str, typer.Argument(help="One to show; all are listed without.")] = "",
    copy: Annotated[
        Path | None, typer.Option(help="Write the shipped fleet there, to be edited.")
    ] = None,
) -> None:
    """List the fleets that come with fednag, show one, or copy one to edit it.

    Example: fednag time fleets paper-edge --copy my-fleet.toml
    """
    from rich.table import Table

    from fednag.clock.files import read_fleet
    from fednag.clock.fleet import load_fleet
    from fednag.clock.shelf import copy_fleet, shipped
    from fednag.terminal import paths

    terminal = console()
    if copy is not None:
        paths(terminal, [copy_fleet(name, copy)])
    elif name:
        load_fleet(name)
        terminal.print(read_fleet(name).text.rstrip(), soft_wrap=True, highlight=False)
    else:
        table = Table("name", "devices", "comes and goes", "what it is")
        for known in shipped():
            fleet = load_fleet(known)
            comes = "yes" if fleet.comes_and_goes else "no"
            about = f"{'synthetic: ' if fleet.synthetic else ''}{fleet.about}"
            table.add_row(known, str(len(fleet.devices)), comes, about)
        terminal.print(table)
