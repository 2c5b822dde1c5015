"""The searches of queues, and the rules of theirs that are dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from logtx.coordinator.core import dispatch, shard
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.dispatch import Dispatch
from logtx.coordinator.core.queues import Queues
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.subscriptions import SubscribedPartition, Subscriptions
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.protocol import commands
from logtx.journal.acks import Acks
from logtx.journal.errors import AckConflictError
from logtx.journal.spans import Span, SpanMap

from ..simulation.mutations import Patch
from .queue_world import QueueBudget, QueueScenario

PLAIN: Final = QueueScenario(
    "queue: plain", "a plain acknowledgement beside two transactions", QueueBudget(plain=1)
)
EXPIRY: Final = QueueScenario(
    "queue: expiry", "leases run out or are given back", QueueBudget(expire=1, release=1)
)
CUMULATIVE: Final = QueueScenario(
    "queue: cumulative",
    "cumulative acknowledgements, leases that run out, a plain acknowledgement",
    QueueBudget(plain=1, expire=1),
    cumulative=True,
)
REPEATED: Final = QueueScenario(
    "queue: repeated", "a request comes late, or once more", QueueBudget(late=1, again=1)
)
OWNERS: Final = QueueScenario(
    "queue: owners",
    "another coordinator takes over, the former one serves on",
    QueueBudget(take_over=1, zombie=1),
)
SLOW: Final = QueueScenario(
    "queue: slow",
    "an abort's append, and an answer about the journal's end, are on their way",
    QueueBudget(slow_append=1, slow_ask=1, take_over=1),
)
CRASHES: Final = QueueScenario(
    "queue: crashes",
    "a consumer crashes",
    QueueBudget(consumer_crash=1),
)

RESET: Final = QueueScenario(
    "queue: reset",
    "consumers leave, an operator resets the subscription, they come back",
    QueueBudget(plain=1, late=1, again=1, reset=1, order_again=1),
    messages=1,
)
DELETED: Final = QueueScenario(
    "queue: deleted",
    "the same, and the subscription is deleted",
    QueueBudget(plain=1, late=1, delete=1, order_again=1),
    messages=1,
)


def _with(scenario: QueueScenario, **budget: int) -> QueueScenario:
    return replace(scenario, budget=QueueBudget(**budget))


ABORTING: Final = _with(SLOW, slow_append=1)


def plain_deletes_pending(patch: Patch) -> None:
    """A plain acknowledgement deletes what a transaction has pending."""
    effective = Subscriptions.effective

    def mutant(self: Subscriptions, group: str, acks: Any) -> Any:
        for each in acks:
            for span in each.spans:
                self.partition(group, each.partition).pending.remove(span)
        return effective(self, group, acks)

    patch(Subscriptions, "effective", mutant)


def pending_is_leased(patch: Patch) -> None:
    """What is pending in a transaction may be given out."""
    available = dispatch._available

    def mutant(known: SubscribedPartition, here: Any, span: Span) -> Any:
        seen: Any = SimpleNamespace(deleted=known.deleted, pending=SpanMap())
        return available(seen, here, span)

    patch(dispatch, "_available", mutant)


def deleted_is_leased(patch: Patch) -> None:
    """What is deleted may be given out."""
    available = dispatch._available

    def mutant(known: SubscribedPartition, here: Any, span: Span) -> Any:
        seen: Any = SimpleNamespace(deleted=SpanMap(), pending=known.pending)
        return available(seen, here, span)

    patch(dispatch, "_available", mutant)
    patch(SubscribedPartition, "start", property(lambda _: dispatch.ORIGIN))


def release_takes_pending_back(patch: Patch) -> None:
    """A release of what is pending in a transaction frees it."""
    release = Dispatch.release

    def mutant(
        self: Dispatch, group: str, consumer: int, acks: Acks, *rest: Any, **more: Any
    ) -> Any:
        for span in acks.spans:
            self._subscriptions.partition(group, acks.partition).pending.remove(span)
        return release(self, group, consumer, acks, *rest, **more)

    patch(Dispatch, "release", mutant)


def ended_transactions_acknowledge(patch: Patch) -> None:
    """An acknowledgement of a transaction that has ended is taken."""

    def mutant(self: Shard, command: commands.AddAcks, ref: Any) -> Decision:
        transaction: Any = SimpleNamespace(begin=command.txid.offset)
        return self.queues.add_acks(transaction, command, ref)

    patch(Shard, "_handle_add_acks", mutant)


def aborts_free_all(patch: Patch) -> None:
    """An abort frees what others have pending, too."""
    decided = Subscriptions.replay_decided

    def mutant(self: Subscriptions, begin: int, *, committed: bool) -> Any:
        if not committed:
            for row in list(self.rows()):
                for _, span in row.pending:
                    self.partition(row.group, row.partition).pending.remove(span)
        return decided(self, begin, committed=committed)

    patch(Subscriptions, "replay_decided", mutant)


def pending_in_memory(patch: Patch) -> None:
    """What a transaction acknowledges is not in the journal."""
    add_acks = Queues.add_acks

    def mutant(self: Queues, transaction: Any, command: commands.AddAcks, ref: Any) -> Decision:
        decision = add_acks(self, transaction, command, ref)
        for record in decision.records:
            self.replay(0, record)  # type: ignore[arg-type]
        return Decision(replies=decision.replies)

    patch(Queues, "add_acks", mutant)


def _passing_over(*, deleted: bool) -> Any:
    def mutant(
        self: Subscriptions, begin: int, group: str, acks: Iterable[Acks]
    ) -> tuple[Acks, ...]:
        added: list[Acks] = []
        for each in acks:
            known = self.partition(group, each.partition)
            wanted: list[Span] = []
            for span in each.spans:
                if known.deleted.touches(span) and not deleted:
                    raise AckConflictError("deleted")
                free = known.deleted.free(span)
                own = [s for s in free if {o for _, o in known.pending.within(s)} <= {begin}]
                wanted += own if deleted else free
            if wanted:
                added.append(Acks(each.partition, tuple(wanted)))
        return tuple(added)

    return mutant


def passes_over_deleted(patch: Patch) -> None:
    """An acknowledgement passes over what is deleted."""
    patch(Subscriptions, "check", _passing_over(deleted=True))


def takes_over_pending(patch: Patch) -> None:
    """An acknowledgement takes over what others have pending."""
    patch(Subscriptions, "check", _passing_over(deleted=False))


def stale_leases(patch: Patch) -> None:
    """A lease is told without asking whether the owner was replaced."""
    acquire = Queues._handle_acquire

    def mutant(self: Queues, *args: Any) -> Decision:
        decision = acquire(self, *args)
        return Decision(records=decision.records, replies=decision.replies)

    patch(Queues, "_handle_acquire", mutant)


def leases_before_aborts(patch: Patch) -> None:
    """A lease waits for the journal's end, and not for the appends in flight."""
    park = Tenure._park

    def mutant(self: Tenure, parked: Any) -> None:
        if isinstance(getattr(parked.item, "reply", None), commands.Leases):
            self._tell(parked.item)
        else:
            park(self, parked)

    patch(Tenure, "_park", mutant)


