"""Places and modes in small histories made by hand: what is right passes, what is not is found."""

from __future__ import annotations

from logtx.chaos.checker import Verdict
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.records.types import AddPartitions, DataPartition

from .checker_world import IN, OUT, Txn, Where, World
from .test_checker_anomalies import P0, P1, only, shown, two_partitions

SERIAL = "serializable"


def placing() -> World:
    """A topic in metadata mode."""
    world = World()
    world.plain()
    world.switch()
    return world


def right(world: World) -> Verdict:
    """Judge; nothing is found."""
    verdict = world.finals().judge()
    assert verdict.ok, [(a.name, a.sentence, a.evidence) for a in verdict.anomalies]
    return verdict


def placed(world: World, *numbers: int) -> Txn:
    """A committed transaction with a value in each of these partitions, placed."""
    txn = world.begin()
    for number in numbers or (0, 1):
        txn.append(number)
    return txn.commit()


def process_all(world: World) -> None:
    """A worker processes what is due in the first partition, each record in a transaction."""
    at: Where | None = None
    for offset in world.order[P0]:
        worker = world.begin("worker-0.0")
        worker.append(0, OUT, source=(0, offset))
        worker.claim_places(0, at, world.places[P0][offset])
        worker.commit()
        at = world.places[P0][offset]


# ---- what is right ------------------------------------------------------------------------------


def test_a_placed_transaction_is_delivered_before_the_record_at_its_place() -> None:
    world = placing()
    open_one, txn = world.begin(), world.begin()
    open_one.append(0)
    world.plain()
    txn.append(0)
    world.plain()
    txn.commit()
    world.plain()
    open_one.commit()
    assert world.order[P0] == [0, 3, 5, 4, 6, 2]
    assert right(world).stats["places"] == 2


def test_transactions_at_one_place_are_due_in_commit_order() -> None:
    world = placing()
    one, other = world.begin(), world.begin()
    one.append(0)
    other.append(0)
    for txn in (other, one):
        txn.ask().decide()
    one.place(delivers=False)
    for txn in (other, one):
        world.deliver_placed(P0, txn, len(world.logs[P0]))
        txn.finish().end("committed")
    assert world.order[P0] == [0, 3, 2]
    right(world)


def test_the_first_valid_place_counts() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.ask().decide()
    former = world.epochs[0]
    world.plain()
    world.own()
    world.place(txn, [P0], epoch=former, at=3, delivers=False)
    world.own()
    txn.place(P0)
    world.plain()
    world.place(txn, [P0], delivers=False)
    txn.finish().end("committed")
    assert world.order[P0] == [0, 3, 2, 4]
    right(world)


def test_another_journal_marks_where_the_home_places() -> None:
    world = World(journals=2)
    world.switch(journal=0)
    ours, foreign = world.begin(), world.begin(journal=1)
    ours.append(0)
    foreign.append(0)
    foreign.commit()
    ours.commit()
    right(world)


def test_a_topic_is_switched_back_and_forth() -> None:
    world = placing()
    for _ in range(3):
        placed(world)
        world.plain()
        world.switch()
    two_partitions(world).abort()
    two_partitions(world).commit()
    assert right(world).stats["mode records"] == 8


def test_an_abort_is_told_nowhere_in_metadata_mode() -> None:
    world = placing()
    txn = two_partitions(world)
    txn.decide(commit=False).finish(commit=False).end("aborted")
    right(world)


def test_input_that_was_placed_is_claimed_by_what_was_passed() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    txn.commit()
    placed(world, 0)
    process_all(world)
    right(world)


def test_what_lies_below_a_place_that_was_trimmed_is_not_missed() -> None:
    world = placing()
    placed(world, 0)
    placed(world, 0)
    world.starts[P0] = 3
    world.order[P0] = world.order[P0][2:]
    right(world)


def test_a_journal_that_was_trimmed_behind_the_switch() -> None:
    """What is placed, or switched back, tells that nothing has markers before that."""
    world = placing()
    early = world.begin()
    early.append(0)
    early.decide()
    world.journal_starts[0] = len(world.journals[0])
    early.place().finish().end("committed")
    aborted = world.begin()
    aborted.append(0)
    aborted.decide(commit=False).finish(commit=False).end("aborted")
    placed(world, 0)
    process_all(world)
    verdict = right(world)
    assert "place whose switch was trimmed" not in verdict.unverifiable


def test_a_journal_that_was_trimmed_within_a_stretch_of_places() -> None:
    world = placing()
    world.journal_starts[0] = len(world.journals[0])
    aborted = world.begin()
    aborted.append(0)
    begin, partition = aborted.txid.offset, DataPartition(IN, 0, "")
    world.journal_append(0, AddPartitions(begin=begin, partitions=(partition,)))
    aborted.decide(commit=False).finish(commit=False).end("aborted")
    world.switch()
    right(world)


