"""Proof that the checkers bite: each broken rule is caught by the checker named for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

from .checkers import CHECKERS, violations
from .mutations import (
    MUTATIONS,
    Mutation,
    adopting_mutations,
    compaction_mutations,
    place_mutations,
    placed_queue_mutations,
    queue_mutations,
    reset_mutations,
    shown_mutations,
    sidecar_mutations,
)
from .registry import described_in_docs
from .test_simulation import MANY
from .world import simulate

SEEN_AT: Final = {
    "a_lane_is_not_watched": 18,
    "acknowledged_in_any_order": 103,
    "careful_with_many": 11,
    "claims_doom_nothing": 12,
    "condition_not_looked_at": 72,
    "deleted_key_begins_anew": 192,
    "delivered_part_forgotten": 57,
    "doomed_may_commit": 31,
    "end_before_the_fate": 8,
    "ends_believed_at_once": 78,
    "failed_markers_are_overtaken": 18,
    "finished_before_its_ends": 14,
    "forgotten_generations_come_back": 27,
    "former_topics_are_not_heard_of": 53,
    "full_queue_is_passed_over": 284,
    "gone_at_once": 125,
    "later_effects_overtake": 14,
    "latest_topic_is_stated": 255,
    "look_up_believed_at_once": 7,
    "looks_counted_from_a_journal_of_the_past": 3155,
    "markers_name_no_topic": 255,
    "new_partitions_are_refused": 31,
    "offsets_not_asserted_again": 60,
    "old_answers_refuse": 542,
    "older_claims_go_on": 28,
    "one_that_cannot_read_ends_sessions": 24,
    "order_of_the_markers": 89,
    "redone_in_order_of_begin": 11,
    "refused_offsets_are_not_repeated": 38,
    "repeated_parts_count_again": 53,
    "serial_part_forgotten": 198,
    "snapshot_forgets_generations": 64,
    "snapshot_forgets_offsets": 52,
    "snapshot_forgets_parts": 8,
    "stale_answers": 284,
    "steps_without_the_vector": 28,
    "strays_are_delivered": 11,
    "sweeping_forgets_what_waits": 0,
    "topics_before_the_outcome": 783,
    "unknown_outcome_is_an_abort": 79,
}
"""Mutation → first seed that catches it. The rare ones would take long otherwise."""
SEEN_WITH_SWITCHES_AT: Final = {
    "a_view_takes_what_it_went_past": 8,
    "any_fence_will_do": 1,
    "end_asked_before_the_decision": 5,
    "fence_lists_nothing": 10,
    "fence_must_be_named": 16,
    "first_share_counts_as_all": 8,
    "gate_asked_before_the_fetch": 242,
    "home_without_the_topics_id": 431,
    "journal_is_trimmed_below_what_it_handed_over": 9,
    "last_records_count_as_markers": 39,
    "marker_overtakes_a_place": 27,
    "mode_record_not_waited_for": 0,
    "no_gate": 3,
    "only_the_latest_switch_is_told": 977,
    "other_ids_are_not_heard_of": 11_800,
    "readers_pass_over_what_is_adopted": 0,
    "snapshot_forgets_what_is_adopted": 10,
    "stretch_that_was_missed": 287,
    "trimmed_at_once": 5,
    "turns_at_the_offset": 27,
    "void_records_are_kept": 12,
    "what_is_decided_is_not_awaited": 177,
    "what_is_not_named_is_covered": 18,
    "what_is_only_decided_is_adopted": 4,
    "what_is_placed_elsewhere_is_waited_for": 17156,
    "what_lies_below_the_start_is_due": 12,
    "what_was_dropped_counts_as_kept": 9,
}
"""The same for mutations of places, in histories with switches."""
SEEN_BESIDE_SIDECARS: Final = frozenset(
    {"only_the_latest_switch_is_told", "other_ids_are_not_heard_of"}
)
"""Those of them that are caught where the switched topics have sidecars. Without, a reader that
begins in the middle is told of an earlier switch too rarely (none of 3,000 seeds); and two brokers
are rarely behind at once, with a marker and a place at one offset."""
SEEN_WITH_SIDECARS_AT: Final = {
    "all_in_between_counts": 31,
    "copies_of_what_is_delivered_are_collected": 89,
    "decisions_in_flight_count": 5597,
    "goes_on_at_the_last_record": 6,
    "marker_overtakes_its_pointer": 0,
    "pointers_are_not_told": 5,
    "pointers_to_come_need_nothing": 152,
    "short_sidecar_is_lost_at_once": 1,
    "sidecars_are_trimmed_at_once": 26,
    "since_is_above_the_decision": 0,
    "since_of_each_copy": 0,
    "small_records_go_to_the_topic_again": 1,
    "snapshot_forgets_since": 11,
    "whoever_meets_a_pointer_takes_it": 5,
}
"""The same for mutations of sidecars, in histories with sidecars (traps 91, 107, 128, 135 and
158)."""
SEEN_WITH_COMPACTIONS_AT: Final = {
    "copies_have_offsets_of_their_own": 1,
    "latest_end_counts": 120,
    "refused_records_are_passed_over": 48,
    "relocations_are_read_once": 12,
    "what_has_moved_is_not_needed": 2,
    "what_has_no_marker_holds_nothing": 1,
}
"""The same for mutations of compaction, in histories with it (traps 189, 191, 193 and 206)."""
SEEN_WITH_QUEUES_AT: Final = {
    "aborted_acks_delete": 0,
    "anybody_releases": 3,
    "commit_before_the_acks": 1,
    "conflicts_are_not_seen": 4,
    "ended_transactions_take_acks": 20,
    "ends_of_former_topics_are_awaited": 45,
    "goes_on_where_it_was_last": 16,
    "leases_are_told_as_they_were": 1,
    "leases_begin_when_told": 14,
    "leases_may_be_stale": 32,
    "leases_pass_the_end": 0,
    "names_begin_anew": 0,
    "new_owner_gives_out_at_once": 1,
    "pending_is_told_as_done": 14,
    "plain_acks_take_what_is_pending": 14,
    "repeated_acks_count_again": 1,
    "snapshot_forgets_acks": 1,
    "snapshot_forgets_pending_acks": 1,
    "switches_are_what_was_published": 11,
    "takeover_forgets_pending_acks": 1,
    "stays_where_another_lease_begins": 0,
    "a_topic_made_anew_is_read_by_the_same_client": 158,
    "the_rest_of_a_pointer_is_a_gap": 7,
    "the_very_end_is_final": 3,
    "topics_that_were_left_are_not_looked_up": 220,
    "what_is_given_up_is_a_gap": 6,
    "who_rests_keeps_its_topics": 5,
    "whoever_attaches_has_what_it_names": 0,
}
"""The same for mutations of queues, in histories with a queue (trap 165)."""
SEEN_WITH_PLACED_QUEUES_AT: Final = {
    "a_home_that_was_trimmed_is_lost": 2,
    "an_offset_has_one_place_in_the_sidecar": 5,
    "places_stand_for_no_pointer": 1,
}
"""The same for mutations of queues in topics in metadata mode with sidecars (trap 217)."""
SEEN_WITH_PLACED_AT: Final = {
    "no_gate_before_records_are_shown": 455,
    "no_question_before_records_are_shown": 40,
    "what_was_told_counts_as_given": 233,
}
"""The same for mutations of readers of uncommitted records, in histories with switched topics and
sidecars."""
SEEN_WITH_RESETS_AT: Final = {
    "acks_of_before_count": 11,
    "consumers_keep_what_was_reset": 367,
    "each_subscription_counts_its_eras": 0,
    "eras_end_while_messages_are_pending": 2,
    "plain_acks_of_before_count": 15,
    "resets_may_be_repeated": 3,
    "snapshot_forgets_eras": 0,
}
"""The same for mutations of queues that are reset, in histories in which that happens."""
FIRST: Final = frozenset({m.checker: m.name for m in reversed(MUTATIONS)}.values())
"""The first mutation of each checker: what a test run needs, to know that the checkers bite."""


def parameters(names: Iterable[str]) -> list[Any]:
    """Returns names as parameters, of slow tests if they are not the first of a checker."""
    return [pytest.param(each, marks=[pytest.mark.slow] * (each not in FIRST)) for each in names]


def _is_of_places(mutation: Mutation) -> bool:
    of_places = place_mutations.__name__, adopting_mutations.__name__
    return mutation.apply.__module__ in of_places


def _is_of_sidecars(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == sidecar_mutations.__name__


def _is_of_compactions(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == compaction_mutations.__name__


def _is_of_queues(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == queue_mutations.__name__


def _is_of_placed_queues(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == placed_queue_mutations.__name__


def _is_of_shown(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == shown_mutations.__name__


def _is_of_resets(mutation: Mutation) -> bool:
    return mutation.apply.__module__ == reset_mutations.__name__


def _find(mutation: Mutation, seeds: Iterable[int]) -> None:
    for seed in seeds:
        found = violations(simulate(seed))
        if mutation.checker in found:
            print(f"seed {seed}: {found}")
            return
    pytest.fail(f"{mutation.checker} found nothing in {MANY} histories")


@pytest.mark.parametrize("name", parameters(SEEN_WITH_SWITCHES_AT))
def test_mutation_of_places_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    sidecars = name in SEEN_BESIDE_SIDECARS
    history = simulate(SEEN_WITH_SWITCHES_AT[name], switches=True, sidecars=sidecars)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_SIDECARS_AT))
def test_mutation_of_sidecars_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_SIDECARS_AT[name], sidecars=True)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_COMPACTIONS_AT))
def test_mutation_of_compactions_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_COMPACTIONS_AT[name], compactions=True)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_QUEUES_AT))
def test_mutation_of_queues_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_QUEUES_AT[name], queues=True)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_PLACED_QUEUES_AT))
def test_mutation_of_placed_queues_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_PLACED_QUEUES_AT[name], queues=True, sidecars=True)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_PLACED_AT))
def test_mutation_of_uncommitted_readers_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_PLACED_AT[name], switches=True, sidecars=True)
    assert mutation.checker in violations(history)


@pytest.mark.parametrize("name", parameters(SEEN_WITH_RESETS_AT))
def test_mutation_of_resets_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    history = simulate(SEEN_WITH_RESETS_AT[name], resets=True)
    assert mutation.checker in violations(history)


def test_each_mutation_of_resets_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_resets(m)} == SEEN_WITH_RESETS_AT.keys()


def test_each_mutation_of_compactions_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_compactions(m)} == SEEN_WITH_COMPACTIONS_AT.keys()


def test_each_mutation_of_placed_queues_has_a_seed() -> None:
    found = {m.name for m in MUTATIONS if _is_of_placed_queues(m)}
    assert found == SEEN_WITH_PLACED_QUEUES_AT.keys()


def test_each_mutation_of_uncommitted_readers_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_shown(m)} == SEEN_WITH_PLACED_AT.keys()


def test_each_mutation_of_queues_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_queues(m)} == SEEN_WITH_QUEUES_AT.keys()


def test_each_mutation_of_sidecars_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_sidecars(m)} == SEEN_WITH_SIDECARS_AT.keys()


def test_each_mutation_of_places_has_a_seed() -> None:
    assert {m.name for m in MUTATIONS if _is_of_places(m)} == SEEN_WITH_SWITCHES_AT.keys()


def _is_of_histories_of_its_own(mutation: Mutation) -> bool:
    of = (
        *(_is_of_places, _is_of_sidecars, _is_of_compactions, _is_of_queues, _is_of_resets),
        *(_is_of_placed_queues, _is_of_shown),
    )
    return any(is_of(mutation) for is_of in of)


@pytest.mark.parametrize(
    "name", parameters(m.name for m in MUTATIONS if not _is_of_histories_of_its_own(m))
)
def test_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (m for m in MUTATIONS if m.name == name)
    mutation.apply(monkeypatch.setattr)
    _find(mutation, (SEEN_AT.get(name, 0), *range(MANY)))


def test_docs_name_every_mutation_and_who_catches_it() -> None:
    described = described_in_docs()
    assert {(mutation.name, mutation.checker) for mutation in MUTATIONS} <= described
    assert set(CHECKERS) <= {name for name, _ in described}


def test_every_checker_has_a_mutation() -> None:
    assert {mutation.checker for mutation in MUTATIONS} == set(CHECKERS)
