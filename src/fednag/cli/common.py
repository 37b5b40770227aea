"""What the commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[Path, typer.Option(help="Folder the runs are written to.")]


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


def console() -> Console:
    from rich.console import Console

    # Piped, a table must not be cut to 80 columns. Names and paths are not markup.
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
