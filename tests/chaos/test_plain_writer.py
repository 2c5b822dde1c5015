"""What the history says of plain records, by what librdkafka reports of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from logtx.chaos.recorder import Recorder, history_of
from logtx.chaos.workload.plain import reporter
from logtx.chaos.workload.plain_reports import PlainReports

from .test_plain_reports import Reported


def _told(directory: Path, reports: list[tuple[KafkaError | None, int | None]]) -> list[Any]:
    judge = PlainReports()
    offsets: list[int] = []
    with Recorder(directory, "producer-0.0") as recorder:
        for number, (error, offset) in enumerate(reports):
            told: Any = reporter(recorder, f"v{number}", offsets.append, judge)
            told(error, Reported(offset))
    lines = history_of(directory, "producer-0.0").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert offsets == [each["offset"] for each in events if each["event"] == "acked"]
    return [each["event"] for each in events]


def test_trap_240_what_was_called_a_duplicate_is_not_acknowledged(tmp_path: Path) -> None:
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    reports = [(None, 4), (too_large, None), (None, None), (None, 0), (None, 5)]
    assert _told(tmp_path, reports) == ["acked", "failed", "failed", "failed", "acked"]
