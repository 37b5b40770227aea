"""What follows from the bounds: over arrays, which eta, how many iterations. Needs numpy only."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np

from fednag.errors import FednagError
from fednag.theory.bounds import (
    EDGE,
    Bound,
    Condition,
    Kind,
    Setting,
    alpha,
    bound_if,
    common_conditions,
    divide,
    floor,
    step_condition,
)
from fednag.theory.gaps import Real, h


def f1(
    T: Real,
    *,
    eta: Real,
    gamma: Real,
    tau: Real,
    beta: Real,
    rho: Real,
    delta: Real,
    p: Real,
    omega: Real,
    kind: Kind = "tight",
) -> Real:
    """FedNAG's bound after T iterations, for floats or arrays; nan wherever it is vacuous.

    The same numbers as ``theorem3``, which also says why there is none.

    >>> from fednag.theory import f1
    >>> known = dict(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> f1([100, 1000], **known).round(4).tolist()
    [0.7091, 0.1398]
    """
    slope, reach = alpha(eta, beta, gamma, p, kind), h(tau, eta, beta, gamma, delta)
    step = np.asarray(beta, float) * eta * (np.asarray(gamma, float) + 1)
    known = (slope > 0) & (step > 0) & (step <= EDGE) & (np.asarray(gamma) < 1)
    with np.errstate(all="ignore"):
        pace = np.asarray(omega, float) * np.where(known, slope, np.nan)
        half, far = 1 / (2 * np.asarray(T, float) * pace), np.asarray(rho, float) * reach
        value = half + np.sqrt(half**2 + far / (pace * tau)) + far
    return np.where(np.isfinite(value), value, np.nan)[()]


def f2(
    T: Real, *, eta: Real, tau: Real, beta: Real, rho: Real, delta: Real, omega: Real, **_: Real
) -> Real:
    """FedAvg's bound after T iterations, for floats or arrays; nan wherever it is vacuous.

    It is ``f1`` without momentum; further symbols (gamma, p) may be given, and play no part.

    >>> from fednag.theory import f2
    >>> known = dict(eta=0.01, tau=5, beta=1, rho=1, delta=0.1, omega=1)
    >>> f2([100, 1000], **known).round(4).tolist()
    [1.0071, 0.1178]
    """
    known = {"eta": eta, "tau": tau, "beta": beta, "rho": rho, "delta": delta, "omega": omega}
    return f1(T, gamma=0.0, p=0.0, **known)


def theorem4_conditions(setting: Setting) -> tuple[Condition, ...]:
    """What Theorem 4 asks for before it claims f1(T) < f2(T) for small eta.

    >>> from fednag.theory import Setting, theorem4_conditions
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> [condition.met for condition in theorem4_conditions(setting)]
    [True, True]
    """
    gamma = Condition("0 < gamma < 1", 0 < setting.gamma < 1, f"gamma is {setting.gamma:g}")
    return step_condition(setting.eta, setting.beta, setting.gamma), gamma


def largest_eta(beta: float, gamma: float) -> float:
    """The largest eta with ``beta eta (gamma + 1) <= 1``.

    >>> from fednag.theory import largest_eta
    >>> largest_eta(beta=1.0, gamma=1.0)
    0.5
    """
    if not beta > 0 or not gamma >= 0:
        raise FednagError("beta must be > 0 and gamma >= 0 for a largest eta; give such numbers")
    return 1 / (beta * (gamma + 1))


def eta_bar(setting: Setting, T: float, kind: Kind = "tight") -> float | None:
    """The paper's threshold: f1(T) < f2(T) for every eta below it; None if there is no such eta.

    ``setting.eta`` is not used, and p and omega are held fixed, as in the paper. Found on a grid of
    etas down to 1e-9 of the largest allowed, then by halving the bracket where the order changes.

    >>> from fednag.theory import Setting, eta_bar
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(eta_bar(setting, T=1000), 4), eta_bar(setting, T=1000, kind="paper")
    (0.0076, None)
    """
    most = largest_eta(setting.beta, setting.gamma)

    def below(eta: Real) -> Real:
        known = {**asdict(setting), "eta": eta}
        return f1(T, kind=kind, **known) < f2(T, **known)  # nan is not below anything

    grid = most * np.logspace(-9, 0, 181)
    order = below(grid)
    if not order[0]:
        return None
    if order.all():
        return most
    low, high = (float(eta) for eta in grid[order.argmin() - 1 : order.argmin() + 1])
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def iterations_to(gap: float, setting: Setting, kind: Kind = "tight") -> Bound:
    """The least T, a multiple of tau, at which Theorem 3 promises ``gap``; None below its floor.

    >>> from fednag.theory import Setting, iterations_to
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> iterations_to(0.2, setting).value, iterations_to(0.05, setting).value
    (465, None)
    """
    slope = setting.alpha(kind)
    rest = gap - setting.rho * setting.h
    least = floor(setting, kind)
    conditions = [
        *common_conditions(setting, slope),
        Condition(
            "the floor is below the gap",
            least.value is not None and least.value < gap,
            "it is vacuous" if least.value is None else f"it is {least.value:.4g}",
        ),
    ]

    def value() -> float:
        # epsilon_0 = rest, solved for T.
        rate = setting.omega * slope * rest - setting.rho * setting.h / (setting.tau * rest)
        rounds = divide(1, rate * setting.tau)
        return setting.tau * math.ceil(rounds * (1 - 1e-12)) if rounds < 1e18 else math.inf

    return bound_if(conditions, value)
