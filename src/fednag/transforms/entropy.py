"""Lossless coding of what was rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import zstandard
from annotated_types import Ge, Le

from fednag.core.transform import Transform
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError

RAW, FRAME = 0, 1  # the first byte: what follows


@dataclass(frozen=True)
class Entropy(Transform):
    """Codes the whole numbers that transforms before it made, frequent ones in fewer bits.

    QSGD codes its levels by Elias' code; here it is Zstandard (RFC 8878), whose tables follow the
    numbers themselves. Nothing is lost. Where coding does not pay, the bytes travel as they are,
    with one more that says so. Put it last; ``level`` is Zstandard's, from fast to small.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.core.transform import Chain
    >>> from fednag.transforms import Entropy, Quantise
    >>> x = Vectors(w=torch.ones(10_000))
    >>> rounded, coded = Chain((Quantise(),)), Chain((Quantise(), Entropy()))
    >>> plain, _ = rounded.apply(x, Vectors(), np.random.default_rng(0))
    >>> small, _ = coded.apply(x, Vectors(), np.random.default_rng(0))
    >>> plain.nbytes, small.nbytes < 2_500
    (10004, True)
    """

    level: Annotated[int, Ge(1), Le(19)] = 3

    variable = compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        codes = [name for name, vector in up.items() if not vector.is_floating_point()]
        if not codes and any(len(vector) > 1 for vector in up.values()):
            raise FednagError(
                "entropy",
                "nothing was rounded before it",
                "put quantise, sign, topk, drive or eden earlier in the list",
            )
        return up.but(**{name: self._coded(up[name]) for name in codes if len(up[name])}), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        found = {}
        for name, vector in like.items():
            found[name] = wire[name]
            if not vector.is_floating_point() and len(wire[name]):  # what is empty was left out
                size = len(vector) * vector.element_size()
                raw = _decoded(name, wire[name].numpy().tobytes(), size)
                found[name] = torch.frombuffer(raw, dtype=vector.dtype)
        return Vectors(**found)

    def _coded(self, codes: Vector) -> Vector:
        raw = codes.contiguous().view(torch.uint8).numpy().tobytes()
        frame = zstandard.ZstdCompressor(level=self.level).compress(raw)
        smaller = len(frame) < len(raw)
        first = bytes([FRAME if smaller else RAW])
        return torch.frombuffer(bytearray(first + (frame if smaller else raw)), dtype=torch.uint8)


def _decoded(name: str, message: bytes, size: int) -> bytearray:
    """The ``size`` bytes that were coded; more is never made of a message."""
    first, rest = message[0], message[1:]
    try:
        # The frame says its size, and memory is taken for that: it is looked at first.
        if first == FRAME and zstandard.frame_content_size(rest) == size:
            rest = zstandard.ZstdDecompressor().decompress(
                rest, max_output_size=size, allow_extra_data=False
            )
        elif first != RAW:
            rest = b""
    except zstandard.ZstdError:
        rest = b""
    if len(rest) != size:
        raise FednagError(name, "its coded numbers are damaged", "send the update again")
    return bytearray(rest)
