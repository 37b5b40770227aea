"""Runs followed while a real process makes them: on the terminal's lines, and over HTTP."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from browser import Browser, program
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.view import RunView
from fednag.show.serve import Server
from fednag.show.watch import (
    Follower,
    as_data,
    pace,
    plain_line,
    screen,
    seconds_left,
    sparkline,
    time_text,
)

LONG = """
name = "long"
[model]
name = "logistic"
[training]
tau = 1
iterations = 1000000
[engine]
chunk = 4
threads = 1
"""


def until(happened: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@contextmanager
def process(*words: str, cwd: Path, yielding: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A command of ours, running; ended however the test ends.

    ``yielding`` is how far it steps back for other tests (nice).
    """
    running = subprocess.Popen(
        [sys.executable, "-m", "fednag", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: os.nice(yielding),
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a run is being made."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "long.toml").write_text(LONG)
    with process("run", "long.toml", "-q", cwd=desk, yielding=15) as running:
        until(lambda: [s for s in Follower(desk / "runs").look().views if s.records])
        yield desk
        assert running.poll() is None, running.communicate()
        running.send_signal(signal.SIGINT)
        running.wait(60)


def made(folder: Path, label: str = "fednag", **info: Any) -> RunFolder:
    run = RunFolder.create(folder, "hand", label)
    run.config_file.write_text("[training]\ntau = 2\niterations = 20\n")
    run.append(Record(0, 0, 2.0, 0.1, 0.1, 0, 0, 0.0, 0))
    run.append(Record(2, 1, 1.0, 0.5, 0.5, 8, 8, 0.5, 4))
    run.write_info({"status": "running", "label": label, "seed": 0, **info})
    return run


def test_a_process_is_followed_to_its_end(tmp_path: Path) -> None:
    run = made(tmp_path)
    follower = Follower(tmp_path)
    with run.locked():
        (view,) = follower.look().views
        assert view.running
        before = follower.look().tag
        assert follower.look().tag == before
        run.append(Record(4, 2, 0.9, 0.6, 0.6, 16, 16, 1.0, 4))
        look = follower.look()
        assert look.tag != before
        assert len(look.views[0].records) == 3
        assert look.running == 1
    # Let go of without a word: its process was killed.
    after = follower.look()
    assert not after.views[0].running
    assert after.views[0].ended == "interrupted"
    assert after.tag != look.tag


def test_looking_does_not_write(tmp_path: Path) -> None:
    run = made(tmp_path, status="finished", ended="finished")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert Follower(tmp_path).look().views[0].ended == "finished"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert not run.is_being_written
    assert not (run.path / ".lock").exists()


def test_whoever_asks_does_not_keep_a_writer_out(tmp_path: Path) -> None:
    """A look holds the lock for a moment; a run that starts in that moment waits for it."""
    import threading

    run = made(tmp_path)
    (run.path / ".lock").touch()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            Follower(tmp_path).look()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            with run.locked():
                pass
    finally:
        done.set()
        looking.join()


def test_one_damaged_run_hides_no_other(tmp_path: Path) -> None:
    made(tmp_path)
    made(tmp_path, "broken").info_file.write_text("{")
    look = Follower(tmp_path).look()
    assert [view.label for view in look.views] == ["fednag"]
    assert look.failed[0].source.endswith("run.json")


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = made(tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside.path)
    assert Follower(inside).look().views == []
    assert Follower(tmp_path / "nowhere").look().views == []


def test_pace_and_time_left_by_hand() -> None:
    records = [Record(2 * i, i, 1.0, None, None, 0, 0, 0.5 * i, 4) for i in range(41)]
    config = {"training": {"tau": 2, "iterations": 101}}
    view = RunView("a", 0, records, config=config, running=True)
    assert (view.rounds, view.planned) == (40, 51)
    assert pace(view) == pytest.approx(2.0)
    assert seconds_left(view) == pytest.approx(5.5)
    assert plain_line(view) == "a, seed 0: running, round 40/51, loss 1.0000, 0:06 left"
    named = replace(view, config={**config, "name": "digits"})
    assert plain_line(named).startswith("digits, a, seed 0: running, ")
    assert as_data(named)["experiment"] == "digits"
    # Only what was lately counts.
    slower = [*records[:-1], replace(records[-1], seconds=38 * 0.5 + 10)]
    assert pace(replace(view, records=slower)) == pytest.approx(19 / (29 - 10.5))
    assert seconds_left(replace(view, running=False)) is None
    assert time_text(3661) == "1:01:01"


def test_sparklines_by_hand() -> None:
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 10, 100], logarithmic=True) == "▁▅█"
    assert sparkline([3, 3]) == "▁▁"
    assert sparkline(range(1000), width=4) == "▁▃▆█"
    assert sparkline([]) == ""


