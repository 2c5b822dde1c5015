"""`python -m tests.golden.generate NAME`: keep what today's code writes, as a new set.

A coordinator's tenures are driven through a fixed script, without I/O, clock or chance: what they
append is the journal, and what their effects ask for goes into data partitions through the real
codecs, as producers and the marker writer put it there. All that may lie in a log is in it: every
type of journal record, a snapshot in chunks and a torn one, void records of every kind, several
epochs, transactions in every state, claims; in the data partitions branches, sequences, duplicates,
late records and markers, malformed headers, and a transaction that is large enough to spill.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch

from logtx.coordinator.core import snapshot as snapshots
from logtx.coordinator.core.adopting import Answered, Handed, HandedOver, HandedWrites
from logtx.coordinator.core.decision import (
    ClearOffsets,
    Decision,
    TopicFacts,
    WriteMarkers,
    WriteOffsets,
)
from logtx.coordinator.core.dispatch import GONE_MS
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.offsets_lanes import OffsetsKey
from logtx.coordinator.core.sidecars import pointing
from logtx.coordinator.core.topic_homes import TopicHomes
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.coordinator.runtime.offsets_topic import encode_key, encode_value
from logtx.journal.acks import Acks
from logtx.journal.control import (
    OWN_BRANCH,
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    Marker,
    PartitionList,
    TopicPartition,
    encode_data_control,
    encode_marker,
)
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import PartitionId, Placed
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.fast_writer import COLUMNS_MIN
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import (
    AbortReason,
    Committed,
    DataPartition,
    Entry,
    OffsetStep,
    Owner,
)
from logtx.journal.sidecar import is_sidecar, main_partition, sidecar_of
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..consumer.records import FakeRecord
from ..coordinator.harness import (
    INCARNATION,
    PARTITION,
    Coordinator,
    Emitted,
    Event,
    Journal,
    step,
)
from .files import EXPECTED, HERE, GoldenLogs, write
from .show import text

A0, A1, B0, B1, B2, B3 = ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("b", 3)
GONE = ("gone", 0)
"""Of a topic that is deleted before it takes its marker."""
GONE_FACTS = TopicFacts(topic_id="id-gone", partition_count=1, record_max_bytes=1_000_000)
STILL = [PartitionId("still", number, "id-still") for number in range(2)]
"""Of a topic in metadata mode. No set has its records: it is the journal that says where."""
OTHER = 5
"""Number of another journal partition."""
STILL_FACTS = TopicFacts(topic_id="id-still", partition_count=2, record_max_bytes=1_000_000)
WIDE = [PartitionId("wide", number, "id-wide") for number in range(COLUMNS_MIN)]
"""Of a topic in metadata mode: decisions that write to all of them are in columns."""
QUEUED = PartitionId("a", 0, "id-a")
"""Of a topic that is a queue, too."""
SIDE = (sidecar_of("b"), 0)
"""Of a sidecar."""
SIDE_FACTS = TopicFacts(topic_id="id-aside", partition_count=4, record_max_bytes=1_000_000)
LARGE = 1_500
"""Records of the large transaction."""
CHUNK_BYTES = 300
"""A row or two of a snapshot: several chunks."""
Headers = list[tuple[str, bytes | None]]


class World:
    """Coordinators one after the other, and the log that they and producers write."""

    def __init__(self) -> None:
        """A first owner serves."""
        self.journal = Journal()
        self.data: dict[TopicPartition, list[FakeRecord]] = {}
        self.offsets: list[tuple[bytes, bytes | None]] = []
        self.due: deque[Emitted] = deque()
        """Markers that may be written, in order."""
        self._references = 0
        self._requests: dict[str, int] = {}
        self._owners: dict[TxId, commands.SessionId] = {}
        self._parts: dict[TxId, int] = {}
        """Number of the latest part of each transaction that has any."""
        self._written: dict[TxId, dict[TopicPartition, dict[int, tuple[int, int, int]]]] = {}
        self._pointers: dict[TxId, dict[TopicPartition, int]] = {}
        """Where the pointers of each transaction are, by sidecar partition."""
        self.coordinator = self.take_over("host-1:7070")

    def take_over(self, name: str) -> Coordinator:
        """A coordinator that loads the journal, wins the next epoch and redoes what it finds."""
        made = Coordinator(self.journal, name=name, listen=self._listen)
        if self._references:
            made.now = self.coordinator.now
        self.coordinator = made
        made.take_over()
        made.topics["gone"], made.topics[SIDE[0]] = GONE_FACTS, SIDE_FACTS
        made.topics[STILL[0].topic] = STILL_FACTS
        return made

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        if coordinator is not self.coordinator or not isinstance(event, Emitted):
            return
        if isinstance(event.effect, WriteOffsets | ClearOffsets):
            epoch = coordinator.shard.epoch
            key = encode_key(OffsetsKey(event.effect.group, PARTITION, INCARNATION, epoch))
            written = isinstance(event.effect, WriteOffsets)
            value = encode_value(event.effect.offsets) if written else None
            self.offsets.append((key, value))
        else:
            self.due.append(event)

    # ---- requests

    def ask(self, command: commands.Command) -> commands.Reply:
        """A request, its records durable, its answer."""
        self.send(command)
        self.coordinator.ack()
        return self.coordinator.replies[self._references]

    def send(self, command: commands.Command) -> None:
        """A request, whose records stay on their way."""
        self._references += 1
        self.coordinator.pass_time(5)
        self.coordinator.submit(command, self._references)

    def connect(self, name: str, nonce: int, generation: int | None = None) -> commands.SessionId:
        """A producer's session."""
        reply = self.ask(commands.Connect(producer_id=name, nonce=nonce, generation=generation))
        assert isinstance(reply, commands.Connected), reply
        return commands.SessionId(name, reply.generation, nonce)

    def to_begin(
        self, session: commands.SessionId, *partitions: TopicPartition, timeout_ms: int = 60_000
    ) -> commands.Begin:
        """The next BEGIN of a session."""
        number = self._requests[session.producer_id] = (
            self._requests.get(session.producer_id, 0) + 1
        )
        return commands.Begin(
            session=session,
            request_id=number,
            answered_below=number - 1,
            timeout_ms=timeout_ms,
            partitions=partitions,
        )

    def begin(
        self, session: commands.SessionId, *partitions: TopicPartition, timeout_ms: int = 60_000
    ) -> TxId:
        """A transaction."""
        reply = self.ask(self.to_begin(session, *partitions, timeout_ms=timeout_ms))
        assert isinstance(reply, commands.Began), reply
        self._owners[reply.txid] = session
        self._written[reply.txid] = {}
        return reply.txid

    def register(self, txid: TxId, partition: TopicPartition) -> None:
        """A partition joins a transaction, with the first offset written there."""
        first = min(first for first, _, _ in self._written[txid][partition].values())
        command = commands.AddPartitions(
            txid=txid,
            partitions=(partition,),
            session=self._owners[txid],
            first_offsets={partition: first},
        )
        assert isinstance(self.ask(command), commands.Done)

    def send_offsets(self, txid: TxId, group: str, *steps: OffsetStep) -> None:
        """Input offsets join a transaction."""
        session = self._owners[txid]
        reply = self.ask(commands.AddOffsets(session=session, txid=txid, group=group, steps=steps))
        assert isinstance(reply, commands.Done), reply

    def to_end(self, txid: TxId, action: commands.Action) -> commands.End:
        """A request to commit or abort."""
        writes = {
            partition: tuple(BranchRange(b, *facts) for b, facts in sorted(branches.items()))
            for partition, branches in self._written[txid].items()
        }
        parts = self._parts.get(txid, -1) + 1
        mains = [main_partition(key) for key in writes if is_sidecar(key[0])]
        return commands.End(
            session=self._owners[txid],
            txid=txid,
            action=action,
            writes=writes,
            parts=parts,
            main_ends={main: len(self.data.get(main, ())) for main in mains},
        )

    def add(self, txid: TxId, *partitions: TopicPartition) -> None:
        """A part names what branches wrote to these partitions so far."""
        part = self._parts[txid] = self._parts.get(txid, -1) + 1
        writes = {}
        for partition in partitions:
            branches = self._written[txid][partition]
            writes[partition] = tuple(BranchRange(b, *facts) for b, facts in branches.items())
            branches.clear()
        session = self._owners[txid]
        command = commands.AddWrites(session=session, txid=txid, part=part, writes=writes)
        assert self.ask(command) == commands.Done()

    def decide(self, txid: TxId, action: commands.Action = commands.Action.COMMIT) -> None:
        """A decision; its markers are due."""
        reply = self.ask(self.to_end(txid, action))
        assert isinstance(reply, commands.Outcome), reply

    def commit(self, txid: TxId) -> None:
        """Commit, and all that follows."""
        self.decide(txid)
        self.write_markers()
        self.finish(txid)

    def abort(self, txid: TxId) -> None:
        """Abort, and all that follows."""
        self.decide(txid, commands.Action.ABORT)
        self.write_markers()
        self.finish(txid)

    def finish(self, txid: TxId, *gone: TopicPartition) -> None:
        """All markers of a transaction are acknowledged, or their partitions gone."""
        self.coordinator.finish(txid.offset, gone, self._pointers.get(txid))
        self.coordinator.ack()

    # ---- data partitions

    def put(
        self,
        partition: TopicPartition,
        value: bytes | None,
        headers: Headers | None = None,
        key: bytes | None = None,
    ) -> int:
        """A record; its offset."""
        records = self.data.setdefault(partition, [])
        records.append(FakeRecord(len(records), headers, value, key))
        return len(records) - 1

    def plain(self, partition: TopicPartition, *values: bytes) -> None:
        """Records of no transaction."""
        for value in values:
            self.put(partition, value)

    def write(
        self,
        txid: TxId,
        partition: TopicPartition,
        values: Iterable[bytes],
        *,
        branch: int = OWN_BRANCH,
        sequences: Sequence[int] | None = None,
        counts: bool = True,
    ) -> None:
        """A transaction's records: of a branch, numbered, and among those that the commit names.

        Args:
            txid: the transaction.
            partition: where to.
            values: theirs.
            branch: whose they are.
            sequences: number of each; one that comes twice is a duplicate.
            counts: whether the commit states them.
        """
        offsets = []
        for index, value in enumerate(values):
            headers: Headers = [(TXID_HEADER, txid.to_bytes())]
            if branch != OWN_BRANCH or sequences is not None:
                sequence = None if sequences is None else sequences[index]
                control = DataControl(branch=branch, sequence=sequence)
                headers.append((TXCTL_HEADER, encode_data_control(control)))
            offsets.append(self.put(partition, value, headers))
        if counts:
            count = len(offsets) if sequences is None else len(set(sequences))
            branches = self._written[txid].setdefault(partition, {})
            first, _, before = branches.get(branch, (offsets[0], 0, 0))
            branches[branch] = first, offsets[-1], before + count

    def write_markers(self, *left_out: TopicPartition) -> None:
        """Write what is due, in order, except to some partitions."""
        while self.due:
            event = self.due.popleft()
            # What is asked for of modes and places is answered by hand.
            if isinstance(event.effect, WriteMarkers):
                self.write_marker(event, left_out)

    def write_marker(self, event: Emitted, left_out: Sequence[TopicPartition] = ()) -> None:
        """The markers of one decided transaction, those of sidecars behind their pointers."""
        assert isinstance(event.effect, WriteMarkers)
        transaction = event.effect.transaction
        asides = pointing(transaction)
        for partition, named in transaction.partitions.items():
            if partition in (*left_out, GONE) or partition in transaction.placed:
                continue
            if partition in transaction.since:
                continue
            aside = asides.get(partition)
            offset = self._put_marker(event, transaction, named, points_to=aside)
            if aside is not None:
                self._pointers.setdefault(transaction.txid, {})[aside.key] = offset
                self._put_marker(event, transaction, aside, pointer=offset)

    def _put_marker(
        self,
        event: Emitted,
        transaction: TransactionMetadata,
        named: DataPartition,
        *,
        points_to: DataPartition | None = None,
        pointer: int | None = None,
    ) -> int:
        assert transaction.commit_sequence is not None
        branches = tuple(transaction.branches.get(named.key, ()))
        marker = Marker(
            committed=transaction.state in (State.COMMITTING, State.COMMITTED),
            commit_sequence=transaction.commit_sequence,
            hw=event.hw,
            epoch=self.coordinator.shard.epoch,
            branches=branches,
            topic_id=named.topic_id if branches else "",
            sidecar=tuple(transaction.branches[points_to.key]) if points_to else (),
            since=transaction.since[points_to.key] if points_to else 0,
            sidecar_id=points_to.topic_id if points_to else "",
            pointer=pointer,
        )
        control = encode_marker(marker, PartitionList.of(transaction.partitions))
        headers: Headers = [(TXID_HEADER, transaction.txid.to_bytes()), (TXCTL_HEADER, control)]
        return self.put(named.key, None, headers)


