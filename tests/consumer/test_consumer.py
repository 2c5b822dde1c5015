"""The Consumer over every transport: delivery, positions, rebalances."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import TopicPartition

from logtx.journal.control import TXID_HEADER

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read

MakeTopic = Callable[..., str]


def test_transactions_come_at_their_marker_and_plain_records_at_their_place(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    first, second = transactions.begin(), transactions.begin()
    transactions.write(first, topic, [b"first-1"])
    transactions.write(second, topic, [b"second-1"])
    transactions.append(topic, [b"plain-1"])
    transactions.write(first, topic, [b"first-2"])
    transactions.mark(second, topic)
    transactions.append(topic, [b"plain-2"])
    transactions.mark(first, topic)
    transactions.transaction(topic, [b"never"], commit=False)
    transactions.append(topic, [b"plain-3"])
    consumer = make_consumer()
    consumer.subscribe([topic])
    assert read(consumer, 6) == [
        *(b"plain-1", b"second-1", b"plain-2"),
        *(b"first-1", b"first-2", b"plain-3"),
    ]
    assert nothing_more(consumer)


def test_read_uncommitted_gives_everything_but_markers(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.transaction(topic, [b"a"])
    transactions.transaction(topic, [b"b"], commit=False)
    transactions.write(transactions.begin(), topic, [b"c"])
    transactions.append(topic, [b"d"])
    consumer = make_consumer(isolation_level="read_uncommitted")
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 4) == [b"a", b"b", b"c", b"d"]
    assert nothing_more(consumer)


def test_an_open_transaction_holds_up_nothing(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"hanging"])
    for number in range(3):
        transactions.transaction(topic, [b"%d" % number])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 3) == [b"0", b"1", b"2"]
    [place] = consumer.position([TopicPartition(topic, 0)])
    assert place.offset == 7
    consumer.commit(asynchronous=False)
    group, log = consumer.group_id, transactions.log
    stored = log.group_offset(group, topic, 0)
    assert stored is not None
    assert stored.offset == 0
    transactions.mark(hanging, topic)
    assert read(consumer, 1) == [b"hanging"]


def test_poll_resumes_exactly_where_commit_said(
    transport: str, transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"h1", b"h2"])
    transactions.transaction(topic, [b"a1", b"a2", b"a3"])
    transactions.append(topic, [b"p1"])
    transactions.mark(hanging, topic)
    transactions.append(topic, [b"p2"])
    wanted = [b"a1", b"a2", b"a3", b"p1", b"h1", b"h2", b"p2"]
    # A broker takes a second to tell each of two consumers who coordinates their group.
    for count in range(0, len(wanted) + 1, 1 if transport == "memory" else 3):
        consumer = make_consumer(enable_auto_commit=False)
        group = consumer.group_id
        consumer.assign([TopicPartition(topic, 0)])
        assert read(consumer, count) == wanted[:count]
        consumer.commit(asynchronous=False)
        consumer.close()
        again = make_consumer(group_id=group)
        again.assign([TopicPartition(topic, 0)])
        assert read(again, len(wanted) - count) == wanted[count:]
        assert nothing_more(again, 0.05)
        again.close()


def test_commit_of_a_message_in_the_middle_of_a_batch(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.transaction(topic, [b"a1", b"a2", b"a3"])
    transactions.append(topic, [b"p1"])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    messages = consumer.consume(4, 10)
    assert len(messages) >= 3  # a transaction's records become deliverable together
    consumer.commit(messages[1], asynchronous=False)
    again = make_consumer(group_id=consumer.group_id, enable_auto_commit=False)
    again.assign([TopicPartition(topic, 0)])
    assert read(again, 2) == [b"a3", b"p1"]


def test_trap_89_what_is_read_aside_holds_o1_until_it_is_delivered(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"before"])
    transactions.transaction(topic, [b"a", b"b", b"c"])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0, 4)])
    assert read(consumer, 1) == [b"a"]
    consumer.commit(asynchronous=False)
    # Whoever deletes what lies below takes nothing of it.
    assert transactions.log.group_offset(consumer.group_id, topic, 0).offset == 1
    again = make_consumer(group_id=consumer.group_id, enable_auto_commit=False)
    again.assign([TopicPartition(topic, 0)])
    assert read(again, 2) == [b"b", b"c"]
    again.commit(asynchronous=False)
    assert transactions.log.group_offset(consumer.group_id, topic, 0).offset == 5


def test_starting_in_the_middle_side_reads_what_lies_before(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    open_one = transactions.begin()
    transactions.write(open_one, topic, [b"o1", b"o2"])
    transactions.transaction(topic, [b"before"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 4)])
    assert nothing_more(consumer, 0.2)
    transactions.write(open_one, topic, [b"o3"])
    transactions.mark(open_one, topic)
    transactions.append(topic, [b"after"])
    assert read(consumer, 4) == [b"o1", b"o2", b"o3", b"after"]
    assert consumer.counters.side_reads == 1


def test_a_malformed_header_is_an_event_in_the_records_place(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"a"])
    transactions.append(topic, [b"bad"], [(TXID_HEADER, b"short")])
    transactions.append(topic, [b"b"], [("trace", b"1")])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 1) == [b"a"]
    event = consumer.poll(10)
    assert event is not None
    error = event.error()
    assert error is not None
    assert f"{topic}[0] offset 1" in error.str()
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"b"
    assert message.headers() == [("trace", b"1")]
    assert consumer.counters.malformed_headers == 1
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == 3
