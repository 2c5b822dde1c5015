"""The streams of a queue's consumers, which say what they hold whenever they connect.

`Attachment` plays `coordinator/client/attached.py`, and `ConsumerStream` also
`coordinator/server/consumers.py`: the latest stream of a consumer counts, from when its Attach
came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Final

from logtx.coordinator.client import pursuit
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Acknowledge, Acquire, Attach, Attached
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.acks import joined
from logtx.journal.errors import (
    CoordinatorBusyError,
    CoordinatorLoadingError,
    LogtxError,
    NotAttachedError,
    NotCoordinatorError,
    SessionClosedError,
    SubscriptionResetError,
)

from .coordinators import Asked, Coordinator
from .network import Network, OnReply, Reconnecting, Stream
from .schedule import Party

BUSY_MS: Final = 10
"""Pause before a request is repeated that could not be decided yet."""
_ELSEWHERE: Final = (
    *(CoordinatorLoadingError, NotCoordinatorError, SessionClosedError),
    NotAttachedError,
)

Command = Acquire | Acknowledge | Attach
_NUMBERS: Final = count()
"""Tells which of two streams was opened later."""


class ConsumerStream(Stream):
    """One connection of a queue's consumer to a coordinator, as both ends see it."""

    def __init__(
        self,
        network: Network,
        client: Attachment,
        coordinator: Coordinator,
        partition: int,
        consumer: tuple[str, int],
    ) -> None:
        """Opens it. `consumer` is the subscription, and the consumer's number."""
        Stream.__init__(self, network, client, coordinator, partition)
        self.key: Final = (partition, *consumer)
        self._number = next(_NUMBERS)
        self._has_joined = False
        self._sent: list[commands.Command] = []
        """In the order in which the consumer sent them."""
        self._latest = 0
        """Place in that order of the latest Attach that arrived."""
        self._inbox: deque[tuple[int, commands.Command]] = deque()
        self._serves: int | None = None
        """Number of the request, among all of this stream, that is not handed over yet: topics are
        looked up for it. Those behind it wait."""
        self._served = 0

    def send(self, request_id: int, command: commands.Command) -> None:
        """Sends a command from the consumer to the coordinator."""
        self._sent.append(command)
        super().send(request_id, command)

    def _arrived(self, request_id: int, command: commands.Command) -> None:
        if not self.open_there:
            return
        if isinstance(command, Attach):
            self._attach_came(command)
        if not self._has_joined:
            self._has_joined = True
            links = self.coordinator.links
            former, links[self.key] = links.get(self.key), self
            if former is not None and former._number > self._number:
                # The client gave that connection up, and what it had sent there comes only now.
                self.network.setting.history.owner_forgets_rest(self.key[2])
            if former is not None:
                former.end(SessionClosedError("the consumer attached by another connection"))
        self._inbox.append((request_id, command))
        self._serve()

    def _attach_came(self, command: Attach) -> None:
        """Ends a rest that the owner hears no more of.

        The network brings an Attach of before the rest behind the one that begins it: late, or
        twice. To the owner, the consumer wants messages again. A connection never does that, so
        whoever sends such a request anew, as it was, is not excused by it (trap 154).
        """
        place = next(i for i, sent in enumerate(self._sent) if sent is command)
        latest = self._sent[self._latest]
        assert isinstance(latest, Attach), "the first one is"
        if place < self._latest and command.topics and not latest.topics:
            self.network.setting.history.owner_forgets_rest(command.consumer)
        self._latest = max(self._latest, place)

    def _serve(self) -> None:
        """Serves what arrived, one after the other, as a server reads a stream."""
        if self._serves is not None or not self._inbox:
            return
        request_id, command = self._inbox.popleft()
        number = self._serves = self._served = self._served + 1

        def began(asked: Asked) -> None:
            self.asked[request_id] = asked
            handed_over()

        def answer(reply: commands.Reply) -> None:
            handed_over()
            self._answer(request_id, command, reply)

        def handed_over() -> None:
            if self._serves == number:
                self._serves = None
                # Not at once: the tenure is in the middle of it.
                self.coordinator.later(0, self._serve)

        seat = self.coordinator.seats[self.partition]
        seat.submit(command, answer, began, is_over=lambda: not self.open_there)

    def _gone_there(self) -> None:
        coordinator, (partition, group, consumer) = self.coordinator, self.key
        if coordinator.links.get(self.key) is self:
            del coordinator.links[self.key]
            history = self.network.setting.history
            history.gone.append((group, consumer, history.tick()))
            tenure = coordinator.seats[partition].tenure
            if tenure is not None:
                tenure.consumer_gone(group, consumer, coordinator.now())


