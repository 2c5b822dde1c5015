"""Asks coordinators what operators want to know; used by `logtx txn`, `keys` and `topics`.

Source: Transaction keys, "Admin API & CLI".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ...journal.acks import Acks
from ...journal.control import TopicPartition
from ...journal.errors import (
    ConfigError,
    NotSupportedError,
    RetriableError,
    TopicModeError,
    UnknownSubscriptionError,
)
from ...journal.modes import Mode, Phase, binding_of
from ...journal.places import PartitionId
from ...journal.state import State
from ...journal.txid import TxId
from ...journal.value import value
from ..protocol.commands import (
    AbortTransaction,
    DeleteKey,
    DescribeSidecars,
    DescribeSubscriptions,
    DescribeTopics,
    Done,
    ForgetGroup,
    ForgetProducer,
    GetKey,
    KeyInfo,
    Keys,
    ListKeys,
    ListTransactions,
    Outcome,
    SetTopicMode,
    SetTopicRule,
    SidecarNeeds,
    SubscriptionsPage,
    TopicModeInfo,
    TopicModes,
    TransactionInfo,
    Transactions,
    UnbindGroup,
)
from ..protocol.queues import (
    OPERATOR,
    Acknowledge,
    AcknowledgeType,
    AckResult,
    AckResults,
    DeleteSubscription,
    ResetSubscription,
    SubscriptionInfo,
)
from .queries import CoordinatorQueries

SIDECARS_MAX: Final = 5_000
"""Sidecar partitions in one question: some 100 kB. More hold the event loop longer."""
SWITCH_PAUSE_S: Final = 0.1
"""Pause between two questions how far a switch is. A longer one ends the command later; a shorter
one asks the home's owner more often."""
LAST_ANSWER_S: Final = 1.0
"""Wait for the last answer, beyond the time that the caller gave. With a shorter one an operator
who waited in vain is told that nobody answers, and not what the switch waits for."""
_FINAL: Final = {Mode.METADATA: Phase.METADATA, Mode.MARKERS: Phase.MARKERS}


@value(frozen=True, slots=True)
class TopicHome:
    """A topic's mode, and where it has its home."""

    info: TopicModeInfo
    home: int | None
    """The journal partition; None: the topic is bound to no transaction group."""
    transaction_group: str | None
    """The transaction group that it is bound to; None: to none."""


