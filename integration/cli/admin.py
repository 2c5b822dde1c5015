"""`logtx txn` and `logtx keys`: show and end transactions and keys of all journal partitions.

Source: Transaction keys, "CLI Commands".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ...journal.errors import (
    CoordinatorNotAvailableError,
    LogtxError,
    RequestTimedOutError,
    UnknownTransactionError,
)
from ...journal.keys import DEFAULT_OWNER, TransactionKey
from ...journal.state import State
from .asking import (
    EXIT_FAILED,
    AsJson,
    Timeout,
    asking,
    complain,
    everywhere,
    report,
    unreachable_json,
)
from .connection import Kafka, with_kafka
from .stored import LISTED_MAX, Wanted, list_stored
from .text import parse_age_ms, parse_txid, print_json, printable

if TYPE_CHECKING:
    from ...coordinator.protocol.commands import KeyInfo, TransactionInfo

_INSTANTS: Final = ("started_ms", "connected_ms")
"""Fields in milliseconds since 1970; all other fields in milliseconds are durations."""
_CELL_LINES_MAX: Final = 3
"""Most lines that a table shows of a transaction's partitions; `describe` and `--json` show all."""


class Listed(StrEnum):
    """The states that `logtx txn list` can filter by; the last two with `--finished` alone."""

    OPEN = State.OPEN.value
    COMMITTING = State.COMMITTING.value
    ABORTING = State.ABORTING.value
    COMMITTED = State.COMMITTED.value
    ABORTED = State.ABORTED.value


txn = typer.Typer(no_args_is_help=True, help="Show transactions, and abort those that are open.")
keys = typer.Typer(no_args_is_help=True, help="Show transaction keys, and delete them.")

Owner = Annotated[
    str, typer.Option(help="Owner of the key. Without authentication, all keys have one owner.")
]


def show_age(age_ms: int) -> str:
    """Formats an age for people with at most two units: "2h 5m"."""
    seconds = age_ms // 1_000
    if seconds < 1:
        return f"{age_ms}ms"
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts)


# ---- transactions -------------------------------------------------------------------------------


