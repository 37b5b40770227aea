"""Every transform shipped, by the name used in ``[[uplink]]`` and ``[[downlink]]``."""

from fednag.core.transform import Transform
from fednag.transforms.clip import Clip
from fednag.transforms.feedback import ErrorFeedback
from fednag.transforms.float16 import BFloat16, Float16
from fednag.transforms.quantise import Quantise, Sign
from fednag.transforms.sparse import RandK, TopK

TRANSFORMS: dict[str, type[Transform]] = {
    "clip": Clip,
    "float16": Float16,
    "bfloat16": BFloat16,
    "quantise": Quantise,
    "sign": Sign,
    "topk": TopK,
    "randk": RandK,
    "error-feedback": ErrorFeedback,
}

__all__ = [
    "TRANSFORMS",
    "BFloat16",
    "Clip",
    "ErrorFeedback",
    "Float16",
    "Quantise",
    "RandK",
    "Sign",
    "TopK",
]
