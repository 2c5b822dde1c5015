"""Threads that hand out what came on streams."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from logtx.coordinator.protocol.frames import Ended
from logtx.coordinator.transport import answers, streams_in_thread
from logtx.coordinator.transport.answers import ANSWERS, Answers
from logtx.journal.errors import SessionClosedError

from ...children import in_child
from ...waiting import eventually
from .served import TIMEOUT_S, dead_port, echo, payloads
from .test_streams import Client, ServedStreams


class Taker:
    """Keeps what it is handed."""

    def __init__(self, client: Client) -> None:
        self.got: list[bytes] = []
        self.ends: list[str] = []
        self.threads: Counter[threading.Thread] = Counter()
        client.stream.hand_to(self.take)

    def take(self, event: bytes | Ended) -> None:
        """Takes a message, or the end."""
        self.threads[threading.current_thread()] += 1
        if isinstance(event, Ended):
            self.ends.append(str(event.error))
        else:
            self.got.append(event)


class Slow:
    """Receives numbers, hands them out one after the other, and notices if two threads do."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.done = 0

    def hand_out(self) -> None:
        """Takes a while."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        self.done += 1


@contextmanager
def several() -> Iterator[Answers]:
    """Yields what has four threads, of which none ends before."""

    class Several(Answers):
        is_over = False

        def _stays(self, me: threading.Thread) -> bool:
            self._began_s[me] = None
            return not self.is_over

    all_ = Several()
    for _ in range(4):
        all_._begin(time.monotonic())
    yield all_
    all_.is_over = True
    for _ in range(4):
        all_._due.put(Slow())
    eventually(lambda: not all_._began_s)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """The threads of a process in which nothing else is."""
    made = Answers()
    monkeypatch.setattr(streams_in_thread, "ANSWERS", made)
    return made


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns far more often than they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_one_thread_hands_out_the_answers_of_all_streams() -> None:
    sent = payloads([10] * 200)
    with ServedStreams(echo) as served, ExitStack() as stack:
        clients = [stack.enter_context(Client(served.address)) for _ in range(8)]
        takers = [Taker(each) for each in clients]
        for each in clients:
            each.send(*sent)
        eventually(lambda: all(each.got == sent for each in takers))
        # On a busy machine one may stand in for another.
        threads = sum((each.threads for each in takers), Counter[threading.Thread]())
        assert max(threads.values()) >= 400


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("received", [0, 100, 1_900])
def test_what_came_before_is_handed_out_first_and_nothing_is_lost(received: int) -> None:
    sent = [n.to_bytes(4, "big") for n in range(2_000)]
    with ServedStreams(echo) as served, Client(served.address) as client:
        client.send(*sent)
        first = [client.receive() for _ in range(received)]
        taker = Taker(client)  # in the middle of what comes
        eventually(lambda: len(taker.got) == len(sent) - received, TIMEOUT_S)
        assert first + taker.got == sent


@pytest.mark.usefixtures("switching")
def test_answers_stay_in_order_whichever_thread_hands_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine so busy that each thread counts as kept."""
    monkeypatch.setattr(streams_in_thread, "_TURN", 3)
    sent = [n.to_bytes(4, "big") for n in range(3_000)]
    with several() as all_, ServedStreams(echo) as served, ExitStack() as stack:
        monkeypatch.setattr(streams_in_thread, "ANSWERS", all_)
        clients = [stack.enter_context(Client(served.address)) for _ in range(3)]
        takers = [Taker(each) for each in clients]
        for each in clients:
            each.send(*sent)
        eventually(lambda: all(len(each.got) == len(sent) for each in takers), TIMEOUT_S)
        assert all(each.got == sent for each in takers)
        assert sum(len(each.threads) for each in takers) > 6


def test_trap_288_who_is_kept_keeps_nobody_else(alone: Answers) -> None:
    """Nothing more comes on the connection: the answers of both came in one message."""
    go_on, kept = threading.Event(), threading.Event()
    with ServedStreams(echo) as served, ExitStack() as stack:
        stack.callback(go_on.set)
        stuck, *others = [stack.enter_context(Client(served.address)) for _ in range(5)]

        def keep(event: bytes | Ended) -> None:
            got.append(event)
            kept.set()
            go_on.wait(TIMEOUT_S)

        got: list[bytes | Ended] = []
        takers = [Taker(each) for each in others]
        stuck.stream.hand_to(keep)
        for each in (stuck, *others):
            each.queue.extend([b"1", b"2"])
            each.stream.flush_soon()
        assert kept.wait(TIMEOUT_S)
        eventually(lambda: all(each.got == [b"1", b"2"] for each in takers), 5.0)
        assert got == [b"1"]
        assert len(alone._began_s) == 2
        stuck.stream.close()
        go_on.set()
        eventually(lambda: len(got) >= 3)
        assert got[1] == b"2"
        assert isinstance(got[2], Ended)


def test_what_comes_while_the_lock_is_given_back_is_handed_out(alone: Answers) -> None:
    """The thread that brought it found the lock held, and left it to the one that holds it."""
    late = [b"late"]

    class Gate:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def acquire(self, *, blocking: bool) -> bool:
            return self.lock.acquire(blocking)

        def release(self) -> None:
            if late:
                client.stream._inbox.append(late.pop())
                client.stream.hand_out()
            self.lock.release()

    with ServedStreams(echo) as served, Client(served.address) as client:
        client.stream._handing = Gate()
        taker = Taker(client)
        client.send(b"1")
        eventually(lambda: taker.got == [b"1", b"late"])
    assert list(alone._began_s)


