"""A report: all that its page shows as one plain document, and the page, one HTML file.

The page has its data, style and script inside, and asks no one for anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednag.core.files import os_errors, write_atomically
from fednag.core.keys import cohort
from fednag.runs import frontier, paired
from fednag.runs.frontier import amount
from fednag.runs.labels import by_label, differing, distinguished, problem_of
from fednag.runs.statistics import LEVEL, Row, Spread, average, ranked
from fednag.runs.targets import Target, telling_target
from fednag.runs.view import RunView
from fednag.show.look import BOUNDS, COLOURS, DASHES, MARKERS, themes
from fednag.show.spec import Column, Track, curve_specs, thinned, tracks_of
from fednag.show.tables import ENDED, PERCENT, paired_table, texts
from fednag.theory import Setting, theorem3
from fednag.theory.bounds import KINDS

MOST_COLUMNS, MOST_ROWS = 120, 100  # of a picture of who took part
FEW = 12  # workers that get a line each; of more, quantiles are drawn
PARTS = ("compute", "down", "up", "waiting")
SAME = ("data", "split", "model", "algorithm")  # what the check and the run must agree in
POINTS = 200


def document(
    views: Sequence[RunView],
    target: Target | None = None,
    title: str = "",
    overlays: Sequence[Track] = (),
    times: Sequence[Mapping[str, Any]] = (),
    moments: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The page's data: sentence, ranking, charts, settings, how to run it again.

    ``overlays`` are more lines for the chart of the loss; ``times`` are tables of where devices'
    time goes; ``moments`` are timelines of devices, ``Timeline.as_data`` with a ``map`` perhaps.
    """
    views, notes = distinguished(views)
    asked = target or telling_target(views)
    rows = ranked(views, asked)
    drawn = {track.label: track for track in tracks_of(views)}
    # In the order of the ranking, so that table and legend read alike.
    tracks = {row.label: drawn[row.label] for row in rows}
    places = {row.label: place for place, row in enumerate(rows)}
    named = dict.fromkeys(str(view.config.get("name", "")) for view in views)
    levels: dict[str, float] = {asked.measure: asked.value} if asked else {}
    charts = curve_specs(list(tracks.values()), levels, tests=True)
    return {
        "title": title or ", ".join(name for name in named if name) or "runs",
        "sentence": sentence(views, rows, asked),
        "notes": [*notes, *caveats(views)],
        "target": str(asked) if asked else None,
        "seeds": max((row.runs for row in rows), default=0),
        "table": _table(rows, asked),
        "paired": paired_table(views, rows),
        "ranking": [asdict(row) for row in rows],
        "methods": [
            {"label": row.label, "style": tracks[row.label].style, "diverged": row.diverged > 0}
            for row in rows
        ],
        "tracks": [_columns(track) for track in tracks.values()],
        "overlays": [_columns(track) for track in overlays],
        "charts": [{k: v for k, v in vars(lines).items() if k != "tracks"} for lines in charts],
        "workers": _workers(views, list(tracks)),
        "splits": _splits(views),
        "timeline": timelines(views),
        "times": [dict(row) for row in times],
        "moments": sorted(map(dict, moments), key=lambda line: places.get(line["label"], 0)),
        "traffic": _traffic(views, rows),
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


def _traffic(views: Sequence[RunView], rows: Sequence[Row]) -> dict[str, Any] | None:
    """What every method sent, where methods differ in it."""
    groups = by_label(views)
    lines = []
    for row in rows:
        last = [view.records[-1] for view in groups[row.label]]
        up, down, rounds = (
            average(getattr(r, name) for r in last) for name in ("bytes_up", "bytes_down", "round")
        )
        each = [(up + down) / rounds] if rounds else [0.0]
        lines.append([row.label, *(amount(value) for value in (up, down, up + down, *each))])
    if len({tuple(line[1:]) for line in lines}) < 2:
        return None
    headings = ["method", "up", "down", "both ways", "in a round"]
    return {"headings": headings, "rows": lines}


def timelines(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Who took part when, for runs in which not everyone always did.

    A cell is of a worker and some rounds; of long runs a column stands for several rounds.
    """
    found = []
    for view in views:
        took = taken_part(view)
        if took is None or took.all():
            continue
        workers, rounds = took.shape
        wide = -(-rounds // MOST_COLUMNS)
        edges = range(0, rounds, wide)
        cells = [[int(row[at : at + wide].sum()) for at in edges] for row in took[:MOST_ROWS]]
        columns = "round" if wide == 1 else f"{wide} rounds, from"
        names = [str(at + 1) for at in edges]
        cut = f", the first {MOST_ROWS} of {workers} workers" if workers > MOST_ROWS else ""
        title = f"{view.label}, seed {view.seed}{cut}"
        found.append({"title": title, "rows": "worker", "columns": columns, "cells": cells})
        found[-1]["names"] = names
    return found


def taken_part(view: RunView) -> NDArray[np.bool_] | None:
    """Whether each worker was asked in each round and answered; None where it cannot be told.

    Who was late or refused is named by the records, for the rounds since the record before.
    """
    count, training = view.info.get("workers"), view.config.get("training")
    if not isinstance(count, int) or not isinstance(training, dict) or not view.records:
        return None
    per_round = _per_round(training, count)
    facts = {each.round: each for record in view.records for each in record.rounds}
    last = view.records[-1].round
    took = np.zeros((count, last), dtype=bool)
    everyone = np.arange(count)
    for number in range(1, last + 1):
        known = facts.get(number)
        if known is not None and known.cohort is not None:
            took[[w for w in known.cohort if w < count], number - 1] = True
        else:
            took[cohort(view.seed, number, everyone, per_round), number - 1] = True
    before = 0
    for record in view.records:
        # Of several rounds it is not said in which one it was.
        if record.round == before + 1:
            out = [w for w in (*record.missed, *record.refused) if w < count]
            took[out, record.round - 1] = False
        before = record.round
    return took


def _per_round(training: Mapping[str, Any], workers: int) -> int:
    asked, fraction = training.get("participants"), training.get("fraction")
    if isinstance(asked, int):
        return min(asked, workers)
    if isinstance(fraction, int | float):
        return max(1, round(fraction * workers))
    return workers


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
            names = ["worst worker", "90% quantile", "median", "10% quantile", "best worker"]
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
    style = themes() + style
    # Only this very style and script may be used: labels in the data can smuggle in nothing.
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    looks = {"colours": len(COLOURS), "dashes": DASHES, "markers": MARKERS}
    parts = {
        "policy": policy,
        "title": escape(f"{document['title']} · fednag"),
        "style": style,
        "data": inlined({**document, "live": live, "looks": looks}),
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
    """Rows (label, device, seconds of each part of an average round, joules) under a title."""
    rows = []
    for part in parts:
        seconds = {key: float(part[key]) for key in PARTS}
        if not all(isfinite(value) and value >= 0 for value in seconds.values()):
            raise ValueError("no time")
        row = {"method": str(part["label"]), "device": str(part["device"]), **seconds}
        joules = part.get("joules")
        if isinstance(joules, int | float) and isfinite(joules):
            row["joules"] = float(joules)
        rows.append(row)
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
                tracks.append(Track(label, BOUNDS + len(tracks), 1, columns))
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
        parts.append(_lead(best, rival, views))
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
    notes += [*alike(runs), *untuned(runs)]
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
    stopped, waited = kinds.count("target"), kinds.count("patience") + kinds.count("plateau")
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
    if (spent := kinds.count("budget")) and len(runs) > 1:
        notes.append(
            f"{spent} of {len(runs)} runs stopped when their budget was spent: final values are of "
            "different iterations"
        )
    return notes


def alike(runs: Sequence[RunView]) -> list[str]:
    """Methods whose curves coincide, which would look like a mistake, or be hidden in a chart."""
    groups = by_label(runs)
    found: list[list[str]] = []
    for label, own in groups.items():
        for others in found:
            if _coincide(own, groups[others[0]]):
                others.append(label)
                break
        else:
            found.append([label])
    return [
        f"{_listed(labels)} have the same losses at every evaluation, up to rounding: at these "
        "numbers they are the same update, and their lines cover each other"
        for labels in found
        if len(labels) > 1
    ]


CLOSE = 1e-5  # what roundings of single precision come to over a run


def _coincide(one: Sequence[RunView], other: Sequence[RunView]) -> bool:
    mine, theirs = ({run.seed: run.records for run in runs} for runs in (one, other))
    if mine.keys() != theirs.keys():
        return False
    for seed, records in mine.items():
        pairs = list(zip(records, theirs[seed], strict=False))
        if len(records) != len(theirs[seed]) or len(pairs) < 2:
            return False
        for a, b in pairs:
            if a.iteration != b.iteration or a.loss is None or b.loss is None:
                return False
            if a.accuracy != b.accuracy or abs(a.loss - b.loss) > CLOSE * max(
                abs(a.loss), abs(b.loss)
            ):
                return False
    return True


def untuned(runs: Sequence[RunView]) -> list[str]:
    """Whether methods of different momentum were given one learning rate."""
    numbers: dict[str, tuple[object, float]] = {}
    names = set()
    for label, own in by_label(runs).items():
        lr, momentum = (own[0].settings.get(f"algorithm.{n}") for n in ("lr", "momentum"))
        if not isinstance(lr, int | float):
            return []
        names.add(own[0].settings.get("algorithm.name"))
        momentum = momentum if isinstance(momentum, int | float) and 0 <= momentum < 1 else 0.0
        numbers[label] = lr, round(momentum, 9)
    rates = {lr for lr, _ in numbers.values()}
    if len(names) < 2 or len(rates) > 1 or len({m for _, m in numbers.values()}) < 2:
        return []
    (lr,) = rates
    return [
        f"all methods have lr {lr:g}, which was not tuned for each: with momentum a step goes "
        "about 1 / (1 - momentum) times as far, so the ranking is one at this lr, not of the "
        "methods at their best"
    ]


def _setting(views: Sequence[RunView], rows: Sequence[Row]) -> str:
    settings = views[0].settings
    groups = by_label(views)
    most = max(len(group) for group in groups.values())
    methods = "" if len(rows) == 1 else f"Of {len(rows)} methods"
    seeds = "one seed" if most == 1 else f"{most} seeds"
    words = f"{methods} over {seeds}" if methods else f"Over {seeds}"
    data, model = problem_of(settings)
    alike = all(problem_of(view.settings)[0] == data for view in views)
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


def _lead(best: Row, rival: Row, views: Sequence[RunView]) -> str:
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
    found = paired.from_best(paired.paired(views), [best.label, rival.label])
    if found and found[0].low is not None:
        sure = f"{found[0].low:.3g} to {found[0].high:.3g}"
        decided = "" if found[0].claim else ", so it is not decided"
        return f"{ahead} {rival.label} ({LEVEL:.0%} interval, paired by seed: {sure}{decided})"
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
    return spread.text(PERCENT)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
