"""The network between clients and coordinators: streams break, and messages get lost.

`Session` plays `coordinator/client/session.py`: it finds the owner by a hint, resumes with the same
generation and nonce, and sends unanswered requests again. `query` asks single questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from logtx.coordinator.client import pursuit
from logtx.coordinator.protocol import commands
from logtx.journal.errors import (
    CoordinatorLoadingError,
    DoubleStartError,
    JournalError,
    LogtxError,
    NotCoordinatorError,
    OffsetsPendingError,
    ProducerFencedError,
    RequestTimedOutError,
    RetriableError,
    SessionClosedError,
)

from .coordinators import Asked, Coordinator
from .schedule import Party
from .setting import Setting

REQUEST_TIMEOUT_MS = 2_500
"""How long a request is repeated before it fails."""
CONNECT_MS = 400
"""How long the answer to the first request of a stream is waited for."""
NOTICED_MS = (5, 200)
"""Least and most time that a broken stream goes unnoticed, at either end."""
_AGAIN = (CoordinatorLoadingError, NotCoordinatorError, SessionClosedError)

Make = Callable[[int, int], commands.Command]
OnReply = Callable[[commands.Reply], None]


class Network:
    """Carries messages; each direction of a stream keeps its order unless a fault disturbs it."""

    def __init__(self, setting: Setting, coordinators: Mapping[str, Coordinator]) -> None:
        """Begins with nothing on its way."""
        self.setting = setting
        self.coordinators = coordinators

    def carry(self, channel: str, to: Party, free_ms: int, act: Callable[[], None]) -> int | None:
        """Sends a message.

        Args:
            channel: one of `faults.CHANNELS`.
            to: the receiver.
            free_ms: earliest arrival, which keeps the order.
            act: called when the message arrives.

        Returns:
            Its time of arrival; None if it is lost, which breaks the stream.
        """
        setting = self.setting
        chance, now_ms = setting.chance, setting.now_ms
        fault = setting.faults.of(channel)
        if fault == "lost":
            return None
        delay_ms = max(chance.randint(1, 5), free_ms - now_ms)
        if fault == "delayed":
            delay_ms += chance.randint(50, 600)
        to.later(delay_ms, act)
        if fault == "duplicated":
            to.later(delay_ms + chance.randint(0, 300), act)
        if fault == "reordered":
            # The messages behind it may arrive first.
            return free_ms
        return now_ms + delay_ms


@dataclass(slots=True)
class _Request:
    make: Make
    on_reply: OnReply


class Client(Protocol):
    """What is at a stream's near end."""

    party: Party

    def lost(self, stream: Stream) -> None:
        """Takes note that the stream broke."""

    def replied(self, stream: Stream, request_id: int, reply: commands.Reply) -> None:
        """Takes a reply that arrived."""


