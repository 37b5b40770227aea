"""Replies that come piece by piece: a late one costs a round no more than its deadline.

The grid is Flower's own over HTTP, but for the wire: a SuperLink of a few lines answers it, whose
objects become available when a clock says so that nothing but waiting moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

import fednag.flower.fleet as fleet_module
import fednag.flower.membership as membership_module
import fednag.flower.pulls as pulls_module
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.server import serve
from fednag.flower.settings import read_run_config
from fednag.flower.silo_log import read
from fednag.runs.outcome import Outcome
from flower_kit import config_of, gap, grid_of, node_of, silent, simulated

When = Callable[[int, str, int], float]
"""(node, kind of message, which of its objects) -> seconds until it is there; below 0: gone."""


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Link:
    """What a SuperLink does for a server app, with silos in this process."""

    def __init__(self, silos: InProcessGrid, clock: Clock, when: When) -> None:
        self.silos, self.clock, self.when = silos, clock, when
        self.objects: dict[str, tuple[float, bytes]] = {}  # when they are there, and what they are
        self.owners: dict[str, int] = {}  # who sent an object first
        self.pulled = 0
        self.confirmed: list[str] = []

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        found = PullAppMessagesResponse()
        for reply in self.silos.pull_messages(request.message_ids):
            name, node = reply.object_id, reply.metadata.src_node_id
            kind = reply.metadata.message_type
            reply.metadata.__dict__["_message_id"] = name
            for place, (part, content) in enumerate(get_all_nested_objects(reply).items()):
                wait = self.when(node, kind, place)
                there = self.clock.now + wait if wait >= 0 else -1.0
                whole = content.deflate()
                if self.owners.setdefault(part, node) == node:
                    self.objects[part] = there, self.sent(node, kind, whole)
                else:  # objects go by their content: another silo has sent the same one
                    self.objects[part] = self.clock.now, whole
            found.message_object_trees.append(self.tree(reply))
            found.messages_list.append(message_to_proto(remove_content_from_message(reply)))
        return found

    def tree(self, reply: Message) -> ObjectTree:
        return get_object_tree(reply)

    def sent(self, node: int, kind: str, content: bytes) -> bytes:
        return content

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        self.pulled += 1
        there, content = self.objects[request.object_id]
        if there < 0:
            return PullObjectResponse(object_found=False)
        here = there <= self.clock.now
        return PullObjectResponse(
            object_found=True, object_available=here, object_content=content if here else b""
        )

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


class Wired(HttpGrid):
    def __init__(self, link: Link) -> None:
        super().__init__(token="none")
        self.link = link
        self.set_run(Run.create_empty(1))

    @property
    def _runtime_client(self) -> Any:
        return self.link

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self.link.silos.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.link.silos.push_messages(messages)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(fleet_module, "time", found)
    monkeypatch.setattr(membership_module, "time", found)
    return found


DEADLINE = 30.0


def played(
    out: Path, clock: Clock, when: When, link: type[Link] = Link, **changes: Any
) -> tuple[Outcome, Link, list[float]]:
    """A run, what it ran on, and when its rounds were over."""
    config = config_of(out, flower__deadline=DEADLINE, flower__join=DEADLINE, rounds=2, **changes)
    silos = grid_of(config)
    wire, ends = link(silos, clock, when), list[float]()

    def tell(line: str) -> None:
        if line.startswith("round ") and "/" in line.split(",")[0]:
            ends.append(clock.now)

    return serve(Wired(wire), read_run_config(config), tell), wire, ends


def lines(run: Outcome, status: str) -> list[tuple[int, int, str | None]]:
    assert run.folder
    found = [line for line in read(run.folder / "silos.jsonl") if line["status"] == status]
    return [(line["round"], line["silo"], line.get("why")) for line in found]


def test_replies_that_are_whole_are_those_of_the_grid(tmp_path: Path, clock: Clock) -> None:
    run, link, _ = played(tmp_path / "a", clock, lambda node, kind, place: 0.0)
    config = config_of(tmp_path, rounds=2)
    assert gap(run, simulated(read_run_config(config), tmp_path / "s")) < 1e-12
    assert len(link.confirmed) == 3 + 2 * 3  # each reply frees its objects


def test_a_reply_whose_objects_are_late_stretches_no_deadline(tmp_path: Path, clock: Clock) -> None:
    """Silo 2's header comes at once, and all but its first object 150 s later."""
    late = 1001  # the first node is silo 2

    def when(node: int, kind: str, place: int) -> float:
        return 150.0 if (node, kind) == (late, "train") and place else 0.0

    run, link, ends = played(tmp_path, clock, when)
    assert node_of(link.silos, 2) == late
    began, *ends = ends
    rounds = [end - before for before, end in zip([began, *ends], ends, strict=False)]
    assert all(DEADLINE <= seconds <= DEADLINE + 1 for seconds in rounds), rounds
    assert [record.missed for record in run.records[1:]] == [(2,), (2,)]
    why = "its answer had begun to come"
    assert lines(run, "missed") == [(1, 2, why), (2, 2, why)]
    assert len(lines(run, "ok")) == 4  # the others are in both rounds
    assert len(link.confirmed) == 3 + 2 * 3  # what was begun is freed as well


