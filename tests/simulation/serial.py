"""Serializable readers: the real `JournalTail`, `SerialOrder` and `SerialBuffer`s.

Each reads all data partitions and gives out the transactions of one journal partition in their
serial order, record by record, as `consumer/serial_reader.py` does with librdkafka. It commits the
positions of all partitions now and then, crashes anywhere, and goes on from the last commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.pending import Record as CoreRecord
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import SerialOrder
from logtx.consumer.journal_tail import JournalTail
from logtx.consumer.side_read import SideReader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import HandedOverError
from logtx.journal.logs.interface import Log
from logtx.journal.position import Position
from logtx.journal.reader import JOURNAL_TOPIC

from .consumers import malformed
from .followers import MemoryStore
from .history import Given, Resumed, Serial
from .logs import LogView
from .schedule import Party
from .setting import Setting
from .sidecars import reader_of

STEP_MS: Final = (10, 80)
"""Least and most virtual time between two steps."""


class SerialConsumer(Party):
    """One serializable reader of all data partitions."""

    def __init__(
        self,
        setting: Setting,
        name: str,
        journal: int,
        starts: Mapping[TopicPartition, int],
        *,
        steady: bool,
    ) -> None:
        """Begins to read at these offsets.

        Args:
            setting: of the world.
            name: of the reader.
            journal: journal partition of the transaction group.
            starts: offset of each data partition at which it begins.
            steady: whether it never stops, and reads all there is in each step.
        """
        super().__init__(setting.scheduler, name)
        self._setting = setting
        self._journal = journal
        self._steady = steady
        self._memory_max_bytes = setting.chance.choice((1_500, 10**9))
        self._seen = setting.history.serial[name] = Serial(journal, dict(starts))
        self._committed = {key: Position.at(start) for key, start in starts.items()}
        self._committed_count = self._count = 0
        """Number of records delivered, as the application counts them."""
        self._begin()

    def _begin(self) -> None:
        setting = self._setting
        log = cast(Log, LogView(setting.broker))
        self._map = PendingTransactionMap(self._memory_max_bytes, MemoryStore())
        self._side_reader = SideReader(log, {}, self._map)
        self._sidecar_reader = reader_of(setting)
        self._buffers: dict[TopicPartition, SerialBuffer] = {}
        for key, position in self._committed.items():
            start = Position.from_metadata(position.o1, position.to_metadata())
            buffer = SerialBuffer(
                key,
                start,
                self._map,
                journal_partition=self._journal,
                malformed=malformed,
                counters=setting.counters,
            )
            self._buffers[key] = buffer
        self._order = SerialOrder(setting.counters)
        self._tail = JournalTail(log, self._journal, {}, self._order, self._homes_of)
        self._turn: deque[TopicPartition] = deque()
        """Partitions of the transaction whose turn it is; the first one is let through."""
        self._raws: dict[TopicPartition, bytes] = {}
        self._read_journal()
        self.later(setting.chance.randint(*STEP_MS), self.step)

    def _read_journal(self) -> None:
        delivered = {key: buffer.delivered for key, buffer in self._buffers.items()}
        self._tail.begin(delivered, self._buffers)

    def _homes_of(self, topics: Collection[str]) -> Mapping[str, tuple[int, str]]:
        """Returns the home of the topics that were ever switched."""
        home, switched = self._setting.places_at, self._setting.history.modes_log
        if home is None or not switched:
            return {}
        truth = self._setting.topology.truth
        return {t: (home, truth[t].topic_id) for t in topics if t in truth}

    def needs(self, key: TopicPartition) -> int:
        """Returns the offset from which on it may read a data partition."""
        return self._committed[key].o1

    @property
    def stands_in_sidecar(self) -> bool:
        """Whether it would go on in the middle of a pointer."""
        return any(position.side is not None for position in self._committed.values())

    def crash(self) -> None:
        """Lose what was not committed."""
        self.die()

    def restart(self) -> None:
        """Go on from the committed positions."""
        self.alive = True
        self._seen.events.append(Resumed(self._committed_count))
        self._count = self._committed_count
        self._setting.note(self.name, "resumes behind", self._count, "records")
        self._begin()

    @property
    def done(self) -> bool:
        """Whether it has read all there is and holds nothing that is due."""
        broker = self._setting.broker
        return (
            not self._turn
            and self._tail.next_offset >= len(broker.journal(self._journal))
            and all(b.next_offset == len(broker.data(k)) for k, b in self._buffers.items())
            and self._order.head(self._buffers) is None
            and not self._order.missing(self._buffers)
        )

    def step(self) -> None:
        """Read a little, deliver a little."""
        setting = self._setting
        self.later(setting.chance.randint(*STEP_MS), self.step)
        if self._seen.failure:
            return
        if self._tail.next_offset < setting.broker.starts[self._journal]:
            self._read_journal()  # What it would read next was trimmed.
        try:
            while self._tail.poll():
                pass
        except HandedOverError as error:
            self._seen.failure = str(error)
            return
        for key, buffer in self._buffers.items():
            self._feed(key, buffer)
        wanted = [b for b in self._buffers.values() if b.stream_wanted() is not None]
        if wanted:
            self._sidecar_reader.step(wanted, 0)
        self._map.enforce()
        if not self._turn:
            wanted = self._order.wants_ends(self._buffers, setting.readers_s)
            if wanted:
                end, now_s = setting.told_end(JOURNAL_TOPIC, self._journal), setting.readers_s
                ends = {key: setting.told_end(*key) for key in wanted}
                self._order.set_ends(ends, max(self._tail.next_offset, end), now_s, now_s)
        self._deliver(1_000 if self._steady else setting.chance.choice((1, 1, 1, 2, 5, 50)))
        if not self._steady and setting.chance.random() < 0.4:
            self._committed = {key: buffer.position() for key, buffer in self._buffers.items()}
            self._committed_count = self._count
            parts = sum(position.o3 > 0 for position in self._committed.values())
            setting.history.counts["serial positions within a transaction"] += parts

    def _feed(self, key: TopicPartition, buffer: SerialBuffer) -> None:
        log = self._setting.broker.data(key)
        limit = 1_000 if self._steady else self._setting.chance.choice((0, 3, 20))
        end = self._setting.told_end(*key)
        batch = log[buffer.next_offset : min(buffer.next_offset + limit, end)]
        if batch:
            buffer.feed(cast(Sequence[CoreRecord], batch))
        if buffer.blocked and buffer.side_reads():
            self._side_reader.step(buffer, 0)

    def _deliver(self, limit: int) -> None:
        taken = 0
        while taken < limit and self._has_turn():
            key = self._turn[0]
            buffer = self._buffers[key]
            records = buffer.take(limit - taken)
            for record in records:
                taken += 1
                self._give(key, record)
            if not buffer.delivering:
                self._turn.popleft()
                self._let_through()
            elif not records:
                if buffer.failure is not None or buffer.stream_wanted() is None:
                    self._seen.failure = str(buffer.failure)
                break
        self._count += taken

    def _has_turn(self) -> bool:
        if self._turn:
            return True
        whole = self._order.take(self._buffers)
        if whole is None:
            error = self._order.failure(self._buffers)
            self._seen.failure = "" if error is None else str(error)
            return False
        self._turn.extend(sorted(whole.entries))
        self._raws = {key: entry.txid for key, entry in whole.entries.items()}
        self._let_through()
        return True

    def _let_through(self) -> None:
        if self._turn:
            key = self._turn[0]
            self._buffers[key].let_through(self._raws[key])

    def _give(self, key: TopicPartition, record: Any) -> None:
        history = self._setting.history
        self._seen.events.append(Given(key, record.offset(), history.tick()))
        self._setting.note(self.name, f"delivers {key} offset", record.offset())
