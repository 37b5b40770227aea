"""``fednag data``: list, download, check, split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednag.cli import completing
from fednag.cli.common import answer, output, table
from fednag.cli.options import Json, Quiet, written_to
from fednag.errors import FednagError

Name = Annotated[
    str, typer.Argument(help="Data set, e.g. mnist.", autocompletion=completing.downloads)
]
data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, download, check, split.")


@data_app.command("list")
def data_list(json: Json = False) -> None:
    """List the data sets and whether their files are here.

    Example: fednag data list
    """
    from fednag.data.download import SOURCES, data_folder
    from fednag.data.sets import NAMES

    folder = data_folder()
    states = {}
    for name in [*NAMES, *(n for n in SOURCES if n not in NAMES)]:
        if name not in SOURCES:
            states[name] = "built in"
            continue
        source = SOURCES[name]
        here = all((folder / source.folder / file.name).is_file() for file in source.files)
        states[name] = "here" if here else "missing"
    shown = table(["name", "files"])
    for name, state in states.items():
        shown.add_row(name, f"missing: fednag data get {name}" if state == "missing" else state)
    where = f"folder: {folder} (set FEDNAG_DATA to use another)"
    answer(json, {"folder": str(folder), "data": states}, shown, where)


@data_app.command("get")
def data_get(name: Name, quiet: Quiet = False, json: Json = False) -> None:
    """Download a data set from its official address and verify it.

    Example: fednag data get mnist
    """
    from fednag.data.download import get

    folder = get(name, progress=not quiet)
    answer(json, {"name": name, "folder": str(folder)}, f"{name} is ready in {folder}")


@data_app.command("check")
def data_check(name: Name, json: Json = False) -> None:
    """Verify the checksums of a data set's files.

    Example: fednag data check mnist
    """
    from fednag.data.download import check

    statuses = check(name)
    lines = (f"{status:8}{path}" for path, status in statuses)
    answer(json, {str(path): status for path, status in statuses}, *lines)
    bad = [path for path, status in statuses if status != "ok"]
    if bad:
        raise FednagError(bad[0], "not as published", f"run `fednag data get {name}`")


@data_app.command("split")
def data_split(
    name: Annotated[
        str,
        typer.Argument(
            help="Data set, e.g. digits, or your own .csv or .npz file.",
            autocompletion=completing.data_sets,
        ),
    ] = "digits",
    kind: Annotated[
        str,
        typer.Option(
            help="iid, classes, dirichlet, sizes or natural.", autocompletion=completing.kinds
        ),
    ] = "iid",
    workers: Annotated[int | None, typer.Option(help="How many workers.")] = None,
    classes: Annotated[int | None, typer.Option(help="classes: how many each holds.")] = None,
    assign: Annotated[str | None, typer.Option(help="classes: cover or random.")] = None,
    alpha: Annotated[float | None, typer.Option(help="dirichlet: concentration.")] = None,
    skew: Annotated[float | None, typer.Option(help="sizes: exponent.")] = None,
    target: Annotated[str | None, typer.Option(help="A file's column to predict.")] = None,
    owner: Annotated[str | None, typer.Option(help="A file's column of owners.")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    out: Annotated[Path, written_to("Folder the picture is written to.")] = Path("runs"),
    json: Json = False,
) -> None:
    """Show who would hold what: a table worker x class, and a picture of it.

    Example: fednag data split digits --kind classes --classes 3 --workers 4
    """
    import numpy as np

    from fednag.config import parse
    from fednag.data.tables import ENDINGS
    from fednag.runs.build import load, split
    from fednag.show.charts import save, split_chart
    from fednag.show.terminal import split_table

    options = {
        "workers": workers,
        "classes": classes,
        "assign": assign,
        "alpha": alpha,
        "skew": skew,
    }
    given = {key: option for key, option in options.items() if option is not None}
    if Path(name).suffix == ".toml":
        raise FednagError(
            "",
            "is an experiment file",
            "name the data, e.g. `fednag data split mine.csv`",
            source=name,
        )
    data: dict[str, str] = {"name": name}
    if Path(name).suffix in ENDINGS:
        data = {"name": "file", "path": name}
    data |= {key: told for key, told in (("target", target), ("owner", owner)) if told is not None}
    raw = {"data": data, "split": {"kind": kind, **given}, "seed": seed}
    experiment = parse(raw, "data split")
    dataset = load(experiment)
    deal = split(dataset, experiment.split, seed)
    labels = dataset.y.numpy() if dataset.classes else np.zeros(len(dataset.y), np.int64)
    counts = deal.table(labels, dataset.classes or 1).tolist()
    folder = output(out)
    title = f"{dataset.name}, {kind}"
    written = save(split_chart(counts, title), folder / f"split-{dataset.name}-{kind}")
    more = [f"… and {len(counts) - 30} more workers"] if len(counts) > 30 else []
    sizes = f"sizes: {min(deal.sizes)} to {max(deal.sizes)}, {sum(deal.sizes)} in all"
    held = {"held": counts, "classes": list(dataset.words)}
    said = [*dataset.notes, *deal.notes]
    answer(json, held, split_table(counts), *more, sizes, notes=said, files=written)
