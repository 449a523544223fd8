"""`magnetar broker` and `magnetar standalone`: a broker in the foreground, with or without a bookie beside it.

`standalone` keeps a broker, a bookie and their metadata in one process and one directory, which has `metadata.db`
(SQLite) and `bookie/` (journal and ledgers). The broker reaches its bookie without a socket; the bookie listens on a
loopback port of its own as well, for readers that go past the broker. Topics that are not used are kept; `broker`
deletes them after a minute, as Pulsar does.

Order:     It starts so: free ports → metadata → bookie, if it is ours → ledger client → HTTP port → broker; then one
           JSON line. It ends in the opposite order, at the first signal. Ports are checked before anything is made: a
           port in use must leave no directory and no registration.
Failure:   A bookie that fails ends the process, too. Then topics store nothing more, as the bookie takes nothing, and
           the next start recovers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from magnetar.admin.server import AdminServer
from magnetar.bookie.bookie import Bookie
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.assemble import cluster_ownership
from magnetar.broker.front_end import PULSAR
from magnetar.broker.kafka.front_end import KafkaFrontEnd
from magnetar.broker.ownership import Ownership, OwnershipContext, SoleOwnership
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.cli.open_store import Url
from magnetar.cli.options import ConfigFile, Settings, load_effective, setup_server_log
from magnetar.config.bookie import NO_HTTP
from magnetar.config.load import Effective
from magnetar.config.root import Config
from magnetar.errors import ArgumentError, ListenError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import init_cluster, read_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_configuration_store, open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.collector import expect_long_life
from magnetar.runtime.descriptors import raise_limit
from magnetar.runtime.event_loop import run
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.web_guard import WebGuard

log = logging.getLogger(__name__)

DEFAULT_DIRECTORY = "magnetar-data"
DEFAULT_HTTP_PORT = 8080
_OWN, _EXISTING = "own", "existing"
_INACTIVE = "broker.inactive_topics_delete"

ServicePort: TypeAlias = Annotated[
    int | None, typer.Option("--port", help="TCP port for Pulsar clients. 0: any free port. Default: pulsar.port.")
]
HttpPort: TypeAlias = Annotated[
    int, typer.Option("--http-port", help="TCP port for the admin interface, lookups and metrics. 0: any free port.")
]

broker_app = typer.Typer()


@broker_app.callback(invoke_without_command=True)
def broker(
    metadata: Url = None,
    port: ServicePort = None,
    http_port: HttpPort = DEFAULT_HTTP_PORT,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a broker until it gets a signal. Its bookies and metadata store run elsewhere. It prints one JSON
    line when it is ready.
    """
    given = {"metadata.url": (metadata, "--metadata"), "pulsar.port": (port, "--port")}
    effective = load_effective(config, settings, given)
    setup_server_log(effective)
    run(lambda: serve(effective.config, http_port, has_bookie=False, ownership=cluster_ownership))


standalone_app = typer.Typer()


