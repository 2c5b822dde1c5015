"""Queues compared with a naive model, which keeps a word for each message."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from logtx.coordinator.core.subscriptions import MessageState
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult
from logtx.journal.errors import AckConflictError, SubscriptionResetError
from logtx.journal.spans import AT_OFFSET, MessageId

from ...parameters import slow
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
        self.eras = [0]
        """All that there were."""
        self.consumed: dict[Any, set[int]] = {}
        for consumer in CONSUMERS:
            self.queue.attach(consumer)

    def run(self) -> None:
        steps = ("acquire", "plain", "add", "add", "release", "end", "fail_over", "time", "attach")
        steps = (*steps, "reset", "delete", "late")
        weights = (6, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 2)
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
        spans = map(message, named)
        results = self.queue.acknowledge(1, AcknowledgeType.ACCEPT, *spans, era=self.eras[-1])
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
        told = self.queue.add_acks(producer, txid, *map(message, named), era=self.eras[-1])
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
        results = self.queue.acknowledge(consumer, type_, *spans, unseen=unseen, era=self.eras[-1])
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
        self.queue.attach(consumer, *map(message, kept), era=self.eras[-1])
        for n in held:
            self.holder[n] = consumer if n in kept else None

    def reset(self) -> None:
        start = self.chance.randint(0, END)
        if self.begins_anew(start):
            self.of = ["deleted" if n < start else None for n in range(END)]

    def delete(self) -> None:
        if self.begins_anew(None):
            self.of = [None] * END

    def begins_anew(self, start: int | None) -> bool:
        """Lets an operator reset the subscription, or delete it. Returns whether it was done."""
        self.queue.leave(*CONSUMERS)
        told = self.queue.reset(start, era=self.eras[-1])
        is_done = not any(each not in (None, "deleted") for each in self.of)
        assert (told == commands.Done()) == is_done
        if is_done:
            self.eras.append(self.queue.era)
            self.count = [0] * END
        self.holder = [None] * END
        for consumer in CONSUMERS:
            self.queue.attach(consumer, era=self.eras[-1] if start is not None else None)
        return is_done

    def late(self) -> None:
        """What was said in a former era comes late: nothing of it counts."""
        if len(self.eras) == 1:
            return
        era, named = self.chance.choice(self.eras[:-1]), [*map(message, self.some())]
        told = self.queue.acknowledge(1, AcknowledgeType.ACCEPT, *named, era=era)
        assert isinstance(told, SubscriptionResetError)
        for producer, txid in self.open.items():
            told = self.queue.add_acks(producer, txid, *named, era=era)
            assert isinstance(told, SubscriptionResetError)

    def fail_over(self) -> None:
        before, self.holder = self.holder, [None] * END
        self.count = [0] * END
        self.queue.fail_over()
        self.queue.tell_ends()
        for consumer in CONSUMERS:
            held = [n for n in range(END) if before[n] == consumer]
            self.queue.attach(consumer, *map(message, held), era=self.eras[-1])
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


@pytest.mark.parametrize("seed", [*range(30), *slow(range(30, 60))])
def test_queues_do_what_a_naive_model_does(seed: int) -> None:
    Naive(seed).run()
