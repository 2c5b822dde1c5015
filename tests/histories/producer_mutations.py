"""Mends of the producer's shell, each taken back, and the checker that must notice.

`test_producer.py` shows that each is caught by the checker named for it, by the seed named for it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

from logtx.coordinator.protocol.commands import Outcome
from logtx.integration.block import Block
from logtx.journal.errors import LogtxError, TransactionAbortedError, TransactionStateError
from logtx.journal.position import Position
from logtx.producer import plain_offsets, producer
from logtx.producer.core.tally import Failures
from logtx.producer.futures import EndFuture
from logtx.producer.producer import Producer
from logtx.producer.sender import Sender
from logtx.producer.sender_thread import SenderThread
from logtx.producer.transaction_shell import TransactionShell
from logtx.producer.writer import Writer

from ..simulation.registry import Patch
from .taken_back import Mutation


def decided_is_ended(patch: Patch) -> None:
    """A block takes a transaction that is over for one that the application ended."""
    patch(TransactionShell, "_was_ended", property(lambda self: not self.is_open))


def plain_once_it_is_over(patch: Patch) -> None:
    """`Producer.produce` writes plainly whenever no transaction is open."""

    def mutant(self: Producer, current: TransactionShell) -> bool:
        self._transactional = False
        return current.is_open

    patch(Producer, "_goes_into", mutant)


def metadata_is_not_read(patch: Patch) -> None:
    """The place within a transaction is left out of what a consumer's positions say."""

    class Places:
        @staticmethod
        def from_metadata(offset: int, metadata: object) -> Position:
            del metadata
            return Position.at(offset)

    patch(plain_offsets, "Position", Places)


def steps_before_they_are_checked(patch: Patch) -> None:
    """A consumer hands its steps out before its positions are checked."""

    def mutant(self: Any) -> Any:
        steps = self._source.offset_steps()
        for position in self._positions:
            if steps and position.offset != steps[-1].to.o1:
                self._source.offset_steps(self._positions)
        return steps

    patch(producer._UpTo, "offset_steps", mutant)


def interrupted_is_ignored(patch: Patch) -> None:
    """Nothing follows from an exception that came in `produce`."""
    patch(Writer, "_interrupted", lambda *_: None)


def late_records_are_dropped(patch: Patch) -> None:
    """A `Block` swallows what is written to it after its transaction was decided."""

    def mutant(self: Block, *arguments: Any, **more: Any) -> None:
        if self.failure is not None:
            return
        try:
            self.txn.produce(*arguments, **more)
        except TransactionStateError as error:
            if not self.txn.is_decided:
                raise
            self.failure = TransactionAbortedError(str(error))
        except LogtxError as error:
            self.failure = error
            self.txn.abort_async()

    patch(Block, "produce", mutant)


def idle_is_false(patch: Patch) -> None:
    """A producer is as true as its length."""
    patch(Producer, "__bool__", lambda self: len(self) > 0)


def callbacks_on_our_threads(patch: Patch) -> None:
    """Callbacks of futures are called on the thread that completes them."""
    patch(EndFuture, "add_done_callback", Future[Outcome].add_done_callback)


def waits_in_reports(patch: Patch) -> None:
    """Delivery callbacks may wait for what their own thread does."""
    patch(Sender, "check_may_wait", lambda *_: None)


def callbacks_raise_anywhere(patch: Patch) -> None:
    """What a callback raised comes out of the next `produce`."""
    produce = Writer.produce

    def mutant(self: Writer, *arguments: Any, **more: Any) -> None:
        produce(self, *arguments, **more)
        self._sender.raise_kept()

    patch(Writer, "produce", mutant)


def dropped_is_not_told(patch: Patch) -> None:
    """Nobody is told of records that were kept for a TxId and dropped."""
    patch(Writer, "_on_dropped", lambda *_: None)


def nobody_closes(patch: Patch) -> None:
    """A producer that is dropped is not closed."""
    patch(producer, "_on_dropped", lambda *_: None)


def stopped_for_good(patch: Patch) -> None:
    """A librdkafka producer that stopped is not replaced."""
    patch(SenderThread, "replaced", lambda *_: False)


def refused_late_is_not_told(patch: Patch) -> None:
    """Nobody is told of a record that is refused when the TxId has come."""
    on_dropped = Writer._on_dropped

    def mutant(self: Writer, records: Any, why: Any = None) -> None:
        if why is None:
            on_dropped(self, records)

    patch(Writer, "_on_dropped", mutant)


def interrupted_places_are_kept(patch: Patch) -> None:
    """A transaction that an exception kept from the application stays open."""
    patch(TransactionShell, "forget", lambda _: None)


def purges_take_all(patch: Patch) -> None:
    """A purge fails the records of all producers that share librdkafka's."""
    patch(Sender, "_claim", lambda _: True)


def a_close_fails_all(patch: Patch) -> None:
    """A producer that closes gives up the records of all that share librdkafka's."""
    leave = SenderThread.leave

    def mutant(self: SenderThread, member: Any, timeout_s: float) -> None:
        self.producer.purge()
        leave(self, member, timeout_s)

    patch(SenderThread, "leave", mutant)


def sent_again_is_believed(patch: Patch) -> None:
    """Nothing follows for records under way from another one that failed."""
    patch(Failures, "may_be_twice", lambda *_: False)


MUTATIONS: Final = (
    Mutation(1, "blocks", 8, decided_is_ended),
    Mutation(2, "plainly", 4, plain_once_it_is_over),
    Mutation(5, "offsets", 2, metadata_is_not_read),
    Mutation(6, "offsets", 8, steps_before_they_are_checked),
    Mutation(7, "hangs", 48, interrupted_is_ignored),
    Mutation(9, "exactly", 35, late_records_are_dropped),
    Mutation(11, "errors", 4, idle_is_false),
    Mutation(13, "hangs", 30, callbacks_on_our_threads),
    Mutation(13, "hangs", 164, waits_in_reports),
    Mutation(16, "errors", 10, callbacks_raise_anywhere),
    Mutation(17, "reports", 4, dropped_is_not_told),
    Mutation(18, "closed", 2, nobody_closes),
    Mutation(25, "goes-on", 4, stopped_for_good),
    Mutation(0, "reports", 4, refused_late_is_not_told),
    Mutation(0, "goes-on", 1664, interrupted_places_are_kept, further_seeds=(1860,)),
    Mutation(0, "neighbour", 54, purges_take_all),
    Mutation(0, "neighbour", 27, a_close_fails_all),
    Mutation(0, "exactly", 141, sent_again_is_believed),
)