@standalone_app.callback(invoke_without_command=True)
def standalone(
    directory: Annotated[
        str, typer.Option("--dir", metavar="D", help="Directory for the data and metadata.")
    ] = DEFAULT_DIRECTORY,
    port: ServicePort = None,
    http_port: HttpPort = DEFAULT_HTTP_PORT,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="URL",
            help="URL of another metadata store, such as zk://host:2181. Default: an embedded store in --dir.",
        ),
    ] = None,
    bookies: Annotated[
        str,
        typer.Option(
            "--bookies",
            metavar="own|existing",
            help="Run a bookie in this process (own), or use the bookies registered in the metadata store (existing).",
        ),
    ] = _OWN,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a broker, a bookie and their metadata in one process, until it gets a signal. It prints one JSON line
    when it is ready.
    """
    if bookies not in (_OWN, _EXISTING):
        raise ArgumentError(f"--bookies is {_OWN} or {_EXISTING}, not {bookies!r}")
    if bookies == _EXISTING and metadata is None:
        raise ArgumentError(
            "--bookies existing needs --metadata: give the metadata store of the bookies, such as zk://host:2181"
        )
    if not directory:
        raise ArgumentError("--dir is empty: give a directory for the data")
    given = {
        "metadata.url": (metadata or f"sqlite:{Path(directory, 'metadata.db')}", "--metadata"),
        "bookie.dir": (Path(directory, "bookie"), "--dir"),
        "pulsar.port": (port, "--port"),
    }
    effective = load_effective(config, settings, given)
    setup_server_log(effective)
    has_bookie = bookies == _OWN
    node = for_trying(effective)
    node = for_one_bookie(node, effective) if has_bookie else node
    run(lambda: serve(node, http_port, has_bookie=has_bookie))


def for_trying(effective: Effective) -> Config:
    """Turns off the deletion of unused topics, unless the user has set it: a topic still exists the next day."""
    if _INACTIVE in effective.origins:
        return effective.config
    return dataclasses.replace(
        effective.config, broker=dataclasses.replace(effective.config.broker, inactive_topics_delete=False)
    )


def for_one_bookie(config: Config, effective: Effective) -> Config:
    """Quorums that one bookie can be, and a port that the system chooses, unless the user has chosen."""
    chosen = effective.origins
    topic = config.topic
    if not any(f"topic.{name}" in chosen for name in ("ensemble_size", "write_quorum", "ack_quorum")):
        topic = dataclasses.replace(topic, ensemble_size=1, write_quorum=1, ack_quorum=1)
    bookie = dataclasses.replace(
        config.bookie, port=config.bookie.port if "bookie.port" in chosen else 0, http_port=NO_HTTP
    )
    return dataclasses.replace(config, bookie=bookie, topic=topic)


# --- ports ------------------------------------------------------------------------------------------------------------


class Port(NamedTuple):
    host: str
    number: int
    """0: the system chooses one, which is free."""
    option: str
    """How the user chooses another one."""


def require_free(*ports: Port) -> None:
    """ListenError for the first one that cannot be listened on. Another process may still take it afterwards."""
    for port in ports:
        if port.number > 0:
            try:
                _bind(port)
            except OSError as error:
                raise cannot_listen(port, error) from None


def cannot_listen(port: Port, error: OSError) -> ListenError:
    return ListenError(
        f"cannot listen on {port.host}:{port.number} ({error.strerror or error}): stop what uses the port, or choose "
        f"another with {port.option}"
    )


def _bind(port: Port) -> None:
    found = socket.getaddrinfo(port.host or None, port.number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: old connections do not count.
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)


# --- the broker -------------------------------------------------------------------------------------------------------

_HURRIED_STEP_S: Final = 1.0  # Enough to inform clients, and to close what does not need the bookie.
_HURRIED_STEPS_MAX: Final = 8  # More than a broker has parts that may wait.


async def serve(
    config: Config,
    http_port: int,
    *,
    has_bookie: bool,
    ownership: Callable[[OwnershipContext], Ownership] = SoleOwnership,
) -> None:
    """Until it fails, or is cancelled. `ownership` makes what decides which topics are the broker's own."""
    _require_free_ports(config, http_port, has_bookie=has_bookie)
    raise_limit()
    runtime, metrics = SystemRuntime(), Metrics()
    async with contextlib.AsyncExitStack() as closing:
        store = await closing.enter_async_context(await open_store(config, runtime, metrics))
        configuration = await open_configuration_store(config, runtime)
        if configuration is not None:
            await closing.enter_async_context(configuration)
        bookie = await _open_bookie(config, runtime, store, metrics, closing) if has_bookie else None
        if bookie is None:
            await read_cluster(store, BookKeeperPaths(config.metadata.ledgers_root))
        local = {BookieId(bookie.bookie_id): bookie.accept} if bookie is not None else None
        client = await closing.enter_async_context(LedgerClient(store, config, runtime, local=local))
        health = _Health(bookie)
        guard = WebGuard(config.http, config.pulsar.listens_on, config.pulsar.names())
        admin = AdminServer(metrics, health, guard, runtime)
        bound_http_port = await _open_http(config, http_port, admin, closing)
        front_end = PulsarFrontEnd(config.pulsar)
        kafka = KafkaFrontEnd(config.kafka) if config.kafka.enabled else None
        http_address = f"{config.pulsar.reached_at}:{bound_http_port}"
        broker = await Broker.open(
            config,
            runtime,
            store,
            client,
            metrics,
            front_ends=[front_end] if kafka is None else [front_end, kafka],
            http_address=http_address,
            ownership=ownership,
            configuration=configuration,
        )
        closing.push_async_callback(_shielded(lambda: _close_broker(broker.aclose, bookie)))
        health.broker = broker
        admin.attach(broker)
        closing.push_async_callback(admin.aclose)  # First of all: requests need the broker.
        _print_ready(broker, front_end.port, bookie, bound_http_port, None if kafka is None else kafka.port)
        expect_long_life()
        await _wait_failed(bookie, broker)


