"""What became of each message of a queue, by a naive reading of the journal: a word a message.

A message is named by its place in the order of delivery, which the naive reading of its partition
says. An acknowledgement names spans: here it is asked of each message whether it lies in them, and
of those that come later, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache

from logtx.journal.acks import Ack, Acks, AddAcks, Subscribe, SubscribeEffect
from logtx.journal.places import PartitionId
from logtx.journal.spans import Span
from logtx.journal.txid import TxId

from .history import History, Message
from .reference import Journal, Partition, Reading


class State(StrEnum):
    """What the journal says of a message."""

    AVAILABLE = "available"
    PENDING = "pending"
    DELETED = "deleted"


@dataclass(slots=True)
class Turn:
    """A message got another state."""

    at: int
    state: State
    begin: int | None
    """BEGIN of the transaction that acknowledges it; None: none does."""
    rejected: bool = False
    begins_era: bool = False
    """Whether the queue began there, or began anew, or was deleted."""


@dataclass(slots=True)
class Fate:
    """One message of a queue, and what became of it."""

    message: Message
    offset: int
    """Of its record."""
    value: bytes | None
    place: int
    txid: TxId | None
    """The transaction that wrote it; None if it is plain."""
    turns: list[Turn] = field(default_factory=list)

    @property
    def now(self) -> Turn:
        """What became of it in the end."""
        return self.turns[-1] if self.turns else Turn(0, State.AVAILABLE, None)

    def state_at(self, at: int) -> State:
        """Returns what the journal said of it at that time."""
        return next((t.state for t in reversed(self.turns) if t.at <= at), State.AVAILABLE)

    def was_available(self, since: int, until: int) -> bool:
        """Returns whether it was available at some time from `since` to `until`."""
        between = [t.state for t in self.turns if since < t.at <= until]
        return State.AVAILABLE in (self.state_at(since), *between)

    @property
    def era_at(self) -> int:
        """When it became what it is in the era that is now."""
        return next((t.at for t in reversed(self.turns) if t.begins_era), 0)

    def turned(self, since: int, until: int) -> bool:
        """Returns whether it got another state in that time."""
        return any(since < t.at <= until for t in self.turns)


class Queue:
    """One subscription, as its journal tells it."""

    def __init__(self, group: str, journal: Journal, reading: Reading) -> None:
        """Reads it."""
        self.group = group
        self.journal = journal
        self.starts: dict[PartitionId, int] = {}
        self.fates: dict[PartitionId, list[Fate]] = {}
        """Messages of each partition of its, in the order of delivery."""
        self.wrong: list[str] = []
        self.era = 0
        """Offset of the last record that ended an era; there is one queue in a history."""
        self.ended: list[int] = []
        """The eras that have ended."""
        self._reading = reading
        self._pending: dict[int, list[Fate]] = {}
        """BEGIN → messages that its transaction has pending."""
        decided = {
            found.decision.sequence: found
            for found in journal.transactions.values()
            if found.decision is not None
        }
        told = {record.offset: (record, what) for record, what in journal.of_queues}
        for offset in sorted(decided.keys() | told.keys()):
            if offset in decided:
                found = decided[offset]
                assert found.decision is not None
                self._decide(found.txid.offset, found.decision.at, found.decision.committed)
            else:
                record, what = told[offset]
                if what.group == group:
                    self._take(record.offset, record.at, what)

    def _take(self, offset: int, at: int, told: Subscribe | AddAcks | Ack) -> None:
        match told:
            case Subscribe(effect=SubscribeEffect.JOINS):
                for partition, start in told.starts:
                    if partition in self.starts:
                        self.wrong.append(f"{offset}: {partition} begins again")
                    self._begin(partition, start, at)
            case Subscribe():
                if any(self._pending.values()):
                    self.wrong.append(f"{offset}: {told} while messages are pending")
                self.ended.append(self.era)
                self.era = offset
                for partition, start in told.starts:
                    self._begin(partition, start, at)
                if told.effect is SubscribeEffect.ENDS:
                    self.starts.clear()
                    for fate in self.all():
                        fate.turns.append(Turn(at, State.DELETED, None, begins_era=True))
            case AddAcks():
                found = self.journal.transactions.get(told.begin)
                if found is None or (found.decision is not None and found.decision.at < at):
                    self.wrong.append(f"{offset}: {told} of a transaction that is not open")
                self._turn(offset, told.acks, Turn(at, State.PENDING, told.begin))
            case Ack():
                self._turn(offset, told.acks, Turn(at, State.DELETED, None, told.rejected))

    def _begin(self, partition: PartitionId, start: int, at: int) -> None:
        self.starts[partition] = start
        if partition not in self.fates:
            self.fates[partition] = list(self._messages(partition))
        for fate in self.fates[partition]:
            state = State.DELETED if fate.place < start else State.AVAILABLE
            fate.turns.append(Turn(at, state, None, begins_era=True))

    def _turn(self, offset: int, acks: Iterable[Acks], turn: Turn) -> None:
        for fate in self.named(acks):
            if fate.now.state is not State.AVAILABLE:
                what = f"{offset}: {fate.message} becomes {turn}, and it is {fate.now}"
                self.wrong.append(what)
            fate.turns.append(turn)
            if turn.begin is not None:
                self._pending.setdefault(turn.begin, []).append(fate)

    def _decide(self, begin: int, at: int, committed: bool) -> None:
        for fate in self._pending.pop(begin, ()):
            if (fate.now.state, fate.now.begin) == (State.PENDING, begin):
                state = State.DELETED if committed else State.AVAILABLE
                fate.turns.append(Turn(at, state, begin if committed else None))

    def _messages(self, partition: PartitionId) -> Iterator[Fate]:
        found = self._reading.partitions.get(partition.key)
        if found is None or found.topic_id != partition.topic_id:
            found = self._reading.former.get(partition.key)
        if found is not None and found.topic_id == partition.topic_id:
            yield from _fates(partition, found)

    def all(self) -> Iterator[Fate]:
        """Yields all messages that it has to give out."""
        for fates in self.fates.values():
            yield from fates

    def named(self, acks: Iterable[Acks]) -> Iterator[Fate]:
        """Yields the messages that spans name."""
        for each in acks:
            yield from self.within(each.partition, each.spans)

    def within(self, partition: PartitionId, spans: Collection[Span]) -> Iterator[Fate]:
        """Yields the messages of a partition that lie in spans."""
        for fate in self.fates.get(partition, ()):
            name = fate.message.name
            for lo, hi in spans:
                if lo <= name < hi:
                    yield fate
                    break

    @cached_property
    def by_message(self) -> dict[Message, Fate]:
        """All messages by their names."""
        return {fate.message: fate for fate in self.all()}

    def is_former(self, partition: PartitionId) -> bool:
        """Returns whether a partition went with its topic."""
        former = self._reading.former.get(partition.key)
        return former is not None and former.topic_id == partition.topic_id

    def left(self) -> Iterator[str]:
        """Yields what is still to be worked off."""
        for fate in self.all():
            is_former = self.is_former(fate.message.partition)
            if fate.now.state is not State.DELETED and not is_former:
                yield f"{fate.message} of {self.group} is {fate.now.state}"
        topics = {partition.topic for partition in self.starts}
        subscribed = {partition.key for partition in self.starts}
        for key, partition in self._reading.partitions.items():
            if key[0] in topics and partition.expected and key not in subscribed:
                yield f"{key} has messages, and is no part of {self.group}"


def _fates(partition: PartitionId, found: Partition) -> Iterator[Fate]:
    for (name, offset), (place, _) in zip(found.names, found.expected, strict=True):
        value, txid = found.value_of(offset), found.txids.get(offset)
        yield Fate(Message(partition, name), offset, value, place, txid)


@lru_cache(maxsize=1)
def queues_of(reading: Reading) -> list[Queue]:
    """Returns all subscriptions of a history."""
    return [
        Queue(group, journal, reading)
        for journal in reading.journals
        for group in sorted({told.group for _, told in journal.of_queues})
    ]


def left_in_queue(history: History) -> list[str]:
    """Returns what is still to be worked off."""
    found = queues_of(Reading(history))
    return [what for queue in found for what in queue.left()] if found else ["there is no queue"]
