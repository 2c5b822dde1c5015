"""A data partition and its home journal in a small world, and the naive reading of both.

Items of the data partition are tuples:

- ("x",): a plain record
- ("d", begin): a record of the transaction that began at this journal offset
- ("m", begin, sequence, first, last, count, HW): a marker of it
- ("foreign", first): a marker of a transaction of another journal, whose one record lies at `first`
- ("fd",): that record
- ("f", begin): a record of the transaction of another journal that began there
- ("fm", begin, committed, sequence, first, last, count, HW): a marker of it
- ("s", phase, offset): a mode record of the MODE record at this journal offset

Records of the journal are pairs of an epoch and an item:

- ("owner", replaces), ("begin",)
- ("commit", begin, first, last, count, whether placed), ("abort", begin); behind that, of one in
  the sidecar, the number of its records there
- ("placed", upto, place), ("mode", phase, since)
- ("adopt", begin, sequence, whether committed, whether placed, first, last, count, settled);
  behind that, of one in several records, whether another one follows
- ("share", begin, sequence, whether committed, whether placed, partition, settled, whether another
  one follows): an ADOPT record of a partition that has no records and no reader

Those of the other journal:

- ("commit", begin, first, last, count, whether handed over), ("abort", begin, handed over);
  `IN_SHARES` if it is adopted in three records
- ("finished", begin)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, BranchRange, Marker, encode_marker
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import Entry, Owner
from logtx.journal.sidecar import to_delivered
from logtx.journal.txid import TxId

from ..coordinator.harness import INCARNATION, PARTITION
from .buffers import LogRecord
from .machines import Chains, Interner
from .tenures import txid_of

DATA: Final = PartitionId("a", 0, "id")
BESIDE: Final = (PartitionId("a", -1, "id"), PartitionId("a", 1, "id"))
"""Partitions of the same topic, without records and readers: the one comes before, the other behind
`DATA` where a transaction is adopted in several records."""
IN_SHARES: Final = "in shares"
"""What is handed over is adopted in a record for each of `BESIDE` and `DATA`."""
HOME: Final = (PARTITION, INCARNATION)
FOREIGN: Final = TxId(PARTITION + 1, INCARNATION, 7)
OTHER: Final = FOREIGN.journal
"""The journal that decides what the home adopts."""
ASIDE_STRIDE: Final = 4
"""Distance in the sidecar between two records of a transaction."""
Item = tuple[Any, ...]


class Told:
    """Sequences that grow at their end, by number, with items that are numbered too."""

    def __init__(self) -> None:
        self.numbers = Interner()
        self._chains = Chains()
        self._items: dict[int, tuple[Item, ...]] = {0: ()}
        self.lengths = self._chains.lengths

    def append(self, chain: int, item: Item) -> int:
        """Returns the sequence that results."""
        return self._chains.append(chain, self.numbers(item))

    def items(self, chain: int) -> tuple[Item, ...]:
        """Returns the items of a sequence."""
        found = self._items.get(chain)
        if found is None:
            values = self.numbers.values
            found = self._items[chain] = tuple(values[n] for n in self._chains.items(chain))
        return found

    def prefixes(self, chain: int) -> list[int]:
        """Returns a sequence and all that it grew from, the longest first; not the empty one."""
        found = []
        while chain:
            found.append(chain)
            chain = self._chains.parents[chain]
        return found

    def between(self, chain: int, start: int, stop: int) -> tuple[int, ...]:
        """Returns the numbers of the items from one place on, below another."""
        return self._chains.items(chain)[start:stop]


def record_of(offset: int, item: Item, number: int) -> LogRecord:
    """Returns an item of the data partition as a record."""
    match item:
        case ("d", begin):
            record = LogRecord(offset, [(TXID_HEADER, txid_of(begin).to_bytes())])
        case ("fd",):
            record = LogRecord(offset, [(TXID_HEADER, FOREIGN.to_bytes())])
        case ("m", begin, sequence, first, last, count, hw):
            accepted = (BranchRange(0, first, last, count),)
            record = _marker(offset, txid_of(begin), sequence, accepted, hw)
        case ("f", begin):
            record = LogRecord(offset, [(TXID_HEADER, foreign_txid(begin).to_bytes())])
        case ("fm", begin, committed, sequence, first, last, count, hw):
            accepted = (BranchRange(0, first, last, count),) if committed else ()
            record = _marker(offset, foreign_txid(begin), sequence, accepted, hw, committed)
        case ("foreign", first):
            record = _marker(offset, FOREIGN, 9, (BranchRange(0, first, first, 1),), 0)
        case _:
            record = LogRecord(offset)
    object.__setattr__(record, "number", number)
    return record


def foreign_txid(begin: int) -> TxId:
    """Returns the TxId of a transaction of the other journal."""
    return TxId(*OTHER, begin)


def _marker(
    offset: int,
    txid: TxId,
    sequence: int,
    branches: tuple[BranchRange, ...],
    hw: int,
    committed: bool = True,
) -> LogRecord:
    marker = Marker(
        committed=committed, commit_sequence=sequence, hw=hw, epoch=0, branches=branches
    )
    headers: list[tuple[str, bytes | None]] = [
        (TXID_HEADER, txid.to_bytes()),
        (TXCTL_HEADER, encode_marker(marker)),
    ]
    return LogRecord(offset, headers, payload=None)


@dataclass(frozen=True)
class Meant:
    """Stands for a journal record that has no format yet."""

    item: Item


def entry_of(offset: int, epoch: int, item: Item) -> Entry:
    """Returns a record of the journal as `EpochFilter` takes it."""
    record: Any = Meant(item)
    if item[0] == "owner":
        return Entry(item[1], INCARNATION, Owner(replaces=item[1], address="c", process_nonce=1))
    return Entry(epoch, INCARNATION, record, offset)


def placed_of(item: Item) -> Placed:
    """Returns what a PLACED record says."""
    return Placed(item[1], {DATA: item[2]})


def adoption_of(item: Item) -> Adoption:
    """Returns what an ADOPT record says."""
    match item:
        case ("share", begin, sequence, committed, placed, number, settled, more):
            [partition] = [p for p in BESIDE if p.partition == number]
            writes = (AdoptedWrites(partition, (), placed),)
            return Adoption(foreign_txid(begin), sequence, committed, writes, settled, more)
        case ("adopt", begin, sequence, committed, placed, first, last, count, settled, *more):
            accepted = (BranchRange(0, first, last, count),) if committed else ()
            writes = (AdoptedWrites(DATA, accepted, placed),)
            return Adoption(foreign_txid(begin), sequence, committed, writes, settled, any(more))
        case _:
            raise AssertionError(item)


def item_of(adoption: Adoption) -> Item:
    """Returns an ADOPT record as an item."""
    (each,) = adoption.writes
    told = adoption.txid.offset, adoption.sequence, adoption.committed, each.placed
    if each.partition != DATA:
        return ("share", *told, each.partition.partition, adoption.settled, adoption.more)
    accepted = [(r.first_offset, r.last_offset, r.count) for r in each.branches] or [(0, 0, 0)]
    more = (True,) if adoption.more else ()
    return ("adopt", *told, *accepted[0], adoption.settled, *more)


def change_of(item: Item) -> ModeChange:
    """Returns what a MODE record says."""
    return ModeChange(DATA.topic, DATA.topic_id, Phase(item[1]), dict(item[2]))


# ---- the naive reading --------------------------------------------------------------------------


@dataclass
class Decided:
    """What a journal says of a decided transaction."""

    sequence: int
    committed: bool
    first: int = 0
    last: int = 0
    count: int = 0
    placed: bool = False
    place: int | None = None
    aside: int = 0
    """Number of its records in the sidecar."""


def aside_of(begin: int, count: int) -> list[int]:
    """Returns the offsets in the sidecar of a transaction's records: between them lie others'."""
    return [ASIDE_STRIDE * n + begin for n in range(count)]


def valid(journal: Sequence[Item]) -> list[tuple[int, Item]]:
    """Returns the records of a journal that count, with their offsets."""
    epoch, surprised, found = NO_EPOCH, False, []
    for offset, (written, item) in enumerate(journal):
        if item[0] == "owner" and item[1] == epoch:
            epoch, surprised = offset, False
        elif written != epoch:
            surprised = True
        if not surprised:
            found.append((offset, item))
    return found


def decided(journal: Sequence[Item]) -> dict[int, Decided]:
    """Returns what is decided, by BEGIN, in commit-sequence order."""
    told: dict[int, Decided] = {}
    for offset, item in valid(journal):
        match item:
            case ("commit", begin, first, last, count, placed, *aside):
                each = Decided(offset, True, first, last, count, placed, aside=sum(aside))
                told.setdefault(begin, each)
            case ("abort", begin):
                told.setdefault(begin, Decided(offset, False))
            case ("placed", upto, place):
                for each in told.values():
                    if each.placed and each.place is None and each.sequence <= upto:
                        each.place = place
            case _:
                pass
    return told


def high_watermark(data: Sequence[Item], begins: Sequence[int], told: dict[int, Decided]) -> int:
    """Returns the HW that a marker states which lands now: the oldest unfinished BEGIN."""
    marked = {item[1] for item in data if item[0] == "m"}

    def is_finished(begin: int) -> bool:
        each = told.get(begin)
        if each is None:
            return False
        if not each.committed:
            return True
        return each.place is not None if each.placed else begin in marked

    return min(begin for begin in begins if not is_finished(begin))


def expected(data: Sequence[Item], told: dict[int, Decided], start: int = 0) -> list[int]:
    """Returns the offsets that a reader delivers who comes when all is over, in order."""
    due: list[tuple[int, int, list[int]]] = []
    ended = set()
    for begin, each in told.items():
        if each.place is not None:
            due.append((each.place, each.sequence, _records(data, begin, each)))
    for offset, item in enumerate(data):
        # Behind what is placed at an offset comes the record at it.
        behind = (offset, 1 << 60)
        if item == ("x",):
            due.append((*behind, [offset]))
        elif item[0] == "foreign":
            due.append((*behind, [item[1]]))
        elif item[0] == "m" and item[1] not in ended:
            ended.add(item[1])
            due.append((*behind, _records(data, item[1], told[item[1]])))
    return [offset for place, _, offsets in sorted(due) if place >= start for offset in offsets]


def _records(data: Sequence[Item], begin: int, told: Decided) -> list[int]:
    here = [o for o in range(told.first, told.last + 1) if data[o] == ("d", begin)]
    return [*here, *map(to_delivered, aside_of(begin, told.aside))]
