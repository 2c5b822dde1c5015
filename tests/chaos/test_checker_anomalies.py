"""Each anomaly in small histories made by hand: that it is found, alone, with what shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from logtx.chaos.checker import MEANINGS, Verdict

from .checker_world import IN, OUT, Txn, World

P0, P1 = (IN, 0), (IN, 1)


def only(world: World, *names: str) -> Verdict:
    """Judge; exactly these anomalies are found."""
    verdict = world.judge()
    assert set(verdict.counts) == set(names), [
        (a.name, a.sentence, a.evidence) for a in verdict.anomalies
    ]
    assert not verdict.ok
    return verdict


def shown(verdict: Verdict, name: str) -> str:
    """The evidence of the first anomaly of a name."""
    found = next(a for a in verdict.anomalies if a.name == name)
    return "\n".join((found.sentence, *(f"{e.where} {e.what}" for e in found.evidence)))


def two_partitions(world: World, process: str = "producer-0.0") -> Txn:
    """An open transaction with a value in each of two partitions."""
    txn = world.begin(process)
    txn.append(0)
    txn.append(1)
    return txn


# ---- reads --------------------------------------------------------------------------------------


def test_g1a_of_an_acknowledged_abort() -> None:
    world = World()
    txn = world.begin()
    value = txn.append(0)
    txn.abort()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    found = shown(only(world.finals(), "g1a"), "g1a")
    assert value in found
    assert "consumer-0.0.jsonl:2 poll read_committed: chaos[0]@0" in found
    assert "PREPARE_ABORT (requested)" in found


def test_g1a_of_an_unknown_outcome_that_the_journal_aborted() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.ask().decide(commit=False).mark_all(commit=False)
    world.assign("consumer-0.0", P0, isolation="serializable")
    world.poll("consumer-0.0", P0, [0], "serializable")
    assert "its end is never told" in shown(only(world.finals(), "g1a"), "g1a")


def test_g1a_by_processing_what_was_aborted() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.abort()
    worker = world.begin("worker-0.0")
    worker.append(0, OUT, source=(0, 0))
    worker.commit()
    assert "processed chaos[0]@0" in shown(only(world.finals(), "g1a"), "g1a")


def test_intermediate_read_while_its_transaction_writes_on() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    later = txn.append(1)
    txn.commit()
    found = shown(only(world.finals(), "intermediate-read"), "intermediate-read")
    assert later in found


def test_intermediate_read_of_two_records_at_once() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    txn.append(0)
    txn.commit()
    world.finals()
    assert only(world, "intermediate-read").counts["intermediate-read"] == 2


def test_dirty_read_before_the_commit_is_asked_for() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    txn.commit()
    found = shown(only(world.finals(), "dirty-read"), "dirty-read")
    assert "before the commit of producer-0.0/1 was asked for" in found


def test_dirty_read_of_what_is_never_decided() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.ask()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    assert "undecided" in shown(only(world.finals(), "dirty-read"), "dirty-read")


def test_dirty_read_of_a_value_from_nowhere() -> None:
    world = World()
    world.order[P0].append(world.record(P0, "stranger:1"))
    assert "nobody had appended" in shown(only(world.finals(), "dirty-read"), "dirty-read")


def test_zombie_write_behind_the_marker_is_delivered() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    late = world.append_event(txn.process, txn.name, P0)
    txn.commit()
    offset = world.record(P0, late, txn.name, txn.txid)
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, offset])
    # That one of its values is not in the transaction is an anomaly of its own.
    found = shown(only(world.finals(), "zombie-write", "torn-transaction"), "zombie-write")
    assert f"chaos[0]@{offset}" in found
    assert "marker COMMITTED" in found


def test_zombie_write_of_a_fenced_producer() -> None:
    world = World()
    world.generation("p", 0)
    txn = world.begin(producer_id="p", generation=0)
    txn.append(0)
    world.generation("p", 1)
    txn.commit()
    assert "gave way to 1" in shown(only(world.finals(), "zombie-write"), "zombie-write")


def test_zombie_write_of_a_worker_whose_input_was_claimed() -> None:
    world = World()
    world.plain()
    worker = world.begin("worker-0.0")
    worker.append(0, OUT, source=(0, 0))
    worker.claim_input(0, None, 1)
    world.claim(0)
    worker.commit()
    assert "CLAIM of chaos[0]" in shown(only(world.finals(), "zombie-write"), "zombie-write")


# ---- writes -------------------------------------------------------------------------------------


def test_lost_write_that_the_last_reader_passed_over() -> None:
    world = World()
    lost = world.plain()
    world.plain()
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [1])
    found = shown(only(world, "lost-write"), "lost-write")
    assert lost in found
    assert "acked" in found


def test_lost_write_that_is_not_in_the_log() -> None:
    world = World()
    txn = world.begin()
    value = txn.append(0)
    txn.commit()
    del world.logs[P0][:], world.order[P0][:]
    world.places[P0].clear()
    other = world.begin()
    other.append(0)
    # Its records take the lost one's offsets.
    other.commit()
    verdict = only(world.finals(), "lost-write", "inconsistent-offsets", "missing-marker")
    assert value in shown(verdict, "lost-write")


def test_lost_write_of_a_whole_transaction() -> None:
    world = World()
    two_partitions(world).commit()
    two_partitions(world).commit()
    world.assign("final-0.0")
    for partition in (P0, P1):
        world.poll("final-0.0", partition, world.order[partition][1:])
    assert only(world, "lost-write").counts["lost-write"] == 1


def test_lost_write_where_the_log_ends_below_what_was_acknowledged() -> None:
    world = World()
    world.plain()
    world.plain()
    del world.logs[P0][1:], world.order[P0][1:]
    verdict = only(world.finals(), "lost-write")
    assert any("the log ends at 1" in anomaly.sentence for anomaly in verdict.anomalies)


def test_unseen_at_the_end() -> None:
    world = World()
    world.plain()
    txn = world.begin()
    txn.append(0)
    world.finals()
    txn.commit()
    assert "ended before" in shown(only(world, "unseen"), "unseen")


def test_unseen_input_that_was_never_processed() -> None:
    world = World()
    world.plain()
    world.plain()
    worker = world.begin("worker-0.0")
    worker.append(0, OUT, source=(0, 0))
    worker.commit()
    assert "chaos[0]@1 was never processed" in shown(only(world.finals(), "unseen"), "unseen")


def test_unseen_where_nobody_looked() -> None:
    world = World()
    world.plain()
    assert "no last reader" in shown(only(world, "unseen"), "unseen")


def test_duplicate_delivery_within_one_assignment() -> None:
    world = World()
    world.plain()
    world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    world.poll("consumer-0.0", P0, [1])
    found = shown(only(world.finals(), "duplicate"), "duplicate")
    assert "consumer-0.0.jsonl:2" in found
    assert "consumer-0.0.jsonl:3" in found


def test_trap_244_a_plain_value_at_two_offsets_of_a_partition_is_observed() -> None:
    world = World()
    value = world.plain()
    world.order[P0].append(world.record(P0, value))
    verdict = world.finals().judge()
    assert verdict.ok
    assert verdict.observed == {"plain-twice": 1}
    assert verdict.observations[0].name == "plain-twice"
    assert "chaos[0]@1" in str(verdict.observations[0].evidence)


def test_duplicate_plain_value_in_two_partitions() -> None:
    world = World()
    value = world.plain()
    world.order[P1].append(world.record(P1, value))
    assert "chaos[1]@0" in shown(only(world.finals(), "duplicate"), "duplicate")


def test_duplicate_value_of_a_transaction_at_two_offsets() -> None:
    world = World()
    txn = world.begin()
    value = txn.append()
    txn.offsets[P0].append(world.record(P0, value, txn.name, txn.txid))
    txn.commit()
    found = shown(only(world.finals(), "duplicate"), "duplicate")
    assert "chaos[0]@0" in found
    assert "chaos[0]@1" in found


def test_duplicate_of_an_uncommitted_reader() -> None:
    world = World()
    world.plain()
    world.assign("consumer-0.0", P0, isolation="read_uncommitted")
    world.poll("consumer-0.0", P0, [0, 0], "read_uncommitted")
    only(world.finals(), "duplicate")


# ---- whole transactions -------------------------------------------------------------------------


def test_torn_transaction_of_which_one_partition_is_missing() -> None:
    world = World()
    txn = two_partitions(world)
    world.plain(number=1)
    txn.commit()
    world.plain(number=1)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [0])
    world.poll("final-0.0", P1, [1, 3])
    found = shown(only(world, "torn-transaction"), "torn-transaction")
    assert all(value in found for value in txn.values)


def test_torn_transaction_of_unknown_outcome() -> None:
    world = World()
    txn = two_partitions(world).ask()
    txn.decide()
    for partition in (P0, P1):
        txn.mark(partition)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [0])
    only(world, "torn-transaction")


def test_torn_transaction_with_a_gap_in_one_partition() -> None:
    world = World()
    txn = world.begin()
    for _ in range(3):
        txn.append(0)
    txn.commit()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 2])
    assert "chaos[0]@1" in shown(only(world.finals(), "torn-transaction"), "torn-transaction")


def test_torn_transaction_at_its_beginning() -> None:
    world = World()
    world.plain()
    two_partitions(world).commit()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    txn.commit()
    world.assign("consumer-0.0", P0)
    order = world.order[P0]
    world.poll("consumer-0.0", P0, [order[0], order[-1]])
    only(world.finals(), "torn-transaction")


def test_torn_transaction_by_its_markers() -> None:
    world = World()
    txn = two_partitions(world).ask().decide()
    txn.mark(P0)
    txn.mark(P1, commit=False)
    txn.end("committed")
    verdict = only(world.finals(), "torn-transaction", "marker-mismatch")
    assert "aborted in another" in "".join(a.sentence for a in verdict.anomalies)


def test_torn_transaction_in_the_log() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    txn.append(0)
    # The marker states three, and the one in the middle is somebody else's.
    value, op, _ = world.values[P0, 1]
    txn.commit()
    world.logs[P0][1] = world.logs[P0][1]._replace(headers=[])
    world.values[P0, 1] = value, op, None
    verdict = only(world.finals(), "torn-transaction", "nonmonotonic-poll")
    assert "states 3 records" in "".join(a.sentence for a in verdict.anomalies)


def test_torn_transaction_of_two_txids() -> None:
    world = World()
    txn, other = world.begin(), world.begin()
    txn.append(0)
    value = world.append_event(txn.process, txn.name, P1)
    other.offsets[P1].append(world.record(P1, value, txn.name, other.txid))
    txn.commit()
    other.decide().mark_all().ask().end("committed")
    assert "two TxIds" in shown(only(world.finals(), "torn-transaction"), "torn-transaction")


def test_torn_transaction_of_a_serializable_reader() -> None:
    world = World()
    two_partitions(world).commit()
    two_partitions(world).commit()
    world.assign("consumer-0.0", P0, P1, isolation="serializable")
    one, other = world.order[P0], world.order[P1]
    for partition, offset in ((P0, one[0]), (P0, one[1]), (P1, other[0]), (P1, other[1])):
        world.poll("consumer-0.0", partition, [offset], "serializable")
    verdict = only(world.finals(), "torn-transaction", "order-differs")
    assert "in the midst of" in shown(verdict, "torn-transaction")


# ---- cycles -------------------------------------------------------------------------------------


def crossed(world: World, journals: tuple[int, int] = (0, 0)) -> None:
    """Two transactions whose markers stand in different orders in two partitions."""
    one, other = world.begin(journal=journals[0]), world.begin(journal=journals[1])
    for txn in (one, other):
        txn.append(0)
        txn.append(1)
        txn.ask().decide()
    one.mark(P0)
    other.mark(P0)
    other.mark(P1)
    one.mark(P1)
    for txn in (one, other):
        txn.end("committed")


def test_g0_of_two_transactions() -> None:
    world = World()
    crossed(world)
    verdict = only(world.finals(), "g0", "marker-order")
    assert "2 transactions" in shown(verdict, "g0")


def test_g0_of_three_transactions() -> None:
    world = World(partitions=3)
    partitions = [(IN, number) for number in range(3)]
    txns = [world.begin() for _ in range(3)]
    for index, txn in enumerate(txns):
        txn.append(index)
        txn.append((index + 1) % 3)
        txn.ask().decide()
    for index, partition in enumerate(partitions):
        # Each partition has its transaction behind that of the partition before.
        txns[index].mark(partition)
        txns[index - 1].mark(partition)
    for txn in txns:
        txn.end("committed")
    assert "3 transactions" in shown(only(world.finals(), "g0", "marker-order"), "g0")


def test_g1c_of_a_read_and_a_write() -> None:
    world = World()
    reads, writes = world.begin("worker-0.0"), world.begin()
    writes.append(0)
    writes.append(1)
    # It processed what the other wrote, and comes before it in a partition that both wrote to.
    reads.append(1, source=(0, 0))
    for txn in (reads, writes):
        txn.ask().decide()
    reads.mark(P1)
    writes.mark(P1)
    writes.mark(P0)
    for txn in (reads, writes):
        txn.end("committed")
    extra = world.begin("worker-0.0")
    extra.append(0, OUT, source=(1, 0))
    extra.append(0, OUT, source=(1, 1))
    extra.commit()
    assert "was read at" in shown(only(world.finals(), "g1c"), "g1c")


def test_g1c_of_two_workers_that_read_each_other() -> None:
    world = World()
    one, other = world.begin("worker-0.0"), world.begin("worker-1.0")
    one.append(0, source=(1, 0))
    other.append(1, source=(0, 0))
    one.commit()
    other.commit()
    only(world.finals(), "g1c")


# ---- offsets and polls --------------------------------------------------------------------------


def test_inconsistent_offsets_of_two_readers() -> None:
    world = World()
    world.plain()
    world.plain()
    world.assign("consumer-0.0", P0)
    said = world.poll("consumer-0.0", P0, [0])
    said["records"][0][4] = world.values[P0, 1][0]
    verdict = only(world.finals(), "inconsistent-offsets")
    assert "chaos[0]@0" in shown(verdict, "inconsistent-offsets")


def test_inconsistent_offsets_of_an_acknowledgement() -> None:
    world = World()
    world.plain()
    world.plain()
    for event in world.events["producer-0.0"]:
        if event["event"] == "acked" and event["offset"] == 1:
            event["offset"] = 0
    only(world.finals(), "inconsistent-offsets")


def test_inconsistent_offsets_of_a_transaction() -> None:
    world = World()
    two_partitions(world).commit()
    other = two_partitions(world)
    other.commit()
    world.assign("consumer-0.0", P0)
    said = world.poll("consumer-0.0", P0, [0])
    said["records"][0][6] = other.txid.to_bytes().hex()
    verdict = world.finals().judge()
    assert set(verdict.counts) == {"inconsistent-offsets"}


def test_nonmonotonic_poll_against_the_order_of_markers() -> None:
    world = World()
    one, other = world.begin(), world.begin()
    one.append(0)
    other.append(0)
    other.commit()
    one.commit()
    assert world.order[P0] == [1, 0]
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    verdict = only(world.finals(), "nonmonotonic-poll", "order-differs")
    assert "marker COMMITTED" in shown(verdict, "nonmonotonic-poll")
    assert "final-0.0" in shown(verdict, "order-differs")


def test_nonmonotonic_poll_of_plain_records() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    world.assign("consumer-0.0", P0, isolation="read_uncommitted")
    world.poll("consumer-0.0", P0, [0, 2, 1], "read_uncommitted")
    only(world.finals(), "nonmonotonic-poll")


def test_records_out_of_order_are_not_skipped_too() -> None:
    world = World()
    for _ in range(4):
        world.plain()
    world.assign("consumer-0.0", P0, group="g")
    world.poll("consumer-0.0", P0, [0, 3, 1])  # and 2 may be the next
    only(world.finals(), "nonmonotonic-poll", "order-differs")


def test_skipped_poll_within_an_assignment() -> None:
    world = World()
    for _ in range(4):
        world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    world.poll("consumer-0.0", P0, [3])
    found = shown(only(world.finals(), "skipped-poll"), "skipped-poll")
    assert "chaos[0]@1 and 1 more" in found


def test_skipped_poll_of_a_whole_transaction() -> None:
    world = World()
    for _ in range(3):
        two_partitions(world).commit()
    world.assign("consumer-0.0", P0)
    order = world.order[P0]
    world.poll("consumer-0.0", P0, [order[0], order[2]])
    only(world.finals(), "skipped-poll")


def test_skipped_poll_of_a_group_between_its_members() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    for member, offset in (("consumer-0.0", 0), ("consumer-1.0", 2)):
        world.assign(member, P0, group="g")
        world.poll(member, P0, [offset])
    assert "group g" in shown(only(world.finals(), "skipped-poll"), "skipped-poll")


def test_skipped_poll_between_two_lives() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    for life, offset in (("consumer-0.0", 0), ("consumer-0.1", 2)):
        world.assign(life, P0)
        world.poll(life, P0, [offset])
    assert "consumer-0 was never" in shown(only(world.finals(), "skipped-poll"), "skipped-poll")


def test_skipped_poll_of_one_of_two_last_readers() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    world.finals()
    world.assign("final-1.0")
    world.poll("final-1.0", P0, [0, 2])
    only(world, "skipped-poll")


def test_skipped_poll_of_a_serializable_reader_alone() -> None:
    world = World()
    for _ in range(3):
        two_partitions(world).commit()
    world.finals()
    world.assign("final-1.0", isolation="serializable")
    for partition in (P0, P1):
        world.poll("final-1.0", partition, world.order[partition][:1], "serializable")
    for partition in (P0, P1):
        world.poll("final-1.0", partition, world.order[partition][2:], "serializable")
    only(world, "skipped-poll")


def test_order_differs_in_what_was_trimmed_since() -> None:
    world = World()
    for _ in range(4):
        world.plain()
    for member, offsets in (("consumer-0.0", [0, 1, 2]), ("consumer-1.0", [1, 0])):
        world.assign(member, P0)
        world.poll(member, P0, offsets)
    world.starts[P0] = 3
    found = shown(only(world.finals(), "order-differs"), "order-differs")
    assert "consumer-0.0" in found
    assert "consumer-1.0" in found


def test_order_differs_from_the_journal_over_partitions() -> None:
    world = World()
    one, other = world.begin(), world.begin()
    one.append(0)
    one.commit()
    other.append(1)
    other.commit()
    world.assign("consumer-0.0", P0, P1, isolation="serializable")
    world.poll("consumer-0.0", P1, [0], "serializable")
    world.poll("consumer-0.0", P0, [0], "serializable")
    found = shown(only(world.finals(), "order-differs"), "order-differs")
    assert "decided earlier" in found


# ---- outcomes -----------------------------------------------------------------------------------


def test_committed_but_aborted_by_the_journal() -> None:
    world = World()
    txn = two_partitions(world).ask()
    txn.decide(commit=False).mark_all(commit=False).end("committed")
    found = shown(only(world.finals(), "committed-but-aborted"), "committed-but-aborted")
    assert "PREPARE_ABORT" in found


def test_committed_but_never_decided() -> None:
    world = World()
    two_partitions(world).ask().end("committed")
    only(world.finals(), "committed-but-aborted")


def test_committed_by_a_void_decision() -> None:
    world = World()
    txn = two_partitions(world).ask()
    old = world.epochs[0]
    world.own()
    writes_epoch, world.epochs[0] = world.epochs[0], old
    txn.decide()
    world.epochs[0] = writes_epoch
    txn.end("committed")
    only(world.finals(), "committed-but-aborted")


def test_committed_with_another_commit_sequence() -> None:
    world = World()
    txn = two_partitions(world).ask().decide().mark_all()
    txn.sequence += 1
    txn.end("committed")
    only(world.finals(), "committed-but-aborted")


def test_aborted_but_committed_by_the_journal() -> None:
    world = World()
    two_partitions(world).ask().decide().mark_all().end("aborted")
    only(world.finals(), "aborted-but-committed")


def test_committed_though_nobody_asked() -> None:
    world = World()
    two_partitions(world).decide().mark_all()
    verdict = only(world.finals(), "aborted-but-committed")
    assert "nobody asked" in shown(verdict, "aborted-but-committed")


# ---- inputs -------------------------------------------------------------------------------------


def process(world: World, *inputs: int, who: str = "worker-0.0", topic: str = OUT) -> None:
    """A worker's transaction, without claims in the journal."""
    worker = world.begin(who)
    for offset in inputs:
        worker.append(0, topic, source=(0, offset))
    worker.commit()


