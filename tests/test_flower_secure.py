"""Secure aggregation on Flower: the simulator's sums, and a server that sees nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import fednag.flower.fleet as fleet_module
import fednag.flower.handlers as client_module
import fednag.flower.membership as membership_module
from fednag import ALGORITHMS, FednagError
from fednag.aggregators import Secure
from fednag.core.executor import Answers, Exchange
from fednag.core.keys import Draws
from fednag.flower import masked, protocol, strategies
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.protocol import ARRAYS, CONFIG, nbytes
from fednag.flower.server import plan_of
from fednag.flower.settings import read_run_config
from fednag.flower.signing import is_signed, make_key
from fednag.flower.silo import Silo
from fednag.flower.silo_log import read
from fednag.flower.sums import KINDS
from fednag.runs.audit import audit
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import verify
from fednag.simulate.run import Local, simulate
from flower_kit import (
    altered,
    config_of,
    gap,
    grid_of,
    node_of,
    play,
    relabel,
    silent,
    simulated,
    weights,
)

SUMMED = [name for name, cls in ALGORITHMS.items() if not cls.pooled and not cls().channel]
MADE: dict[str, Silo] = {}
SILOS = range(5)  # of which three must go on


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PAUSE", 0.005)
    monkeypatch.setattr(membership_module, "PAUSE", 0.005)
    monkeypatch.setattr(fleet_module, "COMING", 0.01)

    def once(deployment: Any, node_config: Any) -> Silo:
        key = repr((deployment.digest, sorted(node_config.items())))
        if key not in MADE:
            MADE[key] = Silo(deployment, node_config)
        return MADE[key]

    monkeypatch.setattr(client_module, "Silo", once)


def secure_config(out: Path, **changes: Any) -> dict[str, Any]:
    given = {"aggregator__kind": "secure", "split__workers": 5, "algorithm__name": "scaffold"}
    return config_of(out, **{**given, "flower__deadline": 0.1, "rounds": 2, **changes})


@pytest.mark.parametrize("name", SUMMED)
def test_every_method_is_the_simulators_to_the_bit(name: str, tmp_path: Path) -> None:
    """And the bytes are those of all messages, as the grid saw them."""
    changes = {"algorithm__name": name, "training__participants": 4}
    config = secure_config(tmp_path, **changes)
    seen = [0, 0]

    def spy(asked: Message, answered: Message) -> Message:
        if "hello" not in asked.metadata.message_type:
            for place, message in enumerate((asked, answered)):
                seen[place] += sum(map(nbytes, message.content.array_records.values()))
        return answered

    run = play(config, grid_of(config, SILOS, dict.fromkeys(SILOS, spy)))
    twin = simulated(read_run_config(config), tmp_path / "simulated")
    assert gap(run, twin) == 0
    last, other = run.records[-1], twin.records[-1]
    assert (last.bytes_down, last.bytes_up) == (other.bytes_down, other.bytes_up) == tuple(seen)
    if name == "fednag":
        plain = config | {"aggregator.kind": "mean"}
        assert 0 < gap(run, simulated(read_run_config(plain), tmp_path / "plain")) < 1e-6


# Silos that vanish


def by_hand(config: dict[str, Any], number: int, lost: Iterable[int]) -> torch.Tensor:
    """The simulator's threads, without some workers in one round."""
    plan = plan_of(read_run_config(config))[1]

    class Without(Local):
        def __init__(self) -> None:
            sizes = [len(owned) for owned in plan.owned]
            super().__init__(plan, Draws(plan.seed, sizes, plan.batch))
            everyone = self.engine.exchange

            def exchange(asked: Exchange, *rest: Any) -> Answers:
                if asked.round != number:
                    return everyone(asked, *rest)
                others = asked.among(~np.isin(asked.workers, list(lost)))
                others = replace(others, weight=self.engine.weight(asked))
                return replace(everyone(others, *rest), missed=tuple(lost))

            self.engine.exchange = exchange  # type: ignore[method-assign]

    *_, last = simulate(plan, None, Without())
    return last.server.w


