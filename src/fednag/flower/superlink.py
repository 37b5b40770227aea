"""``fednag flower link``: a SuperLink on loopback, whose private key may be encrypted."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fednag.errors import FednagError
from fednag.flower import logs
from fednag.flower.passphrase import is_encrypted, read_key

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run_superlink(
    arguments: Sequence[str], secret: bytes | None = None, public: bool = False, json: bool = False
) -> None:
    """Be ``flower-superlink`` with these arguments."""
    host = option(arguments, "--host")
    if host and host not in LOOPBACK and not public:
        raise FednagError(
            "--host",
            "would let whoever reaches the port submit runs",
            "leave it out and put `fednag flower gateway` in front, or add --public",
            given=host,
        )
    key = option(arguments, "--ssl-keyfile")
    word = None
    if key and is_encrypted(Path(key).expanduser()):
        read_key(Path(key).expanduser(), secret)  # a sentence, and not a traceback
        word = secret.decode() if secret else None
    if json:
        logs.as_json()
    program = cast(Any, import_module("flwr.superlink.cli.flower_superlink"))
    run = functools.partial(program.uvicorn.run, ssl_keyfile_password=word)
    program.uvicorn = SimpleNamespace(run=run)
    if json:
        http = cast(Any, import_module("flwr.supercore.http_logging"))
        program.get_uvicorn_log_config = http.get_uvicorn_log_config
    quiet()
    more = [] if host else ["--host", "127.0.0.1"]
    installs = (
        "--disable-runtime-dependency-installation",
        "--allow-runtime-dependency-installation",
    )
    more += [] if set(installs) & set(arguments) else [installs[0]]
    sys.argv = ["flower-superlink", *arguments, *more]
    program.flower_superlink()


def option(arguments: Sequence[str], name: str) -> str:
    """What the last ``--name VALUE`` or ``--name=VALUE`` says."""
    found = ""
    for place, word in enumerate(arguments):
        if word == name and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def quiet() -> None:
    """No telemetry and no look for updates."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
