"""Queues compared with a naive model, which keeps a word for each message."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from logtx.coordinator.core.subscriptions import MessageState
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult
from logtx.journal.errors import AckConflictError
from logtx.journal.spans import AT_OFFSET, MessageId

from .queue_harness import END, GROUP, Queue, message

CONSUMERS: Final = (1, 2, 3)
PRODUCERS: Final = ("t1", "t2")
STEPS: Final = 80


class Naive:
    """What became of each message, by its offset: None, a TxId, or "deleted"."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.queue = Queue()
        self.of: list[Any] = [None] * END
        self.holder: list[int | None] = [None] * END
        self.count = [0] * END
        """How often each was given out, as this owner knows."""
        self.open: dict[str, Any] = {}
        self.consumed: dict[Any, set[int]] = {}
        for consumer in CONSUMERS:
            self.queue.attach(consumer)

    def run(self) -> None:
        steps = ("acquire", "plain", "add", "add", "release", "end", "fail_over", "time", "attach")
        weights = (6, 3, 3, 3, 3, 3, 1, 1, 1)
        for step in self.chance.choices(steps, weights, k=STEPS):
            getattr(self, step)()
            self.compare()

    def some(self) -> list[int]:
        return sorted(self.chance.sample(range(END), self.chance.randint(1, 3)))

    def acquire(self) -> None:
        consumer = self.chance.choice(CONSUMERS)
        ask = commands.Acquire(
            group=GROUP, consumer=consumer, max_offsets=self.chance.randint(1, 4)
        )
        ref = self.queue.send(ask)
        reply = self.queue.coordinator.replies.get(ref)
        self.queue.coordinator.tenure.forget([ref])
        if reply is None:
            free = [n for n in range(END) if self.of[n] is None and self.holder[n] is None]
            assert not free, f"{free} are there, and nothing was given out"
            return
        assert isinstance(reply, commands.Leases)
        for lease in reply.leases:
            for n in range(END):
                if lease.span.lo <= MessageId(n, AT_OFFSET) < lease.span.hi:
                    assert self.of[n] is None, "given out, and deleted or pending"
                    assert self.holder[n] is None, "given out twice at a time"
                    self.holder[n] = consumer
                    self.count[n] += 1
                    assert lease.delivery_count == self.count[n]

    def plain(self) -> None:
        named = self.some()
        results = self.queue.acknowledge(1, AcknowledgeType.ACCEPT, *map(message, named))
        for n, result in zip(named, results, strict=True):
            if self.of[n] is None:
                assert result is AckResult.DONE
                self.of[n], self.holder[n] = "deleted", None
            else:
                assert result is (
                    AckResult.DELETED if self.of[n] == "deleted" else AckResult.PENDING
                )

    def add(self) -> None:
        producer = self.chance.choice(PRODUCERS)
        txid = self.open.get(producer)
        if txid is None:
            txid = self.open[producer] = self.queue.begin(producer, 900_000)
        named = self.some()
        told = self.queue.add_acks(producer, txid, *map(message, named))
        if any(self.of[n] not in (None, txid) for n in named):
            assert isinstance(told, AckConflictError)
            return
        assert told == commands.Done()
        for n in named:
            self.of[n], self.holder[n] = txid, None
            self.consumed.setdefault(txid, set()).add(n)

    def end(self) -> None:
        if not self.open:
            return
        producer, txid = self.open.popitem()
        commit = self.chance.random() < 0.5
        self.queue.end(producer, txid, commit=commit)
        then = "deleted" if commit else None
        self.of = [then if each == txid else each for each in self.of]

    def release(self) -> None:
        consumer, named = self.chance.choice(CONSUMERS), self.some()
        unseen, spans = self.chance.random() < 0.5, map(message, named)
        type_ = AcknowledgeType.RELEASE
        results = self.queue.acknowledge(consumer, type_, *spans, unseen=unseen)
        for n, result in zip(named, results, strict=True):
            if self.holder[n] == consumer:
                assert result is AckResult.DONE
                self.holder[n] = None
                self.count[n] -= unseen

    def time(self) -> None:
        self.queue.coordinator.pass_time(31_000)
        self.holder = [None] * END

    def attach(self) -> None:
        consumer = self.chance.choice(CONSUMERS)
        held = [n for n in range(END) if self.holder[n] == consumer]
        kept = held[: self.chance.randint(0, len(held))]
        self.queue.attach(consumer, *map(message, kept))
        for n in held:
            self.holder[n] = consumer if n in kept else None

    def fail_over(self) -> None:
        before, self.holder = self.holder, [None] * END
        self.count = [0] * END
        self.queue.fail_over()
        self.queue.tell_ends()
        for consumer in CONSUMERS:
            held = [n for n in range(END) if before[n] == consumer]
            self.queue.attach(consumer, *map(message, held))
            for n in held:
                self.holder[n], self.count[n] = consumer, 1
        self.queue.coordinator.pass_time(1_000)

    def compare(self) -> None:
        for n in range(END):
            if self.of[n] == "deleted":
                state = MessageState.DELETED
            elif self.of[n] is not None:
                state = MessageState.PENDING_ACK
            elif self.holder[n] is not None:
                state = MessageState.PENDING
            else:
                state = MessageState.AVAILABLE
            assert self.queue.state(n) is state, f"message {n}"
        loaded = self.queue.coordinator.journal.load().queues.subscriptions
        kept = self.queue.coordinator.shard.queues.subscriptions
        assert list(loaded.rows()) == list(kept.rows()), "a replay of the journal says the same"


@pytest.mark.parametrize("seed", range(60))
def test_queues_do_what_a_naive_model_does(seed: int) -> None:
    Naive(seed).run()
