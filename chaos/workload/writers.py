"""Chooses the writer of a run's producers: logtx's, or Kafka's own as a comparison."""

from __future__ import annotations

from ..options import System
from ..settings import Settings
from .clients import WriterClient
from .kafka_writer import KafkaWriter
from .logtx_writer import LogtxWriter


def open_writer(
    settings: Settings, *, name: str | None = None, key: str | None = None, in_flight: int = 1
) -> WriterClient:
    """Opens a producer of this name, or one that holds a transaction key.

    Kafka has no transaction keys. There the key serves as the name, and the new producer fences the
    one that has it.

    Raises:
        FencedError: a newer producer has the name.
        FailedError: a producer can't be opened now.
    """
    if settings.system is System.LOGTX:
        return LogtxWriter(settings, name=name, key=key, in_flight=in_flight)
    transactional_id = key or name
    assert transactional_id is not None
    return KafkaWriter(settings, transactional_id)
