"""Files that an experiment names: where they are, once and for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fednag.config.own import placed_name

FILES = (("data", "path"), ("data", "test_path"))
FLEET = ("clock", "fleet")
# Fields that may name a part of the user's own.
PARTS = (
    ("algorithm", "name"),
    ("model", "name"),
    ("model", "loss"),
    ("evaluation", "metrics"),
    ("ledger", "anchor"),
)
# The same by section, and the sections of parts of a round.
NAMED = {
    **{section: tuple(key for s, key in PARTS if s == section) for section, _ in PARTS},
    "algorithms": ("name",),
    **dict.fromkeys(
        ("aggregator", "controller", "uplink", "downlink", "schedule", "attack"), ("kind",)
    ),
}


def placed(raw: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """``raw`` with absolute paths: from ``folder`` if something is there, else from here."""
    result = with_code(raw, folder)
    for section, key in (*FILES, FLEET):
        table = result.get(section)
        given = table.get(key) if isinstance(table, dict) else None
        if not isinstance(given, str) or not given:  # the check of the fields speaks of these
            continue
        found = _place(given, folder, (section, key) == FLEET)
        result[section] = {**result[section], key: found}
    return result


def with_code(raw: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """``raw`` with absolute paths to parts of the user's own, ``my_file.py:Name``."""
    result = renamed(raw, lambda name: placed_name(name, folder))
    if isinstance(digests := result.get("own"), Mapping):
        result["own"] = {placed_name(f"{k}:_", folder)[:-2]: v for k, v in digests.items()}
    return result


def renamed(raw: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """``raw`` with what ``change`` makes of each name that may be one of a part."""

    def inside(given: Any, keys: Sequence[str]) -> Any:
        if isinstance(given, list | tuple):
            return [inside(each, keys) for each in given]
        if not isinstance(given, dict):
            return change(given)
        names = {key: given[key] for key in keys if given.get(key) is not None}
        return {**given, **{key: inside(name, ()) for key, name in names.items()}}

    return {s: inside(given, NAMED[s]) if s in NAMED else given for s, given in raw.items()}


def _place(given: str, folder: Path | None, fleet: bool) -> str:
    here = os.path.abspath(given)
    beside = here if folder is None else os.path.abspath(folder / given)
    for path in (beside, here):
        # A fleet may be a shipped one's name, which a folder called so by chance must not hide.
        if os.path.isfile(path) or os.path.exists(Path(path, "fleet.toml") if fleet else path):
            return path
    return given if fleet else here
