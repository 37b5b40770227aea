"""``fednag flower``: silos on real machines, through Flower."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import FrameType
from typing import Annotated, Any

import typer

from fednag.cli.common import answer, beside, blaming, console, output, set_fields, usable
from fednag.cli.options import Json, Out, PassphraseFile, Quiet
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
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Logs as lines of JSON.")]
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
    installed()
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
    installed()
    from fednag.flower.gateway import program as gate_program
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
    fence = "behind nginx" if gate_program() else "no gateway: nginx is not installed here"
    kind = f"encrypted, with keys, {fence}" if tls else "not encrypted; loopback only"
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
    client: Annotated[
        list[str],
        typer.Option(help="Make a silo's key for mutual TLS, and a request (repeatable)."),
    ] = [],  # noqa: B006
    sign: Annotated[
        list[Path], typer.Option(help="Sign a client's request with the CA (repeatable).")
    ] = [],  # noqa: B006
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace what is there; it is put into old/.")
    ] = False,
    new_ca: Annotated[
        bool, typer.Option("--new-ca", help="Make a second CA; silos believe both.")
    ] = False,
    retire_ca: Annotated[
        bool, typer.Option("--retire-ca", help="Throw the older CAs out of ca.crt.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Make a CA and the server's certificate (--host), and keys for silos (--silo, --client).

    Example: fednag flower keys secrets --host fl.example.org --silo silo-0 --silo silo-1
    """
    installed()
    from fednag.flower import certificates
    from fednag.flower.passphrase import passphrase

    if not (host or silo or client or sign or new_ca or retire_ca):
        raise FednagError("--host, --silo", remedy="say what to make, e.g. --host fl.example.org")
    secret = passphrase(passphrase_file)
    for option, names in {"--silo": silo, "--client": client}.items():
        for name in names:
            if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
                remedy = "use letters, digits, '.', '_' and '-'"
                raise FednagError(option, remedy=remedy, given=name)
    output(folder)
    folder.chmod(0o700)
    made, said = [], []
    if new_ca:
        said.append(f"the old CA's key is {certificates.new_authority(folder, secret)}")
        made += ["ca.key", "ca.crt"]
    if host:
        if not (folder / "ca.key").exists():
            certificates.make_authority(folder, secret=secret)
            made += ["ca.key", "ca.crt"]
        certificates.make_server(folder, host, renew=renew, secret=secret)
        made += ["server.key", "server.crt"]
    for name in silo:
        made += [name, certificates.make_node_key(folder / name, secret).name]
    for name in client:
        certificates.make_request(folder, name, renew, secret)
        made += [f"{name}.{which}" for which in ("client.key", "client.csr", "local.crt")]
    files = [str(folder / name) for name in made]
    files += [str(certificates.sign_request(folder, path, secret=secret)) for path in sign]
    if retire_ca:
        gone = certificates.retire_authority(folder)
        said.append(f"{folder / 'ca.crt'}: {gone} older CA{'s are' if gone != 1 else ' is'} gone")
    answer(json, {"files": files}, *(f"wrote {file}" for file in files), *said)


@flower_app.command()
def digest(
    app: Annotated[Path, typer.Argument(help="The app's folder, or a bundle (.fab).")],
    json: Json = False,
) -> None:
    """Print the digest of an app, for silos to agree to.

    Example: fednag flower digest my-app
    """
    installed()
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
    passphrase_file: PassphraseFile = None,
    json_logs: JsonLogs = False,
    json: Json = False,
) -> None:
    """Start a SuperNode that runs the apps agreed to and no others.

    Example: fednag flower silo --agreed 5f0c2a -- --superlink fl.example.org:8000
    """
    installed()
    from fednag.flower import agreed as apps

    if any_ == bool(agreed):
        raise FednagError(
            "--agreed", "" if any_ else "is missing", "say which apps may run here: one or --any"
        )
    digests, secret = apps.checked(agreed), _secret(passphrase_file)
    told = [f"agreed to {digest}" for digest in agreed] or ["runs any app that is sent"]
    answer(json, {"agreed": agreed, "any": any_}, *told)
    apps.run_supernode(None if any_ else digests, options, secret, json_logs)


