"""Commands and replies cross the wire unchanged; what is unknown is refused, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.fields import NAME_MAX_BYTES, TOPIC_MAX_BYTES
from logtx.coordinator.protocol.queues import (
    AcknowledgeType,
    AckResult,
    AttachedConsumer,
    Lease,
    Refused,
    SubscribedPartitionInfo,
    SubscriptionInfo,
)
from logtx.coordinator.protocol.replies import decode_reply, encode_reply
from logtx.coordinator.protocol.requests import decode_request, encode_request
from logtx.journal import errors
from logtx.journal.acks import Acks, SubscriptionKind
from logtx.journal.control import BranchRange
from logtx.journal.errors import ConfigError, LogtxError, NotSupportedError, error_from_code
from logtx.journal.modes import Mode, Phase
from logtx.journal.places import PartitionId
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.types import AbortReason, OffsetStep, PointerStep
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.state import State
from logtx.journal.txid import MAX_OFFSET, MAX_PARTITION, TxId

LONG: Final = st.integers(0, 2**63 - 1)
NAME: Final = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf"]), min_size=1, max_size=12
).filter(str.strip)
TXID: Final = st.builds(
    TxId, st.integers(0, MAX_PARTITION), st.integers(0, 2**48 - 1), st.integers(0, MAX_OFFSET)
)
PARTITION: Final = st.tuples(NAME, st.integers(0, 2**31 - 1))
PARTITIONS: Final = st.lists(PARTITION, unique=True, max_size=5).map(sorted).map(tuple)
"""Sorted, for the wire groups partitions by topic and does not keep their order."""
JOURNALS: Final = st.dictionaries(
    st.tuples(st.integers(0, 65_535), st.integers(0, 2**48 - 1)), LONG, max_size=3
)
PASSED: Final = st.none() | st.builds(
    Passed, st.tuples(st.integers(0, MAX_PARTITION), st.integers(0, 2**48 - 1)), LONG, LONG
)
POSITION: Final = st.builds(
    Position, o1=LONG, o2=LONG, o3=LONG, met=JOURNALS, delivered=JOURNALS, passed=PASSED
)
STEP: Final = st.builds(
    OffsetStep,
    NAME,
    st.integers(0, 2**31 - 1),
    st.none() | st.builds(Place, LONG, LONG, PASSED),
    POSITION,
    st.none() | LONG,
)


@st.composite
def ranges(draw: st.DrawFn) -> BranchRange:
    """Draws a branch's records between two offsets."""
    first = draw(st.integers(0, 2**62))
    length = draw(st.integers(1, 2**62))
    count = draw(st.integers(1, length))
    return BranchRange(draw(st.integers(0, 2**64 - 1)), first, first + length - 1, count)


