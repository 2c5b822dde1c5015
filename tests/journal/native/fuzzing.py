"""What the C extension makes of random batches and headers, beside confluent-kafka and models.

Both sides read the same log of a mock cluster, into which batches are put as bytes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import hypothesis
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from hypothesis import strategies as st

from logtx.consumer.source import NativeSource, TakenOver, open_consumer
from logtx.journal.native import loading
from logtx.journal.native.interface import Count

from . import batches
from .batches import Batch, RawLog, Record
from .conftest import FETCH, PRODUCE, Mock
from .librdkafka import Librdkafka
from .messages import check_part, fields

Place: TypeAlias = tuple[str, int]
"""(topic, partition)"""
Late: TypeAlias = Callable[[], int]
"""Appends to a partition that is assigned, before it is read. Returns where it ends then."""
TOPICS: Final = ("t", "u")
COUNTED: Final = ("c", "d")
"""Topics of what is sent by producers."""
PARTITIONS: Final = 4
ENDLESS: Final = 600
"""A batch whose offsets go back is read for ever: so many messages of it are enough."""
REPEATED: Final = 10
"""A batch that can't be read is an error each time: so often is enough."""
SAFE: Final = 24
"""What of a batch's compressed bytes says how many there will be, so it is not flipped."""
MOST_SENT: Final = 30
"""How many records an example sends."""
LATE_S: Final = 0.01
"""How long it takes until an idle consumer has records, and the event behind them."""
WAITS_S: Final = (0.06, 2.0, 4.0)
"""How long nothing must come until it counts as the end; again a longer one, if both differ."""
_TRIES_S: Final = 20.0
_SETTINGS: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": False,
    "log_level": 0,
    "fetch.wait.max.ms": 2,
    "fetch.error.backoff.ms": 1,
    "fetch.queue.backoff.ms": 1,
}


class Heard(NamedTuple):
    """What a consumer said of a partition."""

    records: list[Any]
    events: list[tuple[int, str | None, int, int]]
    """(code, topic, partition, offset)s, without repetitions."""
    is_whole: bool
    """Whether its end was reached."""


class Workbench:
    """A mock cluster, and a consumer and a producer of each kind."""

    def __init__(self, librdkafka: Librdkafka) -> None:
        """Connects them. Switch the extension on before.

        Args:
            librdkafka: the fake one, with its copy of the extension.
        """
        self.librdkafka = librdkafka
        self.mock = Mock()
        self.log = RawLog(self.mock)
        common = {"bootstrap.servers": self.mock.address, "group.id": "g", **_SETTINGS}
        self.plain = Consumer(common)
        taken, reader = open_consumer(Consumer, common)  # type: ignore[arg-type]
        assert reader is not None
        self.taken: TakenOver = taken  # type: ignore[assignment]
        self.source = NativeSource(taken, reader)
        settings = {"bootstrap.servers": self.mock.address, "log_level": 0, "linger.ms": 1}
        self.producer, handle = loading.opened(Producer, {**settings, "enable.idempotence": True})
        assert handle is not None
        self.handle = handle
        self.numbers = iter(range(1, 2**60))
        self.again = 0
        """How often both said something else, and were asked again: a busy machine lets them."""
        for topic in (*TOPICS, *COUNTED):
            self.producer.list_topics(topic, 10)  # So it is made.
        # librdkafka numbers duplicates from -1 on. Where a partition is as short as that, the next
        # record does not rise above them, and the transaction of another example would fail.
        short = batches.encode(Batch([Record()] * MOST_SENT))
        places = [(topic, n) for topic in COUNTED for n in range(PARTITIONS)]
        self.ends = {place: self.log.append(*place, short) + MOST_SENT for place in places}
        """Where the partitions of `COUNTED` ended when they were last read."""
        # To connect, and to learn of a topic, takes its time.
        begins = {(topic, n): 0 for topic in (*TOPICS, *COUNTED) for n in range(PARTITIONS)}
        for heard in self.heard_by_plain(begins, 10), self.heard_by_native(begins, 10, 1):
            assert all(each.is_whole for each in heard.values())

    def close(self) -> None:
        """Closes them."""
        self.handle.detach()
        self.producer.purge()
        self.producer.close()
        self.taken.close()
        self.plain.close()
        self.log.close()

    def append(self, place: Place, batch: bytes) -> int | None:
        """Appends a batch. Returns its first offset; None: the mock cluster refuses it."""
        try:
            return self.log.append(*place, batch)
        except KafkaException:
            return None

    def heard_by_plain(self, begins: dict[Place, int], wait_s: float) -> dict[Place, Heard]:
        """Returns what confluent-kafka's consumer says."""

        def read() -> tuple[list[Any], list[Any]]:
            found = self.plain.consume(1_000, 0.02)
            records = [message for message in found if message.error() is None]
            return records, [message for message in found if message.error() is not None]

        return _listen(self.plain, read, begins, wait_s)

    def heard_by_native(
        self, begins: dict[Place, int], wait_s: float, limit: int, late: Late | None = None
    ) -> dict[Place, Heard]:
        """Returns what the extension's reader says. Checks its parts, and the columns of each."""

        def read() -> tuple[list[Any], list[Any]]:
            found = self.source.read(limit, 0.02)
            if found is None:
                return [], []
            records: list[Any] = []
            for part in found.parts:
                check_part(part)
                records += part.records
            return records, list(found.events)

        return _listen(self.taken, read, begins, wait_s, late)


