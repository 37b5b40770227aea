"""The server's side of rounds: silos on other machines in place of the simulator's threads.

The training loop is the simulator's. Here is what it asks of the workers, asked over Flower's grid:
with a deadline and a quorum, answers checked one by one and summed in the order of the silos, so
that a deployment repeats and equals the simulator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from fednag.aggregators.norm_bound import lengths as times_as_long
from fednag.aggregators.norm_bound import norms, too_long
from fednag.core.aggregator import including
from fednag.core.algorithm import BUFFERS, lengths
from fednag.core.executor import Answers, Exchange, Executor, Memories, Receipt, Residues
from fednag.core.keys import UPLINK, Draws, Indexes
from fednag.core.loop import Asked, Loop
from fednag.core.state import State
from fednag.core.vectors import Vectors, digest
from fednag.errors import FednagError
from fednag.flower import protocol
from fednag.flower.membership import PAUSE, Membership, median
from fednag.flower.processes import SOONEST
from fednag.flower.protocol import (
    EVALUATE,
    MEASURES,
    METRIC,
    PROTOCOL,
    TOLD,
    TRAIN,
    Refusal,
    versions,
)
from fednag.flower.pulls import Pulls
from fednag.flower.resident import GRACE
from fednag.flower.settings import Deployment
from fednag.flower.signing import is_signed
from fednag.flower.silo_log import SiloLog, entry
from fednag.flower.silo_memory import accepted, mark
from fednag.flower.sums import SecureSum
from fednag.runs.ledger import statement
from fednag.simulate.evaluator import Measures
from fednag.simulate.run import Local, Plan

ENOUGH = 3  # updates that tell by themselves which of them is too long
COMING = 15.0  # seconds a round waits for a silo that has just connected


@dataclass(frozen=True, eq=False)
class Replies:
    """The silos' answers to a request."""

    good: Mapping[int, Message]  # by silo, in order
    refused: dict[int, Refusal]
    missed: tuple[int, ...]
    down: int
    up: int
    late: frozenset[int] = frozenset()  # of the missed, those whose answers had begun to come
    said: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # by the good
    measured: Mapping[int, Message] = field(default_factory=dict)  # all that have measures

    @property
    def evaluations(self) -> Replies:
        """What those who were asked to train said of the model before it, as answers of its own.

        Whose update is refused has measured the model none the less.
        """
        refused = {silo: why for silo, why in self.refused.items() if silo not in self.measured}
        for silo in self.good.keys() - self.measured.keys():
            refused[silo] = Refusal("it has not measured the model")
        said = {silo: protocol.metrics(reply, MEASURES) for silo, reply in self.measured.items()}
        return replace(self, good=self.measured, refused=refused, said=said)


@dataclass(frozen=True, eq=False)
class Ahead:
    """An exchange that was played with the evaluation before it, and its answers."""

    asked: Exchange
    replies: Replies

    def is_for(self, asked: Exchange) -> bool:
        """Whether this is what is asked now."""
        mine = self.asked
        same = (mine.round, mine.place, mine.numbers) == (asked.round, asked.place, asked.numbers)
        return (
            same
            and mine.as_differences == asked.as_differences
            and all(
                np.array_equal(getattr(mine, name), getattr(asked, name))
                for name in ("workers", "steps", "starts")
            )
            and set(mine.sent) == set(asked.sent)
            and all(torch.equal(mine.sent[name], vector) for name, vector in asked.sent.items())
        )


