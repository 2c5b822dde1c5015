"""The client alone when its coordinator goes; the test scripts what the coordinators do."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.commands import Began, Done
from logtx.coordinator.protocol.replies import encode_reply
from logtx.journal.errors import (
    CoordinatorBusyError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    JournalTopicError,
    LogtxError,
    NotCoordinatorError,
    RequestTimedOutError,
    RequestTooLargeError,
    SessionClosedError,
    TooManyTransactionsError,
    UnknownRecordError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.core.bookkeeping import EndResult, end_result

from ...waiting import eventually
from ..scripted import ScriptedCoordinator, dead_address, later, publish, scripted, silent_address

TIMEOUT_S = 10.0
SOON_S = 2.0
"""Longest time until a client has found a coordinator that has just become the owner: 0.4 on an
idle machine, and far from `TIMEOUT_S` on a busy one."""
TXID = TxId(0, 1, 2)


@pytest.fixture
def journal(memory_log: MemoryLog) -> MemoryLog:
    """A log with a journal of one partition."""
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    return memory_log


@pytest.fixture
def client(journal: MemoryLog) -> Iterator[Callable[..., CoordinatorClient]]:
    """`client()` makes a client, which is closed with the test."""
    made: list[CoordinatorClient] = []

    def make(timeout_s: float = TIMEOUT_S) -> CoordinatorClient:
        made.append(
            CoordinatorClient(journal, SessionOptions(producer_id="p", timeout_s=timeout_s))
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


class Answers:
    """Replies to requests, by the request's number."""

    def __init__(self) -> None:
        self.all: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def take(self, number: int) -> Callable[[Any], None]:
        """Returns the callback for a request's reply."""
        return lambda reply: self.all.put((number, reply))

    def collect(self, count: int, timeout_s: float = TIMEOUT_S) -> dict[int, Any]:
        """Waits for `count` replies; fails if a request was answered twice."""
        deadline_s = time.monotonic() + timeout_s
        found: list[tuple[int, Any]] = []
        while len(found) < count:
            found.append(self.all.get(timeout=max(0.001, deadline_s - time.monotonic())))
        assert max(Counter(n for n, _ in found).values()) == 1
        return dict(found)


def ask(client: CoordinatorClient, answers: Answers, number: int = 0) -> None:
    """Sends a request that is answered by `Done`."""
    client.add_offsets(TXID, "group", [], answers.take(number))


def done(request: pb.Request) -> list[pb.Reply]:
    return [encode_reply(request.request_id, commands.Done())]


def error(request: pb.Request, why: LogtxError) -> list[pb.Reply]:
    return [encode_reply(request.request_id, why)]


def connected(
    journal: MemoryLog, client: Callable[..., CoordinatorClient], owner: ScriptedCoordinator
) -> CoordinatorClient:
    """Returns a client connected to this owner, whom the hint in the log names."""
    publish(journal, owner.address)
    one = client()
    one.connect()
    return one


# ---- finding the owner --------------------------------------------------------------------------


