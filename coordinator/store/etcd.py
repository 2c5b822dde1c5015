"""A metadata store in etcd: one for all coordinators. The one home of the package `aetcd`.

Each write is one transaction of etcd, guarded by the cursor, so of two projectors one wins. A watch
begins behind the revision at which its range was read, so nothing lies between the two. What the
answer was to a call that timed out is not known; the cursor tells it at the next attempt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Final

import grpc
from aetcd import rpc

from ...journal.errors import MetadataStoreError, WatchLaggedError
from .base import PAGE, READY, Event, Item
from .core.keys import OPERATION, Span, prefixed
from .keyed import Batch, KeyedStore

CALL_S: Final = 3.0
"""Longest wait for one answer of one member of etcd; past it the next one is asked."""
MUTATIONS_MAX: Final = 126
"""Most keys of a write: etcd takes 128 operations in a transaction (`--max-txn-ops`), and the
cursor is one."""
MESSAGE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest answer: a page of the largest records is far below it."""
_OPTIONS: Final = (
    # Only these pings notice a member that was stopped, where a watch waits for it. etcd ends
    # connections that ping more often than each 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
)
_TRY_NEXT: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class _Member:
    """The connection to one member of etcd."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        self.keys: Any = rpc.KVStub(self._channel)
        self.watches: Any = rpc.WatchStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)


class EtcdStore(KeyedStore):
    """Keeps everything in an etcd."""

    name: ClassVar[str] = "etcd"
    shared: ClassVar[bool] = True

    def __init__(self, endpoints: Sequence[str], prefix: bytes) -> None:
        """Connects when it is first used.

        Args:
            endpoints: addresses of its members, as host:port.
            prefix: how all keys begin: stores with different ones don't know of each other.
        """
        self.mutations_max = MUTATIONS_MAX
        self._prefix = prefix
        self._endpoints = list(endpoints)
        self._members: dict[str, _Member] = {}
        self._current = 0
        """Number of the member that answered last."""
        self._closed = False

    # ---- calling --------------------------------------------------------------------------------

    def _member(self, number: int) -> _Member:
        endpoint = self._endpoints[number % len(self._endpoints)]
        member = self._members.get(endpoint)
        if member is None:
            member = self._members[endpoint] = _Member(endpoint)
        return member

    async def _call(self, method: Callable[[_Member], Any], request: Any) -> Any:
        """Asks the members, one after another, until one answers.

        Raises:
            MetadataStoreError: none did, or one refused.
        """
        failure: grpc.aio.AioRpcError | None = None
        for _ in self._endpoints:
            if self._closed:
                raise MetadataStoreError("the metadata store was closed")
            member = self._member(self._current)
            try:
                return await method(member)(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                failure = error
                if error.code() not in _TRY_NEXT:
                    break
                self._current += 1
                # A new connection does not wait for the pauses between attempts of the old one.
                self._members.pop(member.endpoint, None)
                await member.close()
        assert failure is not None, "there is an address"
        raise self._told(failure) from failure

    def _told(self, error: grpc.aio.AioRpcError) -> MetadataStoreError:
        where = ", ".join(self._endpoints)
        text = error.details() or error.code().name
        if "space exceeded" in text:
            advice = (
                "it is full: shorten --metadata-history-ms, let it compact and defragment, disarm"
                " its alarm (etcdctl alarm disarm), or raise --quota-backend-bytes"
            )
        elif error.code() in _TRY_NEXT:
            advice = "it does not answer: see that it runs, and has a leader"
        else:
            advice = "see its log"
        return MetadataStoreError(
            f"the metadata store in etcd at {where}: {text}. Transactions go on without it;"
            f" {advice}"
        )

    # ---- reading and writing --------------------------------------------------------------------

    async def _get(self, key: bytes) -> bytes | None:
        request = rpc.RangeRequest(key=self._prefix + key)
        answer = await self._call(lambda m: m.keys.Range, request)
        return bytes(answer.kvs[0].value) if answer.kvs else None

    async def _page(self, span: Span, limit: int) -> list[Item]:
        return self._items(await self._range(span, limit))

    async def _range(self, span: Span, limit: int, revision: int = 0) -> Any:
        request = rpc.RangeRequest(
            key=self._prefix + span.low,
            range_end=self._prefix + span.high,
            limit=limit,
            revision=revision,
        )
        return await self._call(lambda m: m.keys.Range, request)

    def _items(self, answer: Any) -> list[Item]:
        skip = len(self._prefix)
        return [(bytes(kv.key)[skip:], bytes(kv.value)) for kv in answer.kvs]

    async def _commit(self, batch: Batch) -> bool:
        prefix = self._prefix
        request = rpc.TxnRequest(
            compare=[_is(prefix + key, value) for key, value in batch.guards.items()],
            success=[
                rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=prefix + key))
                if value is None
                else rpc.RequestOp(request_put=rpc.PutRequest(key=prefix + key, value=value))
                for key, value in batch.all()
            ],
        )
        answer = await self._call(lambda m: m.keys.Txn, request)
        return bool(answer.succeeded)

    async def outstanding(self) -> int:
        """Returns the number of operations."""
        span = prefixed(OPERATION)
        request = rpc.RangeRequest(
            key=self._prefix + span.low, range_end=self._prefix + span.high, count_only=True
        )
        answer = await self._call(lambda m: m.keys.Range, request)
        return int(answer.count)

    async def tidy(self) -> None:
        """Has nothing to do: etcd writes each transaction to its disks."""

    # ---- watching -------------------------------------------------------------------------------

    async def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Watches a range: see `MetadataStore`."""
        answer = await self._range(span, PAGE)
        revision, rest = answer.header.revision, span
        while answer.kvs:
            items = self._items(answer)
            yield [Event(*item) for item in items]
            if len(items) < PAGE:
                break
            rest = Span(items[-1][0] + b"\0", span.high)
            answer = await self._range(rest, PAGE, revision)
        yield [READY]
        async with aclosing(self._changes(span, revision + 1)) as changes:  # type: ignore[type-var]
            async for events in changes:
                yield events

    async def _changes(self, span: Span, revision: int) -> AsyncIterator[list[Event]]:
        # Without a leader a member would keep the watch, and tell nothing.
        call = self._member(self._current).watches.Watch(metadata=(("hasleader", "true"),))
        skip = len(self._prefix)
        try:
            await call.write(
                rpc.WatchRequest(
                    create_request=rpc.WatchCreateRequest(
                        key=self._prefix + span.low,
                        range_end=self._prefix + span.high,
                        start_revision=revision,
                    )
                )
            )
            async for response in call:
                if response.compact_revision:
                    raise WatchLaggedError(
                        "etcd has compacted changes that the watcher had not taken: watch again"
                    )
                if response.canceled:
                    raise MetadataStoreError(
                        f"etcd ended the watch: {response.cancel_reason or 'no reason told'}; watch"
                        " again"
                    )
                events = [
                    Event(
                        bytes(event.kv.key)[skip:],
                        None if event.type == rpc.Event.DELETE else bytes(event.kv.value),
                    )
                    for event in response.events
                ]
                if events:
                    yield events
        except grpc.aio.AioRpcError as error:
            self._current += 1
            raise self._told(error) from error
        finally:
            call.cancel()
        raise MetadataStoreError("etcd ended the watch: watch again")

    async def close(self) -> None:
        """Ends all watches and calls."""
        self._closed = True
        members, self._members = list(self._members.values()), {}
        for member in members:
            await member.close()


def _is(key: bytes, value: bytes | None) -> Any:
    if value is None:
        return rpc.Compare(
            key=key,
            target=rpc.Compare.CREATE,
            result=rpc.Compare.EQUAL,
            create_revision=0,
        )
    return rpc.Compare(key=key, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=value)
