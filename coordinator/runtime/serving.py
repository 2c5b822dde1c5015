"""Joins one tenure of a journal partition to the journal, the clock, the writers and the sessions.

`Tenure` has the rules. This module holds what it acts through, and what lives as long as it does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ...journal.control import TopicPartition
from ...journal.errors import (
    BrokerError,
    CoordinatorLoadingError,
    LogtxError,
    UnknownTopicError,
)
from ...journal.mode_registry import ModeKey, TopicModeRecord
from ...journal.places import PartitionId
from ...journal.reader import JOURNAL_TOPIC, find_fates
from ...journal.records.fate import NO_EPOCH, Fate
from ...journal.records.types import AbortReason
from ...journal.txid import TxId
from ..core.answers import answer_fate
from ..core.decision import (
    ClearOffsets,
    Effect,
    EndSidecars,
    Instant,
    PublishMode,
    WriteLateMarkers,
    WriteMarkers,
    WriteModeRecords,
    WriteOffsets,
)
from ..core.floors import LOOKS_APART_MS, WrittenBeside
from ..core.mode_records import ModeWrite
from ..core.modes import SWITCHING
from ..core.offsets_lanes import OffsetsKey
from ..core.shard import Shard
from ..core.tenure import Tenure
from ..core.transactions import TransactionMetadata
from ..protocol import commands
from .alarm import monotonic_ms
from .appender import Appender
from .counters import PlaceClock
from .housekeeping import Housekeeping
from .placing import Placing
from .pressure import Pressure
from .queue_ends import QueueEnds
from .services import Services

_LOG = logging.getLogger(__name__)

LOOK_UP_TIMEOUT_S: Final = 30.0
"""Bound of one scan of the journal for old outcomes; past it the clients ask again."""
SCAN_MAX: Final = 10_000
"""Most TxIds that one scan of the journal looks for; fewer make more scans."""
QUIESCE_TIMEOUT_S: Final = 2.0
"""How long a planned move waits for the appends in flight. Past it the journal does not answer as
it should, and the tenure ends by a surprise."""
STILL_S: Final = 0.4
"""Pause between two looks at the clock from which the process counts as having stood still: others
may have given it up meanwhile. Much longer than `TICK_S`; each such pause makes the owner ask
for the journal's end."""
DOUBT_S: Final = 2.0
"""How often an owner that appends nothing asks whether it is still the owner. A longer pause lets a
replaced idle owner notice later; a shorter one asks the brokers more."""
LASTING_S: Final = 5.0
"""A tenure that lasted longer was not part of a duel, so the pauses between bids start again at
their minimum."""

Answer = Callable[[commands.Reply], None]
"""Called once with the reply to a request."""


