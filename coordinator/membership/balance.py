"""Decides for one coordinator when to bid for a journal partition and which ones to give away.

Pure: no I/O, clock or randomness. Safety does not depend on it: that rests on the journal's epochs
alone, and a wrong guess costs an OWNER record and a short stall. Coordinators with the same
knowledge decide alike, so that a partition seldom has two bidders and a move is never undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

STAGGER_S: Final = 0.15
"""Time between the bids of two candidates: several times what winning a partition takes.

Shorter, and two may bid for one partition; longer, and a partition whose best candidates don't bid
waits longer for an owner.
"""
BACKOFF_MIN_S: Final = 0.05
"""Pause after the first lost bid, times 0.5 to 1.5. Shorter, and the same two may meet again."""
BACKOFF_MAX_S: Final = 5.0
"""Upper bound of that pause, which doubles with each lost bid, before the random factor.

Longer leaves a partition without an owner for longer after many lost bids.
"""
UNEVEN_MIN: Final = 2
"""A partition moves when its owner has at least this many partitions more than the receiver.

Moving it for a difference of one would only make the receiver the next to give; a larger number
leaves the load uneven.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A coordinator, as it describes itself."""

    nonce: int
    """Random 63 bits of the process."""
    address: str
    """host:port at which clients and other coordinators reach it."""
    owned: Mapping[int, int] = field(default_factory=dict)
    """Journal partition that it serves → its epoch there."""
    following: frozenset[int] = frozenset()
    """Journal partitions that it could serve at once."""
    leaving: bool = False
    """Whether it is shutting down and takes over no more partitions."""
    journal_format: int = 0
    """Newest version of journal records that it reads; 0: it does not say, for its build is older.
    """
    ends: Mapping[int, int] = field(default_factory=dict, compare=False)
    """Journal partition → offset below which it has seen everything durable.

    Not compared, because it changes all the time: a change of it alone is no reason to send news.
    """


@dataclass(frozen=True, slots=True)
class Gift:
    """A planned move of one journal partition."""

    partition: int
    receiver: Member


def rank(partition: int, nonce: int, candidates: Iterable[int]) -> int:
    """Returns the place of a process among the candidates for a partition; 0 bids first.

    Each candidate's score is a hash of its nonce and the partition. So the partitions of a dead
    owner spread over all others, and every coordinator computes the same order.
    """
    own = _score(partition, nonce)
    return sum(1 for other in set(candidates) if _score(partition, other) < own)


def bid_delay_s(partition: int, me: Member, others: Iterable[Member], more_s: float = 0.0) -> float:
    """Returns the seconds to wait before bidding for a partition that no coordinator serves.

    Args:
        partition: number of the journal partition.
        me: this coordinator.
        others: those that answer.
        more_s: what each of them is given more than usual (`Patience.more_s`).
    """
    able = [m.nonce for m in others if partition in m.following and not m.leaving]
    return (STAGGER_S + more_s) * rank(partition, me.nonce, able)


def backoff_s(losses: int, draw: float) -> float:
    """Returns the seconds to wait after lost bids.

    Args:
        losses: number of bids lost in a row, at least 1.
        draw: random number in [0, 1), so that two candidates that met once don't meet again.
    """
    pause_s: float = min(BACKOFF_MIN_S * 2 ** min(losses - 1, 16), BACKOFF_MAX_S)
    return pause_s * (0.5 + draw)


def gift(me: Member, others: Sequence[Member]) -> Gift | None:
    """Returns the next gift for an even spread; None if this coordinator has nothing to give.

    Only the coordinator with the most partitions gives; if several have as many, the one with the
    lowest nonce. Otherwise two could give to one receiver at once and make it the fullest.
    """
    if any((-len(m.owned), m.nonce) < (-len(me.owned), me.nonce) for m in others if not m.leaving):
        return None
    for receiver in sorted((m for m in others if not m.leaving), key=_load):
        if len(me.owned) - len(receiver.owned) < UNEVEN_MIN:
            return None
        able = [p for p in me.owned if p in receiver.following]
        if able:
            return Gift(min(able, key=lambda p: _score(p, receiver.nonce)), receiver)
    return None


def farewell(me: Member, others: Sequence[Member]) -> list[Gift]:
    """Returns a leaving coordinator's gifts: one for each partition that another can take."""
    load = {m.nonce: len(m.owned) for m in others}
    gifts = []
    for partition in sorted(me.owned):
        able = [m for m in others if partition in m.following and not m.leaving]
        if able:
            receiver = min(able, key=lambda m: (load[m.nonce], _score(partition, m.nonce)))
            load[receiver.nonce] += 1
            gifts.append(Gift(partition, receiver))
    return gifts


def _load(member: Member) -> tuple[int, int]:
    return len(member.owned), member.nonce


def _score(partition: int, nonce: int) -> bytes:
    text = f"{partition}/{nonce}".encode()
    return hashlib.blake2b(text, digest_size=8).digest()
