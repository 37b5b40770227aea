"""Edges on Flower: an edge is a silo of the server's federation, with its own federation below.

On an edge run two programs. Its SuperNode, in the server's federation, is asked for a round as any
silo is; it puts what it was sent into a folder and waits for what comes out. The ServerApp of the
edge's own federation looks into that folder, has its silos do the rounds of an edge, as the
simulator's edges do, and puts the outcome back.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fednag.core.algorithm import BUFFERS
from fednag.core.executor import Answers, Exchange, Memories, Residues
from fednag.core.files import os_errors, write_atomically
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.flower import protocol
from fednag.flower.fleet import Fleet
from fednag.flower.protocol import DTYPES, PROTOCOL, Refusal, answer, compared, expect, versions
from fednag.flower.settings import Deployment, read_run_config
from fednag.flower.silo_data import number_of
from fednag.flower.silo_log import SiloLog
from fednag.runs.build import Builder
from fednag.simulate.engine import first_state
from fednag.simulate.run import Plan
from fednag.simulate.tiers import Edges, Tiered

ASKED, ANSWERED = "asked.safetensors", "answered.safetensors"
LOOK = 0.05  # seconds between two looks into the folder
FOLDER = "edge-folder"  # in the node config of an edge's SuperNode

app = ClientApp()


@app.query("hello")
def hello(given: Message, context: Context) -> Message:
    """Which edge this is, and how many samples are behind it."""
    return _careful(given, context, _hello)


@app.train()
def train(given: Message, context: Context) -> Message:
    """A round of the server: the federation below does it."""
    return _careful(given, context, _train)


Handler = Callable[[Message, Context, dict[str, Any], Deployment], Message]


def _careful(given: Message, context: Context, handler: Handler) -> Message:
    """What the server can put right goes back as a sentence."""
    try:
        about, deployment = protocol.about(given), read_run_config(context.run_config)
        expect(about, protocol=PROTOCOL, digest=deployment.digest)
        expect(about, **compared(deployment.flower.other_versions))
        return handler(given, context, about, deployment)
    except (FednagError, Refusal) as error:
        return answer(given, {"refused": str(error), "not-finite": False})


def _hello(
    given: Message, context: Context, about: dict[str, Any], deployment: Deployment
) -> Message:
    edge = number_of(context.node_config, deployment.silos)
    _folder_of(context.node_config)
    plan = Builder().plan(deployment.experiment)[1]
    samples = sum(len(plan.owned[worker]) for worker in plan.edges[0].groups[edge])
    label = {"protocol": PROTOCOL, "digest": deployment.digest, "silo": edge, "samples": samples}
    return answer(given, {**label, **versions()})


def _train(
    given: Message, context: Context, about: dict[str, Any], deployment: Deployment
) -> Message:
    edge = number_of(context.node_config, deployment.silos)
    expect(about, silo=edge)
    began, folder = time.monotonic(), _folder_of(context.node_config)
    nonce = secrets.token_hex(8)
    asked = {name: about[name] for name in ("token", "round", "start", "steps", "numbers")}
    _put(folder / ASKED, _tensors(protocol.arrays(given)), {**asked, "nonce": nonce})
    until = began + deployment.flower.deadline
    while (found := _taken(folder / ANSWERED, nonce)) is None:
        if time.monotonic() > until:
            raise Refusal(
                "the federation of this edge has not answered in "
                f"{deployment.flower.deadline:g} s; is it running, and looking into {folder}?"
            )
        time.sleep(LOOK)
    vectors, said = found
    if why := said.get("refused"):
        raise Refusal(str(why))
    label = {"digest": deployment.digest, "silo": edge, "round": about["round"]}
    seconds = {"seconds": round(time.monotonic() - began, 4), "steps": about["steps"]}
    return answer(given, label, protocol.pack(vectors), seconds)


def _folder_of(node_config: Mapping[str, Any]) -> Path:
    given = node_config.get(FOLDER)
    if not isinstance(given, str) or not Path(given).is_dir():
        raise FednagError(
            FOLDER,
            f"{given!r} is no folder",
            "name the one that the edge's own federation looks into (flower.edge-folder)",
            source="node config",
        )
    return Path(given)


class EdgeFleet(Fleet):
    """Edges on a grid, each asked for what its workers are to do."""

    def __init__(self, grid: Grid, deployment: Deployment, plan: Plan, *rest: Any) -> None:
        super().__init__(grid, deployment, plan, *rest)
        sizes = [len(held) for held in plan.owned]
        self.groups = plan.edges[0].groups
        self.membership.sizes = {
            edge: sum(sizes[worker] for worker in members)
            for edge, members in enumerate(self.groups)
        }

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        edges = np.arange(len(self.groups))
        first = np.array([int(asked.starts[members].min()) for members in self.groups])
        steps = np.full_like(edges, asked.steps.max())
        found = super().exchange(
            replace(asked, workers=edges, starts=first, steps=steps), memories, residues
        )
        behind = {edge: tuple(members.tolist()) for edge, members in enumerate(self.groups)}
        return replace(
            found,
            missed=sum((behind[edge] for edge in found.missed), ()),
            refused=sum((behind[edge] for edge in found.refused), ()),
        )


class _Below(Fleet):
    """The silos behind one edge, whose numbers are those of the run's workers."""

    members: tuple[int, ...] = ()

    def _assemble(self) -> None:
        flower = self.deployment.flower
        self.tell(f"waiting for silos {', '.join(map(str, self.members))}")
        self.membership.gather(self.members, flower.join)
        if len(self.membership.present) < self._quorum(len(self.members)):
            raise FednagError(
                "flower.join",
                f"{len(self.membership.present)} of {len(self.members)} silos of this edge came in "
                f"{flower.join:g} s, too few for a quorum",
                "start the others and run again",
            )


