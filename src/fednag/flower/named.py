"""Named arrays of a Flower app as flat vectors, and back: ``w::conv.weight``, ``v::conv.weight``.

All vectors of a method travel in one ``ArrayRecord``, for Flower takes no reply with two. A number
travels as ``loss::``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fednag.core.algorithm import BUFFERS
from fednag.core.vectors import Layout, Vector, Vectors
from fednag.flower.protocol import Refusal, one_line

MARK = "::"
ORDER = "fednag"  # the entry of a message's ConfigRecord that says what is asked
SIZE, TRAIN = "size", "train"  # what is asked: how many samples there are, or a stage of a round
STEPS = "local-iterations"  # a reply's metric


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
        """A vector as arrays of the model's names and types; what was made narrower stays so."""
        pieces = self.layout.unravel(vector.detach().cpu())
        found = {}
        for name, dtype in zip(self.layout.names, self.dtypes, strict=True):
            values = pieces[name].numpy()
            wide = vector.dtype == self.dtype
            found[prefix + name] = Array(values.astype(dtype) if wide else values)
        return found

    def pack(self, vectors: Vectors) -> ArrayRecord:
        found: dict[str, Array] = {}
        for name, vector in vectors.items():
            if vector.numel() == len(self.layout):
                found |= self.named(vector, name + MARK)
            else:
                found[name + MARK] = Array(vector.detach().cpu().numpy())
        return ArrayRecord(found)

    def unpack(
        self, record: ArrayRecord, names: Sequence[str], numbers: Collection[str] = ()
    ) -> Vectors:
        """Exactly these vectors, finite, or a refusal; ``numbers`` are those of length 1."""
        single = set(numbers) & set(names) if len(self.layout) > 1 else set()
        held = sum(not name.startswith(BUFFERS + MARK) for name in record)
        if held != (len(names) - len(single)) * len(self.layout.names) + len(single):
            raise Refusal(f"it has {held} arrays, not those of {', '.join(names)}")
        one = Names(Layout(("",), ((1,),)), (str(self.dtype).removeprefix("torch."),))
        found = {n: (one if n in single else self).flat(record, n + MARK) for n in names}
        for name, vector in found.items():
            _check_finite(name, vector)
        return Vectors(**found)

    def statistics(self, record: ArrayRecord) -> tuple[Names, Vector]:
        """The running statistics beside a method's vectors, if there are any; or a refusal."""
        prefix = BUFFERS + MARK
        named = {n.removeprefix(prefix) for n in record if n.startswith(prefix)}
        if unknown := sorted(named - set(self.layout.names)):
            raise Refusal(f"{one_line(unknown[0], 80)} is no array of the model")
        part = self.among(named)
        found = part.flat(record, prefix) if named else torch.zeros(0, dtype=self.dtype)
        _check_finite("a running statistic", found)
        return part, found.to(self.dtype)

    def among(self, names: Collection[str]) -> Names:
        """Only these arrays."""
        places = [i for i, name in enumerate(self.layout.names) if name in names]
        layout = Layout(
            tuple(self.layout.names[i] for i in places),
            tuple(self.layout.shapes[i] for i in places),
        )
        return Names(layout, tuple(self.dtypes[i] for i in places))

    def take(self, w: Vector, part: Layout) -> Vector:
        """The arrays of ``part``, in its order, out of a whole vector."""
        pieces = self.layout.unravel(w)
        return torch.cat([w[:0], *(pieces[name].reshape(-1) for name in part.names)])

    def put(self, w: Vector, part: Layout, values: Vector) -> Vector:
        """A whole vector with the arrays of ``part`` in their places."""
        pieces = {**self.layout.unravel(w), **part.unravel(values.to(w))}
        return torch.cat([pieces[name].reshape(-1) for name in self.layout.names])


def _check_finite(name: str, vector: Vector) -> None:
    if not bool(vector.isfinite().all()):
        raise Refusal(f"{name} is not finite")


def names_of(record: ArrayRecord) -> Names:
    """The names in a record of prefixed arrays, from those of ``w``."""
    prefix = "w" + MARK
    plain = {n.removeprefix(prefix): a for n, a in record.items() if n.startswith(prefix)}
    if not plain:
        raise Refusal("it holds no weights w; use a strategy of fednag.flower.strategies")
    return Names.of(ArrayRecord(plain))
