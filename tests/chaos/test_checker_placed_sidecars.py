"""The checker where places stand for pointers: what is right passes, one change is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logtx.journal.records.types import Committed, PointerStep
from logtx.journal.sidecar import sidecar_of, to_delivered

from .checker_world import IN, Txn, World
from .test_checker_anomalies import P0, only, shown
from .test_checker_places import placing, process_all, right

ASIDE = sidecar_of(IN), 0
RAW = "read_uncommitted"


def aside(world: World, records: int = 2) -> Txn:
    """An open transaction with records in the sidecar alone."""
    txn = world.begin()
    for _ in range(records):
        txn.append_aside()
    return txn


def both(world: World) -> Txn:
    """An open one with a record in the topic, and one in the sidecar."""
    txn = world.begin()
    txn.append(0)
    txn.append_aside()
    return txn


def end_aside(txn: Txn, place: int | None = None, **how: bool) -> Txn:
    """The marker of the sidecar, and what is told: the rest of a commit whose place is given."""
    txn.mark_aside(P0, len(txn.world.logs[P0]) if place is None else place, **how)
    return txn.finish().end("committed")


def given_all_but(world: World, *left_out: int) -> World:
    """A last reader that is given all of the partition but some offsets."""
    world.assign("final-0.0", P0)
    world.poll("final-0.0", P0, [o for o in world.order[P0] if o not in left_out])
    return world


# ---- what is right ------------------------------------------------------------------------------


def test_a_sidecar_is_delivered_at_the_place_behind_what_lies_in_the_topic() -> None:
    world = placing()
    one, other = aside(world), both(world)
    world.plain()
    other.commit()
    one.commit()
    world.plain()
    assert world.order[P0] == [0, 3, 2, *map(to_delivered, (2, 0, 1)), 4]
    assert right(world).stats["places"] == 2


def test_pointers_and_places_in_turn() -> None:
    world = World()
    for _ in range(4):
        for begin in (aside, both):
            begin(world).commit()
            world.plain()
        aside(world).abort() if IN not in world.homes else aborted(world)
        world.switch()
    right(world)


def aborted(world: World) -> Txn:
    """An aborted transaction: only the sidecar is told."""
    txn = both(world).decide(commit=False)
    txn.mark_aside(P0, None, commit=False)
    return txn.finish(commit=False).end("aborted")


def test_input_in_a_sidecar_that_was_placed_is_claimed_by_what_was_passed() -> None:
    world = placing()
    for begin in (aside, both, aside):
        begin(world).commit()
    process_all(world)
    right(world)


def test_what_was_acknowledged_in_a_sidecar_says_nothing_of_the_topics_end() -> None:
    world = placing()
    aside(world).commit()
    plain = world.begin()
    plain.append(0)
    plain.commit()
    right(world)


@pytest.mark.parametrize("is_late", [False, True])
def test_readers_of_uncommitted_records_come_to_a_place_or_are_told_later(is_late: bool) -> None:
    world = placing()
    first, second = aside(world), both(world)
    first.commit()
    second.commit()
    world.plain()
    sidecar = [to_delivered(offset) for offset in (0, 1, 2)]
    world.assign("consumer-0.0", P0, isolation=RAW)
    given = [0, 2, 3, *sidecar] if is_late else [0, 2, *sidecar, 3]
    world.poll("consumer-0.0", P0, given, RAW)
    right(world)


def test_a_store_knows_no_place_of_what_lies_in_a_sidecar() -> None:
    world = placing()
    txn = both(world).commit()
    world.store_says(txn, 3)
    world.store_says(aside(world).commit())
    right(world)


# ---- what was trimmed ---------------------------------------------------------------------------


def test_trap_166_what_is_placed_where_the_log_starts_is_due() -> None:
    world = placing()
    txn = aside(world).commit()
    world.starts[P0] = 2
    world.order[P0] = txn.delivers(P0)
    right(world)
    del world.events["final-0.0"]
    only(given_all_but(world, *txn.delivers(P0)), "unseen")


@pytest.mark.parametrize("is_given", [False, True])
def test_what_is_placed_before_something_that_is_gone_may_be_passed_over(is_given: bool) -> None:
    world = placing()
    early, gone = aside(world), both(world)
    for txn in (early, gone):
        txn.ask().decide().place()
        end_aside(txn)
    world.plain()
    world.starts[P0] = 3
    world.order[P0] = [*(map(to_delivered, (0, 1)) if is_given else ()), 3]
    assert right(world).unverifiable["transaction of which a part was trimmed"]


def test_what_is_placed_below_the_logs_start_is_not_judged() -> None:
    world = placing()
    aside(world).commit()
    world.plain()
    world.plain()
    world.starts[P0] = 3
    world.order[P0] = [3]
    assert right(world).unverifiable["transaction of which a part was trimmed"]


def test_a_decision_that_was_trimmed_told_whether_it_is_placed() -> None:
    world = placing()
    txn = aside(world).ask().decide()
    world.journal_starts[0] = len(world.journals[0])
    txn.place(delivers=False)
    end_aside(txn)
    assert right(world).unverifiable["marker of a decision that was trimmed"]


def test_a_pointer_that_may_be_a_copy_of_one_that_was_trimmed_is_not_judged() -> None:
    world = World()
    txn = aside(world).commit()
    world.plain()
    txn.point(P0)
    world.plain()
    world.starts[P0] = 2
    world.order[P0] = [3]
    assert right(world).unverifiable["transaction of which a part was trimmed"]


# ---- deliveries ---------------------------------------------------------------------------------


def test_lost_write_of_what_is_placed_in_a_sidecar() -> None:
    world = placing()
    aside(world).commit()
    world.plain()
    only(given_all_but(world, *map(to_delivered, (0, 1))), "lost-write")


@pytest.mark.parametrize("begin", [aside, both])
def test_torn_transaction_of_which_half_is_given(begin: Callable[[World], Txn]) -> None:
    world = placing()
    txn = begin(world).commit()
    only(given_all_but(world, txn.delivers(P0)[-1]), "torn-transaction")


def test_duplicate_of_what_is_placed_in_a_sidecar() -> None:
    world = placing()
    aside(world).commit()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, *map(to_delivered, (0, 1, 1))])
    only(world.finals(), "duplicate")


def test_nonmonotonic_poll_of_a_plain_record_before_a_sidecar_that_is_placed_before_it() -> None:
    world = placing()
    aside(world).commit()
    world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 2, *map(to_delivered, (0, 1))])
    verdict = only(world.finals(), "nonmonotonic-poll", "order-differs")
    assert "PLACED" in shown(verdict, "nonmonotonic-poll")


def test_nonmonotonic_poll_of_a_sidecar_before_what_the_transaction_has_in_the_topic() -> None:
    world = placing()
    both(world).commit()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, to_delivered(0), 2])
    only(world.finals(), "nonmonotonic-poll", "order-differs")


def test_g1a_of_an_abort_that_only_its_sidecar_tells() -> None:
    world = placing()
    aborted(world)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, to_delivered(0)])
    only(world.finals(), "g1a")


@pytest.mark.parametrize("is_given", [False, True])
def test_a_place_that_tells_too_few_records(is_given: bool) -> None:
    world = placing()
    txn = aside(world, 3)
    third = txn.aside[P0].pop()
    txn.commit()
    if is_given:
        world.order[P0].append(to_delivered(third))
        only(world.finals(), "zombie-write")
    else:
        only(world.finals(), "torn-transaction")


def test_a_place_that_tells_nothing_of_the_sidecar() -> None:
    world = placing()
    txn = both(world)
    txn.aside.clear()
    txn.commit()
    only(world.finals(), "torn-transaction")


def test_torn_transaction_of_a_sidecar_that_lost_a_record() -> None:
    world = placing()
    aside(world, 3).commit()
    world.asides[ASIDE] = [record for record in world.asides[ASIDE] if record.offset != 1]
    world.order[P0].remove(to_delivered(1))
    verdict = only(world.finals(), "torn-transaction", "inconsistent-offsets")
    found = shown(verdict, "torn-transaction")
    assert "states 3 records, and the log holds 2" in found


def test_nonmonotonic_poll_of_uncommitted_records_before_their_place() -> None:
    world = placing()
    world.plain()
    aside(world).commit()
    world.assign("consumer-0.0", P0, isolation=RAW)
    world.poll("consumer-0.0", P0, [0, *map(to_delivered, (0, 1)), 2], RAW)
    found = shown(only(world.finals(), "nonmonotonic-poll"), "nonmonotonic-poll")
    assert "placed behind it" in found


@pytest.mark.parametrize(
    ("given", "name"),
    [((2, 0, 1), "nonmonotonic-poll"), ((0, 2), "skipped-poll")],
    ids=["order", "skipped"],
)
def test_readers_of_uncommitted_records_are_given_sidecars_in_commit_order(
    given: tuple[int, ...], name: str
) -> None:
    world = placing()
    placed = [*aside(world).commit().delivers(P0), *aside(world).commit().delivers(P0)]
    world.assign("consumer-0.0", P0, isolation=RAW)
    world.poll("consumer-0.0", P0, [0, *(placed[index] for index in given)], RAW)
    only(world.finals(), name)


def test_skipped_poll_between_two_lives_of_a_reader_of_uncommitted_records() -> None:
    world = placing()
    placed = [aside(world).commit().delivers(P0) for _ in range(3)]
    for life, given in enumerate((placed[0], placed[2])):
        world.assign(f"consumer-0.{life}", P0, isolation=RAW)
        world.poll(f"consumer-0.{life}", P0, given, RAW)
    only(world.finals(), "skipped-poll")


@pytest.mark.parametrize(
    ("given", "name"),
    [((0, 1, 2), None), ((0, 1), "unseen"), ((0, 2), "skipped-poll"), ((1, 2), "skipped-poll")],
    ids=["all", "end", "middle", "beginning"],
)
def test_a_last_reader_of_uncommitted_records_is_given_all(
    given: tuple[int, ...], name: str | None
) -> None:
    world = placing()
    placed = [aside(world, 1).commit().delivers(P0)[0] for _ in range(3)]
    world.assign("final-1.0", P0, isolation=RAW)
    world.poll("final-1.0", P0, [0, *(placed[index] for index in given)], RAW)
    if name is None:
        right(world)
    else:
        only(world.finals(), name)


# ---- places and markers -------------------------------------------------------------------------


def test_missing_place_of_what_lies_in_a_sidecar_alone() -> None:
    world = placing()
    txn = aside(world).ask().decide()
    txn.mark_aside(P0, None)
    txn.finish().end("committed")
    verdict = world.finals().judge()
    assert "missing-place" in verdict.counts
    assert {"marker-mismatch", "unseen"} >= verdict.counts.keys() - {"missing-place"}


def test_marker_mismatch_of_a_pointer_where_a_place_stands_for_it() -> None:
    world = placing()
    aside(world).commit().point(P0)
    found = shown(only(world.finals(), "marker-mismatch"), "marker-mismatch")
    assert "its transaction is placed" in found


@pytest.mark.parametrize(
    ("pointer", "commit", "sentence"),
    [
        (0, True, "names a pointer that is none, or a place"),
        (None, True, "names no place"),
        (None, False, "says ABORTED"),
    ],
    ids=["another", "none", "aborted"],
)
def test_marker_mismatch_of_a_sidecars_marker(
    pointer: int | None, commit: bool, sentence: str
) -> None:
    world = placing()
    txn = aside(world).ask().decide().place()
    txn.mark_aside(P0, pointer, commit=commit)
    txn.finish().end("committed")
    assert sentence in shown(only(world.finals(), "marker-mismatch"), "marker-mismatch")


@pytest.mark.parametrize("place", [2, 1])
def test_marker_mismatch_of_what_finishes_a_transaction_at_another_place(place: int) -> None:
    world = placing()
    txn = aside(world).ask().decide().place()
    txn.mark_aside(P0, 2)
    steps = (PointerStep(ASIDE, place, 0),)
    world.journal_append(0, Committed(begin=txn.txid.offset, pointers=steps))
    txn.end("committed")
    if place == 2:
        right(world)
    else:
        found = shown(only(world.finals(), "marker-mismatch"), "marker-mismatch")
        assert "no pointer and no place" in found
