"""From a checked experiment to a plan that can run: loads data, deals it out, builds the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fednag.aggregators import Mean
from fednag.compute.threads import one_thread
from fednag.config import CUSTOM, Experiment, build_algorithm, participants
from fednag.config.own import own_loss, own_metrics, own_model
from fednag.config.parts import scheme_of
from fednag.config.sections import Data, Evaluation, Split, Stop, Tier, is_own
from fednag.controllers import Constant, Poisson
from fednag.core.algorithm import BUFFERS, Algorithm, lengths
from fednag.core.attack import attackers
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Scheme
from fednag.core.vectors import Vectors
from fednag.data import partition, tables
from fednag.data import sets as data
from fednag.data.dataset import Dataset, is_for_numbers, is_integer
from fednag.data.partition import Drawn, Partition
from fednag.data.validation import cut
from fednag.devices.executor import on_clock
from fednag.devices.fleet import load_fleet
from fednag.errors import FednagError
from fednag.privacy.promise import accountant_of, sample_accountant
from fednag.problems import models
from fednag.problems.losses import Loss
from fednag.problems.metrics import METRICS, Better, Metric, better_of, fitting
from fednag.problems.models import Factory, made
from fednag.problems.problem import Problem
from fednag.runs.choices import choose
from fednag.simulate.engine import first_memory, first_state
from fednag.simulate.private import check_model
from fednag.simulate.run import Level, Patience, Plan, Plateau
from fednag.simulate.tiers import Edges

T = TypeVar("T")

NAMED = 10  # attackers in a note
WINDOW = 5  # evaluations, where a plateau is looked for
MOST_IN_MEMORY = 1 << 30  # bytes of what all workers keep; more is kept on the disk
WIDE = 5.0  # standard deviations of features above this are worth a word


@dataclass
class Parts:
    """Objects given from Python in place of a name in the file."""

    dataset: Dataset | None = None
    module: nn.Module | Factory | None = None
    loss: str | Loss | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    given: dict[str, list[Any]] = field(default_factory=dict)  # of the round, by section
    elsewhere: bool = False  # the data are with others, and a stand-in takes their place here
    untested: bool = False  # no test samples but those of a validation part are ever here
    several_seeds: bool = False  # whether runs of other seeds stand beside this one


@dataclass
class Builder:
    """Builds plans; runs of one comparison share the data, the split and the recorded model."""

    parts: Parts = field(default_factory=Parts)
    _made: dict[str, Any] = field(default_factory=dict)
    # A factory's, by its name and the seed.
    _modules: dict[tuple[str, int], nn.Module] = field(default_factory=dict)
    _told: bool = False  # that a chunk was chosen by timing: once for all runs

    def plan(
        self, experiment: Experiment, algorithm: Algorithm | None = None
    ) -> tuple[Experiment, Plan, list[str]]:
        """(the experiment with every choice made, its plan, notes for the user)."""
        if algorithm is None and experiment.algorithm.get("name") == CUSTOM:
            raise FednagError(
                "algorithm.name", "the method of this run was a Python object", "run it from Python"
            )
        algorithm = algorithm or build_algorithm(experiment.algorithm)
        device = resolve_device(experiment.engine.device)
        if self.parts.elsewhere and experiment.data.validation is not None:
            raise FednagError(
                "data.validation", "is cut by the simulator, and silos cut none", "leave it out"
            )
        dataset = self.dataset(experiment)
        measured = fitting(
            metrics_of(experiment.evaluation, self.parts.metrics),
            dataset.classes is not None,
            len(dataset.test_x) > 0 or self.parts.elsewhere,
        )
        if self.parts.dataset is not None and dataset.owners is not None:
            check_owned(experiment.split)
        deal = self._once(
            ["split", experiment.split, experiment.data, experiment.seed],
            lambda: split(dataset, experiment.split, experiment.seed),
        )
        problem = self.problem(experiment, dataset, device)
        training, engine = experiment.training, experiment.engine
        workers = 1 if algorithm.pooled else len(deal.workers)
        per_round = participants(experiment, workers)
        dealt = deal.pooled() if algorithm.pooled else deal
        owned = dealt.workers
        draws = Draws(experiment.seed, dealt.sizes, training.batch)
        scheme = scheme_of(experiment, algorithm, self.parts.given)
        check_links(scheme, problem)
        # Methods that are compared share the choice.
        choice = self._once(
            [
                # A given chunk displaces none found.
                f"tuning of {per_round}, chunk {engine.chunk}, {scheme.gradient}",
                *self._parts(experiment, device),
                (draws.width, training.tau, engine, algorithm.elementwise),
            ],
            lambda: choose(
                problem,
                scheme,
                owned,
                draws,
                training.tau,
                participants=per_round,
                iterations=training.iterations,
                chunk=1 if scheme.gradient else engine.chunk,  # samples are stacked instead
                threads=engine.threads,
                inner=engine.inner,
            ),
        )
        check_shared(experiment, scheme, deal)
        notes = [*choice.notes, *attacked(experiment, scheme, dataset, workers)]
        if self.parts.several_seeds and isinstance(self._given_module(experiment), nn.Module):
            notes.append(
                "model: all seeds start from the weights of this one module; give a function of "
                "the seed for weights of their own, e.g. model=lambda seed: Net()"
            )
        if len(choice.seconds) > 1 and not self._told:
            self._told = True
            inner = f" and engine.inner={choice.inner}" if choice.inner > 1 else ""
            notes.append(
                f"chunk {choice.chunk} chosen by timing{choice.made and f' on {choice.made}'}; "
                "config.toml has it: run that, or set "
                f"engine.chunk={choice.chunk}{inner}, to repeat this to the bit"
            )
        if not algorithm.elementwise and per_round > 1 and engine.chunk != 1:
            name = type(algorithm).__name__
            notes.append(f"{name} does not say that it is elementwise: workers are computed alone")
        chosen = {
            "device": device,
            "chunk": choice.chunk,
            "threads": choice.threads,
            "inner": choice.inner,
        }
        resolved = experiment.model_copy(
            update={
                "engine": engine.model_copy(update=chosen),
                "split": experiment.split.model_copy(update={"workers": len(deal.workers)}),
                "data": placed(experiment.data),
            }
        )
        plan = Plan(
            problem=problem,
            partition=deal,
            scheme=scheme,
            tau=training.tau,
            iterations=training.iterations,
            batch=training.batch,
            seed=experiment.seed,
            per_round=per_round,
            evaluate_every=experiment.evaluation.every,
            samples=experiment.evaluation.samples,
            per_worker=experiment.evaluation.per_worker,
            stop_accuracy=experiment.stop.accuracy,
            stop_loss=experiment.stop.loss,
            stop_seconds=experiment.stop.seconds,
            stop_metrics=levels(experiment, dataset, self.parts.elsewhere),
            stop_bytes=experiment.stop.bytes,
            patience=patience(experiment, dataset, self.parts.elsewhere),
            plateau=plateau(experiment, dataset, self.parts.elsewhere),
            metrics=measured,
            chunk=choice.chunk,
            threads=choice.threads,
            inner=choice.inner,
            ledger=experiment.ledger.kind == "chain",
            without=absent(training.without or (), scheme, workers),
        )
        plan = replace(plan, on_disk=on_disk(engine.memory, plan))
        if experiment.tier:
            plan, remarks = tiered(experiment, plan, dataset)
            notes += remarks
        if experiment.privacy.delta is not None:
            plan = private(experiment, plan)
            assert plan.privacy is not None
            notes += plan.privacy.notes(plan.rounds)
        if experiment.clock.fleet is not None:
            resolved, plan, remarks = timed(resolved, plan)
            notes += remarks
        plan.scheme.controller.check(algorithm, plan.setting)
        return resolved, plan, [*dataset.notes, *deal.notes, *notes, *warnings(experiment, dataset)]

    def dataset(self, experiment: Experiment) -> Dataset:
        if self.parts.dataset is not None:
            return self.parts.dataset
        parts = ["data", experiment.data, experiment.seed, experiment.model.loss]
        parts += columns_of(experiment)
        return self._once(parts, lambda: self._loaded(experiment))

    def _loaded(self, experiment: Experiment) -> Dataset:
        found = load(experiment, self.parts.loss)
        return replace(found, held_back=None) if self.parts.untested else found

    def problem(self, experiment: Experiment, dataset: Dataset, device: str) -> Problem:
        """The experiment's model and loss on a data set."""

        def make() -> Problem:
            model = experiment.model
            module, loss = self._own_module(experiment), loss_given(experiment, self.parts.loss)
            own = module is not None
            if module is None:
                if model.name == CUSTOM:
                    raise FednagError(
                        "model.name",
                        "the model of this run was a Python object",
                        "run it from Python",
                    )
                outputs = dataset.classes or outputs_of(dataset.y)
                module = models.build(
                    model.name, dataset.shape, outputs, experiment.seed, model.hidden
                )
            if loss is None:
                loss = "mse" if dataset.classes is None else models.loss_of(model.name)
                if dataset.classes is None and not dataset.y.is_floating_point():
                    raise FednagError(
                        "data",
                        f"y holds integers of shape {tuple(dataset.y.shape)}, and no loss is "
                        "known for them",
                        "give loss='cross-entropy' if they are classes (of pixels, of letters), "
                        "task='regression' if they are numbers",
                    )
            given = partial(
                Problem,
                module=module,
                loss=loss,
                device=device,
                dtype=getattr(torch, experiment.engine.dtype),
                standardise=experiment.data.standardise,
                batch_norm=model.batch_norm,
                known=not own and isinstance(loss, str),
                recorded=experiment.engine.recorded,
            )
            with one_thread():
                if not is_integer(dataset.x):
                    return given(dataset)
                if own:
                    return of_integers(given, dataset, experiment.data.standardise)
                # In the precision that all numbers of files have.
                if experiment.data.name == "file":
                    x, test_x = dataset.x.float(), dataset.test_x.float()
                    held = dataset.held_back
                    held = held and (held[0].float(), held[1])
                    return given(replace(dataset, x=x, test_x=test_x, held_back=held))
                return given(dataset)

        return self._once(["problem", *self._parts(experiment, device)], make)

    def _given_module(self, experiment: Experiment) -> nn.Module | Factory | None:
        """A model of the user's own, from Python or a file."""
        model = experiment.model
        if self.parts.module is not None or not is_own(model.name):
            return self.parts.module
        if model.hidden is not None:
            raise FednagError(
                "model.hidden", "a model of your own sizes its layers itself", "leave it out"
            )
        found: nn.Module | Factory = own_model(model.name, "model.name")
        return found

    def _own_module(self, experiment: Experiment) -> nn.Module | None:
        """The user's own module, for the experiment's seed."""
        given, seed = self._given_module(experiment), experiment.seed
        if given is None or isinstance(given, nn.Module):
            return given
        # Once a seed: methods that are compared start from the same weights, whatever it draws on.
        key = experiment.model.name, seed
        if key not in self._modules:
            self._modules[key] = made(given, seed)
        return self._modules[key]

    def _parts(self, experiment: Experiment, device: str) -> list[Any]:
        """What a problem is made of."""
        engine = experiment.engine
        made = engine.dtype, engine.recorded
        return [experiment.data, experiment.model, experiment.seed, device, made]

    def _once(self, parts: list[Any], make: Callable[[], T]) -> T:
        key = repr(parts)
        if key not in self._made:
            # Only the newest of each kind is kept: a sweep over seeds must not pile them up.
            self._made = {k: v for k, v in self._made.items() if not k.startswith(f"['{parts[0]}'")}
            self._made[key] = make()
        made: T = self._made[key]
        return made


