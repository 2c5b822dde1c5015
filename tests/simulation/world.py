"""One history: a world of coordinators, producers and consumers, drawn from a seed.

At first everything goes wrong that can; then the faults stop, and everything must finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from random import Random
from types import ModuleType
from typing import Any, Final

from logtx.coordinator.core import dispatch, snapshot, tenure
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action
from logtx.journal import producer_ids, reader
from logtx.journal.control import TopicPartition
from logtx.journal.keys import DEFAULT_OWNER, FIRST_EPOCH, TransactionKey, is_key_name
from logtx.journal.places import PartitionId
from logtx.journal.records import codec

from . import compactions as copying
from .consumers import Consumer
from .coordinators import Coordinator
from .faults import Faults
from .history import History
from .lanes import QUICK
from .leases import QUEUES_QUICK, WITHOUT_DISK
from .logs import LATE_MAX_MS, Broker, scanned_once
from .network import Network, query
from .producers import Producer
from .queue_reference import left_in_queue
from .queues import QUEUE, QueueWorker
from .resets import QueueOperator
from .retention import retain
from .schedule import Party, Scheduler
from .serial import SerialConsumer
from .setting import Setting
from .skipping import Skipper
from .switching import Operator
from .topology import RESULTS, RESULTS_USED, SIDECAR, TEMPORARY, Topology
from .workers import Group, Worker

TEMPORARY_CHANCE: Final = 0.25
"""Share of the histories with a topic that is deleted."""
SWITCH_FIRST_MS: Final = 400
"""By so much later it is deleted where it may be switched, so that some of it is placed before."""
QUEUE_FIRST_MS: Final = 800
"""The same where it is a queue's, so that some of it is given out before."""
EXTENDS_CHANCE: Final = 0.25
"""Share of the histories whose transactions may outlive their timeouts."""
AWAY_MS: Final = 1_200
"""For so long the successor of a producer stays away, now and then: it may be forgotten."""
CONFIG: Final = ShardConfig(
    max_timeout_ms=10_000,
    session_grace_ms=200,
    reload_grace_ms=400,
    producer_retention_hours=1,
)
IN_SHARES: Final = replace(CONFIG, adopt_bytes=1)
"""The same, and homes adopt each partition of a transaction by a record of its own."""
IN_SHARES_SHARE: Final = 0.5
"""Share of the histories with that."""
MONKEY_MS: Final = 80
"""Time between two tries to disturb the parties."""
WITHIN_SHARE: Final = 0.4
"""How often such a try crashes a reader that stands in the middle of a pointer."""
CURIOUS_MS: Final = 60
"""Time between two questions to a coordinator."""
FAULTS_MS: Final = (700, 2_000)
"""Least and most length of the part with faults."""
CALM_MS: Final = LATE_MAX_MS + 200
"""Time after the last fault, until the last late append has landed and its surprise is over."""
SETTLE_MAX_MS: Final = 15_000
"""How long everything may take to finish after that; what is not done then is a failure."""
HANG_MS: Final = 1_300
"""Timeout of the transaction that hangs while the others must go on."""
SILENT_MS: Final = 1_500
"""How long no look-up of a topic is answered meanwhile; longer than a commit may take."""
TRIMS_CHANCE: Final = 0.4
"""Share of the histories with sidecars in which data is deleted that all have read, and sidecars
are trimmed behind it."""
RETENTION_CHANCE: Final = 0.4
"""Share of the histories with switches in which data is deleted that all have read."""
ADOPTS_CHANCE: Final = 0.7
"""Share of the histories with switches that have a second journal, of which the home adopts."""
CALM_SHARE: Final = 0.5
"""Share of the histories with switches whose faults begin when the topic is in metadata mode."""
SWITCH_MAX_MS: Final = 1_500
"""Until when they begin in any case."""
RETENTION_MS: Final = 170
"""Time between two such deletions."""
HOLD_MS: Final = 200
"""How long the first of a chain of commits keeps the others waiting."""
PLACED_QUEUES: Final = 0.35
"""Share of the histories with queues whose topic is in metadata mode before anybody reads it."""
AT_WORK: Final = 8
"""Number of messages that are given out before the faults begin: to join a queue takes long."""
QUEUE_SURPRISES: Final = 0.25
"""Share of the faults of appends to the journal that are left where there is a queue: each ends a
tenure, and to take up work behind that takes long."""
CALM_WAVE_MS: Final = (100, 300)
"""Least and most time for which nothing goes wrong where there is a queue."""
FAULTY_WAVE_MS: Final = (50, 300)
"""Least and most time for which everything may, before that."""
SWITCHED_QUEUES: Final = 0.25
"""Share of those whose topics are switched while they are worked off."""
OPENS_LATE_SHARE: Final = 0.5
"""Share of the histories with switched topics and sidecars in which nothing is written to sidecars
before a topic is in metadata mode."""
OPENS_LATE_MS: Final = (50, 800)
"""Least and most time from then on until something is."""
TEMPORARY_QUEUES: Final = 0.6
"""Share of those that have the temporary topic, too, if there is one."""
TOGETHER_HISTORIES: Final = 0.4
"""Share of the histories with switches in which a consumer may have several partitions."""
DAWDLING_SHARE: Final = 0.2
"""Share of those in which workers keep messages of it for long."""
AHEAD_HISTORIES: Final = 0.4
"""Share of the histories with a queue whose workers ask for leases ahead."""
RESTING_SHARE: Final = 0.15
"""Share of the queues whose workers leave them alone for a while."""
SIDECAR_QUEUES: Final = 0.5
"""Share of the queues with markers whose topic has a sidecar."""
FAILOVER_SHARE: Final = 0.2
"""Share of the queues that give each partition to one worker at a time."""
BEGINS_LATE_SHARE: Final = 0.2
"""Share of the queues that begin where their topic's partitions end."""
CANNOT_READ_FROM_MS: Final = 500
"""Until when at most a coordinator can read the journal, if one can't."""
LITTLE: Final = ((tenure, "EFFECTS_MAX", 1), (tenure, "DUE_MAX", 2))
"""How much is done in one turn, in the histories that do little in one."""


