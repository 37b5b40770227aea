"""What travels between server and silos, and how it is read: nothing is taken on trust.

A message carries one ``ArrayRecord`` (vectors as raw little-endian numbers: as many bytes as the
algorithm declares, and nothing to parse), one ``ConfigRecord`` that says what it is about, and in
answers one ``MetricRecord``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from math import isfinite
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fednag.core.algorithm import Algorithm
from fednag.core.keys import generator
from fednag.core.transform import Chain
from fednag.core.vectors import Vector, Vectors, digest_of_bytes
from fednag.errors import FednagError

PROTOCOL = 3
RAW = "fednag.raw"
ARRAYS, CONFIG, METRICS = "vectors", "about", "metrics"
MEASURES = "measures"  # of the model that came, in answers to a request to train it
TOLD = "told."  # before the name of a number a controller asked for
METRIC = "metric."  # before a metric's name, among the losses and counts
HELLO, TRAIN, EVALUATE = "query.hello", "train", "evaluate"
VERSIONED = ("fednag", "torch", "flwr")
DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.uint8: "uint8",
    torch.int64: "int64",
}
# Flower's words for: nobody answered. The message was too old, or the node has gone.
ABSENT = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
SLACK = 64  # bytes by which a message of variable length may be longer than before it was coded
LONGEST = 500  # characters of a reason a silo gives
REMEDIES = {
    "digest": "; server and silo read different configurations, or have another fednag",
    "fednag": "; install the same",
    "torch": "; install the same, or set flower.other-versions",
    "flwr": "; install the same, or set flower.other-versions",
}


class Refusal(Exception):  # noqa: N818 (it is the silo's fault, not ours)
    """Why an answer is not used; ``not_finite``: it has NaN or infinite numbers."""

    def __init__(self, why: str, not_finite: bool = False) -> None:
        super().__init__(why)
        self.not_finite = not_finite


@cache
def versions() -> Mapping[str, str]:
    """What both sides must have in common."""
    return {name: version(name) for name in VERSIONED}


def compared(others_allowed: bool) -> Mapping[str, str]:
    """Those versions of ours that the other side must have."""
    known = versions()
    return {"fednag": known["fednag"]} if others_allowed else known


def pack(vectors: Mapping[str, Vector]) -> ArrayRecord:
    """Flat vectors as they travel."""
    return ArrayRecord({name: _array(vector) for name, vector in vectors.items()})


def _array(vector: Vector) -> Array:
    values = vector.detach().reshape(-1).cpu().contiguous()
    if sys.byteorder != "little":
        raise NotImplementedError("vectors travel in little-endian order")
    return Array(
        dtype=DTYPES[values.dtype],
        shape=(values.numel(),),
        stype=RAW,
        data=values.view(torch.uint8).numpy().tobytes(),
    )


def unpack(record: ArrayRecord, like: Vectors, most: Mapping[str, int] | None = None) -> Vectors:
    """Vectors of exactly these names, lengths and types, or a refusal.

    Where lengths may vary, ``most`` has the bytes that each may take.
    """
    if set(record) != set(like):
        found = ", ".join(sorted(record))[:LONGEST]
        raise Refusal(f"it holds the vectors {found or 'none'}, not {', '.join(like)}")
    bounds = most or {}
    return like.map_named(lambda n, vector: _vector(n, record[n], vector, bounds.get(n, -1)))


def _vector(name: str, array: Array, like: Vector, most: int) -> Vector:
    if array.stype != RAW or array.dtype != DTYPES[like.dtype]:
        given = f"{array.dtype[:20]} as {array.stype[:20]}"
        raise Refusal(f"{name} is {given}, not {DTYPES[like.dtype]} as {RAW}")
    width, size = like.dtype.itemsize, len(like)
    if len(array.data) <= most and not len(array.data) % width:
        size = len(array.data) // width
    if tuple(array.shape) != (size,) or len(array.data) != size * width:
        raise Refusal(
            f"{name} has shape {str(tuple(array.shape))[:40]} in {len(array.data)} bytes, not "
            f"({size},) in {size * width}"
        )
    if not size:
        return torch.zeros(0, dtype=like.dtype)
    return torch.frombuffer(bytearray(array.data), dtype=like.dtype)


def decoded(chain: Chain, record: ArrayRecord, like: Vectors, *key: int) -> Vectors:
    """What a chain of transforms made of vectors like these, turned back, or a refusal."""
    if not chain.parts:
        return unpack(record, like)
    layouts = chain.layouts(like)
    most = None
    if chain.variable:  # no longer than before it was coded
        most = {
            name: SLACK + max(Vectors(one=bag[name]).nbytes for bag in layouts if name in bag)
            for name in layouts[-1]
        }
    wire = unpack(record, layouts[-1], most)
    try:
        return chain.decode(wire, like, generator(*key))
    except (FednagError, RuntimeError, ValueError, IndexError, KeyError) as error:
        raise Refusal(f"it cannot be decoded ({one_line(error, 200)})") from error


def layout(lengths: Mapping[str, int], dtype: torch.dtype) -> Vectors:
    """Vectors of these lengths, that take no memory."""
    one = torch.zeros(1, dtype=dtype)
    return Vectors(**{name: one.expand(length) for name, length in lengths.items()})


def nbytes(record: ArrayRecord) -> int:
    """Bytes of the vectors in a record."""
    return sum(len(array.data) for array in record.values())


def digest(record: ArrayRecord) -> str:
    """That of the vectors in a record, as ``fednag.core.vectors.digest`` gives it."""
    return digest_of_bytes((name, array.dtype, array.data) for name, array in record.items())


def message(
    kind: str,
    node: int,
    about: Mapping[str, Any],
    vectors: ArrayRecord | None = None,
    seconds: float | None = None,
) -> Message:
    """A request; after so many seconds nobody wants the answer any more."""
    content = RecordDict({CONFIG: ConfigRecord(dict(about))})
    if vectors is not None:
        content[ARRAYS] = vectors
    return Message(content=content, dst_node_id=node, message_type=kind, ttl=seconds)


def answer(
    to: Message,
    about: Mapping[str, Any],
    vectors: ArrayRecord | None = None,
    metrics: Mapping[str, float] | None = None,
    measures: Mapping[str, float] | None = None,
) -> Message:
    content = RecordDict({CONFIG: ConfigRecord(dict(about))})
    if vectors is not None:
        content[ARRAYS] = vectors
    for name, numbers in ((METRICS, metrics), (MEASURES, measures)):
        if numbers is not None:
            content[name] = MetricRecord(dict(numbers))
    return Message(content=content, reply_to=to)


def nobody(given: Message) -> bool:
    """Whether this is no answer at all, but Flower saying that there is none."""
    return given.has_error() and given.error.code in ABSENT


def records(given: Message) -> set[str]:
    """The names of a message's records."""
    return set(given.content) if given.has_content() else set()


