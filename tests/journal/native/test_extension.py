"""Sending and counting in C: what is counted where, what is not taken, faults, forks and ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from logtx.journal.native import loading
from logtx.journal.native.interface import Count, Handle

from .conftest import MakeCounting, Mock

TOPICS = {"t": None, "u": None}


def txid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def counted(handle: Handle, number: int, control: bytes = b"", owner: object = None) -> Count:
    return handle.count(txid(number), control, TOPICS, owner)


def settle(producer: Any, count: Count) -> None:
    """Closes it and waits for its reports."""
    count.close()
    assert producer.flush(20) == 0
    assert count.is_settled


def read(mock: Mock, topic: str, partition: int, first: int, last: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": mock.address, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, first)])
    found = []
    deadline_s = time.monotonic() + 20
    while len(found) <= last - first and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


def test_counts_each_branch_and_partition_as_they_lie(
    mock: Mock, make_counting: MakeCounting
) -> None:
    producer, handle = make_counting(enable__idempotence=True)
    counts = {
        b"": counted(handle, 1),
        b"x": counted(handle, 1, b"x"),
        b"y": counted(handle, 2, b"y"),
    }
    for i in range(60):
        control = (b"", b"x", b"y")[i % 3]
        topic = "u" if i < 20 else "t"
        assert (
            counts[control].produce(topic, b"%d" % i, b"k", i % 2, 1_700_000_000_000 + i)
            == i // 3 + 1
        )
    for count in counts.values():
        settle(producer, count)
        assert count.failure() is None
    for topic in TOPICS:
        for partition in range(2):
            spans = {
                control: next(s for s in count.spans() if s[:2] == (topic, partition))
                for control, count in counts.items()
            }
            first, last = min(s[2] for s in spans.values()), max(s[3] for s in spans.values())
            lie: dict[bytes, list[int]] = {}
            for message in read(mock, topic, partition, first, last):
                headers = dict(message.headers())
                control = headers.get("TxCtl", b"")
                assert headers["TxId"] == txid(2 if control == b"y" else 1)
                assert message.key() == b"k"
                assert message.timestamp()[1] == 1_700_000_000_000 + int(message.value())
                lie.setdefault(control, []).append(message.offset())
            found = {c: (topic, partition, o[0], o[-1], len(o)) for c, o in lie.items()}
            assert found == spans


def test_contents_arrive_as_they_are_given(mock: Mock, make_counting: MakeCounting) -> None:
    producer, handle = make_counting()
    count = counted(handle, 1)
    contents = [(None, None), (b"", b""), ("", "ü"), (b"a\0b", "k"), ("v" * 70_000, b"k" * 300)]
    for value, key in contents:
        assert count.produce("t", value, key, 3, 0)
    settle(producer, count)
    _, _, first, last, number = count.spans()[0]
    assert number == len(contents)
    encoded = [tuple(c.encode() if isinstance(c, str) else c for c in pair) for pair in contents]
    assert [(m.value(), m.key()) for m in read(mock, "t", 3, first, last)] == encoded


class Text(str):
    """Not exactly a str."""

    __slots__ = ()


@pytest.mark.parametrize(
    "arguments",
    [
        ("another", b"v", None, 0, 0),
        (Text("t"), b"v", None, 0, 0),
        ("t\0", b"v", None, 0, 0),
        ("\ud800", b"v", None, 0, 0),
        (["t"], b"v", None, 0, 0),
        ("t", bytearray(b"v"), None, 0, 0),
        ("t", "\ud800", None, 0, 0),
        ("t", b"v", 5, 0, 0),
        ("t", b"v", None, -2, 0),
        ("t", b"v", None, 2**31, 0),
        ("t", b"v", None, 2**70, 0),
        ("t", b"v", None, True, 0),
        ("t", b"v", None, "0", 0),
        ("t", b"v", None, 0, -1),
        ("t", b"v", None, 0, 2**63),
        ("t", b"v", None, 0, 1.5),
        ("t", b"v" * 2_000_000, None, 0, 0),
    ],
    ids=lambda a: repr(a)[:40],
)
def test_what_it_cannot_judge_is_not_taken(
    make_counting: MakeCounting, arguments: tuple[Any, ...]
) -> None:
    producer, handle = make_counting()
    topics = {"t": None, "t\0": None, "\ud800": None}
    count = handle.count(txid(1), b"", topics, None)
    assert count.produce(*arguments) == 0
    assert count.produce("t", b"v", None, 0, 0) == 1
    settle(producer, count)
    assert count.failure() is None


def test_nothing_is_taken_behind_a_close_within_the_call(make_counting: MakeCounting) -> None:
    class Closes(str):
        """A topic that the application named so; another thread may run while it is compared."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            count.close()
            return super().__eq__(other)

    _, handle = make_counting()
    count = handle.count(txid(1), b"", {Closes("t"): None}, None)
    assert count.produce("t", b"v", None, 0, 0) == 0
    assert count.is_settled


