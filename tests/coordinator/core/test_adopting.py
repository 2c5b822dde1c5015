"""Handing transactions over to a home: what the search's one partition does not show."""

from __future__ import annotations

import pytest

from logtx.coordinator.core.adopting import (
    Adopted,
    AdoptedRow,
    Answer,
    Answered,
    Answers,
    Handed,
    HandedOver,
    HandedWrites,
)
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.places import Places
from logtx.coordinator.core.ranges import PackedRanges
from logtx.journal.control import BranchRange
from logtx.journal.errors import CorruptRecordError
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.txid import TxId

JOURNAL = (7, 99)
"""The journal that decides."""
HOME = 2
A, B = PartitionId("a", 0, "id-a"), PartitionId("a", 1, "id-a")
OTHER = PartitionId("b", 0, "id-b")
"""Of a topic whose home is another journal."""
UNKNOWN = PartitionId("c", 0, "id-c")
"""Of a topic that the home knows nothing of."""


def handed(begin: int, sequence: int, *where: tuple[PartitionId, int]) -> Handed:
    accepted = (BranchRange(0, 4, 6, 2),)
    writes = tuple(HandedWrites(partition, accepted, home) for partition, home in where)
    return Handed(TxId(*JOURNAL, begin), sequence, True, writes)


class Home:
    """The state of a home whose topic "a" is in metadata mode."""

    def __init__(self) -> None:
        self.places, self.modes = Places(), TopicModes()
        self.adopted = Adopted(HOME, self.places, self.modes)
        for offset, phase in ((1, Phase.TO_METADATA), (2, Phase.METADATA)):
            self.modes.replay(offset, ModeChange("a", "id-a", phase, {}))

    def placed(self, upto: int, ends: dict[PartitionId, int]) -> None:
        self.adopted.replay_placed(self.places.replay_placed(Placed(upto, ends)))

    def restored(self) -> Adopted:
        """Returns what a new owner has of it, from a snapshot."""
        places = Places.restore(self.places.fence(50), self.places.rows())
        rows, unplaced = self.adopted.rows(), self.adopted.unplaced()
        return Adopted.restore(HOME, places, self.modes, rows, unplaced)


def over(*each: Handed) -> HandedOver:
    found = HandedOver()
    for one in each:
        found.replay_decided(one, ())
    return found


def test_each_home_adopts_what_is_handed_to_it_and_refuses_what_it_does_not_know() -> None:
    home = Home()
    one = handed(3, 10, (A, HOME), (OTHER, 5), (UNKNOWN, HOME))
    found = home.adopted.adopt(JOURNAL, over(one))
    accepted = (BranchRange(0, 4, 6, 2),)
    assert found == Adoption(
        one.txid,
        10,
        True,
        (AdoptedWrites(A, accepted, True), AdoptedWrites(UNKNOWN, accepted, False)),
    )
    assert home.adopted.replay(20, found) == (A,)
    assert home.adopted.adopt(JOURNAL, over(one)) is None

    answers = Answers()
    answers.wait(one)
    assert answers.homes() == {HOME, 5}
    refusal = Answered(3, 10, UNKNOWN, is_refused=True)
    said = answers.ask(home.adopted)
    assert said == answers.ask(home.adopted) == [refusal], "nothing is taken by asking"
    assert answers.take(said) == ([refusal], [])
    assert answers.take(said) == ([], []), "a refusal is told once"
    assert not answers.may_mark(A, 11)
    assert answers.may_mark(A, 10)
    assert answers.may_mark(UNKNOWN, 11)
    home.placed(20, {A: 8})
    assert answers.take(answers.ask(home.adopted)) == ([], [])
    assert answers.may_mark(A, 11)
    assert answers.is_waiting(3), "the other home has not answered"
    assert not answers.may_mark(OTHER, 11)
    other = Adopted(5, Places(), TopicModes())
    adoption = other.adopt(JOURNAL, over(one))
    assert adoption is not None
    other.replay(8, adoption)
    assert answers.take(answers.ask(other)) == ([Answered(3, 10, OTHER, is_refused=True)], [3])
    assert not answers.is_waiting(3)