def on_disk(given: str | None, plan: Plan) -> bool:
    """Whether what workers keep between rounds goes to the disk: what is said, or by its size."""
    if given is not None:
        return given == "disk"
    scheme, problem = plan.scheme, plan.problem
    each = first_memory(plan.algorithm, problem).nbytes
    if scheme.uplink.parts:
        like = Vectors(**dict.fromkeys(plan.algorithm.up, problem.initial))
        each += scheme.uplink.init(like).nbytes
    most = min(len(plan.sizes), plan.rounds * (plan.per_round or len(plan.sizes)))
    return most * each > MOST_IN_MEMORY


def check_shared(experiment: Experiment, scheme: Scheme, deal: Partition) -> None:
    """Refuse what means a worker's own samples, where workers hold the same ones."""
    if not isinstance(deal.workers, Drawn):
        return
    remedy = "leave split.samples out"
    for place, attack in enumerate(scheme.attacks):
        if attack.flips:
            problem = "it changes labels of samples that honest workers hold too"
            raise FednagError(f"attack.{place}.kind", problem, remedy)
    if experiment.privacy.unit == "sample":
        problem = "a sample that several workers hold is not protected by its noise at one"
        raise FednagError("privacy.unit", problem, remedy)


def absent(named: Sequence[int], scheme: Scheme, workers: int) -> tuple[int, ...]:
    """The workers who take part in nothing; raises FednagError for what cannot be."""
    missing = tuple(sorted(set(named)))
    field = "training.without"
    if not missing:
        return ()
    if scheme.algorithm.pooled:
        raise FednagError(field, "a centralised method has no workers", "use another method")
    if missing[-1] >= workers:
        raise FednagError(
            field,
            f"there is no worker {missing[-1]}",
            f"they are numbered from 0 to {workers - 1}",
        )
    if len(missing) == workers:
        raise FednagError(field, "nobody would be left to train", "name fewer workers")
    if scheme.aggregator.always:
        raise FednagError(
            field,
            f"{type(scheme.aggregator).__name__} divides by the workers a round is meant to have",
            "use another aggregator",
        )
    return missing


