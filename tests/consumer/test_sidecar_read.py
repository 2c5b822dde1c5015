"""Reading ranges of sidecars: what one range leaves to the next, and to its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer import sidecar_read
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.sidecar_read import SidecarReader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import (
    BrokerError,
    IntegrityError,
    LogtxError,
    NotAuthorizedError,
    UnknownTopicError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.position import Position
from logtx.journal.sidecar import in_sidecar, sidecar_of
from logtx.journal.txid import TxId

from .core.test_serial_sidecars import Writes, end_record
from .records import INCARNATION, FakeRecord, data, malformed

DENIED: Final = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")


class Message:
    """A record as librdkafka gives it out, or an event in the place of one."""

    def __init__(
        self, place: TopicPartition, record: FakeRecord, told: KafkaError | None = None
    ) -> None:
        self.is_unreadable = False
        self._place, self._record, self._told = place, record, told
        self._headers = record.headers()

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def error(self) -> KafkaError | None:
        return self._told

    def offset(self) -> int:
        return self._record.offset()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        if self.is_unreadable:
            raise SystemError("a header's name is not UTF-8")
        return self._headers

    def set_headers(self, headers: list[tuple[str, bytes | None]]) -> None:
        self.is_unreadable, self._headers = False, headers

    def key(self) -> bytes | None:
        return self._record.key()

    def value(self) -> bytes | None:
        return self._record.value()

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, 0

    def __len__(self) -> int:
        return len(self._record)


class Brokers:
    """A log with sidecars, and the consumer that fetches them."""

    bootstrap_servers, principal = "kafka:9092", "reader"

    def __init__(self) -> None:
        self.now_s = 100.0
        self.logs: dict[TopicPartition, list[Message]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ids: dict[str, str] = {}
        self.asked: list[str] = []
        self.leaderless = ""
        self.gone: set[str] = set()
        self.denied: KafkaError | None = None
        self.next: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.moves: list[str] = []
        self.fetched = 0
        """Number of records that were fetched."""
        self.fetch_max = 1 << 40
        """Most records that come of one call."""
        self.fails_behind = False
        """Whether an error stands behind the records of each call."""
        self.may_seek = True
        self.interrupt_at = ""
        """Call of the consumer behind which a signal handler raises, once."""

    # ---- the log

    def each_start_offset(
        self, keys: Collection[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, int | LogtxError]:
        self.asked += sorted(topic for topic, _ in keys)
        found: dict[TopicPartition, int | LogtxError] = {}
        for key in keys:
            found[key] = self.starts.get(key, 0)
            if key[0] == self.leaderless:
                self.now_s += timeout_s
                found[key] = BrokerError("no leader")
            elif key[0] in self.gone:
                found[key] = UnknownTopicError("no such topic")
        return found

    def each_end_offset(
        self, keys: Collection[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, int | LogtxError]:
        assert timeout_s > 0
        return {key: len(self.logs[key]) for key in keys}

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float) -> dict[str, str]:
        assert timeout_s > 0
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def consumer(self, _: object) -> Brokers:
        self.next, self.paused = {}, set()
        return self

    def _called(self, name: str) -> None:
        if self.interrupt_at == name:
            self.interrupt_at = ""
            raise KeyboardInterrupt

    # ---- its consumer

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        for p in places:
            assert (p.topic, p.partition) not in self.next, "it is assigned already"
            self.next[p.topic, p.partition] = p.offset
            self.moves.append(f"assign {p.topic} {p.offset}")
        self._called("assign")

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        for p in places:
            del self.next[p.topic, p.partition]
            self.moves.append(f"unassign {p.topic}")
        self._called("unassign")

    def seek(self, p: KafkaPartition) -> None:
        if not self.may_seek:
            raise KafkaException(KafkaError(KafkaError._STATE, "too early"))
        self.next[p.topic, p.partition] = p.offset
        self.moves.append(f"seek {p.topic} {p.offset}")
        self._called("seek")

    def pause(self, places: Sequence[KafkaPartition]) -> None:
        self.paused |= {(p.topic, p.partition) for p in places}

    def resume(self, places: Sequence[KafkaPartition]) -> None:
        self.paused -= {(p.topic, p.partition) for p in places}

    def get_watermark_offsets(self, p: KafkaPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, len(self.logs[p.topic, p.partition])

    def poll(self, _: float) -> Any:
        return next(iter(self.consume(1, 0)), None)

    def consume(self, count: int, _: float) -> list[Any]:
        found: list[Any] = []
        for key in sorted(self.next.keys() - self.paused):
            if self.denied is not None:
                found.append(Message(key, FakeRecord(-1001), self.denied))
                continue
            at = self.next[key]
            batch = self.logs[key][at : at + min(count, self.fetch_max) - len(found)]
            self.next[key] = at + len(batch)
            self.fetched += len(batch)
            found += batch
            if self.fails_behind and batch:
                down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "")
                found.append(Message(key, FakeRecord(-1001), down))
        self._called("consume")
        return found

    def close(self) -> None:
        self.moves.append("close")


class Main:
    """A reader of partition 0 of a topic, in which transactions in its sidecar commit."""

    def __init__(self, log: Brokers, topic: str, start: Position | None = None) -> None:
        self.key: TopicPartition = (topic, 0)
        self.sidecar: TopicPartition = (sidecar_of(topic), 0)
        self._messages = log.logs.setdefault(self.sidecar, [])
        self.buffer = PartitionBuffer(
            self.key,
            start or Position.at(0),
            PendingTransactionMap(1 << 40),
            malformed=malformed,
        )
        self._count = 0

    def write(self, owner: int, *, payload: bytes = b"v") -> int:
        """Appends a record of a transaction to the sidecar. Returns its offset."""
        at = len(self._messages)
        record = data(at, TxId(0, INCARNATION, owner))
        self._messages.append(Message(self.sidecar, FakeRecord(at, record.header_list, payload)))
        return at

    def spoil(self, at: int) -> None:
        """Makes the headers of a record unreadable."""
        self._messages[at].is_unreadable = True

    def commit(self, owner: int, offsets: Iterable[int], sidecar_id: str = "") -> None:
        """Appends a transaction's pointer to the topic, and lets the reader meet it."""
        at, self._count = self._count, self._count + 1
        txid, writes = TxId(0, INCARNATION, owner), Writes(side=list(offsets))
        end = end_record(at, txid, at, writes, at, commit=True, sidecar_id=sidecar_id)
        self.buffer.feed([end])

    def committed(self, owner: int, count: int, *, payload: bytes = b"v") -> list[int]:
        """Writes and commits so many records. Returns their offsets."""
        offsets = [self.write(owner, payload=payload) for _ in range(count)]
        self.commit(owner, offsets)
        return offsets

    def taken(self, limit: int = 10_000) -> list[int]:
        """Returns the offsets in the sidecar of what is delivered."""
        return [in_sidecar(record.offset()) for record in self.buffer.take(limit)]


