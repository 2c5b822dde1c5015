"""What the journal says about the demo's transactions and about its owners, while it grows.

`JournalView` takes entries and keeps their state. `JournalTail` reads the journal into a view.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...journal.acks import AddAcks
from ...journal.errors import BrokerError
from ...journal.follower import JournalFollower
from ...journal.logs.interface import Log
from ...journal.producer_ids import producer_name_of
from ...journal.reader import JOURNAL_TOPIC, READER_SETTINGS
from ...journal.records.fate import NO_EPOCH, EpochFilter
from ...journal.records.scan import JournalScan, SeenTransaction
from ...journal.records.types import Entry, Owner
from ...journal.state import State

_SETTINGS: Final = {**READER_SETTINGS, "fetch.wait.max.ms": 5}
"""The wait of 5 ms keeps the view close to the journal: the moments for faults are short."""
_POLL_S: Final = 0.05
"""Longest wait of one read in `read_until`: a larger value notices the condition later."""

Key: TypeAlias = tuple[int, int]
"""Identifies a transaction: journal partition, and offset of its BEGIN there."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A valid OWNER record: from it on one coordinator serves one journal partition."""

    partition: int
    epoch: int
    """Offset of the record."""
    address: str


def key_of(seen: SeenTransaction) -> Key:
    """Returns a transaction's key."""
    return seen.txid.partition, seen.txid.offset


class JournalView:
    """Owners of all journal partitions, and transactions of producer ids with a given prefix."""

    def __init__(
        self, prefix: str = "", ledgers: Collection[str] = (), dead: str | None = None
    ) -> None:
        """Starts empty.

        Args:
            prefix: selects the producer ids.
            ledgers: the topics that count; all if none is named.
            dead: the topic of a queue's dead letters.
        """
        self._prefix, self._dead = prefix, dead
        self._acknowledging: set[Key] = set()
        """Transactions that acknowledge messages of a queue."""
        self._ledgers = frozenset(ledgers)
        self._scans: dict[int, JournalScan] = {}
        self.owners: dict[int, Ownership] = {}
        """Journal partition → its current owner."""
        self.takeovers: list[Ownership] = []
        """All valid OWNER records, in the order they were read."""
        self.committed = 0
        """Transactions with the decision to commit, finished or not."""
        self.aborted = 0
        self.records_committed = 0
        """Records of committed transactions in the ledgers, or in all topics, of all branches."""
        self.letters = 0
        """Dead letters of committed transactions."""
        self.of_letters_alone = 0
        """Committed transactions that wrote dead letters, and nothing to the ledgers."""
        self.spanning = 0
        """Committed transactions that wrote to several of the ledgers."""

    def __iter__(self) -> Iterator[SeenTransaction]:
        """Yields all transactions; those of one partition in the order of their BEGIN."""
        for scan in self._scans.values():
            yield from filter(self._is_ours, scan.transactions.values())

    def __getitem__(self, key: Key) -> SeenTransaction:
        """Returns the transaction with this key; raises KeyError if it was not read."""
        return self._scans[key[0]].transactions[key[1]]

    def _is_ours(self, seen: SeenTransaction) -> bool:
        name = producer_name_of(seen.producer_id).transactional_id
        return name is not None and name.startswith(self._prefix)

    def feed(self, partition: int, offset: int, entry: Entry) -> None:
        """Takes a partition's next entry. Reading may begin anywhere before a valid OWNER."""
        scan = self._scans.get(partition)
        if scan is None:
            if not isinstance(entry.record, Owner):
                return
            replaces = entry.record.replaces
            epochs = EpochFilter(replaces, None if replaces == NO_EPOCH else entry.incarnation)
            scan = self._scans[partition] = JournalScan(partition, epochs)
        if isinstance(entry.record, AddAcks):
            self._acknowledging.add((partition, entry.record.begin))
        for decided in filter(self._is_ours, scan.feed(offset, entry)):
            if decided.state.commits:
                self.committed += 1
                counted = [
                    written
                    for written in decided.writes
                    if not self._ledgers or written.partition.topic in self._ledgers
                ]
                for written in counted:
                    self.records_committed += sum(b.count for b in written.branches)
                letters = sum(
                    branch.count
                    for written in decided.writes
                    if written.partition.topic == self._dead
                    for branch in written.branches
                )
                self.letters += letters
                self.of_letters_alone += letters > 0 and not counted
                self.spanning += len({w.partition.topic for w in counted}) > 1
            else:
                self.aborted += 1
        if scan.owners and scan.owners[-1][0] == offset:
            taken = Ownership(partition, offset, scan.owners[-1][1].address)
            self.owners[partition] = taken
            self.takeovers.append(taken)

    @property
    def void_entries(self) -> int:
        """Entries that owners appended after they had been replaced."""
        return sum(scan.void_entries for scan in self._scans.values())

    @property
    def unfinished(self) -> list[SeenTransaction]:
        """Transactions that are not finished; within a partition in the order of their BEGIN."""
        scans = self._scans.values()
        return [seen for s in scans for seen in s.unfinished.values() if self._is_ours(seen)]

    def in_state(self, state: State) -> list[SeenTransaction]:
        """Returns the unfinished transactions in this state, in the order of `unfinished`."""
        return [seen for seen in self.unfinished if seen.state is state]

    def open_of(self, producer_id: str, *, idle: bool = False) -> SeenTransaction | None:
        """Returns an open transaction of this producer that has written; None if there is none.

        A block's transaction has its input offsets or its acknowledgements as soon as it begins.

        Args:
            producer_id: the producer.
            idle: whether one counts of which the journal does not tell that it has written: it
                names no partition of a quick transaction before the decision.
        """
        for seen in self.in_state(State.OPEN):
            has_input = bool(seen.offsets) or key_of(seen) in self._acknowledging
            if seen.producer_id == producer_id and (idle or seen.partitions or has_input):
                return seen
        return None

    def partitions_of(self, address: str) -> dict[int, int]:
        """Returns journal partition → epoch, of the partitions that this coordinator owns."""
        owned = self.owners.values()
        return {o.partition: o.epoch for o in owned if o.address == address}


