"""fednag's methods as Flower strategies, for those who already have a Flower app.

In the ServerApp put one of these where Flower's ``FedAvg`` was; in the ClientApp return
``fednag.flower.training.train(message, context, model, loader, loss)``::

    strategy = FedNAG(lr=0.01, momentum=0.9, fraction_train=1.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)

A strategy takes the method's numbers and what Flower's ``FedAvg`` takes. Replies that are not
finite, wrongly shaped or claim an absurd number of samples are left out, and logged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from logging import INFO, WARNING
from typing import Any, ClassVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as Averaging

from fednag import algorithms
from fednag.config import check_algorithm, describe
from fednag.core import algorithm as contract
from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import Algorithm, News
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.flower.named import MARK, Names
from fednag.flower.protocol import Refusal, one_line
from fednag.flower.settings import MOST_SAMPLES

METHOD, PHASE = "fednag-method", "fednag-phase"
MEAN = Aggregator()

__all__ = [
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMom",
    "FedNAG",
    "FedNAGLocal",
    "FedProx",
    "Method",
    "Mime",
    "MimeLite",
    "Scaffold",
    "SlowMo",
]


class Method(Averaging):
    """Any method as a strategy: ``Method(algorithm, **options of Flower's FedAvg)``."""

    def __init__(
        self, algorithm: Algorithm, *, max_samples: int = MOST_SAMPLES, **options: Any
    ) -> None:
        super().__init__(**options)
        if algorithm.pooled:
            raise FednagError(f"{algorithm!r} is centralised: there is nothing to federate")
        check_algorithm(algorithm)
        self.algorithm, self.max_samples = algorithm, max_samples
        self.server: Vectors | None = None
        self._names: Names | None = None
        self._rest: dict[str, Array] = {}  # arrays that are not floating, as they came
        self._sizes: dict[int, int] = {}  # samples of every node heard of

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 1 or self.server is None or self._names is None:
            self._names = Names.of(arrays)
            self._rest = {n: a for n, a in arrays.items() if n not in self._names.layout.names}
            self.server = self.algorithm.init(self._names.flat(arrays))
        told = ConfigRecord(
            {**config, METHOD: json.dumps(describe(self.algorithm)), PHASE: "train"}
        )
        for stage in self.algorithm.stages[:-1]:
            self._ask(stage, server_round, told, grid)
        record = self._names.pack(self.server.pick(self.algorithm.down))
        return super().configure_train(server_round, record, told, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept, found = self._mean(replies, self.algorithm.up)
        if found is None or self.server is None or self._names is None:
            return None, None
        news = News(share=found.weight / sum(self._sizes.values()), round=server_round)
        mean = self._finished(found)
        rules = {name: v for name, v in mean.items() if MARK not in name}
        statistics = {name: v for name, v in mean.items() if MARK in name}
        updated = contract.server_round(self.algorithm, self.server, Vectors(**rules), news)
        # Running statistics are averaged as they are, whatever the method does with the weights.
        w = self._names.with_statistics(updated.w, Vectors(**statistics))
        self.server = updated.but(w=w) if statistics else updated
        model = ArrayRecord({**self._names.named(self.server.w), **self._rest})
        return model, self.train_metrics_aggr_fn(kept, self.weighted_by_key)

    def summary(self) -> None:
        log(INFO, "\t├──> %r", self.algorithm)
        super().summary()

    def _ask(self, stage: Algorithm, number: int, told: ConfigRecord, grid: Grid) -> None:
        """A stage of the method that goes ahead of its training."""
        assert self.server is not None
        assert self._names is not None
        record = self._names.pack(self.server.pick(stage.down))
        asked = ConfigRecord({**told, PHASE: "ask"})
        replies = grid.send_and_receive(super().configure_train(number, record, asked, grid))
        _, found = self._mean(replies, stage.up)
        if found is None:
            raise FednagError("no node gave a gradient that can be used; see the log for why")
        self.server = contract.server_round(stage, self.server, self._finished(found), News())

    def _mean(
        self, replies: Iterable[Message], names: tuple[str, ...]
    ) -> tuple[list[RecordDict], Total | None]:
        """The weighted mean of what came up, in the order of the nodes; None if nothing did."""
        assert self._names is not None
        kept: list[RecordDict] = []
        total: Total | None = None
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            try:
                vectors, size = self._checked(reply, names)
                if total is not None and set(vectors) != set(total.sums):
                    raise Refusal("its running statistics are not those of the other nodes")
            except Refusal as refusal:
                log(WARNING, "fednag: node %d: %s", reply.metadata.src_node_id, refusal)
                continue
            self._sizes[reply.metadata.src_node_id] = size
            kept.append(reply.content)
            weight = torch.tensor([float(size)], dtype=torch.float64)
            part = MEAN.lift(vectors.map(lambda vector: vector.unsqueeze(0)), weight)
            total = part if total is None else MEAN.merge(total, part)
        return kept, total

    def _finished(self, total: Total) -> Vectors:
        assert self._names is not None
        dtype = self._names.dtype
        return MEAN.finish(total, None).map(lambda vector: vector.to(dtype))

    def _checked(self, reply: Message, names: tuple[str, ...]) -> tuple[Vectors, int]:
        if reply.has_error():
            raise Refusal(f"it failed ({one_line(reply.error.reason)})")
        arrays = list(reply.content.array_records.values())
        metrics = list(reply.content.metric_records.values())
        if len(arrays) != 1 or len(metrics) != 1:
            raise Refusal("it has not one ArrayRecord and one MetricRecord")
        claimed = metrics[0].get(self.weighted_by_key)
        whole = isinstance(claimed, int | float) and not isinstance(claimed, bool)
        if not whole or not 1 <= claimed <= self.max_samples or claimed != int(claimed):  # type: ignore[operator,arg-type]
            given = one_line(claimed, 60)
            raise Refusal(f"it claims {given} samples, not 1 to {self.max_samples}")
        assert self._names is not None
        vectors = self._names.unpack(arrays[0], names)
        return vectors.but(**self._names.statistics(arrays[0])), int(claimed)


class _Named(Method):
    method: ClassVar[type[Algorithm]]

    def __init__(self, **given: Any) -> None:
        own = {f.name for f in fields(self.method)}  # type: ignore[arg-type]
        numbers = {name: value for name, value in given.items() if name in own}
        options = {name: value for name, value in given.items() if name not in own}
        super().__init__(self.method(**numbers), **options)


class FedNAG(_Named):
    """Nesterov's gradient on every node, weights and momenta averaged (lr, momentum)."""

    method = algorithms.FedNAG


class FedAvg(_Named):
    """Local SGD, weights averaged (lr)."""

    method = algorithms.FedAvg


class FedMom(_Named):
    """Nesterov extrapolation of the averaged model (lr, momentum)."""

    method = algorithms.FedMom


class SlowMo(_Named):
    """Slow momentum between aggregations (lr, momentum, slow_lr)."""

    method = algorithms.SlowMo


class MimeLite(_Named):
    """Local steps mixed with the server's momentum (lr, momentum)."""

    method = algorithms.MimeLite


class Mime(_Named):
    """MimeLite, variance-reduced; asks for full gradients first (lr, momentum)."""

    method = algorithms.Mime


class FedProx(_Named):
    """FedAvg with a pull back to the model received (lr, mu)."""

    method = algorithms.FedProx


class Scaffold(_Named):
    """Local SGD corrected by control variates (lr, server_lr)."""

    method = algorithms.Scaffold


class FedAvgM(_Named):
    """Heavy-ball momentum on the mean update (lr, momentum, server_lr)."""

    method = algorithms.FedAvgM


class FedAdam(_Named):
    """Adam on the mean update (lr, momentum, second, server_lr, adaptivity)."""

    method = algorithms.FedAdam


class FedNAGLocal(_Named):
    """FedNAG whose momenta stay with the nodes (lr, momentum)."""

    method = algorithms.FedNAGLocal
