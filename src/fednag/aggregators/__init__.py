"""Every aggregator shipped, by the name used in ``[aggregator]``."""

from fednag.aggregators.mean import EqualMean, Mean
from fednag.aggregators.noisy import AdaptiveNoisyMean, MeanWithNoise, NoisyMean
from fednag.aggregators.secure import Secure
from fednag.core.aggregator import Aggregator

AGGREGATORS: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "equal": EqualMean,
    "noisy-mean": NoisyMean,
    "adaptive-noisy-mean": AdaptiveNoisyMean,
    "secure": Secure,
}

__all__ = [
    "AGGREGATORS",
    "AdaptiveNoisyMean",
    "EqualMean",
    "Mean",
    "MeanWithNoise",
    "NoisyMean",
    "Secure",
]
