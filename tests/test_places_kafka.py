"""Topics in metadata mode on a real broker: sealed ones, wide ones, and switches under load."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, if not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner, Result

from logtx.benchmarks.failover.fleet import Fleet
from logtx.consumer.consumer import Consumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.integration.blocks import process
from logtx.integration.cli import main as cli
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.testing import Cluster
from logtx.journal.errors import (
    TransactionAbortedError,
    UnknownOutcomeError,
    UnsupportedTopicError,
)
from logtx.journal.keys import TransactionKey
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.modes import Mode
from logtx.journal.places import Placed
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from logtx.journal.reader import JOURNAL_TOPIC, find_fates, journal_partition_of, read_entries
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import PrepareCommit
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from .consumer.logs import nothing_more
from .parameters import slow

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
WAIT_S: Final = 60.0
"""Bounds each wait; a busy machine needs some of it."""
SOON_S: Final = 20.0
"""A take-over and a good deal more: what is sealed in marker mode would wait for ever."""
WIDE: Final = 256
OPEN_TO_ALL: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "",
}
"""Everybody may do everything until an ACL says less."""


class Coordinators:
    """A fleet, as `Cluster` wants it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def start(self) -> None:
        """Starts those that don't run."""
        started = [m for m in self.fleet.members if not m.is_running]
        for member in started:
            member.start()
        for member in started:
            member.await_ready()

    def kill(self, address: str) -> None:
        """Sends SIGKILL."""
        next(m for m in self.fleet.members if m.is_running and m.address == address).kill()

    def addresses(self) -> list[str]:
        """Returns the addresses of those that run."""
        return [m.address for m in self.fleet.members if m.is_running]

    def stop(self) -> None:
        """Kills all."""
        for member in self.fleet.members:
            member.kill()


