"""Carries a plan out: hurts brokers, coordinators and clients, and heals them.

Each track of the plan has a thread. If something takes longer to come back than planned, the later
faults of its track move back by as much. A fault that would then outlast the load is left out.
Everything is written to the history before it is done.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from ..integration.local.cluster import LocalCluster
from ..integration.local.errors import NotInSyncError
from ..integration.local.node import Broker
from ..integration.local.processes import Child
from ..journal.errors import BrokerError
from .brokers import fill_disk, link_of
from .checkpoints import Checkpoints
from .errors import ChaosError
from .fleet import ChaosCoordinator, Fleet, Member
from .inspector import Inspector
from .operator import Operator
from .plan import TRACKS, Fault, Role, What
from .progress import Progress
from .proxy import Proxies, Rule
from .recorder import Recorder
from .settings import DATA_TOPIC, FLEETING_TOPIC, OUT_TOPIC
from .topics import Topics
from .trimmer import Trimmer

_IN_SYNC_SLICE_S: Final = 5.0
"""Bounds one question whether all replicas have caught up; repeated until half of `_JOIN_S`."""
_ZOMBIE_S: Final = 5.0
"""How long a woken zombie lives on if no process fences it. That happens to one that held a
transaction key: it goes for another key."""
_CONNECTED_S: Final = 10.0
"""How long a process to be replaced has to end its first transaction; after that it is spared."""
_SPARK_CONNECTED_S: Final = 120.0
"""The same for a Spark driver, which starts a JVM first."""
_SPARK_WORKS_S: Final = 5.0
"""How long it works before it is hurt: several micro-batches, so that a copy gets old."""
_SPARK_ZOMBIE_S: Final = 30.0
"""How long a woken driver may take to end; then it gets SIGKILL, so that it does not work on a
checkpoint that is copied or restored."""
_LOOK_S: Final = 0.2
"""How often that is looked for; a larger value replaces the process later."""
_JOIN_S: Final = 150.0
"""Bounds the wait for the tracks' ends; beyond it the run fails. Half of it bounds the wait for
replicas, which must be over before."""
_COMMITS: Final = 100
"""Commits between two faults of a track. With fewer, faults pile up where to get over one takes
longer than the plan's pauses, and the run attacks a cluster that decides nothing."""
_COMMITS_S: Final = 30.0
"""Bounds the wait for them: a cluster that does not get over a fault gets the next all the same."""
_FILL_S: Final = 10.0
"""How long a broker whose disk is full has to end by itself. Its log gets a record several times a
second."""
_AWAY_S: Final = 11.0
"""How long a topic that is deleted stays away: longer than a coordinator believes what it knows of
a topic (ten seconds)."""
_FORGOTTEN_S: Final = 50.0
"""Bounds the wait until no unfinished transaction lists it, from its deletion on."""
_INTERRUPTED_S: Final = 40.0
"""How long a process has to close its clients after SIGINT: its brokers may be down meanwhile, and
the machine busy."""


