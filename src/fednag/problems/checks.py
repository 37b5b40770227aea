"""Recordings that are used only as long as they agree with the user's own module.

A recording is compared with ``Plain``, the user's module and ``loss.backward()``, when it is first
used, and again whenever a check is due: each worker's own batch, without padding. It was recorded
with other numbers than it is compared on, so that what a recording cannot follow shows.

In double precision both must agree to a relative 1e-9. A recording in single precision is compared
through its twin: the same function recorded in double precision agrees with the module to 1e-9;
both recordings do the same operations, one for one; and the replay of the one in single precision
gives what its operations give. Where a model does not compute in double precision, the two are
compared in single precision, and may differ by what rounding the weights once more would change.

What does not agree is not used: workers are computed alone instead of stacked, or by the plain
loop. What has been used already and then disagrees spoils the run: it is begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fednag.compute.randomness import is_private, private_randomness, quietly
from fednag.compute.recording import Recording, Traced
from fednag.compute.replay import in_python
from fednag.core.vectors import Vector
from fednag.errors import FednagError
from fednag.problems.plain import first_line

if TYPE_CHECKING:
    from fednag.problems.problem import Problem

CLOSE = 1e-9  # relative difference allowed in double precision
ROUNDINGS = 64  # times what one more rounding of the inputs changes, in single precision
EPSILON = torch.finfo(torch.float32).eps
MOST_RECORDINGS = 24  # of one function; batches of further shapes go through the plain loop
MOST_SAMPLES = 64  # of an evaluation that the module computes too
SEED = 7_919  # of the numbers recordings are made with

T = TypeVar("T")
Given = Sequence[Tensor]


class MisrecordedError(Exception):
    """A recording that was used already does not agree with the module any more."""


@dataclass(frozen=True)
class Function:
    """What is recorded of a problem, and how it is found out whether that is right."""

    name: str
    of: Callable[[Problem], Callable[..., Any]]  # the function, in a problem's precision
    made_up: Callable[[Given], Given]  # other numbers of the same kinds, to record with
    moved: Callable[[Given], Given]  # the same samples at other weights
    expected: Callable[[Problem, Given, slice], list[Tensor]]
    """What the user's module gives for some rows, in a problem's precision."""
    widened: Callable[[Given], Given]
    """The same numbers in double precision, for a problem's twin."""
    most: int | None = None
    """Rows compared, spread over all of them; None: all at first, and then one after the other."""
    before: Callable[[Given], list[Tensor | None]] | None = None
    """For each result, what it was before: an error is measured by how far the result moved."""