def test_a_hint_at_a_dead_address_is_left_as_soon_as_there_is_another(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    publish(journal, dead_address())
    with scripted() as owner:
        later(0.3, lambda: publish(journal, owner.address, epoch=1))
        began_s = time.monotonic()
        client().connect()
        assert time.monotonic() - began_s < 0.3 + SOON_S


def test_finding_10_one_that_cant_read_the_journal_is_left_as_soon_as_there_is_another(
    journal: MemoryLog, client: Callable[..., CoordinatorClient], queries: CoordinatorQueries
) -> None:
    with scripted() as unable, scripted() as owner:
        unable.refusal = UnknownRecordError("a record of a newer version: upgrade this program")
        owner.script = outcome
        publish(journal, unable.address)
        later(0.3, lambda: publish(journal, owner.address, epoch=1))
        client().connect()
        assert queries.outcome(TXID).txid == TXID


def test_an_address_that_hangs_holds_up_nothing(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    with silent_address() as stopped, scripted() as owner:
        publish(journal, stopped)
        later(0.2, lambda: publish(journal, owner.address, epoch=1))
        began_s = time.monotonic()
        client().connect()
        assert time.monotonic() - began_s < 0.2 + SOON_S, "while the first attempt still hangs"


def test_an_attempt_that_hung_troubles_no_later_search(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    # The silent stream is closed when another is found, and must not be given up again later.
    answers = Answers()
    with silent_address() as stopped, scripted() as owner:
        owner.script = lambda r: error(r, NotCoordinatorError("not I"))
        publish(journal, stopped)
        later(0.1, lambda: publish(journal, owner.address, epoch=1))
        one = client()
        one.connect()
        ask(one, answers)
        time.sleep(1.0)
        owner.script = done
        assert answers.collect(1, 5.0) == {0: Done()}


def test_a_coordinator_restarted_at_its_address_is_found(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as owner:
        one = connected(journal, client, owner)
        owner.refusal = CoordinatorLoadingError("being loaded")
        owner.script = lambda _request: None
        ask(one, answers)
        time.sleep(0.2)
        assert answers.all.empty()
        owner.refusal, owner.script = None, done
        assert answers.collect(1, SOON_S) == {0: Done()}


def test_a_client_that_is_sent_away_needs_no_look_at_the_log(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as former, scripted(epoch=1) as owner:
        publish(journal, former.address)
        one = client()
        one.connect()
        former.refusal = NotCoordinatorError("moved", hint=owner.address)
        former.script = lambda r: error(r, former.refusal)
        ask(one, answers)
        assert answers.collect(1, SOON_S) == {0: Done()}
        assert owner.received == [[1]]


def test_two_that_name_each_other_are_not_asked_in_a_hot_loop(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    with scripted() as one, scripted() as other:
        one.refusal = NotCoordinatorError("not I", hint=other.address)
        other.refusal = NotCoordinatorError("not I", hint=one.address)
        publish(journal, one.address)

        def settle() -> None:
            other.refusal = None

        later(1.0, settle)
        began_s = time.monotonic()
        client().connect()
        assert time.monotonic() - began_s < 1.0 + SOON_S
        assert len(one.received) + len(other.received) < 60, "pauses grow from 20 ms"


def test_one_that_takes_the_session_and_serves_nothing_is_not_asked_in_a_hot_loop(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as zombie:
        zombie.script = lambda r: error(r, NotCoordinatorError("not I", hint=zombie.address))
        publish(journal, zombie.address)
        one = client()
        one.connect()
        ask(one, answers)
        time.sleep(1.0)
        assert 1 < len(zombie.received) < 30
        zombie.script = done
        assert answers.collect(1, 5.0) == {0: Done()}


def test_an_owner_of_before_is_not_taken_for_the_owner(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted(epoch=1) as zombie:
        with scripted(epoch=7) as owner:
            publish(journal, owner.address, epoch=7)
            one = client()
            one.connect()
            owner.script = lambda _request: None
            owner.refusal = NotCoordinatorError("moved", hint=zombie.address)
            ask(one, answers)
            eventually(lambda: bool(zombie.received))
        with scripted(epoch=9) as successor:
            publish(journal, successor.address, epoch=9)
            assert answers.collect(1, SOON_S * 2) == {0: Done()}
        assert not any(zombie.received), "it was asked to connect, and given no request"


def test_a_request_that_can_not_be_sent_is_answered_by_the_clients_own_thread(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    """A thread that sends may have a lock of the application which the callback waits for."""
    with scripted() as owner:
        one = connected(journal, client, owner)
        answers: Answers = Answers()
        lock, waited = threading.Lock(), []

        def on_reply(reply: Any) -> None:
            waited.append(lock.acquire(timeout=TIMEOUT_S))
            answers.take(1)(reply)

        with lock:
            one.add_offsets(TXID, "g" * 3_000_000, [], on_reply)
            ask(one, answers, 2)
        found = answers.collect(2)
        assert isinstance(found[1], RequestTooLargeError)
        assert isinstance(found[2], Done)
        assert waited == [True]


# ---- requests -----------------------------------------------------------------------------------


def test_a_request_whose_answer_was_lost_is_sent_again_and_answered_once(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as owner:
        one = connected(journal, client, owner)
        taken = threading.Event()

        def lose_the_first(request: pb.Request) -> list[pb.Reply] | None:
            if taken.is_set():
                return done(request)
            taken.set()
            return None

        owner.script = lose_the_first
        ask(one, answers)
        assert answers.collect(1, SOON_S) == {0: Done()}
        assert owner.received == [[1], [1]]


def test_a_doubled_answer_counts_once(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as owner:
        owner.script = lambda r: done(r) + done(r)
        one = connected(journal, client, owner)
        for number in range(3):
            ask(one, answers, number)
        assert len(answers.collect(3)) == 3
        time.sleep(0.05)
        assert answers.all.empty()


@pytest.mark.parametrize(
    "why", [SessionClosedError("resumed"), CoordinatorLoadingError("again"), None], ids=str
)
def test_a_stream_that_ends_in_the_middle_of_a_burst(
    journal: MemoryLog, client: Callable[..., CoordinatorClient], why: LogtxError | None
) -> None:
    answers, count, served = Answers(), 64, 20
    with scripted() as owner:
        one = connected(journal, client, owner)
        seen = 0

        def end_in_the_middle(request: pb.Request) -> list[pb.Reply] | None:
            nonlocal seen
            seen += 1
            if seen == served + 1:
                return None if why is None else [encode_reply(0, why)]
            return done(request)

        owner.script = end_in_the_middle
        for number in range(count):
            ask(one, answers, number)
        assert answers.collect(count) == dict.fromkeys(range(count), Done())
        first, *_, last = owner.received
        assert first[:served] == list(range(1, served + 1))
        again = [i for stream in owner.received[1:] for i in stream]
        assert again[: count - served] == list(range(served + 1, count + 1)), "in order"
        assert last[-1] == count


def test_an_end_of_the_session_is_no_answer_to_what_was_sent(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    # The coordinator decides, and dies before it answers; the next one refuses the session.
    answers = Answers()
    with scripted() as owner:
        one = connected(journal, client, owner)

        def die(_request: pb.Request) -> None:
            owner.refusal = JournalTopicError("8 partitions for the client and 4 here")

        owner.script = die
        one.end(TXID, commands.Action.COMMIT, {}, answers.take(0))
        told = answers.collect(1)[0]
        assert isinstance(told, SessionClosedError)
        assert "4 here" in str(told)
        assert end_result(told) is EndResult.UNKNOWN
        ask(one, answers, 1)
        assert isinstance(answers.collect(1)[1], JournalTopicError), "nobody was asked"


def test_requests_made_while_nobody_is_there_are_answered_when_somebody_is(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as owner:
        one = connected(journal, client, owner)
    for number in range(3):
        ask(one, answers, number)
    time.sleep(0.2)
    with scripted() as successor:
        publish(journal, successor.address, epoch=3)
        assert set(answers.collect(3, SOON_S)) == {0, 1, 2}


def test_a_request_that_nobody_answers_ends_in_time(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with scripted() as owner:
        owner.script = lambda _request: []
        publish(journal, owner.address)
        one = client(timeout_s=0.5)
        one.connect()
        began_s = time.monotonic()
        ask(one, answers, 0)
        time.sleep(0.1)
        ask(one, answers, 1)
        replies = answers.collect(2, 4)
        assert 0.6 <= time.monotonic() - began_s < 2.0
        assert [type(r) for r in replies.values()] == [RequestTimedOutError] * 2
    time.sleep(0.2)
    ask(one, answers, 2)
    assert isinstance(answers.collect(1, 2)[2], CoordinatorNotAvailableError), "it was never sent"


@pytest.mark.parametrize("why", [CoordinatorBusyError("full"), TooManyTransactionsError("full")])
def test_overload_slows_a_client_and_fails_it_only_in_the_end(
    journal: MemoryLog, client: Callable[..., CoordinatorClient], why: LogtxError
) -> None:
    answers = Answers()
    with scripted() as owner:
        publish(journal, owner.address)
        one = client(timeout_s=1.5)
        one.connect()
        full = True

        def begun(request: pb.Request) -> list[pb.Reply]:
            if full:
                return error(request, why)
            return [encode_reply(request.request_id, Began(TXID))]

        owner.script = begun
        one.begin(answers.take(0), timeout_ms=1)
        eventually(lambda: len(owner.received[0]) >= 2)  # repeated, on the same stream
        time.sleep(0.3)
        assert answers.all.empty()
        assert len(owner.received[0]) < 15, "with pauses"
        full = False
        assert answers.collect(1) == {0: Began(TXID)}
        full, began_s = True, time.monotonic()
        one.begin(answers.take(1), timeout_ms=1)
        assert isinstance(answers.collect(1)[1], type(why))
        assert 1.5 <= time.monotonic() - began_s < 4.0
        assert len(owner.received) == 1


def test_closing_does_not_wait_for_an_address_that_hangs(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    answers = Answers()
    with silent_address() as stopped:
        with scripted() as owner:
            publish(journal, owner.address)
            one = client()
            one.connect()
            publish(journal, stopped)
        ask(one, answers)
        time.sleep(0.1)
        began_s = time.monotonic()
        one.close()
        assert time.monotonic() - began_s < 1.5
        assert isinstance(answers.collect(1)[0], SessionClosedError)


def test_connecting_ends_in_time_where_nothing_answers(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    with silent_address() as stopped:
        publish(journal, stopped)
        began_s = time.monotonic()
        with pytest.raises(CoordinatorNotAvailableError, match="is `logtx coordinator` running"):
            client(timeout_s=0.7).connect()
        assert time.monotonic() - began_s < 3.0


# ---- queries ------------------------------------------------------------------------------------


@pytest.fixture
def queries(journal: MemoryLog) -> Iterator[CoordinatorQueries]:
    """Questions of up to two seconds."""
    made = CoordinatorQueries(journal, timeout_s=2)
    yield made
    made.close()


def outcome(request: pb.Request) -> list[pb.Reply]:
    state = commands.Outcome(TXID, State.OPEN, None)
    return [encode_reply(request.request_id, state)]


def test_a_query_follows_the_owner(journal: MemoryLog, queries: CoordinatorQueries) -> None:
    with scripted() as former, scripted() as owner:
        former.script = owner.script = outcome
        publish(journal, former.address)
        assert queries.outcome(TXID).txid == TXID
        former.refusal = NotCoordinatorError("moved", hint=owner.address)
        assert queries.outcome(TXID).txid == TXID
        assert queries.outcome(TXID).txid == TXID
        assert (former.calls, owner.calls) == (2, 2), "the owner is remembered"
        former.refusal = None
        owner.stop()
        assert queries.outcome(TXID).txid == TXID
        assert former.calls == 3, "the hint in the log is looked up again"


def test_a_query_of_a_hanging_address_goes_on_with_the_next_hint(
    journal: MemoryLog, queries: CoordinatorQueries
) -> None:
    with silent_address() as stopped, scripted() as owner:
        owner.script = outcome
        publish(journal, stopped)
        later(0.2, lambda: publish(journal, owner.address, epoch=1))
        began_s = time.monotonic()
        assert queries.outcome(TXID).txid == TXID
        assert time.monotonic() - began_s < 1.8


def test_a_query_ends_in_time(journal: MemoryLog, queries: CoordinatorQueries) -> None:
    with scripted() as one, scripted() as other:
        one.refusal = NotCoordinatorError("not I", hint=other.address)
        other.refusal = NotCoordinatorError("not I", hint=one.address)
        publish(journal, one.address)
        began_s = time.monotonic()
        with pytest.raises(NotCoordinatorError):
            queries.outcome(TXID)
        assert 1.3 < time.monotonic() - began_s < 4.0
        assert one.calls + other.calls < 80


def test_closing_amid_questions_fails_them_and_harms_nobody(journal: MemoryLog) -> None:
    with scripted() as owner:
        owner.script = outcome
        publish(journal, owner.address)
        for _ in range(40):
            queries = CoordinatorQueries(journal, timeout_s=20)
            failed: queue.SimpleQueue[LogtxError] = queue.SimpleQueue()

            def ask_on(queries: CoordinatorQueries = queries, failed: Any = failed) -> None:
                try:
                    while True:
                        queries.outcome(TXID)
                except LogtxError as error:
                    failed.put(error)

            threads = [threading.Thread(target=ask_on, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            queries.outcome(TXID)
            queries.close()
            for thread in threads:
                thread.join(TIMEOUT_S)
                assert not thread.is_alive(), "it asks on after the end"
            assert isinstance(
                failed.get_nowait(), CoordinatorNotAvailableError | SessionClosedError
            )


def test_close_waits_for_whoever_takes_an_answer(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    """Answers come in order, and the application gets none while it handles another one."""
    inside, told = threading.Event(), []

    def slow(reply: Any) -> None:
        inside.set()
        time.sleep(0.5)
        told.append(reply)

    with scripted() as owner:
        publish(journal, owner.address)
        one = client()
        one.connect()
        one.add_offsets(TXID, "g", [], slow)
        one.add_offsets(TXID, "g", [], told.append)
        assert inside.wait(10)
        one.close()
        assert [type(each) for each in told] == [Done, SessionClosedError]


def test_close_does_not_wait_for_the_callback_that_calls_it(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    took_s: queue.SimpleQueue[float] = queue.SimpleQueue()

    def close(_reply: Any) -> None:
        began_s = time.monotonic()
        one.close()
        took_s.put(time.monotonic() - began_s)

    with scripted() as owner:
        publish(journal, owner.address)
        one = client()
        one.connect()
        one.add_offsets(TXID, "g", [], close)
        assert took_s.get(timeout=10) < 1.5


def test_an_answer_that_cannot_be_taken_closes_the_session_and_says_so(
    journal: MemoryLog, client: Callable[..., CoordinatorClient]
) -> None:
    """Else whoever waits for another one would wait until its time is up."""

    def fail(_reply: Any) -> None:
        raise ZeroDivisionError("of a callback")

    answers = Answers()
    with scripted() as owner:
        publish(journal, owner.address)
        one = client(timeout_s=20.0)
        one.connect()
        # The first is answered once both are asked.
        owner.script = lambda request: [encode_reply(1, Done())] if request.request_id == 2 else []
        one.add_offsets(TXID, "g", [], fail)
        one.add_offsets(TXID, "g", [], answers.take(1))
        error = answers.collect(1, 10)[1]
        assert isinstance(error, SessionClosedError)
        assert "of a callback" in str(error)
