"""Switches topics that are created later, as rules say, and writes the rules.

When this coordinator first comes across a topic, as a transaction names it, it looks for a rule. If
one applies, it asks the topic's home for the switch, as an operator does: so the mode record comes
first (R15), whatever is under way. Nobody waits for it. What is decided before the switch is done
is marked.

Several coordinators may come across one topic. All ask for the same switch, which is made once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaException

from ...journal.errors import (
    ConfigError,
    LogtxError,
    TopicModeError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log
from ...journal.mode_rules import ModeRule, encode_rule, longest
from ...journal.modes import Mode, Phase
from ...journal.sidecar import is_sidecar
from ..client.admin import AdminQueries
from ..client.rules import PublishedRules
from ..core.named_topics import NamedTopics, applies
from ..core.topics import TopicKnowledge
from ..protocol.commands import SetTopicRule, TopicModeInfo, TopicModes
from ..runtime.modes_topic import ModesWriter
from ..tasks import essential_task
from ..transport.tls import Tls

_LOG = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Pause before rules are looked for, and between two such looks: many topics that come together are
looked at together. A longer one leaves topics in markers for longer; a shorter one asks the brokers
more, while topics are created."""
RETRY_S: Final = 10.0
"""Pause before a switch that failed is tried again."""
ANSWER_S: Final = 10.0
"""Longest wait for each coordinator's answer."""
SWITCH_S: Final = 30.0
"""Longest wait for one switch. Beyond, it goes on by itself, and is looked at again."""
SWITCHES_MAX: Final = 4
"""Switches at one time. More begin sooner, where very many topics are created together."""
_REFUSED: Final = (ConfigError, UnknownTopicError, UnsupportedTopicError)
"""What would be refused again."""


class TopicRules:
    """Applies and writes the rules of a cluster; lives on the coordinator's event loop."""

    def __init__(self, log: Log, known: TopicKnowledge, tls: Tls | None = None) -> None:
        """Asks nothing yet.

        Args:
            log: the log.
            known: what is known of data topics.
            tls: what connections to other coordinators are protected with; None: nothing.
        """
        self.modes: ModesWriter | None = None
        """Writes to `__transaction_topics`; None: nobody does."""
        self._known = known
        self._named = NamedTopics()
        self._rules = PublishedRules(log)
        self._admin = AdminQueries(log, timeout_s=ANSWER_S, tls=tls)
        # Own threads: a home that does not answer must not hold up anything else.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="rules")
        self._switching = ThreadPoolExecutor(SWITCHES_MAX, thread_name_prefix="rules-switch")
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def set(self, command: SetTopicRule) -> TopicModes:
        """Sets or removes a rule. Returns it once it is durable.

        Raises:
            TopicModeError: it can't be written now.
        """
        name, rule = command.rule, None
        if command.mode is not None:
            rule = ModeRule(name, command.mode, command.transaction_group)
        refusal = None if self.modes is None else await self.modes.prepare()
        if refusal is not None:
            raise refusal
        key, value = encode_rule(name, rule)
        if self.modes is None or not await self.modes.write_rule(key, value):
            raise TopicModeError(f"rule {name} could not be written to the log: call again")
        phase = Phase((command.mode or Mode.MARKERS).value)
        info = TopicModeInfo(topic=name, topic_id="", phase=phase, mode_offset=-1, published=True)
        return TopicModes((info,))

    # ---- topics that are created later ----------------------------------------------------------

    def looked_up(self, topic: str) -> None:
        """Notes that a topic was looked up: see `TopicLookUps.listen`."""
        facts = self._known.facts.get(topic)
        if is_sidecar(topic):
            return  # It has markers, whatever the mode of its topic.
        if facts is None or self._closed or not self._named.note(topic, facts.topic_id):
            return
        if self._task is None:
            self._task = essential_task(self._look(), "rules")
            self._task.add_done_callback(self._looked)

    def _looked(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _look(self) -> None:
        await asyncio.sleep(PAUSE_S)
        loop = asyncio.get_running_loop()
        while due := self._named.take():
            try:
                rules = await loop.run_in_executor(self._reading, self._rules.read)
            except (LogtxError, KafkaException) as error:
                _LOG.warning("rules_not_read error=%s", error)
                self._put_back(due)
                await asyncio.sleep(RETRY_S)
                continue
            fitting = {t: r for t in due if (r := longest(rules, t)) and r.mode is Mode.METADATA}
            calls = [
                loop.run_in_executor(self._switching, self._switch, topic, due[topic], rule)
                for topic, rule in fitting.items()
            ]
            done = await asyncio.gather(*calls)
            failed = {t: due[t] for t, is_done in zip(fitting, done, strict=True) if not is_done}
            self._put_back(failed)
            await asyncio.sleep(RETRY_S if failed else PAUSE_S)

    def _put_back(self, topics: Mapping[str, str]) -> None:
        for topic, topic_id in topics.items():
            facts = self._known.facts.get(topic)
            # Of one that is gone nobody tells any more.
            if facts is not None and facts.topic_id == topic_id:
                self._named.put_back(topic, topic_id)

    def _switch(self, topic: str, topic_id: str, rule: ModeRule) -> bool:
        """Switches a topic if the rule applies; runs in a thread. Returns whether that is done."""
        try:
            told = self._admin.describe_topic(topic)
            if not applies(rule, topic_id, told.transaction_group, told.info):
                return True
            group = rule.transaction_group
            _LOG.info("rule_applied topic=%s rule=%s group=%s", topic, rule.name, group)
            self._admin.set_topic_mode(
                topic, Mode.METADATA, transaction_group=group, timeout_s=SWITCH_S
            )
        except (LogtxError, KafkaException) as error:
            _LOG.warning("rule_not_applied topic=%s rule=%s error=%s", topic, rule.name, error)
            return isinstance(error, _REFUSED)
        return True

    def close(self) -> None:
        """Stops looking; switches under way go on by themselves."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._switching.shutdown(wait=False, cancel_futures=True)
        self._admin.close()
