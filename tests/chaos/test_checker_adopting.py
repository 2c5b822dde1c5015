"""What a home adopts of another journal: what is right passes, what is not is found."""

from __future__ import annotations

import pytest

from logtx.journal.modes import ModeChange, Phase

from .checker_world import IN, OUT, Partition, Txn, World
from .test_checker_anomalies import P0, P1, only, shown
from .test_checker_places import process_all, right


def homes() -> World:
    """The input's home is journal 0; journal 1 decides the transactions of this file."""
    world = World(journals=2)
    world.plain()
    world.switch(journal=0)
    return world


def foreign(world: World, *numbers: int) -> Txn:
    """A transaction of journal 1 with a value in each of these partitions."""
    txn = world.begin(journal=1)
    for number in numbers or (0,):
        txn.append(number)
    return txn


def adopted(world: World, *numbers: int) -> Txn:
    """One that is committed, handed over and placed."""
    txn = foreign(world, *numbers)
    partitions = tuple(txn.offsets)
    return txn.ask().decide(hand=partitions).adopt(*partitions).place().finish().end("committed")


# ---- what is right ------------------------------------------------------------------------------


def test_what_is_adopted_is_delivered_at_its_place() -> None:
    world = homes()
    ours, theirs = world.begin(), foreign(world, 0, 1)
    ours.append(0)
    theirs.append(0)
    theirs.ask().decide(hand=[P0, P1]).adopt(P0, P1)
    ours.ask().decide()
    world.plain()
    ours.place(delivers=False)
    for txn in (theirs, ours):  # as the home's records stand, not as the journals decided
        world.deliver_placed(P0, txn, len(world.logs[P0]))
    theirs.place(P1).finish().end("committed")
    ours.finish().end("committed")
    world.plain()
    assert world.order[P0] == [0, 5, 2, 4, 3, 6]
    stats = right(world).stats
    assert (stats["places"], stats["adoptions"]) == (3, 1)


def test_what_is_placed_partly_by_others() -> None:
    """Its own journal places in one topic, another one in the second, and a third is marked."""
    world = World(journals=2, outputs=(OUT, "chaos-third"))
    world.switch(journal=0)
    world.switch(OUT, journal=1)
    txn = foreign(world)
    txn.append(0, OUT)
    txn.append(0, "chaos-third")
    txn.ask().decide(hand=[P0]).adopt(P0)
    txn.place((OUT, 0)).place(P0)
    txn.mark(("chaos-third", 0))
    txn.finish().end("committed")
    right(world)


def test_what_the_home_refuses_is_marked() -> None:
    world = homes()
    txn = foreign(world, 0, 1)
    txn.ask().decide(hand=[P0, P1]).adopt(P0, P1, refuses=[P0])
    txn.mark(P0)
    txn.place(P1).finish().end("committed")
    right(world)


def test_what_was_to_be_placed_in_a_topic_that_is_gone_is_marked() -> None:
    world = homes()
    txn = foreign(world)
    txn.ask().decide(hand=[P0]).adopt(P0).place(at=-1, delivers=False)
    txn.mark(P0)
    txn.finish().end("committed")
    right(world)


@pytest.mark.parametrize("refuses", [True, False])
def test_an_abort_is_adopted_or_marked(*, refuses: bool) -> None:
    world = homes()
    txn = foreign(world).decide(commit=False, hand=[P0])
    txn.adopt(P0, commit=False, refuses=[P0] if refuses else [])
    if refuses:
        txn.mark(P0, commit=False)
    txn.finish(commit=False).end("aborted")
    right(world)


def test_input_that_another_home_placed_is_claimed_by_its_sequence() -> None:
    world = homes()
    adopted(world)
    adopted(world)
    process_all(world)
    right(world)


def test_a_store_says_that_what_other_homes_place_ends_behind_its_last_record() -> None:
    world = homes()
    txn = adopted(world)
    world.store_says(txn, txn.offsets[P0][-1] + 1)
    right(world)


@pytest.mark.parametrize("known", [True, False])
def test_store_mismatch_of_what_another_home_placed(*, known: bool) -> None:
    world = homes()
    world.store_says(adopted(world), known=known)
    found = shown(only(world.finals(), "store-mismatch"), "store-mismatch")
    assert ("no write that is placed" if known else "nothing, and what is placed") in found


def test_an_adoption_of_what_was_trimmed_is_not_judged() -> None:
    world = homes()
    txn = adopted(world)
    world.own(1)
    world.journal_starts[1] = len(world.journals[1]) - 1
    assert txn.sequence < world.journal_starts[1]
    verdict = right(world)
    assert verdict.unverifiable["adoption of a decision that is not in the dump"] == 1
    assert verdict.stats["committed by the log"] == 1


def test_an_adoption_that_was_trimmed_is_not_missed() -> None:
    world = homes()
    txn = adopted(world)
    world.own(0)
    world.journal_starts[0] = len(world.journals[0]) - 1
    world.starts[P0] = len(world.logs[P0])
    world.order[P0] = []
    assert txn.adopted_at[0] < world.journal_starts[0]
    assert right(world).unverifiable["adoption that may have been trimmed"] == 1


# ---- what is not --------------------------------------------------------------------------------


def test_missing_place_of_what_was_not_adopted() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0])
    txn.finish().end("committed")
    verdict = only(world.finals(), "missing-place", "unseen")
    assert "journal[0] did not adopt it for chaos[0]" in shown(verdict, "missing-place")


