"""The parts of a round that an experiment names: what travels, how it is reduced, who decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from fednag.aggregators import (
    AGGREGATORS,
    CentredClipping,
    Mean,
    Median,
    Secure,
    Staleness,
    TrimmedMean,
)
from fednag.attacks import ATTACKS
from fednag.config.messages import nearest
from fednag.config.own import build, build_part, checker
from fednag.config.sections import CUSTOM, is_own
from fednag.controllers import CONTROLLERS, SCHEDULES
from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import Algorithm, News, numbers_returned, server_round
from fednag.core.attack import Attack
from fednag.core.controller import Controller, Schedule
from fednag.core.loop import GradientNoise, Scheme
from fednag.core.transform import Chain, Transform
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.transforms import TRANSFORMS

if TYPE_CHECKING:
    from fednag.config import Experiment

# By the section they stand in; of the first two there is one, of the others a list.
REGISTRIES: dict[str, tuple[dict[str, Any], type[Any]]] = {
    "aggregator": (AGGREGATORS, Aggregator),
    "controller": (CONTROLLERS, Controller),
    "uplink": (TRANSFORMS, Transform),
    "downlink": (TRANSFORMS, Transform),
    "schedule": (SCHEDULES, Schedule),
    "attack": (ATTACKS, Attack),
}
LISTED = ("uplink", "downlink", "schedule", "attack")

Given = Mapping[str, Sequence[Any]]
"""Parts that are objects of Python, by section, in their order; None where a table says it all."""


def filled_in(experiment: Experiment, code: bool) -> Experiment:
    """The experiment with every number of its parts; raises FednagError for what is none."""
    found: dict[str, Any] = {}
    for section, field, table in _tables(experiment):
        registry, base = REGISTRIES[section]
        own = is_own(table.get("kind"))
        if table.get("kind") != CUSTOM and (code or not own):
            part = build_part(table, registry, base, field)
            table = {"kind": table["kind"], **_numbers(part)}
        found.setdefault(section, []).append(table)
    single = {name: tables[0] for name, tables in found.items() if name not in LISTED}
    listed = {name: tuple(found.get(name, ())) for name in LISTED}
    return experiment.model_copy(update={**single, **listed})


def scheme_of(experiment: Experiment, algorithm: Algorithm, given: Given | None = None) -> Scheme:
    """What the rounds of an experiment are made of."""
    made: dict[str, list[Any]] = {section: [] for section in REGISTRIES}
    for section, field, table in _tables(experiment):
        registry, base = REGISTRIES[section]
        objects = (given or {}).get(section, ())
        place = len(made[section])
        part = objects[place] if place < len(objects) else None
        if part is None and table.get("kind") == CUSTOM:
            raise FednagError(
                f"{field}.kind", "this part of the run was a Python object", "run it from Python"
            )
        made[section].append(part or build_part(table, registry, base, field))
    for place, schedule in enumerate(made["schedule"]):
        check_schedule(schedule, algorithm, f"schedule.{place}.field")
        if schedule.field in [other.field for other in made["schedule"][:place]]:
            raise FednagError(
                f"schedule.{place}.field",
                f"{schedule.field} has a schedule already",
                "leave one out",
            )
    schedules, gradient = tuple(made["schedule"]), _gradient_noise(experiment)
    if algorithm.pooled:  # nothing travels, and there is nobody to choose from
        return Scheme(algorithm, schedules=schedules, gradient=gradient)
    (controller,), (aggregator,) = made["controller"], made["aggregator"]
    aggregator = aggregator_of(algorithm, controller, aggregator)
    if isinstance(aggregator, Staleness) and not controller.keeps_late:
        raise FednagError(
            "aggregator.kind",
            f"staleness is of late answers, and {experiment.controller['kind']} uses none",
            "use another, or controller.kind = 'buffered'",
        )
    if controller.needs_clock and experiment.clock.fleet is None:
        raise FednagError(
            "controller.kind",
            f"{experiment.controller['kind']} goes by a fleet's times, and there is no clock",
            "name a fleet, e.g. clock.fleet = 'paper-edge'",
        )
    if controller.needs_deadline and experiment.clock.deadline is None:
        raise FednagError(
            "clock.deadline",
            f"is missing, and {experiment.controller['kind']} ends its rounds by it",
            "give seconds",
        )
    if controller.keeps_late and not algorithm.rounds_alike:
        raise FednagError(
            "controller.kind",
            f"{experiment.controller['kind']} does not wait for all workers, and "
            f"{type(algorithm).__name__} has rounds of several exchanges or of different kinds",
            "use another method or controller",
        )
    uplink, downlink = Chain((*algorithm.channel, *made["uplink"])), Chain(tuple(made["downlink"]))
    if isinstance(aggregator, Secure):
        if experiment.clock.fleet is not None:
            raise FednagError(
                "clock.fleet",
                "a clock does not time the four steps of the aggregator secure",
                "leave it out, or use another aggregator",
            )
        aggregator.check_parts(algorithm, uplink, controller)
    if isinstance(aggregator, CentredClipping) and any(
        numbers_returned(algorithm, stage, torch.zeros(1)) for stage in algorithm.stages
    ):
        raise FednagError(
            "aggregator.kind",
            "centred-clipping bounds vectors, and not the number that workers of "
            f"{type(algorithm).__name__} send beside them",
            "use another aggregator, e.g. norm-bound",
        )
    attacks = tuple(made["attack"])
    for place, attack in enumerate(attacks):
        if attack.sees and not controller.waits:
            raise FednagError(
                f"attack.{place}.kind",
                f"{experiment.attack[place]['kind']} needs what all honest workers send in a "
                f"round, and {experiment.controller['kind']} does not wait for them",
                "use another attack or controller",
            )
    return Scheme(
        algorithm, controller, uplink, downlink, aggregator, schedules, gradient, attacks=attacks
    )


def aggregator_of(algorithm: Algorithm, controller: Controller, given: Aggregator) -> Aggregator:
    """The aggregator of a run: in place of the plain mean, the method's or the controller's own."""
    own = controller.aggregator
    if own is None:
        plain = type(given) is Mean
        return algorithm.aggregator if plain and algorithm.aggregator is not None else given
    name = type(controller).__name__
    if algorithm.aggregator is not None or counts_share(algorithm):
        raise FednagError(
            "controller.kind",
            f"{name} goes with a mean of its own, and {type(algorithm).__name__} needs the one "
            "weighted by data size, or noises it",
            "use another method or controller",
        )
    if type(given) is Mean:
        return own
    if given.weight(1, 0) != given.weight(2, 0) and not isinstance(given, Median | TrimmedMean):
        raise FednagError(
            "aggregator.kind",
            f"{type(given).__name__} counts workers by size, and {name} has drawn them by size "
            "already",
            "leave the aggregator out, or use equal, median or trimmed-mean",
        )
    return given


def counts_share(algorithm: Algorithm) -> bool:
    """Whether the server adds up what its workers keep: seen by trying its last rule."""
    w = torch.linspace(0.5, 1, 4, dtype=torch.float64)
    server, stage = algorithm.init(w), algorithm.stages[-1]
    mean = Vectors(**{name: torch.ones_like(w) for name in stage.up})
    try:
        few, all_ = (server_round(stage, server, mean, News(s, 1.0)) for s in (0.5, 1.0))
    except Exception:  # a rule of the user's own that cannot be tried out so
        return False
    return any(not torch.equal(few[name], all_[name]) for name in all_)


def _gradient_noise(experiment: Experiment) -> GradientNoise | None:
    """What a promise for single samples asks of gradients."""
    norm, multiplier = experiment.privacy.norm, experiment.privacy.noise_multiplier
    return None if norm is None or multiplier is None else GradientNoise(norm, multiplier)


def described(part: object, section: str) -> tuple[dict[str, Any], Any]:
    """A part given from Python as a table, and itself unless the table says it all."""
    registry, base = REGISTRIES[section]
    if isinstance(part, str):
        return {"kind": part}, None
    if isinstance(part, Mapping):
        if base is not Schedule or not callable(part.get("kind")):
            return dict(part), None
        numbers = {name: number for name, number in part.items() if name != "kind"}
        part = build(Schedule.of(part["kind"]), numbers, section)
    if isinstance(part, type):
        raise FednagError(section, remedy=f"give an instance, {part.__name__}(), not the class")
    if not isinstance(part, base):
        raise FednagError(
            section,
            f"{part!r} is no {base.__name__.lower()}",
            f"give a name, a table, or a fednag.{base.__name__}",
        )
    name = type(part).__name__
    if not is_dataclass(part):
        raise FednagError(section, remedy=f"put @dataclass(frozen=True) above class {name}")
    names = {cls: known for known, cls in registry.items()}
    if type(part) in names:
        return {"kind": names[type(part)], **_numbers(part)}, None
    return {"kind": CUSTOM, "class": name, **_numbers(part)}, part


def kinds_of(experiment: Experiment) -> list[str]:
    """The names of an experiment's parts."""
    return [str(table.get("kind")) for _, _, table in _tables(experiment)]


