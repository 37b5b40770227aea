"""Load: runs that are killed at random and go on, and one process that goes on for thousands of
rounds with thousands of workers.

    python benchmarks/soak.py --seconds 1200

Half of the time goes to each. Prints what it found, and ends with an error if a record was lost or
changed, a run did not come to its end, memory or open files kept growing, or anything but a clear
end was seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FEDNAG = [sys.executable, "-m", "fednag"]
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS = {0, 130, 143, -signal.SIGKILL, -signal.SIGTERM}
METHODS = (
    "fednag",
    "fednag-local",
    "fedavg",
    "fedmom",
    "slowmo",
    "scaffold",
    "mimelite",
    "fedadam",
)
WARM = 0.2  # the part of the long run after which memory must not grow
ALLOWED_GROWTH = 8 << 20  # bytes: noise of the allocator
VARYING = ("seconds", "digest")  # of a record, from one run of an experiment to the next
PATIENCE = 300  # seconds for a command that nothing happens to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--long-run", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.long_run:
        long_run(options.long_run)
        return
    print(f"seed {options.seed}", flush=True)
    soak = Soak(random.Random(options.seed))
    soak.kills(options.seconds / 2)
    soak.load(options.seconds / 2)
    for name, value in soak.found.items():
        print(f"{name:36}{value:>14,}" if isinstance(value, int) else f"{name:36}{value:>14}")
    if soak.faults:
        raise SystemExit("\n".join(soak.faults))


@dataclass
class Soak:
    draw: random.Random
    found: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def kills(self, seconds: float) -> None:
        """Experiments drawn at random, each run whole and in pieces; both must be the same."""
        count: Counter[str] = Counter()
        until = time.monotonic() + seconds
        with tempfile.TemporaryDirectory() as place:
            while time.monotonic() < until or not count["runs killed and finished"]:
                folder = Path(place, str(count["runs killed and finished"]))
                folder.mkdir()
                (folder / "run.toml").write_text(self._experiment())
                self._command(folder, "run", "run.toml", "--out", "whole", "--quiet")
                count["kills survived"] += self._in_pieces(folder, until)
                whole, pieces = (contents(folder / name) for name in ("whole", "pieces"))
                count["runs killed and finished"] += 1
                count["rounds compared"] += len(whole[0])
                count["records lost or changed"] += sum(
                    a != b for a, b in zip(whole[0], pieces[0], strict=False)
                ) + abs(len(whole[0]) - len(pieces[0]))
                count["models changed"] += whole[1] != pieces[1]
                count["files left over"] += len(list(folder.rglob("*.tmp")))
                text = (folder / "run.toml").read_text()
                if whole != pieces:
                    self.faults.append(f"not the same when killed: {text!r}")
                print(f"{dict(count)}", flush=True)
                shutil.rmtree(folder)
        self.found |= count
        if count["files left over"]:
            self.faults.append(f"{count['files left over']} temporary files were left over")

    def load(self, seconds: float) -> None:
        """One process for a long time."""
        command = [sys.executable, __file__, "--long-run", str(seconds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            self.faults.append("the long run failed")
            return
        found = json.loads(done.stdout)
        self.found |= found
        if found["memory growth past warm-up, bytes"] > ALLOWED_GROWTH:
            self.faults.append("memory grew")
        if found["open files at the end"] > found["open files after warm-up"]:
            self.faults.append("open files became more")

    def _in_pieces(self, folder: Path, until: float) -> int:
        """Run and kill, again and again, until it comes to its end; late ones are left alone.

        One that is never saved in time would otherwise begin again for ever.
        """
        kills = 0
        words = ["run", "run.toml", "--out", "pieces", "--quiet", "--resume"]
        while True:
            process = subprocess.Popen(
                [*FEDNAG, *words],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            try:
                # Most of the time at some moment of training; at times before it, or after.
                if self.draw.random() < 0.8:
                    wait_for_news(process, folder / "pieces")
                late = time.monotonic() > until
                process.wait(PATIENCE if late else self.draw.expovariate(1.0))
            except subprocess.TimeoutExpired:
                process.send_signal(self.draw.choice(SIGNALS))
                kills += 1
            _, said = process.communicate(timeout=PATIENCE)
            if process.returncode not in ENDS or b"Traceback" in said:
                # While Python itself starts or ends, Ctrl-C meets nobody who could answer it.
                if b"KeyboardInterrupt" not in said:
                    self.faults.append(f"exit {process.returncode}: {said.decode()[-400:]}")
                if process.returncode == 2:
                    return kills
            self._look(folder / "pieces")
            if process.returncode == 0:
                return kills

    def _look(self, out: Path) -> None:
        """Whatever a kill leaves, the run is shown."""
        from fednag import FednagError
        from fednag.runs.folder import RunFolder
        from fednag.runs.ledger import file_of, verify
        from fednag.runs.view import RunView

        for info in out.rglob("run.json"):
            folder = RunFolder(info.parent)
            try:
                if folder.records_file.exists():
                    RunView.read(folder)
                if file_of(folder).exists() and (fault := verify(folder).fault):
                    raise fault.error()
            except FednagError as error:
                self.faults.append(f"after a kill: {error}")

    def _experiment(self) -> str:
        workers = self.draw.choice([3, 10, 50, 400])
        take_part = self.draw.randint(1, workers)
        every, seconds = self.draw.choice([1, 2, 7, 1000]), self.draw.choice([0, 0.3])
        return f"""
