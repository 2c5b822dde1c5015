"""Opens what producers and branches are built on, from the user's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from ..journal.logs.interface import Log, LogProducer
from ..journal.logs.open import open_log
from ..journal.native.interface import Handle
from ..journal.native.loading import opened
from ..journal.settings import refused
from ..journal.tls import TlsConfig
from .config import OWN

if TYPE_CHECKING:
    from .config import ProducerConfig
    from .coordinators import Coordinators

_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb")
"""Settings that are functions without a result, which librdkafka's poll and flush call."""


def resources(
    config: Mapping[str, Any],
    tls: TlsConfig | None,
    log: Log | None,
    coordinators: Coordinators | None,
) -> tuple[Log, Coordinators, Callable[[], None]]:
    """Returns the log, the way to its coordinators, and a function that closes what this opened.

    Raises:
        ConfigError: a file of TLS can't be used.
    """
    close: Callable[[], None] = _nothing
    protection = None
    if coordinators is None:
        from ..coordinator.client.tls import opened_tls
        from .coordinators import FoundCoordinators

        protection = opened_tls(tls)
    if log is None:
        log = open_log(config)
        close = log.close
    if coordinators is None:
        coordinators = FoundCoordinators(log, protection)
    return log, coordinators, close


def open_producer(
    log: Log, config: ProducerConfig, keep: Callable[[Exception], None]
) -> tuple[LogProducer, Handle | None]:
    """Opens the idempotent producer that all transactions share.

    Args:
        log: the log to write to.
        config: the producer's.
        keep: takes what the application's callbacks raise. Raised in librdkafka's poll or flush, it
            would break delivery reports that come in the same call.

    Returns:
        The producer, and its handle in C; None: there is none.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    settings = dict(config.librdkafka)
    for name in _CALLBACKS:
        if callable(settings.get(name)):
            settings[name] = _guarded(settings[name], keep)
    try:
        return opened(log.producer, settings)
    except KafkaException as error:
        raise refused(error.args[0].str(), OWN) from error


def _guarded(
    callback: Callable[..., object], keep: Callable[[Exception], None]
) -> Callable[..., None]:
    def called(*arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - the application's, whatever it is
            keep(error)

    return called


def _nothing() -> None:
    """Leaves a log that the caller gave to the caller."""
