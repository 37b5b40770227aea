"""FedNAG and the virtual centralised updates w_[k](t), run side by side with full gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
import torch

from fednag.algorithms import FedNAG
from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import Grad, Slopes, local_round
from fednag.core.controller import Setting
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues
from fednag.core.loop import Loop, Scheme
from fednag.core.state import State
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
    executor = OnLandscape(landscape)
    state, loop = _start(executor, algorithm, tau, rounds)
    moments: list[Moment] = []
    visited = [state.server.w]
    scale = 1.0
    for k in range(1, rounds + 1):
        server, state = state.server, loop.advance(state)
        for moment, w in _beside(landscape, algorithm, server, executor.paths, tau, minimiser, k):
            moments.append(moment)
            scale = max(scale, float(w.norm()))
        visited.append(state.server.w)
    last = landscape.mean(landscape.slopes(state.server.w))
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
    state, loop = _start(OnLandscape(landscape), algorithm, 1, iterations)
    central = state.server
    largest = 0.0
    for _ in range(iterations):
        state = loop.advance(state)
        slope = landscape.mean(landscape.slopes(central.w))
        central = algorithm.step(central, _always(slope), central, Vectors())
        largest = max(largest, float((state.server.w - central.w).norm()))
    return largest


class OnLandscape(Executor):
    """Workers that step along full gradients of a landscape; keeps the way each has come."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape, self.held = landscape, sum(landscape.sizes)
        self.paths: list[list[Vectors]] = []

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        sizes = torch.tensor([self.landscape.sizes[i] for i in asked.workers], dtype=torch.float64)
        ups, self.paths = [], []
        for worker, steps in zip(asked.workers.tolist(), asked.steps.tolist(), strict=True):
            grad = partial(self.landscape.slope, worker)
            path = [asked.stage.begin(asked.sent, Vectors())]

            def step(local: Vectors, *given: Any, path: list[Vectors] = path) -> Vectors:
                path.append(asked.stage.step(local, *given))
                return path[-1]

            grads = [grad] * steps
            up, _, _ = local_round(asked.stage, asked.sent, Vectors(), grads, Slopes(grad), step)
            ups.append(up)
            self.paths.append(path)
        names = asked.stage.up
        rows = Vectors(**{name: torch.stack([up[name] for up in ups]) for name in names})
        return Answers(total=Aggregator().lift(rows, sizes), size=self.held)


def _start(executor: OnLandscape, algorithm: FedNAG, tau: int, rounds: int) -> tuple[State, Loop]:
    sizes = np.array(executor.landscape.sizes, dtype=np.int64)
    setting = Setting(0, tau, tau * rounds, len(sizes), sizes)
    state = State(algorithm.init(executor.landscape.start), np.zeros_like(sizes))
    return state, Loop(Scheme(algorithm), setting, executor)


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
                "algorithm.lr",
                f"{algorithm.lr:g} makes the run diverge by iteration {moment.t}",
                "lower it",
            )
        yield moment, w
        virtual = algorithm.step(virtual, _always(slope), virtual, Vectors())


def _always(slope: Vector) -> Grad:
    """A gradient that is known already."""
    return lambda _: slope
