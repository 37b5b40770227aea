"""Options and arguments that mean the same in every command, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fednag.cli import completing


def written_to(about: str) -> Any:
    """``--out``: where a command writes, which is a folder of runs in most, but not in all."""
    return typer.Option("--out", "-o", help=about)


Out = Annotated[Path, written_to("Folder the runs are written to.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every evaluation.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Set = Annotated[
    list[str], typer.Option("--set", help="Change a field: section.key=value (repeatable).")
]
Seeds = Annotated[
    str, typer.Option("--seeds", help="Seeds, e.g. 0,1,2; the file's own when left out.")
]
Algorithms = Annotated[
    str,
    typer.Option(
        "--algorithms",
        help="Methods, e.g. fednag,fedavg; default: the file's `algorithms`.",
        autocompletion=completing.methods,
    ),
]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")]
Target = Annotated[
    str | None,
    typer.Option("--target", help="Accuracy to reach, e.g. 0.9, or another measure: f1=0.9."),
]
Loss = Annotated[float | None, typer.Option("--loss", help="Loss to reach, instead of --target.")]
Fleet = Annotated[
    str,
    typer.Option(
        "--fleet",
        help="Devices: a shipped fleet's name, a fleet file, or its folder.",
        autocompletion=completing.fleets,
    ),
]
Replays = Annotated[int, typer.Option("--replays", min=1, max=10_000, help="Replays of each run.")]
