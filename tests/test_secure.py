"""Secure aggregation without any network: masked sums are the sums, and tell nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag import FednagError
from fednag.secure import shamir
from fednag.secure.collector import Collector
from fednag.secure.keys import agreed, derived, mask_key, public
from fednag.secure.masks import add_streams, integers, packed, unpacked
from fednag.secure.member import NONCE, Member
from fednag.secure.rehearsal import rehearse
from fednag.secure.terms import KEY, KEYS, SEALED, SHARE, Terms, threshold_of, traffic

BITS = [16, 24, 32, 40, 64]


def vectors(silos: int, count: int, bits: int, seed: int = 0) -> dict[int, Any]:
    """Numbers over the whole range, so that every sum wraps around."""
    rng = np.random.default_rng(seed)
    return {
        3 * silo: rng.integers(0, 2**bits, count, dtype=np.uint64).astype(integers(bits))
        for silo in range(silos)
    }


def few(silos: int) -> dict[int, Any]:
    """Five numbers for each of silos 0, 1, 2, ..."""
    return dict(enumerate(vectors(silos, 5, 32).values()))


def plain_sum(values: Mapping[int, Any], among: Any, bits: int) -> list[int]:
    """In Python's own integers."""
    return [sum(int(values[silo][i]) for silo in among) % 2**bits for i in range(len(values[0]))]


def lowest(total: Any, bits: int) -> list[int]:
    return [int(number) % 2**bits for number in total]


# Sums


@settings(max_examples=60, deadline=None)
@given(
    silos=st.integers(3, 8),
    count=st.integers(1, 40),
    bits=st.sampled_from(BITS),
    share=st.floats(0.5, 0.95),
    data=st.data(),
)
def test_a_masked_sum_is_the_sum(
    silos: int, count: int, bits: int, share: float, data: st.DataObject
) -> None:
    """Of those whose vectors arrived, to the bit, whoever vanishes at whatever step."""
    values, threshold = vectors(silos, count, bits, seed=count), threshold_of(silos, share)
    lost = data.draw(st.sets(st.sampled_from(sorted(values)), max_size=silos - threshold))
    gone = {silo: data.draw(st.integers(0, 3)) for silo in sorted(lost)}
    found = rehearse(values, threshold, bits, gone)
    there = [silo for silo in values if gone.get(silo, 3) == 3]
    assert list(found.survivors) == there
    assert lowest(found.total, bits) == plain_sum(values, there, bits)


@pytest.mark.parametrize("step", range(4))
def test_any_n_minus_t_may_vanish_and_no_more(step: int) -> None:
    """At each step: 3 of 5 go on, whichever they are; 2 are refused in a sentence."""
    values = vectors(5, 7, 32)
    done = ("advertised keys", "dealt shares", "sent a masked update", "sent shares to unmask it")
    for lost in combinations(values, 2):
        found = rehearse(values, 3, 32, dict.fromkeys(lost, step))
        there = [silo for silo in values if silo not in lost or step == 3]
        assert lowest(found.total, 32) == plain_sum(values, there, 32)
    for lost in combinations(values, 3):
        with pytest.raises(FednagError, match=f"2 silos {done[step]}, and .* needs 3"):
            rehearse(values, 3, 32, dict.fromkeys(lost, step))


