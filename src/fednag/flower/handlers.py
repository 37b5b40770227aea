"""What a silo answers to messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fednag.aggregators import Secure
from fednag.core.executor import Exchange
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.flower import masked, protocol
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
from fednag.flower.settings import APP, Deployment, read_run_config
from fednag.flower.signing import Signer
from fednag.flower.silo import Silo
from fednag.flower.silo_data import number_of, version_of
from fednag.flower.silo_memory import Memory
from fednag.runs.ledger import statement
from fednag.simulate.engine import Uploads

Handler = Callable[[Message, Context], Message]

app = ClientApp()


@dataclass
class Cache:
    """The silo that was made last, where one process answers many messages."""

    room: int = 0
    held: dict[str, Silo] = field(default_factory=dict)

    def silo(self, deployment: Deployment, context: Context) -> Silo:
        """The silo, made anew if the run, the configuration or the data are others than before."""
        if not self.room:
            return Silo(deployment, context.node_config)
        names = deployment.digest, dict(context.node_config), version_of(context.node_config)
        key = json.dumps([context.run_id, *names])
        if key not in self.held:
            self.held.clear()  # before the next one takes memory
            self.held[key] = Silo(deployment, context.node_config)
        return self.held[key]


CACHE = Cache()


def answered(given: Message, context: Context, folder: Path) -> Message:
    """The answer to a message for the app in a folder."""
    token = APP.set(folder)
    try:
        return app(given, context)
    finally:
        APP.reset(token)


def _careful(handler: Callable[[Message, Context, dict[str, Any]], Message]) -> Handler:
    """What the server can put right goes back as a sentence; the rest is a crash, and logged."""

    @wraps(handler)
    def handle(given: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        try:
            return handler(given, context, protocol.about(given))
        except (FednagError, Refusal) as error:
            return answer(given, _refused(error))

    return handle


def _refused(error: FednagError | Refusal) -> dict[str, Any]:
    return {"refused": str(error), "not-finite": getattr(error, "not_finite", False)}


@app.query("hello")
@_careful
def hello(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """Who this is; refused unless both sides have the same configuration and versions."""
    deployment = _agreed(about, context)
    silo = CACHE.silo(deployment, context)
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
    """The silo's side of one exchange; and before it the measures of the model, if asked for."""
    silo, label = _asked(about, context)
    if isinstance(silo.scheme.aggregator, Secure):
        raise Refusal("with the aggregator secure, a silo sends masked updates alone")
    sent = protocol.arrays(given)
    measures = None
    if about.get("evaluate") is True:
        received = silo.received(sent, _whole(about, "round"), _stage(about, silo))
        measures = _measures(silo, context, about, received)
    try:
        found, said = _trained(silo, context, about, sent)
    except (FednagError, Refusal) as error:
        return answer(given, label | _refused(error), measures=measures)
    back = pack(found.wires[0] if found.wires else found.up)
    label |= _signature(silo, context, about, sent, back)
    return answer(given, label, back, said, measures)


