"""`logtx txn list --finished` and `logtx txn watch`: what metadata stores know of transactions."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...journal.errors import (
    ConfigError,
    LogtxError,
    MetadataNotServedError,
)
from .asking import AsJson, Timeout
from .cluster import absence_told, open_cluster
from .connection import Kafka, with_kafka
from .text import parse_age_ms, parse_txid, print_json, print_rows, printable, show_time

if TYPE_CHECKING:
    from ...coordinator.client.metadata import MetadataClient, Watched
    from ...coordinator.protocol.metadata import Header, Operation, Question
    from ...journal.logs.interface import Log
    from ...journal.txid import TxId

LISTED_MAX: Final = 1_000
"""Most transactions of a list: the header of each is a question of its own, of a millisecond."""
WATCHED_MAX: Final = 64
"""Most partitions watched at once: each is a stream, and a thread."""
_LOOK_S: Final = 0.2
"""Longest wait for changes before the time is looked at."""
_COLUMNS: Final = ("TxId", "state", "begun", "decided", "producer", "reason")


@contextmanager
def open_client(kafka: Kafka, timeout_s: float) -> Iterator[tuple[Log, MetadataClient]]:
    """Provides the cluster's log, and the questions to the metadata store.

    Raises:
        MetadataNotServedError: no coordinator has one; the message says how to get it.
    """
    from ...coordinator.client.metadata import MetadataClient
    from ...coordinator.client.tls import tls_of

    tls = tls_of(kafka)
    with open_cluster(kafka) as log, MetadataClient(log, timeout_s=timeout_s, tls=tls) as client:
        try:
            with absence_told(kafka):
                yield log, client
        except MetadataNotServedError as error:
            raise MetadataNotServedError(
                "no coordinator that answers has a metadata store, which this command asks: start"
                " one more with logtx coordinator --metadata-store rocksdb:DIRECTORY; it is filled"
                " from the journal"
            ) from error


# ---- listing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which transactions of the store are listed."""

    topic: str = ""
    """Only those that write here, or move a group's offset here; "": all."""
    partition: int | None = None
    """Of that topic; None: any."""
    group: str = ""
    """Only those that move this consumer group's offsets in the topic."""
    finished: bool = False
    """Whether finished ones are listed too."""
    since_ms: int = 0
    """Only those that are open, or were decided since then."""
    states: Sequence[str] = ()
    begun_before_ms: int | None = None
    producer: str = ""
    limit: int = LISTED_MAX

    def __post_init__(self) -> None:
        """Checks that it can be asked for.

        Raises:
            ConfigError: a partition or a group without a topic.
        """
        if not self.topic and (self.partition is not None or self.group):
            raise ConfigError("--partition and --group are of a topic: name it with --topic")

    def takes(self, header: Header) -> bool:
        """Returns whether a transaction is listed."""
        decided_ms = header.finalized_ms
        return (
            (self.finished or not header.finished)
            and (not decided_ms or decided_ms >= self.since_ms)
            and (not self.states or header.known_as.value in self.states)
            and (self.begun_before_ms is None or header.created_ms <= self.begun_before_ms)
            and self.producer in ("", header.producer_id)
        )


def list_stored(kafka: Kafka, timeout_s: float, wanted: Wanted, *, as_json: bool) -> None:
    """Prints transactions that the metadata store has, in the order in which they began."""
    with open_client(kafka, timeout_s) as (log, client):
        found = list(_stored(log, client, wanted))
    found.sort(key=lambda h: (h.created_ms, h.txid.partition, h.txid.offset))
    cut = len(found) > wanted.limit
    found = found[-wanted.limit :]
    if as_json:
        rows = [header_json(header) for header in found]
        print_json({"transactions": rows, "unreachable": [], "cut": cut})
        return
    print_rows(_COLUMNS, [_header_row(header) for header in found])
    if cut:
        typer.echo(f"only the last {wanted.limit} are shown: --limit takes more")


def _stored(log: Log, client: MetadataClient, wanted: Wanted) -> Iterator[Header]:
    if not wanted.topic:
        yield from filter(wanted.takes, _all(client, wanted))
        return
    count = log.partition_count(wanted.topic)
    partitions = range(count) if wanted.partition is None else [wanted.partition]
    txids: dict[TxId, None] = {}
    for number, partition in enumerate(partitions):
        # The first answer waits until the store has the journal; the others need not.
        fresh = number == 0
        operations: Iterable[Operation]
        if wanted.group:
            operations = client.acks(wanted.topic, partition, wanted.group, fresh=fresh)
        else:
            operations = client.history(wanted.topic, partition, fresh=fresh)
        for operation in operations:
            # The last ones by place are the youngest.
            txids.pop(operation.txid, None)
            txids[operation.txid] = None
            if len(txids) > 2 * wanted.limit:
                txids = dict.fromkeys(list(txids)[-wanted.limit - 1 :])
    for txid in txids:
        header = client.header(txid, fresh=False)
        if header is not None and wanted.takes(header):
            yield header


def _all(client: MetadataClient, wanted: Wanted) -> Iterator[Header]:
    from ...coordinator.protocol.metadata import HeaderState

    yield from client.open()
    for state in (HeaderState.COMMITTED, HeaderState.ABORTED):
        yield from client.decided(state, from_ms=wanted.since_ms, fresh=False)


def header_json(header: Header) -> dict[str, Any]:
    """Returns a header for `--json`."""
    return {
        "txid": str(header.txid),
        "state": header.known_as.value,
        "producer": header.producer_id,
        "generation": header.generation,
        "begun": show_time(header.created_ms),
        "deadline": show_time(header.timeout_ms or None),
        "decided": show_time(header.finalized_ms or None),
        "commit_sequence": header.commit_sequence,
        "reason": None if header.reason is None else header.reason.value,
    }


