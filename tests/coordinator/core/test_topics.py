"""What is believed of topics when brokers answer late, contradict each other, or not at all."""

from __future__ import annotations

import random

import pytest

from logtx.coordinator.core import topics
from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.core.topics import (
    ABSENT_CONFIRM_MS,
    AGAIN_MS,
    CONFIRM_MS,
    FRESH_MS,
    LACKED_MAX,
    LOOKS_MIN,
    RENEW_MS,
    Existence,
    TopicKnowledge,
)
from logtx.journal.errors import (
    BrokerError,
    CoordinatorBusyError,
    UnknownTopicError,
    UnsupportedTopicError,
)

from ...parameters import slow

T0, T1 = ("t", 0), ("t", 1)


def facts(topic_id: str = "new", partitions: int = 1) -> TopicFacts:
    """Returns what a broker tells."""
    return TopicFacts(topic_id=topic_id, partition_count=partitions, record_max_bytes=1_000_000)


class Stage:
    """Knowledge of a topic, and a clock."""

    def __init__(self, *, known: bool = True) -> None:
        self.known = TopicKnowledge()
        self.now_ms = 100_000
        if known:
            self.known.told("t", facts(), self.now_ms, certain=True)

    def tell(self, told: TopicFacts | None, times: int = 1, every_ms: int = 500) -> None:
        """Tells the same answer several times."""
        for _ in range(times):
            self.known.told("t", told, self.now_ms)
            self.now_ms += every_ms

    def waits(self, *partitions: tuple[str, int], since_ms: int | None = None) -> bool:
        """Returns whether a command must wait that names these partitions."""
        since_ms = self.now_ms if since_ms is None else since_ms
        return bool(self.known.needs(partitions or (T0,), self.now_ms, since_ms).wait_for)

    def looks(self, *partitions: tuple[str, int]) -> bool:
        """Returns whether such a command would look the topic up."""
        return bool(self.known.needs(partitions or (T0,), self.now_ms, self.now_ms).look_up)

    def refusal(self, *partitions: tuple[str, int]) -> Exception | None:
        """Returns why such a command can't be decided."""
        return self.known.refusal(partitions or (T0,), self.now_ms)

    def existence(self) -> Existence:
        """Returns whether the topic exists."""
        return self.known.existence("t", self.now_ms)


def test_a_topic_that_was_not_known_is_used_after_one_look() -> None:
    stage = Stage(known=False)
    assert stage.looks()
    assert stage.waits()
    stage.tell(facts())
    assert not stage.waits()
    assert stage.refusal() is None
    assert stage.known.are_fresh([T0], stage.now_ms)


def test_an_answer_that_cant_be_old_is_enough() -> None:
    stage = Stage()
    stage.known.told("t", None, stage.now_ms, certain=True)
    assert "t" not in stage.known.facts
    assert stage.existence() is Existence.DOUBTFUL, "a lane looks again before it gives up"


def test_the_topic_of_the_latest_answer_has_the_name() -> None:
    stage = Stage(known=False)
    for topic_id in ("old", "new", "old", "new"):
        stage.tell(facts(topic_id))
        assert stage.known.facts["t"].topic_id == topic_id
        assert stage.existence() is Existence.ALIVE
        assert stage.refusal() is None, "its marker says which topic was meant"


def test_it_is_remembered_which_topic_had_the_name_when() -> None:
    stage = Stage(known=False)
    for topic_id in ("", "old", "", "new", "old", "new"):  # a broker that is behind tells the old
        stage.tell(facts(topic_id), every_ms=10)
    known = stage.known.facts["t"]
    assert [at_ms for at_ms, _ in known.told] == [100_010, 100_030, 100_040, 100_050]
    began = (0, 100_010, 100_029, 100_030, 100_040, 100_050, 200_000)
    ids = ["old", "old", "old", "new", "old", "new", "new"]
    assert [known.id_at(at_ms) for at_ms in began] == ids, "an old answer counts for no longer"


def test_it_is_remembered_whether_another_topic_had_the_name() -> None:
    stage = Stage(known=False)
    assert not stage.known.had_others("t", "new")
    stage.tell(facts("old"))
    assert stage.known.had_others("t", "new")
    assert not stage.known.had_others("t", "old")
    stage.tell(facts("new"))
    assert stage.known.had_others("t", "new")
    assert stage.known.had_others("t", "old")


def test_a_topic_that_was_gone_is_remembered() -> None:
    stage = Stage(known=False)
    stage.tell(facts("old"))
    stage.tell(None, times=LOOKS_MIN + 10)
    assert "t" not in stage.known.facts
    stage.tell(facts("new"))
    assert stage.known.facts["t"].id_at(stage.now_ms - 1_000) == "old"


