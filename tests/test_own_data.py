"""What users bring: tensors, arrays and files, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fednag
from fednag.config import override, parse
from fednag.errors import FednagError
from fednag.problems.problem import Standardise

SHORT: dict[str, Any] = {"workers": 2, "tau": 1, "iterations": 1, "batch": 4, "quiet": True}


def blobs(count: int = 24, width: int = 3) -> tuple[Tensor, Tensor]:
    """Samples of two classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 2
    return torch.randn(count, width, generator=generator) + y[:, None], y


def test_an_owner_that_no_one_asks_for_is_refused() -> None:
    table = {"name": "file", "path": "a.csv", "owner": "clinic"}
    for split in ({}, {"kind": "sizes"}):
        with pytest.raises(FednagError, match=r"data.owner: .* 'natural', .*; change split.kind"):
            parse({"data": table, "split": split})
    assert parse({"data": table, "split": {"kind": "natural"}}).data.owner == "clinic"
    plain = override({"data": table}, {"data.name": "digits"})
    assert parse(plain).data.owner is None


@pytest.mark.parametrize("whole", [True, False])
def test_owners_that_no_one_asks_for_are_refused(whole: bool) -> None:
    x, y = blobs()
    owners = torch.arange(24) % 3
    given: dict[str, Any] = {"data": (x, y), "owners": owners}
    if whole:
        given = {"data": fednag.dataset(x, y, owners=owners)}
    with pytest.raises(FednagError, match=r"^owners: .* that is 'iid'; give split="):
        fednag.run(model="logistic", **given, **SHORT)
    axes = {"split.kind": ["natural", "sizes"]}
    with pytest.raises(FednagError, match=r"^owners: .* that is 'sizes'"):
        fednag.sweep(axes, model="logistic", **given, **SHORT)
    done = fednag.run(model="logistic", split={"kind": "natural"}, **given, tau=1, iterations=1)
    assert done.experiment.split.workers == 3


def test_owners_of_a_named_data_set_may_be_passed_over() -> None:
    done = fednag.run(data="synthetic", model="logistic", **SHORT)
    assert done.experiment.split.kind == "iid"


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-20])
def test_a_constant_feature_is_only_centred(value: float) -> None:
    x = torch.stack([torch.full((1000,), value), torch.arange(1000.0)], 1)
    fitted = Standardise.fit(x)
    assert fitted.deviation[0] == 1.0
    # of 0 … n-1, with one degree of freedom taken off: n (n + 1) / 12
    assert float(fitted.deviation[1]) == pytest.approx((1000 * 1001 / 12) ** 0.5)
    shown = (torch.tensor([value + 1.0, 0.0]).double() - fitted.mean) / fitted.deviation
    assert float(shown[0]) == pytest.approx(1.0, abs=1e-6 * max(1.0, abs(value)))


def test_a_constant_channel_is_only_centred() -> None:
    x = torch.rand(20, 2, 4, 4)
    x[:, 1] = 0.3
    fitted = Standardise.fit(x)
    assert fitted.deviation.shape == (2, 1, 1)
    assert fitted.deviation[1] == 1.0
    assert float(fitted.deviation[0]) == pytest.approx(float(x[:, 0].double().std()))


def test_small_spreads_are_no_constants() -> None:
    x = 1e6 + 0.0625 * (torch.arange(64.0) % 2)  # the next number that single precision knows
    fitted = Standardise.fit(x[:, None])
    assert float(fitted.deviation) == pytest.approx(0.0625 * (16 / 63) ** 0.5)
    assert float(Standardise.fit(1e-9 * torch.arange(3.0)[:, None]).deviation) == pytest.approx(
        1e-9
    )


def test_one_sample_can_be_standardised() -> None:
    assert Standardise.fit(torch.tensor([[3.0, 4.0]])).deviation.tolist() == [1.0, 1.0]


def test_a_constant_feature_does_not_spoil_the_test_loss(tmp_path: Path) -> None:
    x, y = blobs()
    x[:, 1] = 0.1
    test_x = x.clone()
    test_x[:, 1] = 0.2
    path = tmp_path / "a.npz"
    np.savez(path, x=x.numpy(), y=y.numpy(), test_x=test_x.numpy(), test_y=y.numpy())
    table = {"name": "file", "path": str(path), "standardise": True}
    done = fednag.run(data=table, model="logistic", workers=2, tau=5, iterations=100)
    assert (done.records[-1].accuracy or 0) > 0.7
