"""A node's half of a round, for a Flower app of your own::

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, loader = MyModel(), my_loader(context)
        return fednag.flower.training.train(message, context, model, loader, nn.CrossEntropyLoss())

Goes with the strategies in ``fednag.flower.strategies``, which say in their messages which method
is meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from torch import Tensor, nn

from fednag.config import build_algorithm
from fednag.config.own import build_part
from fednag.config.sections import is_own
from fednag.core.algorithm import BUFFERS, Algorithm, Grad, local_round
from fednag.core.keys import DOWNLINK, UPLINK, generator
from fednag.core.transform import Chain, Transform
from fednag.core.vectors import Layout, Vector, Vectors
from fednag.errors import FednagError, within
from fednag.flower.named import MARK, ORDER, SIZE, STEPS, Names, names_of
from fednag.flower.protocol import decoded, layout, numbers
from fednag.flower.silo_memory import Memory
from fednag.privacy.promise import secret
from fednag.problems.losses import resolve
from fednag.problems.plain import Buffers, Plain
from fednag.transforms import TRANSFORMS


def train(
    message: Message,
    context: Context,
    model: nn.Module,
    loader: Any,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int = 1,
    algorithm: Algorithm | None = None,
) -> Message:
    """Answer a training message: a local iteration for every batch, ``epochs`` times over.

    ``loader`` gives batches (x, y) and has a ``dataset``, as torch's ``DataLoader``;
    ``loss(output, y)`` is a batch's mean loss. What the method keeps between rounds is in
    ``context.state``. ``algorithm`` is for one of your own, that the strategy cannot name. The
    first message a node gets only asks for its number of samples.
    """
    order = _order(message)
    samples = len(loader.dataset)
    if order["phase"] == SIZE:
        return _reply(message, None, {"num-examples": samples})
    (record,) = message.content.array_records.values()
    method = algorithm or _method(order["algorithm"])
    stage = method.stages[order["stage"]]
    stage = replace(stage, **numbers(json.dumps(order["numbers"]), stage))
    names, sent = _received(order, record, stage)
    worker = _Worker(model, loss, names, loader, sent.w)
    memory = Memory(context.state, context.node_config, order["token"], method.memory(sent.w))
    mine, lost = memory.after(order["accepted"])
    if lost:
        log(WARNING, "fednag: what this node kept of earlier rounds is gone; it begins anew")
    steps = 0 if stage.asks else order["steps"]
    batches = islice(_passes(loader, epochs, steps), steps)
    rows, own = (bag.map(lambda vector: vector.unsqueeze(0)) for bag in (sent, mine))
    up, kept, _ = local_round(stage, rows, own, map(worker.on, batches), worker)
    up, kept = (bag.map(lambda vector: vector.reshape(-1)) for bag in (up, kept))
    up, before = worker.with_statistics(up, sent)
    if order["differences"]:
        up = up.map_named(lambda name, v: v - before[name] if name in before else v)
    uplink = Chain(tuple(_transform(table) for table in order["uplink"])).of(stage)
    rng = generator(order["seed"], UPLINK, order["round"], context.node_id, order["stage"])
    up, arrived, _ = uplink.carry(up, Vectors(), rng)
    if order["differences"]:
        arrived = arrived.map_named(lambda name, v: v + before[name] if name in before else v)
    if not stage.asks:
        returned = arrived.without(BUFFERS).map(lambda vector: vector.unsqueeze(0))
        kept = stage.settle(kept.map(lambda vector: vector.unsqueeze(0)), returned)
        kept = kept.map(lambda vector: vector.reshape(-1))
        memory.keep(order["round"], kept, order["accepted"])
    arrays = names.pack(up.without(BUFFERS))
    if BUFFERS in up:
        arrays = ArrayRecord({**arrays, **worker.part.named(up[BUFFERS], BUFFERS + MARK)})
    metrics = {"num-examples": samples, "train-loss": worker.mean_loss, STEPS: len(worker.losses)}
    return _reply(message, arrays, metrics)


def _order(message: Message) -> dict[str, Any]:
    """What the strategy asks for."""
    (config,) = message.content.config_records.values()
    if ORDER not in config:
        raise FednagError(
            "message",
            f"its ConfigRecord has no {ORDER!r}",
            "use a strategy of fednag.flower.strategies in the ServerApp",
        )
    order: dict[str, Any] = json.loads(str(config[ORDER]))
    links = (*order.get("uplink", ()), *order.get("downlink", ()))
    transforms = [table.get("kind") for table in links]
    for name in (order.get("algorithm", {}).get("name"), *transforms):
        if is_own(name):  # a message must not choose which file of this machine is run
            raise FednagError("message", f"{name!r} names a file", "nodes run what fednag ships")
    return order


def _received(
    order: Mapping[str, Any], record: ArrayRecord, stage: Algorithm
) -> tuple[Names, Vectors]:
    """The model's arrays, and what the server sent of the stage's vectors."""
    if not order["downlink"]:
        names = names_of(record)
        return names, names.unpack(
            record, stage.down, [n for n in stage.down if n + MARK in record]
        )
    known, shapes, dtypes = order["names"]
    names = Names(Layout(tuple(known), tuple(map(tuple, shapes))), tuple(dtypes))
    key = order["seed"], DOWNLINK, order["round"], order["stage"]
    downlink = Chain(tuple(_transform(table) for table in order["downlink"]))
    return names, decoded(downlink, record, layout(order["sent"], names.dtype), *key)


def _passes(loader: Any, epochs: int, steps: int | None) -> Iterator[Any]:
    """The batches of so many passes; with ``steps`` to do, of as many as it takes."""
    for _ in range(epochs) if steps is None else count():
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return


def _method(table: Mapping[str, Any]) -> Algorithm:
    with within("message"):
        return build_algorithm(table)


def _transform(table: Mapping[str, Any]) -> Transform:
    with within("message"):
        part: Transform = secret(build_part(table, TRANSFORMS, Transform, "uplink"))
        return part


def _reply(
    message: Message, arrays: ArrayRecord | None, metrics: Mapping[str, int | float]
) -> Message:
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content=content, reply_to=message)


class _Worker:
    """A model as gradients at flat vectors, computed by the model itself.

    ``sent`` are the weights as they came; among them are the model's running statistics, which
    training changes, but no gradient does.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        names: Names,
        loader: Iterable[tuple[Tensor, Tensor]],
        sent: Vector,
    ) -> None:
        self.model, self.names, self.loader = model, names, loader
        self.trained = Layout.of(model)
        unknown = sorted(set(self.trained.names) - set(names.layout.names))
        if unknown:
            raise FednagError(
                "model",
                f"its parameter {unknown[0]!r} is not in what the server sent",
                "start the strategy with ArrayRecord(model.state_dict())",
            )
        # A parameter with two names is two arrays; both go the same way.
        every = dict(model.named_parameters(remove_duplicate=False))
        first = {id(every[name]): name for name in self.trained.names}
        self.slopes = names.among([name for name, p in every.items() if id(p) in first]).layout
        self.owners = [first[id(every[name])] for name in self.slopes.names]
        _check_statistics(model)
        held = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self.part = names.among(held)
        buffers = Buffers.of(model, self.part.layout.names)
        self.after = names.take(sent, self.part.layout)
        self._load_frozen(names.layout.unravel(sent))
        self.objective = resolve(loss)
        self._plain = Plain(model, self.trained, buffers, self.objective)
        self.losses: list[float] = []  # of each local iteration

    def on(self, batch: tuple[Tensor, Tensor]) -> Grad:
        """The gradient on one batch; arrays that are not trained have none."""
        told = False

        def grad(w: Vector) -> Vector:
            nonlocal told
            slope, after, value = self._at(w, batch)
            if not told:  # the first gradient of an iteration moves the statistics on
                told = True
                self.losses.append(value)
                self.after = after
            return slope

        return grad

    def gradient(self, w: Vector) -> Vector:
        """The gradient over all the data; it moves no statistics."""
        parts = ((self._share(y), self._at(w, (x, y))[0].double()) for x, y in self.loader)
        return self._mean(parts, torch.zeros_like(w, dtype=torch.float64)).to(w)

    def loss(self, w: Vector) -> Vector:
        """The loss over all the data, in evaluation mode."""
        parts = ((self._share(y), self._loss(w, x, y).double()) for x, y in self.loader)
        return self._mean(parts, torch.zeros((), dtype=torch.float64)).reshape(1, 1)

    def _mean(self, parts: Iterable[tuple[float, Tensor]], total: Tensor) -> Tensor:
        shares = 0.0
        for share, value in parts:
            total, shares = total + share * value if share else total, shares + share
        return total / (shares or 1.0)

    def _share(self, y: Tensor) -> float:
        """What a batch counts in the mean over all the data."""
        return float(self.objective.shares(y).sum()) if self.objective.shares else float(len(y))

    def _loss(self, w: Vector, x: Tensor, y: Tensor) -> Tensor:
        device = next(self.model.parameters()).device
        flat = self.names.take(w.reshape(-1), self.trained).to(device)
        output = self._plain.output(flat, self.after.to(device), x.to(device))
        return self.objective.batch(output, y.to(device)).detach().cpu()

    def _at(self, w: Vector, batch: tuple[Tensor, Tensor]) -> tuple[Vector, Vector, float]:
        """The gradient of a batch's loss at ``w``, the statistics after it, and the loss."""
        device = next(self.model.parameters()).device
        x, y = (part.to(device) for part in batch)
        flat = self.names.take(w.reshape(-1), self.trained).to(device)
        slope, after, value = self._plain.gradient(flat, self.after.to(device), x, y)
        pieces = self.trained.unravel(slope)
        every = torch.cat([pieces[name].reshape(-1) for name in self.owners])
        found = self.names.put(torch.zeros_like(w).reshape(-1), self.slopes, every)
        return found.view(w.shape), after.to(w), float(value)

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses) if self.losses else 0.0

    def with_statistics(self, up: Vectors, sent: Vectors) -> tuple[Vectors, Vectors]:
        """What goes up and what came, with running statistics if training has changed any."""
        first = self.names.take(sent.w, self.part.layout)
        if torch.equal(self.after, first):
            return up, sent
        return up.but(**{BUFFERS: self.after}), sent.but(**{BUFFERS: first})

    def _load_frozen(self, pieces: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in pieces and not parameter.requires_grad:
                    parameter.copy_(pieces[name])


def _check_statistics(model: nn.Module) -> None:
    """Refuse what would be averaged wrongly: only floating arrays go both ways."""
    for name, part in model.named_modules():
        is_normalising = isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
        if is_normalising and part.momentum is None and part.track_running_stats:
            raise FednagError(
                "model",
                f"{name!r} is a BatchNorm with momentum=None, which counts batches, and counters "
                "do not travel",
                "give it a momentum, e.g. 0.1",
            )
