"""Compares what a client was told with the journal and with what a consumer delivers."""

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
"""Bounds the search of the journal."""
_READ_TIMEOUT_S: Final = 60.0
"""Bounds the reading; what was not delivered by then counts as lost."""
_QUIET_S: Final = 1.0
"""The reading ends this long after the last delivery, if everything told was delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Result of the comparison; all but `told` and `raised` must be 0."""

    told: int
    """Acknowledged commits."""
    raised: int
    """Commits that raised an error; their records may be delivered or not."""
    lost: int
    """Acknowledged commits that the journal denies, or that a partition did not deliver."""
    doubled: int
    """Records delivered, and transactions and commit sequences told, more than once."""
    strange: int
    """Delivered records of transactions that were neither acknowledged nor raised an error."""

    def __add__(self, other: Truth) -> Truth:
        """Returns the result for two clients together."""
        return Truth(
            told=self.told + other.told,
            raised=self.raised + other.raised,
            lost=self.lost + other.lost,
            doubled=self.doubled + other.doubled,
            strange=self.strange + other.strange,
        )

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled or made up."""
        return not (self.lost or self.doubled or self.strange)


def find_truth(log: Log, committer: Committer) -> Truth:
    """Compares. The committer must have stopped, and a coordinator must run."""
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
    """Returns the numbers of commits that the journal denies, or has at another sequence."""
    by_txid = {t.txid: t for t in told}
    fates = find_fates(log, by_txid, timeout_s=_FATES_TIMEOUT_S)
    return {
        t.number
        for txid, t in by_txid.items()
        if not fates[txid].state.commits or fates[txid].commit_sequence != t.commit_sequence
    }


def _delivered(servers: str, topic: str, wanted: set[int]) -> Counter[tuple[int, int]]:
    """Returns how often a consumer that reads everything gets each (number, partition)."""
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