def test_finding_5_one_look_up_for_all_who_wait() -> None:
    stage = Stage(known=False)
    assert stage.looks()
    stage.known.began("t", stage.now_ms)
    assert not stage.looks()
    assert stage.waits()


def test_finding_5_facts_are_renewed_before_they_are_old() -> None:
    stage = Stage()
    stage.now_ms += RENEW_MS - 1
    assert not stage.looks()
    assert stage.known.are_fresh([T0], stage.now_ms)
    stage.now_ms += 1
    assert stage.looks()
    assert not stage.waits()
    stage.now_ms += FRESH_MS - RENEW_MS
    assert stage.waits()


def test_a_topic_is_not_looked_up_without_end() -> None:
    stage = Stage(known=False)
    stage.tell(None, every_ms=0)
    assert stage.waits()
    assert not stage.looks()
    stage.now_ms += AGAIN_MS
    assert stage.looks()


def test_finding_6_a_partition_beyond_the_known_ones_is_looked_up() -> None:
    stage = Stage()
    assert stage.waits(T1)
    assert isinstance(stage.refusal(T1), CoordinatorBusyError)
    stage.tell(facts(partitions=2))
    assert not stage.waits(T1)
    assert stage.refusal(T1) is None


def test_a_partition_that_does_not_exist_is_refused_after_a_while() -> None:
    stage = Stage()
    since_ms = stage.now_ms
    assert stage.waits(T1, since_ms=since_ms)
    stage.tell(facts(), every_ms=ABSENT_CONFIRM_MS)
    assert stage.waits(T1, since_ms=since_ms)
    stage.tell(facts(), every_ms=0)
    assert not stage.waits(T1, since_ms=since_ms)
    assert isinstance(stage.refusal(T1), UnknownTopicError)
    assert not stage.waits(T1), "the next one need not wait as long"
    assert not stage.waits(T0), "others wait for nothing"


def test_an_answer_of_before_a_partition_was_added_does_not_refuse_it() -> None:
    stage = Stage()
    stage.known.began("t", stage.now_ms)
    stage.now_ms += 100  # A broker has answered; now the partition is added, and written to.
    since_ms = stage.now_ms
    assert stage.waits(T1, since_ms=since_ms)
    stage.now_ms += 2 * ABSENT_CONFIRM_MS
    stage.tell(facts(), every_ms=0)
    assert stage.waits(T1, since_ms=since_ms)
    assert isinstance(stage.refusal(T1), CoordinatorBusyError)
    stage.now_ms += AGAIN_MS
    stage.known.began("t", stage.now_ms)
    stage.tell(facts(), every_ms=0)
    assert isinstance(stage.refusal(T1), UnknownTopicError)


def test_an_answer_of_before_a_partition_was_named_does_not_refuse_it() -> None:
    # Others waited for the topic as a whole, which was not known. Then a partition is added.
    stage = Stage(known=False)
    since_ms = stage.now_ms
    assert stage.waits(T0, since_ms=since_ms)
    stage.now_ms += ABSENT_CONFIRM_MS
    stage.known.began("t", stage.now_ms)
    assert stage.waits(T0, T1)
    stage.tell(facts(), every_ms=0)
    assert isinstance(stage.refusal(T0, T1), CoordinatorBusyError)
    assert not stage.waits(T0)


def test_partitions_that_nobody_asks_for_any_more_are_forgotten() -> None:
    stage = Stage()
    for partition in range(1, 2 * LACKED_MAX):
        assert stage.waits(("t", partition))
    topic = stage.known._topics["t"]
    assert len(topic.lacked) == LACKED_MAX


def test_a_topic_that_grew_lately_is_looked_up_though_it_was_refused_before() -> None:
    stage = Stage()
    stage.waits(T1)
    stage.tell(facts(), times=10)
    stage.now_ms += 10 * ABSENT_CONFIRM_MS
    stage.tell(facts(), every_ms=0)
    assert stage.waits(T1)


def test_a_broker_that_knows_fewer_partitions_is_behind() -> None:
    stage = Stage()
    stage.tell(facts(partitions=4))
    stage.tell(facts(partitions=1), times=50)
    assert stage.known.facts["t"].partition_count == 4


