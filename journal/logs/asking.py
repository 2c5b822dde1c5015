"""Asks a Kafka cluster within a time limit: repeats what fails for a passing reason, words errors.

librdkafka answers a request with a time-out also when it can't connect at all: why, it tells beside
the request. An `Asking` puts both together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from ..errors import BrokerError, LogtxError, UnknownTopicError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
DESTROY_BROKER: Final = -137
"""librdkafka's error for a broker that it forgot while it was asked, because the others no longer
name it. Older versions of confluent-kafka have no name for it."""
PASSING: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        DESTROY_BROKER,
    }
)
"""Errors after which a request is repeated: elections, and a cluster that is starting."""
TIMED_OUT: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE})
UNANSWERED: Final = PASSING | TIMED_OUT
"""Errors that say nothing about what was asked."""
DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors of a right that is missing."""
PAUSE_S: Final = 0.05
"""Pause before a failed request is repeated; a shorter one floods a broker that is starting."""
NO_TIME_S: Final = 0.005
"""Shortest time-out of a request, because librdkafka refuses 0."""
METADATA_S: Final = 2.0
"""Longest wait for metadata about a new leader, before the leader known so far is asked again."""


class Promise(Protocol[_T_co]):
    """An answer to come; a `Future` is one."""

    def result(self, timeout: float | None = None, /) -> _T_co: ...


class Asking:
    """One request with a time limit; repeats what fails for a passing reason."""

    def __init__(
        self,
        asked: str,
        timeout_s: float,
        *,
        remedy: Callable[[], str] = str,
        trouble: Callable[[], str] = str,
    ) -> None:
        """Begins now.

        Args:
            asked: what is requested, for messages.
            timeout_s: longest wait in seconds, repetitions included.
            remedy: returns the command that gives the right to ask this; "" for none.
            trouble: returns why the cluster can't be reached; "" if it can, as far as is known.
        """
        self.asked = asked
        self.repeated = False
        """Whether an earlier attempt failed; that one may have taken effect all the same."""
        self._timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s
        self._remedy = remedy
        self._trouble = trouble

    @property
    def left_s(self) -> float:
        """Seconds left, at least `NO_TIME_S`."""
        return max(self._until_s - time.monotonic(), NO_TIME_S)

    def error(self, error: KafkaError) -> LogtxError:
        """Returns logtx's error for one of Kafka's."""
        text = f"{self.asked}: {error.name()}: {error.str()}"
        if error.code() in DENIED and (remedy := self._remedy()):
            text = f"{text}; give the right with: {remedy}"
        elif error.code() in UNANSWERED and (trouble := self._trouble()):
            text = f"{text}; {trouble}"
        cls = UnknownTopicError if error.code() in UNKNOWN else BrokerError
        return cls(text, kafka_code=error.code())

    def until_done(self, ask: Callable[[float], _T], repeat_on: frozenset[int] = PASSING) -> _T:
        """Repeats `ask(seconds left)` until it succeeds or the time is up. Returns its result.

        Raises:
            KafkaException: a Kafka error that is not in `repeat_on`, or the last one in time.
        """
        while True:
            try:
                return ask(self.left_s)
            except LogtxError:
                raise
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.code() not in repeat_on:
                    raise
                if time.monotonic() + PAUSE_S >= self._until_s:
                    raise
            self.repeated = True
            time.sleep(PAUSE_S)

    def until_led(self, ask: Callable[[float], _T], renew: Callable[[float], object]) -> _T:
        """Works like `until_done` for a question to a partition's leader.

        Calls `renew(seconds)` before each repetition. It makes librdkafka learn the leaders: a
        refusal does not, and librdkafka would ask the last leader that it knows for minutes.
        """

        def ask_who_leads_now(left_s: float) -> _T:
            if self.repeated:
                with suppress(KafkaException):
                    renew(min(left_s, METADATA_S))
            return ask(self.left_s)

        return self.until_done(ask_who_leads_now)

    def answer(self, ask: Callable[[float], _T], repeat_on: frozenset[int] = PASSING) -> _T:
        """Works like `until_done`, but raises logtx's errors."""
        try:
            return self.until_done(ask, repeat_on)
        except LogtxError:
            raise
        except KafkaException as exception:
            raise self.error(exception.args[0]) from exception

    def result(self, future: Promise[_T]) -> _T:
        """Returns the result of an admin request that was given `left_s`.

        Waits half a second longer than that.

        Raises:
            BrokerError: no answer.
        """
        try:
            return future.result(self.left_s + 0.5)
        except FutureTimeoutError as error:
            raise BrokerError(f"{self.asked}: no answer in {self._timeout_s} s") from error


class Trouble:
    """Keeps what a client tells of its connections beside its answers."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._last = ""

    def note(self, error: KafkaError) -> None:
        """Takes what librdkafka tells; is its ``error_cb``."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = f"librdkafka told last: {error.str()}"
        elif not self._last:
            self._last = (
                f"no broker answers at {self._servers}: are the addresses right, and"
                " security.protocol?"
            )

    def take(self) -> str:
        """Returns what was told last since the last call; "" if nothing was."""
        last, self._last = self._last, ""
        return last


class Answers:
    """The answers of an admin request about several things, as one `Future` to wait for."""

    def __init__(self, futures: Mapping[str, Future[Any]]) -> None:
        self._futures = futures

    def result(self, timeout: float | None = None, /) -> dict[str, Any]:
        """Returns name → its answer, or the `KafkaException` in place of one.

        Raises:
            KafkaException: nothing was answered.
            FutureTimeoutError: something was not answered in time.
        """
        if wait(self._futures.values(), timeout).not_done:
            raise FutureTimeoutError
        found = {
            name: future.exception(0) or future.result(0) for name, future in self._futures.items()
        }
        for answer in found.values():
            if not isinstance(answer, KafkaException):
                return found
        for answer in found.values():
            if answer.args[0].code() in UNANSWERED:
                raise answer
        return found