def tiered(experiment: Experiment, plan: Plan, dataset: Dataset) -> tuple[Plan, list[str]]:
    """The plan with edges, and notes on what travels where; raises for what goes not with them."""
    scheme, method = plan.scheme, plan.algorithm
    kind, w = type(method), plan.problem.initial
    alone = len(scheme.stages) == 1
    back = {*method.up} <= {*method.down} or kind.edge_end is not Algorithm.edge_end
    plain = kind.draw is Algorithm.draw and kind.settle is Algorithm.settle
    # A rule of the server's must not hang on what its workers did in one round.
    model_alone = method.up == method.down == ("w",) and not method.memory(w)
    suits = kind.edge is not Algorithm.edge or kind.update is Algorithm.update or model_alone
    others = {
        "algorithm.name": method.pooled or not (alone and back and plain and suits),
        "downlink": bool(scheme.downlink.parts),
        "aggregator.kind": type(scheme.aggregator) is not Mean,
        "controller.kind": type(scheme.controller) not in (Constant, Poisson),
        "attack": bool(scheme.attacks),
        "clock.deadline": experiment.clock.deadline is not None,
        "privacy.delta": experiment.privacy.delta is not None,
        "ledger.kind": plan.ledger,
    }
    if others.pop("algorithm.name"):
        raise FednagError(
            "algorithm.name",
            f"edges take means of what is sent back to workers, and {kind.__name__} needs more",
            "use another method, or leave [[tier]] out",
        )
    for refused, is_there in others.items():
        if is_there:
            raise FednagError(
                refused, "it does not go with edges yet", "leave it out, or leave [[tier]] out"
            )
    tiers: list[Edges] = []
    tau, below = plan.tau, [np.array([worker]) for worker in range(len(plan.owned))]
    for place, section in enumerate(experiment.tier):
        groups = edges_of(section, place, below, dataset, plan)
        tiers.append(Edges(groups, tau, section.pi))
        tau, below = tau * section.pi, list(groups)
    return replace(plan, edges=tuple(tiers), tau=tau), notes_on_tiers(plan, tiers)


