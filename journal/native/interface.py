"""What the C extension does for producers and consumers, as Python calls it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

SENT_ANEW: Final = 1_000_000
"""Code of a failure that is no error of Kafka's: the record may lie in the log twice."""


class Count(Protocol):
    """Watches the reports of one branch, sends records of it, and counts these; from any thread.

    It believes and refuses offsets as `BranchTally` does, those of records that Python counts
    included.
    """

    @property
    def owner(self) -> Any:
        """What was given to `Handle.count`."""

    @property
    def is_settled(self) -> bool:
        """Whether it is closed, and every record that it took has its report."""

    @property
    def reports(self) -> int:
        """Number of the records it took that have their report."""

    @property
    def unreported(self) -> int:
        """Number of the others."""

    def produce(
        self, topic: str, value: object, key: object, partition: int, timestamp: int, /
    ) -> int:
        """Queues a record. Returns how many it has taken, this one included; 0: it was not taken.

        It takes none that it can't judge, nor one that librdkafka refuses: `Producer.produce` will
        say why. Nor any after `close`.
        """

    def close(self) -> None:
        """Takes no more records."""

    def retire(self) -> None:
        """Watches no more. What was counted can still be asked for."""

    def spans(self) -> list[tuple[str, int, int, int, int]]:
        """Returns (topic, partition, first offset, last offset, number)s of the records it took."""

    def failure(self) -> tuple[int, str, int, int] | None:
        """Returns the first failure: (error code, topic, partition, offset), or None.

        The code is 0 for a record that was reported at an offset that can't be, and `SENT_ANEW` for
        one that may lie in the log twice, whoever counts it.
        """

    def doubted(self) -> tuple[str, int] | None:
        """Returns a partition where it has records, and where one was refused since it began."""

    def raise_floors(self) -> None:
        """Lets other branches begin above the offsets that it has seen."""


class Handle(Protocol):
    """A librdkafka producer that counts."""

    @property
    def is_counting(self) -> bool:
        """Whether the plugin was loaded."""

    @property
    def size(self) -> int:
        """Number of counts that are not retired."""

    @property
    def leaves_gaps(self) -> bool:
        """Whether a record has failed without a broker's answer, whoever counts it."""

    @property
    def busy(self) -> int:
        """Number of those that have taken records."""

    def count(self, txid: bytes, control: bytes, topics: dict[str, Any], owner: object, /) -> Count:
        """Begins to watch a branch. Call it before its first record is sent.

        Args:
            txid: value of the header TxId.
            control: value of the header TxCtl; b"": there is none.
            topics: records of others are not taken. It is read at each change of topic.
            owner: kept for who asks what has `changed`.
        """

    def changed(self) -> list[Count]:
        """Returns the counts that settled, failed or counted in a further partition since then."""

    def detach(self) -> None:
        """Takes no more records. To be called before the producer is closed."""


HeaderRun: TypeAlias = tuple[Sequence[tuple[str, bytes | None]] | None, int]
"""(headers, number): so many records in a row have these headers."""
PartRead: TypeAlias = tuple[str, int, list[Any], list[HeaderRun] | None, int]
"""(topic, partition, messages, their headers, bytes of their values). The headers are None if those
of some message can't be read: asking it for them raises a SystemError, as of confluent-kafka's."""
Event: TypeAlias = tuple[int, str, str | None, int, int]
"""(error code, text, topic, partition, offset). Without a topic it is an error for ``error_cb``."""

BinaryColumn: TypeAlias = tuple[bytes | None, bytes, bytes, int]
"""(validity, offsets, data, number of those that are None): an Arrow array's buffers."""
RunRead: TypeAlias = tuple[str, int, int, Sequence[tuple[str, bytes | None]] | None, int]
"""(topic, partition, type of timestamp, headers, number): so many messages in a row have them."""
ColumnsRead: TypeAlias = tuple[BinaryColumn, BinaryColumn, bytes, bytes, list[RunRead]]
"""(keys, values, offsets, timestamps, runs); offsets and timestamps are numbers of 64 bits.

A light message's static method `columns(messages, bytes_max)` returns it. Or None, if some are of
another type, or events, or changed since they were read, or keys or values have more bytes."""

PackedRun: TypeAlias = tuple[Sequence[tuple[str, bytes | None]] | None, int, int, int]
"""(headers, type of timestamp, leader epoch or -1, number): so many messages in a row have them.

A light message's static methods pack messages of one partition as bytes, to make such messages of
them again in this process. What neighbours share is left to who calls.

- `packable(messages, start, count_max, bytes_max)`: the runs of as many messages from `start` on
  as reach a limit. The last one may go beyond `bytes_max` bytes of keys and values. None if some
  are of another type, or events.
- `pack(front, messages, start, count)`: bytes that begin with `front`. Then comes a row for each
  message (offset and timestamp of 64 bits, sizes of key and value of 32; -1 stands for None), then
  all keys and values. None as above, or if some key or value is no bytes.
- `unpack(bytes, size of front, topic, partition, runs, count)`: the messages. Their headers are
  those of the runs, which must be tuples. ValueError: the bytes are not from `pack`, or the runs
  are of others."""


class Reader(Protocol):
    """Reads the partitions of a librdkafka consumer. One thread at a time may use it."""

    @property
    def is_reading(self) -> bool:
        """Whether the plugin was loaded, and it is not closed."""

    def take_over(self, topic: str, partition: int, /) -> None:
        """Reads a partition from now on. Call it before each assignment of the partition."""

    def give_back(self, topic: str, partition: int, /) -> None:
        """Reads a partition no more. Call it as the consumer gives the partition up."""

    def read(self, limit: int, /) -> tuple[list[PartRead], list[Event]]:
        """Takes up to `limit` records and events that are there, in order, without waiting."""

    def wait(self, ms: int, /) -> None:
        """Waits until something came since the last wait: here, or for the consumer's own poll."""

    def close(self) -> None:
        """Reads no more. To be called before the consumer is closed."""
