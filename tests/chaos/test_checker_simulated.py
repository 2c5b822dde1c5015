"""Correct runs show no anomaly; changed in one place, they show that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from logtx.chaos.checker import Verdict
from logtx.journal.control import BranchRange
from logtx.journal.places import PartitionId, Placed
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.types import DataPartition, Entry, PartitionWrites, PrepareCommit
from logtx.journal.sidecar import sidecar_of, to_delivered

from .checker_simulation import Simulation
from .checker_world import IN, Partition, Txn

SEEDS = st.integers(0, 2**32 - 1)
QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])


def told(verdict: Verdict) -> str:
    """All that was found."""
    return "\n".join(f"{a.name}: {a.sentence} {a.evidence}" for a in verdict.anomalies)


@QUICK
@given(SEEDS)
def test_a_correct_run_has_no_anomaly(seed: int) -> None:
    verdict = Simulation(seed, steps=120).world.judge()
    assert verdict.ok, told(verdict)
    trimmed = {"delivery of what was trimmed", "marker that may have been trimmed"}
    assert not trimmed & set(verdict.unverifiable)


@QUICK
@given(SEEDS, st.booleans())
def test_a_correct_run_that_was_trimmed_has_no_anomaly(seed: int, keep: bool) -> None:
    # A journal that places is kept as long as the data: `keep` leaves it whole.
    simulation = Simulation(seed, steps=120, switches=keep)
    world, random = simulation.world, simulation.random
    for process in ("final-0.0", "final-1.0"):
        del world.events[process]
    for partition, records in world.logs.items():
        if random.random() < 0.6:
            world.starts[partition] = random.randint(0, len(records))
    for number, entries in enumerate(world.journals):
        if not keep and random.random() < 0.6:
            world.journal_starts[number] = random.randint(0, len(entries) - 1)
    torn = torn_by_trimming(simulation)
    world.order = {p: [o for o in order if o not in torn[p]] for p, order in world.order.items()}
    world.finals()
    simulation.read_serially("final-1.0", 1)
    verdict = world.judge()
    assert verdict.ok, told(verdict)


def torn_by_trimming(simulation: Simulation) -> dict[Partition, set[int]]:
    """Records that readers may leave out: their transaction begins below the log's start."""
    world = simulation.world
    torn: dict[Partition, set[int]] = {partition: set() for partition in world.logs}
    for txn, _ in simulation.decided:
        for partition, start in world.starts.items():
            # A pointer may be a copy of one that lay at or behind its `since`.
            since = txn.since.get(partition, start) if partition in txn.pointed else start
            if (txn.offsets.get(partition) or [since])[0] < start:
                torn[partition] |= set(txn.delivers(partition))
    for partition, placed in world.placed.items():
        torn[partition] |= set(placed_too_low(placed, partition, world.starts[partition]))
    return torn


def placed_too_low(
    placed: Sequence[tuple[int, Txn]], partition: Partition, start: int
) -> Iterator[int]:
    """What lies in the sidecar alone, and is placed below the log's start, or there, and before
    something that is gone."""
    is_gone = False
    for place, txn in reversed(placed):
        if txn.offsets.get(partition):
            is_gone = is_gone or place <= start
        elif place < start or (place == start and is_gone):
            yield from txn.delivers(partition)


# ---- changes ------------------------------------------------------------------------------------


def committed(simulation: Simulation, records: int = 1) -> list[Txn]:
    """Producers' transactions that were acknowledged, with so many records at least."""
    ends = ended(simulation)
    return [
        txn
        for txn, commit in simulation.decided
        if commit
        and txn.process.startswith("producer")
        and sum(map(len, txn.offsets.values())) >= records
        and ends.get(txn.name) == "committed"
    ]


def ended(simulation: Simulation) -> dict[str, str]:
    """Outcomes by operation."""
    return {
        event["op"]: event["outcome"]
        for events in simulation.world.events.values()
        for event in events
        if event["event"] == "end"
    }


def pick(simulation: Simulation, among: list[Any]) -> Any:
    """One of them; another run if there is none."""
    assume(among)
    return simulation.random.choice(among)


def polls(simulation: Simulation, process: str) -> Iterator[dict[str, Any]]:
    """What a process was given."""
    return (e for e in simulation.world.events[process] if e["event"] == "poll")


