"""What the noise of a run promises: to whom, for whose data, and what its rounds cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, sqrt
from typing import Any, Literal

import numpy as np

from fednag.aggregators import NoisyMean
from fednag.controllers import StepsByWorker
from fednag.core.controller import Setting
from fednag.core.loop import Scheme
from fednag.errors import FednagError
from fednag.privacy.accounting import Mechanism
from fednag.transforms import Clip, Noise

Unit = Literal["worker", "sample"]

CENTRAL = "the server is trusted: it sees uploads before the noise"
LOCAL = "nobody is trusted: uploads are noised before they leave the worker"
OF_GRADIENTS = "nobody is trusted: gradients are noised where they are taken"
OF_SUM = "the server sees sums alone, and {honest} workers of each are trusted to add their noise"


@dataclass(frozen=True)
class Accountant:
    """What a run has spent after so many rounds, and may spend."""

    mechanism: Mechanism
    uses: Callable[[int], int]  # of the mechanism on one unit, at most, in so many rounds
    unit: Unit
    trust: str  # who has to be trusted, in words
    delta: float
    budget: float | None = None  # epsilon; None: it is only counted
    claimed: float | None = None  # epsilon by the paper of the method, which is no guarantee
    secret: bool = False  # nobody can draw its noise again: a round that is replayed counts twice
    replayed: int = 0  # rounds that were
    _known: dict[int, float] = field(default_factory=dict, init=False, compare=False)

    def epsilon(self, rounds: int) -> float:
        """What has been spent after so many rounds, and those that were replayed."""
        uses = self.uses(rounds + self.replayed)
        if uses not in self._known:
            self._known[uses] = self.mechanism.epsilon(uses, self.delta)
        return self._known[uses]

    def allows(self, rounds: int) -> bool:
        """Whether so many rounds stay within the budget."""
        return self.budget is None or self.epsilon(rounds) <= self.budget

    @property
    def promise(self) -> str:
        """Whose data are protected, against what change, and who has to be trusted."""
        whose = "a worker's whole data" if self.unit == "worker" else "one sample of a worker"
        return f"for {whose} ({self.mechanism.relation}); {self.trust}"

    @property
    def facts(self) -> dict[str, Any]:
        """For a run's folder: what was promised, in numbers and words."""
        names = ("unit", "delta", "budget", "claimed", "replayed")
        told = {name: getattr(self, name) for name in names}
        return {**told, "mechanism": asdict(self.mechanism), "promise": self.promise}

    def notes(self, rounds: int) -> list[str]:
        """What a user should know before a run of so many rounds."""
        end = self.epsilon(rounds)
        cost = f"{rounds} rounds cost epsilon {end:.3g}" if isfinite(end) else "there is no noise"
        found = [
            f"privacy: {cost} at delta {self.delta:g}, {self.promise}",
            "privacy: promised are the models of all rounds; losses, accuracies and the choice of "
            "the best model are measured without noise",
        ]
        if not self.allows(1):
            raise FednagError(
                "privacy.epsilon",
                f"one round costs {self.epsilon(1):.3g}, more than the {self.budget:g} there is",
                "add noise (`fednag privacy plan` says how much)",
            )
        if not self.allows(rounds):
            low, high = 1, rounds
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.allows(middle) else (low, middle)
            found.append(f"privacy: the budget of {self.budget:g} ends the run after round {low}")
        if self.claimed is not None:
            found.append(
                f"privacy: the paper of the method claims epsilon {self.claimed:g}, which is no "
                "guarantee: it takes trained weights for a mean over samples"
            )
        return found


def accountant_of(
    scheme: Scheme,
    setting: Setting,
    *,
    delta: float,
    budget: float | None = None,
    remembers: bool = False,
    buffers: bool = False,
) -> Accountant:
    """The accountant of noised uploads; raises FednagError for what would break its promise.

    ``remembers``: workers keep something between rounds; ``buffers``: running statistics travel.
    """
    check(scheme, buffers)
    noisy = scheme.aggregator if isinstance(scheme.aggregator, NoisyMean) else None
    noise = _noise(scheme)
    if noisy is None and noise is None:
        raise FednagError(
            "privacy.delta",
            "nothing is noised here",
            "set aggregator.kind = 'noisy-mean', or put clip and noise into [[uplink]]",
        )
    if noisy is not None and noise is not None:
        raise FednagError(
            "privacy",
            "there is noise in [[uplink]] and in [aggregator], which are different promises",
            "leave one of them out",
        )
    # The stages of a round have one cohort: their noises are one with a smaller multiplier.
    stages = sqrt(len(scheme.stages))
    given: dict[str, Any] = {"unit": "worker", "delta": delta, "budget": budget}
    taking_part = TakingPart(scheme, setting)
    if noisy is not None:
        given |= {"trust": CENTRAL, "secret": noisy.secret}
        multiplier = noisy.noise_multiplier / stages
        # Hidden memories tie a worker's rounds together. Drawn without replacement, workers are
        # tied to each other as well, and that sampling helps is not proved then.
        remembers = remembers or scheme.uplink.remembers
        if remembers and scheme.controller.sampling != "poisson":
            return Accountant(Mechanism(multiplier), taking_part.most, **given)
        sampling: Any = scheme.controller.sampling
        mechanism = Mechanism(multiplier, sampling, setting.cohort, len(setting.sizes))
        return Accountant(mechanism, int, **given)
    assert noise is not None
    part, bound = noise
    given |= {"trust": LOCAL, "secret": part.secret, "claimed": scheme.algorithm.claimed}
    sigma, aggregator = part.sigma / sqrt(part.honest), scheme.aggregator
    if part.honest > 1 and aggregator.hides and aggregator.weight(1, 0) == aggregator.weight(2, 0):
        if part.honest > setting.cohort or scheme.controller.sampling == "poisson":
            raise FednagError(
                "uplink",
                f"noise counts on {part.honest} honest workers in every round, and there may be "
                "fewer",
                "lower honest, raise training.participants, or leave out poisson",
            )
        sigma, given["trust"] = part.sigma, OF_SUM.format(honest=part.honest)
    return Accountant(Mechanism(sigma / bound / stages), taking_part.most, **given)