def serve_edge(grid: Grid, deployment: Deployment, tell: Callable[[str], None] = print) -> Path:
    """Do what an edge is asked in its folder, with the silos on ``grid``, until the run is over."""
    flower, folder = deployment.flower, Path(deployment.flower.edge_folder)
    plan = Builder().plan(deployment.experiment)[1]
    (tier,) = plan.edges
    if flower.edge >= len(tier.groups):
        raise FednagError(
            "flower.edge",
            f"{flower.edge} is not one of the {len(tier.groups)} edges",
            f"they are numbered from 0 to {len(tier.groups) - 1}",
        )
    with os_errors(folder, "cannot be made", "choose another flower.edge-folder"):
        folder.mkdir(parents=True, exist_ok=True)
    members = tier.groups[flower.edge]
    below = _Below(grid, deployment, plan, "", SiloLog(), tell)
    below.members = tuple(members.tolist())
    edges = Edges((members,), tier.tau, tier.pi)
    memories: dict[int, Vectors] = {}
    done: object = None
    if (old := _read(folder / ANSWERED)) is not None:
        done = old[1].get("nonce")
    with below:
        edge = Tiered(below, plan.scheme, edges, plan.setting)
        while True:
            sent, said = _next(folder, done, flower.deadline)
            done, number = said["nonce"], int(said["round"])
            below.token = str(said["token"])
            try:
                asked = _exchange(sent, said, plan, members)
                found = edge.exchange(asked, memories, {})
                if found.total is None:
                    raise Refusal("no silo of this edge gave an answer that can be used")
                memories |= found.memories
                up = plan.scheme.aggregator.finish(found.total, None)
                like = plan.problem.initial
                _put(folder / ANSWERED, up.map(lambda v: v.to(like)), {"nonce": done})  # noqa: B023
                tell(f"round {number} of the server is done, {found.size} samples")
            except Refusal as refusal:
                tell(f"round {number} of the server: {refusal}")
                _put(folder / ANSWERED, {}, {"nonce": done, "refused": str(refusal)})
            if number * plan.tau >= plan.iterations:
                return folder


def _exchange(sent: Vectors, said: Mapping[str, Any], plan: Plan, members: Any) -> Exchange:
    """What the server asks of this edge's silos, checked."""
    first, (stage,) = first_state(plan.algorithm, plan.problem), plan.scheme.stages
    like = first.pick([*stage.down, *[BUFFERS] * (BUFFERS in first)])
    if {n: (v.shape, v.dtype) for n, v in sent.items()} != {
        n: (v.shape, v.dtype) for n, v in like.items()
    }:
        raise Refusal(f"what the server sent is not {', '.join(like)} of this model")
    steps, start, number = (int(said[name]) for name in ("steps", "start", "round"))
    if not 1 <= steps <= plan.tau or number < 1 or start < 0:
        raise Refusal(f"the server asks for {steps} iterations, and {plan.tau} are agreed")
    each = np.ones_like(members)
    numbers = protocol.numbers(said["numbers"], stage)
    return Exchange(stage, 0, numbers, number, sent, members, steps * each, start * each)


def _next(folder: Path, done: object, seconds: float) -> tuple[Vectors, dict[str, Any]]:
    """The next thing that is asked."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = _read(folder / ASKED)
        if found is not None and found[1].get("nonce") != done:
            return found
        time.sleep(LOOK)
    raise FednagError(
        "flower.edge-folder",
        f"nothing was asked in {folder} for {seconds:g} s",
        "see whether the server's run goes on, or raise flower.deadline",
    )


def _tensors(record: ArrayRecord) -> Vectors:
    """Vectors as they came, whatever their lengths."""
    types = {name: dtype for dtype, name in DTYPES.items()}
    try:
        return Vectors(
            **{
                name: torch.frombuffer(bytearray(array.data), dtype=types[array.dtype])
                for name, array in record.items()
            }
        )
    except (KeyError, ValueError) as error:
        raise Refusal("it holds no vectors") from error


def _put(path: Path, vectors: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    tensors = {name: vector.contiguous() for name, vector in vectors.items()}
    tensors = tensors or {"none": torch.zeros(0)}
    with os_errors(path, "cannot be written", "make room, or choose another folder"):
        write_atomically(path, save(tensors, {"said": json.dumps(dict(said))}))


def _read(path: Path) -> tuple[Vectors, dict[str, Any]] | None:
    """What a file holds; None while there is none."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            said = json.loads((file.metadata() or {})["said"])
            return Vectors(**{name: file.get_tensor(name) for name in file.keys()}), said  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError):
        return None


def _taken(path: Path, nonce: str) -> tuple[Vectors, dict[str, Any]] | None:
    """The answer to what was asked with ``nonce``, once it is there."""
    found = _read(path)
    return found if found is not None and found[1].get("nonce") == nonce else None