class World:
    """A broker whose topics can be sealed, two coordinators, and switched topics."""

    def __init__(self, kafka: LocalKafka, directory: Path) -> None:
        self.kafka = kafka
        self.log = KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})
        self.fleet = Fleet(self.log, directory, 2, "--journal-partitions", "2")
        self.cluster = Cluster(self.log, Coordinators(self.fleet), delete_topics=False)
        self._prepared: dict[int, list[str]] = {}
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def prepare(self, partition_counts: Sequence[int]) -> None:
        """Makes topics in metadata mode for `placed`. A switch waits until no broker can be behind
        about the topic, so all are switched at the same time."""
        topics = [self.cluster.topic(count) for count in partition_counts]
        with ThreadPoolExecutor(len(topics)) as at_once:
            list(at_once.map(self._switch, topics))
        for topic, count in zip(topics, partition_counts, strict=True):
            self._prepared.setdefault(count, []).append(topic)

    def placed(self, partitions: int = 1) -> str:
        """Returns an unused topic in metadata mode."""
        if not self._prepared.get(partitions):
            self.prepare([partitions])
        return self._prepared[partitions].pop()

    def _switch(self, topic: str) -> None:
        admin = AdminQueries(self.log, timeout_s=WAIT_S)
        group = DEFAULT_TRANSACTION_GROUP
        try:
            admin.set_topic_mode(topic, Mode.METADATA, transaction_group=group, timeout_s=WAIT_S)
        finally:
            admin.close()

    def set_mode(self, topic: str, mode: Mode) -> None:
        """Switches a topic by the command line."""
        shown = self.command(
            *("topics", "set-mode", topic, "--mode", mode, "--json"),
            *("--transaction-group", DEFAULT_TRANSACTION_GROUP),
        )
        [found] = shown["topics"]
        assert (found["mode"], found["published"]) == (mode, True)

    def run(self, *arguments: str) -> Result:
        """Runs `logtx`."""
        servers = ("--bootstrap-servers", self.log.bootstrap_servers)
        return CliRunner().invoke(cli.app, [*arguments, *servers])

    def command(self, *arguments: str) -> Any:
        """Runs `logtx`; returns what it printed as JSON."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def unfinished(self, topic: str) -> dict[str, str]:
        """Returns TxId → state of `logtx txn list`, of transactions that write to a topic."""
        found = self.command("txn", "list", "--json")["transactions"]
        return {
            t["txid"]: t["state"]
            for t in found
            if any(name.startswith(f"{topic}[") for name in t["partitions"])
        }

    # ---- seals ----------------------------------------------------------------------------------

    def seal(self, topic: str, how: str) -> None:
        """Makes a topic refuse writes, by an ACL or by a setting. Returns when it does."""
        if how == "acl":
            self._acls(topic, create=True)
            wanted = KafkaError.TOPIC_AUTHORIZATION_FAILED
        else:
            self._limit(topic, "1")
            wanted = KafkaError.MSG_SIZE_TOO_LARGE
        self.until(lambda: self._write_says(topic) == wanted)

    def unseal(self, topic: str, how: str) -> None:
        """Lets a topic take writes again."""
        if how == "acl":
            self._acls(topic, create=False)
        else:
            self._limit(topic, "1048588")
        self.until(lambda: self._write_says(topic) is None)

    def _acls(self, topic: str, *, create: bool) -> None:
        rules = [
            (
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                "User:ANONYMOUS",
                "*",
                operation,
                permission,
            )
            for operation, permission in (
                (AclOperation.ALL, AclPermissionType.ALLOW),
                (AclOperation.WRITE, AclPermissionType.DENY),
            )
        ]
        futures: Iterable[Future[Any]] = (
            self._admin.create_acls([AclBinding(*each) for each in rules]).values()
            if create
            else self._admin.delete_acls([AclBindingFilter(*each) for each in rules]).values()
        )
        for future in futures:
            future.result(WAIT_S)

    def _limit(self, topic: str, max_bytes: str) -> None:
        self.set_setting(topic, "max.message.bytes", max_bytes)

    def set_setting(self, topic: str, name: str, value: str) -> None:
        """Changes a setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(WAIT_S)

    def _write_says(self, topic: str) -> int | None:
        """Writes a probe, which readers here pass over. Returns the error's code, or None."""
        told: list[KafkaError | None] = []
        producer = self.log.producer({"enable.idempotence": True, "linger.ms": 0})

        def delivered(error: KafkaError | None, _message: Message) -> None:
            told.append(error)

        producer.produce(topic, PROBE, None, 0, on_delivery=delivered)
        assert producer.flush(WAIT_S) == 0
        [error] = told
        return None if error is None else error.code()

    # ---- coordinators ---------------------------------------------------------------------------

    def await_finished(self, txid: TxId, timeout_s: float = WAIT_S) -> None:
        """Waits until the coordinator says that a transaction is committed and finished."""
        asked = self.cluster.producer()
        self.until(lambda: asked.outcome(txid).state is State.COMMITTED, timeout_s)

    def kill_owner(self) -> None:
        """Kills the owner of the home (SIGKILL)."""
        self.cluster.kill_coordinator(DEFAULT_TRANSACTION_GROUP)

    @staticmethod
    def until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Waits until something holds, for a bounded time."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def close(self) -> None:
        """Ends all that runs."""
        self.cluster.close()


PROBE: Final = b"probe"
PLAIN: Final = b"plain-"
"""Begins the values of plain records."""


