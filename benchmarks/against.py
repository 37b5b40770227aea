"""The code as it is against an older revision: the same bits, and how fast each is.

    python benchmarks/against.py REVISION [bits|speed|rows] [--turns 5]

Version 0.1.0 is 0a2429c. Its fednag-local differs: it was trained wrongly then.

The older revision is checked out into a folder of its own, and every run is made by a process of
its own, in turns. Digests say whether every method ends with the same weights to the bit: on the
embedded digits, and on MNIST where ``FEDNAG_DATA`` names a folder that has it; for workers computed
alone and stacked by four. Speeds are ratios of the best of several turns: ``speed`` times short
runs from beginning to end, ``rows`` the rounds that ``make bench`` times, both revisions in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from contest import Contender, Contest
from run import images

ROOT = Path(__file__).resolve().parents[1]

DIGESTS = """
import hashlib, json, sys
import fednag
from fednag.algorithms import ALGORITHMS
data, model, iterations = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = {}
for name in ALGORITHMS:
    for chunk in (1, 4):
        run = fednag.run(name, data=data, model=model, workers=4, tau=4, iterations=iterations,
                         batch=32, seed=3, engine={"chunk": chunk, "threads": 2}, quiet=True,
                         training={"participants": 3}, split={"kind": "dirichlet", "alpha": 0.5})
        digest = hashlib.sha256()
        for parameter in run.final.parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        losses = [record.loss for record in run.records]
        digest.update(repr(losses).encode())
        found[f"{name}, chunk {chunk}"] = digest.hexdigest()
print(json.dumps(found))
"""

SPEED = """
import json, sys, time
import torch, fednag
model, workers, batch, rounds, chunk = sys.argv[1], *map(int, sys.argv[2:])
draw = torch.Generator().manual_seed(0)
x = torch.rand(workers * 200, 1, 28, 28, generator=draw)
y = torch.randint(10, (len(x),), generator=draw)
fednag.run("fednag", data=(x, y), model=model, workers=workers, tau=20, iterations=20 * rounds,
           batch=batch, engine={"chunk": chunk, "threads": 2}, quiet=True,
           evaluation={"every": rounds, "samples": 500})
began = time.perf_counter()
run = fednag.run("fednag", data=(x, y), model=model, workers=workers, tau=20,
                 iterations=20 * rounds, batch=batch, engine={"chunk": chunk, "threads": 2},
                 quiet=True, evaluation={"every": rounds, "samples": 500})
print(json.dumps((run.records[-1].seconds - run.records[0].seconds) / rounds))
"""

# model, workers, batch, rounds, chunk
ROWS = (
    ("logistic", 4, 64, 100, 4),
    ("logistic", 100, 64, 30, 25),
    ("mlp", 10, 32, 50, 5),
    ("cnn", 4, 64, 4, 2),
)

# of make bench: model, workers, rounds a turn, chunk
BENCH = (("logistic", 4, 20, 2), ("logistic", 100, 4, 13), ("cnn", 4, 2, 1))


def call(source: Path, script: str, *words: object) -> object:
    """What a script prints, run with the package in ``source``."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        env=environment,
        cwd=source,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{source}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare_digests(old: Path) -> bool:
    """Print what differs; True if nothing does."""
    jobs = [("digits", "cnn", 12), ("digits", "mlp", 22)]
    if os.environ.get("FEDNAG_DATA"):
        jobs += [("mnist", "logistic", 22), ("mnist", "cnn", 6)]
    same = True
    for job in jobs:
        before, now = call(old, DIGESTS, *job), call(ROOT, DIGESTS, *job)
        assert isinstance(before, dict)
        assert isinstance(now, dict)
        differing = [name for name, digest in before.items() if now.get(name) != digest]
        same = same and not differing
        print(f"{job[0]}, {job[1]}: {len(before) - len(differing)} of {len(before)} the same bits")
        for name in differing:
            print(f"  differs: {name}")
    return same


def compare_speed(old: Path, turns: int) -> None:
    for row in ROWS:
        before, now = [], []
        for _ in range(turns):
            before.append(call(old, SPEED, *row))
            now.append(call(ROOT, SPEED, *row))
        first, second = min(map(float, before)), min(map(float, now))  # type: ignore[arg-type]
        print(
            f"{row[0]}, N {row[1]}: {1e3 * first:.2f} ms a round before, {1e3 * second:.2f} ms now,"
            f" ratio {second / first:.3f}"
        )


def compare_rows(old: Path, turns: int) -> None:
    """The rounds of ``make bench``, each revision with a setting of its own choice and the same."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"data: {images(Path(folder), smoke=False)}")
        for model, workers, rounds, chunk in BENCH:
            for setting in (0, chunk):
                work = {"model": model, "workers": workers, "tau": 20, "batch": 64, "data": folder}
                work |= {"chunk": setting, "threads": 2 if setting else 0}
                both = [
                    Contender(name, "ours.py", work, folder=source / "benchmarks" / "contenders")
                    for name, source in (("before", old), ("now", ROOT))
                ]
                with Contest(both) as contest:
                    contest.play(turns, rounds)
                if failed := [each.failure for each in both if each.failure]:
                    sys.exit(f"{model}, N {workers}: {failed[0]}")
                before, now = both
                how = f"chunk {setting}" if setting else f"chosen {now.facts['chosen']['chunk']}"
                print(
                    f"{model}, N {workers}, {how}: {1e3 * before.best:.2f} ms a round before, "
                    f"{1e3 * now.best:.2f} ms now, ratio {now.best / before.best:.3f}; "
                    f"first round after {before.startup:.1f} s before, {now.startup:.1f} s now",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="a commit or tag to compare with")
    parser.add_argument("what", nargs="?", choices=["bits", "speed", "rows"], default="bits")
    parser.add_argument("--turns", type=int, default=5, help="of each, where they are timed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), given.revision], check=True)
        try:
            same = compare_digests(old) if given.what == "bits" else True
            if given.what == "speed":
                compare_speed(old, given.turns)
            if given.what == "rows":
                compare_rows(old, given.turns)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
