"""The journal and its tenures in a small world: real `Tenure`s over a journal of numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from logtx.coordinator.core.answers import answer_fate
from logtx.coordinator.core.clocks import Clocks
from logtx.coordinator.core.decision import Effect, Instant, ShardConfig, WriteMarkers, WriteOffsets
from logtx.coordinator.core.dispatch import _Consumer
from logtx.coordinator.core.floors import Floors, WrittenBeside
from logtx.coordinator.core.placing import Placer
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.protocol import commands
from logtx.journal.control import TopicPartition
from logtx.journal.errors import CoordinatorLoadingError, LogtxError
from logtx.journal.places import PartitionId
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import Aborted, Begin, Entry, Owner
from logtx.journal.txid import TxId

from ..coordinator.core.test_shard_checkers import Reference
from ..coordinator.harness import INCARNATION, PARTITION, TOPICS, WALL_MS, dump, fates, load
from .machines import Chains, Fingerprint, Interner

TIMEOUT_MS: Final = 1_000
CORE_ERRORS: Final = (AssertionError, KeyError, IndexError, ValueError, LogtxError)
"""Errors that a core raises when its state contradicts itself."""
LATER_MS: Final = 100_000
"""Longer than every time-out and grace."""
CONFIG: Final = ShardConfig()
VOID: Final = Entry(NO_EPOCH, INCARNATION, Aborted(begin=0), NO_EPOCH)
"""Stands for every void record: it has no epoch and no place."""
_FINGERPRINT: Final = Fingerprint(
    {
        Tenure: frozenset({"_shell"}),
        Shard: frozenset({"config"}),
        Clocks: frozenset({"_config"}),
        Placer: frozenset({"_first_marker"}),
        Floors: frozenset({"_known"}),
    },
    # Queues have one partition here, and where their consumers stay decides nothing.
    {_Consumer: lambda each: (each.number, sorted(each.topics), each.until_ms, each.gone_ms)},
)


class Journal:
    """All journals that the search met; each has a number."""

    def __init__(self, *, keeps_void_records: bool = False) -> None:
        self.keeps_void_records = keeps_void_records
        """Whether void records are told apart, as they must be if a mutation lets them count."""
        self._records = Interner()
        self._entries: list[Entry] = []
        self._chains = Chains()
        self._facts: dict[int, JournalFacts | str] = {}
        self.lengths = self._chains.lengths
        self._void = self.record(encode_entry(VOID))
        self._appended: dict[tuple[int, int], int] = {}
        self._bids: dict[int, int] = {}

    def record(self, value: bytes, meant: bytes = b"") -> int:
        """Returns the number of a record; the BEGIN that its writer had in mind is part of it."""
        number = self._records((value, meant))
        if number == len(self._entries):
            self._entries.append(decode_entry(value))
        return number

    def bid(self, journal: int) -> int:
        """Returns the OWNER record of a coordinator that read this journal to its end."""
        found = self._bids.get(journal)
        if found is None:
            shard = self._load(journal)
            incarnation = INCARNATION if shard.epoch == NO_EPOCH else shard.incarnation
            # All have one address: coordinators are alike, and no rule reads it.
            owner = Owner(replaces=shard.epoch, address="c", process_nonce=1)
            found = self.record(encode_entry(Entry(shard.epoch, incarnation, owner)))
            self._bids[journal] = found
        return found

    def append(self, journal: int, record: int) -> int:
        """Returns the journal that results when a record lands.

        Only the place of a void record counts, so all are written as one record; for each it is
        checked that a real reader makes the same of both.
        """
        found = self._appended.get((journal, record))
        if found is None:
            found = self._chains.append(journal, record)
            if not self.keeps_void_records and self._is_void(journal, record):
                alike = self._chains.append(journal, self._void)
                assert dump(self._load(alike)) == dump(self._load(found)), "a void record counts"
                found = alike
            self._appended[journal, record] = found
        return found

    def _load(self, journal: int) -> Shard:
        return load(self.entries(journal), CONFIG)

    def _is_void(self, journal: int, record: int) -> bool:
        facts, entry = self.facts(journal), self._entries[record]
        if isinstance(facts, str) or not self.lengths[journal]:
            return False
        if isinstance(entry.record, Owner) and entry.record.replaces == facts.epoch:
            return False
        own = entry.epoch == facts.epoch and entry.predicted == facts.end
        return not (own and facts.in_place)

    def entry(self, record: int) -> Entry:
        """Returns a record as it reads back."""
        return self._entries[record]

    def items(self, journal: int) -> tuple[int, ...]:
        """Returns the numbers of a journal's records."""
        return self._chains.items(journal)

    def entries(self, journal: int) -> list[Entry]:
        """Returns the records of a journal as they read back."""
        return [self._entries[number] for number in self._chains.items(journal)]

    def facts(self, journal: int) -> JournalFacts | str:
        """Returns what a journal says in the naive reading; a text if it breaks an invariant."""
        found = self._facts.get(journal)
        if found is None:
            try:
                found = JournalFacts(self, journal)
            except AssertionError as error:
                found = str(error).partition("\n")[0]
            self._facts[journal] = found
        return found

    def meant(self, record: int) -> Begin | None:
        """Returns the BEGIN of the transaction that a record's writer had in mind."""
        value: bytes = self._records.values[record][1]
        if not value:
            return None
        begin = decode_entry(value).record
        assert isinstance(begin, Begin)
        return begin


