"""Runs a plan to its end and keeps what it yields: records, models, the run's folder."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from fednag.config import Experiment
from fednag.errors import FednagError
from fednag.records import Record, RunFolder, write_atomically
from fednag.results import Run
from fednag.simulate.run import Plan, State, simulate

Listener = Callable[[State], None]
"""Called before training and after every round."""

RECORDED_VERSIONS = ("fednag", "torch", "numpy", "scikit-learn", "safetensors")


def execute(
    experiment: Experiment,
    plan: Plan,
    *,
    label: str,
    notes: list[str],
    out: Path | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run ``plan``; with ``out``, write its folder ``out/<name>/<id>`` as it goes."""
    folder = None
    if out is not None:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-")
        folder = RunFolder.create(out, experiment.name, f"{safe}-{experiment.key}")
    try:
        return _execute(experiment, plan, label, notes, folder, listener)
    except OSError as error:
        where = folder.path if folder else "the run"
        raise FednagError(
            f"{where}: cannot write there ({error.strerror or error}); free some space or choose "
            "another folder with --out"
        ) from error


def _execute(
    experiment: Experiment,
    plan: Plan,
    label: str,
    notes: list[str],
    folder: RunFolder | None,
    listener: Listener | None,
) -> Run:
    about = _about(experiment, plan, label, notes)
    if folder:
        write_atomically(folder.config_file, experiment.toml())
        folder.records_file.touch()
        folder.write_info({"status": "running", **about})
    records: list[Record] = []
    state = None
    try:
        for state in simulate(plan):
            if state.record is not None:
                records.append(state.record)
                if folder:
                    folder.append(state.record)
            if listener:
                listener(state)
    except BaseException:
        if folder:
            folder.write_info({"status": "interrupted", **about})
        raise
    assert state is not None
    final = plan.problem.module_at(state.server.w)
    best = plan.problem.module_at(state.best.w) if state.best else final
    if folder:
        save_model(final, folder.path / "final.safetensors")
        save_model(best, folder.path / "best.safetensors")
        status = "diverged" if state.diverged else "finished"
        found = {}
        if state.best:
            found = {"best_iteration": state.best.iteration, "best_loss": state.best.loss}
        folder.write_info({"status": status, "ended": state.ended, **found, **about})
    return Run(
        label=label,
        experiment=experiment,
        records=records,
        best=best,
        final=final,
        ended=state.ended or "finished",
        diverged=state.diverged,
        folder=folder.path if folder else None,
        notes=notes,
    )


def save_model(module: nn.Module, path: Path) -> None:
    """A module's state as safetensors: ``module.load_state_dict(load_file(path))`` reads it."""
    temporary = path.with_name(path.name + ".tmp")
    # Cloned, because safetensors refuses tensors that share memory, as tied weights do.
    state = {
        name: value.detach().clone().contiguous() for name, value in module.state_dict().items()
    }
    save_file(state, str(temporary))
    temporary.replace(path)


def _about(experiment: Experiment, plan: Plan, label: str, notes: list[str]) -> dict[str, Any]:
    return {
        "label": label,
        "seed": experiment.seed,
        "key": experiment.key,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": len(plan.problem.initial),
        "workers": len(plan.owned),
        "samples": int(sum(len(o) for o in plan.owned)),
        "notes": notes,
        "versions": {name: version(name) for name in RECORDED_VERSIONS},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
