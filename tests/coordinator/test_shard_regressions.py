"""Shortest sequences that broke the shard once; the transcripts show the same in context."""

from __future__ import annotations

from .test_shard_transcripts import Transcript


def last(*commands: str) -> str:
    """What is replied to the last of these commands, each followed by an `ack`."""
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
    # Input 2 to 4 would have been consumed twice: once for whatever committed 4, once here.
    sent = "offsets T2 g a/0:4->5"
    assert "OffsetsConflictError" in last("connect p", "begin p", sent, "offsets T2 g a/0:2->5")
