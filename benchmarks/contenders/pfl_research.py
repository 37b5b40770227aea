"""pfl-research's nearest: local NAG, then federated averaging of the weights (momenta start anew).

With ``threads`` 2 in the workload, two processes share the workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from math import ceil

from turnstile import Turnstile
from workload import LR, MOMENTUM, Work

FOR_EVER = 10**6


def main() -> None:
    # Imported late: importing pfl joins the processes that the environment names.
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    work = Work.given()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.module()

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.inner(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
            return {}

    kept: dict[int, list[torch.Tensor]] = {}

    def dataset(worker: int) -> Dataset:
        if worker not in kept:
            kept[worker] = list(work.tensors(worker))
        return Dataset(raw_data=kept[worker], user_id=str(worker))

    users = list(range(work.workers))
    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", users))
    model = Model()
    wrapped = PyTorchModel(
        model=model,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=MOMENTUM, nesterov=True
        ),
        central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    turnstile = Turnstile() if os.environ.get("PFL_WORKER_RANK", "0") == "0" else None

    class Gate(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            going = turnstile.passed() if turnstile else True
            if not going:
                os._exit(0)  # the other process, which waits for this one, is stopped by it
            return False, Metrics()

    epoch = 60_000 // work.workers // work.batch
    steps = {"local_num_epochs": ceil(work.tau / epoch), "local_num_steps": None}
    if work.tau < epoch:
        steps = {"local_num_epochs": None, "local_num_steps": work.tau}
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=FOR_EVER,
            evaluation_frequency=FOR_EVER,
            train_cohort_size=work.workers,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=wrapped,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LR, local_batch_size=work.batch, **steps
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.batch),
        callbacks=[Gate()],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    other = None
    if Work.given().threads == 2 and "PFL_WORKER_RANK" not in os.environ:
        address = f"127.0.0.1:{free_port()}"
        os.environ["PFL_WORKER_ADDRESSES"] = f"{address},127.0.0.1:{free_port()}"
        second = {**os.environ, "PFL_WORKER_RANK": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        other = subprocess.Popen([sys.executable, *sys.argv], env=second, **quiet)
        os.environ["PFL_WORKER_RANK"] = "0"
    main()