def left_out(simulation: Simulation, process: str, values: set[str]) -> None:
    """A reader is not given these."""
    for event in polls(simulation, process):
        event["records"] = [row for row in event["records"] if row[4] not in values]


def aborted_read(simulation: Simulation) -> set[str]:
    txn = pick(simulation, [t for t, c in simulation.decided if not c and any(t.offsets.values())])
    partition = pick(simulation, [p for p, offsets in txn.offsets.items() if offsets])
    simulation.world.assign("consumer-9.0", partition)
    simulation.world.poll("consumer-9.0", partition, txn.offsets[partition][:1])
    return {"g1a"}


def early_read(simulation: Simulation) -> set[str]:
    txn = pick(simulation, committed(simulation, 2))
    world, events = simulation.world, simulation.world.events[txn.process]
    appends = [e["at"] for e in events if e["event"] == "append" and e["op"] == txn.name]
    asked = next(e["at"] for e in events if e["event"] == "commit" and e["op"] == txn.name)
    intermediate = simulation.random.random() < 0.5
    partition = pick(simulation, [p for p, offsets in txn.offsets.items() if offsets])
    world.assign("consumer-9.0", partition)
    event = world.poll("consumer-9.0", partition, txn.offsets[partition][:1])
    event["at"] = appends[-1] - 1 if intermediate else asked - 1
    return {"intermediate-read" if intermediate else "dirty-read"}


def lost_transaction(simulation: Simulation) -> set[str]:
    txn = pick(simulation, committed(simulation))
    for reader in ("final-0.0", "final-1.0"):
        left_out(simulation, reader, set(txn.values))
    return {"lost-write", "unseen"}


def lost_plain_record(simulation: Simulation) -> set[str]:
    acked = {e["v"] for es in simulation.world.events.values() for e in es if e["event"] == "acked"}
    plain = [v for v, op, _ in simulation.world.values.values() if op is None and v in acked]
    left_out(simulation, "final-0.0", {pick(simulation, plain)})
    return {"lost-write", "unseen"}


def torn_transaction(simulation: Simulation) -> set[str]:
    txn = pick(simulation, committed(simulation, 2))
    left_out(simulation, "final-0.0", {simulation.random.choice(txn.values)})
    return {"torn-transaction"}


def torn_for_a_serializable_reader(simulation: Simulation) -> set[str]:
    txn = pick(simulation, [t for t in committed(simulation, 2) if t.journal == 1])
    left_out(simulation, "final-1.0", {simulation.random.choice(txn.values)})
    return {"torn-transaction"}


def delivered_twice(simulation: Simulation) -> set[str]:
    reader = simulation.random.choice(simulation.readers)
    event = pick(simulation, list(polls(simulation, reader.process)))
    event["records"].append(event["records"][0])
    return {"duplicate"}


def delivered_in_reverse(simulation: Simulation) -> set[str]:
    process = simulation.random.choice(["consumer-1.0", "final-0.0"])
    event = pick(simulation, [e for e in polls(simulation, process) if len(e["records"]) > 1])
    event["records"].reverse()
    return {"nonmonotonic-poll"}


def skipped_record(simulation: Simulation) -> set[str]:
    world, partition = simulation.world, (IN, simulation.random.randrange(3))
    offsets = world.given(partition, "read_uncommitted")
    # What is placed of the sidecar has an order of its own, so it does not say what is left out.
    own = [offset for offset in offsets if offset < to_delivered(0)]
    offsets.remove(pick(simulation, own[1:-1]))
    world.assign("consumer-9.0", partition, isolation="read_uncommitted")
    world.poll("consumer-9.0", partition, offsets, "read_uncommitted")
    return {"skipped-poll"}


def another_value(simulation: Simulation) -> set[str]:
    event = pick(simulation, list(polls(simulation, "final-0.0")))
    row = simulation.random.choice(event["records"])
    row[4] = pick(simulation, [v for v, _, _ in simulation.world.values.values() if v != row[4]])
    return {"inconsistent-offsets"}


