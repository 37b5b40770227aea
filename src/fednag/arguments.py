"""What ``run``, ``compare`` and ``sweep`` are given, checked and put in an experiment's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fednag import contract
from fednag.algorithm import Algorithm
from fednag.config import CUSTOM, Experiment, describe
from fednag.config.sentences import nearest
from fednag.errors import FednagError
from fednag.experiment import Parts
from fednag.metrics import METRICS, TAKEN, Metric
from fednag.problems.dataset import Dataset
from fednag.problems.losses import Loss
from fednag.problems.tables import ENDINGS

Method = Algorithm | str | Mapping[str, Any]
"""An algorithm: an object, a name, or an ``[algorithm]`` table."""

Metrics = Mapping[str, Metric | Callable[[Tensor, Tensor], Any] | str] | Sequence[str]
"""Metrics by name: functions of (outputs, targets), or names of those that there are."""


def labelled(algorithms: Sequence[Method]) -> dict[str, Method]:
    """A distinct label for each method: its name, with its numbers where names repeat."""
    if isinstance(algorithms, str):
        raise FednagError(f"algorithms: give a list, e.g. [{algorithms!r}, 'fedavg']")
    tables = [table_of(method) for method in algorithms]
    found: dict[str, Method] = {}
    for table, method in zip(tables, algorithms, strict=True):
        label = str(table.get("name"))
        alike = [other for other in tables if other.get("name") == table.get("name")]
        differing = [
            f"{key}={number}"
            for key, number in table.items()
            if any(other.get(key) != number for other in alike)
        ]
        if differing:
            label += f"({','.join(differing)})"
        if label in found:
            raise FednagError(f"algorithms: {label} is there twice; leave one out")
        found[label] = method
    return found


def table_of(method: Method) -> dict[str, Any]:
    """A method as an ``[algorithm]`` table."""
    if isinstance(method, type):
        raise FednagError(f"algorithm: give an instance, {method.__name__}(), not the class")
    if isinstance(method, Algorithm):
        if not is_dataclass(method):
            name = type(method).__name__
            raise FednagError(f"algorithm: put @dataclass(frozen=True) above class {name}")
        contract.check(method)
        return describe(method)
    if isinstance(method, str):
        return {"name": method}
    if isinstance(method, Mapping):
        return dict(method)
    raise FednagError(f"algorithm: {method!r} is not one; give a name or an Algorithm")


def describe_parts(
    data: str | tuple[Tensor, Tensor] | Dataset | Mapping[str, Any],
    test: tuple[Tensor, Tensor] | None,
    owners: Tensor | None,
    model: str | nn.Module | Mapping[str, Any],
    loss: str | Loss | None,
    sections: Mapping[str, Any],
) -> tuple[Parts, dict[str, Any]]:
    """Objects apart from what a file could say."""
    parts = Parts(loss=loss)
    for key, value in sections.items():
        _check_section(key, value)
    raw: dict[str, Any] = {key: dict(value) for key, value in sections.items()}
    if isinstance(data, Dataset):
        parts.dataset, raw["data"] = data, {"name": CUSTOM}
    elif isinstance(data, tuple):
        parts.dataset = dataset(*data, test=test, owners=owners)
        raw["data"] = {"name": CUSTOM}
    else:
        if test is not None or owners is not None:
            raise FednagError("test, owners: they go with your own (x, y) data; leave them out")
        if not isinstance(data, str | Mapping):
            raise FednagError("data: give a name, your own (x, y) tensors as a tuple, or a table")
        raw["data"] = _data_table(data)
    if isinstance(model, nn.Module):
        parts.module, raw["model"] = model, {"name": CUSTOM}
    else:
        if not isinstance(model, str | Mapping):
            raise FednagError("model: give a name, an nn.Module instance, or a table")
        raw["model"] = {"name": model} if isinstance(model, str) else dict(model)
    return parts, raw


def with_metrics(parts: Parts, raw: dict[str, Any], metrics: Metrics | None) -> None:
    """Put metrics where a file has them: names, and of functions which values are better."""
    if metrics is None:
        return
    if isinstance(metrics, str) or not isinstance(metrics, Mapping | Sequence):
        raise FednagError("metrics: give a mapping, e.g. {'name': function}, or a list of names")
    named = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
    table = raw.setdefault("evaluation", {})
    if "own" in table:
        raise FednagError("evaluation.own: is filled in; give metrics={'name': function} instead")
    listed = list(table.get("metrics") or ())
    for name, given in named.items():
        if name == given:
            listed.append(name)
            continue
        if name in TAKEN:
            raise FednagError(f"metrics: the name {name} is taken; give the metric another")
        parts.metrics[name] = _metric(name, given)
    if listed:
        table["metrics"] = list(dict.fromkeys(listed))
    if parts.metrics:
        table["own"] = {name: metric.better for name, metric in parts.metrics.items()}


def _metric(name: str, given: object) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if given not in METRICS:
            raise FednagError(
                f"metrics: {name} is to be {given!r}, and there is no such metric"
                f"{nearest(given, METRICS)}; there are {', '.join(METRICS)}"
            )
        return METRICS[given]
    if not callable(given):
        raise FednagError(
            f"metrics: {name} is not a function of outputs and targets; give one, or the name of a "
            "metric"
        )
    return Metric(given)


def _data_table(data: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(data, str):
        is_file = data.endswith(ENDINGS)
        return {"name": "file", "path": data} if is_file else {"name": data}
    return dict(data)


def _check_section(key: str, value: object) -> None:
    """A keyword that is no section of an experiment file, told where it belongs."""
    sections = {
        name: getattr(field.annotation, "model_fields", {})
        for name, field in Experiment.model_fields.items()
    }
    if key in sections and isinstance(value, Mapping):
        return
    if key in sections:
        raise FednagError(f"{key}: {value!r} is not a table; write e.g. {key}={{'field': value}}")
    for name, fields in sections.items():
        if key in fields:
            raise FednagError(f"{key}: no such argument; write {name}={{{key!r}: {value!r}}}")
    if key in ("lr", "momentum", "mu", "server_lr", "slow_lr"):
        raise FednagError(
            f"{key}: a method's numbers go with it, e.g. fednag.FedNAG({key}={value!r})"
        )
    known = [*sections, "workers", "tau", "iterations", "batch", "test", "owners", "loss", "out"]
    known += ["metrics", "seed", "seeds", "resume", "quiet"]
    raise FednagError(f"{key}: no such argument{nearest(key, known)}")


def dataset(
    x: Tensor,
    y: Tensor,
    *,
    test: tuple[Tensor, Tensor] | None = None,
    owners: Tensor | None = None,
    name: str = CUSTOM,
) -> Dataset:
    """Your own tensors as a data set. Integer ``y`` are classes from 0, floating ``y`` numbers.

    ``owners`` says who each training sample belongs to, for the natural split.

    >>> import torch
    >>> import fednag
    >>> mine = fednag.dataset(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    >>> mine.classes, mine.shape
    (3, (2,))
    """
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    test_x, test_y = test if test is not None else (x[:0], y[:0])
    test_x, test_y = torch.as_tensor(test_x), torch.as_tensor(test_y)
    for what, xs, ys in (("data", x, y), ("test", test_x, test_y)):
        if len(xs) != len(ys):
            raise FednagError(f"{what}: {len(xs)} samples but {len(ys)} targets; give one each")
        if xs.shape[1:] != x.shape[1:]:
            raise FednagError(f"test: samples must have the shape of the data's, {x.shape[1:]}")
    if not len(x):
        raise FednagError("data: it is empty; give at least one sample")
    if owners is not None and len(owners) != len(x):
        raise FednagError(f"owners: {len(owners)} for {len(x)} samples; give one each")
    classes = None
    if not y.is_floating_point():
        y, test_y = y.long(), test_y.long()
        if y.dim() != 1:
            raise FednagError("data: integer targets are classes: give one a sample")
        classes = 1 + max([int(y.max()), *([int(test_y.max())] if len(test_y) else [])])
    kept = None if owners is None else torch.as_tensor(owners).long()
    found = Dataset(name, x, y, test_x, test_y, classes, owners=kept)
    found.check()
    return found


def with_short(
    raw: dict[str, Any],
    workers: int | None,
    tau: int | None,
    iterations: int | None,
    batch: int | None,
) -> dict[str, Any]:
    """The short arguments put in their sections."""
    short = {
        ("split", "workers"): workers,
        ("training", "tau"): tau,
        ("training", "iterations"): iterations,
        ("training", "batch"): batch,
    }
    for (section, field), value in short.items():
        if value is not None:
            if raw.setdefault(section, {}).get(field, value) != value:
                raise FednagError(f"{field}: is given twice, also in {section}; leave one out")
            raw[section][field] = value
    return raw
