"""What workers by `logtx.process` share, be their input topics or a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Final, TypeVar

from ...coordinator.protocol.commands import Outcome
from ...integration.block import Block
from ...journal.errors import DoubleStartError, ProducerFencedError, RequestTooLargeError
from .logtx_writer import ended_of
from .output import enter_end, outputs
from .process import Process, TakenOverError

_Block = TypeVar("_Block", bound=Block)

RETRIES: Final = 100
"""Failures in a row before a worker ends: brokers and coordinators are gone for longer than ten
failures take."""
TAKEN_OVER: Final = (ProducerFencedError, DoubleStartError)
"""Errors that say that a successor has our transactional.id."""
_SEALED_S: Final = 1.0
"""Pause after a commit that was refused, as its topic takes no markers now."""


def work_until_stopped(worker: Process, work: Callable[[Process], bool]) -> None:
    """Works until SIGTERM: `work` returns False where it was only sealed output that ended it.

    Raises:
        TakenOverError: a successor has our transactional.id.
    """
    while not work(worker):
        worker.stopping.wait(_SEALED_S)


def work_off(worker: Process, blocks: Iterable[_Block], work_on: Callable[[_Block], None]) -> bool:
    """Works on blocks. Returns True at their end, and False if their output is sealed.

    Raises:
        TakenOverError: a successor has our transactional.id.
    """
    try:
        for block in blocks:
            work_on(block)
    except TAKEN_OVER as error:
        raise TakenOverError(str(error)) from error
    except RequestTooLargeError as error:
        # While the topic takes no record, it takes no marker: nothing that would go by itself.
        worker.recorder.write("error", error=repr(error))
        return False
    return True


def begin(worker: Process, block: Block) -> str:
    """Writes a block's output, and the beginning to the history. Returns the operation."""
    operation = worker.operation()
    worker.recorder.write("begin", op=operation)
    topic = worker.settings.out_topic
    for output in outputs(worker, operation, block):
        block.produce(topic, output.value, output.key, partition=output.partition)
    return operation


def then_enter(worker: Process, operation: str, future: Future[Outcome]) -> None:
    """Writes to the history what became of a block, when it is told."""
    future.add_done_callback(lambda done: enter_end(worker, operation, ended_of(done)))
