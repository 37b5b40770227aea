"""Every controller and schedule shipped, by the name used in ``[controller]``, ``[[schedule]]``."""

from fednag.controllers.buffered import Buffered
from fednag.controllers.constant import Constant, Poisson, StepsByWorker
from fednag.controllers.schedules import Cosine
from fednag.core.controller import Controller, Schedule

CONTROLLERS: dict[str, type[Controller]] = {
    "constant": Constant,
    "poisson": Poisson,
    "steps-by-worker": StepsByWorker,
    "buffered": Buffered,
}
SCHEDULES: dict[str, type[Schedule]] = {
    "cosine": Cosine,
}

__all__ = ["CONTROLLERS", "SCHEDULES", "Buffered", "Constant", "Cosine", "Poisson", "StepsByWorker"]