@pytest.mark.parametrize("step", range(4))
def test_any_n_minus_t_silos_may_vanish_at_any_step(step: int, tmp_path: Path) -> None:
    """In round 1; the others' sum is used, and in round 2 all are there again."""
    for lost in list(combinations(SILOS, 2))[step::4]:
        config = secure_config(tmp_path / str(lost))
        faults = dict.fromkeys(lost, silent(KINDS[step], [1]))
        run = play(config, grid_of(config, SILOS, faults))
        missed = lost if step < 3 else ()
        assert [r.missed for r in run.records] == [(), missed, ()]
        wanted = by_hand(config, 1, missed)
        assert torch.equal(weights(run), wanted.to(weights(run)))
        phases = {0: "keys", 1: "shares", 2: "train", 3: "unmask"}
        assert run.folder
        lines = [line for line in read(run.folder / "silos.jsonl") if line["status"] != "ok"]
        assert [(x["silo"], x["round"], x["phase"], x["status"]) for x in lines] == [
            (silo, 1, phases[step], "missed") for silo in lost
        ]


@pytest.mark.parametrize("step", range(4))
def test_too_few_silos_is_a_sentence_and_the_round_is_played_again(
    step: int, tmp_path: Path
) -> None:
    """With fresh keys, to the bits of a run that nothing happened to."""
    config = secure_config(tmp_path, flower__quorum=1)
    grid = grid_of(config, SILOS, dict.fromkeys((0, 1, 3), silent(KINDS[step], [2])))
    with pytest.raises(FednagError, match=r"round 2: 2 silos .* needs 3 .*flower.resume=true") as e:
        play(config, grid)
    assert "missed: 0, 1, 3; refused: none" in str(e.value)
    (info,) = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert info["status"] == "interrupted"
    grid.faults.clear()
    done = play(config | {"flower.resume": True}, grid)
    whole = play(config | {"flower.out": str(tmp_path / "w")}, grid_of(config, SILOS))
    assert gap(done, whole) == 0
    assert len(done.records) == 3