def test_only_five_arguments_are_taken(make_counting: MakeCounting) -> None:
    _, handle = make_counting()
    with pytest.raises(TypeError, match="5 arguments"):
        counted(handle, 1).produce("t", b"v")  # type: ignore[call-arg]


def test_a_record_that_is_refused_at_once_is_not_counted_trap_223(
    make_counting: MakeCounting,
) -> None:
    producer, handle = make_counting()
    count = counted(handle, 1)
    assert count.produce("t", b"v", None, 0, 0) == 1
    assert producer.flush(20) == 0
    # Its topic is known now, and has four partitions.
    assert count.produce("t", b"v", None, 99, 0) == 0
    assert count.failure() is None
    assert count.produce("t", b"v", None, 0, 0) == 2
    settle(producer, count)
    assert count.failure() is None
    assert sum(s[4] for s in count.spans()) == 2


def test_a_full_queue_takes_nothing(mock: Mock, make_counting: MakeCounting) -> None:
    producer, handle = make_counting(queue__buffering__max__messages=3, linger__ms=500)
    mock.delay(200)
    count = counted(handle, 1)
    assert [count.produce("t", b"v", None, 0, 0) for _ in range(5)] == [1, 2, 3, 0, 0]
    settle(producer, count)
    assert [s[4] for s in count.spans()] == [3]


def test_records_with_a_callback_go_on_to_be_told_to_python(make_counting: MakeCounting) -> None:
    producer, handle = make_counting()
    count = counted(handle, 1)
    told: list[tuple[object, int]] = []
    for _ in range(3):
        assert count.produce("t", b"c", None, 0, 0)
        producer.produce(
            "t",
            b"p",
            partition=0,
            headers=[("TxId", txid(1))],
            on_delivery=lambda error, message: told.append((error, message.offset())),
        )
        producer.produce("t", b"plain", partition=0)
        producer.produce("t", b"other", partition=0, headers=[("TxId", b"short")])
        producer.produce("t", b"other", partition=0, headers=[("TxCtl", b""), ("TxId", txid(1))])
        producer.produce("t", b"other", partition=0, headers=[("TxId", None)])
    settle(producer, count)
    assert [s[4] for s in count.spans()] == [3]
    assert [error for error, _ in told] == [None] * 3
    assert not {offset for _, offset in told} & {s[2] for s in count.spans()}


