"""Plays rounds on functions small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fednag.core.algorithm import Algorithm, local_round, server_round
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
    for _ in range(rounds):
        if algorithm.probes:
            gradients = Vectors(**{str(i): slope(server.w) for i, slope in enumerate(full)})
            mean = sum(n * g for n, g in zip(sizes, gradients.values(), strict=True)) / sum(sizes)
            server = algorithm.probed(server, mean)
        sent = server.pick(algorithm.down)
        ups = []
        for i in range(len(sizes)):
            up, memories[i] = local_round(algorithm, sent, memories[i], [batch[i]] * tau, full[i])
            ups.append(up)
        mean_up = Vectors(
            **{
                name: sum(n * up[name] for n, up in zip(sizes, ups, strict=True)) / sum(sizes)
                for name in algorithm.up
            }
        )
        server = server_round(algorithm, server, mean_up, share=1.0)
    return server, memories
