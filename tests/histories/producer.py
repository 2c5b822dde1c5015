"""Random histories of the real `Producer`: an application, drawn from a seed, and its bad luck.

The log is in memory and has librdkafka's manners; the coordinator decides in memory. What happened
is kept in a `History`, which `producer_checkers.py` judges. Threads make a history of one seed
differ a little from run to run: the application's calls are the same, the moments are not.

Three kinds of applications:

- `single`: one thread; transactions as objects, by confluent-kafka's calls, and plain records;
- `threads`: two threads with transactions as objects; callbacks of futures begin further ones;
- `intruder`: one thread with confluent-kafka's calls, and one that produces beside it.
"""

from __future__ import annotations

import gc
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from logtx.coordinator.protocol.commands import Outcome
from logtx.integration.block import Block
from logtx.journal.errors import (
    CoordinatorBusyError,
    DoubleStartError,
    LogtxError,
    OffsetsConflictError,
    RequestTimedOutError,
    RetriableError,
    TooManyTransactionsError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.state import State
from logtx.producer import futures
from logtx.producer.branch import Branch
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..producer.fake import FakeCoordinators
from ..signals import KINDS, Tracer
from .neighbour import DISTURBING, Neighbour
from .producer_history import PARTITIONS, Begun, CallbackError, History, Input, Sent

COORDINATOR_S: Final = 0.3
DELIVERY_S: Final = 0.6
RETRY_S: Final = 0.02
HANG_S: Final = 2.3
"""A call that takes longer hangs. The longest legal wait is `DELIVERY_S` and a few times
`COORDINATOR_S`; the bound with which a producer ends a wait in vain is 2.8 s."""
QUEUE_MAX: Final = 12
TOO_LARGE: Final = b"x" * 1_100_000
KINDS_OF_FAULTS: Final = (
    *("lost", "refused", "expired", "held", "failed", "unacknowledged", "outage", "purged"),
    *("interrupted", "callbacks", "large", "stopped", "ended", "slow", "unanswered"),
)
_ERRORS_OF_REQUESTS: Final = {
    "begin": (TooManyTransactionsError,),
    "add_partitions": (CoordinatorBusyError,),
    "add_offsets": (OffsetsConflictError, CoordinatorBusyError),
    "commit": (CoordinatorBusyError, UnknownTopicError, OffsetsConflictError),
    "abort": (CoordinatorBusyError,),
    "outcome": (CoordinatorBusyError,),
    "bind_group": (CoordinatorBusyError,),
}


class Application:
    """One history: what the application does, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.h = History(seed)
        self.mode = self.h.mode = self.rng.choice(("single", "single", "threads", "intruder"))
        chosen = self.rng.sample(KINDS_OF_FAULTS, self.rng.randint(0, 5))
        self.faults = {kind for kind in chosen if kind not in ("ended", "stopped")}
        # Nothing goes on after the one; the other is mended once in ten seconds.
        self.once = {kind for kind in chosen if kind in ("ended", "stopped")}
        self.log = MemoryLog(uuid.uuid4().hex)
        for topic, count in PARTITIONS.items():
            self.log.create_topic(topic, partitions=count)
        self.coordinators = FakeCoordinators()
        self.threads_before = set(threading.enumerate())
        self.small_queue = self.rng.random() < 0.3
        config: dict[str, Any] = {
            "transactional.id": "p",
            "coordinator.timeout.ms": round(COORDINATOR_S * 1000),
            "delivery.timeout.ms": round(DELIVERY_S * 1000),
            "retry.backoff.ms": round(RETRY_S * 1000),
            "partition.registration.delay.ms": self.rng.choice((0, 5, 50)),
            "transaction.begin.ahead": self.rng.random() < 0.5,
            "transactions.in.flight.max": self.rng.choice((1, 8, 1_000)),
        }
        self.roomy = config["transactions.in.flight.max"] > 1
        if self.small_queue:
            config["queue.buffering.max.messages"] = QUEUE_MAX
        self.neighbour: Neighbour | None = None
        if seed % 3 == 0:
            disturbed = not DISTURBING.isdisjoint(chosen)
            self.neighbour = Neighbour(seed, self.log, config, disturbed)
        self.producer: Any = Producer(config, log=self.log, coordinators=self.coordinators)
        self.transactional = self.mode == "intruder" or self.rng.random() < 0.5
        self.current: Begun | None = None
        """The transaction begun last, until confluent-kafka's calls ended it."""
        self.ending = False
        self.begun: list[tuple[Begun, Any]] = []
        self.open: list[tuple[Begun, Any]] = []
        """Transactions that are kept open, or are being ended, for later."""
        self.futures: list[tuple[Begun, str, Future[Outcome]]] = []
        self.callbacks_due: list[threading.Event] = []
        self.input = Input()
        self.sent_up_to = 0
        self.positions: dict[int, Place] = {}
        self.tracer: Tracer | None = None
        self.interrupts = ""
        """Part of the names of the calls that are interrupted."""
        self.timers: list[threading.Timer] = []
        self.ended = False
        self.main = threading.current_thread()

    # ---- calls ----------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        return (
            self.tracer is not None
            and self.tracer.where != ""
            and threading.current_thread() is self.main
        )

    def call(self, name: str, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Makes a call of the application, and notes how it went."""
        began_s, error = time.monotonic(), None
        result: Any = None
        try:
            with self.traced(name):
                result = function()
        except BaseException as raised:  # noqa: BLE001 - judged below
            error = raised.with_traceback(None)
            self._judge(name, error)
        took_s = time.monotonic() - began_s
        self.h.note(f"{name} -> {error!r}" if error else f"{name} -> {result!r}"[:150])
        if took_s > HANG_S:
            self.h.wrong.append(("hangs", f"{name} took {took_s:.1f} s and gave {error!r}"))
        return result, error

    def traced(self, name: str) -> AbstractContextManager[None]:
        """Lets the interruption that is due come in calls of this name, if it is one for them."""
        if self.tracer is None or threading.current_thread() is not self.main:
            return nullcontext()
        return self.tracer.on() if self.interrupts in name else nullcontext()

    def _judge(self, name: str, error: BaseException) -> None:
        known = isinstance(error, LogtxError) or self.interrupted
        known = known or (isinstance(error, CallbackError) and name in ("poll", "flush"))
        known = known or (isinstance(error, KafkaException) and name == "plain produce")
        if not known:
            self.h.wrong.append(("errors", f"{name} raised {error!r}"))

    # ---- records --------------------------------------------------------------------------------

    def make(self, begun: Begun | None, rng: random.Random, writer: object, **more: Any) -> Sent:
        topic = rng.choice(list(PARTITIONS))
        partition = rng.randrange(PARTITIONS[topic])
        headers = [("h", b"1")] if rng.random() < 0.3 else []
        listened = rng.random() < 0.6
        value = b"%d" % len(self.h.sent)
        if "large" in self.faults and rng.random() < 0.1:
            value += TOO_LARGE
        sent = Sent(value, topic, partition, headers, begun, more.pop("unsure", False), listened,
                    writer, **more)  # fmt: skip
        self.h.sent.append(sent)
        return sent

    def on_delivery(self, sent: Sent, txn: Transaction | None, rng: random.Random) -> Any:
        """Returns its callback, which may raise, or use the producer."""
        if not sent.listened:
            return None
        manner = rng.random() if "callbacks" in self.faults else 1.0

        def delivered(error: KafkaError | None, message: Any) -> None:
            sent.reports.append((error.code() if error else None, message.offset()))
            if manner < 0.2:
                raise CallbackError(sent.value[:20])
            if txn is None or sent.begun is None:
                return
            if manner < 0.4:
                self.produce(sent.begun, txn, random.Random(sent.value[:20]), "callback")
            elif manner < 0.5:
                self.end(sent.begun, txn, "commit", "async")
            elif manner < 0.6:
                # Waits for reports, which would come on this thread: it is refused.
                _, error = self.call("commit in a callback", txn.commit)  # type: ignore[assignment]
                refused = isinstance(error, TransactionStateError)
                sent.begun.asked = sent.begun.asked or not refused or txn.is_decided

        return delivered

    def give(self, sent: Sent, name: str, function: Callable[..., None], on_delivery: Any) -> None:
        """Calls a `produce`, in any form."""
        headers: Any = sent.headers or None
        called = partial(
            function, sent.topic, sent.value, None, sent.partition, on_delivery, 0, headers
        )
        fired = self.interrupted
        _, error = self.call(name, called)
        if self.interrupted and not fired:
            sent.result = "interrupted" if error is not None else "taken"
        else:
            sent.result = "taken" if error is None else "refused"

    def produce(
        self, begun: Begun, txn: Transaction, rng: random.Random, writer: object, via: Any = None
    ) -> None:
        sent = self.make(begun, rng, writer)
        function = txn.produce if via is None else via.produce
        self.give(sent, "produce", function, self.on_delivery(sent, txn, rng))
        if isinstance(via, Block) and via.failure is not None:
            begun.asked = True  # The block asks for the abort.
            if sent.result == "taken":
                sent.result = "interrupted" if self.interrupted else "swallowed"

    def produce_confluent(self, rng: random.Random) -> None:
        """`Producer.produce`: into the transaction begun last, or plainly."""
        current = self.current
        into = current is not None and (self.ending or not current.asked or self.transactional)
        sent = self.make(current if into else None, rng, "main")
        name = "confluent produce" if into or self.transactional else "plain produce"
        self.give(sent, name, self.producer.produce, self.on_delivery(sent, None, rng))

    def produce_batch(self, rng: random.Random) -> None:
        current = self.current
        into = current is not None and (self.ending or not current.asked or self.transactional)
        batch = [self.make(current if into else None, rng, "main") for _ in range(3)]
        for sent in batch:
            sent.topic, sent.partition = "t", 0
        messages = [
            {"value": s.value, "headers": s.headers, "callback": self.on_delivery(s, None, rng)}
            for s in batch
        ]
        fired = self.interrupted
        _, error = self.call("batch", lambda: self.producer.produce_batch("t", messages, 0))
        for sent, message in zip(batch, messages, strict=True):
            sent.result = "refused" if error is not None or "_error" in message else "taken"
            if self.interrupted and not fired:
                sent.result = "interrupted"

    def of_a_branch(self, begun: Begun, txn: Transaction, rng: random.Random) -> None:
        branch: Branch | None
        branch, _ = self.call("branch", txn.branch)
        if branch is None:
            return
        for _ in range(rng.randint(0, 3)):
            sent = self.make(begun, rng, branch, branch=branch.tally.branch)
            self.give(sent, "branch produce", branch.produce, self.on_delivery(sent, None, rng))
        summary, _ = self.call("finish", lambda: branch.finish(DELIVERY_S * 2))
        if summary is not None and rng.random() < 0.7:
            _, error = self.call("accept", lambda: txn.accept(summary))
            if error is None or self.interrupted:
                begun.accepted.add(summary.branch)
        self.call("close branch", branch.close)

    # ---- input offsets --------------------------------------------------------------------------

    def send_offsets(self, begun: Begun, txn: Transaction, rng: random.Random) -> None:
        if self.mode != "single" or begun is not self.current:
            return
        fired = self.interrupted
        self._send_offsets(begun, txn, rng)
        if self.interrupted and not fired:
            begun.unsure = True
            self.sent_up_to = self.input.handed_out

    def _send_offsets(self, begun: Begun, txn: Transaction, rng: random.Random) -> None:
        form = rng.choice(("consumer", "up to", "wrong", "metadata", "offset", "object"))
        end = self.producer.send_offsets_to_transaction
        if form in ("metadata", "offset"):
            partition = rng.randrange(2)
            offset = rng.randint(10, 1_000)
            position = Position(o1=offset, o2=offset + 5, o3=3) if form == "metadata" else None
            position = position or Position.at(offset)
            told = TopicPartition("by name", partition, position.o2, position.to_metadata())
            if form == "offset":
                told = TopicPartition("by name", partition, offset)
            _, error = self.call("send_offsets " + form, lambda: end([told], "n"))
            if error is None:
                begun.offsets["by name", partition] = position.place
            return
        self.input.delivered += rng.randint(0, 3)
        up_to = self.input.delivered
        if form == "wrong":
            wrong = [TopicPartition("in", 0, up_to + 7)]
            self.call("send_offsets wrong", lambda: end(wrong, self.input))
            if rng.random() < 0.5:
                return
            # As applications do that correct themselves.
            form = "consumer"
        if form == "up to":
            up_to = rng.randint(self.sent_up_to, up_to)
            here = [TopicPartition("in", 0, up_to)]
            _, error = self.call("send_offsets up to", lambda: end(here, self.input))
        elif form == "consumer":
            _, error = self.call("send_offsets", lambda: end([], self.input))
        else:
            _, error = self.call("send_offsets object", lambda: txn.send_offsets(self.input))
        if error is None and up_to != self.sent_up_to:
            begun.offsets["in", 0] = Place(up_to)
            self.sent_up_to = up_to

    def rewind(self) -> None:
        """Goes back to what is committed, as an application does after an abort."""
        with self.coordinators.lock:
            committed = self.coordinators.committed.get("g", {}).get(("in", 0))
        place = committed.o1 if committed else 0
        self.input.handed_out = self.input.delivered = self.sent_up_to = place

    # ---- ends -----------------------------------------------------------------------------------

    def begin(self, rng: random.Random) -> tuple[Begun, Any] | None:
        begun = Begun()
        txn, error = self.call("begin", self.producer.begin_transaction)
        if error is not None:
            if self.interrupted:
                # It may be begun all the same, and be the last.
                self.current, self.ending = None, True
            return None
        self.h.begun.append(begun)
        self.begun.append((begun, txn))
        self.current, self.ending = begun, False
        if rng.random() < 0.4:
            self.call("txid", lambda: txn.txid)
        return begun, txn

    def tell(self, begun: Begun, end: str, error: BaseException | None) -> None:
        """Notes what an end told the application."""
        if error is None:
            told = "committed" if end == "commit" else "aborted"
        elif isinstance(error, TransactionCommittedError):
            told = "committed"
        elif isinstance(error, TransactionAbortedError | TransactionAbortOnlyError):
            told = "refused"
        elif isinstance(error, RetriableError | UnknownOutcomeError | TransactionStateError):
            told = "unknown"
        elif isinstance(error, LogtxError) and end == "commit":
            told = "refused"
        else:
            told = "unknown"
        begun.told.append(told)

    def end(self, begun: Begun, txn: Any, end: str, form: str) -> None:
        if form == "async":
            begun.asked = True
            future, error = self.call(end + "_async", getattr(txn, end + "_async"))
            if error is not None:
                self.tell(begun, end, error)
                return
            if "callbacks" in self.faults:
                called = threading.Event()
                self.callbacks_due.append(called)
                self.call("callback", lambda: future.add_done_callback(self.on_done(called)))
            self.futures.append((begun, end, future))
        elif form == "sync":
            begun.asked = True
            timeout = self.rng.choice((None, None, 0.005)) if self.mode == "single" else None
            _, error = self.call(end, lambda: getattr(txn, end)(timeout))
            self.tell(begun, end, error)
        else:
            self.ending = self.ending or begun is self.current
            call = getattr(self.producer, f"{end}_transaction")
            _, error = self.call(f"{end}_transaction", call)
            self.tell(begun, end, error)
            over = error is None or isinstance(error, TransactionCommittedError)
            if over and begun is self.current:
                self.current, self.ending = None, False
            elif self.interrupted:
                # Whether it is dropped already is not known.
                self.current, self.ending = None, True

    def on_done(self, called: threading.Event) -> Callable[[Future[Outcome]], None]:
        """Returns a future's callback that uses the producer."""

        def done(future: Future[Outcome]) -> None:
            try:
                if self.mode != "threads" or self.ended:
                    raise CallbackError(repr(future))
                self.with_block(random.Random(0), callback=True)
            finally:
                called.set()

        return done

    def settle(self) -> None:
        """Waits for all futures and their callbacks."""
        while self.futures:
            begun, end, future = self.futures.pop(0)
            done, _ = wait([future], HANG_S)
            if not done:
                self.h.wrong.append(("hangs", f"the future of {end} is not done"))
            self.tell(begun, end, future.exception() if done else RequestTimedOutError())
        while self.callbacks_due:
            if not self.callbacks_due.pop(0).wait(2 * HANG_S):
                self.h.wrong.append(("hangs", "a callback of a future was not called"))

    # ---- programs -------------------------------------------------------------------------------

    def act(self, begun: Begun, txn: Any, rng: random.Random, writer: object) -> None:
        """Does something within a transaction."""
        for _ in range(rng.randint(0, 5)):
            choice = rng.random()
            if choice < 0.7:
                self.produce(begun, txn, rng, writer)
            elif choice < 0.8 and self.tracer is None:
                self.of_a_branch(begun, txn, rng)
            elif choice < 0.9:
                self.send_offsets(begun, txn, rng)
            else:
                self.between(rng)
        if self.small_queue and rng.random() < 0.2:
            for _ in range(QUEUE_MAX + 3):
                self.produce(begun, txn, rng, writer)

    def between(self, rng: random.Random) -> None:
        """Does something that is allowed at any time."""
        choice = rng.random()
        if choice < 0.3:
            self.call("poll", lambda: self.producer.poll(0.001))
        elif choice < 0.6:
            self.call("flush", lambda: self.producer.flush(0.05))
        elif choice < 0.8:
            time.sleep(rng.choice((0.001, 0.01, 0.03)))
        else:
            truth, _ = self.call("bool", lambda: bool(self.producer))
            if truth is False:
                self.h.wrong.append(("errors", "the producer is false, and would be made again"))
        self.fault(rng)

    def with_block(self, rng: random.Random, *, callback: bool = False) -> None:
        begun: Begun | None = None
        writer = object()

        def block() -> None:
            nonlocal begun
            found = self.begin(rng)
            if found is None:
                return
            begun, txn = found
            with txn:
                # The end is asked for by the block, or in it.
                self.act(begun, txn, rng, writer)
                if not callback:
                    self.between(rng)
                if "expired" in self.faults and rng.random() < 0.3:
                    self.outlive(begun, txn, rng, writer)
                if rng.random() < 0.15:
                    self.end(begun, txn, rng.choice(("commit", "abort")), "sync")
                elif rng.random() < 0.1:
                    raise CoordinatorBusyError("the application gives up")
            begun.block = "" if begun.asked else "normally"

        _, error = self.call("block", block)
        if begun is not None:
            begun.asked = True
            begun.block = begun.block if error is None else "raising"
            if begun.block:
                self.tell(begun, "commit" if error is None else "abort", error)

    def outlive(self, begun: Begun, txn: Any, rng: random.Random, writer: object) -> None:
        """Works for longer than the transaction may take, and may learn that it is over."""
        self.call("txid", lambda: txn.txid)
        self._expired(rng)
        self.h.note("fault expired")
        if rng.random() < 0.5:
            self.send_offsets(begun, txn, rng)
        self.produce(begun, txn, rng, writer)
        time.sleep(0.04)

    def objects(self, rng: random.Random) -> None:
        """A transaction as an object, which may go on beside others."""
        found = self.begin(rng)
        if found is None:
            return
        begun, txn = found
        self.act(begun, txn, rng, txn)
        if rng.random() < 0.2 and self.roomy:
            self.open.append(found)
            return
        self.finish(begun, txn, rng)

    def blocks(self, rng: random.Random) -> None:
        """A `Block` of `logtx.process`, which may still be written to after its end."""
        found = self.begin(rng)
        if found is None:
            return
        begun, txn = found
        block = Block(txn, [], 0)
        for _ in range(rng.randint(1, 4)):
            self.produce(begun, txn, rng, block, via=block)
        self.between(rng)
        self.finish(begun, txn, rng)
        if rng.random() < 0.5:
            self.produce(begun, txn, rng, block, via=block)

    def finish(self, begun: Begun, txn: Any, rng: random.Random) -> None:
        """Ends a transaction, as applications do: again if it must be."""
        end = "commit" if rng.random() < 0.8 else "abort"
        self.end(begun, txn, end, rng.choice(("sync", "async")))
        if begun.told and begun.told[-1] == "unknown" and rng.random() < 0.7:
            self.end(begun, txn, rng.choice(("commit", "abort")), "sync")
        if begun.told and begun.told[-1] == "refused":
            self.end(begun, txn, "abort", rng.choice(("sync", "async")))
            self.rewind()

    def confluent(self, rng: random.Random) -> None:
        """Transactions by the calls of confluent-kafka."""
        found = self.begin(rng)
        if found is None:
            return
        begun, txn = found
        for _ in range(rng.randint(0, 6)):
            choice = rng.random()
            if choice < 0.6:
                self.produce_confluent(rng)
            elif choice < 0.7:
                self.produce_batch(rng)
            elif choice < 0.85:
                self.send_offsets(begun, txn, rng)
            else:
                self.between(rng)
        for _ in range(3):
            end = "commit" if not begun.told and rng.random() < 0.8 else "abort"
            if begun.told and begun.told[-1] == "unknown" and rng.random() < 0.5:
                end = "commit"
            if rng.random() < 0.1:
                self.produce_confluent(rng)
            self.end(begun, txn, end, "confluent")
            if self.current is not begun:
                break
            if rng.random() < 0.3:
                self.produce_confluent(rng)
        if begun.told[-1] != "committed":
            self.rewind()

    def plain(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.8:
                self.produce_confluent(rng)
            else:
                self.produce_batch(rng)

    def step(self, rng: random.Random, *, main: bool) -> None:
        programs: list[Callable[[random.Random], None]]
        if self.mode == "single":
            programs = [self.with_block, self.objects, self.confluent, self.blocks, self.plain]
        elif self.mode == "threads":
            programs = [self.with_block, self.objects, self.blocks]
        else:
            programs = [self.confluent]
        program = rng.choice(programs)
        unsure = self.ending and self.current is None
        if unsure and program == self.plain:
            program = self.confluent
        if not (main and "interrupted" in self.faults and rng.random() < 0.5):
            program(rng)
            return
        self.h.note("an interruption is due")
        kind = rng.choice(list(KINDS))
        self.interrupts = rng.choice(("", "produce", "produce", "commit", "begin", "block"))
        at = rng.randint(1, 40 if self.interrupts else 150)
        self.tracer = Tracer("logtx.producer", at, KINDS[kind])
        try:
            program(rng)
            self.h.note(f"interrupted by {kind} at {self.tracer.where or 'no point'}")
        finally:
            self.tracer = None

    # ---- what goes wrong ------------------------------------------------------------------------

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, function)
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def fault(self, rng: random.Random) -> None:
        if not (possible := sorted(self.faults | self.once)) or rng.random() < 0.4:
            return
        kind = rng.choice(possible)
        happens = getattr(self, "_" + kind, None)
        if happens is not None:
            if kind not in self.faults:
                if kind not in self.once:
                    return
                self.once.remove(kind)
            self.h.note(f"fault {kind}")
            happens(rng)

    def _lost(self, rng: random.Random) -> None:
        lose = rng.choice((self.coordinators.lose_reply, self.coordinators.lose_request))
        lose(rng.choice(("commit", "commit", "abort", "add_offsets", "outcome", "add_partitions")))

    def _refused(self, rng: random.Random) -> None:
        kind = rng.choice(list(_ERRORS_OF_REQUESTS))
        error = rng.choice(_ERRORS_OF_REQUESTS[kind])
        self.coordinators.lose_request(kind, error=error("by the coordinator"))

    def _expired(self, rng: random.Random) -> None:
        with self.coordinators.lock:
            known = list(self.coordinators.transactions.values())
            found = [t for t in known if t.state is State.OPEN]
            for transaction in found:
                if transaction is found[-1] or rng.random() < 0.3:
                    transaction.state = State.ABORTED

    def _held(self, rng: random.Random) -> None:
        topic = rng.choice(list(PARTITIONS))
        self.log.hold_appends(topic, 0)
        self.later(rng.choice((0.01, 0.05)), lambda: self.log.release_appends(topic, 0))

    def _slow(self, rng: random.Random) -> None:
        event = self.coordinators.hold(rng.choice(("begin", "begin", "commit")))
        event.clear()
        self.later(rng.choice((0.005, 0.03)), event.set)

    def _failed(self, rng: random.Random) -> None:
        codes = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.NOT_ENOUGH_REPLICAS)
        self.log.fail_appends(rng.choice(list(PARTITIONS)), 0, rng.choice(codes))

    def _unacknowledged(self, rng: random.Random) -> None:
        self.log.lose_acknowledgements(rng.choice(list(PARTITIONS)), 0)

    def _unanswered(self, rng: random.Random) -> None:
        topic = rng.choice(list(PARTITIONS))
        self.log.lose_answers(topic, 0, rng.randint(1, 2))
        if rng.random() < 0.7:
            # The next one there: what has no answer is sent again, in another epoch.
            other, partition = rng.choice([("t", 1), ("t", 0), ("u", 0)])
            self.log.fail_appends(other, partition, KafkaError.MSG_SIZE_TOO_LARGE)

    def _outage(self, rng: random.Random) -> None:
        self.log.unavailable()
        self.later(rng.choice((0.01, 0.05)), lambda: self.log.unavailable(False))

    def _purged(self, rng: random.Random) -> None:
        self._held(rng)
        if self.current is not None and self.mode != "threads":
            self.produce_confluent(rng)
        self.call("purge", self.producer.purge)

    def _stopped(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self.producer._engine.sender.producer.stopped = True
        else:
            self.log.fail_appends("t", 0, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def _ended(self, rng: random.Random) -> None:
        self.ended = True
        for session in self.coordinators.sessions:
            if rng.random() < 0.7:
                self.coordinators.fence(session.producer_id)
            else:
                with self.coordinators.lock:
                    for transaction in self.coordinators.transactions.values():
                        if transaction.state is State.OPEN:
                            transaction.state = State.ABORTED
                session.end_for_good(DoubleStartError("another one has this generation"))

    def heal(self) -> None:
        for timer in self.timers:
            timer.join(5)
        self.faults = {kind for kind in self.faults if kind == "callbacks"}
        self.once = set()
        with self.coordinators.lock:
            self.coordinators._faults.clear()
        for topic, count in PARTITIONS.items():
            for partition in range(count):
                found = self.log.find_partition(topic, partition)
                assert found is not None
                found.failures.clear()
                found.lost_acknowledgements = found.lost_answers = 0

    # ---- the whole ------------------------------------------------------------------------------

    def run(self) -> History:
        if self.transactional:
            self.call("init_transactions", self.producer.init_transactions)
        helper = None
        steps = self.rng.randint(2, 6)
        going = threading.Event()
        if self.mode == "threads":
            helper = threading.Thread(target=self._help, args=(steps,), name="helper")
        elif self.mode == "intruder":
            helper = threading.Thread(target=self._intrude, args=(going,), name="intruder")
        if helper is not None:
            helper.start()
        for _ in range(steps):
            self.step(self.rng, main=True)
            self.between(self.rng)
        going.set()
        if helper is not None:
            helper.join(30)
            if helper.is_alive():
                self.h.wrong.append(("hangs", "a thread of the application does not end"))
        self.heal()
        for begun, txn in self.open:
            self.finish(begun, txn, self.rng)
        self.settle()
        for begun, txn in list(self.begun):
            if not txn.is_decided:
                self.end(begun, txn, "abort", "sync")
        self._goes_on()
        self.settle()
        if self.neighbour is not None:
            self.h.wrong += [("neighbour", what) for what in self.neighbour.end()]
        self._close()
        self._collect()
        return self.h

    def _help(self, steps: int) -> None:
        rng = random.Random(self.h.seed + 1)
        for _ in range(steps):
            self.step(rng, main=False)

    def _intrude(self, going: threading.Event) -> None:
        rng = random.Random(self.h.seed + 1)
        for _ in range(40):
            sent = self.make(None, rng, "intruder", unsure=True)
            on_delivery = self.on_delivery(sent, None, rng)
            self.give(sent, "intruder's produce", self.producer.produce, on_delivery)
            if going.wait(0.003):
                return

    def _goes_on(self) -> None:
        """When the faults stop, transactions commit again, after a few attempts."""
        if self.ended:
            return
        errors = []
        for _ in range(5):
            begun = Begun()

            def attempt(begun: Begun = begun) -> None:
                with self.producer.begin_transaction() as txn:
                    self.h.begun.append(begun)
                    self.begun.append((begun, txn))
                    assert txn.txid
                    for _ in range(2):
                        sent = self.make(begun, random.Random(5), txn)
                        self.give(sent, "produce", txn.produce, None)
                        sent.listened = False

            _, error = self.call("goes on", attempt)
            self.current, self.ending = begun, False
            begun.asked = True
            self.tell(begun, "commit" if error is None else "abort", error)
            if error is None:
                return
            errors.append(error)
        self.h.wrong.append(("goes-on", f"no transaction commits any more: {errors!r}"))

    def _close(self) -> None:
        for begun, txn in self.begun:
            begun.txid = txn._txid
        undecided = self.producer._transactions._open
        self.begun.clear()
        if self.rng.random() < 0.3 and not undecided:
            self.call("flush", lambda: self.producer.flush(DELIVERY_S * 2))
            self.producer = None
            self.open.clear()
            gc.collect()
        else:
            self.call("close", lambda: self.producer.close(1))
        deadline_s = time.monotonic() + HANG_S
        while left := self._threads():
            if time.monotonic() > deadline_s:
                self.h.wrong.append(("closed", f"threads are left: {left}"))
                return
            time.sleep(0.003)
        if not all(session.closed for session in self.coordinators.sessions):
            self.h.wrong.append(("closed", "the session is left"))

    def _threads(self) -> list[str]:
        now = set(threading.enumerate()) - self.threads_before
        return [thread.name for thread in now if thread.name.startswith("logtx-")]

    def _collect(self) -> None:
        for topic, count in PARTITIONS.items():
            for partition in range(count):
                found = self.log.find_partition(topic, partition)
                assert found is not None
                self.h.records[topic, partition] = list(found.records)
        self.h.transactions = dict(self.coordinators.transactions)


def run(seed: int) -> History:
    """Makes the history of a seed; how it ends is for `producer_checkers.violations` to judge."""
    with patch.object(futures, "_IDLE_S", 0.01):
        return Application(seed).run()
