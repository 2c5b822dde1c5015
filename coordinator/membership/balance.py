"""Who serves which journal partition: the decisions of one coordinator, from what it knows.

Pure: no I/O, clock or randomness. Nothing here is needed for safety, which is the journal's
epochs alone; a wrong guess costs an OWNER record and a short stall. Coordinators that know the
same decide alike, so that a partition seldom has two bidders and a move is never undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

STAGGER_S: Final = 0.15
"""Between the bids of two candidates: several times what winning a partition takes."""
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
UNEVEN_MIN: Final = 2
"""A partition moves when its owner has so many more than the receiver: moving it for less would
only make the receiver the next to give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A live coordinator, as it tells of itself."""

    nonce: int
    """Random 63 bits of the process."""
    address: str
    """host:port that clients and other coordinators reach it at."""
    owned: Mapping[int, int] = field(default_factory=dict)
    """Journal partitions that it serves → its epochs."""
    following: frozenset[int] = frozenset()
    """Journal partitions that it could serve at once."""
    leaving: bool = False
    """It is shutting down and takes nothing more."""
    ends: Mapping[int, int] = field(default_factory=dict, compare=False)
    """Journal partitions → offset below which it has seen everything durable. No reason to tell
    anybody anything: it changes all the time."""


@dataclass(frozen=True, slots=True)
class Gift:
    """A planned move of one journal partition."""

    partition: int
    receiver: Member


def rank(partition: int, nonce: int, candidates: Iterable[int]) -> int:
    """Place of a process among the candidates for a partition; 0 bids first.

    Each has a score from its nonce and the partition, so that the partitions of a dead owner
    spread over all others, whoever computes it.
    """
    own = _score(partition, nonce)
    return sum(1 for other in set(candidates) if _score(partition, other) < own)


def bid_delay_s(partition: int, me: Member, others: Iterable[Member]) -> float:
    """How long to wait before bidding for a partition that nobody serves."""
    able = [m.nonce for m in others if partition in m.following and not m.leaving]
    return STAGGER_S * rank(partition, me.nonce, able)


def backoff_s(losses: int, draw: float) -> float:
    """How long to wait after so many lost bids.

    Args:
        losses: at least 1.
        draw: random, in [0, 1): two candidates that met once must not meet again.
    """
    pause_s: float = min(BACKOFF_MIN_S * 2 ** min(losses - 1, 16), BACKOFF_MAX_S)
    return pause_s * (0.5 + draw)


def gift(me: Member, others: Sequence[Member]) -> Gift | None:
    """What to give to whom for an even spread; None if that is not for this coordinator to do.

    Only the one that has most gives (of equals the lowest nonce), so that two don't give to the
    same receiver at once and make it the one that has most.
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
    """To whom a coordinator that leaves gives each of its partitions, if somebody can take it."""
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
