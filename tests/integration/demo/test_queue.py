"""The queue's part of the demo: what counts as worked off, and what speaks against a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.flights import Flight, read_flights
from logtx.integration.demo.journal_view import JournalView
from logtx.integration.demo.letters import LetterFindings, find_in, is_booked
from logtx.integration.demo.options import QUEUE_FLIGHTS, DemoOptions
from logtx.integration.demo.plan import Fault, Plan
from logtx.integration.demo.verdict import Letters, reasons_against
from logtx.journal.acks import Acks, AddAcks
from logtx.journal.control import BranchRange
from logtx.journal.modes import Mode
from logtx.journal.places import PartitionId
from logtx.journal.records import types as r
from logtx.journal.spans import MessageId, Span

from .journals import LEDGER, Journal
from .test_demo import good_outcome
from .test_runs import Shown, processes_of

COUNT = 5_000


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights(COUNT))


@pytest.fixture(scope="module")
def given_up(flights: list[Flight]) -> list[Flight]:
    return [flight for flight in flights if not is_booked(flight)]


def test_good_letters_are_the_flights_that_nobody_books(
    flights: list[Flight], given_up: list[Flight]
) -> None:
    assert 3 <= len(given_up) < COUNT / 20, "the file has some from its beginning on"
    found = find_in(reversed(given_up), flights)
    assert found == LetterFindings(letters=len(given_up), missing=0, doubled=0, foreign=0)


def test_every_fault_of_letters_is_found(flights: list[Flight], given_up: list[Flight]) -> None:
    booked = next(filter(is_booked, flights))
    found = find_in([*given_up[1:], given_up[-1], booked], flights)
    assert found == LetterFindings(letters=len(given_up) + 1, missing=1, doubled=1, foreign=1)
    outcome = replace(good_outcome(), letters=Letters(found, 0))
    reasons = reasons_against(outcome)
    assert [sentence.split(" ", 1)[1] for sentence in reasons] == [
        "dead letters are missing.",
        "dead letters are there twice.",
        "dead letters are of flights that were to be booked.",
    ]
    unread = replace(good_outcome(), letters=Letters(None, 0))
    assert reasons_against(unread) == ["The dead letters could not be read."]


def test_a_transaction_of_letters_alone_is_not_missed_in_the_ledger() -> None:
    fine = Letters(LetterFindings(letters=3, missing=0, doubled=0, foreign=0), 1)
    outcome = replace(good_outcome(), letters=fine, transactions_audited=9)
    assert reasons_against(outcome) == []
    (reason,) = reasons_against(replace(outcome, transactions_audited=10))
    assert "journal has 9" in reason


def test_the_journal_shows_who_acknowledges_and_what_is_given_up() -> None:
    dead = r.DataPartition("flights_dead", 0)
    journal = Journal(JournalView("ledger-", [LEDGER.topic], dead.topic))
    journal.own()
    begin = journal.begin()
    assert journal.view.open_of("ledger-0") is None
    span = Span(MessageId(0), MessageId(5))
    acks = (Acks(PartitionId("flights", 0, "id"), (span,)),)
    journal.append(AddAcks(begin=begin[1], group="q", acks=acks))
    assert journal.view.open_of("ledger-0") is not None, "it works on messages of the queue"
    writes = [
        r.PartitionWrites(LEDGER, (BranchRange(0, 0, 3, 4),)),
        r.PartitionWrites(dead, (BranchRange(0, 0, 1, 2),)),
    ]
    journal.append(r.PrepareCommit(begin=begin[1], writes=tuple(writes), decided_ms=0))
    alone = journal.begin()
    journal.append(r.PrepareCommit(begin=alone[1], writes=(writes[1],), decided_ms=0))
    view = journal.view
    assert (view.committed, view.records_committed, view.letters) == (2, 4, 4)
    assert view.of_letters_alone == 1


def test_a_queue_has_kills_of_both_kinds_and_one_coordinator() -> None:
    options = DemoOptions(queue=True)
    options.check()
    assert options.flight_count == QUEUE_FLIGHTS
    assert not options.is_whole, "without Spark's part"
    required = Plan.of(QUEUE_FLIGHTS).required
    assert required == {Fault.WORKER_KILL: 4, Fault.COORDINATOR_KILL: 1}
    for more in ({"spark": True}, {"chaos": True}, {"coordinators": 2}, {"mode": Mode.METADATA}):
        with pytest.raises(DemoError, match="--queue"):
            replace(options, **more).check()  # type: ignore[arg-type]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_flight_of_a_queue_is_booked_or_given_up_once(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "--queue", "--flights", "5000")
    without = shown.figure("without tail number")
    assert without > 0
    assert shown.figure("dead letters") == without
    assert shown.figure("ledger entries") == 2 * (5_000 - without)
    assert shown.figure("worker kills survived") >= 2
    assert processes_of(tmp_path) == []
