"""A model, its loss and its data: gradients and evaluation at flat vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fednag.compute.randomness import private_randomness, quietly
from fednag.core.vectors import Layout, Vector, ravel
from fednag.data.dataset import Dataset
from fednag.errors import FednagError
from fednag.problems.checks import Gradients, Judgements, computed_output
from fednag.problems.examine import (
    SAMPLES,
    Facts,
    check_copy,
    check_parameters,
    examine,
    known_facts,
    training_mode,
)
from fednag.problems.losses import Loss, Objective, converted, resolve
from fednag.problems.plain import Buffers, Plain, duplicate, first_line

Statistics = Literal["averaged", "local", "frozen"]
"""What becomes of batch normalisation's running statistics."""
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
    """What is to be minimised: a module's loss on a data set, over flat weight vectors.

    ``known`` says that the module is one of this package's own, and need not be examined.
    """

    def __init__(
        self,
        dataset: Dataset,
        module: nn.Module,
        loss: str | Loss = "cross-entropy",
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        standardise: bool = False,
        batch_norm: Statistics = "averaged",
        known: bool = False,
        recorded: bool = True,
        integer_inputs: bool = False,
    ) -> None:
        dataset.check()
        self.dataset = dataset
        self.device, self.dtype = torch.device(device), dtype
        self.batch_norm, self._integer_inputs = batch_norm, integer_inputs
        self.known = known
        self._standard = Standardise.fit(dataset.x) if standardise else None
        self._scaling = self._scaled_to(dtype)
        self.x, self.test_x = self._samples(dataset.x), self._samples(dataset.test_x)
        check_parameters(module)
        objective = resolve(loss)
        x, y = self._tried(module, objective)
        if not known:
            with quietly():
                check_copy(module, objective.to(self.device, dtype), x, y, dtype)
        self.module = converted(duplicate(module), self.device, dtype)
        training_mode(self.module)
        if batch_norm == "frozen":
            for part in self.module.modules():
                if isinstance(part, nn.modules.batchnorm._NormBase):
                    part.eval()
        self.objective = objective.to(self.device, dtype)
        if known:
            facts = known_facts(self.module)
        else:
            with private_randomness(), quietly():
                facts = examine(self.module, self.objective, x, y, self._many)
        self._check_buffers(facts)
        self._settle(facts)
        if not recorded:
            self.use_plain_loop("engine.recorded is false")

    def _check_buffers(self, facts: Facts) -> None:
        """Refuse buffers that cannot travel as numbers of the run's precision, or be frozen."""
        held = dict(self.module.named_buffers())
        for name in facts.moving:
            if self.batch_norm == "frozen":
                raise FednagError(
                    "model.batch_norm",
                    f"'frozen' is for normalisation, and training changes the buffer {name!r} of "
                    "another part",
                    "use 'averaged' or 'local'",
                )
            if held[name].is_complex():
                raise FednagError(
                    "model",
                    f"training changes its complex buffer {name!r}, and buffers travel as real "
                    "numbers",
                    "keep its real and imaginary part as two buffers",
                )
            counts = not held[name].is_floating_point() and self.dtype != torch.float64
            if counts and bool((held[name].abs() >= 2**22).any()):
                raise FednagError(
                    "model",
                    f"training counts in its buffer {name!r}, beyond what single precision holds",
                    "set engine.dtype = 'float64', or start the count lower",
                )

    def _settle(self, facts: Facts) -> None:
        """All that depends on what was found out about the model."""
        self.facts = facts
        if not facts.by_sample:
            self.objective = replace(self.objective, values=None, shares=None)
        self.layout = Layout.of(self.module)
        self.initial: Vector = ravel(self.module)
        self.buffers = Buffers.of(self.module, facts.moving)
        self.initial_buffers: Vector = self.buffers.ravel(self.module, self.dtype)
        self.y, self.test_y = self._targets(self.dataset.y), self._targets(self.dataset.test_y)
        self.shares = self._shares(self.y)
        settled = self.module, self.layout, self.buffers, self.objective
        self.plain = Plain(*settled)
        # Calling a module may leave things on it: the one that copies are made of is not called.
        self.differentiable = Differentiable(duplicate(self.module), *settled[1:])
        self._settled = duplicate(self.module).eval()
        self._twin: Problem | None = None
        self.steps: Any = None  # of the scheme that used it last: kept by who records whole steps
        self.gradients, self.judgements = Gradients(self), Judgements(self)

    def use_plain_loop(self, why: str) -> None:
        """Train and evaluate with the user's own module alone."""
        self.gradients.plain = self.gradients.plain or why
        self.judgements.plain = self.judgements.plain or why

    def check_again(self) -> None:
        """Have every recording compared with the module when it is next used."""
        self.gradients.due += 1
        self.judgements.due += 1

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Recordings are used without a comparison inside: for what is timed, or was compared."""
        before = self.gradients.due, self.judgements.due
        self.gradients.due = self.judgements.due = -1
        try:
            yield
        finally:
            self.gradients.due, self.judgements.due = before

    def evaluate(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Per sample at ``index``, in float64: its loss, and 1 if its class is right."""
        return self.judgements(w, b, x, y, index)

    @property
    def batchwise(self) -> bool:
        """Whether batches must be taken as they are: neither padded, nor cut into blocks."""
        return self.facts.mixes

    @property
    def twin(self) -> Problem | None:
        """The same problem in double precision, if the model computes in it."""
        if self.dtype == torch.float64 or not self.facts.double:
            return None
        if self._twin is None:
            twin = copy.copy(self)
            twin.dtype = torch.float64
            twin._scaling = self._scaled_to(torch.float64)  # its samples stay as compact as ours
            twin.module = converted(duplicate(self.module), self.device, torch.float64)
            twin.objective = self.objective.to(self.device, torch.float64)
            twin._settle(self.facts)
            self._twin = twin
        return self._twin

    def relabelled(self, y: Tensor) -> Problem:
        """The same problem with other labels of its training samples."""
        other = copy.copy(self)
        other.dataset = replace(self.dataset, y=y)
        other._settle(self.facts)
        if self.gradients.plain:
            other.use_plain_loop(self.gradients.plain)
        return other

    def on_held_back(self) -> Problem | None:
        """The same problem with the test samples that were held back; None without any."""
        if self.dataset.held_back is None or not len(self.dataset.held_back[0]):
            return None
        other, (x, y) = copy.copy(self), self.dataset.held_back
        other.test_x, other.test_y = self._samples(x), self._targets(y)
        return other

    def _scaled_to(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        if self._standard is None:
            return None
        deviation = self._standard.deviation.to(self.device, dtype)
        return self._standard.mean.to(self.device, dtype), 1 / deviation

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

    def judged(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and hit of each sample at ``index``, to be recorded; not thread-safe."""
        features, targets = self.batch(x, y, index)
        named = self.layout.unravel(w) | self.buffers.unravel(b)
        return self.judge(functional_call(self._settled, named, (features,)), targets)

    def judge(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample: its loss, and 1 if its class is right.

        Where only whole batches have a loss, every sample has the batch's.
        """
        if self.objective.values is None:
            losses = self.objective.batch(output, targets.clone()).expand(len(targets))
        else:
            losses = self.objective.values(output, targets.clone())
        if not self.has_classes or not isinstance(output, Tensor):
            return losses, torch.zeros_like(losses)
        return losses, (output.argmax(-1) == targets).to(losses.dtype)

    def outputs(self, w: Vector, b: Vector, x: Tensor, index: Tensor) -> Any:
        """What the user's module gives for the samples at ``index``, in evaluation mode."""
        return computed_output(self, w, b, self.features(x.index_select(0, index)))

    def mean_loss(self, losses: Tensor, y: Tensor) -> float:
        """The mean of samples' losses, each with its share."""
        if self.objective.shares is None:
            return float(losses.mean())
        return float(losses.sum() / self.objective.shares(y).to(losses).sum())

    @property
    def has_classes(self) -> bool:
        return self.dataset.classes is not None

    def module_at(self, w: Vector, b: Vector | None = None) -> nn.Module:
        """A new module with the weights ``w`` and the buffers ``b``, on the CPU, ready to use."""
        module = duplicate(self.module).cpu().eval()
        values = self.layout.unravel(w.detach().cpu())
        if b is not None:
            values |= self.buffers.unravel(b.detach().cpu())
        with torch.no_grad():
            for named in (module.named_parameters(), module.named_buffers()):
                for name, tensor in named:
                    if name in values:
                        tensor.copy_(values[name])
        return module

    def _samples(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(self.device, self.dtype if y.is_floating_point() else torch.int64)

    def _shares(self, y: Tensor) -> Tensor | None:
        """The share of each training sample in a mean; None where all are 1."""
        if self.objective.shares is None:
            return None
        found = self.objective.shares(y)
        return None if bool((found == 1).all()) else found

    def _tried(self, module: nn.Module, objective: Objective) -> tuple[Tensor, Tensor]:
        """Some samples that the model takes: as many as it takes at a time."""
        failed: FednagError | None = None
        for count in (SAMPLES, 2, 1):
            held = min(count, len(self.x))
            places = (torch.arange(held) * max(len(self.x) // held, 1)).to(self.device)
            x, y = self.features(self.x[places]), self._targets(self.dataset.y[places.cpu()])
            try:
                self._try_out(module, objective, x, y)
                return x, y
            except FednagError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _many(self, count: int) -> tuple[Tensor, Tensor]:
        """The first samples as the model sees them, and their targets."""
        return self.features(self.x[:count]), self._targets(self.dataset.y[:count])

    def _try_out(self, module: nn.Module, objective: Objective, x: Tensor, y: Tensor) -> None:
        """Find what cannot work (wrong shapes, no loss) before training does."""
        tried = converted(duplicate(module), self.device, self.dtype)
        objective = objective.to(self.device, self.dtype)
        try:
            with torch.enable_grad(), private_randomness(0), quietly():
                output = tried(x.clone())
                found = objective.given(output, y.clone())
        except Exception as error:
            raise FednagError(
                "model",
                f"it cannot take samples of shape {self.dataset.shape} with this loss "
                f"({first_line(error)})",
                "give a model and loss that fit the data",
            ) from error
        if not isinstance(found, Tensor) or not found.is_floating_point():
            kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise FednagError("loss", f"it returned {kind}", "return a tensor of floating numbers")
        unreduced = isinstance(objective.given, nn.Module) and objective.values is not None
        if found.dim() and not unreduced and found.shape != y.shape[:1]:
            raise FednagError(
                "loss",
                f"it must return the batch's loss, or one value per sample, shape ({len(y)},), "
                f"but returned shape {tuple(found.shape)}",
                "take the mean over the rest",
            )
        scores = 0
        if isinstance(output, Tensor):
            scores = output.shape[-1] if output.dim() else 0
            if output.dim() and scores < (self.dataset.classes or 0):
                raise FednagError(
                    "model",
                    f"it gives {scores} scores a sample, and the data have labels up to "
                    f"{(self.dataset.classes or 0) - 1}",
                    f"give it {self.dataset.classes} outputs",
                )


class Differentiable:
    """A module's gradient as a function of flat vectors, ``w`` (n, d) and ``b`` (n, k).

    Every call differentiates anew; it is meant to be recorded. Not thread-safe: it swaps the
    module's attributes.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, buffers: Buffers, objective: Objective
    ) -> None:
        self._layout, self._buffers = layout, buffers
        self._valued = _Valued(module, objective, buffers)

    def __call__(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Vector, Vector]:
        """For each worker: the gradient of its weighted loss, and its buffers after the batch.

        Takes x (n, b, ...), y (n, b, ...) and weight (n, b).
        """
        if len(w) == 1:
            # Unbatched kernels are faster than vmap's over a single worker.
            gradient, after = self._one(w[0], b[0], x[0], y[0], weight[0])
            return gradient.unsqueeze(0), after.unsqueeze(0)
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            values, after = vmap(self._value)(w, b, x, y, weight)
            # Workers do not meet: the slope of the sum is each worker's own.
            (gradients,) = torch.autograd.grad(values.sum(), w)
        return gradients, after.detach() if self._buffers.names else b

    def _one(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Vector, Vector]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            # What is recomputed on the way back (checkpointing) must find the same weights, so
            # the slope is taken before the module has its own again.
            gradient, after = functional_call(
                self._valued, self._named(w, b), (x, y, weight), {"of": w}
            )
        return gradient, after.detach() if self._buffers.names else b

    def _value(self, w: Vector, b: Vector, *batch: Tensor) -> Any:
        return functional_call(self._valued, self._named(w, b), batch)

    def _named(self, w: Vector, b: Vector) -> dict[str, Tensor]:
        pieces = self._layout.unravel(w) | self._buffers.unravel(b)
        return {f"module.{name}": piece for name, piece in pieces.items()}


class _Valued(nn.Module):
    """A model with its loss on top: (x, y, weight) -> (the weighted loss, the buffers after it)."""

    def __init__(self, module: nn.Module, objective: Objective, buffers: Buffers) -> None:
        super().__init__()
        self.module, self.objective, self.buffers_of = module, objective, buffers

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, of: Tensor | None = None) -> Any:
        output = self.module(x)
        if self.objective.values is None:
            value = self.objective.batch(output, y)
        else:
            value = (self.objective.values(output, y) * weight).sum()
        after = self.buffers_of.ravel(self.module, weight.dtype)
        if of is None:
            return value, after
        (gradient,) = torch.autograd.grad(value, of)
        return gradient, after
