"""The consumer's rules in the plainest form, and a writer of random logs that a broker could hold.

`expected` returns what a read_committed application gets from a start offset on. It looks at the
whole log at once, keeps no state and knows no positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, DataControl, Marker, decode_control
from logtx.journal.txid import TxId

from ..records import INCARNATION, FakeRecord, data, marker, plain


def parse(record: FakeRecord) -> tuple[bytes | None, Marker | DataControl | None]:
    headers = dict(record.headers() or [])
    control = headers.get(TXCTL_HEADER)
    return headers.get(TXID_HEADER), decode_control(control) if control else None


def expected(log: Sequence[FakeRecord], start: int) -> list[FakeRecord]:
    """Returns what a reader that starts at offset `start` delivers, in order."""
    out: list[FakeRecord] = []
    ended: set[bytes] = set()
    for record in log:
        raw, control = parse(record)
        if raw is None:
            if record.at >= start:
                out.append(record)
        elif isinstance(control, Marker) and raw not in ended:
            ended.add(raw)
            if control.committed and record.at >= start:
                out += accepted(log, raw, control)
    return out


def accepted(log: Sequence[FakeRecord], raw: bytes, end: Marker) -> list[FakeRecord]:
    """Returns the records that a committed transaction's marker states, from the whole log."""
    out: list[FakeRecord] = []
    seen: set[tuple[int, int | None]] = set()
    for record in log:
        owner, control = parse(record)
        if owner != raw or isinstance(control, Marker):
            continue
        branch = control.branch if control else 0
        sequence = control.sequence if control else None
        inside = any(
            r.branch == branch and r.first_offset <= record.at <= r.last_offset
            for r in end.branches
        )
        if inside and (sequence is None or (branch, sequence) not in seen):
            seen.add((branch, sequence))
            out.append(record)
    return out


@dataclass
class _Written:
    owner: TxId
    counts: dict[int, list[int]] = field(default_factory=dict)
    """Branch → offsets."""
    accepted: tuple[tuple[int, int, int, int], ...] = ()
    committed: bool | None = None
    sequence: int = -1
    marked: bool = False
    finished: bool = False


class LogWriter:
    """Writes one data partition as two coordinators, their zombies and producers could."""

    def __init__(self) -> None:
        self.log: list[FakeRecord] = []
        self.transactions: list[_Written] = []
        self.journal_ends = [0, 0]

    def step(self, action: int, a: int, b: int) -> None:
        """Does one action, chosen by small numbers. An action that does not apply does nothing."""
        at = len(self.log)
        if action == 0:
            self.log.append(plain(at))
        elif action == 1:
            self._begin(a % 2)
        elif not self.transactions:
            return
        elif action in (2, 3):
            # Mostly one of the newest, which are open.
            recent = self.transactions if a % 4 == 0 else self.transactions[-3:]
            self._write(recent[a % len(recent)], at, b)
        elif action == 4:
            self._decide(self.transactions[a % len(self.transactions)], b)
        elif action in (5, 6):
            self._mark_next(a % 2)
        elif action == 7:
            self._mark_again(self.transactions[a % len(self.transactions)], b)
        elif action == 8:
            self._finish(a % 2)

    def _append_journal(self, journal: int) -> int:
        self.journal_ends[journal] += 1
        return self.journal_ends[journal] - 1

    def _begin(self, journal: int) -> None:
        # The two journals share offsets: both are partition 0, in two incarnations.
        offset = self._append_journal(journal)
        self.transactions.append(_Written(TxId(0, INCARNATION + journal, offset)))

    def _write(self, transaction: _Written, at: int, b: int) -> None:
        # A record counts before the decision. After it the record is late, whether it lies before
        # or behind the marker. The commit accepts branches 0 and 1; branch 2 is a stray.
        branch = (0, 0, 1, 2)[b % 4]
        sequence = None
        if branch == 1 and transaction.owner.offset % 2:
            sequence = len(transaction.counts.get(1, ()))
        record = data(at, transaction.owner, branch or None, sequence)
        if b % 3 == 0 and record.header_list is not None:
            record.header_list.append(("trace", b"1"))
        self.log.append(record)
        if transaction.committed is None:
            transaction.counts.setdefault(branch, []).append(at)

    def _decide(self, transaction: _Written, b: int) -> None:
        if transaction.committed is not None:
            return
        transaction.committed = b % 5 != 0
        transaction.sequence = self._append_journal(transaction.owner.incarnation - INCARNATION)
        if transaction.committed:
            transaction.accepted = tuple(
                (branch, offsets[0], offsets[-1], len(offsets))
                for branch, offsets in sorted(transaction.counts.items())
                if branch != 2
            )

    def _of(self, journal: int) -> list[_Written]:
        return [t for t in self.transactions if t.owner.incarnation == INCARNATION + journal]

    def _hw(self, journal: int) -> int:
        open_ones = [t.owner.offset for t in self._of(journal) if not t.finished]
        return min([*open_ones, self.journal_ends[journal]])

    def _mark(self, transaction: _Written, hw: int) -> None:
        assert transaction.committed is not None
        self.log.append(
            marker(
                len(self.log),
                transaction.owner,
                transaction.sequence,
                *transaction.accepted,
                committed=transaction.committed,
                hw=hw,
            )
        )
        transaction.marked = True

    def _mark_next(self, journal: int) -> None:
        waiting = [t for t in self._of(journal) if t.committed is not None and not t.marked]
        if waiting:
            self._mark(min(waiting, key=lambda t: t.sequence), self._hw(journal))

    def _mark_again(self, transaction: _Written, b: int) -> None:
        # A zombie's single marker with an old HW, or a recovery that writes again the markers of
        # what is unfinished.
        if not transaction.marked:
            return
        journal = transaction.owner.incarnation - INCARNATION
        if b % 2:
            self._mark(transaction, b % (self._hw(journal) + 1))
            return
        again = [t for t in self._of(journal) if t.marked and not t.finished]
        for each in sorted(again, key=lambda t: t.sequence):
            self._mark(each, self._hw(journal))

    def _finish(self, journal: int) -> None:
        for transaction in self._of(journal):
            transaction.finished |= transaction.marked
