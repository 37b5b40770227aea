"""Data from a pickle without unpickling it: a reading of its opcodes that knows no code.

A pickle is a small program for a stack machine. Those that only put together dictionaries, lists,
tuples, numbers and text are read here; any opcode that would import, call or build something else
is refused before anything is done. Nothing is ever looked up by a name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednag.core.files import os_errors
from fednag.errors import FednagError, within

LARGEST = 1 << 30  # bytes
_DIGITS, _BYTES = 200, 80  # of a whole number
_KEYS = (str, int, float, bool, type(None))  # a key that nests might take any depth to hash

_REFUSED = {
    **dict.fromkeys(b"ci\x93", "imports something by its name"),
    **dict.fromkeys(b"Ro\x81\x92", "calls something"),
    b"b"[0]: "changes an object",
    **dict.fromkeys(b"PQ", "refers to something outside"),
    **dict.fromkeys(b"\x82\x83\x84", "uses an extension"),
    **dict.fromkeys(b"\x97\x98", "uses memory from outside"),
}


class _DamagedError(Exception):
    """What cannot be, said in a few words."""


class _Mark:
    """Where a list of items on the stack begins."""


_MARK = _Mark()


def read_plain(path: Path) -> Any:
    """The dictionaries, lists, tuples, numbers and text in a pickle, or a sentence."""
    with os_errors(path, "cannot be read", "check the path"):
        if path.stat().st_size > LARGEST:
            raise FednagError(path, "is larger than 1 GiB", "give a file of traces")
        data = path.read_bytes()
    return plain_data(data, str(path))


def plain_data(data: bytes, source: str = "") -> Any:
    """The same from bytes.

    >>> from fednag.devices.opcodes import plain_data
    >>> plain_data(b"}X\\x01\\x00\\x00\\x00aK\\x05s.")
    {'a': 5}
    """
    with within(source):
        try:
            return _Machine(data).run()
        except (_DamagedError, ValueError, IndexError, struct.error, TypeError) as error:
            said = str(error) if isinstance(error, _DamagedError) else "it is damaged"
            raise FednagError(
                "", f"is not a pickle of plain data ({said})", "fetch or write it again"
            ) from None


class _Machine:
    """Reads one opcode after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, known = self.data, _KNOWN
        while True:
            if self.place >= len(data):
                raise _DamagedError("it ends in the middle")
            code = data[self.place]
            self.place += 1
            if code == _STOP:
                return self.pop()
            action = known.get(code)
            if action is None:
                self.refuse(code)
            else:
                action(self)

    def refuse(self, code: int) -> None:
        reason = _REFUSED.get(code)
        if reason is None:
            raise _DamagedError(f"byte {self.place - 1} is no opcode")
        raise FednagError(
            "",
            f"is a pickle that {reason} (byte {self.place - 1}), and nothing of it was run",
            "give one of dictionaries, lists, numbers and text alone, or the same as JSON",
        )

    def take(self, count: int) -> bytes:
        found = self.data[self.place : self.place + count]
        if len(found) < count:
            raise _DamagedError("it ends in the middle")
        self.place += count
        return found

    def number(self, form: str, count: int) -> Any:
        return struct.unpack(form, self.take(count))[0]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.place)
        if end < 0:
            raise _DamagedError("it ends in the middle")
        found = self.data[self.place : end]
        self.place = end + 1
        return found

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _DamagedError("it takes what is not there")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """What is on the stack down to the last mark, which goes too."""
        stack = self.stack
        place = len(stack) - 1
        while place >= 0 and stack[place] is not _MARK:
            place -= 1
        if place < 0:
            raise _DamagedError("it takes what is not there")
        found = stack[place + 1 :]
        del stack[place:]
        return found

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise _DamagedError(f"it puts items into what is no {kind.__name__}")
        return self.stack[-1]

    def fill(self, items: list[Any]) -> None:
        self.top(dict).update(_paired(items))


