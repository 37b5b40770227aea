"""FedNAG on Flower's simulation: every worker a ClientApp, rounds driven over the Grid."""

from __future__ import annotations

import logging
import sys
import warnings

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from turnstile import Turnstile
from workload import Work, local_nag

warnings.simplefilter("ignore")
logging.getLogger("flwr").setLevel(logging.ERROR)
client_app, server_app = ClientApp(), ServerApp()
WORK = sys.argv[1]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    import json

    import workload  # here, so that an actor keeps its data between rounds

    work = workload.Work(**json.loads(WORK))
    torch.set_num_threads(1)
    worker = int(context.node_config["partition-id"])
    kept = workload.__dict__.setdefault("kept", {})
    if worker not in kept:
        kept[worker] = work.batches(worker)
    model = kept.setdefault("model", work.module())
    sent = [torch.from_numpy(a) for a in message.content["state"].to_numpy_ndarrays()]
    half = len(sent) // 2
    weights, momenta = local_nag(model, sent[:half], sent[half:], kept[worker], work.tau)
    arrays = [value.numpy() for value in (*weights, *momenta)]
    reply = {"state": ArrayRecord(arrays), "size": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(reply), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    turnstile = Turnstile()
    weights = [p.detach().numpy() for p in Work.given().module().parameters()]
    state = [*weights, *(np.zeros_like(value) for value in weights)]
    nodes = list(grid.get_node_ids())
    going = True
    while going:
        content = RecordDict({"state": ArrayRecord(state)})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        replies = [
            reply.content["state"].to_numpy_ndarrays() for reply in grid.send_and_receive(messages)
        ]
        assert len(replies) == len(nodes), "a client failed"
        state = [np.mean(values, axis=0) for values in zip(*replies, strict=True)]
        going = turnstile.passed()


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=Work.given().workers,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