def test_a_topic_that_is_gone_needs_no_marker() -> None:
    home = Home()
    one = handed(3, 10, (A, HOME))
    adoption = home.adopted.adopt(JOURNAL, over(one))
    assert adoption is not None
    home.adopted.replay(20, adoption)
    home.placed(20, {A: GONE})
    assert home.adopted.answer(one.txid, 10, A) is Answer.PLACED


def test_a_home_that_begins_at_a_snapshot_answers_as_before() -> None:
    home = Home()
    whole, half = handed(3, 10, (A, HOME), (UNKNOWN, HOME)), handed(4, 12, (A, HOME), (B, HOME))
    both = over(whole, half)
    for offset in (20, 21):
        adoption = home.adopted.adopt(JOURNAL, both)
        assert adoption is not None
        home.adopted.replay(offset, adoption)
    home.placed(20, {A: 8})
    home.placed(21, {B: 9})
    for adopted in (home.adopted, home.restored()):
        assert adopted.answer(whole.txid, 10, A) is Answer.PLACED
        assert adopted.answer(whole.txid, 10, UNKNOWN) is Answer.REFUSED
        assert adopted.answer(half.txid, 12, A) is Answer.NONE
        assert adopted.answer(half.txid, 12, B) is Answer.PLACED
        assert adopted.adopt(JOURNAL, both) is None
        assert adopted.answer(TxId(JOURNAL[0], 98, 3), 10, A) is Answer.NONE, "another incarnation"


def test_what_is_adopted_is_forgotten_when_it_is_placed_or_its_marker_is_written() -> None:
    home = Home()
    first = handed(3, 10, (A, HOME), (UNKNOWN, HOME))
    journal = over(first)
    adoption = home.adopted.adopt(JOURNAL, journal)
    assert adoption is not None
    home.adopted.replay(20, adoption)
    home.placed(20, {A: 8})
    assert home.adopted.unplaced() == []
    assert home.places.rows() == []
    assert home.adopted.rows() == [AdoptedRow(JOURNAL, 10, {10: frozenset({UNKNOWN})})]
    journal.replay_finished(3)
    journal.replay_decided(handed(5, 14, (A, HOME)), ())
    adoption = home.adopted.adopt(JOURNAL, journal)
    assert adoption is not None
    assert adoption.settled == (10,)
    home.adopted.replay(21, adoption)
    assert home.adopted.rows() == [AdoptedRow(JOURNAL, 14, {})]


def test_what_does_not_fit_is_adopted_in_several_records() -> None:
    home = Home()
    first, second = handed(3, 10, (B, HOME), (UNKNOWN, HOME), (A, HOME)), handed(4, 12, (A, HOME))
    both = over(first, second)
    shares = []
    for offset in (20, 21, 22):
        assert home.adopted.upto(JOURNAL) == -1
        for adopted in (home.adopted, home.restored()):
            assert adopted.answer(first.txid, 10, A) is Answer.NONE
            share = adopted.adopt(JOURNAL, both, bytes_max=1)
            assert share is not None
        home.adopted.replay(offset, share)
        home.placed(offset, {w.partition: 8 for w in share.writes if w.placed})
        shares.append(share)
    assert [(s.writes[0].partition, s.more) for s in shares] == [
        (A, True),
        (B, True),
        (UNKNOWN, False),
    ]
    for adopted in (home.adopted, home.restored()):
        assert adopted.answer(first.txid, 10, A) is Answer.PLACED
        assert adopted.answer(first.txid, 10, UNKNOWN) is Answer.REFUSED
        following = adopted.adopt(JOURNAL, both, bytes_max=1)
        assert following is not None
        assert (following.txid, following.more) == (second.txid, False)


