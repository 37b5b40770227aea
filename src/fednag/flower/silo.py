"""A silo's half of a run: the simulator's engine with one worker, on the data that are here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from flwr.app import ArrayRecord

from fednag.controllers import Constant
from fednag.core.algorithm import BUFFERS, lengths
from fednag.core.executor import Exchange
from fednag.core.keys import DOWNLINK, Draws
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.flower.protocol import METRIC, Refusal, decoded, layout
from fednag.flower.settings import Deployment
from fednag.flower.silo_data import held_by, number_of
from fednag.privacy.promise import secretly
from fednag.problems.metrics import fitting
from fednag.runs.build import Builder, metrics_of, resolve_device
from fednag.simulate.engine import Engine, Uploads, first_memory, is_checked
from fednag.simulate.evaluator import Evaluator


class Silo:
    """One worker of a run, with its data."""

    def __init__(self, deployment: Deployment, node_config: Mapping[str, Any]) -> None:
        experiment = deployment.experiment
        self.number = number_of(node_config, deployment.silos)
        self.algorithm = deployment.algorithm
        holding = held_by(deployment, node_config)
        device = resolve_device(str(node_config.get("device", experiment.engine.device)))
        self.problem = Builder().problem(experiment, holding.dataset, device)
        self.samples = len(holding.samples)
        draws = Draws(
            experiment.seed, [self.samples], experiment.training.batch, numbers=[self.number]
        )
        self.scheme = secretly(deployment.scheme)
        self.engine = Engine(
            self.problem, self.scheme, [holding.samples], draws, chunk=1, threads=1
        )
        if self.scheme.uplink.remembers:
            self._check_memory(node_config)
        self.owned = [holding.samples]
        # Those of its own test samples, if it has any.
        chosen = metrics_of(experiment.evaluation, {})
        self.metrics = fitting(chosen, self.problem.dataset.classes is not None, tests=True)
        self.experiment = experiment

    def _check_memory(self, node_config: Mapping[str, Any]) -> None:
        """What the uplink's transforms leave out must be kept."""
        if "memory-folder" not in node_config:
            raise FednagError(
                "uplink",
                "one of its transforms keeps what it left out, and this silo has nowhere to keep "
                "it",
                "give its node-config a memory-folder",
            )

    def like(self, names: tuple[str, ...]) -> Vectors:
        """Names, lengths and types of vectors that come down."""
        problem = self.problem
        first = self.algorithm.init(problem.initial)
        lengths = {name: len(first.get(name, problem.initial)) for name in names}
        if problem.batch_norm == "averaged" and len(problem.buffers):
            lengths[BUFFERS] = len(problem.buffers)
        return layout(lengths, problem.dtype)

    def received(self, record: ArrayRecord, number: int, place: int) -> Vectors:
        """What the server sent for a stage of a round."""
        key = self.experiment.seed, DOWNLINK, number, place
        return decoded(self.scheme.downlink, record, self.like(self.sent(place)), *key)

    @property
    def same_steps(self) -> bool:
        """All silos of a round do the same number of local iterations."""
        return isinstance(self.scheme.controller, Constant)

    @property
    def most_steps(self) -> int:
        """Local iterations a server may ask for: tau, unless a controller decides."""
        training = self.experiment.training
        return training.tau if self.same_steps else training.iterations

    def sent(self, place: int) -> tuple[str, ...]:
        """The vectors that come down in a stage."""
        stage, controller = self.scheme.stages[place], self.scheme.controller
        read = controller.reads if place >= len(controller.before) else ()
        return tuple(dict.fromkeys((*stage.down, *read)))

    def fresh(self) -> Vectors:
        """The memory of a worker that has none yet."""
        return first_memory(self.algorithm, self.problem)

    def fresh_residue(self, place: int) -> Vectors:
        """What its transforms keep of a stage's uploads before the first one."""
        uplink, stage, w = self.scheme.uplink, self.scheme.stages[place], self.problem.initial
        if not uplink.remembers:
            return Vectors()
        sizes = lengths(self.algorithm, stage, w)
        if BUFFERS in self.like(()) and not stage.asks:
            sizes[BUFFERS] = len(self.problem.buffers)
        return uplink.init(layout(sizes, w.dtype)).map(torch.clone)

    def exchange(
        self, asked: Exchange, mine: Vectors, left: Vectors
    ) -> tuple[Uploads, Vectors, float]:
        """(what goes up, the new memory, seconds); ``left`` is what transforms have kept."""
        began = time.monotonic()
        asked = replace(asked, sent=self._here(asked.sent))
        # A silo starts anew every round, and was checked before.
        checks = nullcontext() if is_checked(asked.round) else self.problem.trusted()
        memories = {0: self._here(mine)} if mine else {}
        residues = {(0, asked.place): self._here(left)} if left else {}
        with self.engine, checks:
            if is_checked(asked.round):
                self.problem.check_again()
            found = self.engine.uploads(asked, memories, residues)
        if not found.finite.all():
            raise Refusal(self._unusable(found.up), not_finite=True)
        kept = found.kept.map(lambda rows: rows[0].clone()) if found.kept else mine
        return found, kept, time.monotonic() - began

    def _unusable(self, up: Vectors) -> str:
        """Why an update is not sent."""
        largest = max(float(vector.abs().max()) for vector in up.values())
        if not isfinite(largest):
            return "the update is not finite"
        limit = getattr(self.scheme.aggregator, "range", 0.0)
        return f"the update has a number of {largest:.4g}; raise aggregator.range from {limit:g}"

    def _here(self, sent: Vectors) -> Vectors:
        return sent.map(lambda vector: vector.to(self.problem.device))

    def evaluate(self, sent: Vectors, mine: Vectors) -> dict[str, float]:
        """The model's losses, accuracies and metrics here, and on how many test samples."""
        sent = self._here(sent)
        held = mine if BUFFERS in mine else sent
        buffers = held.get(BUFFERS, self.problem.initial_buffers)
        with self.engine:
            found = Evaluator(
                self.engine,
                self.owned,
                self.experiment.seed,
                self.experiment.evaluation.samples,
                metrics=self.metrics,
            )(sent.w, buffers)
        numbers = {
            "loss": found.loss,
            "train_accuracy": found.train_accuracy,
            "accuracy": found.accuracy,
            "test_loss": found.test_loss,
            **{f"{METRIC}{name}": value for name, value in found.metrics.items()},
        }
        known = {name: float(number) for name, number in numbers.items() if number is not None}
        return {**known, "tests": len(self.problem.test_x)}