def _listen(
    consumer: Any,
    read: Callable[[], tuple[list[Any], list[Any]]],
    begins: dict[Place, int],
    wait_s: float,
    late: Late | None = None,
) -> dict[Place, Heard]:
    records: dict[Place, list[Any]] = defaultdict(list)
    events: dict[Place, list[Any]] = defaultdict(list)
    ended: dict[Place, bool] = {}
    consumer.assign([TopicPartition(*place, begin) for place, begin in begins.items()])
    end = 0 if late is None else late()
    until = time.monotonic() + wait_s
    last = time.monotonic() + _TRIES_S
    while len(ended) < len(begins) and time.monotonic() < min(until, last):
        found, told = read()
        if found or told:
            until = time.monotonic() + wait_s
        for message in found:
            place = message.topic(), message.partition()
            records[place].append(message)
            if len(records[place]) >= ENDLESS:
                ended.setdefault(place, False)
        for message in told:
            place = message.topic(), message.partition()
            code = message.error().code()
            events[place].append((code, *place, message.offset()))
            if code == KafkaError._PARTITION_EOF and message.offset() >= end:
                ended.setdefault(place, True)
            elif (
                code == KafkaError._AUTO_OFFSET_RESET
                or events[place].count(events[place][-1]) >= REPEATED
            ):
                ended.setdefault(place, False)
    consumer.unassign()
    return {
        place: Heard(
            records[place][:ENDLESS],
            list(dict.fromkeys(events[place])),
            ended.get(place, False),
        )
        for place in begins
    }


def told(heard: dict[Place, Heard]) -> dict[Place, Any]:
    """Returns what can be compared."""
    return {
        place: ([fields(message) for message in each.records], each.events, each.is_whole)
        for place, each in heard.items()
    }


def _answer(bench: Workbench, errors: Sequence[int], pause_s: float) -> None:
    bench.mock.answer_well(FETCH)
    if errors:
        # A consumer may ask once more for what it has given up, and would take the error.
        time.sleep(pause_s)
        bench.mock.answer(*errors, request=FETCH)


def _difference(native: dict[Place, Any], plain: dict[Place, Any]) -> str:
    found = []
    for place, (theirs, *others) in plain.items():
        ours, *rest = native[place]
        pairs = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
        found.append(f"{place}: {len(ours)} and {len(theirs)}, {rest} and {others}, {pairs[:1]}")
    return "\n".join(found)


