"""The reader of docs/plain-readers.md on a real broker: a plain consumer, and a metadata store."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Message
from typer.testing import CliRunner

import logtx
from logtx.benchmarks.failover.fleet import coordinator_child
from logtx.coordinator.client.admin import AdminQueries
from logtx.integration.cli import main as cli
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.modes import Mode
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from logtx.journal.reader import journal_partition_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
WAIT_S: Final = 120.0
TOPIC: Final = "orders"
JOURNALS: Final = 2
PAGE: Final = Path(__file__).resolve().parent.parent / "docs/plain-readers.md"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a topic in metadata mode, and a coordinator with a store."""
    directory = tmp_path_factory.mktemp("plain")
    with LocalKafka(directory, java_options=QUICK_TO_START) as kafka:
        found = kafka.bootstrap_servers
        store = f"rocksdb:{directory / 'store'}"
        options = "--journal-partitions", str(JOURNALS), "--metadata-store", store
        coordinator = coordinator_child(found, directory, *options)
        coordinator.start()
        coordinator.await_ready()
        log = KafkaLog({"bootstrap.servers": found})
        log.create_topic(TOPIC, partitions=1)
        admin = AdminQueries(log, timeout_s=WAIT_S)
        group = DEFAULT_TRANSACTION_GROUP
        admin.set_topic_mode(TOPIC, Mode.METADATA, transaction_group=group, timeout_s=WAIT_S)
        admin.close()
        yield found
        log.close()
        coordinator.kill()


@pytest.fixture
def client(servers: str) -> Iterator[logtx.MetadataClient]:
    """Asks the store."""
    with logtx.MetadataClient({"bootstrap.servers": servers}, timeout_s=30) as found:
        yield found


@pytest.fixture
def plain(servers: str, client: logtx.MetadataClient) -> Iterator[Any]:
    """The reader of the page, of a consumer that knows nothing of logtx."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "plain", "enable.auto.commit": False}
    )
    yield of_page()["PlainReader"](consumer, client, TOPIC, 0)
    consumer.close()


def of_page() -> dict[str, Any]:
    """Returns what the page defines."""
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(block.partition("\nwith logtx.MetadataClient")[0], defined)  # our own page
    return defined


class Writer:
    """Producers of transactions, and of plain records."""

    def __init__(self, servers: str, **settings: str) -> None:
        named = {"transactional.id": "w", **settings}
        self.producer = logtx.Producer({"bootstrap.servers": servers, **named})
        self.producer.init_transactions()
        self._log = KafkaLog({"bootstrap.servers": servers})
        self._plain = self._log.producer({"enable.idempotence": True})

    def begin(self, *values: bytes, named: bool = False) -> Any:
        """A transaction whose records are written."""
        partitions = [(TOPIC, 0)] if named else []
        transaction = self.producer.begin_transaction(partitions=partitions)
        for value in values:
            transaction.produce(TOPIC, value, partition=0)
        assert self.producer.flush(WAIT_S) == 0
        return transaction

    def put(self, value: bytes, headers: list[tuple[str, bytes]] | None = None) -> None:
        """A record of no transaction, or of one that does not know of it."""
        self._plain.produce(TOPIC, value, None, 0, headers=headers)
        assert self._plain.flush(WAIT_S) == 0

    def close(self) -> None:
        """Closes all."""
        self.producer.close()
        self._log.close()


def read(reader: Any, last: bytes) -> list[bytes]:
    """Reads up to a value."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while last not in found:
        assert time.monotonic() < deadline_s, found
        found += [value_of(m) for m in reader.poll(0.2)]
    return found


def value_of(message: Message) -> bytes:
    """Returns the value of a record."""
    value = message.value()
    assert isinstance(value, bytes)
    return value


