"""`logtx up`: runs brokers and coordinators together until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

from ...coordinator.store.opening import MetadataConfig
from ..local.cluster import LocalCluster
from ..local.errors import EtcdNotFoundError, LocalKafkaError
from ..local.etcd import INSTALL, LocalEtcd, find_etcd
from ..local.ports import HOST, check_port
from ..local.processes import CoordinatorChild
from ..local.restarter import (
    CHILD_RESTART_AFTER_S,
    RESTART_AFTER_S,
    ChildRestarter,
    Restarter,
    Watched,
    start_child,
)
from ..local.topics import create_topic

_POLL_S: Final = 0.1
"""Between two checks of the processes: bounds how late a death is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The command line of `logtx up`."""

    data_dir: Path
    port: int
    """Port of the first broker; the other brokers have the ports after it."""
    coordinator_ports: tuple[int, ...]
    """One port for each coordinator; may be empty."""
    topics: tuple[tuple[str, int], ...]
    """Name and partition count of each topic to create."""
    brokers: int = 1
    metadata_store: str = "none"
    """``none``, ``rocksdb``, ``etcd``, or what `logtx coordinator` takes."""


def parse_topic(text: str) -> tuple[str, int]:
    """Parses "orders:6" to ("orders", 6), and "orders" to ("orders", 1). Raises BadParameter."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isdecimal() and int(count) > 0)):
        raise typer.BadParameter(
            f"{text!r} is not NAME:PARTITIONS, as in orders:6", param_hint="--topic"
        )
    return name, int(count) if colon else 1


def run_up(options: UpOptions, *, console: Console) -> None:
    """Runs until KeyboardInterrupt, then stops the coordinators and the brokers, in this order.

    If a coordinator, the etcd or one of several brokers dies, it is reported and started again.

    Raises:
        LocalKafkaError: a process cannot be started, the only broker died, or a coordinator or the
            etcd died too often; all others are stopped.
    """
    if options.metadata_store not in ("rocksdb", "etcd"):
        MetadataConfig(store=options.metadata_store)
    if options.metadata_store == "etcd" and find_etcd() is None:
        raise EtcdNotFoundError(f"No etcd was found on the PATH: {INSTALL}.")
    for port in options.coordinator_ports:
        check_port(port)  # now, because the start of Kafka takes seconds
    kafka = LocalCluster(options.data_dir / "kafka", brokers=options.brokers, port=options.port)
    with console.status("Starting Kafka …"):
        kafka.start()
    children: list[CoordinatorChild] = []
    etcd: LocalEtcd | None = None
    try:
        if options.metadata_store == "etcd":
            with console.status("Starting etcd …"):
                etcd = _start_etcd(options.data_dir)
        for name, partitions in options.topics:
            create_topic(kafka.bootstrap_servers, name, partitions=partitions)
        for port in options.coordinator_ports:
            name = "coordinator" if len(options.coordinator_ports) == 1 else f"coordinator-{port}"
            log = options.data_dir / f"{name}.log"
            address = f"{HOST}:{port}"
            store = _store_options(options, port, etcd)
            child = CoordinatorChild(name, log, kafka.bootstrap_servers, *store, listen=address)
            children.append(child)
            start_child(child)
        with console.status("Starting coordinators …"):
            for child in children:
                child.await_ready()
        _print_ready(console, options, kafka, children)
        if etcd is not None:
            console.print(
                f"The metadata store is an etcd at {etcd.endpoint} (process {etcd.pid}): if it"
                f" dies, it is started again after {CHILD_RESTART_AFTER_S:g} s.",
                soft_wrap=True,
            )
        say = partial(_say, console)
        others: list[Watched] = [*children, *([] if etcd is None else [etcd])]
        restarter = ChildRestarter(others, say, restart_after_s=CHILD_RESTART_AFTER_S)
        _watch(Restarter(kafka, say), restarter)
    except KeyboardInterrupt:
        console.print("Stopping.")
    finally:
        _stop(kafka, children)
        if etcd is not None:
            etcd.ask_to_stop()
            etcd.await_end()


def _start_etcd(data_dir: Path) -> LocalEtcd:
    """Starts an etcd whose data lies beside Kafka's.

    Raises:
        LocalKafkaError: it is not installed, or does not start.
    """
    directory = data_dir / "metadata"
    directory.mkdir(parents=True, exist_ok=True)
    etcd = LocalEtcd(directory)
    etcd.start()
    try:
        etcd.await_ready()
    except LocalKafkaError:
        etcd.kill()
        raise
    return etcd


def _store_options(options: UpOptions, port: int, etcd: LocalEtcd | None) -> list[str]:
    """Returns the options of one coordinator that name its metadata store."""
    kind, _, place = options.metadata_store.partition(":")
    if etcd is not None:
        return ["--metadata-store", f"etcd:{etcd.endpoint}"]
    if kind == "rocksdb":
        # Of each coordinator's own.
        directory = Path(place) if place else options.data_dir / "metadata"
        return ["--metadata-store", f"rocksdb:{directory / str(port)}"]
    return [] if kind == "none" else ["--metadata-store", options.metadata_store]


def _print_ready(
    console: Console,
    options: UpOptions,
    kafka: LocalCluster,
    coordinators: Sequence[CoordinatorChild],
) -> None:
    servers = kafka.bootstrap_servers
    console.print(f"[green]Kafka is ready.[/green] bootstrap.servers = {servers}", soft_wrap=True)
    if len(kafka.brokers) > 1:
        processes = ", ".join(f"{broker.id} (process {broker.pid})" for broker in kafka.brokers)
        console.print(
            f"Brokers {processes}: one that dies is started again after {RESTART_AFTER_S:g} s.",
            soft_wrap=True,
        )
    if coordinators:
        addresses = ", ".join(f"{child.address} (process {child.pid})" for child in coordinators)
        who = "The coordinator listens" if len(coordinators) == 1 else "Coordinators listen"
        console.print(
            f"{who} on {addresses}: one that dies is started again after "
            f"{CHILD_RESTART_AFTER_S:g} s.",
            soft_wrap=True,
        )
        console.print(
            "Clients find coordinators by themselves; they need the bootstrap address only:\n"
        )
        console.print(
            f'    logtx.Producer({{"bootstrap.servers": "{servers}", '
            '"transactional.id": "worker-1"})\n',
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    for name, partitions in options.topics:
        console.print(f"Topic {name} has {partitions} partition{'s' * (partitions > 1)}.")
    console.print(f"Records and logs are in {options.data_dir}. Ctrl-C stops it.", soft_wrap=True)


def _watch(brokers: Restarter, others: ChildRestarter) -> None:
    while True:
        time.sleep(_POLL_S)
        brokers.look()  # first: if Kafka is gone, that is why coordinators end
        others.look()


def _say(console: Console, line: str) -> None:
    console.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, soft_wrap=True)


def _stop(kafka: LocalCluster, children: Sequence[CoordinatorChild]) -> None:
    try:
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.await_end()
        kafka.stop()
    except KeyboardInterrupt:  # a second Ctrl-C: the user does not want to wait
        for child in children:
            child.kill()
        kafka.kill()
