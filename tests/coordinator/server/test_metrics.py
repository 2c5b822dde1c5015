"""`/metrics`, read over HTTP from a coordinator at work, and the bounds of its size."""

from __future__ import annotations

import os
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.core.placing import Placer, PlaceWrites
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.commands import Outcome, Reply
from logtx.coordinator.protocol.fields import PROTOCOL_VERSION
from logtx.coordinator.runtime.counters import CoordinatorCounters, Histogram, PlaceClock
from logtx.coordinator.server import metrics, streams
from logtx.coordinator.server.trimming import SidecarConfig
from logtx.coordinator.service import CoordinatorConfig
from logtx.coordinator.store.opening import MetadataConfig
from logtx.journal.errors import (
    BrokerError,
    ConfigError,
    CoordinatorBusyError,
    NotCoordinatorError,
    OffsetsConflictError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId, Placed
from logtx.journal.records.types import AbortReason
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..clusters import until
from ..streams import Frames, calls_to

TIMEOUT_S = 15.0
ASKED_FOR = {"transaction.begin.ahead": False}
"""Settings with which only the test's own transactions are begun."""
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@pytest.fixture
def port() -> int:
    """Where the coordinator serves its metrics."""
    return free_port()


@pytest.fixture
def coordinator(memory_log: MemoryLog, port: int, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    """A coordinator of two journal partitions, with metrics and a metadata store."""
    memory_log.create_topic("out", partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=2,
        metrics_listen=f"127.0.0.1:{port}",
        metadata=MetadataConfig(store=f"rocksdb:{tmp_path}"),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


def scrape(port: int) -> Series:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    """Returns the sum of all series of this name that have these labels."""
    return sum(
        v
        for (each, having), v in series.items()
        if each == f"logtx_{name}" and having >= labels.items()
    )


@pytest.mark.usefixtures("coordinator")
def test_a_coordinator_at_work(memory_log: MemoryLog, port: int) -> None:
    servers = {"bootstrap.servers": memory_log.bootstrap_servers}
    with (
        logtx.Producer({**servers, "transactional.id": "worker", **ASKED_FOR}) as producer,
        logtx.Producer({**servers, "transaction.key": 'nightly "run"'}) as keyed,
    ):
        for _ in range(3):
            with producer.begin_transaction() as txn:
                txn.produce("out", b"1")
        producer.begin_transaction().abort()
        hanging = keyed.begin_transaction()
        where = {"partition": str(hanging.txid.partition)}
        time.sleep(0.02)
        series = scrape(port)
        assert value(series, "transactions_committed_total") == 3
        assert value(series, "transactions_aborted_total", reason="requested") == 1
        assert value(series, "commit_latency_seconds_count") == 3
        assert 0 < value(series, "commit_latency_seconds_sum") < TIMEOUT_S
        assert value(series, "commit_latency_seconds_bucket", le="30.0") == 3
        assert value(series, "transactions_open") == value(series, "transactions_open", **where)
        assert value(series, "transactions_open") == 1
        assert 0.01 < value(series, "transactions_oldest_open_seconds") < TIMEOUT_S
        assert value(series, "transactions_high_watermark", **where) == hanging.txid.offset
        assert value(series, "partition_role", role="serving") == 2
        assert value(series, "partition_role", role="standby") == 0
        assert value(series, "sessions") == 2
        assert value(series, "producers") == 2
        assert value(series, "loads_total") == 2
        assert value(series, "surprises_total") == 0
        assert value(series, "metadata_header_cas_total", result="ok") == 4
        assert value(series, "metadata_header_cas_total") == 4
        assert value(series, "places_waiting") == value(series, "topics_metadata_mode") == 0
        ends = sum(memory_log.end_offset("__transaction_control", p) for p in range(2))
        assert value(series, "journal_end_offset") == ends
        # All records except OWNER, which is not appended by a tenure.
        assert value(series, "journal_appends_total") == ends - 2
        key = {"owner": "default", "key": 'nightly "run"'}
        assert value(series, "transaction_keys") == 1
        assert value(series, "transaction_key_epoch", **key) == 0
        assert 0.01 < value(series, "transaction_key_age_seconds", **key) < TIMEOUT_S

        admin = AdminQueries(memory_log, timeout_s=TIMEOUT_S)
        admin.abort(hanging.txid)
        admin.delete_key('&default&nightly "run"')
        admin.close()
        series = scrape(port)
        assert value(series, "transactions_aborted_total", reason="operator") == 1
        assert value(series, "transactions_open") == 0
        assert value(series, "transaction_keys") == 0
        assert not any(name == "logtx_transaction_key_epoch" for name, _ in series)


def test_what_is_refused_is_counted(
    coordinator: EmbeddedCoordinator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CONNECT_TIMEOUT_S", 0.2)

    def first_reply(*frames: pb.ClientFrame) -> pb.Reply:
        session = Frames(coordinator.address)
        try:
            for each in frames:
                session.send(each)
            answer = session.receive()
            assert answer is not None
            return answer.replies[0]
        finally:
            session.close()

    def connect(**changed: object) -> pb.ClientFrame:
        given = {"version": PROTOCOL_VERSION, "producer_id": "p", "nonce": 1, **changed}
        request = pb.Request(request_id=1, connect=pb.Connect(**given))  # type: ignore[arg-type]
        return pb.ClientFrame(requests=[request])

    assert first_reply().HasField("error")
    assert first_reply(connect(version=99)).HasField("error")
    assert first_reply(connect(producer_id="")).HasField("error")
    assert first_reply(connect(partition=77)).HasField("error")
    unknown = pb.GetKey(name="&default&none")
    calls = [pb.Request(get_key=unknown), pb.Request(begin=pb.Begin())]
    with calls_to(coordinator.address) as asking:
        for request in calls:
            asked = pb.CallRequest(partition=0, request=request)
            assert asking.call(asked, TIMEOUT_S).HasField("error")
        asked = pb.CallRequest(partition=77, request=calls[0])
        assert asking.call(asked, TIMEOUT_S).HasField("error")
    series = scrape(port)
    whys = {"silent", "NotSupported", "Config", "NotCoordinator"}
    for why in whys:
        assert value(series, "connections_refused_total", why=why) == 1, why
    assert value(series, "connections_refused_total") == len(whys)
    for code in (34, 2, 11):
        assert value(series, "requests_refused_total", code=str(code)) == 1, code
    assert value(series, "requests_refused_total") == 3


def test_a_new_coordinator_counts_its_own_decisions(
    coordinator: EmbeddedCoordinator, memory_log: MemoryLog, port: int
) -> None:
    with logtx.Producer({"bootstrap.servers": memory_log.bootstrap_servers}) as producer:
        # Its marker is never acknowledged, so the next owner writes it again.
        hanging = producer.begin_transaction(partitions=[("out", 0)])
        txid = hanging.txid
        memory_log.hold_appends("out", 0)
        hanging.commit()
        assert value(scrape(port), "transactions_committed_total") == 1
        assert value(scrape(port), "markers_queued") == 1
        coordinator.stop()
        coordinator.start()
        series = scrape(port)
        assert value(series, "transactions_committed_total") == 0
        assert value(series, "transactions_unfinished", partition=str(txid.partition)) == 1
        memory_log.release_appends("out", 0)


@pytest.mark.usefixtures("coordinator")
def test_many_keys_do_not_make_many_series(
    memory_log: MemoryLog, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "KEYS_MAX", 4)
    servers = {"bootstrap.servers": memory_log.bootstrap_servers}
    for i in range(7):
        with logtx.Producer({**servers, "transaction.key": f"k{i}"}) as producer:
            producer.init_transactions()
        time.sleep(0.002)
    series = scrape(port)
    assert value(series, "transaction_keys") == 7
    assert value(series, "transaction_keys_left_out") == 3
    shown = {dict(labels)["key"] for n, labels in series if n == "logtx_transaction_key_epoch"}
    assert shown == {"k0", "k1", "k5", "k6"}


def test_a_standby_tells_its_lag(coordinator: EmbeddedCoordinator, memory_log: MemoryLog) -> None:
    other = free_port()
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        metrics_listen=f"127.0.0.1:{other}",
    )
    with EmbeddedCoordinator(config):
        deadline_s = time.monotonic() + TIMEOUT_S
        roles = ("standby", "serving")
        while time.monotonic() < deadline_s:
            series = scrape(other)
            if [value(series, "partition_role", role=role) for role in roles] == [1, 1]:
                break
            time.sleep(0.05)
        lags = [v for (name, _), v in series.items() if name == "logtx_standby_lag_records"]
        assert len(lags) == 1, "of two partitions each serves one"
        assert lags[0] >= 0
        ends = [v for (name, _), v in series.items() if name == "logtx_journal_end_offset"]
        assert len(ends) == 1
    assert coordinator.address


@pytest.mark.usefixtures("coordinator")
def test_the_metadata_store_is_counted(memory_log: MemoryLog, port: int) -> None:
    servers = {"bootstrap.servers": memory_log.bootstrap_servers}
    with (
        logtx.Producer({**servers, "transactional.id": "worker", **ASKED_FOR}) as producer,
        logtx.MetadataClient(servers) as client,
    ):
        open_ = producer.begin_transaction(partitions=[("out", 0)])
        with producer.begin_transaction() as txn:
            txn.produce("out", b"1")
        assert len(list(client.history("out", 0))) >= 1
        client.status()
        series = scrape(port)
        assert value(series, "metadata_op_writes_total") >= 1
        assert value(series, "metadata_outstanding_op_records") >= 1
        assert value(series, "metadata_header_cas_total", result="ok") == 1
        index = {"index": "writes-by-segment"}
        assert value(series, "metadata_index_query_seconds_count", **index) == 1
        lag = {"partition": str(txn.txid.partition)}
        assert value(series, "metadata_projection_lag_records", **lag) >= 0
        open_.abort()


def test_what_sidecars_hold_and_what_was_trimmed(
    memory_log: MemoryLog, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = MemoryLog.delete_records

    def refuse(self: MemoryLog, topic: str, partition: int, *rest: Any, **named: Any) -> None:
        if partition == 1:
            raise BrokerError("not authorized")
        delete(self, topic, partition, *rest, **named)

    monkeypatch.setattr(MemoryLog, "delete_records", refuse)
    memory_log.create_topic("aside", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=2,
        metrics_listen=f"127.0.0.1:{port}",
        sidecars=SidecarConfig(trim_delay_ms=200),
    )
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, **ASKED_FOR}
    with EmbeddedCoordinator(config), logtx.Producer(settings) as producer:
        txn = producer.begin_transaction(sidecar=True)
        for partition in range(2):
            txn.produce("aside", b"x", partition=partition)
        producer.flush(TIMEOUT_S)
        until(lambda: value(scrape(port), "sidecar_held_seconds") > 0.1)
        assert value(scrape(port), "sidecar_offsets", topic="aside._txnlog") == 2
        txn.abort()
        until(lambda: value(scrape(port), "sidecar_trims_failed_total") == 1)
        until(lambda: value(scrape(port), "sidecar_offsets") == 2)
        series = scrape(port)
        assert value(series, "sidecar_trimmed_offsets_total") == 2
        assert value(series, "sidecar_held_seconds") == 0


@pytest.mark.usefixtures("coordinator")
def test_every_metric_is_documented(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        families = [
            line.split()[2] for line in answer.read().decode().splitlines() if "TYPE" in line
        ]
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(logtx_\w+)", page))
    assert set(families) == named


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:", ":9100", "127.0.0.1:99999"])
def test_an_address_that_can_not_be(memory_log: MemoryLog, listen: str) -> None:
    config = CoordinatorConfig(bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0")
    with pytest.raises(ConfigError, match="metrics"):
        EmbeddedCoordinator(replace(config, metrics_listen=listen)).start()


def test_a_silent_scraper_holds_up_the_others_for_a_bounded_time(
    coordinator: EmbeddedCoordinator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    with socket.create_connection(("127.0.0.1", port)):
        assert value(scrape(port), "partition_role", role="serving") == 2
    assert coordinator.address


def test_trap_259_the_port_is_free_though_a_child_has_a_copy_of_its_socket(port: int) -> None:
    class Nothing(Collector):
        def collect(self) -> Iterator[Metric]:
            return iter(())

    server = metrics.MetricsServer(f"127.0.0.1:{port}", Nothing())
    copy = os.dup(server._server.fileno())
    try:
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        metrics.MetricsServer(f"127.0.0.1:{port}", Nothing()).close()
    finally:
        os.close(copy)


def test_histogram() -> None:
    histogram = Histogram((1.0, 2.0))
    for duration_s in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(duration_s)
    assert histogram.counts == [2, 1, 1]
    assert histogram.sum_s == 12.0


def test_places_are_counted_when_they_are_durable() -> None:
    placer, clock, counters = Placer(lambda _: None), PlaceClock(), CoordinatorCounters()
    one, two = (PartitionId("t", p, "id") for p in range(2))
    clock.decided(placer, 5, 100.0)
    assert clock.longest_s(200.0) == 0, "it is not to be placed"
    for begin, sequence, partitions, at_s in ((5, 10, (one, two), 100.0), (6, 11, (one,), 101.0)):
        placer.place(PlaceWrites(begin, sequence, partitions))
        clock.decided(placer, begin, at_s)
    assert clock.longest_s(102.0) == 2.0
    for placed, now_s, found in (
        (Placed(11, {one: 7}), 103.0, (2, [2.0])),
        (Placed(11, {one: 8}), 104.0, (0, [])),
        (Placed(10, {two: 3}), 105.0, (1, [5.0])),
    ):
        placer.placed(placed)
        assert clock.given(placer, now_s) == found
        counters.placed(0, *found)
    assert clock.longest_s(200.0) == 0
    assert counters.places == {0: 3}
    assert (sum(counters.place_seconds.counts), counters.place_seconds.sum_s) == (2, 7.0)


@pytest.mark.parametrize(
    ("reply", "counted"),
    [
        (Outcome(TxId(0, 1, 2), State.COMMITTING), {"ok": 1}),
        (TransactionAbortedError("expired"), {"conflict": 1}),
        (TransactionCommittedError("committed"), {"conflict": 1}),
        (ProducerFencedError("newer"), {"reject": 1}),
        (OffsetsConflictError("others"), {"reject": 1}),
        (CoordinatorBusyError("later"), {}),
        (NotCoordinatorError("elsewhere"), {}),
    ],
)
def test_final_answers_to_requests_to_end_are_counted(
    reply: Reply, counted: dict[str, int]
) -> None:
    counters = CoordinatorCounters()
    counters.ended(reply)
    assert counters.header_cas == counted


def test_decisions_of_earlier_epochs_are_not_counted() -> None:
    counters = CoordinatorCounters()
    transaction = TransactionMetadata(
        txid=TxId(0, 1, 5), producer_id="p", generation=0, timeout_ms=1, started_ms=0
    )
    for commit_sequence in (None, 7, 9):
        transaction.commit_sequence = commit_sequence
        counters.decided(0, 8, transaction)
    transaction.reason = AbortReason.FENCED
    counters.decided(0, 8, transaction)
    assert counters.committed == {0: 1}
    assert counters.aborted == {(0, AbortReason.FENCED): 1}
