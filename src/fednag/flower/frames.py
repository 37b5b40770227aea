"""Messages of Flower between two processes of one machine, over a Unix socket.

A frame is a short text of facts (JSON), then protocol buffers, then the vectors as they are in
memory: those may be large, so they are neither parsed nor copied on their way. It imports no torch.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

WORD = 8  # bytes of a length
MOST_TEXT = 1 << 26  # bytes of facts


@dataclass(frozen=True, eq=False)
class Frame:
    """What one process tells the other."""

    facts: Mapping[str, Any]
    message: Message | None = None
    records: RecordDict | None = None

    def write(self, to: socket.socket) -> None:
        protos, shapes, vectors = [], [], list[bytes]()
        for place, content in ((0, self._content), (1, self.records)):
            light = None if content is None else _light(content)
            if content is not None:
                for record, name, data in _vectors(content):
                    shapes.append((place, record, name, len(data)))
                    vectors.append(data)
            protos.append(self._proto(place, light))
        sizes = [len(proto) for proto in protos]
        head = {"facts": dict(self.facts), "protos": sizes, "vectors": shapes}
        text = json.dumps(head).encode()
        to.sendall(len(text).to_bytes(WORD, "little") + text + b"".join(protos))
        for data in vectors:
            to.sendall(data)

    @property
    def _content(self) -> RecordDict | None:
        if self.message is None or not self.message.has_content():
            return None
        return self.message.content

    def _proto(self, place: int, light: RecordDict | None) -> bytes:
        if place:
            return b"" if light is None else bytes(recorddict_to_proto(light).SerializeToString())
        if self.message is None:
            return b""
        message = self.message
        if light is not None:
            message = make_message(metadata=message.metadata, content=light)
        return bytes(message_to_proto(message).SerializeToString())

    @classmethod
    def read(cls, given: BinaryIO) -> Frame:
        """The next frame; EOFError if the other side ended before it was whole."""
        size = int.from_bytes(_exactly(given, WORD), "little")
        if size > MOST_TEXT:
            raise EOFError("it is no frame")
        head = json.loads(_exactly(given, size))
        first, second = (_exactly(given, size) for size in head["protos"])
        message = message_from_proto(ProtoMessage.FromString(first)) if first else None
        records = None
        if second or any(place for place, *_ in head["vectors"]):
            records = recorddict_from_proto(ProtoRecordDict.FromString(second))
        for place, record, name, size in head["vectors"]:
            content = records if place else message.content if message else None
            assert content is not None
            content.array_records[record][name].data = _exactly(given, size)
        return cls(head["facts"], message, records)


def _exactly(given: BinaryIO, size: int) -> bytes:
    found = given.read(size)
    if len(found) < size:
        raise EOFError("the other side ended")
    return found


def _vectors(content: RecordDict) -> Iterator[tuple[str, str, bytes]]:
    for record, arrays in content.array_records.items():
        for name, array in arrays.items():
            yield record, name, array.data


def _light(content: RecordDict) -> RecordDict:
    """The same without the numbers of its vectors."""
    found = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            record = ArrayRecord({n: _empty(array) for n, array in record.items()})
        found[name] = record
    return found


def _empty(array: Array) -> Array:
    return Array(dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=b"")
