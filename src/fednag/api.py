"""``fednag.run``, ``fednag.compare`` and ``fednag.sweep``: the same experiments, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fednag.algorithm import Algorithm
from fednag.config import CUSTOM, Experiment, check_algorithm, describe, override, parse
from fednag.errors import FednagError
from fednag.execute import Listener, execute
from fednag.experiment import Builder, Parts
from fednag.problems.dataset import Dataset
from fednag.problems.losses import Loss
from fednag.results import Comparison, Run

Method = Algorithm | str | Mapping[str, Any]
"""An algorithm: an object, a name, or an ``[algorithm]`` table."""

Started = Callable[[str, Experiment, int], Listener | None]
"""Called when a run of several starts: (label, experiment, rounds) -> who listens to it."""


def run(
    algorithm: Method = "fednag",
    *,
    data: str | tuple[Tensor, Tensor] | Dataset | Mapping[str, Any] = "digits",
    test: tuple[Tensor, Tensor] | None = None,
    owners: Tensor | None = None,
    model: str | nn.Module | Mapping[str, Any] = "cnn",
    loss: str | Loss | None = None,
    workers: int | None = None,
    tau: int | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    name: str = "python",
    out: str | Path | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train one model with one method.

    ``data`` is a data set's name or your own ``(x, y)`` tensors; ``model`` a name or your own
    module, whose current weights are the starting point. Integer ``y`` are classes, floating ``y``
    regression targets. The other sections of an experiment file can be given as mappings, e.g.
    ``split={"kind": "dirichlet", "alpha": 0.5}``; ``workers``, ``tau``, ``iterations`` and
    ``batch`` are short for their fields. With ``out`` the run's folder is written there.

    >>> import fednag
    >>> result = fednag.run("fednag", model="logistic", tau=5, iterations=20)
    >>> result.records[-1].iteration
    20
    """
    parts, raw = _describe(data, test, owners, model, loss, sections)
    raw = _with(raw, workers, tau, iterations, batch) | {"seed": seed, "name": name}
    return _runs([algorithm], [seed], raw, parts, _path(out))[0]


def compare(
    algorithms: Sequence[Method] = ("fednag", "fedavg", "fedmom"),
    *,
    data: str | tuple[Tensor, Tensor] | Dataset | Mapping[str, Any] = "digits",
    test: tuple[Tensor, Tensor] | None = None,
    owners: Tensor | None = None,
    model: str | nn.Module | Mapping[str, Any] = "cnn",
    loss: str | Loss | None = None,
    workers: int | None = None,
    tau: int | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    seeds: Sequence[int] = (0,),
    name: str = "python",
    out: str | Path | None = None,
    **sections: Mapping[str, Any],
) -> Comparison:
    """Train the same model with several methods: same data, split, batches and first weights.

    Takes what ``run`` takes, with several ``algorithms`` and ``seeds``. A method that diverges is
    marked so, and the others go on. ``print`` the result for a ranked table.
    """
    parts, raw = _describe(data, test, owners, model, loss, sections)
    raw = _with(raw, workers, tau, iterations, batch) | {"name": name}
    return Comparison(_runs(algorithms, seeds, raw, parts, _path(out)))


def run_all(
    experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
    parts: Parts | None = None,
    out: Path | None = None,
    started: Started | None = None,
) -> list[Run]:
    """Run labelled experiments one after the other; they share what they have in common."""
    builder = Builder(parts or Parts())
    runs = []
    for label, experiment, algorithm in experiments:
        resolved, plan, notes = builder.plan(experiment, algorithm)
        listener = started(label, resolved, plan.rounds) if started else None
        runs.append(execute(resolved, plan, label=label, notes=notes, out=out, listener=listener))
    return runs


def grid(
    raw: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], source: str
) -> list[tuple[str, Experiment, Algorithm | None]]:
    """An experiment for every combination of values and seed, labelled by what varies."""
    if "seed" in axes:
        raise FednagError("seed: seeds are averaged over, not compared; use --seeds, or seeds=[…]")
    experiments: list[tuple[str, Experiment, Algorithm | None]] = []
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        varied = override(raw, point)
        short = [f"{field.split('.')[-1]}={value}" for field, value in point.items()]
        for seed in seeds:
            experiment = parse(varied | {"seed": seed}, source)
            label = ",".join(short) or experiment.label
            experiments.append((label, experiment, None))
    return experiments


