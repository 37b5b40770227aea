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
from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.func import functional_call

from fednag.algorithm import Algorithm, Grad, local_round
from fednag.config import build_algorithm
from fednag.errors import FednagError
from fednag.flower.named import Names, names_of
from fednag.flower.strategies import METHOD, PHASE
from fednag.vectors import Vector, Vectors

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
    worker = _Worker(model, loss, names, loader)
    if config[PHASE] == "probe":
        up = Vectors(g=worker.full(names.unpack(record, ["w"]).w))
    else:
        sent = names.unpack(record, method.down)
        mine = _remembered(context, method, sent.w)
        batches = (batch for _ in range(epochs) for batch in loader)
        up, kept = local_round(method, sent, mine, map(worker.on, batches), worker.full)
        if kept:
            context.state[KEPT] = ArrayRecord({n: _array(v) for n, v in kept.items()})
    worker.check()
    content = RecordDict({"arrays": names.pack(up)})
    content["metrics"] = MetricRecord(
        {"num-examples": len(loader.dataset), "train-loss": worker.loss_so_far}
    )
    return Message(content=content, reply_to=message)


class _Worker:
    """A model as gradients at flat vectors."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        names: Names,
        loader: Iterable[tuple[Tensor, Tensor]],
    ) -> None:
        self.model, self.loss, self.names, self.loader = model, loss, names, loader
        self.trained = [n for n, p in model.named_parameters() if p.requires_grad]
        unknown = sorted(set(self.trained) - set(names.layout.names))
        if unknown:
            raise FednagError(
                f"model: its parameter {unknown[0]!r} is not in what the server sent; start the "
                "strategy with ArrayRecord(model.state_dict())"
            )
        self._before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._losses: list[float] = []

    def on(self, batch: tuple[Tensor, Tensor]) -> Grad:
        """The gradient on one batch; arrays that are not trained have none."""
        x, y = batch
        device = next(self.model.parameters()).device
        x, y = x.to(device), y.to(device)
        told = False

        def grad(w: Vector) -> Vector:
            nonlocal told
            pieces = self.names.layout.unravel(w.to(device))
            wanted = {n: pieces[n].detach().clone().requires_grad_() for n in self.trained}
            with torch.enable_grad():
                value = self.loss(functional_call(self.model, wanted, (x,)), y)
                slopes = torch.autograd.grad(value, [wanted[name] for name in self.trained])
            if not told:
                told = True
                self._losses.append(float(value.detach()))
            found = dict(zip(self.trained, slopes, strict=True))
            zeros = {name: torch.zeros_like(piece) for name, piece in pieces.items()}
            flat = [(found[n] if n in found else zeros[n]).reshape(-1) for n in pieces]
            return torch.cat(flat).to(w)

        return grad

    def full(self, w: Vector) -> Vector:
        """The gradient over all the data."""
        total, count = torch.zeros_like(w, dtype=torch.float64), 0
        for x, y in self.loader:
            total += len(y) * self.on((x, y))(w).double()
            count += len(y)
        return (total / max(count, 1)).to(w)

    @property
    def loss_so_far(self) -> float:
        return sum(self._losses) / len(self._losses) if self._losses else 0.0

    def check(self) -> None:
        for name, buffer in self.model.named_buffers():
            if not torch.equal(buffer, self._before[name]):
                raise FednagError(
                    f"model: training changes its buffer {name!r}, which is not averaged; use "
                    "GroupNorm or LayerNorm instead of BatchNorm"
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
