"""The sections of an experiment file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fednag.data import sets
from fednag.problems import losses, models

# Larger numbers are slips of the hand, and fail late: memory full, or a run that never ends.
MANY = 10**9
Count = Annotated[int, Field(ge=1, le=MANY)]
CountOrZero = Annotated[int, Field(ge=0, le=MANY)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# What marks a part that came from Python and cannot be rebuilt from a file.
CUSTOM = "custom"


def one_of(names: Collection[str], own: bool = False, python: bool = True) -> BeforeValidator:
    """A field that names one of these; with ``own`` or a part in a file, with ``python`` CUSTOM."""

    def check(given: object) -> object:
        known = given in names if isinstance(given, str) else False
        if known or (python and given == CUSTOM) or (own and is_own(given)):
            return given
        listed = ", ".join(map(repr, names))
        raise PydanticCustomError("literal_error", "unknown name", {"expected": listed})

    return BeforeValidator(check)


def is_own(name: object) -> bool:
    """Whether a name is one of a part in a file or a module of the user's."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


class Section(BaseModel):
    model_config = STRICT


class Data(Section):
    name: Annotated[str, one_of((*sets.NAMES, "file"))] = "digits"
    path: str | None = Field(None, min_length=1)
    target: str | None = Field(None, min_length=1)
    owner: str | None = Field(None, min_length=1)
    test_path: str | None = Field(None, min_length=1)
    test_share: float | None = Field(None, ge=0, lt=1)
    task: Literal["classification", "regression"] | None = None
    standardise: bool = False
    validation: float | None = Field(None, gt=0, lt=1)
    alpha: float | None = Field(None, ge=0)
    beta: float | None = Field(None, ge=0)
    workers: int | None = Field(None, ge=1, le=10_000)


class Split(Section):
    kind: Literal["iid", "classes", "dirichlet", "sizes", "natural"] = "iid"
    workers: Count | None = None
    classes: Count | None = None
    assign: Literal["cover", "random"] | None = None
    alpha: float | None = Field(None, gt=0)
    skew: float | None = Field(None, ge=0)
    proportions: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(None, strict=False)
    # Of each worker, drawn with replacement: workers may hold the same.
    samples: Annotated[int, Field(ge=1, le=10**7)] | None = None


class Model(Section):
    name: Annotated[str, one_of(models.MODELS, own=True)] = "cnn"
    # None: the one that the model is usually trained with.
    loss: Annotated[str, one_of(losses.LOSSES, own=True, python=False)] | None = None
    hidden: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] | None = Field(None, strict=False)
    batch_norm: Literal["averaged", "local", "frozen"] = "averaged"


class Training(Section):
    tau: Count = 20
    iterations: Count = 1000
    batch: CountOrZero = 64
    participants: Count | None = None
    fraction: float | None = Field(None, gt=0, le=1)
    # Workers who take part in nothing; the others keep their data and draws.
    without: tuple[Annotated[int, Field(ge=0, le=MANY)], ...] | None = Field(None, strict=False)


Group = Annotated[tuple[Annotated[int, Field(ge=0, le=MANY)], ...], Field(strict=False)]


class Tier(Section):
    """Edges between the workers and the server; ``training.tau`` is the workers'."""

    # How many edges, or who is below each; equal numbers of consecutive ones, if a number; or the
    # column of the data that says so.
    groups: (
        Count
        | Annotated[str, Field(min_length=1)]
        | Annotated[tuple[Group, ...], Field(strict=False)]
    ) = 2
    pi: Count = 1  # rounds of an edge between two of the server


class Evaluation(Section):
    every: Count = 1
    samples: CountOrZero = 0
    per_worker: bool = False
    metrics: tuple[str, ...] | None = Field(None, strict=False)
    # Metrics of the user's own: which values are better. Filled in.
    own: dict[Name, Literal["higher", "lower"]] | None = None


class Stop(Section):
    accuracy: float | None = Field(None, ge=0, le=1)
    loss: float | None = Field(None, ge=0)
    metrics: dict[str, float] | None = None
    seconds: float | None = Field(None, gt=0)
    bytes: int | None = Field(None, ge=1, le=10**18)
    patience: Count | None = None
    plateau: float | None = Field(None, gt=0, lt=1)
    window: Annotated[int, Field(ge=1, le=10_000)] | None = None
    watch: str | None = None
    min_change: float | None = Field(None, ge=0)


class Checkpoint(Section):
    rounds: CountOrZero = 0
    seconds: float = Field(30.0, ge=0)
    keep: bool = False  # the last ones of a run that is over, so that others can go on from there


class Engine(Section):
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    chunk: CountOrZero = 0
    threads: int = Field(0, ge=0, le=1024)
    inner: int = Field(1, ge=1, le=1024)
    recorded: bool = True
    # Where what workers keep between rounds is. None: in memory, unless it is large.
    memory: Literal["ram", "disk"] | None = None


class Clock(Section):
    """Whose delays a run trains under; without a fleet, time does not reach into training."""

    fleet: str | None = None
    deadline: float | None = Field(None, gt=0)
    digest: str | None = None  # of the fleet, filled in when a run begins


class Privacy(Section):
    """What is promised of the noise in a run; without a delta, nothing is."""

    delta: float | None = Field(None, gt=0, lt=1)
    epsilon: float | None = Field(None, gt=0)  # the budget; None: it is only counted
    unit: Literal["worker", "sample"] = "worker"
    norm: float | None = Field(None, gt=0)  # of a sample's gradient
    noise_multiplier: float | None = Field(None, ge=0)


class Ledger(Section):
    """Whether a run keeps a ledger of what travelled, and who is told of its head."""

    kind: Literal["auto", "none", "chain"] = "auto"  # auto: on real machines
    anchor: str | None = Field(None, min_length=1)  # a function of the user's own


OF_FILES = ("path", "target", "owner", "test_path", "test_share", "task")

# Options that mean something only for one choice of another: given elsewhere, they are a mistake.
ONLY_WITH = {
    ("split", "classes"): ("kind", "classes"),
    ("split", "assign"): ("kind", "classes"),
    ("split", "alpha"): ("kind", "dirichlet"),
    ("split", "skew"): ("kind", "sizes"),
    ("split", "proportions"): ("kind", "sizes"),
    **{("data", option): ("name", "file") for option in OF_FILES},
    ("privacy", "norm"): ("unit", "sample"),
    ("privacy", "noise_multiplier"): ("unit", "sample"),
    ("data", "alpha"): ("name", "synthetic"),
    ("data", "beta"): ("name", "synthetic"),
    ("data", "workers"): ("name", "synthetic"),
}
