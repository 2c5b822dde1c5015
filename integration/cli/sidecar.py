"""`logtx sidecar`: what sidecars hold, why, and how to be rid of it.

The coordinators trim sidecars by themselves. These commands look at what they look at, and decide
by the same core; the owners of the journal tell what is undecided, and what pointers need.

Source: PIP-31, "Retention Cursor".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...journal.errors import TransactionStateError, UnknownTopicError
from ...journal.sidecar import is_sidecar, main_of, sidecar_of
from ...journal.txid import TxId
from .asking import AsJson, Timeout, asking, complain, everywhere, report, unreachable_json
from .cluster import open_cluster
from .connection import Kafka, with_kafka
from .text import print_json, print_rows, printable

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.core.trimming import Bound, JournalView
    from ...coordinator.protocol.commands import SidecarNeeds
    from ...coordinator.server.compacting import Planned
    from ...coordinator.server.trimming import Seen
    from ...journal.control import TopicPartition
    from ...journal.logs.interface import Log
    from ...journal.records.types import PointerStep

LOOK_S: Final = 0.2
"""Pause between two questions whether all that was begun is decided; a shorter one asks more."""

sidecar = typer.Typer(
    no_args_is_help=True,
    help="Show what the sidecars of topics hold, and trim or compact one.",
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition of a sidecar, and what holds it."""

    key: TopicPartition
    seen: Seen
    step: PointerStep | None
    """The lowest that pointers of all journal partitions need."""
    journal: int | None
    """The journal partition of that one."""


