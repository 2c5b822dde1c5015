"""Questions that wait until a transaction is finished."""

from __future__ import annotations

import pytest

from logtx.coordinator.core.waiting import FINISH_WAIT_MS
from logtx.coordinator.protocol import commands
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .test_tenure_places import Stage


@pytest.fixture(params=[State.COMMITTING, State.ABORTING])
def decided(request: pytest.FixtureRequest) -> tuple[Stage, TxId, State]:
    """A transaction that is decided, and whose marker is not written."""
    stage = Stage()
    txid, state = stage.begin(), request.param
    action = commands.Action.COMMIT if state is State.COMMITTING else commands.Action.ABORT
    writes = {("a", 0): ()}
    stage.ask(commands.End(session=stage.session, txid=txid, action=action, writes=writes))
    assert stage.state(txid.offset) is state
    return stage, txid, state


def ask(stage: Stage, txid: TxId) -> int:
    ref = stage.submit(commands.GetOutcome(txid=txid, until_finished=True))
    stage.coordinator.ack()
    return ref


def told(stage: Stage, ref: int) -> State | None:
    reply = stage.coordinator.replies.get(ref)
    assert reply is None or isinstance(reply, commands.Outcome)
    return None if reply is None else reply.state


def test_a_question_is_answered_when_that_is_durable(decided: tuple[Stage, TxId, State]) -> None:
    stage, txid, _ = decided
    refs = [ask(stage, txid), ask(stage, txid)]
    assert [told(stage, ref) for ref in refs] == [None, None]
    stage.coordinator.finish(txid.offset)
    assert [told(stage, ref) for ref in refs] == [None, None], "its record may be lost"
    stage.coordinator.ack()
    finished = stage.state(txid.offset)
    assert finished.finished
    assert [told(stage, ref) for ref in refs] == [finished, finished]
    assert told(stage, ask(stage, txid)) is finished, "it need not wait"


def test_a_question_does_not_wait_for_ever(decided: tuple[Stage, TxId, State]) -> None:
    stage, txid, state = decided
    first = ask(stage, txid)
    stage.coordinator.pass_time(FINISH_WAIT_MS - 1)
    second = ask(stage, txid)
    assert told(stage, first) is None
    stage.coordinator.pass_time(1)
    assert (told(stage, first), told(stage, second)) == (state, None)
    stage.coordinator.finish(txid.offset)
    stage.coordinator.ack()
    assert told(stage, second) is stage.state(txid.offset)
    stage.coordinator.pass_time(FINISH_WAIT_MS)


def test_who_went_away_is_not_answered(decided: tuple[Stage, TxId, State]) -> None:
    stage, txid, _ = decided
    gone, stays = ask(stage, txid), ask(stage, txid)
    stage.coordinator.tenure.forget([gone])
    stage.coordinator.finish(txid.offset)
    stage.coordinator.ack()
    assert told(stage, gone) is None
    assert told(stage, stays) is not None


def test_what_is_open_is_answered_at_once() -> None:
    stage = Stage()
    assert told(stage, ask(stage, stage.begin())) is State.OPEN
