"""Functions of tensors, recorded once for each set of shapes and then replayed.

A recording is a flat list of torch's operations. Replaying it skips autograd's and functorch's
bookkeeping; and it is a pure function, safe to share between threads, which ``functional_call`` is
not: that swaps a module's attributes.

The recorder knows which memory every operation reads and writes, and when. What is done to a
recording to make it faster is done only where no write lies between: sums are fused and repeated
work is merged if nothing was written to their terms meanwhile, and only memory that nothing else
sees is reused. An input or a constant that the function writes to is copied at the start of every
replay, so that neither the caller's tensors nor the next replay see it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fednag.compute.kernels import FASTER
from fednag.compute.randomness import private_randomness, quietly
from fednag.compute.replay import Replay, compiled, in_python

aten = torch.ops.aten

SUMS = (aten.add.Tensor, aten.sub.Tensor)
IN_PLACE: dict[Any, Any] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.addmm.default: aten.addmm_.default,
    aten.baddbmm.default: aten.baddbmm_.default,
}
FRESH = (  # their results are new memory
    aten.mul.Tensor,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
)
# What operations call the share they leave out at random: where it is 0, they draw nothing.
SHARES_LEFT_OUT = ("dropout_p", "dropout")
# Ways to take values out of torch, which a recording would repeat for ever.
LEAVING = ("numpy", "tolist", "item", "__array__", "data_ptr", "__dlpack__", "__reduce_ex__")


class NotRecordableError(Exception):
    """Why a function cannot be recorded."""


class Traced:
    """``function`` of tensors alone, without hidden state or random draws, made fast.

    It gives a tensor, or a sequence of them. Raises whatever recording raises when it first meets
    shapes with which it cannot be recorded. ``made_up`` gives other tensors of the same kind to
    record with: what depends on values then differs from the first replay, and can be noticed.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        made_up: Callable[..., Sequence[Tensor]] | None = None,
    ) -> None:
        self._function, self._made_up = function, made_up
        self._recordings: dict[Any, Recording] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        return self.recording(*tensors)(*tensors)

    def recording(self, *tensors: Tensor) -> Recording:
        """The recording for tensors of these shapes, strides and types."""
        key = _kinds(tensors)
        found = self._recordings.get(key)
        if found is None:
            with quietly():
                found = self._recordings.get(key)
                if found is None:
                    given = self._made_up(*tensors) if self._made_up else tensors
                    with private_randomness():
                        recorded = record(self._function, *given)
                    found = self._recordings[key] = Recording(recorded)
        return found

    def has(self, *tensors: Tensor) -> bool:
        return _kinds(tensors) in self._recordings

    def __len__(self) -> int:
        return len(self._recordings)


def _kinds(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)


