"""Every attack shipped, by the name used in ``[[attack]]``."""

from fednag.attacks.colluding import Alie
from fednag.attacks.forged import Constant, FreeRider, Noise, Scale, SignFlip
from fednag.attacks.labels import LabelFlip
from fednag.core.attack import Attack

ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scale": Scale,
    "noise": Noise,
    "constant": Constant,
    "free-rider": FreeRider,
    "alie": Alie,
    "label-flip": LabelFlip,
}

__all__ = [
    "ATTACKS",
    "Alie",
    "Constant",
    "FreeRider",
    "LabelFlip",
    "Noise",
    "Scale",
    "SignFlip",
]
