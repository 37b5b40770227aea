"""Which node is which silo: newcomers say who they are, and are turned away if they do not fit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fednag.flower import protocol
from fednag.flower.protocol import HELLO, PROTOCOL, Refusal, compared, expect, one_line, versions
from fednag.flower.pulls import Pulls
from fednag.flower.resident import GRACE
from fednag.flower.settings import MAJORITY, Deployment
from fednag.flower.silo_log import SiloLog

PAUSE = 0.5  # seconds between two looks
KEY = re.compile(r"[0-9a-f]{64}")
AGAIN = 60.0  # seconds after which a node that was turned away may try again


class Membership:
    """The silos that have said who they are.

    A node is asked once; again if it goes and comes back, if what it was asked came to nothing, and
    after a while if it was turned away: its operator may have put things right. Nothing here waits
    for a single node, so one that never answers holds up nobody.
    """

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        sizes: Mapping[int, int],
        tell: Callable[[str], None],
        keys: Mapping[int, str],
        log: SiloLog,
        pulls: Pulls,
    ) -> None:
        self.grid, self.deployment, self.tell, self.log = grid, deployment, tell, log
        self.pulls = pulls
        self.sizes = sizes  # where the server knows them itself
        self.nodes: dict[int, int] = {}  # silo -> node
        self.samples: dict[int, int] = {}  # silo -> what it said; the first word counts
        self.keys = dict(keys)  # silo -> its public key, if it signs; the first word counts
        self.turned_away: dict[int, str] = {}  # node -> why
        self._asked: dict[str, int] = {}  # message -> node, still to answer
        self._first: dict[int, float] = {}  # node -> when it was first asked since it connected
        self._last: dict[int, float] = {}  # node -> when it was last asked
        self._names: dict[int, str] = {}  # of the nodes that are connected

    @property
    def counted(self) -> dict[int, int]:
        """Samples by which silos weigh: counts that nobody could check are capped."""
        if self.sizes or len(self.samples) < MAJORITY:
            return self.samples
        return capped(self.samples, self.deployment.flower.most_share)

    @property
    def present(self) -> set[int]:
        """Silos whose nodes are connected."""
        return set(self.nodes)

    def look(self) -> None:
        """Ask newcomers who they are, and hear those who answer; waits for nobody."""
        self._names = {node.node_id: node.name for node in self.grid.get_nodes()}
        self._forget_the_gone()
        self._listen()  # before anything is too late, for the last look may be long ago
        now, patience = time.monotonic(), self.deployment.flower.join
        # A question may have died with the process that got it.
        self._drop([m for m, n in self._asked.items() if now - self._last[n] > patience])
        if newcomers := [node for node in self._names if self._is_due(node, now)]:
            about = {"protocol": PROTOCOL, "digest": self.deployment.digest, **versions()}
            # Who is not heard by then is asked again.
            most = patience + GRACE
            hellos = [protocol.message(HELLO, n, about, seconds=most) for n in newcomers]
            for sent, node in zip(self.grid.push_messages(hellos), newcomers, strict=False):
                self._first.setdefault(node, now)
                self._last[node] = now
                if sent:
                    self._asked[sent] = node
            self._listen()

    def _listen(self) -> None:
        if self._asked:
            for sent, reply in self.pulls.pull(self._asked).items():
                self._hear(self._asked.pop(sent), reply)

    def _drop(self, questions: Collection[str]) -> None:
        """Wait for their answers no longer."""
        self.pulls.drop(questions)
        self._asked = {sent: n for sent, n in self._asked.items() if sent not in questions}

    def _forget_the_gone(self) -> None:
        """Forget nodes that are gone: one that comes back may have other data; it is asked anew."""
        here = self._names
        self.nodes = {silo: node for silo, node in self.nodes.items() if node in here}
        self.turned_away = {node: why for node, why in self.turned_away.items() if node in here}
        self._first = {node: when for node, when in self._first.items() if node in here}
        self._drop([sent for sent, node in self._asked.items() if node not in here])

    def _is_due(self, node: int, now: float) -> bool:
        """Whether a connected node is to be asked who it is."""
        if node in self.nodes.values() or node in self._asked.values():
            return False
        return node not in self.turned_away or now - self._last[node] > AGAIN

    def gather(self, wanted: Collection[int], seconds: float) -> None:
        """Wait until these silos are here, or time is up."""
        until = time.monotonic() + seconds
        self.look()
        while not set(wanted) <= self.present and time.monotonic() < until:
            time.sleep(PAUSE)
            self.look()

    def someone_is_coming(self, seconds: float) -> bool:
        """Whether a node that connected not longer ago than this has yet to say who it is."""
        now = time.monotonic()
        return any(now - self._first[node] < seconds for node in self._asked.values())

    def _hear(self, node: int, reply: Message | Refusal | None) -> None:
        if reply is None or (isinstance(reply, Message) and protocol.nobody(reply)):
            return  # if it is still there, it is asked again
        try:
            if isinstance(reply, Refusal):
                raise reply
            silo, samples = self._admit(node, protocol.about(reply))
        except Refusal as refusal:
            if self.turned_away.get(node) != str(refusal):
                self.tell(f"node {node} is turned away: {refusal}")
                name = {"name": one_line(given, 60)} if (given := self._names.get(node)) else {}
                why = {"node": str(node), **name, "why": str(refusal)}
                self.log.add(phase="hello", status="turned away", **why)
            self.turned_away[node] = str(refusal)
            return
        self.turned_away.pop(node, None)
        back = " again" if silo in self.samples else ""
        self.nodes[silo] = node
        self.samples[silo] = samples
        self.tell(f"silo {silo} is here{back}: {samples} samples, node {node}")
        for other, counted in self.counted.items():
            if counted != self.samples[other]:
                self.tell(
                    f"silo {other} says it has {self.samples[other]} samples, and weighs as if it "
                    f"had {counted} (flower.most-share); list what is agreed in flower.samples"
                )

    def _admit(self, node: int, said: dict[str, Any]) -> tuple[int, int]:
        """(which silo it is, its samples), or a refusal."""
        flower = self.deployment.flower
        expect(said, protocol=PROTOCOL, digest=self.deployment.digest)
        expect(said, **compared(flower.other_versions))
        silo = said.get("silo")
        if type(silo) is not int or not 0 <= silo < self.deployment.silos:
            raise Refusal(
                f"its silo is {one_line(silo, 60)}, not one of 0 to {self.deployment.silos - 1}"
            )
        if flower.bind and self._names.get(node) != f"{flower.bind}-{silo}":
            name = one_line(self._names.get(node), 60)
            raise Refusal(f"it says it is silo {silo}, and is registered as {name!r}")
        if silo in self.nodes:
            raise Refusal(f"silo {silo} is already here, as node {self.nodes[silo]}")
        samples = self.count(silo, said.get("samples"))
        self._register(silo, said.get("key"))
        return silo, samples

    def _register(self, silo: int, key: object) -> None:
        """Keep a silo's public key; one that comes back must have the same."""
        if key is not None and not (isinstance(key, str) and KEY.fullmatch(key)):
            raise Refusal(f"its ledger key is {one_line(key, 80)}, not 64 hexadecimal digits")
        if silo in self.keys and key != self.keys[silo]:
            raise Refusal(f"its ledger key is not the one that silo {silo} registered with")
        if key is not None:
            self.keys[silo] = key

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


