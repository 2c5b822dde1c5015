"""Gates: asks what lets records pass, on a thread of its own, one question at a time.

A gate lets a partition's records pass up to a frontier. The order counts (R7): *first* everything
below the frontier is known to exist, *then* the home's end is asked for. An end that was asked for
before says nothing of what was decided meanwhile. So the frontiers come with the question.

The end may be one of the past: a broker that was replaced as the partition's leader, and does not
know it yet, answers with the end of before (decision 0026). Then a gate passes too early, and a
plain record may be delivered before a transaction that is placed below it. That transaction comes
behind it, and is counted (`misplaced_transactions`): nothing is lost. What mends it at no cost: an
end never counts for less than what was read of the journal, or told of it before, for no broker
tells more than the true end. A second look some seconds later, which look-ups take, would hold each
plain record up for as long.

The same for sidecars: `core.before_sidecar` says why the question comes after the records.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.reader import JOURNAL_TOPIC

_LOG = logging.getLogger(__name__)
GATE_TIMEOUT_S: Final = 2.0
"""Longest wait for the ends of homes. A home whose leader is away is asked again, and a longer wait
holds back partitions of other homes meanwhile; a shorter one fails on a slow broker."""
GATE_RETRY_S: Final = 0.1
"""Pause after a home whose end was not told. A shorter one asks a broker that is away more often, a
longer one delays plain records when it is back."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Frontier(NamedTuple, Generic[T, K]):
    """Everything below an offset of a partition is known to exist."""

    who: T
    """Whose records wait."""
    about: K
    """What is asked about: the journal partition of its home, or the topic."""
    offset: int


class Passed(NamedTuple, Generic[T, K, V]):
    """A frontier, and what was told afterwards: its home's end, or whether there is a sidecar."""

    frontier: Frontier[T, K]
    told: V


class Gates(Generic[T, K, V]):
    """Asks on a background thread, which starts with the first question."""

    def __init__(
        self,
        tell: Callable[[set[K]], Mapping[K, V]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nothing yet.

        Args:
            tell: asks the brokers, and returns what they told; what they did not tell is left out.
            clock: monotonic time in seconds.
        """
        self._tell = tell
        self._clock = clock
        self._questions: queue.SimpleQueue[list[Frontier[T, K]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Passed[T, K, V]]] = queue.SimpleQueue()
        self._is_answered = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_s: float | None = None
        """When the question on its way was asked; None without one."""
        self._not_before_s: dict[K, float] = {}
        """When to ask about something again that was not told."""
        self.last_ms = 0.0
        """How long the last question took, in milliseconds."""

    def ask(self, frontiers: list[Frontier[T, K]]) -> bool:
        """Asks for all of them, unless a question is on its way. Returns whether it asked."""
        now_s = self._clock()
        due = [f for f in frontiers if self._not_before_s.get(f.about, now_s) <= now_s]
        if not due or self._asked_s is not None:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logtx-gates", daemon=True)
            self._thread.start()
        self._asked_s = now_s
        self._is_answered.clear()
        self._questions.put(due)
        return True

    @property
    def is_free(self) -> bool:
        """Whether no question is on its way, nor an answer to be taken."""
        return self._asked_s is None

    @property
    def is_asking(self) -> bool:
        """Whether a question is on its way."""
        return not (self.is_free or self._is_answered.is_set())

    def wait(self, timeout_s: float) -> None:
        """Waits for the answer to it, up to `timeout_s`."""
        self._is_answered.wait(timeout_s)

    def answers(self) -> list[Passed[T, K, V]]:
        """Returns what was answered since the last call. What was not may be asked for again."""
        found: list[Passed[T, K, V]] = []
        while not self._answers.empty():
            found += self._answers.get()
            assert self._asked_s is not None
            self.last_ms = (self._clock() - self._asked_s) * 1000
            self._asked_s = None
        return found

    def _run(self) -> None:
        while (frontiers := self._questions.get()) is not None:
            asked = {frontier.about for frontier in frontiers}
            told = self._tell(asked)
            for about in asked - told.keys():
                self._not_before_s[about] = self._clock() + GATE_RETRY_S
            self._answers.put([Passed(f, told[f.about]) for f in frontiers if f.about in told])
            self._is_answered.set()

    def close(self) -> None:
        """Tells the thread to end after its question. Does not wait for it."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None


def tell_ends(log: Log, homes: set[int]) -> Mapping[int, int]:
    """Returns journal partition → its end, of those that are told."""
    keys = [(JOURNAL_TOPIC, home) for home in sorted(homes)]
    try:
        told = log.each_end_offset(keys, timeout_s=GATE_TIMEOUT_S)
    except (LogtxError, KafkaException) as error:
        _LOG.warning("gate_failed homes=%s error=%s", sorted(homes), error)
        return {}
    for (_, home), end in told.items():
        if not isinstance(end, int):
            _LOG.warning("gate_failed home=%d error=%s", home, end)
    return {home: end for (_, home), end in told.items() if isinstance(end, int)}
