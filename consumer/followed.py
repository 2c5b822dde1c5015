"""One partition of a consumer whose home is followed."""

from __future__ import annotations

from collections.abc import Sequence

from ..journal.control import ModeRecord, TopicPartition, decode_control
from ..journal.errors import MalformedHeaderError
from ..journal.places import PartitionId
from ..journal.txid import TxId
from .core.headers import control_of, txid_of
from .core.home_view import Due, Fate, HomeView, Start
from .core.known_modes import Follows
from .core.pending import Record, from_offset
from .core.placed_buffer import PlacedBuffer
from .core.placed_input import PlacedInput, has_ended


class ModeEnd:
    """The mode record from which on the home writes markers again."""

    __slots__ = ("mode_offset", "offset")

    def __init__(self, offset: int, mode_offset: int) -> None:
        self.offset = offset
        self.mode_offset = mode_offset


class Followed:
    """One partition of the consumer whose home is followed.

    It takes in what `PartitionBuffer` takes in elsewhere. Until reading of the home has come to
    where the partition begins, records wait here.
    """

    def __init__(self, key: TopicPartition, follows: Follows, start: Start) -> None:
        """Begins unattached: `Homes.begin` attaches it. `buffer` must be set before that."""
        self.key = key
        self.home = follows.home
        self.partition = PartitionId(*key, follows.topic_id)
        self.start = start
        self.known_mode = follows.mode_offset
        """Journal offset of the latest MODE record known."""
        self.back: ModeEnd | None = None
        """What ends it; None until it is met."""
        self.buffer: PlacedBuffer
        self.input: PlacedInput | None = None
        """None until it is attached."""
        self._view: HomeView | None = None
        self._early: list[Record] = []
        self._next_offset = start.o1
        self.is_parked = False
        """Whether it is followed no more, until the application resumes it."""
        self.told_misplaced = 0
        """How many of the transactions that are misplaced were counted."""

    # ---- what the buffer asks -------------------------------------------------------------------

    def has_ended(self, begin: int) -> bool:
        """Returns whether nothing of a TxId of the home is to be delivered any more."""
        return self._view is not None and has_ended(self._view, self.partition, begin)

    def end_marked(self, begin: int) -> None:
        """Notes that a marker of a TxId of the home was read."""
        if self._view is not None:
            self._view.end_marked(self.partition, begin)

    # ---- in -------------------------------------------------------------------------------------

    def feed(self, batch: Sequence[Record]) -> None:
        """Takes in records in offset order."""
        if self.is_parked:
            return  # They will be read again.
        if self.back is None and not all(map(len, batch)):
            for record in batch:
                if not len(record) and record.key() is None:
                    self._look_at(record)
        if self.input is not None:
            self.input.feed(batch)
            return
        fresh = from_offset(batch, self._next_offset)
        self._early += fresh
        if fresh:
            self._next_offset = fresh[-1].offset() + 1

    def _look_at(self, record: Record) -> None:
        control, raw = control_of(record), txid_of(record)
        if control is None or raw is None:
            return
        try:
            decoded, txid = decode_control(control), TxId.from_bytes(raw)
        except MalformedHeaderError:
            return  # The buffer reports it at its place.
        if not isinstance(decoded, ModeRecord) or decoded.places or txid.journal != self.home:
            return
        if self.back is None and txid.offset > self.known_mode:
            self.back = ModeEnd(record.offset(), txid.offset)
            if self.input is not None:
                self.input.end_with(self.back.offset)

    def park(self) -> None:
        """Drops what waits: the partition begins anew when it is resumed."""
        self.is_parked, self.input, self._view = True, None, None
        self._early.clear()

    def skip_unseen(self, offset: int) -> None:
        """Counts everything below an offset as read."""
        if self.is_parked:
            return
        if self.input is not None:
            self.input.skip_unseen(offset)
        self._next_offset = max(self._next_offset, offset)

    def attach(self, view: HomeView) -> None:
        """Begins to pass records on, by a view to which the partition was attached."""
        self._view = view
        ends_at = None if self.back is None else self.back.offset
        self.input = PlacedInput(self.partition, view, self.buffer, ends_at)
        early, self._early = self._early, []
        self.input.feed(early)
        self.input.skip_unseen(self._next_offset)

    def move(self, view: HomeView) -> None:
        """Goes on with another view, which has taken over the partition."""
        assert self.input is not None
        self._view = view
        self.input.move(view)

    # ---- what the shell asks --------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Offset of the next record to feed."""
        return self._next_offset if self.input is None else self.input.next_offset

    @property
    def held_records(self) -> int:
        """Number of records that wait for the horizon."""
        return len(self._early) if self.input is None else self.input.held_records

    @property
    def lacks_place(self) -> bool:
        """Whether a place is known that reading has not come to."""
        return self.input is not None and self.input.lacks_place

    @property
    def is_full(self) -> bool:
        """Whether so many places wait for its data that reading the journal pauses."""
        return self.input is not None and self.input.fills_up

    @property
    def is_over(self) -> bool:
        """Whether it goes on without a home: all before the mode record that ends it is passed on,
        and delivered."""
        if self.back is None or self.input is None or not self.input.is_over:
            return False
        if self._view is None or not self._view.is_settled(self.partition, self.back.mode_offset):
            # A gate may have told an end of the past. What was decided before the switch lies
            # before the mode record, and who turns now never learns of it.
            return False
        if self.buffer.ready or self.buffer.blocked:
            # What is placed at the mode record comes before it, and o2 does not tell it apart.
            return False
        return self.buffer.position().o2 >= self.back.offset

    def new_misplaced(self) -> int:
        """Returns how many transactions were misplaced since the last call."""
        found = 0 if self.input is None else self.input.misplaced
        new, self.told_misplaced = found - self.told_misplaced, found
        return new

    def placing(self) -> Due | None:
        """Returns the first transaction that is decided here and not placed, if any."""
        return None if self.input is None else self.input.placing()

    @property
    def waits(self) -> bool:
        """Whether something here waits for what its home will say."""
        return bool(self.held_records or self.buffer.holds_pending or self.placing())

    def is_placing(self, raw: bytes) -> bool:
        """Returns whether a TxId is decided here and not placed."""
        txid = TxId.from_bytes(raw)
        if self.input is None or txid.journal != self.home:
            return False
        return self.input.fate(txid.offset) is Fate.DECIDED

    def is_known(self, raw: bytes) -> bool:
        """Returns whether the view knows what becomes of a pending TxId, so that nothing need be
        looked up: it is open, or to be placed here."""
        txid = TxId.from_bytes(raw)
        if self.input is None or txid.journal != self.home:
            return False
        fate = self.input.fate(txid.offset)
        return fate in (Fate.AHEAD, Fate.OPEN, Fate.DECIDED, Fate.PLACED)