def test_iov_gap_of_an_input_that_nobody_processed() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    process(world, 0, 2)
    assert "chaos[0]@1" in shown(only(world.finals(), "iov-gap"), "iov-gap")


def test_iov_gap_between_claims_of_the_journal() -> None:
    world = World()
    for _ in range(3):
        world.plain()
    for start, end, inputs in ((None, 1, [0]), (2, 3, [1, 2])):
        worker = world.begin("worker-0.0")
        for offset in inputs:
            worker.append(0, OUT, source=(0, offset))
        worker.claim_input(0, start, end)
        worker.commit()
    verdict = only(world.finals(), "iov-gap")
    assert verdict.counts["iov-gap"] == 2  # the history's claims, and the journal's


def test_iov_gap_of_a_step_from_what_was_never_committed() -> None:
    world = World()
    world.plain()
    worker = world.begin("worker-0.0")
    worker.append(0, OUT, source=(0, 0))
    worker.claim_input(0, 7, 9)
    worker.commit()
    assert "nothing had been committed" in shown(only(world.finals(), "iov-gap"), "iov-gap")


def test_iov_overlap_of_an_input_processed_twice() -> None:
    world = World()
    world.plain()
    process(world, 0)
    process(world, 0)
    found = shown(only(world.finals(), "iov-overlap"), "iov-overlap")
    assert "worker-0.0/1" in found
    assert "worker-0.0/2" in found


