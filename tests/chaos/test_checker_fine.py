"""What the checker must not cry out about: the neighbours of the anomalies."""

from __future__ import annotations

import pytest

from logtx.chaos.checker import Verdict
from logtx.journal.records.types import AddPartitions, DataPartition

from .checker_world import IN, OUT, Txn, World

P0, P1 = (IN, 0), (IN, 1)


def fine(world: World) -> Verdict:
    """Judge; nothing is found."""
    verdict = world.judge()
    assert verdict.ok, [(a.name, a.sentence, a.evidence) for a in verdict.anomalies]
    assert not verdict.observed
    return verdict


def two_partitions(world: World, process: str = "producer-0.0", journal: int = 0) -> Txn:
    """An open transaction with a value in each of two partitions."""
    txn = world.begin(process, journal)
    txn.append(0)
    txn.append(1)
    return txn


def test_a_run_of_everything() -> None:
    world = World()
    two_partitions(world).commit()
    world.plain(number=1)
    two_partitions(world).abort()
    worker = world.begin("worker-0.0")
    for source in ((0, 0), (1, 0), (1, 2)):
        worker.append(source[0], OUT, source)
    worker.claim_input(0, None, 2)
    worker.claim_input(1, None, 3)
    worker.commit()
    for isolation in ("read_committed", "serializable", "read_uncommitted"):
        world.read(f"consumer-0.{isolation.count('e')}", isolation)
    world.read("final-1.0", "serializable")
    verdict = fine(world.finals())
    assert verdict.stats["transactions"] == 3
    assert not verdict.unverifiable


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("told", ["unknown", None])
def test_an_unknown_outcome_goes_either_way(*, committed: bool, told: str | None) -> None:
    world = World()
    txn = two_partitions(world).ask().decide(commit=committed).mark_all(commit=committed)
    if told is not None:
        txn.end(told)
    fine(world.finals())


def test_an_abort_is_not_seen() -> None:
    world = World()
    two_partitions(world).abort()
    world.plain()
    fine(world.finals())


def test_an_open_transaction_of_somebody_who_died() -> None:
    world = World()
    two_partitions(world)
    world.plain()
    fine(world.finals())


def test_what_never_arrived_of_somebody_who_died() -> None:
    world = World()
    txn = world.begin()
    txn.append(0, arrive=False)
    world.append_event("producer-0.0", None, P0)
    fine(world.finals())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_plain_record_that_nobody_acknowledged(*, arrives: bool) -> None:
    world = World()
    if arrives:
        world.plain(ack=False)
    else:
        world.append_event("producer-0.0", None, P0)
    fine(world.finals())


def test_an_acknowledgement_that_does_not_know_its_offset() -> None:
    world = World()
    txn = two_partitions(world)
    for event in world.events["producer-0.0"]:
        if event["event"] == "acked":
            event["offset"] = -1001
    txn.commit()
    fine(world.finals())


def test_late_records_that_nobody_is_given() -> None:
    world = World()
    txn = two_partitions(world)
    txn.abort()
    value = world.append_event(txn.process, txn.name, P0)
    world.record(P0, value, txn.name, txn.txid)
    fine(world.finals())


def test_uncommitted_readers_are_given_everything() -> None:
    world = World()
    two_partitions(world).abort()
    txn = two_partitions(world)
    world.read("consumer-0.0", "read_uncommitted")
    txn.commit()
    fine(world.finals())


def test_markers_written_again() -> None:
    world = World()
    one = two_partitions(world).commit()
    two_partitions(world).commit()
    one.mark(P0)
    verdict = fine(world.finals())
    assert verdict.stats["markers written again"] == 1


def test_delivery_at_the_marker_not_at_the_record() -> None:
    world = World()
    one, other = two_partitions(world), two_partitions(world)
    other.commit()
    world.plain()
    one.commit()
    assert world.order[P0] == [1, 3, 0]
    fine(world.finals())


def test_void_records_of_a_replaced_coordinator() -> None:
    world = World()
    txn = two_partitions(world)
    old = world.epochs[0]
    world.own()
    # The replaced one's decision comes late, and another one is made.
    current, world.epochs[0] = world.epochs[0], old
    txn.decide(commit=False)
    world.epochs[0] = current
    world.own()
    txn.ask().decide().mark_all().end("committed")
    fine(world.finals())


def test_records_behind_a_surprise_are_void() -> None:
    world = World()
    txn = two_partitions(world).ask()
    partitions = (DataPartition(IN, 0),)
    record = AddPartitions(begin=txn.txid.offset, partitions=partitions)
    world.journal_append(0, record, shift=1)
    txn.decide(commit=False)
    world.own()
    txn.decide().mark_all().end("committed")
    fine(world.finals())


