"""Every controller and schedule shipped, by the name used in ``[controller]``, ``[[schedule]]``."""

from fednag.controllers.adaptive import AdaptiveTau
from fednag.controllers.buffered import Buffered, OverSelection, SemiSynchronous
from fednag.controllers.cohorts import BySize, PowerOfChoice
from fednag.controllers.constant import Constant, Poisson, StepsByWorker
from fednag.controllers.local_steps import BySpeed, Epochs
from fednag.controllers.schedules import Cosine, Inverse, Rising, Steps
from fednag.controllers.trust import Trust
from fednag.core.controller import Controller, Schedule

CONTROLLERS: dict[str, type[Controller]] = {
    "constant": Constant,
    "poisson": Poisson,
    "by-size": BySize,
    "power-of-choice": PowerOfChoice,
    "steps-by-worker": StepsByWorker,
    "epochs": Epochs,
    "by-speed": BySpeed,
    "adaptive-tau": AdaptiveTau,
    "buffered": Buffered,
    "semi-synchronous": SemiSynchronous,
    "over-selection": OverSelection,
    "trust": Trust,
}
SCHEDULES: dict[str, type[Schedule]] = {
    "cosine": Cosine,
    "steps": Steps,
    "inverse": Inverse,
    "warm-up": Rising,
}

__all__ = [
    "CONTROLLERS",
    "SCHEDULES",
    "AdaptiveTau",
    "Buffered",
    "BySize",
    "BySpeed",
    "Constant",
    "Cosine",
    "Epochs",
    "Inverse",
    "OverSelection",
    "Poisson",
    "PowerOfChoice",
    "Rising",
    "SemiSynchronous",
    "Steps",
    "StepsByWorker",
    "Trust",
]
