"""A record that needs no broker, and short functions that make the records of the tests."""

from __future__ import annotations

from dataclasses import dataclass

from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    encode_data_control,
    encode_marker,
    encode_mode_record,
)
from logtx.journal.errors import MalformedHeaderError
from logtx.journal.txid import TxId

INCARNATION = 0xABC
DATA = ("delays", 0)


@dataclass(frozen=True, eq=False)
class FakeRecord:
    """The part of `confluent_kafka.Message` that the cores call."""

    at: int
    header_list: list[tuple[str, bytes | None]] | None = None
    payload: bytes | None = b"v"
    record_key: bytes | None = None
    malformed: bool = False

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.header_list

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.record_key

    def value(self) -> bytes | None:
        return self.payload

    def __len__(self) -> int:
        return len(self.payload or b"")


def txid(number: int, *, partition: int = 0, incarnation: int = INCARNATION) -> TxId:
    return TxId(partition, incarnation, number)


def plain(at: int) -> FakeRecord:
    return FakeRecord(at)


def data(
    at: int, owner: TxId, branch: int | None = None, sequence: int | None = None
) -> FakeRecord:
    headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, owner.to_bytes())]
    if branch is not None:
        control = DataControl(branch=branch, sequence=sequence)
        headers.append((TXCTL_HEADER, encode_data_control(control)))
    return FakeRecord(at, headers)


def marker(
    at: int,
    owner: TxId,
    sequence: int,
    *ranges: tuple[int, int, int, int],
    committed: bool = True,
    hw: int = 0,
) -> FakeRecord:
    """Returns a marker; each range is (branch, first, last, count)."""
    control = encode_marker(
        Marker(
            committed=committed,
            commit_sequence=sequence,
            hw=hw,
            epoch=1,
            partition_count=1,
            branches=tuple(BranchRange(*r) for r in ranges),
        )
    )
    headers: list[tuple[str, bytes | None]] = [
        (TXID_HEADER, owner.to_bytes()),
        (TXCTL_HEADER, control),
    ]
    return FakeRecord(at, headers, payload=None)


def mode_record(at: int, began: TxId, *, places: bool = True) -> FakeRecord:
    """Returns a mode record; `began` names the home and the journal offset of its MODE record."""
    headers: list[tuple[str, bytes | None]] = [
        (TXID_HEADER, began.to_bytes()),
        (TXCTL_HEADER, encode_mode_record(ModeRecord(places))),
    ]
    return FakeRecord(at, headers, payload=None)


def malformed(record: object, _: MalformedHeaderError) -> FakeRecord:
    assert isinstance(record, FakeRecord)
    return FakeRecord(record.at, record.header_list, record.payload, malformed=True)
