"""Every package that is installed is pinned, and a deployment's are locked by their hashes."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import supply  # noqa: E402

pytestmark = pytest.mark.core
TESTED = ("test", "flower", "simulation")  # what the tests' environment has


def test_everything_installed_is_pinned_at_its_version() -> None:
    text = supply.CONSTRAINTS.read_text()
    found = supply.closure(TESTED)
    assert len(found) > 80
    unlike = {
        name: (version, supply.pinned(text).get(name))
        for name, version in found.items()
        if supply.pinned(text).get(name) != version.partition("+")[0]
    }
    assert not unlike, "run `python tools/supply.py pins`"
    assert supply.pins(text, found | supply.pinned(text)) == text


def test_the_lock_has_all_of_a_deployment_with_hashes() -> None:
    text = supply.LOCK.read_text()
    pinned = supply.pinned(supply.CONSTRAINTS.read_text())
    needed = supply.closure(supply.DEPLOYED).keys() - set(supply.ELSEWHERE)
    assert supply.pinned(text) == {name: pinned[name] for name in needed}
    for entry in re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]:
        assert re.findall(r"--hash=sha256:([0-9a-f]{64})(?: \\)?\n", entry), entry
    assert f"torch=={pinned['torch']}" in text


def test_pins_keep_comments_and_add_what_is_missing() -> None:
    text = "# Why.\ntorch==2.0\nold==1.0\n"
    found = supply.pins(text, {"torch": "2.13.0+cpu", "new": "3.1"})
    assert found == f"# Why.\ntorch==2.13.0\n{supply.REST}\nnew==3.1\n"
    assert supply.pins(found, {"torch": "2.13.0", "new": "3.2"}).endswith("new==3.2\n")


def test_hashes_are_those_of_one_version() -> None:
    page = "".join(
        f'<a href="../files/{file}#{kind}={value * 64}">{file}</a>'
        for file, kind, value in [
            ("thing-1.0-py3-none-any.whl", "sha256", "a"),
            ("thing-1.0.tar.gz", "sha256", "b"),
            ("thing-1.0.1.tar.gz", "sha256", "c"),
            ("thing-1.0.zip", "md5", "d"),
            ("thing-latest.exe", "sha256", "e"),
        ]
    )
    assert supply.hashes(page, "1.0") == ["a" * 64, "b" * 64]
    assert supply.hashes(page, "2.0") == []


def test_licences_are_read_from_the_packages() -> None:
    assert "BSD" in supply.licence(distribution("numpy"))
    assert "not said" not in {supply.licence(distribution(name)) for name in ("torch", "flwr")}
