"""A deployment described: Flower's flat run configuration, and the experiment in it.

The keys are those of an experiment file (``training.tau``, ``algorithm.lr``, …), ``rounds``, and a
section ``flower`` for what only a deployment has. Server and silos read the same configuration, and
a hash of it shows that they do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from fednag.aggregators import Secure
from fednag.config import (
    CUSTOM,
    DEFAULT,
    Experiment,
    build_algorithm,
    methods,
    override,
    parse,
    participants,
    value,
)
from fednag.config.messages import explain
from fednag.config.parts import LISTED, scheme_of
from fednag.config.paths import with_code
from fednag.config.sections import Section
from fednag.core.algorithm import Algorithm
from fednag.core.loop import Scheme
from fednag.errors import FednagError, within
from fednag.flower import app_folder

SILOS = "silos"  # the name of data that every silo brings itself
SOURCE = "run config"
MOST_SAMPLES = 10_000_000
MAJORITY = 3  # silos from which on the others can outvote one
APP: ContextVar[Path | None] = ContextVar("APP", default=None)
"""The folder of the app that a message is for, in a process that Flower has not put it into."""


def _text(given: object) -> object:
    return str(given) if type(given) is int else given


class Flower(Section):
    """What only a deployment has."""

    out: str = "runs"  # where the server writes run folders
    resume: bool = False
    deadline: float = Field(600.0, gt=0, le=86_400)  # seconds a round's answers may take
    quorum: int = Field(0, ge=0, le=10_000)  # answers a round needs; 0: more than half of those
    join: float = Field(120.0, gt=0, le=86_400)  # seconds to wait for all silos at the start
    norm_bound: float = Field(10.0, ge=0)  # times the median length an update may have; 0: any
    most_share: float = Field(0.4, gt=0, le=1)  # of all samples, that a silo's count weighs
    samples: tuple[Annotated[int, Field(ge=1)], ...] = Field((), strict=False)  # agreed, by silo
    max_samples: int = Field(MOST_SAMPLES, ge=1, le=10**12)  # a silo may claim
    evaluate: Literal["auto", "server", "silos"] = "auto"
    measure: Literal["auto", "mean", "median"] = "auto"  # of what silos say of the model
    other_versions: bool = False  # whether silos may have another torch or flwr
    bind: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,60}$")  # registered names are bind-0, bind-1
    # Of a sample, e.g. "1,28,28"; for data that silos bring. One number need not be in quotes.
    shape: Annotated[str, BeforeValidator(_text)] = ""
    classes: int = Field(0, ge=0, le=10**6)  # 0: regression
    edge: int = Field(-1, ge=-1, le=10_000)  # the edge whose own federation this is; -1: the server
    edge_folder: str = ""  # by which an edge's own federation is asked


@dataclass(frozen=True)
class Deployment:
    """What both sides make of a run configuration."""

    experiment: Experiment
    flower: Flower

    @property
    def private(self) -> bool:
        """Whether every silo brings data of its own, which the server never sees."""
        return self.experiment.data.name == CUSTOM

    @property
    def algorithm(self) -> Algorithm:
        return build_algorithm(self.experiment.algorithm)

    @property
    def scheme(self) -> Scheme:
        """The parts its rounds are made of."""
        return scheme_of(self.experiment, self.algorithm)

    @property
    def silos(self) -> int:
        """Who answers the server: workers, or edges where there are any."""
        tier = self.experiment.tier
        if tier and self.flower.edge < 0:
            groups = tier[0].groups
            return groups if isinstance(groups, int) else len(groups)
        return self.experiment.split.workers or 4

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.flower.shape.split(","))

    @property
    def secure(self) -> Secure | None:
        """The aggregator, if the server is to see sums alone."""
        aggregator = self.scheme.aggregator
        return aggregator if isinstance(aggregator, Secure) else None

    @property
    def cohort(self) -> int:
        """Silos of a round."""
        return min(participants(self.experiment, self.silos), self.silos)

    @property
    def evaluates_here(self) -> bool:
        """Whether the server has the data to evaluate models on."""
        if self.experiment.model.batch_norm == "local":
            return False  # every silo has running statistics of its own
        if self.flower.edge >= 0:
            return False  # the server does
        return not self.private and self.flower.evaluate != "silos"

    @property
    def takes_medians(self) -> bool:
        """Whether measures of silos become one by their median: nobody can check what they say."""
        if self.flower.measure == "auto":
            return self.private and self.silos >= MAJORITY
        return self.flower.measure == "median"

    @property
    def digest(self) -> str:
        """Of all that server and silos must agree on."""
        data = {"shape": self.flower.shape, "classes": self.flower.classes}
        content = json.dumps([self.experiment.exact_key, data], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def checked(self) -> Deployment:
        """The deployment itself; raises FednagError for what cannot be deployed."""
        experiment, flower = self.experiment, self.flower
        if self.algorithm.pooled:
            raise FednagError(
                "algorithm.name",
                f"{experiment.label} is centralised, and here data stay where they are",
                "use `fednag run` for it",
            )
        if experiment.model.name == CUSTOM:
            raise FednagError("model.name", remedy="use the name of a model that fednag ships")
        if experiment.split.kind == "natural" and experiment.split.workers is None:
            raise FednagError("split.workers", "is missing", "say how many silos there are")
        if self.private:
            parts = flower.shape.split(",")
            if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
                raise FednagError(
                    "flower.shape",
                    f"{flower.shape!r} is no shape of a sample",
                    'the silos bring the data, so write e.g. "1,28,28"',
                )
            if experiment.split.kind != "iid":
                raise FednagError(
                    "split.kind", "the silos bring the data, and nothing is dealt", "leave it out"
                )
            if experiment.data.standardise:
                raise FednagError(
                    "data.standardise",
                    "every silo would scale by numbers of its own",
                    "scale the data where they are, and leave it out",
                )
            if flower.evaluate == "server":
                raise FednagError(
                    "flower.evaluate", "the server has no data", "use 'silos' or 'auto'"
                )
        if experiment.attack:
            raise FednagError("attack", "it is for the simulator, and silos train", "leave it out")
        self._check_edges()
        if experiment.training.without:
            raise FednagError(
                "training.without",
                "silos that are not to train need not be started",
                "leave it out",
            )
        if self.scheme.controller.needs_clock:
            raise FednagError(
                "controller.kind",
                f"{experiment.controller['kind']} goes by a fleet's clock, and silos answer when "
                "they can",
                "leave it out",
            )
        if self.secure:
            self.secure.needed(self.cohort)
            if self.secure.dropouts:
                raise FednagError(
                    "aggregator.dropouts", "silos need no help to vanish", "leave it out"
                )
        if 0 < flower.norm_bound < 1:
            raise FednagError(
                "flower.norm-bound",
                f"{flower.norm_bound:g} would refuse updates of usual length",
                "use 1 or more, or 0 to refuse none",
            )
        if flower.samples and len(flower.samples) != self.silos:
            raise FednagError(
                "flower.samples",
                f"has {len(flower.samples)} counts, and there are {self.silos} silos",
                "give one for each, in their order",
            )
        if flower.samples and not self.private:
            raise FednagError(
                "flower.samples",
                "the data set is known by name, and so are the counts",
                "leave it out",
            )
        if flower.quorum > self.silos:
            raise FednagError(
                "flower.quorum",
                f"{flower.quorum} is more than the {self.silos} silos there are",
                "lower it",
            )
        return self

    def _check_edges(self) -> None:
        """Raise FednagError for what does not go with edges here."""
        experiment, flower, method = self.experiment, self.flower, type(self.algorithm)
        if not experiment.tier:
            if flower.edge >= 0:
                raise FednagError(
                    "flower.edge", "there are no edges", "give a tier, or leave it out"
                )
            return
        workers = experiment.split.workers or 4
        refused = {
            "tier": (len(experiment.tier) > 1, "there is one tier of edges on Flower"),
            "tier.0.groups": (
                isinstance(experiment.tier[0].groups, str),
                "on Flower edges are a number or are listed",
            ),
            "data.name": (self.private, "with edges the server evaluates, on data known by name"),
            "training.participants": (
                participants(experiment, workers) < workers,
                "with edges all silos take part",
            ),
            "uplink": (bool(experiment.uplink), "edges compress nothing on Flower yet"),
            "algorithm.name": (
                method.edge is not Algorithm.edge or bool(method.between),
                f"edges on Flower only take means, and those of {method.__name__} do more",
            ),
        }
        for field, (is_there, why) in refused.items():
            if is_there:
                raise FednagError(field, why, "change it, or leave [[tier]] out")
        if flower.edge >= 0 and not flower.edge_folder:
            raise FednagError(
                "flower.edge-folder", "is missing", "name the folder by which the edge is asked"
            )


def read_run_config(flat: Mapping[str, Any]) -> Deployment:
    """A checked deployment from ``context.run_config``; an empty text stands for no value."""
    with within(SOURCE):
        return _read(flat).checked()


def _read(flat: Mapping[str, Any]) -> Deployment:
    raw: dict[str, Any] = {}
    for path, given in sorted(flat.items(), key=_place):  # Flower hands them on in any order
        if given == "":
            continue
        section, dot, key = path.partition(".")
        if section in (*LISTED, "tier"):
            raw = override(raw, {path: _listed(given)})
            continue
        held: Any = raw.get(section, {})
        if not isinstance(held, dict) or (held and not dot):
            raise FednagError(section, "is both a value and a table", "leave one out")
        raw[section] = {**held, key: _listed(given)} if dot else given
    own = raw.pop("flower", {})
    try:
        flower = Flower.model_validate({key.replace("-", "_"): v for key, v in own.items()})
    except ValidationError as error:
        raise explain(error, Flower, ("flower",)) from None
    return Deployment(_experiment(raw), flower)


def _place(item: tuple[str, Any]) -> list[tuple[int, str]]:
    """Tables of a list in the order of their numbers."""
    return [(int(part) if part.isdigit() else -1, part) for part in item[0].split(".")]


def _listed(given: Any) -> Any:
    """Flower's values are single: lists and tables are texts, "[200, 200]" and "{f1 = 0.9}"."""
    if isinstance(given, str) and given.startswith(("[", "{")):
        return value(given)
    return given


