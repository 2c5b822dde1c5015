"""Trims old records: half of those that every consumer and worker has passed.

Only half, so that the last readers, which begin at the start of what is left, still have much to
judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from .inspector import Inspector
from .settings import Settings

SHARE: Final = 0.5
"""Share that is deleted of the records that no consumer or worker still needs. A larger one leaves
less to judge, a smaller one trims too little to put the readers to the test."""
LEAST_RECORDS: Final = 100
"""Fewer records than this are not trimmed."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Records to be deleted."""

    topic: str
    partition: int
    before: int
    """Offset below which everything is deleted."""


class Trimmer:
    """Trims one partition of each topic, chosen by the seed. The others keep everything."""

    def __init__(self, log: Log, inspector: Inspector, settings: Settings) -> None:
        """Chooses the partitions; nothing is trimmed yet."""
        self._log = log
        self._inspector = inspector
        self._places = [
            (settings.data_topic, settings.seed % settings.partitions),
            (settings.out_topic, (settings.seed + 1) % settings.partitions),
        ]

    def choose(self, number: int) -> Trim | None:
        """Returns what may be trimmed now; None if that is too little or not known.

        `number` chooses between the topics.
        """
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
        """Deletes the records. Raises BrokerError."""
        self._log.delete_records(trim.topic, trim.partition, trim.before)