def without_defaults(section: str, given: Any) -> Any:
    """A section's tables without the numbers that are a part's own defaults, for a run's key."""

    def slim(table: Mapping[str, Any]) -> dict[str, Any]:
        cls = REGISTRIES[section][0].get(str(table.get("kind")))
        usual = {field.name: field.default for field in fields(cls)} if cls else {}
        return {k: v for k, v in table.items() if k not in usual or v != usual[k]}

    return [slim(table) for table in given] if section in LISTED else slim(given)


def _tables(experiment: Experiment) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(section, what to call it in errors, table) of every part."""
    for section in REGISTRIES:
        given = getattr(experiment, section)
        if section in LISTED:
            yield from ((section, f"{section}.{i}", table) for i, table in enumerate(given))
        else:
            yield section, section, given


def _numbers(part: Any) -> dict[str, Any]:
    numbers = asdict(part)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}


def check_schedule(schedule: Schedule, algorithm: Algorithm, field: str) -> None:
    """Raise FednagError unless it sets a number of the algorithm."""
    section, _, name = schedule.field.partition(".")
    numbers = [each.name for each in fields(algorithm)]  # type: ignore[arg-type]
    if section != "algorithm" or name not in numbers:
        known = [f"algorithm.{each}" for each in numbers]
        raise FednagError(
            field,
            f"{schedule.field!r} is no number of "
            f"{type(algorithm).__name__}{nearest(schedule.field, known)}",
            f"it has {', '.join(known)}",
        )
    if not isinstance(getattr(algorithm, name), int | float):
        raise FednagError(field, f"{schedule.field} is not a number", "schedule another")
    first, model = getattr(algorithm, name), checker(type(algorithm))
    kind = type(schedule).__name__
    # The last round begins before all iterations are done; few places tell of most mistakes.
    for done in (0.0, 0.5, 0.999, *(place / 100 for place in range(1, 100))):
        try:
            value = schedule.at(first, done)
        except Exception as error:  # whatever a function of the user's own raises
            raise FednagError(
                field,
                f"{kind} fails when the share {done:g} of the run is done "
                f"({type(error).__name__}: {error})",
                "correct it there",
            ) from error
        try:
            model.model_validate({**asdict(algorithm), name: value})  # type: ignore[call-overload]
        except ValidationError:
            raise FednagError(
                field,
                f"{schedule.field} would become {value:.4g}, which {type(algorithm).__name__} "
                "does not allow",
                "change the schedule's numbers",
            ) from None
