"""Whole runs, for `make test-all`: a short one, a minute of everything, and one of Kafka's own."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from logtx.chaos.errors import ChaosError
from logtx.chaos.options import ChaosOptions, Metadata, System
from logtx.chaos.plan import TRACKS, Fault, Role, What, plan_faults
from logtx.chaos.run import VERDICT, check_again, run_chaos
from logtx.chaos.settings import HISTORY, Settings

pytestmark = pytest.mark.kafka


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """What is printed is in `console.txt`."""
    return Console(file=(tmp_path / "console.txt").open("w"), width=200)


SMALL: Final = partial(
    ChaosOptions, mild=True, brokers=1, coordinators=2, producers=2, workers=1, consumers=2
)
"""One broker and few clients, so that a run takes half a minute."""


def told(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each event of a run's history, with the role of its process."""
    for path in (directory / HISTORY).glob("*.jsonl"):
        role = path.name.partition("-")[0]
        for line in path.read_text().splitlines():
            try:
                yield role, json.loads(line)
            except ValueError:
                continue  # torn by a kill


def events(directory: Path) -> Counter[str]:
    """How often each event happened, by the role of the process."""
    found: Counter[str] = Counter()
    for role, event in told(directory):
        found[f"{role} {event['event']}"] += 1
        if "outcome" in event:
            found[f"{role} {event['outcome']}"] += 1
    return found


def run(options: ChaosOptions, console: Console, directory: Path) -> Counter[str]:
    """A run without anomalies; what happened in it."""
    status = run_chaos(options, console)
    console.file.flush()
    said = (directory / "console.txt").read_text()
    assert status == 0, said
    assert "no anomaly" in said
    return events(directory / "run")


def killed(directory: Path) -> set[str]:
    """The roles of whom SIGKILL was sent to."""
    kills = (event for _, event in told(directory) if event.get("what") == "kill")
    return {event["target"].partition("-")[0] for event in kills}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path: Path, console: Console) -> None:
    # By this seed a coordinator, a producer and a worker are killed early enough, however late the
    # machine makes them.
    directory = tmp_path / "run"
    options = SMALL(seconds=9, seed=27, rate=40, data_dir=directory)
    found = run(options, console, tmp_path)
    assert found["producer committed"] >= 20
    assert found["worker committed"] > 0
    assert found["consumer poll"] > 0
    assert found["final poll"] > 0
    assert killed(directory) == {"coordinator", "producer", "worker"}
    assert found["nemesis healed"] == 1
    assert Settings.load(directory).system is System.LOGTX
    assert check_again(directory, console) == 0
    # A run directory is for one run.
    with pytest.raises(ChaosError, match="another run"):
        run_chaos(options, console)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [11])
def test_a_minute_of_everything(tmp_path: Path, console: Console, seed: int) -> None:
    options = ChaosOptions(seconds=60, seed=seed, data_dir=tmp_path / "run")
    found = run(options, console, tmp_path)
    assert found["producer committed"] > 200
    assert found["worker committed"] > 20
    assert {"broker", "coordinator"} <= killed(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_topics_that_are_switched(tmp_path: Path, console: Console) -> None:
    directory = tmp_path / "run"
    options = SMALL(
        seconds=20, seed=2, rate=40, metadata=Metadata.HALF, sidecar=True, data_dir=directory
    )
    found = run(options, console, tmp_path)
    assert found["producer committed"] > 0
    done = Counter(event["what"] for _, event in told(directory) if event["event"] == "fault")
    assert done["switched"] >= 2
    assert done["seal"] >= 1
    stats = json.loads((directory / VERDICT).read_text())["stats"]
    assert stats["places"] > stats["places of sidecars"] > 0
    assert stats["transactions asked of metadata stores"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_queue(tmp_path: Path, console: Console) -> None:
    directory = tmp_path / "run"
    options = SMALL(seconds=25, seed=2, rate=30, queue=True, sidecar=True, data_dir=directory)
    found = run(options, console, tmp_path)
    assert found["queue committed"] > 10
    assert "queue" in killed(directory)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_load_ends_at_a_number_of_commits(tmp_path: Path, console: Console) -> None:
    options = SMALL(seconds=120, commits=100, seed=2, rate=40, data_dir=tmp_path / "run")
    began_s = time.monotonic()
    found = run(options, console, tmp_path)
    assert found["producer committed"] + found["worker committed"] >= 100
    assert time.monotonic() - began_s < 120


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commits_that_are_missing_fail_a_run(tmp_path: Path, console: Console) -> None:
    options = SMALL(seconds=9, commits=1_000_000, seed=2, rate=40, data_dir=tmp_path / "run")
    assert run_chaos(options, console) == 1
    console.file.flush()
    said = (tmp_path / "console.txt").read_text()
    assert "no anomaly" in said
    assert "of 1,000,000 commits were missing after 9 s" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kafkas_own_transactions(tmp_path: Path, console: Console) -> None:
    directory = tmp_path / "run"
    options = ChaosOptions(
        seconds=12, seed=4, mild=True, rate=60, data_dir=directory, system=System.KAFKA
    )
    found = run(options, console, tmp_path)
    assert found["producer committed"] >= 20
    assert found["worker committed"] > 0
    assert found["final poll"] > 0
    assert killed(directory) == {"producer", "worker"}
    said = (tmp_path / "console.txt").read_text()
    assert "Not looked for: marker-mismatch" in said


@pytest.mark.parametrize(
    "more",
    [
        {"system": System.KAFKA},
        {"upgrade_from": "HEAD"},
    ],
)
def test_what_a_queue_does_not_go_with(console: Console, more: dict[str, Any]) -> None:
    with pytest.raises(ChaosError, match="--queue"):
        run_chaos(ChaosOptions(queue=True, **more), console)


def test_queue_workers_change_no_faults_of_others() -> None:
    def plan(*, queue: bool) -> list[Fault]:
        counts = ChaosOptions(queue=queue).counts()
        return plan_faults(1, 300, counts)

    def of(faults: list[Fault], track: str) -> list[Fault]:
        return [fault for fault in faults if TRACKS[fault.role] == track]

    plain, with_queue = plan(queue=False), plan(queue=True)
    assert not any(fault.role is Role.QUEUE for fault in plain)
    hurt = {fault.what for fault in with_queue if fault.role is Role.QUEUE}
    assert {What.KILL, What.PAUSE} <= hurt
    for track in set(TRACKS.values()) - {"client"}:
        assert of(plain, track) == of(with_queue, track)


def test_there_must_be_time_for_a_fault(console: Console) -> None:
    with pytest.raises(ChaosError, match="--seconds"):
        run_chaos(ChaosOptions(seconds=1), console)


def test_a_number_of_commits_is_at_least_one(console: Console) -> None:
    with pytest.raises(ChaosError, match="--commits"):
        run_chaos(ChaosOptions(commits=0), console)
