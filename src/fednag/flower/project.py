"""``fednag flower init``: a small Flower app, ready to run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w

from fednag.algorithms import ALGORITHMS
from fednag.config import CUSTOM, Experiment
from fednag.config.own import Carried, carried
from fednag.config.parts import LISTED, REGISTRIES
from fednag.config.paths import PARTS
from fednag.core.files import os_errors
from fednag.errors import FednagError
from fednag.flower import PACKAGE
from fednag.flower.settings import SILOS, Flower, read_run_config

CLIENT = '"""What a silo runs."""\n\nfrom fednag.flower.client import app\n\n__all__ = ["app"]\n'
EDGE = '"""What an edge runs."""\n\nfrom fednag.flower.edges import app\n\n__all__ = ["app"]\n'
SERVER = (
    '"""What the server runs."""\n\nfrom fednag.flower.server import app\n\n__all__ = ["app"]\n'
)
# In an experiment file, but without a meaning for silos: each is one worker, saved every round.
IDLE = {
    ("engine", "chunk"),
    ("engine", "threads"),
    ("engine", "inner"),
    ("checkpoint", "rounds"),
    ("checkpoint", "seconds"),
}
README = """# {name}

Federated learning with [fednag](https://pypi.org/project/fednag/) on Flower.
`fednag[flower]` must be installed on the server and on every silo.

```sh
flwr run . {connection} --stream                  # on the SuperLink named so in ~/.flwr/config.toml
flwr run . {connection} --stream -c "algorithm.name='fedavg' rounds=3"
flwr run . local --federation-config num-supernodes={silos} --stream   # Flower's own simulation
```

All keys are in `pyproject.toml`; an empty text stands for no value. Silos say by their node
configuration who they are and where their data is, e.g. `partition-id=0 data-folder="/srv/data"`.
"""


def run_config(experiment: Experiment, flower: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An experiment as a table for Flower: every key there is, so that each can be overridden."""
    tables: dict[str, Any] = {"seed": experiment.seed, "name": experiment.name}
    tau = experiment.training.tau
    whole = experiment.training.iterations % tau == 0
    tables["rounds"] = experiment.training.iterations // tau if whole else ""
    for section, field in Experiment.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        if inner is None:
            continue
        table = getattr(experiment, section).model_dump()
        tables[section] = {
            key: _single(given)
            for key, given in table.items()
            if (section, key) not in IDLE and not (whole and key == "iterations")
        }
    for section in REGISTRIES:
        given = getattr(experiment, section)
        numbered = dict(enumerate(given)) if section in LISTED else None
        if numbered is None:
            tables[section] = {key: _single(number) for key, number in given.items()}
        elif numbered:  # Flower knows no lists of tables; uplink.0.kind is a key like any other
            tables[section] = {
                str(place): {key: _single(number) for key, number in part.items()}
                for place, part in numbered.items()
            }
    for place, tier in enumerate(experiment.tier):
        given = tier.model_dump(mode="json")
        tables.setdefault("tier", {})[str(place)] = {k: _single(v) for k, v in given.items()}
    if not any(tables.get("checkpoint", {})):
        tables.pop("checkpoint", None)
    if tables["data"]["name"] == CUSTOM:
        tables["data"]["name"] = SILOS
    numbers = {f.name: "" for cls in ALGORITHMS.values() for f in fields(cls)}  # type: ignore[arg-type]
    chosen = {key: _single(number) for key, number in experiment.algorithm.items()}
    tables["algorithm"] = {"name": "", **numbers, **chosen}
    if experiment.own:
        tables["own"] = dict(experiment.own)
    own = {**Flower().model_dump(), **(flower or {})}
    tables["flower"] = {key.replace("_", "-"): _single(given) for key, given in own.items()}
    return tables


def _single(given: Any) -> Any:
    if given is None:
        return ""
    if isinstance(given, Mapping):
        shown = {k: json.dumps(v) if isinstance(v, str) else v for k, v in given.items()}
        return "{" + ", ".join(f"{key} = {number}" for key, number in shown.items()) + "}"
    return str(list(given)) if isinstance(given, list | tuple) else given


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The same as Flower hands it to an app."""
    found: dict[str, Any] = {}
    for key, given in tables.items():
        if isinstance(given, Mapping):
            found |= {f"{key}.{name}": value for name, value in flat(given).items()}
        else:
            found[key] = given
    return found


def write_app(
    folder: Path, tables: Mapping[str, Any], connection: str = "my-superlink"
) -> list[Path]:
    """A Flower app in ``folder``, which must be new or empty; the files it is made of."""
    deployment = read_run_config(flat(tables))  # what cannot run is not written
    above = bool(deployment.experiment.tier) and deployment.flower.edge < 0
    tables, shipped = with_shipped(tables, deployment.experiment)
    with os_errors(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FednagError(folder, "is not empty", "choose a new folder")
        name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "fednag-app"
        files = {
            "pyproject.toml": tomli_w.dumps(_project(name, tables)),
            "README.md": README.format(name=name, connection=connection, silos=deployment.silos),
            f"{PACKAGE}/__init__.py": f'"""{name}: fednag on Flower."""\n',
            f"{PACKAGE}/client_app.py": EDGE if above else CLIENT,
            f"{PACKAGE}/server_app.py": SERVER,
        }
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")
        shipped.write(folder / PACKAGE)
    return [folder / path for path in (*files, *(f"{PACKAGE}/{p}" for p in shipped.contents))]


def with_shipped(
    tables: Mapping[str, Any], experiment: Experiment
) -> tuple[dict[str, Any], Carried]:
    """The tables with paths inside the app, and the user's own files to be put there.

    Silos compare the digests with those in the tables.
    """
    changed, files = _copied(tables), carried([*experiment.own_names, experiment.ledger.anchor])
    if not (names := files.names):
        return changed, files
    for section, key in PARTS:
        given = tables[section].get(key, "")
        if given in names:
            changed[section][key] = names[given]
    for section in REGISTRIES:
        table = changed.get(section, {})
        for part in table.values() if section in LISTED else [table]:
            part["kind"] = names.get(part["kind"], part["kind"])
    metrics = experiment.evaluation.metrics or ()
    changed["evaluation"]["metrics"] = _single([names.get(m, m) for m in metrics] or None)
    kept = {k: v for k, v in (experiment.own or {}).items() if not k.endswith(".py")}
    changed["own"] = kept | dict(files.digests)
    return changed, files


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(t) if isinstance(t, Mapping) else t for k, t in tables.items()}


def _project(name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": "Federated learning with fednag",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": [PACKAGE]}}}},
            "flwr": {
                "app": {
                    "publisher": "fednag",
                    "components": {
                        "serverapp": f"{PACKAGE}.server_app:app",
                        "clientapp": f"{PACKAGE}.client_app:app",
                    },
                    "config": dict(tables),
                }
            },
        },
    }
