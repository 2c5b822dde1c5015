"""Every state by every command, every state by every record, and the page drawn from them.

`docs/states.md` holds the diagram of `VALID_PREVIOUS` and the table below;
``pytest tests/coordinator --rewrite-transcripts`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

from logtx.coordinator.protocol import commands
from logtx.journal.acks import Ack, AddAcks, Subscribe, SubscriptionKind
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    LogtxError,
    NotSupportedError,
    TransactionStateError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from logtx.journal.modes import Mode, ModeChange, Phase
from logtx.journal.places import AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    Entry,
    Forget,
    JournalRecord,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    RecordType,
    Snapshot,
)
from logtx.journal.state import VALID_PREVIOUS, State
from logtx.journal.txid import TxId

from ..harness import INCARNATION, Coordinator, Journal, load, step, txid

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "states.md"
A0: Final = ("a", 0)


class Case(StrEnum):
    """What a TxId in a command may stand for."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    FORGOTTEN_COMMIT = "committed, forgotten"
    FORGOTTEN_ABORT = "aborted, forgotten"
    NEVER_BEGUN = "never begun"
    NO_BEGIN = "no BEGIN there"
    VOID_BEGIN = "void BEGIN"
    OTHER_INCARNATION = "other incarnation"


class Ask(StrEnum):
    """Commands that name a TxId."""

    ADD_PARTITIONS = "AddPartitions"
    BRANCH = "AddPartitions of a branch"
    ADD_OFFSETS = "AddOffsets"
    ADD_WRITES = "AddWrites"
    COMMIT = "End COMMIT"
    ABORT = "End ABORT"
    GET_OUTCOME = "GetOutcome"


DONE, COMMITTED, ABORTED, UNKNOWN = (
    "Done",
    "TransactionCommittedError",
    "TransactionAbortedError",
    "UnknownTransactionError",
)
# In the order of `Ask`.
TABLE: Final[Mapping[Case, tuple[str, ...]]] = {
    Case.OPEN: (DONE, DONE, DONE, DONE, "committing", "aborting", "open"),
    Case.COMMITTING: (*[COMMITTED] * 4, "committing", COMMITTED, "committing"),
    Case.COMMITTED: (*[COMMITTED] * 4, "committed", COMMITTED, "committed"),
    Case.ABORTING: (*[ABORTED] * 5, "aborting", "aborting"),
    Case.ABORTED: (*[ABORTED] * 5, "aborted", "aborted"),
    Case.FORGOTTEN_COMMIT: (*[COMMITTED] * 4, "committed", COMMITTED, "committed"),
    Case.FORGOTTEN_ABORT: (*[ABORTED] * 5, "aborted", "aborted"),
    Case.NEVER_BEGUN: (*[UNKNOWN] * 6, "unknown"),
    Case.NO_BEGIN: (*[UNKNOWN] * 6, "unknown"),
    Case.VOID_BEGIN: (*[UNKNOWN] * 6, "unknown"),
    Case.OTHER_INCARNATION: (*[UNKNOWN] * 6, "unknown"),
}


