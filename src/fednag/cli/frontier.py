"""``fednag frontier``: the method and the compressed upload of fewest bytes and seconds."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import (
    answer,
    blaming,
    folders_of,
    given_seeds,
    listed,
    set_fields,
    table,
    usable,
    write_report,
)
from fednag.cli.options import TARGET, Algorithms, Fleet, Making, Replays, Seeds, Telling, grouped
from fednag.cli.running import training
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.frontier import Frontier


@grouped
def frontier(
    *,
    experiment: Annotated[Path, typer.Argument(help="TOML file; its uplink is replaced.")],
    target: Annotated[str, TARGET],
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
    making: Making,
    telling: Telling,
) -> None:
    """Compare compressed uploads: which reach a target with the fewest bytes and seconds.

    Every method runs with every uplink and seed, to the end. An uplink joins transforms by +, with
    their numbers after colons. With --fleet the runs are replayed on its devices.

    Example: fednag frontier examples/digits.toml --target 0.8 --uplinks none,quantise:levels=7
    """
    from rich.text import Text

    from fednag.config import override, read
    from fednag.devices.fleet import load_fleet
    from fednag.frontier import METHODS, UPLINKS, candidates
    from fednag.frontier import frontier as find
    from fednag.runs.frontier import NOT_DOMINATED
    from fednag.runs.targets import read_target

    if algorithms and methods:
        raise FednagError("--algorithms, --methods", remedy="give one of them, not both")
    asked = read_target(target)
    where = load_fleet(fleet) if fleet else None
    changes = set_fields(making.set_)
    for field in changes:
        if field.partition(".")[0] == "uplink":
            raise FednagError("--set", "--uplinks replaces it", "leave one out", given=field)
    raw = override(read(experiment), changes)
    # A comma within brackets is one of a list, as in topk:vectors=["w","v"].
    chains = [text.strip() for text in re.split(r",(?![^\[]*\])", uplinks) if text.strip()]
    if uplinks and not chains:
        raise FednagError(
            "--uplinks", remedy="write chains between commas, e.g. none,sign", given=uplinks
        )
    usual = [] if raw.get("algorithms") else list(METHODS)
    chosen: dict[str, Any] = {
        "algorithms": listed(algorithms or methods) or usual,
        "uplinks": chains or list(UPLINKS),
        "seeds": given_seeds(seeds, raw.get("seed", 0)),
    }
    with blaming(dict.fromkeys(changes, "--set")):
        wanted = candidates(raw, asked, source=str(experiment), **chosen)
    usable(making.out)
    labels = [each.label for each in wanted]
    more = ", or all runs by repeating the command with --resume"
    with training(labels, telling, more) as (started, watch):
        found = find(
            asked,
            raw,
            fleet=where,
            replays=replays,
            out=making.out,
            started=started,
            resume=making.resume,
            watch=watch,
            **chosen,
        )
    document = _document(found)
    answer(
        telling.json,
        document,
        _table(found),
        NOT_DOMINATED,
        *(Text(sentence, "bold") for sentence in found.sentences),
        notes=_notes(found),
        runs=folders_of(found.runs),
        files=_write(found, document, making.out / wanted[0].experiment.name),
    )


def _notes(found: Frontier) -> list[str]:
    from fednag.cli.time import remarks

    said = [f"{run.label}: {note}" for run in found.runs for note in run.notes]
    every = max(run.experiment.evaluation.every for run in found.runs)
    if every > 1:
        said.append(f"models are evaluated every {every} rounds: bytes to the target are as coarse")
    if len({run.experiment.seed for run in found.runs}) < 3:
        said.append("fewer than three seeds: no interval is given; differences may be chance")
    if found.fleet is not None:
        said += remarks([one.run for one in found.timed], found.fleet)
    return list(dict.fromkeys(said))


def _document(found: Frontier) -> dict[str, Any]:
    rows = []
    for cell in found.cells:
        method, uplink = found.names[cell.label]
        rows.append({"method": method, "uplink": uplink, **asdict(cell)})
    told = {"target": asdict(found.target), "fleet": found.fleet and found.fleet.as_data()}
    return {**told, "advice": found.sentences, "rows": rows}


def _table(found: Frontier) -> Table:
    from fednag.devices.times import duration
    from fednag.runs.frontier import amount, sent_to, value_text

    target = found.target
    seeds = max(cell.runs for cell in found.cells)
    title = f"bytes sent until {target}, fewest first"
    title += f"; mean over {seeds} seeds" if seeds > 1 else ""
    numbers = [f"{what}\nto {target}" for what in ("up", "down", "both ways", "time")]
    numbers = [f"final\n{target.measure}", *numbers, "sent\nin all", "time\nin all"]
    timed = [4, 6]  # the columns there are on a fleet alone
    kept = [i for i in range(len(numbers)) if found.fleet or i not in timed]
    headings = [numbers[i] for i in kept]
    made = table(["method", "uplink"], headings, ["not dominated\nin"], title)
    made.columns[1].no_wrap, made.columns[1].overflow = False, "fold"
    for cell in found.cells:
        marks = ["bytes"] * cell.least_bytes + ["seconds"] * cell.least_seconds
        texts = [value_text(cell, target), *sent_to(cell), duration(cell.seconds_to)]
        texts += [amount(cell.bytes), duration(cell.seconds)]
        style = "bold" if marks else "red" if cell.diverged else None
        shown = [texts[i] for i in kept]
        made.add_row(*found.names[cell.label], *shown, ", ".join(marks), style=style)
    return made


def _write(found: Frontier, document: dict[str, Any], folder: Path) -> list[Path]:
    from fednag.show.charts import PICTURES, frontier_chart, save
    from fednag.show.document import document as page_of
    from fednag.show.document import write_page

    views = [run.view for run in found.runs]
    stem = folder / "frontier"
    ends = [(one.run, [played.ends for played in one.replays]) for one in found.timed]
    place = found.fleet.title if found.fleet else ""
    chart = frontier_chart(views, found.cells, found.names, found.target, ends, place)
    written = save(chart, stem, PICTURES)
    written.append(write_page(page_of(views, found.target), stem.with_name("frontier.html")))
    return [*written, write_report(stem.with_name("frontier.json"), document)]
