"""Asks the brokers for what placing needs: the ends of partitions in which something is decided.

`Placer` has the rounds of one tenure. Here are the questions: one round at a time, all partitions
in one request, never on the event loop. A commit waits for its round, so one begins at the end of
the turn of the loop in which its decision became durable.

A round needs the ids of the topics, too, which take longer to ask for than the ends. They must be
told after the transaction's records were written, as they are when its commit is asked for. So
where nothing else waits, the ids are asked for while the decision is on its way to the journal
(`Placing.deciding`), for all commits of one turn of the loop. Where others come meanwhile, the
round asks for all. What lies in a sidecar outlives its topic: its commit needs ids that are told
later (trap 281).

A partition without a leader delays only itself. Most brokers say at once that they do not lead it.
One that died without a word holds the whole answer back until the time is up. Its partitions are
*suspects* from then on: no round asks for them before they answered a question of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from ...journal.control import TopicPartition
from ...journal.errors import BrokerError, LogtxError, UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.places import GONE, PartitionId
from ..core.decision import Instant, WriteModeRecords
from ..core.placing import Question
from ..core.tenure import Tenure
from ..core.topics import Existence
from .alarm import Alarm, monotonic_ms
from .questions import Questions
from .topics import TopicLookUps

_LOG = logging.getLogger(__name__)

ENDS_TIMEOUT_S: Final = 1.0
"""Bound of a round's question. A longer one holds up all partitions when a broker dies without a
word; a shorter one takes brokers that are slow for dead."""
SUSPECTS_TIMEOUT_S: Final = 10.0
"""Bound of the question for suspects, which holds up nobody else."""
MODE_PAUSE_S: Final = 0.2
"""Pause between two attempts to end a switch without mode records; a longer one delays it."""

Ids = Mapping[str, str]
"""Topic → id."""


@dataclass(slots=True)
class _Ahead:
    """A question for ids that is asked before decisions are durable."""

    begins: set[int]
    """BEGINs of the transactions whose commits were asked for before it."""
    topics: set[str]
    told: asyncio.Future[Ids]
    asked_s: float | None = None
    """When it was asked; None: not yet, and more may come."""

    @property
    def is_under_way(self) -> bool:
        """Whether it is asked, and not answered."""
        return self.asked_s is not None and not self.told.done()


class Placing:
    """Asks for ends, for the placer of one tenure; lives on the event loop."""

    def __init__(
        self,
        log: Log,
        tenure: Tenure,
        *,
        questions: Questions,
        look_ups: TopicLookUps,
        ask: Callable[[Coroutine[Any, Any, None]], None],
        now: Callable[[], Instant],
    ) -> None:
        """Asks nothing before `soon`.

        Args:
            log: the log that holds the data partitions.
            tenure: the tenure.
            questions: runs the questions outside of the event loop.
            look_ups: looks up data topics.
            ask: runs a coroutine in the background; the partition's `stop` cancels it.
            now: returns the time.
        """
        self._log, self._tenure = log, tenure
        self._questions, self._look_ups = questions, look_ups
        self._ask, self._now = ask, now
        self._partition: Final = tenure.shard.partition
        self._alarm = Alarm(lambda _now_ms: self._go_on())
        self._scheduled = False
        self._suspects: set[TopicPartition] = set()
        self._probing = False
        self._ahead: _Ahead | None = None
        self._low: dict[PartitionId, int] = {}
        """Partition → monotonic ms of the first question that told an end which is too low."""

    def soon(self) -> None:
        """Begins the next round at the end of this turn of the loop, if one can begin."""
        if not self._scheduled and not self._tenure.placer.is_idle:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def deciding(self, begin: int) -> None:
        """Asks for the ids of the topics in which a transaction is to be placed, if none waits.

        Args:
            begin: BEGIN of a transaction whose commit was taken just now.
        """
        transaction = self._tenure.shard.transactions.get(begin)
        if transaction is None or not transaction.placed or not self._tenure.placer.is_idle:
            return
        ahead = self._ahead
        if transaction.since or (ahead is not None and ahead.is_under_way):
            return
        if ahead is None or ahead.told.done():
            # A later answer serves those of the former one, too.
            begins, topics = (ahead.begins, ahead.topics) if ahead else (set(), set())
            told: asyncio.Future[Ids] = asyncio.get_running_loop().create_future()
            ahead = self._ahead = _Ahead(begins, topics, told)
            self._ask(self._ask_ahead(ahead))
        ahead.begins.add(begin)
        ahead.topics |= {topic for topic, _ in transaction.placed - transaction.handed.keys()}

    async def _ask_ahead(self, ahead: _Ahead) -> None:
        ahead.asked_s = time.monotonic()
        try:
            # A thread of its own: a round that asks meanwhile does not wait for it.
            ahead.told.set_result(await self._topic_ids("ids-ahead", ahead.topics))
        finally:
            if not ahead.told.done():
                ahead.told.cancel()

    def end(self) -> None:
        """Asks nothing more."""
        self._alarm.cancel()

    def _go_on(self) -> None:
        self._scheduled = False
        now_ms = monotonic_ms()
        question = self._tenure.place_question(now_ms)
        if question is not None:
            self._ask(self._round(question))
        else:
            self._sleep(now_ms)

    def _sleep(self, now_ms: int) -> None:
        wake_ms = self._tenure.wake_ms
        # What is due and not asked waits for a round under way, or for a marker: both call `soon`.
        if wake_ms is not None and wake_ms > now_ms:
            self._alarm.set(wake_ms)

    async def _round(self, question: Question) -> None:
        ends = await self._ends(question.partitions)
        self._tenure.ends_told(question, ends, self._now())
        self.soon()
        self._sleep(monotonic_ms())

    async def _ends(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Returns the ends that could be asked for; `GONE` where the topic is."""
        found, led = self._settled(partitions)
        for partition in found:
            self._low.pop(partition, None)
        asked = [p.key for p in led if p.key not in self._suspects]
        if asked:
            began_s = time.monotonic()
            answers, ids = await asyncio.gather(
                self._answers(f"places-{self._partition}", asked, ENDS_TIMEOUT_S), self._ids(led)
            )
            if time.monotonic() - began_s > ENDS_TIMEOUT_S / 2:
                self._suspects.update(k for k in asked if isinstance(answers[k], BrokerError))
            asked_ms = int(began_s * 1000)
            for partition in led:
                answer = answers.get(partition.key)
                if isinstance(answer, int) and self._is_its(partition, ids):
                    if self._is_credible(partition, answer, asked_ms):
                        found[partition] = answer
                elif isinstance(answer, UnknownTopicError):
                    self._look_ups.look_up(partition.topic)
        self._probe()
        return found

    async def _ids(self, partitions: Iterable[PartitionId]) -> Ids:
        """Returns topic → id, as a broker tells it after all records were written that are to be
        placed; empty without an answer."""
        topics = {partition.topic for partition in partitions if partition.topic_id}
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.asked_s is not None and topics <= ahead.topics:
            # By an older one, look-ups may know better.
            is_young = time.monotonic() - ahead.asked_s < ENDS_TIMEOUT_S
            # What another transaction wrote may be younger than the answer.
            if is_young and self._tenure.placer.waiting_begins <= ahead.begins:
                return await ahead.told
        return await self._topic_ids("ids", topics) if topics else {}

    async def _topic_ids(self, purpose: str, topics: Collection[str]) -> Ids:
        question = partial(self._log.topic_ids, sorted(topics), timeout_s=ENDS_TIMEOUT_S)
        try:
            return await self._questions.ask(f"{purpose}-{self._partition}", question)
        except (LogtxError, KafkaException, OSError, RuntimeError) as error:
            _LOG.warning("ids_unknown partition=%d error=%r", self._partition, error)
            return {}

    def _is_its(self, partition: PartitionId, ids: Ids) -> bool:
        """Returns whether an end is of this topic, and of no other that has the name by now. Else
        looks the topic up.

        A decision may name the former topic, by what was believed of it for some seconds. Its
        records are in the successor then, where no reader finds a place of the former one.
        """
        if not partition.topic_id or ids.get(partition.topic) == partition.topic_id:
            return True
        self._look_ups.look_up(partition.topic)
        return False

    def _is_credible(self, partition: PartitionId, end: int, asked_ms: int) -> bool:
        """Returns whether an end may be of this topic. Else looks the topic up.

        The question names no topic id. An end below what was there before is most likely that of
        another topic, which was created under the name since the last look-up. A place there would
        end the transaction where no reader looks for it, and lose it.
        """
        if end >= self._tenure.shard.places.last.get(partition, 0):
            self._low.pop(partition, None)
            return True
        low_ms = self._low.setdefault(partition, asked_ms)
        if self._look_ups.known.is_confirmed_since(partition.topic, low_ms):
            return True  # It is a leader of the past: a place is never below the last one.
        self._look_ups.look_up(partition.topic)
        return False

    def _settled(
        self, partitions: Iterable[PartitionId]
    ) -> tuple[dict[PartitionId, int], list[PartitionId]]:
        """Returns the partitions whose topic is gone, and those that can be asked."""
        known, now_ms = self._look_ups.known, monotonic_ms()
        gone: dict[PartitionId, int] = {}
        alive: list[PartitionId] = []
        for partition in partitions:
            # A place that is given up though its topic lives would lose a commit that was told
            # (trap 12): a marker needs the same certainty.
            match known.existence(partition.topic, now_ms, partition.topic_id):
                case Existence.GONE:
                    gone[partition] = GONE
                case Existence.ALIVE:
                    alive.append(partition)
                case Existence.DOUBTFUL:
                    self._look_ups.look_up(partition.topic)
        return gone, alive

    async def _answers(
        self, purpose: str, asked: Collection[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, int | LogtxError]:
        question = partial(self._log.each_end_offset, asked, timeout_s=timeout_s)
        try:
            return await self._questions.ask(purpose, question)
        except (LogtxError, KafkaException, OSError, RuntimeError) as error:
            # Also what librdkafka raises by itself, for example when no file handle is left. If
            # the round had no answer, nothing would be placed any more.
            _LOG.warning("ends_unknown partition=%d error=%r", self._partition, error)
            return dict.fromkeys(asked, BrokerError(f"ends of partitions: {error!r}"))

    def _probe(self) -> None:
        if self._suspects and not self._probing:
            self._probing = True
            self._ask(self._ask_suspects())

    async def _ask_suspects(self) -> None:
        try:
            purpose = f"places-again-{self._partition}"
            asked = frozenset(self._suspects)
            answers = await self._answers(purpose, asked, SUSPECTS_TIMEOUT_S)
            for key, answer in answers.items():
                if not isinstance(answer, BrokerError):
                    self._suspects.discard(key)
        finally:
            self._probing = False

    # ---- switches without mode records ----------------------------------------------------------

    def end_switch(self, effect: WriteModeRecords, written: Mapping[int, int]) -> None:
        """Tells the tenure the ends of a topic's partitions, until that has ended the switch.

        Args:
            effect: the switch.
            written: partition → offset of its mode record, if the switch began with them.
        """
        self._ask(self._end_switch(effect, written))

    async def _end_switch(self, effect: WriteModeRecords, written: Mapping[int, int]) -> None:
        tenure, topic, topic_id = self._tenure, effect.topic, effect.topic_id
        since_ms, known = monotonic_ms(), self._look_ups.known
        while not (tenure.over or tenure.quiescing):
            existence = await self._look_ups.settle(topic, topic_id)
            if existence is Existence.GONE:
                return  # Nobody reads it any more.
            # A broker that is behind tells fewer partitions, and `since` must name all.
            if existence is Existence.ALIVE and known.is_confirmed_since(topic, since_ms):
                asked_ms, ends = monotonic_ms(), await self._ends_of(topic)
                if ends is not None:
                    ends = {n: max(end, written.get(n, -1) + 1) for n, end in ends.items()}
                    if tenure.mode_ends(topic, topic_id, ends, asked_ms, monotonic_ms()):
                        return
            await asyncio.sleep(MODE_PAUSE_S)

    async def _ends_of(self, topic: str) -> dict[int, int] | None:
        """Returns the end of each partition of a topic; None if one did not answer."""
        facts = self._look_ups.known.facts.get(topic)
        if facts is None:
            return None
        asked = [(topic, n) for n in range(facts.partition_count)]
        answers = await self._answers(f"mode-{self._partition}", asked, SUSPECTS_TIMEOUT_S)
        ends = {n: end for (_, n), end in answers.items() if isinstance(end, int)}
        return ends if len(ends) == len(asked) else None
