"""The history: whole lines in the kernel's hands, whatever happens to the process; and progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logtx.chaos.progress import Progress
from logtx.chaos.recorder import Recorder

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from logtx.chaos.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), "producer-0.0")
for number in range(1000):
    recorder.write("append", v=number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_has_its_time_and_fields(tmp_path: Path) -> None:
    with Recorder(tmp_path, "worker-1.2") as recorder:
        recorder.write("begin", op="worker-1.2/1")
        recorder.write("end", op="worker-1.2/1", outcome="committed")
    begin, end = events(tmp_path / "worker-1.2.jsonl")
    assert begin["event"] == "begin"
    assert begin["op"] == "worker-1.2/1"
    assert isinstance(begin["at"], int)
    assert isinstance(end["at"], int)
    assert begin["at"] <= end["at"]


def test_sigkill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, str(tmp_path)], timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert [e["v"] for e in events(tmp_path / "producer-0.0.jsonl")] == list(range(1000))


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    with Recorder(tmp_path, "producer-0.0") as recorder:

        def write() -> None:
            for _ in range(500):
                recorder.write("append", v="x" * 300)

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(events(tmp_path / "producer-0.0.jsonl")) == 2000


def test_a_life_has_one_history(tmp_path: Path) -> None:
    Recorder(tmp_path, "producer-0.0").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path, "producer-0.0")


def test_what_comes_after_the_end_is_not_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "producer-0.0")
    recorder.close()
    recorder.write("acked", v="late")
    recorder.close()
    assert events(tmp_path / "producer-0.0.jsonl") == []


def test_progress_counts_outcomes_as_files_grow(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    with Recorder(tmp_path, "producer-0.0") as one, Recorder(tmp_path, "consumer-0.0") as reader:
        for number in range(3):
            one.write("begin", op=f"{number}")
            one.write("end", op=f"{number}", outcome="committed")
        reader.write("end", op="x", outcome="committed")  # readers have no transactions
        progress.read()
        assert progress.outcomes == {"committed": 3}
        with Recorder(tmp_path, "worker-0.0") as other:
            other.write("end", op="w", outcome="unknown")
        one.write("end", op="4", outcome="aborted")
        progress.read()
        progress.read()
    assert progress.outcomes == {"committed": 3, "unknown": 1, "aborted": 1}
    assert progress.transactions == 5


def test_progress_knows_who_was_told_an_outcome(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    with Recorder(tmp_path, "producer-0.0") as one, Recorder(tmp_path, "producer-0.1") as other:
        one.write("begin", op="1")
        progress.read()
        assert progress.connected == set()
        one.write("end", op="1", outcome="unknown")
        other.write("begin", op="1")
        progress.read()
        assert progress.connected == {"producer-0.0"}
        other.write("end", op="1", outcome="committed")
        progress.read()
    assert progress.connected == {"producer-0.0", "producer-0.1"}


def test_progress_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    progress, path = Progress(tmp_path), tmp_path / "producer-0.0.jsonl"
    line = b'{"at":1,"event":"end","op":"1","outcome":"committed"}\n'
    path.write_bytes(line + line[:30])
    progress.read()
    assert progress.transactions == 1
    with path.open("ab") as file:
        file.write(line[30:])
        os.fsync(file.fileno())
    progress.read()
    assert progress.transactions == 2
