"""Figure files: what the paper did, what each scale changes, and what is to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fednag.config import Experiment, override, parse, read
from fednag.config.messages import explain, nearest
from fednag.config.paths import placed
from fednag.config.sections import Section
from fednag.devices.fleet import load_fleet
from fednag.errors import FednagError, InconsistentError, within
from fednag.paper import SCALES, folder

Measure = Literal["loss", "accuracy", "train_accuracy"]
USUAL: tuple[Measure, ...] = ("loss", "accuracy")
DEVICES = ("cpu", "cuda")  # that "auto" may mean


class Series(Section):
    """One line of a figure: the base experiment with some fields changed."""

    label: str
    set: dict[str, Any] = Field(default_factory=dict)
    x: float | None = None  # where it stands along the axis of a sweep
    panel: str | None = None  # which it is drawn in; along a sweep, which line it is a point of
    group: str | None = None  # series of a group are tuned: the one of least final loss stands
    line: bool = False  # drawn as a horizontal benchmark


class Scale(Section):
    """How a scale departs from the paper, field by field, and its seeds."""

    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2])
    set: dict[str, Any] = Field(default_factory=dict)
    of: dict[str, dict[str, Any]] = Field(default_factory=dict)  # series -> its own changes
    leave_out: list[str] = Field(default_factory=list)  # series not run at this scale
    turn: Literal["first", "usual", "last"] = "usual"  # in a queue of all figures
    why: str = ""  # what a reader should know of this scale
    judged: bool = True  # False: so short that nothing it shows speaks for or against a claim


class Draw(Section):
    kind: Literal["curves", "reach", "against"] = "curves"
    measures: list[Measure] = Field(default_factory=lambda: list(USUAL))
    across: Literal["iterations", "megabytes", "seconds"] = "iterations"
    title: str = ""  # of the axis of a sweep
    to_loss: float | None = None
    to_accuracy: float | None = None
    at: list[float] = Field(default_factory=lambda: [1.0])  # parts of T
    least: float | None = Field(None, ge=0, lt=1)  # accuracy at which its axis begins


class Value(Section):
    """What is measured on a run."""

    of: Literal["loss", "accuracy", "train_accuracy", "iterations", "seconds"]
    at: float = Field(1.0, gt=0, le=1)  # part of T
    to_loss: float | None = None
    to_accuracy: float | None = None
    mark: Literal["first", "mean", "last"] = "first"
    equal_bytes: bool = False  # at as many bytes as the thriftiest series of the check sent in all

    @model_validator(mode="after")
    def _has_a_target(self) -> Value:
        targets = [self.to_loss, self.to_accuracy]
        if (self.of in ("iterations", "seconds")) != any(target is not None for target in targets):
            raise InconsistentError(
                "to_loss or to_accuracy goes with iterations and seconds, and only so"
            )
        return self

    @property
    def higher_is_better(self) -> bool:
        return "accuracy" in self.of


class Check(Section):
    """A sentence of the paper, and when it counts as reproduced."""

    name: str
    gist: str
    paper: str
    kind: Literal["order", "number", "shape"]
    test: Literal[
        "order", "best", "interior", "within", "difference", "reduction", "ratio", "closer", "fails"
    ]
    value: Value
    series: list[str] = Field(min_length=1)
    low: float | None = None
    high: float | None = None
    early: float | None = Field(None, gt=0, lt=1)
    margin: float = Field(0.1, gt=0)  # with fewer than 3 seeds; part of the value (accuracy: /10)
    beyond: bool = False  # not the paper's claim: a question of ours
    late: bool = False  # written down when its runs were known

    @model_validator(mode="after")
    def _complete(self) -> Check:
        least = {"within": 1, "fails": 1, "interior": 3}.get(self.test, 2)
        if len(self.series) < least:
            raise InconsistentError(
                f"check {self.name}", f"{self.test} needs at least {least} series"
            )
        bounded = self.low is not None or self.high is not None
        bounds = self.test in ("within", "difference", "reduction", "ratio", "fails")
        if bounds != bounded:
            said = "needs low or high" if bounds else "takes neither low nor high"
            raise InconsistentError(f"check {self.name}", f"{self.test} {said}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InconsistentError(f"check {self.name}", "low is above high", "swap them")
        if (self.test == "closer") != (self.early is not None):
            raise InconsistentError(f"check {self.name}", "early goes with closer, and only so")
        return self


class Content(Section):
    title: str
    paper: str
    about: str
    base: dict[str, Any]
    series: list[Series] = Field(min_length=1)
    scale: dict[Literal["smoke", "laptop", "full"], Scale]
    draw: Draw = Draw()
    check: list[Check] = Field(default_factory=list)
    fleet: str | None = None  # of the clock: when given, records also tell seconds on it
    place: int = 100  # in lists, and in the order of a long queue


@dataclass(frozen=True)
class Job:
    """One run that a figure needs."""

    figure: str
    series: str
    experiment: Experiment

    @property
    def label(self) -> str:
        """Named by its method alone, so that figures share the runs they have in common."""
        return self.experiment.label

    @property
    def title(self) -> str:
        """What it is run for."""
        return f"{self.figure}, {self.series}"


@dataclass(frozen=True)
class Figure:
    """A figure file, read and checked."""

    name: str
    content: Content

    def scale(self, name: str) -> Scale:
        return self.content.scale[name]  # type: ignore[index]

    def series(self, scale: str) -> list[Series]:
        left_out = self.scale(scale).leave_out
        return [series for series in self.content.series if series.label not in left_out]

    def experiment(self, scale: str, series: Series, seed: int) -> Experiment:
        """The run of a series at a scale."""
        chosen = self.scale(scale)
        source = f"{self.name}: {series.label} at {scale}"
        raw = override(self.content.base, chosen.set)
        raw = override(raw, series.set)
        # Last what a scale says of this series alone.
        raw = override(raw, chosen.of.get(series.label, {}))
        return parse({**raw, "name": scale, "seed": seed}, source)

    def jobs(self, scale: str) -> list[Job]:
        return [
            Job(self.name, series.label, self.experiment(scale, series, seed))
            for seed in self.scale(scale).seeds
            for series in self.series(scale)
        ]

    def keys(self, scale: str) -> dict[tuple[str, int], set[str]]:
        """By series and seed, the keys its run may have: "auto" may have been any device."""
        found = {}
        for job in self.jobs(scale):
            engine = job.experiment.engine
            devices = DEVICES if engine.device == "auto" else (engine.device,)
            made = [engine.model_copy(update={"device": device}) for device in devices]
            found[job.series, job.experiment.seed] = {
                key.short
                for one in made
                for key in job.experiment.model_copy(update={"engine": one}).all_keys
            }
        return found

    def departures(self, scale: str) -> list[str]:
        """What a scale changes of the paper's settings, as the file says it; not the engine."""
        chosen, base = self.scale(scale), self.content.base
        found = []
        for field, new in chosen.set.items():
            section, _, key = field.partition(".")
            old = base.get(section, {}).get(key) if key else base.get(section)
            if section != "engine" and new != old:
                found.append(f"{field} = {new}" + (f" instead of {old}" if old is not None else ""))
        for label, changed in chosen.of.items():
            found += [f"{field} = {new} for {label}" for field, new in changed.items()]
        if chosen.leave_out:
            found.append(f"without {', '.join(chosen.leave_out)}")
        return found


