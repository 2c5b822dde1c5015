"""Consumer groups on a real broker, with each way to rebalance. Traps 18, 24 and 29.

Members join, leave, die and stand still in the middle of transactions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from confluent_kafka import KafkaException, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.integration.local.processes import spawn
from logtx.integration.testing import Cluster
from logtx.journal.position import POSITION_MAX_CHARS, Position
from logtx.journal.state import State

from .consumer.logs import Transactions, nothing_more, read

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
WAIT_S: Final = 90.0
PARTITIONS: Final = 2
TAKEN_OVER_S: Final = 30.0
"""Longest take-over: a group needs 10 s to notice, and twice that on a busy machine. Half of a
transaction's timeout, so that an expiry can't be mistaken for it."""

CLASSIC: Final = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
PROTOCOLS: Final = {
    "eager": {"partition.assignment.strategy": "range", **CLASSIC},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **CLASSIC},
    "consumer": {"group.protocol": "consumer"},
}
each_protocol = pytest.mark.parametrize("protocol", list(PROTOCOLS))


class Members:
    """Processes of `group_worker` in one consumer group, which copy one topic to another."""

    def __init__(self, cluster: Cluster, directory: Path, group: str, protocol: str) -> None:
        self.cluster = cluster
        self.source, self.sink = cluster.topic(PARTITIONS), cluster.topic()
        self.group, self.protocol = group, protocol
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.written: list[bytes] = []
        self.found: list[bytes] = []
        self._reader = cluster.consumer(self.sink)
        self._writer = Transactions(cluster.log)

    def start(
        self, name: str, signals: dict[int, str] | None = None, in_flight: int | None = None
    ) -> None:
        """Starts a member that sends itself these signals before those commits.

        It uses `logtx.process` if `in_flight` is given, else a loop of its own.
        """
        servers = {"bootstrap.servers": self.cluster.bootstrap_servers}
        options = {
            "source": self.source,
            "sink": self.sink,
            "signals": signals or {},
            "in_flight": in_flight,
            "producer": {**servers, "transactional.id": f"{self.group}-{name}"},
            "consumer": {
                **servers,
                **PROTOCOLS[self.protocol],
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "offsets.storage": "transactions",
            },
        }
        command = [sys.executable, "-m", "logtx.tests.group_worker", json.dumps(options)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.running[name] = spawn(command, output=self.directory / name, env=environment)

    def lines(self, name: str) -> list[str]:
        """Returns the lines that a member printed."""
        return (self.directory / name).read_text().splitlines()

    def told(self, name: str, word: str) -> int:
        """Returns how many of a member's lines begin with `word`."""
        return sum(line.startswith(word) for line in self.lines(name))

    def feed(self, count: int) -> None:
        """Writes more input: plain records, in both partitions."""
        for partition in range(PARTITIONS):
            values = [b"%d-%d" % (partition, len(self.written) + n) for n in range(count)]
            self._writer.append(self.source, values, partition=partition)
            self.written += values

    def until(self, condition: Callable[[], Any], *, feeding: bool = False) -> None:
        """Reads the output until a condition holds; if `feeding`, writes more input meanwhile."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            tails = {name: self.lines(name)[-4:] for name in self.running}
            assert time.monotonic() < deadline_s, tails
            if feeding:
                self.feed(BLOCK_AT_ONCE)
            self.found += [m.value() for m in self._reader.consume(1_000, 0.1)]

    def until_all_is_written(self) -> None:
        """Waits until all input is in the output."""
        self.until(lambda: set(self.found) >= set(self.written))

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Sends a signal to a member."""
        self.running[name].send_signal(signum)

    def await_stopped(self, name: str) -> None:
        """Waits until a member that announced it stands still."""
        self.until(lambda: self.told(name, "stands"), feeding=True)
        process = psutil.Process(self.running[name].pid)
        self.until(lambda: process.status() == psutil.STATUS_STOPPED)

    def check(self) -> None:
        """Checks that all input is in the output, once."""
        self.until_all_is_written()
        self.until(lambda: not self._reader.lag()[0].lag)
        assert {v: n for v, n in Counter(self.found).items() if n > 1} == {}
        assert len(self.found) == len(self.written)

    def stop(self) -> None:
        """Kills all members with SIGKILL."""
        for process in self.running.values():
            process.kill()
            process.wait()


BLOCK_AT_ONCE: Final = 20


@pytest.fixture
def members(
    logtx_cluster: Cluster, tmp_path: Path, unique: Callable[[str], str], protocol: str
) -> Iterator[Members]:
    made = Members(logtx_cluster, tmp_path, unique("workers"), protocol)
    yield made
    made.stop()


