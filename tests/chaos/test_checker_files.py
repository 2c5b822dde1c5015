"""The checker's files: run directories, torn and broken histories, cut logs, what it prints."""

from __future__ import annotations

import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from logtx.chaos.checker import BrokenHistoryError, BrokenLogError, check, store
from logtx.chaos.checker.core.avro import Entry as JournalEntry
from logtx.chaos.checker.core.avro import Kind, read_entry
from logtx.chaos.checker.core.facts import parse_txid
from logtx.chaos.checker.core.journal import Passed as OwnPassed
from logtx.chaos.checker.core.journal import Place, PlacedEnd, read_journal
from logtx.chaos.checker.core.logs import NO_VALUE, Record, Standing, view_logtx
from logtx.chaos.checker.core.wire import Control, Range, read_control, read_txid
from logtx.chaos.checker.core.wire import TxId as OwnTxId
from logtx.journal.control import (
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    encode_data_control,
    encode_mode_record,
)
from logtx.journal.control import encode_marker as encode
from logtx.journal.places import PartitionId
from logtx.journal.position import Passed
from logtx.journal.records import codec as record_codec
from logtx.journal.records.fate import FateScan
from logtx.journal.txid import TxId

from .checker_world import IN, World

GOLDEN = Path(__file__).parent.parent / "golden" / "journal_v2.txt"


@pytest.fixture
def world() -> World:
    """A short run without anomalies."""
    world = World()
    txn = world.begin()
    txn.append(0)
    txn.append(1)
    txn.commit()
    world.plain()
    return world.finals()


def lines_of(run_dir: Path, process: str) -> list[str]:
    """A history file's lines."""
    return (run_dir / "history" / f"{process}.jsonl").read_text().splitlines(keepends=True)


def rewrite(run_dir: Path, process: str, lines: list[str]) -> None:
    """Put others there."""
    (run_dir / "history" / f"{process}.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("system", ["logtx", "kafka"])
def test_a_run_directory(tmp_path: Path, system: str) -> None:
    world = World(system)
    txn = world.begin()
    value = txn.append(0)
    (txn.ask().decide().mark_all() if system == "logtx" else txn.ask().mark_all()).end("committed")
    world.plain(number=1)
    world.finals().save(tmp_path)
    verdict = check(tmp_path)
    assert verdict.ok
    assert verdict.stats["deliveries"] == 2
    assert verdict.system == system
    assert value


def test_what_is_found_is_printed_and_told_as_json(tmp_path: Path) -> None:
    world = World()
    lost = world.plain()
    world.plain()
    world.assign("final-0.0")
    world.poll("final-0.0", (IN, 0), [1])
    world.save(tmp_path)
    verdict = check(tmp_path)
    out = io.StringIO()
    verdict.print(Console(file=out, width=100))
    for said in ("lost-write", lost, "producer-0.0.jsonl:1", "chaos[0]@0", "1 anomalies"):
        assert said in out.getvalue(), said
    told = json.loads(json.dumps(verdict.as_json()))
    assert told["ok"] is False
    assert told["counts"] == {"lost-write": 1}
    assert told["anomalies"][0]["evidence"][0]["where"] == "producer-0.0.jsonl:1"


def test_of_many_of_one_kind_some_are_kept_and_all_are_counted() -> None:
    world = World()
    for _ in range(50):
        txn = world.begin()
        txn.append(0)
        txn.abort()
    world.assign("consumer-0.0", (IN, 0))
    world.poll("consumer-0.0", (IN, 0), list(range(0, 100, 2)))
    verdict = world.finals().judge()
    assert verdict.counts == {"g1a": 50}
    assert len(verdict.anomalies) == 20


# ---- history ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20, 2])
def test_a_torn_last_line_is_left_out(tmp_path: Path, world: World, cut: int) -> None:
    world.say("consumer-0.0", "error", error="killed in the midst of this")
    world.save(tmp_path)
    lines = lines_of(tmp_path, "consumer-0.0")
    rewrite(tmp_path, "consumer-0.0", [*lines[:-1], lines[-1][: -1 - cut]])
    verdict = check(tmp_path)
    assert verdict.ok
    assert verdict.stats["torn last lines"] == 1


def test_a_file_without_a_line_is_of_a_process_that_did_nothing(
    tmp_path: Path, world: World
) -> None:
    world.save(tmp_path)
    rewrite(tmp_path, "worker-0.0", [])
    assert check(tmp_path).ok


def test_a_line_broken_in_the_middle(tmp_path: Path, world: World) -> None:
    world.save(tmp_path)
    lines = lines_of(tmp_path, "producer-0.0")
    rewrite(tmp_path, "producer-0.0", [lines[0], lines[1][:30] + "\n", *lines[2:]])
    with pytest.raises(BrokenHistoryError, match=r"producer-0\.0\.jsonl:2 is broken"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "jump"}, "unknown event"),
        ({"event": "append", "op": "producer-0.0/1"}, "KeyError 'v'"),
        ({"event": "end", "op": "producer-9.0/1", "outcome": "committed"}, "did not begin here"),
        ({"event": "end", "op": "producer-0.0/1", "outcome": "perhaps"}, "outcome 'perhaps'"),
        ({"event": "begin", "op": "producer-0.0/1"}, "begins twice"),
        ({"event": "acked", "v": "x", "offset": 1}, "was not appended here"),
        ({"event": "poll", "isolation": "read_some", "records": []}, "isolation 'read_some'"),
        ({"event": "poll", "isolation": "read_committed", "records": [[1, 2]]}, "ValueError"),
    ],
)
def test_an_event_that_nobody_writes(
    tmp_path: Path, world: World, event: dict[str, object], said: str
) -> None:
    world.save(tmp_path)
    lines = lines_of(tmp_path, "producer-0.0")
    rewrite(tmp_path, "producer-0.0", [*lines, json.dumps({"at": 1, **event}) + "\n"])
    with pytest.raises(
        BrokenHistoryError, match=rf"producer-0\.0\.jsonl:{len(lines) + 1}"
    ) as error:
        check(tmp_path)
    assert said in str(error.value)