@pytest.mark.parametrize("headers", [(), (("mine", b"1"),), None], ids=["", "its own", "counted"])
@pytest.mark.parametrize("control", [b"", b"x"], ids=["owner's", "branch's"])
def test_a_duplicate_has_no_offset_that_can_be_trap_224(
    mock: Mock,
    make_counting: MakeCounting,
    headers: tuple[tuple[str, bytes], ...] | None,
    control: bytes,
) -> None:
    producer, handle = make_counting(enable__idempotence=True)
    count = counted(handle, 1, control)
    assert count.produce("t", b"v", None, 0, 0)
    assert producer.flush(20) == 0
    mock.answer(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    if headers is None:
        assert count.produce("t", b"v", None, 0, 0)
    else:
        sent: Any = [("TxId", txid(1)), *[("TxCtl", control)] * bool(control), *headers]
        producer.produce("t", b"v", partition=0, headers=sent, on_delivery=lambda *_: None)
    settle(producer, count)
    failure = count.failure()
    assert failure is not None
    assert failure[:3] == (0, "t", 0)
    assert count.spans()[0][4] == 1
    # The next one is believed, in another transaction too.
    further = counted(handle, 2)
    assert further.produce("t", b"v", None, 0, 0)
    settle(producer, further)
    assert further.failure() is None


def test_a_batch_without_offsets_is_doubted_for_all_branches_in_it_trap_233(
    mock: Mock, make_counting: MakeCounting
) -> None:
    producer, handle = make_counting(enable__idempotence=True, linger__ms=500)
    first, second = counted(handle, 1), counted(handle, 2)
    assert first.produce("t", b"v", None, 2, 0)
    assert producer.flush(20) == 0
    mock.answer(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    for count in (first, second, second):
        assert count.produce("t", b"v", None, 2, 0)
    settle(producer, second)
    failure = first.failure()
    assert failure is not None
    assert failure[3] == -1
    # librdkafka numbers the batch from there, so these look as if they rose.
    assert second.failure() is None
    assert second.spans() == [("t", 2, 0, 1, 2)]
    assert second.doubted() == ("t", 2)
    further = counted(handle, 3)
    assert further.produce("t", b"v", None, 2, 0)
    settle(producer, further)
    assert further.doubted() is further.failure() is None


def test_the_first_failure_is_told(make_counting: MakeCounting) -> None:
    producer, handle = make_counting(linger__ms=10_000)
    count = counted(handle, 1)
    for _ in range(3):
        assert count.produce("u", b"v", None, 1, 0)
    producer.purge()
    settle(producer, count)
    failure = count.failure()
    assert failure is not None
    assert failure[:3] == (KafkaError._PURGE_QUEUE, "u", 1)
    assert count.spans() == []


def test_changes_are_told_once(make_counting: MakeCounting) -> None:
    producer, handle = make_counting()
    count = counted(handle, 1, owner="me")
    assert count.owner == "me"
    assert handle.changed() == []
    for partition, changes in ((0, True), (0, False), (1, True)):
        assert count.produce("t", b"v", None, partition, 0)
        assert producer.flush(20) == 0
        assert handle.changed() == ([count] if changes else [])
    count.close()
    assert handle.changed() == [count]
    assert handle.changed() == []
    late = counted(handle, 2)
    assert late.produce("t", b"v", None, 0, 0)
    late.close()
    assert late.produce("t", b"v", None, 0, 0) == 0
    assert producer.flush(20) == 0
    assert handle.changed() == [late]


@pytest.mark.parametrize("fails", range(4))
def test_news_outlast_a_lack_of_memory(make_counting: MakeCounting, fails: int) -> None:
    memory = pytest.importorskip("_testcapi")
    _, handle = make_counting()
    counts = [counted(handle, number) for number in range(6)]
    for count in counts:
        count.close()
    found: list[Count] = []
    memory.set_nomemory(fails, fails + 1)
    try:
        found = handle.changed()
    except MemoryError:
        pass  # There was not even a list.
    finally:
        memory.remove_mem_hooks()
    found += handle.changed()
    assert len(found) == len(counts)
    assert {id(count) for count in found} == {id(count) for count in counts}


def test_a_branch_is_counted_once(make_counting: MakeCounting) -> None:
    _, handle = make_counting()
    count = counted(handle, 1, b"x")
    with pytest.raises(ValueError, match="already"):
        counted(handle, 1, b"x")
    count.retire()
    assert counted(handle, 1, b"x") is not count


@pytest.mark.parametrize(("key", "control"), [(b"short", b""), (bytes(16), bytes(33))])
def test_keys_of_other_sizes_are_refused(
    make_counting: MakeCounting, key: bytes, control: bytes
) -> None:
    _, handle = make_counting()
    with pytest.raises(ValueError, match="TxId"):
        handle.count(key, control, TOPICS, None)


def test_nothing_is_left_of_many_transactions(make_counting: MakeCounting) -> None:
    producer, handle = make_counting(queue__buffering__max__messages=1_000_000)
    kept = counted(handle, 0)
    rss = [0, 0]
    for half in range(2):
        for number in range(1, 50_001):
            count = counted(handle, half << 32 | number)
            if number % 50 == 0:
                assert count.produce("t", b"v", None, number % 4, 0)
            if number % 3 == 0:
                count.retire()
            assert handle.size <= 2
        del count
        assert producer.flush(20) == 0
        assert handle.size == 1
        assert handle.changed() == []
        with open("/proc/self/statm", encoding="ascii") as pages:
            rss[half] = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # 50,000 counts of 500 bytes would be 25 MB.
    assert rss[1] - rss[0] < 10_000_000
    assert kept.spans() == []


def test_reports_of_a_dropped_count_come_late(mock: Mock, make_counting: MakeCounting) -> None:
    producer, handle = make_counting()
    mock.delay(100)
    dropped, retired = counted(handle, 1), counted(handle, 2)
    assert dropped.produce("t", b"v", None, 0, 0)
    assert retired.produce("t", b"v", None, 0, 0)
    del dropped
    retired.retire()
    assert retired.produce("t", b"v", None, 0, 0) == 0
    assert handle.size == 0
    assert producer.flush(20) == 0
    assert handle.changed() == []
    assert retired.spans() == []


def test_it_is_detached_before_it_closes_while_reports_are_under_way_trap_225(
    mock: Mock, make_counting: MakeCounting
) -> None:
    producer, handle = make_counting()
    mock.delay(300)
    count = counted(handle, 1)
    for _ in range(100):
        assert count.produce("t", b"v", None, 0, 0)
    handle.detach()
    assert not handle.is_counting
    assert count.produce("t", b"v", None, 0, 0) == 0
    with pytest.raises(RuntimeError, match="detached"):
        counted(handle, 2)
    count.close()
    producer.purge()
    producer.close()
    assert count.is_settled
    assert count.produce("t", b"v", None, 0, 0) == 0


def test_a_producer_outlives_its_handle(mock: Mock, make_counting: MakeCounting) -> None:
    del make_counting
    producer, handle = loading.opened(Producer, {"bootstrap.servers": mock.address})
    assert handle is not None
    mock.delay(100)
    count = counted(handle, 1)
    assert count.produce("t", b"v", None, 0, 0)
    del handle, count
    gc.collect()
    producer.produce("t", b"v")
    assert producer.flush(20) == 0
    producer.close()


def test_a_callback_that_knows_its_owner_keeps_nothing_alive_trap_227(
    mock: Mock, extension: Any
) -> None:
    del extension

    class Application:
        """Its producer refers to it, and it to a count."""

        def __init__(self) -> None:
            settings = {"bootstrap.servers": mock.address, "error_cb": self.on_error}
            self.producer, self.handle = loading.opened(Producer, settings)
            assert self.handle is not None
            self.topics: dict[str, Any] = {"t": self}
            self.count = self.handle.count(txid(1), b"", self.topics, self)

        def on_error(self, _error: object) -> None:
            """Does nothing."""

    application = weakref.ref(Application())
    gc.collect()
    assert application() is None


def test_several_threads_and_handles(make_counting: MakeCounting) -> None:
    pairs = [make_counting(enable__idempotence=True) for _ in range(2)]
    shared = [counted(handle, 99) for _, handle in pairs]
    own = {(n, t): counted(handle, t) for n, (_, handle) in enumerate(pairs) for t in range(3)}
    wrong: list[object] = []

    def work(n: int, t: int) -> None:
        for i in range(2_000):
            for count in (own[n, t], shared[n]):
                if not count.produce("t", b"v", None, i % 4, 0):
                    wrong.append((n, t, i))

    threads = [threading.Thread(target=work, args=key) for key in own]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for producer, handle in pairs:
            producer.poll(0)
            handle.changed()
    assert wrong == []
    for n, (producer, _) in enumerate(pairs):
        for count, number in ((shared[n], 6_000), *((own[n, t], 2_000) for t in range(3))):
            settle(producer, count)
            assert count.failure() is None
            assert sum(s[4] for s in count.spans()) == number


def test_a_child_leaves_what_is_its_parents(make_counting: MakeCounting) -> None:
    producer, handle = make_counting()
    count = counted(handle, 1)
    assert count.produce("t", b"v", None, 0, 0)
    child = os.fork()
    if child == 0:
        try:
            told = (
                count.produce("t", b"v", None, 0, 0),
                handle.is_counting,
                handle.changed(),
                count.spans(),
                count.failure(),
                count.is_settled,
            )
            count.close()
            count.retire()
            with pytest.raises(RuntimeError):
                counted(handle, 2)
            del count
            os._exit(0 if told == (0, False, [], [], None, False) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count.produce("t", b"v", None, 0, 0) == 2
    settle(producer, count)
    assert sum(s[4] for s in count.spans()) == 2


def test_what_make_raises_is_raised(extension: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        extension.Handle(lambda: 1 // 0)
    other = extension.Handle(lambda: "no producer")
    assert not other.is_counting
    with pytest.raises(RuntimeError, match="no plugin"):
        counted(other, 1)


def test_a_copy_of_the_setting_elsewhere_counts_nothing(mock: Mock, extension: Any) -> None:
    settings = {"bootstrap.servers": mock.address, "plugin.library.paths": extension.__file__}
    producer = Producer(settings)
    told: list[object] = []
    producer.produce("t", b"v", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    assert told == [None]
    Consumer({**settings, "group.id": "g"}).close()
    assert not extension.Handle(lambda: Consumer({**settings, "group.id": "g"})).is_counting


_ENDS = """
import sys
from confluent_kafka import Producer
from logtx.journal.native import loading
producer, handle = loading.opened(
    Producer, {"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0}
)
count = handle.count(bytes(16), b"", {"t": None}, None)
for _ in range(20_000):
    count.produce("t", b"v", None, -1, 0)
"""


@pytest.mark.parametrize("how", ["", "count.close()", "del producer, handle", "sys.exit(0)"])
def test_an_interpreter_ends_with_records_under_way(extension: Any, how: str) -> None:
    del extension
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS + how], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    # Of confluent-kafka itself, if there is anything.
    assert "logtx" not in ended.stderr
