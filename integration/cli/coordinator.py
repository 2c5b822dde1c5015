"""`logtx coordinator`: runs one, with the options that say how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from confluent_kafka import KafkaError

from ...journal.errors import BrokerError, ConfigError
from .cluster import no_kafka
from .connection import BOOTSTRAP, Kafka, name_unused, with_kafka

if TYPE_CHECKING:
    from ...coordinator.service import CoordinatorConfig

_NO_BROKER: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""librdkafka's codes when no broker answers."""

_Listen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Address to listen on, for clients and other coordinators."
    ),
]
_Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address that clients and other coordinators reach this one at. "
        "\\[default: that of --listen]",
    ),
]
_MetricsListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address to serve Prometheus metrics on, at /metrics. \\[default: nowhere]",
    ),
]
_SslCertificateLocation = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="This coordinator's certificate in PEM, with those between it and the CA. Connections "
        "of clients and other coordinators then need TLS. The files of TLS are read again when "
        r"they have changed. \[default: no TLS]",
    ),
]
_SslKeyLocation = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=r"The certificate's private key in PEM. \[default: the file of the certificate]",
    ),
]
_SslKeyPassword = Annotated[
    str | None,
    typer.Option(
        metavar="PASSWORD",
        help="The password of the key. Better in a settings file, as "
        r"ssl_key_password = 'file:PATH'. \[default: it has none]",
    ),
]
_SslCaLocation = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Certificates in PEM of the CAs that sign those of other coordinators, and of "
        r"clients. \[default: the system's, for other coordinators]",
    ),
]
_SslClientAuth = Annotated[
    str | None,
    typer.Option(
        metavar="none|requested|required",
        help="Whether clients and other coordinators are asked for a certificate; with requested "
        r"they may have none. \[default: none]",
    ),
]
_SslEndpointIdentificationAlgorithm = Annotated[
    str | None,
    typer.Option(
        metavar="https|none",
        help="Whether another coordinator's certificate must name the host of its address. "
        r"\[default: https]",
    ),
]
_JournalPartitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Partitions of the journal, if this start creates it; fixed from then on. "
        "\\[default: 8]",
    ),
]
_ReplicationFactor = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Replicas of logtx's own topics, if this start creates them; existing topics must "
        "have at least as many. \\[default: the brokers' default]",
    ),
]
_SessionGraceMs = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How long a producer may be disconnected before its open transactions are "
        "aborted. \\[default: 3000]",
    ),
]
_MaxTimeoutMs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Longest transaction.timeout.ms that a producer may ask for. "
        "\\[default: 900000, 15 minutes]",
    ),
]
_MaxOpenTransactionsPerProducer = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Transactions that one producer may have open. Beyond that its attempts to begin "
        "another are refused until one ends. \\[default: 10000]",
    ),
]
_MaxOpenTransactions = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Transactions that all producers of a journal partition together may have open. "
        "\\[default: 100000]",
    ),
]
_MaxAddedRanges = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Ranges (one branch in one data partition) that the unfinished transactions of a "
        "journal partition may name before their commits, 32 bytes of memory each. Only "
        "commits that one journal record can't take need them. \\[default: 4000000]",
    ),
]
_ProducerRetentionHours = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Hours of service after which a producer that nobody used is forgotten; one "
        r"without a transactional.id after an hour. \[default: 168, 7 days]",
    ),
]
_GroupRetentionHours = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Hours of service after which the offsets of a consumer group without members, "
        r"which nobody moved or claimed, are forgotten. \[default: 720, 30 days]",
    ),
]
_SnapshotIntervalRecords = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Journal records between two snapshots of a journal partition. A coordinator that "
        "starts has to replay about as many. \\[default: 100000]",
    ),
]
_OutcomeRetentionMs = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How long after its BEGIN a transaction's outcome can be looked up, at least. "
        "\\[default: 604800000, 7 days]",
    ),
]
_RetentionWarnShare = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Log a warning when an open transaction's data has come this share of the way to "
        "its deletion by the topic's retention. \\[default: 0.5]",
    ),
]
_RetentionAbortShare = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Abort an open transaction when its data has come this share of the way to its "
        "deletion by the topic's retention. \\[default: 0.8]",
    ),
]
_SidecarTrimDelayMs = Annotated[
    int | None,
    typer.Option(
        min=-1,
        help="How long records of sidecars stay that no reader needs any more, at least; -1: for "
        "ever. \\[default: 3600000, an hour]",
    ),
]
_MetadataStore = Annotated[
    str | None,
    typer.Option(
        metavar="none|rocksdb:DIR|etcd:HOST:PORT,…[/PREFIX]",
        help="Where to keep what became of each transaction, so that it can be asked for: a "
        "directory of this coordinator's own, or an etcd for all, where keys begin with PREFIX/ "
        "(logtx/). \\[default: none]",
    ),
]
_MetadataHistoryMs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How long after its decision a finished transaction is kept there at most. "
        "\\[default: in a directory, as long as its data may be read; in etcd 600000]",
    ),
]
_MetadataHeaderRetentionMs = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How long after its decision a finished transaction is kept there at least. "
        "\\[default: 60000]",
    ),
]
_MetadataSweepIntervalMs = Annotated[
    int | None,
    typer.Option(
        min=100, help="Pause between two searches for what can go there. \\[default: 60000]"
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Adds the command to `logtx`."""
    app.command()(coordinator)


@with_kafka
def coordinator(
    *,
    kafka: Kafka,
    listen: _Listen = "127.0.0.1:9095",
    advertise: _Advertise = None,
    metrics_listen: _MetricsListen = None,
    ssl_certificate_location: _SslCertificateLocation = None,
    ssl_key_location: _SslKeyLocation = None,
    ssl_key_password: _SslKeyPassword = None,
    ssl_ca_location: _SslCaLocation = None,
    ssl_client_auth: _SslClientAuth = None,
    ssl_endpoint_identification_algorithm: _SslEndpointIdentificationAlgorithm = None,
    journal_partitions: _JournalPartitions = None,
    replication_factor: _ReplicationFactor = None,
    session_grace_ms: _SessionGraceMs = None,
    max_timeout_ms: _MaxTimeoutMs = None,
    max_open_transactions_per_producer: _MaxOpenTransactionsPerProducer = None,
    max_open_transactions: _MaxOpenTransactions = None,
    max_added_ranges: _MaxAddedRanges = None,
    producer_retention_hours: _ProducerRetentionHours = None,
    group_retention_hours: _GroupRetentionHours = None,
    snapshot_interval_records: _SnapshotIntervalRecords = None,
    outcome_retention_ms: _OutcomeRetentionMs = None,
    retention_warn_share: _RetentionWarnShare = None,
    retention_abort_share: _RetentionAbortShare = None,
    sidecar_trim_delay_ms: _SidecarTrimDelayMs = None,
    metadata_store: _MetadataStore = None,
    metadata_history_ms: _MetadataHistoryMs = None,
    metadata_header_retention_ms: _MetadataHeaderRetentionMs = None,
    metadata_sweep_interval_ms: _MetadataSweepIntervalMs = None,
) -> None:
    """Run one coordinator until Ctrl-C or SIGTERM.

    Start as many as you like on one cluster, each with its own address. They share the partitions
    of the journal evenly, and each stands by for all others. When one is killed, the others take
    over within a fraction of a second. On SIGTERM a coordinator first gives its partitions to the
    others, so that no transaction is aborted. All state is in the journal, a topic of the cluster:
    a coordinator needs no disk and can be replaced at any time.

    Examples:

    ```
    logtx coordinator --bootstrap-servers localhost:9092
    logtx coordinator --bootstrap-servers kafka-1:9092,kafka-2:9092 \\
        --listen 0.0.0.0:9095 --advertise coordinator-1:9095 \\
        --ssl-certificate-location coordinator-1.pem --ssl-ca-location ca.pem
    logtx coordinator --config /etc/logtx.toml
    ```
    """
    options = dict(locals())
    from ...coordinator.service import run

    name_unused(kafka)
    try:
        run(_config(kafka, options))
    except BrokerError as error:
        if error.args[0].code() in _NO_BROKER:
            raise no_kafka(kafka[BOOTSTRAP], error) from error
        raise


def _config(kafka: Kafka, options: Mapping[str, Any]) -> CoordinatorConfig:
    """Returns what the options say. The config classes have defaults for those not given."""
    from ...coordinator.core.decision import ShardConfig
    from ...coordinator.runtime.housekeeping import HousekeepingConfig
    from ...coordinator.server.retention import RetentionConfig
    from ...coordinator.server.trimming import SidecarConfig
    from ...coordinator.service import CoordinatorConfig
    from ...coordinator.store.opening import MetadataConfig
    from ...journal.tls import PROTOCOL, take_tls, tls_of_options

    def given(*names: str, without: str = "") -> dict[str, Any]:
        return {n.removeprefix(without): v for n in names if (v := options[n]) is not None}

    tls = tls_of_options({n: v for n, v in options.items() if n.startswith("ssl_")})
    if tls is None and take_tls(dict(kafka)) is not None:
        # One file may be for the commands, too. A coordinator that it does not suit answers none.
        raise ConfigError(
            f"{PROTOCOL}=SSL is for this coordinator's clients, and it speaks no TLS: give it"
            " --ssl-certificate-location"
        )
    return CoordinatorConfig(
        bootstrap_servers=kafka[BOOTSTRAP],
        client={name: value for name, value in kafka.items() if name != BOOTSTRAP},
        listen=options["listen"],
        advertised=options["advertise"],
        tls=tls,
        limits=ShardConfig(
            **given(
                "session_grace_ms",
                "max_timeout_ms",
                "max_open_transactions_per_producer",
                "max_open_transactions",
                "max_added_ranges",
                "producer_retention_hours",
                "group_retention_hours",
            )
        ),
        housekeeping=HousekeepingConfig(
            **given("snapshot_interval_records", "outcome_retention_ms")
        ),
        retention=RetentionConfig(
            **given("retention_warn_share", "retention_abort_share", without="retention_")
        ),
        sidecars=SidecarConfig(**given("sidecar_trim_delay_ms", without="sidecar_")),
        metadata=MetadataConfig(
            **given(
                "metadata_store",
                "metadata_history_ms",
                "metadata_header_retention_ms",
                "metadata_sweep_interval_ms",
                without="metadata_",
            )
        ),
        **given("metrics_listen", "journal_partitions", "replication_factor"),
    )
