"""Functions of tensors, recorded once for each set of shapes and then replayed.

A recording is a flat list of torch's operations. Replaying it skips autograd's and functorch's
bookkeeping; and it is a pure function, safe to share between threads, which ``functional_call`` is
not: that swaps a module's attributes. Python's own part in a replay would keep threads waiting for
each other, so it is left to torch's interpreter, TorchScript, which takes none.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.jit._fuser import optimized_execution

from fednag.problems.kernels import FASTER

aten = torch.ops.aten

Replay = Callable[..., Any]


class Traced:
    """``function`` of tensors alone, without hidden state or random draws, made fast.

    Raises whatever tracing raises when it first meets shapes with which it cannot be traced.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._replays: dict[tuple[torch.Size, ...], Replay] = {}
        self._lock = threading.Lock()

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple(tensor.shape for tensor in tensors)
        replay = self._replays.get(key)
        if replay is None:
            with self._lock:
                replay = self._replays.get(key) or compiled(record(self._function, *tensors))
                self._replays[key] = replay
        # Without optimisation, which would begin after a few calls and might change roundings.
        with torch.no_grad(), optimized_execution(False):
            return replay(*tensors)


def record(function: Callable[..., Any], *tensors: Tensor) -> GraphModule:
    """The operations ``function`` does for tensors of these shapes, and only those that matter."""

    def plain(*given: Tensor) -> Any:
        return function(*given)  # fx would count a bound method's self as an input

    module = make_fx(plain, decomposition_table=FASTER)(*tensors)
    for node in module.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise RuntimeError(f"it draws random numbers ({node.target})")
        if node.target in (aten.view.default, aten.expand.default):
            _skip_if_same(node)
        elif node.target in (aten.add.Tensor, aten.sub.Tensor):
            _scale_while_adding(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


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


def _skip_if_same(node: Node) -> None:
    """Drop a reshaping that changes nothing."""
    before = node.args[0]
    assert isinstance(before, Node)
    if before.meta["val"].shape == node.meta["val"].shape:
        node.replace_all_uses_with(before)


def _scale_while_adding(node: Node) -> None:
    """``a + number * b`` in one pass over memory instead of two."""
    first, scaled = node.args
    if not isinstance(first, Node) or not isinstance(scaled, Node) or node.kwargs:
        return
    if scaled.target == aten.mul.Tensor:
        vector, number = scaled.args
        if isinstance(vector, Node) and isinstance(number, int | float):
            node.args, node.kwargs = (first, vector), {"alpha": number}