class JournalFacts:
    """What one journal says to a reader that takes nothing on trust."""

    __slots__ = (
        *("begun", "decided", "end", "ended", "epoch", "hw", "in_place"),
        *("reference", "requests"),
    )

    def __init__(self, journal: Journal, number: int) -> None:
        """Reads it.

        Raises:
            AssertionError: the journal itself breaks an invariant.
        """
        items = journal.items(number)
        entries = [journal.entry(i) for i in items]
        self.end = len(entries)
        self.epoch, self.in_place = _naive_epoch(entries)
        seen: Any = SimpleNamespace(entries=entries, meant=[journal.meant(i) for i in items])
        self.reference = reference = Reference(seen)
        self.hw = reference.hw
        self.decided = {
            begin: (told.state.commits, told.sequence)
            for begin, told in reference.transactions.items()
            if told.sequence is not None
        }
        self.ended = frozenset(b for b, t in reference.transactions.items() if t.state.finished)
        self.requests = {
            begin: (t.producer_id, t.generation, t.nonce, t.request_id)
            for begin, t in reference.transactions.items()
        }
        self.begun = {request: begin for begin, request in self.requests.items()}
        assert len(self.begun) == len(self.requests), (
            "one BEGIN request opened two transactions (invariant 2)"
        )


def _naive_epoch(entries: list[Entry]) -> tuple[int, bool]:
    """Returns the epoch at a journal's end, and whether all behind it is its own and in place."""
    epoch, in_place = NO_EPOCH, True
    for offset, entry in enumerate(entries):
        if isinstance(entry.record, Owner) and entry.record.replaces == epoch:
            epoch, in_place = offset, True
        else:
            in_place = in_place and (entry.epoch, entry.predicted) == (epoch, offset)
    return epoch, in_place


@dataclass(frozen=True, slots=True)
class TenureFacts:
    """What the world needs to know of a tenure's state."""

    over: bool
    epoch: int
    hw: int
    """HW that a marker would state now."""
    next_offset: int
    acknowledged_end: int
    parked: int
    """Number of replies that wait for their records."""
    unwritten: int


@dataclass(frozen=True, slots=True)
class Markers:
    """A decided transaction whose markers are to be written."""

    begin: int
    committed: bool
    sequence: int
    partitions: tuple[tuple[str, int], ...]
    branches: tuple[tuple[tuple[str, int], tuple[Any, ...]], ...]


