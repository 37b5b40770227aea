"""Runs' records in the formats of other tools; each adapter needs the extra of its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fednag.core.files import os_errors
from fednag.core.record import Record
from fednag.errors import FednagError, not_installed
from fednag.runs.view import RunView

MEASURES = (
    *("loss", "test_loss", "accuracy", "train_accuracy"),
    *("bytes_up", "bytes_down", "round", "participants", "epsilon"),
)
TAG = "fednag.run"  # in MLflow, the folder that a run is of
AT_ONCE = 900  # metrics a request; MLflow's server takes a thousand
LONGEST = 500  # characters of a parameter
SUFFIX = ".fednag"  # of TensorBoard's event files


def scalars(record: Record) -> dict[str, float]:
    """What a record measured, by name; what it did not measure is left out."""
    found = {name: getattr(record, name) for name in (*MEASURES, "seconds")}
    found |= record.metrics
    return {name: float(value) for name, value in found.items() if value is not None}


def began(view: RunView) -> float:
    """When a run began, in seconds since 1970; 0 if it does not say."""
    try:
        moment = datetime.fromisoformat(view.started)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def name_of(view: RunView) -> str:
    return str(view.config.get("name") or "fednag")


def run_of(view: RunView) -> str:
    return view.folder.name if view.folder else f"{view.label}-{view.seed}"


def write_mlflow(views: Sequence[RunView], address: str) -> list[str]:
    """Write runs to the store at ``address``, with settings, curves and how they ended.

    An experiment a name; a run that was written before is replaced.
    """
    if find_spec("mlflow") is None:
        raise not_installed("mlflow", "mlflow")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=address)
        return [_mlflow_run(client, view) for view in views]
    except (MlflowException, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise FednagError(
            "--uri", f"cannot be written to ({why})", "check it", given=address
        ) from error


def _mlflow_run(client: Any, view: RunView) -> str:
    from mlflow.entities import Metric, Param, RunTag

    found = client.get_experiment_by_name(name_of(view))
    experiment = found.experiment_id if found else client.create_experiment(name_of(view))
    key = run_of(view)
    for old in client.search_runs([experiment], f"tags.`{TAG}` = {key!r}"):
        client.delete_run(old.info.run_id)
    start = int(began(view) * 1000)
    name = f"{view.label}, seed {view.seed}"
    run = client.create_run(
        experiment, start_time=start, run_name=name, tags={TAG: key}
    ).info.run_id
    params = [Param(k, str(v)[:LONGEST]) for k, v in view.settings.items()]
    params.append(Param("label", view.label[:LONGEST]))
    tags = [
        RunTag(f"version.{k}", str(v)) for k, v in dict(view.info.get("versions") or {}).items()
    ]
    for number in range(0, len(params), 90):
        client.log_batch(run, params=params[number : number + 90])
    client.log_batch(run, tags=[*tags, RunTag("ended", view.ended)])
    metrics = [
        Metric(measure, value, start + int(record.seconds * 1000), record.iteration)
        for record in view.records
        for measure, value in scalars(record).items()
    ]
    for number in range(0, len(metrics), AT_ONCE):
        client.log_batch(run, metrics=metrics[number : number + AT_ONCE])
    if not view.running:
        last = start + int(view.records[-1].seconds * 1000)
        over = "FAILED" if view.diverged else "FINISHED"
        client.set_terminated(run, over if view.ending else "KILLED", end_time=last)
    return str(run)


def write_tensorboard(views: Sequence[RunView], out: Path) -> list[Path]:
    """Write runs to ``out/<name>/<run>``; what was written there before is replaced."""
    if find_spec("tensorboard") is None:
        raise not_installed("tensorboard", "tensorboard")
    with os_errors("--out", "cannot be written", "choose another folder", given=out):
        return [_tensorboard_run(view, out) for view in views]


def _tensorboard_run(view: RunView, out: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    folder = out / name_of(view) / run_of(view)
    folder.mkdir(parents=True, exist_ok=True)
    # Events are only ever added to: written twice, every point would be there twice.
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    start = began(view)
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for record in view.records:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record.iteration, start + record.seconds)
        settings = "\n".join(f"    {key} = {value}" for key, value in view.settings.items())
        writer.add_text("settings", settings, 0, start)
    return folder
