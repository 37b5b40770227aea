"""Options and arguments that mean the same in every command, written once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fednag.cli import completing
from fednag.errors import FednagError


def written_to(about: str) -> Any:
    """``--out``: where a command writes, which is a folder of runs in most, but not in all."""
    return typer.Option("--out", "-o", help=about)


Out = Annotated[Path, written_to("Folder the runs are written to.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Set = Annotated[
    list[str], typer.Option("--set", help="Change a field: section.key=value (repeatable).")
]
Seeds = Annotated[
    str, typer.Option("--seeds", help="Seeds, e.g. 0,1,2; the file's own when left out.")
]
Algorithms = Annotated[
    str,
    typer.Option(
        "--algorithms",
        help="Methods, e.g. fednag,fedavg; default: the file's `algorithms`.",
        autocompletion=completing.methods,
    ),
]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")]
TARGET = typer.Option("--target", help="Accuracy to reach, e.g. 0.9, or another measure: f1=0.9.")
Target = Annotated[str | None, TARGET]
Loss = Annotated[float | None, typer.Option("--loss", help="Loss to reach, instead of --target.")]
Fleet = Annotated[
    str,
    typer.Option(
        "--fleet",
        help="Devices: a shipped fleet's name, a fleet file, or its folder.",
        autocompletion=completing.fleets,
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File with the passphrase of private keys; else $FEDNAG_PASSPHRASE_FILE, or none.",
    ),
]
Replays = Annotated[int, typer.Option("--replays", min=1, max=10_000, help="Replays of each run.")]


@dataclass(frozen=True)
class Making:
    """How the runs of an experiment are made."""

    set_: Set = field(default_factory=list)
    out: Out = Path("runs")
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with runs that are in --out; skip finished ones."),
    ] = False


On = Annotated[
    str | None,
    typer.Option(
        "--on", help="Machines that do the runs: ray or ray=ADDRESS; for sweep, compare: slurm."
    ),
]


@dataclass(frozen=True)
class Placing:
    """Where several runs are done."""

    on: On = None
    script: Annotated[
        Path | None, typer.Option("--script", help="With --on slurm: where its script is written.")
    ] = None


@dataclass(frozen=True)
class Telling:
    """What is printed of runs: while they are made, and of what came of them."""

    quiet: Quiet = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every evaluation.")
    ] = False
    json: Json = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise FednagError("--quiet, --verbose", remedy="give one of them, not both")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command of options in groups: a parameter that is a dataclass stands for its fields.

    To typer every field is an option; the command is called with the dataclasses made of them.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            options.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for own in fields(groups[name]):
            default = own.default if own.default_factory is MISSING else own.default_factory()
            option = Parameter(own.name, Parameter.KEYWORD_ONLY, default=default)
            options.append(option.replace(annotation=kinds[own.name]))

    @wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{own.name: given.pop(own.name) for own in fields(kind)})
        command(**given)

    called.__signature__ = Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called
