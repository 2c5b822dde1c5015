"""Finds where to read a home's journal from, for partitions that begin to follow it.

What each partition needs, `home_view.where_to_begin` says (R12). Here are the requests for it: the
journal's start, and the snapshots that are known: the one of the checkpoint, and the fence that it
names. All partitions that begin together are read for from the lowest of their offsets, and there
the epoch must be certain, or void records of a replaced owner would count. It is certain

1. at the journal's first record, offset 0;
2. behind a decision or MODE record that the reader's position, or a mode record, names;
3. at a snapshot that counts. From one that lies further down, only epochs are read.

A partition that begins where the consumer has read the home already needs no request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Final, TypeVar

from ..journal.errors import BrokerError, TornTransactionError
from ..journal.logs.interface import Log
from ..journal.modes import ModeChange
from ..journal.places import Adoption, PartitionId
from ..journal.position import Journal
from ..journal.reader import (
    JOURNAL_TOPIC,
    RecordsTrimmedError,
    earlier_snapshots,
    find_snapshot,
    read_entries,
)
from ..journal.records.fate import EpochFilter, FateScan
from ..journal.records.snapshots import LastNeeded, SnapshotCollector, begins_at, sidecars_named
from ..journal.records.types import (
    NO_FENCE,
    AddWrites,
    Entry,
    PartitionWrites,
    PrepareCommit,
    Snapshot,
    SnapshotAdoption,
    SnapshotTransaction,
    joined,
)
from ..journal.state import State
from ..journal.txid import TxId
from ..journal.value import value
from .core.home_journal import Kept, asides_of
from .core.home_view import Candidate, HomeWrites, Listed, Start, where_to_begin
from .core.looks import LOOKS_APART_S

_LOG = logging.getLogger(__name__)
Found = TypeVar("Found")

REQUEST_TIMEOUT_S: Final = 10.0
"""Time-out of each request to the journal's broker. A longer one blocks the application's call for
longer while a broker is away, a shorter one fails on a slow broker."""
SNAPSHOT_TIMEOUT_S: Final = 30.0
"""Time-out of a search for a snapshot, and of reading it. A shorter one fails on a long journal."""
LOOKS_TOGETHER_S: Final = 60.0
"""How long after a first look a second one confirms it. After a longer time, the journal may just
have been trimmed once more."""
READ_BACK_MAX: Final = 1_000_000
"""Journal records below a reader's sequence that it reads again to learn what became of what was
pending: some seconds. Beyond, it goes on behind its sequence, and look-ups tell. More delay a
restart, fewer keep records of ended transactions for the time of a look-up."""


@value(frozen=True, slots=True)
class Attachment:
    """Where one partition's reader begins to follow its home."""

    offset: int
    """Journal offset."""
    listed: tuple[Listed, ...] | None = None
    """What the snapshot at `offset` lists as unfinished; None if reading does not begin at one."""


@value(frozen=True, slots=True)
class HomeStart:
    """Where to read a home's journal from."""

    certain: tuple[int, EpochFilter] | None
    """Journal offset of the first record to read, and the epochs as they stand there. Below the
    lowest attachment only epochs count. None: what the consumer keeps of the home does."""
    attachments: Mapping[PartitionId, Attachment]


@value(frozen=True, slots=True)
class _Known:
    """A snapshot that counts."""

    first: int
    epoch: int
    incarnation: int
    listed: tuple[Listed, ...]
    last: Mapping[PartitionId, int]
    fence: int
    parts: Mapping[int, tuple[PartitionWrites, ...]]
    """BEGIN → what a transaction that is open has said so far that it wrote, and all that one which
    is decided wrote."""


