"""Operations counted: torch's own counter is the judge."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fednag.problems import models
from fednag.problems.flops import SHAPES, named_flops, training_flops

COUNTED_WITHOUT_THE_COMPILER = """
import sys, torch
from fednag.problems.flops import training_flops
assert training_flops(torch.nn.Linear(6, 5), torch.zeros(3, 6)) == 2 * 2 * 6 * 5
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize("data", ["digits", "cifar-10"])
@pytest.mark.parametrize("model", models.MODELS)
def test_the_count_is_torchs(model: str, data: str) -> None:
    shape, outputs = SHAPES[data]
    module = models.build(model, shape, outputs, 0, None).to("meta")
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(2, *shape, device="meta")).sum().backward()
    assert named_flops(model, data) == counter.get_total_flops() / 2 > 0


def test_a_model_that_fails_is_not_counted() -> None:
    assert training_flops(torch.nn.Linear(6, 5), torch.zeros(3, 7)) is None


def test_counting_does_not_load_torchs_compiler() -> None:
    """It takes a second, before the first record of every run."""
    subprocess.run([sys.executable, "-c", COUNTED_WITHOUT_THE_COMPILER], check=True, timeout=120)
