"""What a second consumer finds out, where reading stands still before a place."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from logtx.consumer.assigned import Assigned
from logtx.consumer.unseen import ANSWER_S, STILL_S, Unseen
from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import Log

KEY = ("t", 0)


class Message:
    """A record, or the event of an error."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._code = offset, code

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)


def end(offset: int) -> Message:
    """Returns Kafka's event that a partition was read to its end."""
    return Message(offset, KafkaError._PARTITION_EOF)


class SecondConsumer:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.assigned: list[tuple[str, int, int]] = []
        self.answers: list[Message] = []
        self.closed = False

    def assign(self, places: list[Any]) -> None:
        self.assigned += [(p.topic, p.partition, p.offset) for p in places]

    def unassign(self) -> None:
        self.answers.clear()

    def poll(self, _timeout: float) -> Message | None:
        return self.answers.pop(0) if self.answers else None

    def close(self) -> None:
        self.closed = True


class Partition:
    """An assigned partition, and its input."""

    def __init__(self, next_offset: int, *, lacks_place: bool = True) -> None:
        self.key, self.next_offset, self.lacks_place = KEY, next_offset, lacks_place
        self.input = self
        self.paused = self.throttled = False

    def skip_unseen(self, offset: int) -> None:
        self.next_offset = offset


class Stage:
    """An `Unseen` with one partition, and its clock."""

    def __init__(self, next_offset: int = 5) -> None:
        self.now_s = 100.0
        self.partition = Partition(next_offset)
        self.second = SecondConsumer()
        self.settings: dict[str, Any] = {}
        self.unseen = Unseen(cast(Log, self), {"client.id": "c"}, lambda: self.now_s)

    def consumer(self, settings: dict[str, Any]) -> SecondConsumer:
        self.settings = settings
        return self.second

    @property
    def assigned(self) -> Assigned:
        return cast(Assigned, self.partition)

    def watch(self, after_s: float) -> None:
        self.now_s += after_s
        self.unseen.watch([self.assigned])

    def step(self, *, is_there: bool = True) -> bool:
        return self.unseen.step({KEY: self.assigned} if is_there else {})

    def look(self) -> None:
        self.watch(0)
        self.watch(STILL_S)
        assert self.unseen.is_looking


@pytest.mark.parametrize("answer", [end(8), Message(8)])
def test_reading_goes_on_at_the_next_record_or_the_end(answer: Message) -> None:
    stage = Stage()
    stage.look()
    assert stage.second.assigned == [("t", 0, 5)]
    assert stage.settings == {"client.id": "c", "enable.partition.eof": True}
    assert not stage.step()
    stage.second.answers.append(answer)
    assert stage.step()
    assert stage.partition.next_offset == 8
    assert not stage.unseen.is_looking


@pytest.mark.parametrize("answer", [end(5), Message(5), Message(-1, KafkaError._TRANSPORT), end(3)])
def test_what_the_main_consumer_will_have_and_what_is_not_told_changes_nothing(
    answer: Message,
) -> None:
    stage = Stage()
    stage.look()
    stage.second.answers.append(answer)
    assert not stage.step()
    assert stage.partition.next_offset == 5
    assert not stage.unseen.is_looking
    stage.watch(0)
    stage.watch(STILL_S)
    assert stage.unseen.is_looking, "it is looked at again when it has stood still again"


def test_a_partition_that_reads_on_or_lacks_no_place_is_not_looked_at() -> None:
    stage = Stage()
    stage.watch(0)
    stage.watch(STILL_S / 2)
    stage.partition.next_offset = 6
    stage.watch(STILL_S / 2)
    stage.partition.lacks_place = False
    stage.watch(STILL_S)
    stage.partition.lacks_place = True
    stage.watch(STILL_S)
    stage.partition.paused = True
    stage.watch(STILL_S)
    assert not stage.unseen.is_looking
    assert stage.second.assigned == []


@pytest.mark.parametrize("change", ["moved", "dropped"])
def test_an_answer_of_before_is_not_taken(change: str) -> None:
    stage = Stage()
    stage.look()
    if change == "moved":
        stage.partition.next_offset = 4  # It began anew.
    stage.second.answers.append(end(8))
    assert not stage.step(is_there=change != "dropped")
    assert stage.partition.next_offset == (4 if change == "moved" else 5)


def test_no_answer_is_not_waited_for_longer_than_it_may_take() -> None:
    stage = Stage()
    stage.look()
    stage.now_s += ANSWER_S + 1
    assert not stage.step()
    assert not stage.unseen.is_looking


def test_a_second_consumer_that_can_not_be_made_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()

    def refuse(_settings: object) -> None:
        raise BrokerError("no file handle is left")

    with monkeypatch.context() as patch:
        patch.setattr(stage, "consumer", refuse)
        stage.watch(0)
        stage.watch(STILL_S)
        assert not stage.unseen.is_looking
    stage.look()
    stage.unseen.close()
    assert stage.second.closed
