"""Which topics had a name, by what coordinators tell each other."""

from __future__ import annotations

from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.core.topic_ids import CLOCKS_MS, IDS_MAX, KEPT_MS, TELL_MAX, TopicIds
from logtx.coordinator.core.topics import TOPICS_MAX, TopicKnowledge
from logtx.coordinator.membership import peers_pb2 as pb
from logtx.coordinator.membership.peers import AGE_MAX_MS

NOW_MS = 10_000_000


def facts(topic_id: str) -> TopicFacts:
    return TopicFacts(topic_id=topic_id, partition_count=1, record_max_bytes=1_000_000)


def ids_of(*noted: tuple[int, str]) -> TopicIds:
    ids = TopicIds()
    for at_ms, topic_id in noted:
        ids.note("t", topic_id, at_ms)
    return ids


def test_trap_242_who_never_heard_of_the_former_topic_is_told() -> None:
    """A transaction's owner is fenced off, and the topic created anew, before it is registered."""
    former, owner = TopicKnowledge(), TopicKnowledge()
    former.told("t", facts("former"), 100)
    owner.told("t", facts("new"), NOW_MS)
    assert owner.facts["t"].id_at(0) == "new"
    owner.hear(former.ids.since(0, 5_100)[0], NOW_MS)
    assert owner.facts["t"].told == ((NOW_MS - 5_000, "former"), (NOW_MS, "new"))
    assert owner.facts["t"].id_at(0) == "former"
    assert owner.facts["t"].id_at(NOW_MS) == "new"
    assert owner.facts["t"].topic_id == "new", "others do not say which topic there is"


def test_it_is_told_before_the_topic_is_looked_up() -> None:
    owner = TopicKnowledge()
    owner.hear({"t": ((5_000, "former"),)}, NOW_MS)
    assert "t" not in owner.facts
    owner.told("t", facts("new"), NOW_MS + 10)
    assert owner.facts["t"].id_at(NOW_MS) == "former"


def test_of_the_time_since_its_own_first_answer_it_knows_better() -> None:
    ids = ids_of((NOW_MS, "a"), (NOW_MS + 10_000, "b"))
    assert not ids.hear({"t": ((5_000, "stale"),)}, NOW_MS + 20_000), "it is of 15,000"
    assert not ids.hear({"t": ((20_900, "a"),)}, NOW_MS + 20_000), "clocks of hosts differ as much"
    assert ids.hear({"t": ((30_000, "z"), (22_000, "a"))}, NOW_MS + 20_000) == {"t"}
    assert ids.of("t") == ((NOW_MS - 10_000, "z"), (NOW_MS - 2_000, "a"), (NOW_MS + 10_000, "b"))


def test_the_first_and_the_latest_are_remembered_and_nothing_for_too_long() -> None:
    ids = ids_of(*((NOW_MS + n, f"id-{n}") for n in range(10)))
    assert [i for _, i in ids.of("t")] == ["id-0", "id-7", "id-8", "id-9"]
    assert len(ids.of("t")) == IDS_MAX
    ids.note("t", "last", NOW_MS + 8 + KEPT_MS + 1)
    assert [i for _, i in ids.of("t")] == ["id-8", "id-9", "last"], (
        "id-8 had the name that long ago"
    )
    assert not ids.hear({"t": ((2 * KEPT_MS, "old"),)}, NOW_MS + 2 * KEPT_MS + 20)


def test_only_what_changed_is_told() -> None:
    ids = ids_of((1, "a"))
    ids.note("u", "x", 2)
    ages, told = ids.since(0, 10)
    assert ages == {"t": ((9, "a"),), "u": ((8, "x"),)}
    assert ids.since(told, 10) == ({}, told)
    ids.note("t", "a", 11)
    ids.note("t", "", 12)
    assert ids.since(told, 20)[0] == {}, "an answer that says nothing new is no news"
    ids.note("t", "b", 13)
    assert ids.since(told, 20)[0] == {"t": ((19, "a"), (7, "b"))}
    assert ids.since(ids.since(told, 20)[1], 20)[0] == {}


def test_much_is_told_in_parts_and_what_was_forgotten_ends_it() -> None:
    ids = TopicIds()
    for n in range(2 * TELL_MAX + 1):
        ids.note(f"t{n}", "a", n)
    told, heard, parts = 0, 0, 0
    while ages := ids.since(told, NOW_MS)[0]:
        told = ids.since(told, NOW_MS)[1]
        heard, parts = heard + len(ages), parts + 1
    assert (heard, parts) == (2 * TELL_MAX + 1, 3)
    told = ids.since(0, NOW_MS)[1]
    ids.forget([f"t{n}" for n in range(TELL_MAX, 2 * TELL_MAX + 1)])
    assert ids.since(told, NOW_MS)[0] == {}


def test_what_others_tell_takes_no_room_from_what_is_used() -> None:
    known = TopicKnowledge()
    known.needs([("used", 0)], NOW_MS, NOW_MS)
    known.told("used", facts("a"), NOW_MS)
    for n in range(TOPICS_MAX + 10):
        known.hear({f"t{n}": ((1, "x"),)}, NOW_MS)
    assert "used" in known.facts
    assert known.ids.of("used")
    assert len(known.ids) <= TOPICS_MAX


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from("abc")), max_size=4)),
    st.randoms(use_true_random=False),
)
def test_news_come_to_an_end_with_the_oldest_id_known_to_all(
    heard: list[list[tuple[int, str]]], random: Random
) -> None:
    """Each host's clock counts milliseconds from a moment of its own, and news take a while."""
    all_ids = [ids_of(*sorted(each)) for each in heard]
    for _ in range(len(all_ids) + 1):
        changed = False
        for of, to in permutations(all_ids, 2):
            ages = of.since(0, 100_000 + random.randint(0, 1))[0]
            changed |= bool(to.hear(ages, 100_000 + random.randint(0, 3)))
    assert not all_ids or not changed
    firsts = [ids.of("t")[0][0] for ids in all_ids if ids.of("t")]
    if firsts:
        assert max(firsts) - min(firsts) <= CLOCKS_MS + 4 * len(all_ids)


def test_an_age_beyond_all_measure_is_told_on() -> None:
    known = TopicKnowledge()
    known.hear({"t": ((AGE_MAX_MS, "x"),)}, 5)
    ages, _ = known.tell(0, 2**41)
    had = pb.HadName(topic_id="x", age_ms=ages["t"][0][0])
    assert had.age_ms > AGE_MAX_MS
