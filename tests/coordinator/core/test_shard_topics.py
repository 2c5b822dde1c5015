"""A topic that is deleted and created again while a transaction writes to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange
from logtx.journal.errors import UnknownTopicError
from logtx.journal.state import State

from ..harness import TOPICS
from .test_shard_limits import Stage

PLACE = ("a", 0)
RECORDS = {PLACE: (BranchRange(0, 0, 9, 10),)}


def begun(stage: Stage, topic_id: str) -> commands.End:
    """Begins in the topic of this id; returns the commit of that transaction."""
    session = stage.connect("p")
    stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id=topic_id)
    begin = commands.Begin(
        session=session, request_id=1, answered_below=0, timeout_ms=9, partitions=(PLACE,)
    )
    reply = stage.reply(stage.ask(begin))
    assert isinstance(reply, commands.Began), reply
    return commands.End(
        session=session, txid=reply.txid, action=commands.Action.COMMIT, writes=RECORDS
    )


def test_records_in_a_topic_created_anew_are_not_committed() -> None:
    # Its marker would belong to the deleted topic and never be written: the client would be told
    # "committed", and consumers of the new topic would drop the records.
    stage = Stage()
    commit = begun(stage, "before")
    stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id="anew")
    refusal = stage.reply(stage.ask(commit))
    assert isinstance(refusal, UnknownTopicError)
    assert "created anew within the transaction" in str(refusal)
    outcome = stage.reply(stage.ask(replace(commit, action=commands.Action.ABORT)))
    assert isinstance(outcome, commands.Outcome)
    assert outcome.state is State.ABORTING


@pytest.mark.parametrize("now", ["before", None], ids=["the same topic", "deleted"])
def test_records_where_they_were_registered_are(now: str | None) -> None:
    stage = Stage()
    commit = begun(stage, "before")
    if now is None:
        del stage.coordinator.topics["a"]
    outcome = stage.reply(stage.ask(commit))
    assert isinstance(outcome, commands.Outcome)
    assert outcome.state is State.COMMITTING


def test_a_topic_of_an_unknown_id_may_be_the_same() -> None:
    stage = Stage()
    commit = begun(stage, "")
    stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id="told since")
    assert isinstance(stage.reply(stage.ask(commit)), commands.Outcome)


def test_no_records_there_leave_the_commit_as_it_is() -> None:
    stage = Stage()
    commit = replace(begun(stage, "before"), writes={PLACE: ()})
    stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id="anew")
    assert isinstance(stage.reply(stage.ask(commit)), commands.Outcome)


@pytest.mark.parametrize("before", [False, True], ids=["named by the commit", "registered"])
def test_a_partition_that_only_the_commit_names_is_tied_to_no_topic(*, before: bool) -> None:
    # What is known of the topic may be ten seconds old. If it was created anew meanwhile, and the
    # transaction began after that, its records are in the new one: there its marker must go.
    stage = Stage()
    commit = begun(stage, "known")
    commit = commit if before else replace(commit, writes={("a", 1): RECORDS[PLACE]})
    assert isinstance(stage.reply(stage.ask(commit)), commands.Outcome)
    decided = stage.coordinator.shard.transactions.get(commit.txid.offset)
    assert decided is not None
    assert {p: d.topic_id for p, d in decided.partitions.items()} == (
        {PLACE: "known"} if before else {PLACE: "known", ("a", 1): ""}
    )