one_protocol = pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("cooperative", marks=pytest.mark.slow),
        "consumer",
    ],
)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["eager", "cooperative", "consumer"])
def test_trap_24_members_join_leave_die_and_stand_still_and_nothing_is_doubled(
    members: Members,
) -> None:
    members.start("first")
    members.feed(BLOCK_AT_ONCE)
    members.until_all_is_written()

    members.start("leaver")
    members.until(lambda: members.told("leaver", "committed"), feeding=True)
    members.signal("leaver", signal.SIGTERM)
    members.until(lambda: members.told("leaver", "left"), feeding=True)
    members.until_all_is_written()

    # It dies with a block delivered and not committed; its successor reads the block again.
    members.start("victim", {2: "SIGKILL"})
    members.until(lambda: members.running["victim"].poll() is not None, feeding=True)
    members.until_all_is_written()

    # It stands still at the same place, while the others take its partition and go on.
    members.start("zombie", {2: "SIGSTOP"})
    members.await_stopped("zombie")
    members.until_all_is_written()
    assert members.told("zombie", "woke") == 0
    members.signal("zombie", signal.SIGCONT)
    members.until(lambda: members.told("zombie", "failed"), feeding=True)
    members.until(lambda: members.told("zombie", "committed") >= 2, feeding=True)
    assert members.running["first"].poll() is None
    members.check()


@one_protocol
def test_trap_29_the_partitions_of_a_worker_that_stands_still_go_on_at_once_and_it_is_fenced(
    members: Members,
) -> None:
    members.start("live", in_flight=3)
    members.feed(BLOCK_AT_ONCE)
    members.until_all_is_written()
    members.start("zombie", {3: "SIGSTOP"}, in_flight=3)
    members.await_stopped("zombie")
    began_s = time.monotonic()
    members.until_all_is_written()
    # As soon as the group notices: the new holder's claim aborts what the zombie holds, which would
    # expire only after a minute.
    assert time.monotonic() - began_s < TAKEN_OVER_S
    held = next(line for line in members.lines("zombie") if line.startswith("stands")).split()[1]
    asker = members.cluster.producer()
    assert asker.outcome(held).state is State.ABORTED
    redone = members.told("live", "redone")

    worked = members.told("zombie", "worked")
    members.signal("zombie", signal.SIGCONT)
    members.until(lambda: members.told("zombie", "worked") > worked + 3, feeding=True)
    members.check()
    assert members.told("live", "redone") == redone, "the zombie fenced nobody"
    for name in ("live", "zombie"):
        members.signal(name, signal.SIGTERM)
        members.until(lambda name=name: members.told(name, "left"))
    members.check()


