"""What a consumer knows of a home, and where it may begin to read the journal."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from logtx.consumer.core.home_view import (
    Aside,
    Candidate,
    Due,
    Fate,
    HomeView,
    HomeWrites,
    Listed,
    Start,
    where_to_begin,
)
from logtx.journal.control import BranchRange
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.txid import TxId

A, B = PartitionId("a", 0, "id"), PartitionId("b", 3, "id")
HOME = (2, 0xABC)
RANGE = (BranchRange(0, 1, 2, 2),)


def writes(*partitions: PartitionId, placed: bool = True) -> list[HomeWrites]:
    return [HomeWrites(p, RANGE, placed) for p in partitions]


def view_of(*partitions: PartitionId, x: int = 0, passed: int | None = None) -> HomeView:
    view = HomeView(HOME, 0)
    for partition in partitions or (A,):
        view.attach(partition, Start(x, passed, x))
    return view


def test_fates_of_a_transaction_from_its_begin_to_its_delivery() -> None:
    view = view_of(A, B)
    fates = [view.fate(A, 3)]
    view.begun(3)
    view.read_to(4)
    fates.append(view.fate(A, 3))
    view.committed(3, 5, writes(A))
    view.read_to(6)
    fates.append(view.fate(A, 3))
    assert view.fate(B, 3) is Fate.ENDED  # nothing of it counts there
    view.placed(Placed(5, {A: 7}))
    fates.append(view.fate(A, 3))
    assert view.next_place(A) == (7, Due(3, 5, RANGE))
    view.pass_over(A)
    fates.append(view.fate(A, 3))
    assert fates == [Fate.AHEAD, Fate.OPEN, Fate.DECIDED, Fate.PLACED, Fate.ENDED]
    assert view.kept(A) == 0


def test_an_aborted_transaction_has_ended_everywhere() -> None:
    view = view_of()
    view.begun(3)
    view.aborted(3)
    view.read_to(6)
    assert view.fate(A, 3) is Fate.ENDED


def test_a_marked_transaction_is_left_to_its_marker() -> None:
    view = view_of()
    view.begun(3)
    view.committed(3, 5, writes(A, placed=False))
    view.placed(Placed(9, {A: 7}))
    view.read_to(10)
    assert view.fate(A, 3) is Fate.MARKED
    assert view.next_place(A) is None
    assert view.is_settled(A, 10)


def test_places_are_delivered_in_commit_order_each_partition_for_itself() -> None:
    view = view_of(A, B)
    view.committed(2, 4, writes(A, B))
    view.committed(1, 5, writes(A))
    view.placed(Placed(5, {A: 7}))
    assert view.last_place(A) == 7
    assert view.last_place(B) == -1
    delivered = []
    while (following := view.next_place(A)) is not None:
        delivered.append((following[0], following[1].begin))
        view.pass_over(A)
    assert delivered == [(7, 2), (7, 1)]
    view.read_to(6)
    assert view.is_settled(A, 6)
    assert not view.is_settled(B, 6)
    assert not view.is_settled(A, 7)  # not read so far
    assert view.is_settled(B, 4)  # decided behind the end that was asked for


def test_what_is_placed_nowhere_has_ended() -> None:
    view = view_of()
    view.committed(1, 4, writes(A))
    view.placed(Placed(4, {A: GONE}))
    view.read_to(6)
    assert view.next_place(A) is None
    assert view.fate(A, 1) is Fate.ENDED


def test_a_topic_created_anew_is_another_partition() -> None:
    view = view_of()
    view.committed(1, 4, writes(A._replace(topic_id="other")))
    view.placed(Placed(4, {A: 7}))
    assert view.next_place(A) is None


# ---- beginning ----------------------------------------------------------------------------------


def test_a_new_reader_counts_what_is_placed_below_its_start_as_delivered() -> None:
    view = view_of(A, x=7)
    assert view.passed(A) is None
    for begin, sequence, place in ((1, 4, 6), (2, 5, 7), (3, 6, 7)):
        view.committed(begin, sequence, writes(A))
        view.placed(Placed(sequence, {A: place}))
    assert view.passed(A) == 4
    assert view.next_place(A) == (7, Due(2, 5, RANGE))


def test_a_gate_proves_that_nothing_is_due() -> None:
    view = view_of(A, x=7)
    view.committed(1, 4, writes(A))
    view.placed(Placed(4, {A: 6}))
    view.read_to(8)
    assert view.is_settled(A, 8)
    view.settle_start(A, 8)
    assert view.passed(A) == 4  # a decision: a reader can go on behind it


def test_a_reader_that_goes_on_is_due_what_it_has_not_passed_wherever_that_is_placed() -> None:
    view = view_of(A, x=7, passed=4)
    for begin, sequence, place in ((1, 4, 5), (2, 5, 6)):  # the second one behind the reader
        view.committed(begin, sequence, writes(A))
        view.placed(Placed(sequence, {A: place}))
    assert view.next_place(A) == (6, Due(2, 5, RANGE))


def test_a_snapshot_tells_what_is_unfinished_and_so_what_has_ended() -> None:
    view = HomeView(HOME, 20)
    listed = [
        Listed(3),
        Listed(4, 12, writes=tuple(writes(A))),
        Listed(5, 13, writes=tuple(writes(A)), places={A: 9}),
        Listed(6, aborted=True),
        Listed(7, 14, writes=tuple(writes(A, placed=False))),
    ]
    view.attach(A, Start(9, None, 9), listed)
    fates = {begin: view.fate(A, begin) for begin in (2, 3, 4, 5, 6, 7, 20)}
    assert fates == {
        2: Fate.ENDED,
        3: Fate.OPEN,
        4: Fate.DECIDED,
        5: Fate.PLACED,
        6: Fate.ENDED,
        7: Fate.MARKED,
        20: Fate.AHEAD,
    }


def test_without_a_snapshot_what_began_earlier_is_unknown_until_it_is_decided() -> None:
    view = HomeView(HOME, 20)
    view.attach(A, Start(9, 19, 9))
    assert view.fate(A, 3) is Fate.UNKNOWN
    view.aborted(3)
    view.read_to(22)
    assert view.fate(A, 3) is Fate.ENDED
    assert view.fate(A, 4) is Fate.UNKNOWN


def test_partitions_are_attached_where_each_begins() -> None:
    view = HomeView(HOME, 20)
    view.attach(A, Start(9, 19, 9))
    view.committed(3, 25, writes(A, B))
    view.read_to(30)
    view.attach(B, Start(4, None, 4), [Listed(3, 25, writes=tuple(writes(A, B)))])
    view.placed(Placed(25, {A: 9, B: 4}))
    assert view.next_place(A) == (9, Due(3, 25, RANGE))
    assert view.next_place(B) == (4, Due(3, 25, RANGE))
    view.detach(A)
    view.committed(4, 31, writes(A))
    view.placed(Placed(31, {A: 9}))


def fence(offset: int, last: int) -> Candidate:
    return Candidate(offset, {A: last})


@pytest.mark.parametrize(
    ("start", "journal_start", "found"),
    [
        # Behind its own sequence, if that can still be read.
        (Start(50, 33, 50), 0, (34, False)),
        (Start(50, 33, 50), 34, (34, False)),
        # Else at the first fence whose last place lies below: what follows may be placed too low.
        (Start(50, 33, 50), 35, (40, True)),
        (Start(50, 33, 50), 41, (60, True)),
        # A new reader begins at the last one; at the start offset is not enough.
        (Start(50, None, 50), 0, (60, True)),
        (Start(40, None, 40), 0, (40, True)),
        (Start(41, None, 41), 0, (60, True)),
        # At the log's start it is: the records of what is placed there are gone.
        (Start(40, None, 40, log_start=40), 0, (60, True)),
        # What lies below the log's start is read from there on.
        (Start(10, None, 10, log_start=45), 50, (60, True)),
        # What is pending from below needs a fence at or below that.
        (Start(50, 45, 25), 0, (40, True)),
        (Start(50, 45, 20), 0, (40, True)),
        # Not from one behind its sequence: what lies between may be placed too low.
        (Start(50, 33, 25), 0, (34, False)),
        (Start(50, 33, 19), 0, (0, False)),
        (Start(50, 33, 19), 10, (34, False)),
        # Never from before the topic was switched.
        (Start(20, None, 20, mode_offset=70), 0, (71, False)),
        (Start(50, 70, 50, mode_offset=70), 0, (71, False)),
        # From the beginning, if nothing was trimmed.
        (Start(20, None, 20), 0, (0, False)),
        # Retention took it.
        (Start(20, None, 20), 10, None),
    ],
)
def test_where_reading_begins(
    start: Start, journal_start: int, found: tuple[int, bool] | None
) -> None:
    fences = [fence(40, 20), fence(60, 40)]
    assert where_to_begin(A, start, journal_start, fences) == found


def test_trap_88_a_reader_that_was_told_late_begins_before_all_places_of_the_stretch() -> None:
    fences = [fence(40, 20), fence(60, 40)]
    told_late = Start(50, 30, 50, mode_offset=30)
    assert where_to_begin(A, told_late, 20, fences) == (31, False)
    assert where_to_begin(A, told_late, 35, fences) == (40, True)
    # Without such a fence, what lies below its start was delivered.
    assert where_to_begin(A, told_late, 45, fences) == (60, True)
    assert where_to_begin(A, replace(told_late, passed=None), 35, fences) == (60, True)


def test_trap_173_a_fence_lists_an_older_decision_than_what_is_passed() -> None:
    view = HomeView(HOME, 20)
    view.attach(A, Start(9, None, 9), [Listed(3, 12, writes=tuple(writes(A)), places={A: 5})])
    view.settle_start(A, 20)
    assert view.passed(A) == 19


def test_trap_174_what_is_placed_where_the_log_starts_is_due_to_no_new_reader() -> None:
    view = HomeView(HOME, 20)
    listed = [Listed(3, 12, writes=tuple(writes(A)), places={A: 9})]
    view.attach(A, Start(9, None, 9, log_start=9), listed)
    assert view.next_place(A) is None
    view.settle_start(A, 20)
    assert view.passed(A) == 19


def test_trap_175_a_reader_whose_sequence_is_trimmed_begins_at_the_first_fence() -> None:
    fences = [fence(40, 20), fence(60, 40)]
    # What was decided behind 33 and placed at 40, too low, is finished at 60.
    assert where_to_begin(A, Start(50, 33, 50), 40, fences) == (40, True)
    assert where_to_begin(A, Start(50, None, 50), 40, fences) == (60, True)


def test_a_partition_that_a_fence_does_not_name_has_no_place_below_it() -> None:
    assert where_to_begin(B, Start(0, None, 0), 30, [fence(40, 20)]) == (40, True)


# ---- views that are joined ----------------------------------------------------------------------


def test_a_view_takes_over_the_partitions_of_another() -> None:
    view, late = view_of(A), HomeView(HOME, 4)
    late.attach(B, Start(0, 3, 0))
    for each in (view, late):
        each.begun(5)
        each.begun(6)
        each.committed(6, 7, writes(A, B))
        each.committed(2, 8, writes(B))
        each.placed(Placed(7, {B: 9}))
        each.read_to(10)
    view.absorb(late)
    assert view.partitions == [A, B]
    assert view.next_place(B) == (9, Due(6, 7, RANGE))
    assert [w and w.sequence for w in map(view.first_waiting, (A, B))] == [7, 8]
    view.placed(Placed(8, {A: 1, B: 9}))
    assert view.next_place(A) == (1, Due(6, 7, RANGE))
    assert view.fate(A, 5) is view.fate(B, 5) is Fate.OPEN
    assert view.fate(B, 2) is Fate.PLACED


def test_what_waits_goes_with_its_partition() -> None:
    view = view_of(A)
    view.committed(1, 4, writes(A))
    view.detach(A)
    view.attach(A, Start(0, None, 0))
    view.placed(Placed(4, {A: 7}))
    assert view.next_place(A) is None


def test_a_marked_transaction_is_forgotten_when_its_marker_is_read() -> None:
    view = view_of()
    view.committed(1, 4, writes(A, placed=False))
    view.read_to(5)
    assert view.kept(A) == 1
    view.end_marked(A, 1)
    assert view.kept(A) == 0
    assert view.fate(A, 1) is Fate.ENDED


@pytest.mark.parametrize("aside", [False, True])
def test_trap_279_what_is_placed_behind_the_lowest_record_held_is_due(aside: bool) -> None:
    """A reader without a sequence, which stands above what it holds, knew nothing of places."""
    accepted = () if aside else RANGE
    told = [HomeWrites(A, accepted, True, Aside(RANGE) if aside else None)]
    view = HomeView(HOME, 0)
    view.attach(A, Start(32, None, 19))
    for place in (18, 19, 31):
        view.committed(2 * place, 2 * place + 1, told)
        view.placed(Placed(2 * place + 1, {A: place}))
    view.read_to(64)
    view.settle_start(A, 64)
    assert [place for place, _ in taken(view)] == [19, 31]
    kept = HomeView(HOME, 0)
    kept.attach(A, Start(32, None, 32))
    kept.committed(62, 63, told)
    kept.placed(Placed(63, {A: 31}))
    kept.read_to(64)
    kept.settle_start(A, 64)
    assert taken(kept) == []
    fences = [Candidate(10, {A: 18}), Candidate(20, {A: 19})]
    assert where_to_begin(A, Start(32, None, 19), 5, fences) == (10, True)


FOREIGN = TxId(5, 0xDEF, 40)


def adoption(*partitions: PartitionId, committed: bool = True, placed: bool = True) -> Adoption:
    accepted = RANGE if committed else ()
    found = tuple(AdoptedWrites(p, accepted, placed) for p in partitions)
    return Adoption(FOREIGN, 44, committed, found)


def test_what_the_home_adopts_is_a_decision_of_the_home() -> None:
    view = view_of(A, B)
    view.adopted(6, adoption(A))
    view.read_to(7)
    assert not view.is_settled(A, 7)
    assert view.is_settled(B, 7)
    view.placed(Placed(6, {A: 9}))
    assert view.is_settled(A, 7)
    assert view.next_place(A) == (9, Due(6, 6, RANGE, FOREIGN, 44))
    view.pass_over(A)
    assert view.passed(A) == 6
    assert view.kept(A) == 0


def test_what_the_home_refuses_or_adopts_as_aborted_is_not_waited_for() -> None:
    view = view_of(A, B)
    view.adopted(6, adoption(A, placed=False))
    view.adopted(7, adoption(A, committed=False))
    view.read_to(8)
    assert view.is_settled(A, 8)
    assert view.take_aborted(A) == [FOREIGN]
    assert view.take_aborted(A) == [], "it is told once"
    assert view.take_aborted(B) == []


def test_a_snapshot_lists_what_is_adopted_and_not_placed() -> None:
    view = HomeView(HOME, 10)
    writes_of_it = (HomeWrites(A, RANGE, True),)
    view.attach(A, Start(2, None, 2), [Listed(6, 6, writes=writes_of_it, txid=FOREIGN, there=44)])
    view.placed(Placed(6, {A: 9}))
    assert view.next_place(A) == (9, Due(6, 6, RANGE, FOREIGN, 44))


# ---- what is kept ahead -------------------------------------------------------------------------


class Home:
    """A home that switches its topic, at random. It writes to partition A."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.phase = Phase.MARKERS
        self.records: list[tuple[str, Any]] = []
        self.modes: list[int] = []
        """Offsets of MODE records by which the topic goes over to places."""
        self.behind: list[int] = []
        """Those of MODE records behind which it has markers, and no mode record is to come."""
        self._open: list[int] = []
        self._unplaced: list[int] = []
        self._place = 0

    def step(self) -> None:
        chance, offset = self.chance, len(self.records)
        what = chance.choice(("begin", "begin", "commit", "commit", "abort", "place", "mode"))
        if what == "begin":
            self._open.append(offset)
            self.records.append((what, None))
        elif what in ("commit", "abort") and self._open:
            begin = self._open.pop(chance.randrange(len(self._open)))
            placed = self.phase in (Phase.TO_METADATA, Phase.METADATA)
            if what == "commit" and placed:
                self._unplaced.append(offset)
            self.records.append((what, (begin, placed)))
        elif what == "place" and self._unplaced:
            self._place += chance.randint(0, 2)
            upto = chance.choice(self._unplaced)
            self._unplaced = [each for each in self._unplaced if each > upto]
            self.records.append((what, Placed(upto, {A: self._place})))
        elif what == "mode" and not (self.phase is Phase.TO_MARKERS and self._unplaced):
            self.phase = FOLLOWING[self.phase]
            if self.phase is Phase.TO_METADATA:
                self.modes.append(offset)
            if self.phase is Phase.MARKERS:
                self.behind.append(offset)
            self.records.append((what, ModeChange(A.topic, A.topic_id, self.phase)))

    def tell(self, view: HomeView, upto: int | None = None) -> None:
        """Tells a view what lies behind where it stands, as `Homes` does."""
        for offset in range(view.next_offset, len(self.records) if upto is None else upto):
            match self.records[offset]:
                case ("begin", _):
                    view.begun(offset)
                case ("commit", (begin, placed)):
                    view.committed(begin, offset, writes(A, placed=placed))
                case ("abort", (begin, _)):
                    view.aborted(begin)
                case ("place", placed):
                    view.placed(placed)
                case (_, change):
                    view.switched(offset, change)
                    if change.phase is Phase.TO_METADATA:
                        view.collect(A)
            view.read_to(offset + 1)


