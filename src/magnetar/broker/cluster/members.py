"""Members: the brokers that are alive now, this one among them, with what each reports about itself.

Format:    `/loadbalance/brokers/{host:port of HTTP}`, ephemeral, one node for each broker (load_report.py).
Invariant: A cluster has one way to agree on owners. Brokers with Pulsar's extensible load manager keep owners
           elsewhere, so a broker does not start beside them; one that comes later is never given a bundle.
Failure:   While the metadata cannot be reached, the last known state is kept: brokers do not vanish because we cannot
           see them. When our session has expired, we register again with the next one. Another process under our id:
           BrokerRegisteredError at the start.
Read next: held_node.py, load_manager.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Final

from magnetar.broker.cluster.held_node import HeldNode
from magnetar.broker.cluster.load_report import BrokerReport
from magnetar.broker.cluster.owner_node import are_of_one_place
from magnetar.broker.ownership import BrokerAddress
from magnetar.errors import (
    BrokerRegisteredError,
    MalformedMetadataError,
    MetadataUnavailableError,
    NoNodeError,
    OtherLoadManagerError,
)
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.store import MetadataStore, Node

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
_EXTENSIBLE_LEADER: Final = "/loadbalance/extension/leader"
_EXTENSIBLE_OWNERS: Final = "/service_unit_state"
_SESSIONS_TO_WAIT: Final = 2  # The session of a killed process may have been active just before.


class Members:
    """Begun by `start`, ended by `aclose`. Does not own the store."""

    def __init__(self, store: MetadataStore, own: BrokerReport, random: Random, *, timeout_s: float) -> None:
        """`own`: what this broker reports until it calls `publish`."""
        self.own = own
        self.brokers: dict[str, BrokerReport] = {}
        """Broker id → its latest report, of all brokers that are registered now."""
        self.on_left: Callable[[str, BrokerReport], None] | None = None
        """Is called with a broker that is registered no more, and its last report."""
        self._store = store
        self._timeout_s = timeout_s
        self._node = HeldNode(
            store,
            f"{BROKERS}/{own.address.broker_id}",
            own.encode(),
            random,
            is_about_us=self._is_about_us,
            timeout_s=timeout_s,
        )
        self._reported_s: dict[str, float] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the other brokers can see this one, and it sees them."""
        await self._require_modular()
        self._node.start()
        try:
            await self._wait_registered()
            await self._read_all()
        except BaseException:
            await self.aclose()
            raise
        self._task = asyncio.get_running_loop().create_task(self._follow_all(), name="broker-members")

    @property
    def is_registered(self) -> bool:
        return self._node.is_held

    def publish(self, own: BrokerReport) -> None:
        """Replaces what this broker reports. Returns at once."""
        self.own = own
        self._node.set_value(own.encode())

    def address_of(self, broker_id: str) -> BrokerAddress | None:
        report = self.brokers.get(broker_id)
        return None if report is None else report.address

    def silent_s(self, broker_id: str) -> float:
        """Returns the seconds since the broker's report changed."""
        now_s = asyncio.get_running_loop().time()
        return now_s - self._reported_s.get(broker_id, now_s)

    async def withdraw(self) -> None:
        """Makes this broker unknown to the others, which it still sees."""
        await self._node.aclose()

    async def aclose(self) -> None:
        tasks = [*([self._task] if self._task is not None else []), *self._following.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._task = None
        self._following.clear()
        await self.withdraw()

    # --- our own node -------------------------------------------------------------------------------------------------

    async def _require_modular(self) -> None:
        for path in (_EXTENSIBLE_LEADER, _EXTENSIBLE_OWNERS):
            if await self._store.get(path) is not None:
                raise _other_load_manager(f"{path} exists")
        for broker_id, report in (await self._read_reports()).items():
            if report.is_extensible:
                raise _other_load_manager(f"broker {broker_id} has it")

    async def _wait_registered(self) -> None:
        limit_s = max(_SESSIONS_TO_WAIT * self._store.session.timeout_ms / 1000, self._timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                while not self._node.is_held:
                    await self._node.wait_seen()
        except TimeoutError:
            if self._node.node is not None:
                raise BrokerRegisteredError(
                    f"another broker is registered at {self._node.path} with other addresses: stop it, or give this "
                    "broker another HTTP port (--http-port) or advertised address (pulsar.advertised_host)"
                ) from None
            raise MetadataUnavailableError(
                f"the broker could not register at {self._node.path} within {limit_s:g} s: the metadata store does "
                "not answer"
            ) from None

    def _is_about_us(self, value: bytes) -> bool:
        own = self.own.address
        report = _report_in(own.broker_id, Node(value, 0, 0, 0))
        return report is not None and are_of_one_place(report.address, own)

    # --- all nodes ----------------------------------------------------------------------------------------------------

    async def _read_reports(self) -> dict[str, BrokerReport]:
        try:
            names = await self._store.children(BROKERS)
        except NoNodeError:
            return {}
        nodes = await asyncio.gather(*(self._store.get(f"{BROKERS}/{name}") for name in names))
        found = {name: _report_in(name, node) for name, node in zip(names, nodes, strict=True)}
        return {name: report for name, report in found.items() if report is not None}

    async def _read_all(self) -> None:
        await self._store.sync()
        for name, report in (await self._read_reports()).items():
            self._take(name, report)

    async def _follow_all(self) -> None:
        async with aclosing(follow_children(self._store, BROKERS)) as lists:
            async for names in lists:
                alive = names or []
                for name in [name for name in {**self._following, **self.brokers} if name not in alive]:
                    self._forget(name)
                for name in alive:
                    if name not in self._following:
                        work = self._follow_one(name)
                        task = asyncio.get_running_loop().create_task(work, name=f"broker-member {name}")
                        self._following[name] = task

    async def _follow_one(self, name: str) -> None:
        async with aclosing(follow_value(self._store, f"{BROKERS}/{name}")) as nodes:
            async for node in nodes:
                report = _report_in(name, node)
                if report is not None:
                    self._take(name, report)

    def _take(self, name: str, report: BrokerReport) -> None:
        if name not in self.brokers and report.is_extensible:
            log.error("a broker with another load manager has come; it is given no bundles", extra={"broker": name})
        if self.brokers.get(name) != report:
            self._reported_s[name] = asyncio.get_running_loop().time()
        self.brokers[name] = report

    def _forget(self, name: str) -> None:
        task = self._following.pop(name, None)
        if task is not None:
            task.cancel()
        self._reported_s.pop(name, None)
        report = self.brokers.pop(name, None)
        if report is not None and self.on_left is not None:
            self.on_left(name, report)


def _report_in(name: str, node: Node | None) -> BrokerReport | None:
    """Returns None for a node that is missing, or that is not a broker's report."""
    if node is None:
        return None
    try:
        return BrokerReport.decode(name, f"{BROKERS}/{name}", node.value)
    except MalformedMetadataError as error:
        log.warning("a broker's report cannot be read", extra={"why": str(error)})
        return None


def _other_load_manager(why: str) -> OtherLoadManagerError:
    return OtherLoadManagerError(
        "the brokers of this cluster use Pulsar's ExtensibleLoadManagerImpl, which keeps the owners of bundles "
        f"elsewhere ({why}): stop them, or start them with loadManagerClassName=ModularLoadManagerImpl, and delete "
        f"{_EXTENSIBLE_OWNERS} if it is left over"
    )
