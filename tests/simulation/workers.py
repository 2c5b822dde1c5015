"""Workers of a consumer group: input, output and input offsets in one transaction, exactly once.

Each is a producer that was given input partitions, and does as `consumer/positions.py` and
`integration/blocks.py` do. It claims what it is given, and stamps its steps with the claim. When a
transaction failed it goes back by a conditional claim; if that is refused, it listens to its group
before it claims again. `Group` plays Kafka's group coordinator: it moves partitions at any moment.
A worker learns of it late; a paused one not before it wakes up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action
from logtx.journal.control import TopicPartition
from logtx.journal.errors import ClaimFencedError
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.producer.core.bookkeeping import Phase

from .history import Input
from .network import query
from .producers import Producer
from .setting import Setting
from .topology import INPUT
from .transaction import Transaction

INPUTS: Final[tuple[TopicPartition, ...]] = tuple((INPUT, n) for n in range(3))
FENCED_PAUSE_MS: Final = (50, 300)
"""Least and most time that a worker listens to its group after a refused claim."""


class Group:
    """A consumer group's assignment, as its coordinator sees it."""

    def __init__(self, setting: Setting) -> None:
        """Begins without members."""
        self.generation = 0
        self._setting = setting
        self._members: dict[str, Worker] = {}
        self._owners: dict[TopicPartition, Worker] = {}

    def join(self, worker: Worker) -> None:
        """Adds a worker, in the place of its predecessor."""
        self._members[worker.producer_id] = worker
        self.rebalance()

    def rebalance(self) -> None:
        """Assigns the partitions again, to the workers that seem to be alive."""
        there = [w for w in self._members.values() if w.alive and not w.paused]
        if there:
            self._owners = {key: self._setting.chance.choice(there) for key in INPUTS}
            self.generation += 1
            owners = {key[1]: worker.name for key, worker in self._owners.items()}
            self._setting.note("group", "gives out", owners)

    def given_to(self, worker: Worker) -> list[TopicPartition]:
        """Returns the present partitions of a worker."""
        return [key for key, owner in self._owners.items() if owner is worker]


@dataclass(slots=True, eq=False)
class Held:
    """An input partition that a worker believes to be its own."""

    claim: int | None = None
    """Number of the worker's claim; None before it has claimed."""
    cursor: Place | None = None
    asks: bool = False
    not_before_ms: int = 0


class Worker(Producer):
    """One instance of a worker."""

    def __init__(self, members: Group, *args: Any, **how: Any) -> None:
        """Creates a producer and joins a group."""
        super().__init__(*args, **how)
        self._members = members
        self._known = -1
        self._inputs: dict[TopicPartition, Held] = {}
        self._rewinds = False
        members.join(self)

    @property
    def idle(self) -> bool:
        """Whether it has nothing left to do or to learn."""
        return super().idle and not any(held.asks for held in self._inputs.values())

    def step(self) -> None:
        """Listens to the group, and does something."""
        if self._bound and not self.stopping and self.session.failure is None:
            self._listen()
        super().step()

    def _ask_cursor(self) -> None:
        """Does nothing: the answer to a claim tells the cursor."""

    def _listen(self) -> None:
        group, chance, now_ms = self._members, self.setting.chance, self.setting.now_ms
        if self._known != group.generation and chance.random() < 0.5:
            self._known = group.generation
            given = group.given_to(self)
            self._inputs = {key: self._inputs.get(key) or Held() for key in given}
        if self._rewinds:
            self._rewind()
        new = [
            key
            for key, held in self._inputs.items()
            if held.claim is None and not held.asks and held.not_before_ms <= now_ms
        ]
        if new:
            self._claim(new, None)
        self._knows_cursor = any(self._is_ready(held) for held in self._inputs.values())

    def _is_ready(self, held: Held) -> bool:
        return held.claim is not None and not held.asks and not self._rewinds

    def _rewind(self) -> None:
        claims = {key: held.claim for key, held in self._inputs.items() if held.claim is not None}
        if any(held.asks for held in self._inputs.values()):
            return  # It goes on when that is answered.
        self._rewinds = False
        if claims:
            self._claim(list(claims), claims)

    def _claim(
        self, keys: list[TopicPartition], expected: Mapping[TopicPartition, int] | None
    ) -> None:
        setting = self.setting
        asked = {key: self._inputs[key] for key in keys}
        for held in asked.values():
            held.asks = True

        def told(reply: commands.Reply) -> None:
            for key, held in asked.items():
                held.asks = False
                if isinstance(reply, commands.Claimed):
                    position = reply.offsets.offsets.get(key)
                    held.claim = reply.number
                    held.cursor = None if position is None else position.place
                else:
                    # Another worker was given them: wait for the group's word.
                    held.claim = None
                    held.not_before_ms = setting.now_ms + setting.chance.randint(*FENCED_PAUSE_MS)
            if isinstance(reply, ClaimFencedError):
                setting.history.counts["claims refused"] += 1
            elif isinstance(reply, commands.Claimed):
                kind = "claims" if expected is None else "conditional claims"
                setting.history.counts[kind] += 1

        command = commands.ClaimOffsets(
            group=self._consumer_group,
            partitions=tuple(keys),
            claimant=setting.chance.getrandbits(62),
            expected=expected,
        )
        query(self.network, self, setting.home(self._group), command, told)

    def _begin_some(self, timeout_ms: int) -> None:
        # Reads, processes, writes: several at once, each going on where the one before will end.
        if not self._knows_cursor or self.setting.chance.random() < 0.1:
            self.begin(timeout_ms)
            return
        for _ in range(self.setting.chance.randint(1, 3)):
            self.begin(timeout_ms).is_step = True

    def move_offsets(self, transaction: Transaction) -> None:
        """Reads some input, and writes output."""
        ready = [key for key, held in self._inputs.items() if self._is_ready(held)]
        if not ready or transaction.txid is None or not transaction.book.takes_records:
            return
        key = self.setting.chance.choice(ready)
        held = self._inputs[key]
        begins = held.cursor
        start = 0 if begins is None else begins.o2
        end = start + self.setting.chance.randint(1, 3)
        held.cursor = Place(end)
        transaction.work.inputs.append(Input(self._consumer_group, key, start, end))
        transaction.produce(self.setting.partition())
        step = OffsetStep(*key, begins, Position.at(end), held.claim)
        transaction.send_offsets(self._consumer_group, (step,))
        self.setting.history.counts["inputs processed"] += 1

    def not_committed(self, transaction: Transaction) -> None:
        """Goes back: its input must be consumed again, and what follows builds on nothing."""
        if not transaction.groups:
            return
        self._rewinds, self._knows_cursor = True, False
        # Most workers abort what builds on it; the coordinator must refuse the rest.
        if self.setting.chance.random() < 0.7:
            for later in self.transactions:
                if later is not transaction and later.groups and later.book.phase is Phase.OPEN:
                    later.end(Action.ABORT)
