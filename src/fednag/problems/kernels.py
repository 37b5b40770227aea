"""Faster ways to compute some of torch's operations on a CPU, used when a model is traced.

Each takes the arguments of the operation it stands in for and gives its result, or
``NotImplemented`` where it has nothing better to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

NARROW = 16  # columns: matrix products are cut into panels about this wide


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

    Pooling is much faster then. Grey images, whose single channel leaves a direct
    convolution idle, are convolved by one matrix product.
    """
    if not _is_plain(x, groups, transposed):
        return NotImplemented
    if _is_grey(x, dilation):
        rows, (height, width) = _patches(x, weight, stride, padding)
        kernels = weight.flatten(1).t()
        out = aten.mm.default(rows, kernels)
        if bias is not None:
            out.add_(bias)
        return out.view(len(x), height, width, len(weight)).permute(0, 3, 1, 2)
    if x.is_contiguous(memory_format=torch.channels_last):
        return NotImplemented
    x = x.contiguous(memory_format=torch.channels_last)
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
    """The slopes of a grey image's kernels, by one matrix product."""
    if wanted[0] or not _is_plain(x, groups, transposed) or not _is_grey(x, dilation):
        return NotImplemented
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
    if beta != 1 or alpha != 1:
        return NotImplemented
    return aten.add.Tensor(aten.mm.default(a, b), c)


def ones_like(x: Tensor, **options: Any) -> Tensor:
    """Ones that do not need ``x``: a loss of which only the slope is wanted is not computed."""
    return torch.ones(x.shape, dtype=options.get("dtype") or x.dtype, device=x.device)


def _is_narrow(a: Tensor, b: Tensor) -> bool:
    return b.shape[-1] < NARROW < a.shape[-2] and a.device.type == "cpu"


def _is_plain(x: Tensor, groups: int, transposed: bool) -> bool:
    """An ordinary convolution of images on a CPU."""
    return groups == 1 and not transposed and x.dim() == 4 and x.device.type == "cpu"


def _is_grey(x: Tensor, dilation: Sequence[int]) -> bool:
    return x.shape[1] == 1 and set(dilation) == {1}


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
    aten.ones_like.default: ones_like,
}
"""What to trace in place of torch's operations."""
