"""The producer's settings: logtx's own, taken out of the user's dict, and librdkafka's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ..journal.errors import ConfigError
from ..journal.keys import DEFAULT_OWNER, TransactionKey
from ..journal.producer_ids import DEFAULT_TRANSACTION_GROUP, producer_id_of
from ..journal.settings import (
    INT32_MAX,
    plain,
    refuse_unknown,
    take_flag,
    take_integer,
    take_text,
)
from ..journal.tls import OWN as TLS
from ..journal.tls import TlsConfig, take_tls

# Settings of librdkafka that would break the producer's guarantees, and why.
_FORBIDDEN_TRUE: Final = {
    "delivery.report.only.error": "commits need the report of every record",
    "enable.gapless.guarantee": "one failed record would stop all transactions of the producer",
}
OWN: Final = (
    *TLS,
    "coordinator.timeout.ms",
    "partition.registration.delay.ms",
    "producer.shared",
    "transaction.begin.ahead",
    "transaction.group",
    "transaction.key",
    "transaction.sidecar.min.bytes",
    "transaction.timeout.ms",
    "transactional.generation",
    "transactional.id",
    "transactions.in.flight.max",
)
"""Names of logtx's own settings."""
_OWN_PREFIXES: Final = (
    "coordinator.",
    "partition.registration.",
    "producer.",
    "transaction.",
    "transactional.",
    "transactions.",
)
"""Prefixes of them: an unknown name with one is a typing error, not librdkafka's."""
_KEY_SAYS: Final = ("transactional.id", "transaction.group", "transactional.generation")
"""Settings that a transaction key replaces."""
_DELIVERY_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")
_RETRY_BACKOFFS: Final = {"retry.backoff.ms": 100, "retry.backoff.max.ms": 1_000}
"""Settings of which the lower one is how long librdkafka waits at first → its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The checked settings of a producer."""

    producer_id: str
    """Stands for ``transactional.id`` in its group; without one no other producer can fence it.

    With a ``transaction.key`` this and the transaction group are `TransactionKey.name`.
    """
    generation: int | None = None
    """``transactional.generation``; None: the coordinator assigns the next one."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """``transaction.group``: its transactions have one serial commit order."""
    transaction_key: TransactionKey | None = None
    """``transaction.key``: one connection and one open transaction at a time."""
    transaction_timeout_ms: int = 60_000
    """``transaction.timeout.ms``: the coordinator aborts a transaction that is open for longer."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long a request is repeated before it is given up."""
    tls: TlsConfig | None = None
    """``coordinator.security.protocol`` and ``coordinator.ssl.…``: how connections to coordinators
    are protected; None: not at all."""
    registration_delay_ms: int = 50
    """``partition.registration.delay.ms``: shorter transactions name partitions at the end only."""
    in_flight_max: int = 1_000
    """``transactions.in.flight.max``: with this many undecided, `begin_transaction` waits."""
    begin_ahead: bool = True
    """``transaction.begin.ahead``: whether to begin the next transaction while the one before ends.

    Only where one follows another; it is aborted if it is not asked for within 0.2 s.
    """
    sidecar_min_bytes: int = -1
    """``transaction.sidecar.min.bytes``: what a transaction that does not say it writes to a topic
    before it goes over to its sidecar: 0 nothing, -1 everything."""
    shared: bool = True
    """``producer.shared``: whether it shares librdkafka's producer with others of this process that
    have the same settings of librdkafka."""
    delivery_timeout_ms: int = 60_000
    """``delivery.timeout.ms``: a record that is not acknowledged by then has failed."""
    retry_backoff_ms: int = 100
    """``retry.backoff.ms``, or ``retry.backoff.max.ms`` if that is less: how long librdkafka waits
    before it sends a record again."""
    queue_max: int = 100_000
    """``queue.buffering.max.messages``: with as many records, `produce` waits for room."""
    librdkafka: Mapping[str, Any]
    """Settings for librdkafka's idempotent producer."""

    @property
    def coordinator_timeout_s(self) -> float:
        """Time-out of a request to the coordinator, seconds."""
        return self.coordinator_timeout_ms / 1000

    @property
    def delivery_timeout_s(self) -> float:
        """Time-out of a record's delivery, seconds."""
        return self.delivery_timeout_ms / 1000

    def sidecar_from(self, sidecar: bool | None) -> int | None:
        """Returns how many bytes of a topic precede those in its sidecar; None: it is not used.

        Args:
            sidecar: what the transaction or the branch says of it; None: nothing.
        """
        if sidecar is not None:
            return 0 if sidecar else None
        return None if self.sidecar_min_bytes < 0 else self.sidecar_min_bytes

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Checks the user's settings and separates logtx's own from librdkafka's.

        Raises:
            ConfigError: a setting is unknown or out of range, or would break a guarantee.
        """
        rest = plain(config)
        timeout_ms = take_integer(rest, "transaction.timeout.ms", 60_000, 1)
        own: dict[str, Any] = {
            **_take_identity(rest),
            "transaction_timeout_ms": timeout_ms,
            "coordinator_timeout_ms": take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            "tls": take_tls(rest),
            "registration_delay_ms": take_integer(rest, "partition.registration.delay.ms", 50, 0),
            "in_flight_max": take_integer(rest, "transactions.in.flight.max", 1_000, 1),
            "begin_ahead": take_flag(rest, "transaction.begin.ahead", True),
            "shared": take_flag(rest, "producer.shared", True),
            "sidecar_min_bytes": take_integer(rest, "transaction.sidecar.min.bytes", -1, -1),
        }
        refuse_unknown(rest, _OWN_PREFIXES, OWN, "producer")
        librdkafka = check_librdkafka(rest)
        # Every consumer would drop a record that is delivered after its transaction expired.
        if not any(name in librdkafka for name in _DELIVERY_TIMEOUTS):
            librdkafka["delivery.timeout.ms"] = timeout_ms
        delivery = next(librdkafka[n] for n in _DELIVERY_TIMEOUTS if n in librdkafka)
        # librdkafka reads 0 as "never"; every wait of logtx has a bound.
        delivery_ms = take_integer({"delivery.timeout.ms": delivery}, "delivery.timeout.ms", 0, 1)
        retry = {name: librdkafka[name] for name in _RETRY_BACKOFFS if name in librdkafka}
        retry = {name: take_integer({name: retry[name]}, name, 0, 1) for name in retry}
        librdkafka.update(retry)  # As it is read here: librdkafka takes "0100" for an octal number.
        own["retry_backoff_ms"] = min((_RETRY_BACKOFFS | retry).values())
        queue = {"queue.buffering.max.messages": librdkafka.get("queue.buffering.max.messages")}
        queue_max = take_integer(queue, "queue.buffering.max.messages", None, 0)
        if queue_max is not None:
            own["queue_max"] = queue_max or INT32_MAX  # librdkafka reads 0 as "no limit".
        return cls(**own, delivery_timeout_ms=delivery_ms, librdkafka=librdkafka)


def _take_identity(rest: dict[str, Any]) -> dict[str, Any]:
    """Takes the producer's identity: a ``transaction.key``, or a ``transactional.id`` in a group.

    Raises:
        ConfigError: both are set, or a name is not allowed.
    """
    if "transaction.key" in rest:
        return _take_key(rest)
    group = take_text(rest, "transaction.group", DEFAULT_TRANSACTION_GROUP)
    transactional_id = take_text(rest, "transactional.id", "") or None
    return {
        "producer_id": producer_id_of(group, transactional_id),
        "transaction_group": group,
        "generation": take_integer(rest, "transactional.generation", None, 0),
    }


def _take_key(rest: dict[str, Any]) -> dict[str, Any]:
    both = [name for name in _KEY_SAYS if rest.get(name) is not None]
    if both:
        raise ConfigError(
            f"transaction.key says by itself what {both[0]} would: remove one of them"
        )
    text = rest.pop("transaction.key")
    if not isinstance(text, str):
        raise ConfigError(f"transaction.key must be a string, not {text!r}")
    key = TransactionKey(DEFAULT_OWNER, text)
    return {
        "producer_id": key.name,
        "transaction_group": key.name,
        "generation": None,
        "transaction_key": key,
    }


def check_librdkafka(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an idempotent producer's settings: the user's, and those that the guarantees need.

    Raises:
        ConfigError: a setting of the user contradicts these.
    """
    settings = {k: v for k, v in config.items() if k != "bootstrap.servers"}
    if not take_flag(settings, "enable.idempotence", True):
        raise ConfigError(
            "enable.idempotence=false would let retries write a record twice into a transaction: "
            "remove it"
        )
    for name in ("acks", "request.required.acks"):
        if str(settings.pop(name, "all")).lower() not in ("all", "-1"):
            raise ConfigError(f"{name} must be all: a commit counts on replicated records")
    for name, reason in _FORBIDDEN_TRUE.items():
        if take_flag(settings, name, False):
            raise ConfigError(f"{name}=true can't be used, for {reason}: remove it")
    return {**settings, "enable.idempotence": True, "acks": "all"}
