"""Functions of tensors, recorded once for each set of shapes and then replayed.

A recording is a flat list of torch's operations. Replaying it skips autograd's and functorch's
bookkeeping; and it is a pure function, safe to share between threads, which ``functional_call`` is
not: that swaps a module's attributes. Python's own part in a replay would keep threads waiting for
each other, so it is left to torch's interpreter, TorchScript, which takes none.
"""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode

from fednag.problems.kernels import FASTER

aten = torch.ops.aten

Replay = Callable[..., Any]

# Recording runs the function itself, which may swap a module's attributes: never two at a time.
RECORDING = threading.Lock()

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


class Traced:
    """``function`` of tensors alone, without hidden state or random draws, made fast.

    It gives a tensor, or a sequence of them. Raises whatever tracing raises when it first meets
    shapes with which it cannot be traced.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._replays: dict[tuple[torch.Size, ...], Replay] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple(tensor.shape for tensor in tensors)
        replay = self._replays.get(key)
        if replay is None:
            with RECORDING:
                replay = self._replays.get(key) or compiled(record(self._function, *tensors))
                self._replays[key] = replay
        # Without optimisation, which would begin after a few calls and might change roundings.
        with torch.no_grad(), optimized_execution(False):
            return replay(*tensors)


def record(function: Callable[..., Any], *tensors: Tensor) -> GraphModule:
    """The operations ``function`` does for tensors of these shapes, and only those that matter."""
    recorder = Recorder(tensors)
    with recorder:
        found = function(*tensors)
    return recorder.finished(found)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation that is done while it is active."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its whole compiler to leave this class alone

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = Graph()
        self._nodes: dict[int, Node] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets the id of one of these
        self._constants: dict[str, Tensor] = {}
        self._done: dict[Any, Node] = {}
        for number, tensor in enumerate(inputs):
            self._bind(tensor, self._graph.placeholder(f"input_{number}"))

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in FASTER:
            with self:
                found = FASTER[function](*args, **kwargs)
            if found is not NotImplemented:
                return found
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise RuntimeError(f"it draws random numbers ({function})")
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(function.tags):
            raise RuntimeError(f"what it does depends on values ({function})")
        found = function(*args, **kwargs)
        if _same(function, args, found):
            self._bind(found, self._node(args[0]))
            return found
        given: Any = map_aggregate((args, kwargs), self._described)
        node = self._once(function, *given)
        if isinstance(found, Tensor):
            node.meta["like"] = found.shape, found.dtype
            self._bind(found, node)
        else:
            for number, part in enumerate(found):
                if isinstance(part, Tensor):
                    self._bind(part, self._once(operator.getitem, (node, number), {}))
        return found

    def finished(self, found: Tensor | Sequence[Tensor]) -> GraphModule:
        """The recording of a function that gave ``found``."""
        self._graph.output(map_aggregate(found, self._described))
        for node in self._graph.nodes:
            if node.target in SUMS:
                _scale_while_adding(node)
        self._graph.eliminate_dead_code()
        for node in self._graph.nodes:
            if node.target in IN_PLACE:
                _add_in_place(node)
        return GraphModule(self._constants, self._graph)

    def _once(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """The operation's place in the recording; what was done before is not done again."""
        if function is not operator.getitem and function._schema.is_mutable:
            self._done.clear()  # views of what it changes have changed, too
            return self._graph.call_function(function, args, kwargs)
        key = function, _hashable(args), _hashable(kwargs)
        if key not in self._done:
            self._done[key] = self._graph.call_function(function, args, kwargs)
        return self._done[key]

    def _described(self, part: Any) -> Any:
        return self._node(part) if isinstance(part, Tensor) else part

    def _node(self, tensor: Tensor) -> Node:
        if id(tensor) not in self._nodes:  # made before: a buffer of the model, a table of a loss
            name = f"constant_{len(self._constants)}"
            self._constants[name] = tensor
            self._bind(tensor, self._graph.get_attr(name))
        return self._nodes[id(tensor)]

    def _bind(self, tensor: Tensor, node: Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)


def compiled(module: GraphModule) -> Replay:
    """A recording as TorchScript; as it is, where TorchScript cannot express it."""
    for node in module.graph.nodes:
        # TorchScript finds the overload itself, by the arguments' types.
        node.target = getattr(node.target, "overloadpacket", node.target)
    module.recompile()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch advises against TorchScript, but keeps it
            script: Replay = torch.jit.script(module)
            return script
    except Exception:  # of many kinds, none documented
        replay: Replay = module.forward
        return replay


def _same(function: Any, args: tuple[Any, ...], found: Any) -> bool:
    """Whether an operation only hands on what it was given."""
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


def _scale_while_adding(node: Node) -> None:
    """``a + number * b`` in one pass over memory instead of two."""
    first, scaled = node.args
    if not isinstance(first, Node) or not isinstance(scaled, Node) or node.kwargs:
        return
    if scaled.target == aten.mul.Tensor:
        vector, number = scaled.args
        if isinstance(vector, Node) and isinstance(number, int | float):
            node.args, node.kwargs = (first, vector), {"alpha": number}


def _add_in_place(node: Node) -> None:
    """Write a sum over its first term, if that was made for it alone: less memory to go through."""
    first = node.args[0]
    if not isinstance(first, Node) or len(first.users) > 1:
        return
    fresh = first.target in FRESH or first.meta.get("was fresh")
    if fresh and first.meta["like"] == node.meta["like"]:
        node.target = IN_PLACE[node.target]
        node.meta["was fresh"] = True