def columns_of(experiment: Experiment) -> tuple[str, ...]:
    """The columns of the data that say who is at which edge."""
    named = [section.groups for section in experiment.tier if isinstance(section.groups, str)]
    return tuple(dict.fromkeys(named))


def by_column(
    name: str, field: str, below: Sequence[Indexes], dataset: Dataset, owned: Sequence[Indexes]
) -> list[list[int]]:
    """Who has the same value in a column of the data, values in order."""
    if name not in dataset.columns:
        raise FednagError(
            field, f"{name!r} names a column, and the data are not a file", "give numbers"
        )
    column = dataset.columns[name]
    found: dict[str, list[int]] = {}
    for place, workers in enumerate(below):
        values = sorted({str(v) for worker in workers for v in np.unique(column[owned[worker]])})
        if len(values) > 1:
            raise FednagError(
                field,
                f"{'edge' if len(workers) > 1 else 'worker'} {place} has samples of more than one "
                f"{name}: {', '.join(values[:3])}{', …' * (len(values) > 3)}",
                "deal samples by owner, split.kind = 'natural', and owners of one each",
            )
        found.setdefault(values[0], []).append(place)
    return [found[value] for value in sorted(found)]


def notes_on_tiers(plan: Plan, tiers: Sequence[Edges]) -> list[str]:
    """A note on each tier: its edges, its rounds, and what travels."""
    method = plan.algorithm
    first = first_state(method, plan.problem)
    buffers = [BUFFERS] * (BUFFERS in first)
    lower = first.pick([*method.down, *buffers]).nbytes
    upper = first.pick([*method.down, *method.between, *buffers]).nbytes
    notes = []
    for place, edges in enumerate(tiers):
        above = "the server" if edges is tiers[-1] else f"tier {place + 1}"
        if place:
            notes.append(
                f"tier {place}: {len(edges.groups)} edges above those of tier {place - 1}, "
                f"{edges.pi} of their rounds in a round of {above}; an edge gets {upper:,} bytes "
                "in one of these"
            )
        else:
            notes.append(
                f"tiers: {len(edges.groups)} edges, {edges.pi} of their rounds in a round of "
                f"{above}, {plan.tau} local iterations each; a worker gets {lower:,} bytes in a "
                f"round of its edge, an edge {upper:,} in one of {above}"
            )
    return notes


