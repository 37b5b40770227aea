"""Whether a method of one's own fulfils the contract, told before it trains."""

from __future__ import annotations

import inspect

import torch

from fednag.algorithm import Algorithm, local_round
from fednag.errors import FednagError
from fednag.vectors import Vectors

RULES = ("init", "memory", "probed", "begin", "step", "end", "update")


def check(algorithm: Algorithm) -> None:
    """One sentence, naming class and rule, for what would fail later and less clearly."""
    kind = type(algorithm)
    fields = set(getattr(kind, "__dataclass_fields__", {}))
    forgotten = sorted(set(inspect.get_annotations(kind)) - fields)
    if forgotten:
        raise FednagError(
            f"{kind.__name__}: {', '.join(forgotten)} is not one of its numbers; put "
            "@dataclass(frozen=True) above the class"
        )
    for rule in RULES:
        _taken(kind, rule)
    try:
        _returned(algorithm)
    except FednagError:
        raise
    except Exception:
        return  # two made-up numbers may not do for it; its own training will tell


def _taken(kind: type[Algorithm], rule: str) -> None:
    """A rule is called with its arguments in their order."""
    wanted = list(inspect.signature(getattr(Algorithm, rule)).parameters)
    signature = inspect.signature(getattr(kind, rule))
    try:
        signature.bind(*wanted)
    except TypeError:
        given = ", ".join(list(signature.parameters)[1:])
        asked = ", ".join(wanted[1:])
        raise FednagError(
            f"{kind.__name__}.{rule}: must take ({asked}), but takes ({given})"
        ) from None


def _returned(algorithm: Algorithm) -> None:
    """A round on two numbers: are the vectors there that the next rule needs?"""
    name = type(algorithm).__name__
    w = torch.ones(2)
    server = algorithm.init(w)
    _holds(f"{name}.init", server, {"w", *algorithm.down}, "down")
    if algorithm.probes:
        server = algorithm.probed(server, w)
        _holds(f"{name}.probed", server, {"w", *algorithm.down}, "down")
    sent = server.pick(algorithm.down).map(lambda vector: vector.expand(1, -1))
    mine = algorithm.memory(w).map(lambda vector: vector.expand(1, -1))
    local = algorithm.step(algorithm.begin(sent, mine), torch.zeros_like, sent, mine)
    if type(algorithm).end is Algorithm.end:
        _holds(f"{name}.step", local, set(algorithm.up), "up")
    up, _ = local_round(algorithm, sent, mine, [torch.zeros_like], torch.zeros_like)
    _holds(f"{name}.end", up, set(algorithm.up), "up")
    mean = up.map(lambda vector: vector.reshape(-1))
    _holds(f"{name}.update", algorithm.update(server, mean, 1.0), {"w", *algorithm.down}, "down")


def _holds(rule: str, found: Vectors, needed: set[str], where: str) -> None:
    if not isinstance(found, Vectors):
        raise FednagError(f"{rule}: must return Vectors, not {type(found).__name__}")
    if lacking := sorted(needed - set(found)):
        raise FednagError(
            f"{rule}: must return {', '.join(lacking)} too, named in {where}; "
            f"it gave {', '.join(found) or 'nothing'}"
        )