class Stage:
    """A coordinator with a transaction of each kind, all of one producer."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(Journal())
        self.coordinator.take_over()
        self.refs = 0
        self.session = self.connect("p", 1)
        self.other = self.connect("q", 2)
        self.txids = {case: self.begin() for case in list(Case)[:7]}
        for case in (Case.COMMITTING, Case.COMMITTED, Case.FORGOTTEN_COMMIT):
            self.end(case, commands.Action.COMMIT)
        for case in (Case.ABORTING, Case.ABORTED, Case.FORGOTTEN_ABORT):
            self.end(case, commands.Action.ABORT)
        for case in (Case.COMMITTED, Case.ABORTED, Case.FORGOTTEN_COMMIT, Case.FORGOTTEN_ABORT):
            self.coordinator.finish(self.txids[case].offset)
        self.coordinator.ack()
        self.void_begin()
        for case in (Case.FORGOTTEN_COMMIT, Case.FORGOTTEN_ABORT):
            del self.coordinator.shard.transactions._outcomes[self.txids[case].offset]
        self.txids |= {
            Case.NEVER_BEGUN: txid(1_000),
            Case.NO_BEGIN: txid(1),
            Case.OTHER_INCARNATION: txid(self.txids[Case.OPEN].offset, INCARNATION + 1),
        }

    def ask(self, command: commands.Command) -> commands.Reply:
        """Submits a command; returns the reply, once everything is durable."""
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        self.coordinator.ack()
        return self.coordinator.replies[self.refs]

    def connect(self, name: str, nonce: int, generation: int | None = None) -> commands.SessionId:
        reply = self.ask(commands.Connect(producer_id=name, nonce=nonce, generation=generation))
        assert isinstance(reply, commands.Connected)
        return commands.SessionId(name, reply.generation, nonce)

    def begin(self) -> TxId:
        command = commands.Begin(
            session=self.session, request_id=self.refs, answered_below=0, timeout_ms=60_000
        )
        reply = self.ask(command)
        assert isinstance(reply, commands.Began)
        return reply.txid

    def end(self, case: Case, action: commands.Action) -> None:
        self.ask(
            commands.End(session=self.session, txid=self.txids[case], action=action, writes={})
        )

    def void_begin(self) -> None:
        """Lets a BEGIN that its coordinator gave up land behind the next OWNER."""
        self.coordinator.submit(
            commands.Begin(session=self.session, request_id=99, answered_below=0, timeout_ms=1),
            "void",
        )
        self.coordinator.lose(late=True)
        self.coordinator.land_late()
        self.txids[Case.VOID_BEGIN] = txid(self.coordinator.journal.end - 1)
        self.coordinator.lose()

    def command(self, ask: Ask, told: TxId, session: commands.SessionId) -> commands.Command:
        """Returns a command about a transaction."""
        if ask in (Ask.ADD_PARTITIONS, Ask.BRANCH):
            by = session if ask is Ask.ADD_PARTITIONS else None
            return commands.AddPartitions(txid=told, partitions=(A0,), session=by)
        if ask is Ask.ADD_OFFSETS:
            steps = (step(A0, None, 1),)
            return commands.AddOffsets(session=session, txid=told, group="g", steps=steps)
        if ask is Ask.ADD_WRITES:
            wrote = {A0: (BranchRange(7, 0, 0, 1),)}
            return commands.AddWrites(session=session, txid=told, part=0, writes=wrote)
        if ask is Ask.GET_OUTCOME:
            return commands.GetOutcome(txid=told)
        action = commands.Action.COMMIT if ask is Ask.COMMIT else commands.Action.ABORT
        writes = {A0: (BranchRange(0, 0, 0, 1),)}
        return commands.End(session=session, txid=told, action=action, writes=writes)


def name(reply: commands.Reply) -> str:
    """Returns a reply's name in `TABLE`: the state of an Outcome, else the class."""
    return reply.state.value if isinstance(reply, commands.Outcome) else type(reply).__name__


@pytest.mark.parametrize("ask", Ask)
@pytest.mark.parametrize("case", Case)
def test_reply(case: Case, ask: Ask) -> None:
    stage = Stage()
    reply = stage.ask(stage.command(ask, stage.txids[case], stage.session))
    assert name(reply) == TABLE[case][list(Ask).index(ask)]
    assert not isinstance(reply, commands.Outcome) or reply.txid == stage.txids[case]


DOOMED: Final[Mapping[Ask, str]] = {
    Ask.ADD_PARTITIONS: DONE,
    Ask.BRANCH: DONE,
    Ask.ADD_OFFSETS: "ClaimFencedError",
    Ask.ADD_WRITES: "ClaimFencedError",
    Ask.COMMIT: "ClaimFencedError",
    Ask.ABORT: "aborting",
    Ask.GET_OUTCOME: "open",
}