def test_a_topic_that_does_not_exist_is_refused_after_a_while() -> None:
    stage = Stage(known=False)
    since_ms = stage.now_ms
    stage.waits(since_ms=since_ms)
    stage.tell(None, every_ms=ABSENT_CONFIRM_MS)
    assert isinstance(stage.refusal(), CoordinatorBusyError)
    stage.tell(None, every_ms=0)
    assert not stage.waits(since_ms=since_ms)
    assert isinstance(stage.refusal(), UnknownTopicError)


def test_finding_7_what_is_known_is_used_when_a_look_up_fails() -> None:
    stage = Stage()
    stage.now_ms += 10 * FRESH_MS
    since_ms = stage.now_ms
    assert stage.waits(since_ms=since_ms)
    stage.known.failed("t", BrokerError("TOPIC_AUTHORIZATION_FAILED"), stage.now_ms)
    assert not stage.waits(since_ms=since_ms)
    assert stage.refusal() is None


def test_finding_7_a_failed_look_up_of_an_unknown_topic_says_that_nothing_was_done() -> None:
    stage = Stage(known=False)
    stage.known.failed("t", BrokerError("no answer"), stage.now_ms)
    assert not stage.waits()
    error = stage.refusal()
    assert isinstance(error, CoordinatorBusyError)
    assert "no answer" in str(error)
    assert "nothing was done" in str(error)


def test_while_brokers_do_not_agree_that_it_exists_nothing_is_decided() -> None:
    stage = Stage()
    stage.tell(None)
    assert stage.waits()
    assert isinstance(stage.refusal(), CoordinatorBusyError)
    assert stage.known.facts["t"].topic_id == "new", "facts do not go back"
    stage.tell(facts())
    assert stage.refusal() is None


