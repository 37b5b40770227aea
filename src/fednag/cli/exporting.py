"""``fednag export``: runs for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fednag.cli.common import print_json, unless
from fednag.cli.options import Json, Runs, written_to
from fednag.cli.reporting import read_runs

export_app = typer.Typer(
    no_args_is_help=True, help="Runs for other tools: TensorBoard, MLflow (extras of their names)."
)


@export_app.command()
def tensorboard(
    runs: Runs,
    out: Annotated[Path, written_to("Folder the events are written to.")] = Path("tensorboard"),
    json: Json = False,
) -> None:
    """Write runs as TensorBoard's event files; then `tensorboard --logdir tensorboard`.

    Example: fednag export tensorboard runs/digits
    """
    from fednag.show.trackers import write_tensorboard as write

    views, failed = read_runs(runs)
    folders = [str(folder) for folder in write(views, out)]
    if json:
        print_json({"folders": folders, "failed": failed})
    else:
        print(f"wrote {len(folders)} runs; see them with `tensorboard --logdir {out}`")
    unless(failed)


@export_app.command()
def mlflow(
    runs: Runs,
    uri: Annotated[
        str, typer.Option(help="MLflow's store: a server's address, or a database.")
    ] = "sqlite:///mlflow.db",
    json: Json = False,
) -> None:
    """Write runs to an MLflow store: settings, curves, how they ended.

    Example: fednag export mlflow runs/digits --uri http://127.0.0.1:5000
    """
    from fednag.show.trackers import write_mlflow as write

    views, failed = read_runs(runs)
    written = write(views, uri)
    if json:
        print_json({"runs": written, "failed": failed})
    else:
        print(f"wrote {len(written)} runs to {uri}")
    unless(failed)
