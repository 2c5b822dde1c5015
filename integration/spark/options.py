"""Options of the format "logtx", checked: ours taken out, Kafka's passed on. Pure.

Names are Spark's and Kafka's own where they have one. Spark gives options without regard to case,
so they arrive in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ...journal.errors import ConfigError
from ...journal.settings import take_integer, take_text

KAFKA_PREFIX: Final = "kafka."
DELIVERY_TIMEOUT_MS: Final = 120_000
"""Bound of a record's delivery, where ``kafka.delivery.timeout.ms`` doesn't say another."""
_SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options of Spark's own that it hands to every format."""


def take_kafka(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(options without prefix, librdkafka's settings with ``bootstrap.servers``).

    Raises:
        ConfigError: ``kafka.bootstrap.servers`` is missing.
    """
    rest: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(KAFKA_PREFIX):
            kafka[lower.removeprefix(KAFKA_PREFIX)] = value
        elif lower == "bootstrap.servers":
            kafka[lower] = value
        else:
            rest[lower] = value
    if not kafka.get("bootstrap.servers"):
        raise ConfigError(
            "option kafka.bootstrap.servers is missing: set it to the brokers' addresses"
        )
    return rest, kafka


def refuse_rest(rest: Mapping[str, Any], what: str) -> None:
    """An option that nobody took is a typing error.

    Raises:
        ConfigError: there is one.
    """
    unknown = sorted(set(rest) - _SPARKS)
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is no option of the {what}: check its spelling; settings of Kafka's "
            f"client begin with {KAFKA_PREFIX!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of `df.write.format("logtx")` and `df.writeStream.format("logtx")`."""

    topic: str | None = None
    """``topic``: where records go; without it the column ``topic`` says so."""
    transaction_group: str = "default"
    """``transaction.group``: its transactions have one serial order."""
    transactional_id: str | None = None
    """``transactional.id``: whoever begins with it next fences this one. Of a stream, by default,
    its query's id."""
    transaction_timeout_ms: int = 900_000
    """``transaction.timeout.ms``: bound of a job or micro-batch. Coordinators allow as much by
    default (their ``max.timeout.ms``)."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long a request is tried before it is given up."""
    finish_timeout_ms: int = 10_000
    """``finish.timeout.ms``: how long a batch job waits, once committed, for its markers to be
    written, so that whoever reads next sees it; 0 does not wait."""
    group: str | None = None
    """``group``: the consumer group whose input was read through `resume`: its next IOV is
    committed with the output."""
    checkpoint: str | None = None
    """``checkpointLocation``, where Spark keeps the id of a streaming query."""
    kafka: Mapping[str, str]
    """librdkafka's settings."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check a writer's options.

        Raises:
            ConfigError: one is missing, unknown or out of range.
        """
        rest, kafka = take_kafka(options)
        parsed = cls(
            topic=take_text(rest, "topic", None),
            transaction_group=take_text(rest, "transaction.group", "default"),
            transactional_id=take_text(rest, "transactional.id", None),
            transaction_timeout_ms=take_integer(rest, "transaction.timeout.ms", 900_000, 1),
            coordinator_timeout_ms=take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            finish_timeout_ms=take_integer(rest, "finish.timeout.ms", 10_000, 0),
            group=take_text(rest, "group", None),
            checkpoint=take_text(rest, "checkpointlocation", None),
            kafka=kafka,
        )
        refuse_rest(rest, "sink")
        return parsed

    def producer(self, producer_id: str) -> dict[str, Any]:
        """Configuration of the driver's `Producer`."""
        return {
            **self.branch(),
            "transactional.id": producer_id,
            "transaction.group": self.transaction_group,
        }

    def branch(self) -> dict[str, Any]:
        """Configuration of a task's branches."""
        # Linger and batches for bulk: a task writes thousands of records and then waits once.
        bulk = {"linger.ms": "20", "batch.num.messages": "50000", "batch.size": "1000000"}
        return {
            # By default a record would be tried for as long as the transaction may last.
            "delivery.timeout.ms": min(self.transaction_timeout_ms, DELIVERY_TIMEOUT_MS),
            **bulk,
            **self.kafka,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "coordinator.timeout.ms": self.coordinator_timeout_ms,
        }

    def to_json(self) -> str:
        """For another process; equal options give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave."""
        return cls(**json.loads(text))
