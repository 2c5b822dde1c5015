"""Writes `__transaction_offsets`: a readable copy of the committed IOVs, compacted.

The shard's replayed state is the truth. For a group, a reader of this topic takes the value with
the highest commit sequence (of the newest incarnation). The key carries the owner's epoch, so that
a late write of a replaced owner can't shadow its successor's write, whatever compaction keeps
(trap 27).

Source: Transactional Messaging in Kafka, "Producer IDs and state groups" and "Transaction flow",
step 5b (the record G-LAST-COMMIT).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import fastavro
from confluent_kafka import KafkaError

from ...journal.control import TopicPartition
from ...journal.errors import CorruptRecordError
from ...journal.logs.interface import Log
from ...journal.position import Position
from ...journal.reader import OFFSETS_TOPIC, journal_partition_of
from ...journal.txid import TxId
from ...journal.versioned import Versioned
from ..core.committed_offsets import IOV_MAX_BYTES
from ..core.offsets_lanes import OffsetsKey, OffsetsLanes, Written
from ..protocol.commands import GroupOffsets
from ..tasks import essential_task
from .alarm import Alarm, monotonic_ms
from .appender import Appender

_LOG = logging.getLogger(__name__)
_CODEC: Final = Versioned(1, "an offsets record", CorruptRecordError)
ENCODED_AT_ONCE_MAX: Final = 50
"""Partitions of an IOV that is encoded on the event loop: 0.3 ms. More hold the loop longer; fewer
send small ones through a thread, which takes longer."""
OFFSETS_TOPIC_SETTINGS: Final = {"cleanup.policy": "compact"}

_KEY: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "logtx.offsets.Key",
        "fields": [
            {"name": "group", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "incarnation", "type": "long"},
            {"name": "epoch", "type": "long"},
        ],
    }
)
_VALUE: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "logtx.offsets.Value",
        "fields": [
            {"name": "last_commit", "type": "string"},
            {"name": "commit_sequence", "type": "long"},
            {
                "name": "offsets",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "logtx.offsets.Offset",
                        "fields": [
                            {"name": "topic", "type": "string"},
                            {"name": "partition", "type": "int"},
                            {"name": "o1", "type": "long"},
                            {"name": "metadata", "type": "string"},
                        ],
                    },
                },
            },
        ],
    }
)


def encode_key(key: OffsetsKey) -> bytes:
    """Returns the key of a record as bytes."""
    body = {f: getattr(key, f) for f in ("group", "partition", "incarnation", "epoch")}
    return _CODEC.encode(_KEY, body)


def encode_value(offsets: GroupOffsets) -> bytes:
    """Returns the value of a record: the group's whole IOV and the TxId that committed it."""
    assert offsets.last_commit is not None
    positions = sorted(offsets.offsets.items())
    value = _encode_value(offsets, positions)
    if len(value) > IOV_MAX_BYTES:
        # The sequences met only save side reads. Without them every allowed IOV fits.
        value = _encode_value(offsets, [(p, replace(o, met={})) for p, o in positions])
    return value


def _encode_value(
    offsets: GroupOffsets, positions: Sequence[tuple[TopicPartition, Position]]
) -> bytes:
    rows = [
        {"topic": t, "partition": p, "o1": o.o1, "metadata": o.to_metadata()}
        for (t, p), o in positions
    ]
    body = {
        "last_commit": str(offsets.last_commit),
        "commit_sequence": offsets.commit_sequence,
        "offsets": rows,
    }
    return _CODEC.encode(_VALUE, body)


def decode_key(raw: bytes | None) -> OffsetsKey:
    """Decodes the key of a record.

    Raises:
        CorruptRecordError: it does not decode.
    """
    return OffsetsKey(**_CODEC.decode(_KEY, raw))


