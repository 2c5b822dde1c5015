"""Transactions in sidecars: producer, coordinator and consumer together, over each transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import logtx
from logtx.journal.errors import ConfigError, ConsumerError, UnsupportedTopicError
from logtx.journal.logs.interface import Log
from logtx.journal.sidecar import is_delivered_from_sidecar, sidecar_of

from .parameters import KAFKA, SLOW_KAFKA, SLOW_MOCK
from .test_end_to_end import MakeTopic, cluster, consumer, producer, servers, values

__all__ = ["cluster", "consumer", "producer", "servers"]
MakeConsumer = Callable[..., logtx.Consumer]
TIMEOUT_S = 20.0
each_transport = pytest.mark.parametrize("transport", ["memory", SLOW_MOCK, KAFKA], indirect=True)


@pytest.fixture(params=["memory", "mock", SLOW_KAFKA])
def transport(request: pytest.FixtureRequest) -> str:
    """Every run of the tests has those of `each_transport` on Kafka, too."""
    return str(request.param)


@pytest.fixture(autouse=True)
def quickly_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes a lost sidecar almost at once: these logs have no leader that could have slept."""
    monkeypatch.setattr("logtx.consumer.sidecar_read.CONFIRM_S", 0.2)


def committed(
    producer: logtx.Producer,
    topic: str,
    *written: str,
    sidecar: bool = True,
    finished: bool = False,
) -> None:
    """Commits a transaction with these records; if `finished`, what comes next lies behind its
    markers."""
    txn = producer.begin_transaction(sidecar=sidecar)
    for value in written:
        txn.produce(topic, value, partition=0)
    txn.commit(finished=finished)