class Recording:
    """What one function does with tensors of one kind; ``checked`` is kept by who checks it."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.checked = {False: -1, True: -1}  # when last, without and with padding
        self._replay: Replay = compiled(module)

    def __call__(self, *tensors: Tensor) -> Any:
        try:
            return self._replay(*tensors)
        except RuntimeError:
            if max(self.checked.values()) >= 0:
                raise
            # An operation that the interpreter knows, but cannot do: Python can.
            self._replay = in_python(self.module)
            return self._replay(*tensors)

    def does_as(self, other: Recording) -> bool:
        """Whether both do the same operations with the same constants, but for precision."""
        if self._operations() != other._operations():
            return False
        constants = dict(self.module.named_buffers()) | dict(self.module.named_parameters())
        others = dict(other.module.named_buffers()) | dict(other.module.named_parameters())
        return all(
            torch.allclose(value.double(), others[name].double(), rtol=1e-5, equal_nan=True)
            for name, value in constants.items()
            if not value.is_complex()
        )

    def _operations(self) -> list[Any]:
        places = {node: place for place, node in enumerate(self.module.graph.nodes)}

        def plain(part: Any) -> Any:
            if isinstance(part, Node):
                return f"%{places[part]}"
            if isinstance(part, torch.dtype):
                return "floating" if part.is_floating_point else str(part)
            return part

        return [
            (node.op, str(node.target), map_aggregate((node.args, node.kwargs), plain))
            for node in self.module.graph.nodes
        ]


def record(function: Callable[..., Any], *tensors: Tensor) -> GraphModule:
    """The operations ``function`` does for tensors of these shapes, and only those that matter."""
    recorder = Recorder(tensors)
    with recorder, Staying():
        found = function(*tensors)
    return recorder.finished(found)


class Staying(TorchFunctionMode):
    """Refuses whatever takes values out of torch."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in LEAVING:
            raise NotRecordableError(f"it takes values out of torch (Tensor.{name})")
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operation that is done while it is active to ``saw``, which is to do it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its whole compiler to leave this class alone

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.saw(function, args, kwargs or {})

    def saw(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class Recorder(Dispatch):
    """Writes down every operation."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = Graph()
        self._nodes: dict[int, Node] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets the id of one of these
        self._constants: dict[str, Tensor] = {}
        self._writes: dict[int, list[int]] = {}  # memory -> when operations write to it
        self._time = 0
        self._held: set[int] = set()  # memory of constants
        self._computed: set[int] = set()  # memory of inputs, and of what was made of them
        for number, tensor in enumerate(inputs):
            self._bind(tensor, self._source(self._graph.placeholder(f"input_{number}"), tensor))

    def saw(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in FASTER:
            with self:
                found = FASTER[function](*args, **kwargs)
            if found is not NotImplemented:
                return found
        _refuse(function, args, kwargs)
        written = list(writes(function, args, kwargs))
        given: Any = map_aggregate((args, kwargs), self._described)
        found = function(*args, **kwargs)
        if _same(function, args, found):
            self._bind(found, self._node(args[0]))
            return found
        node = self._graph.call_function(function, *given)
        self._time += 1
        node.meta["time"] = self._time
        for memory in {_memory(tensor) for tensor in written}:
            self._writes.setdefault(memory, []).append(node.meta["time"])
        if isinstance(found, Tensor):
            self._bind(found, self._source(node, found))
        elif found is not None:
            parts = [part for part in found if isinstance(part, Tensor)]
            self._describe(node, parts)
            for number, part in enumerate(found):
                if isinstance(part, Tensor):
                    piece = self._graph.call_function(operator.getitem, (node, number))
                    piece.meta["time"] = self._time
                    self._bind(part, self._source(piece, part))
        return found

    def finished(self, found: Tensor | Sequence[Tensor]) -> GraphModule:
        """The recording of a function that gave ``found``."""
        self._graph.output(map_aggregate(found, self._described))
        self._copy_what_is_written()
        self._merge()
        for node in self._graph.nodes:
            if node.target in SUMS:
                self._scale_while_adding(node)
        self._graph.eliminate_dead_code()
        for node in self._graph.nodes:
            if node.target in IN_PLACE:
                self._add_in_place(node)
        return GraphModule(self._constants, self._graph)

    def _copy_what_is_written(self) -> None:
        """Inputs and constants that are written to, replaced by copies made in every replay."""
        sources = [node for node in self._graph.nodes if node.op in ("placeholder", "get_attr")]
        owners: dict[int, Node] = {}
        for node in sources:
            for memory in node.meta["memory"]:
                if memory in self._writes and memory in owners:
                    raise NotRecordableError("it writes to memory that two of its tensors share")
                owners[memory] = node
        for node in sources:
            if self._is_quiet(node):
                continue
            users = list(node.users)
            with self._graph.inserting_after(node):
                copy = self._graph.call_function(aten.clone.default, (node,))
            copy.meta.update(node.meta)
            for user in users:
                user.replace_input_with(node, copy)

    def _merge(self) -> None:
        """Work that was done before is not done again, where nothing was written in between."""
        done: dict[Any, Node] = {}
        for node in list(self._graph.nodes):
            if node.op != "call_function" or "time" not in node.meta or _is_mutable(node.target):
                continue
            key = node.target, _hashable(node.args), _hashable(node.kwargs)
            first = done.get(key)
            if first is None or not self._is_same(first, node):
                done[key] = node
            else:
                node.replace_all_uses_with(first)
                self._graph.erase_node(node)

    def _is_same(self, first: Node, second: Node) -> bool:
        """Whether two nodes that do the same to the same tensors give the same."""
        sources = second.all_input_nodes
        if any(self._is_written(part, first, second) for part in sources):
            return False
        shared = {memory for part in sources for memory in part.meta.get("memory", ())}
        # What looks at memory of others changes with it; what has memory of its own must not
        # change, for each would have changed alone.
        is_view = shared.issuperset(second.meta["memory"])
        return is_view or (self._is_quiet(first) and self._is_quiet(second))

    def _scale_while_adding(self, node: Node) -> None:
        """``a + number * b`` in one pass over memory instead of two."""
        first, scaled = node.args
        if not isinstance(first, Node) or not isinstance(scaled, Node) or node.kwargs:
            return
        if scaled.target != aten.mul.Tensor or not self._is_quiet(scaled):
            return
        vector, number = scaled.args
        if not isinstance(vector, Node) or not isinstance(number, int | float):
            return
        dtype, *others = {part.meta["like"][1] for part in (node, scaled, vector)}
        if others or not dtype.is_floating_point or self._is_written(vector, scaled, node):
            return
        if abs(number) <= torch.finfo(dtype).max:  # torch refuses to scale by more than that
            node.args, node.kwargs = (first, vector), {"alpha": number}

    def _add_in_place(self, node: Node) -> None:
        """Write a sum over its first term, if that was made for it alone: less memory is used."""
        first = node.args[0]
        if not isinstance(first, Node) or len(first.users) > 1 or not self._is_quiet(first):
            return
        if first in node.args[1:]:  # a product with itself: it would be read while it is written
            return
        fresh = first.target in FRESH or first.meta.get("was fresh")
        if fresh and first.meta["like"] == node.meta["like"]:
            node.target = IN_PLACE[node.target]
            node.meta["was fresh"] = True

    def _is_quiet(self, node: Node) -> bool:
        return not any(memory in self._writes for memory in node.meta.get("memory", ()))

    def _is_written(self, node: Node, after: Node, before: Node) -> bool:
        """Whether something is written to the node's memory between two operations."""
        begin, end = after.meta["time"], before.meta["time"]
        return any(
            begin < when < end
            for memory in node.meta.get("memory", ())
            for when in self._writes.get(memory, ())
        )

    def _source(self, node: Node, tensor: Tensor) -> Node:
        self._describe(node, [tensor])
        node.meta["like"] = tensor.shape, tensor.dtype
        return node

    def _describe(self, node: Node, tensors: Iterable[Tensor]) -> None:
        node.meta["memory"] = tuple({_memory(tensor) for tensor in tensors})
        if node.op != "get_attr":
            self._computed |= set(node.meta["memory"]) - self._held

    def _described(self, part: Any) -> Any:
        return self._node(part) if isinstance(part, Tensor) else part

    def _node(self, tensor: Tensor) -> Node:
        if id(tensor) not in self._nodes:  # made before: a buffer of the model, a table of a loss
            if tensor.layout is not torch.strided:
                raise NotRecordableError("it works with sparse tensors")
            if _memory(tensor) in self._computed:
                raise NotRecordableError("it reaches the values of a tensor by .data")
            name = f"constant_{len(self._constants)}"
            self._constants[name] = tensor.detach()
            self._bind(tensor, self._source(self._graph.get_attr(name), tensor))
            self._held.add(_memory(tensor))
        return self._nodes[id(tensor)]

    def _bind(self, tensor: Tensor, node: Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)


def _refuse(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What a recording cannot repeat."""
    if draws(function, args, kwargs):
        raise NotRecordableError(f"it draws random numbers ({function})")
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(function.tags):
        raise NotRecordableError(
            f"what it does depends on values: .item(), float(), bool() or an if ({function})"
        )


def draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    for place, argument in enumerate(function._schema.arguments):
        if argument.name in SHARES_LEFT_OUT:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            return bool(argument.default_value if given is None else given)
    return True


def writes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            parts = given if isinstance(given, list | tuple) else [given]
            yield from (part for part in parts if isinstance(part, Tensor))


def _memory(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        raise NotRecordableError("it works with sparse tensors")
    return int(tensor.untyped_storage()._cdata)


def _is_mutable(function: Any) -> bool:
    return function is not operator.getitem and bool(function._schema.is_mutable)


def _same(function: Any, args: tuple[Any, ...], found: Any) -> bool:
    """True if the operation returns its input unchanged."""
    if function is aten.detach.default:
        return True
    return function in (aten.view.default, aten.expand.default) and found.shape == args[0].shape


def _hashable(part: Any) -> Any:
    """The same for arguments that are the same; 1 and 1.0 are not."""
    if isinstance(part, dict):
        return tuple((name, _hashable(value)) for name, value in part.items())
    if isinstance(part, list | tuple):
        return tuple(_hashable(value) for value in part)
    return type(part), part
