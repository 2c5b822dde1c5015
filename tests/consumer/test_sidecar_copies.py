"""Reading ranges of sidecars in their copies (trap 191)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logtx.consumer import sidecar_read
from logtx.consumer.sidecar_read import CONFIRM_S, SidecarReader
from logtx.journal.control import TXID_HEADER, TopicPartition
from logtx.journal.errors import (
    BrokerError,
    IntegrityError,
    LogtxError,
    NotAuthorizedError,
    TornTransactionError,
    UnknownRecordError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.relocation import (
    RELOCATIONS_TOPIC,
    Origin,
    Relocation,
    Relocations,
    copied_headers,
    decode_relocation,
    encode_relocation,
    origin_of,
    original_headers,
)
from logtx.journal.relocation_log import RelocationLog
from logtx.journal.txid import TxId

from .logs import Transactions, refuse_reading
from .records import INCARNATION, FakeRecord
from .test_sidecar_read import Brokers, Main, Message, log, main, read, reader_of

__all__ = ["log", "main"]

A, B = b"a" * 16, b"b" * 16


class Told:
    """The relocations that a reader is told."""

    def __init__(self) -> None:
        self.known = Relocations()
        self.readings = 0
        self.fails: LogtxError | None = None

    def read(self, *, timeout_s: float) -> Relocations:
        assert timeout_s > 0
        self.readings += 1
        if self.fails is not None:
            raise self.fails
        return self.known


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reader(log: Brokers, told: Told) -> SidecarReader:
    made = reader_of(log)
    cast(Any, made)._relocations = told
    return made


def copy_record(log: Brokers, main: Main, original: int, copy_id: bytes = A) -> int:
    """Copies one record to the sidecar's end. Returns where."""
    messages = log.logs[main.sidecar]
    at, was = len(messages), messages[original]
    headers = cast(Any, was.headers())
    txid = dict(headers)[TXID_HEADER]
    made = copied_headers(headers, Origin(copy_id, txid, original, (1, 7)))
    messages.append(Message(main.sidecar, FakeRecord(at, made, cast(bytes, was.value()))))
    return at


def moved(
    main: Main, owner: int, at: list[int], copy_id: bytes = A, topic_id: str = ""
) -> Relocation:
    """Says where a transaction's copy lies."""
    return Relocation(
        sidecar=main.sidecar,
        topic_id=topic_id,
        txid=TxId(0, INCARNATION, owner).to_bytes(),
        copy_id=copy_id,
        first=at[0],
        last=at[-1],
        count=len(at),
        pointer=0,
    )