def test_a_value_appended_twice(tmp_path: Path, world: World) -> None:
    world.save(tmp_path)
    lines = lines_of(tmp_path, "producer-0.0")
    rewrite(tmp_path, "producer-0.0", [*lines[:2], lines[1], *lines[2:]])
    with pytest.raises(BrokenHistoryError, match="appended twice"):
        check(tmp_path)


def test_an_unknown_role(tmp_path: Path, world: World) -> None:
    world.save(tmp_path)
    rewrite(tmp_path, "bystander-0.0", [])
    with pytest.raises(BrokenHistoryError, match=r"bystander-0\.0: no such role"):
        check(tmp_path)


@pytest.mark.parametrize("missing", ["chaos.json", "history"])
def test_a_directory_of_no_run(tmp_path: Path, world: World, missing: str) -> None:
    world.save(tmp_path)
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(BrokenHistoryError):
        check(tmp_path)


# ---- logs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["journal/0", "data/chaos-0", "data/chaos-out-1"])
def test_a_log_that_was_not_dumped(tmp_path: Path, world: World, missing: str) -> None:
    world.plain(number=0)
    txn = world.begin()
    txn.append(1, "chaos-out")
    world.save(tmp_path)
    (tmp_path / "logs" / f"{missing}.jsonl.gz").unlink()
    with pytest.raises(BrokenLogError):
        check(tmp_path)


def test_a_dumped_log_that_is_cut(tmp_path: Path, world: World) -> None:
    world.save(tmp_path)
    path = tmp_path / "logs" / "data" / "chaos-0.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(BrokenLogError, match="cut short"):
        check(tmp_path)


def test_bytes_survive_the_dump(tmp_path: Path) -> None:
    records = [
        store.RawRecord(0, bytes(range(256)), [("TxId", bytes(range(16))), ("e", None)]),
        store.RawRecord(4, None, []),
    ]
    head = store.Head("a-b", 3, 0, 5)
    store.write_log(tmp_path, store.DATA, head, records)
    [(read_head, read)] = store.read_logs(tmp_path, store.DATA)
    assert read_head == head
    assert list(read) == records
    with gzip.open(tmp_path / "data" / "a-b-3.jsonl.gz", "rt") as lines:
        assert "TxId" in lines.read()


