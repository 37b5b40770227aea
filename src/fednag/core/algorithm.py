"""The contract of a federated method.

An algorithm is a frozen dataclass: its fields are its numbers, its methods are pure rules on flat
vectors. It holds both halves, the worker's and the server's. What travels between them is declared
in ``down`` and ``up``, so payloads can be counted before a run, and is all they share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

import torch
from annotated_types import Ge, Gt, Le, Lt

from fednag.core.vectors import Vector, Vectors

Grad = Callable[[Vector], Vector]
"""A worker's gradient at the point given; on a mini-batch, the same one at each call."""

BUFFERS = "buffers"
"""The vector that carries a model's running statistics; the methods' rules never see it."""

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Decay = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Le(1)]


class WorkerData(Protocol):
    """All the data of the worker whose rules run: a row for each of n stacked workers."""

    def gradient(self, w: Vector) -> Vector:
        """The gradient of the loss over all its data at ``w``, (n, d)."""

    def loss(self, w: Vector) -> Vector:
        """The loss over all its data at ``w``, (n, 1)."""


@dataclass(frozen=True, eq=False)
class News:
    """What the server learnt from an exchange with its workers.

    >>> from fednag import News
    >>> News(share=0.5).share
    0.5
    """

    share: float = 1.0
    """The part of all data that is in the mean: 1 when everyone took part."""
    steps: float = 0.0
    """Local iterations, the mean over the workers in it."""
    staleness: tuple[int, ...] = ()
    """How many rounds ago each of them was sent what it started from: 0 for this round."""
    seconds: float = 0.0
    """When it was over, on the run's clock."""
    bytes: int = 0
    """What has travelled so far in the run, up and down."""
    round: int = 0
    iteration: int = 0
    told: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Numbers a controller had workers report."""
    missed: tuple[int, ...] = ()
    """Who did not answer in this round."""
    refused: tuple[int, ...] = ()
    """Whose updates could not be used."""


class Algorithm(ABC):
    """A federated method: the workers' rules and the server's.

    Subclasses are ``@dataclass(frozen=True)``. Only ``step`` must be written; the defaults of the
    rest are FedAvg's: the worker starts from what it was sent, returns what is named in ``up``,
    keeps nothing, and the server takes the mean, weighted by data size, as its new state. Rules
    return new vectors, never change the ones they are given, and draw no random numbers, ``draw``
    excepted.

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
    between: ClassVar[tuple[str, ...]] = ()
    """Vectors of the server that only edges need, where there are any: they start from them."""
    asks: ClassVar[bool] = False
    """A stage that only asks something of the workers: they do no local iterations."""
    elementwise: ClassVar[bool] = False
    """Every rule treats each coordinate alone (no norms, no sorting, no branches on values), so
    that n workers may be stacked as (n, d). Otherwise they are computed one by one, as (1, d)."""
    pooled: ClassVar[bool] = False
    """A centralised baseline: one worker holds all the data and nothing travels."""
    whole: ClassVar[bool] = False
    """Uploads go without the transforms that compress. A property, where it depends on a number
    that is drawn."""

    @property
    def stages(self) -> tuple[Algorithm, ...]:
        """The exchanges of a round, in order; a method that asks for something first has two."""
        return (self,)

    @property
    def aggregator(self) -> Any:
        """An aggregator of the method's own, where the experiment has the plain mean; or None."""
        return None

    @property
    def bound(self) -> float | None:
        """How long an upload is at most, or how far from the model sent; None: no such bound."""
        return None

    @property
    def claimed(self) -> float | None:
        """The epsilon that the method's paper claims for its noise; None: it has none."""
        return None

    @property
    def channel(self) -> tuple[Any, ...]:
        """Transforms of every upload that are the method's own; the experiment's come after."""
        return ()

    @property
    def rounds_alike(self) -> bool:
        """Answers of different rounds mean the same, so that late ones can be used."""
        return len(self.stages) == 1 and type(self).draw is Algorithm.draw

    def draw(self, seed: int, number: int) -> dict[str, float]:
        """Those of its numbers that are drawn in round ``number``, such as a coin; by keys."""
        return {}

    def init(self, w: Vector) -> Vectors:
        """The server's state before the first round."""
        return Vectors(w=w)

    def memory(self, w: Vector) -> Vectors:
        """A worker's first memory: the vectors it keeps between rounds."""
        return Vectors()

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        """The worker's state before its first local iteration."""
        return sent

    @abstractmethod
    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        """One local iteration."""

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        """What the worker returns, and what it keeps, after ``steps`` local iterations.

        ``data.gradient(w)`` and ``data.loss(w)`` are over all the worker's data.
        """
        return local.pick(self.up), mine

    def settle(self, kept: Vectors, arrived: Vectors) -> Vectors:
        """What the worker keeps, once it is known what the server makes of its upload.

        ``kept`` is what ``end`` gave, ``arrived`` what it returned, as transforms left it.
        """
        return kept

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        """The server's vectors that change, from the weighted mean of what came up."""
        return server.but(**mean)

    def plain_edge(self, nearest: bool) -> bool:
        """An edge whose rounds are those of the server changes nothing; ``nearest``: one that has
        workers, and not edges, below it."""
        return type(self).edge is Algorithm.edge

    def edge(self, state: Vectors, mean: Vectors, news: News) -> Vectors:
        """An edge's state after one of its rounds, from the mean over those below it."""
        return state.but(**mean)

    def edge_end(self, state: Vectors, sent: Vectors, news: News) -> Vectors:
        """What an edge sends up after its rounds, from its state and what it was sent."""
        return state.pick([name for name in (*self.up, *self.between) if name in state])


