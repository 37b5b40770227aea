"""``fednag time fleets``: what is shipped, shown and copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import console, print_json
from fednag.cli.options import Json

if TYPE_CHECKING:
    from fednag.devices.fleet import Fleet


def time_fleets(
    name: Annotated[
        str,
        typer.Argument(
            help="One to show; all are listed without.", autocompletion=completing.fleets
        ),
    ] = "",
    copy: Annotated[
        Path | None, typer.Option(help="Write the shipped fleet there, to be edited.")
    ] = None,
    json: Json = False,
) -> None:
    """List the fleets that come with fednag, show one, or copy one to edit it.

    Example: fednag time fleets paper-edge --copy my-fleet.toml
    """
    from tomllib import loads

    from rich.table import Table

    from fednag.devices.files import copy_fleet, read_fleet, shipped
    from fednag.devices.fleet import load_fleet
    from fednag.show.terminal import paths

    terminal = console()
    if copy is not None:
        written = copy_fleet(name, copy)
        if json:
            print_json({"files": [str(written)]})
        else:
            paths(terminal, [written])
    elif name:
        load_fleet(name)
        found = read_fleet(name)
        if json:
            print_json(loads(found.text))
        else:
            terminal.print(found.text.rstrip(), soft_wrap=True, highlight=False)
    else:
        rows = [_row(load_fleet(known)) for known in shipped()]
        if json:
            print_json(rows)
            return
        table = Table("name", "devices", "comes and goes", "what it is")
        for row in rows:
            comes = "yes" if row["comes_and_goes"] else "no"
            about = f"{'synthetic: ' if row['synthetic'] else ''}{row['about']}"
            table.add_row(row["name"], str(row["devices"]), comes, about)
        terminal.print(table)


def _row(fleet: Fleet) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "devices": len(fleet.devices),
        "comes_and_goes": fleet.comes_and_goes,
        "synthetic": fleet.synthetic,
        "about": fleet.about,
    }
