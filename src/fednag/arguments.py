"""What ``run``, ``compare`` and ``sweep`` are given, checked and put in an experiment's terms."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from torch import nn

from fednag.config import CUSTOM, Experiment, describe
from fednag.config.messages import nearest
from fednag.config.own import own_metrics, placed_name, short_names
from fednag.config.parts import LISTED, REGISTRIES, described
from fednag.config.sections import is_own
from fednag.core import contract
from fednag.core.algorithm import Algorithm
from fednag.data.dataset import Dataset, Values, dataset_of, is_for_numbers, with_task
from fednag.data.tables import ENDINGS
from fednag.errors import FednagError
from fednag.problems.losses import Loss
from fednag.problems.metrics import METRICS, TAKEN, Metric
from fednag.problems.models import Factory
from fednag.runs.build import Parts

Data = str | tuple[Values, Values] | Dataset | Mapping[str, Any]
"""A data set's name or file, samples and targets, a data set, or a ``[data]`` table."""

Model = str | nn.Module | Factory | Mapping[str, Any]
"""A model's name, a module, a function that makes one for a seed, or a ``[model]`` table."""

Method = Algorithm | str | Mapping[str, Any]
"""An algorithm: an object, a name, or an ``[algorithm]`` table."""

Metrics = Mapping[str, Metric | Callable[[Any, Any], Any] | str] | Sequence[str]
"""Metrics by name: functions of (outputs, targets), or names of those that there are."""


def labelled(algorithms: Sequence[Method]) -> dict[str, Method]:
    """A distinct label for each method: its name, with its numbers where names repeat."""
    if isinstance(algorithms, str):
        raise FednagError("algorithms", remedy=f"give a list, e.g. [{algorithms!r}, 'fedavg']")
    tables = [table_of(method) for method in algorithms]
    short = short_names(str(table.get("name")) for table in tables)
    found: dict[str, Method] = {}
    for table, method in zip(tables, algorithms, strict=True):
        label = short[str(table.get("name"))]
        alike = [other for other in tables if other.get("name") == table.get("name")]
        differing = [
            f"{key}={number}"
            for key, number in table.items()
            if any(other.get(key) != number for other in alike)
        ]
        if differing:
            label += f"({','.join(differing)})"
        if label in found:
            raise FednagError("algorithms", f"{label} is there twice", "leave one out")
        found[label] = method
    return found


def table_of(method: Method) -> dict[str, Any]:
    """A method as an ``[algorithm]`` table."""
    if isinstance(method, type):
        raise FednagError(
            "algorithm", remedy=f"give an instance, {method.__name__}(), not the class"
        )
    if isinstance(method, Algorithm):
        if not is_dataclass(method):
            name = type(method).__name__
            raise FednagError("algorithm", remedy=f"put @dataclass(frozen=True) above class {name}")
        contract.check(method)
        return describe(method)
    if isinstance(method, str):
        return {"name": placed_name(method)}
    if isinstance(method, Mapping):
        return dict(method)
    raise FednagError("algorithm", f"{method!r} is not one", "give a name or an Algorithm")


def describe_parts(
    data: Data,
    test: tuple[Values, Values] | None,
    owners: Values | None,
    task: str | None,
    model: Model,
    loss: str | Loss | None,
    sections: Mapping[str, Any],
) -> tuple[Parts, dict[str, Any]]:
    """Objects apart from what a file could say."""
    parts = Parts(loss=None if isinstance(loss, str) else loss)
    for key, value in sections.items():
        _check_section(key, value)
    raw: dict[str, Any] = {}
    for key, value in sections.items():
        if key == "tier":
            raw[key] = [dict(table) for table in value]
        elif key in REGISTRIES:
            raw[key], parts.given[key] = _round_part(key, value)
        else:
            raw[key] = {"kind": value} if isinstance(value, str) else dict(value)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise FednagError("data", remedy=f"give a pair (x, y), not {len(data)} parts")
        told = task or ("regression" if is_for_numbers(loss) else None)
        parts.dataset = dataset_of(CUSTOM, *data, test, owners, told)
        raw["data"] = {"name": CUSTOM}
    elif test is not None or owners is not None:
        raise FednagError("test, owners", "they go with your own (x, y) data", "leave them out")
    elif isinstance(data, Dataset):
        parts.dataset, raw["data"] = with_task(data, task, loss), {"name": CUSTOM}
    elif isinstance(data, str | Mapping):
        raw["data"] = _data_table(data, task)
    else:
        raise FednagError(
            "data", remedy="give a name, your own (x, y) tensors as a tuple, or a table"
        )
    if isinstance(model, str | Mapping):
        raw["model"] = {"name": model} if isinstance(model, str) else dict(model)
    elif callable(model):  # an nn.Module is, too
        parts.module, raw["model"] = model, {"name": CUSTOM}
    else:
        raise FednagError(
            "model",
            remedy="give a name, an nn.Module, a function of the seed that makes one, or a table",
        )
    if isinstance(loss, str):
        if raw["model"].get("loss", loss) != loss:
            raise FednagError("loss", "is given twice, also in model", "leave one out")
        raw["model"]["loss"] = loss
    return parts, raw