# ---- the parsers, against what logtx writes -----------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        line.split()
        for version in (2, 4, 5, 6, 7, 8, 9, 10, 11)
        for line in GOLDEN.with_name(f"journal_v{version}.txt").read_text().splitlines()
    ],
)
def test_journal_records_are_read_as_logtx_reads_them(raw: list[str]) -> None:
    entry, own = record_codec.decode_entry(bytes.fromhex(raw[1])), read_entry(bytes.fromhex(raw[1]))
    assert own.kind == entry.record.type.value
    assert (own.epoch, own.incarnation, own.predicted) == (
        entry.epoch,
        entry.incarnation,
        entry.predicted,
    )
    scalars = {n: v for n, v in own.body.items() if not isinstance(v, list) and n != "txid"}
    for name, value in scalars.items():
        assert getattr(entry.record, name) == value, name
    if own.kind is Kind.ADD_OFFSETS:
        assert [(s["topic"], s["o2"], s["o3"], said(s.get("passed"))) for s in steps(own)] == [
            (s.topic, s.to.o2, s.to.o3, s.to.passed) for s in entry.record.steps
        ]
        assert [said(s.get("from_passed")) for s in steps(own)] == [
            s.from_place and s.from_place.passed for s in entry.record.steps
        ]
    if own.kind is Kind.PREPARE_COMMIT:
        rows = own.body.get("placed", ())
        assert tuple((r["topic"], p) for r in rows for p in r["partitions"]) == entry.record.placed
        rows = [*own.body["writes"], *own.body.get("columns", ())]
        assert [(r["topic"], r["partition"], r["topic_id"], ranges(r)) for r in rows] == [
            (*w.partition.key, w.partition.topic_id, w.branches) for w in entry.record.writes
        ]
    if own.kind in (Kind.PREPARE_COMMIT, Kind.PREPARE_ABORT):
        rows = own.body.get("handed", ())
        assert {(r["topic"], p): r["home"] for r in rows for p in r["partitions"]} == dict(
            entry.record.handed
        )
    if own.kind is Kind.ADOPT:
        assert own.body["txid"] == entry.record.txid.to_bytes()
        assert [(r["partition"], ranges(r), r["placed"]) for r in own.body["writes"]] == [
            (w.partition.partition, w.branches, w.placed) for w in entry.record.writes
        ]
    if own.kind is Kind.PLACED:
        assert {
            PartitionId(r["topic"], p, r["topic_id"]): place
            for r in own.body["ends"]
            for p, place in zip(r["partitions"], r["offsets"], strict=True)
        } == entry.record.ends
    if own.kind is Kind.MODE:
        assert {r["partition"]: r["offset"] for r in own.body["since"]} == entry.record.since