@flower_app.command()
def link(
    options: Annotated[
        list[str], typer.Argument(help="After `--`: the options of `flower-superlink`.")
    ] = [],  # noqa: B006
    public: Annotated[
        bool, typer.Option("--public", help="Let it listen beyond loopback, if --host says so.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    json_logs: JsonLogs = False,
    json: Json = False,
) -> None:
    """Start a SuperLink, on loopback unless it is asked to be public.

    Example: fednag flower link -- --insecure
    """
    installed()
    from fednag.flower.superlink import run_superlink

    secret = _secret(passphrase_file)
    answer(json, {"options": options})
    run_superlink(options, secret, public, json_logs)


def _secret(file: Path | None) -> bytes | None:
    """The passphrase; what is started here finds it in the same file."""
    from fednag.flower.passphrase import FILE, passphrase

    found = passphrase(file)
    if file:
        os.environ[FILE] = str(file.resolve())
    return found


@flower_app.command()
def gateway(
    folder: Annotated[Path, typer.Argument(help="Folder for the configuration and its logs.")],
    host: Annotated[str, typer.Option(help="Name silos reach the server by.")] = "",
    listen: Annotated[
        str, typer.Option(help="ADDRESS:PORT; 0.0.0.0:8443, on a silo 127.0.0.1:8444.")
    ] = "",
    superlink: Annotated[str, typer.Option(help="Where the SuperLink listens.")] = "127.0.0.1:8000",
    secrets: Annotated[Path, typer.Option(help="Folder that `fednag flower keys` wrote.")] = Path(
        "secrets"
    ),
    rate: Annotated[int, typer.Option(min=1, help="Requests a second of one address.")] = 50,
    megabytes: Annotated[int, typer.Option(min=6, help="Largest request, in MB.")] = 16,
    clients: Annotated[
        bool, typer.Option("--clients", help="Mutual TLS: silos must show a certificate.")
    ] = False,
    allow: Annotated[
        list[str], typer.Option(help="--clients: only this name's certificate (repeatable).")
    ] = [],  # noqa: B006
    certificate: Annotated[
        str, typer.Option(help="A silo's end of mutual TLS: the name whose certificate it shows.")
    ] = "",
    gate: Annotated[
        str, typer.Option(help="--certificate: where the gateway is, ADDRESS:PORT.")
    ] = "",
    program: Annotated[str, typer.Option(help="nginx or caddy.")] = "nginx",
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Write a configuration of nginx that lets silos in and nobody else, and check it.

    Example: fednag flower gateway gate --host fl.example.org
    """
    installed()
    from fednag.flower import gateway as gates
    from fednag.flower.passphrase import is_encrypted
    from fednag.flower.passphrase import passphrase_file as named

    if bool(host) == bool(certificate):
        raise FednagError("--host, --certificate", remedy="give one: --host on the server")
    if bool(certificate) != bool(gate):
        raise FednagError("--gate", remedy="give it with --certificate, e.g. fl.example.org:8443")
    if program not in ("nginx", "caddy") or (certificate and program == "caddy"):
        raise FednagError("--program", remedy="use nginx (or caddy, on the server)", given=program)
    key = secrets / (f"{certificate}.client.key" if certificate else "server.key")
    password = (passphrase_file or named()) if key.is_file() and is_encrypted(key) else None
    if key.is_file() and is_encrypted(key) and password is None:
        raise FednagError(key, "is encrypted", "give --passphrase-file, which nginx will read")
    password = password and password.resolve()
    if certificate:
        path = gates.SiloProxy(
            gate, certificate, listen or "127.0.0.1:8444", secrets, megabytes, password
        ).write(folder)
    else:
        outer = gates.Gateway(
            host,
            listen or "0.0.0.0:8443",
            superlink,
            secrets,
            rate=rate,
            megabytes=megabytes,
            clients=clients or bool(allow),
            allow=allow,
            password=password,
        )
        path = outer.write_caddyfile(folder) if program == "caddy" else outer.write(folder)
    checked = which(program) is not None if program == "caddy" else gates.program() is not None
    found = f"checked by {program}" if checked else f"not checked: {program} is not installed here"
    start = f"nginx -p {folder} -c {path}"
    start = f"caddy run --config {path} --adapter caddyfile" if program == "caddy" else start
    answer(
        json,
        {"files": [str(path)], "checked": checked, "paths": list(gates.PATHS)},
        f"wrote {path}, {found}",
        f"start it with: {start}",
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
    answer(
        json, document, ranking(rows, "result", width=console().width), runs={path: ""}, files=made
    )


def _forget(path: Path, nodes: list[dict[str, Any]]) -> None:
    """A run that is over needs no memories of its silos any more."""
    import shutil

    from fednag.runs.folder import OVER, RunFolder

    info = RunFolder(path).info()
    token = str(info.get("token"))
    if info.get("status") in OVER and token.isalnum():
        for node in nodes:
            shutil.rmtree(Path(node["memory-folder"]) / token, ignore_errors=True)


def installed() -> None:
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