def test_transactions_of_two_journals_have_no_common_order() -> None:
    world = World(journals=2)
    one, other = two_partitions(world, journal=0), two_partitions(world, journal=1)
    for txn in (one, other):
        txn.ask().decide()
    one.mark(P0)
    other.mark(P0)
    other.mark(P1)
    one.mark(P1)
    for txn in (one, other):
        txn.end("committed")
    fine(world.finals())


# ---- readers ------------------------------------------------------------------------------------


def test_a_group_member_is_given_again_what_was_not_committed() -> None:
    world = World()
    for _ in range(5):
        world.plain()
    world.assign("consumer-0.0", P0, group="g")
    world.poll("consumer-0.0", P0, [0, 1, 2])
    world.assign("consumer-1.0", P0, group="g")
    world.poll("consumer-1.0", P0, [1, 2, 3])
    world.say("consumer-1.0", "revoked", partitions=[[*P0]])
    world.assign("consumer-1.0", P0, group="g")
    world.poll("consumer-1.0", P0, [2, 3, 4])
    fine(world.finals())


def test_a_restart_in_the_midst_of_a_transaction() -> None:
    world = World()
    txn = world.begin()
    for _ in range(4):
        txn.append(0)
    txn.commit()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    world.assign("consumer-0.1", P0)
    world.poll("consumer-0.1", P0, [1, 2, 3])
    fine(world.finals())


def test_an_uncommitted_reader_starts_again() -> None:
    world = World()
    two_partitions(world).abort()
    for name in ("consumer-0.0", "consumer-0.1"):
        world.read(name, "read_uncommitted")
    fine(world.finals())


def test_a_seek_goes_back() -> None:
    world = World()
    world.plain()
    world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    world.say("consumer-0.0", "seek", topic=IN, partition=0, offset=0)
    world.poll("consumer-0.0", P0, [0, 1])
    fine(world.finals())


def test_a_worker_goes_back_after_an_abort() -> None:
    world = World()
    world.plain()
    world.plain()
    world.assign("worker-0.0", P0, group="workers")
    world.poll("worker-0.0", P0, [0])
    world.poll("worker-0.0", P0, [1])
    refused = world.begin("worker-0.0")
    refused.append(0, OUT, source=(0, 0))
    refused.abort()
    world.poll("worker-0.0", P0, [0, 1])
    worker = world.begin("worker-0.0")
    worker.append(0, OUT, source=(0, 0))
    worker.append(0, OUT, source=(0, 1))
    worker.claim_input(0, None, 2)
    worker.commit()
    fine(world.finals())


def test_a_reader_that_stops_early() -> None:
    world = World()
    for _ in range(3):
        two_partitions(world).commit()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, world.order[P0][:1])
    fine(world.finals())


def test_a_serializable_reader_that_is_given_another_partition() -> None:
    world = World()
    txns = [two_partitions(world).commit() for _ in range(3)]
    rows = {partition: world.order[partition] for partition in (P0, P1)}
    assert txns
    world.assign("consumer-0.0", P0, isolation="serializable", group="g")
    world.poll("consumer-0.0", P0, rows[P0][:2], "serializable")
    world.assign("consumer-0.0", P1, isolation="serializable", group="g")
    # The order begins anew with what is due in the partition that came.
    world.poll("consumer-0.0", P1, rows[P1][:2], "serializable")
    for partition in (P0, P1):
        world.poll("consumer-0.0", partition, rows[partition][2:], "serializable")
    fine(world.finals())


def test_a_serializable_reader_of_another_transaction_group() -> None:
    world = World(journals=2)
    one, other = two_partitions(world, journal=0), two_partitions(world, journal=1)
    one.commit()
    other.commit()
    world.plain()
    for name, group in (("final-1.0", "default"), ("final-2.0", "workers")):
        rows = [[*partition, None] for partition in world.logs]
        world.say(
            name,
            "assigned",
            isolation="serializable",
            transaction_group=group,
            partitions=rows,
        )
    # crc32("default") % 2 is 1, crc32("workers") % 2 is 0.
    for name, index in (("final-1.0", 1), ("final-2.0", 0)):
        for partition in (P0, P1):
            world.poll(name, partition, [world.order[partition][index]], "serializable")
    fine(world.finals())


# ---- trimmed logs -------------------------------------------------------------------------------


def test_what_was_trimmed_is_counted_and_no_anomaly() -> None:
    world = World()
    two_partitions(world).commit()
    world.plain()
    world.read("consumer-0.0")
    world.plain()
    world.starts[P0] = 3
    verdict = fine(world.finals())
    assert verdict.unverifiable["committed write that may have been trimmed"] == 2
    assert verdict.unverifiable["delivery of what was trimmed"] == 2


def test_a_transaction_of_which_a_part_was_trimmed() -> None:
    world = World()
    txn = world.begin()
    for _ in range(3):
        txn.append(0)
    txn.append(1)
    txn.commit()
    world.plain()
    world.starts[P0] = 2  # its last record and its marker are still there
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [4])
    world.poll("final-0.0", P1, [0])
    verdict = fine(world)
    assert verdict.unverifiable["transaction of which a part was trimmed"] == 1


