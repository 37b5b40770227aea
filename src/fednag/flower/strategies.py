"""fednag's methods as Flower strategies, for those who already have a Flower app.

In the ServerApp put one of these where Flower's ``FedAvg`` was; in the ClientApp return
``fednag.flower.training.train(message, context, model, loader, loss)``::

    strategy = FedNAG(lr=0.01, momentum=0.9, fraction_train=1.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)

Every method of the registry has one, of the same name. A strategy takes the method's numbers and
what ``Method`` and Flower's ``FedAvg`` take. The round is the simulator's; Flower, or a controller,
draws who takes part. Replies that are not finite, wrongly shaped or claim an absurd number of
samples are left out, and logged.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from logging import INFO, WARNING
from typing import Any, ClassVar, cast

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as Averaging
from flwr.serverapp.strategy import Result

from fednag.aggregators import Secure
from fednag.algorithms import ALGORITHMS
from fednag.config import check_algorithm, describe
from fednag.config.own import build_part
from fednag.config.parts import REGISTRIES, aggregator_of, check_schedule, described
from fednag.core.aggregator import Total, including
from fednag.core.algorithm import BUFFERS, Algorithm, News, numbers_returned
from fednag.core.controller import Controller, Order, Setting
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues
from fednag.core.keys import Indexes
from fednag.core.loop import Asked, Loop, Scheme
from fednag.core.state import State
from fednag.core.transform import Chain, Transform
from fednag.core.vectors import Vectors
from fednag.errors import FednagError, within
from fednag.flower.named import ORDER, SIZE, STEPS, TRAIN, Names
from fednag.flower.protocol import Refusal, one_line, pack
from fednag.flower.settings import MOST_SAMPLES
from fednag.flower.silo_memory import accepted, mark
from fednag.privacy.promise import secret


@dataclass(frozen=True, eq=False)
class Among(Controller):
    """A controller that is told of these nodes alone; without one, all of them are asked."""

    workers: Indexes
    controller: Controller | None = None

    def next(
        self, state: dict[str, Any], news: News, free: Indexes, stage: Algorithm, setting: Setting
    ) -> tuple[Order, dict[str, Any]]:
        if self.controller:
            return self.controller.next(state, news, self.workers, stage, setting)
        return Order(self.workers, setting.tau), state


class Method(Averaging, Executor):
    """Any method as a strategy: ``Method(algorithm, **options of Flower's FedAvg)``.

    ``uplink``, ``downlink``, ``aggregator``, ``controller`` and ``schedules`` are parts of a round
    as in experiment files: names, tables or objects. A schedule runs over the rounds of ``start``;
    ``seed`` is that of the random draws of methods and parts. With ``tau`` every node does so many
    local iterations a round, however many batches its loader has, and a controller may say
    otherwise. A controller also draws the nodes of a round, as many as Flower would.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        uplink: Sequence[Any] = (),
        downlink: Sequence[Any] = (),
        aggregator: Any = "mean",
        controller: Any = None,
        tau: int | None = None,
        schedules: Sequence[Any] = (),
        seed: int = 0,
        max_samples: int = MOST_SAMPLES,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if algorithm.pooled:
            raise FednagError(f"{algorithm!r} is centralised: there is nothing to federate")
        check_algorithm(algorithm)
        if algorithm.channel or algorithm.aggregator is not None:
            raise FednagError(
                "algorithm",
                f"{type(algorithm).__name__} encodes or noises what travels, which nodes of an app "
                "do not do for it",
                "use a deployment of fednag's own",
            )
        if isinstance(summed := _part("aggregator", aggregator), Secure):
            raise FednagError(
                "aggregator",
                "a strategy sees every node's update, so nothing would be secure",
                "use `fednag flower` for it",
            )
        self.algorithm, self.seed, self.max_samples = algorithm, seed, max_samples
        self.controller = None if controller is None else _part("controller", controller)
        self.scheme = Scheme(
            algorithm,
            uplink=Chain(tuple(_part("uplink", part) for part in uplink)),
            downlink=Chain(tuple(secret(_part("downlink", part)) for part in downlink)),
            aggregator=secret(aggregator_of(algorithm, self.controller or Controller(), summed)),
            schedules=tuple(_part("schedule", part) for part in schedules),
        )
        for place, schedule in enumerate(self.scheme.schedules):
            check_schedule(schedule, algorithm, f"schedules.{place}.field")
        if tau is not None and (type(tau) is not int or tau < 1):
            raise FednagError("tau", f"{tau!r} is not allowed", "give a whole number from 1 up")
        if self.controller and tau is None:
            raise FednagError("tau", "is missing", "say how many local iterations are usual")
        self.tau = tau
        links = {"uplink": self.scheme.uplink, "downlink": self.scheme.downlink}
        self._links = {name: [described(p, name)[0] for p in c.parts] for name, c in links.items()}
        self.state: State | None = None
        self._rounds, self._timeout = 1, 3600.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *others: Any,
        **named: Any,
    ) -> Result:
        """Flower's own; how many rounds there are, and how long to wait, is kept."""
        self.state, self._rounds, self._timeout = None, num_rounds, timeout
        return super().start(grid, initial_arrays, num_rounds, timeout, *others, **named)

    def summary(self) -> None:
        log(INFO, "\t├──> %r", self.algorithm)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's nodes, go through all its exchanges but the last, and ask for that."""
        if self.state is None or server_round == 1:
            self._begin(arrays)
        # Flower's own messages say whom it drew; what they carry is not sent.
        messages = list(super().configure_train(server_round, arrays, config, grid))
        drawn = [message.metadata.dst_node_id for message in messages]
        self._grid, self._config, self._last = grid, config, None
        if not drawn:
            return []
        self._meet({*grid.get_node_ids(), *drawn})
        if self.tau and self.state and self.state.iteration >= self.tau * self._rounds:
            return []  # a controller's long rounds have used up all iterations
        self._round = self._exchanges(arrays, drawn)
        asked = self._go_on(None)
        while asked and asked[0].place < len(self.algorithm.stages) - 1:
            asked = self._go_on(self.exchange(*asked))
        self._last = asked
        return self._messages(asked[0], asked[1]) if asked else []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self._last is None:
            return None, None
        answers, used = self._read(self._last[0], replies)
        self._go_on(answers)
        if not used or self.state is None:
            return None, None
        self._model = ArrayRecord({**self._names.named(self.state.server.w), **self._rest})
        return self._model, self.train_metrics_aggr_fn(used, self.weighted_by_key)

    @property
    def held(self) -> int:  # type: ignore[override]
        return sum(self._sizes.get(node, 0) for node in self._here)

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        messages = self._messages(asked, memories)
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        return self._read(asked, replies)[0]

    def _begin(self, arrays: ArrayRecord) -> None:
        """The state before the first round."""
        self._names = Names.of(arrays)
        # Arrays that are not floating stay as they came.
        self._rest: dict[str, Array] = {
            name: array for name, array in arrays.items() if name not in self._names.layout.names
        }
        self._model, self._token = arrays, secrets.token_hex(16)
        self._sizes: dict[int, int] = {}  # samples, by node
        self._here: set[int] = set()
        self._index: dict[int, int] = {}  # the round's number of each node
        self._nodes: list[int] = []
        w = self._names.flat(arrays)
        control = self.controller.init() if self.controller else {}
        server = self.algorithm.init(w)
        self.state = State(server, np.zeros(0, dtype=np.int64), control=control)

    def _meet(self, here: set[int]) -> None:
        """Number the nodes that are new, and ask each for its samples, once."""
        new = sorted(here - set(self._index))
        self._here = here
        if not new:
            return
        self._nodes += new
        self._index = {node: place for place, node in enumerate(self._nodes)}
        messages = [self._message(node, ArrayRecord(), {"phase": SIZE}) for node in new]
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        found = {reply.metadata.src_node_id: reply for reply in replies}
        for node in new:
            try:
                if node not in found:
                    raise Refusal("it has not said how many samples it has")
                self._sizes[node] = self._samples(found[node])
            except Refusal as refusal:
                log(WARNING, "fednag: node %d is not counted yet: %s", node, refusal)

    def _exchanges(
        self, arrays: ArrayRecord, drawn: list[int]
    ) -> Generator[Asked, Answers | None, State]:
        """The round to come, from the arrays that Flower has."""
        assert self.state is not None
        sizes = np.array([self._sizes.get(node, 0) for node in self._nodes], dtype=np.int64)
        starts = np.zeros(len(sizes), dtype=np.int64)
        state = replace(self.state, starts=starts, rounds=(), missed=(), refused=())
        if arrays is not self._model:  # somebody has changed them, e.g. to add noise
            state = replace(state, server=state.server.but(w=self._names.flat(arrays)))
        # Without tau nodes know how many local iterations they do: here a round counts as one.
        tau = self.tau or 1
        most = max(self._rounds * tau, state.iteration + 1)
        setting = Setting(self.seed, tau, most, len(drawn), sizes)
        known = sorted(self._index[node] for node in (self._here if self.controller else drawn))
        controller = Among(np.array(known, dtype=np.int64), self.controller)
        return Loop(replace(self.scheme, controller=controller), setting, self).exchanges(state)

    def _go_on(self, answers: Answers | None) -> Asked | None:
        """The exchange that a round goes on with; None when it is over."""
        try:
            return self._round.send(answers)
        except StopIteration as over:
            state = cast(State, over.value)
        self.state = replace(state, server=self._whole(state.server))
        return None

    def _whole(self, vectors: Vectors) -> Vectors:
        """Running statistics back among the arrays of the model, where Flower has them."""
        if BUFFERS not in vectors:
            return vectors
        w = self._names.put(vectors.w, self._statistics.layout, vectors[BUFFERS])
        return vectors.without(BUFFERS).but(w=w)

    def _messages(self, asked: Exchange, memories: Memories) -> list[Message]:
        down: dict[str, Any] = {}
        if asked.wire is None:
            record = self._names.pack(self._whole(asked.sent))
        else:
            record = pack(asked.wire)
            down["sent"] = {name: len(vector) for name, vector in asked.sent.items()}
            layout = self._names.layout
            down["names"] = [layout.names, layout.shapes, self._names.dtypes]
        order = {
            "phase": TRAIN,
            "algorithm": describe(self.algorithm),
            "stage": asked.place,
            "numbers": dict(asked.numbers),
            "differences": asked.as_differences,
            **self._links,
            **down,
            "seed": self.seed,
            "round": asked.round,
            "token": self._token,
        }
        messages = []
        for worker, steps in zip(asked.workers.tolist(), asked.steps.tolist(), strict=True):
            own = {"accepted": accepted(memories.get(worker)), "steps": steps if self.tau else None}
            messages.append(self._message(self._nodes[worker], record, {**order, **own}))
        return messages

    def _message(self, node: int, record: ArrayRecord, order: dict[str, Any]) -> Message:
        config = ConfigRecord({**self._config, ORDER: json.dumps(order)})
        content = RecordDict({self.arrayrecord_key: record, self.configrecord_key: config})
        return Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)

    def _read(
        self, asked: Exchange, replies: Iterable[Message]
    ) -> tuple[Answers, list[RecordDict]]:
        """What came up, reduced in the order of the nodes; and the replies that are in it."""
        used: dict[int, RecordDict] = {}
        refused: list[int] = []
        steps: dict[int, int] = {}
        total: Total | None = None
        single = numbers_returned(self.algorithm, asked.stage, asked.sent.w)
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            worker = self._index[node]
            try:
                samples = self._samples(reply)
                up = self._vectors(reply, asked, single, first=total is None)
            except Refusal as refusal:
                log(WARNING, "fednag: node %d: %s", node, refusal)
                refused.append(worker)
                continue
            used[worker], self._sizes[node] = reply.content, samples
            (metrics,) = reply.content.metric_records.values()
            if isinstance(done := metrics.get(STEPS), int) and done >= 0:
                steps[worker] = done
            total = including(
                asked.aggregator or self.scheme.aggregator, total, up, samples, worker
            )
        heard = {*used, *refused}
        if total is not None:
            total, whose = self.scheme.aggregator.screen(total)
            for worker, why in whose.items():
                log(WARNING, "fednag: node %d: %s", self._nodes[worker], why)
                refused.append(worker)
                del used[worker]
        # It tells a node which of its memories is meant: the one of the last round used.
        answers = Answers(
            total=total,
            size=sum(self._sizes[self._nodes[worker]] for worker in used),
            memories={} if asked.stage.asks else dict.fromkeys(used, mark(asked.round)),
            steps=steps,
            refused=tuple(refused),
            missed=tuple(worker for worker in asked.workers.tolist() if worker not in heard),
        )
        return answers, list(used.values())

    def _samples(self, reply: Message) -> int:
        """How many samples a node claims to have, or a refusal."""
        if reply.has_error():
            raise Refusal(f"it failed ({one_line(reply.error.reason)})")
        metrics = list(reply.content.metric_records.values())
        if len(metrics) != 1:
            raise Refusal("it has not one MetricRecord")
        claimed = metrics[0].get(self.weighted_by_key)
        number = isinstance(claimed, int | float) and not isinstance(claimed, bool)
        if not number or not 1 <= claimed <= self.max_samples or claimed != int(claimed):  # type: ignore[operator,arg-type]
            given = one_line(claimed, 60)
            raise Refusal(f"it claims {given} samples, not 1 to {self.max_samples}")
        return int(cast(float, claimed))

    def _vectors(
        self, reply: Message, asked: Exchange, single: tuple[str, ...], first: bool
    ) -> Vectors:
        """What a reply brings up, or a refusal; the first says what has running statistics."""
        arrays = list(reply.content.array_records.values())
        if len(arrays) != 1:
            raise Refusal("it has not one ArrayRecord")
        up = self._names.unpack(arrays[0], asked.stage.up, single)
        part, statistics = self._names.statistics(arrays[0])
        if first:
            self._statistics = part
        elif part != self._statistics:
            raise Refusal("its running statistics are not those of the other nodes")
        if not part.layout.names:
            return up
        if self.scheme.downlink.parts:
            raise FednagError(
                "downlink",
                "this model has running statistics, which would be changed with its weights",
                "leave the downlink out, or use a deployment of fednag's own",
            )
        if asked.as_differences and BUFFERS not in asked.sent:
            statistics = statistics + self._names.take(asked.sent.w, part.layout)
        return up.but(**{BUFFERS: statistics})