class HomeStarts:
    """Asks a log where homes are to be read from."""

    def __init__(self, log: Log, clock: Callable[[], float] | None = None) -> None:
        self._log = log
        self._clock = clock or time.monotonic
        self._missed_s: dict[Journal, float] = {}
        """Home → when its trimmed journal was first seen without a snapshot; monotonic."""
        self._torn_s: dict[object, float] = {}
        """What was asked for → since when retention seems to have taken it; monotonic."""

    def find(
        self, home: Journal, wanted: Mapping[PartitionId, Start], kept: Kept | None = None
    ) -> HomeStart:
        """Returns where to read a home's journal from, for these partitions.

        Args:
            home: its journal.
            wanted: partition → where its reader stands.
            kept: what the consumer keeps of the home; None: nothing.

        Raises:
            TornTransactionError: retention took what one of them needs of the journal.
            RecordsTrimmedError: it seems so, but the journal may have been trimmed meanwhile: ask
                again.
            BrokerError: no answer in time.
            JournalError: a record on the way does not decode.
        """
        asked = home, frozenset(wanted)
        return self._twice(asked, lambda: self._find(home, wanted, kept))

    def _twice(self, asked: object, find: Callable[[], Found]) -> Found:
        """Believes that something is gone when it still is after a while.

        The journal is trimmed while it is asked: what it began with by the first answer is gone by
        the second. Or the first came from a former leader. Then another look finds a snapshot.
        """
        try:
            found = find()
        except TornTransactionError as error:
            now_s, since_s = self._clock(), self._torn_s.get(asked)
            if since_s is None or now_s > since_s + LOOKS_TOGETHER_S:
                since_s = self._torn_s[asked] = now_s
            if now_s < since_s + LOOKS_APART_S:
                raise RecordsTrimmedError(f"{error} (it is looked for once more)") from error
            del self._torn_s[asked]
            raise
        self._torn_s.pop(asked, None)
        return found

    def _find(
        self, home: Journal, wanted: Mapping[PartitionId, Start], kept: Kept | None
    ) -> HomeStart:
        attachments = {} if kept is None else _within(kept, wanted)
        rest = {
            partition: each for partition, each in wanted.items() if partition not in attachments
        }
        if not rest:
            return HomeStart(None, attachments)
        number = home[0]
        start = self._log.start_offset(JOURNAL_TOPIC, number, timeout_s=REQUEST_TIMEOUT_S)
        snapshots: list[_Known] | None = None
        for partition, each in rest.items():
            if snapshots is None and not _goes_on(each, start):
                snapshots = self._snapshots(home, start)
            found = self._attach(partition, each, start, snapshots or [])
            if snapshots and _may_lack_first(found, each, start):
                snapshots += self._first(home, start, snapshots[0])
                found = self._attach(partition, each, start, snapshots)
            if found is None:
                topic, number = partition.key
                raise _trimmed(
                    None, f"what is placed in {topic}[{number}] from {each.x} on is gone"
                )
            attachments[partition] = found
        lowest = min(a.offset for a in attachments.values())
        if kept is not None and kept.covers(lowest):
            return HomeStart(None, attachments)
        return HomeStart(self._read_from(home, lowest, start, snapshots), attachments)

    def _read_from(
        self, home: Journal, lowest: int, journal_start: int, snapshots: list[_Known] | None
    ) -> tuple[int, EpochFilter]:
        certain = self._certain(home, lowest, journal_start, snapshots or [])
        if certain is None and snapshots is None:
            found = self._snapshots(home, journal_start)
            certain = self._certain(home, lowest, journal_start, found)
        if certain is None:
            raise _trimmed(home, f"its epoch at {lowest} can't be told")
        _LOG.info(
            "home_read_from partition=%d offset=%d lowest=%d snapshots=%d",
            *(home[0], certain[0], lowest, len(snapshots or [])),
        )
        return certain

    def _attach(
        self, partition: PartitionId, start: Start, journal_start: int, snapshots: list[_Known]
    ) -> Attachment | None:
        readable = journal_start
        if start.passed is not None:
            readable = max(journal_start, start.passed + 1 - READ_BACK_MAX)
        begins = any(s.first == journal_start for s in snapshots)
        if journal_start > 0 and not begins:
            # What names the epoch there is trimmed, be it a decision or the MODE record (trap 267).
            readable = max(readable, journal_start + 1)
        candidates = [Candidate(s.first, s.last) for s in snapshots]
        found = where_to_begin(partition, start, readable, candidates)
        if found is None:
            return None
        offset, is_snapshot = found
        listed = next((s.listed for s in snapshots if is_snapshot and s.first == offset), None)
        return Attachment(offset, listed)

    def earliest(self, home: Journal, journal_start: int) -> int | None:
        """Returns the offset of the earliest snapshot that counts; None if none is known.

        Raises:
            BrokerError, JournalError: as `find`.
        """
        known = self._snapshots(home, journal_start)
        known += self._first(home, journal_start, known[0]) if known else []
        return min((s.first for s in known), default=None)

    # ---- snapshots ------------------------------------------------------------------------------

    def _snapshots(self, home: Journal, journal_start: int) -> list[_Known]:
        """Returns the snapshots that are known, with the latest first."""
        found = find_snapshot(self._log, home[0], timeout_s=SNAPSHOT_TIMEOUT_S)
        if found is None and journal_start > 0:
            # A journal that was trimmed has a snapshot: the end that was told lies below it. Unless
            # somebody deleted the snapshot too, which is told once that end can't be an old one.
            now_s = self._clock()
            if now_s < self._missed_s.setdefault(home, now_s) + LOOKS_APART_S:
                raise _of_the_past(home)
        else:
            self._missed_s.pop(home, None)
        if found is None or found.incarnation != home[1]:
            return []
        known = [self._read(home, found.first)]
        fence = known[0].fence if known[0] is not None else NO_FENCE
        # The journal begins at a fence, if it was trimmed to one.
        for first in {fence, journal_start} - {NO_FENCE, found.first}:
            if first >= journal_start:
                known.append(self._read(home, first))
        return [each for each in known if each is not None]

    def _first(self, home: Journal, journal_start: int, newest: _Known) -> list[_Known]:
        """Returns the first snapshot from the journal's start on that counts, if there is one
        before the newest.

        The fence to which the journal may be trimmed lies there, and nothing names it: the newest
        snapshot states the one that waits, or is that itself. And the journal need not begin at it,
        for an unfinished transaction may keep it longer.
        """
        for first in self._counting(home, journal_start, newest):
            known = self._read(home, first)
            if known is not None:
                return [known]
        return []

    def _counting(self, home: Journal, journal_start: int, newest: _Known) -> list[int]:
        """Returns where complete snapshots that count begin, between the journal's start and the
        newest, in order."""
        epochs = EpochFilter(newest.epoch, newest.incarnation)
        return earlier_snapshots(
            self._log, home[0], journal_start, newest.first, epochs, timeout_s=REQUEST_TIMEOUT_S
        )

    def _read(self, home: Journal, first: int) -> _Known | None:
        """Reads a snapshot that is named by one that counts; None if none begins there."""
        end = self._end(home, first + 1)
        collector: SnapshotCollector | None = None
        chunks: list[Snapshot] = []
        epoch = -1
        entries = read_entries(self._log, home[0], first, end, timeout_s=SNAPSHOT_TIMEOUT_S)
        try:
            with closing(entries):
                for offset, entry in entries:
                    if collector is None:
                        if not begins_at(offset, entry) or entry.incarnation != home[1]:
                            return None
                        collector, epoch = SnapshotCollector(offset, entry), entry.epoch
                    chunk = collector.feed(offset, entry)
                    if chunk is not None:
                        chunks.append(chunk)
                    if collector.torn or collector.complete:
                        break
        except RecordsTrimmedError:
            return None  # Trimmed since its offset was told.
        if collector is not None and not collector.complete and not collector.torn:
            raise _of_the_past(home)  # Or it is being written: then it soon ends.
        if collector is None or not collector.complete:
            return None
        last = LastNeeded()
        for chunk in chunks:
            last.add(chunk)
        return _Known(
            first,
            epoch,
            home[1],
            tuple(listed_in(chunks)),
            last.found(),
            chunks[0].fence,
            parts_in(chunks),
        )

    def _end(self, home: Journal, lowest: int) -> int:
        """Returns the journal's end, which is known to be no lower than `lowest`.

        Raises:
            BrokerError: no answer in time, or one of the past.
        """
        end = self._log.end_offset(JOURNAL_TOPIC, home[0], timeout_s=REQUEST_TIMEOUT_S)
        if end < lowest:
            # If it counted, what lies behind it would pass for trimmed.
            raise _of_the_past(home)
        return end

    def writes(self, home: Journal, begin: int, decided: int) -> tuple[PartitionWrites, ...]:
        """Reads again what a very large transaction wrote, whose decision does not name it all.

        It is read from its BEGIN on, or, if that was trimmed, from a snapshot which has what was
        said of it below. One behind the decision has all of it, as long as the transaction is not
        finished. The journal may begin between its parts and its decision, which an older
        transaction keeps, and then no snapshot need lie in between (trap 264).

        Args:
            home: its journal.
            begin: offset of its BEGIN.
            decided: offset of the decision.

        Raises:
            BrokerError: no answer in time.
            JournalError: a record on the way does not decode.
            TornTransactionError: nothing has what was said of it.
            RecordsTrimmedError: it seems so, but the journal may have been trimmed meanwhile: ask
                again.
        """
        return self._twice((home, begin), lambda: self._writes(home, begin, decided))

    def _writes(self, home: Journal, begin: int, decided: int) -> tuple[PartitionWrites, ...]:
        txid = TxId(*home, begin)
        scan = FateScan([txid])
        try:
            for offset, entry in self._between(home, begin, decided + 1):
                scan.feed(offset, entry)
        except RecordsTrimmedError:
            return self._writes_since(home, begin, decided)
        return scan.fates()[txid].writes

    def _writes_since(self, home: Journal, begin: int, decided: int) -> tuple[PartitionWrites, ...]:
        start = self._log.start_offset(JOURNAL_TOPIC, home[0], timeout_s=REQUEST_TIMEOUT_S)
        snapshots = self._snapshots(home, start)
        known = [s for s in snapshots if begin in s.parts]
        known = known or self._counting_with(home, start, snapshots[:1], begin)
        if not known:
            raise _trimmed(home, f"nothing tells what the transaction begun at {begin} wrote")
        first = min(known, key=lambda s: s.first)
        epochs, writes = EpochFilter(first.epoch, home[1]), list(first.parts[begin])
        if first.first > decided:
            return joined(writes)
        for offset, entry in self._between(home, first.first, decided + 1):
            record = entry.record
            counts = epochs.accept(offset, entry)
            if counts and isinstance(record, AddWrites | PrepareCommit) and record.begin == begin:
                writes += record.writes
        return joined(writes)

    def _counting_with(
        self, home: Journal, start: int, newest: list[_Known], begin: int
    ) -> list[_Known]:
        """Returns the first snapshot that counts and has what was said of the transaction, if it is
        before the newest."""
        for first in self._counting(home, start, newest[0]) if newest else ():
            known = self._read(home, first)
            if known is not None and begin in known.parts:
                return [known]
        return []

    def _between(self, home: Journal, start: int, end: int) -> Iterator[tuple[int, Entry]]:
        entries = read_entries(self._log, home[0], start, end, timeout_s=REQUEST_TIMEOUT_S)
        with closing(entries):
            yield from entries

    # ---- epochs ---------------------------------------------------------------------------------

    def _certain(
        self, home: Journal, lowest: int, journal_start: int, snapshots: list[_Known]
    ) -> tuple[int, EpochFilter] | None:
        """Returns (where to read from, the epochs there), so that they are known at `lowest`."""
        for known in snapshots:
            if known.first == lowest:
                return lowest, EpochFilter(known.epoch, known.incarnation)
        if (epoch := self._named_epoch(home, lowest, journal_start)) is not None:
            return lowest, EpochFilter(epoch, home[1])
        below = [s for s in snapshots if s.first <= lowest]
        if below:
            best = max(below, key=lambda s: s.first)
            return best.first, EpochFilter(best.epoch, best.incarnation)
        return (0, EpochFilter()) if journal_start == 0 else None

    def _named_epoch(self, home: Journal, offset: int, journal_start: int) -> int | None:
        """Returns the epoch at a place that lies behind a decision, ADOPT or MODE record that
        counts, or at one, or at a snapshot that does; None if neither is there.

        A reader's sequence names either, or what lies just below the first that was due to it: see
        `HomeView`. If both seem to be there, one may be void: the one of the lower epoch, for a
        replaced owner wrote it.
        """
        start = max(journal_start, offset - 1)
        if start < 0 or offset <= 0:
            return None
        end = min(self._end(home, offset), offset + 1)
        entries = read_entries(self._log, home[0], start, end, timeout_s=REQUEST_TIMEOUT_S)
        epochs = []
        try:
            with closing(entries):
                for at, entry in entries:
                    named = PrepareCommit | ModeChange | Adoption
                    is_named = isinstance(entry.record, named)
                    if entry.incarnation == home[1] and (
                        is_named or (at == offset and begins_at(at, entry))
                    ):
                        epochs.append(entry.epoch)
        except RecordsTrimmedError:
            return None
        return max(epochs, default=None)


