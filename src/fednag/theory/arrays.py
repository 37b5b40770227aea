"""Bounds over arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from fednag.theory.bounds import Bound, Kind, Setting
from fednag.theory.gaps import Real


def over(rule: Callable[..., Bound | float | None], kind: Kind = "tight", **numbers: Real) -> Real:
    """``theorem2``, ``theorem3``, ``floor``, ``eta_bar`` or ``iterations_to`` for floats or arrays.

    Takes a setting's numbers and the rule's own (T, epsilon, gap) by name, broadcasts them, and
    gives nan wherever there is no number; the rule itself says why.

    >>> from fednag.theory import floor, over
    >>> known = dict(eta=0.01, gamma=0.9, beta=1.0, rho=1.0, delta=0.1, p=0.5, omega=1.0)
    >>> over(floor, tau=[1, 2, 5], **known).round(4).tolist()
    [0.0, 0.0354, 0.0991]
    >>> float(over(floor, "paper", tau=5, **known))
    nan
    """
    arrays = np.broadcast_arrays(*(np.asarray(number, float) for number in numbers.values()))
    found = np.empty(arrays[0].shape)
    for place in np.ndindex(found.shape):
        point: dict[str, Any] = {
            name: float(array[place]) for name, array in zip(numbers, arrays, strict=True)
        }
        setting = Setting(**{field.name: point.pop(field.name) for field in fields(Setting)})
        result = rule(setting=setting, kind=kind, **point)
        value = result.value if isinstance(result, Bound) else result
        found[place] = np.nan if value is None else value
    return found[()]