class AdminQueries(CoordinatorQueries):
    """Questions and orders of operators. Thread-safe; blocks, with the bound of its base class."""

    def partition_count(self) -> int:
        """Returns the number of journal partitions.

        Raises:
            CoordinatorNotAvailableError: no journal exists.
        """
        return self._discovery.partition_count(time.monotonic() + self._timeout_s)

    def list_transactions(
        self,
        partition: int,
        *,
        states: tuple[State, ...] = (),
        age_min_ms: int = 0,
        producer_id: str = "",
        topic: str = "",
    ) -> Iterator[TransactionInfo]:
        """Yields the unfinished transactions of a journal partition, oldest first, page by page.

        Args:
            partition: number of the journal partition.
            states: only transactions in one of these states; empty: any state.
            age_min_ms: only transactions that began at least this many milliseconds ago.
            producer_id: only transactions of this producer id, or of this ``transactional.id`` in
                any transaction group; "": any producer.
            topic: only transactions that registered a partition of this topic; "": any topic.
        """
        after, more = -1, True
        while more:
            command = ListTransactions(
                states=states,
                age_min_ms=age_min_ms,
                producer_id=producer_id,
                topic=topic,
                after=after,
            )
            page = self._ask(partition, command, Transactions)
            yield from page.transactions
            more = page.more and bool(page.transactions)
            if more:
                after = page.transactions[-1].txid.offset

    def describe(self, txid: TxId) -> TransactionInfo | None:
        """Returns a transaction; None if it is finished or unknown: then ask for its `outcome`."""
        command = ListTransactions(after=txid.offset - 1, limit=1)
        page = self._ask(txid.partition, command, Transactions)
        return next((info for info in page.transactions if info.txid == txid), None)

    def abort(self, txid: TxId) -> Outcome:
        """Aborts a transaction. Repeating it succeeds.

        Raises:
            TransactionCommittedError: it is committed, or being committed.
            UnknownTransactionError: it was never begun, or is past the outcome retention.
        """
        return self._ask(txid.partition, AbortTransaction(txid=txid), Outcome)

    def forget_producer(self, partition: int, producer_id: str) -> None:
        """Forgets a producer in a journal partition: the next one begins above its generation.

        Repeating it succeeds, also if it is not known.

        Raises:
            NotAllowedError: it is connected, has transactions open, or is a transaction key.
        """
        self._ask(partition, ForgetProducer(producer_id=producer_id), Done)

    def forget_group(self, group: str) -> None:
        """Forgets a consumer group: its offsets, its claims and its binding.

        Afterwards the group begins anew, in any transaction group. Stop its consumers and producers
        first. Repeating it succeeds, also if it is not known.

        Raises:
            NotAllowedError: a transaction that is not finished moves its offsets.
        """
        bound = self.bind_group(group, None).transaction_group
        if bound is not None:
            self._ask(bound, ForgetGroup(group=group), Done)
            self._ask(group, UnbindGroup(group=group), Done)

    def forget_offsets(self, group: str, topics: Iterable[str]) -> None:
        """Forgets a consumer group's offsets and claims in some topics, for example deleted ones.

        Repeating it succeeds, also if there are none.

        Raises:
            NotAllowedError: a transaction that is not finished moves the group's offsets.
            ConfigError: no topic is named.
        """
        named = tuple(topics)
        if not named:
            raise ConfigError("name the topics, or forget the whole group")
        bound = self.bind_group(group, None).transaction_group
        if bound is not None:
            self._ask(bound, ForgetGroup(group=group, topics=named), Done)

    def list_keys(self, partition: int) -> Iterator[KeyInfo]:
        """Yields the transaction keys whose home is a journal partition, by name, page by page."""
        after, more = "", True
        while more:
            page = self._ask(partition, ListKeys(after=after), Keys)
            yield from page.keys
            more = page.more and bool(page.keys)
            if more:
                after = page.keys[-1].name

    def get_key(self, name: str) -> KeyInfo:
        """Returns a transaction key, by its name `&owner&key`.

        Raises:
            UnknownKeyError: no producer connected with it, or it was deleted.
        """
        return self._ask(name, GetKey(name=name), KeyInfo)

    def delete_key(self, name: str) -> None:
        """Deletes a transaction key and aborts its open transaction. Repeating it succeeds.

        Raises:
            UnknownKeyError: no producer ever connected with it.
        """
        self._ask(name, DeleteKey(name=name), Done)

    def describe_sidecars(
        self, partition: int, main_starts: Mapping[TopicPartition, int]
    ) -> SidecarNeeds:
        """Returns what commits of a journal partition need of sidecars.

        Args:
            partition: number of the journal partition.
            main_starts: sidecar partition → offset at which its main partition's log starts.

        Raises:
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        asked, slices = list(main_starts.items()), list[SidecarNeeds]()
        for first in range(0, max(len(asked), 1), SIDECARS_MAX):
            command = DescribeSidecars(main_starts=dict(asked[first : first + SIDECARS_MAX]))
            slices.append(self._ask(partition, command, SidecarNeeds))
        # Of the first answer: what the later ones tell may be of transactions that began since.
        steps = tuple(step for each in slices for step in each.steps)
        return replace(slices[0], steps=steps)

    def subscriptions(self, partition: int) -> Iterator[SubscriptionInfo]:
        """Yields the subscriptions that are kept in a journal partition, by name, page by page.

        Raises:
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        after, more = "", True
        while more:
            command = DescribeSubscriptions(after=after)
            page = self._ask(partition, command, SubscriptionsPage)
            yield from page.subscriptions
            more = page.more and bool(page.subscriptions)
            if more:
                after = page.subscriptions[-1].group

    def subscription(self, name: str, *, available_max: int = 0) -> tuple[str, SubscriptionInfo]:
        """Returns the transaction group of a subscription, and what is known of it.

        Args:
            name: the subscription.
            available_max: most spans that may be given out to be told of each partition.

        Raises:
            UnknownSubscriptionError: there is no such subscription.
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        bound = self._owner_of(name)
        command = DescribeSubscriptions(groups=(name,), available_max=available_max)
        page = self._ask(bound, command, SubscriptionsPage)
        return bound, page.subscriptions[0]

    def skip(
        self, bound: str, info: SubscriptionInfo, acks: Iterable[Acks]
    ) -> tuple[AckResult, ...]:
        """Deletes messages of a subscription, as if a consumer had rejected them.

        What a transaction has pending stays as it is, and the result says so.

        Args:
            bound: the transaction group of the subscription.
            info: the subscription, as `subscription` has told it.
            acks: the messages.

        Returns:
            The result of each span, in order.

        Raises:
            UnknownSubscriptionError: there is no such subscription, or no such partition of it.
            SubscriptionResetError: it was reset or deleted since it was told.
            AckOutOfRangeError: a partition does not have these messages.
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        command = Acknowledge(
            group=info.group,
            consumer=OPERATOR,
            type=AcknowledgeType.REJECT,
            acks=tuple(acks),
            era=info.era,
        )
        told = self._ask(bound, command, AckResults)
        return tuple(told.of(each.partition, s) for each in command.acks for s in each.spans)

    def reset_subscription(
        self, bound: str, info: SubscriptionInfo, starts: Mapping[PartitionId, int]
    ) -> None:
        """Lets partitions of a subscription begin anew at offsets, whatever was acknowledged.

        Repeating it succeeds as long as nothing was acknowledged since.

        Args:
            bound: the transaction group of the subscription.
            info: the subscription, as `subscription` has told it.
            starts: partition → offset. Others stay as they are.

        Raises:
            NotAllowedError: a consumer is attached, or a transaction acknowledges messages.
            SubscriptionResetError: it was reset or deleted since it was told.
            UnknownSubscriptionError: there is no such subscription, or no such partition of it.
            UnknownTopicError: a topic is no more.
            CoordinatorBusyError: a partition does not have such an offset yet, as far as is known.
            NotSupportedError: a coordinator of an older build is there: upgrade it.
        """
        command = ResetSubscription(group=info.group, era=info.era, starts=dict(starts))
        self._ask(bound, command, Done)

    def delete_subscription(self, bound: str, info: SubscriptionInfo) -> None:
        """Forgets a subscription. Its name stays bound to its transaction group.

        Repeating it succeeds as long as nobody has made it anew.

        Args:
            bound: the transaction group of the subscription.
            info: the subscription, as `subscription` has told it.

        Raises:
            NotAllowedError: a consumer is attached, or a transaction acknowledges messages.
            SubscriptionResetError: it was reset or made anew since it was told.
            NotSupportedError: a coordinator of an older build is there: upgrade it.
        """
        self._ask(bound, DeleteSubscription(group=info.group, era=info.era), Done)

    def _owner_of(self, subscription: str) -> str:
        """Returns the transaction group that a subscription belongs to."""
        bound = self._bind(subscription, None).transaction_group
        if bound is None:
            raise UnknownSubscriptionError(
                f"there is no subscription {subscription!r}: logtx subscription list shows all"
            )
        return bound

    # ---- modes of topics ------------------------------------------------------------------------

    def set_topic_mode(
        self,
        topic: str,
        mode: Mode,
        *,
        transaction_group: str | None = None,
        without_records: bool = False,
        timeout_s: float = 60.0,
        progress: Callable[[TopicModeInfo], None] | None = None,
    ) -> TopicHome:
        """Switches a topic between markers and places, and waits until readers are told.

        Binds the topic to the transaction group first, for ever. Repeating it succeeds, and goes on
        with what an earlier call left unfinished.

        Args:
            topic: the topic.
            mode: the mode that it shall have.
            transaction_group: the one that it is bound to, or is to be bound to; None: the one that
                it is bound to.
            without_records: writes no mode records to its partitions, for a topic that takes no
                writes any more, or that nobody reads. A switch that is under way goes on without
                those that are not written yet.
            timeout_s: longest wait, in seconds.
            progress: called with each phase that was met on the way.

        Raises:
            TopicModeError: it is bound to another transaction group; a coordinator of an older
                build is there; or it was not switched in time: then call again.
            UnknownTopicError, UnsupportedTopicError: there is no such topic; or no transaction may
                write to it, for it is compacted.
            ConfigError: it is bound to none, and none is named.
            RetriableError: no coordinator answered in time: then call again.
        """
        deadline_s = time.monotonic() + timeout_s
        group = self._topic_group(topic, mode, transaction_group)
        if group is None:
            return TopicHome(_never_switched(topic), None, None)
        command = SetTopicMode(topic=topic, mode=mode, without_records=without_records)
        met: TopicModeInfo | None = None
        while True:
            left_s = min(self._timeout_s, max(deadline_s - time.monotonic(), LAST_ANSWER_S))
            try:
                info = _only(self._ask(group, command, TopicModes, left_s), topic)
            except RetriableError:
                # A coordinator that is replaced meanwhile: its successor goes on with the switch.
                if self._closed or time.monotonic() >= deadline_s:
                    raise
                time.sleep(SWITCH_PAUSE_S)
                continue
            if progress is not None and info != met:
                progress(info)
            met = info
            told = info.published or info.mode_offset < 0
            if info.phase is _FINAL[mode] and told:
                home = self._discovery.partition_of(group, time.monotonic() + self._timeout_s)
                return TopicHome(info, home, group)
            if time.monotonic() >= deadline_s:
                raise TopicModeError(
                    f"topic {topic} is not switched to {mode} after {timeout_s:g} s:"
                    f" {_what_waits(info, without_records=without_records)}; call again to go on"
                    " waiting"
                )
            time.sleep(SWITCH_PAUSE_S)

    def _topic_group(self, topic: str, mode: Mode, wanted: str | None) -> str | None:
        """Returns the transaction group of a topic, which it binds to the wanted one if to none."""
        name = binding_of(topic)
        bound = self._bind(name, None).transaction_group
        if bound is None and mode is Mode.METADATA:
            if wanted is None:
                raise ConfigError(
                    f"topic {topic} is bound to no transaction group: name the one whose"
                    " transactions shall be placed there"
                )
            bound = self._bind(name, wanted).transaction_group
        if bound is not None and wanted not in (None, bound):
            raise TopicModeError(
                f"topic {topic} is bound to transaction group {bound!r} for ever, and not to"
                f" {wanted!r}: only the transactions of that group can be placed there, those of"
                " others write markers as ever"
            )
        return bound

    def set_topic_rule(self, rule: str, mode: Mode | None, transaction_group: str = "") -> None:
        """Sets the mode of topics that are created later and whose names begin so, or with None
        removes that rule. Repeating it succeeds.

        Args:
            rule: how the names begin, and ``*``.
            mode: the mode to which such topics are switched when a transaction first names them.
            transaction_group: with METADATA, the one whose transactions are placed there.

        Raises:
            ConfigError: no topic can begin so, or there is no transaction group.
            TopicModeError: the rule could not be written: call again.
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        command = SetTopicRule(rule=rule, mode=mode, transaction_group=transaction_group)
        try:
            self._ask(rule, command, TopicModes)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"a coordinator of an older build answers, which knows no rules ({error}): upgrade"
                " all coordinators, then set the rule again"
            ) from error

    def describe_topic(self, topic: str) -> TopicHome:
        """Returns a topic's mode and home. One that was never switched has markers."""
        group = self._bind(binding_of(topic), None).transaction_group
        if group is None:
            return TopicHome(_never_switched(topic), None, None)
        found = self._ask(group, DescribeTopics(topics=(topic,)), TopicModes).topics
        info = next((i for i in found if i.topic == topic), _never_switched(topic))
        home = self._discovery.partition_of(group, time.monotonic() + self._timeout_s)
        return TopicHome(info, home, group)

    def switched_topics(self, partition: int) -> Iterator[TopicHome]:
        """Yields the topics that were ever switched and have their home in a journal partition, by
        name, page by page; without their transaction groups."""
        after, more = "", True
        while more:
            page = self._ask(partition, DescribeTopics(after=after), TopicModes)
            yield from (TopicHome(info, partition, None) for info in page.topics)
            more = page.more and bool(page.topics)
            if more:
                after = page.topics[-1].topic


def _never_switched(topic: str) -> TopicModeInfo:
    return TopicModeInfo(topic=topic, topic_id="", phase=Phase.MARKERS, mode_offset=-1)


def _only(reply: TopicModes, topic: str) -> TopicModeInfo:
    found = [info for info in reply.topics if info.topic == topic]
    return found[0] if found else _never_switched(topic)


def _what_waits(info: TopicModeInfo, *, without_records: bool) -> str:
    if info.phase in (Phase.METADATA, Phase.MARKERS):
        if not info.published:
            return f"it is in phase {info.phase}, and readers are not told of it yet"
        return f"it is in phase {info.phase}, and a new switch has not begun"
    if info.waiting:
        return f"it is in phase {info.phase}, and {info.waiting} places are not there yet"
    if without_records:
        return f"it is in phase {info.phase}, and not every partition has told its end"
    return (
        f"it is in phase {info.phase}, and not every partition has taken its mode record (see the"
        " coordinator's log): if one of them takes no writes any more, go on without mode records"
        " (--without-records)"
    )
