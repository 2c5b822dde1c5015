"""Settings of a queue's consumer: checks logtx's own, and passes the others on to librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ..journal.acks import SubscriptionKind
from ..journal.errors import ConfigError
from ..journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..journal.settings import plain, refuse_unknown, take_choice, take_integer, take_text
from ..journal.tls import OWN as TLS
from ..journal.tls import TlsConfig, take_tls
from .config import MIB

OWN: Final = (
    *TLS,
    "ack.timeout.ms",
    "coordinator.timeout.ms",
    "errors.deadletterqueue.topic.name",
    "max.poll.records",
    "max.prefetch.records",
    "pending.dir",
    "pending.memory.max.bytes",
    "redelivery.delay.ms",
    "share.acknowledgement.mode",
    "share.delivery.count.limit",
    "subscription.type",
    "torn.reset",
    "transaction.group",
)
_OWN_PREFIXES: Final = (
    *("ack.", "coordinator.", "errors.", "pending.", "redelivery.", "share.", "subscription."),
    *("torn.", "transaction."),
)
"""Prefixes of our own settings: an unknown name with one is a typing error, not librdkafka's."""


_OF_GROUPS: Final = (
    *("auto.commit.interval.ms", "enable.auto.commit", "enable.auto.offset.store"),
    *("enable.partition.eof", "group.instance.id", "group.protocol", "group.remote.assignor"),
    *("heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy"),
    "session.timeout.ms",
)
"""librdkafka's settings for members of consumer groups. Some would change what the consumer that
reads leases does, and the others would do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """Checked settings of a queue's consumer."""

    group_id: str
    """``group.id``: the subscription."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """``transaction.group``: the one that the subscription is bound to, for ever. Transactions that
    acknowledge its messages are of this group."""
    kind: SubscriptionKind = SubscriptionKind.SHARED
    """``subscription.type``: shared or failover. Counts when the subscription is made."""
    reset: str = "latest"
    """``auto.offset.reset``: where the subscription begins in topics that are new to it."""
    is_explicit: bool = False
    """``share.acknowledgement.mode``: explicit, or implicit, where the next poll accepts what the
    last one returned."""
    poll_records: int = 500
    """``max.poll.records``: most messages of a poll, and most offsets of a lease. More cost fewer
    requests; fewer spread the work among more consumers."""
    prefetch_records: int = 5_000
    """``max.prefetch.records``: most offsets of a lease, of a consumer that is fast; it has them
    before it works on them. 0: no more than a poll returns."""
    delivery_limit: int = 5
    """``share.delivery.count.limit``: how often a message is given to applications before it is
    given up; 0: without end."""
    redelivery_delay_ms: int = 1_000
    """``redelivery.delay.ms``: how long a message waits whose second delivery was in a transaction
    that aborted; twice as long after each further one."""
    dead_letter_topic: str | None = None
    """``errors.deadletterqueue.topic.name``: where messages go that are given up; None: they are
    deleted."""
    ack_timeout_ms: int = 30_000
    """``ack.timeout.ms``: how long a message is this consumer's before it is given to another."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: bound of requests that a call waits for."""
    tls: TlsConfig | None = None
    """``coordinator.security.protocol`` and ``coordinator.ssl.…``: how connections to coordinators
    are protected; None: not at all."""
    pending_memory_max_bytes: int = 64 * MIB
    """``pending.memory.max.bytes``: records of transactions in a lease beyond it go to disk."""
    pending_dir: str | None = None
    """``pending.dir``: where they go; None: a fresh temporary directory."""
    torn_skip: bool = False
    """``torn.reset``: skip or error, if retention deleted a part of a committed transaction."""
    librdkafka: Mapping[str, Any]
    """Settings of the consumer that reads records."""

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Checks the user's settings and separates ours from librdkafka's.

        Raises:
            ConfigError: a setting is missing, unknown or out of range; the message names it.
        """
        rest = {name: value for name, value in plain(config).items() if name != "bootstrap.servers"}
        group = rest.pop("group.id", None)
        if not group or not isinstance(group, str):
            raise ConfigError("group.id must be set: name the subscription, such as 'invoicing'")
        own: dict[str, Any] = {
            "group_id": group,
            "transaction_group": take_text(rest, "transaction.group", DEFAULT_TRANSACTION_GROUP),
            "kind": SubscriptionKind(
                take_choice(rest, "subscription.type", "shared", list(SubscriptionKind))
            ),
            "reset": take_choice(rest, "auto.offset.reset", "latest", ["earliest", "latest"]),
            "is_explicit": take_choice(
                rest, "share.acknowledgement.mode", "implicit", ["implicit", "explicit"]
            )
            == "explicit",
            "poll_records": take_integer(rest, "max.poll.records", 500, 1),
            "prefetch_records": take_integer(rest, "max.prefetch.records", 5_000, 0, 5_000),
            "delivery_limit": take_integer(rest, "share.delivery.count.limit", 5, 0, 1_000_000),
            "redelivery_delay_ms": take_integer(rest, "redelivery.delay.ms", 1_000, 0, 86_400_000),
            "dead_letter_topic": take_text(rest, "errors.deadletterqueue.topic.name", None),
            "ack_timeout_ms": take_integer(rest, "ack.timeout.ms", 30_000, 100, 86_400_000),
            "coordinator_timeout_ms": take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            "tls": take_tls(rest),
            "pending_memory_max_bytes": take_integer(
                rest, "pending.memory.max.bytes", 64 * MIB, 0, 2**62
            ),
            "pending_dir": take_text(rest, "pending.dir", None),
            "torn_skip": take_choice(rest, "torn.reset", "error", ["skip", "error"]) == "skip",
        }
        take_choice(rest, "isolation.level", "read_committed", ["read_committed"])
        if "kafka.isolation.level" in rest:
            raise ConfigError(
                "kafka.isolation.level can't be set for a queue, which gives out records of Kafka's"
                " own transactions at once: remove it, and write to the topic without those"
            )
        for name in _OF_GROUPS:
            if name in rest:
                raise ConfigError(
                    f"{name} is for members of consumer groups, and a queue has none: remove it"
                )
        refuse_unknown(rest, _OWN_PREFIXES, OWN, "share consumer")
        return cls(**own, librdkafka=rest)
