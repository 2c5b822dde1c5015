"""A journal partition as somebody follows it who does not own it: a hot standby, or a loader. Pure.

It may begin at the journal's start or at a snapshot that is known to count, as the checkpoint's is.
Then it is *certain*: from there on it follows the true line of OWNER records.

Or it begins in the middle of a trimmed journal whose checkpoint is lost, or was overwritten by an
owner that woke up late. It does not know which epoch is current there, so the first snapshot it
meets may be void: a replaced owner's whose records in flight landed, all but one, where they were
predicted. The owners trim only below a snapshot that counts (`housekeeping.py`), so such a one, B,
follows; and at B these rules lead back to the truth, whatever void snapshot A was believed before:

- *a record that does not follow from what is believed proves that to be void.* (A lost COMMITTED
  that A took for durable is appended again by the next owner.)
- *an entry of a higher epoch than the current one proves that what was believed is void.* Each
  epoch was won before anybody wrote under it, so on the true line there is no such entry. A lies
  behind its epoch's end, or behind its surprise, so B is of a higher epoch;
- *a complete snapshot that is valid by what is believed replaces it.* The one line that a void A
  can share with B is the OWNER record that ended A's surprised epoch, and then B is valid by both.

Once it has read up to an end that was asked for after it began, B was met: it is certain.

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
"""What a record raises that decodes and can't be true: it must stop its partition alone, and this
process would end by what is not a `LogtxError`, then the next one that loads the partition."""


class Replica:
    """The shard that a journal partition's records make, in bounded memory."""

    def __init__(
        self, partition: int, config: ShardConfig, start: int = 0, *, certain: bool = False
    ) -> None:
        """Begin a journal partition.

        Args:
            partition: its number.
            config: for the shard.
            start: offset of the first record to feed: 0, or where there is or follows a snapshot.
            certain: a snapshot that counts begins at `start`.
        """
        self.partition = partition
        self.next_offset = start
        """Of the record to feed next."""
        self.certain = certain or start == 0
        """Whether no snapshot met later can say otherwise; set by whoever knows."""
        self._config = config
        self._shard = Shard(partition, config) if start == 0 else None
        self._reader: SnapshotReader | None = None

    @classmethod
    def of(cls, shard: Shard) -> Replica:
        """Go on from what a former owner knew, all of it acknowledged."""
        shard.follow()
        replica = cls(shard.partition, shard.config, shard.next_offset, certain=True)
        replica._shard = shard
        return replica

    @property
    def ready(self) -> bool:
        """Whether `shard` is what the journal says up to `next_offset`."""
        return self._shard is not None

    @property
    def shard(self) -> Shard:
        """All that the journal says; only once it is `ready`."""
        assert self._shard is not None, "no snapshot was met yet"
        return self._shard

    def feed(self, offset: int, entry: Entry) -> None:
        """Take the next record of the journal, which has no gaps.

        A control record, of a stranger's transactional producer or of a mirror, occupies an offset
        and is not handed to readers. It would do no harm by itself: what lies behind it in the
        same epoch was either predicted there, by an owner that saw the offset taken, or is void.
        But a reader can't tell it from a record that was lost, and the one lost may be a decision,
        or the OWNER record by which all behind is valid. So a gap stops the partition, whether
        `certain` or not: it proves nothing against what was believed, and no snapshot behind it
        can be known to be the latest that counts.

        Raises:
            CorruptRecordError: it does not follow from those before it, or some are missing.
        """
        if offset != self.next_offset:
            raise missing(self.partition, self.next_offset, offset)
        self.next_offset = offset + 1
        try:
            self._replay(offset, entry)
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
        """Read what was left unread of the records fed, if they were decoded lazily.

        Raises:
            CorruptRecordError: it does not decode; with its offset.
        """
        if self._shard is not None:
            self._shard.read_decisions()

    def _replay(self, offset: int, entry: Entry) -> None:
        shard = self._shard
        if shard is not None and (self.certain or entry.epoch <= shard.epoch):
            shard.replay(offset, entry)
        else:
            self._shard = None

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
            # What lies between its chunks does not follow from it: it is void.
            self._reader = None
            return None


def missing(partition: int, first: int, found: int) -> CorruptRecordError:
    """Why a journal partition can't be read whose offsets from `first` to `found` hold nothing."""
    return CorruptRecordError(
        f"journal partition {partition} at offset {first}: no record lies there, and the next"
        f" offset is {found}: a record was lost, or a transactional producer or a mirror wrote"
        " there; let nobody but coordinators write to the journal, and restore it from a copy"
    )
