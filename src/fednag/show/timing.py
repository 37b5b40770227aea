"""Where devices' time goes, as ``fednag time`` left it beside the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from fednag.runs.view import RunView

PARTS = ("compute", "down", "up", "waiting")


def recorded_times(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """A table a fleet; files that are something else are passed over."""
    folders = dict.fromkeys(view.folder.parent for view in views if view.folder)
    found = []
    for folder in folders:
        for path in sorted(folder.glob("time-*.json")):
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                title = f"{told['fleet']['name']}, {told['replays']} replays of each run"
                found.append(time_table(title, told["parts"]))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
    return found


def time_table(title: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows (label, device, seconds of each part of an average round) under a title."""
    rows = []
    for part in parts:
        seconds = {key: float(part[key]) for key in PARTS}
        if not all(isfinite(value) and value >= 0 for value in seconds.values()):
            raise ValueError("no time")
        rows.append({"method": str(part["label"]), "device": str(part["device"]), **seconds})
    if not rows:
        raise ValueError("no rows")
    return {"title": title, "rows": rows}
