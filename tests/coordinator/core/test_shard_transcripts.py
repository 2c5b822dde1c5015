"""Transcripts: what a shard appends, replies and does, command by command.

A file holds blocks: comments (``#``), a command with arguments, ``----``, what it printed, and an
empty line. ``pytest tests/coordinator --rewrite-transcripts`` writes the files again; the diff is
for review.

Offsets are journal offsets; ``T2`` is the transaction whose BEGIN lies at 2. The n-th request of
a file is ``#n``. `park` shows a reply that waits, `reply` one that the client gets. Commands:

    connect NAME nonce=1 [generation=0] [as=ALIAS]     session NAME generation=0 nonce=1 [as=ALIAS]
    begin BY [request=1] [below=0] [timeout=60000] [a/0 …]
    partitions T2 [by=BY | branch] a/0 …               offsets T2 [by=BY] GROUP a/0:none->5@3 …
    commit T2 [by=BY] [a/0 …]                          abort T2 [by=BY] [a/0 …]
    outcome T2          fetch GROUP [a/0 …]            bind GROUP [TRANSACTION-GROUP]
    claim GROUP nonce=1 a/0 … | a/0@3 a/1@none …       (@: if that is its claim; of offsets: read
                                                        under that claim)
    list                operator T2 (aborts it)        keys     key &default&K     delete &default&K
    ack [n]             the next n appends land (all without n)
    lose [landed=n | only=0,2] [late]   an append times out: load again; the first n in flight, or
                        those counted from 0, lie in the journal all the same
    late [n]                     appends that were given up land
    other OWNER replaces=n | other T2 RECORD epoch=n   somebody else's record lands
    finish T2 [gone=a/0]  time +1000  attach NAME  detach NAME nonce=1  hw  journal
    forget              from now on outcomes of finished transactions are not kept in memory
    mode b metadata|markers [bare]  (bare: without mode records)             describe [b …]
    recorded b 7  (mode records are written at 7)    ended b 7  (its ends, if bare)    publish b
    ask                 asks for ends        ends b/0=5 b/1=gone    answers
    snapshot            takes one            starts b/0=5    the log's starts, as housekeeping asks
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from logtx.coordinator.core import transactions as metadata
from logtx.coordinator.core.decision import (
    PublishMode,
    ShardConfig,
    WriteMarkers,
    WriteModeRecords,
    WriteOffsets,
)
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.modes import Mode, ModeChange
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.records.types import (
    NO_FENCE,
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Bind,
    Claim,
    Committed,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
)
from logtx.journal.txid import TxId

from ..harness import (
    INCARNATION,
    Appended,
    Closed,
    Coordinator,
    Emitted,
    Event,
    Failed,
    Given,
    Journal,
    Owned,
    Parked,
    Replied,
    Surprised,
    Waits,
    step,
    txid,
)
from .test_shard_checkers import Checker

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
RULE = "----"


# ---- printing -----------------------------------------------------------------------------------


def show_partition(partition: TopicPartition) -> str:
    return f"{partition[0]}/{partition[1]}"


def show_step(each: OffsetStep) -> str:
    start = "none" if each.from_place is None else each.from_place.o2
    return f"{each.topic}/{each.partition}:{start}->{each.to.o2}"


def words(*parts: object) -> str:
    return " ".join(str(p) for p in parts if p not in ("", None))


def show_record(record: JournalRecord) -> str:
    """Returns a journal record as one line."""
    name = record.type.name
    match record:
        case Owner():
            return words(name, f"replaces={record.replaces}", record.address)
        case ProducerRecord():
            who = f"{record.producer_id} generation={record.generation}"
            voided = "voided" if record.voided else ""
            return words(name, who, f"nonce={record.session_nonce}", voided)
        case Begin():
            who = f"{record.producer_id} generation={record.generation}"
            named = [show_partition(p.key) for p in record.partitions]
            return words(name, who, f"request={record.request_id}", *named)
        case AddPartitions():
            return words(
                name, f"T{record.begin}", *(show_partition(p.key) for p in record.partitions)
            )
        case AddOffsets():
            return words(name, f"T{record.begin}", record.group, *map(show_step, record.steps))
        case PrepareCommit():
            placed = dict.fromkeys(record.placed, "=placed")
            keys = [w.partition.key for w in record.writes]
            writes = [show_partition(key) + placed.get(key, "") for key in keys]
            return words(name, f"T{record.begin}", *writes)
        case Placed():
            return words(name, f"upto={record.upto}", *map(show_end, record.ends.items()))
        case ModeChange():
            bare = "" if record.with_records else "bare"
            since = [f"{p}={offset}" for p, offset in sorted(record.since.items())]
            return words(name, record.topic, record.phase, bare, *since)
        case Snapshot():
            return words(name, f"first={record.first}", *show_rows(record))
        case PrepareAbort():
            return words(name, f"T{record.begin}", record.reason)
        case Committed() | Aborted():
            gone = [f"gone={show_partition(p)}" for p in record.gone]
            return words(name, f"T{record.begin}", *gone)
        case Claim():
            claimed = map(show_partition, record.partitions)
            return words(name, record.group, f"nonce={record.claimant}", *claimed)
        case Bind():
            return words(name, record.group, record.transaction_group)


def show_end(end: tuple[PartitionId, int | None]) -> str:
    partition, place = end
    told = {None: "waits", GONE: "gone"}.get(place, place)
    return f"{show_partition(partition.key)}={told}"


def show_rows(record: Snapshot) -> list[str]:
    """Returns what a snapshot says of modes and places."""
    modes = [f"{row.topic}:{row.phase}" for row in record.modes]
    last = [f"last:{show_end(each)}" for each in record.last_places]
    placed = [
        f"T{row.begin}:{show_end((p, at))}" for row in record.places for p, _, at in row.places
    ]
    fence = [] if record.fence == NO_FENCE else [f"fence={record.fence}"]
    return [*modes, *last, *placed, *fence, *map(show_end, record.fence_places)]


def show_mode(info: commands.TopicModeInfo) -> str:
    since = [f"{p}={offset}" for p, offset in sorted(info.since.items())]
    told = "published" if info.published else ""
    waits = f"waiting={info.waiting}" if info.waiting else ""
    return words(info.topic, info.phase, f"at {info.mode_offset}", *since, told, waits)


def show_txid(told: TxId) -> str:
    made_up = "" if told.incarnation == INCARNATION else "?"
    return f"T{told.offset}{made_up}"


def show_offsets(offsets: commands.GroupOffsets) -> str:
    places = [f"{show_partition(p)}:{o.o2}" for p, o in sorted(offsets.offsets.items())]
    if offsets.last_commit is None:
        return words("none committed", *places)
    return words(*places, f"by {show_txid(offsets.last_commit)} at {offsets.commit_sequence}")


def show_key(info: commands.KeyInfo) -> str:
    return words(info.name, f"epoch={info.epoch}", *map(show_txid, info.transactions))


def show_reply(reply: commands.Reply | None) -> str:
    """Returns a reply as one line."""
    match reply:
        case None:
            return "look the journal up"
        case commands.Connected():
            return f"Connected generation={reply.generation} epoch={reply.epoch}"
        case commands.Began():
            return f"Began {show_txid(reply.txid)}"
        case commands.Done():
            return "Done"
        case commands.Outcome():
            at = "" if reply.commit_sequence is None else f"at {reply.commit_sequence}"
            return words("Outcome", show_txid(reply.txid), reply.state, at)
        case commands.GroupOffsets():
            return f"GroupOffsets {show_offsets(reply)}"
        case commands.Claimed():
            return f"Claimed {reply.number}: {show_offsets(reply.offsets)}"
        case commands.Binding():
            return f"Binding {reply.transaction_group}"
        case commands.Transactions():
            listed = [f"{show_txid(t.txid)}={t.state}" for t in reply.transactions]
            return words("Transactions", *listed)
        case commands.KeyInfo():
            return f"KeyInfo {show_key(reply)}"
        case commands.Keys():
            return words("Keys", *map(show_key, reply.keys))
        case commands.TopicModes():
            return words("TopicModes", *map(show_mode, reply.topics))
        case LogtxError():
            return f"{type(reply).__name__}: {reply}"


def show_event(event: Event) -> str:
    """Returns an event as one line."""
    match event:
        case Appended():
            return f"append {event.offset}: {show_record(event.record)}"
        case Parked():
            return f"park   #{event.ref} until {event.behind - 1} is durable"
        case Replied():
            return f"reply  #{event.ref}: {show_reply(event.reply)}"
        case Failed():
            return f"retry  #{event.ref}"
        case Waits():
            return f"wait   #{event.ref}"
        case Closed():
            return f"close  {event.producer_id} nonce={event.nonce}: {type(event.error).__name__}"
        case Emitted(WriteMarkers(transaction), hw):
            named = [
                show_partition(p) for p in transaction.partitions if p not in transaction.placed
            ]
            what = f"T{transaction.begin} {transaction.state} at {transaction.commit_sequence}"
            return words("marker", what, *named, f"hw={hw}")
        case Emitted(WriteOffsets(group, _, offsets), _):
            return f"iov    {group}: {show_offsets(offsets)}"
        case Emitted(WriteModeRecords(topic, _, offset, places, with_records), _):
            what = "places" if places else "markers"
            return words("modes ", topic, what, f"at {offset}", "" if with_records else "bare")
        case Emitted(PublishMode(topic), _):
            return f"publish {topic}"
        case Given():
            return "given"
        case Surprised():
            return "surprise"
        case Owned():
            return f"epoch  {event.epoch}"


# ---- commands -----------------------------------------------------------------------------------


class Line:
    """A command's arguments: words, and key=value pairs."""

    def __init__(self, text: str) -> None:
        self.name, *arguments = text.split()
        pairs = [a.split("=", 1) for a in arguments if re.match(r"[a-z]+=", a)]
        self.options = dict(pairs)
        self.words = [a for a in arguments if not re.match(r"[a-z]+=", a)]

    def take(self, default: str | None = None) -> str:
        """Takes the next word."""
        if not self.words and default is not None:
            return default
        return self.words.pop(0)

    def flag(self, name: str) -> bool:
        """Returns whether a bare word was given."""
        found = name in self.words
        if found:
            self.words.remove(name)
        return found

    def number(self, name: str, default: int | None = None) -> int | None:
        """Returns a numeric option."""
        return int(self.options[name]) if name in self.options else default

    def txid(self) -> TxId:
        """Takes the next word as a TxId: T2, or T2? of another incarnation."""
        text = self.take()
        return txid(int(text[1:].rstrip("?")), INCARNATION + text.endswith("?"))

    def partitions(self) -> list[TopicPartition]:
        """Takes all words that are left, as partitions."""
        named, self.words = self.words, []
        return [parse_partition(text) for text in named]


