"""`logtx topics`: how transactions end in a topic's partitions, by markers or by places.

Source: PIP-471, "Configuration" (opt-in per topic).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    RequestTimedOutError,
)
from ...journal.mode_registry import EVERY
from ...journal.mode_rules import ModeRule, check_rule, is_rule, longest
from ...journal.modes import Mode
from ...journal.reader import RESERVED
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
from .text import print_json, print_rows, printable

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries, TopicHome
    from ...coordinator.protocol.commands import TopicModeInfo
    from ...journal.logs.interface import Log

AT_ONCE: Final = 8
"""Topics that are switched at the same time. A switch mostly waits, on Kafka for ten seconds; more
load the home's owner, and the brokers, which each of them asks for offsets again and again."""

_UNFINISHED: Final = (State.COMMITTING, State.ABORTING)
"""States of transactions that are decided, and lack markers or places."""

topics = typer.Typer(
    no_args_is_help=True,
    help="Show how transactions end in topics, by markers or by places, and switch it.",
)

_Topics = Annotated[
    str,
    typer.Argument(
        help="Name of the topic. One that ends in `*` stands for all topics that begin so, also "
        "for those that are created later."
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
        help="With --mode metadata: write no mode records to its partitions, as it takes no writes "
        "any more, or nobody reads it. A switch that waits for them goes on without them.",
    ),
]
_Wait = Annotated[float, typer.Option(min=0.1, help="Seconds to wait until a topic is switched.")]