def test_a_reader_that_was_overtaken_by_the_trimming() -> None:
    world = World()
    for _ in range(6):
        world.plain()
    world.assign("consumer-0.0", P0)
    world.poll("consumer-0.0", P0, [0, 1])
    world.starts[P0] = 4
    world.poll("consumer-0.0", P0, [4, 5])
    fine(world.finals())


def test_what_was_written_after_something_that_is_there_can_not_be_trimmed() -> None:
    world = World()
    world.plain()
    world.plain()
    world.starts[P0] = 1
    txn = world.begin()
    txn.append(0, arrive=False)
    txn.append(1)
    txn.commit()
    verdict = world.finals().judge()
    assert set(verdict.counts) == {"torn-transaction"}


def test_a_marker_written_again_whose_first_was_trimmed() -> None:
    world = World()
    one = two_partitions(world).abort()
    two_partitions(world).commit()
    one.mark(P0, commit=False)
    world.starts[P0] = 2
    verdict = fine(world.finals())
    assert verdict.unverifiable["marker before which another may have been trimmed"] == 1


def test_output_of_input_that_was_trimmed() -> None:
    world = World()
    world.plain()
    world.plain()
    for offset in (0, 1):
        worker = world.begin("worker-0.0")
        worker.append(0, OUT, source=(0, offset))
        worker.commit()
    world.starts[P0] = 1
    world.starts[OUT, 0] = 2
    fine(world.finals())


def test_a_worker_of_unknown_outcome_whose_output_was_trimmed() -> None:
    world = World("kafka")
    for _ in range(3):
        world.plain()
    for offset, outcome in ((0, "committed"), (1, "unknown"), (2, "committed")):
        worker = world.begin("worker-0.0")
        worker.append(0, OUT, source=(0, offset))
        world.claims[worker.name].append(["g", IN, 0, offset, offset + 1])
        worker.ask()
        worker.mark((OUT, 0))
        worker.end(outcome)
    world.starts[OUT, 0] = 6
    verdict = fine(world.finals())
    reason = "input of a worker's transaction of unknown outcome"
    assert verdict.unverifiable[reason] == 2  # by its output, and by its claim


def test_a_trimmed_journal_that_begins_with_an_owner() -> None:
    world = World()
    world.own()
    world.own()
    world.journal_starts[0] = 1
    two_partitions(world).commit()
    world.own()
    two_partitions(world).commit()
    verdict = fine(world.finals())
    assert verdict.stats["committed by the log"] == 2


@pytest.mark.parametrize("start", range(1, 9))
@pytest.mark.parametrize("outcome", ["committed", "unknown"])
def test_a_journal_that_was_trimmed_anywhere(start: int, outcome: str) -> None:
    world = World()
    for end in (1, 2):
        world.plain()
        txn = world.begin("worker-0.0")
        txn.append(0, OUT, source=(0, end - 1))
        txn.claim_input(0, end - 1 or None, end)
        txn.ask().decide().mark_all().end(outcome)
    world.own()
    world.journal_starts[0] = start
    verdict = fine(world.finals())
    assert verdict.stats["committed by the log"] == 2


# ---- Kafka's system -----------------------------------------------------------------------------


def test_kafka_delivers_in_the_order_of_the_log() -> None:
    world = World("kafka")
    one, other = two_partitions(world), two_partitions(world)
    other.append(0)
    for txn in (other, one):
        txn.ask().mark_all()
        txn.end("committed")
    assert world.order[P0] == [0, 1, 2]
    world.read("consumer-0.0")
    world.read("consumer-1.0", "read_uncommitted")
    fine(world.finals())


def test_kafka_behind_an_open_transaction_nothing_is_torn() -> None:
    world = World("kafka")
    hanging = world.begin()
    hanging.append(1)
    txn = two_partitions(world).ask()
    txn.mark_all()
    txn.end("committed")
    world.stable[P1] = 0
    world.order[P1].clear()
    verdict = world.finals().judge()
    # The last reader waits for it: that much is true, and is said.
    assert set(verdict.counts) == {"torn-transaction"}
    assert all("final-0.0" in anomaly.sentence for anomaly in verdict.anomalies)


def test_kafka_inputs_are_processed_between_markers() -> None:
    world = World("kafka")
    for _ in range(2):
        txn = two_partitions(world).ask()
        txn.mark_all()
        txn.end("committed")
    for number, offset, start in ((0, 0, 0), (0, 2, 1), (1, 0, 0), (1, 2, 2)):
        worker = world.begin("worker-0.0")
        worker.append(0, OUT, source=(number, offset))
        world.claims[worker.name].append(["g", IN, number, start, offset + 1])
        worker.ask().mark_all()
        worker.end("committed")
    fine(world.finals())