@txn.command("list")
@with_kafka
def list_transactions(
    *,
    kafka: Kafka,
    state: Annotated[
        list[Listed] | None,
        typer.Option(help="Only transactions in this state; may be repeated."),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only transactions that began at least this long ago: 90s, 5m, 2h."
        ),
    ] = "0s",
    producer: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Only transactions of this transactional.id, or name of a key."
        ),
    ] = "",
    topic: Annotated[
        str,
        typer.Option(
            help="Only transactions known to write to this topic: producers register the "
            "partitions of transactions that stay open."
        ),
    ] = "",
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Only those that write to this partition of the topic [store]."),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            help="Only those that move the offsets of this consumer group in the topic [store]."
        ),
    ] = "",
    finished: Annotated[
        bool, typer.Option("--finished", help="Finished transactions too [store].")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only those that are open, or were decided since: 90s, 5m [store]."
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, help="Most transactions, the youngest [store].")
    ] = LISTED_MAX,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the transactions that are not finished, oldest first.

    Use it to find transactions that hang. One that stays committing or aborting waits for a data
    partition that can't take its marker; one that is placing waits for the end of a partition of a
    topic in metadata mode. Exit status 3 means that not every journal partition answered.

    With an option marked [store], a coordinator's metadata store is asked (`logtx coordinator
    --metadata-store`), which has finished transactions too. What it has of the writes to a topic
    with markers goes when their transaction is finished; with `metadata`, it stays while the data
    is there.

    Examples:

    ```
    logtx txn list --bootstrap-servers localhost:9092
    logtx txn list --bootstrap-servers localhost:9092 --state open --older-than 5m
    logtx txn list --bootstrap-servers localhost:9092 --topic orders --json
    logtx txn list --bootstrap-servers localhost:9092 --finished --since 1h --state aborted
    logtx txn list --bootstrap-servers localhost:9092 --topic orders --partition 3 --finished
    ```
    """
    age_min_ms = parse_age_ms(older_than)
    if finished or since or group or partition is not None:
        now_ms = time.time_ns() // 1_000_000
        wanted = Wanted(
            topic=topic,
            partition=partition,
            group=group,
            finished=finished,
            since_ms=now_ms - parse_age_ms(since) if since else 0,
            states=[each.value for each in state or ()],
            begun_before_ms=now_ms - age_min_ms if age_min_ms else None,
            producer=producer,
            limit=limit,
        )
        list_stored(kafka, timeout, wanted, as_json=as_json)
        return
    with asking(kafka, timeout) as (_, admin):
        found, unreachable = everywhere(
            admin,
            lambda partition: admin.list_transactions(
                partition,
                states=tuple(State(each.value) for each in state or ()),
                age_min_ms=age_min_ms,
                producer_id=producer,
                topic=topic,
            ),
        )
    found.sort(key=lambda t: (t.started_ms, t.txid))
    if as_json:
        rows = [_transaction_json(t) for t in found]
        print_json({"transactions": rows, "unreachable": unreachable_json(unreachable)})
    else:
        _print_transactions(found)
    report(unreachable)


@txn.command("describe")
@with_kafka
def describe_transaction(
    txid: Annotated[str, typer.Argument(metavar="TXID", help="A TxId, as 3-9f3ac1d2e4b7-17042.")],
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show everything known of one transaction, or only its outcome once it is finished.

    Examples:

    ```
    logtx txn describe 3-9f3ac1d2e4b7-17042 --bootstrap-servers localhost:9092
    ```
    """
    asked = parse_txid(txid)
    with asking(kafka, timeout) as (_, admin):
        info = admin.describe(asked)
        outcome = admin.outcome(asked)
    if info is None and outcome.state is State.UNKNOWN:
        raise UnknownTransactionError(
            f"no transaction {asked} is known: never begun, or past the outcome retention"
        )
    described: dict[str, Any] = {"txid": str(asked)}
    if info is not None:
        described.update(_transaction_json(info))
    # The outcome was asked for last, so its state is the newer one.
    described.update(state=outcome.state.value, commit_sequence=outcome.commit_sequence)
    if as_json:
        print_json(described)
    else:
        _print_described(described)


@txn.command("abort")
@with_kafka
def abort_transactions(
    txids: Annotated[list[str], typer.Argument(metavar="TXID...", help="One or several TxIds.")],
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
) -> None:
    """Abort open transactions of any producer. Repeating it does no harm.

    Their producers are told, and their calls raise TransactionAbortedError from then on. A
    committed transaction stays committed; the command reports it and ends with exit status 1.

    Examples:

    ```
    logtx txn abort 3-9f3ac1d2e4b7-17042 --bootstrap-servers localhost:9092
    ```
    """
    asked = [parse_txid(text) for text in txids]
    failed = False
    with asking(kafka, timeout) as (_, admin):
        for each in asked:
            try:
                outcome = admin.abort(each)
            except (CoordinatorNotAvailableError, RequestTimedOutError):
                raise
            except LogtxError as error:
                failed = True
                complain(f"{each}: {error}")
            else:
                typer.echo(f"{each}: {outcome.state}")
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _transaction_json(info: TransactionInfo) -> dict[str, Any]:
    return {
        "txid": str(info.txid),
        "state": info.state.value,
        "reason": info.reason.value if info.reason else None,
        "age_ms": info.age_ms,
        "started_ms": info.started_ms,
        "timeout_ms": info.timeout_ms,
        "producer": info.producer_id,
        "generation": info.generation,
        "partitions": [f"{topic}[{partition}]" for topic, partition in info.partitions],
        "groups": list(info.groups),
        "placing": info.placing,
    }


def _print_transactions(found: Sequence[TransactionInfo]) -> None:
    table = _table("TxId", "state", "age", "timeout", "producer", "partitions")
    for info in found:
        why = "placing" if info.placing else info.reason
        state = f"{info.state}: {why}" if why else str(info.state)
        named = [printable(f"{topic}[{partition}]") for topic, partition in info.partitions]
        if len(named) > _CELL_LINES_MAX:
            named = [*named[: _CELL_LINES_MAX - 1], f"and {len(named) - _CELL_LINES_MAX + 1} more"]
        age, limit = show_age(info.age_ms), show_age(info.timeout_ms)
        producer = printable(info.producer_id)
        table.add_row(str(info.txid), state, age, limit, producer, "\n".join(named))
    _print_table(table, "no transaction")


def _print_described(described: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for name, value in described.items():
        match value:
            case None | [] | False:
                continue
            case list():
                shown = "\n  ".join(map(printable, value))
            case int() if name in _INSTANTS:
                shown = datetime.fromtimestamp(value / 1000).astimezone().isoformat(" ", "seconds")
            case int() if name.endswith("_ms"):
                shown = show_age(value)
            case _:
                shown = printable(str(value))
        console.print(f"{name.removesuffix('_ms')}: {shown}", markup=False, soft_wrap=True)


# ---- transaction keys ---------------------------------------------------------------------------


@keys.command("list")
@with_kafka
def list_keys(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show all transaction keys, with their epoch, age and unfinished transactions.

    The age counts from the connection that began the epoch. Exit status 3 means that not every
    journal partition answered.

    Examples:

    ```
    logtx keys list --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (_, admin):
        found, unreachable = everywhere(admin, admin.list_keys)
    found.sort(key=lambda k: k.name)
    if as_json:
        rows = [_key_json(k) for k in found]
        print_json({"keys": rows, "unreachable": unreachable_json(unreachable)})
    else:
        table = _table("owner", "key", "epoch", "age", "transactions")
        for info in found:
            key = TransactionKey.parse(info.name)
            shown = "\n".join(map(str, info.transactions))
            owner, name = printable(key.owner), printable(key.key)
            table.add_row(owner, name, str(info.epoch), _key_age(info), shown)
        _print_table(table, "no transaction key")
    report(unreachable)