def _require_free_ports(config: Config, http_port: int, *, has_bookie: bool) -> None:
    host, bookie = config.pulsar.listens_on, config.bookie
    ports = [Port(host, config.pulsar.port, "--port"), Port(host, http_port, "--http-port")]
    if config.kafka.enabled:
        ports.append(Port(config.kafka.listens_on, config.kafka.port, "--set kafka.port=PORT"))
    if has_bookie:
        ports.append(Port(bookie.listens_on, bookie.port, "--set bookie.port=PORT"))
    require_free(*ports)


async def _open_bookie(
    config: Config, runtime: Runtime, store: MetadataStore, metrics: Metrics, closing: contextlib.AsyncExitStack
) -> Bookie:
    await init_cluster(store, BookKeeperPaths(config.metadata.ledgers_root), runtime.entropy, accept_existing=True)
    bookie = await Bookie.open(config, runtime, store, metrics, base=os.getcwd())  # noqa: PTH109
    closing.push_async_callback(_shielded(bookie.aclose))
    return bookie


async def _open_http(config: Config, http_port: int, server: AdminServer, closing: contextlib.AsyncExitStack) -> int:
    try:
        port = await server.start(config.pulsar.listens_on, http_port)
    except OSError as error:
        raise cannot_listen(Port(config.pulsar.listens_on, http_port, "--http-port"), error) from error
    closing.push_async_callback(server.aclose)
    return port


class _Health:
    def __init__(self, bookie: Bookie | None) -> None:
        self._bookie = bookie
        self.broker: Broker | None = None

    def __call__(self) -> Health:
        bookie = self._bookie.health() if self._bookie is not None else None
        detail = {"broker": "serving" if self.broker is not None else "starting"}
        is_healthy = self.broker is not None and (bookie is None or bookie.is_healthy)
        return Health(is_healthy, {**detail, **({} if bookie is None else {"bookie": bookie.detail})})


def _shielded(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """The graceful stop is not cut short by what caused it."""

    async def closing() -> None:
        await asyncio.shield(close())

    return closing


async def _close_broker(close: Callable[[], Coroutine[Any, Any, None]], bookie: Bookie | None) -> None:
    if bookie is None or bookie.health().is_healthy:
        await close()
        return
    log.warning("the broker closes without saving the state of its topics, because its bookie has failed")
    await close_hurriedly(close)


async def close_hurriedly(close: Callable[[], Coroutine[Any, Any, None]], step_s: float = _HURRIED_STEP_S) -> None:
    """Interrupts each part that takes longer than a step, so that the later parts are closed."""
    closing = asyncio.ensure_future(close())
    for _ in range(_HURRIED_STEPS_MAX):
        done, _running = await asyncio.wait([closing], timeout=step_s)
        if done:
            break
        closing.cancel()
    if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("the broker was not closed cleanly", extra={"why": str(error)})


def _print_ready(broker: Broker, port: int, bookie: Bookie | None, http_port: int, kafka_port: int | None) -> None:
    ready = {
        "ready": True,
        "service_url": broker.service.address.url_for(PULSAR),
        "admin_url": broker.service.address.http_url,
        "port": port,
        "http_port": http_port,
        "kafka_port": kafka_port,
        "bookie_id": None if bookie is None else bookie.bookie_id,
        "bookie_port": None if bookie is None else bookie.port,
    }
    print(json.dumps(ready), flush=True)


async def _wait_failed(bookie: Bookie | None, broker: Broker) -> None:
    """Raises why the process has to end."""
    waits = [asyncio.ensure_future(_raise_failure("broker", broker.wait_failed))]
    if bookie is not None:
        waits.append(asyncio.ensure_future(_raise_failure("bookie", bookie.wait_failed)))
    try:
        await asyncio.gather(*waits)
    finally:
        for wait in waits:
            wait.cancel()


async def _raise_failure(part: str, wait_failed: Callable[[], Awaitable[MagnetarError]]) -> None:
    raise MagnetarError(f"the {part} of this process has stopped: {await wait_failed()}")
