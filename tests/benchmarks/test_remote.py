"""Processes of benchmarks: they answer, tell how they fail, and end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from signal import SIGKILL, SIGSTOP

import pytest

from logtx.benchmarks.remote import Remote, RemoteFailedError
from logtx.tests.benchmarks.served import divide, end

TIMEOUT_S = 30.0


@pytest.fixture
def remote() -> Iterator[Remote]:
    found = Remote("the process", divide, 12)
    yield found
    found.kill()


def test_it_answers_and_ends_when_its_pipe_is_closed(remote: Remote) -> None:
    for request in (3, 4):
        remote.send(request)
        assert remote.receive(TIMEOUT_S) == 12 // request
    remote.close()
    assert remote._process.exitcode == 0


def test_an_error_there_is_told_with_its_trace(remote: Remote) -> None:
    remote.send(0)
    with pytest.raises(RemoteFailedError, match=r"the process: (.|\n)*ZeroDivisionError"):
        remote.receive(TIMEOUT_S)


def test_who_does_not_answer_is_not_waited_for(remote: Remote) -> None:
    with pytest.raises(RemoteFailedError, match="did not answer within 0 s"):
        remote.receive(0.1)


def test_a_process_that_ended_is_told() -> None:
    remote = Remote("the process", end)
    remote.send(None)
    with pytest.raises(RemoteFailedError, match="the process of the process ended"):
        remote.receive(TIMEOUT_S)
    remote.close()


def test_one_that_is_stopped_can_be_killed(remote: Remote) -> None:
    remote.send(3)
    assert remote.receive(TIMEOUT_S) == 4
    remote.signal(SIGSTOP)
    began_s = time.monotonic()
    remote.kill()
    assert remote._process.exitcode == -SIGKILL
    assert time.monotonic() - began_s < TIMEOUT_S