class Checked:
    """A function of a problem, recorded and replayed; every recording is compared when due."""

    def __init__(self, problem: Problem, function: Function) -> None:
        self.problem, self.function = problem, function
        self._traced = Traced(function.of(problem), lambda *given: function.made_up(given))
        self._twin: Traced | None = None

    def attempt(
        self, given: Given, due: int, padded: bool, give_up: Callable[[str], None]
    ) -> Recording | None:
        """The recording for these tensors; if it was last checked before ``due``, it is first.

        Batches that are padded are checked apart from those that are not. None where there is no
        recording to use: ``give_up`` was then told why, unless there are too many shapes only.
        Raises MisrecordedError if the recording was used already and does not agree any more.
        """
        if not self._traced.has(*given) and len(self._traced) >= MOST_RECORDINGS:
            return None
        try:
            recording = self._traced.recording(*given)
            if recording.checked[padded] < due:
                with quietly():
                    if recording.checked[padded] < due:
                        self._check(recording, given, due, padded)
            return recording
        except (MisrecordedError, FednagError):
            raise
        except Exception as error:  # whatever a user's model raises under recording
            give_up(first_line(error))
            return None

    def _check(self, recording: Recording, given: Given, due: int, padded: bool) -> None:
        workers = len(given[0])
        first = recording.checked[padded] < 0
        if self.function.most is not None:  # other ones every time
            apart = -(-workers // self.function.most)
            rows = slice(due % apart, workers, apart)
        else:
            rows = slice(0, workers) if first else slice(due % workers, due % workers + 1)
        if first:  # the first weights may be what a recording holds on to
            given = self.function.moved(given)
        with private_randomness(SEED + due):
            why = self._disagreement(recording, given, rows, first)
        if why is None:
            recording.checked[padded] = due
        elif first:
            raise RuntimeError(why)
        else:
            raise MisrecordedError(why)

    def _disagreement(
        self, recording: Recording, given: Given, rows: slice, first: bool
    ) -> str | None:
        problem, twin = self.problem, self.problem.twin
        if problem.dtype == torch.float64:
            return self._exact(recording(*given), problem, given, rows)
        if twin is not None:
            wide = self.function.widened(given)
            if self._twin is None:
                of = self.function.of(twin)
                self._twin = Traced(of, lambda *given: self.function.made_up(given))
            double = self._twin.recording(*wide)
            if recording.does_as(double):
                found = in_python(double.module)(*wide)
                why = self._exact(found, twin, wide, rows)
                # The interpreter does the same every time: to see it once is enough.
                return why or (self._replayed(recording, given) if first else None)
        return self._rounded(recording, given, rows)

    def _exact(self, found: Any, problem: Problem, given: Given, rows: slice) -> str | None:
        results = [part[rows] for part in _listed(found)]
        expected = self.function.expected(problem, given, rows)
        before = self.function.before(given) if self.function.before else [None] * len(results)
        for ours, theirs, start in zip(results, expected, before, strict=True):
            size = _largest(theirs if start is None else theirs - start[rows])
            if why := self._apart(ours, theirs, CLOSE * size + 1e-14 * _largest(theirs)):
                return why
        return None

    def _replayed(self, recording: Recording, given: Given) -> str | None:
        """The interpreter against Python, on the very recording that is used."""
        fast, slow = _listed(recording(*given)), _listed(in_python(recording.module)(*given))
        for ours, theirs in zip(fast, slow, strict=True):
            if why := self._apart(ours, theirs, 16 * EPSILON * _largest(theirs)):
                return why
        return None

    def _rounded(self, recording: Recording, given: Given, rows: slice) -> str | None:
        """In single precision: no further apart than roundings of the inputs would bring it."""
        results = [part[rows] for part in _listed(recording(*given))]
        expected = self.function.expected(self.problem, given, rows)
        again = self.function.expected(self.problem, [_nudged(t) for t in given], rows)
        for ours, theirs, other in zip(results, expected, again, strict=True):
            noise = _largest(other.double() - theirs.double()) + EPSILON * _largest(theirs)
            if why := self._apart(ours, theirs, ROUNDINGS * noise):
                return why
        return None

    def _apart(self, ours: Tensor, theirs: Tensor, bound: float) -> str | None:
        name = self.function.name
        if ours.shape != theirs.shape:
            return f"its recorded {name} has another shape than the module's"
        a, b = ours.double(), theirs.double()
        if torch.allclose(a, b, rtol=0, atol=max(bound, 1e-300), equal_nan=True):
            return None
        size = _largest(b)
        share = f" by {_largest(a - b) / size:.1e} of it" if size else ""
        return f"its recorded {name} differs from the module's{share}"


class _Recorded:
    """A function of a problem; ``plain`` says why it is computed by the plain loop, if it is."""

    def __init__(self, problem: Problem, function: Function, plain: str | None = None) -> None:
        self.problem, self.plain, self.due = problem, plain, 0
        self._recorded = Checked(problem, function)

    def _record_no_more(self, why: str) -> None:
        self.plain = self.plain or why


class Gradients(_Recorded):
    """``gradients(w, b, x, y, weight)``: for each stacked worker, the gradient of its loss.

    Takes w (n, d), the buffers b (n, k), x (n, m, ...), y (n, m, ...) and weight (n, m), which is 0
    for what is padded; gives (n, d) and the buffers after the batch, (n, k). ``plain`` says why
    the plain loop computes them, ``alone`` why workers are not stacked.
    """

    def __init__(self, problem: Problem) -> None:
        self.alone: str | None = None
        function = Function(
            name="gradient",
            of=lambda each: each.differentiable,
            made_up=_other_batch,
            moved=lambda given: (moved(given[0]), *given[1:]),
            expected=lambda each, given, rows: list(plainly(each, *(g[rows] for g in given))),
            widened=lambda given: [widened(part) for part in given],
        )
        drawn = problem.facts.random
        super().__init__(problem, function, drawn and f"it draws random numbers {drawn}")

    def __call__(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor, padded: bool = False
    ) -> tuple[Vector, Vector]:
        given = w, b, x, y, weight
        stacked = len(w) > 1
        if self.plain is None and not (stacked and self.alone):
            give_up = self._stack_no_more if stacked else self._record_no_more
            recording = self._recorded.attempt(given, self.due, padded, give_up)
            if recording is not None:
                gradient, after = recording(*given)
                return gradient, after
        if stacked:
            rows = []
            for i in range(len(w)):
                one = slice(i, i + 1)
                rows.append(self(w[one], b[one], x[one], y[one], weight[one], padded))
            return torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])
        return plainly(self.problem, *given)

    def prepare(self, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor) -> bool:
        """Record for these shapes and compare. True if that recording will be used."""
        self(w, b, x, y, weight)
        return self.plain is None and not (len(w) > 1 and self.alone)

    def _stack_no_more(self, why: str) -> None:
        self.alone = self.alone or why


