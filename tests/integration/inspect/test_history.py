"""Where a group stood, by a journal that is whole or trimmed, and whose offsets were ended."""

from __future__ import annotations

import pytest

from logtx.integration.inspect.history import GroupHistory, Iov
from logtx.journal.errors import ConfigError
from logtx.journal.position import Position
from logtx.journal.records.scan import JournalPart, SeenTransaction
from logtx.journal.records.types import Forget, OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

A, B = ("flights", 0), ("flights", 1)
MIDST = Position(o1=3, o2=8, o3=2)


def decided(
    begin: int,
    sequence: int,
    *moves: tuple[str, tuple[str, int], Position],
    at_ms: int,
    state: State = State.COMMITTED,
) -> SeenTransaction:
    """A transaction that was decided; `moves` are (group, partition, to)."""
    return SeenTransaction(
        txid=TxId(0, 7, begin),
        state=state,
        commit_sequence=sequence,
        decided_ms=at_ms,
        offsets=[(group, OffsetStep(*key, None, to)) for group, key, to in moves],
    )


SEEN = [
    decided(1, 5, ("g", A, Position.at(2)), ("g", A, Position.at(4)), at_ms=100),
    decided(2, 4, ("other", A, Position.at(90)), at_ms=90),
    decided(3, 7, ("g", A, Position.at(6)), at_ms=150, state=State.ABORTED),
    # It began first and was decided last, by a clock that was set back.
    decided(0, 9, ("g", B, MIDST), at_ms=120, state=State.COMMITTING),
    decided(8, 12, ("g", A, Position.at(9)), at_ms=300),
]


def history(
    *, first: int = 0, base: Iov | None = None, forgotten: list[tuple[int, Forget]] | None = None
) -> GroupHistory:
    transactions = {seen.txid.offset: seen for seen in SEEN}
    return GroupHistory(
        "g", JournalPart(0, first, transactions, {"g": base or {}}, forgotten or [])
    )


def test_after_each_commit() -> None:
    whole = history()
    assert [seen.commit_sequence for seen in whole.commits] == [5, 9, 12]
    assert whole.after(5).offsets == {A: Position.at(4)}
    assert whole.after(TxId(0, 7, 0)).offsets == {A: Position.at(4), B: MIDST}
    assert whole.after(12).offsets == {A: Position.at(9), B: MIDST}
    for wrong in (7, 4, TxId(0, 7, 2), TxId(0, 8, 1)):
        with pytest.raises(ConfigError, match="between 5 and 12"):
            whole.after(wrong)


@pytest.mark.parametrize(
    ("wall_ms", "offsets"),
    [(99, {}), (100, {A: 4}), (119, {A: 4}), (299, {A: 4, B: 8}), (300, {A: 9, B: 8})],
)
def test_at_a_time(wall_ms: int, offsets: dict[tuple[str, int], int]) -> None:
    standing = history().at(wall_ms)
    assert {key: at.o2 for key, at in standing.offsets.items()} == offsets


def test_a_trimmed_journal_goes_on_from_its_snapshot() -> None:
    # The snapshot has what was decided below it, also of transactions that it still lists.
    trimmed = history(first=9, base={A: Position.at(4)})
    assert [seen.commit_sequence for seen in trimmed.commits] == [9, 12]
    assert trimmed.after(9).offsets == {A: Position.at(4), B: MIDST}
    assert trimmed.at(200).offsets == {A: Position.at(4), B: MIDST}
    with pytest.raises(ConfigError, match="was trimmed"):
        trimmed.at(110)
    with pytest.raises(ConfigError, match="goes back to its snapshot"):
        GroupHistory("g", JournalPart(0, 99, {}, {"g": {A: Position.at(4)}})).at(200)


def test_offsets_that_were_ended() -> None:
    ended = history(forgotten=[(6, Forget(hours=0, groups=("g",)))])
    assert ended.after(5).offsets == {A: Position.at(4)}
    assert ended.after(9).offsets == {B: MIDST}
    # The decision of others tells that it was later.
    ended = history(forgotten=[(8, Forget(hours=0, groups=("g",)))])
    assert ended.at(149).offsets == {A: Position.at(4)}
    assert ended.at(150).offsets == {B: MIDST}
    of_topic = history(forgotten=[(10, Forget(hours=0, topics=(("g", "flights"), ("h", "x"))))])
    assert of_topic.after(9).offsets == {A: Position.at(4), B: MIDST}
    assert of_topic.after(12).offsets == {A: Position.at(9)}
