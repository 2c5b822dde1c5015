"""Trims old records: what every consumer and every worker has behind it, and a half of that only,
so that the last readers, who begin at what is left, still have most to judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from .inspector import Inspector
from .settings import Settings

SHARE: Final = 0.5
"""Of what nobody needs any more."""
LEAST_RECORDS: Final = 100
"""Fewer are not worth it."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What is to go."""

    topic: str
    partition: int
    before: int
    """Everything below this offset."""


class Trimmer:
    """Of one partition of each topic, which the seed says: the others keep everything."""

    def __init__(self, log: Log, inspector: Inspector, settings: Settings) -> None:
        """Nothing is trimmed."""
        self._log = log
        self._inspector = inspector
        self._places = [
            (settings.data_topic, settings.seed % settings.partitions),
            (settings.out_topic, (settings.seed + 1) % settings.partitions),
        ]

    def choose(self, number: int) -> Trim | None:
        """What may go of one of the partitions now; None if there is too little, or it is not
        known."""
        topic, partition = self._places[number % len(self._places)]
        try:
            start = self._log.start_offset(topic, partition)
        except LogtxError:
            return None
        needed = self._inspector.needed_from(topic, partition)
        if needed is None or (needed - start) * SHARE < LEAST_RECORDS:
            return None
        return Trim(topic, partition, start + int((needed - start) * SHARE))

    def trim(self, trim: Trim) -> None:
        """Delete. Raises BrokerError."""
        self._log.delete_records(trim.topic, trim.partition, trim.before)
