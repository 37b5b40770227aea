"""Replies pulled object by object, so that a silo that is late with some holds up nobody.

Flower's ``pull_messages`` fetches the header of a reply, which is handed out once, and waits until
its objects are there: up to two hours, and nobody looks at a deadline. Here a pull takes what there
is, and the rest is asked for again at the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from fednag.flower.protocol import Refusal, one_line

PIECES = 2000  # objects of a reply, at most; Flower cuts vectors into such of 5 MB
ROOM = 1 << 26  # bytes of a reply, at most, beside those of its vectors


@dataclass
class _Begun:
    """A reply whose header is here."""

    name: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of those


class Pulls:
    """The replies of a grid; a silo's may have so many bytes of vectors, ``most``."""

    def __init__(self, grid: Grid, most: int = 0) -> None:
        self.grid, self.most = grid, most + ROOM
        self._begun: dict[str, _Begun] = {}  # by the message that is replied to

    def pull(self, asked: Collection[str]) -> dict[str, Message | Refusal | None]:
        """What came of these messages; waits for nothing, and what is not whole is not among it.

        A refusal is for a reply that cannot be read. None: what there was of it is gone.
        """
        if not isinstance(self.grid, HttpGrid):
            replies = self.grid.pull_messages(list(asked))
            return {reply.metadata.reply_to_message_id: reply for reply in replies}
        found: dict[str, Message | Refusal | None] = {}
        if new := [sent for sent in asked if sent not in self._begun]:
            answer = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=new))
            for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                parts = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
                begun = _Begun(header.metadata.message_id, parts)
                self._begun[header.metadata.reply_to_message_id] = begun
        for sent in [sent for sent in asked if sent in self._begun]:
            begun = self._begun[sent]
            try:
                if self._has_come(self.grid, begun):
                    found[sent] = _inflated(begun)
            except Refusal as refusal:
                found[sent] = refusal
            except LookupError:
                found[sent] = None
            if sent in found:
                self.drop([sent])
        return found

    def drop(self, asked: Collection[str]) -> set[str]:
        """Pull these no more; those whose replies had begun to come."""
        begun = {sent for sent in asked if sent in self._begun}
        for sent in begun:
            name = self._begun.pop(sent).name
            assert isinstance(self.grid, HttpGrid)
            self.grid._runtime_client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=name
                )
            )
        return begun

    def _has_come(self, grid: HttpGrid, begun: _Begun) -> bool:
        """Fetch what there is of a reply: whether it is whole. LookupError: it never will be."""
        if len(begun.missing) > PIECES:
            raise Refusal(f"its answer is in {len(begun.missing)} pieces, and {PIECES} are allowed")
        while begun.missing:
            name = begun.missing[0]
            part = grid._runtime_client.PullObject(
                PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=name)
            )
            if not part.object_found:
                raise LookupError(name)
            if not part.object_available:
                return False
            begun.contents[begun.missing.pop(0)] = part.object_content
            begun.size += len(part.object_content)
            if begun.size > self.most:
                raise Refusal(f"its answer has more than the {self.most} bytes that are allowed")
        return True


def _inflated(begun: _Begun) -> Message:
    try:
        message = inflate_object_from_contents(begun.name, begun.contents)
    except Exception as error:  # whatever Flower's parser makes of a stranger's bytes
        raise Refusal(f"its answer cannot be read ({one_line(error, 200)})") from error
    if not isinstance(message, Message):
        raise Refusal(f"its answer is no message, but {type(message).__name__}")
    message.metadata.__dict__["_message_id"] = begun.name
    return message
