"""Runs on several machines: the same runs as here, whoever is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fednag import FedNAG, FednagError, api
from fednag.cluster import OnRay, OnSlurm, place
from fednag.cluster.tasks import STOP, do, write_tasks
from fednag.config import Experiment, parse
from fednag.core.algorithm import Algorithm
from fednag.runs.build import Builder
from fednag.runs.folder import RunFolder

FEDNAG = [sys.executable, "-m", "fednag"]
FILE = """
name = "far"
model = {name = "logistic"}
algorithm = {name = "scaffold"}
split = {workers = 12, samples = 16}
training = {tau = 2, iterations = ITERATIONS, batch = 8, participants = 6}
engine = {chunk = 3}
checkpoint = {rounds = 5, seconds = 0}
"""
SHORT = FILE.replace("ITERATIONS", "20")
GRID = ["--grid", "training.batch=4,8", "--seeds", "0,1", "--quiet"]


def experiments() -> list[tuple[str, Experiment, Algorithm | None]]:
    return api.grid(tomllib.loads(SHORT), {"training.batch": [4, 8]}, [0], "far")


def losses(folder: Path) -> dict[str, list[float | None]]:
    """The losses of all runs below, by their folders' names."""
    runs = (RunFolder(file.parent) for file in folder.rglob("run.json"))
    return {run.path.name: [record.loss for record in run.records()] for run in runs}


def test_places_are_named_in_one_way() -> None:
    assert place(None) is None
    assert place("ray") == OnRay(None)
    assert place("ray=10.0.0.1:6379") == OnRay("10.0.0.1:6379")
    assert place("ray://head:10001") == OnRay("ray://head:10001")
    assert place("slurm", Path("x")) == OnSlurm(Path("x"))
    for text, script in (("rays", None), ("ray=", None), ("slurm", None), ("ray", Path("x"))):
        with pytest.raises(FednagError, match=r"--on|--script"):
            place(text, script)


def test_a_task_is_the_run_it_describes(tmp_path: Path) -> None:
    here = {r.label: [x.loss for x in r.records] for r in api.run_all(experiments())}
    tasks = write_tasks(tmp_path / "t", experiments(), tmp_path, False, Builder())
    (tmp_path / "t" / STOP).touch()  # nothing is begun
    assert [do(task.folder) for task in tasks] == [143, 143]
    assert [task.outcome for task in tasks] == [{"status": "interrupted"}] * 2
    assert not losses(tmp_path)
    (tmp_path / "t" / STOP).unlink()
    assert [do(task.folder) for task in tasks] == [0, 0]
    assert [do(task.folder) for task in tasks] == [0, 0]  # once more: they are over
    assert len(losses(tmp_path)) == 2
    for task in tasks:
        assert task.run is not None
        assert here[task.run.info()["label"]] == losses(task.run.path)[task.run.path.name]


def test_a_task_that_fails_says_so(tmp_path: Path) -> None:
    (task, _) = write_tasks(tmp_path / "t", experiments(), tmp_path, False, Builder())
    file = task.folder / "task.json"
    file.write_text(file.read_text().replace('"version": "', '"version": "9'))
    assert do(task.folder) == 2
    assert task.outcome is not None
    assert "install the same everywhere" in task.outcome["error"]["sentence"]


def test_python_objects_stay_here(tmp_path: Path) -> None:
    (label, experiment, _), *_ = experiments()
    with pytest.raises(FednagError, match="do not travel"):
        write_tasks(tmp_path / "t", [(label, experiment, FedNAG())], tmp_path, False, Builder())


def test_own_files_travel_with_their_task(tmp_path: Path) -> None:
    code = "from fednag import FedNAG\nclass Mine(FedNAG):\n    pass\n"
    (tmp_path / "mine.py").write_text(code)
    tables = {"algorithm": {"name": f"{tmp_path / 'mine.py'}:Mine"}, "model": {"name": "logistic"}}
    tables |= {"training": {"tau": 1, "iterations": 2}, "engine": {"chunk": 1}}
    (task,) = write_tasks(
        tmp_path / "t", [("mine", parse(tables), None)], tmp_path, False, Builder()
    )
    (tmp_path / "mine.py").unlink()
    assert do(task.folder) == 0