# ---- deliveries ---------------------------------------------------------------------------------


def test_g1a_of_an_abort_that_has_no_marker() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.decide(commit=False).finish(commit=False).end("aborted")
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [2])
    assert "PREPARE_ABORT" in shown(only(world.finals(), "g1a"), "g1a")


def test_nonmonotonic_poll_of_a_plain_record_before_what_is_placed_before_it() -> None:
    world = placing()
    placed(world, 0)
    world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 3, 2])
    verdict = only(world.finals(), "nonmonotonic-poll", "order-differs")
    found = shown(verdict, "nonmonotonic-poll")
    assert "PLACED: 0-000000000007-3 ends before chaos[0]@3" in found


def test_skipped_poll_of_a_placed_transaction() -> None:
    world = placing()
    placed(world, 0)
    world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 3])
    only(world.finals(), "skipped-poll")


def test_duplicate_of_what_is_placed() -> None:
    world = placing()
    placed(world, 0)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 2, 2])
    only(world.finals(), "duplicate")


def test_lost_write_of_what_is_placed() -> None:
    world = placing()
    lost = placed(world)
    placed(world)
    world.assign("final-0.0")
    for partition in (P0, P1):
        given = [o for o in world.order[partition] if o not in lost.offsets[partition]]
        world.poll("final-0.0", partition, given)
    only(world, "lost-write")


def test_torn_transaction_that_is_placed_in_two_partitions() -> None:
    world = placing()
    txn = placed(world)
    placed(world)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.order[P0])
    world.poll("final-0.0", P1, [o for o in world.order[P1] if o not in txn.offsets[P1]])
    only(world, "torn-transaction")


def test_zombie_write_behind_the_place() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    late = world.append_event(txn.process, txn.name, P0)
    txn.commit()
    offset = world.record(P0, late, txn.name, txn.txid)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 2, offset])
    found = shown(only(world.finals(), "zombie-write", "torn-transaction"), "zombie-write")
    assert "PLACED" in found


def test_order_differs_for_a_serializable_reader_of_places() -> None:
    world = placing()
    one, other = placed(world, 0), placed(world, 1)
    world.assign("consumer-3.0", isolation=SERIAL)
    world.poll("consumer-3.0", P1, other.offsets[P1], SERIAL)
    world.poll("consumer-3.0", P0, one.offsets[P0], SERIAL)
    only(world.finals(), "order-differs")


def test_iov_overlap_where_several_are_placed_at_one_offset() -> None:
    world = placing()
    first, second = world.begin(), world.begin()
    first.append(0)
    second.append(0)
    for txn in (first, second):
        txn.ask().decide().place().finish().end("committed")
    _, one, other = world.order[P0]
    begun = world.places[P0][0]
    for end, offset, start in (
        (world.places[P0][0], 0, None),
        (world.places[P0][other], one, begun),
        (world.places[P0][other], other, world.places[P0][one]),
    ):
        worker = world.begin("worker-0.0")
        worker.append(0, OUT, source=(0, offset))
        worker.claim_places(0, start, end)
        worker.commit()
    assert world.places[P0][one][0] == world.places[P0][other][0]
    only(world.finals(), "iov-overlap")


# ---- places -------------------------------------------------------------------------------------


def test_missing_place() -> None:
    world = placing()
    txn = two_partitions(world).ask().decide()
    txn.place(P0).finish().end("committed")
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.order[P0])
    # What has no place is given to nobody.
    verdict = only(world, "missing-place", "torn-transaction")
    assert "has no place in chaos[1]" in shown(verdict, "missing-place")


def test_missing_place_as_only_a_replaced_owner_gave_it() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.ask().decide()
    former = world.epochs[0]
    world.own()
    world.place(txn, [P0], epoch=former, delivers=False)
    world.own()
    txn.finish().end("committed")
    only(world.finals(), "missing-place", "unseen")


def test_place_order_of_places_that_fall() -> None:
    world = placing()
    one, other = world.begin(), world.begin()
    one.append(0)
    other.append(0)
    world.plain()
    one.ask().decide().place().finish().end("committed")
    other.ask().decide().place(at=4, delivers=False).finish().end("committed")
    world.order[P0] = [0, 3, 4, 2]
    verdict = only(world, "place-order", "misplaced", "unseen")
    assert "PLACED" in shown(verdict, "place-order")


def test_place_order_of_a_place_before_a_marker_of_a_lower_sequence() -> None:
    world = World()
    marked = world.begin()
    marked.append(0)
    marked.ask().decide()
    world.switch()
    placed(world, 0)
    marked.mark(P0)
    marked.finish().end("committed")
    only(world.finals(), "place-order")


def test_misplaced_below_its_own_records() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    txn.ask().decide().place(at=3, delivers=False).finish().end("committed")
    verdict = only(world.finals(), "misplaced", "torn-transaction", "lost-write")
    assert "below its own records" in shown(verdict, "misplaced")


