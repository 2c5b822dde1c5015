"""Random histories of one transaction key: four clients, deletions, two coordinators, a bad log.

The checker of the harness watches the journal: no fenced commit, no two open transactions of a key.
The tests here also check that no epoch is given to two clients or out of turn, deletions included,
and that no client is told "done" about what a newer connection must have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from logtx.coordinator.core.producers import Admission, Producers
from logtx.coordinator.protocol import commands
from logtx.journal.errors import NotAllowedError, ProducerFencedError
from logtx.journal.txid import TxId

from ...parameters import slow
from ..harness import Coordinator, Event, Journal, Replied
from .test_shard_stateful import Client, World, pick, run_seed
from .test_snapshot import replica, take_snapshot

KEY: Final = "&default&k"
SEEDS: Final = 100
QUICK: Final = 40
"""Those of which `make test` runs the histories."""


class KeyWorld(World):
    """All clients use one key, and operators delete it."""

    def __init__(self) -> None:
        """Begins with four instances, none of which has an epoch."""
        super().__init__()
        self.clients = [Client(KEY, nonce) for nonce in range(1, 5)]
        self.given: dict[int, int] = {}
        """Epoch → nonce of the only client that it was given to."""
        self.floor: dict[int, int] = {}
        """Request → lowest epoch that its answer may tell, as of when it was sent."""
        self._begun: set[TxId] = set()
        self.deleted = -1
        """Epochs up to this one are deleted, and a client was told so."""

    def send(self, client: Client, command: commands.Command, where: int = 0) -> None:
        """A client sends a command, for the first time or again."""
        told = max(self.given, default=-1)
        self.floor[len(self._senders)] = max(told, self.deleted + 1)
        super().send(client, command, where)

    def connect(self, who: int, generation: int, where: int) -> None:
        """Connect; `generation`: 0 and 1 as it should, 2 as a new instance, 3 with epoch 0."""
        client = pick(self.clients, who)
        own = client.session.generation if client.session else -1
        epoch = pick((own, own, -1, 0), generation)
        command = commands.Connect(producer_id=KEY, nonce=client.nonce, generation=epoch)
        self.ask(client, command, where)
        self.at(where).attach(KEY)

    def question(self, who: int, kind: int, which: int, where: int) -> None:
        """Ask: 0 and 1 delete, 2 get, 3 list the keys, 4 abort one of its transactions."""
        client = pick(self.clients, who)
        if kind % 5 == 4 and client.transactions:
            command: commands.Command = commands.AbortTransaction(
                txid=pick(client.transactions, which)
            )
        else:
            deletion = commands.DeleteKey(name=KEY)
            command = pick(
                (deletion, deletion, commands.GetKey(name=KEY), commands.ListKeys()), kind
            )
        self.ask(client, command, where)

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        super()._listen(coordinator, event)
        if isinstance(event, Replied):
            self._judge(event.ref, coordinator.commands[event.ref], event.reply)

    def _judge(self, ref: Any, command: commands.Command, reply: commands.Reply) -> None:
        match command, reply:
            case commands.Connect(), commands.Connected():
                holder = self.given.setdefault(reply.generation, command.nonce)
                assert holder == command.nonce, f"epoch {reply.generation} was given twice"
                assert reply.generation >= self.floor[ref], "an epoch below one that was told"
            case commands.Begin(), commands.Began():
                # A retry may be told what it was told before.
                if reply.txid not in self._begun:
                    generation = command.session.generation
                    assert generation >= self.floor[ref], "a zombie began a transaction"
                self._begun.add(reply.txid)
            case commands.DeleteKey(), commands.Done():
                # It deletes all epochs told before it was sent; those given in between may live.
                self.deleted = max(self.deleted, min(self.floor[ref], max(self.given, default=-1)))
            case commands.GetKey(), commands.KeyInfo():
                assert reply.epoch >= self.floor[ref], "a stale epoch was shown"
            case _:
                pass


def run(seed: int) -> None:
    run_seed(seed, 80, KeyWorld)


def run_seeds() -> None:
    for seed in range(SEEDS):
        run(seed)


@pytest.mark.parametrize("seed", [*range(QUICK), *slow(range(QUICK, SEEDS))])
def test_history_of_seed(seed: int) -> None:
    run(seed)


def test_a_snapshot_remembers_a_deleted_key() -> None:
    journal = Journal()
    owner = Coordinator(journal)
    owner.take_over()
    for nonce in range(3):
        owner.submit(commands.Connect(producer_id=KEY, nonce=nonce, generation=-1), nonce)
    owner.submit(commands.DeleteKey(name=KEY), 3)
    first = take_snapshot(owner)
    owner.ack()
    shard = replica(journal.entries, first, certain=True).shard
    assert shard.producers[KEY].generation == 2
    zombie = commands.Connect(producer_id=KEY, nonce=2, generation=2)
    with pytest.raises(NotAllowedError):
        shard.producers.admit(zombie, owner.now)
    newcomer = commands.Connect(producer_id=KEY, nonce=9, generation=-1)
    assert shard.producers.admit(newcomer, owner.now).generation == 3


# ---- proof that they bite -----------------------------------------------------------------------

Mutation = Callable[[pytest.MonkeyPatch], None]


def deletion_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted key starts again at epoch 0 (trap 32)."""
    replay = Producers.replay

    def mutant(self: Producers, record: Any, hour: int) -> Any:
        fenced = replay(self, record, hour)
        producer = self[record.producer_id]
        if producer.voided and not producer.open:
            producer.generation = -1
        return fenced

    monkeypatch.setattr(Producers, "replay", mutant)


def any_client_reattaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever brings the current epoch is taken for the client that has it (trap 31)."""
    admit = Producers.admit

    def mutant(self: Producers, command: commands.Connect, now: Any) -> Admission:
        producer = self.get(command.producer_id)
        if producer is not None and not producer.voided:
            return Admission(generation=producer.generation)
        return admit(self, command, now)

    monkeypatch.setattr(Producers, "admit", mutant)


def many_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may have several open transactions, as a transactional.id has."""
    monkeypatch.setattr(Producers, "check_may_begin", lambda *_: None)


def zombies_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older epoch may connect again, and is given the next."""
    admit = Producers.admit

    def mutant(self: Producers, command: commands.Connect, now: Any) -> Admission:
        try:
            return admit(self, command, now)
        except ProducerFencedError:
            producer = self[command.producer_id]
            return Admission(generation=producer.generation)

    monkeypatch.setattr(Producers, "admit", mutant)


MUTATIONS: Final = (deletion_forgets, any_client_reattaches, many_open, zombies_come_back)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_mutation_is_caught(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        run_seeds()
    print(caught.value)
