"""The Spark part of the demo: what it decides, and two runs as people run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from logtx.integration import spark
from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.flights import decode_entry, encode_flight, read_flights
from logtx.integration.demo.ledger import Entry, LedgerFindings, entries_of
from logtx.integration.demo.options import DemoOptions
from logtx.integration.demo.run import run_demo
from logtx.integration.demo.spark.booking import book
from logtx.integration.demo.spark.display import SparkSnapshot, print_outcome
from logtx.integration.demo.spark.inspector import Inspection, read_export
from logtx.integration.demo.spark.killer import KILLS_MAX, DriverKiller, kills_for
from logtx.integration.demo.spark.supervisor import run_spark_demo
from logtx.integration.demo.spark.verdict import SparkOutcome, reasons_against
from logtx.integration.demo.verdict import Tally
from logtx.integration.local.spark_driver import SparkChild
from logtx.integration.spark.errors import JavaMissingError, PySparkMissingError, SparkError
from logtx.journal.txid import TxId

GROUP = "ledger-of-default"


# ---- the verdict --------------------------------------------------------------------------------


def iov(partition: int, offset: int, group: str = GROUP) -> dict[str, Any]:
    return {
        "group": group,
        "topic": "flights",
        "partition": partition,
        "offset": offset,
        "records": 0,
        "txid": "0:12:34",
        "commit_sequence": 34,
        "committed_ms": 1_700_000_000_000,
        "lag": 0,
    }


def findings(**given: int) -> dict[str, int]:
    names = ("missing", "doubled", "foreign", "unbalanced", "split", "torn")
    return asdict(LedgerFindings(**{**dict.fromkeys(names, 0), "entries": 200, **given}))


def audited(**given: Any) -> dict[str, Any]:
    counts: list[dict[str, Any]] = []
    good = {"clean": True, "transactions": 7, "markers": 28, "records": 230, "counts": counts}
    return {**good, **given}


def inspected(**given: Any) -> dict[str, Any]:
    found = Inspection(
        stage="compare",
        restored="refused",
        enriched=100,
        totals=9,
        airports=9,
        iovs=[iov(0, 60), iov(1, 40), {**iov(0, 4, "spark-query"), "lag": None}],
        left=0,
        audit=audited(),
        exported=200,
        transactions=5,
        findings=findings(),
        final=True,
    )
    return {**asdict(found), **given}


def good_outcome(**inspection: Any) -> SparkOutcome:
    return SparkOutcome(
        flights=100,
        flights_booked=100,
        input_partitions=2,
        committed=5,
        aborted=2,
        unfinished=0,
        kills=Tally(2, 2),
        elapsed_s=10,
        group=GROUP,
        inspection=inspected(**inspection),
    )


def test_a_good_run_is_true() -> None:
    outcome = good_outcome()
    assert reasons_against(outcome) == []
    assert outcome.entries_per_s == 20
    assert outcome.surplus == 30


@pytest.mark.parametrize(
    ("inspection", "reason"),
    [
        ({"restored": "it ended"}, "restored checkpoint was not refused: it ended"),
        ({"enriched": 99}, "99 of 100 flights are enriched"),
        ({"totals": 18}, "18 totals were written of 9 airports"),
        ({"left": 3}, "would read 3 flights again"),
        ({"left": None}, "offsets were not recovered"),
        ({"iovs": [iov(0, 100)]}, "committed of 1 of 2 input partitions"),
        ({"iovs": [iov(0, 60), iov(1, 39)]}, "stand at 99 of 100 flights"),
        ({"audit": None}, "audit did not finish"),
        ({"audit": audited(clean=False)}, "audit is not clean"),
        (
            {
                "audit": audited(
                    clean=False,
                    counts=[{"severity": "violation", "check": "iov_steps", "findings": 2}],
                )
            },
            "found iov_steps violated, 2 times",
        ),
        ({"audit": audited(records=199)}, "audit missed 1 committed entries"),
        ({"audit": audited(records=200)}, "nothing was put to test"),
        ({"findings": None}, "not compared with the file"),
        ({"findings": findings(missing=1)}, "1 ledger entries are missing"),
        ({"findings": findings(doubled=4)}, "4 ledger entries are there twice"),
        ({"findings": findings(entries=202)}, "counts 200 rows, and its files hold 202"),
        ({"transactions": 6}, "export has 6 transactions, and the journal 5"),
        ({"final": False, "stage": "audit"}, "did not finish: it was at audit"),
    ],
)
def test_what_the_inspector_found_speaks_against_it(inspection: Any, reason: str) -> None:
    (found,) = reasons_against(good_outcome(**inspection))
    assert reason in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kills": Tally(1, 2)}, "1 of 2 kills of the driver"),
        ({"unfinished": 1}, "1 transactions were never finished"),
        ({"problems": ("Kafka ended by itself.",)}, "Kafka ended"),
    ],
)
def test_what_the_journal_shows_speaks_against_it(change: Any, reason: str) -> None:
    (found,) = reasons_against(replace(good_outcome(), **change))
    assert reason in found


def test_an_inspector_that_never_reported() -> None:
    outcome = replace(good_outcome(), inspection={})
    assert "The inspector did not finish: it was at its start." in reasons_against(outcome)


def shown(outcome: SparkOutcome) -> str:
    text = StringIO()
    print_outcome(Console(file=text, width=160), outcome, reasons_against(outcome))
    return text.getvalue()


def test_the_table_says_it_all() -> None:
    text = shown(good_outcome())
    for word in ("verdict: TRUE", "clean", "22:13:20.000", "spark-query", "0 flights left", "30"):
        assert word in text
    text = shown(replace(good_outcome(), inspection={}))
    assert "✗ The audit did not finish." in text
    assert text.endswith("verdict: FALSE\n")


def test_a_snapshot_in_words() -> None:
    snapshot = SparkSnapshot(
        flights=100,
        published=90,
        booked=80,
        committed=4,
        aborted=1,
        open=1,
        kills=1,
        drivers=2,
        inspected=0,
        doing="streaming",
    )
    assert snapshot.bars.keys() == SparkSnapshot.totals(100).keys()
    assert snapshot.sentence == "flights: 90 of 100 published, 80 booked · inspection: 0 of 6"
    assert snapshot.line.endswith("1 open · driver 2, 1 killed · streaming")


def test_spark_with_chaos_is_refused() -> None:
    for options in (
        DemoOptions(spark=True, chaos=True),
        DemoOptions(spark=True, coordinators=2),
    ):
        with pytest.raises(DemoError, match="leave out --chaos and --coordinators"):
            options.check()
    DemoOptions(spark=True).check()


def test_a_missing_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(spark), "register", raising=False)
    monkeypatch.setattr(spark, "find_spec", lambda _name: None)
    with pytest.raises(PySparkMissingError, match=r"pip install 'logtx\[spark\]'"):
        run_spark_demo(DemoOptions(spark=True))


# ---- after the workers' part --------------------------------------------------------------------


class Parts:
    """Which parts were run, with stand-ins for both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, DemoOptions]] = []
        self.status = {"workers": 0, "spark": 0}
        self.missing: SparkError | None = None
        spark_part = "logtx.integration.demo.spark.supervisor"
        workers = self.part("workers")
        monkeypatch.setattr("logtx.integration.demo.supervisor.run_worker_demo", workers)
        monkeypatch.setattr(f"{spark_part}.run_spark_demo", self.part("spark"))
        monkeypatch.setattr(f"{spark_part}.check_spark", self.check)

    def part(self, name: str) -> Callable[[DemoOptions], int]:
        def run(options: DemoOptions) -> int:
            self.seen.append((name, options))
            return self.status[name]

        return run

    def check(self) -> None:
        if self.missing is not None:
            raise self.missing


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def test_spark_follows_the_workers(parts: Parts) -> None:
    assert run_demo(DemoOptions(flights=9, keep=True, data_dir=Path("d"))) == 0
    assert parts.seen == [
        ("workers", DemoOptions(flights=9, data_dir=Path("d/workers"))),
        ("spark", DemoOptions(flights=9, keep=True, data_dir=Path("d/spark"))),
    ]
    parts.status["spark"] = 1
    assert run_demo(DemoOptions()) == 1


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (DemoOptions(spark=True), "spark"),
        (DemoOptions(spark=False), "workers"),
        (DemoOptions(chaos=True), "workers"),
        (DemoOptions(coordinators=2), "workers"),
    ],
)
def test_one_part_alone(parts: Parts, options: DemoOptions, ran: str) -> None:
    parts.missing = JavaMissingError("not asked for")
    assert run_demo(options) == 0
    assert parts.seen == [(ran, options)]


