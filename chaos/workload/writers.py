"""Which writer a run's producers use: logtx's, or Kafka's own as a comparison."""

from __future__ import annotations

from ..options import System
from ..settings import Settings
from .clients import WriterClient
from .kafka_writer import KafkaWriter
from .logtx_writer import LogtxWriter


def open_writer(
    settings: Settings, *, name: str | None = None, key: str | None = None, in_flight: int = 1
) -> WriterClient:
    """A producer of this name, or the holder of a transaction key.

    Kafka has no keys: there who writes with one takes it for a name, and throws out whoever has it.

    Raises:
        FencedError: a newer one has the name.
        FailedError: there is none now.
    """
    if settings.system is System.LOGTX:
        return LogtxWriter(settings, name=name, key=key, in_flight=in_flight)
    transactional_id = key or name
    assert transactional_id is not None
    return KafkaWriter(settings, transactional_id)
