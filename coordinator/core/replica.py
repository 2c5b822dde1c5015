"""Follows a journal partition without owning it: as a hot standby, or to load it. Pure.

A replica may begin at the journal's start, or at a snapshot that is known to count, as the
checkpoint's is. Then it is *certain*: from there on it follows the true line of OWNER records.

Or it begins in the middle of a trimmed journal whose checkpoint is lost, or was overwritten by an
owner that woke up late. It does not know which epoch is current there, so the first snapshot that
it meets may be void: a snapshot that an owner wrote after it was replaced, when all of its records
in flight but one landed where it had predicted them. Call a void snapshot that is believed A.
Owners trim only below a snapshot that counts (`housekeeping.py`), so such a snapshot, B, follows.
At B three rules lead back to the truth, whatever A was:

- *A record that does not follow from what is believed proves the belief void.* (A lost COMMITTED
  that A took for durable is appended again by the next owner.)
- *An entry of a higher epoch than the current one proves the belief void.* Each epoch is won by an
  OWNER record before anything is written under it, so the true line has no such entry. A lies
  behind its epoch's end, or behind its surprise, so B is of a higher epoch.
- *A complete snapshot that is valid by what is believed replaces the belief.* The only record that
  a void A and B can both follow from is the OWNER record that ended A's surprised epoch. Then B is
  valid both by A and in truth.

A replica becomes certain when it has read up to an end of the journal that was asked for after it
began: then it has met B.

Source: Transactional Messaging in Kafka, "Transaction coordinator"; PIP-31, "TC Startup".
"""

from __future__ import annotations

from typing import Final

from ...journal.errors import CorruptRecordError, LogtxError
from ...journal.records.snapshots import begins_at
from ...journal.records.types import Entry
from .decision import ShardConfig
from .shard import Shard
from .snapshot import SnapshotReader

_SENSELESS: Final = (
    LogtxError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What replaying a record raises that decodes but can't be true.

It must stop its partition alone. An error that is not a `LogtxError` would end this process, and
after it the next one that loads the partition.
"""


class Replica:
    """Builds a shard from a journal partition's records, in bounded memory."""

    def __init__(
        self, partition: int, config: ShardConfig, start: int = 0, *, certain: bool = False
    ) -> None:
        """Prepares to read a journal partition from `start`.

        Args:
            partition: number of the journal partition.
            config: limits of the shard.
            start: offset of the first record to feed: 0, or one at or before a snapshot.
            certain: whether a snapshot that counts begins at `start`.
        """
        self.partition = partition
        self.next_offset = start
        """Offset of the record to feed next."""
        self.certain = certain or start == 0
        """Whether no later snapshot can contradict what is believed. The caller sets it once it
        has read far enough."""
        self._start = start
        self._config = config
        self._shard = Shard(partition, config) if start == 0 else None
        self._reader: SnapshotReader | None = None

    @classmethod
    def of(cls, shard: Shard) -> Replica:
        """Returns a replica that goes on from a former owner's shard, all of it acknowledged."""
        shard.follow()
        replica = cls(shard.partition, shard.config, shard.next_offset, certain=True)
        replica._shard = shard
        return replica

    @property
    def ready(self) -> bool:
        """Whether there is a shard that says what the journal says up to `next_offset`."""
        return self._shard is not None

    @property
    def shard(self) -> Shard:
        """The state that the journal gives up to `next_offset`. May be read only when `ready`."""
        assert self._shard is not None, "no snapshot was met yet"
        return self._shard

    def feed(self, offset: int, entry: Entry) -> None:
        """Takes the next record of the journal, which has no gaps.

        Why a gap stops the partition: a control record, of a stranger's transactional producer or
        of a mirror, occupies an offset and is not handed to readers. It would do no harm by itself:
        each record behind it in the same epoch was either predicted there, by an owner that saw the
        offset taken, or is void. But a reader can't tell it from a record that was lost, and the
        lost record may be a decision, or the OWNER record that makes all records behind it valid.
        This holds whether the replica is `certain` or not: a gap proves nothing against what is
        believed, and no snapshot behind it is known to be the latest that counts.

        Raises:
            CorruptRecordError: the record does not follow from those before it, or some before it
                are missing.
        """
        if offset != self.next_offset:
            raise missing(self.partition, self.next_offset, offset)
        self.next_offset = offset + 1
        if offset == self._start and self._shard is None and not begins_at(offset, entry):
            # The checkpoint led elsewhere, as after a restore: the snapshot that is met next may
            # be a void one.
            self.certain = False
        shard = self._shard
        try:
            if shard is not None and (self.certain or entry.epoch <= shard.epoch):
                shard.replay(offset, entry)
            else:
                self._shard = None
        except _SENSELESS as error:
            if self.certain:
                raise CorruptRecordError(
                    f"journal partition {self.partition} at offset {offset}: the record does not"
                    f" follow from those before it: {error!r}"
                ) from error
            self._shard = None
        if self._shard is None or not self.certain:
            self._read_snapshot(offset, entry)

    def read_decisions(self) -> None:
        """Reads the parts of the records fed that lazy decoding left unread.

        Raises:
            CorruptRecordError: a part does not decode; the message names the record's offset.
        """
        if self._shard is not None:
            self._shard.read_decisions()

    def _read_snapshot(self, offset: int, entry: Entry) -> None:
        found = self._feed_reader(offset, entry)
        if self._reader is not None and self._reader.torn:
            self._reader = None
        if self._reader is None and begins_at(offset, entry):
            self._reader = SnapshotReader(self.partition, self._config, offset, entry)
            found = self._feed_reader(offset, entry)
        if found is not None:
            self._reader = None
            if self._shard is None or self._shard.snapshot_offset == found.snapshot_offset:
                self._shard = found

    def _feed_reader(self, offset: int, entry: Entry) -> Shard | None:
        if self._reader is None:
            return None
        try:
            return self._reader.feed(offset, entry)
        except _SENSELESS:
            # The records between its chunks don't follow from it: the snapshot is void.
            self._reader = None
            return None


def missing(partition: int, first: int, found: int) -> CorruptRecordError:
    """Returns the error for a journal partition that has no records from `first` up to `found`."""
    return CorruptRecordError(
        f"journal partition {partition} at offset {first}: no record lies there, and the next"
        f" offset is {found}: a record was lost, or a transactional producer or a mirror wrote"
        " there; let nobody but coordinators write to the journal, and restore it from a copy"
    )
