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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from fednag.config import build_algorithm
from fednag.core.algorithm import BUFFERS, Algorithm, Grad, local_round
from fednag.core.vectors import Layout, Vector, Vectors
from fednag.errors import FednagError
from fednag.flower.named import MARK, Names, names_of
from fednag.flower.strategies import METHOD, PHASE
from fednag.problems.losses import Objective
from fednag.problems.plain import Buffers, Plain

KEPT = "fednag-memory"


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
    ``context.state``. ``algorithm`` is for one of your own, that the strategy cannot name.
    """
    (record,) = message.content.array_records.values()
    (config,) = message.content.config_records.values()
    method = algorithm or build_algorithm(json.loads(str(config[METHOD])), "message")
    names = names_of(record)
    statistics: dict[str, Array] = {}
    stage = method.stages[0 if config[PHASE] == "ask" else -1]
    sent = names.unpack(record, stage.down)
    worker = _Worker(model, loss, names, loader, sent.w)
    mine = _remembered(context, method, sent.w)
    batches = (batch for _ in range(0 if stage.asks else epochs) for batch in loader)
    rows, own = (bag.map(lambda vector: vector.unsqueeze(0)) for bag in (sent, mine))
    up, kept, _ = local_round(stage, rows, own, map(worker.on, batches), worker)
    up, kept = (bag.map(lambda vector: vector.reshape(-1)) for bag in (up, kept))
    if not stage.asks:
        statistics = worker.statistics()
        if kept:
            context.state[KEPT] = ArrayRecord({n: _array(v) for n, v in kept.items()})
    content = RecordDict({"arrays": ArrayRecord({**names.pack(up), **statistics})})
    content["metrics"] = MetricRecord(
        {"num-examples": len(loader.dataset), "train-loss": worker.loss_so_far}
    )
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
                f"model: its parameter {unknown[0]!r} is not in what the server sent; start the "
                "strategy with ArrayRecord(model.state_dict())"
            )
        _check_statistics(model)
        held = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self.buffers = Buffers.of(model, tuple(n for n in names.layout.names if n in held))
        pieces = names.layout.unravel(sent)
        self.first = torch.cat([sent[:0], *(pieces[n].reshape(-1) for n in self.buffers.names)])
        self.after = self.first
        self._load_frozen(pieces)
        self._plain = Plain(model, self.trained, self.buffers, Objective(loss, None))
        self._losses: list[float] = []

    def on(self, batch: tuple[Tensor, Tensor]) -> Grad:
        """The gradient on one batch; arrays that are not trained have none."""
        x, y = batch
        device = next(self.model.parameters()).device
        x, y = x.to(device), y.to(device)
        told = False

        def grad(w: Vector) -> Vector:
            nonlocal told
            row = w.reshape(-1)
            pieces = self.names.layout.unravel(row)
            flat = torch.cat([pieces[name].reshape(-1) for name in self.trained.names])
            slope, after, value = self._plain.gradient(flat.to(device), self.after.to(device), x, y)
            if not told:  # the first gradient of an iteration moves the statistics on
                told = True
                self._losses.append(float(value))
                self.after = after.to(w)
            found = self.trained.unravel(slope)
            parts = [
                found[name] if name in found else torch.zeros_like(piece)
                for name, piece in pieces.items()
            ]
            return torch.cat([part.reshape(-1) for part in parts]).to(w).view(w.shape)

        return grad

    def loss(self, w: Vector) -> Vector:
        """The loss over all the data."""
        raise NotImplementedError("a method that asks for losses has no strategy yet")

    def gradient(self, w: Vector) -> Vector:
        """The gradient over all the data."""
        total, count = torch.zeros_like(w, dtype=torch.float64), 0
        before = self.after
        for x, y in self.loader:
            total += len(y) * self.on((x, y))(w).double()
            count += len(y)
            self.after = before  # it trains nothing
        return (total / max(count, 1)).to(w)

    @property
    def loss_so_far(self) -> float:
        return sum(self._losses) / len(self._losses) if self._losses else 0.0

    def statistics(self) -> dict[str, Array]:
        """The running statistics after training, if it has changed any."""
        if torch.equal(self.after, self.first):
            return {}
        named = self.buffers.unravel(self.after)
        return {BUFFERS + MARK + name: _array(value) for name, value in named.items()}

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
                f"model: {name!r} is a BatchNorm with momentum=None, which counts batches, and "
                "counters do not travel; give it a momentum, e.g. 0.1"
            )


def _remembered(context: Context, method: Algorithm, w: Vector) -> Vectors:
    """What this node kept; fresh memory where there is none, or it is of another model."""
    first = method.memory(w)
    if not first or KEPT not in context.state.array_records:
        return first
    record = context.state.array_records[KEPT]
    kept = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    alike = set(kept) == set(first) and all(kept[n].shape == first[n].shape for n in kept)
    return Vectors(**kept) if alike else first


def _array(vector: Vector) -> Array:
    return Array(vector.detach().cpu().numpy())
