"""What the journal says of the demo's transactions and of its owners, followed while it grows.

`JournalView` takes entries and tells states. `JournalTail` reads the journal into one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...journal.errors import BrokerError
from ...journal.follower import JournalFollower
from ...journal.logs.interface import Log
from ...journal.reader import JOURNAL_TOPIC, READER_SETTINGS
from ...journal.records.fate import NO_EPOCH, EpochFilter
from ...journal.records.scan import JournalScan, SeenTransaction
from ...journal.records.types import Entry, Owner
from ...journal.state import State

_SETTINGS: Final = {**READER_SETTINGS, "fetch.wait.max.ms": 5}
_POLL_S: Final = 0.05

Key: TypeAlias = tuple[int, int]
"""Names a transaction: journal partition, and offset of its BEGIN there."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A valid OWNER record: one coordinator serves one journal partition."""

    partition: int
    epoch: int
    """Its offset."""
    address: str


def key_of(seen: SeenTransaction) -> Key:
    """The name of a transaction."""
    return seen.txid.partition, seen.txid.offset


class JournalView:
    """Owners of all journal partitions, and transactions of producer ids that begin so."""

    def __init__(self, prefix: str = "") -> None:
        """Start empty; `prefix` is that of the producer ids."""
        self._prefix = prefix
        self._scans: dict[int, JournalScan] = {}
        self.owners: dict[int, Ownership] = {}
        """Who serves each partition."""
        self.takeovers: list[Ownership] = []
        """All of them, in the order they were read."""
        self.committed = 0
        """Transactions decided so, whether or not finished."""
        self.aborted = 0
        self.records_committed = 0
        """Data records of committed transactions, of all branches."""

    def __iter__(self) -> Iterator[SeenTransaction]:
        """All transactions; those of one partition by BEGIN."""
        for scan in self._scans.values():
            yield from filter(self._is_ours, scan.transactions.values())

    def __getitem__(self, key: Key) -> SeenTransaction:
        """The transaction of that name."""
        return self._scans[key[0]].transactions[key[1]]

    def _is_ours(self, seen: SeenTransaction) -> bool:
        return seen.producer_id.startswith(self._prefix)

    def feed(self, partition: int, offset: int, entry: Entry) -> None:
        """Take a partition's next entry. Reading may begin anywhere before a valid OWNER."""
        scan = self._scans.get(partition)
        if scan is None:
            if not isinstance(entry.record, Owner):
                return
            replaces = entry.record.replaces
            epochs = EpochFilter(replaces, None if replaces == NO_EPOCH else entry.incarnation)
            scan = self._scans[partition] = JournalScan(partition, epochs)
        for decided in filter(self._is_ours, scan.feed(offset, entry)):
            if decided.state.commits:
                self.committed += 1
                self.records_committed += sum(b.count for w in decided.writes for b in w.branches)
            else:
                self.aborted += 1
        if scan.owners and scan.owners[-1][0] == offset:
            taken = Ownership(partition, offset, scan.owners[-1][1].address)
            self.owners[partition] = taken
            self.takeovers.append(taken)

    @property
    def void_entries(self) -> int:
        """Entries that owners appended after others had replaced them."""
        return sum(scan.void_entries for scan in self._scans.values())

    @property
    def unfinished(self) -> list[SeenTransaction]:
        """Open, or decided and without the last marker; those of one partition by BEGIN."""
        scans = self._scans.values()
        return [seen for s in scans for seen in s.unfinished.values() if self._is_ours(seen)]

    def in_state(self, state: State) -> list[SeenTransaction]:
        """Unfinished transactions in this state; those of one partition by BEGIN."""
        return [seen for seen in self.unfinished if seen.state is state]

    def open_of(self, producer_id: str) -> SeenTransaction | None:
        """A transaction of this producer that is open and has written, or None.

        Workers send their input offsets last, so one that has sent them has written too.
        """
        for seen in self.in_state(State.OPEN):
            if seen.producer_id == producer_id and (seen.partitions or seen.offsets):
                return seen
        return None

    def partitions_of(self, address: str) -> dict[int, int]:
        """Journal partitions that this coordinator owns, and its epoch in each."""
        owned = self.owners.values()
        return {o.partition: o.epoch for o in owned if o.address == address}


class JournalTail:
    """Reads the journal into a view. One thread at a time."""

    def __init__(self, log: Log, starts: Mapping[int, int], view: JournalView) -> None:
        """Begin.

        Args:
            log: the cluster.
            starts: each partition to read, and the offset to begin at.
            view: what is read goes there.
        """
        self._log = log
        self._starts = dict(starts)
        self.view: Final = view
        self._made: JournalFollower | None = None

    @property
    def _follower(self) -> JournalFollower:
        # Made at the first read: there may be no journal before a coordinator runs.
        if self._made is None:
            self._made = JournalFollower(self._log, self._starts, _SETTINGS)
        return self._made

    def read(self, timeout_s: float) -> None:
        """Take what is there; wait up to `timeout_s` for a first entry.

        Raises:
            RecordsTrimmedError: what comes next was trimmed.
            JournalError: an entry does not decode.
        """
        for partition, offset, entry in self._follower.poll(timeout_s):
            self.view.feed(partition, offset, entry)

    def read_to_end(self, partition: int, *, timeout_s: float) -> None:
        """Read up to the partition's end as of now.

        Raises:
            BrokerError: not within `timeout_s`.
        """
        end = self._log.end_offset(JOURNAL_TOPIC, partition, timeout_s=timeout_s)
        following = self._follower.next_offsets
        if not self.read_until(lambda: following[partition] >= end, timeout_s=timeout_s):
            at = following[partition]
            raise BrokerError(f"reading journal partition {partition} stood at {at} of {end}")

    def read_until(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Read until `condition` holds; False if it does not within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            self.read(_POLL_S)
        return True

    def close(self) -> None:
        """Close the consumer."""
        if self._made is not None:
            self._made.close()
