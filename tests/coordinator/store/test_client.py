"""A client asks coordinators that have a store: over a log in memory, with a real RocksDB."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logtx.coordinator.client import metadata
from logtx.coordinator.client.metadata import MetadataClient
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.protocol.commands import Action, Began, Outcome
from logtx.coordinator.protocol.metadata import (
    READY,
    Found,
    Header,
    HeaderState,
    OfHeader,
    OfWrites,
    Operation,
    OperationKind,
)
from logtx.coordinator.store.opening import MetadataConfig
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    MetadataNotServedError,
    MetadataStoreError,
    OutcomeNotKeptError,
    UnknownTopicError,
    UnknownTransactionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from ..clusters import PARTITIONS, Cluster, ask, cluster_of, until

TOPIC = "orders"
WRITES: dict[TopicPartition, tuple[BranchRange, ...]] = {
    (TOPIC, 0): (BranchRange(0, 4, 7, 3),),
    (TOPIC, 1): (BranchRange(0, 2, 2, 1), BranchRange(99, 3, 5, 2)),
}


class Committer:
    """A producer that the test tells what to do."""

    def __init__(self, log: Any, group: str = "default") -> None:
        self._client = CoordinatorClient(
            log, SessionOptions(producer_id="p", transaction_group=group, timeout_s=20)
        )
        self._client.connect()

    def begin(self, first_offsets: dict[TopicPartition, int] | None = None) -> TxId:
        """Begins a transaction, and registers partitions with their first offsets."""
        began = ask(self._client.begin, timeout_ms=60_000)
        assert isinstance(began, Began)
        if first_offsets:
            ask(self._client.add_partitions, began.txid, first_offsets)
        return began.txid

    def end(self, txid: TxId, action: Action = Action.COMMIT) -> None:
        """Ends it."""
        writes = WRITES if action is Action.COMMIT else {}
        assert isinstance(ask(self._client.end, txid, action, writes), Outcome)

    def close(self) -> None:
        """Closes the producer."""
        self._client.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """No coordinators yet."""
    log = MemoryLog("metadata")
    log.create_topic(TOPIC, partitions=2)
    with cluster_of(log) as found:
        yield found


def config(path: Path, **settings: Any) -> MetadataConfig:
    """Returns the settings of a store in a directory."""
    return MetadataConfig(store=f"rocksdb:{path}", **settings)


@pytest.fixture
def client(cluster: Cluster, tmp_path: Path) -> Iterator[MetadataClient]:
    """A client of one coordinator with a store."""
    cluster.join(metadata=config(tmp_path))
    until(cluster.is_served)
    with MetadataClient(cluster.log, timeout_s=15) as found:
        yield found


def test_a_transaction_is_there_from_its_begin_to_its_end(
    cluster: Cluster, client: MetadataClient
) -> None:
    producer = Committer(cluster.log)
    txid = producer.begin({(TOPIC, 0): 4})
    header = client.header(txid)
    assert header is not None
    assert (header.state, header.version) == (HeaderState.OPEN, txid.offset)
    assert header.timeout_ms == header.created_ms + 60_000
    (registered,) = client.operations(txid)
    assert (registered.kind, registered.count, registered.first_offset) == (
        OperationKind.WRITE,
        0,
        4,
    )
    assert [h.txid for h in client.open()] == [txid]
    producer.end(txid)
    header = client.header(txid)
    assert header is not None
    assert header.state is HeaderState.COMMITTED
    assert not client.is_aborted(txid)
    until(lambda: (client.header(txid) or header).finished)
    assert client.operations(txid) == []  # marked: its markers say where it is
    assert [h.txid for h in client.decided(HeaderState.COMMITTED)] == [txid]
    aborted = producer.begin()
    producer.end(aborted, Action.ABORT)
    assert client.is_aborted(aborted)
    with pytest.raises(UnknownTransactionError, match="does not know"):
        client.is_aborted(TxId(0, 1, 2))
    producer.close()


def test_what_a_window_has_let_go_is_not_taken_for_aborted(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.join(metadata=config(tmp_path, history_ms=1, sweep_interval_ms=20))
    until(cluster.is_served)
    producer = Committer(cluster.log)
    txid = producer.begin()
    producer.end(txid)
    with MetadataClient(cluster.log, timeout_s=15) as client:
        until(lambda: client.header(txid) is None)
        with pytest.raises(OutcomeNotKeptError, match=r"0\.001 s only.*without a window"):
            client.is_aborted(txid)
    producer.close()


def test_a_branch_watches_the_header_of_its_transaction(
    cluster: Cluster, client: MetadataClient
) -> None:
    producer = Committer(cluster.log)
    txid = producer.begin()
    with client.watch(OfHeader(txid), fresh=True) as changes:
        first = next(changes)
        assert isinstance(first, Found)
        assert isinstance(first.record, Header)
        assert first.record.state is HeaderState.OPEN
        assert next(changes) == READY
        producer.end(txid)
        told = next(changes)
        assert isinstance(told, Found)
        assert isinstance(told.record, Header)
        assert told.record.state is HeaderState.COMMITTED
    producer.close()


def test_a_range_of_writes_is_watched(cluster: Cluster, client: MetadataClient) -> None:
    producer = Committer(cluster.log)
    with client.watch(OfWrites(topic=TOPIC, partition=1)) as changes:
        assert next(changes) == READY
        txid = producer.begin({(TOPIC, 1): 2})
        told = next(changes)
        assert isinstance(told, Found)
        assert isinstance(told.record, Operation)
        assert (told.record.txid, told.record.first_offset) == (txid, 2)
        producer.end(txid, Action.ABORT)
        gone = next(changes)
        assert isinstance(gone, Found)
        assert gone.deleted
        assert isinstance(gone.record, Operation)
        assert (gone.record.txid, gone.record.topic, gone.record.partition) == (txid, TOPIC, 1)
    producer.close()


def test_the_horizon_is_below_the_first_record_of_what_is_undecided(
    cluster: Cluster, client: MetadataClient
) -> None:
    log, producer, other = cluster.log, Committer(cluster.log), Committer(cluster.log, "others")
    writer = log.producer({})
    for _ in range(10):
        writer.produce(TOPIC, b"x", partition=0)
    writer.flush(5)
    settled = client.horizon(TOPIC, 0)
    assert (settled.max_read_position, settled.end_offset) == (9, 10)
    assert (settled.undecided, settled.exact) == (0, True)
    late, early = producer.begin({(TOPIC, 0): 6}), other.begin({(TOPIC, 0): 3})
    found = client.horizon(TOPIC, 0)
    assert (found.max_read_position, found.undecided, found.exact) == (2, 2, True)
    other.end(early, Action.ABORT)
    assert client.horizon(TOPIC, 0).max_read_position == 5
    silent = other.begin({(TOPIC, 0): -1})
    assert not client.horizon(TOPIC, 0).exact
    producer.end(late, Action.ABORT)
    other.end(silent, Action.ABORT)
    settled = client.horizon(TOPIC, 0)
    assert settled.max_read_position == settled.end_offset - 1
    with pytest.raises(UnknownTopicError):
        client.horizon("nowhere", 0)
    producer.close()
    other.close()


def test_a_restarted_coordinator_goes_on_from_its_cursor(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.join(metadata=config(tmp_path))
    producer = Committer(cluster.log)
    txids = [producer.begin() for _ in range(3)]
    with MetadataClient(cluster.log) as client:
        assert client.header(txids[0]) is not None
    first.leave()
    for txid in txids[:1]:
        cluster.join(metadata=config(tmp_path))
        producer.end(txid)
    with MetadataClient(cluster.log, timeout_s=15) as client:
        header = client.header(txids[0])
        assert header is not None
        assert header.state is HeaderState.COMMITTED
        metadata = cluster.nodes[-1].coordinator._metadata
        assert metadata is not None
        assert metadata.counters.rebuilt == 0
    producer.close()


def test_a_store_that_was_lost_is_made_again(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.join(metadata=config(tmp_path))
    producer = Committer(cluster.log)
    committed, open_ = producer.begin(), producer.begin({(TOPIC, 0): 5})
    producer.end(committed)
    with MetadataClient(cluster.log) as client:
        before = client.header(committed), client.operations(open_)
    node.leave()
    shutil.rmtree(tmp_path)
    cluster.join(metadata=config(tmp_path))
    with MetadataClient(cluster.log, timeout_s=15) as client:
        header = client.header(committed)
        assert before[0] is not None
        assert header is not None
        assert header.finalized_ms == before[0].finalized_ms
        assert client.operations(open_) == before[1]
        status = client.status()
        assert (status.back_end, status.problem) == ("rocksdb", "")
        assert [p.lag_records for p in status.partitions] == [0] * PARTITIONS
    producer.close()


def test_a_damaged_store_is_moved_aside_and_made_again(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.join(metadata=config(tmp_path))
    producer = Committer(cluster.log)
    txid = producer.begin()
    with MetadataClient(cluster.log) as client:
        assert client.header(txid) is not None
    node.leave()
    (tmp_path / "rocksdb" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    cluster.join(metadata=config(tmp_path))
    with MetadataClient(cluster.log, timeout_s=15) as client:
        assert client.header(txid) is not None
    assert (tmp_path / "rocksdb.damaged").is_dir()
    producer.close()


def test_a_store_that_cannot_be_opened_costs_answers_and_no_transaction(
    cluster: Cluster, tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    cluster.join(metadata=config(place))
    producer = Committer(cluster.log)
    txid = producer.begin()
    producer.end(txid)
    with (
        MetadataClient(cluster.log, timeout_s=2) as client,
        pytest.raises(MetadataStoreError, match="Transactions go on without it"),
    ):
        client.header(txid, fresh=False)
    place.unlink()
    with MetadataClient(cluster.log, timeout_s=15) as client:
        assert client.header(txid) is not None
    producer.close()


def test_two_coordinators_need_a_directory_each(cluster: Cluster, tmp_path: Path) -> None:
    cluster.join(metadata=config(tmp_path))
    second = cluster.join(metadata=config(tmp_path))
    metadata = second.coordinator._metadata
    assert metadata is not None
    assert metadata.projector is not None
    until(lambda: "directory of its own" in metadata.projector.store_problem)  # type: ignore[union-attr]


def test_a_coordinator_without_a_store_says_so(cluster: Cluster) -> None:
    cluster.join()
    until(cluster.is_served)
    with (
        MetadataClient(cluster.log) as client,
        pytest.raises(MetadataNotServedError, match="--metadata-store"),
    ):
        client.status()


def test_an_answer_that_can_not_be_read_is_as_none_and_leaves_no_connection(
    client: MetadataClient, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    of_address = metadata.MetadataCalls

    class Counted:
        def __init__(self, address: str, **options: Any) -> None:
            self._calls, self.is_closed = of_address(address, **options), False
            made.append(self)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._calls, name)

        def close(self) -> None:
            self.is_closed = True
            self._calls.close()

    def of_another_version(_: object) -> None:
        raise ValueError("99 is not a valid HeaderState")

    client.status()
    monkeypatch.setattr(metadata, "MetadataCalls", Counted)
    monkeypatch.setattr(metadata, "status_from_wire", of_another_version)
    with (
        MetadataClient(cluster.log, timeout_s=0.3) as another,
        pytest.raises(CoordinatorNotAvailableError, match="can't be read: 99"),
    ):
        another.status()
    assert made
    assert all(each.is_closed for each in made)


def test_the_one_that_has_a_store_is_found(cluster: Cluster, tmp_path: Path) -> None:
    cluster.join()
    cluster.join(metadata=config(tmp_path))
    cluster.settled()
    with MetadataClient(cluster.log, timeout_s=15) as client:
        until(lambda: _finds(client))


def _finds(client: MetadataClient) -> bool:
    try:
        return client.status().back_end == "rocksdb"
    except (MetadataNotServedError, CoordinatorNotAvailableError):
        return False  # the checkpoint names the former owner yet


@pytest.mark.parametrize(
    "wrong",
    [
        "rocksdb",
        "rocksdb:",
        "disk:/tmp",
        "etcd:",
        "etcd:host",
        "etcd:h:65536",
        "",
        "etcd:h:1/",
        "etcd:h:1/a//b",
        "etcd:h:1/a b",
    ],
)
def test_a_store_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="metadata-store"):
        MetadataConfig(store=wrong)


def test_time_is_bounded_while_nobody_serves(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.join(metadata=config(tmp_path))
    until(cluster.is_served)
    with MetadataClient(cluster.log, timeout_s=1) as client:
        client.status()
        node.kill()
        began_s = time.monotonic()
        with pytest.raises(CoordinatorNotAvailableError):
            client.status()
        assert time.monotonic() - began_s < 8


def test_what_is_no_configuration_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="expected a configuration dict, or a log, not None"):
        MetadataClient(None)  # type: ignore[arg-type]
    for timeout_s in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="timeout_s must be more than 0"):
            MetadataClient({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=timeout_s)
