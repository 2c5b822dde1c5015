"""Several coordinators over one log: moves, deaths, pauses, duels. Traps 2, 3, 7, 33."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.membership import peers
from logtx.coordinator.protocol.commands import Action, Began, Outcome
from logtx.coordinator.runtime import appender
from logtx.coordinator.runtime import partition as runtime
from logtx.coordinator.runtime.partition import Role
from logtx.coordinator.service import Coordinator, CoordinatorConfig, serve
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    ConfigError,
    CorruptRecordError,
    JournalTopicError,
    LogtxError,
    ProducerFencedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import (
    JOURNAL_TOPIC,
    find_fates,
    journal_partition_of,
    read_entries,
)
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import Begin, Entry, Owner, PrepareAbort
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .clusters import PARTITIONS, TIMEOUT_S, Cluster, Committer, Node, ask, cluster_of, until

DATA = "data"
HOME = journal_partition_of("default", PARTITIONS)


@pytest.fixture
def cluster(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """No coordinator yet. Producers of a log in memory need no warm-up."""
    monkeypatch.setattr(appender, "WARM_S", 0.0)
    memory_log.create_topic(DATA, partitions=1)
    with cluster_of(memory_log) as made:
        yield made


@pytest.fixture
def committer(cluster: Cluster) -> Iterator[Callable[[], Committer]]:
    """`committer()` starts the only producer, which commits all the time."""
    made: list[Committer] = []

    def make() -> Committer:
        made.append(Committer(cluster.log, DATA))
        made[-1].progress()
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Callable[..., CoordinatorClient]]:
    """`client(producer_id=…)` makes a connected client that is closed with the test."""
    made: list[CoordinatorClient] = []

    def make(producer_id: str, *, on_closed: Any = None, **settings: Any) -> CoordinatorClient:
        one = CoordinatorClient(
            cluster.log,
            SessionOptions(producer_id=producer_id, timeout_s=TIMEOUT_S, **settings),
            on_closed=on_closed,
        )
        one.connect()
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def begun(one: CoordinatorClient) -> TxId:
    """Begins; returns the open transaction."""
    reply = ask(one.begin, timeout_ms=60_000)
    assert isinstance(reply, Began), reply
    return reply.txid


def commit(one: CoordinatorClient, txid: TxId) -> Any:
    """Commits with one record."""
    return ask(one.end, txid, Action.COMMIT, {(DATA, 0): (BranchRange(0, 0, 0, 1),)})


def journal(cluster: Cluster, partition: int = HOME) -> list[tuple[int, Any]]:
    """Returns all records of a journal partition with their offsets, void ones too."""
    end = cluster.log.end_offset(JOURNAL_TOPIC, partition)
    entries = read_entries(cluster.log, partition, 0, end, timeout_s=5)
    return [(offset, entry.record) for offset, entry in entries]


def owners(cluster: Cluster, partition: int = HOME) -> list[Owner]:
    """Returns its OWNER records."""
    return [r for _, r in journal(cluster, partition) if isinstance(r, Owner)]


def check(cluster: Cluster, *committers: Committer) -> None:
    """Checks that the journal has what was told, each once, and that nothing was aborted."""
    for each in committers:
        each.stop()
        assert each.refused == []
        assert len(set(each.committed)) == len(each.committed), "a TxId was given twice"
        fates = find_fates(cluster.log, each.committed, timeout_s=20)
        assert all(f.state.commits for f in fates.values())
    assert not any(isinstance(r, PrepareAbort) for _, r in journal(cluster))


def test_those_that_join_get_their_share_and_nothing_is_aborted(
    cluster: Cluster, committer: Callable[[], Committer], client: Callable[..., CoordinatorClient]
) -> None:
    cluster.joined(1)
    steady, one = committer(), client("one")
    txid = begun(one)
    for _ in range(2):
        cluster.join()
        cluster.settled()
        steady.progress()
    assert sorted(len(n.serving) for n in cluster.nodes) == [1, 1, 2]
    assert isinstance(commit(one, txid), Outcome), "an open transaction moves along"
    check(cluster, steady)


def test_who_leaves_gives_everything_away(
    cluster: Cluster, committer: Callable[[], Committer], client: Callable[..., CoordinatorClient]
) -> None:
    cluster.joined(3)
    steady, one = committer(), client("one")
    txid = begun(one)
    while sum(n.alive for n in cluster.nodes) > 1:
        before = len(owners(cluster))
        cluster.owner(HOME).leave()
        assert len(owners(cluster)) == before + 1, "given, before it was gone, to one"
        steady.progress()
        cluster.settled()
    assert isinstance(commit(one, txid), Outcome)
    check(cluster, steady)


def test_a_killed_owner_is_replaced_by_its_standbys(
    cluster: Cluster, committer: Callable[[], Committer], client: Callable[..., CoordinatorClient]
) -> None:
    cluster.joined(3)
    steady, one = committer(), client("one")
    txid = begun(one)
    for _ in range(2):
        cluster.owner(HOME).kill()
        steady.progress()
        cluster.settled()
    assert isinstance(commit(one, txid), Outcome)
    check(cluster, steady)


def test_an_owner_that_stands_still_is_replaced_and_harmless_when_it_wakes(
    cluster: Cluster, committer: Callable[[], Committer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SILENCE_S", 0.5)
    monkeypatch.setattr(peers, "ANSWER_S", 0.2)
    cluster.joined(2)
    steady = committer()
    held = cluster.owner(HOME)
    (other,) = (n for n in cluster.nodes if n is not held)
    pause = held.hold(4)
    until(lambda: HOME in other.serving)
    pause.join()
    steady.progress()
    cluster.settled()
    check(cluster, steady)


def test_who_can_serve_at_once_does_so_while_a_surprised_owner_loads(
    cluster: Cluster, committer: Callable[[], Committer], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.joined(2)
    steady, surprised = committer(), cluster.owner(HOME)
    read = runtime.load

    def load_a_long_journal(*args: Any, **kwargs: Any) -> Replica:
        time.sleep(4)
        return read(*args, **kwargs)

    monkeypatch.setattr(runtime, "load", load_a_long_journal)
    at_home = surprised.runtimes[HOME]

    def surprise() -> None:
        assert at_home._serving is not None
        at_home._serving.tenure._surprised("of a test")

    began_s = time.monotonic()
    surprised.loop.call_soon_threadsafe(surprise)
    until(lambda: cluster.owner(HOME) is not surprised)
    steady.progress()
    assert time.monotonic() - began_s < 5
    check(cluster, steady)


def test_trap_2_and_3_what_a_zombie_has_in_flight_is_void(
    cluster: Cluster,
    client: Callable[..., CoordinatorClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "SILENCE_S", 0.5)
    monkeypatch.setattr(peers, "ANSWER_S", 0.2)
    log = cluster.log
    assert isinstance(log, MemoryLog)
    cluster.joined(2)
    one = client("one")
    txid, other_txid = begun(one), begun(one)
    log.hold_appends(JOURNAL_TOPIC, HOME)
    replies: list[Any] = []
    for each in (txid, other_txid):
        writes = {(DATA, 0): (BranchRange(0, 0, 0, 1),)}
        one.end(each, Action.COMMIT, writes, replies.append)
    until(lambda: log.held_appends(JOURNAL_TOPIC, HOME) == 2)
    zombie = cluster.owner(HOME)
    pause = zombie.hold(3)
    until(lambda: log.held_appends(JOURNAL_TOPIC, HOME) == 3)
    # The successor's OWNER takes the first commit's predicted place. The second commit then lands
    # where it was predicted, but in a dead epoch.
    log.let_overtake(JOURNAL_TOPIC, HOME)
    log.release_appends(JOURNAL_TOPIC, HOME)
    until(lambda: len(replies) == 2)
    pause.join()
    cluster.settled()
    assert all(isinstance(r, Outcome) for r in replies), replies
    fates = find_fates(log, [txid, other_txid], timeout_s=5)
    for reply in replies:
        assert fates[reply.txid].commit_sequence == reply.commit_sequence
    begins = [o for o, r in journal(cluster) if isinstance(r, Begin)]
    assert begins == [txid.offset, other_txid.offset]


def test_trap_7_two_healthy_ones_that_can_not_reach_each_other_do_not_duel(
    cluster: Cluster,
) -> None:
    nodes = [cluster.join(advertised=f"127.0.0.1:{port}") for port in (9, 10)]
    until(cluster.is_served)
    time.sleep(6)
    until(cluster.is_served)
    bids = sum(len(owners(cluster, p)) for p in range(PARTITIONS))
    assert bids <= 4 * PARTITIONS, "they take the partitions from each other all the time"
    assert all(n.alive for n in nodes)


def test_trap_7_who_comes_back_to_an_address_is_another(
    cluster: Cluster, committer: Callable[[], Committer]
) -> None:
    (first,) = cluster.joined(1)
    steady = committer()
    first.kill()
    cluster.join(listen=first.address)
    steady.progress()
    cluster.settled()
    nonces = {o.process_nonce for o in owners(cluster)}
    assert len(nonces) == 2
    check(cluster, steady)


def test_trap_7_who_comes_back_by_another_name_finds_its_former_self_gone(
    cluster: Cluster,
) -> None:
    """It calls the address in the OWNER records, and reaches itself."""
    (first,) = cluster.joined(1)
    first.kill()
    port = first.address.rpartition(":")[2]
    cluster.join(listen=first.address, advertised=f"localhost:{port}")
    cluster.settled()


def test_one_address_twice_is_refused(cluster: Cluster) -> None:
    (first,) = cluster.joined(1)
    with pytest.raises(ConfigError, match="another coordinator, or another program, running there"):
        Node(cluster.log, listen=first.address)
    with pytest.raises(ConfigError, match="give each its own --advertise"):
        Node(cluster.log, advertised=first.address)
    assert first.serving == set(range(PARTITIONS)), "and nothing was taken from it"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0"])
def test_who_listens_everywhere_must_say_where_it_is(cluster: Cluster, listen: str) -> None:
    with pytest.raises(ConfigError, match="--advertise the host:port"):
        cluster.join(listen=listen)
    cluster.join(listen="0.0.0.0:0", advertised="127.0.0.1:9")


@pytest.mark.parametrize("address", [":9095", ":x"])
def test_an_advertised_address_names_a_host(cluster: Cluster, address: str) -> None:
    with pytest.raises(ConfigError, match="--advertise the host:port"):
        cluster.join(advertised=address)


@pytest.mark.parametrize("port", ["0", "00"])
def test_nobody_is_told_to_connect_to_port_0(cluster: Cluster, port: str) -> None:
    with pytest.raises(ConfigError, match=r"nobody can connect .*--advertise the port"):
        cluster.join(advertised=f"127.0.0.1:{port}")


def test_a_coordinator_that_another_took_the_address_of_ends(cluster: Cluster) -> None:
    """They run on two hosts and can't meet; each takes the other for its own former process."""
    config = CoordinatorConfig(
        bootstrap_servers="memory",
        listen="127.0.0.1:0",
        advertised="127.0.0.1:9",
        journal_partitions=PARTITIONS,
    )

    async def first() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            join = partial(cluster.join, advertised=config.advertised)
            await serve(config, asyncio.Event(), lambda *_: join(), cluster.log)

    with pytest.raises(ConfigError, match="advertises the same address"):
        asyncio.run(first())


