"""``fednag time`` as a person meets it: replays, recordings, plans."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fednag
from fednag import cli
from fednag.cli.time import parts_table, reductions_table, times_table
from fednag.clock import (
    Part,
    Row,
    common_target,
    distinguished,
    load_fleet,
    read_run,
    replay,
    replay_runs,
    times_to_target,
)
from fednag.core.ending import Ending
from fednag.devices.transfers import Listener, Peer
from fednag.planning import Advice, plan
from fednag.runs.folder import RunFolder, find_runs
from fednag.runs.targets import Target
from refusals import refused

EXAMPLES = Path(__file__).parents[1] / "examples"

LOGISTIC: dict[str, Any] = {
    "name": "plan",
    "model": {"name": "logistic"},
    "training": {"iterations": 300, "batch": 32},
    "algorithm": {"lr": 0.1},
    "engine": {"chunk": 1, "threads": 1},
}


class Desk:
    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def fednag(self, *words: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["fednag", *words])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    def works(self, *words: str) -> str:
        code, out, err = self.fednag(*words)
        assert code == 0, err
        return out

    def refused(self, *words: str) -> str:
        code, _, err = self.fednag(*words)
        assert code == 2
        assert err.startswith("fednag: ")
        assert err.count("\n") == 1, err
        return err


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedNAG, FedAvg, Mime and cSGD on the digits, two seeds of the first."""
    out = tmp_path_factory.mktemp("runs")
    known: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 40, "name": "d"}
    known["engine"] = {"chunk": 1, "threads": 1}
    methods = [{"name": n, "lr": 0.05} for n in ("fednag", "fedavg", "mime", "csgd")]
    fednag.compare(methods, out=out, seeds=[0, 1], **known)
    return out / "d"


# Replays


def test_a_replay_of_runs(desk: Desk, runs: Path) -> None:
    out = desk.works("time", str(runs), "--fleet", "paper-edge", "--target", "0.5", "--out", "o")
    assert "time to accuracy 50% on paper-edge (synthetic), replayed 20 times" in out
    assert "paper-edge is synthetic: chosen from public facts, not measured" in out
    assert "0 i3-M380, 1 nubia-z17s, 2 realme-gt-neo, 3 redmi-k30-ultra" in out
    assert "compute is scaled by operations" in out
    assert "csgd is centralised: all data are on i3-M380, and nothing travels" in out
    assert "mime computes full gradients too, 1 a round" in out
    for part in ("compute", "down", "up", "waiting"):
        assert part in out
    report = json.loads(Path("o/time-paper-edge.json").read_text())
    assert report["fleet"]["synthetic"] is True
    rows = {row["label"]: row for row in report["methods"]}
    assert rows["fednag"]["up"] == 2 * rows["fedavg"]["up"] == 2 * 650 * 4
    assert rows["fednag"]["runs"] == 2
    assert 0 < rows["fednag"]["seconds"] < rows["fedavg"]["seconds"]
    assert Path("o/time-paper-edge.png").read_bytes().startswith(b"\x89PNG")


def test_the_overhead_of_short_iterations_is_pointed_out(desk: Desk, runs: Path) -> None:
    words = "the overhead of an iteration is not counted; `fednag time record` measures it"
    quick = desk.works("time", str(runs), "--fleet", "lan", "--replays", "1", "--out", "o")
    assert words in " ".join(quick.split())
    slow = ("--flops", "1e9")  # of a sample: iterations of a second or so
    out = desk.works("time", str(runs), "--fleet", "lan", "--replays", "1", "--out", "o", *slow)
    assert words not in " ".join(out.split())


def row(label: str, seconds: float | None, per_round: float = 8.737e-06) -> Row:
    return Row(label, 1, int(seconds is not None), seconds, None, 5, 1, 0.5, per_round, 2000, 1000)


def drawn(table: Any) -> str:
    terminal = Console(width=160, file=io.StringIO())
    terminal.print(table)
    return terminal.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_tables_of_times_leave_nothing_to_guess() -> None:
    rows = [row("fast", 0.5), row("slow", 1.0), row("lost", None)]
    lan = load_fleet("lan")
    whole, some = (drawn(times_table(n, Target("accuracy", 0.9), lan, 1)) for n in (rows[:2], rows))
    assert "8.737 µs" in whole
    assert "500 ms" in whole
    assert "a worker" in whole
    assert "and round" in whole
    assert "target" not in whole  # a column that would be empty
    assert "never; best 50.00%" in some
    saved = [line.split("│")[1:-1] for line in drawn(reductions_table(rows)).splitlines()]
    cells = [[cell.strip() for cell in line] for line in saved if line]
    assert cells == [
        ["fast", "-", "50.0%", "-"],
        ["slow", "-100.0%", "-", "-"],
        ["lost", "-", "-", "-"],
    ]
    parts = drawn(parts_table([Part("fast", "0 phone", 1.7e-05, 0.002, 0.0, 3.0)]))
    assert "17 µs" in parts
    assert "2 ms" in parts
    assert "0 s" in parts
    assert "3 s" in parts


