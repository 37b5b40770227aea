"""The paper's experiments, run again and judged.

Every figure is a TOML file: what the paper did, its series, how each scale departs from it, and
named checks whose criteria stand there before anything runs. ``figure`` reads such files, ``jobs``
runs what they describe, ``records`` keeps little of the runs, ``checks`` judges them, ``panels``
draws them and ``page`` writes tables.
"""

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
        "experiments",
        "the figure files are neither in the package nor beside it",
        "give their folder with --experiments",
    )