def test_one_that_ends_in_a_larger_record_leaves_nothing_out() -> None:
    """A new owner may have other limits than the one before."""
    home = Home()
    one = over(handed(3, 10, (B, HOME), (UNKNOWN, HOME), (A, HOME)))
    share = home.adopted.adopt(JOURNAL, one, bytes_max=1)
    assert share is not None
    home.adopted.replay(20, share)
    rest = home.restored().adopt(JOURNAL, one)
    assert rest is not None
    assert ([w.partition for w in rest.writes], rest.more) == ([B, UNKNOWN], False)


def test_a_replaced_owner_adopts_nothing_behind_what_its_successor_finished() -> None:
    """It has adopted a part, and hears that the transaction is finished (trap 273)."""
    home = Home()
    first, second = handed(3, 10, (A, HOME), (B, HOME)), handed(4, 12, (A, HOME))
    both = over(first, second)
    share = home.adopted.adopt(JOURNAL, both, bytes_max=1)
    assert share is not None
    assert share.more
    home.adopted.replay(20, share)
    both.replay_finished(3)
    assert home.adopted.adopt(JOURNAL, both) is None


def test_shares_are_answered_when_each_has_its_places() -> None:
    home = Home()
    one = handed(3, 10, (A, HOME), (B, HOME))
    for offset in (20, 21):
        share = home.adopted.adopt(JOURNAL, over(one), bytes_max=1)
        assert share is not None
        home.adopted.replay(offset, share)
    home.placed(21, {B: 8})
    for adopted in (home.adopted, home.restored()):
        assert adopted.answer(one.txid, 10, A) is Answer.NONE
        assert adopted.answer(one.txid, 10, B) is Answer.PLACED


def test_very_many_ranges_are_packed_until_they_are_placed() -> None:
    home, many = Home(), tuple(BranchRange(b, 2 * b, 2 * b + 1, 2) for b in range(1_000))
    one = Handed(TxId(*JOURNAL, 3), 10, True, (HandedWrites(A, many, HOME),))
    adoption = home.adopted.adopt(JOURNAL, over(one))
    assert adoption is not None
    home.adopted.replay(20, adoption)
    for adopted in (home.adopted, home.restored()):
        [(_, kept)] = adopted.unplaced()
        assert isinstance(kept.writes[0].branches, PackedRanges)
        assert tuple(kept.writes[0].branches) == many


def test_no_partition_is_handed_over_while_a_marker_of_it_is_unfinished() -> None:
    journal = HandedOver()
    journal.watch([(2, (A.key,)), (1, ())])
    journal.replay_decided(handed(3, 10), (A.key,))
    assert not journal.may_hand(A.key)
    assert journal.may_hand(B.key)
    assert not journal.replay_finished(3)
    assert not journal.may_hand(A.key), "one of before is unfinished"
    journal.replay_finished(2)
    assert journal.may_hand(A.key)
    journal.replay_decided(handed(4, 12, (A, HOME)), ())
    assert journal.replay_finished(4)


def test_a_second_adoption_is_a_broken_journal() -> None:
    home = Home()
    adoption = home.adopted.adopt(JOURNAL, over(handed(3, 10, (A, HOME))))
    assert adoption is not None
    home.adopted.replay(20, adoption)
    with pytest.raises(CorruptRecordError, match="taken over before"):
        home.adopted.replay(21, adoption)


def test_a_share_that_does_not_follow_is_a_broken_journal() -> None:
    home = Home()
    first, second = handed(3, 10, (A, HOME), (B, HOME)), handed(4, 12, (A, HOME))
    share = home.adopted.adopt(JOURNAL, over(first), bytes_max=1)
    other = Home().adopted.adopt(JOURNAL, over(second))
    assert share is not None
    assert other is not None
    home.adopted.replay(20, share)
    with pytest.raises(CorruptRecordError, match="its part up to"):
        home.adopted.replay(21, share)
    with pytest.raises(CorruptRecordError, match="whose rest must come first"):
        home.adopted.replay(21, other)
