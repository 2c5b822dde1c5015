"""Whether what a client was told is what the journal says and what a consumer delivers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

import logtx
from logtx.journal.logs.interface import Log
from logtx.journal.reader import find_fates

from .committer import PARTITIONS, Committer, Told

_FATES_TIMEOUT_S: Final = 60.0
_READ_TIMEOUT_S: Final = 60.0
_QUIET_S: Final = 1.0
"""No delivery for so long, once everything told was delivered, is the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was found; all but `told` and `raised` must be 0."""

    told: int
    """Commits acknowledged."""
    raised: int
    """Commits that raised; whether they were committed is judged by the records."""
    lost: int
    """Acknowledged, and not committed by the journal, or not delivered in every partition."""
    doubled: int
    """Records delivered more than once, and commit sequences told twice."""
    strange: int
    """Delivered and neither acknowledged nor of an unknown outcome."""

    def __add__(self, other: Truth) -> Truth:
        """Of two clients together."""
        return Truth(
            told=self.told + other.told,
            raised=self.raised + other.raised,
            lost=self.lost + other.lost,
            doubled=self.doubled + other.doubled,
            strange=self.strange + other.strange,
        )

    @property
    def holds(self) -> bool:
        """Whether nothing was lost or doubled or made up."""
        return not (self.lost or self.doubled or self.strange)


def find_truth(log: Log, committer: Committer) -> Truth:
    """Compare; the committer has stopped, a coordinator runs."""
    all_told = committer.told
    told = {t.number: t for t in all_told}
    delivered = _delivered(log.bootstrap_servers, committer.topic, set(told))
    undelivered = {n for n in told if any(delivered[n, p] == 0 for p in range(PARTITIONS))}
    unknown = {number for number, _ in committer.failed}
    sequences = Counter((t.txid.partition, t.commit_sequence) for t in all_told)
    return Truth(
        told=len(told),
        raised=len(committer.failed),
        lost=len(undelivered | _undecided(log, told.values())),
        doubled=sum(n > 1 for n in delivered.values())
        + sum(n > 1 for n in sequences.values())
        + len(all_told)
        - len(told),
        strange=sum(n not in told and n not in unknown for n, _ in delivered),
    )


def _undecided(log: Log, told: Iterable[Told]) -> set[int]:
    """Numbers of those that the journal does not know as committed at the sequence told."""
    by_txid = {t.txid: t for t in told}
    fates = find_fates(log, by_txid, timeout_s=_FATES_TIMEOUT_S)
    return {
        t.number
        for txid, t in by_txid.items()
        if not fates[txid].state.commits or fates[txid].commit_sequence != t.commit_sequence
    }


def _delivered(servers: str, topic: str, wanted: set[int]) -> Counter[tuple[int, int]]:
    """How often each (number, partition) is delivered, by a consumer that reads everything."""
    found: Counter[tuple[int, int]] = Counter()
    left = {(n, p) for n in wanted for p in range(PARTITIONS)}
    config = {
        "bootstrap.servers": servers,
        "group.id": f"truth-{uuid4().hex}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    deadline_s = time.monotonic() + _READ_TIMEOUT_S
    quiet_since_s = time.monotonic()
    with logtx.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        while time.monotonic() < deadline_s:
            messages = consumer.consume(500, 0.1)
            for message in messages:
                place = int(message.value() or b"-1"), message.partition() or 0
                found[place] += 1
                left.discard(place)
            now_s = time.monotonic()
            if messages:
                quiet_since_s = now_s
            elif not left and now_s - quiet_since_s > _QUIET_S:
                break
    return found
