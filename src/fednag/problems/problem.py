"""A model, its loss and its data: gradients and evaluation at flat vectors."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fednag.errors import FednagError
from fednag.problems.dataset import Dataset
from fednag.problems.gradients import Gradients
from fednag.problems.losses import Loss, resolve
from fednag.problems.tracing import Traced
from fednag.vectors import Layout, Vector, ravel

ROUNDING = 1e-12  # deviations this small, relative to the numbers, are rounding in float64


@dataclass(frozen=True)
class Standardise:
    """Training features to mean 0 and standard deviation 1, per channel (images) or feature."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Standardise:
        """What to take off and divide by; a feature that is always the same is only centred."""
        over = (0, 2, 3) if x.dim() == 4 else (0,)
        values = x.double()
        mean = values.mean(over, keepdim=True)
        alone = values.numel() == mean.numel()  # one value each: nothing to estimate from
        deviation = values.std(over, correction=0 if alone else 1, keepdim=True)
        # A constant's deviation is the rounding of its mean: divided by it, a test sample that
        # differs at all would be huge.
        nil = deviation <= ROUNDING * values.abs().amax(over, keepdim=True)
        deviation = deviation.clamp_min(1e-12).masked_fill(nil, 1.0)
        return cls(mean[0], deviation[0])


class Problem:
    """What is to be minimised: a module's loss on a data set, over flat weight vectors."""

    def __init__(
        self,
        dataset: Dataset,
        module: nn.Module,
        loss: str | Loss = "cross-entropy",
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        standardise: bool = False,
        integer_inputs: bool = False,
    ) -> None:
        dataset.check()
        self.dataset = dataset
        self.device, self.dtype = torch.device(device), dtype
        self._integer_inputs = integer_inputs
        self.module = copy.deepcopy(module).to(self.device, dtype).train()
        self.layout = Layout.of(self.module)
        if not self.layout.names:
            raise FednagError("model: it has no trainable parameters; give one that has")
        self.initial: Vector = ravel(self.module)
        self.loss = resolve(loss)
        self.gradients = Gradients(self.module, self.layout, self.loss)
        self.x, self.y = dataset.x.to(self.device), self._targets(dataset.y)
        self.test_x, self.test_y = dataset.test_x.to(self.device), self._targets(dataset.test_y)
        self._scaling: tuple[Tensor, Tensor] | None = None
        if standardise:
            fitted = Standardise.fit(dataset.x)
            deviation = fitted.deviation.to(self.device, dtype)
            self._scaling = fitted.mean.to(self.device, dtype), 1 / deviation
        self._settled = copy.deepcopy(self.module).eval()
        self._judged = Traced(partial(self._judge, self._settled))
        self._evaluates_eagerly = False
        self._copies = threading.local()
        self._try_out()

    def features(self, x: Tensor) -> Tensor:
        """Raw samples as the model sees them; integers stay so if it is to look them up."""
        if self._integer_inputs:
            return x.long()
        if self._scaling is not None:
            mean, inverse = self._scaling
            return (x.to(self.dtype) - mean).mul_(inverse)
        if self.dataset.scale == 1.0:
            return x.to(self.dtype)
        return x.to(self.dtype, copy=True).mul_(self.dataset.scale)

    def batch(self, x: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Features and targets of the samples at ``index``, which may have any shape."""
        flat = index.reshape(-1)  # index_select is much faster than indexing
        features, targets = self.features(x.index_select(0, flat)), y.index_select(0, flat)
        return features.view(*index.shape, *x.shape[1:]), targets.view(*index.shape, *y.shape[1:])

    def evaluate(self, w: Vector, x: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample at ``index``, in float64: its loss at ``w``, and 1 if its class is right."""
        if self.gradients.eager is None and not self._evaluates_eagerly:
            try:
                losses, hits = self._judged(w, x, y, index)
                return losses, hits
            except Exception:
                # Whatever a user's model raises under tracing; what is wrong with it in earnest,
                # it raises again below.
                self._evaluates_eagerly = True
        module = getattr(self._copies, "module", None)
        if module is None:
            # functional_call swaps attributes, so each thread needs a module of its own.
            module = self._copies.module = copy.deepcopy(self._settled)
        with torch.no_grad():
            return self._judge(module, w, x, y, index)

    def _judge(
        self, module: nn.Module, w: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        features, targets = self.batch(x, y, index)
        output = functional_call(module, self.layout.unravel(w), (features,))
        losses = self.loss(output, targets).double()
        if self.dataset.classes is None:
            return losses, torch.zeros_like(losses)
        return losses, (output.argmax(-1) == targets).double()

    def module_at(self, w: Vector) -> nn.Module:
        """A new module with the weights ``w``, on the CPU, ready to use."""
        module = copy.deepcopy(self.module).cpu().eval()
        values = self.layout.unravel(w.detach().cpu())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in values:
                    parameter.copy_(values[name])
        return module

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(self.device, self.dtype if y.is_floating_point() else torch.int64)

    def _try_out(self) -> None:
        """Find what cannot work (wrong shapes, hidden state) before training does."""
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        x, y = self.features(self.x[:2]), self.y[:2]
        try:
            with torch.no_grad():
                output = self.module(x)
                scores = output.shape[-1] if output.dim() else 0
                losses = self.loss(output, y)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise FednagError(
                f"model: it cannot take samples of shape {self.dataset.shape} with this loss "
                f"({first}); give a model and loss that fit the data"
            ) from error
        if losses.shape != y.shape[:1]:
            raise FednagError(
                f"loss: it must return one value per sample, shape ({len(y)},), but returned shape "
                f"{tuple(losses.shape)}; use reduction='none'"
            )
        if scores < (self.dataset.classes or 0):
            raise FednagError(
                f"model: it gives {scores} scores a sample, and the data have labels up to "
                f"{(self.dataset.classes or 0) - 1}; give it {self.dataset.classes} outputs"
            )
        for name, buffer in self.module.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise FednagError(
                    f"model: training changes its buffer {name!r}, which is not among the weights "
                    "that are averaged; use GroupNorm or LayerNorm instead of BatchNorm"
                )
