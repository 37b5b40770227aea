"""FedNAG on logistic regression in JAX: workers by vmap, iterations by scan, a round by one jit.

Images stay on the device as bytes; a round's batches are drawn by permuting each worker's own
samples, as fednag does, and fetched within the step.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from turnstile import Turnstile
from workload import LR, MOMENTUM, Work


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    images, labels = work.arrays()
    x, y = jnp.asarray(images.reshape(len(labels), -1)), jnp.asarray(labels.astype(np.int32))
    held = [work.share(worker, len(labels)) for worker in range(work.workers)]

    def loss(weights: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        scores = x @ weights[0].T + weights[1]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()

    def worker(state: tuple, batches: jax.Array) -> tuple:  # type: ignore[type-arg]
        def step(state: tuple, index: jax.Array) -> tuple:  # type: ignore[type-arg]
            weights, momenta = state
            features = x[index].astype(jnp.float32) * (1 / 255)
            slopes = jax.grad(loss)(weights, features, y[index])
            momenta = tuple(MOMENTUM * v + g for v, g in zip(momenta, slopes, strict=True))
            weights = tuple(
                w - LR * (g + MOMENTUM * v)
                for w, g, v in zip(weights, slopes, momenta, strict=True)
            )
            return (weights, momenta), None

        return lax.scan(step, state, batches)[0]

    @jax.jit
    def play(state: tuple, batches: jax.Array) -> tuple:  # type: ignore[type-arg]
        found = jax.vmap(worker, in_axes=(None, 0))(state, batches)
        return jax.tree.map(lambda value: value.mean(0), found)

    rng = np.random.default_rng(0)
    orders: list[np.ndarray] = [np.empty(0, dtype=np.int32)] * work.workers
    zeros = (jnp.zeros((10, x.shape[1])), jnp.zeros(10))
    state = (zeros, zeros)
    needed = work.tau * work.batch
    going = True
    while going:
        drawn = []
        for number, mine in enumerate(held):
            while len(orders[number]) < needed:
                orders[number] = np.concatenate([orders[number], rng.permutation(mine)])
            drawn.append(orders[number][:needed].reshape(work.tau, work.batch))
            orders[number] = orders[number][needed:]
        state = jax.block_until_ready(play(state, jnp.asarray(np.stack(drawn))))
        going = turnstile.passed()


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
