"""Every method shipped, by the name used in experiment files and on the command line."""

from fednag.algorithms.adaptive_workers import DiLoCo, FedLion
from fednag.algorithms.client_momentum import DOMO, FedADC, FedCM
from fednag.algorithms.compressed import ACGD, ADIANA, DIANA, EF21, MARINA
from fednag.algorithms.fedadam import FedAdagrad, FedAdam, FedYogi
from fednag.algorithms.fedavg import CSGD, FedAvg, FedPAQ, FedProx
from fednag.algorithms.feddyn import FedDyn
from fednag.algorithms.ghbm import GHBM, FedHBM, LocalGHBM
from fednag.algorithms.mime import Mime, MimeLite
from fednag.algorithms.nag import CNAG, MFL, FedNAG, FedNAGLocal, FedNAGRebuilt, HierMo
from fednag.algorithms.nbafl import NbAFL
from fednag.algorithms.scaffold import Scaffold, ScaffoldM
from fednag.algorithms.server_momentum import FedACG, FedAvgM, FedMom, SlowMo
from fednag.algorithms.server_steps import FedExP, FedNova
from fednag.algorithms.storm import STEM, FedGLOMO
from fednag.core.algorithm import Algorithm

# Its order decides how a method looks in charts: a new one goes to the end.
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
    "mfl": MFL,
    "fedcm": FedCM,
    "fedadc": FedADC,
    "domo": DOMO,
    "ghbm": GHBM,
    "local-ghbm": LocalGHBM,
    "fedhbm": FedHBM,
    "scaffold-m": ScaffoldM,
    "fedacg": FedACG,
    "stem": STEM,
    "fedglomo": FedGLOMO,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "diloco": DiLoCo,
    "fedlion": FedLion,
    "fednova": FedNova,
    "fedexp": FedExP,
    "feddyn": FedDyn,
    "fednag-local": FedNAGLocal,
    "fednag-rebuilt": FedNAGRebuilt,
    "fedpaq": FedPAQ,
    "diana": DIANA,
    "ef21": EF21,
    "marina": MARINA,
    "acgd": ACGD,
    "adiana": ADIANA,
    "nbafl": NbAFL,
    "csgd": CSGD,
    "cnag": CNAG,
    "hiermo": HierMo,
}

__all__ = [
    "ACGD",
    "ADIANA",
    "ALGORITHMS",
    "CNAG",
    "CSGD",
    "DIANA",
    "DOMO",
    "EF21",
    "GHBM",
    "MARINA",
    "MFL",
    "STEM",
    "DiLoCo",
    "FedACG",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGLOMO",
    "FedHBM",
    "FedLion",
    "FedMom",
    "FedNAG",
    "FedNAGLocal",
    "FedNAGRebuilt",
    "FedNova",
    "FedPAQ",
    "FedProx",
    "FedYogi",
    "HierMo",
    "LocalGHBM",
    "Mime",
    "MimeLite",
    "NbAFL",
    "Scaffold",
    "ScaffoldM",
    "SlowMo",
]
