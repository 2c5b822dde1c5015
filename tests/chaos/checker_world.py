"""A run in memory, made by hand: logs, journal and history, as the checker gets them.

Headers and journal records are encoded by logtx itself, so every test also proves that the
checker's own parsers read what logtx writes. The order of delivery is kept by the world itself:
a transaction is appended to it when its marker is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from logtx.chaos.checker import Verdict, store
from logtx.chaos.checker.assemble import RunSettings, assemble
from logtx.chaos.checker.core.history import History, in_order
from logtx.chaos.checker.core.told import Told
from logtx.chaos.checker.core.wire import read_txid
from logtx.chaos.checker.judge import judge
from logtx.journal.control import (
    BranchRange,
    Marker,
    ModeRecord,
    encode_marker,
    encode_mode_record,
)
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    Begin,
    Claim,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)
from logtx.journal.sidecar import sidecar_of, to_delivered
from logtx.journal.txid import TxId

IN, OUT = "chaos", "chaos-out"
GROUP = "workers"
INCARNATION = 7
Partition = tuple[str, int]
Where = tuple[int, int] | tuple[int, int, tuple[int, int, int]]
"""A consumer's place: o2, o3, and what was passed: journal, commit sequence, records taken."""


@dataclass
class Txn:
    """An operation, and its transaction in the logs."""

    world: World
    process: str
    name: str
    txid: TxId
    journal: int
    offsets: dict[Partition, list[int]] = field(default_factory=lambda: defaultdict(list))
    values: list[str] = field(default_factory=list)
    aside: dict[Partition, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Main partition → offsets of its records in the sidecar."""
    since: dict[Partition, int] = field(default_factory=dict)
    pointed: set[Partition] = field(default_factory=set)
    """Main partitions with a pointer."""
    sequence: int = 0
    adopted_at: dict[int, int] = field(default_factory=dict)
    """Home → offset of its ADOPT record."""

    def sequence_in(self, home: int) -> int:
        """Its commit sequence in a journal that places it."""
        return self.sequence if home == self.journal else self.adopted_at[home]

    def ranges(self, partition: Partition) -> tuple[BranchRange, ...]:
        """What it wrote in a partition."""
        offsets = self.offsets[partition]
        return (BranchRange(0, offsets[0], offsets[-1], len(offsets)),)

    def append(
        self,
        number: int = 0,
        topic: str = IN,
        source: tuple[int, int] | None = None,
        *,
        ack: bool = True,
        arrive: bool = True,
        key: int | None = None,
    ) -> str:
        """Produce a value: the event, the record, the acknowledgement."""
        world, partition = self.world, (topic, number)
        value = world.append_event(self.process, self.name, partition, source, key)
        self.values.append(value)
        if arrive:
            offset = world.record(partition, value, self.name, self.txid, source, key)
            self.offsets[partition].append(offset)
            if ack:
                world.acked(self.process, partition, offset, value)
        return value

    def append_aside(self, number: int = 0, topic: str = IN, *, ack: bool = True) -> str:
        """Produce a value to the sidecar of a partition."""
        world, partition = self.world, (topic, number)
        value = world.append_event(self.process, self.name, partition)
        self.values.append(value)
        offset = world.record_aside(partition, value, self.name, self.txid)
        self.aside[partition].append(offset)
        if ack:
            world.acked(self.process, partition, to_delivered(offset), value)
        return value

    @property
    def mains(self) -> list[Partition]:
        """The partitions in which it is delivered."""
        return list(dict.fromkeys((*self.offsets, *self.aside)))

    def delivers(self, partition: Partition) -> list[int]:
        """Offsets of what is delivered in a partition, in order."""
        aside = map(to_delivered, self.aside.get(partition, ()))
        return [*self.offsets.get(partition, ()), *aside]

    def point(self, partition: Partition, **how: Any) -> int:
        """A pointer, which delivers; `how` are fields of it."""
        marker = Marker(
            committed=True,
            commit_sequence=self.sequence,
            hw=0,
            epoch=0,
            branches=self.ranges(partition) if partition in self.offsets else (),
            sidecar=_range(self.aside[partition]),
            since=self.since[partition],
        )
        control = encode_marker(replace(marker, **how))
        headers: store.Headers = [("TxId", self.txid.to_bytes()), ("TxCtl", control)]
        self.world.show(partition, self)
        self.pointed.add(partition)
        return self.world.mark(partition, headers, self.name, self.delivers(partition))

    def mark_aside(self, partition: Partition, pointer: int | None, *, commit: bool = True) -> None:
        """The marker of the sidecar."""
        sidecar = sidecar_of(partition[0]), partition[1]
        marker = Marker(
            committed=commit,
            commit_sequence=self.sequence,
            hw=0,
            epoch=0,
            branches=_range(self.aside[partition]) if commit else (),
            pointer=pointer,
        )
        headers: store.Headers = [("TxId", self.txid.to_bytes()), ("TxCtl", encode_marker(marker))]
        log = self.world.asides[sidecar]
        log.append(store.RawRecord(len(log), None, headers))

    def claim_input(self, number: int, start: int | None, end: int, topic: str = IN) -> None:
        """Offsets that the commit is to consume, into the journal and the history."""
        step = OffsetStep(
            topic, number, None if start is None else Place(start, 0), Position.at(end)
        )
        record = AddOffsets(begin=self.txid.offset, group=GROUP, steps=(step,))
        self.world.journal_append(self.journal, record)
        self.world.claims[self.name].append([GROUP, topic, number, start, end])

    def claim_places(self, number: int, start: Where | None, end: Where) -> None:
        """The same, by places."""
        at = _place(end)
        to = Position(o1=at.o2, o2=at.o2, o3=at.o3, passed=at.passed)
        step = OffsetStep(IN, number, None if start is None else _place(start), to)
        record = AddOffsets(begin=self.txid.offset, group=GROUP, steps=(step,))
        self.world.journal_append(self.journal, record)
        self.world.claims[self.name].append(
            [GROUP, IN, number, None if start is None else list(start), list(end)]
        )

    def ask(self) -> Txn:
        """The event `commit`."""
        iov = self.world.claims.get(self.name, [])
        self.world.say(self.process, "commit", op=self.name, **({"iov": iov} if iov else {}))
        return self

    def decide(self, *, commit: bool = True, hand: Sequence[Partition] = ()) -> Txn:
        """The decision's record in the journal, which hands some partitions over to their homes."""
        record: JournalRecord
        handed = tuple((p, self.world.homes.get(p[0], 1 - self.journal)) for p in hand)
        if commit:
            writes = [PartitionWrites(DataPartition(*p), self.ranges(p)) for p in self.offsets]
            self.since = {p: len(self.world.logs[p]) for p in self.aside}
            sidecars = {p: (sidecar_of(p[0]), p[1]) for p in self.aside}
            writes += [
                PartitionWrites(DataPartition(*sidecars[p]), _range(o))
                for p, o in self.aside.items()
            ]
            writes += [
                PartitionWrites(DataPartition(*p), ()) for p in self.aside if p not in self.offsets
            ]
            record = PrepareCommit(
                begin=self.txid.offset,
                writes=tuple(writes),
                decided_ms=0,
                placed=tuple(p for p in self.mains if self.world.places_in(p, self.journal)),
                handed=handed,
                sidecar_since=tuple((sidecars[p], since) for p, since in self.since.items()),
            )
        else:
            record = PrepareAbort(
                begin=self.txid.offset,
                reason=AbortReason.REQUESTED,
                decided_ms=0,
                handed=handed,
            )
        self.sequence = self.world.journal_append(self.journal, record)
        return self

    def adopt(
        self,
        *partitions: Partition,
        refuses: Sequence[Partition] = (),
        commit: bool = True,
        **how: Any,
    ) -> Txn:
        """The ADOPT record of the home of these partitions; `how` are fields of it."""
        home = self.world.homes.get(partitions[0][0], 1 - self.journal)
        writes = tuple(
            AdoptedWrites(PartitionId(*p), self.ranges(p) if commit else (), p not in refuses)
            for p in partitions
        )
        record = Adoption(self.txid, self.sequence, commit, writes)
        self.adopted_at[home] = self.world.journal_append(home, replace(record, **how))
        return self

    def place(self, *partitions: Partition, **how: Any) -> Txn:
        """A PLACED record, up to this transaction, of these partitions or all of its; see World."""
        self.world.place(self, partitions or tuple(self.mains), **how)
        return self

    def mark(self, partition: Partition, *, commit: bool = True, hw: int = 0) -> int:
        """A marker; the first one delivers."""
        offsets = self.offsets[partition]
        marker = Marker(
            committed=commit,
            commit_sequence=self.sequence,
            hw=hw,
            epoch=0,
            branches=self.ranges(partition) if commit else (),
        )
        headers = [("TxId", self.txid.to_bytes()), ("TxCtl", encode_marker(marker))]
        return self.world.mark(partition, headers, self.name, offsets if commit else [])

    def mark_all(self, *, commit: bool = True) -> Txn:
        """Markers in all partitions, and the record that says so."""
        for partition in list(self.offsets):
            self.mark(partition, commit=commit)
        return self.finish(commit=commit)

    def finish(self, *, commit: bool = True) -> Txn:
        """The record that says that all markers are written."""
        begin = self.txid.offset
        finished = Committed(begin=begin) if commit else Aborted(begin=begin)
        self.world.journal_append(self.journal, finished)
        return self

    def end(self, outcome: str) -> Txn:
        """The event `end`."""
        told = {}
        if outcome == "committed":
            told = {"txid": self.txid.to_bytes().hex(), "commit_sequence": self.sequence}
        self.world.say(self.process, "end", op=self.name, outcome=outcome, **told)
        return self

    def commit(self) -> Txn:
        """All of it, as it should be."""
        self.ask().decide()
        world = self.world
        if placed := [p for p in self.mains if world.places_in(p, self.journal)]:
            self.place(*placed)
        for partition in self.mains:
            if partition in self.aside:
                place = len(world.logs[partition])
                self.mark_aside(partition, place if partition in placed else self.point(partition))
            elif partition not in placed:
                self.mark(partition)
        return self.finish().end("committed")

    def abort(self) -> Txn:
        """The same of an abort."""
        self.decide(commit=False)
        for partition in self.aside:
            self.mark_aside(partition, None, commit=False)
        return self.mark_all(commit=False).end("aborted")


def _range(offsets: Sequence[int]) -> tuple[BranchRange, ...]:
    return (BranchRange(0, offsets[0], offsets[-1], len(offsets)),) if offsets else ()


def _place(where: Where) -> Place:
    o2, o3, *passed = where
    if not passed:
        return Place(o2, o3)
    journal, sequence, taken = passed[0]
    return Place(o2, o3, Passed((journal, INCARNATION), sequence, taken))


class World:
    """Everything of one run. A tick passes between any two events."""

    def __init__(
        self,
        system: str = "logtx",
        partitions: int = 2,
        journals: int = 1,
        outputs: tuple[str, ...] = (OUT,),
    ) -> None:
        self.system = system
        self.topics = (IN, *outputs)
        self.now = 0
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.logs: dict[Partition, list[store.RawRecord]] = {
            (topic, number): [] for topic in self.topics for number in range(partitions)
        }
        self.asides: dict[Partition, list[store.RawRecord]] = {}
        """Partitions of sidecars."""
        self.order: dict[Partition, list[int]] = {partition: [] for partition in self.logs}
        """As readers of committed records are to be given them."""
        self.raw: dict[Partition, list[int]] = {partition: [] for partition in self.logs}
        """As those of uncommitted ones may be."""
        self.placed: dict[Partition, list[tuple[int, Txn]]] = {p: [] for p in self.logs}
        """Places, and what is delivered there, in order."""
        self.places: dict[Partition, dict[int, Where]] = {p: {} for p in self.logs}
        """Of each delivered record, where a consumer's position stands behind it."""
        self.stores: list[Told] = []
        self.homes: dict[str, int] = {}
        """Topic in metadata mode → its home."""
        self.passed: dict[Partition, int] = {}
        """Partition that is followed → commit sequence of what was placed last, or of the MODE
        record."""
        self.starts: dict[Partition, int] = dict.fromkeys(self.logs, 0)
        self.stable: dict[Partition, int] = {}
        """Kafka's last stable offset, where it is not the end."""
        self.values: dict[tuple[Partition, int], tuple[str, str | None, TxId | None]] = {}
        self.journals: list[list[bytes]] = [[] for _ in range(journals)]
        self.journal_starts: list[int] = [0] * journals
        self.epochs: dict[int, int] = {}
        self.claims: dict[str, list[list[object]]] = defaultdict(list)
        for number in range(journals):
            self.own(number)
        self._operations = 0
        self._values = 0

    # ---- history --------------------------------------------------------------------------------

    def say(self, process: str, event: str, **fields: Any) -> dict[str, Any]:
        """An event of a process."""
        self.now += 10
        said = {"at": self.now, "event": event, **fields}
        self.events[process].append(said)
        return said

    def append_event(
        self,
        process: str,
        op: str | None,
        partition: Partition,
        source: tuple[int, int] | None = None,
        key: int | None = None,
    ) -> str:
        """The event `append` of the process' next value."""
        self._values += 1
        value = f"{process}:{self._values}"
        topic, number = partition
        more = {} if source is None else {"i": list(source)}
        key = number if key is None else key
        self.say(process, "append", op=op, topic=topic, partition=number, k=key, v=value, **more)
        return value

    def acked(self, process: str, partition: Partition, offset: int, value: str) -> None:
        """The event `acked`."""
        topic, number = partition
        self.say(process, "acked", topic=topic, partition=number, offset=offset, v=value)

    # ---- logs -----------------------------------------------------------------------------------

    def record(
        self,
        partition: Partition,
        value: str,
        op: str | None = None,
        txid: TxId | None = None,
        source: tuple[int, int] | None = None,
        key: int | None = None,
    ) -> int:
        """A record of the log, of whatever origin; returns its offset."""
        offset = len(self.logs[partition])
        more = {} if source is None else {"i": list(source)}
        key = partition[1] if key is None else key
        body = json.dumps({"k": key, "v": value, "t": op, **more}).encode()
        headers: store.Headers = []
        if txid is not None and self.system == "logtx":
            headers = [("TxId", txid.to_bytes())]
        self.logs[partition].append(store.RawRecord(offset, body, headers))
        self.values[partition, offset] = value, op, txid
        self.raw[partition].append(offset)
        return offset

    def show(self, partition: Partition, txn: Txn) -> None:
        """Readers of uncommitted records are given what a transaction has in the sidecar, once."""
        aside = map(to_delivered, txn.aside.get(partition, ()))
        self.raw[partition] += [o for o in aside if o not in self.raw[partition]]

    def record_aside(self, partition: Partition, value: str, op: str, txid: TxId) -> int:
        """A record of a partition's sidecar; returns its offset there."""
        log = self.asides.setdefault((sidecar_of(partition[0]), partition[1]), [])
        body = json.dumps({"k": partition[1], "v": value, "t": op}).encode()
        log.append(store.RawRecord(len(log), body, [("TxId", txid.to_bytes())]))
        offset = len(log) - 1
        self.values[partition, to_delivered(offset)] = value, op, txid
        return offset

    def plain(self, process: str = "producer-0.0", number: int = 0, *, ack: bool = True) -> str:
        """A plain record."""
        partition = IN, number
        value = self.append_event(process, None, partition)
        offset = self.record(partition, value)
        self.order[partition].append(offset)
        self.places[partition][offset] = self._where(partition, offset + 1)
        if ack:
            self.acked(process, partition, offset, value)
        return value

    def mark(
        self, partition: Partition, headers: store.Headers, op: str, delivers: list[int]
    ) -> int:
        """A marker, or a control record of Kafka's, which no reader is given."""
        offset = len(self.logs[partition])
        self.logs[partition].append(store.RawRecord(offset, None, headers))
        if not any(delivered in self.places[partition] for delivered in delivers):
            self.order[partition] += delivers
            for index, delivered in enumerate(delivers, 1):
                last = index == len(delivers)
                place = (offset + 1, 0) if last else (offset, index)
                self.places[partition][delivered] = self._where(partition, *place)
        if self.system == "kafka":
            self.order[partition].sort()
        assert op
        return offset

    def _where(self, partition: Partition, o2: int, o3: int = 0, taken: int = 0) -> Where:
        sequence = self.passed.get(partition)
        if sequence is None:
            return o2, o3
        return o2, o3, (self.homes[partition[0]], sequence, taken)

    # ---- places ---------------------------------------------------------------------------------

    def places_in(self, partition: Partition, journal: int) -> bool:
        """Whether a journal places in a partition what it decides now."""
        return self.homes.get(partition[0]) == journal

    def switch(self, topic: str = IN, journal: int = 0, *, records: bool = True) -> dict[str, int]:
        """Switch a topic to the other mode; the offsets of its MODE records, by phase."""
        places = topic not in self.homes
        phases = [Phase.TO_METADATA, Phase.METADATA]
        if not places:
            phases = [Phase.TO_MARKERS, Phase.MARKERS]
        began = self.journal_append(journal, ModeChange(topic, "", phases[0], with_records=records))
        since = {}
        for partition in [p for p in self.logs if p[0] == topic]:
            since[partition[1]] = len(self.logs[partition])
            if records:
                self.mode_record(partition, journal, began, places=places)
            if places:
                self.passed[partition] = began
            else:
                del self.passed[partition]
        if not places:
            del self.homes[topic]
        change = ModeChange(topic, "", phases[1], since, with_records=records)
        ended = self.journal_append(journal, change)
        if places:
            self.homes[topic] = journal
        return {phases[0]: began, phases[1]: ended}

    def mode_record(
        self, partition: Partition, journal: int, began: int, *, places: bool = True
    ) -> int:
        """A mode record; returns its offset."""
        offset = len(self.logs[partition])
        headers = [
            ("TxId", TxId(journal, INCARNATION, began).to_bytes()),
            ("TxCtl", encode_mode_record(ModeRecord(places))),
        ]
        self.logs[partition].append(store.RawRecord(offset, None, headers))
        return offset

    def place(
        self,
        txn: Txn,
        partitions: Sequence[Partition],
        *,
        epoch: int | None = None,
        at: int | None = None,
        home: int | None = None,
        delivers: bool = True,
    ) -> int:
        """A PLACED record up to a transaction, which delivers it if it is the first that counts.

        Args:
            txn: the last transaction that it covers; the only one that is delivered.
            partitions: which it names, all of one home.
            epoch: of its writer, if it is not the owner's.
            at: the place in all of them; None: their ends.
            home: which places, if it is not the home of now.
            delivers: whether readers are to be given the transaction there.
        """
        places = {p: len(self.logs[p]) if at is None else at for p in partitions}
        ends = {PartitionId(*partition): place for partition, place in places.items()}
        if home is None:
            home = self.homes.get(partitions[0][0], txn.journal)
        placed = Placed(txn.sequence_in(home), ends)
        offset = self.journal_append(home, placed, epoch=epoch)
        for partition in places if delivers else ():
            self.deliver_placed(partition, txn, places[partition])
        return offset

    def deliver_placed(
        self, partition: Partition, txn: Txn, place: int, *, shows: bool = True
    ) -> None:
        """Readers are to be given a transaction at its place; those of uncommitted records what it
        has in the sidecar, if it `shows`."""
        offsets = txn.delivers(partition)
        if shows:
            self.show(partition, txn)
        self.placed[partition].append((place, txn))
        self.order[partition] += offsets
        for taken, offset in enumerate(offsets[:-1], 1):
            self.places[partition][offset] = self._where(partition, place, 0, taken)
        self.passed[partition] = txn.sequence_in(self.homes[partition[0]])
        if offsets:
            self.places[partition][offsets[-1]] = self._where(partition, place)

    # ---- journal --------------------------------------------------------------------------------

    def journal_append(
        self, number: int, record: JournalRecord, *, epoch: int | None = None, shift: int = 0
    ) -> int:
        """A record of the current epoch, where it was decided for."""
        journal = self.journals[number]
        offset = len(journal)
        entry = Entry(
            self.epochs[number] if epoch is None else epoch, INCARNATION, record, offset + shift
        )
        journal.append(encode_entry(entry))
        return offset

    def own(self, number: int = 0) -> None:
        """A new owner of a journal partition."""
        journal, replaces = self.journals[number], self.epochs.get(number, -1)
        record = Owner(replaces=replaces, address="a:1", process_nonce=1)
        self.epochs[number] = len(journal)
        journal.append(encode_entry(Entry(replaces, INCARNATION, record)))

    def generation(self, producer_id: str, generation: int, number: int = 0) -> None:
        """A producer is given a generation."""
        self.journal_append(
            number,
            ProducerRecord(
                producer_id=producer_id, generation=generation, session_nonce=1, owner="default"
            ),
        )

    def claim(self, *numbers: int, journal: int = 0) -> None:
        """A consumer is given input partitions."""
        partitions = tuple((IN, number) for number in numbers)
        self.journal_append(journal, Claim(group=GROUP, claimant=1, partitions=partitions))

    def begin(
        self,
        process: str = "producer-0.0",
        journal: int = 0,
        producer_id: str | None = None,
        generation: int = 0,
    ) -> Txn:
        """An operation, and its BEGIN."""
        self._operations += 1
        name = f"{process}/{self._operations}"
        self.say(process, "begin", op=name)
        record = Begin(
            producer_id=producer_id or process,
            generation=generation,
            session_nonce=1,
            request_id=1,
            answered_below=0,
            timeout_ms=1,
            started_ms=0,
        )
        offset = self.journal_append(journal, record)
        return Txn(self, process, name, TxId(journal, INCARNATION, offset), journal)

    # ---- readers --------------------------------------------------------------------------------

    def given(self, partition: Partition, isolation: str = "read_committed") -> list[int]:
        """Offsets that a reader is to be given now, in order; none below the log's start."""
        found = self.raw if isolation == "read_uncommitted" else self.order
        return [offset for offset in found[partition] if offset >= self.starts[partition]]

    def assign(
        self,
        process: str,
        *partitions: Partition,
        isolation: str = "read_committed",
        group: str | None = None,
    ) -> None:
        """The event `assigned`; of all partitions if none is named."""
        rows = [[topic, number, None] for topic, number in partitions or self.logs]
        more = {} if group is None else {"group": group}
        self.say(process, "assigned", isolation=isolation, partitions=rows, **more)

    def poll(
        self,
        process: str,
        partition: Partition,
        offsets: list[int],
        isolation: str = "read_committed",
    ) -> dict[str, Any]:
        """The event `poll`, of records as they lie there."""
        return self.say(
            process,
            "poll",
            isolation=isolation,
            records=[self.row(partition, offset) for offset in offsets],
        )

    def row(self, partition: Partition, offset: int) -> list[Any]:
        """A record as a poll has it."""
        value, op, txid = self.values[partition, offset]
        shown = txid.to_bytes().hex() if txid and self.system == "logtx" else None
        return [*partition, offset, partition[1], value, op, shown, None]

    def read(self, process: str, isolation: str = "read_committed") -> None:
        """A process reads everything, from the beginning."""
        self.assign(process, isolation=isolation)
        for partition in self.logs:
            if offsets := self.given(partition, isolation):
                self.poll(process, partition, offsets, isolation)

    def finals(self) -> World:
        """The last reader of committed records."""
        self.read("final-0.0")
        return self

    # ---- metadata stores ------------------------------------------------------------------------

    def store_says(
        self,
        txn: Txn,
        *places: int,
        state: str = "committed",
        sequence: int | None = None,
        known: bool = True,
    ) -> None:
        """What a store tells of a transaction, with the places of its partitions."""
        header = {
            "state": state,
            "finished": True,
            "producer_id": txn.process,
            "generation": 0,
            "commit_sequence": txn.sequence if sequence is None else sequence,
        }
        writes = [
            {
                "topic": topic,
                "partition": number,
                "branch": 0,
                "first": offsets[0],
                "last": offsets[-1],
                "count": len(offsets),
                "placed": True,
                "place": place,
            }
            for ((topic, number), offsets), place in zip(txn.offsets.items(), places, strict=False)
        ]
        txid = read_txid(txn.txid.to_bytes())
        self.stores.append(Told("coordinator-0", txid, header if known else None, writes))

    # ---- the checker ----------------------------------------------------------------------------

    def history(self) -> History:
        """Indexed as from files."""
        history = History()
        for process in in_order(self.events):
            history.add_process(process, list(enumerate(self.events[process], 1)))
        return history

    def make_anew(self, topic: str) -> None:
        """Delete a topic, and make it anew."""
        self.say("nemesis-0.0", "fault", what="recreate", target=topic)
        for log in (p for p in self.logs if p[0] == topic):
            self.logs[log], self.order[log], self.raw[log] = [], [], []
            self.places[log] = {}
            for offset in [o for p, o in self.values if p == log]:
                del self.values[log, offset]
        self.say("nemesis-0.0", "fault", what="recreated", target=topic)

    def judge(self) -> Verdict:
        """The checker's verdict."""
        settings = RunSettings(self.system, self.topics, IN, "")
        history = self.history()
        committed = self.committed() if self.system == "kafka" else []
        return judge(
            assemble(
                settings,
                history,
                self.data(),
                committed,
                self.journal_logs(),
                self.stores,
                self.sidecars(),
            )
        )

    def sidecars(self) -> list[tuple[store.Head, list[store.RawRecord]]]:
        """Dumped sidecars."""
        return [
            (store.Head(topic, number, 0, len(records)), records)
            for (topic, number), records in self.asides.items()
        ]

    def data(self) -> list[tuple[store.Head, list[store.RawRecord]]]:
        """Dumped data partitions."""
        found = []
        for (topic, number), records in self.logs.items():
            start = self.starts[topic, number]
            head = store.Head(topic, number, start, len(records))
            kept = [r for r in records[start:] if self.system == "logtx" or r.value is not None]
            found.append((head, kept))
        return found

    def committed(self) -> list[tuple[store.Head, list[store.RawRecord]]]:
        """What a read_committed consumer of Kafka's was given."""
        found = []
        for (topic, number), records in self.logs.items():
            end = self.stable.get((topic, number), len(records))
            head = store.Head(topic, number, self.starts[topic, number], end)
            found.append((head, [records[offset] for offset in self.given((topic, number))]))
        return found

    def journal_logs(self) -> list[tuple[store.Head, list[store.RawRecord]]]:
        """The dumped journal."""
        found = []
        for number, entries in enumerate(self.journals):
            start, end = self.journal_starts[number], len(entries)
            head = store.Head("__transaction_control", number, start, end, end)
            records = [store.RawRecord(offset, entries[offset], []) for offset in range(start, end)]
            found.append((head, records))
        return found

    def save(self, run_dir: Path) -> None:
        """Write it as a run's directory."""
        told = {
            "system": self.system,
            "data_topic": IN,
            "out_topic": OUT,
            "bootstrap_servers": "localhost:1",
        }
        (run_dir / "chaos.json").write_text(json.dumps(told))
        (run_dir / "history").mkdir()
        for process, events in self.events.items():
            text = "".join(json.dumps(event) + "\n" for event in events)
            (run_dir / "history" / f"{process}.jsonl").write_text(text)
        kinds = [(store.DATA, self.data()), (store.JOURNAL, self.journal_logs())]
        if self.system == "kafka":
            kinds = [(store.DATA, self.data()), (store.COMMITTED, self.committed())]
        for kind, logs in kinds:
            for head, records in logs:
                store.write_log(run_dir / "logs", kind, head, records)
