"""Named flat vectors, and a model's parameters as one of them."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from hashlib import sha256
from math import prod

import torch
from torch import Tensor, nn

Vector = Tensor
"""All parameters of a model: ``(d,)`` for one worker, ``(n, d)`` for n workers stacked."""


class Vectors(Mapping[str, Vector]):
    """An immutable bag of named vectors: what an algorithm keeps, sends or returns.

    >>> import torch
    >>> state = Vectors(w=torch.ones(3), v=torch.zeros(3))
    >>> state.but(v=state.w * 2).v
    tensor([2., 2., 2.])
    """

    __slots__ = ("_items",)
    _items: dict[str, Vector]

    def __init__(self, **items: Vector) -> None:
        object.__setattr__(self, "_items", items)

    def __getitem__(self, name: str) -> Vector:
        return self._items[name]

    def __getattr__(self, name: str) -> Vector:
        try:
            return self._items[name]
        except KeyError:
            held = ", ".join(self._items) or "nothing"
            raise AttributeError(f"no vector {name!r} here, only {held}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Vectors are immutable; use .but(name=value)")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # Mapping has these three too, ten times slower; they are called in every local iteration.
    def __contains__(self, name: object) -> bool:
        return name in self._items

    def values(self) -> ValuesView[Vector]:
        return self._items.values()

    def items(self) -> ItemsView[str, Vector]:
        return self._items.items()

    def __repr__(self) -> str:
        return f"Vectors({', '.join(f'{k}={tuple(v.shape)}' for k, v in self.items())})"

    def pick(self, names: Sequence[str]) -> Vectors:
        """Only these vectors."""
        missing = [name for name in names if name not in self._items]
        if missing:
            held = ", ".join(self._items) or "nothing"
            raise KeyError(f"{', '.join(missing)} declared in down or up, but there is only {held}")
        return Vectors(**{name: self[name] for name in names})

    def without(self, name: str) -> Vectors:
        """All vectors but this one, if it is there."""
        return Vectors(**{key: vector for key, vector in self.items() if key != name})

    def but(self, **changed: Vector) -> Vectors:
        """The same with some vectors replaced or added."""
        return Vectors(**{**self._items, **changed})

    def map(self, function: Callable[[Vector], Vector]) -> Vectors:
        """The same names, each vector passed through ``function``."""
        return Vectors(**{name: function(vector) for name, vector in self._items.items()})

    def map_named(self, function: Callable[[str, Vector], Vector]) -> Vectors:
        """The same names, each vector passed through ``function`` with its name."""
        return Vectors(**{name: function(name, vector) for name, vector in self.items()})

    def map_with(self, other: Vectors, function: Callable[[Vector, Vector], Vector]) -> Vectors:
        """The same names, each vector combined with its namesake in ``other``."""
        return Vectors(**{name: function(vector, other[name]) for name, vector in self.items()})

    @property
    def nbytes(self) -> int:
        """Bytes these vectors take on the wire."""
        return sum(vector.numel() * vector.element_size() for vector in self.values())


def digest(vectors: Mapping[str, Vector]) -> str:
    """The SHA-256 of flat vectors as they travel: names, types, numbers.

    >>> import torch
    >>> digest(Vectors(w=torch.ones(3)))[:16], digest(Vectors(w=-torch.ones(3)))[:16]
    ('7a6275c5ad7c8158', '45e77b0499b4274e')
    """
    return digest_of_bytes((name, str(v.dtype)[6:], _bytes(v)) for name, v in vectors.items())


def digest_of_bytes(named: Iterable[tuple[str, str, bytes | memoryview]]) -> str:
    """The same of (name, type, little-endian numbers), in whatever order they come."""
    found = sha256()
    for name, kind, content in sorted(named, key=lambda each: each[0]):
        found.update(f"{name} {kind} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _bytes(vector: Vector) -> memoryview:
    flat = vector.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a model lies in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module's trainable parameters, in their own order."""
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return cls(tuple(named), tuple(tuple(p.shape) for p in named.values()))

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    def __len__(self) -> int:
        return sum(self.sizes)

    def unravel(self, w: Vector) -> dict[str, Tensor]:
        """One worker's flat vector as named parameters (views, nothing is copied)."""
        pieces = torch.split(w, self.sizes)
        parts = zip(self.names, pieces, self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in parts}


def ravel(module: nn.Module) -> Vector:
    """A module's trainable parameters as one new flat vector."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])