def test_a_late_owner_record_of_who_was_at_its_address_ends_nobody(cluster: Cluster) -> None:
    """It was in flight when that process was killed, and landed when the next one served."""
    log, stop = cluster.log, asyncio.Event()
    assert isinstance(log, MemoryLog)
    config = CoordinatorConfig(
        bootstrap_servers="memory", listen="127.0.0.1:0", journal_partitions=PARTITIONS
    )

    def ready(coordinator: Coordinator, _unserved: Mapping[int, LogtxError]) -> None:
        asyncio.get_running_loop().create_task(land(coordinator))

    async def land(coordinator: Coordinator) -> None:
        runtime = coordinator._runtimes[HOME]
        former, incarnation = runtime.epoch, runtime.shard.incarnation
        late = Owner(
            replaces=former,
            address=coordinator.address,
            process_nonce=1,
            partition_count=PARTITIONS,
        )
        value = encode_entry(Entry(former, incarnation, late))
        at = log.append_directly(JOURNAL_TOPIC, HOME, value=value)
        while runtime.epoch <= at or runtime.role is not Role.SERVING:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stop.set()

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await serve(config, stop, ready, log)

    asyncio.run(run())
    assert stop.is_set()


def test_a_retried_begin_gets_its_txid_from_the_next_owner(
    cluster: Cluster, client: Callable[..., CoordinatorClient]
) -> None:
    log = cluster.log
    assert isinstance(log, MemoryLog)
    cluster.joined(2)
    one = client("one")
    log.hold_appends(JOURNAL_TOPIC, HOME)
    replies: list[Any] = []
    one.begin(replies.append, timeout_ms=60_000)
    until(lambda: log.held_appends(JOURNAL_TOPIC, HOME) == 1)
    first = cluster.owner(HOME)
    first.kill()
    assert not replies
    log.release_appends(JOURNAL_TOPIC, HOME)
    until(lambda: bool(replies))
    assert isinstance(replies[0], Began), replies
    assert cluster.owner(HOME) is not first
    begins = [o for o, r in journal(cluster) if isinstance(r, Begin)]
    assert begins == [replies[0].txid.offset], "begun once"
    assert isinstance(commit(one, replies[0].txid), Outcome)


