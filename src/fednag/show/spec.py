"""The one specification of a chart: plain data, drawn by ``charts`` and by the page's script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from fednag.core.record import Record
from fednag.runs.labels import by_label
from fednag.runs.statistics import Spread, aligned, average
from fednag.runs.view import RunView
from fednag.show.look import styles_of

Column = list[float | None]

ACROSS = {
    "iteration": "iterations",
    "round": "rounds",
    "bytes": "bytes sent, both ways",
    "seconds": "seconds of training",
    "clock": "seconds on the devices",
    "epsilon": "epsilon spent",
}
SOME = ("clock", "epsilon")  # that only some runs have
MEASURES = {
    "loss": "global training loss",
    "accuracy": "test accuracy",
    "test_loss": "test loss",
}
LOSSES = ("loss", "test_loss")
MOST = 1200  # points of a line; more cannot be distinguished on a screen


@dataclass(frozen=True)
class Track:
    """A method's points, as columns of one length.

    Means over its runs, iteration by iteration (see ``aligned``), with ``<measure>.low`` and
    ``.high`` one standard deviation away, and in ``runs`` how many of them have come that far.
    """

    label: str
    style: int  # the number of its look
    runs: int
    columns: Mapping[str, Column]
    measures: tuple[str, ...] = tuple(MEASURES)


@dataclass(frozen=True)
class Lines:
    """A chart of lines over one of several things."""

    key: str
    title: str
    measure: str
    across: Mapping[str, str]
    tracks: Sequence[Track]
    log: bool = False
    percent: bool = False
    level: float | None = None  # a target, drawn across


def titled(measure: str) -> str:
    """What stands beside an axis."""
    return MEASURES.get(measure, measure)


def curve_specs(
    tracks: Sequence[Track], levels: Mapping[str, float] | None = None, tests: bool = False
) -> list[Lines]:
    """Loss, accuracy and metrics, those of them that were measured.

    The test loss is drawn with ``tests``, or where no accuracy tells how well the model does on
    samples it has not seen; with ``tests`` privacy is too, where some was spent.
    """
    found: list[Lines] = []
    there = {name for track in tracks for name in track.columns}
    across = {name: title for name, title in ACROSS.items() if name in there or name not in SOME}
    known = dict.fromkeys(name for track in tracks for name in track.measures)
    for measure in known:
        values = [v for t in tracks for v in t.columns.get(measure, ()) if v is not None]
        judged = any(lines.measure == "accuracy" for lines in found)
        if not values or (measure == "test_loss" and judged and not tests):
            continue
        log = measure in LOSSES and min(values) > 0
        level, percent = (levels or {}).get(measure), measure == "accuracy"
        # A method that was not measured so has no line.
        drawn = [track for track in tracks if measure in track.columns]
        found.append(Lines(measure, titled(measure), measure, across, drawn, log, percent, level))
    if tests and (private := [track for track in tracks if "epsilon" in track.columns]):
        found.append(Lines("epsilon", ACROSS["epsilon"], "epsilon", across, private))
    return found


def tracks_of(runs: Sequence[RunView], most: int = MOST) -> list[Track]:
    """A track a label, in the order they come."""
    styles = styles_of(runs)
    return [
        _track(label, styles[label], [run.records for run in group], most)
        for label, group in by_label(runs).items()
    ]


def _track(label: str, style: int, runs: Sequence[Sequence[Record]], most: int) -> Track:
    moments = [
        {r.iteration: r for r in records if r.loss is not None or r.accuracy is not None}
        for records in runs
    ]
    metrics = dict.fromkeys(name for run in moments for r in run.values() for name in r.metrics)
    columns: dict[str, Column] = {name: [] for name in (*ACROSS, "runs")}
    measures = (*MEASURES, *metrics)
    for measure in measures:
        columns |= {measure: [], f"{measure}.low": [], f"{measure}.high": []}
    for iteration, here in aligned(moments):
        columns["iteration"].append(iteration)
        columns["round"].append(here[0].round)
        columns["bytes"].append(average([r.bytes_up + r.bytes_down for r in here]))
        columns["seconds"].append(average([r.seconds for r in here]))
        for name in SOME:
            known = [value for r in here if (value := getattr(r, name)) is not None]
            columns[name].append(average(known) if len(known) == len(here) else None)
        columns["runs"].append(len(here))
        for measure in measures:
            spread = Spread.of(r.measured(measure) for r in here)
            low, high = (spread and spread.band) or (None, None)
            columns[measure].append(spread.mean if spread else None)
            columns[f"{measure}.low"].append(low)
            columns[f"{measure}.high"].append(high)
    lines = [columns[measure] for measure in measures]
    kept = thinned([line for line in lines if any(value is not None for value in line)], most)
    short = {name: [column[i] for i in kept] for name, column in columns.items()}
    # A column of nothing is not written: one run has no band, regression no accuracy.
    always = (*ACROSS, "runs", "loss", "accuracy")
    may_be = [name for name in short if name not in always or name in SOME]
    empty = [name for name in may_be if all(value is None for value in short[name])]
    written = {name: column for name, column in short.items() if name not in empty}
    return Track(label, style, len(runs), written, measures)


def thinned(columns: Sequence[Column], most: int) -> list[int]:
    """Places of a line's points worth drawing: the ends, and every stretch's least and greatest."""
    length = len(columns[0]) if columns else 0
    if length <= most:
        return list(range(length))
    stretches = max(1, most // (2 * len(columns)) - 1)
    kept = {0, length - 1}
    for number in range(stretches):
        places = range(number * length // stretches, (number + 1) * length // stretches)
        for column in columns:
            there = [place for place in places if column[place] is not None]
            if there:
                value = cast("Callable[[int], float]", column.__getitem__)
                kept |= {min(there, key=value), max(there, key=value)}
    return sorted(kept)