def _header_row(header: Header) -> tuple[Any, ...]:
    told = header_json(header)
    return (*(told[name] for name in ("txid", "state", "begun", "decided", "producer", "reason")),)


def operation_json(operation: Operation) -> dict[str, Any]:
    """Returns an operation for `--json`."""
    return {
        "seq": list(operation.seq),
        "kind": operation.kind.name.lower(),
        "topic": operation.topic,
        "partition": operation.partition,
        "first_offset": operation.first_offset,
        "last_offset": operation.last_offset,
        "count": operation.count,
        "branch": f"{operation.branch:016x}",
        "placed": operation.placed,
        "place": operation.place,
        "group": operation.subscription or None,
        "from": None if operation.from_place is None else operation.from_place.o2,
        "to": None if operation.to is None else operation.to.o2,
    }


# ---- watching -----------------------------------------------------------------------------------


@with_kafka
def watch_transactions(
    *,
    kafka: Kafka,
    txid: Annotated[
        str, typer.Option(metavar="TXID", help="Watch one transaction, until it is finished.")
    ] = "",
    topic: Annotated[str, typer.Option(help="Watch the writes to a topic.")] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="One of its partitions. Without it: all.")
    ] = None,
    seconds: Annotated[
        str, typer.Option("--for", metavar="AGE", help="End after this time: 90s, 5m, 2h.")
    ] = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what a metadata store has of a transaction or a topic, and each change as it comes.

    Ends when the transaction is finished, after `--for`, or when it is interrupted. Writes that
    follow each other at once may be told as one. A coordinator that ends meanwhile, or more changes
    than can be printed, end it with exit status 1: then start it again. With `--json` each line is
    an object; the line that says `ready` comes behind what was there.

    Examples:

    ```
    logtx txn watch --txid 3-9f3ac1d2e4b7-17042 --bootstrap-servers localhost:9092
    logtx txn watch --topic orders --partition 3 --for 5m --json --bootstrap-servers localhost:9092
    ```
    """
    if bool(txid) == bool(topic):
        raise typer.BadParameter("name either --txid or --topic")
    if partition is not None and not topic:
        raise typer.BadParameter("--partition is of a topic: name it with --topic")
    ends_s = time.monotonic() + parse_age_ms(seconds) / 1_000 if seconds else None
    with open_client(kafka, timeout) as (log, client):
        questions = _questions(log, txid, topic, partition)
        ready = 0
        for change in _changes(client, questions, ends_s):
            if isinstance(change, str):
                ready += 1
                if ready == len(questions):
                    _tell({"ready": True}, "that is all so far; changes follow", as_json=as_json)
                continue
            record = change.record
            _tell(*_told(record, deleted=change.deleted), as_json=as_json)
            if txid and (change.deleted or getattr(record, "finished", False)):
                return


def _questions(log: Log, txid: str, topic: str, partition: int | None) -> list[Question]:
    from ...coordinator.protocol.metadata import OfHeader, OfWrites

    if txid:
        return [OfHeader(parse_txid(txid))]
    count = log.partition_count(topic)
    if partition is not None:
        return [OfWrites(topic=topic, partition=partition)]
    if count > WATCHED_MAX:
        raise ConfigError(
            f"{topic} has {count} partitions, and at most {WATCHED_MAX} are watched at once: name"
            " one with --partition"
        )
    return [OfWrites(topic=topic, partition=number) for number in range(count)]


def _changes(
    client: MetadataClient, questions: Sequence[Question], ends_s: float | None
) -> Iterator[Watched]:
    """Yields what several watches tell, until a time.

    Raises:
        LogtxError: one of them ended; the message says what to do.
    """
    told: queue.Queue[Watched | LogtxError] = queue.Queue(10_000)

    def follow(question: Question) -> None:
        try:
            with client.watch(question, fresh=True) as changes:
                for change in changes:
                    told.put(change)
        except LogtxError as error:
            told.put(error)

    for question in questions:
        # They end with the client, at the latest with the program.
        threading.Thread(target=follow, args=(question,), daemon=True).start()
    while ends_s is None or time.monotonic() < ends_s:
        try:
            found = told.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        if isinstance(found, LogtxError):
            raise found
        yield found


def _told(record: Header | Operation, *, deleted: bool) -> tuple[dict[str, Any], str]:
    """Returns a change for programs, and for people."""
    from ...coordinator.protocol.metadata import Header

    if isinstance(record, Header):
        name, described = str(record.txid), header_json(record)
        why = f": {record.reason.value}" if record.reason is not None else ""
        text = f"{name} {record.known_as.value}{why}, by {record.producer_id}"
    else:
        name, described = str(record.txid), {"txid": str(record.txid), **operation_json(record)}
        where = f"{record.topic}[{record.partition}]"
        written = f"{record.count} records from {record.first_offset} to {record.last_offset}"
        text = f"{name} {where}: {written if record.count else 'writes there'}"
        if record.placed:
            text += ", not placed yet" if record.place is None else f", placed at {record.place}"
    if deleted:
        return {"txid": name, "deleted": True, **_where(record)}, f"{name} is not kept any more"
    return described, text


def _where(record: Header | Operation) -> dict[str, Any]:
    topic = getattr(record, "topic", "")
    return {"topic": topic, "partition": getattr(record, "partition", 0)} if topic else {}


def _tell(described: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(described) + "\n")
        sys.stdout.flush()
    else:
        typer.echo(printable(text))