@pytest.mark.parametrize("ask", Ask)
def test_reply_while_the_abort_of_claimed_input_is_not_written(ask: Ask) -> None:
    stage = Stage()
    told = stage.txids[Case.OPEN]
    stage.ask(stage.command(Ask.ADD_OFFSETS, told, stage.session))
    stage.coordinator.submit(
        commands.ClaimOffsets(group="g", partitions=(A0,), claimant=1), "claim"
    )
    stage.coordinator.ack(1)
    shard = stage.coordinator.journal.load()
    [(_, reply)] = shard.handle(
        stage.command(ask, told, stage.session),
        "ref",
        stage.coordinator.now,
        stage.coordinator.topics,
    ).replies
    assert name(reply) == DOOMED[ask]


# ---- sessions -----------------------------------------------------------------------------------

FENCED, DOUBLE, CLOSED = "ProducerFencedError", "DoubleStartError", "SessionClosedError"
SESSIONS: Final[Mapping[str, tuple[commands.SessionId, str]]] = {
    "generation above": (commands.SessionId("p", 1, 1), CLOSED),
    "generation below": (commands.SessionId("p", -1, 1), FENCED),
    "another instance": (commands.SessionId("p", 0, 77), FENCED),
    "another producer": (commands.SessionId("q", 0, 2), FENCED),
    "an unknown producer": (commands.SessionId("nobody", 0, 1), CLOSED),
}
NEEDS_SESSION: Final = (
    *(Ask.ADD_PARTITIONS, Ask.ADD_OFFSETS, Ask.ADD_WRITES, Ask.COMMIT, Ask.ABORT),
)


@pytest.mark.parametrize("ask", NEEDS_SESSION)
@pytest.mark.parametrize("who", SESSIONS)
def test_nobody_else_changes_an_open_transaction(who: str, ask: Ask) -> None:
    session, expected = SESSIONS[who]
    stage = Stage()
    reply = stage.ask(stage.command(ask, stage.txids[Case.OPEN], session))
    assert name(reply) == expected


@pytest.mark.parametrize("who", [w for w in SESSIONS if w != "another producer"])
def test_nobody_else_begins(who: str) -> None:
    session, expected = SESSIONS[who]
    reply = Stage().ask(
        commands.Begin(session=session, request_id=1, answered_below=0, timeout_ms=1)
    )
    assert name(reply) == expected


@pytest.mark.parametrize("case", [Case.COMMITTING, Case.COMMITTED, Case.ABORTING, Case.ABORTED])
@pytest.mark.parametrize("who", SESSIONS)
def test_a_decision_is_told_to_anybody(who: str, case: Case) -> None:
    # A retried end must succeed no matter what became of the session since.
    stage = Stage()
    ask = Ask.COMMIT if case in (Case.COMMITTING, Case.COMMITTED) else Ask.ABORT
    assert name(stage.ask(stage.command(ask, stage.txids[case], SESSIONS[who][0]))) == case.value


@pytest.mark.parametrize(
    ("setup", "generation", "nonce", "expected"),
    [
        ("new", None, 5, "generation 0"),
        ("new", 7, 5, "generation 7"),
        ("same", None, 1, "generation 0"),
        ("same", 0, 1, "generation 0"),
        ("same", 1, 1, "generation 1"),
        ("same", None, 5, "generation 1"),
        ("same", 0, 5, DOUBLE),
        ("same", 3, 5, "generation 3"),
        ("same", -1, 5, FENCED),
        ("fenced", 0, 1, FENCED),
        ("fenced", None, 1, "generation 2"),
        ("fenced", 1, 1, DOUBLE),
        ("voided", 0, 1, DOUBLE),
        ("voided", 0, 5, DOUBLE),
        ("voided", -1, 1, FENCED),
        ("voided", None, 1, "generation 1"),
        ("voided", None, 5, "generation 1"),
        ("voided", 1, 1, "generation 1"),
    ],
)
def test_connect(setup: str, generation: int | None, nonce: int, expected: str) -> None:
    stage = Stage()
    if setup == "fenced":
        stage.connect("p", 6)
    if setup == "voided":
        stage.ask(commands.Connect(producer_id="p", nonce=6, generation=0))
    producer_id = "fresh" if setup == "new" else "p"
    reply = stage.ask(commands.Connect(producer_id=producer_id, nonce=nonce, generation=generation))
    told = (
        f"generation {reply.generation}" if isinstance(reply, commands.Connected) else name(reply)
    )
    assert told == expected
    # A fenced or voided producer leaves nothing open; one that came back finds it as it was.
    kept = setup in ("new", "same") and expected in ("generation 0", "generation 7", FENCED)
    assert (
        stage.coordinator.shard.transactions.get(stage.txids[Case.OPEN].offset).state  # type: ignore[union-attr]
        is (State.OPEN if kept else State.ABORTING)
    )


