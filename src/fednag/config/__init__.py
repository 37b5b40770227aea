"""Experiment files: what may stand in them, checked field by field, with errors that help."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fednag.algorithms import ALGORITHMS
from fednag.config.keys import Key, keys_of
from fednag.config.measures import check_measures
from fednag.config.messages import cut, explain, nearest, plain
from fednag.config.own import (
    build_part,
    carried,
    checker,
    class_of,
    files_of,
    own_loss,
    own_metrics,
    own_model,
    placed_name,
    short,
    short_names,
)
from fednag.config.parts import LISTED, filled_in, kinds_of
from fednag.config.paths import placed, renamed, with_code
from fednag.config.sections import CUSTOM as CUSTOM
from fednag.config.sections import (
    ONLY_WITH,
    Checkpoint,
    Clock,
    Data,
    Engine,
    Evaluation,
    Ledger,
    Model,
    Privacy,
    Section,
    Split,
    Stop,
    Tier,
    Training,
    is_own,
)
from fednag.config.values import assignments as assignments
from fednag.config.values import value as value
from fednag.config.values import values as values
from fednag.core import contract
from fednag.core.algorithm import Algorithm
from fednag.core.files import os_errors
from fednag.errors import FednagError, InconsistentError, within

DEFAULT = "fednag"


class Experiment(Section):
    """One run, described: the content of an experiment file."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    seed: int = Field(0, ge=0, lt=2**31)
    data: Data = Data()
    split: Split = Split()
    model: Model = Model()
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": DEFAULT})
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    stop: Stop = Stop()
    engine: Engine = Engine()
    checkpoint: Checkpoint = Checkpoint()
    clock: Clock = Clock()
    privacy: Privacy = Privacy()
    ledger: Ledger = Ledger()
    uplink: tuple[dict[str, Any], ...] = Field((), strict=False)
    downlink: tuple[dict[str, Any], ...] = Field((), strict=False)
    aggregator: dict[str, Any] = Field(default_factory=lambda: {"kind": "mean"})
    controller: dict[str, Any] = Field(default_factory=lambda: {"kind": "constant"})
    schedule: tuple[dict[str, Any], ...] = Field((), strict=False)
    attack: tuple[dict[str, Any], ...] = Field((), strict=False)
    tier: tuple[Tier, ...] = Field((), strict=False, max_length=8)
    # The files that parts of the user's own are made from, and their digests. Filled in.
    own: dict[str, str] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        for (section, option), (key, needed) in ONLY_WITH.items():
            table = getattr(self, section)
            if getattr(table, option) is not None and getattr(table, key) != needed:
                raise InconsistentError(
                    f"{section}.{option}",
                    f"goes only with {section}.{key} = {needed!r}, and that is "
                    f"{getattr(table, key)!r}",
                    f"leave it out or change {section}.{key}",
                )
        if self.data.name == "file" and self.data.path is None:
            raise InconsistentError(
                "data.path", "is missing", "name the .csv or .npz file that holds the data"
            )
        if self.data.test_path is not None and self.data.test_share is not None:
            raise InconsistentError("", remedy="give data.test_path or data.test_share, not both")
        if self.data.owner is not None and self.split.kind != "natural":
            raise InconsistentError(
                "data.owner",
                "says who trains only with split.kind = 'natural', and that is "
                f"{self.split.kind!r}",
                "change split.kind, or leave out data.owner and drop its column from the file",
            )
        if self.split.kind == "classes" and self.split.classes is None:
            raise InconsistentError("split.classes", "is missing", "say how many each worker holds")
        if self.split.kind == "dirichlet" and self.split.alpha is None:
            raise InconsistentError("split.alpha", "is missing", "give the concentration, e.g. 0.5")
        if self.split.samples is not None and self.split.kind not in ("iid", "dirichlet"):
            raise InconsistentError(
                "split.samples",
                "goes only with split.kind = 'iid' or 'dirichlet', and that is "
                f"{self.split.kind!r}",
                "leave it out or change split.kind",
            )
        if self.training.participants is not None and self.training.fraction is not None:
            raise InconsistentError(
                "", remedy="give training.participants or training.fraction, not both"
            )
        if self.ledger.anchor is not None and self.ledger.kind != "chain":
            raise InconsistentError(
                "ledger.kind",
                f"is {self.ledger.kind!r}, so there may be no head to anchor",
                "use 'chain'",
            )
        if self.clock.deadline is not None and self.clock.fleet is None:
            raise InconsistentError(
                "clock.fleet", "is missing", "say whose delays the deadline is for"
            )
        privacy = self.privacy
        if privacy.delta is None and privacy != Privacy():
            raise InconsistentError(
                "privacy.delta", "is missing", "give one below 1 / workers, e.g. 1e-5"
            )
        if privacy.unit == "sample" and None in (privacy.norm, privacy.noise_multiplier):
            raise InconsistentError(
                "privacy.unit",
                "'sample' needs norm and noise_multiplier too",
                "say what a sample's gradient is clipped at, and the noise in units of that",
            )
        check_measures(self.evaluation, self.stop)
        return self

    def toml(self) -> str:
        content = self.model_dump(exclude_none=True)
        given = {key: number for key, number in self.algorithm.items() if number is not None}
        return tomli_w.dumps({**content, "algorithm": given})

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """Its key in every format it may be found under on disk, newest first."""
        return keys_of(self)

    @property
    def key(self) -> str:
        """A short hash of all that decides the run's numbers, up to rounding."""
        return self.all_keys[0].short

    @property
    def exact_key(self) -> str:
        """A hash of all that decides the run's numbers to the last bit."""
        return self.all_keys[0].exact

    @property
    def label(self) -> str:
        return short(str(self.algorithm["name"]))

    @property
    def own_names(self) -> list[str]:
        """The parts of the user's own that it names."""
        named = [self.algorithm.get("name"), self.model.name, self.model.loss]
        named += [*(self.evaluation.metrics or ()), *kinds_of(self)]
        return [str(name) for name in named if is_own(name)]

    def carried_to(self, folder: Path) -> str:
        """The content of its file in ``folder``, its own files copied there beside it."""
        files = carried([*self.own_names, self.ledger.anchor])
        files.write(folder)
        tables = renamed(tomllib.loads(self.toml()), lambda name: files.names.get(name, name))
        if self.own:
            modules = {k: v for k, v in self.own.items() if not k.endswith(".py")}
            tables["own"] = {**modules, **files.digests}
        return tomli_w.dumps(tables)

    @property
    def workers(self) -> int | None:
        """Who trains: one where a method is known to be centralised, whatever the split."""
        name = self.algorithm["name"]
        known = name in ALGORITHMS or (is_own(name) and self.own)
        return 1 if known and method_of(name).pooled else self.split.workers