def told_otherwise(simulation: Simulation) -> set[str]:
    ends = [e for es in simulation.world.events.values() for e in es if e["event"] == "end"]
    written = {t.name for t, _ in simulation.decided if any(t.offsets.values())}
    known = [e for e in ends if e["outcome"] != "unknown" and e["op"] in written]
    event = pick(simulation, known)
    event["outcome"] = "aborted" if event["outcome"] == "committed" else "committed"
    to = "committed" if event["outcome"] == "aborted" else "aborted"
    return {f"{event['outcome']}-but-{to}"}


def swapped_markers(simulation: Simulation) -> set[str]:
    world = simulation.world
    first: dict[tuple[int, Partition], list[int]] = {}
    seen: set[tuple[bytes, Partition]] = set()
    for partition, records in world.logs.items():
        for record in records:
            txid = dict(record.headers).get("TxId") or b""
            if record.value is None and (txid, partition) not in seen:
                seen.add((txid, partition))
                first.setdefault((txid[1], partition), []).append(record.offset)
    pairs = [
        (lane[1], offsets[i], offsets[i + 1])
        for lane, offsets in first.items()
        for i in range(len(offsets) - 1)
    ]
    partition, one, other = pick(simulation, pairs)
    records = world.logs[partition]
    headers = records[one].headers, records[other].headers
    records[one] = records[one]._replace(headers=headers[1])
    records[other] = records[other]._replace(headers=headers[0])
    return {"marker-order"}


def swapped_transactions(simulation: Simulation) -> set[str]:
    events = list(polls(simulation, "final-1.0"))
    ops = [event["records"][0][5] for event in events]
    pairs = [i for i in range(len(ops) - 1) if ops[i] != ops[i + 1]]
    index = pick(simulation, pairs)
    one, other = events[index], events[index + 1]
    one["records"], other["records"] = other["records"], one["records"]
    return {"order-differs"}


def outputs(simulation: Simulation) -> list[dict[str, Any]]:
    """What the worker's committed transactions appended."""
    committed_names = {t.name for t, commit in simulation.decided if commit}
    events = simulation.world.events["worker-0.0"]
    return [e for e in events if e["event"] == "append" and e["op"] in committed_names]


def processed_twice(simulation: Simulation) -> set[str]:
    sources = [(e["i"][0], e["i"][1]) for e in outputs(simulation)]
    worker = simulation.world.begin("worker-1.0")
    worker.append(0, "chaos-out", pick(simulation, sources))
    worker.commit()
    return {"iov-overlap"}


def never_processed(simulation: Simulation) -> set[str]:
    made = outputs(simulation)
    event = pick(simulation, made)
    others = [e["i"] for e in made if e["i"] != event["i"]]
    event["i"] = pick(simulation, others)
    return {"iov-gap", "unseen"}


def late_record(simulation: Simulation) -> set[str]:
    world = simulation.world
    txn = pick(simulation, committed(simulation))
    partition = pick(simulation, [p for p, offsets in txn.offsets.items() if offsets])
    value = world.append_event(txn.process, txn.name, partition)
    offset = world.record(partition, value, txn.name, txn.txid)
    world.assign("consumer-9.0", partition)
    world.poll("consumer-9.0", partition, [offset])
    return {"zombie-write"}


def places(simulation: Simulation) -> list[tuple[int, int, Entry]]:
    """The PLACED records of both journals: journal, offset, record."""
    entries = (
        (journal, offset, decode_entry(raw))
        for journal, records in enumerate(simulation.world.journals)
        for offset, raw in enumerate(records)
    )
    return [(j, o, e) for j, o, e in entries if isinstance(e.record, Placed)]


def rewritten(simulation: Simulation, partition: Partition, place: int | None) -> None:
    """Every PLACED record names another place in a partition, or none."""
    for journal, offset, entry in places(simulation):
        assert isinstance(entry.record, Placed)
        ends = {p: e for p, e in entry.record.ends.items() if p.key != partition}
        if place is not None and len(ends) < len(entry.record.ends):
            ends[PartitionId(*partition)] = place
        changed = replace(entry, record=replace(entry.record, ends=ends))
        simulation.world.journals[journal][offset] = encode_entry(changed)