@dataclass(eq=False)
class Stream:
    """One connection of a producer to a coordinator, as both ends see it."""

    network: Network
    session: Client
    coordinator: Coordinator
    partition: int
    open_here: bool = True
    """Whether it is open for the client."""
    open_there: bool = True
    """Whether it is open for the coordinator."""
    connected: commands.SessionId | None = None
    asked: dict[int, Asked] = field(default_factory=dict)
    _to_free_ms: int = 0
    _from_free_ms: int = 0

    def send(self, request_id: int, command: commands.Command) -> None:
        """Sends a command from the client to the coordinator."""
        act = partial(self._arrived, request_id, command)
        arrives = self.network.carry("request", self.coordinator, self._to_free_ms, act)
        if arrives is None:
            self.broken()
        else:
            self._to_free_ms = arrives

    def broken(self) -> None:
        """Breaks the connection; each end notices some time later."""
        chance = self.network.setting.chance
        self.session.party.later(chance.randint(*NOTICED_MS), self._lost_here)
        self.coordinator.later(chance.randint(*NOTICED_MS), self._lost_there)

    def close_here(self) -> None:
        """Closes it: the client gave it up."""
        self.open_here = False
        noticed_ms = self.network.setting.chance.randint(*NOTICED_MS)
        self.coordinator.later(noticed_ms, self._lost_there)

    def of(self, party: Party) -> bool:
        """Whether this party is the client."""
        return self.session.party is party

    def peer_gone(self) -> None:
        """Breaks it: the coordinator's process is dead, or has not answered for long."""
        noticed_ms = self.network.setting.chance.randint(*NOTICED_MS)
        self.session.party.later(noticed_ms, self._lost_here)

    def end(self, error: LogtxError) -> None:
        """Ends it: the coordinator tells the client why."""
        self._reply(0, error)
        self._reply(-1, error)
        self.open_there = False

    def _lost_here(self) -> None:
        if self.open_here:
            self.open_here = False
            self.session.lost(self)

    def _lost_there(self) -> None:
        if not self.open_there:
            return
        self.open_there = False
        tenure = self.coordinator.seats[self.partition].tenure
        if tenure is not None:
            tenure.forget(list(self.asked.values()))
        self._gone_there()

    def _gone_there(self) -> None:
        links, tenure = self.coordinator.links, self.coordinator.seats[self.partition].tenure
        if self.connected is None:
            return
        key = self.partition, self.connected.producer_id, self.connected.nonce
        if links.get(key) is self:
            del links[key]
            if tenure is not None:
                now = self.coordinator.now()
                tenure.detach(self.connected.producer_id, self.connected.nonce, now)

    def _arrived(self, request_id: int, command: commands.Command) -> None:
        # Even after the end of the stream: frames may still lie in the socket.
        answer = partial(self._answer, request_id, command)
        self.coordinator.seats[self.partition].submit(
            command, answer, partial(self.asked.__setitem__, request_id)
        )

    def _answer(self, request_id: int, command: commands.Command, reply: commands.Reply) -> None:
        self.asked.pop(request_id, None)
        if (
            isinstance(command, commands.Connect)
            and isinstance(reply, commands.Connected)
            and self.open_there
        ):
            self._connect(command, reply)
        if self.open_there:
            self._reply(request_id, reply)

    def _connect(self, command: commands.Connect, reply: commands.Connected) -> None:
        links = self.coordinator.links
        self.connected = commands.SessionId(command.producer_id, reply.generation, command.nonce)
        key = self.partition, command.producer_id, command.nonce
        former = links.get(key)
        links[key] = self
        if former is not None and former is not self:
            former.end(SessionClosedError("the session was resumed by another connection"))
        tenure = self.coordinator.seats[self.partition].tenure
        if tenure is not None:
            tenure.attach(command.producer_id)

    def _reply(self, request_id: int, reply: commands.Reply) -> None:
        act = partial(self._came, request_id, reply)
        arrives = self.network.carry("reply", self.session.party, self._from_free_ms, act)
        if arrives is None:
            self.broken()
        else:
            self._from_free_ms = arrives

    def _came(self, request_id: int, reply: commands.Reply) -> None:
        if not self.open_here:
            return
        if request_id == -1:
            self._lost_here()
        else:
            self.session.replied(self, request_id, reply)


class Reconnecting(ABC):
    """A client that keeps a stream to the owner of one journal partition."""

    def __init__(self, network: Network, party: Party, partition: int) -> None:
        """Begins unconnected; `_open` connects."""
        self.party = party
        self.failure: LogtxError | None = None
        self._network = network
        self._partition = partition
        self._stream: Stream | None = None
        self._flowing = False
        """Whether the first request of the stream was answered."""

    @abstractmethod
    def _connect(self, coordinator: Coordinator) -> Stream:
        """Opens a stream, and sends its first request."""

    @abstractmethod
    def replied(self, stream: Stream, request_id: int, reply: commands.Reply) -> None:
        """Takes a reply that arrived."""

    def lost(self, stream: Stream) -> None:
        """Takes note that a stream broke."""
        if self._stream is stream:
            self._break()

    def _open(self) -> None:
        if self.failure is not None or self._stream is not None:
            return
        setting = self._network.setting
        owner = setting.owner(self._partition)
        if owner is None or setting.is_dead(owner):
            self.party.later(setting.chance.randint(10, 60), self._open)
            return
        stream = self._connect(self._network.coordinators[owner])
        self.party.later(CONNECT_MS, lambda: self._give_up(stream))

    def _give_up(self, stream: Stream) -> None:
        if self._stream is stream and not self._flowing:
            self._break()

    def _break(self) -> None:
        stream, self._stream, self._flowing = self._stream, None, False
        if stream is not None:
            stream.close_here()
        self.party.later(self._network.setting.chance.randint(5, 60), self._open)