def parse(raw: Mapping[str, Any], source: str = "experiment", code: bool = True) -> Experiment:
    """A checked experiment, its algorithm's numbers filled in; ``source`` names it in errors.

    Without ``code``, no file of the user's own is imported: to read of a run is not to run it.
    """
    with within(source):
        try:
            experiment = Experiment.model_validate(with_code(raw))
        except ValidationError as error:
            raise explain(error, Experiment) from None
        # A file for `compare` may give shared numbers without a name; `run` takes the default.
        table = {"name": DEFAULT, **experiment.algorithm}
        if table["name"] != CUSTOM and (code or not is_own(table["name"])):
            numbers = {**describe(build_algorithm(table)), "name": table["name"]}
            _check_writable(numbers)
            experiment = experiment.model_copy(update={"algorithm": numbers})
        experiment = filled_in(experiment, code)
        return _with_files(experiment) if code else experiment


def _with_files(experiment: Experiment) -> Experiment:
    """The experiment with the digests of the user's own files; refused if they have changed."""
    model, evaluation = experiment.model, experiment.evaluation
    own_model(model.name, "model.name")
    own_loss(model.loss, "model.loss")
    metrics = own_metrics(evaluation.metrics or (), "evaluation.metrics")
    files: dict[str, str] = {}
    for name in experiment.own_names:
        files |= files_of(name)
    if not files:
        return experiment.model_copy(update={"own": None}) if experiment.own else experiment
    for file, digest in files.items():
        if (experiment.own or {}).get(file, digest) != digest:
            raise FednagError(
                "own",
                f"{file} is not what it was when this run began",
                "restore it, or start a new run from a file without [own]",
            )
    better = (evaluation.own or {}) | {name: metric.better for name, metric in metrics.items()}
    filled = evaluation.model_copy(update={"own": better or None})
    return experiment.model_copy(update={"own": files, "evaluation": filled})


