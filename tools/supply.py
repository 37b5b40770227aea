"""What the project is made of: versions, licences and hashes of all it installs.

    python tools/supply.py pins       write constraints.txt from the packages installed here
    python tools/supply.py lock       write deploy.lock: those of a deployment, with their hashes
    python tools/supply.py licences   print the licence of every package

`pins` keeps the lines and comments of constraints.txt, sets their versions to what is installed,
and adds what is missing: what every extra of pyproject.toml needs, and what that needs in turn.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from html.parser import HTMLParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "deploy.lock"
PROJECT = "fednag"
DEPLOYED = ("flower", "privacy")  # extras of a silo and its server
ELSEWHERE = ("torch",)  # its files differ from index to index: with or without CUDA
INDEX = "https://pypi.org/simple/"
REST = "# What those bring."
HEAD = """\
# What a deployment installs, with the hash of every file. `python tools/supply.py lock` writes it.
# torch is not here: its files differ from index to index. Install it first:
#     pip install torch=={torch}
#     pip install --require-hashes --no-deps -r deploy.lock
#     pip install --no-deps .
"""


def closure(extras: tuple[str, ...]) -> dict[str, str]:
    """Name -> version of all that the project needs with these extras, as installed here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()

    def add(name: str, wanted: frozenset[str]) -> None:
        name = canonicalize_name(name)
        new = {(name, extra) for extra in {"", *wanted}} - seen
        if not new:
            return
        seen.update(new)
        if name == PROJECT:  # what pyproject.toml says now, not when it was installed
            for extra in wanted:
                add_all(project()["optional-dependencies"][extra], frozenset())
            add_all(project()["dependencies"], frozenset())
            return
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed here: run `make .venv/.installed-docs` first")
        found[name] = installed.version
        add_all(installed.requires or [], wanted)

    def add_all(lines: list[str], wanted: frozenset[str]) -> None:
        for needed in map(Requirement, lines):
            if any(applies(needed, extra) for extra in {"", *wanted}):
                add(needed.name, frozenset(needed.extras))

    add(PROJECT, frozenset(extras))
    return dict(sorted(found.items()))


def applies(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def every_extra() -> tuple[str, ...]:
    return tuple(project()["optional-dependencies"])


def pinned(text: str) -> dict[str, str]:
    """Name -> version of the lines of constraints.txt, or of a lock."""
    lines = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def pins(text: str, installed: dict[str, str]) -> str:
    """constraints.txt with the installed versions; its comments and order stay."""
    kept = []
    for line in text.splitlines():
        name = canonicalize_name(line.partition("==")[0])
        if "==" not in line or line.startswith("#"):
            kept.append(line)
        elif name in installed:
            # A build's label, as in 2.13.0+cpu, is of one index alone.
            kept.append(f"{name}=={installed[name].partition('+')[0]}")
    missing = sorted(installed.keys() - pinned(text).keys())
    if missing and REST not in kept:
        kept.append(REST)
    kept += [f"{name}=={installed[name].partition('+')[0]}" for name in missing]
    return "\n".join(kept) + "\n"


class Links(HTMLParser):
    """The addresses of a package's files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.found.append(address)


def hashes(page: str, version: str) -> list[str]:
    """SHA-256 of every file of this version on a package's page of an index."""
    links = Links()
    links.feed(page)
    found = set()
    for link in links.found:
        address, fragment = urldefrag(link)
        kind, _, value = fragment.partition("=")
        if kind == "sha256" and version_of(address.rpartition("/")[2]) == version:
            found.add(value)
    return sorted(found)


def version_of(file: str) -> str | None:
    try:
        read = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
        return str(read(file)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def lock(index: str, versions: dict[str, str]) -> str:
    import requests

    lines = [HEAD.format(torch=versions["torch"])]
    for name, version in versions.items():
        if name in ELSEWHERE:
            continue
        answer = requests.get(
            urljoin(index, f"{name}/"), timeout=60, headers={"Accept": "text/html"}
        )
        answer.raise_for_status()
        known = hashes(answer.text, version)
        if not known:
            sys.exit(f"{index} gives no hash of {name} {version}: name another with --index")
        digests = "".join(f" \\\n    --hash=sha256:{value}" for value in known)
        lines.append(f"{name}=={version}{digests}\n")
        print(f"{name} {version}: {len(known)} files", file=sys.stderr)
    return "".join(lines)


def licence(package: Distribution) -> str:
    """What its authors say, in one line."""
    data = package.metadata
    if expression := data.get("License-Expression"):
        return expression
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in data.get_all("Classifier") or ()
        if entry.startswith("License :: ") and not entry.endswith("OSI Approved")
    ]
    text = (data.get("License") or "").strip().partition("\n")[0]
    return ", ".join(classified) or text or "not said"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pins", "lock", "licences"))
    parser.add_argument("--index", default=INDEX, help=f"for lock; default {INDEX}")
    options = parser.parse_args()
    if options.what == "pins":
        CONSTRAINTS.write_text(pins(CONSTRAINTS.read_text(), closure(every_extra())))
    elif options.what == "lock":
        versions = pinned(CONSTRAINTS.read_text())
        LOCK.write_text(lock(options.index, {n: versions[n] for n in closure(DEPLOYED)}))
    else:
        for name, version in closure(every_extra()).items():
            print(f"{name}\t{version}\t{licence(distribution(name))}")


if __name__ == "__main__":
    main()
