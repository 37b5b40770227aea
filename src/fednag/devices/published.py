"""Traces of real devices that others have published: where they are, and under which licence.

None is shipped. A user fetches a trace from its authors' address and under their terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fednag.config.messages import cut, nearest
from fednag.data.download import File, Source, data_folder, get
from fednag.errors import FednagError

_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Published:
    """A published trace; without a ``source`` there is no address that stays."""

    name: str
    kind: str  # of `fednag time convert`
    about: str
    licence: str
    page: str
    source: Source | None = None

    def missing(self, folder: Path | None = None) -> list[Path]:
        """Its files that are not here."""
        return [path for path in self.files(folder) if not path.is_file()]

    def files(self, folder: Path | None = None) -> list[Path]:
        """Where its files are, or will be."""
        if self.source is None:
            return []
        home = (folder or data_folder()) / self.source.folder
        return [home / file.name for file in self.source.files]


def _source(name: str, repository: str, at: str, folder: str, files: tuple[str, ...]) -> Source:
    return Source(
        name=name,
        folder=f"traces/{name}",
        files=tuple(map(File, files)),
        addresses=(f"{_RAW}/{repository}/{at}/{folder}",),
        command="time get",
    )


_ALL = (
    Published(
        "fedscale",
        "fedscale",
        "speed and bandwidth of 500,000 phones, and when 107,749 of them can be reached",
        "Apache-2.0",
        "https://github.com/SymbioticLab/FedScale",
        _source(
            "fedscale",
            "SymbioticLab/FedScale",
            "84cc2aba8aa6c57c63ed394acba62c8f2574cf07",
            "benchmark/dataset/data/device_info",
            ("client_device_capacity", "client_behave_trace"),
        ),
    ),
    Published(
        "flash",
        "flash",
        "when phones charge, are locked and are on Wi-Fi: a sample of FLASH's 136,000",
        "not stated: ask its authors before you pass it on",
        "https://github.com/PKU-Chengxu/FLASH",
        _source("flash", "PKU-Chengxu/FLASH", "master", "data", ("state_traces.json",)),
    ),
    Published(
        "raca-5g",
        "raca",
        "rates of a phone on 5G in Ireland, second by second, still and in a car",
        "not stated: ask its authors before you pass it on",
        "https://github.com/uccmisl/5Gdataset",
        _source(
            "raca-5g",
            "uccmisl/5Gdataset",
            "3175653a6fc09611b7dba15e0e128183e6af7c6c",
            ".",
            ("5G-production-dataset.zip",),
        ),
    ),
    Published(
        "raca-4g",
        "raca",
        "rates of a phone on 4G in Ireland, second by second, on foot, by car, bus and train",
        "see its page",
        "https://www.ucc.ie/en/misl/research/datasets/ivid_4g_lte_dataset/",
    ),
    Published(
        "mobile-bandwidth",
        "mobile-bandwidth",
        "50,000 bandwidth tests of phones in China on 4G, 5G, Wi-Fi 4, 5 and 6",
        "Apache-2.0",
        "https://mobilebandwidth.github.io",
        _source(
            "mobile-bandwidth",
            "mobilebandwidth/mobilebandwidth.github.io",
            "3eb9151a0cfd04c9a980b133142ec7f2ca1121e0",
            "data",
            ("4G.csv", "5G.csv", "wifi4.csv", "wifi5.csv", "wifi6.csv"),
        ),
    ),
    Published(
        "mobile-bandwidth-evolution",
        "mobile-bandwidth",
        "5,000 more tests of 2023, as spreadsheets: save each as CSV",
        "Apache-2.0",
        "https://github.com/MobileBandwidthEvolution/MobileBandwidthEvolution.github.io",
    ),
)
PUBLISHED = MappingProxyType({found.name: found for found in _ALL})


def get_trace(
    name: str, folder: Path | None = None, progress: bool = True, source: Source | None = None
) -> Path:
    """Download a published trace; gives its folder. ``source`` stands in for its addresses."""
    if name not in PUBLISHED:
        raise FednagError(
            "",
            f"no such trace{nearest(name, PUBLISHED)}",
            f"there are {', '.join(PUBLISHED)}",
            source=cut(name),
        )
    found = PUBLISHED[name]
    source = source or found.source
    if source is None:
        then = f"then run `fednag time convert {found.kind} FILES`"
        raise FednagError(
            "",
            "has no address that stays",
            f"fetch it by hand from {found.page}, {then}",
            source=name,
        )
    return get(name, folder, progress, source)
