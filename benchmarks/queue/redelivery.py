"""How soon another worker gets the messages of one that is killed with -9, or stopped.

For each time there is a topic of its own. A worker takes its messages and keeps them. Then another
worker comes. It is known to be at work when it was given a message that was written later. Then the
first one gets a signal, and the other one goes on polling until it has all that the first one had.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from signal import SIGKILL, SIGSTOP, Signals
from typing import Any, Final, TypeAlias

import logtx

from ..clients import delete_topics, logtx_producer, make_topic
from ..remote import Remote, answering
from ..spill.payload import number_of
from .backlog import fill_plain
from .queues import KAFKA, LOGTX, accept, begin_at_first, open_kind, open_queue

HELD: Final = 100
"""Messages of each topic, of which the first worker gets what its first poll brings."""
GOAL_MS: Final = 1_500
"""Longest time until all of them are given to others."""
PATIENCE_S: Final = 20.0
"""A way of holding messages is not tried again once it has taken so long."""
POLL_S: Final = 0.05
_GIVEN_TIMEOUT_S: Final = 120.0
"""Bounds the wait for redelivery: four times Kafka's lock by default."""
_START_TIMEOUT_S: Final = 60.0
"""Bounds the start of a worker, until it has its messages."""

Key: TypeAlias = tuple[int, int]
"""(partition, offset)."""
Ready: TypeAlias = Callable[[list[Any]], None]
"""Tells which messages a worker holds, and then waits for the end of its process."""


class RedeliveryError(Exception):
    """A worker got no messages, or nobody got those of a dead one."""


@dataclass(slots=True)
class Redelivered:
    """What was measured of one way of holding messages."""

    title: str
    goal_ms: float | None
    times_ms: list[float] = field(default_factory=list)
    """From each signal until others had all that the worker held."""

    @property
    def met(self) -> bool | None:
        """Whether the longest time is within the goal; None without a goal."""
        return None if self.goal_ms is None else max(self.times_ms) <= self.goal_ms


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which a worker holds messages, and ends."""

    title: str
    signal: Signals
    kind: str
    goal_ms: float | None
    hold: Callable[[str, str, str, Ready], None]
    """Called with the broker, the group, the topic, and what is to be told."""


def hold_polled(kind: str, servers: str, group: str, topic: str, ready: Ready) -> None:
    """Holds what a poll brought."""
    with open_kind(kind, servers, group, topic) as queue:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        found: list[Any] = []
        while not found:
            found = list(queue.poll(1.0))
            if time.monotonic() > deadline_s:
                raise RedeliveryError("a worker got no messages")
        ready(found)


def hold_polled_of_kafka(servers: str, group: str, topic: str, ready: Ready) -> None:
    """Holds what a poll of a share group brought."""
    hold_polled(KAFKA, servers, group, topic, ready)


def hold_polled_of_logtx(servers: str, group: str, topic: str, ready: Ready) -> None:
    """Holds what a poll of a queue brought."""
    hold_polled(LOGTX, servers, group, topic, ready)


def hold_block(servers: str, group: str, topic: str, ready: Ready) -> None:
    """Holds the block at hand of `logtx.process`, whose transaction is open."""
    with logtx_producer(servers, group) as producer, open_queue(servers, group, topic) as queue:
        for block in logtx.process(queue, producer, max_records=HELD, timeout=_START_TIMEOUT_S):
            ready(list(block))
    raise RedeliveryError("a worker got no messages")


WAYS: Final = (
    Way("kill -9: what a poll brought", SIGKILL, LOGTX, GOAL_MS, hold_polled_of_logtx),
    Way(
        "kill -9: a block of logtx.process, its transaction open", SIGKILL, LOGTX, None, hold_block
    ),
    Way(
        "kill -9: what a poll of a share group brought", SIGKILL, KAFKA, None, hold_polled_of_kafka
    ),
    Way("SIGSTOP: what a poll brought", SIGSTOP, LOGTX, None, hold_polled_of_logtx),
    Way(
        "SIGSTOP: what a poll of a share group brought", SIGSTOP, KAFKA, None, hold_polled_of_kafka
    ),
)


def _serve(
    connection: Connection,
    hold: Callable[[str, str, str, Ready], None],
    servers: str,
    group: str,
    topic: str,
) -> None:
    def ready(messages: list[Any]) -> None:
        connection.send([(m.partition(), m.offset()) for m in messages])
        connection.recv()

    with answering(connection):
        hold(servers, group, topic, ready)


class Bench:
    """Sends signals to workers that hold messages."""

    def __init__(self, servers: str, step: Callable[[str], None]) -> None:
        """Keeps the parameters.

        Args:
            servers: the broker.
            step: called with what comes next.
        """
        self._servers, self._step, self._numbers = servers, step, count()

    def measured(self, way: Way, times: int) -> Redelivered:
        """Lets workers hold messages, and end, in one way.

        Args:
            way: how.
            times: how often; fewer if that takes longer than `PATIENCE_S`.

        Raises:
            RedeliveryError: nobody got the messages in time.
            RemoteFailedError: a worker failed.
        """
        found = Redelivered(way.title, way.goal_ms)
        while len(found.times_ms) < times and sum(found.times_ms) < PATIENCE_S * 1e3:
            self._step(f"redelivery: {way.title}")
            found.times_ms.append(self._redelivered_ms(way))
        return found

    def _redelivered_ms(self, way: Way) -> float:
        group = topic = f"bench-queue-killed-{next(self._numbers)}"
        servers = self._servers
        make_topic(servers, topic, 1)
        try:
            fill_plain(servers, topic, range(HELD), 1)
            if way.kind == KAFKA:
                begin_at_first(servers, group)
            return self._taken_over_ms(way, group, topic)
        finally:
            delete_topics(servers, [topic])

    def _taken_over_ms(self, way: Way, group: str, topic: str) -> float:
        servers = self._servers
        holder = Remote("the worker that gets a signal", _serve, way.hold, servers, group, topic)
        try:
            held: set[Key] = set(holder.receive(_START_TIMEOUT_S))
            with open_kind(way.kind, servers, group, topic) as other:
                self._await_at_work(other, topic, held)
                began_s = time.monotonic()
                holder.signal(way.signal)
                return (self._given_s(other, held) - began_s) * 1e3
        finally:
            holder.kill()  # One that is stopped does not end by itself.

    def _await_at_work(self, other: Any, topic: str, held: set[Key]) -> None:
        """Waits until a worker is given a message that is written now."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        fill_plain(self._servers, topic, range(HELD, HELD + 1), 1)
        is_at_work = False
        while not is_at_work:
            for message in accept(other, POLL_S):
                if (message.partition(), message.offset()) in held:
                    raise RedeliveryError("a message was given to two workers that live")
                is_at_work = is_at_work or number_of(message) == HELD
            if time.monotonic() > deadline_s:
                raise RedeliveryError("the worker that lives is given nothing")

    @staticmethod
    def _given_s(other: Any, held: set[Key]) -> float:
        """Returns the monotonic time at which a worker was given the last of these messages."""
        left, deadline_s = set(held), time.monotonic() + _GIVEN_TIMEOUT_S
        while left:
            left -= {(m.partition(), m.offset()) for m in accept(other, POLL_S)}
            if time.monotonic() > deadline_s:
                raise RedeliveryError(
                    f"{len(left)} messages of a worker that is gone were not given to another"
                    f" one within {_GIVEN_TIMEOUT_S:g} s"
                )
        return time.monotonic()