def values(name: str, count: int) -> list[bytes]:
    """So many, all different."""
    return [f"{name} {number}".encode() for number in range(count)]


# ---- the script ---------------------------------------------------------------------------------


def _straight(w: World) -> tuple[commands.SessionId, commands.SessionId]:
    """Sessions, a claim, input offsets, two transactions side by side; one is aborted."""
    p, q = w.connect("p", nonce=1), w.connect("q", nonce=2**63 - 1)
    w.plain(A0, *values("input", 6))
    w.put(A0, b"keyed", [("trace", b"\x01"), ("empty", None)], key=b"k")
    w.put(A0, None, key=b"k")
    assert w.ask(commands.BindGroup(group="g", transaction_group="default")) == commands.Binding(
        "default"
    )
    claimed = w.ask(commands.ClaimOffsets(group="g", partitions=(A0, A1), claimant=11))
    assert isinstance(claimed, commands.Claimed)
    first = w.begin(p, B0)
    second = w.begin(q)
    w.write(first, B0, values("first", 2))
    w.write(second, B0, values("second", 3))
    w.plain(B0, b"between")
    w.write(first, B0, [b"first 2"])
    w.write(first, B1, values("first b1", 2))
    w.register(first, B1)
    w.send_offsets(first, "g", step(A0, None, 4, claimed.number))
    w.commit(first)
    w.plain(B0, b"behind the first")
    w.abort(second)
    w.write(second, B0, [b"too late for an aborted one"], counts=False)
    w.write(first, B1, [b"too late for a committed one"], counts=False)
    return p, q


