"""Several coordinator processes on a real broker: killed, stopped, moved, while clients commit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import logtx
from logtx.benchmarks.failover.committer import PARTITIONS, Committer
from logtx.benchmarks.failover.fleet import Fleet
from logtx.benchmarks.failover.truth import find_truth
from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.processes import CoordinatorChild
from logtx.journal.errors import TransactionAbortedError, UnknownOutcomeError
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.reader import JOURNAL_TOPIC, find_fates, journal_partition_of, read_entries
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import Begin
from logtx.journal.state import State

from .parameters import slow

pytestmark = pytest.mark.kafka
TIMEOUT_S: Final = 30.0
COORDINATORS: Final = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLog]:
    """The log of a separate broker: other tests' coordinators would take a share of the journal."""
    with LocalKafka(tmp_path_factory.mktemp("kafka"), java_options=QUICK_TO_START) as kafka:
        opened = KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def fleet(log: KafkaLog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three coordinators for all tests here; each test leaves three running."""
    with Fleet(log, tmp_path_factory.mktemp("coordinators"), COORDINATORS) as running:
        yield running


@pytest.fixture
def topic(log: KafkaLog, unique: Callable[[str], str]) -> str:
    """A topic of two partitions."""
    name = unique("failover")
    log.create_topic(name, partitions=PARTITIONS)
    return name


def settled(log: KafkaLog, fleet: Fleet) -> dict[int, str]:
    """Waits until the owners have settled; returns journal partition → owner's address."""
    count = log.topic_info(JOURNAL_TOPIC).partition_count
    return fleet.await_settled(count, quiet_s=0.7, timeout_s=TIMEOUT_S)


def owner(log: KafkaLog, fleet: Fleet) -> CoordinatorChild:
    """Returns the owner of the default transaction group's home."""
    owners = settled(log, fleet)
    address = owners[journal_partition_of("default", len(owners))]
    return next(m for m in fleet.members if m.address == address)


def require_true(log: KafkaLog, committer: Committer) -> None:
    """Requires that every commit told is in the log once, nothing else is, and none failed."""
    assert committer.failed == []
    truth = find_truth(log, committer)
    assert truth.holds, truth
    assert truth.told == committer.begun > 0
    # A BEGIN whose answer was lost is sent again, and gets the same TxId.
    assert begins(log, committer.topic) == committer.begun


def begins(log: KafkaLog, producer_id: str) -> int:
    """Returns the number of valid BEGINs of a producer in the journal."""
    partition = journal_partition_of("default", log.topic_info(JOURNAL_TOPIC).partition_count)
    end = log.end_offset(JOURNAL_TOPIC, partition)
    valid = EpochFilter()
    return sum(
        valid.accept(offset, entry)
        and isinstance(entry.record, Begin)
        and entry.record.producer_id == producer_id
        for offset, entry in read_entries(log, partition, 0, end, timeout_s=TIMEOUT_S)
    )


@pytest.mark.parametrize("in_flight", [64, *slow([1])])
def test_kill_of_the_owner_while_clients_commit(
    log: KafkaLog, fleet: Fleet, topic: str, in_flight: int
) -> None:
    servers = log.bootstrap_servers
    killed = owner(log, fleet)
    with Committer(servers, topic, in_flight=in_flight) as committer:
        assert committer.await_told(20, TIMEOUT_S)
        killed.signal(signal.SIGKILL)
        killed.await_end()
        assert committer.await_told(100, TIMEOUT_S), "clients follow by themselves"
    killed.start()
    killed.await_ready()
    require_true(log, committer)


def test_open_transactions_live_on_through_the_new_owner(
    log: KafkaLog, fleet: Fleet, topic: str, unique: Callable[[str], str]
) -> None:
    # The client knows bootstrap.servers only; its generation and the TxIds stay the same.
    killed = owner(log, fleet)
    config = {"bootstrap.servers": log.bootstrap_servers, "transactional.id": unique("open")}
    with logtx.Producer(config) as producer:
        opened = [producer.begin_transaction() for _ in range(5)]
        for number, transaction in enumerate(opened):
            transaction.produce(topic, b"%d" % number, partition=0)
        txids = [transaction.txid for transaction in opened]
        killed.signal(signal.SIGKILL)
        begun_without_an_owner = producer.begin_transaction()
        outcomes = [transaction.commit(TIMEOUT_S) for transaction in opened]
        assert [outcome.txid for outcome in outcomes] == txids
        assert all(outcome.state.commits for outcome in outcomes)
        assert begun_without_an_owner.txid not in txids
        begun_without_an_owner.abort(TIMEOUT_S)
        queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
        for outcome in outcomes:
            assert queries.outcome(outcome.txid).state in {State.COMMITTING, State.COMMITTED}
        queries.close()
    killed.await_end()
    killed.start()
    killed.await_ready()


def test_an_owner_that_was_stopped_returns_as_a_zombie(
    log: KafkaLog, fleet: Fleet, topic: str
) -> None:
    stopped = owner(log, fleet)
    with Committer(log.bootstrap_servers, topic, in_flight=16) as committer:
        assert committer.await_told(50, TIMEOUT_S)
        stopped.pause()
        try:
            assert committer.await_told(100, TIMEOUT_S), "others have taken over"
            time.sleep(2)
        finally:
            stopped.resume()
        assert committer.await_told(100, TIMEOUT_S)
        settled(log, fleet)
    require_true(log, committer)


@pytest.mark.slow
def test_planned_moves_abort_nothing_and_keep_the_balance(
    log: KafkaLog, fleet: Fleet, topic: str, unique: Callable[[str], str]
) -> None:
    leaving, elsewhere = owner(log, fleet), unique("held")
    log.create_topic(elsewhere, partitions=1)
    with Committer(log.bootstrap_servers, topic, in_flight=4) as committer:
        held = logtx.Producer(
            {"bootstrap.servers": log.bootstrap_servers, "transactional.id": unique("held")}
        )
        transaction = held.begin_transaction()
        transaction.produce(elsewhere, b"held", partition=0)
        assert transaction.txid
        leaving.signal(signal.SIGTERM)
        assert leaving.await_end()
        assert committer.await_told(50, TIMEOUT_S)
        leaving.start()
        leaving.await_ready()
        settled(log, fleet)  # fails if the shares are uneven
        assert committer.await_told(50, TIMEOUT_S)
        assert transaction.commit(TIMEOUT_S).state.commits, "it lived through both moves"
        held.close()
    require_true(log, committer)


@pytest.mark.slow
def test_commits_of_unknown_outcome_are_resolved_as_decided(
    log: KafkaLog, fleet: Fleet, topic: str, unique: Callable[[str], str]
) -> None:
    settled(log, fleet)
    config = {
        "bootstrap.servers": log.bootstrap_servers,
        "transactional.id": unique("unknown"),
        "coordinator.timeout.ms": 1_500,
    }
    with logtx.Producer(config) as producer:
        transactions = [producer.begin_transaction() for _ in range(32)]
        for transaction in transactions:
            transaction.produce(topic, b"x", partition=0)
            assert transaction.txid
        futures = [transaction.commit_async() for transaction in transactions]
        for member in fleet.members:
            member.signal(signal.SIGKILL)
        errors = [future.exception(TIMEOUT_S) for future in futures]
        assert all(error is None or isinstance(error, UnknownOutcomeError) for error in errors)
        for member in fleet.members:
            member.await_end()
            member.start()
        for member in fleet.members:
            member.await_ready()
        told: dict[logtx.TxId, bool] = {}
        for transaction in transactions:
            try:
                told[transaction.txid] = transaction.commit(TIMEOUT_S).state.commits
            except TransactionAbortedError:
                told[transaction.txid] = False
        fates = find_fates(log, told, timeout_s=TIMEOUT_S)
        assert {txid: fate.state.commits for txid, fate in fates.items()} == told
