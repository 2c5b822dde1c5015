"""Histories of the real `Consumer`: an application that does what applications do, and a log that
fails.

`run` plays one history. It knows at each step how far delivery has come in each partition, or how
far it may have come if a fault leaves that open, and where a later start must go on. What is
delivered must be the next in order from there.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.core import shared
from logtx.journal.collector import collector_paused
from logtx.journal.errors import ConsumerError, MalformedHeaderError, SpillError
from logtx.journal.logs.memory.consumer import MemoryConsumer

from ..signals import KINDS, Tracer
from .played import Clock, Faults, PlayedLog, Writer, limits
from .reference import Key, Reference, Violation

CHECKERS: Final = {
    "order": "what a partition delivers is the next in order: nothing is lost or comes twice",
    "goes-on": "when faults end, everything comes within a bounded number of calls",
    "committed": "a commit that was confirmed is where a later start goes on",
    "paused": "a paused partition delivers nothing",
    "raised": "nothing is raised without a fault",
    "events": "events of Kafka come, each once",
    "bounded": "what a consumer remembers has a bound",
}
CALLS_MAX: Final = 120
"""Calls without progress after which a consumer that nothing disturbs stands still."""
_FAILURES = (KafkaException, ValueError, KeyboardInterrupt, MemoryError, SystemError)
Reached = dict[Key, set[int]]
"""How far delivery may have come, by partition, as indexes into `Reference.items`."""


class History:
    """One history."""

    def __init__(self, seed: int) -> None:
        """Draws everything that holds for all of the history."""
        chance = self._chance = Random(seed)
        self.trace: list[str] = []
        self._clock = Clock()
        rate = chance.choice((0.0, 0.0, 0.005, 0.02, 0.05))
        self._faults = Faults(Random(chance.random()), rate)
        self._signals = chance.choice((0.0, 0.0, 0.1, 0.3))
        self._isolation = chance.choice(
            ("read_committed",) * 4 + ("serializable",) * 4 + ("read_uncommitted",)
        )
        modes = {"read_committed": ("poll",) * 4 + ("transactions",), "read_uncommitted": ("poll",)}
        self._modes = (chance.choice(modes.get(self._isolation, ("poll", "transactions"))),)
        if self._isolation == "serializable" and chance.random() < 0.3:
            self._modes = ("poll", "transactions")
        self._subscribes = chance.random() < 0.35
        self._auto = chance.random() < 0.5
        self._trims = chance.random() < 0.3
        self._settings = self._draw_settings()
        self._log = PlayedLog(self._clock, self._faults)
        topics = ("a", "b")[: chance.choice((1, 1, 2))]
        self._keys: list[Key] = []
        for topic in topics:
            count = chance.randint(1, 3)
            self._log.create_topic(topic, partitions=count)
            self._keys += [(topic, number) for number in range(count)]
        self._topics = list(topics)
        self._reference = Reference(self._keys, self._isolation, self._modes[0])
        self._writer = Writer(self._log, self._keys, self._reference)
        self._reached: Reached = {}
        """How far delivery may have come in the assigned partitions."""
        self._committed: dict[Key, set[int | None]] = {key: {None} for key in self._keys}
        """What may be committed; None: nothing."""
        self._origin: Reached = {}
        """Where reading may have begun: a rewind without a commit leads there."""
        self._paused: set[Key] = set()
        self._messages: list[tuple[Message, Key, int]] = []
        """Messages delivered lately, with their indexes."""
        self._bookmarks: list[tuple[Key, TopicPartition, set[int]]] = []
        self._doubt = False
        """Whether a commit may have been refused whose answer was not heard."""
        self._left: dict[Key, set[int]] = {}
        """What was to be committed when the group took partitions away, in this step."""
        self._rival: MemoryConsumer | None = None
        self._consumer: Consumer
        self._mode = self._modes[0]
        self._spill_failed = False
        """Whether this consumer can't go on: it must be started again."""
        self._disturbs = False
        """Whether faults may come."""
        self._events_heard = 0
        self._rewinds: bool | None = False
        """Whether a rewind is due; None: perhaps."""

    def _draw_settings(self) -> dict[str, Any]:
        chance = self._chance
        settings: dict[str, Any] = {
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": self._isolation,
            "enable.auto.commit": self._auto,
            "auto.commit.interval.ms": chance.choice((0, 20, 5_000)),
            "torn.reset": "skip",
            "pending.lookup.age.ms": 10**9,
            "on_commit": lambda *_: None,
        }
        if chance.random() < 0.4:
            settings["pending.memory.max.bytes"] = chance.choice((0, 4_000, 20_000))
        if chance.random() < 0.4:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        return settings

    # ---- the plot -------------------------------------------------------------------------------

    def play(self) -> None:
        """Plays the history.

        Raises:
            Violation: a promise was not kept.
        """
        for _ in range(self._chance.randint(0, 30)):
            self._writer.step()
        self._start()
        try:
            self._disturbs = True
            for _ in range(self._chance.randint(30, 90)):
                self._step()
            self._disturbs = False
            self._end()
        finally:
            self._consumer.close()

    def _step(self) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 3))):
            self._writer.step()
        if self._trims and self._chance.random() < 0.05:
            self._writer.trim()
        if self._chance.random() < 0.05:
            self._log.hold_answers(not self._log.holds_answers)
        if self._chance.random() < 0.1:
            self._clock.sleep(0.06)
        if self._rival is not None:
            self._rival.poll(0)
        steps: dict[str, int] = {
            "read": 30,
            "commit": 4,
            "commit_later": 5,
            "commit_message": 2,
            "commit_offsets": 2,
            "seek": 6,
            "pause": 3,
            "resume": 3,
            "rewind": 5,
            "bookmark": 3,
            "restart": 2,
            "drop": 1,
            **({"rebalance": 5, "silence": 1} if self._subscribes else {"assign": 2, "change": 4}),
        }
        name = self._chance.choices(list(steps), list(steps.values()))[0]
        if self._spill_failed:
            name = "restart"
        getattr(self, f"_{name}")()
        self._follow_assignment()

    def _try(self, what: str, call: Callable[[], Any], *, may_fail: bool = False) -> Any:
        """Does something that faults may break off. Returns whether it was done, and its result."""
        before = self._faults.fired
        tracer: Any = None
        if self._disturbs and self._chance.random() < self._signals:
            kind = self._chance.choice(list(KINDS))
            tracer = Tracer("logtx.consumer", int(2 ** self._chance.uniform(0, 11)), KINDS[kind])
        self._faults.on = self._disturbs
        try:
            with nullcontext() if tracer is None else tracer.on():
                result = call()
        except _FAILURES as error:
            told = f"{type(error).__name__}: {error}"
            where = f" at {tracer.where}" if tracer is not None and tracer.where else ""
            self.trace.append(f"{what} raised {told}{where} {self._faults.told[before:]}")
            caused = where or self._faults.fired > before or may_fail or self._spill_failed
            # `transactions` has no other way to tell of such a record.
            caused = caused or isinstance(error, MalformedHeaderError)
            if isinstance(error, SpillError):
                self._spill_failed = True
                # A partition stops at it, and the next call may be the first to tell.
                caused = caused or "spill read" in self._faults.told
            if not caused or isinstance(error, SystemError):
                raise Violation("raised", f"{what}: {told}") from error
            return False, None
        finally:
            self._faults.on = False
            if tracer is not None and tracer.where:
                # It may have been swallowed, as an error that passes.
                self._faults.fired += 1
                self._faults.told.append("signal")
        interrupted = tracer is not None and tracer.where
        self.trace.append(f"{what} -> {_told(result)}{' after a signal' if interrupted else ''}")
        return True, result

    @property
    def _undisturbed(self) -> Callable[[], bool]:
        before = self._faults.fired
        return lambda: self._faults.fired == before

    # ---- one life of a consumer -----------------------------------------------------------------

    def _start(self) -> None:
        self._mode = self._chance.choice(self._modes)
        self._consumer = Consumer(self._settings, log=self._log)
        self._spill_failed = self._doubt = self._rewinds = False
        self._forget(list(self._reached))
        if self._subscribes:
            self._consumer.subscribe(self._topics, self._on_assign, self._on_revoke, self._on_lost)
        else:
            self._consumer.assign([TopicPartition(*key) for key in self._keys])
            self._begin(self._keys)
        self.trace.append(f"started {self._mode}")

    def _begin(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._begin_at(key, self._started(key))

    def _begin_at(self, key: Key, reached: set[int]) -> None:
        self._reached[key] = set(reached)
        self._origin[key] = set(reached)
        self._messages = [m for m in self._messages if m[1] != key]

    def _started(self, key: Key) -> set[int]:
        return {0 if index is None else index for index in self._committed[key]}

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._reached.pop(key, None)
            self._origin.pop(key, None)
            self._paused.discard(key)
        self._messages = [m for m in self._messages if m[1] in self._reached]

    def _restart(self) -> None:
        undisturbed = self._undisturbed
        self._may_commit(self._reached)
        done, _ = self._try("close", self._consumer.close, may_fail=self._subscribes)
        if not done:
            self._consumer.close()
        elif self._auto and undisturbed() and not self._spill_failed:
            self._did_commit(self._reached)
        self._start()

    def _drop(self) -> None:
        if self._auto:
            self._may_commit(self._reached)
        self._rival_leaves()
        held = weakref.ref(self._consumer)
        del self._consumer
        if held() is not None:
            gc.collect()
        if held() is not None:
            raise Violation("bounded", "a consumer that was dropped lives on")
        for thread in threading.enumerate():
            if thread.name == "logtx-dropped":
                thread.join(20)
        self.trace.append("dropped")
        self._start()

    # ---- the group ------------------------------------------------------------------------------

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.trace.append(f"  assigned {[(p.topic, p.partition) for p in partitions]}")
        self._begin([(p.topic, p.partition) for p in partitions])
        self._faults.callback("on_assign")

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        keys = [(p.topic, p.partition) for p in partitions]
        self.trace.append(f"  revoked {keys}")
        if self._auto:
            self._may_commit({key: self._reached[key] for key in keys if key in self._reached})
        self._forget(keys)
        self._faults.callback("on_revoke")

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.trace.append("  lost")
        self._forget([(p.topic, p.partition) for p in partitions])

    def _follow_assignment(self) -> None:
        # A callback may have been broken off before it told us.
        present = {(p.topic, p.partition) for p in self._consumer.assignment()}
        self._forget([key for key in self._reached if key not in present])
        self._begin([key for key in self._keys if key in present and key not in self._reached])

    def _rebalance(self) -> None:
        if self._rival is None:
            self._rival = MemoryConsumer(self._log, {"group.id": "g", "enable.auto.commit": False})
            self._rival.subscribe(self._topics)
            self.trace.append("rival joins")
        else:
            self._rival_leaves()

    def _rival_leaves(self) -> None:
        if self._rival is not None:
            self._rival.close()
            self._rival = None
            self.trace.append("rival leaves")

    def _silence(self) -> None:
        self._clock.sleep(400)
        self.trace.append("silence")
        self._read()

    def _assign(self) -> None:
        keys = self._chance.sample(self._keys, self._chance.randint(1, len(self._keys)))
        places = [self._place(key) for key in keys]
        undisturbed = self._undisturbed
        self._may_commit_if_auto()
        before = dict(self._reached)
        done, _ = self._try(f"assign {keys}", lambda: self._consumer.assign([p for p, _ in places]))
        if done and self._auto and undisturbed():
            self._did_commit(before)
        if not done:
            # The first call may have begun them, and then this one commits where they begin.
            if self._auto:
                self._may_commit(
                    {key: at or set() for key, (_, at) in zip(keys, places, strict=True)}
                )
            self._consumer.assign([p for p, _ in places])
        self._rewinds = False
        self._forget(list(self._reached))
        for key, (_, reached) in zip(keys, places, strict=True):
            self._begin_at(key, self._started(key) if reached is None else reached)

    def _place(self, key: Key) -> tuple[TopicPartition, set[int] | None]:
        """Returns a place to begin, with how far it is; None: at the committed position."""
        kind = self._chance.choice(("committed", "committed", "offset", "bookmark"))
        known = [b for b in self._bookmarks if b[0] == key]
        if kind == "bookmark" and known:
            _, place, reached = self._chance.choice(known)
            return place, set(reached)
        if kind == "offset":
            end = self._log._partition(*key).end
            offset = self._chance.randint(0, end)
            return TopicPartition(*key, offset), {self._reference.from_offset(key, offset)}
        return TopicPartition(*key), None

    def _change(self) -> None:
        key = self._chance.choice(self._keys)
        undisturbed = self._undisturbed
        if key in self._reached and len(self._reached) > 1 and self._chance.random() < 0.6:
            self._may_commit_if_auto()
            before = {key: self._reached[key]}
            doubt = self._doubt
            places = [TopicPartition(*key)]
            done, _ = self._try(
                f"incremental_unassign {key}",
                lambda: self._consumer.incremental_unassign(places),
                may_fail=self._interrupted,
            )
            if done and self._auto and undisturbed() and not doubt:
                self._did_commit(before)
            return
        place, reached = self._place(key)
        done, _ = self._try(
            f"incremental_assign {place}",
            lambda: self._consumer.incremental_assign([place]),
            may_fail=self._interrupted,
        )
        target = self._started(key) if reached is None else reached
        if done:
            self._begin_at(key, target)
        else:
            self._may_be_at(key, target)

    def _may_be_at(self, key: Key, target: set[int]) -> None:
        if key in self._reached:
            self._reached[key] |= target
            self._origin[key] |= target
        elif TopicPartition(*key) in self._consumer.assignment():
            self._begin_at(key, target)

    # ---- reading --------------------------------------------------------------------------------

    def _read(self, timeout: float | None = None) -> int:
        """Returns how many messages came."""
        if timeout is None:
            timeout = self._chance.choice((0, 0, 0.01, 0.1))
        self._may_commit_if_auto()
        before = dict(self._reached)
        undisturbed = self._undisturbed
        for key, target in self._targets().items() if self._rewinds is not False else ():
            (self._begin_at if self._rewinds else self._may_be_at)(key, target)
        if self._mode == "transactions":
            done, message = self._try("transactions", lambda: _next(self._consumer, timeout))
        elif self._chance.random() < 0.5:
            done, message = self._try("poll", lambda: _listed(self._consumer.poll(timeout)))
        else:
            limit = self._chance.choice((1, 3, 10, 100))
            done, message = self._try("consume", lambda: self._consumer.consume(limit, timeout))
        # A commit of this call may have been refused whose answer comes later.
        self._doubt = self._doubt or not undisturbed()
        if not done:
            # The rewind may have been done, or be due still: a commit takes what is now.
            for key in before.keys() & self._reached.keys():
                self._reached[key] |= before[key]
            return 0
        self._rewinds = False
        self._deliver(message)
        return len(message)

    def _deliver(self, messages: Sequence[Message]) -> None:
        last = -1
        for message in messages:
            key = (message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None and error.code() != KafkaError._BAD_MSG:
                self._events_heard += 1
                continue
            if error is not None and self._reference.serial:
                continue
            if key not in self._reached:
                raise Violation("order", f"{key} is not assigned")
            value = message.value() or b""
            index = self._reference.index(key, value)
            if key in self._paused:
                raise Violation("paused", f"{key} is paused and delivered {value!r}")
            self._reached[key] = self._reference.after(key, self._reached[key], index)
            item = self._reference.items[key][index]
            if item.event != (error is not None):
                raise Violation("order", f"{value!r} must be an event, or none")
            if self._reference.serial:
                if item.sequence < last:
                    raise Violation("order", f"{value!r} comes after a later decision")
                last = item.sequence
            self._messages.append((message, key, index))
        del self._messages[:-40]

    @property
    def _interrupted(self) -> bool:
        # Until the next call that reads, librdkafka may not have the partitions that we have.
        return self._consumer._reading.interrupted

    def _pause(self) -> None:
        keys = [key for key in self._reached if key not in self._paused]
        if keys:
            key = self._chance.choice(keys)
            done, _ = self._try(
                f"pause {key}",
                lambda: self._consumer.pause([TopicPartition(*key)]),
                may_fail=self._interrupted,
            )
            if done:
                self._paused.add(key)

    def _resume(self) -> None:
        if self._paused:
            key = self._chance.choice(sorted(self._paused))
            self._try(
                f"resume {key}",
                lambda: self._consumer.resume([TopicPartition(*key)]),
                may_fail=self._interrupted,
            )
            self._paused.discard(key)

    def _seek(self) -> None:
        if not self._reached:
            return
        key = self._chance.choice(sorted(self._reached))
        place, reached = self._place(key)
        if reached is None:
            return
        done, _ = self._try(
            f"seek {place}", lambda: self._consumer.seek(place), may_fail=self._interrupted
        )
        if done:
            self._begin_at(key, reached)
        else:
            self._may_be_at(key, reached)

    def _targets(self) -> Reached:
        """Returns where a rewind leads."""
        return {
            key: {
                at
                for index in self._committed[key]
                for at in (self._origin[key] if index is None else {index})
            }
            for key in self._reached
        }

    def _rewind(self) -> None:
        if self._chance.random() < 0.3:
            self._consumer.rewind(wait=False)
            self.trace.append("rewind later")
            self._rewinds = True
            self._read()
            return
        signals = self._faults.told.count("signal")
        done, _ = self._try("rewind", self._consumer.rewind)
        self._rewinds = False
        if not done:
            self._rewinds = None if self._faults.told.count("signal") > signals else True
        for key, target in self._targets().items():
            if done:
                self._begin_at(key, target)
            else:
                self._may_be_at(key, target)

    def _bookmark(self) -> None:
        for key in self._reached:
            if len(self._reached[key]) == 1:
                [place] = self._consumer.position([TopicPartition(*key)])
                self._bookmarks.append((key, place, set(self._reached[key])))
        del self._bookmarks[:-20]

    # ---- commits --------------------------------------------------------------------------------

    def _may_commit_if_auto(self) -> None:
        if self._auto:
            self._may_commit(self._reached)

    def _may_commit(self, reached: Reached) -> None:
        for key, indexes in reached.items():
            self._committed[key] |= indexes

    def _did_commit(self, reached: Reached) -> None:
        for key, indexes in reached.items():
            # A partition from which nothing was ever delivered may have nothing committed.
            nothing = {None} if indexes == {0} else set()
            self._committed[key] = {*indexes, *nothing}

    def _commit(self) -> None:
        self._may_commit(self._reached)
        done, _ = self._try(
            "commit", lambda: self._consumer.commit(asynchronous=False), may_fail=self._subscribes
        )
        if done:
            self._doubt = False
            self._did_commit(self._reached)
            self._check_committed()

    def _check_committed(self) -> None:
        places = [TopicPartition(*key) for key in self._reached]
        told = self._consumer.committed(places)
        here = self._consumer.position(places)
        for committed, position in zip(told, here, strict=True):
            if (committed.offset, committed.metadata) != (position.offset, position.metadata):
                raise Violation("committed", f"{committed} after a commit at {position}")

    def _commit_later(self) -> None:
        undisturbed = self._undisturbed
        self._may_commit(self._reached)
        self._try("commit later", self._consumer.commit)
        self._doubt = self._doubt or not undisturbed()

    def _commit_message(self) -> None:
        if not self._messages:
            return
        message, key, index = self._chance.choice(self._messages)
        call: dict[str, Any] = {"message": message}
        targets = {index + 1}
        if self._chance.random() < 0.5:
            offset = (message.offset() or 0) + 1
            call = {"offsets": [TopicPartition(*key, offset)]}
            # A record that is not remembered is named by its offset alone.
            targets |= {self._reference.from_offset(key, offset)}
        self._commit_at(key, targets, call)

    def _commit_offsets(self) -> None:
        if self._bookmarks:
            key, place, reached = self._chance.choice(self._bookmarks)
            self._commit_at(key, reached, {"offsets": [place]})

    def _commit_at(self, key: Key, targets: set[int], call: dict[str, Any]) -> None:
        self._committed[key] |= targets
        what = f"commit {key} at {sorted(targets)}"
        try:
            done, _ = self._try(
                what,
                lambda: self._consumer.commit(**call, asynchronous=False),
                may_fail=self._subscribes or "message" in call,
            )
        except ConsumerError as error:  # It was delivered too long ago.
            self.trace.append(f"{what} refused: {error}")
            return
        if done:
            self._committed[key] = set(targets)

    # ---- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        self.trace.append("calm")
        self._log.hold_answers(False)
        self._rival_leaves()
        if self._spill_failed or self._chance.random() < 0.3:
            self._restart()
        self._read(0)
        self._follow_assignment()
        # Also what an error kept from being resumed.
        places = [TopicPartition(*key) for key in self._reached]
        self._try("resume all", lambda: self._consumer.resume(places))
        self._paused.clear()
        if self._chance.random() < 0.5:
            self._read_to_the_end(finished=False)
        self._writer.end()
        self._read_to_the_end(finished=True)
        self._hear_events()
        self._commit()
        self._restart()
        if not self._subscribes:
            self._follow_assignment()
        self._read_to_the_end(finished=True)
        self._read_all_again()
        self._check_bounds()

    def _read_all_again(self) -> None:
        self._consumer.close()
        self._settings["group.id"] = "another"
        self._committed = {key: {None} for key in self._keys}
        self._start()
        self._read_to_the_end(finished=True)

    def _read_to_the_end(self, *, finished: bool) -> None:
        idle = 0
        while idle < CALLS_MAX:
            self._follow_assignment()
            idle = 0 if self._read(0.05) else idle + 1
            if idle >= 5 and self._all_delivered():
                return
        if finished or not self._reference.serial:
            behind = {
                key: (sorted(at), len(self._reference.items[key]))
                for key, at in self._reached.items()
                if not self._reference.at_end(key, at)
            }
            raise Violation("goes-on", f"nothing more comes: {behind or self._reached}")

    def _all_delivered(self) -> bool:
        assigned = self._keys if self._subscribes else list(self._reached)
        return all(
            key in self._reached and self._reference.at_end(key, self._reached[key])
            for key in assigned
        )

    def _hear_events(self) -> None:
        if self._mode != "poll":
            return
        self._events_heard = 0
        self._faults.events = 3
        key = self._keys[0]
        # A batch comes only with a record.
        self._writer.one(next(iter(self._reached), key))
        self._read_to_the_end(finished=True)
        if self._events_heard != 3:
            raise Violation("events", f"{self._events_heard} of 3 came")

    def _check_bounds(self) -> None:
        reading, serial = self._consumer._reading, self._consumer._delivery.serial
        ended = sum(len(a.buffer._ended) for a in reading.assigned.values())
        if ended > shared.ENDED_MAX:
            raise Violation("bounded", f"{ended} ended transactions are remembered")
        if serial is not None and (serial._order._finished or serial._tail._waiting):
            raise Violation("bounded", f"{serial._order._finished} are kept though delivered")


def _told(result: Any) -> str:
    if isinstance(result, list):
        return str([m.value() if isinstance(m, Message) else str(m) for m in result])
    return str(result)


def _listed(message: Message | None) -> list[Message]:
    return [] if message is None else [message]


def _next(consumer: Consumer, timeout: float) -> list[Message]:
    for transaction in consumer.transactions(timeout):
        return list(transaction.records)
    return []


def run(seed: int) -> tuple[Violation | None, list[str]]:
    """Plays one history.

    Returns:
        The promise that was not kept, if any; and what happened.
    """
    history = History(seed)
    # Garbage of other tests and histories ends when it is collected, and would shift this one.
    with collector_paused(), limits(history._chance, history._clock, history._faults):
        try:
            history.play()
        except Violation as violation:
            return violation, history.trace
    return None, history.trace
