"""Files that an experiment names: where they are, once and for all."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
)


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
    result = dict(raw)
    for section, key in PARTS:
        table = result.get(section)
        given = table.get(key) if isinstance(table, dict) else None
        if isinstance(given, list | tuple):
            result[section] = {**result[section], key: [placed_name(g, folder) for g in given]}
        elif given is not None:
            result[section] = {**result[section], key: placed_name(given, folder)}
    for section, given in result.items():
        if section in ("aggregator", "controller", "uplink", "downlink", "schedule", "attack"):
            result[section] = _with_code(given, folder)
    if isinstance(listed := result.get("algorithms"), list):
        result["algorithms"] = [
            {**entry, "name": placed_name(entry["name"], folder)}
            if isinstance(entry, dict) and "name" in entry
            else placed_name(entry, folder)
            for entry in listed
        ]
    return result


def _with_code(given: Any, folder: Path | None) -> Any:
    if isinstance(given, list | tuple):
        return [_with_code(each, folder) for each in given]
    if isinstance(given, dict) and "kind" in given:
        return {**given, "kind": placed_name(given["kind"], folder)}
    return given


def _place(given: str, folder: Path | None, fleet: bool) -> str:
    here = os.path.abspath(given)
    beside = here if folder is None else os.path.abspath(folder / given)
    for path in (beside, here):
        # A fleet may be a shipped one's name, which a folder called so by chance must not hide.
        if os.path.isfile(path) or os.path.exists(Path(path, "fleet.toml") if fleet else path):
            return path
    return given if fleet else here
