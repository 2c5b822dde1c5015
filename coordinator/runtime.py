"""One journal partition, owned and served: joins the shard to its log.

The append is the decision. A command is decided on the state as it will be when everything
before it is durable, its records are appended at predicted offsets, and its reply is parked until
they are acknowledged at exactly those offsets. The rules that make this sound:

- replies are released strictly in append order; the first surprise (a gap, an error, a time-out,
  an unknown offset) voids every later acknowledgement;
- a reply that needs no record is parked behind the last append in flight: a retried commit must
  not be told "committed" while the decision may still be lost;
- an answer that could be stale also asks for the journal's end after the request came, and waits
  until everything below that end is acknowledged as this owner's own;
- after any surprise: stop serving, discard the state, fail parked replies with a retriable error,
  and serve again only after winning a new OWNER epoch;
- sizes are checked before speculation: a command too large fails its client alone.

Source: seed 001, "Transaction coordinator" and "Failure cases"; seed 000, "TC Startup".
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final

from confluent_kafka import KafkaError

from ..journal.control import TopicPartition
from ..journal.errors import (
    BrokerError,
    CoordinatorLoadingError,
    CorruptRecordError,
    DoubleStartError,
    JournalError,
    JournalTruncatedError,
    LogtxError,
    NotCoordinatorError,
    ProducerFencedError,
    RequestTooLargeError,
    TopicError,
    TransactionError,
)
from ..journal.fate import NO_EPOCH
from ..journal.log import Log
from ..journal.reader import (
    COORDINATORS_GROUP,
    JOURNAL_TOPIC,
    find_fates,
    read_entries,
)
from ..journal.record_codec import encode_entry
from ..journal.records import Entry, JournalRecord, Owner
from ..journal.txid import TxId
from . import commands as c
from .appender import Appender
from .checkpoint import Checkpoint
from .decision import Decision, Effect, Instant, ShardConfig, WriteMarkers, WriteOffsets
from .markers import MarkerWriter
from .offsets_log import OffsetsKey, OffsetsWriter
from .shard import Shard

_LOG = logging.getLogger(__name__)

RECORD_MAX_BYTES: Final = 900_000
"""Largest journal record: below Kafka's default limit of 1 MiB for a batch, with room."""
LOAD_TIMEOUT_S: Final = 300.0
OWNER_TIMEOUT_S: Final = 35.0
"""Longer than the appender's message.timeout.ms, so that an append's fate is known."""
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
TICK_S: Final = 0.05
LOOK_UP_TIMEOUT_S: Final = 30.0
CLEARED_EPOCHS: Final = 8
"""Earlier owners whose offsets records a new one clears; those before them did the same."""
PUBLISH_S: Final = 3_600.0
PROBE_S: Final = 1.0
PROBES_MISSED_MAX: Final = 3

Answer = Callable[[c.Reply], None]
"""Called once with the reply to a request."""


class Serving(Enum):
    """What a partition's runtime is doing."""

    LOADING = auto()
    SERVING = auto()
    STOOD_DOWN = auto()
    """Another coordinator owns the partition."""
    FAILED = auto()
    """The journal can't be read; see `PartitionRuntime.failure`."""
    STOPPED = auto()


@dataclass(slots=True)
class _Parked:
    answer: Answer
    reply: c.Reply
    behind: int
    """Released when everything below this offset is acknowledged."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the runtimes of one coordinator share."""

    log: Log
    journal: Appender
    markers: MarkerWriter
    offsets: OffsetsWriter
    address: str
    """host:port that clients reach this coordinator at."""
    process_nonce: int
    close_session: Callable[[int, str, int, LogtxError], None]
    """Called with journal partition, producer id, session nonce and the reason."""
    close_sessions: Callable[[int, LogtxError], None]
    """Called with a journal partition whose sessions must all connect again."""