def test_processes_of_another_role_process_all_input_again() -> None:
    def world_with(*inputs: int) -> World:
        world = World(outputs=(OUT, "chaos-spark"))
        for _ in range(3):
            world.plain()
        process(world, 0, 1, 2)
        process(world, *inputs, who="spark-0.0", topic="chaos-spark")
        return world.finals()

    assert world_with(0, 1, 2).judge().ok
    assert "chaos[0]@1" in shown(only(world_with(0, 2), "iov-gap"), "iov-gap")
    assert "spark-0.0" in shown(only(world_with(0, 1, 1, 2), "iov-overlap"), "iov-overlap")


def test_iov_overlap_of_claims() -> None:
    world = World()
    world.plain()
    world.plain()
    for start, end, inputs in ((None, 1, [0]), (0, 2, [1])):
        worker = world.begin("worker-0.0")
        for offset in inputs:
            worker.append(0, OUT, source=(0, offset))
        worker.claim_input(0, start, end)
        worker.commit()
    only(world.finals(), "iov-overlap")


# ---- journal and markers ------------------------------------------------------------------------


def test_marker_mismatch_with_the_decision() -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.decide(commit=False).end("aborted")
    txn.mark(P0)
    verdict = only(world.finals(), "marker-mismatch", "g1a")
    assert "the journal otherwise" in shown(verdict, "marker-mismatch")


