"""What a queue's consumer says of its messages, until it is sent, and until it is answered.

Any thread may say something. The one that polls sends it, and looks at the answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import TopicPartition as KafkaPartition

from ..coordinator.client.attached import AttachedClient
from ..coordinator.protocol.commands import Acknowledge, AckResults, Reply
from ..coordinator.protocol.queues import AcknowledgeType
from ..journal.acks import Acks
from ..journal.errors import LogtxError, RequestTimedOutError
from .core.counters import ShareCounters
from .core.holdings import Given, RecordKey, by_partition
from .core.letters import Letter
from .dead_letters import PAUSE_MS, DeadLetters

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 60.0
"""Longest single wait for an answer; one without an end waits again."""
AckCallback: TypeAlias = Callable[[dict[KafkaPartition, set[int]], LogtxError | None], object]
"""(partition → offsets that were acknowledged, what went wrong)."""


class _How(NamedTuple):
    type: AcknowledgeType
    delay_ms: int
    unseen: bool


class _Said(NamedTuple):
    acks: list[Acks]
    keys: list[RecordKey]
    """The messages that `acks` name. Gaps have none."""


class _Sent(NamedTuple):
    said: _Said
    answer: Future[Reply]


class Outbox:
    """Acknowledgements of one consumer outside of the application's transactions."""

    def __init__(
        self, group: str, consumer: int, counters: ShareCounters, letters: DeadLetters | None
    ) -> None:
        """Begins empty.

        Args:
            group: the subscription.
            consumer: number of the consumer.
            counters: counts what is given up.
            letters: writes what is given up; None: it is deleted.
        """
        self._group, self._consumer, self._counters = group, consumer, counters
        self._dead_letters = letters
        self._lock = threading.Lock()
        """Guards what was said. Nothing that holds it waits."""
        self._said: dict[_How, _Said] = {}
        self._letters: list[Letter] = []
        self._sent: deque[_Sent] = deque()
        """What was sent, oldest first, and whose answers were not looked at."""
        self.callback: AckCallback | None = None
        """Called with each answer."""

    # ---- said by any thread ---------------------------------------------------------------------

    def say(
        self,
        type_: AcknowledgeType,
        given: Mapping[RecordKey, Given],
        *,
        delay_ms: int = 0,
        unseen: bool = False,
    ) -> None:
        """Keeps what is to be said of messages."""
        with self._lock:
            said = self._said.setdefault(_How(type_, delay_ms, unseen), _Said([], []))
            said.acks.extend(by_partition(given.values()))
            said.keys.extend(given)

    def say_of(
        self,
        type_: AcknowledgeType,
        acks: Iterable[Acks],
        *,
        delay_ms: int = 0,
        unseen: bool = False,
    ) -> None:
        """Keeps what is to be said of spans that hold no message, or none that was given out."""
        with self._lock:
            said = self._said.setdefault(_How(type_, delay_ms, unseen), _Said([], []))
            said.acks.extend(acks)

    def give_up(self, letter: Letter) -> None:
        """Gives a message up: it becomes a dead letter, or is rejected if there is no topic."""
        if self._dead_letters is not None:
            with self._lock:
                self._letters.append(letter)
            return
        self.log_given_up(letter)
        self.say(AcknowledgeType.REJECT, {letter.key: letter.given})

    def log_given_up(self, letter: Letter) -> None:
        """Tells that a message is deleted, and kept nowhere."""
        topic, partition, offset = letter.key
        _LOG.warning(
            "message_given_up group=%s topic=%s partition=%d offset=%d delivery_count=%d",
            *(self._group, topic, partition, offset, letter.delivery_count),
        )

    @property
    def has_letters(self) -> bool:
        """Whether dead letters are to be written."""
        return bool(self._letters)

    # ---- by the thread that polls ---------------------------------------------------------------

    def send(self, client: AttachedClient, timeout: float | None = None) -> None:
        """Sends what was said. Waits for dead letters alone, up to `timeout` seconds each."""
        with self._lock:
            outgoing, self._said = self._said, {}
            letters, self._letters = self._letters, []
        for how, said in outgoing.items():
            if said.acks:
                self._submit(client, how, said)
        if letters:
            self._write(letters, timeout)

    def renew(self, client: AttachedClient, acks: Acks) -> None:
        """Begins the time of a lease anew."""
        self._submit(client, _How(AcknowledgeType.RENEW, 0, False), _Said([acks], []))

    def _submit(self, client: AttachedClient, how: _How, said: _Said) -> None:
        command = Acknowledge(
            group=self._group,
            consumer=self._consumer,
            type=how.type,
            acks=tuple(said.acks),
            delay_ms=how.delay_ms,
            unseen=how.unseen,
        )
        self._sent.append(_Sent(said, client.submit(command)))

    def _write(self, letters: list[Letter], timeout: float | None) -> None:
        assert self._dead_letters is not None, "they are kept for it"
        try:
            results = self._dead_letters.write(letters, timeout)
        except BaseException:
            # Of a signal handler. One that is written has no second acknowledgement.
            with self._lock:
                self._letters += letters
            raise
        for letter, error in zip(letters, results, strict=True):
            answer: Future[Reply] = Future()
            answer.set_result(AckResults(()) if error is None else error)
            self._sent.append(_Sent(_Said([letter.given.acks], [letter.key]), answer))
            if error is not None:
                # If its transaction had it already, that waits as long, and this changes nothing.
                self.say_of(AcknowledgeType.RELEASE, [letter.given.acks], delay_ms=PAUSE_MS)

    def look_at_answers(self) -> None:
        """Tells what was answered to the callback, or raises it if it is an error and there is
        none."""
        while self._sent and self._sent[0].answer.done():
            sent = self._sent.popleft()
            error = _error_of(sent.answer.result())
            if not self._tell(sent.said, error) and error is not None:
                raise error

    def tell_answered(self) -> None:
        """Tells what was answered, when nobody asks any more: to the callback, or an error to the
        log."""
        while self._sent and self._sent[0].answer.done():
            sent = self._sent.popleft()
            error = _error_of(sent.answer.result())
            if not self._tell(sent.said, error) and error is not None:
                _LOG.warning("acknowledgement_failed group=%s error=%r", self._group, error)

    def await_answers(
        self, timeout: float, why: Callable[[], str]
    ) -> dict[KafkaPartition, LogtxError | None]:
        """Waits for the answers to all that was sent.

        Args:
            timeout: seconds to wait for all of them; a negative one has no end.
            why: returns why there may be no answer.

        Returns:
            Partition → what went wrong there, or None.

        Raises:
            RequestTimedOutError: an answer did not come in time.
        """
        deadline_s = time.monotonic() + timeout if timeout >= 0 else float("inf")
        results: dict[KafkaPartition, LogtxError | None] = {}
        while self._sent:
            said, answer = self._sent[0]
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                reply = answer.result(min(left_s, WAIT_S))
            except TimeoutError:
                if left_s > WAIT_S:
                    continue
                raise RequestTimedOutError(
                    f"acknowledgements had no answer within {timeout:g} s ({why()})"
                ) from None
            self._sent.popleft()
            error = _error_of(reply)
            self._tell(said, error)
            for each in said.acks:
                where = KafkaPartition(each.partition.topic, each.partition.partition)
                results[where] = error or results.get(where)
        return results

    def _tell(self, said: _Said, error: LogtxError | None) -> bool:
        """Calls the callback, if there is one and it is about messages. Returns whether."""
        if self.callback is None or not said.keys:
            return False
        offsets: dict[KafkaPartition, set[int]] = {}
        for topic, partition, offset in said.keys:
            offsets.setdefault(KafkaPartition(topic, partition), set()).add(offset)
        self.callback(offsets, error)
        return True

    def futures(self) -> list[Future[Reply]]:
        """Returns the answers that were not looked at."""
        return [sent.answer for sent in self._sent]


def _error_of(reply: Reply) -> LogtxError | None:
    if isinstance(reply, AckResults):
        return None
    return reply if isinstance(reply, LogtxError) else LogtxError(f"got {reply}")
