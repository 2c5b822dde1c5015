"""What the journal partitions of one coordinator share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from ...journal.errors import LogtxError
from ...journal.logs.interface import Log
from ..core.decision import TopicFacts
from ..membership.members import Members
from .appender import Appender
from .counters import CoordinatorCounters
from .housekeeping import HousekeepingConfig
from .loading import journal_end
from .markers import MarkerWriter
from .offsets_topic import OffsetsWriter
from .questions import Questions
from .tail import Tail


async def _nobody(_address: str) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the partitions of one coordinator share."""

    log: Log
    journal: Appender
    markers: MarkerWriter
    offsets: OffsetsWriter
    tail: Tail
    members: Members
    reading: Executor
    """For what may read much of the journal, apart from the quick questions to the log."""
    loading: Executor
    """For loading alone: clients may ask for any number of old outcomes, and nobody serves a
    partition whose loading waits behind them."""
    address: str
    """host:port that clients reach this coordinator at."""
    process_nonce: int
    partition_count: int
    """Of the journal."""
    housekeeping: HousekeepingConfig = field(default_factory=HousekeepingConfig)
    questions: Questions = field(default_factory=Questions)
    """What asks the log quick questions."""
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    """Of data topics; grows as they are looked up."""
    counters: CoordinatorCounters = field(default_factory=CoordinatorCounters)
    who_answers: Callable[[str], Coroutine[Any, Any, int | None]] = _nobody
    """The process nonce of the coordinator that answers at an address; None if none does."""
    membership_changed: Callable[[], None]
    """Called when a partition's owner or this coordinator's part in it changed."""
    close_session: Callable[[int, str, int, LogtxError], None]
    """Called with journal partition, producer id, session nonce and the reason."""
    close_sessions: Callable[[int, LogtxError], None]
    """Called with a journal partition whose sessions must all connect again."""

    async def journal_end(self, partition: int, known_end: int = 0) -> int:
        """As `loading.journal_end`, off the event loop."""
        return await self.questions.ask(
            f"end-{partition}", journal_end, self.log, partition, known_end
        )
