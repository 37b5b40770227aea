"""Faster ways to compute some of torch's operations on a CPU, used when a model is recorded.

Each takes the arguments of the operation it stands in for and gives its result, or
``NotImplemented`` where it has nothing better to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fednag.compute.fourier import Fourier, fourier

aten = torch.ops.aten

NARROW = 16  # columns: matrix products are cut into panels about this wide
HEAVY = (
    3  # times more weights than pixels: turning the weights' layout takes as long as convolving,
)
LARGE = 1 << 19  # if they are too many for the processor's nearest caches


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A convolution whose result lies in memory channels last, and so do those of later layers.

    Pooling is much faster then. Where weights are far more than pixels, their layout, channels
    first, counts instead. Grey images, whose single channel leaves a direct
    convolution idle, are convolved by one matrix product, wide kernels by Fourier transforms.
    """
    if not _is_plain(x, groups, transposed):
        return NotImplemented
    if _is_grey(x, dilation):
        rows, (height, width) = _patches(x, weight, stride, padding)
        kernels = weight.flatten(1).t()
        out = aten.mm.default(rows, kernels)
        if bias is not None:
            out = out + bias
        return out.view(len(x), height, width, len(weight)).permute(0, 3, 1, 2)
    waves = _waves(x, weight, stride, padding, dilation)
    if waves is not None:
        out = waves.forward(x, weight)
        return out if bias is None else out + bias.view(-1, 1, 1)
    layout = _layout(x, weight)
    if x.is_contiguous(memory_format=layout):
        return NotImplemented
    x = x.contiguous(memory_format=layout)
    return aten.convolution.default(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """The slopes of what ``convolution`` computes its own way."""
    if not _is_plain(x, groups, transposed):
        return NotImplemented
    if wanted[0] or not _is_grey(x, dilation):
        waves = _waves(x, weight, stride, padding, dilation)
        if waves is None:
            if _layout(x, weight) is torch.channels_last:
                return NotImplemented
            if x.is_contiguous() and gradient.is_contiguous():
                return NotImplemented
            return aten.convolution_backward.default(
                gradient.contiguous(), x.contiguous(), weight, bias_sizes, stride, padding,
                dilation, transposed, output_padding, groups, wanted,
            )  # fmt: skip
        return (
            waves.slope_of_images(gradient, x, weight) if wanted[0] else None,
            waves.slope_of_kernels(gradient, x, weight) if wanted[1] else None,
            gradient.sum((0, 2, 3)) if wanted[2] else None,
        )
    rows, _ = _patches(x, weight, stride, padding)
    slopes = gradient.permute(0, 2, 3, 1).reshape(-1, len(weight))
    of_weight = (slopes.t() @ rows).view(weight.shape) if wanted[1] else None
    return None, of_weight, slopes.sum(0) if wanted[2] else None


def mm(a: Tensor, b: Tensor) -> Any:
    """A product of few columns, as the transpose of one of few rows, which is faster."""
    return aten.mm.default(b.t(), a.t()).t() if _is_narrow(a, b) else NotImplemented


def bmm(a: Tensor, b: Tensor) -> Any:
    if not _is_narrow(a, b):
        return NotImplemented
    return aten.bmm.default(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """A product and a sum, as vmap has it: the same roundings for workers alone and stacked."""
    if beta != 1 or alpha != 1 or c.dim() != 1:
        return NotImplemented
    return aten.add.Tensor(aten.mm.default(a, b), c)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """Over few scores: across rows of samples, which a processor takes many of at a time."""
    if not _has_few_scores(x, dim):
        return NotImplemented
    columns = x.transpose(-1, -2).contiguous()
    return aten._log_softmax.default(columns, x.dim() - 2, half_to_float).transpose(-1, -2)


def log_softmax_backward(gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if not _has_few_scores(output, dim):
        return NotImplemented
    slopes, columns = gradient.transpose(-1, -2).contiguous(), output.transpose(-1, -2)
    found = aten._log_softmax_backward_data.default(slopes, columns, output.dim() - 2, dtype)
    return found.transpose(-1, -2)


def ones_like(x: Tensor, **options: Any) -> Tensor:
    """Ones that do not need ``x``: a loss of which only the slope is wanted is not computed."""
    return torch.ones(x.shape, dtype=options.get("dtype") or x.dtype, device=x.device)


def _is_narrow(a: Tensor, b: Tensor) -> bool:
    return b.shape[-1] < NARROW < a.shape[-2] and a.device.type == "cpu"


def _has_few_scores(x: Tensor, dim: int) -> bool:
    last = dim % max(x.dim(), 1) == x.dim() - 1
    return last and x.dim() > 1 and x.shape[-1] < x.shape[-2] and x.device.type == "cpu"


def _is_plain(x: Tensor, groups: int, transposed: bool) -> bool:
    """An ordinary convolution of images on a CPU."""
    return groups == 1 and not transposed and x.dim() == 4 and x.device.type == "cpu"


def _layout(x: Tensor, weight: Tensor) -> torch.memory_format:
    heavy = weight.numel() > max(HEAVY * x.numel(), LARGE)
    return torch.contiguous_format if heavy else torch.channels_last


def _is_grey(x: Tensor, dilation: Sequence[int]) -> bool:
    return x.shape[1] == 1 and set(dilation) == {1}


def _waves(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Fourier | None:
    """Fourier transforms for this convolution, where they save time."""
    (height, width), (tall, wide) = x.shape[2:], weight.shape[2:]
    if {*stride, *dilation} != {1} or padding[0] >= tall or padding[1] >= wide:
        return None
    if x.dtype not in (torch.float32, torch.float64):
        return None
    found = fourier(x.dtype, (height, width), (tall, wide), (padding[0], padding[1]))
    return found if found.saves(len(x), weight.shape[1], weight.shape[0]) else None


def _patches(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, tuple[int, int]]:
    """The pixels under the kernel, a row for each place it takes; and how many places there are."""
    (down, right), (height, width) = padding, weight.shape[2:]
    x = torch.nn.functional.pad(x, (right, right, down, down))
    places = x.unfold(2, height, stride[0]).unfold(3, width, stride[1])
    return places.reshape(-1, height * width), (places.shape[2], places.shape[3])


FASTER: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.mm.default: mm,
    aten.bmm.default: bmm,
    aten.addmm.default: addmm,
    aten._log_softmax.default: log_softmax,
    aten._log_softmax_backward_data.default: log_softmax_backward,
    aten.ones_like.default: ones_like,
}
"""What to trace in place of torch's operations."""