def test_it_takes_time_and_several_looks_until_a_topic_is_gone() -> None:
    stage = Stage()
    stage.tell(None, times=LOOKS_MIN + 3, every_ms=10)
    assert stage.existence() is Existence.DOUBTFUL, "many looks, in a moment"
    stage.now_ms += CONFIRM_MS
    stage.tell(None)
    assert stage.existence() is Existence.DOUBTFUL, "nobody looked in between"
    stage.tell(facts())
    assert stage.existence() is Existence.ALIVE
    stage.tell(None, times=2 + CONFIRM_MS // 500)
    assert stage.existence() is Existence.GONE


def test_a_topic_that_was_deleted_is_refused_when_look_ups_agree() -> None:
    stage = Stage()
    stage.now_ms += FRESH_MS
    since_ms = stage.now_ms
    while stage.waits(since_ms=since_ms):
        stage.tell(None)
        if stage.now_ms - since_ms < CONFIRM_MS:
            assert isinstance(stage.refusal(), CoordinatorBusyError)
    assert stage.now_ms - since_ms >= CONFIRM_MS
    assert isinstance(stage.refusal(), UnknownTopicError)


@pytest.mark.parametrize("topic_id", ["new", "newer"])
def test_one_answer_that_finds_a_topic_begins_the_count_again(topic_id: str) -> None:
    stage = Stage()
    for number in range(2 + 2 * CONFIRM_MS // 500):
        stage.tell(facts(topic_id) if number % 8 == 7 else None)
        assert stage.existence() is not Existence.GONE


def test_that_a_topic_was_gone_long_ago_proves_nothing() -> None:
    stage = Stage()
    stage.tell(None, times=2 + CONFIRM_MS // 500)
    stage.now_ms += 3_600_000
    assert stage.existence() is Existence.DOUBTFUL
    stage.tell(None)
    assert stage.existence() is Existence.DOUBTFUL


def test_a_topic_that_is_gone_lives_when_it_is_found_again() -> None:
    stage = Stage()
    stage.tell(None, times=2 + CONFIRM_MS // 500)
    assert stage.existence() is Existence.GONE
    assert "t" not in stage.known.facts
    stage.tell(facts())
    assert stage.existence() is Existence.ALIVE


def test_finding_23_a_cluster_that_learns_of_topic_ids_knows_them() -> None:
    stage = Stage(known=False)
    stage.tell(facts("", partitions=2))
    assert stage.refusal() is None, "there are no ids to compare"
    stage.tell(facts("new"))
    stage.tell(facts(""))
    assert stage.known.facts["t"] == facts("new", partitions=2), "one broker is not upgraded"


def test_a_topic_that_takes_no_markers() -> None:
    stage = Stage()
    error = UnsupportedTopicError("compacted")
    stage.known.told("t", facts(), stage.now_ms, error)
    assert stage.refusal() is error
    assert not stage.known.are_fresh([T0], stage.now_ms)
    assert stage.known.facts["t"] == facts(), "markers of what is decided still go there"
    stage.tell(facts())
    assert stage.refusal() is None


def test_a_sealed_topic_takes_what_is_placed() -> None:
    # A right to write that is missing concerns markers alone. A commit that is placed there must
    # not wait for a look-up either: each one would.
    stage = Stage()
    error = UnsupportedTopicError("may not WRITE")
    stage.known.told("t", facts(), stage.now_ms, None, error)
    stage.now_ms += 1
    assert not stage.known.are_fresh([T0], stage.now_ms)
    assert stage.waits()
    assert stage.refusal() is error
    assert stage.known.are_fresh([T0], stage.now_ms, {"t"})
    assert not stage.known.needs([T0], stage.now_ms, stage.now_ms, {"t"}).wait_for
    assert stage.known.refusal([T0], stage.now_ms, {"t"}) is None
    compacted = UnsupportedTopicError("compacted")
    stage.known.told("t", facts(), stage.now_ms, compacted, compacted)
    assert stage.known.refusal([T0], stage.now_ms, {"t"}) is compacted
    stage.tell(facts())
    assert stage.refusal() is None


def test_a_topic_that_may_not_be_used_any_more_is_refused_whatever_was_known() -> None:
    stage = Stage()
    stage.tell(facts(), times=2)
    error = UnsupportedTopicError("not allowed")
    stage.known.failed("t", error, stage.now_ms)
    assert stage.refusal() is error
    assert not stage.known.are_fresh([T0], stage.now_ms)
    stage.known.failed("t", BrokerError("no answer"), stage.now_ms)
    assert stage.refusal() is error, "that says nothing"
    stage.tell(None)
    assert stage.refusal() is not error, "it is allowed to see that there is none"


def test_what_nobody_uses_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 20)
    known = TopicKnowledge()
    for number in range(100):
        known.needs([(f"t{number}", 0)], number, number)
        known.told(f"t{number}", facts(), number, certain=True)
    assert len(known.facts) <= 20
    assert "t99" in known.facts


@pytest.mark.parametrize("seed", [*range(50), *slow(range(50, 200))])
def test_brokers_that_are_behind_for_less_than_the_time_confirmed_are_never_believed(
    seed: int,
) -> None:
    chance, stage = random.Random(seed), Stage()
    for _ in range(100):
        until_ms = stage.now_ms + chance.randint(1, CONFIRM_MS - 1)
        while stage.now_ms < until_ms:
            stage.tell(chance.choice((None, None, facts())), every_ms=chance.randint(1, 400))
            assert stage.existence() is not Existence.GONE
            assert stage.known.facts["t"] == facts()
        stage.tell(facts(), every_ms=chance.randint(1, 400))


# ---- topics in metadata mode --------------------------------------------------------------------


def test_trap_79_a_broker_that_is_behind_makes_nothing_marked_where_it_is_placed() -> None:
    stage = Stage()
    partitions, placed = [("t", 0)], {"t"}
    stage.known.assume("t", "new")
    assert not stage.known.is_contested("t")
    began_ms = stage.now_ms + 400
    stage.tell(facts("old"), every_ms=400)
    assert stage.known.is_contested("t")
    assert not stage.known.are_fresh(partitions, stage.now_ms, placed)
    needs = stage.known.needs(partitions, stage.now_ms + AGAIN_MS, stage.now_ms, placed)
    assert (needs.look_up, needs.wait_for) == ({"t"}, {"t"})
    refusal = stage.known.refusal(partitions, stage.now_ms, placed)
    assert isinstance(refusal, CoordinatorBusyError)
    assert stage.known.refusal(partitions, stage.now_ms) is None, "where it has markers"
    stage.tell(facts("new"), every_ms=400)
    assert stage.known.refusal(partitions, stage.now_ms, placed) is None
    assert stage.known.facts["t"].id_at(began_ms) == "new", "of what began meanwhile, too"


def test_another_topic_that_answers_tell_of_for_long_enough_is_not_contested() -> None:
    stage = Stage()
    stage.known.assume("t", "new")
    until_ms = stage.now_ms + CONFIRM_MS
    while stage.now_ms < until_ms:
        stage.tell(facts("newer"), every_ms=400)
        assert stage.known.is_contested("t")
    stage.tell(facts("newer"), every_ms=400)
    assert not stage.known.is_contested("t")
    stage.known.assume("t", "new")
    stage.now_ms += 100 * CONFIRM_MS
    stage.tell(facts("newer"), every_ms=400)
    assert not stage.known.is_contested("t"), "once and for all"


def test_what_a_journal_says_counts_for_more_than_the_first_answer() -> None:
    stage = Stage(known=False)
    stage.tell(facts("old"))
    stage.known.assume("t", "new")
    assert stage.known.is_contested("t")
    stage.tell(facts("new"))
    assert not stage.known.is_contested("t")


# ---- topics of other ids ------------------------------------------------------------------------


def test_a_topic_is_gone_when_look_ups_agree_for_long_enough_that_another_has_its_name() -> None:
    known = TopicKnowledge()
    known.told("d", facts("old"), 1_000)
    assert known.existence("d", 1_000, "old") is Existence.ALIVE
    now_ms = 2_000
    while now_ms < 2_000 + topics.CONFIRM_MS:
        known.told("d", facts("new"), now_ms)
        assert known.existence("d", now_ms, "old") is Existence.DOUBTFUL
        assert known.existence("d", now_ms, "new") is Existence.ALIVE
        now_ms += 500
    known.told("d", facts("new"), now_ms)
    assert known.existence("d", now_ms, "old") is Existence.GONE
    assert known.existence("d", now_ms) is Existence.ALIVE
    later_ms = now_ms + topics.GAP_MAX_MS + 1
    assert known.existence("d", later_ms, "old") is Existence.DOUBTFUL, "it was long ago"


@pytest.mark.parametrize("name", ["old", ""])
def test_look_ups_that_take_long_find_out_that_a_topic_is_gone(name: str) -> None:
    known, took_ms = TopicKnowledge(), 2 * topics.GAP_MAX_MS
    known.told("d", facts("old"), 1_000)
    told, ends_ms = facts("new") if name else None, []
    for asked_ms in range(2_000, 2_000 + 6 * (took_ms + 1_000), took_ms + 1_000):
        known.began("d", asked_ms)
        known.told("d", told, asked_ms + took_ms)
        if known.existence("d", asked_ms + took_ms, name) is Existence.GONE:
            ends_ms.append(asked_ms)
    # By four look-ups behind the first, for each is slow.
    assert ends_ms[0] == 2_000 + topics.SLOW_MIN * (took_ms + 1_000)


@pytest.mark.parametrize("name", ["old", ""])
def test_trap_265_one_broker_is_paused_within_a_look_up(name: str) -> None:
    known, took_ms = TopicKnowledge(), 3 * topics.CONFIRM_MS
    known.told("d", facts("old"), 1_000)
    told = facts("new") if name else None
    known.told("d", told, 2_000)
    # It is asked, paused, and goes on: for as long again as a broker may be behind.
    known.began("d", 2_500)
    behind_ms = 2_500 + took_ms
    for now_ms in range(behind_ms, behind_ms + topics.CONFIRM_MS - 1_000, 500):
        known.told("d", told, now_ms)
        assert known.existence("d", now_ms, name) is Existence.DOUBTFUL
    known.told("d", told, now_ms + 1_000)
    known.told("d", told, now_ms + 2_000)
    assert known.existence("d", now_ms + 2_000, name) is Existence.GONE


def test_one_answer_about_a_topic_begins_the_count_against_it_again() -> None:
    known = TopicKnowledge()
    for now_ms in range(1_000, 1_000 + 4 * topics.CONFIRM_MS, 500):
        known.told("d", facts("old" if now_ms % 4_000 == 0 else "new"), now_ms)
        assert known.existence("d", now_ms, "old") is not Existence.GONE


def test_what_a_look_up_says_is_of_the_time_at_which_it_began() -> None:
    known = TopicKnowledge()
    assert not known.is_told_since("d", 0)
    known.began("d", 10)
    known.told("d", facts("old"), 20)
    assert known.is_told_since("d", 10)
    assert not known.is_told_since("d", 11)
    known.told("d", None, 30)
    assert not known.is_told_since("d", 10), "the latest answer found none"


def test_which_topic_has_the_name_is_agreed_when_look_ups_told_of_one_for_long_enough() -> None:
    known = TopicKnowledge()
    assert not known.is_agreed("d")
    known.told("d", facts("old"), 1_000)
    now_ms = 2_000
    while now_ms < 2_000 + topics.CONFIRM_MS:
        known.told("d", facts("new"), now_ms)
        assert not known.is_agreed("d")
        now_ms += 500
    known.told("d", facts("new"), now_ms)
    assert known.is_agreed("d")
    known.told("d", None, now_ms + 500)
    assert not known.is_agreed("d"), "the latest answer found none"


def test_which_topic_has_the_name_is_agreed_by_an_answer_that_cant_be_old() -> None:
    assert Stage().known.is_agreed("t")
