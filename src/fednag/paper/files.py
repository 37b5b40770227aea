"""Where figure files are, and at which scales they can be run."""

from __future__ import annotations

from pathlib import Path

from fednag.errors import FednagError

SCALES = ("smoke", "laptop", "full")


def folder() -> Path:
    """Where the figure files are: in the package when it is installed, else in the clone."""
    here = Path(__file__).parent
    for place in (here / "experiments", here.parents[2] / "experiments"):
        if place.is_dir():
            return place
    raise FednagError(
        "experiments: the figure files are neither in the package nor beside it; give their "
        "folder with --experiments"
    )
