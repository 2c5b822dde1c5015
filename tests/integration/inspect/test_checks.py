"""The audit where a commit is placed: no marker, and all records that its decision states."""

from __future__ import annotations

import pytest

from logtx.integration.inspect.checks import Audit, Report
from logtx.integration.inspect.groups import Group
from logtx.journal.control import BranchRange, ModeRecord, encode_mode_record
from logtx.journal.places import PartitionId
from logtx.journal.records.scan import JournalPart, SeenTransaction
from logtx.journal.records.types import DataPartition, PartitionWrites
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
