"""MLflow: an experiment a name, a run a run, with settings, curves and how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fednag.errors import FednagError
from fednag.runs.view import RunView
from fednag.show.trackers import began, name_of, needs, scalars

TAG = "fednag.run"
AT_ONCE = 900  # metrics a request; the server takes a thousand
LONGEST = 500  # characters of a parameter


def write(views: Sequence[RunView], address: str) -> list[str]:
    """Write runs to the store at ``address``; a run that was written before is replaced."""
    needs("mlflow", "mlflow")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=address)
        return [_write(client, view) for view in views]
    except (MlflowException, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise FednagError(f"--uri {address}: cannot be written to ({why}); check it") from error


def _write(client: Any, view: RunView) -> str:
    from mlflow.entities import Metric, Param, RunTag

    found = client.get_experiment_by_name(name_of(view))
    experiment = found.experiment_id if found else client.create_experiment(name_of(view))
    key = view.folder.name if view.folder else f"{view.label}-{view.seed}"
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
    last = start + int(view.records[-1].seconds * 1000)
    if not view.running:
        status = "FAILED" if view.diverged else "FINISHED"
        status = "KILLED" if view.ending is None else status
        client.set_terminated(run, status, end_time=last)
    return str(run)
