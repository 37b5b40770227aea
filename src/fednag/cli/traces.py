"""``fednag time get`` and ``fednag time convert``: fleets of published traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednag.cli import completing
from fednag.cli.common import answer, table
from fednag.cli.options import Json, Quiet, written_to
from fednag.errors import FednagError


def time_get(
    name: Annotated[
        str,
        typer.Argument(
            help="A published trace; all are listed without.", autocompletion=completing.traces
        ),
    ] = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Download a published trace of real devices from its authors' address.

    None is shipped: each comes under its own licence, which is printed.

    Example: fednag time get fedscale
    """
    from fednag.devices.published import PUBLISHED, get_trace

    if not name:
        made = table(["name", "kind", "licence", "files", "what it is"])
        rows = []
        for found in PUBLISHED.values():
            by_hand = found.source is None
            state = "by hand" if by_hand else "missing" if found.missing() else "here"
            made.add_row(found.name, found.kind, found.licence, state, found.about)
            row = {"name": found.name, "kind": found.kind, "licence": found.licence}
            rows.append({**row, "files": state, "about": found.about, "page": found.page})
        answer(json, rows, made)
        return
    folder = get_trace(name, progress=not quiet)
    found = PUBLISHED[name]
    files = [str(path) for path in found.files()]
    said = f"{name} is in {folder}; licence: {found.licence} ({found.page})"
    told = {"name": name, "folder": str(folder), "kind": found.kind, "licence": found.licence}
    answer(json, {**told, "traces": files}, said)


def time_convert(
    kind: Annotated[
        str,
        typer.Argument(
            help="fedscale, flash, raca or mobile-bandwidth.", autocompletion=completing.trace_kinds
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Its files; without any, those that `fednag time get` has fetched."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Devices, evenly chosen.")] = 1000,
    gflops: Annotated[
        float, typer.Option(help="Billions of operations a second, where the trace says none.")
    ] = 20.0,
    up: Annotated[float, typer.Option(help="Mbit/s up, where the trace says none.")] = 8.0,
    down: Annotated[float, typer.Option(help="Mbit/s down, where the trace says none.")] = 25.0,
    latency: Annotated[float, typer.Option(help="Seconds, where the trace says none.")] = 0.05,
    flops: Annotated[
        float, typer.Option(help="fedscale: operations of the training step its times are of.")
    ] = 3.5e9,
    plain: Annotated[
        bool, typer.Option("--plain", help="fedscale: write its files as JSON, too.")
    ] = False,
    out: Annotated[Path, written_to("Folder of the fleet.")] = Path("fleet"),
    json: Json = False,
) -> None:
    """Make a fleet of a published trace's files; what a trace does not say is assumed, and said.

    Example: fednag time convert fedscale client_device_capacity client_behave_trace --out phones
    """
    from fednag.config.messages import nearest
    from fednag.devices.traces import KINDS, Assumed, convert, write_plain

    if kind not in KINDS:
        known = "; ".join(f"{name}: {found.about}" for name, found in KINDS.items())
        raise FednagError(
            "kind", f"no such kind of trace{nearest(kind, KINDS)}", f"use {known}", given=kind
        )
    told = {"--gflops": gflops, "--up": up, "--down": down, "--flops": flops}
    for option, value in told.items():
        if not 0 < value < 1e24:
            raise FednagError(option, remedy="give a number above 0", given=f"{value:g}")
    if not 0 <= latency < 1e6:
        raise FednagError("--latency", remedy="give seconds from 0 up", given=f"{latency:g}")
    if plain and kind != "fedscale":
        raise FednagError("--plain", f"is not for {kind}, whose files are text", "leave it out")
    if (out / "fleet.toml").exists():
        raise FednagError(out / "fleet.toml", "is there already", "choose another --out")
    paths = list(files or _fetched(kind))
    path, said = convert(kind, paths, out, Assumed(gflops, up, down, latency, flops), most)
    written = [path, *([out / "samples.csv"] if (out / "samples.csv").exists() else [])]
    if plain:
        written += write_plain(paths, out)
    answer(json, {"kind": kind, "fleet": str(path)}, notes=said, files=written)


def _fetched(kind: str) -> list[Path]:
    """The files of a kind that are here."""
    from fednag.devices.published import PUBLISHED

    for found in PUBLISHED.values():
        if found.kind == kind and found.source is not None and not found.missing():
            return found.files()
    names = [name for name, found in PUBLISHED.items() if found.kind == kind and found.source]
    raise FednagError("files", "there are none", f"give them, or run `fednag time get {names[0]}`")
