"""Who may import whom, and what must not appear."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fednag"

# A room may look into those above it in this list, and into none beside it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core",),
    ("algorithms", "transforms", "aggregators", "controllers"),
    ("data",),
    ("compute",),
    ("problems",),
    ("simulate",),
    ("config",),
    ("devices",),
    ("runs",),
    ("clock", "flower", "theory"),
    ("show",),
    ("results",),
    ("arguments",),
    ("api",),
    ("planning", "paper"),
    ("cli",),
    ("__main__", "__init__"),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fednag"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        here = room(path)
        for other in imports(path) - {here}:
            assert DEPTH[other] < DEPTH[here], f"{path} looks into {other}"


def test_no_unsafe_constructs() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, ast.keyword):
                assert node.arg != "shell", path


def test_nothing_is_unpickled() -> None:
    """Reading a pickle runs what is in it; so nothing here writes or reads any."""
    words = r"pickle|shelve|marshal|joblib|dill|torch\.load|torch\.save"
    for folder in ("src", "benchmarks", "examples"):
        for path in (SOURCE.parents[1] / folder).rglob("*.py"):
            if ".peers" not in path.parts:
                assert not re.search(words, path.read_text(), re.IGNORECASE), path


def test_nothing_phones_home() -> None:
    """Only what fetches data sets, serves a page, or times transfers can reach the network."""
    network = {"socket", "http", "urllib", "urllib3", "requests", "pooch", "aiohttp", "httpx"}
    for path in SOURCE.rglob("*.py"):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
        allowed = {
            "download.py": {"requests", "pooch", "urllib3"},
            "transfers.py": {"socket"},
            "processes.py": {"socket"},  # looks for free ports of loopback
            "serve.py": {"http", "urllib"},  # urllib.parse
        }
        assert found & network <= allowed.get(path.name, set()), path


def test_only_one_room_knows_flower() -> None:
    """Flower's interfaces move often, and most users have no use for it."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                foreign = name.split(".")[0] in ("flwr", "cryptography", "ray")
                assert not foreign or room(path) == "flower", path