def compare(
    bench: Workbench, begins: dict[Place, int], limit: int, errors: Sequence[int] = ()
) -> dict[Place, Heard]:
    """Checks that both kinds of consumers say the same. Returns that.

    Args:
        bench: has the consumers.
        begins: where they begin.
        limit: how many records the extension's reader takes at a time.
        errors: a broker's first answers to each of them.
    """
    for wait_s in WAITS_S:
        _answer(bench, errors, wait_s)
        heard = bench.heard_by_plain(begins, wait_s)
        plain = told(heard)
        _answer(bench, errors, wait_s)
        native = told(bench.heard_by_native(begins, wait_s, limit))
        if plain == native:
            break
        bench.again += 1
    bench.mock.answer_well(FETCH)
    assert native == plain, _difference(native, plain)
    return heard


# ---- batches and their records -----------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from([b"TxId", b"TxCtl", b"a", b"", "\N{SNOWMAN}".encode(), b"\xff\xfe", b"a\0b"]),
    st.binary(max_size=6),
)
CONTENTS = st.one_of(
    st.sampled_from([None, b"", b"0123456789abcdef", b"x" * 32, b"x" * 33, b"large" * 4_000]),
    st.binary(max_size=20),
)
HEADERS = st.one_of(
    st.lists(st.tuples(NAMES, CONTENTS), max_size=4),
    st.builds(lambda *of: [(of[0], of[1])] * of[2], NAMES, st.binary(max_size=3), st.just(200)),
)
LIMITS = st.sampled_from([1, 3, 63, 64, 65, 1_000])


def _size(record: Record) -> int:
    contents = record.key, record.value, *(part for header in record.headers for part in header)
    return sum(len(content or b"") for content in contents)


@st.composite
def batch(draw: st.DrawFn) -> Batch:
    """A batch, in which neighbours may share headers, and be more than are taken at a time."""
    pool = draw(st.lists(HEADERS, min_size=1, max_size=2))
    records = st.builds(
        Record, CONTENTS, CONTENTS, st.sampled_from(pool), st.sampled_from([0, 0, 1, -5, 2**40])
    )
    drawn = draw(st.lists(records, min_size=1, max_size=4))
    # The mock cluster keeps some 5 MB of a partition.
    times = draw(st.sampled_from([1, 1, 1, 40])) if max(map(_size, drawn)) < 500 else 1
    return Batch(
        drawn * times,
        draw(st.sampled_from(batches.CODECS)),
        draw(st.sampled_from([0, 1_700_000_000_000, -1, 2**62])),
        draw(st.booleans()),
        draw(st.sampled_from([0, 1, -1, 2**31 - 1])),
    )


PLACES = st.tuples(st.sampled_from(TOPICS), st.integers(0, PARTITIONS - 1))
LOGS = st.tuples(
    st.dictionaries(PLACES, st.lists(batch(), min_size=1, max_size=3), min_size=1, max_size=4),
    LIMITS,
)
"""(batches of each partition, how many are read at a time)"""


def check_batches(bench: Workbench, drawn: tuple[dict[Place, list[Batch]], int]) -> None:
    """What comes out is what went in, and what confluent-kafka makes of it."""
    logs, limit = drawn
    begins: dict[Place, int] = {}
    for place, log in logs.items():
        for each in log:
            begins.setdefault(place, bench.log.append(*place, batches.encode(each)))
    for place, heard in compare(bench, begins, limit).items():
        assert heard.is_whole
        records = [record for each in logs[place] for record in each.records]
        expected = [(record.key, record.value) for record in records]
        assert [(message.key(), message.value()) for message in heard.records] == expected


LATE = st.tuples(PLACES, batch(), st.lists(batch(), min_size=1, max_size=2), LIMITS)


