"""``fednag frontier``: the method and the compressed upload of fewest bytes and seconds."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import (
    beside,
    blaming,
    console,
    given_seeds,
    json_text,
    one_voice,
    print_json,
    set_fields,
    usable,
)
from fednag.cli.options import Algorithms, Fleet, Json, Out, Quiet, Replays, Seeds, Set, Verbose
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.frontier import Frontier


def frontier(
    experiment: Annotated[Path, typer.Argument(help="TOML file; its uplink is replaced.")],
    target: Annotated[
        str,
        typer.Option("--target", help="Accuracy to reach, e.g. 0.9, or another measure: f1=0.9."),
    ],
    algorithms: Algorithms = "",
    methods: Annotated[
        str,
        typer.Option(
            "--methods", hidden=True, help="--algorithms.", autocompletion=completing.methods
        ),
    ] = "",
    uplinks: Annotated[
        str,
        typer.Option(
            "--uplinks",
            help="Chains of transforms, e.g. none,quantise:levels=7,error-feedback+topk:share=0.01;"
            " five usual ones when left out.",
        ),
    ] = "",
    seeds: Seeds = "",
    fleet: Fleet = "",
    replays: Replays = 20,
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with runs that are in --out; skip finished ones."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run methods with compressed uploads: who reaches a target with the fewest bytes and seconds.

    Every method runs with every uplink and seed, to the end. An uplink joins transforms by +, with
    their numbers after colons. With --fleet the runs are replayed on its devices.

    Example: fednag frontier examples/digits.toml --target 0.8 --uplinks none,quantise:levels=7
    """
    from fednag.config import override, read
    from fednag.devices.fleet import load_fleet
    from fednag.frontier import METHODS, UPLINKS, candidates
    from fednag.frontier import frontier as find
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.runs.targets import read_target
    from fednag.show.terminal import RunsProgress

    one_voice(quiet, verbose)
    if algorithms and methods:
        raise FednagError("--algorithms, --methods", remedy="give one of them, not both")
    asked = read_target(target)
    where = load_fleet(fleet) if fleet else None
    changes = set_fields(set_)
    for field in changes:
        if field.partition(".")[0] == "uplink":
            raise FednagError("--set", "--uplinks replaces it", "leave one out", given=field)
    raw = override(read(experiment), changes)
    names = [name.strip() for name in (algorithms or methods).split(",") if name.strip()]
    # A comma within brackets is one of a list, as in topk:vectors=["w","v"].
    chains = [text.strip() for text in re.split(r",(?![^\[]*\])", uplinks) if text.strip()]
    if uplinks and not chains:
        raise FednagError(
            "--uplinks", remedy="write chains between commas, e.g. none,sign", given=uplinks
        )
    chosen: dict[str, Any] = {
        "algorithms": names or ([] if raw.get("algorithms") else list(METHODS)),
        "uplinks": chains or list(UPLINKS),
        "seeds": given_seeds(seeds, raw.get("seed", 0)),
    }
    with blaming(dict.fromkeys(changes, "--set")):
        listed = candidates(raw, asked, source=str(experiment), **chosen)
    usable(out)
    labels = [each.label for each in listed]
    try:
        with Watch() as watch, RunsProgress(beside(json), labels, quiet, verbose) as progress:
            found = find(
                asked,
                raw,
                fleet=where,
                replays=replays,
                out=out,
                started=progress.started,
                resume=resume,
                watch=watch,
                **chosen,
            )
    except Interrupted as stopped:
        more = ", or all runs by repeating the command with --resume"
        print(f"fednag: {stopped}{more}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    said = _notes(found)
    report = _report(found)
    written = _write(found, report, out / listed[0].experiment.name)
    if json:
        folders = [str(run.folder) for run in found.runs]
        files = [str(path) for path in written]
        print_json({**report, "notes": said, "runs": folders, "files": files})
    else:
        _tell(found, said, written)


def _notes(found: Frontier) -> list[str]:
    from fednag.cli.time import remarks
    from fednag.devices.executor import notes_on

    said = [f"{run.label}: {note}" for run in found.runs for note in run.notes]
    every = max(run.experiment.evaluation.every for run in found.runs)
    if every > 1:
        said.append(f"models are evaluated every {every} rounds: bytes to the target are as coarse")
    if len({run.experiment.seed for run in found.runs}) < 3:
        said.append("fewer than three seeds: no interval is given; differences may be chance")
    if found.fleet is not None:
        timed = [one.run for one in found.timed]
        workers = max(run.workload.workers for run in timed)
        said += [*notes_on(found.fleet, workers), *remarks(timed, found.fleet)]
    return list(dict.fromkeys(said))


def _report(found: Frontier) -> dict[str, Any]:
    fleet = found.fleet
    rows = []
    for cell in found.cells:
        method, uplink = found.names[cell.label]
        rows.append({"method": method, "uplink": uplink, **asdict(cell)})
    where = fleet and {"name": fleet.name, "synthetic": fleet.synthetic, "digest": fleet.digest}
    told = {"target": asdict(found.target), "fleet": where}
    return {**told, "advice": found.sentences, "rows": rows}


def _tell(found: Frontier, said: list[str], written: list[Path]) -> None:
    from rich.table import Table

    from fednag.devices.times import duration
    from fednag.runs.frontier import NOT_DOMINATED, amount, sent_to, value_text
    from fednag.show.terminal import notes, paths

    def seconds(count: float | None) -> str:
        return "-" if count is None else duration(count)

    terminal, target, fleet = console(), found.target, found.fleet
    count = max(cell.runs for cell in found.cells)
    title = f"sent to {target}, fewest first; mean over {count} seed{'s' * (count > 1)}"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("uplink", overflow="fold")
    headings = [f"final\n{target.measure}", f"up\nto {target}", f"down\nto {target}"]
    headings += [f"both ways\nto {target}"]
    headings += [f"time\nto {target}"] if fleet else []
    headings += ["sent\nin all", *(["time\nin all"] if fleet else [])]
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("not dominated\nin")
    for cell in found.cells:
        marks = [
            *(["bytes"] if cell.least_bytes else []),
            *(["seconds"] if cell.least_seconds else []),
        ]
        table.add_row(
            *found.names[cell.label],
            value_text(cell, target),
            *sent_to(cell),
            *([seconds(cell.seconds_to)] if fleet else []),
            amount(cell.bytes),
            *([seconds(cell.seconds)] if fleet else []),
            ", ".join(marks),
            style="bold" if marks else "red" if cell.diverged else None,
        )
    terminal.print(table)
    terminal.print(NOT_DOMINATED, soft_wrap=True, highlight=False)
    for sentence in found.sentences:
        terminal.print(sentence, style="bold", soft_wrap=True, highlight=False)
    notes(terminal, said)
    named = {r.folder: f"{r.label}, seed {r.experiment.seed}" for r in found.runs if r.folder}
    paths(terminal, [*named, *written], named)


def _write(found: Frontier, report: dict[str, Any], folder: Path) -> list[Path]:
    from fednag.core.files import os_errors, write_atomically
    from fednag.show.charts import PICTURES, frontier_chart, save
    from fednag.show.document import document, write_page

    views = [run.view for run in found.runs]
    stem = folder / "frontier"
    ends = [(one.run, [played.ends for played in one.replays]) for one in found.timed]
    place = found.fleet.title if found.fleet else ""
    chart = frontier_chart(views, found.cells, found.names, found.target, ends, place)
    written = save(chart, stem, PICTURES)
    written.append(write_page(document(views, found.target), stem.with_name("frontier.html")))
    path = stem.with_name("frontier.json")
    with os_errors(path, "cannot write it", "choose another with --out"):
        write_atomically(path, json_text(report) + "\n")
    return [*written, path]
