"""Journal records that the C extension decodes, beside what Python makes of the same bytes."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.errors import JournalError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.native.records import Decoder, Plan, entry_decoder, plans
from logtx.journal.position import Place, Position
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.records import codec
from logtx.journal.records.codec import FORMAT_VERSION, encode_entry
from logtx.journal.records.types import (
    AddOffsets,
    Begin,
    Entry,
    OffsetStep,
    RecordType,
    Snapshot,
    SnapshotProducer,
)

from ...extension import go_without_extension
from ...golden.files import read, sets
from ...parameters import examples
from ..records.test_codec import ENTRY, GOLDEN_SAMPLES, SAMPLES, entry_of, golden

SCHEMAS = Path(codec.__file__).parent / "schemas"
WITHOUT_BYTES = "="
TO_THE_END = "ru"
SAMPLED = [raw for version in GOLDEN_SAMPLES for raw in golden(version).values()]


@pytest.fixture(scope="module")
def decoders() -> tuple[Decoder, Decoder]:
    """What decodes all of a record, and what leaves parts unread."""
    extension: Any = pytest.importorskip("logtx.journal.native._extension")
    return extension.Decoder(plans(lazily=False)), extension.Decoder(plans(lazily=True))


def outcome(decode: Any, raw: bytes, **options: bool) -> object:
    """Returns what is decoded, or refused, and what the parts left unread are or raise."""
    try:
        entry = decode(raw, **options)
    except JournalError as error:
        return type(error), re.sub("0x[0-9a-f]+", "0x", str(error))
    if entry is None:
        return None
    # Equal values need not be of equal types: 1 and True.
    try:
        return repr(entry)
    except (ValueError, IndexError) as error:
        record = entry.record
        return entry.epoch, entry.incarnation, entry.predicted, record.begin, repr(error)


def check(decoders: tuple[Decoder, Decoder], raw: bytes) -> None:
    """Compares what either decodes; C leaves to Python what it refuses."""
    for decoder, lazily in zip(decoders, (False, True), strict=True):
        in_c = outcome(decoder.decode, raw)
        assert in_c is None or in_c == outcome(codec.decode_entry, raw, lazily=lazily)
        decode = entry_decoder(lazily=lazily)
        assert outcome(decode, raw) == outcome(codec.decode_entry, raw, lazily=lazily)


def test_every_golden_record_is_the_same(decoders: tuple[Decoder, Decoder]) -> None:
    for raw in SAMPLED:
        check(decoders, raw)


@pytest.mark.parametrize("folder", sets(), ids=lambda folder: folder.name)
def test_every_golden_journal_is_the_same(decoders: tuple[Decoder, Decoder], folder: Path) -> None:
    for raw in read(folder).journal:
        check(decoders, raw)


STEPS = tuple(
    OffsetStep("fares", n, Place(9, n), Position(o1=7, o2=12, met={(0, 2**47): n, (n, 1): 5}))
    for n in (1, 2)
)
WITH_TOPIC_ID = replace(STEPS[0], to=replace(STEPS[0].to, topic_id="an-id", delivered={(1, 2): 3}))
BARE_CHUNK = Snapshot(
    first=1,
    index=2,
    last=False,
    replaces=3,
    address="ü:1",
    process_nonce=4,
    partition_count=5,
    past_epochs=(6, 7),
    producers=(
        SnapshotProducer("worker-1", 7, 42, "default", True, 1_700_000_000_000, 11, (), 168),
        SnapshotProducer("ü", 0, 0, "me", False, 0, 0, ((12, 16500), (13, 16600)), 0),
    ),
    hour=8,
    generation_floor=9,
)


def encode_as(version: int, entry: Entry) -> bytes:
    """Encodes by the schema of another version."""
    with patch.object(codec, "_version", lambda _record: version):
        return codec.encode_by_schema(entry)


def test_each_plan_decodes_what_it_is_for(decoders: tuple[Decoder, Decoder]) -> None:
    told = [entry_of(AddOffsets(begin=1, group="ü", steps=steps)) for steps in (STEPS, ())]
    told += [entry_of(AddOffsets(begin=1, group="g", steps=(*STEPS, WITH_TOPIC_ID)))]
    raws = {encode_entry(entry): entry for entry in told}
    raws |= {
        encode_as(version, entry_of(BARE_CHUNK)): entry_of(BARE_CHUNK)
        for version in range(3, FORMAT_VERSION + 1)
    }
    for decoder, lazily in zip(decoders, (False, True), strict=True):
        assert [decoder.decode(raw) for raw in raws] == list(raws.values())
        decoded = {raw[:2] for raw in (*SAMPLED, *raws) if decoder.decode(raw) is not None}
        assert decoded == {bytes(each[:2]) for each in plans(lazily=lazily)}
    for raw in raws:
        check(decoders, raw)


def wire_fields(plan: Plan) -> list[tuple[str, str]]:
    """Returns (kind, name) of the fields that take bytes, in their order."""
    found = []
    for kind, _, parts, name in plan[2]:
        found += wire_fields(("o", None, parts, name)) if name == "record" else [(kind, name)]
    return [(kind, name) for kind, name in found if kind not in WITHOUT_BYTES]


@pytest.mark.parametrize("lazily", [False, True])
def test_a_plan_has_the_fields_of_the_schema_in_their_order(*, lazily: bool) -> None:
    for version, code, plan in plans(lazily=lazily):
        schemas = json.loads((SCHEMAS / f"v{version}.avsc").read_text("utf-8"))
        name = plan[2][-1][1].__name__
        schema = next(each for each in schemas if each["name"] == name)
        named = [field["name"] for field in schema["fields"]]
        planned = wire_fields(plan)
        kinds, names = [kind for kind, _ in planned], [name for _, name in planned]
        assert RecordType(code).name.replace("_", "") in name.upper()
        assert "r" not in kinds[:-1]
        assert "u" not in kinds[:-1]
        if kinds[-1] == "u":
            assert names[:-1] == named[: len(names) - 1]
        else:
            assert names == named


def test_an_object_of_a_plan_has_all_of_its_fields(decoders: tuple[Decoder, Decoder]) -> None:
    for raw in SAMPLED:
        entry = decoders[0].decode(raw)
        if entry is not None:
            for value in (entry, entry.record):
                for slot in type(value).__slots__:
                    getattr(value, slot)


@given(ENTRY)
@examples(400)
def test_what_is_written_is_decoded_the_same(
    decoders: tuple[Decoder, Decoder], entry: Entry
) -> None:
    check(decoders, encode_entry(entry))


@given(st.sampled_from(SAMPLED), st.data())
@examples(800)
def test_a_cut_or_changed_record_is_refused_or_decoded_the_same(
    decoders: tuple[Decoder, Decoder], raw: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(start + 3, len(raw))))
    put = data.draw(st.binary(max_size=12))
    check(decoders, raw[:start] + put + raw[end:])


@given(
    st.sampled_from(sorted({bytes(each[:2]) for each in plans(lazily=True)})),
    st.binary(max_size=60),
)
@examples(800)
def test_any_bytes_are_refused_or_decoded_the_same(
    decoders: tuple[Decoder, Decoder], prefix: bytes, body: bytes
) -> None:
    check(decoders, prefix + body)


LONGEST = b"\xff" * 9
HEAD = bytes((2, RecordType.COMMITTED)) + b"\0\0\0"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\2",
        bytes((2, RecordType.COMMITTED)),
        b"\xff\xff\0",
        bytes((2, 31)),
        HEAD + LONGEST + b"\1\0",  # the lowest number of 64 bits
        HEAD + LONGEST + b"\2\0",  # one of 65 bits
        HEAD + LONGEST + b"\x81\0\0",
        HEAD + b"\x80\0\0",  # 0 in two bytes
        HEAD + b"\0\1\2",  # a block with its size
        HEAD + b"\0" + LONGEST + b"\1",  # more items than a record has bytes
        HEAD + b"\0\0\0",
        bytes((2, RecordType.BEGIN)) + b"\0\0\0\2\xff" + b"\0" * 7,  # not UTF-8
        bytes((2, RecordType.PREPARE_ABORT)) + b"\0\0\0\0\2?\0",  # no such reason
        bytes((2, RecordType.PRODUCER)) + b"\0\0\0\0\0\0\0\2\0",  # neither true nor false
        bytes((2, RecordType.ADD_OFFSETS)) + b"\0\0\0\0\0\4\0\0\2\0\0\0\0\0\0\0\0",
    ],
)
def test_odd_bytes_are_left_to_python(decoders: tuple[Decoder, Decoder], raw: bytes) -> None:
    check(decoders, raw)


@pytest.mark.parametrize("raw", [None, 5, "text", bytearray(golden(2)["begin"])])
def test_what_is_no_bytes_is_left_to_python(decoders: tuple[Decoder, Decoder], raw: object) -> None:
    assert [decoder.decode(raw) for decoder in decoders] == [None, None]


UNSOUND: Iterable[object] = [
    (),
    ("l",),
    ("lb", None, (), ""),
    ("?", None, (), ""),
    ("ü", None, (), ""),
    ("€", None, (), ""),
    ("\0", None, (), ""),
    ("l", None, [], ""),
    ("o", None, (), ""),
    ("o", 5, (), ""),
    ("o", Begin, (("l", None, (), "nothing"),), ""),
    ("o", Begin, (("l", None, (), 5),), ""),
    ("o", Begin, (("l", None, (), "__class_getitem__"),), ""),
    ("t", int, (), ""),
    ("a", None, (), ""),
    ("m", None, (("l", None, (), ""),), ""),
    ("2", None, (), ""),
    ("c", None, (("l", None, (), ""),), ""),
    ("c", int, (), ""),
    ("r", None, (), ""),
    ("u", None, (), ""),
    5,
]


@pytest.mark.parametrize("plan", UNSOUND)
def test_what_is_no_plan_is_refused(decoders: tuple[Decoder, Decoder], plan: object) -> None:
    made = type(decoders[0])
    for given_plans in (
        ((1, 1, plan),),
        ((1, 1, ("t", None, (("l", None, (), ""), plan), "")),),
    ):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            made(given_plans)  # type: ignore[call-arg]


def test_a_plan_too_deep_or_twice_is_refused(decoders: tuple[Decoder, Decoder]) -> None:
    made: Any = type(decoders[0])
    deep: Any = ("l", None, (), "")
    for _ in range(30):
        deep = ("a", None, (deep,), "")
    once = (1, 1, ("l", None, (), ""))
    for told in (((1, 1, deep),), (once, once), ((32, 1, once[2]),), ((1, 32, once[2]),), (5,)):
        with pytest.raises((ValueError, TypeError)):
            made(told)


def test_what_interrupts_python_is_no_oddity(decoders: tuple[Decoder, Decoder]) -> None:
    def interrupted(_rest: bytes) -> None:
        raise KeyboardInterrupt

    made: Any = type(decoders[0])
    with pytest.raises(KeyboardInterrupt):
        made(((1, 1, ("r", interrupted, (), "")),)).decode(b"\1\1\1")


def test_nothing_is_left_of_many(decoders: tuple[Decoder, Decoder]) -> None:
    made: Any = type(decoders[0])
    cut = [raw[:end] for raw in SAMPLED for end in range(2, len(raw), 3)]
    tracemalloc.start()
    try:
        for round_ in range(6):
            for raw in (*SAMPLED, *cut):
                for decoder in decoders:
                    decoder.decode(raw)
            for plan in UNSOUND:
                with pytest.raises((ValueError, TypeError, AttributeError)):
                    made(((1, 1, ("t", None, (("=", [0] * 100, (), ""), plan), "")),))
            made(plans(lazily=True))
            if round_ == 1:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


def test_a_journal_is_read_the_same_without_the_extension(
    decoders: tuple[Decoder, Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    del decoders
    log = MemoryLog("m")
    log.create_topic(JOURNAL_TOPIC, partitions=1)
    with closing(log.producer({})) as producer:
        for record in SAMPLES.values():
            producer.produce(JOURNAL_TOPIC, encode_entry(entry_of(record)), partition=0)
        producer.flush()

    def entries() -> list[tuple[int, Entry]]:
        return list(read_entries(log, 0, 0, len(SAMPLES), timeout_s=5, lazily=True))

    assert not hasattr(entry_decoder(), "func")
    in_c = entries()
    go_without_extension(monkeypatch)
    assert entry_decoder().func is codec.decode_entry  # type: ignore[attr-defined]
    assert entries() == in_c
    assert [entry.record for _, entry in in_c] == list(SAMPLES.values())