def plainly(
    problem: Problem, w: Vector, b: Vector, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Vector, Vector]:
    """Gradients by the user's own module, worker by worker, each on its own samples."""
    if not is_private():  # a model that turns out to be random in the middle of a round
        with private_randomness(SEED):
            return plainly(problem, w, b, x, y, weight)
    gradients, after = [], []
    for row in range(len(w)):
        # Where batches are not padded, samples without weight are ignored ones, and still seen.
        used = slice(None) if problem.batchwise else weight[row] != 0
        samples, targets = x[row][used], y[row][used]
        if not len(samples):
            gradients.append(torch.zeros_like(w[row]))
            after.append(b[row])
            continue
        factor = _part(problem, weight[row][used], targets)
        found = guarded(
            lambda r=row, s=samples, t=targets: problem.plain.gradient(w[r], b[r], s, t),  # type: ignore[misc]
            len(samples),
        )
        gradients.append(factor * found[0] if factor else torch.zeros_like(w[row]))
        after.append(found[1])
    return torch.stack(gradients), torch.stack(after)


def _part(problem: Problem, weight: Tensor, y: Tensor) -> float:
    """How much a batch's own loss counts: 1, but for a batch that is part of a larger one."""
    if problem.objective.values is None:
        return 1.0
    shares = problem.objective.shares
    held = torch.ones_like(weight, dtype=torch.float64) if shares is None else shares(y)
    return float((held * weight.double()).sum())


