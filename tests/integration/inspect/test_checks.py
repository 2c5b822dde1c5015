"""The audit where a commit is placed: no marker, and all records that its decision states."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.integration.inspect.checks import Audit, Report
from logtx.integration.inspect.groups import Group
from logtx.journal.control import (
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    encode_data_control,
    encode_marker,
    encode_mode_record,
)
from logtx.journal.places import GONE, PartitionId
from logtx.journal.records.scan import JournalPart, SeenAdoption, SeenTransaction
from logtx.journal.records.types import DataPartition, PartitionWrites, PointerStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

P = PartitionId("p", 0, "id")
TXID = TxId(0, 1, 10)
WRITES = (PartitionWrites(DataPartition(*P), (BranchRange(0, 5, 8, 3),)),)


def audited(seen: SeenTransaction, *groups: Group) -> Report:
    part = JournalPart(0, 0, {TXID.offset: seen})
    audit = Audit(finished_before={TXID: seen}, parts=[part], starts={P.key: 0}, now_ms=0)
    audit.feed(groups)
    audit.check([P.key])
    return audit.finish({})


def group(records: int, first: int = 5, last: int = 8, raw: bytes = TXID.to_bytes()) -> Group:
    return Group(*P.key, raw, b"", records, first, last, 0)


def committed(placed: bool) -> SeenTransaction:
    return SeenTransaction(
        txid=TXID,
        state=State.COMMITTED,
        partitions={P.key},
        commit_sequence=12,
        writes=WRITES,
        placed=frozenset({P.key}) if placed else frozenset(),
        places={P: 9} if placed else {},
    )


@pytest.mark.parametrize(
    ("placed", "groups", "found"),
    [
        (True, (group(3),), set()),
        (True, (group(2, last=7),), {("violation", "record_counts")}),
        (True, (), {("violation", "record_counts")}),
        (False, (group(3),), {("violation", "decision_markers")}),
    ],
)
def test_what_is_placed_needs_no_marker_and_all_its_records(
    placed: bool, groups: tuple[Group, ...], found: set[tuple[str, str]]
) -> None:
    report = audited(committed(placed), *groups)
    assert {(str(severity), check) for severity, check in report.counts} == found


def test_records_behind_the_range_are_counted_again() -> None:
    report = audited(committed(placed=True), group(4, last=30))
    assert report.clean
    assert [suspect.stated for suspect in report.suspects] == list(WRITES[0].branches)


def ended(number: int, sequence: int, place: int | None) -> SeenTransaction:
    """A commit that wrote one record, at offset `number`, and is placed, or marked."""
    branches = (BranchRange(0, number, number, 1),)
    return SeenTransaction(
        txid=TxId(0, 1, number),
        state=State.COMMITTED,
        partitions={P.key},
        commit_sequence=sequence,
        writes=(PartitionWrites(DataPartition(*P), branches),),
        placed=frozenset() if place is None else frozenset({P.key}),
        places={} if place is None else {P: place},
    )


def marker_at(offset: int, seen: SeenTransaction, topic_id: str = P.topic_id) -> Group:
    assert seen.commit_sequence is not None
    marker = Marker(
        committed=True,
        commit_sequence=seen.commit_sequence,
        hw=0,
        epoch=0,
        branches=seen.writes[0].branches,
        topic_id=topic_id,
    )
    return Group(*P.key, seen.txid.to_bytes(), encode_marker(marker), 1, offset, offset, 1)


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([(1, 20, 9), (2, 21, 9), (3, 22, 11)], set()),
        ([(1, 20, 9), (2, 21, 8)], {"place_order"}),
        ([(1, 20, 1)], {"place_records"}),
        ([(1, 20, 2)], set()),
        ([(1, 20, GONE), (2, 21, 8)], set()),
        # Markers (-offset) and places: what is placed at an offset comes before the marker there.
        ([(1, 20, -7), (2, 21, 8)], set()),
        ([(1, 20, 9), (2, 21, -9)], set()),
        ([(1, 21, -9), (2, 20, 10)], {"place_order"}),
        ([(1, 21, 9), (2, 20, -9)], {"place_order"}),
    ],
)
def test_markers_and_places_of_a_journal_keep_one_order(
    ends: list[tuple[int, int, int]], found: set[str]
) -> None:
    seen, groups = {}, []
    for number, sequence, place in ends:
        is_marked = place < GONE
        each = seen[number] = ended(number, sequence, None if is_marked else place)
        groups.append(Group(*P.key, each.txid.to_bytes(), b"", 1, number, number, 0))
        if is_marked:
            groups.append(marker_at(-place, each))
    part = JournalPart(0, 0, seen)
    finished = {each.txid: each for each in seen.values()}
    audit = Audit(finished_before=finished, parts=[part], starts={P.key: 0}, now_ms=0)
    audit.feed(groups)
    audit.check([P.key])
    assert {check for _, check in audit.finish({}).counts} == found


def test_a_marker_of_a_deleted_topic_of_that_name_keeps_no_order_with_places() -> None:
    former, now = ended(1, 21, None), ended(2, 20, 10)
    part = JournalPart(0, 0, {1: former, 2: now})
    audit = Audit(finished_before={}, parts=[part], starts={P.key: 0}, now_ms=0)
    audit.feed([marker_at(9, former, topic_id="another")])
    audit.check([P.key])
    assert "place_order" not in {check for _, check in audit.finish({}).counts}


def handed_over(*adopted: SeenAdoption, first: int = 0, marker: int | None = None) -> Report:
    """Audits two transactions of journal 0: the home 1 has adopted what is said."""
    transactions = {n: ended(n, sequence, None) for n, sequence in ((1, 20), (2, 21))}
    for each in transactions.values():
        each.handed = frozenset({P.key})
    own = ended(3, 6, 10)
    own.txid = TxId(1, 1, 3)
    said = {each.offset: each for each in adopted}
    parts = [JournalPart(0, 0, transactions), JournalPart(1, first, {3: own}, adopted=said)]
    finished = {each.txid: each for each in transactions.values()}
    audit = Audit(finished_before=finished, parts=parts, starts={P.key: 0}, now_ms=0)
    for number, each in transactions.items():
        audit.feed([Group(*P.key, each.txid.to_bytes(), b"", 1, number, number, 0)])
    if marker is not None:
        audit.feed([marker_at(marker, transactions[1])])
    audit.check([P.key])
    return audit.finish({})


def adoption(number: int, sequence: int, at: int, place: int | None) -> SeenAdoption:
    return SeenAdoption((1, 1), at, TxId(0, 1, number), sequence, True, {P: place})


FIRST, SECOND = adoption(1, 20, 7, 11), adoption(2, 21, 8, 12)


@pytest.mark.parametrize(
    ("report", "found"),
    [
        (handed_over(FIRST, SECOND), set()),
        (handed_over(FIRST, adoption(2, 21, 8, GONE)), set()),
        (handed_over(FIRST), {("violation", "decision_places")}),
        (handed_over(FIRST, first=5), {("unverifiable", "decision_places")}),
        # The home refused the first one.
        (handed_over(SECOND, marker=9), set()),
        (handed_over(adoption(1, 20, 7, 13), SECOND), {("violation", "place_order")}),
        # The home's own, of sequence 6, is placed at 10.
        (handed_over(adoption(1, 20, 5, 11), SECOND), {("violation", "place_order")}),
        (
            handed_over(adoption(1, 20, 7, 1), SECOND),
            {("violation", "place_records"), ("violation", "place_order")},
        ),
        (
            handed_over(adoption(1, 19, 7, 11), SECOND),
            {("violation", "adoption"), ("violation", "decision_places")},
        ),
    ],
)
def test_what_is_handed_over_is_placed_by_its_home_or_marked(
    report: Report, found: set[tuple[str, str]]
) -> None:
    assert set(report.counts) == found


@pytest.mark.parametrize("placed", [True, False])
def test_an_abort_needs_a_marker_but_in_a_topic_in_metadata_mode(placed: bool) -> None:
    seen = SeenTransaction(
        txid=TXID,
        state=State.ABORTED,
        partitions={P.key},
        commit_sequence=12,
        placed=frozenset({P.key}) if placed else frozenset(),
    )
    assert audited(seen, group(3)).clean is placed


@pytest.mark.parametrize("blank", [1, 0])
def test_a_mode_record_is_of_no_transaction(blank: int) -> None:
    """Its TxId names the MODE record; one with a key or a value is none."""
    raw = TxId(0, 1, 4).to_bytes()
    turned = Group(*P.key, raw, encode_mode_record(ModeRecord(places=True)), 1, 2, 2, blank)
    report = audited(committed(placed=True), group(3), turned)
    assert report.clean is bool(blank)
    assert (report.markers, report.records) == (0, 3)


# ---- sidecars -----------------------------------------------------------------------------------

MAIN, SIDE = ("p", 0), ("p._txnlog", 0)
ASIDE = (BranchRange(0, 5, 8, 3), BranchRange(7, 4, 4, 1))


def pointed(*, committed: bool = True, pointer: int | None = 20) -> SeenTransaction:
    writes = (
        PartitionWrites(DataPartition(*SIDE), ASIDE),
        PartitionWrites(DataPartition(*MAIN), ()),
    )
    steps = () if pointer is None else (PointerStep(SIDE, pointer, 4),)
    return SeenTransaction(
        txid=TXID,
        state=State.COMMITTED if committed else State.ABORTED,
        partitions={MAIN, SIDE} if committed else {SIDE},
        commit_sequence=12,
        writes=writes if committed else (),
        since={SIDE: 17} if committed else {},
        pointers=steps if committed else (),
    )


def ends_at(key: tuple[str, int], offset: int, **said: Any) -> Group:
    fields: dict[str, Any] = {"committed": True, "commit_sequence": 12, "hw": 0, "epoch": 0, **said}
    control = encode_marker(Marker(**fields))
    return Group(*key, TXID.to_bytes(), control, 1, offset, offset, 1)


def audited_aside(
    seen: SeenTransaction, *groups: Group, starts: tuple[int, int] | tuple[int] = (0, 0)
) -> set[tuple[str, str]]:
    begins = dict(zip((MAIN, SIDE), starts, strict=False))
    part = JournalPart(0, 0, {TXID.offset: seen})
    audit = Audit(finished_before={TXID: seen}, parts=[part], starts=begins, now_ms=0)
    for key in begins:
        audit.feed(each for each in groups if each[:2] == key)
        audit.check([key])
    return set(audit.finish({}).counts)


OF_SIDE = (
    Group(*SIDE, TXID.to_bytes(), b"", 3, 5, 8, 0),
    Group(*SIDE, TXID.to_bytes(), encode_data_control(DataControl(branch=7)), 1, 4, 4, 0),
)
SIDE_ENDS = ends_at(SIDE, 9, branches=ASIDE, pointer=20)


@pytest.mark.parametrize(
    ("pointer", "offset", "starts", "found"),
    [
        ({"sidecar": ASIDE, "since": 17}, 20, (0, 0), set()),
        ({"sidecar": ASIDE[::-1], "since": 17}, 20, (17, 4), set()),
        ({"sidecar": ASIDE[:1], "since": 17}, 20, (0, 0), {("violation", "pointer_decision")}),
        ({}, 20, (0, 0), {("violation", "pointer_decision")}),
        ({"sidecar": ASIDE, "since": 16}, 20, (0, 0), {("violation", "pointer_decision")}),
        ({"sidecar": ASIDE, "since": 17}, 21, (0, 0), {("violation", "pointer_place")}),
        ({"sidecar": ASIDE, "since": 17}, 21, (21, 0), set()),
        ({"sidecar": ASIDE, "since": 17}, 20, (0,), {("violation", "pointer_records")}),
    ],
)
def test_what_a_pointer_says_is_what_was_decided_and_is_there(
    pointer: dict[str, Any],
    offset: int,
    starts: tuple[int, int],
    found: set[tuple[str, str]],
) -> None:
    said = audited_aside(
        pointed(), *OF_SIDE, SIDE_ENDS, ends_at(MAIN, offset, **pointer), starts=starts
    )
    assert said == found


@pytest.mark.parametrize(("main_start", "severity"), [(17, "violation"), (18, "unverifiable")])
def test_what_was_trimmed_though_a_pointer_names_it_is_told(main_start: int, severity: str) -> None:
    pointer = ends_at(MAIN, 20, sidecar=ASIDE, since=17)
    found = audited_aside(pointed(), SIDE_ENDS, pointer, starts=(main_start, 9))
    assert (severity, "pointer_records") in found
    assert found - {("unverifiable", "record_counts")} == {(severity, "pointer_records")}


@pytest.mark.parametrize(
    ("starts", "found"),
    [
        ((0, 0), set()),
        ((20, 4), set()),
        ((20, 9), {("violation", "pointer_records")}),
        ((20,), {("violation", "pointer_records")}),
        ((21, 9), set()),
    ],
)
def test_what_a_place_stands_for_is_there_until_the_log_starts_behind_it(
    starts: tuple[int, int] | tuple[int], found: set[tuple[str, str]]
) -> None:
    seen = pointed()
    seen.placed, seen.places = frozenset({MAIN}), {PartitionId(*MAIN, ""): 20}
    said = audited_aside(seen, *OF_SIDE, SIDE_ENDS, starts=starts)
    assert said - {("unverifiable", "record_counts")} == found


def test_what_a_sidecar_lacks_is_told_at_its_own_marker() -> None:
    pointer = ends_at(MAIN, 20, sidecar=ASIDE, since=17)
    found = audited_aside(pointed(), OF_SIDE[0], SIDE_ENDS, pointer)
    assert found == {("violation", "record_counts")}


def test_an_abort_leaves_no_marker_where_nothing_was_written() -> None:
    aborted = pointed(committed=False)
    ended = ends_at(SIDE, 9, committed=False)
    assert audited_aside(aborted, *OF_SIDE, ended) == set()
    found = audited_aside(aborted, *OF_SIDE, ended, ends_at(MAIN, 3, committed=False))
    assert found == {("violation", "aborted_in_main")}
