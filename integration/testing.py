"""Gives tests a log with coordinators, and the events that tests want to cause: a transaction that
stays open, a record that comes late, a coordinator that dies.

The pytest plugin gives these as fixtures; `docs/testing.md` shows examples.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self

from confluent_kafka import KafkaError, Message

from ..consumer.consumer import Consumer
from ..consumer.share_consumer import ShareConsumer
from ..coordinator.embedded import EmbeddedCoordinator
from ..coordinator.protocol.checkpoint import Checkpoint
from ..coordinator.service import CoordinatorConfig
from ..journal.control import TXID_HEADER
from ..journal.errors import BrokerError, CoordinatorNotAvailableError, LogtxError
from ..journal.logs.interface import Log, LogProducer
from ..journal.logs.kafka import KafkaLog
from ..journal.logs.memory.broker import SCHEME
from ..journal.logs.memory.log import MemoryLog
from ..journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, journal_partition_of
from ..journal.txid import TxId
from ..producer.producer import Producer
from ..producer.transaction import Transaction
from .local.processes import CoordinatorChild

_LOG = logging.getLogger(__name__)
JOURNAL_PARTITIONS: Final = 8
"""Partitions of the journal on Kafka. With fewer of them than coordinators, some own none; more of
them start more slowly."""
WAIT_S: Final = 30.0
"""Longest wait for records and aborts: a smaller value fails tests on slow machines, a larger one
reports a real failure later."""
PUBLISHED_S: Final = 10.0
"""How long `Cluster.owner` waits for a new owner to publish its address."""
OPEN_S: Final = 600.0
"""Timeout of the transactions of `Cluster.open_transaction`: longer than a test takes."""


class Coordinators(Protocol):
    """Several coordinators of one log, which can be killed and started again."""

    def start(self) -> None:
        """Starts the coordinators that don't run, and waits until all of them serve."""

    def kill(self, address: str) -> None:
        """Ends the coordinator at this address."""

    def addresses(self) -> list[str]:
        """Returns the addresses (host:port) of the running coordinators."""

    def stop(self) -> None:
        """Ends all coordinators."""


class EmbeddedCoordinators:
    """Runs coordinators in threads of this process, which start quickly."""

    def __init__(self, servers: str, count: int, *, journal_partitions: int) -> None:
        config = CoordinatorConfig(
            bootstrap_servers=servers,
            listen="127.0.0.1:0",
            journal_partitions=journal_partitions,
        )
        self._all = [EmbeddedCoordinator(config) for _ in range(count)]
        self._running: list[EmbeddedCoordinator] = []

    def start(self) -> None:
        """Starts the coordinators that don't run."""
        for each in self._all:
            if each not in self._running:
                each.start()
                self._running.append(each)

    def kill(self, address: str) -> None:
        """Stops one coordinator; it gives what it serves to the others, if there are any."""
        found = next(each for each in self._running if each.address == address)
        self._running.remove(found)
        found.stop()

    def addresses(self) -> list[str]:
        """Returns the addresses of the running coordinators."""
        return [each.address for each in self._running]

    def stop(self) -> None:
        """Stops all coordinators."""
        while self._running:
            self._running.pop().stop()


class CoordinatorProcesses:
    """Runs `logtx coordinator` in child processes, so that `kill` is a real SIGKILL."""

    def __init__(self, servers: str, count: int, *, directory: Path) -> None:
        self._all = [
            CoordinatorChild(
                f"coordinator-{n}",
                directory / f"coordinator-{n}.log",
                servers,
                *("--journal-partitions", str(JOURNAL_PARTITIONS)),
            )
            for n in range(count)
        ]

    def start(self) -> None:
        """Starts the coordinators that don't run, all at the same time.

        Raises:
            ProcessDiedError: a coordinator did not start. It holds the last lines of its log.
        """
        started = [each for each in self._all if not each.is_running]
        for each in started:
            each.start()
        for each in started:
            each.await_ready()

    def kill(self, address: str) -> None:
        """Sends SIGKILL to the coordinator at this address."""
        next(each for each in self._all if each.is_running and each.address == address).kill()

    def addresses(self) -> list[str]:
        """Returns the addresses of the running coordinators."""
        return [each.address for each in self._all if each.is_running]

    def stop(self) -> None:
        """Sends SIGKILL to all coordinators; the log belongs to a test, so it needs no care."""
        for each in self._all:
            each.kill()