# ---- modes of topics ----------------------------------------------------------------------------

SWITCHED: Final[Mapping[Phase, Mapping[Mode, str]]] = {
    Phase.MARKERS: {Mode.METADATA: "to-metadata", Mode.MARKERS: "markers"},
    Phase.TO_METADATA: {Mode.METADATA: "to-metadata", Mode.MARKERS: "TopicModeError"},
    Phase.METADATA: {Mode.METADATA: "metadata", Mode.MARKERS: "to-markers"},
    Phase.TO_MARKERS: {Mode.METADATA: "TopicModeError", Mode.MARKERS: "to-markers"},
}
"""Phase of a topic → what is answered to who asks for a mode: the phase then, or an error."""


def switch_to(stage: Stage, phase: Phase) -> None:
    """Switches topic a on until it is in this phase."""
    coordinator = stage.coordinator
    while stage.coordinator.shard.modes.phase("a", "id-a") is not phase:
        now = coordinator.shard.modes.phase("a", "id-a")
        if now in (Phase.MARKERS, Phase.METADATA):
            to = Mode.METADATA if now is Phase.MARKERS else Mode.MARKERS
            stage.ask(commands.SetTopicMode(topic="a", mode=to))
        else:
            coordinator.record_mode("a", 5)
            coordinator.ack()
            coordinator.publish("a")


def phase_told(reply: commands.Reply) -> str:
    if not isinstance(reply, commands.TopicModes):
        return type(reply).__name__
    [info] = reply.topics
    return info.phase.value


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("phase", Phase)
def test_a_switch_is_asked_for(phase: Phase, mode: Mode) -> None:
    stage = Stage()
    switch_to(stage, phase)
    end = stage.coordinator.journal.end
    command = commands.SetTopicMode(topic="a", mode=mode)
    reply = stage.ask(command)
    assert phase_told(reply) == SWITCHED[phase][mode]
    begins = phase_told(reply) in ("to-metadata", "to-markers") and phase.value in tuple(Mode)
    assert stage.coordinator.journal.end - end == begins
    assert phase_told(stage.ask(commands.DescribeTopics(topics=("a",)))) == (
        stage.coordinator.shard.modes.phase("a", "id-a").value
    )
    # Asked again it changes nothing.
    end = stage.coordinator.journal.end
    assert phase_told(stage.ask(command)) == SWITCHED[phase][mode]
    assert stage.coordinator.journal.end == end


@pytest.mark.parametrize("phase", Phase)
def test_a_topic_that_is_created_anew_has_markers(phase: Phase) -> None:
    stage = Stage()
    switch_to(stage, phase)
    facts = stage.coordinator.topics["a"]
    stage.coordinator.topics["a"] = replace(facts, topic_id="id-anew")
    reply = stage.ask(commands.SetTopicMode(topic="a", mode=Mode.MARKERS))
    assert phase_told(reply) == "markers"
    reply = stage.ask(commands.SetTopicMode(topic="a", mode=Mode.METADATA))
    assert isinstance(reply, commands.TopicModes)
    assert (reply.topics[0].topic_id, reply.topics[0].phase) == ("id-anew", Phase.TO_METADATA)
    # What is late of the former topic's switch changes nothing.
    former = PartitionId("a", 0, "id-a")
    stage.coordinator.tenure.mode_recorded(former, 3, (0,))
    stage.coordinator.ack()
    assert stage.coordinator.shard.modes.phase("a", "id-anew") is Phase.TO_METADATA


