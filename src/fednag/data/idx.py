"""Reads the IDX array format of MNIST and its relatives, trusting nothing in the header."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError

LIMIT = 2 << 30  # bytes of payload: MNIST's largest file has 47 MB
_CHUNK = 1 << 20
_MAX_RANK = 8
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, limit: int = LIMIT) -> NDArray[Any]:
    """The array in an IDX file (gzip when the name ends in .gz), in native byte order.

    `limit` is the largest payload, in bytes, that is accepted.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            dtype, shape = _header(path, stream, limit)
            payload = _payload(path, stream, math.prod(shape) * dtype.itemsize)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken(path, f"gzip: {error}") from error
    except OSError as error:
        raise FednagError(
            f"{path} cannot be read ({error.strerror or error}); "
            "check that it is a file you may read, or delete it and download it again"
        ) from error
    array = np.frombuffer(payload, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header(
    path: Path, stream: BufferedIOBase, limit: int
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        raise _broken(path, f"it starts with {magic.hex() or 'nothing'}")
    rank = magic[3]
    if not 1 <= rank <= _MAX_RANK:
        raise _broken(path, f"its header announces {rank} dimensions")
    sizes = stream.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise _broken(path, "it ends inside its header")
    shape = struct.unpack(f">{rank}I", sizes)
    dtype = np.dtype(_TYPES[magic[2]])
    claimed = math.prod(shape) * dtype.itemsize
    if not 0 < claimed <= limit:
        raise _broken(path, f"its header announces {claimed} bytes, where 1 to {limit} can be read")
    return dtype, shape


def _payload(path: Path, stream: BufferedIOBase, claimed: int) -> bytearray:
    # Grows with what is really there: read(claimed) would set all of it aside at once.
    payload = bytearray()
    while len(payload) <= claimed:
        chunk = stream.read(min(_CHUNK, claimed + 1 - len(payload)))
        if not chunk:
            break
        payload += chunk
    if len(payload) < claimed:
        raise _broken(path, f"its header announces {claimed} bytes, {len(payload)} are there")
    if len(payload) > claimed:
        raise _broken(path, f"bytes follow the {claimed} its header announces")
    return payload


def _broken(path: Path, why: str) -> FednagError:
    return FednagError(
        f"{path} is not a complete IDX file ({why}); delete it and download it again"
    )
