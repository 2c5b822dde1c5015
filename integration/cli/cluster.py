"""Opens the cluster that a command asks, and says what to do if Kafka or the journal is not there.

Both are asked for before anything else: a command that runs into their absence later knows only
which of its requests failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ...journal.errors import (
    BrokerError,
    CoordinatorNotAvailableError,
    RequestTimedOutError,
    UnknownTopicError,
)
from ...journal.logs.asking import UNANSWERED
from .connection import BOOTSTRAP, Kafka, opened

if TYPE_CHECKING:
    from ...journal.logs.interface import Log

ASK_TIMEOUT_S: Final = 5.0
"""How long Kafka has to answer whether there is a journal. A smaller value fails far or busy
clusters, a larger one delays the sentence that says what is wrong."""


@contextmanager
def open_cluster(kafka: Kafka) -> Iterator[Log]:
    """Provides the log of a cluster that has a journal.

    Raises:
        BrokerError: no broker answers; the message says what to do.
        CoordinatorNotAvailableError: there is no journal; the message says what to do.
    """
    from ...journal.reader import JOURNAL_TOPIC

    servers = kafka[BOOTSTRAP]
    with opened(kafka) as log:
        try:
            log.topic_info(JOURNAL_TOPIC, timeout_s=ASK_TIMEOUT_S)
        except UnknownTopicError as error:
            raise CoordinatorNotAvailableError(
                f"The Kafka at {servers} has no journal of logtx, because no coordinator was ever "
                f"started there: {how_to_start_one(servers)}."
            ) from error
        except BrokerError as error:
            if error.args[0].code() in UNANSWERED:
                raise no_kafka(servers, error) from error
            raise
        yield log


def no_kafka(servers: str, error: BrokerError) -> BrokerError:
    """Returns the error of a command whose brokers do not answer, or let nobody in."""
    why = str(error).partition("; ")[2]
    told = f" ({why})" if why and "Connect to" not in why else ""
    return BrokerError(
        f"No Kafka answers at {servers}{told}: check --bootstrap-servers, or start a local Kafka"
        " with: logtx up"
    )


@contextmanager
def absence_told(kafka: Kafka) -> Iterator[None]:
    """Says how to start a coordinator, when none answers a command.

    Raises:
        CoordinatorNotAvailableError: in place of the client's error.
    """
    try:
        yield
    except (CoordinatorNotAvailableError, RequestTimedOutError) as error:
        start = how_to_start_one(kafka[BOOTSTRAP])
        raise CoordinatorNotAvailableError(
            f"No coordinator answers ({error}): if none is running, {start}."
        ) from error


def how_to_start_one(servers: str) -> str:
    """Returns the words that say how to start a coordinator."""
    return f"start one with: logtx coordinator --bootstrap-servers {servers}"