def capped(counts: Mapping[int, int], most: float) -> dict[int, int]:
    """The counts with the largest lowered, so that none is above the share ``most`` of all.

    Where there are so few that this cannot be, all become the least.

    >>> capped({0: 100, 1: 200, 2: 10_000_000}, 0.5)
    {0: 100, 1: 200, 2: 300}
    """
    ordered = sorted(counts.values(), reverse=True)
    for above in range(len(ordered)):
        room = 1 - above * most
        # If so many have c, then c = most (above c + rest).
        limit = most * sum(ordered[above:]) / room if room > 0 else 0.0
        if ordered[above] <= limit:
            return {silo: min(count, int(limit)) for silo, count in counts.items()}
    return dict.fromkeys(counts, ordered[-1])


def median(values: Mapping[int, float], weights: Mapping[int, int]) -> float:
    """The weighted median, in which no silo weighs more than the one in the middle.

    So none of three or more has half of the weight, whatever count it claims. As long as those that
    lie have less than half together, what comes out is between two values of those that do not.

    >>> median({0: 0.2, 1: 0.3, 2: 0.99}, {0: 100, 1: 120, 2: 10_000})
    0.3
    """
    most = sorted(weights.values())[(len(weights) - 1) // 2]
    weighs = {silo: min(weight, most) for silo, weight in weights.items()}
    half, sum_ = sum(weighs.values()) / 2, 0
    ordered = sorted(values.items(), key=lambda item: item[1])
    for place, (silo, found) in enumerate(ordered):
        sum_ += weighs[silo]
        if sum_ == half:
            return (found + ordered[place + 1][1]) / 2
        if sum_ > half:
            return found
    raise ValueError("no values")
