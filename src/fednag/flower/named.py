"""Named arrays of a Flower app as flat vectors, and back: ``w::conv.weight``, ``v::conv.weight``.

All vectors of a method travel in one ``ArrayRecord``, for Flower takes no reply with two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fednag.flower.protocol import Refusal, one_line
from fednag.vectors import Layout, Vector, Vectors

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
        if len(record) != len(names) * len(self.layout.names):
            raise Refusal(f"it has {len(record)} arrays, not those of {', '.join(names)}")
        found = Vectors(**{name: self.flat(record, name + MARK) for name in names})
        for name, vector in found.items():
            if not bool(vector.isfinite().all()):
                raise Refusal(f"{name} is not finite")
        return found


def names_of(record: ArrayRecord) -> Names:
    """The names in a record of prefixed arrays, from those of ``w``."""
    prefix = "w" + MARK
    plain = {n.removeprefix(prefix): a for n, a in record.items() if n.startswith(prefix)}
    if not plain:
        raise Refusal("it holds no weights w; use a strategy of fednag.flower.strategies")
    return Names.of(ArrayRecord(plain))