def read_figure(path: Path) -> Figure:
    """A figure file, every run it describes checked."""
    raw = read(path)
    if isinstance(raw.get("base"), dict):
        raw["base"] = placed(raw["base"], path.parent)
    with within(path):
        try:
            figure = Figure(path.stem, Content.model_validate(raw))
        except ValidationError as error:
            raise explain(error, Content) from None
        _consistent(figure.content)
    for scale in figure.content.scale:
        figure.jobs(scale)
    return figure


def _consistent(content: Content) -> None:
    labels = [series.label for series in content.series]
    names = [check.name for check in content.check]
    for what, found in (("series", labels), ("check", names)):
        for one in found:
            if found.count(one) > 1:
                raise FednagError("", f"{what} {one!r} is there twice", "rename one")
    if missing := [scale for scale in SCALES if scale not in content.scale]:
        raise FednagError("", f"scale.{missing[0]} is missing", "say what it changes")
    groups = [series.group for series in content.series if series.group]
    known = [*labels, *groups]
    for check in content.check:
        for label in check.series:
            if label not in known:
                raise FednagError(
                    f"check {check.name}", f"no series {label!r}{nearest(label, known)}"
                )
    for name, scale in content.scale.items():
        for label in [*scale.of, *scale.leave_out]:
            if label not in labels:
                hint = nearest(label, labels)
                raise FednagError(f"scale.{name}", f"no series {label!r}{hint}")
        if not scale.seeds:
            raise FednagError(f"scale.{name}.seeds", "is empty", "give at least one")
        if len({*scale.seeds}) < len(scale.seeds):
            raise FednagError(f"scale.{name}.seeds", "one is there twice", "leave it out")
    if both := [group for group in groups if group in labels]:
        raise FednagError("", f"{both[0]!r} is a group and a series", "rename one")
    members = {series.label: series.group for series in content.series if series.group}
    for check in content.check:
        said = f"check {check.name}"
        if len({*check.series}) < len(check.series):
            raise FednagError(said, "a series is there twice", "leave one out")
        for label in check.series:
            if label in members:
                raise FednagError(said, f"{label!r} is tuned", f"name its group {members[label]!r}")
        if check.value.of == "seconds" and content.fleet is None:
            raise FednagError(said, "seconds need a fleet", "name one, e.g. fleet = 'paper-edge'")
    _drawable(content)


def _drawable(content: Content) -> None:
    draw = content.draw
    if content.fleet is not None:
        with within(field="fleet"):
            load_fleet(content.fleet)
    elif draw.across == "seconds":
        raise FednagError("draw.across", "seconds need a fleet", "name one")
    if draw.kind == "reach" and draw.to_loss is None and draw.to_accuracy is None:
        raise FednagError("draw", "reach needs to_loss or to_accuracy")
    if not draw.measures:
        raise FednagError("draw.measures", "is empty", "give loss, accuracy or both")


def read_figures(place: Path | None = None) -> dict[str, Figure]:
    """All figures of a folder, in their order."""
    place = folder() if place is None else place
    files = sorted(place.glob("*.toml")) if place.is_dir() else []
    if not files:
        raise FednagError(
            place, "no figure files there", "give the folder that has them with --experiments"
        )
    figures = [read_figure(path) for path in files]
    figures.sort(key=lambda figure: (figure.content.place, figure.name))
    return {figure.name: figure for figure in figures}


def pick(figures: Mapping[str, Figure], name: str) -> Figure:
    if name not in figures:
        raise FednagError(
            "", f"no figure {name!r}{nearest(name, figures)}", "`fednag paper list` shows them"
        )
    return figures[name]
