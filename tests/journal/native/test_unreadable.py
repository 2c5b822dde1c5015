"""Records with a header whose name is not UTF-8, as a broker holds them, among others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.fetching import OpenFetcher, open_quickest
from logtx.consumer.malformed import UNREADABLE, readable_runs
from logtx.consumer.range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig
from logtx.integration.inspect.sums import sum_up
from logtx.journal.errors import MalformedHeaderError
from logtx.journal.headers import headers_of
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.position import Position
from logtx.journal.reader import READER_SETTINGS

from ...extension import go_without_extension, use_extension
from .batches import Batch, RawLog, Record, encode
from .conftest import Mock

COUNT = 200
UNREADABLE_AT = (3, 120, 121, 199)
"""CPython takes the short way into `headers` only once it has gone the long one some times."""
MADE_BY_HAND = {"check.crcs": False}
"""The batches have no checksum."""


@pytest.fixture(params=["in Python", "in C"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets records be read in Python, and by the C extension."""
    if request.param == "in C":
        use_extension(monkeypatch)
    else:
        go_without_extension(monkeypatch)


@pytest.fixture(scope="module")
def unreadable() -> Iterator[Log]:
    """A log with such records in the topic "t"."""
    mock = Mock()
    log = KafkaLog({"bootstrap.servers": mock.address})
    with closing(Producer({"bootstrap.servers": mock.address})) as producer:
        producer.list_topics("t", 10)  # So it is made.
    records = [
        Record(None, b"%d" % n, [(b"\xff" if n in UNREADABLE_AT else b"a", b"%d" % n)])
        for n in range(COUNT)
    ]
    with closing(RawLog(mock)) as raw:
        raw.append("t", 0, encode(Batch(records)))
    yield log
    log.close()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_trap_304_a_consumer_tells_them_at_their_place_and_goes_on(
    isolation: str, unreadable: Log
) -> None:
    config = {"group.id": isolation, "isolation.level": isolation, **MADE_BY_HAND}
    found: list[Any] = []
    deadline_s = time.monotonic() + 20
    with Consumer(config, log=unreadable) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        while len(found) < COUNT and time.monotonic() < deadline_s:
            found += consumer.consume(1_000, 0.5)
    assert [message.value() for message in found] == [b"%d" % n for n in range(COUNT)]
    for number, message in enumerate(found):
        is_unreadable = number in UNREADABLE_AT
        assert (message.error() is not None) == is_unreadable
        assert message.headers() == (None if is_unreadable else [("a", b"%d" % number)])


def fetched(log: Log, settings: Any, use: Callable[[OpenFetcher], Any]) -> Any:
    with closing(open_quickest(log.consumer, {**settings, **MADE_BY_HAND})) as fetcher:
        return use(fetcher)


def test_trap_304_each_is_asked_once(unreadable: Log) -> None:
    def read(fetcher: OpenFetcher) -> list[Any]:
        fetcher.assign("t", 0, 0)
        found: list[Any] = []
        while len(found) < COUNT:
            found += fetcher.fetch(COUNT, 5).records
        return found

    runs = [list(run) for run in readable_runs(fetched(unreadable, READER_SETTINGS, read))]
    assert [record.offset() for run in runs for record in run] == list(range(COUNT))
    alone = [run[0].offset() for run in runs if run[0].headers() is UNREADABLE]
    assert alone == list(UNREADABLE_AT)
    assert len(runs) == 7
    told = 0
    for record in fetched(unreadable, READER_SETTINGS, read):
        try:
            headers_of(record)
        except SystemError:
            told += 1
            assert record.offset() in UNREADABLE_AT
    assert told == len(UNREADABLE_AT)


@pytest.mark.parametrize("committed", [False, True])
def test_a_range_names_the_record(committed: bool, unreadable: Log) -> None:
    config = ReadConfig(kafka={"bootstrap.servers": ""}, committed=committed)

    def read(start: int, end: int) -> list[bytes | None]:
        part = Range("t", 0, Position.at(start), end)

        def shares(fetcher: OpenFetcher) -> list[bytes | None]:
            with closing(RangeReader(config, part, unreadable, fetcher)) as reader:
                return [record.value() for share in reader.shares() for record in share.records]

        found: list[bytes | None] = fetched(unreadable, CONSUMER, shares)
        return found

    assert read(4, 120) == [b"%d" % n for n in range(4, 120)]
    with pytest.raises(MalformedHeaderError, match=r"t\[0\] offset 120 is not delivered"):
        read(4, COUNT)


def test_an_audit_finds_them(unreadable: Log) -> None:
    def sums(fetcher: OpenFetcher) -> Any:
        return sum_up(unreadable, ("t", 0), (0, COUNT), fetcher)

    (group,) = fetched(unreadable, READER_SETTINGS, sums)
    assert (group.raw_txid, group.records) == (b"", len(UNREADABLE_AT))
    assert (group.first, group.last) == (UNREADABLE_AT[0], UNREADABLE_AT[-1])
