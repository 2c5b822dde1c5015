"""What a write is known by, so that it is committed once however often it is done. Pure.

Each identity is a consumer group of its own. Its IOV says what is committed: the offset of
`micro-batch[0]` is the version, that of `micro-batch[1]` a digest of the input, and that of
`micro-batch[2]` the input's end, added up over its partitions, for people. They commit with the
output, by compare-and-set: the journal itself refuses a second commit of the same version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ...journal.control import TopicPartition
from ...journal.position import Place, Position
from ...journal.records.types import OffsetStep
from ..inspect.rows import BATCH_TOPIC
from .errors import BatchGapError, ReplayDiffersError
from .steps import query_group

VERSION_AT: Final = (BATCH_TOPIC, 0)
DIGEST_AT: Final = (BATCH_TOPIC, 1)
RANGE_AT: Final = (BATCH_TOPIC, 2)
_APP: Final = "spark-app-"
_UNKNOWN: Final = 0
"""Stands for the digest of input that could not be looked up: that of an earlier version must not
stay, or the next try would be taken for another input."""
_OFFSET_END: Final = 2**63
_HEAD_LINES: Final = 2
"""Lines of Spark's `offsets` files before the sources: the version, and watermark and clock."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the group of an identity says is committed."""

    version: int | None = None
    digest: int | None = None
    input_range: tuple[int, int] | None = None
    """Where the input of the version begins and ends, added up over its partitions."""

    @classmethod
    def of(cls, iov: Mapping[TopicPartition, Position]) -> Committed:
        """Reads it from the group's IOV."""
        version, digest, place = (iov.get(at) for at in (VERSION_AT, DIGEST_AT, RANGE_AT))
        return cls(
            None if version is None else version.o2,
            None if digest is None else digest.o2,
            None if place is None else (place.o1, place.o2),
        )

    @property
    def known_digest(self) -> int | None:
        """The digest of the version's input; None if it was not known when it was committed."""
        return self.digest or None


@dataclass(frozen=True, slots=True)
class Identity:
    """One write, among those of its group."""

    group: str
    version: int
    of_query: bool = False
    """Whether the version is the number of a query's micro-batch. Spark repeats the last one only:
    if a later one is committed, or this one with other input, the checkpoint was restored."""
    consecutive: bool = False
    """Whether each version follows the one before it: a query's sink is given every micro-batch."""
    digest: int | None = None
    """Digest of the input; None if it is not known."""
    input_end: int | None = None
    """Where the input ends, added up over its partitions; None if it is not known."""

    @classmethod
    def of_micro_batch(cls, query_id: str, batch_id: int, offsets: str | None) -> Identity:
        """Returns that of a query's micro-batch; `offsets` is Spark's file of it, or None."""
        group = query_group(query_id) or ""
        return cls(group, batch_id, True, consecutive=True, **_input(offsets))

    @classmethod
    def of_application(cls, app_id: str, version: int) -> Identity:
        """Returns what the options ``txnAppId`` and ``txnVersion`` give."""
        return cls(f"{_APP}{app_id}", version)

    @classmethod
    def of_batch(cls, app_id: str, batch_id: int, offsets: str | None) -> Identity:
        """Returns what ``txnAppId`` alone gives in a query's ``foreachBatch``."""
        return cls(f"{_APP}{app_id}", batch_id, True, **_input(offsets))

    @classmethod
    def of_write(
        cls, query_id: str, batch_id: int, topic: str, number: int, offsets: str | None
    ) -> Identity:
        """Returns that of a write in a query's ``foreachBatch``.

        Args:
            query_id: the query.
            batch_id: its micro-batch.
            topic: option ``topic``; "" if a column names topics.
            number: how many writes to `topic` were committed in this micro-batch before.
            offsets: Spark's file of the micro-batch, or None.
        """
        group = f"{query_group(query_id)}-{topic}-{number}"
        return cls(group, batch_id, True, **_input(offsets))

    def is_done(self, committed: Committed) -> bool:
        """Returns whether this version was committed before.

        Raises:
            ReplayDiffersError: a micro-batch of this number was committed with other input, or
                later ones were.
        """
        if committed.version is None or committed.version < self.version:
            return False
        if not self.of_query:
            return True
        if committed.version > self.version:
            raise ReplayDiffersError(
                f"{self._name} was to be written, and {committed.version} is committed"
                f"{self._ranges(committed)}: the checkpoint was restored from before it, or lost"
                f" entries. {self._way_on}"
            )
        before = committed.known_digest
        if None not in (self.digest, before) and self.digest != before:
            raise ReplayDiffersError(
                f"{self._name} was committed with other input than it has now (digest"
                f" {before:x}, now {self.digest:x}){self._ranges(committed)}: the checkpoint was"
                " restored from before it. What it would read now is in its file offsets/"
                f"{self.version}. {self._way_on}"
            )
        return True

    def steps(self, committed: Committed) -> list[OffsetStep]:
        """Returns what commits with the write.

        Raises:
            BatchGapError: micro-batches between the committed one and this are missing.
        """
        before = committed.version
        if self.consecutive and before is not None and before < self.version - 1:
            raise BatchGapError(
                f"{self._name} follows {before}, the last one that was committed to this cluster:"
                " those between were written elsewhere; start the query with a new"
                " checkpointLocation"
            )
        steps = [_step(VERSION_AT, before, self.version)]
        digest = self.digest or _UNKNOWN
        if digest != (committed.digest or _UNKNOWN):
            steps.append(_step(DIGEST_AT, committed.digest, digest))
        stood = committed.input_range and committed.input_range[1]
        if self.input_end is not None and self.input_end != stood:
            # Later than it ends it can't begin, also if a source began anew.
            begin = min(stood or 0, self.input_end)
            end = Position(o1=begin, o2=self.input_end)
            place = None if stood is None else Place(stood)
            steps.append(OffsetStep(*RANGE_AT, place, end))
        return steps

    def _ranges(self, committed: Committed) -> str:
        if None in (committed.input_range, self.input_end, committed.known_digest):
            return ""
        begin, end = committed.input_range or (0, 0)
        asked = f"up to {self.input_end}"
        if committed.version == self.version:
            asked = f"{begin} to {self.input_end}"
        return f" (offsets, added up over all partitions: committed {begin} to {end}, now {asked})"

    @property
    def _name(self) -> str:
        app_id = self._app_id
        if app_id is not None:
            return f"micro-batch {self.version} of txnAppId {app_id}"
        return f"micro-batch {self.version} of query {self.group.removeprefix('spark-')}"

    @property
    def _app_id(self) -> str | None:
        return self.group.removeprefix(_APP) if self.group.startswith(_APP) else None

    @property
    def _way_on(self) -> str:
        # A query with a new checkpoint has a new id, and counts from 0 again; a txnAppId stays.
        anew = "" if self._app_id is None else " and a new txnAppId"
        return (
            f"Start the query with a new checkpointLocation{anew}, from the offsets that are"
            " committed"
        )