@each_transport
def test_both_kinds_are_delivered_in_commit_order_and_aborts_leave_no_trace(
    log: Log, producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    first = producer.begin_transaction(sidecar=True)
    second = producer.begin_transaction()
    third = producer.begin_transaction(sidecar=True)
    for number in range(3):
        for name, txn in (("first", first), ("second", second), ("third", third)):
            txn.produce(topic, f"{name} {number}", partition=0)
    producer.flush(TIMEOUT_S)
    before = log.end_offset(topic, 0)
    assert before == 3, "only the second one wrote to the topic"
    third.abort()
    second.commit(finished=True)
    first.commit(finished=True)
    expected = [f"{name} {n}".encode() for name in ("second", "first") for n in range(3)]
    assert values(consumer(topic), 6) == expected
    assert log.end_offset(topic, 0) == before + 2, "a marker and a pointer"
    assert log.end_offset(sidecar_of(topic), 0) == 8, "six records and two markers"


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_are_of_the_main_topic_and_lie_in_the_sidecar(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic, level: str
) -> None:
    topic = make_topic()
    with producer.begin_transaction(sidecar=True) as txn:
        txn.produce(topic, b"value", b"key", partition=0, headers=[("name", b"x")], timestamp=5_000)
    message = consumer(topic, isolation_level=level).poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    assert (message.topic(), message.partition(), message.key()) == (topic, 0, b"key")
    assert ("name", b"x") in (message.headers() or ())
    assert message.timestamp()[1] == 5_000
    assert is_delivered_from_sidecar(message.offset() or 0)


def test_a_restart_in_the_middle_goes_on_where_it_was(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique("group")
    committed(producer, topic, *(str(n) for n in range(50)))
    found: list[bytes] = []
    for share in (7, 20, 23):
        reader = consumer(topic, group_id=group, enable_auto_commit="false")
        while len(found) < sum((7, 20, 23)[: (7, 20, 23).index(share) + 1]):
            message = reader.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            found.append(message.value() or b"")
            last = message
        if len(found) < 50:
            reader.commit(message=last, asynchronous=False)
            [place] = reader.position([*reader.assignment()])
            assert f"~{len(found)}" in (place.metadata or "")
        else:
            assert reader.poll(0.3) is None
        reader.close()
    assert found == [str(n).encode() for n in range(50)]


def test_branches_write_to_the_sidecar_of_their_transaction(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction(sidecar=True)
    kept, dropped = txn.branch(), txn.branch()
    for number in range(4):
        kept.produce(topic, f"kept {number}", partition=0)
        dropped.produce(topic, f"dropped {number}", partition=0)
    txn.accept(kept.finish())
    dropped.finish()
    txn.produce(topic, "own", partition=0)
    txn.commit()
    found = values(consumer(topic), 5)
    assert sorted(found) == [b"kept 0", b"kept 1", b"kept 2", b"kept 3", b"own"]


@pytest.mark.parametrize("owner", [True, False])
def test_a_branch_of_another_process_writes_to_the_sidecar_if_it_is_told_to(
    log: Log,
    servers: dict[str, Any],
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    owner: bool,
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction(sidecar=owner)
    txn.produce(topic, "own", partition=0)
    producer.flush(TIMEOUT_S)
    before = log.end_offset(topic, 0)
    aside = {**servers, "transaction.sidecar.min.bytes": 0}
    for config, sidecar in ((servers, True), (aside, None)):
        with logtx.Branch.join(config, txn.branch_token(), sidecar=sidecar) as branch:
            branch.produce(topic, "aside", partition=0)
            txn.accept(branch.finish(TIMEOUT_S))
    assert log.end_offset(topic, 0) == before
    with logtx.Branch.join(aside, txn.branch_token(), sidecar=False) as branch:
        branch.produce(topic, "inside", partition=0)
        txn.accept(branch.finish(TIMEOUT_S))
    assert log.end_offset(topic, 0) == before + 1
    txn.commit()
    # What lies in the topic comes first, in the order of its offsets.
    expected = [b"inside", b"own", b"aside", b"aside"] if owner else [b"own", b"inside", b"aside"]
    assert values(consumer(topic), 4)[:3] == expected[:3]


@each_transport
def test_a_topic_that_grows_takes_its_sidecar_along(
    log: Log,
    servers: dict[str, Any],
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    transport: str,
    unique: Any,
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster adds no partitions")
    topic = make_topic()
    for partitions in (1, 3):
        if partitions > 1:
            log.raise_partitions(topic, partitions)
        # A producer of its own, which remembers no sidecar.
        with (
            logtx.Producer({**servers, "transactional.id": unique("producer")}) as producer,
            producer.begin_transaction(sidecar=True) as txn,
        ):
            txn.produce(topic, f"{partitions}", partition=partitions - 1)
        assert log.partition_count(sidecar_of(topic)) == partitions
    assert sorted(values(consumer(topic, 0, 1, 2), 2)) == [b"1", b"3"]


def test_the_setting_makes_it_the_default(
    log: Log, servers: dict[str, Any], consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with logtx.Producer({**servers, "transaction.sidecar.min.bytes": 0}) as producer:
        with producer.begin_transaction() as txn:
            txn.produce(topic, "aside", partition=0)
        with producer.begin_transaction(sidecar=False) as txn:
            txn.produce(topic, "inside", partition=0)
    assert values(consumer(topic), 2) == [b"aside", b"inside"]
    assert log.end_offset(topic, 0) == 3


def test_nobody_names_a_sidecar(
    servers: dict[str, Any], producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    committed(producer, topic, "one")
    for sidecar in (True, False):
        txn = producer.begin_transaction(sidecar=sidecar)
        with pytest.raises(ConfigError, match=f"write to {topic}, in a transaction"):
            txn.produce(sidecar_of(topic), "x", partition=0)
        txn.abort()
    del servers


def test_an_offset_out_of_a_sidecar_is_committed_only_while_it_is_known(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    committed(producer, topic, "one", "two", "three")
    reader = consumer(topic, enable_auto_commit=False)
    first = None
    while first is None:
        first = reader.poll(TIMEOUT_S)
    behind = TopicPartition(topic, 0, first.offset() + 1)
    reader.commit(offsets=[behind], asynchronous=False)
    (stored,) = reader.committed([TopicPartition(topic, 0)])
    reader.seek(stored)
    with pytest.raises(ConsumerError, match="out of a sidecar"):
        reader.commit(offsets=[behind], asynchronous=False)
    with pytest.raises(ConsumerError, match="out of a sidecar"):
        reader.seek(behind)
    assert reader.committed([TopicPartition(topic, 0)]) == [stored]
    assert values(reader, 2) == [b"two", b"three"]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_pattern_that_matches_a_sidecar_delivers_once(
    servers: dict[str, Any],
    log: Log,
    producer: logtx.Producer,
    make_topic: MakeTopic,
    strategy: str,
) -> None:
    topic = make_topic()
    committed(producer, topic, "one", "two")
    settings = {
        **servers,
        "group.id": f"all-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": strategy,
    }
    told = []
    with logtx.Consumer(settings, log=log) as reader:
        reader.subscribe([f"^{topic}.*"], on_assign=lambda _, given: told.extend(given))
        assert values(reader, 2) == [b"one", b"two"]
        committed(producer, topic, "three")
        assert values(reader, 1) == [b"three"]
        assert reader.poll(0.5) is None
        assert {p.topic for p in told} == {topic} == {p.topic for p in reader.assignment()}
        reader.commit(asynchronous=False)
        reader.unsubscribe()
        with pytest.raises(UnsupportedTopicError, match=f"Read {topic}$"):
            reader.subscribe([sidecar_of(topic)])
        with pytest.raises(UnsupportedTopicError, match=f"Read {topic}$"):
            reader.assign([TopicPartition(sidecar_of(topic), 0, 0)])


@each_transport
def test_serial_order_joins_both_kinds_over_partitions(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(2), unique("group")
    written = []
    for number in range(6):
        with producer.begin_transaction(sidecar=number % 2 == 0) as txn:
            for partition in (1, 0):
                for each in range(20):
                    txn.produce(topic, f"{number} {partition} {each}", partition=partition)
        written += [f"{number} {p} {each}".encode() for p in (0, 1) for each in range(20)]
    settings = {"isolation_level": "serializable", "enable_auto_commit": "false"}
    found: list[bytes] = []
    while len(found) < len(written):
        # A life ends in the middle of a transaction, of either kind, in either partition.
        reader = consumer(topic, 0, 1, group_id=group, **settings)
        for _ in range(53):
            message = reader.poll(TIMEOUT_S if len(found) < len(written) else 0.3)
            if message is None:
                break
            assert message.error() is None
            found.append(message.value() or b"")
        reader.commit(asynchronous=False)
        reader.close()
    assert found == written


def test_transactions_give_out_what_lies_in_sidecars(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    sizes = (3, 5_000, 0, 4)
    for number, size in enumerate(sizes):
        with producer.begin_transaction(sidecar=number != 3) as txn:
            for each in range(size):
                txn.produce(topic, f"{number} {each}", partition=each % 2)
    reader = consumer(topic, 0, 1)
    found = []
    for transaction in reader.transactions(TIMEOUT_S):
        found.append([m.value() for m in transaction.records])
        assert transaction.complete
        assert transaction.partitions == ((topic, 0), (topic, 1))
        if len(found) == 3:
            break
    assert found == [
        [f"{n} {each}".encode() for p in (0, 1) for each in range(p, sizes[n], 2)]
        for n in (0, 1, 3)
    ]


def test_the_rest_of_a_transaction_may_be_left_unread(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    for number in range(3):
        committed(producer, topic, *(f"{number} {each}" for each in range(50)))
    first = []
    for transaction in consumer(topic).transactions(TIMEOUT_S):
        first.append(next(transaction.records).value())
        if len(first) == 3:
            break
    assert first == [b"0 0", b"1 0", b"2 0"]


def test_records_of_a_transaction_that_was_left_end_at_once(
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.consumer.serial_reader.STALLED_S", 1.0)
    topic = make_topic()
    for number in range(2):
        committed(producer, topic, *(f"{number} {each}" for each in range(50)))
    transactions = consumer(topic).transactions(TIMEOUT_S)
    left, present = next(transactions), next(transactions)
    assert list(left.records) == []
    assert len(list(present.records)) == 50


@each_transport
def test_a_sidecar_that_lost_records_stops_its_readers(
    log: Log,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    transport: str,
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster deletes no records")
    topic = make_topic()
    committed(producer, topic, "one", "two")
    committed(producer, topic, "three")
    log.delete_records(sidecar_of(topic), 0, 1)
    reader = consumer(topic)
    with pytest.raises(ConsumerError, match="begins at 1, and its records at 0"):
        reader.poll(TIMEOUT_S)
    skipping = consumer(topic, torn_reset="skip")
    assert values(skipping, 1) == [b"three"]
    assert skipping.stats()["torn_transactions"] == 1


def test_a_sidecar_with_a_retention_is_refused_with_the_remedy(
    log: Log, producer: logtx.Producer, make_topic: MakeTopic, transport: str
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster knows no settings")
    topic = make_topic()
    log.create_topic(sidecar_of(topic), partitions=1, settings={"retention.ms": "1000"})
    txn = producer.begin_transaction(sidecar=True)
    with pytest.raises(UnsupportedTopicError, match=r"--add-config retention.ms=-1"):
        txn.produce(topic, "x", partition=0)
    txn.abort()


@pytest.mark.parametrize("mend", ["--alter", "--delete"])
def test_a_sidecar_that_survived_a_topic_with_more_partitions_is_refused_with_the_remedy(
    log: Log,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    mend: str,
) -> None:
    """Its partitions would take records by key that no partition of the topic can point to."""
    if transport == "mock":
        pytest.skip("topics of librdkafka's mock cluster all have as many partitions")
    monkeypatch.setattr("logtx.coordinator.server.sidecars.CONFIRM_S", 0.2)
    topic = make_topic()
    log.create_topic(sidecar_of(topic), partitions=3, settings={"retention.ms": "-1"})
    txn = producer.begin_transaction(sidecar=True)
    with pytest.raises(UnsupportedTopicError, match=f"{mend} --topic {topic}"):
        txn.produce(topic, "x", "key")
    txn.abort()
    if mend == "--alter":
        log.raise_partitions(topic, 3)
    else:
        log.delete_topic(sidecar_of(topic))
    with producer.begin_transaction(sidecar=True) as txn:
        txn.produce(topic, "x", "key")
    partitions = range(log.partition_count(topic))
    assert values(consumer(topic, *partitions), 1) == [b"x"]


def test_a_rewind_goes_on_in_the_sidecar_where_the_committed_steps_ended(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    """The coordinator keeps no offset in a sidecar: without it, all is read again, and skipped."""
    topic = make_topic()
    committed(producer, topic, *(str(n) for n in range(50)))
    reader = consumer(topic, offsets_storage="transactions")
    found: list[bytes] = []
    for share in (10, 20):
        found += [m.value() for m in reader.consume(share, TIMEOUT_S)]
        with producer.begin_transaction() as txn:
            txn.send_offsets(reader)
    assert len(reader.consume(5, TIMEOUT_S)) == 5
    read = reader.stats()["sidecar_records"]
    reader.rewind()
    found += values(reader, 20)
    assert found == [str(n).encode() for n in range(50)]
    assert reader.stats()["sidecar_records"] == read + 20
