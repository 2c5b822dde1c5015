"""Splits the user's settings: checks logtx's own, and passes the others on to librdkafka.

librdkafka's consumer only reads. logtx handles offsets, resets and isolation itself, so it fixes
librdkafka's settings for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from ..journal.errors import ConfigError
from ..journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..journal.settings import (
    plain,
    refuse_unknown,
    take_choice,
    take_flag,
    take_integer,
    take_text,
)
from ..journal.tls import OWN as TLS
from ..journal.tls import TlsConfig, take_tls

MIB: Final = 1024 * 1024
_RESETS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), "earliest"),
    **dict.fromkeys(("latest", "largest", "end"), "latest"),
    **dict.fromkeys(("error", "none"), "error"),
}
_OWN_PREFIXES: Final = (
    "pending.",
    "torn.",
    "offsets.storage",
    "coordinator.",
    "transaction.",
    "kafka.",
)
"""Prefixes of our own settings: an unknown name with one is a typing error, not librdkafka's."""
OWN: Final = (
    *TLS,
    "coordinator.timeout.ms",
    "kafka.isolation.level",
    "offsets.storage",
    "pending.dir",
    "pending.disk.max.bytes",
    "pending.lookup.age.ms",
    "pending.memory.max.bytes",
    "torn.reset",
    "transaction.group",
)
_FIXED: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "error",  # any other value silently skips what retention deleted
    "enable.auto.commit": False,  # librdkafka would commit what was read, not what was delivered
    "enable.auto.offset.store": False,  # `Reading` keeps what `Consumer.store_offsets` chose
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "fetch.queue.backoff.ms": 5,  # at its default of 1 s a backlog is read at an eighth of the rate
    # How often an idle consumer asks each broker: ten of them took 0.21 of a core of it at 10 ms,
    # and 0.05 at 100. What is new comes at once; only a seek waits for the fetch under way.
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 20_000,  # per partition; each queued message costs 0.5 KB of overhead
}
QUEUE_SHARE: Final = 4
"""Divisor: ``queued.max.messages.kbytes``, unless the user sets it, is this part of
``pending.memory.max.bytes``, for what librdkafka reads ahead is memory too. The setting bounds each
fetch as well, so a larger divisor saves memory and makes fetches smaller."""
QUEUE_KBYTES: Final = (1_024, 65_536)
"""Smallest and largest default of ``queued.max.messages.kbytes``, in KiB."""
_MAIN_ONLY: Final = frozenset({"group.instance.id", "on_commit", "statistics.interval.ms"})