def test_misplaced_behind_the_end_of_the_log() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.ask().decide().place(at=7, delivers=False).finish().end("committed")
    only(world.finals(), "unseen", "misplaced")


def test_misplaced_below_what_was_there_when_it_was_decided() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    value = world.plain()
    txn.ask().decide().place(at=3, delivers=False).finish().end("committed")
    world.order[P0] = [0, 2, 3]
    found = shown(only(world.finals(), "misplaced"), "misplaced")
    assert f"acked {value!r} at chaos[0]@3" in found


# ---- modes --------------------------------------------------------------------------------------


def test_mode_mismatch_of_what_is_placed_while_the_topic_has_markers() -> None:
    world = World()
    world.homes[IN] = 0
    placed(world, 0)
    assert "in markers then" in shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")


def test_mode_mismatch_of_what_is_marked_while_the_topic_is_placed_in() -> None:
    world = placing()
    world.homes.clear()
    world.passed.clear()
    txn = world.begin()
    txn.append(0)
    txn.commit()
    only(world.finals(), "mode-mismatch")


def test_mode_mismatch_of_a_place_behind_the_mode_record() -> None:
    world = placing()
    txn = world.begin()
    txn.append(0)
    txn.ask().decide()
    world.switch()
    world.place(txn, [P0], delivers=False)
    world.order[P0] += txn.offsets[P0]
    txn.finish().end("committed")
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "all is marked again" in found


def test_mode_mismatch_of_a_place_before_the_mode_record() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    world.plain()
    world.switch()
    txn.ask().decide().place(at=2, delivers=False).finish().end("committed")
    world.order[P0] += txn.offsets[P0]
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "behind the mode record" in found


def test_mode_mismatch_of_a_mode_record_that_is_not_there() -> None:
    world = placing()
    world.logs[P0].pop()
    world.plain()
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "is no mode record" in found


def test_mode_mismatch_of_two_homes() -> None:
    world = World(journals=2)
    world.switch(journal=0)
    world.homes.clear()
    world.switch(journal=1)
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "by two journals" in found


def test_mode_mismatch_of_a_step_left_out() -> None:
    world = World()
    world.plain()
    world.journal_append(0, ModeChange(IN, "", Phase.METADATA, with_records=False))
    found = shown(only(world.finals(), "mode-mismatch"), "mode-mismatch")
    assert "from markers to metadata" in found


def test_marker_mismatch_of_a_marker_where_its_transaction_is_placed() -> None:
    world = placing()
    txn = placed(world, 0)
    txn.mark(P0)
    only(world.finals(), "marker-mismatch")


# ---- metadata stores ----------------------------------------------------------------------------


def test_a_store_that_says_what_the_journal_says() -> None:
    world = placing()
    txn = placed(world)
    marked = world.begin()
    marked.append(0, OUT)
    marked.commit()
    aborted = world.begin()
    aborted.append(0)
    aborted.decide(commit=False).finish(commit=False).end("aborted")
    world.store_says(txn, 3, 2)
    world.store_says(marked)
    world.store_says(aborted, state="aborted")
    world.store_says(marked, known=False)
    world.store_says(aborted, known=False)
    assert right(world).stats["transactions asked of metadata stores"] == 5


def test_a_store_need_not_keep_what_was_trimmed() -> None:
    world = placing()
    txn = placed(world, 0)
    world.starts[P0] = 3
    world.order[P0] = []
    world.store_says(txn)
    world.store_says(txn, known=False)
    right(world)


def test_store_mismatch_of_a_state() -> None:
    world = placing()
    world.store_says(placed(world), 3, 2, state="aborted")
    found = shown(only(world.finals(), "store-mismatch"), "store-mismatch")
    assert "aborted with sequence 4; it is committed" in found


def test_store_mismatch_of_a_place() -> None:
    world = placing()
    world.store_says(placed(world), 3, 3)
    found = shown(only(world.finals(), "store-mismatch"), "store-mismatch")
    assert "a write that it did not do, or not there" in found


def test_store_mismatch_of_what_is_kept_for_as_long_as_the_data() -> None:
    for known in (True, False):
        world = placing()
        world.store_says(placed(world), *((3,) if known else ()), known=known)
        found = shown(only(world.finals(), "store-mismatch"), "store-mismatch")
        assert ("no write that is placed" if known else "nothing, and what is placed") in found


def test_watermark_above_what_is_placed_behind_its_marker() -> None:
    world = World()
    marked = world.begin()
    marked.append(0)
    marked.commit()
    world.switch()
    txn = world.begin()
    txn.append(0)
    marked.mark(P0, hw=txn.txid.offset + 1)
    txn.commit()
    found = shown(only(world.finals(), "watermark"), "watermark")
    assert "PLACED" in found
