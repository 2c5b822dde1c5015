"""The producer's settings: ours, taken out of the user's dict, and librdkafka's, passed on."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ..journal.errors import ConfigError

_INT32_MAX: Final = 2**31 - 1
_TRUE: Final = ("true", "t", "1")
_FALSE: Final = ("false", "f", "0")

# Settings of librdkafka that would break what the producer promises, and why.
_FORBIDDEN_TRUE: Final = {
    "delivery.report.only.error": "commits need the report of every record",
    "enable.gapless.guarantee": "one failed record would stop all transactions of the producer",
}
_DELIVERY_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer, checked."""

    producer_id: str
    """``transactional.id``; random where none is given, and then nobody can fence it."""
    generation: int | None = None
    """``transactional.generation``; None: the coordinator assigns the next."""
    transaction_group: str = "default"
    """``transaction.group``: its transactions have one serial order."""
    transaction_timeout_ms: int = 60_000
    """``transaction.timeout.ms``: the coordinator aborts what is open for longer."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long a request is tried before it is given up."""
    registration_delay_ms: int = 50
    """``partition.registration.delay.ms``: shorter transactions name partitions at the end only."""
    in_flight_max: int = 1_000
    """``transactions.in.flight.max``: `begin_transaction` waits while as many are undecided."""
    delivery_timeout_ms: int = 60_000
    """``delivery.timeout.ms``: a record not acknowledged by then has failed."""
    librdkafka: Mapping[str, Any]
    """What the idempotent producer is made with."""

    @property
    def coordinator_timeout_s(self) -> float:
        """Bound of a request to the coordinator, seconds."""
        return self.coordinator_timeout_ms / 1000

    @property
    def delivery_timeout_s(self) -> float:
        """Bound of a record's delivery, seconds."""
        return self.delivery_timeout_ms / 1000

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Check the user's settings and sort ours from librdkafka's.

        Raises:
            ConfigError: out of range, or one that would break a guarantee.
        """
        rest = dict(config)
        timeout_ms = _integer(rest, "transaction.timeout.ms", 60_000, 1)
        own = {
            "producer_id": _text(rest, "transactional.id", "")
            or f"anonymous-{secrets.token_hex(8)}",
            "generation": _integer(rest, "transactional.generation", None, 0),
            "transaction_group": _text(rest, "transaction.group", "default"),
            "transaction_timeout_ms": timeout_ms,
            "coordinator_timeout_ms": _integer(rest, "coordinator.timeout.ms", 30_000, 1),
            "registration_delay_ms": _integer(rest, "partition.registration.delay.ms", 50, 0),
            "in_flight_max": _integer(rest, "transactions.in.flight.max", 1_000, 1),
        }
        librdkafka = check_librdkafka(rest)
        # A record delivered after its transaction expired would be dropped by every consumer.
        if not any(name in librdkafka for name in _DELIVERY_TIMEOUTS):
            librdkafka["delivery.timeout.ms"] = timeout_ms
        delivery = next(librdkafka[n] for n in _DELIVERY_TIMEOUTS if n in librdkafka)
        # librdkafka reads 0 as "never"; every wait of ours has a bound.
        delivery_ms = _integer({"delivery.timeout.ms": delivery}, "delivery.timeout.ms", 0, 1)
        return cls(**own, delivery_timeout_ms=delivery_ms, librdkafka=librdkafka)


def check_librdkafka(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an idempotent producer: the user's, and what the guarantees need.

    Raises:
        ConfigError: the user asks for the opposite.
    """
    settings = {k: v for k, v in config.items() if k != "bootstrap.servers"}
    if not _flag(settings, "enable.idempotence", default=True):
        raise ConfigError(
            "enable.idempotence=false would let retries write a record twice into a transaction: "
            "remove it"
        )
    for name in ("acks", "request.required.acks"):
        if str(settings.pop(name, "all")).lower() not in ("all", "-1"):
            raise ConfigError(f"{name} must be all: a commit counts on replicated records")
    for name, reason in _FORBIDDEN_TRUE.items():
        if _flag(settings, name, default=False):
            raise ConfigError(f"{name}=true can't be used, for {reason}: remove it")
        settings.pop(name, None)
    return {**settings, "enable.idempotence": True, "acks": "all"}


def _flag(config: Mapping[str, Any], name: str, *, default: bool) -> bool:
    text = str(config.get(name, default)).lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{name} must be true or false, not {config[name]!r}")
    return text in _TRUE


def _text(config: dict[str, Any], name: str, default: str) -> str:
    value = config.pop(name, default)
    if not isinstance(value, str) or (not value and default):
        raise ConfigError(f"{name} must be a non-empty string, not {value!r}")
    return value


def _integer(config: dict[str, Any], name: str, default: int | None, minimum: int) -> Any:
    value = config.pop(name, default)
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from error
    if not minimum <= number <= _INT32_MAX:
        raise ConfigError(f"{name} must be between {minimum} and {_INT32_MAX}, not {number}")
    return number
