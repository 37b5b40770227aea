"""The shipped fleets, and where a fleet's file is."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fednag.config.messages import cut, nearest, plain
from fednag.core.files import write_atomically
from fednag.errors import FednagError


def shipped() -> list[str]:
    """The names of the fleets that come with fednag.

    >>> from fednag.clock import shipped
    >>> shipped()
    ['lan', 'paper-edge', 'silos-wan', 'vehicles']
    """
    folder = files("fednag.devices") / "fleets"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith("toml"))


def locate(given: str | Path) -> Path:
    """A fleet's file: a shipped fleet's name, a file, or a folder with ``fleet.toml`` in it."""
    text = str(given)
    if text in shipped():
        return Path(str(files("fednag.devices") / "fleets" / f"{text}.toml"))
    path = Path(given)
    if path.is_dir():
        path = path / "fleet.toml"
    if not path.exists():
        hint = nearest(text, shipped())
        raise FednagError(
            f"{plain(text)}: no such fleet{hint}; give a file, or one of {', '.join(shipped())}"
        )
    return path


def copy_fleet(given: str, target: Path) -> Path:
    """A shipped fleet's file, comments and all, to be edited.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.clock import copy_fleet, load_fleet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_fleet(copy_fleet("lan", Path(folder, "mine.toml"))).name
    'lan'
    """
    if given not in shipped():
        raise FednagError(
            f"{cut(given)}: no shipped fleet{nearest(given, shipped())}; "
            f"there are {', '.join(shipped())}"
        )
    if target.exists():
        raise FednagError(f"{target}: is there already; choose another name")
    try:
        write_atomically(target, locate(given).read_bytes())
    except OSError as error:
        raise FednagError(f"{target}: cannot be written ({error.strerror})") from error
    return target
