"""Random draws of a user's code, kept from the rest of the program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def private_randomness(seed: int | None = None) -> Iterator[None]:
    """Random draws of torch, numpy and Python inside; outside, their generators stay as they are.

    With ``seed``, all three start from it.
    """
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    if seed is not None:
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])
