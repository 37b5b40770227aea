"""Gradient methods made for compressed uploads: DIANA, EF21, MARINA, ACGD, ADIANA.

Workers return gradients, not models: one exchange a round, and its local iterations are
mini-batches at one point, so that tau > 1 is a larger batch. What compresses them is the
experiment's uplink; C(x) is what arrives of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from fednag.core.algorithm import (
    Algorithm,
    Grad,
    News,
    NonNegative,
    Positive,
    Share,
    WorkerData,
)
from fednag.core.keys import COIN, generator
from fednag.core.vectors import Vector, Vectors


class GradientMethod(Algorithm):
    """Sums a worker's mini-batch gradients at the point it was sent, where it stays."""

    elementwise = True
    up: ClassVar[tuple[str, ...]] = ("m",)

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, g=torch.zeros_like(sent.w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return local.but(g=local.g + grad(local.w))


@dataclass(frozen=True)
class DIANA(GradientMethod):
    """Compressed differences of gradients to what the worker sent before.

    Mishchenko et al., "Distributed Learning with Compressed Gradient Differences" (2019)::

        worker   m_i =  C(grad F_i(w) - h_i),    h_i <- h_i + alpha m_i
        server   w   <- w - lr (h + sum_i D_i m_i / D_S)
                 h   <- h + alpha (D_S / D) sum_i D_i m_i / D_S

    ``h`` and ``h_i`` are gradients; h is the mean of all h_i, weighted by data size as
    everywhere (the paper has equal weights). D_S is the data that took part.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import DIANA
    >>> server = Vectors(w=torch.ones(2), h=torch.ones(2))
    >>> DIANA(lr=0.1, alpha=0.5).update(server, Vectors(m=torch.ones(2)), News()).w
    tensor([0.8000, 0.8000])
    """

    lr: Positive = 0.01
    alpha: Share = 0.5

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, h=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(h=torch.zeros_like(w))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(m=local.g / steps - mine.h), mine

    def settle(self, kept: Vectors, arrived: Vectors) -> Vectors:
        return Vectors(h=kept.h + self.alpha * arrived.m)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(
            w=server.w - self.lr * (server.h + mean.m),
            h=server.h + self.alpha * news.share * mean.m,
        )


@dataclass(frozen=True)
class EF21(GradientMethod):
    """Gradients corrected by compressed differences, also where C(x) is not x on average.

    Richtárik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
    Feedback" (2021)::

        worker   m_i =  C(grad F_i(w) - g_i),    g_i <- g_i + m_i
        server   g   <- g + (D_S / D) sum_i D_i m_i / D_S
                 w   <- w - lr g

    g_i begins at 0, where the paper may also begin with C(grad F_i). Means are weighted by data
    size; D_S is the data that took part.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import EF21
    >>> server = Vectors(w=torch.ones(2), g=torch.ones(2))
    >>> EF21(lr=0.1).update(server, Vectors(m=torch.ones(2)), News()).w
    tensor([0.8000, 0.8000])
    """

    lr: Positive = 0.01

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, g=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(g=torch.zeros_like(w))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(m=local.g / steps - mine.g), mine

    def settle(self, kept: Vectors, arrived: Vectors) -> Vectors:
        return Vectors(g=kept.g + arrived.m)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        g = server.g + news.share * mean.m
        return Vectors(w=server.w - self.lr * g, g=g)


@dataclass(frozen=True)
class MARINA(GradientMethod):
    """Gradients corrected by compressed changes from one model to the next, and now and then whole.

    Gorbunov et al., "MARINA: Faster Non-Convex Distributed Learning with Compression" (2021)::

        worker   m_i =  grad F_i(w)                      in round 1, then with probability p
                 m_i =  C(grad F_i(w) - grad F_i(w'))    otherwise
        server   g   <- sum_i D_i m_i / D_S              or g + sum_i D_i m_i / D_S
                 w'  <- w,   w <- w - lr g

    One coin decides for all workers of a round; it is drawn from the run's seed and the round. In a
    round ``p`` is that coin, 1 or 0. Whole gradients travel without the uplink's transforms that
    compress. Both gradients are of the same mini-batches, as in the paper's VR-MARINA, and are
    taken in every round; w' goes down beside w, so that workers who were away need keep nothing. In
    whole rounds those send who take part, where the paper has everyone send.

    >>> from fednag.algorithms import MARINA
    >>> [MARINA(p=0.5).draw(3, number)["p"] for number in range(1, 8)]
    [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    """

    lr: Positive = 0.01
    p: Share = 0.1

    down = ("w", "before")

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return self.p >= 1

    def draw(self, seed: int, number: int) -> dict[str, float]:
        return {"p": float(number == 1 or generator(seed, COIN, number).random() < self.p)}

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, before=w, g=torch.zeros_like(w))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, g=torch.zeros_like(sent.w), old=torch.zeros_like(sent.w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return local.but(g=local.g + grad(local.w), old=local.old + grad(sent.before))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(m=(local.g if self.whole else local.g - local.old) / steps), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        g = mean.m if self.whole else server.g + mean.m
        return Vectors(w=server.w - self.lr * g, before=server.w, g=g)


@dataclass(frozen=True)
class ACGD(GradientMethod):
    """Accelerated compressed gradient descent, for strongly convex losses.

    Li et al., "Acceleration for Compressed Gradient Descent in Distributed and Federated
    Optimization" (2020)::

        worker   m_i = C(grad F_i(x))
        server   g   = sum_i D_i m_i / D_S,    q = sqrt(mu lr),    p = 1 + omega
                 y'  <- x - (lr / p) g
                 z   <- y' / q + (1 / p - 1 / q) y + (1 - 1 / p) ((1 - q / p) z + (q / p) x)
                 x   <- theta y' + (1 - theta) z,    theta = p / (p + q)

    ``lr`` is 1 / L, ``mu`` the strong convexity, ``omega`` the compressor's relative variance:
    0 without one, d / k - 1 for randk, min(d / s², sqrt(d) / s) for quantise. With omega 0 it is
    Nesterov's method with momentum (1 - q) / (1 + q). The model that is sent and measured is x.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import ACGD
    >>> server = ACGD(lr=0.1, mu=2.5).init(torch.ones(2))
    >>> ACGD(lr=0.1, mu=2.5).update(server, Vectors(m=torch.ones(2)), News()).y
    tensor([0.9000, 0.9000])
    """

    lr: Positive = 0.01
    mu: Positive = 0.01
    omega: NonNegative = 0.0

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, y=w, z=w)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(m=local.g / steps), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        x, y, z = server.w, server.y, server.z
        q, p = sqrt(self.mu * self.lr), 1 + self.omega
        theta = p / (p + q)
        ahead = x - self.lr / p * mean.m
        z = ahead / q + (1 / p - 1 / q) * y + (1 - 1 / p) * ((1 - q / p) * z + q / p * x)
        return Vectors(w=theta * ahead + (1 - theta) * z, y=ahead, z=z)


