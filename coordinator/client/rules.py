"""Reads the rules for topics that are created later from `__transaction_topics`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaError

from ...journal.errors import BrokerError, UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.mode_registry import Published
from ...journal.mode_rules import ModeRule, rules_in
from ...journal.modes import MODES_TOPIC
from ...journal.reader import read_records

_LOG = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""Time-out of each request, and of reading the topic."""


class PublishedRules:
    """The rules of one cluster. One thread at a time may use it; blocks."""

    def __init__(self, log: Log) -> None:
        """Reads nothing yet."""
        self._log = log
        self._read_to = -1
        self._rules: Mapping[str, ModeRule] = {}
        self.refusal: BrokerError | None = None
        """Why the topic may not be read; Kafka refuses it too if there is none. None: it may."""

    def read(self) -> Mapping[str, ModeRule]:
        """Returns the rules by name. Reads the topic only if there is more of it. There are none
        without it, or where it may not be read (`refusal`).

        Raises:
            BrokerError: no answer in time.
            UnknownRecordError: a newer version wrote to it: upgrade this program.
        """
        try:
            return self._read()
        except BrokerError as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            if self.refusal is None:
                _LOG.info("rules_not_readable error=%s", error)
            self.refusal = error
            return {}

    def _read(self) -> Mapping[str, ModeRule]:
        try:
            # First: to ask for the offsets of a topic that is not there may create it.
            self._log.partition_count(MODES_TOPIC, timeout_s=TIMEOUT_S)
            start = self._log.start_offset(MODES_TOPIC, 0, timeout_s=TIMEOUT_S)
            end = self._log.end_offset(MODES_TOPIC, 0, timeout_s=TIMEOUT_S)
        except UnknownTopicError:
            return {}
        if end != self._read_to:
            records = read_records(self._log, MODES_TOPIC, 0, start, end, timeout_s=TIMEOUT_S)
            with closing(records):
                published = (Published(r.key(), r.value(), r.timestamp()[1]) for r in records)
                self._rules = rules_in(published)
            self._read_to = end
        return self._rules