def test_others_lie_between_and_one_comes_twice(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    wanted = main.committed(0, 3)
    main.write(99)
    at = []
    for original in (*wanted, wanted[-1]):  # A producer without idempotence.
        at.append(copy_record(log, main, original))
        copy_record(log, main, original, B)
        main.write(98)
    main.spoil(main.write(97))
    at.append(copy_record(log, main, wanted[-1]))
    told.known.add(moved(main, 0, at))
    log.starts[main.sidecar] = 4
    assert read(reader, main) == wanted
    assert main.buffer.counters.relocated_pointers == 1
    assert main.buffer.failure is None


def test_where_the_original_is_there_nothing_is_looked_up(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    main.write(99)
    wanted = main.committed(0, 3)
    log.starts[main.sidecar] = 1
    assert read(reader, main) == wanted
    assert not told.readings


def test_another_sidecar_is_counted_in_its_copy_first(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    # Trap 196: the coordinator knew another id, and it may be the same all the same.
    offsets = [main.write(0) for _ in range(3)]
    main.commit(0, offsets, sidecar_id="before")
    at = [copy_record(log, main, each) for each in offsets]
    log.ids[main.sidecar[0]] = "now"
    log.starts[main.sidecar] = 3
    told.known.add(moved(main, 0, at, topic_id="now"))
    assert read(reader, main) == offsets


def test_a_copy_that_lacks_a_record_is_told(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    wanted = main.committed(0, 3)
    at = [copy_record(log, main, each) for each in (wanted[0], wanted[2])]
    log.starts[main.sidecar] = 3
    told.known.add(moved(main, 0, at))
    read(reader, main)
    assert isinstance(main.buffer.failure, IntegrityError)


def test_the_copy_goes_while_it_is_read(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    wanted = main.committed(0, 6)
    first = [copy_record(log, main, each) for each in wanted]
    second = [copy_record(log, main, each, B) for each in wanted]
    log.starts[main.sidecar] = 6
    told.known.add(moved(main, 0, first))
    reader.step([main.buffer], 0)
    reader.step([main.buffer], 0)
    got = main.taken(2)
    assert got == wanted[:2]
    log.starts[main.sidecar] = second[0]
    told.known.add(moved(main, 0, second, B))
    log.now_s += 60
    main.buffer.reopen_stream()  # Its reading is refused.
    assert got + read(reader, main) == wanted


def test_without_a_copy_it_is_torn_and_without_the_right_refused(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    wanted = main.committed(0, 3)
    at = [copy_record(log, main, each) for each in wanted]
    log.starts[main.sidecar] = 5
    told.known.add(moved(main, 0, at))
    told.fails = BrokerError("no leader")
    read(reader, main, steps=3)
    assert main.buffer.failure is None, "it is asked for again"
    told.fails = NotAuthorizedError("may not READ")
    log.now_s += 1
    read(reader, main)
    assert isinstance(main.buffer.failure, NotAuthorizedError)
    other = Main(log, "a")
    other.commit(0, wanted)
    told.fails = None
    log.now_s += 60
    read(reader, other, steps=3)
    assert other.buffer.failure is None, "a broker may be behind"
    log.now_s += CONFIRM_S
    read(reader, other)
    assert isinstance(other.buffer.failure, TornTransactionError), "its copy begins below"


def test_trap_207_a_copy_of_which_a_broker_has_not_heard_is_read(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    wanted = main.committed(0, 3)
    at = [copy_record(log, main, each) for each in wanted]
    log.starts[main.sidecar] = 3
    read(reader, main, steps=3)
    assert main.buffer.failure is None
    told.known.add(moved(main, 0, at))
    log.now_s += 2
    assert read(reader, main) == wanted


def test_relocations_are_read_behind_the_start_and_not_for_each_pointer(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    # Trap 189.
    one, two = main.committed(0, 2), main.committed(1, 2)
    for owner, offsets in enumerate((one, two)):
        at = [copy_record(log, main, each) for each in offsets]
        told.known.add(moved(main, owner, at))
    log.starts[main.sidecar] = 4
    assert read(reader, main) == [*one, *two]
    assert told.readings == 1


@pytest.mark.parametrize("slice_records", [1, 3, 7])
def test_a_part_of_a_copy_is_not_read_from_the_copys_first_record(
    log: Brokers,
    main: Main,
    reader: SidecarReader,
    told: Told,
    slice_records: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A queue reads a range in many leases, each by a buffer of its own.
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", slice_records)
    monkeypatch.setattr(sidecar_read, "PASS_MAX", 0)
    count, lease = 200, 5
    wanted = main.committed(0, count)
    at = []
    for original in wanted:
        at.append(copy_record(log, main, original))
        main.write(98)
    told.known.add(moved(main, 0, at))
    log.starts[main.sidecar] = count
    for first in (*range(0, count, lease), 0, 101):
        place = Position(o1=0, o2=0, o3=first, side=wanted[first])
        part = Main(log, "a", place if first else None)
        part.commit(0, wanted)
        before, got = log.fetched, list[int]()
        while len(got) < lease:
            assert reader.step([part.buffer], 0)
            got += part.taken(lease - len(got))
        assert got == wanted[first : first + lease]
        if first:
            assert log.fetched - before <= 2 * (lease + 2 * slice_records)
        reader.forget(part.buffer)
        log.now_s += 60


def test_one_copy_of_a_transaction_has_ranges_of_several_partitions(
    log: Brokers, main: Main, reader: SidecarReader, told: Told
) -> None:
    other = Main(log, "b")
    for count, each in ((5, main), (2, other)):
        for _ in range(count - 1):
            each.write(98)
        wanted = each.committed(0, count)
        at = [copy_record(log, each, original) for original in wanted]
        told.known.add(moved(each, 0, at))
        log.starts[each.sidecar] = at[0]
        assert read(reader, each) == wanted


# ---- records ------------------------------------------------------------------------------------


def test_headers_go_back_to_what_they_were() -> None:
    txid = TxId(1, INCARNATION, 5).to_bytes()
    headers = [("a", b"1"), (TXID_HEADER, txid), ("TxCopy", b"an application's"), ("b", None)]
    origin = Origin(A, txid, 2**40, (1, 1_700_000_000_000))
    copied = copied_headers(headers, origin)
    assert TXID_HEADER not in dict(copied)
    assert origin_of(copied) == origin
    assert original_headers(copied, origin) == headers
    assert origin_of(headers) is None
    again = copied_headers(original_headers(copied, origin), Origin(B, txid, 2**40, (1, 7)))
    assert cast(Origin, origin_of(again)).copy_id == B


def test_a_relocation_goes_and_comes() -> None:
    key: TopicPartition = ("a._txnlog", 3)
    txid = TxId(1, INCARNATION, 5).to_bytes()
    one = Relocation(
        sidecar=key, topic_id="x", txid=txid, copy_id=A, first=5, last=9, count=2, pointer=1
    )
    raw_key, raw = encode_relocation(one)
    assert decode_relocation(raw_key, raw) == one
    assert decode_relocation(raw_key, None) is None
    with pytest.raises(UnknownRecordError, match="upgrade"):
        decode_relocation(raw_key, raw.replace(b'"format":1', b'"format":2'))
    for wrong in (b"{}", b"\xff", b"[]"):
        with pytest.raises(LogtxError):
            decode_relocation(raw_key, wrong)


def test_who_may_describe_the_relocations_and_not_read_them_is_told_so(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic(RELOCATIONS_TOPIC, partitions=1)
    Transactions(memory_log).append(RELOCATIONS_TOPIC, [b"unread"])
    refuse_reading(monkeypatch, RELOCATIONS_TOPIC)
    with pytest.raises(NotAuthorizedError, match="--operation Read --topic"):
        RelocationLog(memory_log).read(timeout_s=10)
