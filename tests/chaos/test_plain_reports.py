"""Which plain records count as written, by their reports."""

from __future__ import annotations

import pytest

from logtx.chaos.workload.plain_reports import PlainReports


class Reported:
    """A message, as librdkafka reports it."""

    def __init__(self, offset: int | None, partition: int | None = 0) -> None:
        self._offset, self._partition = offset, partition

    def topic(self) -> str:
        return "chaos"

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int | None:
        return self._offset


def _told(*offsets: int | None) -> list[int | None]:
    reports = PlainReports()
    return [offset for offset in offsets if reports.tells("t", Reported(offset))]


@pytest.mark.parametrize("made_up", [(None,), (-1, 0), (None, 0, 1, 2, 3, 4, 5), (-1000, -999)])
def test_trap_240_a_batch_that_was_called_a_duplicate_counts_as_written_nowhere(
    made_up: tuple[int | None, ...],
) -> None:
    assert _told(8, 9, *made_up, 10, 11, *made_up, *made_up, 14) == [8, 9, 10, 11, 14]
    assert _told(*made_up, 8, 9) == [8, 9]


def test_a_topic_that_was_created_anew_is_believed_at_the_second_record() -> None:
    assert _told(6, 7, 0, 1, 2) == [6, 7, 1, 2]
    assert _told(6, 7, None, 3, 4, 5) == [6, 7, 4, 5]


def test_partitions_and_topics_are_judged_each_by_itself() -> None:
    reports = PlainReports()
    assert reports.tells("t", Reported(5))
    assert reports.tells("t", Reported(0, 1))
    assert reports.tells("u", Reported(0))
    assert not reports.tells("t", Reported(0, None))
    assert not reports.tells("t", Reported(5))
