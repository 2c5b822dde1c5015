"""What the writes of an application committed, for whoever asks in the driver. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

COMMITS_MAX: Final = 1_000
"""Names, and queries, whose last commits are kept; a larger value takes more of the driver's
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one write committed: a job, a micro-batch, or a transaction of several writes."""

    txid: str | None
    """Its TxId; None if it wrote nothing, because it was committed before."""
    commit_sequence: int | None
    """Place in the serial order of its transaction group; None with `txid`."""
    records: Mapping[str, int]
    """Topic → number of records; empty with `txid` None."""
    query_id: str | None = None
    """The streaming query, also of a write in its ``foreachBatch``; None outside of one."""
    batch_id: int | None = None
    """Its micro-batch."""

    @property
    def is_replay(self) -> bool:
        """Whether it was committed before, so that nothing was written."""
        return self.txid is None

    @classmethod
    def of(
        cls,
        told: Mapping[str, Any],
        records: Mapping[str, int],
        query_id: str | None,
        batch_id: int | None,
    ) -> Self:
        """Makes one of the keeper's answer to a commit."""
        txid = told.get("txid")
        return cls(
            txid=txid,
            commit_sequence=told.get("commit_sequence"),
            records={} if txid is None else dict(records),
            query_id=query_id,
            batch_id=batch_id,
        )


class Commits:
    """The last commit of each name and of each query. The caller's lock guards it."""

    def __init__(self) -> None:
        """Begins without any."""
        self._by_name: OrderedDict[str | None, Commit] = OrderedDict()
        self._by_query: OrderedDict[str, Commit] = OrderedDict()

    def note(self, name: str | None, commit: Commit) -> None:
        """Takes what a write with option ``commitName`` committed; `name` is None without it."""
        for each in {None, name}:
            _put(self._by_name, each, commit)
        if commit.query_id is not None:
            _put(self._by_query, commit.query_id, commit)

    def named(self, name: str | None) -> Commit | None:
        """Returns the last one of this name, or of all."""
        return self._by_name.get(name)

    def of_query(self, query_id: str) -> Commit | None:
        """Returns the last one of a streaming query."""
        return self._by_query.get(query_id)


def _put(commits: OrderedDict[Any, Commit], key: Any, commit: Commit) -> None:
    commits[key] = commit
    commits.move_to_end(key)
    if len(commits) > COMMITS_MAX:
        commits.popitem(last=False)
