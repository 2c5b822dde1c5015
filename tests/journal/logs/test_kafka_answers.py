"""Answers of the admin client that are none."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from logtx.journal.errors import BrokerError, UnknownTopicError
from logtx.journal.logs.asking import DESTROY_BROKER
from logtx.journal.logs.kafka import KafkaLog


def done(result: Any) -> Future[Any]:
    """Returns a future that has its result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Admin:
    """Answers `offsets_of` with these offsets, one after the other, then with the last."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = list(offsets)
        self.asked = 0
        self.refreshed: list[str | None] = []

    def offsets_of(self, asked: dict[Any, int], _timeout_s: float) -> Future[dict[Any, Any]]:
        """As the admin client's."""
        self.asked += 1
        offset = self.offsets.pop(0) if len(self.offsets) > 1 else self.offsets[0]
        return done({place: self.told(place, offset) for place in asked})

    def told(self, _place: Any, offset: int) -> Any:
        """Returns what is answered for one partition."""
        return SimpleNamespace(offset=offset)

    def poll(self, timeout: float) -> int:
        """As the admin client's: nothing to tell."""
        assert timeout == 0
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """As the admin client's, which remembers from it who leads."""
        del timeout
        self.refreshed.append(topic)


def log_with(admin: Any, monkeypatch: pytest.MonkeyPatch) -> KafkaLog:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(log, "_admin", lambda: admin)
    return log


def test_an_offset_that_was_never_told_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in a chaos run: the leader of a journal partition was killed, librdkafka gave -1001 as
    a success, and the coordinators took the journal for truncated."""
    admin = Admin(OFFSET_INVALID, OFFSET_INVALID, 17)
    log = log_with(admin, monkeypatch)
    assert log.end_offset("journal", 3) == 17
    assert admin.asked == 3
    # Or librdkafka goes on asking the leader that it knows, for minutes: FENCED_LEADER_EPOCH.
    assert admin.refreshed == ["journal", "journal"]
    assert log.start_offset("journal", 3) == 17


def test_an_offset_that_is_never_told_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_with(Admin(OFFSET_INVALID), monkeypatch)
    with pytest.raises(BrokerError, match="did not answer"):
        log.end_offset("journal", 3, timeout_s=0.2)


class Leaderless(Admin):
    """Finds no leader as often as asked to, and no partition from the fourth on."""

    def offsets_of(self, asked: dict[Any, int], timeout_s: float) -> Future[dict[Any, Any]]:
        """As the admin client's."""
        found = super().offsets_of(asked, timeout_s)
        if next(iter(found.result().values())).offset == OFFSET_INVALID:
            error = KafkaError(
                KafkaError._NOENT, "Failed to query partition leaders: No leaders found"
            )
            future: Future[Any] = Future()
            future.set_exception(KafkaException(error))
            return future
        return found


