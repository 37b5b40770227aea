"""Units and a Compose file: what they start is what the commands take, and what they may touch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr")

from commands import LEAVES
from fednag import FednagError
from fednag.flower.units import Host, as_yaml, compose, exposure, unit, verified, write_units

DIGEST = "a" * 64
SERVER = Host("server")
SILO = Host("silo", silo=3, agreed=(DIGEST,), mutual=True, passphrase="/etc/fednag/word")
HOSTS = {"server": SERVER, "silo": SILO, "plain": Host("silo", agreed=(DIGEST,))}


def commands_of(host: Host) -> list[list[str]]:
    return [list(part.command) for part in host.parts("fednag", "nginx")]


@pytest.mark.parametrize("name", HOSTS)
def test_what_is_started_is_a_command_that_there_is(name: str) -> None:
    flower_superlink = import_module("flwr.superlink.cli.flower_superlink")
    flower_supernode = import_module("flwr.supernode.cli.flower_supernode")
    for words in commands_of(HOSTS[name]):
        if words[0] != "fednag":
            continue
        path = " ".join(words[1:3])
        mine, _, theirs = " ".join(map(shlex.quote, words[3:])).partition(" -- ")
        LEAVES[path].make_context(path, shlex.split(mine))  # every option is understood
        if path == "flower silo":
            given = flower_supernode._parse_args_run_supernode().parse_args(shlex.split(theirs))
            assert "partition-id=" in given.node_config
        if path == "flower link":
            parser = flower_superlink._parse_args_run_superlink()
            assert parser.parse_args(shlex.split(theirs)).enable_supernode_auth


def test_a_passphrase_is_on_no_command_line_and_units_name_no_secret(tmp_path: Path) -> None:
    for part in SILO.parts("fednag", "nginx"):
        text = unit(part, SILO)
        start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        assert "/etc/fednag/word" not in start
        assert ("LoadCredential=passphrase:/etc/fednag/word" in text) == (
            part.name == "fednag-silo"
        )


def test_a_silo_reads_its_data_and_writes_its_memory() -> None:
    (_, silo) = SILO.parts("fednag", "nginx")
    lines = dict(line.split("=", 1) for line in unit(silo, SILO).splitlines() if line.count("="))
    assert lines["ReadOnlyPaths"].split() == ["/srv/fednag/data", "/srv/fednag/secrets"]
    assert lines["ReadWritePaths"].split() == ["/srv/fednag/memory", "/srv/fednag/flwr"]
    assert (lines["ProtectSystem"], lines["ProtectHome"]) == ("strict", "yes")
    assert (lines["CapabilityBoundingSet"], lines["NoNewPrivileges"]) == ("", "yes")
    assert lines["User"] == "fednag"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_accepts_them_and_finds_little_exposed(tmp_path: Path) -> None:
    for name, host in HOSTS.items():
        (paths, checked) = write_units(tmp_path / name, host)
        assert checked
        assert all((level := exposure(path)) is not None and level < 2 for path in paths)
    paths[-1].write_text(paths[-1].read_text().replace("Type=exec", "Type=exex\nExecStart=nope"))
    with pytest.raises(FednagError, match="systemd refuses a unit"):
        verified(paths)


@pytest.mark.parametrize("name", HOSTS)
def test_the_compose_file_is_yaml_of_the_same_commands(name: str, tmp_path: Path) -> None:
    table = compose(HOSTS[name])
    text = as_yaml(table)
    assert yaml.safe_load(text) == table
    assert [s["command"] for s in table["services"].values()] == commands_of(HOSTS[name])
    for service in table["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    if _compose_is_here():
        (tmp_path / "compose.yaml").write_text(text)
        command = ["docker", "compose", "-f", str(tmp_path / "compose.yaml"), "config", "-q"]
        environment = {**os.environ, "FEDNAG_UID": "1000"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr


def _compose_is_here() -> bool:
    if shutil.which("docker") is None:
        return False
    return not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"role": "both"}, "--role both: use server or silo"),
        ({"role": "silo"}, "--agreed: is missing"),
        ({"role": "server", "home": "srv"}, "--home: is no absolute path"),
        ({"role": "server", "user": "a b"}, "--user a b: cannot stand in a unit"),
        ({"role": "server", "home": "/srv/%h"}, "--home /srv/%h: cannot stand in a unit"),
    ],
)
def test_what_cannot_stand_in_a_unit_is_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FednagError, match=sentence):
        Host(**given)


@pytest.mark.parametrize("page", ["operations.md", "deployment.md"])
def test_commands_that_the_page_names_are_understood(page: str) -> None:
    """Of `fednag flower`, in blocks and in the text, with all their options."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text().replace("\\\n", " ")
    found = re.findall(r"^(fednag flower [^\n#]+)", text, re.M)
    found += re.findall(r"`(fednag flower (?:keys|gateway|doctor|status) [^`]+)`", text)
    assert len(found) > 6
    for command in found:
        words = shlex.split(command.partition(" -- ")[0].replace("…", "").replace("DIGEST", DIGEST))
        path = " ".join(words[1:3])
        LEAVES[path].make_context(path, words[3:])