REAL: Final = {(name, module): getattr(module, name) for module, name, _ in (*QUICK, *QUEUES_QUICK)}


@contextmanager
def _small_and_quick(further: Iterable[tuple[ModuleType, str, Any]]) -> Iterator[None]:
    """Makes snapshots have several chunks in a small world, and decodes and scans nothing twice.

    Pauses and ages are short. A mutation that changed one of them stays. `further` constants are
    those of this history.
    """
    remembered = lru_cache(maxsize=None)(codec.decode_entry)
    wanted: list[tuple[ModuleType, str, Any]] = [
        (snapshot, "CHUNK_BYTES", 600),
        (reader, "entry_decoder", lambda **how: partial(remembered, **how)),
        (reader, "_scan_between", scanned_once(reader._scan_between)),
        *further,
    ]
    quick = *QUICK, *QUEUES_QUICK
    wanted += [(m, name, value) for m, name, value in quick if getattr(m, name) == REAL[name, m]]
    former = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    for module, name, value in wanted:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in former:
            setattr(module, name, value)


class World:
    """All parties of one history."""

    def __init__(  # noqa: PLR0912, PLR0915
        self,
        seed: int,
        *,
        switches: bool = False,
        sidecars: bool = False,
        queues: bool = False,
        resets: bool = False,
        compactions: bool = False,
    ) -> None:
        """Starts all parties.

        Args:
            seed: what everything is drawn from.
            switches: whether an operator switches topics to places and back.
            sidecars: whether transactions use sidecars. Together with `switches` some of them are
                placed.
            queues: whether there are workers of a queue, in place of those of a consumer group and
                of readers. Some of these histories have switches, and some of the rest sidecars.
                Together with `sidecars` all have both; not together with `switches`.
            resets: whether an operator resets and deletes the queue: then there is one.
            compactions: whether sidecars are compacted: then transactions use them, and data is
                deleted that all have read.
        """
        queues, sidecars = queues or resets, sidecars or compactions
        chance = Random(seed)
        self._seed = seed
        history = self.history = History(seed)
        history.held_ms = {(m, n): v for m, n, v in QUEUES_QUICK}[dispatch, "HELD_MS"]
        scheduler = Scheduler()
        journals = chance.randint(1, 2)
        faults = Faults(
            chance,
            *(Random(-seed - 3), Random(-seed - 6), Random(-seed - 7), Random(-seed - 8)),
            history.counts,
        )
        topology = Topology(scheduler, chance, faults, history)
        queue = Random(-seed - 70) if queues else None
        drawn = 1.0 if queue is None else queue.random()
        if queue is not None and sidecars:
            drawn *= PLACED_QUEUES + SWITCHED_QUEUES
        in_places = drawn < PLACED_QUEUES + SWITCHED_QUEUES
        if in_places:
            # A queue that has passed a place does not give out what comes there (docs/queues.md).
            faults.ends = None
        if queues:
            faults.spare("journal append", QUEUE_SURPRISES)
        temporary = Random(-seed - 4)
        has_temporary = temporary.random() < TEMPORARY_CHANCE
        if (switches or in_places) and faults.modes.random() < ADOPTS_CHANCE:
            journals = 2
        if has_temporary:
            later_ms = QUEUE_FIRST_MS if queues else SWITCH_FIRST_MS if switches else 0
            topology.add_temporary(temporary, later_ms)
        if queues and not in_places:
            # The histories in which mutations of queues are seen have none: they stay as they were.
            sidecars = Random(-seed - 116).random() < SIDECAR_QUEUES
        if sidecars:
            topology.add_sidecar()
        outputs = chance.randint(1, 3)
        dawdling = Random(-seed - 71) if queues and has_temporary else None
        resting = Random(-seed - 74) if queues else None
        if queues:
            topology.make_queue(outputs)
        self.setting = Setting(
            scheduler=scheduler,
            chance=chance,
            faults=faults,
            history=history,
            topology=topology,
            broker=Broker(scheduler, history, journals, topology.truth),
            shard_config=IN_SHARES if _adopts_in_shares(seed) else CONFIG,
            journals=journals,
            outputs=outputs,
            # What is placed in sidecars and not finished makes snapshots longer than 12 records.
            snapshot_every=max(
                chance.choice((12, 30, 80, 10**9)),
                30 if sidecars and (switches or in_places) else 0,
            ),
            hour_ms=Random(-seed - 1).choice((150, 400, 10**9, 10**9)),
            outcome_retention_ms=chance.choice((300, 1_000, 10**9)),
            is_dead=self._is_dead,
            extends=Random(-seed - 5).random() < EXTENDS_CHANCE,
            modes=faults.modes if switches or in_places else None,
            # Any number does; with this one, what breaks the older rules of places is still seen
            # in the histories of before.
            together=_some(Random(-seed - 1291) if switches else None, TOGETHER_HISTORIES),
            sidecars=Random(-seed - 60) if sidecars else None,
            retains_sidecars=compactions
            or (sidecars and not queues and Random(-seed - 61).random() < TRIMS_CHANCE),
            compactions=Random(-seed - 63) if compactions else None,
            queues=queue,
            queue_is_failover=queue is not None and queue.random() < FAILOVER_SHARE,
            queue_begins_late=queue is not None and queue.random() < BEGINS_LATE_SHARE,
            queue_has_temporary=queue is not None and queue.random() < TEMPORARY_QUEUES,
            dawdling=_some(dawdling, DAWDLING_SHARE),
            resting=_some(resting, RESTING_SHARE),
            leasing_ahead=_some(Random(-seed - 77) if queues else None, AHEAD_HISTORIES),
        )
        self.coordinators = {
            name: Coordinator(self.setting, name, self._alive)
            for name in [f"c{n}" for n in range(chance.randint(2, 3))]
        }
        self.network = Network(self.setting, self.coordinators)
        for coordinator in self.coordinators.values():
            coordinator.start()
        self.producers: dict[str, Producer] = {}
        """Application → its newest instance."""
        self._away = Random(-seed - 2)
        self._instances: list[Producer] = []
        workers = chance.choice((0, 2, 3)) if queue is None else 0
        names = [
            TransactionKey(DEFAULT_OWNER, f"k{n}").name if chance.random() < 0.25 else f"p{n}"
            for n in range(chance.randint(1, 2) if workers or queues else chance.randint(2, 4))
        ]
        names += [f"w{n}" for n in range(workers)]
        self._group = Group(self.setting)
        self._shares_ids = faults.tries("one id in two groups")
        self._managed = {n: not is_key_name(n) and chance.random() < 0.3 for n in names}
        """Application → whether it gives the generations."""
        self._contested = chance.random() < 0.25
        """Whether one consumer group has members in two transaction groups."""
        self._generations = dict.fromkeys(self._managed, 0)
        for application in self._managed:
            self._start_producer(application)
        self.consumers: list[Consumer | SerialConsumer] = []
        self._operator: Operator | None = None
        self._switched_ms = 2**63
        """When that was noticed first."""
        if queues:
            skipper = Skipper(self.setting, self.network, Random(-seed - 76))
            self.setting.unreadable = skipper.is_told
        self._queue_operator: QueueOperator | None = None
        if resets:
            draws = Random(-seed - 75)
            self._queue_operator = QueueOperator(self.setting, self.network, draws)
        self._retention = self.setting.modes
        begin = self._start_readers if queue is None else self._start_queue
        if self.setting.modes is None:
            begin()
            if self.setting.retains_sidecars:
                self._retention = Random(-seed - 62)
                scheduler.after(RETENTION_MS, self._retain)
        else:
            once = drawn < PLACED_QUEUES
            self._operator = Operator(self.setting, self.network, begin, once=once)
            opening = _some(Random(-seed - 64) if sidecars and switches else None, OPENS_LATE_SHARE)
            if opening is not None:
                self._opens_ms = opening.randint(*OPENS_LATE_MS)
                self.setting.opens_sidecars = self._opens_sidecars
            if switches and self.setting.modes.random() < RETENTION_CHANCE:
                scheduler.after(RETENTION_MS, self._retain)
        self._copiers = copying.begin(self.setting)
        self._auditor = Party(scheduler, "auditor")
        self._audits = 0
        scheduler.after(CURIOUS_MS, self._curious)
        if has_temporary and queue is None:
            scheduler.after(MONKEY_MS, self._read_temporary)
        if faults.tries("coordinator can't read the journal"):
            self._stop_reading(faults.trials.choice(list(self.coordinators.values())))
        self._little = faults.tries("little in one turn")

    def _opens_sidecars(self) -> bool:
        """Returns whether it is some time ago that a topic came to be in metadata mode."""
        if self._operator is not None and self._operator.has_switched:
            self._switched_ms = min(self._switched_ms, self.setting.now_ms)
        return self.setting.now_ms - self._switched_ms >= self._opens_ms

    def _stop_reading(self, coordinator: Coordinator) -> None:
        def stop() -> None:
            coordinator.reads = not self.setting.faults.on

        self.setting.scheduler.after(
            self.setting.faults.trials.randint(0, CANNOT_READ_FROM_MS), stop
        )

    def run(self) -> History:
        """Runs the whole history; an error that breaks it is in `History.crash`."""
        try:
            further: tuple[tuple[ModuleType, str, Any], ...] = LITTLE if self._little else ()
            if self.setting.queues is not None:
                further = *further, *WITHOUT_DISK
            further = *further, *copying.modules(self.setting)
            with _small_and_quick(further):
                self._run()
        except Exception as error:  # noqa: BLE001  # any of a broken core
            self.history.crash = error
        finally:
            for copier in self._copiers:
                copier.close()
        return self.history

    def _run(self) -> None:
        setting = self.setting
        scheduler, chance = setting.scheduler, setting.chance
        lasts_ms = chance.randint(*FAULTS_MS)
        if setting.queues is not None:
            lasts_ms += lasts_ms // 2
            scheduler.after(0, self._take_a_breath)
        operator = self._operator
        if setting.queues is not None:
            self._wait_until(lambda: len(self.history.taken) >= AT_WORK)
        elif operator is not None and Random(-self._seed - 9).random() < CALM_SHARE:
            # A switch takes as long as all faults last. So else little would be placed before they
            # end.
            self._wait_until(lambda: operator.has_switched)
        until_ms = scheduler.now_ms + lasts_ms
        self._latecomer_ms = chance.randint(0, until_ms)
        scheduler.after(MONKEY_MS, self._monkey)
        scheduler.after(self._latecomer_ms, self._latecomers)
        scheduler.run_until(until_ms)
        self._settle()
        scheduler.run_until(until_ms + CALM_MS)
        self.history.settled_ms = scheduler.now_ms
        setting.note("world", "settled")
        self._probe()
        deadline_ms = scheduler.now_ms + SETTLE_MAX_MS
        # No divisor of the time between two hours: else a FORGET may be in flight at each step.
        step_ms = 197
        while (unfinished := self._unfinished()) and scheduler.now_ms < deadline_ms:
            self._write_up_to_places()
            scheduler.run_until(scheduler.now_ms + step_ms)
        if not unfinished:
            # What a home placed or refused is doubted by a reader for a minute of its clock.
            deadline_ms = scheduler.now_ms + SETTLE_MAX_MS
            self._audit()
            while (unfinished := self._unfinished()) and scheduler.now_ms < deadline_ms:
                scheduler.run_until(scheduler.now_ms + step_ms)
        self.history.unfinished = unfinished
        self._note_subscriptions()
        for name, count in setting.counters.as_dict().items():
            self.history.counts[f"consumers' {name}"] += count

    def _note_subscriptions(self) -> None:
        """Notes what owners have of subscriptions, for the checkers."""
        for coordinator in self.coordinators.values():
            for seat in coordinator.seats:
                if seat.tenure is not None and not seat.tenure.over:
                    rows = seat.tenure.shard.queues.subscriptions.rows()
                    self.history.subscriptions[seat.partition] = list(rows)

    def _take_a_breath(self) -> None:
        """Lets nothing go wrong for a moment, again and again: to take up work that was broken off
        needs a coordinator, a session and a stream, and what breaks then is met by nobody at work.
        """
        setting = self.setting
        assert setting.queues is not None
        if self.history.taken and setting.faults.on:
            setting.faults.calm = not setting.faults.calm
        lasts_ms = setting.queues.randint(
            *(CALM_WAVE_MS if setting.faults.calm else FAULTY_WAVE_MS)
        )
        setting.scheduler.after(lasts_ms, self._take_a_breath)

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        scheduler, faults = self.setting.scheduler, self.setting.faults
        faults.calm = True
        while not is_ready() and scheduler.now_ms < SWITCH_MAX_MS:
            scheduler.run_until(scheduler.now_ms + 10)
        faults.calm = False
        self.setting.note("world", "faults begin")

    def _alive(self) -> list[Coordinator]:
        return [c for c in self.coordinators.values() if c.alive and not c.paused]

    def _is_dead(self, address: str) -> bool:
        coordinator = self.coordinators[address]
        return not coordinator.alive or coordinator.paused

    # ---- parties --------------------------------------------------------------------------------

    def _start_producer(self, application: str, *, twice: bool = False) -> None:
        generation = None
        if is_key_name(application):
            # Most begin as new instances; some remember an old epoch.
            generation = self.setting.chance.choice((FIRST_EPOCH, FIRST_EPOCH, FIRST_EPOCH, 0))
        elif self._managed[application]:
            if not twice:
                self._generations[application] += 1
            generation = self._generations[application]
        number = sum(p.application == application for p in self._instances)
        group, consumer_group = self._groups(application)
        make = partial(Worker, self._group) if _is_worker(application) else Producer
        if _is_of_queue(application):
            make = QueueWorker
        producer = make(
            self.setting,
            self.network,
            f"{application}.{number}",
            application,
            self._producer_id(application),
            group=group,
            consumer_group=consumer_group,
            generation=generation,
            on_gone=self._gone,
        )
        producer.stopping = not self.setting.faults.on
        self.setting.note(producer.name, "starts, generation", generation)
        self.producers[application] = producer
        self._instances.append(producer)

    def _producer_id(self, application: str) -> str:
        if not self._shares_ids or is_key_name(application):
            return application
        if _is_worker(application) or _is_of_queue(application):
            return application
        # Each id is that of one application in each of the two groups.
        group, _ = self._groups(application)
        return producer_ids.producer_id_of(group, f"p{int(application[1:]) // 2}")

    def _groups(self, application: str) -> tuple[str, str]:
        """Returns the transaction group and the consumer group of an application."""
        if is_key_name(application):
            return application, f"input{application}"
        if _is_worker(application):
            return "group-0", "workers"
        if _is_of_queue(application):
            return "group-0", QUEUE
        which = int(application[1:]) % 2
        return f"group-{which}", f"input-{0 if self._contested else which}"

    def _gone(self, producer: Producer) -> None:
        if self.producers[producer.application] is producer:
            self._replace(producer)

    def _replace(self, producer: Producer) -> None:
        def replace() -> None:
            if self.producers[producer.application] is producer:
                self._start_producer(producer.application)

        back_ms = self.setting.chance.randint(10, 300)
        if self.setting.hour_ms < back_ms + AWAY_MS and self._away.random() < 0.4:
            self.history.counts["producers away for hours"] += 1
            back_ms += AWAY_MS
        self.setting.scheduler.after(back_ms, replace)

    def _start_consumer(
        self,
        name: str,
        partition: TopicPartition,
        start: int,
        *,
        steady: bool,
        committed: bool = True,
    ) -> None:
        self.consumers.append(
            Consumer(self.setting, name, partition, start, steady=steady, committed=committed)
        )

    def _start_serial(self, name: str, starts: dict[TopicPartition, int], *, steady: bool) -> None:
        journal = self.setting.chance.randrange(self.setting.journals)
        self.consumers.append(SerialConsumer(self.setting, name, journal, starts, steady=steady))

    def _start_readers(self) -> None:
        for key in self.setting.output_keys:
            self._read_from_start(key)
        if self.setting.chance.random() < 0.5:
            self._start_serial("s0", dict.fromkeys(self.setting.output_keys, 0), steady=False)

    def _start_queue(self) -> None:
        draw = self.setting.queues
        assert draw is not None
        for number in range(draw.randint(2, 4)):
            application = f"q{number}"
            self._managed[application] = draw.random() < 0.3
            self._generations[application] = 0
            self._start_producer(application)

    def _read_from_start(self, key: TopicPartition) -> None:
        if not self._may_be_read(key):
            self.setting.scheduler.after(MONKEY_MS, lambda: self._read_from_start(key))
            return
        for number in range(2):
            self._start_consumer(f"k{key[1]}{number}", key, 0, steady=False)
        if self._reads_uncommitted:
            self._start_consumer(f"u{key[1]}", key, 0, steady=False, committed=False)

    @property
    def _reads_uncommitted(self) -> bool:
        """Whether there are readers of uncommitted records: where what lies in sidecars is placed,
        which they alone learn of in a way of their own."""
        setting = self.setting
        return None not in (setting.modes, setting.sidecars)

    def _may_be_read(self, key: TopicPartition) -> bool:
        """Returns whether a consumer may be given a partition. Where topics are switched, not
        before it is there: whoever is given it learns of the switch by then."""
        return self.setting.modes is None or key[1] < self.setting.topology.writable

    def _anywhere(self) -> dict[TopicPartition, int]:
        broker, chance = self.setting.broker, self.setting.chance
        starts = broker.data_starts
        return {
            key: chance.randint(starts.get(key, 0), len(broker.data(key)))
            for key in self.setting.output_keys
        }

    def _retain(self) -> None:
        """Deletes data that all readers have delivered."""
        if not self.setting.faults.on:
            return
        self.setting.scheduler.after(RETENTION_MS, self._retain)
        assert self._retention is not None
        if self._operator is not None and self._operator.is_before_readers:
            return
        needed = {
            key: min((k.needs(key) for k in self.consumers), default=0)
            for key in self.setting.output_keys
        }
        retain(self.setting, needed, self._retention)

    def _read_temporary(self) -> None:
        """Begins to read the temporary topic, some time after it was created anew."""
        is_new = bool(self.history.former) and TEMPORARY in self.setting.topology.truth
        if is_new:
            self._start_consumer("kt", (TEMPORARY, 0), 0, steady=False)
        elif self.setting.faults.on:
            self.setting.scheduler.after(MONKEY_MS, self._read_temporary)

    def _latecomers(self) -> None:
        # Consumers that begin somewhere in the middle.
        chance = self.setting.chance
        if self._operator is not None and self._operator.is_before_readers:
            return
        if self.setting.queues is not None:
            return
        for key in self.setting.output_keys:
            first, end = self._range(key)
            if self._may_be_read(key):
                self._start_consumer(f"k{key[1]}m", key, chance.randint(first, end), steady=False)
            if self._may_be_read(key) and self._reads_uncommitted:
                start = chance.randint(first, end)
                self._start_consumer(f"u{key[1]}m", key, start, steady=False, committed=False)
        if chance.random() < 0.5:
            self._start_serial("sm", self._anywhere(), steady=False)

    def _range(self, key: TopicPartition) -> tuple[int, int]:
        """Returns start and end of a data partition."""
        broker = self.setting.broker
        return broker.data_starts.get(key, 0), len(broker.data(key))

    # ---- faults ---------------------------------------------------------------------------------

    def _monkey(self) -> None:
        setting = self.setting
        if not setting.faults.on:
            return
        setting.scheduler.after(MONKEY_MS, self._monkey)
        coordinator = setting.chance.choice(list(self.coordinators.values()))
        if coordinator.alive and not coordinator.paused:
            self._harm_coordinator(coordinator)
        producer = setting.chance.choice(list(self.producers.values()))
        if producer.alive and not producer.paused and producer.session.failure is None:
            self._harm_producer(producer)
        serial = [k for k in self.consumers if isinstance(k, SerialConsumer)]
        for readers in (self.consumers, serial):
            chosen = setting.chance.choice(readers) if readers else None
            if chosen is not None and chosen.alive and not chosen.paused:
                self._harm_consumer(chosen)
        self._harm_in_sidecars()
        if setting.faults.happens("group rebalanced", 0.15):
            self._group.rebalance()
        if setting.faults.tries("checkpoint restored elsewhere", 0.04):
            self._restore_checkpoint(setting.faults.trials.randrange(setting.journals))

    def _restore_checkpoint(self, journal: int) -> None:
        # An operator restores the offsets of groups, from another time, while nobody serves.
        broker, trials = self.setting.broker, self.setting.faults.trials
        for coordinator in self.coordinators.values():
            if coordinator.alive and coordinator.seats[journal].tenure is not None:
                self._crash_coordinator(coordinator)
        checkpoint = broker.checkpoints[journal]
        if checkpoint is not None and broker.journal(journal):
            elsewhere = trials.randrange(len(broker.journal(journal)))
            broker.checkpoints[journal] = replace(checkpoint, offset=elsewhere)
            self.setting.note("operator", f"sets the checkpoint of journal {journal} to", elsewhere)

    def _harm_coordinator(self, coordinator: Coordinator) -> None:
        faults, chance = self.setting.faults, self.setting.chance
        if faults.happens("coordinator crashed", 0.05):
            self._crash_coordinator(coordinator)
        elif faults.happens("coordinator paused", 0.06):
            self._pause(coordinator, chance.randint(50, 900))
        elif faults.happens("coordinator's clock jumped", 0.05):
            coordinator.jump_clock(chance.choice((-600_000, 600_000)))
        else:
            receiver = chance.choice(list(self.coordinators.values()))
            owned = [seat for seat in coordinator.seats if seat.tenure is not None]
            can = receiver is not coordinator and not self._is_dead(receiver.name)
            if owned and can and faults.happens("partition given away", 0.15):
                seat = chance.choice(owned)
                seat.give(receiver.seats[seat.partition])

    def _harm_producer(self, producer: Producer) -> None:
        faults, chance = self.setting.faults, self.setting.chance
        if faults.happens("producer crashed", 0.06):
            self.setting.note(producer.name, "crashes")
            self._lost(producer)
            producer.die()
            self._replace(producer)
        elif faults.happens("producer paused", 0.06):
            self._pause(producer, chance.randint(100, 1_200))
            if faults.happens("producer replaced while paused", 0.5):
                self._replace(producer)
            elif faults.happens("group rebalanced", 0.7):
                # Its group session times out: others take over, and it wakes up as a zombie.
                self.setting.scheduler.after(chance.randint(5, 100), self._group.rebalance)
        elif faults.happens("producer started twice", 0.03):
            self._start_producer(producer.application, twice=True)
        elif is_key_name(producer.producer_id) and faults.happens("key deleted", 0.15):
            home = self.setting.home(producer.producer_id)
            self._ask(home, commands.DeleteKey(name=producer.producer_id))

    def _harm_consumer(self, consumer: Consumer | SerialConsumer) -> None:
        faults, chance = self.setting.faults, self.setting.chance
        if faults.happens("consumer crashed", 0.15):
            self.setting.note(consumer.name, "crashes")
            consumer.crash()
            back_ms = chance.randint(10, 200)
            self.setting.scheduler.after(back_ms, lambda: self._restart(consumer))
        elif faults.happens("consumer paused", 0.1):
            self._pause(consumer, chance.randint(50, 600))

    def _harm_in_sidecars(self) -> None:
        """Crashes readers that would go on in the middle of a pointer: few are hit there else."""
        draw = self.setting.sidecars
        for consumer in self.consumers if draw is not None else ():
            can = consumer.alive and not consumer.paused and consumer.stands_in_sidecar
            if draw is not None and can and draw.random() < WITHIN_SHARE:
                self.setting.note(consumer.name, "crashes within a pointer")
                self.history.counts["consumers crashed within a pointer"] += 1
                consumer.crash()
                self.setting.scheduler.after(
                    draw.randint(10, 200), partial(self._restart, consumer)
                )

    @staticmethod
    def _restart(consumer: Consumer | SerialConsumer) -> None:
        if not consumer.alive:
            consumer.restart()

    def _crash_coordinator(self, coordinator: Coordinator) -> None:
        setting = self.setting
        setting.note(coordinator.name, "crashes")
        for link in coordinator.links.values():
            link.peer_gone()
        coordinator.die()

        def restart() -> None:
            if not coordinator.alive:
                setting.note(coordinator.name, "starts again")
                coordinator.start()

        setting.scheduler.after(setting.chance.randint(50, 500), restart)

    def _lost(self, producer: Producer) -> None:
        # The kernel of its host closes its connections.
        for coordinator in self.coordinators.values():
            for link in list(coordinator.links.values()):
                if link.of(producer):
                    link.close_here()

    def _pause(self, party: Party, for_ms: int) -> None:
        setting = self.setting
        setting.note(party.name, "is paused for", for_ms, "ms")
        party.pause()
        life = party.life

        def wake() -> None:
            if party.life == life and party.paused:
                setting.note(party.name, "wakes up")
                party.wake()

        def unanswered() -> None:
            if party.life == life and party.paused and isinstance(party, Coordinator):
                for link in party.links.values():
                    link.peer_gone()

        setting.scheduler.after(for_ms, wake)
        setting.scheduler.after(150, unanswered)

    # ---- questions ------------------------------------------------------------------------------

    def _curious(self) -> None:
        """Asks a question that any client may ask; the checkers judge the answer."""
        setting, chance = self.setting, self.setting.chance
        if not setting.faults.on:
            return
        setting.scheduler.after(CURIOUS_MS, self._curious)
        # Not always the published owner: a zombie may also believe that it owns the partition.
        to = chance.choice([None, *self.coordinators])
        if chance.random() < 0.5:
            group, consumer_group = self._groups(chance.choice(list(self.producers)))
            self._ask(setting.home(group), commands.FetchOffsets(group=consumer_group), to)
            return
        txids = list(self.history.works)
        if txids:
            txid = chance.choice(txids)
            if chance.random() < 0.1:
                txid = replace(txid, offset=chance.randint(0, txid.offset))
            self._ask(txid.partition, commands.GetOutcome(txid=txid), to)

    # ---- the end --------------------------------------------------------------------------------

    def _settle(self) -> None:
        setting = self.setting
        setting.faults.on = False
        setting.note("world", "no more faults")
        for coordinator in self.coordinators.values():
            if not coordinator.alive:
                coordinator.start()
            coordinator.wake()
            coordinator.reads = True
        for producer in self._instances:
            if producer.alive:
                producer.wake()
                producer.stopping = True
        for consumer in self.consumers:
            self._restart(consumer)
            consumer.wake()
        for copier in self._copiers:
            copier.settle()

    def _probe(self) -> None:
        """Runs transactions that must come through while another one hangs."""
        if self._all_know_topics() and self.setting.faults.tries("no look-ups for a new commit"):
            self.setting.topology.be_silent(SILENT_MS)
        for coordinator in self.coordinators.values():
            coordinator.stand_still()
        for producer in self.producers.values():
            if type(producer) is Producer and producer.session.connected is not None:
                producer.continue_input(HOLD_MS)
        hanging = True
        for producer in self.producers.values():
            producer.stopping = True
            if producer.session.connected is None or producer.session.failure is not None:
                continue
            if hanging and not is_key_name(producer.producer_id):
                hanging = False
                hangs = producer.begin(HANG_MS)
                hangs.hangs_until_ms = self.setting.now_ms + HANG_MS + 100
                for key in self.setting.output_keys:
                    hangs.produce(key)
                    producer.plain(key)
            probe = producer.begin(HANG_MS * 4)
            for key in self.setting.output_keys:
                probe.produce(key)
            probe.end(Action.COMMIT)

    def _write_up_to_places(self) -> None:
        """Writes plain records to the topic that was created anew, up to its last place.

        A decision may claim records there that went with the former topic, and lay further up
        (trap 268). Its place is above them (R3), so readers come to it when the topic has as many.
        """
        truth = self.setting.topology.truth.get(TEMPORARY)
        if truth is None:
            return
        where = PartitionId(TEMPORARY, 0, truth.topic_id)
        seats = [seat for each in self.coordinators.values() for seat in each.seats]
        places = [s.tenure.shard.places.last.get(where, 0) for s in seats if s.tenure is not None]
        missing = max(places, default=0) - self.setting.broker.end(*where.key)
        for writer in [p for p in self.producers.values() if p.alive][:1]:
            for _ in range(missing):
                writer.plain(where.key)

    def _all_know_topics(self) -> bool:
        """Whether each journal partition has an owner who knows each topic that is written to.

        Also the one that was created anew, if a transaction wrote there that is open for so long.
        """
        keys = self.setting.output_keys
        if self.setting.sidecars is not None:
            keys += [(SIDECAR, number) for _, number in keys]
        if self.setting.queues is not None:
            keys += [(RESULTS, number) for number in range(RESULTS_USED)]
        truth = self.setting.topology.truth
        keys += sorted(
            {
                key
                for producer in self._instances
                for transaction in producer.transactions
                for key in transaction.book.writes()
                if key[0] in truth
            }
        )
        owners = [
            [k for k in self.coordinators.values() if k.seats[journal].tenure is not None]
            for journal in range(self.setting.journals)
        ]
        return all(
            there and not any(k.markers.known.refusal(keys, k.now().monotonic_ms) for k in there)
            for there in owners
        )

    def _unfinished(self) -> list[str]:
        """Returns what is still to be done; empty if all is well."""
        left, history = [], self.history
        for journal in range(self.setting.journals):
            seats = [
                seat
                for coordinator in self.coordinators.values()
                for seat in (coordinator.seats[journal],)
                if seat.tenure is not None
            ]
            if not seats:
                left.append(f"nobody serves journal partition {journal}")
            for seat in seats:
                assert seat.tenure is not None
                for transaction in seat.tenure.shard.transactions:
                    left.append(f"{transaction.txid} is {transaction.state} at {seat.name}")
                if waits := _in_flight(seat.tenure):
                    left.append(f"{waits} appends of {seat.name} in flight")
        for producer in self._instances:
            if producer.alive and not producer.idle:
                left.append(f"producer {producer.name} waits")
        left += [f"consumer {k.name} is behind" for k in self.consumers if not k.done]
        left += [f"{copier.name} is at work" for copier in self._copiers if not copier.done]
        if self._operator is not None:
            # A topic that was deleted and created anew begins with markers, whoever asks.
            waits = {t: m for t, m in self._operator.waits.items() if (t, 0) not in history.former}
            left += [f"{topic} is not switched to {mode}" for topic, mode in waits.items()]
        if self._audits:
            left.append(f"{self._audits} questions without an answer")
        if self.setting.queues is not None and not left:
            left += left_in_queue(history)
        return left

    def _audit(self) -> None:
        """Reads everything with fresh consumers, and asks for outcomes again."""
        setting, chance = self.setting, self.setting.chance
        if setting.queues is None:
            self._read_everything()
        txids = list(self.history.works)
        for txid in chance.sample(txids, min(4, len(txids))):
            self._ask(txid.partition, commands.GetOutcome(txid=txid))
        for group, consumer_group in {self._groups(name): None for name in self.producers}:
            if consumer_group != QUEUE:
                self._ask(setting.home(group), commands.FetchOffsets(group=consumer_group))

    def _read_everything(self) -> None:
        setting, chance = self.setting, self.setting.chance
        temporary = [(TEMPORARY, 0)] if TEMPORARY in setting.topology.truth else []
        for key in setting.output_keys + temporary:
            (first, end), name = self._range(key), "kt" if key in temporary else f"k{key[1]}"
            self._start_consumer(f"{name}a", key, first, steady=True)
            self._start_consumer(f"{name}z", key, chance.randint(first, end), steady=True)
        from_start = {key: self._range(key)[0] for key in setting.output_keys}
        self._start_serial("sa", chance.choice((from_start, self._anywhere())), steady=True)

    def _ask(self, partition: int, command: commands.Command, to: str | None = None) -> None:
        self._audits += 1

        def answered(reply: commands.Reply) -> None:
            del reply
            self._audits -= 1

        query(self.network, self._auditor, partition, command, answered, to=to)