@pytest.mark.parametrize("step", range(4))
def test_a_server_that_dies_in_a_round_goes_on_to_the_same_bits(step: int, tmp_path: Path) -> None:
    config = secure_config(tmp_path / "a")
    grid, calls = grid_of(config, SILOS), []
    original = fleet_module.Fleet._sorted_out

    class PowerCut(BaseException):
        pass

    def cut(self: Any, wanted: Any, replies: Any, number: int, down: int) -> Any:
        """After the silos have done this step of round 2."""
        calls.append(number)
        if calls.count(2) == step + 1:
            raise PowerCut
        return original(self, wanted, replies, number, down)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module.Fleet, "_sorted_out", cut)
        with pytest.raises(PowerCut):
            play(config, grid)
    keys = {n: dict(c.state.config_records[masked.STATE]) for n, c in grid.contexts.items()}
    done = play(config | {"flower.resume": True}, grid)
    whole = play(config | {"flower.out": str(tmp_path / "b")}, grid_of(config, SILOS))
    assert gap(done, whole) == 0
    assert [replace(r, seconds=0) for r in done.records] == [
        replace(r, seconds=0) for r in whole.records
    ]
    for node, held in keys.items():
        assert held["context"] != grid.contexts[node].state.config_records[masked.STATE]["context"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_silo_that_is_restarted_in_a_round_takes_part_in_the_next(
    step: int, tmp_path: Path
) -> None:
    config = secure_config(tmp_path)
    grid = grid_of(config, SILOS)
    node, original = node_of(grid, 1), grid._answered

    def restart(message: Message) -> Message | None:
        about = dict(message.content.config_records[CONFIG])
        again = message.metadata.message_type == KINDS[step] and about.get("round") == 1
        if again and message.metadata.dst_node_id == node:
            for key in list(grid.contexts[node].state):
                del grid.contexts[node].state[key]
        return original(message)

    grid._answered = restart  # type: ignore[method-assign]
    run = play(config, grid)
    assert [r.refused for r in run.records] == [(), (1,) if step < 3 else (), ()]
    assert run.folder
    (line,) = [x for x in read(run.folder / "silos.jsonl") if x["status"] != "ok"]
    assert "it has no keys of this sum: it was restarted" in line["why"]


# What the server sees


class Watched:
    """Everything that reaches the server, and what each silo masked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen = bytearray()
        self.ups: dict[tuple[int, int], list[np.ndarray]] = {}  # by round and samples
        self.masked: dict[tuple[int, int], np.ndarray] = {}
        original = masked.fixed_point
        exchanged = Silo.exchange

        def spy(aggregator: Secure, up: Any, samples: int, whole: object) -> Any:
            found = original(aggregator, up, samples, whole)
            self.ups.setdefault((self.round, samples), []).append(found.copy())
            return found

        def exchange(silo: Silo, asked: Exchange, *rest: Any) -> Any:
            self.round = asked.round
            found = exchanged(silo, asked, *rest)
            rows = torch.cat([found[0].up[name][0] for name in sorted(found[0].up)]).numpy()
            whole = rows + asked.sent.w.numpy() if "w" in found[0].up else rows
            held = self.ups.setdefault((asked.round, silo.samples), [])
            held += [rows, whole, rows * silo.samples, rows.astype("f4"), whole.astype("f4")]
            return found

        patch.setattr(masked, "fixed_point", spy)
        patch.setattr(Silo, "exchange", exchange)

    def note(self, asked: Message, answered: Message) -> Message:
        for message in (asked, answered):
            for record in message.content.array_records.values():
                self.seen += b"".join(array.data for array in record.values())
            self.seen += repr(dict(message.content.config_records)).encode()
            self.seen += repr(dict(message.content.metric_records)).encode()
        about = dict(answered.content.config_records[CONFIG])
        record = answered.content.array_records.get(ARRAYS, {})
        if masked.MASKED in record:
            key = about["round"], about["samples"]
            self.masked[key] = np.frombuffer(record[masked.MASKED].data, dtype="<u4")
        return answered

    def found(self) -> list[tuple[Any, ...]]:
        """Which updates, or differences of two silos' updates, are among what was seen."""
        known = []
        for number in {key[0] for key in self.ups}:
            ours = {key[1]: forms for key, forms in self.ups.items() if key[0] == number}
            for silo, forms in ours.items():
                known += [((number, silo, place), form) for place, form in enumerate(forms)]
            for a, b in combinations(ours, 2):
                pairs = enumerate(zip(ours[a], ours[b], strict=True))
                known += [((number, a, b, place), x - y) for place, (x, y) in pairs]
        return [name for name, form in known if any(piece in self.seen for piece in pieces(form))]


def pieces(values: np.ndarray) -> list[bytes]:
    """Three numbers in a row, here and there, that are not mostly zeros."""
    data, width = values.tobytes(), 3 * values.itemsize
    cuts = [data[at * width : (at + 1) * width] for at in range(len(data) // width)]
    telling = [cut for cut in cuts if len(set(cut)) > width // 2]
    assert len(telling) > 20
    return telling[:: len(telling) // 20]


@pytest.mark.parametrize("kind", ["secure", "mean"])
def test_the_server_sees_and_writes_no_update(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a difference of two; where the aggregator is a mean, the same search finds them all."""
    watched = Watched(monkeypatch)
    config = secure_config(tmp_path, aggregator__kind=kind, algorithm__name="fedavg")
    lost = silent("train.masked", [2])

    def note(asked: Message, answered: Message) -> Message:
        return watched.note(asked, answered)

    def lossy(asked: Message, answered: Message) -> Message | None:
        arrived = lost(asked, answered)
        return watched.note(asked, arrived) if arrived else None

    said: list[str] = []
    run = play(config, grid_of(config, SILOS, {**dict.fromkeys(SILOS, note), 3: lossy}), said)
    assert run.folder
    for path in run.folder.rglob("*"):
        watched.seen += path.read_bytes() if path.is_file() else b""
    watched.seen += "\n".join(said).encode()
    found = watched.found()
    if kind == "mean":
        assert {name[:2] for name in found if len(name) == 3} == set(watched.ups)
        return
    assert found == []
    assert len(watched.ups) == 10
    assert len(watched.masked) == 9
    # Masked updates of one round, and of one silo over rounds, have nothing in common either.
    for (a, x), (b, y) in combinations(watched.masked.items(), 2):
        for mixed in (x - y, x + y):
            assert uniform(mixed), (a, b)
    for (_, samples), x in watched.masked.items():
        forms = [form for key, held in watched.ups.items() for form in held if key[1] == samples]
        for form in (form for form in forms if form.dtype == x.dtype):
            assert uniform(x - form)
            assert abs(np.corrcoef(x.astype(float), form.astype(np.int32))[0, 1]) < 0.25


def uniform(values: np.ndarray) -> bool:
    """Chi-square of the 16 values of half a byte: 15 degrees of freedom."""
    counts = np.bincount(
        np.r_[values.view(np.uint8) & 15, values.view(np.uint8) >> 4], minlength=16
    )
    expected = counts.sum() / 16
    return bool(((counts - expected) ** 2 / expected).sum() < 15 + 9 * 30**0.5)


def test_that_test_knows_what_is_not_uniform() -> None:
    rng = np.random.default_rng(0)
    small = (rng.normal(size=650) * 2**20).astype(np.int32).view(np.uint32)
    assert not uniform(small)
    assert uniform(rng.integers(0, 2**32, 650, dtype=np.uint32))


# Silos that refuse, and silos that lie


def test_an_update_that_is_not_finite_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silo says so itself; the others' sum is the one without it."""
    config = secure_config(tmp_path)
    original = Silo.exchange

    def ill(self: Silo, asked: Exchange, *rest: Any) -> Any:
        if self.number == 2 and asked.round == 2:
            raise protocol.Refusal("the update is not finite", not_finite=True)
        return original(self, asked, *rest)

    monkeypatch.setattr(Silo, "exchange", ill)
    run = play(config, grid_of(config, SILOS))
    assert [r.refused for r in run.records] == [(), (), (2,)]
    wanted = by_hand(config, 2, [2])
    assert torch.equal(weights(run), wanted.to(weights(run)))


def test_an_update_beyond_the_range_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """By all of them: then it is over, here as in the simulator."""
    config = secure_config(tmp_path, aggregator__range=1e-4)
    said: list[str] = []
    run = play(config, grid_of(config, SILOS), said)
    twin = simulated(read_run_config(config), tmp_path / "simulated")
    assert run.ended == twin.ended
    assert run.diverged
    assert run.records[-1].bytes_up == twin.records[-1].bytes_up
    assert any("raise aggregator.range from 0.0001" in line for line in said)


def changed(name: str, content: bytes) -> Callable[[Any], None]:
    def change(given: Any) -> None:
        array = Array(dtype="uint8", shape=(len(content),), stype=protocol.RAW, data=content)
        given.array_records[ARRAYS][name] = array

    return change


SIZE = 2 * 650 * 4
LIES: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "keys of 3 bytes": (KINDS[0], changed(masked.KEYS, b"abc"), "secure.keys has 3 bytes"),
    "other vectors": (KINDS[0], changed("w", b"abc"), "it holds ['secure.keys', 'w']"),
    "too few shares": (KINDS[1], changed(masked.SHARES, bytes(82)), "its shares have 82 bytes"),
    "no commitment": (KINDS[1], changed(masked.SEED, b""), "has not committed itself"),
    "a short update": (KINDS[2], changed(masked.MASKED, bytes(400)), "has 100 numbers, not 1300"),
    "half a number": (KINDS[2], changed(masked.MASKED, bytes(SIZE + 1)), "no numbers of 32 bits"),
    "an update in clear": (KINDS[2], changed("w", bytes(SIZE)), "not secure.masked"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_lies_is_refused_and_named(lie: str, tmp_path: Path) -> None:
    kind, change, why = LIES[lie]
    config = secure_config(tmp_path)
    run = play(config, grid_of(config, SILOS, {1: altered(change, kind, [2])}))
    assert [r.refused for r in run.records] == [(), (), (1,)]
    wanted = by_hand(config, 2, [1])
    assert torch.equal(weights(run), wanted.to(weights(run)))
    assert run.folder
    (line,) = [x for x in read(run.folder / "silos.jsonl") if x["status"] != "ok"]
    assert why in line["why"]


def test_noise_in_place_of_a_masked_update_gives_no_model(tmp_path: Path) -> None:
    config = secure_config(tmp_path)
    noise = changed(masked.MASKED, np.random.default_rng(0).bytes(SIZE))
    with pytest.raises(FednagError, match="the sum of the updates is out of range"):
        play(config, grid_of(config, SILOS, {1: altered(noise, KINDS[2], [2])}))


def test_wrong_shares_give_no_model(tmp_path: Path) -> None:
    config = secure_config(tmp_path)
    wrong = changed(masked.SHARES, b"\1" * 33 * 5)
    with pytest.raises(FednagError, match="round 2: shares of the secrets of silo 0 are wrong"):
        play(config, grid_of(config, SILOS, {1: altered(wrong, KINDS[3], [2])}))


def asked_for(grid: InProcessGrid, silo: int, kind: str, about: Any, record: Any) -> str:
    """Why a silo refuses what it is asked; nothing if it does not."""
    message = protocol.message(kind, node_of(grid, silo), about, ArrayRecord(dict(record)))
    (reply,) = grid.send_and_receive([message])
    return str(dict(reply.content.config_records[CONFIG]).get("refused", ""))


def test_silos_refuse_what_would_show_an_update(tmp_path: Path) -> None:
    """An honest server gets to the last step, and one that has become curious no further."""
    config = secure_config(tmp_path, algorithm__name="fedavg")
    grid = grid_of(config, SILOS)
    refusals: dict[str, str] = {}

    def curious(asked: Message, answered: Message) -> Message:
        if asked.metadata.message_type != KINDS[3] or refusals:
            return answered
        about = dict(asked.content.config_records[CONFIG])
        named = {masked.SURVIVORS: [0, 1, 2, 3], masked.VANISHED: [3, 4]}
        both = {name: masked.numbered(silos) for name, silos in named.items()}
        plain = {"w": protocol.pack({"w": torch.zeros(650, dtype=torch.float64)})["w"]}
        fourth = about | {"silo": 4}
        refusals["both"] = asked_for(grid, 4, KINDS[3], fourth, both)
        refusals["again"] = asked_for(
            grid, 4, KINDS[3], fourth, asked.content.array_records[ARRAYS]
        )
        train = fourth | {"start": 0, "steps": 3, "accepted": 0, "numbers": "{}"}
        refusals["plain"] = asked_for(grid, 4, "train", train, plain)
        refusals["twice"] = asked_for(
            grid,
            4,
            KINDS[2],
            train | {"weight": 2000.0},
            plain | dict(masked.labelled({0: b"a" * 82})),
        )
        refusals["other"] = asked_for(grid, 4, KINDS[3], fourth | {"attempt": "x"}, both)
        return answered

    grid.faults[node_of(grid, 0)] = curious
    run = play(config, grid)
    assert "both secrets of a silo" in refusals["both"]
    assert "'unmask' of a sum out of turn" in refusals["again"]
    assert "a silo sends masked updates alone" in refusals["plain"]
    assert "'masked' of a sum out of turn" in refusals["twice"]
    assert "it has no keys of this sum" in refusals["other"]
    assert run.records[-1].refused == ()  # without silo 4's shares there are enough


def asked_otherwise(
    grid: InProcessGrid, change: Callable[[RecordDict], None], silos: Iterable[int]
) -> None:
    """These silos are asked for masked updates in other words than the server's."""
    original = grid._answered

    def told(message: Message) -> Message | None:
        about = dict(message.content.config_records[CONFIG])
        if message.metadata.message_type != KINDS[2] or about["silo"] not in silos:
            return original(message)
        content = RecordDict(
            {
                CONFIG: ConfigRecord(about),
                ARRAYS: ArrayRecord(dict(message.content.array_records[ARRAYS])),
            }
        )
        change(content)
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        other = Message(content=content, dst_node_id=node, message_type=kind)
        other.metadata.__dict__["_message_id"] = message.metadata.message_id
        return original(other)

    grid._answered = told  # type: ignore[method-assign]


def another_model(content: RecordDict) -> None:
    zeros = protocol.pack({"w": torch.zeros(650, dtype=torch.float64)})
    content.array_records[ARRAYS]["w"] = zeros["w"]


OTHERS: dict[str, Callable[[RecordDict], None]] = {
    "another model": another_model,
    "other numbers": relabel(numbers='{"lr": 1e-9}'),
    "fewer iterations": relabel(steps=1),
    "another weight": relabel(weight=1e12),
}


@pytest.mark.parametrize("other", [*OTHERS, "nothing else"])
def test_silos_that_are_told_different_things_give_no_sum(other: str, tmp_path: Path) -> None:
    """So that a server cannot have all but one send updates that it knows beforehand."""
    config = secure_config(tmp_path, algorithm__name="fedavg")
    grid = grid_of(config, SILOS)
    asked_otherwise(grid, OTHERS.get(other, lambda content: None), [1, 2, 3, 4])
    if other in OTHERS:
        with pytest.raises(FednagError, match="the sum of the updates is out of range"):
            play(config, grid)
    else:
        assert play(config, grid).records[-1].refusals == 0


def test_a_silo_does_not_stand_by_while_others_train(tmp_path: Path) -> None:
    config = secure_config(tmp_path, algorithm__name="fedavg")
    grid = grid_of(config, SILOS)
    asked_otherwise(grid, relabel(steps=0), SILOS)
    said: list[str] = []
    with pytest.raises(FednagError, match="0 of 5 silos gave a usable answer"):
        play(config, grid, said)
    assert any("it asks for no iterations" in line for line in said)


@pytest.mark.parametrize("whole", [100.0, float("inf"), 7, "much"])
def test_a_silo_counts_for_its_part(whole: Any, tmp_path: Path) -> None:
    up = protocol.layout({"w": 3}, torch.float64).map(lambda v: v.unsqueeze(0))
    with pytest.raises(protocol.Refusal, match=r"this one weighs 200\.0"):
        masked.fixed_point(Secure(), up, 200, whole)


HANDED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "nothing of the other silos"),
    "no silos": ({masked.SILOS: b"", masked.CONTENT: b""}, "a content of each"),
    "a silo twice": ({masked.SILOS: bytes(16), masked.CONTENT: b"ab"}, "a content of each"),
    "too much": ({masked.SILOS: bytes(8) + b"\1" + bytes(7), masked.CONTENT: b"abc"}, "each"),
    "half a number": ({masked.SILOS: bytes(9), masked.CONTENT: b"abc"}, "not 0 to 4"),
    "a stranger": ({masked.SILOS: b"\5" + bytes(7), masked.CONTENT: b"a"}, "not 0 to 4"),
}


@pytest.mark.parametrize("case", HANDED)
def test_what_is_handed_on_is_checked(case: str) -> None:
    given, why = HANDED[case]
    record = protocol.pack({name: masked.blob(content) for name, content in given.items()})
    with pytest.raises(protocol.Refusal, match=why):
        masked.by_silo(record, 5)


# Whom silos trust


def nodes(config: dict[str, Any], folder: Path, signers: Iterable[int] = SILOS) -> InProcessGrid:
    """Silos that know each other by keys; those not among the signers have none of their own."""
    (folder / "known").mkdir(exist_ok=True)
    for silo in SILOS:
        if not (folder / f"silo-{silo}").exists():
            make_key(folder / f"silo-{silo}")
            (folder / f"silo-{silo}.pub").rename(folder / "known" / f"silo-{silo}.pub")
    grid = InProcessGrid(client_module.app, config, [])
    for silo in SILOS:
        own = {"ledger-key": str(folder / f"silo-{silo}")} if silo in signers else {}
        grid.join({"partition-id": silo, "known-keys": str(folder / "known"), **own})
    return grid


def test_silos_that_know_each_other_go_on_as_ever(tmp_path: Path) -> None:
    config = secure_config(tmp_path / "runs")
    run = play(config, nodes(config, tmp_path))
    assert gap(run, simulated(read_run_config(config), tmp_path / "simulated")) == 0
    plain = play(config | {"flower.out": str(tmp_path / "b")}, grid_of(config, SILOS))
    ours, theirs = run.records[-1], plain.records[-1]
    assert ours.bytes_up - theirs.bytes_up == 2 * 5 * 64
    assert ours.bytes_down - theirs.bytes_down == 2 * 25 * 64


def swapped(asked: Message, answered: Message) -> Message:
    """A server that puts keys of its own in place of a silo's."""
    if asked.metadata.message_type == KINDS[0]:
        array = answered.content.array_records[ARRAYS][masked.KEYS]
        changed(masked.KEYS, bytes(range(64)) + array.data[64:])(answered.content)
    return answered


def test_keys_that_were_changed_on_the_way_stop_the_round(tmp_path: Path) -> None:
    config = secure_config(tmp_path / "runs")
    faults: list[tuple[InProcessGrid, str]] = [
        (nodes(config, tmp_path), "the keys of silo 2 are not signed by it"),
        (nodes(config, tmp_path, [0, 1, 3, 4]), "the keys of silo 2 are not signed"),
    ]
    for grid, why in faults:
        grid.faults[node_of(grid, 2)] = swapped
        said: list[str] = []
        with pytest.raises(FednagError, match="round 1: 0 silos dealt shares"):
            play(config, grid, said)
        assert sum(why in line for line in said) >= 4
    # Silos that do not know each other take whatever keys the server hands on, but for their own.
    grid = grid_of(config, SILOS, {2: swapped})
    assert play(config | {"flower.quorum": 4}, grid).records[-1].refused == (2,)


@pytest.mark.parametrize("policy", [{"only-sums": True}, {"known-keys": "known"}])
def test_a_silo_may_insist_on_sums(policy: dict[str, Any], tmp_path: Path) -> None:
    """The operator's word, which no run's configuration can change."""
    config = secure_config(tmp_path, aggregator__kind="mean", rounds=1)
    grid = grid_of(config, [0, 1, 2, 3])
    grid.join({"partition-id": 4, **policy})
    said: list[str] = []
    assert play(config, grid, said).records[-1].missed == (4,)
    assert any("its operator lets the server see sums alone" in line for line in said)


def test_keys_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    (tmp_path / "silo-1.pub").write_text("no key")
    with pytest.raises(FednagError, match=r"silo-1.pub: is no public key"):
        masked.known_to({"known-keys": str(tmp_path)}, 3)
    assert masked.known_to({}, 3) is None


# The ledger


def test_the_ledger_has_what_travelled_and_the_sums_are_audited(tmp_path: Path) -> None:
    """Digests of masked updates, signed; sums and models are those of the run played again."""
    config = secure_config(tmp_path / "runs", algorithm__name="mime", rounds=3)
    grid = nodes(config, tmp_path)
    lost = {0: (KINDS[0], [1]), 1: (KINDS[2], [2]), 4: (KINDS[3], [3])}
    for silo, when in lost.items():
        grid.faults[node_of(grid, silo)] = silent(*when)
    run = play(config, grid)
    assert run.folder
    folder = RunFolder(run.folder)
    found = verify(folder, is_signed)
    uploads = [entry for entry in found.entries if entry["kind"] == "upload"]
    missed = [(e["round"], e["worker"]) for e in uploads if e["status"] == "missed"]
    assert missed == [(1, 0), (1, 0), (2, 1), (2, 1)]
    assert (found.fault, found.signed) == (None, len(uploads) - len(missed))
    ups = [entry["up"] for entry in uploads if entry["status"] == "used"]
    assert len(set(ups)) == len(ups) == 2 * 15 - 4
    audited = audit(folder)
    assert (audited.rounds, audited.difference) == (3, None)


def test_an_audit_finds_that_a_sum_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose update it was, nobody can say."""
    original = Silo.exchange

    def lying(self: Silo, asked: Exchange, *rest: Any) -> Any:
        found, *more = original(self, asked, *rest)
        if self.number == 2 and asked.round == 2:
            found = replace(found, up=found.up.map(lambda vector: 2 * vector))
        return found, *more

    monkeypatch.setattr(Silo, "exchange", lying)
    config = secure_config(tmp_path)
    run = play(config, grid_of(config, SILOS))
    assert run.folder
    assert str(audit(RunFolder(run.folder)).difference) == "round 2: the aggregate is another"


def test_a_silo_whose_signature_is_not_its_own_is_left_out(tmp_path: Path) -> None:
    config = secure_config(tmp_path / "runs")
    grid = nodes(config, tmp_path)
    grid.faults[node_of(grid, 3)] = altered(relabel(signature="00" * 64), KINDS[2], [2])
    run = play(config, grid)
    assert [r.refused for r in run.records] == [(), (), (3,)]
    wanted = by_hand(config, 2, [3])
    assert torch.equal(weights(run), wanted.to(weights(run)))


def test_strategies_and_settings_refuse_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FednagError, match="a strategy sees every node's update"):
        strategies.FedNAG(lr=0.1, aggregator="secure")
    for changes, why in (
        ({"split__workers": 2}, "aggregator.kind: secure adds up the updates of 3 to"),
        ({"training__participants": 2}, "aggregator.kind: secure adds up the updates of 3 to"),
        ({"aggregator__dropouts": 0.1, "aggregator__masked": True}, "silos need no help to vanish"),
        ({"uplink__0__kind": "sign"}, "uplink.0.kind: Sign encodes what is sent"),
    ):
        with pytest.raises(FednagError, match=why):
            read_run_config(secure_config(tmp_path, **changes))
