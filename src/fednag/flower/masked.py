"""A silo's steps of a secure sum: what it keeps from one message to the next, and whom it trusts.

The silo's operator decides by its ``node_config``: ``only-sums`` refuses runs in which the server
would see its updates; with ``known-keys``, silos know each other by the keys they sign with, in
which the server has no part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from fednag.aggregators import Secure
from fednag.core.aggregator import Aggregator
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError
from fednag.flower.protocol import Refusal, arrays, one_line, pack
from fednag.flower.settings import Deployment
from fednag.flower.silo_data import number_of
from fednag.secure.keys import Known
from fednag.secure.masks import Integers, integers
from fednag.secure.member import Member
from fednag.secure.terms import KEYS as PLAIN
from fednag.secure.terms import SIGNATURE, Terms

PREFIX = "secure."
STATE = "secure"  # the entry in a silo's state
# Vectors of messages, beside those of the method.
SILOS, CONTENT = "secure.silos", "secure.content"
KEYS, SEED, SHARES, MASKED = "secure.keys", "secure.seed", "secure.shares", "secure.masked"
SURVIVORS, VANISHED = "secure.survivors", "secure.vanished"
KEY_SIZES = (PLAIN, PLAIN + SIGNATURE)


def context_of(about: Mapping[str, Any]) -> bytes:
    """What keys of one sum are bound to: the run, the round, the stage and the attempt."""
    names = ("token", "round", "stage", "attempt")
    return "\0".join(str(about.get(name)) for name in names).encode()


def alike(record: Mapping[str, Array], *numbers: object) -> bytes:
    """A digest of what all silos of a sum are sent: vectors, and numbers."""
    found = hashlib.sha256(repr(numbers).encode())
    for name in sorted(record):
        content = hashlib.sha256(record[name].data).digest()
        found.update(f"{name} {record[name].dtype} ".encode() + content)
    return found.digest()


def check_policy(aggregator: Aggregator, node_config: Mapping[str, Any]) -> None:
    """Raise Refusal if the silo's operator wants sums only, and the run has others."""
    wants = node_config.get("only-sums") or "known-keys" in node_config
    if wants and not isinstance(aggregator, Secure):
        raise Refusal(
            "its operator lets the server see sums alone (only-sums, known-keys); set "
            "aggregator.kind='secure'"
        )


@contextmanager
def seat(
    deployment: Deployment, context: Context, about: Mapping[str, Any], begins: bool = False
) -> Iterator[Member]:
    """The silo's side of the sum that a message is about; saved whatever comes of it."""
    aggregator = deployment.secure
    if aggregator is None:
        raise Refusal("the run's aggregator is not secure")
    terms = Terms(context_of(about), aggregator.needed(deployment.cohort), aggregator.bits)
    if begins:
        member = Member(terms, number_of(context.node_config, deployment.silos))
    else:
        held = context.state.config_records.get(STATE)
        if held is None or held["context"] != terms.context:
            raise Refusal("it has no keys of this sum: it was restarted, or did not begin it")
        member = Member.restored(held)
    try:
        yield member
    finally:
        context.state[STATE] = ConfigRecord(member.saved())


def known_to(node_config: Mapping[str, Any], silos: int) -> Known | None:
    """The keys by which this silo knows the others: ``silo-0.pub`` and so on, in a folder."""
    if "known-keys" not in node_config:
        return None
    folder, found = Path(str(node_config["known-keys"])), {}
    for number in range(silos):
        path = folder / f"silo-{number}.pub"
        if not path.exists():
            continue
        try:
            content = bytes.fromhex(path.read_text(encoding="ascii"))
            found[number] = Ed25519PublicKey.from_public_bytes(content)
        except (OSError, ValueError) as error:
            raise FednagError(
                path,
                f"is no public key ({error})",
                "`fednag ledger key` makes one beside the private one",
            ) from error
    return found


def fixed_point(aggregator: Secure, up: Vectors, samples: int, everyone: object) -> Integers:
    """An update (a row of each vector) as the whole numbers that are added up."""
    weight = aggregator.weight(samples, 0)
    if not isinstance(everyone, float) or not weight <= everyone < float("inf"):
        raise Refusal(
            f"all silos together are said to weigh {everyone}, and this one weighs {weight}"
        )
    share = torch.tensor([aggregator.share(weight, everyone)], dtype=torch.float64)
    sums = aggregator.lift(up, share).sums
    flat: Integers = (
        torch.cat([sums[name] for name in sorted(sums)]).numpy().astype(integers(aggregator.bits))
    )
    return flat


def blob(content: bytes) -> Vector:
    """Bytes as a vector that can be sent."""
    if not content:
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def numbered(silos: Iterable[int]) -> Array:
    return pack({"silos": torch.tensor(list(silos), dtype=torch.int64)})["silos"]


def labelled(contents: Mapping[int, bytes]) -> ArrayRecord:
    """A content for each of some silos, all of the same length."""
    return ArrayRecord(
        {SILOS: numbered(contents), **pack({CONTENT: blob(b"".join(contents.values()))})}
    )


def bytes_of(reply: Message, sizes: Mapping[str, Sequence[int]]) -> list[bytes]:
    """The contents of exactly these names, whose lengths must be among those given, if any are."""
    record = arrays(reply)
    if set(record) != set(sizes):
        raise Refusal(f"it holds {one_line(sorted(record), 60)}, not {', '.join(sizes)}")
    for name, allowed in sizes.items():
        if allowed and len(record[name].data) not in allowed:
            raise Refusal(f"{name} has {len(record[name].data)} bytes")
    return [record[name].data for name in sizes]


def silos_of(array: Array, most: int) -> list[int]:
    """The numbers of silos in a message."""
    data = array.data
    found = list(memoryview(data).cast("q")) if len(data) % 8 == 0 else [-1]
    if not all(0 <= number < most for number in found):
        raise Refusal(f"it names silos that are not 0 to {most - 1}")
    return found


def by_silo(record: Mapping[str, Array], most: int) -> dict[int, bytes]:
    """The content of each silo again."""
    if not {SILOS, CONTENT} <= set(record):
        raise Refusal("it hands on nothing of the other silos")
    numbers, content = silos_of(record[SILOS], most), record[CONTENT].data
    if not numbers or len(set(numbers)) < len(numbers) or len(content) % len(numbers):
        raise Refusal("it does not hand on a content of each of the other silos")
    size = len(content) // len(numbers)
    return {n: content[i * size : (i + 1) * size] for i, n in enumerate(numbers)}