def label(given: Message) -> dict[str, Any]:
    """What a message says it is about."""
    if given.has_error():
        raise Refusal(f"it failed ({one_line(given.error.reason)})")
    records = given.content.config_records
    if set(records) != {CONFIG}:
        raise Refusal(f"it has no record {CONFIG!r} that says what it is about")
    return dict(records[CONFIG])


def about(given: Message) -> dict[str, Any]:
    """The same, and a silo's refusal of what it was asked becomes ours."""
    found = label(given)
    if isinstance(reason := found.get("refused"), str):
        raise Refusal(f"it says: {one_line(reason)}", found.get("not-finite") is True)
    return found


def arrays(given: Message) -> ArrayRecord:
    records = given.content.array_records
    if set(records) != {ARRAYS}:
        raise Refusal(f"it has {len(records)} records of vectors, not one named {ARRAYS!r}")
    return records[ARRAYS]


def metrics(given: Message, record: str = METRICS) -> dict[str, float]:
    """Finite numbers only; the rest is dropped."""
    records = given.content.metric_records
    known = set(records) <= {METRICS, MEASURES} and record in records
    found = dict(records[record]) if known else {}
    return {
        name[:40]: number
        for name, number in list(found.items())[:20]
        if isinstance(number, int | float) and isfinite(number)
    }


def expect(found: Mapping[str, Any], **wanted: Any) -> None:
    """Refuse what is labelled otherwise than it should be."""
    for key, right in wanted.items():
        given = found.get(key)
        if type(given) is not type(right) or given != right:
            raise Refusal(
                f"its {key} is {one_line(given, 24)}, not {one_line(right, 24)}"
                f"{REMEDIES.get(key, '')}"
            )


def numbers(given: object, stage: Algorithm) -> dict[str, float]:
    """The stage's numbers that a message changes, or a refusal."""
    found = json.loads(given) if isinstance(given, str) else {}
    known = {field.name for field in fields(stage)}  # type: ignore[arg-type]
    if not isinstance(found, dict) or not set(found) <= known:
        raise Refusal(f"its numbers are {one_line(given, 60)}, not numbers of the method")
    if not all(isinstance(n, int | float) and isfinite(n) for n in found.values()):
        raise Refusal(f"its numbers are {one_line(given, 60)}, not finite")
    return {name: float(number) for name, number in found.items()}


def one_line(text: object, most: int = LONGEST) -> str:
    """Text from another machine, made printable and short, to be shown."""
    plain = " ".join(str(text).split())
    plain = "".join(letter if letter.isprintable() else "?" for letter in plain)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