def _round_part(section: str, given: Any) -> tuple[Any, list[Any]]:
    """A part of the round as a file has it, and the objects that no file can say."""
    if section in LISTED:
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise FednagError(
                section, remedy=f"give a list, e.g. {section}=[{{'kind': 'float16'}}]"
            )
        pairs = [described(part, section) for part in given]
        return [table for table, _ in pairs], [part for _, part in pairs]
    table, part = described(given, section)
    return table, [part]


def with_metrics(parts: Parts, raw: dict[str, Any], metrics: Metrics | None) -> None:
    """Put metrics where a file has them: names, and of functions which values are better."""
    if metrics is None:
        return
    if isinstance(metrics, str) or not isinstance(metrics, Mapping | Sequence):
        raise FednagError(
            "metrics", remedy="give a mapping, e.g. {'name': function}, or a list of names"
        )
    named = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
    table = raw.setdefault("evaluation", {})
    if "own" in table:
        raise FednagError(
            "evaluation.own", "is filled in", "give metrics={'name': function} instead"
        )
    listed = list(table.get("metrics") or ())
    for name, given in named.items():
        if name == given:
            listed.append(name)
            continue
        if name in TAKEN:
            raise FednagError("metrics", f"the name {name} is taken", "give the metric another")
        parts.metrics[name] = _metric(name, given)
    if listed:
        table["metrics"] = list(dict.fromkeys(listed))
    if parts.metrics:
        table["own"] = {name: metric.better for name, metric in parts.metrics.items()}


def _metric(name: str, given: object) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if is_own(given):
            return next(iter(own_metrics([given], "metrics").values()))
        if given not in METRICS:
            raise FednagError(
                "metrics",
                f"{name} is to be {given!r}, and there is no such metric{nearest(given, METRICS)}",
                f"there are {', '.join(METRICS)}",
            )
        return METRICS[given]
    if not callable(given):
        raise FednagError(
            "metrics",
            f"{name} is not a function of outputs and targets",
            "give one, or the name of a metric",
        )
    return Metric(given)


def _data_table(data: str | Mapping[str, Any], task: str | None) -> dict[str, Any]:
    table = dict(data) if isinstance(data, Mapping) else {"name": data}
    if isinstance(data, str) and data.endswith(ENDINGS):
        table = {"name": "file", "path": data}
    if task is None:
        return table
    if table.get("name") != "file":
        raise FednagError("task", "it goes with your own data, a file or (x, y)", "leave it out")
    if table.get("task", task) != task:
        raise FednagError("task", "is given twice, also in data", "leave one out")
    return {**table, "task": task}


def _check_section(key: str, value: object) -> None:
    """A keyword that is no section of an experiment file, told where it belongs."""
    sections = {
        name: getattr(field.annotation, "model_fields", {})
        for name, field in Experiment.model_fields.items()
    }
    if key == "tier":
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
            raise FednagError(key, remedy="give a list, e.g. tier=[{'groups': 2, 'pi': 4}]")
        return
    named = isinstance(value, str) and "kind" in sections.get(key, ())  # e.g. split="natural"
    if key in REGISTRIES or (key in sections and (named or isinstance(value, Mapping))):
        return
    shown = reprlib.repr(value)
    if key in sections:
        raise FednagError(key, f"{shown} is not a table", f"write e.g. {key}={{'field': value}}")
    for name, fields in sections.items():
        if key in fields:
            raise FednagError(key, "no such argument", f"write {name}={{{key!r}: {shown}}}")
    if key in ("lr", "momentum", "mu", "server_lr", "slow_lr"):
        raise FednagError(
            key, remedy=f"a method's numbers go with it, e.g. fednag.FedNAG({key}={value!r})"
        )
    known = [*sections, "workers", "tau", "iterations", "batch", "test", "owners", "task", "loss"]
    known += ["metrics", "batch_norm", "out", "seed", "seeds", "resume", "quiet"]
    raise FednagError(key, f"no such argument{nearest(key, known)}")


def dataset(
    x: Values,
    y: Values,
    *,
    test: tuple[Values, Values] | None = None,
    owners: Values | None = None,
    task: str | None = None,
    name: str = CUSTOM,
) -> Dataset:
    """Your own tensors, arrays or lists as a data set.

    Integer ``y`` are classes from 0, floating ``y`` numbers, unless ``task`` says
    ``"classification"`` or ``"regression"``. Bytes (uint8) in ``x`` are scaled to [0, 1]; other
    integers reach a model of your own as they are. ``owners`` says who each training sample belongs
    to, for the natural split.

    >>> import torch
    >>> import fednag
    >>> mine = fednag.dataset(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    >>> mine.classes, mine.shape
    (3, (2,))
    >>> fednag.dataset([[0.5], [1.5]], [20, 30], task="regression").y.tolist()
    [20.0, 30.0]
    """
    return dataset_of(name, x, y, test, owners, task)


def with_short(
    raw: dict[str, Any],
    workers: int | None,
    tau: int | None,
    iterations: int | None,
    batch: int | None,
    batch_norm: str | None = None,
) -> dict[str, Any]:
    """The short arguments put in their sections."""
    short = {
        ("split", "workers"): workers,
        ("training", "tau"): tau,
        ("training", "iterations"): iterations,
        ("training", "batch"): batch,
        ("model", "batch_norm"): batch_norm,
    }
    for (section, field), value in short.items():
        if value is not None:
            if raw.setdefault(section, {}).get(field, value) != value:
                raise FednagError(field, f"is given twice, also in {section}", "leave one out")
            raw[section][field] = value
    return raw