class Judgements(_Recorded):
    """``judgements(w, b, x, y, index)``: loss and hit of each sample at ``index``, in float64."""

    def __init__(self, problem: Problem) -> None:
        function = Function(
            name="evaluation",
            of=lambda each: lambda index, w, b, x, y: list(each.judged(w, b, x, y, index)),
            made_up=_other_samples,
            moved=lambda given: (given[0], moved(given[1]), *given[2:]),
            expected=_judged_plainly,
            widened=_wide_samples,
            most=MOST_SAMPLES,
        )
        super().__init__(problem, function)

    def __call__(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = index, w, b, x, y
        recording = None
        if self.plain is None:
            recording = self._recorded.attempt(given, self.due, False, self._record_no_more)
        if recording is not None:
            losses, hits = recording(*given)
        else:
            losses, hits = _judged_plainly(self.problem, given, slice(0, len(index)))
        return losses.double(), hits.double()


def _judged_plainly(problem: Problem, given: Given, rows: slice) -> list[Tensor]:
    index, w, b, x, y = given
    if not problem.facts.mixes_settled:  # a sample's loss is the same whatever is beside it
        index, rows = index[rows], slice(None)
    features, targets = problem.batch(x, y, index)
    # One that is random there too is measured with the same draws every time.
    with private_randomness(SEED), torch.no_grad():
        output = computed_output(problem, w, b, features)
        found = guarded(lambda: problem.judge(output, targets), len(targets))
        return [part[rows] for part in found]


def computed_output(problem: Problem, w: Vector, b: Vector, features: Tensor) -> Any:
    """What the user's module gives in evaluation mode."""
    with private_randomness(SEED):
        return guarded(lambda: problem.plain.output(w, b, features), len(features))


def guarded(compute: Callable[[], T], samples: int) -> T:
    """Whatever the user's model raises, as a sentence."""
    try:
        return compute()
    except FednagError:
        raise
    except Exception as error:
        many = "one sample" if samples == 1 else f"{samples} samples"
        raise FednagError(
            "model",
            f"it fails on a batch of {many} ({first_line(error)})",
            "give one that takes batches of any size, or another training.batch",
        ) from error


def widened(tensor: Tensor) -> Tensor:
    """In double precision, laid out in memory as it was."""
    if tensor.dtype != torch.float32:
        return tensor
    return _laid_out(tensor, lambda base: base.double())


def noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Other numbers of the same size and layout."""

    def other(base: Tensor) -> Tensor:
        draws = torch.randn(base.shape, generator=generator, dtype=torch.float64)
        spread = float(base.double().std(correction=0)) if base.numel() else 0.0
        return base + (draws * (0.3 * spread + 1e-3)).to(base)

    return _laid_out(tensor, other)


def moved(tensor: Tensor) -> Tensor:
    return noisy(tensor, torch.Generator().manual_seed(SEED + 1))


def _laid_out(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``change`` of the numbers a tensor holds, with its strides."""
    base = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            base = base.narrow(dim, 0, 1)
    found = torch.empty_strided(base.shape, base.stride(), dtype=change(base).dtype)
    found = found.to(tensor.device)
    return found.copy_(change(base)).expand(tensor.shape)


def _other_batch(given: Given) -> Given:
    w, b, x, y, weight = given
    draw = torch.Generator().manual_seed(SEED)
    order = torch.randperm(x.shape[0] * x.shape[1], generator=draw).to(x.device)
    x = x.reshape(-1, *x.shape[2:])[order].view(x.shape)
    y = y.reshape(-1, *y.shape[2:])[order].view(y.shape)
    x = noisy(x, draw) if x.is_floating_point() else x
    return noisy(w, draw), b.clone(), x, y, weight


def _other_samples(given: Given) -> Given:
    index, w, b, x, y = given
    return other_index(index, len(x)), noisy(w, torch.Generator().manual_seed(SEED)), b, x, y


def _wide_samples(given: Given) -> Given:
    index, w, b, x, y = given
    index, x, y = selected(index, x, y)
    return index, widened(w), widened(b), x, y


def selected(index: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Only the samples at ``index``, in double precision: all would take much memory."""
    flat = index.reshape(-1)
    places = torch.arange(len(flat), device=index.device).view(index.shape)
    return places, widened(x.index_select(0, flat)), widened(y.index_select(0, flat))


def other_index(index: Tensor, samples: int) -> Tensor:
    draw = torch.Generator().manual_seed(SEED)
    return torch.randint(samples, index.shape, generator=draw).to(index.device)


def _nudged(tensor: Tensor) -> Tensor:
    """Every number moved by a rounding."""
    if not tensor.is_floating_point():
        return tensor
    draw = torch.Generator().manual_seed(SEED)

    def nudge(base: Tensor) -> Tensor:
        signs = torch.randint(2, base.shape, generator=draw).to(base) * 2 - 1
        return base * (1 + EPSILON * signs)

    return _laid_out(tensor, nudge)


def _listed(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def _largest(tensor: Tensor) -> float:
    return float(tensor.nan_to_num().abs().max()) if tensor.numel() else 0.0
