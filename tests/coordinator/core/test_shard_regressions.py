"""The shortest sequences that once broke the shard; the transcripts show the same in context."""

from __future__ import annotations

import time

from logtx.coordinator.core.decision import Decision, Instant
from logtx.coordinator.protocol import commands
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Bind,
    Committed,
    Entry,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)
from logtx.journal.state import State

from ..harness import INCARNATION, WALL_MS, dump, fates, load, step, txid
from .test_shard_transcripts import Transcript


def last(*commands: str) -> str:
    """Runs these commands, each followed by an `ack`; returns the reply to the last one."""
    transcript = Transcript()
    printed: list[str] = []
    for command in commands:
        printed = [*transcript.run(command), *transcript.run("ack")]
    [reply] = [line for line in printed if line.startswith("reply")]
    return reply.partition(": ")[2]


def test_resent_offsets_of_one_transaction_are_not_a_conflict() -> None:
    # The client sent both before the first was answered, and sends both again on a new stream.
    sent = ("offsets T2 g a/0:none->1", "offsets T2 g a/0:1->2")
    assert last("connect p", "begin p", *sent, sent[0]) == "Done"
    assert last("connect p", "begin p", *sent, *sent) == "Done"


def test_offsets_that_end_alike_from_elsewhere_are_a_conflict() -> None:
    # Input 2 to 4 would have been consumed twice: by the commit that moved it to 4, and here.
    sent = "offsets T2 g a/0:4->5"
    assert "OffsetsConflictError" in last("connect p", "begin p", sent, "offsets T2 g a/0:2->5")


def test_an_abort_whose_begin_was_lost_does_not_keep_the_journal_from_being_loaded() -> None:
    # BEGIN (predicted at 2), PRODUCER and PREPARE_ABORT are in flight. Only the abort lands, at 2,
    # in an epoch that is still current (trap 3). To a consumer this journal says nothing of T2.
    transcript = Transcript()
    for command in ("connect p", "ack", "begin p", "connect p nonce=2"):
        transcript.run(command)
    transcript.coordinator.lose(landed=[2])
    assert transcript.journal.entries[2].record == PrepareAbort(
        begin=2, reason=AbortReason.FENCED, decided_ms=WALL_MS
    )
    assert fates(transcript.journal.entries, [txid(2)])[txid(2)].state is State.UNKNOWN
    assert transcript.run("begin p request=9") != []


def test_a_losing_candidate_does_not_end_the_journal_either() -> None:
    # A void OWNER lands in front of a BEGIN in flight and of the abort that names it, and shifts
    # both by one; nothing was lost. The abort now names another record.
    transcript = Transcript()
    for command in ("connect p", "ack", "begin p", "connect p nonce=2", "other OWNER replaces=-1"):
        transcript.run(command)
    assert transcript.run("lose landed=3") == ["surprise", "retry  #2", "retry  #3", "epoch  6"]
    assert transcript.run("begin p request=2")[0].startswith("append 7: BEGIN p generation=0")


def test_the_first_of_two_decisions_counts_for_a_shard_too() -> None:
    transcript = Transcript()
    for command in ("connect p", "ack", "begin p", "ack", "commit T2", "ack"):
        transcript.run(command)
    transcript.run("other T2 PREPARE_ABORT epoch=0")
    transcript.coordinator.lose()
    assert "committing at 3" in transcript.run("outcome T2")[-1]


def test_offsets_whose_predecessor_was_lost_are_void() -> None:
    transcript = Transcript()
    for command in ("connect p", "ack", "begin p", "ack"):
        transcript.run(command)
    steps = ("offsets T2 g a/0:none->1", "offsets T2 g a/0:1->2", "offsets T2 g a/0:2->3")
    for command in steps:
        transcript.run(command)
    transcript.coordinator.lose(landed=[0, 2])
    for command in (*steps, "ack", "commit T2", "ack"):
        transcript.run(command)
    assert "a/0:3 by T2" in transcript.run("fetch g")[-1]


