"""The server's side of secure sums: four steps over the grid, in which it sees no update."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message

from fednag.aggregators import Secure
from fednag.controllers import Constant
from fednag.core.aggregator import Total
from fednag.core.executor import Answers, Exchange, Receipt
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.flower.masked import (
    KEY_SIZES,
    KEYS,
    MASKED,
    SEED,
    SHARES,
    SURVIVORS,
    VANISHED,
    alike,
    bytes_of,
    context_of,
    labelled,
    numbered,
)
from fednag.flower.protocol import Refusal
from fednag.flower.silo_memory import mark
from fednag.secure.collector import Collector
from fednag.secure.terms import STEPS, Terms
from fednag.simulate.secured import as_vectors

if TYPE_CHECKING:
    from fednag.flower.fleet import Fleet, Replies

KINDS = ("query.keys", "query.shares", "train.masked", "query.unmask")
Take = Callable[[int, Message], None]


@dataclass
class SecureSum:
    """One exchange whose updates are added up under masks.

    ``about`` is what a silo is told of its task, ``record`` what all of them are sent.
    """

    fleet: Fleet
    asked: Exchange
    aggregator: Secure
    record: ArrayRecord
    about: Callable[[int], dict[str, Any]]
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))
    lost: list[Replies] = field(default_factory=list)  # in each step
    missed: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    receipts: dict[int, Receipt] = field(default_factory=dict)
    down: int = 0
    up: int = 0

    def answers(self, like: Vectors) -> Answers:
        """The sum of updates ``like`` these; raises FednagError if too few silos go on."""
        fleet, asked, aggregator = self.fleet, self.asked, self.aggregator
        like = Vectors(**{name: like[name] for name in sorted(like)})
        needed = aggregator.needed(fleet.deployment.cohort)
        about = {**self.about(int(asked.workers[0])), "round": asked.round, "attempt": self.attempt}
        terms = Terms(context_of(about), needed, aggregator.bits)
        collector = Collector(terms, sum(map(len, like.values())))
        with self._told():
            updates = self._masked(collector)
        fleet.enter(updates, "ask" if asked.stage.asks else "train", asked.round)
        everyone = replace(updates, refused=self.refused, missed=tuple(sorted(self.missed)))
        fleet.check(everyone, asked.round, len(updates.good))
        if not updates.good:
            return self._answers(None, ())
        with self._told():
            sums = self._unmasked(collector)
        shares = [aggregator.share(self._weight(silo), self.weight) for silo in collector.survivors]
        vectors = as_vectors(torch.from_numpy(sums.astype(np.int64)), like)
        return self._answers(Total(vectors, sum(shares)), collector.survivors)

    def _masked(self, collector: Collector) -> Replies:
        """The first three steps; what came of the third."""
        asked = self.asked.workers.tolist()

        def keys(silo: int, reply: Message) -> None:
            collector.advertised(silo, bytes_of(reply, {KEYS: KEY_SIZES})[0])

        def shares(silo: int, reply: Message) -> None:
            collector.shared(silo, *bytes_of(reply, {SEED: (), SHARES: ()}))

        def update(silo: int, reply: Message) -> None:
            (content,) = bytes_of(reply, {MASKED: ()})
            if self.asked.receipts:
                self.receipts[silo] = self.fleet.receipt(silo, reply, self.asked)
            collector.add(silo, np.frombuffer(content, dtype=np.uint8))

        self._step(0, asked, ArrayRecord(), {}, keys)
        roster = labelled(collector.roster())
        self._step(1, list(collector.roster()), roster, {}, shares)

        def handed(silo: int) -> ArrayRecord:
            return ArrayRecord({**self.record, **labelled(collector.sealed_for(silo))})

        return self._step(2, collector.dealers, handed, {"weight": self.weight}, update)

    @property
    def weight(self) -> float:
        """What all who are asked weigh; who never came, and nobody knows, counts nothing."""
        known = {**self.fleet.membership.samples, **self.fleet.membership.sizes}
        return float(sum(self._weight(k) for k in self.asked.workers.tolist() if k in known))

    def _alike(self) -> bytes:
        """What masks are bound to, as the silos find it in what they were sent."""
        same = isinstance(self.fleet.plan.scheme.controller, Constant)
        steps = int(self.asked.steps[0]) if same else 0
        numbers = self.about(int(self.asked.workers[0]))["numbers"]
        return alike(self.record, numbers, self.weight, steps)

    def _unmasked(self, collector: Collector) -> Any:
        """The last step: the sum without its masks."""
        survivors = collector.survivors
        asked = {SURVIVORS: numbered(survivors), VANISHED: numbered(collector.vanished)}

        def revealed(silo: int, reply: Message) -> None:
            collector.revealed(silo, *bytes_of(reply, {SHARES: ()}))

        self._step(3, survivors, ArrayRecord(asked), {}, revealed)
        return collector.sum(self._alike())

    def _step(
        self,
        step: int,
        silos: Collection[int],
        record: ArrayRecord | Callable[[int], ArrayRecord],
        more: Mapping[str, Any],
        take: Take,
    ) -> Replies:
        """Ask these silos for a step, and take what they answer, one by one."""
        fleet, number = self.fleet, self.asked.round

        def about(silo: int) -> dict[str, Any]:
            return {**self.about(silo), "attempt": self.attempt, **more}

        workers = np.array(sorted(silos), dtype=np.int64)
        replies = fleet.ask(KINDS[step], workers, number, record, about)
        good, refused = {}, dict(replies.refused)
        for silo, reply in replies.good.items():
            try:
                take(silo, reply)
                good[silo] = reply
            except Refusal as refusal:
                refused[silo] = refusal
            except FednagError as error:
                refused[silo] = Refusal(str(error))
        self.down += replies.down
        self.up += replies.up
        found = replace(replies, good=good, refused=refused)
        self.lost.append(found)
        if step != 2:
            fleet.enter(replace(found, good={}), STEPS[step], number)
        if step != 3:  # whose updates are in the sum has taken part
            self.missed |= set(found.missed)
            self.refused |= refused
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What is missing for the sum, as a sentence about the round."""
        try:
            yield
        except FednagError as error:
            missed = {silo for replies in self.lost for silo in replies.missed}
            refused = {silo for replies in self.lost for silo in replies.refused}
            raise FednagError(
                f"round {self.asked.round}",
                f"{error.problem} (missed: {_listed(missed)}; refused: {_listed(refused)})",
                f"what was done is saved: see silos.jsonl, {error.remedy}, and go on with "
                "flower.resume=true",
            ) from None

    def _weight(self, silo: int) -> float:
        membership = self.fleet.membership
        return self.aggregator.weight({**membership.samples, **membership.sizes}[silo], 0)

    def _answers(self, total: Total | None, survivors: tuple[int, ...]) -> Answers:
        asks = self.asked.stage.asks
        for silo in self.refused:  # of an update that is in no sum
            self.receipts[silo] = Receipt(None, self.fleet.membership.samples.get(silo, 0))
        used = mark(self.asked.round)
        remembers = self.fleet.plan.scheme.uplink.remembers
        return Answers(
            total=total,
            size=sum(self.fleet.membership.samples[silo] for silo in survivors),
            memories={} if asks else dict.fromkeys(survivors, used),
            residues={(k, self.asked.place): used for k in survivors if remembers},
            refused=tuple(sorted(self.refused)),
            missed=tuple(sorted(self.missed)),
            down=self.down,
            up=self.up,
            receipts=self.receipts if self.asked.receipts else {},
        )


def _listed(silos: Collection[int]) -> str:
    return ", ".join(map(str, sorted(silos))) or "none"