def reader_of(log: Brokers) -> SidecarReader:
    return SidecarReader(cast(Log, log), {}, lambda: log.now_s)


def read(reader: SidecarReader, *mains: Main, steps: int = 50) -> list[int]:
    """Reads and delivers until nothing is wanted. Returns what was delivered."""
    got: list[int] = []
    for _ in range(steps):
        reader.step([main.buffer for main in mains], 0)
        for main in mains:
            got += main.taken()
        if all(main.buffer.stream_wanted() is None for main in mains):
            break
    return got


@pytest.fixture
def log() -> Brokers:
    """A log that holds nothing."""
    return Brokers()


@pytest.fixture
def main(log: Brokers) -> Main:
    """Topic "a"."""
    return Main(log, "a")


@pytest.fixture
def reader(log: Brokers) -> SidecarReader:
    """Reads the log's sidecars."""
    return reader_of(log)


# ---- one range after the other ------------------------------------------------------------------


def test_the_next_range_needs_no_question_and_no_seek(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    for owner in range(20):
        wanted = main.committed(owner, 10)
        main.write(99)  # A marker, or somebody else's.
        assert read(reader, main) == wanted
    assert log.moves == ["assign a._txnlog 0"]
    assert log.asked == ["a._txnlog"]


def test_ranges_that_overlap_are_fetched_once(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    offsets: dict[int, list[int]] = {owner: [] for owner in range(8)}
    for number in range(80):
        offsets[number % 8].append(main.write(number % 8))
    for owner in range(8):
        main.commit(owner, offsets[owner])
    assert read(reader, main) == [at for owner in range(8) for at in offsets[owner]]
    assert log.moves == ["assign a._txnlog 0"]


@pytest.mark.parametrize("may_seek", [True, False])
def test_a_range_far_behind_or_ahead_is_sought(
    log: Brokers, main: Main, reader: SidecarReader, may_seek: bool
) -> None:
    log.may_seek = may_seek
    far = sidecar_read.PASS_MAX + sidecar_read.SLICE_RECORDS
    first = [main.write(1) for _ in range(3)]
    for _ in range(far):
        main.write(99)
    last = [main.write(2) for _ in range(3)]
    main.commit(2, last)
    assert read(reader, main) == last
    main.commit(1, first)
    assert read(reader, main) == first
    second = main.committed(3, 3)
    assert read(reader, main) == second
    places = [move.split()[-1] for move in log.moves if not move.startswith("unassign")]
    first_slice = sidecar_read.SLICE_BYTES // sidecar_read.FIRST_BYTES
    slices = (first_slice, 0, sidecar_read.SLICE_RECORDS)
    below = [size // sidecar_read.BELOW_SHARE for size in slices]
    wanted = (last[0], first[0], second[0])
    assert places == [str(at - less) for at, less in zip(wanted, below, strict=True)]


def test_one_that_nobody_wants_is_left_after_a_while(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    wanted = main.committed(1, 3)
    assert read(reader, main) == wanted
    log.now_s += sidecar_read.STANDS_S / 2
    reader.tidy()
    assert log.next
    log.now_s += sidecar_read.STANDS_S
    reader.tidy()
    assert not log.next


def test_a_range_that_is_taken_slowly_is_not_left(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    main.committed(1, 3 * sidecar_read.SLICE_RECORDS)
    reader.step([main.buffer], 0)
    assert len(main.taken(5)) == 5
    log.now_s += 10 * sidecar_read.STANDS_S
    reader.tidy()
    assert log.next


def test_only_some_stand(log: Brokers, reader: SidecarReader) -> None:
    for number in range(2 * sidecar_read.STANDING_MAX):
        each = Main(log, f"t{number}")
        wanted = each.committed(1, 2)
        assert read(reader, each) == wanted
    assert len(log.next) <= sidecar_read.STANDING_MAX + 1
    assert (f"t{2 * sidecar_read.STANDING_MAX - 1}._txnlog", 0) in log.next


def test_what_nobody_wants_is_read_ahead_within_a_bound(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    done = main.committed(1, 3)
    assert read(reader, main) == done
    for _ in range(20_000):
        main.write(2)  # It stays open.
    other = Main(log, "b")
    wanted = other.committed(3, 15_000)
    assert read(reader, other, steps=300) == wanted
    assert log.paused == {main.sidecar}
    assert log.next[main.sidecar] <= 4 * sidecar_read.SLICE_RECORDS
    last = main.committed(4, 3)
    assert read(reader, main) == last
    assert not log.paused


def test_transactions_that_were_open_together_commit_in_any_order(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    below = sidecar_read.SLICE_BYTES // sidecar_read.FIRST_BYTES // sidecar_read.BELOW_SHARE
    offsets = [main.write(owner) for owner in range(2 * below)]
    for owner in reversed(range(below, 2 * below)):
        main.commit(owner, [offsets[owner]])
        assert read(reader, main) == [offsets[owner]]
    assert log.moves == [f"assign a._txnlog {below - 1}"]


def test_what_was_trimmed_is_not_asked_for_below_a_range(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    for _ in range(10):
        main.write(1)
    log.starts[main.sidecar] = 7
    wanted = [main.write(2)]
    main.commit(2, wanted)
    assert read(reader, main) == wanted
    assert log.moves == ["assign a._txnlog 7"]


def test_what_comes_beside_what_others_read_is_fetched_once(
    log: Brokers, reader: SidecarReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a serializable consumer reads: one transaction after another, here and there."""
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 50)
    monkeypatch.setattr(sidecar_read, "PASS_MAX", 50)
    mains = [Main(log, topic) for topic in "abc"]
    count = 6 * sidecar_read.SLICE_RECORDS
    offsets = [[main.write(owner) for owner in range(count)] for main in mains]
    for owner in range(count):
        for main, of_main in zip(mains, offsets, strict=True):
            main.commit(owner, [of_main[owner]])
            assert read(reader, *mains) == [of_main[owner]]
    assert log.moves == [f"assign {main.sidecar[0]} 0" for main in mains]
    assert log.fetched == 3 * count


def test_a_range_that_was_paused_leaves_no_pause_to_the_next(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    main.committed(1, 3 * sidecar_read.AHEAD_MAX_RECORDS)
    other = Main(log, "b")
    other.committed(2, sidecar_read.AHEAD_MAX_RECORDS)
    for _ in range(100):
        reader.step([main.buffer], 0)
    reader.step([main.buffer, other.buffer], 0)
    assert log.paused == {main.sidecar}
    reader.forget(main.buffer)
    assert not log.paused
    assert set(log.next) == {other.sidecar}


def test_trap_289_a_sidecar_that_is_read_alone_is_never_paused(
    log: Brokers, main: Main, reader: SidecarReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 50)
    monkeypatch.setattr(sidecar_read, "AHEAD_MAX_RECORDS", 50)
    monkeypatch.setattr(log, "pause", lambda places: pytest.fail(f"{places} paused"))
    wanted = [main.write(owner) for owner in range(500)]
    for owner, offset in enumerate(wanted):
        main.commit(owner, [offset])
        assert read(reader, main) == [offset]
    large = main.committed(1_000, 500)
    for _ in range(20):
        reader.step([main.buffer], 0)  # nobody takes it
    assert main.taken() + read(reader, main, steps=500) == large


def test_large_records_of_small_transactions_are_fetched_once(
    log: Brokers, main: Main, reader: SidecarReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_read, "SLICE_BYTES", 20_000)
    monkeypatch.setattr(sidecar_read, "FIRST_BYTES", 9_000)
    wanted: list[int] = []
    for owner in range(30):
        wanted += main.committed(owner, 1, payload=bytes(10_000))
        main.write(99, payload=b"")
    assert read(reader, main, steps=500) == wanted
    assert log.moves == ["assign a._txnlog 0"]


def test_bytes_bound_what_is_read_ahead(
    main: Main, reader: SidecarReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_read, "AHEAD_MAX_BYTES", 100_000)  # Of 500 records ten.
    monkeypatch.setattr(sidecar_read, "SLICE_BYTES", 20_000)
    wanted = main.committed(1, 500, payload=bytes(10_000))
    for _ in range(100):
        reader.step([main.buffer], 0)
    request = main.buffer.stream_wanted()
    assert request is not None
    assert 10 <= request.ahead <= 20
    assert main.taken() + read(reader, main, steps=1_000) == wanted


@pytest.mark.parametrize("call", ["assign", "unassign", "seek", "consume"])
def test_an_exception_anywhere_loses_and_repeats_nothing(
    log: Brokers, main: Main, reader: SidecarReader, call: str
) -> None:
    far = sidecar_read.PASS_MAX + sidecar_read.SLICE_RECORDS
    got: list[int] = []
    wanted: list[int] = []
    log.interrupt_at = call
    for owner in range(4):
        wanted += main.committed(owner, 3)
        for _ in range(far):
            main.write(99)
        for _ in range(3):
            with suppress(KeyboardInterrupt):
                got += read(reader, main)
        if call == "unassign":
            with suppress(KeyboardInterrupt):
                log.now_s += sidecar_read.STANDS_S
                reader.tidy()
    assert got == wanted
    assert log.interrupt_at == ""
    assert "close" in log.moves


# ---- what goes wrong ----------------------------------------------------------------------------


def test_a_sidecar_without_a_leader_holds_up_no_other(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    other = Main(log, "b")
    main.committed(1, 2)
    wanted = other.committed(2, 2)
    log.leaderless = main.sidecar[0]
    assert read(reader, main, other, steps=3) == wanted
    for _ in range(10):  # And is not asked again at once.
        log.now_s += 0.1
        reader.step([main.buffer, other.buffer], 0)
    assert log.asked.count(log.leaderless) == 1
    log.leaderless = ""
    log.now_s += 10
    assert len(read(reader, main, other)) == 2


def test_a_sidecar_that_may_not_be_read_is_asked_again_and_told_in_the_end(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    main.committed(1, 3)
    log.denied = DENIED
    began_s = log.now_s
    for _ in range(100):
        reader.step([main.buffer], 0)
        log.now_s += 0.01
    assert 2 <= len(log.asked) <= 5
    assert main.buffer.failure is None, "a right takes a while to reach all brokers"
    while main.buffer.failure is None:
        assert log.now_s < began_s + 2 * sidecar_read.CONFIRM_S
        reader.step([main.buffer], 0)
        log.now_s += 0.05
    assert isinstance(main.buffer.failure, NotAuthorizedError)
    text = str(main.buffer.failure)
    assert "may not READ topic a._txnlog" in text
    assert "--allow-principal User:reader --operation Read --topic a._txnlog" in text


def test_a_right_that_comes_late_is_used(log: Brokers, main: Main, reader: SidecarReader) -> None:
    wanted = main.committed(1, 3)
    log.denied = DENIED
    for _ in range(30):
        reader.step([main.buffer], 0)
        log.now_s += 0.1
    log.denied = None
    log.now_s += 1
    assert read(reader, main) == wanted
    log.denied = DENIED
    main.committed(2, 3)
    for _ in range(30):
        reader.step([main.buffer], 0)
        log.now_s += 0.1
    assert main.buffer.failure is None, "the time before the right came does not count"


def test_a_record_whose_headers_cant_be_read_is_passed_over(
    main: Main, reader: SidecarReader
) -> None:
    first = main.write(1)
    main.spoil(main.write(99))
    second = main.write(1)
    main.commit(1, [first, second])
    assert read(reader, main) == [first, second]


def test_a_transaction_with_such_a_record_is_not_delivered_whole(
    main: Main, reader: SidecarReader
) -> None:
    offsets = [main.write(1) for _ in range(3)]
    main.spoil(offsets[1])
    main.commit(1, offsets)
    read(reader, main)
    assert isinstance(main.buffer.failure, IntegrityError)
    assert "holds 2 of the 3 records" in str(main.buffer.failure)


def test_a_sidecar_that_is_gone_is_told_after_a_while(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    done = main.committed(1, 3)
    assert read(reader, main) == done
    main.committed(2, 3)
    log.gone.add(main.sidecar[0])
    log.now_s += 2  # What was told before is not believed any more.
    reader.step([main.buffer], 0)
    assert main.buffer.failure is None
    log.now_s += sidecar_read.CONFIRM_S + 1
    reader.step([main.buffer], 0)
    assert isinstance(main.buffer.failure, IntegrityError)


def test_trap_156_an_end_that_was_told_too_low_once_counts_no_more_when_it_was_told_right(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    wanted = main.committed(1, 3 * sidecar_read.SLICE_RECORDS)
    log.gone.add(main.sidecar[0])  # To a broker that has not heard of it yet.
    reader.step([main.buffer], 0)
    log.gone.clear()
    got: list[int] = []
    for _ in range(2):
        log.now_s += sidecar_read.AGAIN_S
        reader.step([main.buffer], 0)
        got += main.taken()
    assert got
    # Much later its leader changes, and the former one tells an end of the past, for a moment.
    log.now_s += 60
    log.denied = KafkaError(KafkaError._ALL_BROKERS_DOWN, "")
    reader.step([main.buffer], 0)
    log.denied = None
    log.gone.add(main.sidecar[0])
    log.now_s += sidecar_read.AGAIN_S
    reader.step([main.buffer], 0)
    assert main.buffer.failure is None
    log.gone.clear()
    log.now_s += sidecar_read.AGAIN_S
    got += read(reader, main)
    assert got == wanted


def test_trap_156_time_in_which_another_sidecar_did_not_answer_does_not_count(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    wanted, other = main.committed(1, 3), Main(log, "b")
    other.committed(2, 3)
    log.gone.add(main.sidecar[0])
    for _ in range(4):
        reader.step([main.buffer], 0)
        log.now_s += sidecar_read.AGAIN_S
    # The next question is answered when it is known that the other one has no leader.
    log.leaderless = other.sidecar[0]
    reader.step([main.buffer, other.buffer], 0)
    assert main.buffer.failure is None
    log.gone.clear()
    log.now_s += sidecar_read.AGAIN_S
    assert read(reader, main) == wanted


def test_trap_156_what_was_told_twice_is_no_loss_if_nobody_answered_in_between(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    wanted = main.committed(1, 3)
    log.gone.add(main.sidecar[0])
    reader.step([main.buffer], 0)
    log.leaderless = main.sidecar[0]
    log.now_s += 1
    reader.step([main.buffer], 0)
    log.leaderless = ""
    log.now_s += 6
    reader.step([main.buffer], 0)
    assert main.buffer.failure is None
    log.gone.clear()
    log.now_s += 1
    assert read(reader, main) == wanted


def test_one_denial_is_not_enough_however_late_the_application_polls(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    wanted = main.committed(1, 3)
    log.denied = DENIED
    reader.step([main.buffer], 0)
    log.denied = None  # The right has come.
    log.now_s += 2 * sidecar_read.CONFIRM_S
    assert read(reader, main) == wanted
    assert main.buffer.failure is None


def test_trap_118_the_id_of_a_sidecar_is_asked(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    log.ids[main.sidecar[0]] = "new"
    offsets = [main.write(99) for _ in range(3)]
    main.commit(1, offsets, "old")
    read(reader, main)
    assert isinstance(main.buffer.failure, IntegrityError)
    assert "deleted and created anew" in str(main.buffer.failure)


def test_records_in_a_sidecar_of_another_id_are_delivered_once_they_are_counted(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    """More than the window holds, so they are fetched twice."""
    log.ids[main.sidecar[0]] = "new"
    offsets = [main.write(1) for _ in range(2 * sidecar_read.SLICE_RECORDS)]
    main.commit(1, offsets, "old")
    assert read(reader, main, steps=500) == offsets


def test_what_was_fetched_of_a_former_topic_is_forgotten(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    log.ids[main.sidecar[0]] = "old"
    done = main.committed(1, 3)
    assert read(reader, main) == done
    log.ids[main.sidecar[0]] = "new"
    wanted = [main.write(2) for _ in range(3)]
    main.commit(2, wanted, "new")
    log.now_s += 2
    assert read(reader, main) == wanted
    assert log.moves == ["assign a._txnlog 0", "unassign a._txnlog", "assign a._txnlog 0"]


def read_with_faults(
    log: Brokers, main: Main, reader: SidecarReader, fault: Callable[[bool], None], steps: int = 60
) -> list[int]:
    """Reads and delivers for some steps; each fifth has a fault. Returns what was delivered."""
    got: list[int] = []
    for number in range(steps):
        fault(number % 5 == 4)
        with suppress(KeyboardInterrupt):
            reader.step([main.buffer], 0)
        got += main.taken()
        log.now_s += 0.3
    return got


def down(log: Brokers) -> Callable[[bool], None]:
    """Lets fetches fail, or not."""

    def fault(there: bool) -> None:
        log.denied = KafkaError(KafkaError._ALL_BROKERS_DOWN, "") if there else None

    return fault


def far_up(log: Brokers, main: Main) -> list[int]:
    """Commits some records, far above the sidecar's start. Fetches bring two at a time."""
    for _ in range(100):
        main.write(1)
    log.fetch_max = 2
    return main.committed(2, 4)


def test_a_fetch_that_fails_is_begun_again(log: Brokers, main: Main, reader: SidecarReader) -> None:
    wanted = main.committed(1, 3 * sidecar_read.SLICE_RECORDS)
    assert read_with_faults(log, main, reader, down(log)) == wanted


def test_where_fetches_fail_a_range_is_not_read_from_below_it(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    """Else who gets less than lies below it before the next failure never comes to the range."""
    wanted = far_up(log, main)
    assert read_with_faults(log, main, reader, down(log)) == wanted
    assert [m for m in log.moves if m.startswith("assign")][-1] == "assign a._txnlog 100"


def test_where_reading_is_broken_off_a_range_is_not_read_from_below_it(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    def interrupted(there: bool) -> None:
        log.interrupt_at = "consume" if there else ""

    wanted = far_up(log, main)
    assert read_with_faults(log, main, reader, interrupted) == wanted


def test_what_comes_before_an_error_is_taken(
    log: Brokers, main: Main, reader: SidecarReader
) -> None:
    """Else a reader whose every fetch ends with one would get nothing."""
    wanted = main.committed(1, 4)
    log.fetch_max, log.fails_behind = 2, True
    assert read_with_faults(log, main, reader, lambda _: None, steps=20) == wanted