def without_callbacks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns librdkafka's settings for a consumer that the application does not know of: without
    its callbacks, but for ``oauth_cb``, without which no broker is reached."""
    return {
        name: value
        for name, value in settings.items()
        if not name.endswith("_cb") or name == "oauth_cb"
    }


class IsolationLevel(StrEnum):
    """What the application may see. Source: Transactional Messaging in Kafka, "Transactional
    consumer".
    """

    READ_UNCOMMITTED = "read_uncommitted"
    """Delivers everything except markers, at once."""
    READ_COMMITTED = "read_committed"
    """Delivers plain records at once, and each committed transaction at its marker."""
    SERIALIZABLE = "serializable"
    """Delivers only the committed transactions of one transaction group, one after the other, in
    the order in which they were decided."""


class OffsetsStorage(StrEnum):
    """Where the positions of a consumer group are kept."""

    KAFKA = "kafka"
    """In Kafka's group offsets, which `Consumer.commit` writes."""
    TRANSACTIONS = "transactions"
    """In the group's IOV, which the transactions of a `Producer` commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Checked settings of a consumer."""

    group_id: str
    """``group.id``"""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """``isolation.level``"""
    auto_offset_reset: str = "latest"
    """``auto.offset.reset``: earliest, latest or error. Applies where nothing is committed, or
    where retention deleted the record at the committed offset."""
    enable_auto_commit: bool = True
    """``enable.auto.commit``"""
    auto_commit_interval_ms: int = 5_000
    """``auto.commit.interval.ms``"""
    enable_auto_offset_store: bool = True
    """``enable.auto.offset.store``: True commits what was delivered, False what
    `Consumer.store_offsets` chose."""
    pending_memory_max_bytes: int = 64 * MIB
    """``pending.memory.max.bytes``: beyond it, records of pending transactions go to disk."""
    pending_disk_max_bytes: int | None = None
    """``pending.disk.max.bytes``: most that these records may occupy on disk. None (given as -1) =
    no limit of ours: a full disk loses nothing."""
    pending_dir: str | None = None
    """``pending.dir``: where these records go. None = a fresh temporary directory."""
    pending_lookup_age_ms: int = 60_000
    """``pending.lookup.age.ms``: how long a transaction is pending before its fate is looked up."""
    torn_reset: str | None = None
    """``torn.reset``: skip or error, if retention deleted a part of a committed transaction. None =
    skip where reading began at the log's start, else error."""
    offsets_storage: OffsetsStorage = OffsetsStorage.KAFKA
    """``offsets.storage``"""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long to wait for the coordinator's answer, and for pending
    transactions that hold a committed position."""
    tls: TlsConfig | None = None
    """``coordinator.security.protocol`` and ``coordinator.ssl.…``: how connections to coordinators
    are protected; None: not at all."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """``transaction.group``: the group whose transactions ``isolation.level=serializable`` and
    `Consumer.transactions` deliver."""
    cooperative: bool = False
    """Whether a rebalance adds and takes away single partitions: with a cooperative assignor, or
    ``group.protocol=consumer``."""
    partition_eof: bool = False
    """``enable.partition.eof``: whether an event comes when a partition was read to its end, and
    all of it is delivered or pending."""
    librdkafka: Mapping[str, Any]
    """Settings of the inner consumer. Its ``isolation.level`` is ours of the name
    ``kafka.isolation.level``: read_committed hides aborted transactions of Kafka's own producers,
    and stops at the first one that is open."""

    @property
    def tells_ends(self) -> bool:
        """Whether librdkafka tells when a partition was read to its end."""
        return bool(self.librdkafka["enable.partition.eof"])

    @property
    def librdkafka_quiet(self) -> dict[str, Any]:
        """Settings for consumers that only read on the side: without the application's callbacks
        (``oauth_cb`` stays) and without ``group.instance.id``."""
        rest = {name: each for name, each in self.librdkafka.items() if name not in _MAIN_ONLY}
        quick = {"fetch.wait.max.ms": 10}  # they go from place to place, and wait for it each time
        return {**without_callbacks(rest), **quick, "enable.partition.eof": False}

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Checks the user's settings and separates ours from librdkafka's.

        Raises:
            ConfigError: a setting is missing, unknown or out of range; the message names it.
        """
        rest = {name: value for name, value in plain(config).items() if name != "bootstrap.servers"}
        group = rest.get("group.id")
        if group is not None and not isinstance(group, str):
            raise ConfigError(f"group.id must be text, not {group!r}")
        if not group:
            raise ConfigError("group.id must be set: name the consumer group, such as 'audit'")
        storage = OffsetsStorage(
            take_choice(rest, "offsets.storage", "kafka", list(OffsetsStorage))
        )
        in_kafka = storage is OffsetsStorage.KAFKA
        auto_commit = take_flag(rest, "enable.auto.commit", in_kafka)
        if auto_commit and not in_kafka:
            raise ConfigError(
                "enable.auto.commit=true does not go with offsets.storage=transactions, where "
                "transactions commit the offsets: remove it"
            )
        auto_store = take_flag(rest, "enable.auto.offset.store", True)
        if not auto_store and not in_kafka:
            raise ConfigError(
                "enable.auto.offset.store=false does not go with offsets.storage=transactions, "
                "where send_offsets commits what was delivered: remove it"
            )
        own: dict[str, Any] = {
            "group_id": group,
            "isolation_level": IsolationLevel(
                take_choice(rest, "isolation.level", "read_committed", list(IsolationLevel))
            ),
            "auto_offset_reset": _RESETS[
                take_choice(rest, "auto.offset.reset", "latest", list(_RESETS))
            ],
            "enable_auto_commit": auto_commit,
            "auto_commit_interval_ms": take_integer(rest, "auto.commit.interval.ms", 5_000, 0),
            "enable_auto_offset_store": auto_store,
            "pending_memory_max_bytes": take_integer(
                rest, "pending.memory.max.bytes", 64 * MIB, 0, 2**62
            ),
            "pending_disk_max_bytes": _or_none(
                take_integer(rest, "pending.disk.max.bytes", -1, -1, 2**62)
            ),
            "pending_dir": take_text(rest, "pending.dir", None),
            "pending_lookup_age_ms": take_integer(rest, "pending.lookup.age.ms", 60_000, 1),
            "torn_reset": take_choice(rest, "torn.reset", None, ["skip", "error"]),
            "offsets_storage": storage,
            "coordinator_timeout_ms": take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            "tls": take_tls(rest),
            "transaction_group": take_text(rest, "transaction.group", DEFAULT_TRANSACTION_GROUP),
        }
        kafka_level = take_choice(
            rest,
            "kafka.isolation.level",
            "read_uncommitted",
            ["read_uncommitted", "read_committed"],
        )
        refuse_unknown(rest, _OWN_PREFIXES, OWN, "consumer")
        eof = take_flag(rest, "enable.partition.eof", False)
        if eof and own["isolation_level"] is IsolationLevel.SERIALIZABLE:
            raise ConfigError(
                "enable.partition.eof=true does not go with isolation.level=serializable, where a"
                " transaction may wait for another partition: remove it, and ask lag()"
            )
        librdkafka = _librdkafka(rest, own["pending_memory_max_bytes"])
        librdkafka["isolation.level"] = kafka_level
        # Only this tells that nothing more comes where aborted records are the last ones.
        librdkafka["enable.partition.eof"] = eof or kafka_level == "read_committed"
        cooperative = _cooperative(rest)
        return cls(**own, cooperative=cooperative, partition_eof=eof, librdkafka=librdkafka)


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


def _librdkafka(rest: Mapping[str, Any], memory_max_bytes: int) -> dict[str, Any]:
    least, most = QUEUE_KBYTES
    kbytes = max(least, min(memory_max_bytes // QUEUE_SHARE // 1024, most))
    return {**_DEFAULTS, "queued.max.messages.kbytes": kbytes, **rest, **_FIXED}


def _cooperative(rest: Mapping[str, Any]) -> bool:
    strategy = str(rest.get("partition.assignment.strategy", ""))
    return "cooperative" in strategy or rest.get("group.protocol") == "consumer"
