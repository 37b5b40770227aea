"""What every node runs."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from drop_in.task import make_loader, make_model
from fednag.flower.training import train as fednag_train

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    loader = make_loader(int(part), int(parts))
    return fednag_train(message, context, make_model(), loader, nn.CrossEntropyLoss())
