"""Knows which home each topic has: reads what homes publish, and keeps what mode records say.

A topic of which nothing is published is in marker mode. It costs one metadata request when
partitions are assigned: whether there is `__transaction_topics` at all.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaError

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError, UnknownTopicError
from ..journal.logs.interface import Log
from ..journal.mode_registry import Published, TopicModeRecord, latest
from ..journal.modes import MODES_TOPIC
from ..journal.reader import read_records
from ..journal.rights import may_not_read
from .core.known_modes import KnownModes
from .topic_ids import TopicIds

_LOG = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 10.0
"""Time-out of each request, and of reading the topic. A longer one blocks an assignment for longer
while a broker is away, a shorter one fails on a slow broker."""


class Registry:
    """The homes of topics, as one consumer knows them."""

    def __init__(self, log: Log, topic_ids: TopicIds) -> None:
        """Reads nothing yet."""
        self._log = log
        self._topic_ids = topic_ids
        self._modes: dict[TopicPartition, KnownModes] = {}
        self._read_to = 0
        """The end up to which `_all` was read."""
        self._all: Mapping[str, TopicModeRecord] = {}
        self._former: set[tuple[str, str]] = set()
        """(name, id)s of topics whose name belongs to another one by now."""
        self._is_refused = False
        """Whether it was said, when it was asked last, that the topic may not be read."""

    def modes(self, key: TopicPartition) -> KnownModes:
        """Returns what is known of a partition's modes."""
        return self._modes.setdefault(key, KnownModes())

    def read(self, keys: Collection[TopicPartition]) -> None:
        """Learns what is published of the topics of these partitions.

        Raises:
            BrokerError: no answer in time.
            UnknownRecordError: a newer version published a mode: upgrade this program.
        """
        published = self.published()
        for topic in {topic for topic, _ in keys} & published.keys():
            found = published[topic]
            is_another = self.is_another(topic, found.topic_id)
            for key in (key for key in keys if key[0] == topic):
                if is_another:
                    # It may have been learnt when that one still had the name. What was placed
                    # there would be looked for in this one.
                    self.modes(key).forget(found.topic_id)
                else:
                    self.modes(key).publish(key[1], found)

    def published(self) -> Mapping[str, TopicModeRecord]:
        """Returns what homes publish of topics, by name. Reads it only if there is more of it.

        A name may belong to another topic by now: see `is_another`. What was read stays true, also
        if a broker that is behind does not know the topic yet, or tells a lower end.

        Raises:
            BrokerError: no answer in time.
            UnknownRecordError: a newer version published a mode: upgrade this program.
        """
        try:
            self._log.partition_count(MODES_TOPIC, timeout_s=READ_TIMEOUT_S)
            start = self._log.start_offset(MODES_TOPIC, 0, timeout_s=READ_TIMEOUT_S)
            end = self._log.end_offset(MODES_TOPIC, 0, timeout_s=READ_TIMEOUT_S)
            if end > self._read_to:
                self._all = self._read(start, end)
                self._read_to = end
        except UnknownTopicError as error:
            _let_go(error)
            return self._all
        except BrokerError as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            # Kafka answers so too if there is no such topic, as before the first switch. Who may
            # DESCRIBE it and not READ it is refused at its records.
            if not self._is_refused:
                _LOG.warning("modes_of_topics_not_readable error=%s", self._refusal())
            self._is_refused = True
            return self._all
        self._is_refused = False
        return self._all

    def _read(self, start: int, end: int) -> Mapping[str, TopicModeRecord]:
        records = read_records(self._log, MODES_TOPIC, 0, start, end, timeout_s=READ_TIMEOUT_S)
        with closing(records):
            return latest(Published(r.key(), r.value(), r.timestamp()[1]) for r in records)

    def check_allowed(self) -> None:
        """Checks that what homes publish could be read when it was asked for last.

        Raises:
            BrokerError: it may not be read; names the command that gives the right.
        """
        if self._is_refused:
            raise BrokerError(self._refusal(), kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def _refusal(self) -> str:
        return may_not_read(self._log.bootstrap_servers, self._log.principal, MODES_TOPIC)

    def topic_id(self, topic: str) -> str:
        """Returns the id of a topic as a broker tells it; "" if the log has none.

        Raises:
            BrokerError: no answer in time.
        """
        return self._topic_ids.of([topic]).get(topic, "")

    def is_another(self, topic: str, topic_id: str) -> bool:
        """Returns whether the name belongs to another topic by now: one created anew begins with
        markers.

        Raises:
            BrokerError: no answer in time.
        """
        if (topic, topic_id) in self._former:
            return True  # An id never comes back.
        told = self._topic_ids.of([topic]).get(topic, "") if topic_id else ""
        found = told not in ("", topic_id) and self._topic_ids.is_another(topic, topic_id)
        if found:
            self._former.add((topic, topic_id))
        return found


def _let_go(error: BaseException | None) -> None:
    # Frames that an exception knows, and that know it, are a circle: a consumer in it that is
    # dropped would wait for the garbage collector.
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