class Session(Reconnecting):
    """A producer's session with the owner of one journal partition."""

    def __init__(
        self,
        network: Network,
        party: Party,
        producer_id: str,
        nonce: int,
        partition: int,
        generation: int | None,
        on_closed: Callable[[LogtxError], None],
    ) -> None:
        """Begins unconnected; connects by itself."""
        super().__init__(network, party, partition)
        self.generation = generation
        self.connected: commands.SessionId | None = None
        self._producer_id = producer_id
        self._nonce = nonce
        self._on_closed = on_closed
        self._requests: dict[int, _Request] = {}
        self._next_id = 1
        party.later(1, self._open)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer."""
        return not self._requests

    def submit(self, make: Make, on_reply: OnReply) -> None:
        """Asks, for at most `REQUEST_TIMEOUT_MS`.

        Args:
            make: makes the command from the request id and the lowest unanswered id.
            on_reply: called once.
        """
        if self.failure is not None:
            on_reply(self.failure)
            return
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._requests[request_id] = _Request(make, on_reply)
        if self._flowing:
            self._send(request_id)
        self.party.later(REQUEST_TIMEOUT_MS, lambda: self._expire(request_id))

    def _expire(self, request_id: int) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.on_reply(RequestTimedOutError("no answer"))

    def _send(self, request_id: int) -> None:
        assert self._stream is not None
        below = min(next(iter(self._requests)), request_id)
        self._stream.send(request_id, self._requests[request_id].make(request_id, below))

    def _connect(self, coordinator: Coordinator) -> Stream:
        self._stream = stream = Stream(self._network, self, coordinator, self._partition)
        connect = commands.Connect(
            producer_id=self._producer_id, nonce=self._nonce, generation=self.generation
        )
        stream.send(0, connect)
        return stream

    def replied(self, stream: Stream, request_id: int, reply: commands.Reply) -> None:
        """Takes a reply that arrived."""
        if self._stream is not stream:
            return
        if not self._flowing:
            self._resume(reply)
        elif request_id == 0:
            if isinstance(reply, ProducerFencedError | DoubleStartError):
                self.close(reply)
        elif isinstance(reply, _AGAIN):
            self._break()
        else:
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.on_reply(reply)

    def _resume(self, reply: commands.Reply) -> None:
        if isinstance(reply, commands.Connected):
            self.generation = reply.generation
            self.connected = commands.SessionId(self._producer_id, reply.generation, self._nonce)
            self._flowing = True
            for request_id in list(self._requests):
                if self._flowing:
                    self._send(request_id)
        elif isinstance(reply, LogtxError):
            if pursuit.may_be_elsewhere(reply):
                self._break()
            else:
                self.close(reply)

    def close(self, error: LogtxError) -> None:
        """Ends the session: it was fenced, started twice, or closed by the application."""
        if self.failure is not None:
            return
        self.failure = error
        if self._stream is not None:
            self._stream.close_here()
        self._stream, self._flowing = None, False
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.on_reply(error)
        self._on_closed(error)


def query(
    network: Network,
    party: Party,
    partition: int,
    command: commands.Command,
    on_reply: OnReply,
    *,
    to: str | None = None,
) -> None:
    """Asks one question, again and again until the answer is something else than "again".

    Args:
        network: the way to the coordinators.
        party: the one that asks.
        partition: journal partition that the question is about.
        command: the question.
        on_reply: called once.
        to: a coordinator to ask first, even if it is not the owner.
    """
    setting = network.setting
    done: list[bool] = []
    # A reply may come twice, or after its attempt was given up.
    attempt: list[int] = [0]

    def ask() -> None:
        if done:
            return
        attempt[0] += 1
        number = attempt[0]
        owner = to if to is not None and number == 1 else setting.owner(partition)
        if owner is None or setting.is_dead(owner):
            party.later(setting.chance.randint(10, 60), ask)
            return
        coordinator = network.coordinators[owner]

        def arrived() -> None:
            coordinator.seats[partition].submit(command, reply)

        def reply(told: commands.Reply) -> None:
            network.carry("reply", party, 0, lambda: came(told))

        def came(told: commands.Reply) -> None:
            if done or number != attempt[0]:
                return
            again = isinstance(told, RetriableError | JournalError)
            again = again and not isinstance(told, OffsetsPendingError)
            if again:
                party.later(setting.chance.randint(10, 60), ask)
            else:
                done.append(True)
                on_reply(told)

        def give_up() -> None:
            if number == attempt[0]:
                ask()

        network.carry("request", coordinator, 0, arrived)
        party.later(setting.chance.randint(200, 400), give_up)

    ask()
