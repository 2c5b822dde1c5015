"""Parses and checks the options of the format "logtx"; passes Kafka's settings on. Pure.

Options have the names of Spark and Kafka where those have one. Spark does not distinguish upper and
lower case, so options arrive in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ...journal.errors import ConfigError
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ...journal.settings import take_flag, take_integer, take_text
from ...journal.tls import OWN as TLS

KAFKA_PREFIX: Final = "kafka."
DELIVERY_TIMEOUT_MS: Final = 120_000
"""How long a record's delivery is tried, unless ``kafka.delivery.timeout.ms`` is set. A smaller
value fails tasks in short outages, a larger one keeps hopeless tasks longer."""
VERSION_MAX: Final = 2**63 - 1
"""Highest ``txnVersion``: an offset of 63 bits."""
_SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Spark's own options, which it passes to every format."""


def prefixed(kafka: Mapping[str, str]) -> dict[str, str]:
    """Returns librdkafka's settings as options of `logtx.spark`, the inverse of `take_kafka`."""
    return {f"{KAFKA_PREFIX}{name}": value for name, value in kafka.items()}


def take_kafka(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (options without prefix, librdkafka's settings with ``bootstrap.servers``).

    With these are those of TLS to coordinators: whoever opens the log needs both.

    Raises:
        ConfigError: ``kafka.bootstrap.servers`` is missing.
    """
    rest: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(KAFKA_PREFIX):
            kafka[lower.removeprefix(KAFKA_PREFIX)] = value
        elif lower == "bootstrap.servers" or lower in TLS:
            kafka[lower] = value
        else:
            rest[lower] = value
    if not kafka.get("bootstrap.servers"):
        raise ConfigError(
            "option kafka.bootstrap.servers is missing: set it to the brokers' addresses"
        )
    return rest, kafka


def kafka_only(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Returns librdkafka's settings of a function that has no other options.

    Raises:
        ConfigError: one of `options` does not begin with ``kafka.``.
    """
    rest, kafka = take_kafka({**options, "bootstrap.servers": bootstrap_servers})
    refuse_rest(rest, "function")
    return kafka


def refuse_rest(rest: Mapping[str, Any], what: str) -> None:
    """Refuses options that are left over, since these are typing errors.

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
    """``topic``: topic to write to; without it, the column ``topic`` names one for each row."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """``transaction.group``: all transactions of the group have one serial order."""
    transactional_id: str | None = None
    """``transactional.id``: the next producer with the same one fences this one. A stream's default
    is made of its query id."""
    transaction_timeout_ms: int = 900_000
    """``transaction.timeout.ms``: how long a transaction stays open if nothing is heard of its job.
    As long as the application runs, the driver begins this time anew."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long a request to coordinators is retried."""
    finish_timeout_ms: int = 10_000
    """``finish.timeout.ms``: how long a batch job waits after its commit for the markers, so that
    the next reader sees its records; 0 does not wait."""
    group: str | None = None
    """``group``: the consumer group whose input was read through `resume`; its next IOV is
    committed with the output."""
    txn_app_id: str | None = None
    """``txnAppId``: what writes are counted under; those of one application and version are one."""
    txn_version: int | None = None
    """``txnVersion``: the number of this write. A write of this number or below, under the same
    ``txnAppId``, writes nothing. In ``foreachBatch`` it is the micro-batch."""
    transaction: str | None = None
    """``transaction``: the token of a transaction that the write joins, see `spark.transaction`."""
    sidecar: bool = False
    """``sidecar``: whether all records go to the sidecars of their topics
    (`logtx.journal.sidecar`)."""
    sidecar_min_bytes: int = -1
    """``transaction.sidecar.min.bytes``: what each task writes to a topic before it goes over to
    the sidecar; -1 everything."""
    commit_name: str | None = None
    """``commitName``: the name under which `spark.last_commit` tells what the write committed."""
    checkpoint: str | None = None
    """``checkpointLocation``: where Spark keeps the id of a streaming query."""
    query_name: str | None = None
    """The name of a streaming query: its place below the session's checkpoint location."""
    kafka: Mapping[str, str]
    """librdkafka's settings."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parses a writer's options.

        Raises:
            ConfigError: an option is missing, unknown or out of range.
        """
        rest, kafka = take_kafka(options)
        parsed = cls(
            topic=take_text(rest, "topic", None),
            transaction_group=take_text(rest, "transaction.group", DEFAULT_TRANSACTION_GROUP),
            transactional_id=take_text(rest, "transactional.id", None),
            transaction_timeout_ms=take_integer(rest, "transaction.timeout.ms", 900_000, 1),
            coordinator_timeout_ms=take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            finish_timeout_ms=take_integer(rest, "finish.timeout.ms", 10_000, 0),
            group=take_text(rest, "group", None),
            txn_app_id=take_text(rest, "txnappid", None),
            txn_version=take_integer(rest, "txnversion", None, 0, VERSION_MAX),
            transaction=take_text(rest, "transaction", None),
            sidecar=take_flag(rest, "sidecar", False),
            sidecar_min_bytes=take_integer(rest, "transaction.sidecar.min.bytes", -1, -1),
            commit_name=take_text(rest, "commitname", None),
            checkpoint=take_text(rest, "checkpointlocation", None),
            query_name=take_text(rest, "queryname", None),
            kafka=kafka,
        )
        if parsed.txn_version is not None and parsed.txn_app_id is None:
            raise ConfigError("option txnVersion counts the writes of a txnAppId: set that, too")
        refuse_rest(rest, "sink")
        return parsed

    def producer(self, producer_id: str) -> dict[str, Any]:
        """Returns the configuration of the driver's `Producer`."""
        config = self.branch()
        # It writes nothing itself. Writes that differ in this share it, or would fence each other.
        del config["transaction.sidecar.min.bytes"]
        return {
            **config,
            "transactional.id": producer_id,
            "transaction.group": self.transaction_group,
        }

    def branch(self) -> dict[str, Any]:
        """Returns the configuration of a task's branches."""
        # A task writes thousands of records and waits only at the end, so large batches pay.
        bulk = {"linger.ms": "20", "batch.num.messages": "50000", "batch.size": "1000000"}
        return {
            # The default would retry a record for as long as the transaction may last.
            "delivery.timeout.ms": min(self.transaction_timeout_ms, DELIVERY_TIMEOUT_MS),
            **bulk,
            **self.kafka,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "coordinator.timeout.ms": self.coordinator_timeout_ms,
            "transaction.sidecar.min.bytes": 0 if self.sidecar else self.sidecar_min_bytes,
        }

    def to_json(self) -> str:
        """Returns a text for another process; equal options give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Restores options from the text of `to_json`."""
        return cls(**json.loads(text))
