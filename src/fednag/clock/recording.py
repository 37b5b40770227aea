"""A machine's samples put into a fleet's folder, beside those of other machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fednag.config import read
from fednag.devices.files import FORMAT, describe, read_fleet, write_fleet
from fednag.devices.samples import AGGREGATOR, Sample, gather
from fednag.devices.transfers import Peer
from fednag.errors import FednagError


def link_samples(peer: Peer, device: str, size: int, count: int) -> list[Sample]:
    """Transfers both ways of one and two models' size: what FedAvg and FedNAG send."""
    for way in (peer.up, peer.down):
        way(size)  # the first one opens the window
    found = []
    for _ in range(count):
        for bytes_ in (size, 2 * size):
            found.append(Sample(device, "up", bytes_, peer.up(bytes_)))
            found.append(Sample(device, "down", bytes_, peer.down(bytes_)))
    return found


def check_name(folder: Path, device: str) -> None:
    """Raise a sentence, before anything is measured, if the device cannot be added there."""
    where = {"up": {"mbit": 1.0}, "down": {"mbit": 1.0}}
    describe({"name": "new", "device": [{"name": device, "gflops": 1.0, **where}]}, "--device")
    if (folder / "fleet.toml").exists():
        found = read_fleet(folder)
        if device in [known.name for known in found.devices]:
            raise FednagError(
                f"{folder}: device {device} is there already; choose another --device or --out"
            )


def add_device(
    folder: Path, device: str, reference: dict[str, Any], samples: Sequence[Sample], where: str
) -> Path:
    """The fleet in ``folder`` with one more device; a new one if there is none."""
    path = folder / "fleet.toml"
    table = {"name": device, "about": f"measured, transfers {where}", "reference": reference}
    if not path.exists():
        raw: dict[str, Any] = {
            "format": FORMAT,
            "name": _name(folder),
            "about": "measured with `fednag time record`",
            "synthetic": False,
            "sampling": "bootstrap",
            "device": [table],
        }
        return write_fleet(folder, raw, gather(samples))
    found, raw = read_fleet(folder), read(path)
    raw["device"] = [*raw["device"], table]
    kept = found.samples.all()
    # The aggregator is one: the first machine's samples of it stay.
    sampled = any(sample.who == AGGREGATOR for sample in kept) or found.aggregator.seconds
    added = [s for s in samples if not (sampled and s.who == AGGREGATOR)]
    return write_fleet(folder, raw, gather([*kept, *added]))


def _name(folder: Path) -> str:
    name = folder.resolve().name
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return safe[:100] if safe[:1].isalnum() else "measured"
