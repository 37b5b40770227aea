"""All commands of the command line, and a way to call them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.main import get_command

from fednag import cli

ROOT: Any = get_command(cli.app)


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, f"{path} {name}".strip())


EVERY: dict[str, Any] = dict(_walk(ROOT, ""))
GROUPS = {path: one for path, one in EVERY.items() if hasattr(one, "commands")}
LEAVES = {path: one for path, one in EVERY.items() if path not in GROUPS}


def options(command: Any) -> dict[str, Any]:
    """By the name that stands first."""
    return {p.opts[0]: p for p in command.params if p.param_type_name == "option"}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What is on standard output: one strict JSON document, or this fails."""
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


class Caller:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> Result:
        self.monkeypatch.setattr(sys, "argv", ["fednag", *words])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self.capsys.readouterr()
        return Result(int(ended.value.code or 0), printed.out, printed.err)
