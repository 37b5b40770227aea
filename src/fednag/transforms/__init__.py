"""Every transform shipped, by the name used in ``[[uplink]]`` and ``[[downlink]]``."""

from fednag.core.transform import Transform
from fednag.transforms.clip import Clip
from fednag.transforms.float16 import Float16

TRANSFORMS: dict[str, type[Transform]] = {
    "clip": Clip,
    "float16": Float16,
}

__all__ = ["TRANSFORMS", "Clip", "Float16"]