@sidecar.command("list")
@with_kafka
def list_sidecars(
    topic: Annotated[
        str | None, typer.Argument(help="A topic, or its sidecar. Without it: all.")
    ] = None,
    *,
    kafka: Kafka,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the sidecars, what each partition holds, and what holds that.

    `needed from` is the lowest offset in the sidecar that a pointer names which is still in the
    topic, or will be written. `pointer` is where that one lies, or a later one; one that will be
    written comes there or behind. Without any, all that lies there now is trimmed an hour after
    what is open now is committed or aborted (`logtx coordinator --sidecar-trim-delay-ms`). Below
    are the oldest open transactions: trimming waits until they are decided, whatever they write
    to. Exit status 3 means that not every journal partition answered.

    Examples:

    ```
    logtx sidecar list --bootstrap-servers localhost:9092
    logtx sidecar list orders --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        seen = _look(log, topic)
        starts = {key: each.noted.main_start for key, each in seen.items()}

        def ask(partition: int) -> list[tuple[int, SidecarNeeds]]:
            return [(partition, admin.describe_sidecars(partition, starts))]

        answers, unreachable = everywhere(admin, ask)
    needs = dict(answers)
    rows, undecided = list(_rows(seen, needs)), list(_undecided(needs))
    if as_json:
        print_json(
            {
                "sidecars": [_json(row) for row in rows],
                "undecided": [str(txid) for txid in undecided],
                "unreachable": unreachable_json(unreachable),
            }
        )
    else:
        _print(rows, undecided)
    report(unreachable)


@sidecar.command("trim")
@with_kafka
def trim_sidecar(
    topic: Annotated[str, typer.Argument(help="The topic, or its sidecar.")],
    *,
    kafka: Kafka,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be trimmed.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds to wait until what is open now is decided."),
    ] = 60.0,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Delete the records of a sidecar that no pointer needs any more, at once.

    The coordinators do it by themselves, an hour later (`--sidecar-trim-delay-ms`). Without that
    delay a reader that is in the middle of a pointer which retention has taken does not come to its
    end. All that is open now must be committed or aborted first, whatever it writes to: the command
    waits for it.

    Examples:

    ```
    logtx sidecar trim orders --dry-run --bootstrap-servers localhost:9092
    logtx sidecar trim orders --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        seen = _look(log, topic)
        bounds, journals = _bounds(admin, seen, wait)
        due = {key: bound for key, bound in bounds.items() if bound.offset > seen[key].start}
        if not dry_run:
            _trim(log, due, journals)
    if as_json:
        print_json([_trimmed_json(key, seen[key], bound) for key, bound in sorted(due.items())])
        return
    if not due:
        typer.echo("nothing can be trimmed")
        return
    columns = ("topic", "partition", "from", "would start at" if dry_run else "starts at")
    print_rows(columns, [(main_of(k[0]), k[1], seen[k].start, b.offset) for k, b in due.items()])


@sidecar.command("compact")
@with_kafka
def compact_sidecar(
    topic: Annotated[str, typer.Argument(help="The topic, or its sidecar.")],
    *,
    kafka: Kafka,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be copied and trimmed.")
    ] = False,
    share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Most of the head that may be copied, as a share."),
    ] = 0.5,
    grace: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds from the last relocation to trimming."),
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Copy what pointers still need of a sidecar's head to its end, and trim the head.

    Use it where a few ranges that are needed lie before much that is not: the records of aborted
    transactions, or of pointers that retention has taken. Consumers go on without a pause, and find
    the copies by `__transaction_relocations`, which they must be allowed to read. The first
    transaction whose marker is not written yet holds the head back from its first record on. All
    consumers must know copies before it is used first: those of older versions report the
    transactions as torn. Run it again whenever it was interrupted.

    Examples:

    ```
    logtx sidecar compact orders --dry-run --bootstrap-servers localhost:9092
    logtx sidecar compact orders --bootstrap-servers localhost:9092
    ```
    """
    from ...coordinator.server.compacting import Copier, plan_partitions

    with open_cluster(kafka) as log:
        planned = plan_partitions(log, _look(log, topic), share=share, grace_s=grace)
        due = [each for each in planned if each.plan.bound > each.plan.start]
        if due and not dry_run:
            with closing(Copier(log, partial(typer.echo, err=True))) as copier:
                copier.run(due)
    rows = [_compacted_json(each) for each in planned]
    if as_json:
        print_json(rows)
        return
    print_rows(("topic", *_COMPACTED), [(r["topic"], *(r[n] for n in _COMPACTED)) for r in rows])
    if not due:
        typer.echo("nothing is worth compacting")


_COMPACTED: Final = ("partition", "start", "new_start", "ranges", "copied", "freed", "held_by")


def _compacted_json(each: Planned) -> dict[str, Any]:
    plan = each.plan
    return {
        "topic": main_of(each.key[0]),
        "sidecar": each.key[0],
        "partition": each.key[1],
        "start": plan.start,
        "new_start": plan.bound,
        "ranges": len(plan.copies),
        "copied": plan.copied,
        "freed": plan.bound - plan.start - plan.copied,
        "held_by": None if plan.held_by is None else str(TxId.from_bytes(plan.held_by)),
    }


def _look(log: Log, topic: str | None) -> dict[TopicPartition, Seen]:
    """Returns what the log says of the sidecars that are asked for.

    Raises:
        UnknownTopicError: there is no such topic, or it has no sidecar.
    """
    from ...coordinator.server.trimming import look_at

    known = log.topics()
    if topic is None:
        names = sorted(filter(is_sidecar, known))
    else:
        names = [topic if is_sidecar(topic) else sidecar_of(topic)]
        if names[0] not in known:
            raise UnknownTopicError(
                f"topic {main_of(topic)} has no sidecar: no transaction has written to one"
            )
    return look_at(log, names, complain)


def _rows(seen: Mapping[TopicPartition, Seen], needs: Mapping[int, SidecarNeeds]) -> Iterator[_Row]:
    lowest: dict[TopicPartition, tuple[PointerStep, int]] = {}
    for journal, told in needs.items():
        for step in told.steps:
            before = lowest.get(step.sidecar)
            if before is None or step.first < before[0].first:
                lowest[step.sidecar] = step, journal
    for key, each in sorted(seen.items()):
        yield _Row(key, each, *lowest.get(key, (None, None)))


def _undecided(needs: Mapping[int, SidecarNeeds]) -> Iterator[TxId]:
    for journal, told in sorted(needs.items()):
        if told.undecided < told.end:
            yield TxId(journal, told.incarnation, told.undecided)


def _print(rows: Sequence[_Row], undecided: Sequence[TxId]) -> None:
    if not rows:
        typer.echo("no topic has a sidecar")
        return
    columns = ("topic", "partition", "from", "to", "needed from", "pointer", "topic starts at")
    print_rows(
        columns,
        [
            (
                *(main_of(row.key[0]), row.key[1], row.seen.start, row.seen.noted.end),
                *((row.step.first, row.step.pointer) if row.step else (None, None)),
                row.seen.noted.main_start,
            )
            for row in rows
        ],
    )
    for txid in undecided:
        typer.echo(printable(f"trimming waits for transaction {txid} (logtx txn describe {txid})"))


def _bounds(
    admin: AdminQueries, seen: Mapping[TopicPartition, Seen], wait_s: float
) -> tuple[dict[TopicPartition, Bound], set[tuple[int, int]]]:
    """Waits until all that is open now is decided.

    Returns:
        Up to where each partition may be trimmed, and the journals by their incarnations.

    Raises:
        TransactionStateError: something was not decided in time.
    """
    from ...coordinator.core.trimming import Trimming

    core = Trimming(delay_ms=0, looks_apart_ms=0)
    core.note({key: each.noted for key, each in seen.items()}, 0)
    starts = {key: each.noted.main_start for key, each in seen.items()}
    deadline_s = time.monotonic() + wait_s
    asked = False
    while True:
        partitions = range(admin.partition_count())
        needs = {p: admin.describe_sidecars(p, starts) for p in partitions}
        if not asked:
            # Owners tell their ends, and no former leader of a partition does.
            core.journals_told({p: told.end for p, told in needs.items()}, 0, 0)
            asked = True
        bounds = core.bounds(_views(needs), 0)
        journals = {(p, told.incarnation) for p, told in needs.items()}
        if bounds or not seen:
            return bounds, journals
        if time.monotonic() >= deadline_s:
            oldest = ", ".join(map(str, _undecided(needs)))
            raise TransactionStateError(
                f"neither committed nor aborted within {wait_s:g} s: {oldest}. Nothing was trimmed;"
                " wait longer (--wait), or end them (logtx txn list)"
            )
        time.sleep(LOOK_S)


def _views(needs: Mapping[int, SidecarNeeds]) -> dict[int, JournalView]:
    from ...coordinator.core.trimming import JournalView

    def view(told: SidecarNeeds) -> JournalView:
        steps = {step.sidecar: step for step in told.steps}
        return JournalView(told.undecided, lambda key, _start: steps.get(key))

    return {journal: view(told) for journal, told in needs.items()}


def _trim(log: Log, due: Mapping[TopicPartition, Bound], journals: set[tuple[int, int]]) -> None:
    from ...coordinator.server.trimming import trim_partition

    names = {topic for topic, _ in due}
    ids = log.topic_ids(sorted(names | {main_of(topic) for topic in names})) if due else {}
    for key, bound in due.items():
        bound.noted.check_is_of(key[0], ids)
        trim_partition(log, key, bound.offset, journals)


def _json(row: _Row) -> dict[str, Any]:
    step = row.step
    return {
        "topic": main_of(row.key[0]),
        "sidecar": row.key[0],
        "partition": row.key[1],
        "start": row.seen.start,
        "end": row.seen.noted.end,
        "main_start": row.seen.noted.main_start,
        "needed_from": None if step is None else step.first,
        "pointer": None if step is None else step.pointer,
        "journal_partition": row.journal,
    }


def _trimmed_json(key: TopicPartition, seen: Seen, bound: Bound) -> dict[str, Any]:
    return {
        "topic": main_of(key[0]),
        "sidecar": key[0],
        "partition": key[1],
        "start": seen.start,
        "new_start": bound.offset,
    }
