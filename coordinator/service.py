"""The coordinator as a process: its gRPC service over the runtimes of its journal partitions."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from ..journal.errors import (
    ConfigError,
    CoordinatorLoadingError,
    JournalTopicError,
    LogtxError,
    NotCoordinatorError,
    NotSupportedError,
    SessionClosedError,
)
from ..journal.log import Log, TopicInfo
from ..journal.open import open_log
from ..journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC
from . import commands as c
from . import coordinator_pb2 as pb
from . import coordinator_pb2_grpc as pb_grpc
from .appender import Appender
from .decision import ShardConfig
from .markers import MarkerWriter
from .offsets_log import OFFSETS_TOPIC_SETTINGS, OffsetsWriter
from .runtime import TICK_S, Answer, PartitionRuntime, Services, Serving
from .topics import TopicRegistry
from .wire import PROTOCOL_VERSION, decode_request, encode_reply

_LOG = logging.getLogger(__name__)

JOURNAL_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
"""Under any other, decisions could be lost."""
SERVER_OPTIONS: Final = (
    # A client that was killed is noticed at once, one that was stopped only by these pings.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 50),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
STOP_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Settings of a coordinator process."""

    bootstrap_servers: str
    listen: str = "127.0.0.1:9095"
    """host:port to listen at; port 0 takes a free one."""
    advertised: str | None = None
    """host:port that clients connect to; by default where it listens."""
    journal_partitions: int = 8
    """Partitions of the journal topic, if it must be created; fixed from then on."""
    replication_factor: int = -1
    """Of logtx's own topics; -1 is the broker's default."""
    max_timeout_ms: int = 900_000
    session_grace_ms: int = 3_000
    """How long after its socket closed a producer may come back before its work is aborted."""
    reload_grace_ms: int = 10_000
    client: Mapping[str, Any] = field(default_factory=dict)
    """Further librdkafka settings, such as ``security.protocol``."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One producer's stream: its session, and the replies on their way out."""

    partition: int
    session: c.Session
    out: asyncio.Queue[pb.Reply | None]
    answers: dict[int, Answer] = field(default_factory=dict)

    def end(self, error: LogtxError) -> None:
        """Tell the client why, and let the stream end."""
        self.out.put_nowait(encode_reply(0, error))
        self.out.put_nowait(None)


