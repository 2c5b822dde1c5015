"""Histories in which topics are switched to metadata and back, without readers.

Journals and data are read naively in the end: what is placed where, and in which order with markers
and mode records. Faults are those of all histories: owners crash, stand still and are replaced in
the middle of a round, of a switch, and of a mode record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest

from logtx.coordinator.protocol import commands
from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, Marker, ModeRecord, decode_control
from logtx.journal.modes import Mode, ModeChange, Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import Committed, PrepareAbort, PrepareCommit
from logtx.journal.txid import TxId

from .history import History
from .topology import OUTPUT
from .world import World

HOME: Final = 0
"""The journal partition that may place."""
SEEDS: Final = 100
"""As many as take a minute."""
PLACES_MS: Final = (10, 1_500)
"""Least and most time for which the topic stays in metadata mode."""
MARKS_MS: Final = (10, 100)
"""The same for markers."""
SWITCHES_UNTIL_MS: Final = 2_500
"""When the operator's last switch begins at the latest; the faults are over by then."""
ASK_MS: Final = 15
"""Pause after which the operator asks again whether a topic is switched."""


class SwitchingWorld(World):
    """A world without readers, whose operator switches the topic again and again."""

    def __init__(self, seed: int) -> None:
        self._modes = Random(-seed - 20)
        super().__init__(seed)
        self._switch(Mode.METADATA)

    def _start_consumer(self, *_args: Any, **_kwargs: Any) -> None:
        """Starts no reader: here only owners and their logs are looked at."""

    def _start_serial(self, *_args: Any, **_kwargs: Any) -> None:
        """Starts no reader."""

    def _read_temporary(self) -> None:
        """Starts no reader."""

    def _switch(self, mode: Mode) -> None:
        without = self._modes.random() < 0.2
        command = commands.SetTopicMode(topic=OUTPUT, mode=mode)

        patience = self._modes.randint(0, 10) if self._modes.random() < 0.3 else None
        asked = 0

        def ask() -> None:
            nonlocal asked
            if not self._is_final(mode):
                asked += 1
                # Mode records may be written, in flight or waiting by then.
                impatient = patience is not None and asked > patience
                bare = mode is Mode.METADATA and (without or impatient)
                self._ask(HOME, replace(command, without_records=bare))
                self.setting.scheduler.after(ASK_MS, ask)
            elif self.setting.scheduler.now_ms < SWITCHES_UNTIL_MS:
                other = Mode.MARKERS if mode is Mode.METADATA else Mode.METADATA
                stays = PLACES_MS if mode is Mode.METADATA else MARKS_MS
                later_ms = self._modes.randint(*stays)
                self.setting.scheduler.after(later_ms, lambda: self._switch(other))

        ask()

    def _is_final(self, mode: Mode) -> bool:
        told = [t.reply for t in self.history.told if isinstance(t.reply, commands.TopicModes)]
        if not told:
            return False
        (info,) = told[-1].topics
        return info.published and info.phase.value == mode.value


@dataclass
class Partition:
    """What the home ended in a data partition."""

    placed: dict[int, int] = field(default_factory=dict)
    """Commit sequence → place."""
    marked: dict[int, int] = field(default_factory=dict)
    """Commit sequence → offset of the first marker."""
    recorded: dict[int, int] = field(default_factory=dict)
    """Offset of a MODE record → offset of its first mode record."""


