"""Journals for the tests of the store: a writer that appends what a coordinator may append."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from logtx.integration.inspect.metadata import Replay
from logtx.journal.control import BranchRange
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.position import Place, Position
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
)

PARTITION = 3
INCARNATION = 0x1A7E
TOPICS = ("orders", "payments", "invoices")
"""Transactions are marked in the first, placed in the second, and in the third handed over to the
home of another journal."""
GROUP = "workers"


def data(topic: int, partition: int, first_offset: int = -1) -> DataPartition:
    """Returns a data partition."""
    return DataPartition(TOPICS[topic], partition, f"id-{topic}", first_offset)


@dataclass
class Journal:
    """One journal partition, and what its writer knows."""

    incarnation: int = INCARNATION
    entries: list[tuple[int, Entry]] = field(default_factory=list)
    epoch: int = -1
    open: list[int] = field(default_factory=list)
    """BEGINs of open transactions."""
    named: dict[int, list[DataPartition]] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    decided: list[tuple[int, bool]] = field(default_factory=list)
    """(BEGIN, whether it is committed) of transactions that are decided and not finished."""
    unplaced: dict[int, set[PartitionId]] = field(default_factory=dict)
    """BEGIN → partitions in which it has no place yet."""
    sequences: dict[int, int] = field(default_factory=dict)
    data_end: int = 0
    input_end: int = 0
    topic_ids: tuple[str, ...] = ("id-0", "id-1", "id-2")

    def __post_init__(self) -> None:
        """Begins with an owner."""
        self.own()

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return len(self.entries)

    def data(self, topic: int, partition: int) -> DataPartition:
        """Returns a data partition, with the id of its topic."""
        return DataPartition(TOPICS[topic], partition, self.topic_ids[topic])

    def append(self, record: JournalRecord, *, predicted: int | None = None) -> int:
        """Appends a record of the current owner; void if another offset was predicted."""
        offset = self.end
        at = offset if predicted is None else predicted
        self.entries.append((offset, Entry(self.epoch, self.incarnation, record, at)))
        return offset

    def own(self) -> None:
        """A coordinator takes over."""
        owner = Owner(replaces=self.epoch, address="a:1", process_nonce=1)
        self.epoch = self.append(owner, predicted=-1)

    def zombie(self) -> None:
        """A former owner appends late, and all the rest of its epoch is void."""
        stale = Begin(
            producer_id="zombie",
            generation=0,
            session_nonce=0,
            request_id=0,
            answered_below=0,
            timeout_ms=1,
            started_ms=1,
        )
        self.append(stale, predicted=self.end + 7)
        self.append(stale)
        self.own()

    def lose_bid(self) -> None:
        """A candidate's bid for the empty partition comes second: it drew an incarnation too."""
        late = Owner(replaces=-1, address="b:1", process_nonce=2)
        self.entries.append((self.end, Entry(-1, self.incarnation + 9, late, -1)))
        self.own()

    def fill(self) -> None:
        """An operator fills a lost tail."""
        for _ in range(2):
            self.entries.append((self.end, Entry(-1, 0, Committed(begin=-1), -1)))
        self.own()

    def begin(self, partitions: Sequence[DataPartition] = ()) -> int:
        """Begins a transaction."""
        offset = self.end
        record = Begin(
            producer_id=f"p{offset % 3}",
            generation=offset,
            session_nonce=5,
            request_id=offset,
            answered_below=0,
            timeout_ms=60_000,
            started_ms=1_000 + offset,
            partitions=tuple(partitions),
        )
        self.append(record)
        self.open.append(offset)
        self.named[offset] = list(partitions)
        return offset

    def register(self, begin: int, partition: DataPartition) -> None:
        """Names a partition of a transaction."""
        self.append(AddPartitions(begin=begin, partitions=(partition,)))
        self.named[begin].append(partition)

    def move(self, begin: int, partition: int) -> None:
        """Moves a consumer group's offset."""
        came, self.input_end = self.input_end, self.input_end + 1
        step = OffsetStep(
            "input",
            partition,
            Place(came) if came else None,
            Position(o1=self.input_end, o2=self.input_end, met={(1, 2): 3}, topic_id="id-in"),
        )
        self.append(AddOffsets(begin=begin, group=GROUP, steps=(step,)))

    def runs(self, partition: DataPartition, branches: int = 1) -> PartitionWrites:
        """Writes to a partition, by several branches."""
        found = []
        for branch in range(branches):
            first = self.data_end
            self.data_end += 3
            found.append(BranchRange(branch * 2**63 % 2**64 + branch, first, first + 2, 2))
        return PartitionWrites(partition, tuple(found))

    def part(self, begin: int, partition: DataPartition) -> None:
        """Names a part of what was written."""
        part = self.parts.get(begin, 0)
        writes = (self.runs(partition, 2),)
        self.append(AddWrites(begin=begin, part=part, writes=writes))
        self.parts[begin] = part + 1
        self.named[begin].append(partition)

    def commit(self, begin: int, partitions: Sequence[DataPartition]) -> int:
        """Commits: what is named in parts, and writes to these partitions."""
        writes = tuple(self.runs(p, 1 + p.partition % 2) for p in partitions)
        added: tuple[DataPartition, ...] = ()
        if self.parts.get(begin):
            written = {
                w.partition.key
                for _, e in self.entries
                if isinstance(e.record, AddWrites) and e.record.begin == begin
                for w in e.record.writes
            }
            added = tuple({p.key: p for p in self.named[begin] if p.key in written}.values())
        keys = {p.key: p for p in (*partitions, *added)}
        placed = {k: p for k, p in keys.items() if p.topic == TOPICS[1]}
        handed = [p.key for p in partitions if p.topic == TOPICS[2]]
        offset = self.append(
            PrepareCommit(
                begin=begin,
                writes=writes,
                decided_ms=5_000 + self.end,
                added=added,
                placed=tuple(placed),
                handed=tuple((key, PARTITION + 1) for key in handed),
            )
        )
        self.open.remove(begin)
        self.decided.append((begin, True))
        self.sequences[begin] = offset
        self.unplaced[begin] = {PartitionId(*k, p.topic_id) for k, p in placed.items()}
        return offset

    def abort(self, begin: int) -> None:
        """Aborts a transaction."""
        reason = AbortReason.EXPIRED
        self.append(PrepareAbort(begin=begin, reason=reason, decided_ms=5_000 + self.end))
        self.open.remove(begin)
        self.decided.append((begin, False))
        self.unplaced[begin] = set()

    def place(self, numbers: Sequence[int], *, gone: bool = False, upto: int | None = None) -> None:
        """Places what waits in some partitions."""
        decided = max(self.sequences.values(), default=0)
        record = Placed(
            decided if upto is None else upto,
            {
                PartitionId(TOPICS[1], n, self.topic_ids[1]): GONE if gone else self.data_end + 5
                for n in numbers
            },
        )
        self.append(record)
        for begin, waiting in self.unplaced.items():
            if self.sequences.get(begin, -1) <= record.upto:
                waiting.difference_update(record.ends)

    def finish(self, which: int) -> None:
        """Finishes one of the transactions that have all their places, if there is one."""
        ready = [d for d in self.decided if not self.unplaced[d[0]]]
        if not ready:
            return
        begin, committed = ready[which % len(ready)]
        self.append(Committed(begin=begin) if committed else Aborted(begin=begin))
        self.decided.remove((begin, committed))

    def replay(self) -> Replay:
        """Returns the naive replay of all of it."""
        replay = Replay(PARTITION, EpochFilter())
        for offset, entry in self.entries:
            replay.feed(offset, entry)
        return replay


