"""What a write is known by: versions, digests, and the steps that commit with it."""

from __future__ import annotations

import pytest

from logtx.integration.spark.errors import BatchGapError, ReplayDiffersError
from logtx.integration.spark.identity import (
    DIGEST_AT,
    RANGE_AT,
    VERSION_AT,
    Committed,
    Identity,
    file_logs,
    input_digest,
    input_end,
)
from logtx.journal.position import Place, Position

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":%d}\n'
BATCH = Identity("spark-q", 7, of_query=True, consecutive=True, digest=3)
IN_FOREACH = Identity("spark-q-t-0", 7, of_query=True, digest=3)
WRITE = Identity("spark-app-a", 7)


def test_only_the_sources_count_and_not_the_clock() -> None:
    first, later = ((HEAD % clock) + '{"a":1}\n{"b":2}' for clock in (1, 2))
    assert input_digest(first) == input_digest(later)
    assert input_digest(first) != input_digest(first.replace("2}", "3}"))
    assert 0 <= input_digest(first) < 2**63


def test_a_source_of_files_says_more_in_a_log_of_its_own() -> None:
    offsets = (HEAD % 1) + '{"topic":{"0":1}}\n{"logOffset":4}\nnot json\n-'
    assert file_logs(offsets) == [("sources/1/4", "sources/1/4.compact")]


@pytest.mark.parametrize("identity", [BATCH, IN_FOREACH, WRITE])
def test_what_is_new_is_not_done(identity: Identity) -> None:
    assert not identity.is_done(Committed())
    assert not identity.is_done(Committed(6, 99))


def test_what_is_committed_is_done() -> None:
    for digest in (3, None):
        assert BATCH.is_done(Committed(7, digest))
        assert IN_FOREACH.is_done(Committed(7, digest))
    for version in (7, 8, 100):
        assert WRITE.is_done(Committed(version))


@pytest.mark.parametrize("identity", [BATCH, IN_FOREACH])
@pytest.mark.parametrize("committed", [Committed(7, 4), Committed(8, 3), Committed(8)])
def test_a_micro_batch_is_not_taken_for_another_one(
    identity: Identity, committed: Committed
) -> None:
    with pytest.raises(ReplayDiffersError):
        identity.is_done(committed)


def test_steps_compare_with_what_is_committed() -> None:
    first = {(s.topic, s.partition): (s.from_place, s.to) for s in BATCH.steps(Committed())}
    assert first == {VERSION_AT: (None, Position.at(7)), DIGEST_AT: (None, Position.at(3))}
    following = {(s.topic, s.partition): s.from_place for s in BATCH.steps(Committed(6, 9))}
    assert following == {VERSION_AT: Place(6), DIGEST_AT: Place(9)}
    [same_input] = BATCH.steps(Committed(6, 3))
    assert same_input.to == Position.at(7)
    [of_write] = WRITE.steps(Committed(2))
    assert (of_write.from_place, of_write.to) == (Place(2), Position.at(7))


def test_micro_batches_follow_each_other_and_other_writes_need_not() -> None:
    with pytest.raises(BatchGapError, match="micro-batch 7 of query q follows 5"):
        BATCH.steps(Committed(5))
    assert WRITE.steps(Committed(1))


def test_writes_of_one_foreach_batch_differ_by_topic_and_number() -> None:
    def group(batch_id: int, topic: str, number: int) -> str:
        return Identity.of_write("q", batch_id, topic, number, None).group

    assert len({group(1, topic, number) for topic in ("a", "b") for number in (0, 1)}) == 4
    assert group(1, "a", 0) == group(2, "a", 0)


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ('{"a":{"0":5,"1":7}}', 12),
        ('{"version":2,"places":{"a":{"0":5,"1":[7,3,2,0]}},"topics":{"a":"x"}}', 12),
        ('{"a":{"0":5}}\n{"logOffset":3}', 8),
        ("7\n-", 7),
        ("-", None),
        (f'{{"of": {2**62}, "no": {2**62}}}', None),
    ],
)
def test_the_end_of_the_input_of_any_source(source: str, end: int | None) -> None:
    assert input_end((HEAD % 1) + source) == end


def test_a_replay_that_differs_names_both_ranges() -> None:
    def micro_batch(number: int, end: int) -> Identity:
        return Identity.of_micro_batch("q", number, (HEAD % 1) + f'{{"a":{{"0":{end}}}}}')

    committed: dict[tuple[str, int], Position] = {}
    for number, end in enumerate((10, 25)):
        for step in micro_batch(number, end).steps(Committed.of(committed)):
            at = step.topic, step.partition
            assert step.from_place == (committed[at].place if at in committed else None)
            committed[at] = step.to
    assert committed[RANGE_AT] == Position(o1=10, o2=25)
    found = Committed.of(committed)
    assert micro_batch(1, 25).is_done(found)
    for number, end, asked in ((1, 40, "10 to 40"), (0, 8, "up to 8")):
        with pytest.raises(ReplayDiffersError, match=f"committed 10 to 25, now {asked}[)]"):
            micro_batch(number, end).is_done(found)
    assert not micro_batch(2, 3).is_done(found)
    assert micro_batch(2, 3).steps(found)[-1].to == Position.at(3), "a source that began anew"
