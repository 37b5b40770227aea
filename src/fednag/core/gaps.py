"""How far local steps drift from centralised ones: the functions behind Theorem 1.

Symbols are the paper's: ``eta`` the learning rate, ``gamma`` the momentum, ``beta`` the smoothness
of every worker's loss, ``delta`` the divergence of their gradients (``delta_i`` one worker's),
``x`` the iterations since the last aggregation. Everything takes floats or arrays, broadcasts them,
and gives float64. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError

Array = NDArray[np.float64]
Real = Any  # a float or an array in; a float64 or an array of the broadcast shape out


@dataclass(frozen=True)
class Symbols:
    """The constants of Theorem 1 and Lemma 1; ``gamma A`` > 1 and ``gamma B`` < 1 are growth rates.

    A and B solve ``gamma x^2 - (1 + eta beta)(1 + gamma) x + 1 + eta beta = 0``, and
    ``C + D = 1``, ``E + F = 1 / (eta beta)``.

    >>> from fednag.theory import symbols
    >>> k = symbols(eta=0.01, beta=1.0, gamma=0.5)
    >>> round(float(k.C + k.D), 9), round(float(k.E + k.F), 9)
    (1.0, 100.0)
    """

    A: Real
    B: Real
    C: Real
    D: Real
    E: Real
    F: Real


def symbols(eta: Real, beta: Real, gamma: Real) -> Symbols:
    """A, B, C, D, E and F, for ``eta beta > 0`` and ``0 < gamma < 1``.

    >>> from fednag.theory import symbols
    >>> round(float(symbols(eta=0.01, beta=1.0, gamma=0.5).A), 4)
    2.0396
    """
    e, gamma = np.float64(eta) * np.asarray(beta, float), np.asarray(gamma, float)
    if not (np.all(e > 0) and np.all(gamma > 0) and np.all(gamma < 1)):
        raise FednagError(
            "", "A to F exist for eta beta > 0 and 0 < gamma < 1 only", "give such numbers"
        )
    # u = gamma A - 1 solves u^2 - m u - e = 0, here without subtracting numbers that are nearly
    # equal: the other form of the root is for negative m.
    m = gamma - 1 + e * (1 + gamma)
    root = np.sqrt(m * m + 4 * e)
    over = np.where(m > 0, (m + root) / 2, 2 * e / (root + np.abs(m)))[()]
    growth = 1 + over
    decay = gamma * (1 + e) / growth
    apart = growth - decay
    return Symbols(
        A=growth / gamma,
        B=decay / gamma,
        C=(growth - gamma) / apart,
        D=(gamma - decay) / apart,
        E=(gamma * growth + growth - gamma) / (apart * over),
        F=(gamma * decay + decay - gamma) / (apart * (1 - decay)),
    )


def f_i(x: Real, eta: Real, beta: Real, gamma: Real, delta_i: Real) -> Real:
    """Lemma 2: ``||w_i(t) - w_[k](t)|| <= f_i(x)``, by the recurrence.

    >>> from fednag.theory import f_i
    >>> round(float(f_i(1, eta=0.01, beta=1.0, gamma=0.9, delta_i=0.1)), 6)
    0.0019
    """
    return _march(x, eta, beta, gamma, delta_i, lambda f, v, w: f)


def p(x: Real, eta: Real, beta: Real, gamma: Real) -> Real:
    """``p(x) = beta f_i(x) / delta_i``, free of the worker, by the recurrence.

    >>> from fednag.theory import p
    >>> round(float(p(1, eta=0.01, beta=1.0, gamma=0.9)), 6)
    0.019
    """
    return _march(x, eta, beta, gamma, beta, lambda f, v, w: f)


def v_gap(x: Real, eta: Real, beta: Real, gamma: Real, delta: Real) -> Real:
    """Lemma 3: ``||v(t) - v_[k](t)|| <= v_gap(x)``, by the recurrence.

    >>> from fednag.theory import v_gap
    >>> v_gap([1, 2, 10], eta=0.01, beta=1.0, gamma=0.9, delta=0.1).round(6).tolist()
    [0.0, 1.9e-05, 0.001453]
    """
    return _march(x, eta, beta, gamma, delta, lambda f, v, w: v)


def h(x: Real, eta: Real, beta: Real, gamma: Real, delta: Real) -> Real:
    """Theorem 1: ``||w(t) - w_[k](t)|| <= h(x)``, by the recurrence; also for gamma = 0.

    The sums of non-negative numbers it consists of keep all digits, where the closed form
    subtracts numbers near ``1 / (eta beta)`` from one another.

    >>> from fednag.theory import h
    >>> h([0, 1, 2, 10], eta=0.01, beta=1.0, gamma=0.9, delta=0.1).round(6).tolist()
    [0.0, 0.0, 3.6e-05, 0.006175]
    """
    return _march(x, eta, beta, gamma, delta, lambda f, v, w: w)


def h_hat(x: Real, eta: Real, beta: Real, delta: Real) -> Real:
    """FedAvg's h, of Wang et al. (2019): ``delta/beta ((1 + eta beta)^x - 1) - eta delta x``.

    It is h at gamma = 0, and computed as such.

    >>> from fednag.theory import h_hat
    >>> round(float(h_hat(2, eta=0.01, beta=1.0, delta=0.1)), 9)  # eta^2 beta delta
    1e-05
    """
    return h(x, eta, beta, 0.0, delta)


Pick = Callable[[Array, Array, Array], Array]


def _march(x: Real, eta: Real, beta: Real, gamma: Real, delta: Real, pick: Pick) -> Real:
    """The inequalities of the proof taken as equalities, from zero, for ``x`` steps.

    ``s`` and ``f`` bound one worker's gaps in v and w, ``v`` and ``w`` those of the mean, whose
    own divergence cancels: the mean of all workers' gradients is the global one.
    """
    steps = np.asarray(x)
    if not np.all((steps >= 0) & (steps == np.floor(steps))):
        raise FednagError(f"x = {x}", remedy="iterations are counted in whole numbers from 0 up")
    given = [np.asarray(number, float) for number in (eta, beta, gamma, delta)]
    if not all(np.all(number >= 0) for number in given):
        raise FednagError("", "eta, beta, gamma and delta are never negative", "give such numbers")
    steps, eta, beta, gamma, delta = np.broadcast_arrays(steps, *given)
    s, f, v, w = (np.zeros(steps.shape) for _ in range(4))
    found = np.zeros(steps.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, int(steps.max(initial=0)) + 1):
            drift = eta * beta * f
            v = gamma * v + drift
            w = w + gamma * v + drift
            s = gamma * s + drift + eta * delta
            f = f + drift + gamma * s + eta * delta
            found = np.where(steps == step, pick(f, v, w), found)
    # Beyond the largest float, infinity; never nan.
    return np.where(np.isnan(found), np.inf, found)[()]


def f_i_closed(x: Real, eta: Real, beta: Real, gamma: Real, delta_i: Real) -> Real:
    """f_i(x) as printed: ``delta_i/beta (gamma^x (C A^x + D B^x) - 1)``; loses digits.

    >>> from fednag.theory import f_i, f_i_closed
    >>> known = dict(eta=0.01, beta=1.0, gamma=0.9, delta_i=0.1)
    >>> bool(abs(f_i_closed(10, **known) - f_i(10, **known)) < 1e-9)
    True
    """
    k = symbols(eta, beta, gamma)
    return delta_i / beta * (k.C * (gamma * k.A) ** x + k.D * (gamma * k.B) ** x - 1)


def v_gap_closed(x: Real, eta: Real, beta: Real, gamma: Real, delta: Real) -> Real:
    """Lemma 3's bound as printed; loses digits.

    >>> from fednag.theory import v_gap, v_gap_closed
    >>> known = dict(eta=0.01, beta=1.0, gamma=0.9, delta=0.1)
    >>> bool(abs(v_gap_closed(10, **known) - v_gap(10, **known)) < 1e-9)
    True
    """
    k = symbols(eta, beta, gamma)
    growing = k.C * (gamma * k.A) ** x / (gamma * (k.A - 1))
    shrinking = k.D * (gamma * k.B) ** x / (gamma * (k.B - 1))
    return eta * delta * (growing + shrinking - (gamma**x - 1) / (gamma - 1))


def h_closed(x: Real, eta: Real, beta: Real, gamma: Real, delta: Real) -> Real:
    """h(x) as printed in Theorem 1; a cross-check, for it loses digits when eta beta is small.

    >>> from fednag.theory import h, h_closed
    >>> known = dict(eta=0.01, beta=1.0, gamma=0.9, delta=0.1)
    >>> bool(abs(h_closed(10, **known) - h(10, **known)) < 1e-9)
    True
    """
    k = symbols(eta, beta, gamma)
    powers = k.E * (gamma * k.A) ** x + k.F * (gamma * k.B) ** x - 1 / (eta * beta)
    line = (gamma**2 * (gamma**x - 1) - (gamma - 1) * x) / (gamma - 1) ** 2
    return eta * delta * (powers - line)


def h_hat_closed(x: Real, eta: Real, beta: Real, delta: Real) -> Real:
    """FedAvg's h as printed; a cross-check.

    >>> from fednag.theory import h_hat, h_hat_closed
    >>> known = dict(eta=0.01, beta=1.0, delta=0.1)
    >>> bool(abs(h_hat_closed(10, **known) - h_hat(10, **known)) < 1e-9)
    True
    """
    return delta / beta * ((eta * beta + 1) ** x - 1) - eta * delta * x
