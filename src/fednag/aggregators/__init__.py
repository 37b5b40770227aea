"""Every aggregator shipped, by the name used in ``[aggregator]``."""

from fednag.aggregators.mean import EqualMean, Mean
from fednag.aggregators.secure import Secure
from fednag.core.aggregator import Aggregator

AGGREGATORS: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "equal": EqualMean,
    "secure": Secure,
}

__all__ = ["AGGREGATORS", "EqualMean", "Mean", "Secure"]
