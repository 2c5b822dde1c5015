"""Bounds on commits that wait for input offsets, and on markers that a new owner writes again."""

from __future__ import annotations

from types import NoneType

import pytest

from logtx.coordinator.core import tenure
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.waiting import Waiting
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.requests import encode_request
from logtx.coordinator.server.stream import StreamLimits
from logtx.coordinator.server.streams import SMALL_ANSWER_BYTES
from logtx.journal.control import BranchRange
from logtx.journal.errors import CoordinatorBusyError
from logtx.journal.txid import TxId

from ..harness import Coordinator, step
from .test_shard_limits import Stage

SESSION = commands.SessionId("p", 0, 1)
TXID = TxId(0, 1, 2)


def test_commits_that_wait_leave_room_for_the_one_that_they_wait_for() -> None:
    """Without room its request would not be read any more, and all would wait until it expires."""
    size = Waiting(
        commands.End(session=SESSION, txid=TXID, action=commands.Action.COMMIT, writes={}), (1,)
    ).size
    stage = Stage(max_waiting_bytes=2 * size)
    p = stage.connect("p")
    txids = [stage.begun(p, 1 + at) for at in range(5)]
    for at, txid in enumerate(txids):
        steps = (step(("a", 0), at or None, at + 1),)
        stage.ask(commands.AddOffsets(session=p, txid=txid, group="g", steps=steps))
    waiting = [stage.end(p, txid, commands.Action.COMMIT) for txid in txids[1:]]
    assert [type(stage.reply(ref)) for ref in waiting] == [
        NoneType, NoneType, CoordinatorBusyError, CoordinatorBusyError
    ]  # fmt: skip
    repeat = stage.end(p, txids[1], commands.Action.COMMIT)
    assert isinstance(stage.reply(repeat), CoordinatorBusyError)
    stage.coordinator.shard.forget_waiting([waiting[1]])
    waiting.append(stage.end(p, txids[2], commands.Action.COMMIT))
    assert stage.reply(waiting[-1]) is None, "another's client went away"
    stage.end(p, txids[0], commands.Action.COMMIT)
    for ref in (waiting[0], waiting[-1]):
        assert isinstance(stage.reply(ref), commands.Outcome)
    for txid in txids[3:]:
        assert isinstance(stage.reply(stage.end(p, txid, commands.Action.COMMIT)), commands.Outcome)


def test_a_commit_that_waits_is_not_counted_for_less_than_it_occupies() -> None:
    limits = StreamLimits.for_open_transactions(1)
    assert 2 * ShardConfig().max_waiting_bytes <= limits.requests_max_bytes
    most = 2**63 - 1
    for branches in (0, 1, 100):
        writes = {
            (topic, 2**31 - 1): tuple(BranchRange(most - b, 0, most, most) for b in range(branches))
            for topic in ("t", "ü" * 249, "\U0001f6eb" * 100)
        }
        end = commands.End(session=SESSION, txid=TXID, action=commands.Action.COMMIT, writes=writes)
        wire = encode_request(most, end)
        assert wire.ByteSize() + SMALL_ANSWER_BYTES <= Waiting(end, (1,)).size


def test_what_is_redone_after_a_takeover_is_begun_by_and_by_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenure, "EFFECTS_MAX", 2)
    stage = Stage()
    p = stage.connect("p")
    txids = [stage.begun(p, 1 + at) for at in range(9)]
    for txid in reversed(txids):
        stage.end(p, txid, commands.Action.COMMIT)
    successor = Coordinator(stage.journal)
    successor.take_over()
    assert successor.serving
    begun = len(successor.markers)
    assert begun <= 4, "before it says that it serves"
    q = commands.SessionId("q", 0, 1)
    for ref, command in enumerate(
        (
            commands.Connect(producer_id="q", nonce=1),
            commands.Begin(session=q, request_id=1, answered_below=0, timeout_ms=9),
        )
    ):
        successor.submit(command, ref)
        successor.ack()
    began = successor.replies[1]
    assert isinstance(began, commands.Began)
    successor.submit(
        commands.End(session=q, txid=began.txid, action=commands.Action.COMMIT, writes={}), 2
    )
    successor.ack()
    while len(successor.markers) < len(txids) + 1:
        begun = len(successor.markers)
        successor.pass_time(1)
        assert begun < len(successor.markers) <= begun + 2
    order = [*reversed(txids), began.txid]
    assert list(successor.markers) == [t.offset for t in order], "in commit-sequence order"
