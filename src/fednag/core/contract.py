"""Checks, before training, that a user's own method fulfils the contract."""

from __future__ import annotations

import inspect
from dataclasses import fields

import torch

from fednag.core.algorithm import Algorithm, News, Slopes, local_round
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError

SIZE, WORKERS = 5, 3  # of the vectors and stacks the rules are tried on
RULES = ("draw", "init", "memory", "begin", "step", "end", "settle", "update")


def check(algorithm: Algorithm) -> None:
    """Raise FednagError, naming class and rule, for what would fail later and less clearly."""
    kind = type(algorithm)
    known = set(getattr(kind, "__dataclass_fields__", {}))
    forgotten = sorted(set(inspect.get_annotations(kind)) - known)
    if forgotten:
        raise FednagError(
            kind.__name__,
            f"{', '.join(forgotten)} is not one of its numbers",
            "put @dataclass(frozen=True) above the class",
        )
    if hasattr(kind, "probes") or hasattr(kind, "probed"):
        raise FednagError(
            kind.__name__,
            "probes and probed are no more",
            "a method that asks for full gradients first has stages, e.g. "
            "(FullGradient(into='c'), self)",
        )
    for rule in RULES:
        _taken(kind, rule)
    try:
        _returned(algorithm)
        _repeats(algorithm)
    except FednagError:
        raise
    except Exception:
        return  # made-up numbers may not do for it; its own training will tell


def _taken(kind: type[Algorithm], rule: str) -> None:
    """Check that a rule takes as many arguments as it is called with."""
    wanted = list(inspect.signature(getattr(Algorithm, rule)).parameters)
    signature = inspect.signature(getattr(kind, rule))
    renamed = {"share": "news.share", "full": "data.gradient"} if rule in ("update", "end") else {}
    for old in renamed.keys() & set(signature.parameters):
        raise FednagError(
            f"{kind.__name__}.{rule}",
            f"takes {old}, which is {renamed[old]} now",
            f"it must take ({', '.join(wanted[1:])})",
        )
    try:
        signature.bind(*wanted)
    except TypeError:
        given = ", ".join(list(signature.parameters)[1:])
        asked = ", ".join(wanted[1:])
        raise FednagError(
            f"{kind.__name__}.{rule}", f"must take ({asked}), but takes ({given})"
        ) from None


def _returned(algorithm: Algorithm) -> None:
    """Run a round on a few numbers, and check that each rule returns what the next one needs."""
    name = type(algorithm).__name__
    if unknown := set(algorithm.draw(0, 1)) - {field.name for field in fields(algorithm)}:  # type: ignore[arg-type]
        raise FednagError(f"{name}.draw", f"gives {min(unknown)}, which is not one of its numbers")
    w = torch.linspace(0.3, 1.5, SIZE, dtype=torch.float64)
    server = algorithm.init(w)
    _holds(f"{name}.init", server, {"w", *algorithm.down}, "down")
    sent = server.pick(algorithm.down).map(lambda vector: vector.expand(1, -1))
    mine = algorithm.memory(w).map(lambda vector: vector.expand(1, -1))
    local = algorithm.step(algorithm.begin(sent, mine), torch.zeros_like, sent, mine)
    if type(algorithm).end is Algorithm.end:
        _holds(f"{name}.step", local, set(algorithm.up), "up")
    up, kept, _ = local_round(algorithm, sent, mine, [torch.zeros_like], Slopes(torch.zeros_like))
    _holds(f"{name}.end", up, set(algorithm.up), "up")
    for key, vector in up.items():
        if key not in algorithm.up:
            raise FednagError(
                f"{name}.end",
                f"returns {key}, which is not named in up",
                "name it there, or leave it out",
            )
        if vector.dim() != 2 or len(vector) != 1:
            raise FednagError(
                f"{name}.end",
                f"{key} has shape {tuple(vector.shape)} for one worker",
                "return a row for each worker, (n, d), or (n, 1) for a number",
            )
    if lost := sorted(set(mine) - set(kept)):
        raise FednagError(f"{name}.end", f"must keep {', '.join(lost)} too, as memory has it")
    mean = up.map(lambda vector: vector.reshape(-1))
    back = {"w", *set(algorithm.down) & set(algorithm.up)}  # what comes up to go down again
    _holds(f"{name}.update", algorithm.update(server, mean, News()), back, "down")


def _repeats(algorithm: Algorithm) -> None:
    """Check that workers' rounds give the same numbers again, and stacked the same as alone."""
    name = type(algorithm).__name__
    before = _given(algorithm)
    first, second = _round(algorithm, before), _round(algorithm, _given(algorithm))
    if not _alike(first, second):
        raise FednagError(
            name,
            "two rounds on the same numbers differ",
            "its rules must draw no random numbers and keep nothing outside their vectors",
        )
    if not all(_alike(now, then) for now, then in zip(before, _given(algorithm), strict=True)):
        raise FednagError(
            name, "its rules change the vectors they are given", "return new ones instead"
        )
    if not algorithm.elementwise:
        return
    rows = [
        _round(algorithm, tuple(bag.map(lambda v, i=i: v[i : i + 1]) for bag in before), i)  # type: ignore[misc]
        for i in range(WORKERS)
    ]
    alone = Vectors(**{key: torch.cat([row[key] for row in rows]) for key in rows[0]})
    if not _alike(first, alone):
        raise FednagError(
            name,
            "it says elementwise = True, but stacked workers get other numbers than alone (a "
            "norm, a sum or a sort over all of them?)",
            "leave that line out",
        )


def _given(algorithm: Algorithm) -> tuple[Vectors, Vectors]:
    """What some workers were sent, and what they keep: (n, d), all numbers different."""
    w = torch.linspace(0.3, 1.5, SIZE, dtype=torch.float64)
    server = algorithm.init(w)
    sent = server.pick(algorithm.down)
    scale = torch.linspace(0.8, 1.3, WORKERS, dtype=torch.float64).unsqueeze(1)
    return (
        sent.map(lambda vector: scale * vector + 0.01 * scale),
        algorithm.memory(w).map(lambda vector: scale * vector - 0.02 * scale),
    )


def _round(algorithm: Algorithm, given: tuple[Vectors, ...], worker: int | None = None) -> Vectors:
    sent, mine = given
    slopes = torch.linspace(1, 2, WORKERS, dtype=torch.float64).unsqueeze(1)
    own = slopes if worker is None else slopes[worker : worker + 1]

    def grad(w: Vector) -> Vector:
        return own * w.sin() + 0.1 * own

    up, kept, _ = local_round(algorithm, sent, mine, [grad, grad], Slopes(grad))
    together = {f"up.{name}": vector for name, vector in up.items()}
    together |= {f"kept.{name}": vector for name, vector in kept.items()}
    rows = WORKERS if worker is None else 1
    return Vectors(**together).map(lambda vector: vector.expand(rows, vector.shape[-1]).clone())


def _alike(a: Vectors, b: Vectors) -> bool:
    return set(a) == set(b) and all(
        a[key].shape == b[key].shape
        and torch.allclose(a[key], b[key], rtol=1e-12, atol=1e-12, equal_nan=True)
        for key in a
    )


def _holds(rule: str, found: Vectors, needed: set[str], where: str) -> None:
    if not isinstance(found, Vectors):
        raise FednagError(rule, f"must return Vectors, not {type(found).__name__}")
    if lacking := sorted(needed - set(found)):
        raise FednagError(
            rule,
            f"must return {', '.join(lacking)} too, named in {where}",
            f"it gave {', '.join(found) or 'nothing'}",
        )