@pytest.mark.parametrize("what", ["sequence", "records", "undecided", "never began"])
def test_marker_mismatch(what: str) -> None:
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.append(0)
    txn.ask()
    if what != "undecided":
        txn.decide()
    if what == "sequence":
        txn.sequence += 3
    if what == "records":
        txn.offsets[P0] = txn.offsets[P0][1:]
    if what == "never began":
        txn.txid = type(txn.txid)(0, 99, txn.txid.offset)
    txn.mark(P0)
    assert "marker-mismatch" in world.finals().judge().counts


def test_missing_marker_of_a_finished_transaction() -> None:
    world = World()
    txn = two_partitions(world)
    partitions = dict(txn.offsets)
    txn.ask().decide()
    del txn.offsets[P1]
    txn.mark_all().end("committed")
    assert partitions
    # The last reader is given the half that has its marker, and waits for the other.
    verdict = only(world.finals(), "missing-marker", "torn-transaction")
    assert "chaos[1] has no marker" in shown(verdict, "missing-marker")


def test_missing_marker_of_an_abort_whose_partitions_were_registered() -> None:
    world = World()
    txn = two_partitions(world)
    txn.decide(commit=False).end("aborted")
    txn.offsets.clear()
    txn.mark_all(commit=False)
    # Nothing is missing of what the journal does not know: nothing was registered.
    assert world.finals().judge().ok


