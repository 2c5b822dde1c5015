"""The history of a run, indexed: operations, appends, what readers were given. Pure.

Events of one process are in order. All times are of one clock (CLOCK_MONOTONIC), so events of
different processes may be compared: a process records what it does before it does it, and what it
sees after it has seen it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final, NamedTuple

from ..errors import BrokenHistoryError
from .journal import Partition, Passed, Place

Event = Mapping[str, Any]
DEFAULT_GROUP: Final = "default"
RESET: Final = -1
"""Stands in `Reader.stream` where partitions came, went, or were sought."""
ISOLATIONS: Final = ("read_committed", "serializable", "read_uncommitted")
ROLES: Final = ("nemesis", "producer", "worker", "queue", "spark", "consumer", "final")
"""In this order they are indexed: what is not judged must be known before it is delivered."""
NOT_YET: Final = 2**63
"""A time after all events."""
OUTCOMES: Final = ("committed", "aborted", "unknown")


class Line(NamedTuple):
    """Where and when something was written in the history."""

    process: str
    number: int
    at: int = 0


@dataclass(slots=True)
class Append:
    """A value that a process was about to produce."""

    value: int
    op: Op | None
    """None for a plain record."""
    partition: Partition
    key: int
    source: tuple[int, int] | None
    """(partition, offset) of the input that it was made of."""
    line: Line
    acked: Line | None = None
    offset: int = -1
    """The acknowledged offset; -1 if it was not told."""


class Claimed(NamedTuple):
    """Input that an operation's commit claims to consume: from `start` to before `end`."""

    group: str
    partition: Partition
    start: Place | None
    end: Place


@dataclass(slots=True)
class Op:
    """A transaction as its process knew it."""

    name: str
    begun: Line
    appends: list[Append] = field(default_factory=list)
    asked: Line | None = None
    """Where its commit was requested."""
    claims: tuple[Claimed, ...] = ()
    ended: Line | None = None
    outcome: str = "unknown"
    txid: str | None = None
    commit_sequence: int | None = None

    @property
    def acknowledged(self) -> bool:
        """Whether its process was told that it is committed."""
        return self.outcome == "committed"


@dataclass(slots=True)
class Segment:
    """What a reader was given of one partition within one assignment, in order."""

    reader: Reader
    partition: Partition
    begun: Line
    offsets: array[int] = field(default_factory=lambda: array("q"))
    values: array[int] = field(default_factory=lambda: array("i"))
    lines: array[int] = field(default_factory=lambda: array("i"))
    ats: array[int] = field(default_factory=lambda: array("q"))

    def line(self, index: int) -> Line:
        """Returns where a delivery is written."""
        return Line(self.reader.process, self.lines[index], self.ats[index])


@dataclass(slots=True)
class Reader:
    """A life of a process that reads at one isolation level."""

    process: str
    role: str
    isolation: str
    group: str | None = None
    transaction_group: str = DEFAULT_GROUP
    """The transaction group whose transactions a serializable reader is given."""
    segments: list[Segment] = field(default_factory=list)
    open: dict[Partition, Segment] = field(default_factory=dict)
    stream: array[int] = field(default_factory=lambda: array("i"))
    """A serializable reader's values from all partitions, in order."""
    stream_lines: array[int] = field(default_factory=lambda: array("i"))

    @property
    def final(self) -> bool:
        """Whether it is a last reader."""
        return self.role == "final"


class Sighting(NamedTuple):
    """What a process was told of an offset."""

    value: int
    txid: str | None
    commit_sequence: int | None
    line: Line


class Contradiction(NamedTuple):
    """Two processes were told different things of one offset."""

    partition: Partition
    offset: int
    one: Sighting
    other: Sighting


