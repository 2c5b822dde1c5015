"""`logtx topics`: how transactions end in a topic's partitions, by markers or by places.

Source: PIP-471, "Configuration" (opt-in per topic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...journal.errors import (
    CoordinatorNotAvailableError,
    LogtxError,
    RequestTimedOutError,
    UnknownTopicError,
)
from ...journal.modes import Mode
from ...journal.reader import RESERVED
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
from .text import print_json, print_rows, printable

if TYPE_CHECKING:
    from ...coordinator.client.admin import TopicHome
    from ...coordinator.protocol.commands import TopicModeInfo
    from ...journal.logs.interface import Log

topics = typer.Typer(
    no_args_is_help=True,
    help="Show how transactions end in topics, by markers or by places, and switch it.",
)

_EVERY = "*"
"""Ends a name that stands for all topics that begin so."""

_Topics = Annotated[
    str,
    typer.Argument(
        help="Name of the topic. One that ends in `*` stands for all topics that begin so and "
        "exist now."
    ),
]
_Mode = Annotated[Mode, typer.Option(help="How transactions are to end there.")]
_Group = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The transaction group whose transactions are placed there. A topic is bound to "
        "one once for ever; later it need not be named.",
    ),
]
_WithoutRecords = Annotated[
    bool,
    typer.Option(
        "--without-records",
        help="Write no mode records to its partitions: it takes no writes any more, or nobody "
        "reads it. A switch that waits for them goes on without them.",
    ),
]
_Wait = Annotated[float, typer.Option(min=0.1, help="Seconds to wait until a topic is switched.")]


@topics.command("list")
@with_kafka
def list_topics(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show the topics that were ever switched, each with its mode and its home.

    All other topics have markers. The home is the journal partition that alone places there. Exit
    status 3 means that not every journal partition answered.

    Examples:

    ```
    logtx topics list --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (_, admin):
        found, unreachable = everywhere(admin, admin.switched_topics)
    found.sort(key=lambda topic: topic.info.topic)
    if as_json:
        rows = [_json(topic) for topic in found]
        print_json({"topics": rows, "unreachable": unreachable_json(unreachable)})
    elif found:
        columns = ("topic", "mode", "home", "waiting", "readers are told")
        print_rows(columns, [_row(topic) for topic in found])
    else:
        typer.echo("no topic was switched: all have markers")
    report(unreachable)


@topics.command("describe")
@with_kafka
def describe_topic(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the mode of one topic, its home, its transaction group and what waits there.

    `waiting` counts what is decided and has no place yet, in each partition of a transaction.
    `since` names the offset of each partition's mode record.

    Examples:

    ```
    logtx topics describe orders --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        log.partition_count(topic)
        found = _json(admin.describe_topic(topic))
    if as_json:
        print_json(found)
        return
    found["since"] = ", ".join(f"[{p}] {offset}" for p, offset in found["since"].items())
    for name, value in found.items():
        if value not in (None, ""):
            typer.echo(f"{name}: {printable(str(value))}")


@topics.command("set-mode")
@with_kafka
def set_mode(
    topic: _Topics,
    *,
    kafka: Kafka,
    mode: _Mode,
    transaction_group: _Group = None,
    without_records: _WithoutRecords = False,
    wait: _Wait = 60.0,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Switch a topic from markers to places in the journal (`metadata`), or back.

    Experimental: docs/topics.md says what is not proved yet, and when to choose which mode. First
    upgrade all coordinators, then all clients that read or write the topic: an older reader stops
    there. Readers need the right to read `__transaction_control` and `__transaction_topics`.
    Repeating the command does no harm, and goes on with what is half done. Exit status 1 means that
    a topic is not switched.

    Examples:

    ```
    logtx topics set-mode orders --mode metadata --transaction-group billing
    logtx topics set-mode archive --mode metadata --transaction-group billing --without-records
    logtx topics set-mode 'orders.*' --mode markers --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        switch = partial(
            admin.set_topic_mode,
            mode=mode,
            transaction_group=transaction_group,
            without_records=without_records,
            timeout_s=wait,
            progress=_print_progress,
        )
        switched, failed = _switch_each(_named(log, topic), switch)
    if as_json:
        print_json({"topics": [_json(each) for each in switched]})
    else:
        _print_switched(switched)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _switch_each(
    names: Sequence[str], switch: Callable[[str], TopicHome]
) -> tuple[list[TopicHome], bool]:
    """Switches topics one after another. Returns those that are, and whether one is not.

    Raises:
        LogtxError: nobody answers; or there is but one, and it is refused.
    """
    switched: list[TopicHome] = []
    for name in names:
        try:
            switched.append(switch(name))
        except (CoordinatorNotAvailableError, RequestTimedOutError):
            raise
        except LogtxError as error:
            if len(names) == 1:
                raise
            complain(f"{name}: {error}")
    return switched, len(switched) < len(names)


def _named(log: Log, topic: str) -> list[str]:
    """Returns the topics that a name stands for.

    Raises:
        UnknownTopicError: it stands for none.
    """
    if not topic.endswith(_EVERY):
        log.partition_count(topic)
        return [topic]
    prefix = topic.removesuffix(_EVERY)
    found = sorted(t for t in log.topics() if t.startswith(prefix) and t not in RESERVED)
    # Of names that begin so at most logtx's own and Kafka's are meant by nobody.
    found = [t for t in found if not t.startswith("__") or prefix.startswith("__")]
    if not found:
        raise UnknownTopicError(f"there is no topic whose name begins with {prefix!r}")
    return found


def _print_progress(info: TopicModeInfo) -> None:
    waits = f", {info.waiting} places to wait for" if info.waiting else ""
    typer.echo(printable(f"{info.topic}: {info.phase}{waits}"), err=True)


def _print_switched(switched: Sequence[TopicHome]) -> None:
    for each in switched:
        where = ""
        if each.transaction_group is not None and each.info.phase == Mode.METADATA.value:
            where = (
                f", placed by transaction group {each.transaction_group}"
                f" (journal partition {each.home})"
            )
        typer.echo(printable(f"{each.info.topic}: {each.info.phase}{where}"))


def _row(topic: TopicHome) -> tuple[Any, ...]:
    info = topic.info
    return info.topic, info.phase, topic.home, info.waiting, "yes" if info.published else "no"


def _json(topic: TopicHome) -> dict[str, Any]:
    info = topic.info
    return {
        "topic": info.topic,
        "topic_id": info.topic_id,
        "mode": info.phase.value,
        "home": topic.home,
        "transaction_group": topic.transaction_group,
        "mode_offset": info.mode_offset if info.mode_offset >= 0 else None,
        "published": info.published,
        "waiting": info.waiting,
        "since": {str(partition): offset for partition, offset in sorted(info.since.items())},
    }