def check_late(bench: Workbench, drawn: tuple[Place, Batch, list[Batch], int]) -> None:
    """Records behind an event, here the partition's end, are as they are without it."""
    place, first, others, limit = drawn
    begins = {place: bench.log.append(*place, batches.encode(first))}

    def late() -> int:
        end = 0
        for each in others:
            time.sleep(LATE_S)
            end = bench.log.append(*place, batches.encode(each)) + len(each.records)
        time.sleep(LATE_S)
        return end

    native = told(bench.heard_by_native(begins, WAITS_S[-1], limit, late))
    plain = told(bench.heard_by_plain(begins, WAITS_S[-1]))
    assert native[place][0] == plain[place][0], _difference(native, plain)


# ---- malformed batches -------------------------------------------------------------------------

BYTES = st.one_of(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), st.integers(0, 255))
CHANGES = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 200), BYTES),
    st.tuples(st.just("set"), st.integers(-40, -1), BYTES),
    st.tuples(st.just("cut"), st.integers(1, 40), st.booleans()),
    st.tuples(st.just("add"), st.binary(min_size=1, max_size=9), st.booleans()),
    st.tuples(st.just("count"), st.integers(1, 9), st.none()),
    st.tuples(st.just("flip"), st.integers(SAFE, 200), st.none()),
)
"""(what, where or which, with what or whether the batch's length says so)"""
MALFORMED = st.tuples(
    PLACES,
    st.lists(st.tuples(batch(), st.lists(CHANGES, max_size=3)), min_size=1, max_size=3),
    LIMITS,
)


def malformed(batch: Batch, changes: Sequence[tuple[str, Any, Any]]) -> bytes:
    """Returns a batch with changes, of what it has before it is compressed but for flips.

    Whoever reads it, librdkafka 2.16 ends the process for a batch that is decompressed to nothing,
    and never ends to decompress one of gzip that is cut short. So no batch has another compression
    than it says, and what is compressed is never cut short.
    """
    made, codec = bytearray(batches.encode(batch._replace(codec="none"))), batch.codec
    for what, where, how in changes:
        if what == "set":
            made[where % len(made)] = how
        elif what == "count":
            made[batches.COUNT_AT : batches.COUNT_AT + 4] = where.to_bytes(4, "big")
        elif what == "add":
            made += where
        elif what == "cut":
            del made[max(batches.PREFIX.size + 1, len(made) - where) :]
        if how is True:
            made[8:12] = (len(made) - batches.FRAME).to_bytes(4, "big")
    made[batches.CODEC_AT] = made[batches.CODEC_AT] & ~7 | batches.CODECS.index(codec)
    if codec == "none":
        return bytes(made)
    packed = bytearray(batches.compressed(codec, bytes(made[batches.PREFIX.size :])))
    for what, where, _ in changes:
        if what == "flip" and where < len(packed) and codec != "gzip":
            packed[where] ^= 0x55
    said = int.from_bytes(made[8:12], "big", signed=True) - len(made) + batches.FRAME
    least = batches.PREFIX.size + len(packed) - batches.FRAME
    made[8:12] = min(least + max(said, 0), 2**31 - 1).to_bytes(4, "big")
    return bytes(made[: batches.PREFIX.size] + packed)


def check_malformed(bench: Workbench, drawn: tuple[Place, list[Any], int]) -> None:
    """Whatever librdkafka makes of malformed batches, both say the same, and nobody crashes."""
    place, log, limit = drawn
    begins: dict[Place, int] = {}
    for each, changes in log:
        first = bench.append(place, malformed(each, changes))
        if first is not None:
            begins.setdefault(place, first)
    hypothesis.assume(begins)
    compare(bench, begins, limit)


# ---- errors of a broker ------------------------------------------------------------------------

ANSWERS = st.sampled_from(
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN,
        KafkaError.INVALID_MSG,
    ]
)
FAILED = st.tuples(PLACES, st.lists(ANSWERS, min_size=1, max_size=3), batch(), LIMITS)


def check_failed(bench: Workbench, drawn: tuple[Place, list[int], Batch, int]) -> None:
    """Errors of a broker come to both as the same events."""
    place, errors, each, limit = drawn
    begins = {place: bench.log.append(*place, batches.encode(each))}
    compare(bench, begins, limit, errors)


