"""Shamir's sharing of secrets: any t of the shares give the secret, fewer say nothing about it.

A. Shamir, "How to share a secret" (1979). The secret is the value at 0 of a random polynomial of
degree t - 1 over a prime field, a share its value elsewhere::

    f(x) = s + a_1 x + ... + a_{t-1} x^{t-1},    share_i = f(x_i)
    s = sum_i share_i prod_{j != i} x_j / (x_j - x_i)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

PRIME = 2**256 + 297  # the least above all secrets of 32 bytes


def split(
    secret: int,
    threshold: int,
    points: Sequence[int],
    prime: int = PRIME,
    draw: Callable[[int], int] = secrets.randbelow,
) -> list[int]:
    """A share for each of ``points``, which are distinct and not 0 modulo the prime.

    >>> shares = split(42, threshold=2, points=[1, 2, 3])
    >>> combined(shares[1:], coefficients([2, 3]))
    42
    """
    polynomial = [secret, *(draw(prime) for _ in range(threshold - 1))]
    found = []
    for x in points:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * x + coefficient) % prime
        found.append(value)
    return found


def coefficients(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """By what the shares at ``points`` are multiplied in the sum that is the secret."""
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % prime
                below = below * (other - x) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found


def combined(shares: Sequence[int], weights: Sequence[int], prime: int = PRIME) -> int:
    """The secret of these shares."""
    return sum(s * w for s, w in zip(shares, weights, strict=True)) % prime
