"""The first normal numbers of many keyed generators at once, to the bit.

Delays are drawn from ``numpy.random.default_rng([seed, stream, round, worker, phase])``: to make
such a generator takes longer than all that is drawn from it. Here the same numbers are computed
for arrays of workers: NumPy's hash of the key, the steps of PCG64, and the part of its ziggurat
that 98.5 % of draws take. Whoever needs another part has a generator put into the same state.

The tables of the ziggurat are those of the NumPy that is installed: it is asked, by generators
whose next output is chosen. ``agrees`` says whether all this is what that NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Table = NDArray[np.float64]

_32, _64, _128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
# The hash of NumPy's SeedSequence (O'Neill's seed_seq_fe), and the multiplier of PCG64.
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R, _POOL = 0xCA01F9DD, 0x4973F715, 4
_STEP = 0x2360ED051FC65DA44385DF649FCCF645
_LAYERS, _BITS = 256, 52  # of the ziggurat, and of a number's place in its layer


class Generators:
    """A generator for each row of keys, e.g. of (seed, stream, round, worker, phase): whole numbers
    alike for all, or arrays of such below 2**32."""

    def __init__(self, *keys: int | NDArray[np.int64]) -> None:
        size = next(key.shape for key in keys if isinstance(key, np.ndarray))
        words: list[Any] = []
        for key in keys:
            words += [key.astype(np.uint32)] if isinstance(key, np.ndarray) else _words(key)
        seeds = _hash([np.broadcast_to(np.asarray(word, np.uint32), size) for word in words])
        start, (high, low) = seeds[:2], seeds[2:]
        self.odd = (
            (high << np.uint64(1)) | (low >> np.uint64(63)),
            (low << np.uint64(1)) | np.uint64(1),
        )
        self.state = _step(_add(self.odd, (start[0], start[1])), self.odd)

    def normals(self, count: int) -> tuple[Table, NDArray[np.bool_]]:
        """The first ``count`` normal numbers of each, and for whom they are right: the others need
        more than one output for one of them. Leaves the generators as they were."""
        widths, edges = _ziggurat()
        state, size = self.state, len(self.odd[0])
        found = np.empty((size, count))
        right = np.ones(size, dtype=bool)
        for place in range(count):
            state = _step(state, self.odd)
            output = _output(state)
            layer = (output & np.uint64(_LAYERS - 1)).astype(np.intp)
            inside = (output >> np.uint64(9)) & np.uint64((1 << _BITS) - 1)
            right &= inside < edges[layer]
            drawn = inside.astype(np.float64) * widths[layer]
            negative = (output & np.uint64(_LAYERS)) != 0
            np.negative(drawn, out=drawn, where=negative)
            found[:, place] = drawn
        return found, right

    def one(self, place: int, rng: np.random.Generator) -> np.random.Generator:
        """``rng``, put into the state of one of them."""
        high, low = (int(half[place]) for half in self.state)
        odd_high, odd_low = (int(half[place]) for half in self.odd)
        return _put(rng, high << 64 | low, odd_high << 64 | odd_low)


@cache
def agrees() -> bool:
    """Whether this is what the NumPy that is installed does, on a thousand keys."""
    workers = np.arange(0, 50_000, 50)
    generators = Generators(2**40 + 7, 7, 3, workers, 1)
    found, right = generators.normals(4)
    expected = [np.random.default_rng([2**40 + 7, 7, 3, int(w), 1]) for w in workers]
    drawn = np.array([rng.standard_normal(4) for rng in expected])
    rng = np.random.default_rng()
    slow = np.flatnonzero(~right)
    again = [generators.one(int(i), rng).standard_normal(4) for i in slow]
    return (
        bool((found[right] == drawn[right]).all())
        and bool((np.array(again).reshape(-1, 4) == drawn[slow]).all())
        and right.mean() > 0.9
    )


@cache
def exponential() -> Callable[[Table], Table]:
    """Exponentials of arrays, as distributions take them one by one: those of the C library.

    ``numpy.exp`` may use others, which differ by a last bit; of complex numbers it does not.
    """
    powers = np.random.default_rng(0).standard_normal(20_000) * 3.0
    drawn = np.random.default_rng(0).lognormal(0.0, 3.0, 20_000)
    quick: tuple[Callable[[Table], Table], ...] = (
        np.exp,
        lambda x: np.ascontiguousarray(np.exp(x.astype(np.complex128)).real),
    )
    return next((way for way in quick if (way(powers) == drawn).all()), _one_by_one)


def _one_by_one(powers: Table) -> Table:
    flat = np.fromiter(map(exp, powers.ravel().tolist()), np.float64, powers.size)
    return flat.reshape(powers.shape)


def _words(number: int) -> list[int]:
    """A number as words of 32 bits, as SeedSequence takes it."""
    found = [number & _32]
    while number := number >> 32:
        found.append(number & _32)
    return found


def _hash(keys: list[Any]) -> list[Words]:
    """Four words of 64 bits from words of 32 bits."""
    const = _INIT_A

    def scramble(value: Any) -> Any:
        nonlocal const
        value = value ^ np.uint32(const)
        const = const * _MULT_A & _32
        value = value * np.uint32(const)
        return value ^ (value >> np.uint32(16))

    def mix(x: Any, y: Any) -> Any:
        found = x * np.uint32(_MIX_L) - y * np.uint32(_MIX_R)
        return found ^ (found >> np.uint32(16))

    nothing = np.zeros_like(keys[0])
    pool = [scramble(keys[i] if i < len(keys) else nothing) for i in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mix(pool[target], scramble(pool[source]))
    for key in keys[_POOL:]:
        for target in range(_POOL):
            pool[target] = mix(pool[target], scramble(key))
    const, halves = _INIT_B, []
    for place in range(8):
        value = pool[place % _POOL] ^ np.uint32(const)
        const = const * _MULT_B & _32
        value = value * np.uint32(const)
        halves.append((value ^ (value >> np.uint32(16))).astype(np.uint64))
    return [halves[i] | (halves[i + 1] << np.uint64(32)) for i in range(0, 8, 2)]


Wide = tuple[Words, Words]  # 128 bits: the high half and the low


def _add(one: Wide, other: Wide) -> Wide:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < one[1]).astype(np.uint64), low


def _step(state: Wide, odd: Wide) -> Wide:
    """state x multiplier + odd, in 128 bits."""
    high, low = state
    step_high, step_low = np.uint64(_STEP >> 64), np.uint64(_STEP & _64)
    carried = _high(low, _STEP & _64)
    return _add((high * step_low + low * step_high + carried, low * step_low), odd)


def _high(x: Words, y: int) -> Words:
    """The high half of a product of 64 bits by 64."""
    half, mask = np.uint64(32), np.uint64(_32)
    x_high, x_low = x >> half, x & mask
    y_high, y_low = np.uint64(y >> 32), np.uint64(y & _32)
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & mask)
    found: Words = x_high * y_high + (middle >> half) + (other >> half)
    return found


def _output(state: Wide) -> Words:
    """The halves xored, turned right by the six highest bits."""
    high, low = state
    turn: Words = high >> np.uint64(58)
    mixed: Words = high ^ low
    turned: Words = mixed >> turn
    turned |= mixed << ((np.uint64(64) - turn) & np.uint64(63))
    return turned


def _put(rng: np.random.Generator, state: int, odd: int) -> np.random.Generator:
    inner = {"state": state, "inc": odd}
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": inner,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return rng


@cache
def _ziggurat() -> tuple[Table, Words]:
    """The width of a step in each layer, and how many steps need only one output.

    A generator is put before a state whose halves are 0 and the output that is wanted, which is
    then not turned. It gives the width at step 1, and where it has gone on by more than one state,
    the step is beyond the edge.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    back = pow(_STEP, -1, 1 << 128)

    def drawn(layer: int, step: int) -> tuple[float, bool]:
        wanted = step << 9 | layer
        _put(rng, (wanted - 1) * back & _128, 1)
        value = float(rng.standard_normal())
        now: Any = rng.bit_generator.state
        return value, now["state"]["state"] == wanted

    widths, edges = np.zeros(_LAYERS), np.zeros(_LAYERS, dtype=np.uint64)
    for layer in range(_LAYERS):
        low, high = 0, 1 << _BITS  # the first step that is beyond is among these
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if drawn(layer, middle)[1] else (low, middle)
        edges[layer] = low
        # A layer without such steps needs no width.
        widths[layer] = drawn(layer, 1)[0] if low > 1 else 0.0
    return widths, edges
