"""The paper's theory as functions, and its check against real trajectories.

What is imported here needs numpy only; ``landscape``, ``trajectory``, ``constants`` and ``check``
need torch, and ``constants`` scipy.

>>> from fednag.theory import Setting, theorem3
>>> known = dict(tau=5, beta=1.0, rho=1.0, delta=0.1, p=0.5, omega=1.0)
>>> theorem3(Setting(eta=0.01, gamma=0.9, **known), T=1000, kind="paper").reason
'alpha > 0 does not hold: alpha is -0.4717'
>>> round(theorem3(Setting(eta=0.01, gamma=0.9, **known), T=1000, kind="tight").value, 4)
0.1398
"""

from fednag.core.gaps import (
    Symbols,
    f_i,
    f_i_closed,
    h,
    h_closed,
    h_hat,
    h_hat_closed,
    p,
    symbols,
    v_gap,
    v_gap_closed,
)
from fednag.theory.bounds import (
    Bound,
    Condition,
    Setting,
    alpha,
    alpha_hat,
    eta_bar,
    f1,
    f2,
    fedavg_bound,
    floor,
    iterations_to,
    largest_eta,
    over,
    step_condition,
    theorem1,
    theorem2,
    theorem3,
    theorem4_conditions,
)

__all__ = [
    "Bound",
    "Condition",
    "Setting",
    "Symbols",
    "alpha",
    "alpha_hat",
    "eta_bar",
    "f1",
    "f2",
    "f_i",
    "f_i_closed",
    "fedavg_bound",
    "floor",
    "h",
    "h_closed",
    "h_hat",
    "h_hat_closed",
    "iterations_to",
    "largest_eta",
    "over",
    "p",
    "step_condition",
    "symbols",
    "theorem1",
    "theorem2",
    "theorem3",
    "theorem4_conditions",
    "v_gap",
    "v_gap_closed",
]
