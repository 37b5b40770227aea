"""What a ledger keeps of a round: who was sent what, who sent what, and what came of it.

Vectors are named by their digests. The entries are plain tables, so that they can be written as
JSON, chained and signed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fednag.core.executor import Answers, Exchange
from fednag.core.vectors import Vectors, digest

NONE = Answers()


def upload_entries(
    asked: Exchange,
    missed: Collection[int],
    part: Exchange | None = None,
    answers: Answers = NONE,
) -> list[dict[str, Any]]:
    """An entry for each worker of a part of an exchange, or without one for those who missed it.

    ``sent`` is the digest of what travelled to the worker (on a clock with early endings: of what
    arrived there), ``up`` of what travelled back. Who missed the exchange may not have got it.
    """
    sent = part or asked
    about = {
        "kind": "upload",
        "round": asked.round,
        "stage": asked.place,
        "sent": digest(sent.sent if sent.wire is None else sent.wire),
    }
    if part is None:
        return [{**about, "worker": worker, "status": "missed"} for worker in missed]
    found = []
    for worker, steps in zip(part.workers.tolist(), part.steps.tolist(), strict=True):
        entry = {**about, "worker": worker, "status": "missed"}
        if worker not in missed:
            receipt = answers.receipts[worker]
            entry["status"] = "refused" if worker in answers.refused else "used"
            entry |= {"up": receipt.up, "samples": receipt.samples}
            entry["steps"] = answers.steps.get(worker, steps)
            if part.staleness:
                entry["staleness"] = part.staleness
            if receipt.signature:
                entry["signature"] = receipt.signature
        found.append(entry)
    return found


def round_entry(number: int, aggregates: Sequence[str], server: Vectors) -> dict[str, Any]:
    """The last entry of a round: the digest of each exchange's aggregate, and of the new state."""
    return {
        "kind": "round",
        "round": number,
        "aggregates": list(aggregates),
        "server": digest(server),
    }