def _goes_on(start: Start, journal_start: int) -> bool:
    """Returns whether a reader goes on behind its sequence, and needs no snapshot."""
    # Not just behind what was trimmed: there nothing but a snapshot says which epoch is current.
    first = journal_start - 1 if journal_start == 0 else journal_start
    return start.passed is not None and _asks_no_more(start) and start.passed >= first


def _asks_no_more(start: Start) -> bool:
    """Returns whether nothing below its sequence tells a reader more: nothing is pending, or
    nothing was placed since the MODE record, so that no fence lies between the two."""
    return start.o1 >= start.x or (start.passed is not None and start.passed <= start.mode_offset)


def _within(kept: Kept, wanted: Mapping[PartitionId, Start]) -> dict[PartitionId, Attachment]:
    """Returns where those partitions begin that need what is kept of the home, and no request."""
    found = {}
    for partition, start in wanted.items():
        if start.passed is None:
            continue
        behind = max(start.mode_offset, start.passed) + 1
        if not kept.covers(behind):
            continue
        if _asks_no_more(start):
            found[partition] = Attachment(behind)
        elif kept.is_partial:
            # To go back further would read again what was read and dropped. What is kept tells of
            # most that is pending, and look-ups tell of the rest.
            found[partition] = Attachment(kept.first)
    return found


