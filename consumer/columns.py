"""Makes Arrow columns of messages, for `Consumer.consume_arrow` and the source for Spark.

It needs pyarrow, so nobody imports it before columns are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, repeat
from operator import methodcaller
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from ..journal.collector import collector_paused
from ..journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ..journal.errors import ConfigError
from ..journal.native.interface import BinaryColumn, ColumnsRead
from ..journal.txid import TxId
from .core.headers import well_formed
from .core.pending import RawTxId

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The column of headers."""
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestamp_type", pa.int8()),
        ("headers", HEADERS),
        ("txid", pa.string()),
        ("commit_sequence", pa.int64()),
    ]
)
"""The columns of Kafka's connector for Spark, and two of ours, as logtx's source for Spark has."""
EMPTY: Final = pa.RecordBatch.from_pylist([], SCHEMA)
BYTES_MAX: Final = 2**31 - 1
"""Most bytes of a column: its offsets have 32 bits, as not every reader of Arrow takes others."""
_OURS: Final = (TXID_HEADER, TXCTL_HEADER)

_error_of: Any = methodcaller("error")


class Run(NamedTuple):
    """Neighbours that are alike but for key, value, offset and time."""

    topic: str
    partition: int
    timestamp_type: int
    headers: Headers | None
    length: int


class Spread:
    """Gives what neighbours share to each of them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """Takes how many neighbours there are, run by run."""
        self._lengths = lengths
        self._total = sum(lengths)

    @cached_property
    def _runs(self) -> Any:
        # The number of each one's run. Decoded once, as decoding takes twice the time of `take`.
        ends = pa.array(accumulate(self._lengths), pa.int64())
        numbers = pa.array(range(len(self._lengths)), pa.int32())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers))

    def column(self, values: Sequence[Any], kind: Any) -> Any:
        """Returns a column that has each run's value as often as the run is long."""
        if len(values) == self._total:
            return pa.array(values, kind)
        if values.count(values[0]) == len(values):
            shared = values[0]
            return (
                pa.nulls(self._total, kind)
                if shared is None
                else pa.repeat(pa.scalar(shared, kind), self._total)
            )
        return pa.array(values, kind).take(self._runs)


@dataclass(frozen=True)
class Columns:
    """What messages say, before it is known what their headers mean."""

    keys: Any
    values: Any
    offsets: Any
    timestamps: Any
    """Milliseconds since 1970, as numbers."""
    runs: Sequence[Run]

    @cached_property
    def spread(self) -> Spread:
        """Gives each message what its run has."""
        return Spread([run.length for run in self.runs])

    def headers(self) -> Any:
        """Returns the column of type `HEADERS`."""
        return self.spread.column([user_headers(run.headers) for run in self.runs], HEADERS)


def batch_of(
    messages: list[Message], sequences: Mapping[RawTxId, int]
) -> tuple[pa.RecordBatch, list[Message]]:
    """Returns (the records as columns, the events among the messages).

    Args:
        messages: what `consume` would return.
        sequences: the commit sequence of each transaction that is committed.

    Raises:
        ConfigError: keys or values have more than 2 GiB.
    """
    if not messages:
        return EMPTY, []
    with collector_paused():
        made = _read_in_c(messages)
        if made is not None:
            return _batch(made, sequences), []
        events: list[Message] = []
        if any(map(_error_of, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            if not messages:
                return EMPTY, events
        return _batch(_asked(messages, None, headers=True), sequences), events


def columns_of(messages: list[Message], place: TopicPartition, *, headers: bool) -> Columns:
    """Returns the columns of at least one record.

    Args:
        messages: the records.
        place: topic and partition of all of them.
        headers: whether their headers matter. If not, the runs may be without.

    Raises:
        ConfigError: keys or values have more than 2 GiB.
    """
    return _read_in_c(messages) or _asked(messages, place, headers=headers)


def _read_in_c(messages: list[Message]) -> Columns | None:
    # Light messages are asked together. Events and confluent-kafka's are not.
    ask: Any = getattr(type(messages[0]), "columns", None)
    found: ColumnsRead | None = None if ask is None else ask(messages, BYTES_MAX)
    if found is None:
        return None
    keys, values, offsets, timestamps, runs = found
    count = len(messages)

    def whole(column: bytes) -> Any:
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(column)], 0)

    def binary(column: BinaryColumn) -> Any:
        *buffers, missing = column
        told = [None if each is None else pa.py_buffer(each) for each in buffers]
        return pa.Array.from_buffers(pa.binary(), count, told, missing)

    return Columns(
        binary(keys), binary(values), whole(offsets), whole(timestamps), list(map(Run._make, runs))
    )


