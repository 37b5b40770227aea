"""Plays rounds on functions small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fednag.core.algorithm import Algorithm, News, Slopes, local_round, server_round
from fednag.core.vectors import Vector, Vectors

Slope = Callable[[Vector], Vector]


def play(
    algorithm: Algorithm,
    *,
    rounds: int,
    tau: int,
    sizes: Sequence[int],
    batch: Sequence[Slope],
    full: Sequence[Slope],
    w: float = 1.0,
) -> tuple[Vectors, list[Vectors]]:
    """The server's state and the workers' memories after some rounds, one worker at a time."""
    start = torch.tensor([w], dtype=torch.float64)
    server = algorithm.init(start)
    memories = [algorithm.memory(start) for _ in sizes]
    for number in range(rounds):
        for stage in algorithm.stages:
            if drawn := stage.draw(0, number + 1):
                stage = replace(stage, **drawn)  # type: ignore[type-var]
            sent = server.pick(stage.down)
            ups = []
            for i in range(len(sizes)):
                grads = [] if stage.asks else [batch[i]] * tau
                up, kept, _ = local_round(stage, sent, memories[i], grads, Slopes(full[i]))
                memories[i] = stage.settle(kept, up)
                ups.append(up)
            mean_up = Vectors(
                **{
                    name: sum(n * up[name] for n, up in zip(sizes, ups, strict=True)) / sum(sizes)
                    for name in stage.up
                }
            )
            server = server_round(stage, server, mean_up, News(steps=tau, round=number))
    return server, memories
