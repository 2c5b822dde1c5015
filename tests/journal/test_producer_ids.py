"""Producer ids: each stands for one `transactional.id` in one transaction group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.errors import ConfigError
from logtx.journal.keys import TransactionKey
from logtx.journal.producer_ids import (
    ProducerName,
    is_anonymous,
    is_called,
    producer_id_of,
    producer_name_of,
)

GROUPS = st.text(alphabet="ab", min_size=1) | st.just("default")
IDS = st.text(alphabet="ab&", min_size=1).filter(lambda name: not name.startswith("&"))


@given(GROUPS, IDS)
def test_a_producer_id_tells_group_and_id_apart(group: str, transactional_id: str) -> None:
    found = producer_name_of(producer_id_of(group, transactional_id))
    assert found == ProducerName(group, transactional_id)


@given(GROUPS, IDS, GROUPS, IDS)
def test_finding_11_equal_ids_of_two_groups_are_two_producers(
    group: str, transactional_id: str, other_group: str, other_id: str
) -> None:
    same = (group, transactional_id) == (other_group, other_id)
    ids = producer_id_of(group, transactional_id), producer_id_of(other_group, other_id)
    assert (ids[0] == ids[1]) is same


def test_ids_in_the_default_group_stay_what_they_are() -> None:
    assert producer_id_of("default", "worker-1") == "worker-1"
    assert producer_id_of("risk", "worker-1") == "risk&worker-1"


@given(GROUPS)
def test_nobody_can_choose_the_id_of_an_anonymous_producer(group: str) -> None:
    anonymous = producer_id_of(group, None)
    assert is_anonymous(anonymous)
    assert anonymous != producer_id_of(group, None)
    assert producer_name_of(anonymous) == ProducerName(group, None)


@given(GROUPS, IDS)
def test_a_named_producer_is_not_anonymous(group: str, transactional_id: str) -> None:
    assert not is_anonymous(producer_id_of(group, transactional_id))
    assert not is_anonymous(TransactionKey("o", "k").name)


@pytest.mark.parametrize(
    ("producer_id", "name", "called"),
    [
        ("w", "w", True),
        ("g&w", "w", True),
        ("g&w", "g&w", True),
        ("g&w", "g", False),
        ("&o&w", "w", False),
        ("&o&w", "&o&w", True),
    ],
)
def test_people_call_a_producer_by_either_name(producer_id: str, name: str, called: bool) -> None:
    assert is_called(producer_id, name) is called


def test_names_of_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        producer_id_of("g", "&k")
    with pytest.raises(ConfigError, match=r"transaction\.group"):
        producer_id_of("&g", "k")