@app.query("keys")
@_careful
def keys(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The first step of a secure sum: keys of this sum alone."""
    deployment, label = _labelled(about, context)
    signer = Signer.of(context.node_config)
    with masked.seat(deployment, context, about, begins=True) as member:
        advertised = member.advertise(signer.sign_bytes if signer else None)
    return answer(given, label, pack({masked.KEYS: masked.blob(advertised)}))


@app.query("shares")
@_careful
def shares(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The second step: shares of this silo's secrets, each sealed for one of the others."""
    deployment, label = _labelled(about, context)
    known = masked.known_to(context.node_config, deployment.silos)
    with masked.seat(deployment, context, about) as member:
        roster = masked.by_silo(protocol.arrays(given), deployment.silos)
        seed, sealed = member.share(roster, known)
    contents = {masked.SEED: masked.blob(seed), masked.SHARES: masked.blob(sealed)}
    return answer(given, label, pack(contents))


@app.train("masked")
@_careful
def train_masked(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The third step: the silo's side of one exchange, and its update under masks."""
    silo, label = _asked(about, context)
    deployment = read_run_config(context.run_config)
    assert deployment.secure is not None
    record = dict(protocol.arrays(given))
    if not about.get("steps") and not silo.scheme.stages[_stage(about, silo)].asks:
        raise Refusal("it asks for no iterations; beside such updates, others could be seen")
    with masked.seat(deployment, context, about) as member:
        sealed = masked.by_silo(record, deployment.silos)
        own = ArrayRecord({n: a for n, a in record.items() if not n.startswith(masked.PREFIX)})
        found, said = _trained(silo, context, about, own)
        weight = about.get("weight")
        values = masked.fixed_point(deployment.secure, found.up, silo.samples, weight)
        steps = about["steps"] if silo.same_steps else 0
        sent_alike = masked.alike(own, about.get("numbers"), weight, steps)
        content = member.mask(values, sealed, sent_alike)
    back = pack({masked.MASKED: torch.from_numpy(content)})
    return answer(given, label | _signature(silo, context, about, own, back), back, said)


@app.query("unmask")
@_careful
def unmask(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The last step: of each silo a share of one secret, with which the sum is unmasked."""
    deployment, label = _labelled(about, context)
    record = protocol.arrays(given)
    with masked.seat(deployment, context, about) as member:
        named = [
            masked.silos_of(record[name], deployment.silos) if name in record else []
            for name in (masked.SURVIVORS, masked.VANISHED)
        ]
        revealed = member.unmask(*named)
    return answer(given, label, pack({masked.SHARES: masked.blob(revealed)}))


def _trained(
    silo: Silo, context: Context, about: dict[str, Any], record: ArrayRecord
) -> tuple[Uploads, dict[str, float]]:
    """What a silo makes of an exchange, and what it says of it; its memory is kept."""
    place = _stage(about, silo)
    number, start, steps, accepted, left_at = (
        _whole(about, key) for key in ("round", "start", "steps", "accepted", "left")
    )
    if steps > silo.most_steps:
        raise Refusal(f"it asks for {steps} iterations, and at most {silo.most_steps} are agreed")
    stage = silo.scheme.stages[place]
    sent = silo.received(record, number, place)
    at = context.state, context.node_config, str(about.get("token"))
    memory = Memory(*at, silo.fresh())
    residue = Memory(*at, silo.fresh_residue(place), f"residue-{place}")
    mine, lost = memory.after(accepted)
    left, forgotten = residue.after(left_at)
    one = np.zeros(1, dtype=np.int64)
    numbers = protocol.numbers(about.get("numbers"), stage)
    exact = bool(about.get("differences"))
    asked = Exchange(stage, place, numbers, number, sent, one, one + steps, one + start, 0, exact)
    found, kept, seconds = silo.exchange(asked, mine, left)
    if not stage.asks:
        memory.keep(number, kept, accepted)
    if found.left:
        residue.keep(number, found.left[0], left_at)
    told = {f"{protocol.TOLD}{name}": float(rows[0]) for name, rows in found.told.items()}
    said = {
        "seconds": round(seconds, 4),
        "steps": steps,
        "memory_lost": int(lost or forgotten),
        **told,
    }
    return found, said


def _signature(
    silo: Silo, context: Context, about: dict[str, Any], sent: ArrayRecord, back: ArrayRecord
) -> dict[str, str]:
    """The silo's signature of what it was sent and sends, if it has a key and there is a ledger."""
    signer = Signer.of(context.node_config)
    if not signer or silo.experiment.ledger.kind != "chain":
        return {}
    entry = {"sent": protocol.digest(sent), "up": protocol.digest(back), "worker": silo.number}
    entry |= {"samples": silo.samples, "stage": about["stage"]}
    entry |= {"round": about["round"], "steps": about["steps"]}
    return {"signature": signer.sign(statement(str(about.get("token")), entry))}


@app.evaluate()
@_careful
def evaluate(given: Message, context: Context, about: dict[str, Any]) -> Message:
    """The model received, measured on the silo's data."""
    silo, label = _asked(about, context)
    sent = unpack(protocol.arrays(given), silo.like(("w",)))
    return answer(given, label, None, _measures(silo, context, about, sent))


def _measures(
    silo: Silo, context: Context, about: dict[str, Any], sent: Vectors
) -> dict[str, float]:
    memory = Memory(context.state, context.node_config, str(about.get("token")), silo.fresh())
    mine, _ = memory.after(_whole(about, "accepted"))
    return silo.evaluate(sent, mine)


def _agreed(about: dict[str, Any], context: Context) -> Deployment:
    """The deployment, if the server has the same configuration and versions."""
    deployment = read_run_config(context.run_config)
    masked.check_policy(deployment.scheme.aggregator, context.node_config)
    expect(about, protocol=PROTOCOL)
    expect(about, **compared(deployment.flower.other_versions), digest=deployment.digest)
    return deployment


def _asked(about: dict[str, Any], context: Context) -> tuple[Silo, dict[str, Any]]:
    """The silo that is meant, and the label of its answer."""
    deployment = _agreed(about, context)
    silo = CACHE.silo(deployment, context)
    expect(about, silo=silo.number)
    label = {"digest": deployment.digest, "silo": silo.number, "samples": silo.samples}
    return silo, {**label, "round": _whole(about, "round")}


def _labelled(about: dict[str, Any], context: Context) -> tuple[Deployment, dict[str, Any]]:
    """The deployment, and the label of an answer for which the silo's data are not looked at."""
    deployment = _agreed(about, context)
    number = number_of(context.node_config, deployment.silos)
    expect(about, silo=number)
    label = {"digest": deployment.digest, "silo": number, "round": _whole(about, "round")}
    return deployment, label


def _stage(about: dict[str, Any], silo: Silo) -> int:
    place = _whole(about, "stage")
    if place >= len(silo.scheme.stages):
        raise Refusal(f"its stage is {place}, and a round has {len(silo.scheme.stages)}")
    return place


def _whole(about: dict[str, Any], key: str) -> int:
    number = about.get(key)
    if type(number) is not int or not 0 <= number < 2**40:
        raise Refusal(f"its {key} is {protocol.one_line(number, 60)}, not a whole number")
    return number
