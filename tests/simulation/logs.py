"""The log of the simulated world, and the appends on their way to it.

`Pipe` is one client's way to one partition: records land and are acknowledged in order, unless a
fault says otherwise. `LogView` is the `Log` that look-ups, side reads and loading coordinators ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.journal import reader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError, UnknownTopicError
from logtx.journal.logs.interface import GroupOffset, Log, TopicInfo
from logtx.journal.modes import MODES_TOPIC
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.fate import Fate
from logtx.journal.relocation import RELOCATIONS_TOPIC
from logtx.journal.txid import TxId

from .faults import Faults
from .history import DataTrim, History, JournalRecord, Record, Trim
from .schedule import Party, Scheduler

APPEND_TIMEOUT_MS: Final = 120
"""Time after which a writer gives up an append without an acknowledgement."""
LATE_MAX_MS: Final = 900
"""Latest landing of an append that its writer gave up; the end of a history waits for it."""
STALL_MS: Final = (100, 700)
"""Least and most time that a delayed append takes."""

Landing = Callable[[], int | None]
Acknowledge = Callable[[int | None], None]


class Broker:
    """All partitions of the world, in memory."""

    def __init__(
        self,
        scheduler: Scheduler,
        history: History,
        journals: int,
        topics: Mapping[str, TopicFacts],
    ) -> None:
        """Creates empty journal partitions; data partitions appear when they are written to.

        Args:
            scheduler: of the world.
            history: takes what happens.
            journals: number of journal partitions.
            topics: data topics that exist.
        """
        self.topics = topics
        self.scheduler = scheduler
        self.history = history
        self.starts = [0] * journals
        self.messages: list[list[JournalMessage]] = [[] for _ in range(journals)]
        """Messages of each journal partition, as its readers get them."""
        self.data_starts: dict[TopicPartition, int] = {}
        """First offset of each data partition from which retention deleted something."""
        self.losses: dict[int, int] = {}
        """Journal partition → where its tail was lost."""
        self.checkpoints: list[Checkpoint | None] = [None] * journals
        """Checkpoint of each journal partition; any coordinator may overwrite it, even late."""
        history.journals = [[] for _ in range(journals)]
        history.trims = [[] for _ in range(journals)]

    def journal(self, partition: int) -> list[JournalRecord]:
        """Returns a journal partition from offset 0: the checkers also need what was trimmed."""
        return self.history.journals[partition]

    def data(self, partition: TopicPartition) -> list[Record]:
        """Returns a data partition."""
        return self.history.data.setdefault(partition, [])

    def append_journal(
        self,
        partition: int,
        value: bytes,
        writer: str,
        meant: tuple[str, int, int] | None,
        handed_at: int,
    ) -> int:
        """Lets a record land; returns its offset."""
        log, history = self.journal(partition), self.history
        now_ms, offset = self.scheduler.now_ms, len(log)
        entry = reader.entry_decoder()(value)
        at = history.tick()
        log.append(JournalRecord(offset, value, entry, writer, meant, handed_at, at, now_ms))
        self.messages[partition].append(JournalMessage(partition, offset, value))
        history.note(now_ms, writer, f"journal {partition} offset {offset}:", entry)
        return offset

    def append_data(
        self,
        partition: TopicPartition,
        headers: list[tuple[str, bytes | None]] | None,
        value: bytes | None,
        writer: str,
        handed_at: int,
    ) -> int | None:
        """Lets a record land; returns its offset, or None if there is no such topic."""
        if partition[0] not in self.topics:
            return None
        log, history = self.data(partition), self.history
        now_ms, offset = self.scheduler.now_ms, len(log)
        at = history.tick()
        record = Record(
            offset, headers, value, writer=writer, handed_at=handed_at, at=at, time_ms=now_ms
        )
        log.append(record)
        return offset

    def append_relocation(
        self, key: bytes, value: bytes | None, writer: str, handed_at: int
    ) -> int:
        """Lets a record of `RELOCATIONS_TOPIC` land; returns its offset."""
        log, now_ms, at = self.history.relocations, self.scheduler.now_ms, self.history.tick()
        log.append(
            Record(
                len(log), None, value, writer=writer, handed_at=handed_at, at=at, time_ms=now_ms,
                key=key,
            )
        )  # fmt: skip
        self.history.note(now_ms, writer, "relocation", len(log) - 1, key, value)
        return len(log) - 1

    def log_of(self, partition: TopicPartition) -> list[Record]:
        """Returns a data partition, or the relocations."""
        is_of_copiers = partition[0] == RELOCATIONS_TOPIC
        return self.history.relocations if is_of_copiers else self.data(partition)

    def end(self, topic: str, partition: int) -> int:
        """Returns the end of a partition."""
        if topic == MODES_TOPIC:
            return len(self.history.modes_log)
        journal = topic == JOURNAL_TOPIC
        return len(self.journal(partition) if journal else self.log_of((topic, partition)))

    def lose_tail(self, partition: int, count: int) -> int:
        """Removes the last records of a journal partition, as an unclean election does.

        Returns:
            Its new end. The broker tells a reader that had read further when it reads on, as
            with Kafka's leader epochs: see `losses`.
        """
        end = len(self.journal(partition)) - count
        del self.journal(partition)[end:]
        del self.messages[partition][end:]
        self.losses[partition] = end
        self.history.note(
            self.scheduler.now_ms, "broker", f"journal {partition} lost all from", end
        )
        return end

    def trim(self, partition: int, before: int) -> None:
        """Deletes the start of a journal partition."""
        if before > self.starts[partition]:
            self.starts[partition] = before
            at, now_ms = self.history.tick(), self.scheduler.now_ms
            self.history.trims[partition].append(Trim(before, at, now_ms))
            self.history.note(now_ms, "broker", f"journal {partition} begins at", before)

    def trim_data(self, partition: TopicPartition, before: int) -> None:
        """Deletes the start of a data partition. The checkers need it, so readers must not ask."""
        if before > self.data_starts.get(partition, 0):
            self.data_starts[partition] = before
            self.history.data_trims.append(DataTrim(partition, before, self.history.tick()))
            self.history.counts["data trimmed"] += 1
            self.history.note(self.scheduler.now_ms, "broker", f"{partition} begins at", before)


class Pipe:
    """One client's appends to one partition."""

    def __init__(
        self, scheduler: Scheduler, chance: Random, faults: Faults, party: Party, channel: str
    ) -> None:
        """Begins with nothing on its way.

        Args:
            scheduler: of the world.
            chance: of the history.
            faults: decides what becomes of an append.
            party: the one that appends, in its present life.
            channel: one of `faults.CHANNELS`.
        """
        self._scheduler = scheduler
        self._chance = chance
        self._faults = faults
        self._party = party
        self._channel = channel
        self._landed_ms = 0
        self._told_ms = 0
        self._cut = False

    def append(
        self,
        land: Landing,
        acknowledge: Acknowledge,
        refuse: Callable[[], None] | None = None,
        *,
        twice: bool = False,
    ) -> None:
        """Sends a record.

        Args:
            land: called when it lands, if ever; returns its offset.
            acknowledge: called in the order of appends, by its party, with the offset or None.
            refuse: called instead of `land` if the broker refuses the record.
            twice: whether it lands twice, whatever else is drawn.
        """
        now_ms = self._scheduler.now_ms
        fault = "duplicated" if twice else self._faults.of(self._channel)
        takes_ms = self._chance.randint(*(STALL_MS if fault == "delayed" else (1, 6)))
        lands_ms = max(self._landed_ms, now_ms + takes_ms)
        if fault == "reordered":
            lands_ms += self._chance.randint(1, 20)
        elif fault not in ("lost", "late"):
            self._landed_ms = lands_ms
        known = fault not in ("lost", "late", "unacknowledged")
        told_ms = lands_ms + self._chance.randint(1, 6) if known else now_ms + APPEND_TIMEOUT_MS
        told_ms = self._told_ms = max(self._told_ms, told_ms)
        landed: list[int | None] = []
        life = self._party.life

        def arrive() -> None:
            # A crash also loses the records that had not left yet: from some record on, all.
            if self._party.life != life and not self._cut:
                self._cut = self._chance.random() < 0.4
            if self._cut:
                return
            if fault == "refused" and refuse is not None:
                refuse()
                return
            landed.append(land())
            if fault == "duplicated":
                land()

        if fault == "late":
            lands_ms = now_ms + self._chance.randint(APPEND_TIMEOUT_MS, LATE_MAX_MS)
        if fault != "lost":
            self._scheduler.after(lands_ms - now_ms, arrive)
        self._party.later(
            told_ms - now_ms, lambda: acknowledge(landed[0] if known and landed else None)
        )


