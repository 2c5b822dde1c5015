"""Consumers of a queue: of logtx, or of Kafka's share groups. Their calls have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

import logtx

from ..clients import CONNECT_TIMEOUT_S

KAFKA: Final = "kafka"
LOGTX: Final = "logtx"
KINDS: Final = (KAFKA, LOGTX)
BATCH: Final = 500
"""Most messages of a poll: the default of both kinds. Kafka's may return more."""


def _settings(servers: str, group: str) -> dict[str, Any]:
    """Returns what both kinds are told."""
    return {
        "bootstrap.servers": servers,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": BATCH,
    }


def open_queue(
    servers: str, group: str, topic: str, settings: Mapping[str, Any] | None = None
) -> logtx.ShareConsumer:
    """Returns logtx's consumer of a queue, which begins with the first message of the topic.

    Args:
        servers: the broker.
        group: the subscription.
        topic: the topic.
        settings: further ones.
    """
    own = {**_settings(servers, group), "auto.offset.reset": "earliest"}
    queue = logtx.ShareConsumer({**own, **(settings or {})})
    try:
        queue.subscribe([topic])
    except BaseException:
        queue.close()
        raise
    return queue


def open_share_group(servers: str, group: str, topic: str) -> Any:
    """Returns confluent-kafka's consumer of a share group. See `begin_at_first`."""
    # It would warn that it is a preview.
    queue = confluent_kafka.ShareConsumer({**_settings(servers, group), "log_level": 3})
    queue.subscribe([topic])
    return queue


def open_kind(kind: str, servers: str, group: str, topic: str) -> Any:
    """Returns a consumer of a queue of one of `KINDS`."""
    opening = open_share_group if kind == KAFKA else open_queue
    return opening(servers, group, topic)


def begin_at_first(servers: str, group: str) -> None:
    """Lets a share group that is not there yet begin with the first message of its topics.

    Raises:
        KafkaException: the broker refuses, or has no share groups.
    """
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(CONNECT_TIMEOUT_S)


def accept(queue: Any, timeout_s: float) -> list[Any]:
    """Polls, reads each value and accepts the message; returns the messages.

    The next poll sends what was accepted.
    """
    messages = [message for message in queue.poll(timeout_s) if message.error() is None]
    for message in messages:
        message.value()
        queue.acknowledge(message)
    return messages


def await_first(queue: Any, timeout_s: float) -> int:
    """Polls until messages come, and accepts them; returns how many. Waits for the answer.

    Raises:
        TimeoutError: none came in time.
    """
    found = len(accept(queue, timeout_s))
    if not found:
        raise TimeoutError(f"the queue gave nothing within {timeout_s:g} s")
    settle(queue)
    return found


def settle(queue: Any) -> None:
    """Sends what was accepted, and waits for the answers.

    Raises:
        KafkaException: an acknowledgement did not count.
    """
    for error in queue.commit_sync(CONNECT_TIMEOUT_S).values():
        if error is not None:
            raise error
