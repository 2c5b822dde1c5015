"""Makes a journal to recover from: the records of many producers' transactions. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logtx.coordinator.core.decision import (
    Effect,
    Instant,
    Ref,
    ShardConfig,
    TopicFacts,
    WriteOffsets,
)
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange
from logtx.journal.errors import LogtxError
from logtx.journal.position import Place, Position
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import Entry, OffsetStep, Owner
from logtx.journal.txid import TxId

PRODUCERS: Final = 100_000
"""Producer ids. Each is a row of the snapshot."""
RECORDS: Final = 1_000_000
"""Records of the journal; a load from its start takes time in proportion."""
OPEN: Final = 1_000
"""Transactions that are open at the journal's end."""
TOPIC: Final = "delays"
TOPIC_PARTITIONS: Final = 32
CONSUMER_GROUPS: Final = 16
INCARNATION: Final = 0x9F3AC1D2E4B7
NOW: Final = Instant(0, 1_700_000_000_000)


def _nonce(number: int) -> int:
    # As large as random ones: a small number would take fewer bytes.
    return number * 0x9E3779B97F4A7C15 % 2**63


class Journalist:
    """A `Shell` whose journal acknowledges every record and whose markers are written at once."""

    tenure: Tenure

    def __init__(self) -> None:
        self.values: list[bytes] = []
        """Encoded records that were appended and not yet taken."""
        self.replies: dict[Ref, commands.Reply] = {}
        self._unacknowledged: list[int] = []
        self._unwritten: list[int] = []

    def append(self, predicted: int, value: bytes) -> None:
        self.values.append(value)
        self._unacknowledged.append(predicted)

    def ask_end(self) -> None:
        raise AssertionError("nothing is asked whose answer could be stale")

    def answer(self, ref: Ref, reply: commands.Reply) -> None:
        self.replies[ref] = reply

    def look_up(self, ref: Ref, command: commands.Command, txid: TxId) -> None:
        raise AssertionError(f"only the journal knows {txid}: {command} of {ref}")

    def execute(self, effect: Effect) -> None:
        begin = effect.begin if isinstance(effect, WriteOffsets) else effect.transaction.begin
        self._unwritten.append(begin)

    def first_marker(self, _key: object) -> int | None:
        """Returns None: markers are written at once."""
        return None

    def written_to(self, _partition: object) -> int | None:
        raise AssertionError("nothing is placed")

    def looks_apart_ms(self, _topic: str) -> int:
        raise AssertionError("nothing is placed")

    def places_given(self) -> None:
        raise AssertionError("nothing is placed")

    def answers_given(self) -> None:
        raise AssertionError("no home is asked to adopt anything")

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        raise AssertionError(f"{producer_id} ({nonce}) is fenced: {error}")

    def surprised(self, why: str) -> None:
        raise AssertionError(why)

    def settle(self) -> None:
        """Acknowledges appends and reports markers as written, until neither causes any more."""
        while self._unacknowledged or self._unwritten:
            offsets, self._unacknowledged = self._unacknowledged, []
            for offset in offsets:
                self.tenure.acknowledged(offset, offset, NOW.monotonic_ms)
            begins, self._unwritten = self._unwritten, []
            for begin in begins:
                self.tenure.written(begin)


class History:
    """The records that a coordinator appends for many producers; `values` makes them."""

    def __init__(self, records: int = RECORDS, producers: int = PRODUCERS) -> None:
        """Begins a tenure on an empty journal.

        Args:
            records: approximate length of the journal in the end.
            producers: number of producers; all connect before any transaction begins.
        """
        self._records, self._producers = records, producers
        self._steps: dict[tuple[str, int], int] = {}
        self._shell = Journalist()
        shard = Shard(0, ShardConfig())
        facts = TopicFacts(
            topic_id="W2ifJDqPQsqSLJHrGjYeEQ",
            partition_count=TOPIC_PARTITIONS,
            record_max_bytes=1_000_000,
        )
        self._topics = {TOPIC: facts}
        owner = Owner(replaces=-1, address="127.0.0.1:1", process_nonce=1, partition_count=1)
        entry = Entry(-1, INCARNATION, owner)
        self._shell.values.append(encode_entry(entry))
        shard.replay(0, entry)
        self.tenure = self._shell.tenure = Tenure(shard, self._shell)
        self.tenure.begin(NOW, self._topics)

    def values(self) -> Iterator[list[bytes]]:
        """Yields the journal's encoded records in order, some at a time."""
        for number in range(self._producers):
            self._ask(commands.Connect(producer_id=f"worker-{number}", nonce=_nonce(number)))
            yield self._take()
        number = 0
        while self.tenure.shard.next_offset < self._records - 2 * OPEN:
            self._transaction(number, commit=True)
            number += 1
            yield self._take()
        for further in range(OPEN):
            self._transaction(number + further, commit=False)
            yield self._take()

    def _take(self) -> list[bytes]:
        self._shell.settle()
        taken, self._shell.values = self._shell.values, []
        return taken

    def _ask(self, command: commands.Command) -> commands.Reply:
        self.tenure.submit(command, None, NOW, self._topics)
        self._shell.settle()
        return self._shell.replies.pop(None)

    def _transaction(self, number: int, *, commit: bool) -> None:
        """Runs a transaction: BEGIN, another partition, in every second offsets, a decision."""
        producer = number % self._producers
        session = commands.SessionId(f"worker-{producer}", 0, _nonce(producer))
        request = number // self._producers + 1
        first = (TOPIC, number % TOPIC_PARTITIONS)
        second = (TOPIC, (number + 7) % TOPIC_PARTITIONS)
        begun = self._ask(
            commands.Begin(
                session=session,
                request_id=request,
                answered_below=request,
                timeout_ms=900_000,
                partitions=(first,),
            )
        )
        assert isinstance(begun, commands.Began), begun
        self._ask(commands.AddPartitions(txid=begun.txid, partitions=(second,), session=session))
        if not commit:
            return
        if number % 2:
            self._ask(self._offsets(number, begun.txid, session))
        writes = {p: (BranchRange(0, number * 10, number * 10 + 9, 10),) for p in (first, second)}
        self._ask(
            commands.End(
                session=session, txid=begun.txid, action=commands.Action.COMMIT, writes=writes
            )
        )

    def _offsets(self, number: int, txid: TxId, session: commands.SessionId) -> commands.AddOffsets:
        group, partition = f"group-{number % CONSUMER_GROUPS}", number % TOPIC_PARTITIONS
        place = self._steps.get((group, partition))
        to = (place or 0) + 10
        self._steps[group, partition] = to
        position = Position(o1=to, o2=to, met={(0, INCARNATION): txid.offset})
        start = None if place is None else Place(place)
        step = OffsetStep("flights", partition, start, position)
        return commands.AddOffsets(session=session, txid=txid, group=group, steps=(step,))
