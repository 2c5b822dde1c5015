"""What the C extension does for a producer, as Python calls it. Pure."""

from __future__ import annotations

from typing import Any, Protocol


class Count(Protocol):
    """Sends the records of one branch, and counts their reports; from any thread."""

    @property
    def owner(self) -> Any:
        """What was given to `Handle.count`."""

    @property
    def is_settled(self) -> bool:
        """Whether it is closed, and every record that it took has its report."""

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
        """Counts no more. What was counted can still be asked for."""

    def spans(self) -> list[tuple[str, int, int, int, int]]:
        """Returns (topic, partition, first offset, last offset, number of records)s."""

    def failure(self) -> tuple[int, str, int, int] | None:
        """Returns the first failure: (error code, topic, partition, offset), or None.

        The code is 0 for a record that was reported at an offset that can't be.
        """


class Handle(Protocol):
    """A librdkafka producer that counts."""

    @property
    def is_counting(self) -> bool:
        """Whether the plugin was loaded."""

    @property
    def size(self) -> int:
        """Number of counts that are not retired."""

    def count(self, txid: bytes, control: bytes, topics: dict[str, Any], owner: object, /) -> Count:
        """Begins to count a branch.

        Args:
            txid: value of the header TxId.
            control: value of the header TxCtl; b"": there is none.
            topics: records of others are not taken. It is read at each change of topic.
            owner: kept for who asks what has `changed`.
        """

    def changed(self) -> list[Count]:
        """Returns the counts that settled, failed or came to a further partition since then."""

    def detach(self) -> None:
        """Takes no more records. To be called before the producer is closed."""
