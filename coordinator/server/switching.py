"""Checks before a topic is switched what its home can't see: the binding, and the other builds.

A topic has one home, the journal partition of the transaction group that it is bound to: two of
them could not agree on the order of what they place at one offset. The binding lies in the journal
partition that its own name maps to, as a consumer group's does, so most often another coordinator
has it. A binding of a topic never ends.

A coordinator of an older build does not read the records that a switch writes to the journal. It
could follow the home no more, nor take it over. So nothing is switched to places while one is
there.
"""

from __future__ import annotations

import time
from typing import Final

from ...journal.errors import CoordinatorBusyError, LogtxError, TopicModeError
from ...journal.modes import Mode, binding_of, topic_of_binding
from ...journal.reader import journal_partition_of
from ...journal.records.codec import FORMAT_VERSION
from ..membership.members import Members
from ..protocol.commands import SetTopicMode
from ..runtime.modes_topic import ModesWriter
from ..runtime.topics import TopicLookUps
from .bindings import GroupBindings

NOT_TOLD: Final = 0
"""Journal format of a coordinator that tells none: its build is older than the question."""


class Switching:
    """Checks what must hold before a home decides on a switch; lives on the event loop."""

    def __init__(
        self, topics: TopicLookUps, bindings: GroupBindings, members: Members | None = None
    ) -> None:
        """Asks nothing yet.

        Args:
            topics: looks up data topics.
            bindings: asks for bindings.
            members: the other coordinators; None: there are none.
        """
        self.members = members
        self.modes: ModesWriter | None = None
        """Tells readers of modes; None: nobody does."""
        self._topics = topics
        self._bindings = bindings

    async def check(
        self, command: SetTopicMode, partition: int, partition_count: int
    ) -> LogtxError | None:
        """Checks a switch, and looks the topic up.

        Args:
            command: the switch.
            partition: the journal partition that is asked for it.
            partition_count: partition count of the journal.

        Returns:
            Why the topic can't be switched as it is now; None if it can. This is not raised, as
            for other commands that name data topics.

        Raises:
            TopicModeError: it is bound to no transaction group, or to one of another journal
                partition; or a coordinator of an older build answers.
            CoordinatorBusyError: the owner of the binding does not answer.
        """
        bound = await self._bindings.bound(binding_of(command.topic))
        if bound is None:
            raise TopicModeError(
                f"topic {command.topic} is bound to no transaction group: bind it first, as"
                " `logtx topics set-mode` does with --transaction-group"
            )
        if journal_partition_of(bound, partition_count) != partition:
            raise TopicModeError(
                f"topic {command.topic} is bound to transaction group {bound!r}, whose journal"
                f" partition is another one than {partition}: switch it there"
            )
        if command.mode is Mode.METADATA:
            self._check_builds()
        refusal = None if self.modes is None else await self.modes.prepare()
        if refusal is not None:
            return refusal
        # Nothing is written to a topic that is switched without mode records: it may be sealed.
        unwritten = (command.topic,) if command.without_records else ()
        refusal = await self._topics.learn(((command.topic, 0),), unwritten)
        if refusal is None and not await self._topics.agree(command.topic):
            # A mode with the id of the topic's predecessor would be no news to readers.
            return CoordinatorBusyError(
                f"brokers do not agree yet on which topic {command.topic} is: ask again"
            )
        return refusal

    async def check_bindable(self, name: str) -> None:
        """Checks that a topic may be bound to a transaction group.

        Args:
            name: its `binding_of`.

        Raises:
            UnknownTopicError: there is no such topic.
            UnsupportedTopicError: no transaction may write to it.
            CoordinatorBusyError: it could not be looked up.
        """
        topic = topic_of_binding(name)
        refusal = await self._topics.learn(((topic, 0),), (topic,))
        if refusal is not None:
            raise refusal

    def _check_builds(self) -> None:
        others = self.members.reached(time.monotonic()) if self.members is not None else []
        for other in others:
            if other.journal_format >= FORMAT_VERSION:
                continue
            reads = f"journal format {other.journal_format}"
            told = "an older format than that" if other.journal_format == NOT_TOLD else reads
            raise TopicModeError(
                f"the coordinator at {other.address} reads {told}, and this switch writes format"
                f" {FORMAT_VERSION}: upgrade it, then ask again"
            )
