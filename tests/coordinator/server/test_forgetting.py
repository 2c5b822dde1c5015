"""What nobody uses is forgotten, over real connections: by age, and when an operator asks.

Finding 22 of the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.coordinator import service
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.commands import (
    Attach,
    Attached,
    Claimed,
    ClaimOffsets,
    Done,
    UnbindGroup,
)
from logtx.coordinator.runtime import housekeeping
from logtx.coordinator.runtime.partition import PartitionRuntime
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import DoubleStartError, GroupBoundError, NotAllowedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import journal_partition_of
from logtx.producer.producer import Producer

from ...waiting import eventually
from ..streams import TIMEOUT_S, RawStream

PARTITIONS = 2


@pytest.fixture
def topic(memory_log: MemoryLog) -> str:
    """A topic of two records."""
    memory_log.create_topic("in", partitions=1)
    with Producer({}, log=memory_log) as producer:
        for number in range(2):
            producer.produce("in", b"%d" % number)
    return "in"


@pytest.fixture(autouse=True)
def coordinator(
    memory_log: MemoryLog,
    shards: object,  # noqa: ARG001 - asked for before the coordinator begins
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EmbeddedCoordinator]:
    """A coordinator whose hours are short."""
    monkeypatch.setattr(housekeeping, "HOUR_S", 0.3)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
        limits=ShardConfig(
            session_grace_ms=50, producer_retention_hours=2, group_retention_hours=4
        ),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def admin(memory_log: MemoryLog) -> Iterator[AdminQueries]:
    """An operator."""
    with closing(AdminQueries(memory_log, timeout_s=TIMEOUT_S)) as asking:
        yield asking


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Shard]]:
    """`shards()`: those of all journal partitions."""
    made: list[PartitionRuntime] = []

    class Kept(PartitionRuntime):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(service, "PartitionRuntime", Kept)
    return lambda: [runtime.shard for runtime in made]


def read_and_commit(log: MemoryLog, topic: str, group: str, transaction_group: str) -> list[bytes]:
    """Commits what a new consumer of the group reads, as input of a transaction."""
    consumer = Consumer(
        {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "offsets.storage": "transactions",
            "transaction.group": transaction_group,
        },
        log=log,
    )
    with (
        closing(consumer),
        Producer(
            {"transactional.id": f"p-{transaction_group}", "transaction.group": transaction_group},
            log=log,
        ) as producer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        found = [m.value() for m in consumer.consume(2, 0.5)]
        if found:
            with producer.begin_transaction() as txn:
                txn.send_offsets(consumer)
    return found


def test_finding_22_all_that_was_used_once_goes(
    topic: str, memory_log: MemoryLog, shards: Callable[[], list[Shard]], admin: AdminQueries
) -> None:
    assert read_and_commit(memory_log, topic, "g", "t") == [b"0", b"1"]
    assert read_and_commit(memory_log, topic, "g", "t") == []
    with Producer({}, log=memory_log) as producer, producer.begin_transaction() as txn:
        txn.produce(topic, b"by nobody in particular")
    eventually(lambda: not any(s.producers for s in shards()), 10)
    eventually(lambda: not any(s.offsets.groups() or s.bindings for s in shards()), 10)
    assert admin.fetch_offsets("g").offsets == {}
    # It begins anew, wherever it is bound now.
    assert len(read_and_commit(memory_log, topic, "g", "elsewhere")) == 2


def test_the_offsets_of_a_group_with_a_member_stay(
    topic: str, memory_log: MemoryLog, shards: Callable[[], list[Shard]], admin: AdminQueries
) -> None:
    read_and_commit(memory_log, topic, "g", "t")
    member = memory_log.consumer({"group.id": "g", "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    member.poll(0.1)
    before = [shard.ages.hour for shard in shards()]
    eventually(lambda: all(s.ages.hour > b + 8 for s, b in zip(shards(), before, strict=True)), 20)
    assert admin.fetch_offsets("g").offsets
    assert admin.bind_group("g", None).transaction_group == "t"
    member.close()
    eventually(lambda: not admin.fetch_offsets("g").offsets, 10)


def test_a_subscription_keeps_its_binding(
    topic: str,
    coordinator: EmbeddedCoordinator,
    shards: Callable[[], list[Shard]],
    admin: AdminQueries,
) -> None:
    """Bound anew elsewhere, it would begin with all messages again (trap 104)."""
    admin.bind_group("q", "t")
    admin.bind_group("g", "t")
    with RawStream(coordinator.address, journal_partition_of("t", PARTITIONS)) as stream:
        attach = Attach(group="q", consumer=1, topics=(topic,))
        assert isinstance(stream.ask(attach), Attached)
    eventually(lambda: not any("g" in s.bindings for s in shards()), 20)
    before = [shard.ages.hour for shard in shards()]
    eventually(lambda: all(s.ages.hour > b + 8 for s, b in zip(shards(), before, strict=True)), 20)
    assert admin.bind_group("q", None).transaction_group == "t"


def test_an_operator_forgets_a_group(
    topic: str, memory_log: MemoryLog, admin: AdminQueries
) -> None:
    read_and_commit(memory_log, topic, "g", "t")
    with pytest.raises(NotAllowedError, match="has offsets"):
        admin._ask("g", UnbindGroup(group="g"), Done)
    admin.forget_group("g")
    admin.forget_group("g")
    assert admin.bind_group("g", None).transaction_group is None
    assert len(read_and_commit(memory_log, topic, "g", "u")) == 2
    assert admin.bind_group("g", None).transaction_group == "u"


def test_a_producer_that_is_here_is_not_forgotten(
    topic: str, memory_log: MemoryLog, admin: AdminQueries
) -> None:
    with Producer({"transactional.id": "p"}, log=memory_log) as producer:
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"v")
        with pytest.raises(NotAllowedError, match="stop it first"):
            admin.forget_producer("default", "p")
    eventually(lambda: _forgotten(admin, "p"), 10)


def test_after_a_double_start_nobody_counts_as_connected(
    memory_log: MemoryLog, admin: AdminQueries
) -> None:
    options = SessionOptions(producer_id="twice", generation=5, timeout_s=5)
    with closing(CoordinatorClient(memory_log, options)) as first:
        first.connect()
        with (
            closing(CoordinatorClient(memory_log, options)) as second,
            pytest.raises(DoubleStartError),
        ):
            second.connect()
    eventually(lambda: _forgotten(admin, "twice"), 10)


def _forgotten(admin: AdminQueries, name: str) -> bool:
    try:
        admin.forget_producer("default", name)
    except NotAllowedError:
        return False
    return True


def test_a_stale_coordinator_asks_again_who_is_bound_where(
    topic: str, memory_log: MemoryLog, admin: AdminQueries
) -> None:
    """What a coordinator once read of a binding does not outlive the offsets that it is for."""
    there = next(g for g in "abcd" if _home(g) != _home("t"))
    read_and_commit(memory_log, topic, "g", "t")
    admin.forget_group("g")
    assert len(read_and_commit(memory_log, topic, "g", there)) == 2
    claim = ClaimOffsets(group="g", claimant=1, partitions=((topic, 0),))
    with pytest.raises(GroupBoundError, match=repr(there)):
        admin._ask("t", claim, Claimed)


def test_trap_28_a_claim_does_not_keep_a_binding_that_ended(
    topic: str, admin: AdminQueries
) -> None:
    """Both would take the group's offsets: who has only claims asks again where it is bound."""
    there = next(g for g in "abcd" if _home(g) != _home("t"))
    admin.bind_group("g", "t")
    claim = ClaimOffsets(group="g", claimant=1, partitions=((topic, 0),))
    admin._ask("t", claim, Claimed)
    admin._ask("g", UnbindGroup(group="g"), Done)
    assert admin.bind_group("g", there).transaction_group == there
    with pytest.raises(GroupBoundError, match=repr(there)):
        admin._ask("t", claim, Claimed)


def _home(name: str) -> int:
    return journal_partition_of(name, PARTITIONS)
