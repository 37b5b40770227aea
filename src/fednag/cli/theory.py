"""``fednag theory``: the paper's bounds against real runs, against each other, and for planning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import (
    answer,
    blaming,
    console,
    output,
    set_fields,
    table,
    usable,
    write_report,
)
from fednag.cli.options import Json, Set, grouped, written_to
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.algorithms import FedNAG
    from fednag.theory import Bound, Setting
    from fednag.theory.constants import Constants, Minimum
    from fednag.theory.landscape import Landscape
    from fednag.theory.trajectory import Trajectory

theory_app = typer.Typer(
    no_args_is_help=True,
    help="The paper's theorems: check them on a run, compare bounds, plan eta, tau and T.",
)

Folder = Annotated[Path, written_to("Charts are written to theory/ in this folder.")]
File = Annotated[
    Path | None, typer.Argument(help="TOML file: constants left out are measured on its run.")
]
CONSTANTS = ("beta", "rho", "delta", "p", "omega")


@dataclass(frozen=True)
class Numbers:
    """A setting's numbers, those that are given."""

    beta: Annotated[float | None, typer.Option(help="Smoothness of every worker's loss.")] = None
    rho: Annotated[float | None, typer.Option(help="Lipschitz constant of the loss.")] = None
    delta: Annotated[float | None, typer.Option(help="Divergence of the workers' gradients.")] = (
        None
    )
    p: Annotated[
        float | None, typer.Option("--p", help="Largest ratio of momentum to gradient.")
    ] = None
    omega: Annotated[float | None, typer.Option(help="1 / largest squared distance to w*.")] = None
    eta: Annotated[float | None, typer.Option(help="Learning rate; the file's, else 0.01.")] = None
    gamma: Annotated[float | None, typer.Option(help="Momentum; the file's, else 0.9.")] = None
    tau: Annotated[int | None, typer.Option(help="Local iterations; the file's, else 10.")] = None


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
    from fednag.show.charts import Bounds as Panel
    from fednag.show.charts import bounds_chart, save
    from fednag.theory.check import gap_rows, interval_rows, loss_rows, verdicts
    from fednag.theory.trajectory import centralised_gap

    seen = observe(experiment, set_, out)
    central = centralised_gap(seen.landscape, seen.algorithm, min(seen.trajectory.iterations, 50))
    found = verdicts(seen.trajectory, seen.constants, central)
    shown = table(["claim", "verdict", "measured", "bound", "bound / measured", "tests", "note"])
    for verdict in found:
        style = {"FAILS": "red", "vacuous": "yellow"}.get(verdict.verdict)
        slack = None if verdict.verdict == "vacuous" else verdict.slack
        figures = [_figure(number) for number in (verdict.measured, verdict.bound, slack)]
        tests = str(verdict.tests) if verdict.tests else "-"
        shown.add_row(verdict.claim, verdict.verdict, *figures, tests, verdict.note, style=style)
    folder = output(out / "theory" / seen.name)
    pair = (seen.trajectory, seen.constants)
    gap = "||w(t) - w_[k](t)||"
    panels = [
        Panel("Theorem 1", "iteration t", gap, gap_rows(*pair), False, True),
        Panel("worst of all intervals", "x", gap, interval_rows(*pair), dots=True),
        Panel("Theorem 3", "T", "F(w^f) - F(w*)", loss_rows(*pair)),
    ]
    written = save(bounds_chart(panels), folder / "check")
    report = {
        "constants": asdict(seen.constants),
        "minimum": {"loss": seen.minimum.loss, "how": seen.minimum.how},
        "verdicts": [asdict(verdict) for verdict in found],
        "experiment": seen.experiment,
    }
    written.append(write_report(folder / "check.json", report))
    answer(json, report, _constants_table(seen), shown, notes=seen.notes, files=written)
    if any(verdict.verdict == "FAILS" for verdict in found):
        raise typer.Exit(1)


