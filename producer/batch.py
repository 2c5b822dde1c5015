"""Produces a list of messages, as `confluent_kafka.Producer.produce_batch` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from ..journal.errors import ClosedError, RetriableError


def produce_batch(
    produce: Callable[..., None],
    topic: str,
    messages: list[dict[str, Any]],
    partition: int,
    on_delivery: Any,
) -> int:
    """Checks all messages, and then produces one after the other.

    Returns:
        How many were taken. Each other one has the key ``_error``: a `KafkaError`.

    Raises:
        TypeError: an argument can't be used; nothing was produced.
        ClosedError: the producer was closed.
    """
    _check(topic, messages, partition)
    taken = 0
    for index, message in enumerate(messages):
        try:
            produce(
                topic,
                message.get("value"),
                message.get("key"),
                message.get("partition", partition),
                message.get("callback") or message.get("on_delivery") or on_delivery,
                message.get("timestamp", 0),
                message.get("headers"),
            )
        except ClosedError:
            raise
        except RetriableError as error:
            # It waited for room, for the TxId or for its sidecar: the others would wait as long,
            # each.
            for other in messages[index:]:
                other["_error"] = error.args[0]
            break
        except KafkaException as error:
            message["_error"] = error.args[0]
        except (TypeError, ValueError) as error:
            message["_error"] = KafkaError(KafkaError._INVALID_ARG, str(error))
        else:
            taken += 1
    return taken


def _check(topic: object, messages: object, partition: object) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {topic!r}")
    if not isinstance(partition, int):
        raise TypeError(f"partition must be an int, not {partition!r}")
    if not isinstance(messages, list):
        raise TypeError("messages must be a list of dicts")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise TypeError(f"Message at index {index} must be a dict, not {message!r}")
        for name in ("value", "key"):
            if not isinstance(message.get(name), bytes | str | None):
                raise TypeError(f"Message {name} at index {index} must be bytes or str")
        if not isinstance(message.get("partition", partition), int):
            raise TypeError(f"Message partition at index {index} must be int")