def edges_of(
    section: Tier, place: int, below: Sequence[Indexes], dataset: Dataset, plan: Plan
) -> tuple[Indexes, ...]:
    """The workers behind each edge of a tier; ``below`` are those of the tier under it."""
    field = f"tier.{place}.groups"
    what = "edge" if place else "worker"
    there = f"tier {place - 1} has" if place else "there are"
    if isinstance(section.groups, int):
        if section.groups > len(below):
            raise FednagError(
                field, f"{section.groups} is more than the {len(below)} {what}s {there}", "lower it"
            )
        split = np.array_split(np.arange(len(below)), section.groups)
        listed = [group.tolist() for group in split]
    elif isinstance(section.groups, str):
        listed = by_column(section.groups, field, below, dataset, plan.owned)
    else:
        listed = [sorted(group) for group in section.groups]
        named = sorted(each for group in listed for each in group)
        if named != list(range(len(below))) or not all(listed):
            raise FednagError(
                field,
                f"every {what} {'below ' * bool(place)}belongs to one edge, and every edge has one "
                "at least",
                f"name each from 0 to {len(below) - 1} once",
            )
    return tuple(np.sort(np.concatenate([below[each] for each in group])) for group in listed)


def attacked(
    experiment: Experiment, scheme: Scheme, dataset: Dataset, workers: int
) -> Iterator[str]:
    """Who attacks how; raises FednagError for what cannot be."""
    attackers(scheme.attacks, experiment.seed, workers)  # they must be there
    for place, attack in enumerate(scheme.attacks):
        kind, who = experiment.attack[place]["kind"], attack.attackers(experiment.seed, workers)
        if attack.flips and dataset.classes is None:
            raise FednagError(
                f"attack.{place}.kind",
                f"{kind} changes labels, and these data have none",
                "use another",
            )
        named = ", ".join(map(str, who[:NAMED])) + ", …" * (len(who) > NAMED)
        yield f"attack: {kind} by worker{'s' * (len(who) > 1)} {named}"


