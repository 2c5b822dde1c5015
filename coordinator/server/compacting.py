"""Compacts sidecars: reads their heads, copies, writes relocations, trims.
`core.compacting` has the rules.

`logtx sidecar compact` runs it. Blocks; asks no coordinator. All that it needs is in the log: a
sidecar's markers say what is committed, and where the pointers are.

Source: PIP-31, "Sidecar Approach" (the sidecar is compacted in commit order).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message

from ...journal.control import TXCTL_HEADER, TXID_HEADER, Marker, TopicPartition, decode_control
from ...journal.errors import (
    BrokerError,
    MalformedHeaderError,
    RequestTimedOutError,
)
from ...journal.headers import headers_of
from ...journal.logs.interface import Headers, Log, LogProducer
from ...journal.reader import RecordsTrimmedError, read_batches
from ...journal.relocation import (
    RELOCATIONS_TOPIC,
    Origin,
    Relocation,
    copied_headers,
    encode_relocation,
    origin_of,
    original_headers,
)
from ...journal.relocation_log import RelocationLog, prepare_relocations
from ...journal.sidecar import main_of
from ...journal.txid import TXID_BYTES
from ..core.compacting import Compaction, Needed, Plan, Scan, obsolete
from .trimming import Seen

ASK_TIMEOUT_S: Final = 10.0
"""Bound of each question to the log, and of each wait without a record."""
WRITE_TIMEOUT_S: Final = 120.0
"""Longest time until what was written is acknowledged. A shorter one fails on slow brokers."""
PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    # What was compressed may be larger than its topic takes.
    "compression.type": "zstd",
    "delivery.timeout.ms": int(WRITE_TIMEOUT_S * 1_000),
    "message.max.bytes": 1_000_000_000,  # The topic's own limit counts.
}


@dataclass(slots=True)
class Planned:
    """What a run will do with one partition, and has done."""

    key: TopicPartition
    seen: Seen
    plan: Plan
    run: Compaction
    known: frozenset[Relocation]
    """Those of the partition that the plan goes by."""


def plan_partitions(
    log: Log, seen: Mapping[TopicPartition, Seen], *, share: float, grace_s: float
) -> list[Planned]:
    """Reads sidecar partitions, and returns what is to be done with each.

    Args:
        log: the log.
        seen: what was noted of them (K1, K2), just before.
        share: see `Scan.plan`.
        grace_s: see `Compaction`.

    Raises:
        NotAuthorizedError: relocations may not be read.
        RecordsTrimmedError: records were trimmed meanwhile: run it again.
        BrokerError: the log does not answer.
    """
    relocations = RelocationLog(log).read(timeout_s=ASK_TIMEOUT_S)
    read_s, copy_id = time.monotonic(), secrets.token_bytes(16)
    found = []
    for key, each in sorted(seen.items()):
        known = frozenset(relocations.of(key, each.noted.topic_id))
        plan = _scan(log, key, each, known).plan(share)
        run = Compaction(key, each.noted.topic_id, plan, copy_id, grace_s, read_s)
        found.append(Planned(key, each, plan, run, known))
    return found


def _scan(log: Log, key: TopicPartition, seen: Seen, known: Iterable[Relocation]) -> Scan:
    end = _end_to_read(log, key, seen)
    scan = Scan(key, seen.noted, seen.start, known)
    batches = read_batches(log, *key, seen.start, end, timeout_s=ASK_TIMEOUT_S)
    with closing(batches):
        for record in (record for batch in batches for record in batch):
            headers = dict(_headers_of(record))
            txid = headers.get(TXID_HEADER)
            if txid is None or len(txid) != TXID_BYTES:
                continue  # Nobody's, or a copy: relocations say which of these count.
            marker = _marker_of(record, headers.get(TXCTL_HEADER))
            if marker is None:
                scan.record(cast(int, record.offset()), txid)
            else:
                scan.marker(txid, marker)
    start = log.start_offset(*key, timeout_s=ASK_TIMEOUT_S)
    if start != seen.start:
        raise RecordsTrimmedError(
            f"{key[0]}[{key[1]}] begins at {start}, and began at {seen.start}: it was trimmed"
            " meanwhile. Run it again"
        )
    return scan


def _end_to_read(log: Log, key: TopicPartition, seen: Seen) -> int:
    # A broker that leads the partition no more may tell a lower one than was noted (trap 206).
    return max(log.end_offset(*key, timeout_s=ASK_TIMEOUT_S), seen.noted.end)


def _headers_of(record: Message) -> Headers:
    try:
        return cast(Headers, headers_of(record) or [])
    except SystemError:
        return []  # Somebody else's: the name of a header is not UTF-8.


def _marker_of(record: Message, control: bytes | None) -> Marker | None:
    if control is None or record.key() is not None or record.value() is not None:
        return None
    try:
        found = decode_control(control)
    except MalformedHeaderError:
        return None
    return found if isinstance(found, Marker) else None


class Copier:
    """Copies what plans name, and trims."""

    def __init__(self, log: Log, progress: Callable[[str], None] = lambda _: None) -> None:
        """Opens a producer. Close it.

        Args:
            log: the log.
            progress: is told what was done, in words.
        """
        self._log, self._progress = log, progress
        self._producer: LogProducer = log.producer(PRODUCER)
        self._relocations = RelocationLog(log)

    def close(self) -> None:
        """Drops what is not written, and closes the producer."""
        self._producer.purge()
        self._producer.close()

    def run(self, planned: list[Planned]) -> None:
        """Copies all ranges, waits for the grace period, and trims.

        Raises:
            IntegrityError: a range lacks records.
            RecordsTrimmedError: what is to be copied was trimmed meanwhile: run it again.
            UnknownTopicError: the sidecar or its topic was created anew: run it again.
            BrokerError, RequestTimedOutError: the log refuses, or does not answer. What was copied
                already is found by the next run.
        """
        due = [each for each in planned if each.plan.bound > each.plan.start]
        if any(each.plan.copies for each in due):
            sidecar = next(each.key[0] for each in due if each.plan.copies)
            replicas = self._log.topic_info(sidecar, timeout_s=ASK_TIMEOUT_S).replication_factor
            prepare_relocations(self._log, replicas)
        for each in due:
            for number, needed in enumerate(each.plan.copies, 1):
                self._copy(each, needed)
                name = f"{main_of(each.key[0])}[{each.key[1]}]"
                self._progress(f"{name}: {number} of {len(each.plan.copies)} ranges are copied")
        for each in due:
            due_s = each.run.due_s()
            assert due_s is not None, "all are copied"
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._trim(each)

    def _copy(self, planned: Planned, needed: Needed) -> None:
        offsets: list[int] = []
        failed: list[str] = []

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(cast(int, message.offset()))
            else:
                failed.append(error.str())

        for record, headers, origin in self._originals(planned.key, needed):
            self._produce(
                *planned.key,
                key=record.key(),
                value=record.value(),
                headers=copied_headers(headers, replace(origin, copy_id=planned.run.copy_id)),
                timestamp=max(origin.timestamp[1], 0),
                acknowledge=acknowledged,
            )
        self._flush(planned.key[0], failed)
        relocation = planned.run.copied(needed, offsets)
        self._write(*encode_relocation(relocation))
        planned.run.acknowledged(relocation, time.monotonic())

    def _originals(
        self, key: TopicPartition, needed: Needed
    ) -> Iterator[tuple[Message, Headers, Origin]]:
        """Yields the records of a range, where it lies now, with the headers of their originals."""
        span = needed.first, needed.last + 1
        batches = read_batches(self._log, *key, *span, timeout_s=ASK_TIMEOUT_S)
        with closing(batches):
            for record in (record for batch in batches for record in batch):
                headers = _headers_of(record)
                origin = origin_of(headers)
                if needed.copy_id is None:
                    said = dict(headers)
                    is_it = said.get(TXID_HEADER) == needed.txid
                    if is_it and _marker_of(record, said.get(TXCTL_HEADER)) is None:
                        offset = cast(int, record.offset())
                        origin = Origin(b"", needed.txid, offset, record.timestamp())
                        yield record, headers, origin
                elif origin is not None and (origin.copy_id, origin.txid) == (
                    needed.copy_id,
                    needed.txid,
                ):
                    yield record, original_headers(headers, origin), origin

    def _produce(
        self,
        topic: str,
        partition: int,
        *,
        key: Any,
        value: Any,
        acknowledge: Callable[[KafkaError | None, Message], None],
        headers: Headers | None = None,
        timestamp: int = 0,
    ) -> None:
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=acknowledge,
                    timestamp=timestamp,
                    headers=headers,
                )
            except BufferError:
                if time.monotonic() > deadline_s:
                    raise RequestTimedOutError(f"{topic} takes no record: check the brokers") from (
                        None
                    )
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _flush(self, topic: str, failed: list[str]) -> None:
        left = self._producer.flush(WRITE_TIMEOUT_S)
        if left:
            raise RequestTimedOutError(f"{left} records for {topic} were not acknowledged")
        if failed:
            raise BrokerError(f"{len(failed)} records for {topic} were refused: {failed[0]}")

    def _write(self, key: bytes, value: bytes | None) -> None:
        failed: list[str] = []

        def acknowledged(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error.str())

        self._produce(RELOCATIONS_TOPIC, 0, key=key, value=value, acknowledge=acknowledged)
        self._flush(RELOCATIONS_TOPIC, failed)

    def _trim(self, each: Planned) -> None:
        key, noted, bound = each.key, each.seen.noted, each.plan.bound
        ids = self._log.topic_ids(sorted({key[0], main_of(key[0])}), timeout_s=ASK_TIMEOUT_S)
        noted.check_is_of(key[0], ids)
        known = self._relocations.read(timeout_s=ASK_TIMEOUT_S).of(key, each.run.topic_id)
        for relocation in known:
            if relocation not in each.known and each.plan.start <= relocation.first < bound:
                raise BrokerError(f"another run has copied in {key[0]}[{key[1]}]: run it again")
        if self._log.start_offset(*key, timeout_s=ASK_TIMEOUT_S) < bound:
            self._log.delete_records(*key, bound, timeout_s=ASK_TIMEOUT_S)
        for relocation in obsolete(known, bound):
            self._write(encode_relocation(relocation)[0], None)