def _experiment(raw: dict[str, Any]) -> Experiment:
    tables = set(Experiment.model_fields) - {"name", "seed"}
    for section in tables & set(raw):
        if section not in (*LISTED, "tier") and not isinstance(raw[section], dict):
            raise FednagError(section, "is a table", f"write e.g. {section}.key")
    rounds = raw.pop("rounds", None)
    # The user's own files come with the app, wherever Flower has put it on this machine.
    raw = with_code(raw, APP.get() or app_folder())
    data, table = raw.get("data", {}), raw.get("algorithm", {})
    if data.get("name") == SILOS:
        raw["data"] = {**data, "name": CUSTOM}
    name = table.get("name", DEFAULT)
    # Numbers of other methods may stand beside it, so that one key changes the method.
    ((_, chosen),) = methods({**raw, "algorithm": table}, [name], SOURCE)
    if rounds is not None:
        training = chosen.get("training", {})
        if type(rounds) is not int or rounds < 1:
            raise FednagError("rounds", f"{rounds!r} is not a whole number from 1 up")
        tau = training.get("tau", Experiment().training.tau)
        if type(tau) is int:
            chosen["training"] = {**training, "iterations": rounds * tau}
    if chosen.get("ledger", {}).get("kind", "auto") == "auto":
        kind = "none" if chosen.get("tier") else "chain"
        chosen["ledger"] = {**chosen.get("ledger", {}), "kind": kind}
    # Each silo is alone on its machine, and every round is saved.
    chosen["engine"] = {**chosen.get("engine", {}), "chunk": 1}
    chosen["checkpoint"] = {"rounds": 1, "seconds": 0.0}
    return parse(chosen, SOURCE)
