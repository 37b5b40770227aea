"""``fednag flower init``: a small Flower app, ready to run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fednag.algorithms import ALGORITHMS
from fednag.config import CUSTOM, Experiment
from fednag.config.own import files_of, place_of, short
from fednag.config.parts import LISTED, REGISTRIES, kinds_of
from fednag.config.paths import PARTS
from fednag.config.sections import is_own
from fednag.errors import FednagError
from fednag.flower.settings import PACKAGE, SILOS, Flower, read_run_config

CLIENT = '"""What a silo runs."""\n\nfrom fednag.flower.client import app\n\n__all__ = ["app"]\n'
SERVER = (
    '"""What the server runs."""\n\nfrom fednag.flower.server import app\n\n__all__ = ["app"]\n'
)
# In an experiment file, but without a meaning for silos: each is one worker, saved every round.
IDLE = {
    ("engine", "chunk"),
    ("engine", "threads"),
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
    tables, shipped = with_shipped(tables, deployment.experiment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FednagError(folder, "is not empty", "choose a new folder")
        name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "fednag-app"
        files: dict[str, str | bytes] = {
            "pyproject.toml": tomli_w.dumps(_project(name, tables)),
            "README.md": README.format(name=name, connection=connection, silos=deployment.silos),
            f"{PACKAGE}/__init__.py": f'"""{name}: fednag on Flower."""\n',
            f"{PACKAGE}/client_app.py": CLIENT,
            f"{PACKAGE}/server_app.py": SERVER,
        }
        files |= {f"{PACKAGE}/{path}": content for path, content in shipped.items()}
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise FednagError(folder, f"cannot be written ({error.strerror})") from error
    return [folder / path for path in files]


def with_shipped(
    tables: Mapping[str, Any], experiment: Experiment
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The tables with paths inside the app, and the user's own files to be put there.

    Each part is in a folder of its own, beside the neighbours it imports, so that files of one name
    do not meet. Silos compare the digests with those in the tables.
    """
    changed = _copied(tables)
    names, digests, contents = {}, {}, {}
    for spec in (
        experiment.algorithm["name"],
        experiment.model.name,
        experiment.model.loss,
        *(experiment.evaluation.metrics or ()),
        *kinds_of(experiment),
    ):
        if not is_own(spec) or not (place := place_of(spec)).endswith(".py"):
            continue
        found = files_of(spec, "own")
        folder = f"own/{sha256(''.join(found.values()).encode()).hexdigest()[:12]}"
        for file, digest in found.items():
            path = f"{folder}/{Path(file).relative_to(Path(place).parent).as_posix()}"
            digests[path], contents[path] = digest, Path(file).read_bytes()
        names[spec] = f"{folder}/{Path(place).name}:{short(spec)}"
    if not names:
        return changed, {}
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
    changed["own"] = kept | digests
    return changed, contents


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