class LogReader:
    """The part of a `LogConsumer` that side reads and look-ups call; reads one partition."""

    def __init__(
        self,
        records: Callable[[str, int], Sequence[Any]],
        batch: int,
        *,
        tells_end: bool = False,
    ) -> None:
        """Begins without an assignment.

        Args:
            records: topic, partition → its records as of now.
            batch: most of them that one call returns.
            tells_end: whether a call that comes to the end says so, as ``enable.partition.eof``.
        """
        self._records = records
        self._batch = batch
        self._tells_end = tells_end
        self._log: Sequence[Any] = ()
        self._partition = self._next = 0
        self._told_end: int | None = None

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads this partition from this offset on."""
        [assigned] = partitions
        self._log = self._records(assigned.topic, assigned.partition)
        self._partition, self._next = assigned.partition, assigned.offset
        self._told_end = None

    def unassign(self) -> None:
        """Reads nothing any more."""
        self._log = ()
        self._told_end = self._next

    def poll(self, timeout: float = -1) -> Any:
        """Returns the next record if there is one; never waits."""
        del timeout
        return next(iter(self.consume(1)), None)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Returns the next records that are there, a few at a time; or that it came to the end."""
        del timeout
        found = list(self._log[self._next : self._next + min(num_messages, self._batch)])
        self._next += len(found)
        if not found and self._tells_end and self._told_end != self._next:
            self._told_end = self._next
            return [EventMessage(KafkaError._PARTITION_EOF, self._partition, self._next)]
        return found

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class EventMessage:
    """An event of a partition, which a consumer gets in the place of a record."""

    __slots__ = ("_code", "_offset", "_partition")

    def __init__(self, code: int, partition: int, offset: int) -> None:
        """Says it of this offset."""
        self._code, self._partition, self._offset = code, partition, offset

    def partition(self) -> int:
        """The partition."""
        return self._partition

    def offset(self) -> int:
        """The offset."""
        return self._offset

    def error(self) -> KafkaError:
        """What it says."""
        return KafkaError(self._code)


