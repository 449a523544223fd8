"""Registrations: the bookies that the metadata shows now, followed continuously.

`available` and `available/readonly` are followed for names, every registration for its value (the bookie's address),
and Pulsar's node `/bookies` for racks. Racks from the configuration have priority over the node.

Failure:   While the metadata cannot be reached, the last known state is kept: bookies do not vanish because we cannot
           see them. A node of racks that cannot be read changes nothing. The address is read again for every new
           connection, since a bookie may come back under its id at another address. A bookie that is not registered is
           tried at its id if that is host:port, because it may run anyway.
Read next: bookies.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from magnetar.config.ledger import rack_pairs
from magnetar.config.root import Config
from magnetar.errors import (
    BookieUnavailableError,
    MalformedMetadataError,
    MetadataError,
    MetadataUnavailableError,
    StoreClosedError,
)
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, stored_bookie_id
from magnetar.metadata.bookkeeper.service_info import BOOKIE_RPC, Endpoint, decode_service_info, legacy_endpoint
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.store import MetadataStore, Node
from magnetar.quorum.candidates import BOOKIES_PATH, RackTable, Topology, parse_bookies_node

log = logging.getLogger(__name__)

State = TypeVar("State")
_READ_ONLY_NAME = "readonly"  # The node of read-only bookies is a child of that of the others.


class Registrations:
    """Is begun by `start` and ended by `aclose`. Does not own the store."""

    def __init__(self, store: MetadataStore, config: Config) -> None:
        self.writable: dict[BookieId, None] = {}
        self.read_only: dict[BookieId, None] = {}
        self.topology = Topology()
        self.on_arrival: Callable[[BookieId], None] = lambda _: None
        """Is called for each bookie that registers, or changes between writable and read-only."""
        self._store = store
        self._timeout_s = config.metadata.operation_timeout_ms / 1000
        self._address_timeout_s = config.ledger.connect_timeout_ms / 1000 / 2
        self._paths = BookKeeperPaths(config.metadata.ledgers_root)
        self._configured_racks = RackTable.of(rack_pairs(config.placement.racks))
        self._racks = self._configured_racks
        self._endpoints: dict[BookieId, Endpoint] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._unread: list[asyncio.Event] = []
        self._failure: MetadataError | None = None

    async def start(self) -> None:
        """Returns when everything was read once."""
        self._spawn(self._follow(follow_children(self._store, self._paths.available), self._on_writable))
        self._spawn(self._follow(follow_children(self._store, self._paths.readonly), self._on_read_only))
        self._spawn(self._follow(follow_value(self._store, BOOKIES_PATH), self._on_racks))
        try:
            async with asyncio.timeout(self._timeout_s):
                for read_once in self._unread:
                    await read_once.wait()
        except TimeoutError:
            await self.aclose()
            raise MetadataUnavailableError(
                f"the bookies of the cluster could not be read within {self._timeout_s:g} s"
            ) from None
        except BaseException:
            await self.aclose()
            raise
        if self._failure is not None:
            await self.aclose()
            raise self._failure

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def endpoint_of(self, bookie: BookieId) -> Endpoint:
        """Returns the address at which the bookie takes entries, as last known. A slow metadata store leaves time to
        connect."""
        endpoint = self._endpoints.get(bookie)
        if self._store.session.state.is_usable:
            with contextlib.suppress(MetadataError, TimeoutError):
                async with asyncio.timeout(self._address_timeout_s):
                    endpoint = await self._read_endpoint(bookie) or endpoint
        if endpoint is not None:
            return endpoint
        try:
            return legacy_endpoint(bookie)
        except MalformedMetadataError:
            raise BookieUnavailableError(
                f"bookie {bookie} is not registered, and its id is not an address; start the bookie"
            ) from None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name="bookie-registrations"))

    def _follow(
        self, states: AsyncGenerator[State, None], take: Callable[[State], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None]:
        read_once = asyncio.Event()
        self._unread.append(read_once)

        async def follow() -> None:
            try:
                async with aclosing(states):
                    async for state in states:
                        await take(state)
                        read_once.set()
            except MetadataError as error:  # A permanent error; transient ones are waited out.
                self._failure = error
                log.error("changes of the registered bookies are not followed any more: %s", error)
                read_once.set()

        return follow()

    async def _on_writable(self, names: list[str] | None) -> None:
        self.writable = await self._arrived(names, self.writable)

    async def _on_read_only(self, names: list[str] | None) -> None:
        self.read_only = await self._arrived(names, self.read_only)

    async def _arrived(self, names: list[str] | None, before: dict[BookieId, None]) -> dict[BookieId, None]:
        now = dict.fromkeys(_bookies_in(names or []))
        new = [bookie for bookie in now if bookie not in before]
        found = await asyncio.gather(*map(self._read_endpoint_if_possible, new))
        for bookie, endpoint in zip(new, found, strict=True):
            if endpoint is not None:
                self._endpoints[bookie] = endpoint
        self._forget_unregistered(now, before)
        self._publish_topology()
        for bookie in new:
            self.on_arrival(bookie)
        return now

    def _forget_unregistered(self, now: dict[BookieId, None], before: dict[BookieId, None]) -> None:
        """Bounds the memory: addresses of unregistered bookies are dropped."""
        other = self.read_only if before is self.writable else self.writable
        self._endpoints = {
            bookie: endpoint for bookie, endpoint in self._endpoints.items() if bookie in now or bookie in other
        }

    async def _on_racks(self, node: Node | None) -> None:
        try:
            table = parse_bookies_node(b"" if node is None else node.value)
        except MalformedMetadataError as error:
            log.warning("racks could not be read, and stay as they were", extra={"why": str(error)})
            return
        self._racks = self._configured_racks.over(table)
        self._publish_topology()

    def _publish_topology(self) -> None:
        hosts = {bookie: endpoint.host for bookie, endpoint in self._endpoints.items()}
        self.topology = Topology(self._racks, hosts)

    async def _read_endpoint_if_possible(self, bookie: BookieId) -> Endpoint | None:
        try:
            return await self._read_endpoint(bookie)
        except StoreClosedError:
            return None
        except MetadataError as error:
            log.warning("the address of bookie %s could not be read: %s", bookie, error)
            return None

    async def _read_endpoint(self, bookie: BookieId) -> Endpoint | None:
        """Returns None if the bookie is not registered."""
        for read_only in (False, True):
            node = await self._store.get(self._paths.registration(bookie, readonly=read_only))
            if node is not None:
                info = decode_service_info(bookie, node.value)
                return next((e for e in info.endpoints if e.protocol == BOOKIE_RPC), None)
        return None


def _bookies_in(names: list[str]) -> list[BookieId]:
    bookies = []
    for name in names:
        if name == _READ_ONLY_NAME:
            continue
        try:
            bookies.append(stored_bookie_id(name))
        except ValueError:
            log.warning("ignored a registration that is not a bookie's: %r", name)
    return bookies