def _part(section: str, given: Any) -> Any:
    """A part of the round, from its name, its table or itself."""
    table, part = described(given, section)
    registry, base = REGISTRIES[section]
    if part is None:
        with within("strategy"):
            part = build_part(table, registry, base, section)
    shipped = type(part) in registry.values()
    cannot, name = "cannot be done by the nodes of an app", type(part).__name__
    if section == "uplink" and (not shipped or not _leaves_arrays(part)):
        raise FednagError(
            "uplink",
            f"{name} {cannot}",
            "they know shipped transforms that keep nothing and leave each array as long as it "
            "was (clip, float16, bfloat16): use these, or a deployment of fednag's own",
        )
    if section == "downlink" and not shipped:
        raise FednagError("downlink", f"{name} {cannot}", "use a transform that fednag ships")
    if section == "controller" and part.needs_clock:
        raise FednagError(
            "controller",
            f"{name} goes by a fleet's times, and there is no clock here",
            "use another, or a run on a clock",
        )
    if section == "controller" and (part.before or part.reads or part.observes):
        raise FednagError(
            "controller",
            f"{name} asks for more than the method does, which {cannot}",
            "use a deployment of fednag's own",
        )
    return part


def _leaves_arrays(part: Transform) -> bool:
    """Whether what travels are still the arrays of the model, and nothing has to be remembered."""
    like = Vectors(w=torch.zeros(64))
    wire = Chain((part,)).layouts(like)[-1]
    return not part.init(like) and set(wire) == {"w"} and len(wire.w) == len(like.w)


