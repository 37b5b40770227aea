"""The ServerApp: the simulator's loop and run folder, with silos on other machines as workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fednag.config import Experiment
from fednag.core.record import expected_rounds
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.errors import FednagError
from fednag.flower.edges import EdgeFleet, serve_edge
from fednag.flower.fleet import Fleet
from fednag.flower.journal import note, say, show
from fednag.flower.settings import Deployment, read_run_config
from fednag.flower.silo_log import SiloLog
from fednag.flower.silo_memory import TOKEN
from fednag.privacy.promise import secret_noise
from fednag.runs.build import Builder, Parts
from fednag.runs.execute import Execution, find
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import file_of, keys_of, verify
from fednag.runs.outcome import Outcome
from fednag.simulate.run import Plan

Tell = Callable[[str], None]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What ``flwr run`` starts on the server."""
    torch.set_num_threads(1)
    try:
        deployment = read_run_config(context.run_config)
        if deployment.flower.edge >= 0:
            note(finished=str(serve_edge(grid, deployment, say)))
            return
        run = serve(grid, deployment, say)
    except FednagError as error:
        show(f"stopped: {error}", "error")
        note(stopped=error.to_dict())
        raise
    say(f"{run.ended}; wrote {run.folder}")
    note(finished=str(run.folder))


def serve(grid: Grid, deployment: Deployment, tell: Tell = print) -> Outcome:
    """Play a deployment's rounds with the silos on ``grid``; writes the usual run folder."""
    resolved, plan, notes = plan_of(deployment)
    scheme, privacy = secret_noise(plan.scheme, plan.privacy)
    plan = replace(plan, scheme=scheme, privacy=privacy)
    out = Path(deployment.flower.out)
    log = SiloLog()
    folder = None
    if deployment.flower.resume:
        folder = find(out, resolved.label, resolved)
        if folder is None:
            tell(f"flower.resume: no such run in {out}; a new one begins")
    token = _token_of(folder)
    kept = verify(folder).entries if folder and file_of(folder).exists() else []
    kind = EdgeFleet if plan.edges else Fleet
    fleet = kind(grid, deployment, plan, token, log, tell, keys_of(kept))

    def opened(folder: RunFolder) -> None:
        log.open(folder.path)
        tell(f"writing {folder.path}")

    execution = Execution(
        resolved,
        plan,
        resolved.label,
        notes,
        listener=lambda state: tell(_news(state, plan)),
        trainer=fleet,
        runner="flower",
        facts={"token": token, "silos": deployment.silos},
        opened=opened,
        # The app's folder, where files of the user's own are now, does not outlive the run.
        described=resolved.carried_to if resolved.own else None,
    )
    return execution.resume(folder) if folder else execution.start(out)


def plan_of(deployment: Deployment) -> tuple[Experiment, Plan, list[str]]:
    """The server's plan; where silos bring the data, with a stand-in of the declared shape."""
    if not deployment.private:
        return Builder().plan(deployment.experiment)
    silos, classes = deployment.silos, deployment.flower.classes or None
    x = torch.zeros(silos, *deployment.shape)
    y = torch.zeros(silos, dtype=torch.float32 if classes is None else torch.int64)
    stand_in = Dataset("silos", x, y, x[:0], y[:0], classes)
    return Builder(Parts(dataset=stand_in, elsewhere=True)).plan(deployment.experiment)


def _token_of(folder: RunFolder | None) -> str:
    """What silos know this run by, also when it goes on in another process."""
    if folder is not None and TOKEN.fullmatch(token := str(folder.info().get("token"))):
        return token
    return secrets.token_hex(16)


def _news(state: State, plan: Plan) -> str:
    done = state.round, state.iteration
    text = f"round {state.round}/{expected_rounds(plan.rounds, plan.iterations, done)}"
    if state.record is not None and state.record.loss is not None:
        text += f", loss {state.record.loss:.4f}"
        if state.record.accuracy is not None:
            text += f", accuracy {state.record.accuracy:.1%}"
        known = {n: value for n, value in state.record.metrics.items() if value is not None}
        text += "".join(f", {name} {value:.4g}" for name, value in known.items())
    return f"{text}, {state.seconds:.1f} s"
