"""Reads one lease of a queue: the messages that end in its span, whole, wherever they begin.

A lease ends below an end that its partition had when it was given. With markers that settles what
it holds. Where a home places transactions, one that was decided before may be placed below that end
later; so the reader asks for the end of the home's journal, after it got the lease, and waits until
what is decided below is placed (decision 31).

What is fetched may be another topic's, which got the name before, or while the reader waited for
records. So it asks for the topic's id behind each fetch: if that is the one of the lease then, the
records are of the topic, for ids do not come back (trap 120). It does not ask before: that would
cost a question for each lease, and prove nothing. While nothing comes, it asks once a second: a
topic that is no more has no records. If reading fails, it asks, too: the reason may be that.

It must know that there is a home. Its mode record may be another consumer's, and what is published
of it is told by brokers, of which one may not have heard of it yet. A transaction that is placed in
the lease may have all its records below. Nothing in the lease would tell that it is missing, and
the consumer would acknowledge its place as a gap (trap 110). So the reader asks coordinators, after
it got the lease, whether the topic was ever switched: their answer is of the journal's end. What is
placed in the lease was decided before the lease's end was told, and the switch before that. Then it
waits until it is told of that switch.

The same holds of each span below an end that was told before coordinators were asked, for what is
decided later is placed there, or above. So of a backlog the reader asks for the partition's end
first, and passes over the question in the leases below that end (trap 197). What may be placed at
that end itself is not below it.

What a home places at the very end of a partition is delivered before any record stands there. A
lease may have that, too. It is never read to its end for good, as long as the partition ends there:
the next transaction may be placed at the same offset. So the reader says up to where it is
(`bound`), and the rest of the lease goes back.

A lease may begin within a pointer, or another transaction, of which messages were given out before.
It is read from that message on (o3), and not as one that is met for the first time. If retention
has taken its records, that is an error: it is no copy of an earlier pointer, which would be passed
over and acknowledged as a gap (trap 162). A home that the topic has since changes nothing: it
places nothing within the pointer. Where in the sidecar the messages lie that it came by,
the reader remembers from lease to lease, and it keeps reading sidecars in between: what was fetched
for one lease is mostly there for the next. So it is with partitions, where a lease begins at which
the last one ended (`Staying`). Then its reader goes on, too: what was read of transactions that end
in the next lease is kept, and not read again on the side. All of it was the topic's when it was
fetched, and ids do not come back: so it is the topic's still if the id is the lease's.

So too within what a home placed, which may lie in the sidecar as what a pointer names does. There
the lease says the commit sequence, by which its home is asked, and the reader goes on behind what
was given out (trap 231). What is placed at the same offset before that is not read again: it was
worked off, and may be gone (trap 232).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Final, cast

from confluent_kafka import KafkaException, Message

from ..coordinator.client.admin import AdminQueries
from ..coordinator.client.tls import Tls
from ..coordinator.protocol.queues import Lease
from ..journal.control import TopicPartition
from ..journal.errors import (
    BrokerError,
    LogtxError,
    RequestTimedOutError,
    TopicRecreatedError,
    TornTransactionError,
)
from ..journal.logs.interface import Log
from ..journal.position import Passed, Position
from ..journal.settings import refused
from ..journal.sidecar import in_sidecar
from ..journal.spans import AT_OFFSET, MessageId
from .core.counters import ShareCounters
from .core.pending import Record
from .core.runs import Run
from .core.sides import Side, Sides
from .range_reader.due import RangePlaces
from .range_reader.errors import DataLossError
from .range_reader.places import PLACE_S, PlacesAhead, require_complete
from .range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig, Share
from .range_reader.spot import Spot
from .range_reader.staying import ConsumingFetcher, Staying
from .share_config import OWN
from .sidecar_read import SidecarReader
from .topic_ids import TopicIds

READ_AHEAD: Final[Mapping[str, Any]] = {"queued.min.messages": 5_000}
"""librdkafka's settings of the consumer that reads leases; the user's may replace them. This is a
lease's worth: the next one is fetched while the application works on the last. If that is in
another partition, or further on as others work beside, what is read ahead is thrown away: with
librdkafka's 100,000 messages that cost twice the CPU. With 1, a lone consumer of a backlog was a
sixth slower."""
BACKLOG_OFFSETS: Final = 1_000
"""Least offsets of a lease that is taken for one of a backlog. Of a smaller one the end would be
asked for in vain: each such question is to save several others."""
IS_IT_S: Final = 1.0
"""Pause between questions for a topic's id while a lease is read. A longer one waits longer for
records of a topic that is no more, a shorter one asks the brokers more."""
PUBLISHED_S: Final = 1.0
"""How often it is asked which topics have homes, for leases of the very ends of partitions. A
longer pause delays the first messages that are placed there, a shorter one asks the brokers
more."""
_offset_of = methodcaller("offset")


def _settings(kafka: Mapping[str, Any]) -> dict[str, Any]:
    return {**CONSUMER, **READ_AHEAD, **kafka}


def check_settings(log: Log, kafka: Mapping[str, Any]) -> None:
    """Checks librdkafka's settings of the consumer that reads leases.

    Raises:
        ConfigError: librdkafka refuses them.
    """
    try:
        log.consumer(_settings(kafka)).close()
    except KafkaException as error:
        raise refused(error.args[0].str(), OWN) from error


class LeaseReader:
    """Reads the leases of one consumer, one after the other. One thread at a time may use it."""

    def __init__(
        self,
        log: Log,
        kafka: Mapping[str, Any],
        config: ReadConfig,
        *,
        timeout_s: float,
        tls: Tls | None = None,
        on_step: Callable[[], object] = lambda: None,
        counters: ShareCounters | None = None,
    ) -> None:
        """Opens the consumer that reads records.

        Args:
            log: the log to read; the caller closes it.
            kafka: librdkafka's settings.
            config: how to read.
            timeout_s: bound of each question to coordinators, in seconds.
            tls: what connections to them are protected with; None: nothing.
            on_step: called again and again while a lease is read. It may take long until the next
                message comes: the lease must be renewed meanwhile (trap 163).
            counters: counters to add to; None makes private ones.
        """
        self._counters = counters or ShareCounters()
        self._log, self._config, self._on_step = log, config, on_step
        settings = {**CONSUMER, **kafka}
        self._coordinators = AdminQueries(log, timeout_s=timeout_s, tls=tls)
        self._ahead = PlacesAhead(log, settings)
        self._topic_ids = TopicIds(log)
        self._asking: Executor = ThreadPoolExecutor(1, thread_name_prefix="logtx-topic-id")
        self._told: Future[Mapping[str, str]] | None = None
        """The answer to which topic has the name, asked for behind the latest fetch."""
        self._consumer = Staying(partial(log.consumer, _settings(kafka)))
        self._sidecars = SidecarReader(log, settings)
        self._sides = Sides()
        self._reader: RangeReader | None = None
        """Has read the last lease to its end, or reads one."""
        self._read_id = ""
        """Id of the topic that it reads."""
        self._is_backlog = False
        """Whether there is much to read of the lease."""
        self._asks_s = 0.0
        """Monotonic time at which it asks whether that is the topic still."""
        self._has_given = self._is_pointed = False
        """Whether a message of what is read was given out, and whether what was read last lies in a
        sidecar."""
        self._published_s = 0.0
        """Monotonic time at which it is asked again what is published of topics."""
        self._may_be_placed = False
        self._never_switched: dict[TopicPartition, tuple[str, int]] = {}
        """Partition → (topic id, an end that was told before coordinators said that the topic was
        never switched)."""
        self.bound = MessageId(0)
        """Where the lease that was read last has its last message behind it, for good. Behind this
        bound, a home may still place messages of the lease."""

    def may_be_placed(self, topics: Iterable[str]) -> bool:
        """Returns whether some of the topics had a home, as far as was published a moment ago."""
        self._sidecars.tidy()  # It is asked with each request for messages.
        now_s = time.monotonic()
        if now_s >= self._published_s:
            self._published_s = now_s + PUBLISHED_S
            found = (self._ahead.published(topic) for topic in topics)
            self._may_be_placed = any(each is not None for each in found)
        return self._may_be_placed

    def messages(self, lease: Lease) -> Generator[tuple[Message, MessageId], None, None]:
        """Yields the messages of a lease with their names, one by one. See `runs`."""
        for run in self.runs(lease):
            for number, message in enumerate(run.records):
                self.given(lease, run, number)
                yield cast(Message, message), run.name(number)

    def runs(self, lease: Lease) -> Generator[Run, None, None]:
        """Yields the messages of a lease, in the order of delivery.

        Raises:
            TopicRecreatedError: the topic was deleted and created anew: its messages are others.
            TornTransactionError, IntegrityError, MalformedHeaderError, NotAuthorizedError,
                BrokerError: as `RangeReader.shares`. The last one also if this client may not read
                which topics have homes.
            RequestTimedOutError: what is committed is not placed in time, or a switch is not
                published.
            CoordinatorNotAvailableError: no coordinator tells whether the topic was switched.
        """
        topic, number, topic_id = lease.partition
        lo, hi = lease.span
        # A lease that ends within an offset has what is placed there, or a part of it, and the
        # record there only if it ends behind AT_OFFSET. No record may ever come there.
        at_end = MessageId(hi.offset) < hi <= MessageId(hi.offset, AT_OFFSET)
        is_bound = at_end or hi == MessageId(hi.offset)
        end = hi.offset if is_bound else hi.offset + 1
        # Before the home is asked: what is decided later than that is placed at this end, or above.
        settled = not at_end or self._log.end_offset(topic, number) > hi.offset
        places = None
        if self._was_switched(lease):
            places = self._placed(lease, Spot(end), Spot(end + at_end))
        start, left = self._begin(lease, places)
        part = Range(topic, number, start, end, places=left)
        try:
            has_followed = yield from self._read(lease, part)
        except LogtxError as error:
            # It is asked anew, and a right, or a record, may be there by then.
            self._sidecars.close()
            if isinstance(error, BrokerError):
                self._consumer.renew()
            self._consumer.leave()
            self._told = None
            if not isinstance(error, TopicRecreatedError):
                self._check_is_it(topic, topic_id)
            is_begun = start.o3 > 0 or (start.passed is not None and start.passed.taken > 0)
            is_rest = is_begun and not self._has_given
            skips = isinstance(error, TornTransactionError) and self._config.torn_skip
            if not (is_rest and skips):
                raise
            # Who has delivered a part of it does not skip the rest. Here messages are worked off
            # one by one, by many, and `torn.reset=skip` is about those that are left, too.
            anew = None if left is None else replace(left, rest_at=None)
            whole = replace(part, start=Spot(lo.offset).position, places=anew)
            has_followed = yield from self._read(lease, whole)
        told = None if has_followed else places
        is_final = settled and not (at_end and has_followed)
        self.bound = hi if is_final else min(hi, _known_at(hi.offset, told))

    def _placed(self, lease: Lease, asked: Spot, end: Spot) -> RangePlaces | None:
        """Returns what a home places in a lease, from its first offset on and before `end`.

        Args:
            lease: the lease.
            asked: up to where the home is asked.
            end: behind what is placed in the lease.
        """
        topic, number, topic_id = lease.partition
        lo, key = lease.span.lo, (topic, number)

        def reach(start: Spot) -> RangePlaces | None:
            found = self._ahead.reach({key: start}, {key: asked}, {topic: topic_id}, wait_s=PLACE_S)
            require_complete(found)
            return found[key].until(end) if key in found else None

        places = reach(Spot(lo.offset))
        is_within = lo.nth > 0 and lo.sequence != AT_OFFSET
        if places is None or not is_within or places.has(lo):
            return places
        # Who begins where the log starts counts what is placed there as delivered. But of this one
        # messages were given out, and the rest may lie in the sidecar.
        try:
            return reach(Spot(lo.offset, passed=Passed(places.home, lo.sequence - 1)))
        except DataLossError:
            # The journal tells of what lies in a sidecar until the log starts behind its place
            # (R14). So it lay in the topic alone, and that is gone.
            self._ahead.close()
            return places

    def _begin(
        self, lease: Lease, places: RangePlaces | None
    ) -> tuple[Position, RangePlaces | None]:
        """Returns where to begin, within the transaction that the lease begins in; and what of the
        places is to be read."""
        lo = lease.span.lo
        offset, sequence, nth = lo
        position = Spot(offset).position
        left = None if places is None else places.within(lease.span)
        side = self._sides.before(lease.partition, lo[:2], nth)
        taken, at = (nth, None) if side is None or not side.nth else side
        if not nth:
            return position, left
        if sequence == AT_OFFSET:
            return replace(position, o3=taken, side=at), left
        if left is None or not left.has(lo):
            return position, left  # All of its messages lie before the lease.
        passed = Passed(left.home, sequence - 1, taken)
        return replace(position, passed=passed), replace(left, rest_at=at)

    def _read(self, lease: Lease, part: Range) -> Generator[Run, None, bool]:
        """Yields the messages of a lease. Returns whether a mode record was met among them."""
        topic, _, topic_id = lease.partition
        self._has_given = False
        self._asks_s = time.monotonic() + IS_IT_S
        self._consumer.begin(topic, topic_id)
        reader, checked = self._reader_of(topic_id, part), -1
        self._told = None
        self._is_backlog = lease.span.offset_count >= BACKLOG_OFFSETS
        try:
            for share in reader.shares():
                if reader.fetches > checked:
                    checked = reader.fetches
                    self._check_is_it(topic, topic_id)
                if share.first is not None and share.first >= lease.span.hi:
                    break  # A pointer may name a million messages more.
                run = self._of(lease, share)
                if run:
                    self._has_given = True
                    yield run
            if reader.fetches > checked:
                self._check_is_it(topic, topic_id)  # Of what holds no message a gap is made.
        except BaseException:
            self._close_reader()
            raise
        return reader.has_followed

    def _reader_of(self, topic_id: str, part: Range) -> RangeReader:
        """Returns what reads a range: the reader of the last one, if this one borders on that."""
        if self._reader is not None and self._read_id == topic_id and self._reader.go_on(part):
            return self._reader
        self._close_reader()
        self._read_id = topic_id
        self._reader = RangeReader(
            *(self._config, part, self._log, ConsumingFetcher(self._consumer)),
            sidecars=self._sidecars,
            on_step=partial(self._step, part.topic, topic_id),
            on_gone=self._gone,
            on_fetch=partial(self._fetched, part.topic),
        )
        return self._reader

    def _fetched(self, topic: str) -> None:
        """Asks which topic has the name. In a backlog it is answered while the records are looked
        at; with few records there would be nothing to do meanwhile."""
        self._told = None
        if self._is_backlog:
            # Python takes no more questions when its main thread has ended. Then it is asked later.
            with suppress(RuntimeError):
                self._told = self._asking.submit(self._topic_ids.of, (topic,))

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _gone(self) -> None:
        self._counters.gone_transactions += 1

    def _of(self, lease: Lease, share: Share) -> Run:
        """Returns those messages of a share that are leased. Notes where in a sidecar they lie."""
        first = share.first
        offsets = cast("list[int]", list(map(_offset_of, share.records)))
        topic, number, _ = lease.partition
        records = cast("Sequence[Record]", share.records)
        run = Run(topic, number, records, offsets, first)
        self._is_pointed = share.side is not None
        if first is not None and share.side is not None:
            self._sides.note(lease.partition, first[:2], Side(first.nth, share.side))
            self.given(lease, run, len(run) - 1)
        return run.within(lease.span)

    def given(self, lease: Lease, run: Run, number: int) -> None:
        """Notes that a run was given out up to a message: who gives back the rest goes on there."""
        if self._is_pointed:
            name, offset = run.name(number), run.offsets[number]
            behind = Side(name.nth + 1, in_sidecar(offset) + 1)
            self._sides.note(lease.partition, name[:2], behind)

    def _step(self, topic: str, topic_id: str) -> None:
        """Is called again and again while leases of a topic are read."""
        self._on_step()
        if time.monotonic() >= self._asks_s:
            self._check_is_it(topic, topic_id)
            self._asks_s = time.monotonic() + IS_IT_S

    def _check_is_it(self, topic: str, topic_id: str) -> None:
        """Checks that a topic is the one that messages were leased of.

        Raises:
            TopicRecreatedError: it is another one.
        """
        asked, self._told = self._told, None
        told = None if asked is None or asked.exception() is not None else asked.result()
        if self._topic_ids.is_another(topic, topic_id, told):
            raise TopicRecreatedError(
                f"topic {topic} was deleted and created anew while its messages were given out:"
                " the former ones are gone; go on with the next poll"
            )

    def _was_switched(self, lease: Lease) -> bool:
        """Returns whether what a home places may be in a lease."""
        topic, number, topic_id = lease.partition
        known_id, end = self._never_switched.get((topic, number), ("", 0))
        if known_id == topic_id and lease.span.hi <= MessageId(end):
            return False
        is_backlog = lease.span.offset_count >= BACKLOG_OFFSETS
        # The end comes first: what is decided behind the answer may be placed below a later one.
        end = self._log.end_offset(topic, number) if is_backlog else lease.span.hi.offset
        if self._hears_of_switch(topic, topic_id):
            return True
        self._never_switched[topic, number] = topic_id, end
        return False

    def _hears_of_switch(self, topic: str, topic_id: str) -> bool:
        """Returns whether a topic was ever switched. If so, its latest switch is known from now on.

        An older one would not do: the topic may have been switched back, and again since.
        """
        mode = self._coordinators.describe_topic(topic).info
        if mode.mode_offset < 0 or mode.topic_id != topic_id:
            return False
        if not self._ahead.await_published(topic, topic_id, mode.mode_offset, wait_s=PLACE_S):
            raise RequestTimedOutError(
                f"{topic} was switched, and that is not published within {PLACE_S:g} s: is a"
                " coordinator running?"
            )
        return True

    def close(self) -> None:
        """Closes everything that was opened."""
        self._close_reader()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._coordinators.close()
        self._sidecars.close()
        self._consumer.close()
        self._ahead.close()


def _known_at(end: int, places: RangePlaces | None) -> MessageId:
    """Returns the bound behind what is known to be placed at the end of a partition.

    What is decided later has a higher sequence, and may be placed there, too.
    """
    dues = () if places is None else places.dues
    known = [each.due.sequence for each in dues if each.place == end]
    return MessageId(end, max(known) + 1) if known else MessageId(end)
