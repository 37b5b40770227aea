"""Replays recordings as a flat list of calls that write into memory planned ahead.

It rests on nothing but torch's operations: no interpreter of torch's, and no compiler. Every call
takes Python, for which threads wait, so it stands in where torch's interpreter cannot be had. What
an operation makes is written into a buffer by its ``out`` variant; a buffer is used again as soon
as nothing reads it any more, and stays for the next replay. Results of a replay are memory of their
own. Every thread has buffers of its own.
"""

from __future__ import annotations

import operator
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, type and device of what a buffer holds."""


@dataclass
class Call:
    """One operation: what is called with which earlier values, and what nobody reads after it."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    places: list[tuple[int, int]]  # (argument, value) for arguments that are one value
    nested: list[tuple[int, list[int | None]]]  # the same for lists of values
    named: list[tuple[str, int]]
    value: int
    into: Callable[..., Any] | None = None  # the variant that writes to memory it is given
    dead: list[int] = field(default_factory=list)
    buffer: int | None = None


class Planned:
    """A replay of ``module``; the first one on the way looks how large things are."""

    def __init__(self, module: GraphModule, graded: bool = False) -> None:
        self._graded = graded  # whether operations keep notes for the way back
        self._calls: list[Call] = []
        self._numbers: dict[Node, int] = {}
        self._kinds: list[Kind] | None = None
        self._own, self._lock = threading.local(), threading.Lock()
        self._constants: list[tuple[int, Tensor]] = []
        nodes = list(module.graph.nodes)
        for node in nodes:
            self._numbers[node] = len(self._numbers)
            if node.op == "get_attr":
                self._constants.append((self._numbers[node], getattr(module, str(node.target))))
            elif node.op == "call_function":
                self._calls.append(self._call(node))
        self._inputs = [self._numbers[node] for node in nodes if node.op == "placeholder"]
        (given,) = nodes[-1].args
        self._output: Any = map_aggregate(given, lambda part: self._slot(part))
        self._plan_lives(nodes)

    def __call__(self, *tensors: Tensor) -> Any:
        with torch.set_grad_enabled(self._graded):
            values: list[Any] = [None] * len(self._numbers)
            for number, tensor in zip(self._inputs, tensors, strict=True):
                values[number] = tensor
            for number, tensor in self._constants:
                values[number] = tensor
            if self._kinds is None:
                self._first(values)
            else:
                self._again(values, self._kinds)
            return map_aggregate(
                self._output, lambda part: values[part.number] if isinstance(part, Slot) else part
            )

    def _first(self, values: list[Any]) -> None:
        """A replay without buffers; afterwards it is known which there must be."""
        kinds: list[Kind] = []
        free: dict[Kind, list[int]] = defaultdict(list)
        chosen: dict[int, int] = {}
        buffers: dict[int, int] = {}
        for place, call in enumerate(self._calls):
            found = values[call.value] = call.function(
                *_args(call, values), **_kwargs(call, values)
            )
            if call.into is not None and isinstance(found, Tensor) and _is_dense(found):
                kind = tuple(found.shape), found.stride(), found.dtype, found.device
                if not free[kind]:
                    free[kind].append(len(kinds))
                    kinds.append(kind)
                chosen[place] = buffers[call.value] = free[kind].pop()
            for number in call.dead:
                if number in buffers:
                    buffer = buffers.pop(number)
                    free[kinds[buffer]].append(buffer)
        with self._lock:
            if self._kinds is None:
                for place, buffer in chosen.items():
                    self._calls[place].buffer = buffer
                self._kinds = kinds

    def _again(self, values: list[Any], kinds: list[Kind]) -> None:
        buffers = getattr(self._own, "buffers", None)
        if buffers is None:
            buffers = self._own.buffers = [
                torch.empty_strided(shape, stride, dtype=dtype, device=device)
                for shape, stride, dtype, device in kinds
            ]
        for call in self._calls:
            args, kwargs = _args(call, values), _kwargs(call, values)
            if call.buffer is None or call.into is None:
                values[call.value] = call.function(*args, **kwargs)
            else:
                values[call.value] = call.into(*args, **kwargs, out=buffers[call.buffer])
            for number in call.dead:
                values[number] = None

    def _slot(self, part: Any) -> Any:
        return Slot(self._numbers[part]) if isinstance(part, Node) else part

    def _call(self, node: Node) -> Call:
        function: Any = node.target
        into = None if function is operator.getitem else _into(function)
        number = self._numbers[node]
        call = Call(function, list(node.args), dict(node.kwargs), [], [], [], number, into)
        for place, part in enumerate(node.args):
            if isinstance(part, Node):
                call.places.append((place, self._numbers[part]))
            elif isinstance(part, list | tuple) and any(isinstance(p, Node) for p in part):
                if not all(p is None or isinstance(p, Node) for p in part):
                    raise NotImplementedError("a list of values and numbers")
                held = [self._numbers[p] if isinstance(p, Node) else None for p in part]
                call.nested.append((place, held))
        for name, part in node.kwargs.items():
            if isinstance(part, Node):
                call.named.append((name, self._numbers[part]))
        return call

    def _plan_lives(self, nodes: list[Node]) -> None:
        """When values are read for the last time; and which may not be in a buffer."""
        memory = _memories(nodes)
        escaping = frozenset[int]().union(*(memory[part] for part in nodes[-1].all_input_nodes))
        last: dict[int, int] = {}  # memory -> the last call that touches it
        by_value = {call.value: place for place, call in enumerate(self._calls)}
        for node in nodes:
            if node.op == "call_function":
                place = by_value[self._numbers[node]]
                for part in (node, *node.all_input_nodes):
                    for one in memory[part]:
                        last[one] = place
        for node in nodes:
            if node.op != "call_function":
                continue
            call = self._calls[by_value[self._numbers[node]]]
            own = memory[node]
            known = bool(own) and not own & escaping
            if not known or any(own & memory[part] for part in node.all_input_nodes):
                call.into = None
            if own and not own & escaping:
                self._calls[max(last[one] for one in own)].dead.append(call.value)


