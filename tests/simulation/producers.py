"""Producers: instances of an application that has several transactions under way.

An instance writes, moves input offsets, commits, aborts, hangs, and crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action
from logtx.journal.control import OWN_BRANCH, TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.producer.core.bookkeeping import Phase
from logtx.producer.core.tally import Floors

from .history import Closed, Started
from .logs import Pipe
from .network import Network, Session, query
from .setting import Setting
from .topology import INPUT
from .transaction import Host, Transaction

IN_FLIGHT_MAX: Final = 3
"""Most transactions under way at once."""
STEP_MS: Final = (4, 36)
"""Least and most virtual time between two steps."""
IDLE_MS: Final = (50, 100)
"""The same when it is stopping."""


class Producer(Host):
    """One instance of an application with a producer id; another instance replaces it."""

    def __init__(
        self,
        setting: Setting,
        network: Network,
        name: str,
        application: str,
        producer_id: str,
        *,
        group: str,
        consumer_group: str,
        generation: int | None,
        on_gone: Callable[[Producer], None],
    ) -> None:
        """Connects, and then works by itself.

        Args:
            setting: of the world.
            network: the way to the coordinators.
            name: this instance's own.
            application: what it is an instance of.
            producer_id: shared with its predecessors and successors.
            group: transaction group.
            consumer_group: the group whose input it processes.
            generation: its generation, if the application manages it.
            on_gone: called when its session is closed for good.
        """
        super().__init__(setting.scheduler, name)
        self.setting = setting
        self.network = network
        self.application = application
        self.producer_id = producer_id
        self.floors = Floors()
        self.transactions: list[Transaction] = []
        self.stopping = False
        self._on_gone = on_gone
        self._group, self._consumer_group = group, consumer_group
        self._input: TopicPartition = (INPUT, setting.chance.randrange(2))
        self._cursor: Place | None = None
        self._knows_cursor = self._asks_cursor = self._bound = self._binds = False
        self._pipes: dict[tuple[TopicPartition, int], Pipe] = {}
        self._values = 0
        nonce = setting.chance.getrandbits(62)
        partition = setting.home(group)
        self.session = Session(
            network, self, producer_id, nonce, partition, generation, self._closed
        )
        setting.history.sessions.append(Started(application, name))
        self.later(1, self.step)

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def pipe(self, partition: TopicPartition, branch: int) -> Pipe:
        pipe = self._pipes.get((partition, branch))
        if pipe is None:
            pipe = self._pipes[partition, branch] = self.setting.pipe(self, "data append")
        return pipe

    def _closed(self, error: LogtxError) -> None:
        self.setting.note(self.name, "closed:", error)
        self.setting.history.counts["sessions closed for good"] += 1
        application = self.application
        self.setting.history.sessions.append(
            Closed(
                application, self.producer_id, self.name, error, self.session.connected is not None
            )
        )
        for transaction in self.transactions:
            transaction.fatal(error)
        self._on_gone(self)

    @property
    def idle(self) -> bool:
        """Whether it has nothing left to do or to learn."""
        return not self.transactions and self.session.idle

    # ---- the application ------------------------------------------------------------------------

    def step(self) -> None:
        """Does something, and plans the next step."""
        chance = self.setting.chance
        self.later(chance.randint(*(IDLE_MS if self.stopping else STEP_MS)), self.step)
        self.transactions = [t for t in self.transactions if not t.over]
        if self.session.failure is not None or self.session.connected is None:
            return
        if not self._binds:
            self._bind()
        if self.stopping:
            self._wind_up()
            return
        drawn = chance.random()
        now_ms = self.setting.now_ms
        working = [
            t
            for t in self.transactions
            if t.book.phase is Phase.OPEN and t.hangs_until_ms <= now_ms
        ]
        if not working or (drawn < 0.15 and len(self.transactions) < IN_FLIGHT_MAX):
            if len(self.transactions) < 2 * IN_FLIGHT_MAX:
                self._begin_some(chance.choice((400, 900, 2_000)))
        elif drawn < 0.22:
            self.plain(self.setting.partition())
        else:
            self._work(chance.choice(working))

    def _begin_some(self, timeout_ms: int) -> None:
        chance = self.setting.chance
        if not self._knows_cursor or chance.random() < 0.6:
            self.begin(timeout_ms)
            return
        # Input 0→1, 1→2 …: each transaction goes on where the one before will end.
        for _ in range(chance.randint(2, 3)):
            step = self.begin(timeout_ms)
            step.is_step = True
            step.produce(self.setting.partition())

    def begin(self, timeout_ms: int) -> Transaction:
        """Opens a transaction."""
        named = (self.setting.partition(),) if self.setting.chance.random() < 0.3 else ()
        transaction = Transaction(self, timeout_ms, named)
        self.transactions.append(transaction)
        return transaction

    def _work(self, transaction: Transaction) -> None:
        setting, drawn = self.setting, self.setting.chance.random()
        if transaction.book.cause is not None or drawn > 0.95:
            transaction.end(Action.ABORT)
        elif drawn < 0.4:
            for _ in range(setting.chance.randint(1, 3)):
                transaction.produce(setting.partition())
        elif drawn < 0.45:
            transaction.register()
        elif drawn < 0.52:
            partitions = [setting.partition() for _ in range(setting.chance.randint(1, 3))]
            transaction.branch(partitions, accept=setting.chance.random() < 0.7)
        elif drawn < 0.68:
            self.move_offsets(transaction)
        elif drawn < 0.7:
            transaction.hangs_until_ms = setting.now_ms + setting.chance.randint(200, 2_500)
        else:
            transaction.end(Action.COMMIT)

    def _wind_up(self) -> None:
        for transaction in self.transactions:
            forgotten = transaction.hangs_until_ms > self.setting.now_ms
            if transaction.book.phase is Phase.OPEN and not forgotten:
                commits = transaction.book.takes_records
                transaction.end(Action.COMMIT if commits else Action.ABORT)

    def plain(self, key: TopicPartition) -> None:
        """Writes a record outside of any transaction."""
        setting = self.setting
        value = b"%s/%d" % (self.name.encode(), self.next_value())
        handed_at = setting.history.tick()

        def land() -> int | None:
            offset = setting.broker.append_data(key, None, value, self.name, handed_at)
            setting.note(self.name, f"{key} offset {offset}: plain", value.decode())
            return offset

        self.pipe(key, OWN_BRANCH).append(land, lambda _: None)

    def move_offsets(self, transaction: Transaction) -> None:
        if not self._bound:
            return
        if not self._knows_cursor:
            self._ask_cursor()
        elif transaction.txid is not None and transaction.book.takes_records:
            begins, by = self._cursor, self.setting.chance.randint(1, 3)
            ends = (0 if begins is None else begins.o2) + by
            self._cursor = Place(ends)
            step = OffsetStep(*self._input, begins, Position.at(ends))
            transaction.send_offsets(self._consumer_group, (step,))
            self.setting.history.counts["offsets sent"] += 1

    def not_committed(self, transaction: Transaction) -> None:
        if transaction.groups:
            self._knows_cursor = False

    def continue_input(self, hold_ms: int) -> None:
        """Lets transactions wait for each other: each continues the input of the one before.

        The first one holds its input for `hold_ms`, and is committed then. The others ask for their
        commits at once, which must follow it without delay.
        """
        if not (self._bound and self._knows_cursor):
            return
        self.setting.history.counts["commits that wait in a chain"] += 1
        first, second, third = (self.begin(4 * hold_ms) for _ in range(3))
        first.holds_input = second.is_step = third.is_step = True
        first.hangs_until_ms = self.setting.now_ms + hold_ms

    def learn_cursor(self) -> None:
        """Asks where its input goes on, unless it knows."""
        if self._bound and not self._knows_cursor:
            self._ask_cursor()

    def _bind(self) -> None:
        self._binds = True

        def bound(reply: commands.Reply) -> None:
            assert isinstance(reply, commands.Binding), reply
            self._bound = reply.transaction_group == self._group
            self._ask_cursor()

        command = commands.BindGroup(group=self._consumer_group, transaction_group=self._group)
        query(self.network, self, self.setting.home(self._consumer_group), command, bound)

    def _ask_cursor(self) -> None:
        if self._asks_cursor:
            return
        self._asks_cursor = True

        def told(reply: commands.Reply) -> None:
            self._asks_cursor = False
            if isinstance(reply, commands.GroupOffsets):
                position = reply.offsets.get(self._input)
                self._cursor = None if position is None else position.place
                self._knows_cursor = True

        command = commands.FetchOffsets(group=self._consumer_group, partitions=(self._input,))
        query(self.network, self, self.setting.home(self._group), command, told)