class Coordinator(pb_grpc.CoordinatorServicer):
    """A coordinator: owns the journal's partitions and serves producers over gRPC."""

    def __init__(self, config: CoordinatorConfig, log: Log | None = None) -> None:
        """Nothing happens before `start`."""
        self._config = config
        self._log = log or open_log(
            {"bootstrap.servers": config.bootstrap_servers, **config.client}
        )
        self._runtimes: dict[int, PartitionRuntime] = {}
        self._streams: dict[tuple[int, str, int], _Stream] = {}
        self._topics = TopicRegistry(self._log)
        self._server: Any = None
        self._services: Services | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.address = ""
        """host:port that clients connect to."""

    async def start(self) -> None:
        """Create logtx's topics where missing, listen, and take over every journal partition.

        Raises:
            ConfigError: the address is taken or can't be listened at.
            JournalTopicError: the journal topic has settings that could lose decisions.
            BrokerError: Kafka does not answer.
        """
        journal, offsets = await asyncio.to_thread(self._prepare_topics)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_CoordinatorServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        host = self._config.listen.rpartition(":")[0]
        try:
            port = self._server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"can't listen at {self._config.listen}: is another coordinator running there?"
            ) from error
        self.address = self._config.advertised or f"{host}:{port}"
        await self._server.start()
        self._services = Services(
            log=self._log,
            journal=Appender(self._log, {}, "journal"),
            markers=MarkerWriter(self._log),
            offsets=OffsetsWriter(self._log, offsets.partition_count),
            address=self.address,
            process_nonce=random.getrandbits(63),
            close_session=self._close_session,
            close_sessions=self._close_sessions,
        )
        shard_config = ShardConfig(
            max_timeout_ms=self._config.max_timeout_ms,
            session_grace_ms=self._config.session_grace_ms,
            reload_grace_ms=self._config.reload_grace_ms,
        )
        for partition in range(journal.partition_count):
            runtime = PartitionRuntime(partition, self._services, shard_config)
            runtime.shard.topics = self._topics.facts
            self._runtimes[partition] = runtime
            runtime.start()
        self._ticker = asyncio.create_task(self._tick())

    async def wait_serving(self, timeout_s: float = 60) -> None:
        """Wait until every partition is served.

        Raises:
            CoordinatorLoadingError: not within `timeout_s`.
            JournalError: a partition can't be served.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        for partition, runtime in self._runtimes.items():
            while runtime.status is not Serving.SERVING:
                if runtime.failure is not None:
                    raise runtime.failure
                if asyncio.get_running_loop().time() > deadline:
                    raise CoordinatorLoadingError(
                        f"journal partition {partition} was not loaded within {timeout_s:.0f} s"
                    )
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop serving and close; open transactions live on in the journal."""
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(r.stop() for r in self._runtimes.values()))
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        if self._services is not None:
            services = self._services
            await asyncio.gather(
                services.journal.close(), services.markers.close(), services.offsets.close()
            )
        await asyncio.to_thread(self._log.close)

    def _prepare_topics(self) -> tuple[TopicInfo, TopicInfo]:
        config, log = self._config, self._log
        log.create_topic(
            JOURNAL_TOPIC,
            partitions=config.journal_partitions,
            replication_factor=config.replication_factor,
            settings=JOURNAL_SETTINGS,
        )
        log.create_topic(
            OFFSETS_TOPIC,
            partitions=config.journal_partitions,
            replication_factor=config.replication_factor,
            settings=OFFSETS_TOPIC_SETTINGS,
        )
        journal, offsets = log.topic_info(JOURNAL_TOPIC), log.topic_info(OFFSETS_TOPIC)
        _check_settings(journal, JOURNAL_SETTINGS)
        _check_settings(offsets, OFFSETS_TOPIC_SETTINGS)
        return journal, offsets

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for runtime in self._runtimes.values():
                runtime.tick()

    # ---- gRPC ------------------------------------------------------------------------------

    async def Call(self, request: pb.CallRequest, context: Any) -> pb.Reply:  # noqa: N802, ARG002
        """Answer one request that needs no session."""
        request_id = request.request.request_id
        future: asyncio.Future[c.Reply] = asyncio.get_running_loop().create_future()

        def answer(reply: c.Reply) -> None:
            if not future.done():
                future.set_result(reply)

        try:
            runtime = self._runtime(request.partition)
            command = decode_request(request.request, None)
            if isinstance(command, c.Connect):
                raise NotSupportedError("a producer connects by a stream (Session)")
            await self._learn_topics(command)
            runtime.submit(command, answer)
        except (LogtxError, ValueError) as error:
            return encode_reply(request_id, _as_logtx(error))
        return encode_reply(request_id, await future)

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.ClientFrame],
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[pb.ServerFrame]:
        """Serve one producer's stream."""
        out: asyncio.Queue[pb.Reply | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, out))
        try:
            ended = False
            while not ended:
                replies = [await out.get()]
                while not out.empty():
                    replies.append(out.get_nowait())
                ended = None in replies
                frame = pb.ServerFrame(replies=[r for r in replies if r is not None])
                if frame.replies:
                    yield frame
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    async def _read(
        self, frames: AsyncIterator[pb.ClientFrame], out: asyncio.Queue[pb.Reply | None]
    ) -> None:
        stream: _Stream | None = None
        try:
            async for frame in frames:
                for request in frame.requests:
                    if stream is None:
                        stream = await self._connect(request, out)
                        if stream is None:
                            return
                    else:
                        await self._serve(stream, request)
        finally:
            if stream is not None:
                self._disconnected(stream)
            out.put_nowait(None)

    async def _connect(
        self, request: pb.Request, out: asyncio.Queue[pb.Reply | None]
    ) -> _Stream | None:
        future: asyncio.Future[c.Reply] = asyncio.get_running_loop().create_future()
        try:
            command = decode_request(request, None)
            if not isinstance(command, c.Connect):
                raise SessionClosedError("a stream begins with Connect")
            if request.connect.version != PROTOCOL_VERSION:
                raise NotSupportedError(
                    f"protocol version {request.connect.version}; this coordinator speaks"
                    f" {PROTOCOL_VERSION}"
                )
            runtime = self._runtime(request.connect.partition)
        except (LogtxError, ValueError) as error:
            out.put_nowait(encode_reply(request.request_id, _as_logtx(error)))
            return None
        runtime.submit(command, lambda r: None if future.done() else future.set_result(r))
        reply = await future
        out.put_nowait(encode_reply(request.request_id, reply))
        if not isinstance(reply, c.Connected):
            return None
        session = c.Session(command.producer_id, reply.generation, command.nonce)
        stream = _Stream(runtime.partition, session, out)
        key = runtime.partition, session.producer_id, session.nonce
        former = self._streams.get(key)
        self._streams[key] = stream
        if former is not None:
            former.end(SessionClosedError("the session was resumed by another connection"))
        runtime.attach(session.producer_id)
        return stream

    async def _serve(self, stream: _Stream, request: pb.Request) -> None:
        request_id = request.request_id

        def answer(reply: c.Reply) -> None:
            stream.answers.pop(request_id, None)
            stream.out.put_nowait(encode_reply(request_id, reply))

        try:
            command = decode_request(request, stream.session)
            if isinstance(command, c.Connect):
                raise NotSupportedError("this stream is connected already")
            await self._learn_topics(command)
        except (LogtxError, ValueError) as error:
            answer(_as_logtx(error))
            return
        stream.answers[request_id] = answer
        self._runtimes[stream.partition].submit(command, answer)

    async def _learn_topics(self, command: c.Command) -> None:
        match command:
            case c.Begin() | c.AddPartitions():
                named = {topic for topic, _ in command.partitions}
            case c.End():
                named = {topic for topic, _ in command.writes}
            case _:
                return
        missing = self._topics.missing(named)
        if not missing:
            return
        try:
            await self._topics.look_up(missing)
        except LogtxError:
            # An abort must go through whatever became of its topics.
            if not (isinstance(command, c.End) and command.action is c.Action.ABORT):
                raise

    def _runtime(self, partition: int) -> PartitionRuntime:
        runtime = self._runtimes.get(partition)
        if runtime is None:
            raise NotCoordinatorError(f"there is no journal partition {partition} here")
        return runtime

    def _disconnected(self, stream: _Stream) -> None:
        session, runtime = stream.session, self._runtimes[stream.partition]
        key = stream.partition, session.producer_id, session.nonce
        runtime.forget(list(stream.answers.values()))
        if self._streams.get(key) is stream:
            del self._streams[key]
            runtime.detach(session.producer_id, session.nonce)

    def _close_session(
        self, partition: int, producer_id: str, nonce: int, error: LogtxError
    ) -> None:
        stream = self._streams.pop((partition, producer_id, nonce), None)
        if stream is not None:
            stream.end(error)

    def _close_sessions(self, partition: int, error: LogtxError) -> None:
        for key in [k for k in self._streams if k[0] == partition]:
            self._streams.pop(key).end(error)


