"""Whole numbers of a few bits each, packed into bytes."""

from __future__ import annotations

import torch

from fednag.core.vectors import Vector


def pack(codes: Vector, bits: int) -> Vector:
    """Numbers from 0 to 2**bits - 1, ``bits`` bits each, as bytes.

    Whole bytes of each number come first, one plane after the other. Of the rest, eight numbers
    at a time are put side by side, the first in the lowest bits; fewer, where they fill bytes.

    >>> import torch
    >>> pack(torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1]), 1)
    tensor([13,  1], dtype=torch.uint8)
    """
    whole, rest = divmod(bits, 8)
    planes = [((codes >> 8 * place) & 255).to(torch.uint8) for place in range(whole)]
    if rest in (1, 2, 4):
        high = (codes >> 8 * whole).to(torch.uint8)
        each = 8 // rest
        side = torch.nn.functional.pad(high, (0, -len(codes) % each)).view(-1, each)
        bytes_ = side[:, 0].clone()
        for place in range(1, each):
            bytes_ |= side[:, place] << rest * place
        planes.append(bytes_)
    elif rest:
        high = (codes >> 8 * whole).to(torch.uint8)
        padded = torch.zeros(-(-len(codes) // 8) * 8, dtype=torch.uint8)
        padded[: len(codes)] = high
        eights = padded.view(-1, 8)
        words = torch.zeros(len(eights), dtype=torch.int64)
        for place in range(8):
            words |= eights[:, place].to(torch.int64) << rest * place
        planes.append(words.view(torch.uint8).view(-1, 8)[:, :rest].reshape(-1))
        planes[-1] = planes[-1][: packed_size(len(codes), rest)]
    return torch.cat(planes)


def unpack(packed: Vector, bits: int, count: int) -> Vector:
    """The ``count`` numbers that were packed, int64 above 8 bits and uint8 otherwise.

    >>> import torch
    >>> unpack(pack(torch.tensor([300, 5]), 9), 9, 2)
    tensor([300,   5])
    """
    whole, rest = divmod(bits, 8)
    kind = torch.uint8 if bits <= 8 else torch.int64
    found = torch.zeros(count, dtype=kind)
    for place in range(whole):
        found |= packed[place * count : (place + 1) * count].to(kind) << 8 * place
    if rest in (1, 2, 4):
        each, bytes_ = 8 // rest, packed[whole * count :]
        side = torch.empty(len(bytes_), each, dtype=torch.uint8)
        for place in range(each):
            side[:, place] = (bytes_ >> rest * place) & (2**rest - 1)
        found |= side.view(-1)[:count].to(kind) << 8 * whole
    elif rest:
        eights = -(-count // 8)
        rows = torch.zeros(eights * rest, dtype=torch.uint8)
        rows[: packed_size(count, rest)] = packed[whole * count :]
        wide = torch.zeros(eights, 8, dtype=torch.uint8)
        wide[:, :rest] = rows.view(eights, rest)
        words = wide.view(torch.int64).view(-1)
        high = torch.empty(eights, 8, dtype=torch.uint8)
        for place in range(8):
            high[:, place] = ((words >> rest * place) & (2**rest - 1)).to(torch.uint8)
        found |= high.view(-1)[:count].to(kind) << 8 * whole
    return found


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many packed numbers."""
    whole, rest = divmod(bits, 8)
    return whole * count + -(-count * rest // 8)


def bits_of(most: int) -> int:
    """Bits of a whole number from 0 to ``most``."""
    return max(int(most).bit_length(), 1)
