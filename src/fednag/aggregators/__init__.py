"""Every aggregator shipped, by the name used in ``[aggregator]``."""

from fednag.aggregators.mean import EqualMean, Mean
from fednag.aggregators.noisy import NoisyMean
from fednag.core.aggregator import Aggregator

AGGREGATORS: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "equal": EqualMean,
    "noisy-mean": NoisyMean,
}

__all__ = ["AGGREGATORS", "EqualMean", "Mean", "NoisyMean"]
