"""Blocking questions to the log, each purpose in a thread of its own.

A broker that died without a word holds a question to it up for ten seconds. In threads shared by
all, the journal partitions that it leads would soon have every one of them, and those of healthy
brokers would wait behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class Questions:
    """Asks the log; lives on the event loop. There are as many purposes as there are threads."""

    def __init__(self) -> None:
        """Nothing is asked, and no thread is made before it is."""
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def ask(self, purpose: str, question: Callable[..., R], *args: object) -> R:
        """What a blocking call returns.

        Args:
            purpose: what may wait for each other, such as one journal partition's end.
            question: the call; it has a bound.
            args: of the call.
        """
        thread = self._threads.get(purpose)
        if thread is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix=f"ask-{purpose}")
            self._threads[purpose] = thread
        return await asyncio.get_running_loop().run_in_executor(thread, question, *args)

    def close(self) -> None:
        """Ask no more; what is on its way is not waited for."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