# ---- whose record a report is of ---------------------------------------------------------------

KEYS: Final = [(b"0" * 16, b""), (b"0" * 16, b"x"), (b"0" * 16, b"x" * 32), (b"1" * 16, b"")]
"""(TxId, TxCtl)s of the branches that are counted."""
OWN_NAMES = st.sampled_from([b"TxId", b"TxId", b"TxCtl", b"TxCtl", b"TxI", b"TxIdx", b"", b"\xff"])
OWN_VALUES = st.one_of(
    st.sampled_from([None, b"", b"0" * 16, b"1" * 16, b"x", b"x" * 32, b"x" * 33, b"0" * 17]),
    st.binary(max_size=40),
)
REPORTED = st.lists(
    st.tuples(
        st.lists(st.tuples(OWN_NAMES, OWN_VALUES), max_size=4), st.booleans(), st.integers(0, 2)
    ),
    max_size=30,
)
"""(headers, whether Python counts it, partition)s"""


def branch_of(headers: Sequence[tuple[bytes, bytes | None]]) -> tuple[bytes, bytes] | None:
    """Returns whose record one with these headers is: the first two say so."""
    named = [*headers, (b"", None), (b"", None)][:2]
    (name, txid), (next_name, control) = named
    if name != b"TxId" or txid is None or len(txid) != 16:
        return None
    if next_name != b"TxCtl":
        return txid, b""
    return None if control is None or len(control) > 32 else (txid, control)


def check_headers(bench: Workbench, drawn: list[tuple[Any, bool, int]]) -> None:
    """Each report is counted for the branch that the first headers name, and for no other."""
    made, handle = bench.librdkafka.producer()
    counts = {key: handle.count(*key, {"a": None}, None) for key in KEYS}
    expected: dict[Any, dict[int, list[int]]] = {key: defaultdict(list) for key in KEYS}
    for offset, (headers, is_pythons, partition) in enumerate(drawn):
        bench.librdkafka.report_headers(
            made, ("a", partition), offset, headers, is_pythons=is_pythons
        )
        key = branch_of(headers)
        if key in expected and not is_pythons:
            expected[key][partition].append(offset)
    for key, count in counts.items():
        lie = {partition: offsets for partition, offsets in expected[key].items() if offsets}
        assert count.failure() is None
        assert count.reports == sum(map(len, lie.values()))
        spans = [("a", n, found[0], found[-1], len(found)) for n, found in lie.items()]
        assert sorted(count.spans()) == sorted(spans)
        count.retire()
    handle.detach()
    bench.librdkafka.destroy(made)


# ---- what is counted lies in the log -----------------------------------------------------------

GIVEN = st.one_of(
    st.sampled_from([None, b"", "", "\N{SNOWMAN}", b"\0", b"large" * 14_000, "large" * 14_000]),
    st.binary(max_size=20),
    st.text(max_size=9),
)
SENT = st.tuples(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from(COUNTED),
            st.integers(-1, PARTITIONS - 1),
            GIVEN,
            GIVEN,
            st.sampled_from([0, 1, 1_700_000_000_000]),
        ),
        min_size=1,
        max_size=MOST_SENT,
    ),
    st.lists(st.sampled_from([b"", b"x", b"y" * 32]), min_size=3, max_size=3),
    st.lists(
        st.sampled_from(
            [
                KafkaError.REQUEST_TIMED_OUT,
                KafkaError.NOT_ENOUGH_REPLICAS,
                KafkaError.MSG_SIZE_TOO_LARGE,
                KafkaError.DUPLICATE_SEQUENCE_NUMBER,
            ]
        ),
        max_size=1,
    ),
)
"""((branch, whether it is counted, topic, partition, value, key, timestamp)s, TxCtls, errors)"""