def test_missing_place_of_what_was_adopted() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0]).adopt(P0)
    txn.finish().end("committed")
    verdict = only(world.finals(), "missing-place", "unseen")
    assert "for which it was adopted" in shown(verdict, "missing-place")


def test_missing_marker_of_what_was_refused() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0]).adopt(P0, refuses=[P0])
    txn.finish().end("committed")
    only(world.finals(), "missing-marker", "unseen")


def test_marker_mismatch_of_a_marker_where_a_home_places() -> None:
    world = homes()
    txn = adopted(world)
    txn.mark(P0)
    only(world.finals(), "marker-mismatch")


def test_watermark_above_what_a_home_places_behind_its_marker() -> None:
    world = World(journals=2)
    marked = foreign(world)
    marked.commit()
    world.switch(journal=0)
    txn = foreign(world)
    marked.mark(P0, hw=txn.txid.offset + 1)
    txn.ask().decide(hand=[P0]).adopt(P0).place().finish().end("committed")
    assert "PLACED" in shown(only(world.finals(), "watermark"), "watermark")


def test_place_order_of_a_place_before_a_marker_of_a_lower_sequence() -> None:
    world = homes()
    marked = foreign(world).ask().decide()
    adopted(world)
    marked.mark(P0)
    marked.finish().end("committed")
    only(world.finals(), "place-order")


def test_mode_mismatch_of_a_place_behind_the_mode_record() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0]).adopt(P0)
    world.plain()
    world.switch(journal=0)
    world.place(txn, [P0], home=0, delivers=False)
    world.order[P0] += txn.offsets[P0]
    txn.finish().end("committed")
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "all is marked again" in found


def first_of(world: World, *names: str) -> str:
    """What is said of the first of the anomalies that are found, and no other."""
    return shown(only(world.finals(), *names), names[0])


def test_adoption_mismatch_of_one_that_is_adopted_twice() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0]).adopt(P0).place()
    txn.adopt(P0).finish().end("committed")
    assert "is adopted twice" in first_of(world, "adoption-mismatch")


def test_what_is_adopted_in_several_records() -> None:
    world = homes()
    txn = foreign(world, 0, 1).ask().decide(hand=[P0, P1])
    txn.adopt(P0, more=True).place(P0)
    txn.adopt(P1).place(P1).finish().end("committed")
    assert right(world).stats["adoptions"] == 1


def test_adoption_mismatch_of_one_that_begins_before_the_rest_of_another() -> None:
    world = homes()
    one = foreign(world, 0, 1).ask().decide(hand=[P0, P1])
    other = foreign(world, 1).ask().decide(hand=[P1])
    one.adopt(P0, more=True).place(P0)
    other.adopt(P1).place()
    one.adopt(P1).place(P1).finish().end("committed")
    other.finish().end("committed")
    assert "before the rest of" in first_of(world, "adoption-mismatch")


def test_adoption_mismatch_of_a_record_that_repeats_a_share() -> None:
    world = homes()
    txn = foreign(world, 0, 1).ask().decide(hand=[P0, P1])
    txn.adopt(P0, more=True).place(P0)
    txn.adopt(P0, P1).place(P1).finish().end("committed")
    assert "is adopted twice" in first_of(world, "adoption-mismatch", "missing-place")


def test_adoption_mismatch_of_an_order_that_is_not_that_of_decisions() -> None:
    world = homes()
    one = foreign(world, 0).ask().decide(hand=[P0])
    other = foreign(world, 1).ask().decide(hand=[P1])
    other.adopt(P1).place().finish().end("committed")
    one.adopt(P0).place().finish().end("committed")
    assert "which was decided later" in first_of(world, "adoption-mismatch")


@pytest.mark.parametrize(
    ("partition", "said"),
    [(P1, "chaos[1], which is not handed over"), (P0, "with other records in chaos[0]")],
)
def test_adoption_mismatch_of_what_was_not_handed_over_like_that(
    partition: Partition, said: str
) -> None:
    world = homes()
    txn = foreign(world, 0, 1).ask().decide(hand=[P0])
    txn.mark(P1)
    world.plain()
    stated = list(txn.offsets[P0])
    if partition == P0:
        txn.offsets[P0].append(stated[-1] + 1)
    partitions = dict.fromkeys([P0, partition])
    txn.adopt(*partitions, refuses=[P1])
    txn.offsets[P0] = stated
    txn.place(P0).finish().end("committed")
    others = ["torn-transaction"] if partition == P0 else []
    assert said in first_of(world, "adoption-mismatch", *others)


def test_adoption_mismatch_of_another_decision() -> None:
    world = homes()
    txn = foreign(world).ask().decide(hand=[P0])
    txn.adopt(P0, sequence=txn.sequence - 1).place().finish().end("committed")
    assert "as something else than it was decided" in first_of(world, "adoption-mismatch")


def test_adoption_mismatch_of_what_is_not_decided() -> None:
    world = homes()
    txn = foreign(world)
    txn.adopt(P0, refuses=[P0])
    assert "which is not decided" in first_of(world, "adoption-mismatch")


def test_adoption_mismatch_of_a_topic_that_has_markers_then() -> None:
    world = homes()
    world.journal_append(0, ModeChange(IN, "", Phase.TO_MARKERS, with_records=False))
    txn = foreign(world).ask().decide(hand=[P0])
    txn.adopt(P0).place().finish().end("committed")
    assert "which is not in metadata mode" in first_of(world, "adoption-mismatch")
