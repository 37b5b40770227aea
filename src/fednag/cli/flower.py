"""``fednag flower``: silos on real machines, through Flower."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from fednag.cli.common import answer, beside, blaming, output, set_fields, usable
from fednag.cli.options import Json, Out, Quiet
from fednag.errors import FednagError, not_installed

flower_app = typer.Typer(
    no_args_is_help=True,
    help="Silos on real machines, through Flower: init, up, keys, digest, silo, gateway.",
)

DEMO: dict[str, Any] = {
    "name": "flower",
    "data": {"name": "digits"},
    "model": {"name": "logistic"},
    "algorithm": {"lr": 0.1},
    "training": {"tau": 20, "iterations": 60, "batch": 32},
}

Given = Annotated[
    Path | None, typer.Argument(help="TOML file; without one: logistic regression on the digits.")
]
Set = Annotated[
    list[str],
    typer.Option("--set", help="Change a field: section.key=value, also flower.key (repeatable)."),
]
Silos = Annotated[int | None, typer.Option(help="Number of silos; default: the file's, or 3.")]


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write the app to; new or empty.")],
    experiment: Given = None,
    silos: Silos = None,
    set_: Set = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Write a ready Flower app; run it with `flwr run`.

    Example: fednag flower init my-app examples/digits.toml --silos 3
    """
    _installed()
    from fednag.flower.project import write_app

    files = write_app(folder, _tables(experiment, silos, set_, None))
    answer(
        json,
        {"folder": str(folder), "files": [str(path) for path in files]},
        f"wrote {folder}: settings are in pyproject.toml",
        f"next: flwr run {folder} NAME --stream (NAME: a SuperLink; see docs/deployment.md)",
    )


@flower_app.command()
def up(
    experiment: Given = None,
    silos: Silos = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt, and admit only silos with registered keys.")
    ] = False,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="In Flower's own simulation (Ray), no SuperNodes.")
    ] = False,
    data: Annotated[
        str,
        typer.Option(help="Silos' own data folders, e.g. 'data/site-{silo}'; see flower.shape."),
    ] = "",
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest such run in --out.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Start a SuperLink and SuperNodes here, run, and take them down again.

    Example: fednag flower up --silos 3 --tls
    """
    _installed()
    from fednag.flower.local import NAMED, federation
    from fednag.flower.project import flat
    from fednag.flower.settings import read_run_config

    if simulation and (tls or data):
        raise FednagError(
            "--simulation", "it has no silos of its own", "leave out --tls and --data"
        )
    if simulation and find_spec("ray") is None:
        raise not_installed("--simulation: Ray", "simulation")
    own = {"out": str(usable(out).resolve()), "resume": resume, "bind": NAMED if tls else ""}
    tables = _tables(experiment, silos, set_, own, bool(data))
    deployment = read_run_config(flat(tables))
    nodes = [] if simulation else _nodes(deployment.silos, data, out)
    terminal = beside(json)
    kind = "encrypted, with keys" if tls else "not encrypted; loopback only"
    kind = "simulated by Ray" if simulation else kind

    def tell(line: str) -> None:
        if not quiet:
            terminal.print(line, soft_wrap=True, highlight=False)

    tell(f"starting a SuperLink and {deployment.silos} SuperNodes ({kind})")
    try:
        with _signals(), federation(deployment.silos, tls, nodes, simulation) as running:
            folder = running.submit(tables, tell)
    except _Stopped as stopped:
        print("fednag: interrupted, all processes ended; go on with --resume", file=sys.stderr)
        sys.exit(128 + stopped.number)
    _report(folder, json)
    _forget(folder, nodes)


@flower_app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write; keep it from other users.")],
    host: Annotated[
        list[str], typer.Option(help="Name or address silos reach the server by (repeatable).")
    ] = [],  # noqa: B006
    silo: Annotated[
        list[str], typer.Option(help="Make a silo's key, e.g. silo-0 (repeatable).")
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Make a CA and the server's certificate (--host), and keys for silos (--silo).

    Example: fednag flower keys secrets --host fl.example.org --silo silo-0 --silo silo-1
    """
    _installed()
    from fednag.flower.certificates import make_authority, make_node_key, make_server

    if not host and not silo:
        raise FednagError("--host, --silo", remedy="say what to make, e.g. --host fl.example.org")
    output(folder)
    folder.chmod(0o700)
    made = []
    if host:
        if not (folder / "ca.key").exists():
            make_authority(folder)
            made += ["ca.key", "ca.crt"]
        make_server(folder, host)
        made += ["server.key", "server.crt"]
    for name in silo:
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise FednagError("--silo", remedy="use letters, digits, '.', '_' and '-'", given=name)
        made += [name, make_node_key(folder / name).name]
    files = [str(folder / name) for name in made]
    answer(json, {"files": files}, *(f"wrote {file}" for file in files))


@flower_app.command()
def digest(
    app: Annotated[Path, typer.Argument(help="The app's folder, or a bundle (.fab).")],
    json: Json = False,
) -> None:
    """Print the digest of an app, for silos to agree to.

    Example: fednag flower digest my-app
    """
    _installed()
    from fednag.flower.agreed import digest_of

    found = digest_of(app)
    answer(json, {"app": str(app), "digest": found}, found)


