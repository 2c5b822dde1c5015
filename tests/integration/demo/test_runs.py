"""The demo as people run it: a real Kafka, real processes, real kills."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.demo import auditor
from logtx.integration.demo.flights import Flight, encode_entry, read_flights
from logtx.integration.demo.ledger import Entry, entries_of
from logtx.integration.demo.options import DemoOptions
from logtx.integration.demo.plan import CHAOS_FLIGHTS_MIN
from logtx.integration.demo.reports import read_status
from logtx.integration.demo.run import run_demo
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.jars import ensure_jars
from logtx.integration.settings.read import write_settings
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.producer import Producer

FLIGHTS = 20_000
FEW = 500
"""Too few for any kill."""


def demo_command(directory: Path, *arguments: str) -> list[str]:
    """Without Spark's part, which `test_spark.py` runs."""
    given = ["demo", "--no-spark", "--data-dir", str(directory), *arguments]
    return [sys.executable, "-m", "logtx", *given]


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory: Kafka, workers and auditors all do."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(directory) in command:
            found.append(command)
    return found


class Shown:
    """What a run of the demo printed."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        ensure_jars()  # The first one on a machine shows how far its download is.
        done = subprocess.run(
            demo_command(directory, *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
            env={**os.environ, "COLUMNS": "120", "JDK_JAVA_OPTIONS": " ".join(QUICK_TO_START)},
        )
        self.text = done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "verdict: TRUE"
        # A busy machine may take longer than a broker has to end.
        told = [line for line in done.stderr.splitlines() if "kafka_killed_at_stop" not in line]
        assert told == []

    def figure(self, row: str) -> float:
        match = re.search(rf"│ +{row} +│ +([\d,.]+)", self.text)
        assert match is not None, self.text
        return float(match[1].replace(",", ""))


@pytest.mark.kafka
@pytest.mark.timeout(180)
def test_a_short_run_without_kills(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "--flights", str(FEW))
    assert shown.figure("flights") == FEW
    assert shown.figure("ledger entries") == 2 * FEW
    assert shown.figure("in transactions") == shown.figure("transactions committed") > 0
    assert processes_of(tmp_path) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_20_000_flights_survive_all_kills(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "--flights", str(FLIGHTS))
    assert shown.figure("flights") == FLIGHTS
    assert shown.figure("ledger entries") == 2 * FLIGHTS
    assert shown.figure("of aborted transactions") > 0
    assert shown.figure("worker kills survived") >= 5
    assert shown.figure("coordinator kills survived") >= 1
    assert shown.figure("transactions aborted") >= shown.figure("worker kills survived")
    assert shown.figure("in transactions") == shown.figure("transactions committed") > 100
    assert (
        shown.figure("commit latency p50")
        <= shown.figure("commit latency p99")
        <= shown.figure("commit latency worst")
    )
    assert processes_of(tmp_path) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_ledger_without_markers_is_cut_over_while_it_is_written(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "--flights", str(FLIGHTS), "--mode", "metadata")
    assert shown.figure("ledger entries") == 2 * FLIGHTS
    assert FLIGHTS / 2 <= shown.figure("ledger sealed at flight") < FLIGHTS
    assert shown.figure("transactions across") >= 1
    assert shown.figure("worker kills survived") >= 5
    assert shown.figure("coordinator kills survived") >= 1
    assert processes_of(tmp_path) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_three_coordinators_survive_kills_and_zombies(tmp_path: Path) -> None:
    """Trap 24, the producer's side, and former owners that come back."""
    arguments = ("--flights", str(CHAOS_FLIGHTS_MIN), "--coordinators", "3", "--chaos")
    shown = Shown(tmp_path, *arguments)
    assert shown.figure("ledger entries") == 2 * CHAOS_FLIGHTS_MIN
    for row in ("worker kills", "coordinator kills", "worker zombies", "coordinator zombies"):
        assert shown.figure(f"{row} survived") >= 1
    again = re.search(r"given work again +│ +(\d+) of (\d+)", shown.text)
    assert again is not None
    assert again[1] == again[2]
    assert int(again[1]) >= 3
    assert shown.figure("changes of owner") > int(again[1])
    assert processes_of(tmp_path) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_cut_short_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen(demo_command(tmp_path), stdout=out, stderr=out)
        deadline_s = time.monotonic() + 60
        while not list(tmp_path.glob("reports/*/worker-*.commits.*")):
            assert demo.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < deadline_s, (tmp_path / "out").read_text()
            time.sleep(0.1)
        assert processes_of(tmp_path)
        demo.send_signal(number)
        status = demo.wait(30)
    assert status == (-number if number is signal.SIGKILL else 130)
    deadline_s = time.monotonic() + 10
    while processes_of(tmp_path):
        assert time.monotonic() < deadline_s, processes_of(tmp_path)
        time.sleep(0.1)