class JournalMessage:
    """A journal record as a message."""

    __slots__ = ("_offset", "_partition", "_value")

    def __init__(self, partition: int, offset: int, value: bytes) -> None:
        """Wraps this record."""
        self._partition, self._offset, self._value = partition, offset, value

    def partition(self) -> int:
        """The journal partition."""
        return self._partition

    def offset(self) -> int:
        """Offset in the journal partition."""
        return self._offset

    def value(self) -> bytes:
        """The value."""
        return self._value

    def error(self) -> None:
        """Returns None: a record is not an event."""


class NotYetError(Exception):
    """A call asks the log for something that has no answer yet."""

    def __init__(self, topic: str, partition: int) -> None:
        """Says that a call asked for the end of this partition."""
        super().__init__(topic, partition)
        self.topic, self.partition = topic, partition


def scanned_once(scan: Callable[..., dict[TxId, Fate]]) -> Callable[..., dict[TxId, Fate]]:
    """Returns `reader._scan_between`, which scans no range of a journal again for the same TxIds.

    A `LogView` lets a look-up run again from its start, once for each answer that it waits for.
    """
    found: dict[tuple[object, ...], dict[TxId, Fate]] = {}

    def scanned(
        log: Log, partition: int, present: list[TxId], end: int, left_s: Callable[[], float]
    ) -> dict[TxId, Fate]:
        if type(log) is not LogView:  # Others draw what becomes of their reads.
            return scan(log, partition, present, end, left_s)
        # Behind a tail that was lost, others lie at the same offsets.
        key = partition, tuple(present), end, log._broker.losses.get(partition)
        if key not in found:
            found[key] = scan(log, partition, present, end, left_s)
        return found[key]

    return scanned


