"""A user's code run by itself: its random draws and warnings are kept from the program.

Generators of random numbers and filters of warnings belong to the whole process, and a module's
attributes may be swapped while it is recorded: one thread at a time runs code of the user's.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

ALONE = threading.RLock()
_INSIDE = threading.local()


@contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings of a trial that the user did not ask for."""
    with ALONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def private_randomness(seed: int | None = None) -> Iterator[None]:
    """Random draws of torch, numpy and Python inside; outside, their generators stay as they are.

    With ``seed``, all three start from it.
    """
    with ALONE:
        depth = getattr(_INSIDE, "depth", 0)
        _INSIDE.depth = depth + 1
        try:
            yield from _private(seed)
        finally:
            _INSIDE.depth = depth


def is_private() -> bool:
    """Whether this thread's random draws are kept from the program already."""
    return getattr(_INSIDE, "depth", 0) > 0


def _seed_torch(seed: int) -> None:
    # Where there is no accelerator, torch notes the call for one, with a traceback: 2 ms each time.
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _private(seed: int | None) -> Iterator[None]:
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    # Nothing is drawn on a GPU before torch has been there.
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpus = torch.cuda.get_rng_state_all() if started else None
    if seed is not None:
        _seed_torch(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state[0])
        if on_gpus is not None:
            torch.cuda.set_rng_state_all(on_gpus)
        np.random.set_state(state[1])
        random.setstate(state[2])
