"""``fednag watch``: runs as they are made, in the terminal or in the browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednag.cli.common import console, print_json
from fednag.cli.options import Json
from fednag.errors import FednagError, printable

if TYPE_CHECKING:
    from fednag.show.watch import Follower


def watch(
    runs: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    web: Annotated[bool, typer.Option("--web", help="Serve a page to this machine only.")] = False,
    port: Annotated[int, typer.Option(help="--web: port; 0: a free one.", min=0, max=65535)] = 0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    json: Json = False,
) -> None:
    """Follow runs as they are made: progress, sparklines, time left. Ctrl-C leaves.

    Example: fednag watch runs --web
    """
    from fednag.show.watch import Follower

    if web and (once or json):
        raise FednagError("--web", "it goes on", "leave out --once and --json")
    if runs.exists() and not runs.is_dir():
        raise FednagError(runs, "is not a folder", "give a folder of runs")
    if (once or json) and not runs.exists():
        raise FednagError(runs, "no such folder", "give a folder of runs")
    follower = Follower(runs)
    try:
        if web:
            _serve(follower, port)
        elif once or json:
            _once(follower, json)
        elif console().is_terminal:
            _screen(follower, interval)
        else:
            _lines(follower, interval)
    except KeyboardInterrupt:
        return


def _once(follower: Follower, json: bool) -> None:
    from fednag.show.watch import as_data, screen

    look = follower.look()
    if json:
        print_json({"runs": [as_data(view) for view in look.views], "failed": look.failed})
    else:
        terminal = console()
        terminal.print(screen(look, str(follower.root), most=1000, width=terminal.width))


def _screen(follower: Follower, interval: float) -> None:
    from rich.live import Live

    from fednag.show.watch import screen

    terminal = console()
    root = str(follower.root)

    def drawn() -> object:
        most = max(3, terminal.height - 8)
        return screen(follower.look(), root, most, terminal.width)

    with Live(drawn(), console=terminal, auto_refresh=False) as live:  # type: ignore[arg-type]
        while True:
            time.sleep(interval)
            live.update(drawn(), refresh=True)  # type: ignore[arg-type]


def _lines(follower: Follower, interval: float) -> None:
    from fednag.show.watch import plain_line

    said: dict[object, str] = {}
    tag = None
    while True:
        look = follower.look()
        if look.tag != tag:
            tag = look.tag
            for view in look.views:
                if said.get(view.folder) != (line := plain_line(view)):
                    said[view.folder] = line
                    print(printable(line), flush=True)
        time.sleep(interval)


def _serve(follower: Follower, port: int) -> None:
    from fednag.show.serve import Server

    with Server(follower, port) as server:
        print(
            f"watching {printable(str(follower.root))} at {server.address} (Ctrl-C leaves)",
            flush=True,
        )
        server.serve_forever(poll_interval=0.2)