def test_serial_order_goes_on_where_a_cooperative_rebalance_takes_a_partition(
    logtx_cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = logtx_cluster.topic(PARTITIONS)
    producer = logtx_cluster.producer()
    wanted: list[list[bytes]] = [[], []]
    for number in range(60):
        with producer.begin_transaction() as txn:
            for index, partition in ((0, number % 2), (1, 0), (2, 1)):
                value = b"%02d-%d" % (number, index)
                txn.produce(topic, value, partition=partition)
                wanted[partition].append(value)
    settings = {
        "group.id": unique("group"),
        "auto.offset.reset": "earliest",
        "isolation.level": "serializable",
        "bootstrap.servers": logtx_cluster.bootstrap_servers,
        **PROTOCOLS["cooperative"],
    }
    with Consumer(settings) as first, Consumer(settings) as second:
        first.subscribe([topic])
        found = [(m.partition(), m.value()) for _ in range(10) for m in first.consume(1, 10)]
        # One order over both partitions; the last transaction is delivered in part.
        numbers = [v[:2] for _, v in found]
        assert (len(found), numbers) == (10, sorted(numbers))
        second.subscribe([topic])
        deadline_s = time.monotonic() + WAIT_S
        while not len(first.assignment()) == len(second.assignment()) == 1:
            assert time.monotonic() < deadline_s
            for each in (first, second):
                found += [(m.partition(), m.value()) for m in each.consume(1, 0.1)]
        found += drain([first, second], 180 - len(found))
        second.close()
        while len(first.assignment()) < PARTITIONS:
            assert time.monotonic() < deadline_s + WAIT_S
            assert first.consume(10, 0.1) == []
        assert nothing_more(first)
    for partition in range(PARTITIONS):
        assert [v for p, v in found if p == partition] == wanted[partition]


def drain(consumers: list[Consumer], count: int) -> list[tuple[int, bytes]]:
    """Returns (partition, value) of the next `count` messages; one thread polls all members."""
    found: list[tuple[int, bytes]] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, found
        found += [(m.partition(), m.value()) for c in consumers for m in c.consume(100, 0.05)]
    return found


@each_protocol
def test_trap_18_a_position_in_a_transactions_middle_moves_with_its_partition(
    logtx_cluster: Cluster, protocol: str, unique: Callable[[str], str]
) -> None:
    topic = logtx_cluster.topic(PARTITIONS)
    written = Transactions(logtx_cluster.log)
    hanging = [written.begin() for _ in range(PARTITIONS)]
    for partition, owner in enumerate(hanging):
        written.write(owner, topic, [b"h1", b"h2"], partition)
        written.transaction(topic, [b"t%d" % n for n in range(6)], partition)
        written.append(topic, [b"plain"], partition=partition)
    wanted = [b"t%d" % n for n in range(6)] + [b"plain"]
    settings = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    settings |= PROTOCOLS[protocol]
    servers = {"bootstrap.servers": logtx_cluster.bootstrap_servers}
    with Consumer({**servers, **settings}) as first, Consumer({**servers, **settings}) as second:
        first.subscribe([topic])
        found: list[tuple[int, bytes]] = []
        while len({partition for partition, _ in found}) < PARTITIONS or len(found) < 5:
            found += [(m.partition(), m.value()) for m in first.consume(2, 10)]
        assert len(found) < 2 * len(wanted)
        assert first.stats()["pending_transactions"] == PARTITIONS

        second.subscribe([topic])
        deadline_s = time.monotonic() + WAIT_S
        first.pause(first.assignment())  # it delivers nothing more of what it has
        while not second.assignment():
            assert time.monotonic() < deadline_s
            found += [(m.partition(), m.value()) for m in first.consume(1, 0.05)]
            found += [(m.partition(), m.value()) for m in second.consume(1, 0.05)]
        deadline_s = time.monotonic() + WAIT_S
        while not len(first.assignment()) == len(second.assignment()) == 1:
            assert time.monotonic() < deadline_s
            found += [(m.partition(), m.value()) for c in (first, second) for m in c.consume(1, 0)]
        first.resume(first.assignment())
        found += drain([first, second], 2 * len(wanted) - len(found))
        for partition in range(PARTITIONS):
            assert [v for p, v in found if p == partition] == wanted
        for member in (first, second):
            assert member.stats()["pending_transactions"] == 1
            [held] = member.held_back()
            assert held.txid == hanging[held.partition]

        second.close()
        deadline_s = time.monotonic() + WAIT_S
        while len(first.assignment()) < PARTITIONS:
            assert time.monotonic() < deadline_s
            assert first.consume(10, 0.05) == []
        for partition, owner in enumerate(hanging):
            written.mark(owner, topic, partition)
        late = drain([first], 2 * PARTITIONS)
        assert sorted(late) == [(0, b"h1"), (0, b"h2"), (1, b"h1"), (1, b"h2")]
        assert nothing_more(first)
        assert first.stats()["pending_transactions"] == 0


def test_a_position_as_long_as_kafka_takes(
    logtx_cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = logtx_cluster.topic()
    written = Transactions(logtx_cluster.log)
    values = [b"1", b"2", b"3"]
    written.transaction(topic, values)
    place = TopicPartition(topic, 0)
    group = unique("group")
    consumer = logtx_cluster.consumer(group_id=group, enable_auto_commit=False)
    consumer.assign([place])
    read(consumer, 2)
    # As if the reader had met 500 journals: more than fits.
    [now] = consumer.position([place])
    position = Position.from_metadata(now.offset, now.metadata)
    met = {(n, 2**48 - 1 - n): 2**62 + n for n in range(500)}
    crowded = Position(o1=0, o2=position.o2, o3=position.o3, met={**met, **position.met})
    text = crowded.to_metadata()
    assert POSITION_MAX_CHARS - 40 < len(text) <= POSITION_MAX_CHARS
    at = TopicPartition(topic, 0, crowded.o1, text)
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()
    stored = logtx_cluster.log.group_offset(group, topic, 0)
    assert stored is not None
    assert (stored.offset, stored.metadata) == (0, text)
    again = logtx_cluster.consumer(group_id=group, enable_auto_commit=False)
    again.assign([place])
    assert read(again, 1) == values[2:]

    # Kafka's own bound is 4096 bytes: the rule stays below it.
    kafka = logtx_cluster.log.consumer({"group.id": unique("group")})
    fits = TopicPartition(topic, 0, 0, "x" * 4095)
    kafka.commit(offsets=[fits], asynchronous=False)
    with pytest.raises(KafkaException, match="metadata"):
        kafka.commit(offsets=[TopicPartition(topic, 0, 0, "x" * 4096)], asynchronous=False)
    kafka.close()