@dataclass(frozen=True)
class ADIANA(GradientMethod):
    """DIANA, accelerated: compressed differences of gradients, and Nesterov's momentum.

    Li et al., "Acceleration for Compressed Gradient Descent in Distributed and Federated
    Optimization" (2020), for strongly convex losses::

        worker   m_i =  C(grad F_i(x) - h_i),    n_i = C(grad F_i(u) - h_i)
                 h_i <- h_i + alpha n_i
        server   g   =  h + sum_i D_i m_i / D_S
                 h   <- h + alpha (D_S / D) sum_i D_i n_i / D_S
                 y'  =  x - lr g
                 z   <- beta z + (1 - beta) x + (gamma / lr) (y' - x)
                 u   <- y with probability p, u otherwise;    y <- y'
                 x   <- theta1 z + u / 2 + (1/2 - theta1) y

    with alpha = 1 / (1 + omega), theta1 = min(1/4, sqrt(lr mu / p)),
    gamma = lr / (2 (theta1 + lr mu)) and beta = 1 - gamma mu, as in the paper. ``omega`` is the
    compressor's relative variance, 0 without one; ``mu`` the strong convexity. The coin is drawn
    from ``coin_seed`` and the round. Two vectors go up, and an iteration takes two gradients. The
    model that is sent and measured is x. Means are weighted by data size.

    >>> from fednag.algorithms import ADIANA
    >>> ADIANA().down, ADIANA().up
    (('w', 'u'), ('m', 'n'))
    """

    lr: Positive = 0.01
    mu: Positive = 0.01
    omega: NonNegative = 0.0
    p: Share = 0.5
    coin_seed: Annotated[int, Ge(0)] = 0

    down = ("w", "u")
    up = ("m", "n")

    @property
    def alpha(self) -> float:
        return 1 / (1 + self.omega)

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, u=w, y=w, z=w, h=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(h=torch.zeros_like(w))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, g=torch.zeros_like(sent.w), gu=torch.zeros_like(sent.w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return local.but(g=local.g + grad(local.w), gu=local.gu + grad(sent.u))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(m=local.g / steps - mine.h, n=local.gu / steps - mine.h), mine

    def settle(self, kept: Vectors, arrived: Vectors) -> Vectors:
        return Vectors(h=kept.h + self.alpha * arrived.n)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        x, y, z, u = server.w, server.y, server.z, server.u
        theta = min(0.25, sqrt(self.lr * self.mu / self.p))
        gamma = self.lr / (2 * (theta + self.lr * self.mu))
        beta = 1 - gamma * self.mu
        ahead = x - self.lr * (server.h + mean.m)
        z = beta * z + (1 - beta) * x + gamma / self.lr * (ahead - x)
        if generator(self.coin_seed, COIN, news.round).random() < self.p:
            u = y
        return Vectors(
            w=theta * z + u / 2 + (0.5 - theta) * ahead,
            y=ahead,
            z=z,
            u=u,
            h=server.h + self.alpha * news.share * mean.n,
        )
