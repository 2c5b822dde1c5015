"""What a queue's `poll` returns."""

from __future__ import annotations

from confluent_kafka import Message


class Messages(list[Message]):
    """Messages to work on: a list, with the methods of `confluent_kafka.Messages`."""

    def records(self) -> list[Message]:
        """Returns a copy of the list."""
        return list(self)

    def is_empty(self) -> bool:
        """Returns whether there are none."""
        return not self

    def count(self, *value: Message) -> int:
        """Returns how many there are; with a message, how often that is there, as of any list."""
        return super().count(*value) if value else len(self)