class PartitionRuntime:
    """Owns one journal partition; lives on the coordinator's event loop."""

    def __init__(self, partition: int, services: Services, config: ShardConfig) -> None:
        """Nothing happens before `start`."""
        self.partition = partition
        self.status = Serving.LOADING
        self.failure: LogtxError | None = None
        self.shard = Shard(partition, config)
        self._services = services
        self._config = config
        self._term = 0
        self._acknowledged_end = 0
        self._parked: deque[_Parked] = deque()
        self._asking: list[_Parked] = []
        self._ask_task: asyncio.Task[None] | None = None
        self._run_task: asyncio.Task[None] | None = None
        self._surprise = asyncio.Event()
        self._unwritten: dict[int, int] = {}
        self._gone: dict[int, tuple[TopicPartition, ...]] = {}
        self._truncated: int | None = None
        """End of the journal before the broker lost its tail, once that was seen."""
        self._look_ups: set[asyncio.Task[None]] = set()
        self._successor = ""

    # ---- serving ---------------------------------------------------------------------------

    def start(self) -> None:
        """Take ownership and serve, for as long as the coordinator runs."""
        self._run_task = asyncio.create_task(self._run(), name=f"partition-{self.partition}")

    async def stop(self) -> None:
        """Stop serving. What is open lives on in the journal, for the next owner."""
        self._discard(NotCoordinatorError("this coordinator is shutting down"))
        self.status = Serving.STOPPED
        tasks = [t for t in (self._run_task, self._ask_task, *self._look_ups) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, command: c.Command, answer: Answer) -> None:
        """Decide a command now; `answer` gets the reply when it may be told."""
        if self.status is not Serving.SERVING:
            answer(self._refusal())
            return
        decision = self.shard.handle(command, answer, _now())
        self._apply(decision)
        if decision.look_up is not None:
            asked = partial(self._look_up, command, decision.look_up, answer)
            self._ask(_Parked(asked, c.Done(), self.shard.next_offset))
        self._catch_up()

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        self.shard.attach(producer_id)

    def detach(self, producer_id: str, nonce: int) -> None:
        """A producer's stream broke."""
        self.shard.detach(producer_id, nonce, _now())

    def forget(self, answers: list[Answer]) -> None:
        """Nobody waits for these answers any more."""
        self.shard.forget_waiting(answers)

    def tick(self) -> None:
        """Do what time has made due; called every `TICK_S`."""
        if self.status is Serving.SERVING:
            self._catch_up()

    def _refusal(self) -> LogtxError:
        if self.status is Serving.LOADING:
            return CoordinatorLoadingError(f"journal partition {self.partition} is being loaded")
        if self.failure is not None:
            return self.failure
        return NotCoordinatorError(f"journal partition {self.partition} is owned elsewhere")

    def _catch_up(self) -> None:
        while (decision := self.shard.due(_now())) is not None:
            self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        shard = self.shard
        try:
            values = self._encode(decision)
        except RequestTooLargeError as refusal:
            for answer, _ in decision.replies:
                self._park(_Parked(answer, refusal, shard.next_offset))
            return
        for record, value in zip(decision.records, values, strict=True):
            self._append(record, value)
        for answer, reply in decision.replies:
            parked = _Parked(answer, reply, shard.next_offset)
            if decision.fresh:
                self._ask(parked)
            else:
                self._park(parked)
        for producer_id, nonce, error in decision.close:
            # Parked as well: were the fencing lost, the one fenced would have left for nothing.
            close = partial(self._close_session, producer_id, nonce)
            self._park(_Parked(close, error, shard.next_offset))

    def _encode(self, decision: Decision) -> list[bytes]:
        """The decision's records as they go into the journal.

        Raises:
            RequestTooLargeError: one does not fit; nothing was decided.
        """
        try:
            values = [
                encode_entry(self.shard.entry(record, ahead))
                for ahead, record in enumerate(decision.records)
            ]
        except (OverflowError, ValueError) as error:
            raise RequestTooLargeError(
                f"a number of the request is out of range: {error}"
            ) from error
        largest = max(map(len, values), default=0)
        if largest > RECORD_MAX_BYTES:
            raise RequestTooLargeError(
                f"the request would take {largest} bytes in the journal, which has"
                f" {RECORD_MAX_BYTES} for one; use fewer partitions, branches or offsets"
            )
        return values

    def _close_session(self, producer_id: str, nonce: int, error: c.Reply) -> None:
        if isinstance(error, ProducerFencedError | DoubleStartError):
            self._services.close_session(self.partition, producer_id, nonce, error)

    def _append(self, record: JournalRecord, value: bytes) -> None:
        offset = self.shard.next_offset
        self.shard.replay(offset, self.shard.entry(record))
        acknowledge = partial(self._acknowledged, self._term, offset)
        self._services.journal.append(JOURNAL_TOPIC, self.partition, acknowledge, value=value)

    def _acknowledged(
        self, term: int, predicted: int, offset: int | None, error: KafkaError | None
    ) -> None:
        if term != self._term:
            return
        if error is not None or offset != predicted:
            what = error.name() if error else f"offset {offset}"
            if offset is not None and offset < self._acknowledged_end:
                self._truncated = self._acknowledged_end
            self._surprised(f"the append predicted at {predicted} was answered by {what}")
            return
        self._acknowledged_end = offset + 1
        effects = self.shard.acknowledge(offset)
        self._release()
        self._execute(effects)

    # ---- replies ---------------------------------------------------------------------------

    def _park(self, parked: _Parked) -> None:
        self._parked.append(parked)
        self._release()

    def _release(self) -> None:
        while self._parked and self._parked[0].behind <= self._acknowledged_end:
            parked = self._parked.popleft()
            parked.answer(parked.reply)

    def _ask(self, parked: _Parked) -> None:
        """Park a reply that could be stale until the journal's end says that it is not."""
        self._asking.append(parked)
        if self._ask_task is None or self._ask_task.done():
            self._ask_task = asyncio.create_task(self._ask_end())

    async def _ask_end(self) -> None:
        while self._asking:
            asking, self._asking = self._asking, []
            term = self._term
            try:
                end = await asyncio.to_thread(
                    self._services.log.end_offset, JOURNAL_TOPIC, self.partition
                )
            except BrokerError as error:
                for parked in asking:
                    parked.answer(CoordinatorLoadingError(f"the journal does not answer: {error}"))
                continue
            if term == self._term and end > self.shard.next_offset:
                self._surprised(f"the journal ends at {end}, not {self.shard.next_offset}")
            if term != self._term:
                for parked in asking:
                    parked.answer(self._refusal())
                continue
            for parked in asking:
                self._park(_Parked(parked.answer, parked.reply, max(parked.behind, end)))

    def _look_up(self, command: c.Command, txid: TxId, answer: Answer, asked: c.Reply) -> None:
        """Go on with a command once the journal's end was seen to be this owner's own."""
        if isinstance(asked, LogtxError):
            answer(asked)
            return
        task = asyncio.create_task(self._answer_fate(command, txid, answer))
        self._look_ups.add(task)
        task.add_done_callback(self._look_ups.discard)

    async def _answer_fate(self, command: c.Command, txid: TxId, answer: Answer) -> None:
        """Answer about a transaction that finished so long ago that only the journal knows it."""
        reply: c.Reply
        try:
            fates = await asyncio.to_thread(
                find_fates, self._services.log, [txid], timeout_s=LOOK_UP_TIMEOUT_S
            )
        except BrokerError as error:
            reply = CoordinatorLoadingError(f"the journal does not answer: {error}")
        except LogtxError as error:
            reply = error
        else:
            fate = fates[txid]
            outcome = c.Outcome(txid, fate.state, fate.commit_sequence)
            reply = Shard.answer_fate(command, outcome)
        answer(reply)

    # ---- effects of durable records --------------------------------------------------------

    def _execute(self, effects: Iterable[Effect]) -> None:
        shard, services, term = self.shard, self._services, self._term
        for effect in effects:
            match effect:
                case WriteOffsets(group, begin, offsets):
                    key = OffsetsKey(group, self.partition, shard.incarnation, shard.epoch)
                    self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
                    services.offsets.write(key, offsets, partial(self._written, term, begin))
                case WriteMarkers(transaction):
                    begin = transaction.begin
                    self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
                    services.markers.write(
                        transaction,
                        shard.epoch,
                        lambda: shard.hw,
                        partial(self._written, term),
                    )

    def _written(self, term: int, begin: int, gone: tuple[TopicPartition, ...] = ()) -> None:
        if term != self._term:
            return
        if gone:
            self._gone[begin] = gone
        self._unwritten[begin] -= 1
        if self._unwritten[begin] == 0:
            del self._unwritten[begin]
            self._apply(self.shard.finish(begin, self._gone.pop(begin, ())))

    # ---- owning ----------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = RETRY_MIN_S
        while True:
            try:
                if await self._take_over():
                    pause_s = RETRY_MIN_S
                    publishing = asyncio.create_task(self._publish())
                    try:
                        await self._surprise.wait()
                    finally:
                        publishing.cancel()
                    if await self._is_replaced():
                        await self._stand_down()
                    continue
            except BrokerError as error:
                _LOG.warning("load_failed partition=%d error=%s", self.partition, error)
            except (JournalError, TopicError) as error:
                _LOG.error("partition_failed partition=%d error=%s", self.partition, error)
                self.status, self.failure = Serving.FAILED, error
                return
            # Random: two candidates that lost to each other must not meet again.
            await asyncio.sleep(pause_s * (1 + random.random()))
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _fail(self, error: LogtxError) -> None:
        _LOG.error("partition_failed partition=%d error=%s", self.partition, error)
        self.status, self.failure = Serving.FAILED, error

    async def _take_over(self) -> bool:
        """Win an OWNER epoch and load the shard; False if another candidate won."""
        services, started = self._services, time.monotonic()
        self.status = Serving.LOADING
        self._surprise.clear()
        shard = Shard(self.partition, self._config)
        shard.topics = self.shard.topics
        end = await asyncio.to_thread(self._load, shard, 0)
        incarnation = random.getrandbits(48) if shard.epoch == NO_EPOCH else shard.incarnation
        owner = Owner(
            replaces=shard.epoch,
            address=services.address,
            process_nonce=services.process_nonce,
        )
        value = encode_entry(Entry(shard.epoch, incarnation, owner))
        won: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def acknowledge(offset: int | None, _error: KafkaError | None) -> None:
            if not won.done():
                won.set_result(offset)

        services.journal.renew_if_broken()
        services.journal.append(JOURNAL_TOPIC, self.partition, acknowledge, value=value)
        offset = await asyncio.wait_for(won, OWNER_TIMEOUT_S)
        if offset is None:
            raise BrokerError(f"the journal took no OWNER record in partition {self.partition}")
        await asyncio.to_thread(self._load, shard, end, offset + 1)
        if shard.epoch != offset:
            return False
        self._serve(shard)
        _LOG.info(
            "partition_owned partition=%d epoch=%d open=%d loaded_ms=%d",
            self.partition, shard.epoch, len(shard.transactions),
            (time.monotonic() - started) * 1000,
        )  # fmt: skip
        return True

    def _load(self, shard: Shard, start: int, end: int | None = None) -> int:
        """Replay [start, end) of the journal partition; runs in a thread."""
        log, partition = self._services.log, self.partition
        if end is None:
            end = log.end_offset(JOURNAL_TOPIC, partition)
            if self._truncated is not None or end < self._acknowledged_end:
                # Serving on would give TxIds out twice.
                lost = self._truncated or self._acknowledged_end
                raise JournalTruncatedError(
                    f"the broker lost the tail of journal partition {partition}: offset {lost - 1}"
                    f" was acknowledged, and the journal ended below; restore it from a replica"
                )
            first = log.start_offset(JOURNAL_TOPIC, partition)
            if first > start:
                raise JournalTruncatedError(
                    f"journal partition {partition} begins at {first}: somebody trimmed it"
                )
        if end > start:
            for offset, entry in read_entries(log, partition, start, end, timeout_s=LOAD_TIMEOUT_S):
                try:
                    shard.replay(offset, entry)
                except (TransactionError, KeyError) as error:
                    raise CorruptRecordError(
                        f"journal partition {partition} at offset {offset}: the record does not"
                        f" follow from those before it: {error!r}"
                    ) from error
        return end

    def _serve(self, shard: Shard) -> None:
        self.shard = shard
        self._term += 1
        self._acknowledged_end = shard.next_offset
        self._unwritten.clear()
        self.status = Serving.SERVING
        for group in shard.offsets.groups():
            for epoch in shard.past_epochs[-CLEARED_EPOCHS:]:
                key = OffsetsKey(group, self.partition, shard.incarnation, epoch)
                self._services.offsets.clear(key)
        self._execute(shard.loaded(_now()))
        self._catch_up()

    async def _publish(self) -> None:
        """Tell clients where this partition is served, now and again while it is.

        Again, because Kafka forgets the offsets of a group without members after 7 days.
        """
        log = self._services.log
        while True:
            checkpoint = Checkpoint(
                offset=0, epoch=self.shard.epoch, address=self._services.address
            )
            pause_s = PUBLISH_S
            try:
                await asyncio.to_thread(
                    log.commit_group_offset,
                    COORDINATORS_GROUP,
                    JOURNAL_TOPIC,
                    self.partition,
                    checkpoint.to_group_offset(),
                )
            except BrokerError as error:
                _LOG.warning("publish_failed partition=%d error=%s", self.partition, error)
                pause_s = RETRY_MIN_S
            await asyncio.sleep(pause_s)

    def _surprised(self, what: str) -> None:
        if self.status is not Serving.SERVING:
            return
        _LOG.warning("surprise partition=%d epoch=%d: %s", self.partition, self.shard.epoch, what)
        self.status = Serving.LOADING
        error = CoordinatorLoadingError(f"journal partition {self.partition} is loaded again")
        self._discard(error)
        self._surprise.set()

    def _discard(self, error: LogtxError) -> None:
        self._term += 1
        parked, self._parked = self._parked, deque()
        for waiting in parked:
            waiting.answer(error)
        self._services.markers.forget(self.partition)
        self._services.offsets.forget(self.partition)
        self._services.close_sessions(self.partition, error)

    async def _is_replaced(self) -> bool:
        """Whether the epoch now belongs to another process."""
        shard = Shard(self.partition, self._config)
        await asyncio.to_thread(self._load, shard, 0)
        owner = shard.owner
        self._successor = owner.address if owner else ""
        return owner is not None and owner.process_nonce != self._services.process_nonce

    async def _stand_down(self) -> None:
        """Leave the partition to its new owner until that can't be reached any more.

        A liveness guess only: being wrong costs another OWNER record, never a decision.
        """
        _LOG.warning("stood_down partition=%d owner=%s", self.partition, self._successor)
        self.status = Serving.STOOD_DOWN
        host, _, port = self._successor.rpartition(":")
        missed = 0
        while missed < PROBES_MISSED_MAX:
            await asyncio.sleep(PROBE_S * (1 + random.random()))
            try:
                connecting = asyncio.open_connection(host, int(port))
                _, writer = await asyncio.wait_for(connecting, PROBE_S)
                writer.close()
                missed = 0
            except OSError:
                missed += 1


def _now() -> Instant:
    return Instant(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
