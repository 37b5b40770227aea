"""docs/deployment.md: what can be typed without a network is typed.

All of it, with servers and silos on hosts of their own, is benchmarks/hosts.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.common.config import flatten_dict

from fednag import cli
from fednag.flower.settings import read_run_config
from fednag.flower.silo_data import held_by

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from hosts import PAGE, Block, blocks  # noqa: E402

BLOCKS = blocks(PAGE.read_text())


def commands(block: Block, program: str) -> list[list[str]]:
    """The words of the block's calls of a program."""
    whole = block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in whole if line.startswith(program + " ")]


def test_every_block_is_shell_and_every_host_gets_what_it_needs() -> None:
    for block in BLOCKS:
        done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, check=False)
        assert done.returncode == 0, (block.text, done.stderr)
    serving = [block for block in BLOCKS if block.stays]
    assert [block.hosts for block in serving] == [("server",), ("a",), ("b",), ("c",), ("a",)]
    numbers = [re.findall(r"partition-id=(\d)", block.text) for block in serving]
    assert numbers == [[], ["0"], ["1"], ["2"], ["0"]]
    quiet = {host for b in BLOCKS if "FLWR_TELEMETRY_ENABLED=0" in b.text for host in b.hosts}
    assert quiet == {"server", "a", "b", "c"}


def test_keys_data_and_app_are_made_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host in a folder of its own; the keys that are used are those that were made."""
    used: dict[str, set[str]] = {}
    for block in BLOCKS:
        (host, *_) = block.hosts
        home = tmp_path / host
        home.mkdir(exist_ok=True)
        monkeypatch.chdir(home)
        monkeypatch.setenv("HOME", str(home))
        if "secrets/old" in block.text:
            subprocess.run(["bash", "-ec", block.text.split("fednag")[0]], check=True)
        for words in commands(block, "fednag"):
            if words[1] != "flower":
                continue
            words = [word.replace("$HOME", str(home)) for word in words]
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            assert stopped.value.code == 0, words
        if "numpy.save" in block.text:
            script = block.text[block.text.index("mkdir") :].replace(
                "python ", f"{sys.executable} "
            )
            subprocess.run(["bash", "-ec", script], check=True)
        files = set(re.findall(r"(?<!:)\bsecrets/([\w.-]+)", block.text)) - {"old"}
        used.setdefault(host, set()).update(files)
    travelled = {"ca.crt", "silo-0.pub", "silo-1.pub", "silo-2.pub", "silo-0-new.pub"}
    for host, names in used.items():
        made = {path.name for path in (tmp_path / host / "secrets").iterdir()}
        assert names - travelled <= made, host
    project = tomllib.loads((tmp_path / "server" / "app" / "pyproject.toml").read_text())
    config = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    for words in [w for block in BLOCKS for w in commands(block, "flwr run")]:
        changes = words[words.index("-c") + 1].split() if "-c" in words else []
        for change in changes:
            key, _, given = change.partition("=")
            assert key in config, change
            config[key] = int(given) if given.isdecimal() else given == "true"
    deployment = read_run_config({**config, "split.workers": 3})
    for silo, host in enumerate("abc"):
        node = {"partition-id": silo, "data-folder": str(tmp_path / host / "data")}
        holding = held_by(deployment, node)
        assert (len(holding.samples), len(holding.dataset.test_x)) == (500, 99)


def test_the_table_of_threats_names_tests_that_there_are() -> None:
    text = PAGE.read_text()
    table = text[text.index("## What is protected") :]
    named = set(re.findall(r"`(test_\w+)`", table))
    there = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
    assert len(named) > 15
    assert named <= there
