"""Ends that are told at less cost, and who tells the others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException

from logtx.journal.errors import BrokerError
from logtx.journal.logs import ends_client
from logtx.journal.logs.ends_client import EndsClient
from logtx.journal.logs.kafka import KafkaLog

KEYS = [("t", n) for n in range(3)]


class Consumer:
    """Tells what `offsets` says of each partition, or raises it."""

    def __init__(self, offsets: dict[int, Any]) -> None:
        self.offsets = offsets
        self.questions: list[str] = []
        self.timeouts_s: list[float] = []
        self.silent_s = 0.0

    def offsets_for_times(self, asked: list[Any], timeout_s: float) -> list[Any]:
        """As confluent-kafka's."""
        self.questions.append("ends")
        self.timeouts_s.append(timeout_s)
        assert all(place.offset == OFFSET_END for place in asked)
        if self.silent_s:
            time.sleep(min(timeout_s, self.silent_s))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [self._told(place) for place in asked]

    def _told(self, place: Any) -> Any:
        told = self.offsets[place.partition]
        error, offset = (told, 0) if isinstance(told, KafkaError) else (None, told)
        return SimpleNamespace(
            topic=place.topic, partition=place.partition, offset=offset, error=error
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """As confluent-kafka's, which remembers from it who leads."""
        del topic, timeout
        self.questions.append("leaders")


def client_of(consumer: Consumer) -> EndsClient:
    made: list[Any] = []

    def make(settings: Any) -> Any:
        assert settings["isolation.level"] == "read_uncommitted"
        assert not made, "one consumer is enough"
        made.append(consumer)
        return consumer

    return EndsClient(make)


def test_ends_are_told_and_errors_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who leads is asked for before the next question, which goes to the former leader else."""
    monkeypatch.setattr(ends_client, "AGAIN_S", 0.05)
    error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    consumer = Consumer({0: 7, 1: error, 2: OFFSET_INVALID})
    client = client_of(consumer)
    assert client.ends_of(KEYS, 1) == {("t", 0): 7}
    assert client.ends_of(KEYS, 1) == {}, "not at once again"
    assert consumer.questions == ["ends"]
    time.sleep(0.06)
    consumer.offsets = dict.fromkeys(range(3), 8)
    assert client.ends_of(KEYS, 1) == dict.fromkeys(KEYS, 8)
    assert consumer.questions == ["ends", "leaders", "ends"]
    assert client.ends_of(KEYS, 1) == dict.fromkeys(KEYS, 8)
    assert consumer.questions[3:] == ["ends"]


def test_partitions_that_are_named_twice_and_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(dict.fromkeys(range(3), 7))
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(log, "_ends", client_of(consumer))
    assert log.each_end_offset([]) == {}
    assert not consumer.questions
    for _ in range(2):
        assert log.each_end_offset([*KEYS, *KEYS]) == dict.fromkeys(KEYS, 7)
    assert consumer.questions == ["ends", "ends"]


def test_a_question_without_time_is_bounded() -> None:
    """confluent-kafka takes a negative time for no limit."""
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    began_s = time.monotonic()
    told = log.each_end_offset(KEYS, timeout_s=-1)
    assert [type(error) for error in told.values()] == [BrokerError] * 3
    assert time.monotonic() - began_s < 2


def test_nobody_waits_for_the_token_of_a_second_client() -> None:
    """Its constructor would, for ten seconds, where the token service is away."""
    tokens = iter([("token", time.time() + 3_600)])

    def token(_config: str) -> tuple[str, float]:
        return next(tokens)  # The service is away from then on.

    oauth = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}
    servers = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    log = KafkaLog({**servers, **oauth, "oauth_cb": token})
    for _ in range(2):
        began_s = time.monotonic()
        told = log.each_end_offset(KEYS, timeout_s=0.2)
        assert [type(error) for error in told.values()] == [BrokerError] * 3
        assert time.monotonic() - began_s < 2
    log.close()


def test_a_leader_that_is_silent_costs_its_time_once_a_while() -> None:
    consumer = Consumer({})
    consumer.silent_s = 60
    client = client_of(consumer)
    began_s = time.monotonic()
    for _ in range(5):
        assert client.ends_of(KEYS, 0.05) == {}
    assert time.monotonic() - began_s < 0.5
    assert consumer.questions == ["ends"]


def test_what_is_left_out_is_asked_for_by_the_admin_client(monkeypatch: pytest.MonkeyPatch) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    consumer = Consumer({0: 7, 1: KafkaError(KafkaError.LEADER_NOT_AVAILABLE), 2: 9})
    asked: list[Any] = []

    def each(wanted: dict[Any, int], timeout_s: float) -> dict[Any, int]:
        asked.append((wanted, timeout_s))
        return dict.fromkeys(wanted, 8)

    monkeypatch.setattr(log, "_ends", client_of(consumer))
    monkeypatch.setattr(log, "_each", each)
    told = log.each_end_offset(KEYS, timeout_s=5)
    assert list(told.items()) == list(zip(KEYS, (7, 8, 9), strict=True))
    ((wanted, left_s),) = asked
    assert wanted == {("t", 1): OFFSET_END}
    assert 4 < left_s <= 5
    assert consumer.timeouts_s == [1]


def test_a_closed_log_asks_by_another_client() -> None:
    made: list[Consumer] = []

    def make(_settings: Any) -> Any:
        made.append(Consumer(dict.fromkeys(range(3), len(made))))
        return made[-1]

    client = EndsClient(make)
    assert client.ends_of(KEYS, 1) == dict.fromkeys(KEYS, 0)
    client.close()
    assert client.ends_of(KEYS, 1) == dict.fromkeys(KEYS, 1)
