"""Who bids, and who gives what to whom: that converges, stays, and spreads evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.membership.balance import (
    BACKOFF_MAX_S,
    STAGGER_S,
    Member,
    backoff_s,
    bid_delay_s,
    farewell,
    gift,
    rank,
)

NONCES = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6, unique=True)


def member(nonce: int, owned: set[int], partitions: int, *, leaving: bool = False) -> Member:
    """Returns a live coordinator that follows all partitions that it does not own."""
    return Member(
        nonce=nonce,
        address=f"host:{nonce}",
        owned=dict.fromkeys(owned, 1),
        following=frozenset(set(range(partitions)) - owned),
        leaving=leaving,
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[Member]:
    """Draws coordinators that own partitions in any distribution."""
    nonces, partitions = draw(NONCES), draw(st.integers(0, 24))
    owned: dict[int, set[int]] = {n: set() for n in nonces}
    for partition in range(partitions):
        owned[draw(st.sampled_from(nonces))].add(partition)
    return [member(n, owned[n], partitions) for n in nonces]


def moved(members: list[Member], giver: int, receiver: int, partition: int) -> list[Member]:
    """Returns the cluster after a move."""

    def after(m: Member) -> Member:
        owned = {p: e for p, e in m.owned.items() if m.nonce != giver or p != partition}
        following = set(m.following)
        if m.nonce == receiver:
            owned[partition] = 2
            following.discard(partition)
        if m.nonce == giver:
            following.add(partition)
        return replace(m, owned=owned, following=frozenset(following))

    return [after(m) for m in members]


@given(clusters())
def test_giving_converges_to_a_spread_of_one_and_stays_there(members: list[Member]) -> None:
    partitions = sorted(p for m in members for p in m.owned)
    for _ in range(len(partitions) + 1):
        gifts = [
            (m, due)
            for m in members
            if (due := gift(m, [o for o in members if o is not m])) is not None
        ]
        assert len(gifts) <= 1, "two would give to the same receiver at once"
        if not gifts:
            break
        (giver, due) = gifts[0]
        members = moved(members, giver.nonce, due.receiver.nonce, due.partition)
    else:
        pytest.fail("more moves than partitions")
    loads = [len(m.owned) for m in members]
    assert max(loads) - min(loads) <= 1
    assert sorted(p for m in members for p in m.owned) == partitions


@given(clusters())
def test_who_leaves_gives_everything_away_evenly(members: list[Member]) -> None:
    me, others = replace(members[0], leaving=True), members[1:]
    gifts = farewell(me, others)
    if not others:
        assert gifts == []
        return
    assert sorted(g.partition for g in gifts) == sorted(me.owned)
    loads = {m.nonce: len(m.owned) for m in others}
    spread = max(loads.values()) - min(loads.values())
    for due in gifts:
        loads[due.receiver.nonce] += 1
    assert max(loads.values()) - min(loads.values()) <= max(1, spread)


def test_nothing_is_given_to_who_leaves_or_could_not_serve() -> None:
    me = member(1, {0, 1, 2}, 3)
    assert gift(me, [member(2, set(), 3, leaving=True)]) is None
    assert farewell(me, [member(2, set(), 3, leaving=True)]) == []
    behind = replace(member(2, set(), 3), following=frozenset())
    assert gift(me, [behind]) is None
    assert farewell(me, [behind]) == []
    one = replace(behind, following=frozenset({2}))
    due = gift(me, [one])
    assert due is not None
    assert due.partition == 2


def test_a_lag_of_the_least_loaded_does_not_hold_up_the_next() -> None:
    me = member(1, {0, 1, 2, 3}, 5)
    behind = replace(member(2, set(), 5), following=frozenset())
    able = member(3, {4}, 5)
    due = gift(me, [behind, able])
    assert due is not None
    assert due.receiver is able


@given(NONCES, st.integers(0, 100))
def test_every_candidate_has_its_own_rank(nonces: list[int], partition: int) -> None:
    assert sorted(rank(partition, n, nonces) for n in nonces) == list(range(len(nonces)))


def test_the_orphans_of_one_spread_over_all_others() -> None:
    nonces = [11, 222, 3333, 44444]
    first = [next(n for n in nonces if rank(p, n, nonces) == 0) for p in range(400)]
    assert all(60 < first.count(n) < 140 for n in nonces)


def test_whoever_can_not_serve_makes_nobody_wait() -> None:
    me = member(1, set(), 1)
    rivals = [member(n, set(), 1) for n in range(2, 10)]
    ahead = rank(0, 1, [m.nonce for m in rivals])
    assert bid_delay_s(0, me, rivals) == pytest.approx(ahead * STAGGER_S)
    assert bid_delay_s(0, me, [replace(m, leaving=True) for m in rivals]) == 0
    assert bid_delay_s(0, me, [replace(m, following=frozenset()) for m in rivals]) == 0


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_back_off_grows_to_a_bound(losses: int, draw: float) -> None:
    pause_s = backoff_s(losses, draw)
    assert 0 < pause_s <= 1.5 * BACKOFF_MAX_S
    assert backoff_s(losses + 1, draw) >= pause_s
