"""Which node is which silo: newcomers say who they are, and are turned away if they do not fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fednag.flower import protocol
from fednag.flower.protocol import HELLO, PROTOCOL, Refusal, expect, one_line, versions
from fednag.flower.settings import Deployment

PAUSE = 0.5  # seconds between two looks


class Roster:
    """The silos that have said who they are.

    A node is asked once; if it goes and comes back, again. Nothing here waits for a single node,
    so one that never answers holds up nobody.
    """

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        sizes: Mapping[int, int],
        tell: Callable[[str], None],
    ) -> None:
        self.grid, self.deployment, self.tell = grid, deployment, tell
        self.sizes = sizes  # where the server knows them itself
        self.nodes: dict[int, int] = {}  # silo -> node
        self.samples: dict[int, int] = {}  # silo -> what it said; the first word counts
        self.turned_away: dict[int, str] = {}  # node -> why
        self._asked: dict[str, int] = {}  # message -> node, still to answer
        self._online: set[int] = set()
        self._names: dict[int, str] = {}

    @property
    def present(self) -> set[int]:
        """Silos whose nodes are connected."""
        return {silo for silo, node in self.nodes.items() if node in self._online}

    def look(self) -> None:
        """Ask newcomers who they are, and hear those who answer; waits for nobody."""
        nodes = list(self.grid.get_nodes())
        self._online = {node.node_id for node in nodes}
        self._names = {node.node_id: node.name for node in nodes}
        for node in [n for n in self.turned_away if n not in self._online]:
            del self.turned_away[node]
        known = {*self.nodes.values(), *self.turned_away, *self._asked.values()}
        newcomers = [node for node in self._online if node not in known]
        if newcomers:
            about = {"protocol": PROTOCOL, "digest": self.deployment.digest, **versions()}
            hellos = [protocol.message(HELLO, node, about) for node in newcomers]
            ids = self.grid.push_messages(hellos)
            self._asked |= {i: n for i, n in zip(ids, newcomers, strict=False) if i}
        if self._asked:
            for reply in self.grid.pull_messages(list(self._asked)):
                self._hear(reply)
        gone = [i for i, node in self._asked.items() if node not in self._online]
        for message in gone:
            del self._asked[message]

    def gather(self, wanted: Collection[int], seconds: float) -> None:
        """Wait until these silos are here, or time is up."""
        until = time.monotonic() + seconds
        self.look()
        while not set(wanted) <= self.present and time.monotonic() < until:
            time.sleep(PAUSE)
            self.look()

    @property
    def someone_is_coming(self) -> bool:
        """Whether a node that is connected has yet to say who it is."""
        return bool(self._asked)

    def _hear(self, reply: Message) -> None:
        node = self._asked.pop(reply.metadata.reply_to_message_id, None)
        if node is None or protocol.nobody(reply):
            return  # if it is still there, it is asked again
        try:
            silo, samples = self._admit(node, protocol.about(reply))
        except Refusal as refusal:
            self.turned_away[node] = str(refusal)
            self.tell(f"node {node} is turned away: {refusal}")
            return
        back = " again" if silo in self.nodes else ""
        self.nodes[silo] = node
        self.samples[silo] = samples
        self.tell(f"silo {silo} is here{back}: {samples} samples, node {node}")

    def _admit(self, node: int, said: dict[str, Any]) -> tuple[int, int]:
        """(which silo it is, its samples), or a refusal."""
        ours, flower = versions(), self.deployment.flower
        checked = ("fednag",) if flower.other_versions else tuple(ours)
        expect(said, protocol=PROTOCOL, digest=self.deployment.digest)
        expect(said, **{name: ours[name] for name in checked})
        silo = said.get("silo")
        if type(silo) is not int or not 0 <= silo < self.deployment.silos:
            raise Refusal(
                f"its silo is {one_line(silo, 60)}, not one of 0 to {self.deployment.silos - 1}"
            )
        if flower.bind and self._names.get(node) != f"{flower.bind}-{silo}":
            name = one_line(self._names.get(node), 60)
            raise Refusal(f"it says it is silo {silo}, and is registered as {name!r}")
        if silo in self.present:
            raise Refusal(f"silo {silo} is already here, as node {self.nodes[silo]}")
        return silo, self.count(silo, said.get("samples"))

    def count(self, silo: int, claimed: object) -> int:
        """A sample count that may be believed: whole, above 0, within the cap, never changed."""
        most = self.deployment.flower.max_samples
        if type(claimed) is not int or not 1 <= claimed <= most:
            given = one_line(claimed, 60)
            raise Refusal(f"it claims {given} samples, not a whole number from 1 to {most}")
        first = self.sizes.get(silo, self.samples.get(silo, claimed))
        if claimed != first:
            raise Refusal(f"it claims {claimed} samples, and has {first}")
        return claimed