class Reader:
    """A consumer, and what it delivered: (topic, partition) → values in order."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.found: dict[tuple[str, int], list[bytes]] = {}

    @property
    def values(self) -> list[bytes]:
        """All values; their order over partitions tells nothing."""
        return [value for values in self.found.values() for value in values]

    def poll(self) -> None:
        """Takes in what is there."""
        for message in self.consumer.consume(1_000, 0.02):
            self.take(message)

    def take(self, message: Message) -> None:
        """Takes in a record."""
        assert message.error() is None, message.error()
        topic, partition, value = message.topic(), message.partition(), message.value()
        assert isinstance(topic, str)
        assert isinstance(partition, int)
        assert isinstance(value, bytes)
        if value != PROBE:
            self.found.setdefault((topic, partition), []).append(value)


class WholeReader(Reader):
    """The same, by whole transactions."""

    torn = 0

    def poll(self) -> None:
        """Takes in the transactions that are there, a few at most."""
        until_s = time.monotonic() + 0.05
        for transaction in self.consumer.transactions(timeout=0.02):
            self.torn += not transaction.complete
            for message in transaction.records:
                self.take(message)
            if time.monotonic() > until_s:
                break


def read_until(readers: Sequence[Reader], wanted: Sequence[bytes], timeout_s: float) -> None:
    """Polls readers until each has what is wanted; none may have anything else, or twice."""
    deadline_s = time.monotonic() + timeout_s
    while any(len(reader.values) < len(wanted) for reader in readers):
        lacking = [sorted(set(wanted) - set(reader.values))[:5] for reader in readers]
        assert time.monotonic() < deadline_s, lacking
        for reader in readers:
            reader.poll()
    for reader in readers:
        assert Counter(reader.values) == Counter(wanted)


def write_own(world: World, topic: str, value: bytes) -> None:
    """Writes a record in a transaction of Kafka's, whose end takes an offset and is not shown."""
    servers = {"bootstrap.servers": world.kafka.bootstrap_servers}
    producer = confluent_kafka.Producer({**servers, "transactional.id": f"own-{topic}"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, value, None, 0)
    producer.commit_transaction(WAIT_S)


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all tests here but those that kill the broker."""
    directory = tmp_path_factory.mktemp("places")
    with LocalKafka(directory, settings=OPEN_TO_ALL, java_options=QUICK_TO_START) as kafka:
        made = World(kafka, tmp_path_factory.mktemp("coordinators"))
        made.prepare([2, *[1] * 11])
        yield made
        made.close()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """All coordinators run, and clients are closed in the end."""
    yield shared_world
    shared_world.cluster.reset()


def begin(world: World, topics: Sequence[str], count: int, name: str) -> list[Transaction]:
    """Begins transactions with two records in each topic, and waits until those are written."""
    producer = world.cluster.producer()
    begun = []
    for number in range(count):
        begun.append(producer.begin_transaction())
        for topic in topics:
            for partition in range(world.log.partition_count(topic)):
                begun[-1].produce(
                    topic, name_of(name, number, topic, partition), partition=partition
                )
    assert producer.flush(WAIT_S) == 0
    return begun


def name_of(name: str, number: int, topic: str, partition: int) -> bytes:
    """Returns the value of a record of `begin`."""
    return f"{name}-{number}-{topic}-{partition}".encode()


def values_of(name: str, count: int, topic: str, partitions: int) -> list[bytes]:
    """Returns the values of the records of `begin` in one topic."""
    return [name_of(name, n, topic, p) for n in range(count) for p in range(partitions)]


# ---- records that Kafka keeps to itself ----------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_placed_behind_records_that_kafka_keeps_to_itself_needs_no_next_record(
    world: World, whole: bool
) -> None:
    topic = world.placed()
    [transaction] = begin(world, [topic], 1, "placed")
    before = world.log.end_offset(topic, 0)
    write_own(world, topic, PLAIN)
    # Kafka writes its marker after it has answered.
    World.until(lambda: world.log.end_offset(topic, 0) == before + 2)
    reader = (WholeReader if whole else Reader)(world.cluster.consumer(topic))
    until_s = time.monotonic() + 1
    while time.monotonic() < until_s:
        reader.poll()
    transaction.commit(WAIT_S)
    written = values_of("placed", 1, topic, 1)
    read_until([reader], written if whole else [PLAIN, *written], SOON_S)
    assert world.log.end_offset(topic, 0) == before + 2, "nothing came behind it"
    fresh = Reader(world.cluster.consumer(topic))
    read_until([fresh], [PLAIN, *written], SOON_S)


# ---- sealed topics ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["acl", pytest.param("setting", marks=pytest.mark.slow)])
def test_transactions_of_a_sealed_topic_are_delivered_at_once_in_metadata_mode_alone(
    world: World, how: str
) -> None:
    cluster = world.cluster
    placed, marked = world.placed(2), cluster.topic(2)
    readers = [
        Reader(cluster.consumer(placed)),
        Reader(cluster.consumer(placed, isolation_level="serializable")),
    ]
    waiting = Reader(cluster.consumer(marked))
    at_once = begin(world, [placed], 3, "a")
    after_failover = begin(world, [placed], 2, "b")
    held_up = begin(world, [marked], 1, "m")
    for topic in (placed, marked):
        world.seal(topic, how)

    for transaction in (*at_once, *held_up):
        assert transaction.commit(WAIT_S).state.commits
    read_until(readers, values_of("a", 3, placed, 2), SOON_S)
    for transaction in at_once:
        world.await_finished(transaction.txid, SOON_S)
    world.kill_owner()
    for transaction in after_failover:
        assert transaction.commit(WAIT_S).state.commits
    wanted = [*values_of("a", 3, placed, 2), *values_of("b", 2, placed, 2)]
    read_until(readers, wanted, SOON_S)
    for transaction in after_failover:
        world.await_finished(transaction.txid, SOON_S)
    readers.append(Reader(cluster.consumer(placed)))
    readers.append(Reader(cluster.consumer(placed, isolation_level="serializable")))
    read_until(readers, wanted, SOON_S)
    assert all(reader.found == readers[0].found for reader in readers)

    waiting.poll()
    assert waiting.values == []
    assert nothing_more(waiting.consumer)
    assert world.unfinished(placed) == {}
    assert world.unfinished(marked) == {str(held_up[0].txid): "committing"}
    # It is the seal that held it up.
    world.unseal(marked, how)
    read_until([waiting], values_of("m", 1, marked, 2), WAIT_S)


def test_cut_over_a_transaction_spans_the_sealed_topic_and_its_successor(world: World) -> None:
    old, new = world.placed(), world.placed()
    reader = Reader(world.cluster.consumer(old, new))
    spanning = begin(world, [old], 3, "s")
    world.seal(old, "acl")
    for number, transaction in enumerate(spanning):
        transaction.produce(new, name_of("s", number, new, 0), partition=0)
        assert transaction.commit(WAIT_S).state.commits
    after = begin(world, [new], 2, "n")
    for transaction in after:
        assert transaction.commit(WAIT_S).state.commits
    spanned = [v for topic in (old, new) for v in values_of("s", 3, topic, 1)]
    wanted = [*spanned, *values_of("n", 2, new, 1)]
    read_until([reader], wanted, SOON_S)
    late = Reader(world.cluster.consumer(old, new, isolation_level="serializable"))
    read_until([late], wanted, SOON_S)
    in_order = {
        (old, 0): values_of("s", 3, old, 1),
        (new, 0): [*values_of("s", 3, new, 1), *values_of("n", 2, new, 1)],
    }
    for each in (reader, late):
        assert {k: each.found[k] for k in in_order} == in_order


def others(world: World) -> tuple[str, TransactionKey]:
    """Returns a transaction group and a transaction key of another journal partition than the
    home's."""
    count = world.log.partition_count(JOURNAL_TOPIC)
    home = journal_partition_of(DEFAULT_TRANSACTION_GROUP, count)

    def is_other(name: str) -> bool:
        return journal_partition_of(name, count) != home

    names = [f"w{n}-{uuid.uuid4().hex[:8]}" for n in range(32)]
    group = next(name for name in names if is_other(name))
    keys = (TransactionKey("default", name) for name in names)
    return group, next(key for key in keys if is_other(key.name))


@pytest.mark.parametrize("dies", ["home", *slow(["nobody", "other"])])
def test_cut_over_with_transactions_of_other_groups_and_keys_in_flight(
    world: World, dies: str
) -> None:
    """The old topic takes no writes any more. Whoever wrote there before commits, and is
    delivered, in one order by all readers, whatever owner is killed in between."""
    old, new = world.placed(), world.placed()
    readers = [Reader(world.cluster.consumer(old, new))]
    group, key = others(world)
    servers = {"bootstrap.servers": world.log.bootstrap_servers}
    producers = {
        "own": world.cluster.producer(),
        "group": world.cluster.producer(transaction_group=group),
        "key": Producer({**servers, "transaction.key": key.key}),
    }
    begun: list[tuple[str, Transaction]] = []
    for number, (name, producer) in enumerate(producers.items()):
        for turn in range(1 if name == "key" else 2):
            transaction = producer.begin_transaction()
            transaction.produce(old, name_of(name, turn, old, 0), partition=0)
            begun.append((name_of(name, turn, new, 0).decode(), transaction))
        assert producer.flush(WAIT_S) == 0, number
    world.seal(old, "acl")
    end = world.log.end_offset(old, 0)
    half = len(begun) // 2
    for number, (name, transaction) in enumerate(begun):
        transaction.produce(new, name.encode(), partition=0)
        if number == half and dies != "nobody":
            world.cluster.kill_coordinator(DEFAULT_TRANSACTION_GROUP if dies == "home" else group)
        assert transaction.commit(WAIT_S).state.commits
    for _, transaction in begun:
        world.await_finished(transaction.txid, SOON_S)
    assert world.log.end_offset(old, 0) == end
    counts = {"own": 2, "group": 2, "key": 1}
    wanted = [v for t in (old, new) for n, c in counts.items() for v in values_of(n, c, t, 1)]
    read_until(readers, wanted, SOON_S)
    late = Reader(world.cluster.consumer(old, new))
    read_until([late], wanted, SOON_S)
    assert late.found == readers[0].found
    assert world.unfinished(old) == {}
    producers["key"].close()


# ---- switches under load ------------------------------------------------------------------------


class Load(threading.Thread):
    """Writes plain records, and transactions that commit or abort, until it is stopped."""

    def __init__(self, world: World, topic: str, partitions: int, pause_s: float) -> None:
        super().__init__(name="load")
        self._world, self._topic, self._partitions = world, topic, partitions
        self._pause_s = pause_s
        self._producer = world.cluster.producer()
        self._plainly = world.cluster.producer()
        self._stopping = threading.Event()
        self._undecided: deque[tuple[Transaction, Future[Any], int]] = deque()
        self.committed: list[bytes] = []
        self.plain: list[bytes] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Writes; a failure is raised by `stop`."""
        try:
            while not self._stopping.is_set():
                self._write(len(self.plain))
            while self._undecided:
                self._decided()
            assert self._plainly.flush(WAIT_S) == 0
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.failure = error

    def stop(self) -> list[bytes]:
        """Returns what must be delivered."""
        self._stopping.set()
        self.join(3 * WAIT_S)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        return [*self.committed, *self.plain]

    def _write(self, number: int) -> None:
        transaction = self._producer.begin_transaction()
        for partition in range(self._partitions):
            transaction.produce(self._topic, self._value(number, partition), partition=partition)
        partition = number % self._partitions
        self.plain.append(PLAIN + b"%d" % number)
        self._plainly.produce(self._topic, self.plain[-1], partition=partition)
        aborts = number % 5 == 4
        end = transaction.abort_async() if aborts else transaction.commit_async()
        self._undecided.append((transaction, end, number))
        if len(self._undecided) > LOAD_IN_FLIGHT:
            self._decided()
        if number % LOAD_AT_ONCE == 0:
            time.sleep(self._pause_s)

    def _decided(self) -> None:
        transaction, end, number = self._undecided.popleft()
        try:
            committed = end.result(WAIT_S).state.commits
        except TransactionAbortedError:
            committed = False
        except UnknownOutcomeError:
            committed = transaction.commit(WAIT_S).state.commits
        if committed:
            self.committed += [self._value(number, p) for p in range(self._partitions)]

    @staticmethod
    def _value(number: int, partition: int) -> bytes:
        return b"t%d-%d" % (number, partition)


LOAD_IN_FLIGHT: Final = 16
LOAD_AT_ONCE: Final = 8
"""Transactions without a pause in between, so that some are in flight whatever happens."""
LOAD_PAUSE_S: Final = 0.03
"""After those, so that readers of a busy machine keep up."""


class Copier(threading.Thread):
    """Copies committed records to another topic, by `process`."""

    def __init__(self, world: World, source: str, sink: str, group: str) -> None:
        super().__init__(name="copier")
        self._sink = sink
        self._consumer = world.cluster.consumer(
            source, offsets_storage="transactions", group_id=group
        )
        self._producer = world.cluster.producer()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Copies until `stopping` is set."""
        try:
            for block in process(self._consumer, self._producer, stop=self.stopping, in_flight=2):
                for message in block:
                    value = message.value()
                    assert isinstance(value, bytes)
                    block.produce(self._sink, value, partition=0)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.failure = error

    def stop(self) -> None:
        """Ends it. Raises what ended it before."""
        self.stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive()
        self._consumer.close()  # The others get its partitions.
        if self.failure is not None:
            raise self.failure


def poll_for(readers: Sequence[Reader], seconds: float) -> None:
    """Polls all readers for some time."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for reader in readers:
            reader.poll()


def beside_polling(readers: Sequence[Reader], work: Callable[[], object]) -> None:
    """Does something in another thread, while readers are polled here."""
    with ThreadPoolExecutor(1) as other:
        done = other.submit(work)
        deadline_s = time.monotonic() + 3 * WAIT_S
        while not done.done():
            assert time.monotonic() < deadline_s
            poll_for(readers, 0.05)
        done.result()


def read_under_load(
    world: World,
    events: Sequence[Callable[[str], object]],
    pause_s: float = LOAD_PAUSE_S,
    *,
    members: bool = False,
) -> None:
    """Lets events happen to a topic that is written and read. Nothing may be lost or doubled, and
    all readers must see one order.

    Args:
        world: where it happens.
        events: each is given the topic.
        pause_s: the load's pauses.
        members: whether a second worker joins the one that copies before each event, and leaves
            behind it.
    """
    partitions = 2
    topic, sink = world.cluster.topic(partitions), world.placed()
    readers = [Reader(world.cluster.consumer(topic)) for _ in range(2)]
    serial = Reader(world.cluster.consumer(topic, isolation_level="serializable"))
    whole = WholeReader(world.cluster.consumer(topic))
    copied = Reader(world.cluster.consumer(sink))
    copy = partial(Copier, world, topic, sink, f"copiers-of-{topic}")
    copier, load = copy(), Load(world, topic, partitions, pause_s)
    try:
        copier.start()
        load.start()
        polled = [*readers, serial, whole, copied]
        poll_for(polled, 0.5)
        for event in events:
            joined = copy() if members else None
            if joined is not None:
                joined.start()
            beside_polling(polled, partial(event, topic))
            if joined is not None:
                beside_polling(polled, joined.stop)
            poll_for(polled, 0.5)
    finally:
        wanted = load.stop()
    try:
        read_until([*readers, copied], wanted, 2 * WAIT_S)
        read_until([serial, whole], load.committed, WAIT_S)
    finally:
        copier.stop()
    late = Reader(world.cluster.consumer(topic))
    read_until([late], wanted, WAIT_S)
    assert all(reader.found == late.found for reader in readers)
    in_transactions = {
        key: [v for v in values if not v.startswith(PLAIN)] for key, values in late.found.items()
    }
    assert serial.found == in_transactions
    assert whole.found == in_transactions
    assert whole.torn == 0
    assert nothing_more(copied.consumer)


def there_and_back(world: World) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Returns what switches a topic to metadata mode, and what switches it back to markers."""
    return (
        lambda topic: world.set_mode(topic, Mode.METADATA),
        lambda topic: world.set_mode(topic, Mode.MARKERS),
    )


def test_a_topic_is_switched_there_and_back_under_load(world: World) -> None:
    read_under_load(world, [*there_and_back(world)], pause_s=0.3)


@pytest.mark.slow
def test_a_topic_that_is_compacted_after_its_switch_keeps_what_is_decided(world: World) -> None:
    topic = world.placed()
    reader, producer = Reader(world.cluster.consumer(topic)), world.cluster.producer()
    decided: list[bytes] = []

    def is_refused() -> bool:
        value = b"v%d" % len(decided)
        try:
            with producer.begin_transaction() as transaction:
                transaction.produce(topic, value, value, partition=0)
        except UnsupportedTopicError:
            return True
        decided.append(value)
        return False

    assert not is_refused()
    world.set_setting(topic, "cleanup.policy", "compact")
    world.until(is_refused)
    back = world.run("topics", "set-mode", topic, "--mode", "markers")
    assert isinstance(back.exception, UnsupportedTopicError)
    world.set_setting(topic, "cleanup.policy", "delete")
    world.until(lambda: not is_refused())
    read_until([reader], decided, WAIT_S)


@pytest.mark.slow
def test_members_join_and_leave_while_a_topic_is_switched(world: World) -> None:
    there, back = there_and_back(world)
    read_under_load(world, [there, back, there], members=True)


@pytest.mark.slow
def test_a_rule_switches_what_exists_and_what_comes_under_load(world: World) -> None:
    def by_rule(mode: Mode) -> Callable[[str], None]:
        def switch(topic: str) -> None:
            world.command(
                *("topics", "set-mode", f"{topic}*", "--mode", mode, "--json"),
                *("--transaction-group", DEFAULT_TRANSACTION_GROUP),
            )
            assert world.command("topics", "describe", topic, "--json")["mode"] == mode

        return switch

    def create(topic: str) -> None:
        """Writes to a topic that comes later, beside the other, until the rule has switched it."""
        later = f"{topic}-later"
        world.log.create_topic(later, partitions=1)
        reader, producer = Reader(world.cluster.consumer(later)), world.cluster.producer()
        written: list[bytes] = []

        def is_switched() -> bool:
            with producer.begin_transaction() as transaction:
                written.append(b"l%d" % len(written))
                transaction.produce(later, written[-1], partition=0)
            return bool(world.command("topics", "describe", later, "--json")["mode"] == "metadata")

        world.until(is_switched)
        assert is_switched(), "one more transaction, which is placed"
        read_until([reader], written, WAIT_S)

    def remove(topic: str) -> None:
        result = world.run("topics", "remove-rule", f"{topic}*")
        assert result.exit_code == 0, result.output

    there, back = by_rule(Mode.METADATA), by_rule(Mode.MARKERS)
    read_under_load(world, [there, create, back, remove])


@pytest.mark.slow
def test_switches_and_kills_of_the_owner_under_load(world: World) -> None:
    def kill(_topic: str) -> None:
        world.kill_owner()
        world.cluster.start_coordinators()

    there, back = there_and_back(world)
    read_under_load(world, [there, kill, back, kill, there, kill, kill, back])


@pytest.mark.slow
def test_the_broker_is_killed_under_load(tmp_path: Path) -> None:
    with LocalKafka(tmp_path / "kafka", java_options=QUICK_TO_START) as kafka:
        (tmp_path / "coordinators").mkdir()
        world = World(kafka, tmp_path / "coordinators")

        def kill(_topic: str) -> None:
            kafka.kill()
            kafka.start()

        try:
            there, back = there_and_back(world)
            read_under_load(world, [there, kill, back, kill, there, kill])
        finally:
            world.close()


# ---- wide transactions --------------------------------------------------------------------------


def placed_by_a_successor(world: World, txid: TxId) -> bool:
    """Returns whether another owner than the one that decided a transaction placed it."""
    partition = txid.partition
    end = world.log.end_offset(JOURNAL_TOPIC, partition)
    valid = EpochFilter()
    decided: tuple[int, int] | None = None
    # From the start: what an entry's owner is worth is known from its OWNER record on.
    for offset, entry in read_entries(world.log, partition, 0, end, timeout_s=WAIT_S):
        if not valid.accept(offset, entry):
            continue
        record = entry.record
        if isinstance(record, PrepareCommit) and record.begin == txid.offset:
            decided = offset, entry.epoch
        if isinstance(record, Placed) and decided is not None and record.upto >= decided[0]:
            return entry.epoch != decided[1]
    raise AssertionError(f"{txid} is not placed")


def kill_between_decision_and_place(world: World, transaction: Transaction) -> bool:
    """Commits, and stops the owner at once; kills it if nothing is placed by then."""
    partition = journal_partition_of(DEFAULT_TRANSACTION_GROUP, 2)
    owner = world.fleet.owner(partition)
    assert transaction.commit(WAIT_S).state.commits
    owner.pause()
    [fate] = find_fates(world.log, [transaction.txid], timeout_s=WAIT_S).values()
    if None not in fate.places.values():
        owner.resume()
        return False
    owner.kill()
    return True


def interrupt_wide_transactions(world: World, kills: int) -> None:
    """Kills the owner so often that `kills` transactions are placed by a successor; each record of
    each transaction must be delivered once."""
    topic = world.placed(WIDE)
    reader = Reader(world.cluster.consumer(topic))
    producer = world.cluster.producer()
    begun = happened = 0
    while happened < kills:
        assert begun < 40 + 10 * kills, "the owner always places before it is stopped"
        transaction = producer.begin_transaction()
        for partition in range(WIDE):
            transaction.produce(topic, name_of("w", begun, topic, partition), partition=partition)
        assert producer.flush(WAIT_S) == 0
        killed = kill_between_decision_and_place(world, transaction)
        begun += 1
        read_until([reader], values_of("w", begun, topic, WIDE), WAIT_S)
        if killed:
            world.cluster.start_coordinators()
            happened += placed_by_a_successor(world, transaction.txid)
    assert nothing_more(reader.consumer)
    again = Reader(world.cluster.consumer(topic))
    read_until([again], values_of("w", begun, topic, WIDE), WAIT_S)
    assert again.found == reader.found


@pytest.mark.slow  # A topic of so many partitions takes a broker half a minute of CPU.
def test_trap_12_a_wide_transaction_is_placed_by_the_successor_of_a_killed_owner(
    world: World,
) -> None:
    interrupt_wide_transactions(world, 1)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_200_wide_transactions_are_placed_by_successors_of_killed_owners(world: World) -> None:
    interrupt_wide_transactions(world, 200)
