"""``fednag theory``: the paper's bounds against real runs, against each other, and for planning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import console, json_text, output, print_json
from fednag.cli.options import Json, Set, written_to
from fednag.cli.watching import case_of, observe
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.cli.watching import Observed
    from fednag.theory import Bound, Setting

theory_app = typer.Typer(
    no_args_is_help=True,
    help="The paper's theorems: check them on a run, compare bounds, plan eta, tau and T.",
)

Folder = Annotated[Path, written_to("Charts are written to theory/ in this folder.")]
File = Annotated[
    Path | None, typer.Argument(help="TOML file: constants left out are measured on its run.")
]
Beta = Annotated[float | None, typer.Option(help="Smoothness of every worker's loss.")]
Rho = Annotated[float | None, typer.Option(help="Lipschitz constant of the loss.")]
Delta = Annotated[float | None, typer.Option(help="Divergence of the workers' gradients.")]
P = Annotated[float | None, typer.Option("--p", help="Largest ratio of momentum to gradient.")]
Omega = Annotated[float | None, typer.Option(help="1 / largest squared distance to w*.")]
Eta = Annotated[float | None, typer.Option(help="Learning rate; the file's, else 0.01.")]
Gamma = Annotated[float | None, typer.Option(help="Momentum; the file's, else 0.9.")]
Tau = Annotated[int | None, typer.Option(help="Local iterations; the file's, else 10.")]
Iterations = Annotated[
    int | None, typer.Option(help="T, iterations in all; the file's, else 1000.")
]


@theory_app.command("check")
def theory_check(
    experiment: Annotated[Path, typer.Argument(help="TOML file: fednag, linear or logistic.")],
    set_: Set = [],  # noqa: B006
    out: Folder = Path("runs"),
    json: Json = False,
) -> None:
    """Run FedNAG beside its virtual centralised updates and test every theorem on the way.

    All samples of a worker make its batch, in float64. Exit code 1 if anything fails.

    Example: fednag theory check examples/theory.toml
    """
    from rich.table import Table

    from fednag.core.files import write_atomically
    from fednag.show.charts import Bounds as Panel
    from fednag.show.charts import bounds_chart, save
    from fednag.show.terminal import notes, paths
    from fednag.theory.check import gap_rows, interval_rows, loss_rows, verdicts
    from fednag.theory.trajectory import centralised_gap

    seen = observe(experiment, set_, out)
    central = centralised_gap(seen.landscape, seen.algorithm, min(seen.trajectory.iterations, 50))
    found = verdicts(seen.trajectory, seen.constants, central)
    table = Table("claim", "verdict", "measured", "bound", "bound / measured", "tests", "note")
    for verdict in found:
        style = {"FAILS": "red", "vacuous": "yellow"}.get(verdict.verdict)
        slack = None if verdict.verdict == "vacuous" else verdict.slack
        figures = [_figure(number) for number in (verdict.measured, verdict.bound, slack)]
        tests = str(verdict.tests) if verdict.tests else "-"
        table.add_row(verdict.claim, verdict.verdict, *figures, tests, verdict.note, style=style)
    folder = output(out / "theory" / seen.name)
    pair = (seen.trajectory, seen.constants)
    panels = [
        Panel("Theorem 1", "iteration t", "||w(t) - w_[k](t)||", gap_rows(*pair), False, True),
        Panel(
            "worst of all intervals", "x", "||w(t) - w_[k](t)||", interval_rows(*pair), dots=True
        ),
        Panel("Theorem 3", "T", "F(w^f) - F(w*)", loss_rows(*pair)),
    ]
    written = save(bounds_chart(panels), folder / "check")
    report = {
        "constants": asdict(seen.constants),
        "minimum": {"loss": seen.minimum.loss, "how": seen.minimum.how},
        "verdicts": [asdict(verdict) for verdict in found],
        "experiment": seen.experiment,
    }
    path = folder / "check.json"
    write_atomically(path, json_text(report) + "\n")
    if json:
        files = [str(file) for file in (*written, path)]
        print_json({**report, "notes": seen.notes, "files": files})
    else:
        terminal = console()
        terminal.print(_constants_table(seen))
        terminal.print(table)
        notes(terminal, seen.notes)
        paths(terminal, [*written, path])
    if any(verdict.verdict == "FAILS" for verdict in found):
        raise typer.Exit(1)


@theory_app.command("compare")
def theory_compare(
    experiment: File = None,
    beta: Beta = None,
    rho: Rho = None,
    delta: Delta = None,
    p: P = None,
    omega: Omega = None,
    eta: Eta = None,
    gamma: Gamma = None,
    tau: Tau = None,
    iterations: Iterations = None,
    set_: Set = [],  # noqa: B006
    out: Folder = Path("runs"),
    json: Json = False,
) -> None:
    """FedNAG's bound beside FedAvg's over T, tau, gamma and eta; Theorem 4's claim and the numbers.

    Example: fednag theory compare --beta 1 --rho 1 --delta 0.1 --p 0.5 --omega 1 --tau 5
    """
    from rich.table import Table

    from fednag.show.charts import Bounds as Panel
    from fednag.show.charts import bounds_chart, save
    from fednag.show.terminal import notes, paths
    from fednag.theory import theorem4_conditions
    from fednag.theory.bounds import KINDS
    from fednag.theory.curves import axes, theorem4_rows, thresholds

    given = {"beta": beta, "rho": rho, "delta": delta, "p": p, "omega": omega}
    given |= {"eta": eta, "gamma": gamma, "tau": tau, "iterations": iterations}
    case = case_of(experiment, given, set_, out)
    setting, T, terminal = case.setting, case.iterations, console()
    found, rows = axes(setting, T), theorem4_rows(setting, T)
    unmet = [c for c in theorem4_conditions(setting) if not c.met]
    claim = "f1(T) < f2(T) for every eta small enough"
    if unmet:
        claim = f"nothing: {unmet[0].name} does not hold ({unmet[0].detail})"
    panels = [
        Panel(f"over {a.symbol}", a.symbol, "bound", a.rows(), a.symbol in ("T", "eta"))
        for a in found
    ]
    folder = output(out / "theory" / case.name)
    written = save(bounds_chart(panels, columns=2), folder / "compare")
    if json:
        print_json(
            {
                "setting": {**asdict(setting), "T": T},
                "fednag_below_fedavg": {a.symbol: {k: a.where(k) for k in KINDS} for a in found},
                "theorem4": {"claim": claim, "rows": rows},
                "eta_bar": thresholds(setting, T),
                "notes": case.notes,
                "files": [str(path) for path in written],
            }
        )
        return
    terminal.print(f"{_words(setting)}, T = {T}", soft_wrap=True, highlight=False)
    table = Table("along", "FedNAG's bound is below FedAvg's, alpha paper", "alpha tight")
    for axis in found:
        table.add_row(axis.symbol, *(axis.where(kind) for kind in KINDS))
    terminal.print(table)
    smaller = Table(title="as eta falls: Theorem 4 claims f1 < f2", title_justify="left")
    for heading in rows[0]:
        smaller.add_column(heading, justify="right")
    for row in rows:
        smaller.add_row(*(_figure(number, "vacuous") for number in row.values()))
    terminal.print(smaller)
    terminal.print(f"Theorem 4 claims: {claim}", soft_wrap=True, highlight=False)
    for kind, threshold in thresholds(setting, T).items():
        text = f"f1(T) < f2(T) for every eta below eta-bar = {_figure(threshold)}"
        if threshold is None:
            text = "no eta-bar: f1(T) < f2(T) does not hold for small eta"
        terminal.print(f"numerically, alpha {kind}: {text}", soft_wrap=True, highlight=False)
    held = "p, omega and the other constants are held along every axis; a run would have its own"
    notes(terminal, [*case.notes, held])
    paths(terminal, written)


@theory_app.command("plan")
def theory_plan(
    experiment: File = None,
    gap: Annotated[float | None, typer.Option(help="F(w^f) - F(w*) to be reached.")] = None,
    taus: Annotated[str, typer.Option(help="Values of tau to list, e.g. 1,2,5.")] = "",
    beta: Beta = None,
    rho: Rho = None,
    delta: Delta = None,
    p: P = None,
    omega: Omega = None,
    eta: Eta = None,
    gamma: Gamma = None,
    tau: Tau = None,
    set_: Set = [],  # noqa: B006
    out: Folder = Path("runs"),
    json: Json = False,
) -> None:
    """The largest safe eta, the floor of the bound for each tau, and T for a gap.

    Example: fednag theory plan --beta 1 --rho 1 --delta 0.1 --p 0.5 --omega 1 --gap 0.2
    """
    from rich.table import Table

    from fednag.show.terminal import notes
    from fednag.theory import largest_eta
    from fednag.theory.bounds import KINDS
    from fednag.theory.curves import plan_rows

    given: dict[str, Any] = {"beta": beta, "rho": rho, "delta": delta, "p": p, "omega": omega}
    given |= {"eta": eta, "gamma": gamma, "tau": tau, "iterations": None}
    if gap is not None and not gap > 0:
        raise FednagError(
            "--gap", "a gap to reach is above 0", "give such a number", given=f"{gap:g}"
        )
    listed = _taus(taus)
    case = case_of(experiment, given, set_, out)
    setting, terminal = case.setting, console()
    most = largest_eta(setting.beta, setting.gamma)
    rows = plan_rows(setting, listed or sorted({1, 2, 5, 10, 20, 40, setting.tau}), gap)
    if json:
        print_json(
            {
                "setting": asdict(setting),
                "largest_eta": most,
                "rows": [
                    {key: getattr(cell, "value", cell) for key, cell in row.items()} for row in rows
                ],
                "notes": case.notes,
            }
        )
        return
    terminal.print(_words(setting), soft_wrap=True, highlight=False)
    verdict = "safe" if setting.eta <= most else "not safe"
    terminal.print(
        f"largest safe eta: {most:.6g} (beta eta (gamma + 1) = 1); eta = {setting.eta:g} is "
        f"{verdict}",
        soft_wrap=True,
        highlight=False,
    )
    table = Table(title="as T grows, Theorem 3's bound falls to its floor", title_justify="left")
    reach = [] if gap is None else [f"T to {gap:g}, alpha {kind}" for kind in KINDS]
    for heading in ("tau", "h(tau)", *(f"floor, alpha {kind}" for kind in KINDS), *reach):
        table.add_column(heading, justify="right")
    reasons = []
    for row in rows:
        bounds: list[Bound] = [row[f"floor {kind}"] for kind in KINDS]
        if gap is not None:
            bounds += [row[f"T {kind}"] for kind in KINDS]
        cells = []
        for number, bound in enumerate(bounds):
            # A gap below the floor is never reached; where there is no floor, nothing is known.
            none = "vacuous" if bounds[number % 2].vacuous else "never"
            cells.append(_figure(bound.value, none, whole=number > 1))
        table.add_row(str(row["tau"]), _figure(row["h"]), *cells)
        reasons += [
            f"alpha {kind}: {row[f'floor {kind}'].reason}"
            for kind in KINDS
            if row[f"floor {kind}"].vacuous
        ]
    terminal.print(table)
    notes(terminal, [*reasons, *case.notes])


def _taus(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [0]
    if any(tau < 1 for tau in found):
        raise FednagError("--taus", remedy="write whole numbers from 1 up, e.g. 1,2,5", given=text)
    return found


def _words(setting: Setting) -> str:
    return ", ".join(f"{symbol} = {number:.6g}" for symbol, number in asdict(setting).items())


def _constants_table(seen: Observed) -> Any:
    from rich.table import Table

    from fednag.theory.bounds import KINDS

    constants, run = seen.constants, seen.trajectory
    setting = constants.setting(run.eta, run.gamma, run.tau)
    table = Table("constant", "value", "how it was obtained")
    for symbol in ("beta", "rho", "delta", "p", "omega"):
        measured = getattr(constants, symbol)
        table.add_row(symbol, _figure(measured.value), measured.how)
    for kind in KINDS:
        table.add_row(f"alpha {kind}", _figure(setting.alpha(kind)), "from eta, gamma, beta and p")
    table.add_row("alpha measured", _figure(constants.descent.value), constants.descent.how)
    table.add_row("F(w*)", _figure(seen.minimum.loss), seen.minimum.how)
    return table


def _figure(number: float | None, none: str = "-", whole: bool = False) -> str:
    if number is None:
        return none
    return f"{number:,.0f}" if whole else f"{number:.4g}"