def decode_value(raw: bytes | None) -> GroupOffsets:
    """Decodes the value of a record.

    Raises:
        CorruptRecordError: it does not decode.
    """
    body = _CODEC.decode(_VALUE, raw)
    offsets = {
        (r["topic"], r["partition"]): Position.from_metadata(r["o1"], r["metadata"])
        for r in body["offsets"]
    }
    try:
        last_commit = TxId.parse(body["last_commit"])
    except ValueError as error:
        raise CorruptRecordError(f"an offsets record names no TxId: {error}") from error
    return GroupOffsets(offsets, last_commit, body["commit_sequence"])


class OffsetsWriter:
    """Writes IOVs as `OffsetsLanes` asks for it; lives on the event loop."""

    def __init__(self, log: Log, partition_count: int) -> None:
        """Starts a producer; `partition_count` is that of `__transaction_offsets`."""
        self._appender = Appender(log, {}, "offsets")
        self._partition_count = partition_count
        self._lanes = OffsetsLanes(self)
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="offsets-encoding")
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm = Alarm(self._lanes.tick)
        self._closed = False

    # ---- what the coordinator asks --------------------------------------------------------------

    def write(self, key: OffsetsKey, steps: GroupOffsets, written: Written) -> None:
        """Writes what a commit moved. See `OffsetsLanes.write`."""
        self._lanes.write(key, steps, written, monotonic_ms())

    def backlog(self, key: OffsetsKey) -> int:
        """Returns the number of commits of a group whose IOV is not durable yet."""
        return self._lanes.backlog(key)

    def forget(self, partition: int) -> None:
        """Drops what is queued for a journal partition that must be loaded again."""
        self._lanes.forget(partition)

    def clear(self, key: OffsetsKey, written: Written) -> None:
        """Removes the record of a group that was forgotten. See `OffsetsLanes.clear`."""
        self._lanes.clear(key, written, monotonic_ms())

    def clear_former(self, key: OffsetsKey) -> None:
        """Removes an earlier owner's record. If that fails, readers ignore it by its sequence."""

        def acknowledge(_offset: int | None, error: KafkaError | None) -> None:
            if error is not None:
                _LOG.warning("offsets_not_cleared group=%s error=%s", key.group, error.name())

        self._append(key, None, acknowledge)

    async def close(self) -> None:
        """Stops. The next owner writes what was not written."""
        self._closed = True
        self._alarm.cancel()
        self._encoding.shutdown(wait=False, cancel_futures=True)
        await self._appender.close()

    # ---- what the lanes ask: see `core.offsets_lanes.Shell` -------------------------------------

    def append(self, key: OffsetsKey, offsets: GroupOffsets | None) -> None:
        """Encodes and writes an IOV: a large one in a thread, for it takes milliseconds."""
        if offsets is None:
            self._append_value(key, None)
            return
        if len(offsets.offsets) <= ENCODED_AT_ONCE_MAX:
            self._append_value(key, encode_value(offsets))
            return
        if self._closed:
            return
        task = essential_task(self._encode(key, offsets), "offsets")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _encode(self, key: OffsetsKey, offsets: GroupOffsets) -> None:
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(self._encoding, encode_value, offsets)
        if not self._closed:
            self._append_value(key, value)

    def _append_value(self, key: OffsetsKey, value: bytes | None) -> None:
        def acknowledge(offset: int | None, error: KafkaError | None) -> None:
            if error is not None:
                _LOG.warning("offsets_not_written group=%s error=%s", key.group, error.name())
            self._lanes.answered(key, monotonic_ms(), durable=offset is not None)

        self._append(key, value, acknowledge)

    def wake_at(self, at_ms: int) -> None:
        """Calls `OffsetsLanes.tick` at `at_ms`."""
        if not self._closed:
            self._alarm.set(at_ms)

    def _append(
        self,
        key: OffsetsKey,
        value: bytes | None,
        acknowledge: Callable[[int | None, KafkaError | None], None],
    ) -> None:
        # Order matters within a lane alone, and that has one write in flight. Of several owners'
        # records readers take the one with the highest commit sequence.
        self._appender.renew_if_broken()
        to = journal_partition_of(key.group, self._partition_count)
        self._appender.append(OFFSETS_TOPIC, to, acknowledge, key=encode_key(key), value=value)
