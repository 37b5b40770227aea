"""Names that a shell completes. A key press must not wait for torch, so nothing heavy is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib.resources import files

# What their own modules say too, which would load torch; a test compares.
KINDS = ("iid", "classes", "dirichlet", "sizes", "natural")
SAMPLINGS = ("bootstrap", "recorded", "lognormal")


def methods(incomplete: str) -> list[str]:
    """Several between commas: the last is completed, and those before it are not offered again."""
    *before, last = incomplete.split(",")
    free = [name for name in _keys("algorithms/__init__.py", "ALGORITHMS") if name not in before]
    return [",".join([*before, name]) for name in _starting(last, free)]


def scales(incomplete: str) -> list[str]:
    from fednag.paper import SCALES

    return _starting(incomplete, SCALES)


def kinds(incomplete: str) -> list[str]:
    return _starting(incomplete, KINDS)


def samplings(incomplete: str) -> list[str]:
    return _starting(incomplete, SAMPLINGS)


def downloads(incomplete: str) -> list[str]:
    from fednag.data.download import SOURCES

    return _starting(incomplete, SOURCES)


def data_sets(incomplete: str) -> list[str]:
    from fednag.data.download import BUILT_IN, SOURCES

    return _starting(incomplete, [*BUILT_IN, *SOURCES])


def fleets(incomplete: str) -> list[str]:
    folder = files("fednag") / "devices" / "fleets"
    return _starting(incomplete, sorted(_stems(file.name for file in folder.iterdir())))


def traces(incomplete: str) -> list[str]:
    from fednag.devices.published import PUBLISHED

    return _starting(incomplete, PUBLISHED)


def trace_kinds(incomplete: str) -> list[str]:
    from fednag.devices.traces import KINDS

    return _starting(incomplete, KINDS)


def figures(incomplete: str) -> list[str]:
    from fednag.errors import FednagError
    from fednag.paper import folder

    try:
        return _starting(incomplete, sorted(_stems(file.name for file in folder().iterdir())))
    except FednagError:
        return []


def _keys(file: str, registry: str) -> list[str]:
    """The names in a registry, read and not imported."""
    tree = ast.parse((files("fednag") / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == registry
            and isinstance(node.value, ast.Dict)
        ):
            return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    return []


def _stems(names: Iterable[str]) -> list[str]:
    return [name.removesuffix(".toml") for name in names if name.endswith(".toml")]


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
