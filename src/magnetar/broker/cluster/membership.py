"""Membership: what the admin interface asks about the brokers of the cluster.

A broker that is the only one answers for itself. The load manager answers for a cluster.
Read next: load_manager.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.cluster.decisions import Decision
from magnetar.broker.cluster.leader import LeaderBroker
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.errors import NotAllowedError

if TYPE_CHECKING:
    from magnetar.broker.cluster.load_report import BrokerReport  # It needs the service, whose part this is.


class Membership(Protocol):
    async def alive(self) -> list[str]:
        """Returns the ids of all brokers that run now, sorted."""

    async def leading(self) -> LeaderBroker | None:
        """Returns the leader; None if no broker was elected in time."""

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        """Returns None if no such broker is alive."""

    def reports(self) -> Mapping[str, BrokerReport]:
        """Returns what each broker reported last, by its id; empty if brokers report nothing."""

    def decision_on(self, bundle: NamespaceBundle) -> Decision | None:
        """Returns why this broker chose an owner for a bundle; None if it did not, or has forgotten it."""

    async def move(self, bundle: NamespaceBundle, source: str, destination: str) -> None:
        """Is for the leader: makes the owner unload the bundle, and the other broker its next owner."""

    def drain(self, *, is_draining: bool) -> None:
        """Makes this broker one that gets no more bundles, until it ends or this is undone. Those it has stay."""


class SoleMember:
    """The only broker of its cluster."""

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address

    async def alive(self) -> list[str]:
        return [self._address.broker_id]

    async def leading(self) -> LeaderBroker | None:
        return LeaderBroker(self._address.broker_id, self._address.http_url)

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        return self._address if broker_id == self._address.broker_id else None

    def reports(self) -> Mapping[str, BrokerReport]:
        return {}

    def decision_on(self, bundle: NamespaceBundle) -> Decision | None:
        del bundle
        return None

    async def move(self, bundle: NamespaceBundle, source: str, destination: str) -> None:
        raise NotAllowedError(f"bundle {bundle} cannot be moved from {source} to {destination}: this broker is alone")

    def drain(self, *, is_draining: bool) -> None:
        del is_draining
        raise NotAllowedError("the only broker of a cluster cannot be drained: start another one first")
