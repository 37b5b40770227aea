"""FedNAG and the virtual centralised updates w_[k](t), run side by side with full gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite

from fednag.algorithms import FedNAG
from fednag.core.algorithm import Grad, News, Slopes, Step, local_round, server_round
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError
from fednag.theory.landscape import Landscape


@dataclass(frozen=True)
class Moment:
    """Iteration t = (k - 1) tau + x of interval [k]; norms and losses, not the vectors."""

    k: int
    x: int
    t: int
    gap: float  # ||w(t) - w_[k](t)||
    momentum_gap: float  # ||v(t) - v_[k](t)||
    worker_gaps: tuple[float, ...]  # ||w_i(t) - w_[k](t)||
    loss: float  # F(w(t))
    virtual_loss: float  # F(w_[k](t))
    steepness: float  # ||grad F(w_[k](t))||
    momentum: float  # ||v_[k](t)||
    distance: float  # ||w_[k](t) - w*||
    divergences: tuple[float, ...]  # ||grad F_i - grad F|| at w_[k](t)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All that a run of K intervals showed; x runs from 0 to tau in each."""

    eta: float
    gamma: float
    tau: int
    lowest: float  # F(w*)
    scale: float  # the largest ||w||: what rounding is measured against
    last_steepness: float  # ||grad F(w(T))||
    moments: tuple[Moment, ...]
    visited: tuple[Vector, ...] = field(repr=False)  # w(k tau)

    @property
    def iterations(self) -> int:
        return self.moments[-1].t

    @property
    def ends(self) -> list[Moment]:
        """The end of every interval: t = k tau."""
        return [moment for moment in self.moments if moment.x == self.tau]

    @property
    def falls(self) -> list[tuple[Moment, float]]:
        """Every virtual step: where it began, and how far F fell."""
        steps = [(now, later) for now, later in pairwise(self.moments) if now.k == later.k]
        return [(now, now.virtual_loss - later.virtual_loss) for now, later in steps]


def watch(
    landscape: Landscape, algorithm: FedNAG, tau: int, rounds: int, minimiser: Vector
) -> Trajectory:
    """Run the method and beside it, from each aggregation on, its step on the global gradient."""
    server = algorithm.init(landscape.start)
    moments: list[Moment] = []
    visited = [server.w]
    scale = 1.0
    for k in range(1, rounds + 1):
        mean, paths = _round(landscape, algorithm, server, tau)
        for moment, w in _beside(landscape, algorithm, server, paths, tau, minimiser, k):
            moments.append(moment)
            scale = max(scale, float(w.norm()))
        server = server_round(algorithm, server, mean, News())
        visited.append(server.w)
    last = landscape.mean(landscape.slopes(server.w))
    return Trajectory(
        eta=algorithm.lr,
        gamma=algorithm.momentum,
        tau=tau,
        lowest=landscape.loss(minimiser),
        scale=scale,
        last_steepness=float(last.norm()),
        moments=tuple(moments),
        visited=tuple(visited),
    )


def centralised_gap(landscape: Landscape, algorithm: FedNAG, iterations: int) -> float:
    """Proposition 1: the largest distance between FedNAG at tau = 1 and centralised NAG."""
    server = central = algorithm.init(landscape.start)
    largest = 0.0
    for _ in range(iterations):
        mean, _ = _round(landscape, algorithm, server, 1)
        server = server_round(algorithm, server, mean, News())
        slope = landscape.mean(landscape.slopes(central.w))
        central = algorithm.step(central, _always(slope), central, Vectors())
        largest = max(largest, float((server.w - central.w).norm()))
    return largest


def _round(
    landscape: Landscape, algorithm: FedNAG, server: Vectors, tau: int
) -> tuple[Vectors, list[list[Vectors]]]:
    """The mean that comes up, and every worker's states on the way."""
    sent = server.pick(algorithm.down)
    ups, paths = [], []
    for worker in range(len(landscape.sizes)):
        mine = algorithm.memory(landscape.start)
        path = [algorithm.begin(sent, mine)]
        full = partial(landscape.slope, worker)
        up, _, _ = local_round(
            algorithm, sent, mine, [full] * tau, Slopes(full), _watched(algorithm, path)
        )
        ups.append(up)
        paths.append(path)
    names = algorithm.up
    return Vectors(**{name: landscape.mean([up[name] for up in ups]) for name in names}), paths


def _watched(algorithm: FedNAG, path: list[Vectors]) -> Step:
    """The method's step, each state it leads to noted in ``path``."""

    def step(local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        path.append(algorithm.step(local, grad, sent, mine))
        return path[-1]

    return step


def _beside(
    landscape: Landscape,
    algorithm: FedNAG,
    server: Vectors,
    paths: list[list[Vectors]],
    tau: int,
    minimiser: Vector,
    k: int,
) -> Iterator[tuple[Moment, Vector]]:
    virtual = server
    for x in range(tau + 1):
        w = landscape.mean([path[x].w for path in paths])
        v = landscape.mean([path[x].v for path in paths])
        slopes = landscape.slopes(virtual.w)
        slope = landscape.mean(slopes)
        moment = Moment(
            k=k,
            x=x,
            t=(k - 1) * tau + x,
            gap=float((w - virtual.w).norm()),
            momentum_gap=float((v - virtual.v).norm()),
            worker_gaps=tuple(float((path[x].w - virtual.w).norm()) for path in paths),
            loss=landscape.loss(w),
            virtual_loss=landscape.loss(virtual.w),
            steepness=float(slope.norm()),
            momentum=float(virtual.v.norm()),
            distance=float((virtual.w - minimiser).norm()),
            divergences=tuple(float((own - slope).norm()) for own in slopes),
        )
        if not isfinite(moment.loss + moment.virtual_loss + moment.gap):
            raise FednagError(
                f"algorithm.lr: {algorithm.lr:g} makes the run diverge by iteration {moment.t}; "
                "lower it"
            )
        yield moment, w
        virtual = algorithm.step(virtual, _always(slope), virtual, Vectors())


def _always(slope: Vector) -> Grad:
    """A gradient that is known already."""
    return lambda _: slope