def test_marker_order_in_one_partition() -> None:
    world = World()
    one, other = world.begin(), world.begin()
    for txn in (one, other):
        txn.append(0)
        txn.ask().decide()
    other.mark(P0)
    one.mark(P0)
    for txn in (one, other):
        txn.end("committed")
    only(world.finals(), "marker-order")


@pytest.mark.parametrize("commit", [True, False])
def test_watermark_above_a_transaction_that_ends_later(*, commit: bool) -> None:
    world = World()
    one, other = world.begin(), world.begin()
    for txn in (one, other):
        txn.append(0)
        txn.ask().decide(commit=commit)
    one.mark(P0, commit=commit, hw=other.txid.offset + 1)
    other.mark(P0, commit=commit)
    for txn in (one, other):
        txn.end("committed" if commit else "aborted")
    only(world.finals(), "watermark")


def test_watermark_of_a_marker_written_again() -> None:
    world = World()
    one, other = world.begin(), world.begin()
    for txn in (one, other):
        txn.append(0)
        txn.ask().decide()
    one.mark(P0)
    one.mark(P0, hw=other.txid.offset + 1)
    other.mark(P0)
    for txn in (one, other):
        txn.end("committed")
    verdict = only(world.finals(), "watermark")
    assert "chaos[0]@3" in shown(verdict, "watermark")


