"""Who may import whom, and what must not appear."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fednag"

# Each room and the rooms it may look into.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "vectors": set(),
    "algorithm": {"vectors"},
    "algorithms": {"algorithm", "vectors"},
    "contract": {"algorithm", "errors", "vectors"},
    "metrics": {"errors"},
    "problems": {"errors", "vectors"},
    "records": {"errors"},
    "labels": set(),
    "targets": {"errors", "metrics", "records"},
    "memory": set(),
    "simulate": {"algorithm", "errors", "memory", "metrics", "problems", "records", "vectors"},
    "report": {"errors", "labels", "records", "targets", "theory"},
    "config": {"algorithm", "algorithms", "errors", "metrics"},
    "clock": {
        "algorithm",
        "algorithms",
        "config",
        "errors",
        "labels",
        "problems",
        "records",
        "simulate",
        "targets",
        "vectors",
    },
    "experiment": {"algorithm", "clock", "config", "errors", "metrics", "problems", "simulate"},
    "results": {"config", "records", "report"},
    "checkpoint": {"errors", "records", "simulate", "vectors"},
    "interrupts": set(),
    "weights": {"errors", "records"},
    "execute": {
        "algorithm",
        "checkpoint",
        "clock",
        "config",
        "errors",
        "interrupts",
        "metrics",
        "problems",
        "records",
        "results",
        "simulate",
        "vectors",
        "weights",
    },
    "arguments": {
        "algorithm",
        "config",
        "contract",
        "errors",
        "experiment",
        "metrics",
        "problems",
    },
    "api": {
        "algorithm",
        "arguments",
        "config",
        "errors",
        "execute",
        "experiment",
        "interrupts",
        "memory",
        "problems",
        "progress",
        "records",
        "results",
    },
    "paper": {
        "api",
        "clock",
        "config",
        "errors",
        "execute",
        "experiment",
        "interrupts",
        "problems",
        "records",
        "report",
    },
    "theory": {"algorithm", "algorithms", "errors", "problems", "vectors"},
    "trackers": {"errors", "records", "report"},
    "watch": {"errors", "records", "report", "targets"},
    "planning": {
        "algorithms",
        "api",
        "clock",
        "config",
        "errors",
        "interrupts",
        "metrics",
        "records",
        "targets",
    },
    "flower": {
        "algorithm",
        "algorithms",
        "config",
        "errors",
        "execute",
        "experiment",
        "metrics",
        "problems",
        "records",
        "results",
        "simulate",
        "vectors",
    },
    "progress": {"config", "execute", "simulate", "terminal"},
    "terminal": {"config", "execute", "records", "report", "simulate", "targets"},
}


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
    seen = set()
    for path in SOURCE.rglob("*.py"):
        here = room(path)
        seen.add(here)
        if here not in ("__init__", "__main__", "cli"):
            assert imports(path) <= MAY_IMPORT[here] | {here}, path
    assert set(MAY_IMPORT) <= seen


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
            "sources.py": {"pooch"},
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
