"""What a coordinator remembers of claims, and for how many partitions."""

from __future__ import annotations

import pytest

from logtx.coordinator.core import claims as module
from logtx.coordinator.core.claims import Claims
from logtx.coordinator.protocol.commands import ClaimOffsets
from logtx.journal.control import TopicPartition
from logtx.journal.errors import ClaimFencedError, NotSupportedError, RequestTooLargeError
from logtx.journal.records.types import Claim

from ..harness import step

A: list[TopicPartition] = [("a", number) for number in range(5)]


def ask(
    *partitions: TopicPartition,
    claimant: int = 9,
    expected: dict[TopicPartition, int] | None = None,
) -> ClaimOffsets:
    """Returns a claim of group g."""
    return ClaimOffsets(group="g", partitions=partitions, claimant=claimant, expected=expected)


def claimed(*of: tuple[int, tuple[TopicPartition, ...]]) -> Claims:
    """Returns the state after these claims of group g: (number, also the claimant; partitions)."""
    claims = Claims()
    for number, partitions in of:
        claims.replay(number, Claim(group="g", claimant=number, partitions=partitions))
    return claims


def remembered(claims: Claims) -> dict[TopicPartition, int]:
    """Returns the number of each partition's latest claim."""
    return {partition: row.number for row in claims.rows() for partition in row.partitions}


def test_a_retry_is_known_by_its_claimant_while_it_is_the_latest_of_all() -> None:
    claims = claimed((3, (A[0], A[1], A[2])), (5, (A[2],)))
    assert claims.decide(ask(A[0], A[1], claimant=3)) == 3
    assert claims.decide(ask(A[0], A[1], claimant=3, expected={})) == 3, "it was its own change"
    assert claims.decide(ask(A[0], A[2], claimant=3)) is None
    assert claims.decide(ask(A[0], claimant=5)) is None
    assert claims.decide(ask(A[0], A[3], claimant=3)) is None
    assert claims.decide(ask(A[3], claimant=3)) is None


@pytest.mark.parametrize(
    "expected",
    [{}, {A[0]: 3}, {A[0]: 3, A[1]: 5}, {A[0]: 5, A[1]: 3}, {A[0]: 3, A[1]: 3, A[2]: 3}],
)
def test_a_condition_holds_for_every_partition(expected: dict[TopicPartition, int]) -> None:
    claims = claimed((3, (A[0],)), (5, (A[1],)))
    right = {A[0]: 3, A[1]: 5}
    asked = ask(A[0], A[1], expected=expected)
    if all(expected.get(p) == right[p] for p in right):
        assert claims.decide(asked) is None
    else:
        with pytest.raises(ClaimFencedError, match="given to another"):
            claims.decide(asked)


def test_only_steps_of_an_older_claim_are_refused() -> None:
    claims = claimed((3, (A[0], A[1])), (5, (A[1],)))
    claims.check("g", (step(A[0], None, 1, 3), step(A[1], None, 1, 5), step(A[1], None, 1)))
    claims.check("g", (step(A[2], None, 1, 3),))
    claims.check("h", (step(A[1], None, 1, 3),))
    with pytest.raises(ClaimFencedError, match=r"a\[1\].*the latest claim is 5"):
        claims.check("g", (step(A[0], None, 1, 3), step(A[1], None, 1, 3)))


def test_a_claim_names_partitions_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLAIMED_MAX", 3)
    assert claimed().decide(ask(*A[:3])) is None
    with pytest.raises(RequestTooLargeError, match="3 at most"):
        claimed().decide(ask(*A[:4]))
    with pytest.raises(NotSupportedError):
        claimed().decide(ask())


def test_the_oldest_claims_are_forgotten_by_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLAIMED_MAX", 3)
    claims = claimed((3, (A[0], A[1])), (5, (A[0], A[2])), (8, (A[3],)))
    restored = Claims()
    for row in claims.rows():
        restored.restore(row)
    for known in (claims, restored):
        assert remembered(known) == {A[0]: 5, A[2]: 5, A[3]: 8}
        known.check("g", (step(A[1], None, 1, 3),))
        known.replay(9, Claim(group="g", claimant=9, partitions=(A[4],)))
        assert remembered(known) == {A[2]: 5, A[3]: 8, A[4]: 9}
