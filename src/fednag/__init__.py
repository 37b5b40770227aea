"""Momentum-based federated learning: FedNAG beside its rivals, on one contract.

>>> import fednag
>>> result = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
>>> sorted(result.records)
['fedavg', 'fednag']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednag.aggregators import AGGREGATORS
    from fednag.algorithms import (
        ACGD,
        ADIANA,
        ALGORITHMS,
        CNAG,
        CSGD,
        DIANA,
        DOMO,
        EF21,
        GHBM,
        MARINA,
        MFL,
        STEM,
        DiLoCo,
        FedACG,
        FedAdagrad,
        FedAdam,
        FedADC,
        FedAvg,
        FedAvgM,
        FedCM,
        FedDyn,
        FedExP,
        FedGLOMO,
        FedHBM,
        FedLion,
        FedMom,
        FedNAG,
        FedNAGLocal,
        FedNAGRebuilt,
        FedNova,
        FedPAQ,
        FedProx,
        FedYogi,
        HierMo,
        LocalGHBM,
        Mime,
        MimeLite,
        Scaffold,
        ScaffoldM,
        SlowMo,
    )
    from fednag.api import compare, dataset, run, sweep
    from fednag.attacks import ATTACKS
    from fednag.controllers import CONTROLLERS, SCHEDULES
    from fednag.core.aggregator import Aggregator
    from fednag.core.algorithm import Algorithm, Grad, News
    from fednag.core.attack import Attack
    from fednag.core.controller import Controller, Order, Schedule
    from fednag.core.transform import Transform
    from fednag.core.vectors import Vector, Vectors
    from fednag.errors import FednagError
    from fednag.problems.metrics import Metric
    from fednag.results import Comparison, Run
    from fednag.transforms import TRANSFORMS
    from fednag.tuning import tune

# Loaded on first use: torch takes seconds to import, and `fednag --help` does not need it.
_HOMES = {
    "fednag.core.algorithm": ("Algorithm", "Grad", "News"),
    "fednag.core.aggregator": ("Aggregator",),
    "fednag.core.attack": ("Attack",),
    "fednag.core.controller": ("Controller", "Order", "Schedule"),
    "fednag.core.transform": ("Transform",),
    "fednag.aggregators": ("AGGREGATORS",),
    "fednag.attacks": ("ATTACKS",),
    "fednag.controllers": ("CONTROLLERS", "SCHEDULES"),
    "fednag.transforms": ("TRANSFORMS",),
    "fednag.tuning": ("tune",),
    "fednag.algorithms": (
        "ACGD",
        "ADIANA",
        "ALGORITHMS",
        "CNAG",
        "CSGD",
        "DIANA",
        "DOMO",
        "EF21",
        "GHBM",
        "MFL",
        "STEM",
        "DiLoCo",
        "FedACG",
        "FedADC",
        "FedAdagrad",
        "MARINA",
        "FedAdam",
        "FedAvg",
        "FedAvgM",
        "FedCM",
        "FedDyn",
        "FedExP",
        "FedGLOMO",
        "FedHBM",
        "FedLion",
        "FedMom",
        "FedNAG",
        "FedNAGLocal",
        "FedNAGRebuilt",
        "FedNova",
        "FedPAQ",
        "FedProx",
        "FedYogi",
        "HierMo",
        "LocalGHBM",
        "Mime",
        "MimeLite",
        "Scaffold",
        "ScaffoldM",
        "SlowMo",
    ),
    "fednag.api": ("compare", "dataset", "run", "sweep"),
    "fednag.errors": ("FednagError",),
    "fednag.problems.metrics": ("Metric",),
    "fednag.results": ("Comparison", "Run"),
    "fednag.core.vectors": ("Vector", "Vectors"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ACGD",
    "ADIANA",
    "AGGREGATORS",
    "ALGORITHMS",
    "ATTACKS",
    "CNAG",
    "CONTROLLERS",
    "CSGD",
    "DIANA",
    "DOMO",
    "EF21",
    "GHBM",
    "MARINA",
    "MFL",
    "SCHEDULES",
    "STEM",
    "TRANSFORMS",
    "Aggregator",
    "Algorithm",
    "Attack",
    "Comparison",
    "Controller",
    "DiLoCo",
    "FedACG",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGLOMO",
    "FedHBM",
    "FedLion",
    "FedMom",
    "FedNAG",
    "FedNAGLocal",
    "FedNAGRebuilt",
    "FedNova",
    "FedPAQ",
    "FedProx",
    "FedYogi",
    "FednagError",
    "Grad",
    "HierMo",
    "LocalGHBM",
    "Metric",
    "Mime",
    "MimeLite",
    "News",
    "Order",
    "Run",
    "Scaffold",
    "ScaffoldM",
    "Schedule",
    "SlowMo",
    "Transform",
    "Vector",
    "Vectors",
    "compare",
    "dataset",
    "run",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'fednag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