def test_trap_33_a_failover_lets_no_fenced_producer_back_in(
    cluster: Cluster, client: Callable[..., CoordinatorClient]
) -> None:
    cluster.joined(2)
    fenced: list[Any] = []
    former = client("p", on_closed=fenced.append)
    txid = begun(former)
    latter = client("p")
    newer = begun(latter)
    until(lambda: bool(fenced))
    cluster.owner(HOME).kill()
    assert isinstance(commit(latter, newer), Outcome)
    assert isinstance(commit(former, txid), ProducerFencedError)
    assert find_fates(cluster.log, [txid], timeout_s=5)[txid].state in (
        State.ABORTING,
        State.ABORTED,
    )


def test_a_corrupt_record_stops_its_partition_alone(
    cluster: Cluster, client: Callable[..., CoordinatorClient]
) -> None:
    log = cluster.log
    assert isinstance(log, MemoryLog)
    nodes = cluster.joined(2)
    bad = next(p for p in range(PARTITIONS) if p != HOME)
    offset = log.append_directly(JOURNAL_TOPIC, bad, b"\x01\x01")
    owner = cluster.owner(bad)
    (standby,) = (n for n in nodes if n is not owner)
    until(lambda: standby.runtimes[bad].role is Role.FAILED)
    failure = standby.runtimes[bad].failure
    assert isinstance(failure, CorruptRecordError)
    assert f"{JOURNAL_TOPIC}-{bad} at offset {offset}" in str(failure)
    one = client("one")
    assert isinstance(commit(one, begun(one)), Outcome)


def test_another_partition_count_is_refused(cluster: Cluster) -> None:
    log = cluster.log
    assert isinstance(log, MemoryLog)
    (first,) = cluster.joined(1)
    first.kill()
    log.add_partitions(JOURNAL_TOPIC, PARTITIONS + 1)
    node = cluster.join()
    with pytest.raises(JournalTopicError, match=f"has {PARTITIONS + 1} partitions"):
        node.call(node.coordinator.wait_serving())
