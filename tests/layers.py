"""The layers of the package, and who really imports whom; the tests and the drawing use both."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fednag"

# A room is a package or a module directly in src/fednag. It may import from rooms of the lines
# above its own, and from none beside it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core", "secure"),
    ("transforms", "aggregators", "controllers", "attacks"),
    ("algorithms", "privacy"),
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
    ("planning", "frontier", "decide", "tuning", "whatif", "paper", "cluster"),
    ("cli",),
    ("__main__", "__init__"),
)


def room(path: Path) -> str:
    """The room a source file is in."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a source file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write imports with the package's name"
            names = [node.module or ""]
            if node.module == "fednag":
                names = [f"fednag.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("fednag.")}
    return found


def graph() -> dict[str, set[str]]:
    """For every room the rooms it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        here = room(path)
        found.setdefault(here, set()).update(imports(path) - {here})
    return found
