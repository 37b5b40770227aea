"""Every controller and schedule shipped, by the name used in ``[controller]``, ``[[schedule]]``."""

from fednag.controllers.buffered import Buffered, OverSelection, SemiSynchronous
from fednag.controllers.constant import Constant, Poisson, StepsByWorker
from fednag.controllers.schedules import Cosine, Inverse, Rising, Steps
from fednag.controllers.trust import Trust
from fednag.core.controller import Controller, Schedule

CONTROLLERS: dict[str, type[Controller]] = {
    "constant": Constant,
    "poisson": Poisson,
    "steps-by-worker": StepsByWorker,
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
    "Buffered",
    "Constant",
    "Cosine",
    "Inverse",
    "OverSelection",
    "Poisson",
    "Rising",
    "SemiSynchronous",
    "Steps",
    "StepsByWorker",
    "Trust",
]