def of_integers(given: Callable[..., Problem], dataset: Dataset, standardise: bool) -> Problem:
    """The problem of a user's own model that is given integers as they are."""
    if standardise:
        raise FednagError(
            "data.standardise",
            "x holds integers, which a model of your own is given as they are",
            "leave it out, or give x as floating numbers",
        )
    try:
        return given(dataset, integer_inputs=True)
    except FednagError:
        try:
            given(dataset)
        except FednagError:
            pass  # so it is not the integers; the first finding stands
        else:
            raise FednagError(
                "model",
                "it fails on x, which holds integers, and works on floating numbers",
                "give x.float(), or save x as floating numbers in the file",
            ) from None
        raise


def load(experiment: Experiment, loss: str | Loss | None = None) -> Dataset:
    """The data set a file names; a loss that is given decides whether whole numbers are classes.

    With a validation part, that is what a run is evaluated on.
    """
    share, found = experiment.data.validation, _loaded(experiment, loss)
    return found if share is None else cut(found, share, experiment.seed)


def _loaded(experiment: Experiment, loss: str | Loss | None) -> Dataset:
    section: Data = experiment.data
    loss = loss_given(experiment, loss)
    if section.name == CUSTOM:
        raise FednagError(
            "data.name", "the data of this run were Python tensors", "run it from Python"
        )
    if section.name == "file":
        share = tables.SHARE if section.test_share is None else section.test_share
        test = Path(section.test_path).absolute() if section.test_path else None
        return tables.read_table(
            tables.Source(
                Path(section.path or "").absolute(),
                section.target,
                section.owner,
                test,
                share,
                experiment.seed,
                section.task,
                columns_of(experiment),
                None if loss is None else "numbers" if is_for_numbers(loss) else "integers",
            )
        )
    options: dict[str, Any] = {}
    if section.name == "synthetic":
        options = {
            "alpha": 1.0 if section.alpha is None else section.alpha,
            "beta": 1.0 if section.beta is None else section.beta,
            "workers": section.workers or 30,
        }
    return data.load(section.name, seed=experiment.seed, **options)


def loss_given(experiment: Experiment, loss: str | Loss | None = None) -> str | Loss | None:
    """The loss from Python, or that of the file; None: the model's usual one."""
    if loss is not None:
        return loss
    found: str | Loss | None = own_loss(experiment.model.loss, "model.loss")
    return found