def leases_as_they_were(patch: Patch) -> None:
    """A lease is told as it was when it was made."""
    patch(Queues, "told", lambda _queues, reply, _now_ms: reply)


def commit_without_pending(patch: Patch) -> None:
    """A commit does not delete what it has pending."""
    decided = Subscriptions.replay_decided
    patch(
        Subscriptions,
        "replay_decided",
        lambda self, begin, *, committed: decided(self, begin, committed=False),  # noqa: ARG005
    )


def _in_era_of_now(self: Queues, command: Any) -> Any:
    subscription = self.subscriptions.get(command.group)
    return command if subscription is None else replace(command, era=subscription.era)


def plain_of_before(patch: Patch) -> None:
    """A plain acknowledgement counts, whenever its message was given out."""
    handle = Queues._handle_acknowledge
    patch(
        Queues,
        "_handle_acknowledge",
        lambda self, command, *rest: handle(self, _in_era_of_now(self, command), *rest),
    )


def acks_of_before(patch: Patch) -> None:
    """An acknowledgement in a transaction counts, whenever its message was given out."""
    add_acks = Queues.add_acks
    patch(
        Queues,
        "add_acks",
        lambda self, transaction, command, ref: add_acks(
            self, transaction, _in_era_of_now(self, command), ref
        ),
    )


