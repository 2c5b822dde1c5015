"""Which records that a reader lacks went with a topic of the same name, unnoticed by everybody."""

from __future__ import annotations

from logtx.journal.control import TopicPartition

from .history import History
from .reference import Reading


def nobody_knew(history: History, reading: Reading, key: TopicPartition, why: str) -> bool:
    """Whether a reader stopped for lost records that nobody could know to be in another topic.

    They went with the topic's predecessor. The partition had not been registered by then, and the
    coordinator that decided had never heard of that one, from brokers or other coordinators. What
    it heard when it had decided came too late: the decision names the topic (trap 268).
    """
    former = reading.former.get(key)
    gone = set(former.txids.values()) if former is not None else set()
    txid = next((txid for txid in gone if f"transaction {txid} " in why), None)
    found = reading.transaction(txid) if txid is not None else None
    if found is None or found.decision is None:
        return False
    [absence] = [a for a in history.absent if a.topic == key[0]]
    record = reading.journals[found.txid.partition].records[found.decision.sequence]
    registered_at = found.registered.get(key, record.handed_at)
    # One that it heard of later than of the new topic is no former one to it: brokers were behind.
    heard = (
        topic_id
        for who, at, topic_id in history.heard
        if topic_id.endswith(key[0]) and who == record.writer and at < record.handed_at
    )
    knew = not next(heard, "new-").startswith("new-") or any(
        topic_id.endswith(key[0]) and not topic_id.startswith("new-")
        for who, at, topic_id, since_ms in history.news
        if who == record.writer and at < record.handed_at and since_ms < absence.until_ms
    )
    return absence.until_at < registered_at and not knew