FOLLOWING = {
    Phase.MARKERS: Phase.TO_METADATA,
    Phase.TO_METADATA: Phase.METADATA,
    Phase.METADATA: Phase.TO_MARKERS,
    Phase.TO_MARKERS: Phase.MARKERS,
}


def taken(view: HomeView, most: int = 10**6) -> list[tuple[int, Due]]:
    found: list[tuple[int, Due]] = []
    while len(found) < most and (following := view.next_place(A)) is not None:
        found.append(following)
        view.pass_over(A)
    return found


@pytest.mark.parametrize("seed", range(300))
def test_one_that_was_kept_ahead_knows_what_one_knows_that_begins_there(seed: int) -> None:
    home = Home(seed)
    while len(home.records) < 60 or not home.modes:
        home.step()
    view = HomeView(HOME, 0)
    view.attach(B, Start(0, -1, 0))
    home.tell(view)
    behind = -1
    for mode in sorted(home.chance.sample(home.modes, min(2, len(home.modes)))):
        passed = max(mode, behind)
        assert view.may_resume(A, passed)
        view.resume(A, passed)
        plain = HomeView(HOME, passed + 1)
        plain.attach(A, Start(0, passed, 0))
        home.tell(plain)
        compare(home, view, plain)
        for _ in range(10):
            home.step()
        home.tell(view)
        home.tell(plain)
        compare(home, view, plain)
        some = home.chance.randint(0, 5)
        assert taken(view, some) == taken(plain, some)
        behind = view.passed(A) or 0
        compare(home, view, plain)
        view.leave(A)
        assert not view.may_resume(A, behind - 1)
        assert not view.may_resume(A, view.next_offset)
    view.resume(A, behind)
    rest = HomeView(HOME, behind + 1)
    rest.attach(A, Start(0, behind, 0))
    home.tell(rest)
    assert taken(view) == taken(rest)


