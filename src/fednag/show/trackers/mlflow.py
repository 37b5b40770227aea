"""MLflow: an experiment a name, a run a run, with settings, curves and how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fednag.errors import FednagError
from fednag.show.sheets import Sheet
from fednag.show.trackers import began, name_of, needs, scalars

TAG = "fednag.run"
AT_ONCE = 900  # metrics a request; the server takes a thousand
LONGEST = 500  # characters of a parameter


def write(sheets: Sequence[Sheet], address: str) -> list[str]:
    """Write runs to the store at ``address``; a run that was written before is replaced."""
    needs("mlflow", "mlflow")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=address)
        return [_write(client, sheet) for sheet in sheets]
    except (MlflowException, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise FednagError(f"--uri {address}: cannot be written to ({why}); check it") from error


def _write(client: Any, sheet: Sheet) -> str:
    from mlflow.entities import Metric, Param, RunTag

    found = client.get_experiment_by_name(name_of(sheet))
    experiment = found.experiment_id if found else client.create_experiment(name_of(sheet))
    key = sheet.folder.name if sheet.folder else f"{sheet.curve.label}-{sheet.curve.seed}"
    for old in client.search_runs([experiment], f"tags.`{TAG}` = {key!r}"):
        client.delete_run(old.info.run_id)
    start = int(began(sheet) * 1000)
    name = f"{sheet.curve.label}, seed {sheet.curve.seed}"
    run = client.create_run(
        experiment, start_time=start, run_name=name, tags={TAG: key}
    ).info.run_id
    params = [Param(k, str(v)[:LONGEST]) for k, v in sheet.settings.items()]
    params.append(Param("label", sheet.curve.label[:LONGEST]))
    tags = [
        RunTag(f"version.{k}", str(v)) for k, v in dict(sheet.info.get("versions") or {}).items()
    ]
    for number in range(0, len(params), 90):
        client.log_batch(run, params=params[number : number + 90])
    client.log_batch(run, tags=[*tags, RunTag("ended", sheet.curve.ended)])
    metrics = [
        Metric(measure, value, start + int(record.seconds * 1000), record.iteration)
        for record in sheet.curve.records
        for measure, value in scalars(record).items()
    ]
    for number in range(0, len(metrics), AT_ONCE):
        client.log_batch(run, metrics=metrics[number : number + AT_ONCE])
    last = start + int(sheet.curve.records[-1].seconds * 1000)
    if not sheet.running:
        status = "FAILED" if sheet.curve.diverged else "FINISHED"
        status = "KILLED" if sheet.curve.ended == "interrupted" else status
        client.set_terminated(run, status, end_time=last)
    return str(run)