def held_of_before(patch: Patch) -> None:
    """Who comes back has what it names, whenever that was given out."""
    handle = Queues._handle_attach
    patch(
        Queues,
        "_handle_attach",
        lambda self, command, *rest: handle(self, _in_era_of_now(self, command), *rest),
    )


def orders_of_before(patch: Patch) -> None:
    """A reset ends whatever era there is."""
    ends = shard.end_era

    def mutant(queues: Queues, command: Any, *rest: Any) -> Decision:
        return ends(queues, _in_era_of_now(queues, command), *rest)

    patch(shard, "end_era", mutant)


def eras_of_ones_own(patch: Patch) -> None:
    """A subscription that is made anew counts its eras from 0 on."""
    join = Subscriptions._join

    def mutant(self: Subscriptions, record: Any) -> None:
        is_new = record.group not in self
        join(self, record)
        if is_new:
            self.require(record.group).era = 0

    patch(Subscriptions, "_join", mutant)


def eras_end_while_pending(patch: Patch) -> None:
    """An era ends though a transaction acknowledges messages."""
    patch(Subscriptions, "pending_in", lambda *_: [])


KEEPS: Final = replace(RESET, name="queue: keeps", drops=False)
NO_WAIT: Final = QueueScenario(
    "queue: no wait", "a commit does not wait for answers", QueueBudget(late=1), waits=False
)


def nothing(_: Patch) -> None:
    """Patches nothing: the scenario itself breaks the rule."""


QUEUE_SEARCHES: Final = (
    (CRASHES, PLAIN),
    (OWNERS, replace(OWNERS, budget=QueueBudget())),
    (_with(CUMULATIVE, plain=1, late=1), replace(CUMULATIVE, budget=QueueBudget())),
    (SLOW, _with(SLOW, slow_append=1)),
    (REPEATED, _with(REPEATED, late=1)),
    (_with(EXPIRY, expire=1), _with(EXPIRY)),
    (RESET, _with(RESET, reset=1)),
    (DELETED, _with(DELETED, delete=1)),
)
"""(in full, reduced)."""
QUEUE_MUTATIONS: Final = (
    ("plain deletes pending", "", "a plain acknowledgement deletes what is pending", PLAIN,
     plain_deletes_pending),
    ("pending is leased", "", "what is pending is given out", EXPIRY, pending_is_leased),
    ("deleted is leased", "", "what is deleted is given out", PLAIN, deleted_is_leased),
    ("release frees pending", "", "a release frees what is pending", EXPIRY,
     release_takes_pending_back),
    ("ended transactions", "97", "an ended transaction acknowledges", REPEATED,
     ended_transactions_acknowledge),
    ("commits that do not wait", "", "a commit does not wait for answers", NO_WAIT, nothing),
    ("aborts free all", "", "an abort frees what others have pending", EXPIRY, aborts_free_all),
    ("pending in memory", "", "what is pending is not in the journal", OWNERS, pending_in_memory),
    ("cumulative over deleted", "98", "an acknowledgement passes over what is deleted", CUMULATIVE,
     passes_over_deleted),
    ("cumulative over pending", "98", "an acknowledgement takes over what is pending", CUMULATIVE,
     takes_over_pending),
    ("stale leases", "99", "a replaced owner gives messages out", OWNERS, stale_leases),
    ("bare leases", "100", "a lease is told before the abort that freed it is durable", ABORTING,
     leases_before_aborts),
    ("leases as they were", "101", "a lease is told as it was, not as it is", SLOW,
     leases_as_they_were),
    ("commits forget", "", "a commit does not delete what is pending", PLAIN,
     commit_without_pending),
    ("plain of before", "146", "a plain acknowledgement of before a reset counts", RESET,
     plain_of_before),
    ("acks of before", "146", "one in a transaction does", RESET, acks_of_before),
    ("held of before", "146", "who comes back has what it had before", RESET, held_of_before),
    ("kept behind a reset", "146", "who comes back keeps what it had before", KEEPS, nothing),
    ("a reset of any era", "147", "a reset that is repeated ends another era", RESET,
     orders_of_before),
    ("eras of one's own", "150", "a subscription that is made anew has the era of before", DELETED,
     eras_of_ones_own),
    ("eras end while pending", "", "an era ends though something is pending", RESET,
     eras_end_while_pending),
)  # fmt: skip
"""(name, trap, what is dropped, scenario, how)."""