class Nemesis:
    """The faults of one run."""

    def __init__(
        self,
        plan: Iterable[Fault],
        *,
        seconds: float,
        cluster: LocalCluster,
        fleet: Fleet,
        proxies: Proxies,
        trimmer: Trimmer,
        topics: Topics,
        inspector: Inspector,
        recorder: Recorder,
        progress: Progress,
        checkpoints: Checkpoints | None = None,
        operator: Operator | None = None,
    ) -> None:
        """Sorts the plan into tracks; `start` begins it.

        The caller goes on reading `progress`. `checkpoints` are those of the Spark query;
        `operator` switches topics.
        """
        self._seconds = seconds
        self._cluster = cluster
        self._fleet = fleet
        self._proxies = proxies
        self._trimmer = trimmer
        self._topics = topics
        self._inspector = inspector
        self._recorder = recorder
        self._progress = progress
        self._checkpoints = checkpoints
        self._operator = operator
        self._tracks: dict[str, list[Fault]] = {}
        for fault in plan:
            self._tracks.setdefault(TRACKS[fault.role], []).append(fault)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._started_s = 0.0
        self._guard = threading.Lock()
        self._active: dict[str, str] = {}
        self.counts: Counter[What] = Counter()
        """Faults done, by kind."""
        self.failure: Exception | None = None
        """The error that ended a track early, such as that something could not be started again."""

    def start(self) -> None:
        """Starts the tracks; the plan's time begins now."""
        self._started_s = time.monotonic()
        for name, faults in self._tracks.items():
            thread = threading.Thread(
                target=self._run_track, args=(name, faults), name=f"chaos-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Heals what is hurt, and ends the tracks.

        Raises:
            ChaosError: a track does not end.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                raise ChaosError(f"{thread.name} did not heal what it hurt in {_JOIN_S:.0f} s.")

    def healed(self) -> None:
        """Writes to the history that nothing is hurt any more."""
        self._recorder.write("healed")

    @property
    def active(self) -> list[str]:
        """Faults under way, in words."""
        with self._guard:
            return sorted(self._active.values())

    # ---- one track -------------------------------------------------------------------------------

    def _run_track(self, name: str, faults: list[Fault]) -> None:
        late_s = 0.0
        due = 0  # commits
        for fault in faults:
            at_s = fault.at_s + late_s
            if self._stopping.wait(max(0.0, self._started_s + at_s - time.monotonic())):
                return
            if self._await_committed(due):
                return
            late_s = max(late_s, time.monotonic() - self._started_s - fault.at_s)
            if fault.until_s + late_s > self._seconds:
                return
            try:
                self._do(name, fault)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                self.failure = self.failure or error
                self._recorder.write("note", note=f"{fault.target}: {error!r}")
                return
            late_s = max(late_s, time.monotonic() - self._started_s - fault.until_s)
            due = self._committed + _COMMITS

    @property
    def _committed(self) -> int:
        return self._progress.outcomes["committed"]

    def _await_committed(self, count: int) -> bool:
        """Waits until so many are committed, or `_COMMITS_S`. Returns whether the run stops."""
        until_s = time.monotonic() + _COMMITS_S
        while self._committed < count and time.monotonic() < until_s:
            if self._stopping.wait(_LOOK_S):
                return True
        return False

    def _do(self, track: str, fault: Fault) -> None:
        with self._guard:
            self._active[track] = f"{fault.what} {fault.target}"
        try:
            if fault.role is Role.TOPIC:
                done = self._trim(fault)
            elif fault.role is Role.FLEETING:
                done = self._recreate()
            elif fault.role is Role.TOPICS:
                done = self._grow()
            elif fault.role is Role.MODE:
                done = self._switch(fault)
            elif fault.role is Role.SEAL:
                done = self._seal(fault)
            elif fault.role is Role.BROKER:
                done = self._hurt_broker(fault)
            else:
                done = self._hurt_member(fault)
            if done:
                self.counts[fault.what] += 1
        finally:
            with self._guard:
                self._active.pop(track, None)

    def _tell(self, what: str, target: str, **more: object) -> None:
        self._recorder.write("fault", what=what, target=target, **more)

    # ---- brokers --------------------------------------------------------------------------------

    def _hurt_broker(self, fault: Fault) -> bool:
        broker = self._cluster.brokers[fault.number]
        target = f"broker-{broker.id}"
        if fault.what in (What.CUT, What.STALL, What.DELAY):
            self._hurt_link(fault, target, _rule(fault, link=link_of(broker.id)))
        else:
            self._hurt_process(fault, broker, target)
        self._await_in_sync()
        return True

    def _hurt_process(self, fault: Fault, broker: Broker, target: str) -> None:
        self._tell(fault.what, target)
        if fault.what is What.KILL:
            broker.kill()
            self._stopping.wait(fault.for_s)
            self._tell("start", target)
            broker.start()
        elif fault.what is What.PAUSE:
            broker.pause()
            self._stopping.wait(fault.for_s)
            self._tell("resume", target)
            broker.resume()
        elif fault.what is What.FILL:
            by_itself = fill_disk(broker, _FILL_S)
            self._recorder.write("note", note=f"{target} ended by itself: {by_itself}")
            self._stopping.wait(fault.for_s)
            self._tell("start", target)
            broker.start()
        else:
            broker.restart()

    def _await_in_sync(self) -> None:
        # Done even if the run is stopping: a fault is over only when all replicas have caught up.
        deadline_s = time.monotonic() + _JOIN_S / 2
        while True:
            try:
                self._cluster.await_in_sync(_IN_SYNC_SLICE_S)
            except NotInSyncError:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return

    # ---- connections ----------------------------------------------------------------------------

    def _hurt_link(self, fault: Fault, target: str, rule: Rule) -> None:
        more = {"delay_ms": fault.delay_ms} if fault.delay_ms else {}
        self._tell(fault.what, target, **more)
        self._proxies.hurt(target, rule)
        try:
            self._stopping.wait(fault.for_s)
            self._tell("heal", target)
        finally:
            self._proxies.heal(target)

    # ---- processes of logtx ---------------------------------------------------------------------

    def _hurt_member(self, fault: Fault) -> bool:
        member = self._fleet.member(fault.role, fault.number)
        target = member.process_name
        if not member.child.is_running:
            return False
        of_spark = fault.role is Role.SPARK
        limit_s = _SPARK_CONNECTED_S if of_spark else _CONNECTED_S
        at_work = of_spark or fault.what in (What.REPLACE, What.INTERRUPT)
        if at_work and not self._is_connected(target, limit_s):
            return False
        if of_spark and self._stopping.wait(_SPARK_WORKS_S):
            return False
        if fault.what is What.MISLEAD:
            return self._mislead(fault, member, target)
        if fault.what not in (What.CUT, What.STALL, What.DELAY):
            self._PROCESS_FAULTS[fault.what](self, fault, member, target)
        elif fault.role is Role.COORDINATOR:
            self._hurt_link(fault, target, _rule(fault, link=member.name))
        else:
            self._hurt_link(fault, target, _rule(fault, pid=member.child.pid))
        return True

    def _mislead(self, fault: Fault, member: Member, target: str) -> bool:
        # One that is starting would rightly refuse an address at which another one answers.
        assert isinstance(member.child, ChaosCoordinator)
        if not member.child.has_started:
            return False
        names = [member.name for member in self._fleet.coordinators]
        if len(names) < 2:
            return False
        name, other = names[fault.number], names[(fault.number + 1) % len(names)]
        self._tell("mislead", target, to=other)
        self._proxies.mislead(name, other)
        try:
            self._stopping.wait(fault.for_s)
            self._tell("heal", target)
        finally:
            self._proxies.heal_lead(name)
        return True

    def _is_connected(self, target: str, limit_s: float) -> bool:
        # A process that was paused before its first transaction would connect when it wakes, and
        # rightly fence its successor. One that is interrupted then is still starting.
        until_s = time.monotonic() + limit_s
        while target not in self._progress.connected:
            if time.monotonic() > until_s or self._stopping.wait(_LOOK_S):
                return False
        return True

    def _kill(self, fault: Fault, member: Member, target: str) -> None:
        self._tell("kill", target)
        member.kill()
        if fault.role is Role.SPARK and self._checkpoints is not None:
            self._checkpoints.back_up()
        self._stopping.wait(fault.for_s)
        member.start()
        self._tell("start", member.process_name)

    def _restore(self, fault: Fault, member: Member, target: str) -> None:
        assert self._checkpoints is not None
        has_backup = self._checkpoints.has_backup
        self._tell("restore" if has_backup else "kill", target)
        member.kill()
        if has_backup:
            self._checkpoints.restore()
        else:
            self._checkpoints.back_up()
        self._stopping.wait(fault.for_s)
        member.start()
        self._tell("start", member.process_name)

    def _pause(self, fault: Fault, member: Member, target: str) -> None:
        self._tell("pause", target)
        member.child.pause()
        self._stopping.wait(fault.for_s)
        self._tell("resume", target)
        member.child.resume()

    def _restart(self, fault: Fault, member: Member, target: str) -> None:
        del fault
        self._tell("restart", target)
        member.stop()
        member.start()
        self._tell("start", member.process_name)

    def _interrupt(self, fault: Fault, member: Member, target: str) -> None:
        del fault
        self._tell("interrupt", target)
        death = member.interrupt(_INTERRUPTED_S)
        if death is not None:
            self._fleet.deaths.append(death)
        self._tell("start", member.process_name)

    def _upgrade(self, fault: Fault, member: Member, target: str) -> None:
        del fault
        self._tell("upgrade", target)
        member.upgrade()
        self._tell("start", member.process_name)

    def _replace(self, fault: Fault, member: Member, target: str) -> None:
        self._tell("pause", target)
        zombie = member.replace()
        self._tell("start", member.process_name)
        self._stopping.wait(fault.for_s)
        of_spark = fault.role is Role.SPARK
        if of_spark:
            # So that the zombie finds a successor at work, however long a JVM takes to start.
            self._is_connected(member.process_name, _SPARK_CONNECTED_S)
        self._tell("resume", target)
        zombie.resume()
        self._let_live(zombie)
        if of_spark:
            zombie.await_end(_SPARK_ZOMBIE_S)

    def _let_live(self, zombie: Child) -> None:
        until_s = time.monotonic() + _ZOMBIE_S
        while zombie.is_running and time.monotonic() < until_s:
            if self._stopping.wait(0.1):
                break
        zombie.ask_to_stop()

    _PROCESS_FAULTS: Final[dict[What, Callable[[Nemesis, Fault, Member, str], None]]] = {
        What.KILL: _kill,
        What.PAUSE: _pause,
        What.RESTART: _restart,
        What.REPLACE: _replace,
        What.RESTORE: _restore,
        What.INTERRUPT: _interrupt,
        What.UPGRADE: _upgrade,
    }

    # ---- topics ---------------------------------------------------------------------------------

    def _trim(self, fault: Fault) -> bool:
        trim = self._trimmer.choose(fault.number)
        if trim is None:
            return False
        self._tell("trim", f"{trim.topic}-{trim.partition}", before=trim.before)
        try:
            self._trimmer.trim(trim)
        except BrokerError as error:
            # The partition's leader is hurt just now: the trim may be done, now or later.
            self._recorder.write("note", note=f"trim of {trim}: {error}")
        return True

    def _recreate(self) -> bool:
        self._tell("recreate", FLEETING_TOPIC)
        self._topics.delete()
        if self._operator is not None:
            self._operator.made_anew(FLEETING_TOPIC)
        self._await_forgotten()
        self._topics.make_anew()
        # Whatever is appended from now on is in the new one: the old one has no in-sync replicas.
        self._tell("recreated", FLEETING_TOPIC)
        return True

    def _await_forgotten(self) -> None:
        # As `docs/architecture.md` tells operators: before that, markers of the deleted topic would
        # land in the new one. Done even if the run is stopping.
        began_s = time.monotonic()
        while time.monotonic() < began_s + _FORGOTTEN_S:
            is_over = time.monotonic() > began_s + _AWAY_S
            if is_over and self._inspector.unfinished(FLEETING_TOPIC) == frozenset():
                return
            time.sleep(_LOOK_S)
        self._recorder.write("note", note=f"{FLEETING_TOPIC} is still listed by transactions")

    def _switch(self, fault: Fault) -> bool:
        assert self._operator is not None
        self._operator.switch(fault.number)
        return True

    def _seal(self, fault: Fault) -> bool:
        topic = (DATA_TOPIC, OUT_TOPIC)[fault.number]
        self._tell("seal", topic)
        try:
            self._topics.seal(topic)
            self._stopping.wait(fault.for_s)
        finally:
            self._topics.unseal(topic)
            self._tell("unseal", topic)
        return True

    def _grow(self) -> bool:
        self._tell("grow", "topics")
        count = self._topics.grow()
        if count is not None:
            self._tell("grown", "topics", partitions=count)
        return count is not None


def _rule(fault: Fault, *, link: str | None = None, pid: int | None = None) -> Rule:
    return Rule(
        cut=fault.what is What.CUT,
        stall=fault.what is What.STALL,
        delay_s=fault.delay_ms / 1000,
        link=link,
        pid=pid,
    )
