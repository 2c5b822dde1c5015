"""Coordinators whose broker loses the end of the journal, as an unclean election does: trap 10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from logtx.coordinator import ownership
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.protocol.commands import Action, Began, Outcome
from logtx.coordinator.runtime import appender
from logtx.coordinator.runtime.lost_tail import LOST_MAX, MARGIN, VOID, fill_lost_tail
from logtx.coordinator.runtime.partition import Role
from logtx.journal.control import BranchRange
from logtx.journal.errors import ConfigError, JournalTruncatedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, find_fates, journal_partition_of
from logtx.journal.records.codec import decode_entry
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..clusters import PARTITIONS, TIMEOUT_S, Cluster, ask, cluster_of, until
from ..core.test_replica import journal
from ..harness import dump, load
from ..runtimes import prepare, running
from .test_passing_faults import on_loop

DATA = "data"
HOME = journal_partition_of("default", PARTITIONS)


@pytest.fixture
def cluster(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """No coordinator yet. Producers of a log in memory need no warm-up."""
    monkeypatch.setattr(appender, "WARM_S", 0.0)
    memory_log.create_topic(DATA, partitions=1)
    with cluster_of(memory_log) as made:
        yield made


def commit_and_read(cluster: Cluster) -> TxId:
    """Commits one transaction, and waits until every living coordinator has read it."""
    with closing(
        CoordinatorClient(cluster.log, SessionOptions(producer_id="p", timeout_s=TIMEOUT_S))
    ) as client:
        client.connect()
        began = ask(client.begin, timeout_ms=60_000)
        assert isinstance(began, Began), began
        writes = {(DATA, 0): (BranchRange(0, 0, 0, 1),)}
        assert isinstance(ask(client.end, began.txid, Action.COMMIT, writes), Outcome)

    def is_read() -> bool:
        end = cluster.log.end_offset(JOURNAL_TOPIC, HOME)
        shards = [n.runtimes[HOME].shard for n in cluster.nodes if n.alive]
        # And finished: otherwise the owner would still append the record that says so.
        return all(s.next_offset == end and not len(s.transactions) for s in shards)

    until(is_read)
    return began.txid


def failed(cluster: Cluster) -> bool:
    """Returns whether no coordinator serves the partition, and each says why."""
    runtimes = [n.runtimes[HOME] for n in cluster.nodes if n.alive]
    return all(
        r.role is Role.FAILED and isinstance(r.failure, JournalTruncatedError) for r in runtimes
    )


def test_trap_10_neither_the_owner_nor_a_standby_serves_a_journal_that_lost_its_tail(
    cluster: Cluster,
) -> None:
    """The owner appends nothing; the standby has read more than the journal holds now."""
    assert isinstance(cluster.log, MemoryLog)
    cluster.joined(2)
    commit_and_read(cluster)
    cluster.log.truncate(JOURNAL_TOPIC, HOME, 1)
    until(lambda: failed(cluster))


def test_trap_10_a_standby_does_not_take_over_when_the_owner_died_with_the_tail(
    cluster: Cluster,
) -> None:
    assert isinstance(cluster.log, MemoryLog)
    cluster.joined(2)
    commit_and_read(cluster)
    owner = cluster.owner(HOME)
    cluster.log.truncate(JOURNAL_TOPIC, HOME, 1)
    owner.kill()
    until(lambda: failed(cluster))
    assert cluster.log.end_offset(JOURNAL_TOPIC, HOME) == 1, "nor does it write there"


def test_trap_10_who_comes_after_the_loss_learns_of_it_from_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal itself shows no loss. The owner sees it, and does not serve any more."""
    monkeypatch.setattr(ownership, "BALANCE_S", 60.0)
    assert isinstance(cluster.log, MemoryLog)
    cluster.joined(1)
    commit_and_read(cluster)
    cluster.log.truncate(JOURNAL_TOPIC, HOME, 1)
    cluster.join()
    until(lambda: failed(cluster))
    assert cluster.log.end_offset(JOURNAL_TOPIC, HOME) == 1, "nor does it write there"


@on_loop
async def test_trap_10_nobody_takes_over_on_request_what_lost_its_tail(
    memory_log: MemoryLog,
) -> None:
    prepare(memory_log)
    async with running(memory_log) as owner:
        await owner.connect()
        async with running(memory_log, serve=False, address="127.0.0.1:2") as standby:
            runtime = standby.runtime
            await standby.until(lambda: runtime.is_ready)
            memory_log.truncate(JOURNAL_TOPIC, 0, 1)
            reason = await runtime.take_over(owner.runtime.epoch, owner.runtime.shard.next_offset)
            assert reason
            await standby.until(lambda: runtime.role is Role.FAILED)
            assert isinstance(runtime.failure, JournalTruncatedError)


def test_trap_10_a_loss_that_is_accepted_uses_no_txid_twice(cluster: Cluster) -> None:
    log = cluster.log
    assert isinstance(log, MemoryLog)
    cluster.joined(1)
    kept = commit_and_read(cluster)
    end = log.end_offset(JOURNAL_TOPIC, HOME)
    lost = commit_and_read(cluster)
    lost_end = log.end_offset(JOURNAL_TOPIC, HOME)
    cluster.owner(HOME).kill()
    log.truncate(JOURNAL_TOPIC, HOME, end)
    assert fill_lost_tail(log, HOME, lost_end) == lost_end + MARGIN
    with pytest.raises(ConfigError, match="nothing is lost"):
        fill_lost_tail(log, HOME, lost_end)
    cluster.join()
    cluster.settled()
    new = commit_and_read(cluster)
    assert new.offset >= lost_end + MARGIN
    fates = find_fates(log, [kept, lost, new], timeout_s=TIMEOUT_S)
    assert fates[kept].state.commits
    assert fates[lost].state is State.UNKNOWN
    assert fates[new].state.commits


def test_trap_10_what_fills_a_loss_counts_for_nobody() -> None:
    shard = load(journal())
    before = dump(shard)
    end = shard.next_offset
    shard.replay(end, decode_entry(VOID))
    assert dump(shard) == {**before, "next_offset": end + 1}
    assert shard.hw == 2, "nor is the oldest open transaction another"


def test_a_loss_that_can_not_be_is_not_filled(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    with pytest.raises(ConfigError, match="can't have been lost"):
        fill_lost_tail(memory_log, 0, LOST_MAX + 1)
    assert memory_log.end_offset(JOURNAL_TOPIC, 0) == 0


def test_trap_10_who_comes_after_a_loss_knows_the_owner_from_its_checkpoint(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its OWNER record is lost with all that it wrote, so the journal does not tell of it."""
    monkeypatch.setattr(ownership, "BALANCE_S", 60.0)
    log = cluster.log
    assert isinstance(log, MemoryLog)
    cluster.joined(1)
    commit_and_read(cluster)
    ends = {number: log.end_offset(JOURNAL_TOPIC, number) for number in range(PARTITIONS)}
    for node in list(cluster.nodes):
        node.kill()
    cluster.join()
    cluster.settled()
    commit_and_read(cluster)
    for number, end in ends.items():
        log.truncate(JOURNAL_TOPIC, number, end)
    until(lambda: failed(cluster))
    cluster.join()
    until(lambda: cluster.nodes[-1].runtimes[HOME].role in (Role.SERVING, Role.FAILED))
    newcomer = cluster.nodes[-1].runtimes[HOME]
    assert newcomer.role is Role.FAILED
    assert isinstance(newcomer.failure, JournalTruncatedError)
