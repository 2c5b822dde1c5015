"""Notices that librdkafka reads nothing of a topic that was created anew.

librdkafka takes what it is told of a partition for outdated if the leader epoch is lower than one
that it knows. A topic that was created anew may have had fewer leaders than the former one. Then a
consumer reads nothing of it, for ever, and hears nothing (trap 293). Only another client of
librdkafka's would read it, and that is another member of its group: so the application is told.

So now and then this asks which topics have the names. Who can read another topic reads on there, or
hears that its offset is out of range. Who is still where it was a while after another id was told,
and has records there or an end below, can't.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..journal.control import TopicPartition
from ..journal.errors import LogtxError, TopicRecreatedError
from ..journal.logs.interface import Log

ASK_EVERY_S: Final = 30.0
"""Pause between two questions. A shorter one asks the brokers more, and takes a consumer that is
slow to find a new leader for one that can't read."""


def unreadable(key: TopicPartition) -> TopicRecreatedError:
    """Returns the error for a partition of which librdkafka reads nothing."""
    topic, partition = key
    return TopicRecreatedError(
        f"topic {topic} was deleted and created anew, and librdkafka reads nothing of"
        f" {topic}[{partition}], as the former one had more leaders: close this consumer, and make"
        " another one"
    )


class _Told(NamedTuple):
    ids: Mapping[str, str]
    ends: Mapping[TopicPartition, int | LogtxError]


class Successors:
    """Looks after the partitions of one consumer."""

    def __init__(self, log: Log) -> None:
        """Asks nothing yet."""
        self._log = log
        self._ask_s: float | None = None
        """Monotonic time from which on the next question may be asked. The first one comes a while
        behind the start, which it would cost a question more."""
        self._told: list[_Told | None] = [None]
        """The answer to the last question, or that there is none; empty while it is awaited."""
        self._known: dict[TopicPartition, str] = {}
        """Partition → id of the topic that it is read of."""
        self._replaced: dict[TopicPartition, int] = {}
        """Partition → offset at which it stood when another topic was told to have the name."""

    def look(
        self, standing: Iterable[tuple[TopicPartition, int]], now_s: float
    ) -> list[TopicPartition]:
        """Looks at an answer, and asks again now and then. Does not wait.

        Args:
            standing: the partitions that are to be read on, and the offsets of their next records.
            now_s: monotonic time, in seconds.

        Returns:
            The partitions of which librdkafka reads nothing, as another topic has the name. Each
            further answer tells them again.
        """
        if self._ask_s is None:
            self._ask_s = now_s + ASK_EVERY_S
        if now_s < self._ask_s or not self._told:
            return []
        self._ask_s = now_s + ASK_EVERY_S
        there, told = dict(standing), self._told[0]
        self._known = {key: id_ for key, id_ in self._known.items() if key in there}
        stuck = [] if told is None else self._compare(there, told)
        if there:
            self._ask(sorted({topic for topic, _ in there}), list(self._replaced))
        return stuck

    def _compare(self, there: Mapping[TopicPartition, int], told: _Told) -> list[TopicPartition]:
        """Returns the partitions that can't be read."""
        former, self._replaced = self._replaced, {}
        stuck: list[TopicPartition] = []
        for key, offset in there.items():
            told_id, stood_at = told.ids.get(key[0], ""), former.get(key)
            if not told_id or self._known.setdefault(key, told_id) == told_id:
                continue
            if stood_at is not None and stood_at != offset:
                self._known[key] = told_id  # It is read.
                continue
            self._replaced[key] = offset
            end = told.ends.get(key)
            if stood_at is not None and isinstance(end, int) and end != offset:
                stuck.append(key)
        return sorted(stuck)

    def _ask(self, topics: Sequence[str], replaced: Sequence[TopicPartition]) -> None:
        log, told = self._log, list[_Told | None]()
        self._told = told

        def ask() -> None:
            try:
                ends = log.each_end_offset(replaced) if replaced else {}
                told.append(_Told(log.topic_ids(topics), ends))
            except Exception:  # noqa: BLE001 - the log may be closed meanwhile
                told.append(None)  # Else it is asked again.

        try:
            threading.Thread(target=ask, name="logtx-successors", daemon=True).start()
        except RuntimeError:
            told.append(None)  # No thread is left, or Python ends.