class Reading:
    """The home and the data, read naively."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.decided: dict[int, PrepareCommit] = {}
        """Commit sequence → decision."""
        self.finished: set[int] = set()
        self.aborted: set[int] = set()
        self.modes: list[tuple[int, ModeChange]] = []
        self.partitions: dict[tuple[str, int], Partition] = defaultdict(Partition)
        self.counts: Counter[str] = Counter()
        self._incarnations: set[int] = set()
        self._read_journal()
        self._read_data()

    def _read_journal(self) -> None:
        epochs = EpochFilter()
        for record in self.history.journals[HOME]:
            if not epochs.accept(record.offset, record.entry):
                continue
            match record.entry.record:
                case PrepareCommit() as decision:
                    self.decided[record.offset] = decision
                case PrepareAbort(begin=begin):
                    self.aborted.add(begin)
                case Committed(begin=begin):
                    self.finished.add(begin)
                case ModeChange() as change:
                    given_up = bool(self.modes) and self.modes[-1][1].phase is change.phase
                    self.modes.append((record.offset, change))
                    self.counts["mode records given up" if given_up else change.phase.value] += 1
                case Placed() as placed:
                    self._place(placed)

    def _place(self, placed: Placed) -> None:
        for partition, place in placed.ends.items():
            found = self.partitions[partition.key]
            for sequence, decision in self.decided.items():
                covered = sequence <= placed.upto and partition.key in _due(decision)
                if covered and sequence not in found.placed and _id(decision, partition):
                    found.placed[sequence] = place
                    self.counts["places"] += 1
                    assert place == GONE or place > _last(decision, partition.key)

    def _read_data(self) -> None:
        sequences = {d.begin: s for s, d in self.decided.items()}
        for key, records in self.history.data.items():
            found = self.partitions[key]
            for record in records:
                headers = dict(record.headers() or [])
                raw = headers.get(TXCTL_HEADER)
                control = decode_control(raw) if raw else None
                txid = TxId.from_bytes(headers[TXID_HEADER]) if control else None
                if txid is None or txid.partition != HOME:
                    continue
                if isinstance(control, Marker):
                    found.marked.setdefault(control.commit_sequence, record.offset())
                    if control.committed:
                        assert txid.offset in sequences, "a marker of no decision"
                elif isinstance(control, ModeRecord):
                    found.recorded.setdefault(txid.offset, record.offset())

    def check(self) -> None:
        """Checks all rules."""
        for sequence, decision in self.decided.items():
            assert decision.begin in self.finished
            for key in decision.placed:
                partition = self.partitions[key]
                if partition.placed.get(sequence) == GONE:
                    self.counts["marked in a topic of the name"] += sequence in partition.marked
                else:
                    assert sequence not in partition.marked, "placed, and marked too"
                if key in _due(decision):
                    assert sequence in self.partitions[key].placed, "finished, and not placed"
        for key, partition in self.partitions.items():
            self._check_order(key, partition)
        self._check_modes()

    def _check_order(self, key: tuple[str, int], partition: Partition) -> None:
        """Markers, mode records and places keep the order of the journal (R3, R4)."""
        # A place is before the record at its offset: so it sorts before a marker at it.
        ends = [(s, at, 0) for s, at in partition.placed.items() if at != GONE]
        ends += [(s, at, 1) for s, at in partition.marked.items()]
        ends += [(s, at, 1) for s, at in partition.recorded.items()]
        by_sequence = sorted(ends)
        positions = [(at, kind) for _, at, kind in by_sequence]
        assert positions == sorted(positions), f"{key}: {by_sequence}"

    def _check_modes(self) -> None:
        """What is decided is placed while the topic is in metadata mode, and at no other time; and
        mode records lie before the first place, and behind the last (R15)."""
        phase, begun, with_records = Phase.MARKERS, -1, True
        since: Mapping[int, int] = {}
        since_ms = 0
        changes = iter([*self.modes, (1 << 62, None)])
        at, change = next(changes)
        for sequence, decision in sorted(self.decided.items()):
            while change is not None and at < sequence:
                phase = change.phase
                if phase in (Phase.TO_METADATA, Phase.TO_MARKERS):
                    begun, with_records = at, change.with_records
                    since_ms = self.history.journals[HOME][at].time_ms
                since = change.since or since
                at, change = next(changes)
            placed = [key for key in decision.placed if key[0] == OUTPUT]
            assert bool(placed) <= (phase is Phase.METADATA)
            for key in placed:
                partition = self.partitions[key]
                if key[1] not in since:
                    # It came later: it is in the topic's mode from its first offset on.
                    self.counts["partitions that came later"] += 1
                    assert self.history.data[key][0].time_ms >= since_ms
                elif with_records and sequence in partition.placed:
                    self.counts["placed behind a mode record"] += 1
                    assert partition.recorded[begun] < partition.placed[sequence]


def _due(decision: PrepareCommit) -> set[tuple[str, int]]:
    """Returns where a decision must be placed: where it accepts records."""
    return set(decision.placed) & set(decision.written)


def _id(decision: PrepareCommit, partition: PartitionId) -> bool:
    """Whether a decision's writes are in the topic with this id."""
    named = [*(w.partition for w in decision.writes), *decision.added]
    return any(p.key == partition.key and p.topic_id == partition.topic_id for p in named)


def _last(decision: PrepareCommit, key: tuple[str, int]) -> int:
    """Returns the last offset that a decision accepts in a partition, as far as it states it."""
    ranges = [r for w in decision.writes if w.partition.key == key for r in w.branches]
    return max((r.last_offset for r in ranges), default=-1)


def run(seed: int) -> Reading:
    """Runs a history and checks it."""
    history = SwitchingWorld(seed).run()
    if history.crash is not None:
        raise history.crash
    assert not history.unfinished, history.unfinished
    reading = Reading(history)
    reading.check()
    return reading


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_histories_in_which_topics_are_switched() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            reading = run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
        counts += reading.counts
        counts += reading.history.counts
    wanted = (
        "places",
        "placed behind a mode record",
        "mode records given up",
        *(phase.value for phase in Phase),
        "rounds of placing",
        "ends of partitions told late",
        "end of a partition not told",
        "failovers",
    )
    assert min(counts[what] for what in wanted) >= 4, str({w: counts[w] for w in wanted})
