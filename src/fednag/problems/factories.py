"""Models of the user's own, made anew for every seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fednag.errors import FednagError

Factory = Callable[..., nn.Module]
"""A function of the seed that makes a model, or a class or function that takes nothing."""


def made(factory: Factory, seed: int) -> nn.Module:
    """The factory's model for ``seed``, which decides its random draws; no one else's change."""
    arguments = _arguments(factory, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module: Any = factory(*arguments[0], **arguments[1])
        except FednagError:
            raise
        except Exception as error:  # whatever a user's function raises
            first = (str(error).strip() or repr(error)).splitlines()[0]
            raise FednagError(
                f"model: {_name(factory)} failed to make one for seed {seed} ({first}); mend it"
            ) from error
    if not isinstance(module, nn.Module):
        raise FednagError(
            f"model: {_name(factory)} gave {type(module).__name__} for seed {seed}; let it return "
            "an nn.Module"
        )
    return module


def _arguments(factory: Factory, seed: int) -> tuple[tuple[int, ...], dict[str, int]]:
    try:
        takes = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:  # some that are written in C do not say
        raise _refusal(factory) from error
    needed = [
        each
        for each in takes
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    named = [each for each in takes if each.name == "seed" and each.kind != each.POSITIONAL_ONLY]
    if named and all(each.name == "seed" for each in needed):
        return (), {"seed": seed}
    if not needed:
        return (), {}
    # What a class of layers takes is a size, and a seed in its place would go unnoticed.
    inner = factory.func if isinstance(factory, partial) else factory
    if len(needed) > 1 or needed[0].kind == needed[0].KEYWORD_ONLY or isinstance(inner, type):
        raise _refusal(factory)
    return (seed,), {}


def _refusal(factory: Factory) -> FednagError:
    name = _name(factory)
    return FednagError(
        f"model: {name} does not take the seed alone, or nothing; give a function that does, e.g. "
        f"model=lambda seed: {name if name.isidentifier() else 'Net'}(…)"
    )


def _name(factory: Factory) -> str:
    inner = factory.func if isinstance(factory, partial) else factory
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "your function" if name == "<lambda>" else name