SESSION: Final = commands.SessionId("p", 3, 77)
WRITES: Final = st.dictionaries(PARTITION, st.lists(ranges(), max_size=3).map(tuple), max_size=4)
MESSAGE: Final = st.builds(
    MessageId,
    *(st.integers(0, 2**62 - 1), st.just(AT_OFFSET) | st.integers(0, 2**62 - 1)),
    st.integers(0, 2**62 - 1),
)
SPAN: Final = (
    st.tuples(MESSAGE, MESSAGE).filter(lambda t: t[0] != t[1]).map(lambda t: Span(min(t), max(t)))
)
PARTITION_ID: Final = st.builds(PartitionId, NAME, st.integers(0, 2**31 - 1), NAME)
ACKS_OF_ONE: Final = st.builds(Acks, PARTITION_ID, st.lists(SPAN, max_size=3).map(tuple))
ACKS: Final = st.lists(ACKS_OF_ONE, max_size=3).map(tuple)
REFUSED: Final = st.builds(Refused, st.sampled_from(AckResult), ACKS_OF_ONE)
LEASES: Final = st.lists(
    st.builds(
        Lease,
        number=LONG,
        partition=PARTITION_ID,
        span=SPAN,
        delivery_count=st.integers(0, 2**32 - 1),
        left_ms=LONG,
    ),
    max_size=3,
).map(tuple)
SUBSCRIPTION: Final = st.builds(
    SubscriptionInfo,
    group=NAME,
    kind=st.sampled_from(SubscriptionKind),
    consumers=st.lists(
        st.builds(
            AttachedConsumer,
            consumer=LONG,
            topics=st.lists(NAME, max_size=2).map(tuple),
            leased=LONG,
            gone=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    partitions=st.lists(
        st.builds(
            SubscribedPartitionInfo,
            partition=PARTITION_ID,
            start=MESSAGE,
            reached=MESSAGE,
            left=LONG,
            pending=LONG,
            leased=LONG,
            txids=st.lists(TXID, max_size=2).map(tuple),
            former=st.booleans(),
            available=st.lists(SPAN, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    redelivered=LONG,
    rejected=LONG,
    era=LONG,
)
COMMAND_KINDS: Final[Mapping[type, st.SearchStrategy[Any]]] = {
    # Without owner: that is the authenticated subject, which the coordinator sees for itself.
    commands.Connect: st.builds(
        commands.Connect,
        producer_id=NAME,
        nonce=LONG,
        generation=st.none() | st.integers(-(2**63), 2**63 - 1),
        owner=st.just("default"),
    ),
    commands.Begin: st.builds(
        commands.Begin,
        session=st.just(SESSION),
        request_id=LONG,
        answered_below=LONG,
        timeout_ms=LONG,
        partitions=PARTITIONS,
    ),
    commands.AddPartitions: st.dictionaries(PARTITION, st.none() | LONG, max_size=5).flatmap(
        lambda known: st.builds(
            commands.AddPartitions,
            txid=TXID,
            partitions=st.just(tuple(sorted(known))),
            session=st.just(SESSION),
            first_offsets=st.just({p: o for p, o in known.items() if o is not None}),
        )
    ),
    commands.ExtendTransaction: st.builds(
        commands.ExtendTransaction, session=st.just(SESSION), txid=TXID
    ),
    commands.AddOffsets: st.builds(
        commands.AddOffsets,
        session=st.just(SESSION),
        txid=TXID,
        group=NAME,
        steps=st.lists(STEP, max_size=4).map(tuple),
    ),
    commands.End: st.builds(
        commands.End,
        session=st.just(SESSION),
        txid=TXID,
        action=st.sampled_from(commands.Action),
        writes=WRITES,
        parts=st.integers(0, 2**32 - 1),
    ),
    commands.AddWrites: st.builds(
        commands.AddWrites,
        session=st.just(SESSION),
        txid=TXID,
        part=st.integers(0, 2**32 - 1),
        writes=WRITES,
    ),
    commands.GetOutcome: st.builds(commands.GetOutcome, txid=TXID, until_finished=st.booleans()),
    commands.FetchOffsets: st.builds(
        commands.FetchOffsets, group=NAME, partitions=st.none() | PARTITIONS
    ),
    commands.ClaimOffsets: st.dictionaries(PARTITION, st.none() | LONG, max_size=5).flatmap(
        lambda claims: st.builds(
            commands.ClaimOffsets,
            group=NAME,
            partitions=st.just(tuple(sorted(claims))),
            claimant=LONG,
            expected=st.none() | st.just({p: n for p, n in claims.items() if n is not None}),
        )
    ),
    commands.BindGroup: st.builds(
        commands.BindGroup, group=NAME, transaction_group=st.none() | NAME
    ),
    commands.ListTransactions: st.builds(
        commands.ListTransactions,
        states=st.lists(st.sampled_from(State), max_size=3).map(tuple),
        age_min_ms=LONG,
        producer_id=st.just("") | NAME,
        topic=st.just("") | NAME,
        after=st.just(-1) | LONG,
        limit=st.integers(1, commands.PAGE_MAX),
    ),
    commands.AbortTransaction: st.builds(commands.AbortTransaction, txid=TXID),
    commands.ListKeys: st.builds(
        commands.ListKeys, after=st.just("") | NAME, limit=st.integers(1, commands.PAGE_MAX)
    ),
    commands.GetKey: st.builds(commands.GetKey, name=NAME),
    commands.DeleteKey: st.builds(commands.DeleteKey, name=NAME),
    commands.ForgetProducer: st.builds(commands.ForgetProducer, producer_id=NAME),
    commands.ForgetGroup: st.builds(
        commands.ForgetGroup, group=NAME, topics=st.lists(NAME, max_size=3).map(tuple)
    ),
    commands.UnbindGroup: st.builds(commands.UnbindGroup, group=NAME),
    commands.SetTopicMode: st.builds(
        commands.SetTopicMode,
        topic=NAME,
        mode=st.sampled_from(Mode),
        without_records=st.booleans(),
    ),
    commands.SetTopicRule: st.builds(
        commands.SetTopicRule,
        rule=st.sampled_from(["*", "orders.*"]),
        mode=st.just(Mode.METADATA),
        transaction_group=NAME,
    )
    | st.builds(
        commands.SetTopicRule,
        rule=st.sampled_from(["*", "orders.*"]),
        mode=st.sampled_from([None, Mode.MARKERS]),
    ),
    commands.DescribeSidecars: st.builds(
        commands.DescribeSidecars, main_starts=st.dictionaries(PARTITION, LONG, max_size=5)
    ),
    commands.OpenSidecars: st.builds(
        commands.OpenSidecars, topics=st.lists(NAME, max_size=3).map(tuple)
    ),
    commands.DescribeTopics: st.builds(
        commands.DescribeTopics,
        topics=st.lists(NAME, max_size=3).map(tuple),
        after=st.just("") | NAME,
    ),
    commands.Attach: st.builds(
        commands.Attach,
        group=NAME,
        consumer=LONG,
        kind=st.sampled_from(SubscriptionKind),
        topics=st.lists(NAME, max_size=3).map(tuple),
        starts=st.dictionaries(PARTITION, LONG, max_size=3),
        held=ACKS,
        ack_timeout_ms=LONG,
        era=st.none() | LONG,
    ),
    commands.Acquire: st.builds(
        commands.Acquire,
        group=NAME,
        consumer=LONG,
        max_offsets=st.integers(1, 2**32 - 1),
        max_new_offsets=st.integers(0, 2**32 - 1),
        at_ends=st.booleans(),
    ),
    commands.Acknowledge: st.builds(
        commands.Acknowledge,
        group=NAME,
        consumer=LONG,
        type=st.sampled_from(AcknowledgeType),
        acks=ACKS,
        delay_ms=LONG,
        era=LONG,
    ),
    commands.ResetSubscription: st.builds(
        commands.ResetSubscription,
        group=NAME,
        era=LONG,
        starts=st.dictionaries(PARTITION_ID, st.integers(0, 2**62 - 1), min_size=1, max_size=3),
    ),
    commands.DeleteSubscription: st.builds(commands.DeleteSubscription, group=NAME, era=LONG),
    commands.DescribeSubscriptions: st.builds(
        commands.DescribeSubscriptions,
        groups=st.lists(NAME, max_size=3).map(tuple),
        after=st.just("") | NAME,
        available_max=st.integers(0, 2**32 - 1),
    ),
    commands.AddAcks: st.builds(
        commands.AddAcks, session=st.just(SESSION), txid=TXID, group=NAME, acks=ACKS, era=LONG
    ),
}
STATE: Final = st.sampled_from(State)
OFFSETS: Final = st.dictionaries(PARTITION, POSITION, max_size=4)
IOV: Final = st.builds(commands.GroupOffsets, OFFSETS) | st.builds(
    commands.GroupOffsets, OFFSETS, TXID, LONG
)
INFO: Final = st.builds(
    commands.TransactionInfo,
    txid=TXID,
    state=STATE,
    producer_id=NAME,
    generation=LONG,
    started_ms=LONG,
    timeout_ms=LONG,
    partitions=PARTITIONS,
    groups=st.lists(NAME, max_size=3).map(tuple),
    age_ms=LONG,
    reason=st.none() | st.sampled_from(AbortReason),
    placing=st.booleans(),
)
MODE_INFO: Final = st.builds(
    commands.TopicModeInfo,
    topic=NAME,
    topic_id=NAME,
    phase=st.sampled_from(Phase),
    mode_offset=st.just(-1) | LONG,
    since=st.dictionaries(st.integers(0, 2**31 - 1), LONG, max_size=4),
    published=st.booleans(),
    waiting=LONG,
    last=st.dictionaries(st.integers(0, 2**31 - 1), LONG, max_size=4),
)
KEY: Final = st.builds(
    commands.KeyInfo,
    name=NAME,
    epoch=LONG,
    connected_ms=LONG,
    age_ms=LONG,
    transactions=st.lists(TXID, max_size=3).map(tuple),
)
REPLY_KINDS: Final[Mapping[type, st.SearchStrategy[Any]]] = {
    commands.Connected: st.builds(
        commands.Connected,
        generation=LONG,
        partition=st.integers(0, MAX_PARTITION),
        incarnation=st.integers(0, 2**48 - 1),
        epoch=LONG,
    ),
    commands.Began: st.builds(commands.Began, TXID),
    commands.Done: st.builds(commands.Done),
    commands.Outcome: st.builds(commands.Outcome, TXID, STATE, st.none() | LONG),
    commands.GroupOffsets: IOV,
    commands.Claimed: st.builds(commands.Claimed, LONG, IOV),
    commands.Binding: st.builds(commands.Binding, st.none() | NAME),
    commands.Transactions: st.builds(
        commands.Transactions, st.lists(INFO, max_size=3).map(tuple), st.booleans()
    ),
    commands.KeyInfo: KEY,
    commands.Keys: st.builds(commands.Keys, st.lists(KEY, max_size=3).map(tuple), st.booleans()),
    commands.TopicModes: st.builds(
        commands.TopicModes, st.lists(MODE_INFO, max_size=3).map(tuple), st.booleans()
    ),
    commands.SidecarNeeds: st.builds(
        commands.SidecarNeeds,
        undecided=LONG,
        end=LONG,
        incarnation=LONG,
        steps=PARTITIONS.flatmap(
            lambda keys: st.tuples(*(st.builds(PointerStep, st.just(k), LONG, LONG) for k in keys))
        ),
    ),
    commands.Attached: st.builds(commands.Attached, LEASES, LONG),
    commands.Leases: st.builds(commands.Leases, LEASES),
    commands.SubscriptionsPage: st.builds(
        commands.SubscriptionsPage, st.lists(SUBSCRIPTION, max_size=2).map(tuple), st.booleans()
    ),
    commands.AckResults: st.builds(commands.AckResults, st.lists(REFUSED, max_size=3).map(tuple)),
}


def subclasses(root: type[LogtxError]) -> list[type[LogtxError]]:
    return [root, *(each for s in root.__subclasses__() for each in subclasses(s))]


def test_every_command_and_reply_is_drawn() -> None:
    assert set(COMMAND_KINDS) == set(get_args(commands.Command))
    assert set(REPLY_KINDS) == set(get_args(commands.Reply)) - {LogtxError}


@given(st.one_of(*COMMAND_KINDS.values()), LONG)
def test_commands_round_trip(command: commands.Command, request_id: int) -> None:
    if isinstance(command, commands.Begin):
        request_id = command.request_id
    raw = encode_request(request_id, command).SerializeToString()
    request = pb.Request.FromString(raw)
    assert request.request_id == request_id
    back = decode_request(request, SESSION)
    assert back == command
    if isinstance(command, commands.AddOffsets):  # Steps compare equal without their claims.
        assert isinstance(back, commands.AddOffsets)
        assert [s.claim for s in back.steps] == [s.claim for s in command.steps]


@given(st.one_of(*REPLY_KINDS.values()), LONG)
def test_replies_round_trip(reply: commands.Reply, request_id: int) -> None:
    wire = pb.Reply.FromString(encode_reply(request_id, reply).SerializeToString())
    assert wire.request_id == request_id
    assert decode_reply(wire) == reply


@pytest.mark.parametrize(
    "error", [cls for cls in subclasses(LogtxError) if cls.code], ids=lambda cls: cls.__name__
)
def test_errors_round_trip(error: type[LogtxError]) -> None:
    wire = pb.Reply.FromString(encode_reply(1, error("é, why")).SerializeToString())
    back = decode_reply(wire)
    assert type(back) is error
    assert str(back) == "é, why"


# ---- what is unknown ----------------------------------------------------------------------------


def test_a_request_of_an_unknown_kind_is_refused() -> None:
    # Field 99, as a newer client would send it: protobuf skips it.
    newer = pb.Request.FromString(b"\x9a\x06\x00" + pb.Request(request_id=7).SerializeToString())
    assert newer.request_id == 7
    with pytest.raises(NotSupportedError, match="does not know"):
        decode_request(newer, SESSION)


def test_a_reply_of_an_unknown_kind_is_an_error() -> None:
    assert isinstance(decode_reply(pb.Reply.FromString(b"\x9a\x06\x00")), NotSupportedError)


def test_an_unknown_kind_of_acknowledgement_is_none() -> None:
    attach = pb.Request(request_id=1, attach=pb.Attach(group="q", kind=9))  # type: ignore[arg-type]
    ack = pb.Request(request_id=1, acknowledge=pb.Acknowledge(group="q", type=9))  # type: ignore[arg-type]
    for request in (attach, ack):
        with pytest.raises(NotSupportedError, match="newer client"):
            decode_request(request, SESSION)
    told = decode_reply(pb.Reply(ack_results=pb.AckResults(refused=[pb.Refused(result=9)])))  # type: ignore[arg-type]
    assert isinstance(told, NotSupportedError), "an unknown result is no success"


def test_messages_that_nobody_could_mean_are_refused() -> None:
    empty = pb.Span(lo=pb.MessageId(offset=2), hi=pb.MessageId(offset=1))
    ack = pb.Acknowledge(group="q", acks=[pb.Acks(topic="a", spans=[empty])])
    with pytest.raises(ValueError, match="empty"):
        decode_request(pb.Request(request_id=1, acknowledge=ack), None)
    none = pb.Request(request_id=1, acquire=pb.Acquire(group="q"))
    with pytest.raises(ConfigError, match="0 offsets"):
        decode_request(none, None)
    nowhere = pb.Request(request_id=1, reset_subscription=pb.ResetSubscription(group="q"))
    with pytest.raises(ConfigError, match="names no partition"):
        decode_request(nowhere, None)
    start = pb.SubscriptionStart(topic="a", offset=2**62)
    beyond = pb.ResetSubscription(group="q", starts=[start])
    with pytest.raises(ValueError, match="no log has such an offset"):
        decode_request(pb.Request(request_id=1, reset_subscription=beyond), None)
    with pytest.raises(NotSupportedError, match="outside of a session"):
        decode_request(pb.Request(request_id=1, add_acks=pb.AddAcks(group="q")), None)


def test_an_unknown_action_is_not_a_commit() -> None:
    # For example a newer client's "prepare"; proto3 hands the number through.
    request = encode_request(
        1,
        commands.End(session=SESSION, txid=TxId(0, 1, 2), action=commands.Action.ABORT, writes={}),
    )
    raw = request.SerializeToString().replace(b"\x10\x01", b"\x10\x02")
    newer = pb.Request.FromString(raw)
    assert newer.end.action == 2
    with pytest.raises(NotSupportedError, match="action"):
        decode_request(newer, SESSION)


def test_a_filter_by_an_unknown_state_is_refused() -> None:
    # If the filter were ignored, an operator would take the wrong transactions for the right ones.
    request = encode_request(1, commands.ListTransactions(states=(State.OPEN,)))
    request.list_transactions.states[0] = 77  # type: ignore[call-overload]
    with pytest.raises(NotSupportedError, match="state 77"):
        decode_request(pb.Request.FromString(request.SerializeToString()), None)


def test_an_unknown_mode_is_no_switch() -> None:
    # Its number would else be taken for one that this version has.
    request = encode_request(1, commands.SetTopicMode(topic="t", mode=Mode.METADATA))
    request.set_topic_mode.mode = 77  # type: ignore[assignment]
    with pytest.raises(NotSupportedError, match="mode 77"):
        decode_request(pb.Request.FromString(request.SerializeToString()), None)


def test_an_unknown_phase_is_an_error() -> None:
    info = commands.TopicModeInfo(topic="t", topic_id="", phase=Phase.METADATA, mode_offset=3)
    wire = encode_reply(1, commands.TopicModes((info,)))
    wire.topic_modes.topics[0].phase = 77  # type: ignore[assignment]
    reply = decode_reply(pb.Reply.FromString(wire.SerializeToString()))
    assert isinstance(reply, NotSupportedError)
    assert "topic t" in str(reply)


def test_an_outcome_says_why() -> None:
    told = commands.Outcome(TxId(0, 1, 2), State.ABORTED, 3, AbortReason.EXPIRED)
    wire = encode_reply(1, told).SerializeToString()
    assert decode_reply(pb.Reply.FromString(wire)) == told


def test_an_unknown_state_is_unknown() -> None:
    wire = encode_reply(1, commands.Outcome(TxId(0, 1, 2), State.ABORTED))
    wire.outcome.state = 77  # type: ignore[assignment]
    reply = decode_reply(pb.Reply.FromString(wire.SerializeToString()))
    assert reply == commands.Outcome(TxId(0, 1, 2), State.UNKNOWN)


def test_an_unknown_error_says_so() -> None:
    error = error_from_code(9_999, "why")
    assert type(error) is LogtxError
    assert "9999" in str(error)
    assert "why" in str(error)


@pytest.mark.parametrize("kind", ["begin", "add_offsets", "end"])
def test_commands_of_a_session_need_one(kind: str) -> None:
    request = pb.Request()
    getattr(request, kind).SetInParent()
    with pytest.raises(NotSupportedError, match="session"):
        decode_request(request, None)


@pytest.mark.parametrize("raw", [b"", b"short", bytes(17)])
def test_a_txid_of_another_length_is_refused(raw: bytes) -> None:
    request = pb.Request(get_outcome=pb.GetOutcome(txid=raw))
    with pytest.raises((LogtxError, ValueError)):
        decode_request(request, None)


def _end(*writes: pb.Writes) -> pb.Request:
    return pb.Request(end=pb.End(txid=TxId(0, 1, 2).to_bytes(), writes=writes))


def _writes(**columns: Sequence[int]) -> pb.Writes:
    one = {"partitions": [0], "first_offsets": [5], "last_offsets": [5], "counts": [1]}
    return pb.Writes(topic="a", **{**one, **columns})


def test_a_range_that_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="2 records"):
        decode_request(_end(_writes(counts=[2])), SESSION)


def test_a_partition_named_twice_is_refused() -> None:
    # The second would silently take the place of the first, and its records would be lost.
    with pytest.raises(ValueError, match="twice"):
        decode_request(_end(_writes(branches=[1]), _writes(branches=[2])), SESSION)


@pytest.mark.parametrize(
    "columns",
    [
        {"partitions": []},
        {"partitions": [0, 1]},
        {"first_offsets": []},
        {"last_offsets": [5, 6]},
        {"counts": []},
        {"branches": [1, 2]},
        {"range_counts": [0]},
        {"range_counts": [2]},
        {"range_counts": [1, 0]},
    ],
    ids=str,
)
def test_columns_of_different_lengths_are_refused(columns: Mapping[str, Sequence[int]]) -> None:
    # A range that has no partition, or a partition that lacks one, would be lost without a word.
    with pytest.raises(ValueError, match=r"zip|as many ranges"):
        decode_request(_end(_writes(**columns)), SESSION)


BAD_NAMES: Final = ["", " ", "\u3000 ", "a\x1b[2J", "a\nb", "a\0", "a\x7f", "\u202eevil", "a\u200b"]
NEW_NAMES: Final[Mapping[str, Callable[[str], commands.Command]]] = {
    "connect": lambda n: commands.Connect(producer_id=n, nonce=1),
    "bound group": lambda n: commands.BindGroup(group=n, transaction_group="t"),
    "transaction group": lambda n: commands.BindGroup(group="g", transaction_group=n),
    "topic of an offset": lambda n: commands.AddOffsets(
        session=SESSION,
        txid=TxId(0, 1, 2),
        group="g",
        steps=(OffsetStep(n, 0, None, Position.at(1)),),
    ),
    "switched topic": lambda n: commands.SetTopicMode(topic=n, mode=Mode.METADATA),
    "topic of a claim": lambda n: commands.ClaimOffsets(
        group="g", partitions=((n, 0),), claimant=1
    ),
}


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", NEW_NAMES)
def test_names_that_nobody_could_read_are_refused(kind: str, name: str) -> None:
    # They reach operators' terminals, where an escape sequence is obeyed. All who are nameless
    # would fence each other.
    with pytest.raises(ConfigError, match="name") as refused:
        decode_request(encode_request(1, NEW_NAMES[kind](name)), SESSION)
    assert "\x1b" not in str(refused.value)
    decode_request(encode_request(1, NEW_NAMES[kind]("Ärger 1")), SESSION)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_the_journal_has_can_be_asked_for(name: str) -> None:
    for command in (
        commands.GetKey(name=name),
        commands.DeleteKey(name=name),
        commands.ListTransactions(producer_id=name),
        commands.FetchOffsets(group=name),
        commands.BindGroup(group=name, transaction_group=None),
    ):
        assert decode_request(encode_request(1, command), None) == command


NAMED: Final[Mapping[str, Callable[[str], commands.Command]]] = {
    "connect": lambda n: commands.Connect(producer_id=n, nonce=1),
    "group of add_offsets": lambda n: commands.AddOffsets(
        session=SESSION, txid=TxId(0, 1, 2), group=n, steps=()
    ),
    "group of fetch_offsets": lambda n: commands.FetchOffsets(group=n),
    "group of claim_offsets": lambda n: commands.ClaimOffsets(group=n, partitions=(), claimant=1),
    "group of bind_group": lambda n: commands.BindGroup(group=n, transaction_group=None),
    "transaction group": lambda n: commands.BindGroup(group="g", transaction_group=n),
    "producer of a listing": lambda n: commands.ListTransactions(producer_id=n),
    "page of keys": lambda n: commands.ListKeys(after=n),
    "key": lambda n: commands.GetKey(name=n),
    "deleted key": lambda n: commands.DeleteKey(name=n),
    "forgotten producer": lambda n: commands.ForgetProducer(producer_id=n),
    "forgotten group": lambda n: commands.ForgetGroup(group=n),
    "unbound group": lambda n: commands.UnbindGroup(group=n),
}
TOPICS: Final[Mapping[str, Callable[[str], commands.Command]]] = {
    "begin": lambda t: commands.Begin(
        session=SESSION, request_id=1, answered_below=0, timeout_ms=1, partitions=((t, 0),)
    ),
    "add_partitions": lambda t: commands.AddPartitions(
        txid=TxId(0, 1, 2), partitions=(("a", 0), (t, 0)), session=SESSION
    ),
    "add_offsets": lambda t: commands.AddOffsets(
        session=SESSION,
        txid=TxId(0, 1, 2),
        group="g",
        steps=(OffsetStep(t, 0, None, Position.at(1)),),
    ),
    "end": lambda t: commands.End(
        session=SESSION, txid=TxId(0, 1, 2), action=commands.Action.COMMIT, writes={(t, 0): ()}
    ),
    "add_writes": lambda t: commands.AddWrites(
        session=SESSION, txid=TxId(0, 1, 2), part=0, writes={(t, 0): ()}
    ),
    "fetch_offsets": lambda t: commands.FetchOffsets(group="g", partitions=((t, 0),)),
    "claim_offsets": lambda t: commands.ClaimOffsets(group="g", partitions=((t, 0),), claimant=1),
    "list_transactions": lambda t: commands.ListTransactions(topic=t),
    "set_topic_mode": lambda t: commands.SetTopicMode(topic=t, mode=Mode.METADATA),
    "describe_topics": lambda t: commands.DescribeTopics(topics=(t,)),
    "page of topics": lambda t: commands.DescribeTopics(after=t),
}


@pytest.mark.parametrize(
    ("make", "most"),
    [
        *(pytest.param(make, NAME_MAX_BYTES, id=name) for name, make in NAMED.items()),
        *(pytest.param(make, TOPIC_MAX_BYTES, id=name) for name, make in TOPICS.items()),
    ],
)
def test_a_name_has_so_many_bytes_and_no_more(
    make: Callable[[str], commands.Command], most: int
) -> None:
    for longest in ("x" * most, "é" * (most // 2), "x" * (most % 4) + "\U0001f600" * (most // 4)):
        command = make(longest)
        assert decode_request(encode_request(1, command), SESSION) == command
        with pytest.raises(errors.ConfigError, match=f"{most} are allowed"):
            decode_request(encode_request(1, make(longest + "é")), SESSION)


def test_an_iov_with_more_sequences_than_a_message_takes_leaves_out_those_met() -> None:
    met = {(number, 2**48 - 1): 2**62 for number in range(1_000)}
    delivered = {(1, 2): 3}
    offsets = {
        ("a", number): Position(o1=1, o2=2, o3=3, met=met, delivered=delivered)
        for number in range(51)
    }
    fits = dict(list(offsets.items())[:50])
    for iov, told in (
        (fits, fits),
        (offsets, {p: replace(o, met={}) for p, o in offsets.items()}),
    ):
        for reply in (commands.GroupOffsets(iov), commands.Claimed(1, commands.GroupOffsets(iov))):
            wire = encode_reply(1, reply)
            assert wire.ByteSize() < 2**21
            back = decode_reply(wire)
            found = back.offsets if isinstance(back, commands.Claimed) else back
            assert found == commands.GroupOffsets(told)


def test_a_hint_at_the_owner_crosses_the_wire() -> None:
    for hint in ("", "coordinator-2:9095"):
        told = decode_reply(encode_reply(7, errors.NotCoordinatorError("elsewhere", hint=hint)))
        assert isinstance(told, errors.NotCoordinatorError)
        assert (str(told), told.hint) == ("elsewhere", hint)


# ---- error codes --------------------------------------------------------------------------------

CODES: Final = {
    1: errors.ConfigError,
    2: errors.NotSupportedError,
    10: errors.CoordinatorNotAvailableError,
    11: errors.NotCoordinatorError,
    12: errors.CoordinatorLoadingError,
    13: errors.RequestTimedOutError,
    14: errors.OffsetsPendingError,
    15: errors.SessionClosedError,
    16: errors.TooManyTransactionsError,
    17: errors.CoordinatorBusyError,
    18: errors.MetadataStoreError,
    19: errors.WatchLaggedError,
    20: errors.UnknownTransactionError,
    21: errors.TransactionAbortedError,
    22: errors.TransactionCommittedError,
    23: errors.TransactionStateError,
    24: errors.TransactionAbortOnlyError,
    25: errors.OffsetsConflictError,
    26: errors.GroupBoundError,
    27: errors.RequestTooLargeError,
    28: errors.ConcurrentTransactionsError,
    29: errors.ClaimFencedError,
    30: errors.ProducerFencedError,
    31: errors.DoubleStartError,
    32: errors.NotAllowedError,
    33: errors.ExpiredTransactionError,
    34: errors.UnknownKeyError,
    35: errors.AckConflictError,
    36: errors.UnknownSubscriptionError,
    37: errors.NotAttachedError,
    38: errors.AckOutOfRangeError,
    39: errors.SubscriptionResetError,
    40: errors.UnknownTopicError,
    41: errors.UnsupportedTopicError,
    42: errors.JournalTopicError,
    43: errors.TopicError,
    44: errors.TopicModeError,
    45: errors.MetadataNotServedError,
    46: errors.FrameError,
    47: errors.TlsError,
    50: errors.BrokerError,
    60: errors.JournalError,
    61: errors.CorruptRecordError,
    62: errors.UnknownRecordError,
    63: errors.JournalTruncatedError,
    64: errors.HandedOverError,
}
"""Clients of every version read these numbers: never change a line, only add new ones."""


def test_codes_are_unique_and_stable() -> None:
    coded = [cls for cls in subclasses(LogtxError) if cls.__dict__.get("code")]
    assert len({cls.code for cls in coded}) == len(coded)
    assert {cls.code: cls for cls in coded} == CODES


def test_a_code_stands_for_its_own_class() -> None:
    # A subclass without a code of its own would come back as its parent.
    inherited = [cls for cls in subclasses(LogtxError) if cls.code and "code" not in cls.__dict__]
    assert inherited == []
