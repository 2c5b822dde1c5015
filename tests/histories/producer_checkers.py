"""Judges a history of a producer by what lies in the log and what the coordinator decided."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, decode_control
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .producer import run
from .producer_history import PARTITIONS, Begun, History, Sent

RUNS = 3
"""Most runs of a seed that shows something."""
CHECKERS = {
    "told": "What was told committed is committed, and what was told aborted or refused is not.",
    "blocks": "A with-block whose transaction did not commit raises.",
    "exactly": "A committed transaction counts the records that were taken for it, and no other.",
    "plainly": "Nothing is written plainly, or for another transaction, between begin and end.",
    "reports": "`on_delivery` is called once for each record that was taken, and tells the truth.",
    "offsets": "A committed transaction commits the input that was sent in it, and no other.",
    "errors": "No call raises what is another's, and a producer is true.",
    "hangs": "Every call and every future ends in time.",
    "goes-on": "When the faults stop, transactions commit again.",
    "closed": "A producer that is closed or dropped leaves no thread and no session.",
    "neighbour": "A producer that shares librdkafka's with another is not disturbed by it.",
}
"""Checker → what it checks."""


@dataclass(frozen=True)
class Lies:
    """Where a record lies."""

    topic: str
    partition: int
    offset: int
    txid: TxId | None
    branch: int
    headers: list[tuple[str, bytes]]

    def counts(self, history: History) -> bool:
        """Whether a committed transaction counts it."""
        known = history.transactions.get(self.txid) if self.txid else None
        if known is None or known.state is not State.COMMITTED:
            return False
        ranges = known.writes.get((self.topic, self.partition), ())
        return any(
            r.branch == self.branch and r.first_offset <= self.offset <= r.last_offset
            for r in ranges
        )


def judge(seed: int, checker: str | None = None) -> dict[str, list[str]]:
    """Returns what is wrong with the history of a seed.

    Threads, and a busy machine, may show a fault in one run and hide it in the next: with `checker`
    a seed gets two tries to show what that one finds, and without it a fault must show itself in
    two of up to three runs.
    """
    if checker is not None:
        found = violations(run(seed))
        return found if checker in found else violations(run(seed))
    shown: list[dict[str, list[str]]] = []
    for _ in range(RUNS):
        found = violations(run(seed))
        if not found and not shown:
            return {}
        if found:
            shown.append(found)
        if len(shown) == RUNS - 1:
            return shown[0]
    return {}


def violations(history: History) -> dict[str, list[str]]:
    """Returns checker → what it found."""
    found: dict[str, list[str]] = defaultdict(list)
    for checker, what in history.wrong:
        found[checker].append(what)
    where = _read(history, found)
    for begun in history.begun:
        _check_told(history, begun, found)
        _check_offsets(history, begun, found)
    for sent in history.sent:
        places = where.get(sent.value, [])
        # librdkafka may write one twice (trap 295). Where, it says in its report.
        told = [place for place in places if (None, place.offset) in sent.reports]
        place = (told or [*places, None])[0]
        _check_record(history, sent, place, found)
        _check_reports(sent, place, found)
    _check_counts(history, where, found)
    _check_order(history, where, found)
    return dict(found)


def _named(sent: Sent) -> str:
    return f"record {sent.value[:8]!r} ({sent.result}, of {sent.writer})"


def _read(history: History, found: dict[str, list[str]]) -> dict[bytes, list[Lies]]:
    where: dict[bytes, list[Lies]] = defaultdict(list)
    known = {sent.value for sent in history.sent}
    for (topic, partition), records in history.records.items():
        for offset, (_, value, headers, _) in enumerate(records):
            own = dict(headers or ())
            txid = TxId.from_bytes(own.pop(TXID_HEADER)) if TXID_HEADER in own else None
            control = own.pop(TXCTL_HEADER, None)
            branch = decode_control(control).branch if control else 0
            where[value].append(
                Lies(topic, partition, offset, txid, branch or 0, list(own.items()))
            )
            if value not in known:
                found["exactly"].append(f"nobody produced {value[:20]!r}")
    return where


def _state(history: History, begun: Begun) -> State | None:
    known = history.transactions.get(begun.txid) if begun.txid else None
    return known.state if known else None


def _check_told(history: History, begun: Begun, found: dict[str, list[str]]) -> None:
    committed = _state(history, begun) is State.COMMITTED
    if begun.block == "normally" and not committed:
        found["blocks"].append(f"the block of {begun} ended normally")
    elif "committed" in begun.told and not committed:
        found["told"].append(f"{begun} is not committed")
    if committed and {"aborted", "refused"} & set(begun.told):
        found["told"].append(f"{begun} is committed")


def _check_offsets(history: History, begun: Begun, found: dict[str, list[str]]) -> None:
    if _state(history, begun) is not State.COMMITTED or begun.unsure:
        return
    assert begun.txid is not None
    known = history.transactions[begun.txid]
    committed = {(s.topic, s.partition): s.to.place for _, steps in known.offsets for s in steps}
    if committed != begun.offsets:
        found["offsets"].append(f"{begun} committed {committed}")


def _check_record(
    history: History, sent: Sent, place: Lies | None, found: dict[str, list[str]]
) -> None:
    if place is not None:
        as_told = (place.topic, place.partition, place.headers) == (
            sent.topic, sent.partition, sent.headers,
        )  # fmt: skip
        if not as_told:
            found["exactly"].append(f"{_named(sent)} lies at {place}")
    if sent.unsure:
        if place is not None and place.txid is None:
            found["plainly"].append(f"{_named(sent)} is plain")
        return
    if sent.begun is None:
        if place is not None and place.txid is not None:
            found["plainly"].append(f"{_named(sent)} lies at {place}, and should be plain")
        return
    if place is not None and (place.txid != sent.begun.txid or place.txid is None):
        found["plainly"].append(f"{_named(sent)} of {sent.begun.txid} lies at {place}")
    counts = place is not None and place.counts(history)
    wanted = _state(history, sent.begun) is State.COMMITTED
    wanted = wanted and (sent.branch == 0 or sent.branch in sent.begun.accepted)
    if sent.result == "taken" and counts != wanted:
        found["exactly"].append(f"{_named(sent)} of {sent.begun} counts: {counts}, at {place}")
    if sent.result == "swallowed" and _state(history, sent.begun) is State.COMMITTED:
        found["exactly"].append(f"{_named(sent)} is missing in {sent.begun}")
    if sent.result == "refused" and counts:
        found["exactly"].append(f"{_named(sent)} of {sent.begun} counts")


def _check_reports(sent: Sent, place: Lies | None, found: dict[str, list[str]]) -> None:
    if not sent.listened:
        return
    count = len(sent.reports)
    allowed = {"taken": (1,), "refused": (0,), "swallowed": (0,), "interrupted": (0, 1)}[
        sent.result
    ]
    if count not in allowed:
        found["reports"].append(f"{_named(sent)} had {count} reports: {sent.reports}")
    for code, offset in sent.reports:
        if code is None and (place is None or place.offset != offset):
            found["reports"].append(f"{_named(sent)} was told at {offset}, and lies at {place}")


def _check_counts(
    history: History, where: dict[bytes, list[Lies]], found: dict[str, list[str]]
) -> None:
    lies: dict[object, list[int]] = defaultdict(list)
    for places in where.values():
        for place in places:
            lies[place.txid, place.branch, place.topic, place.partition].append(place.offset)
    for known in history.transactions.values():
        if known.state is not State.COMMITTED:
            continue
        for (topic, partition), ranges in known.writes.items():
            assert partition < PARTITIONS[topic]
            for r in ranges:
                offsets = sorted(lies[known.txid, r.branch, topic, partition])
                within = [offset for offset in offsets if r.first_offset <= offset <= r.last_offset]
                if within != offsets or len(within) != r.count:
                    found["exactly"].append(f"{known.txid} counts {r}, and has {offsets}")


def _check_order(
    history: History, where: dict[bytes, list[Lies]], found: dict[str, list[str]]
) -> None:
    last: dict[object, int] = {}
    for sent in history.sent:
        places = where.get(sent.value, [])
        for place in places if len(places) == 1 else ():
            key = (id(sent.writer), place.topic, place.partition)
            if last.get(key, -1) > place.offset:
                found["exactly"].append(f"{_named(sent)} lies before an earlier one")
            last[key] = place.offset
