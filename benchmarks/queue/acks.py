"""Works a backlog off and acknowledges it outside of transactions, beside a consumer that commits.

One process reads. Its loop asks for 500 messages, reads each value, and says that they are done: by
an acknowledgement of each, or by a commit of positions that nobody waits for. The end of a round
waits until everything is answered.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

import logtx

from ..clients import CONNECT_TIMEOUT_S, consumer_config, delete_topics, from_start, make_topic
from ..cpu import CpuTimes
from ..model import Context, Sample
from .backlog import PARTITIONS, PER_TRANSACTION, fill_plain, fill_transactions
from .queues import BATCH, accept, await_first, open_queue, settle

PLAIN: Final = "plain"
TRANSACTIONS: Final = "transactions"
CONTENTS: Final = (PLAIN, TRANSACTIONS)
MESSAGES: Final = 400_000
"""Messages of a backlog. A round ends with the last of them."""
SECONDS: Final = 2.0
"""Length of a round, unless the backlog ends before."""


def topic_of(content: str) -> str:
    """Returns the topic with a backlog of one of `CONTENTS`."""
    return f"bench-queue-acks-{content}"


def total_of(context: Context) -> int:
    """Returns the number of messages of a backlog."""
    return int(context.sized(MESSAGES / PER_TRANSACTION, 30)) * PER_TRANSACTION


class _Acks:
    """Works a backlog off from its start, by a new group in each round."""

    def __init__(self, context: Context, content: str) -> None:
        """Keeps the parameters.

        Args:
            context: of the run.
            content: one of `CONTENTS`.
        """
        self.context = context
        self.topic = topic_of(content)
        self._name, self._rounds = f"{type(self).__name__}-{content}", itertools.count()

    def open(self) -> None:
        """Finds the processes whose CPU counts; every round has a consumer of its own."""
        self._cpu = CpuTimes(self.context.pids)

    def close(self) -> None:
        """Does nothing."""

    def connect(self, group: str) -> Any:
        raise NotImplementedError

    def begin(self, reader: Any) -> int:
        """Takes the first messages, and waits until they are done; returns how many."""
        raise NotImplementedError

    def take(self, reader: Any) -> int:
        """Takes messages, and says that they are done; returns how many."""
        raise NotImplementedError

    def end(self, reader: Any) -> None:
        """Waits until all that was taken is done."""
        raise NotImplementedError

    def measure(self) -> Sample:
        """Runs one round: messages a second, behind the first batch, which makes connections."""
        clock, total = time.perf_counter, total_of(self.context)
        reader = self.connect(f"{self._name}-{next(self._rounds)}")
        try:
            left = total - self.begin(reader)
            began_s, got, cpu = clock(), 0, self._cpu.now()
            until_s = began_s + self.context.sized(SECONDS, 0.2)
            while got < left and clock() < until_s:
                found = self.take(reader)
                if not found:
                    raise TimeoutError(f"{left - got} of {total} messages did not come")
                got += found
            self.end(reader)
            seconds = clock() - began_s
            used = self._cpu.since(cpu, got)
        finally:
            reader.close()
        return Sample(got / seconds, {"messages": float(got), "seconds": seconds, **used})


class Committing(_Acks):
    """`logtx.Consumer`, which commits its positions after each batch."""

    def connect(self, group: str) -> logtx.Consumer:
        """Returns a new consumer that has the whole topic."""
        consumer = logtx.Consumer(consumer_config(self.context.bootstrap_servers, group))
        consumer.assign(from_start(self.topic, PARTITIONS))
        return consumer

    def begin(self, reader: logtx.Consumer) -> int:
        """Takes the first batch."""
        found = self.take(reader)
        self.end(reader)
        return found

    def take(self, reader: logtx.Consumer) -> int:
        """Takes a batch, and asks for a commit."""
        messages = reader.consume(BATCH, CONNECT_TIMEOUT_S)
        for message in messages:
            message.value()
        reader.commit(asynchronous=True)
        return len(messages)

    def end(self, reader: logtx.Consumer) -> None:
        """Commits."""
        reader.commit(asynchronous=False)


class Acknowledging(_Acks):
    """`logtx.ShareConsumer`, which acknowledges each message."""

    def __init__(self, context: Context, content: str, records: int = BATCH) -> None:
        """Keeps the parameters.

        Args:
            context: of the run.
            content: one of `CONTENTS`.
            records: ``max.poll.records``.
        """
        super().__init__(context, content)
        self._name, self._records = f"{self._name}-{records}", records

    def connect(self, group: str) -> logtx.ShareConsumer:
        """Returns a new consumer of a new subscription."""
        settings = {"max.poll.records": self._records}
        return open_queue(self.context.bootstrap_servers, group, self.topic, settings)

    def begin(self, reader: logtx.ShareConsumer) -> int:
        """Takes the first messages."""
        return await_first(reader, CONNECT_TIMEOUT_S)

    def take(self, reader: logtx.ShareConsumer) -> int:
        """Takes messages; the next poll sends their acknowledgements."""
        return len(accept(reader, CONNECT_TIMEOUT_S))

    def end(self, reader: logtx.ShareConsumer) -> None:
        """Sends the last acknowledgements."""
        settle(reader)


def prepare(context: Context) -> None:
    """Creates the topics, and writes the backlogs."""
    servers, numbers = context.bootstrap_servers, range(total_of(context))
    for content in CONTENTS:
        make_topic(servers, topic_of(content), PARTITIONS)
    fill_plain(servers, topic_of(PLAIN), numbers)
    fill_transactions(servers, topic_of(TRANSACTIONS), numbers)


def finish(context: Context) -> None:
    """Deletes the topics."""
    delete_topics(context.bootstrap_servers, [topic_of(content) for content in CONTENTS])
