"""The command line: parses and prints, nothing else. Heavy imports wait until a command runs."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fednag.cli import operating as operating  # commands of flower_app
from fednag.cli.common import answer, blaming, given_seeds, listed, set_fields, table
from fednag.cli.data import data_app
from fednag.cli.deciding import decide
from fednag.cli.flower import flower_app
from fednag.cli.frontier import frontier
from fednag.cli.ledger import ledger_app
from fednag.cli.live import watch
from fednag.cli.options import Algorithms, Json, Making, Placing, Runs, Seeds, Telling, grouped
from fednag.cli.paper import paper_app
from fednag.cli.privacy import privacy_app
from fednag.cli.reporting import export_app, show
from fednag.cli.reporting import report as report_page
from fednag.cli.running import report, run_and_report
from fednag.cli.theory import theory_app
from fednag.cli.time import time_app
from fednag.cli.tuning import tune
from fednag.cli.whatif import what_if
from fednag.errors import FednagError, printable

if TYPE_CHECKING:
    from fednag.config import Experiment
    from fednag.core.algorithm import Algorithm

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Momentum-based federated learning: train FedNAG beside its rivals and compare them.\n\n"
    "Start with `fednag compare`: seven methods on embedded data, in under a minute.",
)
TRAIN, SEE, KNOW, THINK = "Train", "Look at results", "Look up", "Plan and check"
app.add_typer(flower_app, name="flower", rich_help_panel=TRAIN)
app.add_typer(data_app, name="data", rich_help_panel=KNOW)
app.add_typer(time_app, name="time", rich_help_panel=THINK)
app.add_typer(privacy_app, name="privacy", rich_help_panel=THINK)
app.add_typer(theory_app, name="theory", rich_help_panel=THINK)
app.add_typer(paper_app, name="paper", rich_help_panel=THINK)
app.add_typer(ledger_app, name="ledger", rich_help_panel=SEE)

DEMO: dict[str, Any] = {
    "name": "digits",
    "data": {"name": "digits"},
    "model": {"name": "cnn"},
    "training": {"tau": 10, "iterations": 150, "batch": 32},
    "algorithms": ["fednag", "fedavg", "fedmom", "slowmo", "mime", "csgd", "cnag"],
}


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"fednag {installed('fednag')}")
        raise typer.Exit


@app.command(rich_help_panel=TRAIN)
@grouped
def compare(
    *,
    experiment: Annotated[
        Path | None, typer.Argument(help="TOML file; without one: the digits demonstration.")
    ] = None,
    algorithms: Algorithms = "",
    seeds: Seeds = "",
    making: Making,
    placing: Placing,
    telling: Telling,
) -> None:
    """Train several methods on the same problem: ranked table and chart.

    Example: fednag compare --algorithms fednag,fedavg,fedmom --set training.tau=40 --seeds 0,1,2
    """
    from fednag.config import methods, override, parse, read

    source = str(experiment) if experiment else "compare"
    changes = set_fields(making.set_)
    raw = override(read(experiment) if experiment else DEMO, changes)
    chosen = methods(raw, listed(algorithms), source)
    if not chosen:
        raise FednagError(
            "", "no methods to compare", "give --algorithms fednag,fedavg", source=source
        )
    experiments: list[tuple[str, Experiment, Algorithm | None]] = []
    with blaming(dict.fromkeys(changes, "--set")):
        for label, table in chosen:
            for seed in given_seeds(seeds, table.get("seed", 0)):
                experiments.append((label, parse({**table, "seed": seed}, source), None))
    used = {key for _, table in chosen for key in table["algorithm"]}
    remarks = [
        f"algorithm.{key} is not used: none of these methods has it"
        for key in raw.get("algorithm", {})
        if key not in used
    ]
    run_and_report(experiments, making, telling, "comparison", remarks, placing)


@app.command(rich_help_panel=TRAIN)
@grouped
def run(
    *,
    experiment: Annotated[Path, typer.Argument(help="TOML file describing the run.")],
    making: Making,
    telling: Telling,
) -> None:
    """Train one method as an experiment file says.

    Example: fednag run examples/digits.toml --set algorithm.momentum=0.5
    """
    from fednag.config import override, parse, read

    changes = set_fields(making.set_)
    raw = override(read(experiment), changes)
    several = raw.pop("algorithms", None)
    with blaming(dict.fromkeys(changes, "--set")):
        parsed = parse(raw, str(experiment))
    remark = f"ran {parsed.label} alone; for the file's `algorithms` use `fednag compare`"
    run_and_report([(parsed.label, parsed, None)], making, telling, None, [remark] * bool(several))


@app.command(rich_help_panel=TRAIN)
@grouped
def sweep(
    *,
    experiment: Annotated[Path, typer.Argument(help="TOML file; the swept fields are replaced.")],
    grid: Annotated[
        list[str],
        typer.Option("--grid", help="section.key=v1,v2,… (repeatable: all combinations)."),
    ],
    seeds: Seeds = "",
    making: Making,
    placing: Placing,
    telling: Telling,
) -> None:
    """Run every combination of some fields' values, for every seed: mean and spread.

    Example: fednag sweep examples/digits.toml --grid training.tau=5,10,20 --seeds 0,1,2
    """
    from fednag import api
    from fednag.config import assignments, override, read, values

    raw = read(experiment)
    raw.pop("algorithms", None)
    changes = set_fields(making.set_)
    raw = override(raw, changes)
    axes = {field: values(text) for field, text in assignments(grid, "--grid").items()}
    for field, wanted in axes.items():
        if not wanted or any(wanted.count(entry) > 1 for entry in wanted):
            raise FednagError(
                "--grid", remedy="write different values between commas, e.g. 5,10", given=field
            )
        if field in changes:
            raise FednagError("--set", f"--grid {field} replaces it", "leave one out", given=field)
    options = dict.fromkeys(changes, "--set") | dict.fromkeys(axes, "--grid")
    with blaming(options):
        experiments = api.grid(raw, axes, given_seeds(seeds, raw.get("seed", 0)), str(experiment))
    run_and_report(experiments, making, telling, "sweep", placing=placing)


@app.command(name="resume", rich_help_panel=TRAIN)
@grouped
def resume_runs(*, runs: Runs, telling: Telling) -> None:
    """Continue interrupted runs, to exactly the numbers they would have had.

    Example: fednag resume runs/digits
    """
    from fednag.api import resume_all
    from fednag.runs.folder import find_runs

    folders = find_runs(runs)
    failed: list[FednagError] = []
    report(
        [folder.path.name for folder in folders],
        lambda started, watch: resume_all(folders, started, watch, failed),
        telling,
        chart=None if len(folders) == 1 else "comparison",
        again="",
        failed=failed,
    )


app.command(rich_help_panel=TRAIN)(frontier)
app.command(rich_help_panel=TRAIN)(tune)
app.command(rich_help_panel=TRAIN)(decide)
app.command(name="what-if", rich_help_panel=TRAIN)(what_if)
app.command(rich_help_panel=SEE)(watch)
app.command(rich_help_panel=SEE)(show)
app.command(name="report", rich_help_panel=SEE)(report_page)
app.add_typer(export_app, name="export", rich_help_panel=SEE)


@app.command(rich_help_panel=KNOW)
def algorithms(json: Json = False) -> None:
    """List the methods, what they send, and their numbers.

    Example: fednag algorithms
    """
    from fednag.algorithms import ALGORITHMS

    rows: list[dict[str, Any]] = []
    shown = table(["name", "what it does", "down", "up", "numbers (defaults)"])
    for name, cls in ALGORITHMS.items():
        down, up = ((), ()) if cls.pooled else (cls.down, cls.up)
        stages, meaning, numbers = len(cls().stages), _meaning(cls), _numbers(cls)[0]
        sent = {"down": list(down), "up": list(up), "stages": stages}
        rows.append({"name": name, "meaning": meaning, **sent, "numbers": numbers})
        probe = " + full gradient" if stages > 1 else ""
        ways = [(" ".join(way) or "-") + probe for way in (down, up)]
        given = ", ".join(f"{key}={default}" for key, default in numbers.items())
        shown.add_row(name, meaning, *ways, given)
    answer(json, rows, shown)


@app.command(rich_help_panel=KNOW)
def parts(json: Json = False) -> None:
    """List what else a round is made of: transforms, aggregators, controllers, schedules, attacks.

    Each goes into a section of an experiment file, as `kind`, with its numbers beside it.

    Example: fednag parts
    """
    from rich.text import Text

    from fednag.config.parts import LISTED, REGISTRIES

    groups: dict[int, tuple[dict[str, Any], list[str]]] = {}  # sections that have the same parts
    for section, (registry, _) in REGISTRIES.items():
        groups.setdefault(id(registry), (registry, []))[1].append(section)
    rows: list[dict[str, Any]] = []
    shown = table(["goes into", "kind", "what it does", "numbers (defaults)"])
    for registry, sections in groups.values():
        shown.add_section()
        where = "\n".join(f"[[{name}]]" if name in LISTED else f"[{name}]" for name in sections)
        for name, cls in registry.items():
            numbers, required = _numbers(cls)
            meaning = _meaning(cls)
            about = {"meaning": meaning, "numbers": numbers, "required": required}
            rows.append({"sections": sections, "name": name, **about})
            given = [
                f"{key} (required)" if key in required else f"{key}={default}"
                for key, default in numbers.items()
            ]
            # As text: rich takes what is in brackets for a style.
            shown.add_row(Text(where), name, Text(meaning), Text(", ".join(given)))
            where = ""
    answer(json, rows, shown)


def _meaning(cls: type[Any]) -> str:
    """The first line of a docstring."""
    first = (cls.__doc__ or "").strip().splitlines()[0]
    return first.replace("``", "").rstrip(":.") + "."


def _numbers(cls: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """A part's numbers with their defaults; and the names of those without one, here None."""
    from dataclasses import MISSING, fields

    found: dict[str, Any] = {}
    required = []
    for field in sorted(fields(cls), key=lambda field: bool(field.kw_only)):  # options last
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if default is MISSING:
            default = None
            required.append(field.name)
        found[field.name] = default
    return found, required


