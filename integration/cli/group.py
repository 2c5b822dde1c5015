"""`logtx group`: the committed offsets of consumer groups, and what operators do with them.

`list`, `show` and `history` read only the log; the others ask coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .asking import AsJson, Timeout
from .cluster import absence_told, open_cluster
from .connection import Kafka, with_kafka
from .text import parse_time_ms, print_json, print_rows, printable, show_time

if TYPE_CHECKING:
    from ..groups import Groups, Reset
    from ..inspect.rows import IovRow

group = typer.Typer(
    no_args_is_help=True,
    help="Show committed offsets of consumer groups, set them back, delete them.",
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")
]


@contextmanager
def _groups(kafka: Kafka, timeout_s: float) -> Iterator[Groups]:
    from ..groups import Groups

    with (
        open_cluster(kafka) as log,
        closing(Groups(log, kafka, timeout_s=timeout_s)) as groups,
        absence_told(kafka),
    ):
        yield groups


@group.command("list")
@with_kafka
def list_groups(*, kafka: Kafka, as_json: AsJson = False) -> None:
    """Show all consumer groups whose offsets transactions commit, and how far they are behind.

    A streaming query counts its micro-batches in a group `spark-<query id>`, and an application
    with `txnAppId` its writes in `spark-app-<txnAppId>`. These have no lag.

    Examples:

    ```
    logtx group list --bootstrap-servers localhost:9092
    ```
    """
    from ..inspect.committed_offsets import iov_rows

    with open_cluster(kafka) as log:
        rows = iov_rows(log)
    found = [_summary(name, list(of)) for name, of in groupby(rows, key=lambda row: row.group)]
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("no group")
        return
    columns = ("group", "partitions", "lag", "txid", "commit_sequence", "committed")
    shown = [{**each, "committed_ms": show_time(each["committed_ms"])} for each in found]
    print_rows(columns, [tuple(each.values()) for each in shown])


def _summary(name: str, rows: list[IovRow]) -> dict[str, Any]:
    lags = [row.lag for row in rows if row.lag is not None]
    last = rows[0]
    return {
        "group": name,
        "partitions": len(rows),
        "lag": sum(lags) if lags else None,
        "txid": last.txid,
        "commit_sequence": last.commit_sequence,
        "committed_ms": last.committed_ms,
    }


@group.command("show")
@with_kafka
def show_group(
    name: Name,
    *,
    kafka: Kafka,
    topic: Topics = None,
    offsets: Annotated[
        bool,
        typer.Option(
            "--offsets",
            help="Print only the offsets, as JSON that Spark's startingOffsets and `logtx group "
            "reset --to-offsets` take.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a group's committed offset in each partition, beside the partition's end.

    Whoever goes on for the group begins at `offset`, or at the start of a partition that has none.
    With --topic it shows topics too in which the group has no offsets yet.

    Examples:

    ```
    logtx group show ledger --bootstrap-servers localhost:9092
    logtx group show ledger --offsets --bootstrap-servers localhost:9092 > ledger.json
    ```
    """
    from ..groups import require_group, starting_offsets
    from ..inspect.committed_offsets import iov_rows, place_rows
    from ..inspect.rows import PlaceRow

    with open_cluster(kafka) as log:
        if offsets:
            typer.echo(starting_offsets(log, name, topic))
            return
        rows = iov_rows(log, name)
        if not rows:
            require_group(log, name)
        places = place_rows(log, rows, topic or ())
    if as_json:
        print_json({**_summary(name, rows), "partitions": [row._asdict() for row in places]})
        return
    print_rows(PlaceRow._fields, places)
    typer.echo(f"last commit: {rows[0].txid}, {show_time(rows[0].committed_ms) or 'long ago'}")


@group.command("history")
@with_kafka
def show_history(name: Name, *, kafka: Kafka, as_json: AsJson = False) -> None:
    """Show every committed step of a group, as far as the journal goes back.

    Examples:

    ```
    logtx group history ledger --bootstrap-servers localhost:9092
    ```
    """
    from ..groups import require_group
    from ..inspect.committed_offsets import step_rows
    from ..inspect.rows import StepRow

    with open_cluster(kafka) as log:
        rows = list(step_rows(log, name))
        if not rows:
            require_group(log, name)
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    columns = [field.removesuffix("_ms") for field in StepRow._fields[1:]]
    at = StepRow._fields.index("committed_ms")
    print_rows(columns, [(*r[1:at], show_time(r.committed_ms), *r[at + 1 :]) for r in rows])


