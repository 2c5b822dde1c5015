"""Makes a transaction that has ended ready to be delivered: by what is buffered of it, by a side
read, or by what is read in the sidecar.

`buffer` says why side reads are right, `pointers` why sidecars are. No I/O, clock or randomness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import ConsumerError, IntegrityError, TornTransactionError
from ...journal.position import Journal, Position
from .counters import ConsumerCounters
from .delivery_queue import DeliveryQueue
from .entries import EndedTransaction, EntryState, SideRead
from .pending import PendingTransaction, PendingTransactionMap, Record
from .pointers import PointedTransaction, StreamRequest
from .ranges import Match, Verdict
from .shared import Shared

_ALL: Final = "the transaction"
_ANEW: Final = "was deleted and created anew"


class SettlingQueue(DeliveryQueue):
    """A `DeliveryQueue` whose transactions may lack records when they come."""

    def __init__(
        self,
        partition: TopicPartition,
        start: Position,
        pending_map: PendingTransactionMap,
        met: dict[Journal, int],
        *,
        counters: ConsumerCounters | None,
        torn_skip_below: int,
        shared: Shared | None,
    ) -> None:
        """Begins empty, with the arguments of `PartitionBuffer`, and `met` of `DeliveryQueue`."""
        super().__init__(partition, pending_map, met)
        self.counters = counters if counters is not None else ConsumerCounters()
        self.torn_skip_below = torn_skip_below
        self._shared = shared if shared is not None else Shared()
        self._controls = self._shared.controls
        self._start = start

    # ---- what is buffered -----------------------------------------------------------------------

    def _fill(self, entry: EndedTransaction, pending: PendingTransaction) -> None:
        """Makes an entry READY, WAITING or FAILED by comparing `pending` with its marker."""
        ranges = entry.marker.branches
        if (
            len(ranges) == 1
            and pending.uniform
            and pending.count == entry.stated
            and pending.first_offset == ranges[0].first_offset
            and pending.last_offset == ranges[0].last_offset
            and self._controls.branch(pending.control) == ranges[0].branch
        ):
            # Offsets only rise, so with first, last and count as stated these are the records.
            self._make_ready(entry, pending, None)
            return
        stream = self._pending_map.stream
        verdict = self._controls.judge(stream(pending), ranges)
        if verdict.match is Match.MORE:
            verdict = self._controls.judge_without_duplicates(stream(pending), ranges, verdict)
        if verdict.match is Match.EXACT:
            self.counters.late_records += verdict.late
            self._make_ready(entry, pending, verdict)
        elif verdict.match is Match.MORE:
            self._fail(entry, IntegrityError(self._text(entry, "holds more than its marker says")))
        else:
            entry.state = EntryState.WAITING

    def _make_ready(
        self, entry: EndedTransaction, pending: PendingTransaction, selects: Verdict | None
    ) -> None:
        entry.state = EntryState.READY
        entry.pending, entry.selects = pending, selects
        if isinstance(entry, PointedTransaction):
            self._begin_sidecar(entry)
        else:
            entry.total = entry.available = entry.stated
            entry.taken = min(self._delivered_before(entry), entry.total)
        self._filled(entry)

    def _delivered_before(self, entry: EndedTransaction) -> int:
        # Returns how many of its records an earlier life of the reader delivered.
        return self._start.o3 if entry.marker_offset == self._start.o2 else 0

    def _filled(self, entry: EndedTransaction) -> None:
        self._open_stream(entry)

    def _open_stream(self, entry: EndedTransaction) -> None:
        """Opens a READY entry's stream from `taken` on. Its records are not spilled any more."""
        pending, verdict = entry.pending, entry.selects
        assert pending is not None
        if verdict is None:
            in_memory = pending.run is None
            entry.stream = pending.records if in_memory else self._pending_map.stream(pending)
        else:
            selected = self._controls.select(
                self._pending_map.stream(pending),
                entry.marker.branches,
                remove_duplicates=verdict.remove_duplicates,
            )
            entry.stream = selected if pending.run is not None else list(selected)
        if entry.taken and not isinstance(entry.stream, Sequence):
            entry.stream = islice(entry.stream, entry.taken, None)

    # ---- side reads -----------------------------------------------------------------------------

    def side_reads(self) -> list[SideRead]:
        """Returns the side reads that entries wait for, by marker offset."""
        return [SideRead.of(e) for e in self._waiting()]

    def _waiting(self) -> Iterator[EndedTransaction]:
        for entry in self._queue:
            if isinstance(entry, EndedTransaction) and entry.state is EntryState.WAITING:
                yield entry

    def answer_side_read(
        self, request: SideRead, found: PendingTransaction | None, *, duplicate: bool, torn: bool
    ) -> bool:
        """Answers a side read. Changes nothing but that transaction's delivery.

        Args:
            request: a request from `side_reads`; one that no entry waits for any more is ignored.
            found: the TxId's records in the range, charged to this buffer's pending map.
            duplicate: whether an earlier marker of the TxId is in the range.
            torn: whether the log's start lies above the range's first offset.

        Returns:
            False if records are missing that retention did not delete, and the marker names their
            topic: `answer_topic` must follow. The entry waits until then.
        """
        entry = self._asker(request)
        if entry is not None and duplicate:
            self.counters.duplicate_markers += 1
            entry.state = EntryState.READY
        elif entry is not None and not entry.marker.branches:
            assert isinstance(entry, PointedTransaction), "others have branches, or no side read"
            entry.unsure = torn
            self._begin_sidecar(entry)
        elif entry is not None:
            if found is not None:
                self._fill(entry, found)
                if entry.pending is found:
                    return True  # They are its records, though it may wait for its sidecar.
            if entry.state is EntryState.WAITING and (torn or not entry.marker.topic_id):
                self._settle_missing(entry, torn)
        if entry is not None and entry.state is not EntryState.WAITING:
            entry.first_offset = entry.marker_offset  # Nothing of it is to be read again.
        if found is not None:
            self._pending_map.discard(found)
        return entry is None or entry.state is not EntryState.WAITING

    def _asker(self, request: SideRead) -> EndedTransaction | None:
        asked = request.txid, request.marker_offset
        return next((e for e in self._waiting() if (e.txid, e.marker_offset) == asked), None)

    def answer_topic(self, request: SideRead, topic_id: str) -> None:
        """Ends a transaction whose records are missing, by the id of the topic that is read here.

        If the marker names another topic, that one had the records: it was deleted, and its name
        given to this one, before the marker was written (trap 12).
        """
        entry = self._asker(request)
        if entry is None:
            return
        if topic_id and topic_id != entry.marker.topic_id:
            self.counters.foreign_markers += 1
            entry.state = EntryState.READY
        else:
            self._settle_missing(entry, torn=False)
        entry.first_offset = entry.marker_offset

    def _settle_missing(self, entry: EndedTransaction, torn: bool) -> None:
        if not torn:
            # The log is whole and yet lacks committed records: that is never skipped.
            text = (
                "the log holds less than its marker says: it lost records, or the topic was deleted"
                " and created anew meanwhile"
            )
            self._fail_lost(entry, text, "the transaction")
        elif SideRead.of(entry).first_offset < self.torn_skip_below:
            self.counters.torn_transactions += 1
            entry.state = EntryState.READY
        else:
            text = "retention deleted a part of it; torn.reset=skip goes on without it"
            self._fail(entry, TornTransactionError(self._text(entry, text)))

    def _fail_lost(self, entry: EndedTransaction, what: str, without: str) -> None:
        text = self._text(entry, f"{what}; {self._go_on(entry, without)}")
        self._fail(entry, IntegrityError(text))

    def _go_on(self, entry: EndedTransaction, without: str) -> str:
        return self._shared.go_on(self.partition, entry, without)

    # ---- sidecars -------------------------------------------------------------------------------

    def _commit_pointer(self, entry: PointedTransaction) -> None:
        """Settles a transaction without records in the main partition, at its pointer."""
        is_first = entry.is_only or self._start.o1 <= entry.read_from
        if is_first or self._delivered_before(entry):
            self._begin_sidecar(entry)
        else:
            entry.state = EntryState.WAITING
            self.counters.side_reads += 1

    def _begin_sidecar(self, entry: PointedTransaction) -> None:
        self.counters.pointers += 1
        at_start = entry.marker_offset == self._start.o2
        entry.begin(self._delivered_before(entry), self._start.side if at_start else None)

    def _at_pointer(self) -> PointedTransaction | None:
        """Returns the transaction of which something is to be read in the sidecar now, if any."""
        self._pass_finished()
        head = self._queue[0] if self._queue else None
        return head if isinstance(head, PointedTransaction) and head.is_wanted else None

    def stream_wanted(self) -> StreamRequest | None:
        """Returns what is to be read in the sidecar for the transaction that comes next.

        None if nothing is to be read, also while it is not known whether it is delivered here.
        """
        entry = self._at_pointer()
        return None if entry is None else entry.request()

    def _streaming(self, request: StreamRequest) -> PointedTransaction | None:
        # What was asked before it was delivered, or passed over, counts no more.
        entry = self._at_pointer()
        asked = request.txid, request.pointer_offset
        return entry if entry is not None and asked == (entry.txid, entry.marker_offset) else None

    def open_stream(self, request: StreamRequest, start: int, end: int, topic_id: str = "") -> None:
        """Answers a request: says what the sidecar holds. `push_stream` may follow.

        Args:
            request: of `stream_wanted`; one that nothing waits for any more is ignored.
            start: the sidecar's first offset.
            end: the sidecar's end, as a broker tells it who can't be behind: the records that a
                pointer names were acknowledged before it was written.
            topic_id: id of the sidecar's topic; "" if it is not known.
        """
        entry = self._streaming(request)
        if entry is None:
            return
        topic, partition = entry.sidecar
        named = entry.marker.sidecar_id
        is_another = bool(named and topic_id) and topic_id != named
        if is_another and (start > entry.next_side or end <= entry.last_side):
            self._fail_lost(entry, f"{topic} {_ANEW}", "the rest" if entry.taken else _ALL)
        elif start > entry.next_side:
            self._settle_trimmed(entry, start)
        elif end <= entry.last_side:
            text = (
                f"{topic}[{partition}] ends at {end}, and its records go up to {entry.last_side}:"
                " the sidecar lost records"
            )
            self._fail_lost(entry, text, _ALL)
        else:
            entry.opened(counts_first=is_another)

    def refuse_stream(self, request: StreamRequest, why: ConsumerError) -> None:
        """Answers a request: the sidecar can't be read.

        Args:
            request: of `stream_wanted`; one that nothing waits for any more is ignored.
            why: says what to do, such as which right to give.
        """
        entry = self._streaming(request)
        if entry is not None:
            self._fail(entry, type(why)(self._text(entry, str(why))))

    def reopen_stream(self) -> None:
        """Lets the sidecar of what comes next be looked at again: reading it was refused."""
        head = self._at_pointer()
        if head is not None:
            head.is_open = False

    def _settle_trimmed(self, entry: PointedTransaction, start: int) -> None:
        topic, partition = entry.sidecar
        text = (
            f"{topic}[{partition}] begins at {start}, and its records at {entry.next_side}:"
            " retention deleted a part of it"
        )
        mend = "Let the topic have no retention: retention.ms=-1, retention.bytes=-1"
        if entry.taken:
            # No copy, and nothing to skip: who passed over the rest would deliver it in part.
            text += f", and {entry.taken} of its records are delivered"
            go_on = self._go_on(entry, "the rest")
            self._fail(entry, TornTransactionError(self._text(entry, f"{text}; {go_on}. {mend}")))
            return
        if entry.unsure:
            self.counters.copied_pointers += 1
        elif entry.marker_offset < self.torn_skip_below:
            self.counters.torn_transactions += 1
        else:
            text += f"; torn.reset=skip goes on without it. {mend}"
            self._fail(entry, TornTransactionError(self._text(entry, text)))
            return
        entry.total = entry.available = 0
        entry.state = EntryState.READY

    def push_stream(self, request: StreamRequest, records: Sequence[Record], upto: int) -> None:
        """Takes in what was read in the sidecar, in offset order.

        Args:
            request: of `stream_wanted`; one that nothing waits for any more is ignored.
            records: all records of the sidecar from the request's `next_offset` on.
            upto: everything below this offset was read.
        """
        entry = self._streaming(request)
        if entry is None or not entry.is_open:
            return
        counts, before = entry.is_counting, entry.accepted
        deliver = partial(self._shared.relocate, self.partition)
        passed = entry.push(records, upto, self._controls, deliver)
        if not counts:
            self.counters.sidecar_passed += passed
            self.counters.sidecar_records += entry.accepted - before
        missing = entry.side_stated - entry.accepted
        is_read = entry.next_side > entry.last_side
        if missing < 0 or (missing and is_read):
            topic, partition = entry.sidecar
            text = (
                f"{topic}[{partition}] holds {entry.accepted} of the {entry.side_stated} records"
                " that it names"
            )
            text += f": {topic} {_ANEW}" if counts else ""
            self._fail_lost(entry, text, "the rest" if entry.taken else _ALL)
        elif counts and is_read:
            entry.counted()
