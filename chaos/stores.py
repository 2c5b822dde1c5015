"""Asks the coordinators' metadata stores, when all is over: are they what the journal says?

One of them is compared with the journal, as `logtx metadata check` does. Of each a sample is
kept in `logs/stores.jsonl`, for the checker, which reads the journal by code of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..coordinator.client.metadata import MetadataClient
from ..coordinator.protocol.metadata import Header, Operation, OperationKind
from ..integration.inspect.metadata import compare
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.txid import TxId
from .checker.load import LOGS, STORES
from .errors import ChaosError
from .settings import HISTORY

SAMPLE: Final = 100
"""Transactions that each store is asked for. More of them take longer: two requests each."""
COMPARED: Final = 500
"""The same for the store that is compared with all of the journal."""
_TIMEOUT_S: Final = 30.0
"""Bounds each question. The first one waits until the store has all of the journal."""
_END: Final = b'"event":"end"'


class _OneStore(MetadataClient):
    """Asks the store of one coordinator."""

    def __init__(self, log: Log, address: str) -> None:
        super().__init__(log, timeout_s=_TIMEOUT_S)
        self._address = address

    def _addresses(self, deadline_s: float) -> list[str]:  # noqa: ARG002
        return [self._address]


def check_stores(log: Log, addresses: Mapping[str, str], directory: Path, seed: int) -> None:
    """Compares one store with the journal, and keeps a sample of each.

    Args:
        log: through which coordinators are found.
        addresses: coordinator → its address.
        directory: of the run.
        seed: chooses the store that is compared.

    Raises:
        ChaosError: a store does not answer, or it is not what the journal says.
    """
    names = sorted(addresses)
    sample = list(_sample(directory / HISTORY))
    path = directory / LOGS / STORES
    path.parent.mkdir(exist_ok=True)
    problems: list[str] = []
    with path.open("w", encoding="ascii") as out:
        for number, name in enumerate(names):
            with _OneStore(log, addresses[name]) as client:
                try:
                    for row in _rows(client, sample):
                        out.write(json.dumps({"store": name, **row}) + "\n")
                    if number == seed % len(names):
                        problems += _compared(log, client, name)
                except LogtxError as error:
                    problems.append(f"The metadata store of {name}: {error}")
    if problems:
        raise ChaosError(" / ".join(problems))


def _sample(history: Path) -> Iterator[TxId]:
    """Yields transactions whose end was told, evenly from all histories."""
    told = []
    for path in sorted(history.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            if _END in line and b'"txid"' in line and line.endswith(b"}"):
                event = json.loads(line)
                told.append((event["at"], event["txid"]))
    step = max(1, len(told) // SAMPLE)
    return (TxId.from_bytes(bytes.fromhex(txid)) for _, txid in sorted(told)[::step])


def _rows(client: MetadataClient, sample: Iterable[TxId]) -> Iterator[dict[str, Any]]:
    fresh = True
    for txid in sample:
        header = client.header(txid, fresh=fresh)
        fresh = False  # the first answer waited for all that there was
        operations = [] if header is None else client.operations(txid, fresh=False)
        writes = [o for o in operations if o.kind is OperationKind.WRITE]
        yield {
            "txid": txid.to_bytes().hex(),
            "header": None if header is None else _header(header),
            "writes": [_write(operation) for operation in writes],
        }


def _header(header: Header) -> dict[str, Any]:
    return {
        "state": header.state.name.lower(),
        "finished": header.finished,
        "producer_id": header.producer_id,
        "generation": header.generation,
        "commit_sequence": header.commit_sequence,
    }


def _write(operation: Operation) -> dict[str, Any]:
    return {
        "topic": operation.topic,
        "partition": operation.partition,
        "branch": operation.branch,
        "first": operation.first_offset,
        "last": operation.last_offset,
        "count": operation.count,
        "placed": operation.placed,
        "place": operation.place,
    }


def _compared(log: Log, client: MetadataClient, name: str) -> Iterator[str]:
    result = compare(log, client, most=COMPARED)
    for txid, why in list(result.wrong.items())[:3]:
        yield f"The metadata store of {name} is not what the journal says. {txid}: {why[:300]}"