# ---- Kafka's system -----------------------------------------------------------------------------


def test_kafka_has_no_journal_and_the_same_anomalies() -> None:
    world = World("kafka")
    txn = two_partitions(world)
    txn.commit()
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [0])
    only(world, "torn-transaction")


def test_kafka_committed_but_aborted() -> None:
    world = World("kafka")
    txn = two_partitions(world).ask()
    txn.mark_all(commit=False)
    txn.end("committed")
    only(world.finals(), "committed-but-aborted")


def test_kafka_torn_in_the_log() -> None:
    world = World("kafka")
    txn = two_partitions(world).ask()
    txn.mark(P0)
    txn.mark(P1, commit=False)
    txn.end("unknown")
    found = shown(only(world.finals(), "torn-transaction"), "torn-transaction")
    assert "aborted" in found


def test_kafka_g1a() -> None:
    world = World("kafka")
    txn = two_partitions(world)
    txn.mark_all(commit=False)
    txn.end("aborted")
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0])
    only(world.finals(), "g1a")


def test_kafka_write_cycles_are_observed_and_no_anomaly() -> None:
    world = World("kafka")
    one, other = world.begin(), world.begin()
    one.append(0)
    other.append(0)
    other.append(1)
    one.append(1)
    one.commit()
    other.commit()
    verdict = world.finals().judge()
    assert verdict.ok
    assert set(verdict.observed) == {"g0"}


def test_plain_twice_of_kafkas_own_producer_is_observed() -> None:
    world = World(system="kafka")
    world.order[P0].append(world.record(P0, world.plain()))
    assert world.finals().judge().observed == {"plain-twice": 1}


def test_every_anomaly_is_in_two_tests() -> None:
    files = Path(__file__).parent.glob("test_checker_*.py")
    trees = [ast.parse(path.read_text()) for path in files]
    tests = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    for anomaly in MEANINGS:
        naming = [
            test.name
            for test in tests
            for node in ast.walk(test)
            if isinstance(node, ast.Constant) and node.value == anomaly
        ]
        assert len(set(naming)) >= 2, anomaly
