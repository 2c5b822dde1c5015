"""`logtx subscription`: what became of the messages of queues, and what operators do about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from .asking import AsJson, Timeout, asking, everywhere, report, unreachable_json
from .connection import Kafka, with_kafka
from .subscription_parts import Name, bound_text, look, old_build_told
from .subscription_peek import peek_messages
from .subscription_reset import delete_subscription, reset_subscription
from .subscription_skip import skip_messages
from .text import print_json, print_rows, printable, show_time

if TYPE_CHECKING:
    from ...coordinator.protocol.queues import SubscriptionInfo
    from ..inspect.subscriptions import PartitionRow, SubscriptionRow

subscription = typer.Typer(
    no_args_is_help=True,
    help="Show what became of the messages of queues, pass over some, and let queues begin anew.",
)
for _name, _command in (
    ("peek", peek_messages),
    ("skip", skip_messages),
    ("reset", reset_subscription),
    ("delete", delete_subscription),
):
    subscription.command(_name)(with_kafka(_command))


@subscription.command("list")
@with_kafka
def list_subscriptions(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show all subscriptions, and how much each has to work off.

    `depth` is the number of offsets that are not acknowledged, with those of markers and of aborted
    records between them. `oldest` is when the first record among them was written: empty if there
    is none, or if no broker tells in time. Exit status 3 means that not every journal partition
    answered.

    Examples:

    ```
    logtx subscription list --bootstrap-servers localhost:9092
    ```
    """
    from ..inspect.subscriptions import subscription_rows

    with asking(kafka, timeout) as (log, admin):

        def ask(partition: int) -> list[tuple[str | None, SubscriptionInfo]]:
            with old_build_told("tells nothing of subscriptions"):
                found = list(admin.subscriptions(partition))
            return [(admin.bound(info.group).transaction_group, info) for info in found]

        answers, unreachable = everywhere(admin, ask)
        rows = subscription_rows(log, answers, timeout_s=timeout)
    if as_json:
        found = [_summary_json(row) for row in rows]
        print_json({"subscriptions": found, "unreachable": unreachable_json(unreachable)})
    elif rows:
        columns = (
            *("subscription", "transaction group", "kind", "topics", "consumers", "depth"),
            "oldest",
        )
        print_rows(columns, [_summary(row) for row in rows])
    else:
        typer.echo("no subscription")
    report(unreachable)


@subscription.command("show")
@with_kafka
def show_subscription(
    name: Name, *, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Show each partition of a subscription, its consumers, and the transactions that acknowledge.

    All before `deleted to` is acknowledged. `pending` is what transactions acknowledge that are not
    finished, `leased` what consumers work on; both are part of the `depth`. `age` is that of the
    first record that is not acknowledged. If `starts at`, where the topic's log starts, lies above
    `deleted to`, then retention has taken messages that nobody worked off.

    What was given out again, and rejected, is counted since the coordinator took over.

    Examples:

    ```
    logtx subscription show invoicing --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        row = look(log, admin, name, timeout)
    if as_json:
        print_json(_json(row))
        return
    info = row.info
    typer.echo(
        printable(
            f"{info.group}: {info.kind.value}, transaction group {row.transaction_group}, given out"
            f" again {info.redelivered}, rejected {info.rejected}"
        )
    )
    columns = (
        *("topic", "partition", "starts at", "ends at", "deleted to", "pending", "leased"),
        *("depth", "age"),
    )
    print_rows(columns, [_partition(each) for each in row.partitions])
    if info.consumers:
        print_rows(
            ("consumer", "topics", "leased", "state"),
            [
                (f"{c.consumer:016x}", ", ".join(c.topics), c.leased, _state(gone=c.gone))
                for c in info.consumers
            ],
        )
    else:
        typer.echo("no consumer is attached")
    for txid in dict.fromkeys(txid for part in info.partitions for txid in part.txids):
        typer.echo(printable(f"transaction {txid} acknowledges some (logtx txn describe {txid})"))


# ---- what is shown ------------------------------------------------------------------------------


def _state(*, gone: bool) -> str:
    return "gone" if gone else "attached"


def _summary(row: SubscriptionRow) -> tuple[Any, ...]:
    return (
        row.info.group,
        row.transaction_group,
        row.info.kind.value,
        ", ".join(row.topics),
        len(row.info.consumers),
        row.depth,
        show_time(row.oldest_ms),
    )


def _summary_json(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "subscription": row.info.group,
        "transaction_group": row.transaction_group,
        "kind": row.info.kind.value,
        "topics": row.topics,
        "consumers": len(row.info.consumers),
        "depth": row.depth,
        "oldest_ms": row.oldest_ms,
    }


def _partition(row: PartitionRow) -> tuple[Any, ...]:
    info = row.info
    return (
        info.partition.topic,
        info.partition.partition,
        row.log_start,
        "topic is no more" if info.former else row.end,
        bound_text(info.start),
        info.pending,
        info.leased,
        row.depth,
        None if row.oldest_ms is None else f"{_age_s(row.oldest_ms):.0f} s",
    )


def _age_s(written_ms: int) -> float:
    return max(0.0, time.time() - written_ms / 1000)


def _json(row: SubscriptionRow) -> dict[str, Any]:
    return {
        **_summary_json(row),
        "consumers": [
            {
                "consumer": f"{each.consumer:016x}",
                "topics": list(each.topics),
                "leased": each.leased,
                "gone": each.gone,
            }
            for each in row.info.consumers
        ],
        "redelivered": row.info.redelivered,
        "rejected": row.info.rejected,
        "era": row.info.era,
        "partitions": [
            {
                "topic": each.info.partition.topic,
                "partition": each.info.partition.partition,
                "topic_id": each.info.partition.topic_id,
                "former": each.info.former,
                "start": each.log_start,
                "end": each.end,
                "deleted_to": list(each.info.start),
                "pending": each.info.pending,
                "leased": each.info.leased,
                "depth": each.depth,
                "oldest_ms": each.oldest_ms,
                "transactions": [str(txid) for txid in each.info.txids],
            }
            for each in row.partitions
        ],
    }