def _step(where: TopicPartition, before: int | None, to: int) -> OffsetStep:
    return OffsetStep(*where, None if before is None else Place(before), Position.at(to))


def _input(offsets: str | None) -> dict[str, Any]:
    if offsets is None:
        return {}
    return {"digest": input_digest(offsets), "input_end": input_end(offsets)}


def file_logs(offsets: str) -> list[tuple[str, ...]]:
    """Returns the files of a checkpoint that say more of a micro-batch's input than `offsets` does.

    Spark's source of files writes a number there. Which files it stands for is in a log of its own.

    Args:
        offsets: text of Spark's file of the micro-batch.

    Returns:
        For each such source the names, below the checkpoint, under which its log may be.
    """
    found: list[tuple[str, ...]] = []
    for number, line in enumerate(offsets.splitlines()[_HEAD_LINES:]):
        try:
            entry = json.loads(line)["logOffset"]
        except (ValueError, TypeError, KeyError):
            continue
        name = f"sources/{number}/{entry}"
        found.append((name, f"{name}.compact"))
    return found


def input_digest(offsets: str) -> int:
    """Returns 63 bits of the SHA-256 of the sources' lines in Spark's file of a micro-batch."""
    sources = offsets.splitlines()[_HEAD_LINES:]
    raw = hashlib.sha256("\n".join(sources).encode()).digest()
    return int.from_bytes(raw[:8]) >> 1


def input_end(offsets: str) -> int | None:
    """Returns the sum of the offsets in Spark's file of a micro-batch; None if there are none."""
    numbers: list[int] = []
    for line in offsets.splitlines()[_HEAD_LINES:]:
        with suppress(ValueError):
            told = json.loads(line)
            ours = isinstance(told, dict) and "places" in told
            numbers += _numbers(told["places"] if ours else told)
    total = sum(numbers)
    return total if numbers and total < _OFFSET_END else None


def _numbers(told: Any) -> list[int]:
    """Returns the offsets in a source's JSON, whatever its form: of Kafka's connector, of ours."""
    if isinstance(told, dict):
        return [number for each in told.values() for number in _numbers(each)]
    if isinstance(told, list):
        return _numbers(told[0]) if told else []
    return [told] if type(told) is int and told >= 0 else []
