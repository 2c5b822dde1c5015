"""Sends what a queue's consumer says of its messages, and looks at the answers.

What is to be said comes from `ShareWork`, which any thread may change under its lock. The thread
that polls sends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import TopicPartition as KafkaPartition

from ..coordinator.client.attached import AttachedClient
from ..coordinator.protocol.commands import Acknowledge, AckResults, Reply
from ..coordinator.protocol.queues import AcknowledgeType
from ..journal.acks import Acks
from ..journal.control import TopicPartition
from ..journal.errors import LogtxError, RequestTimedOutError
from .core.letters import Letter
from .core.runs import Given, by_run, each_of
from .core.said import errors, shares
from .core.share_work import How, Outgoing, Said, ShareWork
from .dead_letters import PAUSE_MS, DeadLetters

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 60.0
"""Longest single wait for an answer; one without an end waits again."""
AckCallback: TypeAlias = Callable[[dict[KafkaPartition, set[int]], LogtxError | None], object]
"""(partition → offsets that were acknowledged, what went wrong)."""


class _Sent(NamedTuple):
    said: Said
    type: AcknowledgeType
    answers: Sequence[Future[Reply]]
    """One for each request."""

    @property
    def is_answered(self) -> bool:
        """Whether all answers are there."""
        return all(answer.done() for answer in self.answers)

    def errors(
        self, is_told: Callable[[Given], bool] | None
    ) -> tuple[LogtxError | None, dict[TopicPartition, LogtxError]]:
        """Returns why a request failed, and partition → what of its messages did not count; of
        those that `is_told` returns True for, or of all."""
        failure: LogtxError | None = None
        refused: dict[TopicPartition, LogtxError] = {}
        for answer in self.answers:
            reply = answer.result()
            if isinstance(reply, AckResults):
                # One by one, and only if something was refused: a request has thousands.
                given = each_of(self.said.given)
                given = given if is_told is None else filter(is_told, given)
                refused = errors(self.type, given, reply) | refused
            elif failure is None:
                failure = reply if isinstance(reply, LogtxError) else LogtxError(f"got {reply}")
        return failure, refused


class Outbox:
    """Acknowledgements of one consumer outside of the application's transactions."""

    def __init__(
        self,
        group: str,
        consumer: int,
        work: ShareWork,
        lock: threading.Lock,
        letters: DeadLetters | None,
    ) -> None:
        """Begins empty.

        Args:
            group: the subscription.
            consumer: number of the consumer.
            work: says what is to be sent.
            lock: guards `work`. Nothing that holds it waits.
            letters: writes what is given up; None: it is rejected, and logged.
        """
        self._group, self._consumer = group, consumer
        self._work, self._lock, self._dead_letters = work, lock, letters
        self._sent: deque[_Sent] = deque()
        """What was sent, oldest first, and whose answers were not looked at."""
        self._late: threading.Timer | None = None
        """Sends what was accepted a moment ago; None if nothing waits for that."""
        self.callback: AckCallback | None = None
        """Called with each answer."""

    def send(self, client: AttachedClient, timeout: float | None = None) -> None:
        """Sends what is to be said. Waits for dead letters alone, up to `timeout` seconds for
        all of them; None: for each as long as the producer's settings allow."""
        with self._lock:  # An attachment in between would not name them.
            outgoing, letters = self._work.outgoing(), self._work.letters()
            for letter in letters if self._dead_letters is None else ():
                how = How(AcknowledgeType.REJECT, era=letter.given.era)
                outgoing.setdefault(how, Said()).add(by_run([letter.given]))
            self._submit(client, outgoing)
        for letter in letters if self._dead_letters is None else ():
            self.log_given_up(letter)
        if self._dead_letters is not None and letters:
            self._write(self._dead_letters, letters, timeout)

    def send_within(self, client: AttachedClient, seconds: float) -> None:
        """Sends what was accepted so much later at the latest, whatever the application does."""
        if self._late is not None:
            return
        self._late = late = threading.Timer(seconds, self._send_late, (client,))
        late.daemon = True
        try:
            late.start()
        except RuntimeError:  # No thread is left, or Python ends.
            self._send_late(client)

    def _send_late(self, client: AttachedClient) -> None:
        with self._lock:
            self._late = None
            # Letters are the polling thread's: to write them takes long.
            self._submit(client, self._work.outgoing())

    def log_given_up(self, letter: Letter) -> None:
        """Tells that a message is deleted, and kept nowhere."""
        topic, partition, offset = letter.key
        _LOG.warning(
            "message_given_up group=%s topic=%s partition=%d offset=%d delivery_count=%d",
            *(self._group, topic, partition, offset, letter.delivery_count),
        )

    def renew(self, client: AttachedClient, acks: Acks, era: int) -> Future[Reply]:
        """Begins the time of a lease anew. Nobody is told of the answer but the caller."""
        return client.submit(self._command(How(AcknowledgeType.RENEW, era=era), (acks,)))

    def _submit(self, client: AttachedClient, outgoing: Outgoing) -> None:
        for how, said in outgoing.items():
            parts = [client.submit(self._command(how, part)) for part in shares(said.acks)]
            if parts:
                self._sent.append(_Sent(said, how.type, parts))

    def _command(self, how: How, acks: tuple[Acks, ...]) -> Acknowledge:
        return Acknowledge(
            group=self._group,
            consumer=self._consumer,
            type=how.type,
            acks=acks,
            delay_ms=how.delay_ms,
            unseen=how.unseen,
            era=how.era,
        )

    def _write(
        self, dead_letters: DeadLetters, letters: list[Letter], timeout: float | None
    ) -> None:
        try:
            results = dead_letters.write(letters, timeout)
        except BaseException:
            # Of a signal handler. One that is written has no second acknowledgement.
            with self._lock:
                self._work.keep_letters(letters)
            raise
        for letter, error in zip(letters, results, strict=True):
            answer: Future[Reply] = Future()
            answer.set_result(AckResults() if error is None else error)
            said = Said(by_run([letter.given]))
            self._sent.append(_Sent(said, AcknowledgeType.REJECT, [answer]))
            if error is not None:
                with self._lock:
                    self._work.not_written(letter, PAUSE_MS)

    def look_at_answers(self) -> None:
        """Tells what was answered to the callback, or raises it if a request failed and there is
        none."""
        while self._sent and self._sent[0].is_answered:
            failure, refused = self._errors(sent := self._sent.popleft())
            if not self._tell(sent.said, failure, refused) and failure is not None:
                raise failure

    def tell_answered(self) -> None:
        """Tells what was answered, when nobody asks any more: to the callback, or an error to the
        log."""
        while self._sent and self._sent[0].is_answered:
            failure, refused = self._errors(sent := self._sent.popleft())
            if not self._tell(sent.said, failure, refused) and failure is not None:
                _LOG.warning("acknowledgement_failed group=%s error=%r", self._group, failure)

    def await_answers(
        self, deadline_s: float, timeout: float, why: Callable[[], str]
    ) -> dict[KafkaPartition, LogtxError | None]:
        """Waits for the answers to all that was sent.

        Args:
            deadline_s: monotonic time up to which it waits for all of them.
            timeout: how long that was, in seconds, for the error.
            why: returns why there may be no answer.

        Returns:
            Partition → what went wrong there, or None. NotHeldError: a message did not count.

        Raises:
            RequestTimedOutError: an answer did not come in time.
        """
        results: dict[KafkaPartition, LogtxError | None] = {}
        while self._sent:
            sent = self._sent[0]
            left_s = max(0.0, deadline_s - time.monotonic())
            _, late = wait(sent.answers, min(left_s, WAIT_S))
            if late:
                if left_s > WAIT_S:
                    continue
                raise RequestTimedOutError(
                    f"acknowledgements had no answer within {timeout:g} s ({why()})"
                )
            self._sent.popleft()
            failure, refused = self._errors(sent)
            self._tell(sent.said, failure, refused)
            for each in sent.said.acks:
                where = KafkaPartition(each.partition.topic, each.partition.partition)
                error = failure or refused.get(each.partition.key)
                results[where] = results.get(where) or error
        return results

    def _errors(self, sent: _Sent) -> tuple[LogtxError | None, dict[TopicPartition, LogtxError]]:
        # Who has said by now what became of a message needs no more time for it.
        return sent.errors(self._is_held if sent.type is AcknowledgeType.RENEW else None)

    def _is_held(self, given: Given) -> bool:
        with self._lock:
            return self._work.holdings.look(given.key) == given

    def _tell(
        self,
        said: Said,
        failure: LogtxError | None,
        refused: Mapping[TopicPartition, LogtxError],
    ) -> bool:
        """Calls the callback, if there is one and it is about messages. Returns whether."""
        error = failure or next(iter(refused.values()), None)
        if self.callback is None or not said.given:
            return False
        offsets: dict[KafkaPartition, set[int]] = {}
        for of, some in said.given.items():
            where = KafkaPartition(of.run.topic, of.run.partition)
            offsets.setdefault(where, set()).update(some)
        self.callback(offsets, error)
        return True

    def futures(self) -> list[Future[Reply]]:
        """Returns the answers that were not looked at."""
        return [answer for sent in self._sent for answer in sent.answers]
