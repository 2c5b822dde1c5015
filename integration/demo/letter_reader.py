"""Reads the dead letters of the demo's queue when all workers have ended."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import TopicPartition

from ...consumer.consumer import Consumer
from ...journal.errors import BrokerError
from .flights import Flight, decode_flight, read_flights
from .letters import LetterFindings, find_in
from .part import Stage

_TIMEOUT_S: Final = 20.0
"""Bounds the wait for the letters that the journal has committed."""
_WAIT_S: Final = 0.5
"""How long it looks for letters beyond these. A smaller value may miss one that should not be."""
_BATCH: Final = 500


def read_letters(stage: Stage, count: int) -> LetterFindings:
    """Returns what the committed dead letters are.

    Args:
        stage: what the part ran on.
        count: how many the journal has.

    Raises:
        BrokerError: they were not there in time.
    """
    settings = {"group.id": f"letters-{stage.names.run}", "auto.offset.reset": "earliest"}
    found: list[Flight] = []
    with Consumer({**stage.cluster.kafka, **settings, "enable.auto.commit": False}) as reader:
        reader.assign([TopicPartition(stage.names.dead, 0)])
        deadline_s = time.monotonic() + _TIMEOUT_S
        while len(found) < count:
            if time.monotonic() > deadline_s:
                raise BrokerError(f"of {count} dead letters {len(found)} came")
            found += _flights(reader, _WAIT_S)
        found += _flights(reader, _WAIT_S)
    return find_in(found, read_flights(stage.options.flight_count))


def _flights(reader: Consumer, wait_s: float) -> list[Flight]:
    messages = (m for m in reader.consume(_BATCH, wait_s) if m.error() is None)
    values = (message.value() for message in messages)
    return [decode_flight(value) for value in values if isinstance(value, bytes)]
