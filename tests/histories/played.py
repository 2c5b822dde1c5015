"""What is played around a real consumer: the clock, the log with its faults, and who writes to it.

Time is virtual: whoever waits moves the clock on. So a history takes no time, and a seed gives the
same history again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer import journal_tail, reading, serial_reader, side_read
from logtx.consumer.core import pending, shared
from logtx.consumer.spill.store import RocksSpillStore
from logtx.journal import follower
from logtx.journal.control import TXID_HEADER
from logtx.journal.errors import BrokerError, SpillError
from logtx.journal.logs.memory.consumer import MemoryConsumer
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from ..consumer.logs import Headers, Transactions
from .reference import Key, Reference

UNREADABLE: Final = "unreadable"
"""Header of the records whose headers can't be read."""
_MONOTONIC, _SLEEP = time.monotonic, time.sleep
PASSING: Final = (KafkaError._TRANSPORT, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._FAIL)


class Clock:
    """Time that passes only when its thread waits, or a little when that looks.

    Other threads have the machine's time. One that another test left would move this history on.
    """

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._thread = threading.get_ident()

    def monotonic(self) -> float:
        """Returns the time, in seconds."""
        if threading.get_ident() != self._thread:
            return _MONOTONIC()
        self.now_s += 1e-5
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        if threading.get_ident() != self._thread:
            _SLEEP(seconds)
        else:
            self.now_s += seconds


class _Changed(threading.Condition):
    """The condition of a log that only one thread uses: nobody would notify it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        """Lets the time pass."""
        assert timeout is not None, "somebody waits for ever"
        self._clock.sleep(timeout)
        return False


@dataclass(slots=True)
class Faults:
    """Decides what fails."""

    chance: Random
    rate: float = 0.0
    """Part of all calls that fail."""
    on: bool = False
    fired: int = 0
    told: list[str] = field(default_factory=list)
    events: int = 0
    """Events of Kafka that the next batch brings."""

    def due(self, place: str, times: int = 1) -> bool:
        """Returns whether the call fails, so many times as often as others."""
        if not self.on or self.chance.random() >= self.rate * times:
            return False
        self.fired += 1
        self.told.append(place)
        return True

    def broker(self, place: str, times: int = 1) -> None:
        """Raises an error of a broker, perhaps."""
        if self.due(place, times):
            raise KafkaException(KafkaError(self.chance.choice(PASSING), place))

    def log(self, place: str) -> None:
        """Raises an error of a log, perhaps."""
        if self.due(place):
            raise BrokerError(f"no answer: {place}")

    def callback(self, place: str, times: int = 1) -> None:
        """Raises what an application's callback may raise, perhaps."""
        if self.due(place, times):
            raise ValueError(f"of a callback: {place}")


class PlayedMessage(Message):
    """A message whose headers may be of the kind that confluent-kafka can't read."""

    def headers(self) -> Any:
        """Raises SystemError as confluent-kafka does for a name that is not UTF-8."""
        found = super().headers()
        if found and found[0][0] == UNREADABLE:
            raise SystemError("<method 'headers'> returned a result with an exception set")
        return found


def _played(message: Message) -> Message:
    # confluent-kafka's stubs don't know that the arguments may be None.
    arguments: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": message.key(),
        "value": message.value(),
        "headers": message.headers(),
        "error": message.error(),
        "timestamp": message.timestamp(),
    }
    return PlayedMessage(**arguments)


