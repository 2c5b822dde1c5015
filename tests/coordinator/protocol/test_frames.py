"""One end of a connection: its bytes, what it refuses, its waits, and whatever else may come.

`tests/search/test_frames.py` has every interleaving of two ends.
"""

from __future__ import annotations

import ssl
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.protocol import frames
from logtx.coordinator.protocol.frames import (
    CLIENT_DEADLINES,
    COORDINATOR_DEADLINES,
    MAGIC,
    MESSAGE_COST_BYTES,
    MESSAGE_MAX_BYTES,
    WINDOW_MAX_BYTES,
    Ended,
    Endpoint,
    Event,
    Message,
    State,
)
from logtx.coordinator.protocol.strangers import Role
from logtx.journal.errors import (
    CoordinatorLoadingError,
    ForkedError,
    FrameError,
    LogtxError,
    NotSupportedError,
    SessionClosedError,
)

WINDOW: Final = 1_000
HELLO: Final = bytes.fromhex("8d4c4f4754580d0a 0001 000003e8")
"""Of a window of 1,000 bytes."""
PING: Final = bytes.fromhex("02000000")
PONG: Final = bytes.fromhex("03000000")
OTHER: Final = {Role.CLIENT: Role.COORDINATOR, Role.COORDINATOR: Role.CLIENT}


def endpoint(role: Role, window_bytes: int = WINDOW) -> Endpoint:
    deadlines = CLIENT_DEADLINES if role is Role.CLIENT else COORDINATOR_DEADLINES
    return Endpoint(role, window_bytes=window_bytes, deadlines=deadlines, now_ms=0)


def opened(role: Role, window_bytes: int = WINDOW) -> Endpoint:
    """Returns an end whose peer has said hello."""
    end = endpoint(role, window_bytes)
    assert end.receive(HELLO, 0) == []
    assert end.to_send() != b""
    return end


def message(payload: bytes) -> bytes:
    return b"\x01" + len(payload).to_bytes(3, "big") + payload


def refused(events: list[Event]) -> str:
    """Returns the sentence with which a peer was refused."""
    (ended,) = events
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, FrameError), ended
    return str(ended.error)


# ---- bytes that stay as they are -----------------------------------------------------------------


def test_golden_bytes() -> None:
    """Both ends of one version speak these: a change of them needs a new version."""
    client, coordinator = endpoint(Role.CLIENT), endpoint(Role.COORDINATOR)
    assert coordinator.to_send() == b"", "a coordinator waits for who is there"
    assert client.to_send() == HELLO
    assert coordinator.receive(HELLO, 0) == []
    assert coordinator.to_send() == HELLO
    assert client.receive(HELLO, 0) == []
    assert client.to_send() == b""
    sent = client.send(b"abc")
    assert sent == bytes.fromhex("01000003 616263")
    (event,) = coordinator.receive(sent, 0)
    assert event == Message(b"abc")
    coordinator.release(3 + MESSAGE_COST_BYTES)
    assert coordinator.to_send() == b"", "there is room left: a grant can wait"
    for _ in range(2):
        coordinator.receive(client.send(b"abc"), 0)
        coordinator.release(3 + MESSAGE_COST_BYTES)
    assert coordinator.to_send() == bytes.fromhex("04000004 00000309")
    assert client.tick(200) == []
    assert client.to_send() == PING
    assert coordinator.receive(PING, 200) == []
    assert coordinator.to_send() == PONG
    error = CoordinatorLoadingError("é")
    assert coordinator.close(error, 0) == [Ended(error)]
    closing = coordinator.to_send()
    assert closing == bytes.fromhex("05000004 000c c3a9")
    (ended,) = client.receive(closing, 0)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, CoordinatorLoadingError)
    assert str(ended.error) == "é"
    assert (client.state, coordinator.state) == (State.CLOSED, State.LINGERING)
    assert coordinator.receive_end() == []
    assert coordinator.state is State.CLOSED


