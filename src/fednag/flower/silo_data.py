"""A silo's data: they stay where they are, and only the silo's own operator says where that is.

``node_config`` names them: ``data-folder`` (``x.npy`` and ``y.npy``, perhaps ``test_x.npy`` and
``test_y.npy``), or ``data-function`` (``module:function``, a function of the silo's own that is
given the ``node_config``), or neither: then the experiment's data set, of which the silo takes the
part with its ``partition-id``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednag.core.keys import Indexes
from fednag.data.arrays import read_npy
from fednag.data.dataset import Dataset
from fednag.errors import FednagError
from fednag.flower.settings import Deployment
from fednag.runs.build import load, split

FILES = ("x", "y", "test_x", "test_y")
ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class Holding:
    """A data set, and the training samples of it that are this silo's."""

    dataset: Dataset
    samples: Indexes


def number_of(node_config: Mapping[str, Any], silos: int) -> int:
    """Which silo this node is."""
    number = node_config.get("partition-id")
    if type(number) is not int or not 0 <= number < silos:
        raise FednagError(
            "partition-id",
            f"{number!r} is not a whole number from 0 to {silos - 1}",
            "start the node with --node-config 'partition-id=0' or the like",
            source="node config",
        )
    return number


def held_by(deployment: Deployment, node_config: Mapping[str, Any]) -> Holding:
    """What the silo trains on."""
    number = number_of(node_config, deployment.silos)
    folder, function = node_config.get("data-folder"), node_config.get("data-function")
    if folder and function:
        raise FednagError(
            "", remedy="give data-folder or data-function, not both", source="node config"
        )
    if bool(folder or function) != deployment.private:
        remedy = (
            "give it data-folder or data-function"
            if deployment.private
            else "leave out its data-folder and data-function"
        )
        wanted = "data of every silo's own" if deployment.private else "a data set by name"
        raise FednagError("", f"the run is about {wanted}", remedy, source="node config")
    if not deployment.private:
        experiment = deployment.experiment
        dataset = load(experiment)
        deal = split(dataset, experiment.split, experiment.seed)
        return Holding(dataset, deal.workers[number])
    own = from_folder(Path(str(folder))) if folder else from_function(str(function), node_config)
    dataset = _as_declared(own, deployment)
    return Holding(dataset, np.arange(len(dataset.x), dtype=np.int64))


def version_of(node_config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Sizes and dates of a data-folder's files: others, and the data are read again."""
    if not (folder := node_config.get("data-folder")):
        return []
    found = [path.stat() for path in sorted(Path(str(folder)).glob("*.npy"))]
    return [(file.st_size, file.st_mtime_ns) for file in found]


def from_folder(folder: Path) -> dict[str, Tensor]:
    """The arrays in a folder; files that hold objects, which could run code, are refused."""
    found = {}
    for name in FILES:
        path = folder / f"{name}.npy"
        if not path.exists():
            if name in ("x", "y"):
                raise FednagError(path, "is missing", "a data-folder holds x.npy and y.npy")
            continue
        try:
            found[name] = torch.from_numpy(read_npy(path))
        except TypeError as error:
            why = " ".join(str(error).split())
            raise FednagError(
                path, f"cannot be read ({why})", "write it with numpy.save"
            ) from error
    return found


def from_function(entry: str, node_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the operator's own function returns: ``(x, y)``, or with test samples two such pairs."""
    if not ENTRY.fullmatch(entry):
        raise FednagError(
            "data-function", f"{entry!r} is not written module:function", source="node config"
        )
    module, _, name = entry.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FednagError(
            "data-function",
            f"{entry} cannot be imported ({error})",
            "put its folder on PYTHONPATH where the SuperNode is started",
            source="node config",
        ) from error
    given = function(dict(node_config))
    pairs = given if isinstance(given[0], tuple | list) else (given,)
    names = iter(FILES)
    return {next(names): torch.as_tensor(values) for pair in pairs[:2] for values in pair}


def _as_declared(found: Mapping[str, Tensor], deployment: Deployment) -> Dataset:
    """The samples, if they are what the run declares."""
    classes = deployment.flower.classes or None
    x, y = found["x"], found["y"]
    test_x, test_y = found.get("test_x", x[:0]), found.get("test_y", y[:0])
    for what, xs, ys in (("x", x, y), ("test_x", test_x, test_y)):
        if len(xs) != len(ys):
            raise FednagError("data", f"{what} has {len(xs)} samples but {len(ys)} targets")
        if tuple(xs.shape[1:]) != deployment.shape:
            raise FednagError(
                "data",
                f"samples of {what} have shape {tuple(xs.shape[1:])}, and the run declares "
                f"{deployment.shape} in flower.shape",
            )
    if not len(x):
        raise FednagError("data", "there are no samples", "give at least one")
    if y.is_floating_point() != (classes is None):
        kind = "numbers" if y.is_floating_point() else "classes"
        raise FednagError("data", f"the targets are {kind}, and flower.classes is {classes or 0}")
    if classes is not None:
        y, test_y = y.long(), test_y.long()
    scale = 1 / 255 if x.dtype == torch.uint8 else 1.0
    dataset = Dataset("silo", x, y, test_x, test_y, classes, scale)
    dataset.check()
    return dataset
