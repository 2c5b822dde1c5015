"""`logtx metadata` and `logtx txn show`: what coordinators' metadata stores know."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...journal.errors import (
    UnknownTransactionError,
)
from .asking import AsJson, Timeout
from .connection import Kafka, with_kafka
from .stored import header_json, open_client, operation_json, watch_transactions
from .text import parse_txid, print_json, print_rows, printable, show_time

if TYPE_CHECKING:
    from ...coordinator.protocol.metadata import Operation

EXIT_WRONG: Final = 1
"""Exit status: the store is not what the journal says."""

metadata = typer.Typer(
    no_args_is_help=True,
    help="Ask the metadata store, and compare it with the journal. "
    "It is there if a coordinator was started with --metadata-store.",
)


@metadata.command()
@with_kafka
def status(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show how far a coordinator's metadata store has the journal, and what it deleted.

    Examples:

    ```
    logtx metadata status --bootstrap-servers localhost:9092
    ```
    """
    with open_client(kafka, timeout) as (_, client):
        found = client.status()
    if as_json:
        print_json(asdict(found))
        return
    place = "one for all coordinators" if found.shared else "of one coordinator"
    typer.echo(f"{found.back_end}, {place}: {found.operations} operations")
    swept = show_time(found.swept_ms) if found.swept_ms else "not yet"
    typer.echo(
        f"swept: {swept}; {found.swept_operations} operations and {found.swept_headers} headers"
        " deleted since the start"
    )
    if found.problem:
        typer.secho(printable(found.problem), fg="red")
    columns = ("journal partition", "next record", "records behind", "problem")
    rows = [
        (p.partition, max(p.next_offset, 0), p.lag_records, p.problem) for p in found.partitions
    ]
    print_rows(columns, rows)


@metadata.command()
@with_kafka
def horizon(
    topic: Annotated[str, typer.Argument(help="The data topic.")],
    partition: Annotated[
        int | None, typer.Argument(min=0, help="One of its partitions. Without it: all.")
    ] = None,
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show up to where the partitions of a topic are settled, for readers that are not logtx's.

    Every record up to the position shown belongs to no transaction that is open and named the
    partition. A transaction names its partitions 50 ms after its first record, or when it begins.
    Where one did not tell at which offset it began, the position may be too high; it is then shown
    as not exact.

    Examples:

    ```
    logtx metadata horizon orders --bootstrap-servers localhost:9092
    logtx metadata horizon orders 3 --json --bootstrap-servers localhost:9092
    ```
    """
    with open_client(kafka, timeout) as (log, client):
        count = log.partition_count(topic)
        asked = range(count) if partition is None else [partition]
        found = {number: client.horizon(topic, number) for number in asked}
    if as_json:
        print_json([{"partition": n, **asdict(each)} for n, each in found.items()])
        return
    columns = ("partition", "max read position", "end offset", "undecided", "exact")
    print_rows(
        columns,
        [
            (n, h.max_read_position, h.end_offset, h.undecided, "yes" if h.exact else "no")
            for n, h in found.items()
        ],
    )


@metadata.command()
@with_kafka
def check(*, kafka: Kafka, timeout: Timeout = 30.0, as_json: AsJson = False) -> None:
    """Compare the metadata store with the journal, record by record.

    Reads all of the journal, and asks for each transaction that it knows. What differs is asked for
    again when the journal has moved on. Exit status 1 means that the store is wrong: stop the
    coordinator, delete the store's directory, and start it again; it is made again from the
    journal.

    Examples:

    ```
    logtx metadata check --bootstrap-servers localhost:9092
    ```
    """
    from ..inspect.metadata import compare

    with open_client(kafka, timeout) as (log, client):
        result = compare(log, client)
    if as_json:
        print_json(
            {
                "transactions": result.transactions,
                "swept": result.swept,
                "wrong": [{"txid": str(t), "why": why} for t, why in result.wrong.items()],
            }
        )
    else:
        typer.echo(
            f"{result.transactions} transactions in the journal, {result.swept} of them not kept"
            " any more"
        )
        for txid, why in result.wrong.items():
            typer.secho(f"{txid}: {printable(why)}", fg="red")
        if not result.wrong:
            typer.echo("the store is what the journal says")
    if result.wrong:
        raise typer.Exit(EXIT_WRONG)


@with_kafka
def show_transaction(
    txid: Annotated[str, typer.Argument(metavar="TXID", help="A TxId, as 3-9f3ac1d2e4b7-17042.")],
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show a transaction with its operations, also when it is finished.

    Needs a coordinator with a metadata store (`logtx coordinator --metadata-store`). Writes that
    ended by a marker are shown until the transaction is finished, those that were placed for as
    long as their data is there.

    Examples:

    ```
    logtx txn show 3-9f3ac1d2e4b7-17042 --bootstrap-servers localhost:9092
    ```
    """
    asked = parse_txid(txid)
    with open_client(kafka, timeout) as (_, client):
        header = client.header(asked)
        operations = client.operations(asked)
    if header is None:
        raise UnknownTransactionError(
            f"the metadata store does not know {asked}: it was never begun, or is not kept any"
            " more; logtx txn describe asks the journal for its outcome"
        )
    described = header_json(header)
    if as_json:
        rows = [operation_json(operation) for operation in operations]
        print_json({**described, "operations": rows})
        return
    for name, value in described.items():
        typer.echo(f"{name:<16} {'' if value is None else printable(str(value))}")
    columns = ("kind", "topic", "partition", "from", "to", "records", "place", "consumer group")
    print_rows(columns, [_operation_row(operation) for operation in operations])


def add_commands(txn: typer.Typer) -> None:
    """Adds the commands of `logtx txn` that ask the metadata store."""
    txn.command("show")(show_transaction)
    txn.command("watch")(watch_transactions)


def _operation_row(operation: Operation) -> tuple[Any, ...]:
    name, where = operation.kind.name.lower(), (operation.topic, operation.partition)
    if operation.to is not None:
        start = None if operation.from_place is None else operation.from_place.o2
        return (name, *where, start, operation.to.o2, None, None, operation.subscription)
    known = [None if o < 0 else o for o in (operation.first_offset, operation.last_offset)]
    ends = operation.place if operation.placed else "by a marker"
    return (name, *where, *known, operation.count or None, ends if operation.count else None, None)
