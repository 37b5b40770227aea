"""Silos that misbehave, for benchmarks/deployment.py: each is a data-function of a silo's own.

A silo's operator may run what he likes on his machine, so these change what the silo answers. Each
is called once in a run and a trainer, so what changes while a run goes on is looked up when asked.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednag.core.vectors import Vectors
from fednag.flower import handlers
from fednag.flower.protocol import pack

SHAPE, CLASSES = (16,), 4


def honest(node_config: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Samples of four noisy classes; silos differ in how many they have."""
    silo = int(node_config["partition-id"])
    rng = np.random.default_rng([7, silo])
    y = rng.integers(0, CLASSES, 120 - 20 * silo)
    centres = np.random.default_rng(7).normal(size=(CLASSES, *SHAPE))
    return (centres[y] + rng.normal(size=(len(y), *SHAPE))).astype(np.float32), y


def hanging(node_config: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Stops in training while a certain file is there, and says in another that it has."""
    switch, trained = Path(str(node_config["switch"])), handlers.Silo.exchange

    def exchange(*given: Any) -> Any:
        while switch.exists():
            switch.with_suffix(".noticed").touch()
            time.sleep(0.1)
        return trained(*given)

    handlers.Silo.exchange = exchange
    return honest(node_config)


def lying(node_config: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Answers of training, and of nothing else, are changed as the file ``lie`` says."""
    truth = handlers.answer

    def answer(to: Any, about: Any, vectors: Any = None, metrics: Any = None) -> Any:
        lie = Path(str(node_config["lie"])).read_text().strip()
        if to.metadata.message_type != "train" or lie == "none":
            return truth(to, about, vectors, metrics)
        if lie == "nan":
            vectors = pack(Vectors(w=torch.full((68,), torch.nan), v=torch.zeros(68)))
        if lie == "shape":
            vectors = pack(Vectors(w=torch.zeros(67), v=torch.zeros(68)))
        if lie == "hash":
            about = {**about, "digest": "0" * 64}
        if lie == "samples":
            about = {**about, "samples": 10**12}
        return truth(to, about, vectors, metrics)

    handlers.answer = answer
    return honest(node_config)