def test_a_partition_that_has_no_leader_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in a chaos run: a topic had just grown, and a Spark query ended at its new partition."""
    admin = Leaderless(OFFSET_INVALID, OFFSET_INVALID, OFFSET_INVALID, 17)
    log = log_with(admin, monkeypatch)
    monkeypatch.setattr(log, "topic_info", lambda *_, **__: SimpleNamespace(partition_count=4))
    assert log.end_offset("data", 3) == 17
    assert log.end_offsets([("data", 3)]) == {("data", 3): 17}
    monkeypatch.setattr(log, "_admin", lambda: Leaderless(OFFSET_INVALID))
    with pytest.raises(UnknownTopicError, match="no partition 4"):
        log.end_offset("data", 4)


def test_a_partition_that_gets_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_with(Leaderless(OFFSET_INVALID), monkeypatch)
    monkeypatch.setattr(log, "topic_info", lambda *_, **__: SimpleNamespace(partition_count=4))
    with pytest.raises(BrokerError, match="No leaders found"):
        log.end_offset("data", 3, timeout_s=0.2)


class SomeLeaders(Admin):
    """Answers for one partition, and for each other one with another error."""

    def told(self, place: Any, _offset: int) -> Any:
        """Returns what is answered for one partition."""
        codes = {1: KafkaError.LEADER_NOT_AVAILABLE, 2: KafkaError.UNKNOWN_TOPIC_OR_PART}
        if place.partition in codes:
            return KafkaError(codes[place.partition], "no")
        return SimpleNamespace(offset=OFFSET_INVALID if place.partition == 3 else 17)


def test_a_partition_without_a_leader_spoils_only_its_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = SomeLeaders(0)
    log = log_with(admin, monkeypatch)
    told = log.each_end_offset([("t", n) for n in range(5)], timeout_s=5)
    assert (told["t", 0], told["t", 4]) == (17, 17)
    errors = [told["t", n] for n in (1, 2, 3)]
    assert [type(error) for error in errors] == [BrokerError, UnknownTopicError, BrokerError]
    for number, error in enumerate(errors, 1):
        assert f"t-{number}" in str(error)
    assert admin.asked == 1, "nothing is repeated"
    assert admin.refreshed, "else the next question would go to the same brokers"


class DeadController:
    """Waits for a controller that is gone, until it is asked for its metadata again."""

    def __init__(self, *, refreshes: int) -> None:
        self.refreshes_left = refreshes
        self.waited_s: list[float] = []

    def describe_topics(
        self, topics: Any, request_timeout: float, **_: Any
    ) -> dict[str, Future[Any]]:
        """As the admin client's, without the wait."""
        assert topics.topic_names == ["journal"]
        self.waited_s.append(request_timeout)
        future: Future[Any] = Future()
        if self.refreshes_left > 0:
            error = KafkaError(KafkaError._TIMED_OUT, "Timed out waiting for controller")
            future.set_exception(KafkaException(error))
        else:
            partitions = [SimpleNamespace(replicas=[1, 2, 3])] * 8
            future.set_result(SimpleNamespace(partitions=partitions, topic_id="id"))
        return {"journal": future}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        """As the admin client's: no settings."""
        future: Future[Any] = Future()
        future.set_result({})
        return dict.fromkeys(resources, future)

    def poll(self, timeout: float) -> int:
        """As the admin client's: nothing to tell."""
        assert timeout == 0
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """As the admin client's, which learns from it who the controller is."""
        del topic, timeout
        self.refreshes_left -= 1


def test_a_controller_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on three brokers: one was killed, and a new client found no journal for 30 s."""
    admin = DeadController(refreshes=2)
    log = log_with(admin, monkeypatch)
    monkeypatch.setattr(log, "_is_mock", False)
    assert log.topic_info("journal").partition_count == 8
    assert admin.waited_s == [1.0, 2.0, 4.0]


class Forgetful(DeadController):
    """An admin client that drops a broker while it waits for its answer."""

    def describe_topics(
        self, topics: Any, request_timeout: float, **given: Any
    ) -> dict[str, Future[Any]]:
        """As the admin client's."""
        del given
        if not self.waited_s:
            self.waited_s.append(request_timeout)
            future: Future[Any] = Future()
            future.set_exception(KafkaException(KafkaError(DESTROY_BROKER)))
            return {"journal": future}
        return super().describe_topics(topics, request_timeout)


def test_who_was_forgotten_while_it_was_asked_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen on three brokers: a coordinator that started ended, for one broker was just gone."""
    admin = Forgetful(refreshes=0)
    log = log_with(admin, monkeypatch)
    monkeypatch.setattr(log, "_is_mock", False)
    assert log.topic_info("journal").partition_count == 8
    assert len(admin.waited_s) == 2
    if known := getattr(KafkaError, "_DESTROY_BROKER", None):
        assert known == DESTROY_BROKER


class Old(DeadController):
    """Brokers that can't tell what a client may do."""

    def describe_topics(
        self, topics: Any, request_timeout: float, **given: Any
    ) -> dict[str, Future[Any]]:
        """As the admin client's."""
        if given["include_authorized_operations"]:
            self.waited_s.append(request_timeout)
            future: Future[Any] = Future()
            error = KafkaError(KafkaError._UNSUPPORTED_FEATURE, "not by this broker")
            future.set_exception(KafkaException(error))
            return {"journal": future}
        return super().describe_topics(topics, request_timeout)


def test_brokers_that_tell_no_rights_are_asked_without(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Old(refreshes=0)
    log = log_with(admin, monkeypatch)
    monkeypatch.setattr(log, "_is_mock", False)
    for _ in range(2):
        told = log.topic_info("journal")
        assert (told.partition_count, told.operations) == (8, None)
    assert len(admin.waited_s) == 3, "they are asked for rights once"


def test_a_controller_that_never_comes_back_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = DeadController(refreshes=1_000_000)
    log = log_with(admin, monkeypatch)
    monkeypatch.setattr(log, "_is_mock", False)
    with pytest.raises(BrokerError, match="Timed out waiting for controller"):
        log.topic_info("journal", timeout_s=3)
    assert len(admin.waited_s) == 3
    assert admin.waited_s[2] <= 3
