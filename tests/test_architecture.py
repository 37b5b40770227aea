"""Who may import whom, and what must not appear."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from layers import LAYERS, SOURCE, graph, imports, room

ROOT = SOURCE.parents[1]
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def test_every_room_has_a_layer() -> None:
    assert set(graph()) == set(DEPTH)
    assert len(DEPTH) == sum(map(len, LAYERS))  # and only one


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        here = room(path)
        for other in imports(path) - {here}:
            assert DEPTH[other] < DEPTH[here], f"{path} looks into {other}"


def test_every_way_of_importing_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "room.py"
    file.write_text(
        "import torch, fednag.api\nfrom fednag import cli\nfrom fednag.core.loop import Loop\n"
        "def late():\n    from fednag.runs import view\n"
    )
    assert imports(file) == {"api", "cli", "core", "runs"}


def test_the_drawing_is_that_of_the_imports_now() -> None:
    """Otherwise: `python docs/drawing.py`, and look whether the new import is meant."""
    drawn = runpy.run_path(str(ROOT / "docs" / "drawing.py"))
    assert drawn["DRAWING"].read_text(encoding="utf-8") == drawn["drawing"]()


def test_only_imports_that_follow_from_others_are_not_drawn() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "drawing.py"))
    edges = graph()
    arrows = {name: set(others) for name, others in drawn["needed"](edges).items()}
    for name, others in edges.items():
        assert arrows[name] <= others
        assert drawn["reached"](name, arrows) == drawn["reached"](name, edges)
        for other in arrows[name]:  # none can be left out
            without = {**arrows, name: arrows[name] - {other}}
            assert other not in drawn["reached"](name, without)


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_room_is_on_the_map(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in DEPTH:
        assert f"`{name}" in text, name


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
    # Reads data out of a pickle's opcodes, so that nothing need be unpickled; the other says so.
    speaking = {"opcodes.py", "traces.py"}
    for folder in ("src", "benchmarks", "examples"):
        for path in (SOURCE.parents[1] / folder).rglob("*.py"):
            if ".peers" in path.parts:
                continue
            text = path.read_text()
            if path.parent == SOURCE / "devices" and path.name in speaking:
                assert not re.search(rf"(import|from) +_?({words})", text), path
                assert not re.search(r"__import__|getattr|importlib|find_class", text), path
            else:
                assert not re.search(words, text, re.IGNORECASE), path


def test_nothing_phones_home() -> None:
    """Only what fetches data sets, serves a page, or times transfers can reach the network."""
    network = {"socket", "http", "urllib", "urllib3", "requests", "pooch", "aiohttp", "httpx"}
    unix = "frames.py", "resident.py", "trainer.py"
    for path in SOURCE.rglob("*.py"):
        assert path.name not in unix or "AF_INET" not in path.read_text(), path
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
        allowed = {
            "download.py": {"requests", "pooch", "urllib3"},
            "transfers.py": {"socket"},
            "doctor.py": {"socket", "http"},  # asks the server whether it is there
            "processes.py": {"socket"},  # looks for free ports of loopback
            **{name: {"socket"} for name in unix},  # between processes of one user here
            "ray.py": {"socket"},  # asks a cluster whether it is there
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
                foreign = name.split(".")[0] in ("flwr", "cryptography")
                crypt = room(path) == "secure" and name.startswith("cryptography.")
                assert not foreign or crypt or room(path) == "flower", path
                assert name.split(".")[0] != "ray" or room(path) == "cluster", path
