"""Replays recordings without Python: threads that replay do not wait for each other.

The operations of a recording are handed to torch's own interpreter as a graph of its intermediate
language. Nothing else in this package knows which interpreter that is: torch may give it up, and
then ``planned`` stands in for it, with the same bits. A graph made this way ends with its last
user; one made by ``torch.jit.script`` stays for as long as the process does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fednag.compute.planned import Planned

_C: Any = torch._C
aten = torch.ops.aten

Replay = Callable[..., Any]

# How the interpreter numbers torch's enumerations.
DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
NOTED = (aten.mkldnn_rnn_layer.default,)  # an LSTM, as oneDNN computes it


def compiled(module: GraphModule) -> Replay:
    """A recording for torch's interpreter; as a list of calls, where that cannot express it."""
    try:
        function, constants = _Translation(module).finished()
    except (RuntimeError, TypeError, KeyError, AttributeError, NotImplementedError):
        return without_interpreter(module)

    remembers = keeps_notes(module)

    def replay(*tensors: Tensor) -> Any:
        # Without optimisation, which would begin after a few calls and might change roundings.
        # Set by hand: two context managers take as long as a small operation.
        graded, optimised = torch.is_grad_enabled(), _C._get_graph_executor_optimize()
        _C._set_grad_enabled(remembers)
        _C._set_graph_executor_optimize(False)
        try:
            return function(*tensors, *constants)
        finally:
            _C._set_grad_enabled(graded)
            _C._set_graph_executor_optimize(optimised)

    return replay


def without_interpreter(module: GraphModule) -> Replay:
    """A recording that needs nothing but torch's operations, with memory planned ahead."""
    try:
        return Planned(module, keeps_notes(module))
    except (RuntimeError, TypeError, KeyError, AttributeError, NotImplementedError):
        return in_python(module)


def in_python(module: GraphModule) -> Replay:
    """A recording, operation by operation."""

    remembers = keeps_notes(module)

    def replay(*tensors: Tensor) -> Any:
        with torch.set_grad_enabled(remembers):
            return module(*tensors)

    return replay


def keeps_notes(module: GraphModule) -> bool:
    """Whether an operation keeps its notes for the way back only where gradients are wanted.

    Nothing in a replay requires gradients, so that autograd has nothing to do there either way.
    """
    return any(node.target in NOTED for node in module.graph.nodes)


class _Translation:
    """A recording in the interpreter's language; constants become further inputs."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.graph = _C.Graph()
        self.tensor = _C.TensorType.get()
        self.values: dict[Node, Any] = {}  # a value, or the list of an operation's several results
        self.constants: list[Tensor] = []

    def finished(self) -> tuple[Replay, list[Tensor]]:
        nodes = list(self.module.graph.nodes)
        for node in [n for n in nodes if n.op == "placeholder"]:
            self._input(node)
        for node in [n for n in nodes if n.op == "get_attr"]:
            self._input(node)
            self.constants.append(getattr(self.module, str(node.target)))
        for node in nodes:
            if node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                self._output(node.args[0])
        return _C._create_function_from_graph("replay", self.graph), self.constants

    def _input(self, node: Node) -> None:
        self.values[node] = self.graph.addInput()
        self.values[node].setType(self.tensor)

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            source, number = node.args
            found = self.values[source]  # type: ignore[index]
            if isinstance(found, list):
                return found[number]  # type: ignore[index]
            return self._made(
                "aten::__getitem__", [found, self.graph.insertConstant(number)], [self.tensor]
            )
        schema = node.target._schema  # type: ignore[union-attr]
        inputs = []
        for place, argument in enumerate(schema.arguments):
            if place < len(node.args):
                given = node.args[place]
            else:
                given = node.kwargs.get(argument.name, argument.default_value)
            inputs.append(self._value(given, argument.type))
        return self._made(schema.name, inputs, [each.type for each in schema.returns])

    def _made(self, name: str, inputs: Sequence[Any], types: Sequence[Any]) -> Any:
        made = self.graph.insertNode(self.graph.create(name, list(inputs), len(types)))
        outputs = list(made.outputs())
        for output, kind in zip(outputs, types, strict=True):
            output.setType(kind)
        return outputs[0] if len(outputs) == 1 else outputs

    def _value(self, given: Any, kind: Any) -> Any:
        if isinstance(given, Node):
            return self.values[given]
        if isinstance(kind, _C.OptionalType):
            if given is None:
                return self.graph.insertConstant(None)
            return self._value(given, kind.getElementType())
        if isinstance(kind, _C.ListType):
            parts = list(given) if isinstance(given, list | tuple) else [given]
            if parts and all(type(part) in (int, float, bool) for part in parts):
                return self.graph.insertConstant(parts)
            inside = kind.getElementType()
            return self._made(
                "prim::ListConstruct", [self._value(p, inside) for p in parts], [kind]
            )
        if isinstance(kind, _C.FloatType):
            given = float(given)
        elif isinstance(given, torch.dtype):
            given = DTYPES[given]
        elif isinstance(given, torch.memory_format):
            given = FORMATS[given]
        elif isinstance(given, torch.layout):
            if given is not torch.strided:
                raise NotImplementedError(f"a layout {given}")
            given = 0
        return self.graph.insertConstant(given)

    def _output(self, found: Any) -> None:
        if isinstance(found, Node):
            self.graph.registerOutput(self.values[found])
            return
        parts = [self.values[part] for part in found]
        listed = self._made("prim::ListConstruct", parts, [_C.ListType(self.tensor)])
        self.graph.registerOutput(listed)
