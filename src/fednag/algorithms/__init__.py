"""Every method shipped, by the name used in experiment files and on the command line."""

from fednag.algorithms.compressed import ACGD, ADIANA, DIANA, EF21, MARINA
from fednag.algorithms.fedadam import FedAdam
from fednag.algorithms.fedavg import CSGD, FedAvg, FedPAQ, FedProx
from fednag.algorithms.mime import Mime, MimeLite
from fednag.algorithms.nag import CNAG, FedNAG, FedNAGLocal, FedNAGRebuilt
from fednag.algorithms.scaffold import Scaffold
from fednag.algorithms.server_momentum import FedAvgM, FedMom, SlowMo
from fednag.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fednag": FedNAG,
    "fedavg": FedAvg,
    "fedmom": FedMom,
    "slowmo": SlowMo,
    "mimelite": MimeLite,
    "mime": Mime,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fednag-local": FedNAGLocal,
    "fednag-rebuilt": FedNAGRebuilt,
    "fedpaq": FedPAQ,
    "diana": DIANA,
    "ef21": EF21,
    "marina": MARINA,
    "acgd": ACGD,
    "adiana": ADIANA,
    "csgd": CSGD,
    "cnag": CNAG,
}

__all__ = [
    "ACGD",
    "ADIANA",
    "ALGORITHMS",
    "CNAG",
    "CSGD",
    "DIANA",
    "EF21",
    "MARINA",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMom",
    "FedNAG",
    "FedNAGLocal",
    "FedNAGRebuilt",
    "FedPAQ",
    "FedProx",
    "Mime",
    "MimeLite",
    "Scaffold",
    "SlowMo",
]