def ranges(row: dict[str, Any]) -> tuple[BranchRange, ...]:
    return tuple(
        BranchRange(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"])
        for b in row["branches"]
    )


def steps(own: JournalEntry) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = own.body["steps"]
    return found


def said(row: dict[str, int] | None) -> Passed | None:
    if row is None:
        return None
    return Passed((row["partition"], row["incarnation"]), row["sequence"], row["taken"])


def test_a_commit_in_parts_has_what_all_of_them_name() -> None:
    """As the golden log has one: two partitions in its first part, a third in its commit."""
    lines = (GOLDEN.parent / "writes-in-parts-2026-11" / "journal.jsonl").read_text().splitlines()
    raws = [bytes.fromhex(json.loads(line)["hex"]) for line in lines]
    found = read_journal(0, 0, len(raws), list(enumerate(map(read_entry, raws))))
    txids = [TxId(0, found.incarnation or 0, begin) for begin in found.fates]
    scan = FateScan(txids)
    for offset, raw in enumerate(raws):
        scan.feed(offset, record_codec.decode_entry(raw))
    in_parts = 0
    for txid, fate in scan.fates().items():
        wanted = {
            w.partition.key: sorted((b.branch, b.first_offset) for b in w.branches)
            for w in fate.writes
        }
        own = found.fates[txid.offset]
        told = {key: sorted((r[0], r[1]) for r in ranges) for key, ranges in own.writes.items()}
        assert told == wanted or own.decided is None
        in_parts += own.committed and len(wanted) == 3
    assert in_parts


def test_a_journal_record_that_does_not_decode() -> None:
    raw = bytes.fromhex(GOLDEN.read_text().splitlines()[2].split()[1])
    changed = (b"\4" + raw[1:], b"\3" + raw[1:], raw[:1] + b"\x63" + raw[2:])
    for broken in (b"", raw[:-1], raw + b"\0", *changed):
        with pytest.raises(BrokenLogError):
            read_entry(broken)


def test_headers_are_read_as_logtx_writes_them() -> None:
    txid = TxId(3, 2**47 + 5, 17042)
    assert str(read_txid(txid.to_bytes())) == str(txid)
    assert parse_txid(str(txid)) == parse_txid(txid.to_bytes().hex())
    marker = Marker(
        committed=True,
        commit_sequence=300,
        hw=299,
        epoch=7,
        partitions=(("a", 0), ("a", 300), ("b", 1)),
        branches=(BranchRange(2**63 + 1, 5, 900, 3), BranchRange(0, 4, 4, 1)),
    )
    assert read_control(encode(marker)) == Control(
        kind=1,
        commit_sequence=300,
        hw=299,
        epoch=7,
        partition_count=3,
        partitions=(("a", 0), ("a", 300), ("b", 1)),
        ranges=(Range(2**63 + 1, 5, 900, 3), Range(0, 4, 4, 1)),
    )
    data = read_control(encode_data_control(DataControl(branch=2**64 - 1, sequence=0)))
    assert data == Control(kind=0, branch=2**64 - 1, sequence=0)
    assert read_control(encode_data_control(DataControl())).sequence is None
    for places in (True, False):
        turned = read_control(encode_mode_record(ModeRecord(places, "an id")))
        assert (turned.is_mode_record, turned.is_marker) == (True, False)


def test_a_mode_record_is_of_no_transaction() -> None:
    """A reader is given what lies around it, and neither waits for its end nor is given it."""
    turned = read_control(encode_mode_record(ModeRecord(places=True)))
    began = OwnTxId(0, 5, 900)
    records = [Record(0, 7), Record(1, NO_VALUE, None, began, turned), Record(2, 8)]
    view = view_logtx(("t", 0), 0, 3, records)
    assert view.committed.offsets == [0, 2]
    assert view.standing == {1: Standing.MODE}
    assert not view.first_markers


def test_a_position_within_what_a_trimmed_journal_placed_is_before_all_that_is_known() -> None:
    """The first transaction whose place is known need not be the next one behind the position."""
    txid = OwnTxId(7, 5, 60)
    records = [Record(0, 7, txid=txid)]
    placed = PlacedEnd(1, 65, txid, (Range(0, 0, 0, 1),), 66, "id", 7, 65)
    within = Place(2, 0, OwnPassed(7, 40, 1))
    whole = view_logtx(("t", 0), 0, 1, records, [placed])
    assert whole.given_before(within) == 1, "nothing else was placed: it is one of this transaction"
    trimmed = view_logtx(("t", 0), 0, 1, records, [placed], journal_starts={7: 50})
    assert trimmed.given_before(within) == 0
    assert trimmed.given_before(Place(2, 0, OwnPassed(7, 50, 1))) == 1
    assert trimmed.given_before(Place(2, 0, OwnPassed(7, 65))) == 1


@pytest.mark.parametrize("raw", [b"", b"\2\x08\1", b"\1\x08", b"\1\x3a\x7f\1", b"\1\x0b"])
def test_a_header_that_does_not_decode(raw: bytes) -> None:
    with pytest.raises(BrokenLogError):
        read_control(raw)
    with pytest.raises(BrokenLogError):
        read_txid(raw)


# ---- size ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_large_run_is_judged_in_a_minute(tmp_path: Path) -> None:
    # From files, as people have it judged. A quiet machine takes less than half of that; what this
    # is to notice is a check that compares everything with everything.
    world = World(partitions=4)
    for serial in range(50_000):
        txn = world.begin(f"producer-{serial % 8}.0")
        for number in range(4):
            txn.append(number)
        txn.commit()
    for index in range(5):
        world.read(f"consumer-{index}.0")
    world.finals().save(tmp_path)
    began_s = time.process_time()
    assert check(tmp_path).ok
    assert time.process_time() - began_s < 60
