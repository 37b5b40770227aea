"""Convolutions by Fourier transforms: torch's numbers, and used where they save time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fednag
from fednag import FedNAG
from fednag.compute import fourier as module
from fednag.compute.fourier import fourier
from fednag.compute.recording import Traced, record

aten = torch.ops.aten


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution that can be transformed is."""
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "OF_PRODUCT", 0)
    monkeypatch.setattr(module, "OF_TRANSFORM", 0)


sides = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(image=st.tuples(st.integers(5, 9), st.integers(5, 9)), kernel=sides, data=st.data())
@settings(max_examples=40, deadline=None)
def test_it_is_torchs_convolution_and_slopes(
    image: tuple[int, int], kernel: tuple[int, int], data: st.DataObject
) -> None:
    padding = [data.draw(st.integers(0, k - 1)) for k in kernel]
    torch.manual_seed(0)
    x = torch.randn(3, 2, *image, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 2, *kernel, dtype=torch.float64, requires_grad=True)
    direct = nn.functional.conv2d(x, weight, padding=padding)
    gradient = torch.randn_like(direct)
    slopes = torch.autograd.grad(direct, [x, weight], gradient)
    ours = fourier(torch.float64, image, kernel, (padding[0], padding[1]))
    close = {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(ours.forward(x, weight), direct, **close)
    torch.testing.assert_close(ours.slope_of_images(gradient, x, weight), slopes[0], **close)
    torch.testing.assert_close(ours.slope_of_kernels(gradient, x, weight), slopes[1], **close)


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.conv2d(x, weight, bias, padding="same")


def directly(x: Tensor, weight: Tensor) -> bool:
    graph = record(convolve, x, weight, torch.randn(len(weight))).graph
    return bool(graph.find_nodes(op="call_function", target=aten.convolution.default))


def test_the_papers_second_layer_is_transformed_and_others_are_not() -> None:
    assert not directly(torch.randn(64, 32, 14, 14), torch.randn(64, 32, 5, 5))
    assert directly(torch.randn(2, 32, 4, 4), torch.randn(64, 32, 5, 5))  # over in no time
    assert directly(torch.randn(64, 64, 32, 32), torch.randn(64, 64, 3, 3))  # narrow kernels
    assert directly(torch.randn(64, 256, 8, 8), torch.randn(256, 256, 3, 3))
    assert directly(torch.randn(64, 3, 32, 32), torch.randn(32, 3, 5, 5))  # mostly transforms


def test_in_single_precision_it_is_as_good_as_training_needs() -> None:
    torch.manual_seed(0)
    given = torch.randn(64, 32, 14, 14), torch.randn(64, 32, 5, 5) / 28, torch.randn(64)
    exact = convolve(*(part.double() for part in given))
    assert (Traced(convolve)(*given) - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.usefixtures("always")
def test_a_recording_transforms_nothing_twice() -> None:
    """The images' and kernels' spectra serve both passes; so does the slopes'."""

    def both(x: Tensor, weight: Tensor, gradient: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            inner = [part.detach().requires_grad_() for part in (x, weight)]
            out = nn.functional.conv2d(*inner, padding=2)
            return [out.detach(), *torch.autograd.grad(out, inner, gradient)]

    x, weight, gradient = torch.randn(3, 2, 6, 6), torch.randn(4, 2, 5, 5), torch.randn(3, 4, 6, 6)
    graph = record(both, x, weight, gradient).graph
    # Three spectra take a product each, three images back another; the sums are in place.
    assert len(graph.find_nodes(op="call_function", target=aten.mm.default)) == 6
    assert len(graph.find_nodes(op="call_function", target=aten.baddbmm_.default)) == 6
    for found, expected in zip(
        Traced(both)(x, weight, gradient), both(x, weight, gradient), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("chunk", [1, 2])
def test_a_run_is_the_run_without_it(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    options = {"model": "cnn", "workers": 3, "tau": 3, "iterations": 6, "batch": 8}
    engine = {"chunk": chunk, "threads": 2, "dtype": "float64"}
    used: list[int] = []
    forward = module.Fourier.forward
    monkeypatch.setattr(module.Fourier, "forward", lambda *given: used.append(1) or forward(*given))
    ours = fednag.run(FedNAG(), **options, engine=engine)
    assert used
    monkeypatch.setattr(module, "SMALL", float("inf"))
    plain = fednag.run(FedNAG(), **options, engine=engine)
    for name, value in ours.final.state_dict().items():
        torch.testing.assert_close(value, plain.final.state_dict()[name], rtol=1e-9, atol=1e-12)