class PlayedConsumer(MemoryConsumer):
    """librdkafka's consumer, every call of which may fail: before it did something, or after."""

    _broker: PlayedLog

    def _around(self, name: str, *arguments: Any) -> Any:
        faults = self._broker.faults
        faults.broker(name, 3)
        answer = getattr(super(), name)(*arguments)
        faults.broker(f"{name} done", 2)
        return answer

    def assign(self, partitions: list[KafkaPartition]) -> None:
        self._around("assign", partitions)

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        self._around("incremental_assign", partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        self._around("incremental_unassign", partitions)

    def seek(self, partition: KafkaPartition) -> None:
        self._around("seek", partition)

    def pause(self, partitions: list[KafkaPartition]) -> None:
        self._around("pause", partitions)

    def resume(self, partitions: list[KafkaPartition]) -> None:
        self._around("resume", partitions)

    def committed(
        self, partitions: list[KafkaPartition], timeout: float = -1
    ) -> list[KafkaPartition]:
        self._broker.faults.broker("committed")
        return super().committed(partitions, timeout)

    def _fetch(self, limit: int, timeout: float) -> list[Message]:
        faults = self._broker.faults
        faults.broker("fetch")
        found = [_played(message) for message in super()._fetch(limit, timeout)]
        if found:
            # Where librdkafka serves a callback that raises, what it took is gone.
            faults.callback("fetch done", 1 if self._on_commit is not None else 5)
        if limit > 1 and self._on_commit is not None:
            while faults.events:
                faults.events -= 1
                found.append(PlayedMessage(error=KafkaError(KafkaError._TRANSPORT)))
        return found

    def _store(self, offsets: list[KafkaPartition], timeout_s: float) -> None:
        self._broker.faults.broker("commit", 6)
        super()._store(offsets, timeout_s)
        self._broker.faults.broker("commit done")


class PlayedLog(MemoryLog):
    """A log that fails now and then."""

    def __init__(self, clock: Clock, faults: Faults) -> None:
        super().__init__("histories", now_ms=lambda: 1_000)
        self.changed = _Changed(clock)
        self.faults = faults

    def consumer(self, config: Mapping[str, Any]) -> PlayedConsumer:
        return PlayedConsumer(self, config)

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> Any:
        self.faults.log("topic_info")
        return super().topic_info(topic, timeout_s=timeout_s)

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        self.faults.log("start_offset")
        return super().start_offset(topic, partition, timeout_s=timeout_s)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        self.faults.log("end_offset")
        return super().end_offset(topic, partition, timeout_s=timeout_s)


@contextmanager
def _no_logging() -> Iterator[None]:
    # What captures log records would keep exceptions, and so consumers that are dropped.
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def limits(chance: Random, clock: Clock, faults: Faults) -> Iterator[None]:
    """Makes limits small, disks fail, and time virtual."""
    ahead = chance.choice((3, 10, 40, 20_000))
    batch = chance.choice((2, 7, 1_000))
    decisions = chance.choice((3, 6, 10_000))
    append, read = RocksSpillStore.append, RocksSpillStore.read

    def failing_append(self: RocksSpillStore, *arguments: Any) -> int:
        if faults.due("spill append", 3):
            raise SpillError("no space")
        return append(self, *arguments)

    def failing_read(self: RocksSpillStore, run: int) -> Iterator[Any]:
        for record in read(self, run):
            if faults.due("spill read", 3):
                raise faults.chance.choice((SpillError("can't be read"), MemoryError()))
            yield record

    with (
        _no_logging(),
        patch.object(time, "monotonic", clock.monotonic),
        patch.object(time, "sleep", clock.sleep),
        patch.object(reading, "AHEAD_MAX_RECORDS", ahead),
        patch.object(serial_reader, "AHEAD_MAX_RECORDS", ahead),
        patch.object(reading.Reading.fetch, "__defaults__", (batch,)),
        patch.object(reading, "FETCH_MAX_RECORDS", batch),
        patch.object(journal_tail, "DECISIONS_MAX", decisions),
        patch.object(follower, "BATCH_MAX", min(decisions, 1_000)),
        patch.object(side_read, "SLICE_RECORDS", chance.choice((3, 2_000))),
        patch.object(shared, "ENDED_MAX", chance.choice((12, 400_000, 400_000))),
        patch.object(pending, "CHARGE_MIN_BYTES", chance.choice((1_000, 256 * 1024))),
        patch.object(RocksSpillStore, "append", failing_append),
        patch.object(RocksSpillStore, "read", failing_read),
    ):
        yield


@dataclass(slots=True)
class Open:
    """A transaction that is not finished."""

    txid: TxId
    values: dict[Key, list[bytes]] = field(default_factory=dict)
    """Its accepted records."""
    unmarked: set[Key] = field(default_factory=set)
    """Partitions whose marker is not written."""
    commit: bool | None = None
    """The decision; None before it."""


class Writer(Transactions):
    """Appends plain records and transactions, as the producers and coordinators of a group do."""

    def __init__(self, log: PlayedLog, keys: Sequence[Key], reference: Reference) -> None:
        super().__init__(log)
        self._keys = keys
        self._played = log
        self._chance = Random(log.faults.chance.random())
        self.reference = reference
        self.open: list[Open] = []
        self._due: dict[Key, deque[Open]] = {key: deque() for key in keys}
        """Decided transactions in commit order, whose marker is not written."""
        self._written_markers: list[tuple[TxId, Key, bool, int]] = []
        self._number = 0
        self._stalled: Key | None = None
        """Partition that gets no markers at present."""
        self.pins_hw = self._chance.random() < 0.5
        self.with_journal()

    def append(
        self,
        topic: str,
        values: Sequence[bytes | None],
        headers: Headers | None = None,
        partition: int = 0,
        key: bytes | None = None,
    ) -> list[int]:
        """Appends at once."""
        return [
            self._played.append_directly(topic, partition, value, key, headers, 1_000)
            for value in values
        ]

    def _values(self, key: Key, kind: str) -> list[bytes]:
        values = []
        for _ in range(self._chance.choice((1, 1, 2, 3, 5, 9))):
            self._number += 1
            values.append(b"%s[%d] %s%d" % (key[0].encode(), key[1], kind.encode(), self._number))
        return values

    # ---- steps ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Appends something."""
        names = ["plain"] * 4 + ["open"] * 3 + ["go_on"] * 3 + ["decide"] * 4 + ["mark"] * 6
        names += ["broken", "again", "large", "stall", "stall"]
        getattr(self, f"_{self._chance.choice(names)}")()

    def _plain(self) -> None:
        key = self._chance.choice(self._keys)
        for value in self._values(key, "p"):
            headers: Headers | None = [("h", b"1")] if self._chance.random() < 0.2 else None
            [offset] = self.append(key[0], [value], headers, key[1])
            self.reference.plain(key, offset, value)

    def _broken(self) -> None:
        key = self._chance.choice(self._keys)
        value = self._values(key, "broken")[0]
        name, raw = self._chance.choice(((TXID_HEADER, b"short"), (UNREADABLE, b"")))
        [offset] = self.append(key[0], [value], [(name, raw)], key[1])
        self.reference.plain(key, offset, value, event=True)

    def _open(self) -> None:
        if len(self.open) < 6:
            self.open.append(Open(self.begin()))
            self._go_on()

    def _go_on(self) -> None:
        going = [o for o in self.open if o.commit is None]
        if going:
            self._write(self._chance.choice(going))

    def _large(self) -> None:
        going = [o for o in self.open if o.commit is None]
        if going:
            chosen = self._chance.choice(going)
            for _ in range(8):
                self._write(chosen)

    def _write(self, chosen: Open) -> None:
        self._write_to(
            chosen, self._chance.choice(self._keys), accepted=self._chance.random() < 0.9
        )

    def _write_to(self, chosen: Open, key: Key, *, accepted: bool) -> None:
        values = self._values(key, "t")
        branch = self._chance.choice((None, None, 0, 1)) if accepted else 7
        offsets = self.write(chosen.txid, key[0], values, key[1], branch, accepted=accepted)
        chosen.unmarked.add(key)
        if accepted:
            chosen.values.setdefault(key, []).extend(values)
        for offset, value in zip(offsets, values, strict=True):
            self.reference.written(key, offset, value)

    def _decide(self) -> None:
        going = [o for o in self.open if o.commit is None]
        if going:
            self._decide_one(self._chance.choice(going), self._chance.random() < 0.75)

    def _decide_one(self, chosen: Open, commit: bool) -> None:
        chosen.commit = commit
        self.decide(chosen.txid, commit=commit)
        for key in chosen.unmarked:
            self._due[key].append(chosen)
        self._finish_if_done(chosen)

    def _mark(self) -> None:
        due = [key for key in self._keys if self._due[key] and key != self._stalled]
        if due:
            self._mark_one(self._chance.choice(due))

    def _stall(self) -> None:
        self._stalled = None if self._stalled else self._chance.choice(self._keys)

    def _mark_one(self, key: Key) -> None:
        chosen = self._due[key].popleft()
        assert chosen.commit is not None
        hw = 0 if self.pins_hw else min(o.txid.offset for o in self.open)
        offset = self.mark(chosen.txid, key[0], key[1], commit=chosen.commit, hw=hw)
        self._written_markers.append((chosen.txid, key, chosen.commit, hw))
        ranges = self.ranges(chosen.txid, *key)
        if chosen.commit and ranges:
            first = min(each.first_offset for each in ranges)
            sequence = self.sequences[chosen.txid]
            self.reference.committed(key, first, offset, chosen.values[key], sequence)
        chosen.unmarked.discard(key)
        self._finish_if_done(chosen)

    def _finish_if_done(self, chosen: Open) -> None:
        if not chosen.unmarked:
            assert chosen.commit is not None
            self.finish(chosen.txid, commit=chosen.commit)
            self.open.remove(chosen)

    def _again(self) -> None:
        # A recovery writes markers twice; records of a producer that was given up land late.
        if self._written_markers:
            txid, key, commit, hw = self._chance.choice(self._written_markers[-6:])
            if self._chance.random() < 0.5:
                self.mark(txid, key[0], key[1], commit=commit, hw=hw)
            else:
                values = self._values(key, "late")
                offsets = self.write(txid, key[0], values, key[1], 7, accepted=False)
                for offset, value in zip(offsets, values, strict=True):
                    self.reference.written(key, offset, value)

    def one(self, key: Key) -> None:
        """Appends to a partition what will be delivered."""
        chosen = Open(self.begin())
        self.open.append(chosen)
        self._write_to(chosen, key, accepted=True)
        self._decide_one(chosen, True)
        while self._due[key]:
            self._mark_one(key)

    def trim(self) -> None:
        """Deletes some of the oldest records of a partition, as retention does."""
        key = self._chance.choice(self._keys)
        start = self._played._partition(*key).start
        end = self._played._partition(*key).end
        before = self._chance.randint(start, start + (end - start) // 2)
        self._played.delete_records(*key, before)
        self.reference.trimmed(key, before)

    def end(self) -> None:
        """Decides everything and writes all markers."""
        for chosen in list(self.open):
            if chosen.commit is None:
                self._decide_one(chosen, self._chance.random() < 0.75)
        for key in self._keys:
            while self._due[key]:
                self._mark_one(key)