def test_threads_that_stood_in_end_and_one_stays() -> None:
    all_ = Answers()
    slow = [Slow() for _ in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "STUCK_S", 0.001)
        for each in slow:
            all_.came(each)
            time.sleep(0.003)
        assert len(all_._began_s) > 1
    eventually(lambda: all(each.done for each in slow))
    for number in range(20):  # also while something comes
        all_.came(slow[0])
        time.sleep(0.02)
        # Who receives says that something came only when all before is handed out.
        eventually(lambda number=number: slow[0].done >= number + 2)
    eventually(lambda: len(all_._began_s) == 1, 1.0)
    assert [each.most for each in slow] == [1] * 6
    assert [thread.is_alive() for thread in all_._began_s] == [True]


def test_trap_288_the_others_are_told_the_end_of_a_connection(alone: Answers) -> None:
    """Its thread brings the end to all, and ends, just after one of them was kept."""
    go_on, kept = threading.Event(), threading.Event()
    with ServedStreams(echo) as served, ExitStack() as stack:
        stack.callback(go_on.set)
        stuck, other = [stack.enter_context(Client(served.address)) for _ in range(2)]

        def keep(_event: bytes | Ended) -> None:
            kept.set()
            go_on.wait(TIMEOUT_S)

        taker = Taker(other)
        stuck.stream.hand_to(keep)
        stuck.send(b"1")
        assert kept.wait(TIMEOUT_S)
        other.shared._connection._break()
        eventually(lambda: bool(taker.ends), 5.0)
    assert len(alone._began_s) >= 1


def test_many_that_are_kept_do_not_take_a_look_each(alone: Answers) -> None:
    """They wait for one that comes behind them."""
    go_on = threading.Event()
    with ServedStreams(echo) as served, ExitStack() as stack:
        stack.callback(go_on.set)
        kept = [stack.enter_context(Client(served.address)) for _ in range(40)]
        last = stack.enter_context(Client(served.address))
        got: list[bool] = []
        for each in kept:
            each.stream.hand_to(lambda _event: got.append(go_on.wait(TIMEOUT_S)))
        last.stream.hand_to(lambda _event: go_on.set())
        for each in (*kept, last):
            each.queue.append(b"1")
            each.stream.flush_soon()
        eventually(lambda: len(got) == 40, 3.0)
    assert all(got)
    eventually(lambda: len(alone._began_s) == 1)


def test_answers_that_cannot_be_taken_end_their_stream_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(event: bytes | Ended) -> None:
        if isinstance(event, Ended):
            ends.append(str(event.error))
        raise SystemExit("of a callback")

    ends: list[str] = []
    with (
        ServedStreams(echo) as served,
        Client(served.address) as bad,
        Client(served.address) as other,
    ):
        taker = Taker(other)
        bad.stream.hand_to(fail)
        bad.send(b"1")
        eventually(lambda: bool(ends))
        assert "SystemExit('of a callback')" in ends[0]
        other.send(b"2")
        eventually(lambda: taker.got == [b"2"])
    assert "answer_not_taken" in caplog.text


def test_the_end_comes_behind_all_messages() -> None:
    with ServedStreams(echo) as served, Client(served.address) as client:
        client.send(b"1", b"2")
        eventually(lambda: len(client.stream._inbox) == 2)
        client.stream.close(SessionClosedError("enough"))
        taker = Taker(client)
        eventually(lambda: bool(taker.ends))
        assert (taker.got, taker.ends[0]) == ([b"1", b"2"], "enough")


def test_the_end_is_handed_out_if_the_coordinator_cannot_be_reached() -> None:
    with Client(f"127.0.0.1:{dead_port()}") as client:
        taker = Taker(client)
        eventually(lambda: bool(taker.ends), TIMEOUT_S)
        assert "can't connect" in taker.ends[0]


def test_without_a_thread_answers_wait_for_one(
    alone: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks for one holds the connection's lock, so it can't take an answer and ask again."""
    start, refused = threading.Thread.start, []

    def refuse(self: threading.Thread) -> None:
        if self.name == "logtx-answers" and len(refused) < 3:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with ServedStreams(echo) as served, Client(served.address) as client:

        def ask_again(event: bytes | Ended) -> None:
            got.append(event)
            if event == b"1":
                client.send(b"2")

        got: list[bytes | Ended] = []
        client.stream.hand_to(ask_again)
        client.send(b"1")
        eventually(lambda: got == [b"1", b"2"])
        assert len(refused) == 3
        # A busy machine may want a second one, as the first takes long.
        assert alone._began_s
    assert caplog.text.count("no_thread_for_answers") == 1


def test_ctrl_c_while_a_thread_begins_is_not_taken_for_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python raises RuntimeError if it comes while `start` waits for the thread."""
    all_, slow, start = Answers(), Slow(), threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(RuntimeError, match="unlocked"):
        all_.came(slow)
    eventually(lambda: slow.most == 1)
    assert threading.current_thread() not in all_._began_s


def test_a_child_has_threads_of_its_own() -> None:
    with ServedStreams(echo) as served, Client(served.address) as client:
        taker = Taker(client)
        client.send(b"1")
        eventually(lambda: taker.got == [b"1"])

        def work() -> None:
            assert ANSWERS._began_s == {}
            with Client(served.address) as own:
                mine = Taker(own)
                own.send(b"2")
                eventually(lambda: mine.got == [b"2"])

        assert in_child(work) == "None"
        client.send(b"3")
        eventually(lambda: taker.got == [b"1", b"3"])
