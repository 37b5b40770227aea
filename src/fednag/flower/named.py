"""Named arrays of a Flower app as flat vectors, and back: ``w::conv.weight``, ``v::conv.weight``.

All vectors of a method travel in one ``ArrayRecord``, for Flower takes no reply with two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fednag.core.algorithm import BUFFERS
from fednag.core.vectors import Layout, Vector, Vectors
from fednag.flower.protocol import Refusal, one_line

MARK = "::"


@dataclass(frozen=True)
class Names:
    """The floating arrays of a model, in their order; what is not floating is left as it is."""

    layout: Layout
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Names:
        arrays = {name: array.numpy() for name, array in record.items()}
        kept = {n: a for n, a in arrays.items() if np.issubdtype(a.dtype, np.floating)}
        layout = Layout(tuple(kept), tuple(a.shape for a in kept.values()))
        return cls(layout, tuple(str(a.dtype) for a in kept.values()))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if "float64" in self.dtypes else torch.float32

    def flat(self, record: Mapping[str, Array], prefix: str = "") -> Vector:
        """The arrays with this prefix as one vector, or a refusal."""
        parts = []
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if prefix + name not in record:
                raise Refusal(f"{one_line(prefix + name, 80)} is missing")
            try:
                values = record[prefix + name].numpy()
            except (ValueError, TypeError, EOFError) as error:
                raise Refusal(f"{one_line(prefix + name, 80)} cannot be read") from error
            if values.shape != shape or not np.issubdtype(values.dtype, np.floating):
                given = f"{values.dtype} of shape {values.shape}"
                raise Refusal(f"{one_line(prefix + name, 80)} is {given}, not of shape {shape}")
            parts.append(torch.from_numpy(np.array(values)).reshape(-1).to(self.dtype))
        return torch.cat(parts)

    def named(self, vector: Vector, prefix: str = "") -> dict[str, Array]:
        """A vector as arrays of the model's names and types."""
        pieces = self.layout.unravel(vector.detach().cpu())
        return {
            prefix + name: Array(pieces[name].numpy().astype(dtype))
            for name, dtype in zip(self.layout.names, self.dtypes, strict=True)
        }

    def pack(self, vectors: Vectors) -> ArrayRecord:
        found: dict[str, Array] = {}
        for name, vector in vectors.items():
            found |= self.named(vector, name + MARK)
        return ArrayRecord(found)

    def unpack(self, record: ArrayRecord, names: Sequence[str]) -> Vectors:
        """Exactly these vectors, finite, or a refusal."""
        held = sum(not name.startswith(BUFFERS + MARK) for name in record)
        if held != len(names) * len(self.layout.names):
            raise Refusal(f"it has {held} arrays, not those of {', '.join(names)}")
        found = Vectors(**{name: self.flat(record, name + MARK) for name in names})
        for name, vector in found.items():
            if not bool(vector.isfinite().all()):
                raise Refusal(f"{name} is not finite")
        return found

    def statistics(self, record: ArrayRecord) -> Vectors:
        """The running statistics beside a method's vectors, if there are any; or a refusal."""
        prefix = BUFFERS + MARK
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        named = {n.removeprefix(prefix): a for n, a in record.items() if n.startswith(prefix)}
        if unknown := sorted(set(named) - set(shapes)):
            raise Refusal(f"{one_line(unknown[0], 80)} is no array of the model")
        some = {name: shapes[name] for name in shapes if name in named}
        part = Names(Layout(tuple(some), tuple(some.values())), self.dtypes)
        found = Vectors(**{f"{prefix}{name}": part.only(name, named[name]) for name in some})
        for name, vector in found.items():
            if not bool(vector.isfinite().all()):
                raise Refusal(f"{one_line(name, 80)} is not finite")
        return found

    def only(self, name: str, array: Array) -> Vector:
        """One array as a vector, or a refusal."""
        place = self.layout.names.index(name)
        alone = Names(Layout((name,), (self.layout.shapes[place],)), self.dtypes)
        return alone.flat({name: array})

    def with_statistics(self, w: Vector, statistics: Vectors) -> Vector:
        """The weights with these running statistics in their places."""
        pieces = self.layout.unravel(w)
        prefix = BUFFERS + MARK
        parts = [statistics.get(prefix + name, piece) for name, piece in pieces.items()]
        return torch.cat([part.reshape(-1).to(w) for part in parts])


def names_of(record: ArrayRecord) -> Names:
    """The names in a record of prefixed arrays, from those of ``w``."""
    prefix = "w" + MARK
    plain = {n.removeprefix(prefix): a for n, a in record.items() if n.startswith(prefix)}
    if not plain:
        raise Refusal("it holds no weights w; use a strategy of fednag.flower.strategies")
    return Names.of(ArrayRecord(plain))
