"""What the commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder the runs are written to.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every evaluation.")]
Set = Annotated[
    list[str], typer.Option("--set", help="Change a field: section.key=value (repeatable).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def output(path: Path) -> Path:
    """The folder to write to, made if need be: known to be usable before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FednagError(
            f"--out {path}: cannot be made ({error.strerror}); choose another folder"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FednagError(f"--out {path}: cannot be written to; choose another folder")
    return path


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    # Piped, a table must not be cut to 80 columns. Names and paths are not markup.
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(width=width, markup=False, emoji=False, stderr=stderr)


def print_json(content: Any) -> None:
    """One JSON document on standard output; infinities, which JSON has not, become null."""
    import json

    print(json.dumps(plain(content), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """The same for JSON, which has no infinity."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def unless(failed: Sequence[str]) -> None:
    """Raise what went wrong with some of several runs, if anything did."""
    if failed:
        more = f" (and {len(failed) - 1} more like that)" if len(failed) > 1 else ""
        raise FednagError(failed[0] + more)