def _asked(messages: list[Message], place: TopicPartition | None, *, headers: bool) -> Columns:
    # Column by column, each in one call to C: takes half the time of a loop over messages.
    ask = _asking(messages)
    kinds, stamps_ms = zip(*ask("timestamp"), strict=True)
    topics, partitions = map(repeat, place) if place else (ask("topic"), ask("partition"))
    alike: Iterable[Any] = zip(
        topics, partitions, kinds, ask("headers") if headers else repeat(None), strict=False
    )
    if place and not headers and kinds.count(kinds[0]) == len(kinds):
        runs = [Run(place[0], place[1], kinds[0], None, len(kinds))]  # in a quarter of the time
    else:
        runs = [Run._make((*shared, len(list(run)))) for shared, run in groupby(alike)]
    return Columns(
        _binary(list(ask("key"))),
        _binary(list(ask("value"))),
        pa.array(list(ask("offset")), pa.int64()),
        pa.array(stamps_ms, pa.int64()),
        runs,
    )


def _asking(messages: list[Message]) -> Callable[[str], Iterator[Any]]:
    """Returns what asks all messages, by the name of a method."""
    first, *others = {*map(type, messages)}
    if others:  # as where some were spilled
        return lambda name: map(methodcaller(name), messages)
    return lambda name: map(getattr(first, name), messages)  # a third of the time


def _binary(values: list[bytes | None]) -> Any:
    if sum(map(len, filter(None, values))) > BYTES_MAX:
        raise ConfigError(
            "more than 2 GiB of keys or values are more than an Arrow column holds: call"
            " consume_arrow with a smaller num_messages; they will come again"
        )
    return pa.array(values, pa.binary())


def _batch(columns: Columns, sequences: Mapping[RawTxId, int]) -> pa.RecordBatch:
    runs, spread = columns.runs, columns.spread.column
    codes: dict[str, int] = {}
    topics = spread([codes.setdefault(run.topic, len(codes)) for run in runs], pa.int32())
    kinds = spread([run.timestamp_type for run in runs], pa.int8())
    txids = [_txid_of(run) for run in runs]
    texts = {raw: str(TxId.from_bytes(raw)) for raw in set(txids) if raw is not None}
    return pa.RecordBatch.from_arrays(
        [
            columns.keys,
            columns.values,
            pa.DictionaryArray.from_arrays(topics, pa.array(codes, pa.string())),
            spread([run.partition for run in runs], pa.int32()),
            columns.offsets,
            _times(columns.timestamps, kinds, runs),
            kinds,
            columns.headers(),
            spread([None if raw is None else texts[raw] for raw in txids], pa.string()),
            spread([None if raw is None else sequences.get(raw) for raw in txids], pa.int64()),
        ],
        schema=SCHEMA,
    )


def _times(stamps_ms: Any, kinds: Any, runs: Sequence[Run]) -> Any:
    if any(run.timestamp_type == TIMESTAMP_NOT_AVAILABLE for run in runs):
        known = pc.not_equal(kinds, TIMESTAMP_NOT_AVAILABLE)
        stamps_ms = pc.if_else(known, stamps_ms, None)
    return stamps_ms.view(_TIMESTAMP)


def _txid_of(run: Run) -> RawTxId | None:
    txids = [raw for name, raw in run.headers or () if name == TXID_HEADER]
    return txids[0] if len(txids) == 1 and well_formed(txids[0]) else None


def user_headers(headers: Headers | None) -> list[dict[str, Any]] | None:
    """Returns a record's headers but ours, as a value of type `HEADERS`; None if there are none."""
    return [{"key": name, "value": raw} for name, raw in headers or () if name not in _OURS] or None
