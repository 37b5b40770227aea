"""Seconds as a person reads them."""

from __future__ import annotations

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def duration(seconds: float, deviation: float | None = None, digits: int = 4) -> str:
    """A time in s, ms or µs, perhaps with its deviation in the same unit.

    >>> from fednag.devices.durations import duration
    >>> duration(71.4), duration(0.0421), duration(8.737e-06)
    ('71.4 s', '42.1 ms', '8.737 µs')
    >>> duration(70.2831, 7.7216)
    '70.28 ± 7.72 s'
    """
    # What rounding would make a thousand of one unit is one of the next.
    size, unit = next((u for u in UNITS if float(f"{abs(seconds):.3e}") >= u[0]), UNITS[-1])
    if not seconds:
        size, unit = UNITS[0]
    if deviation is None:
        number = seconds / size
        whole = abs(number) >= 10**digits
        return f"{number:,.0f} {unit}" if whole else f"{number:.{digits}g} {unit}"
    return f"{seconds / size:,.2f} ± {deviation / size:,.2f} {unit}"
