"""Worker processes that share one queue: of logtx, or of Kafka's share groups.

Workers are processes, and not threads of one: a queue is shared by workers that are started and die
by themselves. Threads would also share an interpreter, which bounds logtx's consumer and not
Kafka's: that one does nearly all of its work in C. On a machine of two cores more workers than two
find no more CPU. There the figures of 4 and 16 say what sharing costs, and not what it gains.

Both kinds work off the same topic, by the same calls. Each round is a new group. All workers get
their first messages before the clock starts: a share group takes seconds to give the last of 16
members its part.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from ..clients import CONNECT_TIMEOUT_S, delete_topics, make_topic
from ..model import Context, Sample
from ..remote import Remote, answering
from .backlog import PARTITIONS, fill_plain
from .queues import BATCH, KAFKA, accept, await_first, begin_at_first, open_kind, settle

MESSAGES: Final = 4_000_000
"""Messages of the backlog: more than a round gets through."""
SECONDS: Final = 2.0
"""Length of a round."""
POLL_S: Final = 0.2
"""Longest wait of a poll in a round. What others hold may leave nothing for a worker."""
_JOIN_TIMEOUT_S: Final = 90.0
"""How long a worker may take until it has its first messages, while all others start, too."""
_END_TIMEOUT_S: Final = 60.0
"""How long it may take for the last answers, and to leave."""


def topic_of(workers: int) -> str:
    """Returns the topic that this number of workers works off. Each has one of its own: a name that
    a topic had before is believed to mean that one for some seconds."""
    return f"bench-queue-workers-{workers}"


class BacklogTooSmallError(Exception):
    """A round would have worked off all that there is."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What one worker did in a round."""

    messages: int
    """Accepted, and answered."""
    began_ns: int
    """Nanoseconds of the machine's monotonic clock, which all processes share."""
    ended_ns: int


def rate_of(found: Sequence[Worked]) -> float:
    """Returns messages a second, from the first worker's begin to the last one's end."""
    began_ns, ended_ns = min(w.began_ns for w in found), max(w.ended_ns for w in found)
    return sum(w.messages for w in found) / ((ended_ns - began_ns) / 1e9)


def work(queue: Any, seconds: float) -> Worked:
    """Takes and accepts messages for some seconds; returns when all is answered."""
    began_ns, messages = time.monotonic_ns(), 0
    until_ns = began_ns + int(seconds * 1e9)
    while time.monotonic_ns() < until_ns:
        messages += len(accept(queue, POLL_S))
    settle(queue)
    return Worked(messages, began_ns, time.monotonic_ns())


def _serve(connection: Connection, kind: str, servers: str, topic: str) -> None:
    with answering(connection):
        while True:
            group = connection.recv()
            with open_kind(kind, servers, group, topic) as queue:
                connection.send(await_first(queue, _JOIN_TIMEOUT_S))
                worked = work(queue, connection.recv())
            connection.send(worked)


class Crew:
    """A side: workers of one kind."""

    def __init__(self, context: Context, kind: str, workers: int) -> None:
        """Keeps the parameters; `open` starts the workers.

        Args:
            context: of the run.
            kind: one of `KINDS`.
            workers: their number.
        """
        self._context, self._kind, self._workers = context, kind, workers
        self._rounds = itertools.count()
        self._hands: list[Remote] = []

    def open(self) -> None:
        """Starts the processes. Each joins anew in each round."""
        where = self._context.bootstrap_servers, topic_of(self._workers)
        self._hands = [
            Remote(f"worker {self._kind}-{number}", _serve, self._kind, *where)
            for number in range(self._workers)
        ]

    def close(self) -> None:
        """Ends the processes."""
        hands, self._hands = self._hands, []
        for hand in hands:
            hand.close()

    def measure(self) -> Sample:
        """Runs one round: messages a second of all workers together."""
        group = f"bench-crew-{self._kind}-{self._workers}-{next(self._rounds)}"
        if self._kind == KAFKA:
            begin_at_first(self._context.bootstrap_servers, group)
        seconds = self._context.sized(SECONDS, 0.2)
        joining_s = time.monotonic()
        for hand in self._hands:
            hand.send(group)
        first = sum(hand.receive(_JOIN_TIMEOUT_S + CONNECT_TIMEOUT_S) for hand in self._hands)
        joined_s = time.monotonic() - joining_s
        for hand in self._hands:
            hand.send(seconds)
        found: list[Worked] = [hand.receive(seconds + _END_TIMEOUT_S) for hand in self._hands]
        messages = sum(worked.messages for worked in found)
        if first + messages + self._workers * BATCH >= total_of(self._context):
            raise BacklogTooSmallError(
                "the backlog came to an end before the round: choose a --scale"
            )
        return Sample(rate_of(found), {"messages": float(messages), "joined s": joined_s})


def total_of(context: Context) -> int:
    """Returns the number of messages of the backlog."""
    return int(context.sized(MESSAGES, 150_000))


def prepare(context: Context, workers: int) -> None:
    """Creates the topic, and writes the backlog."""
    servers, topic = context.bootstrap_servers, topic_of(workers)
    make_topic(servers, topic, PARTITIONS)
    fill_plain(servers, topic, range(total_of(context)))


def finish(context: Context, workers: int) -> None:
    """Deletes the topic."""
    delete_topics(context.bootstrap_servers, [topic_of(workers)])
