"""Small configurations of adopting, and its rules, each with a way to drop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from logtx.consumer.core.home_view import HomeView
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.coordinator.core.adopting import Adopted, Answer, Answers, HandedOver
from logtx.journal.places import Adoption

from ..simulation.mutations import Patch
from . import placed_cores
from .adopting_world import AdoptingScenario
from .placed_scenarios import _Believing, end_before_decision, no_gate, readers_believe_all
from .places_draft import Budget

ONE: Final = (("f", 1),)
TWO: Final = (("f", 1), ("f", 2))

ADOPTED: Final = AdoptingScenario(
    "adopted", "one transaction of the home, one of another journal; a reader that is killed",
    (1,), Budget(plain=1, restarts=1), written=ONE,
)  # fmt: skip
ADOPTED_HALVES: Final = AdoptingScenario(
    "adopted, halves", "killed in the middle of the other's; look-ups", (),
    Budget(plain=1, restarts=1, look_ups=1), foreign=(2,),
)  # fmt: skip
ADOPTED_ABORTS: Final = AdoptingScenario(
    "adopted, aborts", "the other's are aborted, some data is late; look-ups", (),
    Budget(plain=1, aborts=1, late=1, look_ups=1), written=ONE,
)  # fmt: skip
ADOPTED_IN_ORDER: Final = AdoptingScenario(
    "adopted, in order", "two of the other's, marked and handed over", (),
    Budget(plain=1), foreign=(1, 1), written=TWO, length_max=6,
)  # fmt: skip
ADOPTED_REPLACED: Final = AdoptingScenario(
    "adopted, replaced", "both owners are replaced; what they wrote last is late", (),
    Budget(crashes=1, foreign_crashes=1, aborts=1, plain=1), written=ONE,
)  # fmt: skip
ADOPTED_BACK: Final = AdoptingScenario(
    "adopted, back", "places, markers; both owners are replaced, a reader is killed", (),
    Budget(switches=1, crashes=1, foreign_crashes=1, restarts=1), written=ONE, length_max=5,
    reads_in_steps=False,
)  # fmt: skip
ADOPTED_TO: Final = AdoptingScenario(
    "adopted, to and back", "markers, places, markers; one of each journal", (1,),
    Budget(switches=2), written=(("d", 0), ("f", 1)), length_max=7, marked=True,
    reads_in_steps=False,
)  # fmt: skip
ADOPTED_AGAIN: Final = AdoptingScenario(
    "adopted, again", "places, markers, places; two of the other's, its owner is replaced", (),
    Budget(switches=2, foreign_crashes=1), foreign=(1, 1), written=TWO, length_max=8, is_read=False,
)  # fmt: skip
ADOPTED_TWO: Final = AdoptingScenario(
    "adopted, two", "places, markers; two of the other's, a reader", (),
    Budget(switches=1), foreign=(1, 1), written=TWO, length_max=7, reads_in_steps=False,
    knows_modes=True,
)  # fmt: skip
ADOPTED_SHARES: Final = AdoptingScenario(
    "adopted, in shares", "in three records each; both owners are replaced, a reader is killed", (),
    Budget(crashes=1, foreign_crashes=1, restarts=1, aborts=1), written=ONE, length_max=4,
    in_shares=True,
)  # fmt: skip
ADOPTED_SHARES_BACK: Final = AdoptingScenario(
    "adopted, in shares and back", "places, markers; the home's owner is replaced", (),
    Budget(switches=1, crashes=1), written=ONE, length_max=5, in_shares=True, reads_in_steps=False,
)  # fmt: skip
ADOPTED_SHARES_TWO: Final = AdoptingScenario(
    "adopted, two in shares", "two of the other's, a reader", (),
    Budget(), foreign=(1, 1), written=TWO, length_max=6, in_shares=True,
)  # fmt: skip

ADOPTING_SEARCHES: Final[tuple[tuple[Any, Any], ...]] = (
    # In full, and as every test run visits it.
    (ADOPTED_REPLACED, replace(ADOPTED_REPLACED, reads_in_steps=False,
                               budget=Budget(crashes=1, foreign_crashes=1), length_max=3)),
    (ADOPTED_BACK, replace(ADOPTED_BACK, budget=Budget(switches=1, restarts=1))),
    (ADOPTED_TWO, replace(ADOPTED_TWO, foreign=(1,), written=ONE)),
    (ADOPTED, replace(ADOPTED, budget=Budget(restarts=1), records=(), length_max=3)),
    (ADOPTED_TO, replace(ADOPTED_TO, budget=Budget(switches=1))),
    (ADOPTED_AGAIN, replace(ADOPTED_AGAIN, budget=Budget(switches=2), reads_in_steps=False)),
    (ADOPTED_HALVES, replace(ADOPTED_HALVES, budget=Budget(restarts=1, look_ups=1))),
    (ADOPTED_ABORTS, replace(ADOPTED_ABORTS, budget=Budget(aborts=1, late=1))),
    (ADOPTED_IN_ORDER, replace(ADOPTED_IN_ORDER, budget=Budget())),
    (ADOPTED_SHARES, replace(ADOPTED_SHARES, budget=Budget(crashes=1), is_read=False)),
    (ADOPTED_SHARES_BACK, replace(ADOPTED_SHARES_BACK, is_read=False, length_max=4)),
    (ADOPTED_SHARES_TWO, replace(ADOPTED_SHARES_TWO, foreign=(1,), written=ONE)),
)  # fmt: skip


# ---- rules dropped ------------------------------------------------------------------------------


def adopted_twice(patch: Patch) -> None:
    """The home does not know what it has adopted (A1)."""
    adopt, replay = Adopted.adopt, Adopted.replay

    def forgetful(call: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Adopted, *args: Any) -> Any:
            kept = {journal: of.upto for journal, of in self._of.items()}
            for of in self._of.values():
                of.upto = -1
            found = call(self, *args)
            for journal, upto in kept.items():
                self._of[journal].upto = max(upto, self._of[journal].upto)
            return found

        return mutant

    patch(Adopted, "adopt", forgetful(adopt))
    patch(Adopted, "replay", forgetful(replay))


def silent_where_it_does_not_place(patch: Patch) -> None:
    """A home adopts what it places, and is silent about the rest (A2)."""
    adopt = Adopted.adopt

    def mutant(self: Adopted, *args: Any) -> Adoption | None:
        found = adopt(self, *args)
        return found if found is None or all(w.placed for w in found.writes) else None

    patch(Adopted, "adopt", mutant)


def places_in_any_mode(patch: Patch) -> None:
    """A home places all that is handed over to it (A3)."""
    adopt = Adopted.adopt

    def mutant(self: Adopted, *args: Any) -> Adoption | None:
        found = adopt(self, *args)
        if found is None:
            return None
        return replace(found, writes=tuple(replace(w, placed=True) for w in found.writes))

    patch(Adopted, "adopt", mutant)


def handed_over_beside_markers(patch: Patch) -> None:
    """A partition is handed over while markers of it are unfinished (A4)."""
    patch(HandedOver, "may_hand", lambda *_: True)


def markers_before_answers(patch: Patch) -> None:
    """A marker goes out while something earlier has no answer (A4)."""
    patch(Answers, "may_mark", lambda *_: True)


def placed_beside_refusals(patch: Patch) -> None:
    """A home places what follows something refused that is not finished (A4)."""
    patch(Adopted, "_locked", staticmethod(lambda *_: frozenset()))


def snapshot_forgets_refusals(patch: Patch) -> None:
    """A snapshot of the home does not list what it refused."""
    rows = Adopted.rows
    patch(Adopted, "rows", lambda self: [(j, upto, {}) for j, upto, _ in rows(self)])


def snapshot_forgets_waiting(patch: Patch) -> None:
    """A snapshot of the home does not list what is adopted and not placed."""
    patch(Adopted, "unplaced", lambda _: [])


def finished_when_adopted(patch: Patch) -> None:
    """The other journal takes what is adopted for placed (A5)."""
    answer = Adopted.answer

    def mutant(self: Adopted, txid: Any, sequence: int, partition: Any) -> Answer:
        found = answer(self, txid, sequence, partition)
        is_adopted = sequence <= self.upto(txid.journal)
        return Answer.PLACED if is_adopted and found is Answer.NONE else found

    patch(Adopted, "answer", mutant)


def aborts_are_not_adopted(patch: Patch) -> None:
    """A home adopts commits alone (A6)."""
    to = HandedOver.to
    patch(HandedOver, "to", lambda self, *args: (h for h in to(self, *args) if h.committed))


def shares_overlap(patch: Patch) -> None:
    """A home goes on with the partition that it adopted last (A7)."""
    left = Adopted._left

    def mutant(self: Adopted, handed: Any, begun: Any, bytes_max: int) -> Any:
        if begun is not None:
            before = [w.partition for w in handed.writes if w.partition < begun.last]
            begun = begun._replace(last=max(before)) if before else None
        return left(self, handed, begun, bytes_max)

    patch(Adopted, "_left", mutant)


def adopted_with_the_first_share(patch: Patch) -> None:
    """A transaction counts as adopted with the first of its records (A7)."""
    replay = Adopted.replay

    def mutant(self: Adopted, offset: int, adoption: Adoption) -> Any:
        return replay(self, offset, replace(adoption, more=False))

    patch(Adopted, "replay", mutant)


def readers_ignore_aborts(patch: Patch) -> None:
    """Readers do not take adopted aborts (A6)."""
    patch(HomeView, "take_aborted", lambda *_: [])


def _believing(items: Any) -> HandedOver:
    handed = HandedOver()
    for offset, (_, item) in enumerate(items):
        placed_cores.replay_foreign(handed, offset, item)
    return handed


def void_decisions_are_adopted(patch: Patch) -> None:
    """A home adopts what a replaced owner of the other journal decided."""
    patch(placed_cores, "replica_of", _believing)


def void_adoptions_count(patch: Patch) -> None:
    """The other journal believes a replaced owner of the home."""
    home_of = placed_cores.home_of

    def mutant(*args: Any) -> Adopted:
        accepts = placed_cores.EpochFilter
        placed_cores.EpochFilter = _Believing  # type: ignore[misc]
        try:
            return home_of(*args)
        finally:
            placed_cores.EpochFilter = accepts  # type: ignore[misc]

    patch(placed_cores, "home_of", mutant)


def sequence_of_the_other(patch: Patch) -> None:
    """A reader counts the home's sequence for the journal of the TxId (R10)."""
    commit = PlacedBuffer._commit

    def mutant(self: PlacedBuffer, entry: Any, pending: Any) -> None:
        entry.journal = placed_cores.TxId.from_bytes(entry.txid).journal
        commit(self, entry, pending)

    patch(PlacedBuffer, "_commit", mutant)