def _check_writable(table: Mapping[str, Any]) -> None:
    """A run's settings are written down: numbers that TOML cannot hold would be lost."""
    for key, number in table.items():
        try:
            tomli_w.dumps({key: "" if number is None else number})
        except (TypeError, ValueError):
            raise FednagError(
                f"algorithm.{key}",
                f"{cut(number)} cannot be written to a file",
                "use numbers, texts and lists",
            ) from None


def participants(experiment: Experiment, workers: int) -> int:
    """How many workers take part in a round."""
    training = experiment.training
    if workers == 1:
        return 1
    if training.participants is not None:
        if training.participants > workers:
            raise FednagError(
                "training.participants",
                f"{training.participants} is more than the {workers} workers there are",
                "lower it or raise split.workers",
            )
        return training.participants
    return max(1, round((training.fraction or 1.0) * workers))


def read(path: Path) -> dict[str, Any]:
    """The tables of an experiment file, not yet checked; the files it names are looked up."""
    if path.suffix in (".csv", ".npz"):
        raise FednagError(
            path,
            "looks like data, not like an experiment file",
            "write one that names it in data.path",
        )
    try:
        with os_errors(path, "cannot be read", "check the path"):
            return placed(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except (ValueError, RecursionError) as error:  # among them: integers of thousands of digits
        why = " ".join(str(error).split())
        raise FednagError(path, f"is not TOML ({why})", "correct it there") from error


def override(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """``raw`` with ``section.key`` (or top-level ``key``) set to new values, paths from here."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    name, table = settings.get("algorithm.name"), result.get("algorithm")
    if isinstance(name, str) and (name in ALGORITHMS or is_own(name)) and isinstance(table, dict):
        # The file's numbers were meant for its own method: keep those the new one has too.
        takes = {"name", *numbers_of(name)}
        result["algorithm"] = {key: number for key, number in table.items() if key in takes}
    for (section, option), (key, needed) in ONLY_WITH.items():
        # Likewise what goes only with the choice that is being replaced.
        if settings.get(f"{section}.{key}", needed) != needed and isinstance(
            result.get(section), dict
        ):
            result[section].pop(option, None)
    for path, new in settings.items():
        section, dot, key = path.partition(".")
        if not dot:
            result[section] = new
            continue
        if section in (*LISTED, "tier"):
            result[section] = _changed(result.get(section, []), path, key, new)
            continue
        table = result.setdefault(section, {})
        if not isinstance(table, dict) or "." in key or not key or not section:
            raise FednagError(plain(path), "no such field", "write section.key, e.g. training.tau")
        table[key] = new
    return placed(result)


def _changed(given: Any, path: str, key: str, new: Any) -> list[Any]:
    """A list of tables with one number changed, ``0.norm``; the next number begins a new table."""
    place, _, name = key.partition(".")
    tables = [dict(each) if isinstance(each, dict) else each for each in given]
    if not place.isdecimal() or not name or "." in name or int(place) > len(tables):
        section = path.partition(".")[0]
        raise FednagError(
            plain(path),
            "no such field",
            f"write {section}.NUMBER.key, where NUMBER is at most {len(tables)}, e.g. "
            f"{section}.0.kind",
        )
    if int(place) == len(tables):
        tables.append({})
    tables[int(place)] = {**tables[int(place)], name: new}
    return tables


def methods(
    raw: Mapping[str, Any], names: Sequence[str], source: str = "experiment"
) -> list[tuple[str, dict[str, Any]]]:
    """A labelled experiment for each method to compare.

    Methods are ``names``, or else the file's ``algorithms``: names, or tables with numbers of
    their own. The numbers of ``[algorithm]`` apply to every method that has a field of that name.
    """
    with within(source):
        return list(_methods(raw, names).items())


def _methods(raw: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    shared = raw.get("algorithm", {})
    listed: Any = list(names) or raw.get("algorithms", [])
    if not isinstance(shared, dict):
        raise FednagError("algorithm", f"{cut(shared)} is not allowed", "it should be a table")
    if not isinstance(listed, list):
        raise FednagError("algorithms", remedy='write a list, e.g. ["fednag", "fedavg"]')
    found: dict[str, dict[str, Any]] = {}
    tables = [dict(entry) if isinstance(entry, dict) else {"name": entry} for entry in listed]
    for own, entry in zip(tables, listed, strict=True):
        if not isinstance(own.get("name"), str):
            raise FednagError(
                "algorithms",
                f"{cut(entry)} does not name a method",
                'write e.g. "fedavg" or {name = "fedavg", lr = 0.1}',
            )
        own["name"] = placed_name(own["name"])
    labels = short_names(own["name"] for own in tables)
    known = {f.name for cls in ALGORITHMS.values() for f in fields(cls)}  # type: ignore[arg-type]
    for own in tables:
        name = labels[own["name"]]
        is_known = own["name"] in ALGORITHMS or is_own(own["name"])
        takes = numbers_of(own["name"]) if is_known else set()
        known |= takes
        numbers = {key: number for key, number in shared.items() if key in takes}
        changed = ",".join(f"{k}={v}" for k, v in own.items() if k != "name")
        label = f"{name}({changed})" if name in found and changed else name
        if label in found:
            raise FednagError("algorithms", f"{plain(label)} is there twice", "leave one out")
        found[label] = {**raw, "algorithm": {**numbers, **own}}
    for experiment in found.values():
        experiment.pop("algorithms", None)
    for key in shared:
        if key not in known | {"name"}:
            raise FednagError(
                f"algorithm.{plain(key)}",
                f"no method has that number{nearest(key, known)}",
            )
    return found


def build_algorithm(table: Mapping[str, Any]) -> Algorithm:
    """The algorithm an ``[algorithm]`` table describes."""
    table = {"name": DEFAULT, **table}
    algorithm: Algorithm = build_part(table, ALGORITHMS, Algorithm, "algorithm", "name")  # type: ignore[type-abstract]
    if is_own(table["name"]):
        with within(field="algorithm.name"):
            contract.check(algorithm)
    return algorithm


def method_of(name: object, field: str = "algorithm.name") -> type[Algorithm]:
    """The class of a method, shipped or in a file of the user's own."""
    return class_of(name, ALGORITHMS, Algorithm, field)  # type: ignore[type-abstract]


def numbers_of(name: object, field: str = "algorithm.name") -> set[str]:
    """The names of a method's numbers."""
    return {f.name for f in fields(method_of(name, field))}  # type: ignore[arg-type]


def check_algorithm(algorithm: Algorithm) -> None:
    """The same checks for an algorithm made in Python."""
    model = checker(type(algorithm))
    try:
        model.model_validate(asdict(algorithm))  # type: ignore[call-overload]
    except ValidationError as error:
        raise explain(error, model, (type(algorithm).__name__,)) from None


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm as an ``[algorithm]`` table."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    name = names.get(type(algorithm), type(algorithm).__name__)
    return {"name": name, **asdict(algorithm)}  # type: ignore[call-overload]
