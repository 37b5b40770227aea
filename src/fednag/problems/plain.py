"""The user's own module, trained as PyTorch trains it: what every recording is compared with.

It is a copy of the module with the weights written into its parameters; a batch goes through it,
``loss.backward()`` runs, and the gradients are read off the parameters. It is slow, takes one
worker at a time, and knows nothing of recordings.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fednag.compute.randomness import ALONE
from fednag.core.vectors import Layout, Vector
from fednag.errors import FednagError
from fednag.problems.losses import Objective


@dataclass(frozen=True)
class Buffers:
    """The buffers of a model that training changes (running statistics), as one flat vector."""

    names: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()

    @classmethod
    def of(cls, module: nn.Module, names: tuple[str, ...]) -> Buffers:
        held = dict(module.named_buffers())
        return cls(
            names,
            tuple(tuple(held[name].shape) for name in names),
            tuple(held[name].dtype for name in names),
        )

    def __len__(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    def ravel(self, module: nn.Module, dtype: torch.dtype) -> Vector:
        """Their present values, as a new vector."""
        held = dict(module.named_buffers())
        parts = [held[name].detach().reshape(-1).to(dtype) for name in self.names]
        if parts:
            return torch.cat(parts)
        place = next(module.parameters(), torch.zeros(0)).device
        return torch.zeros(0, dtype=dtype, device=place)

    def unravel(self, b: Vector) -> dict[str, Tensor]:
        """New tensors by name, each of its own type; counters are rounded."""
        pieces = torch.split(b, [prod(shape) for shape in self.shapes]) if self.names else ()
        found = {}
        for name, piece, shape, dtype in zip(
            self.names, pieces, self.shapes, self.dtypes, strict=True
        ):
            if not dtype.is_floating_point:
                piece = piece.round()
            kept = b.dtype if dtype.is_floating_point else dtype
            found[name] = piece.reshape(shape).to(kept, copy=True)
        return found


class Plain:
    """A copy of a module that computes gradients and outputs at given weights. Thread-safe."""

    def __init__(
        self, module: nn.Module, layout: Layout, buffers: Buffers, objective: Objective
    ) -> None:
        self._training, self._settled = duplicate(module), duplicate(module).eval()
        self._layout, self._buffers, self._objective = layout, buffers, objective

    def gradient(self, w: Vector, b: Vector, x: Tensor, y: Tensor) -> tuple[Vector, Vector, Tensor]:
        """The gradient of a batch's loss at ``w``, the buffers after it, and the loss."""
        with ALONE, torch.enable_grad():
            module = self._loaded(self._training, w, b)
            value = self._objective.batch(module(x.clone()), y.clone())
            if not value.requires_grad:
                raise FednagError(
                    "model",
                    "its loss does not depend on its parameters",
                    "give a model that can learn",
                )
            value.backward()  # type: ignore[no-untyped-call]
            self._has_kept(w)
            after = self._buffers.ravel(module, w.dtype)
            return self._gradients(), after, value.detach()

    def output(self, w: Vector, b: Vector, x: Tensor) -> Any:
        """What the model gives in evaluation mode."""
        with ALONE, torch.no_grad():
            return self._loaded(self._settled, w, b)(x.clone())

    def _loaded(self, module: nn.Module, w: Vector, b: Vector) -> nn.Module:
        pieces = self._layout.unravel(w.detach())
        held = self._buffers.unravel(b.detach())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.grad = None
                if name in pieces:
                    parameter.copy_(pieces[name])
            for name, buffer in module.named_buffers():
                if name in held:
                    buffer.copy_(held[name])
        return module

    def _gradients(self) -> Vector:
        found = []
        for parameter in self._training.parameters():
            if parameter.requires_grad:
                slope = parameter.grad
                if slope is None:
                    slope = torch.zeros_like(parameter)
                found.append(slope.to_dense().detach().reshape(-1))
        return torch.cat(found)

    def _has_kept(self, w: Vector) -> None:
        """Refuse a model that changes its own weights: the method's rules would not see it."""
        pieces = self._layout.unravel(w.detach())
        for name, parameter in self._training.named_parameters():
            piece = pieces.get(name)
            if piece is None or torch.equal(parameter.detach(), piece):
                continue
            if bool(piece.isfinite().all()):  # what is not a number is not equal to itself
                raise changes_its_weights(name)


def changes_its_weights(name: str) -> FednagError:
    return FednagError(
        "model",
        f"its forward pass changes its parameter {name!r} (max_norm, clamp_, .data = …), which "
        "the methods' rules cannot see",
        "use torch.nn.utils.parametrize instead, or leave it out",
    )


def duplicate(module: nn.Module) -> nn.Module:
    """A copy of a module, with the hooks on its parameters, which torch leaves behind."""
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # whatever a user's attributes raise
        raise FednagError(
            "model",
            f"it cannot be copied ({first_line(error)})",
            "give it no attributes that only exist once, such as results of earlier calls",
        ) from error
    for old, new in zip(module.parameters(), made.parameters(), strict=True):
        for hook in (getattr(old, "_backward_hooks", None) or {}).values():
            new.register_hook(hook)  # type: ignore[no-untyped-call]
        for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
            new.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return made


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
