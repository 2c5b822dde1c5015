"""Opens what producers and branches are built on, from the user's configuration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaException

from ..journal.logs.interface import Log, LogProducer
from ..journal.logs.lending import LOGS
from ..journal.native.interface import Handle
from ..journal.native.loading import opened
from ..journal.settings import agreed, refused
from .config import OWN
from .succession import Keep

if TYPE_CHECKING:
    from .config import ProducerConfig
    from .coordinators import Coordinators

_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb")
"""Settings that are functions without a result, which librdkafka's poll and flush call."""


class Resources(NamedTuple):
    """What a producer is built on."""

    log: Log
    coordinators: Coordinators
    close_log: Callable[[], None]
    """Closes the log, if it was opened for this producer."""
    share: Hashable | None
    """Equal for producers that may share a librdkafka producer; None: this one may not."""


def resources(
    config: Mapping[str, Any],
    settings: ProducerConfig,
    log: Log | None,
    coordinators: Coordinators | None,
) -> Resources:
    """Returns what a producer is built on: what is given, and what has to be opened.

    Raises:
        ConfigError: a file of TLS can't be used.
    """
    protection = None
    if coordinators is None:
        from ..coordinator.client.tls import opened_tls
        from .coordinators import FoundCoordinators

        protection = opened_tls(settings.tls)
    lease = LOGS.lend(config, log=log, shared=settings.shared)
    if coordinators is None:
        coordinators = FoundCoordinators(lease.log, protection)
    agreed_on = agreed(settings.librdkafka) if settings.shared else None
    # By its identity: two logs may be equal, or have no hash. Who uses a librdkafka producer keeps
    # its log, so no other one has the same.
    share = None if agreed_on is None else (id(lease.log), agreed_on)
    return Resources(lease.log, coordinators, lease.close, share)


def open_producer(
    log: Log, config: ProducerConfig, keep: Keep
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


def _guarded(callback: Callable[..., object], keep: Keep) -> Callable[..., None]:
    def called(*arguments: object) -> None:
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 - the application's, whatever it is
            keep(error)

    return called