class JournalTail:
    """Reads the journal into a view. Only one thread at a time may use it."""

    def __init__(self, log: Log, starts: Mapping[int, int], view: JournalView) -> None:
        """Sets what is read; the consumer is made at the first read.

        Args:
            log: the cluster.
            starts: journal partition → offset to begin at, of each partition to read.
            view: gets what is read.
        """
        self._log = log
        self._starts = dict(starts)
        self.view: Final = view
        self._made: JournalFollower | None = None

    @property
    def _follower(self) -> JournalFollower:
        # Made at the first read: before a coordinator runs there may be no journal.
        if self._made is None:
            self._made = JournalFollower(self._log, self._starts, _SETTINGS)
        return self._made

    def read(self, timeout_s: float) -> None:
        """Feeds the view all entries that are there; waits up to `timeout_s` for a first one.

        Raises:
            RecordsTrimmedError: the next entry was trimmed.
            JournalError: an entry does not decode.
        """
        for partition, offset, entry in self._follower.poll(timeout_s):
            self.view.feed(partition, offset, entry)

    def read_to_end(self, partition: int, *, timeout_s: float) -> None:
        """Reads up to the partition's current end.

        Raises:
            BrokerError: the end was not reached within `timeout_s`.
        """
        end = self._log.end_offset(JOURNAL_TOPIC, partition, timeout_s=timeout_s)
        following = self._follower.next_offsets
        if not self.read_until(lambda: following[partition] >= end, timeout_s=timeout_s):
            at = following[partition]
            raise BrokerError(f"reading journal partition {partition} stood at {at} of {end}")

    def read_until(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Reads until `condition` holds. Returns False if it does not within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            self.read(_POLL_S)
        return True

    def close(self) -> None:
        """Closes the consumer."""
        if self._made is not None:
            self._made.close()