def sample_accountant(
    scheme: Scheme, setting: Setting, batch: int, *, delta: float, budget: float | None = None
) -> Accountant:
    """The accountant of noised gradients: each local iteration takes a batch of each worker."""
    assert scheme.gradient is not None
    if _noise(scheme) is not None or isinstance(scheme.aggregator, NoisyMean):
        raise FednagError(
            "privacy.unit",
            "gradients are noised already, which protects samples",
            "leave the noise out of [[uplink]] and [aggregator], or promise it to a worker",
        )
    check(scheme, buffers=False, pooled=True)
    controller = scheme.controller
    tau = max(controller.steps) if isinstance(controller, StepsByWorker) else setting.tau
    taking_part, least = TakingPart(scheme, setting), int(setting.sizes.min())

    def steps(rounds: int) -> int:
        return taking_part.most(rounds) * tau

    # The smallest worker draws each of its samples most often: all are counted as it is.
    noise = scheme.gradient
    mechanism = Mechanism(noise.noise_multiplier, "poisson", min(batch or least, least), least)
    return Accountant(mechanism, steps, "sample", OF_GRADIENTS, delta, budget, secret=noise.secret)


class TakingPart:
    """How often the workers of a scheme take part, by the draws of its seed."""

    def __init__(self, scheme: Scheme, setting: Setting) -> None:
        self.controller, self.setting = scheme.controller, setting
        self.everyone = np.arange(len(setting.sizes))
        self._times = np.zeros(len(self.everyone), dtype=np.int64)
        self._most = [0]

    def most(self, rounds: int) -> int:
        """The rounds of the worker who has taken part most often."""
        while len(self._most) <= rounds:
            drawn = self.controller.cohort(len(self._most), self.everyone, self.setting)
            self._times[drawn] += 1
            self._most.append(int(self._times.max()))
        return self._most[rounds]


def check(scheme: Scheme, buffers: bool, pooled: bool = False) -> None:
    """Raise FednagError for what tells of the data beside the noise."""
    controller = type(scheme.controller).__name__
    if scheme.algorithm.pooled and not pooled:
        name = type(scheme.algorithm).__name__
        raise FednagError(
            "privacy",
            f"{name} is centralised and sends nothing",
            "use another method, or leave out [privacy]",
        )
    if scheme.controller.sampling is None and not scheme.algorithm.pooled:
        raise FednagError(
            "controller.kind",
            f"who takes part in a round of {controller} is not known to be drawn without a look at "
            "the data",
            "use constant, steps-by-worker or poisson with [privacy]",
        )
    if scheme.controller.observes:
        raise FednagError(
            "controller.kind",
            f"{controller} has workers report numbers, which are not noised",
            "use another with [privacy]",
        )
    if buffers:
        raise FednagError(
            "model.batch_norm",
            "running statistics travel without noise",
            "use 'local' or 'frozen' with [privacy]",
        )


def _noise(scheme: Scheme) -> tuple[Noise, float] | None:
    """The noise of uploads, and what they are no longer than; None without any."""
    parts = scheme.uplink.parts
    places = [place for place, part in enumerate(parts) if isinstance(part, Noise)]
    if not places:
        return None
    place = places[0]
    noise, before = parts[place], parts[place - 1] if place else None
    assert isinstance(noise, Noise)
    if isinstance(before, Clip):
        return noise, before.norm
    if place == 0 and scheme.algorithm.bound is not None:
        return noise, scheme.algorithm.bound
    raise FednagError(
        f"uplink.{place}",
        "noise protects what has a bound",
        "put clip right before it",
    )


def secret_noise(scheme: Scheme, accountant: Accountant | None) -> tuple[Scheme, Accountant | None]:
    """Both with noise that nobody can draw again, for real machines."""
    return secretly(scheme), accountant and replace(accountant, secret=True)


def secretly(scheme: Scheme) -> Scheme:
    """The scheme with noise that nobody can draw again, for real machines."""
    up, down = (
        replace(link, parts=tuple(map(secret, link.parts)))
        for link in (scheme.uplink, scheme.downlink)
    )
    gradient = scheme.gradient and secret(scheme.gradient)
    return replace(
        scheme, uplink=up, downlink=down, aggregator=secret(scheme.aggregator), gradient=gradient
    )


def draws_again(scheme: Scheme, remote: bool) -> bool:
    """Whether its noise is what it was when it is played again; on real machines it is secret."""
    parts: list[Any] = [*scheme.uplink.parts, *scheme.downlink.parts]
    parts += [scheme.aggregator, scheme.gradient]
    return not any(remote or part.secret for part in parts if hasattr(part, "secret"))


def secret(part: Any) -> Any:
    """The same for a part; what draws no noise stays as it is."""
    return replace(part, secret=True) if hasattr(part, "secret") else part
