"""Every transform shipped, by the name used in ``[[uplink]]`` and ``[[downlink]]``."""

from fednag.core.transform import Transform
from fednag.transforms.clip import Clip
from fednag.transforms.entropy import Entropy
from fednag.transforms.every import Every
from fednag.transforms.feedback import ErrorFeedback
from fednag.transforms.float16 import BFloat16, Float16
from fednag.transforms.lowrank import LowRank
from fednag.transforms.noise import Noise
from fednag.transforms.quantise import Quantise, Sign
from fednag.transforms.rotated import Drive, Eden
from fednag.transforms.sparse import RandK, TopK

TRANSFORMS: dict[str, type[Transform]] = {
    "clip": Clip,
    "noise": Noise,
    "float16": Float16,
    "bfloat16": BFloat16,
    "quantise": Quantise,
    "sign": Sign,
    "topk": TopK,
    "randk": RandK,
    "drive": Drive,
    "eden": Eden,
    "lowrank": LowRank,
    "error-feedback": ErrorFeedback,
    "every": Every,
    "entropy": Entropy,
}

__all__ = [
    "TRANSFORMS",
    "BFloat16",
    "Clip",
    "Drive",
    "Eden",
    "Entropy",
    "ErrorFeedback",
    "Every",
    "Float16",
    "LowRank",
    "Noise",
    "Quantise",
    "RandK",
    "Sign",
    "TopK",
]
