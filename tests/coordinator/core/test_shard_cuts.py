"""Stop at every record and load again: no answer is denied, and every transaction comes to its end.

First with recorded histories: for each prefix of the journal, a new owner is asked all questions
that were answered by then. Then with a client that wants its work done. It runs once without
faults, and once for each record at which the owner may lose its place and each number of records
in flight that land all the same. Its answers must be the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise

import pytest

from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import LogtxError, TransactionAbortedError, TransactionCommittedError
from logtx.journal.txid import TxId

from ...parameters import slow
from ..harness import Appended, Coordinator, Event, Journal, Replied, step
from .test_shard_checkers import Checker
from .test_shard_stateful import World, run_seed

# ---- recorded histories -------------------------------------------------------------------------


class Recorded(World):
    """A world that remembers its answers, and when it gave them."""

    def __init__(self) -> None:
        self.told: list[tuple[int, commands.Command, commands.Reply]] = []
        """(the journal's end at the answer, the command, the reply)."""
        super().__init__()

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        super()._listen(coordinator, event)
        if isinstance(event, Replied):
            self.told.append((self.journal.end, coordinator.commands[event.ref], event.reply))


def decision(reply: commands.Reply) -> bool | None:
    """Returns True if a reply says committed, False if aborted, None otherwise."""
    match reply:
        case commands.Outcome():
            return True if reply.state.commits else False if reply.state.aborts else None
        case TransactionCommittedError():
            return True
        case TransactionAbortedError():
            return False
        case _:
            return None


@pytest.mark.parametrize("seed", range(5))
def test_nothing_told_is_denied_by_a_reload_at_any_record(seed: int) -> None:
    world = run_seed(seed, steps=60, make=Recorded)
    assert isinstance(world, Recorded)
    for cut in range(1, world.journal.end + 1):
        journal = Journal()
        for entry in world.journal.entries[:cut]:
            journal.append(entry)
        checker = Checker(journal)
        owner = Coordinator(journal, name="c9", listen=checker.listen)
        owner.take_over()
        owner.ack()
        checker.after_step([owner])
        for ref, (end, command, reply) in enumerate(world.told):
            told = decision(reply)
            if end > cut or told is None:
                continue
            ask = commands.GetOutcome(txid=command.txid)  # type: ignore[union-attr]
            checker.asked(ref, ask)
            owner.submit(ask, ref)
            assert decision(owner.replies[ref]) is told, f"{ask.txid}, cut at {cut}"


# ---- a client that wants its work done ----------------------------------------------------------


@dataclass(slots=True, eq=False)
class Request:
    """A request that a client repeats until it is answered."""

    make: Callable[[], commands.Command]
    reply: commands.Reply | None = None


class Client:
    """Sends its requests in order; after a break sends the unanswered ones again."""

    def __init__(self, lose_at: int | None = None, landed: int = 0) -> None:
        """Begins without requests.

        Args:
            lose_at: number of the appended record after which the owner loses its place; None:
                it never does.
            landed: number of the records then in flight that land all the same.
        """
        self.lose_at = lose_at
        self.landed = landed
        self.appended = 0
        self.in_flight = 0
        """Number of records in flight at the loss."""
        self.requests: list[Request] = []
        self._sent: list[Request] = []
        self._lost = False
        self.journal = Journal()
        self.checker = Checker(self.journal)
        self.coordinator = Coordinator(self.journal, listen=self._listen)
        self.coordinator.take_over()

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        self.checker.listen(coordinator, event)
        if isinstance(event, Appended):
            self.appended += 1
        elif isinstance(event, Replied):
            self._sent[event.ref].reply = event.reply

    def ask(self, make: Callable[[], commands.Command]) -> Request:
        """Sends a request."""
        request = Request(make)
        self.requests.append(request)
        self._send(request)
        self._maybe_lose()
        return request

    def _send(self, request: Request) -> None:
        ref, command = len(self._sent), request.make()
        self._sent.append(request)
        self.checker.asked(ref, command)
        self.coordinator.submit(command, ref)

    def _maybe_lose(self) -> None:
        if self._lost or self.lose_at is None or self.appended < self.lose_at:
            return
        self._lost = True
        self.in_flight = len(self.coordinator.in_flight)
        self.coordinator.lose(self.landed)
        for request in self.requests:
            if request.reply is None:
                self._send(request)

    def wait(self, *requests: Request) -> None:
        """Lets appends land one by one until these are answered."""
        while any(r.reply is None for r in requests):
            assert self.coordinator.in_flight, "nothing in flight, and no answer"
            self.coordinator.ack(1)
        self.checker.after_step([self.coordinator])

    def finish_all(self) -> None:
        """Writes every marker."""
        while self.coordinator.markers or self.coordinator.in_flight:
            self.coordinator.ack()
            for begin in list(self.coordinator.markers)[:1]:
                self.coordinator.finish(begin)
            self._maybe_lose()


class Work:
    """Does the same work each time.

    Two commits out of order, an abort and its redo, a successor; then another takes its input.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session: commands.SessionId | None = None
        self.begun = 0
        self.claimant = 0
        self.number: int | None = None
        """Number of the claim under which it reads."""

    def connect(self, nonce: int) -> None:
        """Connects, and uses the session from then on."""
        make = partial(commands.Connect, producer_id="p", nonce=nonce)
        request = self.client.ask(make)
        self.client.wait(request)
        assert isinstance(request.reply, commands.Connected)
        self.session = commands.SessionId("p", request.reply.generation, nonce)

    def begin(self, count: int) -> list[TxId]:
        """Opens transactions, all at once."""
        requests = []
        for _ in range(count):
            self.begun += 1
            requests.append(
                self.client.ask(
                    partial(
                        commands.Begin,
                        session=self.session,
                        request_id=self.begun,
                        answered_below=self.begun - len(requests),
                        timeout_ms=60_000,
                        partitions=(("a", 0),),
                    )
                )
            )
        self.client.wait(*requests)
        replies = [r.reply for r in requests]
        return [r.txid for r in replies if isinstance(r, commands.Began)]

    def claim(self, *, anew: bool = False) -> Request:
        """Claims the input: unconditionally, or `anew` to go back if no other claimed since."""
        self.claimant += 1
        return self.client.ask(
            partial(
                commands.ClaimOffsets,
                group="g",
                partitions=(("a", 0),),
                claimant=self.claimant,
                expected={("a", 0): self.number} if anew else None,
            )
        )

    def claimed(self, request: Request) -> Request:
        """Waits for a claim, and reads under it from now on."""
        self.client.wait(request)
        assert isinstance(request.reply, commands.Claimed), request.reply
        self.number = request.reply.number
        return request

    def offsets(self, txid: TxId, *places: int | None) -> list[Request]:
        """Sends offsets that go from place to place, one request each."""
        claim = self.number
        return [
            self.client.ask(
                partial(
                    commands.AddOffsets,
                    session=self.session,
                    txid=txid,
                    group="g",
                    steps=(step(("a", 0), start, to, claim),),
                )
            )
            for start, to in pairwise(places)
            if to is not None
        ]

    def end(self, txid: TxId, action: commands.Action) -> Request:
        """Commits or aborts."""
        writes: dict[TopicPartition, tuple[BranchRange, ...]] = {
            ("b", 1): (BranchRange(0, 0, 0, 1),)
        }
        make = partial(commands.End, session=self.session, txid=txid, action=action, writes=writes)
        return self.client.ask(make)

    def do(self) -> list[str]:
        """Does everything; returns the answers."""
        client, commit, abort = self.client, commands.Action.COMMIT, commands.Action.ABORT
        self.connect(1)
        first, second = self.begin(2)
        client.wait(*self.offsets(first, None, 1, 2), *self.offsets(second, 2, 3))
        client.wait(self.end(second, commit), self.end(first, commit))
        client.finish_all()
        third, fourth = self.begin(2)
        client.wait(*self.offsets(third, 3, 4), *self.offsets(fourth, 4, 5))
        client.wait(self.end(fourth, commit), self.end(third, abort))
        client.wait(self.end(fourth, abort))
        [fifth, sixth] = self.begin(2)
        client.wait(*self.offsets(fifth, 3, 4, 5), *self.offsets(sixth, 5, 6))
        client.wait(self.end(fifth, commit))
        left = self.end(sixth, commit)
        self.begin(1)
        self.connect(2)
        client.wait(left)
        self.take_over()
        client.finish_all()
        return [described(r.reply) for r in client.requests]

    def take_over(self) -> None:
        """Claims the input of an open transaction; then a zombie's claim is refused."""
        client, commit = self.client, commands.Action.COMMIT
        self.claimed(self.claim())
        [first, second] = self.begin(2)
        client.wait(*self.offsets(first, 6, 7), *self.offsets(second, 7, 8))
        waiting = self.end(second, commit)
        self.claimed(self.claim(anew=True))
        client.wait(waiting, self.end(first, commit))
        zombie, self.number = self.number, None
        self.claimed(self.claim())
        latest, self.number = self.number, zombie
        [third] = self.begin(1)
        client.wait(*self.offsets(third, 6, 9), self.claim(anew=True))
        self.number = latest
        client.wait(*self.offsets(third, 6, 7))
        client.wait(self.end(third, commit))

    def told_iovs(self) -> list[int | None]:
        """Returns the input positions that the claims were told, in order."""
        replies = [r.reply for r in self.client.requests]
        found = [
            r.offsets.offsets.get(("a", 0)) for r in replies if isinstance(r, commands.Claimed)
        ]
        return [None if position is None else position.o2 for position in found]


def described(reply: commands.Reply | None) -> str:
    """Returns a reply as text, without the numbers that depend on where records lie."""
    match reply:
        case commands.Outcome():
            # At a repetition the transaction may be finished already.
            return "commits" if reply.state.commits else "aborts"
        case commands.Connected():
            return f"generation {reply.generation}"
        case LogtxError() | _:
            return type(reply).__name__


@cache
def plain() -> tuple[Client, list[str]]:
    """Returns the work done without any fault, and its answers."""
    client = Client()
    return client, Work(client).do()


def losses() -> Iterable[tuple[int, int]]:
    """Returns (record, number in flight that land): every way for the owner to lose its place."""
    for record in range(1, plain()[0].appended + 1):
        probe = Client(lose_at=record)
        Work(probe).do()
        for landed in range(probe.in_flight + 1):
            yield record, landed


def test_the_plain_run_does_its_work() -> None:
    client, told = plain()
    assert client.checker.reference.iov("g")["a", 0].o2 == 7
    assert told.count("commits") == 5
    assert told.count("OffsetsConflictError") == 1
    assert told.count("Claimed") == 3
    assert told.count("TransactionAbortedError") == 2
    assert told.count("ClaimFencedError") == 2
    assert client.coordinator.shard.hw == client.journal.end


@pytest.mark.parametrize("apart", [3, *slow([1])])
def test_work_is_told_the_same_wherever_the_owner_loses_its_place(apart: int) -> None:
    count = 0
    for lose_at, landed in islice(losses(), 0, None, apart):
        client = Client(lose_at, landed)
        work = Work(client)
        assert work.do() == plain()[1], (lose_at, landed)
        assert work.told_iovs() == [6, 6, 6]
        assert client.checker.reference.iov("g")["a", 0].o2 == 7
        assert client.coordinator.shard.hw == client.journal.end
        count += 1
    assert count > plain()[0].appended // apart
