"""Prints the test files that `make check` runs: those of the core, and those of what has changed.

A test file is one of what has changed if it was changed itself, or imports a module that was.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = re.compile(r"CORE = \{(.*?)\n\}", re.S)
MOST = 4  # files beside the core's: more is what `make test` is for


def changed() -> list[str]:
    """Files that differ from the last commit, or from the main branch."""
    found = set()
    for words in (["diff", "--name-only", "HEAD"], ["diff", "--name-only", "main...HEAD"],
                  ["ls-files", "--others", "--exclude-standard"]):  # fmt: skip
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        found |= set(done.stdout.split())
    return sorted(found)


def modules(files: list[str]) -> list[str]:
    parts = [Path(name).with_suffix("").parts for name in files if name.endswith(".py")]
    return [".".join(p[1:]).removesuffix(".__init__") for p in parts if p[:2] == ("src", "fednag")]


def main() -> None:
    listed = CORE.search((ROOT / "tests/conftest.py").read_text())
    assert listed is not None
    core = [f"tests/test_{name}.py" for name in re.findall(r'"(\w+)"', listed.group(1))]
    files = changed()
    own = [name for name in files if re.fullmatch(r"tests/test_\w+\.py", name)]
    named = modules(files)
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        text = path.read_text()
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in named):
            own.append(f"tests/{path.name}")
    rest = [n for n in dict.fromkeys(own) if n not in core and (ROOT / n).is_file()]
    print(*[name for name in core if (ROOT / name).is_file()], *rest[:MOST])


if __name__ == "__main__":
    main()