class LiveTenure:
    """A real tenure, with a shell that notes what the tenure asks of it."""

    def __init__(self, journal: Journal, commands: Interner, origin: int) -> None:
        """Begins to serve from a journal whose last record is this tenure's OWNER record.

        Args:
            journal: all journals.
            commands: all commands, by the numbers that inputs use.
            origin: number of the journal.
        """
        self._journal, self._commands = journal, commands
        self._given: list[tuple[Any, ...]] = []
        entries = journal.entries(origin)
        self._begins = {o: e.record for o, e in enumerate(entries) if isinstance(e.record, Begin)}
        self._now_ms = 0
        self.tenure = Tenure(load(entries, CONFIG), self)
        self.tenure.begin(self._now, TOPICS)

    @property
    def _now(self) -> Instant:
        # The wall clock stands still: deadlines are counted by the other clock.
        return Instant(self._now_ms, WALL_MS)

    # ---- as a core of `Machine` -----------------------------------------------------------------

    def apply(self, key: Hashable) -> None:
        """Takes an input."""
        tenure = self.tenure
        match key:
            case ("submit", ref, number):
                tenure.submit(self._commands.values[number], ref, self._now, TOPICS)
            case ("ack", predicted, offset):
                tenure.acknowledged(predicted, offset, self._now_ms)
            case ("end", end):
                tenure.end_told(end, self._now_ms)
            case ("written", begin):
                tenure.written(begin)
            case ("expire",):
                self._now_ms += LATER_MS
                tenure.tick(self._now, TOPICS)
            case _:
                raise AssertionError(key)

    def drain(self) -> tuple[tuple[Any, ...], ...]:
        """Returns what it asked of the world since the last call."""
        given, self._given = tuple(self._given), []
        return given

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        return _FINGERPRINT((self.tenure, self._begins, self._now_ms))

    def facts(self) -> TenureFacts:
        """Returns what the world needs to know."""
        tenure, shard = self.tenure, self.tenure.shard
        return TenureFacts(
            over=tenure.over,
            epoch=shard.epoch,
            hw=shard.hw,
            next_offset=shard.next_offset,
            acknowledged_end=tenure.acknowledged_end,
            parked=len(tenure._parked),
            unwritten=len(tenure._unwritten),
        )

    # ---- as the shell of its tenure -------------------------------------------------------------

    def append(self, predicted: int, value: bytes) -> None:
        """Notes an append, and which transaction it is about."""
        record = decode_entry(value).record
        if isinstance(record, Begin):
            self._begins[predicted] = record
        begin = getattr(record, "begin", None)
        meant = b"" if begin is None else encode_entry(Entry(0, 0, self._begins[begin]))
        self._given.append(("append", predicted, self._journal.record(value, meant)))

    def ask_end(self) -> None:
        """Notes the question."""
        self._given.append(("ask",))

    def answer(self, ref: Any, reply: commands.Reply) -> None:
        """Notes a reply."""
        self._given.append(("answer", ref, reply))

    def look_up(self, ref: Any, command: commands.Command, txid: TxId) -> None:
        """Notes the question."""
        self._given.append(("look_up", ref, command, txid))

    def execute(self, effect: Effect) -> None:
        """Notes what is to be written."""
        if isinstance(effect, WriteOffsets):
            self._given.append(("offsets", effect.begin, effect.group, effect.offsets))
            return
        assert isinstance(effect, WriteMarkers), "no topic is switched here"
        transaction = effect.transaction
        assert transaction.commit_sequence is not None
        markers = Markers(
            begin=transaction.begin,
            committed=transaction.state.commits,
            sequence=transaction.commit_sequence,
            partitions=tuple(transaction.partitions),
            branches=tuple((k, tuple(b)) for k, b in transaction.branches.items()),
        )
        self._given.append(("markers", markers))

    def first_marker(self, key: TopicPartition) -> int | None:
        """Is never asked: nothing is placed here."""
        raise AssertionError(key)

    def written_to(self, partition: PartitionId) -> int | None:
        """Is never asked: nothing is placed here."""
        raise AssertionError(partition)

    def written_beside(self, partition: PartitionId) -> WrittenBeside | None:
        """Is never asked: nothing is placed here."""
        raise AssertionError(partition)

    def had_others(self, partition: PartitionId) -> bool:
        """Is never asked: nothing is placed here."""
        raise AssertionError(partition)

    def looks_apart_ms(self, topic: str) -> int:
        """Is never asked: nothing is placed here."""
        raise AssertionError(topic)

    def places_given(self) -> None:
        """Is never told."""
        raise AssertionError

    def answers_given(self) -> None:
        """Is never told."""
        raise AssertionError

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """Does nothing: the client learns it by its next request."""

    def surprised(self, why: str) -> None:
        """Ends the tenure, as the runtime does."""
        self.tenure.end(CoordinatorLoadingError(why))
        self._given.append(("surprised",))


def look_up(journal: Journal, number: int, command: commands.Command, txid: TxId) -> commands.Reply:
    """Returns the answer about a transaction that only the journal remembers."""
    fate = fates(journal.entries(number), [txid])[txid]
    return answer_fate(command, commands.Outcome(txid, fate.state, fate.commit_sequence))


def txid_of(begin: int) -> TxId:
    """Returns the TxId of a BEGIN."""
    return TxId(PARTITION, INCARNATION, begin)