class Cluster:
    """A log with coordinators, and clients that are closed after the test.

    In the settings of `producer` and `consumer`, ``_`` stands for ``.``.
    """

    def __init__(self, log: Log, coordinators: Coordinators, *, delete_topics: bool) -> None:
        """Starts the coordinators.

        Args:
            log: the log; `close` closes it.
            coordinators: the coordinators, not started yet.
            delete_topics: delete the test's topics in `reset`.
        """
        self.log = log
        self.bootstrap_servers = log.bootstrap_servers
        self._coordinators = coordinators
        self._delete_topics = delete_topics
        self._topics: list[str] = []
        self._clients: list[Producer | Consumer | ShareConsumer] = []
        self._open: list[Transaction] = []
        self._opener: Producer | None = None
        self._raw: LogProducer | None = None
        coordinators.start()

    @classmethod
    def in_memory(cls) -> Self:
        """Makes a log in this process with an embedded coordinator, within milliseconds.

        Needs neither Kafka nor Java.
        """
        servers = f"{SCHEME}{uuid.uuid4().hex}"
        coordinators = EmbeddedCoordinators(servers, 1, journal_partitions=1)
        return cls(MemoryLog.named(servers), coordinators, delete_topics=False)

    @classmethod
    def on_kafka(
        cls, servers: str, *, coordinators: int, directory: Path | None, delete_topics: bool
    ) -> Self:
        """Starts coordinators for a Kafka cluster that runs already.

        Args:
            servers: ``bootstrap.servers``.
            coordinators: number of coordinators.
            directory: for log files of coordinator processes; None runs coordinators in threads.
            delete_topics: delete the test's topics in `reset`.
        """
        started: Coordinators = (
            EmbeddedCoordinators(servers, coordinators, journal_partitions=JOURNAL_PARTITIONS)
            if directory is None
            else CoordinatorProcesses(servers, coordinators, directory=directory)
        )
        log = KafkaLog({"bootstrap.servers": servers})
        return cls(log, started, delete_topics=delete_topics)

    # --- topics and clients

    def topic(
        self,
        partitions: int = 1,
        *,
        name: str = "test",
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic `<name>-<random>`, ready for use. Returns its name."""
        topic = f"{name}-{uuid.uuid4().hex[:12]}"
        self.log.create_topic(topic, partitions=partitions, settings=config)
        self._topics.append(topic)
        return topic

    def producer(self, **settings: Any) -> Producer:
        """Makes a producer, by default with a new ``transactional.id``; closed after the test."""
        name = {"transactional.id": f"test-{uuid.uuid4().hex[:12]}"}
        made = Producer({**name, **self._dotted(settings)})
        self._clients.append(made)
        return made

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """Makes a consumer of these topics, by default in a new group and from the first offset;
        closed after the test."""
        defaults = {"group.id": f"test-{uuid.uuid4().hex[:12]}", "auto.offset.reset": "earliest"}
        made = Consumer({**defaults, **self._dotted(settings)})
        self._clients.append(made)
        if topics:
            made.subscribe(list(topics))
        return made

    def share_consumer(
        self, *topics: str, producer: Producer | None = None, **settings: Any
    ) -> ShareConsumer:
        """Makes a consumer of a queue of these topics, by default of a new one that begins with the
        first message; closed after the test."""
        defaults = {"group.id": f"test-{uuid.uuid4().hex[:12]}", "auto.offset.reset": "earliest"}
        made = ShareConsumer({**defaults, **self._dotted(settings)}, producer=producer)
        self._clients.append(made)
        if topics:
            made.subscribe(list(topics))
        return made

    def _dotted(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap_servers, **dotted}

    # --- what goes wrong

    def open_transaction(
        self,
        topic: str,
        records: Iterable[bytes | str] = (b"open",),
        *,
        partition: int = 0,
        timeout: float = OPEN_S,
    ) -> Transaction:
        """Begins a transaction, writes these records in it, and leaves it open.

        The records are in the log when this returns. The transaction stays open until its `commit`
        or `abort`, or until the test is over.

        Args:
            topic: where the records go.
            records: their values.
            partition: its number.
            timeout: seconds until the coordinator aborts it.

        Raises:
            BrokerError: a record was not acknowledged.
        """
        if self._opener is None:
            self._opener = Producer(
                self._dotted({"transactional_id": f"open-{uuid.uuid4().hex[:12]}"})
            )
        transaction = self._opener.begin_transaction(timeout=timeout)
        self._open.append(transaction)
        for value in records:
            transaction.produce(topic, value, partition=partition)
        if self._opener.flush(WAIT_S):
            raise BrokerError(f"{transaction.txid}: records were not acknowledged in {WAIT_S} s")
        return transaction

    def late_record(
        self,
        txid: TxId | str,
        topic: str,
        value: bytes = b"late",
        *,
        key: bytes | None = None,
        partition: int = 0,
    ) -> int:
        """Appends a record of this transaction past every check, as a writer does that was paused
        while its transaction ended.

        No consumer delivers the record: the transaction has ended, or its producer does not know of
        the record, so its marker leaves it out.

        Returns:
            The offset of the record.

        Raises:
            BrokerError: the record was not acknowledged.
        """
        raw = (TxId.parse(txid) if isinstance(txid, str) else txid).to_bytes()
        if self._raw is None:
            self._raw = self.log.producer({"linger.ms": 0, "enable.idempotence": True})
        told: list[tuple[KafkaError | None, int | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            told.append((error, message.offset()))

        headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, raw)]
        self._raw.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)
        self._raw.flush(WAIT_S)
        if not told or told[0][0] is not None or told[0][1] is None:
            raise BrokerError(f"a late record of {txid} was not acknowledged: {told}")
        return told[0][1]

    def owner(self, transaction_group: str = DEFAULT_TRANSACTION_GROUP) -> str:
        """Returns the address that the coordinator of a transaction group has published.

        Raises:
            CoordinatorNotAvailableError: none of this cluster's coordinators has published its
                address within `PUBLISHED_S`.
        """
        count = self.log.topic_info(JOURNAL_TOPIC).partition_count
        partition = journal_partition_of(transaction_group, count)
        ours = self._coordinators.addresses()
        deadline_s = time.monotonic() + PUBLISHED_S
        while True:
            found = Checkpoint.from_group_offset(
                self.log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition)
            )
            if found is not None and found.address in ours:
                return found.address
            # While the partition moves, the former owner's address stays there a moment longer.
            if not ours or time.monotonic() > deadline_s:
                raise CoordinatorNotAvailableError(
                    f"transaction group {transaction_group!r} is served by "
                    f"{found.address if found else 'nobody'}, and our coordinators are {ours}"
                )
            time.sleep(0.05)

    def kill_coordinator(self, transaction_group: str = DEFAULT_TRANSACTION_GROUP) -> str:
        """Ends the coordinator that serves a transaction group. Returns its address.

        A coordinator process gets SIGKILL; one in a thread stops, and gives away what it serves.
        Other coordinators take over, if there are any; else all requests wait for
        `start_coordinators`.

        Raises:
            CoordinatorNotAvailableError: as for `owner`.
        """
        address = self.owner(transaction_group)
        self._coordinators.kill(address)
        return address

    def start_coordinators(self) -> None:
        """Starts the coordinators that were killed, and waits until they are ready."""
        self._coordinators.start()

    # --- the end

    def reset(self) -> None:
        """Cleans up after a test: starts killed coordinators, aborts open transactions, closes
        clients, deletes topics."""
        self._coordinators.start()
        for transaction in self._open:
            if not transaction.is_decided:
                try:
                    transaction.abort(WAIT_S)
                except LogtxError as error:
                    _LOG.info("test_transaction_not_aborted error=%s", error)
        self._open.clear()
        # The last first: a queue's consumer may write dead letters by a producer when it closes.
        for client in reversed(self._clients):
            client.close()
        self._clients.clear()
        if self._delete_topics:
            for topic in self._topics:
                self.log.delete_topic(topic)
        self._topics.clear()

    def close(self) -> None:
        """Ends clients, coordinators and the log."""
        try:
            self.reset()
        finally:
            if self._opener is not None:
                self._opener.close()
            if self._raw is not None:
                self._raw.close()
            self._coordinators.stop()
            self.log.close()
            if self.bootstrap_servers.startswith(SCHEME):
                MemoryLog.drop(self.bootstrap_servers)