def test_a_verdict_of_false_is_the_last(parts: Parts) -> None:
    parts.status["workers"] = 1
    assert run_demo(DemoOptions()) == 1
    assert [name for name, _ in parts.seen] == ["workers"]


def test_where_spark_cannot_run_the_rest_does(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    parts.missing = JavaMissingError("Spark needs Java 17.")
    assert run_demo(DemoOptions(keep=True)) == 0
    assert parts.seen == [("workers", DemoOptions(keep=True))]
    assert capsys.readouterr().out == "Spark's part is left out: Spark needs Java 17.\n"


# ---- what it is made of -------------------------------------------------------------------------


def test_flights_become_entries_by_batches() -> None:
    flights = list(read_flights(5))
    batches = [
        pa.RecordBatch.from_arrays([pa.array([encode_flight(f) for f in part])], ["value"])
        for part in (flights[:3], flights[3:])
    ]
    booked = [row for batch in book(batches) for row in batch.to_pylist()]
    entries = [entry for flight in flights for entry in entries_of(flight)]
    assert [Entry(**decode_entry(row["value"])) for row in booked] == entries
    assert [row["key"].decode() for row in booked] == [entry.airport for entry in entries]


def test_an_export_is_read_in_its_order(tmp_path: Path) -> None:
    rows = [("t1", b"a"), ("t1", b"b"), ("t2", b"c"), ("t3", b"d")]
    places = [(0, 0), (0, 1), (0, 1), (1, 0)]
    for place in sorted(set(places)):
        run, part = place
        chosen = [row for row, of in zip(rows, places, strict=True) if of == place]
        directory = tmp_path / f"export={run:08d}"
        directory.mkdir(exist_ok=True)
        columns = {"value": [v for _, v in chosen], "txid": [t for t, _ in chosen]}
        pq.write_table(pa.table(columns), directory / f"part-{part:05d}-x.parquet")
    (tmp_path / "_writing-00000001-0").mkdir()
    assert list(read_export(tmp_path)) == rows


def test_a_kill_takes_the_whole_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import subprocess,time;print(subprocess.Popen(['sleep','60']).pid,flush=True)"
    child = SparkChild("driver", tmp_path / "log", [])
    monkeypatch.setattr(child, "_command", lambda: ["timeit", "-n1", f"{script};time.sleep(60)"])
    child.start()
    deadline_s = time.monotonic() + 30
    while not (text := (tmp_path / "log").read_text()).endswith("\n"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    child.kill()
    assert not child.is_running
    grandchild = int(text)
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != "zombie":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


class FakeDriver:
    """Stands for the process."""

    name = "driver"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.when_paused: Callable[[], None] = lambda: None

    def pause(self) -> None:
        self.done.append("pause")
        self.when_paused()

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)


class FakeSeen:
    """A transaction of the driver, as the journal shows it."""

    def __init__(self, offset: int) -> None:
        self.txid = TxId(0, 7, offset)
        self.counts = False
        self.spoilt = False


class Stage:
    """A killer whose journal and ledger are at hand; the ledger has 4 partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = FakeDriver()
        self.open: FakeSeen | None = None
        self.records_committed = 0
        self.committed = 0
        self.end = 0
        self.all: dict[tuple[int, int], FakeSeen] = {}
        monkeypatch.setattr(
            "logtx.integration.demo.deeds._left_to_others", lambda _v, key: self.all[key].counts
        )
        monkeypatch.setattr(
            "logtx.integration.demo.deeds._ended_by_itself", lambda _v, key: self.all[key].spoilt
        )
        given: Any = {"driver": self.driver, "tail": self, "log": self}
        given["killed"] = lambda: self.driver.done.append("copied")
        self.killer = DriverKiller(
            producer_id="d", ledger="ledger", partitions=4, flights=100, kills=2, **given
        )
        self.killer.step()

    @property
    def view(self) -> Stage:
        return self

    @property
    def unfinished(self) -> list[FakeSeen]:
        return [] if self.open is None else [self.open]

    def open_of(self, _producer_id: str, *, idle: bool) -> FakeSeen | None:
        assert idle
        return self.open

    def read_to_end(self, _partition: int, *, timeout_s: float) -> None:
        assert timeout_s > 0

    def end_offset(self, _topic: str, partition: int) -> int:
        return self.end if partition == 0 else 0

    def begin(self, offset: int, written: int = 0) -> FakeSeen:
        """One that has registered partitions, and written so many records."""
        self.open = self.all[0, offset] = FakeSeen(offset)
        self.write(written)
        return self.open

    def write(self, records: int) -> None:
        self.end += records
        self.killer.step()

    def decide(self, records: int | None) -> None:
        """Commit so many records, or abort; the markers are written."""
        self.open = None
        if records is not None:
            self.records_committed += records
            self.committed += 1
        self.write(4)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


KILLED = ["pause", "kill", "copied", "start"]


def test_the_driver_is_killed_once_its_transaction_has_written(stage: Stage) -> None:
    stage.begin(1, written=50)
    assert stage.driver.done == []  # a quarter of the flights comes first
    stage.decide(50)
    stage.begin(2, written=1)
    assert stage.driver.done == KILLED
    stage.write(10)
    assert stage.driver.done == KILLED  # it stays open until the next driver is up
    stage.decide(None)
    stage.begin(3, written=40)
    stage.decide(40)
    stage.begin(4, written=10)
    assert stage.driver.done == KILLED  # half of the flights are not booked
    stage.decide(10)
    stage.begin(5, written=1)
    assert stage.driver.done == KILLED * 2


def test_what_was_written_before_is_no_record_of_this_transaction(stage: Stage) -> None:
    stage.begin(1, written=50)
    stage.decide(50)
    stage.begin(2, written=1)
    stage.decide(None)
    stage.begin(3, written=50)
    stage.decide(50)
    stage.begin(4)
    assert stage.driver.done == KILLED  # those in the log are of the one that was aborted
    stage.write(1)
    assert stage.driver.done == KILLED * 2


def test_a_view_that_is_late_does_not_save_the_driver(stage: Stage) -> None:
    stage.begin(1, written=50)
    stage.decide(50)
    stage.write(20)  # of the next transaction, which the view does not show yet
    stage.begin(2)
    assert stage.driver.done == KILLED


def test_a_transaction_that_ends_meanwhile_is_not_hit(stage: Stage) -> None:
    stage.begin(1, written=50)
    stage.decide(50)
    stage.driver.when_paused = lambda: setattr(stage, "open", None)
    stage.begin(2, written=10)
    assert stage.driver.done == ["pause", "resume"]
    assert not stage.killer.deeds


def test_a_kill_that_came_to_nothing_is_repeated(stage: Stage) -> None:
    stage.begin(1, written=100)
    stage.decide(100)
    for number in range(2, 5):
        seen = stage.begin(number, written=10)
        seen.spoilt = number == 2
        seen.counts = number > 2
        stage.decide(10 if seen.spoilt else None)
    assert stage.driver.done == KILLED * 3
    assert stage.killer.counted == 2
    stage.begin(9, written=10)
    assert len(stage.killer.deeds) == 3


def test_few_flights_have_room_for_fewer_kills() -> None:
    assert [kills_for(flights) for flights in (100, 500, 999, 1_000)] == [0, 1, 1, KILLS_MAX]
    assert kills_for(336_776) == KILLS_MAX == 2


# ---- as people run it ---------------------------------------------------------------------------


def demo_command(directory: Path, *arguments: str) -> list[str]:
    given = ["demo", "--spark", "--data-dir", str(directory), *arguments]
    return [sys.executable, "-m", "logtx", *given]


def processes_of(directory: Path) -> list[str]:
    """Command lines of what names the directory or works in it, as Spark's workers do."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(directory) in command or (process.info["cwd"] or "").startswith(str(directory)):
            found.append(command)
    return found


def await_no_process(directory: Path) -> None:
    deadline_s = time.monotonic() + 20
    while processes_of(directory):
        assert time.monotonic() < deadline_s, processes_of(directory)
        time.sleep(0.1)


def figure(text: str, row: str) -> int:
    match = re.search(rf"│ +{row} +│ +([\d,]+) ", text)
    assert match is not None, text
    return int(match[1].replace(",", ""))


def run_and_check(directory: Path, flights: int, timeout_s: float) -> None:
    done = subprocess.run(
        demo_command(directory, "--flights", str(flights)),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, "COLUMNS": "140"},
    )
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert text.splitlines()[-1] == "verdict: TRUE"
    assert done.stderr == ""
    assert figure(text, "driver kills survived") >= kills_for(flights) > 0
    assert figure(text, "transactions aborted") >= kills_for(flights)
    assert figure(text, "recover: flights consumed") == flights
    assert re.search(r"│ audit +│ +clean │", text)
    assert figure(text, "export: ledger entries") == 2 * flights
    assert figure(text, "in transactions") == figure(text, "micro-batches committed")
    assert figure(text, "of aborted transactions") > 0
    await_no_process(directory)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(600)  # a minute of CPU, which a busy machine takes its time for
def test_flights_survive_a_kill_of_the_driver(tmp_path: Path) -> None:
    run_and_check(tmp_path, 500, 580)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_20_000_flights_survive_two_kills_of_the_driver(tmp_path: Path) -> None:
    run_and_check(tmp_path, 20_000, 880)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_cut_short_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen(demo_command(tmp_path), stdout=out, stderr=out)
        deadline_s = time.monotonic() + 300
        # The query runs, and Spark's workers with it.
        while not list(tmp_path.glob("spark/*/checkpoint/offsets/0")):
            assert demo.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < deadline_s, (tmp_path / "out").read_text()
            time.sleep(0.1)
        assert any("pyspark" in command for command in processes_of(tmp_path))
        demo.send_signal(number)
        status = demo.wait(60)
    assert status == (-number if number is signal.SIGKILL else 130)
    await_no_process(tmp_path)