Action = tuple[str, int, int]
ACTIONS = (
    "begin",
    "begin-named",
    "register",
    "move",
    "part",
    "commit",
    "commit-handed",
    "commit-wide",
    "commit-nothing",
    "abort",
    "place",
    "place-old",
    "gone",
    "finish",
    "own",
    "zombie",
    "lost-bid",
    "fill",
)


def write(actions: Sequence[Action]) -> Journal:
    """Returns the journal that some actions make; one that can't be is passed over."""
    journal = Journal()
    for action in actions:
        act(journal, action)
    return journal


def act(journal: Journal, action: Action) -> None:
    """Does one action, if it can be done."""
    what, one, two = action
    oldest = min(journal.sequences.values(), default=0)
    alone: dict[str, Callable[[], object]] = {
        "begin": journal.begin,
        "begin-named": lambda: journal.begin([data(one % 2, two % 3, one - 1)]),
        "own": journal.own,
        "zombie": journal.zombie,
        "lost-bid": journal.lose_bid,
        "fill": journal.fill,
        "place": lambda: journal.place([one % 3, two % 3]),
        "place-old": lambda: journal.place([one % 3], upto=oldest),
        "gone": lambda: journal.place([one % 3], gone=True),
        "finish": lambda: journal.finish(one),
    }
    if what in alone:
        alone[what]()
    elif journal.open:
        begin, there = journal.open[one % len(journal.open)], data(two % 2, one % 3)
        wide = [data(topic, number) for topic in range(3) for number in range(3)]
        of_one: dict[str, Callable[[], object]] = {
            "register": lambda: journal.register(begin, data(two % 2, one % 3, two - 1)),
            "move": lambda: journal.move(begin, two % 2),
            "part": lambda: journal.part(begin, there),
            "commit": lambda: journal.commit(begin, [there]),
            "commit-handed": lambda: journal.commit(begin, [data(2, two % 3), there]),
            "commit-wide": lambda: journal.commit(begin, wide),
            "commit-nothing": lambda: journal.commit(begin, []),
            "abort": lambda: journal.abort(begin),
        }
        of_one[what]()
