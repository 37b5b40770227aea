"""``fednag flower doctor``, ``status``, ``units``: before a run, while it goes on, and for good."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednag.cli.common import answer, output, table, unless
from fednag.cli.flower import flower_app, installed
from fednag.cli.options import Json, PassphraseFile
from fednag.errors import FednagError, printable

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.show.status import Deployed

Secrets = Annotated[
    Path | None, typer.Option("--secrets", help="Folder that `fednag flower keys` wrote.")
]


@flower_app.command()
def doctor(
    secrets: Secrets = None,
    host: Annotated[str, typer.Option(help="On the server: the name in its certificate.")] = "",
    server: Annotated[
        str, typer.Option(help="On a silo: where it is to reach the server, ADDRESS:PORT.")
    ] = "",
    certificate: Annotated[
        str, typer.Option(help="A silo's name, if it shows a certificate (mutual TLS).")
    ] = "",
    data_folder: Annotated[Path | None, typer.Option(help="Where a silo's data are.")] = None,
    memory_folder: Annotated[
        Path | None, typer.Option(help="Where a silo keeps what it remembers.")
    ] = None,
    app: Annotated[Path | None, typer.Option(help="The app: whether the data fit it.")] = None,
    agreed: Annotated[
        list[str], typer.Option(help="--app: a digest that was agreed to (repeatable).")
    ] = [],  # noqa: B006
    port: Annotated[
        int, typer.Option(help="A port that must be free here; 0: none.", min=0, max=65535)
    ] = 0,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Check versions, certificates, keys, clocks, ports and data before a run.

    Example: fednag flower doctor --secrets secrets --server fl.example.org:8443 --data-folder data
    """
    installed()
    from fednag.flower.doctor import WRONG, Patient, examine

    if passphrase_file:
        _remember(passphrase_file)
    shape, classes = _declared(app) if app else ((), 0)
    patient = Patient(
        secrets=secrets,
        host=host,
        server=server,
        data=data_folder,
        memory=memory_folder,
        serves=bool(host),
        shape=shape,
        classes=classes,
        app=app,
        agreed=tuple(agreed),
        certificate=certificate,
        ports=(port,) if port else (),
    )
    findings = list(examine(patient))
    wrong = [finding for finding in findings if finding.status == WRONG]
    document = {"findings": [finding.to_dict() for finding in findings], "wrong": len(wrong)}
    lines = [f"{each.status:8}{each.check}: {each.said}" for each in findings]
    summary = f"{len(wrong)} of {len(findings)} checks found something wrong"
    answer(json, document, *lines, *([summary] if wrong else ["nothing is wrong"]))
    if wrong:
        sys.exit(2)


def _remember(file: Path) -> None:
    import os

    from fednag.flower.passphrase import FILE, passphrase

    passphrase(file)
    os.environ[FILE] = str(file.resolve())


