"""Reads `__transaction_relocations`, which says where copies of ranges of sidecars lie."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from confluent_kafka import KafkaError

from .errors import BrokerError, NotAuthorizedError, UnknownTopicError, UnsupportedTopicError
from .logs.interface import Log
from .reader import read_records
from .relocation import (
    RELOCATIONS_SETTINGS,
    RELOCATIONS_TOPIC,
    Relocation,
    Relocations,
    decode_relocation,
)
from .rights import grant


class RelocationLog:
    """All relocations, as far as they were read. Reads on from there.

    What was read stays true, also if a broker that is behind tells a lower end.
    """

    def __init__(self, log: Log) -> None:
        """Reads nothing yet."""
        self._log, self.known, self._read_to = log, Relocations(), 0
        self._topic_id = ""
        self._by_key: dict[bytes | None, Relocation] = {}

    def read(self, *, timeout_s: float) -> Relocations:
        """Reads on to the end. Returns all relocations; none if the topic does not exist.

        Raises:
            NotAuthorizedError: this client may not read the topic; names the command that gives the
                right.
            BrokerError: no answer in time.
            UnknownRecordError: a newer version wrote one: upgrade this program.
            JournalError: a record is none of these.
        """
        log, place = self._log, (RELOCATIONS_TOPIC, 0)
        try:
            start = log.start_offset(*place, timeout_s=timeout_s)
            end = log.end_offset(*place, timeout_s=timeout_s)
            ids = log.topic_ids([RELOCATIONS_TOPIC], timeout_s=timeout_s)
            topic_id = ids.get(RELOCATIONS_TOPIC, "")
            if topic_id != self._topic_id or end < self._read_to:
                # It was created anew; or a broker is behind, and then it is read twice.
                self._topic_id, self._read_to = topic_id, 0
            begin = max(start, self._read_to)
            with closing(read_records(log, *place, begin, end, timeout_s=timeout_s)) as records:
                for record in records:
                    self._take(cast(Any, record.key()), cast(Any, record.value()))
            self._read_to = max(end, self._read_to)
        except UnknownTopicError:
            return self.known  # Mostly none: nobody has compacted a sidecar yet.
        except BrokerError as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            command = grant(log.bootstrap_servers, log.principal, ["READ"], topic=place[0])
            raise NotAuthorizedError(
                f"this client may not READ topic {place[0]}, which says where copies of ranges of"
                f" sidecars lie: give it the right with: {command}"
            ) from error
        return self.known

    def _take(self, key: bytes | None, raw: bytes | None) -> None:
        before, relocation = self._by_key.pop(key, None), decode_relocation(key, raw)
        if before is not None:
            self.known.remove(before)
        if relocation is not None:
            self._by_key[key] = relocation
            self.known.add(relocation)


def prepare_relocations(log: Log, replication_factor: int) -> None:
    """Creates `__transaction_relocations` if it is missing, and checks it.

    Raises:
        UnsupportedTopicError: it could lose relocations; names the command that mends it.
        BrokerError: Kafka does not answer, or refuses.
    """
    log.create_topic(
        RELOCATIONS_TOPIC,
        partitions=1,
        replication_factor=replication_factor,
        settings=RELOCATIONS_SETTINGS,
    )
    info = log.topic_info(RELOCATIONS_TOPIC)
    policy = (info.settings or RELOCATIONS_SETTINGS).get("cleanup.policy")
    if policy != RELOCATIONS_SETTINGS["cleanup.policy"]:
        raise UnsupportedTopicError(
            f"{RELOCATIONS_TOPIC} has cleanup.policy={policy}, and relocations could be lost; mend"
            f" it with: kafka-configs.sh --bootstrap-server {log.bootstrap_servers} --alter"
            f" --entity-type topics --entity-name {RELOCATIONS_TOPIC} --add-config"
            " cleanup.policy=compact"
        )