class LogView:
    """The part of a `Log` that look-ups, side reads and loading need.

    No code of a simulation can wait. So code that asks for a partition's end, which takes time,
    is run again from its start with the answers that came by then, until it needs no more.
    """

    bootstrap_servers = "simulated"

    def __init__(self, broker: Broker, answers: list[int] | None = None) -> None:
        """Answers from the broker.

        Args:
            broker: of the world.
            answers: answers to the first questions for offsets, in their order; answers that
                take no time are added. None: no question takes time.
        """
        self._broker = broker
        self._answers = answers
        self._asked = 0

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the start of a partition."""
        del timeout_s
        broker = self._broker
        if topic == JOURNAL_TOPIC:
            start = broker.starts[partition]
        else:
            start = broker.data_starts.get((topic, partition), 0)
        if self._answers is None:
            return start
        if self._asked == len(self._answers):
            self._answers.append(start)
        return self._next_answer(self._answers)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition, as of the answer.

        Raises:
            NotYetError: there is no answer yet.
        """
        del timeout_s
        if self._answers is None:
            return self._broker.end(topic, partition)
        if self._asked == len(self._answers):
            raise NotYetError(topic, partition)
        # An answer of before the tail was lost names records that no reader ever gets: a real one
        # would wait for them, and fail.
        return min(self._next_answer(self._answers), self._broker.end(topic, partition))

    def each_start_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the start of each partition, or why it is not told."""
        del timeout_s
        return {key: self._unknown(key) or self.start_offset(*key) for key in partitions}

    def each_end_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the end of each partition, as of the answer, or why it is not told.

        Raises:
            NotYetError: there is no answer yet.
        """
        del timeout_s
        return {key: self._unknown(key) or self.end_offset(*key) for key in partitions}

    def _unknown(self, key: TopicPartition) -> UnknownTopicError | None:
        topic, partition = key
        facts = self._broker.topics.get(topic)
        if topic == JOURNAL_TOPIC:
            count = len(self._broker.starts)
        else:
            count = 0 if facts is None else facts.partition_count
        if partition < count:
            return None
        return UnknownTopicError(f"topic {topic!r} has no partition {partition}")

    def _next_answer(self, answers: list[int]) -> int:
        self._asked += 1
        return answers[self._asked - 1]

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Returns which topic has a name now."""
        del timeout_s
        facts = self._broker.topics[topic]
        return TopicInfo(
            topic=topic,
            topic_id=facts.topic_id,
            partition_count=facts.partition_count,
            settings=None,
            replication_factor=1,
            certain=True,
        )

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns the ids of those topics that exist."""
        del timeout_s
        return {t: self._broker.topics[t].topic_id for t in topics if t in self._broker.topics}

    def consumer(self, config: Mapping[str, Any]) -> LogReader:
        """Returns a reader."""
        tells_end = bool(config.get("enable.partition.eof"))
        return LogReader(self._messages, batch=7, tells_end=tells_end)

    def group_offset(
        self, group: str, topic: str, partition: int, *, timeout_s: float = 10
    ) -> GroupOffset | None:
        """Returns the checkpoint of a journal partition."""
        del group, topic, timeout_s
        checkpoint = self._broker.checkpoints[partition]
        return None if checkpoint is None else checkpoint.to_group_offset()

    def _messages(self, topic: str, partition: int) -> Sequence[Any]:
        if topic == JOURNAL_TOPIC:
            return self._broker.messages[partition]
        return self._broker.log_of((topic, partition))
