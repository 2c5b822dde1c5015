"""Columns to records and records to columns, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from logtx.consumer.range_reader.reading import Share
from logtx.integration.spark.columns import check_columns, records_of
from logtx.integration.spark.errors import SchemaError
from logtx.integration.spark.frames import Batches, schema
from logtx.journal.txid import TxId

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
WHEN_MS = round(WHEN.timestamp() * 1000)


def sent(batch: pa.RecordBatch, topic: str | None) -> list[tuple[Any, ...]]:
    """Returns the arguments of the branch's calls."""
    calls: list[tuple[Any, ...]] = []
    branch: Any = SimpleNamespace(
        produce=lambda *given: calls.append(given),
        produce_columns=lambda *given: calls.append(given),
    )
    records_of(batch, topic).send(branch, topic)
    return calls


def test_records_of_a_batch() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"v", None]),
            pa.array(["k", None]),
            pa.array(["t", "u"]),
            pa.array([3, None], pa.int32()),
            pa.array([WHEN, None], pa.timestamp("us", tz="UTC")),
            pa.array([[{"key": "h", "value": b"x"}], None], header),
            pa.array([1, 2]),
        ],
        ["value", "key", "topic", "partition", "timestamp", "headers", "other"],
    )
    assert sent(batch, None) == [
        ("t", b"v", "k", 3, None, WHEN_MS, [("h", b"x")]),
        ("u", None, None, -1, None, 0, None),
    ]
    assert [row[0] for row in sent(batch, "fixed")] == ["fixed", "fixed"]
    plain = batch.drop_columns(["headers"])
    assert sent(plain, "fixed") == [("fixed", [b"v", None], ["k", None], [3, -1], [WHEN_MS, 0])]
    assert [row[0] for row in sent(plain, None)] == ["t", "u"]


def test_a_row_without_a_topic() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], "topic": pa.array([None], pa.string())})
    with pytest.raises(SchemaError, match="a row has no topic"):
        records_of(batch, None)


@pytest.mark.parametrize(
    ("types", "topic", "sentence"),
    [
        ({"key": "string"}, "t", "no column 'value'"),
        ({"value": "int"}, "t", "'value' is of type int and must be string or binary"),
        ({"value": "binary"}, None, "name the topic"),
        ({"value": "binary", "partition": "bigint"}, "t", "'partition' is of type bigint"),
        ({"value": "binary", "headers": "map<string,string>"}, "t", "'headers' is of type map"),
    ],
)
def test_columns_that_can_not_be_written(
    types: dict[str, str], topic: str | None, sentence: str
) -> None:
    with pytest.raises(SchemaError, match=sentence):
        check_columns(types, topic)


def message(offset: int, kind: int = 1, headers: object = None) -> Message:
    return Message(
        topic="t",
        partition=2,
        offset=offset,
        key=b"k",
        value=b"%d" % offset,
        headers=headers,
        timestamp=(kind, WHEN_MS),
    )


def test_batches_of_shares() -> None:
    txid = TxId(1, 2, 3)
    ours = [("TxId", txid.to_bytes()), ("TxCtl", b"\x01"), ("h", b"x")]
    shares = [
        Share(None, None, [message(0)]),
        Share(txid.to_bytes(), 9, [message(1, 2, ours), message(2)]),
    ]
    (batch,) = Batches("t", 2, headers=True).of(shares)
    assert batch.schema.names == [column.split()[0] for column in schema(headers=True).split(", ")]
    rows = batch.to_pylist()
    assert [(r["offset"], r["value"], r["txid"], r["commit_sequence"]) for r in rows] == [
        (0, b"0", None, None),
        (1, b"1", str(txid), 9),
        (2, b"2", str(txid), 9),
    ]
    assert [r["timestampType"] for r in rows] == [0, 1, 0]
    assert {r["timestamp"] for r in rows} == {WHEN}
    assert [r["headers"] for r in rows] == [None, [{"key": "h", "value": b"x"}], None]
    assert {(r["topic"], r["partition"], r["key"]) for r in rows} == {("t", 2, b"k")}


def test_large_values_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [Share(None, None, [message(n)]) for n in range(5)]
    sizes = lambda: [b.num_rows for b in Batches("t", 2, headers=False).of(shares)]  # noqa: E731
    assert sizes() == [5]
    monkeypatch.setattr("logtx.integration.spark.frames.BATCH_BYTES", 2)
    assert sizes() == [2, 2, 1]
    monkeypatch.setattr("logtx.integration.spark.frames.BATCH_RECORDS", 1)
    assert sizes() == [1] * 5
