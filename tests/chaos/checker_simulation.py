"""Correct runs, drawn from a seed: a small simulated log with everything that may happen to it.

Interleaved transactions of two journals, markers late but in their lanes' order and written again,
records that come behind their marker, coordinators replaced, processes that die, readers that
restart and go on from an earlier place, a worker that processes each input once. Topics are
switched between markers and places, which come late, several at one offset, and again. What the
other journal decides is handed over to the home, which adopts it or refuses. Some records lie in
sidecars, and end by a pointer, or by the place that stands for it. A transaction that would be
handed over with such is refused.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random

from logtx.journal.places import PartitionId, Placed

from .checker_world import IN, OUT, Partition, Txn, Where, World

PARTITIONS, JOURNALS = 3, 2
HOMES = {IN: 1, OUT: 0}
"""Topic → the journal that places there, while it does."""


@dataclass
class Reader:
    """A consumer on its way through every partition."""

    name: str
    isolation: str
    life: int = 0
    places: dict[Partition, int] = field(default_factory=lambda: defaultdict(int))
    committed: dict[Partition, int] = field(default_factory=dict)

    @property
    def process(self) -> str:
        """The process that it is now."""
        return f"{self.name}.{self.life}"


class Simulation:
    """One run."""

    def __init__(self, seed: int, steps: int = 60, *, switches: bool = True) -> None:
        self.random = Random(seed)
        self.switches = switches
        self.world = World(partitions=PARTITIONS, journals=JOURNALS)
        self.open: list[Txn] = []
        self.decided: list[tuple[Txn, bool]] = []
        """In the order of decisions, and whether they commit."""
        self.lanes: dict[tuple[int, Partition], deque[tuple[Txn, bool]]] = defaultdict(deque)
        self.unplaced: dict[Partition, deque[Txn]] = defaultdict(deque)
        self.placed: dict[Partition, list[Txn]] = defaultdict(list)
        self.untold: dict[Partition, deque[Txn]] = defaultdict(deque)
        """Placed, and not told yet to readers of uncommitted records."""
        self.handed: dict[tuple[int, int], deque[tuple[Txn, bool, list[Partition]]]] = defaultdict(
            deque
        )
        """(journal, home) → what the home has not adopted."""
        self.marked: list[tuple[Txn, Partition, bool]] = []
        self.processed: dict[int, int] = defaultdict(int)
        """By input partition, how many inputs are processed."""
        self.input_at: dict[int, Where | None] = defaultdict(lambda: None)
        self.readers = [
            Reader("consumer-0", "read_committed"),
            Reader("consumer-1", "read_uncommitted"),
        ]
        for reader in self.readers:
            self.world.assign(reader.process, isolation=reader.isolation)
        for _ in range(steps):
            self._step()
        self._finish()

    # ---- one thing at a time --------------------------------------------------------------------

    def _step(self) -> None:
        steps = (
            (self._begin, 6),
            (self._append, 10),
            (self._append_aside, 4),
            (self._end, 6),
            (self._mark, 8),
            (self._mark_again, 1),
            (self._late, 1),
            (self._plain, 3),
            (self._read, 6),
            (self._restart, 1),
            (self._process, 3),
            (self._own, 1),
            (self._tell, 3),
            (self._place, 8 if self.switches else 0),
            (self._adopt, 4 if self.switches else 0),
            (self._switch, 1 if self.switches else 0),
        )
        self.random.choices([s for s, _ in steps], [weight for _, weight in steps])[0]()

    def _begin(self) -> None:
        process = f"producer-{self.random.randrange(3)}.0"
        self.open.append(self.world.begin(process, self.random.randrange(JOURNALS)))

    def _append(self) -> None:
        if self.open:
            txn = self.random.choice(self.open)
            txn.append(self.random.randrange(PARTITIONS), ack=self.random.random() < 0.9)

    def _append_aside(self) -> None:
        if self.open:
            txn = self.random.choice(self.open)
            txn.append_aside(self.random.randrange(PARTITIONS), ack=self.random.random() < 0.9)

    def _end(self) -> None:
        if self.open:
            txn = self.open.pop(self.random.randrange(len(self.open)))
            commit = self.random.random() < 0.75
            if commit or self.random.random() < 0.3:
                txn.ask()
            self._decide(txn, commit=commit)

    def _decide(self, txn: Txn, *, commit: bool) -> None:
        handed = [p for p in txn.mains if self._may_hand(txn, p)]
        commit = commit and not txn.aside.keys() & set(handed)  # Else it is refused.
        if not commit:
            handed = [p for p in handed if p in txn.offsets]
        txn.decide(commit=commit, hand=handed)
        self.decided.append((txn, commit))
        if handed:
            self.handed[txn.journal, 1 - txn.journal].append((txn, commit, handed))
        for partition in txn.aside if not commit else ():
            txn.mark_aside(partition, None, commit=False)
        for partition in txn.mains if commit else txn.offsets:
            if partition in handed:
                continue
            if not self.world.places_in(partition, txn.journal):
                self.lanes[txn.journal, partition].append((txn, commit))
            elif commit:
                self.unplaced[partition].append(txn)
                self.placed[partition].append(txn)
        told = self.random.random()
        if told < 0.7:
            txn.end("committed" if commit else "aborted")
        elif told < 0.85:
            txn.end("unknown")

    def _mark(self) -> None:
        if lanes := [lane for lane, waiting in self.lanes.items() if waiting]:
            self._mark_next(self.random.choice(lanes))

    def _mark_next(self, lane: tuple[int, Partition]) -> None:
        txn, commit = self.lanes[lane].popleft()
        # Markers wait for places of what was handed over earlier.
        if any(t.journal == lane[0] != HOMES[lane[1][0]] for t in self.unplaced[lane[1]]):
            self._place_in(lane[1])
        end = self._write_marker(txn, lane[1], commit=commit)
        if commit and lane[1] in txn.aside:
            txn.mark_aside(lane[1], end)
        self.marked.append((txn, lane[1], commit))

    def _write_marker(self, txn: Txn, partition: Partition, *, commit: bool) -> int:
        if commit and partition in txn.aside:
            return txn.point(partition)
        return txn.mark(partition, commit=commit)

    def _mark_again(self) -> None:
        if self.marked:
            txn, partition, commit = self.random.choice(self.marked)
            self._write_marker(txn, partition, commit=commit)

    def _late(self) -> None:
        if aborted := [m for m in self.marked if not m[2]]:
            txn, partition, _ = self.random.choice(aborted)
            value = self.world.append_event(txn.process, txn.name, partition)
            self.world.record(partition, value, txn.name, txn.txid)

    def _plain(self) -> None:
        ack = self.random.random() < 0.9
        self.world.plain("producer-0.0", self.random.randrange(PARTITIONS), ack=ack)

    def _own(self) -> None:
        self.world.own(self.random.randrange(JOURNALS))

    # ---- what another journal decides -----------------------------------------------------------

    def _may_hand(self, txn: Txn, partition: Partition) -> bool:
        is_foreign = self.world.homes.get(partition[0]) not in {None, txn.journal}
        if is_foreign and not self.lanes[txn.journal, partition]:
            return True
        self._adopt_all(txn.journal)  # Markers wait for what was handed over earlier.
        return False

    def _adopt(self) -> None:
        if found := [key for key, waiting in self.handed.items() if waiting]:
            self._adopt_next(self.random.choice(found))

    def _adopt_all(self, journal: int) -> None:
        while self.handed[journal, 1 - journal]:
            self._adopt_next((journal, 1 - journal))

    def _adopt_next(self, key: tuple[int, int]) -> None:
        txn, commit, partitions = self.handed[key].popleft()
        refuses = [p for p in partitions if self._refuses(key, p)]
        txn.adopt(*partitions, refuses=refuses, commit=commit)
        for partition in partitions:
            if partition in refuses:
                self.lanes[txn.journal, partition].append((txn, commit))
            elif commit:
                self.unplaced[partition].append(txn)
                self.placed[partition].append(txn)

    def _refuses(self, key: tuple[int, int], partition: Partition) -> bool:
        locked = bool(self.lanes[key[0], partition])
        return locked or partition[0] not in self.world.homes or self.random.random() < 0.1

    # ---- places ---------------------------------------------------------------------------------

    def _place(self) -> None:
        waiting = [(p, txn) for p, found in self.unplaced.items() for txn in found]
        if waiting:
            (topic, _), upto = self.random.choice(waiting)
            home = HOMES[topic]
            named = [p for p, _ in waiting if HOMES[p[0]] == home]
            named += [p for p in self.world.logs if self.world.places_in(p, home)]
            named = self.random.sample(named, self.random.randint(1, len(named)))
            self._place_up_to(home, upto.sequence_in(home), named)

    def _place_up_to(self, home: int, upto: int, named: list[Partition]) -> None:
        ends = {PartitionId(*partition): len(self.world.logs[partition]) for partition in named}
        self.world.journal_append(home, Placed(upto, ends))
        for partition in dict.fromkeys(named):
            waiting = self.unplaced[partition]
            while waiting and waiting[0].sequence_in(home) <= upto:
                txn, place = waiting.popleft(), len(self.world.logs[partition])
                self.untold[partition].append(txn)
                self.world.deliver_placed(partition, txn, place, shows=False)
                if partition in txn.aside:
                    txn.mark_aside(partition, place)

    def _tell(self) -> None:
        """Places are told to readers of uncommitted records, which may have come past them."""
        for partition, untold in self.untold.items():
            while untold:
                self.world.show(partition, untold.popleft())

    def _place_in(self, partition: Partition) -> None:
        home = HOMES[partition[0]]
        self._place_up_to(home, self.unplaced[partition][-1].sequence_in(home), [partition])

    def _place_all(self, topic: str) -> None:
        for partition, waiting in list(self.unplaced.items()):
            if waiting and partition[0] == topic:
                self._place_in(partition)

    def _switch(self) -> None:
        topic = self.random.choice([IN, OUT])
        self._place_all(topic)
        for lane, waiting in self.lanes.items():
            while waiting and lane[0] == HOMES[topic] and lane[1][0] == topic:
                self._mark_next(lane)
        self.world.switch(topic, HOMES[topic], records=self.random.random() < 0.9)

    # ---- readers --------------------------------------------------------------------------------

    def _read(self) -> None:
        reader = self.random.choice(self.readers)
        partition = self.random.choice(list(self.world.logs))
        due = self.world.given(partition, reader.isolation)[reader.places[partition] :]
        if due:
            now = due[: self.random.randint(1, 4)]
            self.world.poll(reader.process, partition, now, reader.isolation)
            reader.places[partition] += len(now)
            if self.random.random() < 0.5:
                reader.committed[partition] = reader.places[partition]

    def _restart(self) -> None:
        reader = self.random.choice(self.readers)
        reader.life += 1
        reader.places = defaultdict(int, reader.committed)
        self.world.assign(reader.process, isolation=reader.isolation)

    # ---- a worker -------------------------------------------------------------------------------

    def _process(self) -> None:
        world, number = self.world, self.random.randrange(PARTITIONS)
        order = world.order[IN, number]
        due = order[self.processed[number] :][: self.random.randint(1, 4)]
        if not due:
            return
        txn = world.begin("worker-0.0")
        for offset in due:
            output = self.random.randrange(PARTITIONS)
            txn.append(output, OUT, (number, offset))
        if self.random.random() < 0.2:
            self._decide(txn, commit=False)
            return
        start, end = self.input_at[number], self._place_behind((IN, number), due[-1])
        txn.claim_places(number, start, end)
        txn.ask()
        self._decide(txn, commit=True)
        self.processed[number] += len(due)
        self.input_at[number] = end

    def _place_behind(self, partition: Partition, offset: int) -> Where:
        return self.world.places[partition][offset]

    # ---- the end --------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._end_all()
        for number in range(PARTITIONS):
            while self.processed[number] < len(self.world.order[IN, number]):
                self._process()
        self._end_all()
        self._tell()
        for txn, commit in self.decided:
            txn.finish(commit=commit)
        self.world.finals()
        self.world.read("final-2.0", "read_uncommitted")
        self.read_serially("final-1.0", 1)

    def _end_all(self) -> None:
        for journal in range(JOURNALS):
            self._adopt_all(journal)
        for topic in HOMES:
            self._place_all(topic)
        for lane, waiting in list(self.lanes.items()):
            while waiting:
                self._mark_next(lane)

    def read_serially(self, process: str, journal: int) -> None:
        """A serializable reader; `default` hashes to journal 1 of 2."""
        self.world.assign(process, isolation="serializable")
        for txn, commit in self.decided:
            if not commit or txn.journal != journal:
                continue
            for partition in txn.mains:
                given = self.world.given(partition)
                due = [o for o in txn.delivers(partition) if o in given]
                if due:
                    self.world.poll(process, partition, due, "serializable")
