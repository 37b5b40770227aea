"""Arrays in NPY and NPZ files, read without belief in what their headers claim."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fednag.core.files import os_errors
from fednag.errors import FednagError

Array = NDArray[np.generic]
LIMIT = 8 << 30  # bytes of one array: data are held in memory
KINDS = "biufcU"  # numbers and words; objects, which could run code, are none of them
_HEADER = 1 << 16
_CHUNK = 1 << 20
_SURROGATES = (0xD800, 0xDFFF)
_LAST = 0x10FFFF  # of the characters there are


class _WrongError(Exception):
    """What is wrong with an array, in a few words."""


def read_npy(path: Path) -> Array:
    """The array in a file of ``numpy.save``."""
    try:
        with os_errors(path, "cannot be read", "check the path"), path.open("rb") as stream:
            return _array(stream, path.stat().st_size)
    except _WrongError as error:
        raise FednagError(path, f"cannot be read: {error}", "write it with numpy.save") from error


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays in a file of ``numpy.savez``, by name."""
    remedy = "write it with numpy.savez(x=…, y=…)"
    found: dict[str, Array] = {}
    name = ""
    try:
        with (
            os_errors("data.path", f"{path} cannot be read", "check the path"),
            zipfile.ZipFile(path) as archive,
        ):
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name != member.filename:
                    with archive.open(member) as stream:
                        found[name] = _array(stream, member.file_size)
    except (FednagError, MemoryError):
        raise
    except _WrongError as error:
        raise FednagError(path, f"array {name!r} cannot be read: {error}", remedy) from error
    except Exception as error:  # zipfile has exceptions of many kinds for what is no archive
        raise FednagError(path, "is not an NPZ of plain arrays", remedy) from error
    return found


def _array(stream: IO[bytes], size: int) -> Array:
    """The array in a stream of so many bytes, if the archive that says so is right."""
    start = io.BytesIO(stream.read(_HEADER))
    try:
        version = npy.read_magic(start)
        header = npy.read_array_header_1_0 if version[0] == 1 else npy.read_array_header_2_0
        shape, is_fortran, dtype = header(start)
        count = math.prod(shape)
    except Exception as error:  # the header is text, and anything may stand in it
        raise _WrongError("its header is no array's") from error
    if dtype.kind not in KINDS:
        raise _WrongError(f"it holds {dtype}, and not plain numbers or words")
    claimed = count * dtype.itemsize
    if not all(type(length) is int and length >= 0 for length in shape) or claimed > size:
        raise _WrongError(f"its header claims {claimed} bytes, and {size} are there")
    if claimed > LIMIT:
        raise _WrongError(f"it takes {claimed / 2**30:.1f} GiB, and at most {LIMIT >> 30} are read")
    payload = bytearray(start.read())
    # Grows with what is there, to the end, where an archive's own checksum is compared.
    while chunk := stream.read(_CHUNK):
        payload += chunk
        if len(payload) > claimed:
            break
    if len(payload) != claimed:
        raise _WrongError(f"its header claims {claimed} bytes, and there are others")
    array: Array = np.frombuffer(payload, dtype=dtype)
    array = array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
    array = np.ascontiguousarray(array, dtype=dtype.newbyteorder("=")).reshape(shape)
    if dtype.kind == "U" and array.size and not _are_characters(array):
        raise _WrongError("it holds words with characters that there are not")
    return array


def _are_characters(words: Array) -> bool:
    codes = np.ascontiguousarray(words).reshape(-1).view(np.uint32)
    first, last = _SURROGATES
    return not ((codes > _LAST) | ((codes >= first) & (codes <= last))).any()
