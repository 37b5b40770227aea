"""What a model does besides computing: found by trying it on a few samples before it trains.

Some of it decides how the model is trained: which buffers it changes, whether it draws random
numbers, whether a sample's loss depends on the other samples. Some of it cannot be trained by
methods whose rules are functions of the weights, and is refused: a forward pass that changes its
parameters, or that gives other numbers each time it is called.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from fednag.compute.randomness import private_randomness
from fednag.compute.recording import Dispatch, draws, writes
from fednag.errors import FednagError
from fednag.problems.losses import Objective, converted
from fednag.problems.plain import changes_its_weights, duplicate, first_line

SEED = 20_210  # of the draws a model makes while it is tried
SAMPLES = 8
MANY = 600  # samples, of models that take them quickly: more than blocks of a full gradient have
PATIENCE = 0.7  # seconds that a pass over many may take
CLOSE, CLOSE_DOUBLE = 1e-4, 1e-9  # relative differences that are rounding


@dataclass(frozen=True)
class Facts:
    """What was found out about a model and its loss."""

    moving: tuple[str, ...]  # buffers that training changes
    random: str | None  # why its numbers are random; None: they are not
    mixes: bool  # a sample's loss depends on the samples it is trained with
    mixes_settled: bool  # the same in evaluation mode
    by_sample: bool  # the loss is a mean of one value a sample
    double: bool  # it computes in double precision as well


def known_facts(module: nn.Module) -> Facts:
    """The facts of a model of this package, which need not be found out."""
    moving = tuple(
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
        for name, _ in part.named_buffers(recurse=False)
    )
    return Facts(moving, None, bool(moving), False, True, True)


def check_parameters(module: nn.Module) -> None:
    """Refuse parameters that cannot be trained as real vectors."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise FednagError(
            "model",
            "it is TorchScript, whose copies do not train",
            "pass the module it was made from",
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter) or is_lazy(parameter):
            raise FednagError(
                "model",
                f"its parameter {name!r} has no shape yet (a lazy layer)",
                "call the model once on a batch before you pass it",
            )
        if parameter.is_complex():
            raise FednagError(
                "model",
                f"its parameter {name!r} is complex, and the methods average real vectors",
                "keep its real and imaginary part as two parameters (torch.view_as_real)",
            )
    places: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        other = places.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if other != name:
            raise FednagError(
                "model",
                f"its parameters {other!r} and {name!r} share memory, which copies do not",
                "make them one parameter (b.weight = a.weight)",
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise FednagError("model", "it has no trainable parameters", "give one that has")


def training_mode(module: nn.Module) -> nn.Module:
    """The module set to train; what the user froze in evaluation mode stays in it."""
    if module.training:
        return module  # parts in evaluation mode were put there
    frozen = [
        part
        for part in module.modules()
        if next(part.parameters(), None) is not None
        and not any(parameter.requires_grad for parameter in part.parameters())
    ]
    module.train()
    for part in frozen:
        part.eval()
    return module


def check_copy(
    module: nn.Module, objective: Objective, x: Tensor, y: Tensor, dtype: torch.dtype
) -> None:
    """Refuse a model whose copy does not train as it does.

    A copy has parameters of its own, and functions that the original's forward pass holds on to
    still see the original's.
    """
    made = converted(duplicate(module), x.device, dtype)
    with borrowed(module):
        converted(module, x.device, dtype)
        with private_randomness(SEED):
            ours = _backward(module, objective, x, y, depends=True)
        with private_randomness(SEED):
            theirs = _backward(made, objective, x, y, depends=True)
    for (name, _), a, b in zip(module.named_parameters(), ours, theirs, strict=True):
        if not _near(a, b, CLOSE):
            raise FednagError(
                "model",
                f"a copy of it trains its parameter {name!r} differently: its forward pass "
                "reaches parameters that are not its own (through a closure or a global)",
                "make them attributes of the module",
            )


@contextmanager
def borrowed(module: nn.Module) -> Iterator[None]:
    """The user's module may be used inside; afterwards it is as it was."""
    parts = [(part, dict(vars(part))) for part in module.modules()]
    inner = ("_parameters", "_buffers", "_modules")
    held = [{name: dict(saved[name]) for name in inner if name in saved} for _, saved in parts]
    tensors = [(tensor, tensor.data, tensor.data.clone()) for _, tensor in _tensors(module)]
    slopes = [(parameter, parameter.grad) for parameter in module.parameters()]
    boxes: list[tuple[Any, Any]] = [
        (box, copy.copy(box))
        for _, saved in parts
        for name, box in saved.items()
        if isinstance(box, list | dict | set) and name not in inner
    ]
    try:
        yield
    finally:
        for (part, saved), dicts in zip(parts, held, strict=True):
            vars(part).clear()
            vars(part).update(saved)
            for name, content in dicts.items():
                vars(part)[name].clear()
                vars(part)[name].update(content)
        box: Any
        for box, content in boxes:
            box.clear()
            box.extend(content) if isinstance(box, list) else box.update(content)
        for tensor, place, values in tensors:
            tensor.data = place
            place.copy_(values)
        for parameter, slope in slopes:
            parameter.grad = slope


def examine(
    module: nn.Module,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    samples: Callable[[int], tuple[Tensor, Tensor]],
) -> Facts:
    """Try copies of a model, in training mode already, on some samples; ``samples`` gives more."""
    tried = duplicate(module)
    start = {name: value.detach().clone() for name, value in _tensors(module)}
    watch = Watch(tried)
    with private_randomness(SEED):
        drawn = _drawn()
        with watch:
            _backward(tried, objective, x, y)
        if _drawn() != drawn:
            watch.random = watch.random or "with Python's or numpy's generator"
    _check_weights(tried, start, watch)
    moving = tuple(
        name for name, buffer in tried.named_buffers() if not _equal(buffer, start[name])
    )
    _check_memory(module, objective, x, y, start)
    by_sample = _is_mean(duplicate(module), objective, x, y)
    double = _in_double(module, objective, x, y)
    if double is not None:  # where a small dependence is not lost in roundings
        module, objective = double
        x, y = _widened(x), _widened(y)
    values = objective.values if by_sample else None
    is_random = watch.random is not None
    mixing = [True, True]
    if values is not None:
        modes = [duplicate(module), duplicate(module).eval()]
        mixing = [_mixes(duplicate(mode), values, x, y, is_random) for mode in modes]
        if not all(mixing):  # some do so only in large batches
            few, seconds = len(x), _seconds(module, x)
            count = max(min(MANY, int(few * PATIENCE / max(seconds, 1e-9))), few)
            x, y = samples(count)
            if double is not None:
                x, y = _widened(x), _widened(y)
            if len(x) > few:
                mixing = [
                    known or _mixes(mode, values, x, y, is_random)
                    for known, mode in zip(mixing, modes, strict=True)
                ]
    # What a batch does to the buffers would depend on what it is padded with.
    mixes = mixing[0] or bool(moving)
    return Facts(moving, watch.random, mixes, mixing[1], by_sample, double is not None)


def _seconds(module: nn.Module, x: Tensor) -> float:
    tried = duplicate(module)
    began = time.perf_counter()
    with private_randomness(SEED), torch.no_grad():
        tried(x.clone())
    return time.perf_counter() - began


class Watch(Dispatch):
    """Sees writes to a module's parameters, and random draws."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = {name: p.data_ptr() for name, p in module.named_parameters()}
        self._names = {place: name for name, place in self.places.items() if place}
        self.written: str | None = None
        self.random: str | None = None

    def saw(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if draws(function, args, kwargs):
            self.random = self.random or f"with {function}"
        for tensor in writes(function, args, kwargs):
            if tensor.layout is torch.strided and tensor.numel():
                self.written = self.written or self._names.get(tensor.data_ptr())
        return function(*args, **kwargs)


def _check_weights(module: nn.Module, start: dict[str, Tensor], watch: Watch) -> None:
    for name, parameter in module.named_parameters():
        replaced = parameter.numel() and watch.places[name] != parameter.data_ptr()
        if replaced or watch.written == name or not _equal(parameter.detach(), start[name]):
            raise changes_its_weights(name)


def _check_memory(
    module: nn.Module, objective: Objective, x: Tensor, y: Tensor, start: dict[str, Tensor]
) -> None:
    """Refuse a model that gives other numbers for a batch, depending on what it was called with.

    One copy sees the batch at once, and twice more; another sees other samples first.
    """

    def called(tried: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        _load(tried, start)
        with private_randomness(SEED):
            return _backward(tried, objective, x, y)

    first, second = duplicate(module), duplicate(module)
    found = [called(first, x, y), called(first, x, y)]
    seen, told = _attributes(first), _fingerprint(getattr(objective.given, "__dict__", None))
    found.append(called(first, x, y))
    if _fingerprint(getattr(objective.given, "__dict__", None)) != told:
        raise FednagError(
            "loss",
            "every call changes it",
            "a loss must give the same for the same outputs and targets: leave out what it counts "
            "or remembers",
        )
    draw = torch.Generator().manual_seed(SEED)
    start, kept = {name: _shaken(value, draw) for name, value in start.items()}, start
    called(second, x.flip(0) * 0.5 if x.is_floating_point() else x.flip(0), y.flip(0))
    start = kept
    found.append(called(second, x, y))
    for slopes in found[1:]:
        if not all(_near(a, b, CLOSE) for a, b in zip(found[0], slopes, strict=True)):
            raise FednagError(
                "model",
                "the same weights and samples give other gradients when it is called again",
                "it remembers something that is neither parameter nor buffer: make it a buffer "
                "(register_buffer), or leave it out",
            )
    later = _attributes(first)
    for name, value in seen.items():
        if later.get(name) != value:
            raise FednagError(
                "model",
                f"every call changes its attribute {name!r}, which does not travel with the "
                "weights",
                "make it a buffer (register_buffer), or leave it out",
            )


def _is_mean(module: nn.Module, objective: Objective, x: Tensor, y: Tensor) -> bool:
    """Whether the loss of a batch is the mean of its samples' values, each with its share."""
    if objective.values is None:
        return False
    with private_randomness(SEED), torch.no_grad():
        output = module(x.clone())
        try:
            with private_randomness(SEED):
                values = objective.values(output, y.clone())
            if not isinstance(values, Tensor) or values.shape != (len(y),):
                return False
            with private_randomness(SEED):
                whole = objective.batch(output, y.clone()).double()
        except Exception:  # whatever a loss raises when it is not to reduce
            return False
    shares = torch.ones(len(y)) if objective.shares is None else objective.shares(y)
    mean = values.double().sum() / shares.double().sum().to(values.device)
    return _near(mean, whole, CLOSE)


def _mixes(
    module: nn.Module,
    values: Callable[[Any, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    random_too: bool,
) -> bool:
    """Whether a sample's value or slope depends on the samples beside it, or on how many there are.

    At the first weights and at others: where a layer begins with zeros, nothing shows.
    """
    half = len(x) // 2
    if not half:
        return False
    first = {name: value.detach().clone() for name, value in _tensors(module)}
    draw = torch.Generator().manual_seed(SEED)
    names = {name for name, parameter in module.named_parameters()}
    for start in (first, {n: _shaken(v, draw) if n in names else v for n, v in first.items()}):

        def of(
            samples: Tensor, targets: Tensor, count: int, start: dict[str, Tensor] = start
        ) -> list[Tensor]:
            """The values of the first few, and what they ask of the parameters."""
            _load(module, start)
            module.zero_grad(set_to_none=True)
            with private_randomness(SEED), torch.set_grad_enabled(module.training):
                found = values(module(samples.clone()), targets.clone())[:count]
            if found.requires_grad:
                found.sum().backward()  # type: ignore[no-untyped-call]
            # One vector: a slope that is nil in truth is rounding, and no measure for itself.
            return [found.detach(), torch.cat([slope.reshape(-1) for slope in _slopes(module)])]

        try:
            whole = of(x, y, half)
            beside = [torch.cat([t[:half], t[:half].flip(0), t[2 * half :]]) for t in (x, y)]
            others = [of(beside[0], beside[1], half)]
            if not random_too:
                others.append(of(x[:half], y[:half], half))
            single = None if random_too else of(x[:1], y[:1], 1)
        except Exception:
            return True  # it wants batches of some size, which then are what it gets
        close = CLOSE_DOUBLE if whole[0].dtype == torch.float64 else CLOSE
        for other in others:
            if not all(_near(a, b, close) for a, b in zip(whole, other, strict=True)):
                return True
        if single is not None and not _near(whole[0][:1], single[0], close):
            return True
    return False


def _shaken(tensor: Tensor, draw: torch.Generator) -> Tensor:
    """Other weights, some of them large."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.randn(tensor.shape, generator=draw, dtype=torch.float64).to(tensor)
    return tensor + 0.3 * noise


def _in_double(
    module: nn.Module, objective: Objective, x: Tensor, y: Tensor
) -> tuple[nn.Module, Objective] | None:
    """Model and loss in double precision, if they compute in it."""
    try:
        double = converted(duplicate(module), x.device, torch.float64)
        wide = objective.to(x.device, torch.float64)
        with private_randomness(SEED):
            slopes = _backward(duplicate(double), wide, _widened(x), _widened(y))
    except Exception:  # its forward pass insists on a type
        return None
    return (double, wide) if all(s.dtype == torch.float64 for s in slopes) else None


def _widened(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def _backward(
    module: nn.Module, objective: Objective, x: Tensor, y: Tensor, depends: bool = False
) -> list[Tensor]:
    """The slopes of a batch; one that ``depends`` on the parameters is refused if it does not."""
    module.zero_grad(set_to_none=True)
    with torch.enable_grad():
        value = objective.batch(module(x.clone()), y.clone())
        if value.requires_grad:
            try:
                value.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                raise FednagError(
                    "model",
                    f"torch cannot differentiate it ({first_line(error)})",
                    "mend its forward pass",
                ) from error
        elif depends:
            raise FednagError(
                "model",
                "its loss does not depend on its parameters",
                "give a model and a loss that can be differentiated",
            )
    return _slopes(module)


def _slopes(module: nn.Module) -> list[Tensor]:
    return [
        torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
        for p in module.parameters()
    ]


def _load(module: nn.Module, state: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(module):
            tensor.copy_(state[name])


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What parts of a module hold beside parameters, buffers and parts."""
    own = set(vars(nn.Module()))
    return {
        f"{prefix}.{name}".lstrip("."): _fingerprint(value)
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own
    }


def _fingerprint(value: Any, depth: int = 3) -> Any:
    """Something that differs when a value does, for values that a model may remember by."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.numel() > 10**6 or value.is_meta:
            return tuple(value.shape)
        return tuple(value.shape), str(value.detach().double().sum().item())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.shape, str(value.sum())
    if depth and isinstance(value, dict):
        return tuple((str(key), _fingerprint(v, depth - 1)) for key, v in value.items())
    if depth and isinstance(value, list | tuple):
        return len(value), tuple(_fingerprint(each, depth - 1) for each in value[:100])
    return len(value) if isinstance(value, set) else None


def _drawn() -> tuple[Any, ...]:
    """Where Python's and numpy's generators stand."""
    state = np.random.get_state()
    return random.getstate(), tuple(map(str, state))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _near(a: Tensor, b: Tensor, close: float) -> bool:
    """Equal up to rounding, relative to the largest number."""
    if a.shape != b.shape:
        return False
    if not a.numel():
        return True
    a, b = a.detach().double(), b.detach().double()
    largest = float(torch.maximum(a.nan_to_num().abs().max(), b.nan_to_num().abs().max()))
    return bool(torch.allclose(a, b, rtol=0, atol=close * largest + 1e-30, equal_nan=True))