def ends_are_forgotten(patch: Patch) -> None:
    """A reader does not remember that an adopted transaction has ended (R9)."""
    end_at = PlacedBuffer.end_at

    def mutant(self: PlacedBuffer, due: Any, place: int) -> bool:
        found = end_at(self, due, place)
        if due.txid is not None:
            self._ended._txids.discard(due.txid.to_bytes())
        return found

    patch(PlacedBuffer, "end_at", mutant)


ADOPTING_MUTATIONS: Final[tuple[tuple[str, str, Any, Any], ...]] = (
    ("adopted twice", "the home does not know what it has adopted (A1)", ADOPTED, adopted_twice),
    ("silent homes", "a home does not answer where it does not place (A2)", ADOPTED_BACK,
     silent_where_it_does_not_place),
    ("places in any mode", "a home places behind the mode record (A3)",
     replace(ADOPTED_BACK, budget=Budget(switches=1)), places_in_any_mode),
    ("handed over beside markers", "handed over while a marker is unfinished (A4)",
     ADOPTED_IN_ORDER, handed_over_beside_markers),
    ("markers before answers", "a marker overtakes what was handed over (A4)",
     ADOPTED_IN_ORDER, markers_before_answers),
    ("placed beside refusals", "a place overtakes the marker of something refused (A4)",
     ADOPTED_AGAIN, placed_beside_refusals),
    ("refusals forgotten", "a snapshot forgets what was refused", ADOPTED_BACK,
     snapshot_forgets_refusals),
    ("adoptions forgotten", "a snapshot forgets what is adopted and not placed", ADOPTED,
     snapshot_forgets_waiting),
    ("finished when adopted", "what is adopted counts as placed (A5)", ADOPTED,
     finished_when_adopted),
    ("aborts not adopted", "a home adopts commits alone (A6)", ADOPTED_ABORTS,
     aborts_are_not_adopted),
    ("shares overlap", "a home goes on with the partition that it adopted last (A7)",
     ADOPTED_SHARES, shares_overlap),
    ("adopted with the first share", "it counts as adopted with the first record (A7)",
     ADOPTED_SHARES, adopted_with_the_first_share),
    ("readers ignore aborts", "readers do not take adopted aborts (A6)", ADOPTED_ABORTS,
     readers_ignore_aborts),
    ("void decisions adopted", "a home adopts what a replaced owner decided", ADOPTED_REPLACED,
     void_decisions_are_adopted),
    ("void adoptions count", "the other journal believes a replaced owner of the home",
     ADOPTED_REPLACED, void_adoptions_count),
    ("void adoptions read", "readers believe a replaced owner of the home (R6)",
     replace(ADOPTED_REPLACED, budget=Budget(crashes=1), reads_in_steps=False),
     readers_believe_all),
    ("an end before the adoption", "the end was asked for before ADOPT (R2)",
     replace(ADOPTED, budget=Budget(plain=1), written=(("d", 0), ("f", 1)), length_max=3,
             knows_modes=True, reads_in_steps=False), end_before_decision),
    ("adopted without a gate", "whatever was fetched is passed on (R7)", ADOPTED, no_gate),
    ("a sequence of the other", "the home's sequence counts for the TxId's journal (R10)",
     ADOPTED, sequence_of_the_other),
    ("adopted ends forgotten", "late data of what was adopted is held (R9)",
     replace(ADOPTED_ABORTS, budget=Budget(late=1)), ends_are_forgotten),
)  # fmt: skip
