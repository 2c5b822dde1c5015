"""Producers of one journal partition: which session may speak for a name, and what it began.

`admit` and `require` decide, the `replay…` methods apply; nothing else changes this state. No I/O,
clock or randomness.

Fencing rests on the PRODUCER records alone, so it survives the coordinator. A generation only
rises. A client with the current generation and the same session nonce is an honest re-attach, even
if the coordinator still takes its former, half-open socket for alive. With another nonce it is a
double start.

A producer that nobody uses is forgotten by a FORGET record. One number stands for all of these: the
floor, the highest of their generations. A name that is not known gets a generation above it, and
none at or below it is admitted. So whoever comes back under a forgotten name is never the newer one
(traps 8 and 32). A producer without a ``transactional.id`` raises no floor and knows none: nobody
else can have its name.

Source: Transactional Messaging in Kafka, "Transaction flow" (fencing); Transaction keys, "Key
Concepts".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from weakref import ref

from ...journal.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    DoubleStartError,
    ExpiredTransactionError,
    LogtxError,
    NotAllowedError,
    NotSupportedError,
    ProducerFencedError,
    SessionClosedError,
    TooManyTransactionsError,
    UnknownKeyError,
)
from ...journal.keys import FIRST_EPOCH, TransactionKey, is_key_name
from ...journal.producer_ids import is_anonymous
from ...journal.records.types import AbortReason, Begin, ProducerRecord, SnapshotProducer
from ..protocol import commands
from .decision import Fenced, Instant, ShardConfig
from .transactions import TransactionMetadata

NO_FLOOR: Final = -1
"""Stands for the floor of generations as long as nothing was forgotten."""
GENERATION_STEP_MAX: Final = 2**32
"""How far above the current generation a client may set its own. A mistaken one, such as a number
of nanoseconds, would otherwise leave no higher one to its successors."""


@dataclass(slots=True, kw_only=True)
class ProducerMetadata:
    """A producer's generation and its open transactions."""

    generation: int
    nonce: int
    """Nonce of the current session."""
    owner: str
    voided: bool = False
    """Whether no session may use this generation any more, after a double start or the deletion of
    a transaction key."""
    connected_ms: int = 0
    """When its session first connected: wall clock, milliseconds since 1970; 0 = unknown."""
    begins: dict[int, int] = field(default_factory=dict)
    """Request id of a BEGIN of this session → its offset, until the client has the answer."""
    answered_below: int = 0
    """The client of this session has the answers to all requests with an id below this number."""
    open: dict[int, TransactionMetadata] = field(default_factory=dict)
    """Its undecided transactions by BEGIN, including older generations' until they are aborted."""
    used_hour: int = 0
    """Hour of service in which its last PRODUCER or BEGIN was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The decision on a `Connect`, or on the deletion of a key."""

    generation: int = -1
    """The generation that the session speaks for."""
    refusal: LogtxError | None = None
    """A refusal that closes sessions or must be `fresh`; other refusals are raised."""
    records: tuple[ProducerRecord, ...] = ()
    """Records to append."""
    fenced: tuple[Fenced, ...] = ()
    """Sessions to close."""
    fresh: bool = False
    """Whether the answer would be stale if this coordinator was replaced."""


class ProducerRows:
    """Gives out all producers as they are now, as a snapshot's rows, while they change.

    To copy 100,000 of them takes a quarter of a second, in which a coordinator answers nobody. So a
    row is made when it is asked for, or before what it says of a producer changes.
    """

    def __init__(self, producers: Producers) -> None:
        """Notes which there are. Those rows that `producers` gave out before are to be dropped."""
        # Taken from its end: so the rows come in the order of the producers.
        self._left = dict(reversed(producers.items()))
        self._changed: list[SnapshotProducer] = []
        producers.rows = ref(self)

    def __iter__(self) -> Iterator[SnapshotProducer]:
        """Yields each row once."""
        while self._left or self._changed:
            yield self._changed.pop() if self._changed else _row(*self._left.popitem())

    def keep(self, name: str) -> None:
        """Makes the row of a producer that is about to change, unless it was made."""
        producer = self._left.pop(name, None)
        if producer is not None:
            self._changed.append(_row(name, producer))


def _row(name: str, producer: ProducerMetadata) -> SnapshotProducer:
    return SnapshotProducer(
        *(name, producer.generation, producer.nonce, producer.owner, producer.voided),
        *(producer.connected_ms, producer.answered_below),
        tuple(producer.begins.items()) if producer.begins else (),
        producer.used_hour,
    )


