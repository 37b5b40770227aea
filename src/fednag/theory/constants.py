"""The constants of the theory, measured (beta, rho, delta, p, omega, w*), and how each was got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from fednag.core.vectors import Vector
from fednag.theory.bounds import Setting, divide
from fednag.theory.landscape import Landscape
from fednag.theory.trajectory import Trajectory

FLAT = 1e-6  # a gradient this much smaller than at the start counts as a minimum
NEAR = 1e-6  # to a loss that is never reached
POINTS = 3  # visited points at which curvature is taken


@dataclass(frozen=True)
class Measured:
    """A constant and where it comes from."""

    value: float
    how: str


@dataclass(frozen=True)
class Constants:
    """What the bounds need to know of a problem and of a run on it."""

    beta: Measured
    rho: Measured
    delta: Measured
    delta_i: tuple[float, ...]
    p: Measured
    omega: Measured
    descent: Measured  # the alpha that the run itself showed

    def setting(self, eta: float, gamma: float, tau: int) -> Setting:
        names = ("beta", "rho", "delta", "p", "omega")
        return Setting(eta, gamma, tau, **{name: getattr(self, name).value for name in names})


@dataclass(frozen=True, eq=False)
class Minimum:
    """w*: a minimiser of F, as near to one as could be found."""

    w: Vector
    loss: float
    flatness: float  # ||grad F(w*)|| / ||grad F(w(0))||
    how: str
    attained: bool  # F falls further and further out, if not

    @property
    def found(self) -> bool:
        return self.attained and self.flatness <= FLAT


def minimise(landscape: Landscape, most: int = 300) -> Minimum:
    """w* for a convex landscape: solved for where F is quadratic, else by scipy's L-BFGS."""
    exact = landscape.exact_minimiser()
    if exact is not None:
        return _minimum(landscape, exact, "exact: least squares")

    def both(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        w = torch.from_numpy(point.copy())
        return landscape.loss(w), landscape.mean(landscape.slopes(w)).numpy()

    options = {"maxiter": most, "maxfun": 2 * most, "ftol": 0.0, "gtol": 1e-10, "maxcor": 30}
    start = landscape.start.numpy()
    found = minimize(both, start, jac=True, method="L-BFGS-B", options=options)
    return _minimum(landscape, torch.from_numpy(found.x), f"L-BFGS, {found.nit} iterations")


def _minimum(landscape: Landscape, w: Vector, how: str) -> Minimum:
    first = float(landscape.mean(landscape.slopes(landscape.start)).norm())
    left = float(landscape.mean(landscape.slopes(w)).norm())
    flatness = left / first if first else 0.0
    loss, never = landscape.loss(w), landscape.unreached
    attained = never is None or loss > never + NEAR
    how = f"{how}; gradient {flatness:.1e} of the first"
    return Minimum(w, loss, flatness, how if attained else f"{how}; there is no minimum", attained)


def largest_eigenvalue(
    landscape: Landscape, worker: int, w: Vector, tolerance: float = 1e-7, most: int = 300
) -> float:
    """Of the Hessian of F_i at w, by power iteration with Hessian-vector products."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(len(w), generator=generator, dtype=w.dtype)
    u = u / u.norm()
    value = 0.0
    for _ in range(most):
        bent = landscape.bend(worker, w, u)
        before, value = value, float(bent.norm())
        if value == 0 or abs(value - before) <= tolerance * value:
            break
        u = bent / value
    return value


def smoothness(landscape: Landscape, visited: Sequence[Vector]) -> Measured:
    """beta: the largest eigenvalue of any worker's Hessian."""
    exact = landscape.exact_beta()
    if exact is not None:
        return Measured(exact, "exact: largest eigenvalue of any worker's Hessian")
    where = np.unique(np.linspace(0, len(visited) - 1, POINTS).round().astype(int))
    workers = range(len(landscape.sizes))
    value = max(largest_eigenvalue(landscape, i, visited[j]) for j in where for i in workers)
    ceiling = landscape.most_beta()
    known = "" if ceiling is None else f"; nowhere above {ceiling:.4g}"
    points = f"maximum over workers and {len(where)} visited points"
    return Measured(value, f"power iteration, {points}{known}")


def measure(landscape: Landscape, trajectory: Trajectory) -> Constants:
    """Every constant, from the virtual updates of a run.

    The proofs use delta_i, p and omega at the points w_[k](t) only, and of rho, as F is convex, the
    gradient at w(k tau). Maxima over the points visited are therefore enough for that run, and say
    nothing of another.
    """
    moments = trajectory.moments
    delta_i = tuple(max(column) for column in zip(*(m.divergences for m in moments), strict=True))
    sizes = landscape.sizes
    delta = sum(n * d for n, d in zip(sizes, delta_i, strict=True)) / sum(sizes)
    seen = f"maximum over {len(moments)} visited points"
    rho = max(trajectory.last_steepness, *(m.steepness for m in moments))
    falls = [fall / now.steepness**2 for now, fall in trajectory.falls if now.steepness]
    ratios = [divide(trajectory.gamma * m.momentum, trajectory.eta * m.steepness) for m in moments]
    farthest = max(m.distance for m in moments)
    return Constants(
        beta=smoothness(landscape, trajectory.visited),
        rho=Measured(rho, f"largest gradient of F, {seen}"),
        delta=Measured(
            delta, f"mean of delta_i ({min(delta_i):.4g} to {max(delta_i):.4g}), {seen}"
        ),
        delta_i=delta_i,
        p=Measured(max(ratios), f"||gamma v|| / ||eta grad F||, {seen}"),
        omega=Measured(
            divide(1, farthest**2),
            f"1 / largest squared distance to w*, {len(moments)} visited points",
        ),
        descent=Measured(
            min(falls, default=0.0), "least fall of F per squared gradient, all steps"
        ),
    )