class History:
    """Everything that the processes of a run wrote down."""

    def __init__(self) -> None:
        """Starts empty."""
        self.names: list[str] = []
        """Values; a value's number is its index."""
        self._numbers: dict[str, int] = {}
        self.ops: dict[str, Op] = {}
        self.appends: dict[int, Append] = {}
        """Number of the value → its append."""
        self.readers: list[Reader] = []
        self.sightings: dict[Partition, dict[int, Sighting]] = {}
        """What was told first of each offset, with what later ones add."""
        self.contradictions: list[Contradiction] = []
        self.anew: dict[str, int] = {}
        """Topic that was deleted and made anew → time from which all that is appended is in its
        last incarnation."""
        self.exempt: set[int] = set()
        """Values that may be in an earlier incarnation: not judged, and not in `appends`."""
        self.counts: Counter[str] = Counter()
        """Number of events by name, and of other things worth reporting."""

    def number(self, value: str) -> int:
        """Returns the number that stands for a value."""
        number = self._numbers.setdefault(value, len(self.names))
        if number == len(self.names):
            self.names.append(value)
        return number

    def add_process(self, process: str, events: Iterable[tuple[int, Event]]) -> None:
        """Indexes the events of one life of a process.

        Args:
            process: ``<role>-<number>.<life>``.
            events: (line number, event), in order.

        Raises:
            BrokenHistoryError: an event is not as recorders write it; the message has its place.
        """
        role = process.partition("-")[0]
        if role not in ROLES:
            raise BrokenHistoryError(f"{process}: no such role; known: {', '.join(ROLES)}")
        indexer = _Indexer(self, process, role)
        for number, event in events:
            try:
                indexer.add(event, Line(process, number, event["at"]))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BrokenHistoryError(
                    f"{process}.jsonl:{number}: not a {event.get('event')!r} event:"
                    f" {type(error).__name__} {error}"
                ) from error