def test_a_partition_that_is_added_during_a_switch_gets_its_mode_record_first() -> None:
    stage = Stage()
    switch_to(stage, Phase.TO_METADATA)
    tenure, modes = stage.coordinator.tenure, stage.coordinator.shard.modes
    for partition in range(4):
        tenure.mode_recorded(PartitionId("a", partition, "id-a"), 5, range(5))
    assert modes.phase("a", "id-a") is Phase.TO_METADATA
    tenure.mode_recorded(PartitionId("a", 4, "id-a"), 0, range(5))
    assert modes.of("a", "id-a").since == {0: 5, 1: 5, 2: 5, 3: 5, 4: 0}


@pytest.mark.parametrize("topic", ["nowhere", "a*", "*"])
def test_topics_that_are_not_switched(topic: str) -> None:
    reply = Stage().ask(commands.SetTopicMode(topic=topic, mode=Mode.METADATA))
    expected = NotSupportedError if topic.endswith("*") else UnknownTopicError
    assert type(reply) is expected


def test_a_topic_of_which_something_is_in_doubt_is_not_switched() -> None:
    stage = Stage()
    doubt = UnsupportedTopicError("it is compacted")
    command = commands.SetTopicMode(topic="a", mode=Mode.METADATA)
    shard, topics = stage.coordinator.shard, stage.coordinator.topics
    decision = shard.handle(command, "ref", stage.coordinator.now, topics, doubt)
    assert decision.records == ()
    assert decision.replies == (("ref", doubt),)


# ---- what replay does ---------------------------------------------------------------------------


def begin_record() -> Begin:
    return Begin(
        producer_id="p",
        generation=0,
        session_nonce=1,
        request_id=1,
        answered_below=0,
        timeout_ms=1,
        started_ms=0,
    )


RECORDS: Final[tuple[JournalRecord, ...]] = (
    Owner(replaces=0, address="c2", process_nonce=2),
    ProducerRecord(producer_id="p", generation=1, session_nonce=2, owner="default"),
    begin_record(),
    AddPartitions(begin=2, partitions=()),
    AddOffsets(begin=2, group="g", steps=()),
    AddWrites(begin=2, part=0, writes=()),
    PrepareCommit(begin=2, writes=(), decided_ms=0),
    PrepareAbort(begin=2, reason=AbortReason.EXPIRED, decided_ms=0),
    Committed(begin=2),
    Aborted(begin=2),
    Bind(group="g", transaction_group="default"),
    Forget(hours=1),
    Claim(group="g", claimant=1, partitions=(A0,)),
    Snapshot(
        first=9,
        index=0,
        last=True,
        replaces=-1,
        address="c1",
        process_nonce=1,
        partition_count=1,
        past_epochs=(),
    ),
    Placed(9, {PartitionId("a", 0, "id-a"): 1}),
    ModeChange("a", "id-a", Phase.TO_METADATA),
    Adoption(
        TxId(9, INCARNATION, 2), 3, True, (AdoptedWrites(PartitionId("a", 0, "id-a"), (), False),)
    ),
    Subscribe(group="q", kind=SubscriptionKind.SHARED, starts=()),
    AddAcks(begin=2, group="q", acks=()),
    Ack(group="q", acks=()),
)
LEADS_TO: Final[Mapping[State, tuple[JournalRecord, ...]]] = {
    State.OPEN: (),
    State.COMMITTING: RECORDS[6:7],
    State.COMMITTED: (RECORDS[6], RECORDS[8]),
    State.ABORTING: RECORDS[7:8],
    State.ABORTED: (RECORDS[7], RECORDS[9]),
}


def state_after(*records: JournalRecord) -> State:
    """Returns the state of the transaction at 2 after these records."""
    owner = Entry(-1, INCARNATION, Owner(replaces=-1, address="c1", process_nonce=1))
    producer = ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="default")
    all_records = (producer, begin_record(), *records)
    valid = [Entry(0, INCARNATION, record, at) for at, record in enumerate(all_records, start=1)]
    outcome = load([owner, *valid]).transactions.outcome(2)
    assert outcome is not None
    return outcome.state


