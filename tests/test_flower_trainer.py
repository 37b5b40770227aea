"""The trainer of a silo: a real process, spoken to as the processes that Flower starts do."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fednag import FednagError
from fednag.flower import client, executor, resident
from fednag.flower.agreed import patient
from fednag.flower.frames import Frame
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.protocol import HELLO, PROTOCOL, message, versions
from fednag.flower.resident import GRACE, NoAnswerError, Trainer
from fednag.flower.settings import read_run_config
from fednag.flower.trainer import IDLE
from flower_kit import config_of, gap, play, simulated

pytestmark = pytest.mark.skipif(not resident.HERE, reason="there are no Unix sockets")


def asked_of(config: dict[str, Any], seconds: float = 600.0) -> tuple[Message, Context]:
    """A silo's greeting, and where it is told."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    about = {"protocol": PROTOCOL, "digest": read_run_config(config).digest, **versions()}
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), config)
    return message(HELLO, 1, about, seconds=seconds + GRACE), context


def silo_of(answer: Message) -> object:
    return answer.content.config_records["about"]["silo"]


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for process in resident.STARTED:
        process.kill()
        process.wait()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return config_of(tmp_path, data__name="digits", rounds=2)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """One whose SuperNode is this process."""
    return Trainer(tmp_path_factory.mktemp("t") / "a.sock", os.getpid())


def pid_of(trainer: Trainer) -> int:
    return int(trainer.path.with_suffix(".pid").read_text())