def test_slurm_gets_a_script_whose_tasks_do_the_runs(tmp_path: Path) -> None:
    """The script's own command, as an array of Slurm's starts it; then the results are read."""
    (tmp_path / "far.toml").write_text(SHORT)
    words = [*FEDNAG, "sweep", "far.toml", *GRID[:2], "--quiet"]
    made = subprocess.run(
        [*words, "--on", "slurm", "--script", "jobs"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "2 tasks; submit them with `sbatch jobs/array.sbatch`" in made.stdout
    script = tmp_path / "jobs" / "array.sbatch"
    assert "#SBATCH --array=0-1\n" in script.read_text()
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    for number in ("0", "1"):
        inside = {**os.environ, "SLURM_ARRAY_TASK_ID": number}
        assert subprocess.run(["bash", script], cwd="/", env=inside).returncode == 0
    read = subprocess.run([*words, "--resume", "--json"], cwd=tmp_path, capture_output=True)
    assert read.returncode == 0, read.stderr
    here = {r.label: [x.loss for x in r.records] for r in api.run_all(experiments())}
    assert sorted(losses(tmp_path / "runs").values()) == sorted(here.values())  # type: ignore[type-var]
    again = subprocess.run(
        [*words, "--on", "slurm", "--script", "jobs"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "--script" in again.stderr


Cluster = tuple[str, Callable[[], None]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two Ray nodes of this machine, the address of the first, and what kills the second.

    They listen on the machine's own address: Ray takes 127.0.0.1 for that where it is an address.
    """
    pytest.importorskip("ray")
    code = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
both = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=both, shutdown_at_exit=True)
second = cluster.add_node(num_cpus=1)
print("at " + cluster.address, flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
cluster.shutdown()
"""
    with (tmp_path / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None

    def said(what: Callable[[str], bool]) -> str:
        assert process.stdout is not None
        return next(line.strip() for line in process.stdout if what(line))

    def kill() -> None:
        assert process.stdin is not None
        process.stdin.write("kill\n")
        process.stdin.flush()
        said(lambda line: line == "killed\n")

    yield said(lambda line: line.startswith("at ")).removeprefix("at "), kill
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def begun(folder: Path, rounds: int) -> None:
    """Wait until all runs there have come so far."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        counts = [len(file.read_bytes().splitlines()) for file in folder.rglob("records.jsonl")]
        if len(counts) >= 2 and min(counts) > rounds:
            return
        time.sleep(0.05)
    raise AssertionError(f"no runs that have begun in {folder}")


@pytest.mark.slow
def test_a_node_is_lost_and_the_runs_are_those_of_one_machine(
    tmp_path: Path, cluster: Cluster
) -> None:
    address, kill = cluster
    (tmp_path / "far.toml").write_text(FILE.replace("ITERATIONS", "400"))
    words = [*FEDNAG, "sweep", "far.toml", *GRID[:2], "--quiet"]
    here = subprocess.run([*words, "--out", "here"], cwd=tmp_path, capture_output=True, text=True)
    assert here.returncode == 0, here.stderr
    far = subprocess.Popen(
        [*words, "--out", "far", "--on", f"ray={address}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun(tmp_path / "far", 20)
    kill()
    _, err = far.communicate(timeout=900)
    assert far.returncode == 0, err
    assert losses(tmp_path / "far") == losses(tmp_path / "here")
    assert not list((tmp_path / "far").glob(".tasks-*"))


@pytest.mark.slow
def test_interrupted_runs_are_saved_and_go_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "far.toml").write_text(FILE.replace("ITERATIONS", "4000"))
    words = [*FEDNAG, "sweep", "far.toml", *GRID[:2], "--quiet", "--out", "far"]
    far = subprocess.Popen(
        [*words, "--on", "ray"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun(tmp_path / "far", 20)
    far.send_signal(signal.SIGINT)
    _, err = far.communicate(timeout=300)
    assert far.returncode == 130, err
    assert "Traceback" not in err
    assert "those begun are saved" in err
    runs = [RunFolder(file.parent) for file in (tmp_path / "far").rglob("run.json")]
    assert {run.info()["status"] for run in runs} == {"interrupted"}
    assert all(run.checkpoint_files() for run in runs)


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "far.toml").write_text(SHORT)
    words = [*FEDNAG, "sweep", "far.toml", *GRID, "--on", "ray=127.0.0.1:1"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1, found.stderr
    assert "the Ray cluster at 127.0.0.1:1 failed, and 4 of 4 runs are not over" in found.stderr
