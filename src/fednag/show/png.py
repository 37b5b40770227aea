"""PNG files, packed again as tightly as zlib can: charts that are committed should be small."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from fednag.core.files import write_atomically

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def squeeze(path: Path) -> None:
    """The same picture in fewer bytes; about a third for charts."""
    content = path.read_bytes()
    place, pixels, before, after = len(SIGNATURE), b"", b"", b""
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        chunk = content[place : place + size + 12]  # size, name, data, checksum
        place += size + 12
        if chunk[4:8] == b"IDAT":
            pixels += chunk[8:-4]
        elif pixels:
            after += chunk
        else:
            before += chunk
    packed = b"IDAT" + zlib.compress(zlib.decompress(pixels), 9)
    middle = struct.pack(">I", len(packed) - 4) + packed + struct.pack(">I", zlib.crc32(packed))
    if len(middle) < len(content) - len(before) - len(after):
        write_atomically(path, SIGNATURE + before + middle + after)