def parse_partition(text: str) -> TopicPartition:
    topic, number = text.split("/")
    return topic, int(number)


def parse_step(text: str) -> OffsetStep:
    partition, places = text.split(":")
    places, _, claim = places.partition("@")
    start, to = places.split("->")
    begins = None if start == "none" else int(start)
    return step(parse_partition(partition), begins, int(to), int(claim) if claim else None)


class Transcript:
    """Runs the commands of one file on a coordinator that a checker watches."""

    def __init__(self, forget: Callable[[], None] = lambda: None) -> None:
        self._forget = forget
        self.printed: list[str] = []
        self.journal = Journal()
        self.checker = Checker(self.journal)
        config = ShardConfig(session_grace_ms=3_000, reload_grace_ms=10_000)
        self.coordinator = Coordinator(self.journal, config=config, listen=self._listen)
        self.sessions: dict[str, commands.SessionId] = {}
        self.aliases: dict[int, str] = {}
        self.requests = 0
        self.coordinator.take_over()
        self.printed.clear()

    def run(self, text: str) -> list[str]:
        """Runs one command; returns what it printed."""
        line = Line(text)
        handler: Callable[[Line], None] = getattr(self, f"do_{line.name}")
        handler(line)
        assert not line.words, f"{text}: what is {line.words}?"
        self.checker.after_step([self.coordinator])
        printed, self.printed = self.printed, []
        return printed or ["ok"]

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        self.printed.append(show_event(event))
        if isinstance(event, Replied):
            self._learn(coordinator.commands[event.ref], event)
        self.checker.listen(coordinator, event)

    def _learn(self, command: commands.Command, event: Replied) -> None:
        if isinstance(command, commands.Connect) and isinstance(event.reply, commands.Connected):
            session = commands.SessionId(command.producer_id, event.reply.generation, command.nonce)
            self.sessions[self.aliases[event.ref]] = session

    def _submit(self, command: commands.Command, alias: str = "") -> None:
        self.requests += 1
        self.aliases[self.requests] = alias
        self.checker.asked(self.requests, command)
        self.coordinator.submit(command, self.requests)

    def _by(self, line: Line, told: TxId) -> commands.SessionId:
        if "by" in line.options:
            return self.sessions[line.options["by"]]
        transaction = self.coordinator.shard.transactions.get(told.offset)
        return self.sessions[transaction.producer_id if transaction else "p"]

    def do_connect(self, line: Line) -> None:
        name = line.take()
        nonce = line.number("nonce", 1)
        assert nonce is not None
        command = commands.Connect(
            producer_id=name, nonce=nonce, generation=line.number("generation")
        )
        self._submit(command, line.options.get("as", name))

    def do_session(self, line: Line) -> None:
        name = line.take()
        generation, nonce = line.number("generation"), line.number("nonce")
        assert generation is not None
        assert nonce is not None
        self.sessions[line.options.get("as", name)] = commands.SessionId(name, generation, nonce)

    def do_begin(self, line: Line) -> None:
        session = self.sessions[line.take()]
        self._submit(
            commands.Begin(
                session=session,
                request_id=line.number("request", self.requests + 1) or 0,
                answered_below=line.number("below", 0) or 0,
                timeout_ms=line.number("timeout", 60_000) or 0,
                partitions=tuple(line.partitions()),
            )
        )

    def do_partitions(self, line: Line) -> None:
        told = line.txid()
        session = None if line.flag("branch") else self._by(line, told)
        named = tuple(line.partitions())
        self._submit(commands.AddPartitions(txid=told, partitions=named, session=session))

    def do_offsets(self, line: Line) -> None:
        told = line.txid()
        session, group = self._by(line, told), line.take()
        steps, line.words = tuple(map(parse_step, line.words)), []
        self._submit(commands.AddOffsets(session=session, txid=told, group=group, steps=steps))

    def _end(self, line: Line, action: commands.Action) -> None:
        told = line.txid()
        session = self._by(line, told)
        writes = {p: (BranchRange(0, 0, 0, 1),) for p in line.partitions()}
        self._submit(commands.End(session=session, txid=told, action=action, writes=writes))

    def do_commit(self, line: Line) -> None:
        self._end(line, commands.Action.COMMIT)

    def do_abort(self, line: Line) -> None:
        self._end(line, commands.Action.ABORT)

    def do_outcome(self, line: Line) -> None:
        self._submit(commands.GetOutcome(txid=line.txid()))

    def do_fetch(self, line: Line) -> None:
        group, named = line.take(), tuple(line.partitions())
        self._submit(commands.FetchOffsets(group=group, partitions=named or None))

    def do_claim(self, line: Line) -> None:
        group, claimant = line.take(), line.number("nonce", 1) or 0
        named, line.words = [text.partition("@") for text in line.words], []
        expected = {parse_partition(p): int(n) for p, _, n in named if n not in ("", "none")}
        self._submit(
            commands.ClaimOffsets(
                group=group,
                partitions=tuple(parse_partition(p) for p, _, _ in named),
                claimant=claimant,
                expected=expected if any(at for _, at, _ in named) else None,
            )
        )

    def do_bind(self, line: Line) -> None:
        group = line.take()
        self._submit(commands.BindGroup(group=group, transaction_group=line.take("") or None))

    def do_list(self, _line: Line) -> None:
        self._submit(commands.ListTransactions())

    def do_operator(self, line: Line) -> None:
        self._submit(commands.AbortTransaction(txid=line.txid()))

    def do_keys(self, _line: Line) -> None:
        self._submit(commands.ListKeys())

    def do_key(self, line: Line) -> None:
        self._submit(commands.GetKey(name=line.take()))

    def do_delete(self, line: Line) -> None:
        self._submit(commands.DeleteKey(name=line.take()))

    def do_ack(self, line: Line) -> None:
        count = line.take("")
        self.coordinator.ack(int(count) if count else None)

    def do_lose(self, line: Line) -> None:
        late, only = line.flag("late"), line.options.get("only")
        which = range(line.number("landed", 0) or 0) if only is None else map(int, only.split(","))
        self.coordinator.lose(list(which), late=late)

    def do_late(self, line: Line) -> None:
        count = line.take("")
        self.coordinator.land_late(int(count) if count else None)

    def do_other(self, line: Line) -> None:
        record: JournalRecord
        if line.flag("OWNER"):
            epoch = line.number("replaces", -1) or 0
            record = Owner(replaces=epoch, address="c2", process_nonce=2)
        else:
            epoch = line.number("epoch", 0) or 0
            begin, kind = line.txid().offset, line.take()
            record = {
                "PREPARE_COMMIT": PrepareCommit(begin=begin, writes=(), decided_ms=0),
                "PREPARE_ABORT": PrepareAbort(
                    begin=begin, reason=AbortReason.EXPIRED, decided_ms=0
                ),
                "COMMITTED": Committed(begin=begin),
            }[kind]
        offset = self.journal.append(Entry(epoch, INCARNATION, record))
        self.printed.append(f"landed {offset}: {show_record(record)}")

    def do_finish(self, line: Line) -> None:
        gone = line.options.get("gone")
        self.coordinator.finish(line.txid().offset, (parse_partition(gone),) if gone else ())

    def do_mode(self, line: Line) -> None:
        bare, topic = line.flag("bare"), line.take()
        mode = Mode(line.take())
        self._submit(commands.SetTopicMode(topic=topic, mode=mode, without_records=bare))

    def do_describe(self, line: Line) -> None:
        named, line.words = tuple(line.words), []
        self._submit(commands.DescribeTopics(topics=named))

    def do_recorded(self, line: Line) -> None:
        topic, offset = line.take(), int(line.take())
        if self.coordinator.may_record(topic):
            self.coordinator.record_mode(topic, offset)
        else:
            self.printed.append("not yet")

    def do_ended(self, line: Line) -> None:
        topic, end = line.take(), int(line.take())
        ended = self.coordinator.end_mode(topic, dict.fromkeys(range(4), end))
        self.printed.append("ended" if ended else "not yet")

    def do_publish(self, line: Line) -> None:
        self.coordinator.publish(line.take())

    def do_ask(self, _line: Line) -> None:
        if self.coordinator.ask_ends():
            question = self.coordinator.question
            assert question is not None
            named = [show_partition(p.key) for p in question.partitions]
            self.printed.append(words("ask    upto", question.upto, *named))
        else:
            self.printed.append("nothing to ask")

    def do_ends(self, line: Line) -> None:
        named, line.words = [text.split("=") for text in line.words], []
        question = self.coordinator.question
        if question is None:
            self.printed.append("nothing was asked")
            return
        found = {parse_partition(p): GONE if at == "gone" else int(at) for p, at in named}
        told = {p: found[p.key] for p in question.partitions if p.key in found}
        self.coordinator.tell_ends(told)

    def do_snapshot(self, _line: Line) -> None:
        while self.coordinator.tenure.snapshot():
            pass

    def do_starts(self, line: Line) -> None:
        named, line.words = [text.split("=") for text in line.words], []
        fences = self.coordinator.shard.fences
        ids = {p.key: p for p in fences.partitions()}
        starts = {parse_partition(p): GONE if at == "gone" else int(at) for p, at in named}
        fences.advance({ids[key]: at for key, at in starts.items() if key in ids})
        waiting = "nothing" if fences.waiting is None else fences.waiting.offset
        self.printed.append(f"trim to {fences.trim_to}, {waiting} waits")

    def do_forget(self, _line: Line) -> None:
        self._forget()

    def do_time(self, line: Line) -> None:
        self.coordinator.pass_time(int(line.take()))

    def do_attach(self, line: Line) -> None:
        self.coordinator.attach(line.take())

    def do_detach(self, line: Line) -> None:
        self.coordinator.detach(line.take(), line.number("nonce", 1) or 0)
        self.coordinator.catch_up()

    def do_hw(self, _line: Line) -> None:
        self.printed.append(str(self.coordinator.shard.hw))

    def do_journal(self, _line: Line) -> None:
        for offset, entry in enumerate(self.journal.entries):
            self.printed.append(f"{offset} (epoch {entry.epoch}): {show_record(entry.record)}")


# ---- files --------------------------------------------------------------------------------------


def run_file(text: str, forget: Callable[[], None]) -> Iterator[str]:
    """Yields the lines of the file with what its commands print now."""
    transcript = Transcript(forget)
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            yield "\n".join(comments)
            continue
        printed = transcript.run(rest[0])
        yield "\n".join([*comments, rest[0], RULE, *printed])


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_text()
    forget = partial(monkeypatch.setattr, metadata, "OUTCOMES_MAX", 0)
    after = "\n\n".join(run_file(before, forget)) + "\n"
    if rewrite:
        path.write_text(after)
    assert after == path.read_text()


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 10