class Named(Method):
    """A method's class as a strategy: takes the method's numbers, and ``Method``'s options.

    To change a strategy, derive from this, and set ``method``.
    """

    method: ClassVar[type[Algorithm]]

    def __init__(self, **given: Any) -> None:
        own = {field.name for field in fields(self.method)}  # type: ignore[arg-type]
        numbers = {name: given.pop(name) for name in own & set(given)}
        super().__init__(self.method(**numbers), **given)


@cache
def strategy_of(method: type[Algorithm]) -> type[Named]:
    """The strategy of a method, with the method's name and the first line of its description."""
    known = sorted(fields(method), key=lambda f: bool(f.kw_only))  # type: ignore[arg-type]
    shown = [f.name if f.default is MISSING else f"{f.name}={f.default!r}" for f in known]
    about = (method.__doc__ or method.__name__).strip().splitlines()[0]
    text = f"{about}\n\nNumbers: {', '.join(shown) or 'none'}."
    items = {"__doc__": text, "__module__": __name__, "method": method}
    return cast(type[Named], type(method.__name__, (Named,), items))


def _methods() -> dict[str, type[Algorithm]]:
    found = {}
    for method in ALGORITHMS.values():
        # Nodes of an app cannot encode what travels: their answers are arrays of the model.
        if not method.pooled and method.channel is Algorithm.channel:
            found[method.__name__] = method
    return found


def __getattr__(name: str) -> type[Named]:
    methods = _methods()
    if name not in methods:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return strategy_of(methods[name])


__all__ = ["Method", "Named", *sorted(_methods())]
