"""Masks: streams of ChaCha20, added to vectors of integers modulo 2^bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fednag.errors import FednagError

Integers = NDArray[Any]
"""Unsigned, of 2, 4 or 8 bytes; numbers of 24 bits, say, lie in 4."""

BLOCK = 2**14  # bytes of a stream made at a time: few enough to stay in the processor's cache


def integers(bits: int) -> np.dtype[Any]:
    """The smallest type that holds numbers modulo 2^bits.

    >>> integers(24)
    dtype('uint32')
    """
    return np.dtype(f"<u{2 if bits <= 16 else 4 if bits <= 32 else 8}")


def add_streams(total: Integers, keys: Iterable[tuple[bytes, bool]]) -> None:
    """Add the stream of each key (or take it away, where its flag is False) to all of ``total``."""
    numbers = BLOCK // total.itemsize
    zeros, stream = bytes(BLOCK), np.empty(numbers, dtype=total.dtype)
    buffer = memoryview(stream).cast("B")  # type: ignore[arg-type]
    ciphers = [
        # A key makes one stream, so that the nonce may be the same for all.
        (Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor(), added)
        for key, added in keys
    ]
    for first in range(0, len(total), numbers):
        part = total[first : first + numbers]
        for cipher, added in ciphers:
            cipher.update_into(zeros, buffer)
            if added:
                part += stream[: len(part)]
            else:
                part -= stream[: len(part)]


def packed(values: Integers, bits: int) -> NDArray[np.uint8]:
    """The numbers modulo 2^bits, in bits / 8 bytes each.

    >>> packed(np.array([258, 2**32 - 1], dtype="<u4"), 24)
    array([  2,   1,   0, 255, 255, 255], dtype=uint8)
    """
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
    return rows[:, : bits // 8].reshape(-1)


def unpacked(content: NDArray[np.uint8], bits: int) -> Integers:
    """The numbers again."""
    if len(content) % (bits // 8):
        raise FednagError(f"{len(content)} bytes are no numbers of {bits} bits")
    kind = integers(bits)
    rows = np.zeros((len(content) // (bits // 8), kind.itemsize), dtype=np.uint8)
    rows[:, : bits // 8] = content.reshape(-1, bits // 8)
    return rows.view(kind).reshape(-1)