def _in_flight(owner: tenure.Tenure) -> int:
    """Number of appends that are not acknowledged, but for those of the snapshot that is being
    taken: where it has as many chunks as `snapshot_every`, one follows the other for ever."""
    taker, end = owner._taker, owner.shard.next_offset
    return max(0, (end if taker is None else taker.first) - owner.acknowledged_end)


def _some(draw: Random | None, share: float) -> Random | None:
    """Returns what is drawn from, in a share of the histories."""
    return draw if draw is not None and draw.random() < share else None


def _adopts_in_shares(seed: int) -> bool:
    """Returns whether homes adopt by a record for each partition, if they adopt in this history."""
    return Random(-seed - 1300).random() < IN_SHARES_SHARE


def _is_worker(producer_id: str) -> bool:
    return producer_id.startswith("w")


def _is_of_queue(producer_id: str) -> bool:
    return producer_id.startswith("q")


def simulate(
    seed: int,
    *,
    switches: bool = False,
    sidecars: bool = False,
    queues: bool = False,
    resets: bool = False,
    compactions: bool = False,
) -> History:
    """Returns the history of a seed.

    With `switches` it is another one, in which topics are switched; with `sidecars` one in which
    transactions write to sidecars; with `queues` one in which a topic is worked off as a queue, and
    with `resets` one in which that is reset and deleted; with `compactions` one in which sidecars
    are compacted.
    """
    world = World(
        seed,
        switches=switches,
        sidecars=sidecars,
        queues=queues,
        resets=resets,
        compactions=compactions,
    )
    return world.run()