@topics.command("list")
@with_kafka
def list_topics(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show the topics that were ever switched, each with its mode and its home, and the rules.

    All other topics have markers. The home is the journal partition that alone places there. A rule
    says which mode topics get that are created later. Exit status 3 means that not every journal
    partition answered.

    Examples:

    ```
    logtx topics list --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        found, unreachable = everywhere(admin, admin.switched_topics)
        rules = list(_rules(log).values())
    found.sort(key=lambda topic: topic.info.topic)
    if as_json:
        rows = [_json(topic) for topic in found]
        told = [_rule_json(rule) for rule in rules]
        print_json({"topics": rows, "rules": told, "unreachable": unreachable_json(unreachable)})
    else:
        _print_list(found, rules)
    report(unreachable)


def _rules(log: Log) -> Mapping[str, ModeRule]:
    """Returns the rules; says so if they may not be read, and goes on without them."""
    from ...coordinator.client.rules import PublishedRules

    published = PublishedRules(log)
    found = published.read()
    if published.refusal is not None:
        complain(f"rules for later topics are not shown: {published.refusal}")
    return found


def _print_list(found: Sequence[TopicHome], rules: Sequence[ModeRule]) -> None:
    if found:
        columns = ("topic", "mode", "home", "waiting", "readers are told")
        print_rows(columns, [_row(topic) for topic in found])
    else:
        typer.echo("no topic was switched: all have markers")
    if rules:
        typer.echo("")
        headings = ("rule for later topics", "mode", "transaction group")
        print_rows(headings, [(r.name, r.mode, r.transaction_group or "-") for r in rules])


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
    `since` names the offset of each partition's mode record, from which on it has this mode, and
    `last` the last place in each partition. `rule` is the one that is for a topic of this name.

    Examples:

    ```
    logtx topics describe orders --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        log.partition_count(topic)
        found = _json(admin.describe_topic(topic))
        rule = longest(_rules(log), topic)
        found["rule"] = None if rule is None else rule.name
    if as_json:
        print_json(found)
        return
    for by_partition in ("since", "last"):
        offsets = found[by_partition].items()
        found[by_partition] = ", ".join(f"[{p}] {offset}" for p, offset in offsets)
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

    A name that ends in `*` becomes a rule, too: a topic that is created later, and begins so, is
    switched when a transaction first names it. Of several rules the longest counts; a topic that
    was switched by its name stays as it is. `logtx topics list` shows rules, `remove-rule` removes
    one.

    Examples:

    ```
    logtx topics set-mode orders --mode metadata --transaction-group billing
    logtx topics set-mode archive --mode metadata --transaction-group billing --without-records
    logtx topics set-mode 'orders.*' --mode markers --bootstrap-servers localhost:9092
    ```
    """
    if EVERY in topic:
        check_rule(topic)
    with asking(kafka, timeout) as (log, admin):
        switch = partial(
            admin.set_topic_mode,
            mode=mode,
            transaction_group=transaction_group,
            without_records=without_records,
            timeout_s=wait,
            progress=_print_progress,
        )
        if is_rule(topic):
            # Before it is asked which topics exist: one that is created in between has the rule.
            _set_rule(admin, topic, mode, transaction_group)
        switched, failed = _switch_each(_named(log, topic), switch, admin.close)
        if as_json:
            print_json({"topics": [_json(each) for each in switched]})
        else:
            if is_rule(topic):
                typer.echo(printable(f"{topic}: {mode}, also for topics that are created later"))
            _print_switched(switched)
        # Behind what was printed: who is asked here may be gone, and the topics are switched.
        for name in (each.info.topic for each in switched if without_records):
            for sentence in _waiting_for_markers(admin, name):
                complain(sentence)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _switch_each(
    names: Sequence[str], switch: Callable[[str], TopicHome], give_up: Callable[[], None]
) -> tuple[list[TopicHome], bool]:
    """Switches topics, several at a time. Returns those that are, and whether one is not.

    Args:
        names: the topics.
        switch: switches one; any thread may call it.
        give_up: lets those that are under way fail.

    Raises:
        LogtxError: nobody answers; or there is but one, and it is refused.
    """
    switched: dict[str, TopicHome] = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="switch") as pool:
        running = {pool.submit(switch, name): name for name in names}
        try:
            for done in as_completed(running):
                try:
                    switched[running[done]] = done.result()
                except (CoordinatorNotAvailableError, RequestTimedOutError):
                    raise
                except LogtxError as error:
                    if len(names) == 1:
                        raise
                    complain(f"{running[done]}: {error}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            give_up()
            raise
    return [switched[n] for n in names if n in switched], len(switched) < len(names)


def _waiting_for_markers(admin: AdminQueries, topic: str) -> list[str]:
    """Returns sentences about decided transactions that wait for markers in a topic, if any do."""
    ask = partial(admin.list_transactions, states=_UNFINISHED, topic=topic)
    try:
        found, unreachable = everywhere(admin, ask)
    except LogtxError as error:
        return [f"{topic} is switched, but nobody told what waits for markers there: {error}"]
    sentences = [
        f"{topic}: journal partition {each.partition} did not tell whether its transactions wait"
        f" for markers: {each.error}"
        for each in unreachable
    ]
    if marked := [each for each in found if not each.placing]:
        sentences.append(
            f"{topic}: {len(marked)} transactions are decided and wait for markers, as"
            f" {marked[0].txid}; what was decided behind them waits, too. If the topic is sealed,"
            " let the coordinators alone write to it until `logtx txn list --topic"
            f" {topic}` shows none of them"
        )
    return sentences


def _named(log: Log, topic: str) -> list[str]:
    """Returns the topics that a name stands for.

    Raises:
        UnknownTopicError: there is no such topic; a rule may stand for none.
    """
    if not is_rule(topic):
        log.partition_count(topic)
        return [topic]
    rule = ModeRule(topic, Mode.MARKERS)
    return sorted(t for t in log.topics() if rule.fits(t) and t not in RESERVED)


def _set_rule(admin: AdminQueries, rule: str, mode: Mode, group: str | None) -> None:
    if mode is Mode.METADATA and not group:
        raise ConfigError(
            f"{rule} is for topics that are created later, too: name the transaction group whose"
            " transactions shall be placed there (--transaction-group)"
        )
    admin.set_topic_rule(rule, mode, group or "" if mode is Mode.METADATA else "")


@topics.command("remove-rule")
@with_kafka
def remove_rule(
    rule: Annotated[str, typer.Argument(help="The rule, as `logtx topics list` shows it.")],
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
) -> None:
    """Remove a rule for topics that are created later; those that exist stay as they are.

    Then the next shorter rule that fits counts for them, or none: they have markers. Repeating the
    command does no harm: it says that there is no such rule.

    Examples:

    ```
    logtx topics remove-rule 'orders.*' --bootstrap-servers localhost:9092
    ```
    """
    from ...coordinator.client.rules import PublishedRules

    with asking(kafka, timeout) as (log, admin):
        # What may not be read is removed all the same, and so is what was written just now.
        published = PublishedRules(log)
        is_known = check_rule(rule) in published.read() or published.refusal is not None
        admin.set_topic_rule(rule, None)
    told = "removed" if is_known else "there is no such rule; logtx topics list shows all"
    typer.echo(printable(f"{rule}: {told}"))


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


def _rule_json(rule: ModeRule) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "mode": rule.mode.value,
        "transaction_group": rule.transaction_group or None,
    }


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
        "last": {str(partition): place for partition, place in sorted(info.last.items())},
    }
