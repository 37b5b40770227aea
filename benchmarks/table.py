"""The findings of a benchmark as Markdown."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TARGETS = {
    "logistic, N = 4, tau 20": {"plain loop": 4, "Flower": 6, "pfl": 2, "JAX": 1.3},
    "logistic, N = 100, tau 20": {"plain loop": 10, "Flower": 10, "pfl": 4},
    "cnn, N = 4, tau 20": {"plain loop": 1.4, "Flower": 1.4, "pfl": 1.6},
    "vgg16": {"plain loop": 1.3},
    "vgg16-gn": {"plain loop": 1.2},
    "resnet20": {"plain loop": 1.2},
    "lstm": {"plain loop, compiled": 1.0, "plain loop": 1.5},
    "transformer": {"plain loop, compiled": 1.0, "plain loop": 1.5},
}
PUBLISHED = {"Flower 1.0": 30 * 60 + 14, "FLUTE": 3 * 60 + 20}  # seconds, on other machines


def markdown(found: dict[str, Any]) -> str:
    parts = [heading(found)]
    contests = [c for c in found["contests"] if c["kind"] == "contest"]
    for contest in contests:
        parts.append(contest_table(contest, found["peers"]))
    for contest in (c for c in found["contests"] if c["kind"] in ("large", "texts")):
        parts.append(contest_table(contest, {}))
    scans = [c for c in found["contests"] if c["kind"] == "scan"]
    if scans:
        parts.append(scan_table(scans))
    if "busy" in found:
        parts.append(busy_table(found["busy"]))
    if "many" in found:
        parts.append(many_table(found["many"]))
    parts.append(waits(found))
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(found: dict[str, Any]) -> str:
    machine = found["machine"]
    text = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, torch {machine['torch']}, fednag {machine['fednag']}; "
        f"load {machine['load before']:.1f} before the run. Data: {found['data']}; batch 64 where "
        "nothing else is said."
    )
    return f"{text}\n\n**A smoke test: these numbers mean nothing.**" if found["smoke"] else text


def contest_table(contest: dict[str, Any], peers: dict[str, str]) -> str:
    title = contest["workload"]
    lines = [
        f"### {title}",
        "",
        "| | ms a round | fednag is | to reach |",
        "| --- | --- | --- | --- |",
    ]
    results = {result["label"]: result for result in contest["results"]}
    ours = min(results["fednag"]["times"], default=None)
    chosen = results["fednag"]["facts"].get("chosen", {})
    for label, result in results.items():
        if result["failure"] or not result["times"]:
            lines.append(f"| {label} | failed: {result['failure']} | | |")
            continue
        best = min(result["times"])
        if label == "fednag":
            note = f"fednag (chunk {chosen.get('chunk')}, threads {chosen.get('threads')})"
            lines.append(f"| {note} | {1000 * best:.1f} | | |")
        elif label == "floor":
            lines.append(floor_line("hand-derived floor", best, ours, "1.4x"))
        elif label == "GEMM peak":
            peak, needed = result["facts"]["peak"], result["facts"]["operations"]
            floor = needed / peak
            reached = f"at {floor / ours:.0%} of peak" if ours else ""
            name = f"useful FLOPs at {peak / 1e9:.0f} GFLOP/s (GEMM, all cores)"
            lines.append(f"| {name} | {1000 * floor:.1f} | {reached} | 75 % |")
        else:
            start = f" (start-up {result['startup']:.0f} s)" if "Flower" in label else ""
            faster = f"{best / ours:.1f}x faster" if ours else ""
            lines.append(
                f"| {label}{start} | {1000 * best:.1f} | {faster} | {target(title, label)} |"
            )
    for name, note in peers.items():
        if "cannot" in note or "left out" in note:
            lines.append(f"| {name} | {note} | | |")
    return "\n".join(lines)


def floor_line(name: str, best: float, ours: float | None, aim: str) -> str:
    above = f"{ours / best:.2f}x the floor" if ours else ""
    return f"| {name} | {1000 * best:.1f} | {above} | {aim} |"


def target(title: str, label: str) -> str:
    targets = TARGETS.get(title) or TARGETS.get(title.partition(",")[0], {})
    for name, factor in targets.items():
        if label.startswith(name):
            return f">= {factor}x"
    return ""


def scan_table(scans: list[dict[str, Any]]) -> str:
    lines = [
        "### What `auto` picks, among settings given by hand (to reach: 10 % behind at most)",
        "",
        "| workload | setting | ms a round | behind the best by | picked by `auto` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for scan in scans:
        times = {r["label"]: min(r["times"]) for r in scan["results"] if r["times"]}
        best, asked = min(times.values()), sum(scan["picks"].values())
        for label, seconds in times.items():
            picked = f"{scan['picks'][label]} of {asked}" if scan["picks"][label] else ""
            numbers = f"{1000 * seconds:.1f} | {seconds / best - 1:.0%}"
            lines.append(f"| {scan['workload']} | {label} | {numbers} | {picked} |")
    return "\n".join(lines)


def busy_table(rows: list[dict[str, Any]]) -> str:
    lines = ["### With one core kept busy by another process (to reach: 2.5x at most)", ""]
    lines += ["| workload | idle, ms | busy, ms | slower |", "| --- | --- | --- | --- |"]
    for row in rows:
        idle, busy = min(row["idle"]), min(row["busy"])
        numbers = f"{1000 * idle:.1f} | {1000 * busy:.1f} | {busy / idle:.2f}x"
        lines.append(f"| {row['workload']} | {numbers} |")
    return "\n".join(lines)


def many_table(rows: dict[Any, list[dict[str, Any]]]) -> str:
    lines = ["### Many workers: logistic, tau 5, 128 samples each", ""]
    lines += [
        "| workers | µs a worker-step | against the first | peak MB | above the first |",
        "| --- | --- | --- | --- | --- |",
    ]
    base: tuple[float, float] | None = None
    for workers, results in rows.items():
        step = min(r["per_worker_step"] for r in results)
        peak = min(r["peak_mb"] for r in results)
        base = base or (step, peak)
        numbers = f"{1e6 * step:.1f} | {step / base[0]:.2f}x | {peak:.0f} | {peak - base[1]:+.0f}"
        lines.append(f"| {int(workers):,} | {numbers} |")
    return "\n".join(lines) + "\n\nTo reach at 10,000: 1.2x and +300 MB."


def waits(found: dict[str, Any]) -> str:
    lines = ["### Whole commands", "", "| | seconds | to reach |", "| --- | --- | --- |"]
    if "clients" in found:
        clients = found["clients"]
        others = ", ".join(f"{name} {s // 60}:{s % 60:02d}" for name, s in PUBLISHED.items())
        lines.append(
            f"| logistic, 1000 clients, 10 a round, batch 10, lr 0.03, one epoch, "
            f"{clients['rounds']} rounds, {clients['evaluations']} evaluations on all data; the "
            f"whole process (published, other machines, CPU: {others}) "
            f"| {min(clients['seconds']):.1f} | < 10 |"
        )
    if "commands" in found:
        commands = found["commands"]
        lines.append(f"| `fednag --help` | {min(commands['help']):.2f} | < 0.4 |")
        first = min(commands["first_record"])
        lines.append(f"| `fednag run` on digits, to its first record | {first:.2f} | < 2 |")
    if "tiny" in found:
        tiny = found["tiny"]
        share = f"{tiny['choosing'] / tiny['seconds']:.0%}"
        lines.append(
            f"| {tiny['runs']} tiny runs (digits, mlp), one after the other | "
            f"{tiny['seconds']:.1f} | |"
        )
        lines.append(
            f"| of these, choosing chunks and threads ({share}) | "
            f"{tiny['choosing']:.2f} | < 10 %, < 1 |"
        )
    return "\n".join(lines) if len(lines) > 4 else ""


def insert(results: Path, document: Path) -> None:
    """Put the findings into a document, between its marks."""
    found = markdown(json.loads(results.read_text()))
    marks = re.compile(r"(<!-- results -->\n).*(<!-- end of results -->)", re.DOTALL)
    text, count = marks.subn(
        lambda m: f"{m[1]}\n## Results\n\n{found}\n{m[2]}", document.read_text()
    )
    if not count:
        raise SystemExit(f"{document}: has no marks for the results")
    document.write_text(text)


if __name__ == "__main__":
    insert(Path(sys.argv[1]), Path(sys.argv[2]))