@flower_app.command()
def silo(
    agreed: Annotated[
        list[str], typer.Option(help="Digest of an app that may run here (repeatable).")
    ] = [],  # noqa: B006
    any_: Annotated[
        bool, typer.Option("--any", help="Run any app that is sent, as flower-supernode does.")
    ] = False,
    options: Annotated[
        list[str], typer.Argument(help="After `--`: the options of `flower-supernode`.")
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Start a SuperNode that runs the apps agreed to and no others.

    Example: fednag flower silo --agreed 5f0c2a -- --superlink fl.example.org:8000
    """
    _installed()
    from fednag.flower import agreed as apps

    if any_ == bool(agreed):
        raise FednagError(
            "--agreed", "" if any_ else "is missing", "say which apps may run here: one or --any"
        )
    digests = apps.checked(agreed)
    told = [f"agreed to {digest}" for digest in agreed] or ["runs any app that is sent"]
    answer(json, {"agreed": agreed, "any": any_}, *told)
    apps.run_supernode(None if any_ else digests, options)


@flower_app.command()
def gateway(
    folder: Annotated[Path, typer.Argument(help="Folder for nginx.conf and nginx's own files.")],
    host: Annotated[str, typer.Option(help="Name silos reach the server by.")],
    listen: Annotated[str, typer.Option(help="Where silos come in: ADDRESS:PORT.")] = (
        "0.0.0.0:8443"
    ),
    superlink: Annotated[str, typer.Option(help="Where the SuperLink listens.")] = "127.0.0.1:8000",
    secrets: Annotated[
        Path, typer.Option(help="Folder with server.crt, server.key and ca.crt.")
    ] = Path("secrets"),
    rate: Annotated[int, typer.Option(min=1, help="Requests a second of one address.")] = 50,
    megabytes: Annotated[int, typer.Option(min=6, help="Largest request, in MB.")] = 16,
    json: Json = False,
) -> None:
    """Write a configuration of nginx that lets silos in and nobody else, and check it.

    Example: fednag flower gateway gate --host fl.example.org
    """
    from fednag.flower import gateway as gates

    gate = gates.Gateway(host, listen, superlink, secrets, rate=rate, megabytes=megabytes)
    path, checked = gate.write(folder), gates.program() is not None
    found = "checked by nginx" if checked else "not checked: nginx is not installed here"
    answer(
        json,
        {"files": [str(path)], "checked": checked, "paths": list(gates.PATHS)},
        f"wrote {path}, {found}",
        f"start it with: nginx -p {folder} -c {path}",
    )


def _tables(
    path: Path | None,
    silos: int | None,
    changes: list[str],
    own: dict[str, Any] | None,
    private: bool = False,
) -> dict[str, Any]:
    """The run configuration: a file, changed as the options say."""
    from fednag.config import override, parse, read
    from fednag.flower.project import run_config

    fields = set_fields(changes)
    flower = {f[7:].replace("-", "_"): v for f, v in fields.items() if f.startswith("flower.")}
    rounds = fields.pop("rounds", None)
    raw = override(
        read(path) if path else DEMO,
        {field: given for field, given in fields.items() if not field.startswith("flower.")},
    )
    raw.pop("algorithms", None)
    name = raw.get("data", {}).get("name") if isinstance(raw.get("data"), dict) else None
    if private or name == "silos":
        raw["data"] = {"name": "custom"}
    if silos is not None or not raw.get("split", {}).get("workers"):
        raw["split"] = {**raw.get("split", {}), "workers": 3 if silos is None else silos}
    source = str(path or "flower")
    with blaming(dict.fromkeys(fields, "--set")):
        parsed = parse(raw, source)
    tables = run_config(parsed, {**(own or {}), **flower})
    return tables if rounds is None else {**tables, "rounds": rounds}


def _nodes(silos: int, data: str, out: Path) -> list[dict[str, Any]]:
    from fednag.flower.signing import make_key

    found = []
    for silo in range(silos):
        memory = (out / ".silos" / f"silo-{silo}").resolve()
        key = memory.with_name(f"silo-{silo}.key")
        if not key.exists():
            memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_key(key)
        config: dict[str, Any] = {"memory-folder": str(memory), "ledger-key": str(key)}
        if data:
            config["data-folder"] = str(Path(data.replace("{silo}", str(silo))).resolve())
        found.append(config)
    return found


def _report(path: Path, json: bool) -> None:
    from fednag.runs.folder import RunFolder
    from fednag.runs.statistics import ranked
    from fednag.runs.view import RunView
    from fednag.show.charts import curves_chart, save
    from fednag.show.terminal import ranking

    view = RunView.read(RunFolder(path))
    rows = ranked([view])
    made = save(curves_chart([view]), path / "curves")
    document = {"rows": [asdict(row) for row in rows], "notes": view.notes}
    answer(json, document, ranking(rows, "result"), runs={path: ""}, files=made)


def _forget(path: Path, nodes: list[dict[str, Any]]) -> None:
    """A run that is over needs no memories of its silos any more."""
    import shutil

    from fednag.runs.folder import OVER, RunFolder

    info = RunFolder(path).info()
    token = str(info.get("token"))
    if info.get("status") in OVER and token.isalnum():
        for node in nodes:
            shutil.rmtree(Path(node["memory-folder"]) / token, ignore_errors=True)


def _installed() -> None:
    if find_spec("flwr") is None:
        raise not_installed("flower: Flower", "flower")


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _signals() -> Iterator[None]:
    """Signals unwind the block, so that everything is taken down; while it is, they wait."""
    kinds = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

    def caught(number: int, frame: FrameType | None) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_IGN)
        raise _Stopped(number)

    before = {kind: signal.signal(kind, caught) for kind in kinds}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