@group.command("reset")
@with_kafka
def reset_group(
    name: Name,
    *,
    kafka: Kafka,
    to_offsets: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSETS",
            help='earliest, latest, or JSON as {"flights": {"0": 23, "1": -2}}, where -2 is '
            "the start and -1 the end. Partitions that it does not name stay.",
        ),
    ] = None,
    to_commit: Annotated[
        str | None,
        typer.Option(
            metavar="TXID|SEQUENCE", help="Where the group stood right after this commit of its."
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Where the group stood then, as 2026-11-23T12:00Z."),
    ] = None,
    topic: Topics = None,
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            help="Refuse offsets that the topic does not have any more. Otherwise such a partition "
            "begins at its start."
        ),
    ] = True,
    create_in: Annotated[
        str | None,
        typer.Option(
            metavar="TRANSACTION_GROUP",
            help="Set the offsets of a new group, which commits in this transaction group.",
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this, only show what it would do.")
    ] = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Set a group's committed offsets back, or forth: show what that does, or do it.

    Stop the group's consumers and queries first. Setting offsets is one transaction: all of it is
    done, or nothing, and nothing if somebody commits offsets of the group meanwhile. What was
    written for input behind the new offsets stays, and is written again.

    A streaming query keeps its own place in its checkpoint. Start it with a new checkpointLocation,
    or it fails with OffsetsConflictError.

    Examples:

    ```
    logtx group reset ledger --as-of 2026-11-23T12:00Z --bootstrap-servers localhost:9092
    logtx group reset ledger --to-commit 3-9f3ac1d2e4b7-17042 --execute \\
        --bootstrap-servers localhost:9092
    logtx group reset ledger --to-offsets '{"flights": {"0": 23}}' --execute \\
        --bootstrap-servers localhost:9092
    ```
    """
    if sum(given is not None for given in (to_offsets, to_commit, as_of)) != 1:
        raise typer.BadParameter("give one of --to-offsets, --to-commit and --as-of")
    as_of_ms = None if as_of is None else parse_time_ms(as_of)
    with _groups(kafka, timeout) as groups:
        done = groups.reset(
            name,
            to_offsets=to_offsets,
            to_commit=to_commit,
            as_of_ms=as_of_ms,
            topics=topic or (),
            fail_on_data_loss=fail_on_data_loss,
            create_in=create_in,
            execute=execute,
        )
    if as_json:
        fields = {field: getattr(done, field) for field in done.__dataclass_fields__}
        print_json({**fields, "moved": [moved._asdict() for moved in done.moved]})
    else:
        _print_reset(done)


def _print_reset(done: Reset) -> None:
    from ..groups import Moved

    print_rows(Moved._fields, done.moved)
    if done.last_commit is not None:
        by = printable(done.last_producer or "a producer that the journal has forgotten")
        typer.echo(f"the last commit was {done.last_commit} by {by}: make sure it has stopped")
    if done.txid is not None:
        typer.echo(f"group {done.group} was set by {done.txid}")
    elif done.steps:
        typer.echo(f"{done.steps} partitions would be set. Nothing was changed: add --execute")
    else:
        typer.echo(f"group {done.group} stands there already")


@group.command("delete")
@with_kafka
def delete_group(
    name: Name, *, kafka: Kafka, topic: Topics = None, timeout: Timeout = 30.0
) -> None:
    """Delete a group's offsets and binding, or with --topic its offsets in these topics.

    Stop its consumers and queries first. Whoever uses the name later begins as a new group. What
    an application or query wrote under an identity (`spark-…`) may then be written again.

    Examples:

    ```
    logtx group delete ledger --bootstrap-servers localhost:9092
    logtx group delete ledger --topic flights-2025 --bootstrap-servers localhost:9092
    ```
    """
    with _groups(kafka, timeout) as groups:
        groups.delete(name, topic or ())
    typer.echo(f"{name}: deleted{' in ' + ', '.join(topic) if topic else ''}")


@group.command("unbind")
@with_kafka
def unbind_group(name: Name, *, kafka: Kafka, timeout: Timeout = 30.0) -> None:
    """End the binding of a group without offsets to a transaction group.

    The first producer that commits offsets for a group binds it. If it was the wrong one, this
    undoes it. A group that has offsets is refused.

    Examples:

    ```
    logtx group unbind ledger --bootstrap-servers localhost:9092
    ```
    """
    with _groups(kafka, timeout) as groups:
        bound = groups.unbind(name)
    typer.echo(f"{name}: no longer bound to transaction group {bound}")
