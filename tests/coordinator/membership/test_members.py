"""Whom a coordinator presumes dead, from streams and OWNER records: trap 7."""

from __future__ import annotations

from dataclasses import replace

from logtx.coordinator.membership.balance import Member
from logtx.coordinator.membership.members import (
    HEARD_S,
    KNOWN_MAX,
    PROOF_MAX_S,
    PROOF_MIN_S,
    UNPROVEN_MAX,
    Members,
)

OTHER = Member(nonce=2, address="b:1")


def members() -> Members:
    """What process 1 at a:1 knows at first: nothing."""
    return Members(1, "a:1")


def test_nobody_is_presumed_dead_before_being_called_once() -> None:
    known = members()
    assert not known.dead(2, 0), "nobody has heard of it"
    known.learn(2, "b:1")
    assert not known.dead(2, 1_000)
    assert known.addresses(0, []) == {"b:1"}
    known.missed("b:1")
    assert known.dead(2, 0)


def test_a_broken_stream_alone_is_no_death() -> None:
    known = members()
    known.link(OTHER)
    known.unlink(2)
    assert not known.dead(2, 0)
    known.missed("b:1")
    assert known.dead(2, 0)
    known.link(OTHER)
    assert not known.dead(2, 0)
    assert known.reached(0) == known.linked() == [OTHER]


def test_a_stream_to_us_is_evidence_while_something_comes_by_it() -> None:
    known = members()
    known.heard(OTHER, 10)
    known.missed("b:1")
    assert not known.dead(2, 10 + HEARD_S / 2)
    assert known.reached(10.0) == [OTHER]
    assert known.linked() == [], "it can't be asked for anything"
    assert known.dead(2, 10 + 2 * HEARD_S)
    known.heard(OTHER, 20)
    known.silent(2)
    assert known.dead(2, 20)


def test_trap_7_another_process_at_an_address_is_not_the_former() -> None:
    known = members()
    known.link(OTHER)
    successor = Member(nonce=3, address="b:1")
    known.link(successor)
    assert known.dead(2, 0)
    assert not known.dead(3, 0)
    known.learn(4, "a:1")
    assert known.dead(4, 0), "at our own address we are"


def test_trap_7_who_was_at_another_name_of_ours_has_ended() -> None:
    known = members()
    known.learn(2, "localhost:1")
    known.answered_by_us("localhost:1")
    assert known.dead(2, 0)
    known.learn(3, "localhost:1")
    assert known.dead(3, 0), "and whoever was there before"
    assert known.addresses(0, [2, 3]) == set(), "needed or not: we would answer"


def test_trap_7_who_wins_ownership_lives_though_it_can_not_be_reached() -> None:
    known = members()
    known.missed("b:1")
    known.proven(2, "b:1", 100)
    known.missed("b:1")
    assert not known.dead(2, 100 + PROOF_MIN_S / 2)
    assert known.dead(2, 100 + PROOF_MIN_S)


def test_trap_7_two_that_can_not_reach_each_other_do_not_duel_for_ever() -> None:
    """Each takes the partition as soon as it presumes the other dead."""
    one, two = Members(1, "a:1"), Members(2, "b:1")
    one.learn(2, "b:1")
    two.learn(1, "a:1")
    one.missed("b:1")
    two.missed("a:1")
    now_s, owner, moves = 0.0, 1, []
    while now_s < 3_600:
        if owner == 1 and two.dead(1, now_s):
            owner = 2
            one.proven(2, "b:1", now_s)
            moves.append(now_s)
        elif owner == 2 and one.dead(2, now_s):
            owner = 1
            two.proven(1, "a:1", now_s)
            moves.append(now_s)
        now_s += 0.5
    assert len(moves) < 40
    assert moves[-1] - moves[-2] >= PROOF_MAX_S / 2


def test_evidence_that_was_needed_in_vain_is_forgotten_once_it_answers() -> None:
    known = members()
    known.learn(2, "b:1")
    known.missed("b:1")
    for at in range(10):
        known.proven(2, "b:1", at)
    known.link(OTHER)
    known.unlink(2)
    known.missed("b:1")
    assert known.dead(2, 20), "its death is believed at once again"