def _branches(w: World, p: commands.SessionId) -> None:
    """Accepted branches, numbers, a duplicate, a stray, a record behind the decision."""
    txid = w.begin(p)
    w.write(txid, B1, [b"own 0"])
    w.write(txid, B1, values("branch", 4), branch=7, sequences=(0, 1, 1, 2))
    w.write(txid, B1, [b"own 1"])
    w.write(txid, B1, values("stray", 2), branch=9, counts=False)
    w.write(txid, B0, values("other branch", 2), branch=2**64 - 1)
    w.decide(txid)
    w.write(txid, B1, [b"behind the decision"], counts=False)
    w.write_markers()
    w.finish(txid)
    w.put(B1, b"malformed", [(TXID_HEADER, b"short")])


def _ends(w: World, p: commands.SessionId, q: commands.SessionId) -> None:
    """Every way for a transaction to end that needs no reload, but by commit."""
    expired = w.begin(p, timeout_ms=1_000)
    w.write(expired, B0, [b"expired"])
    w.register(expired, B0)
    w.write(expired, B2, [b"nobody was told of this partition"], counts=False)
    by_operator, by_retention = w.begin(p, B1), w.begin(p, B1)
    w.ask(commands.AbortTransaction(txid=by_operator))
    w.ask(commands.AbortTransaction(txid=by_retention, reason=AbortReason.RETENTION))
    w.coordinator.pass_time(1_000)
    w.coordinator.ack()
    fenced = w.begin(q, B1)
    newer = w.connect("q", nonce=3)
    left = w.begin(newer, B1)
    w.coordinator.detach("q", 3)
    w.coordinator.pass_time(3_000)
    w.coordinator.ack()
    key = w.connect("&default&pay", nonce=4)
    of_key = w.begin(key, B1)
    w.ask(commands.DeleteKey(name="&default&pay"))
    w.connect("twice", nonce=5, generation=7)
    doubled = w.begin(commands.SessionId("twice", 7, 5), B1)
    w.ask(commands.Connect(producer_id="twice", nonce=6, generation=7))
    w.write_markers()
    for txid in (expired, by_operator, by_retention, fenced, left, of_key, doubled):
        w.finish(txid)
    gone = w.begin(p, GONE, B0)
    w._written[gone][GONE] = {}
    w.write(gone, B0, [b"half of it is gone"])
    w.decide(gone)
    w.write_markers()
    w.finish(gone, GONE)


