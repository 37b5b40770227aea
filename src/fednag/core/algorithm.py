"""The contract every method fulfils, and the round, written once.

An algorithm is a frozen dataclass: its fields are its numbers, its methods are pure rules on flat
vectors. It holds both halves, the worker's and the server's. What travels between them is declared
in ``down`` and ``up``, so payloads can be counted before a run, and is all they share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt

from fednag.core.vectors import Vector, Vectors

Grad = Callable[[Vector], Vector]
"""A worker's gradient at the point given; a mini-batch one always uses the same batch."""

BUFFERS = "buffers"
"""The vector that carries a model's running statistics; the methods' rules never see it."""

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Decay = Annotated[float, Ge(0), Lt(1)]


class Algorithm(ABC):
    """What a federated method must say of itself. Subclasses are ``@dataclass(frozen=True)``.

    Only ``step`` must be written; the defaults of the rest are FedAvg's: the worker starts from
    what it was sent, returns what is named in ``up``, keeps nothing, and the server takes the
    mean, weighted by data size, as its new state. Rules return new vectors, never change the
    ones they are given, and draw no random numbers.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from fednag import Algorithm, Vectors
    >>> @dataclass(frozen=True)
    ... class SignSGD(Algorithm):
    ...     lr: float = 0.1
    ...     def step(self, local, grad, sent, mine):
    ...         return Vectors(w=local.w - self.lr * grad(local.w).sign())
    >>> SignSGD().step(Vectors(w=torch.ones(2)), lambda w: 5 * w, Vectors(), Vectors()).w
    tensor([0.9000, 0.9000])
    """

    down: ClassVar[tuple[str, ...]] = ("w",)
    """Vectors of the server sent to every participant at the start of a round."""
    up: ClassVar[tuple[str, ...]] = ("w",)
    """Vectors every participant returns; the server sees only their weighted mean."""
    probes: ClassVar[bool] = False
    """Before the round proper, participants send their full gradient at the server's ``w``."""
    elementwise: ClassVar[bool] = False
    """Every rule treats each coordinate alone (no norms, no sorting, no branches on values), so
    that n workers may be stacked as (n, d). Otherwise they are computed one by one, as (1, d)."""
    pooled: ClassVar[bool] = False
    """A centralised baseline: one worker holds all the data and nothing travels."""

    def init(self, w: Vector) -> Vectors:
        """The server's state before the first round."""
        return Vectors(w=w)

    def memory(self, w: Vector) -> Vectors:
        """What a worker keeps between rounds, before its first."""
        return Vectors()

    def probed(self, server: Vectors, g: Vector) -> Vectors:
        """The server's state once it knows ``g``, the mean full gradient (if it ``probes``)."""
        return server

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        """The worker's state before its first local iteration."""
        return sent

    @abstractmethod
    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        """One local iteration."""

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, full: Grad, steps: int
    ) -> tuple[Vectors, Vectors]:
        """What the worker returns, and what it keeps, after ``steps`` local iterations.

        ``full`` gives the worker's gradient over all its data.
        """
        return local.pick(self.up), mine

    def update(self, server: Vectors, mean: Vectors, share: float) -> Vectors:
        """The server's new state from the weighted mean of what came up.

        ``share`` is the part of all data that took part in the round: 1 when everyone did.
        """
        return server.but(**mean)


Step = Callable[[Vectors, Grad, Vectors, Vectors], Vectors]
"""One local iteration: (local, grad, sent, mine) -> local."""


def local_round(
    algorithm: Algorithm,
    sent: Vectors,
    mine: Vectors,
    grads: Iterable[Grad],
    full: Grad,
    step: Step | None = None,
) -> tuple[Vectors, Vectors]:
    """A worker's half of a round: one local iteration for each gradient in ``grads``.

    ``step`` is ``algorithm.step``, or a faster way to do the same.
    """
    step = step or algorithm.step
    local = algorithm.begin(sent, mine)
    steps = 0
    for grad in grads:
        local = step(local, grad, sent, mine)
        if not isinstance(local, Vectors):
            raise TypeError(f"{type(algorithm).__name__}.step must return Vectors, not {local!r}")
        steps += 1
    return algorithm.end(local, sent, mine, full, steps)


def server_round(algorithm: Algorithm, server: Vectors, mean: Vectors, share: float) -> Vectors:
    """The server's half of a round."""
    missing = set(algorithm.up) - set(mean)
    if missing:
        raise ValueError(f"{algorithm!r} declares {sorted(missing)} in up but did not return them")
    return algorithm.update(server, mean, share)


def payload(algorithm: Algorithm, server: Vectors) -> tuple[int, int]:
    """Bytes (down, up) one participant exchanges in one round; a probe costs one vector each way.

    Counted is what the rules really return, a number as a number. Nothing travels in a centralised
    run.
    """
    if algorithm.pooled:
        return 0, 0
    rules = server.without(BUFFERS)
    vector = rules.w.nbytes if algorithm.probes else 0
    buffers = server.nbytes - rules.nbytes
    exchanges = 2 if algorithm.probes else 1
    down = rules.pick(algorithm.down).nbytes + vector + exchanges * buffers
    return down, _returned(algorithm, rules.w) + vector + buffers


def _returned(algorithm: Algorithm, w: Vector) -> int:
    """Bytes a worker returns: found by what the rules give for two short vectors."""
    try:
        (short, first), (longer, second) = ((d, _sizes(algorithm, w[:1], d)) for d in (3, 5))
    except Exception:  # its own training will tell what is wrong
        return len(algorithm.up) * w.nbytes
    total = 0
    for name, size in first.items():
        slope = (second[name] - size) // (longer - short)
        total += size - slope * short + slope * len(w)
    return total * w.element_size()


def _sizes(algorithm: Algorithm, like: Vector, d: int) -> dict[str, int]:
    w = torch.linspace(0.5, 1, d).to(like)
    sent = algorithm.init(w).pick(algorithm.down).map(lambda vector: vector.expand(1, -1))
    mine = algorithm.memory(w).map(lambda vector: vector.expand(1, -1))
    up, _ = local_round(algorithm, sent, mine, [torch.ones_like], torch.ones_like)
    return {name: vector.shape[-1] if vector.dim() else 1 for name, vector in up.items()}
