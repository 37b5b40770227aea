"""``fednag flower silo``: a SuperNode that runs the apps its operator agreed to, and no others.

Flower brings the code of a run to the silos, whoever submits it. Here a silo looks at the app
before anything of it is installed or imported: at the SHA-256 of the bundle that it was sent. A
message of another run is answered with an error that says why; the server's fednag writes it down.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from logging import ERROR
from pathlib import Path
from typing import Any, cast

import click
from flwr.app import Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import Run

from fednag.core.files import os_errors
from fednag.errors import FednagError
from fednag.flower import executor, logs
from fednag.flower.passphrase import read_key
from fednag.flower.processes import SOONEST
from fednag.flower.resident import FOLDER, RUNS
from fednag.flower.superlink import option, quiet

DIGEST = re.compile(r"[0-9a-f]{64}")
# What `flwr run -c` may change of an app that was agreed to: silos do not read it.
SERVERS_OWN = {f"flower.{key}" for key in ("out", "resume", "deadline", "quorum", "join")}

LOOKS = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # in the environment: Flower's own, 1 s without it
OFTEN = 0.2  # seconds of it: each look takes some computing of a machine that trains
PAUSE = 3.0  # seconds between two looks for messages of Flower's own

Connection = Any
"""What Flower's SuperNode speaks to the SuperLink by: its id, and seven functions."""


def digest_of(app: Path) -> str:
    """The SHA-256 of an app as silos get it: of a bundle, or what `flwr run` makes of a folder."""
    with os_errors(app, "cannot be read"):
        try:
            return hashlib.sha256(bundled(app) if app.is_dir() else app.read_bytes()).hexdigest()
        except (ValueError, click.ClickException) as error:
            raise FednagError(
                app, f"is no Flower app ({error})", "`fednag flower init` writes one"
            ) from None


def bundled(app: Path) -> bytes:
    """The bundle that `flwr run` makes of an app's folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # in Flower's use of pathspec
        return build_fab_from_disk(app)


class Gate:
    """Which runs a silo takes part in; each is looked at once, and what was seen is what is run.

    A run that may be taken part in gets a file in the folder ``noted``, for the silo's trainer.
    """

    def __init__(
        self,
        agreed: Collection[str],
        get_run: Callable[[int], Run],
        get_fab: Callable[[str, int], Fab],
        noted: Path | None = None,
    ) -> None:
        self.agreed, self._get_run, self._get_fab = agreed, get_run, get_fab
        self.noted = noted
        self._seen: dict[int, tuple[Run, Fab, str]] = {}

    def refusal(self, number: int) -> str:
        """Why the silo takes no part in this run; empty if it does."""
        return self._looked_at(number)[2]

    def run(self, number: int) -> Run:
        return self._looked_at(number)[0]

    def fab(self, digest: str, number: int) -> Fab:
        return self._looked_at(number)[1]

    def _looked_at(self, number: int) -> tuple[Run, Fab, str]:
        if number not in self._seen:
            run = self._get_run(number)
            content = self._get_fab(run.fab_hash, number).content
            fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
            wrong = self._wrong(run, fab)
            if self.noted and not wrong:
                (self.noted / str(number)).touch()
            self._seen[number] = run, fab, wrong
        return self._seen[number]

    def _wrong(self, run: Run, fab: Fab) -> str:
        if fab.hash_str not in self.agreed:
            return f"the app {fab.hash_str} is not one that this silo's operator agreed to"
        # Flower finds the installed app by these, which the server says.
        fab_id, version = get_fab_metadata(fab.content)
        if (run.fab_id, run.fab_version, run.fab_hash) != (fab_id, version, fab.hash_str):
            return "the app agreed to goes by another name or digest"
        if changed := sorted(set(run.override_config) - SERVERS_OWN):
            return f"the run changes {', '.join(changed)} of the app that was agreed to"
        return ""


def patient(receive: Callable[[], Any]) -> Callable[[], Any]:
    """Looks for messages again while there is none, where Flower would sleep for three seconds.

    It looks after a tenth of the time it has waited, so that a round takes little longer than it
    must; after half a minute Flower's pauses do.
    """
    last = time.monotonic()

    def received() -> Any:
        nonlocal last
        while (found := receive()) is None:
            pause = (time.monotonic() - last) / 10
            if pause > PAUSE:
                return None
            time.sleep(max(pause, SOONEST))
        last = time.monotonic()
        return found

    return received


@contextmanager
def attentive(connection: Connection) -> Iterator[Connection]:
    """The connection of a SuperNode that looks for messages often while a run goes on."""
    with connection as (node, receive, send, get_run, get_fab, pull, push, confirm):
        pull = executor.promptly(pull)
        yield node, patient(receive), send, get_run, get_fab, pull, push, confirm


@contextmanager
def guarded(
    connection: Connection, agreed: Collection[str], noted: Path | None = None
) -> Iterator[Connection]:
    """The connection of a SuperNode, without the messages of runs that were not agreed to."""
    with connection as (node, receive, send, get_run, get_fab, pull, push, confirm):
        gate = Gate(agreed, get_run, get_fab, noted)

        def received() -> Any:
            found = receive()
            if found is None or not (why := gate.refusal(found[0].metadata.run_id)):
                return found
            message = found[0]
            log(ERROR, "fednag: run %s is refused: %s", message.metadata.run_id, why)
            reply = Message(Error(ErrorCode.INVALID_FAB, why), reply_to=message)
            with no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
                wanted, session = send(reply, get_object_tree(reply), 0.0)
                for name, part in get_all_nested_objects(reply).items():
                    if name in wanted:
                        push(message.metadata.run_id, session, name, part.deflate())
            return None

        yield node, received, send, gate.run, gate.fab, pull, push, confirm


def checked(agreed: Sequence[str]) -> frozenset[str]:
    """Digests as an operator gives them."""
    for digest in agreed:
        if not DIGEST.fullmatch(digest):
            raise FednagError(
                "--agreed",
                "is no SHA-256 in hexadecimal digits",
                "`fednag flower digest APP` prints it",
                given=digest[:80],
            )
    return frozenset(agreed)


def run_supernode(
    agreed: Collection[str] | None,
    arguments: Sequence[str],
    secret: bytes | None = None,
    json: bool = False,
) -> None:
    """Be ``flower-supernode`` with these arguments, for the apps agreed to; None: for any."""
    key = option(arguments, "--auth-supernode-private-key")
    opened = read_key(Path(key).expanduser(), secret) if key else None
    if json:
        logs.as_json()
    quiet()
    program = cast(Any, import_module("flwr.supernode.start_client_internal"))
    connect = program.http_request_response
    command = cast(Any, import_module("flwr.supernode.cli.flower_supernode"))
    command.load_ssh_private_key = lambda *_: opened  # Flower opens no encrypted one
    sys.argv = ["flower-supernode", *arguments]
    os.environ.setdefault(LOOKS, str(OFTEN))
    # Flower runs what is installed there under eight digits of a bundle's digest: nothing is.
    with tempfile.TemporaryDirectory(prefix="fednag-silo-") as home:
        noted = Path(home) / "runs"
        noted.mkdir(mode=0o700)
        os.environ |= {"FLWR_HOME": home, FOLDER: home}
        os.environ["PATH"] = executor.put_before(Path(home) / "bin", os.environ.get("PATH", ""))
        if agreed is not None:
            os.environ[RUNS] = str(noted)

        def connected(*given: Any, **named: Any) -> Any:
            found = attentive(connect(*given, **named))
            return found if agreed is None else guarded(found, agreed, noted)

        program.http_request_response = connected
        command.flower_supernode()