@pytest.mark.kafka
@pytest.mark.slow
def test_a_run_that_stalls_is_false_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("logtx.integration.demo.part.Part.stall_s", 4.0)
    # Nobody consumes partition 3.
    monkeypatch.setattr("logtx.integration.demo.fleet.ASSIGNMENT", ("0", "1", "2"))
    assert run_demo(DemoOptions(flights=400, spark=False, data_dir=tmp_path)) == 1
    shown = capsys.readouterr().out
    assert "No progress for 4 s: flights: 400 of 400 published" in shown
    assert re.search(r"✗ \d+ ledger entries are missing", shown)
    assert "did not finish" not in shown
    assert "verdict: FALSE\n" in shown
    assert processes_of(tmp_path) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_on_a_cluster_that_is_there(tmp_path: Path) -> None:
    with LocalKafka(tmp_path / "kafka") as kafka:
        servers = ("--flights", "500", "--bootstrap-servers", kafka.bootstrap_servers)
        command = demo_command(tmp_path / "kept", *servers, "--keep")
        with (tmp_path / "out").open("wb") as out:
            kept = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            deadline_s = time.monotonic() + 60
            while "Ctrl-C stops everything" not in (tmp_path / "out").read_text():
                assert kept.poll() is None, (tmp_path / "out").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
            # The demo kills coordinators, and there is one that is not its own.
            done = subprocess.run(
                demo_command(tmp_path / "second", *servers),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 1
            assert "A coordinator serves" in done.stderr
        finally:
            kept.send_signal(signal.SIGINT)
            assert kept.wait(30) == 0
        # Topics of the run that was kept are still there; this one takes names of its own.
        done = subprocess.run(
            demo_command(tmp_path / "third", *servers),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


# ---- the auditor on ledgers that are not right --------------------------------------------------


@pytest.fixture
def producer(memory_log: MemoryLog) -> Iterator[Producer]:
    memory_log.create_topic("airport_ledger", partitions=4)
    servers = memory_log.bootstrap_servers
    config = CoordinatorConfig(bootstrap_servers=servers, listen="127.0.0.1:0")
    with (
        EmbeddedCoordinator(config, MemoryLog.named(servers)),
        Producer({"bootstrap.servers": servers, "transactional.id": "ledger-0"}) as made,
    ):
        yield made


def book(producer: Producer, entries: list[Entry], *, commit: bool = True) -> None:
    txn = producer.begin_transaction()
    for entry in entries:
        txn.produce("airport_ledger", encode_entry(entry._asdict()), entry.airport.encode())
    if commit:
        txn.commit()
    else:
        txn.abort()


def audited(
    producer_log: MemoryLog, level: str, flights: int, directory: Path, *groups: str
) -> dict[str, int]:
    """The final report of an auditor."""
    report = directory / f"{level}.json"
    settings_file = directory / "kafka.properties"
    write_settings(settings_file, {"bootstrap.servers": producer_log.bootstrap_servers})
    arguments = ["--config", str(settings_file)]
    arguments += ["--isolation-level", level, "--group", level, "--ledger-topics", "airport_ledger"]
    arguments += ["--partitions", "4", "--flights", str(flights), "--report", str(report)]
    arguments += ["--transaction-groups", *groups] if groups else []
    options: argparse.Namespace = auditor.parse(arguments)
    finishing = threading.Event()
    finishing.set()
    committed = level == "read_committed"
    made = (auditor.CommittedAuditor if committed else auditor.UncommittedAuditor)(
        options, finishing
    )
    made.run()
    made.close()
    status = read_status(report)
    assert status["final"]
    findings: dict[str, int] = status.get("findings", {})
    return {**findings, "transactions": status.get("transactions", 0), **status}


def entries(flights: list[Flight]) -> list[Entry]:
    return [entry for flight in flights for entry in entries_of(flight)]


def test_auditors_of_a_ledger_with_every_fault(
    memory_log: MemoryLog, producer: Producer, tmp_path: Path
) -> None:
    flights = list(read_flights(40))
    book(producer, entries(flights[:10]))
    book(producer, entries(flights[10:20]), commit=False)
    book(producer, entries(flights[10:20]))
    book(producer, entries(flights[5:10]))  # again
    book(producer, entries(flights[20:30])[:-1])  # one side of a flight only
    book(producer, entries(flights[31:40]))  # flight 30 is left out
    found = audited(memory_log, "read_committed", 40, tmp_path)
    assert found["transactions"] == 5
    assert (found["missing"], found["doubled"], found["foreign"]) == (1 + 2, 10, 0)
    assert (found["unbalanced"], found["split"]) == (1, 1)
    counted = audited(memory_log, "read_uncommitted", 40, tmp_path)
    assert counted["entries"] == 20 + 20 + 20 + 10 + 19 + 18


def test_auditors_of_a_good_ledger(
    memory_log: MemoryLog, producer: Producer, tmp_path: Path
) -> None:
    flights = list(read_flights(40))
    for start in range(0, 40, 10):
        book(producer, entries(flights[start : start + 10]), commit=False)
        book(producer, entries(flights[start : start + 10]))
    found = audited(memory_log, "read_committed", 40, tmp_path)
    assert found["transactions"] == 4
    faults = ("missing", "doubled", "foreign", "unbalanced", "split", "torn")
    assert [found[name] for name in faults] == [0] * 6
    counted = audited(memory_log, "read_uncommitted", 40, tmp_path)
    assert counted["entries"] == 2 * 80


def test_auditors_of_a_ledger_of_several_transaction_groups(
    memory_log: MemoryLog, producer: Producer, tmp_path: Path
) -> None:
    flights = list(read_flights(40))
    other = {"transactional.id": "ledger-1", "transaction.group": "other"}
    book(producer, entries(flights[:10]))
    with Producer({"bootstrap.servers": memory_log.bootstrap_servers, **other}) as second:
        book(second, entries(flights[10:20]))
        book(producer, entries(flights[20:30]))
        book(second, entries(flights[30:40]))
    found = audited(memory_log, "read_committed", 40, tmp_path, "default", "other")
    assert (found["transactions"], found["missing"], found["doubled"]) == (4, 0, 0)
    found = audited(memory_log, "read_committed", 40, tmp_path, "default")
    assert (found["transactions"], found["missing"]) == (2, 2 * 20)