def _declared(app: Path) -> tuple[tuple[int, ...], int]:
    """The shape of a sample and the classes, where silos bring the data."""
    import tomllib

    from fednag.flower.project import flat
    from fednag.flower.settings import read_run_config

    if not app.is_dir():
        return (), 0
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        tables = project["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError) as error:
        raise FednagError(app, f"is no app ({error})", "`fednag flower init` writes one") from None
    deployment = read_run_config(flat(tables))
    if not deployment.private:
        return (), 0
    return deployment.shape, deployment.flower.classes


@flower_app.command()
def status(
    runs: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page, and /metrics for Prometheus.")
    ] = False,
    port: Annotated[int, typer.Option(help="--web: port; 0: a free one.", min=0, max=65535)] = 0,
    address: Annotated[str, typer.Option(help="--web: address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str], typer.Option(help="--address: a name it may be asked by (repeatable).")
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Show which silos are here, when their answers were last used, refusals, shares, epsilon.

    Example: fednag flower status runs --web
    """
    from fednag.show.serve import StatusServer
    from fednag.show.status import Deployments, document

    if not runs.is_dir() and not web:
        raise FednagError(runs, "no such folder", "give a folder of runs")
    if web:
        with StatusServer(runs, port, address, name) as server:
            said = f"status of {printable(str(runs))} at {server.address} (Ctrl-C leaves)"
            print(said, flush=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever(poll_interval=0.2)
        return
    found, failed = Deployments(runs).look()
    nothing = [] if found else [f"no run of silos in {runs}"]
    answer(json, document(found, failed), *map(_silos, found), *nothing)
    unless(failed)


def _silos(each: Deployed) -> Table:
    """A run's silos as a table."""
    import time

    from fednag.show.watch import time_text

    run = each.run
    title = f"{each.key}: {run['state']}, round {run['round']} of {run['rounds'] or '?'}"
    if run["epsilon"] is not None:
        title += f", epsilon {run['epsilon']:.2f}"
    numbers = ("ok", "missed", "refused", "samples", "share")
    made = table(("silo", "state", "last used"), numbers, ("why",), title=title)
    for silo in each.silos:
        ago = f"{time_text(max(0.0, time.time() - silo.seen))} ago" if silo.seen else "-"
        counts = [str(silo.answers.get(status, 0)) for status in numbers[:3]]
        share = f"{silo.share:.1%}" if silo.share is not None else "-"
        made.add_row(
            str(silo.number), silo.state, ago, *counts, str(silo.samples or "-"), share, silo.why
        )
    return made


@flower_app.command()
def units(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")],
    role: Annotated[str, typer.Option(help="What this machine is: server or silo.")] = "silo",
    home: Annotated[str, typer.Option(help="Folder of the deployment there.")] = "/srv/fednag",
    user: Annotated[str, typer.Option(help="The user who runs it.")] = "fednag",
    partition_id: Annotated[int, typer.Option(help="Which silo this is.", min=0)] = 0,
    gate: Annotated[
        str, typer.Option(help="Where the gateway is, ADDRESS:PORT.")
    ] = "fl.example.org:8443",
    clients: Annotated[
        bool, typer.Option("--clients", help="Mutual TLS: silos must show a certificate.")
    ] = False,
    agreed: Annotated[
        list[str], typer.Option(help="Digest of an app that may run here (repeatable).")
    ] = [],  # noqa: B006
    memory: Annotated[str, typer.Option(help="The most memory that a silo may use.")] = "8G",
    compose: Annotated[
        bool, typer.Option("--compose", help="A Compose file in place of units.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Write systemd units, or a Compose file, that run a server or a silo for good.

    Example: fednag flower units units --role server
    """
    installed()
    from fednag.flower import units as files
    from fednag.flower.agreed import checked

    host = files.Host(
        role=role,
        home=home,
        user=user,
        silo=partition_id,
        gate=gate,
        mutual=clients,
        agreed=sorted(checked(agreed)),
        passphrase=str(passphrase_file or ""),
        memory=memory,
    )
    if compose:
        output(folder)
        path = folder / "compose.yaml"
        text = "# Written by `fednag flower units --compose`.\n"
        path.write_text(text + files.as_yaml(files.compose(host)), encoding="utf-8")
        said = "not tried: no container engine is asked"
        answer(json, {"files": [str(path)], "checked": False}, f"wrote {path}; {said}")
        return
    paths, checked_here = files.write_units(folder, host)
    found = {path.name: files.exposure(path) for path in paths}
    how = "verified by systemd-analyze" if checked_here else "not verified: no systemd-analyze here"
    lines = [f"wrote {path}, {how}" for path in paths]
    lines += [
        f"{name}: exposure {level:.1f} of 10 (systemd-analyze security)"
        for name, level in found.items()
        if level is not None
    ]
    steps = files.steps(host)
    document = {"files": [str(path) for path in paths], "checked": checked_here}
    answer(json, {**document, "exposure": found, "steps": steps}, *lines, "as root, once:", *steps)
