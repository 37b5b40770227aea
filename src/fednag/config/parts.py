"""The parts of a round that an experiment file names."""

from __future__ import annotations

from fednag.config import Experiment, build_algorithm
from fednag.core.algorithm import Algorithm
from fednag.core.loop import Scheme


def scheme_of(experiment: Experiment, algorithm: Algorithm | None = None) -> Scheme:
    """What the rounds of an experiment are made of; ``algorithm`` may come from Python."""
    return Scheme(algorithm or build_algorithm(experiment.algorithm))
