"""The script of docs/metadata.md, which reads a state from an etcd, on a real one."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from logtx.coordinator.protocol.metadata import Header, HeaderState
from logtx.coordinator.store.core.changes import Change, Cursor
from logtx.integration.local.etcd import LocalEtcd
from logtx.journal.txid import TxId

pytest.importorskip("aetcd", reason="pip install 'logtx[etcd]'")

from logtx.coordinator.store.etcd import EtcdStore

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/metadata.md"
TXID: Final = TxId(3, 0x9F3AC1D2E4B7, 17042)
NEEDED: Final = ("curl", "basenc", "base64", "od", "sed")


def told(etcd: LocalEtcd, txid: TxId) -> str:
    """Returns what the script prints of a transaction."""
    section = PAGE.read_text().partition("### Without Python")[2]
    [script] = re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert f"txid={TXID}" in script
    script = script.replace(f"txid={TXID}", f"txid={txid}")
    script = script.replace("endpoint=127.0.0.1:2379", f"endpoint={etcd.endpoint}")
    return subprocess.run(
        ["sh", "-c", script], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def test_the_state_of_a_transaction_is_read_with_curl(etcd: LocalEtcd) -> None:
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not on this machine: {', '.join(missing)}")

    async def write() -> None:
        store = EtcdStore([etcd.endpoint], b"logtx/")
        open_ = Header(
            txid=TXID,
            version=17042,
            state=HeaderState.OPEN,
            producer_id="p",
            generation=1,
            created_ms=5,
            timeout_ms=9,
        )
        decided = [
            replace(open_, txid=replace(TXID, offset=n), state=state, finished=finished)
            for n, (state, finished) in enumerate(STATES)
        ]
        await store.apply(3, None, Cursor(1), [Change(None, h) for h in (open_, *decided)])
        await store.close()

    asyncio.run(write())
    assert told(etcd, TXID) == "open"
    for n, (state, _) in enumerate(STATES):
        assert told(etcd, replace(TXID, offset=n)) == state.name.lower()
    assert told(etcd, replace(TXID, offset=99)).startswith("not known")


STATES: Final = [
    (state, finished)
    for state in (HeaderState.COMMITTED, HeaderState.ABORTED)
    for finished in (False, True)
]
