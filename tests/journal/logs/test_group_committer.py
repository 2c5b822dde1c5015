"""Committing group offsets: bounded, and told the answer of one's own commit only."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from logtx.journal.errors import BrokerError
from logtx.journal.logs import group_clients
from logtx.journal.logs.interface import GroupOffset, LogConsumer
from logtx.journal.logs.kafka import KafkaLog


class Committing:
    """Answers commits as it is told to, when polled."""

    def __init__(self, config: Mapping[str, Any], answers: list[Any]) -> None:
        self._on_commit = config["on_commit"]
        self._answers = answers
        self._asked: list[TopicPartition] = []
        self.closed = False

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Takes it."""
        assert asynchronous
        self._asked = offsets

    def poll(self, timeout: float = -1) -> None:
        """One answer."""
        if self._answers:
            answer = self._answers.pop(0)
            if answer is not None:
                answer(self._on_commit, self._asked)
                return
        time.sleep(timeout)

    def close(self) -> None:
        """Is closed."""
        self.closed = True


class CommittingLog(KafkaLog):
    """Its consumers answer commits so."""

    def __init__(self, *answers: Any) -> None:
        super().__init__({"bootstrap.servers": "nowhere:1"})
        self.answers = list(answers)
        self.made: list[Committing] = []

    def consumer(self, config: Mapping[str, Any]) -> LogConsumer:
        """Of ours."""
        self.made.append(Committing(config, self.answers))
        made: Any = self.made[-1]
        return made  # type: ignore[no-any-return]


def done(told: Any, asked: list[TopicPartition]) -> None:
    told(None, asked)


def refused(code: int) -> Any:
    return lambda told, asked: told(KafkaError(code), asked)


def of_earlier(told: Any, _: list[TopicPartition]) -> None:
    told(KafkaError(KafkaError._TIMED_OUT), [TopicPartition("t", 0, 1, metadata="early")])


def commit(log: CommittingLog, timeout_s: float = 5.0) -> None:
    log.commit_group_offset("g", "t", 0, GroupOffset(7, "m"), timeout_s=timeout_s)


def test_a_commit_waits_for_its_own_answer() -> None:
    log = CommittingLog(None, of_earlier, None, done)
    commit(log)
    assert log.answers == []
    log.close()
    assert log.made[0].closed


def test_what_passes_is_tried_again() -> None:
    commit(CommittingLog(refused(KafkaError.NOT_COORDINATOR), done))


def test_a_refusal_is_told() -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        commit(CommittingLog(refused(KafkaError.UNKNOWN_MEMBER_ID)))


def test_a_commit_without_an_answer_is_bounded() -> None:
    started_s = time.monotonic()
    with pytest.raises(BrokerError, match="no answer"):
        commit(CommittingLog(of_earlier), timeout_s=0.3)
    assert time.monotonic() - started_s < 3


def test_a_client_that_does_not_close_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # librdkafka awaits the answer to a commit, which a broker that stands still does not give.
    monkeypatch.setattr(group_clients, "CLOSE_S", 0.3)
    log, answered = CommittingLog(done, done), threading.Event()
    commit(log)
    log.made[0].close = answered.wait  # type: ignore[assignment,method-assign]
    started_s = time.monotonic()
    log.close()
    assert time.monotonic() - started_s < 3
    answered.set()
    commit(log)
    assert len(log.made) == 2, "the next request makes a new one"
