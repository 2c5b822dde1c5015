"""Spilling bounds memory, with one large transaction and with very many small ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition

from logtx.benchmarks.spill.payload import Payload
from logtx.benchmarks.spill.process import ReaderProcess, disk_bytes
from logtx.benchmarks.spill.reader import Reading
from logtx.consumer.core.pending import RECORD_OVERHEAD_BYTES, TRANSACTION_OVERHEAD_BYTES
from logtx.consumer.reading import AHEAD_MAX_BYTES, FETCH_MAX_RECORDS
from logtx.integration.pytest_plugin import ExistingKafka
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog

from ...parameters import slow
from ..conftest import MakeConsumer
from ..logs import Transactions, read

MIB = 1024 * 1024
RECORDS_OF_EACH = 4
TIMEOUT_S = 90.0


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def kafka_log(logtx_kafka: ExistingKafka) -> Iterator[KafkaLog]:
    opened = KafkaLog({"bootstrap.servers": logtx_kafka.bootstrap_servers})
    yield opened
    opened.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_peak_memory_of_a_transaction_of_200_mb(
    kafka_log: KafkaLog, unique: Callable[[str], str], tmp_path: Path
) -> None:
    payload, topic = Payload(1_000, 200_000), unique("large")
    kafka_log.create_topic(topic, partitions=1)
    transactions = Transactions(kafka_log)
    txid = transactions.begin()
    for start in range(0, payload.count, 20_000):
        values = [payload.value(n) for n in range(start, start + 20_000)]
        transactions.write(txid, topic, values)
    reading = Reading(
        servers=kafka_log.bootstrap_servers,
        topic=topic,
        count=payload.count,
        settings={"pending.memory.max.bytes": 16 * MIB},
        check=True,
    )
    with ReaderProcess(reading, tmp_path / "spill", tmp_path / "errors") as reader:
        pending = 0
        while pending < payload.count:
            pending = reader.until("pending", TIMEOUT_S)["pending"]
        # The rest is still in RocksDB's buffers.
        assert disk_bytes(tmp_path / "spill") > 0.7 * 200e6
        transactions.mark(txid, topic)
        done = reader.until("done", TIMEOUT_S)
        reader.wait()
    assert done["digest"] == payload.digest()
    assert list((tmp_path / "spill").iterdir()) == []
    # An idle consumer takes 60 MB of this.
    assert 30e6 < reader.peak_rss_bytes(done) < 190e6


def test_a_long_delivery_is_not_outrun(
    log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    transactions = Transactions(log)
    values = [b"%d" % n for n in range(5_000)]
    transactions.transaction("t", values)
    size = 900_000
    further = [bytes([n]) * size for n in range(50)]
    transactions.append("t", further)
    consumer = make_consumer(pending_memory_max_bytes=0, pending_dir=str(tmp_path))
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 1) == values[:1]
    reading = consumer._reading
    [assigned] = reading.assigned.values()
    for _ in range(100):
        reading.fetch(0, 10)
    assert assigned.throttled
    ahead = assigned.buffer.next_offset - len(values) - 1
    assert AHEAD_MAX_BYTES // size < ahead <= AHEAD_MAX_BYTES // size + 10
    assert read(consumer, len(values) - 1 + len(further)) == values[1:] + further
    assert not assigned.throttled


@pytest.mark.parametrize("many", [2_000, *slow([10_000])])
def test_interleaved_transactions(
    many: int, log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    transactions = Transactions(log)
    txids = [transactions.begin() for _ in range(many)]
    value = b"%d-%d"
    for number in range(RECORDS_OF_EACH):
        for index, txid in enumerate(txids):
            transactions.write(txid, "t", [value % (index, number)])
    chance = random.Random(1)
    order = chance.sample(range(many), many)
    aborted = {index for index in order if chance.random() < 0.2}
    limit = many * TRANSACTION_OVERHEAD_BYTES + 2 * MIB
    consumer = make_consumer(pending_memory_max_bytes=limit, pending_dir=str(tmp_path))
    consumer.assign([TopicPartition("t", 0)])
    most = consumer.stats()["pending_memory_bytes"]
    while consumer.stats()["pending_records"] < many * RECORDS_OF_EACH:
        assert consumer.consume(1, 0) == []
        most = max(most, consumer.stats()["pending_memory_bytes"])
    assert consumer.stats()["pending_transactions"] == many
    assert limit * 0.9 < most
    # Before each batch the consumer spills what is over the limit, so one batch may be over it.
    batch_bytes = FETCH_MAX_RECORDS * (TRANSACTION_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES + 10)
    assert most < limit + batch_bytes
    assert consumer.stats()["spilled_bytes"] > 0
    for index in order:
        transactions.mark(txids[index], "t", commit=index not in aborted)
    expected = [
        value % (index, number)
        for index in order
        if index not in aborted
        for number in range(RECORDS_OF_EACH)
    ]
    found: list[Message] = []
    while len(found) < len(expected):
        batch = consumer.consume(10_000, 5)
        assert batch
        found += batch
    assert [message.value() for message in found] == expected
    assert consumer.consume(1, 0.1) == []
    assert consumer.stats()["pending_memory_bytes"] == 0
    assert list(tmp_path.iterdir()) == []