def _may_lack_first(found: Attachment | None, reader: Start, journal_start: int) -> bool:
    """Returns whether a snapshot that nothing names may do where no other does, or better."""
    if found is None:
        return True
    is_trimmed = reader.passed is not None and reader.passed + 1 < found.offset
    return is_trimmed and found.listed is not None and found.offset > journal_start


def _trimmed(home: Journal | None, what: str) -> TornTransactionError:
    where = "the home's journal" if home is None else f"{JOURNAL_TOPIC}[{home[0]}]"
    return TornTransactionError(
        f"{where} was trimmed, and {what}: a reader that stood still for so long can't tell what it"
        " lost. To read on from what is there, seek to the partition's start or end"
    )


def _of_the_past(home: Journal) -> BrokerError:
    return BrokerError(
        f"{JOURNAL_TOPIC}[{home[0]}] is known to reach further than its broker told, which does not"
        " lead it any more: the journal is read when another answer comes"
    )


def parts_in(chunks: list[Snapshot]) -> dict[int, tuple[PartitionWrites, ...]]:
    """Returns what open transactions said in parts that they wrote, so far, and all that decided
    ones wrote, by BEGIN."""
    found: dict[int, list[PartitionWrites]] = {}
    in_parts: set[int] = set()
    for chunk in chunks:
        for row in chunk.transactions:
            if row.parts:
                in_parts.add(row.begin)
            if row.state in (State.OPEN, State.COMMITTING):
                # One that has said nothing so far says all of it behind the snapshot.
                said = found.setdefault(row.begin, [])
                if row.state is State.COMMITTING or row.begin in in_parts:
                    said += row.writes
    return {begin: joined(writes) for begin, writes in found.items()}


