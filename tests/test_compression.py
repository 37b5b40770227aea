"""Laws of what transforms make of an upload: what arrives, how many bytes, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2, pi
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fednag
from fednag import FednagError, Transform, Vectors
from fednag.core.transform import Chain
from fednag.transforms import (
    TRANSFORMS,
    BFloat16,
    Clip,
    Drive,
    Eden,
    Entropy,
    ErrorFeedback,
    Every,
    Float16,
    LowRank,
    Noise,
    Quantise,
    RandK,
    Sign,
    TopK,
)
from fednag.transforms.packing import pack, packed_size, unpack
from fednag.transforms.rotated import block_sizes

Size = Callable[[int, int], int | None]


def bytes_of_eden(bits: int) -> Size:
    return lambda d, _: 4 * len(block_sizes(d)) + ceil(sum(block_sizes(d)) * bits / 8)


# A chain with the part in it, and the bytes of d > 1 numbers of so many bytes each, by hand.
ROWS: dict[str, tuple[tuple[Transform, ...], Size]] = {
    "clip": ((Clip(0.5),), lambda d, each: d * each),
    "noise": ((Noise(0.0),), lambda d, each: d * each),
    "float16": ((Float16(),), lambda d, _: 2 * d),
    "bfloat16": ((BFloat16(),), lambda d, _: 2 * d),
    "quantise": ((Quantise(levels=5),), lambda d, _: 4 + ceil(d * (1 + ceil(log2(6))) / 8)),
    "sign": ((Sign(),), lambda d, _: 4 + ceil(d / 8)),
    "topk": ((TopK(k=2),), lambda d, each: 2 * each + ceil(2 * ceil(log2(d)) / 8)),
    "randk": ((RandK(k=2),), lambda d, each: 2 * each),
    "drive": ((Drive(),), bytes_of_eden(1)),
    "eden": ((Eden(bits=3),), bytes_of_eden(3)),
    "lowrank": ((LowRank(rank=1),), lambda d, each: None),
    "error-feedback": ((ErrorFeedback(), Sign()), lambda d, _: 4 + ceil(d / 8)),
    "every": ((Every(rounds=2),), lambda d, each: d * each),
    "entropy": ((Quantise(), Entropy()), lambda d, _: None),
}
EACH = pytest.mark.parametrize("name", TRANSFORMS)


def numbers(d: int, dtype: torch.dtype = torch.float64) -> Vectors:
    return Vectors(w=torch.from_numpy(np.random.default_rng(d).normal(size=d)).to(dtype))


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([7, *key])


@EACH
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_arrives_has_the_same_names_lengths_and_types(
    name: str, d: int, dtype: torch.dtype
) -> None:
    parts, size = ROWS[name]
    chain, x = Chain(parts), numbers(d, dtype)
    wire, arrived, _ = chain.carry(x, chain.init(x), rng())
    decoded = chain.decode(wire, x, rng())
    assert set(decoded) == {"w"}
    assert (len(decoded.w), decoded.w.dtype) == (d, dtype)
    assert torch.equal(decoded.w, arrived.w)
    if d > 1 and size(d, x.w.element_size()) is not None:
        assert wire.nbytes == size(d, x.w.element_size())
    _, nothing, _ = chain.carry(x.map(torch.zeros_like), chain.init(x), rng())
    assert not nothing.w.any()


@pytest.mark.parametrize("part", [Quantise(levels=3), RandK(share=0.1), Drive(), Eden(bits=2)])
def test_the_mean_is_what_was_sent(part: Transform) -> None:
    """Exactly so for quantise and randk; drive and eden in the limit of long vectors."""
    chain, x = Chain((part,)), numbers(1000)
    # Along some directions: a single number may be drawn too seldom to have a spread.
    along = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    along = torch.cat([along, x.w.unsqueeze(1)], 1)
    drawn = torch.stack([chain.carry(x, Vectors(), rng(i))[1].w @ along for i in range(2000)])
    error = drawn.std(0) / 2000**0.5
    assert ((drawn.mean(0) - x.w @ along).abs() <= 5 * error + 1e-6).all()
    assert (5 * error < 0.2 * x.w.norm() * along.norm(dim=0)).all()  # it would show


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_the_variance_bound_of_qsgd(levels: int) -> None:
    chain, x = Chain((Quantise(levels=levels),)), numbers(1000)
    errors = [chain.carry(x, Vectors(), rng(i))[1].w - x.w for i in range(200)]
    bound = min(1000 / levels**2, 1000**0.5 / levels)
    assert float(torch.stack(errors).square().sum(1).mean() / x.w.square().sum()) <= bound


@pytest.mark.parametrize(
    ("part", "near"),
    [(Quantise(levels=2**15 - 1), 2e-3), (TopK(k=1000), 0), (RandK(share=1.0), 0), (Eden(8), 0.02)],
)
def test_limits_change_next_to_nothing(part: Transform, near: float) -> None:
    x = numbers(1000)
    _, arrived, _ = Chain((part,)).carry(x, Vectors(), rng())
    assert float((arrived.w - x.w).norm() / x.w.norm()) <= near


@pytest.mark.parametrize(("part", "error"), [(Drive(), pi / 2 - 1), (Eden(bits=4), 0.00959)])
def test_long_vectors_are_rotated_block_by_block(part: Eden, error: float) -> None:
    """In 65536, 65536, 8192, 512 and 256 numbers; with the relative error that the papers state.

    EDEN's is D / (1 - D), where D = 0.009497 is that of Max's quantiser of 4 bits (1960).
    """
    x = numbers(140_000)
    wire, arrived, _ = Chain((part,)).carry(x, Vectors(), rng())
    assert wire.nbytes == 140_032 * part.bits // 8 + 5 * 4
    left = float((arrived.w - x.w).square().sum() / x.w.square().sum())
    assert left == pytest.approx(error, rel=0.02)


@EACH
def test_error_feedback_loses_nothing(name: str) -> None:
    chain = Chain((ErrorFeedback(), *[p for p in ROWS[name][0] if p != ErrorFeedback()]))
    kept, sent, meant = chain.init(numbers(100)), torch.zeros(100), torch.zeros(100)
    for turn in range(6):
        x = Vectors(w=numbers(100).w * (turn + 1))
        _, arrived, kept = chain.carry(x, kept, rng(turn))
        sent, meant = sent + arrived.w, meant + x.w
    size = max(1.0, float(kept["0.w"].abs().max()))
    assert float((sent + kept["0.w"] - meant).abs().max()) < 1e-12 * size


@given(st.integers(1, 25), st.lists(st.integers(0, 2**25 - 1), max_size=100))
def test_packing(bits: int, drawn: list[int]) -> None:
    codes = torch.tensor(drawn, dtype=torch.int64) & (2**bits - 1)
    packed = pack(codes, bits)
    assert len(packed) == packed_size(len(codes), bits) == ceil(len(codes) * bits / 8)
    assert torch.equal(unpack(packed, bits, len(codes)).long(), codes)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ((TopK(k=11),), "k: 11 numbers of w should travel"),
        ((Quantise(), TopK()), "everything is encoded already"),
        ((TopK(), ErrorFeedback()), "put error-feedback earlier"),
        ((Quantise(), Clip()), "put clip earlier"),
        ((TopK(), Clip()), "put clip earlier"),
        ((Sign(vectors=("v",)),), "vectors: no v travels here"),
        ((Every(vectors=("v",)),), "vectors: no v travels here"),
        ((Entropy(),), "entropy: nothing was rounded"),
    ],
)
def test_what_cannot_be_is_told(parts: tuple[Transform, ...], sentence: str) -> None:
    chain, x = Chain(parts), numbers(10)
    with pytest.raises(FednagError, match=sentence):
        chain.carry(x, chain.init(x), rng())


@pytest.mark.parametrize(
    ("uplink", "field"),
    [
        ([Clip(), TopK(k=10**6)], "uplink.1"),
        ([Sign(), Sign()], "uplink.1"),
        ([Entropy()], "uplink.0"),
    ],
)
def test_what_cannot_be_is_told_before_training(
    uplink: list[Transform], field: str, tmp_path: Path
) -> None:
    with pytest.raises(FednagError) as told:
        fednag.run("fednag", model="logistic", uplink=uplink, out=tmp_path, quiet=True)
    assert told.value.field == field
    assert not list(tmp_path.iterdir())


def test_damaged_frames_are_refused() -> None:
    chain, x = Chain((Quantise(), Entropy())), Vectors(w=torch.ones(1000))
    wire, _ = chain.apply(x, Vectors(), rng())
    for bad in (wire.w[:-3], wire.w[:1], torch.cat([wire.w, wire.w]), wire.w + 1):
        with pytest.raises(FednagError, match="damaged"):
            chain.decode(wire.but(w=bad), x, rng())


def test_vectors_rounded_together_share_their_lengths() -> None:
    x = Vectors(w=torch.tensor([3.0, 0.0]), v=torch.tensor([0.0, -4.0, 0.0]))
    chain = Chain((Quantise(levels=1, together=True),))
    seen = set()
    for turn in range(50):
        wire, arrived, _ = chain.carry(x, Vectors(), rng(turn))
        assert wire.nbytes == 4 + 1 + 1  # one length, two bits a number
        seen |= {float(arrived.w[0]), float(arrived.v[1])}
        assert not arrived.w[1:].any()
    assert seen == {0.0, 5.0, -5.0}
    apart, _, _ = Chain((Quantise(levels=1),)).carry(x, Vectors(), rng())
    assert apart.nbytes == 4 + 1 + 4 + 1
    # In buckets of two: w's numbers, then v's first two, then its last.
    wire, arrived, _ = Chain((Quantise(levels=1, bucket=2, together=True),)).carry(
        x, Vectors(), rng()
    )
    assert wire["w.scale"].tolist() == [3.0, 4.0, 0.0]
    assert torch.equal(arrived.w, x.w)
    assert torch.equal(arrived.v, x.v)