def metrics_of(section: Evaluation, own: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics a file names, and those of the user's own that it says there were."""
    found = {name: METRICS[name] for name in section.metrics or () if not is_own(name)}
    found |= own_metrics(section.metrics or (), "evaluation.metrics")
    for name in section.own or {}:
        if name in found:
            continue
        if name not in own:
            raise FednagError(
                "evaluation.own",
                f"the metric {name} of this run was a Python function",
                "run it from Python",
            )
        found[name] = own[name]
    return found


def levels(experiment: Experiment, dataset: Dataset, elsewhere: bool) -> tuple[Level, ...]:
    """What a run's metrics have to reach for it to stop."""
    found = []
    for name, value in (experiment.stop.metrics or {}).items():
        _check_there("stop.metrics", name, dataset, elsewhere)
        found.append(Level(name, value, better_of(name, experiment.evaluation.own)))
    return tuple(found)


def patience(experiment: Experiment, dataset: Dataset, elsewhere: bool) -> Patience | None:
    """What a run watches, and for how long."""
    stop: Stop = experiment.stop
    if stop.patience is None:
        return None
    return Patience(stop.patience, *watched(experiment, dataset, elsewhere), stop.min_change or 0.0)


def plateau(experiment: Experiment, dataset: Dataset, elsewhere: bool) -> Plateau | None:
    """What has to get better by how much, from window to window."""
    stop: Stop = experiment.stop
    if stop.plateau is None:
        return None
    return Plateau(stop.plateau, stop.window or WINDOW, *watched(experiment, dataset, elsewhere))


def watched(experiment: Experiment, dataset: Dataset, elsewhere: bool) -> tuple[str, Better]:
    """What a run watches: the test loss, if nothing else is said; and which values are better."""
    name = experiment.stop.watch or ("test_loss" if len(dataset.test_x) else "loss")
    _check_there("stop.watch", name, dataset, elsewhere)
    return name, better_of(name, experiment.evaluation.own)


def _check_there(field: str, measure: str, dataset: Dataset, elsewhere: bool) -> None:
    """Raise a sentence on a measure that no evaluation would give."""
    if measure in ("accuracy", "train_accuracy") and dataset.classes is None:
        raise FednagError(field, f"these targets are numbers and have no {measure}", "use 'loss'")
    if measure in ("accuracy", "test_loss") and not len(dataset.test_x) and not elsewhere:
        raise FednagError(
            field,
            f"{measure} is taken on test samples, and there are none",
            "give some, or use 'loss'",
        )


def placed(section: Data) -> Data:
    """The section with absolute paths, so that the run can go on from another folder."""
    paths = {"path": section.path, "test_path": section.test_path}
    found = {name: str(Path(path).absolute()) for name, path in paths.items() if path}
    return section.model_copy(update=found)


def split(dataset: Dataset, section: Split, seed: int) -> Partition:
    """The samples of a data set, dealt to workers."""
    labels = dataset.y.numpy()
    workers = section.workers or 4
    if section.samples is not None and (section.alpha is None or dataset.classes is not None):
        return partition.drawn(labels, workers, section.samples, seed, section.alpha)
    if section.kind in ("classes", "dirichlet") and dataset.classes is None:
        raise FednagError(
            "split.kind",
            f"{section.kind!r} needs class labels, and these targets are numbers",
            "use 'iid', 'sizes' or 'natural'",
        )
    if section.kind == "classes":
        cover = section.assign != "random"
        return partition.by_class(labels, workers, section.classes or 1, seed, cover)
    if section.kind == "dirichlet":
        return partition.dirichlet(labels, workers, section.alpha or 1.0, seed)
    if section.kind == "sizes":
        skew = 1.0 if section.skew is None else section.skew
        return partition.by_size(len(labels), workers, skew, seed, section.proportions)
    if section.kind == "natural":
        if dataset.owners is None:
            raise FednagError(
                "split.kind",
                f"'natural' needs to know who owns each sample, and {dataset.name} does not say",
                "use synthetic, mnist with `fednag data get mnist-writers`, or say it: data.owner "
                "for a file, owners from Python",
            )
        return partition.natural(dataset.owners.numpy(), section.workers, seed)
    return partition.iid(len(labels), workers, seed)


def check_owned(section: Split) -> None:
    """Refuse owners, given from Python, that a split would pass over."""
    if section.kind != "natural":
        raise FednagError(
            "owners",
            f"they say who trains only with split.kind = 'natural', and that is {section.kind!r}",
            "give split={'kind': 'natural'}, or leave owners out",
        )


def resolve_device(name: str) -> str:
    """A device torch can use; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()  # a number must come back: `meta` has none
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise FednagError(
            "engine.device", f"cannot use {name!r} ({first})", "use 'auto'"
        ) from error
    return name


def timed(experiment: Experiment, plan: Plan) -> tuple[Experiment, Plan, list[str]]:
    """The plan with the fleet its rounds are played on, and the fleet's digest written down."""
    section = experiment.clock
    fleet = load_fleet(section.fleet or "")
    if section.digest not in (None, fleet.digest):
        raise FednagError(
            "clock.fleet",
            f"{fleet.source} is not what it was when this run began",
            "restore it, or start a new run without clock.digest",
        )
    if fleet.shares and not plan.scheme.controller.waits:
        raise FednagError(
            "clock.fleet",
            f"devices of {fleet.name} share access points, and {experiment.controller['kind']} has "
            "answers of several rounds on their way at once, which are not timed there",
            "use another controller or fleet",
        )
    place = str(Path(fleet.source).absolute()) if fleet.source != fleet.name else fleet.source
    update = section.model_copy(update={"fleet": place, "digest": fleet.digest})
    clock, pace, notes = on_clock(plan, fleet)
    deadline = inf if section.deadline is None or plan.algorithm.pooled else section.deadline
    plan = replace(plan, clock=clock, pace=pace, deadline=deadline)
    return experiment.model_copy(update={"clock": update}), plan, notes


def check_links(scheme: Scheme, problem: Problem) -> None:
    """Try the transforms of uplink and downlink on vectors as long as those that will travel."""
    server = first_state(scheme.algorithm, problem)
    for stage in scheme.stages:
        with_buffers = BUFFERS in server
        sizes = lengths(scheme.algorithm, stage, problem.initial)
        if with_buffers and not stage.asks:
            sizes[BUFFERS] = len(server[BUFFERS])
        up = Vectors(**{n: problem.initial.new_zeros(size) for n, size in sizes.items()})
        scheme.uplink.check(up, "uplink", len(scheme.algorithm.channel))
        scheme.downlink.check(server.pick([*stage.down, *[BUFFERS] * with_buffers]), "downlink")


def private(experiment: Experiment, plan: Plan) -> Plan:
    """The plan with an accountant of its noise."""
    section, scheme = experiment.privacy, plan.scheme
    assert section.delta is not None
    promised: dict[str, Any] = {"delta": section.delta, "budget": section.epsilon}
    if section.unit == "sample":
        check_model(plan.problem)
        return replace(
            plan, privacy=sample_accountant(scheme, plan.setting, plan.batch, **promised)
        )
    accountant = accountant_of(
        scheme,
        plan.setting,
        **promised,
        remembers=bool(first_memory(plan.algorithm, plan.problem)),
        buffers=BUFFERS in first_state(plan.algorithm, plan.problem),
    )
    if accountant.mechanism.sampling == "fixed":  # then nothing may tie a worker's rounds together
        scheme = replace(scheme, by_round=True)
    return replace(plan, privacy=accountant, scheme=scheme)


def outputs_of(y: Tensor) -> int:
    return 1 if y.dim() == 1 else int(y[0].numel())


def warnings(experiment: Experiment, dataset: Dataset) -> list[str]:
    """Notes on settings that are allowed but probably a mistake."""
    notes = []
    momentum = experiment.algorithm.get("momentum", 0)
    if isinstance(momentum, int | float) and momentum >= 1:
        notes.append(f"momentum {momentum:g} is not below 1: expect divergence")
    if experiment.training.tau > experiment.training.iterations:
        notes.append(
            f"tau {experiment.training.tau} is above the {experiment.training.iterations} "
            "iterations: there is one, shorter round"
        )
    own = experiment.model.name == CUSTOM or is_own(experiment.model.name)
    looked_up = own and is_integer(dataset.x)
    if experiment.data.name == "file" and not experiment.data.standardise and not looked_up:
        spread = float(dataset.x.flatten(1).double().mul(dataset.scale).std(0, correction=0).max())
        if spread > WIDE:
            notes.append(
                f"a feature's standard deviation is {spread:.3g}, and steps are sized for about 1: "
                "set data.standardise = true unless that is meant"
            )
    return notes