def sweep(
    axes: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    name: str = "sweep",
    out: str | Path | None = None,
    **sections: Any,
) -> Comparison:
    """Every combination of ``axes`` for every seed.

    ``axes`` maps a field of an experiment file to its values; ``sections`` are the file's other
    tables.

    >>> import fednag
    >>> result = fednag.sweep(
    ...     {"algorithm.momentum": [0.0, 0.9]},
    ...     model={"name": "logistic"}, training={"tau": 5, "iterations": 10},
    ... )
    >>> [run.label for run in result.runs]
    ['momentum=0.0', 'momentum=0.9']
    """
    experiments = grid({**sections, "name": name}, axes, seeds, "sweep")
    return Comparison(run_all(experiments, out=_path(out)))


def _runs(
    algorithms: Sequence[Method],
    seeds: Sequence[int],
    raw: Mapping[str, Any],
    parts: Parts,
    out: Path | None,
) -> list[Run]:
    experiments = []
    for label, method in _labelled(algorithms).items():
        for seed in seeds:
            algorithm = method if isinstance(method, Algorithm) else None
            if isinstance(method, Algorithm):
                check_algorithm(method)
                described = {"name": CUSTOM, "class": repr(method)}
                table = describe(method)
                experiment = parse({**raw, "seed": seed, "algorithm": described}, "run")
                experiment = experiment.model_copy(update={"algorithm": table})
            else:
                table = {"name": method} if isinstance(method, str) else dict(method)
                experiment = parse({**raw, "seed": seed, "algorithm": table}, "run")
            experiments.append((label, experiment, algorithm))
    return run_all(experiments, parts, out)


def _labelled(algorithms: Sequence[Method]) -> dict[str, Method]:
    """A distinct label for each method: its name, with its numbers where names repeat."""
    names = []
    for method in algorithms:
        if isinstance(method, Algorithm):
            names.append(str(describe(method)["name"]))
        else:
            names.append(method if isinstance(method, str) else str(method.get("name")))
    labelled: dict[str, Method] = {}
    for name, method in zip(names, algorithms, strict=True):
        label = name
        if names.count(name) > 1:
            table = describe(method) if isinstance(method, Algorithm) else method
            numbers = dict(table) if not isinstance(table, str) else {}
            label += "(" + ",".join(f"{k}={v}" for k, v in numbers.items() if k != "name") + ")"
        if label in labelled:
            raise FednagError(f"algorithms: {label} is there twice; leave one out")
        labelled[label] = method
    return labelled


def _describe(
    data: str | tuple[Tensor, Tensor] | Dataset | Mapping[str, Any],
    test: tuple[Tensor, Tensor] | None,
    owners: Tensor | None,
    model: str | nn.Module | Mapping[str, Any],
    loss: str | Loss | None,
    sections: Mapping[str, Any],
) -> tuple[Parts, dict[str, Any]]:
    """Objects apart from what a file could say."""
    parts = Parts(loss=loss)
    raw: dict[str, Any] = {key: dict(value) for key, value in sections.items()}
    if isinstance(data, Dataset):
        parts.dataset, raw["data"] = data, {"name": CUSTOM}
    elif isinstance(data, tuple):
        parts.dataset = dataset(*data, test=test, owners=owners)
        raw["data"] = {"name": CUSTOM}
    else:
        if test is not None or owners is not None:
            raise FednagError("test, owners: they go with your own (x, y) data; leave them out")
        raw["data"] = {"name": data} if isinstance(data, str) else dict(data)
    if isinstance(model, nn.Module):
        parts.module, raw["model"] = model, {"name": CUSTOM}
    else:
        raw["model"] = {"name": model} if isinstance(model, str) else dict(model)
    return parts, raw


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
        lowest = min([int(y.min()), *([int(test_y.min())] if len(test_y) else [])])
        if lowest < 0 or y.dim() != 1:
            raise FednagError("data: integer targets are classes: one a sample, numbered from 0")
        classes = 1 + max([int(y.max()), *([int(test_y.max())] if len(test_y) else [])])
    kept = None if owners is None else torch.as_tensor(owners).long()
    return Dataset(name, x, y, test_x, test_y, classes, owners=kept)


def _with(
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
            raw.setdefault(section, {})[field] = value
    return raw


def _path(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)
