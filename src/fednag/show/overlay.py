"""FedNAG's bound beside the loss of its run, where ``fednag theory check`` has measured it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fednag.runs.view import RunView
from fednag.show.spec import Column, Track
from fednag.theory import Setting, theorem3

SAME = ("data", "split", "model", "algorithm")  # what the check and the run must agree in
STYLE = 6
POINTS = 200


def bounds(views: Sequence[RunView]) -> list[Track]:
    """F(w*) + Theorem 3's bound after every round, for the first run that a check is about."""
    for view in views:
        found = _check(view)
        if found is not None:
            return _tracks(view, found)
    return []


def _check(view: RunView) -> Mapping[str, Any] | None:
    if view.folder is None or view.settings.get("algorithm.name") != "fednag":
        return None
    name = str(view.config.get("name", ""))
    path = view.folder.resolve().parents[1] / "theory" / Path(name).name / "check.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        checked = found["experiment"]
        alike = all(checked[part] == view.config.get(part) for part in SAME)
        training = view.config["training"]
        same_tau = checked["training"]["tau"] == training["tau"]
        # p and omega are suprema over the iterations that were checked, and say nothing of later.
        as_long = checked["training"]["iterations"] >= training["iterations"]
        same = alike and same_tau and as_long and checked["seed"] == view.config["seed"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if same else None


def _tracks(view: RunView, found: Mapping[str, Any]) -> list[Track]:
    try:
        constants, lowest = found["constants"], float(found["minimum"]["loss"])
        settings = view.settings
        setting = Setting(
            eta=settings["algorithm.lr"],
            gamma=settings["algorithm.momentum"],
            tau=settings["training.tau"],
            **{s: constants[s]["value"] for s in ("beta", "rho", "delta", "p", "omega")},
        )
        descent = constants["descent"]["value"]
        kinds: dict[str, dict[str, Any]] = {
            "paper": {"kind": "paper"},
            "tight": {"kind": "tight"},
            "measured": {"descent": descent},
        }
        ends = [r for r in view.records if r.round > 0]
        ends = ends[:: max(1, len(ends) // POINTS)]
        tracks: list[Track] = []
        for name, options in kinds.items():
            values = [theorem3(setting, r.iteration, **options).value for r in ends]
            if any(value is not None for value in values):
                loss = [None if value is None else lowest + value for value in values]
                columns: dict[str, Column] = {
                    "iteration": [float(r.iteration) for r in ends],
                    "round": [float(r.round) for r in ends],
                    "loss": loss,
                }
                label = f"bound for {view.label}, alpha {name}"
                tracks.append(Track(label, STYLE + len(tracks), 1, columns))
    except (KeyError, TypeError, ValueError):
        return []
    return tracks