def test_the_replay_is_that_of_the_records(runs: Path) -> None:
    """Time to the target is the end of the first round as good, as a reader would find it."""
    found, notes = distinguished([read_run(folder) for folder in find_runs([runs])])
    assert notes == []
    fleet = load_fleet("lan")
    timed = replay_runs(found, fleet, replays=3)
    reached = 0
    for row in times_to_target(timed, 0.5):
        times = []
        for run in (run for run in found if run.label == row.label):
            good = [r.round for r in run.records if r.round and (r.accuracy or 0) >= 0.5]
            played = [replay(fleet, run.workload, run.rounds, seed) for seed in range(3)]
            times += [once.ends[good[0]] if good else None for once in played]
        assert len(times) == 6
        if None in times:
            assert row.seconds is None
        else:
            assert row.seconds == pytest.approx(sum(times) / 6)
            reached += 1
    assert reached >= 2


def test_sizes_are_those_of_the_records(runs: Path) -> None:
    for folder in find_runs([runs]):
        run = read_run(folder)
        last = run.records[-1]
        assert last.bytes_up == run.workload.up * last.round * last.participants
        assert last.bytes_down == run.workload.down * last.round * last.participants


def test_a_run_from_before_there_were_clocks(runs: Path, tmp_path: Path) -> None:
    """What its run.json does not say comes from its configuration."""
    for folder in find_runs([runs]):
        before = read_run(folder).workload
        info = {k: v for k, v in folder.info().items() if k != "format"}
        assert info.pop("work")["sizes"] == list(before.sizes)
        old = tmp_path / folder.path.name
        old.mkdir()
        for file in (folder.config_file, folder.records_file):
            (old / file.name).write_text(file.read_text())
        (old / "run.json").write_text(json.dumps(info))
        after = read_run(RunFolder(old)).workload
        assert after.facts() == before.facts()


def test_a_model_of_ones_own_is_counted_when_it_runs(tmp_path: Path) -> None:
    import torch

    x, y = torch.randn(40, 6), torch.arange(40) % 2
    fednag.run(
        "fednag", data=(x, y), model=torch.nn.Linear(6, 2), tau=2, iterations=4, out=tmp_path
    )
    (folder,) = find_runs([tmp_path])
    work = read_run(folder).workload
    assert work.flops == 2 * 6 * 2 * 2  # forward, and the weights' gradient
    assert work.up == 2 * 14 * 4
    folder.write_info(folder.info() | {"work": None})
    with pytest.raises(fednag.FednagError, match="give --flops"):
        read_run(folder)
    assert read_run(folder, flops=5.0).workload.flops == 5.0


def test_runs_that_differ_are_told_apart(desk: Desk) -> None:
    for tau in (2, 4):
        desk.works("run", str(EXAMPLES / "digits.toml"), "--set", f"training.tau={tau}", "-q")
    out = desk.works("time", "runs/digits", "--fleet", "lan", "--replays", "2")
    assert "fednag (tau=2)" in out
    assert "fednag (tau=4)" in out


def test_of_a_run_made_twice_the_newest_is_timed(runs: Path, tmp_path: Path) -> None:
    """As in reports: the same seed twice is no second seed."""
    (first, *_) = find_runs([runs])
    run = read_run(first)
    older = replace(run, info={**run.info, "started": "2020-01-01"})
    found, notes = distinguished([run, older])
    assert [one.started for one in found] == [run.started]
    assert notes == [f"{run.label} with seed {run.seed} was run more than once: the newest counts"]


def test_without_a_target_there_is_one_that_all_can_be_compared_by(runs: Path) -> None:
    found = [read_run(folder) for folder in find_runs([runs])]
    lowest = min(max(r.accuracy or 0.0 for r in run.records if r.round) for run in found)
    target = common_target(found)
    assert (target.measure, target.value) == ("accuracy", int(lowest * 100 + 1e-9) / 100)
    stopping = [replace(run, config={**run.config, "stop": {"accuracy": 0.3}}) for run in found]
    assert common_target(stopping) == Target("accuracy", 0.3)
    blind = [
        replace(run, records=[replace(r, accuracy=None) for r in run.records]) for run in found
    ]
    assert common_target(blind).measure == "loss"
    diverged = [replace(run, ending=Ending("diverged")) for run in found]
    with refused("--target"):
        common_target(diverged)