def test_objects_that_come_by_the_deadline_are_waited_for(tmp_path: Path, clock: Clock) -> None:
    """Slow lines are no fault: each object a second after the one before."""
    run, _, ends = played(tmp_path, clock, lambda node, kind, place: float(place))
    assert not lines(run, "missed")
    assert ends[-1] - ends[0] < DEADLINE
    config = config_of(tmp_path, rounds=2)
    assert gap(run, simulated(read_run_config(config), tmp_path / "s")) < 1e-12


def test_who_is_silent_is_named_without_a_reply_that_began(tmp_path: Path, clock: Clock) -> None:
    config = config_of(tmp_path, flower__deadline=DEADLINE, flower__join=DEADLINE, rounds=1)
    silos = grid_of(config, faults={1: silent()})
    link = Link(silos, clock, lambda node, kind, place: 0.0)
    run = serve(Wired(link), read_run_config(config), lambda _: None)
    assert lines(run, "missed") == [(1, 1, None)]


def test_a_question_whose_answer_is_late_holds_up_nobody(tmp_path: Path, clock: Clock) -> None:
    """A node that says who it is in pieces: the run begins without it, once there is a quorum."""

    def when(node: int, kind: str, place: int) -> float:
        return 1e6 if (node, kind) == (1001, "query.hello") else float(place) / 2

    run, link, ends = played(tmp_path, clock, when)
    assert ends[0] <= DEADLINE + 1
    assert {silo for _, silo, _ in lines(run, "missed")} == {2}
    assert len(lines(run, "ok")) == 4
    assert len(link.confirmed) > 2 + 4  # what was begun is freed before it is asked again


def test_what_was_of_a_reply_is_gone_and_that_is_told_at_once(tmp_path: Path, clock: Clock) -> None:
    def when(node: int, kind: str, place: int) -> float:
        return -1.0 if (node, kind) == (1001, "train") and place else 0.0

    run, _, ends = played(tmp_path, clock, when)
    assert lines(run, "missed") == [(1, 2, None), (2, 2, None)]
    assert ends[-1] - ends[0] < DEADLINE


class Shredding(Link):
    """Silo 2's updates are in a thousand pieces more than there are."""

    def tree(self, reply: Message) -> ObjectTree:
        found = super().tree(reply)
        if (reply.metadata.src_node_id, reply.metadata.message_type) == (1001, "train"):
            found.children.extend(ObjectTree(object_id=f"{n}") for n in range(1000))
        return found


class Spoiling(Link):
    """Silo 2's updates are nonsense."""

    def sent(self, node: int, kind: str, content: bytes) -> bytes:
        return b"nonsense" if (node, kind) == (1001, "train") else content


class Swelling(Link):
    """Silo 2's updates are longer than any may be."""

    def sent(self, node: int, kind: str, content: bytes) -> bytes:
        return content + bytes(2000) if (node, kind) == (1001, "train") else content


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Swelling, "bytes that are allowed"),
        (Shredding, "pieces, and 500 are allowed"),
        (Spoiling, "its answer cannot be read ("),
    ],
)
def test_a_reply_that_cannot_be_read_is_refused_by_name(
    link: type[Link], why: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls_module, "PIECES", 500)
    monkeypatch.setattr(pulls_module, "ROOM", -14_000)  # so that an honest answer just fits
    run, _, _ = played(tmp_path, clock, lambda node, kind, place: 0.0, link)
    refused = lines(run, "refused")
    assert [(number, silo) for number, silo, _ in refused] == [(1, 2), (2, 2)]
    assert all(why in (given or "") for _, _, given in refused), refused
