"""Files that an experiment names: where they are, once and for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
    """``raw`` with the names of parts changed, wherever they stand."""

    def kind_of(given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [kind_of(each) for each in given]
        return {**given, "kind": change(given["kind"])} if "kind" in given else given

    result = dict(raw)
    for section, key in PARTS:
        table = result.get(section)
        given = table.get(key) if isinstance(table, dict) else None
        if isinstance(given, list | tuple):
            result[section] = {**result[section], key: [change(name) for name in given]}
        elif given is not None:
            result[section] = {**result[section], key: change(given)}
    for section, given in result.items():
        if section in ("aggregator", "controller", "uplink", "downlink", "schedule"):
            result[section] = kind_of(given)
    if isinstance(listed := result.get("algorithms"), list):
        result["algorithms"] = [
            {**entry, "name": change(entry["name"])}
            if isinstance(entry, dict) and "name" in entry
            else change(entry)
            for entry in listed
        ]
    return result


def _place(given: str, folder: Path | None, fleet: bool) -> str:
    here = os.path.abspath(given)
    beside = here if folder is None else os.path.abspath(folder / given)
    for path in (beside, here):
        # A fleet may be a shipped one's name, which a folder called so by chance must not hide.
        if os.path.isfile(path) or os.path.exists(Path(path, "fleet.toml") if fleet else path):
            return path
    return given if fleet else here