@theory_app.command("compare")
@grouped
def theory_compare(
    *,
    experiment: File = None,
    numbers: Numbers,
    iterations: Annotated[
        int | None, typer.Option(help="T, iterations in all; the file's, else 1000.")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Folder = Path("runs"),
    json: Json = False,
) -> None:
    """FedNAG's bound beside FedAvg's over T, tau, gamma and eta; Theorem 4's claim and the numbers.

    Example: fednag theory compare --beta 1 --rho 1 --delta 0.1 --p 0.5 --omega 1 --tau 5
    """
    from fednag.show.charts import Bounds as Panel
    from fednag.show.charts import bounds_chart, save
    from fednag.theory import theorem4_conditions
    from fednag.theory.bounds import KINDS
    from fednag.theory.curves import axes, theorem4_rows, thresholds

    case = case_of(experiment, numbers, iterations, set_, out)
    setting, T = case.setting, case.iterations
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
    below = {axis.symbol: {kind: axis.where(kind) for kind in KINDS} for axis in found}
    along = table(["along", "FedNAG's bound is below FedAvg's, alpha paper", "alpha tight"])
    for symbol, where in below.items():
        along.add_row(symbol, *where.values())
    smaller = table([], list(rows[0]), title="as eta falls: Theorem 4 claims f1 < f2")
    for row in rows:
        smaller.add_row(*(_figure(number, "vacuous") for number in row.values()))
    highest, said = thresholds(setting, T), []
    for kind, threshold in highest.items():
        text = f"f1(T) < f2(T) for every eta below eta-bar = {_figure(threshold)}"
        if threshold is None:
            text = "no eta-bar: f1(T) < f2(T) does not hold for small eta"
        said.append(f"numerically, alpha {kind}: {text}")
    held = "p, omega and the other constants are held along every axis; a run would have its own"
    answer(
        json,
        {
            "setting": {**asdict(setting), "T": T},
            "fednag_below_fedavg": below,
            "theorem4": {"claim": claim, "rows": rows},
            "eta_bar": highest,
        },
        f"{_words(setting)}, T = {T}",
        along,
        smaller,
        f"Theorem 4 claims: {claim}",
        *said,
        notes=[*case.notes, held],
        files=written,
    )


@theory_app.command("plan")
@grouped
def theory_plan(
    *,
    experiment: File = None,
    gap: Annotated[float | None, typer.Option(help="F(w^f) - F(w*) to be reached.")] = None,
    taus: Annotated[str, typer.Option(help="Values of tau to list, e.g. 1,2,5.")] = "",
    numbers: Numbers,
    set_: Set = [],  # noqa: B006
    out: Folder = Path("runs"),
    json: Json = False,
) -> None:
    """The largest safe eta, the floor of the bound for each tau, and T for a gap.

    Example: fednag theory plan --beta 1 --rho 1 --delta 0.1 --p 0.5 --omega 1 --gap 0.2
    """
    from fednag.theory import largest_eta
    from fednag.theory.bounds import KINDS
    from fednag.theory.curves import plan_rows

    if gap is not None and not gap > 0:
        raise FednagError(
            "--gap", "a gap to reach is above 0", "give such a number", given=f"{gap:g}"
        )
    listed = _taus(taus)
    case = case_of(experiment, numbers, None, set_, out)
    setting = case.setting
    most = largest_eta(setting.beta, setting.gamma)
    rows = plan_rows(setting, listed or sorted({1, 2, 5, 10, 20, 40, setting.tau}), gap)
    safe = "safe" if setting.eta <= most else "not safe"
    highest = (
        f"largest safe eta: {most:.6g} (beta eta (gamma + 1) = 1); eta = {setting.eta:g} is {safe}"
    )
    title = "as T grows, Theorem 3's bound falls to its floor"
    reach = [] if gap is None else [f"T to {gap:g}, alpha {kind}" for kind in KINDS]
    floors = [f"floor, alpha {kind}" for kind in KINDS]
    shown = table([], ["tau", "h(tau)", *floors, *reach], title=title)
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
        shown.add_row(str(row["tau"]), _figure(row["h"]), *cells)
        reasons += [
            f"alpha {kind}: {row[f'floor {kind}'].reason}"
            for kind in KINDS
            if row[f"floor {kind}"].vacuous
        ]
    plain = [{key: getattr(cell, "value", cell) for key, cell in row.items()} for row in rows]
    document = {"setting": asdict(setting), "largest_eta": most, "rows": plain}
    answer(json, document, _words(setting), highest, shown, notes=[*reasons, *case.notes])


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


def _constants_table(seen: Observed) -> Table:
    from fednag.theory.bounds import KINDS

    constants, run = seen.constants, seen.trajectory
    setting = constants.setting(run.eta, run.gamma, run.tau)
    made = table(["constant", "value", "how it was obtained"])
    for symbol in CONSTANTS:
        measured = getattr(constants, symbol)
        made.add_row(symbol, _figure(measured.value), measured.how)
    for kind in KINDS:
        made.add_row(f"alpha {kind}", _figure(setting.alpha(kind)), "from eta, gamma, beta and p")
    made.add_row("alpha measured", _figure(constants.descent.value), constants.descent.how)
    made.add_row("F(w*)", _figure(seen.minimum.loss), seen.minimum.how)
    return made


def _figure(number: float | None, none: str = "-", whole: bool = False) -> str:
    if number is None:
        return none
    return f"{number:,.0f}" if whole else f"{number:.4g}"


@dataclass(frozen=True)
class Observed:
    """A run and what was measured on it."""

    name: str
    experiment: dict[str, Any]  # as it was run, for whoever looks for the run these numbers are of
    landscape: Landscape
    algorithm: FedNAG
    minimum: Minimum
    trajectory: Trajectory
    constants: Constants
    notes: list[str]


def observe(path: Path, changes: list[str], out: Path) -> Observed:
    fields = set_fields(changes)
    with blaming(dict.fromkeys(fields, "--set")):
        return _observe(path, fields, out)


def _observe(path: Path, fields: dict[str, Any], out: Path) -> Observed:
    from fednag.algorithms import FedNAG
    from fednag.algorithms.local import OPTIONS
    from fednag.config import override, parse, read
    from fednag.runs.build import Builder
    from fednag.theory.constants import measure, minimise
    from fednag.theory.landscape import OnData
    from fednag.theory.trajectory import watch

    raw = override(read(path), fields)
    raw.pop("algorithms", None)
    experiment = parse(raw, str(path))
    training, model = experiment.training, experiment.model.name
    if model not in ("linear", "logistic"):
        raise FednagError(
            "model.name",
            f"{model!r} is not convex, and the theory is about convex losses",
            "use linear or logistic",
            source=path,
        )
    if experiment.tier:
        raise FednagError("tier", "in the theory there are no edges", "leave it out", source=path)
    left_out = "without" if training.without else "participants"
    if training.without or training.participants or training.fraction not in (None, 1.0):
        raise FednagError(
            f"training.{left_out}",
            "in the theory every worker takes part",
            "leave out participants, fraction and without",
            source=path,
        )
    if training.iterations < training.tau:
        raise FednagError("training.iterations", "less than one tau", "raise it", source=path)
    usable(out)
    engine = {"device": "cpu", "dtype": "float64", "chunk": 1, "threads": 1}
    experiment = experiment.model_copy(
        update={"engine": experiment.engine.model_copy(update=engine)}
    )
    resolved, plan, notes = Builder().plan(experiment)
    if type(plan.algorithm) is not FedNAG:
        raise FednagError("algorithm.name", "the theory is about 'fednag'", "use it", source=path)
    for option in OPTIONS:
        if getattr(plan.algorithm, option):
            raise FednagError(
                f"algorithm.{option}",
                "the theory is about the data's own gradients",
                "set it to 0",
                source=path,
            )
    if training.batch:
        notes.append(f"training.batch {training.batch} is not used: all samples make the batch")
    rounds = training.iterations // training.tau
    if rounds * training.tau != training.iterations:
        notes.append(f"T is {rounds * training.tau}: whole rounds of tau {training.tau}")
    landscape = OnData(plan.problem, plan.owned)
    terminal = console(stderr=True)
    with terminal.status("looking for w*"):
        minimum = minimise(landscape)
    if not minimum.found:
        notes.append(
            f"w* was not reached ({minimum.how}); the bounds then hold against the point where the "
            "search ended, and a model that separates its classes has no minimum at all"
        )
    with terminal.status("running FedNAG beside its virtual updates"):
        trajectory = watch(landscape, plan.algorithm, training.tau, rounds, minimum.w)
    with terminal.status("measuring constants"):
        constants = measure(landscape, trajectory)
    return Observed(
        experiment.name,
        resolved.model_dump(mode="json", exclude_none=True),
        landscape,
        plan.algorithm,
        minimum,
        trajectory,
        constants,
        notes,
    )


@dataclass(frozen=True)
class Case:
    """The numbers a command was given, or measured."""

    name: str
    setting: Setting
    iterations: int
    notes: list[str]


def case_of(
    path: Path | None, numbers: Numbers, iterations: int | None, changes: list[str], out: Path
) -> Case:
    from fednag.theory import Setting

    given: dict[str, Any] = {**asdict(numbers), "iterations": iterations}
    known = {"eta": 0.01, "gamma": 0.9, "tau": 10, "iterations": 1000}
    name, notes = "given", []
    if path is not None:
        seen = observe(path, changes, out)
        run, name = seen.trajectory, seen.name
        known = {"eta": run.eta, "gamma": run.gamma, "tau": run.tau, "iterations": run.iterations}
        for symbol in CONSTANTS:
            measured = getattr(seen.constants, symbol)
            known[symbol] = measured.value
            if given[symbol] is None:
                notes.append(f"{symbol} {measured.value:.4g}: {measured.how}")
        notes += seen.notes
    known |= {symbol: number for symbol, number in given.items() if number is not None}
    for symbol in CONSTANTS:
        if symbol not in known:
            raise FednagError(
                f"--{symbol}", "is missing", "give it, or an experiment file to measure it on"
            )
    T = int(known.pop("iterations"))
    if T < 1:
        raise FednagError("--iterations", remedy="give a whole number from 1 up", given=T)
    return Case(name, Setting(**{**known, "tau": int(known["tau"])}), T, notes)  # type: ignore[arg-type]