def test_bytes_are_those_of_the_formula() -> None:
    for silos, bits in product((3, 6), (24, 32, 64)):
        found = rehearse(vectors(silos, 11, bits), silos // 2 + 1, bits)
        assert (found.down, found.up) == traffic(silos, 11 * bits // 8)


@pytest.mark.parametrize("bits", BITS)
def test_packing_keeps_the_lowest_bits(bits: int) -> None:
    values = vectors(1, 9, bits)[0]
    assert len(packed(values, bits)) == 9 * bits // 8
    assert np.array_equal(unpacked(packed(values, bits), bits), values)
    with pytest.raises(FednagError, match="are no numbers"):
        unpacked(packed(values, bits)[1:], bits)


def test_the_stream_is_that_of_rfc_8439() -> None:
    """Its first test vector: key, nonce and counter 0. Then added and taken away, across blocks."""
    stream = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    for bits in (16, 32, 64):
        total = np.zeros(64 // integers(bits).itemsize, dtype=integers(bits))
        add_streams(total, [(bytes(32), True)])
        assert total.tobytes() == stream
    values = vectors(1, 20_001, 32)[0]
    total = values.copy()
    add_streams(total, [(bytes(32), True), (b"k" * 32, True)])
    assert Counter(total == values)[True] < 5
    add_streams(total, [(b"k" * 32, False), (bytes(32), False)])
    assert np.array_equal(total, values)
    # No block is used twice.
    total[:] = 0
    add_streams(total, [(bytes(32), True)])
    assert len(set(total.tolist())) > 19_990


# Shamir


def test_shares_by_hand() -> None:
    """f(x) = 5 + 3 x + 2 x^2 modulo 11; at 1, 2, 3, 4: 10, 8, 10, 5 (mod 11)."""
    drawn = iter([3, 2])
    shares = shamir.split(5, 3, [1, 2, 3, 4], prime=11, draw=lambda _: next(drawn))
    assert shares == [10, 19 % 11, 32 % 11, 49 % 11]
    # At 0 from 1, 2, 3: 3 f(1) - 3 f(2) + f(3).
    assert shamir.coefficients([1, 2, 3], prime=11) == [3, 11 - 3, 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(1, 6), st.integers(0, 3))
def test_any_t_shares_give_the_secret(secret: int, threshold: int, more: int) -> None:
    points = [3 * i + 1 for i in range(threshold + more)]
    shares = dict(zip(points, shamir.split(secret, threshold, points), strict=True))
    for chosen in combinations(points, threshold):
        weights = shamir.coefficients(chosen)
        assert shamir.combined([shares[x] for x in chosen], weights) == secret


@pytest.mark.parametrize("threshold", [2, 3])
def test_fewer_than_t_shares_say_nothing(threshold: int) -> None:
    """Over the field of 7 elements, all polynomials: t - 1 shares are as likely for any secret."""
    prime, points = 7, [1, 3, 4]
    for chosen in combinations(range(3), threshold - 1):
        found = []
        for secret in range(prime):
            seen: Counter[tuple[int, ...]] = Counter()
            for drawn in product(range(prime), repeat=threshold - 1):
                draws = iter(drawn)
                shares = shamir.split(secret, threshold, points, prime, lambda _, d=draws: next(d))
                seen[tuple(shares[i] for i in chosen)] += 1
            found.append(seen)
        assert all(seen == found[0] for seen in found)
        assert len(found[0]) == prime ** (threshold - 1)


def test_t_minus_1_real_shares_fit_every_secret() -> None:
    """And the share at a further point tells which: the polynomial is of full degree."""
    points = [1, 2, 3, 4]
    shares = shamir.split(2**255 + 9, 4, points)
    for other in (0, 1, 2**256 - 1, 2**255 + 9):
        weights = shamir.coefficients(points)
        last = (other - shamir.combined(shares[:3], weights[:3])) * pow(
            weights[3], -1, shamir.PRIME
        )
        fitting = [*shares[:3], last % shamir.PRIME]
        assert shamir.combined(fitting, weights) == other
        assert (fitting == shares) == (other == 2**255 + 9)


def test_the_field_is_one() -> None:
    """Miller-Rabin with the first primes; and every secret of 32 bytes is in it."""
    n, odd, twos = shamir.PRIME, shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53):
        powers = [pow(base, odd * 2**i, n) for i in range(twos + 1)]
        assert powers[0] == 1 or n - 1 in powers[:-1]
    assert 2**256 < n < 2 ** (8 * SHARE)


# What the server sees


def test_masked_vectors_are_uniform_whatever_is_in_them() -> None:
    """Bytes of masked zeros, of differences of two, and of one vector masked twice."""
    count, silos = 40_000, 3
    values = {silo: np.zeros(count, dtype="<u4") for silo in range(silos)}
    seen = [masked_of(values) for _ in range(2)]
    samples = [*seen[0].values(), seen[0][0] - seen[0][1], seen[0][0] - seen[1][0]]
    samples.append(seen[0][0] + seen[0][1])
    for sample in samples:
        counts = np.bincount(sample.view(np.uint8), minlength=256)
        expected = 4 * count / 256
        # 255 degrees of freedom: mean 255, standard deviation 22.6.
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 22.6
    # The same test finds what is not masked.
    counts = np.bincount(values[0].view(np.uint8), minlength=256)
    assert ((counts - expected) ** 2 / expected).sum() > 10**6


@pytest.mark.parametrize("taken_off", ["own", "common"])
def test_either_mask_alone_hides_an_update(taken_off: str) -> None:
    """Who was taken for vanished and comes late has its own mask left; a survivor the others."""
    values = {silo: np.arange(9000, dtype="<u4") for silo in range(3)}
    terms, members, collector = begun(values)
    masked = unpacked(members[0].mask(values[0], collector.sealed_for(0)), terms.bits)
    own = derived(members[0]._seed, "self", terms.context)
    common = [
        mask_key(members[0]._masking, collector.roster()[other][KEY:KEYS], terms.context)
        for other in (1, 2)
    ]
    streams = {"own": [(own, False)], "common": [(key, False) for key in common]}
    add_streams(masked, streams.pop(taken_off))
    counts = np.bincount(masked.view(np.uint8), minlength=256)
    expected = masked.nbytes / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 22.6
    add_streams(masked, streams.popitem()[1])
    assert np.array_equal(masked, values[0])


def masked_of(values: Mapping[int, Any]) -> dict[int, Any]:
    """The masked vectors of a sum, before anything is unmasked."""
    terms, members, collector = begun(values)
    return {
        silo: unpacked(member.mask(values[silo], collector.sealed_for(silo)), terms.bits)
        for silo, member in members.items()
    }


def begun(
    values: Mapping[int, Any], threshold: int = 2
) -> tuple[Terms, dict[int, Member], Collector]:
    """A sum after its second step."""
    terms = Terms(b"a sum", threshold, 32)
    members = {silo: Member(terms, silo) for silo in values}
    collector = Collector(terms, len(next(iter(values.values()))))
    for silo, member in members.items():
        collector.advertised(silo, member.advertise())
    for silo, member in members.items():
        collector.shared(silo, *member.share(collector.roster()))
    return terms, members, collector


def test_a_sum_at_every_step_from_what_was_saved() -> None:
    """A silo's process ends after every message; what it saves is bytes and whole numbers."""
    values = vectors(4, 5, 32)
    terms = Terms(b"a sum", 3, 32)
    saved = {silo: Member(terms, silo).saved() for silo in values}
    collector = Collector(terms, 5)

    def answer(silo: int, step: Callable[[Member], Any]) -> Any:
        for given_ in saved[silo].values():
            each = given_ if isinstance(given_, list) else [given_]
            assert all(type(one) in (bytes, int) for one in each)
        member = Member.restored(saved[silo])
        found = step(member)
        saved[silo] = member.saved()
        return found

    for silo in values:
        collector.advertised(silo, answer(silo, lambda member: member.advertise()))
    for silo in values:
        collector.shared(silo, *answer(silo, lambda member: member.share(collector.roster())))
    for silo in (0, 3, 6):
        sealed = collector.sealed_for(silo)
        collector.add(
            silo, answer(silo, lambda member, s=silo, c=sealed: member.mask(values[s], c))
        )
    for silo in (0, 3, 6):
        request = collector.survivors, collector.vanished
        collector.revealed(silo, answer(silo, lambda member, r=request: member.unmask(*r)))
    assert lowest(collector.sum(), 32) == plain_sum(values, (0, 3, 6), 32)
    # Afterwards no secret is left.
    assert saved[0]["secrets"] == saved[0]["own"] == b""
    assert saved[0]["keys"] == saved[0]["sealed"] == []


# What silos refuse

ROSTERS: dict[str, tuple[Callable[[dict[int, bytes]], dict[int, bytes]], str]] = {
    "its own keys changed": (lambda r: {**r, 0: r[1]}, "other keys than this silo advertised"),
    "itself left out": (lambda r: {k: v for k, v in r.items() if k}, "other keys than this silo"),
    "too few": (lambda r: {0: r[0], 1: r[1]}, "2 silos advertised keys, and .* needs 3"),
    "too many": (
        lambda r: {**r, 5: r[1][:-1] + b"a", 6: r[1][:-1] + b"b"},
        "of 6 silos, and 3 are not more than half",
    ),
    "the same keys twice": (lambda r: {**r, 2: r[1]}, "two silos have the same keys"),
    "keys cut short": (lambda r: {**r, 2: r[1][:40]}, "the keys of silo 2 are cut short"),
    "a key that is none": (lambda r: {**r, 2: bytes(KEYS)}, "is none of X25519"),
}


@pytest.mark.parametrize("lie", ROSTERS)
def test_a_roster_that_lies_is_refused(lie: str) -> None:
    change, why = ROSTERS[lie]
    terms = Terms(b"a sum", 3, 32)
    members = {silo: Member(terms, silo) for silo in range(4)}
    roster = {silo: member.advertise() for silo, member in members.items()}
    with pytest.raises(FednagError, match=why):
        members[0].share(change(roster))
    members[1].share(roster)


def test_a_sum_of_one_is_refused() -> None:
    with pytest.raises(FednagError, match="would go on with one silo"):
        rehearse(vectors(1, 3, 32), 1, 32)


REQUESTS: dict[str, tuple[tuple[list[int], list[int]], str]] = {
    "both secrets of a silo": (([0, 1, 2], [2, 3]), "both secrets of a silo"),
    "a silo twice": (([0, 1, 1, 2], [3]), "names a silo twice"),
    "a stranger": (([0, 1, 2], [3, 4]), "another sum than this silo took part in"),
    "one left out": (([0, 1, 2], []), "another sum than this silo took part in"),
    "its own key": (([1, 2, 3], [0]), "another sum than this silo took part in"),
    "too few survivors": (([0, 1], [2, 3]), "2 silos sent a masked update, and .* needs 3"),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_silo_refuses_to_unmask_more_than_the_sum(request_: str) -> None:
    values = few(4)
    asked, why = REQUESTS[request_]
    _, members, collector = begun(values, threshold=3)
    for silo, member in members.items():
        member.mask(values[silo], collector.sealed_for(silo))
    with pytest.raises(FednagError, match=why):
        members[0].unmask(*asked)
    # Nor is it asked again, whatever for: the sum is over for it.
    with pytest.raises(FednagError, match="'unmask' of a sum out of turn"):
        members[0].unmask([0, 1, 2], [3])
    # Another who is asked twice answers once, so that it reveals one secret of each silo.
    members[1].unmask([0, 1, 2], [3])
    with pytest.raises(FednagError, match="out of turn"):
        members[1].unmask([0, 1, 3], [2])


def test_steps_are_answered_once_and_in_turn() -> None:
    values = few(3)
    _, members, collector = begun(values)
    member, sealed = members[0], collector.sealed_for(0)
    for again in (member.advertise, lambda: member.share(collector.roster())):
        with pytest.raises(FednagError, match="out of turn; a sum that was cut off begins anew"):
            again()
    member.mask(values[0], sealed)
    with pytest.raises(FednagError, match="'masked' of a sum out of turn"):
        member.mask(values[0], sealed)
    with pytest.raises(FednagError, match="'unmask' of a sum out of turn"):
        members[1].unmask([0, 1, 2], [])


def test_shares_handed_on_wrongly_are_refused() -> None:
    values = few(4)
    for change, why in (
        (lambda sealed: {**sealed, 9: sealed[1]}, "silos that did not advertise"),
        (lambda sealed: {**sealed, 0: sealed[1]}, "silos that did not advertise"),
        (lambda sealed: {**sealed, 1: sealed[1][1:]}, "of a wrong length"),
        (lambda sealed: {1: sealed[1]}, "2 silos dealt shares, and .* needs 3"),
    ):
        _, members, collector = begun(values, threshold=3)
        with pytest.raises(FednagError, match=why):
            members[0].mask(values[0], change(collector.sealed_for(0)))


def test_shares_that_were_changed_on_the_way_cannot_be_opened() -> None:
    """They are zeros, so that the message is as long as ever; enough others give the secret."""
    values = few(4)
    terms, members, collector = begun(values, threshold=3)
    for silo in (0, 1, 2, 3):
        sealed = collector.sealed_for(silo)
        if silo == 0:
            sealed[1] = sealed[2]  # meant for silo 0 too, but from another
        collector.add(silo, members[silo].mask(values[silo], sealed))
    for silo in members:
        shares = members[silo].unmask([0, 1, 2, 3], [])
        assert (shares[SHARE : 2 * SHARE] == bytes(SHARE)) == (silo == 0)
        collector.revealed(silo, shares)
    assert lowest(collector.sum(), terms.bits) == plain_sum(values, values, 32)


def test_wrong_shares_are_told_and_give_no_sum() -> None:
    """Of a seed, of a key: the server compares with what was promised."""
    for vanished, place in ((), 2), ((2,), 2):
        values = few(4)
        _, members, collector = begun(values, threshold=3)
        there = [silo for silo in members if silo not in vanished]
        for silo in there:
            collector.add(silo, members[silo].mask(values[silo], collector.sealed_for(silo)))
        for silo in there:
            shares = bytearray(members[silo].unmask(there, vanished))
            shares[place * SHARE] ^= silo == 0
            collector.revealed(silo, bytes(shares))
        with pytest.raises(FednagError, match="shares of the secrets of silo 2 are wrong"):
            collector.sum()


MESSAGES: dict[str, Callable[[Collector, Member], Any]] = {
    "keys have 3 bytes": lambda c, m: c.advertised(0, b"abc"),
    "not committed itself": lambda c, m: c.shared(0, b"", bytes(2 * SEALED)),
    "shares have 82 bytes": lambda c, m: c.shared(0, bytes(KEY), bytes(SEALED)),
    "has 4 numbers, not 5": lambda c, m: c.add(0, np.zeros(16, np.uint8)),
    "was not asked": lambda c, m: c.add(7, np.zeros(20, np.uint8)),
    "shares have 1 bytes": lambda c, m: c.revealed(0, b"a"),
}


@pytest.mark.parametrize("why", MESSAGES)
def test_a_silo_that_sends_nonsense_is_refused(why: str) -> None:
    values = few(3)
    _, members, collector = begun(values)
    with pytest.raises(FednagError, match=why):
        MESSAGES[why](collector, members[0])
    for silo, member in members.items():
        collector.add(silo, member.mask(values[silo], collector.sealed_for(silo)))
    with pytest.raises(FednagError, match="was not asked for"):
        collector.add(0, np.zeros(20, np.uint8))


# A server that lies about keys


def tricked(signers: Mapping[int, Ed25519PrivateKey] | None = None) -> Any:
    """A server that shows silo 0 keys of its own making in place of the others': what it reads."""
    known = {n: key.public_key() for n, key in signers.items()} if signers else None
    terms = Terms(b"a sum", 2, 32)
    secret = np.arange(5, dtype="<u4")
    victim = Member(terms, 0)
    fakes = {silo: (bytes([silo]) * KEY, bytes([silo + 9]) * KEY) for silo in (1, 2)}
    own = victim.advertise(signers[0].sign if signers else None)
    roster = {silo: public(a) + public(b) for silo, (a, b) in fakes.items()} | {0: own}
    _, sealed = victim.share(roster, known)
    masked = unpacked(victim.mask(secret, {1: bytes(SEALED), 2: bytes(SEALED)}), 32)
    # It has all shares, for it made the keys they are sealed for.
    shares = {}
    for place, silo in enumerate(fakes):
        content = sealed[place * SEALED : (place + 1) * SEALED]
        way = (0).to_bytes(8, "little") + silo.to_bytes(8, "little")
        from fednag.secure.member import ChaCha20Poly1305

        common = agreed(fakes[silo][0], own[:KEY])
        cipher = ChaCha20Poly1305(derived(common, "shares", terms.context + way))
        shares[silo] = int.from_bytes(cipher.decrypt(NONCE, content, None)[SHARE:], "little")
    seed = shamir.combined(list(shares.values()), shamir.coefficients([2, 3]))
    streams = [(derived(seed.to_bytes(KEY, "little"), "self", terms.context), False)]
    for _, masking in fakes.values():
        streams.append((derived(agreed(masking, own[KEY:KEYS]), "mask", terms.context), False))
    add_streams(masked, streams)
    return masked.tolist()


def test_signed_keys_stand_against_a_server_that_lies() -> None:
    """Without signatures it reads an update: the page says so, and this is how."""
    assert tricked() == [0, 1, 2, 3, 4]
    with pytest.raises(FednagError, match="the keys of silo 1 are not signed"):
        tricked({silo: Ed25519PrivateKey.generate() for silo in range(3)})


def test_a_signature_is_of_one_silo_in_one_sum() -> None:
    signers = {silo: Ed25519PrivateKey.generate() for silo in range(3)}
    known = {silo: key.public_key() for silo, key in signers.items()}

    def advertised(context: bytes) -> tuple[dict[int, Member], dict[int, bytes]]:
        members = {silo: Member(Terms(context, 2, 32), silo) for silo in range(3)}
        return members, {silo: m.advertise(signers[silo].sign) for silo, m in members.items()}

    members, roster = advertised(b"this")
    _, before = advertised(b"the one before")
    members[0].share(roster, known)
    with pytest.raises(FednagError, match="keys of silo 2 are not signed by it"):
        members[1].share({**roster, 2: before[2]}, known)
    members, roster = advertised(b"this")
    with pytest.raises(FednagError, match="keys of silo 1 are not signed by it"):
        members[0].share({**roster, 1: roster[2], 2: roster[1]}, known)
    with pytest.raises(FednagError, match="silo 2 is not among the silos whose keys are known"):
        members[1].share(roster, {0: known[0], 1: known[1]})
