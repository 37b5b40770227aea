"""Every aggregator shipped, by the name used in ``[aggregator]``."""

from fednag.aggregators.clipping import CentredClipping
from fednag.aggregators.krum import Krum, MultiKrum
from fednag.aggregators.mean import EqualMean, Mean
from fednag.aggregators.noisy import AdaptiveNoisyMean, MeanWithNoise, NoisyMean
from fednag.aggregators.norm_bound import NormBound
from fednag.aggregators.ranked import Median, TrimmedMean
from fednag.aggregators.secure import Secure
from fednag.aggregators.staleness import Staleness
from fednag.core.aggregator import Aggregator

AGGREGATORS: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "equal": EqualMean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "norm-bound": NormBound,
    "centred-clipping": CentredClipping,
    "noisy-mean": NoisyMean,
    "adaptive-noisy-mean": AdaptiveNoisyMean,
    "secure": Secure,
    "staleness": Staleness,
}

__all__ = [
    "AGGREGATORS",
    "AdaptiveNoisyMean",
    "CentredClipping",
    "EqualMean",
    "Krum",
    "Mean",
    "MeanWithNoise",
    "Median",
    "MultiKrum",
    "NoisyMean",
    "NormBound",
    "Secure",
    "Staleness",
    "TrimmedMean",
]
