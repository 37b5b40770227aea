"""Silos that run the apps they agreed to: what they look at, and what they answer otherwise."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fednag import FednagError
from fednag.config import parse
from fednag.flower.agreed import Gate, bundled, checked, digest_of, guarded
from fednag.flower.project import run_config, write_app

TABLES = run_config(parse({"data": {"name": "digits"}, "model": {"name": "logistic"}}))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "app", TABLES)
    return tmp_path / "app"


class Link:
    """A SuperLink with one run, and what the silo sent it."""

    def __init__(self, content: bytes, **changes: Any) -> None:
        fab_id, version = get_fab_metadata(content)
        digest = hashlib.sha256(content).hexdigest()
        run = replace(Run.create_empty(5), fab_id=fab_id, fab_version=version, fab_hash=digest)
        self.content, self.run = content, replace(run, **changes)
        self.sent: list[Message] = []
        self.pushed: dict[str, bytes] = {}
        self.fetched = 0

    def get_run(self, number: int) -> Run:
        return self.run

    def get_fab(self, digest: str, number: int) -> Fab:
        self.fetched += 1
        return Fab(digest, self.content, {})

    def send(self, message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        self.sent.append(message)
        return {tree.object_id}, "session"

    def push(self, number: int, session: str, name: str, content: bytes) -> None:
        self.pushed[name] = content

    @contextmanager
    def connection(self) -> Iterator[Any]:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 5, 1, 1
        asked = Message(RecordDict(), 1, "query.hello")
        asked.metadata.__dict__["_message_id"] = "asked"
        yield (
            1,
            lambda: (asked, "tree"),
            self.send,
            self.get_run,
            self.get_fab,
            None,
            self.push,
            None,
        )


def refusal(link: Link, *agreed: str) -> str:
    return Gate(agreed, link.get_run, link.get_fab).refusal(5)


def test_a_digest_is_that_of_what_flower_sends(app: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "one.fab"
    bundle.write_bytes(bundled(app))
    assert digest_of(app) == digest_of(bundle) == hashlib.sha256(bundle.read_bytes()).hexdigest()
    with pytest.raises(FednagError, match="is no Flower app"):
        digest_of(tmp_path / "app" / "fednag_app")
    with pytest.raises(FednagError, match="--agreed 5F: is no SHA-256"):
        checked(["a" * 64, "5F"])


def test_an_app_changed_by_one_byte_is_another(app: Path, tmp_path: Path) -> None:
    agreed = digest_of(app)
    for file in sorted(path for path in app.rglob("*") if path.is_file()):
        other = tmp_path / file.name
        shutil.copytree(app, other)
        changed = other / file.relative_to(app)
        content = changed.read_bytes()
        changed.write_bytes(content.replace(b"e", b"a", 1) if b"e" in content else content + b" ")
        link = Link(bundled(other))
        assert "is not one that this silo's operator agreed to" in refusal(link, agreed), file
        assert refusal(link, agreed, digest_of(other)) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"override_config": {"flower.resume": True, "flower.deadline": 9.0}}, ""),
        ({"override_config": {"rounds": 9, "flower.resume": True}}, "the run changes rounds of"),
        ({"override_config": {"flower.bind": ""}}, "the run changes flower.bind of"),
        ({"fab_id": "fednag/other"}, "goes by another name"),
        ({"fab_version": "1.0.1"}, "goes by another name"),
        ({"fab_hash": "a" * 64}, "goes by another name or digest"),
    ],
)
def test_what_is_said_of_the_app_must_fit(app: Path, changes: dict[str, Any], why: str) -> None:
    found = refusal(Link(bundled(app), **changes), digest_of(app))
    assert why in found
    assert bool(why) == bool(found)


def test_messages_of_other_runs_are_answered_and_go_no_further(
    app: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(bundled(app))
    with guarded(link.connection(), {digest_of(app)}) as (node, receive, _, run, fab, *_rest):
        found = receive()
        assert (node, found[1], link.sent) == (1, "tree", [])
        # What was looked at is what is run, whatever the server would send now.
        link.content, link.run = b"another", replace(link.run, fab_id="fednag/other")
        assert fab("x", 5).hash_str == run(5).fab_hash == digest_of(app)
        receive()
        assert link.fetched == 1
    link = Link(bundled(app))
    logging.getLogger("flwr").propagate = True
    with (
        caplog.at_level(logging.ERROR, "flwr"),
        guarded(link.connection(), {"a" * 64}) as (_, receive, *_rest),
    ):
        assert receive() is None
    (reply,) = link.sent
    assert reply.metadata.reply_to_message_id == "asked"
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert digest_of(app) in reply.error.reason
    assert set(link.pushed) == {reply.metadata.message_id}
    assert f"run 5 is refused: the app {digest_of(app)}" in caplog.text