class Serving:
    """One tenure and all that belongs to it. The tenure's `Shell`; lives on the event loop."""

    def __init__(
        self,
        partition: int,
        services: Services,
        journal: Appender,
        shard: Shard,
        *,
        ask: Callable[[Coroutine[Any, Any, None]], None],
        doubt_journal: Callable[[Appender], None],
        surprised: Callable[[], None],
    ) -> None:
        """Serves nothing before `begin`.

        Args:
            partition: number of the journal partition.
            services: what the coordinator's partitions share.
            journal: appends the journal's records.
            shard: replayed up to its own OWNER record, inclusive.
            ask: runs a query of the log in the background; the partition's `stop` cancels it.
            doubt_journal: called with `journal` when an append got no answer, or an error.
            surprised: called when a surprise has ended the tenure.
        """
        self.tenure: Final = Tenure(shard, self)
        self.pressure: Final = Pressure()
        self.place_clock: Final = PlaceClock()
        self.over: Final = asyncio.Event()
        """Set when the tenure is over: given away, stopped, or surprised."""
        self.surprise: str | None = None
        """The surprise that ended the tenure; None if it ended otherwise, or goes on."""
        self.housekeeping: Final = Housekeeping(
            services.log,
            self.tenure,
            services.address,
            services.housekeeping,
            reading=services.reading,
            questions=services.questions,
            look_ups=services.look_ups,
            is_free=services.is_free,
        )
        self._placing = Placing(
            services.log,
            self.tenure,
            questions=services.questions,
            look_ups=services.look_ups,
            ask=ask,
            now=_now,
        )
        self._queue_ends = QueueEnds(
            services.log, self.tenure, questions=services.questions, ask=ask, now=_now
        )
        self._partition = partition
        self._services = services
        self._journal = journal
        self._ask = ask
        self._doubt_journal = doubt_journal
        self._surprised = surprised
        self._began_s = time.monotonic()
        self._seen_s = self._began_s
        """Monotonic time of the last sign that the process is running."""
        self._doubt_s = 0.0
        """Monotonic time of the next check whether the owner has appended anything."""
        self._looked_at = -1
        """The shard's next offset at the last check."""
        self._quiet = asyncio.Event()
        """Set when nothing is in flight any more, after `quiesce`."""
        self._going_on = False
        """Whether a tick is scheduled for the next turn of the loop."""
        self._looks_around = False
        """Whether `_look_around` is."""
        self._kept: list[Answer] = []
        """Callbacks of requests that arrived while the partition was being given away."""
        self._wanted: deque[tuple[Answer, commands.Command, TxId]] = deque()
        """Look-ups that wait for a scan. The windows of streams and the limit of calls bound it."""
        self._looking_up = False
        self._switches_told: set[tuple[str, int]] = set()
        """(topic, offset of the MODE record): switches of which readers are told."""

    # ---- what the partition asks ----------------------------------------------------------------

    def begin(self) -> None:
        """Redoes what earlier owners may have left undone, and starts serving."""
        self._services.handing.begin(self.tenure.shard)
        self.tenure.begin(_now(), self._services.topics)
        self._placing.soon()

    def _asserted(self, group: str) -> None:
        """Notes that a group's whole IOV is durable, and removes what earlier owners wrote."""
        # Not before: a reader would meet the removal, and nothing behind it.
        self.tenure.written(NO_EPOCH)
        self._clear_former(group)

    def _clear_former(self, group: str) -> None:
        """Removes what earlier owners wrote of a group."""
        shard = self.tenure.shard
        for epoch in () if self.tenure.over else shard.past_epochs:
            key = OffsetsKey(group, self._partition, shard.incarnation, epoch)
            self._services.offsets.clear_former(key)

    def submit(
        self, command: commands.Command, answer: Answer, doubt: LogtxError | None = None
    ) -> None:
        """Decides a command now. Calls `answer` with the reply when the client may be told."""
        if self.tenure.quiescing:
            # Answered when the next owner serves: a client sent away now would find no owner.
            self._kept.append(answer)
            return
        self._notice_time()
        self.tenure.submit(command, answer, _now(), self._services.topics, doubt)
        if isinstance(command, commands.End) and command.action is commands.Action.COMMIT:
            self._placing.deciding(command.txid.offset)
        self._look_around_soon()
        self._go_on()

    def detach(self, producer_id: str, nonce: int) -> None:
        """Tells the tenure that a producer's stream broke."""
        self.tenure.detach(producer_id, nonce, _now())

    def consumer_gone(self, group: str, consumer: int) -> None:
        """Tells the tenure that the stream of a queue's consumer broke."""
        self.tenure.consumer_gone(group, consumer, _now())

    def tick(self) -> None:
        """Does what has become due with time."""
        self._notice_time()
        self._tick_tenure()
        now_s = time.monotonic()
        if now_s >= self._doubt_s:
            # An owner that appends learns about a successor from its appends; an idle one does not.
            self._doubt_s = now_s + DOUBT_S
            if self._looked_at == self.tenure.shard.next_offset:
                self.doubt()
            self._looked_at = self.tenure.shard.next_offset

    def _tick_tenure(self) -> None:
        self._going_on = False
        self.tenure.tick(_now(), self._services.topics)
        # A place may have waited for a marker that is written now.
        self._placing.soon()
        self._queue_ends.soon()
        self._go_on()

    def _look_around_soon(self) -> None:
        """Begins what commands and answers have given to do, once for all of a turn of the loop."""
        if not self._looks_around:
            self._looks_around = True
            asyncio.get_running_loop().call_soon(self._look_around)

    def _look_around(self) -> None:
        self._looks_around = False
        self._services.handing.soon()
        if not self.tenure.over:
            self._placing.soon()
            self._queue_ends.soon()

    def _go_on(self) -> None:
        """Ticks again in the next turn of the loop if more is due. Clients are served before it."""
        if self.tenure.more_due and not self._going_on and not self.tenure.over:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._tick_tenure)

    def _notice_time(self) -> None:
        """Pauses the tenure if the process stood still: another may be the owner by now."""
        now_s = time.monotonic()
        if now_s - self._seen_s > STILL_S:
            _LOG.info("stood_still partition=%d", self._partition)
            self.tenure.pause()
        self._seen_s = now_s

    def doubt(self) -> None:
        """Asks the journal whether another coordinator has become the owner."""
        if not (self.tenure.over or self.tenure.quiescing):
            self.tenure.doubt()

    async def quiesce(self) -> bool:
        """Stops deciding, and waits until nothing is in flight, so that another owner can go on.

        Returns:
            False if the tenure ended meanwhile. A tenure that does not become quiet is ended.
        """
        tenure = self.tenure
        tenure.quiesce()
        if tenure.in_flight:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIESCE_TIMEOUT_S):
                    await self._quiet.wait()
        if tenure.in_flight and not tenure.over:
            self.fail(f"nothing was acknowledged for {QUIESCE_TIMEOUT_S} s")
        return not tenure.over

    def fail(self, why: str) -> None:
        """Ends the tenure by a surprise. The shard may be ahead of the journal from now on."""
        epoch = self.tenure.shard.epoch
        _LOG.warning("tenure_surprised partition=%d epoch=%d why=%s", self._partition, epoch, why)
        self._services.counters.surprises[self._partition] += 1
        self.surprise = why
        self.end(
            CoordinatorLoadingError(f"journal partition {self._partition} is being loaded again")
        )
        self._surprised()

    def end(self, error: LogtxError) -> None:
        """Stops serving. Waiting requests get the error, and all sessions must connect again."""
        self.tenure.end(error)
        self.pressure.end()
        self._placing.end()
        for answer in self._kept:
            answer(error)
        self._services.markers.lanes.forget(self._partition)
        self._services.offsets.forget(self._partition)
        self._services.modes.forget(self._partition)
        self._services.close_sessions(self._partition, error)
        self.over.set()
        self._quiet.set()

    @property
    def lasted(self) -> bool:
        """Whether the tenure lasted too long to be part of a duel."""
        return time.monotonic() - self._began_s > LASTING_S

    # ---- what the tenure asks: see `Shell` ------------------------------------------------------

    def append(self, predicted: int, value: bytes) -> None:
        """Appends a journal record."""
        acknowledge = partial(self._acknowledged, predicted)
        self.pressure.appended(len(value))
        self._services.counters.appended(self._partition, len(value))
        self._journal.append(JOURNAL_TOPIC, self._partition, acknowledge, value=value)

    def _acknowledged(self, predicted: int, offset: int | None, error: KafkaError | None) -> None:
        self.pressure.acknowledged()
        why = error.name() if error else ""
        self.tenure.acknowledged(predicted, offset, monotonic_ms(), why)
        self._look_around_soon()
        if offset is None:
            self._doubt_journal(self._journal)
        if self.tenure.quiescing and not self.tenure.in_flight:
            self._quiet.set()

    def ask_end(self) -> None:
        """Asks for the journal's end."""
        self._ask(self._ask_end())

    async def _ask_end(self) -> None:
        try:
            known_end = self.tenure.acknowledged_end
            end = await self._services.journal_end(self._partition, known_end)
        except (LogtxError, KafkaException) as error:
            # If the tenure were not told, this question and all later ones would wait for ever.
            self.tenure.end_told(None, monotonic_ms(), str(error))
        else:
            self.tenure.end_told(end, monotonic_ms())
        if not self.tenure.over:
            # Commands that a pause kept need not wait for the next tick.
            self._tick_tenure()

    def answer(self, ref: Answer, reply: commands.Reply) -> None:
        """Gives a client its reply."""
        ref(reply)

    def look_up(self, ref: Answer, command: commands.Command, txid: TxId) -> None:
        """Answers from the fate of a transaction that finished so long ago that only the journal
        knows it."""
        self._wanted.append((ref, command, txid))
        if not self._looking_up:
            self._looking_up = True
            self._ask(self._look_up())

    async def _look_up(self) -> None:
        # One scan at a time, for all look-ups that came meanwhile: a scan may read the whole
        # journal.
        while self._wanted:
            wanted = [self._wanted.popleft() for _ in range(min(len(self._wanted), SCAN_MAX))]
            fates = await self._find({txid for _, _, txid in wanted})
            for answer, command, txid in wanted:
                if isinstance(fates, LogtxError):
                    answer(fates)
                    continue
                outcome = commands.Outcome(txid, fates[txid].state, fates[txid].commit_sequence)
                answer(answer_fate(command, outcome))
        self._looking_up = False

    async def _find(self, txids: set[TxId]) -> dict[TxId, Fate] | LogtxError:
        # A broker that leads the journal no more must not make an old transaction unknown.
        reached = {self._partition: self.tenure.acknowledged_end}
        find = partial(
            find_fates, self._services.log, txids, timeout_s=LOOK_UP_TIMEOUT_S, reached=reached
        )
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._services.reading, find)
        except LogtxError as error:
            if not isinstance(error, BrokerError | UnknownTopicError):
                return error
            return CoordinatorLoadingError(f"the journal does not answer: {error}")
        except KafkaException as error:
            return CoordinatorLoadingError(f"the journal does not answer: {error}")

    def execute(self, effect: Effect) -> None:
        """Writes markers, mode records, offsets or modes."""
        shard, services, tenure = self.tenure.shard, self._services, self.tenure
        match effect:
            case WriteOffsets(group, begin, offsets):
                key = OffsetsKey(group, self._partition, shard.incarnation, shard.epoch)
                again = begin == NO_EPOCH
                done = partial(self._asserted, group) if again else partial(tenure.written, begin)
                services.offsets.write(key, offsets, done)
            case ClearOffsets(group):
                key = OffsetsKey(group, self._partition, shard.incarnation, shard.epoch)
                services.offsets.clear(key, partial(self._clear_former, group))
            case WriteMarkers(transaction):
                services.counters.decided(self._partition, shard.epoch, transaction)
                self._tell_producer(transaction)
                if transaction.placed:
                    self.place_clock.decided(tenure.placer, transaction.begin, time.monotonic())
                may_mark = tenure.may_mark
                services.markers.lanes.write(
                    transaction, shard.epoch, lambda: shard.hw, tenure.written, may_mark
                )
            case WriteLateMarkers(transaction, partitions):
                services.markers.lanes.write_late(
                    transaction,
                    shard.epoch,
                    lambda: shard.hw,
                    tenure.written,
                    tenure.may_mark,
                    partitions,
                )
            case EndSidecars(transaction, places):
                services.markers.lanes.end_sidecars(
                    transaction, shard.epoch, lambda: shard.hw, tenure.written, places
                )
            case WriteModeRecords(with_records=False):
                self._publish_mode(effect.topic)
                written = services.markers.lanes.stop_mode(self._partition, effect.topic)
                self._placing.end_switch(effect, written)
            case WriteModeRecords(topic, topic_id, offset, places):
                self._publish_mode(topic)
                txid = TxId(self._partition, shard.incarnation, offset)
                may_mark = partial(self._may_write_mode, topic, offset)
                services.markers.lanes.write_mode(
                    ModeWrite(txid, topic, topic_id, places, may_mark, tenure.mode_recorded)
                )
            case PublishMode(topic):
                self._publish_mode(topic)

    def _may_write_mode(
        self, topic: str, offset: int, partition: PartitionId, sequence: int
    ) -> bool:
        # Published first: a reader that begins behind the mode record and finds nothing published
        # would wait for markers, or pass over what is placed, until it looks the first one up.
        is_told = (topic, offset) in self._switches_told
        return is_told and self.tenure.may_mark(partition, sequence)

    def _publish_mode(self, topic: str) -> None:
        shard, modes = self.tenure.shard, self._services.modes
        mode = shard.modes.get(topic)
        assert mode is not None, "a mode that is published was replayed"
        key = ModeKey(topic, self._partition, shard.incarnation, shard.epoch)
        record = mode.published(topic, key.home)
        modes.write(key, record, partial(self._mode_published, key, record))

    def _mode_published(self, key: ModeKey, record: TopicModeRecord) -> None:
        now = self.tenure.shard.modes.get(key.topic)
        if record.phase in SWITCHING:
            self._switches_told.add((key.topic, record.mode_offset))
            self._services.markers.lanes.resume(self._partition)
        elif now is not None and (now.phase, now.offset) == (record.phase, record.mode_offset):
            self.tenure.mode_published(key.topic)
        # Not before: a reader would meet the removal, and nothing behind it.
        for epoch in () if self.tenure.over else self.tenure.shard.past_epochs:
            self._services.modes.clear_former(replace(key, epoch=epoch))

    def first_marker(self, key: TopicPartition) -> int | None:
        """Returns the commit sequence of the first marker that a data partition lacks."""
        return self._services.markers.lanes.first(self._partition, key)

    def written_to(self, partition: PartitionId) -> int | None:
        """Returns the offset behind what this tenure has written to a data partition."""
        return self._services.markers.lanes.reached(self._partition, partition)

    def written_beside(self, partition: PartitionId) -> WrittenBeside | None:
        """Returns what this tenure has written there under other topic ids."""
        return self._services.markers.lanes.reached_beside(self._partition, partition)

    def had_others(self, partition: PartitionId) -> bool:
        """Returns whether another topic had the name before, as far as is known."""
        return self._services.look_ups.known.had_others(partition.topic, partition.topic_id)

    def looks_apart_ms(self, topic: str) -> int:
        """Returns how far apart two looks at a topic's ends must be."""
        return 0 if self._services.look_ups.known.is_certain(topic) else LOOKS_APART_MS

    def places_given(self) -> None:
        """Goes on with markers that waited for places, and with the next round."""
        self._count_places()
        self._services.markers.lanes.resume(self._partition)
        self._placing.soon()

    def answers_given(self) -> None:
        """Goes on with markers that waited for other homes."""
        self._services.markers.lanes.resume(self._partition)

    def _count_places(self) -> None:
        """Counts the places of a PLACED record that is durable."""
        count, waited_s = self.place_clock.given(self.tenure.placer, time.monotonic())
        self._services.counters.placed(self._partition, count, waited_s)

    def _tell_producer(self, transaction: TransactionMetadata) -> None:
        """Tells a producer of an abort that it did not ask for: it need not produce any more."""
        reason = transaction.reason
        if reason is None or reason is AbortReason.REQUESTED:
            return
        producer = self.tenure.shard.producers.get(transaction.producer_id)
        if producer is None or producer.generation != transaction.generation:
            return  # Fenced: the end of its session says so.
        decided = commands.Decided(transaction.txid, transaction.state, reason)
        name, nonce = transaction.producer_id, producer.nonce
        self._services.decided(self._partition, name, nonce, decided)

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """Ends a producer's session for good."""
        self._services.close_session(self._partition, producer_id, nonce, error)

    def surprised(self, why: str) -> None:
        """Ends the serving: the tenure is over."""
        self.fail(why)


def _now() -> Instant:
    return Instant(monotonic_ms(), time.time_ns() // 1_000_000)
