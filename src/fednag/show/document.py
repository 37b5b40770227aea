"""A report: all that its page shows as one plain document, and the page, one HTML file.

The page has its data, style and script inside, and asks no one for anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from importlib.resources import files
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import quantiles
from typing import Any

from fednag.core.files import os_errors, write_atomically
from fednag.runs import frontier
from fednag.runs.labels import by_label, differing, distinguished
from fednag.runs.statistics import Row, Spread, ranked
from fednag.runs.targets import Target, common_target
from fednag.runs.view import RunView
from fednag.show.spec import COLOURS, DASHES, Column, Track, curve_specs, thinned, tracks_of
from fednag.show.tables import ENDED, texts
from fednag.theory import Setting, theorem3
from fednag.theory.bounds import KINDS

FEW = 12  # workers that get a line each; of more, quantiles are drawn
PARTS = ("compute", "down", "up", "waiting")
SAME = ("data", "split", "model", "algorithm")  # what the check and the run must agree in
STYLE = 6
POINTS = 200


def document(
    views: Sequence[RunView],
    target: Target | None = None,
    title: str = "",
    overlays: Sequence[Track] = (),
    times: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The page's data: sentence, ranking, charts, settings, how to run it again.

    ``overlays`` are more lines for the chart of the loss; ``times`` are tables of where devices'
    time goes.
    """
    views, notes = distinguished(views)
    asked = target or common_target(views)
    rows = ranked(views, asked)
    tracks = {track.label: track for track in tracks_of(views)}
    # Methods keep their colours in the order of the ranking, so table and legend read alike.
    tracks = {row.label: replace(tracks[row.label], style=style) for style, row in enumerate(rows)}
    named = dict.fromkeys(str(view.config.get("name", "")) for view in views)
    levels: dict[str, float] = {asked.measure: asked.value} if asked else {}
    charts = curve_specs(list(tracks.values()), levels, tests=True)
    return {
        "title": title or ", ".join(name for name in named if name) or "runs",
        "sentence": sentence(views, rows, asked),
        "notes": [*notes, *caveats(views)],
        "target": str(asked) if asked else None,
        "table": _table(rows, asked),
        "ranking": [asdict(row) for row in rows],
        "methods": [
            {"label": row.label, "style": style, "diverged": row.diverged > 0}
            for style, row in enumerate(rows)
        ],
        "tracks": [_columns(track) for track in tracks.values()],
        "overlays": [_columns(track) for track in overlays],
        "charts": [{k: v for k, v in vars(lines).items() if k != "tracks"} for lines in charts],
        "workers": _workers(views, list(tracks)),
        "splits": _splits(views),
        "times": [dict(row) for row in times],
        "bytes": _bytes(views, asked),
        "settings": _settings(views, list(tracks)),
        "runs": [
            _run(view)
            for label in tracks
            for view in sorted(by_label(views)[label], key=lambda s: s.seed)
        ],
    }


def _table(rows: Sequence[Row], target: Target | None) -> dict[str, Any]:
    """The ranking as text; the final loss only where there is no accuracy to say more."""
    judged = any(row.final_accuracy for row in rows)
    left_out = ["final loss"] if judged else ["final accuracy", "best accuracy"]
    last = ("iterations", "MB sent", "seconds", ENDED)
    lines = texts(rows, target)
    names = sorted((n for n in lines[0] if n not in left_out), key=lambda name: name in last)
    return {"headings": names, "rows": [[line[name] for name in names] for line in lines]}


def _bytes(views: Sequence[RunView], target: Target | None) -> dict[str, Any] | None:
    """What was sent until the target, where runs differ in what becomes of their uploads."""
    uplinks = {repr(view.config.get("uplink") or ()) for view in views}
    if target is None or len(uplinks) < 2:
        return None
    return frontier.table(frontier.cells(views, target), target)


def _columns(track: Track) -> dict[str, Any]:
    columns = {name: [_short(v) for v in column] for name, column in track.columns.items()}
    return {"label": track.label, "style": track.style, "runs": track.runs, "columns": columns}


def _short(value: float | None) -> float | None:
    """Enough digits for a screen: whole numbers stay whole, others keep six."""
    if value is None or value == int(value):
        return None if value is None else int(value)
    return float(f"{value:.6g}")


