"""Opens what producers and branches are built on, from the user's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from ..journal.errors import ConfigError
from ..journal.logs.interface import Log, LogProducer
from ..journal.logs.open import open_log

if TYPE_CHECKING:
    from .config import ProducerConfig
    from .coordinators import Coordinators


def resources(
    config: Mapping[str, Any], log: Log | None, coordinators: Coordinators | None
) -> tuple[Log, Coordinators, Callable[[], None]]:
    """Returns the log, the way to its coordinators, and a function that closes what this opened."""
    close: Callable[[], None] = _nothing
    if log is None:
        log = open_log(config)
        close = log.close
    if coordinators is None:
        from .coordinators import GrpcCoordinators

        coordinators = GrpcCoordinators(log)
    return log, coordinators, close


def open_producer(log: Log, config: ProducerConfig) -> LogProducer:
    """Opens the idempotent producer that all transactions share.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    try:
        return log.producer(config.librdkafka)
    except KafkaException as error:
        raise ConfigError(f"librdkafka refuses the configuration: {error}") from error


def _nothing() -> None:
    """Leaves a log that the caller gave to the caller."""