def partition_with_places(simulation: Simulation) -> Partition:
    """A partition in which something is placed."""
    found = {p: txns for p, txns in simulation.placed.items() if any(t.offsets[p] for t in txns)}
    partition: Partition = pick(simulation, list(found))
    return partition


def left_unplaced(simulation: Simulation) -> set[str]:
    rewritten(simulation, partition_with_places(simulation), None)
    return {"missing-place"}


def placed_low(simulation: Simulation) -> set[str]:
    rewritten(simulation, partition_with_places(simulation), 0)
    return {"misplaced"}


def placed_asides(simulation: Simulation, records: int = 1) -> list[tuple[Partition, Txn]]:
    """What is placed, and has as many records in the sidecar, at least."""
    return [
        (partition, txn)
        for partition, placed in simulation.world.placed.items()
        for _, txn in placed
        if len(txn.aside.get(partition, ())) >= records
    ]


def lost_sidecar(simulation: Simulation) -> set[str]:
    partition, txn = pick(simulation, placed_asides(simulation))
    world = simulation.world
    values = {world.values[partition, to_delivered(offset)][0] for offset in txn.aside[partition]}
    left_out(simulation, "final-0.0", values)
    return {"torn-transaction", "lost-write", "skipped-poll", "unseen"}


def half_a_sidecar(simulation: Simulation) -> set[str]:
    partition, txn = pick(simulation, placed_asides(simulation, 2))
    last = simulation.world.values[partition, txn.delivers(partition)[-1]][0]
    left_out(simulation, "final-0.0", {last})
    return {"torn-transaction"}


def sidecar_before_its_place(simulation: Simulation) -> set[str]:
    found = [
        (partition, offset)
        for partition, txn in placed_asides(simulation)
        for offset in map(to_delivered, txn.aside[partition])
        if any(each < txn_place(simulation, partition, txn) for each in own(simulation, partition))
    ]
    partition, offset = pick(simulation, found)
    event = next(e for e in polls(simulation, "final-2.0") if e["records"][0][:2] == [*partition])
    event["records"].sort(key=lambda row: row[2] != offset)
    return {"nonmonotonic-poll"}


def txn_place(simulation: Simulation, partition: Partition, txn: Txn) -> int:
    """Where a transaction is placed."""
    return next(p for p, each in simulation.world.placed[partition] if each is txn)


def own(simulation: Simulation, partition: Partition) -> list[int]:
    """Offsets of the records of the partition itself, without markers."""
    return [r.offset for r in simulation.world.logs[partition] if r.value is not None]


def decided_too_few(simulation: Simulation) -> set[str]:
    """A decision tells all but the last record of a sidecar."""
    partition, txn = pick(simulation, placed_asides(simulation, 2))
    journal, offsets = simulation.world.journals[txn.journal], txn.aside[partition]
    entry = decode_entry(journal[txn.sequence])
    assert isinstance(entry.record, PrepareCommit)
    sidecar = DataPartition(sidecar_of(partition[0]), partition[1])
    told = BranchRange(0, offsets[0], offsets[-2], len(offsets) - 1)
    writes = tuple(
        PartitionWrites(sidecar, (told,)) if w.partition.key == sidecar.key else w
        for w in entry.record.writes
    )
    changed = replace(entry, record=replace(entry.record, writes=writes))
    journal[txn.sequence] = encode_entry(changed)
    return {"zombie-write"}


CHANGES: list[Callable[[Simulation], set[str]]] = [
    aborted_read,
    early_read,
    lost_transaction,
    lost_plain_record,
    torn_transaction,
    torn_for_a_serializable_reader,
    delivered_twice,
    delivered_in_reverse,
    skipped_record,
    another_value,
    told_otherwise,
    swapped_markers,
    swapped_transactions,
    processed_twice,
    never_processed,
    late_record,
    left_unplaced,
    placed_low,
    lost_sidecar,
    half_a_sidecar,
    sidecar_before_its_place,
    decided_too_few,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@settings(QUICK, max_examples=10)
@given(seed=SEEDS)
def test_one_change_is_found(change: Callable[[Simulation], set[str]], seed: int) -> None:
    simulation = Simulation(seed, switches=change is not swapped_markers)
    expected = change(simulation)
    verdict = simulation.world.judge()
    assert expected & set(verdict.counts), (expected, told(verdict))