@dataclass(frozen=True)
class FullGradient(Algorithm):
    """A stage that asks for the mean full gradient at the server's ``w``; it becomes ``into``.

    >>> from fednag.core.algorithm import FullGradient
    >>> FullGradient(into="c").up
    ('g',)
    """

    into: str = "g"

    up = ("g",)
    asks = True
    elementwise = True

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return local

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(g=data.gradient(sent.w)), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(**{self.into: mean.g})


Step = Callable[[Vectors, Grad, Vectors, Vectors], Vectors]
"""One local iteration: (local, grad, sent, mine) -> local."""

Observe = Callable[[Vectors, Vectors, WorkerData], Mapping[str, Vector]]
"""(local, sent, data) -> numbers to report, (n, 1) each."""


def local_round(
    algorithm: Algorithm,
    sent: Vectors,
    mine: Vectors,
    grads: Iterable[Grad],
    data: WorkerData,
    step: Step | None = None,
    observe: Observe | None = None,
) -> tuple[Vectors, Vectors, Mapping[str, Vector]]:
    """A worker's half of an exchange: one local iteration for each gradient in ``grads``.

    Gives what it returns, what it keeps, and what ``observe`` has it report. ``step`` is
    ``algorithm.step``, or a faster way to do the same.
    """
    step = step or algorithm.step
    local = algorithm.begin(sent, mine)
    steps = 0
    for grad in grads:
        local = step(local, grad, sent, mine)
        if not isinstance(local, Vectors):
            raise TypeError(f"{type(algorithm).__name__}.step must return Vectors, not {local!r}")
        steps += 1
    up, kept = algorithm.end(local, sent, mine, data, steps)
    return up, kept, observe(local, sent, data) if observe else {}


def server_round(algorithm: Algorithm, server: Vectors, mean: Vectors, news: News) -> Vectors:
    """The server's half of an exchange."""
    missing = set(algorithm.up) - set(mean)
    if missing:
        raise ValueError(f"{algorithm!r} declares {sorted(missing)} in up but did not return them")
    return server.but(**algorithm.update(server, mean, news))


def payloads(algorithm: Algorithm, server: Vectors) -> list[tuple[int, int]]:
    """Bytes (down, up) one participant exchanges in each stage of a round.

    Counted is what the rules really return, a number as a number. Nothing travels in a centralised
    run.
    """
    if algorithm.pooled:
        return [(0, 0) for _ in algorithm.stages]
    rules = server.without(BUFFERS)
    buffers = server.nbytes - rules.nbytes
    return [
        (
            rules.pick(stage.down).nbytes + buffers,
            sum(lengths(algorithm, stage, rules.w).values()) * rules.w.element_size()
            + (0 if stage.asks else buffers),
        )
        for stage in algorithm.stages
    ]


def payload(algorithm: Algorithm, server: Vectors) -> tuple[int, int]:
    """Bytes (down, up) one participant exchanges in one round."""
    stages = payloads(algorithm, server)
    return sum(down for down, _ in stages), sum(up for _, up in stages)


def lengths(algorithm: Algorithm, stage: Algorithm, w: Vector) -> dict[str, int]:
    """How long the vectors are that a worker returns, found by the rules on two short ones."""
    try:
        (short, first), (longer, second) = ((d, _sizes(algorithm, stage, w[:1], d)) for d in (3, 5))
    except Exception:  # its own training will tell what is wrong
        return dict.fromkeys(stage.up, len(w))
    return {
        n: size + (second[n] - size) // (longer - short) * (len(w) - short)
        for n, size in first.items()
    }


def numbers_returned(algorithm: Algorithm, stage: Algorithm, w: Vector) -> tuple[str, ...]:
    """Those of the vectors a worker returns that are one number, however long the model is."""
    try:
        return tuple(n for n, size in _sizes(algorithm, stage, w[:1], 3).items() if size == 1)
    except Exception:  # its own training will tell what is wrong
        return ()


def _sizes(algorithm: Algorithm, stage: Algorithm, like: Vector, d: int) -> dict[str, int]:
    w = torch.linspace(0.5, 1, d).to(like)
    sent = algorithm.init(w).pick(stage.down).map(lambda vector: vector.expand(1, -1))
    mine = algorithm.memory(w).map(lambda vector: vector.expand(1, -1))
    up, _, _ = local_round(stage, sent, mine, [torch.ones_like], Slopes(torch.ones_like))
    return {name: vector.shape[-1] if vector.dim() else 1 for name, vector in up.items()}


@dataclass(frozen=True)
class Slopes:
    """Worker data made of a gradient alone, to try rules on; its loss is 1 everywhere."""

    gradient: Grad

    def loss(self, w: Vector) -> Vector:
        return torch.ones_like(w[..., :1])