class _Indexer:
    """Indexes the events of one process."""

    def __init__(self, history: History, process: str, role: str) -> None:
        self._history = history
        self._process = process
        self._role = role
        self._readers: dict[str, Reader] = {}
        self._handlers = {
            "begin": self._begin,
            "append": self._append,
            "acked": self._acked,
            "failed": self._nothing,
            "commit": self._commit,
            "end": self._end,
            "assigned": self._assigned,
            "revoked": self._revoked,
            "seek": self._seek,
            "poll": self._poll,
            "committed_position": self._nothing,
            "error": self._nothing,
            "note": self._nothing,
        }

    def add(self, event: Event, line: Line) -> None:
        name = event["event"]
        self._history.counts[name] += 1
        if self._role == "nemesis":
            if name == "fault":
                self._history.counts[f"fault {event['what']}"] += 1
                if event["what"] in ("recreate", "recreated"):
                    over = event["what"] == "recreated"
                    self._history.anew[event["target"]] = line.at if over else NOT_YET
            return
        handler = self._handlers.get(name)
        if handler is None:
            raise ValueError(f"unknown event; known: {', '.join(self._handlers)}")
        handler(event, line)

    def _nothing(self, event: Event, line: Line) -> None:
        pass  # counted only; no check needs it

    # ---- writers --------------------------------------------------------------------------------

    def _begin(self, event: Event, line: Line) -> None:
        name = intern(event["op"])
        if name in self._history.ops:
            raise ValueError(f"operation {name!r} begins twice")
        self._history.ops[name] = Op(name, line)

    def _op(self, event: Event) -> Op:
        op = self._history.ops.get(event["op"])
        if op is None or op.begun.process != self._process:
            raise ValueError(f"operation {event['op']!r} did not begin here")
        return op

    def _append(self, event: Event, line: Line) -> None:
        op = None if event["op"] is None else self._op(event)
        source = event.get("i")
        value = self._history.number(event["v"])
        if (line if op is None else op.begun).at < self._history.anew.get(event["topic"], 0):
            self._history.exempt.add(value)
            self._history.counts["append not judged"] += 1
            return
        append = Append(
            value,
            op,
            (event["topic"], int(event["partition"])),
            event["k"],
            None if source is None else (int(source[0]), int(source[1])),
            line,
        )
        if value in self._history.appends:
            raise ValueError(f"value {event['v']!r} is appended twice")
        self._history.appends[value] = append
        if op is not None:
            op.appends.append(append)

    def _acked(self, event: Event, line: Line) -> None:
        value, told = self._history.number(event["v"]), event["offset"]
        offset = -1 if told is None else int(told)
        if value in self._history.exempt:
            return
        append = self._history.appends.get(value)
        if append is None or append.line.process != self._process:
            raise ValueError(f"value {event['v']!r} was not appended here")
        append.acked = line
        if offset >= 0:
            append.offset = offset
            self._sight(append.partition, offset, Sighting(value, None, None, line))

    def _commit(self, event: Event, line: Line) -> None:
        op = self._op(event)
        if op.asked is None:
            op.asked = line
        op.claims = tuple(
            Claimed(group, (topic, int(number)), _place(start), _place(end) or Place(0))
            for group, topic, number, start, end in event.get("iov") or ()
        )

    def _end(self, event: Event, line: Line) -> None:
        op, outcome = self._op(event), event["outcome"]
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome {outcome!r}; known: {', '.join(OUTCOMES)}")
        op.ended, op.outcome = line, outcome
        op.txid = event.get("txid")
        op.commit_sequence = event.get("commit_sequence")
        if outcome != "committed":
            # A worker goes back to the committed offsets by itself.
            for reader in self._readers.values():
                reader.open.clear()
                _reset(reader)

    # ---- readers --------------------------------------------------------------------------------

    def _reader(self, isolation: str, group: str | None = None) -> Reader:
        reader = self._readers.get(isolation)
        if reader is None:
            if isolation not in ISOLATIONS:
                raise ValueError(f"isolation {isolation!r}; known: {', '.join(ISOLATIONS)}")
            reader = self._readers[isolation] = Reader(self._process, self._role, isolation)
            self._history.readers.append(reader)
        if group is not None:
            reader.group = group
        return reader

    def _assigned(self, event: Event, line: Line) -> None:
        reader = self._reader(event["isolation"], event.get("group"))
        reader.transaction_group = event.get("transaction_group", DEFAULT_GROUP)
        for row in event["partitions"]:
            _open(reader, (row[0], int(row[1])), line)
        _reset(reader)

    def _revoked(self, event: Event, line: Line) -> None:  # noqa: ARG002
        for reader in self._readers.values():
            for row in event["partitions"]:
                reader.open.pop((row[0], int(row[1])), None)
            _reset(reader)

    def _seek(self, event: Event, line: Line) -> None:  # noqa: ARG002
        for reader in self._readers.values():
            reader.open.pop((event["topic"], int(event["partition"])), None)
            _reset(reader)

    def _poll(self, event: Event, line: Line) -> None:
        reader = self._reader(event["isolation"])
        history, serializable = self._history, reader.isolation == "serializable"
        known: tuple[str, int] | None = None
        for topic, number, offset, _, value, _, txid, sequence in event["records"]:
            if topic in history.anew and self._passes_over(history.number(value)):
                continue
            if known != (topic, number):
                known = (topic, number)
                segment = reader.open.get(known) or _open(reader, known, line)
                seen = history.sightings.setdefault(known, {})
            numbered = history.number(value)
            segment.offsets.append(offset)
            segment.values.append(numbered)
            segment.lines.append(line.number)
            segment.ats.append(line.at)
            first = seen.get(offset)
            if (
                first is None
                or first.value != numbered
                or first.txid != txid
                or first.commit_sequence != sequence
            ):
                told = txid and intern(txid)
                self._sight(known, offset, Sighting(numbered, told, sequence, line))
            if serializable:
                reader.stream.append(numbered)
                reader.stream_lines.append(line.number)
        history.counts["delivered"] += len(event["records"])

    def _passes_over(self, value: int) -> bool:
        # Of such a topic only last readers are judged: for the others an offset means many things.
        return self._role != "final" or value in self._history.exempt

    def _sight(self, partition: Partition, offset: int, sighting: Sighting) -> None:
        seen = self._history.sightings.setdefault(partition, {})
        first = seen.setdefault(offset, sighting)
        if first is sighting:
            return
        # Each may know less than the other: writers know only the offset, read_uncommitted readers
        # do not know the transaction.
        if first.value != sighting.value or any(
            a is not None and b is not None and a != b
            for a, b in zip(first[1:3], sighting[1:3], strict=True)
        ):
            found = Contradiction(partition, offset, first, sighting)
            self._history.contradictions.append(found)
            return
        seen[offset] = first._replace(
            txid=first.txid or sighting.txid,
            commit_sequence=sighting.commit_sequence
            if first.commit_sequence is None
            else first.commit_sequence,
        )


def in_order(processes: Iterable[str]) -> list[str]:
    """Returns processes in the order in which `History.add_process` must be given them."""
    return sorted(processes, key=lambda name: (_rank(name), name))


def _rank(process: str) -> int:
    role = process.partition("-")[0]
    return ROLES.index(role) if role in ROLES else len(ROLES)


def _place(told: int | Sequence[Any] | None) -> Place | None:
    if told is None:
        return None
    if isinstance(told, int):
        return Place(told)
    o2, o3, *passed = told
    return Place(int(o2), int(o3), Passed(*map(int, passed[0])) if passed and passed[0] else None)


def _open(reader: Reader, partition: Partition, line: Line) -> Segment:
    segment = Segment(reader, partition, line)
    reader.segments.append(segment)
    reader.open[partition] = segment
    return segment


def _reset(reader: Reader) -> None:
    if reader.stream and reader.stream[-1] != RESET:
        reader.stream.append(RESET)
        reader.stream_lines.append(0)
