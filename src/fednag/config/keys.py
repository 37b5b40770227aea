"""A run's key: a hash of all that decides its numbers, by which the run is found again.

Hashed is what differs from the defaults, so a new field with a default changes no key. But if a
default changes, or what is done where a field is not set, the same key stands for other numbers.
Whoever changes one raises FORMAT; ``_first`` shows how runs of an earlier format are still found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fednag.algorithms import ALGORITHMS
from fednag.algorithms.local import OPTIONS
from fednag.config.own import place_of, short
from fednag.config.parts import REGISTRIES, without_defaults
from fednag.config.paths import renamed
from fednag.config.sections import is_own

if TYPE_CHECKING:
    from fednag.config import Experiment

FORMAT = 2
# What decides no number; a fleet is known by its digest, not by its name.
IDLE: Any = {
    "name": True,
    "checkpoint": True,
    "ledger": True,
    "engine": {"threads", "memory"},
    "clock": {"fleet"},
}

# The fields and the methods' numbers of version 0.1.0, whose keys had no format. Runs of that time
# are known by them, so these lists never grow.
FIRST: dict[str, tuple[str, ...]] = {
    "data": (
        *("name", "path", "target", "owner", "test_path", "test_share"),
        *("standardise", "alpha", "beta", "workers"),
    ),
    "split": ("kind", "workers", "classes", "assign", "alpha", "skew", "proportions"),
    "model": ("name", "hidden"),
    "training": ("tau", "iterations", "batch", "participants", "fraction"),
    "evaluation": ("every", "samples", "per_worker"),
    "stop": ("accuracy", "loss", "seconds"),
    "engine": ("device", "dtype", "chunk"),
    "clock": ("deadline", "digest"),
}
FIRST_LEFT_OUT_UNSET = ("path", "target", "owner", "test_path", "test_share")  # of data
# Not among them is fednag-local, which 0.1.0 trained wrongly.
FIRST_NUMBERS: dict[str, tuple[str, ...]] = {
    "fednag": ("lr", "momentum"),
    "fedavg": ("lr",),
    "fedmom": ("lr", "momentum"),
    "slowmo": ("lr", "momentum", "slow_lr"),
    "mimelite": ("lr", "momentum"),
    "mime": ("lr", "momentum"),
    "fedprox": ("lr", "mu"),
    "scaffold": ("lr", "server_lr"),
    "fedavgm": ("lr", "momentum", "server_lr"),
    "fedadam": ("lr", "momentum", "second", "server_lr", "adaptivity"),
    "csgd": ("lr",),
    "cnag": ("lr", "momentum"),
}


@dataclass(frozen=True)
class Key:
    """An experiment's key in one format."""

    short: str  # of all that decides the numbers up to rounding; part of a folder's name
    exact: str  # of all that decides them to the last bit


def keys_of(experiment: Experiment) -> tuple[Key, ...]:
    """Its key in every format that knows such an experiment; new runs are written under the first.

    A run on disk may have been written under any of them.
    """
    given = experiment.model_dump(mode="json", exclude=IDLE)
    if experiment.clock.fleet is None:  # then the section decides nothing
        del given["clock"]
    if digests := given.get("own"):
        given = _by_digest(given, digests)
    for section in REGISTRIES:
        given[section] = without_defaults(section, given[section])
    chosen = _chosen(given, _defaults(experiment))
    if chosen["algorithm"]["name"] in ALGORITHMS:
        # From Python a number may be 1 that is 1.0 once it has been in a file: it is the same run.
        chosen["algorithm"] = {
            name: float(own) if type(own) is int else own
            for name, own in chosen["algorithm"].items()
        }
    contents = [{"format": FORMAT, **chosen}]
    if first := _first(given, chosen):
        contents.append(first)
    return tuple(Key(_hash(_without_chunk(one))[:8], _hash(one)) for one in contents)


def _by_digest(given: dict[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """Code is known by its digest, wherever it lies."""

    def known(name: Any) -> Any:
        digest = digests.get(place_of(name)) if is_own(name) else None
        return f"{digest}:{short(name)}" if digest else name

    return {**renamed(given, known), "own": sorted(digests.values())}


def _defaults(experiment: Experiment) -> dict[str, Any]:
    """Of every field; an own method's numbers have none, for nobody here sees them change."""
    method = ALGORITHMS.get(experiment.algorithm.get("name", ""))
    numbers = {field.name: field.default for field in fields(method)} if method else OPTIONS  # type: ignore[arg-type]
    return type(experiment)().model_dump(mode="json") | {"algorithm": numbers}


def _chosen(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, without the sections where nothing does."""
    found = {}
    for name, value in given.items():
        if not isinstance(value, dict):
            if value != usual[name]:
                found[name] = value
        elif own := {k: v for k, v in value.items() if k not in usual[name] or v != usual[name][k]}:
            found[name] = own
    return found


def _first(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any] | None:
    """What version 0.1.0 hashed; None where something is asked for that it did not have."""
    table, name = given["algorithm"], given["algorithm"].get("name", "")
    if name in ALGORITHMS and name not in FIRST_NUMBERS:
        return None
    # Of an own method all, but for options that its base has had since and that are off.
    own = tuple(number for number in table if table[number] != OPTIONS.get(number))
    numbers = FIRST_NUMBERS.get(name, own)
    had = FIRST | {"algorithm": ("name", *numbers)}
    for section, value in chosen.items():
        if section != "seed" and not (section in had and set(value) <= set(had[section])):
            return None
    content = {
        section: {name: own for name, own in given[section].items() if name in names}
        for section, names in had.items()
        if section in given
    }
    for name in FIRST_LEFT_OUT_UNSET:
        if content["data"][name] is None:
            del content["data"][name]
    return {"seed": given["seed"], **content}


def _without_chunk(content: Mapping[str, Any]) -> dict[str, Any]:
    engine = {
        name: own
        for name, own in content.get("engine", {}).items()
        if name not in ("chunk", "inner")
    }
    rest = {name: own for name, own in content.items() if name != "engine"}
    return {**rest, "engine": engine} if engine else rest


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
