"""The theory's functions: the lemmas' identities, limits, bounds, and when they say nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag import theory
from fednag.errors import FednagError
from fednag.theory import Setting, alpha, alpha_hat, h, symbols
from refusals import refused

ETA = st.floats(0.01, 1.0)
BETA = st.floats(0.5, 4.0)
GAMMA = st.floats(0.05, 0.95)
DELTA = st.floats(0.1, 10.0)
STEPS = st.integers(1, 40)
near = pytest.approx

KNOWN = Setting(eta=0.01, gamma=0.9, tau=5, beta=1.0, rho=1.0, delta=0.1, p=0.5, omega=1.0)


def cases() -> st.SearchStrategy[Setting]:
    """Settings that meet the condition on the step."""
    part = st.floats(1e-3, 1.0)
    return st.builds(
        lambda part, gamma, beta, tau, rho, delta, p, omega: Setting(
            part / (beta * (gamma + 1)), gamma, tau, beta, rho, delta, p, omega
        ),
        part,
        GAMMA,
        BETA,
        st.integers(1, 20),
        st.floats(0.1, 10),
        DELTA,
        st.floats(0.0, 3.0),
        st.floats(1e-3, 10),
    )


@settings(deadline=None)
@given(ETA, BETA, GAMMA)
def test_symbols_solve_their_equations(eta: float, beta: float, gamma: float) -> None:
    e, k = eta * beta, symbols(eta, beta, gamma)
    assert near((1 + e) * (1 + gamma) / gamma) == k.A + k.B
    assert near((1 + e) / gamma) == k.A * k.B
    assert near(1) == k.C + k.D
    assert near(1 / e) == k.E + k.F
    assert near(k.C / e) == k.E
    assert near(k.D / e, rel=1e-9) == k.F
    assert near((1 + e + e * gamma) / (e * gamma)) == k.E * k.A + k.F * k.B
    assert near((k.A - 1) / (k.A - k.B)) == k.C
    assert gamma * k.A > 1 > gamma * k.B > 0
    assert 1 / (1 + gamma) < k.B < 1
    assert min(k.C, k.D, k.E, k.F) > 0


@settings(deadline=None)
@given(ETA, BETA, GAMMA, DELTA, STEPS)
def test_lemma_1(eta: float, beta: float, gamma: float, delta: float, t: int) -> None:
    k = symbols(eta, beta, gamma)
    a = [delta / beta * (k.C * k.A**i + k.D * k.B**i) for i in range(t + 1)]
    left = (1 + eta * beta) * a[t - 1] + eta * beta * gamma * sum(a[:t])
    assert left == near(gamma * a[t], rel=1e-9)


@settings(deadline=None)
@given(ETA, BETA, GAMMA, DELTA, STEPS)
def test_lemma_2(eta: float, beta: float, gamma: float, delta: float, t: int) -> None:
    """f_i is the inequality for G_i(t) in the proof, with equality."""
    gaps = [0.0]
    for now in range(1, t + 1):
        past = sum(gamma ** (j - 1) * gaps[now - j] for j in range(1, now + 1))
        forced = eta * delta * sum(gamma**j for j in range(now + 1))
        gaps.append((1 + eta * beta) * gaps[-1] + eta * beta * gamma * past + forced)
    known = (eta, beta, gamma, delta)
    assert theory.f_i(np.arange(t + 1), *known) == near(np.array(gaps), rel=1e-9)
    assert theory.f_i(t, *known) == near(theory.f_i_closed(t, *known), rel=1e-9)
    assert theory.p(t, eta, beta, gamma) == near(beta / delta * gaps[-1], rel=1e-9)


@settings(deadline=None)
@given(ETA, BETA, GAMMA, DELTA, STEPS)
def test_lemma_3(eta: float, beta: float, gamma: float, delta: float, x: int) -> None:
    p = theory.p(np.arange(x), eta, beta, gamma)
    mean = eta * delta * sum(gamma ** (x - j) * p[j - 1] for j in range(1, x + 1))
    found = theory.v_gap(x, eta, beta, gamma, delta)
    assert found == near(mean, rel=1e-9)
    if x > 1:
        assert theory.v_gap_closed(x, eta, beta, gamma, delta) == near(found, rel=1e-7)


@settings(deadline=None)
@given(ETA, BETA, GAMMA, STEPS)
def test_lemma_4(eta: float, beta: float, gamma: float, i: int) -> None:
    lower = (1 + eta * beta * (1 + gamma)) ** i
    assert 1 + theory.p(i, eta, beta, gamma) >= lower * (1 - 1e-12)


@settings(deadline=None)
@given(ETA, BETA, GAMMA, DELTA, st.integers(2, 40))
def test_h_and_its_closed_form(eta: float, beta: float, gamma: float, d: float, x: int) -> None:
    known = (eta, beta, gamma, d)
    reach, p = h(np.arange(x + 1), *known), theory.p(np.arange(x), eta, beta, gamma)
    assert reach[0] == reach[1] == 0
    assert (np.diff(reach)[1:] > 0).all()
    assert reach[2] == near((1 + gamma) ** 2 * eta**2 * beta * d)
    rise = gamma * eta * d * sum(gamma ** (x - j) * p[j - 1] for j in range(1, x + 1))
    assert reach[x] - reach[x - 1] == near(rise + eta * d * p[x - 1], rel=1e-9)
    # Stable here: what cancels is at most some hundred times what is left.
    tolerance = {"rel": 1e-9, "abs": 1e-12 * eta * d * (1 / (eta * beta) + 1 / (1 - gamma) ** 2)}
    assert theory.h_closed(x, *known) == near(reach[x], **tolerance)
    # What the mean is spared is the divergence itself, which cancels in it.
    forced = eta * d * sum((1 - gamma ** (j + 1)) / (1 - gamma) for j in range(1, x + 1))
    assert theory.f_i(x, *known) - forced == near(reach[x], rel=1e-9)
    assert h(x, eta, beta, gamma, 3 * d) == near(3 * reach[x])


def test_the_closed_form_loses_its_digits_and_the_recurrence_does_not() -> None:
    eta, x = 1e-9, np.arange(2, 9)
    assert abs(theory.h_closed(1, eta, 1.0, 0.9, 1.0)) > 1e-18
    assert h(1, eta, 1.0, 0.9, 1.0) == 0
    # h is of second order: h(x) / eta^2 tends to a number that depends on x and gamma alone.
    first, second = (h(x, step, 1.0, 0.9, 1.0) / step**2 for step in (eta, eta / 100))
    assert first == near(second, rel=1e-6)
    assert first[0] == near(1.9**2, rel=1e-7)


@settings(deadline=None)
@given(ETA, BETA, DELTA, STEPS)
def test_without_momentum_h_is_fedavgs(eta: float, beta: float, delta: float, x: int) -> None:
    plain = theory.h_hat(x, eta, beta, delta)
    if x > 1:
        assert theory.h_hat_closed(x, eta, beta, delta) == near(plain, rel=1e-7)
    assert h(x, eta, beta, 1e-9, delta) == near(plain, rel=1e-6)
    assert h(x, eta, beta, 0.5, delta) >= plain


def test_functions_take_arrays_and_never_give_nan() -> None:
    table = h(np.arange(5)[:, None], np.array([0.1, 0.2, 0.3]), 1.0, 0.9, 2.0)
    assert table.shape == (5, 3)
    assert table[4, 1] == h(4, 0.2, 1.0, 0.9, 2.0)
    assert isinstance(h(4, 0.2, 1.0, 0.9, 2.0), float)
    assert h(5000, 1.0, 1.0, 0.9, 1.0) == math.inf
    assert h(5000, 1.0, 1.0, 0.9, 0.0) == 0
    assert symbols(np.array([0.1, 0.2]), 1.0, 0.5).A.shape == (2,)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_symbols_exist_between_only(gamma: float) -> None:
    with pytest.raises(FednagError, match="0 < gamma < 1"):
        symbols(0.1, 1.0, gamma)


@pytest.mark.parametrize("x", [-1, 0.5])
def test_iterations_are_whole(x: float) -> None:
    with pytest.raises(FednagError, match="whole numbers"):
        h(x, 0.1, 1.0, 0.5, 1.0)


def test_alpha_as_printed_is_negative_for_small_steps() -> None:
    assert alpha(0.01, 1.0, 0.9, 0.5, "paper") == near(-0.4717, abs=5e-5)
    assert alpha(1e-12, 1.0, 0.9, 0.5, "paper") == near(-0.5)
    assert alpha(1e-12, 1.0, 0.9, 0.5, "tight") == near(1.45e-12)
    # By hand: kappa = 1 + 0.5 (1 - 0.6) = 1.2; 0.1 * 1.2 * (1 - 2 * 0.1 * 1.2 / 2) = 0.1056.
    assert alpha(0.1, 2.0, 0.5, 0.6, "tight") == near(0.1056)
    # 0.15 * 0.85 - 0.0009 - 0.7 * 1.0009 / 2 = -0.223715.
    assert alpha(0.1, 2.0, 0.5, 0.6, "paper") == near(-0.223715)


@settings(deadline=None)
@given(cases())
def test_the_repaired_alpha(s: Setting) -> None:
    eta, beta, gamma, p = s.eta, s.beta, s.gamma, s.p
    step = beta * eta * (gamma + 1)
    written_out = (
        eta * (gamma + 1) * (1 - step / 2)
        - beta * (eta * gamma * p) ** 2 / 2
        - gamma * p * eta * (1 - step)
    )
    tight = alpha(eta, beta, gamma, p, "tight")
    assert tight == near(written_out, rel=1e-9, abs=1e-12)
    assert tight >= alpha(eta, beta, gamma, p, "paper") - 1e-12
    assert alpha(eta, beta, gamma, 1.0, "tight") == near(alpha_hat(eta, beta))
    assert alpha(eta, beta, gamma, 0.9, "tight") > alpha_hat(eta, beta)
    assert alpha(eta, beta, gamma, 1.1, "tight") < alpha_hat(eta, beta)
    edge = (gamma + 1) / gamma
    assert alpha(eta, beta, gamma, edge * 0.99, "tight") > 0 > alpha(eta, beta, gamma, edge * 1.01)


def test_bounds_by_hand() -> None:
    # gamma = 0, tau = 2: h = eta^2 beta delta = 0.01 * 2 * 3 = 0.06, alpha = 0.1 * 0.9 = 0.09.
    s = Setting(eta=0.1, gamma=0.0, tau=2, beta=2.0, rho=0.5, delta=3.0, p=0.0, omega=2.0)
    assert theory.theorem1(s).value == near(0.06)
    # omega alpha = 0.18; rho h / (tau epsilon^2) = 0.03 / (2 * 0.25) = 0.06; 1 / (10 * 0.12).
    assert theory.theorem2(s, 10, 0.5).value == near(1 / 1.2)
    # u = 1 / 3.6; u + sqrt(u^2 + 0.03 / 0.36) + 0.03.
    assert theory.theorem3(s, 10).value == near(1 / 3.6 + math.sqrt(1 / 3.6**2 + 1 / 12) + 0.03)
    assert theory.floor(s).value == near(math.sqrt(1 / 12) + 0.03)
    assert theory.fedavg_bound(s, 10).value == theory.theorem3(s, 10).value


@settings(deadline=None)
@given(cases(), st.integers(1, 500), st.sampled_from(["paper", "tight"]))
def test_theorem_3_is_theorem_2_at_its_fixed_point(
    s: Setting, rounds: int, kind: theory.bounds.Kind
) -> None:
    T = rounds * s.tau
    best = theory.theorem3(s, T, kind)
    array = theory.f1(np.array([T, 10 * T]), **asdict(s), kind=kind)
    if best.value is None:
        assert "alpha" in best.reason
        assert np.isnan(array).all()
        return
    assert array[0] == near(best.value)
    epsilon = best.value - s.rho * s.h
    squared = T * s.omega * s.alpha(kind) * epsilon**2
    assert squared == near(epsilon + T * s.rho * s.h / s.tau, rel=1e-6)
    above = theory.theorem2(s, T, epsilon * 1.01, kind).value
    assert above is not None
    assert above < epsilon * (1 + 1e-9)
    least = theory.floor(s, kind).value
    assert least is not None
    assert least <= array[1] <= array[0]
    assert theory.theorem3(s, 1e14 * s.tau / s.omega, kind).value == near(least, rel=1e-2, abs=1e-6)
    assert (least == 0) == (s.tau == 1)


def test_nothing_is_promised_where_a_condition_is_unmet() -> None:
    silent = theory.theorem3(KNOWN, 1000, "paper")
    assert silent.value is None
    assert silent.vacuous
    assert silent.reason == "alpha > 0 does not hold: alpha is -0.4717"
    steep = theory.theorem3(replace(KNOWN, eta=0.6), 1000)
    assert "beta eta (gamma+1) <= 1" in steep.reason
    assert [c.met for c in steep.conditions] == [False, True, True]
    assert theory.theorem3(replace(KNOWN, eta=1 / 1.9), 1000).value is not None
    assert "h(tau) is finite" in theory.theorem1(replace(KNOWN, eta=0.5, tau=2000)).reason
    assert "h(tau) is finite" in theory.floor(replace(KNOWN, eta=0.5, tau=2000)).reason
    assert "epsilon > 0" in theory.theorem2(KNOWN, 10, 0.0).reason
    assert "rho h(tau)" in theory.theorem2(KNOWN, 10, 1e-6).reason
    met = theory.theorem2(KNOWN, 10, 1.0, lowest=2.0, last=0.5)
    assert met.reason == "F(w(T)) - F(w*) >= epsilon does not hold: 0.5"
    for kind in theory.bounds.KINDS:
        assert theory.theorem3(replace(KNOWN, eta=1 / 1.9, p=math.inf), 10, kind).value is None
    assert theory.theorem3(replace(KNOWN, omega=math.inf, tau=1), 10).value == 0
    assert math.isnan(theory.f1(1000, **asdict(KNOWN), kind="paper"))
    assert [c.met for c in theory.theorem4_conditions(replace(KNOWN, gamma=0.0))] == [True, False]


@pytest.mark.parametrize("field", ["eta", "beta", "omega", "rho", "p", "tau"])
def test_settings_that_make_no_sense_are_refused(field: str) -> None:
    with refused(field):
        replace(KNOWN, **{field: -1})


def test_eta_bar_is_where_the_order_changes() -> None:
    found = theory.eta_bar(KNOWN, 1000)
    assert found is not None
    for factor, below in ((0.999, True), (1.001, False), (0.01, True)):
        here = asdict(replace(KNOWN, eta=found * factor))
        assert (theory.f1(1000, **here) < theory.f2(1000, **here)) == below
    assert theory.eta_bar(KNOWN, 1000, "paper") is None
    assert theory.eta_bar(replace(KNOWN, p=1.0), 1000) is None
    assert theory.eta_bar(replace(KNOWN, tau=1), 1000) == theory.largest_eta(1.0, 0.9)


@settings(deadline=None)
@given(cases(), st.floats(1.05, 10))
def test_iterations_to_a_gap(s: Setting, factor: float) -> None:
    least = theory.floor(s).value
    if least is None:
        assert theory.iterations_to(1.0, s).value is None
        return
    gap = max(least * factor, 1e-3)
    T = theory.iterations_to(gap, s).value
    assert T is not None
    assert T % s.tau == 0
    assert theory.f1(T, **asdict(s)) <= gap * (1 + 1e-6)
    if s.tau < T:
        assert theory.f1(T - s.tau, **asdict(s)) > gap * (1 - 1e-6)
    assert "the floor is below the gap" in theory.iterations_to(least * 0.99, s).reason


def test_largest_eta() -> None:
    assert theory.largest_eta(2.0, 0.25) == near(0.4)
    with pytest.raises(FednagError):
        theory.largest_eta(0.0, 0.5)


def test_the_functions_need_numpy_only() -> None:
    code = (
        "import sys, fednag.theory, fednag.theory.curves\n"
        "print(sorted({'torch', 'scipy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there() -> None:
    for name in theory.__all__:
        assert getattr(theory, name).__doc__, name


def test_bounds_over_arrays_are_those_of_every_point() -> None:
    known = {"gamma": 0.9, "beta": 1.0, "rho": 1.0, "delta": 0.1, "p": 0.5, "omega": 1.0}
    eta, tau = np.array([[0.001], [0.01], [0.6]]), np.array([1, 5, 10])
    for kind in ("paper", "tight"):
        ours = theory.over(theory.theorem3, kind, T=1000, eta=eta, tau=tau, **known)
        assert ours.shape == (3, 3)
        expected = theory.f1(1000, kind=kind, eta=eta, tau=tau, **known)
        np.testing.assert_allclose(ours, expected, rtol=1e-12)  # nan in the same places
        assert np.isnan(ours[2]).all()  # beta eta (gamma + 1) is above 1
    for place, epsilon in enumerate((0.5, 1.0)):
        setting = theory.Setting(eta=0.01, tau=5, **known)
        alone = theory.theorem2(setting, T=500, epsilon=epsilon).value
        both = theory.over(
            theory.theorem2, T=500, epsilon=np.array([0.5, 1.0]), eta=0.01, tau=5, **known
        )
        assert both[place] == alone
    least = theory.over(theory.iterations_to, gap=0.2, eta=0.01, tau=[1, 5, 10], **known)
    assert least[:2].tolist() == [348, 465]
    assert np.isnan(least[2])
    assert np.isnan(theory.over(theory.eta_bar, "paper", T=1000, eta=1, tau=5, **known))
