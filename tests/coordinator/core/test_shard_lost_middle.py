"""If an append is lost, decisions that build on it must not count: traps 2 and 26 at once.

Two pipelined transactions of one producer, T0 with input 0 to 1 and T1 with 1 to 2, are committed
during an outage. T0's append times out. T1's, which is younger, lands when the outage ends, in an
epoch that is still current. If that committed T1, then T0 could not be committed any more: input 0
would be lost. The mutation `no_prediction_check` shows the same in the random histories.

This was also seen with confluent-kafka 2.16.1 on Kafka 4.1, even with ``enable.gapless.guarantee``,
which does not cover a record that timed out before it was sent.
"""

from __future__ import annotations

import asyncio

from logtx.coordinator.protocol import commands
from logtx.journal.logs.memory.log import MemoryLog

from ..harness import step
from ..runtimes import DATA, commit, prepare, running

P0 = (DATA, 0)


def test_what_was_decided_on_a_lost_append_is_void(memory_log: MemoryLog) -> None:
    asyncio.run(asyncio.wait_for(outage(memory_log), 60))


async def outage(log: MemoryLog) -> None:
    """Commits two pipelined transactions while the first append times out."""
    prepare(log)
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(2)]
        for txid, start, to in zip(txids, (None, 1), (1, 2), strict=True):
            steps = (step(P0, start, to),)
            await driver.ask(
                commands.AddOffsets(session=session, txid=txid, group="g", steps=steps)
            )
        log.unavailable()
        replies = [driver.send(commit(session, txids[0]))]
        # Appends time out after 2 s here.
        await asyncio.sleep(1.5)
        replies.append(driver.send(commit(session, txids[1])))
        await asyncio.sleep(1)
        log.unavailable(down=False)
        await asyncio.gather(*replies)
        # The younger append lands at once, and a new epoch is won behind it.
        await asyncio.sleep(0.5)
        await driver.serving()
        # The client may commit both again, in order, no matter what landed.
        for txid in txids:
            reply = await driver.ask(commit(session, txid))
            assert isinstance(reply, commands.Outcome), reply
            assert reply.state.commits