def _workers(views: Sequence[RunView], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Each worker's loss, for the first seed of each method that recorded it."""
    found = []
    groups = by_label(views)
    for label in labels:
        view = min(groups[label], key=lambda s: s.seed)
        records = [r for r in view.records if r.worker_losses]
        if not records:
            continue
        losses = [list(r.worker_losses or ()) for r in records]
        names = [f"worker {i}" for i in range(min(len(row) for row in losses))]
        if len(losses[0]) > FEW:
            names = ["worst worker", "90 % quantile", "median", "10 % quantile", "best worker"]
            losses = [_spread(row) for row in losses]
        columns: list[Column] = [[row[i] for row in losses] for i in range(len(names))]
        kept = thinned(columns, 600)
        across: Column = [records[i].iteration for i in kept]
        always: dict[str, Column] = {"iteration": across, "runs": [1] * len(kept)}
        tracks = [
            Track(name, style, 1, {**always, "loss": [column[i] for i in kept]})
            for style, (name, column) in enumerate(zip(names, columns, strict=True))
        ]
        shown = [_columns(track) for track in tracks]
        found.append({"label": label, "seed": view.seed, "tracks": shown})
    return found


def _spread(losses: Sequence[float]) -> list[float]:
    tenths = quantiles(losses, n=10, method="inclusive")
    return [max(losses), tenths[8], tenths[4], tenths[0], min(losses)]


def _splits(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Who held what, for each split that differs; seeds that deal anew are shown once each."""
    found: dict[str, dict[str, Any]] = {}
    for view in sorted(views, key=lambda s: s.seed):
        counts = view.info.get("held")
        if not isinstance(counts, list) or not _is_table(counts):
            continue
        table = view.config.get("split")
        numbers = dict(table) if isinstance(table, dict) else {}
        kind = numbers.pop("kind", "iid")
        shown = ", ".join(f"{k} {value}" for k, value in numbers.items() if k != "proportions")
        title = f"{kind}{f' ({shown})' if shown else ''}, seed {view.seed}"
        heat = {"title": title, "rows": "worker", "columns": "class", "cells": counts}
        found.setdefault(repr(counts), heat)
    return list(found.values())


def _is_table(rows: list[Any]) -> bool:
    """Rows of whole numbers, as many in each."""
    lists = all(isinstance(row, list) and row for row in rows)
    return lists and len({len(row) for row in rows}) == 1 and {*map(type, chain(*rows))} == {int}


def _settings(views: Sequence[RunView], labels: Sequence[str]) -> dict[str, Any]:
    groups = by_label(views)
    tables = {label: groups[label][0].settings for label in labels}
    fields = dict.fromkeys(field for table in tables.values() for field in table)
    fields.pop("seed", None)
    apart = set(differing([view.settings for view in views]))
    rows = [
        {
            "field": field,
            "differs": field in apart,
            "values": [_text(tables[label].get(field)) for label in labels],
        }
        for field in fields
    ]
    seeds = [", ".join(map(str, sorted(s.seed for s in groups[label]))) for label in labels]
    first = {"field": "seed", "differs": len(set(seeds)) > 1, "values": seeds}
    return {"labels": list(labels), "rows": [first, *rows] if rows else []}


def _text(value: object) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _run(view: RunView) -> dict[str, Any]:
    info = view.info
    versions = info.get("versions")
    names = dict(versions) if isinstance(versions, dict) else {}
    if python := info.get("python"):
        names["python"] = python
    return {
        "label": view.label,
        "seed": view.seed,
        "state": view.ended,
        "running": view.running,
        "round": view.rounds,
        "rounds": view.planned,
        "started": view.started,
        "folder": str(view.folder) if view.folder else "",
        "command": _command(view),
        "versions": ", ".join(f"{name} {number}" for name, number in names.items()),
        "platform": str(info.get("platform") or ""),
        "notes": view.notes,
    }


def _command(view: RunView) -> str:
    """What repeats the run, unless a part of it was a Python object."""
    names = [str(view.settings.get(f"{part}.name", "")) for part in ("data", "model", "algorithm")]
    # Methods from Python go by the name of their class; those that come along have small letters.
    from_python = ":" not in names[-1] and names[-1] != names[-1].lower()
    if view.folder is None or "custom" in names or from_python:
        return ""
    return f"fednag run {shlex.quote(str(view.folder / 'config.toml'))}"


def html(document: Mapping[str, Any], live: bool = False) -> str:
    """The page. ``live`` lets it ask the server it came from, and no one else, for more."""
    assets = files("fednag.show") / "assets"
    style, script, frame = (
        (assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    # Only this very style and script may be used: labels in the data can smuggle in nothing.
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(f"{document['title']} · fednag"),
        "style": style,
        "data": inlined({**document, "live": live, "colours": COLOURS, "dashes": DASHES}),
        "script": script,
    }
    for name, text in parts.items():
        before, _, after = frame.partition(f"@{name}@")
        parts[name] = before + text
        frame = after
    return "".join(parts.values()) + frame


def inlined(document: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    unsafe = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for character, escaped in (unsafe | {"\u2029": "\\u2029"}).items():
        text = text.replace(character, escaped)
    return text


def write_page(document: Mapping[str, Any], path: Path) -> Path:
    with os_errors(path, "cannot write the report", "choose another with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, html(document))
    return path


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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


def bounds(views: Sequence[RunView]) -> list[Track]:
    """F(w*) + Theorem 3's bound after every round, for the first run that a check is about."""
    for view in views:
        found = _checked(view)
        if found is not None:
            return _bound_tracks(view, found)
    return []


def _checked(view: RunView) -> Mapping[str, Any] | None:
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


def _bound_tracks(view: RunView, found: Mapping[str, Any]) -> list[Track]:
    try:
        constants, lowest = found["constants"], float(found["minimum"]["loss"])
        fields = ("algorithm.lr", "algorithm.momentum", "training.tau")
        names = ("beta", "rho", "delta", "p", "omega")
        setting = Setting(
            *map(view.settings.__getitem__, fields),
            **{name: constants[name]["value"] for name in names},
        )
        alphas: dict[str, float] = {kind: setting.alpha(kind) for kind in KINDS}
        alphas["measured"] = constants["descent"]["value"]
        ends = [r for r in view.records if r.round > 0]
        ends = ends[:: max(1, len(ends) // POINTS)]
        tracks: list[Track] = []
        for name, descent in alphas.items():
            values = [theorem3(setting, r.iteration, descent=descent).value for r in ends]
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


PROBLEM = ("data.", "split.", "model.")


def sentence(views: Sequence[RunView], rows: Sequence[Row], target: Target | None) -> str:
    """The winner, by how much, and whether the seeds bear it out."""
    best = rows[0]
    if best.final_accuracy is None and best.final_loss is None and not best.diverged:
        which = f"{best.label} has not" if len(rows) == 1 else "none has"
        return f"{_setting(views, rows)}, {which} come to the end of a round yet."
    verb = (
        "stands at" if any(run.ending is None for run in by_label(views)[best.label]) else "ends at"
    )
    if len(rows) == 1:
        return f"{_setting(views, rows)}, {best.label} {_result(best, verb)}."
    rival = next((row for row in rows[1:] if not row.diverged), None)
    level = [row.label for row in rows if not row.diverged and _level(best, row)]
    if len(level) > 1:
        each = "both" if len(level) == 2 else "all"
        result = _result(best, verb.replace("s at", " at"))
        parts = [f"{_setting(views, rows)}, {_listed(level)} are level: {each} {result}"]
    else:
        parts = [f"{_setting(views, rows)}, {best.label} does best: it {_result(best, verb)}"]
    if rival and not best.diverged and len(level) < 2:
        parts.append(_lead(best, rival))
    text = ", ".join(parts) + "."
    text += _sooner(best, rows, target, best.label if len(level) > 1 else "It")
    lost = [row.label for row in rows if row.diverged]
    if lost:
        text += f" {_listed(lost)} diverged."
    return text


def caveats(runs: Sequence[RunView]) -> list[str]:
    """What keeps a ranking of these runs from meaning much."""
    notes = []
    if problem := [
        key for key in differing([run.settings for run in runs]) if key.startswith(PROBLEM)
    ]:
        notes.append(
            f"these runs differ in {', '.join(problem)}: they do not solve the same problem, so "
            "their ranking says little"
        )
    seeds = {label: sorted(run.seed for run in group) for label, group in by_label(runs).items()}
    if len({tuple(own) for own in seeds.values()}) > 1:
        least = min(seeds, key=lambda label: len(seeds[label]))
        count = len(seeds[least])
        notes.append(
            f"not all methods have the same seeds: {least} has {count} run{'s' * (count > 1)}"
        )
    kinds = [run.ending.kind if run.ending else None for run in runs]
    if unfinished := kinds.count(None):
        notes.append(f"{unfinished} of {len(runs)} runs are not over yet")
    stopped, waited = kinds.count("target"), kinds.count("patience")
    if stopped and len({run.records[-1].iteration for run in runs if run.records}) > 1:
        notes.append(
            f"{stopped} of {len(runs)} runs stopped when they reached their target: final "
            "values are of different iterations; compare iterations to the target"
        )
    if waited and len(runs) > 1:
        notes.append(
            f"{waited} of {len(runs)} runs stopped when they got no better: final values "
            "are of different iterations"
        )
    return notes


def _setting(views: Sequence[RunView], rows: Sequence[Row]) -> str:
    settings = views[0].settings
    groups = by_label(views)
    most = max(len(group) for group in groups.values())
    methods = "" if len(rows) == 1 else f"Of {len(rows)} methods"
    seeds = "one seed" if most == 1 else f"{most} seeds"
    words = f"{methods} over {seeds}" if methods else f"Over {seeds}"
    data, model = settings.get("data.name"), settings.get("model.name")
    alike = all(s.settings.get("data.name") == data for s in views)
    if data and model and alike:
        words += f" on {data} ({model}"
        if workers := settings.get("split.workers"):
            words += f", {workers} workers, {settings.get('split.kind', 'iid')} split"
        words += ")"
    return words


def _result(row: Row, verb: str) -> str:
    if row.final_accuracy is not None:
        return f"{verb} {_percent(row.final_accuracy)} test accuracy"
    if row.final_loss is not None:
        return f"{verb} a training loss of {row.final_loss.text('{:.4g}')}"
    return "diverged"


def _level(one: Row, other: Row) -> bool:
    """Whether what they are ranked by is the same."""
    for name in ("final_accuracy", "final_loss"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine is not None and theirs is not None:
            return bool(mine.mean == theirs.mean)
    return False


def _lead(best: Row, rival: Row) -> str:
    one, other = best.final_accuracy, rival.final_accuracy
    if one is not None and other is not None:
        gap, unit = (one.mean - other.mean) * 100, 100
        ahead = f"{gap:.3g} percentage points ahead of"
    elif best.final_loss is not None and rival.final_loss is not None:
        one, other = best.final_loss, rival.final_loss
        gap, unit = other.mean - one.mean, 1
        ahead = f"a loss {gap:.3g} below that of"
    else:
        return f"ahead of {rival.label}"
    if one.deviation is None or other.deviation is None:
        return f"{ahead} {rival.label} (one seed: chance is not ruled out)"
    spread = (one.deviation + other.deviation) * unit
    within = " (within the spread over seeds)" if gap <= spread else ""
    return f"{ahead} {rival.label}{within}"


def _sooner(best: Row, rows: Sequence[Row], target: Target | None, who: str) -> str:
    if target is None or best.iterations_to is None:
        return ""
    others = [r for r in rows[1:] if r.iterations_to is not None and r.reached == r.runs]
    text = f" {who} reaches {target} after {best.iterations_to.mean:,.0f} iterations"
    if others and best.iterations_to.mean > 0:
        slowest = max(others, key=lambda r: r.iterations_to.mean if r.iterations_to else 0)
        assert slowest.iterations_to is not None
        ratio = slowest.iterations_to.mean / best.iterations_to.mean
        if ratio > 1:
            count = f"{slowest.iterations_to.mean:,.0f} ({ratio:.2g} times as many)"
            text += f", {slowest.label} after {count}"
    return text + "."


def _percent(spread: Spread) -> str:
    tail = "" if spread.deviation is None else f" ± {spread.deviation * 100:.2f}"
    return f"{spread.mean * 100:.2f}{tail} %"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