@keys.command("get")
@with_kafka
def get_key(
    key: Annotated[str, typer.Argument(help="The key, as in the producer's transaction.key.")],
    *,
    kafka: Kafka,
    owner: Owner = DEFAULT_OWNER,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show one transaction key, with its epoch, age and unfinished transactions.

    Examples:

    ```
    logtx keys get nightly-import --bootstrap-servers localhost:9092
    ```
    """
    name = TransactionKey(owner, key).name
    with asking(kafka, timeout) as (_, admin):
        info = admin.get_key(name)
    if as_json:
        print_json(_key_json(info))
    else:
        _print_described(_key_json(info))


@keys.command("delete")
@with_kafka
def delete_key(
    key: Annotated[str, typer.Argument(help="The key, as in the producer's transaction.key.")],
    *,
    kafka: Kafka,
    owner: Owner = DEFAULT_OWNER,
    timeout: Timeout = 10.0,
) -> None:
    """Delete a transaction key, close its connection and abort its open transaction.

    The epochs of the key are not used again: a client that connects with the key later gets a
    higher one, so no client of the deleted key can come back as the newer one. Repeating the
    command does no harm.

    Examples:

    ```
    logtx keys delete nightly-import --bootstrap-servers localhost:9092
    ```
    """
    name = TransactionKey(owner, key).name
    with asking(kafka, timeout) as (_, admin):
        admin.delete_key(name)
    typer.echo(f"{key}: deleted")


def _key_json(info: KeyInfo) -> dict[str, Any]:
    key = TransactionKey.parse(info.name)
    return {
        "owner": key.owner,
        "key": key.key,
        "epoch": info.epoch,
        "connected_ms": info.connected_ms or None,
        "age_ms": info.age_ms if info.connected_ms else None,
        "transactions": [str(txid) for txid in info.transactions],
    }


def _key_age(info: KeyInfo) -> str:
    return show_age(info.age_ms) if info.connected_ms else "?"


# ---- tables -------------------------------------------------------------------------------------


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("TxId", "transactions"))
    return table


def _print_table(table: Table, nothing: str) -> None:
    console = Console(highlight=False, markup=False)
    if table.row_count:
        console.print(table)
    else:
        console.print(nothing, style="dim")