def test_a_record_out_of_its_place_is_void_whatever_it_is() -> None:
    begin = Begin(
        producer_id="p",
        generation=0,
        session_nonce=1,
        request_id=1,
        answered_below=0,
        timeout_ms=1,
        started_ms=0,
    )
    owner = Entry(-1, INCARNATION, Owner(replaces=-1, address="c1", process_nonce=1))
    for record in (
        ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="default"),
        begin,
        AddPartitions(begin=1, partitions=()),
        AddOffsets(begin=1, group="g", steps=()),
        PrepareCommit(begin=1, writes=(), decided_ms=0),
        PrepareAbort(begin=1, reason=AbortReason.EXPIRED, decided_ms=0),
        Committed(begin=1),
        Aborted(begin=1),
        Bind(group="g", transaction_group="default"),
    ):
        empty = {**dump(load([owner])), "next_offset": 2}
        for void in (Entry(0, INCARNATION, record, 2), Entry(7, INCARNATION, record, 1)):
            assert dump(load([owner, void])) == empty


def test_a_duplicate_begin_that_the_client_has_an_answer_to_opens_nothing() -> None:
    # A frame of a broken stream is read after those of the next one. No client would ever end
    # that transaction.
    commands = ("connect p", "begin p request=1", "begin p request=2 below=2")
    assert "SessionClosedError" in last(*commands, "begin p request=1")
    assert last(*commands, "begin p request=2 below=2") == "Began T3"
    assert last(*commands, "begin p request=3 below=2") == "Began T4"


def test_a_begin_of_a_new_generation_is_not_that_of_the_old_one() -> None:
    # A client instance raised its generation: its request 1 is another request now.
    commands = ("connect p", "begin p request=1", "connect p nonce=1 generation=5")
    assert last(*commands, "begin p request=1") == "Began T5"


def test_a_void_begin_was_never_aborted() -> None:
    # The BEGIN of a replaced coordinator lies at 3 for ever. No client was told its TxId; one
    # that makes it up must not be told that it is open, or was aborted.
    transcript = Transcript()
    for command in ("connect p", "ack", "begin p request=1", "ack", "begin p request=2"):
        transcript.run(command)
    transcript.coordinator.lose(late=True)
    transcript.run("late")
    transcript.coordinator.lose()
    begun = transcript.journal.entries[4].record
    assert isinstance(begun, Begin)
    for command in ("commit T4", "abort T4", "partitions T4 a/0"):
        assert "UnknownTransactionError" in transcript.run(command)[-1]
    assert transcript.run("outcome T4")[-1].endswith("Outcome T4 unknown")


def test_hundreds_of_commits_may_wait_for_earlier_ones() -> None:
    # Each decision looks at all commits that wait. When it scanned all open transactions for each,
    # this took 9 s, and one command took 0.17 s, in which the coordinator served no client.
    shard, now, count = load([]), Instant(0, 0), 500

    def do(command: commands.Command) -> None:
        decision: Decision | None = shard.handle(command, object(), now, {})
        while decision is not None:
            for record in decision.records:
                shard.replay(shard.next_offset, shard.entry(record))
            decision = shard.due(now, {})

    shard.replay(0, Entry(-1, INCARNATION, Owner(replaces=-1, address="c1", process_nonce=1)))
    shard.loaded(now)
    do(commands.Connect(producer_id="p", nonce=1))
    session = commands.SessionId("p", 0, 1)
    for request in range(count):
        do(commands.Begin(session=session, request_id=request, answered_below=0, timeout_ms=60_000))
        steps = (step(("a", 0), request or None, request + 1),)
        do(commands.AddOffsets(session=session, txid=txid(2 * request + 2), group="g", steps=steps))
    started_s = time.process_time()
    for request in (*range(count // 2, count), *range(count // 2)):
        told = txid(2 * request + 2)
        do(commands.End(session=session, txid=told, action=commands.Action.COMMIT, writes={}))
    assert time.process_time() - started_s < 5
    assert shard.offsets.committed("g").offsets["a", 0].o2 == count