def _as_logtx(error: Exception) -> LogtxError:
    """A malformed request as an error that its client can be told."""
    if isinstance(error, LogtxError):
        return error if error.code else NotSupportedError(str(error))
    return NotSupportedError(f"the request does not decode: {error}")


def _check_settings(info: TopicInfo, required: Mapping[str, str]) -> None:
    if info.settings is None:
        return
    wrong = {k: v for k, v in required.items() if info.settings.get(k, v) != v}
    if wrong:
        found = ", ".join(f"{k}={info.settings[k]}" for k in wrong)
        mend = ",".join(f"{k}={v}" for k, v in wrong.items())
        raise JournalTopicError(
            f"topic {info.topic} has {found}; mend it with: kafka-configs.sh --alter --entity-type"
            f" topics --entity-name {info.topic} --add-config {mend}"
        )


async def serve(config: CoordinatorConfig, stop: asyncio.Event) -> None:
    """Run a coordinator until `stop` is set; prints one line when it serves."""
    coordinator = Coordinator(config)
    try:
        await coordinator.start()
        await coordinator.wait_serving()
        print(f"coordinator ready on {coordinator.address}", flush=True)
        await stop.wait()
    finally:
        await coordinator.stop()


def run(config: CoordinatorConfig) -> None:
    """Run a coordinator until SIGTERM or SIGINT.

    Raises:
        ConfigError, JournalTopicError, BrokerError: it can't start; the message says why.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        await serve(config, stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # Windows has none.
        return None
    return uvloop.new_event_loop
