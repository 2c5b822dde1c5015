"""What tests of connections run on."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.coordinator.protocol.strangers import Role

from .served import LOOPS, tls


@pytest.fixture(params=[*LOOPS, "uvloop-tls", "asyncio-tls"])
def variant(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a listener and of its clients: each event loop, with and without TLS."""
    loop, _, has_tls = request.param.partition("-")
    if not has_tls:
        return {"loop": loop}, {}
    ours, theirs = tls(Role.COORDINATOR, "coordinator", None), tls(Role.CLIENT, None)
    return {"loop": loop, "tls": ours}, {"tls": theirs}