def test_what_cannot_be_replayed_is_said(desk: Desk, runs: Path) -> None:
    given = str(runs)
    assert "no such fleet (did you mean lan?)" in desk.refused("time", given, "--fleet", "lann")
    assert "--fleet" in desk.refused("time", given)
    assert "no such folder" in desk.refused("time", "nowhere", "--fleet", "lan")
    both = ("--target", "0.5", "--loss", "1")
    assert "give one of them, not both" in desk.refused("time", given, "--fleet", "lan", *both)
    words = ("--sampling", "boostrap")
    assert "did you mean bootstrap?" in desk.refused("time", given, "--fleet", "lan", *words)
    assert "above 0" in desk.refused("time", given, "--fleet", "lan", "--target", "-1")
    out = desk.works("time", given, "--fleet", "lan", "--target", "0.999", "--out", "o")
    assert "never; best" in out


def test_a_loss_may_be_the_target(desk: Desk, runs: Path) -> None:
    out = desk.works("time", str(runs), "--fleet", "lan", "--loss", "2.2", "--out", "o")
    assert "time to loss 2.2" in out


def test_a_run_under_a_clock_is_replayed_on_its_own_fleet(desk: Desk) -> None:
    known: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 10, "name": "d"}
    fednag.run("fedavg", clock={"fleet": "lan", "deadline": 5.0}, out="runs", **known)
    assert "once, with the delays it had" in desk.works("time", "runs/d", "--fleet", "lan")
    sentence = desk.refused("time", "runs/d", "--fleet", "vehicles")
    assert "was decided on the fleet lan" in sentence


def test_shipped_fleets_are_listed_shown_and_copied(desk: Desk) -> None:
    assert "paper-edge" in desk.works("time", "fleets")
    assert "SYNTHETIC" in desk.works("time", "fleets", "paper-edge")
    desk.works("time", "fleets", "paper-edge", "--copy", "mine.toml")
    assert "paper-edge" in desk.works("time", "fleets", "mine.toml")
    assert "is there already" in desk.refused("time", "fleets", "paper-edge", "--copy", "mine.toml")
    assert "no shipped fleet" in desk.refused("time", "fleets", "paper", "--copy", "x.toml")


# Recordings


def test_this_machine_is_recorded_and_replayed(desk: Desk, runs: Path) -> None:
    example = str(EXAMPLES / "digits.toml")
    words = ("--iterations", "5", "--transfers", "2", "--out", "fleet")
    out = desk.works("time", "record", example, *words, "--device", "mine")
    assert "within this machine (loopback)" in out
    table = tomllib.loads(Path("fleet/fleet.toml").read_text())
    (device,) = table["device"]
    assert device["reference"]["model"] == "logistic"
    assert device["reference"]["flops"] == 64 * 64 * 10 * 2 * 2
    assert not table["synthetic"]
    text = Path("fleet/samples.csv").read_text()
    assert text.count("mine,iteration,,") == 5
    assert text.count("mine,up,2600,") == text.count("mine,down,5200,") == 2
    assert "mine is there already" in desk.refused("time", "record", *words, "--device", "mine")
    desk.works("time", "record", example, *words, "--device", "other")
    assert [d.name for d in load_fleet("fleet").devices] == ["mine", "other"]
    out = desk.works("time", str(runs), "--fleet", "fleet", "--out", "o")
    assert "synthetic" not in out
    assert "logistic on digits, batch 64" in out


