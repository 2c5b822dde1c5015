"""Journal records: golden bytes that every later version must still read, and round trips."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.acks import (
    Ack,
    Acks,
    AddAcks,
    SnapshotSubscription,
    Subscribe,
    SubscribeEffect,
    SubscriptionKind,
)
from logtx.journal.control import BranchRange
from logtx.journal.errors import CorruptRecordError, UnknownRecordError
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.codec import (
    FORMAT_VERSION,
    decode_by_schema,
    decode_entry,
    encode_by_schema,
    encode_entry,
)
from logtx.journal.records.conversion import columns_to_avro
from logtx.journal.records.fast_reader import NEWER_READERS, READERS
from logtx.journal.records.fast_writer import COLUMNS_MIN
from logtx.journal.records.types import (
    NO_PREDICTION,
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    DataPartition,
    Entry,
    Forget,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PointerStep,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    RecordType,
    Snapshot,
    SnapshotAdopted,
    SnapshotAdoption,
    SnapshotClaim,
    SnapshotGroup,
    SnapshotHanded,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotProducer,
    SnapshotSince,
    SnapshotSteps,
    SnapshotTransaction,
)
from logtx.journal.spans import AT_OFFSET, ORIGIN, MessageId, Span
from logtx.journal.state import State
from logtx.journal.txid import TxId

GOLDEN = Path(__file__).parents[2] / "golden"
"""A file per format version, lines `<name> <hex>`; never edited, only added to."""

IDS = (
    DataPartition("delays", 0, "W2ifJDqPQsqSLJHrGjYeEQ"),
    DataPartition("delays", 3, "W2ifJDqPQsqSLJHrGjYeEQ"),
    DataPartition("fares", 1),
)
WITH_FIRST_OFFSETS = (
    DataPartition("delays", 0, "W2ifJDqPQsqSLJHrGjYeEQ", 0),
    DataPartition("delays", 3, "W2ifJDqPQsqSLJHrGjYeEQ"),
    DataPartition("fares", 1, "", 900),
)
MET = {(0, 0x9F3AC1D2E4B7): 17042, (3, 1): 5}
chunk = partial(
    Snapshot,
    replaces=15000,
    address="host:7070",
    process_nonce=1,
    partition_count=8,
    past_epochs=(),
)
SAMPLES: dict[str, JournalRecord] = {
    "owner_first": Owner(replaces=-1, address="host:7070", process_nonce=2**63 - 1),
    "owner": Owner(replaces=16000, address="[::1]:7070", process_nonce=1),
    "producer": ProducerRecord(
        producer_id="worker-1", generation=7, session_nonce=42, owner="default", voided=True
    ),
    "begin": Begin(
        producer_id="worker-1",
        generation=7,
        session_nonce=42,
        request_id=12,
        answered_below=11,
        timeout_ms=60_000,
        started_ms=1_700_000_000_000,
        partitions=IDS,
    ),
    "begin_bare": Begin(
        producer_id="ü",
        generation=0,
        session_nonce=0,
        request_id=0,
        answered_below=0,
        timeout_ms=1,
        started_ms=0,
    ),
    "add_partitions": AddPartitions(begin=17042, partitions=IDS),
    "add_offsets": AddOffsets(
        begin=17042,
        group="audit",
        steps=(
            OffsetStep("fares", 1, None, Position.at(5)),
            OffsetStep("fares", 2, Place(9, 3), Position(o1=7, o2=12, o3=2, met=MET)),
            OffsetStep("fares", 3, Place(9), Position(o1=9, o2=9, met=MET, delivered={(3, 1): 4})),
        ),
    ),
    "prepare_commit": PrepareCommit(
        begin=17042,
        writes=(
            PartitionWrites(IDS[0], (BranchRange(0, 10, 19, 7), BranchRange(2**64 - 1, 3, 3, 1))),
            PartitionWrites(IDS[2], ()),
        ),
        decided_ms=1_700_000_000_123,
    ),
    "prepare_abort": PrepareAbort(
        begin=17042, reason=AbortReason.EXPIRED, decided_ms=1_700_000_000_123
    ),
    "committed": Committed(begin=17042),
    "committed_gone": Committed(begin=17042, gone=(("fares", 1), ("fares", 2))),
    "aborted": Aborted(begin=17042, gone=(("fares", 1),)),
    "bind": Bind(group="audit", transaction_group="default"),
}
"""What version 1 could say."""
STEP_9 = OffsetStep("fares", 2, Place(9, 3), Position(o1=7, o2=12, o3=2, met=MET))
SAMPLES_V2: dict[str, JournalRecord] = {
    **SAMPLES,
    "owner_of_eight": Owner(
        replaces=16000, address="[::1]:7070", process_nonce=1, partition_count=8
    ),
    "producer_connected": ProducerRecord(
        producer_id="&default&pay",
        generation=0,
        session_nonce=42,
        owner="default",
        connected_ms=1_700_000_000_000,
    ),
    "add_partitions_first_offsets": AddPartitions(begin=17042, partitions=WITH_FIRST_OFFSETS),
    "prepare_commit_first_offset": PrepareCommit(
        begin=17042, writes=(PartitionWrites(WITH_FIRST_OFFSETS[2], ()),), decided_ms=1
    ),
    "prepare_abort_retention": PrepareAbort(
        begin=17042, reason=AbortReason.RETENTION, decided_ms=1_700_000_000_123
    ),
    "snapshot": Snapshot(
        first=17040,
        index=2,
        last=True,
        replaces=15000,
        address="host:7070",
        process_nonce=2**63 - 1,
        partition_count=8,
        past_epochs=(14000, 15000),
        producers=(
            SnapshotProducer("worker-1", 7, 42, "default", True, 1_700_000_000_000, 11, ()),
            SnapshotProducer("ü", 0, 0, "me", False, 0, 0, ((12, 16500), (13, 16600))),
        ),
        transactions=(
            SnapshotTransaction(
                *(16500, "ü", 0, 60_000, 1_700_000_000_000, State.OPEN, None, None),
                partitions=WITH_FIRST_OFFSETS,
                steps=(
                    SnapshotSteps(
                        "audit",
                        (STEP_9,),
                        (
                            ("fares", 2, Place(9, 3), Place(11)),
                            ("fares", 2, Place(11), Place(12, 2)),
                            ("fares", 3, None, Place(0)),
                        ),
                    ),
                ),
            ),
            SnapshotTransaction(
                *(16600, "ü", 0, 60_000, 0, State.ABORTING, 16700, AbortReason.OPERATOR)
            ),
            SnapshotTransaction(
                *(16601, "ü", 0, 60_000, 0, State.COMMITTING, 16701, None),
                writes=(PartitionWrites(IDS[0], (BranchRange(2**64 - 1, 3, 3, 1),)),),
            ),
        ),
        groups=(SnapshotGroup("audit", 12000, 12001, (("fares", 2, STEP_9.to),)),),
        bindings=(("audit", "default"),),
    ),
    "claim": Claim(
        group="audit",
        claimant=2**63 - 1,
        partitions=(("delays", 0), ("delays", 3), ("fares", 1)),
    ),
    "prepare_abort_claimed": PrepareAbort(
        begin=17042, reason=AbortReason.CLAIMED, decided_ms=1_700_000_000_123
    ),
    "snapshot_claims": chunk(
        first=17040,
        index=0,
        last=True,
        transactions=(
            SnapshotTransaction(
                *(16500, "ü", 0, 60_000, 1_700_000_000_000, State.OPEN, None, None),
                doomed=AbortReason.CLAIMED,
            ),
        ),
        claims=(
            SnapshotClaim("audit", 12000, 42, (("fares", 1),)),
            SnapshotClaim("audit", 12007, 2**63 - 1, (("delays", 3), ("fares", 0))),
        ),
    ),
}
SAMPLES_V3: dict[str, JournalRecord] = {
    "snapshot_ages": chunk(
        first=17040,
        index=0,
        last=True,
        producers=(SnapshotProducer("w", 7, 42, "default", False, 0, 11, (), 168),),
        hour=170,
        generation_floor=2**40,
        group_uses=(("audit", 0), ("ü", 169)),
    ),
    "forget": Forget(hours=1, producers=("w", "g&&0f"), groups=("audit",), bindings=("ü", "b")),
    "forget_nothing": Forget(hours=1),
    "forget_topics": Forget(hours=0, topics=(("audit", "fares"), ("audit", "delays"))),
}
"""Records of the types that version 3 changed. It left the others as they are."""
RANGES = (BranchRange(7, 10, 19, 7), BranchRange(2**64 - 1, 2**40, 2**40 + 3, 1))
SAMPLES_V4: dict[str, JournalRecord] = {
    "add_writes": AddWrites(
        begin=17042,
        part=300,
        writes=(PartitionWrites(IDS[0], RANGES), PartitionWrites(IDS[2], RANGES[:1])),
    ),
    "add_writes_nothing": AddWrites(begin=17042, part=0, writes=()),
    "prepare_commit_in_parts": PrepareCommit(
        begin=17042,
        writes=(PartitionWrites(IDS[1], ()), PartitionWrites(IDS[2], RANGES[1:])),
        decided_ms=1_700_000_000_123,
        added=(IDS[0],),
    ),
    "snapshot_in_parts": chunk(
        first=17040,
        index=1,
        last=False,
        transactions=(
            SnapshotTransaction(
                *(16500, "ü", 0, 60_000, 0, State.OPEN, None, None),
                writes=(PartitionWrites(IDS[0], RANGES[:1]), PartitionWrites(IDS[0], RANGES[1:])),
                parts=3,
            ),
            SnapshotTransaction(*(16600, "w", 0, 60_000, 0, State.OPEN, None, None)),
        ),
    ),
}
SAMPLES_V4 |= {
    "add_offsets_with_topic_ids": AddOffsets(
        begin=17042,
        group="cönsumers",
        steps=(
            OffsetStep(
                "flights", 3, Place(10, 2), Position(o1=15, o2=16, topic_id=IDS[0].topic_id)
            ),
            OffsetStep("fares", 0, None, Position(o1=1, o2=2, o3=3, met={(1, 2): 3})),
        ),
    ),
    "snapshot_with_topic_ids": chunk(
        first=17040,
        index=0,
        last=True,
        groups=(
            SnapshotGroup("g", 1, 2, (("flights", 0, Position(o1=1, o2=2, topic_id="an-id")),)),
        ),
    ),
}
"""Records that transactions in parts have, or positions with their topics' ids. A chunk without
such is of version 3, a decision without parts and steps without ids of version 2."""
PASSED = Passed((3, 0x9F3AC1D2E4B7), 17042, 2)
D0, D3, F1 = (PartitionId(p.topic, p.partition, p.topic_id) for p in IDS)
SAMPLES_V5: dict[str, JournalRecord] = {
    "placed": Placed(17042, {D0: 1000, D3: 2**40, F1: GONE}),
    "placed_nothing": Placed(17042, {}),
    "mode_begins": ModeChange("delays", D0.topic_id, Phase.TO_METADATA),
    "mode_ends": ModeChange("delays", D0.topic_id, Phase.METADATA, {0: 1000, 3: 0}),
    "mode_without_records": ModeChange("ü", "", Phase.TO_MARKERS, with_records=False),
    "prepare_commit_placed": PrepareCommit(
        begin=17042,
        writes=(PartitionWrites(IDS[0], RANGES), PartitionWrites(IDS[2], RANGES[:1])),
        decided_ms=1_700_000_000_123,
        placed=(D0.key, F1.key),
    ),
    "prepare_commit_placed_in_parts": PrepareCommit(
        begin=17042,
        writes=(PartitionWrites(IDS[1], ()),),
        decided_ms=1_700_000_000_123,
        added=WITH_FIRST_OFFSETS[:1],
        placed=(D0.key,),
    ),
    "add_offsets_passed": AddOffsets(
        begin=17042,
        group="audit",
        steps=(
            OffsetStep(
                *("fares", 1, Place(9, 0, Passed((0, 1), 7))),
                Position(o1=9, o2=10, met=MET, passed=PASSED, topic_id="an-id"),
            ),
            OffsetStep("fares", 2, None, Position(o1=0, o2=1, passed=Passed((0, 1), 8))),
            OffsetStep("fares", 3, Place(9, 3, PASSED), Position.at(12)),
        ),
    ),
    "snapshot_modes": chunk(
        first=17040,
        index=0,
        last=True,
        modes=(
            SnapshotMode("delays", D0.topic_id, Phase.METADATA, 900, ((0, 1000), (3, 0))),
            SnapshotMode("fares", "", Phase.TO_METADATA, 901, with_records=False),
        ),
    ),
    "snapshot_places": chunk(
        first=17040,
        index=1,
        last=True,
        last_places=((D0, 1000), (D3, 2**40), (F1, 0)),
        places=(
            SnapshotPlaces(16500, 16501, ((D0, 990, 1000), (D3, 7, None), (F1, 12, GONE))),
            SnapshotPlaces(16600, 16602, ()),
        ),
        fence=15500,
        fence_places=((D0, 10),),
    ),
    "snapshot_passed": chunk(
        first=17040,
        index=1,
        last=False,
        transactions=(
            SnapshotTransaction(
                *(16500, "ü", 0, 60_000, 0, State.OPEN, None, None),
                steps=(
                    SnapshotSteps(
                        "audit",
                        (OffsetStep("fares", 2, Place(9, 3, PASSED), Position.at(12)),),
                        (("fares", 2, None, Place(9)), ("fares", 2, Place(9), Place(9, 0, PASSED))),
                    ),
                ),
            ),
        ),
        groups=(SnapshotGroup("g", 1, 2, (("fares", 0, Position(o1=1, o2=2, passed=PASSED)),)),),
    ),
}
"""Records that speak of modes and places, or of what was passed. Others are written as before."""
FOREIGN = TxId(3, 0x9F3AC1D2E4B7, 2**40)
SAMPLES_V6: dict[str, JournalRecord] = {
    "prepare_commit_handed": PrepareCommit(
        begin=17042,
        writes=(PartitionWrites(IDS[0], RANGES), PartitionWrites(IDS[2], RANGES[:1])),
        decided_ms=1_700_000_000_123,
        placed=(F1.key,),
        handed=((D0.key, 0), (D3.key, 0), (("ü", 7), 300)),
    ),
    "prepare_abort_handed": PrepareAbort(
        begin=17042,
        reason=AbortReason.EXPIRED,
        decided_ms=1_700_000_000_123,
        handed=((D0.key, 0),),
    ),
    "adopt": Adoption(
        FOREIGN,
        17042,
        True,
        (AdoptedWrites(D0, RANGES, True), AdoptedWrites(F1, RANGES[1:], False)),
        (17000, 17001),
    ),
    "adopt_aborted": Adoption(FOREIGN, 17043, False, (AdoptedWrites(D0, (), True),)),
    "snapshot_adopted": chunk(
        first=17040,
        index=0,
        last=True,
        handed=(SnapshotHanded(16500, ((D0.key, 3), (D3.key, 3), (F1.key, 4))),),
        adopted=(
            SnapshotAdopted((3, 0x9F3AC1D2E4B7), 17042, ((17000, (D0, D3)), (17001, (F1,)))),
            SnapshotAdopted((4, 1), -1),
        ),
        unplaced=(SnapshotAdoption(17030, FOREIGN, 16999, (AdoptedWrites(D0, RANGES, True),)),),
    ),
}
"""Records that speak of other homes. All others are written as before."""
MANY = tuple(
    PartitionWrites(DataPartition("delays", n, D0.topic_id), (BranchRange(0, n, n + 4, 3),))
    for n in range(COLUMNS_MIN - 1)
)
SAMPLES_V7: dict[str, JournalRecord] = {
    "prepare_commit_in_columns": PrepareCommit(
        begin=17042,
        writes=(*MANY, PartitionWrites(IDS[2], (BranchRange(0, 7, 7, 1),))),
        decided_ms=1_700_000_000_123,
        placed=tuple(w.partition.key for w in MANY),
    ),
    "prepare_commit_in_columns_of_all_kinds": PrepareCommit(
        begin=17042,
        writes=(
            *(PartitionWrites(each, RANGES) for each in WITH_FIRST_OFFSETS),
            *(replace(w, branches=()) for w in MANY),
            PartitionWrites(IDS[2], RANGES[1:]),
        ),
        decided_ms=1_700_000_000_123,
        added=IDS[1:2],
        placed=(D0.key,),
        handed=((F1.key, 3),),
    ),
}
"""Decisions with many partitions, of which some are placed or handed over."""
SINCE_OF_SIDECAR = (
    (("delays._txnlog", 0), 41),
    (("delays._txnlog", 3), 0),
    (("fares._txnlog", 1), 7),
)
SIDECARS = tuple(
    PartitionWrites(DataPartition(topic, partition), RANGES)
    for (topic, partition), _ in SINCE_OF_SIDECAR
)
SAMPLES_V8: dict[str, JournalRecord] = {
    "prepare_commit_with_sidecars": PrepareCommit(
        begin=17042,
        writes=(*SIDECARS, PartitionWrites(IDS[2], RANGES[1:])),
        decided_ms=1_700_000_000_123,
        sidecar_since=SINCE_OF_SIDECAR,
    ),
    "prepare_commit_with_sidecars_and_places": PrepareCommit(
        begin=17042,
        writes=(SIDECARS[0], *MANY, PartitionWrites(IDS[2], RANGES[1:])),
        decided_ms=1_700_000_000_123,
        added=IDS[1:2],
        placed=(D0.key,),
        handed=((F1.key, 3),),
        sidecar_since=SINCE_OF_SIDECAR[:1],
    ),
    "snapshot_with_sidecars": chunk(
        first=17040,
        index=0,
        last=True,
        sidecar_since=(SnapshotSince(17020, SINCE_OF_SIDECAR), SnapshotSince(17021, ())),
    ),
}
"""What speaks of records in sidecars. All others are written as before."""
SPANS = (
    Span(ORIGIN, MessageId(7, AT_OFFSET, 1)),
    Span(MessageId(7, 17042, 3), MessageId(7, 17042, 4)),
    Span(MessageId(9), MessageId(2**61, AT_OFFSET)),
)
ACKS = (Acks(D0, SPANS), Acks(F1, SPANS[:1]))
SAMPLES_V9: dict[str, JournalRecord] = {
    "subscribe": Subscribe(
        group="invoicing", kind=SubscriptionKind.FAILOVER, starts=((D0, 0), (F1, 900))
    ),
    "add_acks": AddAcks(begin=17042, group="invoicing", acks=ACKS),
    "ack": Ack(group="invoicing", acks=ACKS),
    "ack_rejected": Ack(group="invoicing", acks=ACKS[1:], rejected=True),
    "snapshot_subscriptions": chunk(
        first=17042,
        index=0,
        last=True,
        subscriptions=(
            SnapshotSubscription("invoicing", SubscriptionKind.SHARED, D0, SPANS, ()),
            SnapshotSubscription(
                "invoicing", SubscriptionKind.SHARED, F1, (), ((17040, SPANS[0]), (17042, SPANS[1]))
            ),
        ),
    ),
}
"""Records that speak of subscriptions."""
SUBSCRIPTIONS = (SnapshotSubscription("g", SubscriptionKind.SHARED, F1, (), ()),)
POINTERS = (
    PointerStep(("delays._txnlog", 0), 41, 2**40),
    PointerStep(("delays._txnlog", 3), 0, 0),
    PointerStep(("delays._txnlog", 3), 2**40, 7),
    PointerStep(("fares._txnlog", 1), 17, 3),
)
SAMPLES_V10: dict[str, JournalRecord] = {
    "committed_with_pointers": Committed(begin=17042, pointers=POINTERS),
    "committed_with_pointers_gone": Committed(
        begin=17042, gone=(("fares", 1),), pointers=POINTERS[:1]
    ),
    "snapshot_with_pointers": chunk(
        first=17042, index=0, last=True, subscriptions=SUBSCRIPTIONS, pointers=POINTERS
    ),
}
"""What speaks of pointers that were written. All others are written as before."""
ENDED = SnapshotSubscription("g", SubscriptionKind.FAILOVER, F1, SPANS[:1], (), era=17030)
SAMPLES_V11: dict[str, JournalRecord] = {
    "subscribe_replaces": Subscribe(
        group="invoicing",
        kind=SubscriptionKind.FAILOVER,
        starts=((D0, 0), (F1, 900)),
        effect=SubscribeEffect.REPLACES,
    ),
    "subscribe_ends": Subscribe(
        group="invoicing",
        kind=SubscriptionKind.SHARED,
        starts=(),
        effect=SubscribeEffect.ENDS,
    ),
    "snapshot_with_eras": chunk(
        first=17042,
        index=0,
        last=True,
        subscriptions=(*SUBSCRIPTIONS, ENDED),
        pointers=POINTERS[:1],
        last_era=17031,
    ),
    "snapshot_behind_an_era": chunk(first=17042, index=0, last=True, last_era=17031),
}
"""What ends eras of subscriptions, and snapshots behind that. All others are written as before."""
ASIDE = DataPartition("delays._txnlog", 3, "aside", 2**40)
MAIN = DataPartition("delays", 3, "main")
MAIN_ID = PartitionId("delays", 3, "main")
SAMPLES_V12: dict[str, JournalRecord] = {
    "prepare_commit_placed_sidecar": PrepareCommit(
        begin=17042,
        writes=(
            PartitionWrites(ASIDE, (BranchRange(0, 2**40, 2**40 + 9, 10),)),
            PartitionWrites(MAIN, ()),
        ),
        decided_ms=1_700_000_000_000,
        placed=(MAIN.key,),
        sidecar_since=((ASIDE.key, 41),),
    ),
    "snapshot_placed_sidecar": chunk(
        first=17042,
        index=0,
        last=True,
        places=(SnapshotPlaces(17040, 17041, ((MAIN_ID, 0, 41),)),),
        sidecar_since=(SnapshotSince(17040, ((ASIDE.key, 41),)),),
    ),
    "snapshot_unplaced_sidecar": chunk(
        first=17042,
        index=0,
        last=True,
        places=(SnapshotPlaces(17040, 17041, ((MAIN_ID, 0, None),)),),
    ),
}
"""What is placed in main partitions of sidecars (trap 170). All others are written as before."""
SAMPLES_V13: dict[str, JournalRecord] = {
    "adopt_in_shares": Adoption(
        TxId(1, 77, 17040),
        17041,
        True,
        (AdoptedWrites(MAIN_ID, (BranchRange(0, 2**40, 2**40 + 9, 10),), True),),
        more=True,
    ),
    "snapshot_within_shares": chunk(
        first=17042,
        index=0,
        last=True,
        adopted=(
            SnapshotAdopted((1, 77), 16000, (), ((17041, MAIN_ID),)),
            SnapshotAdopted((2, 77), 15000),
        ),
    ),
}
"""What is adopted in several records. All others are written as before."""
GOLDEN_SAMPLES = {
    1: SAMPLES,
    2: SAMPLES_V2,
    3: SAMPLES_V3,
    4: SAMPLES_V4,
    5: SAMPLES_V5,
    6: SAMPLES_V6,
    7: SAMPLES_V7,
    8: SAMPLES_V8,
    9: SAMPLES_V9,
    10: SAMPLES_V10,
    11: SAMPLES_V11,
    12: SAMPLES_V12,
    13: SAMPLES_V13,
}

LONG = st.integers(0, 2**63 - 1)
INT = st.integers(0, 2**31 - 1)
NAME = st.text(max_size=12)


def grouped(found: list[DataPartition]) -> tuple[DataPartition, ...]:
    """In the order that decoding gives: partitions of one topic and id side by side."""
    order: dict[tuple[str, str], list[DataPartition]] = {}
    for p in found:
        order.setdefault((p.topic, p.topic_id), []).append(p)
    return tuple(p for ps in order.values() for p in ps)


DATA_PARTITION = st.builds(DataPartition, NAME, INT, NAME, st.integers(-1, 2**62))
PARTITIONS = st.lists(DATA_PARTITION, max_size=4).map(grouped)
GONE_KEYS = PARTITIONS.map(
    lambda ps: tuple(p.key for p in grouped([DataPartition(*q.key) for q in ps]))
)
BRANCH = st.builds(
    lambda branch, first, count: BranchRange(branch, first, first + count, count),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    st.integers(1, 1000),
)
SEQUENCES = st.dictionaries(st.tuples(INT, LONG), LONG, max_size=3)
PASSINGS = st.builds(Passed, st.tuples(INT, LONG), LONG, INT)
POSITION = st.builds(
    Position,
    o1=LONG,
    o2=LONG,
    o3=LONG,
    met=SEQUENCES,
    delivered=SEQUENCES,
    passed=st.none() | PASSINGS,
    topic_id=st.just("") | NAME,
)
PLACE = st.builds(Place, LONG, LONG, st.none() | PASSINGS)
STEP = st.builds(OffsetStep, NAME, INT, st.none() | PLACE, POSITION)
WRITES = st.builds(PartitionWrites, DATA_PARTITION, st.lists(BRANCH, max_size=2).map(tuple))
TUPLES = partial(st.lists, max_size=2)
PARTITION_ID = st.builds(PartitionId, NAME, INT, NAME)
OFFSET = st.just(GONE) | LONG


def side_by_side(found: dict[PartitionId, Any]) -> list[PartitionId]:
    """Partitions of one topic and id side by side, as decoding gives them."""
    partitions = grouped([DataPartition(p.topic, p.partition, p.topic_id) for p in found])
    return [PartitionId(p.topic, p.partition, p.topic_id) for p in partitions]


OFFSETS = st.dictionaries(PARTITION_ID, OFFSET, max_size=3).map(
    lambda found: tuple((p, found[p]) for p in side_by_side(found))
)
PLACES = st.dictionaries(PARTITION_ID, st.tuples(LONG, st.none() | OFFSET), max_size=3).map(
    lambda found: tuple((p, *found[p]) for p in side_by_side(found))
)
SINCE = st.dictionaries(INT, LONG, max_size=3)
HANDED = st.dictionaries(NAME, st.tuples(st.lists(INT, max_size=3, unique=True), INT), max_size=2)
SINCES = st.lists(st.tuples(st.tuples(NAME, INT), OFFSET), max_size=4).map(
    lambda found: tuple(
        pair
        for topic in dict.fromkeys(p[0][0] for p in found)
        for pair in found
        if pair[0][0] == topic
    )
)
POINTER_STEPS = st.lists(st.builds(PointerStep, st.tuples(NAME, INT), LONG, LONG), max_size=4).map(
    lambda found: tuple(
        step
        for topic in dict.fromkeys(step.sidecar[0] for step in found)
        for step in found
        if step.sidecar[0] == topic
    )
)
HANDED_KEYS = HANDED.map(
    lambda found: tuple(
        ((topic, partition), home)
        for topic, (partitions, home) in found.items()
        for partition in partitions
    )
)
TXID = st.builds(TxId, st.integers(0, 2**16 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**62))
ADOPTED_WRITES = TUPLES(
    st.builds(AdoptedWrites, PARTITION_ID, st.lists(BRANCH, max_size=2).map(tuple), st.booleans())
).map(tuple)
PARTITION_IDS = OFFSETS.map(lambda found: tuple(p for p, _ in found))
PHASE = st.sampled_from(Phase)
MESSAGE = st.builds(
    MessageId,
    *(st.integers(0, 2**62 - 1), st.just(AT_OFFSET) | st.integers(0, 2**62 - 1)),
    st.integers(0, 2**62 - 1),
)
SPAN = (
    st.tuples(MESSAGE, MESSAGE).filter(lambda t: t[0] != t[1]).map(lambda t: Span(min(t), max(t)))
)
SOME_SPANS = st.lists(SPAN, max_size=3).map(tuple)
ACKS_OF_SOME = st.lists(st.builds(Acks, PARTITION_ID, SOME_SPANS), max_size=3).map(tuple)
SNAPSHOT = st.builds(
    Snapshot,
    first=LONG,
    index=INT,
    last=st.booleans(),
    replaces=st.integers(-1, 2**62),
    address=NAME,
    process_nonce=LONG,
    partition_count=INT,
    past_epochs=TUPLES(LONG).map(tuple),
    producers=TUPLES(
        st.builds(
            SnapshotProducer,
            *(NAME, INT, LONG, NAME, st.booleans(), LONG, LONG),
            TUPLES(st.tuples(LONG, LONG)).map(tuple),
            LONG,
        )
    ).map(tuple),
    transactions=TUPLES(
        st.builds(
            SnapshotTransaction,
            *(LONG, NAME, INT, INT, LONG, st.sampled_from(State), st.none() | LONG),
            st.none() | st.sampled_from(AbortReason),
            PARTITIONS,
            TUPLES(WRITES).map(tuple),
            TUPLES(
                st.builds(
                    SnapshotSteps,
                    NAME,
                    TUPLES(STEP).map(tuple),
                    TUPLES(st.tuples(NAME, INT, st.none() | PLACE, PLACE)).map(tuple),
                )
            ).map(tuple),
            st.none() | st.sampled_from(AbortReason),
            st.just(0) | INT,
        )
    ).map(tuple),
    groups=TUPLES(
        st.builds(
            SnapshotGroup, NAME, LONG, LONG, TUPLES(st.tuples(NAME, INT, POSITION)).map(tuple)
        )
    ).map(tuple),
    bindings=TUPLES(st.tuples(NAME, NAME)).map(tuple),
    claims=TUPLES(st.builds(SnapshotClaim, NAME, LONG, LONG, GONE_KEYS)).map(tuple),
    hour=LONG,
    generation_floor=st.integers(-1, 2**62),
    group_uses=TUPLES(st.tuples(NAME, LONG)).map(tuple),
    modes=TUPLES(
        st.builds(
            SnapshotMode,
            *(NAME, NAME, PHASE, LONG, SINCE.map(lambda since: tuple(sorted(since.items())))),
            st.booleans(),
        )
    ).map(tuple),
    last_places=OFFSETS,
    places=TUPLES(st.builds(SnapshotPlaces, LONG, LONG, PLACES)).map(tuple),
    fence=OFFSET,
    fence_places=OFFSETS,
    handed=TUPLES(st.builds(SnapshotHanded, LONG, HANDED_KEYS)).map(tuple),
    sidecar_since=TUPLES(st.builds(SnapshotSince, LONG, SINCES)).map(tuple),
    adopted=TUPLES(
        st.builds(
            SnapshotAdopted,
            st.tuples(INT, LONG),
            st.integers(-1, 2**62),
            TUPLES(st.tuples(LONG, PARTITION_IDS)).map(tuple),
            st.lists(st.tuples(LONG, PARTITION_ID), max_size=1).map(tuple),
        )
    ).map(tuple),
    unplaced=TUPLES(st.builds(SnapshotAdoption, LONG, TXID, LONG, ADOPTED_WRITES)).map(tuple),
    subscriptions=TUPLES(
        st.builds(
            SnapshotSubscription,
            *(NAME, st.sampled_from(SubscriptionKind), PARTITION_ID, SOME_SPANS),
            TUPLES(st.tuples(LONG, SPAN)).map(tuple),
        )
    ).map(tuple),
    pointers=POINTER_STEPS,
)
ERAS = st.builds(
    lambda chunk, last_era, eras: replace(
        chunk,
        last_era=last_era,
        subscriptions=tuple(
            row._replace(era=min(era, last_era))
            for row, era in zip(chunk.subscriptions, eras, strict=False)
        ),
    ),
    SNAPSHOT,
    st.just(0) | LONG,
    st.lists(LONG, min_size=4, max_size=4),
)
"""Snapshots behind eras that ended, and before any did."""
NAMES = TUPLES(NAME).map(tuple)
PAIRS = TUPLES(st.tuples(NAME, NAME)).map(tuple)
RECORD: st.SearchStrategy[JournalRecord] = st.one_of(
    st.builds(Forget, hours=INT, producers=NAMES, groups=NAMES, bindings=NAMES, topics=PAIRS),
    st.builds(
        Owner,
        replaces=st.integers(-1, 2**62),
        address=NAME,
        process_nonce=LONG,
        partition_count=INT,
    ),
    st.builds(
        ProducerRecord,
        producer_id=NAME,
        generation=INT,
        session_nonce=LONG,
        owner=NAME,
        voided=st.booleans(),
        connected_ms=LONG,
    ),
    st.builds(
        Begin,
        producer_id=NAME,
        generation=INT,
        session_nonce=LONG,
        request_id=LONG,
        answered_below=LONG,
        timeout_ms=INT,
        started_ms=LONG,
        partitions=PARTITIONS,
    ),
    st.builds(AddPartitions, begin=LONG, partitions=PARTITIONS),
    st.builds(AddOffsets, begin=LONG, group=NAME, steps=st.lists(STEP, max_size=2).map(tuple)),
    st.builds(
        PrepareCommit,
        begin=LONG,
        writes=st.lists(WRITES, max_size=2).map(tuple),
        decided_ms=LONG,
        added=st.just(()) | PARTITIONS,
        placed=st.just(()) | GONE_KEYS,
        handed=st.just(()) | HANDED_KEYS,
        sidecar_since=st.just(()) | SINCES,
    ),
    st.builds(
        PrepareCommit,
        begin=LONG,
        writes=st.lists(WRITES, min_size=COLUMNS_MIN - 1, max_size=COLUMNS_MIN + 2).map(tuple),
        decided_ms=LONG,
        added=st.just(()) | PARTITIONS,
        placed=GONE_KEYS,
        handed=st.just(()) | HANDED_KEYS,
    ),
    st.builds(
        Adoption,
        *(TXID, LONG, st.booleans(), ADOPTED_WRITES),
        st.lists(LONG, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(Placed, LONG, OFFSETS.map(dict)),
    st.builds(ModeChange, NAME, NAME, PHASE, SINCE, st.booleans()),
    st.builds(AddWrites, begin=LONG, part=INT, writes=st.lists(WRITES, max_size=3).map(tuple)),
    st.builds(
        PrepareAbort,
        begin=LONG,
        reason=st.sampled_from(AbortReason),
        decided_ms=LONG,
        handed=st.just(()) | HANDED_KEYS,
    ),
    st.builds(Committed, begin=LONG, gone=GONE_KEYS, pointers=st.just(()) | POINTER_STEPS),
    st.builds(Aborted, begin=LONG, gone=GONE_KEYS),
    st.builds(Bind, group=NAME, transaction_group=NAME),
    st.builds(Claim, group=NAME, claimant=LONG, partitions=GONE_KEYS),
    st.builds(
        Subscribe,
        group=NAME,
        kind=st.sampled_from(SubscriptionKind),
        starts=OFFSETS,
        effect=st.sampled_from(SubscribeEffect),
    ),
    st.builds(AddAcks, begin=LONG, group=NAME, acks=ACKS_OF_SOME),
    st.builds(Ack, group=NAME, acks=ACKS_OF_SOME, rejected=st.booleans()),
    ERAS,
)
ENTRY = st.builds(
    Entry, st.integers(-1, 2**62), st.integers(0, 2**48 - 1), RECORD, st.integers(-1, 2**62)
)


def golden(version: int) -> dict[str, bytes]:
    lines = (line.split() for line in (GOLDEN / f"journal_v{version}.txt").read_text().splitlines())
    return {name: bytes.fromhex(raw) for name, raw in lines}


def entry_of(record: JournalRecord) -> Entry:
    predicted = NO_PREDICTION if isinstance(record, Owner) else 17042
    return Entry(16000, 0x9F3AC1D2E4B7, record, predicted)


@pytest.mark.parametrize(
    ("version", "name"), [(v, name) for v, samples in GOLDEN_SAMPLES.items() for name in samples]
)
def test_golden(version: int, name: str) -> None:
    raw, entry = golden(version)[name], entry_of(GOLDEN_SAMPLES[version][name])
    assert raw[0] == version
    assert decode_entry(raw) == entry
    if version >= (written := encode_entry(entry))[0]:
        assert written.hex() == raw.hex()


def test_every_type_has_a_golden_record() -> None:
    assert set(GOLDEN_SAMPLES) == set(range(1, FORMAT_VERSION + 1))
    samples = SAMPLES_V2 | SAMPLES_V3 | SAMPLES_V4 | SAMPLES_V5 | SAMPLES_V6 | SAMPLES_V7
    samples |= SAMPLES_V8 | SAMPLES_V9 | SAMPLES_V10 | SAMPLES_V11 | SAMPLES_V12
    assert {r.type for r in samples.values()} == set(RecordType)
    for version, samples in GOLDEN_SAMPLES.items():
        assert golden(version).keys() == samples.keys()


@given(ENTRY)
def test_round_trip(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry
    assert decode_by_schema(encode_entry(entry)) == entry


@given(ENTRY)
def test_what_is_written_by_hand_is_what_the_schema_says(entry: Entry) -> None:
    assert encode_entry(entry) == encode_by_schema(entry)


@pytest.mark.parametrize("writes", [MANY[:2], (*MANY, *MANY[:2])], ids=["rows", "columns"])
@pytest.mark.parametrize("is_placed", [True, False])
def test_a_commit_with_sidecars_is_read_by_hand_whatever_it_says(
    writes: tuple[PartitionWrites, ...], is_placed: bool
) -> None:
    side = (f"{D0.topic}._txnlog", D0.partition)
    commit = PrepareCommit(
        begin=1,
        writes=writes,
        decided_ms=2,
        added=(DataPartition(*D0),),
        placed=(D0.key, writes[0].partition.key) if is_placed else (),
        handed=(((D0.topic, 77), 5), (("handed", 1), 6)),
        sidecar_since=((side, 2**40), ((side[0], 9), 0)),
    )
    raw = encode_entry(entry_of(commit))
    assert raw[0] == (12 if is_placed else 8)
    assert (raw[0], raw[1]) in NEWER_READERS
    assert decode_entry(raw) == decode_by_schema(raw) == entry_of(commit)


# The last numbers of two and of four bytes, and the first ones that are longer.
@pytest.mark.parametrize("last", [0, 2**13 - 1, 2**13, 2**27 - 1, 2**27, 2**62])
@pytest.mark.parametrize("first", [0, 2**13])
def test_columns_of_offsets_of_any_size_are_what_the_schema_says(first: int, last: int) -> None:
    ranges = (BranchRange(0, first, max(first, last), 1),)
    writes = tuple(replace(w, branches=(BranchRange(0, last, last, 1),)) for w in MANY)
    writes = (*writes, replace(MANY[0], branches=ranges))
    entry = entry_of(PrepareCommit(begin=1, writes=writes, decided_ms=2, placed=(D0.key,)))
    assert encode_entry(entry) == encode_by_schema(entry)
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_refused_by_either_way(number: int) -> None:
    entry = Entry(0, 1, Committed(begin=number), 2)
    for encode in (encode_entry, encode_by_schema):
        with pytest.raises(OverflowError):
            encode(entry)


@given(ENTRY)
def test_what_is_read_when_it_is_wanted_is_the_same(entry: Entry) -> None:
    raw = encode_entry(entry)
    assert decode_entry(raw, lazily=True) == entry
    assert entry == decode_entry(raw, lazily=True)


def test_a_decision_that_does_not_decode_says_so_when_it_is_wanted() -> None:
    placed = SAMPLES_V5["prepare_commit_placed"]
    for said in (SAMPLES["prepare_commit"], SAMPLES_V4["add_writes"], placed):
        raw = encode_entry(Entry(0, 1, said, 2))
        for broken in (raw[:-1], raw + b"\0", raw[:-12] + b"\xff" * 30):
            with pytest.raises(CorruptRecordError):
                decode_entry(broken)
            record = decode_entry(broken, lazily=True).record
            assert isinstance(record, PrepareCommit | AddWrites)
            for _ in range(2):
                with pytest.raises((ValueError, IndexError)):
                    _ = record.writes


def test_where_a_decision_is_placed_is_known_before_what_was_written_is_read() -> None:
    """Readers look at each decision of a home, and most name none of their partitions."""
    said = SAMPLES_V5["prepare_commit_placed"]
    assert isinstance(said, PrepareCommit)
    raw = encode_entry(Entry(0, 1, said, 2))
    marked = encode_entry(Entry(0, 1, SAMPLES["prepare_commit"], 2))
    for whole, placed in ((raw, said.placed), (marked, ())):
        record = decode_entry(whole[:-5], lazily=True).record
        assert isinstance(record, PrepareCommit)
        assert (record.begin, record.placed) == (said.begin, placed)
        with pytest.raises((ValueError, IndexError)):
            _ = record.writes


BARE = Position.at(2)
PASSED_BY = replace(BARE, passed=PASSED)
SAYS_MORE: list[tuple[int, JournalRecord, JournalRecord]] = [
    (2, *(PrepareCommit(begin=1, writes=(), decided_ms=2, placed=p) for p in ((), (F1.key,)))),
    (
        2,
        *(
            AddOffsets(begin=1, group="g", steps=(OffsetStep("a", 0, None, p),))
            for p in (BARE, PASSED_BY)
        ),
    ),
    (
        2,
        *(
            AddOffsets(begin=1, group="g", steps=(OffsetStep("a", 0, p, BARE),))
            for p in (Place(1), Place(1, 0, PASSED))
        ),
    ),
    *(
        (3, chunk(first=1, index=0, last=True), chunk(first=1, index=0, last=True, **more))
        for more in (
            {"modes": (SnapshotMode("a", "", Phase.MARKERS, 1),)},
            {"last_places": ((F1, 0),)},
            {"places": (SnapshotPlaces(1, 2, ()),)},
            {"fence": 0},
            {"fence_places": ((F1, 0),)},
            {"groups": (SnapshotGroup("g", 1, 2, (("a", 0, PASSED_BY),)),)},
            *(
                {
                    "transactions": (
                        SnapshotTransaction(
                            *(1, "p", 0, 1, 0, State.OPEN, None, None),
                            steps=(SnapshotSteps("g", steps, sent),),
                        ),
                    )
                }
                for steps, sent in (
                    ((OffsetStep("a", 0, None, PASSED_BY),), ()),
                    ((OffsetStep("a", 0, Place(1, 0, PASSED), BARE),), ()),
                    ((), (("a", 0, Place(1, 0, PASSED), Place(2)),)),
                    ((), (("a", 0, None, Place(2, 0, PASSED)),)),
                )
            ),
        )
    ),
]
"""(version, a record, what needs version 5 to be said)."""
HANDED_OVER = ((F1.key, 1),)
SAYS_STILL_MORE: list[tuple[int, JournalRecord, JournalRecord]] = [
    (
        5,
        *(
            PrepareCommit(begin=1, writes=(), decided_ms=2, placed=(D0.key,), handed=h)
            for h in ((), HANDED_OVER)
        ),
    ),
    (
        2,
        *(
            PrepareAbort(begin=1, reason=AbortReason.EXPIRED, decided_ms=2, handed=h)
            for h in ((), HANDED_OVER)
        ),
    ),
    *(
        (3, chunk(first=1, index=0, last=True), chunk(first=1, index=0, last=True, **more))
        for more in (
            {"handed": (SnapshotHanded(1, HANDED_OVER),)},
            {"adopted": (SnapshotAdopted((0, 1), 2),)},
            {"unplaced": (SnapshotAdoption(1, FOREIGN, 2, ()),)},
        )
    ),
]
"""The same for version 6."""
FEW_AND_MANY = [
    PrepareCommit(begin=1, writes=MANY[:n] + MANY[:1], decided_ms=2, placed=(D0.key,))
    for n in (COLUMNS_MIN - 2, COLUMNS_MIN - 1)
]
IN_COLUMNS: list[tuple[int, JournalRecord, JournalRecord]] = [
    (5, *FEW_AND_MANY),
    (2, replace(FEW_AND_MANY[1], placed=()), FEW_AND_MANY[1]),
]
"""The same for version 7."""


@pytest.mark.parametrize(
    ("needed", "version", "before", "more"),
    [
        *((5, *each) for each in SAYS_MORE),
        *((6, *each) for each in SAYS_STILL_MORE),
        *((7, *each) for each in IN_COLUMNS),
        (
            *(9, 3, chunk(first=1, index=0, last=True)),
            chunk(first=1, index=0, last=True, subscriptions=SUBSCRIPTIONS),
        ),
        (10, 2, Committed(begin=1), Committed(begin=1, pointers=POINTERS)),
        (
            *(10, 9, chunk(first=1, index=0, last=True, subscriptions=SUBSCRIPTIONS)),
            chunk(first=1, index=0, last=True, subscriptions=SUBSCRIPTIONS, pointers=POINTERS[:1]),
        ),
        *(
            (
                *(11, 9, Subscribe(group="g", kind=SubscriptionKind.SHARED, starts=((F1, 4),))),
                Subscribe(
                    group="g", kind=SubscriptionKind.SHARED, starts=((F1, 4),), effect=effect
                ),
            )
            for effect in (SubscribeEffect.REPLACES, SubscribeEffect.ENDS)
        ),
        (
            *(11, 3, chunk(first=1, index=0, last=True)),
            chunk(first=1, index=0, last=True, last_era=7),
        ),
    ],
)
def test_only_what_an_older_program_would_misread_is_of_a_newer_version(
    needed: int, version: int, before: JournalRecord, more: JournalRecord
) -> None:
    assert encode_entry(entry_of(before))[0] == version
    raw = encode_entry(entry_of(more))
    assert raw[0] == needed
    assert decode_entry(raw) == entry_of(more)


def test_what_is_read_by_hand_is_what_a_journal_is_made_of() -> None:
    rare = {
        RecordType.OWNER,
        RecordType.BIND,
        RecordType.SNAPSHOT,
        RecordType.FORGET,
        RecordType.MODE,
        RecordType.ADOPT,
        RecordType.SUBSCRIBE,
        RecordType.ADD_ACKS,
        RecordType.ACK,
    }
    assert set(READERS) == set(RecordType) - rare


@pytest.mark.parametrize("body", [b"\x80" * 12, b"\xff" * 40, b"\x00\x02\x00\x01"])
def test_numbers_and_blocks_that_nobody_writes_are_corrupt(body: bytes) -> None:
    since = {RecordType.ADD_WRITES: 4, RecordType.PLACED: 5}
    read = [(since.get(RecordType(code), 2), code) for code in READERS]
    for version, code in (*read, *NEWER_READERS):
        with pytest.raises(CorruptRecordError):
            decode_entry(bytes((version, code)) + body)


@given(st.integers(0, 32), st.binary(max_size=60))
def test_random_bytes_decode_or_raise_the_typed_error(code: int, body: bytes) -> None:
    for raw in (body, bytes((2, code)) + body, bytes((FORMAT_VERSION, code)) + body):
        with suppress(CorruptRecordError, UnknownRecordError):
            decode_entry(raw)


@given(ENTRY, st.data())
def test_a_cut_or_changed_record_never_crashes(entry: Entry, data: st.DataObject) -> None:
    raw = bytearray(encode_entry(entry))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises((CorruptRecordError, UnknownRecordError)):
        decode_entry(cut)
    with pytest.raises(CorruptRecordError):
        decode_entry(bytes(raw) + b"\0")
    raw[data.draw(st.integers(2, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptRecordError, UnknownRecordError):
        decode_entry(bytes(raw))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("partitions", [0]),
        ("registered", [1]),
        ("registered", [1] * (COLUMNS_MIN + 1)),
        ("range_counts", [1] * (COLUMNS_MIN + 1)),
        ("range_counts", [1] * (COLUMNS_MIN - 1) + [2]),
        ("range_counts", [1] * (COLUMNS_MIN - 1) + [0]),
        ("range_counts", [2] + [1] * (COLUMNS_MIN - 1) + [-1]),
        ("branches", [1]),
        ("first_offsets", [0]),
        ("last_offsets", [4]),
        ("counts", [3] * (COLUMNS_MIN - 1)),
        ("counts", [9] * COLUMNS_MIN),
    ],
)
def test_columns_that_do_not_fit_together_are_corrupt(column: str, values: list[int]) -> None:
    # A range that has no partition, or a partition that lacks one, would be lost without a word.
    writes = (*MANY, replace(MANY[0], partition=DataPartition("delays", 99, D0.topic_id)))
    record = PrepareCommit(begin=17042, writes=writes, decided_ms=2, placed=(D0.key,))
    decode_entry(encode_by_schema(entry_of(record)))
    wrong = [{**columns_to_avro(writes)[0], column: values}]
    with patch("logtx.journal.records.codec.columns_to_avro", lambda _: wrong):
        raw = encode_by_schema(entry_of(record))
    with pytest.raises(CorruptRecordError):
        decode_entry(raw)


@pytest.mark.parametrize("raw", [None, b"", b"\x01"])
def test_an_empty_record_is_corrupt(raw: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        decode_entry(raw)


@pytest.mark.parametrize(
    "head",
    [
        b"\x0e\x03",
        b"\x08\x15",
        b"\x04\x0f",
        b"\x04\x13",
        b"\x03\x12",
        b"\x02\x11",
        b"\x02\x20",
        b"\x01\x10",
        b"\x00\x01",
    ],
)
def test_newer_records_ask_for_an_upgrade(head: bytes) -> None:
    with pytest.raises(UnknownRecordError, match="upgrade"):
        decode_entry(head + b"anything")
