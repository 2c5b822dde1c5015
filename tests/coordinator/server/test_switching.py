"""What is checked before a topic is switched: its binding, the topic itself, the other builds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pytest

from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.protocol.commands import (
    BindGroup,
    Binding,
    Claimed,
    ClaimOffsets,
    Done,
    SetTopicMode,
    TopicModes,
    UnbindGroup,
)
from logtx.journal.errors import (
    ConfigError,
    NotAllowedError,
    RequestTimedOutError,
    TopicModeError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode, Phase, binding_of
from logtx.journal.reader import journal_partition_of
from logtx.journal.records.codec import FORMAT_VERSION

from ..clusters import PARTITIONS, Cluster, cluster_of, until

TIMEOUT_S: Final = 10.0


@pytest.fixture
def cluster(memory_log: MemoryLog) -> Iterator[Cluster]:
    """Coordinators over a log with the topics `orders` and, compacted, `table`."""
    memory_log.create_topic("orders", partitions=2)
    memory_log.create_topic("table", partitions=1, settings={"cleanup.policy": "compact"})
    with cluster_of(memory_log) as made:
        yield made


@pytest.fixture
def admin(memory_log: MemoryLog) -> Iterator[AdminQueries]:
    """An operator."""
    with closing(AdminQueries(memory_log, timeout_s=TIMEOUT_S)) as asking:
        yield asking


def home(group: str) -> int:
    return journal_partition_of(group, PARTITIONS)


def test_a_topic_is_switched_by_the_home_that_it_is_bound_to(
    cluster: Cluster, admin: AdminQueries
) -> None:
    cluster.joined(2)
    switch = SetTopicMode(topic="orders", mode=Mode.METADATA)
    with pytest.raises(TopicModeError, match="bound to no transaction group"):
        admin._ask("billing", switch, TopicModes)
    bind = BindGroup(group=binding_of("orders"), transaction_group="billing")
    assert admin._ask(bind.group, bind, Binding).transaction_group == "billing"
    elsewhere = next(p for p in range(PARTITIONS) if p != home("billing"))
    with pytest.raises(TopicModeError, match="bound to transaction group 'billing'"):
        admin._ask(elsewhere, switch, TopicModes)


def test_a_topic_is_bound_once_for_ever(cluster: Cluster, admin: AdminQueries) -> None:
    cluster.join()
    name = binding_of("orders")
    for wanted in ("billing", "shipping"):
        bind = BindGroup(group=name, transaction_group=wanted)
        assert admin._ask(name, bind, Binding).transaction_group == "billing"
    with pytest.raises(NotAllowedError, match="bound for ever"):
        admin._ask(name, UnbindGroup(group=name), Done)
    with pytest.raises(TopicModeError, match=r"bound to transaction group 'billing' for ever"):
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="shipping")


@pytest.mark.parametrize(
    ("topic", "error", "why"),
    [
        ("nowhere", UnknownTopicError, "no topic 'nowhere'"),
        ("no/name", UnknownTopicError, "no topic 'no/name'"),
        ("table", UnsupportedTopicError, "compacted"),
        ("__transaction_control", UnsupportedTopicError, "logtx's own"),
    ],
)
def test_what_no_transaction_may_write_to_is_not_even_bound(
    topic: str, error: type[Exception], why: str, cluster: Cluster, admin: AdminQueries
) -> None:
    cluster.join()
    with pytest.raises(error, match=why):
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group="billing")
    assert admin.describe_topic(topic).transaction_group is None


def test_the_transaction_group_must_be_named_once(cluster: Cluster, admin: AdminQueries) -> None:
    cluster.join()
    with pytest.raises(ConfigError, match="name the one"):
        admin.set_topic_mode("orders", Mode.METADATA)
    never = admin.set_topic_mode("orders", Mode.MARKERS)
    assert (never.home, never.info.mode_offset) == (None, -1), "it always had markers"


def test_a_switch_outlasts_a_request_without_answer(
    cluster: Cluster, admin: AdminQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.join()
    ask, lost = admin._ask, 0

    def losing(of: Any, command: Any, *rest: Any) -> Any:
        nonlocal lost
        if isinstance(command, SetTopicMode) and lost < 3:
            lost += 1
            raise RequestTimedOutError("no answer")
        return ask(of, command, *rest)

    monkeypatch.setattr(admin, "_ask", losing)
    told = admin.set_topic_mode("orders", Mode.METADATA, transaction_group="billing", timeout_s=30)
    assert (told.info.phase, lost) == (Phase.METADATA, 3)
    lost = -1_000_000
    with pytest.raises(RequestTimedOutError, match="no answer"):
        admin.set_topic_mode("orders", Mode.MARKERS, timeout_s=0.3)


@pytest.mark.parametrize("reads", [0, FORMAT_VERSION - 1])
def test_an_older_coordinator_is_named(reads: int, cluster: Cluster, admin: AdminQueries) -> None:
    _, older = cluster.joined(2)
    ownership = older.coordinator._ownership
    assert ownership is not None
    ownership.peers._me = lambda: replace(ownership.me(), journal_format=reads)
    ownership.peers.tell()
    newer = next(n for n in cluster.nodes if n is not older)
    members = newer.coordinator._ownership.members  # type: ignore[union-attr]
    until(lambda: [m.journal_format for m in members.reached(time.monotonic())] == [reads])
    partition = next(iter(newer.serving))
    group = next(g for g in map(str, range(100)) if home(g) == partition)
    bind = BindGroup(group=binding_of("orders"), transaction_group=group)
    admin._ask(bind.group, bind, Binding)
    switch = SetTopicMode(topic="orders", mode=Mode.METADATA)
    with pytest.raises(TopicModeError, match=f"{older.address} reads .*upgrade it"):
        admin._ask(partition, switch, TopicModes)


def test_no_consumer_group_has_a_topics_name(cluster: Cluster, admin: AdminQueries) -> None:
    cluster.join()
    name = binding_of("orders")
    with pytest.raises(ConfigError, match=r"choose another group\.id"):
        admin.bind_group(name, "billing")
    claim = ClaimOffsets(group=name, partitions=(("orders", 0),), claimant=1)
    with pytest.raises(ConfigError, match="stands for a topic"):
        admin._ask(0, claim, Claimed)
