"""The Synthetic(alpha, beta) data of the FedProx paper (Li et al., MLSys 2020)."""

from __future__ import annotations

import math

import numpy as np
import torch

from fednag.data.dataset import Dataset
from fednag.errors import FednagError

FEATURES = 60
CLASSES = 10
MOST_SAMPLES = 2000  # the log-normal tail reaches millions: one worker must not fill the memory
MOST_WORKERS = 10_000
_STREAM = 0x5E7  # keeps these draws apart from others made with the same seed


def synthetic(alpha: float = 1.0, beta: float = 1.0, workers: int = 30, seed: int = 0) -> Dataset:
    """Classification data where each worker has its own model (alpha) and its own inputs (beta).

    As the paper writes it, `alpha` and `beta` are variances. Worker k labels its samples
    argmax(W_k x + b_k) with W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha); its inputs are
    x ~ N(v_k, Sigma), Sigma_jj = j^-1.2, v_k ~ N(B_k, 1), B_k ~ N(0, beta). It has 50 samples plus
    a log-normal(4, 2) draw, at most `MOST_SAMPLES` in all; the last fifth is for testing.

    `alpha` hardly matters, here as in the paper: u_k raises the score of every class alike, which
    no softmax notices. The workers' models differ through the unit variance of W_k and b_k.
    """
    for field, value in (("alpha", alpha), ("beta", beta)):
        if not _is_number(value) or not math.isfinite(value) or value < 0:
            raise FednagError(f"{field} is {value!r}, a variance: give a finite number from 0 up")
    if not _is_integer(workers) or not 1 <= workers <= MOST_WORKERS:
        raise FednagError(
            f"workers is {workers!r}: give a whole number from 1 to {MOST_WORKERS} "
            "for the synthetic data"
        )
    if not _is_integer(seed) or seed < 0:
        raise FednagError(f"seed is {seed!r}: give a whole number from 0 up")

    spread = np.arange(1, FEATURES + 1) ** -0.6
    train_x, train_y, test_x, test_y, owners = [], [], [], [], []
    for k in range(workers):
        # A stream per worker: worker k stays the same whatever the number of workers.
        rng = np.random.default_rng([seed, _STREAM, k])
        count = min(50 + int(rng.lognormal(4.0, 2.0)), MOST_SAMPLES)
        u = math.sqrt(alpha) * rng.standard_normal()
        weights = u + rng.standard_normal((CLASSES, FEATURES))
        biases = u + rng.standard_normal(CLASSES)
        centre = math.sqrt(beta) * rng.standard_normal() + rng.standard_normal(FEATURES)
        x = centre + spread * rng.standard_normal((count, FEATURES))
        y = np.argmax(x @ weights.T + biases, axis=1)

        train = count - max(1, count // 5)
        train_x.append(x[:train].astype(np.float32))
        train_y.append(y[:train])
        test_x.append(x[train:].astype(np.float32))
        test_y.append(y[train:])
        owners.append(np.full(train, k))

    return Dataset(
        name="synthetic",
        x=torch.from_numpy(np.concatenate(train_x)),
        y=torch.from_numpy(np.concatenate(train_y).astype(np.int64)),
        test_x=torch.from_numpy(np.concatenate(test_x)),
        test_y=torch.from_numpy(np.concatenate(test_y).astype(np.int64)),
        classes=CLASSES,
        owners=torch.from_numpy(np.concatenate(owners).astype(np.int64)),
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)
