"""The ClientApp: what a silo answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fednag.errors import FednagError
from fednag.flower import protocol
from fednag.flower.protocol import (
    PROTOCOL,
    Refusal,
    answer,
    compared,
    expect,
    pack,
    unpack,
    versions,
)
from fednag.flower.settings import Deployment, read_run_config
from fednag.flower.silo import Silo
from fednag.flower.silo_memory import Memory

Handler = Callable[[Message, Context], Message]

app = ClientApp()


def _careful(handler: Callable[[Message, Context, dict[str, Any]], Message]) -> Handler:
    """What the server can put right goes back as a sentence; the rest is a crash, and logged."""

    @wraps(handler)
    def handle(given: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        try:
            return handler(given, context, protocol.about(given))
        except (FednagError, Refusal) as error:
            not_finite = getattr(error, "not_finite", False)
            return answer(given, {"refused": str(error), "not-finite": not_finite})

    return handle


@app.query("hello")
@_careful
def hello(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """Who this is; refused unless both sides have the same configuration and versions."""
    deployment = _agreed(about, context)
    silo = Silo(deployment, context.node_config)
    return answer(
        given,
        {
            "protocol": PROTOCOL,
            "digest": deployment.digest,
            "silo": silo.number,
            "samples": silo.samples,
            **versions(),
        },
    )


@app.query("probe")
@_careful
def probe(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The full gradient at the model received."""
    silo, label = _asked(about, context)
    sent = unpack(protocol.arrays(given), silo.with_buffers(("w",)), silo.shape)
    return answer(given, label, pack(silo.probe(sent)), {})


@app.train()
@_careful
def train(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The silo's half of a round."""
    silo, label = _asked(about, context)
    number, start, steps, accepted = (
        _whole(about, key) for key in ("round", "start", "steps", "accepted")
    )
    if steps > silo.experiment.training.tau:
        raise Refusal(f"it asks for {steps} iterations, and tau is {silo.experiment.training.tau}")
    sent = unpack(protocol.arrays(given), silo.with_buffers(silo.algorithm.down), silo.shape)
    memory = Memory(context.state, context.node_config, str(about.get("token")), silo.fresh())
    mine, lost = memory.after(accepted, silo.shape)
    up, kept, seconds = silo.train(sent, mine, start, steps, number)
    memory.keep(number, kept)
    found = {"seconds": round(seconds, 4), "steps": steps, "memory_lost": int(lost)}
    return answer(given, label, pack(up), found)


@app.evaluate()
@_careful
def evaluate(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The model received, measured on the silo's data."""
    silo, label = _asked(about, context)
    sent = unpack(protocol.arrays(given), silo.with_buffers(("w",)), silo.shape)
    memory = Memory(context.state, context.node_config, str(about.get("token")), silo.fresh())
    mine, _ = memory.after(_whole(about, "accepted"), silo.shape)
    return answer(given, label, None, silo.evaluate(sent, mine))


def _agreed(about: dict[str, Any], context: Context) -> Deployment:
    """The deployment, if the server has the same configuration and versions."""
    deployment = read_run_config(context.run_config)
    expect(about, protocol=PROTOCOL)
    expect(about, **compared(deployment.flower.other_versions), digest=deployment.digest)
    return deployment


def _asked(about: dict[str, Any], context: Context) -> tuple[Silo, dict[str, Any]]:
    """The silo that is meant, and the label of its answer."""
    deployment = _agreed(about, context)
    silo = Silo(deployment, context.node_config)
    expect(about, silo=silo.number)
    label = {"digest": deployment.digest, "silo": silo.number, "samples": silo.samples}
    return silo, {**label, "round": _whole(about, "round")}


def _whole(about: dict[str, Any], key: str) -> int:
    number = about.get(key)
    if type(number) is not int or not 0 <= number < 2**40:
        raise Refusal(f"its {key} is {protocol.one_line(number, 60)}, not a whole number")
    return number