def _push(read: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        machine.stack.append(read(machine))

    return action


def _whole(line: bytes) -> int | bool:
    if line in (b"00", b"01"):
        return line == b"01"
    line = line.removesuffix(b"L")
    if len(line) > _DIGITS:
        raise _DamagedError("a number is too long")
    return int(line)


def _quoted(line: bytes) -> str:
    """Text of protocol 0, in quotes; escapes are not decoded, for no key or name here has any."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise _DamagedError("a text has no quotes")
    return line[1:-1].decode("latin-1")


def _store(machine: _Machine, place: int) -> None:
    if not machine.stack:
        raise _DamagedError("it keeps what is not there")
    machine.memo[place] = machine.stack[-1]


def _fetch(machine: _Machine, place: int) -> None:
    if place not in machine.memo:
        raise _DamagedError("it takes what was not kept")
    machine.stack.append(machine.memo[place])


def _paired(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise _DamagedError("a key has no value")
    if not all(type(key) in _KEYS for key in items[::2]):
        raise _DamagedError("a key is neither text nor a number")
    return dict(zip(items[::2], items[1::2], strict=True))


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.fill([key, value])


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _tuple(count: int) -> Callable[[_Machine], Any]:
    return lambda m: tuple([m.pop() for _ in range(count)][::-1])


def _utf8(width: str, size: int) -> Callable[[_Machine], str]:
    return lambda m: m.take(m.number(width, size)).decode("utf-8", "surrogatepass")


def _latin(width: str, size: int) -> Callable[[_Machine], str]:
    return lambda m: m.take(m.number(width, size)).decode("latin-1")


def _long(width: str, size: int) -> Callable[[_Machine], int]:
    def read(machine: _Machine) -> int:
        count = machine.number(width, size)
        if not 0 <= count <= _BYTES:
            raise _DamagedError("a number is too long")
        return int.from_bytes(machine.take(count), "little", signed=True)

    return read


_STOP = ord(".")
_ACTIONS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # the protocol
    b"\x95": lambda m: m.take(8),  # a frame
    b"(": lambda m: m.stack.append(_MARK),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.to_mark(),
    b"N": _push(lambda m: None),
    b"\x88": _push(lambda m: True),
    b"\x89": _push(lambda m: False),
    b"I": _push(lambda m: _whole(m.line())),
    b"L": _push(lambda m: _whole(m.line())),
    b"J": _push(lambda m: m.number("<i", 4)),
    b"K": _push(lambda m: m.number("<B", 1)),
    b"M": _push(lambda m: m.number("<H", 2)),
    b"\x8a": _push(_long("<B", 1)),
    b"\x8b": _push(_long("<I", 4)),
    b"F": _push(lambda m: float(m.line())),
    b"G": _push(lambda m: m.number(">d", 8)),
    b"S": _push(lambda m: _quoted(m.line())),
    b"T": _push(_latin("<I", 4)),
    b"U": _push(_latin("<B", 1)),
    b"V": _push(lambda m: m.line().decode("raw-unicode-escape")),
    b"X": _push(_utf8("<I", 4)),
    b"\x8c": _push(_utf8("<B", 1)),
    b"\x8d": _push(_utf8("<Q", 8)),
    b"}": _push(lambda m: {}),
    b"d": _push(lambda m: _paired(m.to_mark())),
    b"s": _set_item,
    b"u": lambda m: m.fill(m.to_mark()),
    b"]": _push(lambda m: []),
    b"l": _push(lambda m: m.to_mark()),
    b"a": _append,
    b"e": lambda m: [(items := m.to_mark()), m.top(list).extend(items)],
    b")": _push(lambda m: ()),
    b"t": _push(lambda m: tuple(m.to_mark())),
    b"\x85": _push(_tuple(1)),
    b"\x86": _push(_tuple(2)),
    b"\x87": _push(_tuple(3)),
    b"p": lambda m: _store(m, int(m.line())),
    b"q": lambda m: _store(m, m.number("<B", 1)),
    b"r": lambda m: _store(m, m.number("<I", 4)),
    b"\x94": lambda m: _store(m, len(m.memo)),
    b"g": lambda m: _fetch(m, int(m.line())),
    b"h": lambda m: _fetch(m, m.number("<B", 1)),
    b"j": lambda m: _fetch(m, m.number("<I", 4)),
}
_KNOWN = {code[0]: action for code, action in _ACTIONS.items()}