name = "soak"
seed = {self.draw.randrange(1000)}
model.name = "{self.draw.choice(["logistic", "mlp", "cnn"])}"
algorithm.name = "{self.draw.choice(METHODS)}"
split.workers = {workers}
training.tau = {self.draw.randint(1, 5)}
training.iterations = {self.draw.randint(200, 600)}
training.batch = {self.draw.choice([1, 8, 32])}
training.participants = {min(take_part, 20)}
evaluation = {{ every = {self.draw.choice([1, 1, 3])}, samples = 300 }}
engine = {{ chunk = {self.draw.choice([1, 3, 20])}, threads = {self.draw.choice([1, 2])} }}
ledger.kind = "{self.draw.choice(["none", "chain"])}"
checkpoint = {{ rounds = {every}, seconds = {seconds} }}
"""

    def _command(self, folder: Path, *words: str) -> None:
        done = subprocess.run(
            [*FEDNAG, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            self.faults.append(done.stderr)


def wait_for_news(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until a record is written that was not there before."""
    before = sum(file.stat().st_size for file in out.rglob("records.jsonl"))
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        if sum(file.stat().st_size for file in out.rglob("records.jsonl")) > before:
            return
        time.sleep(0.01)


def contents(out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Records without the clock, and digests of the models."""
    (file,) = out.rglob("records.jsonl")
    records = [json.loads(line) | dict.fromkeys(VARYING) for line in file.read_text().splitlines()]
    models = [file.with_name(name) for name in ("best.safetensors", "final.safetensors")]
    return records, [hashlib.sha256(model.read_bytes()).hexdigest() for model in models]


def long_run(seconds: float) -> None:
    """Thousands of workers, saved every few rounds, in this process; prints what it took."""
    import fednag
    from fednag.runs import execute

    began = time.monotonic()
    memory, files = array("q"), array("q")  # a round each; lists would grow more than what they see
    simulate = execute.simulate

    def watched(*given: Any) -> Any:
        for state in simulate(*given):
            memory.append(resident())
            files.append(len(os.listdir("/proc/self/fd")))
            yield state

    execute.simulate = watched
    with tempfile.TemporaryDirectory() as out:
        run = fednag.run(
            "scaffold",
            data={"name": "synthetic", "workers": 3000},
            split={"kind": "natural"},
            model="logistic",
            tau=5,
            iterations=10**9,
            batch=10,
            training={"participants": 100},
            evaluation={"every": 20, "samples": 1000},
            checkpoint={"rounds": 50},
            stop={"seconds": seconds},
            out=out,
        )
    warm = int(WARM * len(memory))
    third = max(1, (len(memory) - warm) // 3)
    early, late = slice(warm, warm + third), slice(-third, None)
    last = run.records[-1]
    print(
        json.dumps(
            {
                "workers": 3000,
                "rounds in one process": last.round,
                "worker iterations": last.iteration * 100,
                "checkpoints written": last.round // 50,
                "memory at the end, bytes": memory[-1],
                "memory growth past warm-up, bytes": max(memory[late]) - max(memory[early]),
                "open files after warm-up": max(files[early]),
                "open files at the end": max(files[late]),
                "seconds": round(time.monotonic() - began),
            }
        )
    )


def resident() -> int:
    """Bytes of memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