def compare(home: Home, view: HomeView, plain: HomeView) -> None:
    """Compares what two views know. The one that was kept ahead may know less of what began where
    the topic has markers, and more of what began before the other one: what is open or aborted."""
    assert view.next_place(A) == plain.next_place(A)
    assert view.first_waiting(A) == plain.first_waiting(A)
    assert view.last_place(A) >= plain.last_place(A)
    aborted = {said[0] for what, said in home.records if what == "abort"}
    for begin, (what, _) in enumerate(home.records):
        found, other = view.fate(A, begin), plain.fate(A, begin)
        if what != "begin" or found is other:
            continue
        began_behind_a_switch = any(at < begin for at in home.behind)
        is_less = found is Fate.UNKNOWN and began_behind_a_switch
        is_more = found is (Fate.ENDED if begin in aborted else Fate.OPEN)
        assert is_less or (is_more and other is Fate.UNKNOWN), (begin, found, other)


def test_what_is_kept_ahead_is_counted_and_the_most_is_dropped_first() -> None:
    view = HomeView(HOME, 5)
    view.attach(A, Start(0, 4, 0))
    view.collect(A)
    view.collect(B)
    c = PartitionId("c", 0, "id")
    view.collect(c)
    assert (view.ahead, view.keeps_ahead, view.partitions) == (0, True, [A])
    for begin in range(3):
        view.committed(begin, 5 + begin, writes(A, B))
    view.committed(4, 8, writes(c))
    view.read_to(9)
    assert view.ahead == 4
    view.drop_ahead(3, lambda _: True)
    assert view.ahead == 1
    assert (view.may_resume(B, 4), view.may_resume(c, 4), view.may_resume(A, 4)) == (
        False,
        True,
        False,
    )
    view.drop_ahead(3, lambda partition: partition != c)
    assert not view.keeps_ahead


