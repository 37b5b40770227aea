"""What the server runs."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from drop_in.task import digits, make_model
from fednag.flower.strategies import FedNAG

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedNAG(
        lr=config["lr"], momentum=config["momentum"], fraction_evaluate=0.0, min_train_nodes=3
    )
    initial = ArrayRecord(make_model().state_dict())
    result = strategy.start(grid, initial, num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
    accuracies = {n: m["accuracy"] for n, m in result.evaluate_metrics_serverapp.items()}
    print(f"accuracy by round: {accuracies}")
    if config["out"]:
        Path(str(config["out"])).write_text(json.dumps(accuracies))


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = digits()
    with torch.no_grad():
        return MetricRecord({"accuracy": float((model(x).argmax(-1) == y).float().mean())})
