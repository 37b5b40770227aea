"""What a model is judged by beside its loss: functions of its outputs on all test samples.

``METRICS`` is the only list of names: a new metric is one entry. scikit-learn is imported when a
metric is computed, for it takes long to import and most runs need none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from fednag.errors import FednagError

if TYPE_CHECKING:
    from torch import Tensor

Better = Literal["higher", "lower"]
Task = Literal["classes", "numbers"]

TOP = 5


@dataclass(frozen=True)
class Metric:
    """A function of (outputs, targets) over all test samples, and which values are better.

    Outputs are the model's, a row a sample, on the CPU. A value that is not finite means that the
    metric is not defined there.

    >>> import fednag
    >>> worst = fednag.Metric(lambda output, target: (output - target).abs().max(), better="lower")
    >>> worst.better
    'lower'
    """

    function: Callable[[Tensor, Tensor], Any]
    better: Better = "higher"
    task: Task | None = None  # what the targets must be; None: anything
    needs: str = ""  # what must be there for it to be defined

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise FednagError(
                "Metric", f"{self.function!r} is not a function of outputs and targets"
            )
        if self.better not in ("higher", "lower"):
            raise FednagError("Metric", f"better is {self.better!r}", "write 'higher' or 'lower'")


def accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(-1) == target).double().mean())


def top5(output: Tensor, target: Tensor) -> float:
    """How often the right class is among the five of highest score."""
    from sklearn.metrics import top_k_accuracy_score

    classes = output.shape[-1]
    if classes <= TOP:  # then it always is; scikit-learn would warn of that
        return 1.0
    scores, labels = output.double().numpy(), range(classes)
    return float(top_k_accuracy_score(target.numpy(), scores, k=TOP, labels=list(labels)))


def macro_f1(output: Tensor, target: Tensor) -> float:
    """The mean over classes of F1; over those that are among the labels or the answers."""
    from sklearn.metrics import f1_score

    answers = output.argmax(-1).numpy()
    return float(f1_score(target.numpy(), answers, average="macro", zero_division=0))


def macro_auc(output: Tensor, target: Tensor) -> float:
    """The mean over classes of the area under the ROC curve, each class against all others."""
    from sklearn.metrics import roc_auc_score

    scores, labels = output.double().softmax(-1).numpy(), target.numpy()
    classes = scores.shape[-1]
    if classes < 2 or len(set(labels.tolist())) < classes:
        return float("nan")
    # Of two classes, one curve is the other's mirror image.
    judged = [1] if classes == 2 else range(classes)
    areas = [float(roc_auc_score(labels == c, scores[:, c])) for c in judged]
    return sum(areas) / len(areas)


def r2(output: Tensor, target: Tensor) -> float:
    """The part of the targets' variance that is explained; the mean over several outputs."""
    from sklearn.metrics import r2_score

    wanted = target.double().reshape(len(target), -1)
    if bool((wanted == wanted[0]).all(0).any()):
        return float("nan")
    given = output.double().reshape(len(output), -1)
    return float(r2_score(wanted.numpy(), given.numpy()))


def mean_absolute_error(output: Tensor, target: Tensor) -> float:
    from sklearn.metrics import mean_absolute_error as error

    given, wanted = (part.double().reshape(len(part), -1).numpy() for part in (output, target))
    return float(error(wanted, given))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, task="classes"),
    "top5": Metric(top5, task="classes"),
    "f1": Metric(macro_f1, task="classes"),
    "auc": Metric(
        macro_auc, task="classes", needs="every class that the model tells apart among the targets"
    ),
    "r2": Metric(r2, task="numbers", needs="targets that differ"),
    "mae": Metric(mean_absolute_error, "lower", task="numbers"),
}

# What every record measures, without being asked.
ALWAYS: dict[str, Better] = {
    "loss": "lower",
    "test_loss": "lower",
    "accuracy": "higher",
    "train_accuracy": "higher",
}

# Names of a metric's own must not be those of what stands beside it in records, charts and files.
TAKEN = {
    *METRICS,
    *ALWAYS,
    *("iteration", "round", "bytes", "bytes_up", "bytes_down", "seconds", "clock", "runs"),
    *("participants", "refusals", "misses", "method", "label", "low", "high"),
    *("iterations", "ended"),
}


def better_of(measure: str, own: Mapping[str, Any] | None = None) -> Better:
    """Which values of a measure are better; ``own`` says it of metrics that are not ours."""
    if measure in ALWAYS:
        return ALWAYS[measure]
    if measure in METRICS:
        return METRICS[measure].better
    return "lower" if (own or {}).get(measure) == "lower" else "higher"


def as_good(value: float | None, level: float, better: Better) -> bool:
    """Whether a value is at least as good as a level."""
    if value is None:
        return False
    return value >= level if better == "higher" else value <= level


def improves(value: float, best: float, by: float, better: Better) -> bool:
    """Whether a value is better than the best so far, by more than ``by``."""
    return value > best + by if better == "higher" else value < best - by


def fitting(
    chosen: Mapping[str, Metric], classes: bool, tests: bool, where: str = "evaluation.metrics"
) -> dict[str, Metric]:
    """Metrics that can be taken of this task; a sentence on the first that cannot."""
    task: Task = "classes" if classes else "numbers"
    for name, metric in chosen.items():
        if metric.task not in (None, task):
            fit = [other for other, known in METRICS.items() if known.task == task]
            raise FednagError(
                where,
                f"{name} is for {metric.task}, and these targets are {task}",
                f"use {', '.join(fit)}",
            )
        if not tests:
            raise FednagError(
                where,
                f"{name} is taken on test samples, and there are none",
                f"give some, or leave {name} out",
            )
    # Every record of classes has the accuracy anyway.
    return {name: metric for name, metric in chosen.items() if name != "accuracy"}


def measured(name: str, metric: Metric, output: Any, target: Tensor) -> float | None:
    """A metric's value; None where it is not defined, a sentence if its function fails.

    Outputs of models that give several are handed to functions of the user's own as they are.
    """
    shape = getattr(output, "shape", None)
    if shape is None and METRICS.get(name) is metric:
        raise FednagError(
            "metrics",
            f"{name} is taken of a tensor of scores, and the model gives a {type(output).__name__}",
            "write a function of your own",
        )
    if shape is not None and not bool(output.isfinite().all()):
        return None
    try:
        found = metric.function(output, target)
    except FednagError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        kind = f"a {type(output).__name__}"
        given = kind if shape is None else f"outputs of shape {tuple(shape)}"
        raise FednagError(
            "metrics",
            f"{name} failed on {given} and targets of shape {tuple(target.shape)} ({why})",
            "correct the function",
        ) from error
    value = _number(found)
    if value is None:
        raise FednagError(
            "metrics",
            f"{name} must return a number, and returned {type(found).__name__}",
            "correct the function",
        )
    return value if isfinite(value) else None


def undefined(name: str, times: int, of: int, metric: Metric | None = None) -> str:
    """What is noted of a metric that some evaluations could not give."""
    needs = f" (it needs {metric.needs})" if metric and metric.needs else ""
    when = "at no evaluation" if times == of else f"at {of - times} of {of} evaluations only"
    return f"{name} was defined {when}{needs}; it is left empty elsewhere"


def _number(found: object) -> float | None:
    """A Python or numpy number, or a tensor or an array of one, as a float."""
    if getattr(found, "shape", None) == () and hasattr(found, "item"):
        found = found.item()
    try:
        return float(found) if isinstance(found, Real) else None
    except OverflowError:  # a whole number beyond all floating ones
        return float("inf")