def test_transfers_to_another_process_are_timed() -> None:
    words = ["time", "listen", "--port", "0", "--once"]
    listening = subprocess.Popen(
        [sys.executable, "-c", "from fednag.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert listening.stdout is not None
        line = listening.stdout.readline()
        place = line.split()[2].rstrip(";")
        assert place.startswith("127.0.0.1:")
        with Peer.at(place) as peer:
            assert peer.up(300_000) > 0
            assert peer.down(1) > 0
            assert peer.words == f"to {place}"
        assert listening.wait(timeout=30) == 0
    finally:
        listening.kill()
        listening.communicate()


def test_a_peer_that_is_none_is_said(desk: Desk) -> None:
    with Listener() as listener:
        threading.Thread(target=listener.serve, args=(True,), daemon=True).start()
        place = f"{listener.host}:{listener.port}"
        with Peer.at(place) as peer:  # asks for nonsense, and is sent away
            peer._link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(fednag.FednagError, match="the transfer broke off"):
                peer.up(10**6)
    assert "cannot be reached" in desk.refused("time", "record", "--host", place)
    assert "write HOST:PORT" in desk.refused("time", "record", "--host", "somewhere")
    assert not Path("fleet").exists() or not list(Path("fleet").iterdir())


# Plans


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planned")


def advice(
    out: Path, latency: float, mbit: float, taus: tuple[int, ...] = (1, 4, 16, 64)
) -> Advice:
    """Four alike devices whose iterations take 0.05 s."""
    path = out / f"{latency:g}-{mbit:g}.toml"
    link = f"{{ mbit = {mbit}, latency = {latency} }}"
    flops = 32 * 64 * 10 * 4
    path.write_text(
        f'name = "four"\n[[device]]\nname = "d"\ncount = 4\niteration = 0.05\n'
        f'reference = {{ model = "logistic", batch = 32, flops = {flops}.0 }}\n'
        f"up = {link}\ndown = {link}\n"
    )
    methods, taus = ["fednag", "fedavg"], [1, 4, 16, 64]
    return plan(path, 0.93, experiment=LOGISTIC, taus=taus, methods=methods, out=out)


def test_dearer_communication_asks_for_a_larger_tau(planned: Path) -> None:
    """Real runs: as a transfer gets ten times dearer, again and again, the best tau rises."""
    found = []
    for latency in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0):
        best = advice(planned, latency, 1000.0).best
        assert best is not None
        found.append(best.tau)
    assert found == sorted(found)
    assert found[0] < found[-1]
    slower = []
    for mbit in (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001):
        best = advice(planned, 0.0, mbit).best
        assert best is not None
        slower.append(best.tau)
    assert slower == sorted(slower)
    assert slower[0] < slower[-1]


def test_plans_use_runs_again(planned: Path) -> None:
    advice(planned, 1.0, 1000.0)
    before = {path: path.stat().st_mtime_ns for path in planned.rglob("records.jsonl")}
    again = advice(planned, 2.0, 1000.0)
    assert before == {path: path.stat().st_mtime_ns for path in planned.rglob("records.jsonl")}
    assert len(before) == len(again.points) == 8


def test_a_plan_on_the_command_line(desk: Desk) -> None:
    Path("e.toml").write_text(
        'name = "p"\n[model]\nname = "logistic"\n[training]\nbatch = 32\n[algorithm]\nlr = 0.1\n'
    )
    words = ("--fleet", "silos-wan", "--target", "0.9", "--taus", "2,8", "--gammas", "0.5,0.9")
    methods = ("--algorithms", "fednag,fedavg", "--iterations", "60", "-q")
    out = desk.works("time", "plan", "e.toml", *words, *methods)
    assert "expected time to accuracy 90% on silos-wan (synthetic)" in out
    assert "take fednag gamma=0.9 with tau 8" in out
    assert "silos-wan is synthetic" in out
    assert "fedavg does not reach it at any tau in 60 iterations" in out
    assert Path("runs/p-plan/plan-silos-wan.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads(Path("runs/p-plan/plan-silos-wan.json").read_text())
    assert len(report["points"]) == 6
    assert not Path("runs/p").exists()  # that is for full runs of the experiment
    assert len(find_runs([Path("runs/p-plan")])) == 6
    nothing = desk.works(
        "time", "plan", "e.toml", *words[:2], "--target", "1", *words[4:], *methods
    )
    assert "nothing reached accuracy 100%: raise T, or lower the target" in nothing


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--target", "0.9"), "--fleet"),
        (("--fleet", "lan"), "--target"),
        (("--fleet", "lan", "--target", "2"), "an accuracy is above 0 and at most 1"),
        (("--fleet", "lan", "--target", "0.9", "--tau", "0"), "--taus 0: write different whole"),
        (("--fleet", "lan", "--target", "0.9", "--gamma", "x"), "--gammas x: write different"),
        (("--fleet", "lan", "--target", "0.9", "--algorithms", "fednug"), "did you mean fednag?"),
        (("nofile.toml", "--fleet", "lan", "--target", "0.9"), "nofile.toml: cannot be read"),
    ],
)
def test_bad_plans_are_named(desk: Desk, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in desk.refused("time", "plan", *words)
    assert not Path("runs").exists()
