"""The plain loop itself: against numbers computed by hand and torch's own optimiser."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from models import CASES, TRAINED, Case
from plain import Settings, train
from test_conformance import plainly
from torch import nn

from fednag.core.keys import Draws
from fednag.data import partition
from fednag.errors import FednagError


def test_one_worker_is_torch_nesterov() -> None:
    """Weights and BatchNorm's statistics, with mini-batches."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    settings = Settings("fednag", batch=6, tau=3, iterations=7, workers=1)
    found = train(module, x, y, nn.CrossEntropyLoss(), settings)
    held = partition.by_size(20, 1, 1.0, settings.seed).workers[0]
    optimiser = torch.optim.SGD(
        module.parameters(), settings.lr, momentum=settings.momentum, nesterov=True
    )
    for positions in Draws(settings.seed, [20], 6).batches(0, 0, 7):
        optimiser.zero_grad()
        index = torch.from_numpy(held[positions])
        nn.functional.cross_entropy(module(x[index]), y[index]).backward()
        optimiser.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found.weights[name], parameter.detach(), rtol=1e-12, atol=1e-13)
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(found.buffers[name], buffer, rtol=1e-12, atol=1e-13)
    module.eval()
    loss = float(nn.functional.cross_entropy(module(x), y).detach())
    assert found.losses[-1] == pytest.approx(loss, rel=1e-12)
    assert len(found.losses) == 4


def scalar() -> nn.Module:
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, 2.0)
    return module


def by_hand(algorithm: str) -> float:
    """The one weight after a round of one iteration and another, on all of three workers' data.

    The loss of a sample is (w - y)^2, so worker i's gradient is 2 (w - m_i) with m_i its mean.
    """
    y = torch.tensor([3.0, 1.0, 0.5, 4.0, 2.0, -1.0], dtype=torch.float64)
    held = partition.by_size(6, 3, 1.0, 0).workers
    sizes, means = [len(h) for h in held], [float(y[h].mean()) for h in held]
    assert len(set(sizes)) == 3
    w, v = 2.0, 0.0
    lr, momentum = 0.1, 0.5
    for _ in range(2):
        c = sum(n * 2 * (w - m) for n, m in zip(sizes, means, strict=True)) / 6
        ended, momenta = [], []
        for mean in means:
            a, b = w, v
            for _ in range(2):
                g = 2 * (a - mean)
                if algorithm == "fedavg":
                    a = a - lr * g
                elif algorithm == "fednag":
                    b = momentum * b - lr * g
                    a = a + momentum * b - lr * g
                else:
                    reduced = g - 2 * (w - mean) + c
                    a = a - lr * ((1 - momentum) * reduced + momentum * v)
            ended.append(a)
            momenta.append(b)
        w = sum(n * a for n, a in zip(sizes, ended, strict=True)) / 6
        if algorithm == "fednag":
            v = sum(n * b for n, b in zip(sizes, momenta, strict=True)) / 6
        elif algorithm == "mime":
            v = (1 - momentum) * c + momentum * v
    return w


@pytest.mark.parametrize("algorithm", ["fedavg", "fednag", "mime"])
def test_three_workers_by_hand(algorithm: str) -> None:
    y = torch.tensor([[3.0], [1.0], [0.5], [4.0], [2.0], [-1.0]], dtype=torch.float64)
    settings = Settings(algorithm, batch=0, lr=0.1)
    found = train(scalar(), torch.ones(6, 1, dtype=torch.float64), y, nn.MSELoss(), settings)
    assert float(found.weights["weight"]) == pytest.approx(by_hand(algorithm), rel=1e-12)


def test_buffers_are_averaged_by_data_size() -> None:
    """One round of one iteration on everything: the mean of the workers' running means."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    x, y = torch.randn(12, 2, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64)
    for algorithm in ("fedavg", "mime"):  # the further gradients of Mime leave them alone
        settings = Settings(algorithm, batch=0, tau=1, iterations=1)
        found = train(module, x, y, nn.MSELoss(), settings)
        # Each worker's is 0.1 times its own mean: weighted by size, that of all samples.
        torch.testing.assert_close(found.buffers["0.running_mean"], 0.1 * x.mean(0))
        assert int(found.buffers["0.num_batches_tracked"]) == 1


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.expect == "equal"])
def test_the_plain_loop_trains_what_it_is_said_to(case: Case) -> None:
    """Each case that is to be equal gives finite numbers that move, or raises where it says so."""
    for batch, algorithm in zip(case.batches, cycle(case.algorithms), strict=False):
        if batch in case.raises_at:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever torch raises
                plainly(case, batch, algorithm)
            assert not isinstance(caught.value, FednagError)
            continue
        found = plainly(case, batch, algorithm)
        assert all(tensor.isfinite().all() for tensor in found.weights.values())
        first = dict(case.build().to(case.dtype).named_parameters())
        moves = [
            float((t - first[n].detach()).abs().max())
            for n, t in found.weights.items()
            if t.numel()
        ]
        assert max(moves) > 1e-6, "nothing moved: the case shows nothing"


def test_the_table_is_large_and_its_names_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 120
    sizes = partition.by_size(TRAINED, Settings.workers, Settings.skew, Settings.seed).sizes
    assert sizes.tolist() == [13, 7, 4]  # the smallest has less than a batch of five
