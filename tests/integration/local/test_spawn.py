"""Children die with their parent, however it dies, and only with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from logtx.integration.local.processes import last_lines, spawn

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_output_is_appended_and_the_status_is_the_programs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    child = spawn(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], output=log)
    assert child.wait(10) == 3
    assert log.read_text() == "before\nout\nerr\n"


def test_outlives_the_thread_that_asked_and_has_its_own_group(tmp_path: Path) -> None:
    children: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: children.append(spawn(SLEEP, output=tmp_path / "log")))
    thread.start()
    thread.join()
    (child,) = children
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        assert os.getpgid(child.pid) == child.pid
    finally:
        child.kill()
        child.wait()


def test_dies_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from logtx.integration.local.processes import spawn\n"
        "sleep = [sys.executable, '-c', 'print(\"up\", flush=True); import time; time.sleep(60)']\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "child = spawn(sleep, output=log)\n"
        "while 'up' not in log.read_text(): pass\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert parent.returncode == -9, parent.stderr
    deadline = time.monotonic() + 10
    while is_alive(int(parent.stdout)):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_last_lines_leave_out_stack_frames_and_earlier_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 3) == []
    log.write_text("old\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("one\n\n\tat frame\n\t... 3 more\ntwo\n")
    assert last_lines(log, 3) == ["old", "one", "two"]
    assert last_lines(log, 3, from_byte=start) == ["one", "two"]
