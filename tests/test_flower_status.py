"""``fednag flower status``: what a deployment's folder says, for people and for Prometheus."""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fednag import FednagError, cli
from fednag.flower.silo_log import read
from fednag.show.serve import StatusServer
from fednag.show.status import Deployments, metrics, page
from flower_kit import altered, config_of, grid_of, play, relabel, silent, silos_made_once

SAMPLE = re.compile(r'^(fednag_\w+)((?:\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})?) (-?[0-9.e+-]+)$')


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rounds: silo 1 is silent from the second on, silo 2 lies in the last one."""
    out = tmp_path_factory.mktemp("runs")
    config = config_of(out, rounds=5, uplink__0__kind="clip", uplink__0__norm=1.0)
    config |= {"uplink.1.kind": "noise", "uplink.1.sigma": 1.0, "privacy.delta": 1e-5}
    config |= {"flower.quorum": 1}
    lie = altered(relabel(digest="0" * 64), rounds=[5])
    with pytest.MonkeyPatch.context() as patch:
        silos_made_once(patch)
        play(config, grid_of(config, faults={1: silent(rounds=range(2, 9)), 2: lie}))
    return out


def test_it_says_of_each_silo_what_its_lines_say(runs: Path) -> None:
    ((each,), failed) = Deployments(runs).look()
    assert (failed, each.expected, each.run["round"]) == ([], 3, 5)
    (path,) = runs.rglob("silos.jsonl")
    lines = read(path)
    for silo in each.silos:
        own = Counter(line["status"] for line in lines if line["silo"] == silo.number)
        assert silo.answers == own
        assert silo.seen
        assert silo.seen > 1.7e9
    assert [silo.state for silo in each.silos] == ["here", "away", "refused"]
    assert each.silos[1].row == 4
    assert "its digest is 0000" in each.silos[2].why
    sizes = [silo.samples for silo in each.silos]
    assert [silo.share for silo in each.silos] == [n / sum(filter(None, sizes)) for n in sizes if n]
    assert sum(silo.share or 0 for silo in each.silos) == pytest.approx(1)


def test_prometheus_can_read_it(runs: Path) -> None:
    (found, _) = Deployments(runs).look()
    text = metrics(found)
    values: dict[str, float] = {}
    families: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        elif not line.startswith("# HELP "):
            parts = SAMPLE.match(line)
            assert parts, line
            assert parts[1] == families[-1]  # a family is one block, after its type
            values[parts[1] + parts[2]] = float(parts[3])
    assert len(families) == len(set(families))
    by = f'run="{found[0].key}"'
    assert values[f"fednag_round{{{by}}}"] == 5
    assert values[f'fednag_silo_answers_total{{{by},silo="1",status="missed"}}'] == 4
    assert values[f'fednag_silo_up{{{by},silo="0"}}'] == 1
    assert values[f'fednag_silo_up{{{by},silo="2"}}'] == 0
    assert values[f"fednag_silos_here{{{by}}}"] == 1
    assert values[f"fednag_epsilon{{{by}}}"] == found[0].run["epsilon"] > 0
    assert values["fednag_folders_unreadable"] == 0


def test_what_a_silo_says_is_shown_and_not_obeyed(runs: Path) -> None:
    from dataclasses import replace

    ((each,), _) = Deployments(runs).look()
    evil = "<script>alert(1)</script>"
    silos = (replace(each.silos[0], why=evil), *each.silos[1:])
    away = ({"why": evil},)
    text = page([replace(each, silos=silos, turned_away=away, key='a"\\b')], [], "runs")
    assert "<script" not in text
    assert text.count("&lt;script") == 2
    assert all(
        SAMPLE.match(line)
        for line in metrics([replace(each, key='a"\\b\nc')]).splitlines()
        if not line.startswith("#")
    )


@pytest.fixture
def server(runs: Path) -> Iterator[int]:
    with StatusServer(runs) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_port
        found.shutdown()


def asked(port: int, path: str, host: str = "") -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        line.request("GET", path, headers={"Host": host} if host else {})
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


def test_it_is_served_to_whom_it_should(server: int, runs: Path) -> None:
    assert asked(server, "/metrics")[1].startswith("# HELP fednag_run_info")
    assert json.loads(asked(server, "/status.json")[1])["runs"][0]["silos"][1]["state"] == "away"
    assert "round 5 of 5" in asked(server, "/")[1]
    assert asked(server, "/health") == (200, "ok\n")
    for path in ("/../", "/silos.jsonl", "//etc/passwd", "/metrics/x"):
        assert asked(server, path)[0] == 404, path
    assert asked(server, "/metrics", host="evil.example.org")[0] == 403
    with pytest.raises(FednagError, match="is beyond loopback; say by which names"):
        StatusServer(runs, host="0.0.0.0")
    with StatusServer(runs, host="0.0.0.0", names=["fl.example.org"]) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        port = found.server_port
        assert asked(port, "/health", f"fl.example.org:{port}")[0] == 200
        assert asked(port, "/health", f"other.example.org:{port}")[0] == 403
        found.shutdown()


@pytest.mark.parametrize("command", ["flower status", "show", "report", "ledger verify", "time"])
def test_the_folder_is_as_the_simulators(
    command: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands that read runs read a deployment's."""
    more = {"report": f" -o {tmp_path}/report.html", "time": " --fleet paper-edge --replays 2"}
    words = f"fednag {command} {runs}{more.get(command, '')}".split()
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    assert stopped.value.code == 0, told.err
    assert told.out.strip()
    if command == "report":
        assert "fednag" in (tmp_path / "report.html").read_text()
    if command == "flower status":
        assert re.search(r"1 +│ away", told.out)