def main() -> None:
    """Run the command line; what users can put right is one sentence on stderr, exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a path that is no text, or a terminal that knows no ±
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if any("\0" in word for word in sys.argv):
        _fail("an argument holds a NUL character, which no name or number has; leave it out")
    try:
        code = app(prog_name="fednag", standalone_mode=False)
    except FednagError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        # torch has no exception of its own for a processor's memory.
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        _fail("this run does not fit in memory; use a smaller model, batch or engine.chunk")
    except OSError as error:
        # Files that are the work's own say so themselves: what is left is what is printed.
        _fail(f"its output cannot be written ({error.strerror or error}); what it made is kept")
    except Exception as error:
        # Wrong options. Recognised by shape: typer brings click along, or its own copy of it.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fednag"
        # Without arguments the help has been printed, and there is nothing to add.
        if sentence := " ".join(error.format_message().split()).rstrip("."):
            if sentence.count("Did you mean") > 1:  # typer asks, and so does newer click
                sentence = re.sub(r"(Did you mean [^?]*\?).*", r"\1", sentence)
            _fail(f"{sentence} (see `{command} --help`)")
        sys.exit(2)
    if code == 130:  # what typer makes of Ctrl-C
        print("fednag: interrupted; what was saved is kept", file=sys.stderr)
    sys.exit(code or 0)


def _fail(sentence: str) -> NoReturn:
    print(f"fednag: {printable(sentence)}", file=sys.stderr)
    sys.exit(2)