class Producers(dict[str, ProducerMetadata]):
    """Every producer that the journal partition has heard of and not forgotten, by its id."""

    def __init__(self) -> None:
        """Knows none."""
        super().__init__()
        self.floor = NO_FLOOR
        """Highest generation that was forgotten."""
        self.rows: ref[ProducerRows] | None = None
        """The rows that a snapshot takes at present."""

    def _keep(self, name: str) -> None:
        rows = None if self.rows is None else self.rows()
        if rows is None:
            self.rows = None
        else:
            rows.keep(name)

    # ---- what the journal says ------------------------------------------------------------------

    def replay(self, record: ProducerRecord, hour: int) -> list[tuple[int, AbortReason]]:
        """Applies a PRODUCER record, appended in this hour of service.

        Returns:
            The BEGINs of the transactions that it fences, which are to be aborted, and why.
        """
        if self.rows is not None:
            self._keep(record.producer_id)
        producer = self.get(record.producer_id)
        if producer is None:
            producer = ProducerMetadata(
                generation=record.generation, nonce=record.session_nonce, owner=record.owner
            )
            self[record.producer_id] = producer
        elif (producer.generation, producer.nonce) != (record.generation, record.session_nonce):
            producer.begins.clear()
            producer.answered_below = 0
        producer.generation, producer.nonce = record.generation, record.session_nonce
        producer.owner, producer.voided = record.owner, record.voided
        producer.connected_ms, producer.used_hour = record.connected_ms, hour
        return list(self.fenced(producer.open.values())) if producer.open else []

    def replay_begin(self, record: Begin, transaction: TransactionMetadata, hour: int) -> None:
        """Applies a BEGIN record, which opened `transaction` in this hour of service."""
        if self.rows is not None:
            self._keep(record.producer_id)
        producer = self[record.producer_id]
        producer.open[transaction.begin] = transaction
        producer.used_hour = hour
        begins = producer.begins
        answered_below = record.answered_below
        producer.answered_below = max(producer.answered_below, answered_below)
        # Ids ascend, but for some that were lost with a stream and come again. Those stay until the
        # ones before them go: each BEGIN costs the same, whatever is unanswered.
        while begins and (oldest := next(iter(begins))) < answered_below:
            del begins[oldest]
        begins[record.request_id] = transaction.begin

    def replay_decided(self, transaction: TransactionMetadata) -> None:
        """Removes a transaction that is decided from its producer's open ones."""
        self[transaction.producer_id].open.pop(transaction.begin, None)

    def replay_forget(self, names: Iterable[str]) -> None:
        """Forgets producers, which have nothing open."""
        for name in names:
            producer = self.pop(name, None)
            if producer is not None and not is_anonymous(name):
                self.floor = max(self.floor, producer.generation)

    def fenced(
        self, still_open: Iterable[TransactionMetadata]
    ) -> Iterator[tuple[int, AbortReason]]:
        """Yields the BEGINs of those of `still_open` whose generation may not go on, and why."""
        for transaction in still_open:
            producer = self[transaction.producer_id]
            if producer.voided:
                deleted = is_key_name(transaction.producer_id)
                reason = AbortReason.KEY_DELETED if deleted else AbortReason.DOUBLE_START
                yield transaction.begin, reason
            elif transaction.generation < producer.generation:
                yield transaction.begin, AbortReason.FENCED

    # ---- what clients ask -----------------------------------------------------------------------

    def admit(self, command: commands.Connect, now: Instant) -> Admission:
        """Decides which session may speak for a producer id from now on.

        Raises:
            ProducerFencedError: a newer generation has connected.
            NotAllowedError: a newer connection of this transaction key was made, or the key was
                deleted.
            ConfigError: the client's owner may not use this producer id, or the generation is too
                far above the current one.
        """
        if is_key_name(command.producer_id):
            return self._admit_key(command, now)
        producer = self.get(command.producer_id)
        asked = command.generation
        _check_step(command, self.floor if producer is None else producer.generation)
        if producer is None:
            floor = NO_FLOOR if is_anonymous(command.producer_id) else self.floor
            if asked is not None and asked <= floor:
                raise ProducerFencedError(
                    f"producer {command.producer_id!r} of generation {asked} is not known, and may"
                    f" be an old one that was forgotten: a producer that is new here begins above"
                    f" generation {floor}"
                )
            return self._admitted(command, asked if asked is not None else floor + 1, now)
        if asked is not None and asked < producer.generation:
            raise ProducerFencedError(
                f"producer {command.producer_id!r} of generation {asked} was replaced by"
                f" generation {producer.generation}"
            )
        same = producer.nonce == command.nonce and not producer.voided
        if same and asked in (None, producer.generation):
            # An honest re-attach, over a socket that may be half open, or a retried request.
            return Admission(generation=producer.generation)
        if asked is None or asked > producer.generation:
            generation = producer.generation + 1 if asked is None else asked
            return self._admitted(command, generation, now, fences=producer)
        return self._double_start(command.producer_id, producer)

    @staticmethod
    def _admitted(
        command: commands.Connect,
        generation: int,
        now: Instant,
        fences: ProducerMetadata | None = None,
    ) -> Admission:
        name = command.producer_id
        record = ProducerRecord(
            producer_id=name,
            generation=generation,
            session_nonce=command.nonce,
            owner=command.owner,
            connected_ms=now.wall_ms,
        )
        # A client whose session was voided before it learnt its generation may come again with the
        # same nonce. It is not fenced: closed by its own connection, it would believe that it was
        # replaced.
        if fences is None or fences.nonce == command.nonce:
            return Admission(generation=generation, records=(record,))
        error = (
            ExpiredTransactionError(
                f"a newer connection of transaction key {name!r}, of epoch {generation}, closed"
                " this one and aborted its transaction"
            )
            if is_key_name(name)
            else ProducerFencedError(f"producer {name!r} was replaced by generation {generation}")
        )
        fenced = (Fenced(name, fences.nonce, error),)
        return Admission(generation=generation, records=(record,), fenced=fenced)

    def _admit_key(self, command: commands.Connect, now: Instant) -> Admission:
        """Source: Transaction keys, "High-Level Design"; the epoch there is the generation here."""
        name, nonce = command.producer_id, command.nonce
        if TransactionKey.parse(name).owner != command.owner:
            raise ConfigError(f"transaction key {name!r} is not one of owner {command.owner!r}")
        asked = FIRST_EPOCH if command.generation is None else command.generation
        producer = self.get(name)
        epoch = FIRST_EPOCH if producer is None else producer.generation
        if asked > epoch:
            # The client takes this refusal as final, so it must be fresh: a coordinator that was
            # replaced and does not know it has not seen the epochs given since.
            error = NotAllowedError(f"epoch {asked} of transaction key {name!r} was never given")
            return Admission(refusal=error, fresh=True)
        if producer is None:
            return self._admitted(command, epoch + 1, now)
        if asked not in (FIRST_EPOCH, epoch):
            raise NotAllowedError(
                f"the connection of epoch {asked} of transaction key {name!r} was replaced by that"
                f" of epoch {epoch}"
            )
        if producer.voided:
            if asked == epoch:
                raise NotAllowedError(f"transaction key {name!r} of epoch {epoch} was deleted")
        elif producer.nonce == nonce:
            # An honest re-attach; or a first connection whose answer was lost.
            return Admission(generation=epoch)
        return self._admitted(command, epoch + 1, now, fences=producer)

    @staticmethod
    def _double_start(name: str, producer: ProducerMetadata) -> Admission:
        error = DoubleStartError(
            f"two producers {name!r} started with generation {producer.generation}: both are"
            f" closed and what they began is aborted; start one of them with a higher generation"
        )
        return Admission(
            refusal=error,
            records=() if producer.voided else (_voided(name, producer),),
            fenced=(Fenced(name, producer.nonce, error),),
        )

    def delete_key(self, command: commands.DeleteKey) -> Admission:
        """Decides the deletion of a transaction key: its epoch becomes void and stays used up.

        If the epoch were forgotten, the next client would start again at epoch 0, and an old client
        of epoch 7 would come back as the newer one (trap 32).

        Raises:
            UnknownKeyError: no client ever connected with it.
        """
        name = command.name
        producer = self.get(name)
        if producer is None or not is_key_name(name):
            raise UnknownKeyError(f"there is no transaction key {name!r}")
        if producer.voided:
            return Admission(fresh=True)
        error = ExpiredTransactionError(
            f"transaction key {name!r} was deleted and its transaction aborted"
        )
        return Admission(
            records=(_voided(name, producer),), fenced=(Fenced(name, producer.nonce, error),)
        )

    def require(self, session: commands.SessionId) -> ProducerMetadata:
        """Returns the producer that a session speaks for.

        Raises:
            SessionClosedError: the session is not known here, and must connect again.
            ProducerFencedError: a newer generation or session replaced it for good.
            DoubleStartError: its generation was voided by a double start.
            ExpiredTransactionError: its transaction key was deleted, or has a newer connection.
        """
        name = session.producer_id
        producer = self.get(name)
        if producer is None or session.generation > producer.generation:
            raise SessionClosedError(f"producer {name!r} must connect again")
        current = (session.generation, session.nonce) == (producer.generation, producer.nonce)
        if current and not producer.voided:
            return producer
        if is_key_name(name):
            deleted = session.generation == producer.generation and producer.voided
            raise ExpiredTransactionError(
                f"epoch {session.generation} of transaction key {name!r} was"
                + (" deleted" if deleted else f" replaced by epoch {producer.generation}")
            )
        if producer.voided:
            raise DoubleStartError(
                f"generation {producer.generation} of producer {name!r} was voided by a double"
                " start"
            )
        raise ProducerFencedError(
            f"producer {name!r} of generation {session.generation} was replaced"
            f" by generation {producer.generation}"
        )

    def check_may_begin(self, session: commands.SessionId) -> None:
        """Limits a transaction key to one open transaction.

        Raises:
            ConcurrentTransactionsError: the key has one.
        """
        if is_key_name(session.producer_id) and self[session.producer_id].open:
            raise ConcurrentTransactionsError(
                f"transaction key {session.producer_id!r} has an open transaction: commit or abort"
                " it before the next one begins"
            )

    def begun(self, command: commands.Begin) -> int | None:
        """Returns the offset of the BEGIN that answered this request before; None if it is new.

        Raises:
            SessionClosedError: the answer was received and is forgotten; or see `require`.
            ProducerFencedError, DoubleStartError, ExpiredTransactionError: see `require`.
        """
        producer = self.require(command.session)
        known = producer.begins.get(command.request_id)
        if known is None and command.request_id < producer.answered_below:
            # A duplicate from a broken stream, read late: no client would ever end the
            # transaction that it opens.
            raise SessionClosedError(f"request {command.request_id} was answered before")
        return known


