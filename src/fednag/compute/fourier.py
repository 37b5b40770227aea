"""Convolutions as products of Fourier transforms: for wide kernels, a fraction of the arithmetic.

A convolution of n pixels with k weights and p pixels of padding is cyclic over n + p places, for
what is wrapped around meets padding. Its transform is the product of the transforms; and as images
are small, transforms are products with a matrix of waves, which lets all the work be matrix
products. Within, images lie as (height, width, samples x channels), so that every transform runs
along the rows of one matrix, and a spectrum is (part, frequency, ...) where part is real or
imaginary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What an operation takes, measured in those of a direct convolution, whose inner loops are tighter.
# Products are four times fewer for 3x3 kernels and eight times for 5x5: on processors with wide
# vectors only the second pays.
OF_PRODUCT, OF_TRANSFORM = 4.5, 3.4
SMALL = 10**8  # operations of a direct convolution that is over before transforms have begun


@dataclass(frozen=True)
class Waves:
    """The transform along one side: ``taps`` values, the first at place ``first``, of ``period``.

    ``sign`` is that of the exponent. Matrices are real: rows and columns come in parts. They are
    numpy's, so that making them leaves no trace in a recording.
    """

    dtype: torch.dtype
    taps: int
    period: int
    first: int = 0
    sign: int = -1

    @property
    def halved(self) -> int:
        """Frequencies that suffice for real values: the others mirror them."""
        return self.period // 2 + 1

    @cached_property
    def of_real(self) -> Tensor:
        """(part x half the frequencies, taps)"""
        return self._tensor(self._half)

    @cached_property
    def of_complex(self) -> Tensor:
        """(part x frequencies, taps x part)"""
        return self._tensor(self._whole)

    @cached_property
    def back_to_real(self) -> Tensor:
        """(taps, part x half the frequencies): each frequency counts for its mirror image too."""
        mirrored = np.arange(self.halved)
        counts = np.where((mirrored == 0) | (2 * mirrored == self.period), 1, 2)
        return self._tensor(self._half.T * np.tile(counts, 2) / self.period)

    @cached_property
    def back_to_complex(self) -> tuple[Tensor, Tensor]:
        """(taps x part, frequencies) for the real part, and for the imaginary."""
        real, imaginary = np.split(self._whole.T / self.period, 2, axis=1)
        return self._tensor(real), self._tensor(imaginary)

    @property
    def _half(self) -> NDArray[np.float64]:
        wave = self._wave(self.halved)
        return np.concatenate([wave.real, wave.imag])

    @property
    def _whole(self) -> NDArray[np.float64]:
        wave = self._wave(self.period)
        rows = [[wave.real, -wave.imag], [wave.imag, wave.real]]
        shape = 2 * self.period, 2 * self.taps
        return np.array(rows).transpose(0, 2, 3, 1).reshape(shape)

    def _wave(self, frequencies: int) -> NDArray[np.complex128]:
        places = np.arange(self.first, self.first + self.taps)
        turns = np.outer(np.arange(frequencies), places) / self.period
        wave: NDArray[np.complex128] = np.exp(self.sign * 2j * pi * turns)
        return wave

    def _tensor(self, matrix: NDArray[np.float64]) -> Tensor:
        kind = {torch.float32: np.float32, torch.float64: np.float64}[self.dtype]
        return torch.from_numpy(np.ascontiguousarray(matrix, dtype=kind))


@dataclass(frozen=True)
class Transform:
    """Between images of one size and their spectra."""

    down: Waves
    right: Waves

    def spectrum(self, images: Tensor) -> Tensor:
        """(height, width, n, m) -> (part, frequency, n, m)"""
        height, width, *rest = images.shape
        rows = self.right.of_real.expand(height, -1, -1)
        half = torch.bmm(rows, images.reshape(height, width, -1))
        whole = torch.mm(self.down.of_complex, half.view(2 * height, -1))
        return whole.view(2, self.down.period * self.right.halved, *rest)

    def images(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """(frequency, n, m), each part -> (height, width, n, m)"""
        rest = real.shape[1:]
        of_real, of_imaginary = self.down.back_to_complex
        half = torch.mm(of_real, real.view(self.down.period, -1))
        half = torch.addmm(half, of_imaginary, imaginary.view(self.down.period, -1))
        columns = self.right.back_to_real.expand(self.down.taps, -1, -1)
        found = torch.bmm(columns, half.view(self.down.taps, 2 * self.right.halved, -1))
        return found.view(self.down.taps, self.right.taps, *rest)


@dataclass(frozen=True)
class Fourier:
    """Convolutions, with stride 1, of images and kernels of these sizes."""

    dtype: torch.dtype
    image: tuple[int, int]
    kernel: tuple[int, int]
    padding: tuple[int, int]

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        (xr, xi), (wr, wi) = self._spectra(x, weight)
        real = torch.baddbmm(torch.bmm(xr, wr), xi, wi, alpha=-1)
        imaginary = torch.baddbmm(torch.bmm(xr, wi), xi, wr)
        return _outside(self._of_output.images(real, imaginary))

    def slope_of_images(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        gr, gi = self._of_output.spectrum(_inside(gradient))
        _, (wr, wi) = self._spectra(x, weight)
        wr, wi = wr.transpose(1, 2), wi.transpose(1, 2)
        real = torch.baddbmm(torch.bmm(gr, wr), gi, wi)
        imaginary = torch.baddbmm(torch.bmm(gi, wr), gr, wi, alpha=-1)
        return _outside(self._of_images.images(real, imaginary))

    def slope_of_kernels(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        gr, gi = self._of_output.spectrum(_inside(gradient))
        (xr, xi), _ = self._spectra(x, weight)
        xr, xi = xr.transpose(1, 2), xi.transpose(1, 2)
        real = torch.baddbmm(torch.bmm(xr, gr), xi, gi)
        imaginary = torch.baddbmm(torch.bmm(xr, gi), xi, gr, alpha=-1)
        return self._of_kernels.images(real, imaginary).permute(3, 2, 0, 1)

    def saves(self, samples: int, inputs: int, outputs: int) -> bool:
        """Whether it is faster than a direct convolution: by counting, so that it never varies."""
        frequencies = self._of_images.down.period * self._of_images.right.halved
        products = 8 * frequencies * samples * inputs * outputs
        transforms = (
            samples * inputs * _operations(self._of_images)
            + samples * outputs * _operations(self._of_output)
            + inputs * outputs * _operations(self._of_kernels)
        )
        pixels = self._of_output.down.taps * self._of_output.right.taps
        direct = 2 * pixels * self.kernel[0] * self.kernel[1] * samples * inputs * outputs
        return direct > max(SMALL, OF_PRODUCT * products + OF_TRANSFORM * transforms)

    def _spectra(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        kernels = weight.permute(2, 3, 1, 0)
        return self._of_images.spectrum(_inside(x)), self._of_kernels.spectrum(kernels)

    @cached_property
    def _of_images(self) -> Transform:
        return self._transform(self.image)

    @cached_property
    def _of_output(self) -> Transform:
        sizes = zip(self.image, self.kernel, self.padding, strict=True)
        return self._transform([n + 2 * p - k + 1 for n, k, p in sizes])

    @cached_property
    def _of_kernels(self) -> Transform:
        return self._transform(self.kernel, [-p for p in self.padding], sign=1)

    def _transform(
        self, taps: Sequence[int], first: Sequence[int] = (0, 0), sign: int = -1
    ) -> Transform:
        periods = [n + p for n, p in zip(self.image, self.padding, strict=True)]
        down, right = zip(taps, periods, first, strict=True)
        return Transform(Waves(self.dtype, *down, sign), Waves(self.dtype, *right, sign))


fourier = cache(Fourier)
"""The same, with its matrices made once."""


def _inside(images: Tensor) -> Tensor:
    return images.permute(2, 3, 0, 1)


def _outside(images: Tensor) -> Tensor:
    """As torch has images, channels last in memory, which its pooling likes best."""
    return images.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)


def _operations(transform: Transform) -> int:
    down, right = transform.down, transform.right
    along = 2 * down.taps * 2 * right.halved * right.taps
    return along + 2 * 2 * down.period * 2 * down.taps * right.halved
