"""A topic that is deleted and created again while a transaction writes to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange
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


@pytest.mark.parametrize("now", ["before", "anew", None])
def test_whatever_became_of_its_topic_a_commit_is_decided(now: str | None) -> None:
    # Its records may be in either topic of that name: the answers of which a coordinator knows may
    # be old. So none of them says that the records are gone, as they do not after the decision.
    stage = Stage()
    commit = begun(stage, "before")
    if now is None:
        del stage.coordinator.topics["a"]
    else:
        stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id=now)
    outcome = stage.reply(stage.ask(commit))
    assert isinstance(outcome, commands.Outcome)
    assert outcome.state is State.COMMITTING


@pytest.mark.parametrize("before", [False, True], ids=["named by the commit", "registered"])
def test_the_journal_has_the_ids_of_the_topics_as_they_were_known(*, before: bool) -> None:
    # The marker will state them, also if a later coordinator writes it.
    stage = Stage()
    commit = begun(stage, "known")
    commit = commit if before else replace(commit, writes={("a", 1): RECORDS[PLACE]})
    assert isinstance(stage.reply(stage.ask(commit)), commands.Outcome)
    decided = stage.coordinator.shard.transactions.get(commit.txid.offset)
    assert decided is not None
    assert {p: d.topic_id for p, d in decided.partitions.items()} == (
        {PLACE: "known"} if before else {PLACE: "known", ("a", 1): "known"}
    )


@pytest.mark.parametrize(("began_ms", "stated"), [(0, "former"), (5, "former"), (20, "anew")])
def test_a_marker_states_the_topic_that_had_the_name_when_its_transaction_began(
    began_ms: int, stated: str
) -> None:
    # The commit is the first to name the partition. Its records may have gone with the former one;
    # a marker that states the new one stops the readers that miss them. Where they are, they are
    # delivered, whatever the marker states.
    stage = Stage()
    stage.coordinator.pass_time(began_ms)
    commit = replace(begun(stage, "former"), writes={("a", 1): RECORDS[PLACE]})
    told = (2, "former"), (20, "anew")
    stage.coordinator.topics["a"] = replace(TOPICS["a"], topic_id="anew", told=told)
    assert isinstance(stage.reply(stage.ask(commit)), commands.Outcome)
    decided = stage.coordinator.shard.transactions.get(commit.txid.offset)
    assert decided is not None
    assert decided.partitions["a", 1].topic_id == stated