def test_what_an_end_says_by_itself_goes_in_front_of_a_message_and_once() -> None:
    end = endpoint(Role.COORDINATOR)
    assert end.receive(HELLO + PING, 0) == []
    assert end.send(b"abc") == HELLO + PONG + message(b"abc")
    assert end.to_send() == b""
    assert end.receive(PING, 0) == []
    assert (end.to_send(), end.to_send()) == (PONG, b"")
    end.tick(1_000)
    assert (end.to_send(), end.to_send()) == (PING, b"")


def test_the_magic_ends_connections_to_others_at_once() -> None:
    assert MAGIC[0] & 0x80, "a Kafka broker reads a negative length"
    assert MAGIC.endswith(b"\r\n"), "an HTTP server reads a whole line"


# ---- who is no logtx -----------------------------------------------------------------------------


def client_hello() -> bytes:
    """Returns the first bytes of a real TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="c")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


STRANGERS: Final = (
    (Role.COORDINATOR, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "install the coordinator's version"),
    (Role.COORDINATOR, client_hello(), "the client speaks TLS"),
    (Role.COORDINATOR, b"GET /metrics HTTP/1.1\r\n\r\n", "--metrics-listen"),
    (Role.COORDINATOR, bytes.fromhex("00000024 0012 0003 00000001"), "bootstrap.servers"),
    (Role.COORDINATOR, b"hello world", "68 65 6c 6c 6f 20 77 6f"),
    (Role.CLIENT, bytes.fromhex("000018 04 00 00000000 0003"), "older versions of logtx"),
    (Role.CLIENT, bytes.fromhex("15 0303 0002 0228"), "coordinator.security.protocol=SSL"),
    (Role.CLIENT, b"HTTP/1.1 400 Bad Request\r\n", "--advertise"),
    (Role.CLIENT, bytes(20), "one of a coordinator"),
)


@pytest.mark.parametrize(("role", "first", "remedy"), STRANGERS)
def test_a_stranger_is_recognized_however_its_bytes_are_cut(
    role: Role, first: bytes, remedy: str
) -> None:
    for size in range(1, len(first) + 1):
        end = endpoint(role)
        pieces = [first[at : at + size] for at in range(0, len(first), size)]
        events = [event for piece in pieces for event in end.receive(piece, 0)]
        assert remedy in refused(events + end.receive_end())
        assert end.state is State.CLOSED


def test_who_is_no_logtx_is_told_so_in_its_own_words() -> None:
    answers = {}
    for role, first, _ in STRANGERS:
        end = endpoint(role)
        end.to_send()
        end.receive(first, 0)
        answers[first[:4]] = end.to_send()
        assert end.to_send() == b"", "once"
    assert answers[b"GET "].startswith(b"HTTP/1.1 400 ")
    assert answers[b"PRI "].startswith(b"HTTP/1.1 426 ")
    assert answers[b"hell"].startswith(b"logtx: ")
    kept = (bytes.fromhex("00000024"), bytes(4), b"HTTP", bytes.fromhex("00001804"))
    assert [answers[first] for first in kept] == [b"", b"", b"", b""]


def test_a_tls_client_says_that_the_port_is_plain() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="c")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    end = endpoint(Role.COORDINATOR)
    end.receive(outgoing.read(), 0)
    incoming.write(end.to_send())
    with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number|record.layer"):
        client.do_handshake()


@pytest.mark.parametrize(("version", "older"), [(0, True), (2, False), (65_535, False)])
@pytest.mark.parametrize("role", list(Role))
def test_versions_refuse_each_other_in_one_sentence(role: Role, version: int, older: bool) -> None:
    end = endpoint(role)
    end.to_send()
    # The rest of its hello may be another one.
    sentence = refused(end.receive(MAGIC + version.to_bytes(2, "big"), 0))
    peer = "the coordinator" if role is Role.CLIENT else "the client"
    assert f"{peer} speaks version {version} " in sentence
    assert f"upgrade {peer if older else 'the logtx here'}" in sentence
    # Only a hello tells a client of another version which one this is.
    assert end.to_send() == (b"" if role is Role.CLIENT else HELLO)


def test_half_a_hello_is_a_broken_connection_and_no_stranger() -> None:
    for size in range(1, len(HELLO)):
        for role in Role:
            end = endpoint(role)
            assert end.receive(HELLO[:size], 0) == []
            (ended,) = end.receive_end()
            assert isinstance(ended, Ended)
            assert isinstance(ended.error, SessionClosedError), size


# ---- what an end must not say --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (bytes(4), "of kind 0"),
        (b"\x06\0\0\0", "of kind 6"),
        (b"\x01" + (MESSAGE_MAX_BYTES + 1).to_bytes(3, "big"), "MESSAGE of 4194305 bytes"),
        (b"\x02\0\0\x01", "PING of 1 bytes"),
        (b"\x03\0\0\x01", "PONG of 1 bytes"),
        (b"\x04\0\0\x03", "WINDOW of 3 bytes"),
        (b"\x05\0\0\x01", "CLOSE of 1 bytes"),
        (b"\x05\xff\xff\xff", "CLOSE of 16777215 bytes"),
        (b"\x04\0\0\x04\0\0\0\x01", "more room than its window has"),
        (message(bytes(WINDOW)) + b"\x01\0\0\0", "more than its window of 1000 bytes"),
    ],
)
def test_a_broken_rule_ends_the_connection_by_its_header(raw: bytes, sentence: str) -> None:
    end = opened(Role.COORDINATOR)
    events = end.receive(raw, 0)
    assert sentence in refused(events[-1:])
    assert all(isinstance(event, Message) for event in events[:-1])
    told = opened(Role.CLIENT).receive(end.to_send(), 0)
    assert sentence in refused(told), "the peer is told why"
    assert end.receive(PING * 100_000, 0) == []
    assert end.to_send() == b""


@pytest.mark.parametrize("window_bytes", [0, WINDOW_MAX_BYTES + 1])
def test_a_window_of_no_or_too_many_bytes_is_refused(window_bytes: int) -> None:
    with pytest.raises(ValueError, match="window_bytes"):
        endpoint(Role.CLIENT, window_bytes)
    end = endpoint(Role.COORDINATOR)
    events = end.receive(HELLO[:10] + window_bytes.to_bytes(4, "big"), 0)
    assert f"a window of {window_bytes} bytes" in refused(events)


def test_a_shell_can_not_send_what_the_peer_would_refuse() -> None:
    end = endpoint(Role.CLIENT)
    with pytest.raises(SessionClosedError):
        end.send(b"")
    end = opened(Role.CLIENT)
    with pytest.raises(ValueError, match="4194305 bytes"):
        end.send(bytes(MESSAGE_MAX_BYTES + 1))
    end.send(bytes(MESSAGE_MAX_BYTES))
    assert not end.may_send
    with pytest.raises(ValueError, match="no room"):
        end.send(b"")
    with pytest.raises(ValueError, match="released"):
        end.release(1)


def test_trap_209_messages_without_bytes_take_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken() -> int:
        end = opened(Role.COORDINATOR)
        events = end.receive(message(b"") * 1_000, 0)
        return sum(isinstance(event, Message) for event in events)

    assert taken() == 4
    monkeypatch.setattr(frames, "MESSAGE_COST_BYTES", 0)
    assert taken() == 1_000, "or nothing would bound them"


def test_trap_210_a_full_window_stops_messages_alone() -> None:
    end = opened(Role.COORDINATOR)
    end.receive(message(bytes(WINDOW)), 0)
    assert end.receive(PING, 0) == []
    assert end.to_send() == PONG


def test_trap_211_a_peer_that_reads_nothing_makes_no_answers_pile_up() -> None:
    end = opened(Role.COORDINATOR, 100_000)
    for _ in range(300):
        for event in end.receive(PING * 100 + message(b""), 0):
            assert isinstance(event, Message)
            end.release(event.cost)
    grant = b"\x04\0\0\x04" + (300 * MESSAGE_COST_BYTES).to_bytes(4, "big")
    assert end.to_send() == PONG + grant, "however long the network took nothing"


# ---- waits ---------------------------------------------------------------------------------------


def tick_on_time(end: Endpoint, until_ms: int) -> list[tuple[int, str]]:
    """Returns (when, why) of each end that is told while nothing more comes."""
    told = []
    while (due := end.next_due_ms) is not None and due <= until_ms:
        told += [(due, str(e.error)) for e in end.tick(due) if isinstance(e, Ended)]
    return told


@pytest.mark.parametrize(
    ("role", "hello_ms", "dead_ms"), [(Role.CLIENT, 5_000, 500), (Role.COORDINATOR, 10_000, 3_000)]
)
def test_a_peer_that_says_nothing_is_dead_in_time(role: Role, hello_ms: int, dead_ms: int) -> None:
    silent, stopped = endpoint(role), opened(role)
    ((at, why),) = tick_on_time(silent, 100_000)
    assert at == hello_ms
    assert "said no hello" in why
    ((at, why),) = tick_on_time(stopped, 100_000)
    assert at == dead_ms
    assert "said nothing" in why
    assert (silent.state, stopped.state) == (State.CLOSED, State.CLOSED)


def test_a_stranger_that_stops_early_is_answered_at_the_deadline() -> None:
    end = endpoint(Role.COORDINATOR)
    assert end.receive(b"GET /", 0) == []
    ((at, why),) = tick_on_time(end, 10_000)
    assert at == 10_000
    assert "--metrics-listen" in why
    assert end.to_send().startswith(b"HTTP/1.1 400")
    assert tick_on_time(end, 100_000) == []
    assert end.state is State.CLOSED


def test_bytes_that_trickle_keep_no_connection_alive() -> None:
    end = opened(Role.COORDINATOR)
    told = []
    for seconds, byte in enumerate(message(bytes(100))):
        told += tick_on_time(end, seconds * 900)
        assert end.receive(bytes([byte]), seconds * 900) == []
    assert told == [(30_000, "the client did not end a frame in 30000 ms")]


def test_trap_213_who_stood_still_does_not_take_its_peer_for_dead() -> None:
    end = opened(Role.CLIENT)
    assert end.tick(200) == []
    assert end.tick(5_000) == [], "the PONG may lie unread"
    assert end.receive(PONG, 5_001) == []
    assert tick_on_time(end, 5_600) == [(5_501, "the coordinator said nothing for 500 ms")]
    end = opened(Role.CLIENT)
    assert [end.tick(at) for at in (200, 5_000, 9_000)][:2] == [[], []]
    assert end.state is State.CLOSED, "it waits longer but once"


def test_trap_214_who_speaks_last_reads_on_for_a_while() -> None:
    end = opened(Role.COORDINATOR)
    error = NotSupportedError("no")
    assert end.close(error, 0) == [Ended(error)]
    assert end.close(error, 0) == [], "it is told once"
    assert end.to_send().endswith(b"no")
    assert end.receive(message(b"late") * 1_000, 0) == []
    assert end.state is State.LINGERING, "a closed socket with unread bytes would reset it"
    assert tick_on_time(end, 10_000) == []
    assert end.state is State.CLOSED
    with pytest.raises(SessionClosedError):
        end.send(b"")


@pytest.mark.parametrize("code", [*range(70), 65_535])
def test_any_code_of_a_close_is_one_typed_error(code: int) -> None:
    end = opened(Role.CLIENT)
    (ended,) = end.receive(b"\x05\0\0\x02" + code.to_bytes(2, "big"), 0)
    assert isinstance(ended, Ended)
    assert "gave no reason" in str(ended.error)
    assert type(ended.error).code in {code, 0}


def test_an_error_without_a_code_comes_as_a_closed_session() -> None:
    end = opened(Role.CLIENT)
    end.close(ForkedError("forked"), 0)
    (ended,) = opened(Role.COORDINATOR).receive(end.to_send(), 0)
    assert isinstance(ended, Ended)
    assert type(ended.error) is SessionClosedError
    assert str(ended.error) == "forked"


def test_the_text_of_a_close_is_bounded_and_printable() -> None:
    end = opened(Role.CLIENT)
    end.close(SessionClosedError("é\n" * 10_000), 0)
    raw = end.to_send()
    assert len(raw) < 2_100
    (ended,) = opened(Role.COORDINATOR).receive(raw, 0)
    assert isinstance(ended, Ended)
    assert str(ended.error).isprintable()


# ---- anything ------------------------------------------------------------------------------------

WORDS: Final = st.one_of(
    st.binary(max_size=12),
    st.builds(message, st.binary(max_size=300)),
    st.sampled_from([PING, PONG, b"\x04\0\0\x04\0\0\0\0", b"\x05\0\0\x02\0\x01", HELLO]),
    st.builds(
        lambda kind, size: bytes([kind]) + size.to_bytes(3, "big"),
        st.integers(0, 7),
        st.integers(0, 2**24 - 1),
    ),
)
STREAM: Final = st.builds(
    lambda hello, words: hello + b"".join(words),
    st.sampled_from([b"", HELLO, HELLO, HELLO, MAGIC]),
    st.lists(WORDS, max_size=8),
)


def seen(events: list[Event]) -> list[object]:
    """Returns events in a form that compares."""
    return [e if isinstance(e, Message) else (type(e.error), str(e.error)) for e in events]


@given(role=st.sampled_from(Role), raw=STREAM, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_bytes_mean_the_same_however_they_are_cut(
    role: Role, raw: bytes, cuts: list[int]
) -> None:
    whole = endpoint(role)
    events = whole.receive(raw, 0)
    said = whole.to_send()
    pieces = endpoint(role)
    cut_events: list[Event] = []
    for begin, end in pairwise([0, *sorted(cuts), max([len(raw), *cuts])]):
        cut_events += pieces.receive(raw[begin:end], 0)
    assert seen(cut_events) == seen(events)
    assert (pieces.state, pieces.to_send()) == (whole.state, said)
    assert seen(pieces.receive_end()) == seen(whole.receive_end())


@given(role=st.sampled_from(Role), raw=STREAM, pace_ms=st.integers(0, 700))
def test_any_bytes_end_in_one_typed_error_and_take_bounded_memory(
    role: Role, raw: bytes, pace_ms: int
) -> None:
    end = endpoint(role)
    events: list[Event] = []
    now_ms = 0
    for at in range(0, len(raw), 7):
        now_ms += pace_ms
        events += end.tick(now_ms)
        events += end.receive(raw[at : at + 7], now_ms)
        assert len(end.to_send()) < 3_000
        assert len(end._buffer) < 4 + MESSAGE_MAX_BYTES
        assert end._room.unreleased <= WINDOW + MESSAGE_COST_BYTES + 300
    events += end.receive_end()
    ends = [event for event in events if isinstance(event, Ended)]
    assert ends == events[-1:], "once, and last"
    assert all(isinstance(each.error, LogtxError) and str(each.error) for each in ends)
    assert end.state is State.CLOSED
    assert end.next_due_ms is None


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_messages_come_as_they_were_sent_whatever_the_pieces(
    payloads: list[bytes], size: int
) -> None:
    client, coordinator = opened(Role.CLIENT), opened(Role.COORDINATOR)
    got = []
    for payload in payloads:
        assert client.may_send
        raw = client.send(payload)
        for at in range(0, len(raw), size):
            for event in coordinator.receive(raw[at : at + size], 0):
                assert isinstance(event, Message)
                got.append(event.payload)
                coordinator.release(event.cost)
            assert client.receive(coordinator.to_send(), 0) == []
    assert got == payloads
