"""Measures fednag against what users would run instead, and against what the machine can do.

    make bench                        everything, about 20 minutes the first time
    python benchmarks/run.py --smoke  that it works, in a minute; its numbers mean nothing

Every row is measured in one go: contenders take turns, and the best of their turns counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contender, Contest, facts_of
from peers import FLOWER, JAX, PFL, Peer, python_of
from table import markdown

HERE = Path(__file__).parent
ROOT = HERE.parent
FEDNAG = Path(sys.executable).with_name("fednag")
BATCH = 64
CHOICES = 8  # times that auto is asked, each time in a new process
PARTS = ("contests", "large", "texts", "tiny", "scans", "busy", "many", "clients", "commands")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny, without peers: does it work?")
    parser.add_argument(
        "--only", help="these parts alone, the others stay as they were: " + ",".join(PARTS)
    )
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    # Ended from outside, contenders must end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), smoke=options.smoke)
        try:
            bench.everything(options.only.split(",") if options.only else PARTS)
        finally:
            bench.save(options.out, keep=options.only is not None)
    print()
    print(options.out.with_suffix(".md").read_text())


class Bench:
    """Measures, and keeps what it found."""

    def __init__(self, folder: Path, *, smoke: bool) -> None:
        self.folder, self.smoke = folder, smoke
        self.turns = 1 if smoke else 3
        self.found: dict[str, Any] = {
            "machine": machine(),
            "data": images(folder, smoke),
            "smoke": smoke,
            "peers": {},
            "contests": [],
        }
        self.pythons = {peer.name: self._python(peer) for peer in (FLOWER, PFL, JAX)}

    def everything(self, parts: Sequence[str]) -> None:
        rounds = {"logistic": 20, "many": 4, "cnn": 2}
        if self.smoke:
            rounds = dict.fromkeys(rounds, 1)
        for part in parts:
            if part == "contests":
                self.contest("logistic", 4, rounds["logistic"])
                self.contest("logistic", 100, rounds["many"])
                self.contest("cnn", 4, rounds["cnn"])
            elif part == "large":
                # Their checks alone take a minute.
                large = [("vgg16", 16), ("vgg16", 64), ("vgg16-gn", 64), ("resnet20", 64)]
                for model, batch in [] if self.smoke else large:
                    self.large(model, 4, batch)
            elif part == "texts":
                for model in ("lstm", "transformer"):
                    self.texts(model, 2 if self.smoke else 10, 32)
            elif part == "tiny":
                self.tiny()
            elif part == "scans":
                self.scan("logistic", 4, [(1, 2), (2, 2), (2, 1), (4, 1)], rounds["logistic"])
                chunks = [(4, 2), (7, 2), (13, 2), (25, 2), (50, 2), (13, 1)]
                self.scan("logistic", 100, chunks, rounds["many"])
                self.scan("cnn", 4, [(1, 2), (2, 2), (1, 1)], rounds["cnn"])
            elif part == "busy":
                self.busy("logistic", 100, rounds["many"])
                self.busy("cnn", 4, rounds["cnn"])
            elif part == "many":
                self.many()
            elif part == "clients":
                self.clients()
            elif part == "commands":
                self.commands()
            else:
                raise SystemExit(f"--only {part}: no such part; there are {', '.join(PARTS)}")

    def contest(self, model: str, workers: int, rounds: int) -> None:
        """fednag, the plain loop, the peers and the floor, in turns."""
        contenders = [
            self._contender("fednag", "ours.py", model, workers),
            self._contender("plain loop, 1 thread", "plain_loop.py", model, workers, threads=1),
            self._contender("plain loop, 2 threads", "plain_loop.py", model, workers, threads=2),
        ]
        floor = ("floor", "floor.py") if model == "logistic" else ("GEMM peak", "peak.py")
        contenders.append(self._contender(*floor, model, workers))
        flower, pfl = self.pythons["flower"], self.pythons["pfl-research"]
        if flower:
            contenders.append(
                self._contender(
                    "Flower simulation", "flower.py", model, workers, python=flower, pausable=False
                )
            )
        for processes in (1, 2) if pfl else ():
            label = f"pfl-research, {processes} process{'es' if processes > 1 else ''}"
            work = {"threads": processes, "python": pfl}
            contenders.append(self._contender(label, "pfl_research.py", model, workers, **work))
        if self.pythons["jax"] and model == "logistic":
            jax = {"python": self.pythons["jax"], "pausable": True}
            contenders.append(self._contender("JAX", "jax_loop.py", model, workers, **jax))
        title = f"{model}, N = {workers}, tau 20"
        say(f"contest: {title}")
        self._play(title, contenders, rounds, "contest", self.turns)

    def large(self, model: str, workers: int, batch: int) -> None:
        """fednag and the plain loop with a large model, on images of CIFAR-10's shape."""
        folder = self.folder / "colour"
        if not folder.exists():
            folder.mkdir()
            rng = np.random.default_rng(0)
            count = 4000
            np.save(folder / "x.npy", rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))
            np.save(folder / "y.npy", rng.integers(0, 10, count).astype(np.uint8))
        given: dict[str, Any] = {"batch": batch, "tau": 5, "data": folder}
        contenders = [
            self._contender("fednag", "ours.py", model, workers, **given),
            self._contender(
                "plain loop, 1 thread", "plain_loop.py", model, workers, threads=1, **given
            ),
            self._contender(
                "plain loop, 2 threads", "plain_loop.py", model, workers, threads=2, **given
            ),
        ]
        title = f"{model}, N = {workers}, batch {batch}, tau 5, random images of CIFAR-10's shape"
        say(f"contest: {title}")
        self._play(title, contenders, 1, "large", self.turns)

    def texts(self, model: str, workers: int, batch: int) -> None:
        """fednag, the plain loop and the same with torch.compile, on pieces of random text."""
        folder = self.folder / "text"
        if not folder.exists():
            folder.mkdir()
            rng = np.random.default_rng(0)
            np.save(folder / "x.npy", rng.integers(0, 80, (4000, 32)))
            np.save(folder / "y.npy", rng.integers(0, 80, 4000).astype(np.uint8))
        given: dict[str, Any] = {"batch": batch, "tau": 5, "data": folder}
        contenders = [self._contender("fednag", "ours.py", model, workers, **given)]
        for compiled in (False,) if self.smoke else (False, True):
            for threads in (1, 2):
                label = (
                    f"plain loop{', compiled' * compiled}, {threads} thread{'s' * (threads > 1)}"
                )
                more = {"threads": threads, "compiled": compiled}
                contenders.append(
                    self._contender(label, "plain_loop.py", model, workers, **given, **more)
                )
        title = f"{model}, N = {workers}, batch {batch}, tau 5, random text"
        say(f"contest: {title}")
        self._play(title, contenders, 2, "texts", self.turns)

    def tiny(self) -> None:
        """Six short runs, nothing known of the machine, and the seconds that timing takes."""
        say("six tiny runs")
        found = json.loads(output([sys.executable, HERE / "tiny.py"]))
        self.found["tiny"] = found

    def scan(self, model: str, workers: int, settings: list[tuple[int, int]], rounds: int) -> None:
        """What fednag chooses when asked again and again, among settings given by hand."""
        title = f"{model}, N = {workers}, tau 20"
        say(f"scan: {title}")
        chosen: list[tuple[int, int]] = []
        for _ in range(2 if self.smoke else CHOICES):
            with Contest([self._contender("auto", "ours.py", model, workers)]) as contest:
                facts = contest.contenders[0].facts
            chosen.append((facts["chosen"]["chunk"], facts["chosen"]["threads"]))
        scanned = sorted({*(settings[:2] if self.smoke else settings), *chosen})
        contenders = [
            self._contender(
                f"chunk {chunk}, threads {threads}",
                "ours.py",
                model,
                workers,
                chunk=chunk,
                threads=threads,
            )
            for chunk, threads in scanned
        ]
        # Settings differ less than contenders do.
        self._play(title, contenders, rounds, "scan", turns=2 * self.turns)
        picks = {f"chunk {c}, threads {t}": chosen.count((c, t)) for c, t in scanned}
        self.found["contests"][-1]["picks"] = picks

    def busy(self, model: str, workers: int, rounds: int) -> None:
        """fednag with and without another process that keeps one core busy."""
        times: dict[str, list[float]] = {"idle": [], "busy": []}
        say(f"one core busy: {model}, N = {workers}")
        with Contest([self._contender("fednag", "ours.py", model, workers)]) as contest:
            for _ in range(self.turns):
                times["idle"].append(contest.contenders[0].play(rounds))
                with spinning():
                    times["busy"].append(contest.contenders[0].play(rounds))
        title = f"{model}, N = {workers}, tau 20"
        self.found.setdefault("busy", []).append({"workload": title, **times})

    def many(self) -> None:
        """Time and memory as workers become more."""
        counts = (10, 20) if self.smoke else (100, 1000, 10_000)
        results: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
        for _ in range(self.turns):
            for count in counts:
                say(f"{count} workers")
                rounds = max(2, 20_000 // count) if not self.smoke else 2
                command = [sys.executable, HERE / "many.py", self.folder, count, rounds]
                results[count].append(json.loads(output(command)))
        self.found["many"] = results

    def clients(self) -> None:
        rounds = 5 if self.smoke else 100
        times, last = [], {}
        for _ in range(self.turns):
            say("1000 clients")
            began = time.perf_counter()
            last = json.loads(output([sys.executable, HERE / "clients.py", self.folder, rounds]))
            times.append(time.perf_counter() - began)
        self.found["clients"] = {"rounds": rounds, "seconds": times, **last}

    def commands(self) -> None:
        """What someone at a terminal waits for."""
        say("fednag --help, first record")
        helps, firsts = [], []
        for _ in range(self.turns):
            began = time.perf_counter()
            output([FEDNAG, "--help"])
            helps.append(time.perf_counter() - began)
            firsts.append(first_record(self.folder / f"run{len(firsts)}"))
        self.found["commands"] = {"help": helps, "first_record": firsts}

    def save(self, path: Path, *, keep: bool) -> None:
        """Write the findings; with ``keep``, beside those of parts that were not measured now."""
        found = self.found
        if keep and path.exists():
            before = json.loads(path.read_text())
            kinds = {contest["kind"] for contest in found["contests"]}
            kept = [c for c in before["contests"] if c["kind"] not in kinds]
            found = {**before, **found, "contests": kept + found["contests"]}
        path.write_text(json.dumps(found, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(found))

    def _play(
        self, title: str, contenders: list[Contender], rounds: int, kind: str, turns: int
    ) -> None:
        with Contest(contenders) as contest:
            contest.play(turns, rounds)
        results = [facts_of(contender) for contender in contenders]
        for contender in contenders:
            best = f"{contender.best * 1000:9.1f} ms" if contender.times else "         -   "
            say(f"  {contender.label:28}{best}  {contender.failure or ''}")
        self.found["contests"].append({"workload": title, "kind": kind, "results": results})

    def _contender(
        self,
        label: str,
        script: str,
        model: str,
        workers: int,
        *,
        python: Path = Path(sys.executable),
        threads: int = 0,
        chunk: int = 0,
        batch: int = BATCH,
        tau: int = 20,
        data: Path | None = None,
        compiled: bool = False,
        pausable: bool = True,  # Ray takes a process that stands still for dead
    ) -> Contender:
        tau = 2 if self.smoke else tau
        work = {"model": model, "workers": workers, "tau": tau, "batch": batch}
        work |= {"data": str(data or self.folder), "threads": threads, "chunk": chunk}
        work |= {"compiled": compiled}
        return Contender(label, script, work, python, pausable)

    def _python(self, peer: Peer) -> Path | None:
        if self.smoke:
            self.found["peers"][peer.name] = "left out of the smoke test"
            return None
        python, note = python_of(peer)
        self.found["peers"][peer.name] = note
        return python


def images(folder: Path, smoke: bool) -> str:
    """Writes the data every contender reads; says what they are."""
    from fednag.data.sets import load
    from fednag.errors import FednagError

    try:
        if smoke:
            raise FednagError("not needed")
        dataset = load("mnist")
        x, y, name = dataset.x.numpy(), dataset.y.numpy(), "MNIST"
    except FednagError:
        rng = np.random.default_rng(0)
        count = 12_800 if smoke else 60_000
        x = rng.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        y, name = rng.integers(0, 10, count), f"random images of MNIST's shape ({count:,})"
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.uint8))
    return name


def machine() -> dict[str, Any]:
    model = platform.processor() or "unknown"
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = described.read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "fednag": version("fednag"),
        "load before": os.getloadavg()[0],
    }


def first_record(folder: Path) -> float:
    """Seconds from the command to the first line in its records."""
    command = [FEDNAG, "run", ROOT / "examples" / "digits.toml", "--out", folder]
    command += ["--set", "training.iterations=40"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None or any(folder.rglob("records.jsonl")):
            if any(file.stat().st_size for file in folder.rglob("records.jsonl")):
                return time.perf_counter() - began
            time.sleep(0.01)
        raise SystemExit("fednag run ended without a record")
    finally:
        process.kill()
        process.wait()


@contextmanager
def spinning() -> Iterator[None]:
    """Another process that never rests."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def output(command: list[Any]) -> str:
    found = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise SystemExit(f"{command[1]}: {found.stderr.strip().splitlines()[-1:]}")
    return found.stdout


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