def _memories(nodes: list[Node]) -> dict[Node, frozenset[int]]:
    """Whose memory each value is. A sum that is written over its first term is in that term's."""
    found: dict[Node, frozenset[int]] = {}
    for node in nodes:
        own = frozenset(node.meta.get("memory", ()))
        target: Any = node.target
        if (
            node.op == "call_function"
            and target is not operator.getitem
            and target._schema.is_mutable
        ):
            own = own.union(*(found[part] for part in node.all_input_nodes[:1]))
            joined = own
            found = {each: held | joined if held & joined else held for each, held in found.items()}
        found[node] = own
    return found


@dataclass(frozen=True)
class Slot:
    number: int


def _args(call: Call, values: list[Any]) -> list[Any]:
    args = call.args.copy()
    for place, number in call.places:
        args[place] = values[number]
    for place, numbers in call.nested:
        args[place] = [None if n is None else values[n] for n in numbers]
    return args


def _kwargs(call: Call, values: list[Any]) -> dict[str, Any]:
    if not call.named:
        return call.kwargs
    return call.kwargs | {name: values[number] for name, number in call.named}


def _into(function: Any) -> Callable[..., Any] | None:
    """The variant of an operation that writes its one result where it is told to."""
    schema = function._schema
    if schema.is_mutable or len(schema.returns) != 1:
        return None
    if any(argument.alias_info is not None for argument in (*schema.arguments, *schema.returns)):
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    packet = function.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        *rest, out = other._schema.arguments or [None]
        if out is None or out.name != "out" or not out.alias_info:
            continue
        if [(a.name, str(a.type)) for a in rest] == wanted:
            return other  # type: ignore[no-any-return]
    return None


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor._base is None and tensor.numel() > 0