class Fleet(Executor):
    """Silos on a grid, asked as the simulator asks its threads."""

    counts_downloads = True

    def __init__(
        self,
        grid: Grid,
        deployment: Deployment,
        plan: Plan,
        token: str,
        log: SiloLog,
        tell: Callable[[str], None] = print,
        keys: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.grid, self.deployment, self.plan = grid, deployment, plan
        self.token, self.log, self.tell = token, log, tell
        # Every number in 16 bytes at most, also under masks.
        self.pulls = Pulls(grid, 16 * self._vectors * len(plan.problem.initial))
        known = dict(enumerate(deployment.flower.samples))
        if not deployment.private:
            known = {i: len(o) for i, o in enumerate(plan.owned)}
        self.membership = Membership(grid, deployment, known, tell, keys, log, self.pulls)
        self.keys = self.membership.keys
        self._ahead: Ahead | None = None
        self._here: Local | None = None
        if deployment.evaluates_here:
            sizes = [len(o) for o in plan.owned]
            self._here = Local(plan, Draws(plan.seed, sizes, plan.batch))

    def __enter__(self) -> Fleet:
        if self._here:
            self._here.__enter__()
        self._assemble()
        return self

    def __exit__(self, *_: object) -> None:
        if self._here:
            self._here.__exit__()

    @property
    def executor(self) -> Fleet:
        return self

    @property
    def held(self) -> int:  # type: ignore[override]
        return sum({**self.membership.counted, **self.membership.sizes}.values())

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        ahead, self._ahead = self._ahead, None
        if ahead and ahead.is_for(asked):
            return self._reduced(ahead.replies, asked, memories)
        record = protocol.pack(asked.sent if asked.wire is None else asked.wire)
        about = self._about(asked, memories, residues)
        if secure := self.deployment.secure:
            return SecureSum(self, asked, secure, record, about).answers(self._like(asked))
        answers = self.ask(TRAIN, asked.workers, asked.round, record, about)
        return self._reduced(answers, asked, memories)

    def _about(
        self, asked: Exchange, memories: Memories, residues: Residues, **more: Any
    ) -> Callable[[int], dict[str, Any]]:
        """What a silo is told of an exchange, beside its vectors."""
        each = zip(asked.workers.tolist(), asked.starts.tolist(), asked.steps.tolist(), strict=True)
        orders = {silo: {"start": start, "steps": steps} for silo, start, steps in each}
        same = {
            "stage": asked.place,
            "token": self.token,
            "numbers": json.dumps(dict(asked.numbers)),
            "differences": asked.as_differences,
            **more,
        }

        def about(silo: int) -> dict[str, Any]:
            last = {"accepted": memories.get(silo), "left": residues.get((silo, asked.place))}
            return {**same, **orders[silo], **{key: accepted(m) for key, m in last.items()}}

        return about

    def verify(self, state: State) -> None:
        """Silos compare their recordings themselves."""

    def tested(self, state: State) -> Mapping[str, float | None]:
        return self._here.tested(state) if self._here else {}

    def measure(self, state: State) -> Measures:
        if self._here:
            return self._here.measure(state)
        if found := self._next(state):
            asked, memories, residues = found
            about = self._about(asked, memories, residues, evaluate=True)
            replies = self.ask(TRAIN, asked.workers, asked.round, protocol.pack(asked.sent), about)
            self._ahead = Ahead(asked, replies)
            return self._measured(replies.evaluations, state.round)
        return self._evaluated(state)

    def _evaluated(self, state: State) -> Measures:
        """The silos' measures, in an exchange of its own."""
        everyone = np.arange(self.deployment.silos)
        record = protocol.pack(state.server.pick(self._with_buffers(("w",), state.server)))

        def about(silo: int) -> dict[str, Any]:
            return {"accepted": accepted(state.memories.get(silo)), "token": self.token}

        answers = self.ask(EVALUATE, everyone, state.round, record, about)
        return self._measured(answers, state.round)

    def _next(self, state: State) -> Asked | None:
        """The next exchange, if every silo is to have the model in it, to be measured there.

        None if it might never be played: what a silo has done then would be done in vain, and with
        noise for privacy it would cost without being counted.
        """
        plan, over = self.plan, state.diverged or state.iteration >= self.plan.iterations
        stops = plan.stop_accuracy, plan.stop_loss, plan.stop_seconds, plan.stop_bytes
        may_stop = plan.stop_metrics or plan.patience or plan.plateau or plan.privacy
        if over or may_stop or self.deployment.secure or any(s is not None for s in stops):
            return None
        if plan.scheme.controller.over(state.control, state.news, plan.setting):
            return None
        found = next(Loop(plan.scheme, plan.setting, self, plan.ledger).exchanges(state), None)
        if found is None or found[0].wire is not None or "w" not in found[0].sent:
            return None
        return found if len(found[0].workers) == self.deployment.silos else None

    def _with_buffers(self, names: tuple[str, ...], server: Vectors) -> tuple[str, ...]:
        return (*names, BUFFERS) if BUFFERS in server else names

    def _assemble(self) -> None:
        """Wait for all silos; when time is up, for as many as a round needs."""
        silos, flower = self.deployment.silos, self.deployment.flower
        self.tell(f"waiting for {silos} silos, at most {flower.join:g} s")
        self.membership.gather(range(silos), flower.join)
        here = self.membership.present
        if len(here) < self._quorum(min(self.plan.per_round or silos, silos)):
            away = "; ".join(f"node {n}: {why}" for n, why in self.membership.turned_away.items())
            raise FednagError(
                "flower.join",
                f"{len(here)} of {silos} silos came in {flower.join:g} s, too few for a "
                f"quorum{f' ({away})' if away else ''}",
                "start the others and run again",
            )

    def _quorum(self, asked: int) -> int:
        wanted = self.deployment.flower.quorum or asked // 2 + 1
        return min(wanted, asked)

    def ask(
        self,
        kind: str,
        silos: Indexes,
        number: int,
        record: ArrayRecord | Callable[[int], ArrayRecord],
        about: Callable[[int], dict[str, Any]],
    ) -> Replies:
        """Send to these silos what they need, and wait for answers until the deadline.

        ``record`` is the same for all, or made for each.
        """
        wanted = [int(silo) for silo in silos]
        until = time.monotonic() + self.deployment.flower.deadline
        self._call_in(wanted, until)
        here = [silo for silo in wanted if silo in self.membership.present]
        # The versions too: a silo may have been restarted with others since it said hello.
        same = {"protocol": PROTOCOL, "digest": self.deployment.digest, **versions()}
        left = max(until - time.monotonic(), 1.0) + GRACE
        records = {silo: record(silo) if callable(record) else record for silo in here}
        messages = [
            protocol.message(
                kind,
                self.membership.nodes[silo],
                {**same, "round": number, "silo": silo, **about(silo)},
                records[silo],
                left,
            )
            for silo in here
        ]
        ids = list(self.grid.push_messages(messages)) if messages else []
        waiting = {sent: silo for sent, silo in zip(ids, here, strict=False) if sent}
        down = sum(protocol.nbytes(records[silo]) for silo in waiting.values())
        replies: dict[int, Message | Refusal] = {}
        began = time.monotonic()
        while waiting:
            for sent, reply in self.pulls.pull(waiting).items():
                silo = waiting.pop(sent)
                if isinstance(reply, Refusal) or (reply and not protocol.nobody(reply)):
                    replies[silo] = reply
            if time.monotonic() >= until:
                break
            if waiting:  # a tenth of the time that it takes anyway
                time.sleep(min(max((time.monotonic() - began) / 10, SOONEST), PAUSE))
        late = frozenset(waiting[sent] for sent in self.pulls.drop(waiting))
        return replace(self._sorted_out(wanted, replies, number, down), late=late)

    def _call_in(self, wanted: list[int], until: float) -> None:
        """See who is here; wait a little for one who is coming, longer for a quorum."""
        membership = self.membership
        membership.look()
        while time.monotonic() < until:
            here = membership.present & set(wanted)
            soon = membership.someone_is_coming(COMING)
            if len(here) == len(wanted) or (len(here) >= self._quorum(len(wanted)) and not soon):
                return
            time.sleep(PAUSE)
            membership.look()

    def _sorted_out(
        self, wanted: list[int], replies: dict[int, Message | Refusal], number: int, down: int
    ) -> Replies:
        """Separate answers whose labels are right from the others, which are refused."""
        good, refused, measured, up = dict[int, Message](), {}, dict[int, Message](), 0
        label = {"round": number, "digest": self.deployment.digest}
        for silo, reply in sorted(replies.items()):
            if isinstance(reply, Refusal):
                refused[silo] = reply
                continue
            try:
                if MEASURES in protocol.records(reply):  # also beside the refusal to send an update
                    protocol.expect(protocol.label(reply), silo=silo, **label)
                    measured[silo] = reply
                said = protocol.about(reply)
                protocol.expect(said, silo=silo, **label)
                # Steps in which it has not looked at its data say nothing of them.
                held = said.get("samples", self.membership.samples.get(silo))
                self.membership.count(silo, held)
                good[silo] = reply
            except Refusal as refusal:
                refused[silo] = refusal
            if reply.has_content():
                up += sum(map(protocol.nbytes, reply.content.array_records.values()))
        missed = tuple(silo for silo in wanted if silo not in replies)
        told = {silo: protocol.metrics(reply) for silo, reply in good.items()}
        return Replies(good, refused, missed, down, up, said=told, measured=measured)

    def _like(self, asked: Exchange) -> Vectors:
        """Names, lengths and types of what a silo returns, before transforms."""
        w = self.plan.problem.initial
        returned = lengths(self.plan.algorithm, asked.stage, w)
        if BUFFERS in asked.sent and not asked.stage.asks:
            returned[BUFFERS] = len(asked.sent[BUFFERS])
        return protocol.layout(returned, w.dtype)

    @property
    def _vectors(self) -> int:
        """The most vectors that come up in an exchange, running statistics among them."""
        return 1 + max(len(stage.up) for stage in self.plan.scheme.stages)

    def _reduced(self, answers: Replies, asked: Exchange, known: Memories) -> Answers:
        """The uploads, aggregated in the order of the silos."""
        aggregator = asked.aggregator or self.plan.scheme.aggregator
        counted, total = self.membership.counted, None
        receipts: dict[int, Receipt] = {}
        ups, refused = self._decoded(answers, asked, receipts)
        # A row a stage: steps and lengths, 0 is none. States of earlier versions have no lengths.
        shape = len(self.plan.scheme.stages), 1 + self._vectors
        none = torch.zeros(shape, dtype=torch.float64)
        before = {silo: kept.get("lengths", none) for silo, kept in known.items()}
        # Who is left out must not depend on others' data where the mean is noised for privacy.
        bound = 0.0 if aggregator.always else self.deployment.flower.norm_bound
        lengths, long = self._bounded(ups, asked, before, bound)
        refused |= long
        for silo in [silo for silo in ups if silo not in refused]:
            total = including(aggregator, total, ups[silo], counted[silo], silo)
        if total is not None:
            total, whose = aggregator.screen(total)
            refused |= {silo: Refusal(f"{why} (aggregator)") for silo, why in whose.items()}
            total = total.to(self.plan.problem.device)
        used = [silo for silo in ups if silo not in refused]
        # They tell a silo which of its memories are meant: those of the last round used.
        last = {silo: accepted(kept) for silo, kept in known.items()}
        told: dict[int, dict[str, float]] = {}
        residues: dict[tuple[int, int], Vectors] = {}
        for silo in used:
            last[silo] = last.get(silo, 0) if asked.stage.asks else asked.round
            before[silo] = before.get(silo, none).index_put(
                (torch.tensor(asked.place),), lengths[silo]
            )
            said = answers.said[silo]
            told[silo] = {
                name.removeprefix(TOLD): n for name, n in said.items() if name.startswith(TOLD)
            }
            if self.plan.scheme.uplink.remembers:
                residues[silo, asked.place] = mark(asked.round)
        for silo in refused:
            receipts.setdefault(silo, Receipt(None, self.membership.samples.get(silo, 0)))
        answers = replace(answers, refused=refused)
        phase = "ask" if asked.stage.asks else "train"
        self._report(answers, phase, asked.round, len(used))
        return Answers(
            total=total,
            size=sum(counted[silo] for silo in used),
            memories={
                silo: mark(number).but(lengths=before[silo]) for silo, number in last.items()
            },
            residues=residues,
            told=told,
            refused=tuple(sorted(refused)),
            missed=answers.missed,
            down=answers.down,
            up=answers.up,
            receipts=receipts if asked.receipts else {},
        )

    def _decoded(
        self, answers: Replies, asked: Exchange, receipts: dict[int, Receipt]
    ) -> tuple[dict[int, Vectors], dict[int, Refusal]]:
        """The uploads, and who has sent none that can be read and is finite."""
        uplink, like = self.plan.scheme.uplink.of(asked.rules), self._like(asked)
        sent = digest(asked.sent if asked.wire is None else asked.wire) if asked.receipts else ""
        ups, refused = {}, dict(answers.refused)
        for silo, reply in answers.good.items():
            try:
                if asked.receipts:
                    receipts[silo] = self.receipt(silo, reply, asked, sent)
                key = self.plan.seed, UPLINK, asked.round, silo, asked.place
                up = protocol.decoded(uplink, protocol.arrays(reply), like, *key)
                for name, vector in up.items():
                    if not bool(vector.isfinite().all()):
                        raise Refusal(f"{name} is not finite", not_finite=True)
                    # Others would train on it, and it is their updates that were not finite.
                    most = torch.finfo(vector.dtype).max ** 0.5
                    if self.deployment.flower.norm_bound and bool((vector.abs() > most).any()):
                        raise Refusal(f"{name} has squares that are not finite", not_finite=True)
                ups[silo] = up
            except Refusal as refusal:
                refused[silo] = refusal
        return ups, refused

    def _bounded(
        self,
        ups: dict[int, Vectors],
        asked: Exchange,
        before: Mapping[int, Tensor],
        factor: float,
    ) -> tuple[dict[int, Tensor], dict[int, Refusal]]:
        """Steps and lengths of these updates; and whose are far longer than the others'."""
        if not factor:
            return dict.fromkeys(ups, torch.zeros((), dtype=torch.float64)), {}
        if not ups:
            return {}, {}
        steps = dict(zip(asked.workers.tolist(), asked.steps.tolist(), strict=True))
        room, rows = 1 + self._vectors, []
        names: list[str] = []
        for silo, up in ups.items():
            if not asked.as_differences:
                sent = asked.sent.map(torch.Tensor.cpu)
                up = Vectors(**{n: v - sent[n] if n in sent else v for n, v in up.items()})
            found = norms(up.map(lambda vector: vector.unsqueeze(0)))
            names = list(found)
            own = torch.cat([torch.tensor([float(steps[silo])]).double(), *found.values()])
            rows.append(torch.nn.functional.pad(own, (0, room - len(own))))
        here = torch.stack(rows)
        # One or two do not tell by themselves which is too long; earlier rounds do.
        few = int(here[:, 1:].any(1).sum()) < ENOUGH
        earlier = [held[asked.place] for held in before.values()] if few else []
        every = torch.stack([*rows, *earlier])
        measured = Vectors(**dict(zip(names, every[:, 1:].T, strict=False)))
        times = times_as_long(measured)[: len(here)]
        # Who was to do more steps than others may come further.
        times = times / (here[:, 0] / every[:, 0].median().clamp(min=1.0)).clamp(min=1.0)
        return dict(zip(ups, here, strict=True)), {
            silo: Refusal(f"{too_long(time)} (flower.norm-bound is {factor:g})")
            for silo, time in zip(ups, times.tolist(), strict=True)
            if time > factor
        }

    def receipt(self, silo: int, reply: Message, asked: Exchange, sent: str = "") -> Receipt:
        """What a silo sent, signed if it has a key; a refusal if the signature is not its own."""
        sent = sent or digest(asked.sent if asked.wire is None else asked.wire)
        up = protocol.digest(protocol.arrays(reply))
        key, signature = self.keys.get(silo), protocol.about(reply).get("signature")
        samples = self.membership.samples[silo]
        if key is None:
            return Receipt(up, samples)
        steps = int(asked.steps[asked.workers == silo][0])
        entry = {"worker": silo, "round": asked.round, "stage": asked.place, "sent": sent, "up": up}
        content = statement(self.token, {**entry, "samples": samples, "steps": steps})
        if not isinstance(signature, str) or not is_signed(key, content, signature):
            raise Refusal("it is not signed with the key it registered with")
        return Receipt(up, samples, signature)

    def _measured(self, answers: Replies, number: int) -> Measures:
        """The silos' losses and accuracies as those of all their data together.

        Or their medians, which no silo can move beyond the others' by what it says. Means of
        metrics are weighted by test samples: of F1, say, that is not the F1 of all samples
        together, which no silo can tell.
        """
        found, lost, refused = {}, 0, dict(answers.refused)
        for silo in answers.good:
            said = answers.said[silo]
            if said.get("loss", -1) < 0:  # metrics that are not finite are left out
                lost, refused[silo] = lost + 1, Refusal("its loss is not finite", not_finite=True)
            elif said.get("test_loss", 0) < 0:
                refused[silo] = Refusal("its test loss is below 0")
            elif not all(0 <= said.get(key, 0) <= 1 for key in ("accuracy", "train_accuracy")):
                refused[silo] = Refusal("its accuracy is not between 0 and 1")
            else:
                found[silo] = said
        usable = len(found) or lost  # when no loss is finite, the model has diverged
        self._report(replace(answers, refused=refused), "evaluate", number, usable)
        if not found:
            return Measures(float("inf"), None, None)
        sizes = {silo: self.membership.counted[silo] for silo in found}
        tests = {silo: min(int(said.get("tests", 0)), sizes[silo]) for silo, said in found.items()}

        def mean(key: str, weights: dict[int, int]) -> float | None:
            named = {s: w for s, w in weights.items() if w and key in found[s]}
            if named and self.deployment.takes_medians:
                return median({s: found[s][key] for s in named}, named)
            total = sum(named.values())
            return sum(w * found[s][key] for s, w in named.items()) / total if total else None

        losses = tuple(found[silo]["loss"] for silo in sorted(found))
        everyone = self.plan.per_worker and len(found) == self.deployment.silos
        loss = mean("loss", sizes)
        assert loss is not None
        return Measures(
            loss=loss if isfinite(loss) else float("inf"),
            accuracy=mean("accuracy", tests),
            train_accuracy=mean("train_accuracy", sizes),
            worker_losses=losses if everyone else None,
            test_loss=mean("test_loss", tests),
            metrics={name: mean(f"{METRIC}{name}", tests) for name in self.plan.metrics},
        )

    def _report(self, answers: Replies, phase: str, number: int, usable: int) -> None:
        """Write down what each silo did; stop when too few of them did well."""
        self.enter(answers, phase, number)
        self.check(answers, number, usable)

    def enter(self, answers: Replies, phase: str, number: int) -> None:
        """Write down what each silo did."""
        lines = []
        for silo in sorted({*answers.good, *answers.refused, *answers.missed}):
            node = str(self.membership.nodes.get(silo, "")) or None
            if silo in answers.missed:
                late = "its answer had begun to come" if silo in answers.late else None
                more = f": {late}" if late else ""
                self.tell(f"round {number}: silo {silo} did not answer in time ({phase}){more}")
                lines.append(entry(silo, phase, "missed", node=node, why=late))
            elif silo in answers.refused:
                why = str(answers.refused[silo])
                self.tell(f"round {number}: silo {silo} is refused ({phase}): {why}")
                lines.append(entry(silo, phase, "refused", node=node, why=why))
            else:
                samples, weighs = self.membership.samples[silo], self.membership.counted[silo]
                counted = weighs if weighs != samples else None
                said = dict(answers.said[silo])
                known = {"samples": samples, "counted": counted, "metrics": said}
                lines.append(entry(silo, phase, "ok", node=node, **known))
        self.log.write(number, lines)

    def check(self, answers: Replies, number: int, usable: int) -> None:
        """Raise FednagError when too few of the silos did well."""
        asked = len({*answers.good, *answers.refused, *answers.missed})
        diverged = not usable and all(why.not_finite for why in answers.refused.values())
        if usable >= self._quorum(asked) or (diverged and not answers.missed):
            return
        raise FednagError(
            f"round {number}",
            f"{usable} of {asked} silos gave a usable answer, and the quorum is "
            f"{self._quorum(asked)} (missed: {_listed(answers.missed)}; refused: "
            f"{_listed(answers.refused)})",
            "what was done is saved: see silos.jsonl, bring them back, and go on with "
            "flower.resume=true",
        )


def _listed(silos: Any) -> str:
    return ", ".join(str(silo) for silo in sorted(silos)) or "none"