def transitions() -> dict[tuple[State, State], list[RecordType]]:
    """Returns (before, after) → the records that make replay take that step."""
    found: dict[tuple[State, State], list[RecordType]] = {}
    for before, records in LEADS_TO.items():
        assert state_after(*records) is before
        for record in RECORDS:
            try:
                after = state_after(*records, record)
            except (TransactionStateError, KeyError):
                continue  # No owner appends that.
            if after is not before:
                found.setdefault((before, after), []).append(record.type)
    return found


def test_records_cover_every_type() -> None:
    assert {r.type for r in RECORDS} == set(RecordType)


def test_replay_takes_exactly_the_steps_of_the_table() -> None:
    allowed = {(old, new) for new, before in VALID_PREVIOUS.items() for old in before}
    assert set(transitions()) == allowed


def test_every_state_but_unknown_is_in_the_table() -> None:
    assert set(VALID_PREVIOUS) == set(State) - {State.UNKNOWN}
    assert all(state.finished == (not followers(state)) for state in VALID_PREVIOUS)


def followers(state: State) -> list[State]:
    return [new for new, before in VALID_PREVIOUS.items() if state in before]


# ---- the page -----------------------------------------------------------------------------------


TEMPLATE: Final = """\
# States of a transaction

Drawn from `VALID_PREVIOUS` in [`journal/state.py`](../journal/state.py) and from what `replay` does
with each journal record, by `tests/coordinator/core/test_shard_table.py`. An owner appends no
record that finds its transaction in another state, and whatever else lies in the journal is void.

```mermaid
stateDiagram-v2
{steps}
```

What a command is told about a transaction, by its state. Who asks matters only while it is open:
then another session than its own gets `ProducerFencedError`, `DoubleStartError` or
`SessionClosedError`. A decision is told to anybody, so that a retried end succeeds whatever became
of the session since.

| the transaction is | {columns} |
|---|{rule}
{rows}

A topic's mode is switched by `SetTopicMode`, which is asked again until the phase is final:

| the topic is | asked for `metadata` | asked for `markers` |
|---|---|---|
{phases}

A transaction whose input was claimed while it was open is aborted at once. Should its abort be
lost, it takes no offsets and can't be committed (`ClaimFencedError`), and the next owner aborts it.

*Forgotten*: finished so long ago that its outcome is read from the journal. *Void BEGIN*: appended
late by a coordinator that had been replaced; nobody was told its TxId.
"""


def page() -> str:
    """Returns the text of `docs/states.md`."""
    steps = [f"[*] --> {State.OPEN}: {RecordType.BEGIN.name}"]
    for (before, after), records in transitions().items():
        steps.append(f"{before} --> {after}: {' or '.join(r.name for r in records)}")
    steps += [f"{state} --> [*]" for state in VALID_PREVIOUS if state.finished]
    return TEMPLATE.format(
        steps="\n".join(f"    {each}" for each in steps),
        columns=" | ".join(f"`{ask}`" for ask in Ask),
        rule="---|" * len(Ask),
        rows="\n".join(
            f"| {case} | " + " | ".join(f"`{reply}`" for reply in replies) + " |"
            for case, replies in TABLE.items()
        ),
        phases="\n".join(
            f"| {phase} | " + " | ".join(f"`{told}`" for told in tolds.values()) + " |"
            for phase, tolds in SWITCHED.items()
        ),
    )


def test_page_is_current(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "run: pytest tests/coordinator --rewrite-transcripts"


def test_errors_of_the_table_cross_the_wire() -> None:
    classes = {cls.__name__: cls for cls in _subclasses(LogtxError)}
    told = [*TABLE.values(), *(replies.values() for replies in SWITCHED.values())]
    named = {reply for replies in told for reply in replies if reply.endswith("Error")}
    assert all(classes[error].code for error in named)


def _subclasses(root: type[LogtxError]) -> list[type[LogtxError]]:
    return [root, *(c for s in root.__subclasses__() for c in _subclasses(s))]
