"""Names Kafka's settings: those of librdkafka, and those that only the Java client has. Pure.

A name that is not here is a typing error. A test compares the names with librdkafka's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LIBRDKAFKA: Final = frozenset(  # as a text, because a list would take three pages
    """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request
    api.version.request.timeout.ms auto.commit.enable auto.commit.interval.ms
    auto.offset.reset batch.num.messages batch.size bootstrap.servers broker.address.family
    broker.address.ttl broker.version.fallback builtin.features check.crcs client.dns.lookup
    client.id client.rack compression.codec compression.level compression.type
    connections.max.idle.ms consume.callback.max.messages coordinator.query.interval.ms debug
    delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store
    enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof
    enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification enabled_events fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
    group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms https.ca.location https.ca.pem internal.termination.signal
    isolation.level linger.ms log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method
    offset.store.path offset.store.sync.interval.ms partition.assignment.strategy partitioner
    plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold
    queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
    queued.max.messages.kbytes queued.min.messages queuing.strategy receive.message.max.bytes
    reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type
    sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
    socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
    ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
    ssl.providers ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905
)
"""Settings of librdkafka that have a value which can be written down: no callbacks, no pointers."""
_PEM: Final = "a PEM file"
_NOT_NEEDED: Final = "nothing: remove it"
_OIDC: Final = "sasl.oauthbearer.method=oidc, with sasl.oauthbearer.token.endpoint.url and more"
_DESERIALIZED: Final = "nothing, and call the deserializer with what a message has"
_SERIALIZED: Final = "nothing, and give produce() what the serializer returns"
JAVA: Final[Mapping[str, str]] = {
    "config.providers": "the values themselves, or a TOML file with ${NAME} or file:",
    "default.api.timeout.ms": "socket.timeout.ms",
    "key.deserializer": _DESERIALIZED,
    "key.serializer": _SERIALIZED,
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "sasl.client.callback.handler.class": _OIDC,
    "sasl.jaas.config": "sasl.username and sasl.password (for PLAIN and SCRAM),"
    " sasl.kerberos.principal and sasl.kerberos.keytab, or sasl.oauthbearer.…",
    "sasl.kerberos.kinit.cmd.path": "sasl.kerberos.kinit.cmd",
    "sasl.login.callback.handler.class": _OIDC,
    "sasl.login.class": _NOT_NEEDED,
    "security.providers": _NOT_NEEDED,
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "ssl.enabled.protocols": _NOT_NEEDED,
    "ssl.engine.factory.class": _NOT_NEEDED,
    "ssl.keymanager.algorithm": _NOT_NEEDED,
    "ssl.keystore.certificate.chain": "ssl.certificate.pem, or ssl.certificate.location with "
    + _PEM,
    "ssl.keystore.key": "ssl.key.pem, or ssl.key.location with " + _PEM,
    "ssl.keystore.type": "nothing, if ssl.keystore.location is a PKCS#12 file; for a JKS file or"
    " PEM, ssl.certificate.location and ssl.key.location with PEM files",
    "ssl.protocol": _NOT_NEEDED,
    "ssl.provider": "ssl.providers",
    "ssl.secure.random.implementation": _NOT_NEEDED,
    "ssl.trustmanager.algorithm": _NOT_NEEDED,
    "ssl.truststore.certificates": "ssl.ca.pem, or ssl.ca.location with " + _PEM,
    "ssl.truststore.location": "ssl.ca.location with a PEM file of the certificates"
    " (keytool -list -rfc -keystore FILE)",
    "ssl.truststore.password": _NOT_NEEDED,
    "ssl.truststore.type": _NOT_NEEDED,
    "value.deserializer": _DESERIALIZED,
    "value.serializer": _SERIALIZED,
}
"""Setting that only the Java client has → what to write instead."""