class Attachment(Reconnecting):
    """Keeps one consumer attached, and asks for it."""

    def __init__(
        self,
        network: Network,
        party: Party,
        partition: int,
        attach: Callable[[], Attach],
        on_attached: Callable[[Attached], None],
        on_leases: Callable[[tuple[Lease, ...]], None],
    ) -> None:
        """Begins unconnected; connects by itself.

        Args:
            network: the way to the coordinators.
            party: the process of the consumer.
            partition: journal partition of the subscription.
            attach: returns how the consumer attaches now.
            on_attached: called whenever the consumer attached, with what it still has.
            on_leases: called with each lease, before its request is answered.
        """
        super().__init__(network, party, partition)
        self._attach, self._on_attached, self._on_leases = attach, on_attached, on_leases
        self._requests: dict[int, tuple[Command, OnReply]] = {}
        """Those without an answer, oldest first."""
        self._is_cut_off = False
        self._attaches = 0
        """Id of the Attach that was submitted last."""
        self._next_id = self._opened = 1
        """`_opened` is what it was when the stream was opened: how the consumer attached there says
        what earlier requests say."""
        self._open()

    def waits_for(self, kind: type[Command]) -> bool:
        """Whether a request of this kind lacks its answer."""
        return any(isinstance(command, kind) for command, _ in self._requests.values())

    def submit(self, command: Command, on_reply: OnReply) -> None:
        """Sends a request, now or when the consumer is attached. It waits for as long as there is
        no owner; `on_reply` is called once."""
        if self.failure is not None:
            on_reply(self.failure)
            return
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._requests[request_id] = command, on_reply
        if isinstance(command, Attach):
            self._attaches = request_id
        if self._flowing:
            self._send(request_id)

    def close(self, error: LogtxError) -> None:
        """Ends the stream, for good."""
        if self.failure is not None:
            return
        self.failure = error
        stream, self._stream, self._flowing = self._stream, None, False
        if stream is not None:
            stream.close_here()
        requests, self._requests = self._requests, {}
        for _, on_reply in requests.values():
            on_reply(error)

    def cut_off(self) -> None:
        """Ends the stream, and opens no other one before `go_on`."""
        self._is_cut_off = True
        stream, self._stream, self._flowing = self._stream, None, False
        if stream is not None:
            stream.close_here()

    def go_on(self) -> None:
        """Looks for the owner again."""
        self._is_cut_off = False
        self._open()

    def _open(self) -> None:
        if not self._is_cut_off:
            super()._open()

    def _send(self, request_id: int) -> None:
        if self._stream is not None and request_id in self._requests:
            command, _ = self._requests[request_id]
            if isinstance(command, Attach):
                command = self._with_unanswered(command)
            self._stream.send(request_id, command)

    def _with_unanswered(self, command: Attach) -> Attach:
        said = [c for c, _ in self._requests.values() if isinstance(c, Acknowledge)]
        unanswered = (acks for each in said if each.era == command.era for acks in each.acks)
        return replace(command, held=joined([*command.held, *unanswered]))

    def _connect(self, coordinator: Coordinator) -> Stream:
        self._opened = self._next_id
        attach = self._with_unanswered(self._attach())
        consumer = attach.group, attach.consumer
        self._stream = stream = ConsumerStream(
            self._network, self, coordinator, self._partition, consumer
        )
        stream.send(0, attach)
        return stream

    def replied(self, stream: Stream, request_id: int, reply: commands.Reply) -> None:
        """Takes a reply that arrived."""
        if self._stream is not stream:
            return
        if not self._flowing:
            self._resume(reply)
        elif isinstance(reply, _ELSEWHERE):
            self._break()
        elif isinstance(reply, CoordinatorBusyError):
            self.party.later(BUSY_MS, lambda: self._repeat(request_id))
        elif request_id in self._requests:
            command, on_reply = self._requests.pop(request_id)
            overtaken = self._pop_attaches(request_id) if isinstance(command, Attach) else []
            if isinstance(reply, commands.Leases):
                self._on_leases(reply.leases)
            elif isinstance(reply, commands.Attached):
                self._on_attached(reply)
            for put_off in overtaken:
                put_off(CoordinatorBusyError("it was put off, and a later one came"))
            on_reply(reply)

    def _pop_attaches(self, before: int) -> list[OnReply]:
        attaching = [
            i for i, (c, _) in self._requests.items() if isinstance(c, Attach) and i < before
        ]
        return [self._requests.pop(i)[1] for i in attaching]

    def _repeat(self, request_id: int) -> None:
        command, on_reply = self._requests.get(request_id, (None, None))
        if isinstance(command, Attach) and on_reply is not None and self._flowing:
            if request_id != self._attaches:
                return  # A later one says more.
            self._requests[request_id] = self._attach(), on_reply
        self._send(request_id)

    def _resume(self, reply: commands.Reply) -> None:
        if isinstance(reply, commands.Attached):
            self._flowing = True
            self._on_attached(reply)
            # It has just attached. An earlier Attach would let go of what it got since. A later one
            # may name other topics (trap 142).
            for on_reply in self._pop_attaches(self._opened):
                on_reply(reply)
            for request_id in list(self._requests):
                self._send(request_id)
        elif isinstance(reply, LogtxError):
            if not pursuit.may_be_elsewhere(reply):
                self._refused(reply)
            self._break()

    def _refused(self, error: LogtxError) -> None:
        # What was acknowledged is repeated when it is attached, if there is anything then.
        is_final = isinstance(error, SubscriptionResetError)
        asking = [
            i for i, (c, _) in self._requests.items() if is_final or not isinstance(c, Acknowledge)
        ]
        for on_reply in [self._requests.pop(i)[1] for i in asking]:
            on_reply(error)
