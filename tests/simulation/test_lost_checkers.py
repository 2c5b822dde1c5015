"""When nobody could know that the records a reader lacks are in a former topic (decision 0016)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from logtx.journal.txid import TxId

from .history import Absence
from .lost_checkers import nobody_knew

KEY: Final = ("temporary", 0)
TXID: Final = TxId(0, 5, 7)
WHY: Final = f"transaction {TXID} in temporary[0], marker 8: the log holds less than it says"
CREATED, HANDED, LANDED = 20, 30, 40
"""When the topic was created anew, and the decision was handed over and landed."""


def judged(
    *,
    registered: int | None = None,
    heard: tuple[tuple[str, int, str], ...] = (),
    news: tuple[tuple[str, int, str, int], ...] = (),
) -> bool:
    """Returns what is said of a history in which c0.1 decides."""
    history = SimpleNamespace(
        absent=[Absence(topic="temporary", at=10, from_ms=100, until_at=CREATED, until_ms=200)],
        heard=heard,
        news=news,
    )
    decision = SimpleNamespace(sequence=0, at=LANDED)
    known = {} if registered is None else {KEY: registered}
    found = SimpleNamespace(txid=TXID, decision=decision, registered=known)
    record = SimpleNamespace(writer="c0.1", handed_at=HANDED, at=LANDED)
    reading = SimpleNamespace(
        former={KEY: SimpleNamespace(txids={b"": TXID})},
        transaction=lambda txid: found if txid == TXID else None,
        journals=[SimpleNamespace(records=[record])],
    )
    return nobody_knew(cast(Any, history), cast(Any, reading), KEY, WHY)


def test_who_decides_by_what_it_never_heard_is_not_to_blame() -> None:
    assert judged()
    assert judged(heard=(("c0.1", HANDED - 1, "new-id-temporary"),))
    assert judged(news=(("c1.0", HANDED - 1, "id-temporary", 150),))  # Another one heard it.


@pytest.mark.parametrize("after", [HANDED + 1, LANDED + 1])
def test_trap_268_news_that_come_when_it_was_decided_come_too_late(after: int) -> None:
    assert judged(news=(("c0.1", after, "id-temporary", 150),))
    assert judged(heard=(("c0.1", after, "id-temporary"),))


def test_who_decides_by_another_topic_than_it_heard_of_is_to_blame() -> None:
    assert not judged(news=(("c0.1", HANDED - 1, "id-temporary", 150),))
    assert not judged(heard=(("c0.1", HANDED - 1, "id-temporary"),))


def test_a_partition_that_was_registered_before_names_its_topic() -> None:
    assert not judged(registered=CREATED - 1)
    assert judged(registered=CREATED + 1)