def _check_step(command: commands.Connect, current: int) -> None:
    asked, highest = command.generation, current + GENERATION_STEP_MAX
    if asked is not None and asked > highest:
        raise ConfigError(
            f"generation {asked} of producer {command.producer_id!r} is too far above the current"
            f" one, {current}: the next may be {highest} at most"
        )


def _voided(name: str, producer: ProducerMetadata) -> ProducerRecord:
    return ProducerRecord(
        producer_id=name,
        generation=producer.generation,
        session_nonce=producer.nonce,
        owner=producer.owner,
        voided=True,
        connected_ms=producer.connected_ms,
    )


def check_room(
    config: ShardConfig, partition: int, producer: ProducerMetadata, open_count: int
) -> None:
    """Refuses a transaction beyond the limits.

    Args:
        config: the limits.
        partition: number of the journal partition.
        producer: the producer that wants to begin.
        open_count: open transactions of all producers in the journal partition.

    Raises:
        TooManyTransactionsError: this producer, or all together, have as many open as allowed.
    """
    if len(producer.open) >= config.max_open_transactions_per_producer:
        raise TooManyTransactionsError(
            f"the producer has {len(producer.open)} transactions open, as many as allowed"
            " (--max-open-transactions-per-producer)"
        )
    if open_count >= config.max_open_transactions:
        raise TooManyTransactionsError(
            f"{open_count} transactions are open in journal partition {partition}, as many as"
            " allowed (--max-open-transactions)"
        )


def check_timeout(config: ShardConfig, timeout_ms: int) -> None:
    """Refuses a transaction whose timeout is zero or longer than allowed.

    Raises:
        NotSupportedError: its timeout is out of range.
    """
    if not 0 < timeout_ms <= config.max_timeout_ms:
        raise NotSupportedError(
            f"a timeout of {timeout_ms} ms: this coordinator allows 1 to"
            f" {config.max_timeout_ms} ms (--max-timeout-ms)"
        )
