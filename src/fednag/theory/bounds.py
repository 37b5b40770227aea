"""The convergence bounds of Theorems 2 and 3, FedAvg's, and what follows: eta, T, over arrays.

Symbols as in ``gaps``; further ``T`` iterations in all, ``tau`` between aggregations, ``rho`` the
Lipschitz constant of the loss, ``omega`` one over the largest squared distance to w*, and ``p`` the
largest ratio of momentum to gradient (``max ||gamma v|| / ||eta grad F||``) along the virtual
updates. Needs numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fednag.core.gaps import Real, h
from fednag.errors import FednagError

Kind = Literal["paper", "tight"]
KINDS: tuple[Kind, ...] = ("paper", "tight")
EDGE = 1 + 1e-12  # eta = 1 / (beta (gamma + 1)) is allowed, and must not fail by a rounding


@dataclass(frozen=True)
class Setting:
    """The numbers a bound depends on, apart from T. FedAvg's are those with gamma = 0 and p = 0.

    >>> from fednag.theory import Setting
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(setting.h, 6), round(setting.alpha("tight"), 6)
    (0.000697, 0.014395)
    """

    eta: float
    gamma: float
    tau: int
    beta: float
    rho: float
    delta: float
    p: float
    omega: float

    def __post_init__(self) -> None:
        for name in ("eta", "beta", "omega"):
            if not getattr(self, name) > 0:
                raise FednagError(name, f"{getattr(self, name)!r} is not allowed", "give it > 0")
        for name in ("gamma", "rho", "delta", "p"):
            if not getattr(self, name) >= 0:
                raise FednagError(name, f"{getattr(self, name)!r} is not allowed", "give it >= 0")
        if self.tau < 1 or self.tau != int(self.tau):
            raise FednagError(
                "tau", f"{self.tau!r} is not allowed", "give a whole number from 1 up"
            )

    @property
    def fedavg(self) -> Setting:
        """The same without momentum: h becomes h-hat, alpha alpha-hat."""
        return replace(self, gamma=0.0, p=0.0)

    @cached_property
    def h(self) -> float:
        """h(tau)."""
        return float(h(self.tau, self.eta, self.beta, self.gamma, self.delta))

    def alpha(self, kind: Kind) -> float:
        return float(alpha(self.eta, self.beta, self.gamma, self.p, kind))


def alpha(eta: Real, beta: Real, gamma: Real, p: Real, kind: Kind = "tight") -> Real:
    """The descent of one virtual step: ``F(w(t+1)) <= F(w(t)) - alpha ||grad F(w(t))||^2``.

    ``paper`` bounds the cross term grad F . v by Young's inequality, and tends to -1/2 as eta -> 0.
    ``tight`` bounds it by Cauchy and Schwarz, is never smaller, and comes to
    ``eta kappa (1 - beta eta kappa / 2)`` with ``kappa = 1 + gamma (1 - p)``: the alpha of plain
    gradient descent with the step ``eta kappa``. It is negative for p > (gamma + 1) / gamma.

    >>> from fednag.theory import alpha
    >>> known = dict(eta=0.01, beta=1.0, gamma=0.9, p=0.5)
    >>> round(float(alpha(**known)), 4), round(float(alpha(**known, kind="paper")), 4)
    (0.0144, -0.4717)
    """
    eta, beta, gamma, p = (np.asarray(number, float) for number in (eta, beta, gamma, p))
    if kind == "tight":
        with np.errstate(invalid="ignore"):
            kappa = 1 + gamma - np.where(gamma > 0, gamma * p, 0.0)
            return (eta * kappa * (1 - beta * eta * kappa / 2))[()]
    if kind != "paper":
        raise FednagError("alpha", f"there is no {kind!r}", "use 'paper' or 'tight'")
    with np.errstate(invalid="ignore"):
        step, drag = beta * eta * (gamma + 1), (eta * gamma * p) ** 2
        cross = (1 - step) * (1 + drag) / 2
        return (eta * (gamma + 1) * (1 - step / 2) - beta * drag / 2 - cross)[()]


def alpha_hat(eta: Real, beta: Real) -> Real:
    """FedAvg's alpha: ``eta (1 - beta eta / 2)``, the tight one at gamma = 0.

    >>> from fednag.theory import alpha_hat
    >>> round(float(alpha_hat(eta=0.1, beta=1.0)), 6)
    0.095
    """
    return alpha(eta, beta, 0.0, 0.0, "tight")


@dataclass(frozen=True)
class Condition:
    """A condition of a theorem, and whether it is met.

    >>> from fednag.theory import step_condition
    >>> condition = step_condition(eta=1.0, beta=1.0, gamma=0.9)
    >>> condition.met, condition.detail
    (False, 'it is 1.9, gamma 0.9')
    """

    name: str
    met: bool
    detail: str


@dataclass(frozen=True)
class Bound:
    """A theorem's bound: a number, or None where it says nothing, and then why.

    >>> from fednag.theory import Setting, theorem3
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> theorem3(setting, T=100, kind="paper").vacuous, theorem3(setting, T=100).vacuous
    (True, False)
    """

    value: float | None
    reason: str
    conditions: tuple[Condition, ...]

    @property
    def vacuous(self) -> bool:
        return self.value is None


def bound_if(conditions: list[Condition], value: Callable[[], float]) -> Bound:
    """The value where all conditions hold; else none, and which do not."""
    unmet = [f"{c.name} does not hold: {c.detail}" for c in conditions if not c.met]
    if unmet:
        return Bound(None, "; ".join(unmet), tuple(conditions))
    number = value()
    if not math.isfinite(number):
        return Bound(None, "the bound is larger than any float", tuple(conditions))
    return Bound(number, "", tuple(conditions))


def step_condition(eta: float, beta: float, gamma: float) -> Condition:
    """Condition 1 of Theorems 2 and 3: ``0 < beta eta (gamma + 1) <= 1`` and ``0 <= gamma < 1``.

    >>> from fednag.theory import step_condition
    >>> step_condition(eta=0.01, beta=1.0, gamma=0.9).met
    True
    """
    step = beta * eta * (gamma + 1)
    met = 0 < step <= EDGE and 0 <= gamma < 1
    return Condition(
        "0 < beta eta (gamma+1) <= 1, 0 <= gamma < 1", met, f"it is {step:.4g}, gamma {gamma:g}"
    )


def common_conditions(setting: Setting, descent: float) -> list[Condition]:
    """What Theorems 2 and 3 both ask for."""
    return [
        step_condition(setting.eta, setting.beta, setting.gamma),
        Condition("alpha > 0", descent > 0, f"alpha is {descent:.4g}"),
        _finite(setting),
    ]


def _finite(setting: Setting) -> Condition:
    return Condition("h(tau) is finite", math.isfinite(setting.h), f"it is {setting.h:.4g}")


def theorem1(setting: Setting) -> Bound:
    """``||w(t) - w_[k](t)|| <= h(tau)`` anywhere in an interval; needs no condition on eta.

    >>> from fednag.theory import Setting, theorem1
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(theorem1(setting).value, 6)
    0.000697
    """
    return bound_if([_finite(setting)], lambda: setting.h)


def theorem2(
    setting: Setting,
    T: float,
    epsilon: float,
    kind: Kind = "tight",
    lowest: float | None = None,
    last: float | None = None,
    descent: float | None = None,
) -> Bound:
    """``F(w(T)) - F(w*) <= 1 / (T (omega alpha - rho h(tau) / (tau epsilon^2)))``.

    ``lowest`` is the smallest ``F(w_[k](k tau)) - F(w*)`` and ``last`` is ``F(w(T)) - F(w*)``:
    conditions 3 and 4 ask that neither is below ``epsilon``. Left out, they are taken for granted.
    ``descent`` is an alpha known otherwise, used in place of ``kind``.

    >>> from fednag.theory import Setting, theorem2
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(theorem2(setting, T=1000, epsilon=0.2).value, 4)
    0.0917
    >>> theorem2(setting, T=1000, epsilon=0.01).reason
    'omega alpha > rho h(tau) / (tau epsilon^2) does not hold: short by 1.379'
    """
    slope = setting.alpha(kind) if descent is None else descent
    conditions = common_conditions(setting, slope)
    conditions.append(Condition("epsilon > 0", epsilon > 0, f"it is {epsilon:.4g}"))
    rate = -math.inf
    if epsilon > 0:
        rate = setting.omega * slope - divide(setting.rho * setting.h, setting.tau * epsilon**2)
    conditions.append(
        Condition("omega alpha > rho h(tau) / (tau epsilon^2)", rate > 0, f"short by {-rate:.4g}")
    )
    for name, gap in (("F(w_[k](k tau)) - F(w*)", lowest), ("F(w(T)) - F(w*)", last)):
        if gap is not None:
            conditions.append(Condition(f"{name} >= epsilon", gap >= epsilon, f"{gap:.4g}"))
    return bound_if(conditions, lambda: divide(1, T * rate))


def theorem3(
    setting: Setting, T: float, kind: Kind = "tight", descent: float | None = None
) -> Bound:
    """``F(w^f) - F(w*) <= epsilon_0 + rho h(tau)``, the paper's f1(T); T is a multiple of tau.

    ``epsilon_0 = u + sqrt(u^2 + rho h(tau) / (omega alpha tau))``, ``u = 1 / (2 T omega alpha)``.

    >>> from fednag.theory import Setting, theorem3
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(theorem3(setting, T=1000).value, 4)
    0.1398
    """
    slope = setting.alpha(kind) if descent is None else descent

    def value() -> float:
        half = divide(1, 2 * T * setting.omega * slope)
        far = setting.rho * setting.h
        return half + math.hypot(half, math.sqrt(_floor_square(setting, slope))) + far

    return bound_if(common_conditions(setting, slope), value)


def fedavg_bound(setting: Setting, T: float) -> Bound:
    """FedAvg's bound, the paper's f2(T): Theorem 3 with alpha-hat and h-hat.

    >>> from fednag.theory import Setting, fedavg_bound
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(fedavg_bound(setting, T=1000).value, 4)
    0.1178
    """
    return theorem3(setting.fedavg, T, "tight")


def floor(setting: Setting, kind: Kind = "tight") -> Bound:
    """What the bound of Theorem 3 tends to as T grows: zero at tau = 1 only.

    ``sqrt(rho h(tau) / (omega alpha tau)) + rho h(tau)``.

    >>> from fednag.theory import Setting, floor
    >>> setting = Setting(eta=0.01, gamma=0.9, tau=5, beta=1, rho=1, delta=0.1, p=0.5, omega=1)
    >>> round(floor(setting).value, 4)
    0.0991
    """
    slope = setting.alpha(kind)
    return bound_if(
        common_conditions(setting, slope),
        lambda: math.sqrt(_floor_square(setting, slope)) + setting.rho * setting.h,
    )


def _floor_square(setting: Setting, slope: float) -> float:
    return divide(setting.rho * setting.h, setting.omega * slope * setting.tau)


def divide(above: float, below: float) -> float:
    """A quotient; over nothing it is infinite, unless it is nothing too."""
    return above / below if below else (math.inf if above else 0.0)


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
        raise FednagError(
            "", "beta must be > 0 and gamma >= 0 for a largest eta", "give such numbers"
        )
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


def over(rule: Callable[..., Bound | float | None], kind: Kind = "tight", **numbers: Real) -> Real:
    """``theorem2``, ``theorem3``, ``floor``, ``eta_bar`` or ``iterations_to`` for floats or arrays.

    Takes a setting's numbers and the rule's own (T, epsilon, gap) by name, broadcasts them, and
    gives nan wherever there is no number; the rule itself says why.

    >>> from fednag.theory import floor, over
    >>> known = dict(eta=0.01, gamma=0.9, beta=1.0, rho=1.0, delta=0.1, p=0.5, omega=1.0)
    >>> over(floor, tau=[1, 2, 5], **known).round(4).tolist()
    [0.0, 0.0354, 0.0991]
    >>> float(over(floor, "paper", tau=5, **known))
    nan
    """
    arrays = np.broadcast_arrays(*(np.asarray(number, float) for number in numbers.values()))
    found = np.empty(arrays[0].shape)
    for place in np.ndindex(found.shape):
        point: dict[str, Any] = {
            name: float(array[place]) for name, array in zip(numbers, arrays, strict=True)
        }
        setting = Setting(**{field.name: point.pop(field.name) for field in fields(Setting)})
        result = rule(setting=setting, kind=kind, **point)
        value = result.value if isinstance(result, Bound) else result
        found[place] = np.nan if value is None else value
    return found[()]
