"""What is kept of a figure's runs: small records that can be committed, judged and drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, Strict, TypeAdapter

from fednag.config.messages import first_of
from fednag.core.files import os_errors, write_atomically
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.runs.statistics import average
from fednag.runs.view import RunView

MOST_POINTS = 60  # of a run; the first and the last are always among them
DIGITS = 5

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Kept:
    """One run, thinned. ``seconds`` are those on the figure's fleet, where it has one."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    seed: int
    key: str
    iterations: int  # T, as planned
    iteration: tuple[int, ...]
    loss: Numbers
    accuracy: Numbers
    train_accuracy: Numbers
    megabytes: tuple[float, ...]
    ended: str = "finished"
    diverged: bool = False
    seconds: tuple[float, ...] = ()
    minutes: float = 0.0  # that it took to compute
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> Sequence[float | None]:
        found: Sequence[float | None] = getattr(self, name)
        return found


@dataclass(frozen=True)
class FigureRecords:
    """The runs of a figure at a scale, by series."""

    figure: str
    scale: str
    planned: tuple[int, ...]  # seeds
    series: Mapping[str, tuple[Kept, ...]] = field(default_factory=dict)
    done: int = 0  # how many of the planned runs there are; groups have fewer once settled
    stale: int = 0  # runs left out because they were made with other settings

    def of(self, label: str) -> dict[int, Kept]:
        """Runs of a series by seed."""
        return {run.seed: run for run in self.series.get(label, ())}

    @property
    def runs(self) -> int:
        return sum(len(runs) for runs in self.series.values())


def thin(records: Sequence[Record], most: int = MOST_POINTS) -> list[int]:
    """Which records to keep, spread evenly."""
    last = len(records) - 1
    if last < most:
        return list(range(last + 1))
    return sorted({round(i * last / (most - 1)) for i in range(most)})


def keep(run: RunView, iterations: int, ends: Sequence[float] = ()) -> Kept:
    """A run's records, thinned and rounded; ``ends`` are the seconds at which its rounds ended."""
    chosen = [run.records[i] for i in thin(run.records)]
    return Kept(
        seed=run.seed,
        key=str(run.info["key"]),
        iterations=iterations,
        iteration=tuple(r.iteration for r in chosen),
        loss=tuple(_short(r.loss) for r in chosen),
        accuracy=tuple(_short(r.accuracy) for r in chosen),
        train_accuracy=tuple(_short(r.train_accuracy) for r in chosen),
        megabytes=tuple(round((r.bytes_up + r.bytes_down) / 1e6, 4) for r in chosen),
        ended=run.ended,
        diverged=run.diverged,
        seconds=tuple(round(ends[r.round], 3) for r in chosen) if len(ends) else (),
        minutes=round(run.records[-1].seconds / 60, 2),
        notes=tuple(note for note in run.notes if "held by no" in note),
    )


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{DIGITS}g}")


def path_of(place: Path, scale: str, figure: str) -> Path:
    return place / "records" / scale / f"{figure}.json"


def write(place: Path, records: FigureRecords) -> Path:
    """``place/records/<scale>/<figure>.json``: a line a run."""
    path = path_of(place, records.scale, records.figure)
    lines = []
    for label, runs in records.series.items():
        for run in runs:
            # Without what is empty: most runs have no notes, no seconds, and did not diverge.
            told = {k: v for k, v in asdict(run).items() if v != () and v is not False}
            lines.append(json.dumps({"series": label, **told}, allow_nan=False))
    head = {"figure": records.figure, "scale": records.scale, "seeds": list(records.planned)}
    body = ",\n".join(lines)
    text = f'{json.dumps(head)[:-1]}, "runs": [\n{body}\n]}}\n'
    with os_errors(path, "cannot be written", "choose another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return path


def load(place: Path, scale: str, figure: str) -> FigureRecords | None:
    """What ``write`` wrote, or None when there is nothing."""
    path = path_of(place, scale, figure)
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if (table["figure"], table["scale"]) != (figure, scale):
            raise ValueError(f"they are those of {table['figure']} at {table['scale']}")
        series: dict[str, tuple[Kept, ...]] = {}
        for row in table["runs"]:
            label = row.pop("series")
            if not isinstance(label, str):
                raise ValueError("series: is no text")
            series[label] = (*series.get(label, ()), _checked(row))
        seeds = _SEEDS.validate_python(table["seeds"])
        return FigureRecords(figure, scale, tuple(seeds), series)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FednagError(
            path,
            f"is not a figure's records ({first_of(error)})",
            f"restore it, or remove it and make it again with `fednag paper run {figure} --scale "
            f"{scale}`",
        ) from error


_ROW = TypeAdapter(Kept)
_SEEDS = TypeAdapter(Annotated[list[int], Strict(), Field(min_length=1)])


def _checked(row: Mapping[str, Any]) -> Kept:
    run = _ROW.validate_json(json.dumps(row))
    columns = (run.loss, run.accuracy, run.train_accuracy, run.megabytes)
    lengths = {len(run.iteration), *map(len, columns), len(run.seconds) or len(run.iteration)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError("columns of unequal length, or empty ones")
    return run


Known = Mapping[tuple[str, str], Kept]  # runs kept before, by figure ("": any) and key


def known(place: Path, scale: str) -> Known:
    """The runs whose records are in ``place``; what one figure kept serves others too."""
    found: dict[tuple[str, str], Kept] = {}
    for name in sorted(path.stem for path in path_of(place, scale, "*").parent.glob("*.json")):
        records = load(place, scale, name)
        for run in (run for runs in (records.series if records else {}).values() for run in runs):
            found[name, run.key] = run
            found["", run.key] = replace(run, seconds=())
    return found


def recall(before: Known, figure: str, keys: Sequence[str], timed: bool) -> Kept | None:
    """A figure's run among those, by any of its keys; from now on it goes by the first of them.

    Seconds on a fleet only the figure itself can have kept.
    """
    for key in keys:
        run = before.get((figure, key)) or (None if timed else before.get(("", key)))
        if run:
            return replace(run, key=keys[0])
    return None


def tuned(records: FigureRecords, groups: Mapping[str, str]) -> FigureRecords:
    """Groups in place of their members: each stands as the member of least mean final loss.

    A group is left out until all its members have been run, and only seeds that all of them have
    count: nothing is tuned before that.
    """
    found: dict[str, tuple[Kept, ...]] = {
        label: runs for label, runs in records.series.items() if label not in groups
    }
    for group in dict.fromkeys(groups.values()):
        members = {m: records.of(m) for m, g in groups.items() if g == group}
        seeds = sorted(set.intersection(*(set(runs) for runs in members.values())))
        if not seeds:
            continue
        chosen = min(
            members, key=lambda m: average(_final_loss(members[m][seed]) for seed in seeds)
        )
        note = f"tuned: {chosen}"
        found[group] = tuple(
            replace(run, notes=(note, *run.notes)) for run in (members[chosen][s] for s in seeds)
        )
    return replace(records, series=found)


def _final_loss(run: Kept) -> float:
    last = run.loss[-1]
    return inf if run.diverged or last is None else last
