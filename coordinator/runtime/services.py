"""The services that the journal partitions of one coordinator share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from ...journal.errors import LogtxError
from ...journal.logs.interface import Log
from ..core.decision import TopicFacts
from ..membership.members import Members
from ..protocol.commands import Decided
from .appender import Appender
from .counters import CoordinatorCounters
from .handing import Handing
from .housekeeping import HousekeepingConfig
from .loading import journal_end
from .markers import MarkerWriter
from .modes_topic import ModesWriter
from .offsets_topic import OffsetsWriter
from .questions import Questions
from .tail import Tail
from .topics import TopicLookUps


async def _not_known(_group: str) -> bool:
    return False


async def _nobody(_address: str) -> int | None:
    return None


def _nobody_is_told(_partition: int, _producer_id: str, _nonce: int, _decided: Decided) -> None:
    """Tells no session: the coordinator has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that the partitions of one coordinator share."""

    log: Log
    journal: Appender
    markers: MarkerWriter
    offsets: OffsetsWriter
    modes: ModesWriter
    tail: Tail
    members: Members
    reading: Executor
    """Thread pool for journal scans, separate from the quick questions to the log."""
    loading: Executor
    """Thread pool for loading alone. Clients may ask for any number of old outcomes, and a
    partition whose loading waited behind those scans would not be served."""
    address: str
    """host:port at which clients reach this coordinator."""
    process_nonce: int
    """63 random bits of this process."""
    partition_count: int
    """Partition count of the journal."""
    housekeeping: HousekeepingConfig = field(default_factory=HousekeepingConfig)
    questions: Questions = field(default_factory=Questions)
    """Asks the log quick questions."""
    look_ups: TopicLookUps
    """Looks up data topics."""
    handing: Handing = field(default_factory=Handing)
    """Lets the partitions hand transactions over to each other."""
    counters: CoordinatorCounters = field(default_factory=CoordinatorCounters)
    who_answers: Callable[[str], Coroutine[Any, Any, int | None]] = _nobody
    """Returns the process nonce of the coordinator that answers at an address; None if none
    answers."""
    is_free: Callable[[str], Awaitable[bool]] = _not_known
    """Returns whether a consumer group has no offsets, wherever it is bound."""
    membership_changed: Callable[[], None]
    """Called when a partition's owner, or this coordinator's role in it, has changed."""
    decided: Callable[[int, str, int, Decided], None] = _nobody_is_told
    """Called with journal partition, producer id, session nonce, and a decision that the producer
    did not ask for."""
    close_session: Callable[[int, str, int, LogtxError], None]
    """Called with journal partition, producer id, session nonce and the reason."""
    close_sessions: Callable[[int, LogtxError], None]
    """Called with a journal partition whose sessions must all connect again, and the reason."""

    @property
    def topics(self) -> Mapping[str, TopicFacts]:
        """Data topic → its facts; grows as topics are looked up."""
        return self.look_ups.known.facts

    async def journal_end(self, partition: int, known_end: int = 0) -> int:
        """Runs `loading.journal_end` outside the event loop."""
        return await self.questions.ask(
            f"end-{partition}", journal_end, self.log, partition, known_end
        )