def test_who_is_called() -> None:
    known = members()
    for nonce, address in ((2, "b:1"), (3, "c:1"), (4, "a:1"), (1, "a:1")):
        known.learn(nonce, address)
    known.missed("c:1")
    assert known.addresses(0, []) == {"b:1"}, "not the dead, and not ourselves"
    assert known.addresses(0, [3]) == {"b:1", "c:1"}, "but owners, dead or not"


def test_what_is_remembered_is_bounded() -> None:
    known = members()
    known.link(OTHER)
    for nonce in range(10, 10 + 2 * KNOWN_MAX):
        known.learn(nonce, f"d:{nonce}")
    assert len(known.addresses(0, [])) == KNOWN_MAX
    assert known.get(2) == OTHER, "whoever answers is kept"


def test_an_owner_is_not_forgotten_nor_who_has_just_come() -> None:
    known = members()
    known.owns(9, "gone:1", 3)
    known.missed("gone:1")
    for nonce in range(10, 10 + 2 * KNOWN_MAX):
        known.learn(nonce, f"d:{nonce}")
    assert known.dead(9, 0), "else nobody would ever bid for its partition"
    for nonce in range(1_000, 1_000 + 2 * KNOWN_MAX):
        known.link(Member(nonce=nonce, address=f"e:{nonce}"))
    assert len(known.linked()) == 2 * KNOWN_MAX


def test_what_it_appends_at_one_time_proves_its_life_once() -> None:
    known = members()
    known.learn(2, "b:1")
    known.missed("b:1")
    for partition in range(8):
        known.proven(2, "b:1", partition / 100)
    assert not known.dead(2, PROOF_MIN_S - 0.01)
    assert known.dead(2, PROOF_MIN_S + 0.1), "not after eight times as long"


def test_the_highest_end_that_anybody_told_of_is_known_when_it_is_gone() -> None:
    known = members()
    assert known.known_end(0, 0) == 0
    known.tell(replace(OTHER, ends={0: 7, 1: 3}))
    known.tell(replace(OTHER, ends={0: 5}))
    known.tell(Member(nonce=3, address="c:1", ends={1: 9}))
    known.missed("b:1")
    assert (known.known_end(0, 0), known.known_end(1, 0)) == (7, 9)
    assert replace(OTHER, ends={0: 7}) == OTHER, "nobody is woken for it"


def test_an_end_far_ahead_is_believed_of_those_alone_whose_owner_record_was_read() -> None:
    # One message of a stranger would else make all refuse the journal partition, as if its tail
    # was lost; and an operator who then accepted the loss would fill it with void records.
    known = members()
    far = 5_000_000
    known.heard(Member(nonce=3, address="c:1", ends={0: far}), 0)
    assert known.known_end(0, 100) == 100
    known.tell(replace(OTHER, ends={0: 100 + UNPROVEN_MAX, 1: far}))
    assert known.known_end(0, 100) == 100 + UNPROVEN_MAX, "it may have read what was lost"
    assert known.known_end(0, 99) == 99
    assert known.known_end(1, 0) == 0
    known.owns(2, "b:1", 7)
    assert (known.known_end(1, 0), known.known_end(0, 99)) == (far, 100 + UNPROVEN_MAX)
    known.tell(replace(OTHER, ends={1: far + 1}))
    assert known.known_end(1, 0) == far + 1


def test_what_another_gained_counts_before_it_says_so() -> None:
    known = members()
    known.link(OTHER)
    known.gained(2, 5, 77)
    (other,) = known.reached(0)
    assert other.owned == {5: 77}


def test_an_owner_that_says_nothing_of_serving_is_idle_while_it_is_reached() -> None:
    known = members()
    known.learn(2, "b:1")
    assert not known.idle(2, 0, 7, 0), "it was not asked yet"
    known.link(replace(OTHER, owned={0: 7}))
    assert not known.idle(2, 0, 7, 0)
    assert not known.idle(2, 0, 3, 0), "we are behind"
    assert known.idle(2, 0, 9, 0), "it has won it again, or lost what it had"
    assert known.idle(2, 1, 5, 0)
    known.unlink(2)
    assert not known.idle(2, 0, 9, 0)
