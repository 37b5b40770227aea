"""``fednag privacy``: how much noise a budget asks for, and what runs have spent."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import answer, table
from fednag.cli.options import Json, Runs

if TYPE_CHECKING:
    from fednag.runs.view import RunView

privacy_app = typer.Typer(no_args_is_help=True, help="Differential privacy: plan it, look it up.")


@privacy_app.command()
def plan(
    delta: Annotated[float, typer.Option(min=1e-300, max=0.999, help="Delta, e.g. 1e-5.")],
    workers: Annotated[int, typer.Option(min=1, help="Workers there are.")],
    rounds: Annotated[int, typer.Option(min=1, max=10**9, help="Rounds of the run.")],
    epsilon: Annotated[float | None, typer.Option(min=1e-6, help="The budget.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(min=1e-6, help="Instead: what this noise costs.")
    ] = None,
    per_round: Annotated[
        int | None, typer.Option(min=1, help="Workers of a round; default: all.")
    ] = None,
    poisson: Annotated[
        bool,
        typer.Option(
            "--poisson", help="Each worker takes part with the same chance, independently."
        ),
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Noise on every upload: the server is not trusted.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Protect one sample; so many has the smallest worker."),
    ] = None,
    batch: Annotated[int, typer.Option(min=0, help="With --samples: a batch, 0: all.")] = 0,
    tau: Annotated[int, typer.Option(min=1, help="With --samples: iterations a round.")] = 1,
    json: Json = False,
) -> None:
    """Find the least noise that keeps a run within its epsilon, or what given noise costs.

    Example: fednag privacy plan --epsilon 8 --delta 1e-5 --workers 100 --per-round 10 --rounds 100
    """
    from fednag.privacy.plan import plan_noise

    found = plan_noise(
        delta=delta,
        workers=workers,
        rounds=rounds,
        per_round=per_round,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        cohorts="poisson" if poisson else "fixed",
        local=local,
        samples=samples,
        batch=batch,
        tau=tau,
    )
    whose = "a worker's whole data" if found.unit == "worker" else "one sample of a worker"
    exactly = "" if found.exactly is None else f" ({found.exactly:.4g} by PLD, which is exact)"
    answer(
        json,
        {**asdict(found), "relation": found.mechanism.relation, "settings": found.settings},
        f"noise multiplier {found.noise_multiplier:.4g}: epsilon {found.epsilon:.4g}{exactly} at "
        f"delta {delta:g}",
        f"for {whose}, {found.mechanism.relation}; {found.times} uses of the noise",
        "",
        found.settings,
    )


@privacy_app.command()
def spent(runs: Runs, json: Json = False) -> None:
    """Say what runs have spent of their privacy, and what that protects.

    Example: fednag privacy spent runs/private
    """
    from fednag.cli.reporting import read_runs

    views, failed = read_runs(runs)
    rows = [_spent(view) for view in views]
    made = table(["run", "round", "epsilon", "of", "delta", "what it protects"])
    for row in rows:
        numbers = (_text(row[name]) for name in ("epsilon", "budget", "delta"))
        made.add_row(row["folder"], str(row["round"]), *numbers, _words(row))
    answer(json, {"rows": rows}, made, failed=failed)


def _spent(view: RunView) -> dict[str, Any]:
    told = view.info.get("privacy")
    known = told if isinstance(told, dict) else {}
    names = ("budget", "delta", "promise", "claimed", "replayed")
    return {
        "folder": str(view.folder),
        "label": view.label,
        "seed": view.seed,
        "round": view.rounds,
        "epsilon": view.records[-1].epsilon,
        **{name: known.get(name) for name in names},
    }


def _words(row: dict[str, Any]) -> str:
    if row["promise"] is None:
        return "nothing: it has no [privacy]"
    claimed = row["claimed"]
    claim = "" if claimed is None else f" (its method's paper claims {claimed:g}: no guarantee)"
    return f"{row['promise']}{claim}"


def _text(value: float | None) -> str:
    return "-" if value is None or not isfinite(value) else f"{value:.4g}"