def _forgotten(w: World) -> None:
    """A producer, a group's offsets and its binding that were used once; an hour that ends."""
    once = w.connect("once", nonce=8, generation=3)
    w.ask(commands.BindGroup(group="once", transaction_group="default"))
    txid = w.begin(once)
    w.write(txid, B1, [b"with offsets that are forgotten"])
    w.send_offsets(txid, "once", step(A1, None, 1))
    w.commit(txid)
    w.ask(commands.ForgetProducer(producer_id="once"))
    w.ask(commands.ForgetGroup(group="once", topics=("gone",)))
    w.ask(commands.ForgetGroup(group="once"))
    w.ask(commands.UnbindGroup(group="once"))
    w.coordinator.tenure.end_hour((), ())
    w.coordinator.ack()


def _large(w: World, p: commands.SessionId) -> None:
    """A large transaction, small ones in its midst, a marker that comes twice."""
    large, small = w.begin(p, B2), w.begin(p, B2)
    lines = values("large", LARGE)
    w.write(large, B2, lines[: LARGE // 2])
    w.write(small, B2, values("small", 2))
    w.plain(B2, b"plain in its midst")
    w.decide(small)
    again = w.due[0]
    w.write_markers()
    w.finish(small)
    w.write(large, B2, lines[LARGE // 2 :])
    w.commit(large)
    w.write_marker(again)


def _aside(w: World, p: commands.SessionId) -> None:
    """Transactions in a sidecar: one that is there alone, one with branches that began in the
    topic, and one that is aborted; a pointer that comes twice."""
    alone, grown, aborted = w.begin(p), w.begin(p), w.begin(p)
    w.write(grown, B0, values("grown, in the topic", 2))
    w.write(alone, SIDE, values("alone", 2))
    w.write(grown, SIDE, values("grown, aside", 3), branch=31)
    w.write(aborted, SIDE, values("never", 2))
    w.write(alone, SIDE, [b"alone 2"])
    w.write(grown, SIDE, values("grown, own", 2))
    w.write(grown, SIDE, values("a stray", 1), branch=32, counts=False)
    w.plain(B0, b"between transactions aside")
    w.commit(grown)
    w.decide(alone)
    again = w.due[0]
    w.write_markers()
    w.finish(alone)
    w.abort(aborted)
    w.write(alone, SIDE, [b"too late for one aside"], counts=False)
    w.write_marker(again)


def _in_parts(w: World, p: commands.SessionId) -> TxId:
    """Commits that name what was written in parts: one that is finished, one that goes on, and one
    that is aborted."""
    txid = w.begin(p)
    w.write(txid, B0, values("in parts", 2), branch=21)
    w.write(txid, B1, values("in parts", 2), branch=21)
    w.add(txid, B0, B1)
    w.write(txid, B1, values("more", 1), branch=22)
    w.write(txid, B1, values("own", 1))
    w.write(txid, B2, values("in no part", 1), branch=22)
    w.commit(txid)
    aborted, goes_on = w.begin(p), w.begin(p)
    for each in (aborted, goes_on):
        w.write(each, B0, values("of a part", 1), branch=23)
        w.write(each, B0, values("of a part", 2), branch=2**64 - 2)
        w.add(each, B0)
    w.abort(aborted)
    return goes_on


def _snapshot(w: World, p: commands.SessionId) -> TxId:
    """A snapshot of several chunks, with a BEGIN between them."""
    opened = w.begin(p, B0)
    w.write(opened, B0, values("open over a snapshot", 2))
    w.send_offsets(
        opened,
        "g",
        OffsetStep(
            *(*A0, Place(4)),
            Position(o1=4, o2=6, o3=1, met={(0, INCARNATION): 9, (3, 1): 5}),
        ),
    )
    with patch.object(snapshots, "CHUNK_BYTES", CHUNK_BYTES):
        assert w.coordinator.tenure.snapshot(), "more than one chunk"
        w.begin(p)
        while w.coordinator.tenure.snapshot():
            w.coordinator.ack()
    w.coordinator.ack()
    assert w.coordinator.tenure.snapshot_offset is not None
    return opened


def _surprises(w: World, p: commands.SessionId) -> None:
    """Markers written again, a torn snapshot, and void records: behind a lost append, of a loser's
    bid, of a zombie, behind what a stranger wrote, and those that fill a lost tail."""
    again = w.begin(p)
    w.write(again, B1, [b"marked twice"])
    w.decide(again)
    w.write_markers()
    lost = w.begin(p)
    w.send(w.to_end(lost, commands.Action.ABORT))
    w.send(w.to_begin(p))
    w.send(w.to_begin(p))
    w.coordinator.lose(landed=[1, 2])
    w.write_markers()
    former = w.coordinator
    bid = Owner(replaces=NO_EPOCH, address="host-9:7070", process_nonce=9)
    w.journal.append(Entry(NO_EPOCH, INCARNATION + 1, bid))
    w.take_over("host-2:7070")
    w.write_markers()
    w.finish(again)
    with patch.object(snapshots, "CHUNK_BYTES", CHUNK_BYTES):
        assert w.coordinator.tenure.snapshot()
    w.coordinator.ack()
    former.submit(w.to_begin(p), "a zombie's")
    former.ack()
    w.send(w.to_begin(p))
    w.coordinator.lose(landed=1)
    for _ in range(3):
        w.journal.append(Entry(NO_EPOCH, 0, Committed(begin=NO_EPOCH)))
    w.take_over("[::1]:7070")


def _modes(w: World, p: commands.SessionId) -> None:
    """A topic that is switched to places and back, places where nothing waits, and input offsets
    that say what was passed of another home."""
    quiet = PartitionId("quiet", 0, "id-quiet")
    since = {0: 7, 1: 0}
    for record in (
        ModeChange("quiet", quiet.topic_id, Phase.TO_METADATA),
        ModeChange("quiet", quiet.topic_id, Phase.METADATA, since),
        Placed(w.journal.end, {quiet: 8}),
        ModeChange("quiet", quiet.topic_id, Phase.TO_MARKERS, with_records=False),
        ModeChange("quiet", quiet.topic_id, Phase.MARKERS, {0: 9, 1: 1}, with_records=False),
    ):
        w.coordinator.apply(Decision(records=(record,)))
        w.coordinator.ack()
    home = (3, INCARNATION)
    for start, passed in (None, Passed(home, 50)), (50, Passed(home, 60, 2)):
        txid = w.begin(p)
        before = None if start is None else Place(4, 0, Passed(home, start))
        at = Position(o1=4, o2=4, passed=passed)
        w.send_offsets(txid, "of places", OffsetStep("elsewhere", 0, before, at))
        w.commit(txid)


def _queue(w: World, p: commands.SessionId) -> None:
    """A queue: acknowledged plainly, rejected, by transactions that commit, abort, stay open."""
    w.ask(commands.Attach(group="queue", consumer=1, topics=("a",), starts={A0: 4}))
    w.coordinator.tenure.queue_ends_told({QUEUED: 100}, w.coordinator.now)
    for kind, offset in (AcknowledgeType.ACCEPT, 4), (AcknowledgeType.REJECT, 9):
        acks = (Acks(QUEUED, (_message(offset), _message(offset + 2))),)
        w.ask(commands.Acknowledge(group="queue", consumer=1, type=kind, acks=acks))
    for offset, action in (
        (20, commands.Action.COMMIT),
        (30, commands.Action.ABORT),
        (40, None),
    ):
        txid = w.begin(p)
        acks = (Acks(QUEUED, (_message(offset), _placed_message(offset + 1, 7))),)
        w.ask(commands.AddAcks(session=p, txid=txid, group="queue", acks=acks))
        if action is not None:
            w.decide(txid, action)
            w.write_markers()
            w.finish(txid)


def _eras(w: World) -> None:
    """Subscriptions that are reset, deleted, and made anew, with what is acknowledged behind that;
    a snapshot, and one more reset."""
    last_era = lambda: w.coordinator.shard.queues.subscriptions.last_era  # noqa: E731
    for group in ("reset", "deleted", "made anew"):
        _consume(w, group, 0, 3)
    starts = {QUEUED: 8}
    reset = commands.ResetSubscription(group="reset", era=0, starts=starts)
    assert w.ask(reset) == commands.Done()
    _consume(w, "reset", last_era(), 11)
    for group in ("deleted", "made anew"):
        assert w.ask(commands.DeleteSubscription(group=group, era=0)) == commands.Done()
    _consume(w, "made anew", last_era(), 5)
    _snapshot_now(w)
    before = w.coordinator.shard.queues.subscriptions.require("reset").era
    reset = commands.ResetSubscription(group="reset", era=before, starts=starts)
    assert w.ask(reset) == commands.Done()


def _consume(w: World, group: str, era: int, offset: int) -> None:
    """A consumer comes, acknowledges a message, and leaves."""
    w.ask(commands.Attach(group=group, consumer=1, topics=("a",), starts={A0: 2}))
    acks = (Acks(QUEUED, (_message(offset),)),)
    kind = AcknowledgeType.ACCEPT
    told = w.ask(commands.Acknowledge(group=group, consumer=1, type=kind, acks=acks, era=era))
    assert isinstance(told, commands.AckResults), told
    w.coordinator.tenure.consumer_gone(group, 1, w.coordinator.now)
    w.coordinator.pass_time(GONE_MS)


def _message(offset: int) -> Span:
    return Span(MessageId(offset), MessageId(offset, AT_OFFSET, 1))


def _placed_message(offset: int, sequence: int) -> Span:
    return Span(MessageId(offset, sequence, 3), MessageId(offset, sequence, 4))


def _placed(w: World, p: commands.SessionId) -> None:
    """Decisions that are placed: finished, half placed, waiting; and a snapshot that says so."""
    _switch(w, "still")
    done = _commit_in(w, p, 4, *STILL)
    _place(w, dict.fromkeys(STILL, 9))
    w.finish(done)
    _commit_in(w, p, 9, *STILL)
    _place(w, {STILL[1]: 14})
    _commit_in(w, p, 14, STILL[0])
    _placed_aside(w, p)
    _adopted(w)
    _handed_over(w, p)
    _wide(w, p)
    _snapshot_now(w)


def _placed_aside(w: World, p: commands.SessionId) -> None:
    """Decisions with records in the sidecar of a topic in metadata mode: finished, waiting."""
    aside = sidecar_of(STILL[0].topic)
    w.coordinator.topics[aside] = replace(STILL_FACTS, topic_id="id-still-aside")
    sides = [PartitionId(aside, p.partition, "id-still-aside") for p in STILL]
    done = _commit_in(w, p, 20, sides[1])
    _place(w, {STILL[1]: 14})
    w.coordinator.finish_sidecars()
    w.finish(done)
    _commit_in(w, p, 24, *sides)


def _switch(w: World, topic: str) -> None:
    """A topic is switched to places."""
    switch = ModeChange(topic, f"id-{topic}", Phase.TO_METADATA)
    w.coordinator.apply(Decision(records=(switch,)))
    w.coordinator.ack()
    w.coordinator.record_mode(topic, 3)
    w.coordinator.ack()


def _wide(w: World, p: commands.SessionId) -> None:
    """Decisions over many partitions: finished, half placed."""
    facts = replace(STILL_FACTS, topic_id="id-wide", partition_count=len(WIDE))
    w.coordinator.topics["wide"] = facts
    _switch(w, "wide")
    done = _commit_in(w, p, 4, *WIDE)
    _place(w, dict.fromkeys(WIDE, 9))
    w.finish(done)
    _commit_in(w, p, 9, *WIDE)
    _place(w, dict.fromkeys(WIDE[1:], 14))


def _adopted(w: World) -> None:
    """Transactions of another journal: half placed, aborted, refused."""
    other = HandedOver()
    unknown = PartitionId("nowhere", 0, "id-nowhere")
    accepted = (BranchRange(OWN_BRANCH, 20, 24, 3), BranchRange(31, 21, 21, 1))
    for begin, committed, partitions in (
        (50, True, STILL),
        (51, False, STILL[:1]),
        (52, True, [STILL[1], unknown]),
    ):
        txid = TxId(OTHER, INCARNATION, begin)
        branches = accepted if committed else ()
        writes = tuple(HandedWrites(each, branches, PARTITION) for each in partitions)
        other.replay_decided(Handed(txid, begin + 10, committed, writes), ())
    assert not w.coordinator.tenure.adopt((OTHER, INCARNATION), other)
    w.coordinator.ack()
    w.coordinator.pass_time(1_000)
    _place(w, {STILL[1]: 25})
    # In several records, of which the first is written.
    txid = TxId(OTHER, INCARNATION, 53)
    writes = tuple(HandedWrites(each, accepted, PARTITION) for each in STILL)
    other.replay_decided(Handed(txid, 63, True, writes), ())
    w.coordinator.shard.config = replace(w.coordinator.shard.config, adopt_bytes=1)
    assert w.coordinator.tenure.adopt((OTHER, INCARNATION), other)
    w.coordinator.ack()


def _handed_over(w: World, p: commands.SessionId) -> None:
    """Transactions in a topic whose home is another journal: refused, and one without an answer."""
    far = PartitionId("far", 0, "id-far")
    modes = TopicModes()
    for offset, phase in ((0, Phase.TO_METADATA), (1, Phase.METADATA)):
        modes.replay(offset, ModeChange(far.topic, far.topic_id, phase))
    homes = TopicHomes()
    homes.learn(OTHER, modes)
    w.coordinator.topics[far.topic] = replace(STILL_FACTS, topic_id=far.topic_id)
    w.coordinator.shard.watch_homes(homes)
    refused = _commit_in(w, p, 3, far)
    w.finish(refused)
    handed = w.coordinator.shard.handed.get(refused.offset)
    assert handed is not None
    w.coordinator.tenure.answered([Answered(refused.offset, handed.sequence, far, is_refused=True)])
    w.coordinator.ack()
    _commit_in(w, p, 9, far)
    aborted = w.begin(p, far.key)
    w.decide(aborted, commands.Action.ABORT)
    w.write_markers()
    w.coordinator.shard.homes = None


def _commit_in(w: World, p: commands.SessionId, first: int, *partitions: PartitionId) -> TxId:
    """A transaction with records in a topic in metadata mode, decided."""
    txid = w.begin(p)
    for partition in partitions:
        w._written[txid][partition.key] = {OWN_BRANCH: (first, first + 3, 3), 31: (first, first, 1)}
    w.decide(txid)
    w.write_markers()
    return txid


def _place(w: World, ends: Mapping[PartitionId, int]) -> None:
    """The ends of partitions are told, and become places."""
    assert w.coordinator.ask_ends()
    w.coordinator.tell_ends(ends)
    w.coordinator.ack()


def _snapshot_now(w: World) -> None:
    """A snapshot of several chunks."""
    with patch.object(snapshots, "CHUNK_BYTES", CHUNK_BYTES):
        assert w.coordinator.tenure.snapshot(), "more than one chunk"
        w.coordinator.ack()
        while w.coordinator.tenure.snapshot():
            w.coordinator.ack()
    w.coordinator.ack()


def _unfinished(w: World, p: commands.SessionId, opened: TxId) -> None:
    """One transaction in every state that is not final, and one that can only be aborted."""
    w.write(opened, B0, [b"and over three owners"])
    w.commit(opened)
    q = w.connect("q", nonce=8)
    chained = [w.begin(p), w.begin(p)]
    for number, txid in enumerate(chained):
        w.send_offsets(txid, "g", step(A1, number or None, number + 1))
    w.write(chained[0], B3, values("undecided", 2))
    w.register(chained[0], B3)
    doomed = w.begin(q, B3)
    w.send_offsets(doomed, "g", OffsetStep(*A0, Place(6, 1), Position.at(8)))
    aborting = w.begin(q, B3)
    w.write(aborting, B3, [b"aborting"])
    w.decide(aborting, commands.Action.ABORT)
    w.due.clear()
    committing = w.begin(q)
    w.write(committing, B0, [b"has its marker"])
    w.write(committing, B3, [b"has none yet"])
    w.decide(committing)
    w.write_markers(B3)
    w.send(commands.ClaimOffsets(group="g", partitions=(A0,), claimant=12))
    w.coordinator.ack(1)


def generate() -> GoldenLogs:
    """What today's code writes."""
    w = World()
    p, q = _straight(w)
    _branches(w, p)
    _ends(w, p, q)
    _forgotten(w)
    _large(w, p)
    _aside(w, p)
    goes_on = _in_parts(w, p)
    opened = _snapshot(w, p)
    _surprises(w, p)
    w.write(goes_on, B0, values("behind a snapshot", 1), branch=24)
    w.add(goes_on, B0)
    w.commit(goes_on)
    undecided = w.begin(p)
    w.write(undecided, B3, values("undecided, in parts", 2), branch=25)
    w.add(undecided, B3)
    _modes(w, p)
    _queue(w, p)
    _eras(w)
    _placed(w, p)
    _unfinished(w, p, opened)
    journal = [encode_entry(entry) for entry in w.journal.entries]
    return GoldenLogs(journal, dict(sorted(w.data.items())), w.offsets)


def main() -> None:
    """Keep a new set."""
    [name] = sys.argv[1:]
    logs = generate()
    expected = text(logs)
    write(logs, HERE / name, datetime.now(UTC).date().isoformat())
    (HERE / name / EXPECTED).write_text(expected)


if __name__ == "__main__":
    main()
