"""The ClientApp: what a silo answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fednag.core.executor import Exchange
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
from fednag.flower.signing import Signer
from fednag.flower.silo import Silo
from fednag.flower.silo_memory import Memory
from fednag.runs.ledger import statement

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
    signer = Signer.of(context.node_config)
    return answer(
        given,
        {
            **({"key": signer.public} if signer else {}),
            "protocol": PROTOCOL,
            "digest": deployment.digest,
            "silo": silo.number,
            "samples": silo.samples,
            **versions(),
        },
    )


@app.train()
@_careful
def train(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The silo's side of one exchange."""
    silo, label = _asked(about, context)
    number, place, start, steps, accepted = (
        _whole(about, key) for key in ("round", "stage", "start", "steps", "accepted")
    )
    if place >= len(silo.scheme.stages):
        raise Refusal(f"its stage is {place}, and a round has {len(silo.scheme.stages)}")
    if steps > silo.most_steps:
        raise Refusal(f"it asks for {steps} iterations, and at most {silo.most_steps} are agreed")
    stage = silo.scheme.stages[place]
    sent = silo.received(protocol.arrays(given), number, place)
    memory = Memory(context.state, context.node_config, str(about.get("token")), silo.fresh())
    mine, lost = memory.after(accepted)
    one = np.zeros(1, dtype=np.int64)
    numbers = protocol.numbers(about.get("numbers"), stage)
    exact = bool(about.get("differences"))
    asked = Exchange(stage, place, numbers, number, sent, one, one + steps, one + start, 0, exact)
    found, kept, seconds = silo.exchange(asked, mine)
    if not stage.asks:
        memory.keep(number, kept)
    told = {f"{protocol.TOLD}{name}": float(rows[0]) for name, rows in found.told.items()}
    said = {"seconds": round(seconds, 4), "steps": steps, "memory_lost": int(lost), **told}
    back = pack(found.wires[0] if found.wires else found.up)
    signer = Signer.of(context.node_config)
    if signer and silo.experiment.ledger.kind == "chain":
        digests = {"sent": protocol.digest(protocol.arrays(given)), "up": protocol.digest(back)}
        entry = {**digests, "worker": silo.number, "samples": silo.samples}
        entry |= {"round": number, "stage": place, "steps": steps}
        label["signature"] = signer.sign(statement(str(about.get("token")), entry))
    return answer(given, label, back, said)


@app.evaluate()
@_careful
def evaluate(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The model received, measured on the silo's data."""
    silo, label = _asked(about, context)
    sent = unpack(protocol.arrays(given), silo.like(("w",)))
    memory = Memory(context.state, context.node_config, str(about.get("token")), silo.fresh())
    mine, _ = memory.after(_whole(about, "accepted"))
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