def test_watch_prints_lines_when_piped(training: Path) -> None:
    with process("watch", "--interval", "0.1", cwd=training) as watching:
        assert watching.stdout is not None
        first, second = (watching.stdout.readline() for _ in range(2))
        assert re.match(r"[\w-]+, fednag, seed 0: running, round \d+/1000000, loss \d", first)
        assert first != second
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
        assert watching.communicate()[1] == ""


def test_watch_once_is_for_programs(training: Path) -> None:
    with process("watch", "--once", "--json", cwd=training) as watching:
        out, err = watching.communicate(timeout=60)
    (run,) = json.loads(out)["runs"]
    assert run["state"] == "running"
    assert run["rounds"] == 1_000_000
    assert run["rounds_per_second"] is None or run["rounds_per_second"] > 0
    assert err == ""


def ask(
    port: int, path: str = "/data.json", method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def rounds(port: int) -> int:
    status, body = ask(port)
    assert status == 200
    return int(json.loads(body)["runs"][0]["round"])


def test_the_web_page_follows_a_real_run(training: Path, tmp_path: Path) -> None:
    with process("watch", "--web", cwd=training) as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/", line)[0])
        first = rounds(port)
        until(lambda: rounds(port) > first)
        tag = json.loads(ask(port)[1])["tag"]
        assert tag
        # Neither other names, nor other methods, nor paths of the disk.
        assert ask(port, host="evil.example")[0] == 403
        assert ask(port, host=f"evil.example:{port}")[0] == 403
        assert ask(port, host=f"localhost:{port}")[0] == 200
        for path in ("/../long.toml", "/long.toml", "/%2e%2e/etc/passwd", "//etc/passwd", "/runs"):
            assert ask(port, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE"):
            assert ask(port, method=method)[0] == 501
        executable = program()
        if executable:
            with Browser(executable, tmp_path) as page:
                page.open(f"http://127.0.0.1:{port}/")
                _follows(page, port)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
        assert watching.communicate()[1] == ""


def _follows(page: Browser, port: int) -> None:
    state = "document.querySelector('#runs td:nth-child(3)').innerText"
    before = page.run(state)
    assert before.strip().startswith("round ")
    page.run("document.querySelector('[data-key=x-seconds]').click()")
    page.until(lambda: page.run(state) != before)
    # What was chosen stays chosen.
    assert page.run("document.querySelector('[data-key=x-seconds]').ariaPressed") == "true"
    assert page.run("document.querySelectorAll('[data-chart=loss] .line').length") == 1
    assert page.run("document.getElementById('pulse').innerText") == "1 running"
    assert page.complaints == []
    origin = f"http://127.0.0.1:{port}/"
    assert {url.split("?")[0] for url in page.requests} <= {origin, f"{origin}data.json"}


def test_the_server_waits_for_runs_and_sleeps_when_nothing_changes(tmp_path: Path) -> None:
    with Server(Follower(tmp_path / "runs")) as server:
        empty = server.current()
        assert "No records in" in empty["sentence"]
        run = made(tmp_path / "runs")
        found = server.current()
        assert found["tag"] != empty["tag"]
        assert found["methods"][0]["label"] == "fednag"
        assert server.current() is found
        run.append(Record(4, 2, 0.9, 0.6, 0.6, 16, 16, 1.0, 4))
        assert server.current() is not found
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(FednagError, match="cannot listen there"):
            Server(Follower(tmp_path), server.server_port)


def test_rows_of_several_experiments_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run = made(tmp_path / name)
        run.config_file.write_text(f'name = "exp-{name}"\n' + run.config_file.read_text())
    for width in (80, 160):
        terminal = Console(width=width, file=io.StringIO())
        terminal.print(screen(Follower(tmp_path).look(), "runs", width=width))
        text = terminal.file.getvalue()  # type: ignore[attr-defined]
        assert "exp-on" in text
        assert "exp-ot" in text
    terminal.print(screen(Follower(tmp_path / "one").look(), "runs"))
    assert terminal.file.getvalue().count("experiment") == 1  # type: ignore[attr-defined]