def test_what_markers_end_behind_a_switch_back_is_not_kept() -> None:
    view = view_of()
    view.begun(1)
    view.switched(2, ModeChange(A.topic, A.topic_id, Phase.TO_MARKERS))
    view.begun(3)
    view.switched(4, ModeChange(A.topic, A.topic_id, Phase.MARKERS))
    for begin in (5, 6):
        view.begun(begin)
    for begin in (1, 3, 5):
        view.committed(begin, begin + 10, writes(A, placed=False))
    view.aborted(6)
    view.read_to(17)
    assert view.kept(A) == 2
    fates = [view.fate(A, begin) for begin in (1, 3, 5, 6)]
    assert fates == [Fate.MARKED, Fate.MARKED, Fate.UNKNOWN, Fate.UNKNOWN]


def test_a_joined_view_has_what_is_followed_and_what_is_kept_ahead_for_longest() -> None:
    lower, upper = HomeView(HOME, 5), HomeView(HOME, 8)
    lower.collect(A)
    lower.collect(B)
    lower.committed(1, 6, writes(A, B))
    upper.attach(A, Start(0, 7, 0))
    upper.collect(B)
    lower.read_to(8)
    for view in (lower, upper):
        view.committed(2, 9, writes(A, B))
        view.placed(Placed(9, {A: 3, B: 4}))
        view.read_to(11)
    lower.absorb(upper)
    assert lower.partitions == [A]
    assert [due.sequence for _, due in taken(lower)] == [9]
    assert lower.may_resume(B, 5)
    lower.resume(B, 5)
    following = lower.next_place(B)
    assert following is not None
    assert following[1].sequence == 6