def check_counts(bench: Workbench, drawn: tuple[list[Any], list[bytes], list[int]]) -> None:
    """A branch that has not failed has counted its records as they lie in the log."""
    records, controls, errors = drawn
    txids = [next(bench.numbers).to_bytes(16, "big") for _ in controls]
    branches = list(zip(txids, controls, strict=True))
    topics = dict.fromkeys(COUNTED)
    counts = [bench.handle.count(*branch, topics, None) for branch in branches]
    bench.mock.answer(*errors)
    taken: dict[Any, list[Any]] = defaultdict(list)
    for whose, is_counted, topic, partition, value, key, timestamp in records:
        if is_counted and counts[whose].produce(topic, value, key, partition, timestamp):
            encoded = [of.encode() if isinstance(of, str) else of for of in (key, value)]
            taken[whose].append((topic, *encoded))
        else:
            txid, control = branches[whose]
            bench.producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda *_: None,
                timestamp=timestamp,
                headers=[("TxId", txid), *[("TxCtl", control)] * bool(control), ("own", b"")],
            )
    for count in counts:
        count.close()
    assert bench.producer.flush(30) == 0
    bench.mock.answer_well(PRODUCE)
    try:
        check_counted(counts, branches, taken, lying(bench), fails=bool(errors))
    finally:
        for count in counts:
            count.retire()
    assert bench.handle.size == 0


def check_counted(
    counts: list[Count], branches: list[Any], taken: Any, lie: Any, *, fails: bool
) -> None:
    """Checks each branch's count.

    Args:
        counts: of the branches. All is reported.
        branches: their (TxId, TxCtl)s.
        taken: (topic, key, value)s that were counted, by a branch's number.
        lie: what lies in the log, as `lying` tells it.
        fails: whether any may have failed.
    """
    for whose, count in enumerate(counts):
        assert count.is_settled
        assert count.unreported == 0
        assert count.reports == len(taken[whose])
        if not fails:
            assert count.failure() is None
        if count.failure() is count.doubted() is None:
            mine = lie.get((branches[whose], True), {})
            spans = [(*place, at[0][0], at[-1][0], len(at)) for place, at in mine.items()]
            assert sorted(count.spans()) == sorted(spans)
            found = [(place[0], *content) for place, at in mine.items() for _, *content in at]
            assert sorted(found, key=repr) == sorted(taken[whose], key=repr)


def lying(bench: Workbench) -> dict[Any, dict[Place, list[Any]]]:
    """Returns (offset, key, value)s of what was added to the log, of each branch and partition."""
    found: dict[Any, dict[Place, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for place, heard in bench.heard_by_plain(bench.ends, WAITS_S[-1]).items():
        assert heard.is_whole
        for message in heard.records:
            bench.ends[place] = message.offset() + 1
            headers = message.headers()
            branch = branch_of([(name.encode(), value) for name, value in headers])
            is_counted = not any(name == "own" for name, _ in headers)
            content = message.offset(), message.key(), message.value()
            found[branch, is_counted][place].append(content)
    return found


class Check(NamedTuple):
    """What is fuzzed."""

    check: Callable[[Workbench, Any], None]
    examples: Any
    number: int
    """How many of them take some five seconds."""


CHECKS: Final = {
    "batches": Check(check_batches, LOGS, 100),
    "late": Check(check_late, LATE, 100),
    "malformed": Check(check_malformed, MALFORMED, 50),
    "failed": Check(check_failed, FAILED, 50),
    "headers": Check(check_headers, REPORTED, 1_000),
    "counts": Check(check_counts, SENT, 100),
}


def fuzz(bench: Workbench, name: str, settings: hypothesis.settings, seed: int | None) -> None:
    """Draws examples and checks them.

    Args:
        bench: what they go through.
        name: one of `CHECKS`.
        settings: how many.
        seed: of the examples; None: any, and those that failed before.
    """
    fuzzed = CHECKS[name]

    @settings
    @hypothesis.given(fuzzed.examples)
    def draw(example: Any) -> None:
        fuzzed.check(bench, example)

    (draw if seed is None else hypothesis.seed(seed)(draw))()
