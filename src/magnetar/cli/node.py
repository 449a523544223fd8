"""A broker in the foreground, with or without a bookie beside it: what `standalone` and `broker` have in common.

Start:     metadata → bookie, if it is ours → ledger client → HTTP port → broker; then one JSON line on stdout.
End:       in the opposite order, at the first signal; a bookie that fails ends the process, too. Then nobody waits for
           what topics would still store: it takes nothing more, and the next start recovers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.admin.server import AdminServer
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.http import Health
from magnetar.broker.broker import Broker
from magnetar.config.root import Config
from magnetar.errors import ConfigError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.cluster import init_cluster, read_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.collector import expect_long_life
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime

log = logging.getLogger(__name__)

_HURRIED_STEP_S: Final = 1.0  # Enough to tell clients, and to close what does not need the bookie.
_HURRIED_STEPS_MAX: Final = 8  # More than a broker has parts that may wait.


async def serve(config: Config, http_port: int, *, has_bookie: bool) -> None:
    """Until it fails, or is cancelled."""
    runtime, metrics = SystemRuntime(), Metrics()
    async with contextlib.AsyncExitStack() as closing:
        store = await closing.enter_async_context(await open_store(config, runtime, metrics))
        bookie = await _open_bookie(config, runtime, store, metrics, closing) if has_bookie else None
        if bookie is None:
            await read_cluster(store, BookKeeperPaths(config.metadata.ledgers_root))
        local = {BookieId(bookie.bookie_id): bookie.accept} if bookie is not None else None
        client = await closing.enter_async_context(LedgerClient(store, config, runtime, local=local))
        health = _Health(bookie)
        admin = AdminServer(metrics, health, runtime)
        bound_http_port = await _open_http(config, http_port, admin, closing)
        broker = await Broker.open(config, runtime, store, client, metrics, http_port=bound_http_port)
        closing.push_async_callback(_shielded(lambda: _close_broker(broker.aclose, bookie)))
        health.broker = broker
        admin.attach(broker)
        closing.push_async_callback(admin.aclose)  # First of all: requests need the broker.
        _print_ready(broker, bookie, bound_http_port)
        expect_long_life()
        await _wait_failed(bookie)


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
        raise ConfigError(
            f"cannot listen on {config.pulsar.listens_on}:{http_port} ({error.strerror or error}): stop what uses the "
            "port or name another (--http-port)"
        ) from error
    closing.push_async_callback(server.aclose)
    return port


class _Health:
    """Of the whole process, as `/health` tells it."""

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
    log.warning("the broker closes without storing what its topics know: its bookie has failed")
    await close_hurriedly(close)


async def close_hurriedly(close: Callable[[], Coroutine[Any, Any, None]], step_s: float = _HURRIED_STEP_S) -> None:
    """Interrupts each part that takes longer than a step, whereupon the parts behind it are closed."""
    closing = asyncio.ensure_future(close())
    for _ in range(_HURRIED_STEPS_MAX):
        done, _running = await asyncio.wait([closing], timeout=step_s)
        if done:
            break
        closing.cancel()
    if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("the broker was not closed in order", extra={"why": str(error)})


def _print_ready(broker: Broker, bookie: Bookie | None, http_port: int) -> None:
    ready = {
        "ready": True,
        "service_url": broker.service.address.pulsar_url,
        "admin_url": broker.service.address.http_url,
        "port": broker.port,
        "http_port": http_port,
        "bookie_id": None if bookie is None else bookie.bookie_id,
        "bookie_port": None if bookie is None else bookie.port,
    }
    print(json.dumps(ready), flush=True)


async def _wait_failed(bookie: Bookie | None) -> None:
    if bookie is None:
        await asyncio.get_running_loop().create_future()
        return
    error = await bookie.wait_failed()
    raise MagnetarError(f"the bookie of this process has stopped: {error}")
