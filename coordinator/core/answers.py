"""Answers that don't depend on a shard's state: permanent refusals, and fates. Pure."""

from __future__ import annotations

from ...journal.errors import (
    LogtxError,
    NotSupportedError,
    ProducerFencedError,
    RequestTooLargeError,
    TransactionAbortedError,
    TransactionCommittedError,
    UnknownTopicError,
    UnknownTransactionError,
)
from ...journal.state import State
from ..protocol import commands


def is_fact(error: LogtxError) -> bool:
    """Returns whether a refusal stays true even if another coordinator is the owner by now.

    Any other refusal could be stale.
    """
    # Generations only rise, and decisions never change.
    return isinstance(
        error,
        ProducerFencedError
        | TransactionAbortedError
        | TransactionCommittedError
        | UnknownTopicError
        | RequestTooLargeError
        | NotSupportedError,
    )


def answer_fate(command: commands.Command, outcome: commands.Outcome) -> commands.Reply:
    """Answers a command about a transaction that only the journal remembers.

    The shard knows every unfinished transaction. So an unfinished fate can only belong to the void
    BEGIN of a replaced coordinator. No client was told its TxId: the transaction counts as never
    begun, not as aborted.
    """
    if not outcome.state.finished:
        outcome = commands.Outcome(outcome.txid, State.UNKNOWN)
    txid, state = outcome.txid, outcome.state
    if isinstance(command, commands.GetOutcome):
        return outcome
    if state is State.UNKNOWN:
        return UnknownTransactionError(f"no transaction {txid} is known")
    if isinstance(command, commands.End) and state.commits == (
        command.action is commands.Action.COMMIT
    ):
        return outcome
    if isinstance(command, commands.AbortTransaction) and state.aborts:
        return outcome
    if state.commits:
        return TransactionCommittedError(f"transaction {txid} is committed")
    return TransactionAbortedError(f"transaction {txid} was aborted")
