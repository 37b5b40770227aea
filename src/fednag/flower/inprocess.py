"""A grid in this process: silos answer at once, through the real ClientApp.

For tests, and to see a deployment's whole code path without starting anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message, Message], Message | None]
"""(what was asked, what was answered) -> what arrives; None: nothing does."""


class InProcessGrid(Grid):
    """Nodes with the given ``node_config``, all of one ``run_config``.

    ``faults`` maps a node to what goes wrong with its answers.
    """

    def __init__(
        self,
        app: ClientApp,
        run_config: Mapping[str, Any],
        node_configs: Iterable[Mapping[str, Any]],
        faults: Mapping[int, Fault] | None = None,
    ) -> None:
        self.app, self.faults = app, dict(faults or {})
        # Flower gives a process its identity; here there is none to give it.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.contexts: dict[int, Context] = {}
        self.names: dict[int, str] = {}
        self.run_config = dict(run_config)
        self._ids = count(1001, 7)
        self._answers: dict[str, Message] = {}
        for node_config in node_configs:
            self.join(node_config)

    def join(self, node_config: Mapping[str, Any], name: str = "") -> int:
        """A new node, with nothing in its state."""
        node = next(self._ids)
        self.contexts[node] = Context(
            1, node, dict(node_config), RecordDict(), dict(self.run_config)
        )
        self.names[node] = name
        return node

    def leave(self, node: int) -> None:
        del self.contexts[node]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names[node]) for node in self.contexts]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            reply = self._answered(message)
            if reply is not None:
                self._answers[message.object_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answers.pop(sent) for sent in message_ids if sent in self._answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answered(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node not in self.contexts:
            return None
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # as a SuperNode does with whatever an app raises
            reply = Message(Error(0, repr(error)), reply_to=message)
        fault = self.faults.get(node)
        return fault(message, reply) if fault else reply

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