def test_a_plain_consumer_reads_what_is_committed(servers: str, plain: Any) -> None:
    writer = Writer(servers)
    writer.put(b"plain 0")
    committed = writer.begin(b"a 0", b"a 1")
    aborted = writer.begin(b"b 0")
    writer.put(b"plain 1")
    committed.commit()
    aborted.abort()
    # Records that no decision names: late ones, and one of a branch that was not accepted.
    for txid in (committed.txid, aborted.txid):
        writer.put(b"late", [("TxId", txid.to_bytes())])
    hanging = writer.begin(b"c 0", named=True)
    unregistered = writer.begin(b"d 0")
    writer.put(b"plain 2")
    found = read(plain, b"plain 1")
    assert found == [b"plain 0", b"a 0", b"a 1", b"plain 1"]
    unregistered.commit()
    assert plain.poll(1.0) == []  # behind the one that is open
    hanging.commit()
    found += read(plain, b"plain 2")
    assert found[4:] == [b"c 0", b"d 0", b"plain 2"]

    # logtx's own consumer has the same records, in commit order.
    ours = logtx.Consumer(
        {"bootstrap.servers": servers, "group.id": "ours", "auto.offset.reset": "earliest"}
    )
    ours.subscribe([TOPIC])
    delivered: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(delivered) < len(found):
        assert time.monotonic() < deadline_s, delivered
        delivered += [value_of(m) for m in ours.consume(100, 0.2)]
    assert sorted(delivered) == sorted(found)
    ours.close()
    writer.close()


def test_trap_96_what_another_journal_decided_is_read(
    servers: str, plain: Any, client: logtx.MetadataClient
) -> None:
    """The topic's home places it. Its own journal says which records count, for as long as they
    are there."""
    home = journal_partition_of(DEFAULT_TRANSACTION_GROUP, JOURNALS)
    other = next(g for g in "ghij" if journal_partition_of(g, JOURNALS) != home)
    writer = Writer(servers, **{"transactional.id": "far", "transaction.group": other})
    writer.put(b"near")
    committed, aborted = writer.begin(b"far 0", b"far 1"), writer.begin(b"dropped")
    committed.commit(finished=True)
    aborted.abort()
    writer.put(b"end")
    assert client.header(committed.txid).finished
    assert read(plain, b"end")[-4:] == [b"near", b"far 0", b"far 1", b"end"]
    assert command(servers, "metadata", "check")["wrong"] == []
    writer.close()


def test_what_is_written_and_not_registered_yet_is_waited_for(
    servers: str, plain: Any, client: logtx.MetadataClient
) -> None:
    """The position alone does not know of it."""
    writer = Writer(servers)
    writer.put(b"start")
    read(plain, b"start")
    transaction = writer.producer.begin_transaction()
    end = client.horizon(TOPIC, 0).end_offset
    writer.put(b"of a transaction", [("TxId", transaction.txid.to_bytes())])
    writer.put(b"behind it")
    assert client.horizon(TOPIC, 0).max_read_position == end + 1
    assert plain.poll(1.0) == []
    transaction.abort()
    assert read(plain, b"behind it") == [b"behind it"]
    writer.close()


def test_what_was_placed_is_listed_when_it_is_finished(
    servers: str, client: logtx.MetadataClient
) -> None:
    """By the partition that it wrote to; and the store is what the journal says."""
    writer = Writer(servers)
    committed, aborted = writer.begin(b"listed"), writer.begin(b"dropped")
    committed.commit()
    aborted.abort()
    deadline_s = time.monotonic() + WAIT_S
    while not all(h and h.finished for h in map(client.header, (committed.txid, aborted.txid))):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    listed = command(servers, "txn", "list", "--topic", TOPIC, "--partition", "0", "--finished")
    states = {row["txid"]: row["state"] for row in listed["transactions"]}
    assert states[str(committed.txid)] == "committed"
    assert str(aborted.txid) not in states, "what was aborted has no operations"
    recent = command(servers, "txn", "list", "--finished", "--since", "10m", "--state", "aborted")
    assert str(aborted.txid) in [row["txid"] for row in recent["transactions"]]
    assert command(servers, "metadata", "check")["wrong"] == []
    writer.close()


def command(servers: str, *arguments: str) -> Any:
    """Runs `logtx`; returns what it printed as JSON."""
    result = CliRunner().invoke(cli.app, [*arguments, "--json", "--bootstrap-servers", servers])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