def listed_in(chunks: list[Snapshot]) -> list[Listed]:
    """Returns the unfinished transactions that a snapshot lists, as `HomeView` takes them in.

    The lists of a large transaction are spread over several rows.
    """
    placed: dict[int, dict[PartitionId, int | None]] = {}
    for chunk in chunks:
        for row in chunk.places:
            at = placed.setdefault(row.begin, {})
            at |= {partition: place for partition, _, place in row.places}
    sidecars = sidecars_named(chain.from_iterable(c.sidecar_since for c in chunks))
    rows: dict[int, SnapshotTransaction] = {}
    writes: dict[int, list[PartitionWrites]] = {}
    for chunk in chunks:
        for transaction in chunk.transactions:
            rows.setdefault(transaction.begin, transaction)
            writes.setdefault(transaction.begin, []).extend(transaction.writes)
    found = []
    for begin, transaction in rows.items():
        if transaction.state is not State.COMMITTING:
            found.append(Listed(begin, aborted=transaction.state is not State.OPEN))
            continue
        places = placed.get(begin, {})
        mine = []
        asides = asides_of(writes[begin], sidecars.get(begin, ()))
        for each in joined(writes[begin]):
            partition = each.partition.identity
            is_placed = partition in places
            aside = asides.pop(partition.key, None) if is_placed else None
            mine.append(HomeWrites(partition, each.branches, is_placed, aside))
        # Where all of it lies in the sidecar, it is among no writes of the main partition.
        alone = ((p, asides[p.key]) for p in places if p.key in asides)
        mine += [HomeWrites(p, (), True, aside) for p, aside in alone]
        known = {partition: place for partition, place in places.items() if place is not None}
        found.append(Listed(begin, transaction.commit_sequence, False, tuple(mine), known))
    return found + _adopted_in(chunks, placed)


def _adopted_in(
    chunks: list[Snapshot], placed: Mapping[int, Mapping[PartitionId, int | None]]
) -> list[Listed]:
    """Returns what a home adopted and had not placed everywhere; `placed` is by offset of ADOPT."""
    rows: dict[int, list[SnapshotAdoption]] = {}
    for chunk in chunks:
        for row in chunk.unplaced:
            rows.setdefault(row.offset, []).append(row)
    found = []
    for offset, parts in rows.items():
        writes = [
            HomeWrites(w.partition, tuple(w.branches), True)
            for part in parts
            for w in part.writes
            if w.placed
        ]
        places = {p: at for p, at in placed.get(offset, {}).items() if at is not None}
        found.append(Listed(offset, offset, False, tuple(writes), places, *parts[0][1:3]))
    return found
