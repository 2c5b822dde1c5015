"""Asks the log blocking questions, with a thread for each purpose.

A broker that died without a word delays each question to it for ten seconds. If all questions
shared their threads, the journal partitions that this broker leads would soon occupy every thread,
and those of healthy brokers would wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class Questions:
    """Asks the log; lives on the event loop. Each purpose gets its thread when it is first used."""

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def ask(self, purpose: str, question: Callable[..., R], *args: object) -> R:
        """Returns what a blocking call returns.

        Args:
            purpose: questions of the same purpose wait for each other, such as those for the end
                of one journal partition.
            question: the call; it must have a bound.
            args: arguments of the call.
        """
        thread = self._threads.get(purpose)
        if thread is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix=f"ask-{purpose}")
            self._threads[purpose] = thread
        return await asyncio.get_running_loop().run_in_executor(thread, question, *args)

    def close(self) -> None:
        """Stops asking, without waiting for questions under way."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
