"""Reads and commits a group's offsets through consumers that never join the group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..errors import BrokerError
from .asking import DENIED, NO_TIME_S, TIMED_OUT, Asking
from .interface import LogConsumer

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

CLOSE_S: Final = 5.0
"""Longest wait until the clients of a log are closed. A shorter one leaves more of them to end by
themselves, a longer one delays the end of a process while a broker is away."""
NEVER_POLLED: Final = {"log_level": 0}
"""Settings of clients that are never polled, or only for an answer.

A client passes its log on only when it is polled, and keeps it until then, so these must not log.
Errors that matter are raised from their answers.
"""
_ANSWER_POLL_S: Final = 0.005
"""Longest poll while a commit's answer is awaited.

A consumer's poll goes on waiting for records after it has called ``on_commit``: the rest of that
poll is added to the time of every commit.
"""

Make = Callable[[Mapping[str, Any]], LogConsumer]


def raise_partition_error(partition: KafkaPartition) -> None:
    """Raises the error of a partition's answer as KafkaException, if it has one."""
    if partition.error is not None:
        raise KafkaException(partition.error)


class _GroupClient:
    """One question after the other, to a consumer that never joins its group."""

    def __init__(self, consumer: LogConsumer) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._consumer = consumer

    def _in_turn(self, asking: Asking, ask: Callable[[], _T]) -> _T:
        """Returns `ask()`, which it calls when all who asked before have their answers.

        Raises:
            BrokerError: they got none in time.
        """
        try:
            if not self._lock.acquire(timeout=asking.left_s):
                raise BrokerError(f"{asking.asked}: Kafka did not answer those who asked before")
            found = ask()
        finally:
            # Tried in any case: a signal handler's exception may come right behind `acquire`,
            # before anything could note that it succeeded, and nobody could ask any more. For the
            # same reason no `suppress`, whose making is a call.
            try:  # noqa: SIM105
                self._lock.release()
            except RuntimeError:
                pass  # It was not this thread's turn.
        return found

    def close(self) -> None:
        """Closes the consumer, after the question under way. See `close_all`."""
        with self._lock:
            self._closed = True
            self._consumer.close()


def close_all(clients: Iterable[_GroupClient]) -> None:
    """Closes clients, and waits for `CLOSE_S` at most.

    librdkafka's `close` awaits the answer to a commit that is under way, and has no time-out: where
    the broker stands still, a coordinator that was told to end would not. What takes longer goes on
    in a thread of its own, and ends with the process.
    """
    closing = [
        threading.Thread(target=client.close, name="logtx-close", daemon=True) for client in clients
    ]
    deadline_s = time.monotonic() + CLOSE_S
    try:
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, deadline_s - time.monotonic()))
    except RuntimeError as error:
        # Python 3.12 starts none while the interpreter ends: they end with the process.
        _LOG.info("clients_not_closed error=%s", error)


class GroupReader(_GroupClient):
    """Reads a group's offsets, one at a time."""

    def __init__(self, make: Make, group: str) -> None:
        self._denied: KafkaError | None = None
        self._answers: dict[tuple[str, int], tuple[float, KafkaPartition]] = {}
        """(topic, partition) → when the last question was asked that was answered, by the monotonic
        clock, and its answer."""
        self._wanted: dict[tuple[str, int], KafkaPartition] = {}
        """Places that are asked for by those who wait for their turn."""
        super().__init__(make({"group.id": group, "enable.auto.commit": False, **NEVER_POLLED}))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def read(self, place: KafkaPartition, asking: Asking) -> KafkaPartition | None:
        """Returns the committed place; None if this reader was closed meanwhile.

        Of those who wait for their turn at one time, the first asks for all: when many clients of a
        process look for a coordinator at once, the last must not wait for the answers of all.

        Raises:
            KafkaException: refused, or no answer.
            BrokerError: those who asked before got no answer.
        """
        came_s = time.monotonic()
        # Comes behind the time: whoever takes it asks later.
        self._wanted[place.topic, place.partition] = place
        return self._in_turn(asking, partial(self._answer, place, asking, came_s))

    def _answer(
        self, place: KafkaPartition, asking: Asking, came_s: float
    ) -> KafkaPartition | None:
        if self._closed:
            return None
        key = place.topic, place.partition
        if self._answers.get(key, (0.0, place))[0] <= came_s:
            wanted, self._wanted = self._wanted, {}
            asked_s = time.monotonic()
            for answer in self._read([*{**wanted, key: place}.values()], asking):
                self._answers[answer.topic, answer.partition] = asked_s, answer
        answer = self._answers[key][1]
        raise_partition_error(answer)
        return answer

    def _read(self, places: list[KafkaPartition], asking: Asking) -> list[KafkaPartition]:
        try:
            answers = self._consumer.committed(places, timeout=asking.left_s)
        except KafkaException as exception:
            if exception.args[0].code() not in TIMED_OUT:
                raise
            # A consumer without the right to look for its group's coordinator does so for ever. Why
            # it gets none it tells only among its records, and once.
            message = self._consumer.poll(0)
            error = None if message is None else message.error()
            if error is not None and error.code() in DENIED:
                self._denied = error
            if self._denied is not None:
                raise KafkaException(self._denied) from exception
            raise
        self._denied = None
        return answers


class GroupCommitter(_GroupClient):
    """Commits a group's offsets, one at a time."""

    def __init__(self, make: Make, group: str) -> None:
        answers: list[tuple[KafkaError | None, list[KafkaPartition]]] = []
        self._answers = answers
        super().__init__(
            make(
                {
                    "group.id": group,
                    "enable.auto.commit": False,
                    "on_commit": lambda error, places: answers.append((error, places)),
                    **NEVER_POLLED,
                }
            )
        )

    def commit(self, place: KafkaPartition, asking: Asking) -> None:
        """Commits one place. Raises KafkaException, BrokerError."""
        self._in_turn(asking, partial(self._commit, place, asking))

    def _commit(self, place: KafkaPartition, asking: Asking) -> None:
        if self._closed:
            raise BrokerError(f"{asking.asked}: the log was closed")
        self._answers.clear()
        # The blocking form has no time-out.
        self._consumer.commit(offsets=[place], asynchronous=True)
        while not self._is_answered(place):
            if asking.left_s <= NO_TIME_S:
                raise BrokerError(f"{asking.asked}: no answer in time")
            self._poll(min(asking.left_s, _ANSWER_POLL_S))

    def _poll(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None and error.code() in DENIED:
            raise KafkaException(error)

    def _is_answered(self, place: KafkaPartition) -> bool:
        """Returns whether the answer to the commit of `place` has come; raises the error in it.

        Other answers belong to earlier commits, which were given up.
        """
        for error, places in self._answers:
            for told in places or ():
                if _same_commit(told, place):
                    if error is not None:
                        raise KafkaException(error)
                    raise_partition_error(told)
                    return True
        self._answers.clear()
        return False


def _same_commit(one: KafkaPartition, other: KafkaPartition) -> bool:
    return (one.topic, one.partition, one.offset, one.metadata or "") == (
        other.topic,
        other.partition,
        other.offset,
        other.metadata or "",
    )