def until(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def is_there(process: int) -> bool:
    """Whether it runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_frame_arrives_as_it_was_sent() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=size).astype(np.float32) for size in (0, 1, 70_001)]
    content = RecordDict(
        {
            "a": ArrayRecord(vectors),
            "b": ArrayRecord([]),
            "c": ConfigRecord({"x": 1, "y": b"\0\1", "z": [1.5, 2.0], "t": "ü"}),
            "m": MetricRecord({"loss": 0.25}),
        }
    )
    state = RecordDict({"s": ArrayRecord([np.arange(5)])})
    given = Message(content, 7, "train", ttl=5.0)
    frames = [Frame({"run": 2**63}, given, state), Frame({"failed": "why"}), Frame({}, given)]
    left, right = socket.socketpair()
    with left, right, right.makefile("rb") as lines:
        writing = threading.Thread(target=lambda: [frame.write(left) for frame in frames])
        writing.start()
        found = [Frame.read(lines) for _ in frames]
        writing.join()
        left.close()
        with pytest.raises(EOFError):
            Frame.read(lines)
    assert [frame.facts for frame in found] == [frame.facts for frame in frames]
    for one in (found[0].message, found[2].message):
        assert one is not None
        assert one.content == content
        assert one.metadata.ttl == 5.0
    assert (found[0].records, found[1].records, found[2].records) == (state, None, None)


def test_what_flower_starts_for_a_message_loads_no_torch() -> None:
    code = "import fednag.flower.client, fednag.flower.executor, sys; print('torch' in sys.modules)"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fednag.flower.client" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "scipy", "pydantic")}


def test_a_run_by_way_of_a_trainer_is_the_simulators(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a method whose silos remember: state comes back, and one that is killed loses none."""
    monkeypatch.setattr(Trainer, "of_parent", classmethod(lambda cls: trainer))
    config = config_of(tmp_path / "own", algorithm__name="scaffold")
    config |= {"flower.deadline": 120.0, "flower.join": 120.0}
    grid = InProcessGrid(client.app, config, [{"partition-id": k} for k in range(3)])
    killed: list[int] = []

    def fault(asked: Message, answered: Message) -> Message:
        if asked.metadata.message_type == "train" and len(killed) < 1:
            killed.append(pid_of(trainer))
            os.kill(killed[-1], signal.SIGKILL)
        return answered

    grid.faults[1001] = fault
    run = play(config, grid)
    assert gap(run, simulated(read_run_config(config), tmp_path / "s")) == 0
    assert killed
    assert pid_of(trainer) not in killed
    assert "torch" not in repr(client.app)


def test_one_that_dies_over_a_message_is_started_anew(
    trainer: Trainer, config: dict[str, Any]
) -> None:
    trainer.ask(*asked_of(config))
    first = pid_of(trainer)
    os.kill(first, signal.SIGSTOP)
    answers: list[Message] = []
    asking = threading.Thread(target=lambda: answers.append(trainer.ask(*asked_of(config))[0]))
    asking.start()
    time.sleep(0.3)  # the message is on its way
    os.kill(first, signal.SIGKILL)
    asking.join(120)
    assert [silo_of(answer) for answer in answers] == [0]
    assert pid_of(trainer) != first


def test_one_that_hangs_is_ended_when_nobody_waits_any_more(
    trainer: Trainer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "LEAST", 0.1)
    trainer.ask(*asked_of(config))
    first = pid_of(trainer)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(NoAnswerError, match="did not answer in time, and was ended"):
        trainer.ask(*asked_of(config, seconds=0.5))
    until(lambda: not is_there(first))
    assert silo_of(trainer.ask(*asked_of(config))[0]) == 0


def test_one_serves_one_app(
    trainer: Trainer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer.ask(*asked_of(config))
    first = pid_of(trainer)
    trainer.ask(*asked_of(config))
    assert pid_of(trainer) == first
    monkeypatch.setattr(resident, "app_folder", lambda: tmp_path / "other")
    assert silo_of(trainer.ask(*asked_of(config))[0]) == 0
    assert pid_of(trainer) != first


def test_it_refuses_runs_that_were_not_agreed_to_and_is_private(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it ends with its owner, and leaves nothing."""
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv(resident.RUNS, str(runs))
    monkeypatch.setenv(resident.FOLDER, str(tmp_path / "private"))
    folder = resident.private_folder()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        trainer = Trainer(folder / "a.sock", owner.pid)
        with pytest.raises(NoAnswerError, match="not one that this silo's operator agreed to"):
            trainer.ask(*asked_of(config))
        (runs / "1").touch()
        assert silo_of(trainer.ask(*asked_of(config))[0]) == 0
        assert stat.S_IMODE(trainer.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert is_there(pid_of(trainer))
        ended = pid_of(trainer)
        owner.communicate(b"\n")
    until(lambda: not is_there(ended))
    assert not list(folder.iterdir())


def test_it_ends_when_nobody_asks(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IDLE, "0.2")
    trainer = Trainer(tmp_path / "a.sock", os.getpid())
    trainer.ask(*asked_of(config))
    ended = pid_of(trainer)
    until(lambda: not is_there(ended))


def test_a_folder_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(resident.FOLDER, str(tmp_path / "open"))
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(FednagError, match="is not a folder of this user's alone"):
        resident.private_folder()
    (tmp_path / "mine").mkdir(mode=0o700)
    monkeypatch.setenv(resident.FOLDER, str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(FednagError, match="is not a folder of this user's alone"):
        resident.private_folder()
    monkeypatch.setenv(resident.FOLDER, str(tmp_path / ("x" * 100)))
    with pytest.raises(FednagError, match="too long a name"):
        Trainer.of_parent()


def test_looks_are_spread_over_the_time_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of it, at least 0.1 s; after half a minute Flower's own pauses do."""
    clock = [0.0]
    looks: list[float] = []
    monkeypatch.setattr("fednag.flower.agreed.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "fednag.flower.agreed.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s)
    )

    def receive() -> Any:
        looks.append(clock[0])
        return "message" if 5.0 < clock[0] < 6.0 else None

    received = patient(receive)
    assert received() == "message"
    assert looks[1] == pytest.approx(0.1)
    assert clock[0] < 5.0 * 1.1 + 0.1
    clock[0] = 6.0
    assert received() is None
    assert 30 < clock[0] - 5.0 < 36
    pauses = np.diff(looks)
    assert pauses.min() >= 0.099
    assert pauses.max() < 3.1


def test_forks_are_separate_and_do_not_draw_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three lines, three processes, and the one that forks goes on when one of them fails."""

    def run(spec: dict[str, Any]) -> None:
        (tmp_path / f"{spec['n']}").write_text(f"{os.getpid()} {np.random.random()}")
        os._exit(spec["n"])

    monkeypatch.setattr(executor, "run", run)
    orders, forks = os.pipe()
    if (child := os.fork()) == 0:
        os.close(forks)
        executor.fork_for_each(os.fdopen(orders, "rb"))
        os._exit(0)
    os.close(orders)
    with os.fdopen(forks, "wb") as lines:
        lines.write(b'{"n": 0}\n{"n": 1}\n{"n": 2}\n')
    _, status = os.waitpid(child, 0)
    assert status == 0
    until(lambda: len([p for p in tmp_path.iterdir() if p.read_text()]) == 3)
    found = [(tmp_path / name).read_text().split() for name in "012"]
    assert len({process for process, _ in found}) == len({drawn for _, drawn in found}) == 3


def test_flower_finds_the_program_that_forks(tmp_path: Path) -> None:
    found = executor.put_before(tmp_path / "bin", "/usr/bin").split(os.pathsep)
    assert found == [str(tmp_path / "bin"), "/usr/bin"]
    program = Path(found[0]) / "flower-superexec"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert "--runtime-api-address" in done.stdout, done.stderr
