"""Sidecars: where records of a transaction go that must not touch the topic before it commits.

The sidecar of a topic has the topic's name with a suffix, and partition *p* of it belongs to
partition *p* of the topic. A name is all that says so: to producers, journal and brokers it is one
more data topic. When its transaction commits, a *pointer* in the main partition says which offsets
of the sidecar are delivered there. Pure.

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

from typing import Final

from .control import TopicPartition
from .errors import ConfigError, UnsupportedTopicError

SUFFIX: Final = "._txnlog"
"""Ends the name of a sidecar. Kafka allows no slash in a name."""
TOPIC_MAX_BYTES: Final = 249
"""Longest name of a topic in Kafka."""
OFFSETS_FROM: Final = 2**62
"""What is added to the offset of a record in a sidecar, when it is delivered as a record of the
main topic. No offset of a log comes near it, so (topic, partition, offset) stays unique."""


def is_sidecar(topic: str) -> bool:
    """Returns whether a topic of this name is a sidecar."""
    return topic.endswith(SUFFIX)


def main_of(topic: str) -> str:
    """Returns the topic to which a sidecar belongs."""
    return topic.removesuffix(SUFFIX)


def main_partition(key: TopicPartition) -> TopicPartition:
    """Returns the main partition of a sidecar partition, and any other partition itself."""
    return main_of(key[0]), key[1]


def sidecar_of(topic: str) -> str:
    """Returns the name of a topic's sidecar.

    Raises:
        UnsupportedTopicError: the topic is a sidecar itself, or its name is too long.
    """
    if is_sidecar(topic):
        raise UnsupportedTopicError(
            f"{topic} is the sidecar of {main_of(topic)} and can't have one itself: write to"
            f" {main_of(topic)}"
        )
    name = topic + SUFFIX
    if len(name.encode()) > TOPIC_MAX_BYTES:
        raise UnsupportedTopicError(
            f"topic {topic} can't have a sidecar: with {SUFFIX!r} its name has more than"
            f" {TOPIC_MAX_BYTES} bytes. Write to it without one"
        )
    return name


def check_named_by_user(topic: str) -> None:
    """Refuses the name of a sidecar where a user names a topic to write to.

    Raises:
        ConfigError: it is one.
        TypeError: it is no str.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {topic!r}")
    if is_sidecar(topic):
        raise ConfigError(
            f"{topic} is the sidecar of {main_of(topic)}, and only logtx writes there: write to"
            f" {main_of(topic)}, in a transaction that begins with sidecar=True"
        )


def check_read_by_user(topic: str) -> None:
    """Refuses the name of a sidecar where a user names a topic to read.

    Raises:
        UnsupportedTopicError: it is one.
    """
    if is_sidecar(topic):
        raise UnsupportedTopicError(
            f"{topic} is the sidecar of {main_of(topic)}: its records are delivered as records of"
            f" {main_of(topic)}, once they are committed. Read {main_of(topic)}"
        )


def to_delivered(offset: int) -> int:
    """Returns the offset that a record of a sidecar has when it is delivered."""
    return offset + OFFSETS_FROM


def is_delivered_from_sidecar(offset: int) -> bool:
    """Returns whether a delivered record's offset says that it lies in the sidecar."""
    return offset >= OFFSETS_FROM


def in_sidecar(offset: int) -> int:
    """Returns the offset in the sidecar of a record that was delivered from there."""
    return offset - OFFSETS_FROM
